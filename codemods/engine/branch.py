"""`--branch`: the migration as commits on a new branch, in a copy of the repository."""

from __future__ import annotations

import shutil
from pathlib import Path

import git

from codemods import __version__
from codemods.engine import output
from codemods.engine.discover import REPORT_NAMES, Found
from codemods.engine.edits import Edit, apply, settle
from codemods.engine.run import Migration
from codemods.engine.source import decode
from codemods.errors import UserError
from codemods.rules import FAMILIES, all_rules

_ORDER = [family.RULES[0].id[:3] for family in FAMILIES if family.RULES]


def write_branch(migration: Migration, stage: Path, name: str) -> None:
    """Copy the repository to `stage` and commit the migration there, one commit per rule family.

    Each commit's message tells what its rules do. The tree of the last one is what a run without
    `--branch` writes. Hooks of the repository do not run.

    Raises:
        UserError: the checkout is no repository, has no commit, or has a branch of that name.
    """
    repository = migration.checkout.repository
    if repository is None:
        raise UserError(
            f"{migration.checkout.root}: --branch needs the root of a git repository; run without it"
        )
    if not repository.head.is_valid():
        raise UserError(f"{migration.checkout.root}: the repository has no commit yet; commit first")
    if name in (h.name for h in repository.heads):
        raise UserError(f"{migration.checkout.root}: has a branch `{name}` already; choose another --branch")
    try:
        git.Git().check_ref_format("--branch", name)
    except git.GitCommandError:
        raise UserError(f"`{name}` is no name for a branch") from None
    copy = _copy(migration, repository, stage)
    copy.git.symbolic_ref("HEAD", f"refs/heads/{name}")
    copy.git.update_ref(f"refs/heads/{name}", repository.head.commit.hexsha)
    copy.git.read_tree("HEAD")
    _commit(copy, "Uncommitted changes of the checkout, as they were\n")
    for family in _ORDER:
        _write_family(migration, stage, family)
        _commit(copy, _message(migration, family))


def _copy(migration: Migration, repository: git.Repo, stage: Path) -> git.Repo:
    """The repository with all its branches, and its working tree as it is on disk."""
    root = migration.checkout.root
    if (root / ".git").is_dir():
        shutil.copytree(
            root / ".git",
            stage / ".git",
            symlinks=True,
            ignore=shutil.ignore_patterns("*.lock", "worktrees", "fsmonitor*"),
        )
    else:  # a worktree or a submodule: its objects are elsewhere
        repository.clone(str(stage), no_checkout=True, no_hardlinks=True)
    for found in migration.checkout.files:
        output.carry(stage, migration.checkout, found, found.path, {})
    copy = git.Repo(stage)
    exclude = stage / ".git" / "info" / "exclude"
    exclude.parent.mkdir(exist_ok=True)
    with exclude.open("a", encoding="utf-8") as stream:
        stream.write("\n".join(["", *(f"/{n}" for n in REPORT_NAMES), ""]))
    return copy


def _write_family(migration: Migration, stage: Path, family: str) -> None:
    """Bring the tree from what the families before made of it to what this one makes of it."""
    done = _ORDER[: _ORDER.index(family) + 1]
    for found in migration.checkout.files:
        if family == "MAP":
            _move(migration, stage, found)
        result = migration.results.get(found.path)
        new = migration.placements[found.path].new
        if result is None or result.data is None or new is None:
            continue
        if not any(e.rule.startswith(family) for e in result.edits):
            continue
        source = migration.checkout.root / found.path
        if done == _ORDER:
            (stage / new).write_bytes(result.data)
            continue
        text, encoding = decode(source.read_bytes(), found.path.endswith((".py", ".pyi")))
        edits, _ = settle(
            Edit(e.start, e.end, e.after or "", e.rule)
            for e in result.edits
            if e.rule[:3] in done
        )
        (stage / new).write_bytes(encoding.encode(apply(text, edits)))


def _move(migration: Migration, stage: Path, found: Found) -> None:
    new = migration.placements[found.path].new
    if new == found.path:
        return
    old_path = stage / found.path
    if found.kind == "submodule":
        shutil.rmtree(old_path, ignore_errors=True)
    else:
        old_path.unlink()
    if new is not None:
        output.carry(stage, migration.checkout, found, new, migration.placements)
    folder = old_path.parent
    while folder != stage and folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent


def _message(migration: Migration, family: str) -> str:
    """What the family's rules did, for `git log`."""
    rules = all_rules()
    counts: dict[str, int] = {}
    for edit in migration.edits:
        if edit.rule.startswith(family):
            counts[edit.rule] = counts.get(edit.rule, 0) + 1
    for path, placement in migration.placements.items():
        if placement.rule.startswith(family) and placement.new != path:
            counts[placement.rule] = counts.get(placement.rule, 0) + 1
    if not counts:
        return ""
    lines = [f"{family}: migrate to MaxText {migration.upstream.label} ({sum(counts.values())} changes)", ""]
    for rule, count in sorted(counts.items()):
        lines.append(f"{rule} (×{count}, {rules[rule].tier}): {rules[rule].summary}")
    lines += ["", f"Made by ling2-migrate {__version__}, map {migration.map_base} to {migration.map_target}.", ""]
    return "\n".join(lines)


def _commit(copy: git.Repo, message: str) -> None:
    """Commit everything in the working tree, if there is anything to commit and to say."""
    copy.git.add(A=True, force=False)
    if not message or not copy.git.diff("--cached", "--name-only"):
        return
    with copy.config_reader() as config:
        known = config.has_option("user", "email")
    options = [] if known else ["-c", "user.name=ling2-migrate", "-c", "user.email=ling2-migrate@localhost"]
    copy.git.execute(
        [
            "git",
            *options,
            "-c",
            "core.hooksPath=/dev/null",
            "-c",
            "commit.gpgSign=false",
            "commit",
            "--quiet",
            "--message",
            message,
        ]
    )
