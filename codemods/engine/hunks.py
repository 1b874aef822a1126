"""What a reviewer decides on: hunks, and sets of hunks that stand or fall together.

A hunk is a run of whole lines of one file with all edits that touch them, whatever their rules, so that no
line is ever left half rewritten. Hunks that only make sense together (an import and the uses of the name
that it binds, a class and all that names it) form a set; a decision on one holds for all.
"""

from __future__ import annotations

import ast
import hashlib
import re
import textwrap
import warnings
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from codemods.engine.edits import Edit, Tier, apply, line_starts
from codemods.engine.rewrite import PYTHON_SUFFIXES, Finding, Result
from codemods.engine.source import decode

_CONTEXT = 2


@dataclass(slots=True)
class Hunk:
    """Edits of a file whose lines touch.

    Attributes:
        id: names it; the same in every run in which these lines become the same new ones.
        file: path in the checkout.
        line, last: its first and last line in the checkout's file, from 1 (`last` is `line - 1` where lines are
            put in after the file's end).
        new_line: its first line in the rewritten file, all edits made.
        edits: the edits, in order.
        old, new: the whole lines before and after.
        above, below: unchanged lines around.
        set: number of its set.
    """

    id: str
    file: str
    line: int
    last: int
    new_line: int
    edits: list[Finding]
    old: str
    new: str
    above: str
    below: str
    set: int = -1

    @property
    def rules(self) -> list[str]:
        """Its rules, each once, the first edit's first."""
        return list(dict.fromkeys(e.rule for e in self.edits))

    @property
    def tier(self) -> Tier:
        """`safe` if all its edits are."""
        return "safe" if all(e.tier == "safe" for e in self.edits) else "review"


@dataclass(slots=True)
class HunkSet:
    """Hunks that stand or fall together.

    Attributes:
        hunks: ids, in the order of the report.
        why: what ties them; "" for a hunk alone.
    """

    hunks: list[str] = field(default_factory=list)
    why: str = ""


class Lines:
    """A file's text and where its lines start."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.starts = line_starts(text)

    def number(self, offset: int) -> int:
        """The line of an offset, from 1."""
        return bisect_right(self.starts, offset)

    def start(self, number: int) -> int:
        """Where a line starts; the text's end for the one after the last."""
        return self.starts[number - 1] if number <= len(self.starts) else len(self.text)

    def between(self, first: int, last: int) -> str:
        """Lines `first` to `last`, as far as there are any."""
        first, last = max(first, 1), min(last, len(self.starts))
        return self.text[self.start(first) : self.start(last + 1)] if first <= last else ""


def read_lines(root: Path, path: str) -> Lines:
    """A file of the checkout as the rules saw it.

    Raises:
        OSError: it cannot be read.
        UnparsableError: it is no text.
    """
    return Lines(decode((root / path).read_bytes(), path.endswith(PYTHON_SUFFIXES))[0])


def find_hunks(root: Path, results: Mapping[str, Result]) -> tuple[list[Hunk], list[HunkSet]]:
    """The hunks of a migration, by file and line, and the sets that they form.

    Args:
        root: the checkout.
        results: what became of its files.
    """
    hunks: list[Hunk] = []
    for path in sorted(results):
        if results[path].edits:
            hunks += _of_file(read_lines(root, path), path, results[path].edits)
    return hunks, _sets(hunks)


def _of_file(lines: Lines, path: str, edits: Iterable[Finding]) -> Iterator[Hunk]:
    runs: list[tuple[int, int, list[Finding]]] = []  # offsets of whole lines
    for edit in edits:
        start = lines.start(lines.number(edit.start))
        end = _line_end(lines, edit, start)
        at_end = runs and start == runs[-1][1] == len(lines.text)  # maybe no line end between them
        if runs and (start < runs[-1][1] or start == runs[-1][0] or at_end):
            first, last, members = runs[-1]
            runs[-1] = (first, max(last, end), [*members, edit])
        else:
            runs.append((start, end, [edit]))
    seen: dict[tuple[str, str], int] = {}
    shift = 0
    for start, end, members in runs:
        old = lines.text[start:end]
        new = apply(
            old, (Edit(e.start - start, e.end - start, e.after or "", e.rule) for e in members)
        )
        nth = seen[old, new] = seen.get((old, new), 0) + 1
        line = lines.number(start)
        last = lines.number(end - 1) if end > start else line - 1
        name = "\0".join((path, old, new, str(nth)))
        yield Hunk(
            id="h" + hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:12],
            file=path,
            line=line,
            last=last,
            new_line=line + shift,
            edits=members,
            old=old,
            new=new,
            above=lines.between(line - _CONTEXT, line - 1),
            below=lines.between(last + 1, last + _CONTEXT),
        )
        shift += len(line_starts(new)) - len(line_starts(old))


