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

"""MaxText checkpoints on disk, read and written with Orbax's own specs, metadata and merging.

Arrays are written one box at a time, into one OCDBT database per group of arrays, as Orbax does per process; `finish`
merges the databases and writes the metadata.
"""

import asyncio
import contextlib
import dataclasses
import hashlib
import json
import math
import os
import pathlib
import re
import time
from typing import Any, Iterable, Iterator, Mapping

from etils import epath
from maxtext.checkpoint_conversion.ling2 import hf_files
from maxtext.checkpoint_conversion.ling2 import pieces
from maxtext.checkpoint_conversion.ling2.errors import CheckpointError
from maxtext.checkpoint_conversion.utils import ling2_params
from maxtext.checkpoint_conversion.utils.ling2_params import Parameter
from maxtext.common import ling2_record
import ml_dtypes  # pylint: disable=unused-import  # numpy knows bfloat16 by it
import numpy as np
from orbax.checkpoint._src.metadata import checkpoint as checkpoint_metadata
from orbax.checkpoint._src.metadata import step_metadata_serialization
from orbax.checkpoint._src.metadata import tree as tree_metadata
from orbax.checkpoint._src.path import atomicity_types
from orbax.checkpoint._src.serialization import ocdbt_process_spec
from orbax.checkpoint._src.serialization import ocdbt_utils
from orbax.checkpoint._src.serialization import tensorstore_utils
from orbax.checkpoint._src.serialization import types
import tensorstore as ts

ITEMS = "items"
# What else runs call the item of a step that has the weights: Orbax's own default, and emergency checkpoints.
_ITEM_NAMES = (ITEMS, "default", "state")
# The trees of parameters of a model.
_TREES = ("token_embedder", "decoder", "mtp_block")
# Last keys of parameters.
_PARAMETER_NAMES = ("kernel", "scale", "embedding", "bias", "wi_0", "wi_1", "wo")
# What TensorStore's paths, or the search for the databases that Orbax merges, take for something else.
_UNREADABLE, _UNWRITABLE = "\\", "\\*?[]"
METADATA = "_METADATA"
STEP_METADATA = "_CHECKPOINT_METADATA"
_ITEMS_HANDLER = "orbax.checkpoint.experimental.v1._src.handlers.pytree_handler.PyTreeHandler"
# Bytes of decoded chunks that a reader keeps, and more if a single chunk is larger.
_CACHE_BYTES = 64 << 20


@dataclasses.dataclass(frozen=True)
class Leaf:
  """One array of weights.

  Attributes:
    path: below the collection.
    collection: the collection that it is stored under.
    name: of the array in the store.
    shape: its shape.
    dtype: numpy's name of its dtype.
    chunks: shape of its chunks.
  """

  path: tuple[str, ...]
  collection: str
  name: str
  shape: tuple[int, ...]
  dtype: str
  chunks: tuple[int, ...]

  def holds(self, parameter: Parameter) -> bool:
    """Whether its shape is that of a parameter, perhaps in the layout of an older checkpoint."""
    return ling2_params.is_stored_as(parameter, self.shape, self.path != parameter.path)

  def chunks_of(self, parameter: Parameter) -> tuple[int, ...]:
    """Returns the shape of what can be read at a time of the parameter that it holds."""
    return self.chunks if self.keeps_layout(parameter) else parameter.shape

  def keeps_layout(self, parameter: Parameter) -> bool:
    """Whether the parameter that it holds is laid out as it is today."""
    return ling2_params.keeps_layout(parameter, self.shape, self.path != parameter.path)


