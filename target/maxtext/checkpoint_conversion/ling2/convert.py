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

"""Conversions of Ling2 checkpoints, streamed: HF to MaxText, MaxText to HF, MaxText to MaxText."""

import dataclasses
import functools
import hashlib
import itertools
import math
import os
import pathlib
import shutil
from typing import Any, Callable, Iterable, Iterator, Mapping, Protocol

from maxtext.checkpoint_conversion.ling2 import hf_files
from maxtext.checkpoint_conversion.ling2 import orbax_files
from maxtext.checkpoint_conversion.ling2 import pieces
from maxtext.checkpoint_conversion.ling2 import plan as plans
from maxtext.checkpoint_conversion.ling2 import work
from maxtext.checkpoint_conversion.ling2.errors import CheckpointError
from maxtext.checkpoint_conversion.ling2.pieces import Piece
from maxtext.checkpoint_conversion.utils import ling2_params
from maxtext.checkpoint_conversion.utils.ling2_params import Parameter
from maxtext.common import ling2_record
import numpy as np

# Output that is complete at a time, a database of a MaxText checkpoint or a file of an HF one, is a part of the whole
# within these limits.
_GROUPS = 16
_LEAST_BYTES = 256 << 20
MOST_BYTES = 1 << 30
MOST_HF_BYTES = 4 << 30
# Bytes in memory per byte of a piece: as it is read, as it is written, and what tensorstore and zarr make of it.
_COPIES = 4
_MEMORY_BYTES = 512 << 20
# Where the record of a MaxText checkpoint has config.json of the HF checkpoint that it comes from.
HF_CONFIG = "hf_config"
STEP = "0"


@dataclasses.dataclass(frozen=True)
class Settings:
  """How to run a conversion.

  Attributes:
    workers: pieces of work done at a time.
    group_bytes: size of what is complete at a time; None for a part of the whole.
    shard: the groups that this host does.
    report: is told bytes done and in all.
  """

  # Those that wait for the disk need no processor.
  workers: int = dataclasses.field(default_factory=lambda: min(8, 2 + (os.cpu_count() or 1)))
  group_bytes: int | None = None
  shard: work.Shard | None = None
  report: Callable[[int, int], None] | None = None


@dataclasses.dataclass(frozen=True)
class Converted:
  """A conversion that was made.

  Attributes:
    parameters: how many parameters of MaxText were written or read.
    tensors: how many HF tensors they are.
    nbytes: bytes of weights.
    largest: bytes of the largest parameter.
    finished: whether the output is there; if not, other hosts have groups to do.
  """

  parameters: int
  tensors: int
  nbytes: int
  largest: int
  finished: bool


class Source(Protocol):
  """Where pieces of parameters come from."""

  def dtype(self, parameter: Parameter) -> str:
    """Returns numpy's name of a parameter's dtype."""

  def fill(self, piece: Piece, target: np.ndarray) -> None:
    """Reads a piece into an array of unsigned integers of its shape."""


