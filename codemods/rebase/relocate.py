"""Definitions that upstream moved to another file: the fork's change goes where the definition lives now."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from codemods.engine.tree import UnparsableError
from codemods.maps.model import MoveMap
from codemods.maps.symbols import SymbolTable, module_name
from codemods.rebase.certain import Resolution
from codemods.rebase.imports import bindings
from codemods.rebase.lines import Part
from codemods.rebase.structure import Statement, merge_statement, read

_DEFINED = re.compile(r"^(?:async )?(?:def|class) (\w+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Move:
    """A definition that the fork changed and that upstream keeps in another file.

    Attributes:
        name: its name, as `structure.read` keys it (`def f`, `class C`).
        target: the file that has it now.
        base, theirs: its text in the base and in the fork.
        imports: import statements of the fork's file that the change needs.
    """

    name: str
    target: str
    base: Statement
    theirs: Statement
    imports: tuple[str, ...]


@dataclass(slots=True)
class Split:
    """A file of the fork whose changes go to several files.

    Attributes:
        theirs: the fork's text without the changes that go elsewhere.
        moves: those changes.
        twice: what could go to several places, in words; "" if nothing.
    """

    theirs: str
    moves: list[Move] = field(default_factory=list)
    twice: str = ""


class Homes:
    """Where upstream keeps what the old tree defined."""

    def __init__(self, map_: MoveMap, target: SymbolTable) -> None:
        self._map, self._target = map_, target

    def find(self, origin: str, name: str) -> list[str]:
        """The files of upstream that define what the fork's file `origin` defined as `name`.

        The map's answer is the only one, where it has one; else every file that defines the name.
        """
        entry = self._map.symbol(module_name(origin), name)
        if entry is not None and entry.new is not None:
            module, _, leaf = entry.new.rpartition(".")
            found = self._target.modules.get(module)
            return [found.path] if leaf == name and self._defines(module, name) and found else []
        return sorted(m.path for n, m in self._target.modules.items() if self._defines(n, name))

    def moved(self, path: str) -> str | None:
        """Where upstream moved a file; None if it did not."""
        entry = self._map.paths.get(path)
        return entry.new if entry is not None else None

    def _defines(self, module: str, name: str) -> bool:
        held = self._target.modules.get(module)
        return (
            held is not None
            and name in held.definitions
            and held.definitions[name].kind in ("class", "function")
        )


def split(
    homes: Homes, origin: str, path: str, base: str, ours: str | None, theirs: str
) -> Split | None:
    """Find the changes of a file that belong elsewhere by now.

    Args:
        homes: where upstream keeps what.
        origin: the file's path in the fork.
        path: its path on the new layout.
        base, theirs: its text in the base and in the fork, on the new layout.
        ours: upstream's text at `path`; None if there is none.

    Returns:
        What goes where; None where nothing does, or a file does not parse.
    """
    if ours is not None and set(_DEFINED.findall(base)) <= set(_DEFINED.findall(ours)):
        return None  # nothing has gone; parsing is what costs time here
    try:
        old, new = read(base), read(theirs)
        here = {i.key for i in read(ours)} if ours is not None else set()
    except UnparsableError:
        return None
    before = {i.key: i for i in old if i.key.startswith(("def ", "class "))}
    found = Split("")
    texts: list[str] = []
    twice: list[str] = []
    for item in new:
        text = item.value.text
        known = before.get(item.key)
        name = item.key.rpartition(" ")[2]
        if known is not None and known.same != item.same and item.key not in here:
            places = [p for p in homes.find(origin, name) if p != path]
            if len(places) == 1:
                needed = _imports_of(theirs, known.value.text, text)
                if needed is not None:
                    found.moves.append(Move(item.key, places[0], known.value, item.value, needed))
                    text = known.value.text
            elif places:
                twice.append(f"`{name}` is in {' and in '.join(places)} now")
        texts.append(text)
    found.theirs = "".join(texts)
    found.twice = "; ".join(twice)
    return found if found.moves or found.twice else None


def nothing_left(base: str, rest: str) -> bool:
    """Whether the fork changed nothing but imports beside what went elsewhere."""
    try:
        old, new = ast.parse(base), ast.parse(rest)
    except (SyntaxError, ValueError):
        return False
    imports = (ast.Import, ast.ImportFrom)
    bodies = [[ast.dump(n) for n in t.body if not isinstance(n, imports)] for t in (old, new)]
    return bodies[0] == bodies[1]


def look_alikes(
    homes: Homes, text_of: Callable[[str], str | None], path: str, base: str, ours: str, theirs: str
) -> str:
    """Other files of upstream that still have a definition which both sides changed, in words; "" if none."""
    try:
        b, o, t = ({i.key: i.core for i in read(x)} for x in (base, ours, theirs))
        said: dict[str, None] = {}
        for key, core in b.items():
            if not key.startswith(("def ", "class ")) or core in (o.get(key), t.get(key)):
                continue
            name = key.rpartition(" ")[2]
            for other in homes.find("", name):
                held = {i.key: i.core for i in read(text_of(other) or "")} if other != path else {}
                if held.get(key) == core:
                    said[f"{other} has `{name}` as the fork knew it"] = None
    except UnparsableError:
        return ""
    return "; ".join(said)


def place(move: Move, text: str) -> tuple[list[Part], list[Resolution]] | None:
    """Make a moved change in the file that has the definition now.

    Returns:
        The file's parts and what was resolved; None if the definition is not there, or not once.
    """
    try:
        items = read(text)
    except UnparsableError:
        return None
    at = [k for k, i in enumerate(items) if i.key == move.name]
    if len(at) != 1:
        return None
    mine = items[at[0]].value
    found: list[Resolution] = []
    merged = merge_statement(move.base, mine, move.theirs, found)
    added = _missing_imports(text, move.imports)
    if added is None:
        return None
    before = "".join(i.value.text for i in items[: at[0]])
    after = "".join(i.value.text for i in items[at[0] + 1 :])
    before = _with_imports(before, added)
    if all(isinstance(p, str) for p in merged):
        name = move.name.rpartition(" ")[2]
        result = "".join(added) + "".join(p for p in merged if isinstance(p, str))
        reason = f"upstream has moved `{name}` to {move.target}"
        found.append(
            Resolution("moved", reason, move.base.text, mine.text, move.theirs.text, result)
        )
    return [before, *merged, after], found


def _imports_of(text: str, base: str, theirs: str) -> tuple[str, ...] | None:
    """Imports for the names that a change uses anew; None if it uses something else of its file anew."""
    new = _names(theirs) - _names(base)
    wanted: list[str] = []
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return None
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            segment = ast.get_source_segment(text, node) or ""
            for name, binding in (bindings(segment) or {}).items():
                if name.split(".")[0] in new:
                    wanted.append(binding.statement)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if node.name in new:
                return None
        else:
            stored = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
            if stored & new:
                return None
    return tuple(wanted)


def _names(text: str) -> set[str]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return set()
    return {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def _missing_imports(text: str, wanted: tuple[str, ...]) -> list[str] | None:
    """The imports that a file lacks; None if it gives such a name another meaning."""
    known: dict[str, str] = {}
    tree = ast.parse(text)
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            segment = ast.get_source_segment(text, node) or ""
            known |= {n: b.statement for n, b in (bindings(segment) or {}).items()}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            known[node.name] = ""
    missing: list[str] = []
    for statement in wanted:
        for name in bindings(statement) or {}:
            if known.get(name, statement) != statement:
                return None
            if name not in known:
                missing.append(statement)
    return missing


def _with_imports(text: str, statements: list[str]) -> str:
    """The beginning of a file with more imports behind its last one."""
    if not statements:
        return text
    end = 0
    for node in ast.parse(text).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            end = node.end_lineno or end
    lines = text.splitlines(keepends=True)
    return "".join([*lines[:end], *statements, *lines[end:]])
