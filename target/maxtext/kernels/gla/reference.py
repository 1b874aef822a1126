# Copyright 2023–2026 Google LLC
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#    https://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.

"""Gated linear attention, one token after the other: slow, and the truth for the other implementations."""

import jax
from jax import lax
import jax.numpy as jnp

from maxtext.kernels.gla.segments import TokenLayout
from maxtext.kernels.gla.sharding import vary, varying_axes


def recurrent_gla(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    g_gamma: jax.Array,
    initial_state: jax.Array | None,
    layout: TokenLayout | None,
    *,
    scale: float,
    output_final_state: bool,
    chunk_size: int | None = None,
) -> tuple[jax.Array, jax.Array | None]:
  """Runs `S_t = e^g S_{t-1} + k_t v_t^T`, `o_t = scale * q_t S_t` by a scan over the tokens.

  Computes in float32, or in float64 for float64 inputs. Differentiable by autodiff, which keeps every state.

  Args:
    q: [B, T, H, K].
    k: [B, T, H, K].
    v: [B, T, H, V].
    g_gamma: [H].
    initial_state: [B, H, K, V] or None for zeros.
    layout: positions and runs of packed rows, or None when every token is real and a row is one segment.
    scale: factor of the output.
    output_final_state: whether to return the state after the last real token of each row.
    chunk_size: not used, since there are no chunks.

  Returns:
    The output [B, T, H, V] in the dtype of v, and the final state [B, H, K, V] or None.
  """
  del chunk_size
  batch, _, heads, key_dim = q.shape
  dtype = jnp.promote_types(q.dtype, jnp.float32)
  decay = jnp.exp(g_gamma.astype(dtype))[:, None, None]
  state = initial_state
  if state is None:
    state = vary(jnp.zeros((batch, heads, key_dim, v.shape[-1]), dtype), varying_axes(q, k, v, g_gamma))

  def step(carry, token):
    state, last_run = carry
    q_t, k_t, v_t, run = token
    if run is None:
      state = state * decay + k_t[..., :, None] * v_t[..., None, :]
      return (state, None), jnp.einsum("bhk,bhkv->bhv", q_t, state, precision=lax.Precision.HIGHEST)
    real = (run > 0)[:, None, None]
    # Zeros on both sides of every product, so that nothing that stands at padding reaches a gradient.
    q_t, k_t, v_t = (jnp.where(real, x, 0) for x in (q_t, k_t, v_t))
    kept = jnp.where((run == last_run)[:, None, None, None], state * decay, 0)
    state = jnp.where(real[..., None], kept + k_t[..., :, None] * v_t[..., None, :], state)
    output = jnp.einsum("bhk,bhkv->bhv", q_t, state, precision=lax.Precision.HIGHEST)
    return (state, jnp.abs(run)), jnp.where(real, output, 0)

  tokens = tuple(jnp.moveaxis(x, 1, 0).astype(dtype) for x in (q, k, v))
  if layout is None:
    carry, runs = (state.astype(dtype), None), None
  else:
    runs = jnp.moveaxis(layout.run, 1, 0)
    carry = (state.astype(dtype), jnp.ones_like(runs[0]))  # the incoming state belongs to run 1
  (state, _), output = lax.scan(step, carry, (*tokens, runs))
  return (scale * jnp.moveaxis(output, 0, 1)).astype(v.dtype), state if output_final_state else None
