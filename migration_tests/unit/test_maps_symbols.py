"""The symbol table: what a module binds, and where each name comes from."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from codemods.maps.symbols import SymbolTable, absolute, canonical, module_name, scan


def table(**files: str) -> SymbolTable:
    """A table of files given as `pkg___mod="text"`; a name without `___` is a package's `__init__.py`."""
    return SymbolTable.from_sources(
        {
            f"{name.replace('___', '/')}{'' if '___' in name else '/__init__'}.py": text.encode()
            for name, text in files.items()
        }
    )


def test_names_of_files() -> None:
    assert module_name("src/MaxText/layers/moe.py") == "MaxText.layers.moe"
    assert module_name("src/MaxText/layers/__init__.py") == "MaxText.layers"
    assert module_name("tests/moe_test.py") == "tests.moe_test"
    assert module_name("__init__.py") == "__init__"
    assert canonical("MaxText/train.py") == "src/MaxText/train.py"
    assert canonical("maxtext/layers/moe.py") == "src/maxtext/layers/moe.py"
    assert canonical("src/maxtext/x.py") == "src/maxtext/x.py"
    assert canonical("tests/x.py") == "tests/x.py"


@pytest.mark.parametrize(
    ("module", "package", "level", "target", "expected"),
    [
        ("a.b.c", False, 1, "d", "a.b.d"),
        ("a.b.c", False, 2, None, "a"),
        ("a.b", True, 1, "d", "a.b.d"),
        ("a.b", True, 1, None, "a.b"),
        ("a.b.c", False, 0, "x.y", "x.y"),
        ("a", False, 2, "d", ""),
        ("a.b", False, 3, "d", ""),
    ],
)
def test_relative_imports(
    module: str, package: bool, level: int, target: str | None, expected: str
) -> None:
    assert absolute(module, package, level, target) == expected


def test_everything_that_binds_a_name() -> None:
    module = scan(
        """
import a.b.c
import a.b as ab
from .near import thing as other
try:
    from x import maybe
except ImportError:
    maybe = None
if FLAG:
    def conditional(): ...
else:
    conditional = None
first, (second, *rest) = 1, (2, 3)
typed: int = 1
for index in range(3):
    inside = index
with open("f") as stream:
    pass
print(walrus := 1)
match thing:
    case {"k": held, **others}:
        pass
type Alias = int
temporary = 1
del temporary
def function(p):
    local = 1
class Kind:
    member = 1
""",
        "pkg/mod.py",
    )
    assert set(module.definitions) == {
        "maybe", "conditional", "first", "second", "rest", "typed", "index", "inside", "stream",
        "walrus", "held", "others", "Alias", "function", "Kind",
    }  # fmt: skip
    assert dict(module.imports) == {
        "a": "a",
        "ab": "a.b",
        "other": "pkg.near.thing",
        "maybe": "x.maybe",
    }
    assert module.modules == ("a.b.c", "a.b")
    assert module.definitions["conditional"].kind == "function"


def test_names_are_followed_to_their_definition() -> None:
    tree = table(
        p="from p.mid import Thing\nfrom p import sub\nimport numpy as np\n",
        p___mid="from p.low import *\nfrom p.low import Base as Renamed\n",
        p___low="import jax.numpy as jnp\nclass Thing: ...\nclass Base: ...\n_private = 1\n",
        p___sub="from p import low\nAlias = low.Thing\nown = 1\n",
        p___exporting="__all__ = ['_shown']\n_shown = 1\nhidden = 2\n",
        p___star="from p.exporting import *\n",
        p___loop="from p.pool import name\n",
        p___pool="from p.loop import name\n",
    )
    assert tree.resolve("p", "Thing") == ("p.low", "Thing")
    assert tree.resolve("p", "sub") == "p.sub"
    assert tree.resolve("p", "low") == "p.low"
    assert tree.resolve("p.mid", "Renamed") == ("p.low", "Base")
    assert tree.resolve("p.mid", "jnp") == ("jax", "numpy")
    assert tree.resolve("p.mid", "_private") is None
    assert tree.resolve("p.sub", "Alias") == ("p.low", "Thing")
    assert tree.resolve("p.sub", "own") == ("p.sub", "own")
    assert tree.resolve("p.star", "_shown") == ("p.exporting", "_shown")
    assert tree.resolve("p.star", "hidden") is None
    assert tree.resolve("p.loop", "name") is None
    assert tree.resolve("p", "np") == "numpy"
    assert tree.names("p.mid") == {"Thing", "Base", "Renamed", "jnp"}


def test_a_function_that_only_hands_on_is_no_definition() -> None:
    tree = table(
        p="",
        p___old='from p import new\n\ndef moved(x, *, y):\n  """Old."""\n  log(\'deprecated\')\n'
        "  return new.moved(x, y=y)\n\ndef other(x):\n  return new.other(x + 1)\n\n"
        "def renamed(x):\n  return new.moved(x)\n",
        p___new="def moved(x, *, y): ...\ndef other(x): ...\n",
    )
    assert tree.resolve("p.old", "moved") == ("p.new", "moved")
    assert tree.resolve("p.old", "other") == ("p.old", "other")
    assert tree.resolve("p.old", "renamed") == ("p.old", "renamed")


