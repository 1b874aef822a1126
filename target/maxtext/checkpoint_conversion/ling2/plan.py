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

"""What becomes of every tensor of an HF checkpoint, worked out from its headers alone. Needs numpy alone."""

import dataclasses
import pathlib
import re
from typing import Any, Iterable, Mapping

from maxtext.checkpoint_conversion.ling2 import hf_files
from maxtext.checkpoint_conversion.ling2.errors import CheckpointError
from maxtext.checkpoint_conversion.utils import ling2_params
from maxtext.checkpoint_conversion.utils.ling2_params import Parameter
import numpy as np

EMBEDDING = "model.word_embeddings.weight"
HEAD = "lm_head.weight"
# What an MTP layer shares with the decoder, by the names that it may be repeated under.
_MTP_COPIES = {"word_embeddings": EMBEDDING, "embed_tokens": EMBEDDING, "lm_head": HEAD, "shared_head.head": HEAD}


@dataclasses.dataclass(frozen=True)
class Row:
  """One tensor: where it comes from, where it goes and how.

  Attributes:
    tensor: the HF tensor.
    parameter: the MaxText parameter that it is, or is a slice of.
  """

  tensor: hf_files.Tensor
  parameter: Parameter


@dataclasses.dataclass(frozen=True)
class Problem:
  """Something that keeps the tensors and the parameters from being one to one.

  Attributes:
    kind: "config", "missing", "extra", "duplicate", "shape", "dtype" or "unlisted".
    name: of the key of config.json, of the tensor, or of the file.
    reason: what is wrong with it.
  """

  kind: str
  name: str
  reason: str


@dataclasses.dataclass(frozen=True)
class Plan:
  """A conversion that has not been made.

  Attributes:
    checkpoint: the HF checkpoint.
    dims: the model.
    parameters: those of the MaxText checkpoint.
    scan_layers: whether its layers are stacked.
    rows: every tensor that has a place.
    problems: what is not accounted for.
    redundant: tensors that repeat another one, and which; they are compared with it when converting, and not converted.
  """

  checkpoint: hf_files.HfCheckpoint
  dims: ling2_params.ModelDims
  parameters: list[Parameter]
  scan_layers: bool
  rows: list[Row]
  problems: list[Problem]
  redundant: dict[str, str]

  @property
  def total_bytes(self) -> int:
    """Bytes of all tensors that have a place."""
    return sum(row.tensor.nbytes for row in self.rows)

  @property
  def slope_index(self) -> str:
    """The slope convention that config.json states; without one, that of most implementations."""
    return ling2_params.slope_index_of(self.checkpoint.config) or "zero_based"

  def dtypes(self) -> dict[str, str]:
    """Returns the dtype of each parameter, by key."""
    return {row.parameter.key: row.tensor.dtype for row in self.rows}

  def require_complete(self) -> None:
    """Raises CheckpointError, with the first problems, if there is one."""
    if self.problems:
      shown = "; ".join(f"{problem.name}: {problem.reason}" for problem in self.problems[:3])
      more = f"; {len(self.problems) - 3} more, see `ckpt plan`" if len(self.problems) > 3 else ""
      raise CheckpointError(f"{self.checkpoint.directory}: cannot be converted: {shown}{more}.")


def dims_of(
    checkpoint: hf_files.HfCheckpoint, options: Mapping[str, Any] | None = None, mla_tail_rule: str | None = None
) -> ling2_params.ModelDims:
  """Returns the dims of the model that a checkpoint is for.

  Args:
    checkpoint: the HF checkpoint.
    options: MaxText options of the model, instead of what config.json says.
    mla_tail_rule: which layers of the tail are MLA; None for what the tensors show.

  Raises:
    CheckpointError: a key of the config, or an option, is missing or impossible.
  """
  try:
    if options is not None:
      given = {} if mla_tail_rule is None else {"mla_tail_rule": mla_tail_rule}
      return ling2_params.ModelDims.from_maxtext_config({**options, **given})
    ling2_params.refuse_more_than_there_is(checkpoint.config, len(checkpoint.tensors))
    return ling2_params.ModelDims.from_hf_config(checkpoint.config, checkpoint.shapes, mla_tail_rule)
  except ValueError as error:
    where = "the MaxText options" if options is not None else checkpoint.directory / hf_files.CONFIG
    raise CheckpointError(f"{where}: {error}") from None


