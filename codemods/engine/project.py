"""What the rules know of the whole checkout: the map, where its own files go, and what old names mean now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from codemods.maps.model import Entry, MoveMap
from codemods.maps.symbols import canonical

if TYPE_CHECKING:
    from codemods.maps.symbols import SymbolTable
    from codemods.rules.dumps import DumpPlan

OLD_ROOT = "MaxText"
NEW_ROOT = "maxtext"

# What every module has (language reference, 3.2.9), so that no text need bind it.
MODULE_ATTRIBUTES = frozenset(
    {
        "__annotations__",
        "__builtins__",
        "__cached__",
        "__dict__",
        "__doc__",
        "__file__",
        "__loader__",
        "__name__",
        "__package__",
        "__path__",
        "__spec__",
    }
)


@dataclass(frozen=True, slots=True)
class Target:
    """Where an old module or name lives in the migrated tree.

    Attributes:
        module: its module there; None if it cannot be said (then `problem` is set).
        name: its name in that module; None when the thing is a module itself.
        commits: the upstream commits behind it, oldest first.
        problem: why it cannot be rewritten with certainty; "" if it can.
        note: why a person has to look at it although it is rewritten: upstream deleted it.
        gone: what upstream deleted, where `note` is set: the module, or the name of a module that lives on.
        why: the evidence, for the reviewer of an edit.
    """

    module: str | None
    name: str | None = None
    commits: tuple[str, ...] = ()
    problem: str = ""
    note: str = ""
    gone: str = ""
    why: str = ""

    @property
    def dotted(self) -> str | None:
        """`module` or `module.name`."""
        if self.module is None:
            return None
        return self.module if self.name is None else f"{self.module}.{self.name}"


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a file of the checkout goes.

    Attributes:
        new: its path in the output; None if it stays out of the migrated tree.
        rule: id of the MAP rule that placed it; "" where it stays.
        why: for the report.
        problem: what a person has to decide; "" if nothing.
        instead: of a file that stays out, the path in the output of the one that takes its place; "" if none.
    """

    new: str | None
    rule: str = ""
    why: str = ""
    problem: str = ""
    instead: str = ""


@dataclass(frozen=True, slots=True)
class Options:
    """What the user chose.

    Attributes:
        rename_loggers: rewrite dotted names given to `logging.getLogger` too.
    """

    rename_loggers: bool = False


