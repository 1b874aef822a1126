"""A small package in both layouts that runs, so that a program can be run before and after its migration.

Every value is the same text in both layouts and every module's `IDENT` is its new name; what a program
shows of them must not change.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Mapping, Sequence

from codemods.engine.project import Options
from codemods.maps.model import Entry, MoveMap, TreeId
from codemods.rules import moves
from migration_tests.support import Outcome, rewrite_with_map

PROGRAM = "tools/program.py"

# Old module → new module. The first four are packages.
MOVES = {
    "MaxText": "maxtext",
    "MaxText.layers": "maxtext.layers",
    "MaxText.sft": "maxtext.trainers.sft",
    "MaxText.multimodal": "maxtext.multimodal",
    "MaxText.max_utils": "maxtext.utils.max_utils",
    "MaxText.pyconfig": "maxtext.configs.pyconfig",
    "MaxText.optimizers": "maxtext.optimizers.optimizers",
    "MaxText.multimodal_utils": "maxtext.multimodal.processor_llama4",
    "MaxText.multimodal.utils": "maxtext.multimodal.utils",
    "MaxText.sft_trainer": "maxtext.trainers.train_native",
    "MaxText.sft.sft_trainer": "maxtext.trainers.sft.train_sft",
    "MaxText.layers.moe": "maxtext.layers.moe",
    "MaxText.layers.gemma": "maxtext.models.gemma",
    "MaxText.layers.embeddings": "maxtext.layers.embeddings",
    "MaxText.layers.models": "maxtext.models.models",
}
PACKAGES = ("MaxText", "MaxText.layers", "MaxText.sft", "MaxText.multimodal")

OLD_TEXT = {
    "MaxText": "from MaxText import pyconfig, multimodal_utils, optimizers, sft_trainer\n"
    "from MaxText.layers import models, gemma, moe, embeddings\n"
    "from MaxText.sft import sft_trainer as _sft\n"
    "from MaxText.multimodal import utils as _utils\nTransformer = models.Transformer\n",
    "MaxText.max_utils": "show = 'show'\ndevices = 'devices'\n",
    "MaxText.pyconfig": "from MaxText import max_utils\ninitialize = 'initialize'\n",
    "MaxText.optimizers": "get = 'get'\n",
    "MaxText.multimodal_utils": "load = 'load'\ncrop = 'crop'\nresize = 'resize'\ngone = 'gone'\n",
    "MaxText.multimodal.utils": "mask = 'mask'\n",
    "MaxText.sft_trainer": "loop = 'native loop'\n",
    "MaxText.sft.sft_trainer": "loop = 'loop'\n",
    "MaxText.layers.moe": "RoutedMoE = 'RoutedMoE'\n",
    "MaxText.layers.gemma": "from MaxText.layers.moe import RoutedMoE\nGemma = 'Gemma'\n",
    "MaxText.layers.embeddings": "OldRope = 'Rope'\nEmbed = 'Embed'\n",
    "MaxText.layers.models": "Transformer = 'Transformer'\n",
}
NEW_TEXT = {
    "maxtext": "__all__ = ['Transformer', 'pyconfig']\n"
    "def __getattr__(name):\n"
    "  if name == 'Transformer':\n    from maxtext.models.models import Transformer\n    return Transformer\n"
    "  if name == 'pyconfig':\n    from maxtext.configs import pyconfig\n    return pyconfig\n"
    "  raise AttributeError(name)\n",
    "maxtext.utils.max_utils": "show = 'show'\ndevices = 'devices'\n",
    "maxtext.configs.pyconfig": "initialize = 'initialize'\n",
    "maxtext.optimizers.optimizers": "get = 'get'\n",
    "maxtext.multimodal.processor_llama4": "resize = 'resize'\n",
    "maxtext.multimodal.processor": "trim = 'crop'\n",
    "maxtext.multimodal.utils": "mask = 'mask'\nload = 'load'\n",
    "maxtext.trainers.train_native": "loop = 'native loop'\n",
    "maxtext.trainers.sft.train_sft": "loop = 'loop'\n",
    "maxtext.layers.moe": "RoutedMoE = 'RoutedMoE'\n",
    "maxtext.models.gemma": "from maxtext.layers.moe import RoutedMoE\nGemma = 'Gemma'\n",
    "maxtext.layers.embeddings": "Rope = 'Rope'\nEmbed = 'Embed'\n",
    "maxtext.models.models": "Transformer = 'Transformer'\n",
}
RENAMED = {
    "MaxText.multimodal_utils.load": "maxtext.multimodal.utils.load",
    "MaxText.multimodal_utils.crop": "maxtext.multimodal.processor.trim",
    "MaxText.layers.embeddings.OldRope": "maxtext.layers.embeddings.Rope",
}
DELETED = "MaxText.multimodal_utils.gone"


def _path(module: str, package: bool) -> str:
    return f"src/{module.replace('.', '/')}{'/__init__.py' if package else '.py'}"


def _kept(old: str) -> tuple[str, ...]:
    names = [line.split(" = ")[0] for line in OLD_TEXT.get(old, "").splitlines() if " = '" in line]
    return tuple(n for n in names if f"{old}.{n}" not in {*RENAMED, DELETED})


OLD = {_path(m, m in PACKAGES): OLD_TEXT.get(m, "") for m in MOVES}
NEW = {
    _path(m, m in {MOVES[p] for p in PACKAGES}): NEW_TEXT.get(m, "")
    for m in {*MOVES.values(), "maxtext.multimodal.processor"}
}
MAP = MoveMap(
    TreeId("old"),
    TreeId("new"),
    modules={
        old: Entry(new, "split" if old == "MaxText.multimodal_utils" else "moved")
        for old, new in MOVES.items()
    },
    paths={
        "tests/moe_test.py": Entry("tests/unit/moe_test.py", "moved"),
        **{
            _path(old, old in PACKAGES): Entry(_path(new, old in PACKAGES), "moved")
            for old, new in MOVES.items()
        },
    },
    symbols={
        **{old: Entry(new, "moved") for old, new in RENAMED.items()},
        DELETED: Entry(None, "deleted", ("0123456789",)),
    },
    kept={old: _kept(old) for old in MOVES},
    folders={"src/MaxText": "src/maxtext", "tests": "tests/unit"},
)


class _Modules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports a layout's modules from their texts."""

    def __init__(self, texts: Mapping[str, str], root: str) -> None:
        self.texts = {
            path.removeprefix("src/")
            .removesuffix(".py")
            .removesuffix("/__init__")
            .replace("/", "."): t
            for path, t in texts.items()
        }
        self.root = root

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        package = any(known.startswith(f"{name}.") for known in self.texts)
        if name.split(".")[0] != self.root or not (package or name in self.texts):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=package)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        module.__dict__["IDENT"] = MOVES.get(module.__name__, module.__name__)
        exec(self.texts.get(module.__name__, ""), module.__dict__)


