"""What a checkout holds: its files, how git knows it, and what must be left alone."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import git

from codemods.errors import UserError

Kind = Literal["file", "link", "outside", "submodule"]

_SKIPPED = frozenset({".git", ".hg", "__pycache__"})
REPORT_NAMES = ("report.json", "report.html")
_REPORT_MARK = b"ling2-migrate report"


@dataclass(frozen=True, slots=True)
class Found:
    """One entry of a checkout.

    Attributes:
        path: relative to the checkout, with `/`.
        kind: a file, a link inside the tree, a link that leads outside, or a submodule.
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
        repository: the git repository whose top level it is, or None.
        notes: what the user should know (dirty tree, ignored files, …).
    """

    root: Path
    files: list[Found]
    repository: git.Repo | None = None
    notes: list[str] = field(default_factory=list)


def discover(root: Path) -> Checkout:
    """List a checkout.

    In a git repository these are the tracked files and the untracked ones it does not ignore, as they
    are on disk; anywhere else every file below the folder.

    Raises:
        UserError: no such folder, or no way to read it.
    """
    if not root.exists():
        raise UserError(f"{root}: no such folder; give the path of a MaxText checkout")
    if not root.is_dir():
        raise UserError(f"{root}: not a folder; give the path of a MaxText checkout")
    if not os.access(root, os.R_OK | os.X_OK):
        raise UserError(f"{root}: cannot be read; check its permissions")
    checkout = Checkout(root, [])
    submodules: set[str] = set()
    paths: list[str] | None = None
    if (root / ".git").exists():
        try:
            repository = git.Repo(root)
            # Reading must not even refresh the user's index.
            repository.git.update_environment(GIT_OPTIONAL_LOCKS="0")
            paths, submodules = _listed(repository)
            checkout.repository = repository
            _say_state(checkout, repository)
        except (git.GitError, ValueError, OSError) as error:
            reason = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
            checkout.notes.append(f"git does not read this repository ({reason}); taken as a plain folder")
            paths, submodules = None, set()
    if paths is None:
        paths, submodules = _walked(root)
    for path in sorted({*paths, *submodules}):
        found = _entry(root, path, submodules)
        if found is not None and not _is_report(root, found):
            checkout.files.append(found)
    return checkout


def _listed(repository: git.Repo) -> tuple[list[str], set[str]]:
    def lines(*arguments: str) -> list[str]:
        output: bytes = repository.git.ls_files(
            *arguments, z=True, stdout_as_string=False, strip_newline_in_stdout=False
        )
        return [os.fsdecode(part) for part in output.split(b"\0") if part]

    paths = lines("--cached", "--others", "--exclude-standard")
    submodules = {
        line.partition("\t")[2] for line in lines("--stage") if line.startswith("160000 ")
    }
    # `--others` names a nested repository that is no submodule as a folder.
    submodules |= {p.rstrip("/") for p in paths if p.endswith("/")}
    return [p for p in paths if not p.endswith("/")], submodules


def _say_state(checkout: Checkout, repository: git.Repo) -> None:
    try:
        if repository.is_dirty(untracked_files=True, submodules=False):
            checkout.notes.append("the working tree has uncommitted changes; they are migrated as they are")
    except (git.GitError, ValueError, OSError):
        checkout.notes.append("git cannot tell whether the working tree is clean; it is migrated as it is")


def _walked(root: Path) -> tuple[list[str], set[str]]:
    paths: list[str] = []
    nested: set[str] = set()

    def on_error(error: OSError) -> None:
        raise UserError(f"{error.filename}: cannot be read; check its permissions")

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


def _entry(root: Path, path: str, submodules: set[str]) -> Found | None:
    full = root / path
    if path in submodules:
        return Found(path, "submodule")
    if full.is_symlink():
        target = os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(full)))
        inside = not os.path.isabs(os.readlink(full)) and not target.startswith("..")
        return Found(path, "link" if inside else "outside")
    if not full.is_file():  # deleted in the working tree, or a socket
        return None
    return Found(path, "file", full.stat().st_size)


def _is_report(root: Path, found: Found) -> bool:
    """Whether an entry is a report of an earlier run, which is no part of the tree."""
    if found.kind != "file" or found.path not in REPORT_NAMES:
        return False
    with (root / found.path).open("rb") as stream:
        return _REPORT_MARK in stream.read(400)


def reader(root: Path) -> Callable[[str], bytes]:
    """A function that reads files of the checkout."""
    return lambda path: (root / path).read_bytes()
