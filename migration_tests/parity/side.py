"""One side, in a process of its own: `python side.py JOB.json`.

It describes its parameters, waits for their weights, and computes the components. What goes wrong is told in the files that it
writes, never by a traceback: `described.json`, `results.npz` and `status.json` in the job's folder; `doing` tells what it is at,
should it end without a word. What the side's code prints is with its standard error.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any


def short(error: BaseException, roots: list[str]) -> str:
    """An error in one line: what, and the last place of the side's own code that led to it."""
    text = " ".join(str(error).split())
    what = f"{type(error).__name__}: {text[:300]}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if any(f.filename.startswith(root + os.sep) for root in roots)]
    if own:
        root = next(r for r in roots if own[-1].filename.startswith(r + os.sep))
        what += f" ({os.path.relpath(own[-1].filename, root)}:{own[-1].lineno})"
    return what


class Channel:
    """The way to the parent. The side's own code cannot write or read there by accident."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.described = False
        self._to = os.fdopen(os.dup(1), "w")
        self._from = os.fdopen(os.dup(0))
        os.dup2(2, 1)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)

    def doing(self, what: str) -> None:
        """Notes what is to come, in the file and among the messages."""
        print(f"parity: {what}", file=sys.stderr, flush=True)
        (self.folder / "doing").write_text(what, encoding="utf-8")

    def describe(self, described: dict[str, Any]) -> None:
        """Tells the parameters, and returns when their weights are there."""
        self.described = True
        (self.folder / "described.json").write_text(json.dumps(described), encoding="utf-8")
        print("described", file=self._to, flush=True)
        self._from.readline()


def main(job_file: str) -> None:
    """Runs a job."""
    job: dict[str, Any] = json.loads(Path(job_file).read_text(encoding="utf-8"))
    folder, roots = Path(job["folder"]), job["roots"]
    # The harness's own modules are found without the rest of its repository, which has a `maxtext` too.
    spec = importlib.util.spec_from_file_location(
        "migration_tests",
        Path(__file__).parents[1] / "__init__.py",
        submodule_search_locations=[str(Path(__file__).parents[1])],
    )
    assert spec is not None
    sys.modules["migration_tests"] = importlib.util.module_from_spec(spec)
    sys.path[:] = [*roots, *(p for p in sys.path if p and Path(p) != Path(__file__).parent)]
    status: dict[str, Any] = {"errors": {}, "seconds": {}}
    channel = Channel(folder)
    channel.doing("starting")
    try:
        _run(job, folder, roots, status, channel)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        status["failed"] = short(error, roots)
    finally:
        (folder / "status.json").write_text(json.dumps(status), encoding="utf-8")
        if not channel.described:
            channel.describe({})


def _attempt(describe: Any, tree: str, roots: list[str]) -> Any:
    try:
        return describe(tree)
    except Exception as error:
        return short(error, roots)


def _run(
    job: dict[str, Any], folder: Path, roots: list[str], status: dict[str, Any], channel: Channel
) -> None:
    import jax
    import numpy as np

    on_cpu = jax.default_backend() == "cpu"
    if on_cpu:
        # Compiling is what takes the time at these sizes.
        update: Any = jax.config.update
        update("jax_disable_most_optimizations", True)
    status["environment"] = {
        "backend": jax.default_backend(),
        "device": jax.devices()[0].device_kind,
        "devices": jax.device_count(),
        "jax": jax.__version__,
        "matmul_precision": "highest",
        "compiler_optimizations": "most are off" if on_cpu else "as usual",
    }
    if job["kind"] == "spec":
        from migration_tests.parity import spec

        spec.evaluate(job, folder, status, lambda error: short(error, roots), channel)
        return
    from migration_tests.parity import plan, probe

    def make(weights: dict[str, Any], options: dict[str, Any]) -> Any:
        if job["kind"] == "target":
            from migration_tests.parity.target import TargetSide

            return TargetSide(weights, options)
        from migration_tests.parity.fork import ForkSide

        return ForkSide(job["kind"], weights, options)

    weights: dict[str, Any] = {}
    channel.doing("importing the model")
    side = make(weights, {})
    # Of trees that cannot be made, why.
    described = {}
    for tree in plan.trees_of(job["components"]):
        channel.doing(f"making the {tree} model")
        described[tree] = _attempt(side.tree, tree, roots)
    oracle_weights: dict[str, Any] = {}
    if job["oracle"]:
        oracle_side = make(oracle_weights, job["oracle"])
        described["oracle"] = _attempt(oracle_side.tree, "unscanned", roots)
    channel.describe(described)
    for tree in described:
        if (folder / f"weights_{tree}.npz").exists():
            loaded = np.load(folder / f"weights_{tree}.npz")
            arrays = {tuple(path.split("/")): loaded[path] for path in loaded.files}
            if tree == "oracle":
                oracle_weights["unscanned"] = arrays
            else:
                weights[tree] = arrays
    inputs = dict(np.load(job["inputs"]))
    runner = probe.Probe(side, inputs)
    components = list(job["components"])
    if job["oracle"]:
        components.append(["oracle", plan.FLOAT32])
        oracle_runner = probe.Probe(oracle_side, inputs)
    results: dict[str, Any] = {}
    for name, dtype in components:
        started = time.monotonic()
        channel.doing(f"computing {name} in {dtype}")
        try:
            computed = (oracle_runner if name == "oracle" else runner).compute(name, dtype)
            for key, value in computed.items():
                results[f"{name}|{dtype}|{key}"] = np.asarray(
                    value, np.float32 if str(value.dtype) == "bfloat16" else None
                )
        except Exception as error:
            status["errors"][f"{name}|{dtype}"] = short(error, roots)
            if os.environ.get("PARITY_TRACEBACK"):
                traceback.print_exc()
        status["seconds"][f"{name}|{dtype}"] = time.monotonic() - started
        print(f"{name} {dtype}: {time.monotonic() - started:.1f} s", file=sys.stderr, flush=True)
    np.savez(folder / "results.npz", **results)
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    own = (f for f in files if f and any(f.startswith(root + os.sep) for root in roots))
    status["loaded"] = sorted(own)
    fallback = sys.modules.get("parity_fallback")
    status["taken_from_upstream"] = sorted(set(fallback.taken)) if fallback else []


if __name__ == "__main__":
    main(sys.argv[1])
