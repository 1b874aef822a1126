"""Other ways of running the model: lower precision, quantization, host memory, prefill in chunks."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from maxtext.common.common_types import MODEL_MODE_PREFILL

from migration_tests.model.inside import models
from migration_tests.model.inside.check_decoder import (
    abstract_model,
    layers_config,
    relative,
    tokens_of,
)

SHAPE = (4, 3, 1)


def logits_of(config: Any, tensors: models.Tensors) -> np.ndarray:
    """Returns the logits of random tokens in float32."""
    tokens = tokens_of(config)
    call = models.compiled(
        models.make_model(config, tensors),
        lambda model: model(tokens, models.positions_of(tokens), enable_dropout=False),
    )
    return np.asarray(call({}), np.float32)


def rms(x: np.ndarray) -> float:
    """Returns the root of the mean square."""
    return float(np.sqrt(np.mean(np.square(x))))


# Every token goes to every expert: a token that changes its experts would hide what rounding does.
SMOOTH: dict[str, Any] = {"n_routing_groups": -1, "num_experts_per_tok": 8, "scan_layers": True}


@pytest.fixture(scope="module")
def exact() -> tuple[models.Tensors, np.ndarray]:
    """Weights, and logits in float32."""
    config = layers_config(SHAPE, **SMOOTH)
    tensors = models.random_tensors(abstract_model(config))
    return tensors, logits_of(config, tensors)


def test_bfloat16(exact: tuple[models.Tensors, np.ndarray]) -> None:
    """Rounding every intermediate result costs a small multiple of what rounding the weights alone does.

    The latter is what this network makes of relative errors of 2^-9, and no computation in bfloat16 avoids it.
    """
    tensors, expected = exact
    rounded = {
        path: np.asarray(jnp.asarray(tensor, jnp.bfloat16), np.float32)
        for path, tensor in tensors.items()
    }
    of_weights = rms(logits_of(layers_config(SHAPE, **SMOOTH), rounded) - expected)
    config = layers_config(SHAPE, dtype="bfloat16", matmul_precision="default", **SMOOTH)
    error = rms(logits_of(config, tensors) - expected)
    print(f"error {error / rms(expected):.1e}, of rounded weights {of_weights / rms(expected):.1e}")
    assert error <= 3 * of_weights


@pytest.mark.parametrize("sparse", [False, True])
def test_int8(exact: tuple[models.Tensors, np.ndarray], sparse: bool) -> None:
    """Qwix quantizes the projections; the router stays in float32."""
    tensors, expected = exact
    config = layers_config(
        SHAPE,
        quantization="int8",
        use_qwix_quantization=True,
        quantize_router_proj=False,
        **SMOOTH | {"sparse_matmul": sparse},
    )
    error = rms(logits_of(config, tensors) - expected) / rms(expected)
    print(f"sparse={sparse} error {error:.1e}")
    assert 1e-3 < error < 0.3


@pytest.mark.parametrize("remat_policy", ["full", "none"])
def test_parameters_in_host_memory(
    exact: tuple[models.Tensors, np.ndarray], remat_policy: str
) -> None:
    """Layers bring their parameters to the device, rematerialized or not."""
    tensors, expected = exact
    config = layers_config(
        SHAPE, parameter_memory_host_offload=True, remat_policy=remat_policy, **SMOOTH
    )
    assert relative(logits_of(config, tensors), expected) <= 1e-6


def test_prefill_in_chunks() -> None:
    """A decoder of GLA layers alone continues a prefill from the state that the last one left."""
    config = layers_config(
        (3, 5, 1, "never"),
        scan_layers=False,
        use_chunked_prefill=True,
        max_prefill_predict_length=16,
        remat_policy="none",
    )
    tensors = models.random_tensors(abstract_model(config))
    tokens = tokens_of(config)[:1, :16]
    whole = models.compiled(
        models.make_model(config, tensors),
        lambda model: model(tokens, models.positions_of(tokens), enable_dropout=False),
    )({})
    model = models.make_model(config, tensors, MODEL_MODE_PREFILL)
    graphdef, state = nnx.split(model)

    @functools.partial(jax.jit, static_argnums=(1, 2))
    def prefill(state: Any, start: int, end: int) -> tuple[jax.Array, Any]:
        model = nnx.merge(graphdef, state, copy=True)
        logits = model(
            tokens[:, start:end],
            jnp.arange(start, end)[None],
            jnp.ones((1, end - start), jnp.int32),
            enable_dropout=False,
            model_mode=MODEL_MODE_PREFILL,
            previous_chunk=tokens[:, :start] if start else None,
        )
        return logits, nnx.state(model, nnx.Not(nnx.Intermediate))

    for start, end in ((0, 7), (7, 16)):
        logits, state = prefill(state, start, end)
        assert relative(logits, whole[:, start:end]) <= 1e-5
