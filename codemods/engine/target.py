"""The symbol table of the upstream tree, read once and kept in the cache folder."""

from __future__ import annotations

import hashlib
import os
import pickle
import sys
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from codemods.maps import symbols
from codemods.maps.symbols import SymbolTable
from codemods.upstream import cache_folder

_KEPT = 8


@lru_cache(maxsize=2)
def target_table(root: Path) -> SymbolTable:
    """The symbol table of an upstream tree; a tree with the same files is not parsed twice.

    A cache that cannot be read or written is done without.
    """
    path = cache_folder() / f"symbols-{_digest(root)}.pickle"
    try:
        table = pickle.loads(path.read_bytes())
        if isinstance(table, SymbolTable):
            return table
    except Exception:  # no such file, or one that is no whole pickle of this version
        pass
    table = SymbolTable.from_folder(root)
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_suffix(f".{os.getpid()}")
        scratch.write_bytes(pickle.dumps(table, pickle.HIGHEST_PROTOCOL))
        os.replace(scratch, path)
        kept = sorted(path.parent.glob("symbols-*.pickle"), key=lambda p: p.stat().st_mtime)
        for stale in kept[:-_KEPT]:
            stale.unlink()
    return table


def _digest(root: Path) -> str:
    """Names all that the table follows from: the tree's Python files, the reader, Python itself."""
    state = hashlib.sha256(sys.version.encode() + Path(symbols.__file__).read_bytes())
    for path in sorted(symbols.python_files(root)):
        with suppress(OSError):
            data = (root / path).read_bytes()
            state.update(f"{path}\0{len(data)}\0".encode("utf-8", "surrogateescape") + data)
    return state.hexdigest()[:32]
