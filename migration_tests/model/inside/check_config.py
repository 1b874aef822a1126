"""Wrong configurations are refused with one line when they are read; the released ones hold what they should."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flax import nnx
from maxtext.common import ling2_layers
from maxtext.common.ling2_layers import DENSE, GLA, MLA, MOE, LayerPattern, LayerSpec, ScanPlan
from maxtext.configs import pyconfig
from maxtext.utils import maxtext_utils, model_creation_utils
from maxtext.utils.globals import MAXTEXT_CONFIGS_DIR

from migration_tests.model.inside import models

YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "max_position_embeddings": 64,
    "original_max_position_embeddings": 16,
}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"base_num_kv_heads": 2}, "num_query_heads=4 and num_kv_heads=2"),
        (
            {"inhomogeneous_layer_cycle_interval": 0},
            "inhomogeneous_layer_cycle_interval >= 1, got 0",
        ),
        (
            {"first_num_dense_layers": 7},
            "first_num_dense_layers=7 is not between 0 and num_decoder_layers=6",
        ),
        ({"group_norm_size": 3}, "group_norm_size=3"),
        ({"group_norm_size": 0}, "group_norm_size=0"),
        ({"attention_type": "global"}, "attention_type='mla'"),
        ({"partial_rotary_factor": 0.2}, "partial_rotary_factor=0.2"),
        ({"partial_rotary_factor": 1.5}, "partial_rotary_factor=1.5"),
        ({"rope_type": "yarn"}, "max_position_embeddings=4096 greater than"),
        (
            {"rope_type": "yarn", "original_max_position_embeddings": 0},
            "original_max_position_embeddings",
        ),
        (
            {
                "rope_type": "yarn",
                "max_position_embeddings": 16,
                "original_max_position_embeddings": 8,
            },
            "max_target_length=32 exceeds max_position_embeddings=16",
        ),
        ({"n_routing_groups": 3}, "n_routing_groups=3 does not divide num_experts=8"),
        ({"n_routing_groups": 8}, "n_routing_groups=8 leaves one expert"),
        ({"topk_routing_group": 3}, "topk_routing_group=3"),
        ({"num_experts_per_tok": 5}, "num_experts_per_tok=5 exceeds the 4 experts"),
        ({"routed_score_func": "softmax"}, "routed_score_func is 'softmax'"),
        ({"shared_experts": 0}, "shared_experts has to be at least 1"),
        ({"num_experts": 1, "n_routing_groups": -1, "routed_bias": False}, "num_experts > 1"),
        ({"interleave_moe_layer_step": 2}, "interleave_moe_layer_step"),
        ({"mla_tail_rule": "some"}, "mla_tail_rule"),
        ({"gla_slope_index": "one_based"}, "gla_slope_index"),
        ({"router_z_loss_weight": -1.0}, "router_z_loss_weight"),
        ({"fused_qkv": True}, "fused_qkv"),
        ({"mhc_expansion_rate": 2}, "mhc_expansion_rate=2"),
        ({"attention": "paged"}, "attention='paged'"),
        ({"ici_sequence_parallelism": 2}, "the axis 'sequence' in mesh_axes"),
        ({"ici_tensor_sequence_parallelism": 2}, "tensor-sequence parallelism"),
        ({"use_chunked_prefill": True}, "use_chunked_prefill"),
        (
            {"stack_prefill_result_cache": True, "scan_layers": False},
            "stack_prefill_result_cache without scan_layers",
        ),
        ({"quantization": "int8", "sparse_matmul": False}, "use_qwix_quantization=True"),
        ({"base_emb_dim": 0}, "emb_dim to be at least 1, got 0"),
        ({"vocab_size": 0}, "vocab_size to be at least 1"),
        ({"base_mlp_dim": 0}, "mlp_dim to be at least 1"),
        (
            {"base_num_query_heads": -4, "base_num_kv_heads": -4},
            "num_query_heads to be at least 1, got -4",
        ),
        ({"head_dim": 0}, "head_dim to be at least 1"),
        ({"kv_lora_rank": 0}, "kv_lora_rank to be at least 1"),
        ({"v_head_dim": 0}, "v_head_dim to be at least 1"),
        ({"qk_rope_head_dim": 7}, "qk_rope_head_dim=7 has to be even"),
        ({"normalization_layer_epsilon": -1.0}, "normalization_layer_epsilon=-1.0"),
        ({"rope_max_timescale": 0}, "rope_max_timescale to be at least 1"),
        ({"rope_type": "llama3.1"}, "rope_type 'default' and 'yarn', got 'llama3.1'"),
        ({"rope_linear_scaling_factor": 2.0}, "rope_linear_scaling_factor=2.0"),
        (YARN | {"rope_factor": 0}, "rope_factor to be at least 1, got 0"),
        (YARN | {"beta_fast": 1, "beta_slow": 32}, "beta_fast=1 greater than beta_slow=32"),
        ({"routed_scaling_factor": -1.0}, "routed_scaling_factor=-1.0"),
        ({"routed_bias_update_rate": -1.0}, "routed_bias_update_rate=-1.0"),
        ({"moe_expert_input_dim": 32}, "emb_dim=64, not moe_expert_input_dim=32"),
        ({"use_indexer": True}, "use_indexer"),
        ({"attention_sink": True}, "attention_sink"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match="validation error") as refusal:
        models.make_config(**options)
    # pydantic puts the message between a title and a link.
    lines = [line for line in str(refusal.value).splitlines() if message in line]
    assert len(lines) == 1


@pytest.mark.parametrize(
    ("pattern", "full", "plan"),
    [
        (LayerPattern(20, 5, 1), {4, 9, 14, 19}, ScanPlan(1, 5, 3, 4)),
        (LayerPattern(21, 5, 1), {4, 9, 14, 19, 20}, ScanPlan(1, 5, 3, 5)),
        (LayerPattern(21, 5, 1, "never"), {4, 9, 14, 19}, ScanPlan(1, 5, 4, 0)),
        (LayerPattern(13, 5, 1), {4, 9, 12}, ScanPlan(1, 5, 2, 2)),
        (LayerPattern(13, 5, 1, "all"), {4, 9, 10, 11, 12}, ScanPlan(1, 5, 1, 7)),
        (LayerPattern(80, 8, 4), set(range(7, 80, 8)), ScanPlan(4, 8, 9, 4)),
        (LayerPattern(10, 1, 0), set(range(10)), ScanPlan(0, 1, 10, 0)),
        (LayerPattern(3, 5, 3), {2}, ScanPlan(3, 5, 0, 0)),
        (LayerPattern(3, 5, 0), {2}, ScanPlan(0, 5, 0, 3)),
    ],
)
def test_pattern(pattern: LayerPattern, full: set[int], plan: ScanPlan) -> None:
    specs = pattern.layers()
    assert {i for i, spec in enumerate(specs) if spec.attention == MLA} == full
    assert [spec.mlp for spec in specs] == [
        DENSE if i < pattern.num_dense_layers else MOE for i in range(pattern.num_decoder_layers)
    ]
    assert pattern.layer(pattern.num_decoder_layers) == LayerSpec(MLA, MOE)
    assert pattern.scan_plan() == plan
    assert plan.remainder_base + plan.num_remainder_layers == pattern.num_decoder_layers
    # All iterations of the scan have the structure of the first.
    for cycle in range(plan.num_cycles):
        for i in range(plan.interval):
            first = plan.num_prefix_layers + i
            assert specs[first + cycle * plan.interval] == specs[first]


def released(name: str, **options: Any) -> Any:
    """Returns a released config as a user gets it."""
    base = f"{MAXTEXT_CONFIGS_DIR}/base.yml"
    run = {"hardware": "cpu", "skip_jax_distributed_system": True, "log_config": False}
    run["override_model_config"] = bool(options)
    return pyconfig.initialize(
        ["checks", base], model_name=name, run_name="checks", **run, **options
    )


@pytest.mark.parametrize(("name", "billions"), [("ling2", 17.4), ("ling2-1t", 1000)])
@pytest.mark.parametrize("scan", [False, True])
def test_released_models(name: str, billions: float, scan: bool) -> None:
    if name == "ling2-1t" and not scan:
        return
    config = released(name, scan_layers=scan)
    _, model = model_creation_utils.create_nnx_abstract_model(config, models.make_mesh(config))
    flat = dict(nnx.to_flat_state(nnx.state(model)))
    sizes = {path: value.size for path, value in flat.items() if isinstance(value, nnx.Param)}
    total = sum(sizes.values())
    print(f"{name} scan={scan}: {total:,} parameters")
    assert total == expected_parameters(config)
    assert total / 1e9 == pytest.approx(billions, rel=0.05)
    assert {str(value.dtype) for value in flat.values() if isinstance(value, nnx.Param)} == {
        "float32"
    }


def expected_parameters(config: Any) -> int:
    """Counts the parameters from the config alone."""
    emb, heads, dim = config.emb_dim, config.num_query_heads, config.head_dim
    nope, rope, value = config.qk_nope_head_dim, config.qk_rope_head_dim, config.v_head_dim
    gla = 5 * emb * heads * dim + heads * dim + 2 * dim
    mla = emb * config.q_lora_rank + config.q_lora_rank * (1 + heads * (nope + rope))
    mla += emb * (config.kv_lora_rank + rope) + config.kv_lora_rank * (1 + heads * (nope + value))
    mla += heads * value * emb
    dense = 3 * emb * config.mlp_dim
    moe = 3 * emb * (config.num_experts * config.moe_mlp_dim + config.moe_shared_expert_dim)
    moe += emb * config.num_experts
    pattern = ling2_layers.pattern_of(config)
    total = 2 * config.vocab_size * emb + emb
    for spec in pattern.layers():
        total += (mla if spec.attention == MLA else gla) + (moe if spec.mlp == MOE else dense)
        total += 2 * emb
    return total + config.mtp_num_layers * (mla + moe + 2 * emb + 3 * emb + 2 * emb * emb)


def test_flops() -> None:
    """Counted from shapes: 6 FLOPs per weight used and token, attention on top."""
    config = released("ling2", mtp_num_layers=0)
    total, learnable, attention = maxtext_utils.calculate_tflops_training_per_device(
        config, log=False
    )
    tokens = config.per_device_batch_size * config.max_target_length
    pattern = ling2_layers.pattern_of(config)
    unused = config.num_experts - config.num_experts_per_tok
    used = expected_parameters(config) - config.vocab_size * config.emb_dim
    used -= 19 * 3 * config.emb_dim * config.moe_mlp_dim * unused
    norms = config.emb_dim * 41 + sum(
        (
            config.num_query_heads * config.head_dim + 2 * config.head_dim
            if spec.attention == GLA
            else config.q_lora_rank + config.kv_lora_rank
        )
        for spec in pattern.layers()
    )
    assert learnable == pytest.approx(6 * tokens * (used - norms) / 1e12, rel=1e-9)
    heads = config.num_query_heads
    scores = 192 + 128
    mla = 4 * tokens * config.max_target_length * heads * scores  # 2 FLOPs, half of the scores
    gla = 16 * tokens * heads * 128 * 128 * 4
    assert attention == pytest.approx(3 * (mla + gla) / 1e12, rel=1e-9)
    assert total == learnable + attention


def test_flops_of_mtp() -> None:
    without = released("ling2", mtp_num_layers=0)
    with_mtp = released("ling2")
    count = maxtext_utils.calculate_tflops_training_per_device
    more = np.subtract(count(with_mtp, log=False), count(without, log=False))
    assert (more > 0).all()
    shared = (
        6 * 3 * 2048 * 2048 * with_mtp.per_device_batch_size * with_mtp.max_target_length / 1e12
    )
    narrow = released("ling2", moe_shared_expert_dim=512)
    less = count(with_mtp, log=False)[1] - count(narrow, log=False)[1]
    assert less == pytest.approx(20 * shared * 0.75, rel=1e-9)