def _shown(value: object) -> str:
    if isinstance(value, types.ModuleType):
        return f"module {value.__dict__.get('IDENT', value.__name__)}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_shown, value))}]"
    return str(value)


def run(program: str, texts: Mapping[str, str], root: str) -> list[str]:
    """Run a program on one layout.

    Returns:
        What it gave to its function `show`, a line a call; the exception that ended it comes last.
    """
    finder = _Modules(texts, root)
    lines: list[str] = []
    kept = {n: m for n, m in sys.modules.items() if n.split(".")[0] == root}
    for name in kept:
        del sys.modules[name]
    sys.meta_path.insert(0, finder)
    try:
        exec(
            compile(program, PROGRAM, "exec", dont_inherit=True),
            {"__name__": "program", "show": lambda *values: lines.append(_shown(values))},
        )
    except Exception as error:  # whatever the program does is compared
        lines.append(f"{type(error).__name__}: {error}")
    finally:
        sys.meta_path.remove(finder)
        for name in [n for n in sys.modules if n.split(".")[0] == root]:
            del sys.modules[name]
        sys.modules.update(kept)
    return lines


def migrate(
    program: str,
    path: str = PROGRAM,
    extra: Mapping[str, str] | None = None,
    options: Options | None = None,
) -> tuple[str, Outcome]:
    """Migrate a program beside the old package; a second run must change nothing.

    Args:
        program: its text.
        path: where it lies in the checkout.
        extra: more files of the checkout.
        options: the user's choices.
    """
    files = {**OLD, **(extra or {}), path: program}
    first = rewrite_with_map(files, MAP, NEW, names={}, options=options)
    placed = moves.place(files, MAP, (), lambda p: files[p].encode(), lambda p: True)
    new = first.texts[placed[path].new or ""]
    compile(new, path, "exec", dont_inherit=True)
    second = rewrite_with_map(first.texts, MAP, NEW, names={}, options=options)
    assert second.texts == first.texts
    return new, first


def same(program: str) -> tuple[str, Outcome]:
    """Migrate a program that runs in the old layout; in the new one it must show the same."""
    before = run(program, OLD, "MaxText")
    new, outcome = migrate(program)
    assert run(new, NEW, "maxtext") == before, new
    return new, outcome