def plan(
    directory: pathlib.Path,
    scan_layers: bool,
    options: Mapping[str, Any] | None = None,
    mla_tail_rule: str | None = None,
    param_scan_axis: int | None = None,
) -> Plan:
  """Works out a conversion from HF's format to MaxText's.

  Args:
    directory: the HF checkpoint.
    scan_layers: whether to stack layers.
    options: see `dims_of`.
    mla_tail_rule: see `dims_of`.
    param_scan_axis: axis to stack layers on; None for that of the options, or 1.

  Raises:
    CheckpointError: the headers or the config cannot be made sense of; what is missing, extra, double or of the wrong shape
      is in `Plan.problems` instead.
  """
  checkpoint = hf_files.open_checkpoint(directory)
  dims = dims_of(checkpoint, options, mla_tail_rule)
  if param_scan_axis is not None:
    dims = dataclasses.replace(dims, param_scan_axis=param_scan_axis)
  parameters = ling2_params.parameters(dims, scan_layers)
  rows: list[Row] = []
  problems = _layers_that_differ(dims, checkpoint.tensors)
  left = dict(checkpoint.tensors)
  for parameter in parameters:
    held = []
    for name in parameter.hf_names():
      tensor = left.pop(name, None)
      if tensor is None:
        problems.append(Problem("missing", name, f"is missing, {parameter.key} needs it"))
        continue
      held.append(Row(tensor, parameter))
      if tensor.shape != parameter.hf_shape:
        wanted = list(parameter.hf_shape)
        problems.append(Problem("shape", name, f"has shape {list(tensor.shape)}, {parameter.key} needs {wanted}"))
    if len({row.tensor.dtype for row in held}) > 1:
      problems.append(_mixed(held, parameter))
    rows += held
  redundant = {}
  for name, other in copies(dims).items():
    if (copy := left.pop(name, None)) is None:
      continue
    original = checkpoint.tensors.get(other)
    if original is not None and (original.shape, original.dtype) == (copy.shape, copy.dtype):
      redundant[name] = other
    else:
      problems.append(Problem("extra", name, f"differs from {other}, and MaxText has one tensor for both"))
  problems += [Problem("extra", name, "belongs to no parameter") for name in sorted(left)]
  for name, files in sorted(checkpoint.duplicates.items()):
    problems.append(Problem("duplicate", name, f"is in {' and in '.join(file.name for file in files)}"))
  problems += [
      Problem("unlisted", path.name, f"is not named by {hf_files.INDEX}; move it away or list it") for path in checkpoint.unlisted
  ]
  return Plan(checkpoint, dims, parameters, scan_layers, rows, problems, redundant)


def copies(dims: ling2_params.ModelDims) -> dict[str, str]:
  """Returns the names of tensors that an HF checkpoint may have beside those of the model, and what they repeat.

  These are the head of a model whose head is its embedding, and the embedding and head that each MTP layer shares with
  the decoder.
  """
  head = EMBEDDING if dims.tied_embeddings else HEAD
  result = {HEAD: EMBEDDING} if dims.tied_embeddings else {}
  for layer in range(dims.pattern.num_decoder_layers, dims.pattern.num_decoder_layers + dims.mtp_num_layers):
    for name, other in _MTP_COPIES.items():
      result[f"model.layers.{layer}.{name}.weight"] = head if other == HEAD else other
  return result


def _layers_that_differ(dims: ling2_params.ModelDims, names: Iterable[str]) -> list[Problem]:
  """Returns a problem if there are tensors of more layers than the config has, or of fewer, or of none."""
  layers = {int(found[1]) for name in names if (found := re.match(r"model\.layers\.(\d{1,9})\.", name))}
  if not layers:
    one = min(names, default="none at all")
    return [Problem("config", "model.layers", f"begins the name of no tensor; there is {one}")]
  decoder, mtp, last = dims.pattern.num_decoder_layers, dims.mtp_num_layers, max(layers)
  if last + 1 == decoder + mtp:
    return []
  counts = f"is {decoder} and num_nextn_predict_layers {mtp}"
  return [Problem("config", "num_hidden_layers", f"{counts}, and the tensors are of layers 0 to {last}")]


def _mixed(rows: list[Row], parameter: Parameter) -> Problem:
  first = rows[0].tensor
  other = next(row.tensor for row in rows if row.tensor.dtype != first.dtype)
  return Problem("dtype", other.name, f"is {other.dtype}, {first.name} is {first.dtype}, and both go into {parameter.key}")


def check_redundant(made: Plan) -> None:
  """Raises CheckpointError if a tensor that repeats another one has other bytes."""
  for name, other in made.redundant.items():
    left, right = made.checkpoint.tensors[name], made.checkpoint.tensors[other]
    step = 64 << 20
    for start in range(0, left.nbytes, step):
      blocks = [np.empty(min(step, left.nbytes - start), np.uint8) for _ in range(2)]
      for tensor, block in zip((left, right), blocks):
        made.checkpoint.read(tensor, block, start)
      if not np.array_equal(*blocks):
        raise CheckpointError(f"{left.file}: {name} has other values than {other}, and MaxText has one tensor for both.")


def to_json(made: Plan) -> dict[str, Any]:
  """Returns a plan as JSON values."""
  return {
      "directory": str(made.checkpoint.directory),
      "scan_layers": made.scan_layers,
      "mla_tail_rule": made.dims.pattern.mla_tail_rule,
      "complete": not made.problems,
      "tensors": len(made.rows),
      "parameters": len(made.parameters),
      "total_bytes": made.total_bytes,
      "redundant": made.redundant,
      "problems": [dataclasses.asdict(problem) for problem in made.problems],
      "rows": [
          {
              "source": row.tensor.name,
              "file": row.tensor.file.name,
              "target": row.parameter.key,
              "shape": list(row.tensor.shape),
              "target_shape": list(row.parameter.shape),
              "dtype": row.tensor.dtype,
              "transform": row.parameter.transform,
              "kind": row.parameter.kind,
              "nbytes": row.tensor.nbytes,
          }
          for row in made.rows
      ],
  }


def folded(names: Iterable[str]) -> str:
  """Returns names that differ in numbers as one, such as "model.layers.{1,4}.mlp.experts.{0..7}.up_proj.weight"."""
  split = [re.split(r"(\d+)", name) for name in names]
  if len({(len(parts), tuple(parts[::2])) for parts in split}) > 1:
    return ", ".join("".join(parts) for parts in split)
  result = []
  for column in zip(*split):
    distinct = set(column)
    result.append(column[0] if len(distinct) == 1 else "{" + _numbers(sorted(map(int, distinct))) + "}")
  return "".join(result)


def _numbers(numbers: list[int]) -> str:
  if len(numbers) > 2 and numbers == list(range(numbers[0], numbers[-1] + 1)):
    return f"{numbers[0]}..{numbers[-1]}"
  return ",".join(map(str, numbers))
