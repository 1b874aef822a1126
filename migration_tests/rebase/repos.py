"""Small repositories for `rebase`: an upstream that moves its package, and a fork that does not."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from migration_tests.checkouts import CommandLine, Ran

ENVIRONMENT = {
    "GIT_AUTHOR_NAME": "Fork Author",
    "GIT_AUTHOR_EMAIL": "fork@example.com",
    "GIT_COMMITTER_NAME": "Someone",
    "GIT_COMMITTER_EMAIL": "someone@example.com",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
}

# What makes a tree a MaxText on the old or the new layout.
OLD: Mapping[str, str] = {
    "src/MaxText/__init__.py": '"""The package."""\n',
    "src/MaxText/layers/__init__.py": "",
}
MOVED: Mapping[str, str] = {
    "src/MaxText/__init__.py": "src/maxtext/__init__.py",
    "src/MaxText/layers/__init__.py": "src/maxtext/layers/__init__.py",
}


@dataclass
class Repo:
    """A repository with the branches `upstream` and `fork`, which start at one commit."""

    root: Path
    clock: int = 1_700_000_000
    base: str = ""
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)

    def git(self, *arguments: str, check: bool = True) -> str:
        """Run git; returns what it prints."""
        date = {f"GIT_{who}_DATE": f"{self.clock} +0100" for who in ("AUTHOR", "COMMITTER")}
        done = subprocess.run(
            ["git", "-C", str(self.root), *arguments],
            check=check,
            capture_output=True,
            text=True,
            env=os.environ | ENVIRONMENT | date,
        )
        return done.stdout

    def commit(
        self,
        message: str,
        write: Mapping[str, str | bytes] | None = None,
        *,
        move: Mapping[str, str] | None = None,
        remove: tuple[str, ...] = (),
    ) -> str:
        """Move, remove and write files, then commit; returns the commit."""
        for old, new in (move or {}).items():
            (self.root / new).parent.mkdir(parents=True, exist_ok=True)
            self.git("mv", old, new)
        for path in remove:
            self.git("rm", "-q", path)
        for path, content in (write or {}).items():
            target = self.root / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content if isinstance(content, bytes) else content.encode())
        self.clock += 60
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", message)
        return self.git("rev-parse", "HEAD").strip()

    def show(self, revision: str, path: str) -> str:
        """A file of a revision."""
        return self.git("show", f"{revision}:{path}")

    def tree(self, revision: str) -> list[str]:
        """The paths of a revision."""
        return self.git("ls-tree", "-r", "--name-only", revision).splitlines()

    def state(self) -> dict[str, bytes]:
        """Every file of the repository and its work tree, objects and refs with them."""
        return {
            str(path.relative_to(self.root)): path.read_bytes()
            for path in sorted(self.root.rglob("*"))
            if path.is_file()
        }


def start(root: Path, files: Mapping[str, str | bytes]) -> Repo:
    """A repository whose first commit has some files on the old layout; HEAD is the branch `upstream`."""
    root.mkdir(parents=True)
    repo = Repo(root)
    repo.git("init", "-q", "-b", "upstream")
    repo.git("config", "core.autocrlf", "false")
    repo.base = repo.commit("base", {**OLD, **files})
    repo.git("branch", "fork")
    return repo


def rebase(cli: CommandLine, root: Path, out: Path, *more: str) -> Ran:
    """Carry a repository's HEAD onto its branch `upstream`, as the branch `new`, by way of `out`."""
    target = ("--onto", "upstream", "--branch", "new", "--out", out)
    return cli("rebase", root, *target, "--jobs", "1", *more)
