"""Long sequences, sequences in parts, decoding, and the state over padding."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from maxtext.kernels.gla import IMPLEMENTATIONS, build_slope_tensor, chunk_gla, recurrent_gla_step

from migration_tests.kernels.oracle import recurrence, relative_error

pytestmark = [pytest.mark.model, pytest.mark.usefixtures("quick_compilation")]


def inputs(
    batch: int, time: int, heads: int, key_dim: int, value_dim: int, dtype: str = "float32"
) -> list[jax.Array]:
    """q, k, v, d_o, an initial state and the cotangent of the final one."""
    rng = np.random.default_rng(21)
    sizes = [(key_dim,), (key_dim,), (value_dim,), (value_dim,)]
    rows = [jnp.asarray(rng.standard_normal((batch, time, heads, *size)), dtype) for size in sizes]
    state = (batch, heads, key_dim, value_dim)
    return rows + [jnp.asarray(rng.standard_normal(state), jnp.float32) for _ in range(2)]


@pytest.mark.parametrize("implementation", ["xla", "pallas_tpu"])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 5e-6), ("bfloat16", 5e-3)])
def test_error_does_not_grow_over_32k_tokens(
    implementation: str, dtype: str, tolerance: float
) -> None:
    """Not within a sequence, and no more than in short ones, with decays from none to 1e-4 per token and more."""
    time, g = 32768, np.array([0, -1e-4, -0.05, -40], np.float32)
    q, k, v, d_o, start, d_end = inputs(1, time, 4, 4, 4, dtype)

    @jax.jit
    def run(q, k, v, start, d_o, d_end):
        outputs, pullback = jax.vjp(
            lambda q, k, v, start: chunk_gla(
                q,
                k,
                v,
                g,
                initial_state=start,
                output_final_state=True,
                implementation=implementation,
            ),
            q,
            k,
            v,
            start,
        )
        return outputs, pullback((d_o, d_end))

    (o, end), (d_q, d_k, d_v, d_start) = run(q, k, v, start, d_o, d_end)
    right = recurrence(q, k, v, g, d_o, initial_state=start, d_final_state=d_end)
    pieces = [slice(i, i + time // 8) for i in range(0, time, time // 8)]
    for x, y in ((o, right.o), (d_q, right.d_q), (d_k, right.d_k), (d_v, right.d_v)):
        errors = [relative_error(x[:, piece], y[:, piece], 2) for piece in pieces]
        assert max(errors) < tolerance, errors
    assert relative_error(end, right.final_state, 1) < tolerance
    assert relative_error(d_start, right.d_initial_state, 1) < tolerance


@pytest.mark.parametrize("packed", [False, True])
def test_memory_of_the_chunked_path_is_linear(packed: bool) -> None:
    """Forward and backward over 32k tokens: no more than one state per chunk and copies of the inputs."""

    def temporary_bytes(time: int) -> int:
        rows = jax.ShapeDtypeStruct((1, time, 4, 64), jnp.float32)
        ids = jax.ShapeDtypeStruct((1, time), jnp.int32)
        g = -build_slope_tensor(4)

        def loss(q, k, v, ids):
            return jnp.sum(
                chunk_gla(q, k, v, g, segment_ids=ids if packed else None, implementation="xla")[0]
            )

        compiled = jax.jit(jax.grad(loss, (0, 1, 2))).lower(rows, rows, rows, ids).compile()
        return int(compiled.memory_analysis().temp_size_in_bytes)

    short, long = temporary_bytes(4096), temporary_bytes(32768)
    assert long < 8.5 * short
    assert long < 12 * 32768 * 4 * 64 * 4  # twelve arrays of the size of q


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("packed", [False, True])
def test_two_parts_with_the_state_carried_are_the_whole(implementation: str, packed: bool) -> None:
    time, cut = 90, 37
    g = np.array([-0.01, -0.5], np.float32)
    q, k, v, d_o, start, d_end = inputs(2, time, 2, 8, 12)
    ids = None
    if packed:
        # The cut goes through a run in the first row and through padding within one in the second.
        ids = np.repeat([[1, 1, 2, 2, 2, 3], [2, 2, 0, 2, 0, 1]], 15, axis=1)

    def call(q, k, v, state, ids):
        return chunk_gla(
            q,
            k,
            v,
            g,
            initial_state=state,
            output_final_state=True,
            segment_ids=ids,
            chunk_size=16,
            implementation=implementation,
        )

    def parts(q, k, v, state):
        first = None if ids is None else ids[:, :cut]
        rest = None if ids is None else ids[:, cut:]
        head, state = call(q[:, :cut], k[:, :cut], v[:, :cut], state, first)
        tail, state = call(q[:, cut:], k[:, cut:], v[:, cut:], state, rest)
        return jnp.concatenate([head, tail], axis=1), state

    @jax.jit
    def run(q, k, v, state, d_o, d_end):
        outputs, pullback = jax.vjp(parts, q, k, v, state)
        return *outputs, *pullback((d_o, d_end))

    o, end, d_q, d_k, d_v, d_start = run(q, k, v, start, d_o, d_end)
    right = recurrence(q, k, v, g, d_o, initial_state=start, d_final_state=d_end, segment_ids=ids)
    for x, y in ((o, right.o), (d_q, right.d_q), (d_k, right.d_k), (d_v, right.d_v)):
        assert relative_error(x, y, 2) < 5e-6
    assert relative_error(end, right.final_state, 1) < 5e-6
    assert relative_error(d_start, right.d_initial_state, 1) < 5e-6


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_steps_are_the_sequence(dtype: str) -> None:
    """Decoding token by token gives what the whole sequence gives, with rows that pause and rows that never start."""
    time, g = 30, np.array([-0.2, -2, 0], np.float32)
    q, k, v, _, start, _ = inputs(3, time, 3, 8, 12, dtype)
    valid = np.random.default_rng(2).integers(0, 2, (3, time)).astype(bool)
    valid[0], valid[2] = True, False

    def step(state, token):
        q, k, v, valid = token
        o, state = recurrent_gla_step(q, k, v, g, state, valid=valid)
        return state, o

    tokens = tuple(jnp.moveaxis(jnp.asarray(x), 1, 0) for x in (q, k, v, valid))
    end, o = jax.lax.scan(step, start, tokens)
    o = jnp.moveaxis(o, 0, 1)
    right = recurrence(q, k, v, g, v, initial_state=start, segment_ids=valid.astype(int))
    assert o.dtype == v.dtype
    assert end.dtype == jnp.float32
    assert relative_error(o, right.o, 2) < (5e-6 if dtype == "float32" else 3.9e-3)
    assert relative_error(end, right.final_state, 1) < 5e-6
    assert not np.asarray(o)[~valid].any()
    np.testing.assert_array_equal(end[2], start[2])
    for implementation in IMPLEMENTATIONS:
        whole, state = chunk_gla(
            q,
            k,
            v,
            g,
            initial_state=start,
            output_final_state=True,
            segment_ids=valid.astype(np.int32),
            implementation=implementation,
        )
        assert relative_error(whole, np.asarray(o, np.float64), 2) < (
            5e-6 if dtype == "float32" else 7e-3
        )
        assert relative_error(state, np.asarray(end, np.float64), 1) < (
            5e-6 if dtype == "float32" else 5e-3
        )


def test_step_without_mask_and_with_scale() -> None:
    g = np.array([-0.7], np.float32)
    q, k, v, d_o, start, _ = inputs(2, 1, 1, 4, 4)
    o, end = recurrent_gla_step(q[:, 0], k[:, 0], v[:, 0], g, start, scale=3.0)
    right = recurrence(q, k, v, g, d_o, scale=3.0, initial_state=start)
    np.testing.assert_allclose(o, right.o[:, 0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(end, right.final_state, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("dim", [8, 128])
def test_padding_leaves_the_state_alone_to_the_bit(implementation: str, dim: int) -> None:
    """Whether there is none of it, some in the last chunk, or chunks of nothing else.

    Lengths are such that "pallas_tpu" reads all of them in the same order of axes, another one for each dim.
    """
    g = np.array([-0.3, -40], np.float32)
    q, k, v, _, start, _ = inputs(1, 96, 2, dim, dim)

    def final(time: int, real: int) -> np.ndarray:
        ids = (jnp.arange(time) < real).astype(jnp.int32)[None]
        rows = (x[:, :time] for x in (q, k, v))
        options = {
            "initial_state": start,
            "output_final_state": True,
            "segment_ids": ids,
            "chunk_size": 16,
        }
        return np.asarray(chunk_gla(*rows, g, implementation=implementation, **options)[1])

    for real in (0, 11, 16, 37):
        states = [final(time, real) for time in (real, real + 3, 48, 96) if time]
        for state in states[1:]:
            np.testing.assert_array_equal(state, states[0])
    np.testing.assert_array_equal(final(96, 0), start)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_smallest_shapes_and_scale(implementation: str) -> None:
    """One of everything, and a scale of one's own, which is no factor of the state."""
    one = jnp.full((1, 1, 1, 1), 3.0)
    for options in ({}, {"segment_ids": jnp.array([[4]])}, {"chunk_size": 1}, {"chunk_size": 1000}):
        o, state = chunk_gla(
            one,
            one,
            one,
            jnp.zeros(1),
            scale=0.5,
            output_final_state=True,
            implementation=implementation,
            **options,
        )
        assert float(o[0, 0, 0, 0]) == 13.5
        assert float(state[0, 0, 0, 0]) == 9
