"""Faults that public kernels for decaying linear attention had, each with its smallest input and the right output."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from maxtext.kernels.gla import IMPLEMENTATIONS, chunk_gla

pytestmark = [
    pytest.mark.model,
    pytest.mark.usefixtures("quick_compilation"),
    pytest.mark.parametrize("implementation", IMPLEMENTATIONS),
]


def ones_and(v: np.ndarray, dtype: str) -> tuple[jax.Array, jax.Array, jax.Array]:
    """q, k of one channel, all ones, and v [T, V] as one row with one head."""
    one = jnp.ones((1, len(v), 1, 1), dtype)
    return one, one, jnp.asarray(v, dtype)[None, :, None, :]


def finite_gradients(v: np.ndarray, dtype: str, g: float, **options: Any) -> bool:
    def loss(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        o, state = chunk_gla(q, k, v, jnp.array([g]), scale=1.0, output_final_state=True, **options)
        return jnp.sum(o.astype(jnp.float32)) + jnp.sum(state)

    gradients = jax.grad(loss, (0, 1, 2))(*ones_and(v, dtype))
    return all(bool(jnp.isfinite(x).all()) for x in gradients)


@pytest.mark.parametrize("padding", ["chunk", "segment"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_padded_tail_of_a_chunk(implementation: str, dtype: str, padding: str) -> None:
    """A chunk of eight with three tokens: factors of the tail formed as exp(b_last - b_t) without a mask overflow, and
    infinity times the zeros of the padding is NaN. https://github.com/sgl-project/sglang-jax/pull/1073
    """
    if padding == "chunk":  # the implementation fills the chunk up
        v, ids = np.eye(3, 8), None
    else:
        v, ids = np.eye(8), jnp.array([[1, 1, 1, 0, 0, 0, 0, 0]])
    options: dict[str, Any] = {
        "segment_ids": ids,
        "chunk_size": 8,
        "implementation": implementation,
    }
    _, state = chunk_gla(
        *ones_and(v, dtype), jnp.array([-40.0]), scale=1.0, output_final_state=True, **options
    )
    # The state holds each token's decay to the end, since token t writes one to value channel t.
    right = [1.8048514e-35, 4.2483543e-18, 1, 0, 0, 0, 0, 0]
    np.testing.assert_allclose(state[0, 0, 0], right, rtol=4e-3 if dtype == "bfloat16" else 5e-6)
    assert finite_gradients(v, dtype, -40.0, **options)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_factored_decay(implementation: str, dtype: str) -> None:
    """Sixty-four tokens at -2: exp(cum_i) * exp(-cum_j) has 420 NaN in float32, exp(cum_i - cum_j) none.
    https://github.com/inclusionAI/cuLA/issues/89 , https://github.com/pytorch/executorch/pull/21417
    """
    total = -2 * jnp.arange(1.0, 65.0)
    factored = jnp.exp(total)[:, None] * jnp.exp(-total)[None, :]
    assert jnp.isnan(factored).sum() == 420

    v = np.eye(64)
    options: dict[str, Any] = {"chunk_size": 64, "implementation": implementation}
    o, _ = chunk_gla(*ones_and(v, dtype), jnp.array([-2.0]), scale=1.0, **options)
    distance = np.subtract.outer(np.arange(64.0), np.arange(64.0))
    right = np.where(distance >= 0, np.exp(-2 * np.abs(distance)), 0)
    actual = np.asarray(o[0, :, 0], np.float64)
    # Below 1e-37 float32 numbers lose digits and then are 0.
    np.testing.assert_allclose(
        actual, right, rtol=8e-3 if dtype == "bfloat16" else 1e-5, atol=1e-37
    )
    assert not actual[distance < 0].any()
    assert finite_gradients(v, dtype, -2.0, **options)


@pytest.mark.parametrize("chunk_size", [None, 16])
def test_packed_segments(implementation: str, chunk_size: int | None) -> None:
    """The state starts anew with a segment, and padding gives 0. Segment ids that are all ones are as good as none, and no
    default mask may stand in for those that were given. https://github.com/fla-org/flash-linear-attention/pull/842 ,
    https://github.com/fla-org/flash-linear-attention/issues/1086"""

    def run(segment_ids: list[int] | None) -> tuple[np.ndarray, float]:
        q, k, v = ones_and(np.arange(1.0, 7)[:, None], "float32")
        o, state = chunk_gla(
            q,
            k,
            v,
            jnp.log(jnp.array([0.5])),
            scale=1.0,
            output_final_state=True,
            segment_ids=None if segment_ids is None else jnp.array([segment_ids]),
            chunk_size=chunk_size,
            implementation=implementation,
        )
        return np.asarray(o[0, :, 0, 0]), float(state[0, 0, 0, 0])

    one_segment = [1, 2.5, 4.25, 6.125, 8.0625, 10.03125]
    for ids in (None, [1] * 6):
        o, state = run(ids)
        np.testing.assert_allclose(o, one_segment, rtol=1e-6)
        assert state == pytest.approx(10.03125, rel=1e-6)
    o, state = run([1, 1, 1, 2, 2, 0])
    np.testing.assert_allclose(o, [1, 2.5, 4.25, 4, 7, 0], rtol=1e-6)
    assert state == pytest.approx(7, rel=1e-6)
