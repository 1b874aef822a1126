"""What is compared: the components along the model, their inputs, the small model they belong to, and tolerances."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray]

FLOAT32 = "float32"
BFLOAT16 = "bfloat16"
FLOAT16 = "float16"
DTYPES = (FLOAT32, BFLOAT16)

# Options of MaxText for a model with every kind of layer: a dense GLA layer, MLA and GLA layers with experts in two scanned
# cycles, and one layer after them. No two widths are equal where a wrong transpose could hide behind them.
MODEL: dict[str, Any] = {
    "vocab_size": 96,
    "base_emb_dim": 48,
    "base_mlp_dim": 80,
    "base_num_decoder_layers": 6,
    "base_num_query_heads": 4,
    "base_num_kv_heads": 4,
    "head_dim": 16,
    "inhomogeneous_layer_cycle_interval": 2,
    "first_num_dense_layers": 1,
    "mla_tail_rule": "last",
    "gla_slope_index": "zero_based",
    "group_norm_size": 2,
    "use_qk_norm": True,
    "use_linear_silu": False,
    "normalization_layer_epsilon": 1e-6,
    "logits_via_embedding": False,
    "partial_rotary_factor": 0.5,
    "q_lora_rank": 20,
    "kv_lora_rank": 12,
    "qk_nope_head_dim": 14,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "mla_interleaved_rope": True,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "base_moe_mlp_dim": 32,
    "moe_shared_expert_dim": 40,
    "shared_experts": 1,
    "n_routing_groups": 2,
    "topk_routing_group": 1,
    "routed_scaling_factor": 2.5,
    "routed_score_func": "sigmoid",
    "routed_bias": True,
    "router_z_loss_weight": 1e-3,
    "load_balance_loss_weight": 0.0,
    "mtp_num_layers": 1,
    "mtp_loss_scaling_factor": 0.3,
}
# How it is run. A side takes those that it knows.
RUN: dict[str, Any] = {
    "skip_jax_distributed_system": True,
    "jax_cache_dir": "",
    "dataset_type": "synthetic",
    "enable_checkpointing": False,
    "override_model_config": True,
    "attention": "dot_product",
    "megablox": False,
    "sparse_matmul": False,
    "remat_policy": "none",
    "weight_dtype": "float32",
    "matmul_precision": "highest",
    "float32_logits": True,
    "per_device_batch_size": 2,
    "max_target_length": 24,
    "max_prefill_predict_length": 24,
    "gla_chunk_size": 16,
    "sharding_tolerance": 1.0,
    "enable_dropout": False,
    "log_config": False,
    "opt_type": "adamw",
    "learning_rate": 1e-2,
    "adam_b1": 0.9,
    "adam_b2": 0.95,
    # Large enough for the step to be smooth in the gradients: that of Adam is a sign where they are small.
    "adam_eps": 1e-3,
    "adam_weight_decay": 0.1,
    # The fork decays neither scales nor the routing bias.
    "adamw_mask": ["scale", "bias"],
    "gradient_clipping_threshold": 1.0,
}
SCANNED = {"scan_layers": True, "routed_bias_update_rate": 0.0}
UNSCANNED = {"scan_layers": False, "routed_bias_update_rate": 1e-3}

# Trees of parameters that a side describes, by the options that make them. `two_dense` has an MLA layer with a dense MLP.
TREES: dict[str, dict[str, Any]] = {
    "unscanned": UNSCANNED,
    "scanned": SCANNED,
    # Its routers' biases are so far apart that rounding changes no choice: for the whole model in bfloat16.
    "settled": UNSCANNED,
    "two_dense": UNSCANNED | {"first_num_dense_layers": 2, "mtp_num_layers": 0},
}
WHOLE_MODEL = ("logits", "mtp", "loss", "depth")
# (decoder layers, interval, dense layers): tails of none, one, two and three layers.
PATTERNS = ((6, 2, 1), (7, 3, 1), (8, 3, 2), (9, 5, 1), (8, 5, 0))
# (heads, decoder layers)
DECAYS = ((4, 6), (6, 5), (16, 20), (3, 1))
# Length of the rows of a batch, and of the kernel's, which is a multiple of no chunk.
LENGTH = RUN["max_target_length"]
RAGGED = 37

# How far rounding goes: the unit of the last place of each dtype, relative to a value.
ULP = {FLOAT32: 2.0**-23, BFLOAT16: 2.0**-7, FLOAT16: 2.0**-10}


@dataclasses.dataclass(frozen=True)
class Component:
    """A part of the model that is compared by itself, on the same inputs and weights.

    Attributes:
        name: its name on the command line and in reports.
        title: what it is.
        ulps: tolerance in units in the last place of the dtype, relative to the tensor's root mean square.
        reason: why the tolerance is what it is.
        dtypes: the dtypes it is compared in.
        bfloat16_ulps: tolerance in bfloat16, if another.
        exact: whether nothing but equality will do, as for choices.
    """

    name: str
    title: str
    ulps: float
    reason: str
    dtypes: tuple[str, ...] = DTYPES
    bfloat16_ulps: float | None = None
    exact: bool = False

    def tolerance(self, dtype: str) -> float:
        """The largest error that passes, as a multiple of the tensor's root mean square."""
        if self.exact:
            return 0.0
        ulps = self.ulps
        if dtype == BFLOAT16 and self.bfloat16_ulps is not None:
            ulps = self.bfloat16_ulps
        return ulps * ULP[dtype]


