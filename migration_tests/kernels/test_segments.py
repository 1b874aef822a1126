"""Positions and runs of packed rows, and what they mean: as if the padding were deleted and the runs apart."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from maxtext.kernels.gla import IMPLEMENTATIONS, chunk_gla
from maxtext.kernels.gla.segments import token_layout

from migration_tests.kernels.oracle import recurrence, relative_error

pytestmark = [pytest.mark.model, pytest.mark.usefixtures("quick_compilation")]

TIME = 40
ROW = st.lists(st.integers(0, 3), min_size=TIME, max_size=TIME)


def layout_by_hand(row: list[int]) -> tuple[list[int], list[int]]:
    positions, runs = [], []
    last, position, run = 0, 0, 1
    for segment in row:
        if segment:
            position += 1
            run += last not in (0, segment)
            last = segment
        positions.append(position)
        runs.append(run if segment else -run)
    return positions, runs


@settings(deadline=None, max_examples=200)
@given(ROW)
def test_layout(row: list[int]) -> None:
    positions, runs = layout_by_hand(row)
    layout = jax.jit(token_layout)(np.array([row]))
    assert layout.position.dtype == layout.run.dtype == jnp.int32
    assert layout.position[0].tolist() == positions
    assert layout.run[0].tolist() == runs


@pytest.mark.parametrize("row", [[0], [5], [0, 5], [5, 0]])
def test_layout_of_short_rows(row: list[int]) -> None:
    positions, runs = layout_by_hand(row)
    layout = token_layout(jnp.array([row]))
    assert (layout.position[0].tolist(), layout.run[0].tolist()) == (positions, runs)


def test_layout_under_jit_and_vmap() -> None:
    ids = jnp.array([[0, 2, 2, 0, 2, 1], [1, 0, 0, 2, 1, 1]])
    plain = token_layout(ids)
    mapped = jax.jit(jax.vmap(lambda row: token_layout(row[None])))(ids)
    np.testing.assert_array_equal(plain.position, mapped.position[:, 0])
    np.testing.assert_array_equal(plain.run, mapped.run[:, 0])
    np.testing.assert_array_equal(plain.run, [[-1, 1, 1, -1, 1, 2], [1, -1, -1, 2, 3, 3]])


def test_any_integer_type_names_segments() -> None:
    expected = token_layout(jnp.array([[7, 7, 0, 3]]))
    for dtype in ("int8", "uint8", "int16", "uint32"):
        np.testing.assert_array_equal(
            token_layout(jnp.array([[7, 7, 0, 3]], dtype)).run, expected.run
        )


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_padding_deleted_and_runs_apart(implementation: str) -> None:
    """Any row of ids gives what its runs give one by one, in rows of their own without segment ids."""
    time, heads, key_dim, value_dim = TIME, 2, 8, 8
    rng = np.random.default_rng(5)
    q, k = (rng.standard_normal((1, time, heads, key_dim), np.float32) for _ in range(2))
    v, d_o = (rng.standard_normal((1, time, heads, value_dim), np.float32) for _ in range(2))
    start, d_end = (
        rng.standard_normal((1, heads, key_dim, value_dim), np.float32) for _ in range(2)
    )
    g = np.array([-0.1, -3], np.float32)

    @jax.jit
    def run(ids):
        def call(q, k, v, state):
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

        outputs, pullback = jax.vjp(call, q, k, v, start)
        return *outputs, *pullback((d_o, d_end))

    @settings(deadline=None, max_examples=40, derandomize=True)
    @given(ROW)
    def check(row: list[int]) -> None:
        o, final, d_q, d_k, d_v, d_start = (np.asarray(x) for x in run(jnp.array([row])))
        expected = [np.zeros(x.shape) for x in (o, d_q, d_k, d_v)]
        runs = np.array(layout_by_hand(row)[1])
        end, d_first = start.astype(np.float64), d_end.astype(np.float64)
        for number in range(1, runs.max() + 1) if runs.max() > 0 else ():
            tokens = np.flatnonzero(runs == number)
            part = recurrence(
                q[:, tokens],
                k[:, tokens],
                v[:, tokens],
                g,
                d_o[:, tokens],
                initial_state=start if number == 1 else None,
                d_final_state=d_end if number == runs.max() else None,
            )
            for x, y in zip(expected, (part.o, part.d_q, part.d_k, part.d_v), strict=True):
                x[:, tokens] = y
            end = part.final_state
            if number == 1:
                d_first = part.d_initial_state
        for x, y in zip((o, d_q, d_k, d_v), expected, strict=True):
            assert relative_error(x, y, 2) < 5e-6
        assert relative_error(final, end, 1) < 5e-6
        assert relative_error(d_start, d_first, 1) < 5e-6

    check()


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_what_stands_at_padding_does_not_matter(implementation: str) -> None:
    """Not even infinities and NaN, in values and in gradients."""
    rng = np.random.default_rng(6)
    ids = jnp.array([[0, 1, 1, 0, 1, 2, 0, 0], [0, 0, 0, 0, 0, 0, 0, 0]])
    q, k, v, d_o = (rng.standard_normal((2, 8, 2, 8), np.float32) for _ in range(4))
    state = rng.standard_normal((2, 2, 8, 8), np.float32)

    @jax.jit
    def run(*inputs):
        def call(q, k, v, state):
            return chunk_gla(
                q,
                k,
                v,
                jnp.array([-0.1, -40]),
                initial_state=state,
                output_final_state=True,
                segment_ids=ids,
                implementation=implementation,
            )

        outputs, pullback = jax.vjp(call, *inputs[:3], state)
        return *outputs, *pullback((inputs[3], jnp.ones_like(state)))

    real = np.asarray(ids)[..., None, None] != 0
    clean = run(*(np.where(real, x, 0) for x in (q, k, v, d_o)))
    for garbage in (1e4, np.inf, np.nan):
        for a, b in zip(
            clean, run(*(np.where(real, x, garbage) for x in (q, k, v, d_o))), strict=True
        ):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("implementation", ["reference", "xla"])
@pytest.mark.parametrize("name", ["q", "k", "v"])
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e38])
def test_what_is_not_finite_at_a_token_stays_in_its_segment(
    implementation: str, name: str, value: float
) -> None:
    """Nothing before the token or after its segment; `v` also reaches its chunk, which ends with the segment here."""
    rng = np.random.default_rng(5)
    rows = {x: rng.standard_normal((1, 24, 2, 4)).astype(np.float32) for x in "qkv"}
    rows[name][0, 10] = value
    rows["q"][0, :10] *= 1e5  # times 1e38 this overflows
    ids = np.repeat([1, 2], 12)[None]
    o, end = chunk_gla(
        **rows,
        g_gamma=np.array([-0.1, -3], np.float32),
        segment_ids=ids,
        output_final_state=True,
        chunk_size=12,
        implementation=implementation,
    )
    first = 10 if name != "v" or implementation == "reference" else 0
    assert np.isfinite(o[:, :first]).all()
    assert np.isfinite(o[:, 12:]).all()
    assert np.isfinite(end).all()
    assert value == 1e38 or not np.isfinite(o[:, 10]).any()
