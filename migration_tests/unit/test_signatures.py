"""Signature changes: every form before and after, look-alikes, idempotence."""

from __future__ import annotations

import ast
import hashlib
from dataclasses import dataclass, field

import libcst as cst
import pytest

from codemods.engine.context import PythonFile
from codemods.engine.edits import apply, settle
from codemods.engine.project import Options, Project
from codemods.maps import symbols
from codemods.maps.model import Entry, MoveMap, SignatureChange, TreeId
from codemods.maps.symbols import SymbolTable
from codemods.rules import signatures
from codemods.rules.dumps import DumpPlan


def changed(old: str, new: str) -> SignatureChange:
    def names(text: str) -> list[str]:
        arguments = ast.parse(f"def f({text}): pass").body[0].args  # type: ignore[attr-defined]
        return [a.arg for a in (*arguments.args, *arguments.kwonlyargs)]

    required = [
        n for n in names(new) if n not in names(old) and f"{n}=" not in new and n not in names(old)
    ]
    removed = [n for n in names(old) if n not in names(new)]
    return SignatureChange(old, new, tuple(removed), tuple(required))


CHANGES = {
    "MaxText.layers.attention_mla.MLA": changed(
        "config, mesh=None, ep_query_axis_names=('b',), ep_out_axis_names=('b',), rngs=None",
        "config, mesh=None, rngs=None",
    ),
    "MaxText.layers.attention_mla.MLA.__call__": changed(
        "inputs_q, inputs_kv, positions=None, *, deterministic=False, page_state=None, slot=None",
        "inputs_q, inputs_kv, positions=None, *, deterministic=False, slot=None",
    ),
    "MaxText.layers.attention_op.AttentionOp": changed(
        "config, flash_axis_names_q_ep=('q',), dropout=0.0", "config, dropout=0.0"
    ),
    "MaxText.layers.deepseek.DeepSeekGenericLayer.attention_op": changed(
        "x, deterministic, page_state=None", "x, deterministic, model_mode"
    ),
    "MaxText.layers.deepseek.DeepSeekGenericLayer.__call__": changed(
        "inputs, page_state=None, slot=None", "inputs, slot=None"
    ),
    "MaxText.layers.normalizations.Qwen3NextRMSNorm": changed(
        "num_features, eps, dtype, *, rngs", "num_features, epsilon=1e-06, dtype=None, *, rngs"
    ),
    "MaxText.multimodal_utils.get_image_offsets": changed(
        "model_name, processor_output", "config, processor_output"
    ),
    "MaxText.gradient_accumulation.gradient_accumulation_loss_and_grad": changed(
        "_loss_fn, config, data, extra_dpo_args", "_loss_fn, config, data"
    ),
    "MaxText.maxtext_utils.setup_training_state": changed(
        "model, data_iterator, tx, config", "data_iterator, config, init_state_fn"
    ),
    "MaxText.model_creation_utils.create_nnx_model": SignatureChange(
        "config, mesh=None, devices=None", "config, mesh=None, devices=None, pad=None"
    ),
    "MaxText.layers.moe.RoutedMoE.__call__": SignatureChange(
        "inputs, out_sharding=None", "inputs, input_ids=None, out_sharding=None"
    ),
}


@dataclass
class Outcome:
    text: str
    sites: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)


def migrate(
    text: str,
    path: str = "tools/example.py",
    files: dict[str, str] | None = None,
    blobs: dict[str, str] | None = None,
) -> Outcome:
    sources = {path: text, **(files or {})}
    project = Project(
        map=MoveMap(
            TreeId("base"),
            TreeId("target"),
            modules={"MaxText.layers.moe": Entry("maxtext.layers.moe", "moved")},
            signatures=CHANGES,
            blobs=blobs or {},
        ),
        enabled=frozenset(r.id for r in signatures.RULES),
        options=Options(),
        placements={},
        old=SymbolTable.from_sources({p: t.encode() for p, t in sources.items()}),
        target=SymbolTable([]),
        modules={},
        names={},
        dumps=DumpPlan(),
    )
    file = PythonFile(path, text, project, symbols.module_name(path), path.endswith("__init__.py"))
    signatures.python(file)
    edits, clashes = settle(file.edits)
    assert not clashes, clashes
    result = apply(text, edits)
    ast.parse(result)
    return Outcome(
        result,
        [text[s.start : s.end] for s in file.sites],
        [s.reason for s in file.sites],
        [cst.Module([]).code_for_node(a.name) for a in file.unused],
    )


