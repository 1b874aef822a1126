"""Hunks: whole lines, all edits, and any choice of them as good as the choice of their edits."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from codemods.engine.edits import Edit, LineIndex, apply
from codemods.engine.hunks import Hunk, HunkSet, Lines, _of_file, _sets
from codemods.engine.rewrite import Finding

TOKENS = st.lists(st.sampled_from(["a", "b", " ", "\n", "\r\n", "\x0c"]), max_size=30)
NEW = st.lists(st.sampled_from(["x", "y", "\n"]), max_size=4).map("".join)


def finding(
    text: str, start: int, end: int, new: str, rule: str = "IMP001", group: str = ""
) -> Finding:
    line, column = LineIndex(text).line_column(start)
    before = text[start:end]
    return Finding("x.py", line, column, rule, "safe", before, new, "", "", start, end, group)


def made(text: str, edits: list[Finding]) -> str:
    return apply(text, (Edit(e.start, e.end, e.after or "", e.rule) for e in edits))


def hunks_of(text: str, edits: list[Finding]) -> list[Hunk]:
    return list(_of_file(Lines(text), "x.py", edits))


@st.composite
def edited(draw: st.DrawFn) -> tuple[str, list[Finding]]:
    """A text and edits of it, in order, none overlapping."""
    tokens = draw(TOKENS)
    offsets = [0]
    for token in tokens:
        offsets.append(offsets[-1] + len(token))
    text = "".join(tokens)
    cuts = sorted(draw(st.lists(st.sampled_from(offsets), max_size=8)))
    edits = []
    for start, end in zip(cuts[::2], cuts[1::2], strict=False):
        new = draw(NEW)
        if text[start:end] != new and not (edits and edits[-1].start == start):
            edits.append(finding(text, start, end, new))
    return text, edits


@given(edited(), st.integers(0, 255))
def test_any_choice(case: tuple[str, list[Finding]], mask: int) -> None:
    text, edits = case
    hunks = hunks_of(text, edits)
    assert [e for h in hunks for e in h.edits] == edits
    chosen = [h for n, h in enumerate(hunks) if mask >> n & 1]
    parts, position = [], 0
    lines = Lines(text)
    for hunk in chosen:
        start = lines.start(hunk.line)
        assert start >= position
        assert text[start : start + len(hunk.old)] == hunk.old
        parts += [text[position:start], hunk.new]
        position = start + len(hunk.old)
    assert "".join([*parts, text[position:]]) == made(text, [e for h in chosen for e in h.edits])
    whole = Lines(made(text, edits))
    for hunk in hunks:
        start = whole.start(hunk.new_line)
        assert whole.text[start : start + len(hunk.new)] == hunk.new
        assert "\n" not in hunk.old[:-2] or hunk.last > hunk.line


def test_lines_that_are_joined_and_lines_that_are_put_in() -> None:
    text = "a\nb\nc"
    (hunk,) = hunks_of(text, [finding(text, 1, 2, " ")])
    assert (hunk.line, hunk.last, hunk.old, hunk.new) == (1, 2, "a\nb\n", "a b\n")
    (hunk,) = hunks_of(text, [finding(text, 0, 2, "")])
    assert (hunk.line, hunk.last, hunk.old, hunk.new, hunk.below) == (1, 1, "a\n", "", "b\nc")
    (hunk,) = hunks_of(text, [finding(text, 5, 5, "\nd")])
    assert (hunk.line, hunk.old, hunk.new, hunk.above) == (3, "c", "c\nd", "a\nb\n")
    (hunk,) = hunks_of("a\n", [finding("a\n", 2, 2, "b\n")])
    assert (hunk.line, hunk.last, hunk.old, hunk.new) == (2, 1, "", "b\n")


def sets_of(text: str, *edits: Finding) -> list[HunkSet]:
    return _sets(hunks_of(text, list(edits)))


def test_edits_of_two_rules_on_one_line_are_one_hunk() -> None:
    text = "a b\nc\n"
    edits = [finding(text, 0, 1, "x", "IMP001"), finding(text, 2, 3, "y", "REN001")]
    (hunk,) = hunks_of(text, edits)
    assert hunk.rules == ["IMP001", "REN001"]


def test_an_import_and_the_uses_of_each_of_its_names() -> None:
    """The statement's own edit has the group of its first name; the second name's uses hang on it too."""
    text = "from a import b, c\n\nb\n\nc\n\nd\n"
    first, second = text.index("b"), text.index("c")
    found = sets_of(
        text,
        finding(text, 5, 6, "x", group=f"import:{first}"),
        finding(text, 20, 21, "y", group=f"import:{first}"),
        finding(text, 23, 24, "z", group=f"import:{second}"),
        finding(text, 26, 27, "e"),
    )
    assert [len(s.hunks) for s in found] == [3, 1]
    assert found[0].why == "an import and what it binds"
    assert found[1].why == ""


def test_one_key_in_different_files() -> None:
    text = "layer_group_size: 5\n"
    one = hunks_of(text, [finding(text, 0, 16, "x", "CFG001")])
    two = hunks_of(text, [finding(text, 0, 16, "x", "CFG007")])
    two[0].id, two[0].file = "other", "y.py"
    (found,) = _sets([*one, *two])
    assert found.why == "`layer_group_size` in configuration files and in code"
