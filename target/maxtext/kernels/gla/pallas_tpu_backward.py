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

"""Backward Pallas TPU kernel of simple gated linear attention.

With the notation of the forward kernel, A = (q k^T) * D, dA = (do v^T) * D, S the state before the chunk and dS the
gradient of the state after it (the chunkwise form of https://arxiv.org/abs/2401.04658, differentiated):

  dq = scale * (dA k + L * (do S^T))
  dk = scale * dA^T q + R * (v dS^T)
  dv = scale * A^T do + R * (k dS)
  dS <- exp(g C) dS + scale * (L * q)^T do

A is wanted only transposed and dA both ways, so the kernel makes A^T = (k q^T) * D^T and dA^T = (v do^T) * D^T.
"""

import jax
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp

from maxtext.kernels.gla import pallas_tpu_common as common
from maxtext.kernels.gla.pallas_tpu_common import Config, Distances, decay, dot, fit_lanes


def _kernel(cfg: Config, refs, seeded: bool, initial: bool):
  """One block of tokens. Grid (B, blocks), the blocks of a row from last to first; dS stays in VMEM in between."""
  step = pl.program_id(1)
  block = cfg.num_blocks - 1 - step
  dstate_ref = refs["dstate"]

  @pl.when(step == 0)
  def _():
    dstate_ref[...] = refs["dfinal"][0] if seeded else jnp.zeros_like(dstate_ref)
    if cfg.uniform:
      common.fill_distances(cfg, Distances(*refs["distances"]), None, None, 0, 0, transposed=True)

  _recompute_states(cfg, refs, block)

  @pl.loop(0, cfg.chunks_per_block)
  def _(i):
    _chunk_gradients(cfg, refs, block, cfg.chunks_per_block - 1 - i)

  if initial:

    @pl.when(step == cfg.num_blocks - 1)
    def _():
      refs["dinitial"][0] = dstate_ref[...]


def _enter_chunk(cfg: Config, refs, block, in_block):
  """Distances of a chunk, the ref of the mask of its tokens or None, and the distance over which it carries the state."""
  distances = Distances(*refs["distances"])
  index = block * cfg.chunks_per_block + in_block
  tokens_ref, ends_ref = refs.get("tokens"), refs.get("ends")
  if not cfg.uniform:
    common.fill_distances(cfg, distances, tokens_ref, ends_ref, index, in_block, transposed=True)
  return distances, None if cfg.uniform else distances.keep, common.carry_distance(cfg, ends_ref, index)


def _recompute_states(cfg: Config, refs, block):
  """From the saved state to `states`, the states before each chunk of the block."""
  g_ref, state_ref, states_ref = refs["g"], refs["state"], refs["states"]
  states_ref[0] = refs["saved"][0, 0]
  if cfg.chunks_per_block == 1:
    return
  state_ref[...] = refs["saved"][0, 0].astype(jnp.float32)

  @pl.loop(0, cfg.chunks_per_block - 1)
  def _(in_block):
    distances, keep_ref, carry = _enter_chunk(cfg, refs, block, in_block)

    def pair_body(pair):
      ks, vs = (common.load_pair(cfg, refs[n], in_block * cfg.chunk, pair, keep_ref) for n in ("k", "v"))
      for i, (k, v) in enumerate(zip(ks, vs)):
        head = pair.head(i)
        g = g_ref[0, head]
        k = (k.astype(jnp.float32) * fit_lanes(decay(g, distances.end[...]), cfg.key_dim)).astype(cfg.dtype)
        state = common.scalar_decay(g, carry) * state_ref[head] + dot(cfg, k, v, (0, 0))
        state_ref[head] = state
        states_ref[in_block + 1, head] = state.astype(cfg.dtype)

    common.for_each_pair(cfg, pair_body)


def _chunk_gradients(cfg: Config, refs, block, in_block):
  """dq, dk, dv of one chunk; moves dS back over it."""
  distances, keep_ref, carry = _enter_chunk(cfg, refs, block, in_block)
  start = in_block * cfg.chunk

  def pair_body(pair):
    inputs = [common.load_pair(cfg, refs[n], start, pair, keep_ref) for n in ("q", "k", "v", "do")]
    grads = []
    for i, (q, k, v, do) in enumerate(zip(*inputs)):
      head = pair.head(i)
      state, dstate_ref = refs["states"][in_block, head], refs["dstate"].at[head]
      grads.append(_head(cfg, refs["g"][0, head], q, k, v, do, state, dstate_ref, distances, carry))
    for name, pair_values in zip(("dq", "dk", "dv"), zip(*grads)):
      common.store_pair(cfg, refs[name], start, pair, pair_values)

  common.for_each_pair(cfg, pair_body)


