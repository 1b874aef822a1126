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

"""Simple gated linear attention on TPU by fused Pallas kernels, forward and backward.

HBM traffic is that of the operands and results: the forward pass reads q, k, v and writes o; for training it saves the
state once per block of tokens, and the backward pass recomputes the states in between in VMEM.
"""

import functools

import jax
import jax.numpy as jnp

from maxtext.kernels.gla import pallas_tpu_backward, pallas_tpu_common as common, pallas_tpu_forward
from maxtext.kernels.gla.pallas_tpu_common import Config


def chunk_gla_pallas(
    q,
    k,
    v,
    g_gamma,
    initial_state,
    segment_ids,
    *,
    scale: float,
    output_final_state: bool,
    chunk_size: int | None = None,
):
  """Simple GLA: `S_t = exp(g) S_{t-1} + k_t v_t^T`, `o_t = scale * q_t S_t`.

  Differentiable in q, k, v and initial_state; the gradient of g_gamma is zero by definition (it is a constant).

  Args:
    q, k: [B, T, H, K], bfloat16 or float32.
    v: [B, T, H, V] of the same type.
    g_gamma: [H] float32, log decay per token, <= 0; may be traced.
    initial_state: [B, H, K, V] float32 or None for zeros.
    segment_ids: [B, T] int32, 0 for padding, or None if all tokens are of one segment.
    scale: factor of the scores.
    output_final_state: whether to return the state after the last real token.
    chunk_size: tokens over which attention is quadratic, rounded up to a multiple of 16; None for the size of the matrix
      unit.

  Returns:
    o [B, T, H, V] of v's type, and the final state [B, H, K, V] float32 or None.
  """
  (heads, key_dim), value_dim = q.shape[2:], v.shape[-1]
  q, k, v, g_gamma, initial_state = _even(q, k, v, g_gamma, initial_state)
  states = output_final_state or initial_state is not None
  segmented = segment_ids is not None
  cfg = common.make_config(q, v, scale=scale, chunk_size=chunk_size, segmented=segmented, states=states)
  if cfg is not None:
    o, final_state = _gla(cfg, output_final_state, q, k, v, g_gamma, initial_state, segment_ids)
  elif q.shape[2] > 2:  # too many heads for VMEM
    run = functools.partial(
        chunk_gla_pallas,
        segment_ids=segment_ids,
        scale=scale,
        output_final_state=output_final_state,
        chunk_size=chunk_size,
    )
    o, final_state = _by_halves(run, q, k, v, g_gamma, initial_state)
  else:
    raise ValueError(
        f"K={key_dim} and V={value_dim} with chunk_size={chunk_size} need more VMEM than a TPU has; use implementation 'xla'"
    )
  if final_state is not None:
    final_state = final_state[:, :heads, :key_dim, :value_dim]
  return o[:, :, :heads, :value_dim], final_state


def _even(q, k, v, g_gamma, initial_state):
  """Fills up with zeros to what the kernels can: an even number of heads, and K, V >= 2 (Mosaic has no products over one
  bfloat16)."""
  heads, key_dim, value_dim = q.shape[2] % 2, int(q.shape[3] == 1), int(v.shape[3] == 1)
  if not (heads or key_dim or value_dim):
    return q, k, v, g_gamma, initial_state
  q, k = (jnp.pad(x, ((0, 0), (0, 0), (0, heads), (0, key_dim))) for x in (q, k))
  v = jnp.pad(v, ((0, 0), (0, 0), (0, heads), (0, value_dim)))
  if initial_state is not None:
    initial_state = jnp.pad(initial_state, ((0, 0), (0, heads), (0, key_dim), (0, value_dim)))
  return q, k, v, jnp.pad(g_gamma, (0, heads)), initial_state


def _by_halves(run, q, k, v, g_gamma, initial_state):
  """`run` for the first and the second half of the heads."""
  half = q.shape[2] // 4 * 2
  results = []
  for part in (slice(None, half), slice(half, None)):
    state = None if initial_state is None else initial_state[:, part]
    results.append(run(q[:, :, part], k[:, :, part], v[:, :, part], g_gamma[part], state))
  o = jnp.concatenate([o for o, _ in results], axis=2)
  if results[0][1] is None:
    return o, None
  return o, jnp.concatenate([state for _, state in results], axis=1)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _gla(cfg: Config, output_final_state: bool, q, k, v, g, initial_state, segment_ids):
  o, _, final = pallas_tpu_forward.forward(
      cfg, q, k, v, g, initial_state, segment_ids, save=False, final=output_final_state
  )
  return o, final


def _gla_fwd(cfg: Config, output_final_state: bool, q, k, v, g, initial_state, segment_ids):
  o, saved, final = pallas_tpu_forward.forward(
      cfg, q, k, v, g, initial_state, segment_ids, save=True, final=output_final_state
  )
  return (o, final), (q, k, v, g, saved, initial_state is not None)


def _gla_bwd(cfg: Config, output_final_state: bool, residuals, cotangents):
  q, k, v, g, saved, has_initial = residuals
  do, dfinal = cotangents
  dq, dk, dv, dinitial = pallas_tpu_backward.backward(
      cfg, q, k, v, g, saved, do, dfinal, initial=has_initial
  )
  return dq, dk, dv, jnp.zeros_like(g), dinitial, None


_gla.defvjp(_gla_fwd, _gla_bwd)
