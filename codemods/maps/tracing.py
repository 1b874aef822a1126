"""Where one top-level name of a file went: followed through the steps of a history."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

from codemods.maps.gitstore import GitStore
from codemods.maps.history import History, likeness
from codemods.maps.model import Evidence
from codemods.maps.symbols import Definition, Module, SymbolTable, module_name, scan

# Likeness of bodies from which a definition that appears as another vanishes, in one commit, is the same one:
SAME_NAME = 0.4  # under the same name in another file
RENAMED_HERE = 0.5  # under another name in the same file
RENAMED_ELSEWHERE = 0.7  # under another name in another file
TELLING = 10  # length of a name that by itself is unlikely to come up twice in one commit
LATER = 0.5  # under the same name in the target, where no commit shows the move


@dataclass(frozen=True, slots=True)
class Trace:
    """What tracing a name found.

    Attributes:
        home: (module, name) in the target; None if the name is gone.
        commits: the commits that moved, renamed or deleted it (10 digits), oldest first.
        evidence, confidence, note: as in a map's entry.
    """

    home: tuple[str, str] | None
    commits: tuple[str, ...]
    evidence: Evidence
    confidence: float
    note: str = ""


@dataclass(frozen=True, slots=True)
class _Found:
    path: str
    name: str
    alike: float


class Tracer:
    """Follows names; files are read once per content."""

    def __init__(self, store: GitStore, history: History, target: SymbolTable) -> None:
        """Use the contents in `store`, the moves in `history` and the symbol table of the last tree."""
        self.store, self.history, self.target = store, history, target
        self._modules: dict[str, Module] = {}
        self._numbers = {p: [n for n, _ in c] for p, c in history.changes.items()}
        self._origins = [{new: old for old, new in moved.items()} for moved in history.moved]
        self._by_name: dict[str, list[Module]] = {}
        for module in target.modules.values():
            if not module.shim:
                for name in module.definitions:
                    self._by_name.setdefault(name, []).append(module)

    def trace(self, path: str, name: str) -> Trace:
        """Follow `name`, which the base's file `path` defines, to the last tree."""
        commits: list[str] = []
        confidence = 1.0
        first = self.blob_before(path, 0)
        note = ""
        here, called, number = path, name, 0
        while True:
            at = self._next(here, number)
            if at is None:
                home = (module_name(here), called)
                evidence: Evidence = "history" if all(commits) else "tree"
                return Trace(home, tuple(c for c in commits if c), evidence, confidence, note)
            step = self.history.steps[at]
            old_blob = self.blob_before(here, at)
            there = self.history.moved[at].get(here, here)
            new_blob = self.blob_after(there, at)
            old_definition = self.definition(old_blob, here, called)
            new_definition = self.definition(new_blob, there, called)
            if new_definition is not None and not _forwarded(old_definition, new_definition):
                if there != here:
                    commits.append(step.commit[:10])
            else:
                found = self.search(at, here, there, old_blob, called)
                if found is None and new_definition is not None:
                    here, number = there, at + 1
                    continue
                commits.append(step.commit[:10])
                if found is None:
                    return self.later(first, path, name, step.commit[:10])
                if found.name != called:
                    note = f"{called} became {found.name}"
                confidence = min(confidence, found.alike)
                there, called = found.path, found.name
            here, number = there, at + 1

    # -- one step

    def search(
        self, at: int, here: str, there: str, old_blob: str | None, name: str
    ) -> _Found | None:
        """Where a definition that left its file at step `at` came up in the same step."""
        old = self.definition(old_blob, here, name)
        if old is None or old_blob is None:
            return None
        body = self.body(old_blob, old)
        moved: list[_Found] = []
        standing: list[_Found] = []
        rewritten: list[_Found] = []
        renamed: list[_Found] = []
        for change in self.history.steps[at].changes:
            if change.new is None or not change.path.endswith(".py"):
                continue
            new_module = self.module(change.new, change.path)
            if new_module.shim:
                continue
            origin = self._origins[at].get(change.path, change.path)
            before = self.blob_before(origin, at)
            known = self.module(before, origin).definitions if before else {}
            for candidate in new_module.definitions.values():
                if (candidate.kind == "assign") != (old.kind == "assign"):
                    continue
                new = candidate.name not in known or known[candidate.name].kind != candidate.kind
                if not new and candidate.name != name:
                    continue
                alike = likeness(body, self.body(change.new, candidate))[0]
                found = _Found(change.path, candidate.name, round(alike, 3))
                if candidate.name == name and change.path != there:
                    if not new:
                        if alike >= (1.0 if old.kind == "assign" else SAME_NAME):
                            standing.append(found)
                    elif alike >= SAME_NAME or _same_call(old, candidate):
                        moved.append(found)
                    else:
                        rewritten.append(found)
                elif old.kind != "assign" and candidate.kind == old.kind:
                    least = RENAMED_HERE if change.path == there else RENAMED_ELSEWHERE
                    if alike >= least:
                        renamed.append(found)
        # Gone here and new there in one commit, under a name that says something: rewritten on the way.
        if len(rewritten) > 1 or len(name) < TELLING:
            rewritten = []
        for choice in (moved, standing, rewritten, renamed):
            if choice:
                return max(choice, key=lambda f: (f.alike, f.path == there, f.path, f.name))
        return self.imported(at, there, name)

    def imported(self, at: int, path: str, name: str) -> _Found | None:
        """The definition that the file now imports under this name."""
        blob = self.blob_after(path, at)
        if blob is None:
            return None
        target = self.module(blob, path).imports.get(name)
        if target is None:
            return None
        home, _, leaf = target.rpartition(".")
        relative = home.replace(".", "/")
        for stem in (f"src/{relative}", relative):
            for candidate in (f"{stem}.py", f"{stem}/__init__.py"):
                there = self.blob_after(candidate, at)
                if there and leaf in self.module(there, candidate).definitions:
                    return _Found(candidate, leaf, 1.0)
        return None

    def later(self, blob: str | None, path: str, name: str, commit: str) -> Trace:
        """A definition of the same name and body in the target, where no single commit shows the move."""
        gone = (commit,) if commit else ()
        old = self.definition(blob, path, name)
        best: tuple[float, str] | None = None
        if old is not None and blob is not None:
            body = self.body(blob, old)
            for module in self._by_name.get(name, ()):
                there = self.blob_after(module.path, len(self.history.steps))
                new = module.definitions[name]
                if there is None or (new.kind == "assign") != (old.kind == "assign"):
                    continue
                alike = round(likeness(body, self.body(there, new))[0], 3)
                # A line or two (`logger = …`, `FLAGS = …`) are alike everywhere.
                if alike >= LATER and body.total() > 2 and (best is None or alike > best[0]):
                    best = (alike, module.name)
        if best is None:
            if not commit:
                return Trace(None, gone, "tree", 1.0, "after the last public commit")
            return Trace(None, gone, "history", 1.0)
        note = "found in the target by its content"
        return Trace((best[1], name), gone, "symbols", best[0], note)

    # -- contents

    def _next(self, path: str, number: int) -> int | None:
        numbers = self._numbers.get(path, [])
        index = bisect_right(numbers, number - 1)
        return numbers[index] if index < len(numbers) else None

    def blob_after(self, path: str, number: int) -> str | None:
        """The content of `path` after step `number`."""
        index = bisect_right(self._numbers.get(path, []), number)
        if index:
            return self.history.changes[path][index - 1][1].new
        changes = self.history.changes.get(path)
        return changes[0][1].old if changes else self.history.base.get(path)

    def blob_before(self, path: str, number: int) -> str | None:
        """The content of `path` before step `number`."""
        return self.blob_after(path, number - 1)

    def module(self, blob: str, path: str) -> Module:
        held = self._modules.get(blob)
        if held is None:
            held = scan(self.store.read(blob) or b"", path)
            self._modules[blob] = held
        return held

    def definition(self, blob: str | None, path: str, name: str) -> Definition | None:
        return self.module(blob, path).definitions.get(name) if blob else None

    def body(self, blob: str, definition: Definition) -> Counter[bytes]:
        """The text lines of a definition, its own name and comments left out."""
        return _body(self.store.read(blob) or b"", definition.line, definition.end, definition.name)


# A comment at the end of a line, or alone; a "#" inside a string may go too, on both sides alike.
_COMMENT = re.compile(rb"(^|\s)#.*$")


@lru_cache(maxsize=100_000)
def _body(content: bytes, first: int, last: int, name: str) -> Counter[bytes]:
    own = re.compile(rb"\b%s\b" % re.escape(name).encode())
    lines: Counter[bytes] = Counter()
    for line in content.splitlines()[first - 1 : last]:
        text = own.sub(b"@", _COMMENT.sub(b"", line).strip())
        if text:
            lines[text] += 1
    return lines


def _same_call(old: Definition, new: Definition) -> bool:
    """Whether two functions of one name take the same parameters, and more than one."""
    if old.kind != "function" or old.parameters is None or new.parameters is None:
        return False
    return len(old.parameters.names) > 1 and old.parameters.names == new.parameters.names


def _forwarded(old: Definition | None, new: Definition) -> bool:
    """Whether what stayed is `name = module.name`, the trace of a forwarding module."""
    return new.kind == "assign" and "." in new.alias and (old is None or old.alias != new.alias)
