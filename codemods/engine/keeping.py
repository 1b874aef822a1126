"""Files that stay where they are although the rules would move them, since a reviewer rejected the move."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import PurePosixPath

from codemods.maps.model import Entry, MoveMap
from codemods.maps.symbols import canonical, module_name


def blocked_by(moves: Mapping[str, str | None], keep: Collection[str]) -> dict[str, str]:
    """What has to stay in place too if the files `keep` do.

    A file must stay whose new place a kept file holds, or where that stands where a folder is needed (and the
    other way round); then whatever wants the place of this one, and so on.

    Args:
        moves: file of the checkout that moves or stays out → its new path, or None.
        keep: files of these that stay.

    Returns:
        File that must stay too → the file in its way.
    """
    taken = {new: path for path, new in moves.items() if new is not None}
    below: dict[str, list[str]] = {}
    for new, path in taken.items():
        for parent in PurePosixPath(new).parents:
            below.setdefault(str(parent), []).append(path)
    also: dict[str, str] = {}
    waiting = sorted(keep)
    while waiting:
        path = waiting.pop(0)
        above = [taken[str(p)] for p in PurePosixPath(path).parents if str(p) in taken]
        for other in (*([taken[path]] if path in taken else ()), *below.get(path, ()), *above):
            if other not in keep and other not in also:
                also[other] = path
                waiting.append(other)
    return also


def without_moves(map_: MoveMap, paths: Collection[str], wheel: bool) -> MoveMap:
    """The map in which upstream has not moved these files of the checkout, nor what they define."""
    if not paths:
        return map_
    old = {canonical(p) if wheel else p for p in paths}
    kept = {module_name(p) for p in old if p.endswith(".py")}
    gone = {e.new for m in kept if (e := map_.modules.get(m)) is not None and e.new is not None}

    def stays(name: str, entry: Entry) -> bool:
        home = (entry.new or "").rpartition(".")[0]
        return name.rpartition(".")[0] in kept or home in gone

    return replace(
        map_,
        modules={n: Entry(n, "same") if n in kept else e for n, e in map_.modules.items()},
        paths={p: Entry(p, "same") if p in old else e for p, e in map_.paths.items()},
        symbols={n: e for n, e in map_.symbols.items() if not stays(n, e)},
    )