def test_an_import_with_a_fallback_leads_to_what_is_imported() -> None:
    tree = table(
        p___a="try:\n  from p.b import x\nexcept ImportError:\n  x = None\n"
        "try:\n  from p.b import gone\nexcept ImportError:\n  gone = None\n",
        p___b="x = 1\n",
    )
    assert tree.resolve("p.a", "x") == ("p.b", "x")
    assert tree.resolve("p.a", "gone") == ("p.a", "gone")


def test_what_exists() -> None:
    tree = table(
        p___a="import enum\nclass Kind(enum.Enum):\n  ONE = 1\n\nclass Base:\n  def run(self):\n"
        "    self.state = 1\n\nclass Child(Base):\n  x: int = 1\n\nclass Outside(torch.Module): ...\n",
        p___lazy="def __getattr__(name): ...\n",
        p___listed="__all__ = ['known']\ndef __getattr__(name): ...\n",
        p___handed="_globals = globals()\nfill(_globals)\n",
        p___broken="def (:\n",
        space___inner___m="y = 1\n",
    )
    for name in (
        "p", "p.a", "p.a.Kind", "p.a.Kind.ONE", "p.a.Child.run", "p.a.Child.state", "p.a.Child.x",
        "p.a.Outside.anything", "p.lazy.anything", "p.listed.known", "p.handed.Made", "p.broken.any",
        "space", "space.inner", "space.inner.m.y",
    ):  # fmt: skip
        assert tree.exists(name), name
    for name in (
        "p.b",
        "p.a.Nope",
        "p.a.Kind.TWO",
        "p.a.Child.nope",
        "p.listed.other",
        "space.z",
        "q",
    ):
        assert not tree.exists(name), name
    assert tree.modules["p.broken"].error.startswith("SyntaxError")
    assert tree.has_root("space.anything")
    assert not tree.has_root("numpy.array")


def test_forwarding_modules() -> None:
    loads = 'import importlib\nOLD_MODULE_PATH = "a"\n_new = importlib.import_module("b")\nrun = _new.run\n'
    script = "import sys\nif __name__ == '__main__':\n  from b import main\n  main(sys.argv)\n"
    forwards = script.replace("from b import main", "main = importlib.import_module('b').main")
    assert scan(loads, "p/a.py").shim
    assert scan("from b import *\n", "p/a.py").shim
    assert scan(forwards, "p/a.py").shim
    assert not scan(script, "p/a.py").shim
    assert not scan(loads + "def own(): ...\n", "p/a.py").shim
    assert not scan("from b import *\n", "p/__init__.py").shim
    assert not scan('__version__ = "1"\n', "p/version.py").shim


def test_signatures() -> None:
    tree = table(p___a="""
from typing import ClassVar
import dataclasses

def f(a, /, b: int = 1, *args: str, c, d=None, **rest) -> int: ...
def g(*, only): ...
class Base:
    def __init__(self, config, mesh=None): ...
    @staticmethod
    def make(x): ...
    def __call__(self, y): ...
class Child(Base): ...
@dataclasses.dataclass
class Data:
    shared: ClassVar[int] = 0
    first: int
    second: str = "s"
class More(Data):
    third: int = 3
value = 1
""")
    f = tree.signature("p.a", "f")
    assert f is not None
    assert f.text == "a, /, b=1, *args, c, d=None, **rest"
    assert f.required == ("a", "c")
    assert [
        s.text if (s := tree.signature("p.a", n)) else None
        for n in ("g", "Base", "Child", "Data", "More", "value", "absent")
    ] == [
        "*, only",
        "config, mesh=None",
        "config, mesh=None",
        "first, second='s'",
        "first, second='s', third=3",
        None,
        None,
    ]
    methods = tree.modules["p.a"].definitions["Base"].methods
    assert methods["make"].text == "x"
    assert methods["__call__"].text == "y"


def test_union_prefers_the_earlier_tree() -> None:
    both = SymbolTable.union(table(p___a="new = 1\n"), table(p___a="old = 1\n", p___b="b = 1\n"))
    assert both.exists("p.a.new")
    assert both.exists("p.b.b")
    assert not both.exists("p.a.old")


def test_from_a_folder(tmp_path: Path) -> None:
    (tmp_path / "maxtext/layers").mkdir(parents=True)
    (tmp_path / "maxtext/layers/moe.py").write_text("class RoutedMoE: ...\n", encoding="utf-8")
    (tmp_path / "maxtext/latin.py").write_bytes(b"# -*- coding: latin-1 -*-\nname = '\xe9'\n")
    (tmp_path / "maxtext/bad.py").write_bytes(b"name = '\xe9'\n")
    (tmp_path / "maxtext/nul.py").write_bytes(b"a = 1\0\n")
    (tmp_path / "maxtext/deep.py").write_text("x = " + "(" * 3000 + ")" * 3000, encoding="utf-8")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git/hook.py").write_text("x = 1\n", encoding="utf-8")
    tree = SymbolTable.from_folder(tmp_path)
    assert tree.modules["maxtext.layers.moe"].path == "src/maxtext/layers/moe.py"
    assert tree.exists("maxtext.latin.name")
    assert {n for n, m in tree.modules.items() if m.error} == {
        "maxtext.bad",
        "maxtext.nul",
        "maxtext.deep",
    }
    assert ".git.hook" not in tree.modules
    assert pickle.loads(pickle.dumps(tree)).exists("maxtext.layers.moe.RoutedMoE")
