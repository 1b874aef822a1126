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

"""Checkpoints in Hugging Face's format: headers of safetensors files, their checks, ranges of bytes.

Needs numpy alone. Data is read by ranges into memory that the caller owns and never mapped, so that a file that shrinks
or fails under a conversion is an error that names it.
"""

import contextlib
import dataclasses
import errno
import fcntl
import hashlib
import json
import math
import mmap
import os
import pathlib
import struct
from typing import Any

from maxtext.checkpoint_conversion.ling2.errors import CheckpointError
import numpy as np

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
SUFFIX = ".safetensors"
# What tells a MaxText checkpoint, in the folder of its arrays, of its step, or in one of steps.
_MAXTEXT_SIGNS = ("_METADATA", "*/_METADATA", "*/*/_METADATA")
# What the config of a Ling2 checkpoint calls its model.
MODEL_TYPES = ("bailing_hybrid", "bailing_moe_v2_5")
# As in the safetensors library.
MAX_HEADER_BYTES = 100_000_000

# Bytes of an element.
_ELEMENT_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
# safetensors' names of the dtypes of weights, and numpy's.
WEIGHT_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
SAFETENSORS_DTYPES = {name: code for code, name in WEIGHT_DTYPES.items()}
# Elements are moved, not computed with, as unsigned integers of their size.
MOVED_AS = {"float64": np.uint64, "float32": np.uint32, "float16": np.uint16, "bfloat16": np.uint16}


@dataclasses.dataclass(frozen=True)
class Tensor:
  """Where a tensor lies.

  Attributes:
    name: its name.
    file: the file.
    dtype: numpy's name of its dtype.
    shape: its shape.
    offset: of its first byte in the file.
    nbytes: its length.
  """

  name: str
  file: pathlib.Path
  dtype: str
  shape: tuple[int, ...]
  offset: int
  nbytes: int


@dataclasses.dataclass(frozen=True)
class HfCheckpoint:
  """A checkpoint as its headers have it.

  Attributes:
    directory: the folder.
    config: the contents of config.json.
    config_text: the same, as it is written.
    tensors: by name; of one that several files have, the first.
    duplicates: name → the files, for those that several have.
    unlisted: safetensors files with tensors that the index does not name; nothing is read from them.
    states: file → size and time of change, for `read`.
    digest: of all headers, sizes, times of change and the config.
  """

  directory: pathlib.Path
  config: dict[str, Any]
  config_text: str
  tensors: dict[str, Tensor]
  duplicates: dict[str, list[pathlib.Path]]
  unlisted: list[pathlib.Path]
  states: dict[pathlib.Path, tuple[int, int]]
  digest: str

  @property
  def shapes(self) -> dict[str, tuple[int, ...]]:
    """Shapes by name."""
    return {name: tensor.shape for name, tensor in self.tensors.items()}

  def read(self, tensor: Tensor, into: np.ndarray, start: int = 0) -> None:
    """Reads bytes of a tensor.

    Args:
      tensor: the tensor.
      into: a contiguous array of bytes, which is filled.
      start: the first byte to read, counted from the tensor's first.

    Raises:
      CheckpointError: the file cannot be read, or is no longer what it was.
    """
    try:
      descriptor = os.open(tensor.file, os.O_RDONLY)
      try:
        if _state(os.fstat(descriptor)) != self.states[tensor.file]:
          raise CheckpointError(f"{tensor.file}: changed while it was being read.")
        view, at = memoryview(into).cast("B"), tensor.offset + start
        while view:
          count = os.preadv(descriptor, [view], at)
          if not count:
            raise CheckpointError(f"{tensor.file}: ends before the last byte of {tensor.name}.")
          view, at = view[count:], at + count
      finally:
        os.close(descriptor)
    except OSError as error:
      raise CheckpointError(f"{tensor.file}: cannot be read at {tensor.name} ({error.strerror or error}).") from None


