"""The ledger: what became of every hunk of the fork, checked against the result."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Literal

from codemods.rebase.apply import Conflicted, Resolved
from codemods.rebase.lines import Conflict, split_lines
from codemods.rebase.merge import TWICE
from codemods.rebase.store import Entry, GitError, Store, Tree
from codemods.rebase.tokens import words
from codemods.rebase.transform import Rewritten, Transformer, Virtual

Status = Literal["applied", "already upstream", "conflict", "dropped", "lost"]
_HEADER = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


@dataclass(frozen=True, slots=True)
class Hunk:
    """A hunk of `git diff -U3 base tip`.

    Attributes:
        path: the file in the fork; in the base where the fork deleted it.
        line, lines: where it is in the fork's file.
        old_path, old_line, old_lines: where it is in the base's.
        removed, added: line numbers in the base's and the fork's file.
    """

    path: str
    line: int
    lines: int
    old_path: str
    old_line: int
    old_lines: int
    removed: tuple[int, ...] = ()
    added: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Account:
    """What became of a hunk.

    Attributes:
        hunk: the hunk.
        status: what became of it; "lost" is a fault of this program, and it does not say done then.
        where: the file in the result; "" if none.
        reason: why, or how it was resolved.
    """

    hunk: Hunk
    status: Status
    where: str
    reason: str


@dataclass(slots=True)
class Evidence:
    """What the steps say of the result.

    Attributes:
        conflicts: files that are, or were, in conflict.
        by_hand: whether the conflicts were resolved by a person since.
        resolutions: what was resolved.
        dropped: path in the fork → why its change has no place.
        skipped: commits that a person left out.
    """

    conflicts: list[Conflicted] = field(default_factory=list)
    by_hand: bool = False
    resolutions: list[Resolved] = field(default_factory=list)
    dropped: dict[str, str] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)


def hunks(store: Store, base: str, tip: str) -> list[Hunk]:
    """The hunks between two commits; a file without lines to compare (binary, link, submodule) is one hunk."""
    found: list[Hunk] = []
    for old_path, new_path, old, new in _pairs(store, base, tip):
        a, b = old_path or new_path, new_path or old_path
        contents = [store.content(e) if e is not None else b"" for e in (old, new)]
        if (
            any(c is None or b"\0" in c[:8000] for c in contents)
            or not (old is None or old.regular)
            or not (new is None or new.regular)
        ):
            found.append(Hunk(b, 1, 0, a, 1, 0))
            continue
        before = len(found)
        found += _file_hunks(store, a, b, old, new)
        if len(found) == before and (old is None) != (new is None):  # an empty file
            found.append(Hunk(b, 1, 0, a, 1, 0))
    return found


def _pairs(
    store: Store, base: str, tip: str
) -> Iterator[tuple[str, str, Entry | None, Entry | None]]:
    command = ["-c", "diff.renameLimit=0", "diff-tree", "-r", "-z", "--raw", "--no-abbrev"]
    try:
        listed = store.run(*command, "-M", base, tip)
    except GitError:  # contents are missing, so likeness cannot be told
        listed = store.run(*command, "--no-renames", base, tip)
    fields = iter(listed.decode("utf-8", "surrogateescape").split("\0"))
    for meta in fields:
        if not meta:
            continue
        old_mode, new_mode, old, new, status = meta.lstrip(":").split()
        path = next(fields)
        target = next(fields) if status[0] in "RC" else path
        yield (
            "" if status == "A" else path,
            "" if status == "D" else target,
            None if status == "A" else Entry(old_mode, old),
            None if status == "D" else Entry(new_mode, new),
        )


def _file_hunks(
    store: Store, old_path: str, path: str, old: Entry | None, new: Entry | None
) -> Iterator[Hunk]:
    empty = store.write(b"")
    ids = [e.blob if e is not None else empty for e in (old, new)]
    if ids[0] == ids[1]:
        return
    text = store.run("diff", "-U3", "--no-color", "--no-ext-diff", "--no-textconv", "--text", *ids)
    header: tuple[int, int, int, int] | None = None
    removed: list[int] = []
    added: list[int] = []
    a = b = 0

    def done() -> Iterator[Hunk]:
        if header is not None:
            yield Hunk(
                path,
                header[2],
                header[3],
                old_path,
                header[0],
                header[1],
                tuple(removed),
                tuple(added),
            )

    for line in text.decode("utf-8", "surrogateescape").split("\n"):
        match = _HEADER.match(line)
        if match:
            yield from done()
            a, n, b, m = (int(x) if x is not None else 1 for x in match.groups())
            header, removed, added = (a, n, b, m), [], []
        elif header is None:
            continue
        elif line.startswith("-"):
            removed.append(a)
            a += 1
        elif line.startswith("+"):
            added.append(b)
            b += 1
        elif line.startswith(" "):
            a += 1
            b += 1
    yield from done()


class Auditor:
    """Accounts for hunks in a result."""

    def __init__(
        self,
        store: Store,
        transformer: Transformer,
        base: str,
        tip: str,
        onto: str,
        result: Tree,
        evidence: Evidence,
    ) -> None:
        self._store = store
        self._base, self._tip = base, tip
        self._before, self._after = transformer.step(base, tip)
        self._onto = store.entries(onto)
        self._result = result
        self._evidence = evidence
        self._files: dict[tuple[str, str], _File | None] = {}

    def all(self) -> list[Account]:
        """An account for every hunk."""
        return [self._account(h) for h in hunks(self._store, self._base, self._tip)]

    def _account(self, hunk: Hunk) -> Account:
        new = _by_origin(self._after, hunk.path) or _by_origin(self._before, hunk.old_path)
        dropped = self._evidence.dropped
        for path in (hunk.path, hunk.old_path):
            if path in dropped and new is None:
                return Account(hunk, "dropped", "", dropped[path])
        where = new.path if new is not None else hunk.path
        conflicts = [c for c in self._evidence.conflicts if c.path == where]
        if not hunk.added and not hunk.removed:
            return self._whole(hunk, where, conflicts)
        file = self._file(hunk, where)
        if file is None:
            if conflicts:
                return self._in_conflict(hunk, where, conflicts[0].why)
            return self._whole(hunk, where, conflicts)
        added = sorted(file.added_of(hunk))
        removed = sorted(file.removed_of(hunk))
        if not added and not removed:
            reason = "the codemods make the same of the base and of the fork here"
            return Account(hunk, "dropped", where, reason)
        missing = [k for k in added if not file.present(k)]
        kept = [k for k in removed if not file.absent(k)]
        texts = [file.after[k].strip() for k in missing] + [file.before[k].strip() for k in kept]
        in_conflict = [c for c in conflicts if self._touches(c, file, added, removed, texts)]
        if in_conflict:
            return self._in_conflict(hunk, where, in_conflict[0].why)
        moved = {file.after[k].strip() for k in missing if file.moved(k)}
        reasons: list[str] = []
        kinds: set[str] = set()
        for text in texts:
            if not words(text):
                continue
            covering = self._covering(where, text)
            if covering is None and text in moved:
                reasons.append(
                    "the fork moved it, unchanged, and upstream changed it: upstream's stands"
                )
                continue
            if covering is None:
                doubled = next((c.why for c in conflicts if TWICE in c.why), "")
                if doubled:
                    return self._in_conflict(hunk, where, doubled)
                if self._evidence.skipped:
                    return Account(hunk, "dropped", where, "in a commit that was skipped")
                kind = "lacks" if text in {file.after[k].strip() for k in missing} else "still has"
                return Account(hunk, "lost", where, f"the result {kind} `{text[:80]}`")
            kinds.add(covering.what.kind)
            reasons.append(covering.what.reason)
        reason = "; ".join(dict.fromkeys(reasons))
        told = [k for k in added if words(file.after[k])]
        if (
            told
            and not removed
            and all(k in missing and file.after[k].strip() in moved for k in told)
        ):
            return Account(hunk, "dropped", where, reason)
        if kinds and kinds <= {"already upstream", "same change"}:
            return Account(hunk, "already upstream", where, reason)
        if kinds == {"formatting"} and not any(file.in_upstream(k) for k in added):
            return Account(hunk, "applied", where, reason)
        if all(file.in_upstream(k) for k in added) and all(
            file.not_in_upstream(k) for k in removed
        ):
            return Account(hunk, "already upstream", where, reason or "upstream has it already")
        return Account(hunk, "applied", where, reason)

    def _in_conflict(self, hunk: Hunk, where: str, why: str) -> Account:
        if self._evidence.by_hand:
            return Account(hunk, "conflict", where, f"{why}; resolved by hand")
        return Account(hunk, "conflict", where, why)

    def _whole(self, hunk: Hunk, where: str, conflicts: list[Conflicted]) -> Account:
        """A file that is added, deleted or replaced as a whole."""
        if conflicts:
            return self._in_conflict(hunk, where, conflicts[0].why)
        b, t, o, r = (
            self._before.entry(where),
            self._after.entry(where),
            self._onto.get(where),
            self._result.get(where),
        )
        if b == t:
            reason = "the codemods make the same of the base and of the fork here"
            return Account(hunk, "dropped", where, reason)
        if r == t:
            if o == t:
                return Account(hunk, "already upstream", where, "upstream has it already")
            return Account(hunk, "applied", where, "")
        if self._evidence.skipped:
            return Account(hunk, "dropped", where, "in a commit that was skipped")
        return Account(hunk, "lost", where, "the result has another file there")

    def _file(self, hunk: Hunk, where: str) -> _File | None:
        key = (hunk.old_path, hunk.path)
        if key not in self._files:
            before = _by_origin(self._before, hunk.old_path)
            after = _by_origin(self._after, hunk.path)
            self._files[key] = self._read(hunk, where, before, after)
        return self._files[key]

    def _read(
        self, hunk: Hunk, where: str, before: Rewritten | None, after: Rewritten | None
    ) -> _File | None:
        texts: list[list[str]] = []
        for entry in (
            self._store.entries(self._base).get(hunk.old_path),
            self._store.entries(self._tip).get(hunk.path),
            before.entry if before else None,
            after.entry if after else None,
            self._onto.get(where),
            self._result.get(where),
        ):
            content = self._store.content(entry) if entry is not None else b""
            if content is None:
                return None
            text = content.decode("utf-8", "surrogateescape").replace("\r\n", "\n")
            texts.append(split_lines(text))
        return _File(*texts)

    def _touches(
        self,
        conflict: Conflicted,
        file: _File,
        added: list[int],
        removed: list[int],
        texts: list[str],
    ) -> bool:
        """Whether a hunk is in one of the regions of a file's conflict."""
        if not conflict.parts:
            return True
        if self._evidence.by_hand:
            return bool(texts)
        mine = {file.after[k].strip() for k in added} | {file.before[k].strip() for k in removed}
        telling = {x for x in mine if words(x)} or mine
        for part in conflict.parts:
            if isinstance(part, Conflict):
                lines = {x.strip() for x in split_lines(part.theirs + part.base)}
                if telling & lines and (
                    not texts or {x for x in texts if words(x)} & lines or telling <= lines
                ):
                    return True
        return False

    def _covering(self, where: str, text: str) -> Resolved | None:
        """A resolution that says what became of a line."""
        for resolved in self._evidence.resolutions:
            if where not in (resolved.path, resolved.source):
                continue
            what = resolved.what
            lines = {x.strip() for x in split_lines(what.theirs + what.base)}
            if text not in lines:
                continue
            if what.kind in ("already upstream", "same change", "formatting"):
                return resolved
            if what.kind == "comments" and text.startswith("#"):
                return resolved
            missing = Counter(words(what.theirs)) - Counter(words(what.base))
            if not missing - Counter(words(what.result)):
                return resolved
        return None


