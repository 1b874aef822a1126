"""Conflicts that have one certain answer, and the reason why."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from difflib import SequenceMatcher

from codemods.rebase.lines import Conflict, split_lines
from codemods.rebase.tokens import code, comments, merge_tokens, plain


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
        return answer("same change", "both sides made the same change but for formatting", ours)
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
        if merged is not None:
            who = "the fork" if code(theirs) == code(base) else "upstream"
            reason = f"{who} changed comments alone, at other places than the other side's change"
            return answer("comments", reason, merged)
    if _spoken(base, ours, theirs, python):
        return answer("comments", TWIN, ours)
    if _contained(base, ours, theirs):
        return answer("already upstream", "upstream has the fork's change already", ours)
    return None


TWIN = "both sides made the same change but for comments; upstream's stand"


def _spoken(base: str, ours: str, theirs: str, python: bool) -> bool:
    """Whether both sides changed code in the same way and differ in comments alone."""
    if not python:
        return False
    same = code(ours)
    return bool(same) and same == code(theirs) and same != code(base)


def _contained(base: str, ours: str, theirs: str) -> bool:
    """Whether upstream has all that the fork changed: its lines are there, in order, and what it removed is gone."""
    b, o, t = ([x.strip() for x in split_lines(v) if x.strip()] for v in (base, ours, theirs))
    added: list[str] = []
    removed: list[str] = []
    for tag, a1, a2, b1, b2 in SequenceMatcher(None, b, t, autojunk=False).get_opcodes():
        if tag != "equal":
            removed += b[a1:a2]
            added += t[b1:b2]
    if not added and not removed:
        return False
    missing = Counter(removed) - Counter(added)
    left = Counter(o)
    if any(left[line] > Counter(t)[line] for line in missing):
        return False
    position = 0
    for line in added:
        try:
            position = o.index(line, position) + 1
        except ValueError:
            return False
    # Lines that say nothing by themselves are no evidence.
    telling = [line for line in added if re.search(r"\w{3}", line)]
    return bool(telling) or not added
