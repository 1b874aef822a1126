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

Layout. A TPU's arrays are stored in tiles of 8 rows and 128 lanes, and XLA orders the axes of `[B, T, H, D]` such that
filling up the tiles takes the least memory. An operand is read in that order (`View`), for which XLA has nothing to copy,
in blocks of `block` tokens and `heads` heads; a block is worked through in chunks of `chunk` tokens.
"""

import dataclasses
import enum
import functools
import itertools
import math
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


class View(enum.Enum):
  """How the kernels read `[B, T, H, D]`.

  STRIDED: `[B, T * H, D]`. The rows of one head are `H` apart, so they are fetched by loads with a sublane stride. bfloat16
    rows are stored in pairs, one pair in each 32-bit word, so that a load brings two heads (`2 p` and `2 p + 1`), which
    `load_pair` and `store_pair` separate and merge. H is even.
  ROWS: `[B, H, T, D]`.
  LANES: `[B, H, D, T]`. Whatever is `[tokens, D]` in the other views is transposed.
  """

  STRIDED = enum.auto()
  ROWS = enum.auto()
  LANES = enum.auto()


def choose_view(time: int, heads: int, dims: tuple[int, ...]) -> View:
  """The view of `[B, T, H, D]`, D each of `dims`, that takes the least memory; of equal ones the first. Like XLA's choice
  for arguments of a program, which takes other orders of axes for odd H and very small T."""
  rows = {View.ROWS: round_up(time, 8) * heads}
  if heads % 2 == 0:
    rows = {View.STRIDED: time * (heads if heads in (2, 4) else round_up(heads, 8))} | rows
  size = {view: n * sum(round_up(dim, LANES) for dim in dims) for view, n in rows.items()}
  size[View.LANES] = round_up(time, LANES) * heads * sum(round_up(dim, 8) for dim in dims)
  return min(size, key=size.get)


@dataclasses.dataclass(frozen=True)
class Config:
  """Static description of a call.

  Attributes:
    view: how q, k, v and o are read and written.
    batch, time, key_dim, value_dim: B, T, K, V.
    heads: heads of a grid step.
    groups: grid steps over the heads.
    dtype: of q, k, v, o and of the saved states.
    scale: factor of the scores.
    chunk: tokens of a chunk, over which attention is quadratic.
    block: tokens of a grid step, a multiple of `chunk`; the training forward saves the state at the start of each block.
    segmented: there are segment ids, else every token is real and of one run.
    interpret: whether the kernel is being made for the interpreter.
  """

  view: View
  batch: int
  time: int
  heads: int
  groups: int
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
  def all_heads(self) -> int:
    return self.groups * self.heads

  @property
  def token_axis(self) -> int:
    """The axis of tokens in a head's rows, and in what is computed for them; the other one is that of K or V."""
    return 1 if self.view is View.LANES else 0

  @property
  def dim_axis(self) -> int:
    return 1 - self.token_axis

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
# Loads and stores of two heads
# ---------------------------------------------------------------------------------------------------------------------


class Unit(NamedTuple):
  """One head in one chunk of the block.

  Attributes:
    in_block: the chunk.
    head: the head, of those of the grid step.
    slot: where the distances of the chunk are, of those that are held at once. See `Decays`.
  """

  in_block: jax.typing.ArrayLike
  head: jax.typing.ArrayLike
  slot: int = 0


class Pair(NamedTuple):
  """Units that are worked through in step, so that the matrix unit has one's products to do while the other's results are
  on their way: two heads of a chunk, or, where a grid step has one head, two chunks in the order of the work. Sometimes one.

  Attributes:
    units: these.
    first, offset, size: in the view STRIDED, the heads are `2 * (first + offset)` and the next one, of a group of `size`
      pairs; only `first` may be traced.
  """

  units: list[Unit]
  first: jax.typing.ArrayLike = 0
  offset: int = 0
  size: int = 1