MOE = "from MaxText.layers import moe\n\n\n"


def layer(body: str, made: str = "moe.RoutedMoE(cfg)") -> str:
    return f"{MOE}def f(self, cfg, x):\n  layer = {made}\n{body}"


# Five values → three ------------------------------------------------------------------------------

FIVE = {
    "unused": (
        "  out, lb, z, c, s = layer(x)\n  return out, lb\n",
        "  out, lb, *_ = layer(x)\n  return out, lb\n",
    ),
    "blank": (
        "  out, lb, _, _, _ = layer(x)\n  return out, lb\n",
        "  out, lb, *_ = layer(x)\n  return out, lb\n",
    ),
    "only the output": (
        "  out, _, _, _, _ = layer(x)\n  return out\n",
        "  out, *_ = layer(x)\n  return out\n",
    ),
    "brackets": (
        "  (out, lb, z, c, s) = layer(x)\n  return out, lb\n",
        "  (out, lb, *_) = layer(x)\n  return out, lb\n",
    ),
    "list": (
        "  [out, lb, z, c, s] = layer(x)\n  return out, lb\n",
        "  [out, lb, *_] = layer(x)\n  return out, lb\n",
    ),
    "several lines": (
        "  (\n      out,\n      lb,\n      z,\n      c,\n      s,\n  ) = layer(x)\n  return out, lb\n",
        "  (\n      out,\n      lb, *_,\n  ) = layer(x)\n  return out, lb\n",
    ),
    "deleted": (
        "  out, lb, z, c, s = layer(x)\n  del z, c, s\n  return out, lb\n",
        "  out, lb, *_ = layer(x)\n  return out, lb\n",
    ),
    "deleted with others": (
        "  out, lb, z, c, s = layer(x)\n  del z, x, c, s\n  return out, lb\n",
        "  out, lb, *_ = layer(x)\n  del x\n  return out, lb\n",
    ),
    "deleted one by one": (
        "  out, lb, z, c, s = layer(x)\n  del z\n  del c\n  return out, lb\n",
        "  out, lb, *_ = layer(x)\n  return out, lb\n",
    ),
    "logged": (
        "  out, lb, z, c, s = layer(x)\n  max_logging.log(f'z {z} {c}')\n  return out, lb\n",
        "  out, lb, *_ = layer(x)\n  return out, lb\n",
    ),
    "printed": (
        "  out, lb, z, c, s = layer(x)\n  print(s)\n  return out, lb\n",
        "  out, lb, *_ = layer(x)\n  return out, lb\n",
    ),
    "comment above stays": (
        "  out, lb, z, c, s = layer(x)\n  # once a step\n  print(c)\n  return out, lb\n",
        "  out, lb, *_ = layer(x)\n  # once a step\n  return out, lb\n",
    ),
    "comment behind stays": (
        "  out, lb, z, c, s = layer(x)\n  print(c)  # once\n  return out, lb\n",
        "  out, lb, *_ = layer(x)\n  # once\n  return out, lb\n",
    ),
    "lb sown stays": (
        "  out, lb, z, c, s = layer(x)\n  self.sow(I, 'lb', lb)\n  return out\n",
        "  out, lb, *_ = layer(x)\n  self.sow(I, 'lb', lb)\n  return out\n",
    ),
    "held whole": (
        "  result = layer(x)\n  out, lb, z, c, s = result\n  return out, lb\n",
        "  result = layer(x)\n  out, lb, *_ = result\n  return out, lb\n",
    ),
    "underscore is read": (
        "  out, lb, z, c, s = layer(x)\n  return _(out), lb\n",
        "  out, lb, *_rest = layer(x)\n  return _(out), lb\n",
    ),
}


