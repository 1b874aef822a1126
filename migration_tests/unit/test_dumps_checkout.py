"""The dump rules on several files: hooks followed through modules, and what falls on both sides of a call."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from codemods.engine.context import PythonFile
from codemods.rules import dumps
from migration_tests.unit.dump_driver import ALL, ARGUS, ARGUS_PATH, Stripped, make_plan, strip

FIXTURES = Path(__file__).parents[1] / "fixtures"
HOOKS = "from MaxText.utils.argus_utils import dump_tensor as _dump_tensor, dumpable as _dumpable\n"


def run(**files: str) -> Stripped:
    """Strip files given by module: `train="…"` is src/MaxText/train.py."""
    texts = {f"src/MaxText/{name.replace('__', '/')}.py": text for name, text in files.items()}
    return strip({ARGUS_PATH: ARGUS, **texts})


def text(result: Stripped, name: str) -> str:
    return result.texts[f"src/MaxText/{name.replace('__', '/')}.py"]


def reasons(result: Stripped, name: str) -> list[str]:
    return [s.reason for s in result.sites[f"src/MaxText/{name.replace('__', '/')}.py"]]


def test_reexport_through_a_module() -> None:
    result = run(
        debug="from MaxText.utils.argus_utils import dump_tensor as probe\n\n__all__ = ['probe']\n",
        a="from MaxText.debug import probe\n\n\ndef f(x):\n  probe('a', x)\n  return probe('b', x + 1)\n",
        b="from .debug import probe as look\n\n\ndef f(x):\n  look('a', x)\n  return x\n",
        c="from MaxText import debug\n\n\ndef f(x):\n  debug.probe('a', x)\n  return x\n",
    )
    assert text(result, "debug") == "\n__all__ = []\n"
    assert text(result, "a").strip() == "def f(x):\n  return x + 1"
    assert text(result, "b").strip() == "def f(x):\n  return x"
    assert text(result, "c").strip() == "def f(x):\n  return x"
    assert not any(result.sites.values())


def test_reexport_stays_while_a_listed_use_needs_it() -> None:
    result = run(
        debug="from MaxText.utils.argus_utils import dump_tensor as probe\n",
        a="from MaxText.debug import probe\n\n\ndef f(xs):\n  return map(probe, xs)\n",
    )
    assert "probe" in text(result, "debug")
    assert text(result, "a").startswith("from MaxText.debug import probe\n")
    assert len(reasons(result, "a")) == 1


def test_star_import_of_the_dumper() -> None:
    result = run(
        a="from MaxText.utils.argus_utils import *\n\n\ndef f(x):\n  dump_tensor('a', x)\n  return x\n"
    )
    assert text(result, "a").endswith("def f(x):\n  return x\n")
    assert len(reasons(result, "a")) == 1


def test_full_dotted_names() -> None:
    result = run(
        a="import MaxText.utils.argus_utils\nimport MaxText.layers\n\n\ndef f(x):\n"
        "  MaxText.utils.argus_utils.dump_tensor('a', x)\n  return x, MaxText.layers\n"
    )
    assert text(result, "a") == "import MaxText.layers\n\n\ndef f(x):\n  return x, MaxText.layers\n"


def test_module_imported_under_another_name() -> None:
    result = run(
        a="import MaxText.utils.argus_utils as ag\n\n\n@ag.dumpable\ndef f(x):\n  return ag.dump_tensor('a', x)\n"
    )
    assert text(result, "a").strip() == "def f(x):\n  return x"


def test_type_checking_import_and_quoted_annotation() -> None:
    result = run(
        a="from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n  from MaxText.utils.argus_utils import Dumper\n\n\n"
        "def f(x, dumper: 'Dumper | None' = None):\n  if dumper is not None:\n    dumper.save(x)\n  return x\n"
    )
    assert "Dumper" not in text(result, "a")
    assert "def f(x):\n  return x\n" in text(result, "a")


def test_import_fallbacks() -> None:
    result = run(
        a="try:\n  from MaxText.utils import argus_utils\n\n  HAS_ARGUS = True\nexcept ImportError:\n"
        "  argus_utils = None\n  HAS_ARGUS = False\n\n\ndef f(x):\n  if HAS_ARGUS:\n"
        "    argus_utils.dump_tensor('a', x)\n  if argus_utils is not None and x:\n    argus_utils.dump_tensor('b', x)\n"
        "  return x\n",
        b="try:\n  from MaxText.utils.argus_utils import dumpable\nexcept ImportError:\n  def dumpable(f):\n    return f\n"
        "\n\n@dumpable\ndef f(x):\n  return x\n",
    )
    assert text(result, "a") == "def f(x):\n  return x\n"
    assert text(result, "b") == "def f(x):\n  return x\n"


def test_fallback_stays_with_a_listed_use() -> None:
    source = (
        "try:\n  from MaxText.utils.argus_utils import dump_tensor\nexcept ImportError:\n"
        "  def dump_tensor(name, x):\n    return x\n\n\nHOOKS = [dump_tensor]\n"
    )
    result = run(a=source)
    assert text(result, "a") == source
    assert len(reasons(result, "a")) == 1


def test_parameter_goes_from_calls_in_other_files() -> None:
    result = run(
        layers__block=HOOKS
        + "\n\ndef block(x, layer_name, y):\n  _dump_tensor(layer_name, x)\n  return x * y\n",
        use="from MaxText.layers import block as b\nfrom MaxText.layers.block import block\n\n\ndef f(x, i):\n"
        "  name = f'l{i}'\n  return block(x, name, i) + b.block(x, y=i, layer_name=name)\n",
    )
    assert "def block(x, y):\n  return x * y\n" in text(result, "layers__block")
    assert text(result, "use").endswith("def f(x, i):\n  return block(x, i) + b.block(x, y=i)\n")


def test_parameter_stays_when_one_file_passes_the_function_on() -> None:
    result = run(
        block=HOOKS
        + "\n\ndef block(x, label):\n  _dump_tensor(label, x)\n  return x * 2\n\n\nblock(1, 'a')\n",
        use="from MaxText.block import block\n\n\ndef f(run):\n  return run(block)\n",
    )
    assert "def block(x, label):\n  return x * 2\n" in text(result, "block")
    assert "block(1, 'a')" in text(result, "block")
    assert any("passed on" in reason for reason in reasons(result, "block"))


def test_flag_and_result_through_jit_and_partial() -> None:
    result = run(
        train="import jax\n\nfrom MaxText import train_utils\nfrom MaxText.utils import argus_utils\n\n\n"
        "def train_step(model, state, data, dump_enabled=False):\n  raw_grads = model(state, data)\n"
        "  state = state.apply(raw_grads)\n  return state, {'loss': 1}, raw_grads if dump_enabled else None\n\n\n"
        "def loop(config, model, state, data):\n  p_step = train_utils.jit_step(train_step, model)\n"
        "  dumper = argus_utils.Dumper(config)\n  for step in range(3):\n"
        "    state, metrics, raw_grads = p_step(state, data, dump_enabled=dumper.is_dump_step(step))\n"
        "    if dumper.is_dump_step(step):\n      dumper.save(step, grads=raw_grads)\n    print(metrics)\n  return state\n",
        train_utils="import functools\n\nimport jax\n\n\ndef jit_step(train_step, model):\n"
        "  functional, *_ = bind(train_step, model)\n"
        "  return jax.jit(functional, static_argnames=('dump_enabled',))\n\n\n"
        "def bind(train_step, model):\n  return functools.partial(train_step, model), None\n",
    )
    assert text(result, "train") == (
        "import jax\n\nfrom MaxText import train_utils\n\n\n"
        "def train_step(model, state, data):\n  raw_grads = model(state, data)\n"
        "  state = state.apply(raw_grads)\n  return state, {'loss': 1}\n\n\n"
        "def loop(config, model, state, data):\n  p_step = train_utils.jit_step(train_step, model)\n"
        "  for step in range(3):\n    state, metrics = p_step(state, data)\n    print(metrics)\n  return state\n"
    )
    assert "  return jax.jit(functional)\n" in text(result, "train_utils")
    assert not any(result.sites.values())


def test_result_stays_when_shardings_are_given_by_position() -> None:
    result = run(
        train="import jax\n\nfrom MaxText.utils import argus_utils\n\n\n"
        "def step(state, dump_enabled=False):\n  return state, state if dump_enabled else None\n\n\n"
        "def loop(config, state):\n  dumper = argus_utils.Dumper(config)\n"
        "  p_step = jax.jit(step, out_shardings=(None, None), static_argnames='dump_enabled')\n"
        "  state, raw = p_step(state, dump_enabled=dumper.is_dump_step(1))\n  dumper.save(1, raw=raw)\n  return state\n"
    )
    assert "def step(state):\n  return state, None\n" in text(result, "train")
    assert "state, raw = p_step(state)\n" in text(result, "train")
    assert any("shardings" in reason for reason in reasons(result, "train"))


def test_result_stays_when_a_file_uses_it() -> None:
    result = run(
        train="from MaxText.utils import argus_utils\n\n\ndef step(state, dump_enabled=False):\n"
        "  if dump_enabled:\n    argus_utils.dump_tensor('a', state)\n"
        "  return state, state if dump_enabled else None\n",
        use="from MaxText.train import step\n\nstate, raw = step(1)\nprint(raw)\n",
    )
    assert "return state, None\n" in text(result, "train")
    assert (
        text(result, "use")
        == "from MaxText.train import step\n\nstate, raw = step(1)\nprint(raw)\n"
    )
    assert len(reasons(result, "train")) == 1


def test_function_that_only_dumps_goes_with_its_calls() -> None:
    result = run(
        report=HOOKS
        + '\n\ndef record(counts, layer_name):\n  """For Argus."""\n  name = layer_name + \'/e\'\n'
        "  _dump_tensor(name, counts)\n\n\ndef other():\n  return 1\n",
        use="from MaxText import report\n\n\ndef f(x, i):\n  layer = f'l{i}'\n  report.record(x, layer_name=layer)\n"
        "  return x, report.other(), i\n",
    )
    assert "record" not in text(result, "report")
    assert text(result, "use").endswith("def f(x, i):\n  return x, report.other(), i\n")


def test_function_that_only_dumps_and_is_never_called_keeps_its_name() -> None:
    result = run(report=HOOKS + "\n\ndef record(x):\n  _dump_tensor('a', x)\n")
    assert text(result, "report").endswith("def record(x):\n  pass\n")


def test_without_definition_value_forms_are_listed() -> None:
    source = (
        HOOKS
        + "\n\n@_dumpable\ndef f(x):\n  _dump_tensor('a', x)\n  y = _dump_tensor('b', x)\n  return y\n"
    )
    result = strip({"src/MaxText/a.py": source})
    after = result.texts["src/MaxText/a.py"]
    assert "@_dumpable" not in after
    assert "_dump_tensor('a', x)" not in after
    assert "  y = _dump_tensor('b', x)\n" in after
    assert "import dump_tensor as _dump_tensor" in after
    assert [s.reason for s in result.sites["src/MaxText/a.py"]] == [
        "the hook's definition is not in the checkout, so what the call returns cannot be read"
    ]


def test_hook_that_does_not_return_its_argument() -> None:
    argus = "def dump_tensor(name, x):\n  return x * 1\n\n\ndef dumpable(f):\n  return f\n"
    source = HOOKS + "\n\ndef f(x):\n  _dump_tensor('a', x)\n  return _dump_tensor('b', x)\n"
    result = strip({ARGUS_PATH: argus, "src/MaxText/a.py": source})
    assert "  return _dump_tensor('b', x)\n" in result.texts["src/MaxText/a.py"]
    assert "_dump_tensor('a', x)" not in result.texts["src/MaxText/a.py"]
    assert len(result.sites["src/MaxText/a.py"]) == 1


@pytest.mark.parametrize(
    ("definition", "returns"),
    [
        ("def dump_tensor(name, x):\n  print(name)\n  return x\n", True),
        ("def dump_tensor(name, x):\n  if name:\n    return x\n  return x\n", True),
        ("def dump_tensor(name, x):\n  if name:\n    return x\n", False),
        ("def dump_tensor(name, x):\n  x = x + 1\n  return x\n", False),
        ("def dump_tensor(name, x):\n  return name\n", False),
        ("def dump_tensor(name, x):\n  yield x\n", False),
        (
            "def dump_tensor(name, x):\n  try:\n    print(name)\n    return x\n  except OSError:\n    return x\n",
            True,
        ),
        ("def dump_tensor(name, x):\n  with open(name):\n    return x\n", True),
        ("def dump_tensor(name, x):\n  print(name)\n", False),
    ],
)
def test_what_the_definition_says(definition: str, returns: bool) -> None:
    source = HOOKS + "\n\ndef f(x):\n  y = _dump_tensor('b', x)\n  return y\n"
    result = strip(
        {ARGUS_PATH: definition + "\n\ndef dumpable(f):\n  return f\n", "src/MaxText/a.py": source}
    )
    assert ("  y = x\n" in result.texts["src/MaxText/a.py"]) is returns


def test_dumper_module_is_left_and_named() -> None:
    result = run(a=HOOKS)
    assert result.plan.modules == {"MaxText.utils.argus_utils"}
    assert result.texts[ARGUS_PATH] == ARGUS


def test_unused_imports_that_were_unused_before_stay() -> None:
    result = run(
        a="import os\nimport numpy as np\n"
        + HOOKS
        + "\n\ndef f(x):\n  _dump_tensor('a', np.sum(x))\n  return x\n"
    )
    assert text(result, "a") == "import os\n\n\ndef f(x):\n  return x\n"


def test_a_checkout_without_hooks_costs_nothing() -> None:
    plan = make_plan({"src/MaxText/a.py": "import json\n\n\ndef f(x, h):\n  json.dump(x, h)\n"})
    assert plan == dumps.DumpPlan()


def test_python_outside_the_checkout_is_stripped_by_what_is_known() -> None:
    plan = make_plan(
        {
            ARGUS_PATH: ARGUS,
            "src/MaxText/debug.py": "from MaxText.utils.argus_utils import dump_tensor as probe\n",
        }
    )
    cell = "from MaxText.debug import probe\nx = 1\nprobe('x', x)\ny = probe('y', x)\nprint(y)\n"
    project = type("P", (), {"dumps": plan, "enabled": ALL})()
    file = PythonFile("notebooks/a.ipynb", cell, project)
    dumps.python(file)
    assert [cell[e.start : e.end] for e in file.edits if "probe('x'" in cell[e.start : e.end]]
    assert len(file.unused) == 1


def test_calls_that_were_not_looked_at_are_listed() -> None:
    plan = make_plan(
        {
            ARGUS_PATH: ARGUS,
            "src/MaxText/a.py": HOOKS
            + "\n\ndef twice(x, label):\n  _dump_tensor(label, x)\n  return x * 2\n\n\nprint(twice(1, 'a'))\n",
        }
    )
    assert plan.changed == {"twice"}
    cell = "from MaxText.a import twice\ny = twice(2, 'b')\n"
    project = type("P", (), {"dumps": plan, "enabled": ALL})()
    file = PythonFile("notebooks/a.ipynb", cell, project)
    dumps.python(file)
    assert file.edits == []
    assert [cell[s.start : s.end] for s in file.sites] == ["twice"]


def test_switched_off_rules_leave_what_depends_on_them() -> None:
    source = (
        HOOKS
        + "\n\n@_dumpable\ndef f(x, i):\n  name = f'l{i}'\n  _dump_tensor(name, x)\n  return x + i\n"
    )
    result = strip({ARGUS_PATH: ARGUS, "src/MaxText/a.py": source}, ALL - {"DMP002"})
    assert result.texts["src/MaxText/a.py"] == source.replace("@_dumpable\n", "")
    result = strip({ARGUS_PATH: ARGUS, "src/MaxText/a.py": source}, ALL - {"DMP004"})
    assert "  name = f'l{i}'\n  return x + i\n" in result.texts["src/MaxText/a.py"]


MOE = '''\
"""Experts."""
import jax
import jax.numpy as jnp

from MaxText.utils.argus_utils import dump_tensor as _dump_tensor, dumpable as _dumpable


@_dumpable("gate")
class GateLogit:
  """Router."""

  @_dumpable
  def __call__(self, x):
    logits = self.proj(x)
    _dump_tensor("logits", logits)
    return logits, None


class RoutedMoE:
  """Experts."""

  def get_topk(self, logits):
    weights, chosen = jax.lax.top_k(logits, self.k)
    weights = _dump_tensor("weights", weights / jnp.sum(weights))
    return weights, chosen

  @_dumpable("moe")
  # The hook sits under the name scope.
  @jax.named_scope("moe")
  def __call__(self, inputs):
    layer_name = f"moe_{self.index}"
    layer_name_experts = f"{layer_name}_experts"
    layer_name_router = layer_name + "_router"
    logits, _ = self.gate(inputs)
    _dump_tensor(layer_name_router, logits)
    weights, chosen = self.get_topk(logits)
    # Every expert on every token.
    hidden = _dump_tensor("hidden", jax.nn.silu(inputs) * weights, layer=layer_name_experts)
    if self.config.debug:
      _dump_tensor(f"{layer_name_experts}/out", hidden)
    else:
      hidden = self.shard(hidden)
    _dump_tensor("chosen", chosen); counts = jnp.bincount(chosen)
    return hidden, None, _dump_tensor("z", jnp.mean(logits)), counts, None
'''
MOE_AFTER = '''\
"""Experts."""
import jax
import jax.numpy as jnp



class GateLogit:
  """Router."""

  def __call__(self, x):
    logits = self.proj(x)
    return logits, None


class RoutedMoE:
  """Experts."""

  def get_topk(self, logits):
    weights, chosen = jax.lax.top_k(logits, self.k)
    weights = weights / jnp.sum(weights)
    return weights, chosen

  # The hook sits under the name scope.
  @jax.named_scope("moe")
  def __call__(self, inputs):
    logits, _ = self.gate(inputs)
    weights, chosen = self.get_topk(logits)
    # Every expert on every token.
    hidden = jax.nn.silu(inputs) * weights
    if not self.config.debug:
      hidden = self.shard(hidden)
    counts = jnp.bincount(chosen)
    return hidden, None, jnp.mean(logits), counts, None
'''


def test_like_the_forks_moe() -> None:
    result = run(moe=MOE)
    assert text(result, "moe") == MOE_AFTER
    assert reasons(result, "moe") == []


def read_fixture(name: str) -> dict[str, str]:
    """The Python files of an example checkout."""
    root = FIXTURES / name
    found = {}
    for path in sorted(root.rglob("*.py")):
        data = path.read_bytes()
        try:
            found[path.relative_to(root).as_posix()] = data.decode("utf-8-sig")
        except UnicodeDecodeError:
            found[path.relative_to(root).as_posix()] = data.decode("latin-1")
    return found


@pytest.mark.parametrize("name", ["ant_pretrain", "ant_pretrain_variant"])
def test_example_checkouts_end_after_one_pass(name: str) -> None:
    files = read_fixture(name)
    once = strip(files)
    assert sum(len(e) for e in once.edits.values()) > 50
    twice = strip(once.texts)
    assert twice.texts == once.texts
    # No hook is left but on lines that are listed, and where the module that they come from is imported.
    for path, after in once.texts.items():
        # `debug` and `utils` hand hooks on to files with listed uses.
        if (
            path.startswith("tests/")
            or once.sites[path]
            or path.endswith(("/debug.py", "/utils/__init__.py"))
        ):
            continue
        if path == ARGUS_PATH:
            continue
        assert "argus_utils" not in after, path
        assert "_dump_tensor(" not in after, path
        assert "dump_enabled" not in after, path


@pytest.mark.parametrize("length", [10, 200])
def test_long_chains(length: int) -> None:
    total = " + ".join(["x"] * length)
    arms = "".join(f"  elif x == {i}:\n    x = {i}\n" for i in range(length))
    result = run(
        a=f"{HOOKS}\n\ndef f(x):\n  if x == -1:\n    x = {total}\n{arms}  _dump_tensor('x', x)\n  return x\n"
    )
    assert text(result, "a").endswith(f"    x = {length - 1}\n  return x\n")


def test_what_python_cannot_parse_is_listed() -> None:
    plan = make_plan({ARGUS_PATH: ARGUS})
    source = "dump_tensor('a', " + " + ".join(["x"] * 9000) + ")\n"
    project = type("P", (), {"dumps": plan, "enabled": ALL})()
    file = PythonFile.__new__(PythonFile)
    file.path, file.text, file.project = "tools/a.py", source, project
    file.module_name, file.is_package, file.edits, file.sites = "", False, [], []
    dumps.python(file)
    assert file.edits == []
    assert [source[s.start : s.end] for s in file.sites] == ["dump_tensor"]


def test_makers_of_decorators_and_helpers_are_not_taken_for_what_they_wrap() -> None:
    argus = (
        "def dump_tensor(name, x):\n  return x\n\n\n"
        "def dumpable(label):\n  def decorator(f):\n    def wrapper(*a):\n      return f(*a)\n    return wrapper\n"
        "  return decorator\n\n\n"
        "def dump_tree(tree):\n  def leaf(x):\n    return x + 1\n  return [leaf(x) for x in tree]\n"
    )
    source = (
        "from MaxText.utils.argus_utils import dumpable, dump_tree\n\n\n@dumpable('a')\ndef f(x):\n  return x\n\n\n"
        "def g(name, tree):\n  decorate = dumpable(name)\n  return decorate(f), dump_tree(tree)\n"
    )
    result = strip({ARGUS_PATH: argus, "src/MaxText/a.py": source})
    after = result.texts["src/MaxText/a.py"]
    assert after == source.replace("@dumpable('a')\n", "")
    assert len(result.sites["src/MaxText/a.py"]) >= 2


def test_plan_travels_to_workers() -> None:
    plan = make_plan({ARGUS_PATH: ARGUS, "src/MaxText/a.py": HOOKS + "_dump_tensor('a', 1)\n"})
    assert pickle.loads(pickle.dumps(plan)) == plan


def test_what_depends_on_each_other_stands_or_falls_together() -> None:
    result = run(
        a=HOOKS
        + "\n\n@_dumpable\ndef f(x, i):\n  name = f'l{i}'\n  _dump_tensor(name, x)\n  return x + i\n"
    )
    groups = {edit.rule: edit.group for edit in result.edits["src/MaxText/a.py"]}
    assert groups == {"DMP001": "", "DMP004": "dumps", "DMP002": "dumps"}
