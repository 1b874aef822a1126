"""The dump rules on single files: what goes, what stays, what is listed."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from migration_tests.unit.dump_driver import ARGUS, ARGUS_PATH, strip

HEADER = """\
import jax
import jax.numpy as jnp
from MaxText.utils import argus_utils
from MaxText.utils.argus_utils import dump_stats as _stats
from MaxText.utils.argus_utils import dump_tensor as _dump, dumpable as _dumpable
# ---
"""
PATH = "src/MaxText/layers/some.py"


@dataclass(frozen=True)
class Case:
    """One before/after pair; `listed` are the lines (parts of them) that a person gets to see, in order."""

    name: str
    before: str
    after: str
    listed: tuple[str, ...] = ()


def same(name: str, text: str, *listed: str) -> Case:
    return Case(name, text, text, listed)


def case(name: str, before: str, after: str, *listed: str) -> Case:
    return Case(name, before, after, listed)


DECORATORS = [
    case("bare", "@_dumpable\ndef f(x):\n  return x\n", "def f(x):\n  return x\n"),
    case("called", "@_dumpable('n')\ndef f(x):\n  return x\n", "def f(x):\n  return x\n"),
    case("keyword", "@_dumpable(name='n')\ndef f(x):\n  return x\n", "def f(x):\n  return x\n"),
    case("empty call", "@_dumpable()\ndef f(x):\n  return x\n", "def f(x):\n  return x\n"),
    case("qualified", "@argus_utils.dumpable\ndef f(x):\n  return x\n", "def f(x):\n  return x\n"),
    case(
        "stacked",
        "@_dumpable('a')\n@jax.jit\n@_dumpable\n@argus_utils.dumpable('b')\ndef f(x):\n  return x\n",
        "@jax.jit\ndef f(x):\n  return x\n",
    ),
    case(
        "comments between stay",
        "@jax.jit\n# why\n@_dumpable\n# and how\ndef f(x):\n  return x\n",
        "@jax.jit\n# why\n# and how\ndef f(x):\n  return x\n",
    ),
    case(
        "comment behind is listed",
        "@jax.jit\n@_dumpable  # tail\ndef f(x):\n  return x\n",
        "@jax.jit\ndef f(x):\n  return x\n",
        "@_dumpable  # tail",
    ),
    case(
        "over lines",
        "@_dumpable(\n    name='n',\n)\ndef f(x):\n  return x\n",
        "def f(x):\n  return x\n",
    ),
    case(
        "method and class",
        "@_dumpable\nclass A:\n\n  @_dumpable('m')\n  def m(self):\n    return 1\n",
        "class A:\n\n  def m(self):\n    return 1\n",
    ),
    case(
        "async and nested",
        "def f():\n  @_dumpable\n  async def g(x):\n    return x\n  return g\n",
        "def f():\n  async def g(x):\n    return x\n  return g\n",
    ),
    case(
        "static method",
        "class A:\n  @staticmethod\n  @_dumpable\n  def m(x):\n    return x\n",
        "class A:\n  @staticmethod\n  def m(x):\n    return x\n",
    ),
    case(
        "f-string argument",
        "LAYER = 3\n\n\n@_dumpable(f'l{LAYER}')\ndef f(x):\n  return x, LAYER\n",
        "LAYER = 3\n\n\ndef f(x):\n  return x, LAYER\n",
    ),
    same(
        "argument with effects",
        "@_dumpable(fresh_name())\ndef f(x):\n  return x\n",
        "@_dumpable(fresh_name())",
    ),
    case(
        "as a call",
        "def f(x):\n  return x\n\n\ng = _dumpable(f)\nprint(g)\n",
        "def f(x):\n  return x\n\n\ng = f\nprint(g)\n",
    ),
    case(
        "inside another decorator's call",
        "def f(x):\n  return x\n\n\ng = jax.jit(_dumpable(f))\nprint(g)\n",
        "def f(x):\n  return x\n\n\ng = jax.jit(f)\nprint(g)\n",
    ),
]

STATEMENTS = [
    case("alone", "def f(x):\n  _dump('a', x)\n  return x\n", "def f(x):\n  return x\n"),
    case("at module level", "x = 1\n_dump('a', x)\nprint(x)\n", "x = 1\nprint(x)\n"),
    case(
        "last",
        "def f(x):\n  y = x + 1\n  print(y)\n  _dump('a', y)\n",
        "def f(x):\n  y = x + 1\n  print(y)\n",
    ),
    case(
        "keywords",
        "def f(x):\n  _dump(name='a', x=x, layer='l')\n  return x\n",
        "def f(x):\n  return x\n",
    ),
    case(
        "over lines",
        "def f(x):\n  _dump(\n      'a',\n      x,\n  )\n  return x\n",
        "def f(x):\n  return x\n",
    ),
    case(
        "comments in it stay",
        "def f(x):\n  _dump(\n      'a',  # the name\n      # the value\n      x,\n  )  # done\n  return x\n",
        "def f(x):\n  # the name\n  # the value\n  # done\n  return x\n",
    ),
    case(
        "comments around it stay",
        "def f(x):\n  y = x * 2\n  # eq. 3\n  _dump('y', y)  # tail\n  return y\n",
        "def f(x):\n  y = x * 2\n  # eq. 3\n  # tail\n  return y\n",
    ),
    case(
        "before a semicolon",
        "def f(x):\n  _dump('a', x); y = x\n  return y\n",
        "def f(x):\n  y = x\n  return y\n",
    ),
    case(
        "after a semicolon",
        "def f(x):\n  y = x; _dump('a', x)\n  return y\n",
        "def f(x):\n  y = x\n  return y\n",
    ),
    case(
        "between semicolons",
        "def f(x):\n  y = x; _dump('a', x); z = y\n  return z\n",
        "def f(x):\n  y = x; z = y\n  return z\n",
    ),
    case(
        "all of a line",
        "def f(x):\n  _dump('a', x); _dump('b', x)\n  return x\n",
        "def f(x):\n  return x\n",
    ),
    case(
        "trailing semicolon",
        "def f(x):\n  y = x; _dump('a', x);\n  return y\n",
        "def f(x):\n  y = x\n  return y\n",
    ),
    case(
        "two then one",
        "def f(x):\n  _dump('a', x); _dump('b', x); y = x  # c\n  return y\n",
        "def f(x):\n  y = x  # c\n  return y\n",
    ),
    case(
        "pure jnp",
        "def f(x):\n  _dump('a', jnp.sum(x) / x.shape[0])\n  return x\n",
        "def f(x):\n  return x\n",
    ),
    case(
        "f-string",
        "def f(x, i):\n  _dump(f'l{i}/{x.shape}', x)\n  return x, i\n",
        "def f(x, i):\n  return x, i\n",
    ),
    case(
        "nested", "def f(x):\n  _dump('a', _dump('b', x))\n  return x\n", "def f(x):\n  return x\n"
    ),
    case("without value", "def f(x):\n  _stats('a', x)\n  return x\n", "def f(x):\n  return x\n"),
    case(
        "effect stays",
        "def f(x):\n  _dump('a', x.pop())\n  return x\n",
        "def f(x):\n  x.pop()\n  return x\n",
    ),
    case(
        "module call stays",
        "def f(self, x):\n  _dump('a', self.layer(x) * 2)\n  return x\n",
        "def f(self, x):\n  self.layer(x)\n  return x\n",
    ),
    case(
        "two effects",
        "def f(x):\n  _dump('a', [x.pop(), x.pop()])\n  return x\n",
        "def f(x):\n  x.pop(); x.pop()\n  return x\n",
    ),
    case(
        "effect in a nested hook",
        "def f(x):\n  _dump('a', _dump('b', x.pop()))\n  return x\n",
        "def f(x):\n  x.pop()\n  return x\n",
    ),
    case(
        "await stays",
        "async def f(q):\n  _dump('a', await q.get())\n  return q\n",
        "async def f(q):\n  await q.get()\n  return q\n",
    ),
    case("yield stays", "def f(q):\n  _dump('a', (yield q))\n", "def f(q):\n  yield q\n"),
    case(
        "walrus stays",
        "def f(x):\n  _dump('a', (y := x * 2))\n  return y\n",
        "def f(x):\n  y = x * 2\n  return y\n",
    ),
    case(
        "dead walrus goes",
        "def f(x):\n  _dump('a', (y := x * 2))\n  _dump('b', y)\n  return x\n",
        "def f(x):\n  return x\n",
    ),
    case(
        "guarded by and",
        "def f(x, debug):\n  debug and _dump('a', x)\n  return x, debug\n",
        "def f(x, debug):\n  return x, debug\n",
    ),
    case(
        "conditional",
        "def f(x, debug):\n  _dump('a', x) if debug else None\n  return x, debug\n",
        "def f(x, debug):\n  return x, debug\n",
    ),
    case(
        "in a tuple",
        "def f(x):\n  _dump('a', x), _dump('b', x)\n  return x\n",
        "def f(x):\n  return x\n",
    ),
    case(
        "blank lines around",
        "def f(x):\n  y = x\n\n  _dump('a', x)\n\n  return y\n",
        "def f(x):\n  y = x\n\n  return y\n",
    ),
    case(
        "blank line after the header",
        "def f(x):\n  _dump('a', x)\n\n  return x\n",
        "def f(x):\n  return x\n",
    ),
    case(
        "several with blanks",
        "def f(x):\n  y = x\n\n  _dump('a', x)\n\n  _dump('b', x)\n\n  return y\n",
        "def f(x):\n  y = x\n\n  return y\n",
    ),
    case(
        "before two blank lines",
        "def f(x):\n  y = x\n  print(y)\n  _dump('a', x)\n\n\ndef g():\n  return 1\n",
        "def f(x):\n  y = x\n  print(y)\n\n\ndef g():\n  return 1\n",
    ),
    case("end of file", "x = 1\nprint(x)\n\n_dump('a', x)\n", "x = 1\nprint(x)\n"),
    case(
        "tabs",
        "def f(x):\n\tif x:\n\t\t_dump('a', x)\n\t\treturn x\n\treturn 0\n",
        "def f(x):\n\tif x:\n\t\treturn x\n\treturn 0\n",
    ),
    case(
        "qualified",
        "def f(x):\n  argus_utils.dump_tensor('a', x)\n  return x\n",
        "def f(x):\n  return x\n",
    ),
    case(
        "del of a local",
        "def f(x):\n  y = x * 2\n  _dump('a', y)\n  del y\n  return x\n",
        "def f(x):\n  return x\n",
    ),
    case(
        "del of some",
        "def f(x, z):\n  y = x * 2\n  _dump('a', y)\n  del y, z\n  return x\n",
        "def f(x, z):\n  del z\n  return x\n",
    ),
]

VALUES = [
    case(
        "assigned",
        "def f(x):\n  y = _dump('a', x)\n  return y\n",
        "def f(x):\n  y = x\n  return y\n",
    ),
    case(
        "assigned to itself",
        "def f(x):\n  x = _dump('a', x)\n  return x\n",
        "def f(x):\n  return x\n",
    ),
    case(
        "by keyword",
        "def f(x):\n  y = _dump(layer='l', x=x, name='a')\n  return y\n",
        "def f(x):\n  y = x\n  return y\n",
    ),
    case("returned", "def f(x):\n  return _dump('a', x + 1)\n", "def f(x):\n  return x + 1\n"),
    case(
        "nested",
        "def f(x):\n  return _dump('a', _dump('b', x + 1))\n",
        "def f(x):\n  return x + 1\n",
    ),
    case(
        "nested product",
        "def f(x):\n  return _dump('a', _dump('b', x + 1)) * 2\n",
        "def f(x):\n  return (x + 1) * 2\n",
    ),
    case(
        "argument",
        "def f(g, x):\n  return g(_dump('a', x + 1), 2)\n",
        "def f(g, x):\n  return g(x + 1, 2)\n",
    ),
    case(
        "keyword argument",
        "def f(g, x):\n  return g(x=_dump('a', x + 1))\n",
        "def f(g, x):\n  return g(x=x + 1)\n",
    ),
    case(
        "product",
        "def f(x, y):\n  return _dump('a', x + y) * 2\n",
        "def f(x, y):\n  return (x + y) * 2\n",
    ),
    case(
        "sum",
        "def f(x, y):\n  return _dump('a', x * y) + 2\n",
        "def f(x, y):\n  return x * y + 2\n",
    ),
    case(
        "right of minus",
        "def f(x, y):\n  return 2 - _dump('a', x - y)\n",
        "def f(x, y):\n  return 2 - (x - y)\n",
    ),
    case(
        "left of minus",
        "def f(x, y):\n  return _dump('a', x - y) - 2\n",
        "def f(x, y):\n  return x - y - 2\n",
    ),
    case(
        "power base", "def f(x):\n  return _dump('a', -x) ** 2\n", "def f(x):\n  return (-x) ** 2\n"
    ),
    case(
        "power of power",
        "def f(x):\n  return _dump('a', x**2) ** 2\n",
        "def f(x):\n  return (x**2) ** 2\n",
    ),
    case("exponent", "def f(x):\n  return 2 ** _dump('a', -x)\n", "def f(x):\n  return 2 ** -x\n"),
    case(
        "negated",
        "def f(x, y):\n  return -_dump('a', x + y)\n",
        "def f(x, y):\n  return -(x + y)\n",
    ),
    case(
        "not",
        "def f(x, y):\n  return not _dump('a', x and y)\n",
        "def f(x, y):\n  return not (x and y)\n",
    ),
    case(
        "compared",
        "def f(x, y):\n  return _dump('a', x == y) == 2\n",
        "def f(x, y):\n  return (x == y) == 2\n",
    ),
    case(
        "attribute",
        "def f(x, y):\n  return _dump('a', x + y).T\n",
        "def f(x, y):\n  return (x + y).T\n",
    ),
    case("method", "def f(x):\n  return _dump('a', x).sum()\n", "def f(x):\n  return x.sum()\n"),
    case(
        "number attribute",
        "def f():\n  return _dump('a', 1).real\n",
        "def f():\n  return (1).real\n",
    ),
    case(
        "subscript",
        "def f(x, y):\n  return _dump('a', (x, y))[0]\n",
        "def f(x, y):\n  return (x, y)[0]\n",
    ),
    case(
        "index",
        "def f(x, i):\n  return x[_dump('a', i + 1)]\n",
        "def f(x, i):\n  return x[i + 1]\n",
    ),
    case(
        "called",
        "def f(g, h, x):\n  return _dump('a', g or h)(x)\n",
        "def f(g, h, x):\n  return (g or h)(x)\n",
    ),
    case(
        "in a condition",
        "def f(x):\n  if _dump('a', x) > 0:\n    return 1\n  return 2\n",
        "def f(x):\n  if x > 0:\n    return 1\n  return 2\n",
    ),
    case(
        "conditional expression",
        "def f(x):\n  return _dump('a', x) if x else None\n",
        "def f(x):\n  return x if x else None\n",
    ),
    case(
        "conditional argument",
        "def f(x, y):\n  return _dump('a', x if y else 0) if x else None\n",
        "def f(x, y):\n  return (x if y else 0) if x else None\n",
    ),
    case("tuple", "def f(x):\n  return x, _dump('a', x)\n", "def f(x):\n  return x, x\n"),
    case(
        "list and dict",
        "def f(x):\n  return [_dump('a', x)], {'k': _dump('b', x)}\n",
        "def f(x):\n  return [x], {'k': x}\n",
    ),
    case(
        "f-string",
        "def f(x, y):\n  return f'{_dump(\"a\", x + y)}'\n",
        "def f(x, y):\n  return f'{(x + y)}'\n",
    ),
    case("starred", "def f(g, x):\n  return g(*_dump('a', x))\n", "def f(g, x):\n  return g(*x)\n"),
    case(
        "walrus in a test",
        "def f(x):\n  if (y := _dump('a', x)) is not None:\n    return y\n  return 0\n",
        "def f(x):\n  if (y := x) is not None:\n    return y\n  return 0\n",
    ),
    case(
        "walrus argument",
        "def f(x):\n  z = _dump('a', (y := x))\n  return y, z\n",
        "def f(x):\n  z = (y := x)\n  return y, z\n",
    ),
    case(
        "lambda argument",
        "def f(x):\n  g = _dump('a', lambda: x)\n  return g\n",
        "def f(x):\n  g = lambda: x\n  return g\n",
    ),
    case(
        "generator argument",
        "def f(xs):\n  g = _dump('a', (x for x in xs))\n  return g\n",
        "def f(xs):\n  g = (x for x in xs)\n  return g\n",
    ),
    case(
        "await",
        "async def f(x):\n  return await _dump('a', x)\n",
        "async def f(x):\n  return await x\n",
    ),
    case(
        "augmented",
        "def f(x):\n  y = 1\n  y += _dump('a', x)\n  return y\n",
        "def f(x):\n  y = 1\n  y += x\n  return y\n",
    ),
    case(
        "annotated",
        "def f(x):\n  y: int = _dump('a', x)\n  return y\n",
        "def f(x):\n  y: int = x\n  return y\n",
    ),
    case(
        "for",
        "def f(x):\n  for y in _dump('a', x):\n    print(y)\n",
        "def f(x):\n  for y in x:\n    print(y)\n",
    ),
    case(
        "first iterable of a comprehension",
        "def f(x):\n  return [y for y in _dump('a', x)]\n",
        "def f(x):\n  return [y for y in x]\n",
    ),
    case(
        "bracketed already",
        "def f(x, y):\n  return (_dump('a', x + y)) * 2\n",
        "def f(x, y):\n  return (x + y) * 2\n",
    ),
    case(
        "argument over lines keeps its brackets",
        "def f(x, y):\n  z = _dump('a', x\n            + y)\n  return z\n",
        "def f(x, y):\n  z = (x\n            + y)\n  return z\n",
    ),
    case(
        "call over lines",
        "def f(x, y):\n  z = _dump(\n      'a',\n      x + y,\n  )\n  return z\n",
        "def f(x, y):\n  z = x + y\n  return z\n",
    ),
    case(
        "comment in it is listed",
        "def f(x, y):\n  z = _dump(\n      'a',  # name\n      x + y,\n  )\n  return z\n",
        "def f(x, y):\n  z = x + y\n  return z\n",
        "'a',  # name",
    ),
    same("lambda", "g = lambda x: _dump('a', x) or x\n", "_dump('a', x) or x"),
    same("comprehension", "def f(xs):\n  return [_dump('a', t) for t in xs]\n", "_dump('a', t)"),
    same(
        "comprehension as a statement",
        "def f(xs):\n  [_dump('a', t) for t in xs]\n",
        "_dump('a', t)",
    ),
    same("generator", "def f(xs):\n  return next(_dump('a', t) for t in xs)\n", "_dump('a', t)"),
    same("hook without value", "def f(x):\n  return _stats('a', x)\n", "_stats('a', x)"),
    same(
        "effect in another argument",
        "def f(x, it):\n  y = _dump(next(it), x)\n  return y\n",
        "_dump(next(it), x)",
    ),
    same("star arguments", "def f(x, a):\n  y = _dump(*a)\n  return y\n", "_dump(*a)"),
    same("as a default", "def f(x, hook=_dump):\n  return hook('a', x)\n", "hook=_dump"),
    same("in a table", "TABLE = {'dump': _dump}\n", "_dump"),
    same(
        "passed on",
        "def f(tree):\n  return jax.tree.map(_dump, tree)\n",
        "jax.tree.map(_dump, tree)",
    ),
    same(
        "other member of the module",
        "def f(x):\n  return argus_utils.unrelated(x)\n",
        "argus_utils.unrelated",
    ),
]

BLOCKS = [
    case(
        "if goes",
        "def f(x, cfg):\n  if cfg.debug:\n    _dump('a', x)\n  return x\n",
        "def f(x, cfg):\n  return x\n",
    ),
    case(
        "if with a comparison",
        "def f(x, cfg):\n  if cfg.level > 2 and not x.size == 0:\n    _dump('a', x)\n  return x\n",
        "def f(x, cfg):\n  return x\n",
    ),
    case(
        "comments in it stay",
        "def f(x, cfg):\n  if cfg.debug:  # only then\n    # see eq. 4\n    _dump('a', x)  # tail\n  return x\n",
        "def f(x, cfg):\n  # only then\n  # see eq. 4\n  # tail\n  return x\n",
    ),
    case(
        "one line",
        "def f(x, cfg):\n  if cfg.debug: _dump('a', x)\n  return x\n",
        "def f(x, cfg):\n  return x\n",
    ),
    case(
        "impure test",
        "def f(x):\n  if ready():\n    _dump('a', x)\n  return x\n",
        "def f(x):\n  if ready():\n    pass\n  return x\n",
        "if ready():",
    ),
    case(
        "invert",
        "def f(x, cfg):\n  if cfg.debug:\n    _dump('a', x)\n  else:\n    x = x + 1\n  return x\n",
        "def f(x, cfg):\n  if not cfg.debug:\n    x = x + 1\n  return x\n",
    ),
    case(
        "invert not",
        "def f(x, cfg):\n  if not cfg.fast:\n    _dump('a', x)\n  else:\n    x = x + 1\n  return x\n",
        "def f(x, cfg):\n  if cfg.fast:\n    x = x + 1\n  return x\n",
    ),
    case(
        "invert and",
        "def f(x, a, b):\n  if a and b:\n    _dump('a', x)\n  else:\n    x = x + 1\n  return x\n",
        "def f(x, a, b):\n  if not (a and b):\n    x = x + 1\n  return x\n",
    ),
    case(
        "invert comparison",
        "def f(x, a):\n  if a > 1:\n    _dump('a', x)\n  else:\n    x = x + 1\n  return x\n",
        "def f(x, a):\n  if not a > 1:\n    x = x + 1\n  return x\n",
    ),
    case(
        "invert bracketed",
        "def f(x, a, b):\n  if (a or b):\n    _dump('a', x)\n  else:\n    x = x + 1\n  return x\n",
        "def f(x, a, b):\n  if not (a or b):\n    x = x + 1\n  return x\n",
    ),
    case(
        "invert keeps comments",
        "def f(x, a):\n  if a:  # one\n    # two\n    _dump('a', x)\n  else:  # three\n    # four\n    x = x + 1\n  return x\n",
        "def f(x, a):\n  if not a:  # one\n    # two\n    # three\n    # four\n    x = x + 1\n  return x\n",
    ),
    case(
        "invert one-liners",
        "def f(x, a):\n  if a: _dump('a', x)\n  else: x = x + 1\n  return x\n",
        "def f(x, a):\n  if not a: x = x + 1\n  return x\n",
    ),
    case(
        "else goes",
        "def f(x, a):\n  if a:\n    x = x + 1\n  else:\n    _dump('a', x)\n  return x\n",
        "def f(x, a):\n  if a:\n    x = x + 1\n  return x\n",
    ),
    case(
        "elif goes",
        "def f(x, a):\n  if a:\n    x = x + 1\n  elif x:\n    _dump('a', x)\n  else:\n    _dump('b', x)\n  return x\n",
        "def f(x, a):\n  if a:\n    x = x + 1\n  return x\n",
    ),
    case(
        "elif inverted",
        "def f(x, a):\n  if a:\n    x = x + 1\n  elif x:\n    _dump('a', x)\n  else:\n    x = 2\n  return x\n",
        "def f(x, a):\n  if a:\n    x = x + 1\n  elif not x:\n    x = 2\n  return x\n",
    ),
    case(
        "if before elif",
        "def f(x, a):\n  if a:\n    _dump('a', x)\n  elif x:\n    x = 2\n  return x\n",
        "def f(x, a):\n  if a:\n    pass\n  elif x:\n    x = 2\n  return x\n",
        "if a:",
    ),
    case(
        "nested ifs",
        "def f(x, a, b):\n  if a:\n    if b:\n      _dump('a', x)\n    _dump('b', x)\n  return x\n",
        "def f(x, a, b):\n  return x\n",
    ),
    case(
        "for",
        "def f(xs):\n  for i, x in enumerate(xs):\n    _dump('a', x)\n  return xs\n",
        "def f(xs):\n  for i, x in enumerate(xs):\n    pass\n  return xs\n",
        "for i, x",
    ),
    case(
        "for else",
        "def f(xs):\n  for x in xs:\n    print(x)\n  else:\n    _dump('a', xs)\n  return xs\n",
        "def f(xs):\n  for x in xs:\n    print(x)\n  return xs\n",
    ),
    case(
        "while",
        "def f(xs):\n  while xs.next():\n    _dump('a', xs)\n  return xs\n",
        "def f(xs):\n  while xs.next():\n    pass\n  return xs\n",
        "while xs.next()",
    ),
    case(
        "with",
        "def f(x):\n  with jax.named_scope('s'):\n    _dump('a', x)\n  return x\n",
        "def f(x):\n  with jax.named_scope('s'):\n    pass\n  return x\n",
        "with jax.named_scope",
    ),
    case(
        "try",
        "def f(x):\n  try:\n    _dump('a', x)\n  except ValueError:\n    x = 0\n  return x\n",
        "def f(x):\n  try:\n    pass\n  except ValueError:\n    x = 0\n  return x\n",
        "try:",
    ),
    case(
        "except",
        "def f(x):\n  try:\n    x = g(x)\n  except ValueError:\n    _dump('a', x)\n  return x\n",
        "def f(x):\n  try:\n    x = g(x)\n  except ValueError:\n    pass\n  return x\n",
        "except ValueError",
    ),
    case(
        "try else",
        "def f(x):\n  try:\n    x = g(x)\n  except ValueError:\n    x = 0\n  else:\n    _dump('a', x)\n  return x\n",
        "def f(x):\n  try:\n    x = g(x)\n  except ValueError:\n    x = 0\n  return x\n",
    ),
    case(
        "finally",
        "def f(x):\n  try:\n    x = g(x)\n  finally:\n    _dump('a', x)\n  return x\n",
        "def f(x):\n  try:\n    x = g(x)\n  finally:\n    pass\n  return x\n",
        "_dump('a', x)",
    ),
    case(
        "match",
        "def f(x):\n  match x:\n    case 1:\n      _dump('a', x)\n    case _:\n      x = 2\n  return x\n",
        "def f(x):\n  match x:\n    case 1:\n      pass\n    case _:\n      x = 2\n  return x\n",
        "_dump('a', x)",
    ),
    case("def", "def f(x):\n  _dump('a', x)\n", "def f(x):\n  pass\n"),
    case("one-line def", "def f(x): _dump('a', x)\n", "def f(x): pass\n"),
    case(
        "docstring",
        'def f(x):\n  """Says x."""\n  _dump(\'a\', x)\n',
        'def f(x):\n  """Says x."""\n',
    ),
    case("class", "class A:\n  _dump('a', 1)\n", "class A:\n  pass\n"),
    case(
        "two statements leave one pass",
        "def f(x):\n  _dump('a', x)\n  # why\n  _dump('b', x)  # tail\n",
        "def f(x):\n  pass\n  # why\n  # tail\n",
    ),
    case(
        "method",
        "class A:\n  def m(self):\n    _dump('a', self)\n\n  def n(self):\n    return 1\n",
        "class A:\n  def m(self):\n    pass\n\n  def n(self):\n    return 1\n",
    ),
]

LOCALS = [
    case(
        "one",
        "def f(x, i):\n  name = f'l{i}'\n  _dump(name, x)\n  return x + i\n",
        "def f(x, i):\n  return x + i\n",
    ),
    case(
        "chain",
        "def f(x, i):\n  name = f'l{i}'\n  full = name + '/e'\n  other: str = full.upper()\n  _dump(other, x)\n  return x + i\n",
        "def f(x, i):\n  return x + i\n",
    ),
    case(
        "augmented",
        "def f(x, i):\n  name = 'l'\n  name += str(i)\n  _dump(name, x)\n  return x + i\n",
        "def f(x, i):\n  return x + i\n",
    ),
    case(
        "both branches",
        "def f(x, i):\n  if i:\n    name = 'a'\n  else:\n    name = 'b'\n  _dump(name, x)\n  return x + i\n",
        "def f(x, i):\n  return x + i\n",
    ),
    case(
        "comment stays",
        "def f(x):\n  # the name\n  name = 'a'  # short\n  _dump(name, x)\n  return x\n",
        "def f(x):\n  # the name\n  # short\n  return x\n",
    ),
    case(
        "used elsewhere",
        "def f(x):\n  name = 'a'\n  _dump(name, x)\n  return x, name\n",
        "def f(x):\n  name = 'a'\n  return x, name\n",
    ),
    case(
        "unused before stays",
        "def f(x):\n  unused = 1\n  _dump('a', x)\n  return x\n",
        "def f(x):\n  unused = 1\n  return x\n",
    ),
    case(
        "effects stay, listed",
        "def f(self, x):\n  stats = self.stats(x)\n  _dump('a', stats)\n  return x\n",
        "def f(self, x):\n  stats = self.stats(x)\n  return x\n",
        "stats = self.stats(x)",
    ),
    case(
        "unpacked together",
        "def f(x):\n  a, b = x.shape\n  _dump(f'{a}{b}', x)\n  return x\n",
        "def f(x):\n  return x\n",
    ),
    case(
        "unpacked partly stays",
        "def f(x):\n  a, b = x.shape\n  _dump(f'{a}', x)\n  return x + b\n",
        "def f(x):\n  a, b = x.shape\n  return x + b\n",
    ),
    case(
        "captured by a closure",
        "def f(x):\n  name = 'a'\n  def g(y):\n    _dump(name, y)\n    return y\n  return g(x)\n",
        "def f(x):\n  def g(y):\n    return y\n  return g(x)\n",
    ),
    case(
        "captured and used",
        "def f(x):\n  name = 'a'\n  _dump(name, x)\n  return lambda: name\n",
        "def f(x):\n  name = 'a'\n  return lambda: name\n",
    ),
    case(
        "locals() sees it",
        "def f(x):\n  name = 'a'\n  _dump(name, x)\n  return locals()\n",
        "def f(x):\n  name = 'a'\n  return locals()\n",
    ),
    case(
        "helper",
        "def f(x):\n  def label(i):\n    return f'l{i}'\n  _dump(label(1), x)\n  return x\n",
        "def f(x):\n  def label(i):\n    return f'l{i}'\n  label(1)\n  return x\n",
    ),
    case(
        "alias",
        "probe = argus_utils.dump_tensor\n\n\ndef f(x):\n  probe('a', x)\n  return probe('b', x)\n",
        "def f(x):\n  return x\n",
    ),
    case(
        "local alias",
        "def f(x):\n  probe = _dump\n  probe('a', x)\n  return x\n",
        "def f(x):\n  return x\n",
    ),
    case(
        "partial alias",
        "import functools\n_probe = functools.partial(_dump, 'router')\n\n\ndef f(x):\n  _probe(x)\n  return _probe(x + 1)\n",
        "def f(x):\n  return x + 1\n",
    ),
    case(
        "dump-only function",
        "def _dump_all(tree):\n  for k in tree:\n    _dump(k, tree[k])\n\n\ndef f(tree):\n  _dump_all(tree)\n  return tree\n",
        "def _dump_all(tree):\n  for k in tree:\n    pass\n\n\ndef f(tree):\n  _dump_all(tree)\n  return tree\n",
        "for k in tree",
    ),
    case(
        "private function that only dumps",
        "def _say(x, i):\n  name = f'l{i}'\n  _dump(name, x)\n\n\ndef f(x):\n  _say(x, 3)\n  return x\n",
        "def f(x):\n  return x\n",
    ),
    case(
        "wrapper that returns its argument",
        "def probe(name, x):\n  return _dump(name, x)\n\n\ndef f(x):\n  return probe('a', x + 1) * 2\n",
        "def f(x):\n  return (x + 1) * 2\n",
    ),
    case(
        "private method that only dumps",
        "class A:\n\n  def _say(self, x):\n    _dump('a', x)\n\n  def f(self, x):\n    self._say(x)\n    return x\n",
        "class A:\n\n  def f(self, x):\n    return x\n",
    ),
    case(
        "module constant",
        "_NAMES = ('a', 'b')\nLIMIT = 3\n\n\ndef f(x):\n  _dump(_NAMES[0], x)\n  return x + LIMIT\n",
        "LIMIT = 3\n\n\ndef f(x):\n  return x + LIMIT\n",
    ),
    case(
        "public module constant stays",
        "NAME = 'a'\n\n\ndef f(x):\n  _dump(NAME, x)\n  return x\n",
        "NAME = 'a'\n\n\ndef f(x):\n  return x\n",
    ),
]

PARAMETERS = [
    case(
        "keyword",
        "def f(x, label):\n  _dump(label, x)\n  return x * 2\n\n\nprint(f(1, label='a'))\n",
        "def f(x):\n  return x * 2\n\n\nprint(f(1))\n",
    ),
    case(
        "position, first",
        "def f(label, x):\n  _dump(label, x)\n  return x * 2\n\n\nprint(f('a', 1))\n",
        "def f(x):\n  return x * 2\n\n\nprint(f(1))\n",
    ),
    case(
        "position, middle",
        "def f(x, label, y):\n  _dump(label, x)\n  return x * y\n\n\nprint(f(1, 'a', 2))\n",
        "def f(x, y):\n  return x * y\n\n\nprint(f(1, 2))\n",
    ),
    case(
        "keyword only",
        "def f(x, *, label):\n  _dump(label, x)\n  return x * 2\n\n\nprint(f(1, label='a'))\n",
        "def f(x):\n  return x * 2\n\n\nprint(f(1))\n",
    ),
    case(
        "keyword only of two",
        "def f(x, *, label='', y):\n  _dump(label, x)\n  return x * y\n\n\nprint(f(1, label='a', y=2))\n",
        "def f(x, *, y):\n  return x * y\n\n\nprint(f(1, y=2))\n",
    ),
    case(
        "annotated default",
        "def f(x, label: str = 'l', y: int = 1):\n  _dump(label, x)\n  return x * y\n\n\nprint(f(1, 'a'), f(2))\n",
        "def f(x, y: int = 1):\n  return x * y\n\n\nprint(f(1), f(2))\n",
    ),
    case(
        "over lines",
        "def f(\n    x,\n    label=None,  # where\n):\n  _dump(label, x)\n  return x * 2\n\n\nprint(f(\n    1,\n    label='a',\n))\n",
        "def f(\n    x,\n    # where\n):\n  return x * 2\n\n\nprint(f(\n    1,\n))\n",
    ),
    case(
        "two of them",
        "def f(label, x, layer):\n  _dump(label, x, layer=layer)\n  return x * 2\n\n\nprint(f('a', 1, 'b'))\n",
        "def f(x):\n  return x * 2\n\n\nprint(f(1))\n",
    ),
    case(
        "only one",
        "def f(label):\n  _dump(label, 1)\n  return 2\n\n\nprint(f('a'))\n",
        "def f():\n  return 2\n\n\nprint(f())\n",
    ),
    case(
        "chain of calls",
        "def g(x, label):\n  _dump(label, x)\n  return x * 2\n\n\ndef f(x, label):\n  return g(x, label + '/g')\n\n\nprint(f(1, 'a'))\n",
        "def g(x):\n  return x * 2\n\n\ndef f(x):\n  return g(x)\n\n\nprint(f(1))\n",
    ),
    case(
        "local at the call",
        "def g(x, label):\n  _dump(label, x)\n  return x * 2\n\n\ndef f(x, i):\n  name = f'l{i}'\n  return g(x, name) + i\n\n\nprint(f(1, 2))\n",
        "def g(x):\n  return x * 2\n\n\ndef f(x, i):\n  return g(x) + i\n\n\nprint(f(1, 2))\n",
    ),
    case(
        "method",
        "class A:\n\n  def g(self, x, label):\n    _dump(label, x)\n    return x * 2\n\n  def f(self, x):\n    return self.g(x, 'a')\n",
        "class A:\n\n  def g(self, x):\n    return x * 2\n\n  def f(self, x):\n    return self.g(x)\n",
    ),
    case(
        "constructor",
        "class A:\n\n  def __init__(self, x, label):\n    self.x = _dump(label, x)\n\n\nprint(A(1, 'a').x)\n",
        "class A:\n\n  def __init__(self, x):\n    self.x = x\n\n\nprint(A(1).x)\n",
    ),
    case(
        "partial",
        "import functools\n\n\ndef f(x, label):\n  _dump(label, x)\n  return x * 2\n\n\ng = functools.partial(f, label='a')\nprint(g(1))\n",
        "import functools\n\n\ndef f(x):\n  return x * 2\n\n\ng = functools.partial(f)\nprint(g(1))\n",
    ),
    case(
        "docstring",
        'def f(x, label):\n  """Doubles.\n\n  Args:\n    x: a number.\n    label: where.\n  """\n  _dump(label, x)\n  return x * 2\n\n\nprint(f(1, \'a\'))\n',
        'def f(x):\n  """Doubles.\n\n  Args:\n    x: a number.\n    label: where.\n  """\n  return x * 2\n\n\nprint(f(1))\n',
        "label: where.",
    ),
    case(
        "effect at a call",
        "def f(x, label):\n  _dump(label, x)\n  return x * 2\n\n\nprint(f(1, next(names)))\n",
        "def f(x, label):\n  return x * 2\n\n\nprint(f(1, next(names)))\n",
        "f(1, next(names))",
    ),
    case(
        "star at a call",
        "def f(x, label):\n  _dump(label, x)\n  return x * 2\n\n\nprint(f(*args))\n",
        "def f(x, label):\n  return x * 2\n\n\nprint(f(*args))\n",
        "f(*args)",
    ),
    case(
        "passed on",
        "def f(x, label='a'):\n  _dump(label, x)\n  return x * 2\n\n\nprint(f(1, 'b'), run(f))\n",
        "def f(x, label='a'):\n  return x * 2\n\n\nprint(f(1, 'b'), run(f))\n",
        "def f(x, label='a'):",
    ),
    case(
        "overridden",
        "class A:\n\n  def g(self, x, label):\n    _dump(label, x)\n    return x\n\n\nclass B(A):\n\n  def g(self, x, label):\n    return label\n\n\nprint(B().g(1, 'a'), A().g(1, 'a'))\n",
        "class A:\n\n  def g(self, x, label):\n    return x\n\n\nclass B(A):\n\n  def g(self, x, label):\n    return label\n\n\nprint(B().g(1, 'a'), A().g(1, 'a'))\n",
        "def g(self, x, label):",
    ),
    case(
        "never called stays",
        "def f(x, label):\n  _dump(label, x)\n  return x * 2\n",
        "def f(x, label):\n  return x * 2\n",
    ),
    case(
        "dataclass field",
        "import dataclasses\n\n\n@dataclasses.dataclass\nclass Options:\n  width: int = 1\n  prefix: str = 'p'\n  depth: int = 2\n\n\ndef f(x, o: Options):\n  _dump(o.prefix, x)\n  return x * o.width * o.depth\n\n\nprint(f(1, Options(3, 'q', depth=1)))\n",
        "import dataclasses\n\n\n@dataclasses.dataclass\nclass Options:\n  width: int = 1\n  depth: int = 2\n\n\ndef f(x, o: Options):\n  return x * o.width * o.depth\n\n\nprint(f(1, Options(3, depth=1)))\n",
    ),
]

FLAGS = [
    case(
        "guard",
        "def f(x, dump_enabled=False):\n  if dump_enabled:\n    _dump('a', x)\n  return x\n\n\nprint(f(1, dump_enabled=True), f(2, True), f(3))\n",
        "def f(x):\n  return x\n\n\nprint(f(1), f(2), f(3))\n",
    ),
    case(
        "never called",
        "def f(x, dump_enabled=False):\n  if dump_enabled:\n    _dump('a', x)\n  return x\n",
        "def f(x):\n  return x\n",
    ),
    case(
        "conditional expression",
        "def f(x, dump_enabled=False):\n  if dump_enabled:\n    _dump('a', x)\n  y = x + 1 if dump_enabled else x\n  return y\n",
        "def f(x):\n  y = x\n  return y\n",
    ),
    case(
        "else is hoisted",
        "def f(x, dump_enabled=False):\n  if dump_enabled:\n    _dump('a', x)\n  else:\n    # normal\n    x = x + 1\n\n    x = x * 2\n  return x\n",
        "def f(x):\n  # normal\n  x = x + 1\n\n  x = x * 2\n  return x\n",
    ),
    case(
        "not",
        "def f(x, dump_enabled=False):\n  if dump_enabled:\n    _dump('a', x)\n  if not dump_enabled:\n    x = x + 1\n  else:\n    x = x + 2\n  return x\n",
        "def f(x):\n  x = x + 1\n  return x\n",
    ),
    case(
        "strings are not moved",
        "def f(x, dump_enabled=False):\n  if dump_enabled:\n    _dump('a', x)\n  else:\n    x = '''one\n    two'''\n  return x\n",
        "def f(x):\n  x = '''one\n    two'''\n  return x\n",
    ),
    case(
        "elif",
        "def f(x, a, dump_enabled=False):\n  if a:\n    x = 1\n  elif dump_enabled:\n    _dump('a', x)\n  else:\n    x = 2\n  return x\n",
        "def f(x, a):\n  if a:\n    x = 1\n  else:\n    x = 2\n  return x\n",
    ),
    case(
        "before elif",
        "def f(x, a, dump_enabled=False):\n  if dump_enabled:\n    _dump('a', x)\n  elif a:\n    x = 2\n  return x\n",
        "def f(x, a):\n  if a:\n    x = 2\n  return x\n",
    ),
    case(
        "and",
        "def f(x, a, dump_enabled=False):\n  if a and dump_enabled:\n    _dump('a', x)\n    print(a)\n  return x\n",
        "def f(x, a):\n  return x\n",
    ),
    case(
        "or",
        "def f(x, a, dump_enabled=False):\n  if dump_enabled:\n    _dump('a', x)\n  if a or dump_enabled:\n    x = x + 1\n  return x\n",
        "def f(x, a):\n  if a:\n    x = x + 1\n  return x\n",
    ),
    case(
        "and not",
        "def f(x, a, dump_enabled=False):\n  if dump_enabled:\n    _dump('a', x)\n  return x if not dump_enabled and a else 0\n",
        "def f(x, a):\n  return x if a else 0\n",
    ),
    case(
        "dumper",
        "def f(config, steps):\n  dumper = argus_utils.Dumper(config)\n  for step in steps:\n    x = step + 1\n    if dumper.is_dump_step(step):\n      dumper.save(step, x=x)\n    print(x)\n",
        "def f(config, steps):\n  for step in steps:\n    x = step + 1\n    print(x)\n",
    ),
    case(
        "dumper or none",
        "def f(config, x):\n  dumper = argus_utils.Dumper(config) if config.argus_dump_dir else None\n  if dumper is not None and x:\n    dumper.save(1, x=x)\n  return x\n",
        "def f(config, x):\n  return x\n",
    ),
    case(
        "dumper as argument",
        "def g(x, dumper):\n  dumper.save(1, x=x)\n  return x + 1\n\n\ndef f(config, x):\n  dumper = argus_utils.Dumper(config)\n  return g(x, dumper)\n",
        "def g(x):\n  return x + 1\n\n\ndef f(config, x):\n  return g(x)\n",
    ),
    case(
        "dumper attribute",
        "class T:\n\n  def __init__(self, config):\n    self.config = config\n    self.dumper = argus_utils.Dumper(config)\n\n  def step(self, i):\n    if self.dumper.is_dump_step(i):\n      self.dumper.save(i)\n    return i\n",
        "class T:\n\n  def __init__(self, config):\n    self.config = config\n\n  def step(self, i):\n    return i\n",
    ),
    case(
        "with dumper",
        "def f(config, x):\n  dumper = argus_utils.Dumper(config)\n  with dumper:\n    x = x + 1\n    x = x * 2\n  return x\n",
        "def f(config, x):\n  x = x + 1\n  x = x * 2\n  return x\n",
    ),
    case(
        "with dumper beside another",
        "def f(config, x, mesh):\n  dumper = argus_utils.Dumper(config)\n  with mesh, dumper.recording() as d:\n    x = x + 1\n  return x\n",
        "def f(config, x, mesh):\n  with mesh:\n    x = x + 1\n  return x\n",
    ),
    case(
        "setting",
        "def f(config, x):\n  if config.argus_dump_stats:\n    _dump('a', x)\n  else:\n    x = x + 1\n  return x\n",
        "def f(config, x):\n  x = x + 1\n  return x\n",
    ),
    case(
        "getattr",
        "def f(config, x):\n  if getattr(config, 'argus_dump_stats', False):\n    print('dumping')\n  return x\n",
        "def f(config, x):\n  return x\n",
    ),
    case(
        "flag local",
        "def f(config, x):\n  dumping = bool(config.argus_dump_dir)\n  if dumping:\n    print('dumping')\n  return x\n",
        "def f(config, x):\n  return x\n",
    ),
    case(
        "flag attribute",
        "class A:\n\n  def __init__(self, config):\n    self.x = 1\n    self.dump_on = config.argus_dump_every > 0\n\n  def f(self, x):\n    if self.dump_on:\n      _dump('a', x)\n    return x + self.x\n",
        "class A:\n\n  def __init__(self, config):\n    self.x = 1\n\n  def f(self, x):\n    return x + self.x\n",
    ),
    case(
        "setting used as a value",
        "def f(config):\n  return open(config.argus_dump_dir)\n",
        "def f(config):\n  return open(config.argus_dump_dir)\n",
        "config.argus_dump_dir",
    ),
    case(
        "static names",
        "def f(x, n, dump_enabled=False):\n  if dump_enabled:\n    _dump('a', x)\n  return x * n\n\n\ng = jax.jit(f, static_argnames=('n', 'dump_enabled'))\nprint(g(1, n=2, dump_enabled=True))\n",
        "def f(x, n):\n  return x * n\n\n\ng = jax.jit(f, static_argnames=('n',))\nprint(g(1, n=2))\n",
    ),
    case(
        "static name alone",
        "def f(x, dump_enabled=False):\n  if dump_enabled:\n    _dump('a', x)\n  return x\n\n\ng = jax.jit(f, static_argnames='dump_enabled')\nprint(g(1))\n",
        "def f(x):\n  return x\n\n\ng = jax.jit(f)\nprint(g(1))\n",
    ),
    case(
        "static numbers",
        "def f(dump_enabled=False, x=1, n=2):\n  if dump_enabled:\n    _dump('a', x)\n  return x * n\n\n\ng = jax.jit(f, static_argnums=(0, 2))\nprint(g(False, 2, 3))\n",
        "def f(x=1, n=2):\n  return x * n\n\n\ng = jax.jit(f, static_argnums=(0, 2))\nprint(g(2, 3))\n",
        "static_argnums",
    ),
    case(
        "spread",
        "def f(x, dump_enabled=False):\n  if dump_enabled:\n    _dump('a', x)\n  return x\n\n\ndef g(x):\n  kwargs = {'x': x, 'dump_enabled': True}\n  return f(**kwargs)\n",
        "def f(x):\n  return x\n\n\ndef g(x):\n  kwargs = {'x': x}\n  return f(**kwargs)\n",
    ),
    case(
        "opaque call by keyword",
        "def f(x, dump_enabled=False):\n  if dump_enabled:\n    _dump('a', x)\n  return x\n\n\ndef g(wrap, x, config):\n  dumper = argus_utils.Dumper(config)\n  step = wrap(f)\n  return step(x, dump_enabled=dumper.is_dump_step(1))\n",
        "def f(x):\n  return x\n\n\ndef g(wrap, x, config):\n  step = wrap(f)\n  return step(x)\n",
    ),
    case(
        "result",
        "def f(x, dump_enabled=False):\n  if dump_enabled:\n    _dump('a', x)\n  return x, 2, x if dump_enabled else None\n\n\na, b, raw = f(1)\n_dump('r', raw)\nprint(a, b)\n",
        "def f(x):\n  return x, 2\n\n\na, b = f(1)\nprint(a, b)\n",
    ),
    case(
        "result to one",
        "def f(x, dump_enabled=False):\n  if dump_enabled:\n    _dump('a', x)\n  return (x, x if dump_enabled else None)\n\n\na, raw = f(1)\nprint(a)\n",
        "def f(x):\n  return (x)\n\n\na = f(1)\nprint(a)\n",
    ),
    case(
        "result annotation",
        "def f(x, dump_enabled=False) -> tuple[int, int, object]:\n  if dump_enabled:\n    _dump('a', x)\n  return x, 2, x if dump_enabled else None\n\n\na, b, _ = f(1)\nprint(a, b)\n",
        "def f(x) -> tuple[int, int]:\n  return x, 2\n\n\na, b = f(1)\nprint(a, b)\n",
    ),
    case(
        "result used whole",
        "def f(x, dump_enabled=False):\n  if dump_enabled:\n    _dump('a', x)\n  return x, x if dump_enabled else None\n\n\nprint(f(1))\n",
        "def f(x):\n  return x, None\n\n\nprint(f(1))\n",
        "return x, x if dump_enabled else None",
    ),
    case(
        "unrelated flag",
        "import json\n\n\ndef write(rows, f, dump_enabled=False):\n  _dump('a', rows)\n  if dump_enabled:\n    json.dump(rows, f)\n",
        "import json\n\n\ndef write(rows, f, dump_enabled=False):\n  if dump_enabled:\n    json.dump(rows, f)\n",
    ),
    case(
        "setting in arguments",
        "def main(run):\n  _dump('a', 1)\n  run(['base.yml', 'argus_dump_dir=/tmp', 'steps=1'], argus_dump_every=3)\n",
        "def main(run):\n  run(['base.yml', 'steps=1'])\n",
    ),
]

MORE = [
    case(
        "enumerate",
        "def f(xs):\n  for i, x in enumerate(xs):\n    _dump(f'x{i}', x)\n    print(x)\n",
        "def f(xs):\n  for x in xs:\n    print(x)\n",
    ),
    case(
        "enumerate in brackets",
        "def f(xs, ys):\n  for (i, (x, y)) in enumerate(zip(xs, ys)):\n    _dump(f'x{i}', x)\n    print(x, y)\n",
        "def f(xs, ys):\n  for (x, y) in zip(xs, ys):\n    print(x, y)\n",
    ),
    case(
        "enumerate with a use",
        "def f(xs):\n  for i, x in enumerate(xs):\n    _dump(f'x{i}', x)\n    print(x)\n  return i\n",
        "def f(xs):\n  for i, x in enumerate(xs):\n    print(x)\n  return i\n",
    ),
    case(
        "enumerate from one",
        "def f(xs):\n  for i, x in enumerate(xs, 1):\n    _dump(f'x{i}', x)\n    print(x)\n",
        "def f(xs):\n  for i, x in enumerate(xs, 1):\n    print(x)\n",
    ),
    case(
        "import in the block",
        "def f(x, cfg):\n  if cfg.debug:\n    import numpy as np\n    _dump('a', np.asarray(x))\n  return x\n",
        "def f(x, cfg):\n  return x\n",
    ),
    case(
        "import of the hook in a function",
        "def f(x):\n  from MaxText.utils.argus_utils import dump_tensor\n  dump_tensor('a', x)\n",
        "def f(x):\n  pass\n",
    ),
    case(
        "field given by replace",
        "import dataclasses\n\n\n@dataclasses.dataclass\nclass O:\n  a: int = 1\n  prefix: str = 'p'\n\n\n"
        "def f(x, o: O):\n  _dump(o.prefix, x)\n  return x * o.a\n\n\nprint(f(1, dataclasses.replace(O(), prefix='q')))\n",
        "import dataclasses\n\n\n@dataclasses.dataclass\nclass O:\n  a: int = 1\n  prefix: str = 'p'\n\n\n"
        "def f(x, o: O):\n  return x * o.a\n\n\nprint(f(1, dataclasses.replace(O(), prefix='q')))\n",
        "dataclasses.replace",
    ),
    case(
        "value of a function that only dumps",
        "def _say(x):\n  _dump('a', x)\n\n\ndef f(x):\n  y = _say(x)\n  return y\n",
        "def _say(x):\n  pass\n\n\ndef f(x):\n  y = _say(x)\n  return y\n",
    ),
    case(
        "flag of a while",
        "def f(x, dump_enabled=False):\n  while dump_enabled:\n    _dump('a', x)\n  return x\n",
        "def f(x):\n  return x\n",
    ),
    case(
        "method called on something unknown",
        "class A:\n\n  def g(self, x, label):\n    _dump(label, x)\n    return x * 2\n\n\n"
        "def f(obj):\n  return A().g(1, 'b') + obj.g(1, 'a')\n",
        "class A:\n\n  def g(self, x, label):\n    return x * 2\n\n\n"
        "def f(obj):\n  return A().g(1, 'b') + obj.g(1, 'a')\n",
        "def g(self, x, label):",
    ),
    case(
        "same call, another function",
        "def f(x, label):\n  _dump(label, x)\n  return x * 2\n\n\ndef k(x, label):\n  return label\n\n\n"
        "h = f if jax else k\nprint(h(1, 'a'))\n",
        "def f(x, label):\n  return x * 2\n\n\ndef k(x, label):\n  return label\n\n\n"
        "h = f if jax else k\nprint(h(1, 'a'))\n",
        "h(1, 'a')",
    ),
    case(
        "spread from elsewhere",
        "def g(x, label='a'):\n  _dump(label, x)\n  return x * 2\n\n\ndef f(**kw):\n  return g(**kw)\n",
        "def g(x, label='a'):\n  return x * 2\n\n\ndef f(**kw):\n  return g(**kw)\n",
        "g(**kw)",
    ),
    case(
        "backslash",
        "def f(x):\n  y = _dump('a', x) \\\n      + 1\n  _dump('b', \\\n     y)\n  return y\n",
        "def f(x):\n  y = x \\\n      + 1\n  return y\n",
    ),
    case(
        "form feed",
        "def f(x):\n  return x\n\n\x0c\ndef g(x):\n  _dump('a', x)\n  return x\n",
        "def f(x):\n  return x\n\n\x0c\ndef g(x):\n  return x\n",
    ),
    case(
        "no ASCII",
        "def f(x):\n  y = 'ü😀'; _dump('é', x)  # für\n  return y, _dump('ß', x)\n",
        "def f(x):\n  y = 'ü😀'  # für\n  return y, x\n",
    ),
    case("everything is gone", "_dump('a', 1)\n", ""),
]

KEPT = [
    same("json", "import json\n\n\ndef f(x, h):\n  json.dump(x, h)\n  return json.dumps(x)\n"),
    same("other name", "def _dump_tensor_count():\n  return 3\n\n\nprint(_dump_tensor_count())\n"),
    same(
        "unrelated method",
        "class Recorder:\n\n  def dump_tensor(self, name, x):\n    return len(name)\n\n  def flush(self):\n    return self.dump_tensor('a', 1)\n\n\nRecorder().dump_tensor('b', 2)\n",
    ),
    same("shadowed by a parameter", "def f(_dump, x):\n  _dump('a', x)\n  return _dump\n"),
    same("shadowed by a local", "def f(x):\n  _dump = print\n  _dump('a', x)\n"),
    same(
        "class attribute",
        "class A:\n  dumpable = True\n  dump_enabled = False\n\n\nprint(A.dumpable, A.dump_enabled)\n",
    ),
    same("string with the hook's name", "print('dump_tensor is a hook')\n"),
    case(
        "patched",
        "from unittest import mock\n\n\ndef test_f():\n  with mock.patch('MaxText.utils.argus_utils.dump_tensor'):\n    print(1)\n",
        "from unittest import mock\n\n\ndef test_f():\n  with mock.patch('MaxText.utils.argus_utils.dump_tensor'):\n    print(1)\n",
        "mock.patch",
    ),
    same("asserted", "def test_f():\n  x = 1\n  assert _dump('x', x) is x\n", "def test_f():"),
    same(
        "conditional rebinding",
        "import os\n\nif os.environ.get('X'):\n  _dump = print\n_dump('a', 1)\n",
        "_dump('a', 1)",
    ),
]

FAMILIES = {
    "decorators": DECORATORS,
    "statements": STATEMENTS,
    "values": VALUES,
    "blocks": BLOCKS,
    "locals": LOCALS,
    "parameters": PARAMETERS,
    "flags": FLAGS,
    "more": MORE,
    "kept": KEPT,
}
ALL_CASES = [
    pytest.param(c, id=f"{family}: {c.name}") for family, cases in FAMILIES.items() for c in cases
]


def body(text: str) -> str:
    return text.partition("# ---")[2].lstrip("\r\n")


@pytest.mark.parametrize("item", ALL_CASES)
def test_case(item: Case) -> None:
    before = HEADER + item.before
    result = strip({ARGUS_PATH: ARGUS, PATH: before})
    assert body(result.texts[PATH]) == item.after
    listed = result.listed(PATH, before)
    assert len(listed) == len(item.listed), [s.reason for s in result.sites[PATH]]
    for line, wanted in zip(listed, item.listed, strict=True):
        assert wanted in line
    # Nothing to do a second time, and no new white space at line ends.
    again = strip({ARGUS_PATH: ARGUS, PATH: result.texts[PATH]})
    assert again.texts[PATH] == result.texts[PATH]
    assert not any(line != line.rstrip() for line in result.texts[PATH].splitlines())


@pytest.mark.parametrize("item", ALL_CASES[::5])
def test_line_ends_are_kept(item: Case) -> None:
    before = (HEADER + item.before).replace("\n", "\r\n")
    result = strip({ARGUS_PATH: ARGUS, PATH: before})
    assert body(result.texts[PATH]) == item.after.replace("\n", "\r\n")


@pytest.mark.parametrize("item", ALL_CASES[::7])
def test_no_final_newline(item: Case) -> None:
    before = HEADER + item.before.rstrip("\n")
    result = strip({ARGUS_PATH: ARGUS, PATH: before})
    assert body(result.texts[PATH]).rstrip("\n") == item.after.rstrip("\n")


def test_there_are_many_cases() -> None:
    assert len(ALL_CASES) >= 120
