"""The map against the model: registered with the conversion tools, and of exactly the model's own variables."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from flax import nnx
from maxtext.checkpoint_conversion.utils import ling2_params
from maxtext.checkpoint_conversion.utils.hf_model_configs import HF_MODEL_CONFIGS
from maxtext.checkpoint_conversion.utils.hf_shape import HF_SHAPE
from maxtext.checkpoint_conversion.utils.param_mapping import (
    HOOK_FNS,
    LING2_MAXTEXT_TO_HF_PARAM_HOOK_FN,
    LING2_MAXTEXT_TO_HF_PARAM_MAPPING,
    PARAM_MAPPING,
)
from maxtext.utils import model_creation_utils
from maxtext.utils.globals import HF_IDS, MAXTEXT_CONFIGS_DIR

from migration_tests.checkpoint.hf_models import VARIANTS, hf_config, oracle_config
from migration_tests.model.inside import models

MODELS = ("ling2", "ling2-1t")


def variables_of(config: Any) -> dict[str, tuple[int, ...]]:
    """Shapes of the weights that the model itself makes, by the keys of the conversion tools."""
    _, abstract = model_creation_utils.create_nnx_abstract_model(config, models.make_mesh(config))
    return {
        "-".join(("MoEBiasVar" if type(variable).__name__ == "MoEBiasVar" else "params", *path)): (
            variable.get_value().shape
        )
        for path, variable in nnx.to_flat_state(nnx.state(abstract))
        if models.is_weight(path, variable)
    }


def check_complete(config: Any) -> int:
    """The map has the model's variables, all of them and no others, with their shapes."""
    actual = variables_of(config)
    dims = ling2_params.ModelDims.from_maxtext_config(config)
    parameters = ling2_params.parameters(dims, config.scan_layers)
    assert {p.key: p.shape for p in parameters} == actual
    hf = HF_MODEL_CONFIGS["ling2"].to_dict()
    mapping = PARAM_MAPPING["ling2"](hf, config, config.scan_layers)
    assert set(mapping) == set(actual)
    for saving in (False, True):
        hooks = HOOK_FNS["ling2"](hf, config, config.scan_layers, saving_to_hf=saving)
        assert set(hooks) < set(mapping)
        assert {key for key in mapping if key not in hooks} == {
            key for key in mapping if key.endswith(("-scale", "-bias", "-embedding"))
        }
    return len(actual)


def test_registered() -> None:
    for model in MODELS:
        assert {model} <= set(PARAM_MAPPING) & set(HOOK_FNS) & set(HF_IDS)
        assert {model} <= set(HF_SHAPE) & set(HF_MODEL_CONFIGS)
    assert PARAM_MAPPING["ling2"] is LING2_MAXTEXT_TO_HF_PARAM_MAPPING
    assert HOOK_FNS["ling2"] is LING2_MAXTEXT_TO_HF_PARAM_HOOK_FN
    config = HF_MODEL_CONFIGS["ling2"].to_dict()
    assert config["architectures"] == ["BailingMoeV2_5ForCausalLM"]
    assert config["layer_group_size"] == 5
    assert HF_SHAPE["ling2"](config)["model.layers.4.attention.q_b_proj.weight"] == [16 * 192, 256]
    # Dumping it again changes nothing, and what it says is the model of the YAML file.
    assert ling2_params.maxtext_options(config)["rope_type"] == "default"
    assert len(HF_SHAPE["ling2-1t"](HF_MODEL_CONFIGS["ling2-1t"].to_dict())) == 59_413


@pytest.mark.parametrize("scan_layers", [False, True])
@pytest.mark.parametrize("variant", VARIANTS)
def test_complete_for_oracle_models(variant: str, scan_layers: bool) -> None:
    options = ling2_params.maxtext_options(oracle_config(variant))
    check_complete(models.make_config(**options, scan_layers=scan_layers))


@pytest.mark.parametrize("scan_layers", [False, True])
@pytest.mark.parametrize("model", MODELS)
def test_complete_for_released_models(model: str, scan_layers: bool) -> None:
    started = time.monotonic()
    # The model's own values where the tests' small model has others.
    directory = Path(MAXTEXT_CONFIGS_DIR) / "models"
    own = yaml.safe_load((directory / f"{model}.yml").read_text(encoding="utf-8"))
    sizes = {name: own[name] for name in models.TINY}
    config = models.make_config(model, **sizes, scan_layers=scan_layers)
    assert config.emb_dim == own["base_emb_dim"]
    count = check_complete(config)
    print(f"{model} scan_layers={scan_layers}: {count} in {time.monotonic() - started:.1f} s")


@pytest.mark.parametrize(
    "changes",
    [
        {"q_lora_rank": None, "num_nextn_predict_layers": 3},
        {"first_k_dense_replace": 0, "num_hidden_layers": 8, "use_qk_norm": False},
        {"first_k_dense_replace": 5, "num_nextn_predict_layers": 0, "num_shared_experts": 2},
        {"layer_group_size": 1, "num_hidden_layers": 3},
        {"layer_group_size": 4, "num_hidden_layers": 14, "mla_tail_rule": "last"},
        {"layer_group_size": 9, "mla_tail_rule": "never", "tie_word_embeddings": True},
        {"num_experts": None, "num_nextn_predict_layers": 0},
        {"moe_router_enable_expert_bias": False},
    ],
    ids=str,
)
def test_complete_for_other_models(changes: dict[str, Any]) -> None:
    options = ling2_params.maxtext_options(hf_config(**changes))
    check_complete(models.make_config(**options, scan_layers=True))
