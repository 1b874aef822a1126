"""Three versions of a text file into one: by lines, then what is certain, then by structure."""

from __future__ import annotations

import ast
import re
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from codemods.engine.tree import UnparsableError
from codemods.rebase import sequence
from codemods.rebase.certain import FORMATTING, TWIN, Resolution, resolve
from codemods.rebase.imports import settle_imports
from codemods.rebase.lines import Conflict, Part, joined, merge_lines, split_lines
from codemods.rebase.sequence import Added, Both, Clash, Item, Twin
from codemods.rebase.structure import Statement, merge_python, read
from codemods.rebase.tokens import plain


def merge_text(path: str, base: str, ours: str, theirs: str) -> tuple[list[Part], list[Resolution]]:
    """Merge three versions of a text file: by lines, then what is certain, then by structure.

    Args:
        path: the file's path on the new layout; its ending tells the language.
        base, ours, theirs: the texts in the base, upstream and the fork.

    Returns:
        Merged text and conflicts, and every resolution made.
    """
    parts, found = _merge_text(path, base, ours, theirs)
    return list(parts), list(found)


@lru_cache(maxsize=64)  # what is looked at in advance is merged again when its commit comes
def _merge_text(
    path: str, base: str, ours: str, theirs: str
) -> tuple[list[Part], list[Resolution]]:
    python = path.endswith((".py", ".pyi"))
    parts, found = _merged(path, base, ours, theirs, python)
    if not _conflicts(parts) and path.endswith((".py", ".pyi", ".yml", ".yaml")):
        text = "".join(p for p in parts if isinstance(p, str))
        parts, more = without_doubles(text, ours, theirs, read if python else _read_yaml)
        found += more
        if python and not _conflicts(parts) and _compiles(ours) and _compiles(theirs):
            text = "".join(p for p in parts if isinstance(p, str))
            if not _compiles(text):
                why = "what both sides changed does not compile together"
                return [Conflict(base, ours, theirs, why)], []
    elif python:
        parts = _told_of_doubles(parts, ours, theirs)
    return parts, found


def _told_of_doubles(parts: list[Part], ours: str, theirs: str) -> list[Part]:
    """Conflicts of a file, the first of which tells what is in the file twice, as both sides have it."""
    text = "".join(p.ours if isinstance(p, Conflict) else p for p in parts)
    rest, found = without_doubles(text, ours, theirs, read)
    twice = [r.theirs for r in found] + [p.theirs for p in rest if isinstance(p, Conflict)]
    names = [m[1] for t in twice if (m := re.search(r"^\s*(?:def|class)\s+(\w+)", t, re.MULTILINE))]
    first = next((k for k, p in enumerate(parts) if isinstance(p, Conflict)), None)
    if not names or first is None:
        return parts
    conflict = parts[first]
    assert isinstance(conflict, Conflict)
    shown = ", ".join(f"`{name}`" for name in names)
    why = f"{conflict.why or 'both sides changed the same lines'}; {shown} {TWICE}"
    return [*parts[:first], replace(conflict, why=why), *parts[first + 1 :]]


# Said of a definition that upstream and the fork both have, at different places.
TWICE = "is in the file twice now, as upstream has it and as the fork has it"