TERNARY = "extra if len(extra) == 3 else (None, None, None)\n"
EITHER = {
    "sown": (
        "  out, lb, z, c, s = layer(x)\n  self.sow(I, 'z', z)\n  return out, lb\n",
        f"  out, lb, *extra = layer(x)\n  z, _, _ = {TERNARY}"
        "  if z is not None:\n    self.sow(I, 'z', z)\n  return out, lb\n",
    ),
    "sown if there": (
        "  out, lb, z, c, s = layer(x)\n  if z is not None:\n    self.sow(I, 'z', z)\n  return out, lb\n",
        f"  out, lb, *extra = layer(x)\n  z, _, _ = {TERNARY}"
        "  if z is not None:\n    self.sow(I, 'z', z)\n  return out, lb\n",
    ),
    "appended": (
        "  out, lb, _, c, _ = layer(x)\n  self.counts.append(c)\n  return out, lb\n",
        f"  out, lb, *extra = layer(x)\n  _, c, _ = {TERNARY}"
        "  if c is not None:\n    self.counts.append(c)\n  return out, lb\n",
    ),
    "sown, printed and deleted": (
        "  out, lb, z, c, s = layer(x)\n  # eq. 4\n  self.sow(\n      I,\n      z,\n  )\n  print(c)\n  del s\n  return out\n",
        f"  out, lb, *extra = layer(x)\n  z, c, s = {TERNARY}  # eq. 4\n  if z is not None:\n    self.sow(\n"
        "      I,\n      z,\n  )\n  if c is not None:\n    print(c)\n  del s\n  return out\n",
    ),
    "name taken": (
        "  out, lb, z, c, extra = layer(x)\n  self.sow(I, 'z', z)\n  return out\n",
        "  out, lb, *extra_values = layer(x)\n"
        "  z, _, _ = extra_values if len(extra_values) == 3 else (None, None, None)\n"
        "  if z is not None:\n    self.sow(I, 'z', z)\n  return out\n",
    ),
    "comment behind the call": (
        "  out, lb, z, c, s = layer(x)  # experts\n  self.sow(I, 'z', z)\n  return out\n",
        f"  out, lb, *extra = layer(x)  # experts\n  z, _, _ = {TERNARY}"
        "  if z is not None:\n    self.sow(I, 'z', z)\n  return out\n",
    ),
}


@pytest.mark.parametrize("name", EITHER)
def test_values_that_other_code_may_read_stay(name):
    before, after = EITHER[name]
    outcome = migrate(layer(before))
    assert outcome.text == layer(after)
    assert outcome.sites == []
    assert migrate(outcome.text) == Outcome(outcome.text)


@pytest.mark.parametrize("values", [(1, 2, 3, 4, 5), (1, 2, 3)])
def test_both_numbers_of_values_are_taken(values):
    """The rewritten code run: with five values it records as before, with three not at all."""
    before = (
        "  out, lb, z, c, s = layer(x)\n  self.sow('z', z)\n  self.sow('c', c)\n  return out, lb\n"
    )
    text = migrate(layer(before)).text.replace(MOE, "").replace("moe.RoutedMoE(cfg)", "cfg")
    namespace: dict[str, object] = {}
    exec(compile(text, "caller", "exec"), namespace)
    sown: list[tuple[str, int]] = []
    module = type("Module", (), {"sow": lambda self, name, value: sown.append((name, value))})()
    assert namespace["f"](module, lambda x: values, None) == (1, 2)  # type: ignore[operator]
    assert sown == ([("z", 3), ("c", 4)] if len(values) == 5 else [])


@pytest.mark.parametrize("name", FIVE)
def test_five_values(name):
    before, after = FIVE[name]
    outcome = migrate(layer(before))
    assert outcome.text == layer(after)
    assert outcome.sites == []
    assert migrate(outcome.text) == Outcome(outcome.text)


MADE = {
    "shared": "moe.RoutedAndSharedMoE(cfg)",
    "linen": "moe.get_routed_moe(cfg)",
    "linen shared": "moe.get_routed_and_shared_moe(cfg)",
    "either": "moe.RoutedMoE(cfg) if cfg.a else moe.RoutedAndSharedMoE(cfg)",
}


@pytest.mark.parametrize("name", MADE)
def test_five_values_of_every_maker(name):
    outcome = migrate(layer("  a, b, c, d, e = layer(x)\n  return a, b\n", MADE[name]))
    assert "  a, b, *_ = layer(x)\n" in outcome.text