@dataclass
class Project:
    """Everything rules may ask for; made once, read only, sent to every worker.

    Attributes:
        map: upstream's moves from the checkout's base to the target.
        enabled: ids of the rules that run.
        options: the user's choices.
        placements: every file of the checkout → where it goes.
        old: symbol table of the checkout.
        target: symbol table of the upstream tree that the checkout is migrated to.
        modules: dotted module of each Python file of the checkout → dotted module in the output.
        names: identifier → new identifier, by explicit table (AL* → Ling2*).
        dumps: the dump hooks found in the checkout and what falls with them.
        source_root: folder that holds the package `MaxText` in the checkout: "src" or "".
        config_fields: names that the target's configuration takes; None where that is not known.
    """

    map: MoveMap
    enabled: frozenset[str]
    options: Options
    placements: Mapping[str, Placement]
    old: SymbolTable
    target: SymbolTable
    modules: Mapping[str, str | None]
    names: Mapping[str, str]
    dumps: DumpPlan
    source_root: str = "src"
    config_fields: frozenset[str] | None = None
    _symbols: dict[tuple[str, str], Target | None] = field(default_factory=dict, repr=False)
    _loads: dict[str, frozenset[str]] = field(default_factory=dict, repr=False)

    def __getstate__(self) -> dict[str, object]:
        state = self.__dict__.copy()
        state["_symbols"] = {}
        state["_loads"] = {}
        for name in ("_paths", "_folders", "old_roots", "_new_modules", "_origins"):
            state.pop(name, None)
        return state

    # What an old dotted name means -------------------------------------------------------------------

    @cached_property
    def old_roots(self) -> frozenset[str]:
        """First parts of dotted names that the migration can change."""
        roots = {old.split(".")[0] for old, entry in self.map.modules.items() if entry.new != old}
        roots |= {old.split(".")[0] for old, new in self.modules.items() if new != old}
        # A file that keeps its place may still give its classes new names.
        roots |= {
            module.split(".")[0]
            for module, held in self.old.modules.items()
            if module in self.modules and not held.definitions.keys().isdisjoint(self.names)
        }
        roots.add(OLD_ROOT)
        return frozenset(roots)

    def is_module(self, dotted: str) -> bool:
        """Whether `dotted` is a module or package of the old tree, or of the output."""
        return (
            dotted in self.modules
            or dotted in self.map.modules
            or self.old.is_module(dotted)
            or self.is_new_module(dotted)
        )

    def is_new_module(self, dotted: str) -> bool:
        """Whether `dotted` is a module or package of the output or of the target tree."""
        return dotted in self._new_modules or self.target.is_module(dotted)

    @cached_property
    def _new_modules(self) -> frozenset[str]:
        found: set[str] = set()
        for new in self.modules.values():
            while new:
                found.add(new)
                new = new.rpartition(".")[0]
        return frozenset(found)

    @cached_property
    def _origins(self) -> dict[str, str]:
        """Module of the output → the checkout's module that it was."""
        return {new: old for old, new in self.modules.items() if new is not None}

    def loads(self, new: str) -> frozenset[str]:
        """Modules of the migrated tree that are loaded, and so bound in their packages, once `new` is.

        Upstream's text tells for its own modules, the checkout's for the others.
        """
        if new not in self._loads:
            found: set[str] = set()
            waiting = [new]
            while waiting:
                module = waiting.pop()
                while module and module not in found:
                    found.add(module)
                    waiting += self._imported_by(module)
                    module = module.rpartition(".")[0]
            self._loads[new] = frozenset(found)
        return self._loads[new]

    def _imported_by(self, new: str) -> list[str]:
        """The new modules that a new module's text imports when it is loaded."""
        upstream = self.target.modules.get(new)
        held = upstream or self.old.modules.get(self._origins.get(new, ""))
        if held is None:
            return []
        names = [*held.imports.values(), *held.modules, *held.stars]
        if upstream is not None:
            return [m for n in names for m in (n, n.rpartition(".")[0]) if m in self.target.modules]
        found = [f[0].module for n in names if (f := self.dotted(n)) is not None]
        return [m for m in found if m is not None]

    def module(self, old: str) -> Target | None:
        """Where the old module `old` lives; None when `old` is no module of the old tree.

        A module of the checkout goes where its file goes; a module that only upstream has goes where
        the map says.
        """
        entry = self.map.modules.get(old)
        commits = entry.commits if entry else ()
        if old in self.modules:
            new = self.modules[old]
            if new is None:
                return Target(None, problem=f"`{old}` stays out of the migrated tree")
            if entry is not None and entry.status == "deleted":
                return Target(
                    new, None, commits, note=self._gone(f"module `{old}`", entry), gone=old
                )
            return Target(new, None, commits)
        if entry is not None:
            if entry.new is None:
                return Target(None, None, commits, self._gone(f"module `{old}`", entry))
            if self.target.has_root(entry.new) and not self.is_new_module(entry.new):
                problem = f"`{entry.new}`, the new place of `{old}`, is not in the upstream tree"
                return Target(None, None, commits, problem)
            return Target(entry.new, None, commits)
        if old == OLD_ROOT:
            return Target(NEW_ROOT)
        if self.old.is_module(old):  # a folder without __init__.py
            return self._namespace(old)
        return None

    def _namespace(self, old: str) -> Target | None:
        """A folder that is no package goes where all the modules in it go, if they agree."""
        homes: set[str] = set()
        for module, new in self.modules.items():
            if module.startswith(f"{old}.") and new is not None:
                rest = module[len(old) :]
                homes.add(new.removesuffix(rest) if new.endswith(rest) else "")
        if len(homes) == 1 and "" not in homes:
            return Target(homes.pop())
        return Target(None, problem=f"the modules of `{old}` go to different places")

    def symbol(self, module: str, name: str) -> Target | None:
        """Where `name`, importable from the old `module`, lives; None when the old tree has no such name."""
        key = (module, name)
        if key not in self._symbols:
            self._symbols[key] = None  # a circle of imports ends here
            self._symbols[key] = self._symbol(module, name)
        return self._symbols[key]

    def _symbol(self, module: str, name: str) -> Target | None:
        key = (module, name)
        as_module = self.module(f"{module}.{name}")
        if as_module is not None and not self._defines(module, name):
            return as_module
        entry = self.map.symbol(module, name)
        if entry is not None and entry.new is not None:
            found = self._in_new_tree(entry)
            if found is not None:
                return found
        own = self.old.resolve(module, name) if self.old.is_module(module) else None
        if isinstance(own, str):
            return self.module(own) if self.module(own) is not None else Target(own)
        if own is not None:
            definer, definition = own
            if (definer, definition) != key and definer.split(".")[0] in self.old_roots:
                # Handed on here: what became of the definition counts.
                return self.symbol(definer, definition)
            if definer not in self.modules:
                # Handed on from outside the checkout.
                home = self.modules.get(module)
                return Target(home, name) if home is not None else None
            home = self.modules[definer]
            if home is None:
                return Target(None, problem=f"`{definer}` stays out of the migrated tree")
            note = gone = ""
            if entry is not None and entry.status == "deleted":
                home_entry = self.map.modules.get(definer)
                if home_entry is not None and home_entry.status == "deleted":
                    gone, note = definer, self._gone(f"module `{definer}`", home_entry)
                else:
                    gone = f"{module}.{name}"
                    note = self._gone(f"`{gone}`", entry)
            commits = entry.commits if entry else ()
            return Target(
                home, self.names.get(definition, definition), commits, note=note, gone=gone
            )
        if entry is not None:
            return Target(None, None, entry.commits, self._gone(f"`{module}.{name}`", entry))
        home_target = self.module(module)
        if home_target is None or home_target.module is None:
            return home_target
        if name in MODULE_ATTRIBUTES:
            return replace(home_target, name=name)
        if self.target.exists(f"{home_target.module}.{name}"):
            return Target(home_target.module, name, home_target.commits)
        return Target(
            None, None, home_target.commits, f"neither tree has a name `{name}` in `{module}`"
        )

    def _defines(self, module: str, name: str) -> bool:
        """Whether a package binds `name` itself, so that it is not the submodule of that name."""
        held = self.old.modules.get(module)
        return held is not None and name in held.definitions

    def _in_new_tree(self, entry: Entry) -> Target | None:
        assert entry.new is not None
        module, _, name = entry.new.rpartition(".")
        if self.target.is_module(entry.new):
            return Target(entry.new, None, entry.commits)
        if self.target.is_module(module) and self.target.resolve(module, name) is not None:
            return Target(module, name, entry.commits, why=entry.note)
        if not self.target.has_root(module) and module not in self._new_modules:
            # A wheel has no tests/: the map's word stands, unless the checkout brings that module itself.
            return Target(module, name, entry.commits, why=entry.note)
        return None

    def _gone(self, what: str, entry: Entry) -> str:
        if entry.new is not None:
            return f"{what} went to `{entry.new}`, which the given upstream tree does not have"
        by = f" in commit {entry.commits[-1]}" if entry.commits else ""
        note = f" ({entry.note})" if entry.note else ""
        return f"upstream deleted {what}{by}{note}"

    def dotted(self, old: str) -> tuple[Target, str] | None:
        """Resolve `old` (`MaxText.layers.moe.RoutedMoE.get_topk`) as far as it names a module or symbol.

        Returns:
            The target of the longest prefix that is known and the rest (`get_topk`, "" if none); None
            when not even the first part is an old root.
        """
        parts = old.split(".")
        if parts[0] not in self.old_roots:
            return None
        for cut in range(len(parts), 0, -1):
            prefix = ".".join(parts[:cut])
            target = self.module(prefix)
            if target is None:
                continue
            if cut == len(parts):
                return target, ""
            symbol = self.symbol(prefix, parts[cut])
            if symbol is None:
                return target, ".".join(parts[cut:])
            rest = parts[cut + 1 :]
            imported = self.old.resolve(prefix, parts[cut]) if rest else None
            if isinstance(imported, str) and imported != f"{prefix}.{parts[cut]}":
                # A module that is only imported there: what follows is a name of that module.
                further = self.dotted(".".join([imported, *rest]))
                if further is not None:
                    return further
            return symbol, ".".join(rest)
        return None

    def path(self, old: str) -> Placement | None:
        """Where the file or folder at the repository path `old` goes (`src/MaxText/configs`, no final `/`).

        Files of the checkout go where they are placed; files that only upstream has where the map
        says; a folder where most of its files go, if they agree. None when neither knows such a path
        or it stays.
        """
        found = self._paths.get(old)
        if found is not None:
            return found if found.new != old else None
        new = self._folders.get(old)
        if new is None:
            return None
        if new == "":
            return Placement(None, problem=f"the files of `{old}` go to different folders")
        return Placement(new) if new != old else None

    @cached_property
    def _paths(self) -> dict[str, Placement]:
        """Repository path → placement, of upstream's files and of the checkout's."""
        paths: dict[str, Placement] = {}
        for old, entry in self.map.paths.items():
            if entry.new is None:
                paths[old] = Placement(None, problem=self._gone(f"`{old}`", entry))
            else:
                paths[old] = Placement(entry.new)
        for old, placement in self.placements.items():
            if placement.new is not None or placement.problem or placement.rule:
                stands = placement.new or placement.instead
                new = self.canonical(stands) if stands else None
                paths[self.canonical(old)] = replace(placement, new=new)
        return paths

    @cached_property
    def _folders(self) -> dict[str, str]:
        """Folder → where most of its files go; "" where there is no such place."""
        votes: dict[str, Counter[str]] = {}
        lived_in = {
            parent.as_posix()
            for placement in self._paths.values()
            if placement.new is not None
            for parent in PurePosixPath(placement.new).parents
        }
        for old, placement in self._paths.items():
            new = placement.new
            if new is None:
                continue
            folder, _, leaf = old.rpartition("/")
            new_folder = new.removesuffix(f"/{leaf}") if new.endswith(f"/{leaf}") else ""
            while folder:
                votes.setdefault(folder, Counter())[new_folder] += 1
                folder, _, leaf = folder.rpartition("/")
                if new_folder and new_folder.rpartition("/")[2] == leaf:
                    new_folder = new_folder.rpartition("/")[0]
                elif new_folder:
                    new_folder = ""
        chosen: dict[str, str] = {}
        for folder, counts in votes.items():
            if folder in ("src/MaxText", OLD_ROOT):
                chosen[folder] = folder.removesuffix(OLD_ROOT) + NEW_ROOT
                continue
            if folder in lived_in:  # still there in the output
                continue
            best, count = counts.most_common(1)[0]
            chosen[folder] = best if best and count * 2 > counts.total() else ""
        chosen.setdefault("src/MaxText", "src/maxtext")
        return chosen

    def canonical(self, path: str) -> str:
        """A path of the checkout as upstream's repository has it (an unpacked wheel lacks `src/`)."""
        return path if self.source_root == "src" else canonical(path)
