"""Texts as tokens: what is left of a line when its formatting is taken away."""

from __future__ import annotations

import io
import re
import tokenize
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import lru_cache

_SILENT = {
    tokenize.NEWLINE,
    tokenize.NL,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
    tokenize.ENCODING,
}
_WORDS = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True, slots=True)
class Token:
    """One token.

    Attributes:
        text: the token.
        before: the white space between the token before it and this one.
        comment: whether it is a comment.
        depth: how many brackets are open around it.
    """

    text: str
    before: str
    comment: bool = False
    depth: int = 0


@lru_cache(maxsize=4096)
def python_tokens(text: str) -> tuple[Token, ...] | None:
    """The tokens of a piece of Python, which need not be whole; None if it has no tokens that can be told."""
    lines = text.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    found: list[Token] = []
    end = depth = 0
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type in _SILENT or not token.string:
                continue
            if token.type == tokenize.ERRORTOKEN:
                return None
            start = starts[token.start[0] - 1] + _offset(lines, token.start)
            before = text[end:start]
            end = starts[token.end[0] - 1] + _offset(lines, token.end)
            depth -= token.string in (")", "]", "}")
            found.append(
                Token(text[start:end], before, token.type == tokenize.COMMENT, max(depth, 0))
            )
            depth += token.string in ("(", "[", "{")
    except (tokenize.TokenError, SyntaxError, IndexError):
        return None
    return tuple(found)


def _offset(lines: list[str], position: tuple[int, int]) -> int:
    return position[1] if position[0] <= len(lines) else 0


@lru_cache(maxsize=4096)
def code(text: str) -> str:
    """Python without formatting and comments: its tokens, a comma before a closing bracket left out."""
    tokens = python_tokens(text)
    if tokens is None:
        return plain(text)
    words = [t.text for t in tokens if not t.comment]
    kept = [
        w
        for k, w in enumerate(words)
        if not (w == "," and k + 1 < len(words) and words[k + 1] in (")", "]", "}"))
    ]
    return " ".join(kept)


def comments(text: str) -> list[str]:
    """The comments of a piece of Python."""
    return [t.text for t in python_tokens(text) or () if t.comment]


def with_comments(text: str) -> str:
    """Python without formatting; the comments count."""
    return "\0".join([code(text), *comments(text)])


def plain(text: str) -> str:
    """Any text with white space at line ends and empty lines left out."""
    return "\n".join(line.rstrip() for line in text.splitlines() if line.strip())


def words(text: str) -> list[str]:
    """Any text as words and single signs, for comparisons where white space does not count."""
    return _WORDS.findall(text)


def sums_up(base: str, ours: str, theirs: str, merged: str) -> bool:
    """Whether a merged piece of Python has just the tokens that both sides' changes make of the base's."""
    counts = [Counter(t.text for t in python_tokens(x) or ()) for x in (base, ours, theirs, merged)]
    b, o, t, m = counts
    for text in b.keys() | o.keys() | t.keys() | m.keys():
        if text == ",":
            continue
        mine, other = o[text] - b[text], t[text] - b[text]
        if m[text] not in {b[text] + mine + other, b[text] + mine if mine == other else -1}:
            return False
    return True


def merge_tokens(base: str, ours: str, theirs: str) -> str | None:
    """Merge two versions of a piece of Python token by token, in the formatting of `ours`.

    Only for pieces of which one side changed nothing but formatting and comments, so that what the other changed
    has one meaning. None where edits touch each other, or the piece cannot be told.
    """
    b, o, t = (python_tokens(x) for x in (base, ours, theirs))
    if b is None or o is None or t is None:
        return None
    strings = [x.text for x in b]
    to_ours = _edits(strings, [x.text for x in o])
    to_theirs = _edits(strings, [x.text for x in t])
    kept = {k: v for a1, a2, b1, _, changed in to_ours if not changed
            for k, v in zip(range(a1, a2), range(b1, b1 + a2 - a1), strict=True)}  # fmt: skip
    out: list[Token] = list(o)
    for a1, a2, b1, b2, changed in reversed(to_theirs):
        if not changed:
            continue
        for c1, c2, _, _, other in to_ours:
            if other and max(a1, c1) <= min(a2, c2) and not (a2 == c1 or c2 == a1):
                return None
            if other and (a1 == a2 or c1 == c2) and c1 <= a2 and a1 <= c2:
                return None
        if a1 == a2:
            if a1 - 1 in kept:
                start = stop = kept[a1 - 1] + 1
            elif a1 in kept:
                start = stop = kept[a1]
            else:
                return None
        else:
            if any(k not in kept for k in range(a1, a2)):
                return None
            start, stop = kept[a1], kept[a2 - 1] + 1
        new = [Token(x.text, _before(x, t[b1 - 1 + k] if b1 + k else None, o)) for k, x in enumerate(t[b1:b2])]  # fmt: skip
        if new and start < stop:
            new[0] = Token(new[0].text, out[start].before)
        out[start:stop] = new
    tail = ours[sum(len(x.before) + len(x.text) for x in o) :]
    return "".join(x.before + x.text for x in out) + tail


def _before(token: Token, previous: Token | None, style: Sequence[Token]) -> str:
    """White space before a token that comes into another formatting: as there behind the same token."""
    if previous is not None and previous.text in (",", "=", ":"):
        for k, known in enumerate(style[:-1]):
            if known.text == previous.text and "\n" not in style[k + 1].before:
                return style[k + 1].before
    return token.before


def _edits(old: list[str], new: list[str]) -> list[tuple[int, int, int, int, bool]]:
    matcher = SequenceMatcher(None, old, new, autojunk=False)
    return [(a1, a2, b1, b2, tag != "equal") for tag, a1, a2, b1, b2 in matcher.get_opcodes()]
