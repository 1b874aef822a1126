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

"""Doing a long job in groups, so that it can be stopped at any moment and taken up again; its result appears whole.

Everything is written into a folder beside the result, which gets its name at the end. A group's output is complete when
it has its place in that folder's `tree`, where it is moved once it is on the disk; a run does the groups that have no
place there yet. Several hosts can do groups of one job; whoever finds all of them there finishes it.
"""

import concurrent.futures
import contextlib
import dataclasses
import fcntl
import json
import os
import pathlib
import shutil
import threading
from typing import Callable, Container, Iterator, Sequence

from maxtext.checkpoint_conversion.ling2.errors import CheckpointError

JOB = "job.json"
TREE = "tree"
# Of a file or folder.
_LONGEST_NAME = 255
# What the metadata of a checkpoint takes beside its data.
_MARGIN_BYTES = 64 << 20


@dataclasses.dataclass(frozen=True)
class Group:
  """A part of a job.

  Attributes:
    place: where its output, a file or a folder, belongs in the result.
    nbytes: its length, about.
    write: writes the output into a folder that is given, under the last name of `place`.
  """

  place: pathlib.PurePath
  nbytes: int
  write: Callable[[pathlib.Path], None]


class Progress:
  """Counts bytes that are done; told to stop, `add` raises in all threads."""

  def __init__(self, total: int, report: Callable[[int, int], None] | None):
    self.total = total
    self.done = 0
    self._report = report
    self._lock = threading.Lock()
    self._stopped = threading.Event()

  def stop(self) -> None:
    """Ends the job at the next call of `add`."""
    self._stopped.set()

  def add(self, count: int) -> None:
    """Counts bytes; raises if the job is to stop."""
    if self._stopped.is_set():
      raise _StoppedError
    with self._lock:
      self.done += count
      if self._report:
        self._report(self.done, self.total)


class _StoppedError(Exception):
  """Another thread has failed."""


class MemoryBudget:
  """Lets as many pieces be worked on at a time as fit a number of bytes, and at least one."""

  def __init__(self, total: int):
    self._total = total
    self._used = 0
    self._condition = threading.Condition()

  @contextlib.contextmanager
  def take(self, count: int) -> Iterator[None]:
    """Waits until there is room for `count` bytes, which the block then has."""
    with self._condition:
      self._condition.wait_for(lambda: not self._used or self._used + count <= self._total)
      self._used += count
    try:
      yield
    finally:
      with self._condition:
        self._used -= count
        self._condition.notify_all()


@dataclasses.dataclass(frozen=True)
class Shard:
  """The groups that one of several hosts does: every `count`-th, from the `number`-th, which counts from 1."""

  number: int
  count: int

  @classmethod
  def parse(cls, text: str) -> "Shard":
    """Reads "2/4"; raises CheckpointError if it is none."""
    number, slash, count = text.partition("/")
    if not slash or not number.isdecimal() or not count.isdecimal() or not 1 <= int(number) <= int(count):
      raise CheckpointError(f"--shard {text}: i/n is needed, with i from 1 to n.")
    return cls(int(number), int(count))


def check_out(out: pathlib.Path, source: pathlib.Path) -> None:
  """Raises CheckpointError if the result cannot have its place: it is inside the source or around it, or has no folder."""
  place, held = _absolute(out), source.resolve()
  longest = max(os.fsencode(folder_of(out).name), os.fsencode(place.name), key=len)
  if len(longest) > _LONGEST_NAME:
    raise CheckpointError(f"{out}: is {len(longest) - _LONGEST_NAME} bytes too long a name; choose another OUT.")
  if place == held or held in place.parents:
    raise CheckpointError(f"{out}: lies in {source}, which is never written to; choose another OUT.")
  if place in held.parents:
    raise CheckpointError(f"{out}: holds {source}; choose another OUT.")
  for parent in place.parents:
    if os.path.lexists(parent):
      if not parent.is_dir():
        raise CheckpointError(f"{parent}: is no folder; choose another OUT.")
      if not os.access(parent, os.W_OK | os.X_OK):
        raise CheckpointError(f"{parent}: cannot be written to; choose another OUT.")
      break


def _absolute(out: pathlib.Path) -> pathlib.Path:
  # Without an error where links lead nowhere.
  return pathlib.Path(os.path.realpath(out.parent)) / out.name


