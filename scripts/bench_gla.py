#!/usr/bin/env python3
"""Measure the GLA kernels for TPUs beside the chunked XLA scan and the least that memory allows, without a TPU.

    python scripts/bench_gla.py [--topo v5e v6e …] [--variants dense segments …] [--no-xla] [--json | --markdown]
    python scripts/bench_gla.py --cpu [--rounds N] [--json | --markdown]

The programs are those of gla_specs.py, the figures those of tpu_cost.py, whose words say what a score is.
  floor        bytes that must move, over the chip's bytes per cycle. Forward: every input of chunk_gla (q, k, v, the
               decay, and the initial state and segment ids where given) is read once, the output (and final state)
               written once. Backward: the same inputs and the cotangents are read once, the gradients of q, k, v
               (and the initial state) written once; nothing that was saved is counted. Without padding of tiles.
  XLA / ours   the best XLA scan of chunks of 64, 128 and 256 over ours: its forward over ours; its gradients, with the
               forward pass that they need, over train_forward + backward
  saved        what train_forward hands to backward beside inputs and outputs
  VMEM, spills of the kernel alone; spills are stores in its code, not times executed
  compile      tracing, lowering and compiling, on this machine
tpu7x has no known bytes per cycle: its scores count simulated cycles without the memory term, and it has no floor.
A variant is a case of gla_specs.py. Nothing here has run on a TPU; cycles compare programs on one chip only.

--cpu times forward + backward of the `xla` implementation on this machine by chunk size, in interleaved rounds:
median milliseconds, and their ratio to the best; `default` is chunk_size=None.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax
from rich.console import Console
from rich.table import Table

from scripts import gla_specs, tpu_cost

CHIPS = ("v5e", "v6e", "v5p", "tpu7x")
OURS = ("forward", "train_forward", "backward")
TRAINING = "train_forward + backward"
COLUMNS = (
    "program",
    "score",
    "kernel cycles",
    "floor",
    "score / floor",
    "XLA / ours",
    "HBM temp",
    "saved",
    "VMEM",
    "spills",
    "compile",
)
UNITS = "Score, cycles and floor in millions of cycles, memory in MB, compile in seconds."
CPU_CHUNKS = (16, 32, 64, 128, 256, 512)


@dataclass(frozen=True, slots=True)
class Measured:
    """One program on one chip: its figures, or why there are none."""

    chip: str
    variant: str
    program: str
    cost: tpu_cost.Cost | None
    error: str | None
    floor: float | None
    saved_bytes: int | None


def _bytes(shapes: Iterable[jax.ShapeDtypeStruct]) -> int:
    return sum(math.prod(s.shape) * s.dtype.itemsize for s in shapes)


def results_of(case: gla_specs.Case) -> list[jax.ShapeDtypeStruct]:
    """The output, shaped like v, and the final state, shaped like the initial one."""
    _, _, v, _, *rest = case.inputs()
    return [v, *rest[: case.states]]


def floor_bytes(case: gla_specs.Case, program: str) -> int:
    """The bytes that a program must move; the docstring of this file says which."""
    q, k, v, _, *rest = inputs = case.inputs()
    moved = _bytes(inputs) + _bytes(results_of(case))
    return moved + _bytes([q, k, v, *rest[: case.states]]) if "backward" in program else moved


def measure(chip: str, variant: str, program: str) -> Measured:
    """Measure one program; what fails is a row with its reason."""
    case = gla_specs.CASES[variant]
    rate = tpu_cost.BYTES_PER_CYCLE.get(chip)
    spec = f"{gla_specs.__file__}:{gla_specs.spec_name(program, variant)}"
    floor = floor_bytes(case, program) / rate if rate else None
    try:
        cost = tpu_cost.measure(spec, chip)
    except tpu_cost.CostError as error:
        return Measured(chip, variant, program, None, str(error), floor, None)
    saved = None
    if program == "train_forward":
        saved = cost.hbm_output_bytes - _bytes(results_of(case))
    return Measured(chip, variant, program, cost, None, floor, saved)


def _number(value: float | None, digits: int = 3) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _sum(values: Sequence[float | None]) -> float | None:
    """The sum where there are values and all are known."""
    known = [v for v in values if v is not None]
    return sum(known) if known and len(known) == len(values) else None


def _score(*found: Measured | None) -> float | None:
    return _sum([m.cost.score if m is not None and m.cost is not None else None for m in found])


def _best(found: Sequence[Measured]) -> Measured | None:
    scored = [m for m in found if _score(m) is not None]
    return min(scored, key=lambda m: _score(m) or 0) if scored else None


def rows(found: Sequence[Measured], best_only: bool) -> list[list[str]]:
    """The table of one chip and variant, as text."""
    by_name = {m.program: m for m in found}
    training = [by_name[p] for p in OURS[1:] if p in by_name]
    xla = {
        kind: [m for m in found if m.program.startswith(f"xla_{kind}")]
        for kind in ("forward", "backward")
    }
    best = {kind: _best(measured) for kind, measured in xla.items()}
    table = []

    def add(name: str, members: Sequence[Measured], rival: Measured | None) -> None:
        costs = [m.cost for m in members if m.cost is not None]
        errors = [m.error or "; ".join(m.cost.incomplete if m.cost else []) for m in members]
        if len(costs) < len(members):
            table.append([name, "; ".join(e for e in errors if e), *[""] * (len(COLUMNS) - 2)])
            return
        score, floor, theirs = _score(*members), _sum([m.floor for m in members]), _score(rival)
        if score is None:
            known = sum(c.known for c in costs)
            shown = f"≥ {known / 1e6:.3f} ({'; '.join(e for e in errors if e)})"
        else:
            shown = f"{score / 1e6:.3f}"
        cycles = _sum([c.kernel_cycles if c.kernels else None for c in costs])
        vmem = max((c.vmem_bytes or 0 for c in costs), default=0)
        saved = _sum([m.saved_bytes for m in members if m.program == "train_forward"])
        spills = _sum([c.spills for c in costs])
        table.append(
            [
                name,
                shown,
                _number(cycles / 1e6 if cycles is not None else None),
                _number(floor / 1e6 if floor is not None else None),
                _number(score / floor if score and floor else None, 2),
                _number(theirs / score if theirs and score else None, 1),
                _number(max(c.hbm_temp_bytes for c in costs) / 1e6, 1),
                _number(saved / 1e6 if saved is not None else None, 1),
                _number(vmem / 1e6 if vmem else None, 1),
                _number(spills, 0),
                _number(sum(c.lower_seconds + c.compile_seconds for c in costs), 1),
            ]
        )

    for program in OURS:
        if program in by_name:
            rival = best["forward"] if program == "forward" else None
            add(program, [by_name[program]], rival)
    if len(training) == 2:
        add(TRAINING, training, best["backward"])
    for kind, measured in xla.items():
        chosen = best[kind]
        for m in [chosen] if best_only and chosen is not None else measured:
            add(m.program, [m], None)
    return table


def _markdown(title: str, columns: Sequence[str], table: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)], *table]
    return "\n".join([f"**{title}**", "", *("| " + " | ".join(line) + " |" for line in lines), ""])


def _show(
    title: str, columns: Sequence[str], table: Sequence[Sequence[str]], markdown: bool
) -> None:
    if markdown:
        print(_markdown(title, columns, table))
        return
    console = Console(width=None if sys.stdout.isatty() else 170)
    drawn = Table(title=title)
    for index, column in enumerate(columns):
        drawn.add_column(column, justify="right" if index else "left")
    for line in table:
        drawn.add_row(*line)
    console.print(drawn)


def time_on_cpu(dtype: str, rounds: int) -> dict[str, float]:
    """Median milliseconds of forward + backward of the `xla` implementation by chunk size, on this machine."""
    case = gla_specs.Case(batch=1, length=2048, heads=8, dtype=dtype)
    keys = jax.random.split(jax.random.key(0), 4)
    q, k, v, cotangent = (
        jax.random.normal(key, shape.shape, shape.dtype)
        for key, shape in zip(keys, [*case.inputs()[:3], case.inputs()[2]], strict=True)
    )
    g_gamma = -(2.0 ** -jax.numpy.arange(1, case.heads + 1, dtype=jax.numpy.float32))

    def step(chunk: int | None) -> jax.stages.Wrapped:
        def gradients(*arguments: jax.Array) -> object:
            output, vjp = case.vjp("xla", chunk, *arguments[:4])
            return output, vjp(arguments[4])

        return jax.jit(gradients)

    steps = {"default": step(None)} | {str(c): step(c) for c in CPU_CHUNKS}
    times: dict[str, list[float]] = {name: [] for name in steps}
    for count in range(rounds + 1):
        for name, run in steps.items():
            start = time.perf_counter()
            jax.block_until_ready(run(q, k, v, g_gamma, cotangent))
            if count:  # the first round compiles
                times[name].append(1e3 * (time.perf_counter() - start))
    return {name: statistics.median(spent) for name, spent in times.items()}


def _cpu(options: argparse.Namespace) -> int:
    found = {dtype: time_on_cpu(dtype, options.rounds) for dtype in ("float32", "bfloat16")}
    if options.json:
        print(json.dumps(found, indent=1))
        return 0
    for dtype, times in found.items():
        best = min(times.values())
        table = [[name, f"{ms:.1f}", f"{ms / best:.2f}"] for name, ms in times.items()]
        title = f"forward + backward of `xla` on this CPU, B=1, T=2048, H=8, K=V=128, {dtype}"
        _show(title, ("chunk", "ms", "/ best"), table, options.markdown)
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Exit status 1 when a figure is missing, 2 when nothing can be measured."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--topo", nargs="+", default=list(CHIPS), choices=sorted(tpu_cost.TOPOLOGIES)
    )
    parser.add_argument("--variants", nargs="+", default=["dense"], choices=list(gla_specs.CASES))
    parser.add_argument("--no-xla", action="store_true", help="leave the XLA scan out")
    parser.add_argument(
        "--cpu", action="store_true", help="time the xla implementation on this CPU"
    )
    parser.add_argument("--rounds", type=int, default=7, help="rounds of --cpu (default: 7)")
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("--json", action="store_true", help="print every figure as JSON")
    shape.add_argument("--markdown", action="store_true", help="print Markdown, the best scan only")
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    jax.config.update("jax_platforms", "cpu")
    if options.cpu:
        return _cpu(options)
    if not tpu_cost.has_libtpu():
        print(f"bench_gla: {tpu_cost.NO_LIBTPU}", file=sys.stderr)
        return 2
    programs = list(OURS)
    if not options.no_xla:
        for kind in ("forward", "backward"):
            programs += [f"xla_{kind}_{chunk}" for chunk in gla_specs.XLA_CHUNKS]
    everything: list[Measured] = []
    progress = Console(stderr=True)
    for chip in options.topo:
        for variant in options.variants:
            found = []
            for program in programs:
                with progress.status(f"{chip} {variant} {program}"):
                    found.append(measure(chip, variant, program))
            everything += found
            if not options.json:
                table = rows(found, best_only=options.markdown)
                _show(f"{chip}, {variant}", COLUMNS, table, options.markdown)
    if options.json:
        print(json.dumps([dataclasses.asdict(m) for m in everything], indent=1))
    else:
        print(UNITS)
    return 0 if all(_score(m) is not None for m in everything) else 1


if __name__ == "__main__":
    sys.exit(main())
