"""Known ways to go wrong when decorators and calls are removed, each with its right output."""

from __future__ import annotations

import pytest

from migration_tests.unit.dump_driver import ARGUS, ARGUS_PATH, Stripped, strip

IMPORTS = "from MaxText.utils.argus_utils import dump_tensor as _probe_tensor, dumpable as _probe\n"
PATH = "src/MaxText/layers/some.py"


def run(source: str, argus: str = ARGUS) -> tuple[str, Stripped]:
    """The text after the imports, and everything."""
    result = strip({ARGUS_PATH: argus, PATH: IMPORTS + "# ---\n" + source})
    return result.texts[PATH].partition("# ---\n")[2], result


def lines(result: Stripped, source: str) -> list[str]:
    return result.listed(PATH, IMPORTS + "# ---\n" + source)


# A call that cannot be removed from its expression ------------------------------------------------


def test_value_is_the_argument_if_the_hook_returns_it() -> None:
    after, _ = run("def f(x):\n  y = _probe_tensor('a', x)\n  return y\n")
    assert after == "def f(x):\n  y = x\n  return y\n"


def test_value_stays_if_the_hook_returns_something_else() -> None:
    argus = "def dump_tensor(name, x):\n  return x * 1\n\n\ndef dumpable(f):\n  return f\n"
    source = "def f(x):\n  y = _probe_tensor('a', x)\n  return y\n"
    after, result = run(source, argus)
    assert after == source
    assert lines(result, source) == ["  y = _probe_tensor('a', x)"]


@pytest.mark.parametrize(
    "source",
    [
        "g = lambda x: _probe_tensor('a', x) or x\n",
        "def f(xs):\n  return [_probe_tensor('a', t) for t in xs]\n",
        "xs = []\n[_probe_tensor('a', t) for t in xs]\n",
    ],
)
def test_lambda_and_comprehension_are_listed_and_unchanged(source: str) -> None:
    after, result = run(source)
    assert after == source
    assert len(lines(result, source)) == 1
    assert "dump_tensor as _probe_tensor" in result.texts[PATH]


def test_walrus_in_the_argument_stays_as_an_assignment() -> None:
    after, _ = run("def f(x):\n  _probe_tensor('a', (y := x * 2))\n  return y\n")
    assert after == "def f(x):\n  y = x * 2\n  return y\n"


# Blocks left empty --------------------------------------------------------------------------------


def test_if_with_a_pure_test_goes() -> None:
    after, result = run("def f(x, cfg):\n  if cfg.debug:\n    _probe_tensor('q', x)\n  return x\n")
    assert after == "def f(x, cfg):\n  return x\n"
    assert result.sites[PATH] == []


def test_if_with_a_test_that_may_do_something_stays() -> None:
    source = "def f(x, cfg):\n  if cfg.debug():\n    _probe_tensor('q', x)\n  return x\n"
    after, result = run(source)
    assert after == "def f(x, cfg):\n  if cfg.debug():\n    pass\n  return x\n"
    assert lines(result, source) == ["  if cfg.debug():"]


def test_if_with_else_is_turned_round() -> None:
    after, _ = run(
        "def f(x, cfg):\n  if cfg.debug:\n    _probe_tensor('q', x)\n  else:\n    x = x + 1\n  return x\n"
    )
    assert after == "def f(x, cfg):\n  if not cfg.debug:\n    x = x + 1\n  return x\n"


@pytest.mark.parametrize(
    ("header", "tail"),
    [
        ("with scope('dbg'):", ""),
        ("for i, x in enumerate(xs):", ""),
        ("while xs.next():", ""),
        ("try:", "  except ValueError:\n    raise\n"),
    ],
)
def test_other_headers_stay_with_pass_and_are_listed(header: str, tail: str) -> None:
    source = f"def f(x, xs, scope):\n  {header}\n    _probe_tensor('q', x)\n{tail}  return x\n"
    after, result = run(source)
    assert after == f"def f(x, xs, scope):\n  {header}\n    pass\n{tail}  return x\n"
    assert lines(result, source) == [f"  {header}"]


def test_def_with_docstring_keeps_the_docstring_alone() -> None:
    after, _ = run("def f(x):\n  '''Says x.'''\n  _probe_tensor('q', x)\n")
    assert after == "def f(x):\n  '''Says x.'''\n"


def test_def_with_the_call_only_gets_pass() -> None:
    after, _ = run("def f(x):\n  _probe_tensor('q', x)\n")
    assert after == "def f(x):\n  pass\n"


# Comments next to what is removed -----------------------------------------------------------------


def test_comment_above_a_removed_statement_stays() -> None:
    after, _ = run(
        "def f(x):\n  y = x * 2\n  # scale by two, eq. 3\n  _probe_tensor('y', y)\n  return y\n"
    )
    assert after == "def f(x):\n  y = x * 2\n  # scale by two, eq. 3\n  return y\n"


def test_comment_between_decorators_stays_and_one_behind_is_listed() -> None:
    source = "import jax\n\n\n@jax.jit\n# why\n@_probe  # tail\ndef f(): ...\n"
    after, result = run(source)
    assert after == "import jax\n\n\n@jax.jit\n# why\ndef f(): ...\n"
    assert lines(result, source) == ["@_probe  # tail"]
    assert "# tail" in result.sites[PATH][0].reason


def test_comment_above_the_first_decorator_stays() -> None:
    after, result = run("# why\n@_probe('n')\ndef f(): ...\n")
    assert after == "# why\ndef f(): ...\n"
    assert result.sites[PATH] == []


def test_statement_before_another_on_its_line() -> None:
    after, _ = run("def f(x):\n  _probe_tensor('a', x); y = x\n  return y\n")
    assert after == "def f(x):\n  y = x\n  return y\n"
