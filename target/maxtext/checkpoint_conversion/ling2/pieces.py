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
import threading
from typing import Iterator

from maxtext.checkpoint_conversion.utils import ling2_params
from maxtext.checkpoint_conversion.utils.ling2_params import Parameter
import numpy as np

# What is read, moved and written at a time, unless one slice of a parameter is larger.
PIECE_BYTES = 32 << 20
# Slices smaller than this share a chunk of the stored array, larger than that a slice is several chunks.
MIN_CHUNK_BYTES = 4 << 20
MAX_CHUNK_BYTES = 64 << 20
# Rows and columns that a transposition moves at a time, by way of a buffer that stays in the cache.
_ROWS, _COLUMNS = 512, 2048
# Rows of such a buffer begin in different sets of the cache, also where they are of a power of two.
_PAD_BYTES = 64

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
    size = parameter.shape[rows]
    most = max(1, MAX_CHUNK_BYTES // (slice_bytes // size))
    return _replaced(parameter.shape, rows, math.ceil(size / math.ceil(size / most)))
  shape, room = parameter.shape, max(1, MIN_CHUNK_BYTES // max(1, slice_bytes))
  for axis in reversed(parameter.stack_axes):
    # A chunk that reaches beyond the array would be stored whole.
    step = next(step for step in range(min(shape[axis], room), 0, -1) if not shape[axis] % step)
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


class Scratch:
  """Memory that each thread uses again and again: new memory is slow."""

  def __init__(self):
    self._local = threading.local()

  def array(self, shape: tuple[int, ...], dtype: type | np.dtype) -> np.ndarray:
    """Returns an array with any contents, which is the thread's until it asks for the next."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    held = getattr(self._local, "held", None)
    if held is None or held.size < size:
      held = self._local.held = np.empty(size, np.uint8)
    return held[:size].view(dtype).reshape(shape)


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
  if source.itemsize not in source_strides[:-1]:
    np.copyto(target, source)
    return
  contiguous = source_strides.index(source.itemsize)
  target, source = np.moveaxis(target, contiguous, -2), np.moveaxis(source, contiguous, -2)
  for index in np.ndindex(target.shape[:-2]):
    _transpose(target[index], source[index])


_buffers = Scratch()


def _transpose(target: np.ndarray, source: np.ndarray) -> None:
  """Copies a matrix whose columns are contiguous into one whose rows are."""
  columns, rows = target.shape
  width = min(columns, _COLUMNS)
  buffer = _buffers.array((min(rows, _ROWS), width + _PAD_BYTES // source.itemsize), source.dtype)
  for row in range(0, rows, _ROWS):
    for column in range(0, columns, width):
      part = np.s_[column : column + width, row : row + _ROWS]
      read = source[part].T
      held = buffer[: read.shape[0], : read.shape[1]]
      np.copyto(held, read)
      np.copyto(target[part], held.T)


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
