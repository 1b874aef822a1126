"""Forms that a stranger wrote from the description alone and that once came out wrong, one test for each kind."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from migration_tests.support import Outcome, migrate_files

ARGUS = '''\
"""The dumper."""
import functools

_DUMPER = None


def dump_tensor(name, tensor, step=None):
  if _DUMPER is None:
    return tensor
  _DUMPER.add(name, tensor, step)
  return tensor


def dumpable(arg=None):
  def deco(fn, name=None):
    @functools.wraps(fn)
    def wrapped(*args, **kwargs):
      out = fn(*args, **kwargs)
      dump_tensor(name or fn.__name__, out)
      return out
    return wrapped
  if callable(arg):
    return deco(arg)
  return functools.partial(deco, name=arg)


class Dumper:
  def __init__(self, config):
    self.dir = config.argus_dump_dir

  def is_dump_step(self, step):
    return bool(self.dir)
'''


def judge(root: Path, **files: str) -> Outcome:
    """Migrate a small checkout; `layers__x="…"` is src/MaxText/layers/x.py."""
    texts: dict[str, str | bytes] = {
        "src/MaxText/__init__.py": "",
        "src/MaxText/train.py": "def main():\n  pass\n",
        "src/MaxText/layers/__init__.py": "",
        "src/MaxText/layers/moe.py": "class RoutedMoE:\n  pass\n",
        "src/MaxText/utils/__init__.py": "",
        "src/MaxText/utils/argus_utils.py": ARGUS,
    }
    texts |= {
        (
            name
            if "." in name or name[0].isupper()
            else f"src/MaxText/{name.replace('__', '/')}.py"
        ): text
        for name, text in files.items()
    }
    outcome = migrate_files(root, texts)
    for path, text in outcome.texts.items():
        if path.endswith(".py"):
            ast.parse(text)
    return outcome


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('run "argus_dump_steps=[0, 1]" x=1\n', "run x=1\n"),
        ("run 'argus_dump_filter=a b' x=1\n", "run x=1\n"),
        ("run argus_dump_steps=`seq 1 3` x=1\n", "run x=1\n"),
        ("out=`run argus_dump_dir=/x`\n", "out=`run`\n"),
        ('E="argus_dump_steps=[0, 1] x=1"\n', 'E="x=1"\n'),
        ("A=(\n  'argus_dump_filter=a b'\n  x=1\n)\n", "A=(\n  x=1\n)\n"),
        ('run \\\n  "argus_dump_steps=[0, 1]"\n', "run\n"),
    ],
)
def test_quoted_dump_parameters(tmp_path: Path, before: str, after: str) -> None:
    assert judge(tmp_path, **{"a.sh": before}).texts["a.sh"] == after


def test_exported_setting_is_listed(tmp_path: Path) -> None:
    outcome = judge(tmp_path, **{"a.sh": "export argus_dump_dir=/x\n"})
    assert outcome.texts["a.sh"] == "export argus_dump_dir=/x\n"
    assert [s.rule for s in outcome.listed("a.sh", 1)] == ["TXT014"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a: [x=1, argus_dump_dir=/x, y=1]\n", "a: [x=1, y=1]\n"),
        ("a: [argus_dump_dir=/x]\n", "a: []\n"),
        ("a: [x=1, argus_dump_dir=/x]\n", "a: [x=1]\n"),
        ("a:\n  - argus_dump_dir=/x  # why\n  - x=1\n", "a:\n  # why\n  - x=1\n"),
    ],
)
def test_dump_parameters_in_yaml_lists(tmp_path: Path, before: str, after: str) -> None:
    assert judge(tmp_path, **{"job.yaml": before}).texts["job.yaml"] == after


def test_dump_parameters_in_json_lists(tmp_path: Path) -> None:
    args = [
        ["argus_dump_dir=/x"],
        ["x", "argus_dump_steps=[1, 2]", "argus_dump_dir=/x"],
        ["argus_dump_dir=/x", "y"],
    ]
    for indent in (None, 2):
        text = json.dumps({"args": args}, indent=indent) + "\n"
        outcome = judge(tmp_path / str(indent), **{"launch.json": text})
        assert json.loads(outcome.texts["launch.json"]) == {"args": [[], ["x"], ["y"]]}
        assert not [s for s in outcome.sites if s.file == "launch.json"]


HOOKS = "from MaxText.utils.argus_utils import dump_tensor, dumpable\n\n\n"
AT = "src/maxtext/layers/a.py"


def test_asserted_hook_outside_tests(tmp_path: Path) -> None:
    text = (
        HOOKS
        + "def f(x):\n  y = dump_tensor('y', x * 2)\n  assert dump_tensor('a', y), 'zero'\n  return y\n"
    )
    outcome = judge(tmp_path, layers__a=text)
    assert outcome.texts[AT] == "\n\ndef f(x):\n  y = x * 2\n  assert y, 'zero'\n  return y\n"
    assert not outcome.sites


def test_counting_loop_left_empty_keeps_its_header(tmp_path: Path) -> None:
    text = (
        HOOKS
        + "def f(xs):\n  for i, x in enumerate(xs):\n    dump_tensor(f'x{i}', x)\n  return xs\n"
    )
    outcome = judge(tmp_path, layers__a=text)
    assert "  for i, x in enumerate(xs):\n    pass\n  return xs\n" in outcome.texts[AT]
    assert [s.rule for s in outcome.listed("src/MaxText/layers/a.py", 5)] == ["DMP009"]


def test_decorator_called_by_hand_is_never_lost(tmp_path: Path) -> None:
    text = HOOKS + "class M:\n  c = dumpable('c')(lambda self: 1)\n\n\nW = dumpable('W')(M)\n"
    first = judge(tmp_path / "first", layers__a=text)
    assert "c = dumpable" in first.texts[AT]
    assert "W = dumpable" in first.texts[AT]
    second = migrate_files(tmp_path / "second", first.texts)
    assert second.texts == first.texts


def test_dump_enabled_without_a_dumper(tmp_path: Path) -> None:
    text = (
        "def step(x, dump_enabled: bool = False):\n  return x, 1, x if dump_enabled else None\n\n\n"
        "def loop(x):\n  a, b, raw = step(x, dump_enabled=False)\n  c, d, _ = step(a)\n  return b, c, d\n"
    )
    outcome = judge(tmp_path, layers__a=text)
    assert outcome.texts[AT] == (
        "def step(x):\n  return x, 1\n\n\n"
        "def loop(x):\n  a, b = step(x)\n  c, d = step(a)\n  return b, c, d\n"
    )


def test_dump_enabled_that_is_switched_on_is_listed(tmp_path: Path) -> None:
    text = (
        "def step(x, dump_enabled=False):\n  return x, x if dump_enabled else None\n\n\n"
        "def loop(x):\n  a, raw = step(x, dump_enabled=True)\n  return a, raw\n"
    )
    outcome = judge(tmp_path, layers__a=text)
    assert outcome.texts[AT] == text
    assert [s.rule for s in outcome.listed("src/MaxText/layers/a.py", 6)] == ["DMP009"]


def test_hook_kept_as_a_class_attribute_is_listed(tmp_path: Path) -> None:
    text = (
        HOOKS
        + "class B:\n  hook = staticmethod(dump_tensor)\n\n  def f(self, x):\n    return self.hook('x', x)\n"
    )
    outcome = judge(tmp_path, layers__a=text)
    assert outcome.listed("src/MaxText/layers/a.py", 5)


MOE = "from MaxText.layers import moe\n\n\ndef f(cfg, x, z=None):\n  layer = moe.RoutedMoE(cfg)\n"


@pytest.mark.parametrize(
    ("line", "listed"),
    [
        ("  out, lb, z, c, s = y = layer(x)\n", True),
        ("  (out, lb, z, c, s), k = layer(x), 1\n", True),
        ("  for out, lb, z, c, s in [layer(t) for t in x]:\n    print(out)\n", True),
        ("  t = [(o, l) for o, l, z, c, s in (layer(t) for t in x)]\n", True),
        ("  if t := layer(x):\n    print(t[4])\n", True),
        ("  print(layer(x)[-1], layer(x)[0])\n", True),
        ("  z = layer(x)[2]\n", True),
        ("  (out, lb, z, c, s), state = layer.apply(x, x, mutable=[])\n", True),
        ("  out, lb = layer(x)[:2]\n", False),
        ("  out = layer(x)[0]\n", False),
    ],
)
def test_five_values_in_other_places(tmp_path: Path, line: str, listed: bool) -> None:
    outcome = judge(tmp_path, layers__a=MOE + line)
    assert line in outcome.texts[AT]
    assert [s.rule for s in outcome.sites if s.line >= 6] == ["API001"] * listed


def test_five_values_of_a_conditional(tmp_path: Path) -> None:
    text = MOE + "  out, lb, zl, c, s = layer(x) if x else layer(z)\n  return out, lb\n"
    outcome = judge(tmp_path, layers__a=text)
    assert "  out, lb, *_ = layer(x) if x else layer(z)\n" in outcome.texts[AT]


def test_removed_parameter_in_a_dictionary_is_listed(tmp_path: Path) -> None:
    text = (
        "from MaxText.layers import moe\n\n\n"
        "def f(layer, x, page_state):\n  kw = {'page_state': page_state}\n  return layer(x, **kw)\n"
    )
    outcome = judge(tmp_path, layers__a=text)
    assert [s.rule for s in outcome.listed("src/MaxText/layers/a.py", 5)] == ["API003"]


def test_comment_behind_a_removed_argument_takes_its_place(tmp_path: Path) -> None:
    text = (
        "from MaxText.layers.attention_mla import MLA\n\nlayer = MLA(\n    ep_key_axis_names=('a',),  # why\n"
        "    name='x',\n)\n"
    )
    assert "(\n    # why\n    name='x',\n)\n" in judge(tmp_path, layers__a=text).texts[AT]


@pytest.mark.parametrize("option", ["--cov={}", "--cov {} tests", "--source={}", '--cov="{}"'])
@pytest.mark.parametrize("name", ["a.sh", "ci.yml", "Makefile", "setup.cfg", "docs/x.md"])
def test_options_that_name_the_package(tmp_path: Path, name: str, option: str) -> None:
    before, after = (f"x: pytest {option.format(root)}\n" for root in ("MaxText", "maxtext"))
    assert judge(tmp_path, **{name: before}).texts[name] == after


def test_package_as_a_key_of_an_inline_table(tmp_path: Path) -> None:
    text = '[tool.setuptools]\npackage-dir = {"" = "src", MaxText = "src/MaxText"}\n'
    outcome = judge(tmp_path, **{"pyproject.toml": text})
    assert 'package-dir = {"" = "src", maxtext = "src/maxtext"}' in outcome.texts["pyproject.toml"]


def test_flag_of_a_differentiated_function(tmp_path: Path) -> None:
    text = (
        "import jax\nfrom MaxText.utils import argus_utils\n\n\n"
        "def loss_fn(model, data, params, is_train=True, dump_enabled=False):\n"
        "  if dump_enabled:\n    argus_utils.dump_tensor('d', data)\n  return model(data), {}\n\n\n"
        "def step(model, data, params, dump_enabled=False):\n"
        "  grad_func = jax.value_and_grad(loss_fn, argnums=2, has_aux=True)\n"
        "  (loss, aux), raw_grads = grad_func(model, data, params, dump_enabled=dump_enabled)\n"
        "  return loss, raw_grads if dump_enabled else None\n\n\n"
        "def loop(config, model):\n  dumper = argus_utils.Dumper(config)\n"
        "  p_step = jax.jit(step, static_argnames=('dump_enabled',))\n  for i in range(3):\n"
        "    loss, raw = p_step(model, 1, 2, dump_enabled=dumper.is_dump_step(i))\n"
        "    print(loss)\n"
    )
    assert judge(tmp_path, layers__a=text).texts[AT] == (
        "import jax\n\n\n"
        "def loss_fn(model, data, params, is_train=True):\n  return model(data), {}\n\n\n"
        "def step(model, data, params):\n"
        "  grad_func = jax.value_and_grad(loss_fn, argnums=2, has_aux=True)\n"
        "  (loss, aux), raw_grads = grad_func(model, data, params)\n  return loss\n\n\n"
        "def loop(config, model):\n  p_step = jax.jit(step)\n  for i in range(3):\n"
        "    loss = p_step(model, 1, 2)\n    print(loss)\n"
    )


def test_flag_that_an_unknown_wrapper_is_given_stays(tmp_path: Path) -> None:
    text = (
        "from MaxText.utils.argus_utils import dump_tensor\n\n\n"
        "def loss_fn(x, dump_enabled=False):\n  if dump_enabled:\n    dump_tensor('d', x)\n  return x\n\n\n"
        "def step(x, wrap, dump_enabled=False):\n"
        "  return wrap(loss_fn)(x, dump_enabled=dump_enabled)\n"
    )
    outcome = judge(tmp_path, layers__a=text)
    assert "def loss_fn(x, dump_enabled=False):\n  return x\n" in outcome.texts[AT]
    assert "DMP009" in [s.rule for s in outcome.listed("src/MaxText/layers/a.py", 11)]


def test_pattern_of_the_models_files(tmp_path: Path) -> None:
    files = {
        "src/MaxText/configs/models/al_model.yml": "model_name: al_model\n",
        "src/MaxText/configs/models/al_model_mini.yml": "model_name: al_model\n",
        "CODEOWNERS": "src/MaxText/configs/models/al_model*.yml @a\n",
    }
    first = judge(tmp_path / "first", **files)
    assert first.texts["CODEOWNERS"] == "src/maxtext/configs/models/ling2*.yml @a\n"
    assert migrate_files(tmp_path / "second", first.texts).texts == first.texts
