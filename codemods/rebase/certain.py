"""Conflicts that have one certain answer, and the reason why."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import SequenceMatcher

from codemods.rebase.lines import Conflict, split_lines
from codemods.rebase.tokens import code, comments, merge_tokens, plain, sums_up


@dataclass(frozen=True, slots=True)
class Resolution:
    """A place that both sides changed, or that had to be found again, and what was made of it with certainty.

    Attributes:
        kind: what made it certain.
        reason: the same in a sentence.
        base, ours, theirs: the text in the base, upstream and the fork.
        result: what stands in the result.
    """

    kind: str
    reason: str
    base: str
    ours: str
    theirs: str
    result: str


def resolve(conflict: Conflict, python: bool) -> Resolution | None:
    """The certain answer to a conflict, or None."""
    base, ours, theirs = conflict.base, conflict.ours, conflict.theirs

    def answer(kind: str, reason: str, result: str) -> Resolution:
        return Resolution(kind, reason, base, ours, theirs, result)

    if ours == theirs:
        return answer("same change", "both sides made the same change", ours)
    norm = code if python else plain
    if plain(ours) == plain(theirs) or (
        python and code(ours) == code(theirs) and comments(ours) == comments(theirs)
    ):
        return answer("same change", FORMATTING, ours)
    if theirs == base:
        return answer("unchanged", "the fork did not change it", ours)
    if ours == base:
        return answer("unchanged", "upstream did not change it", theirs)
    theirs_silent = norm(theirs) == norm(base) and (
        not python or comments(theirs) == comments(base)
    )
    ours_silent = norm(ours) == norm(base) and (not python or comments(ours) == comments(base))
    if theirs_silent and (theirs.strip() or not base.strip()):
        return answer("formatting", "the fork changed formatting alone", ours)
    if ours_silent:
        merged = merge_tokens(base, ours, theirs) if python else theirs
        if merged is not None and (not python or code(merged) == code(theirs)):
            reason = "upstream changed formatting alone; the fork's change stands in upstream's formatting"
            return answer("formatting", reason, merged)
        return answer("formatting", "upstream changed formatting alone", theirs)
    if python and base.strip() and (code(theirs) == code(base) or code(ours) == code(base)):
        merged = merge_tokens(base, ours, theirs)
        if merged is not None and sums_up(base, ours, theirs, merged):
            who = "the fork" if code(theirs) == code(base) else "upstream"
            reason = f"{who} changed comments alone, at other places than the other side's change"
            return answer("comments", reason, merged)
    lead = _added_comments(base, theirs) if python and ours.strip() else ""
    if lead:
        reason = "the fork added a comment alone; it stands above what upstream made of the lines"
        return answer("comments", reason, lead + ours)
    if _spoken(base, ours, theirs, python):
        return answer("comments", TWIN, ours)
    if _contained(base, ours, theirs):
        return answer("already upstream", "upstream has the fork's change already", ours)
    return None


FORMATTING = "both sides made the same change but for formatting"
TWIN = "both sides made the same change but for comments; upstream's stand"


def _added_comments(base: str, theirs: str) -> str:
    """The comment lines that the fork put above the lines, if it changed nothing else; "" otherwise."""
    old, new = split_lines(base), split_lines(theirs)
    count = len(new) - len(old)
    lead = new[: max(count, 0)]
    if not base.strip() or new[len(lead) :] != old:
        return ""
    return "".join(lead) if all(x.lstrip().startswith("#") for x in lead) else ""


def _spoken(base: str, ours: str, theirs: str, python: bool) -> bool:
    """Whether both sides changed code in the same way and differ in comments alone."""
    if not python:
        return False
    same = code(ours)
    return bool(same) and same == code(theirs) and same != code(base)


def _contained(base: str, ours: str, theirs: str) -> bool:
    """Whether upstream has all that the fork changed.

    What the fork added stands, as one piece, in what upstream made of the same place; what the fork took out,
    upstream took out too and put nothing in its place.
    """
    b, o, t = ([x.strip() for x in split_lines(v) if x.strip()] for v in (base, ours, theirs))
    mine = _edits(b, t)
    others = _edits(b, o)
    if not mine:
        return False
    for start, end, block in mine:
        if not block:
            if not all(
                any(c <= k < d and not new for c, d, new in others) for k in range(start, end)
            ):
                return False
        elif not any(
            c <= start and end <= d and _inside(block, new) for c, d, new in others
        ) or not any(re.search(r"\w{3}", line) for line in block):
            return False
    return True


def _edits(old: list[str], new: list[str]) -> list[tuple[int, int, list[str]]]:
    """What changed: a span of the old lines, and the lines in its place."""
    matcher = SequenceMatcher(None, old, new, autojunk=False)
    return [(a, b, new[c:d]) for tag, a, b, c, d in matcher.get_opcodes() if tag != "equal"]


def _inside(block: list[str], lines: list[str]) -> bool:
    size = len(block)
    return any(lines[k : k + size] == block for k in range(len(lines) - size + 1))
