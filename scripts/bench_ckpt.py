#!/usr/bin/env python3
"""Measure the conversion of a synthetic checkpoint beside a plain copy of the same bytes and beside upstream's to_maxtext.

    python scripts/bench_ckpt.py [--gigabytes 4] [--rounds 3] [--scratch DIR] [--upstream DIR|VERSION] [--json]

A Ling2 with the published widths and few layers is written in bfloat16 (the routing bias in float32) to a scratch folder,
in several safetensors files. Every measurement is a process of its own, in interleaved rounds: the median counts.
  copy         the files copied by shutil.copyfile and synchronized to the disk
  to-maxtext   `ckpt to-maxtext`, unscanned and scanned; its output is synchronized too
  to-hf        `ckpt to-hf` of the scanned result
  restack      `ckpt restack` of the scanned result to unscanned
  upstream     maxtext.checkpoint_conversion.to_maxtext of the tree that `overlay` makes, lazy, with its defaults; once
Rates are bytes of weights over wall time with start-up; `of copy` is the rate over that of the copy. Peak memory is the
process's largest resident size, CPU the seconds of all its threads; the bound is twice the largest parameter and 1 GiB.
Before each run what it reads is copied and the copy removed, so that all find it in the page cache and free memory in the
same state: a virtual machine may have to ask its host for memory that was free for a while, which is slow.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from rich.console import Console
from rich.table import Table

from target.importing import target_module

REPOSITORY = Path(__file__).resolve().parents[1]
CONFIG: dict[str, Any] = {
    "model_type": "bailing_hybrid",
    "vocab_size": 65536,
    "hidden_size": 2048,
    "intermediate_size": 5120,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 128,
    "layer_group_size": 2,
    "first_k_dense_replace": 1,
    "num_nextn_predict_layers": 0,
    "q_lora_rank": 256,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "num_shared_experts": 1,
    "moe_intermediate_size": 512,
    "n_group": 8,
    "topk_group": 4,
    "routed_scaling_factor": 2.5,
    "max_position_embeddings": 4096,
    "rope_theta": 10000.0,
}
FILE_BYTES = 1 << 30
BOUND = "2 × largest parameter + 1 GiB"


@dataclass(frozen=True, slots=True)
class Run:
    """One measurement."""

    name: str
    seconds: float
    cpu: float
    peak: int


def synthesize(directory: Path, gigabytes: float) -> int:
    """Write the checkpoint, with as many layers as come nearest to the size; returns its bytes of weights."""
    files, params = (
        target_module(f"maxtext.checkpoint_conversion.{name}")
        for name in ("ling2.hf_files", "utils.ling2_params")
    )

    def tensors(layers: int) -> list[tuple[str, str, tuple[int, ...]]]:
        dims = params.ModelDims.from_hf_config(CONFIG | {"num_hidden_layers": layers})
        shapes = params.hf_shapes(dims)
        return [
            (name, "float32" if name.endswith("expert_bias") else "bfloat16", shape)
            for name, shape in shapes.items()
        ]

    def size(layers: int) -> int:
        return sum(
            int(np.prod(shape)) * (4 if dtype == "float32" else 2)
            for _, dtype, shape in tensors(layers)
        )

    layers = min(range(2, 200), key=lambda count: abs(size(count) - gigabytes * 1e9))
    directory.mkdir(parents=True)
    config = json.dumps(CONFIG | {"num_hidden_layers": layers}, indent=1)
    (directory / files.CONFIG).write_text(config, encoding="utf-8")
    random = np.random.default_rng(0).standard_normal(1 << 24, np.float32) * 0.02
    data = (random.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    parts: list[list[tuple[str, str, tuple[int, ...]]]] = [[]]
    held = 0
    for entry in tensors(layers):
        length = int(np.prod(entry[2])) * (4 if entry[1] == "float32" else 2)
        if held and held + length > FILE_BYTES:
            parts.append([])
            held = 0
        parts[-1].append(entry)
        held += length
    for number, part in enumerate(parts, 1):
        header, _ = files.build_header(part)
        left = sum(int(np.prod(e[2])) * (4 if e[1] == "float32" else 2) for e in part)
        with open(directory / f"model-{number:05}-of-{len(parts):05}.safetensors", "wb") as stream:
            stream.write(header)
            while left:
                left -= stream.write(data[:left])
    written = sorted(directory.glob("*.safetensors"))
    (directory / files.INDEX).write_text(files.build_index(written), encoding="utf-8")
    return size(layers)


def measured(name: str, command: list[str], environment: dict[str, str] | None = None) -> Run:
    """Run a command; its time and its peak memory."""
    with tempfile.TemporaryFile() as log:
        start = time.perf_counter()
        process = subprocess.Popen(
            command, cwd=REPOSITORY, env=os.environ | (environment or {}), stdout=log, stderr=log
        )
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if status:
            log.seek(0)
            sys.exit(f"{name} failed:\n{log.read().decode(errors='replace')[-3000:]}")
    return Run(name, seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


def copy(source: Path, out: Path) -> None:
    """Copy the files of a folder and wait until they are on the disk."""
    out.mkdir()
    for path in sorted(source.iterdir()):
        shutil.copyfile(path, out / path.name)
    for path in out.iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def upstream_command(source: Path, out: Path) -> list[str]:
    """The command of upstream's own tool."""
    params, files = (
        target_module(f"maxtext.checkpoint_conversion.{name}")
        for name in ("utils.ling2_params", "ling2.hf_files")
    )
    checkpoint = files.open_checkpoint(source)
    options = params.maxtext_options(checkpoint.config, checkpoint.shapes) | {
        "model_name": "ling2",
        "base_output_directory": str(out),
        "scan_layers": False,
        "hardware": "cpu",
        "skip_jax_distributed_system": True,
        "override_model_config": True,
        "weight_dtype": "bfloat16",
        "sharding_tolerance": 1.0,
    }
    return [
        *("-m", "maxtext.checkpoint_conversion.to_maxtext"),
        *(f"{key}={value}" for key, value in options.items()),
        f"--hf_model_path={source}",
    ]