def open_checkpoint(directory: pathlib.Path) -> HfCheckpoint:
  """Reads the config, the index and all headers of a checkpoint, and checks that they hold together.

  Tensors that several files have are left to the caller: see `HfCheckpoint.duplicates`.

  Raises:
    CheckpointError: what is missing, unreadable or contradicts itself.
  """
  directory = existing_folder(directory)
  config, config_text = read_config(directory)
  index = _read_index(directory)
  digest = hashlib.sha256(config_text.encode())
  # Hidden files are those of file managers and other systems.
  files = sorted(path for path in directory.iterdir() if path.name.endswith(SUFFIX) and not path.name.startswith("."))
  unlisted: list[pathlib.Path] = []
  if index is not None:
    digest.update(json.dumps(index, sort_keys=True).encode())
    listed = {directory / name for name in index.values()}
    unlisted = [path for path in files if path not in listed and not _is_empty(path)]
    files = sorted(listed)
  elif not files:
    raise CheckpointError(f"{directory}: has neither {INDEX} nor any {SUFFIX} file.")
  tensors: dict[str, Tensor] = {}
  duplicates: dict[str, list[pathlib.Path]] = {}
  states: dict[pathlib.Path, tuple[int, int]] = {}
  for file in files:
    header, states[file], held = read_header(file)
    digest.update(f"{file.name}\0{states[file]}\0".encode() + header)
    for tensor in held:
      if tensor.name in tensors:
        duplicates.setdefault(tensor.name, [tensors[tensor.name].file]).append(file)
      else:
        tensors[tensor.name] = tensor
  if index is not None:
    for name, file_name in index.items():
      if name not in tensors or (tensors[name].file.name != file_name and name not in duplicates):
        raise CheckpointError(f"{directory / INDEX}: says that {file_name} has {name}, which it does not.")
  return HfCheckpoint(directory, config, config_text, tensors, duplicates, unlisted, states, digest.hexdigest())


def existing_folder(path: pathlib.Path) -> pathlib.Path:
  """Returns the absolute path of a folder; raises CheckpointError if it is none, or not there."""
  try:
    if path.is_dir():
      return path.resolve()
    reason = "is no folder" if path.exists() else "there is no such folder"
  except OSError as error:
    reason = str(error.strerror)
  raise CheckpointError(f"{path}: {reason}.")


def _is_empty(file: pathlib.Path) -> bool:
  """Whether a file is known to hold no tensor, so that an index cannot name it."""
  try:
    return not read_header(file)[2]
  except CheckpointError:
    return False


def read_config(path: pathlib.Path) -> tuple[dict[str, Any], str]:
  """Returns the config of a checkpoint, and its text.

  Args:
    path: the file, or the folder that it is in.

  Raises:
    CheckpointError: it is missing, no JSON object, or of another model.
  """
  if path.is_dir():
    folder, path = path, path / CONFIG
    if not os.path.lexists(path) and any(any(folder.glob(pattern)) for pattern in _MAXTEXT_SIGNS):
      raise CheckpointError(f"{folder}: has no {CONFIG}; it is a MaxText checkpoint, and a Hugging Face one is needed.")
  text = _read_text(path)
  return parse_config(path, text), text


def parse_config(path: pathlib.Path, text: str) -> dict[str, Any]:
  """Returns the config that a text is; raises CheckpointError, which names `path`, if it is none of this model."""
  config = _parse_object(path, text)
  if "model_type" not in config:
    raise CheckpointError(f"{path}: has no model_type; one of {', '.join(MODEL_TYPES)} is needed.")
  if config["model_type"] not in MODEL_TYPES:
    raise CheckpointError(f"{path}: model_type is {config['model_type']!r}; one of {', '.join(MODEL_TYPES)} is needed.")
  return config


def _read_text(path: pathlib.Path) -> str:
  try:
    return path.read_text(encoding="utf-8-sig")
  except FileNotFoundError:
    raise CheckpointError(f"{path}: there is no such file.") from None
  except OSError as error:
    raise CheckpointError(f"{path}: cannot be read ({error.strerror}).") from None
  except UnicodeDecodeError:
    raise CheckpointError(f"{path}: is no UTF-8 text.") from None


def _parse_object(path: pathlib.Path, text: str, part: str = "") -> dict[str, Any]:
  """Parses a JSON object that has no key twice."""

  def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
      keys = [key for key, _ in pairs]
      key = next(key for key in keys if keys.count(key) > 1)
      raise CheckpointError(f"{path}: {part}has {key!r} twice.")
    return made

  try:
    value = json.loads(text, object_pairs_hook=unique)
  except (ValueError, RecursionError) as error:
    raise CheckpointError(f"{path}: {part or 'it '}is no JSON ({error}).") from None
  if not isinstance(value, dict):
    raise CheckpointError(f"{path}: {part or 'it '}is no JSON object.")
  return value


