"""Edits and unfixable sites as data, and how a set of edits is applied to a text.

Rules never change a tree. They look at one parse of a file and say which spans of its text become
what. So everything outside the spans keeps its bytes, the order of the rules cannot matter, and a
reviewer can take or leave each edit.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Tier = Literal["safe", "review", "report"]


@dataclass(frozen=True, slots=True)
class Edit:
    """Text from `start` to `end` becomes `new`.

    Attributes:
        start, end: character offsets in the decoded text of the file, half open.
        new: the replacement; "" removes the span.
        rule: id of the rule.
        reason: why, for the reviewer; "" where the rule's own description says it all.
        group: edits of one file with the same non-empty group stand or fall together.
    """

    start: int
    end: int
    new: str
    rule: str
    reason: str = ""
    group: str = ""


@dataclass(frozen=True, slots=True)
class Site:
    """A place that a person has to look at; nothing was changed there, or what was changed is not enough.

    Attributes:
        start, end: character offsets in the decoded text.
        rule: id of the rule that lists it.
        reason: why it could not be rewritten with certainty.
        todo: what the person should do.
    """

    start: int
    end: int
    rule: str
    reason: str
    todo: str = ""


_LINE_END = re.compile(r"\r\n|\n|\r")


def line_starts(text: str) -> list[int]:
    """Offsets where the lines start that Python counts: form feeds and Unicode separators end none."""
    return [0, *(end.end() for end in _LINE_END.finditer(text))]


class LineIndex:
    """Line and column (both from 1, columns in characters) of offsets in a text."""

    def __init__(self, text: str) -> None:
        self._starts = line_starts(text)

    def line_column(self, offset: int) -> tuple[int, int]:
        line = bisect_right(self._starts, offset)
        return line, offset - self._starts[line - 1] + 1


def settle(edits: Iterable[Edit]) -> tuple[list[Edit], list[tuple[Edit, Edit]]]:
    """Order edits and drop those that cannot both be made.

    Equal edits count once. What lies inside a removed span goes with it. Of two edits that change the
    same text otherwise, the wider one (then the first) stands.

    Returns:
        The edits to make, in order, none overlapping; and pairs (stands, dropped) that clashed.
    """
    kept: list[Edit] = []
    clashes: list[tuple[Edit, Edit]] = []
    seen: set[tuple[int, int, str]] = set()
    for edit in sorted(edits, key=lambda e: (e.start, -e.end)):
        key = (edit.start, edit.end, edit.new)
        if key in seen:
            continue
        seen.add(key)
        if kept and edit.start < kept[-1].end:
            outer = kept[-1]
            if not (outer.new == "" and edit.end <= outer.end):
                clashes.append((outer, edit))
            continue
        kept.append(edit)
    return kept, clashes


def apply(text: str, edits: Iterable[Edit]) -> str:
    """The text with `edits` made; they must be in order and not overlap, as `settle` returns them."""
    parts: list[str] = []
    position = 0
    for edit in edits:
        parts.append(text[position : edit.start])
        parts.append(edit.new)
        position = edit.end
    parts.append(text[position:])
    return "".join(parts)
