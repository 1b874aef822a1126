"""Checking a map against evidence that it was not made from: the imports that upstream rewrote itself.

In a file that is alive at both ends, each name imported from the old package is mostly still bound in the
new file, by an import that upstream's developers wrote. The map should send the name to the same place.
"""

from __future__ import annotations

import ast
import warnings
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from codemods.maps.build import Tree, open_tree
from codemods.maps.gitstore import GitStore
from codemods.maps.model import Entry, MoveMap
from codemods.maps.symbols import SymbolTable, absolute, module_name

OLD_ROOT = "MaxText"


@dataclass(frozen=True, slots=True)
class Disagreement:
    """One imported name that upstream and the map send to different places.

    Attributes:
        path, new_path: the file at both ends.
        old: what the old file imports.
        bound: the name it binds.
        upstream: where the new file imports that name from.
        ours: where the map sends it, or a reason why nowhere.
    """

    path: str
    new_path: str
    old: str
    bound: str
    upstream: tuple[str, ...]
    ours: str


@dataclass(slots=True)
class Agreement:
    """The figures of one map.

    Attributes:
        files: files alive at both ends that import from the old package.
        imported: names they import from it.
        bound: those still bound by an import in the new file, whose place exists in the target.
        agreed: those that the map sends to the same definition.
        dropped: names no longer bound in the new file: no evidence.
        stale: names that the new file imports from where the target has nothing.
        disagreements: the rest.
        missing: entries whose target does not exist in the target tree.
        collisions: new paths that two old paths are sent to.
    """

    files: int = 0
    imported: int = 0
    bound: int = 0
    agreed: int = 0
    dropped: int = 0
    stale: int = 0
    disagreements: list[Disagreement] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    collisions: list[str] = field(default_factory=list)

    @property
    def share(self) -> float:
        """The share of the names with evidence on which the map agrees."""
        return self.agreed / self.bound if self.bound else 1.0


def check(upstream_git: Path, map_: MoveMap) -> Agreement:
    """Measure a map against the imports of both its trees.

    Args:
        upstream_git: a git repository with upstream's history.
        map_: a map whose ends are revisions of that repository or released versions.

    Raises:
        UserError: a tree cannot be had.
    """
    with GitStore(upstream_git) as store:
        old = open_tree(store, map_.base.label)
        new = open_tree(store, map_.target.label)
        target = SymbolTable.from_sources(
            {p: store.read(b) for p, b in new.files.items() if p.endswith(".py")}
        )
        result = Agreement()
        _compare(store, old, new, target, map_, result)
        result.missing = missing(map_, target, new)
        result.collisions = collisions(map_)
        return result


def missing(map_: MoveMap, target: SymbolTable, new: Tree) -> list[str]:
    """Entries that point at nothing in the target tree."""
    found = [
        f"{old} -> {e.new}"
        for old, e in map_.modules.items()
        if e.new and not target.is_module(e.new)
    ]
    for old, entry in map_.paths.items():
        if entry.new and entry.new not in new.files:
            # A package may do without an `__init__.py`.
            package = entry.new.endswith("/__init__.py") and target.is_module(
                module_name(entry.new)
            )
            if not package:
                found.append(f"{old} -> {entry.new}")
    for old, entry in map_.symbols.items():
        if entry.new and target.has_root(entry.new) and not target.exists(entry.new):
            found.append(f"{old} -> {entry.new}")
    for module, names in map_.kept.items():
        home = map_.modules[module].new
        found += [f"{module}.{n} -> {home}.{n}" for n in names if not target.exists(f"{home}.{n}")]
    return found


def collisions(map_: MoveMap) -> list[str]:
    """New paths that more than one old path is sent to."""
    sources: dict[str, list[str]] = defaultdict(list)
    for old, entry in map_.paths.items():
        if entry.new:
            sources[entry.new].append(old)
    return [f"{new}: {', '.join(olds)}" for new, olds in sources.items() if len(olds) > 1]


def _compare(
    store: GitStore,
    old: Tree,
    new: Tree,
    target: SymbolTable,
    map_: MoveMap,
    result: Agreement,
) -> None:
    for path in sorted(old.files):
        if not path.endswith(".py"):
            continue
        entry = map_.paths.get(path)
        new_path = path if entry is None else entry.new
        if new_path is None or new_path not in new.files:
            continue
        before = list(imported_names(store.read(old.files[path]), path))
        wanted = [(name, dotted) for name, dotted in before if dotted.split(".")[0] == OLD_ROOT]
        if not wanted:
            continue
        after: dict[str, set[str]] = defaultdict(set)
        for name, dotted in imported_names(store.read(new.files[new_path]), new_path):
            after[name].add(dotted)
        result.files += 1
        for name, dotted in dict.fromkeys(wanted):
            result.imported += 1
            theirs = sorted(after.get(name, ()))
            if not theirs:
                result.dropped += 1
                continue
            places = {p for t in theirs if (p := place(target, t)) is not None}
            if not places:
                result.stale += 1
                continue
            result.bound += 1
            ours = destination(map_, dotted)
            if ours is not None and ours.new and place(target, ours.new) in places:
                result.agreed += 1
                continue
            said = "not in the base" if ours is None else ours.new or "deleted"
            result.disagreements.append(
                Disagreement(path, new_path, dotted, name, tuple(theirs), said)
            )


def destination(map_: MoveMap, dotted: str) -> Entry | None:
    """Where the map sends what `from a import b` or `import a.b` names."""
    module, _, name = dotted.rpartition(".")
    return map_.symbol(module, name) or map_.module(dotted)


def place(target: SymbolTable, dotted: str) -> str | None:
    """The definition that a dotted name stands for in the target; None if there is none."""
    if target.is_module(dotted):
        return dotted
    module, _, name = dotted.rpartition(".")
    if not target.has_root(dotted):
        return dotted
    if not target.is_module(module):
        return None
    found = target.resolve(module, name)
    return ".".join(found) if isinstance(found, tuple) else found


def imported_names(source: bytes | None, path: str) -> Iterator[tuple[str, str]]:
    """(bound name, dotted target) of every import in a file, also inside functions; `import a.b` binds `a.b`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source or b"")
    except (SyntaxError, ValueError):
        return
    module, package = module_name(path), path.endswith("__init__.py")
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.asname or alias.name, alias.name
        elif isinstance(node, ast.ImportFrom):
            home = absolute(module, package, node.level, node.module)
            for alias in node.names:
                if alias.name != "*":
                    yield alias.asname or alias.name, f"{home}.{alias.name}"
