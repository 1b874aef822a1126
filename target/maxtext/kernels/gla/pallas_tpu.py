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
    heads_major: bool = False,
):
  """Simple GLA: `S_t = exp(g) S_{t-1} + k_t v_t^T`, `o_t = scale * q_t S_t`.

  Differentiable in q, k, v and initial_state; the gradient of g_gamma is zero by definition (it is a constant).

  A value that is not finite reaches all tokens of its chunk, earlier ones and those of other segments as well, and from
  there on the states and outputs up to the row's end: decays of 0 are factors, selections in their place would cost too
  much. Implementation 'xla' keeps it in its segment.

  Where H heads do not fit in VMEM at once (H = 128 of K = V = 128), XLA copies q, k, v and o to and from another order of
  axes.

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
    heads_major: whether q, k, v and o are to be read and written as [B, H, T, K] rather than as a program's arguments are.

  Returns:
    o [B, T, H, V] of v's type, and the final state [B, H, K, V] float32 or None.
  """
  key_dim, value_dim = q.shape[-1], v.shape[-1]
  q, k, v, initial_state = _two_at_least(q, k, v, initial_state)
  states = output_final_state or initial_state is not None
  segmented = segment_ids is not None
  cfg = common.make_config(
      q, v, scale=scale, chunk_size=chunk_size, segmented=segmented, states=states, heads_major=heads_major
  )
  if cfg is None:
    raise ValueError(
        f"K={key_dim} and V={value_dim} with chunk_size={chunk_size} need more VMEM than a TPU has; use implementation 'xla'"
    )
  o, final_state = _gla(cfg, output_final_state, q, k, v, g_gamma, initial_state, segment_ids)
  if final_state is not None:
    final_state = final_state[..., :key_dim, :value_dim]
  return o[..., :value_dim], final_state


def _two_at_least(q, k, v, initial_state):
  """Fills up K and V of 1 with zeros to 2: Mosaic has no products over one bfloat16."""
  key_dim, value_dim = int(q.shape[-1] == 1), int(v.shape[-1] == 1)
  if key_dim or value_dim:
    q, k = (jnp.pad(x, ((0, 0), (0, 0), (0, 0), (0, key_dim))) for x in (q, k))
    v = jnp.pad(v, ((0, 0), (0, 0), (0, 0), (0, value_dim)))
    if initial_state is not None:
      initial_state = jnp.pad(initial_state, ((0, 0), (0, 0), (0, key_dim), (0, value_dim)))
  return q, k, v, initial_state


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
