"""Upstream's own tools on Ling2: to MaxText, restored there, and back to HF. Needs 16 devices, and no torch."""

from __future__ import annotations

import gc
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from absl import flags
from flax import nnx
from maxtext.checkpoint_conversion import to_huggingface, to_maxtext
from maxtext.checkpoint_conversion.utils import ling2_params
from maxtext.common import checkpointing
from maxtext.utils import model_creation_utils
from maxtext.utils.globals import MAXTEXT_CONFIGS_DIR
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from migration_tests.checkpoint import hf_models
from migration_tests.model.inside import models

ORACLE = Path(os.environ.get("LING2_ORACLE", hf_models.ORACLE))
# Every size another one; and cycles as many as experts, and most matrices square.
MADE = {
    "two_cycles": {"num_hidden_layers": 9, "num_nextn_predict_layers": 2},
    "square": {
        "num_hidden_layers": 6,
        "layer_group_size": 2,
        "hidden_size": 8,
        "head_dim": 4,
        "q_lora_rank": 8,
        "kv_lora_rank": 6,
        "qk_nope_head_dim": 2,
        "qk_rope_head_dim": 2,
        "v_head_dim": 4,
        "num_experts": 2,
        "moe_intermediate_size": 8,
        "moe_shared_expert_intermediate_size": 8,
        "num_nextn_predict_layers": 1,
    },
}
CASES = [("base_s0", False), ("base_s0", True), ("two_cycles", True), ("square", True)]
if ORACLE != hf_models.ORACLE:
    CASES += [(path.name, scan) for path in sorted(ORACLE.glob("*")) for scan in (False, True)]


def checkpoint(name: str, directory: Path) -> Path:
    """An oracle checkpoint, or a random one that is made in the directory."""
    if name not in MADE:
        return ORACLE / name
    hf = hf_models.hf_config(**MADE[name])
    dims = ling2_params.ModelDims.from_hf_config(hf)
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(hf), encoding="utf-8")
    tensors = hf_models.random_tensors(ling2_params.hf_shapes(dims))
    save_file(tensors, directory / "model.safetensors")
    return directory


def arguments(options: dict[str, Any]) -> list[str]:
    """A command line of MaxText's tools."""
    options = {
        "model_name": "ling2",
        "hardware": "cpu",
        "skip_jax_distributed_system": True,
        "override_model_config": True,
        **options,
    }
    base = os.path.join(MAXTEXT_CONFIGS_DIR, "base.yml")
    return ["tool", base, *(f"{name}={value}" for name, value in options.items())]


def convert(directory: Path, out: Path, options: dict[str, Any]) -> Path:
    """An HF checkpoint in MaxText's format."""
    to_maxtext.main(
        args=arguments(options | {"base_output_directory": str(out)}),
        lazy_load_tensors=True,
        eager_load_method="safetensors",
        hf_model_path=str(directory),
        revision=None,
        save_dtype="float32",
        simulated_cpu_devices_count=16,
    )
    return out / "0" / "items"


def export(items: Path, out: Path, options: dict[str, Any]) -> None:
    """A MaxText checkpoint in HF's format."""
    tokenizer = out.with_name("tokenizer")
    words = Tokenizer(WordLevel({"a": 0}, unk_token="a"))
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(tokenizer)
    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()
    flags.FLAGS.hf_model_path = str(tokenizer)
    flags.FLAGS.override_model_architecture = True
    more = {
        "base_output_directory": str(out),
        "load_parameters_path": str(items),
        "weight_dtype": "float32",
    }
    to_huggingface.main(arguments(options | more))


@pytest.mark.parametrize(("variant", "scan_layers"), dict.fromkeys(CASES))
def test_there_and_back(
    variant: str, scan_layers: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The tools collect garbage once per tensor, which takes most of their time on small ones.
    monkeypatch.setattr(gc, "collect", lambda *args: 0)
    source = checkpoint(variant, tmp_path / "source")
    hf = json.loads((source / "config.json").read_text(encoding="utf-8"))
    tensors = load_file(source / "model.safetensors")
    options = ling2_params.maxtext_options(hf) | {"scan_layers": scan_layers}
    items = convert(source, tmp_path / "maxtext", options)
    if variant in ("base_s0", "two_cycles"):
        check_restored(items, options, tensors)
    if variant == "base_s0":
        check_refused(items, options)

    export(items, tmp_path / "hf", options)
    back: dict[str, np.ndarray] = {}
    for file in (tmp_path / "hf").glob("*.safetensors"):
        back |= load_file(file)
    assert set(back) == set(tensors)
    for name, tensor in tensors.items():
        assert back[name].dtype == tensor.dtype
        assert back[name].shape == tensor.shape
        assert back[name].tobytes() == tensor.tobytes(), name
    written = json.loads((tmp_path / "hf" / "config.json").read_text(encoding="utf-8"))
    assert written["architectures"] == ["BailingMoeV2_5ForCausalLM"]
    assert ling2_params.maxtext_options(written) == ling2_params.maxtext_options(
        ling2_params.hf_config_of(options)
    )


def check_restored(items: Path, options: dict[str, Any], tensors: hf_models.Tensors) -> None:
    """`from_pretrained` gives the model all of its weights, the routing bias too."""
    config = models.make_config(
        **options,
        load_parameters_path=str(items),
        enable_checkpointing=True,
        ici_data_parallelism=-1,
        ici_fsdp_parallelism=1,
    )
    model = model_creation_utils.from_pretrained(config, models.make_mesh(config))
    model = model[0] if isinstance(model, tuple) else model
    dims = ling2_params.ModelDims.from_maxtext_config(config)
    expected = hf_models.converted(ling2_params.parameters(dims, config.scan_layers), tensors)
    actual = {
        path: np.asarray(variable.get_value())
        for path, variable in nnx.to_flat_state(nnx.state(model))
        if models.is_weight(path, variable)
    }
    assert set(actual) == set(expected)
    for path, value in expected.items():
        assert np.array_equal(actual[path], value), path


def check_refused(items: Path, options: dict[str, Any]) -> None:
    """A model that is configured for other outputs does not take the checkpoint."""
    metadata = checkpointing.load_checkpoint_metadata(str(items.parent))
    assert metadata["scan_layers"] == options["scan_layers"]
    assert metadata["ling2"] == {
        "gla_slope_index": "zero_based",
        "mla_tail_rule": "all",
        "param_scan_axis": 1,
        "written_by": "MaxText",
    }
    other = {"gla_slope_index": "hf"}
    config = models.make_config(
        **options | other, load_parameters_path=str(items), enable_checkpointing=True
    )
    message = r"gla_slope_index=zero_based, the config has gla_slope_index=hf"
    with pytest.raises(ValueError, match=message) as caught:
        model_creation_utils.from_pretrained(config, models.make_mesh(config))
    assert "\n" not in str(caught.value)
    for path in (str(items), str(items.parent)):
        with pytest.raises(ValueError, match=message):
            checkpointing.check_ling2_record(path, config)
    scanned = models.make_config(**options | {"scan_layers": not options["scan_layers"]})
    with pytest.raises(ValueError, match="is for scan_layers="):
        checkpointing.load_state_if_possible(
            None,
            None,
            str(items),
            "",
            8,
            nnx.State({"model": nnx.State({})}),
            maxtext_config=scanned,
        )
    # Rules that make the same layers are the same.
    checkpointing.check_ling2_record(
        str(items), models.make_config(**options | {"mla_tail_rule": "never"})
    )
