"""Names, hooks and shapes as upstream's conversion tools take them, without upstream."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from maxtext.checkpoint_conversion.utils import ling2_mapping, ling2_params
from maxtext.common import checkpoint_collections, ling2_record

from migration_tests.checkpoint.hf_models import hf_config, random_tensors
from target.integration import NEW_FILES

LING2 = yaml.safe_load((NEW_FILES / "configs/models/ling2.yml").read_text(encoding="utf-8"))
mapping_of = ling2_mapping.LING2_MAXTEXT_TO_HF_PARAM_MAPPING
hooks_of = ling2_mapping.LING2_MAXTEXT_TO_HF_PARAM_HOOK_FN


def test_released_model_unscanned() -> None:
    mapping = mapping_of({}, LING2)
    expected = {
        "params-token_embedder-embedding": "model.word_embeddings.weight",
        "params-decoder-decoder_norm-scale": "model.norm.weight",
        "params-decoder-logits_dense-kernel": "lm_head.weight",
        "params-decoder-dense_layers_0-mlp-wi_0-kernel": "model.layers.0.mlp.gate_proj.weight",
        "params-decoder-moe_layers_3-self_attention-wkv_a-kernel": (
            "model.layers.4.attention.kv_a_proj_with_mqa.weight"
        ),
        "params-decoder-moe_layers_0-self_attention-query_key_value-kernel": (
            "model.layers.1.attention.query_key_value.weight"
        ),
        "params-mtp_block-mtp_layer_1-mtp_1_projection-kernel": "model.layers.20.eh_proj.weight",
        "MoEBiasVar-decoder-moe_layers_5-Ling2MoeBlock_0-MoeBlock_0-gate-bias": (
            "model.layers.6.mlp.gate.expert_bias"
        ),
        "params-decoder-moe_layers_5-Ling2MoeBlock_0-MoeBlock_0-wi_0": [
            f"model.layers.6.mlp.experts.{e}.gate_proj.weight" for e in range(256)
        ],
    }
    assert {key: mapping[key] for key in expected} == expected
    stacks = [
        value for key, value in mapping.items() if key.split("-")[-1] in ("wi_0", "wi_1", "wo")
    ]
    assert len(stacks) == 3 * 20
    assert all(isinstance(value, list) and len(value) == 256 for value in stacks)


def test_released_model_scanned() -> None:
    mapping = mapping_of({}, LING2, scan_layers=True)
    block = "decoder-layers-layer_3-Ling2MoeBlock_0-MoeBlock_0"
    layers = (4, 9, 14)
    assert mapping[f"params-{block}-wo"] == [
        [f"model.layers.{i}.mlp.experts.{e}.down_proj.weight" for i in layers] for e in range(256)
    ]
    assert mapping[f"MoEBiasVar-{block}-gate-bias"] == [
        f"model.layers.{i}.mlp.gate.expert_bias" for i in layers
    ]
    assert mapping["params-decoder-layers-layer_3-self_attention-out-kernel"] == [
        f"model.layers.{i}.attention.dense.weight" for i in layers
    ]


def test_a_release_with_the_linen_decoder_has_one_collection() -> None:
    mapping = mapping_of({}, SimpleNamespace(**with_all(LING2), pure_nnx_decoder=True))
    assert {key.split("-")[0] for key in mapping} == {"params"}
    assert "params-decoder-moe_layers_5-Ling2MoeBlock_0-MoeBlock_0-gate-bias" in mapping


def with_all(options: dict[str, Any]) -> dict[str, Any]:
    """A model's options with the names that a config has them under too."""
    rest = {"param_scan_axis": 1}
    return options | rest | {name.removeprefix("base_"): v for name, v in options.items()}


@pytest.mark.parametrize("scan_layers", [False, True])
def test_hooks_there_and_back(scan_layers: bool) -> None:
    options = ling2_params.maxtext_options(hf_config(num_hidden_layers=9))
    dims = ling2_params.ModelDims.from_maxtext_config(options)
    hf = random_tensors(ling2_params.hf_shapes(dims))
    there = hooks_of({}, options, scan_layers)
    back = hooks_of({}, options, scan_layers, saving_to_hf=True)
    mapping = mapping_of({}, options, scan_layers)
    assert set(there) == set(back) < set(mapping)
    for parameter in ling2_params.parameters(dims, scan_layers):
        name = parameter.hf_names()[-1]
        if parameter.transform == ling2_params.IDENTITY:
            assert parameter.key not in there
            continue
        kernel = there[parameter.key](hf[name], parameter.slice_shape)
        assert kernel.shape == parameter.slice_shape
        assert np.array_equal(kernel, ling2_params.to_maxtext(parameter, hf[name]))
        again = back[parameter.key](kernel, list(parameter.hf_shape))
        assert np.array_equal(again, hf[name])
        with pytest.raises(ValueError, match="is asked for"):
            there[parameter.key](hf[name], (1, *parameter.slice_shape))


def test_shapes_of_hf() -> None:
    shapes = ling2_mapping.LING2_HF_WEIGHTS_TO_SHAPE(hf_config())
    assert shapes["model.layers.2.attention.q_b_proj.weight"] == [2 * 10, 10]
    assert shapes["model.layers.8.eh_proj.weight"] == [26, 52]
    assert len(shapes) == len(
        ling2_params.hf_shapes(ling2_params.ModelDims.from_hf_config(hf_config()))
    )


