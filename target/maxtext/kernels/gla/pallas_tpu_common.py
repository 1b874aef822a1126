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

"""What the forward and the backward Pallas TPU kernels of simple GLA share.

Layout. `[B, T, H, D]` is read as `[B, T * H, D]`, which is the same bytes on a TPU, in blocks of `block` tokens with all
heads; a block is worked through in chunks of `chunk` tokens. The rows of one head are `H` apart, so they are fetched by
loads with a sublane stride. bfloat16 rows are stored in pairs, one pair in each 32-bit word, so that a load brings two
heads (`2 p` and `2 p + 1`); `load_pair` and `store_pair` separate and merge them.

Decay. All decays inside a chunk are `exp(g * distance)` with distances in tokens that do not depend on the head. They are
written to VMEM once per chunk (once per row of the batch if all chunks are alike) by `fill_distances`; whatever must not
be seen has the distance `FAR`, so that nothing is masked after the exponential.
"""

import dataclasses
from typing import NamedTuple

import jax
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp

LANES = 128
# Distance of what must not be seen. With g <= MAX_LOG_DECAY < 0, exp(g * FAR) is 0, for -inf = g * FAR as well.
FAR = 1e36
# Stands for g = 0: exp(g * distance) is exactly 1 for every real distance, and still 0 for FAR.
MAX_LOG_DECAY = -1e-30
LOG2_E = 1.4426950408889634


def on_tpu() -> bool:
  """Whether the code being traced is for a TPU: the device kind of the abstract mesh if one is set (as when lowering
  for a TPU topology on a CPU host), else that of the default device."""
  return pltpu.is_tpu_device()


def _tpu_info():
  try:
    return pltpu.get_tpu_info()
  except ValueError:  # no TPU (interpret mode), or one that this version of JAX does not know
    return None


def mxu_size() -> int:
  """Rows and columns of the matrix unit; 128 if unknown."""
  info = _tpu_info()
  return info.mxu_column_size if info else 128


def vmem_capacity() -> int:
  """Bytes of VMEM of one core; 64 MiB (the least of v5e, v5p, v6e and tpu7x) if unknown."""
  info = _tpu_info()
  return info.vmem_capacity_bytes if info else 64 << 20


