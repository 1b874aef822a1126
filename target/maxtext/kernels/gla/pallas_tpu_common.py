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
"""

import dataclasses
from typing import NamedTuple

import jax
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp

from maxtext.kernels.gla.pallas_tpu_lowering import kernel_or_interpreter, on_tpu
from maxtext.kernels.gla.sharding import shape_with, vary, varying_axes

LANES = 128
# VMEM of one core, in bytes: the least of v5e, v5p, v6e and tpu7x.
LEAST_VMEM = 64 << 20


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
  """Bytes of VMEM of one core; LEAST_VMEM if unknown."""
  info = _tpu_info()
  return info.vmem_capacity_bytes if info else LEAST_VMEM


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
    segmented: there are segment ids, else every token is real and of one run.
    interpret: whether the kernel is being made for the interpreter.
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
  interpret: bool = False

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
  """Heads `2 * (first + offset)` and the next one, of a group of `size` pairs; only `first` may be traced."""

  first: jax.typing.ArrayLike
  offset: int
  size: int

  def head(self, i: int):
    return 2 * (self.first + self.offset) + i


def _rows_view(cfg: Config, ref, start, pair: Pair):
  """Rows of a block `[1, block * H, D]` from the first of chunk `start` and of the pair's group on, just as far as the
  chunk's last row of that group: the dynamic part of the address is a multiple of the tile, the strides follow in it.
  """
  first = start * cfg.heads + 2 * pair.first
  if not cfg.interpret:
    first = pl.multiple_of(first, 16)
  rows = ref.at[0, pl.ds(first, (cfg.chunk - 1) * cfg.heads + 2 * pair.size)]
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


def lanes(x):
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
  """Pairs of heads that are unrolled together: 8 (16 rows, the tile of bfloat16) where there are 16 pairs or more, else all.
  The interpreter gains nothing from it."""
  if cfg.interpret:
    return 1
  pairs = cfg.heads // 2
  return 8 if pairs >= 16 else pairs


def for_each_pair(cfg: Config, chunks: int, enter_chunk, body, reverse: bool = False):
  """Runs `enter_chunk(in_block)` and then `body(in_block, pair)` for all pairs of heads, for the first `chunks` chunks of
  the block. One loop over chunks and groups of pairs, which are unrolled: enough work for the matrix unit in little code.
  """
  group = pair_group(cfg)
  groups, rest = divmod(cfg.heads // 2, group)

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
      body(in_block, Pair(first, j, group))
    if rest:

      @pl.when(first == (groups - 1) * group)
      def _():
        for j in range(rest):
          body(in_block, Pair(groups * group, j, rest))


# ---------------------------------------------------------------------------------------------------------------------
# The call
# ---------------------------------------------------------------------------------------------------------------------


class Specs:
  """Block specs of the operands; `backwards` goes through the blocks of a row from last to first."""

  def __init__(self, cfg: Config, backwards: bool = False):
    self._cfg = cfg
    self._block = (lambda i: cfg.num_blocks - 1 - i) if backwards else lambda i: i

  def rows(self, dim: int) -> pl.BlockSpec:
    """Blocks of `[B, T * H, dim]`."""
    return pl.BlockSpec((1, self._cfg.block * self._cfg.heads, dim), lambda b, i: (b, self._block(i), 0))

  def log_decay(self) -> pl.BlockSpec:
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

  def ids(self) -> pl.BlockSpec:
    """One block's `[B, chunks, 1, chunk]`."""
    return self._of_blocks(self._cfg.chunks_per_block, 1, self._cfg.chunk)

  def tokens(self, shape) -> pl.BlockSpec:
    """One block's tokens, which have this shape."""
    return self._of_blocks(shape[1] // self._cfg.num_blocks, *shape[2:])

  def _of_blocks(self, *shape: int) -> pl.BlockSpec:
    return pl.BlockSpec((1, *shape), lambda b, i: (b, self._block(i), 0, 0))


def lane_widths(dim: int) -> list[int]:
  """Widths of the tiles of lanes that make up `dim`."""
  return [min(LANES, dim - i) for i in range(0, dim, LANES)]


def rows_of(cfg: Config, x):
  """`[B, T, H, D]` to `[B, T * H, D]`, or back."""
  if x.ndim == 4:
    return x.reshape(cfg.batch, cfg.time * cfg.heads, x.shape[-1])
  return x.reshape(cfg.batch, cfg.time, cfg.heads, x.shape[-1])


def ids_of_chunks(cfg: Config, segment_ids):
  """Segment ids `[B, T]` to `[B, chunks, 1, chunk]`; past T there is padding."""
  padded = jnp.pad(segment_ids, ((0, 0), (0, cfg.num_blocks * cfg.block - cfg.time)))
  return padded.reshape(cfg.batch, -1, 1, cfg.chunk)


def call(
    cfg: Config, kernel, specs: Specs, rows_in: dict, inputs: dict, rows_out: dict, outputs: dict, scratch: dict, name: str
):
  """`pl.pallas_call` with refs and results by name.

  Args:
    cfg: static description.
    kernel: called with the config and a dictionary of the refs of inputs, outputs and scratch; `[B, T, H, D]` ones come as
      lists of refs of `[1, block * H, LANES]`, one for each tile of lanes.
    specs: block specs.
    rows_in: arrays [B, T, H, D] by name.
    inputs: other arrays and their block specs by name.
    rows_out: D by name, of results [B, T, H, D] of `cfg.dtype`.
    outputs: of other results, shape, dtype and block spec by name.
    scratch: scratch shapes by name.
    name: name of the kernel.
  """
  dims_in = {n: x.shape[-1] for n, x in rows_in.items()}
  arrays = [*(rows_of(cfg, x) for x in rows_in.values()), *(x for x, _ in inputs.values())]
  in_specs = [*(specs.rows(dim) for dim in dims_in.values()), *(spec for _, spec in inputs.values())]
  rows = cfg.time * cfg.heads
  results = [((cfg.batch, rows, dim), cfg.dtype, specs.rows(dim)) for dim in rows_out.values()]
  results += outputs.values()
  # Under shard_map(check_vma=True): what varies over a mesh axis makes every operand and result vary over it.
  axes = varying_axes(*arrays)
  arrays = [vary(x, axes) for x in arrays]

  # Loads and stores with a stride take one tile of lanes: wider blocks are copied from and to tiles.
  wide = {n: dim for n, dim in (dims_in | rows_out).items() if dim > LANES}
  tiles = [[pltpu.VMEM((1, cfg.block * cfg.heads, w), cfg.dtype) for w in lane_widths(dim)] for dim in wide.values()]

  def run(*arrays, interpret: bool):
    def body(*refs):
      refs = iter(refs)
      blocks = {n: next(refs) for n in dims_in}
      named = {n: next(refs) for n in inputs}
      blocks |= {n: next(refs) for n in rows_out}
      named |= {n: next(refs) for n in [*outputs, *scratch]}
      named |= {n: [ref] for n, ref in blocks.items()} | dict(zip(wide, next(refs)))
      for n in wide.keys() & dims_in.keys():
        _copy_tiles(cfg, blocks[n], named[n], join=False)
      kernel(dataclasses.replace(cfg, interpret=interpret), named)
      for n in wide.keys() & rows_out.keys():
        _copy_tiles(cfg, blocks[n], named[n], join=True)

    if interpret:  # XLA folds constant operands, and does so wrongly for bitcasts of bfloat16 to 32 bit
      arrays = lax.optimization_barrier(arrays)
    return pl.pallas_call(
        body,
        grid=(cfg.batch, cfg.num_blocks),
        in_specs=in_specs,
        out_specs=[spec for _, _, spec in results],
        out_shape=[shape_with(varying_axes(*arrays), shape, dtype) for shape, dtype, _ in results],
        scratch_shapes=[*scratch.values(), tiles],
        compiler_params=compiler_params,
        interpret=interpret,
        name=name,
    )(*arrays)

  compiler_params = pltpu.CompilerParams(
      dimension_semantics=("parallel", "arbitrary"), vmem_limit_bytes=vmem_capacity() * 15 // 16
  )

  @jax.custom_jvp
  def launch(*arrays):
    if on_tpu():
      return run(*arrays, interpret=False)
    return kernel_or_interpreter(run, [(shape, dtype) for shape, dtype, _ in results], *arrays)

  @launch.defjvp
  def _(*_):
    raise NotImplementedError("implementation 'pallas_tpu' can be differentiated only once; 'xla' more often")

  out = iter(launch(*arrays))
  return {n: rows_of(cfg, next(out)) for n in rows_out} | {n: next(out) for n in outputs}


def _copy_tiles(cfg: Config, ref, tiles, join: bool):
  """Copies a block `[1, block * H, D]` to its tiles of lanes, or joins these to it."""
  rows = cfg.chunk * cfg.heads

  @pl.loop(0, cfg.chunks_per_block)
  def _(i):
    at = pl.ds(pl.multiple_of(i * rows, 16), rows)
    for n, tile in enumerate(tiles):
      lanes_of_tile = slice(n * LANES, n * LANES + tile.shape[-1])
      if join:
        ref[0, at, lanes_of_tile] = tile[0, at, :]
      else:
        tile[0, at, :] = ref[0, at, lanes_of_tile]


# Larger blocks save fewer states but take longer to fill and drain the pipeline.
MAX_BLOCK = 512


def make_config(q, v, *, scale: float, chunk_size: int | None, segmented: bool, states: bool) -> Config | None:
  """Chooses chunk and block for arguments `q [B, T, H, K]` (H even) and `v [B, T, H, V]`.

  The chunk is `chunk_size` (rounded up to a multiple of 16) or the size of the matrix unit, or half of that where VMEM is
  short; the block is the largest of 8, 4, 2 or 1 chunks, up to MAX_BLOCK tokens, with which the kernels stay within seven
  eighths of LEAST_VMEM (of no chip's own, so that what is saved has the same shapes on all). None if there is no such
  choice. `states` says that there is an initial or a final state.
  """
  batch, time, heads, key_dim = q.shape
  dtype = jnp.dtype(q.dtype)
  largest = round_up(min(chunk_size or mxu_size(), time), 16)
  sizes = [largest, max(16, largest // 32 * 16)] if chunk_size is None else [largest]
  for chunk in sizes:
    for chunks in (8, 4, 2, 1):
      cfg = Config(batch, time, heads, key_dim, v.shape[-1], dtype, scale, chunk, chunks * chunk, segmented)
      useful = chunks == 1 or cfg.block <= min(MAX_BLOCK, round_up(time, chunk))
      if useful and vmem_bytes(cfg, states) <= LEAST_VMEM * 7 // 8:
        return cfg
  return None


def vmem_bytes(cfg: Config, states: bool) -> int:
  """VMEM of the backward kernel, the larger of the two: blocks of seven operands and of the states (saved, cotangent and
  gradient) in two buffers each, tiles of the wide ones, the states of a block, S, dS, and the decays."""
  rows = cfg.block * cfg.heads * cfg.dtype.itemsize
  operands = 4 * round_up(cfg.key_dim, LANES) + 3 * round_up(cfg.value_dim, LANES)
  state = cfg.heads * round_up(cfg.key_dim, 8) * round_up(cfg.value_dim, LANES)
  all_states = state * ((2 + cfg.chunks_per_block) * cfg.dtype.itemsize + (2 + 4 * states) * 4)
  decays = (cfg.heads if cfg.uniform else 1) * cfg.chunk * (round_up(cfg.chunk, LANES) + 2 * LANES) * 4
  tiles = 4 * _wide(cfg.key_dim) + 3 * _wide(cfg.value_dim)
  return rows * (2 * operands + tiles) + all_states + decays + cfg.chunk * LANES * 4


def _wide(dim: int) -> int:
  """Lanes of the tiles of a block that is wider than one."""
  return round_up(dim, LANES) if dim > LANES else 0
