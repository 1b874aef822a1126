"""Imports of `maxtext.…` modules that are here, whether upstream's package is installed, loaded, or not there at all."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

PACKAGE = "maxtext"
NEW_FILES = Path(__file__).parent / PACKAGE


def target_module(name: str) -> ModuleType:
    """Import a module of target/, such as "maxtext.common.ling2_layers".

    Upstream's package needs JAX and takes seconds to load, and the modules imported so need nothing of it. So if no
    `maxtext` is loaded, target/ alone is it. If one is, upstream's or an overlay, its modules stay what they are, and
    those that it lacks are found in target/.

    Args:
        name: the module.

    Raises:
        ImportError: the module, or one that it imports, is not there.
    """
    if PACKAGE not in sys.modules:
        package = ModuleType(PACKAGE)
        package.__path__ = [str(NEW_FILES)]
        sys.modules[PACKAGE] = package
    elif _Finder not in sys.meta_path:
        sys.meta_path.append(_Finder)
    return importlib.import_module(name)


class _Finder:
    """Finds modules in target/ that no other finder has found."""

    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        top, *folders, _ = fullname.split(".") if "." in fullname else (fullname, "")
        if top != PACKAGE or path is None:
            return None
        return PathFinder.find_spec(fullname, [str(NEW_FILES.joinpath(*folders))], target)