def test_five_values_of_an_attribute():
    text = (
        f"{MOE}class Layer:\n\n  def __init__(self, cfg):\n    self.block = moe.RoutedMoE(cfg)\n\n"
        "  def __call__(self, x):\n    out, lb, z, c, s = self.block(x)\n    return out\n"
    )
    assert "    out, lb, *_ = self.block(x)\n" in migrate(text).text


def test_five_values_of_an_attribute_known_by_name():
    text = "class L(Base):  # MaxText\n\n  def g(self, x):\n    o, l, z, c, s = self.ALMoeBlock_0(x)\n    return o\n"
    assert "    o, l, *_ = self.ALMoeBlock_0(x)\n" in migrate(text).text


def test_five_values_called_at_once():
    text = f"{MOE}def f(cfg, x):\n  a, b, c, d, e = moe.get_routed_moe(cfg)(x)\n  return a\n"
    assert "  a, b, *_ = moe" in migrate(text).text


USED = {
    "added": "  out, lb, z, c, s = layer(x)\n  return out, lb + z\n",
    "returned": "  out, lb, z, c, s = layer(x)\n  return out, c\n",
    "passed on": "  out, lb, z, c, s = layer(x)\n  update(c)\n  return out\n",
    "in an inner function": "  out, lb, z, c, s = layer(x)\n  def g():\n    return c\n  return g\n",
    "assigned in a dict": "  out, lb, z, c, s = layer(x)\n  aux['z'] = z\n  return out\n",
    "asked": "  out, lb, z, c, s = layer(x)\n  if c.max() > 3:\n    out = out * 2\n  return out\n",
    "recording with walrus": "  out, lb, z, c, s = layer(x)\n  print(w := z)\n  return out, w\n",
    "recording and more in if": "  out, lb, z, c, s = layer(x)\n  if z is not None:\n    print(z)\n    out = out + 1\n  return out\n",
    "if with else": "  out, lb, z, c, s = layer(x)\n  if z is not None:\n    print(z)\n  else:\n    out = 0\n  return out\n",
    "only statement of a loop": "  out, lb, z, c, s = layer(x)\n  for i in x:\n    print(z)\n  return out\n",
    "target is an attribute": "  out, lb, self.z, c, s = layer(x)\n  return out\n",
    "rebound": "  out, lb, z, c, s = layer(x)\n  z = 3\n  return out, z\n",
    "starred rest": "  out, *rest = layer(x)\n  return out, len(rest)\n",
    "augmented": "  out, lb, z, c, s = layer(x)\n  z += 1\n  return out\n",
}


@pytest.mark.parametrize("name", USED)
def test_used_values_are_listed(name):
    text = layer(USED[name])
    outcome = migrate(text)
    assert outcome.text == text
    assert len(outcome.sites) == 1
    assert "out" in outcome.sites[0]
    assert "three values" in outcome.reasons[0]


def test_fourth_value_by_index_is_listed():
    outcome = migrate(layer("  result = layer(x)\n  return result[0], result[3]\n"))
    assert outcome.sites == ["result[3]"]


OTHER_FIVES = {
    "another call": "from MaxText import max_utils\n\n\ndef f(x):\n  a, b, c, d, e = max_utils.g(x)\n  return a\n",
    "a moe helper": f"{MOE}def f(x):\n  a, b, c, d, e = moe.permute(x)\n  return a\n",
    "a method called moe": (
        "# MaxText\nclass L:\n\n  def moe(self, x):\n    return x\n\n  def g(self, x):\n"
        "    a, b, c, d, e = self.moe(x)\n    return a\n"
    ),
    "three values": layer("  out, lb, bias = layer(x)\n  return out\n"),
    "starred already": layer("  out, lb, *_ = layer(x)\n  return out\n"),
    "first value": layer("  return layer(x)[0]\n"),
    "a tuple": "# MaxText moe\na, b, c, d, e = 1, 2, 3, 4, 5\n",
}


@pytest.mark.parametrize("name", OTHER_FIVES)
def test_other_unpackings_stay(name):
    assert migrate(OTHER_FIVES[name]) == Outcome(OTHER_FIVES[name])


