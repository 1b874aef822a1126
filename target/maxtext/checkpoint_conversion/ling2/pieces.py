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

"""Parameters in pieces of bounded size, and the moving of elements between layouts. Needs numpy alone."""

import dataclasses
import itertools
import math
from typing import Iterator

from maxtext.checkpoint_conversion.utils import ling2_params
from maxtext.checkpoint_conversion.utils.ling2_params import Parameter
import numpy as np

# What is read, moved and written at a time, unless one slice of a parameter is larger.
PIECE_BYTES = 64 << 20
# Slices smaller than this share a chunk of the stored array, larger than that a slice is several chunks.
MIN_CHUNK_BYTES = 4 << 20
MAX_CHUNK_BYTES = 64 << 20
# Columns that a transposition moves at a time, so that what it reads stays in the cache.
_COLUMNS = 16

Index = tuple[slice | int, ...]


@dataclasses.dataclass(frozen=True)
class Element:
  """A HF tensor, or rows of one, in a piece.

  Attributes:
    name: of the tensor.
    index: of its slice in the piece.
    row: the first of its rows that are in the piece.
  """

  name: str
  index: Index
  row: int


@dataclasses.dataclass(frozen=True)
class Piece:
  """A box of a parameter.

  Attributes:
    parameter: the parameter; where it is cut by the rows of its HF tensor, what is in the piece, as if it were one.
    key: of the whole parameter.
    box: where the piece is in the whole parameter.
    elements: what is in it.
  """

  parameter: Parameter
  key: str
  box: tuple[slice, ...]
  elements: tuple[Element, ...]

  @property
  def shape(self) -> tuple[int, ...]:
    """Shape of the box."""
    return tuple(side.stop - side.start for side in self.box)

  @property
  def size(self) -> int:
    """Elements in the box."""
    return math.prod(self.shape)


def write_shape(parameter: Parameter, itemsize: int) -> tuple[int, ...]:
  """Returns the box of a parameter whose chunks do not depend on others': a slice, several if they are small, or some rows."""
  slice_bytes = math.prod(parameter.slice_shape) * itemsize
  if not parameter.stack_axes:
    rows = _rows_axis(parameter)
    if rows is None or slice_bytes <= PIECE_BYTES:
      return parameter.shape
    row_bytes = slice_bytes // parameter.shape[rows]
    step = max(1, MAX_CHUNK_BYTES // row_bytes)
    return _replaced(parameter.shape, rows, step)
  shape, room = parameter.shape, max(1, MIN_CHUNK_BYTES // max(1, slice_bytes))
  for axis in reversed(parameter.stack_axes):
    step = min(shape[axis], room)
    shape, room = _replaced(shape, axis, step), (room // step if step == shape[axis] else 1)
  return shape


def split(parameter: Parameter, itemsize: int, grid: tuple[int, ...]) -> list[Piece]:
  """Cuts a parameter into pieces, in order.

  Args:
    parameter: the parameter.
    itemsize: bytes of an element.
    grid: the steps along its axes that pieces begin at multiples of: the write shape or, when reading, the chunk shape.
  """
  axes = [*reversed(parameter.stack_axes)]
  if not parameter.stack_axes and (rows := _rows_axis(parameter)) is not None:
    axes = [rows]
  box = parameter.shape
  for axis in axes:
    box = _replaced(box, axis, min(grid[axis], box[axis]))
  for axis in axes:
    box_bytes = math.prod(box) * itemsize
    step = max(1, PIECE_BYTES // max(1, box_bytes)) * box[axis]
    box = _replaced(box, axis, min(step, parameter.shape[axis]))
    if box[axis] < parameter.shape[axis]:
      break
  starts = [range(0, size, step) if step else range(1) for size, step in zip(parameter.shape, box)]
  names = _names(parameter)
  pieces = []
  for corner in itertools.product(*starts):
    sides = tuple(slice(at, min(at + step, size)) for at, step, size in zip(corner, box, parameter.shape))
    pieces.append(_piece(parameter, sides, names))
  return pieces


def _names(parameter: Parameter) -> dict[tuple[int, ...], str]:
  """Indices on the stacked axes, in the order of `stack_axes`, → name of the HF tensor."""
  return {tuple(index[axis] for axis in parameter.stack_axes): name for index, name in parameter.slices()}


def _piece(parameter: Parameter, box: tuple[slice, ...], names: dict[tuple[int, ...], str]) -> Piece:
  if not parameter.stack_axes:
    rows = _rows_axis(parameter)
    row = box[rows].start if rows is not None else 0
    shape = tuple(side.stop - side.start for side in box)
    part = parameter
    if shape != parameter.shape:
      hf_shape = shape if parameter.transform == ling2_params.IDENTITY else shape[::-1]
      part = dataclasses.replace(parameter, shape=shape, hf_shape=hf_shape)
    return Piece(part, parameter.key, box, (Element(names[()], (slice(None),) * len(shape), row),))
  elements = []
  for at in itertools.product(*(range(box[axis].start, box[axis].stop) for axis in parameter.stack_axes)):
    index: list[slice | int] = [slice(None)] * len(box)
    for axis, i in zip(parameter.stack_axes, at):
      index[axis] = i - box[axis].start
    elements.append(Element(names[at], tuple(index), 0))
  return Piece(parameter, parameter.key, box, tuple(elements))


def _rows_axis(parameter: Parameter) -> int | None:
  """The axis that has the rows of the HF tensor, of a parameter that can be cut along them."""
  if len(parameter.shape) != 2 or len(parameter.hf_shape) != 2 or parameter.stack_axes:
    return None
  return 0 if parameter.transform == ling2_params.IDENTITY else 1


def _replaced(shape: tuple[int, ...], axis: int, size: int) -> tuple[int, ...]:
  return (*shape[:axis], size, *shape[axis + 1 :])


def move(target: np.ndarray, source: np.ndarray) -> None:
  """Copies elements between arrays of the same shape and dtype, fast for transposed ones too."""
  assert target.shape == source.shape and target.dtype == source.dtype
  sides = list(_merged(target, source))
  if not sides:
    target[...] = source
    return
  shape, target_strides, source_strides = zip(*sides)
  target = np.lib.stride_tricks.as_strided(target, shape, target_strides)
  source = np.lib.stride_tricks.as_strided(source, shape, source_strides)
  if len(shape) < 2 or source_strides[-1] == source.itemsize:
    np.copyto(target, source)
    return
  for start in range(0, shape[-1], _COLUMNS):
    np.copyto(target[..., start : start + _COLUMNS], source[..., start : start + _COLUMNS])


def _merged(target: np.ndarray, source: np.ndarray) -> Iterator[tuple[int, int, int]]:
  """Yields size and strides of the axes, with those merged that follow upon each other in both arrays."""
  sides: list[tuple[int, int, int]] = []
  for size, left, right in zip(target.shape, target.strides, source.strides):
    if size == 1:
      continue
    if sides and sides[-1][1] == left * size and sides[-1][2] == right * size:
      sides[-1] = (sides[-1][0] * size, left, right)
    else:
      sides.append((size, left, right))
  return iter(sides)
