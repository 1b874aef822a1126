"""Faults that people make when they carry a model over: each is flagged, at the right component, on the right side."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

from migration_tests.parity import merge, plan, run
from migration_tests.parity.tests.conftest import CHECKOUT, Baseline, Rerun

pytestmark = pytest.mark.model

# What takes a compilation of the whole model: left out where the fault is before it.
WHOLE_MODEL = (
    "embedding",
    "head",
    "logits",
    "mtp_layer",
    "mtp",
    "loss",
    "gradients",
    "step",
    "scan",
)


@dataclasses.dataclass(frozen=True)
class Fault:
    """A text in a file of a side, what somebody made of it, and the component at which it has to show."""

    name: str
    side: str
    file: str
    before: str
    after: str
    component: str
    dtype: str = plan.FLOAT32


GLA, MLA, MOE = "layers/attention_gla.py", "layers/attention_mla.py", "layers/moe.py"
NORMS, MTP = "layers/normalizations.py", "layers/multi_token_prediction.py"
MODEL = "ALModel/al_model.py"
FAULTS = [
    Fault(
        "tail rule", run.OLD, MODEL,
        "  if layer_idx >= config.num_decoder_layers - 1:", "  if layer_idx >= config.num_decoder_layers:", "pattern",
    ),
    Fault(
        "embeddings scaled by the decoder", run.OLD, "layers/decoders.py",
        "model_mode=model_mode)\n\n  def apply", "model_mode=model_mode) * self.config.emb_dim**0.5\n\n  def apply", "embedding",
    ),
    Fault("an import lost", run.MIGRATED, NORMS, "from jax import lax\n", "", "rms_norm"),
    Fault("epsilon", run.OLD, NORMS, "keepdims=True) + self.epsilon)\n    y = y *", "keepdims=True) + 1e-5)\n    y = y *", "rms_norm"),
    Fault("slope index off by one", run.OLD, GLA, "(1.0 - layer_idx / depth", "(1.0 - (layer_idx - 1) / depth", "decay"),
    Fault(
        "slopes of a power of two only", run.OLD, GLA, "power_of_two(2 * lower)[0::2]", "power_of_two(2 * lower)[1::2]", "decay",
    ),
    Fault(
        "decay of the current token", run.OLD, GLA,
        "(cum[:, None, :] - cum[None, :, :])[None]", "(cum[:, None, :] - cum[None, :, :] + g)[None]", "gla_kernel",
    ),
    Fault(
        "no reset between packed sequences", run.OLD, GLA,
        "keeps = (last == state_segment)", "keeps = (last == last)", "gla_kernel",
    ),
    Fault("no scale of the queries", run.OLD, GLA, "for x in (q * scale, k, v)", "for x in (q, k, v)", "gla_kernel"),
    Fault(
        "no gradient for the keys", run.OLD, GLA,
        "for x in (q * scale, k, v)", "for x in (q * scale, jax.lax.stop_gradient(k), v)", "gla_gradients",
    ),
    Fault(
        "group count as size", run.OLD, NORMS,
        "self.num_groups = group_norm_size", "self.num_groups = num_features // group_norm_size", "group_norm",
    ),
    Fault(
        "all dims are rotated", run.OLD, "layers/embeddings.py",
        "self.rotary_dim = int(embedding_dims * partial_rotary_factor)", "self.rotary_dim = embedding_dims", "partial_rope",
    ),
    Fault(
        "gate before norm", run.OLD, GLA,
        """    out = self.g_norm(out.reshape(out.shape[:2] + (-1,)))
    # The gate reads the layer's input, not the attention's output.
    out = out * jax.nn.sigmoid(self.g_proj(hidden_states).astype(jnp.float32)).astype(out.dtype)
""",
        """    out = out.reshape(out.shape[:2] + (-1,))
    out = out * jax.nn.sigmoid(self.g_proj(hidden_states).astype(jnp.float32)).astype(out.dtype)
    out = self.g_norm(out)
