"""Checkpoints that the converter wrote, restored by MaxText: HF files in, logits out."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from maxtext.checkpoint_conversion.ling2 import convert, hf_files, plan
from maxtext.checkpoint_conversion.utils import ling2_params
from maxtext.common import checkpointing, train_state_nnx
from maxtext.utils import model_creation_utils

from migration_tests.model.inside import models

ORACLE = Path(os.environ.get("LING2_ORACLE", Path(__file__).parents[2] / "model" / "oracle"))
VARIANTS = sorted(path.name for path in ORACLE.iterdir() if (path / "config.json").is_file())
# Largest error, in units of the logits' root mean square.
TOLERANCE = 2e-4


def config_of(directory: Path, scan_layers: bool, slope: str, **options: Any) -> Any:
    """The MaxText config of an HF checkpoint."""
    hf = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    described = ling2_params.maxtext_options(hf, hf_files.open_checkpoint(directory).shapes)
    return models.make_config(
        **described,
        scan_layers=scan_layers,
        gla_slope_index=slope,
        max_target_length=200,
        **options,
    )


def loaded_weights(config: Any, path: Path, **options: Any) -> dict[tuple[str, ...], np.ndarray]:
    """What training takes from `load_parameters_path`."""
    _, abstract = model_creation_utils.create_nnx_abstract_model(config, models.make_mesh(config))
    state = nnx.State({"model": nnx.state(abstract)})
    _, params = checkpointing.load_state_if_possible(
        None, None, str(path), "", 8, state, maxtext_config=config, **options
    )
    return {path: np.asarray(v.get_value()) for path, v in nnx.to_flat_state(params)}


@pytest.mark.parametrize("scan_layers", [False, True])
def test_safetensors_at_the_start_of_a_run(scan_layers: bool, tmp_path: Path) -> None:
    """`source_checkpoint_layout: safetensors_dynamic` loads what a conversion first would have."""
    directory = ORACLE / VARIANTS[0]
    config = config_of(directory, scan_layers, "zero_based")
    convert.to_maxtext(plan.plan(directory, scan_layers), tmp_path / "out", "zero_based", "test")
    expected = loaded_weights(config, tmp_path / "out" / "0" / "items")
    assert any(path[-2:] == ("gate", "bias") for path in expected)
    actual = loaded_weights(config, directory, source_checkpoint_layout="safetensors_dynamic")
    assert actual.keys() == expected.keys()
    for path, value in expected.items():
        assert value.dtype == actual[path].dtype, path
        assert value.tobytes() == actual[path].tobytes(), path


@pytest.mark.parametrize("place", ["0/items", "0"])
def test_weights_are_no_full_state(place: str, tmp_path: Path) -> None:
    """`load_full_state_path` would leave the routing bias as it is initialized."""
    directory = ORACLE / VARIANTS[0]
    config = config_of(directory, True, "zero_based")
    convert.to_maxtext(plan.plan(directory, True), tmp_path / "out", "zero_based", "test")
    _, abstract = model_creation_utils.create_nnx_abstract_model(config, models.make_mesh(config))
    state = nnx.State({"model": nnx.state(abstract)})
    with pytest.raises(ValueError, match=r"gate/bias .* load_parameters_path") as caught:
        checkpointing.load_state_if_possible(
            None, None, "", str(tmp_path / "out" / place), 8, state, maxtext_config=config
        )
    assert "\n" not in str(caught.value)


def test_a_full_state_with_its_bias_passes() -> None:
    directory = ORACLE / VARIANTS[0]
    config = config_of(directory, True, "zero_based")
    _, abstract = model_creation_utils.create_nnx_abstract_model(config, models.make_mesh(config))
    state = nnx.State({"model": nnx.state(abstract)})
    stored = train_state_nnx.to_checkpoint_dict(
        jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.float32), state)
    )
    checkpointing.refuse_without_routing_bias(stored, state, config)


def restored(config: Any, items: Path) -> nnx.Module:
    """A model with the weights that training takes from `load_parameters_path`."""
    mesh = models.make_mesh(config)
    _, abstract = model_creation_utils.create_nnx_abstract_model(config, mesh)
    graphdef, state = nnx.split(abstract)
    _, params = checkpointing.load_state_if_possible(
        None, None, str(items), "", 8, nnx.State({"model": state}), maxtext_config=config
    )
    loaded = dict(nnx.to_flat_state(params))
    filled = []
    for path, variable in nnx.to_flat_state(state):
        shape, dtype = variable.get_value().shape, variable.get_value().dtype
        if path in loaded:
            value = loaded[path].get_value()
            assert isinstance(value, jax.Array), path
        elif jnp.issubdtype(dtype, jax.dtypes.prng_key):
            value = jnp.broadcast_to(jax.random.key(0), shape)
        else:
            assert not models.is_weight(path, variable), path
            value = jnp.zeros(shape, dtype)
        filled.append((path, variable.replace(value)))
    return nnx.merge(graphdef, nnx.from_flat_state(filled))


# Each checkpoint in one layout, the first in both.
CASES = [(VARIANTS[0], True), *((variant, i % 2 == 1) for i, variant in enumerate(VARIANTS))]


@pytest.mark.parametrize(("variant", "scan_layers"), CASES)
def test_logits(variant: str, scan_layers: bool, tmp_path: Path) -> None:
    directory, slope = ORACLE / variant, "zero_based"
    convert.to_maxtext(plan.plan(directory, scan_layers), tmp_path / "out", slope, "test")
    config = config_of(directory, scan_layers, slope)
    model = restored(config, tmp_path / "out" / "0" / "items")
    reference = np.load(directory / f"ref_{slope}_T200.npz")
    ids = jnp.asarray(reference["input_ids"])
    graphdef, state = nnx.split(model)

    @jax.jit
    def forward(state: Any, ids: jax.Array) -> jax.Array:
        merged = nnx.merge(graphdef, state, copy=True)
        logits: jax.Array = merged(ids, models.positions_of(ids), enable_dropout=False)
        return logits

    # A trimmed reference has the first row, and some positions only.
    at = reference["positions"] if "positions" in reference else slice(None)
    logits = np.asarray(forward(state, ids), np.float64)[:1, at]
    expected = reference["logits"].astype(np.float64)
    assert logits.shape == expected.shape
    error = np.abs(logits - expected).max() / np.sqrt(np.square(expected).mean())
    print(f"{variant} scan_layers={scan_layers}: {error:.2e}")
    assert error <= TOLERANCE
