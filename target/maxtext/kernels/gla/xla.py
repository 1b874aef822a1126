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

"""Chunked gated linear attention in plain JAX: a scan over chunks, for any backend.

Within a chunk every output is the sum of two parts: what the chunk's own tokens give, through a lower triangular matrix
of scores times decays, and what the state at the chunk's start gives (Lightning Attention-2, Qin et al., 2024). The
gradients are written by hand in the same form. The backward pass computes the chunks' states anew, which costs one of
its ten matrix products per chunk and leaves nothing but the inputs to keep between the passes.

Decays are always `exp` of a difference of positions that is masked before the `exp`: quotients of decays overflow, and
a mask after the `exp` turns gradients into NaN.
"""

from collections.abc import Callable
import functools
from typing import Any, NamedTuple

import jax
from jax import lax
import jax.numpy as jnp

from maxtext.kernels.gla.segments import TokenLayout
from maxtext.kernels.gla.sharding import vary, varying_axes

DEFAULT_CHUNK_SIZE = 64


class _Decays(NamedTuple):
  """Decays of one chunk; `b` is the batch, or 1 when all rows share them. `within` and `query` carry the scale.

  Attributes:
    within: [b, H, C, C], from key j to query i.
    query: [b, H, C, 1], from the state before the chunk to query i.
    key: [b, H, C, 1], from key j to the state after the chunk.
    state: [b, H, 1, 1], from the state before the chunk to the state after it.
  """

  within: jax.Array
  query: jax.Array
  key: jax.Array
  state: jax.Array


class _Plan(NamedTuple):
  """How a sequence is cut: chunk and row sizes, and what gives a chunk's decays from its slice of `steps`."""

  chunk_size: int
  num_chunks: int
  seq_len: int
  steps: Any
  decays: Callable[[Any], _Decays]
  real: jax.Array | None


def _decay(g: jax.Array, distance: jax.Array, mask: jax.Array) -> jax.Array:
  """`exp(g * distance)` where the mask holds, else 0."""
  return jnp.exp(jnp.where(mask, g * distance.astype(g.dtype), -jnp.inf))


