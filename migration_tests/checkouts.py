"""Small checkouts, and the command line on them, in this process or in one of its own."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from codemods import cli
from codemods.engine.discover import REPORT_NAMES
from migration_tests.support import UPSTREAM, write_files

# A fork in five files: upstream's modules that moved, a script, a document.
FORK: Mapping[str, str | bytes] = {
    "src/MaxText/__init__.py": "",
    "src/MaxText/layers/__init__.py": "",
    "src/MaxText/layers/deepseek.py": "from MaxText.layers import moe\n\nBLOCK = moe.RoutedMoE\n",
    "src/MaxText/layers/moe.py": "from MaxText import max_utils\n\n\nclass RoutedMoE:\n  pass\n",
    "src/MaxText/max_utils.py": "VALUE = 1\n",
    "run.sh": "python3 -m MaxText.train src/MaxText/configs/base.yml\n",
    "notes.md": "MaxText is a product name.\n",
}


@dataclass(frozen=True)
class Ran:
    """A finished command line: exit status and what it printed."""

    status: int
    out: bytes
    err: str


@dataclass(frozen=True)
class CommandLine:
    """`ling2-migrate` in this process, where the upstream tree is read once for all tests."""

    capture: pytest.CaptureFixture[bytes]
    patch: pytest.MonkeyPatch

    def __call__(self, *arguments: str | Path) -> Ran:
        self.capture.readouterr()
        self.patch.setattr(sys, "argv", ["ling2-migrate", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        out, err = self.capture.readouterr()
        assert isinstance(exit_.value.code, int)
        return Ran(exit_.value.code, out, err.decode())

    def run(self, checkout: Path, *arguments: str | Path) -> Ran:
        """`run` on a checkout, against the released upstream, in one worker process."""
        return self("run", checkout, "--upstream", UPSTREAM, "--jobs", "1", *arguments)


def fork(root: Path, extra: Mapping[str, str | bytes] | None = None) -> Path:
    """Write the small fork, with more files."""
    return write_files(root, {**FORK, **(extra or {})})


def git(root: Path, *arguments: str) -> str:
    """Run git as a user with a name and no settings of their own."""
    env = {
        f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
    }
    env |= {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull}
    done = subprocess.run(
        ["git", "-C", str(root), *arguments],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | env,
    )
    return done.stdout


def repository(root: Path, extra: Mapping[str, str | bytes] | None = None) -> Path:
    """The small fork as a git repository with one commit."""
    fork(root, extra)
    git(root, "init", "--quiet", "--initial-branch", "main")
    git(root, "add", "--all", "--force")
    git(root, "commit", "--quiet", "--message", "fork")
    return root


def state(root: Path) -> str:
    """A hash of a tree: paths, kinds, modes, times and contents of everything in it, `.git` too."""
    digest = hashlib.sha256()
    for folder, folders, files in os.walk(root):
        folders.sort()
        for name in sorted([*folders, *files]):
            path = Path(folder, name)
            facts = path.lstat()
            digest.update(os.fsencode(path.relative_to(root)))
            digest.update(f"{facts.st_mode} {facts.st_mtime_ns} {facts.st_size}".encode())
            if path.is_symlink():
                digest.update(os.fsencode(os.readlink(path)))
            elif path.is_file():
                digest.update(path.read_bytes())
    return digest.hexdigest()


def contents(root: Path) -> dict[str, bytes]:
    """Every file of a tree but `.git` and reports: path → content, or what a link says."""
    found: dict[str, bytes] = {}
    for folder, folders, files in os.walk(root):
        if ".git" in folders:
            folders.remove(".git")
        for name in [*folders, *files]:
            path = Path(folder, name)
            key = os.path.relpath(path, root)
            if path.is_symlink():
                found[key] = b"-> " + os.fsencode(os.readlink(path))
            elif path.is_file() and key not in REPORT_NAMES:
                found[key] = path.read_bytes()
    return found