DEFINES = """\
class RoutedMoE:

  def __call__(self, x):
    return x, 1, 2, 3, 4


class RoutedAndSharedMoE:

  def __init__(self, cfg):
    self.MoeBlock_0 = RoutedMoE(cfg)

  def __call__(self, x):
    out, lb, z, c, s = self.MoeBlock_0(x)
    return out, lb, z, c, s
"""


def test_the_module_that_defines_them_agrees_with_itself():
    outcome = migrate(DEFINES, "src/MaxText/layers/moe.py")
    assert outcome.text == DEFINES
    assert outcome.sites == ["RoutedMoE", "RoutedAndSharedMoE"]
    assert "returns five values" in outcome.reasons[0]


def test_three_valued_definition_is_no_finding():
    text = DEFINES.replace("x, 1, 2, 3, 4", "x, 1, 2").replace("out, lb, z, c, s", "out, lb, bias")
    assert migrate(text, "src/MaxText/layers/moe.py") == Outcome(text)


# Keywords that are gone -----------------------------------------------------------------------------

MLA = "from MaxText.layers.attention_mla import MLA\n\n\n"
GONE = {
    "last": ("x = MLA(cfg, ep_out_axis_names=('b',))\n", "x = MLA(cfg)\n"),
    "first": ("x = MLA(ep_out_axis_names=('b',), config=cfg)\n", "x = MLA(config=cfg)\n"),
    "middle": ("x = MLA(cfg, ep_out_axis_names=AXES, mesh=m)\n", "x = MLA(cfg, mesh=m)\n"),
    "two in a row": (
        "x = MLA(cfg, ep_query_axis_names=Q, ep_out_axis_names=O)\n",
        "x = MLA(cfg)\n",
    ),
    "two apart": (
        "x = MLA(cfg, ep_query_axis_names=Q, mesh=m, ep_out_axis_names=O)\n",
        "x = MLA(cfg, mesh=m)\n",
    ),
    "only one": ("x = MLA(ep_query_axis_names=Q)\n", "x = MLA()\n"),
    "only two": ("x = MLA(ep_query_axis_names=Q, ep_out_axis_names=O)\n", "x = MLA()\n"),
    "trailing comma": ("x = MLA(cfg, ep_query_axis_names=Q,)\n", "x = MLA(cfg,)\n"),
    "own line": (
        "x = MLA(\n    cfg,\n    ep_query_axis_names=Q,\n    mesh=m,\n)\n",
        "x = MLA(\n    cfg,\n    mesh=m,\n)\n",
    ),
    "own line, several": (
        "x = MLA(\n    cfg,\n    ep_query_axis_names=(\n        'a',\n    ),\n)\n",
        "x = MLA(\n    cfg,\n)\n",
    ),
    "last line without comma": (
        "x = MLA(\n    cfg,\n    ep_query_axis_names=Q\n)\n",
        "x = MLA(\n    cfg,\n)\n",
    ),
    "comment stays": (
        "x = MLA(\n    cfg,\n    ep_query_axis_names=Q,  # why\n    mesh=m,\n)\n",
        "x = MLA(\n    cfg,\n    # why\n    mesh=m,\n)\n",
    ),
    "attribute value": ("x = MLA(cfg, ep_query_axis_names=cfg.axes)\n", "x = MLA(cfg)\n"),
    "call of the object": (
        "x = MLA(cfg)\ny = x(q, k, page_state=pages)\n",
        "x = MLA(cfg)\ny = x(q, k)\n",
    ),
    "at once": ("y = MLA(cfg)(q, k, page_state=None)\n", "y = MLA(cfg)(q, k)\n"),
    "unknown callee": ("y = layers[0](q, page_state=pages)\n", "y = layers[0](q)\n"),
    "own function": (
        "def g(x, page_state=None):\n  return x\n\n\ny = g(1, page_state=None)\n",
        "def g(x, page_state=None):\n  return x\n\n\ny = g(1)\n",
    ),
    "kwargs beside it": ("x = MLA(cfg, ep_query_axis_names=Q, **rest)\n", "x = MLA(cfg, **rest)\n"),
}