def _compiles(text: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _merged(
    path: str, base: str, ours: str, theirs: str, python: bool
) -> tuple[list[Part], list[Resolution]]:
    parts = merge_lines(base, ours, theirs)
    if not _conflicts(parts):
        return parts, []
    best = _resolve_all(parts, python, path)
    if not _conflicts(best[0]) or not python:
        return best
    try:
        merged = merge_python(base, ours, theirs)
    except Exception:  # a fault of ours, or of LibCST: what lines say stands
        merged = None
    if merged is not None:
        parts, found = _resolve_all(merged[0], python, path)
        if _weight(parts) <= _weight(best[0]):
            best = parts, merged[1] + found
    parts, found = settle_imports(best[0])
    return parts, best[1] + found


def _read_yaml(text: str) -> list[Item[Statement]]:
    return [
        Item(Statement(i.value, None, []), i.same, i.key, i.free, i.core)
        for i in _yaml_items(text) or []
    ]


def without_doubles(
    text: str, ours: str, theirs: str, split: Callable[[str], list[Item[Statement]]]
) -> tuple[list[Part], list[Resolution]]:
    """A merged text in which both sides' additions of one name, at different places, are found.

    Where both say the same, upstream's stands; else the fork's is a conflict.
    """
    names = [Counter(_NAMED.findall(x)) for x in (text, ours, theirs)]
    if all(n <= max(names[1][k], names[2][k]) for k, n in names[0].items()):
        return [text], []  # no name is there more often than before; parsing is what costs time
    try:
        merged, mine, other = split(text), split(ours), split(theirs)
    except UnparsableError:
        return [text], []
    if "".join(i.value.text for i in merged) != text:
        return [text], []
    found: list[Resolution] = []
    return joined(_single(merged, mine, other, found)), found


def _single(
    merged: list[Item[Statement]],
    mine: list[Item[Statement]],
    other: list[Item[Statement]],
    found: list[Resolution],
) -> list[Part]:
    """One block without what is in it twice."""
    counts = [Counter(i.key for i in items if i.key) for items in (merged, mine, other)]
    once = {
        k for k in counts[0] if counts[1][k] == counts[2][k] == 1 and not k.startswith(_SEVERAL)
    }
    upstreams, forks = ({i.key: i for i in items} for items in (mine, other))
    out: list[Part] = []
    own_places = set(sequence.align(mine, merged).values())
    for place, item in enumerate(merged):
        text = item.value.text
        if item.key not in once:
            out.append(text)
        elif counts[0][item.key] == 1:
            own = [s.value.sections for s in (item, upstreams[item.key], forks[item.key])]
            if len(own[0]) == len(own[1]) == len(own[2]) > 0:
                for (head, body), (_, first), (_, second) in zip(*own, strict=True):
                    out += [head, *_single(body, first, second, found)]
            else:
                out.append(text)
        elif place in own_places:
            out.append(text)
        elif item.core and item.core == upstreams[item.key].core:
            twin = upstreams[item.key].value.text
            reason = "upstream has the same at another place of the file"
            found.append(Resolution("already upstream", reason, "", twin, text, twin))
        else:
            name = item.key.rpartition(" ")[2]
            out.append(Conflict("", "", text, f"upstream has `{name}` too, at another place"))
    return out


# The names that a line may define: a function, a class, a field or an entry.
_NAMED = re.compile(r"^[ \t]*((?:async[ ]+)?(?:def|class)[ ]+\w+|[\w.\"'-]+[ \t]*:)", re.MULTILINE)
# What may stand in a block more than once.
_SEVERAL = ("=", "import ", "from ", "(", "def _(")


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
            if resolved is not None:
                found.append(resolved)
                out.append(resolved.result)
            elif path.endswith((".yml", ".yaml")):
                entries, more = _merge_yaml(piece)
                out += entries
                found += more
            else:
                out.append(piece)
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


def _entry(text: str, key: str) -> Item[str]:
    bare = "\n".join(x for x in plain(text).split("\n") if not x.lstrip().startswith("#"))
    return Item(text, plain(text), key, True, bare)


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
            found.append(_entry(entry, match[2]))
            waiting = []
        elif not line.strip() or line.lstrip().startswith("#"):
            waiting.append(line)
        elif found and not waiting and line.startswith((indent or "") + " "):
            last = found.pop()
            entry = last.value + line
            found.append(_entry(entry, last.key))
        else:
            return None
    if waiting:
        tail = "".join(waiting)
        found.append(Item(tail, plain(tail)))
    return found


def _open(items: list[Item[str]]) -> bool:
    """Whether the last entry may go on behind the piece."""
    last = items[-1].value.rstrip() if items else ""
    return last.partition(" #")[0].rstrip().endswith((":", "|", ">"))


def _merge_yaml(conflict: Conflict) -> tuple[list[Part], list[Resolution]]:
    """Merge a piece of a mapping entry by entry; what stays in conflict are single entries."""
    whole: tuple[list[Part], list[Resolution]] = ([conflict], [])
    base, ours, theirs = (_yaml_items(x) for x in (conflict.base, conflict.ours, conflict.theirs))
    if base is None or ours is None or theirs is None:
        return whole
    if any(_open(items) for items in (base, ours, theirs)):
        return whole
    out: list[Part] = []
    twins: list[Resolution] = []
    for step in sequence.merge(base, ours, theirs):
        if isinstance(step, Item):
            out.append(step.value)
        elif isinstance(step, Added):
            for twin in step.twins:
                _twin(twin.ours, twin.theirs, twins)
            out += [i.value for i in (*step.ours, *step.theirs)]
        elif isinstance(step, Twin):
            out.append(_twin(step.ours, step.theirs, twins))
        elif isinstance(step, Both):
            out += merge_lines(step.base.value, step.ours.value, step.theirs.value)
        elif step.base:
            texts = ("".join(i.value for i in v) for v in (step.base, step.ours, step.theirs))
            out.append(Conflict(*texts))
        else:
            out += _by_key(step, twins)
    text = "".join(p.ours or p.theirs if isinstance(p, Conflict) else p for p in out)
    keys = Counter(i.key for i in _yaml_items(text) or () if i.key)
    if any(n > 1 for n in keys.values()):
        return whole
    if _conflicts(out):
        return out, twins
    reason = "both sides changed different entries of the mapping"
    sides = conflict.base, conflict.ours, conflict.theirs
    return out, [Resolution("different entries", reason, *sides, text), *twins]


def _twin(ours: Item[str], theirs: Item[str], found: list[Resolution]) -> str:
    if ours.value != theirs.value:
        kind, reason = (
            ("same change", FORMATTING) if ours.same == theirs.same else ("comments", TWIN)
        )
        found.append(Resolution(kind, reason, "", ours.value, theirs.value, ours.value))
    return ours.value


def _by_key(clash: Clash[str], twins: list[Resolution]) -> list[Part]:
    """Entries that both sides added in one place: in conflict are those of one key with two values."""
    others = {i.key: i for i in clash.theirs if i.key}
    out: list[Part] = []
    for item in clash.ours:
        other = others.pop(item.key, None)
        if other is None or other.same == item.same:
            out.append(item.value)
        elif other.core == item.core:
            out.append(_twin(item, other, twins))
        else:
            out.append(Conflict("", item.value, other.value))
    known = {i.same for i in clash.ours}
    rest = [i.value for i in clash.theirs if (i.key in others if i.key else i.same not in known)]
    return [*out, *rest]