@dataclass(slots=True)
class _File:
    """A file's lines on all sides: as they are in base and fork, on the new layout, upstream and in the result."""

    raw_before: list[str]
    raw_after: list[str]
    before: list[str]
    after: list[str]
    upstream: list[str]
    result: list[str]
    _new: set[int] = field(init=False, default_factory=set)
    _gone: set[int] = field(init=False, default_factory=set)
    _counts: list[Counter[str]] = field(init=False)
    _maps: list[dict[int, set[int]]] = field(init=False)
    _fresh: Counter[str] = field(init=False, default_factory=Counter)

    def __post_init__(self) -> None:
        for tag, a1, a2, b1, b2 in _opcodes(self.before, self.after):
            if tag != "equal":
                self._gone |= set(range(a1, a2))
                self._new |= set(range(b1, b2))
        self._counts = [
            Counter(x.strip() for x in lines)
            for lines in (self.before, self.after, self.upstream, self.result)
        ]
        for tag, _, _, b1, b2 in _opcodes(self.before, self.upstream):
            if tag != "equal":
                self._fresh.update(x.strip() for x in self.upstream[b1:b2])
        self._maps = [
            _line_map(self.raw_before, self.before),
            _line_map(self.raw_after, self.after),
        ]

    def added_of(self, hunk: Hunk) -> set[int]:
        """Lines of the virtual fork that the hunk added."""
        return _mapped(self._maps[1], hunk.added) & self._new

    def removed_of(self, hunk: Hunk) -> set[int]:
        """Lines of the virtual base that the hunk removed."""
        return _mapped(self._maps[0], hunk.removed) & self._gone

    def present(self, k: int) -> bool:
        """Whether an added line is in the result, as often as it must be."""
        line = self.after[k].strip()
        before, after, upstream, result = (c[line] for c in self._counts)
        return not line or result >= min(after, max(after - before, 0) + min(upstream, before)) > 0

    def absent(self, k: int) -> bool:
        """Whether a removed line is gone from the result, as far as upstream does not have more of it."""
        line = self.before[k].strip()
        before, after, upstream, result = (c[line] for c in self._counts)
        if (
            max(before, upstream) > 1
        ):  # upstream may have taken out the same one, and put others elsewhere
            return result <= after + self._fresh[line]
        return not line or result <= max(after, upstream + min(after - before, 0))

    def moved(self, k: int) -> bool:
        """Whether the fork has an added line no more often than the base, and upstream has it no more."""
        line = self.after[k].strip()
        before, after, upstream, _ = (c[line] for c in self._counts)
        return after <= before and not upstream

    def in_upstream(self, k: int) -> bool:
        """Whether upstream has an added line too."""
        line = self.after[k].strip()
        before, after, upstream, _ = (c[line] for c in self._counts)
        return not line or (upstream >= after if after > before else upstream > 0)

    def not_in_upstream(self, k: int) -> bool:
        """Whether upstream has removed a line too."""
        line = self.before[k].strip()
        _, after, upstream, _ = (c[line] for c in self._counts)
        return not line or upstream <= after


def _opcodes(old: list[str], new: list[str]) -> Sequence[tuple[str, int, int, int, int]]:
    return SequenceMatcher(None, old, new, autojunk=False).get_opcodes()


def _line_map(old: list[str], new: list[str]) -> dict[int, set[int]]:
    """Lines of a text (from 1) → lines of its rewritten form (from 0)."""
    found: dict[int, set[int]] = {}
    for tag, a1, a2, b1, b2 in _opcodes(old, new):
        for k in range(a1, a2):
            if tag == "equal" or a2 - a1 == b2 - b1:
                found[k + 1] = {b1 + k - a1}
            else:
                found[k + 1] = set(range(b1, b2))
    return found


def _mapped(known: dict[int, set[int]], lines: Iterable[int]) -> set[int]:
    found: set[int] = set()
    for line in lines:
        found |= known.get(line, set())
    return found


def _by_origin(virtual: Virtual, path: str) -> Rewritten | None:
    for new, origin in virtual.origin.items():
        if origin == path:
            return virtual.files[new]
    return None