def _line_end(lines: Lines, edit: Finding, start: int) -> int:
    """Where the last line ends that an edit touches: whole lines become whole lines."""
    after, text = edit.after or "", lines.text
    if edit.end > edit.start and text[edit.end - 1] in "\r\n":
        whole = after[-1] in "\r\n" if after else edit.start == start
        if whole and lines.start(lines.number(edit.end)) == edit.end:
            return edit.end
    return lines.start(lines.number(edit.end) + 1)


# Sets ---------------------------------------------------------------------------------------------------

_WORD = re.compile(r"\w+")
_IMPORT_GROUP = re.compile(r"import:(\d+)\Z")
_WHY = {
    "import": "an import and what it binds",
    "star": "a star import and the names taken from it",
    "dumps": "the dump hooks of a file and what fed them",
    "freq": "a key that became two",
    "path": "parts of one path",
    "up": "parts of one path",
}
# Rules that change one thing in different files: a key or a value of the configuration.
_TOPICS = {
    "CFG001": "`layer_group_size` in configuration files and in code",
    "CFG007": "`layer_group_size` in configuration files and in code",
    "CFG002": "`moe_layer_freq` in configuration files and in code",
    "CFG008": "`moe_layer_freq` in configuration files and in code",
    "CFG003": "the decoder block's name in configuration files and in code",
    "REN004": "the decoder block's name in configuration files and in code",
    "DMP005": "parameters and results that only fed dumps, with all calls",
    "DMP007": "parameters and results that only fed dumps, with all calls",
}


# Rules whose edits of a single identifier give something another name.
NAMING = ("REN001", "REN002", "REN006", "IMP013")


class _Union:
    """Union-find over hunks, with the reasons."""

    def __init__(self, size: int) -> None:
        self._parent = list(range(size))
        self._why: dict[int, dict[str, None]] = {}

    def find(self, item: int) -> int:
        while self._parent[item] != item:
            self._parent[item] = self._parent[self._parent[item]]
            item = self._parent[item]
        return item

    def join(self, items: Iterable[int], why: str) -> None:
        """Put items into one set; `why` only counts if that ties different ones."""
        roots = sorted({self.find(i) for i in items})
        if len(roots) < 2:
            return
        first = roots[0]
        reasons: dict[str, None] = {}
        for root in roots:
            self._parent[root] = first
            reasons |= self._why.pop(root, {})
        self._why[first] = reasons | {why: None}

    def why(self, root: int) -> str:
        return "; ".join(self._why.get(root, {}))


def _sets(hunks: list[Hunk]) -> list[HunkSet]:
    union = _Union(len(hunks))
    by_file: dict[str, list[int]] = {}
    for number, hunk in enumerate(hunks):
        by_file.setdefault(hunk.file, []).append(number)
    for path, numbers in by_file.items():
        _join_groups(union, hunks, path, numbers)
        if path.endswith(PYTHON_SUFFIXES):
            _join_removed_imports(union, hunks, numbers)
            _join_quoted(union, hunks, numbers)
    _join_topics(union, hunks)
    _join_names(union, hunks)
    sets: list[HunkSet] = []
    place: dict[int, int] = {}
    for number, hunk in enumerate(hunks):
        root = union.find(number)
        if root not in place:
            place[root] = len(sets)
            sets.append(HunkSet(why=union.why(root)))
        hunk.set = place[root]
        sets[hunk.set].hunks.append(hunk.id)
    return sets


