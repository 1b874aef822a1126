"""Prefill and token-by-token decoding against the forward pass over the whole sequence."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from maxtext.common.common_types import MODEL_MODE_AUTOREGRESSIVE, MODEL_MODE_PREFILL

from migration_tests.model.inside import models
from migration_tests.model.inside.check_decoder import abstract_model, layers_config, relative

# Two layers of the prefix, GLA and MLA, a scanned cycle and a remainder of both kinds.
SHAPE = (7, 2, 2)
PREFILL, STEPS = 8, 6
# Tokens of the prompts, right-padded to PREFILL.
LENGTHS = (8, 5, 1)
TOLERANCE = 1e-5


@pytest.mark.parametrize(("scan", "latent_cache"), [(False, True), (True, False)])
def test_prefill_and_steps(scan: bool, latent_cache: bool) -> None:
    config = layers_config(
        SHAPE,
        scan_layers=scan,
        max_prefill_predict_length=PREFILL,
        max_target_length=PREFILL + STEPS,
        mla_naive_kvcache=not latent_cache,
        mtp_num_layers=1,  # as in the released config; it has no part in decoding
        remat_policy="none",
    )
    unscanned = models.random_tensors(
        abstract_model(layers_config(SHAPE, scan_layers=False, mtp_num_layers=1))
    )
    tensors = models.scanned(unscanned, config) if scan else unscanned
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, config.vocab_size, length + STEPS) for length in LENGTHS]

    full = models.compiled(
        models.make_model(config, tensors),
        lambda model, tokens: model(tokens, models.positions_of(tokens), enable_dropout=False),
    )
    whole = np.stack([np.pad(row, (0, PREFILL + STEPS - len(row))) for row in rows])
    expected = np.asarray(full({}, jnp.asarray(whole)))

    graphdef, state = nnx.split(models.make_model(config, tensors, MODEL_MODE_PREFILL))
    prompts = np.stack(
        [
            np.pad(row[:length], (0, PREFILL - length))
            for row, length in zip(rows, LENGTHS, strict=True)
        ]
    )
    is_prompt = np.arange(PREFILL) < np.asarray(LENGTHS)[:, None]

    @jax.jit
    def prefill(state: Any, tokens: Any, segments: Any) -> tuple[jax.Array, Any]:
        model = nnx.merge(graphdef, state, copy=True)
        logits = model(
            tokens,
            models.positions_of(tokens),
            segments,
            enable_dropout=False,
            model_mode=MODEL_MODE_PREFILL,
        )
        return logits, nnx.state(model, nnx.Not(nnx.Intermediate))

    @jax.jit
    def step(state: Any, tokens: Any, positions: Any) -> tuple[jax.Array, Any]:
        model = nnx.merge(graphdef, state, copy=True)
        logits = model(
            tokens, positions, enable_dropout=False, model_mode=MODEL_MODE_AUTOREGRESSIVE
        )
        return logits, nnx.state(model, nnx.Not(nnx.Intermediate))

    logits, state = prefill(state, jnp.asarray(prompts), jnp.asarray(is_prompt, jnp.int32))
    errors = [
        relative(logits[row, :length], expected[row, :length]) for row, length in enumerate(LENGTHS)
    ]
    for index in range(STEPS):
        at = np.asarray([length + index for length in LENGTHS])
        tokens = jnp.asarray([[row[position]] for row, position in zip(rows, at, strict=True)])
        logits, state = step(state, tokens, jnp.asarray(at)[:, None])
        errors += [relative(logits[i, 0], expected[i, position]) for i, position in enumerate(at)]
    print(f"scan={scan} latent_cache={latent_cache} worst {max(errors):.1e}")
    assert max(errors) <= TOLERANCE
