"""Three versions of a text file into one: by lines, then what is certain, then by structure."""

from __future__ import annotations

import re
from collections import Counter

from codemods.rebase import sequence
from codemods.rebase.certain import Resolution, resolve
from codemods.rebase.lines import Conflict, Part, joined, merge_lines, split_lines
from codemods.rebase.sequence import Added, Both, Clash, Item
from codemods.rebase.structure import merge_python
from codemods.rebase.tokens import plain


def merge_text(path: str, base: str, ours: str, theirs: str) -> tuple[list[Part], list[Resolution]]:
    """Merge three versions of a text file: by lines, then what is certain, then by structure.

    Args:
        path: the file's path on the new layout; its ending tells the language.
        base, ours, theirs: the texts in the base, upstream and the fork.

    Returns:
        Merged text and conflicts, and every resolution made.
    """
    parts = merge_lines(base, ours, theirs)
    if not _conflicts(parts):
        return parts, []
    python = path.endswith((".py", ".pyi"))
    by_lines = _resolve_all(parts, python, path)
    if not _conflicts(by_lines[0]):
        return by_lines
    if python:
        merged = merge_python(base, ours, theirs)
        if merged is not None:
            by_structure = _resolve_all(merged[0], python, path)
            outcome = by_structure[0], merged[1] + by_structure[1]
            if _weight(outcome[0]) <= _weight(by_lines[0]):
                return outcome
    return by_lines


def _conflicts(parts: list[Part]) -> int:
    return sum(isinstance(p, Conflict) for p in parts)


def _weight(parts: list[Part]) -> tuple[int, int]:
    lines = sum(p.ours.count("\n") + p.theirs.count("\n") for p in parts if isinstance(p, Conflict))
    return _conflicts(parts), lines


def _resolve_all(parts: list[Part], python: bool, path: str) -> tuple[list[Part], list[Resolution]]:
    out: list[Part] = []
    found: list[Resolution] = []
    for part in parts:
        if isinstance(part, str):
            out.append(part)
            continue
        for piece in narrowed(part):
            if isinstance(piece, str):
                out.append(piece)
                continue
            resolved = resolve(piece, python)
            if resolved is None and path.endswith((".yml", ".yaml")):
                resolved = _merge_yaml(piece)
            if resolved is None:
                out.append(piece)
            else:
                found.append(resolved)
                out.append(resolved.result)
    return joined(out), found


def narrowed(conflict: Conflict) -> list[Part]:
    """A conflict without the lines that both sides share at its ends (white space at line ends aside)."""
    b, o, t = (split_lines(x) for x in (conflict.base, conflict.ours, conflict.theirs))
    head = 0
    while head < min(len(b), len(o), len(t)) and b[head] == o[head] == t[head]:
        head += 1
    tail = 0
    room = min(len(b), len(o), len(t)) - head
    while tail < room and b[-1 - tail] == o[-1 - tail] == t[-1 - tail]:
        tail += 1

    def cut(lines: list[str]) -> str:
        return "".join(lines[head : len(lines) - tail])

    inner = Conflict(cut(b), cut(o), cut(t), conflict.why)
    return joined(["".join(o[:head]), inner, "".join(o[len(o) - tail :])])


_YAML_KEY = re.compile(r"([ ]*)([\w.-]+|\"[^\"]+\"|'[^']+')\s*:(?=\s|$)")


def _yaml_items(text: str) -> list[Item[str]] | None:
    """The entries of a piece of a mapping, each with the comments before it; None if it is something else."""
    found: list[Item[str]] = []
    waiting: list[str] = []
    indent: str | None = None
    for line in split_lines(text):
        match = _YAML_KEY.match(line)
        if match and (indent is None or match[1] == indent):
            indent = match[1]
            entry = "".join([*waiting, line])
            found.append(Item(entry, plain(entry), match[2], True))
            waiting = []
        elif not line.strip() or line.lstrip().startswith("#"):
            waiting.append(line)
        elif found and not waiting and line.startswith((indent or "") + " "):
            last = found.pop()
            entry = last.value + line
            found.append(Item(entry, plain(entry), last.key, True))
        else:
            return None
    if waiting:
        tail = "".join(waiting)
        found.append(Item(tail, plain(tail)))
    return found


def _merge_yaml(conflict: Conflict) -> Resolution | None:
    """Merge entries of a mapping by key."""
    base, ours, theirs = (_yaml_items(x) for x in (conflict.base, conflict.ours, conflict.theirs))
    if base is None or ours is None or theirs is None:
        return None
    out: list[str] = []
    for step in sequence.merge(base, ours, theirs):
        if isinstance(step, Item):
            out.append(step.value)
        elif isinstance(step, Added):
            out += [i.value for i in (*step.ours, *step.theirs)]
        elif isinstance(step, Both):
            b, o, t = step.base.value, step.ours.value, step.theirs.value
            if step.theirs.same == step.base.same or o == t:
                out.append(o)
            elif step.ours.same == step.base.same:
                out.append(t)
            else:
                parts = merge_lines(b, o, t)
                if _conflicts(parts):
                    return None
                out += [p for p in parts if isinstance(p, str)]
        elif isinstance(step, Clash):
            return None
    keys = Counter(i.key for x in [_yaml_items("".join(out))] for i in x or () if i.key)
    if any(n > 1 for n in keys.values()):
        return None
    reason = "both sides changed different entries of the mapping"
    return Resolution(
        "different entries", reason, conflict.base, conflict.ours, conflict.theirs, "".join(out)
    )
