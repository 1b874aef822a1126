"""Building a map: the files' history, then the symbol tables of both trees on top of it."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from codemods.errors import UserError
from codemods.maps.gitstore import GitStore, Step, step_between
from codemods.maps.history import History, Lineage, Move, Progress, follow
from codemods.maps.model import Entry, Evidence, MoveMap, SignatureChange, Status, TreeId
from codemods.maps.overrides import Overrides
from codemods.maps.symbols import (
    WHEEL_ROOTS,
    Parameters,
    SymbolTable,
    canonical,
    files_below,
    module_name,
)
from codemods.maps.tracing import Tracer
from codemods.upstream import is_version, resolve_upstream

# A constructor of more parameters is a settings object, read from files and never called with them.
MOST_PARAMETERS = 100

# For a time the old package stood beside the new one, as forwarding modules that never are a target.
_OLD_ROOT = "src/MaxText/"
_NEW_ROOT = "src/maxtext/"


@dataclass(frozen=True, slots=True)
class Tree:
    """One end of a map: its name, its files (repository path → blob id) and the commit it stands on."""

    ident: TreeId
    files: dict[str, str]
    commit: str


def build(
    upstream_git: Path, base: str, target: str, *, progress: Progress | None = None
) -> MoveMap:
    """Derive the map from one tree to a later one.

    Args:
        upstream_git: a git repository (bare or not) with upstream's history.
        base: the old tree: a revision, a released version or a folder.
        target: the new tree, likewise. Where it is no commit, history is followed to the commit that it
            matches best, and the last step compares the two trees.
        progress: called with (steps done, steps, commit).

    Raises:
        UserError: the repository, revision, version or folder cannot be had, or is not MaxText.
    """
    with GitStore(upstream_git) as store:
        old = open_tree(store, base)
        new = open_tree(store, target)
        builder = _Builder(store, old, new)
        history = follow(store, old.files, _steps(store, old, new), progress)
        return builder.map(history)


def open_tree(store: GitStore, spec: str) -> Tree:
    """The tree that a revision, a version or a folder names; contents of a folder are added to the store."""
    if not Path(spec).is_dir() and not is_version(spec):
        commit = store.commit(spec)
        if commit is None:
            raise UserError(f"{spec}: no such revision in {store.path}, no folder and no version")
        files = store.tree(commit)
        label = spec if len(spec) < 12 else spec[:8]
        return Tree(TreeId(label, commit, store.date(commit), digest(files)), files, commit)
    upstream = resolve_upstream(spec)
    found: dict[str, str] = {}
    folders = sorted(WHEEL_ROOTS) if upstream.wheel else [""]
    for folder in folders:
        for path in files_below(upstream.root / folder):
            full = f"{folder}/{path}" if folder else path
            found[canonical(full)] = store.add((upstream.root / full).read_bytes())
    commit, _ = nearest_commit(store, {p: b for p, b in found.items() if p.endswith(".py")})
    files = found
    if upstream.wheel:
        # A wheel lacks tests and tools; they are as in the commit that it was built near.
        around = store.tree(commit)
        inside = tuple(f"src/{folder}/" for folder in WHEEL_ROOTS)
        files = {p: b for p, b in around.items() if not p.startswith(inside)} | found
    same = files == store.tree(commit)
    ident = TreeId(upstream.label, commit, store.date(commit), digest(files))
    return Tree(ident, files, commit if same else "")


def digest(files: Mapping[str, str]) -> str:
    """Sha256 over (path, blob id) of the Python files of a tree."""
    text = "".join(f"{p} {b}\n" for p, b in sorted(files.items()) if p.endswith(".py"))
    return hashlib.sha256(text.encode()).hexdigest()


def nearest_commit(store: GitStore, files: Mapping[str, str]) -> tuple[str, float]:
    """The first-parent commit with the most of these (path → blob id) files, and the share of them that it has.

    Of commits that match equally well, the newest.
    """
    best: tuple[int, str] = (0, "")
    for head in store.heads():
        score = 0
        for step in store.steps("", head):
            for change in step.changes:
                wanted = files.get(change.path)
                if wanted is not None:
                    score += (change.new == wanted) - (change.old == wanted)
            if score >= best[0]:
                best = (score, step.commit)
    if not best[1]:
        raise UserError(f"{store.path}: has no commits")
    return best[1], best[0] / max(len(files), 1)


def _steps(store: GitStore, old: Tree, new: Tree) -> list[Step]:
    """From one tree to the other: commits where there are any, a comparison of trees where there are none."""
    start, end = old.ident.revision, new.ident.revision
    if not store.is_ancestor(start, end):
        return [step_between(old.files, new.files)]
    steps = list(store.steps(start, end))
    here = store.tree(start)
    joined: list[Step] = []
    if steps and not store.on_first_parent(start, end):
        # The base was merged from the side: the first step starts at another tree.
        here = store.tree(steps[0].commit)
        joined.append(step_between(old.files, here, steps[0].commit, steps[0].date))
        steps = steps[1:]
    elif here != old.files:
        joined.append(step_between(old.files, here))
    joined.extend(steps)
    there = store.tree(end)
    if there != new.files:
        joined.append(step_between(there, new.files))
    return joined


class _Builder:
    """Puts one map together."""

    history: History
    tracer: Tracer

    def __init__(self, store: GitStore, old: Tree, new: Tree) -> None:
        self.store, self.old, self.new = store, old, new
        self.old_table = self.table(old)
        self.new_table = self.table(new)
        self.overrides = Overrides.shipped()
        self.modules: dict[str, Entry] = {}
        self.paths: dict[str, Entry] = {}
        self.symbols: dict[str, Entry] = {}
        self.kept: dict[str, tuple[str, ...]] = {}
        self.both_packages = any(p.startswith(_NEW_ROOT) for p in new.files)

    def table(self, tree: Tree) -> SymbolTable:
        sources = {p: self.store.read(b) for p, b in tree.files.items() if p.endswith(".py")}
        absent = sum(source is None for source in sources.values())
        if absent * 10 > len(sources):
            raise UserError(
                f"{self.store.path}: lacks the content of {absent} of the {len(sources)} Python files of "
                f"{tree.ident.label}; give a full clone, not a partial one"
            )
        return SymbolTable.from_sources(sources)

    def map(self, history: History) -> MoveMap:
        self.history = history
        self.tracer = Tracer(self.store, history, self.new_table)
        self.place_files()
        self.place_packages()
        self.place_symbols()
        self.note_splits()
        map_ = MoveMap(self.old.ident, self.new.ident)
        map_.modules, map_.paths = self.modules, self.paths
        map_.symbols, map_.kept = self.symbols, self.kept
        map_.signatures = self.signatures(map_)
        map_.folders = self.folders()
        map_.blobs = {p: b[:10] for p, b in self.old.files.items() if p.endswith(".py")}
        return map_

    # -- files and modules

    def commits(self, moves: list[Move]) -> tuple[str, ...]:
        return tuple(c for m in moves if (c := self.history.steps[m.step].commit[:10]))

    def entry(self, life: Lineage) -> Entry:
        steps = self.history.steps
        evidence: Evidence = "history"
        if any(not steps[m.step].commit for m in life.moves):
            evidence = "tree"
        commits = self.commits(life.moves)
        if life.current is None or life.current not in self.new.files:
            commit = "" if life.deleted is None else steps[life.deleted].commit[:10]
            if not commit:
                return Entry(None, "deleted", (), "tree", 1.0, "after the last public commit")
            return Entry(None, "deleted", (commit,))
        confidence = 1.0
        for move in life.moves:
            if not steps[move.step].commit or move.likeness < 0.5:
                confidence = min(confidence, move.likeness)
        if life.current == life.path:
            return Entry(life.path, "same")
        status: Status = "moved"
        if life.parts:
            status = "split"
        elif PurePosixPath(life.current).name != PurePosixPath(life.path).name:
            status = "renamed"
        return Entry(life.current, status, commits, evidence, confidence)

    def place_files(self) -> None:
        forced = self.overrides.paths(self.new.files)
        for path, life in sorted(self.history.lineages.items()):
            entry = forced.get(path) or self.entry(life)
            if entry.status == "same" and entry.evidence != "override" and self.leftover(path):
                entry = Entry(None, "deleted", (), "symbols", 1.0, "only kept for old callers")
            if entry.status != "same":
                self.paths[path] = entry
            if path.endswith(".py"):
                self.modules[module_name(path)] = _as_module(entry)

    def leftover(self, path: str) -> bool:
        """Whether a file stands at its old path only for old callers, beside the new package."""
        return path.startswith(_OLD_ROOT) and self.both_packages

    def place_packages(self) -> None:
        """A package whose `__init__.py` was dropped at the old place: where most of its modules went."""
        taken = {e.new for e in self.modules.values() if e.new}
        for path in sorted(self.history.lineages, key=lambda p: -p.count("/")):
            name = module_name(path)
            if not path.endswith("/__init__.py") or self.modules[name].new is not None:
                continue
            votes: Counter[str] = Counter()
            commits: set[str] = set()
            for module, entry in self.modules.items():
                if module.startswith(f"{name}.") and entry.new:
                    below = module[len(name) :].count(".")
                    leaf_old, leaf_new = (
                        module.split(".")[-below:-1],
                        entry.new.split(".")[-below:-1],
                    )
                    if leaf_old == leaf_new:
                        home = ".".join(entry.new.split(".")[:-below])
                        votes[home] += 1
                        commits.update(entry.commits)
            same = self.renamed_root(name)
            for home, count in [*votes.most_common(), (same, 0)]:
                target = self.package_path(home)
                if target is not None and home not in taken and not self.leftover(target):
                    share = round(count / votes.total(), 3) if count else 0.5
                    note = "its modules went there" if count else "the package of the same name"
                    status: Status = (
                        "moved" if home.split(".")[-1] == name.split(".")[-1] else "renamed"
                    )
                    entry = Entry(target, status, tuple(sorted(commits)), "symbols", share, note)
                    if target == path:
                        entry = Entry(path, "same")
                    else:
                        self.paths[path] = entry
                    self.modules[name] = _as_module(entry)
                    taken.add(home)
                    break

    def package_path(self, package: str) -> str | None:
        """The path of a target package's `__init__.py`, also of one that does without."""
        held = self.new_table.modules.get(package)
        if held is not None:
            return held.path if held.package else None
        path = f"src/{package.replace('.', '/')}/__init__.py"
        return path if self.new_table.is_module(package) and path.startswith(_NEW_ROOT) else None

    def renamed_root(self, package: str) -> str:
        """The package's name below the root package that its own root became."""
        root, _, rest = package.partition(".")
        roots = Counter(
            e.new.split(".")[0]
            for m, e in self.modules.items()
            if e.new and m.startswith(f"{root}.")
        )
        home = roots.most_common(1)[0][0] if roots else root
        return f"{home}.{rest}" if rest else home

    # -- names

    def place_symbols(self) -> None:
        forced = self.overrides.symbols(self.new_table)
        for module in sorted(self.old_table.modules.values(), key=lambda m: m.name):
            kept: list[str] = []
            for name in sorted(self.old_table.names(module.name)):
                if name.startswith("__") and name.endswith("__"):
                    continue
                full = f"{module.name}.{name}"
                entry = forced.get(full) or self.symbol(module.name, name)
                if entry is None:
                    continue
                home = self.modules[module.name]
                if home.new is not None and entry.new == f"{home.new}.{name}":
                    kept.append(name)
                else:
                    self.symbols[full] = entry
            if kept:
                self.kept[module.name] = tuple(kept)

    def symbol(self, module: str, name: str) -> Entry | None:
        """Where one name of an old module went; None when it is not worth an entry."""
        found = self.old_table.resolve(module, name)
        if found is None:
            return None
        if isinstance(found, str):
            return self.reexported_module(module, name, found)
        if found == (module, name):
            return self.defined(module, name)
        if found[0] in self.old_table.modules:
            return self.reexported(module, name, found)
        return self.external(module, name, found)

    def reexported_module(self, module: str, name: str, found: str) -> Entry | None:
        home = self.modules.get(found)
        if home is None:
            return (
                self.external(module, name, found) if not self.old_table.is_module(found) else None
            )
        if found == f"{module}.{name}":
            return None
        if home.new is None:
            return Entry(None, "deleted", home.commits, home.evidence, home.confidence, home.note)
        return Entry(home.new, "reexport", home.commits, home.evidence, home.confidence)

    def reexported(self, module: str, name: str, found: tuple[str, str]) -> Entry:
        origin = self.overrides.symbols(self.new_table).get(".".join(found)) or self.defined(*found)
        if origin.new is None:
            return Entry(
                None, "deleted", origin.commits, origin.evidence, origin.confidence, origin.note
            )
        home = self.modules[module].new
        if origin.new == f"{home}.{name}":
            return Entry(origin.new, "moved", origin.commits, origin.evidence)
        return Entry(
            origin.new, "reexport", origin.commits, origin.evidence, origin.confidence, origin.note
        )

    def external(self, module: str, name: str, found: tuple[str, str] | str) -> Entry | None:
        """A name of another distribution, importable through this module."""
        if not module.startswith("MaxText"):
            return None
        outside = found if isinstance(found, str) else ".".join(found)
        home = self.modules[module].new
        if home is not None and self.new_table.resolve(home, name) == found:
            return Entry(f"{home}.{name}", "moved")
        return Entry(outside, "reexport", (), "symbols", 1.0, "of another distribution")

    def defined(self, module: str, name: str) -> Entry:
        """Where a name that an old module defines went."""
        home = self.modules[module]
        if home.new is not None:
            there = self.new_table.resolve(home.new, name)
            if there == (home.new, name):
                return Entry(f"{home.new}.{name}", "moved", home.commits, home.evidence)
            if isinstance(there, tuple) and there[0] in self.new_table.modules:
                # Still bound there, but defined elsewhere: the definition's place is the one that lasts.
                return self.place(
                    name,
                    there,
                    home.commits,
                    "symbols",
                    1.0,
                    "still bound at its old module's place",
                )
        path = self.old_table.modules[module].path
        trace = self.tracer.trace(path, name)
        if trace.home is not None:
            there = self.new_table.resolve(*trace.home)
            if isinstance(there, tuple) and there[0] in self.new_table.modules:
                return self.place(
                    name, there, trace.commits, trace.evidence, trace.confidence, trace.note
                )
        return Entry(None, "deleted", trace.commits, trace.evidence, 1.0, trace.note)

    def place(
        self,
        name: str,
        there: tuple[str, str],
        commits: tuple[str, ...],
        evidence: Evidence,
        confidence: float,
        note: str,
    ) -> Entry:
        status: Status = "moved" if there[1] == name else "renamed"
        return Entry(".".join(there), status, commits, evidence, confidence, note)

    def note_splits(self) -> None:
        """For a split module: how many of its names went where."""
        for path, entry in list(self.paths.items()):
            if entry.status != "split":
                continue
            module = module_name(path)
            homes: Counter[str] = Counter()
            for name in self.old_table.modules[module].definitions:
                own = self.symbols.get(f"{module}.{name}")
                if own is not None and own.new is not None:
                    homes[own.new.rpartition(".")[0]] += 1
                elif own is None and name in self.kept.get(module, ()):
                    homes[self.modules[module].new or ""] += 1
            note = "names: " + ", ".join(f"{m} {n}" for m, n in homes.most_common())
            status: Status = "split" if len(homes) > 1 else "moved"
            split = Entry(entry.new, status, entry.commits, entry.evidence, entry.confidence, note)
            self.paths[path] = split
            self.modules[module] = _as_module(split)

    # -- calls

    def signatures(self, map_: MoveMap) -> dict[str, SignatureChange]:
        changed: dict[str, SignatureChange] = {}
        for module in self.old_table.modules.values():
            for name, definition in module.definitions.items():
                if definition.kind == "assign":
                    continue
                entry = map_.symbol(module.name, name)
                if entry is None or entry.new is None:
                    continue
                home, _, leaf_name = entry.new.rpartition(".")
                successor = self.new_table.definition(home, leaf_name)
                if successor is None or successor.kind == "assign":
                    continue
                full = f"{module.name}.{name}"
                self.compare(
                    changed,
                    full,
                    self.old_table.signature(module.name, name),
                    self.new_table.signature(home, leaf_name),
                )
                for method, parameters in definition.methods.items():
                    if method == "__init__":
                        continue
                    self.compare(
                        changed, f"{full}.{method}", parameters, successor.methods.get(method)
                    )
        return changed

    @staticmethod
    def compare(
        changed: dict[str, SignatureChange],
        key: str,
        old: Parameters | None,
        new: Parameters | None,
    ) -> None:
        if old is None or new is None or old.text == new.text or len(old.names) > MOST_PARAMETERS:
            return
        removed = tuple(n for n in old.names if n not in new.names)
        required = tuple(n for n in new.required if n not in old.names)
        changed[key] = SignatureChange(old.text, new.text, removed, required)

    # -- folders

    def folders(self) -> dict[str, str]:
        """Old folder → new folder, from where the files in and below it went."""
        direct: dict[str, Counter[str]] = defaultdict(Counter)
        for path, _life in self.history.lineages.items():
            entry = self.paths.get(path)
            new = path if entry is None else entry.new
            if new is not None:
                direct[str(PurePosixPath(path).parent)][str(PurePosixPath(new).parent)] += 1
        placed: dict[str, str] = {}
        for folder, homes in direct.items():
            home, count = homes.most_common(1)[0]
            if count * 2 < homes.total():
                home = _common([h for h, n in homes.items() for _ in range(n)])
            if home and home != folder and home != ".":
                placed[folder] = home
        # A folder whose move follows from its parent's needs no entry of its own.
        order = sorted(placed, key=lambda f: (-f.count("/"), f))
        return {f: placed[f] for f in order}


def _common(folders: list[str]) -> str:
    """The deepest folder that holds at least nine in ten of these."""
    votes: Counter[str] = Counter()
    for folder in folders:
        parts = folder.split("/")
        for depth in range(1, len(parts) + 1):
            votes["/".join(parts[:depth])] += 1
    fitting = [f for f, n in votes.items() if n * 10 >= len(folders) * 9]
    return max(fitting, key=lambda f: (f.count("/"), f), default="")


def _as_module(entry: Entry) -> Entry:
    new = module_name(entry.new) if entry.new and entry.new.endswith(".py") else None
    return Entry(new, entry.status, entry.commits, entry.evidence, entry.confidence, entry.note)