class MaxTextCheckpoint:
  """A MaxText checkpoint that is read.

  Attributes:
    items: the folder with the arrays.
    leaves: the arrays of weights.
    root: the folder that nothing is to be written into: the step, or what was named if that holds it.
    other_leaves: how many leaves are none: the state of an optimizer, the step, random keys.
    custom_metadata: what was recorded when it was written.
    digest: of its metadata, and of names, sizes and times of change of its files.
  """

  def __init__(self, path: pathlib.Path):
    """Reads the metadata.

    Args:
      path: the folder of the arrays, of a step, or one that holds a single step.

    Raises:
      CheckpointError: it is none, or cannot be read.
    """
    self.items = find_items(path)
    check_path(self.items, _UNREADABLE)
    step = self.items.parent if self.items.name in _ITEM_NAMES else self.items
    named = path.resolve()
    self.root = named if named in step.parents else step
    tree = _read_json(self.items / METADATA)
    self.custom_metadata = _custom_metadata(self.items)
    self._zarr3 = bool(tree.get("use_zarr3"))
    use_ocdbt = tree.get("use_ocdbt")
    self._ocdbt = (self.items / "manifest.ocdbt").is_file() if use_ocdbt is None else bool(use_ocdbt)
    keys = [keys for keys in _leaf_keys(self.items, tree)]
    weights = [(found, ".".join(keys)) for keys in keys if (found := _weight(keys)) is not None]
    self.other_leaves = len(keys) - len(weights)
    self._context = _context()
    stores = [self._open(name) for _, name in weights]
    self.leaves = [
        Leaf(path, collection, name, tuple(store.shape), store.dtype.name, tuple(store.chunk_layout.read_chunk.shape))
        for ((collection, path), name), store in zip(weights, stores)
    ]
    largest = max((math.prod(leaf.chunks) * np.dtype(leaf.dtype).itemsize for leaf in self.leaves), default=0)
    self._context = _context(max(_CACHE_BYTES, largest + 1))
    for leaf in self.leaves:
      if leaf.dtype not in hf_files.MOVED_AS:
        raise CheckpointError(f"{self.items}: {leaf.name} is {leaf.dtype}; weights are {', '.join(hf_files.MOVED_AS)}.")
    self.digest = _digest(self.items)

  @property
  def scan_layers(self) -> bool:
    """Whether its layers are stacked: they have the names of a scanned decoder, which may have no whole cycle to scan."""
    return any(leaf.path[:2] in (("decoder", "layers"), ("decoder", "layers_remainder")) for leaf in self.leaves)

  def _open(self, name: str) -> ts.TensorStore:
    info = types.ParamInfo(
        name=name, parent_dir=epath.Path(self.items), use_zarr3=self._zarr3, ts_context=self._context
    )
    spec = tensorstore_utils.build_array_read_spec(info, use_ocdbt=self._ocdbt)
    try:
      return ts.open(ts.Spec(spec.json), open=True, context=self._context).result()
    except Exception as error:  # tensorstore has an exception type for each status
      raise CheckpointError(f"{self.items}: {name} cannot be opened ({_line(error)}).") from None

  def read(self, leaf: Leaf, parameter: Parameter, box: tuple[slice | int, ...], into: np.ndarray) -> None:
    """Reads a box of the parameter that an array holds.

    Args:
      leaf: the array.
      parameter: the parameter.
      box: the box; the axes of numbers are dropped.
      into: unsigned integers of the elements' size, in the shape of the box, which are filled.

    Raises:
      CheckpointError: it cannot be read.
    """
    if leaf.keeps_layout(parameter):
      self._read(leaf, box, into)
      return
    whole = np.empty(leaf.shape, into.dtype)
    self._read(leaf, (slice(None),) * len(leaf.shape), whole)
    pieces.move(into, ling2_params.from_stored(parameter, whole, leaf.path != parameter.path)[box])

  def _read(self, leaf: Leaf, box: tuple[slice | int, ...], into: np.ndarray) -> None:
    try:
      target = ts.array(into.view(leaf.dtype), context=self._context, copy=False, write=True)
      target.write(self._open(leaf.name)[box][ts.d[:].translate_to[0]]).result()
    except CheckpointError:
      raise
    except Exception as error:
      raise CheckpointError(f"{self.items}: {leaf.name} cannot be read ({_line(error)}).") from None


def _context(cache_bytes: int = 0) -> ts.Context:
  return ts.Context({
      "file_io_concurrency": {"limit": 16},
      "cache_pool": {"total_bytes_limit": cache_bytes},
      "cache_pool#ocdbt": {"total_bytes_limit": 100_000_000},
      # Files are synchronized once a group is complete.
      "file_io_sync": False,
  })


def _line(error: Exception) -> str:
  """What an error of tensorstore comes down to: what it says last, without the specs that it adds."""
  text = str(error).split("\n", maxsplit=1)[0]
  return re.sub(r" \[\w+='.*", "", text).rsplit(": ", maxsplit=1)[-1][:300]