@pytest.mark.parametrize(
    ("key", "axis"),
    [
        ("params-decoder-layers-layer_0-self_attention-out-kernel", 1),
        ("params-decoder-layers-layer_0-Ling2MoeBlock_0-MoeBlock_0-gate-kernel", 1),
        ("params-decoder-layers-layer_0-Ling2MoeBlock_0-shared_experts-wo-kernel", 1),
        ("MoEBiasVar-decoder-layers-layer_0-Ling2MoeBlock_0-MoeBlock_0-gate-bias", 0),
        ("params-decoder-layers-layer_0-Ling2MoeBlock_0-MoeBlock_0-gate-bias", 0),
        ("params-decoder-layers_remainder-layer_0-Ling2MoeBlock_0-MoeBlock_0-wo", 0),
        ("params-decoder-moe_layers_0-Ling2MoeBlock_0-MoeBlock_0-wo", 0),
        ("params-mtp_block-mtp_layer_1-mtp_1_transformer_layer-Ling2MoeBlock_0-MoeBlock_0-wo", 0),
    ],
)
def test_axis_of_a_stack(key: str, axis: int) -> None:
    config = SimpleNamespace(decoder_block=SimpleNamespace(value="ling2"), param_scan_axis=1)
    assert ling2_mapping.stack_axis(key, config, 7) == axis
    linen = SimpleNamespace(**vars(config), pure_nnx_decoder=False)
    in_cycle = "-decoder-layers-" in key
    assert ling2_mapping.stack_axis(key, linen, 7) == int(in_cycle)
    other = SimpleNamespace(decoder_block=SimpleNamespace(value="deepseek"), param_scan_axis=1)
    assert ling2_mapping.stack_axis(key, other, 7) == 7


def test_a_checkpoint_that_lacks_a_parameter_does_not_become_an_hf_one() -> None:
    config = SimpleNamespace(decoder_block="ling2")
    param_map = {"params-a": "a", "MoEBiasVar-b": "b"}
    ling2_mapping.refuse_missing(param_map, ["params-a", "MoEBiasVar-b"], config)
    with pytest.raises(ValueError, match="lacks 1 parameters of the model, the first MoEBiasVar-b"):
        ling2_mapping.refuse_missing(param_map, ["params-a"], config)
    ling2_mapping.refuse_missing(param_map, [], SimpleNamespace(decoder_block="llama2"))


# ---- The record and the collections -------------------------------------------------------------


def config_with(**changes: Any) -> SimpleNamespace:
    """A config of 13 layers in cycles of five."""
    options = {
        "gla_slope_index": "zero_based",
        "mla_tail_rule": "last",
        "scan_layers": True,
        "param_scan_axis": 1,
        "num_decoder_layers": 13,
        "inhomogeneous_layer_cycle_interval": 5,
        "first_num_dense_layers": 1,
    }
    return SimpleNamespace(**options | changes)


def test_what_a_checkpoint_records_is_what_its_config_says() -> None:
    metadata = ling2_record.of_config(config_with())
    assert metadata == ling2_record.custom_metadata("zero_based", "last", True, 1, "MaxText")
    ling2_record.check(metadata, config_with(), "there")
    ling2_record.check({}, config_with(), "there")
    ling2_record.check({"scan_layers": False}, config_with(), "there")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"gla_slope_index": "hf"},
            "gla_slope_index=zero_based, the config has gla_slope_index=hf",
        ),
        ({"mla_tail_rule": "all"}, "mla_tail_rule=last, the config has mla_tail_rule=all"),
        ({"scan_layers": False}, "scan_layers=True, the config has scan_layers=False"),
        ({"param_scan_axis": 0}, "param_scan_axis=1, the config has param_scan_axis=0"),
    ],
)
def test_a_clash_is_refused(changes: dict[str, Any], message: str) -> None:
    metadata = ling2_record.of_config(config_with())
    with pytest.raises(ValueError, match=f"^The Ling2 checkpoint there is for {message}") as caught:
        ling2_record.check(metadata, config_with(**changes), "there")
    assert "\n" not in str(caught.value)


def test_tail_rules_that_make_the_same_layers_do_not_clash() -> None:
    metadata = ling2_record.of_config(config_with())
    for layers in (10, 11):
        config = config_with(num_decoder_layers=layers, mla_tail_rule="all")
        ling2_record.check(metadata, config, "there")


def test_weights_by_the_collection_that_has_them() -> None:
    wanted = {"a": {"kernel": 1, "bias": 2}, "new": 3}
    stored = {"params": {"a": {"kernel": 0}}, "MoEBiasVar": {"a": {"bias": 0}}}
    split = checkpoint_collections.by_collection(wanted, stored)
    assert split == {"params": {"a": {"kernel": 1}, "new": 3}, "MoEBiasVar": {"a": {"bias": 2}}}
    assert checkpoint_collections.merged(split) == wanted
    assert checkpoint_collections.by_collection(wanted, {"params": wanted}) == {"params": wanted}
    assert checkpoint_collections.by_collection({}, {}) == {"params": {}}
