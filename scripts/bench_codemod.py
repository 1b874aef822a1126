#!/usr/bin/env python3
"""Measure a whole migration beside the least that LibCST can do, LibCST's own command line and pyupgrade.

    python scripts/bench_codemod.py CHECKOUT --upstream DIR|VERSION [--rounds N] [--jobs N] [--json]

What is measured, each in fresh processes, one after the other in every round:
  migrate     `codemods.engine.run.migrate`: all rules over the whole tree, up to the finished report in memory
  command     `ling2-migrate run … --out DIR`: the same, with the output tree and the report written
  floor       parse, one no-op CSTTransformer visit and code generation of the Python files that the
              migration changes, in the same pool with the same number of processes
  libcst      `python -m libcst.tool codemod` with one RenameCommand, on a copy
  unformatted the same with `--no-format`: without black, which it runs on every changed file by default
  pyupgrade   `pyupgrade --py312-plus` on a copy, the files dealt out to the same number of processes
Seconds are wall time, median of the rounds; memory is the largest sum of the resident sizes of a process and
all its children, read from /proc every 50 ms (pages that forked processes share are counted once in each).
One run before the first round fills the cache of upstream's symbol table; its time is printed as `first`.
The given tree is never written to.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

MOST_OF_FLOOR, LEAST_OF_LIBCST, MOST_MEMORY = 2.0, 15.0, 600
_RENAME = ("--old_name", "MaxText.max_utils", "--new_name", "maxtext.utils.max_utils")


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured run: wall seconds, processor seconds of all its processes, peak memory in MB."""

    wall: float
    cpu: float
    memory: float


def measure(command: list[str], folder: Path, good: tuple[int, ...] = (0,)) -> Sample:
    """Run a command to its end.

    Raises:
        RuntimeError: its exit status is not a good one.
    """
    environment = os.environ | {
        "PATH": os.pathsep.join((os.path.dirname(sys.executable), os.environ.get("PATH", ""))),
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
    }
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            command, cwd=folder, stdout=output, stderr=output, env=environment
        )
        peak = _watch(process)
        wall = time.perf_counter() - start
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if process.returncode not in good:
            output.seek(0)
            raise RuntimeError(
                f"{' '.join(command[:6])} …: exit {process.returncode}\n{output.read()[-2000:]}"
            )
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Sample(wall, cpu, peak / 1e6)


def _watch(process: subprocess.Popen[bytes]) -> int:
    """Wait for a process; returns the peak of its tree's resident memory in bytes."""
    peak = 0
    done = threading.Event()

    def sample() -> None:
        nonlocal peak
        while not done.wait(0.05):
            peak = max(peak, _resident(process.pid))

    watcher = threading.Thread(target=sample)
    watcher.start()
    process.wait()
    done.set()
    watcher.join()
    return peak


def _resident(pid: int) -> int:
    total = 0
    pending = [pid]
    while pending:
        pid = pending.pop()
        with contextlib.suppress(OSError, ValueError):
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            total += pages * resource.getpagesize()
            for task in Path(f"/proc/{pid}/task").iterdir():
                pending += map(int, (task / "children").read_text().split())
    return total


# The measured programs ----------------------------------------------------------------------------------


def run_migrate(checkout: str, upstream: str, jobs: str, listing: str) -> None:
    """All rules, in this process and its pool; writes the changed Python files' paths to `listing`."""
    from codemods.engine.run import Settings, migrate

    migration = migrate(Settings(Path(checkout), upstream, jobs=int(jobs)))
    changed = [
        p
        for p, r in migration.results.items()
        if r.data is not None and p.endswith((".py", ".pyi"))
    ]
    Path(listing).write_text(json.dumps(changed), encoding="utf-8")


def run_floor(checkout: str, jobs: str, listing: str) -> None:
    """The least that any LibCST transformer does to the listed files, in the engine's own pool."""
    from codemods.engine.pool import run_tasks

    paths = json.loads(Path(listing).read_text(encoding="utf-8"))
    paths.sort(key=lambda p: -(Path(checkout) / p).stat().st_size)
    for path, size in run_tasks(int(jobs), {"root": Path(checkout)}, _no_op, paths):
        if not isinstance(size, int):
            raise RuntimeError(f"{path}: {size}")


def _no_op(path: str) -> int:
    import libcst as cst

    from codemods.engine.pool import worker_state

    module = cst.parse_module((worker_state()["root"] / path).read_bytes())
    return len(module.visit(cst.CSTTransformer()).bytes)


def run_pyupgrade(folder: str, jobs: str) -> None:
    """pyupgrade over a folder, its Python files dealt out to processes by size."""
    files = sorted(Path(folder).rglob("*.py"), key=lambda p: p.stat().st_size)
    program = str(Path(sys.executable).with_name("pyupgrade"))
    command = [program, "--py312-plus", "--exit-zero-even-if-changed"]
    processes = [
        subprocess.Popen([*command, *map(str, files[n :: int(jobs)])]) for n in range(int(jobs))
    ]
    # A syntax error in one file is an exit status too; the other files are done all the same.
    for process in processes:
        process.wait()


_PROGRAMS: dict[str, Callable[..., None]] = {
    "migrate": run_migrate,
    "floor": run_floor,
    "pyupgrade": run_pyupgrade,
}


