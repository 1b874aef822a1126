"""The reviewed exceptions: what neither history nor the symbol tables can decide."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from ruamel.yaml import YAML

from codemods.maps.model import Entry, Status
from codemods.maps.symbols import SymbolTable

OVERRIDES = Path(__file__).with_name("overrides.yml")


@dataclass(frozen=True, slots=True)
class Override:
    """One reviewed line: `old` became `new`, for `reason`.

    Attributes:
        old: `old.module.name` or an old repository path.
        new: where it is, by preference: the first one that the target has holds; None among them, or at
            last, means that it has no successor.
        reason: why, in one line.
    """

    old: str
    new: tuple[str | None, ...]
    reason: str

    def entry(self, exists: Callable[[str], bool]) -> Entry | None:
        """What it says for a target in which some names or paths exist; None if nothing."""
        for new in self.new:
            if new is None:
                return Entry(None, "deleted", (), "override", 1.0, self.reason)
            if exists(new):
                status: Status = "moved" if _leaf(new) == _leaf(self.old) else "renamed"
                return Entry(new, status, (), "override", 1.0, self.reason)
        return None


def _leaf(name: str) -> str:
    return name.rpartition("/" if "/" in name else ".")[2]


class Overrides:
    """The overrides of names and of files."""

    def __init__(self, symbols: list[Override], paths: list[Override]) -> None:
        self._symbols, self._paths = symbols, paths

    @classmethod
    def shipped(cls) -> Self:
        """Those that ship with this program."""
        return cls.read(OVERRIDES)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file of overrides."""
        data: Mapping[str, Any] = YAML(typ="safe").load(path.read_text(encoding="utf-8")) or {}

        def lines(key: str) -> list[Override]:
            found = []
            for line in data.get(key) or ():
                new = line["new"]
                chosen = tuple(new) if isinstance(new, list) else (new,)
                found.append(Override(line["old"], chosen, line["reason"]))
            return found

        return cls(lines("symbols"), lines("paths"))

    def symbols(self, target: SymbolTable) -> dict[str, Entry]:
        """`old.module.name` → entry, for those whose new name the target defines."""

        def defined(new: str) -> bool:
            home, _, name = new.rpartition(".")
            return home in target.modules and target.resolve(home, name) == (home, name)

        return _entries(self._symbols, defined)

    def paths(self, target: Mapping[str, str]) -> dict[str, Entry]:
        """Old path → entry, for those whose new path the target has."""
        return _entries(self._paths, target.__contains__)


def _entries(lines: list[Override], exists: Callable[[str], bool]) -> dict[str, Entry]:
    found = {line.old: line.entry(exists) for line in lines}
    return {old: entry for old, entry in found.items() if entry is not None}
