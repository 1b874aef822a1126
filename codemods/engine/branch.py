"""`--branch`: the migration as commits on a new branch, in a copy of the repository."""

from __future__ import annotations

import os
import shutil
import stat
import textwrap
from pathlib import Path

import git

from codemods import __version__
from codemods.engine import output
from codemods.engine.discover import (
    READ_ONLY_GIT,
    REPORT_FOLDER,
    REPORT_NAMES,
    Found,
    git_reason,
    open_repository,
)
from codemods.engine.edits import Edit, apply, settle
from codemods.engine.rewrite import PYTHON_SUFFIXES
from codemods.engine.run import Migration
from codemods.engine.source import decode
from codemods.errors import UserError
from codemods.rules import FAMILIES, all_rules

BLAME = ".git-blame-ignore-revs"
_ORDER = list(dict.fromkeys(rule.family for family in FAMILIES for rule in family.RULES))
# Of the repository's own folder, what belongs to its working tree, to a merge under way or to running programs.
_NOT_COPIED = shutil.ignore_patterns(
    "*.lock",
    "index",
    "worktrees",
    "fsmonitor*",
    "MERGE_*",
    "*_HEAD",
    "rebase-*",
    "sequencer",
    "BISECT_*",
)
# For git commands on the copy: nothing of the user's own set-up runs, and nothing is fetched.
_OWN_GIT = (
    ("core.hooksPath", os.devnull),
    ("core.fsmonitor", "false"),
    ("core.safecrlf", "false"),
    ("commit.gpgSign", "false"),
    ("gc.auto", "0"),
    ("maintenance.auto", "false"),
    ("protocol.allow", "never"),
    ("advice.addEmbeddedRepo", "false"),
)


def check_branch(checkout: Path, name: str) -> None:
    """Whether a branch of that name can be made of a checkout.

    Raises:
        UserError: the checkout is no repository's top level, has no commit, is a sparse checkout or has a
            branch of that name, or the name is none for a branch.
    """
    if not (checkout / ".git").exists():
        raise UserError(f"{checkout}: --branch needs the root of a git repository; run without it")
    try:
        repository = open_repository(checkout)
        valid = repository.head.is_valid()
        heads = [head.name for head in repository.heads]
    except UserError as error:
        raise UserError(
            f"{checkout}: git does not read this repository ({error}); run without --branch"
        ) from None
    if not valid:
        raise UserError(f"{checkout}: the repository has no commit yet; commit first")
    try:
        shown = git.Git().check_ref_format("--branch", name)
    except git.GitCommandError:
        shown = ""
    if not name or shown != name:
        raise UserError(f"`{name}` is no name for a branch")
    for head in heads:
        if head == name or head.startswith(f"{name}/") or name.startswith(f"{head}/"):
            raise UserError(f"{checkout}: has a branch `{head}` already; choose another --branch")
    if any(line.startswith("S ") for line in repository.git.ls_files("-t").splitlines()):
        raise UserError(
            f"{checkout}: a sparse checkout; --branch would delete what is not on disk; "
            "`git sparse-checkout disable` first"
        )


def write_branch(migration: Migration, stage: Path, name: str) -> None:
    """Copy the repository to `stage` and commit the migration there, one commit per rule family.

    Each commit's message tells what its rules do. The last one lists the others in `.git-blame-ignore-revs`, for
    `git blame`; but for that file its tree is what a run without `--branch` writes. Hooks of the repository do
    not run, and nothing is signed.

    Raises:
        UserError: git refuses; the message says why.
    """
    repository = migration.checkout.repository
    assert repository is not None, "check_branch has seen to it"
    try:
        copy = _copy(migration, repository, stage)
        copy.git.symbolic_ref("HEAD", f"refs/heads/{name}")
        copy.git.update_ref(f"refs/heads/{name}", repository.head.commit.hexsha)
        copy.git.read_tree("HEAD")
        _commit(copy, "Uncommitted changes of the checkout, as they were\n")
        start = copy.head.commit.hexsha
        _move_all(migration, stage, copy)
        for family in _ORDER:
            _write_family(migration, stage, family)
            _commit(copy, _message(migration, family))
        _write_rest(migration, stage)
        _commit(copy, "Format the statements that were touched\n")
        _list_for_blame(migration, stage, copy, start)
        copy.close()
    except git.GitError as error:
        raise UserError(f"--branch {name}: git refuses ({git_reason(error)})") from None


def _copy(migration: Migration, repository: git.Repo, stage: Path) -> git.Repo:
    """The repository with all its branches, and its working tree as it is on disk."""
    common = str(Path(repository.common_dir).resolve())
    shutil.copytree(
        common,
        stage / ".git",
        symlinks=True,
        ignore=lambda folder, names: _not_copied(folder, names, common),
    )
    (stage / ".git" / "HEAD").write_bytes(b"ref: refs/heads/none\n")  # a worktree has its own
    # The common folder may be that of a bare repository or of a submodule.
    with git.GitConfigParser(stage / ".git" / "config", read_only=False) as config:
        config.set_value("core", "bare", "false")
        config.remove_option("core", "worktree")
    copy = git.Repo(stage, expand_vars=False)
    settings = {f"GIT_CONFIG_KEY_{i}": key for i, (key, _) in enumerate(_OWN_GIT)}
    settings |= {f"GIT_CONFIG_VALUE_{i}": value for i, (_, value) in enumerate(_OWN_GIT)}
    copy.git.update_environment(
        **READ_ONLY_GIT | settings | {"GIT_CONFIG_COUNT": str(len(_OWN_GIT))}
    )
    for found in migration.checkout.files:
        if found.kind == "submodule" and _commit_of(repository, found.path):
            (stage / found.path).mkdir(parents=True)
        else:
            output.carry(stage, migration.checkout, found, found.path)
    exclude = stage / ".git" / "info" / "exclude"
    exclude.parent.mkdir(exist_ok=True)
    with exclude.open("a", encoding="utf-8") as stream:
        stream.write("\n".join(["", *(f"/{n}" for n in (*REPORT_NAMES, REPORT_FOLDER)), ""]))
    return copy


