"""What `ling2-migrate rebase` does around the rebase: checks, words, report, exit status."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from codemods.errors import UserError
from codemods.rebase import page
from codemods.rebase.plan import open_branch
from codemods.rebase.session import Choices, Outlook, Session, planned
from codemods.rebase.store import GitError, untie
from codemods.review.terminal import console, progress_bar

_MOST = 20


@dataclass(slots=True)
class Request:
    """One call of `ling2-migrate rebase`; the fields are its options."""

    checkout: Path | None
    onto: str | None
    revision: str
    base: str | None
    out: Path | None
    choices: Choices
    plan: bool = False
    continue_: bool = False
    skip: bool = False
    abort: bool = False
    color: bool | None = None


def execute(request: Request) -> int:
    """Carry a branch, or go on with one.

    Returns:
        The exit status: 0 done, or a plan without conflicts; 1 a conflict waits for a person.

    Raises:
        UserError: a bad argument, or git refuses; the user's repository has not been touched then.
    """
    untie()
    actions = [request.plan, request.continue_, request.skip, request.abort]
    if sum(actions) > 1:
        raise UserError("give one of --plan, --continue, --skip and --abort")
    out = console(request.color)
    try:
        if request.continue_ or request.skip or request.abort:
            return _resume(request, out)
        return _start(request, out)
    except GitError as error:
        raise UserError(f"git refuses ({error})") from None


def _start(request: Request, out: Console) -> int:
    if request.checkout is None or request.onto is None:
        raise UserError("give CHECKOUT and --onto REV")
    if request.choices.last and request.choices.squash:
        raise UserError("--last takes the commits of an earlier rebase; leave out --squash")
    if request.plan and request.out is not None:
        raise UserError("--plan writes nothing; leave out --out")
    if not request.plan and (request.out is None or not request.choices.branch):
        raise UserError("give --branch NAME and --out DIR, or --plan to write nothing")
    branch = open_branch(request.checkout, request.revision, request.onto, request.base)
    for note in branch.notes:
        out.print(f"note: {note}", markup=False)
    if request.plan:
        with (
            progress_bar() as progress,
            planned(branch, request.choices, progress) as (outlook, _),
        ):
            _say_steps(out, outlook)
            _say_ledger(out, outlook)
        return 1 if outlook.open else 0
    assert request.out is not None
    session = Session.start(branch, request.choices, request.out)
    try:
        return _run(session, out)
    except (UserError, GitError):
        if not session.steps:  # nothing worth keeping
            session.abort()
        raise


def _resume(request: Request, out: Console) -> int:
    if request.out is None:
        raise UserError("give --out DIR, the work folder of the rebase")
    if request.checkout is not None or request.onto is not None:
        raise UserError("the rebase knows its branch; give --out alone")
    session = Session.resume(request.out)
    if request.abort:
        if session.done:
            raise UserError(
                f"{request.out}: this rebase is finished, and branch {session.choices.branch} is in "
                f"{session.branch.source}; remove what you do not want"
            )
        session.abort()
        out.print(f"{request.out} is gone; {session.branch.source} is as it was", markup=False)
        return 0
    return _run(session, out, skip=request.skip)


def _run(session: Session, out: Console, *, skip: bool = False) -> int:
    with progress_bar() as progress:
        outlook = session.go_on(progress, skip=skip)
    _write_report(session, outlook)
    _say_steps(out, outlook)
    waiting = outlook.open
    if waiting:
        commit = outlook.steps[-1].commit
        subject = session.store.text("log", "-1", "--format=%s", commit)
        out.print(
            f"\n{commit[:10]} ({subject}) is in conflict in {session.folder}: resolve it there (`git status`, "
            "`git mergetool`), `git add` the files, then\n"
            f"  ling2-migrate rebase --continue --out {session.folder}\n"
            "or --skip to leave the commit out, --abort to give up",
            markup=False,
        )
        return 1
    _say_ledger(out, outlook)
    out.print(
        f"branch {session.choices.branch} ({outlook.new[:10]}) is in {session.branch.source}; "
        f"{session.folder} has it checked out, with rebase-report.html",
        markup=False,
    )
    return 0


def _write_report(session: Session, outlook: Outlook) -> None:
    data = page.as_data(session.store, outlook)
    for name, content in (
        ("rebase-report.json", page.as_json(data)),
        ("rebase-report.html", page.render(data)),
    ):
        (session.folder / name).write_text(content, encoding="utf-8", errors="backslashreplace")


def _say_steps(out: Console, outlook: Outlook) -> None:
    branch = outlook.branch
    states = Counter(s.state for s in outlook.steps)
    shown = ", ".join(f"{n} {state}" for state, n in states.items())
    out.print(
        f"{branch.base[:10]} → {branch.onto[:10]} (map: {outlook.map_why}); commits: {shown}",
        markup=False,
    )
    for step in outlook.steps:
        for conflict in step.conflicts if step.state == "conflict" else ():
            places = f"{conflict.regions} place{'s' if conflict.regions > 1 else ''}"
            regions = "" if conflict.one_sided else f", {places}"
            path = conflict.path if conflict.path.isprintable() else ascii(conflict.path)
            out.print(
                f"  conflict {step.commit[:10]} {path}: {conflict.why}{regions}",
                markup=False,
            )
    kinds = Counter(r.what.kind for s in outlook.steps for r in s.resolutions)
    if kinds:
        shown = ", ".join(f"{n} {kind}" for kind, n in kinds.most_common())
        out.print(f"resolved, each with its reason in the report: {shown}", markup=False)


def _say_ledger(out: Console, outlook: Outlook) -> None:
    counts = outlook.counts()
    shown = ", ".join(f"{n} {status}" for status, n in counts.most_common())
    out.print(f"{len(outlook.accounts)} hunks of the fork: {shown}", markup=False)
    dropped = [a for a in outlook.accounts if a.status in ("dropped", "lost")]
    for account in dropped[:_MOST]:
        hunk = account.hunk
        out.print(f"  {account.status} {hunk.path}:{hunk.line} {account.reason}", markup=False)
    for site in outlook.left[:_MOST]:
        out.print(f"  look at {site.path}:{site.line} {site.rule} {site.reason}", markup=False)
    if len(outlook.left) > _MOST:
        out.print(f"  … and {len(outlook.left) - _MOST} more, in the report", markup=False)
    if len(dropped) > _MOST:
        out.print(f"  … and {len(dropped) - _MOST} more, in the report", markup=False)