def check_path(path: pathlib.Path, refused: str = _UNWRITABLE) -> None:
  """Raises CheckpointError if TensorStore or Orbax could not find what is at a path."""
  text = str(path)
  found = [character for character in text if character in refused or "\ud800" <= character <= "\udfff"]
  if found:
    raise CheckpointError(f"{path}: TensorStore and Orbax cannot have {found[0]!r} in the path of a MaxText checkpoint.")


def find_items(path: pathlib.Path) -> pathlib.Path:
  """Returns the folder of the arrays, given it, the folder of a step, or one that holds a single step.

  Raises:
    CheckpointError: there is none, or more than one.
  """
  path = hf_files.existing_folder(path)
  if (path / METADATA).is_file():
    return path
  if items := _items_of(path):
    return items
  steps = {
      int(number[1]): items
      for step in path.iterdir()
      if (number := re.fullmatch(r"(?:.*_)?(\d+)", step.name, re.ASCII)) and (items := _items_of(step))
  }
  if not steps and (path / hf_files.CONFIG).is_file():
    raise CheckpointError(f"{path}: is no MaxText checkpoint but has {hf_files.CONFIG}, as a Hugging Face one has.")
  if not steps:
    raise CheckpointError(f"{path}: no MaxText checkpoint ({METADATA} is neither in it nor in {ITEMS} or <step>/{ITEMS}).")
  if len(steps) > 1:
    names = ", ".join(steps[number].parent.name for number in sorted(steps))
    raise CheckpointError(f"{path}: has several steps ({names}); name one of them.")
  return next(iter(steps.values()))


def _items_of(step: pathlib.Path) -> pathlib.Path | None:
  return next((step / name for name in _ITEM_NAMES if (step / name / METADATA).is_file()), None)


def _read_json(path: pathlib.Path) -> dict[str, Any]:
  try:
    value = json.loads(path.read_text(encoding="utf-8"))
  except OSError as error:
    raise CheckpointError(f"{path}: cannot be read ({error.strerror}).") from None
  except ValueError as error:
    raise CheckpointError(f"{path}: is no JSON ({error}).") from None
  if not isinstance(value, dict):
    raise CheckpointError(f"{path}: is no JSON object.")
  return value


def _custom_metadata(items: pathlib.Path) -> dict[str, Any]:
  """What was recorded of the checkpoint, by its step or, where there is none, in its own folder."""
  for path in (items.parent / STEP_METADATA, items / STEP_METADATA):
    if path.is_file() and (path.parent == items or items.name in _ITEM_NAMES):
      found = _read_json(path).get("custom_metadata") or {}
      if not isinstance(found, dict) or not isinstance(found.get(ling2_record.METADATA_KEY) or {}, dict):
        raise CheckpointError(f"{path}: its custom_metadata is not as MaxText and this tool write it.")
      return found
  return {}


def _leaf_keys(items: pathlib.Path, tree: Mapping[str, Any]) -> Iterable[tuple[str, ...]]:
  """Yields the keys of each leaf that has data."""
  entries = tree.get("tree_metadata")
  if not isinstance(entries, dict):
    raise CheckpointError(f"{items / METADATA}: has no tree_metadata.")
  try:
    for entry in entries.values():
      if not entry["value_metadata"]["skip_deserialize"]:
        yield tuple(str(key["key"]) for key in entry["key_metadata"])
  except (KeyError, TypeError, AttributeError):
    raise CheckpointError(f"{items / METADATA}: its tree_metadata is not as Orbax writes it.") from None


def _weight(keys: tuple[str, ...]) -> tuple[str, tuple[str, ...]] | None:
  """Returns collection and path of a leaf, or None if it is no weight.

  Weights are in a collection below `params`. A training run keeps variables that are no parameters, such as the routing
  bias, below `nnx_aux`; and what is saved for decoding may have neither, and `value` below each variable's name.
  """
  if keys[-1] == "value":
    keys = keys[:-1]
  at = next((i for i, key in enumerate(keys) if key in _TREES), None)
  where = keys[:at]
  if where[:1] == ("params",) and len(keys) > 2:
    return (keys[1], keys[2:]) if at != 1 else (ling2_params.PARAMS, keys[1:])
  if at is None or where not in ((), ("model",), ("nnx_aux", "model")) or keys[-1] not in _PARAMETER_NAMES:
    return None
  is_bias = keys[-2:] == ("gate", "bias")
  if where[:1] == ("nnx_aux",) and not is_bias:
    return None
  return (ling2_params.ROUTING_BIAS if is_bias else ling2_params.PARAMS), keys[at:]


