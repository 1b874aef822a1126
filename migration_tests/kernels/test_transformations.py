"""Under jit, grad, vmap, remat, scan and shard_map the results are those of the plain call."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from maxtext.kernels.gla import (
    IMPLEMENTATIONS,
    build_slope_tensor,
    chunk_gla,
    gla_log_decay,
    pallas_tpu_common,
    recurrent_gla_step,
)
from maxtext.kernels.gla.pallas_tpu_common import pair_group

pytestmark = [pytest.mark.model, pytest.mark.usefixtures("quick_compilation")]

BATCH, TIME, HEADS, KEY_DIM, VALUE_DIM = 4, 40, 2, 8, 16
G = -build_slope_tensor(HEADS)
# The order of a few float32 sums may change, and nothing else.
same = partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-6)


def mesh_of(**sizes: int) -> jax.sharding.Mesh:
    axes = (jax.sharding.AxisType.Auto,) * len(sizes)
    devices = jax.devices("cpu")[: math.prod(sizes.values())]
    return jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=axes, devices=devices)


def arrays(*leading: int) -> tuple[jax.Array, ...]:
    """q, k, v and an initial state."""
    rng = np.random.default_rng(11)
    rows = (*leading, BATCH, TIME, HEADS)
    shapes = [
        (*rows, KEY_DIM),
        (*rows, KEY_DIM),
        (*rows, VALUE_DIM),
        (*leading, BATCH, HEADS, KEY_DIM, VALUE_DIM),
    ]
    return tuple(jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in shapes)


def segment_ids() -> jax.Array:
    ids = np.sort(np.random.default_rng(12).integers(0, 3, (BATCH, TIME)), axis=1)
    ids[:, 20:24] = 0
    return jnp.asarray(ids)


def function(implementation: str, **options: Any) -> Callable[..., Any]:
    def run(q, k, v, state, g=G, ids=None):
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
            **options,
        )

    return run


def with_gradients(run: Callable[..., Any], *inputs: Any) -> list[jax.Array]:
    """Outputs, and gradients of a loss that weighs every element differently."""

    def loss(*inputs):
        outputs = run(*inputs)
        weighed = [jnp.sum(x * jnp.cos(jnp.arange(x.size).reshape(x.shape))) for x in outputs]
        return sum(weighed), outputs

    gradients, outputs = jax.grad(loss, range(len(inputs)), has_aux=True)(*inputs)
    return [*outputs, *gradients]


def assert_same(actual: list[jax.Array], expected: list[jax.Array]) -> None:
    for x, y in zip(actual, expected, strict=True):
        same(x, y)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
class TestTransformations:
    def test_jit_and_remat(self, implementation: str) -> None:
        run = partial(function(implementation), ids=segment_ids())
        expected = with_gradients(run, *arrays())
        assert_same(jax.jit(partial(with_gradients, run))(*arrays()), expected)
        assert_same(jax.jit(partial(with_gradients, jax.checkpoint(run)))(*arrays()), expected)

    def test_vmap(self, implementation: str) -> None:
        """Over inputs and over decays."""
        run = function(implementation)
        inputs = arrays(2)
        decays = jnp.stack([jnp.asarray(G), jnp.array([0.0, -40.0])])
        mapped = jax.jit(
            lambda *inputs: with_gradients(lambda *x: jax.vmap(run)(*x, decays), *inputs)
        )(*inputs)
        for i in range(2):
            outputs, pullback = jax.vjp(lambda *x, i=i: run(*x, decays[i]), *(x[i] for x in inputs))
            weights = [jnp.cos(jnp.arange(x.size).reshape(x.shape))[i] for x in mapped[:2]]
            assert_same([x[i] for x in mapped], [*outputs, *pullback(tuple(weights))])

    def test_scan_over_layers_with_traced_decay(self, implementation: str) -> None:
        q, k, v, state = arrays()
        v = v[..., :KEY_DIM]
        state = state[..., :KEY_DIM]

        def layer(v, i):
            g = gla_log_decay(HEADS, i, 3)
            return function(implementation)(q, k, v, state, g)[0], None

        def unrolled(v):
            for i in range(3):
                v, _ = layer(v, i)
            return (v,)

        def scanned(v):
            return (jax.lax.scan(layer, v, jnp.arange(3))[0],)

        assert_same(jax.jit(partial(with_gradients, scanned))(v), with_gradients(unrolled, v))

    @pytest.mark.parametrize(
        ("data", "heads", "packed"), [(4, 2, False), (4, 2, True), (4, 1, True), (1, 2, True)]
    )
    def test_shard_map(self, implementation: str, data: int, heads: int, packed: bool) -> None:
        """What is not divided is the same on all devices, and its gradient is the sum over them."""
        mesh = mesh_of(data=data, heads=heads)
        run = function(implementation)
        ids = segment_ids() if packed else None
        rows, state = P("data", None, "heads"), P("data", "heads")

        sharded = jax.shard_map(
            run,
            mesh=mesh,
            in_specs=(rows, rows, rows, state, P("heads"), P("data") if packed else None),
            out_specs=(rows, state),
            check_vma=True,
        )
        actual = jax.jit(lambda *x: with_gradients(lambda *x: sharded(*x, G, ids), *x))(*arrays())
        assert_same(actual, with_gradients(partial(run, ids=ids), *arrays()))

    def test_shard_map_with_shared_keys(self, implementation: str) -> None:
        """Keys, values and decays are on all devices, queries are divided: gradients of the former are summed."""
        mesh = mesh_of(data=4)
        q, k, v, _ = arrays()

        def run(q, k, v):
            k, v = (jnp.broadcast_to(x, (q.shape[0], *x.shape[1:])) for x in (k, v))
            return chunk_gla(
                q, k, v, G, output_final_state=False, chunk_size=16, implementation=implementation
            )[:1]

        sharded = jax.shard_map(
            run,
            mesh=mesh,
            in_specs=(P("data"), P(), P()),
            out_specs=(P("data"),),
            check_vma=True,
        )
        inputs = (q, k[:1], v[:1])
        actual = jax.jit(partial(with_gradients, sharded))(*inputs)
        assert_same(actual, with_gradients(run, *inputs))

    def test_vmap_in_shard_map(self, implementation: str) -> None:
        """Rows and their segments on different devices, and two decays on each."""
        mesh = mesh_of(data=2)
        run = function(implementation)
        ids = segment_ids()
        decays = jnp.stack([jnp.asarray(G), jnp.array([0.0, -40.0])])
        sharded = jax.shard_map(
            lambda *x: jax.vmap(run, in_axes=(None,) * 4 + (0, None))(*x, decays, ids[:2]),
            mesh=mesh,
            in_specs=P("data"),
            out_specs=P(None, "data"),
            check_vma=True,
        )
        actual = jax.jit(sharded)(*arrays())
        for i in range(2):
            expected = run(*arrays(), decays[i], jnp.concatenate([ids[:2]] * 2))
            assert_same([x[i] for x in actual], list(expected))

    def test_decay_gets_no_gradient(self, implementation: str) -> None:
        q, k, v, state = arrays()
        gradient = jax.grad(lambda g: jnp.sum(function(implementation)(q, k, v, state, g)[0]))(
            jnp.asarray(G)
        )
        np.testing.assert_array_equal(gradient, np.zeros(HEADS))

    def test_cotangent_of_the_final_state_alone(self, implementation: str) -> None:
        """Without an output in the loss, and without the state in it."""
        run = function(implementation)
        for index in (0, 1):
            actual = jax.grad(lambda *x, i=index: jnp.sum(run(*x)[i]), range(4))(*arrays())
            expected = jax.grad(
                lambda *x, i=index: jnp.sum(function("reference")(*x)[i]), range(4)
            )(*arrays())
            for x, y in zip(actual, expected, strict=True):
                np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


def test_second_derivative() -> None:
    """xla has it, and pallas_tpu says that it has not."""
    q, k, v, state = arrays()

    def second(implementation: str) -> jax.Array:
        run = function(implementation)

        def slope(q: jax.Array) -> jax.Array:
            return jnp.sum(jax.grad(lambda x: jnp.sum(run(x, k, v, state)[0] ** 2))(q) ** 2)

        return jax.grad(slope)(q)

    same(second("xla"), second("reference"), rtol=2e-4, atol=2e-4)
    with pytest.raises(NotImplementedError, match="'pallas_tpu' can be differentiated only once"):
        second("pallas_tpu")


def test_step_under_shard_map_jit_and_grad() -> None:
    mesh = mesh_of(data=4, heads=2)
    q, k, v, state = arrays()
    inputs = (q[:, 0], k[:, 0], v[:, 0], state)
    valid = jnp.array([True, False, True, True])

    def run(q, k, v, state, g=G, valid=valid):
        return recurrent_gla_step(q, k, v, g, state, valid=valid)

    rows, states = P("data", "heads"), P("data", "heads")
    sharded = jax.shard_map(
        run,
        mesh=mesh,
        in_specs=(rows, rows, rows, states, P("heads"), P("data")),
        out_specs=(rows, states),
        check_vma=True,
    )
    actual = jax.jit(lambda *x: with_gradients(lambda *x: sharded(*x, G, valid), *x))(*inputs)
    assert_same(actual, with_gradients(run, *inputs))


def test_step_decay_gets_no_gradient() -> None:
    q, k, v, state = arrays()
    gradient = jax.grad(
        lambda g: jnp.sum(recurrent_gla_step(q[:, 0], k[:, 0], v[:, 0], g, state)[0])
    )(jnp.asarray(G))
    np.testing.assert_array_equal(gradient, np.zeros(HEADS))


def test_groups_of_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many heads go in groups of eight pairs, and what is left over, as on a TPU; interpreted they would not."""

    def results() -> list[jax.Array]:
        inputs = [jnp.asarray(x, jnp.bfloat16) for x in qkv]
        run = partial(chunk_gla, g_gamma=g, chunk_size=16, implementation="pallas_tpu")
        return jax.jit(partial(with_gradients, lambda *x: run(*x)[:1]))(*inputs)

    heads = 36
    g = -build_slope_tensor(heads)
    qkv = np.random.default_rng(13).standard_normal((3, 1, 24, heads, 8))
    expected = results()
    monkeypatch.setattr(
        pallas_tpu_common, "pair_group", lambda cfg: pair_group(replace(cfg, interpret=False))
    )
    for actual, x in zip(results(), expected, strict=True):
        np.testing.assert_array_equal(actual, x)