def _head(cfg: Config, g, q, k, v, do, state, dstate_ref, distances: Distances, carry):
  """dq, dk [chunk, K] and dv [chunk, V] (float32) of one head; moves its dS back."""
  dstate = dstate_ref[...]
  dstate_low = dstate.astype(cfg.dtype)
  decay_pairs = cfg.scale * decay(g, distances.pairs[...])
  decay_start = cfg.scale * decay(g, distances.start[...])
  decay_end = decay(g, distances.end[...])

  scores_t = (dot(cfg, k, q, (1, 1)) * decay_pairs).astype(cfg.dtype)
  dscores_t = (dot(cfg, v, do, (1, 1)) * decay_pairs).astype(cfg.dtype)
  dq = dot(cfg, dscores_t, k, (0, 0)) + dot(cfg, do, state, (1, 1)) * fit_lanes(decay_start, cfg.key_dim)
  dk = dot(cfg, dscores_t, q) + dot(cfg, v, dstate_low, (1, 1)) * fit_lanes(decay_end, cfg.key_dim)
  dv = dot(cfg, scores_t, do) + dot(cfg, k, dstate_low) * fit_lanes(decay_end, cfg.value_dim)
  q = (q.astype(jnp.float32) * fit_lanes(decay_start, cfg.key_dim)).astype(cfg.dtype)
  dstate_ref[...] = common.scalar_decay(g, carry) * dstate + dot(cfg, q, do, (0, 0))
  return dq, dk, dv


def backward(cfg: Config, q, k, v, g, saved, do, dfinal, tokens, ends, *, initial: bool):
  """Calls the kernel.

  Args:
    cfg: static description.
    q, k, v, g, tokens, ends: as in the forward call.
    saved: [B, blocks, H, K, V] of `cfg.dtype`, the states that the forward kernel saved.
    do: [B, T, H, V] of `cfg.dtype`, cotangent of the output.
    dfinal: [B, H, K, V] float32, cotangent of the final state, or None.
    initial: whether the gradient of the initial state is wanted.

  Returns:
    dq, dk, dv like q, k, v, and the gradient of the initial state, [B, H, K, V] float32, or None.
  """
  specs = common.Specs(cfg, backwards=True)
  key_rows, value_rows = specs.rows(cfg.key_dim), specs.rows(cfg.value_dim)
  q, k, v, do = (common.rows_of(cfg, x) for x in (q, k, v, do))
  inputs = {"g": g, "q": q, "k": k, "v": v, "do": do, "saved": saved}
  in_specs = [specs.decay(), key_rows, key_rows, value_rows, value_rows, specs.saved()]
  if dfinal is not None:
    inputs["dfinal"] = dfinal
    in_specs.append(specs.state())
  if cfg.segmented:
    inputs |= {"tokens": tokens, "ends": ends}
    in_specs += [specs.tokens(), specs.ends()]
  rows, state_shape = cfg.time * cfg.heads, (cfg.heads, cfg.key_dim, cfg.value_dim)
  outputs = {
      "dq": ((cfg.batch, rows, cfg.key_dim), cfg.dtype, key_rows),
      "dk": ((cfg.batch, rows, cfg.key_dim), cfg.dtype, key_rows),
      "dv": ((cfg.batch, rows, cfg.value_dim), cfg.dtype, value_rows),
  }
  if initial:
    outputs["dinitial"] = ((cfg.batch,) + state_shape, jnp.float32, specs.state())

  results = common.call(
      cfg,
      lambda refs: _kernel(cfg, refs, dfinal is not None, initial),
      inputs,
      in_specs,
      outputs,
      scratch={
          "dstate": pltpu.VMEM(state_shape, jnp.float32),
          "state": pltpu.VMEM(state_shape, jnp.float32),
          "states": pltpu.VMEM((cfg.chunks_per_block,) + state_shape, cfg.dtype),
          "distances": Distances.scratch_shapes(cfg),
      },
      name="gla_backward",
  )
  return *(common.rows_of(cfg, results[n]) for n in ("dq", "dk", "dv")), results.get("dinitial")