@pytest.mark.parametrize("name", GONE)
def test_gone_keywords(name):
    before, after = GONE[name]
    outcome = migrate(MLA + before)
    assert outcome.text == MLA + after
    assert outcome.sites == []
    assert migrate(outcome.text).text == outcome.text


def test_method_of_self():
    text = (
        f"{MLA}class L:\n\n  def __init__(self, cfg):\n    if cfg.full:\n      self.inner = MLA(cfg)\n    else:\n"
        "      self.inner = MLA(cfg, None)\n\n  def op(self, x, page_state=None):\n    return x\n\n"
        "  def __call__(self, x):\n    self.op(x, page_state=None)\n    return self.inner(x, x, page_state=None)\n"
    )
    outcome = migrate(text)
    assert "self.op(x)\n" in outcome.text
    assert "self.inner(x, x)\n" in outcome.text


def test_super_call_in_a_subclass():
    text = f"{MLA}class Mine(MLA):\n\n  def __call__(self, q, k):\n    return super().__call__(q, k, page_state=None)\n"
    assert "super().__call__(q, k)\n" in migrate(text).text


def test_constructor_inherited_from_upstream():
    text = f"{MLA}class Mine(MLA):\n  pass\n\n\nx = Mine(cfg, ep_query_axis_names=Q)\n"
    assert migrate(text).text.endswith("x = Mine(cfg)\n")


KEPT = {
    "side effect": (
        MLA + "x = MLA(cfg, ep_query_axis_names=make())\n",
        "MLA(cfg, ep_query_axis_names=make())",
    ),
    "value that matters": (
        "from MaxText.layers.attention_op import AttentionOp\n\nx = AttentionOp(cfg, flash_axis_names_q_ep=Q)\n",
        "AttentionOp(cfg, flash_axis_names_q_ep=Q)",
    ),
    "by position, others behind": (
        "from MaxText.layers.attention_op import AttentionOp\n\nx = AttentionOp(cfg, Q, 0.1)\n",
        "AttentionOp(cfg, Q, 0.1)",
    ),
    "required one missing": (
        "from MaxText import maxtext_utils as mu\n\ns = mu.setup_training_state(m, it, tx, cfg)\n",
        "mu.setup_training_state(m, it, tx, cfg)",
    ),
    "extra_dpo_args": (
        "from MaxText import gradient_accumulation as ga\n\n"
        "g = ga.gradient_accumulation_loss_and_grad(loss, cfg, data, [])\n",
        "ga.gradient_accumulation_loss_and_grad(loss, cfg, data, [])",
    ),
}


@pytest.mark.parametrize("name", KEPT)
def test_calls_that_are_listed(name):
    text, listed = KEPT[name]
    outcome = migrate(text)
    assert outcome.text == text
    assert outcome.sites == [listed]
    assert "upstream's `" in outcome.reasons[0]
    assert "; was (" in outcome.reasons[0]


def test_default_value_of_a_removed_keyword_goes():
    text = 'from MaxText.layers.attention_op import AttentionOp\n\nx = AttentionOp(cfg, flash_axis_names_q_ep=("q",))\n'
    assert migrate(text).text.endswith("x = AttentionOp(cfg)\n")


STAY = {
    "a function that needs it": (
        "# MaxText\ndef g(x, page_state):\n  return x\n\n\ny = g(1, page_state=None)\n"
    ),
    "call that fits": MLA + "x = MLA(cfg, mesh=m)\ny = x(q, k, slot=1)\n",
    "another class of that name": "from other import MLA  # MaxText\n\nx = MLA(cfg, flash_axis_names_q_ep=Q)\n",
    "positional": MLA + "x = MLA(cfg, mesh)\n",
    "starred": "from MaxText import maxtext_utils as mu\n\ns = mu.setup_training_state(*args, **kwargs)\n",
    "shadowed": (
        "from MaxText.layers.attention_op import AttentionOp\n\n\n"
        "def f(AttentionOp):\n  return AttentionOp(flash_axis_names_q_ep=1)\n"
    ),
    "a dict key": "# MaxText\nx = {'page_state': None}\n",
    "a name": "# MaxText\npage_state = None\n",
}


@pytest.mark.parametrize("name", STAY)
def test_calls_that_stay(name):
    assert migrate(STAY[name]) == Outcome(STAY[name])