def round_up(x: int, multiple: int) -> int:
  return -(-x // multiple) * multiple


@dataclasses.dataclass(frozen=True)
class Config:
  """Static description of a call.

  Attributes:
    batch, time, heads, key_dim, value_dim: B, T, H (even), K, V.
    dtype: of q, k, v, o and of the saved states.
    scale: factor of the scores.
    chunk: tokens of a chunk, over which attention is quadratic.
    block: tokens of a grid step, a multiple of `chunk`; the training forward saves the state at the start of each block.
    segmented: positions and runs come from a TokenLayout, else every token is real and of one run.
    interpret: interpret the kernel, for hosts without a TPU.
  """

  batch: int
  time: int
  heads: int
  key_dim: int
  value_dim: int
  dtype: jnp.dtype
  scale: float
  chunk: int
  block: int
  segmented: bool
  interpret: bool

  @property
  def num_blocks(self) -> int:
    return pl.cdiv(self.time, self.block)

  @property
  def chunks_per_block(self) -> int:
    return self.block // self.chunk

  @property
  def uniform(self) -> bool:
    """All chunks are whole and of one run: their distances are the same."""
    return not self.segmented and self.time % self.block == 0

  @property
  def packed(self) -> bool:
    return self.dtype == jnp.bfloat16

  @property
  def precision(self):
    return None if self.packed else lax.Precision.HIGHEST


# ---------------------------------------------------------------------------------------------------------------------
# Rows of two heads
# ---------------------------------------------------------------------------------------------------------------------


class Pair(NamedTuple):
  """Heads `2 * (group + offset)` and the next one; `group` may be traced, `offset` is a Python int."""

  group: jax.typing.ArrayLike
  offset: int

  def head(self, i: int):
    return 2 * (self.group + self.offset) + i


def _rows_view(cfg: Config, ref, start, pair: Pair):
  """Rows of a block `[1, block * H, D]` from the first of chunk `start` and group `pair.group` on, just as far as the
  chunk's last row of that group: the dynamic part of the address is a multiple of the tile, the strides follow in it.
  """
  first = pl.multiple_of(start * cfg.heads + 2 * pair.group, 16)
  rows = ref.at[0, pl.ds(first, (cfg.chunk - 1) * cfg.heads + 2 * pair_group(cfg))]
  return rows.bitcast(jnp.uint32) if cfg.packed else rows


def load_pair(cfg: Config, refs, dim: int, start, pair: Pair, keep_ref=None):
  """Tokens `start … start + chunk - 1` of two heads, `[chunk, dim]`, from blocks `[1, block * H, LANES]`, one for each tile
  of lanes (loads with a stride take one tile; the last may be narrower, or have lanes past `dim`).

  Where `keep_ref` (uint32 `[chunk, LANES]`, all ones or all zeros) is given, rows with 0 there come as 0, whatever is stored.
  """
  views = [_rows_view(cfg, ref, start, pair) for ref in refs]
  x = [jnp.concatenate([view[_rows(cfg, pair, i), :] for view in views], axis=1)[:, :dim] for i in range(2)]
  if not cfg.packed:
    if keep_ref is not None:
      keep = fit_lanes(keep_ref[...], dim) != 0
      x = [jnp.where(keep, y, 0) for y in x]
    return x
  if keep_ref is not None:  # words are of even, then of odd tokens
    x = [y & fit_lanes(keep_ref[pl.ds(i, cfg.chunk // 2, stride=2), :], dim) for i, y in enumerate(x)]
  return [pltpu.bitcast(y, cfg.dtype) for y in _swap_halves(*x)]


def store_pair(cfg: Config, refs, start, pair: Pair, pair_values):
  """Inverse of `load_pair`: writes two arrays `[chunk, dim]`, cast to the type of the refs."""
  values = [x.astype(cfg.dtype) for x in pair_values]
  if cfg.packed:
    values = _swap_halves(*(pltpu.bitcast(x, jnp.uint32) for x in values))
  for tile, ref in enumerate(refs):
    view = _rows_view(cfg, ref, start, pair)
    for i, value in enumerate(values):
      view[_rows(cfg, pair, i), :] = value[:, tile * LANES : tile * LANES + ref.shape[-1]]


def _rows(cfg: Config, pair: Pair, i: int):
  """Rows of head i of the pair; of packed data, the words of both heads at the tokens of parity i."""
  if cfg.packed:
    return pl.ds(i * (cfg.heads // 2) + pair.offset, cfg.chunk // 2, stride=cfg.heads)
  return pl.ds(2 * pair.offset + i, cfg.chunk, stride=cfg.heads)


def _swap_halves(a, b):
  """(a.low, a.high), (b.low, b.high) -> (a.low, b.low), (a.high, b.high): tokens x heads to heads x tokens, and back."""
  low, high = jnp.uint32(0xFFFF), jnp.uint32(0xFFFF0000)
  return (a & low) | (b << 16), (a >> 16) | (b & high)


def fit_lanes(x, dim: int):
  """`[n, LANES]` with equal lanes to `[n, dim]`."""
  if dim <= LANES:
    return x[:, :dim]
  return jnp.concatenate([x] * pl.cdiv(dim, LANES), axis=1)[:, :dim]


# ---------------------------------------------------------------------------------------------------------------------
# Decay
# ---------------------------------------------------------------------------------------------------------------------


def decay_rate(g):
  """Log decays `[H]` to the rates `[1, H]` of base 2 that the kernels use, negative for g = 0 too."""
  return (jnp.minimum(g.astype(jnp.float32), MAX_LOG_DECAY) * LOG2_E)[None]


def _exp(rate, distance):
  """`exp(g * distance)` with `rate = g / log(2)`."""
  return jnp.exp2(rate * distance)


def _chunk_ends(cfg: Config, ends_ref, index):
  """Position and run of the last token before chunk `index`, and of its last token."""
  if cfg.segmented:
    return tuple(ends_ref[0, 0, 2 * index + i] for i in range(4))
  return jnp.minimum(index * cfg.chunk, cfg.time), 1, jnp.minimum((index + 1) * cfg.chunk, cfg.time), 1


class Decays:
  """The decays in one chunk.

  `pairs(head)` [chunk, chunk]: from token to token, times `scale`, column by row or (transposed) row by column.
  `start(head, dim)` [chunk, dim]: from the state before the chunk to a token, times `scale`.
  `end(head, dim)` [chunk, dim]: from a token to the state after the chunk.
  `carry(head, block, in_block)` [1, 1]: from the state before the chunk to the state after it.

  VMEM holds the distances; where the chunks of a call are all alike (`cfg.uniform`), the decays themselves, by head.
  """

  def __init__(self, cfg: Config, refs: dict, transposed: bool):
    self._cfg, self._transposed = cfg, transposed
    self._rate_ref, self._tokens_ref, self._ends_ref = refs["rate"], refs.get("tokens"), refs.get("ends")
    self._pairs_ref, self._start_ref, self._end_ref, keep_ref = refs["decays"]
    self.keep_ref = None if cfg.uniform else keep_ref

  @staticmethod
  def scratch_shapes(cfg: Config) -> list:
    lead = (cfg.heads, cfg.chunk) if cfg.uniform else (cfg.chunk,)
    shapes = [pltpu.VMEM(lead + (n,), jnp.float32) for n in (cfg.chunk, LANES, LANES)]
    return [*shapes, pltpu.VMEM((cfg.chunk, LANES), jnp.uint32)]

  def rate(self, head):
    return self._rate_ref[0, head]

  def pairs(self, head):
    return self._pairs_ref[head] if self._cfg.uniform else self._cfg.scale * _exp(self.rate(head), self._pairs_ref[...])

  def start(self, head, dim: int):
    x = self._start_ref[head] if self._cfg.uniform else self._cfg.scale * _exp(self.rate(head), self._start_ref[...])
    return fit_lanes(x, dim)

  def end(self, head, dim: int):
    return fit_lanes(self._end_ref[head] if self._cfg.uniform else _exp(self.rate(head), self._end_ref[...]), dim)

  def carry(self, head, block, in_block):
    cfg = self._cfg
    distance = jnp.float32(cfg.chunk)
    if not cfg.uniform:
      position0, run0, position1, run1 = _chunk_ends(cfg, self._ends_ref, block * cfg.chunks_per_block + in_block)
      distance = jnp.where(run0 == run1, (position1 - position0).astype(jnp.float32), FAR)
    return _exp(jnp.full((1, 1), self.rate(head), jnp.float32), distance)

  def enter_row(self):
    """To be called before the first chunk of a row."""
    if not self._cfg.uniform:
      return
    pairs, start, end, _ = self._distances(0, 0)

    @pl.loop(0, self._cfg.heads)
    def _(head):
      rate = self.rate(head)
      self._pairs_ref[head] = self._cfg.scale * _exp(rate, pairs)
      self._start_ref[head] = self._cfg.scale * _exp(rate, start)
      self._end_ref[head] = _exp(rate, end)

  def enter_chunk(self, block, in_block):
    """To be called before the work on chunk `in_block` of a block."""
    cfg = self._cfg
    index = block * cfg.chunks_per_block + in_block
    self._pairs_ref[...], self._start_ref[...], self._end_ref[...], self.keep_ref[...] = self._distances(index, in_block)

  def _distances(self, index, in_block):
    """Distances in chunk `index` of the row, chunk `in_block` of its block.

    Returns:
      pairs [chunk, chunk], start [chunk, LANES] and end [chunk, LANES], float32: FAR where the two ends are not of one run,
      the token that acts comes after the other, or a token is not real; keep [chunk, LANES] uint32: all ones for real
      tokens, 0 for others.
    """
    cfg, c = self._cfg, self._cfg.chunk
    row = lax.broadcasted_iota(jnp.int32, (c, c), 1)
    col = lax.broadcasted_iota(jnp.int32, (c, c), 0)
    if cfg.segmented:
      row_position = jnp.broadcast_to(self._tokens_ref[0, in_block, 0:1, :], (c, c))
      row_run = jnp.broadcast_to(self._tokens_ref[0, in_block, 1:2, :], (c, c))
      col_position, col_run = row_position.T, row_run.T
    else:
      row_position, col_position = (jnp.minimum(index * c + x + 1, cfg.time) for x in (row, col))
      row_run, col_run = (jnp.where(index * c + x < cfg.time, 1, -1) for x in (row, col))
    position0, run0, position1, run1 = _chunk_ends(cfg, self._ends_ref, index)

    def distance(seen, tokens):
      return jnp.where(seen, tokens.astype(jnp.float32), FAR)

    between, order = row_position - col_position, row >= col
    if not self._transposed:
      between, order = -between, row <= col
    pairs = distance((row_run == col_run) & (col_run > 0) & order, between)
    col_position, col_run = _lanes(col_position), _lanes(col_run)
    start = distance(col_run == run0, col_position - position0)
    end = distance(col_run == run1, position1 - col_position)
    return pairs, start, end, jnp.where(col_run > 0, jnp.uint32(0xFFFFFFFF), jnp.uint32(0))


def _lanes(x):
  """`[n, m]` with equal columns to `[n, LANES]`."""
  return fit_lanes(x, LANES) if x.shape[1] >= LANES else jnp.broadcast_to(x[:, :1], (x.shape[0], LANES))


# ---------------------------------------------------------------------------------------------------------------------
# Products of matrices and loops
# ---------------------------------------------------------------------------------------------------------------------


def dot(cfg: Config, a, b, contract=(1, 0)):
  """Product with float32 accumulation over axis `contract[0]` of a and `contract[1]` of b."""
  dims = (((contract[0],), (contract[1],)), ((), ()))
  return lax.dot_general(a, b, dims, precision=cfg.precision, preferred_element_type=jnp.float32)


def pair_group(cfg: Config) -> int:
  """Pairs of heads that are unrolled together: 8 (16 rows, the tile of bfloat16), or all where that does not divide."""
  pairs = cfg.heads // 2
  return 8 if pairs % 8 == 0 else pairs


def for_each_pair(cfg: Config, chunks: int, enter_chunk, body, reverse: bool = False):
  """Runs `enter_chunk(in_block)` and then `body(in_block, pair)` for all pairs of heads, for the first `chunks` chunks of
  the block. One loop over chunks and groups of pairs, which are unrolled: enough work for the matrix unit in little code.
  """
  group = pair_group(cfg)
  groups = cfg.heads // 2 // group

  @pl.loop(0, chunks * groups)
  def _(i):
    in_block, first = (i, 0) if groups == 1 else (i // groups, (i % groups) * group)
    if reverse:
      in_block = chunks - 1 - in_block
    if not cfg.uniform:
      if groups == 1:
        enter_chunk(in_block)
      else:
        pl.when(first == 0)(lambda: enter_chunk(in_block))
    for j in range(group):
      body(in_block, Pair(first, j))


# ---------------------------------------------------------------------------------------------------------------------
# The call
# ---------------------------------------------------------------------------------------------------------------------


class Specs:
  """Block specs of the operands; `backwards` goes through the blocks of a row from last to first."""

  def __init__(self, cfg: Config, backwards: bool = False):
    self._cfg = cfg
    self._block = (lambda i: cfg.num_blocks - 1 - i) if backwards else lambda i: i

  def rows(self, dim: int, tile: int = 0) -> pl.BlockSpec:
    """Blocks of one tile of lanes of `[B, T * H, dim]`."""
    shape = (1, self._cfg.block * self._cfg.heads, min(dim, LANES))
    return pl.BlockSpec(shape, lambda b, i: (b, self._block(i), tile))

  def rate(self) -> pl.BlockSpec:
    """`[1, H]`, read as scalars."""
    return pl.BlockSpec((1, self._cfg.heads), lambda b, i: (0, 0), memory_space=pltpu.SMEM)

  def state(self) -> pl.BlockSpec:
    """One row's `[B, H, K, V]`."""
    cfg = self._cfg
    return pl.BlockSpec((1, cfg.heads, cfg.key_dim, cfg.value_dim), lambda b, i: (b, 0, 0, 0))

  def saved(self) -> pl.BlockSpec:
    """One block's `[B, blocks, H, K, V]`."""
    cfg = self._cfg
    return pl.BlockSpec((1, 1, cfg.heads, cfg.key_dim, cfg.value_dim), lambda b, i: (b, self._block(i), 0, 0, 0))

  def tokens(self) -> pl.BlockSpec:
    """One block's `[B, chunks, 2, chunk]`."""
    cfg = self._cfg
    return pl.BlockSpec((1, cfg.chunks_per_block, 2, cfg.chunk), lambda b, i: (b, self._block(i), 0, 0))

  def ends(self) -> pl.BlockSpec:
    """One row's `[B, 1, 2 * (chunks + 1)]`, read as scalars."""
    ends = 2 * (self._cfg.num_blocks * self._cfg.chunks_per_block + 1)
    return pl.BlockSpec((1, 1, ends), lambda b, i: (b, 0, 0), memory_space=pltpu.SMEM)


def lane_widths(dim: int) -> list[int]:
  """Widths of the tiles of lanes that make up `dim`."""
  return [min(LANES, dim - i) for i in range(0, dim, LANES)]


def rows_of(cfg: Config, x):
  """`[B, T, H, D]` to `[B, T * H, D]`, or back."""
  if x.ndim == 4:
    return x.reshape(cfg.batch, cfg.time * cfg.heads, x.shape[-1])
  return x.reshape(cfg.batch, cfg.time, cfg.heads, x.shape[-1])


def kernel_layout(cfg: Config, layout):
  """Brings a TokenLayout into the form that the kernels read.

  Tokens past T are padding at the position and in the run of the last token.

  Args:
    cfg: static description.
    layout: TokenLayout with position and run, int32 [B, T].

  Returns:
    tokens: int32 [B, chunks, 2, chunk], position and run (negative for padding).
    ends: int32 [B, 1, 2 * (chunks + 1)], position and run at the start of the row, then at the end of each chunk.
  """
  chunks = cfg.num_blocks * cfg.chunks_per_block
  pad = ((0, 0), (0, chunks * cfg.chunk - cfg.time))
  position = jnp.pad(layout.position, pad, mode="edge")
  run = jnp.where(jnp.arange(position.shape[1]) < cfg.time, jnp.pad(layout.run, pad), -jnp.abs(layout.run[:, -1:]))
  tokens = jnp.stack([position, run], axis=1).reshape(cfg.batch, 2, chunks, cfg.chunk).swapaxes(1, 2)
  ends = jnp.abs(tokens[:, :, :, -1])
  first = jnp.broadcast_to(jnp.array([0, 1], jnp.int32), (cfg.batch, 1, 2))
  return tokens, jnp.concatenate([first, ends], axis=1).reshape(cfg.batch, 1, -1)


def call(cfg: Config, kernel, specs: Specs, rows_in: dict, inputs: dict, rows_out: dict, outputs: dict, scratch: dict, name: str):
  """`pl.pallas_call` with refs and results by name.

  Args:
    cfg: static description.
    kernel: called with a dictionary of the refs of inputs, outputs and scratch; `[B, T, H, D]` ones come as lists of refs
      of `[1, block * H, LANES]`, one for each tile of lanes.
    specs: block specs.
    rows_in: arrays [B, T, H, D] by name.
    inputs: other arrays and their block specs by name.
    rows_out: D by name, of results [B, T, H, D] of `cfg.dtype`.
    outputs: of other results, shape, dtype and block spec by name.
    scratch: scratch shapes by name.
    name: name of the kernel.
  """
  tiles_in = {n: lane_widths(x.shape[-1]) for n, x in rows_in.items()}
  tiles_out = {n: lane_widths(dim) for n, dim in rows_out.items()}
  arrays = [rows_of(cfg, rows_in[n]) for n, widths in tiles_in.items() for _ in widths] + [x for x, _ in inputs.values()]
  in_specs = [specs.rows(rows_in[n].shape[-1], i) for n, widths in tiles_in.items() for i in range(len(widths))]
  in_specs += [spec for _, spec in inputs.values()]
  rows = cfg.time * cfg.heads
  results = [((cfg.batch, rows, w), cfg.dtype, specs.rows(w)) for widths in tiles_out.values() for w in widths]
  results += outputs.values()
  if cfg.interpret:  # keeps XLA from folding constant operands, which it does wrongly for bitcasts of bfloat16 to 32 bit
    arrays = lax.optimization_barrier(arrays)
  # Under shard_map(check_vma=True): what varies over a mesh axis makes every operand and result vary over it.
  varying = frozenset().union(*(jax.typeof(x).manual_axis_type.varying for x in arrays))
  arrays = [lax.pcast(x, tuple(varying - jax.typeof(x).manual_axis_type.varying), to="varying") for x in arrays]
  axis_type = jax.sharding.ManualAxisType(varying=varying)

  def take(tiles, refs):
    return {n: [next(refs) for _ in widths] for n, widths in tiles.items()}

  def body(*refs):
    refs = iter(refs)
    named = take(tiles_in, refs) | {n: next(refs) for n in inputs}
    named |= take(tiles_out, refs) | {n: next(refs) for n in [*outputs, *scratch]}
    kernel(named)

  out = iter(
      pl.pallas_call(
          body,
          grid=(cfg.batch, cfg.num_blocks),
          in_specs=in_specs,
          out_specs=[spec for _, _, spec in results],
          out_shape=[jax.ShapeDtypeStruct(shape, dtype, manual_axis_type=axis_type) for shape, dtype, _ in results],
          scratch_shapes=list(scratch.values()),
          compiler_params=pltpu.CompilerParams(
              dimension_semantics=("parallel", "arbitrary"), vmem_limit_bytes=vmem_capacity() * 15 // 16
          ),
          interpret=cfg.interpret,
          name=name,
      )(*arrays)
  )
  named = {n: rows_of(cfg, jnp.concatenate(x, axis=-1) if len(x) > 1 else x[0]) for n, x in take(tiles_out, out).items()}
  return named | {n: next(out) for n in outputs}


# Larger blocks save fewer states but take longer to fill and drain the pipeline.
MAX_BLOCK = 512


def make_config(q, v, *, scale: float, chunk_size: int | None, segmented: bool, states: bool, interpret: bool) -> Config | None:
  """Chooses chunk and block for arguments `q [B, T, H, K]` (H even) and `v [B, T, H, V]`.

  The chunk is `chunk_size` or the size of the matrix unit, or half of that where VMEM is short; the block is the largest
  of 8, 4, 2 or 1 chunks, up to MAX_BLOCK tokens, with which the kernels stay within seven eighths of VMEM. None if there
  is no such choice. `states` says that there is an initial or a final state.
  """
  batch, time, heads, key_dim = q.shape
  dtype = jnp.dtype(q.dtype)
  largest = min(chunk_size or mxu_size(), round_up(time, 16))
  sizes = [largest, max(16, largest // 32 * 16)] if chunk_size is None else [largest]
  for chunk in sizes:
    for chunks in (8, 4, 2, 1):
      cfg = Config(batch, time, heads, key_dim, v.shape[-1], dtype, scale, chunk, chunks * chunk, segmented, interpret)
      useful = chunks == 1 or cfg.block <= min(MAX_BLOCK, round_up(time, chunk))
      if useful and vmem_bytes(cfg, states) <= vmem_capacity() * 7 // 8:
        return cfg
  return None


def vmem_bytes(cfg: Config, states: bool) -> int:
  """VMEM of the backward kernel, the larger of the two: blocks of seven operands and of the states (saved, cotangent and
  gradient) in two buffers each, the states of a block, S, dS, and the decays."""
  rows = cfg.block * cfg.heads * cfg.dtype.itemsize
  operands = 4 * round_up(cfg.key_dim, LANES) + 3 * round_up(cfg.value_dim, LANES)
  state = cfg.heads * round_up(cfg.key_dim, 8) * round_up(cfg.value_dim, LANES)
  all_states = state * ((2 + cfg.chunks_per_block) * cfg.dtype.itemsize + (2 + 4 * states) * 4)
  decays = (cfg.heads if cfg.uniform else 1) * cfg.chunk * (round_up(cfg.chunk, LANES) + 2 * LANES) * 4
  return 2 * rows * operands + all_states + decays + cfg.chunk * LANES * 4