class HfSource:
  """Pieces of MaxText parameters from an HF checkpoint."""

  def __init__(self, plan: plans.Plan):
    self._checkpoint = plan.checkpoint
    self._dtypes = plan.dtypes()
    self._scratch = pieces.Scratch()

  def dtype(self, parameter: Parameter) -> str:
    return self._dtypes[parameter.key]

  def fill(self, piece: Piece, target: np.ndarray) -> None:
    part = piece.parameter
    for element in piece.elements:
      tensor = self._checkpoint.tensors[element.name]
      start = element.row * (tensor.nbytes // max(1, tensor.shape[0])) if element.row else 0
      into = target[element.index]
      if part.transform == ling2_params.IDENTITY and into.flags.c_contiguous:
        self._checkpoint.read(tensor, into, start)
        continue
      read = self._scratch.array(part.hf_shape, target.dtype)
      self._checkpoint.read(tensor, read, start)
      pieces.move(into, ling2_params.to_maxtext(part, read))


class MaxTextSource:
  """Pieces of parameters from a MaxText checkpoint, which may be laid out otherwise and have older names."""

  def __init__(self, checkpoint: orbax_files.MaxTextCheckpoint, leaves: Mapping[str, orbax_files.Leaf], held: list[Parameter]):
    """Initializes it.

    Args:
      checkpoint: the checkpoint.
      leaves: its arrays by the keys of `held`.
      held: its parameters.
    """
    self._checkpoint = checkpoint
    self._leaves = leaves
    self._places = {name: (parameter, index) for parameter in held for index, name in parameter.slices()}

  def dtype(self, parameter: Parameter) -> str:
    return self._leaves[self._places[next(iter(parameter.hf_names()))][0].key].dtype

  def chunks(self, parameter: Parameter) -> tuple[int, ...]:
    """Returns the shape of a held parameter's chunks."""
    return self._leaves[parameter.key].chunks_of(parameter)

  def read(self, parameter: Parameter, box: tuple[slice | int, ...], into: np.ndarray) -> None:
    """Reads a box of a held parameter into an array of unsigned integers of its shape."""
    self._checkpoint.read(self._leaves[parameter.key], parameter, box, into)

  def fill(self, piece: Piece, target: np.ndarray) -> None:
    held, _ = self._places[piece.elements[0].name]
    if held.key == piece.key and held.stack_axes == piece.parameter.stack_axes:
      self.read(held, piece.box, target)
      return
    stacked = piece.parameter.stack_axes
    within = [side for axis, side in enumerate(piece.box) if axis not in stacked]
    for element in piece.elements:
      held, index = self._places[element.name]
      sides = iter(within)
      box = tuple(next(sides) if isinstance(i, slice) else i for i in index)
      self.read(held, box, target[element.index])


# ---- HF to MaxText --------------------------------------------------------------------------------------------------


def to_maxtext(
    plan: plans.Plan, out: pathlib.Path, slope_index: str, written_by: str, settings: Settings = Settings()
) -> Converted:
  """Converts an HF checkpoint to one that MaxText restores.

  Args:
    plan: what to convert.
    out: the folder to make; the checkpoint is its step 0.
    slope_index: the slope convention that the weights were trained with, for the record.
    written_by: name and version of the tool, for the record.
    settings: how to run.

  Raises:
    CheckpointError: it cannot be converted, read or written; nothing is left behind then.
  """
  plan.require_complete()
  work.check_out(out, plan.checkpoint.directory)
  orbax_files.check_path(out.absolute())
  plans.check_redundant(plan)
  record = ling2_record.custom_metadata(
      slope_index, plan.dims.pattern.mla_tail_rule, plan.scan_layers, plan.dims.param_scan_axis, written_by
  )
  record[ling2_record.METADATA_KEY][HF_CONFIG] = plan.checkpoint.config_text
  job = {"conversion": "to-maxtext", "source": plan.checkpoint.digest}
  return _write_maxtext(plan.parameters, HfSource(plan), record, out, job, settings)


def _write_maxtext(
    parameters: list[Parameter],
    source: Source,
    record: dict[str, Any],
    out: pathlib.Path,
    job: dict[str, str],
    settings: Settings,
) -> Converted:
  """Writes a MaxText checkpoint in groups of pieces."""
  itemsizes = {parameter.key: np.dtype(source.dtype(parameter)).itemsize for parameter in parameters}
  every = itertools.chain.from_iterable(
      pieces.split(parameter, itemsizes[parameter.key], pieces.write_shape(parameter, itemsizes[parameter.key]))
      for parameter in parameters
  )
  whole = {parameter.key: parameter for parameter in parameters}
  run = _Run(parameters, itemsizes)
  items = pathlib.PurePath(STEP, orbax_files.ITEMS)
  groups = []
  for held in _grouped(every, itemsizes, settings.group_bytes or run.group_bytes(MOST_BYTES)):
    number = len(groups)

    def write(folder: pathlib.Path, number: int = number, held: list[Piece] = held) -> None:
      writer = orbax_files.GroupWriter(folder, number)
      if number == 0:
        writer.write_scalar("step", 0)
      for batch in _batches(held, itemsizes):
        size = sum(piece.size * itemsizes[piece.key] for piece in batch)
        with run.budget.take(size * _COPIES):
          room, at = run.scratch.array((size,), np.uint8), 0
          for piece in batch:
            length = piece.size * itemsizes[piece.key]
            dtype = source.dtype(piece.parameter)
            target = room[at : at + length].view(hf_files.MOVED_AS[dtype]).reshape(piece.shape)
            source.fill(piece, target)
            writer.write(whole[piece.key], piece.box, target, dtype)
            at += length
          writer.flush()
        run.progress.add(size)

    size = sum(piece.size * itemsizes[piece.key] for piece in held)
    groups.append(work.Group(items / orbax_files.database_name(number), size, write))

  def finish(tree: pathlib.Path) -> None:
    step, kept = tree / STEP, {orbax_files.ITEMS, *(group.place.name for group in groups)}
    for path in (*step.iterdir(), *(step / orbax_files.ITEMS).iterdir()):
      if path.name not in kept:  # of an earlier call
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    orbax_files.finish(step, parameters, record)

  job = _job(job, record, settings.group_bytes)
  return run.run(out, job, groups, finish, settings)


def _job(job: dict[str, str], options: Any, group_bytes: int | None) -> dict[str, str]:
  """Names a job by its source, its options and how it is cut."""
  return job | {"options": hashlib.sha256(repr(options).encode()).hexdigest(), "group size": str(group_bytes)}


class _Run:
  """What the threads of a conversion share."""

  progress: work.Progress

  def __init__(self, parameters: list[Parameter], itemsizes: Mapping[str, int]):
    self._parameters = parameters
    self._sizes = [math.prod(parameter.shape) * itemsizes[parameter.key] for parameter in parameters]
    self.budget = work.MemoryBudget(max(self._sizes) + _MEMORY_BYTES)
    self.scratch = pieces.Scratch()

  def group_bytes(self, most: int) -> int:
    """Returns the size of what is to be complete at a time."""
    return min(most, max(_LEAST_BYTES, sum(self._sizes) // _GROUPS))

  def run(
      self,
      out: pathlib.Path,
      job: dict[str, str],
      groups: list[work.Group],
      finish: Callable[[pathlib.Path], None],
      settings: Settings,
  ) -> Converted:
    """Does the groups and sums up."""
    done = work.run(
        out,
        job,
        groups,
        finish,
        settings.workers,
        settings.shard,
        settings.report,
        functools.partial(setattr, self, "progress"),
    )
    tensors = sum(math.prod([parameter.shape[axis] for axis in parameter.stack_axes]) for parameter in self._parameters)
    return Converted(len(self._parameters), tensors, sum(self._sizes), max(self._sizes), done)


def _grouped(every: Iterable[Piece], itemsizes: Mapping[str, int], limit: int) -> Iterator[list[Piece]]:
  """Yields pieces in lists of about `limit` bytes."""
  held: list[Piece] = []
  size = 0
  for piece in every:
    length = piece.size * itemsizes[piece.key]
    if held and size + length > limit:
      yield held
      held, size = [], 0
    held.append(piece)
    size += length
  yield held


def _batches(held: list[Piece], itemsizes: Mapping[str, int]) -> Iterator[list[Piece]]:
  """Yields pieces in lists that are moved and written at once, those of the largest elements first so that all are aligned."""
  held = sorted(held, key=lambda piece: -itemsizes[piece.key])
  return _grouped(held, itemsizes, pieces.PIECE_BYTES)


# ---- MaxText to HF --------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class MaxTextModel:
  """A MaxText checkpoint whose arrays are known to be the parameters of a model.

  Attributes:
    checkpoint: the checkpoint.
    dims: the model.
    scan_layers: whether its layers are stacked.
    parameters: its parameters.
    leaves: its arrays by the parameters' keys.
    renamed: names of its arrays that are older than those of the parameters.
    config_text: config.json of the model.
  """

  checkpoint: orbax_files.MaxTextCheckpoint
  dims: ling2_params.ModelDims
  scan_layers: bool
  parameters: list[Parameter]
  leaves: dict[str, orbax_files.Leaf]
  renamed: dict[str, str]
  config_text: str


def open_maxtext(path: pathlib.Path, config: pathlib.Path | None = None) -> MaxTextModel:
  """Reads what a MaxText checkpoint holds, and finds the parameter that each array is.

  Args:
    path: see `orbax_files.find_items`.
    config: config.json of the model, or its folder; None for what the checkpoint records.

  Raises:
    CheckpointError: the checkpoint cannot be read, or its arrays are not the parameters of the model.
  """
  checkpoint = orbax_files.MaxTextCheckpoint(path)
  record = checkpoint.custom_metadata.get(ling2_record.METADATA_KEY) or {}
  if config is not None:
    values, text = hf_files.read_config(config)
  elif isinstance(record.get(HF_CONFIG), str):
    text = record[HF_CONFIG]
    values = hf_files.parse_config(checkpoint.items.parent / orbax_files.STEP_METADATA, text)
  else:
    raise CheckpointError(f"{path}: does not record config.json of its model; name it with --config.")
  scan_layers = checkpoint.scan_layers
  try:
    dims = _dims(values, record.get("mla_tail_rule"), checkpoint, scan_layers)
    parameters = ling2_params.parameters(dims, scan_layers)
    renamed = ling2_params.rename_all([leaf.path for leaf in checkpoint.leaves], dims, scan_layers)
  except ValueError as error:
    raise CheckpointError(f"{checkpoint.items}: {error}") from None
  leaves = {}
  for leaf in checkpoint.leaves:
    parameter = renamed[leaf.path]
    if not leaf.holds(parameter):
      raise CheckpointError(
          f"{checkpoint.items}: {leaf.name} has shape {list(leaf.shape)}, the model's is {list(parameter.shape)}."
      )
    leaves[parameter.key] = leaf
  older = {
      leaf.name: orbax_files.array_name(renamed[leaf.path])
      for leaf in checkpoint.leaves
      if leaf.name != orbax_files.array_name(renamed[leaf.path])
  }
  return MaxTextModel(checkpoint, dims, scan_layers, parameters, leaves, older, text)


def _dims(
    config: dict[str, Any], tail_rule: str | None, checkpoint: orbax_files.MaxTextCheckpoint, scan_layers: bool
) -> ling2_params.ModelDims:
  """Returns the dims of the model, settling what the config leaves open by what the checkpoint has."""
  has_bias = any(leaf.path[-2:] == ("gate", "bias") for leaf in checkpoint.leaves)
  first = None
  for rule in [tail_rule] if tail_rule else ling2_params.ling2_layers.MLA_TAIL_RULES:
    of_rule = dataclasses.replace(ling2_params.ModelDims.from_hf_config(config, None, rule), routed_bias=has_bias)
    for width in ling2_params.shared_mlp_dims(config):
      dims = dataclasses.replace(of_rule, shared_mlp_dim=width)
      dims = dataclasses.replace(dims, param_scan_axis=orbax_files.scan_axis(checkpoint, dims, scan_layers))
      first = first or dims
      known = {parameter.path: parameter for parameter in ling2_params.parameters(dims, scan_layers)}
      leaves = {ling2_params.rename_legacy(leaf.path, dims, scan_layers): leaf for leaf in checkpoint.leaves}
      if known.keys() == leaves.keys() and all(leaves[path].holds(parameter) for path, parameter in known.items()):
        return dims
  return first


def to_hf(model: MaxTextModel, out: pathlib.Path, settings: Settings = Settings()) -> Converted:
  """Converts a MaxText checkpoint to an HF one: safetensors files, their index, and config.json.

  Args:
    model: what to convert.
    out: the folder to make.
    settings: how to run.

  Raises:
    CheckpointError: it cannot be read or written; nothing is left behind then.
  """
  work.check_out(out, model.checkpoint.root)
  source = MaxTextSource(model.checkpoint, model.leaves, model.parameters)
  dtypes = {parameter.key: source.dtype(parameter) for parameter in model.parameters}
  itemsizes = {key: np.dtype(dtype).itemsize for key, dtype in dtypes.items()}
  run = _Run(model.parameters, itemsizes)
  held_parameters = {parameter.key: parameter for parameter in model.parameters}
  every = (
      piece
      for parameter in model.parameters
      for piece in _whole_tensors(pieces.split(parameter, itemsizes[parameter.key], source.chunks(parameter)))
  )
  files = list(_grouped_lists(every, itemsizes, settings.group_bytes or run.group_bytes(MOST_HF_BYTES)))
  names = [f"model-{number:05}-of-{len(files):05}{hf_files.SUFFIX}" for number in range(1, len(files) + 1)]
  groups = []
  for name, held in zip(names, files):

    def write(folder: pathlib.Path, name: str = name, held: list[Piece] = held) -> None:
      tensors = {}
      for piece in held:
        parameter = held_parameters[piece.key]
        tensors |= {element.name: (element.name, dtypes[piece.key], parameter.hf_shape) for element in piece.elements}
      header, offsets = hf_files.build_header(list(tensors.values()))
      with hf_files.SequentialFile(folder / name) as file:
        file.room(len(header))[:] = np.frombuffer(header, np.uint8)
        for piece in held:
          size = piece.size * itemsizes[piece.key]
          with run.budget.take(size * _COPIES):
            values = run.scratch.array(piece.shape, hf_files.MOVED_AS[dtypes[piece.key]])
            source.read(held_parameters[piece.key], piece.box, values)
            _write_tensors(file, piece, values, offsets)
          run.progress.add(size)

    groups.append(work.Group(pathlib.PurePath(name), sum(piece.size * itemsizes[piece.key] for piece in held), write))

  def finish(tree: pathlib.Path) -> None:
    work.write_text(tree / hf_files.CONFIG, model.config_text)
    work.write_text(tree / hf_files.INDEX, hf_files.build_index([tree / name for name in names]))

  job = _job({"conversion": "to-hf", "source": model.checkpoint.digest}, model.config_text, settings.group_bytes)
  return run.run(out, job, groups, finish, settings)


def _whole_tensors(cut: list[Piece]) -> Iterator[Piece | list[Piece]]:
  """Yields pieces; those that are rows of one tensor together, since a tensor is in one file."""
  if len(cut) > 1 and not cut[0].parameter.stack_axes:
    yield cut
  else:
    yield from cut


def _grouped_lists(
    every: Iterable[Piece | list[Piece]], itemsizes: Mapping[str, int], limit: int
) -> Iterator[list[Piece]]:
  """As `_grouped`, where lists of pieces stay together."""
  held: list[Piece] = []
  size = 0
  for found in every:
    some = found if isinstance(found, list) else [found]
    length = sum(piece.size * itemsizes[piece.key] for piece in some)
    if held and size + length > limit:
      yield held
      held, size = [], 0
    held += some
    size += length
  yield held


def _write_tensors(
    file: hf_files.SequentialFile, piece: Piece, values: np.ndarray, offsets: Mapping[str, int]
) -> None:
  """Writes what is in a piece to its places in a file, which follow upon what was written before."""
  for element in piece.elements:
    tensor = ling2_params.to_hf(piece.parameter, values[element.index])
    row_bytes = tensor.nbytes // tensor.shape[0] if element.row else 0
    assert file.position == offsets[element.name] + element.row * row_bytes, element.name
    pieces.move(file.room(tensor.nbytes).view(tensor.dtype).reshape(tensor.shape), tensor)


# ---- MaxText to MaxText ---------------------------------------------------------------------------------------------


def restack(
    model: MaxTextModel,
    out: pathlib.Path,
    scan_layers: bool,
    written_by: str,
    settings: Settings = Settings(),
    param_scan_axis: int = 1,
) -> Converted:
  """Converts a MaxText checkpoint to one with layers stacked, or not, and with today's names.

  Args:
    model: what to convert.
    out: the folder to make; the checkpoint is its step 0.
    scan_layers: whether to stack layers.
    written_by: name and version of the tool, for the record.
    settings: how to run.
    param_scan_axis: axis to stack layers on; MaxText's option of that name.

  Raises:
    CheckpointError: it cannot be read or written; nothing is left behind then.
  """
  work.check_out(out, model.checkpoint.root)
  orbax_files.check_path(out.absolute())
  parameters = ling2_params.parameters(dataclasses.replace(model.dims, param_scan_axis=param_scan_axis), scan_layers)
  source = MaxTextSource(model.checkpoint, model.leaves, model.parameters)
  _require_same_dtypes(parameters, model, source)
  held = dict(model.checkpoint.custom_metadata.get(ling2_record.METADATA_KEY) or {})
  record = dict(model.checkpoint.custom_metadata) | {"scan_layers": scan_layers}
  record[ling2_record.METADATA_KEY] = held | {
      "mla_tail_rule": model.dims.pattern.mla_tail_rule,
      "param_scan_axis": param_scan_axis,
      "written_by": written_by,
      HF_CONFIG: model.config_text,
  }
  job = {"conversion": "restack", "source": model.checkpoint.digest}
  return _write_maxtext(parameters, source, record, out, job, settings)


def _require_same_dtypes(parameters: list[Parameter], model: MaxTextModel, source: MaxTextSource) -> None:
  """Raises CheckpointError if arrays of several dtypes would be stacked to one."""
  dtypes = {name: source.dtype(held) for held in model.parameters for name in held.hf_names()}
  for parameter in parameters:
    found = {dtypes[name] for name in parameter.hf_names()}
    if len(found) > 1:
      raise CheckpointError(f"{model.checkpoint.items}: what becomes {parameter.key} is of {' and '.join(sorted(found))}.")