# Renamed and changed parameters -----------------------------------------------------------------------

RENAMED = {
    "model name to config": (
        "from MaxText.multimodal_utils import get_image_offsets\n\n"
        "x = get_image_offsets(cfg.model_name, out)\n",
        "x = get_image_offsets(cfg, out)\n",
    ),
    "model name to config, keyword": (
        "from MaxText import multimodal_utils as mm\n\n"
        "x = mm.get_image_offsets(model_name=self.cfg.model_name, processor_output=out)\n",
        "x = mm.get_image_offsets(config=self.cfg, processor_output=out)\n",
    ),
    "eps": (
        "from MaxText.layers.normalizations import Qwen3NextRMSNorm\n\n"
        "x = Qwen3NextRMSNorm(8, eps=1e-5, dtype=d, rngs=r)\n",
        "x = Qwen3NextRMSNorm(8, epsilon=1e-5, dtype=d, rngs=r)\n",
    ),
    "model, first": (
        "from MaxText.model_creation_utils import create_nnx_model\n\nm = create_nnx_model(cfg, mesh)[0]\n",
        "m = create_nnx_model(cfg, mesh)\n",
    ),
    "model and its mesh": (
        "from MaxText.model_creation_utils import create_nnx_model\n\nm, mesh = create_nnx_model(cfg, mesh=mesh)\n",
        "m = create_nnx_model(cfg, mesh=mesh)\n",
    ),
    "model and nothing": (
        "from MaxText.model_creation_utils import create_nnx_model\n\nm, _ = create_nnx_model(cfg, mesh)\n",
        "m = create_nnx_model(cfg, mesh)\n",
    ),
    "no mesh": (
        "from MaxText.model_creation_utils import create_nnx_model\n\nm, mesh = create_nnx_model(cfg)\n",
        "m, mesh = create_nnx_model(cfg)\n",
    ),
}


@pytest.mark.parametrize("name", RENAMED)
def test_renamed_parameters(name):
    before, after = RENAMED[name]
    outcome = migrate(before)
    assert outcome.text.endswith(f"\n{after}")
    assert outcome.sites == []


RENAMED_LISTED = {
    "a string for the model": "from MaxText.multimodal_utils import get_image_offsets\n\nx = get_image_offsets('gemma3', out)\n",
    "the pair kept": "from MaxText.model_creation_utils import create_nnx_model\n\npair = create_nnx_model(cfg, mesh)\n",
}


@pytest.mark.parametrize("name", RENAMED_LISTED)
def test_renamed_parameters_that_are_listed(name):
    text = RENAMED_LISTED[name]
    outcome = migrate(text)
    assert outcome.text == text
    assert len(outcome.sites) == 1


# page_state and page_manager ----------------------------------------------------------------------------

ANNOTATED = {
    "module": (
        "from MaxText.inference import page_manager\n\n\ndef f(x, page_state: None | page_manager.PageState = None):\n  return x\n",
        "def f(x, page_state: None = None):\n  return x\n",
        ["page_manager"],
    ),
    "class": (
        "from MaxText.inference.page_manager import PageState\n\n\ndef f(*, page_state: Optional[PageState] = None):\n  return 1\n",
        "def f(*, page_state: None = None):\n  return 1\n",
        ["PageState"],
    ),
    "quoted": (
        "from MaxText.inference.page_manager import PageState\n\n\ndef f(page_state: 'PageState | None' = None):\n  return 1\n",
        "def f(page_state: None = None):\n  return 1\n",
        ["PageState"],
    ),
    "used elsewhere": (
        "from MaxText.inference import page_manager\n\np = page_manager.PageManager(1)\n\n\n"
        "def f(x, page_state: None | page_manager.PageState = None):\n  return x\n",
        "def f(x, page_state: None = None):\n  return x\n",
        [],
    ),
    "without a default": (
        "from MaxText.inference.page_manager import PageState\n\n\ndef f(page_state: PageState):\n  return 1\n",
        "def f(page_state: PageState):\n  return 1\n",
        [],
    ),
}


