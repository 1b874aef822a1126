"""Symbolic links: what each must say in the migrated tree, and which a person has to look at."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from codemods.engine.discover import Checkout
from codemods.engine.project import NEW_ROOT, OLD_ROOT, Placement


@dataclass(slots=True)
class Links:
    """What becomes of the links of a checkout.

    Attributes:
        texts: link → what it says in the output, for those that say something new there.
        listed: link → why a person has to look at it.
        left_out: links that are not in the output, since a folder takes their place.
    """

    texts: dict[str, str] = field(default_factory=dict)
    listed: dict[str, str] = field(default_factory=dict)
    left_out: set[str] = field(default_factory=set)


def settle_links(checkout: Checkout, placements: Mapping[str, Placement]) -> Links:
    """Point each link inside the tree at its target's new place, from its own new place.

    Args:
        checkout: the tree with its links.
        placements: every file and link of the checkout → where it goes.
    """
    links = Links()
    folders = {
        parent.as_posix()
        for placement in placements.values()
        if placement.new is not None
        for parent in PurePosixPath(placement.new).parents
    }
    top = os.path.realpath(checkout.root)
    for found in checkout.files:
        new = placements[found.path].new
        if found.kind not in ("link", "outside") or new is None:
            continue
        full = checkout.root / found.path
        text = os.readlink(full)
        if new in folders:
            links.left_out.add(found.path)
            links.listed[found.path] = f"a link (to `{text}`) whose place the folder `{new}` takes"
        elif found.kind == "outside":
            links.listed[found.path] = f"a link that leads out of the tree (to `{text}`)"
        elif not os.path.exists(full):
            links.listed[found.path] = f"a link that leads to nothing (to `{text}`)"
        else:
            end = os.path.relpath(os.path.realpath(full), top).replace(os.sep, "/")
            _settle(links, found.path, text, end, new, placements)
    return links


def _settle(
    links: Links, path: str, text: str, end: str, new: str, placements: Mapping[str, Placement]
) -> None:
    new_end = _new_place(end, placements)
    if new_end is None:
        links.listed[path] = (
            f"a link whose target (`{end}`) is not in the output as one file or folder"
        )
        return
    named = PurePosixPath(os.path.normpath(os.path.join(os.path.dirname(path), text)))
    on_the_way = [str(step) for step in (named, *named.parents) if str(step) in placements]
    if new == path and new_end == end and all(placements[s].new == s for s in on_the_way):
        return
    links.texts[path] = os.path.relpath(new_end, os.path.dirname(new) or ".").replace(os.sep, "/")


def _new_place(end: str, placements: Mapping[str, Placement]) -> str | None:
    """Where a file or folder of the checkout is in the output; None if it is not there as one."""
    if end == ".":
        return end
    placement = placements.get(end)
    if placement is not None:
        return placement.new
    places: set[str | None] = set()
    for path, inner in placements.items():
        if path.startswith(f"{end}/") and inner.new is not None:
            rest = path[len(end) :]
            places.add(inner.new[: -len(rest)] if inner.new.endswith(rest) else None)
    if (
        len(places) > 1 and PurePosixPath(end).name == OLD_ROOT
    ):  # its files spread, the package is one folder
        return PurePosixPath(end).with_name(NEW_ROOT).as_posix()
    return places.pop() if len(places) == 1 else None


def without(placements: Mapping[str, Placement], left_out: set[str]) -> dict[str, Placement]:
    """The placements with some entries kept out of the output."""
    return {
        path: replace(placement, new=None) if path in left_out else placement
        for path, placement in placements.items()
    }
