"""Lays a migrated tree over an upstream tree: the fork's modules at their new paths, upstream's everywhere else.

A fork's module and upstream's can have the same path. The fork's stands, since it is what is compared; a name that it lacks is
taken from upstream's, which stays importable beside it. Packages that the fork has modules in get an empty `__init__.py`: those
of either tree import modules that may not go together.
"""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

from codemods.errors import UserError

PACKAGE = "maxtext"
FALLBACK = "parity_fallback"
_FALLBACK_SOURCE = '''"""Names that a module of the fork lacks, from upstream's module of the same path."""
import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).parent / "upstream"
taken = []


def of(module):
  def get(name):
    if name.startswith("__"):
      raise AttributeError(name)
    other = "parity_upstream." + module
    if other not in sys.modules:
      path = ROOT.joinpath(*module.split(".")).with_suffix(".py")
      spec = importlib.util.spec_from_file_location(other, path)
      sys.modules[other] = importlib.util.module_from_spec(spec)
      try:
        spec.loader.exec_module(sys.modules[other])
      except ImportError as error:
        del sys.modules[other]
        raise AttributeError(f"module {module!r} has no attribute {name!r}, and upstream's cannot be imported: {error}") from None
    if not hasattr(sys.modules[other], name):
      raise AttributeError(f"module {module!r} has no attribute {name!r}, and upstream's has none either")
    taken.append(f"{module}.{name}")
    return getattr(sys.modules[other], name)

  return get
'''


@dataclasses.dataclass(frozen=True)
class Merged:
    """What a merged tree is made of: paths below the package's folder."""

    root: Path
    of_fork: tuple[str, ...]
    over_upstream: tuple[str, ...]


def lay_over(migrated: Path, overlay: Path, out: Path) -> Merged:
    """Makes the tree.

    Args:
        migrated: what `ling2-migrate run` has written.
        overlay: what `ling2-migrate overlay` has written.
        out: a folder that does not exist yet.

    Raises:
        UserError: one of the trees has no package `maxtext`.
    """
    from target.integration import NEW_FILES

    fork, upstream = package_of(migrated), package_of(overlay)
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(upstream, out / PACKAGE, ignore=ignore)
    (out / f"{FALLBACK}.py").write_text(_FALLBACK_SOURCE, encoding="utf-8")
    of_fork, over = [], []
    for source in sorted(fork.rglob("*")):
        relative = source.relative_to(fork)
        place = out / PACKAGE / relative
        if not source.is_file() or "__pycache__" in relative.parts:
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix != ".py":
            shutil.copyfile(source, place)
            continue
        place.with_name("__init__.py").write_text("", encoding="utf-8")
        if source.name == "__init__.py":
            continue
        of_fork.append(str(relative))
        text = source.read_bytes()
        if (upstream / relative).is_file():
            over.append(str(relative))
        # Ling2's own modules lend nothing: the fork's are to be compared with them.
        if (upstream / relative).is_file() and not (NEW_FILES / relative).is_file():
            beside = out / "upstream" / PACKAGE / relative
            beside.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(upstream / relative, beside)
            text += f'\n__getattr__ = __import__("{FALLBACK}").of(__name__)\n'.encode()
        place.write_bytes(text)
    return Merged(out, tuple(of_fork), tuple(over))


def package_of(tree: Path) -> Path:
    """Returns the folder of the package `maxtext` in a tree.

    Raises:
        UserError: there is none.
    """
    for parent in (tree / "src", tree):
        if (parent / PACKAGE).is_dir():
            return parent / PACKAGE
    raise UserError(f"{tree}: has no package {PACKAGE}, neither in src/ nor at the top")