def _join_groups(union: _Union, hunks: list[Hunk], path: str, numbers: list[int]) -> None:
    """What the rules themselves say, and the import statement that a group's name points at."""
    groups: dict[str, list[int]] = {}
    for number in numbers:
        for edit in hunks[number].edits:
            if edit.group:
                groups.setdefault(edit.group, []).append(number)
    spans = [(h.edits[0].start - _lead(h), number) for number in numbers for h in [hunks[number]]]
    for group, members in groups.items():
        at = _IMPORT_GROUP.match(group)
        if at and path.endswith(PYTHON_SUFFIXES):
            offset = int(at[1])
            place = bisect_right(spans, (offset, len(hunks))) - 1
            if place >= 0 and offset < spans[place][0] + len(hunks[spans[place][1]].old):
                members.append(spans[place][1])
        kind = _WORD.match(group.rstrip("0123456789"))
        union.join(members, _WHY.get(kind[0] if kind else "", "edits that one rule makes together"))


def _lead(hunk: Hunk) -> int:
    """How far into the hunk its first edit starts."""
    return hunk.edits[0].column - 1


def _join_removed_imports(union: _Union, hunks: list[Hunk], numbers: list[int]) -> None:
    """An import goes when nothing uses it any more, so it hangs on the removals of its uses."""
    for number in numbers:
        for edit in hunks[number].edits:
            whole = edit.rule in ("IMP012", "DMP008")
            if not whole and edit.rule not in ("IMP001", "IMP002"):
                continue
            names = _bound(edit.before)
            if not whole:  # one that changes may lose a name whose last use is taken out
                names -= _bound(edit.after or "")
            users = [
                n
                for n in numbers
                for e in hunks[n].edits
                if e.rule[:3] != "IMP"
                and (whole or not (e.after or "").strip())
                and names & (words(e.before) - words(e.after or ""))
            ]
            union.join([number, *users], "imports and the last uses of what they bind")


def _join_quoted(union: _Union, hunks: list[Hunk], numbers: list[int]) -> None:
    """A name in quotes, as of an annotation, hangs on `import a.b`, which binds what it begins with."""
    rows = [(number, edit) for number in numbers for edit in hunks[number].edits]
    modules = {e.before: n for n, e in rows if e.rule == "IMP003" and " " not in e.before}
    for number, edit in rows:
        if edit.rule == "IMP010":
            value = edit.before.strip("'\"")
            users = [n for m, n in modules.items() if f"{value}.".startswith(f"{m}.")]
            union.join([number, *users], _WHY["import"])


def _bound(source: str) -> set[str]:
    """The names that import statements bind, as far as they parse."""
    tree = parse_fragment(source)
    if tree is None:
        return words(source) - {"import", "from", "as"}
    return {
        (alias.asname or alias.name).split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }


def parse_fragment(text: str) -> ast.Module | None:
    """The tree of some lines of a Python file, whatever their indentation; None if they are no statements."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(textwrap.dedent(text))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def words(text: str) -> set[str]:
    """The words of a text, identifiers among them."""
    return set(_WORD.findall(text))


def _join_topics(union: _Union, hunks: list[Hunk]) -> None:
    topics: dict[str, list[int]] = {}
    for number, hunk in enumerate(hunks):
        for edit in hunk.edits:
            if edit.rule in _TOPICS:
                topics.setdefault(_TOPICS[edit.rule], []).append(number)
            elif edit.rule == "DMP004" and "def " in edit.before:
                topics.setdefault(_TOPICS["DMP005"], []).append(number)
    for why, members in topics.items():
        union.join(members, why)


def _join_names(union: _Union, hunks: list[Hunk]) -> None:
    """A renamed class or function and all that names it in code, that of notebooks and documents included."""
    names = {
        edit.before
        for hunk in hunks
        if hunk.file.endswith(PYTHON_SUFFIXES)
        for edit in hunk.edits
        if edit.rule in NAMING and edit.before.isidentifier()
    }
    members: dict[str, list[int]] = {}
    for number, hunk in enumerate(hunks):
        for edit in hunk.edits:
            if edit.rule[:3] not in ("REN", "IMP") or edit.rule == "REN007":
                continue
            for name in names & (words(edit.before) - words(edit.after or "")):
                members.setdefault(name, []).append(number)
            if edit.rule == "REN002" and not edit.before:  # what the class gets besides its name
                above = [n for n in (number, number - 1) if n >= 0 and hunks[n].file == hunk.file]
                union.join(above, "a class and its constructor")
    for name, numbers in members.items():
        union.join(numbers, f"the name `{name}`")
