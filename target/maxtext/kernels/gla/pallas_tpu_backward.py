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

import functools

from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp

from maxtext.kernels.gla import pallas_tpu_common as common, pallas_tpu_decay as decay
from maxtext.kernels.gla.pallas_tpu_common import Config, dot
from maxtext.kernels.gla.pallas_tpu_decay import Decays, Tokens


def _kernel(cfg: Config, refs, seeded: bool, initial: bool):
  """One block of tokens. Grid (B, blocks), the blocks of a row from last to first; dS stays in VMEM in between."""
  dstate_ref, decays = refs["dstate"], Decays(cfg, refs, transposed=True)
  step = pl.program_id(1)
  block = cfg.num_blocks - 1 - step

  @pl.when(step == 0)
  def _():
    dstate_ref[...] = refs["dfinal"][0] if seeded else jnp.zeros_like(dstate_ref)
    decays.enter_row()

  state_ref = refs["state"]
  state_ref[...] = refs["saved"][0, 0].astype(jnp.float32)
  refs["states"][0] = refs["saved"][0, 0]

  def enter_chunk(in_block):
    if cfg.segmented:
      decays.enter_chunk(Tokens.load(cfg, refs["tokens"], in_block))
    else:
      decays.enter_chunk(decay.plain_tokens(cfg, block * cfg.chunks_per_block + in_block))

  pair_states = functools.partial(_pair_states, cfg, refs, decays)
  pair_gradients = functools.partial(_pair_gradients, cfg, refs, decays)
  common.for_each_pair(cfg, cfg.chunks_per_block - 1, enter_chunk, pair_states)
  common.for_each_pair(cfg, cfg.chunks_per_block, enter_chunk, pair_gradients, reverse=True)

  if initial:

    @pl.when(step == cfg.num_blocks - 1)
    def _():
      refs["dinitial"][0] = dstate_ref[...]


def _pair_states(cfg: Config, refs, decays: Decays, in_block, pair):
  """Recomputes the states of two heads after chunk `in_block` from those before it."""
  ks, vs = (
      common.load_pair(cfg, refs[n], dim, in_block * cfg.chunk, pair, decays.keep_ref)
      for n, dim in (("k", cfg.key_dim), ("v", cfg.value_dim))
  )
  for i, (k, v) in enumerate(zip(ks, vs)):
    head = pair.head(i)
    k = (k.astype(jnp.float32) * decays.end(head, cfg.key_dim)).astype(cfg.dtype)
    state = decays.carry(head, cfg.value_dim) * refs["state"][head] + dot(cfg, k, v, (0, 0))
    refs["state"][head] = state
    refs["states"][in_block + 1, head] = state.astype(cfg.dtype)


def _pair_gradients(cfg: Config, refs, decays: Decays, in_block, pair):
  """dq, dk, dv of two heads in one chunk; moves their dS back.

  The two heads go in step and products come before what waits for them, so that the matrix unit is kept busy.
  """
  both, key_dim, value_dim, dtype = range(2), cfg.key_dim, cfg.value_dim, cfg.dtype
  heads = [pair.head(i) for i in both]
  start = in_block * cfg.chunk
  q, k, v, do = (
      common.load_pair(cfg, refs[n], dim, start, pair, decays.keep_ref)
      for n, dim in (("q", key_dim), ("k", key_dim), ("v", value_dim), ("do", value_dim))
  )
  state = [refs["states"][in_block, h] for h in heads]
  dstate = [refs["dstate"][h] for h in heads]
  dstate_low = [x.astype(dtype) for x in dstate]

  scores_t = [dot(cfg, k[i], q[i], (1, 1)) for i in both]
  dscores_t = [dot(cfg, v[i], do[i], (1, 1)) for i in both]
  dq_inter = [dot(cfg, do[i], state[i], (1, 1)) for i in both]
  dk_inter = [dot(cfg, v[i], dstate_low[i], (1, 1)) for i in both]
  dv_inter = [dot(cfg, k[i], dstate_low[i]) for i in both]
  q_start = [(q[i].astype(jnp.float32) * decays.start(heads[i], key_dim)).astype(dtype) for i in both]
  update = [dot(cfg, q_start[i], do[i], (0, 0)) for i in both]
  scores_t = [(scores_t[i] * decays.pairs(heads[i])).astype(dtype) for i in both]
  dscores_t = [(dscores_t[i] * decays.pairs(heads[i])).astype(dtype) for i in both]
  dv = [dot(cfg, scores_t[i], do[i]) + dv_inter[i] * decays.end(heads[i], value_dim) for i in both]
  dk = [dot(cfg, dscores_t[i], q[i]) + dk_inter[i] * decays.end(heads[i], key_dim) for i in both]
  dq = [dot(cfg, dscores_t[i], k[i], (0, 0)) + dq_inter[i] * decays.start(heads[i], key_dim) for i in both]

  for i in both:
    refs["dstate"][heads[i]] = decays.carry(heads[i], value_dim) * dstate[i] + update[i]
  for name, values in (("dq", dq), ("dk", dk), ("dv", dv)):
    common.store_pair(cfg, refs[name], start, pair, values)


def backward(cfg: Config, q, k, v, g, saved, do, dfinal, *, initial: bool):
  """Calls the kernel.

  Args:
    cfg: static description.
    q, k, v, g: as in the forward call.
    saved: what the forward kernel saved.
    do: [B, T, H, V] of `cfg.dtype`, cotangent of the output.
    dfinal: [B, H, K, V] float32, cotangent of the final state, or None.
    initial: whether the gradient of the initial state is wanted.

  Returns:
    dq, dk, dv like q, k, v, and the gradient of the initial state, [B, H, K, V] float32, or None.
  """
  specs = common.Specs(cfg, backwards=True)
  inputs = {"log_decay": (g[None], specs.log_decay()), "saved": (saved["states"], specs.saved())}
  if dfinal is not None:
    inputs["dfinal"] = dfinal, specs.state()
  if cfg.segmented:
    inputs["tokens"] = saved["tokens"], specs.tokens(saved["tokens"].shape)
  state_shape = (cfg.heads, cfg.key_dim, cfg.value_dim)
  outputs = {"dinitial": ((cfg.batch,) + state_shape, jnp.float32, specs.state())} if initial else {}

  results = common.call(
      cfg,
      lambda cfg, refs: _kernel(cfg, refs, dfinal is not None, initial),
      specs,
      rows_in={"q": q, "k": k, "v": v, "do": do},
      inputs=inputs,
      rows_out={"dq": cfg.key_dim, "dk": cfg.key_dim, "dv": cfg.value_dim},
      outputs=outputs,
      scratch={
          "dstate": pltpu.VMEM(state_shape, jnp.float32),
          "state": pltpu.VMEM(state_shape, jnp.float32),
          "states": pltpu.VMEM((cfg.chunks_per_block,) + state_shape, cfg.dtype),
          "decays": Decays.scratch_shapes(cfg),
      },
      name="gla_backward",
  )
  return results["dq"], results["dk"], results["dv"], results.get("dinitial")
