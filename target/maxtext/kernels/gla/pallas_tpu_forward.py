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

import jax
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp

from maxtext.kernels.gla import pallas_tpu_common as common
from maxtext.kernels.gla.pallas_tpu_common import Config, Distances, decay, dot, fit_lanes


def _kernel(cfg: Config, refs, initial: bool, save: bool, final: bool):
  """One block of tokens. Grid (B, blocks), the blocks of a row in order; the state stays in VMEM in between."""
  g_ref, q_ref, k_ref, v_ref, o_ref, state_ref = (refs[n] for n in ("g", "q", "k", "v", "o", "state"))
  tokens_ref, ends_ref = refs.get("tokens"), refs.get("ends")
  distances = Distances(*refs["distances"])
  block = pl.program_id(1)

  @pl.when(block == 0)
  def _():
    state_ref[...] = refs["initial"][0] if initial else jnp.zeros_like(state_ref)
    if cfg.uniform:
      common.fill_distances(cfg, distances, tokens_ref, ends_ref, 0, 0, transposed=False)

  if save:
    refs["saved"][0, 0] = state_ref[...].astype(cfg.dtype)

  @pl.loop(0, cfg.chunks_per_block)
  def _(in_block):
    index = block * cfg.chunks_per_block + in_block
    keep_ref = None
    if not cfg.uniform:
      common.fill_distances(cfg, distances, tokens_ref, ends_ref, index, in_block, transposed=False)
      keep_ref = distances.keep
    start = in_block * cfg.chunk
    carry = common.carry_distance(cfg, ends_ref, index)

    def pair_body(pair):
      qs, ks, vs = (common.load_pair(cfg, ref, start, pair, keep_ref) for ref in (q_ref, k_ref, v_ref))
      os = [
          _head(cfg, g_ref[0, pair.head(i)], q, k, v, state_ref.at[pair.head(i)], distances, carry)
          for i, (q, k, v) in enumerate(zip(qs, ks, vs))
      ]
      common.store_pair(cfg, o_ref, start, pair, os)

    common.for_each_pair(cfg, pair_body)

  if final:

    @pl.when(block == cfg.num_blocks - 1)
    def _():
      refs["final"][0] = state_ref[...]


def _head(cfg: Config, g, q, k, v, state_ref, distances: Distances, carry):
  """Output `[chunk, V]` of one head in one chunk; moves its state on."""
  state = state_ref[...]
  scores = dot(cfg, q, k, (1, 1)) * decay(g, distances.pairs[...])
  inter = dot(cfg, q, state.astype(cfg.dtype)) * fit_lanes(decay(g, distances.start[...]), cfg.value_dim)
  intra = dot(cfg, scores.astype(cfg.dtype), v)
  k = (k.astype(jnp.float32) * fit_lanes(decay(g, distances.end[...]), cfg.key_dim)).astype(cfg.dtype)
  state_ref[...] = common.scalar_decay(g, carry) * state + dot(cfg, k, v, (0, 0))
  return cfg.scale * (intra + inter)


def forward(cfg: Config, q, k, v, g, initial_state, tokens, ends, *, save: bool, final: bool):
  """Calls the kernel.

  Args:
    cfg: static description.
    q, k, v: [B, T, H, K], [B, T, H, K], [B, T, H, V] of `cfg.dtype`.
    g: [1, H] float32, `<= MAX_LOG_DECAY`.
    initial_state: [B, H, K, V] float32 or None.
    tokens, ends: positions and runs, see `common.kernel_layout`, or None.
    save: whether to save the state at the start of each block.
    final: whether to return the final state.

  Returns:
    o [B, T, H, V], saved states [B, blocks, H, K, V] of `cfg.dtype` or None, final state [B, H, K, V] float32 or None.
  """
  specs = common.Specs(cfg)
  q, k, v = (common.rows_of(cfg, x) for x in (q, k, v))
  inputs = {"g": g, "q": q, "k": k, "v": v}
  in_specs = [specs.decay(), specs.rows(cfg.key_dim), specs.rows(cfg.key_dim), specs.rows(cfg.value_dim)]
  if initial_state is not None:
    inputs["initial"] = initial_state
    in_specs.append(specs.state())
  if cfg.segmented:
    inputs |= {"tokens": tokens, "ends": ends}
    in_specs += [specs.tokens(), specs.ends()]
  state_shape = (cfg.heads, cfg.key_dim, cfg.value_dim)
  outputs = {"o": ((cfg.batch, cfg.time * cfg.heads, cfg.value_dim), cfg.dtype, specs.rows(cfg.value_dim))}
  if save:
    outputs["saved"] = ((cfg.batch, cfg.num_blocks) + state_shape, cfg.dtype, specs.saved())
  if final:
    outputs["final"] = ((cfg.batch,) + state_shape, jnp.float32, specs.state())

  results = common.call(
      cfg,
      lambda refs: _kernel(cfg, refs, initial_state is not None, save, final),
      inputs,
      in_specs,
      outputs,
      scratch={"state": pltpu.VMEM(state_shape, jnp.float32), "distances": Distances.scratch_shapes(cfg)},
      name="gla_forward",
  )
  return common.rows_of(cfg, results["o"]), results.get("saved"), results.get("final")
