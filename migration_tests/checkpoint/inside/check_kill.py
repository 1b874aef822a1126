"""Conversions that are killed, and taken up again."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from maxtext.checkpoint_conversion.ling2 import compare, convert, plan, work
from maxtext.checkpoint_conversion.ling2.errors import CheckpointError

from migration_tests.checkpoint import hf_folders

# This process only forks: none of its children may inherit threads of the libraries that convert.
FORK = multiprocessing.get_context("fork")
SETTINGS = convert.Settings(workers=2, group_bytes=25_000)
RANDOM_KILLS = 10


def in_child(call: Callable[[], Any], kill_after: float | None = None) -> int:
    """Run a function in a child, which is killed after some seconds; its exit status, negative if it was killed."""
    process = FORK.Process(target=call)
    process.start()
    process.join(kill_after)
    if process.is_alive() and process.pid is not None:
        os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert process.exitcode is not None
    return process.exitcode


def kill_at(count: int, *names: str) -> None:
    """From now on, kill this process before its `count`-th call of any of these functions of `os`."""
    steps = itertools.count(1)

    def counted(function: Any) -> Any:
        def step(*args: Any, **options: Any) -> Any:
            if next(steps) == count:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **options)

        return step

    for name in names:
        setattr(os, name, counted(getattr(os, name)))


def killed_at(call: Callable[[], Any], count: int) -> Callable[[], None]:
    """A function that is killed before its `count`-th change to names or wait for the disk."""

    def run() -> None:
        kill_at(count, "rename", "fsync", "mkdir", "unlink", "rmdir")
        call()

    return run


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hf_folders.small_folder(tmp_path_factory.mktemp("source") / "hf")


@pytest.fixture(scope="module")
def maxtext(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("maxtext") / "mt"
    assert in_child(lambda: to_maxtext(source, out)) == 0
    return out


def to_maxtext(source: Path, out: Path) -> None:
    convert.to_maxtext(plan.plan(source, True), out, "hf", "test", SETTINGS)


def to_hf(maxtext: Path, out: Path) -> None:
    convert.to_hf(convert.open_maxtext(maxtext), out, SETTINGS)


def restack(maxtext: Path, out: Path) -> None:
    convert.restack(convert.open_maxtext(maxtext), out, False, "test", SETTINGS)


def check_maxtext(out: Path, source: Path) -> None:
    assert compare.compare_values(out, source).identical


def check_hf(out: Path, source: Path) -> None:
    expected = hf_folders.read_folder(source)
    hf_folders.assert_same_bits(hf_folders.read_folder(out), expected)


def check_restacked(out: Path, source: Path) -> None:
    check_maxtext(out, source)


CONVERSIONS: list[tuple[Callable[[Path, Path], None], Callable[[Path, Path], None]]] = [
    (to_maxtext, check_maxtext),
    (to_hf, check_hf),
    (restack, check_restacked),
]


@pytest.mark.parametrize(("conversion", "check"), CONVERSIONS, ids=lambda f: f.__name__)
def test_killed_at_random_moments(
    conversion: Callable[[Path, Path], None],
    check: Callable[[Path, Path], None],
    source: Path,
    maxtext: Path,
    tmp_path: Path,
) -> None:
    held = source if conversion is to_maxtext else maxtext
    before = hf_folders.snapshot(held)
    start = time.monotonic()
    assert in_child(lambda: conversion(held, tmp_path / "whole")) == 0
    seconds = time.monotonic() - start
    shutil.rmtree(tmp_path / "whole")
    rng = random.Random(0)
    out = tmp_path / "out"
    kills = 0
    for _ in range(RANDOM_KILLS):
        # The rest takes less time than the whole, so a kill may come too late; then all begins anew.
        kills += in_child(lambda: conversion(held, out), rng.uniform(0, seconds)) < 0
        if out.exists():
            assert in_child(lambda: conversion(held, out)) in (0, 1)
            assert in_child(lambda: check(out, source)) == 0
            shutil.rmtree(out)
    assert kills > RANDOM_KILLS // 3
    assert in_child(lambda: conversion(held, out)) == 0
    assert in_child(lambda: check(out, source)) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert hf_folders.snapshot(held) == before


@pytest.mark.parametrize(("conversion", "check"), CONVERSIONS[:2], ids=lambda f: f.__name__)
def test_killed_at_every_kind_of_step(
    conversion: Callable[[Path, Path], None],
    check: Callable[[Path, Path], None],
    source: Path,
    maxtext: Path,
    tmp_path: Path,
) -> None:
    """Killed at ever later steps of one job, to and beyond its end, the first ones one by one."""
    held, out = source if conversion is to_maxtext else maxtext, tmp_path / "out"
    counts = [*range(1, 12), *range(13, 80, 6)]
    for count in counts:
        status = in_child(killed_at(lambda: conversion(held, out), count))
        if out.exists():
            assert in_child(lambda: check(out, source)) == 0
        if status == 0:
            break
    # The last steps, from the beginning: naming the result, and tidying up after it.
    while not out.exists():
        assert in_child(lambda: conversion(held, out)) == 0
    assert in_child(lambda: check(out, source)) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("count", range(1, 9))
def test_killed_while_tidying_up(count: int, source: Path, tmp_path: Path) -> None:
    """Once the result has its name, the same command says that it is done, whatever is left of the job."""
    out = tmp_path / "out"

    def run() -> None:
        original = os.rename

        def rename(old: Any, new: Any, **kwargs: Any) -> None:
            original(old, new, **kwargs)
            if Path(new) == out:
                kill_at(count, "fsync", "unlink", "rmdir", "scandir")

        os.rename = rename
        to_maxtext(source, out)

    status = in_child(run)
    assert out.exists()
    if status:
        assert in_child(lambda: to_maxtext(source, out)) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert in_child(lambda: check_maxtext(out, source)) == 0


def test_another_job_is_not_taken_up(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert in_child(killed_at(lambda: to_maxtext(source, out), 20)) == -signal.SIGKILL
    assert not out.exists()
    left = hf_folders.snapshot(work.folder_of(out))

    def other() -> None:
        with pytest.raises(CheckpointError, match="another conversion"):
            convert.to_maxtext(plan.plan(source, False), out, "hf", "test", SETTINGS)

    assert in_child(other) == 0
    assert hf_folders.snapshot(work.folder_of(out)) == left
    assert in_child(lambda: to_maxtext(source, out)) == 0


def test_a_source_that_has_changed_is_not_taken_up(tmp_path: Path) -> None:
    source, out = hf_folders.small_folder(tmp_path / "hf"), tmp_path / "out"
    assert in_child(killed_at(lambda: to_maxtext(source, out), 20)) == -signal.SIGKILL
    path = source / hf_folders.FIRST
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)

    def again() -> None:
        with pytest.raises(CheckpointError, match="source differ"):
            to_maxtext(source, out)

    assert in_child(again) == 0


def test_two_at_a_time(source: Path, tmp_path: Path) -> None:
    """The second process with the same result is refused, and the first is not disturbed."""
    out = tmp_path / "out"
    folder = work.folder_of(out)

    def slow() -> None:
        fill = convert.HfSource.fill

        def wait(*args: Any) -> None:
            time.sleep(0.02)
            fill(*args)

        convert.HfSource.fill = wait  # type: ignore[method-assign]
        to_maxtext(source, out)

    def second() -> None:
        with pytest.raises(CheckpointError, match="another process"):
            to_maxtext(source, out)

    first = FORK.Process(target=slow)
    first.start()
    while not any(folder.glob("part-*")):
        time.sleep(0.01)
    assert in_child(second) == 0
    first.join()
    assert first.exitcode == 0
    assert in_child(lambda: check_maxtext(out, source)) == 0
