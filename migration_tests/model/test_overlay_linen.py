"""The Linen decoder of 0.2.4 under the overlay gives what its NNX decoder gives, on the same weights.

The comparison runs in a process of its own with the tree on its path; this file is also the program that it runs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
LINEN = {"enable_nnx": False, "pure_nnx": False, "pure_nnx_decoder": False}
# Layers, interval, dense prefix, tail rule: with cycles alone, a remainder, no prefix, a longer one.
SHAPES = [(4, 2, 0, "last"), (5, 2, 1, "last"), (6, 2, 1, "last"), (5, 2, 2, "all")]
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What `main` prints with the overlay on its path."""
    from codemods.engine.overlay import overlay
    from target.integration import INTEGRATIONS, NEW_FILES

    tree = tmp_path_factory.mktemp("overlay") / "tree"
    overlay("0.2.4", tree, NEW_FILES, INTEGRATIONS)
    env = os.environ | {
        "PYTHONPATH": f"{tree}{os.pathsep}{ROOT}",
        "DECOUPLE_GCLOUD": "TRUE",
        "JAX_PLATFORMS": "cpu",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    done = subprocess.run(
        [sys.executable, "-P", __file__], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


@pytest.mark.model
@pytest.mark.parametrize("scan", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_forward_is_that_of_the_nnx_decoder(
    outcome: dict[str, Any], shape: tuple[Any, ...], scan: bool
) -> None:
    found = outcome[str((*shape, scan))]
    assert found["class"] == "TransformerLinenPure"
    assert found["error"] <= TOLERANCE
    assert found["rms"] > 0.1


def main() -> None:
    """Compare the decoders for every shape; print the errors, relative to the rms of the logits."""
    import jax
    import numpy as np

    from migration_tests.model.inside import models

    tokens = jax.random.randint(jax.random.key(0), (2, 24), 1, 100)
    outcome: dict[str, Any] = {}
    for shape in SHAPES:
        layers, interval, dense, rule = shape
        options = {
            "base_num_decoder_layers": layers,
            "inhomogeneous_layer_cycle_interval": interval,
            "first_num_dense_layers": dense,
            "mla_tail_rule": rule,
            "mtp_num_layers": 0,
            "routed_bias_update_rate": 0.0,
        }
        config = models.make_config(scan_layers=False, **options)
        model = models.make_model(config)
        tensors = {
            path: np.asarray(variable.get_value())
            for path, variable in models.nnx.to_flat_state(models.nnx.state(model))
            if models.is_weight(path, variable)
        }
        expected = np.asarray(
            models.compiled(model, lambda m, t: m(t, models.positions_of(t), enable_dropout=False))(
                {}, tokens
            )
        )
        rms = float(np.sqrt(np.mean(expected**2)))
        for scan in (False, True):
            linen = models.make_config(scan_layers=scan, **options, **LINEN)
            name, logits = linen_logits(
                linen, models.scanned(tensors, linen) if scan else tensors, tokens
            )
            error = float(np.abs(logits - expected).max()) / rms
            outcome[str((*shape, scan))] = {"class": name, "error": error, "rms": rms}
    print(json.dumps(outcome))


def linen_logits(config: Any, tensors: dict[Any, Any], tokens: Any) -> tuple[str, Any]:
    """The class of the Linen model and its logits with the given weights."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from flax import linen as nn
    from flax import traverse_util
    from flax.linen import logical_axis_rules
    from maxtext.models.models import transformer_as_linen

    from migration_tests.model.inside import models

    mesh = models.make_mesh(config)
    model = transformer_as_linen(config, mesh, quant=None)
    arguments = (tokens, models.positions_of(tokens))
    with mesh, logical_axis_rules(config.logical_axis_rules):
        variables = jax.eval_shape(
            lambda: model.init({"params": jax.random.key(0)}, *arguments, enable_dropout=False)
        )
        wanted = traverse_util.flatten_dict(nn.unbox(variables)["params"])
        assert set(wanted) == set(tensors), sorted(set(wanted) ^ set(tensors))
        filled = {}
        for path, tensor in tensors.items():
            if path[:2] == ("decoder", "layers") and path[-2:] == ("gate", "bias"):
                tensor = np.moveaxis(tensor, 0, config.param_scan_axis)  # a parameter here
            assert tensor.shape == wanted[path].shape, path
            filled[path] = jnp.asarray(tensor)
        params = traverse_util.unflatten_dict(filled)
        run = jax.jit(lambda p: model.apply({"params": p}, *arguments, enable_dropout=False))
        return type(model).__name__, np.asarray(run(params))


if __name__ == "__main__":
    main()
