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
from maxtext.kernels.gla.pallas_tpu_common import Config, on_tpu  # pylint: disable=unused-import


def chunk_gla_pallas(
    q,
    k,
    v,
    g_gamma,
    initial_state,
    layout,
    *,
    scale: float,
    output_final_state: bool,
    chunk_size: int | None = None,
    interpret: bool = False,
):
  """Simple GLA: `S_t = exp(g) S_{t-1} + k_t v_t^T`, `o_t = scale * q_t S_t`.

  Differentiable in q, k, v and initial_state; the gradient of g_gamma is zero by definition (it is a constant).

  Args:
    q, k: [B, T, H, K], bfloat16 or float32.
    v: [B, T, H, V] of the same type.
    g_gamma: [H] float32, log decay per token, <= 0; may be traced.
    initial_state: [B, H, K, V] float32 or None for zeros.
    layout: TokenLayout of packed rows, or None if all tokens are of one segment.
    scale: factor of the scores.
    output_final_state: whether to return the state after the last real token.
    chunk_size: tokens over which attention is quadratic, a multiple of 16; None for the size of the matrix unit.
    interpret: interpret the kernels, on hosts without a TPU.

  Returns:
    o [B, T, H, V] of v's type, and the final state [B, H, K, V] float32 or None.
  """
  heads = q.shape[2]
  if heads % 2:  # the kernels work on pairs of heads
    q, k, v = (jnp.pad(x, ((0, 0), (0, 0), (0, 1), (0, 0))) for x in (q, k, v))
    g_gamma = jnp.pad(g_gamma, (0, 1))
    if initial_state is not None:
      initial_state = jnp.pad(initial_state, ((0, 0), (0, 1), (0, 0), (0, 0)))
  states = output_final_state or initial_state is not None
  segmented = layout is not None
  cfg = common.make_config(
      q, v, scale=scale, chunk_size=chunk_size, segmented=segmented, states=states, interpret=interpret
  )
  if cfg is None and q.shape[2] > 2:  # too many heads for VMEM
    run = functools.partial(
        chunk_gla_pallas,
        layout=layout,
        scale=scale,
        output_final_state=output_final_state,
        chunk_size=chunk_size,
        interpret=interpret,
    )
    return _by_halves(run, heads, q, k, v, g_gamma, initial_state)
  if cfg is None:
    raise ValueError(f"chunk_size={chunk_size} with K={q.shape[-1]}, V={v.shape[-1]} needs more VMEM than there is.")
  o, final_state = _gla(cfg, output_final_state, q, k, v, g_gamma, initial_state, layout)
  if heads % 2:
    o = o[:, :, :heads]
    final_state = None if final_state is None else final_state[:, :heads]
  return o, final_state


def _by_halves(run, heads: int, q, k, v, g_gamma, initial_state):
  """`run` for the first and the second half of the heads; returns the first `heads` of the result."""
  half = q.shape[2] // 4 * 2
  results = []
  for part in (slice(None, half), slice(half, None)):
    state = None if initial_state is None else initial_state[:, part]
    results.append(run(q[:, :, part], k[:, :, part], v[:, :, part], g_gamma[part], state))
  o = jnp.concatenate([o for o, _ in results], axis=2)[:, :, :heads]
  if results[0][1] is None:
    return o, None
  return o, jnp.concatenate([state for _, state in results], axis=1)[:, :heads]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _gla(cfg: Config, output_final_state: bool, q, k, v, g, initial_state, layout):
  tokens, ends = common.kernel_layout(cfg, layout) if cfg.segmented else (None, None)
  o, _, final = pallas_tpu_forward.forward(
      cfg, q, k, v, common.decay_rate(g), initial_state, tokens, ends, save=False, final=output_final_state
  )
  return o, final


def _gla_fwd(cfg: Config, output_final_state: bool, q, k, v, g, initial_state, layout):
  tokens, ends = common.kernel_layout(cfg, layout) if cfg.segmented else (None, None)
  o, saved, final = pallas_tpu_forward.forward(
      cfg, q, k, v, common.decay_rate(g), initial_state, tokens, ends, save=True, final=output_final_state
  )
  return (o, final), (q, k, v, g, saved, layout, initial_state is not None)


def _gla_bwd(cfg: Config, output_final_state: bool, residuals, cotangents):
  q, k, v, g, saved, layout, has_initial = residuals
  do, dfinal = cotangents
  tokens, ends = common.kernel_layout(cfg, layout) if cfg.segmented else (None, None)
  dq, dk, dv, dinitial = pallas_tpu_backward.backward(
      cfg, q, k, v, common.decay_rate(g), saved, do, dfinal, tokens, ends, initial=has_initial
  )
  return dq, dk, dv, jnp.zeros_like(g), dinitial, None


_gla.defvjp(_gla_fwd, _gla_bwd)