def _read_index(directory: pathlib.Path) -> dict[str, str] | None:
  """Returns tensor → file name, or None if there is no index."""
  path = directory / INDEX
  if not os.path.lexists(path):
    return None
  weight_map = _parse_object(path, _read_text(path)).get("weight_map")
  if not isinstance(weight_map, dict) or not weight_map:
    raise CheckpointError(f"{path}: has no weight_map.")
  for name, file_name in weight_map.items():
    if not isinstance(file_name, str) or not file_name or file_name != os.path.basename(file_name):
      raise CheckpointError(f"{path}: {name} is said to be in {file_name!r}, which is no file of this folder.")
    if not os.path.lexists(directory / file_name):
      raise CheckpointError(f"{path}: names {file_name} (for {name}), and there is no such file.")
  return weight_map


def _state(stat: os.stat_result) -> tuple[int, int]:
  return stat.st_size, stat.st_mtime_ns


def read_header(file: pathlib.Path) -> tuple[bytes, tuple[int, int], list[Tensor]]:
  """Returns the header of a safetensors file, the file's state, and the tensors in the order of their data.

  Raises:
    CheckpointError: the file cannot be read, or its header is not what the format asks for.
  """
  try:
    with open(file, "rb") as stream:
      stat = os.fstat(stream.fileno())
      start = stream.read(8)
      if len(start) < 8:
        raise CheckpointError(f"{file}: has {stat.st_size} bytes, too few for a safetensors file.")
      (length,) = struct.unpack("<Q", start)
      if length > stat.st_size - 8:
        raise CheckpointError(f"{file}: its header is to be {length} bytes long, and the file has {stat.st_size}.")
      if length > MAX_HEADER_BYTES:
        raise CheckpointError(f"{file}: its header is to be {length} bytes long; the format allows {MAX_HEADER_BYTES}.")
      header = stream.read(length)
  except OSError as error:
    raise CheckpointError(f"{file}: cannot be read ({error.strerror}).") from None
  if len(header) < length:
    raise CheckpointError(f"{file}: ends within its header.")
  try:
    text = header.decode("utf-8")
  except UnicodeDecodeError:
    raise CheckpointError(f"{file}: its header is no UTF-8 text.") from None
  entries = _parse_object(file, text, "its header ")
  entries.pop("__metadata__", None)
  data_start = 8 + length
  tensors = [_tensor(file, name, entry, data_start, stat.st_size) for name, entry in entries.items()]
  tensors.sort(key=lambda tensor: (tensor.offset, tensor.nbytes))
  end, previous = data_start, ""
  for tensor in tensors:
    if tensor.offset < end:
      raise CheckpointError(f"{file}: the data of {previous} and {tensor.name} overlap.")
    if tensor.offset > end:
      raise CheckpointError(f"{file}: {tensor.offset - end} bytes before {tensor.name} belong to no tensor.")
    end, previous = tensor.offset + tensor.nbytes, tensor.name
  if end != stat.st_size:
    raise CheckpointError(f"{file}: {stat.st_size - end} bytes at its end belong to no tensor.")
  return header, _state(stat), tensors


def _tensor(file: pathlib.Path, name: str, entry: Any, data_start: int, file_size: int) -> Tensor:
  """Checks one entry of a header."""
  if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
    raise CheckpointError(f"{file}: {name} lacks dtype, shape or data_offsets in the header.")
  code, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
  if not isinstance(code, str) or code not in WEIGHT_DTYPES:
    raise CheckpointError(f"{file}: {name} has dtype {code}; weights are {', '.join(WEIGHT_DTYPES)}.")
  if not isinstance(shape, list) or not all(_is_count(size) for size in shape):
    raise CheckpointError(f"{file}: {name} has shape {shape!r}, which is no list of sizes.")
  if not isinstance(offsets, list) or len(offsets) != 2 or not all(_is_count(at) for at in offsets):
    raise CheckpointError(f"{file}: {name} has data_offsets {offsets!r}; two offsets are needed.")
  begin, end = offsets
  if begin > end:
    raise CheckpointError(f"{file}: {name} has data_offsets {offsets}, which end before they begin.")
  nbytes = math.prod(shape) * _ELEMENT_BYTES[code]
  if end - begin != nbytes:
    raise CheckpointError(f"{file}: {name} has {end - begin} bytes, and {code} of shape {shape} takes {nbytes}.")
  if data_start + end > file_size:
    raise CheckpointError(
        f"{file}: {name} ends at byte {data_start + end}, and the file has {file_size}: it is truncated, or data_offsets are wrong."
    )
  return Tensor(name, file, WEIGHT_DTYPES[code], tuple(shape), data_start + begin, nbytes)


