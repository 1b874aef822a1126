"""The description of Ling2's parameters: names, places, values, and what of an HF config it takes or refuses."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from maxtext.checkpoint_conversion.utils import ling2_params
from maxtext.checkpoint_conversion.utils.ling2_params import ModelDims, Parameter
from maxtext.common import ling2_layers
from safetensors.numpy import load_file

from migration_tests.checkpoint.hf_models import (
    ORACLE,
    VARIANTS,
    Tensors,
    converted,
    exported,
    hf_config,
    oracle_config,
    random_tensors,
    restacked,
)
from target.integration import NEW_FILES

# What is written out here by hand: the HF name of every kind of parameter, below its layer.
MLP = {"wi_0": "gate_proj", "wi_1": "up_proj", "wo": "down_proj"}
MOE_NAMES = {
    "Ling2MoeBlock_0/MoeBlock_0/gate/kernel": "mlp.gate.weight",
    "Ling2MoeBlock_0/MoeBlock_0/gate/bias": "mlp.gate.expert_bias",
    **{f"Ling2MoeBlock_0/MoeBlock_0/{k}": f"mlp.experts.*.{v}.weight" for k, v in MLP.items()},
    **{
        f"Ling2MoeBlock_0/shared_experts/{k}/kernel": f"mlp.shared_experts.{v}.weight"
        for k, v in MLP.items()
    },
}
DENSE_NAMES = {f"mlp/{k}/kernel": f"mlp.{v}.weight" for k, v in MLP.items()}
NORM_NAMES = {
    "pre_self_attention_layer_norm/scale": "input_layernorm.weight",
    "post_self_attention_layer_norm/scale": "post_attention_layernorm.weight",
}
GLA_NAMES = {
    "self_attention/query_key_value/kernel": "attention.query_key_value.weight",
    "self_attention/query_layernorm/scale": "attention.query_layernorm.weight",
    "self_attention/key_layernorm/scale": "attention.key_layernorm.weight",
    "self_attention/g_proj/kernel": "attention.g_proj.weight",
    "self_attention/g_norm/scale": "attention.g_norm.weight",
    "self_attention/dense/kernel": "attention.dense.weight",
}
Q_LORA_NAMES = {
    "self_attention/wq_a/kernel": "attention.q_a_proj.weight",
    "self_attention/q_norm/scale": "attention.q_a_layernorm.weight",
    "self_attention/wq_b/kernel": "attention.q_b_proj.weight",
}
MLA_NAMES = {
    "self_attention/wkv_a/kernel": "attention.kv_a_proj_with_mqa.weight",
    "self_attention/kv_norm/scale": "attention.kv_a_layernorm.weight",
    "self_attention/wkv_b/kernel": "attention.kv_b_proj.weight",
    "self_attention/out/kernel": "attention.dense.weight",
}
MTP_NAMES = {
    "mtp_{}_embedding_norm/scale": "enorm.weight",
    "mtp_{}_hidden_state_norm/scale": "hnorm.weight",
    "mtp_{}_projection/kernel": "eh_proj.weight",
    "mtp_{}_final_norm/scale": "final_layernorm.weight",
}
TOP_NAMES = {
    "token_embedder/embedding": "model.word_embeddings.weight",
    "decoder/decoder_norm/scale": "model.norm.weight",
    "decoder/logits_dense/kernel": "lm_head.weight",
}
# Kernels whose two leading axes, heads and dims of a head, are multiplied with.
TWO_INPUT_AXES = ("self_attention/dense/kernel", "self_attention/out/kernel")


def dims_of(**changes: Any) -> ModelDims:
    return ModelDims.from_hf_config(hf_config(**changes))


def parameters_of(scan_layers: bool, **changes: Any) -> list[Parameter]:
    return ling2_params.parameters(dims_of(**changes), scan_layers)


# ---- Which layer is what, and where it is -------------------------------------------------------


@pytest.mark.parametrize(
    ("interval", "num_layers", "rule", "expected"),
    [
        (5, 21, "last", {4, 9, 14, 19, 20}),
        (5, 20, "last", {4, 9, 14, 19}),
        (1, 10, "last", set(range(10))),
        (5, 13, "last", {4, 9, 12}),
        (5, 13, "all", {4, 9, 10, 11, 12}),
        (5, 13, "never", {4, 9}),
    ],
)
def test_layers_with_mla(interval: int, num_layers: int, rule: str, expected: set[int]) -> None:
    dims = ModelDims.from_hf_config(
        hf_config(layer_group_size=interval, num_hidden_layers=num_layers), mla_tail_rule=rule
    )
    parameters = ling2_params.parameters(dims, scan_layers=False)
    mla = {i for p in parameters if p.path[-2] == "wkv_a" for i in p.layers}
    gla = {i for p in parameters if p.path[-2] == "query_key_value" for i in p.layers}
    mtp = {num_layers, num_layers + 1}
    assert mla == expected | mtp
    assert gla == set(range(num_layers)) - expected


@pytest.mark.parametrize("dense", [0, 1, 4, 21])
def test_unscanned_layers_count_from_zero_after_the_dense_ones(dense: int) -> None:
    parameters = parameters_of(False, num_hidden_layers=21, first_k_dense_replace=dense)
    for parameter in parameters:
        if parameter.path[0] != "decoder" or not parameter.layers:
            continue
        (layer,) = parameter.layers
        name = f"dense_layers_{layer}" if layer < dense else f"moe_layers_{layer - dense}"
        assert parameter.path[1] == name
        assert all(source.startswith(f"model.layers.{layer}.") for source in parameter.hf_names())


def test_scanned_layers_are_those_of_the_three_stages() -> None:
    # One dense layer, two cycles of three, and two layers that are left.
    parameters = parameters_of(True, num_hidden_layers=9, layer_group_size=3)
    layers = {p.path[1:3]: p.layers for p in parameters if p.path[-2] == "wi_0"}
    layers |= {p.path[1:3]: p.layers for p in parameters if p.path[-1] == "wi_0"}
    assert layers["layers", "layer_0"] == (1, 4)
    assert layers["layers", "layer_1"] == (2, 5)
    assert layers["layers", "layer_2"] == (3, 6)
    assert layers["layers_remainder", "layer_0"] == (7,)
    assert layers["layers_remainder", "layer_1"] == (8,)
    assert layers["dense_layers_0", "mlp"] == (0,)


# ---- Names and values, by hand ------------------------------------------------------------------


def split_layer(path: tuple[str, ...]) -> tuple[str, str]:
    """The path of a layer, and the rest."""
    if path[0] == "mtp_block":
        at = 3 if path[2].endswith("transformer_layer") else 2
    else:
        at = 3 if path[1] in ("layers", "layers_remainder") else 2
    return "/".join(path[:at]), "/".join(path[at:])


def faults(
    parameters: list[Parameter], hf: Tensors, values: dict[tuple[str, ...], Any]
) -> set[str]:
    """What is wrong with converted values, seen from what they are used for.

    A kernel has to do what the HF matrix does: whatever the shapes are, and where stacked layers and experts are looked up
    on the axes that the model has for them.
    """
    rng = np.random.default_rng(1)
    wrong = set()
    for parameter in parameters:
        below = (
            "/".join(parameter.path) if parameter.kind == "top" else split_layer(parameter.path)[1]
        )
        scanned = parameter.path[:2] == ("decoder", "layers")
        experts = "MoeBlock_0" in parameter.path and parameter.path[-1] in MLP
        for index, name in parameter.slices():
            value = values[parameter.path]
            layer = re.search(r"layers\.(\d+)", name)
            if scanned:
                assert layer is not None
                cycle = parameter.layers.index(int(layer[1]))
                value = np.take(value, cycle, axis=0 if below.endswith("gate/bias") else 1)
            if experts:
                expert = re.search(r"experts\.(\d+)", name)
                assert expert is not None
                value = np.take(value, int(expert[1]), axis=0)
            matrix = hf[name]
            if below.split("/")[-1] in ("scale", "bias", "embedding"):
                right = np.array_equal(value, matrix)
            else:
                inputs = rng.standard_normal(matrix.shape[1])
                axes = 2 if below in TWO_INPUT_AXES else 1
                given = inputs.reshape(value.shape[:axes]) if axes == 2 else inputs
                right = given.shape == value.shape[:axes] and np.allclose(
                    np.tensordot(given, value, axes=axes).reshape(-1), matrix @ inputs, atol=1e-4
                )
            if not right:
                wrong.add(below)
            del index
    return wrong


@pytest.mark.parametrize("q_lora_rank", [None, 10])
@pytest.mark.parametrize("scan_layers", [False, True])
def test_names_of_all_kinds_of_layers(scan_layers: bool, q_lora_rank: int | None) -> None:
    parameters = parameters_of(
        scan_layers, q_lora_rank=q_lora_rank, num_hidden_layers=13, layer_group_size=5
    )
    query = (
        Q_LORA_NAMES if q_lora_rank else {"self_attention/query/kernel": "attention.q_proj.weight"}
    )
    mla = MLA_NAMES | query
    layers: dict[str, dict[str, str]] = {}
    for parameter in parameters:
        assert parameter.collection == (
            "MoEBiasVar" if parameter.path[-2:] == ("gate", "bias") else "params"
        )
        if parameter.kind == "top":
            assert parameter.hf_names() == [TOP_NAMES["/".join(parameter.path)]]
            continue
        layer, below = split_layer(parameter.path)
        names = {
            re.sub(r"experts\.\d+\.", "experts.*.", re.sub(r"^model\.layers\.\d+\.", "", name))
            for name in parameter.hf_names()
        }
        assert len(names) == 1
        layers.setdefault(layer, {})[below] = names.pop()
    kinds = {
        "dense gla": NORM_NAMES | GLA_NAMES | DENSE_NAMES,
        "moe gla": NORM_NAMES | GLA_NAMES | MOE_NAMES,
        "moe mla": NORM_NAMES | mla | MOE_NAMES,
        "mtp 1": {k.format(1): v for k, v in MTP_NAMES.items()},
        "mtp 2": {k.format(2): v for k, v in MTP_NAMES.items()},
    }
    found = {
        layer: [kind for kind, names in kinds.items() if names == has]
        for layer, has in layers.items()
    }
    assert all(found.values()), layers
    assert {kind for names in found.values() for kind in names} == set(kinds)
    assert {f"mtp_block/mtp_layer_{k}/mtp_{k}_transformer_layer" for k in (1, 2)} <= set(found)


def test_experts_are_stacked_in_order() -> None:
    (stack,) = (
        p for p in parameters_of(False) if p.path[1] == "moe_layers_2" and p.path[-1] == "wi_0"
    )
    assert stack.sources == tuple(
        f"model.layers.3.mlp.experts.{e}.gate_proj.weight" for e in range(5)
    )
    assert (stack.stack_axes, stack.shape, stack.hf_shape) == ((0,), (5, 26, 12), (12, 26))


def test_experts_of_scanned_layers_come_first() -> None:
    stack = next(
        p
        for p in parameters_of(True, num_hidden_layers=9)
        if p.path[1:3] == ("layers", "layer_1") and p.path[-1] == "wo"
    )
    assert stack.layers == (2, 5)
    assert stack.sources[3] == tuple(
        f"model.layers.{i}.mlp.experts.3.down_proj.weight" for i in (2, 5)
    )
    assert (stack.stack_axes, stack.shape) == ((0, 1), (5, 2, 12, 26))


def test_a_kernel_is_the_transposed_matrix() -> None:
    # The square case of which the shape says nothing.
    kernel = Parameter(
        ("kernel",), "params", (2, 2), "weight", (), (2, 2), ling2_params.TRANSPOSE, (), "top"
    )
    matrix = np.array([[1, 2], [3, 4]])
    assert (np.array([1, 0]) @ ling2_params.to_maxtext(kernel, matrix)).tolist() == [1, 3]
    assert (matrix @ np.array([1, 0])).tolist() == [1, 3]
    assert (
        ling2_params.to_hf(kernel, ling2_params.to_maxtext(kernel, matrix)).tolist()
        == matrix.tolist()
    )


def test_heads_become_axes() -> None:
    parameters = {p.path[-2]: p for p in parameters_of(False) if p.path[-1] == "kernel"}
    tensor = np.arange(3 * 2 * 20 * 26).reshape(3 * 2 * 20, 26)
    fused = ling2_params.to_maxtext(parameters["query_key_value"], tensor)
    assert fused.shape == (26, 3, 2, 20)
    # Key, head 1, dim 5, of input 7: the row that follows all queries and head 0 of the keys.
    assert fused[7, 1, 1, 5] == tensor[2 * 20 + 20 + 5, 7]
    out = np.arange(26 * 16).reshape(26, 16)
    assert ling2_params.to_maxtext(parameters["out"], out)[1, 3, 9] == out[9, 8 + 3]
    assert np.shares_memory(tensor, fused)


def test_a_tensor_of_another_shape_is_refused() -> None:
    embedding = parameters_of(False)[0]
    with pytest.raises(
        ValueError, match=r"params-token_embedder-embedding: .*\(26, 44\).*\(44, 26\)"
    ):
        ling2_params.to_maxtext(embedding, np.zeros((26, 44)))
    with pytest.raises(ValueError, match=r"\(26, 44\).*\(44, 26\)"):
        ling2_params.to_hf(embedding, np.zeros((26, 44)))


# ---- There and back -----------------------------------------------------------------------------


@pytest.mark.parametrize("scan_layers", [False, True])
@pytest.mark.parametrize("variant", VARIANTS)
def test_oracle_there_and_back(variant: str, scan_layers: bool) -> None:
    hf = load_file(ORACLE / variant / "model.safetensors")
    shapes = {name: tensor.shape for name, tensor in hf.items()}
    dims = ModelDims.from_hf_config(oracle_config(variant), shapes)
    assert dims == ModelDims.from_hf_config(oracle_config(variant))
    parameters = ling2_params.parameters(dims, scan_layers)
    assert ling2_params.hf_shapes(dims) == shapes
    values = converted(parameters, hf)
    assert not faults(parameters, hf, values)
    assert_same(exported(parameters, values), hf)


@pytest.mark.parametrize("variant", VARIANTS)
def test_unscanned_to_scanned_and_back(variant: str) -> None:
    dims = ModelDims.from_hf_config(oracle_config(variant))
    unscanned, scanned = (ling2_params.parameters(dims, scan) for scan in (False, True))
    hf = load_file(ORACLE / variant / "model.safetensors")
    values = converted(unscanned, hf)
    stacked = restacked(values, unscanned, scanned)
    assert_same(stacked, converted(scanned, hf))
    assert_same(restacked(stacked, scanned, unscanned), values)


def assert_same(actual: dict[Any, Any], expected: dict[Any, Any]) -> None:
    """Bit by bit."""
    assert set(actual) == set(expected)
    for name, tensor in expected.items():
        assert actual[name].dtype == tensor.dtype, name
        assert actual[name].shape == tensor.shape, name
        assert actual[name].tobytes() == tensor.tobytes(), name


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float16])
def test_dtypes_are_kept(dtype: Any) -> None:
    parameters = parameters_of(True)
    hf = {
        name: tensor if name.endswith("expert_bias") else tensor.astype(dtype)
        for name, tensor in random_tensors(ling2_params.hf_shapes(dims_of())).items()
    }
    assert_same(exported(parameters, converted(parameters, hf)), hf)
    assert all(p.keeps_float32 == p.hf_names()[0].endswith("expert_bias") for p in parameters)


@settings(max_examples=60, deadline=None)
@given(
    layers=st.integers(1, 17),
    interval=st.integers(1, 6),
    dense=st.integers(0, 4),
    rule=st.sampled_from(ling2_layers.MLA_TAIL_RULES),
    mtp=st.integers(0, 3),
    switches=st.tuples(*[st.booleans()] * 4),
    param_scan_axis=st.integers(0, 1),
)
def test_every_tensor_has_one_place(
    layers: int,
    interval: int,
    dense: int,
    rule: str,
    mtp: int,
    switches: tuple[bool, ...],
    param_scan_axis: int,
) -> None:
    lora, norm, bias, tied = switches
    config = hf_config(
        num_hidden_layers=layers,
        layer_group_size=interval,
        first_k_dense_replace=min(dense, layers),
        num_nextn_predict_layers=mtp,
        q_lora_rank=10 if lora else None,
        use_qk_norm=norm,
        moe_router_enable_expert_bias=bias,
        tie_word_embeddings=tied,
    )
    options = ling2_params.maxtext_options(config, mla_tail_rule=rule)
    dims = ModelDims.from_maxtext_config(options | {"param_scan_axis": param_scan_axis})
    hf = random_tensors(ling2_params.hf_shapes(dims))
    # What the config leaves open, the names of its tensors tell again.
    shapes = ling2_params.hf_shapes(dims)
    again = ModelDims.from_hf_config(config, shapes)
    assert again.pattern.layers() == dims.pattern.layers()
    assert ling2_params.hf_shapes(again) == shapes
    for scan_layers in (False, True):
        parameters = ling2_params.parameters(dims, scan_layers)
        assert len({p.path for p in parameters}) == len(parameters)
        names = [name for p in parameters for name in p.hf_names()]
        assert len(names) == len(set(names))
        assert set(names) == set(hf)
        covered = {p.path: np.zeros(p.shape, int) for p in parameters}
        for parameter in parameters:
            for index, _ in parameter.slices():
                assert covered[parameter.path][index].shape == parameter.slice_shape
                covered[parameter.path][index] += 1
        assert all((count == 1).all() for count in covered.values())
        values = converted(parameters, hf)
        if param_scan_axis == 1:
            assert not faults(parameters, hf, values)
        back = exported(parameters, values)
        assert all(np.array_equal(back[name], hf[name]) for name in hf)


# ---- Faults are caught --------------------------------------------------------------------------

SQUARE: dict[str, Any] = {
    "hidden_size": 8,
    "vocab_size": 8,
    "intermediate_size": 8,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "num_hidden_layers": 18,
    "layer_group_size": 2,
    "q_lora_rank": 8,
    "qk_nope_head_dim": 2,
    "qk_rope_head_dim": 2,
    "v_head_dim": 4,
    "num_experts": 8,
    "moe_intermediate_size": 8,
    "moe_shared_expert_intermediate_size": 8,
    "num_nextn_predict_layers": 1,
}


def _not_transposed(p: Parameter, tensor: np.ndarray) -> np.ndarray:
    return tensor.reshape(p.slice_shape)


def _heads_inside_out(p: Parameter, tensor: np.ndarray) -> np.ndarray:
    return tensor.T.reshape(p.slice_shape, order="F")


def _reversed_outputs(p: Parameter, tensor: np.ndarray) -> np.ndarray:
    return tensor[::-1].T.reshape(p.slice_shape)


BROKEN: dict[str, Callable[[Parameter, np.ndarray], np.ndarray]] = {
    "not transposed": _not_transposed,
    "heads inside out": _heads_inside_out,
    "rows reversed": _reversed_outputs,
}


# A rank of 6 makes MLA's first matrix of keys and values square, 12 the second one.
@pytest.mark.parametrize("kv_lora_rank", [6, 12])
@pytest.mark.parametrize("scan_layers", [False, True])
@pytest.mark.parametrize("sizes", [SQUARE, {}], ids=["square", "all different"])
def test_each_transform_broken_in_turn_is_caught(
    sizes: dict[str, Any], scan_layers: bool, kv_lora_rank: int
) -> None:
    dims = dims_of(**sizes, kv_lora_rank=kv_lora_rank)
    parameters = ling2_params.parameters(dims, scan_layers)
    hf = random_tensors(ling2_params.hf_shapes(dims))
    values = converted(parameters, hf)
    assert not faults(parameters, hf, values)
    tried = set()
    for parameter in parameters:
        if parameter.transform == ling2_params.IDENTITY:
            continue
        for name, broken in BROKEN.items():
            plain = len(parameter.slice_shape) == 2
            if name == "heads inside out" and plain:
                continue
            value = np.empty(parameter.shape, np.float32)
            for index, source in parameter.slices():
                value[index] = broken(parameter, hf[source])
            assert faults([parameter], hf, {parameter.path: value}), (parameter.path, name)
            tried.add((re.sub(r"mtp_\d", "mtp_k", split_layer(parameter.path)[1]), name))
    assert len({path for path, _ in tried}) == 20


@pytest.mark.parametrize("sizes", [SQUARE, {}], ids=["square", "all different"])
def test_swapped_tensors_and_axes_are_caught(sizes: dict[str, Any]) -> None:
    dims = dims_of(**sizes)
    parameters = ling2_params.parameters(dims, scan_layers=True)
    hf = random_tensors(ling2_params.hf_shapes(dims))
    values = converted(parameters, hf)
    stacks = [p for p in parameters if p.path[:2] == ("decoder", "layers")]
    for parameter in stacks:
        value = values[parameter.path]
        if len(parameter.shape) > 1 and parameter.shape[0] == parameter.shape[1]:
            swapped = np.swapaxes(value, 0, 1)
            assert faults([parameter], hf, {parameter.path: swapped}), parameter.path
    assert sum(p.shape[:2] == (8, 8) for p in stacks) > 20 or not sizes
    # Another tensor of the same shape in its place.
    by_shape: dict[Any, list[Parameter]] = {}
    for parameter in parameters:
        by_shape.setdefault(parameter.shape, []).append(parameter)
    for alike in by_shape.values():
        for one, other in itertools.pairwise(alike):
            assert faults([one], hf, {one.path: values[other.path]}), one.path


# ---- HF configs ---------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["ling2", "ling2-1t"])
def test_released_models_in_both_words(model: str) -> None:
    options = yaml.safe_load(
        (NEW_FILES / f"configs/models/{model}.yml").read_text(encoding="utf-8")
    )
    again = ling2_params.maxtext_options(ling2_params.hf_config_of(options))
    assert {name: options[name] for name in again if name in options} == {
        name: value for name, value in again.items() if name in options
    }
    assert set(again) - set(options) == set()
    assert ModelDims.from_maxtext_config(again) == ModelDims.from_maxtext_config(options)


@pytest.mark.parametrize("variant", VARIANTS)
def test_oracle_config_and_back(variant: str) -> None:
    hf = oracle_config(variant)
    options = ling2_params.maxtext_options(hf)
    back = ling2_params.hf_config_of(options)
    assert {key: back[key] for key in back if key in hf and key != "rope_scaling"} == {
        key: hf[key] for key in back if key in hf and key != "rope_scaling"
    }
    assert back["rope_scaling"] == (hf["rope_scaling"] and hf["rope_scaling"] | {"truncate": True})
    assert ling2_params.maxtext_options(back) == options | {"gla_slope_index": "zero_based"}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"q_lora_rank": None}, {"q_lora_rank": 0}),
        (
            {"tie_word_embeddings": True},
            {"logits_via_embedding": True, "normalize_embedding_logits": False},
        ),
        ({"head_dim": None}, {"head_dim": 13}),
        ({"num_shared_experts": None, "n_shared_experts": 2}, {"shared_experts": 2}),
        ({"score_function": None, "scoring_func": "sigmoid"}, {"shared_experts": 1}),
        ({"tie_word_embeddings": None}, {"logits_via_embedding": False}),
        ({"rope_scaling": {"type": None}}, {"rope_type": "default"}),
        ({"num_nextn_predict_layers": None}, {"mtp_num_layers": 0}),
        ({"n_group": None, "topk_group": None}, {"n_routing_groups": -1, "topk_routing_group": -1}),
        ({"n_group": 1}, {"n_routing_groups": 1}),
        ({"num_shared_experts": 3}, {"shared_experts": 3, "moe_shared_expert_dim": 16}),
        (
            {"num_shared_experts": 3, "moe_shared_expert_intermediate_size": None},
            {"shared_experts": 3, "moe_shared_expert_dim": 12},
        ),
        ({"num_experts": None, "num_nextn_predict_layers": 0}, {"first_num_dense_layers": 7}),
        ({"rope_interleave": False}, {"mla_interleaved_rope": False}),
        ({"linear_silu": True}, {"use_linear_silu": True}),
        (
            {"gla_slope_index": "hf", "mla_tail_rule": "never"},
            {"gla_slope_index": "hf", "mla_tail_rule": "never"},
        ),
        ({"rope_theta": 600000}, {"rope_max_timescale": 600000}),
        (
            {
                "rope_parameters": {
                    "rope_type": "default",
                    "rope_theta": 5e5,
                    "partial_rotary_factor": 0.25,
                }
            },
            {"rope_type": "default", "rope_max_timescale": 500000, "partial_rotary_factor": 0.25},
        ),
        ({"rope_scaling": {"type": "default"}}, {"rope_type": "default"}),
        (
            {"rope_scaling": {"type": "yarn", "factor": 2.0}},
            {
                "rope_type": "yarn",
                "rope_factor": 2,
                "original_max_position_embeddings": 512,
                "max_position_embeddings": 1024,
                "beta_fast": 32,
                "beta_slow": 1,
                "mscale": 0.0,
                "rope_attention_scaling": True,
            },
        ),
        (
            {
                "rope_scaling": {
                    "rope_type": "yarn",
                    "factor": 4,
                    "original_max_position_embeddings": 128,
                    "mscale": 0.7,
                    "mscale_all_dim": 0.7,
                    "beta_fast": 16.0,
                    "truncate": False,
                }
            },
            {
                "max_position_embeddings": 512,
                "original_max_position_embeddings": 128,
                "mscale": 0.7,
                "rope_attention_scaling": False,
                "beta_fast": 16,
                "rope_truncate": False,
            },
        ),
    ],
)
def test_what_an_hf_config_asks_for(changes: dict[str, Any], expected: dict[str, Any]) -> None:
    options = ling2_params.maxtext_options(hf_config(**changes))
    assert {name: options.get(name) for name in expected} == expected
    # And said again in HF's words it asks for the same.
    again = ling2_params.maxtext_options(ling2_params.hf_config_of(options))
    known = ("n_routing_groups", "topk_routing_group")
    assert {k: v for k, v in again.items() if k in options and k not in known} == {
        k: v for k, v in options.items() if k not in known
    }


@pytest.mark.parametrize("key", sorted(ling2_params._HF_DEFAULTS))
def test_optional_keys_may_be_missing(key: str) -> None:
    config = hf_config()
    config.pop(key, None)
    assert ling2_params.maxtext_options(config)


@pytest.mark.parametrize(
    "key",
    [
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "layer_group_size",
        "first_k_dense_replace",
        "kv_lora_rank",
        "qk_nope_head_dim",
        "qk_rope_head_dim",
        "v_head_dim",
        "num_experts",
        "num_experts_per_tok",
        "moe_intermediate_size",
    ],
)
@pytest.mark.parametrize("value", ["missing", "8", 2.5, -1, True, []])
def test_sizes_are_needed(key: str, value: Any) -> None:
    config = hf_config()
    if value == "missing":
        del config[key]
    else:
        config[key] = value
    with pytest.raises(ValueError, match=rf"^{key}: ") as caught:
        ling2_params.maxtext_options(config)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"use_qkv_bias": True}, "use_qkv_bias: is true"),
        ({"use_bias": True}, "use_bias: is true"),
        ({"use_bias": "no"}, "use_bias: true or false"),
        ({"hidden_act": "gelu"}, "hidden_act: .*'silu'.*'gelu'"),
        ({"score_function": "softmax"}, "score_function: .*'softmax'"),
        ({"num_key_value_heads": 1}, "num_key_value_heads: 1"),
        ({"num_shared_experts": None}, "num_shared_experts: "),
        ({"num_shared_experts": 0}, "num_shared_experts: "),
        ({"first_k_dense_replace": 8}, "first_k_dense_replace: 8 exceeds"),
        ({"num_experts": None}, "num_nextn_predict_layers: "),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config: "),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, "rope_scaling: .*'linear'"),
        ({"rope_scaling": "yarn"}, "rope_scaling: an object"),
        ({"rope_scaling": {"type": "yarn"}}, "rope_scaling.factor: "),
        ({"rope_scaling": {"type": "yarn", "factor": 2.5}}, "rope_scaling.factor: .*2.5"),
        (
            {"rope_scaling": {"type": "yarn", "factor": 4, "mscale": 1.0, "mscale_all_dim": 0.5}},
            "rope_scaling: its mscale",
        ),
        ({"rope_theta": 0}, "rope_theta: "),
        ({"rms_norm_eps": "1e-6"}, "rms_norm_eps: "),
        ({"mla_tail_rule": "first"}, "mla_tail_rule"),
        ({"gla_slope_index": "one_based"}, "gla_slope_index: one of zero_based, hf"),
        ({"num_experts": 1}, "num_experts: has to be at least 2"),
        ({"vocab_size": float("inf")}, "vocab_size: a whole number"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps: a positive number"),
        ({"rms_norm_eps": 10**400}, "rms_norm_eps: a positive number"),
        ({"num_shared_experts": 1, "n_shared_experts": 2}, "num_shared_experts: is 1.*n_shared"),
        *(
            ({"rope_scaling": {"type": "yarn", "factor": 4, key: "x"}}, rf"rope_scaling.{key}: ")
            for key in ("attention_factor", "mscale", "mscale_all_dim", "beta_fast", "truncate")
        ),
    ],
)
def test_what_would_be_lost_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        ModelDims.from_hf_config(hf_config(**changes))
    assert "\n" not in str(caught.value)


def test_the_tensors_settle_what_the_config_leaves_open() -> None:
    config = hf_config(num_shared_experts=2, moe_shared_expert_intermediate_size=16)
    name = "model.layers.1.mlp.shared_experts.gate_proj.weight"
    for width, expected in ((32, 16), (24, 12), (16, 8), (999, 16)):
        assert (
            ling2_params.maxtext_options(config, {name: (width, 26)})["moe_shared_expert_dim"]
            == expected
        )
    assert not ModelDims.from_hf_config(config, {name: (32, 26)}).routed_bias
    assert ModelDims.from_hf_config(
        config, {"model.layers.9.mlp.gate.expert_bias": (5,)}
    ).routed_bias


def test_options_of_a_yaml_file_need_the_sizes() -> None:
    with pytest.raises(ValueError, match=r"^num_decoder_layers: .*base_num_decoder_layers"):
        ModelDims.from_maxtext_config({"base_emb_dim": 8})


# ---- Names of older checkpoints -----------------------------------------------------------------


@pytest.mark.parametrize("block", ["ALMoeBlock_0", "DeepSeekMoeBlock_0", "Ling2MoeBlock_0"])
@pytest.mark.parametrize("attention", ["attention", "self_attention"])
@pytest.mark.parametrize("scan_layers", [False, True])
def test_older_names_are_read(scan_layers: bool, attention: str, block: str) -> None:
    dims = dims_of()
    parameters = ling2_params.parameters(dims, scan_layers)
    old_names = {"query_layernorm": "query_norm", "key_layernorm": "key_norm"}
    old_names |= {"self_attention": attention, "Ling2MoeBlock_0": block}
    for k in (1, 2):
        own = {"embedding_norm": "embedding_norm", "hidden_state_norm": "hidden_state_norm"}
        own |= {"projection": "projection_layer", "final_norm": "final_layernorm"}
        own |= {"transformer_layer": "transformer_layer"}
        old_names |= {f"mtp_{k}_{new}": old for new, old in own.items()}
    old = {tuple(old_names.get(part, part) for part in p.path): p for p in parameters}
    assert len(old) == len(parameters)
    assert ling2_params.rename_all(old, dims, scan_layers) == old
    today = {p.path for p in parameters}
    assert {ling2_params.rename_legacy(path, dims, scan_layers) for path in today} == today


def test_older_scanned_layers() -> None:
    # Layer 0 is dense, 1 to 3 and 4 to 6 are scanned, 7 and 8 follow.
    dims = dims_of(num_hidden_layers=9, layer_group_size=3, first_k_dense_replace=1)
    for older, today in {
        "layers/layers_2/attention": "layers/layer_2/self_attention",
        "moe_layers_6/attention": "layers_remainder/layer_0/self_attention",
        "moe_layers_7/ALMoeBlock_0": "layers_remainder/layer_1/Ling2MoeBlock_0",
        "dense_layers_0/attention": "dense_layers_0/self_attention",
        "moe_layers_5/attention": "moe_layers_5/self_attention",  # of no layer after the scan
    }.items():
        path = ("decoder", *older.split("/"), "scale")
        assert ling2_params.rename_legacy(path, dims, True) == (
            "decoder",
            *today.split("/"),
            "scale",
        )


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize(
    "experts", [8, 2]
)  # 2: as many as cycles, so that shapes alone say nothing
def test_older_layouts_of_stacked_layers(experts: int, older: bool) -> None:
    parameters = parameters_of(
        True, num_hidden_layers=9, layer_group_size=3, num_experts=experts, num_experts_per_tok=1
    )
    for parameter in parameters:
        value = np.arange(math.prod(parameter.shape)).reshape(parameter.shape)
        assert ling2_params.keeps_layout(parameter, parameter.shape, False)
        assert (ling2_params.from_stored(parameter, value, False) == value).all()
        if len(parameter.layers) < 2:
            continue
        own = parameter.stack_axes[-1]
        layers = np.moveaxis(value, own, 0)
        if parameter.path[-2:] in (("dense", "kernel"), ("out", "kernel")):
            layers = layers.reshape(len(layers), -1, layers.shape[-1])
        stored = np.moveaxis(layers, 0, 1 if older or own == 1 else 0)
        assert ling2_params.is_stored_as(parameter, stored.shape, older)
        assert (ling2_params.from_stored(parameter, stored, older) == value).all()
        assert (ling2_params.to_stored(parameter, value, stored.shape, older) == stored).all()
        wrong = (*stored.shape[:-1], stored.shape[-1] + 1)
        assert not ling2_params.is_stored_as(parameter, wrong, older)
        with pytest.raises(ValueError, match="is not stored as"):
            ling2_params.to_stored(parameter, value, wrong, older)


def test_older_names_that_cannot_be_placed_are_named() -> None:
    dims = dims_of()
    paths = [p.path for p in ling2_params.parameters(dims, False)]
    twice = ("decoder", "moe_layers_0", "attention", "g_norm", "scale")
    with pytest.raises(
        ValueError,
        match=r"moe_layers_0/self_attention/g_norm/scale and decoder/moe_layers_0/attention",
    ):
        ling2_params.rename_all([*paths, twice], dims, False)
    with pytest.raises(
        ValueError, match="No parameter of the model is meant by decoder/moe_layers_99/x/scale"
    ):
        ling2_params.rename_all([*paths, ("decoder", "moe_layers_99", "x", "scale")], dims, False)
    with pytest.raises(ValueError, match="The checkpoint lacks decoder/decoder_norm/scale"):
        ling2_params.rename_all([p for p in paths if p[1] != "decoder_norm"], dims, False)
    moved = [p if p[1] != "decoder_norm" else ("decoder", "x_norm", "scale") for p in paths]
    with pytest.raises(
        ValueError, match=r"by decoder/x_norm/scale\. The checkpoint lacks decoder/dec"
    ):
        ling2_params.rename_all(moved, dims, False)


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ((26, 6, 14), (26, 3, 2, 14), True),
        ((26, 84), (26, 3, 2, 14), True),
        ((28, 26), (2, 14, 26), True),
        ((26, 3, 2, 14), (26, 3, 2, 14), True),
        ((26, 1, 28), (26, 28), True),
        ((26, 28), (28, 26), False),
        ((26, 14, 2), (26, 2, 14), False),
        ((26,), (26, 2), False),
        ((26, 2), (26,), False),
    ],
)
def test_shapes_with_merged_axes(old: tuple[int, ...], new: tuple[int, ...], same: bool) -> None:
    assert ling2_params.is_regrouped(old, new) == same
