"""The dump rules' descriptions and examples."""

from __future__ import annotations

from codemods.rules.base import Example, Rule

_ARGUS = """\
def dump_tensor(name, x, layer=None):
  return x


def dump_stats(name, tree):
  print(name, tree)


def dumpable(target=None, *, name=None):
  def wrapper(*args, **kwargs):
    return target(*args, **kwargs)

  return wrapper


class Dumper:
  def __init__(self, config):
    self.config = config
"""
_FILES = {"src/MaxText/utils/argus_utils.py": _ARGUS}
_IMPORT = "import os\nfrom MaxText.utils.argus_utils import dump_tensor as _dump_tensor, dumpable as _dumpable\n\n\n"


def _example(before: str, after: str, *listed: str, path: str = "tools/example.py") -> Example:
    return Example(before, after, path, listed, _FILES)


RULES: tuple[Rule, ...] = (
    Rule(
        "DMP001",
        "safe",
        "Remove the decorators that dump what a function or class returns.",
        "With and without arguments, stacked, on functions, methods and classes, under any name by which the "
        "decorator was imported, re-exported or assigned. Comments on lines of their own stay; a comment "
        "behind the decorator is listed. A decorator whose argument may do something is listed.",
        (
            _example(
                _IMPORT + '@os.jit\n# why\n@_dumpable("f")\ndef f(x):\n  return x\n',
                "import os\n\n\n@os.jit\n# why\ndef f(x):\n  return x\n",
            ),
        ),
    ),
    Rule(
        "DMP002",
        "safe",
        "Remove statements that only call a hook, and blocks that are left empty by it.",
        "Arguments that only read values go with the call; a call that may do something stays as a statement, "
        "a walrus as an assignment. An `if` whose test only reads values goes when it is left empty; with an "
        "`else` its test is turned round. Any other block keeps its header with `pass` and is listed. Comments "
        "stay, on lines of their own.",
        (
            _example(
                _IMPORT
                + 'def f(x):\n  y = x * 2\n  # eq. 3\n  _dump_tensor("y", y)  # tail\n  return y\n',
                "import os\n\n\ndef f(x):\n  y = x * 2\n  # eq. 3\n  # tail\n  return y\n",
            ),
            _example(
                _IMPORT
                + 'def f(x, cfg):\n  if cfg.debug:\n    _dump_tensor("x", x)\n  else:\n    x = x + 1\n  return x\n',
                "import os\n\n\ndef f(x, cfg):\n  if not cfg.debug:\n    x = x + 1\n  return x\n",
            ),
            _example(
                _IMPORT + 'def f(xs):\n  for x in xs:\n    _dump_tensor("x", x)\n  return xs\n',
                "import os\n\n\ndef f(xs):\n  for x in xs:\n    pass\n  return xs\n",
                "for x in xs:",
            ),
        ),
    ),
    Rule(
        "DMP003",
        "safe",
        "Put the argument in place of a hook call whose value is used.",
        "Only if the hook returns that argument unchanged on every path, by its definition in the checkout. "
        "Brackets are kept where precedence needs them. In a lambda or comprehension, and in a test that asserts "
        "something of a hook, the call is listed and left.",
        (
            _example(
                _IMPORT
                + 'def f(a, b):\n  y = _dump_tensor("sum", a + b) * 2\n  return _dump_tensor("y", y)\n',
                "import os\n\n\ndef f(a, b):\n  y = (a + b) * 2\n  return y\n",
            ),
        ),
    ),
    Rule(
        "DMP004",
        "review",
        "Remove locals, aliases and helper functions that only fed dumps.",
        "A name goes when every use of it went with a dump and what it was set to only reads values; otherwise "
        "it stays and is listed. A function that does nothing but dump goes with its calls, if all its calls are "
        "seen; one that is never called keeps its name and an empty body.",
        (
            _example(
                _IMPORT
                + 'def f(x, layer):\n  layer_name = f"layer_{layer}"\n  _dump_tensor("x", x, layer=layer_name)\n'
                "  return x + layer\n",
                "import os\n\n\ndef f(x, layer):\n  return x + layer\n",
            ),
        ),
    ),
    Rule(
        "DMP005",
        "review",
        "Remove parameters that only fed dumps, and what calls give for them.",
        "From the definition and every call in the checkout, by position, by keyword, through functools.partial, "
        "through a dictionary that is spread into calls, and from static_argnames. If the function is passed to "
        "code that is not seen, is overridden, or what a call gives may do something, the parameter stays and is "
        "listed. Settings of the dumper (`argus_…`) given in calls go too.",
        (
            _example(
                _IMPORT
                + 'def f(x, label):\n  _dump_tensor(label, x)\n  return x * 2\n\n\nprint(f(1, label="one"))\n',
                "import os\n\n\ndef f(x):\n  return x * 2\n\n\nprint(f(1))\n",
            ),
        ),
    ),
    Rule(
        "DMP006",
        "review",
        "Fold what depends on whether a step is dumped to what it is when nothing is dumped.",
        "Flags are parameters, fields and locals that a dumper or one of its settings gives a value, or that have "
        "a dump word in their name and guard a hook. Tests, conditional expressions and `and`/`or` of them are "
        "folded; dumpers are removed with all that is done with them.",
        (
            Example(
                "import os\nfrom MaxText.utils import argus_utils\n\n\ndef loop(config, steps, run):\n"
                "  dumper = argus_utils.Dumper(config)\n  for step in steps:\n    state = run(step)\n"
                "    if dumper.is_dump_step(step):\n      dumper.save(step, state)\n    print(state)\n",
                "import os\n\n\ndef loop(config, steps, run):\n  for step in steps:\n    state = run(step)\n    print(state)\n",
                files=_FILES,
            ),
            _example(
                _IMPORT
                + 'def f(x, dump_enabled=False):\n  if dump_enabled:\n    _dump_tensor("x", x)\n'
                "  y = x if dump_enabled else None\n  return x, [y]\n",
                "import os\n\n\ndef f(x):\n  y = None\n  return x, [y]\n",
            ),
        ),
    ),
    Rule(
        "DMP007",
        "review",
        "Remove returned values that are None when nothing is dumped, and the names they are unpacked to.",
        "Only if every call of the function is seen and unpacks its result by name, and the name has no other "
        "use. Otherwise the position stays, as None, and is listed.",
        (
            _example(
                _IMPORT
                + 'def step(x, dump_enabled=False):\n  if dump_enabled:\n    _dump_tensor("x", x)\n'
                "  return x + 1, x if dump_enabled else None\n\n\ny, raw = step(1, dump_enabled=True)\n"
                '_dump_tensor("raw", raw)\nprint(y)\n',
                "import os\n\n\ndef step(x):\n  return x + 1\n\n\ny = step(1)\nprint(y)\n",
            ),
        ),
    ),
    Rule(
        "DMP008",
        "safe",
        "Remove imports of the dump machinery, and imports that only removed code used.",
        "Also names in `__all__`, and a `try` that only imports hooks or stands in for them. An import that was "
        "unused before stays.",
        (
            _example(
                "try:\n  from MaxText.utils.argus_utils import dump_tensor\nexcept ImportError:\n\n"
                '  def dump_tensor(name, x):\n    return x\n\n\ndef f(x):\n  dump_tensor("x", x)\n  return x\n',
                "def f(x):\n  return x\n",
            ),
        ),
    ),
    Rule(
        "DMP009",
        "report",
        "List what has to do with dumps and cannot be removed with certainty.",
        "Hooks used as values, calls in lambdas and comprehensions, tests of the dumper, blocks left empty, "
        "comments that stood in removed code, names of removed parameters in strings and docstrings.",
        (
            _example(
                _IMPORT + 'def f(xs, hook=_dump_tensor):\n  return [hook("x", x) for x in xs]\n',
                "import os\nfrom MaxText.utils.argus_utils import dump_tensor as _dump_tensor\n\n\n"
                'def f(xs, hook=_dump_tensor):\n  return [hook("x", x) for x in xs]\n',
                "hook=_dump_tensor",
            ),
        ),
    ),
)
