"""Which binding a name means: Python's own symbol tables and the language's corner cases."""

from __future__ import annotations

import ast
import dis
import types
from textwrap import dedent

import libcst as cst
import pytest

from codemods.engine.scopes import Scopes
from codemods.engine.tree import Tree


def uses(text: str, name: str = "n") -> list[str]:
    """The kind of scope that each use of a name means, in source order; "" where nothing binds it."""
    scopes = Scopes(Tree(dedent(text).lstrip("\n")))
    found = []
    for scope in scopes.all:
        for use in scope.references:
            if use.name == name:
                home = scope.home(name, use.early)
                found.append((use.start, home.kind if home is not None else ""))
    return [kind for _, kind in sorted(found)]


CASES = {
    "module": ("n = 1\nn", ["module", "module"]),
    "builtin": ("len", []),
    "unbound": ("n", [""]),
    "parameter": ("n = 1\ndef f(n): return n", ["module", "function"]),
    "default is evaluated outside": (
        "n = 1\ndef f(n=n): return n",
        ["module", "module", "function"],
    ),
    "decorator is evaluated outside": ("n = 1\n@n\ndef f(n): ...", ["module", "module"]),
    "a local from a later line": (
        "n = 1\ndef f():\n  n\n  n = 2",
        ["module", "function", "function"],
    ),
    "global": ("n = 1\ndef f():\n  global n\n  n = 2\n  n", ["module", "module", "module"]),
    "global below its use in a block": (
        "n = 1\ndef f():\n  if 1:\n    with x:\n      global n\n  n = 2",
        ["module", "module"],
    ),
    "nonlocal": (
        "n = 1\ndef f():\n  n = 2\n  def g():\n    nonlocal n\n    n = 3",
        ["module", "function", "function"],
    ),
    "a class's names are not its methods'": (
        "n = 1\nclass A:\n  n = 2\n  def f(self): return n",
        ["module", "class", "module"],
    ),
    "before a class binds it": (
        "n = 1\nclass A:\n  n = n\n  n",
        ["module", "class", "module", "class"],
    ),
    "comprehension": (
        "n = 1\n[n for n in n]",
        ["module", "comprehension", "comprehension", "module"],
    ),
    "second iterable": (
        "n = 1\n[1 for n in a for b in n]",
        ["module", "comprehension", "comprehension"],
    ),
    "comprehension in a class": (
        "n = 1\nclass A:\n  n = 2\n  [n for a in b]",
        ["module", "class", "module"],
    ),
    "its first iterable in a class": (
        "n = 1\nclass A:\n  n = 2\n  [1 for a in n]",
        ["module", "class", "class"],
    ),
    "lambda in a class": (
        "n = 1\nclass A:\n  n = 2\n  f = lambda: n",
        ["module", "class", "module"],
    ),
    "walrus in a comprehension": (
        "def f():\n  [(n := a) for a in b]\n  n",
        ["function", "function"],
    ),
    "walrus in nested comprehensions": (
        "[[(n := a) for a in b] for b in c]\nn",
        ["module", "module"],
    ),
    "except": ("try: ...\nexcept E as n: n", ["module", "module"]),
    "except group": ("try: ...\nexcept* E as n: n", ["module", "module"]),
    "with": ("with a as (b, *n): n", ["module", "module"]),
    "for": ("for a, [n] in b: n", ["module", "module"]),
    "match captures": (
        "match a:\n  case {'k': n, **r}: n\n  case [*n]: n\n  case A(x=n) as m: n",
        ["module"] * 6,
    ),
    "match value": ("match a:\n  case n.b: ...", [""]),
    "match class": ("match a:\n  case n(): ...", [""]),
    "type parameter": (
        "n = 1\ndef f[n](x: n) -> n: return n",
        ["module", "function", "function", "function"],
    ),
    "type parameter of a class": ("class A[n](B[n]):\n  x: n", ["function", "function"]),
    "type parameter's bound in a class": (
        "n = 1\nclass A:\n  n = 2\n  def f[T: n](self): return n",
        ["module", "class", "class", "module"],
    ),
    "type alias": ("type n[T] = list[n]", ["module"]),
    "keyword's name is no use": ("n = 1\nf(n=2)", ["module"]),
    "attribute is no use": ("a.n", []),
    "f-string": ("n = 1\nf'{n!r:>{n}}'", ["module", "module", "module"]),
    "nested f-string quotes": ("n = 1\nf'{f'{n}'}'", ["module", "module"]),
    "import": ("import n.a, b as c\nn.a", ["module"]),
    "import in a function": ("n = 1\ndef f():\n  from a import n\n  n", ["module", "function"]),
    "quoted annotation": ("n = 1\nx: 'n'", ["module", "module"]),
    "quoted in a quoted annotation": ("n = 1\nx: \"list['n']\"", ["module", "module"]),
    "Literal is no type": ("n = 1\nx: Literal['n']", ["module"]),
    "Annotated has one type": ("n = 1\nx: Annotated['n', 'n', n]", ["module", "module", "module"]),
    "cast": ("n = 1\ncast('n', 'n')", ["module", "module"]),
    "TypeVar": ("n = 1\nTypeVar('n', 'n', bound='n')", ["module", "module", "module"]),
    "type comment": ("n = 1\nx = []  # type: list[n]  # n", ["module", "module"]),
    "type comment of a function": (
        "n = 1\ndef f(a, b):\n  # type: (n, *n) -> n\n  return a",
        ["module", "module", "module", "module"],
    ),
    "type comment in a function that binds the name": (
        "n = 1\ndef f(n):\n  x = []  # type: n\n  return x",
        ["module", "function"],
    ),
    "type: ignore": ("n = 1  # type: ignore[n]", ["module"]),
    "type comment in a string": ("n = 1\nx = '# type: n'", ["module"]),
    "del": ("n = 1\ndel n", ["module", "module"]),
    "augmented": ("n = 1\nn += 1", ["module"] * 3),
}


@pytest.mark.parametrize("name", CASES)
def test_uses(name: str) -> None:
    text, expected = CASES[name]
    ast.parse(dedent(text))
    assert uses(text) == expected


def _loads(code: types.CodeType) -> set[tuple[str, str, bool]]:
    """(function, name, whether it is the function's own or an outer function's) of what bytecode loads."""
    found: set[tuple[str, str, bool]] = set()
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_FAST", "LOAD_DEREF", "LOAD_FAST_CHECK"):
            found.add(
                (code.co_qualname, str(instruction.argval), instruction.opname != "LOAD_GLOBAL")
            )
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= _loads(constant)
    return found


@pytest.mark.parametrize(
    "module", ["argparse", "dataclasses", "functools", "inspect", "typing", "textwrap"]
)
def test_functions_see_what_the_compiler_says(module: str) -> None:
    """In real modules, what CPython loads as a global is a name of the module or of nothing here."""
    source = __import__(module).__file__
    assert source is not None
    with open(source, encoding="utf-8") as file:
        text = file.read()
    compiled = _loads(compile(text, source, "exec"))
    checked = 0
    for scope in Scopes(Tree(text)).all:
        if not isinstance(scope.node, cst.FunctionDef):
            continue
        function = scope.node.name.value
        for use in scope.references:
            if use.context != "load" or use.node is None:
                continue
            home = scope.home(use.name, use.early)
            is_global = home is None or home.kind == "module"
            said = {
                local
                for where, name, local in compiled
                if where.endswith(function) and name == use.name
            }
            if len(said) == 1:
                checked += 1
                assert said == {not is_global}, (function, use.name)
    assert checked > 100
