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

"""Comparison of a MaxText checkpoint with an HF one: names and shapes, or values."""

import concurrent.futures
import dataclasses
import math
import pathlib
from typing import Any, Callable, Iterable, Mapping

from maxtext.checkpoint_conversion.ling2 import hf_files
from maxtext.checkpoint_conversion.ling2 import orbax_files
from maxtext.checkpoint_conversion.ling2 import pieces
from maxtext.checkpoint_conversion.ling2 import plan as plans
from maxtext.checkpoint_conversion.ling2 import work
from maxtext.checkpoint_conversion.utils import ling2_params
from maxtext.checkpoint_conversion.utils.ling2_params import Parameter
import ml_dtypes  # pylint: disable=unused-import  # numpy knows bfloat16 by it
import numpy as np

# By default tensors have to be the same to the last bit.
MAX_ABS = 0.0
MIN_COSINE = 0.999999
# Bytes in memory per byte of a piece: both sides, and both in float64.
_COPIES = 16
_MEMORY_BYTES = 1 << 30


@dataclasses.dataclass(frozen=True)
class Pair:
  """An array of a MaxText checkpoint and the HF tensors that it is.

  Attributes:
    leaf: the array.
    parameter: the parameter that it is by its name.
    shapes_agree: whether the HF tensors, stacked, have its shape.
  """

  leaf: orbax_files.Leaf
  parameter: Parameter
  shapes_agree: bool


@dataclasses.dataclass(frozen=True)
class ShapeReport:
  """Two checkpoints' names and shapes.

  Attributes:
    scan_layers: whether layers of the MaxText checkpoint are stacked.
    pairs: arrays that HF tensors are known for and all there.
    leaf_count: arrays of the MaxText checkpoint.
    missing_mapping: arrays that are no parameter of the model.
    missing_in_hf: HF tensors that an array needs and that are not there, by the array.
    missing_in_orbax: parameters of the model that the MaxText checkpoint does not have.
    unmatched_hf: HF tensors that belong to no parameter.
    duplicates: HF tensors that several files have.
    copies: HF tensors that repeat others, as pairs with the arrays of those.
  """

  scan_layers: bool
  pairs: list[Pair]
  leaf_count: int
  missing_mapping: list[str]
  missing_in_hf: dict[str, list[str]]
  missing_in_orbax: list[str]
  unmatched_hf: list[str]
  duplicates: list[str]
  copies: list[Pair]

  @property
  def mismatches(self) -> list[Pair]:
    """Pairs whose shapes do not agree."""
    return [pair for pair in self.pairs if not pair.shapes_agree]

  @property
  def equal(self) -> bool:
    """Whether both have the same parameters, of the same shapes."""
    return not any((
        self.mismatches, self.missing_mapping, self.missing_in_hf, self.missing_in_orbax, self.unmatched_hf, self.duplicates
    ))  # fmt: skip

  def to_json(self) -> dict[str, Any]:
    """Returns the report as JSON values."""
    return {
        "verdict": "equal" if self.equal else "different",
        "scan_layers": self.scan_layers,
        "orbax_leaf_count": self.leaf_count,
        "mapped_ok_count": len(self.pairs) - len(self.mismatches),
        "missing_mapping_count": len(self.missing_mapping),
        "missing_hf_count": sum(map(len, self.missing_in_hf.values())),
        "missing_orbax_count": len(self.missing_in_orbax),
        "shape_mismatch_count": len(self.mismatches),
        "unmatched_hf_count": len(self.unmatched_hf),
        "duplicate_hf_count": len(self.duplicates),
        "missing_mapping": self.missing_mapping,
        "missing_hf": self.missing_in_hf,
        "missing_orbax": self.missing_in_orbax,
        "shape_mismatch": [
            {
                "orbax": pair.leaf.name,
                "orbax_shape": list(pair.leaf.shape),
                "hf": plans.folded(pair.parameter.hf_names()),
                "expected_shape": list(pair.parameter.shape),
            }
            for pair in self.mismatches
        ],
        "unmatched_hf": self.unmatched_hf,
        "duplicate_hf": self.duplicates,
    }