def _rows_view(cfg: Config, ref, pair: Pair):
  """Rows of a block `[1, block * H, D]` from the first of the pair's chunk and of its group on, just as far as the chunk's
  last row of that group: the dynamic part of the address is a multiple of the tile, the strides follow in it.
  """
  first = pair.units[0].in_block * cfg.chunk * cfg.heads + 2 * pair.first
  if not cfg.interpret:
    first = pl.multiple_of(first, 16 if cfg.packed else 8)
  rows = ref.at[0, pl.ds(first, (cfg.chunk - 1) * cfg.heads + 2 * pair.size)]
  return rows.bitcast(jnp.uint32) if cfg.packed else rows


def load_pair(cfg: Config, refs, dim: int, pair: Pair, keep_ref=None):
  """Loads the rows of a pair's units.

  Args:
    cfg: static description.
    refs: to the block. In the view STRIDED `[1, block * H, LANES]`, one for each tile of lanes (loads with a stride take one
      tile; the last may be narrower).
    dim: K or V.
    pair: the units.
    keep_ref: None, or of each slot uint32, all ones or all zeros for each token, `[slots, chunk, LANES]` or in the view
      LANES `[slots, 1, chunk]`: where there is 0, the values come as 0, whatever is stored.

  Returns:
    A list of `[chunk, dim]`, in the view LANES of `[dim, chunk]`.
  """
  if cfg.view is not View.STRIDED:
    return [_keep(cfg, refs[0][_tokens_of(cfg, unit)], keep_ref, unit.slot) for unit in pair.units]
  views = [_rows_view(cfg, ref, pair) for ref in refs]
  x = [jnp.concatenate([view[_rows(cfg, pair, i), :] for view in views], axis=1)[:, :dim] for i in range(2)]
  if not cfg.packed:
    if keep_ref is not None:
      keep = fit_lanes(keep_ref[0], dim) != 0
      x = [jnp.where(keep, y, 0) for y in x]
    return x
  if keep_ref is not None:  # words are of even, then of odd tokens
    x = [y & fit_lanes(keep_ref.at[0][pl.ds(i, cfg.chunk // 2, stride=2), :], dim) for i, y in enumerate(x)]
  return [pltpu.bitcast(y, cfg.dtype) for y in _swap_halves(*x)]


def store_pair(cfg: Config, refs, pair: Pair, pair_values):
  """Inverse of `load_pair`: writes what that gives, cast to the type of the refs."""
  if cfg.view is not View.STRIDED:
    for unit, value in zip(pair.units, pair_values):
      refs[0][_tokens_of(cfg, unit)] = value.astype(cfg.dtype)
    return
  values = [x.astype(cfg.dtype) for x in pair_values]
  if cfg.packed:
    values = _swap_halves(*(pltpu.bitcast(x, jnp.uint32) for x in values))
  for tile, ref in enumerate(refs):
    view = _rows_view(cfg, ref, pair)
    for i, value in enumerate(values):
      view[_rows(cfg, pair, i), :] = value[:, tile * LANES : tile * LANES + ref.shape[-1]]


def _tokens_of(cfg: Config, unit: Unit):
  """Index of the tokens of a unit in a block of the view ROWS or LANES."""
  start = unit.in_block * cfg.chunk
  tokens = pl.ds(start if cfg.interpret else pl.multiple_of(start, math.gcd(cfg.chunk, LANES)), cfg.chunk)
  return (0, unit.head, tokens, slice(None)) if cfg.view is View.ROWS else (0, unit.head, slice(None), tokens)


def _keep(cfg: Config, x, keep_ref, slot: int):
  """`x` of the view ROWS or LANES with 0 where `keep_ref` has it."""
  if keep_ref is None:
    return x
  if cfg.view is View.LANES or not cfg.packed:
    keep = keep_ref[slot] if cfg.view is View.LANES else fit_lanes(keep_ref[slot], x.shape[1])
    return jnp.where(keep != 0, x, jnp.zeros_like(x))
  even, odd = (fit_lanes(keep_ref.at[slot][pl.ds(i, cfg.chunk // 2, stride=2), :], x.shape[1]) for i in range(2))
  words = pltpu.bitcast(x, jnp.uint32) & _swap_halves(even, odd)[0]
  return pltpu.bitcast(words, cfg.dtype)


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


def dot_tokens(cfg: Config, a, b, contract):
  """Like `dot`, where axis 0 of the result is that of tokens; in the view LANES transposed."""
  return dot(cfg, b, a, contract[::-1]) if cfg.view is View.LANES else dot(cfg, a, b, contract)


def pair_group(cfg: Config) -> int:
  """Pairs that are unrolled together: up to 8 of heads (16 rows, the tile of bfloat16; 4 of float32), or 4 of chunks. The
  interpreter gains nothing from it."""
  if cfg.interpret:
    return 1
  return min(4 if cfg.heads == 1 else cfg.heads // 2, 8 if cfg.packed else 4)


def for_each_pair(cfg: Config, chunks: int, enter_chunk, body, reverse: bool = False):
  """Runs `enter_chunk(in_block, slot)` and then `body(pair)` for all heads, for the first `chunks` chunks of the block. The
  loop is unrolled as far as `pair_group` says: enough work for the matrix unit in little code.
  """
  if cfg.heads == 1:
    _for_each_pair_of_chunks(cfg, chunks, enter_chunk, body, reverse)
    return
  group = pair_group(cfg)
  groups, rest = divmod(cfg.heads // 2, group)
  steps = max(groups, 1)

  @pl.loop(0, chunks * steps)
  def _(i):
    in_block, step = (i, 0) if steps == 1 else (i // steps, i % steps)
    if reverse:
      in_block = chunks - 1 - in_block

    def once(at, run):
      if steps == 1:
        run()
      else:
        pl.when(step == at)(run)

    def run_pairs(first, count):
      for j in range(count):
        head = 2 * (first + j)
        body(Pair([Unit(in_block, head), Unit(in_block, head + 1)], first, j, count))

    def run_rest():
      run_pairs(groups * group, rest)
      if cfg.heads % 2:
        body(Pair([Unit(in_block, cfg.heads - 1)]))

    if not cfg.uniform:
      once(0, lambda: enter_chunk(in_block, 0))
    run_pairs(step * group, group)
    if rest or cfg.heads % 2:
      once(steps - 1, run_rest)


def _for_each_pair_of_chunks(cfg: Config, chunks: int, enter_chunk, body, reverse: bool):
  """`for_each_pair` of one head."""
  unrolled = min(chunks, 2 * pair_group(cfg))

  def run(first, count):
    for j in range(0, count, 2):
      units = [Unit(first + i, 0, i - j) for i in range(j, min(j + 2, count))]
      if reverse:
        units = [unit._replace(in_block=chunks - 1 - unit.in_block) for unit in units]
      if not cfg.uniform:
        for unit in units:
          enter_chunk(unit.in_block, unit.slot)
      body(Pair(units))

  if unrolled:

    @pl.loop(0, chunks // unrolled)
    def _(i):
      run(i * unrolled, unrolled)

    run(chunks // unrolled * unrolled, chunks % unrolled)


# ---------------------------------------------------------------------------------------------------------------------
# The call
# ---------------------------------------------------------------------------------------------------------------------


class Specs:
  """Block specs of the operands; `backwards` goes through the blocks of a row from last to first."""

  def __init__(self, cfg: Config, backwards: bool = False):
    self._cfg = cfg
    self._block = (lambda i: cfg.num_blocks - 1 - i) if backwards else lambda i: i

  def operand(self, dim: int) -> pl.BlockSpec:
    """Blocks of what `to_view` gives for `[B, T, H, dim]`."""
    cfg = self._cfg
    match cfg.view:
      case View.STRIDED:
        return pl.BlockSpec((1, cfg.block * cfg.heads, dim), lambda b, h, i: (b, self._block(i), 0))
      case View.ROWS:
        return pl.BlockSpec((1, cfg.heads, cfg.block, dim), lambda b, h, i: (b, h, self._block(i), 0))
      case View.LANES:
        return pl.BlockSpec((1, cfg.heads, dim, cfg.block), lambda b, h, i: (b, h, 0, self._block(i)))

  def log_decay(self) -> pl.BlockSpec:
    """`[groups, 1, heads]`, read as scalars."""
    return pl.BlockSpec((1, 1, self._cfg.heads), lambda b, h, i: (h, 0, 0), memory_space=pltpu.SMEM)

  def state(self) -> pl.BlockSpec:
    """One row's `[B, H, K, V]`."""
    cfg = self._cfg
    return pl.BlockSpec((1, cfg.heads, cfg.key_dim, cfg.value_dim), lambda b, h, i: (b, h, 0, 0))

  def saved(self) -> pl.BlockSpec:
    """One block's `[B, blocks, H, K, V]`."""
    cfg = self._cfg
    return pl.BlockSpec((1, 1, cfg.heads, cfg.key_dim, cfg.value_dim), lambda b, h, i: (b, self._block(i), h, 0, 0))

  def ids(self) -> pl.BlockSpec:
    """One block's `[B, chunks, 1, chunk]`."""
    return self._of_blocks(self._cfg.chunks_per_block, 1, self._cfg.chunk)

  def tokens(self, shape) -> pl.BlockSpec:
    """One block's tokens, which have this shape."""
    return self._of_blocks(shape[1] // self._cfg.num_blocks, *shape[2:])

  def _of_blocks(self, *shape: int) -> pl.BlockSpec:
    return pl.BlockSpec((1, *shape), lambda b, h, i: (b, self._block(i), 0, 0))


def lane_widths(dim: int) -> list[int]:
  """Widths of the tiles of lanes that make up `dim`."""
  return [min(LANES, dim - i) for i in range(0, dim, LANES)]


def to_view(cfg: Config, x):
  """`[B, T, H, D]` as the kernels read it."""
  match cfg.view:
    case View.STRIDED:
      return x.reshape(cfg.batch, cfg.time * cfg.heads, x.shape[-1])
    case View.ROWS:
      return x.transpose(0, 2, 1, 3)
    case View.LANES:
      return x.transpose(0, 2, 3, 1)


def from_view(cfg: Config, x):
  """Inverse of `to_view`."""
  match cfg.view:
    case View.STRIDED:
      return x.reshape(cfg.batch, cfg.time, cfg.heads, x.shape[-1])
    case View.ROWS:
      return x.transpose(0, 2, 1, 3)
    case View.LANES:
      return x.transpose(0, 3, 1, 2)


def shape_of_view(cfg: Config, dim: int) -> tuple[int, ...]:
  """The shape of what `to_view` gives for `[B, T, H, dim]`."""
  shape = (cfg.batch, cfg.time, cfg.all_heads, dim)
  return jax.eval_shape(lambda x: to_view(cfg, x), jax.ShapeDtypeStruct(shape, cfg.dtype)).shape


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
      lists of refs, as `load_pair` takes them.
    specs: block specs.
    rows_in: arrays [B, T, H, D] by name.
    inputs: other arrays and their block specs by name.
    rows_out: D by name, of results [B, T, H, D] of `cfg.dtype`.
    outputs: of other results, shape, dtype and block spec by name.
    scratch: scratch shapes by name.
    name: name of the kernel.
  """
  dims_in = {n: x.shape[-1] for n, x in rows_in.items()}
  arrays = [*(to_view(cfg, x) for x in rows_in.values()), *(x for x, _ in inputs.values())]
  in_specs = [*(specs.operand(dim) for dim in dims_in.values()), *(spec for _, spec in inputs.values())]
  results = [(shape_of_view(cfg, dim), cfg.dtype, specs.operand(dim)) for dim in rows_out.values()]
  results += outputs.values()
  # Under shard_map(check_vma=True): what varies over a mesh axis makes every operand and result vary over it.
  axes = varying_axes(*arrays)
  arrays = [vary(x, axes) for x in arrays]

  # Loads and stores with a stride take one tile of lanes: wider blocks are copied from and to tiles.
  wide = {n: dim for n, dim in (dims_in | rows_out).items() if dim > LANES and cfg.view is View.STRIDED}
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
        grid=(cfg.batch, cfg.groups, cfg.num_blocks),
        in_specs=in_specs,
        out_specs=[spec for _, _, spec in results],
        out_shape=[shape_with(varying_axes(*arrays), shape, dtype) for shape, dtype, _ in results],
        scratch_shapes=[*scratch.values(), tiles],
        compiler_params=compiler_params,
        interpret=interpret,
        name=name,
    )(*arrays)

  compiler_params = pltpu.CompilerParams(
      dimension_semantics=("parallel", "parallel", "arbitrary"), vmem_limit_bytes=vmem_capacity() * 15 // 16
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
  return {n: from_view(cfg, next(out)) for n in rows_out} | {n: next(out) for n in outputs}


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
MAX_BLOCK_OF_ONE_HEAD = 2048


def make_config(
    q, v, *, scale: float, chunk_size: int | None, segmented: bool, states: bool, heads_major: bool = False
) -> Config | None:
  """Chooses view, chunk, block and heads of a grid step for arguments `q [B, T, H, K]` and `v [B, T, H, V]`.

  The chunk is `chunk_size` or the size of the matrix unit, or half of that where VMEM is short, rounded up to a multiple of
  16, in the view LANES of LANES. The block is the largest of 32, 16, 8, 4, 2 or 1 chunks, up to MAX_BLOCK tokens, with which
  the kernels stay within seven eighths of LEAST_VMEM (of no chip's own, so that what is saved has the same shapes on all).

  A grid step has all heads, in the view LANES as many as fit. In the view ROWS it has one, whose tokens lie together in HBM,
  and up to MAX_BLOCK_OF_ONE_HEAD of them. That is also what is left if all heads do not fit in the view STRIDED; XLA then
  copies the operands. `heads_major` asks for the view ROWS in place of STRIDED.

  Returns:
    The choice, or None if there is none. `states` says that there is an initial or a final state.
  """
  batch, time, heads, key_dim = q.shape
  value_dim, dtype = v.shape[-1], jnp.dtype(q.dtype)
  largest = min(chunk_size or mxu_size(), time)
  sizes = [largest, largest // 2] if chunk_size is None else [largest]
  view = choose_view(time, heads, (key_dim, value_dim))
  if heads_major and view is View.STRIDED:
    view = View.ROWS
  for view in [view, View.ROWS] if view is View.STRIDED else [view]:
    groups_choice = {
        View.STRIDED: [1],
        View.ROWS: [heads],
        View.LANES: [n for n in range(1, heads + 1) if heads % n == 0],
    }
    most = MAX_BLOCK_OF_ONE_HEAD if view is View.ROWS else MAX_BLOCK
    for size, chunks, groups in itertools.product(sizes, (32, 16, 8, 4, 2, 1), groups_choice[view]):
      chunk = round_up(max(size, 1), LANES if view is View.LANES else 16)
      cfg = Config(
          view, batch, time, heads // groups, groups, key_dim, value_dim, dtype, scale, chunk, chunks * chunk, segmented
      )
      useful = chunks == 1 or cfg.block <= min(most, round_up(time, chunk))
      if useful and vmem_bytes(cfg, states) <= LEAST_VMEM * 7 // 8:
        return cfg
  return None


def vmem_bytes(cfg: Config, states: bool) -> int:
  """VMEM of the backward kernel, the larger of the two: blocks of seven operands and of the states (saved, cotangent and
  gradient) in two buffers each, tiles of the wide ones, the states of a block, S, dS, and the decays."""
  tokens = cfg.block * cfg.heads * cfg.dtype.itemsize
  filled = functools.partial(round_up, multiple=16 if cfg.view is View.LANES else LANES)
  operands = 4 * filled(cfg.key_dim) + 3 * filled(cfg.value_dim)
  state = cfg.heads * round_up(cfg.key_dim, 8) * round_up(cfg.value_dim, LANES)
  all_states = state * ((2 + cfg.chunks_per_block) * cfg.dtype.itemsize + (2 + 4 * states) * 4)
  decays = (cfg.heads if cfg.uniform else 1) * cfg.chunk * (round_up(cfg.chunk, LANES) + 2 * LANES) * 4
  tiles = 4 * _wide(cfg, cfg.key_dim) + 3 * _wide(cfg, cfg.value_dim)
  return tokens * (2 * operands + tiles) + all_states + decays + cfg.chunk * LANES * 4


def _wide(cfg: Config, dim: int) -> int:
  """Lanes of the tiles of a block that is wider than one and read with a stride."""
  return round_up(dim, LANES) if dim > LANES and cfg.view is View.STRIDED else 0
