"""The fused kernels compile for every TPU generation, and what is compiled is the kernels and little else.

libtpu (extra `tpu`) compiles for TPUs on a machine that has none. One process per generation, since libtpu reads
its environment once.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from scripts.tpu_cost import ENVIRONMENT, TOPOLOGIES, parse_hlo

pytestmark = [
    pytest.mark.aot,
    pytest.mark.model,
    pytest.mark.skipif(
        importlib.util.find_spec("libtpu") is None,
        reason="libtpu, which compiles for TPUs, is not installed (it is for x86-64 Linux only)",
    ),
]
ROOT = Path(__file__).resolve().parents[2]
CASES = ("dense", "segments_states", "h20", "h20_segments_states", "h4_d64_t500", "h20_d64", "f32")
# Of each view of the operands. Ragged lengths and segment ids need small arrays beside.
NOTHING_COPIED = ("dense", "h20", "h20_d64")
UNKNOWN_PLATFORM = "forward, one channel, traced without the mesh"
DENSE_SHARED = "dense over batch and heads"
LARGE = 1 << 20
# What may make an array of that size where nothing is to be copied: the kernels, what moves no data, and XLA's own
# prefetches of a kernel's operand into VMEM (memory space 1) while another kernel runs.
EXPECTED = {"parameter", "bitcast", "get-tuple-element", "tuple", "kernel", "prefetch"}
WIDTHS = {"bf16": 2, "f32": 4, "s32": 4, "u32": 4, "pred": 1, "s8": 1, "u8": 1}


def large_operations(hlo: str) -> list[str]:
    """The kinds of the operations of a compiled program that make an array of LARGE bytes or more."""
    found = []
    program = parse_hlo(hlo)
    for instruction in program.computations[program.entry].values():
        made = instruction.text.partition(f" {instruction.opcode}(")[0]
        sizes = [
            WIDTHS[dtype] * math.prod(int(n) for n in dims.split(","))
            for dtype, dims in re.findall(r"\b([a-z]+\d*)\[(\d[\d,]*)\]", made)
        ]
        if max(sizes, default=0) < LARGE:
            continue
        if instruction.is_pallas:
            found.append("kernel")
        elif instruction.opcode in ("copy-start", "copy-done") and "S(1)" in made:
            found.append("prefetch")
        else:
            found.append(instruction.opcode)
    return found


def compile_all(generation: str) -> dict[str, dict[str, Any]]:
    """Compile all programs for a generation; runs in the child."""
    import jax
    import numpy as np
    from jax.experimental import topologies
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from scripts import gla_specs

    topology = topologies.get_topology_desc(platform="tpu", topology_name=TOPOLOGIES[generation])
    results: dict[str, dict[str, Any]] = {}

    def compile_one(
        name: str, mesh: Mesh, function: Any, shapes: Any, specs: Any, saved: int
    ) -> None:
        arguments = [
            jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=NamedSharding(mesh, spec))
            for a, spec in zip(shapes, specs, strict=True)
        ]
        compiled = jax.jit(function).lower(*arguments).compile()
        hlo = compiled.as_text()
        results[name] = {
            "kernels": hlo.count('custom_call_target="tpu_custom_call"'),
            "large": large_operations(hlo),
            "collectives": re.findall(r" (all-[a-z]+|collective-[a-z]+|reduce-scatter)\(", hlo),
            "temp": compiled.memory_analysis().temp_size_in_bytes,
            "saved": saved,
        }

    one = Mesh(np.array(topology.devices[:1]), ("device",))
    case = gla_specs.Case(1, 40, 1, key_width=1, value_width=1, segments=True, states=True)
    inputs = case.inputs()
    forward = partial(case.call, "pallas_tpu", None)
    compile_one(UNKNOWN_PLATFORM, one, forward, inputs, [PartitionSpec()] * len(inputs), 0)
    for name in CASES:
        case = gla_specs.CASES[name]
        inputs = case.inputs()
        with jax.sharding.use_abstract_mesh(one.abstract_mesh):
            parts = gla_specs.split(case)
            outputs = jax.tree.leaves(parts.outputs)

            def gradients(*arguments: Any, case: Any = case, outputs: Any = parts.outputs) -> Any:
                count = len(case.inputs())
                made, vjp = case.vjp("pallas_tpu", None, *arguments[:count])
                return made, vjp(jax.tree.unflatten(jax.tree.structure(outputs), arguments[count:]))

            forward, _ = getattr(gla_specs, gla_specs.spec_name("forward", name))()
            shapes = [*inputs, *outputs]
            everywhere = [PartitionSpec()] * len(shapes)
            # What is saved may lie in memory in whole tiles of lanes.
            saved = sum(
                math.prod((*s.shape[:-1], -(-s.shape[-1] // 128) * 128)) * s.dtype.itemsize
                for s in parts.values[len(inputs) + len(outputs) :]
            )
            compile_one(f"forward, {name}", one, forward, inputs, everywhere[: len(inputs)], 0)
            compile_one(f"gradients, {name}", one, gradients, shapes, everywhere, saved)

    four = Mesh(np.array(topology.devices[:4]).reshape(2, 2), ("batch", "heads"))
    case = gla_specs.CASES["dense"]
    rows, heads = PartitionSpec("batch", None, "heads"), PartitionSpec("heads")
    with jax.sharding.use_abstract_mesh(four.abstract_mesh):
        local = jax.shard_map(
            lambda *inputs: case.call("pallas_tpu", None, *inputs),
            in_specs=(rows, rows, rows, heads),
            out_specs=rows,
            check_vma=True,
        )

        def gradients_of_shards(q: Any, k: Any, v: Any, g_gamma: Any, cotangent: Any) -> Any:
            output, vjp = jax.vjp(lambda *qkv: local(*qkv, g_gamma), q, k, v)
            return output, vjp(cotangent)

        shapes = [*case.inputs(), case.inputs()[2]]
        specs = [rows, rows, rows, heads, rows]
        saved = results["gradients, dense"]["saved"] // four.size
        compile_one(DENSE_SHARED, four, gradients_of_shards, shapes, specs, saved)
    return results


@pytest.mark.parametrize("generation", ["v5e", "v5p", "v6e", "tpu7x"])
def test_forward_and_gradients_compile(generation: str, subtests: pytest.Subtests) -> None:
    code = (
        "import json; from migration_tests.kernels.test_aot import compile_all; "
        f"print(json.dumps(compile_all({generation!r})))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    results = json.loads(done.stdout.splitlines()[-1])
    assert set(results) == {
        *(f"{kind}, {case}" for kind in ("forward", "gradients") for case in CASES),
        UNKNOWN_PLATFORM,
        DENSE_SHARED,
    }
    for name, result in results.items():
        with subtests.test(name):
            assert result["kernels"] == (1 if name.startswith("forward") else 2)
            assert result["collectives"] == []
            if name == DENSE_SHARED or name.endswith(tuple(f", {c}" for c in NOTHING_COPIED)):
                assert set(result["large"]) <= EXPECTED
                assert result["temp"] < result["saved"] + LARGE
