"""The fused kernels in each of the views in which they read their operands, whatever the shape would choose."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from maxtext.kernels.gla import chunk_gla, pallas_tpu_common
from maxtext.kernels.gla.pallas_tpu_common import View, choose_view, make_config, pair_group

from migration_tests.kernels.pairwise import pairwise
from migration_tests.kernels.test_implementations import Shape, assert_right, identify

pytestmark = [pytest.mark.model, pytest.mark.usefixtures("quick_compilation")]

FACTORS = {
    "view": [View.STRIDED, View.ROWS, View.LANES],
    "unrolled": [False, True],
    "time": [17, 40, 129, 200, 300],
    "segments": ["none", "packed", "many", "padded middle", "scattered", "only padding"],
    "decay": ["0", "slopes", "-3.4e38", "mixed"],
    "states": ["none", "initial", "final", "both"],
    "shape": [Shape(2, 2, 12, 20), Shape(1, 6, 1, 8), Shape(1, 4, 130, 136), Shape(1, 20, 8, 4)],
    "chunk_size": [None, 16, 40],
    "dtype": ["float32", "bfloat16"],
}


@pytest.mark.parametrize("case", pairwise(FACTORS, seed=5), ids=identify)
def test_values_and_gradients(case: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pallas_tpu_common, "choose_view", lambda *_: case["view"])
    if case["unrolled"]:  # as on a TPU
        monkeypatch.setattr(
            pallas_tpu_common, "pair_group", lambda cfg: pair_group(replace(cfg, interpret=False))
        )
    assert_right("pallas_tpu", case)


@pytest.mark.parametrize(
    ("time", "heads", "dims", "view"),
    [
        (4096, 16, (128, 128), View.STRIDED),
        (4096, 4, (256, 128), View.STRIDED),
        (1, 8, (64, 64), View.STRIDED),
        (4096, 20, (128, 128), View.ROWS),
        (4096, 1, (256, 256), View.ROWS),
        (40, 20, (64, 64), View.ROWS),
        (4096, 16, (64, 64), View.LANES),
        (500, 20, (112, 96), View.LANES),
        (100, 3, (16, 16), View.LANES),
    ],
)
def test_the_view_is_that_of_xla(time: int, heads: int, dims: tuple[int, int], view: View) -> None:
    """As read from programs that libtpu compiled: XLA orders the axes such that tiles waste least."""
    assert choose_view(time, heads, dims) is view


def test_heads_major_asks_for_the_order_of_projections() -> None:
    """Where the tokens of a head lie together, and nowhere else: narrow heads are transposed anyway."""

    def view(heads: int, dim: int, **options: bool) -> View:
        shape = jax.ShapeDtypeStruct((1, 4096, heads, dim), jnp.bfloat16)
        config = make_config(
            shape, shape, scale=1.0, chunk_size=None, segmented=True, states=False, **options
        )
        assert config is not None
        return config.view

    assert view(16, 128) is View.STRIDED
    assert view(16, 128, heads_major=True) is View.ROWS
    assert view(20, 128, heads_major=True) is View.ROWS
    assert view(16, 64, heads_major=True) is View.LANES


@pytest.mark.parametrize("implementation", ["xla", "pallas_tpu"])
def test_heads_major_changes_no_result(implementation: str) -> None:
    rng = np.random.default_rng(3)
    q, k, v, cotangent = (
        jnp.asarray(rng.standard_normal((2, 40, 8, 128)), jnp.float32) for _ in range(4)
    )
    decay, segments = -jnp.arange(8) / 16, jnp.asarray(np.repeat([[1, 2, 0]], 2, 0).repeat(14, 1))

    def run(implementation: str, heads_major: bool) -> Any:
        def output(*qkv: Any) -> Any:
            return chunk_gla(
                *qkv,
                decay,
                segment_ids=segments[:, :40],
                heads_major=heads_major,
                implementation=implementation,
            )[0]

        value, pullback = jax.vjp(output, q, k, v)
        return value, *pullback(cotangent)

    for ours, other in zip(run(implementation, True), run("reference", False), strict=True):
        np.testing.assert_allclose(ours, other, rtol=1e-5, atol=1e-5 * float(jnp.abs(other).max()))