def _program(name: str, *arguments: object) -> list[str]:
    return [sys.executable, str(Path(__file__).resolve()), "--program", name, *map(str, arguments)]


def warm_up(checkout: Path, upstream: str, jobs: int, scratch: Path) -> Sample:
    """A first run, which may have to read the upstream tree."""
    return measure(_program("migrate", checkout, upstream, jobs, scratch / "changed.json"), scratch)


def one_round(checkout: Path, upstream: str, jobs: int, scratch: Path) -> dict[str, Sample]:
    """Measure everything once."""

    def copy(name: str) -> Path:
        return Path(
            shutil.copytree(
                checkout, scratch / name, symlinks=True, ignore=shutil.ignore_patterns(".git")
            )
        )

    listing = scratch / "changed.json"
    out = scratch / "out"
    command = [sys.executable, "-m", "codemods.cli", "run", str(checkout), "--upstream", upstream]
    command += ["--out", str(out), "--jobs", str(jobs)]
    rename = [sys.executable, "-m", "libcst.tool", "codemod", "rename.RenameCommand"]
    rename += ["--hide-progress", "-j", str(jobs), *_RENAME, "."]
    found = {
        "migrate": measure(_program("migrate", checkout, upstream, jobs, listing), scratch),
        "command": measure(command, scratch, (0, 1)),
        "floor": measure(_program("floor", checkout, jobs, listing), scratch),
        "libcst": measure(rename, copy("libcst"), (0, 1)),
        "unformatted": measure([*rename, "--no-format"], copy("unformatted"), (0, 1)),
        "pyupgrade": measure(_program("pyupgrade", copy("pyupgrade"), jobs), scratch),
    }
    for name in ("libcst", "unformatted"):
        if not any(b"maxtext.utils" in p.read_bytes() for p in (scratch / name).rglob("*.py")):
            raise RuntimeError("LibCST's command line renamed nothing")
    for folder in (out, scratch / "libcst", scratch / "unformatted", scratch / "pyupgrade"):
        shutil.rmtree(folder)
    return found


def main(arguments: list[str]) -> int:
    """Measure and print; 1 if an aim is missed."""
    if arguments[:1] == ["--program"]:
        _PROGRAMS[arguments[1]](*arguments[2:])
        return 0
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--upstream", required=True, metavar="DIR|VERSION")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args(arguments)
    checkout = options.checkout.resolve()
    upstream = (
        str(Path(options.upstream).resolve())
        if Path(options.upstream).is_dir()
        else options.upstream
    )
    rounds = []
    with tempfile.TemporaryDirectory() as scratch:
        first = warm_up(checkout, upstream, options.jobs, Path(scratch))
        for number in range(1, options.rounds + 1):
            print(f"round {number} of {options.rounds}", file=sys.stderr)
            rounds.append(one_round(checkout, upstream, options.jobs, Path(scratch)))
        changed = len(json.loads((Path(scratch) / "changed.json").read_text(encoding="utf-8")))
    middle = {
        name: Sample(
            statistics.median(r[name].wall for r in rounds),
            statistics.median(r[name].cpu for r in rounds),
            max(r[name].memory for r in rounds),
        )
        for name in rounds[0]
    }
    ours = middle["migrate"]
    of_floor = ours.wall / middle["floor"].wall
    of_libcst = middle["libcst"].wall / ours.wall
    met = {
        f"{of_floor:.2f} times the floor (aim: at most {MOST_OF_FLOOR:g})": of_floor
        <= MOST_OF_FLOOR,
        f"{of_libcst:.1f} times as fast as LibCST's command line (aim: at least {LEAST_OF_LIBCST:g})": (
            of_libcst >= LEAST_OF_LIBCST
        ),
        f"{ours.memory:.0f} MB at the peak (aim: at most {MOST_MEMORY})": ours.memory
        <= MOST_MEMORY,
    }
    if options.json:
        data = {
            "jobs": options.jobs,
            "changed_python_files": changed,
            "first": asdict(first),
            "rounds": [{name: asdict(sample) for name, sample in r.items()} for r in rounds],
            "median": {name: asdict(sample) for name, sample in middle.items()},
            "aims": met,
        }
        print(json.dumps(data, indent=1))
    else:
        print(
            f"{checkout}: {changed} Python files changed, {options.jobs} processes, {options.rounds} rounds"
        )
        print(
            f"{'':11} {'seconds':>9} {'(least … most)':>18} {'processor s':>12} {'peak MB':>8} {'migrate is':>12}"
        )
        print(f"{'first':11} {first.wall:9.1f} {'':>18} {first.cpu:12.1f} {first.memory:8.0f}")
        for name, sample in middle.items():
            walls = [r[name].wall for r in rounds]
            spread = f"({min(walls):.1f} … {max(walls):.1f})"
            ratio = f"{ours.wall / sample.wall:.2f} ×" if name != "migrate" else ""
            print(
                f"{name:11} {sample.wall:9.1f} {spread:>18} {sample.cpu:12.1f} {sample.memory:8.0f} {ratio:>12}"
            )
        for line, good in met.items():
            print(f"{'ok  ' if good else 'MISS'} {line}")
    return 0 if all(met.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