def _plan(g_gamma: jax.Array, layout: TokenLayout | None, seq_len: int, chunk_size: int, scale: float) -> _Plan:
  """Cuts rows of seq_len tokens into chunks; the last one is filled up with padding."""
  num_chunks = -(-seq_len // chunk_size)
  tail = num_chunks * chunk_size - seq_len
  index = jnp.arange(chunk_size)
  causal = index[:, None] >= index[None, :]
  if layout is None:
    g = g_gamma[None, :, None, None]
    within = scale * _decay(g, index[:, None] - index[None, :], causal)
    query = scale * jnp.exp(g * (index + 1).astype(g.dtype)[:, None])

    def dense(length):
      key = _decay(g, (length - 1 - index)[:, None], (index < length)[:, None])
      return _Decays(within, query, key, jnp.exp(g * length.astype(g.dtype)))

    if tail == 0:
      whole = dense(jnp.int32(chunk_size))  # the same for all chunks: worked out once, outside of the scan
      return _Plan(chunk_size, num_chunks, seq_len, None, lambda _: whole, None)
    lengths = jnp.minimum(chunk_size, seq_len - chunk_size * jnp.arange(num_chunks))
    return _Plan(chunk_size, num_chunks, seq_len, lengths, dense, None)

  # The filled up tail continues the last position and run: nothing decays over it, and its rows are zeros.
  position = jnp.pad(layout.position, ((0, 0), (0, tail)), mode="edge")
  run = jnp.pad(layout.run, ((0, 0), (0, tail)), mode="edge")
  position, run = (x.reshape(x.shape[0], num_chunks, chunk_size).transpose(1, 0, 2) for x in (position, run))
  end_position, end_run = position[:, :, -1:], jnp.abs(run[:, :, -1:])
  start_position = jnp.concatenate([jnp.zeros_like(end_position[:1]), end_position[:-1]])
  start_run = jnp.concatenate([jnp.ones_like(end_run[:1]), end_run[:-1]])

  def packed(chunk):
    # [B, 1, C, 1] for queries and keys alike, with the head's axis left open; [B, 1, 1, 1] at the chunk's ends.
    position, run, start_position, start_run, end_position, end_run = (x[:, None, :, None] for x in chunk)
    g = g_gamma[:, None, None]
    seen = causal & (run == run.swapaxes(-1, -2))
    # The barrier keeps XLA from working out mask and distances anew for every head, which costs more than the exp.
    seen, distance = lax.optimization_barrier((seen, position - position.swapaxes(-1, -2)))
    return _Decays(
        scale * _decay(g, distance, seen),
        scale * _decay(g, position - start_position, run == start_run),
        _decay(g, end_position - position, run == end_run),
        _decay(g, end_position - start_position, start_run == end_run),
    )

  steps = (position, run, start_position, start_run, end_position, end_run)
  return _Plan(chunk_size, num_chunks, seq_len, steps, packed, (layout.run > 0)[:, :, None, None])


def _to_chunks(x: jax.Array, plan: _Plan) -> jax.Array:
  """[B, T, H, D] -> [N, B, H, C, D], with zeros at padding."""
  if plan.real is not None:
    x = jnp.where(plan.real, x, 0)
  tail = plan.num_chunks * plan.chunk_size - plan.seq_len
  x = jnp.pad(x, ((0, 0), (0, tail), (0, 0), (0, 0)))
  x = x.reshape(x.shape[0], plan.num_chunks, plan.chunk_size, *x.shape[2:])
  return x.transpose(1, 0, 3, 2, 4)


def _from_chunks(x: jax.Array, plan: _Plan) -> jax.Array:
  """[N, B, H, C, D] -> [B, T, H, D]."""
  x = x.transpose(1, 0, 3, 2, 4)
  return x.reshape(x.shape[0], -1, *x.shape[3:])[:, : plan.seq_len]


def _dot(spec: str, x: jax.Array, y: jax.Array) -> jax.Array:
  """Matrix products take operands in the inputs' dtype and accumulate in float32 (float64 for float64)."""
  dtype = jnp.promote_types(x.dtype, jnp.float32)
  precision = lax.Precision.DEFAULT if x.dtype == jnp.bfloat16 else lax.Precision.HIGHEST
  return jnp.einsum(spec, x, y, precision=precision, preferred_element_type=dtype)


def _decayed(x: jax.Array, decay: jax.Array) -> jax.Array:
  """`x * decay`, and 0 where the decay is, so that what is not finite does not reach what must not see it."""
  return jnp.where(decay != 0, x * decay, 0)


def _next_state(state: jax.Array, k: jax.Array, v: jax.Array, decays: _Decays) -> jax.Array:
  k, v = _decayed(k, decays.key).astype(k.dtype), jnp.where(decays.key != 0, v, 0)
  return _decayed(state, decays.state) + _dot("bhjk,bhjv->bhkv", k, v)


def _first_state(q: jax.Array, k: jax.Array, v: jax.Array, g_gamma: jax.Array, initial_state: jax.Array | None) -> jax.Array:
  if initial_state is not None:
    return initial_state
  shape = (q.shape[0], q.shape[2], q.shape[3], v.shape[3])
  return vary(jnp.zeros(shape, g_gamma.dtype), varying_axes(q, k, v, g_gamma))


@functools.partial(jax.custom_vjp, nondiff_argnums=(6, 7))
def _chunk_gla(q, k, v, g_gamma, initial_state, layout, scale, chunk_size):
  """Returns the output and the final state."""
  plan = _plan(g_gamma, layout, q.shape[1], chunk_size, scale)

  def step(state, chunk):
    q, k, v, where = chunk
    decays = plan.decays(where)
    scores = _decayed(_dot("bhik,bhjk->bhij", q, k), decays.within).astype(q.dtype)
    before = _decayed(_dot("bhik,bhkv->bhiv", q, state.astype(q.dtype)), decays.query)
    output = _dot("bhij,bhjv->bhiv", scores, v) + before
    return _next_state(state, k, v, decays), output.astype(v.dtype)

  state = _first_state(q, k, v, g_gamma, initial_state)
  chunks = (*(_to_chunks(x, plan) for x in (q, k, v)), plan.steps)
  state, output = lax.scan(step, state, chunks)
  return _from_chunks(output, plan), state


def _chunk_gla_fwd(q, k, v, g_gamma, initial_state, layout, scale, chunk_size):
  outputs = _chunk_gla(q, k, v, g_gamma, initial_state, layout, scale, chunk_size)
  return outputs, (q, k, v, g_gamma, initial_state, layout)


def _chunk_gla_bwd(scale, chunk_size, saved, cotangents):
  """Gradients of q, k, v and the initial state; None, which is zero, for the decay and the layout."""
  q, k, v, g_gamma, initial_state, layout = saved
  d_output, d_state = cotangents
  dtype = q.dtype
  plan = _plan(g_gamma, layout, q.shape[1], chunk_size, scale)
  q_chunks, k_chunks, v_chunks, d_chunks = (_to_chunks(x, plan) for x in (q, k, v, d_output))

  def forward_step(state, chunk):
    k, v, where = chunk
    return _next_state(state, k, v, plan.decays(where)), state.astype(dtype)

  _, states = lax.scan(forward_step, _first_state(q, k, v, g_gamma, initial_state), (k_chunks, v_chunks, plan.steps))

  def backward_step(d_state, chunk):
    q, k, v, d_output, state, where = chunk
    decays = plan.decays(where)
    d_next = d_state.astype(dtype)
    scores = _decayed(_dot("bhik,bhjk->bhij", q, k), decays.within).astype(dtype)
    d_scores = _decayed(_dot("bhiv,bhjv->bhij", d_output, v), decays.within).astype(dtype)
    d_q = _dot("bhij,bhjk->bhik", d_scores, k) + _dot("bhiv,bhkv->bhik", d_output, state) * decays.query
    d_k = _dot("bhij,bhik->bhjk", d_scores, q) + _dot("bhjv,bhkv->bhjk", v, d_next) * decays.key
    d_v = _dot("bhij,bhiv->bhjv", scores, d_output) + _dot("bhjk,bhkv->bhjv", k, d_next) * decays.key
    d_state = d_state * decays.state + _dot("bhik,bhiv->bhkv", (q * decays.query).astype(dtype), d_output)
    return d_state, (d_q.astype(dtype), d_k.astype(dtype), d_v.astype(dtype))

  chunks = (q_chunks, k_chunks, v_chunks, d_chunks, states, plan.steps)
  d_state, gradients = lax.scan(backward_step, d_state, chunks, reverse=True)
  d_q, d_k, d_v = (_from_chunks(x, plan) for x in gradients)
  return d_q, d_k, d_v, None, None if initial_state is None else d_state, None


_chunk_gla.defvjp(_chunk_gla_fwd, _chunk_gla_bwd)


def chunk_gla_xla(
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
  """Computes gated linear attention chunk by chunk.

  Matrix products take operands in the dtype of q, k and v; scores, decays, states and sums are float32 (float64 for
  float64 inputs). Keeps nothing but its inputs for the backward pass, which holds one state per chunk while it runs.

  Args:
    q: [B, T, H, K].
    k: [B, T, H, K].
    v: [B, T, H, V].
    g_gamma: [H], no gradient.
    initial_state: [B, H, K, V] or None for zeros.
    layout: positions and runs of packed rows, or None when every token is real and a row is one segment.
    scale: factor of the output.
    output_final_state: whether to return the state after the last real token of each row.
    chunk_size: tokens per chunk; None for a size that is good on CPUs.

  Returns:
    The output [B, T, H, V] in the dtype of v, and the final state [B, H, K, V] or None.
  """
  chunk_size = min(chunk_size or DEFAULT_CHUNK_SIZE, q.shape[1])
  output, state = _chunk_gla(q, k, v, g_gamma, initial_state, layout, scale, chunk_size)
  return output, state if output_final_state else None
