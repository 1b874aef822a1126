"""The reviewed exceptions: what neither history nor the symbol tables can decide."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from ruamel.yaml import YAML

from codemods.maps.model import Entry
from codemods.maps.symbols import SymbolTable

OVERRIDES = Path(__file__).with_name("overrides.yml")


@dataclass(frozen=True, slots=True)
class Override:
    """One reviewed line: `old` became `new`, for `reason`.

    Attributes:
        old: `old.module.name` or an old repository path.
        new: where it is, by preference; the first one that the target has holds. None: it has no successor.
        reason: why, in one line.
    """

    old: str
    new: tuple[str, ...] | None
    reason: str


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
                chosen = (new,) if isinstance(new, str) else tuple(new) if new else None
                found.append(Override(line["old"], chosen, line["reason"]))
            return found

        return cls(lines("symbols"), lines("paths"))

    def symbols(self, target: SymbolTable) -> dict[str, Entry]:
        """`old.module.name` → entry, for those whose new name the target defines."""
        entries: dict[str, Entry] = {}
        for line in self._symbols:
            if line.new is None:
                entries[line.old] = Entry(None, "deleted", (), "override", 1.0, line.reason)
                continue
            for new in line.new:
                home, _, name = new.rpartition(".")
                if target.resolve(home, name) == (home, name) and home in target.modules:
                    same = name == line.old.rpartition(".")[2]
                    status = "moved" if same else "renamed"
                    entries[line.old] = Entry(new, status, (), "override", 1.0, line.reason)
                    break
        return entries

    def paths(self, target: Mapping[str, str]) -> dict[str, Entry]:
        """Old path → entry, for those whose new path the target has."""
        entries: dict[str, Entry] = {}
        for line in self._paths:
            if line.new is None:
                entries[line.old] = Entry(None, "deleted", (), "override", 1.0, line.reason)
                continue
            for new in line.new:
                if new in target:
                    same = new.rpartition("/")[2] == line.old.rpartition("/")[2]
                    status = "moved" if same else "renamed"
                    entries[line.old] = Entry(new, status, (), "override", 1.0, line.reason)
                    break
        return entries