def _is_count(value: Any) -> bool:
  return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def build_header(tensors: list[tuple[str, str, tuple[int, ...]]]) -> tuple[bytes, dict[str, int]]:
  """Returns the beginning of a safetensors file, and the offset in the file of each tensor's data.

  Args:
    tensors: name, numpy's name of the dtype, and shape, in the order of the data.
  """
  entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
  begin, begins = 0, {}
  for name, dtype, shape in tensors:
    code = SAFETENSORS_DTYPES[dtype]
    end = begin + math.prod(shape) * _ELEMENT_BYTES[code]
    entries[name] = {"dtype": code, "shape": list(shape), "data_offsets": [begin, end]}
    begins[name] = begin
    begin = end
  header = json.dumps(entries, separators=(",", ":")).encode()
  header += b" " * (-len(header) % 8)
  start = 8 + len(header)
  return struct.pack("<Q", len(header)) + header, {name: start + at for name, at in begins.items()}


# A multiple of what any device or file system wants for the places and lengths of what is written past the page cache.
_BLOCK = 1 << 16


class SequentialFile:
  """A large file that is written once from its beginning to its end, past the page cache where the system allows that.

  What nobody is to read soon has no business there: copying it in is slow, and it displaces what others need.

  Attributes:
    position: where the next bytes go.
  """

  _BUFFER_BYTES = 16 << 20

  def __init__(self, path: pathlib.Path):
    """Makes the file, or replaces it."""
    self.position = 0
    self._filled = 0
    self._buffer = _aligned(self._BUFFER_BYTES)
    self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    self._set_direct(True)

  def room(self, size: int) -> np.ndarray:
    """Returns the next `size` bytes, to be filled before the next call."""
    if self._filled + size > self._buffer.size:
      self._flush()
    if self._filled + size > self._buffer.size:
      larger = _aligned(self._filled + size)
      larger[: self._filled] = self._buffer[: self._filled]
      self._buffer = larger
    begin = self._filled
    self._filled += size
    self.position += size
    return self._buffer[begin : self._filled]

  def _flush(self) -> None:
    """Writes all whole blocks."""
    whole = self._filled // _BLOCK * _BLOCK
    self._write(self._buffer[:whole])
    rest = self._filled - whole
    self._buffer[:rest] = self._buffer[whole : self._filled]
    self._filled = rest

  def _set_direct(self, direct: bool) -> bool:
    """Has the system write past the page cache, or through it; returns whether that is a change."""
    flag = getattr(os, "O_DIRECT", 0)
    held = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
    wanted = held | flag if direct else held & ~flag
    with contextlib.suppress(OSError):  # not every file system can
      fcntl.fcntl(self._descriptor, fcntl.F_SETFL, wanted)
    return wanted != held

  def _write(self, data: np.ndarray) -> None:
    view = memoryview(data)
    while view:
      try:
        view = view[os.write(self._descriptor, view) :]
      except OSError as error:
        if error.errno != errno.EINVAL or not self._set_direct(False):
          raise

  def __enter__(self) -> "SequentialFile":
    return self

  def __exit__(self, kind: type[BaseException] | None, *unused: object) -> None:
    try:
      if kind is None:
        self._flush()
        self._write(self._buffer[: _whole_blocks(self._filled)])
        os.ftruncate(self._descriptor, self.position)
    finally:
      os.close(self._descriptor)


def _aligned(size: int) -> np.ndarray:
  """Returns bytes that begin at a page of memory, whole blocks of them."""
  return np.frombuffer(mmap.mmap(-1, _whole_blocks(size)), np.uint8)


def _whole_blocks(size: int) -> int:
  return -(-size // _BLOCK) * _BLOCK


def build_index(files: list[pathlib.Path]) -> str:
  """Returns the index of what safetensors files hold, read from the files themselves."""
  weight_map, total = {}, 0
  for file in files:
    for tensor in read_header(file)[2]:
      weight_map[tensor.name] = file.name
      total += tensor.nbytes
  index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
  return json.dumps(index, indent=2) + "\n"