def runs(source: Path, scratch: Path, rounds: int, overlay: Path | None) -> Iterator[Run]:
    """Measure everything in turn."""
    ckpt = [sys.executable, "-m", "codemods.cli", "ckpt"]
    scanned = scratch / "scanned"

    def once(
        name: str, command: Callable[[Path], list[str]], reads: Path, keep: Path | None = None
    ) -> Run:
        out = keep or scratch / "out"
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(reads, scratch / "before")
        shutil.rmtree(scratch / "before")
        run = measured(name, command(out))
        if keep is None:
            shutil.rmtree(out)
        return run

    for _ in range(rounds):
        yield once(
            "copy",
            lambda out: [sys.executable, __file__, "--copy", str(source), str(out)],
            source,
        )
        yield once(
            "to-maxtext",
            lambda out: [*ckpt, "to-maxtext", str(source), str(out), "--scan-layers", "false"],
            source,
        )
        yield once(
            "to-maxtext scanned",
            lambda out: [*ckpt, "to-maxtext", str(source), str(out), "--scan-layers", "true"],
            source,
            keep=scanned,
        )
        yield once("to-hf", lambda out: [*ckpt, "to-hf", str(scanned), str(out)], scanned)
        yield once(
            "restack",
            lambda out: [*ckpt, "restack", str(scanned), str(out), "--scan-layers", "false"],
            scanned,
        )
    shutil.rmtree(scanned)
    if overlay is not None:
        out = scratch / "upstream"
        command = [sys.executable, *upstream_command(source, out)]
        environment = {
            "PYTHONPATH": str(overlay),
            "DECOUPLE_GCLOUD": "TRUE",
            "JAX_PLATFORMS": "cpu",
        }
        yield measured("upstream", command, environment)


def summary(found: list[Run], nbytes: int, bound: int) -> list[dict[str, Any]]:
    """The medians."""
    by_name: dict[str, list[Run]] = {}
    for run in found:
        by_name.setdefault(run.name, []).append(run)
    rows = []
    for name, held in by_name.items():
        seconds = statistics.median(run.seconds for run in held)
        rows.append(
            {
                "name": name,
                "rounds": len(held),
                "seconds": round(seconds, 2),
                "megabytes_per_second": round(nbytes / 1e6 / seconds),
                "of_copy": round(
                    statistics.median(run.seconds for run in by_name["copy"]) / seconds, 2
                ),
                "cpu_seconds": round(statistics.median(run.cpu for run in held), 2),
                "peak_megabytes": round(max(run.peak for run in held) / 1e6),
                "bound_megabytes": round(bound / 1e6),
            }
        )
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gigabytes", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scratch", type=Path, help="default: the folder for temporary files")
    parser.add_argument("--upstream", help="measure its to_maxtext too: a folder or a version")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--copy", nargs=2, type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.copy:
        copy(*arguments.copy)
        return 0
    with tempfile.TemporaryDirectory(prefix="bench-ckpt-", dir=arguments.scratch) as name:
        scratch = Path(name)
        free = shutil.disk_usage(scratch).free
        if free < 4 * arguments.gigabytes * 1e9:
            sys.exit(
                f"{scratch}: {4 * arguments.gigabytes:.0f} GB are needed, {free / 1e9:.0f} are free"
            )
        source = scratch / "source"
        nbytes = synthesize(source, arguments.gigabytes)
        plan = target_module("maxtext.checkpoint_conversion.ling2.plan")
        largest = max(
            int(np.prod(parameter.shape)) * 2
            for scan in (False, True)
            for parameter in plan.plan(source, scan).parameters
        )
        overlay = None
        if arguments.upstream:
            overlay = scratch / "overlay"
            command = [sys.executable, "-m", "codemods.cli", "overlay"]
            measured("overlay", [*command, "--upstream", arguments.upstream, "--out", str(overlay)])
        rows = summary(
            list(runs(source, scratch, arguments.rounds, overlay)), nbytes, 2 * largest + (1 << 30)
        )
    if arguments.json:
        print(json.dumps({"bytes": nbytes, "rows": rows}, indent=1))
        return 0
    table = Table(title=f"{nbytes / 1e9:.2f} GB of weights, {os.cpu_count()} cores; bound: {BOUND}")
    for column in ("", "seconds", "MB/s", "of copy", "CPU s", "peak MB", "bound MB"):
        table.add_column(column, justify="left" if not column else "right")
    for row in rows:
        table.add_row(
            row["name"],
            str(row["seconds"]),
            str(row["megabytes_per_second"]),
            f"{row['of_copy']:.2f}",
            str(row["cpu_seconds"]),
            str(row["peak_megabytes"]),
            str(row["bound_megabytes"]),
        )
    Console(width=100).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