@pytest.mark.parametrize("name", ANNOTATED)
def test_annotations(name):
    before, after, unused = ANNOTATED[name]
    outcome = migrate(before)
    assert outcome.text.endswith(after)
    assert outcome.unused == unused


# Overrides ----------------------------------------------------------------------------------------------

OVERRIDES = "from MaxText.layers.deepseek import DeepSeekGenericLayer\n\n\nclass Mine(DeepSeekGenericLayer):\n\n"


def test_override_that_lacks_a_parameter():
    outcome = migrate(
        OVERRIDES + "  def attention_op(self, x, deterministic, page_state=None):\n    return x\n"
    )
    assert outcome.sites == ["attention_op"]
    assert "lacks `model_mode`" in outcome.reasons[0]


def test_override_that_needs_what_is_gone():
    outcome = migrate(OVERRIDES + "  def __call__(self, inputs, page_state):\n    return inputs\n")
    assert outcome.sites == ["__call__"]
    assert "needs `page_state`" in outcome.reasons[0]


@pytest.mark.parametrize(
    "method",
    [
        "  def attention_op(self, x, deterministic, model_mode):\n    return x\n",
        "  def attention_op(self, x, **kwargs):\n    return x\n",
        "  def __call__(self, inputs, page_state=None, slot=None):\n    return inputs\n",
        "  def other(self, page_state):\n    return 1\n",
    ],
)
def test_override_that_fits(method):
    assert migrate(OVERRIDES + method) == Outcome(OVERRIDES + method)


# Whose file it is ---------------------------------------------------------------------------------------


def blob(text: str) -> str:
    data = text.encode()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()[:10]


UPSTREAMS = (
    "from MaxText import maxtext_utils as mu\n\n"
    "s = mu.setup_training_state(m, it, tx, cfg)\nt = mu.setup_training_state(m, it, tx, cfg)\n"
)


def test_upstreams_own_file_is_left_to_upstream():
    path = "src/MaxText/some.py"
    assert migrate(UPSTREAMS, path, blobs={path: blob(UPSTREAMS)}) == Outcome(UPSTREAMS)


def test_changed_upstream_file_lists_a_function_once():
    path = "src/MaxText/some.py"
    outcome = migrate(UPSTREAMS, path, blobs={path: "0123456789"})
    assert outcome.text == UPSTREAMS
    assert outcome.sites == ["mu.setup_training_state(m, it, tx, cfg)"]
    assert "(2 calls)" in outcome.reasons[0]


def test_wheel_paths_count_as_upstreams():
    assert (
        migrate(UPSTREAMS, "MaxText/some.py", blobs={"src/MaxText/some.py": blob(UPSTREAMS)}).sites
        == []
    )


def test_changed_upstream_file_still_drops_what_is_certain():
    path = "src/MaxText/some.py"
    text = MLA + "x = MLA(cfg, ep_query_axis_names=Q)\ny = other(page_state=None)\n"
    outcome = migrate(text, path, blobs={path: "0123456789"})
    assert outcome.text == MLA + "x = MLA(cfg)\ny = other(page_state=None)\n"


def test_function_and_call_in_one_upstream_file():
    path = "src/MaxText/maxtext_utils.py"
    text = (
        "def setup_training_state(model, data_iterator, tx, config):\n  return 1\n\n\n"
        "def g(m):\n  return setup_training_state(m, 1, 2, 3)\n"
    )
    assert migrate(text, path, blobs={path: "0123456789"}) == Outcome(text)


def test_a_migrated_file_is_left_alone():
    text = (
        "from maxtext.layers import decoders\n\n\ndef f(layer, x, page_state: 'PageState | None' = None):\n"
        "  return layer(x, page_state=page_state)\n"
    )
    assert migrate(text, "src/maxtext/layers/own.py") == Outcome(text)


def test_a_file_without_the_package_is_not_looked_at():
    text = "x = f(page=None)\n"
    assert migrate(text) == Outcome(text)


def test_rule_ids_and_examples():
    ids = [r.id for r in signatures.RULES]
    assert len(ids) == len(set(ids))
    assert all(i.startswith("API") for i in ids)
    assert all(r.examples for r in signatures.RULES)
    for rule in signatures.RULES:
        for example in rule.examples:
            ast.parse(example.before)
            ast.parse(example.after)
