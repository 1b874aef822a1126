"""What `ling2-migrate run` does around the migration: checks, output, report, exit status."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from codemods.engine import output, report
from codemods.engine.discover import require_checkout
from codemods.engine.patch import patch
from codemods.engine.pool import default_jobs
from codemods.engine.project import Options
from codemods.engine.run import Migration, Settings, migrate, write_tree
from codemods.errors import UserError
from codemods.review import page
from codemods.review.terminal import console, print_applied, print_summary, progress_bar


@dataclass(slots=True)
class Request:
    """One call of `ling2-migrate run`; the fields are its options."""

    checkout: Path
    upstream: str
    out: Path | None = None
    map: Path | None = None
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    jobs: int | None = None
    options: Options = field(default_factory=Options)
    diff: bool = False
    check: bool = False
    json: bool = False
    branch: str | None = None
    format: str | None = None
    color: bool | None = None


def execute(request: Request) -> int:
    """Migrate, write and report.

    Returns:
        The exit status: 0 nothing is left for a person, 1 sites are left or `--check` found changes.

    Raises:
        UserError: a bad argument; nothing has been written then.
    """
    _check_options(request)
    require_checkout(request.checkout)
    if request.out is not None:
        output.check_output(request.out, request.checkout)
    if request.branch is not None:
        from codemods.engine.branch import check_branch

        check_branch(request.checkout, request.branch)
    settings = Settings(
        checkout=request.checkout,
        upstream=request.upstream,
        map=request.map,
        only=request.only,
        skip=request.skip,
        jobs=request.jobs or default_jobs(),
        options=request.options,
    )
    with progress_bar() as progress:
        migration = migrate(settings, progress)
        if request.format:
            from codemods.engine.formatting import format_touched

            format_touched(migration)
        wanted = request.out is not None or request.json
        data = report.as_data(migration, request.format) if wanted else {}
        if request.out is not None:
            _write(migration, data, request.out, request.branch, progress)
    if request.diff:
        sys.stdout.buffer.writelines(patch(migration))
    elif request.json:
        sys.stdout.buffer.write(report.as_json(data))
    else:
        print_summary(console(request.color), migration, report.summary(migration), request.out)
    if request.check:
        return 1 if migration.changes or migration.listed else 0
    return 1 if migration.listed else 0


@dataclass(slots=True)
class Choice:
    """One call of `ling2-migrate apply`; the fields are its options."""

    made: Path
    decisions: Path
    out: Path | None = None
    accept_open: bool = False
    checkout: Path | None = None
    upstream: str | None = None
    branch: str | None = None
    jobs: int | None = None
    color: bool | None = None


def execute_apply(choice: Choice) -> int:
    """Make what was accepted, and report.

    Returns:
        The exit status: 0 nothing is left for a person, 1 sites or changes are left.

    Raises:
        UserError: a bad argument, or an input that has changed; nothing has been written then.
    """
    from codemods.engine.apply import apply

    data = report.read_report(choice.made)
    decisions = report.read_decisions(choice.decisions)
    checkout = choice.checkout or Path(data["request"]["checkout"])
    require_checkout(checkout)
    made = choice.made.resolve()
    out = choice.out or made.with_name(f"{made.name}-applied")
    output.check_output(out, checkout)
    if choice.branch is not None:
        from codemods.engine.branch import check_branch

        check_branch(checkout, choice.branch)
    with progress_bar() as progress:
        applied = apply(
            data,
            decisions,
            accept_open=choice.accept_open,
            checkout=choice.checkout,
            upstream=choice.upstream,
            jobs=choice.jobs or default_jobs(),
            progress=progress,
        )
        _write(applied.migration, applied.data, out, choice.branch, progress)
    print_applied(console(choice.color), applied.data, out)
    return 1 if applied.left or applied.migration.listed else 0


def _write(
    migration: Migration,
    data: dict[str, Any],
    out: Path,
    branch: str | None,
    progress: Callable[[str, int, int], None],
) -> None:
    """The tree or the branch, with the report in it: whole or not at all."""
    with output.staged(out) as stage:
        if branch is not None:
            from codemods.engine.branch import write_branch

            write_branch(migration, stage, branch)
        else:
            write_tree(migration, stage, progress)
        (stage / "report.json").write_bytes(report.as_json(data))
        page.write(data, stage)


def _check_options(request: Request) -> None:
    """Refuse options that do not go together."""
    if request.out is None and not (request.diff or request.check or request.json):
        raise UserError("give --out DIR, or --check, --diff or --json to write nothing")
    if request.branch is not None and request.out is None:
        raise UserError(
            "--branch needs --out: the branch is made in a copy of the repository there"
        )
    if request.check and request.out is not None:
        raise UserError("--check writes nothing; leave out --out")
    if request.diff and request.json:
        raise UserError("--diff and --json both print on standard output; give one of them")
