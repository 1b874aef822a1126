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
from maxtext.kernels.gla.pallas_tpu_common import Config, dot, dot_tokens
from maxtext.kernels.gla.pallas_tpu_decay import Decays, Tokens


def _kernel(cfg: Config, refs, seeded: bool, initial: bool):
  """One block of tokens. Grid (B, groups, blocks), the blocks of a row from last to first; dS stays in VMEM in between."""
  dstate_ref, decays = refs["dstate"], Decays(cfg, refs, transposed=True)
  step = pl.program_id(2)
  block = cfg.num_blocks - 1 - step

  @pl.when(step == 0)
  def _():
    dstate_ref[...] = refs["dfinal"][0] if seeded else jnp.zeros_like(dstate_ref)
    decays.enter_row()

  state_ref = refs["state"]
  state_ref[...] = refs["saved"][0, 0].astype(jnp.float32)
  refs["states"][0] = refs["saved"][0, 0]

  def enter_chunk(in_block, slot):
    if cfg.segmented:
      decays.enter_chunk(Tokens.load(cfg, refs["tokens"], in_block), slot)
    else:
      decays.enter_chunk(decay.plain_tokens(cfg, block * cfg.chunks_per_block + in_block), slot)

  pair_states = functools.partial(_pair_states, cfg, refs, decays)
  pair_gradients = functools.partial(_pair_gradients, cfg, refs, decays)
  common.for_each_pair(cfg, cfg.chunks_per_block - 1, enter_chunk, pair_states)
  common.for_each_pair(cfg, cfg.chunks_per_block, enter_chunk, pair_gradients, reverse=True)

  if initial:

    @pl.when(step == cfg.num_blocks - 1)
    def _():
      refs["dinitial"][0] = dstate_ref[...]


def _pair_states(cfg: Config, refs, decays: Decays, pair):
  """Recomputes the states after the units of a pair from those before them."""
  ks, vs = (
      common.load_pair(cfg, refs[n], dim, pair, decays.keep_ref) for n, dim in (("k", cfg.key_dim), ("v", cfg.value_dim))
  )
  for unit, k, v in zip(pair.units, ks, vs):
    k = decays.end(unit, k.astype(jnp.float32)).astype(cfg.dtype)
    update = dot(cfg, k, v, (cfg.token_axis, cfg.token_axis))
    state = decays.carry(unit, refs["state"][unit.head]) + update
    refs["state"][unit.head] = state
    refs["states"][unit.in_block + 1, unit.head] = state.astype(cfg.dtype)


def _pair_gradients(cfg: Config, refs, decays: Decays, pair):
  """dq, dk, dv of the units of a pair; moves their dS back.

  Products come before what waits for them, so that the matrix unit is kept busy.
  """
  units, key_dim, value_dim, dtype = pair.units, cfg.key_dim, cfg.value_dim, cfg.dtype
  tokens, dims = cfg.token_axis, cfg.dim_axis
  q, k, v, do = (
      common.load_pair(cfg, refs[n], dim, pair, decays.keep_ref)
      for n, dim in (("q", key_dim), ("k", key_dim), ("v", value_dim), ("do", value_dim))
  )
  each = range(len(units))

  scores_t = [dot_tokens(cfg, k[i], q[i], (dims, dims)) for i in each]
  dscores_t = [dot_tokens(cfg, v[i], do[i], (dims, dims)) for i in each]
  dq_inter = [dot_tokens(cfg, do[i], refs["states"][unit.in_block, unit.head], (dims, 1)) for i, unit in enumerate(units)]
  q_start = [decays.start(units[i], q[i].astype(jnp.float32)).astype(dtype) for i in each]
  update = [dot(cfg, q_start[i], do[i], (tokens, tokens)) for i in each]
  dk_inter, dv_inter = [], []
  for i, unit in enumerate(units):
    dstate = refs["dstate"][unit.head]
    dk_inter.append(dot_tokens(cfg, v[i], dstate.astype(dtype), (dims, 1)))
    dv_inter.append(dot_tokens(cfg, k[i], dstate.astype(dtype), (dims, 0)))
    refs["dstate"][unit.head] = decays.carry(unit, dstate) + update[i]
  scores_t = [decays.pairs(units[i], scores_t[i]).astype(dtype) for i in each]
  dscores_t = [decays.pairs(units[i], dscores_t[i]).astype(dtype) for i in each]
  dv = [dot_tokens(cfg, scores_t[i], do[i], (dims, tokens)) + decays.end(units[i], dv_inter[i]) for i in each]
  dk = [dot_tokens(cfg, dscores_t[i], q[i], (dims, tokens)) + decays.end(units[i], dk_inter[i]) for i in each]
  dq = [dot_tokens(cfg, dscores_t[i], k[i], (tokens, tokens)) + decays.start(units[i], dq_inter[i]) for i in each]

  for name, values in (("dq", dq), ("dk", dk), ("dv", dv)):
    common.store_pair(cfg, refs[name], pair, values)


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
  inputs = {"log_decay": (g.reshape(cfg.groups, 1, cfg.heads), specs.log_decay()), "saved": (saved["states"], specs.saved())}
  if dfinal is not None:
    inputs["dfinal"] = dfinal, specs.state()
  if cfg.segmented:
    inputs["tokens"] = saved["tokens"], specs.tokens(saved["tokens"].shape)
  state_shape = (cfg.heads, cfg.key_dim, cfg.value_dim)
  outputs = {}
  if initial:
    shape = (cfg.batch, cfg.all_heads, cfg.key_dim, cfg.value_dim)
    outputs["dinitial"] = shape, jnp.float32, specs.state()

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