_SUMS = "sums of 8 to 80 products in another order"
_LAYERS = "six layers, each as above"
# In the order in which the model runs.
COMPONENTS: tuple[Component, ...] = (
    Component(
        "pattern", "layer pattern", 0, "kinds of layers are no numbers", (FLOAT32,), exact=True
    ),
    Component("embedding", "embedding", 0, "rows of a table", exact=True),
    Component("rms_norm", "RMSNorm", 16, "a mean of squares, a root, a product", bfloat16_ulps=4),
    Component("decay", "slopes and decay", 8, "powers of two and a quotient", (FLOAT32,)),
    Component("gla_kernel", "GLA kernel", 64, f"{_SUMS}, chunks of other sizes", bfloat16_ulps=8),
    Component(
        "gla_pallas", "GLA kernel, Pallas", 64, f"{_SUMS}, chunks of other sizes", bfloat16_ulps=8
    ),
    Component(
        "gla_gradients",
        "GLA kernel, gradients",
        128,
        f"{_SUMS}, forward and back",
        bfloat16_ulps=16,
    ),
    Component(
        "group_norm", "GroupRMSNorm", 16, "a mean of squares, a root, a product", bfloat16_ulps=4
    ),
    Component(
        "partial_rope", "partial RoPE", 64, "angles up to the length, their sines", bfloat16_ulps=4
    ),
    Component("gla_layer", "GLA attention", 128, f"{_SUMS} in four steps", bfloat16_ulps=16),
    Component(
        "mla_rope", "MLA's RoPE", 64, "angles up to the length, their sines", bfloat16_ulps=4
    ),
    Component(
        "mla_layer", "MLA attention", 128, f"{_SUMS} in six steps, a softmax", bfloat16_ulps=16
    ),
    Component(
        "router_scores",
        "router scores",
        32,
        "one product of vectors in float32, a sigmoid",
        bfloat16_ulps=1 / 512,
    ),
    Component(
        "router_choice",
        "router choice",
        0,
        "the same scores choose the same experts",
        (FLOAT32,),
        exact=True,
    ),
    Component("router_weights", "router weights", 16, "a quotient and a factor", (FLOAT32,)),
    Component(
        "moe",
        "mixture of experts",
        128,
        f"{_SUMS} in three steps, then over experts",
        bfloat16_ulps=16,
    ),
    Component("dense_mlp", "dense MLP", 64, f"{_SUMS} in two steps", bfloat16_ulps=8),
    Component("layer_gla_dense", "layer: GLA, dense", 256, "attention and MLP", bfloat16_ulps=24),
    Component("layer_mla_dense", "layer: MLA, dense", 256, "attention and MLP", bfloat16_ulps=24),
    Component(
        "layer_gla_moe", "layer: GLA, experts", 256, "attention and experts", bfloat16_ulps=24
    ),
    Component(
        "layer_mla_moe", "layer: MLA, experts", 256, "attention and experts", bfloat16_ulps=24
    ),
    Component(
        "head",
        "final norm and output head",
        64,
        "a norm and one product of vectors",
        bfloat16_ulps=8,
    ),
    Component("logits", "logits, packed and padded rows", 512, _LAYERS, bfloat16_ulps=64),
    Component("mtp_layer", "MTP layer", 256, "norms, a projection, one layer", bfloat16_ulps=24),
    Component("mtp", "MTP logits", 512, f"{_LAYERS}, and MTP's", bfloat16_ulps=64),
    Component("loss", "losses", 64, "means over tokens of the logits' errors", bfloat16_ulps=2),
    Component("gradients", "gradients", 2048, "forward and back through seven layers", (FLOAT32,)),
    Component("step", "optimizer step", 2048, "a smooth function of the gradients", (FLOAT32,)),
    Component("scan", "scanned layers", 512, "as the logits", (FLOAT32,)),
)
BY_NAME = {component.name: component for component in COMPONENTS}


