"""Slopes and decays per layer."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from maxtext.kernels.gla import build_slope_tensor, gla_log_decay

pytestmark = pytest.mark.model


def test_slopes_of_a_power_of_two() -> None:
    slopes = build_slope_tensor(8)
    assert slopes.dtype == np.float32
    np.testing.assert_array_equal(slopes, [2.0**-i for i in range(1, 9)])
    np.testing.assert_array_equal(build_slope_tensor(1), [2.0**-8])
    np.testing.assert_allclose(build_slope_tensor(16), 2.0 ** (-0.5 * np.arange(1, 17)), rtol=1e-7)


def test_slopes_of_other_head_counts_go_on_with_every_other_slope_of_twice_the_power() -> None:
    np.testing.assert_allclose(
        build_slope_tensor(12),
        [2.0**-i for i in range(1, 9)] + [2.0**-i for i in (0.5, 1.5, 2.5, 3.5)],
        rtol=1e-7,
    )
    np.testing.assert_allclose(build_slope_tensor(3), [2.0**-4, 2.0**-8, 2.0**-2], rtol=1e-7)


@pytest.mark.parametrize("heads", range(1, 70))
def test_slopes_are_positive_and_differ(heads: int) -> None:
    slopes = build_slope_tensor(heads)
    assert slopes.shape == (heads,)
    assert len(set(slopes.tolist())) == heads
    assert 0 < slopes.min() <= slopes.max() < 1


@pytest.mark.parametrize(("slope_index", "shift"), [("zero_based", 0), ("hf", 1)])
@pytest.mark.parametrize(("heads", "layers"), [(16, 20), (3, 2), (5, 1)])
def test_log_decay_is_the_formula_in_float64(
    slope_index: str, shift: int, heads: int, layers: int
) -> None:
    slopes = build_slope_tensor(heads).astype(np.float64)
    for layer in range(layers):
        expected = -slopes * (1 - (layer - shift) / max(layers - 1, 1) + 1e-5)
        actual = gla_log_decay(heads, layer, layers, slope_index)
        assert actual.dtype == jnp.float32
        # 1e-5 is all that is left in the last layer: it must not be what rounding has left of 1 - 1.
        np.testing.assert_allclose(actual, expected, rtol=3e-7)


@pytest.mark.parametrize("slope_index", ["zero_based", "hf"])
def test_traced_layer_index_gives_the_same(slope_index: str) -> None:
    expected = jnp.stack([gla_log_decay(6, i, 20, slope_index) for i in range(20)])
    scanned = jax.lax.map(lambda i: gla_log_decay(6, i, 20, slope_index), jnp.arange(20))
    np.testing.assert_allclose(scanned, expected, rtol=2e-7)


def test_default_is_zero_based() -> None:
    np.testing.assert_array_equal(gla_log_decay(4, 3, 8), gla_log_decay(4, 3, 8, "zero_based"))
    assert not np.array_equal(gla_log_decay(4, 3, 8), gla_log_decay(4, 3, 8, "hf"))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            (4, 0, 8, "one_based"),
            ValueError,
            "slope_index must be one of 'zero_based', 'hf', got 'one_based'",
        ),
        ((4, 0, 0), ValueError, "num_layers must be at least 1, got 0"),
        ((4, 0, 2.5), TypeError, "num_layers must be an integer, got float"),
        ((0, 0, 8), ValueError, "num_heads must be at least 1, got 0"),
        ((True, 0, 8), TypeError, "num_heads must be an integer, got bool"),
        ((4, 8, 8), ValueError, r"layer_idx must lie in \[0, 8\), got 8"),
        ((4, -1, 8), ValueError, r"layer_idx must lie in \[0, 8\), got -1"),
        ((4, 0.5, 8), TypeError, "layer_idx must be an integer, got float"),
    ],
)
def test_bad_arguments(arguments: tuple[Any, ...], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        gla_log_decay(*arguments)


def test_traced_layer_index_must_be_an_integer() -> None:
    with pytest.raises(TypeError, match="layer_idx must be an integer scalar, got float32"):
        jax.jit(lambda i: gla_log_decay(4, i, 8))(1.0)
