"""Every implementation against the recurrence in float64: outputs, final states and all gradients."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from maxtext.kernels.gla import IMPLEMENTATIONS, build_slope_tensor, chunk_gla

from migration_tests.kernels.oracle import TINY, Results, recurrence, relative_error
from migration_tests.kernels.pairwise import pairwise

pytestmark = [pytest.mark.model, pytest.mark.usefixtures("quick_compilation")]

# Bounds of the root mean square error of the worst head, relative to that of the expected values.
#
# float32 (unit roundoff u = 6e-8): sums over up to 500 tokens and a dozen channels in float32, of which the roundings add
# up like a random walk, u * sqrt(500) = 1.3e-6, and the exponents: exp(x) is off by u * |x|, 2.4e-6 at -40. Together, and
# a third for heads with few elements.
#
# bfloat16 (u = 3.9e-3, which no single rounding exceeds; 1.6e-3 root mean square): inputs are exact, sums and the carried
# state are float32. The recurrence rounds nothing but its result. The chunked ones also round scores, decayed keys and
# states before these enter a product, and then the result: three in a row are 1.6e-3 * sqrt(3) = 2.8e-3, 3.9e-3 for
# heads with few elements, plus a quarter.
TOLERANCES = {
    ("reference", "float32"): 5e-6,
    ("xla", "float32"): 5e-6,
    ("pallas_tpu", "float32"): 5e-6,
    ("reference", "bfloat16"): 3.9e-3,
    ("xla", "bfloat16"): 5e-3,
    ("pallas_tpu", "bfloat16"): 5e-3,
}


class Shape(NamedTuple):
    batch: int
    heads: int
    key_dim: int
    value_dim: int


def decays(kind: str, heads: int) -> np.ndarray:
    match kind:
        case "slopes":
            return -build_slope_tensor(heads)
        case "mixed":
            return np.resize(np.array([-40, 0, -0.3, -3e-5, -2], np.float32), heads)
        case _:
            return np.full(heads, float(kind), np.float32)


def segments(kind: str, batch: int, time: int, rng: np.random.Generator) -> np.ndarray | None:
    """Segment ids [batch, time]; rows differ wherever the kind leaves something to chance."""
    ids = np.ones((batch, time), np.int32)
    third = time // 3
    for row in ids:
        match kind:
            case "none":
                return None
            case "packed":
                row[:] = 1 + np.sort(rng.integers(0, 4, time))
            case "many":  # runs of one to three tokens: more borders than chunks
                row[:] = np.repeat(
                    rng.permutation(np.arange(1, time + 1)), rng.integers(1, 4, time)
                )[:time]
            case "padded start":
                row[: rng.integers(1, third + 2)] = 0
            case "padded middle":  # the run goes on after the padding
                row[third : third + 1 + rng.integers(0, third + 1)] = 0
            case "padded end":
                row[:] = 3
                row[third:] = 1
                row[time - rng.integers(1, third + 2) :] = 0
            case "scattered":
                row[:] = np.sort(rng.integers(1, 4, time)) * rng.integers(0, 2, time)
            case "only padding":
                row[:] = 0
    if kind == "only padding" and batch > 1:
        ids[-1] = 2
    return ids


FACTORS = {
    "time": [1, 3, 63, 64, 65, 128, 200, 500],
    "segments": [
        "none",
        "packed",
        "many",
        "padded start",
        "padded middle",
        "padded end",
        "scattered",
        "only padding",
    ],
    "decay": ["0", "slopes", "-2", "-40", "mixed"],
    "states": ["none", "initial", "final", "both", "only final"],
    "shape": [Shape(1, 1, 8, 8), Shape(2, 3, 12, 20), Shape(1, 5, 24, 8), Shape(2, 2, 130, 136)],
    "chunk_size": [None, 16, 64],
    "dtype": ["float32", "bfloat16"],
}
CASES = pairwise(FACTORS, seed=3)


def identify(case: dict[str, Any]) -> str:
    return "-".join(
        "x".join(map(str, x)) if isinstance(x, Shape) else str(x).replace(" ", "_")
        for x in case.values()
    )


class Problem(NamedTuple):
    """Inputs and cotangents of a case, in its dtype."""

    q: jax.Array
    k: jax.Array
    v: jax.Array
    g: np.ndarray
    d_o: jax.Array
    initial_state: jax.Array | None
    d_final_state: jax.Array | None
    segment_ids: np.ndarray | None


def problem(case: dict[str, Any]) -> Problem:
    rng = np.random.default_rng(list(identify(case).encode()))
    shape, time, states = case["shape"], case["time"], case["states"]

    def normal(*sizes: int, dtype: str = "float32") -> jax.Array:
        return jnp.asarray(rng.standard_normal(sizes), dtype)

    rows = (shape.batch, time, shape.heads)
    q, k = (normal(*rows, shape.key_dim, dtype=case["dtype"]) for _ in range(2))
    v, d_o = (normal(*rows, shape.value_dim, dtype=case["dtype"]) for _ in range(2))
    if states == "only final":
        d_o = jnp.zeros_like(d_o)
    state = (shape.batch, shape.heads, shape.key_dim, shape.value_dim)
    return Problem(
        q,
        k,
        v,
        decays(case["decay"], shape.heads),
        d_o,
        normal(*state) if states in ("initial", "both", "only final") else None,
        normal(*state) if states in ("final", "both", "only final") else None,
        segments(case["segments"], shape.batch, time, rng),
    )


_EXPECTED: dict[str, Results] = {}


def assert_right(implementation: str, case: dict[str, Any]) -> None:
    """Outputs, final state and all gradients of a case are those of the recurrence, and 0 at padding."""
    inputs = problem(case)
    name = identify(case)
    if name not in _EXPECTED:
        _EXPECTED[name] = recurrence(
            *inputs[:5],
            initial_state=inputs.initial_state,
            d_final_state=inputs.d_final_state,
            segment_ids=inputs.segment_ids,
        )
    expected = _EXPECTED[name]
    wants_state = inputs.d_final_state is not None

    @jax.jit
    def run(q, k, v, state, d_o, d_state):
        def call(q, k, v, state):
            return chunk_gla(
                q,
                k,
                v,
                inputs.g,
                initial_state=state,
                output_final_state=wants_state,
                segment_ids=inputs.segment_ids,
                chunk_size=case["chunk_size"],
                implementation=implementation,
            )

        outputs, pullback = jax.vjp(call, q, k, v, state)
        return outputs, pullback((d_o, d_state))

    (o, final_state), (d_q, d_k, d_v, d_state) = run(
        inputs.q, inputs.k, inputs.v, inputs.initial_state, inputs.d_o, inputs.d_final_state
    )
    assert o.dtype == inputs.v.dtype
    assert o.shape == inputs.v.shape
    tolerance = TOLERANCES[implementation, case["dtype"]]
    errors = {
        "o": relative_error(o, expected.o, 2),
        "d_q": relative_error(d_q, expected.d_q, 2),
        "d_k": relative_error(d_k, expected.d_k, 2),
        "d_v": relative_error(d_v, expected.d_v, 2),
    }
    if wants_state:
        assert final_state.dtype == jnp.float32
        errors["final state"] = relative_error(final_state, expected.final_state, 1)
    else:
        assert final_state is None
    if inputs.initial_state is not None:
        assert d_state.dtype == jnp.float32
        errors["d_initial_state"] = relative_error(d_state, expected.d_initial_state, 1)
    assert all(error <= tolerance for error in errors.values()), errors

    if inputs.segment_ids is not None:
        padding = inputs.segment_ids == 0
        for x in (o, d_q, d_k, d_v):
            assert not np.asarray(x)[padding].any()


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
class TestAgainstRecurrence:
    """What holds for every implementation."""

    @pytest.mark.parametrize("case", CASES, ids=identify)
    def test_values_and_gradients(self, implementation: str, case: dict[str, Any]) -> None:
        assert_right(implementation, case)


def test_oracle_gradients_are_differences() -> None:
    """The hand-written gradients of the oracle against differences of its own outputs, which are exact: it is bilinear
    in each input, so that central differences have no error but rounding."""
    case = {
        "time": 12,
        "segments": "scattered",
        "decay": "slopes",
        "states": "both",
        "shape": Shape(2, 2, 3, 4),
        "chunk_size": None,
        "dtype": "float32",
    }
    p = problem(case)
    options = {"d_final_state": p.d_final_state, "segment_ids": p.segment_ids}
    inputs = {"q": p.q, "k": p.k, "v": p.v, "initial_state": p.initial_state}
    arrays = {name: np.asarray(x, np.float64) for name, x in inputs.items()}
    results = recurrence(g=p.g, d_o=p.d_o, **options, **arrays)

    def loss(**changed: np.ndarray) -> float:
        r = recurrence(g=p.g, d_o=p.d_o, **options, **{**arrays, **changed})
        return float(
            np.sum(r.o * np.asarray(p.d_o)) + np.sum(r.final_state * np.asarray(p.d_final_state))
        )

    rng = np.random.default_rng(0)
    for name, x in arrays.items():
        direction = rng.standard_normal(x.shape)
        difference = (loss(**{name: x + direction}) - loss(**{name: x - direction})) / 2
        assert difference == pytest.approx(
            np.sum(getattr(results, f"d_{name}") * direction), rel=1e-10
        )


def test_relative_error_sees_one_bad_head_and_nan() -> None:
    expected = np.ones((1, 4, 2, 3))
    actual = expected.copy()
    actual[:, :, 1] = 1.5
    assert relative_error(actual, expected, 2) == 0.5
    actual[0, 0, 0, 0] = np.nan
    assert relative_error(actual, expected, 2) == float("inf")
    assert relative_error(np.full(expected.shape, TINY / 2), np.zeros_like(expected), 2) == 0
