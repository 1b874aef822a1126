"""What is to be carried: the branch, its base, the new upstream, and the steps in order."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from codemods.errors import UserError
from codemods.rebase.store import GitError, Store, common_folder, git

TRAILER = "Rebased-from"


@dataclass(frozen=True, slots=True)
class Branch:
    """A branch to carry.

    Attributes:
        source: the user's repository.
        tip: its last commit.
        onto: the upstream commit it goes on top of.
        base: the upstream commit it stands on.
        onto_label: the new upstream as the user gave it.
        notes: what the user should know.
    """

    source: Path
    tip: str
    onto: str
    base: str
    onto_label: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit of the branch.

    Attributes:
        id: the commit.
        parents: its parents that are in the branch.
        outside: its other parents, which are upstream's.
    """

    id: str
    parents: tuple[str, ...]
    outside: tuple[str, ...]


def open_branch(source: Path, revision: str, onto: str, base: str | None) -> Branch:
    """Find what is to be carried; nothing is written.

    Raises:
        UserError: no repository's root, no such commit, or no common history.
    """
    source = source.resolve()
    if not source.is_dir():
        raise UserError(f"{source}: no such folder; give the root of a git repository")
    try:
        top = git(source, "rev-parse", "--show-prefix").decode().strip()
        bare = git(source, "rev-parse", "--is-bare-repository").decode().strip() == "true"
    except GitError as error:
        raise UserError(f"{source}: git does not read this repository ({error})") from None
    if top and not bare:
        raise UserError(f"{source}: not the root of its repository; give that")
    if git(source, "rev-parse", "--show-object-format").strip() != b"sha1":
        raise UserError(f"{source}: its objects are named by SHA-256; only SHA-1 can be carried")
    tip, target = _commit(source, revision, "--from"), _commit(source, onto, "--onto")
    shallow = (common_folder(source) / "shallow").is_file()
    if base is not None:
        found = _commit(source, base, "--base")
        if not _ancestor(source, found, tip):
            raise UserError(f"--base {base}: {revision} does not descend from it")
    else:
        try:
            found = git(source, "merge-base", tip, target).decode().split()[0]
        except (GitError, IndexError):
            why = (
                "the clone is shallow, `git fetch --unshallow` first" if shallow else "give --base"
            )
            raise UserError(f"{revision} and {onto} have no commit in common; {why}") from None
    if found == tip:
        raise UserError(f"{revision} has no commits that {onto} lacks; there is nothing to carry")
    packages = git(source, "ls-tree", "--name-only", target, "src/", "./").decode().split("\n")
    if not {"maxtext", "src/maxtext"} & set(packages):
        raise UserError(
            f"--onto {onto}: has no package maxtext; give a commit of upstream's new layout"
        )
    notes = []
    changed = b""
    if not bare:
        with suppress(GitError):  # a filter of the user's that fails is no matter of ours
            changed = git(source, "status", "--porcelain", "--untracked-files=no")
    if changed.strip() and revision == "HEAD":
        notes.append("the working tree has uncommitted changes; commits alone are carried")
    if revision == "HEAD" and not bare:
        try:
            git(source, "symbolic-ref", "-q", "HEAD")
        except GitError:
            notes.append(f"HEAD is detached at {tip[:10]}; the commits up to there are carried")
    if shallow:
        notes.append("the clone is shallow; its history counts from where it starts")
    return Branch(source, tip, target, found, onto, tuple(notes))


def check_name(source: Path, name: str) -> None:
    """Whether a new branch of that name can be made.

    Raises:
        UserError: it is no name for a branch, or there is such a branch.
    """
    try:
        shown = git(source, "check-ref-format", "--branch", name).decode().strip()
    except GitError:
        shown = ""
    if shown != name:
        raise UserError(f"`{name}` is no name for a branch")
    heads = git(source, "for-each-ref", "--format=%(refname:strip=2)", "refs/heads").decode()
    for head in heads.split("\n"):
        if head and (head == name or head.startswith(f"{name}/") or name.startswith(f"{head}/")):
            raise UserError(f"{source}: has a branch `{head}` already; choose another --branch")


def carried_before(store: Store, branch: Branch, last: str) -> dict[str, str]:
    """The branch's commits that an earlier rebase carried: each with what came of it, by its trailer.

    Raises:
        UserError: no such branch, or it does not stand on the upstream that is asked for.
    """
    tip = _commit(branch.source, last, "--last")
    if not _ancestor(branch.source, branch.onto, tip):
        raise UserError(
            f"--last {last}: does not stand on {branch.onto_label}; carry {last} itself there, with --from {last}"
        )
    shape = f"--format=%H %(trailers:key={TRAILER},valueonly,separator=%x20)"
    found: dict[str, str] = {}
    for line in store.text("log", "--reverse", shape, tip, f"^{branch.onto}").splitlines():
        new, *old = line.split()
        found |= dict.fromkeys(old, new)
    if not found:
        raise UserError(f"--last {last}: no commit of it has the trailer {TRAILER}")
    return found


def commits(store: Store, branch: Branch, carried: Collection[str] = ()) -> list[Commit]:
    """The commits of the branch, parents first, without those that were carried before and their ancestors.

    Raises:
        UserError: history that cannot be carried commit by commit.
    """
    listed = store.text(
        "rev-list",
        "--topo-order",
        "--reverse",
        branch.tip,
        *(f"^{commit}" for commit in (branch.onto, branch.base, *carried)),
    )
    inside = listed.split()
    known = {*inside, *carried}
    found = []
    for commit in inside:
        parents = store.parents(commit)
        within = tuple(p for p in parents if p in known)
        if len(parents) > 2:
            raise UserError(
                f"{commit[:10]}: a merge of {len(parents)} branches cannot be carried as it is; use --squash"
            )
        found.append(Commit(commit, within, tuple(p for p in parents if p not in known)))
    return found


def _commit(source: Path, revision: str, option: str) -> str:
    try:
        shown = git(source, "rev-parse", "--verify", "--end-of-options", revision + "^{commit}")
    except GitError:
        raise UserError(
            f"{option} {revision}: no such commit in {source}; fetch it first"
        ) from None
    return shown.decode().strip()


def _ancestor(source: Path, old: str, new: str) -> bool:
    try:
        git(source, "merge-base", "--is-ancestor", old, new)
    except GitError:
        return False
    return True