def folder_of(out: pathlib.Path) -> pathlib.Path:
  """Returns the folder that a result is built in."""
  place = _absolute(out)
  return place.parent / f".{place.name}.ling2-ckpt"


def run(
    out: pathlib.Path,
    job: dict[str, str],
    groups: Sequence[Group],
    finish: Callable[[pathlib.Path], None],
    workers: int,
    shard: Shard | None = None,
    report: Callable[[int, int], None] | None = None,
    make_progress: Callable[[Progress], None] | None = None,
) -> bool:
  """Does a job, or what is left of it.

  Args:
    out: the result, which does not exist yet.
    job: names the job; what another one has left is not taken up.
    groups: its parts. Their places do not overlap.
    finish: completes the tree, given its folder. It may find what an earlier call, cut short, has left.
    workers: groups done at a time.
    shard: do only these groups.
    report: is told bytes done and in all.
    make_progress: is given what the groups count their bytes on.

  Returns:
    Whether `out` is there now; if not, other hosts have groups to do.

  Raises:
    CheckpointError: it cannot be done; without `shard`, nothing is left then.
  """
  place, folder = _absolute(out), folder_of(out)
  if _is_done(place, folder, job):
    return True
  if os.path.lexists(place):
    if shard and shard.number > len(groups) and all((place / group.place).exists() for group in groups):
      return True  # there was nothing for this host, and the others have been faster
    raise CheckpointError(f"{out}: exists; remove it or choose another OUT.")
  made: list[pathlib.Path] = []
  keep = shard is not None
  try:
    with contextlib.ExitStack() as stack:
      _begin(folder, job, made)
      name = f"{shard.number}of{shard.count}" if shard else "all"
      # Hosts that do parts are there together, one that does all is alone.
      for lock, shared in (("lock-all", shard is not None), (f"lock-{name}", False))[: 2 if shard else 1]:
        if not stack.enter_context(_locked(folder / lock, shared=shared)):
          keep = True
          raise CheckpointError(f"{out}: another process is at it.")
      for stale in folder.glob(f"part-{name}-*"):
        shutil.rmtree(stale)
      mine = [
          (number, group)
          for number, group in enumerate(groups)
          if (shard is None or number % shard.count == shard.number - 1) and not (folder / TREE / group.place).exists()
      ]
      _check_space(folder, sum(group.nbytes for _, group in mine))
      total = sum(group.nbytes for group in groups)
      progress = Progress(total, report)
      progress.add(total - sum(group.nbytes for _, group in mine))
      if make_progress:
        make_progress(progress)
      _do(folder, name, mine, workers, progress)
      places = {folder / TREE / group.place for group in groups}
      if not place.exists():
        if not all(path.exists() for path in places):
          return place.exists()  # another host may be there at once
        _finish(place, folder, places, finish)
    _tidy_up(folder)
    return True
  except BaseException as error:
    # A job that was interrupted is taken up again; one that failed leaves nothing.
    if isinstance(error, Exception) and not keep and not isinstance(error, _OtherJobError):
      shutil.rmtree(folder, ignore_errors=True)
      for parent in reversed(made):
        with contextlib.suppress(OSError):
          parent.rmdir()
    if isinstance(error, OSError):
      raise CheckpointError(f"{error.filename or place.parent}: {error.strerror or error}.") from None
    raise


def _finish(
    place: pathlib.Path, folder: pathlib.Path, done: Container[pathlib.Path], finish: Callable[[pathlib.Path], None]
) -> None:
  """Completes the tree and gives it its name, unless another host does."""
  try:
    with _locked(folder / "lock-finish", wait=True):
      if place.exists():
        return
      finish(folder / TREE)
      sync_tree(folder / TREE, skip=done)
      os.rename(folder / TREE, place)
      sync(place.parent)
  except FileNotFoundError:
    if not place.exists():
      raise


def _is_done(place: pathlib.Path, folder: pathlib.Path, job: dict[str, str]) -> bool:
  """Whether an earlier run was stopped after the result got its name, and before it had tidied up; tidies up then."""
  if not place.exists() or not folder.exists() or (folder / TREE).exists():
    return False
  if any(folder.iterdir()) and _job(folder) != job:
    return False
  _tidy_up(folder)
  return True


