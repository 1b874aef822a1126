"""Imports, their uses and dotted strings: programs that run in both layouts, texts, and what is listed."""

from __future__ import annotations

import random
import re
from pathlib import Path
from textwrap import dedent

import pytest

from codemods.engine.project import Options
from migration_tests.support import migrate_files
from migration_tests.unit.two_layouts import MAP, NEW, OLD, PROGRAM, migrate, run, same

# Programs that must show the same in both layouts, with nothing listed.
PROGRAMS = {
    "modules and symbols": """
        from MaxText import max_utils, optimizers, pyconfig as p
        from MaxText.layers.moe import RoutedMoE as M
        show(max_utils, optimizers.get, p.initialize, M)
    """,
    "submodules bound by what the package imports": """
        import MaxText.max_utils
        show(MaxText.max_utils.show, MaxText.optimizers.get, MaxText.layers.gemma.Gemma)
    """,
    "the root under another name": """
        import MaxText as mt
        show(mt.max_utils, mt.layers.moe.RoutedMoE, mt.Transformer, mt.pyconfig)
    """,
    "submodules of a package that loads none": """
        from MaxText import layers
        show(layers.moe.RoutedMoE, layers.gemma.Gemma)
    """,
    "an import in one function does not serve another": """
        def f():
          import MaxText.max_utils
          return MaxText.max_utils
        def g():
          import MaxText.layers.gemma
          return MaxText.max_utils, MaxText.layers.gemma
        show(g(), f())
    """,
    "attributes of a module that was split": """
        from MaxText import multimodal_utils as mm
        def f(utils, processor=mm.crop):
          return mm.load, mm.resize, utils, processor
        show(f(1))
    """,
    "a class takes over an imported name": """
        from MaxText.layers.embeddings import OldRope
        class A:
          OldRope = OldRope
          def f(self):
            return OldRope, self.OldRope
        show(A().f())
    """,
    "names imported in a class are its attributes": """
        class A:
          from MaxText.layers.embeddings import OldRope
          from MaxText import multimodal_utils
          from MaxText.sft import sft_trainer
          loaded = multimodal_utils.load
        show(A.OldRope, A.loaded, A().sft_trainer)
    """,
    "a comprehension in a class does not see the class": """
        from MaxText.layers import moe
        class C:
          moe = 3
          inner = [moe for _ in (1,)]
          outer = [m for m in (moe,)]
        show(C.inner, C.outer)
    """,
    "globals by name": """
        from MaxText.layers.embeddings import OldRope
        from MaxText import sft_trainer
        show(globals()["OldRope"], eval("sft_trainer.loop"), "OldRope" in globals())
    """,
    "global and nonlocal": """
        from MaxText.sft import sft_trainer
        def f():
          global sft_trainer
          from MaxText import sft_trainer
          def g():
            nonlocal_ = sft_trainer
            return nonlocal_
          return g()
        show(f(), sft_trainer)
    """,
    "two modules with one new leaf": """
        utils = 5
        from MaxText.multimodal import utils as mm_utils
        from MaxText import multimodal_utils
        show(utils, mm_utils, multimodal_utils.load)
    """,
    "two modules with one old leaf": """
        import MaxText.sft_trainer, MaxText.sft.sft_trainer
        from MaxText import sft_trainer
        def f():
          from MaxText.sft import sft_trainer
          return sft_trainer
        show(sft_trainer, f(), MaxText.sft_trainer.loop, MaxText.sft.sft_trainer.loop)
    """,
    "the new root is taken": """
        maxtext = 3
        import MaxText.max_utils
        show(MaxText.max_utils, maxtext)
    """,
    "shadowed by parameters, lambdas, comprehensions, captures": """
        import MaxText.max_utils
        from MaxText import multimodal_utils as mm
        class N:
          max_utils = 7
        def f(MaxText, *mm, **k):
          match MaxText:
            case mm:
              return MaxText.max_utils, mm.max_utils
        show(f(N), [mm for mm in (1,)], (lambda mm: mm)(2), mm.load)
    """,
    "every block": """
        try:
          from MaxText import max_utils, optimizers
        except ImportError:
          max_utils = None
        else:
          from MaxText import (pyconfig,
            sft_trainer)
        finally:
          from MaxText import multimodal_utils as m, optimizers as o
        if 1: from MaxText import max_utils as u, optimizers as v; show(u, v)
        for _ in (1,): from MaxText.layers import gemma, moe
        show(max_utils, optimizers, pyconfig, sft_trainer, m.load, o, gemma, moe)
    """,
    "star import of a module that was split": """
        from MaxText.multimodal_utils import *
        show(load, crop, resize)
    """,
    "star import of a package brings its loaded modules": """
        from MaxText import *
        show(max_utils, pyconfig, Transformer)
    """,
    "import_module": """
        from importlib import import_module
        show(import_module("MaxText.sft_trainer"), import_module(".gemma", "MaxText.layers"))
        show(import_module(".moe", package="MaxText.layers"), import_module("MaxText").__name__ != "")
        show(import_module(name="MaxText.sft.sft_trainer"))
    """,
    "import_module relative to a constant": """
        from importlib import import_module
        BASE = "MaxText.layers"
        show(import_module(".gemma", BASE), import_module(".moe", package=BASE), import_module(BASE))
    """,
    "uses do not hang on an import for types": """
        TYPE_CHECKING = False
        if TYPE_CHECKING:
          import MaxText.layers.moe
        import MaxText.max_utils
        show(MaxText.pyconfig.initialize, MaxText.max_utils)
    """,
    "loaded modules whose names are still there": """
        from importlib import import_module
        m = import_module("MaxText.max_utils")
        show(m.show, import_module("MaxText.layers.gemma").Gemma, getattr(m, "devices"))
        import_module("MaxText.multimodal_utils")
    """,
    "sys.modules": """
        import sys, MaxText.max_utils
        show(sys.modules["MaxText.max_utils"], "MaxText" in sys.modules, sys.modules.get("MaxText") is None)
    """,
    "__import__ with a list": """
        show(__import__("MaxText.layers", fromlist=["moe"]).moe, __import__("MaxText.sft_trainer", None, None, ["loop"]).loop)
    """,
    "a module under a second name": """
        from MaxText import max_utils
        a = max_utils
        b = a
        show(b.show, a)
    """,
    "names handed on through the checkout's modules": """
        from MaxText.layers.gemma import RoutedMoE, Gemma
        from MaxText import Transformer
        show(RoutedMoE, Gemma, Transformer)
    """,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_shows_the_same(name: str) -> None:
    new, outcome = same(dedent(PROGRAMS[name]).lstrip("\n"))
    assert not re.search(r"(?:from|import) MaxText", new)
    assert [s for s in outcome.sites if s.file == PROGRAM and s.rule.startswith("IMP")] == []


# Programs that cannot be carried over whole: the line that says so.
LISTED = {
    "a split module passed on": ("from MaxText import multimodal_utils\nf(multimodal_utils)\n", 2),
    "a split module assigned": (
        "from MaxText import multimodal_utils as m\nn = m\nn.resize\nn.load\n",
        4,
    ),
    "the root passed on": ("import MaxText\nf(MaxText)\n", 2),
    "the root assigned": ("import MaxText\nmt = MaxText\nmt.max_utils\n", 3),
    "the root by a parameter's default": ("import MaxText\ndef f(m=MaxText): ...\n", 2),
    "getattr": ('import MaxText.layers\ngetattr(MaxText.layers, "gemma")\n', 2),
    "getattr of a name that is not written out": (
        "from MaxText import multimodal_utils\ngetattr(multimodal_utils, name)\n",
        2,
    ),
    "bound by an import of something else too": (
        "import MaxText.max_utils\nfrom MaxText.layers import moe as MaxText\nMaxText.max_utils\n",
        3,
    ),
    "deleted": ("from MaxText.multimodal_utils import gone\n", 1),
    "deleted, as an attribute": (
        "from MaxText import multimodal_utils\nmultimodal_utils.gone\n",
        2,
    ),
    "unknown": ("from MaxText.layers import no_such_module\n", 1),
    "a relative import out of the tree": ("from ....MaxText import max_utils\n", 1),
    "__import__ gives the root": ('x = __import__("MaxText.max_utils").max_utils\n', 1),
    "__import__ of what has moved": ('x = __import__("MaxText", fromlist=["max_utils"])\n', 1),
    "import_module of any name": ('import_module(name, package="MaxText.layers")\n', 1),
    "import_module of an unknown name": (
        'import_module(".nothing", package="MaxText.layers")\n',
        1,
    ),
    "a loaded module's attribute": ('import_module("MaxText.layers").gemma.Gemma\n', 1),
    "getattr of a loaded module": ('getattr(import_module("MaxText.layers"), "gemma")\n', 1),
    "a loaded module under a name": ('m = importorskip("MaxText.multimodal_utils")\nm.load\n', 2),
    "an entry of sys.modules": ('sys.modules["MaxText.layers"].gemma\n', 1),
    "through the folder src": ("from src.MaxText.layers import moe\n", 1),
    "through the folder src, whole": ("import src.MaxText.max_utils\n", 1),
    "literals side by side": ('x = "MaxText.layers." "moe"\n', 1),
    "a sum": ('x = "MaxText" + ".layers"\n', 1),
    "a longer sum": ('x = a + "MaxText" + ".layers" + b\n', 1),
    "a prefix": ('x.startswith("MaxText.")\n', 1),
    "percent": ('x = "MaxText.%s" % y\n', 1),
    "percent with a constant": ('N = "MaxText.layers"\nx = "%s.moe" % N\n', 2),
    "format": ('x = "MaxText.layers.{}".format(y)\n', 1),
    "format with a constant": ('N = "MaxText.layers"\nx = "{}.moe".format(N)\n', 2),
    "join": ('x = ".".join(["MaxText", y])\n', 1),
    "f-string": ('x = f"MaxText.layers.{y}"\n', 1),
    "f-string beside a literal": ('x = "MaxText." f"{y}"\n', 1),
    "f-string with a constant": ('N = "MaxText.layers"\nx = f"{N}.moe"\n', 2),
    "f-string with the root": ('N = "MaxText"\nx = f"{N}.moe"\n', 2),
    "a pattern": ('x = re.compile(r"MaxText\\.layers\\..*")\n', 1),
    "the root's logger": ('logging.getLogger("MaxText")\n', 1),
    "bytes": ('x = b"MaxText.max_utils"\n', 1),
}


@pytest.mark.parametrize("name", LISTED)
def test_what_cannot_follow_is_listed(name: str) -> None:
    text, line = LISTED[name]
    path = "src/MaxText/layers/program.py" if text.startswith("from .") else PROGRAM
    assert migrate(text, path)[1].listed(path, line)


def test_a_deleted_name_is_listed_with_its_commit() -> None:
    _, outcome = migrate("from MaxText.multimodal_utils import gone\n")
    (site,) = outcome.listed(PROGRAM, 1)
    assert "0123456789" in site.reason


LEFT_ALONE = {
    "other packages": "from MaxTextX import a\nfrom my.MaxText import b\nimport my.MaxText.train\n",
    "attributes": "x.MaxText.max_utils\nself.MaxText\nf(MaxText=1)\n",
    "strings of other names": 'x = ("MaxTextX.train", "my.MaxText.train", "The MaxText. Foo", "MaxText")\n',
    "the product's name": 'N = "MaxText"\nx = f"{N} is fast", N + " is", "%s" % N, "{}!".format(N)\n',
    "files": 'x = "tools.rst"\n',
}


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_look_alikes_are_left_alone(name: str) -> None:
    new, outcome = migrate(LEFT_ALONE[name])
    assert new == LEFT_ALONE[name]
    assert not [s for s in outcome.sites if s.file == PROGRAM and s.rule.startswith("IMP")]


REWRITTEN = {
    "comments of a split statement": (
        """\
from MaxText import (  # opening
    # before
    max_utils,  # beside
    optimizers,
    pyconfig,  # last
    # below
)  # closing
""",
        """\
from maxtext.utils import (  # opening
    # before
    max_utils,  # beside
)
from maxtext.optimizers import optimizers
from maxtext.configs import (
    pyconfig,  # last
    # below
)  # closing
""",
    ),
    "a linter's comment at the opening bracket": (
        "from MaxText import (  # pylint: disable=x\n  max_utils, optimizers)\n",
        "from maxtext.utils import (  # pylint: disable=x\n  max_utils,\n)\n"
        "from maxtext.optimizers import (  # pylint: disable=x\n  optimizers,\n)\n",
    ),
    "the comment of a name that goes": (
        "from MaxText import (\n  multimodal_utils,  # images\n  max_utils,\n)\nmultimodal_utils.load\n",
        "from maxtext.multimodal import (\n  utils,  # images\n)\nfrom maxtext.utils import max_utils\nutils.load\n",
    ),
    "comments behind a semicolon": (
        "import os; from MaxText import (  # why\n  max_utils, optimizers)\n",
        "import os; from maxtext.utils import (  # why\n  max_utils,\n); from maxtext.optimizers import optimizers\n",
    ),
    "two old names become one": (
        "from MaxText.layers.embeddings import (\n  OldRope,  # one\n  Embed,\n)\nOldRope\n",
        "from maxtext.layers.embeddings import (\n  Rope,  # one\n  Embed,\n)\nRope\n",
    ),
    "tabs and CRLF": (
        "if 1:\r\n\tfrom MaxText import (\r\n\t\tmax_utils, # a\r\n\t\toptimizers,\r\n\t)\r\n",
        "if 1:\r\n\tfrom maxtext.utils import (\r\n\t\tmax_utils,  # a\r\n\t)\r\n"
        "\tfrom maxtext.optimizers import optimizers\r\n",
    ),
    "backslashes": (
        "from\\\n  MaxText\\\n  import max_utils\n",
        "from\\\n  maxtext.utils\\\n  import max_utils\n",
    ),
    "quoted types": (
        """\
from typing import Annotated, Literal, TypeAlias, TypeVar, cast
from MaxText.layers.embeddings import OldRope
a: Annotated["OldRope", "OldRope"]
b: Literal["OldRope"]
c: "list['OldRope']" = cast("OldRope", a)
T = TypeVar("T", bound="OldRope")
A: TypeAlias = "dict[str, OldRope]"
d = []  # type: list[OldRope]
def f[U: "OldRope"](x, y):
  # type: (OldRope, *int) -> OldRope
  return x
class G(Base["OldRope"]): ...
""",
        """\
from typing import Annotated, Literal, TypeAlias, TypeVar, cast
from maxtext.layers.embeddings import Rope
a: Annotated["Rope", "OldRope"]
b: Literal["OldRope"]
c: "list['Rope']" = cast("Rope", a)
T = TypeVar("T", bound="Rope")
A: TypeAlias = "dict[str, Rope]"
d = []  # type: list[Rope]
def f[U: "Rope"](x, y):
  # type: (Rope, *int) -> Rope
  return x
class G(Base["Rope"]): ...
""",
    ),
    "names handed on by __all__ keep their name": (
        "from MaxText.layers.embeddings import OldRope\n__all__ = []\n__all__.append('OldRope')\n",
        "from maxtext.layers.embeddings import Rope as OldRope\n__all__ = []\n__all__.append('OldRope')\n",
    ),
    "__file__ of the package": (
        "import MaxText\nMaxText.__file__\n",
        "import maxtext\nmaxtext.__file__\n",
    ),
    "from the repository's root, in a string": (
        'x = "src.MaxText.max_utils"\n',
        'x = "src.maxtext.utils.max_utils"\n',
    ),
    "patched names": (
        """\
@patch("MaxText.layers.gemma.RoutedMoE")
@patch("MaxText.multimodal_utils.load")
@patch(new=1, target="MaxText.pyconfig.max_utils.show")
@patch.dict("sys.modules", {"MaxText": None, "MaxText.max_utils": None})
def test(*_): ...
""",
        """\
@patch("maxtext.models.gemma.RoutedMoE")
@patch("maxtext.multimodal.utils.load")
@patch(new=1, target="maxtext.configs.pyconfig.max_utils.show")
@patch.dict("sys.modules", {"maxtext": None, "maxtext.utils.max_utils": None})
def test(*_): ...
""",
    ),
}


@pytest.mark.parametrize("name", REWRITTEN)
def test_rewritten(name: str) -> None:
    before, after = REWRITTEN[name]
    new, outcome = migrate(before)
    assert new == after
    assert [s.rule for s in outcome.sites if s.file == PROGRAM] == []


def test_a_patched_module_that_lost_the_name_is_patched_where_it_is_now() -> None:
    extra = {"src/MaxText/own.py": "from MaxText import multimodal_utils\nmultimodal_utils.load\n"}
    text = (
        'patch("MaxText.own.multimodal_utils.load")\npatch("MaxText.own.multimodal_utils.resize")\n'
    )
    new, _ = migrate(text, extra=extra)
    assert new.splitlines()[0] == 'patch("maxtext.multimodal.utils.load")'


def test_names_handed_on_twice_are_followed_to_what_became_of_them() -> None:
    extra = {
        "src/MaxText/first.py": "from MaxText.multimodal_utils import load, crop as cut\n"
        "from MaxText.layers.embeddings import *\nimport MaxText.max_utils as mu\n",
        "src/MaxText/second.py": "from MaxText.first import *\n",
    }
    text = "from MaxText.second import load, cut, OldRope, mu\nshow(load, cut, OldRope, mu.show)\n"
    new, outcome = migrate(text, extra=extra)
    assert run(new, NEW, "maxtext") == run(text, {**OLD, **extra}, "MaxText")
    assert not [s for s in outcome.sites if s.file == PROGRAM]


@pytest.mark.parametrize(
    "text",
    [
        "try:\n  from maxtext.utils import max_utils\nexcept ImportError:\n  from MaxText import max_utils\n",
        "try:\n  import MaxText as mt\nexcept ImportError:\n  import maxtext as mt\n",
        "if new:\n  from maxtext.configs import pyconfig\nelse:\n  from MaxText import pyconfig\n",
    ],
)
def test_branches_that_import_the_same_are_listed(text: str) -> None:
    new, outcome = migrate(text)
    assert "MaxText" not in new
    assert [s.rule for s in outcome.sites if s.file == PROGRAM] == ["IMP024"]


def test_branches_that_import_different_things_are_not_listed() -> None:
    text = "try:\n  from MaxText import max_utils\nexcept ImportError:\n  max_utils = None\n"
    assert not [s for s in migrate(text)[1].sites if s.file == PROGRAM]


RELATIVE = {
    "with the file": ("from .moe import RoutedMoE\n", "from .moe import RoutedMoE\n"),
    "a sibling that went elsewhere": (
        "from . import moe, gemma\n",
        "from . import moe\nfrom maxtext.models import gemma\n",
    ),
    "one level up": ("from .. import max_utils\n", "from maxtext.utils import max_utils\n"),
    "one level up, by name": (
        "from ..sft.sft_trainer import loop\n",
        "from maxtext.trainers.sft.train_sft import loop\n",
    ),
    "dots with spaces": (
        "from . . max_utils import show\n",
        "from maxtext.utils.max_utils import show\n",
    ),
    "star": ("from .moe import *\nRoutedMoE\n", "from .moe import *\nRoutedMoE\n"),
    "star of a sibling that went elsewhere": (
        "from .gemma import *\nGemma\n",
        "from maxtext.models.gemma import *\nGemma\n",
    ),
    "import_module": (
        'import_module(".gemma", __package__)\nimport_module(".moe", __package__)\n',
        'import_module("maxtext.models.gemma", __package__)\nimport_module(".moe", __package__)\n',
    ),
}


def test_relative_from_a_test_that_moves_to_a_helper_that_stays() -> None:
    extra = {"tests/__init__.py": "", "tests/helper.py": "h = 1\n"}
    new, _ = migrate("from .helper import h\nfrom . import helper\n", "tests/own_test.py", extra)
    assert new == "from tests.helper import h\nfrom tests import helper\n"


@pytest.mark.parametrize("name", RELATIVE)
def test_relative(name: str) -> None:
    before, after = RELATIVE[name]
    assert migrate(before, "src/MaxText/layers/own.py")[0] == after


def test_a_statement_that_is_right_is_not_split_for_a_name_that_is_listed() -> None:
    extra = {"src/MaxText/own/__init__.py": "", "src/maxtext/own/here.py": "A = 1\n"}
    text = "from maxtext.own.here import A, no_such_name\n"
    assert migrate(text, extra=extra)[0] == text


@pytest.mark.parametrize(
    ("names", "proven"),
    [
        ('__all__ = ["Embed"] + ["x"]', True),
        ('__all__: list[str] = ["Embed"]', True),
        ('__all__ = ["Embed"]\n__all__.extend(["x"])\n__all__ += ["y"]', True),
        ('__all__ = ["OldRope"]', False),
        ('__all__ = ["Embed"]\n__all__.extend(["OldRope"])', False),
        ('__all__ = other.__all__ + ["Embed"]', False),
        ("__all__ = [n for n in dir() if n]", False),
    ],
)
def test_star_import_that_hands_on_what_all_names(names: str, proven: bool) -> None:
    text = f"from MaxText.layers.embeddings import *\n{names}\n"
    new, outcome = migrate(text)
    assert new == (text.replace("MaxText", "maxtext") if proven else text)
    assert bool(outcome.listed(PROGRAM, 1)) is not proven


def test_star_import_in_a_package_of_names_that_the_module_goes_on_importing() -> None:
    extra = {"src/MaxText/own/a.py": "from MaxText.layers.moe import RoutedMoE\nA = 1\n"}
    new, outcome = migrate("from MaxText.own.a import *\n", "src/MaxText/own/__init__.py", extra)
    assert new == "from maxtext.own.a import *\n"
    assert not [s for s in outcome.sites if s.file == "src/MaxText/own/__init__.py"]


def test_loggers_by_option() -> None:
    text = 'logging.getLogger("MaxText")\nlogging.getLogger(name="MaxText.sft_trainer")\n'
    new, outcome = migrate(text, options=Options(rename_loggers=True))
    assert (
        new
        == 'logging.getLogger("maxtext")\nlogging.getLogger(name="maxtext.trainers.train_native")\n'
    )
    assert not [s for s in outcome.sites if s.file == PROGRAM]


# Random programs -----------------------------------------------------------------------------------

_LOCALS = (
    "utils",
    "processor",
    "max_utils",
    "maxtext",
    "MaxText",
    "train_sft",
    "moe",
    "Rope",
    "models",
    "x",
)


class _Programs:
    """Makes programs of imports, uses, scopes and names that collide."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.modules = [m.removeprefix("MaxText.") for m in MAP.modules if m != "MaxText"]

    def program(self) -> str:
        lines = [*self.block(0, "", []), *self.block(0, "", [])]
        return "\n".join(lines) + "\n"

    def attribute(self, module: str) -> str:
        names = [*MAP.kept[f"MaxText.{module}"]]
        names += [s.rpartition(".")[2] for s in MAP.symbols if s.startswith(f"MaxText.{module}.")]
        names = [n for n in names if n != "gone"]
        return f".{self.random.choice(names)}" if names else ""

    def imported(self) -> tuple[str, list[str]]:
        """A statement and expressions that use what it binds."""
        choose = self.random.choice
        module = choose(self.modules)
        package, _, leaf = f"MaxText.{module}".rpartition(".")
        kind = self.random.random()
        if kind < 0.3:
            name = choose((leaf, *_LOCALS)) if self.random.random() < 0.4 else leaf
            rename = "" if name == leaf else f" as {name}"
            return f"from {package} import {leaf}{rename}", [name, name + self.attribute(module)]
        if kind < 0.45:
            beside = [m for m in self.modules if f"MaxText.{m}".rpartition(".")[0] == package]
            some = self.random.sample(beside, min(len(beside), 3))
            leaves = [m.rpartition(".")[2] for m in some]
            uses = [n + self.attribute(m) for n, m in zip(leaves, some, strict=True)]
            return f"from {package} import {', '.join(leaves)}", uses
        if kind < 0.65 and (attribute := self.attribute(module)):
            name = (
                choose((attribute[1:], *_LOCALS)) if self.random.random() < 0.3 else attribute[1:]
            )
            rename = "" if name == attribute[1:] else f" as {name}"
            return f"from MaxText.{module} import {attribute[1:]}{rename}", [name]
        if kind < 0.85:
            other = choose(self.modules)
            return f"import MaxText.{module}", [
                f"MaxText.{m}{self.attribute(m)}" for m in (module, other)
            ]
        if kind < 0.95:
            name = choose(_LOCALS)
            return f"import MaxText.{module} as {name}", [name, name + self.attribute(module)]
        return "import MaxText as mt", [f"mt.{module}{self.attribute(module)}"]

    def block(self, depth: int, indent: str, uses: list[str]) -> list[str]:
        choose = self.random.choice
        lines: list[str] = []
        for _ in range(self.random.randint(1, 3)):
            kind = self.random.random()
            if kind < 0.4:
                statement, bound = self.imported()
                uses = uses + bound
                lines.append(indent + choose(("", "", "", "if 1: ")) + statement)
            elif kind < 0.6 and uses:
                lines.append(f"{indent}show({choose(uses)}, {choose(uses)})")
            elif kind < 0.7 and depth < 3:
                parameter = choose(
                    ("", f"{choose(_LOCALS)}=5", f"y={choose(uses)}" if uses else "")
                )
                body = self.block(depth + 1, indent + "  ", uses)
                lines += [
                    f"{indent}def f{depth}({parameter}):",
                    *body,
                    f"{indent}  pass",
                    f"{indent}f{depth}()",
                ]
            elif kind < 0.8 and depth < 3:
                lines += [f"{indent}class C{depth}:", *self.block(depth + 1, indent + "  ", uses)]
                lines.append(f"{indent}  pass")
            elif kind < 0.95 and uses:
                name, use = choose(_LOCALS), choose(uses)
                lines.append(
                    indent
                    + choose(
                        (
                            f"show([{use} for {name} in (1,)])",
                            f"show((lambda {name}: {use})(1))",
                            f"show([{name} for {name} in ({use},)])",
                            f"{name} = 9",
                            f"for {name} in (1,): show({use})",
                            f"second = {use}",
                        )
                    )
                )
            else:
                lines.append(f"{indent}pass")
        return lines


@pytest.mark.parametrize("seed", range(8))
def test_random_programs_show_the_same_or_are_listed(seed: int) -> None:
    compared = 0
    for number in range(60):
        text = _Programs(seed * 1000 + number).program()
        before = run(text, OLD, "MaxText")
        if "MaxText" not in text or any("Error: " in line for line in before):
            continue
        new, outcome = migrate(text)
        if not [s for s in outcome.sites if s.file == PROGRAM]:
            compared += 1
            assert run(new, NEW, "maxtext") == before, f"{text}\n---\n{new}"
    assert compared > 15


def test_a_name_that_a_function_imports_itself_is_not_used_before(tmp_path: Path) -> None:
    before = (
        "import MaxText as mt\n\n\ndef f(x):\n  if x:\n    y = mt.layers.moe.RoutedMoE\n  else:\n"
        "    from MaxText.layers import moe\n\n    y = moe\n  return y\n"
    )
    files = {"src/MaxText/__init__.py": "", "tool.py": before}
    after = migrate_files(tmp_path, files).texts["tool.py"]
    assert "from maxtext.layers import moe as layers_moe" in after
    assert "y = layers_moe.RoutedMoE" in after


def test_a_patched_layer_class_stays_the_subclass_and_is_listed(tmp_path: Path) -> None:
    files = {
        "src/MaxText/__init__.py": '"""The product is called MaxText."""\n',
        "ALModel/al_model.py": "class ALMoELayer:\n  def mlp_op(self): ...\n",
        "tool.py": (
            "from unittest import mock\nfrom ALModel import al_model\n"
            '@mock.patch("ALModel.al_model.ALMoELayer.mlp_op")\ndef f(_):\n'
            '  mock.patch.object(al_model, "ALMoELayer")\n'
        ),
    }
    outcome = migrate_files(tmp_path, files)
    after = outcome.texts["tool.py"]
    assert '"maxtext.models.ling2.Ling2MoELayer.mlp_op"' in after
    assert {s.line for s in outcome.sites if s.file == "tool.py"} == {3, 5}
    assert not [s for s in outcome.sites if s.file == "src/MaxText/__init__.py"]
