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

"""Decays inside a chunk, in the Pallas TPU kernels of simple GLA.

All of them are `exp(g * distance)` with distances in tokens that do not depend on the head. They are written to VMEM once
per chunk (once per row of the batch if all chunks are alike); whatever must not be seen has the distance `FAR`, so that
nothing is masked after the exponential.

Of packed rows, the forward kernel derives the distances from the segment ids, chunk by chunk, and saves what the backward
kernel needs to do without: that goes through the chunks from last to first.
"""

from typing import NamedTuple

import jax
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp

from maxtext.kernels.gla.pallas_tpu_common import Config, LANES, Unit, View, fit_lanes, lanes

# Distance of what must not be seen. With g <= MAX_LOG_DECAY < 0, exp(g * FAR) is 0, for -inf = g * FAR as well.
FAR = 1e36
# Stands for g = 0: exp(g * distance) is exactly 1 for every real distance, and still 0 for FAR.
MAX_LOG_DECAY = -1e-30
# Stands for all that is lower, which times a distance of 0 would not be 0.
MIN_LOG_DECAY = -1e30
LOG2_E = 1.4426950408889634


class Tokens(NamedTuple):
  """Where the tokens of a chunk stand, int32 `[1, chunk]` each.

  Attributes:
    position: number of real tokens of the row up to and including this one.
    run: run of the token, 1 plus the number of segment borders before; negated at padding, which has that of the last
      real token before it. See `segments.TokenLayout`.
    position0, run0: those at the start of the chunk, at every token.
    position1, run1: those at its end, at every token.
  """

  position: jax.Array
  run: jax.Array
  position0: jax.Array
  run0: jax.Array
  position1: jax.Array
  run1: jax.Array

  @staticmethod
  def saved_shape(cfg: Config) -> tuple[int, ...]:
    """In rows of a tile, which are these and two more; of as many lanes as well where possible, so that it is the same for
    any chunk."""
    width = _tile_of_tokens(cfg)
    return (cfg.batch, cfg.num_blocks * cfg.block // width, 8, width)

  @classmethod
  def load(cls, cfg: Config, ref, in_block) -> "Tokens":
    """Those of a chunk of the block, from a ref to what `store` wrote."""
    count = cfg.chunk // _tile_of_tokens(cfg)
    tiles = [ref.at[0, in_block * count + n] for n in range(count)]
    return cls(*(jnp.concatenate([tile[i : i + 1, :] for tile in tiles], axis=1) for i in range(len(cls._fields))))

  def store(self, cfg: Config, ref, in_block):
    width = _tile_of_tokens(cfg)
    count = cfg.chunk // width
    for n in range(count):
      for i, x in enumerate(self):
        ref[0, in_block * count + n, i : i + 1, :] = x[:, n * width : (n + 1) * width]


def _tile_of_tokens(cfg: Config) -> int:
  return LANES if cfg.chunk % LANES == 0 else cfg.chunk


def _down(x):
  """`[1, n]` to `[n, LANES]` with equal lanes."""
  return jnp.broadcast_to(x, (LANES, x.shape[1])).T


def plain_tokens(cfg: Config, index) -> Tokens:
  """Tokens of chunk `index` of rows that are one segment each; only past T there is padding."""
  first = index * cfg.chunk
  at = first + lax.broadcasted_iota(jnp.int32, (1, cfg.chunk), 1)
  run = jnp.where(at < cfg.time, 1, -1)
  one = jnp.ones_like(at)
  position0, position1 = (jnp.minimum(x, cfg.time) * one for x in (first, first + cfg.chunk))
  return Tokens(jnp.minimum(at + 1, cfg.time), run, position0, one, position1, one)


def carried_shape(cfg: Config) -> tuple[int, int]:
  """Of what `scan_tokens` carries: the work grows with the square of the width, so it is one tile of lanes if possible."""
  return 3, _tile_of_tokens(cfg)


def scan_tokens(ids, carried_ref) -> Tokens:
  """Tokens of a chunk from the segment ids.

  Args:
    ids: int32 [1, chunk], 0 for padding.
    carried_ref: int32 [3, width], width dividing chunk, in each column position, run and segment id of the last real token
      before the chunk (0, 1 and 0 if none); left as those at the chunk's end.
  """
  width = carried_ref.shape[1]
  count = ids.shape[1] // width

  def whole(parts):
    return jnp.concatenate(parts, axis=1) if count > 1 else parts[0]

  start = [carried_ref[i : i + 1, :] for i in range(2)]
  scanned = [_scan_tile(ids[:, n * width : (n + 1) * width], carried_ref) for n in range(count)]
  end = [carried_ref[i : i + 1, :] for i in range(2)]
  return Tokens(*(whole(parts) for parts in zip(*scanned)), *(whole([x] * count) for x in start + end))


def _scan_tile(ids, carried_ref):
  """Positions and runs of one tile of tokens; moves on what is carried."""
  c = ids.shape[1]
  before, token = (lax.broadcasted_iota(jnp.int32, (c, c), axis) for axis in (0, 1))

  def count(down):
    """How many ones there are in the rows up to and including each token's (column's)."""
    return jnp.sum(jnp.where(before <= token, down, 0), axis=0, keepdims=True, dtype=jnp.int32)

  ids_down = fit_lanes(_down(ids), c)
  real_down = ids_down != 0

  def last_id(seen):
    """Segment id of the last real token that each token (column) sees."""
    at = jnp.max(jnp.where(seen & real_down, before, -1), axis=0, keepdims=True)
    found = jnp.sum(jnp.where(before == at, ids_down, 0), axis=0, keepdims=True, dtype=jnp.int32)
    return jnp.where(at < 0, carried_ref[2:3, :], found)

  def at_end(x):
    return jnp.broadcast_to(x[:, c - 1 :], (1, c))

  real, last = ids != 0, last_id(before < token)
  border = (real & (last != 0) & (last != ids)).astype(jnp.int32)
  position = carried_ref[0:1, :] + count(real_down.astype(jnp.int32))
  run = carried_ref[1:2, :] + count(fit_lanes(_down(border), c))
  carried_ref[2:3, :] = last_id(before >= 0)
  carried_ref[0:1, :], carried_ref[1:2, :] = at_end(position), at_end(run)
  return position, jnp.where(real, run, -run)


class Decays:
  """Multiply by the decays in one chunk.

  `pairs(unit, x)`, x [chunk, chunk]: from token to token, times `scale`, column by row or (transposed, or in the view
    LANES) row by column. Tiles of which all tokens come in the wrong order are 0 without the work.
  `start(unit, x)`, x [chunk, D], in the view LANES [D, chunk]: from the state before the chunk to a token, times `scale`.
  `end(unit, x)`, x as of `start`: from a token to the state after the chunk.
  `carry(unit, x)`, x [K, V]: from the state before the chunk to the state after it.

  VMEM holds the distances, of as many chunks as are worked on at once (`slots`); where the chunks of a call are all alike
  (`cfg.uniform`), the decays themselves, by head.
  """

  def __init__(self, cfg: Config, refs: dict, transposed: bool):
    self._cfg = cfg
    # Rows are the tokens that act, columns those that are acted on; else it is the other way around.
    self._upper = transposed is not (cfg.view is View.LANES)
    self._log_decay_ref = refs["log_decay"]
    self._pairs_ref, self._start_ref, self._end_ref, self._carry_ref, keep_ref = refs["decays"]
    self.keep_ref = None if cfg.uniform else keep_ref

  @staticmethod
  def scratch_shapes(cfg: Config) -> list:
    lead = (cfg.heads if cfg.uniform else 2 if cfg.heads == 1 else 1,)
    by_token = (1, cfg.chunk) if cfg.view is View.LANES else (cfg.chunk, LANES)
    sizes = [(cfg.chunk, cfg.chunk), by_token, by_token, (1, LANES)]
    return [*(pltpu.VMEM(lead + size, jnp.float32) for size in sizes), pltpu.VMEM(lead + by_token, jnp.uint32)]

  def pairs(self, unit: Unit, x):
    tile = LANES if self._cfg.chunk % LANES == 0 else self._cfg.chunk
    starts = range(0, self._cfg.chunk, tile)

    def part(row: int, col: int):
      if (row > col) if self._upper else (row < col):
        return jnp.zeros((tile, tile), jnp.float32)
      decay = self._decay(self._pairs_ref, unit, self._cfg.scale, (pl.ds(row, tile), pl.ds(col, tile)))
      return x[row : row + tile, col : col + tile] * decay

    return jnp.concatenate([jnp.concatenate([part(row, col) for col in starts], axis=1) for row in starts], axis=0)

  def start(self, unit: Unit, x):
    return self._by_token(x, self._decay(self._start_ref, unit, self._cfg.scale))

  def end(self, unit: Unit, x):
    return self._by_token(x, self._decay(self._end_ref, unit))

  def carry(self, unit: Unit, x):
    decay = fit_lanes(self._decay(self._carry_ref, unit), x.shape[1])
    return x * decay

  def _by_token(self, x, decay):
    if self._cfg.view is not View.LANES:
      decay = fit_lanes(decay, x.shape[1])
    return x * decay

  def _decay(self, ref, unit: Unit, scale: float = 1.0, at=(slice(None), slice(None))):
    return ref[unit.head, *at] if self._cfg.uniform else self._exp(unit.head, ref[unit.slot, *at], scale)

  def _exp(self, head, distance, scale: float):
    """`scale * exp(g * distance)`."""
    rate = jnp.clip(self._log_decay_ref[0, 0, head], MIN_LOG_DECAY, MAX_LOG_DECAY) * LOG2_E
    decay = jnp.exp2(rate * distance)
    return decay if scale == 1 else scale * decay

  def enter_row(self):
    """To be called before the first chunk of a row."""
    if not self._cfg.uniform:
      return
    *distances, _ = self._distances(plain_tokens(self._cfg, 0))

    @pl.loop(0, self._cfg.heads)
    def _(head):
      scale = self._cfg.scale
      refs = (self._pairs_ref, self._start_ref, self._end_ref, self._carry_ref)
      for ref, distance, factor in zip(refs, distances, (scale, scale, 1.0, 1.0)):
        ref[head] = self._exp(head, distance, factor)

  def enter_chunk(self, tokens: Tokens, slot: int):
    """To be called before the work on a chunk with these tokens, unless all chunks are alike."""
    refs = (self._pairs_ref, self._start_ref, self._end_ref, self._carry_ref, self.keep_ref)
    for ref, value in zip(refs, self._distances(tokens)):
      ref[slot] = value

  def _distances(self, tokens: Tokens):
    """Distances in a chunk.

    Returns:
      pairs [chunk, chunk], start, end and carry [1, LANES], float32: FAR where the two ends are not of one run, the token
      that acts comes after the other, or a token is not real; keep, uint32: all ones for real tokens, 0 for others. start,
      end and keep are [chunk, LANES] with equal lanes, in the view LANES [1, chunk].
    """
    c = self._cfg.chunk
    col_position, col_run = _down(tokens.position), _down(tokens.run)
    position, run = fit_lanes(col_position, c), fit_lanes(col_run, c)
    row, col = (lax.broadcasted_iota(jnp.int32, (c, c), axis) for axis in (1, 0))

    def distance(seen, number):
      return jnp.where(seen, number.astype(jnp.float32), FAR)

    between, order = tokens.position - position, row >= col
    if not self._upper:
      between, order = -between, row <= col
    pairs = distance((tokens.run == run) & (run > 0) & order, between)
    at0_at1 = position0, run0, position1, run1 = [lanes(x) for x in tokens[2:]]
    carry = distance(run0 == run1, position1 - position0)
    if self._cfg.view is View.LANES:
      col_position, col_run = tokens[:2]
      at0_at1 = tokens[2:]
    position0, run0, position1, run1 = at0_at1
    start = distance(col_run == run0, col_position - position0)
    end = distance(col_run == run1, position1 - col_position)
    return pairs, start, end, carry, jnp.where(col_run > 0, jnp.uint32(0xFFFFFFFF), jnp.uint32(0))
