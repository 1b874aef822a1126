"""Reading commits, trees and blobs of a git repository, without a work tree and without writing to it."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from codemods.errors import UserError

_ABSENT = "0" * 40


@dataclass(frozen=True, slots=True)
class Change:
    """One path that differs between a commit and its first parent; a blob id is None where the path is absent."""

    path: str
    old: str | None
    new: str | None


@dataclass(frozen=True, slots=True)
class Step:
    """The step from one tree to the next.

    Attributes:
        commit: full commit id; "" for the step between two trees that no commit joins.
        date: ISO date of the commit, or "".
        changes: what differs, sorted by path.
    """

    commit: str
    date: str
    changes: tuple[Change, ...]


def blob_id(content: bytes) -> str:
    """The id git gives a file's content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def step_between(
    old: dict[str, str], new: dict[str, str], commit: str = "", date: str = ""
) -> Step:
    """The step between two trees given as path → blob id."""
    paths = sorted(p for p in old.keys() | new.keys() if old.get(p) != new.get(p))
    return Step(commit, date, tuple(Change(p, old.get(p), new.get(p)) for p in paths))


class GitStore:
    """A git repository, bare or not. Contents added with `add` stand beside those of the repository.

    A blob that the repository lacks (a partial or filtered copy) reads as None.
    """

    def __init__(self, path: Path) -> None:
        """Open the repository at `path`.

        Raises:
            UserError: there is no git repository, or git is not installed.
        """
        self.path = path
        self._batch: subprocess.Popen[bytes] | None = None
        self._added: dict[str, bytes] = {}
        if not path.is_dir():
            raise UserError(f"{path}: no such folder")
        try:
            self._git("rev-parse", "--git-dir")
        except FileNotFoundError:
            raise UserError("git is not installed or not on PATH") from None
        except subprocess.CalledProcessError as error:
            said = error.stderr.decode(errors="replace").strip().splitlines()
            why = f" ({said[0].removeprefix('fatal: ')})" if said else ""
            raise UserError(f"{path}: not a git repository{why}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the reader process."""
        if self._batch is not None:
            for stream in (self._batch.stdin, self._batch.stdout):
                if stream is not None:
                    stream.close()
            self._batch.wait()
            self._batch = None

    def _git(self, *arguments: str) -> str:
        # Replace refs and grafts would change history; a repository's own settings must not change the output.
        done = subprocess.run(
            ["git", "--no-replace-objects", "-C", str(self.path), *arguments],
            capture_output=True,
            check=True,
        )
        return done.stdout.decode("utf-8", "surrogateescape")

    def commit(self, revision: str) -> str | None:
        """The full id of the commit that `revision` names, or None."""
        try:
            full = self._git(
                "rev-parse", "--verify", "--quiet", "--end-of-options", revision + "^{commit}"
            )
        except subprocess.CalledProcessError:
            return None
        return full.strip()

    def date(self, commit: str) -> str:
        """The ISO date (day) of a commit."""
        return self._git("show", "--no-patch", "--format=%cs", commit).strip()

    def is_ancestor(self, old: str, new: str) -> bool:
        """Whether commit `old` is `new` or one of its ancestors."""
        done = subprocess.run(
            ["git", "-C", str(self.path), "merge-base", "--is-ancestor", old, new],
            capture_output=True,
        )
        return done.returncode == 0

    def on_first_parent(self, old: str, new: str) -> bool:
        """Whether commit `old` is `new` or a first-parent ancestor of it."""
        return old in self._git("rev-list", "--first-parent", new).split()

    def heads(self) -> list[str]:
        """The commit of HEAD."""
        head = self.commit("HEAD")
        return [head] if head else []

    def tree(self, commit: str) -> dict[str, str]:
        """Path → blob id of a commit's files (links included, submodules not)."""
        found: dict[str, str] = {}
        for record in self._git("ls-tree", "-r", "-z", "--full-tree", commit).split("\0"):
            if record:
                meta, _, path = record.partition("\t")
                _, kind, blob = meta.split()
                if kind == "blob":
                    found[path] = blob
        return found

    def steps(self, base: str, target: str) -> Iterator[Step]:
        """The commits after `base` up to `target` along first-parent, oldest first.

        A merge counts as the difference to its first parent. `base` "" means from the first commit.
        """
        text = self._git(
            "log",
            "--first-parent",
            "--reverse",
            "--diff-merges=first-parent",
            "--raw",
            "--no-renames",
            "--no-abbrev",
            "--root",
            "--no-show-signature",
            "-z",
            "--format=%x01%H %cs",
            f"{base}..{target}" if base else target,
        )
        for block in text.split("\x01")[1:]:
            head, _, body = block.partition("\0")
            commit, date = head.split()
            parts = body.strip("\0\n").split("\0")
            changes = []
            for meta, path in zip(parts[::2], parts[1::2], strict=False):
                old_mode, new_mode, old, new, _ = meta.strip().lstrip(":").split()
                if "160000" not in (old_mode, new_mode):
                    changes.append(
                        Change(
                            path, None if old == _ABSENT else old, None if new == _ABSENT else new
                        )
                    )
            yield Step(commit, date, tuple(changes))

    def add(self, content: bytes) -> str:
        """Hold a content that the repository may not have; returns its blob id."""
        blob = blob_id(content)
        self._added[blob] = content
        return blob

    def read(self, blob: str) -> bytes | None:
        """The content of a blob, or None where the repository lacks it."""
        added = self._added.get(blob)
        if added is not None:
            return added
        if self._batch is None:
            self._batch = subprocess.Popen(
                ["git", "-C", str(self.path), "cat-file", "--batch"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        assert self._batch.stdin is not None
        assert self._batch.stdout is not None
        source: IO[bytes] = self._batch.stdout
        self._batch.stdin.write(blob.encode() + b"\n")
        self._batch.stdin.flush()
        header = source.readline().split()
        if len(header) != 3 or header[1] == b"missing":
            return None
        content = source.read(int(header[2]))
        source.read(1)
        return content