""",
        "gla_layer",
    ),
    Fault("SiLU on", run.OLD, GLA, "if self.config.use_linear_silu:", "if not self.config.use_linear_silu:", "gla_layer"),
    Fault(
        "heads before query, key, value", run.OLD, GLA,
        "jnp.split(qkv, 3, axis=2)",
        "jnp.moveaxis(qkv.reshape(qkv.shape[:2] + (self.num_heads, 3, -1)), 3, 0)",
        "gla_layer",
    ),
    Fault(
        "interleaving of rotary pairs swapped", run.OLD, MLA,
        "    if self.config.mla_interleaved_rope:", "    if not self.config.mla_interleaved_rope:", "mla_rope",
    ),
    Fault("no scale of MLA's queries", run.OLD, MLA, ", axis=-1) * self.softmax_scale", ", axis=-1)", "mla_layer"),
    Fault(
        "router in bfloat16", run.OLD, MOE,
        "dtype=jnp.float32,  # the router never runs in bfloat16", "dtype=dtype,", "router_scores", plan.BFLOAT16,
    ),
    Fault("masked groups filled with 0", run.OLD, MOE, "gate_logits, -jnp.inf)", "gate_logits, 0.0)", "router_choice"),
    Fault(
        "bias in the weights", run.OLD, MOE,
        "scores = gate_logits if pre_bias_logits is None else pre_bias_logits\n    return", "scores = gate_logits\n    return",
        "router_weights",
    ),
    Fault(
        "no scaling factor of the experts", run.OLD, MOE,
        "return weights * self.config.routed_scaling_factor", "return weights", "router_weights",
    ),
    Fault("no shared experts", run.OLD, MOE, "return routed + shared,", "return routed,", "moe"),
    Fault(
        "a line taken for a dump", run.MIGRATED, "models/ling2.py",
        "    hidden = inputs + attention_out", "    hidden = attention_out", "layer_gla_dense",
    ),
    Fault(
        "no shift of MTP's tokens", run.OLD, MTP,
        "input_ids, target_ids, target_mask = (roll_and_mask(x) for x in (input_ids, target_ids, target_mask))",
        "target_ids, target_mask = (roll_and_mask(x) for x in (target_ids, target_mask))",
        "mtp",
    ),
    Fault(
        "MTP's parts in another order", run.OLD, MTP, "jnp.concatenate((embedding, hidden)", "jnp.concatenate((hidden, embedding)",
        "mtp_layer",
    ),
    Fault("loss unscaled", run.OLD, MTP, " * config.mtp_loss_scaling_factor", "", "loss"),
    Fault(
        "norms are decayed", run.OLD, "optimizers.py", 'not in ("scale", "bias")', 'not in ("bias",)', "step",
    ),
    Fault(
        "index constant in the scan", run.OLD, MODEL, "jnp.asarray(block_idx, jnp.int32) *", "0 * jnp.asarray(block_idx, jnp.int32) *",
        "scan",
    ),
    Fault(
        "no sigmoid of the gate", run.TARGET, GLA,
        "jax.nn.sigmoid(gate.astype(jnp.float32))", "gate.astype(jnp.float32)", "gla_layer",
    ),
    Fault(
        "slope index of another convention", run.TARGET, "kernels/gla/decay.py",
        'index = layer_idx - 1 if slope_index == "hf" else layer_idx', "index = layer_idx - 1", "decay",
    ),
]  # fmt: skip


def mutated(fault: Fault, baseline: Baseline, out: Path) -> list[str]:
    """Makes a copy of a side's tree with the fault in it; returns its roots."""
    if fault.side == run.OLD:
        tree = out / "checkout"
        shutil.copytree(CHECKOUT, tree)
        package, roots = tree / "src" / "MaxText", [str(tree / "src"), str(tree)]
        file = tree / fault.file if fault.file.startswith("ALModel") else package / fault.file
    elif fault.side == run.MIGRATED:
        migrated = out / "migrated"
        shutil.copytree(baseline.migrated, migrated)
        file = merge.package_of(migrated) / fault.file
    else:
        tree = out / "overlay"
        shutil.copytree(merge.package_of(baseline.overlay), tree / "maxtext")
        file, roots = tree / "maxtext" / fault.file, [str(tree)]
    text = file.read_text(encoding="utf-8")
    assert text.count(fault.before) == 1, (fault.name, text.count(fault.before))
    file.write_text(text.replace(fault.before, fault.after), encoding="utf-8")
    if fault.side == run.MIGRATED:
        merge.lay_over(migrated, baseline.overlay, out / "merged")
        roots = [str(out / "merged")]
    return roots


def until(component: str, dtype: str) -> list[tuple[str, str]]:
    """The components along the model up to one, in its dtype and before it."""
    names = [c.name for c in plan.COMPONENTS]
    before = names[: names.index(component) + 1]
    skipped: tuple[str, ...] = () if component in WHOLE_MODEL else WHOLE_MODEL
    skipped += ("gla_pallas",)
    if component == "scan":
        skipped += ("loss", "gradients", "step", "logits", "mtp")
    return [
        (name, each)
        for name in before
        if name not in skipped
        for each in plan.BY_NAME[name].dtypes
        if each in (plan.FLOAT32, dtype)
    ]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_located(fault: Fault, baseline: Baseline, rerun: Rerun, tmp_path: Path) -> None:
    assert baseline.parity.status == 0
    roots = mutated(fault, baseline, tmp_path)
    parity = rerun(fault.side, roots, until(fault.component, fault.dtype))
    first = parity.first
    assert first is not None, "the fault was not noticed"
    assert (first.component.name, first.dtype) == (fault.component, fault.dtype), first
    assert parity.status == 1
    assert parity.odd_one(first) == fault.side
