#!/usr/bin/env python3
"""Compile Ling2's training step for TPUs that are not there, scanned and not, and print what that costs.

    python scripts/bench_scan.py TREE [--topo v5p-32 …] [--lower-only] [--json] [option=value …]

TREE is an upstream tree with the model in it (`ling2-migrate overlay`). MaxText's own `train_compile` does the work, with
`model_name=ling2` and the options given; each program is compiled in a process of its own.
  trace      seconds to trace and lower the training step
  compile    seconds of the TPU compiler, and processor seconds of all its threads
  HLO        size of the lowered program (StableHLO text), MB
  argument   HBM of parameters, optimizer state and batch per device, GB
  temp       HBM of everything else while the step runs, per device, GB; `needs` where that is more than the device has
--lower-only stops before the compiler. Times are of this machine; on one that does other work at the same time, compare
processor seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

TOPOLOGIES = ("v5p-32", "v6e-64")
# Without them libtpu looks for the machine that it runs on, and only one process may load it.
ENVIRONMENT = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "DECOUPLE_GCLOUD": "TRUE",
    "JAX_PLATFORMS": "cpu",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
}
RUN = {
    "model_name": "ling2",
    "run_name": "bench_scan",
    "override_model_config": True,
    "compile_topology_num_slices": 1,
    "dataset_type": "synthetic",
    "enable_checkpointing": False,
    "jax_cache_dir": "",
    "log_config": False,
    "per_device_batch_size": 1,
    "skip_jax_distributed_system": True,
}
PREFIX = "bench_scan: "


@dataclass(frozen=True, slots=True)
class Measured:
    """One program; the compiler's figures are None where it did not run."""

    topology: str
    scan: bool
    trace_seconds: float
    hlo_bytes: int
    compile_seconds: float | None = None
    compile_cpu_seconds: float | None = None
    argument_bytes: int | None = None
    temp_bytes: int | None = None
    out_of_memory: str | None = None


class LoweredError(Exception):
    """Ends `train_compile` before the compiler, or where the program does not fit into HBM."""


def child(options: dict[str, Any], lower_only: bool) -> None:
    """Run `train_compile` in this process and print what it cost as a line of JSON."""
    import jax
    from maxtext.trainers.pre_train import train_compile
    from maxtext.utils.globals import MAXTEXT_CONFIGS_DIR

    figures: dict[str, Any] = {}
    compile_lowered = jax.stages.Lowered.compile
    jit_and_compile = train_compile.jit_and_compile
    start = time.perf_counter()

    def timed(*args: Any, **kwargs: Any) -> Any:
        nonlocal start
        start = time.perf_counter()
        return jit_and_compile(*args, **kwargs)

    def measured(lowered: Any, *args: Any, **kwargs: Any) -> Any:
        figures["trace_seconds"] = time.perf_counter() - start
        figures["hlo_bytes"] = len(lowered.as_text())
        if lower_only:
            raise LoweredError
        begin, cpu_begin = time.perf_counter(), time.process_time()
        try:
            compiled = compile_lowered(lowered, *args, **kwargs)
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            figures["out_of_memory"] = str(error).splitlines()[0]
            raise LoweredError from error
        figures["compile_seconds"] = time.perf_counter() - begin
        figures["compile_cpu_seconds"] = time.process_time() - cpu_begin
        memory = compiled.memory_analysis()
        figures["argument_bytes"] = memory.argument_size_in_bytes
        figures["temp_bytes"] = memory.temp_size_in_bytes
        return compiled

    train_compile.jit_and_compile = timed
    jax.stages.Lowered.compile = measured
    argv = ["train_compile", f"{MAXTEXT_CONFIGS_DIR}/base.yml"]
    with contextlib.suppress(LoweredError):
        train_compile.main(argv + [f"{name}={value}" for name, value in options.items()])
    print(PREFIX + json.dumps(figures), flush=True)


def measure(
    tree: Path, topology: str, scan: bool, given: Sequence[str], lower_only: bool
) -> Measured:
    """Compile one program in a process of its own.

    Raises:
        RuntimeError: `train_compile` failed; the message holds the end of its output.
    """
    options = RUN | {"compile_topology": topology, "scan_layers": scan}
    options |= dict(option.split("=", 1) for option in given)
    flags = ["--lower-only"] if lower_only else []
    result = subprocess.run(
        [sys.executable, __file__, "--child", *flags, *(f"{k}={v}" for k, v in options.items())],
        env=os.environ | ENVIRONMENT | {"PYTHONPATH": str(tree)},
        text=True,
        capture_output=True,
        check=False,
    )
    lines = [line for line in result.stdout.splitlines() if line.startswith(PREFIX)]
    if not lines:
        raise RuntimeError((result.stdout + result.stderr)[-4000:])
    return Measured(topology, scan, **json.loads(lines[-1].removeprefix(PREFIX)))


def table(rows: Sequence[Measured]) -> Table:
    """Returns the figures as a table."""
    columns = (
        "topology",
        "layers",
        "trace s",
        "compile s",
        "CPU s",
        "HLO MB",
        "argument GB",
        "temp GB",
    )
    result = Table(*columns)

    def cell(value: float | None, unit: float = 1.0) -> str:
        return "-" if value is None else f"{value / unit:.2f}"

    for row in rows:
        result.add_row(
            row.topology,
            "scanned" if row.scan else "unrolled",
            cell(row.trace_seconds),
            cell(row.compile_seconds),
            cell(row.compile_cpu_seconds),
            cell(row.hlo_bytes, 1e6),
            cell(row.argument_bytes, 1e9),
            cell(row.temp_bytes, 1e9) if row.out_of_memory is None else _needs(row.out_of_memory),
        )
    return result


def _needs(message: str) -> str:
    """What the compiler says of a program that does not fit, in short."""
    sizes = re.findall(r"\((\d+(?:\.\d+)?)G\)", message)
    return f"needs {sizes[0]} GiB of {sizes[1]}" if len(sizes) == 2 else "out of memory"


def main() -> int:
    """Measure both programs on every topology."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tree", type=Path)
    parser.add_argument("--topo", nargs="+", default=TOPOLOGIES)
    parser.add_argument("--lower-only", action="store_true")
    parser.add_argument("--json", action="store_true")
    arguments, given = parser.parse_known_args()
    if not (arguments.tree / "maxtext" / "models" / "ling2.py").is_file():
        parser.error(f"{arguments.tree} is no upstream tree with the model in it")
    if any("=" not in option for option in given):
        parser.error(f"not an option=value: {next(o for o in given if '=' not in o)}")
    rows = []
    for topology in arguments.topo:
        for scan in (True, False):
            rows.append(
                measure(arguments.tree.resolve(), topology, scan, given, arguments.lower_only)
            )
            Console(stderr=True).print(rows[-1])  # the next ones may take an hour
    if arguments.json:
        print(json.dumps([asdict(row) for row in rows]))
    else:
        Console().print(table(rows))
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(
            dict(option.split("=", 1) for option in sys.argv[2:] if "=" in option),
            "--lower-only" in sys.argv,
        )
        sys.exit(0)
    sys.exit(main())
