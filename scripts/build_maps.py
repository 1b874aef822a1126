#!/usr/bin/env python3
"""Build the maps that ship with this program, and the list of the targets' files.

python scripts/build_maps.py GITDIR
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from codemods.errors import UserError
from codemods.maps import model, select
from codemods.maps.build import build, open_tree
from codemods.maps.gitstore import GitStore

BASES = ("d4ed2261", "7026b75c", "0.1.0")
TARGETS = ("1e97f2e9", "e591f30c", "0.2.5")


def main(arguments: list[str]) -> int:
    """Write every map and the targets' fingerprints."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print(__doc__)
        return 0 if arguments == ["--help"] else 2
    repository = Path(arguments[0])
    with GitStore(repository) as store:
        trees = {
            label: {
                path: blob[:10]
                for path, blob in sorted(open_tree(store, label).files.items())
                if path.endswith(".py") and path.startswith("src/")
            }
            for label in TARGETS
        }
    text = json.dumps(trees, indent=0, separators=(",", ":")) + "\n"
    select.TARGETS.write_bytes(gzip.compress(text.encode(), mtime=0))
    for base in BASES:
        for target in TARGETS:
            path = select.DATA / f"{base}--{target}.json.gz"
            model.dump(build(repository, base, target), path)
            print(f"{path.name}: {path.stat().st_size} bytes", flush=True)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
