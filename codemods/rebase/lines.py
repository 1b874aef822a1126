"""Three-way merge by lines, done by `git merge-file`, and its outcome as data."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from codemods.rebase.store import GitError, git

_SIZE = 41  # longer than any marker that a file may hold
OURS, BASE, THEIRS = "upstream", "base", "fork"


@dataclass(frozen=True, slots=True)
class Conflict:
    """A region that differs on both sides.

    Attributes:
        base, ours, theirs: its text in the base, upstream and the fork.
        why: what stands in the way of a certain answer; "" if it is only that both changed it.
    """

    base: str
    ours: str
    theirs: str
    why: str = ""


Part = str | Conflict


def merge_lines(base: str, ours: str, theirs: str) -> list[Part]:
    """Merge three texts by lines.

    Returns:
        Merged text and conflicts, in order.
    """
    with tempfile.TemporaryDirectory(prefix="ling2-migrate-") as folder:
        names = []
        for name, text in ((OURS, ours), (BASE, base), (THEIRS, theirs)):
            path = Path(folder) / name
            path.write_bytes(_closed(text).encode("utf-8", "surrogateescape"))
            names.append(str(path))
        command = ["merge-file", "-p", "-q", "--diff3", f"--marker-size={_SIZE}"]
        for label in (OURS, BASE, THEIRS):
            command += ["-L", label]
        try:
            merged = git(Path(folder), *command, *names, accept=tuple(range(128)))
        except (GitError, subprocess.SubprocessError):
            return [Conflict(base, ours, theirs)]
    return split(merged.decode("utf-8", "surrogateescape"))


def split(text: str) -> list[Part]:
    """A text with git's conflict markers (of this module's length) as parts."""
    parts: list[Part] = []
    section: dict[str, list[str]] = {"": []}
    at = ""
    for line in split_lines(text):
        mark = line[:_SIZE]
        if mark == "<" * _SIZE and at == "":
            parts.append("".join(section[""]))
            section, at = {OURS: [], BASE: [], THEIRS: []}, OURS
        elif mark == "|" * _SIZE and at == OURS:
            at = BASE
        elif mark == "=" * _SIZE and at == BASE:
            at = THEIRS
        elif mark == ">" * _SIZE and at == THEIRS:
            texts = {name: "".join(lines) for name, lines in section.items()}
            parts.append(Conflict(texts[BASE], texts[OURS], texts[THEIRS]))
            section, at = {"": []}, ""
        else:
            section[at].append(line)
    parts.append("".join(section[""]))
    return joined(parts)


def joined(parts: Iterable[Part]) -> list[Part]:
    """The parts with neighbouring texts put together and empty ones left out."""
    found: list[Part] = []
    for part in parts:
        if isinstance(part, str) and found and isinstance(found[-1], str):
            found[-1] += part
        elif part != "":
            found.append(part)
    return found


def render(parts: Iterable[Part], ours: str, theirs: str, size: int = 7) -> str:
    """The text with conflict markers as git writes them, the base between them (`merge.conflictStyle` diff3).

    Args:
        parts: what to write.
        ours, theirs: labels of the two sides.
        size: length of the markers.
    """
    out: list[str] = []
    for part in parts:
        if isinstance(part, str):
            out.append(part)
            continue
        out += [f"{'<' * size} {ours}\n", _closed(part.ours), f"{'|' * size} {BASE}\n"]
        out += [_closed(part.base), f"{'=' * size}\n", _closed(part.theirs)]
        out.append(f"{'>' * size} {theirs}\n")
    return "".join(out)


def _closed(text: str) -> str:
    return text if not text or text.endswith("\n") else text + "\n"


def split_lines(text: str) -> list[str]:
    """Lines as git sees them: only a line feed ends one."""
    lines = [line + "\n" for line in text.split("\n")]
    lines[-1] = lines[-1][:-1]
    return [line for line in lines if line]
