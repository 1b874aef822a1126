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

"""Forward Pallas TPU kernel of simple gated linear attention.

Per head and chunk of C tokens, with `D[i, j] = exp(g (i - j))` for j <= i, `L[i] = exp(g (i + 1))` and
`R[j] = exp(g (C - 1 - j))` (chunkwise form, https://arxiv.org/abs/2405.21060 and Lightning Attention-2,
https://arxiv.org/abs/2401.04658):

  o = scale * (((q k^T) * D) v + L * (q S))
  S <- exp(g C) S + (R * k)^T v
"""

import functools

from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp

from maxtext.kernels.gla import pallas_tpu_common as common, pallas_tpu_decay as decay
from maxtext.kernels.gla.pallas_tpu_common import Config, dot, dot_tokens
from maxtext.kernels.gla.pallas_tpu_decay import Decays, Tokens


def _kernel(cfg: Config, refs, initial: bool, save: bool, final: bool):
  """One block of tokens. Grid (B, groups, blocks), the blocks of a row in order; the state stays in VMEM in between."""
  state_ref, decays = refs["state"], Decays(cfg, refs, transposed=False)
  block = pl.program_id(2)

  @pl.when(block == 0)
  def _():
    state_ref[...] = refs["initial"][0] if initial else jnp.zeros_like(state_ref)
    decays.enter_row()
    if cfg.segmented:
      refs["carried"][...] = (lax.broadcasted_iota(jnp.int32, refs["carried"].shape, 0) == 1).astype(jnp.int32)

  if save:
    refs["states"][0, 0] = state_ref[...].astype(cfg.dtype)

  def enter_chunk(in_block, slot):
    if not cfg.segmented:
      decays.enter_chunk(decay.plain_tokens(cfg, block * cfg.chunks_per_block + in_block), slot)
      return
    tokens = decay.scan_tokens(refs["ids"][0, in_block], refs["carried"])
    decays.enter_chunk(tokens, slot)
    if save:
      tokens.store(cfg, refs["tokens"], in_block)

  common.for_each_pair(cfg, cfg.chunks_per_block, enter_chunk, functools.partial(_pair, cfg, refs, decays))

  if final:

    @pl.when(block == cfg.num_blocks - 1)
    def _():
      refs["final"][0] = state_ref[...]


def _pair(cfg: Config, refs, decays: Decays, pair):
  """Outputs of the units of a pair; moves their states on."""
  units, tokens, dims = pair.units, cfg.token_axis, cfg.dim_axis
  q, k, v = (
      common.load_pair(cfg, refs[n], dim, pair, decays.keep_ref)
      for n, dim in (("q", cfg.key_dim), ("k", cfg.key_dim), ("v", cfg.value_dim))
  )
  each = range(len(units))
  scores = [dot_tokens(cfg, q[i], k[i], (dims, dims)) for i in each]
  k = [decays.end(units[i], k[i].astype(jnp.float32)).astype(cfg.dtype) for i in each]
  update = [dot(cfg, k[i], v[i], (tokens, tokens)) for i in each]
  inter = []
  for i, unit in enumerate(units):
    state = refs["state"][unit.head]
    inter.append(dot_tokens(cfg, q[i], state.astype(cfg.dtype), (dims, 0)))
    refs["state"][unit.head] = decays.carry(unit, state) + update[i]
  scores = [decays.pairs(units[i], scores[i]).astype(cfg.dtype) for i in each]
  intra = [dot_tokens(cfg, scores[i], v[i], (dims, tokens)) for i in each]
  o = [intra[i] + decays.start(units[i], inter[i]) for i in each]
  common.store_pair(cfg, refs["o"], pair, o)


def forward(cfg: Config, q, k, v, g, initial_state, segment_ids, *, save: bool, final: bool):
  """Calls the kernel.

  Args:
    cfg: static description.
    q, k, v: [B, T, H, K], [B, T, H, K], [B, T, H, V] of `cfg.dtype`.
    g: [H] float32.
    initial_state: [B, H, K, V] float32 or None.
    segment_ids: [B, T] int32 or None.
    save: whether to save what the backward pass needs: the state at the start of each block, and with segments the tokens.
    final: whether to return the final state.

  Returns:
    o [B, T, H, V]; saved, a dictionary of the states `states` [B, blocks, H, K, V] of `cfg.dtype` and with segments
    `tokens`, int32 of `Tokens.saved_shape`; final state [B, H, K, V] float32 or None.
  """
  specs = common.Specs(cfg)
  inputs = {"log_decay": (g.reshape(cfg.groups, 1, cfg.heads), specs.log_decay())}
  if initial_state is not None:
    inputs["initial"] = initial_state, specs.state()
  if cfg.segmented:
    inputs["ids"] = common.ids_of_chunks(cfg, segment_ids), specs.ids()
  state_shape = (cfg.heads, cfg.key_dim, cfg.value_dim)
  all_states = (cfg.all_heads, cfg.key_dim, cfg.value_dim)
  scratch = {"state": pltpu.VMEM(state_shape, jnp.float32), "decays": Decays.scratch_shapes(cfg)}
  if cfg.segmented:
    scratch["carried"] = pltpu.VMEM(decay.carried_shape(cfg), jnp.int32)
  outputs = {}
  if save:
    outputs["states"] = (cfg.batch, cfg.num_blocks) + all_states, cfg.dtype, specs.saved()
    if cfg.segmented:
      shape = Tokens.saved_shape(cfg)
      outputs["tokens"] = shape, jnp.int32, specs.tokens(shape)
  if final:
    outputs["final"] = (cfg.batch,) + all_states, jnp.float32, specs.state()

  results = common.call(
      cfg,
      lambda cfg, refs: _kernel(cfg, refs, initial_state is not None, save, final),
      specs,
      rows_in={"q": q, "k": k, "v": v},
      inputs=inputs,
      rows_out={"o": cfg.value_dim},
      outputs=outputs,
      scratch=scratch,
      name="gla_forward",
  )
  return results["o"], {n: results[n] for n in ("states", "tokens") if n in results}, results.get("final")