def trees_of(components: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Returns the trees of parameters that components, by name and dtype, need."""
    needed = {"unscanned"}
    for name, dtype in components:
        if name == "scan":
            needed.add("scanned")
        elif name == "layer_mla_dense":
            needed.add("two_dense")
        elif name in WHOLE_MODEL and dtype == BFLOAT16:
            needed.add("settled")
    return tuple(tree for tree in TREES if tree in needed)


def tensor(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Returns a weight for a Hugging Face tensor: random, of a size at which every part matters, the same in every run."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    value = rng.standard_normal(shape)
    if name.endswith("expert_bias"):
        value *= 0.1
    elif name.endswith("word_embeddings.weight"):
        pass
    elif len(shape) < 2:
        value = 1 + 0.2 * value
    else:
        value /= np.sqrt(shape[-1])
    return value.astype(np.float32)


def settled_tensor(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """As `tensor`, with biases of the routers that settle their choices."""
    if name.endswith("expert_bias"):
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        return rng.permutation(np.linspace(-4, 4, shape[0])).astype(np.float32)
    return tensor(name, shape)


def inputs() -> Arrays:
    """Returns the inputs that all sides get."""
    rng = np.random.default_rng(20250)
    emb, heads, dim = MODEL["base_emb_dim"], MODEL["base_num_query_heads"], MODEL["head_dim"]
    experts = MODEL["num_experts"]
    rope = MODEL["qk_rope_head_dim"]

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    hidden = normal(2, LENGTH, emb)
    # Rows so small that the epsilon of a norm shows.
    hidden[:, ::3] *= 2e-3
    packed = np.ones((2, LENGTH), np.int32)
    packed[0, 9:] = 2
    packed[0, 17:] = 3
    packed[1, 6:] = 2
    packed[1, 20:] = 0
    positions = _positions(packed)
    ragged = np.ones((2, RAGGED), np.int32)
    ragged[0, 11:] = 2
    ragged[1, 20:] = 5
    ragged[1, 33:] = 0
    plain = np.broadcast_to(np.arange(LENGTH, dtype=np.int32), (2, LENGTH)).copy()
    # Sequences begin with token 0, which is also that of padding, and their first token is no target. So MTP sees the same at
    # the end of a sequence whether it stops there, as upstream's, or goes on, as the fork's.
    tokens = rng.integers(1, MODEL["vocab_size"], (2, LENGTH)).astype(np.int32)
    tokens[(positions == 0) | (packed == 0)] = 0
    targets = np.roll(tokens, -1, 1)
    targets[:, -1] = 0
    weighted = np.where((positions == 0) | (targets == 0), 0, packed).astype(np.int32)
    scores = 1 / (1 + np.exp(-normal(2, LENGTH, experts)))
    # Biased scores on both sides of 0: what is masked must not look better than what is left.
    bias = np.linspace(-1.5, -0.2, experts).astype(np.float32)[rng.permutation(experts)]
    return {
        "tokens": tokens,
        "targets": targets,
        "target_segments": weighted,
        "positions": plain,
        "packed_segments": packed,
        "packed_positions": positions,
        "hidden": hidden,
        "embedded": normal(2, LENGTH, emb),
        "grouped": np.concatenate(
            (normal(1, LENGTH, heads * dim), 2e-3 * normal(1, LENGTH, heads * dim))
        ),
        "group_scale": (1 + 0.2 * normal(heads * dim)),
        "norm_scale": (1 + 0.2 * normal(emb)),
        "query": normal(2, RAGGED, heads, dim),
        "key": normal(2, RAGGED, heads, dim),
        "value": normal(2, RAGGED, heads, dim),
        "cotangent": normal(2, RAGGED, heads, dim),
        "ragged_segments": ragged,
        "log_decay": -np.array([0.9, 0.05, 1e-5, 40.0], np.float32),
        "heads_at_positions": normal(2, LENGTH, heads, dim),
        "rope_at_positions": normal(2, LENGTH, heads, rope),
        "scores": scores.astype(np.float32),
        "biased_scores": (scores + bias).astype(np.float32),
    }


def _positions(segments: np.ndarray) -> np.ndarray:
    positions = np.zeros_like(segments)
    for row in range(segments.shape[0]):
        for t in range(1, segments.shape[1]):
            if segments[row, t] == segments[row, t - 1]:
                positions[row, t] = positions[row, t - 1] + 1
    return positions
