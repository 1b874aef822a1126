"""What a checkout holds: its files, how git knows it, and what must be left alone."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Literal

import git

from codemods.errors import UserError

Kind = Literal["file", "link", "outside", "submodule"]

_SKIPPED = frozenset({".git", ".hg", "__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache"})
REPORT_NAMES = ("report.json", "report.html")
# Of a huge report, more of the page's data is in this folder.
REPORT_FOLDER = "report-data"
_REPORT_MARK = b"ling2-migrate report"
# For git commands on the user's repository: they read, and nothing else.
READ_ONLY_GIT = {
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_TERMINAL_PROMPT": "0",
    # `GIT_NO_LAZY_FETCH` is new in git 2.45; before, a fetch that no protocol is allowed for fails as well.
    "GIT_CONFIG_COUNT": "2",
    "GIT_CONFIG_KEY_0": "core.fsmonitor",
    "GIT_CONFIG_VALUE_0": "false",
    "GIT_CONFIG_KEY_1": "protocol.allow",
    "GIT_CONFIG_VALUE_1": "never",
}


@dataclass(frozen=True, slots=True)
class Found:
    """One entry of a checkout.

    Attributes:
        path: relative to the checkout, with `/`.
        kind: a file, a link inside the tree, a link that leads outside of it (or is absolute), or a
            submodule.
        size: in bytes (0 for what is no file).
    """

    path: str
    kind: Kind
    size: int = 0


@dataclass(slots=True)
class Checkout:
    """A checkout as it is on disk.

    Attributes:
        root: its folder.
        files: everything in it, sorted by path.
        skipped: path → why an entry that is there is not among `files`.
        repository: the git repository whose top level it is, or None.
        notes: what the user should know (dirty tree, ignored files, …).
    """

    root: Path
    files: list[Found]
    skipped: dict[str, str] = field(default_factory=dict)
    repository: git.Repo | None = None
    notes: list[str] = field(default_factory=list)


def require_checkout(root: Path) -> None:
    """Whether a folder can be a checkout at all.

    Raises:
        UserError: no such folder, a bare repository, or no way to read it.
    """
    try:
        root.stat()
        if not root.is_dir():
            raise UserError(f"{root}: not a folder; give the path of a MaxText checkout")
        os.scandir(root).close()
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{root}: no such folder; give the path of a MaxText checkout") from None
    except OSError as error:
        raise UserError(f"{root}: cannot be read ({error.strerror})") from None
    if (root / "HEAD").is_file() and (root / "objects").is_dir() and (root / "refs").is_dir():
        raise UserError(f"{root}: a bare git repository; clone it and give the path of the clone")


def open_repository(root: Path) -> git.Repo:
    """The git repository whose top level `root` is, for reading only.

    Git then takes no locks, refreshes no index, starts no file system monitor and fetches no missing
    objects, so the repository stays as it is, byte for byte.

    Raises:
        UserError: git does not read it; the message says why.
    """
    try:
        repository = git.Repo(root, expand_vars=False)
        repository.git.update_environment(**READ_ONLY_GIT)
        # Some faults, another owner among them, show only when git itself is asked.
        repository.git.rev_parse("--git-dir")
    except (git.GitError, ValueError, OSError) as error:
        raise UserError(git_reason(error)) from None
    return repository


def git_reason(error: Exception) -> str:
    """Why git failed, in its own words, on one line."""
    said = str(getattr(error, "stderr", "") or "")
    for line in said.splitlines():
        _, found, reason = line.partition("fatal: ")
        if found:
            hint = "; `git config --global --add safe.directory DIR` makes git trust it"
            return reason.strip() + (hint if "dubious ownership" in reason else "")
    if isinstance(error, git.InvalidGitRepositoryError):
        return "no git repository"
    return " ".join(str(error).split()) or type(error).__name__


def discover(root: Path) -> Checkout:
    """List a checkout.

    In a git repository these are the tracked files and the untracked ones it does not ignore, as they
    are on disk; anywhere else every file below the folder.

    Raises:
        UserError: see `require_checkout`.
    """
    require_checkout(root)
    checkout = Checkout(root, [])
    submodules: set[str] = set()
    paths: list[str] | None = None
    if (root / ".git").exists():
        try:
            repository = open_repository(root)
            paths, submodules = _listed(repository)
            checkout.repository = repository
        except UserError as error:
            checkout.notes.append(
                f"git does not read this repository ({error}); taken as a plain folder, with the files it ignores"
            )
    if paths is None:
        paths, submodules = _walked(checkout)
    links: set[str] = set()
    missing = 0
    for path in sorted({*paths, *submodules}):
        if links and any(str(parent) in links for parent in PurePosixPath(path).parents):
            missing += 1  # tracked in a folder that is a link now
            continue
        found = _entry(checkout, path, submodules)
        if found is None:
            missing += path not in checkout.skipped
            continue
        if found.kind in ("link", "outside"):
            links.add(path)
        named = path in REPORT_NAMES or path.startswith(f"{REPORT_FOLDER}/")
        if not named or not is_report(root / path):
            checkout.files.append(found)
    if checkout.repository is not None:
        _say_state(checkout, checkout.repository, missing)
    return checkout


def _listed(repository: git.Repo) -> tuple[list[str], set[str]]:
    paths = _ls_files(repository, "--cached", "--others", "--exclude-standard")
    submodules = {
        line.partition("\t")[2]
        for line in _ls_files(repository, "--stage")
        if line.startswith("160000 ")
    }
    # `--others` names a nested repository that is no submodule as a folder.
    submodules |= {p.rstrip("/") for p in paths if p.endswith("/")}
    return [p for p in paths if not p.endswith("/")], submodules


def _ls_files(repository: git.Repo, *arguments: str) -> list[str]:
    try:
        output: bytes = repository.git.ls_files(
            *arguments, z=True, stdout_as_string=False, strip_newline_in_stdout=False
        )
    except git.GitError as error:
        raise UserError(git_reason(error)) from None
    return [os.fsdecode(part) for part in output.split(b"\0") if part]


def _say_state(checkout: Checkout, repository: git.Repo, missing: int) -> None:
    """Say what of the working tree is not as committed, and what becomes of it."""
    notes = checkout.notes
    try:
        if not repository.head.is_valid():
            notes.append("the repository has no commit yet; the files are migrated as they are")
        elif repository.is_dirty(untracked_files=False, submodules=False):
            notes.append("the working tree has uncommitted changes; they are migrated as they are")
    except (git.GitError, ValueError, OSError):
        notes.append("git cannot tell whether the working tree is clean; it is migrated as it is")
    if missing:
        notes.append(
            f"{missing} tracked files are not on disk (deleted, or outside a sparse checkout); they are not in "
            "the output"
        )
    try:
        untracked = len(_ls_files(repository, "--others", "--exclude-standard"))
        ignored = len(
            _ls_files(repository, "--others", "--ignored", "--exclude-standard", "--directory")
        )
    except UserError:
        return
    if untracked:
        notes.append(f"{untracked} untracked files are migrated too")
    if ignored:
        notes.append(f"{ignored} files or folders that git ignores are not in the output")


def _walked(checkout: Checkout) -> tuple[list[str], set[str]]:
    root = checkout.root
    paths: list[str] = []
    nested: set[str] = set()

    def on_error(error: OSError) -> None:
        folder = os.path.relpath(error.filename, root).replace(os.sep, "/")
        checkout.skipped[folder] = f"the folder cannot be read ({error.strerror})"

    for folder, folders, files in os.walk(root, onerror=on_error):
        relative = os.path.relpath(folder, root).replace(os.sep, "/")
        prefix = "" if relative == "." else f"{relative}/"
        kept = []
        for name in sorted(folders):
            full = os.path.join(folder, name)
            if name in _SKIPPED:
                continue
            if os.path.islink(full):
                paths.append(f"{prefix}{name}")
            elif os.path.exists(os.path.join(full, ".git")):
                nested.add(f"{prefix}{name}")
            else:
                kept.append(name)
        folders[:] = kept
        paths += [f"{prefix}{name}" for name in files if name != ".git"]
    return paths, nested


def _entry(checkout: Checkout, path: str, submodules: set[str]) -> Found | None:
    """One entry; None for what is not there, and for what cannot be carried (that is in `skipped` then)."""
    full = checkout.root / path
    if path in submodules:
        return Found(path, "submodule")
    try:
        mode = full.lstat()
    except OSError as error:
        if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
            checkout.skipped[path] = f"it cannot be read ({error.strerror})"
        return None
    if stat.S_ISLNK(mode.st_mode):
        return Found(path, "link" if _leads_inside(checkout.root, full) else "outside")
    if stat.S_ISDIR(mode.st_mode):  # a tracked file that a folder has taken the place of
        return None
    if not stat.S_ISREG(mode.st_mode):
        checkout.skipped[path] = "it is no regular file (a pipe, a socket or a device)"
        return None
    if not os.access(full, os.R_OK):
        checkout.skipped[path] = "the file cannot be read (Permission denied)"
        return None
    return Found(path, "file", mode.st_size)


def _leads_inside(root: Path, link: Path) -> bool:
    """Whether a relative link ends in the tree, whatever other links it goes through."""
    if os.path.isabs(os.readlink(link)):
        return False
    top, end = os.path.realpath(root), os.path.realpath(link)
    return end == top or end.startswith(top.rstrip(os.sep) + os.sep)


def is_report(path: Path) -> bool:
    """Whether a file is a report of an earlier run, which is no part of the tree."""
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as stream:
        return _REPORT_MARK in stream.read(400)


def reader(root: Path) -> Callable[[str], bytes]:
    """A function that reads files of the checkout; nothing comes of a submodule or a link to nothing."""

    def read(path: str) -> bytes:
        try:
            return (root / path).read_bytes()
        except OSError:
            return b""

    return read