def _not_copied(folder: str, names: list[str], top: str) -> set[str]:
    """What `copytree` leaves out: see `_NOT_COPIED`, and whatever is neither file, folder nor link."""
    left = _NOT_COPIED(folder, names) if folder == top else set()
    for name in names:
        mode = os.lstat(os.path.join(folder, name)).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)):
            left.add(name)
    return left


def _commit_of(repository: git.Repo, path: str) -> str:
    """The commit that the index records for a submodule; "" for a nested repository that is none."""
    entry = str(repository.git.ls_files("--stage", "--", path))
    return entry.split()[1] if entry.startswith("160000 ") else ""


def _move_all(migration: Migration, stage: Path, copy: git.Repo) -> None:
    """Give every entry its new place. All leave the old ones first: one may go where another was."""
    moving: list[Found] = []
    for found in migration.checkout.files:
        if migration.placements[found.path].new == found.path and found.path not in migration.links:
            continue
        moving.append(found)
        old_path = stage / found.path
        if found.kind == "submodule":
            shutil.rmtree(old_path)
        else:
            old_path.unlink()
        folder = old_path.parent
        while folder != stage and not any(folder.iterdir()):
            folder.rmdir()
            folder = folder.parent
    for found in moving:
        new = migration.placements[found.path].new
        if new is None:
            continue
        commit = _commit_of(copy, found.path) if found.kind == "submodule" else ""
        if commit:
            (stage / new).mkdir(parents=True)
            copy.git.update_index("--add", "--cacheinfo", f"160000,{commit},{new}")
        else:
            output.carry(stage, migration.checkout, found, new, migration.links.get(found.path))


def _write_family(migration: Migration, stage: Path, family: str) -> None:
    """Bring the tree from what the families before made of it to what this one makes of it."""
    done = _ORDER[: _ORDER.index(family) + 1]
    for path, result in migration.results.items():
        new = migration.placements[path].new
        if new is None or not any(e.rule.startswith(family) for e in result.edits):
            continue
        source = (migration.checkout.root / path).read_bytes()
        text, encoding = decode(source, path.endswith(PYTHON_SUFFIXES))
        edits, _ = settle(
            Edit(e.start, e.end, e.after or "", e.rule) for e in result.edits if e.rule[:3] in done
        )
        (stage / new).write_bytes(encoding.encode(apply(text, edits)))


def _write_rest(migration: Migration, stage: Path) -> None:
    """Bring the tree to the outcome: what was done to the files after all edits."""
    for path, result in migration.results.items():
        new = migration.placements[path].new
        if new is not None and result.data is not None:
            (stage / new).write_bytes(result.data)


def _list_for_blame(migration: Migration, stage: Path, copy: git.Repo, start: str) -> None:
    """Add the commits since `start` to the file of those that `git blame` is to look through.

    The file's format is that of `blame.ignoreRevsFile`: one full id per line, `#` before comments. GitHub reads it by
    this name.
    """
    listed = copy.git.log("--reverse", "--format=# %s%n%H", f"{start}..HEAD")
    path = stage / BLAME
    if not listed or path.is_symlink() or (path.exists() and not path.is_file()):
        return
    known = path.read_bytes() if path.exists() else b""
    if known and not known.endswith(b"\n"):
        known += b"\n"
    head = f"# ling2-migrate {__version__}: migration to MaxText {migration.upstream.label}\n"
    path.write_bytes(known + f"{head}{listed}\n".encode("utf-8", "surrogateescape"))
    use = f"git config blame.ignoreRevsFile {BLAME}"
    _commit(copy, f"List the commits of the migration for git blame\n\nTo have it used: {use}\n")


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
    lines = [
        f"{family}: migrate to MaxText {migration.upstream.label} ({sum(counts.values())} changes)",
        "",
    ]
    for rule, count in sorted(counts.items()):
        lines.append(f"{rule} (×{count}, {rules[rule].tier}): {rules[rule].summary}")
        lines += textwrap.wrap(
            rules[rule].detail,
            96,
            initial_indent="  ",
            subsequent_indent="  ",
            break_on_hyphens=False,
        )
    lines += [
        "",
        f"Made by ling2-migrate {__version__}, map {migration.map_base} to {migration.map_target}.",
        "",
    ]
    return "\n".join(lines)


def _commit(copy: git.Repo, message: str) -> None:
    """Commit everything in the working tree, if there is anything to commit and to say."""
    copy.git.add(
        "--all", "--force"
    )  # the tree holds what is to be committed, ignored by name or not
    if not message or not copy.git.diff("--cached", "--name-only", "--no-renames"):
        return
    try:
        for who in ("GIT_AUTHOR_IDENT", "GIT_COMMITTER_IDENT"):
            copy.git.execute(["git", "-c", "user.useConfigOnly=true", "var", who])
        options = []
    except git.GitCommandError:  # the user has not told git a name
        options = ["-c", "user.name=ling2-migrate", "-c", "user.email=ling2-migrate@localhost"]
    copy.git.execute(["git", *options, "commit", "--quiet", "--no-verify", "--message", message])