def scan_axis(checkpoint: MaxTextCheckpoint, dims: ling2_params.ModelDims, scan_layers: bool) -> int:
  """Returns the axis that a checkpoint's layers are stacked on (`param_scan_axis` of its run): recorded, or by its shapes."""
  if not scan_layers:
    return dims.param_scan_axis
  recorded = (checkpoint.custom_metadata.get(ling2_record.METADATA_KEY) or {}).get("param_scan_axis")
  for axis in (recorded,) if recorded in (0, 1) else (1, 0):
    known = {p.path: p for p in ling2_params.parameters(dataclasses.replace(dims, param_scan_axis=axis), scan_layers)}
    leaves = [(leaf, known.get(ling2_params.rename_legacy(leaf.path, dims, scan_layers))) for leaf in checkpoint.leaves]
    if all(leaf.holds(parameter) for leaf, parameter in leaves if parameter):
      return axis
  return dims.param_scan_axis


def _digest(items: pathlib.Path) -> str:
  """Names the state of a checkpoint's files."""
  digest = hashlib.sha256()
  for folder, folders, files in os.walk(items):
    folders.sort()
    for name in sorted(files):
      stat = os.stat(os.path.join(folder, name))
      digest.update(f"{os.path.relpath(folder, items)}/{name}\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode(errors="replace"))
  for path in (items / METADATA, items / "manifest.ocdbt", items.parent / STEP_METADATA):
    if path.is_file():
      digest.update(path.read_bytes())
  return digest.hexdigest()


# ---- Writing --------------------------------------------------------------------------------------------------------


def array_name(parameter_or_key: Parameter | str) -> str:
  """Returns the name of an array in the store: of a parameter, or of a leaf at the top."""
  if isinstance(parameter_or_key, str):
    return parameter_or_key
  return ".".join(("params", parameter_or_key.collection, *parameter_or_key.path))


def _info(name: str, directory: pathlib.Path, typestr: str, context: ts.Context) -> types.ParamInfo:
  return types.ParamInfo(
      name=name,
      parent_dir=epath.Path(directory),
      use_compression=False,
      use_zarr3=True,
      value_typestr=typestr,
      ts_context=context,
  )


def database_name(group: int) -> str:
  """Returns the name of the folder that holds a group's OCDBT database."""
  return str(ocdbt_process_spec.OcdbtProcessSpec(process_id=str(group)))


class GroupWriter:
  """Writes boxes of arrays into the OCDBT database of a group, those of a batch at once.

  The database is made in a folder of its own, which is in the folder of the job, beside the job's result.
  """

  def __init__(self, directory: pathlib.Path, group: int):
    self._directory = directory
    self._group = group
    self._context = _context()
    self._batch: ts.Transaction | None = None
    self._pending: list[ts.WriteFutures] = []

  def _open(self, name: str, typestr: str, shape: tuple[int, ...], grid: tuple[int, ...], dtype: np.dtype) -> ts.TensorStore:
    spec = tensorstore_utils.build_array_write_spec(
        _info(name, self._directory, typestr, self._context),
        types.SaveArgs(chunk_byte_size=pieces.MAX_CHUNK_BYTES),
        global_shape=shape,
        local_shape=grid,
        dtype=dtype,
        use_ocdbt=True,
        process_index=self._group,
    )
    self._batch = self._batch or ts.Transaction()
    return ts.open(
        ts.Spec(spec.json), create=True, open=True, context=self._context, transaction=self._batch
    ).result()

  def write(self, parameter: Parameter, box: tuple[slice, ...], values: np.ndarray, dtype: str) -> None:
    """Adds a box of a parameter to the batch; `values` must stay as they are until `flush`."""
    grid = pieces.write_shape(parameter, np.dtype(dtype).itemsize)
    with self._named():
      store = self._open(array_name(parameter), "np.ndarray", parameter.shape, grid, np.dtype(dtype))
      self._pending.append(store[box].write(values.view(dtype), can_reference_source_data_indefinitely=True))

  def write_scalar(self, key: str, value: int) -> None:
    """Adds a number at the top of the tree to the batch."""
    scalar = np.asarray(value)
    with self._named():
      self._pending.append(self._open(array_name(key), "scalar", (), (), scalar.dtype).write(scalar))

  def flush(self) -> None:
    """Ends the batch: waits until it is in files.

    Raises:
      CheckpointError: a file cannot be written.
    """
    with self._named():
      for pending in self._pending:
        pending.copy.result()
      if self._batch is not None:
        self._batch.commit_sync()
    self._pending.clear()
    self._batch = None

  @contextlib.contextmanager
  def _named(self) -> Iterator[None]:
    try:
      yield
    except Exception as error:  # tensorstore has an exception type for each status
      raise CheckpointError(f"{self._directory.parents[1]}: cannot be written to ({_line(error)}).") from None


def finish(step: pathlib.Path, parameters: list[Parameter], custom_metadata: dict[str, Any]) -> None:
  """Merges the databases of all groups and writes the metadata, which makes a folder the checkpoint of a step.

  Args:
    step: the folder; the groups' databases are in its `items`.
    parameters: what was written.
    custom_metadata: what to record.

  Raises:
    CheckpointError: a chunk of an array is not there.
  """
  items = step / ITEMS
  context = _context()
  asyncio.run(ocdbt_utils.merge_ocdbt_per_process_files(epath.Path(items), ts_context=context, use_zarr3=True))
  _check_chunks(items, parameters, context)
  tree: dict[str, Any] = {
      "step": _info("step", items, "scalar", context),
      "opt_state": _info("opt_state", items, "Dict", context),
  }
  for parameter in parameters:
    node = tree
    for key in ("params", parameter.collection, *parameter.path[:-1]):
      node = node.setdefault(key, {})
    node[parameter.path[-1]] = _info(array_name(parameter), items, "np.ndarray", context)
  metadata = tree_metadata.InternalTreeMetadata.build(tree, use_ocdbt=True, use_zarr3=True)
  (items / METADATA).write_text(json.dumps(metadata.to_json()), encoding="utf-8")
  now = time.time_ns()
  recorded = checkpoint_metadata.StepMetadata(
      item_handlers={ITEMS: _ITEMS_HANDLER},
      init_timestamp_nsecs=now,
      commit_timestamp_nsecs=now,
      custom_metadata=custom_metadata,
  )
  text = json.dumps(step_metadata_serialization.serialize(recorded))
  (step / STEP_METADATA).write_text(text, encoding="utf-8")
  for folder in (items, step):
    (folder / atomicity_types.COMMIT_SUCCESS_FILE).write_text("Checkpoint commit was successful\n", encoding="utf-8")


def _check_chunks(items: pathlib.Path, parameters: list[Parameter], context: ts.Context) -> None:
  """Raises CheckpointError unless every chunk of every array is in the merged database."""
  spec = tensorstore_utils.build_kvstore_tspec(str(items), use_ocdbt=True)
  store = ts.KvStore.open(ts.KvStore.Spec(spec), context=context).result()
  chunks: dict[str, int] = {}
  for key in store.list().result():
    name, _, chunk = key.decode().partition("/")
    if chunk.startswith("c"):
      chunks[name] = chunks.get(name, 0) + 1
  for parameter in parameters:
    name = array_name(parameter)
    info = _info(name, items, "np.ndarray", context)
    spec = tensorstore_utils.build_array_read_spec(info, use_ocdbt=True).json
    array = ts.open(ts.Spec(spec), open=True, context=context).result()
    grid = array.chunk_layout.write_chunk.shape
    wanted = math.prod(-(-size // step) for size, step in zip(parameter.shape, grid))
    if tuple(array.shape) != parameter.shape or chunks.get(name, 0) != wanted:
      raise CheckpointError(f"{items}: {name} has {chunks.get(name, 0)} of its {wanted} chunks; report the fault.")
