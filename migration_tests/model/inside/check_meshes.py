"""Eight virtual devices in several meshes against one device."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from flax.linen import logical_axis_rules

from migration_tests.model.inside import models
from migration_tests.model.inside.check_decoder import abstract_model, layers_config, relative

# A dense GLA layer, a scanned cycle of MLA and GLA, an MLA layer after it; one MTP layer.
SHAPE = (4, 2, 1)
MESHES: dict[str, dict[str, Any]] = {
    "data": {"ici_data_parallelism": 8},
    "fsdp": {"ici_fsdp_parallelism": 8},
    "fsdp-sparse": {"ici_fsdp_parallelism": 8, "sparse_matmul": True},
    "tensor": {"ici_fsdp_parallelism": 2, "ici_tensor_parallelism": 4},
    "expert": {"ici_fsdp_parallelism": 2, "ici_expert_parallelism": 4},
    "expert-ring": {
        "ici_fsdp_parallelism": 2,
        "ici_expert_parallelism": 4,
        "sparse_matmul": True,
        "megablox": True,
        "use_ring_of_experts": True,
    },
    "context": {
        "ici_fsdp_parallelism": 4,
        "ici_context_parallelism": 2,
        "context_parallel_load_balance": False,
    },
}
TOLERANCE = 1e-5


def loss_and_gradients(config: Any, tensors: models.Tensors) -> tuple[Any, Any, models.Tensors]:
    """Returns logits, expert counts by path, and gradients."""
    tokens = jnp.asarray(
        np.random.default_rng(0).integers(0, config.vocab_size, (8, config.max_target_length))
    )
    mesh = models.make_mesh(config)
    model = models.make_model(config, tensors)
    graphdef, params, rest = nnx.split(model, nnx.Param, ...)
    shardings = jax.tree.map(lambda x: x.sharding, (params, rest))

    def loss(params: Any, rest: Any, tokens: jax.Array) -> Any:
        merged = nnx.merge(graphdef, params, rest, copy=True)
        logits = merged(
            tokens,
            models.positions_of(tokens),
            jnp.ones_like(tokens),
            enable_dropout=False,
            decoder_target_tokens=tokens,
            decoder_target_mask=jnp.ones_like(tokens),
        )
        labels = jax.nn.one_hot(jnp.roll(tokens, -1, 1), config.vocab_size)
        main = -jnp.mean(jnp.sum(jax.nn.log_softmax(logits) * labels, -1))
        mtp = jnp.sum(merged.mtp_block.losses.get_value())
        recorded = nnx.pop(merged, nnx.Intermediate)
        counts = {
            path: value.get_value()
            for path, value in nnx.to_flat_state(recorded)
            if path[-1] == "moe_expert_counts"
        }
        return main + 1e-3 * mtp, (logits, counts)

    with jax.set_mesh(mesh), logical_axis_rules(config.logical_axis_rules):
        step = jax.jit(jax.value_and_grad(loss, has_aux=True), in_shardings=(*shardings, None))
        (_, (logits, counts)), gradients = step(params, rest, tokens)
    flat = {path: np.asarray(value.get_value()) for path, value in nnx.to_flat_state(gradients)}
    return np.asarray(logits), jax.tree.map(np.asarray, counts), flat


@pytest.fixture(scope="module")
def one_device() -> Any:
    config = layers_config(SHAPE, scan_layers=True, mtp_num_layers=1, vocab_size=64)
    tensors = models.random_tensors(abstract_model(config))
    with pytest.MonkeyPatch.context() as monkeypatch:
        first = jax.devices()[:1]
        monkeypatch.setattr(jax, "devices", lambda: first)
        return tensors, loss_and_gradients(config, tensors)


@pytest.mark.parametrize("mesh", MESHES)
def test_mesh(mesh: str, one_device: Any) -> None:
    assert jax.device_count() == 8
    tensors, (logits, counts, gradients) = one_device
    config = layers_config(SHAPE, scan_layers=True, mtp_num_layers=1, vocab_size=64, **MESHES[mesh])
    actual_logits, actual_counts, actual_gradients = loss_and_gradients(config, tensors)
    errors = {
        path: relative(actual_gradients[path], gradient) for path, gradient in gradients.items()
    }
    print(
        f"{mesh}: logits {relative(actual_logits, logits):.1e}, gradients {max(errors.values()):.1e}"
    )
    assert relative(actual_logits, logits) <= TOLERANCE
    assert actual_counts.keys() == counts.keys()
    for path, value in counts.items():
        np.testing.assert_array_equal(actual_counts[path], value, err_msg="/".join(path))
    assert max(errors.values()) <= 5 * TOLERANCE