@dataclasses.dataclass(frozen=True)
class Expected:
  """What the caller says of the model; None for what config.json says.

  Attributes:
    first_num_dense_layers: leading layers with a dense feed-forward.
    num_experts: routed experts.
    mtp_num_layers: MTP layers.
  """

  first_num_dense_layers: int | None = None
  num_experts: int | None = None
  mtp_num_layers: int | None = None

  def of_config(self, config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an HF config with what is given."""
    given = {
        "first_k_dense_replace": self.first_num_dense_layers,
        "num_experts": self.num_experts,
        "num_nextn_predict_layers": self.mtp_num_layers,
    }
    return {**config, **{key: value for key, value in given.items() if value is not None}}


def compare_shapes(orbax: pathlib.Path, hf: pathlib.Path, expected: Expected = Expected()) -> ShapeReport:
  """Lays names and shapes of a MaxText checkpoint beside those of an HF one.

  Args:
    orbax: see `orbax_files.find_items`.
    hf: the folder of the HF checkpoint.
    expected: what to take instead of what config.json says.

  Raises:
    CheckpointError: one of them cannot be read.
  """
  return _compare_shapes(*_open(orbax, hf, expected))


def _open(
    orbax: pathlib.Path, hf: pathlib.Path, expected: Expected
) -> tuple[orbax_files.MaxTextCheckpoint, hf_files.HfCheckpoint]:
  right = hf_files.open_checkpoint(hf)
  right = dataclasses.replace(right, config=expected.of_config(right.config))
  return orbax_files.MaxTextCheckpoint(orbax), right


def _compare_shapes(left: orbax_files.MaxTextCheckpoint, right: hf_files.HfCheckpoint) -> ShapeReport:
  scan_layers = left.scan_layers
  dims = plans.dims_of(right)
  dims = dataclasses.replace(dims, param_scan_axis=orbax_files.scan_axis(left, dims, scan_layers))
  by_path = {parameter.path: parameter for parameter in ling2_params.parameters(dims, scan_layers)}
  pairs, missing_mapping, missing_in_hf = [], [], {}
  taken: set[ling2_params.Path] = set()
  for leaf in left.leaves:
    path = ling2_params.rename_legacy(leaf.path, dims, scan_layers)
    parameter = by_path.get(path)
    if parameter is None or path in taken:
      missing_mapping.append(leaf.name)
      continue
    taken.add(path)
    names = parameter.hf_names()
    missing = [name for name in names if name not in right.tensors]
    if missing:
      missing_in_hf[leaf.name] = missing
      continue
    agree = leaf.holds(parameter) and all(
        right.tensors[name].shape == parameter.hf_shape for name in names
    )
    pairs.append(Pair(leaf, parameter, agree))
  absent = [parameter for path, parameter in by_path.items() if path not in taken]
  known = {name for parameter in by_path.values() for name in parameter.hf_names()}
  copies, differing = [], set()
  by_name = {next(iter(pair.parameter.hf_names())): pair for pair in pairs}
  for name, other in plans.copies(dims).items():
    if name in right.tensors and other in by_name:
      pair = by_name[other]
      if pair.shapes_agree and right.tensors[name].shape == pair.parameter.hf_shape:
        copies.append(dataclasses.replace(pair, parameter=dataclasses.replace(pair.parameter, sources=name)))
      else:
        differing.add(name)
    known.add(name)
  return ShapeReport(
      scan_layers,
      pairs,
      len(left.leaves),
      sorted(missing_mapping),
      missing_in_hf,
      sorted(orbax_files.array_name(parameter) for parameter in absent),
      sorted((set(right.tensors) - known) | differing),
      sorted(right.duplicates),
      copies,
  )


# ---- Values ---------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Difference:
  """How far an array and its HF tensors are apart.

  Attributes:
    name: of the array.
    hf: of the tensors.
    kind: of the parameter.
    layers: indices of the layers it belongs to.
    dtypes: of both sides.
    elements: how many there are.
    differing: how many are not the same to the last bit, at the wider of both dtypes.
    max_abs: largest difference; NaN if one side has a NaN where the other has none, or another one.
    max_ulp: largest distance in steps of the coarser dtype; None if a side is not finite there.
    cosine: between both sides as vectors; 1 if both are zero.
  """

  name: str
  hf: str
  kind: str
  layers: tuple[int, ...]
  dtypes: tuple[str, str]
  elements: int = 0
  differing: int = 0
  max_abs: float = 0.0
  max_ulp: int | None = 0
  cosine: float = 1.0

  def within(self, max_abs: float, min_cosine: float) -> bool:
    """Whether it is small enough. With `max_abs` 0, every bit has to be the same."""
    if not self.differing:
      return True
    return max_abs > 0 and self.max_abs <= max_abs and self.cosine >= min_cosine


@dataclasses.dataclass(frozen=True)
class ValueReport:
  """Two checkpoints' values.

  Attributes:
    shapes: the comparison of names and shapes; values are compared where shapes agree.
    differences: of every such pair.
    max_abs: largest difference that counts as equal.
    min_cosine: smallest cosine that does.
  """

  shapes: ShapeReport
  differences: list[Difference]
  max_abs: float
  min_cosine: float

  @property
  def failed(self) -> list[Difference]:
    """Those that are too far apart, the worst first."""
    found = [d for d in self.differences if not d.within(self.max_abs, self.min_cosine)]
    return sorted(found, key=lambda d: math.inf if math.isnan(d.max_abs) else d.max_abs, reverse=True)

  @property
  def equal(self) -> bool:
    """Whether names, shapes and values agree."""
    return self.shapes.equal and not self.failed

  @property
  def identical(self) -> bool:
    """Whether they agree to the last bit."""
    return self.shapes.equal and not any(d.differing for d in self.differences)

  def by_layer(self) -> list[dict[str, Any]]:
    """Returns, per layer (None: none), how many parameters were compared, how many are too far apart, and the worst."""
    layers: dict[int | None, list[Difference]] = {}
    for difference in self.differences:
      for layer in difference.layers or (None,):
        layers.setdefault(layer, []).append(difference)
    return [
        {
            "layer": layer,
            "compared": len(held),
            "failed": sum(not d.within(self.max_abs, self.min_cosine) for d in held),
            "max_abs": _largest([d.max_abs for d in held]),
            "min_cosine": min(d.cosine for d in held),
        }
        for layer, held in sorted(layers.items(), key=lambda item: (item[0] is None, item[0] or 0))
    ]

  def to_json(self) -> dict[str, Any]:
    """Returns the report as JSON values: those of the shapes, and more."""
    values = {
        **self.shapes.to_json(),
        "verdict": "identical" if self.identical else "equal" if self.equal else "different",
        "compared_count": len(self.differences),
        "identical_count": sum(not d.differing for d in self.differences),
        "failed_count": len(self.failed),
        "max_abs": _finite(_largest([d.max_abs for d in self.differences])),
        "min_cosine": min((d.cosine for d in self.differences), default=1.0),
        "tolerance": {"max_abs": self.max_abs, "min_cosine": self.min_cosine},
        "failed": [d.name for d in self.failed],
        "by_layer": [{**row, "max_abs": _finite(row["max_abs"])} for row in self.by_layer()],
        "tensors": [
            {
                "orbax": d.name,
                "hf": d.hf,
                "kind": d.kind,
                "layers": list(d.layers),
                "dtypes": list(d.dtypes),
                "elements": d.elements,
                "differing": d.differing,
                "max_diff": _finite(d.max_abs),
                "max_ulp": d.max_ulp,
                "cosine": d.cosine,
                "ok": d.within(self.max_abs, self.min_cosine),
            }
            for d in self.differences
        ],
    }
    return values


def _largest(values: Iterable[float]) -> float:
  """The largest, where NaN is larger than all."""
  return max(values, key=lambda value: math.inf if math.isnan(value) else value, default=0.0)


def _finite(value: float) -> float | str:
  """A number as JSON has it."""
  return value if math.isfinite(value) else str(value)


def compare_values(
    orbax: pathlib.Path,
    hf: pathlib.Path,
    expected: Expected = Expected(),
    max_abs: float = MAX_ABS,
    min_cosine: float = MIN_COSINE,
    workers: int = 1,
    report: Callable[[int, int], None] | None = None,
) -> ValueReport:
  """Compares values of a MaxText checkpoint with those of an HF one.

  Args:
    orbax: see `orbax_files.find_items`.
    hf: the folder of the HF checkpoint.
    expected: what to take instead of what config.json says.
    max_abs: largest difference that counts as equal; 0 asks for the same bits.
    min_cosine: smallest cosine that does.
    workers: parameters compared at a time.
    report: is told bytes done and in all.

  Raises:
    CheckpointError: one of them cannot be read.
  """
  left, right = _open(orbax, hf, expected)
  shapes = _compare_shapes(left, right)
  pairs = [pair for pair in shapes.pairs if pair.shapes_agree] + shapes.copies
  sizes = [math.prod(pair.leaf.shape) * np.dtype(pair.leaf.dtype).itemsize for pair in pairs]
  progress = work.Progress(sum(sizes), report)
  budget = work.MemoryBudget(max(sizes, default=0) + _MEMORY_BYTES)

  def one(pair: Pair, size: int) -> Difference:
    found = _difference(left, right, pair, budget)
    progress.add(size)
    return found

  with concurrent.futures.ThreadPoolExecutor(workers) as pool:
    try:
      differences = list(pool.map(one, pairs, sizes))
    except BaseException:
      progress.stop()
      pool.shutdown(wait=True, cancel_futures=True)
      raise
  return ValueReport(shapes, differences, max_abs, min_cosine)


def _difference(
    left: orbax_files.MaxTextCheckpoint, right: hf_files.HfCheckpoint, pair: Pair, budget: work.MemoryBudget
) -> Difference:
  """Compares one pair, piece by piece."""
  leaf, parameter = pair.leaf, pair.parameter
  held = right.tensors[next(iter(parameter.hf_names()))]
  result = Difference(
      leaf.name,
      plans.folded(parameter.hf_names()),
      parameter.kind,
      parameter.layers,
      (leaf.dtype, held.dtype),
      math.prod(parameter.shape),
  )
  itemsize = np.dtype(leaf.dtype).itemsize
  sums = np.zeros(3)
  for piece in pieces.split(parameter, itemsize, leaf.chunks_of(parameter)):
    with budget.take(piece.size * itemsize * _COPIES):
      ours = np.empty(piece.shape, hf_files.MOVED_AS[leaf.dtype])
      left.read(leaf, parameter, piece.box, ours)
      for element in piece.elements:
        mine = ling2_params.to_hf(piece.parameter, ours[element.index])
        tensor = right.tensors[element.name]
        theirs = np.empty(piece.parameter.hf_shape, hf_files.MOVED_AS[tensor.dtype])
        start = element.row * (tensor.nbytes // tensor.shape[0]) if element.row else 0
        right.read(tensor, theirs, start)
        _add(result, sums, mine.view(leaf.dtype) if mine.flags.c_contiguous else _typed(mine, leaf.dtype), theirs.view(tensor.dtype))
  if result.differing:
    norm = math.sqrt(sums[1]) * math.sqrt(sums[2])
    # Where a side is not finite, or one alone is zero, there is no angle.
    result.cosine = float(min(1.0, sums[0] / norm)) if 0 < norm < math.inf else float(sums[1] == sums[2] == 0)
  return result


def _typed(array: np.ndarray, dtype: str) -> np.ndarray:
  """Returns a transposed array of bits as one of values."""
  return np.ascontiguousarray(array).view(dtype)


def _add(result: Difference, sums: np.ndarray, ours: np.ndarray, theirs: np.ndarray) -> None:
  """Takes elements of both sides into account."""
  wide = max(ours.dtype, theirs.dtype, key=lambda dtype: dtype.itemsize)
  if ours.dtype != theirs.dtype and wide.itemsize == 2:  # neither float16 nor bfloat16 holds the other
    wide = np.dtype(np.float32)
  with np.errstate(invalid="ignore", over="ignore"):
    a, b = ours.astype(wide), theirs.astype(wide)
    bits = hf_files.MOVED_AS[wide.name]
    differing = a.view(bits) != b.view(bits)
    count = int(np.count_nonzero(differing))
    left, right = a.astype(np.float64), b.astype(np.float64)
    sums += (np.vdot(left, right), np.vdot(left, left), np.vdot(right, right))
  if not count:
    return
  result.differing += count
  left, right = left[differing], right[differing]
  with np.errstate(invalid="ignore", over="ignore"):
    # The same infinity is no difference, and two NaN of other bits are one.
    distance = np.where(left == right, 0.0, np.abs(left - right))
  result.max_abs = float(_largest([result.max_abs, float(distance.max()) if not np.isnan(distance).any() else math.nan]))
  narrow = min(ours.dtype, theirs.dtype, key=lambda dtype: (dtype.itemsize, dtype.name == "float16"))
  if result.max_ulp is not None:
    if np.isfinite(left).all() and np.isfinite(right).all():
      with np.errstate(over="ignore"):
        steps = np.abs(_steps(left.astype(narrow)) - _steps(right.astype(narrow)))
      result.max_ulp = max(result.max_ulp, int(steps.max()))
    else:
      result.max_ulp = None


def _steps(values: np.ndarray) -> np.ndarray:
  """Numbers floats so that neighbours have neighbouring numbers."""
  size = values.dtype.itemsize
  numbers = values.view({2: np.int16, 4: np.int32, 8: np.int64}[size]).astype(np.int64)
  lowest = -(1 << (8 * size - 1)) if size < 8 else np.iinfo(np.int64).min
  return np.where(numbers < 0, lowest - numbers, numbers)