def _tidy_up(folder: pathlib.Path) -> None:
  """Removes the folder; what names the job goes last. Another host may do the same, or still be on its way out."""
  with contextlib.suppress(FileNotFoundError):
    for entry in folder.iterdir():
      if entry.name != JOB:
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink(missing_ok=True)
  (folder / JOB).unlink(missing_ok=True)
  with contextlib.suppress(OSError):
    folder.rmdir()


def _job(folder: pathlib.Path) -> dict[str, str] | None:
  try:
    return json.loads((folder / JOB).read_text(encoding="utf-8"))
  except (FileNotFoundError, ValueError):
    return None


def _begin(folder: pathlib.Path, job: dict[str, str], made: list[pathlib.Path]) -> None:
  """Makes the folder, or finds that it is of the same job."""
  for parent in reversed(folder.parents):
    if not parent.exists():
      parent.mkdir(exist_ok=True)
      made.append(parent)
  folder.mkdir(exist_ok=True)
  with _locked(folder / "lock-begin", wait=True):
    held = _job(folder)
    if held is None:
      for entry in folder.iterdir():
        if entry.name != "lock-begin":
          shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
      (folder / TREE).mkdir()
      write_text(folder / JOB, json.dumps(job))
    elif held != job:
      differs = ", ".join(sorted(key for key in {*job, *held} if job.get(key) != held.get(key)))
      raise _OtherJobError(
          f"{folder}: holds what is done of another conversion with this OUT ({differs} differ); remove it or choose another OUT."
      )


class _OtherJobError(CheckpointError):
  """What another job has left is not ours to remove."""


@contextlib.contextmanager
def _locked(path: pathlib.Path, wait: bool = False, shared: bool = False) -> Iterator[bool]:
  """Holds a lock, which the system takes back from a process that dies; yields whether it was free."""
  with open(path, "wb") as stream:
    try:
      fcntl.flock(stream, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
      free = True
    except BlockingIOError:
      free = False
    yield free


def _check_space(folder: pathlib.Path, needed: int) -> None:
  free = shutil.disk_usage(folder).free
  if needed + _MARGIN_BYTES > free:
    raise CheckpointError(f"{folder.parent}: {needed:,} bytes are needed, and {free:,} are free.")


def _do(folder: pathlib.Path, name: str, groups: list[tuple[int, Group]], workers: int, progress: Progress) -> None:
  """Writes groups and moves them to their places."""

  def one(number: int, group: Group) -> None:
    part = folder / f"part-{name}-{number}"
    part.mkdir()
    group.write(part)
    sync_tree(part, forget=True)
    place = folder / TREE / group.place
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
      os.rename(part / place.name, place)
    except OSError:
      if not place.exists():
        raise
      shutil.rmtree(part)  # a host with other parts, of which this is one too, was faster
      return
    sync(place.parent)
    part.rmdir()

  with concurrent.futures.ThreadPoolExecutor(workers) as pool:
    futures = [pool.submit(one, number, group) for number, group in groups]
    try:
      for future in concurrent.futures.as_completed(futures):
        future.result()
    except BaseException:
      progress.stop()
      pool.shutdown(wait=True, cancel_futures=True)
      raise


def write_text(path: pathlib.Path, text: str) -> None:
  """Writes a small file, whole or not at all."""
  partial = path.with_name(f".{path.name}.partial")
  partial.write_text(text, encoding="utf-8")
  sync(partial)
  os.rename(partial, path)
  sync(path.parent)


def sync(path: pathlib.Path, forget: bool = False) -> None:
  """Waits until a file, or the names in a folder, are on the disk; with `forget`, takes it out of the page cache."""
  descriptor = os.open(path, os.O_RDONLY)
  try:
    os.fsync(descriptor)
    if forget:
      os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
  finally:
    os.close(descriptor)


def sync_tree(folder: pathlib.Path, skip: Container[pathlib.Path] = (), forget: bool = False) -> None:
  """Waits until all files of a folder are on the disk, other than those of `skip`, which are there already.

  With `forget`, takes them out of the page cache: the memory is soon needed for what is written next.
  """
  for entry in folder.iterdir():
    if entry in skip:
      continue
    if entry.is_dir():
      sync_tree(entry, skip, forget)
    else:
      sync(entry, forget)
  sync(folder)
