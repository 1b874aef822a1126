"""HF configs and random HF checkpoints of small Ling2 models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from maxtext.checkpoint_conversion.utils import ling2_params

ORACLE = Path(__file__).parents[1] / "model" / "oracle"
VARIANTS = sorted(path.parent.name for path in ORACLE.glob("*/config.json"))
Tensors = dict[str, np.ndarray]


def oracle_config(variant: str = "base_s0") -> dict[str, Any]:
    """The contents of an oracle checkpoint's config.json."""
    text = (ORACLE / variant / "config.json").read_text(encoding="utf-8")
    config: dict[str, Any] = json.loads(text)
    return config


def hf_config(**changes: Any) -> dict[str, Any]:
    """An HF config in which every size is another one."""
    return (
        oracle_config()
        | {
            "vocab_size": 44,
            "hidden_size": 26,
            "intermediate_size": 38,
            "num_hidden_layers": 7,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "head_dim": 20,
            "layer_group_size": 3,
            "first_k_dense_replace": 1,
            "group_norm_size": 2,
            "q_lora_rank": 10,
            "kv_lora_rank": 9,
            "qk_nope_head_dim": 6,
            "qk_rope_head_dim": 4,
            "v_head_dim": 8,
            "num_experts": 5,
            "n_group": 1,
            "topk_group": 1,
            "moe_intermediate_size": 12,
            "moe_shared_expert_intermediate_size": 16,
            "num_nextn_predict_layers": 2,
        }
        | changes
    )


def random_tensors(shapes: dict[str, tuple[int, ...]], seed: int = 0) -> Tensors:
    """Random tensors by name."""
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}


def converted(
    parameters: list[ling2_params.Parameter], tensors: Tensors
) -> dict[tuple[str, ...], np.ndarray]:
    """The parameters of HF tensors, by path."""
    result = {}
    for parameter in parameters:
        places = list(parameter.slices())
        dtype = tensors[places[0][1]].dtype
        result[parameter.path] = np.empty(parameter.shape, dtype)
        for index, name in places:
            result[parameter.path][index] = ling2_params.to_maxtext(parameter, tensors[name])
    return result


def exported(
    parameters: list[ling2_params.Parameter], values: dict[tuple[str, ...], np.ndarray]
) -> Tensors:
    """The HF tensors of parameters by path."""
    return {
        name: ling2_params.to_hf(parameter, values[parameter.path][index])
        for parameter in parameters
        for index, name in parameter.slices()
    }


def restacked(
    values: dict[tuple[str, ...], np.ndarray],
    before: list[ling2_params.Parameter],
    after: list[ling2_params.Parameter],
) -> dict[tuple[str, ...], np.ndarray]:
    """Parameters in other stacks: a slice is found by the name of its HF tensor, and stays as it is."""
    slices = {name: values[p.path][index] for p in before for index, name in p.slices()}
    result = {}
    for parameter in after:
        places = list(parameter.slices())
        result[parameter.path] = np.empty(parameter.shape, slices[places[0][1]].dtype)
        for index, name in places:
            assert slices[name].shape == parameter.slice_shape
            result[parameter.path][index] = slices[name]
    return result
