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

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp

from maxtext.kernels.gla import pallas_tpu_common as common
from maxtext.kernels.gla.pallas_tpu_common import Config, Decays, dot


def _kernel(cfg: Config, refs, initial: bool, save: bool, final: bool):
  """One block of tokens. Grid (B, blocks), the blocks of a row in order; the state stays in VMEM in between."""
  state_ref, decays = refs["state"], Decays(cfg, refs, transposed=False)
  block = pl.program_id(1)

  @pl.when(block == 0)
  def _():
    state_ref[...] = refs["initial"][0] if initial else jnp.zeros_like(state_ref)
    decays.enter_row()

  if save:
    refs["saved"][0, 0] = state_ref[...].astype(cfg.dtype)

  common.for_each_pair(
      cfg,
      cfg.chunks_per_block,
      functools.partial(decays.enter_chunk, block),
      functools.partial(_pair, cfg, refs, decays, block),
  )

  if final:

    @pl.when(block == cfg.num_blocks - 1)
    def _():
      refs["final"][0] = state_ref[...]


def _pair(cfg: Config, refs, decays: Decays, block, in_block, pair):
  """Outputs of two heads in one chunk; moves their states on.

  The two go in step, so that the matrix unit has one's products to do while the other's results are on their way.
  """
  state_ref, start = refs["state"], in_block * cfg.chunk
  both = range(2)
  heads = [pair.head(i) for i in both]
  q, k, v = (
      common.load_pair(cfg, refs[n], dim, start, pair, decays.keep_ref)
      for n, dim in (("q", cfg.key_dim), ("k", cfg.key_dim), ("v", cfg.value_dim))
  )
  state = [state_ref[h] for h in heads]
  scores = [dot(cfg, q[i], k[i], (1, 1)) for i in both]
  inter = [dot(cfg, q[i], state[i].astype(cfg.dtype)) for i in both]
  k = [(k[i].astype(jnp.float32) * decays.end(heads[i], cfg.key_dim)).astype(cfg.dtype) for i in both]
  update = [dot(cfg, k[i], v[i], (0, 0)) for i in both]
  scores = [(scores[i] * decays.pairs(heads[i])).astype(cfg.dtype) for i in both]
  intra = [dot(cfg, scores[i], v[i]) for i in both]
  o = [intra[i] + inter[i] * decays.start(heads[i], cfg.value_dim) for i in both]
  for i in both:
    state_ref[heads[i]] = decays.carry(heads[i], block, in_block) * state[i] + update[i]
  common.store_pair(cfg, refs["o"], start, pair, o)


def forward(cfg: Config, q, k, v, rate, initial_state, tokens, ends, *, save: bool, final: bool):
  """Calls the kernel.

  Args:
    cfg: static description.
    q, k, v: [B, T, H, K], [B, T, H, K], [B, T, H, V] of `cfg.dtype`.
    rate: [1, H] float32, see `common.decay_rate`.
    initial_state: [B, H, K, V] float32 or None.
    tokens, ends: positions and runs, see `common.kernel_layout`, or None.
    save: whether to save the state at the start of each block.
    final: whether to return the final state.

  Returns:
    o [B, T, H, V], saved states [B, blocks, H, K, V] of `cfg.dtype` or None, final state [B, H, K, V] float32 or None.
  """
  specs = common.Specs(cfg)
  inputs = {"rate": (rate, specs.rate())}
  if initial_state is not None:
    inputs["initial"] = initial_state, specs.state()
  if cfg.segmented:
    inputs |= {"tokens": (tokens, specs.tokens()), "ends": (ends, specs.ends())}
  state_shape = (cfg.heads, cfg.key_dim, cfg.value_dim)
  outputs = {}
  if save:
    outputs["saved"] = (cfg.batch, cfg.num_blocks) + state_shape, cfg.dtype, specs.saved()
  if final:
    outputs["final"] = (cfg.batch,) + state_shape, jnp.float32, specs.state()

  results = common.call(
      cfg,
      lambda refs: _kernel(cfg, refs, initial_state is not None, save, final),
      specs,
      rows_in={"q": q, "k": k, "v": v},
      inputs=inputs,
      rows_out={"o": cfg.value_dim},
      outputs=outputs,
      scratch={"state": pltpu.VMEM(state_shape, jnp.float32), "decays": Decays.scratch_shapes(cfg)},
      name="gla_forward",
  )
  return results["o"], results.get("saved"), results.get("final")
