#!/usr/bin/env python3
"""Check the shipped maps against upstream's own imports; print the figures and every disagreement.

python scripts/check_maps.py GITDIR [MAP…]
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from codemods.errors import UserError
from codemods.maps import agreement, model, select

LEAST = 0.99

# Why upstream and the map differ on these, each looked up in both trees.
EXPLAINED = {
    "MaxText.utils.ckpt_conversion.utils.utils.apply_hook_fns": (
        "the target defines it in both modules, word for word; upstream's importer turned to the newer one"
    ),
    "MaxText.kernels.megablox.gmm": (
        "a module and a function share this name; the package binds the function, only its own ops.py, "
        "imported half-way through, gets the module"
    ),
    "MaxText.kernels.megablox.gmm.gmm": (
        "upstream's test turned to the package's differentiable wrapper; the map gives the same function"
    ),
}


def main(arguments: list[str]) -> int:
    """Check each map; 0 if all agree on at least 99 % of the names, the rest is explained, and all that they
    point at exists."""
    if not arguments or arguments[0].startswith("-"):
        print(__doc__)
        return 0 if arguments else 2
    repository = Path(arguments[0])
    good = True
    for path in [Path(a) for a in arguments[1:]] or select.shipped():
        map_ = model.load(path)
        found = agreement.check(repository, map_)
        entries = len(map_.symbols) + sum(len(n) for n in map_.kept.values())
        print(
            f"{map_.base.label} -> {map_.target.label}: {found.agreed} of {found.bound} names agree "
            f"({found.share:.2%}); {found.imported} imported in {found.files} files, {found.dropped} no "
            f"longer bound, {found.stale} bound to what the target lacks; {entries} names, "
            f"{len(map_.modules)} modules, {len(map_.paths)} paths: {len(found.missing)} point at "
            f"nothing, {len(found.collisions)} collisions"
        )
        for item in found.disagreements:
            print(
                f"  {item.path}: {item.old} as {item.bound}: upstream {', '.join(item.upstream)}; "
                f"map {item.ours} [{EXPLAINED.get(item.old, 'not explained')}]"
            )
        for line in found.missing:
            print(f"  points at nothing: {line}")
        for line in found.collisions:
            print(f"  collision: {line}")
        explained = all(item.old in EXPLAINED for item in found.disagreements)
        good &= explained and found.share >= LEAST and not found.missing and not found.collisions
    return 0 if good else 1


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
