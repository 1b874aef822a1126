#!/usr/bin/env python3
"""Score a JAX program in cycles of a TPU, on a machine that has none.

    python scripts/tpu_cost.py FILE.py:FUNC [--topo v5e] [--json] [--keep DIR]

FUNC takes no argument and returns (callable, tuple of jax.ShapeDtypeStruct). libtpu (extra `tpu`) compiles the
callable for one device of the topology; the score is the sum, over the operations of the compiled program,
of their loop trips times
  a Pallas kernel: max(cycles of libtpu's own simulator, bytes of its operands and results / bytes per cycle);
                   each kernel is compiled alone for that, with row-major operands and results
  any other:       the cycles that the compiler notes with the operation, which cover its memory traffic
A loop's trips are read from the compiled program; every branch of a conditional counts. Operations without a
note cost nothing here; those that move data are named in `not_counted`. A kernel without a simulated figure, or
a loop whose trips cannot be read, makes the score incomplete: it is then None, and `incomplete` says why.

Cycles compare programs on one chip only. They are a compiler's and a simulator's word: no time was measured.

Every compilation runs in a process of its own: libtpu reads its flags once, and the simulator can end the
process. What it wrote before that still counts.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TOPOLOGIES = {
    "v4": "v4:2x2x1",
    "v5e": "v5e:2x2",
    "v5p": "v5p:2x2x1",
    "v6e": "v6e:2x2",
    "tpu7x": "tpu7x:2x2x1",
}
# Published HBM bandwidth over the clock that follows from the published peak rate (v5e, v5p) or a guess of it
# (v6e). No clock of tpu7x is known, so its kernels count simulated cycles alone.
BYTES_PER_CYCLE = {"v5e": 546, "v6e": 937, "v5p": 1580}
ENVIRONMENT = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "JAX_ENABLE_COMPILATION_CACHE": "false",
    "JAX_PLATFORMS": "cpu",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
}
NO_LIBTPU = "libtpu is not installed: pip install 'ling2-migrate[tpu]' (x86-64 Linux only)"
PALLAS = "pallas"
_DATA_MOVERS = re.compile(
    r"(copy|slice|dynamic-slice|dynamic-update-slice|async|send|recv|all-[a-z]+|collective-[a-z]+|reduce-scatter)"
    r"(-start)?"
)


class CostError(Exception):
    """A measurement that cannot be made; the text says what to do about it."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One line of a computation of the compiled program."""

    name: str
    opcode: str
    operands: tuple[str, ...]
    called: dict[str, tuple[str, ...]]
    cycles: int | None
    text: str

    @property
    def is_pallas(self) -> bool:
        """Whether this is a call of a Pallas kernel."""
        return self.opcode == "custom-call" and 'custom_call_target="tpu_custom_call"' in self.text

    @property
    def moves_data(self) -> bool:
        """Whether this copies, slices or sends arrays (not single numbers)."""
        shape = self.text.partition(f" {self.opcode}(")[0]
        return bool(_DATA_MOVERS.fullmatch(self.opcode) and re.search(r"\[\d", shape))


@dataclass(frozen=True, slots=True)
class Program:
    """The computations of a compiled program."""

    entry: str
    computations: dict[str, dict[str, Instruction]]


@dataclass(frozen=True, slots=True)
class Part:
    """One operation's share of the score; a kernel has the last three figures too."""

    name: str
    kind: str
    trips: int
    cycles: int | None
    score: float
    hbm_bytes: int | None = None
    vmem_bytes: int | None = None
    spills: int | None = None


@dataclass(frozen=True, slots=True)
class Cost:
    """What a program costs on one device of a topology. `score` is None when `incomplete` has an entry."""

    spec: str
    topology: str
    device: str
    score: int | None
    known: int
    incomplete: list[str]
    parts: list[Part]
    not_counted: dict[str, int]
    hbm_temp_bytes: int
    hbm_argument_bytes: int
    hbm_output_bytes: int
    lower_seconds: float
    compile_seconds: float
    bytes_per_cycle: int | None

    @property
    def kernels(self) -> list[Part]:
        """The parts that are Pallas kernels."""
        return [p for p in self.parts if p.kind == PALLAS]

    @property
    def kernel_cycles(self) -> int | None:
        """Simulated cycles of all kernels with their trips, without the memory term."""
        cycles = [p.trips * p.cycles for p in self.kernels if p.cycles is not None]
        return sum(cycles) if len(cycles) == len(self.kernels) else None

    @property
    def vmem_bytes(self) -> int | None:
        """What the largest kernel holds in VMEM."""
        return max((p.vmem_bytes for p in self.kernels if p.vmem_bytes is not None), default=None)

    @property
    def spills(self) -> int | None:
        """Register spills (stores in the code, not times executed) of all kernels."""
        spills = [p.spills for p in self.kernels if p.spills is not None]
        return sum(spills) if spills else None


def has_libtpu() -> bool:
    """Whether libtpu is installed; it is for x86-64 Linux only."""
    return importlib.util.find_spec("libtpu") is not None


# What libtpu writes


def _attributes(text: str) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for key, braced, single in re.findall(
        r"\b(body|condition|to_apply|calls|branch_computations|true_computation|false_computation)="
        r"(?:\{([^}]*)\}|%?([\w.\-]+))",
        text,
    ):
        names = braced.split(",") if braced else [single]
        found[key] = tuple(n.strip().lstrip("%") for n in names)
    return found


def parse_hlo(text: str) -> Program:
    """Read a compiled program's text (`Compiled.as_text()`).

    Raises:
        CostError: there is no entry computation in it.
    """
    computations: dict[str, dict[str, Instruction]] = {}
    entry, current = None, None
    for line in text.splitlines():
        if head := re.match(r"(ENTRY )?%?([\w.\-]+) \(.*\{$", line):
            current = head[2]
            computations[current] = {}
            entry = current if head[1] else entry
        elif line.startswith("}"):
            current = None
        elif current is not None:
            found = re.match(r"\s*(?:ROOT )?%?([\w.\-]+) = .*?\s([a-z][\w\-]*)\((.*)", line)
            if found is None:
                continue
            name, opcode, rest = found.groups()
            note = re.search(r'"estimated_cycles":"(\d+)"', rest)
            computations[current][name] = Instruction(
                name,
                opcode,
                tuple(re.findall(r"%([\w.\-]+)", rest.split("), ")[0])),
                _attributes(rest),
                int(note[1]) if note else None,
                line.strip(),
            )
    if entry is None:
        raise CostError("the compiled program has no entry computation that this script can read")
    return Program(entry, computations)


def _constant(program: Program, computation: str, name: str) -> int | None:
    """The integer that an instruction is, followed through copies."""
    instruction = program.computations[computation].get(name)
    while instruction is not None and instruction.opcode in ("copy", "bitcast"):
        instruction = program.computations[computation].get(instruction.operands[0])
    value = re.search(r"\sconstant\((-?\d+)\)", instruction.text) if instruction else None
    return int(value[1]) if value else None


def trip_count(program: Program, computation: str, loop: Instruction) -> int | None:
    """How often a while loop that counts up by one runs, from its start and its condition; None: not readable."""
    (condition,) = loop.called["condition"]
    body = program.computations[condition]
    root = next((i for i in body.values() if i.text.startswith("ROOT ")), None)
    direction = re.search(r"direction=(LT|LE)\b", root.text) if root else None
    if root is None or root.opcode != "compare" or direction is None:
        return None
    counter = body[root.operands[0]]
    index = re.search(r"\bindex=(\d+)", counter.text)
    limit = _constant(program, condition, root.operands[1])
    start_tuple = program.computations[computation].get(loop.operands[0])
    if counter.opcode != "get-tuple-element" or index is None or limit is None:
        return None
    if start_tuple is None or start_tuple.opcode != "tuple":
        return None
    start = _constant(program, computation, start_tuple.operands[int(index[1])])
    if start is None:
        return None
    return max(0, limit - start + (direction[1] == "LE"))


def walk(program: Program) -> Iterator[tuple[Instruction, int | None]]:
    """Every instruction that runs, with its trips (None: inside a loop whose trips are not readable)."""

    def visit(computation: str, trips: int | None) -> Iterator[tuple[Instruction, int | None]]:
        for instruction in program.computations[computation].values():
            yield instruction, trips
            called = instruction.called
            if instruction.opcode == "while":
                count = trip_count(program, computation, instruction)
                inner = None if count is None or trips is None else trips * count
                yield from visit(called["body"][0], inner)
            elif instruction.opcode in ("call", "conditional"):
                for names in called.values():
                    for name in names:
                        yield from visit(name, trips)

    return visit(program.entry, 1)


def parse_profile(text: str) -> tuple[str, int] | None:
    """(operation, simulated cycles) of one `*_static_llo_profile.textproto`; None when it has no figure."""
    name = re.search(r'hlo_op_name: "([^"]*)"', text)
    cycles = re.search(r"estimated_cycles: (\d+)", text)
    return (name[1], int(cycles[1])) if name and cycles else None


def parse_vmem(text: str) -> int:
    """Bytes of VMEM in a dump `*-pre-finalize-registers-and-allocations.txt`."""
    sizes = re.findall(r"^\s*#allocation\d+ \[.*?space=vmem, size = (0x[0-9a-f]+|\d+)", text, re.M)
    return sum(int(size, 0) for size in sizes)


def parse_spills(text: str) -> int | None:
    """Spill stores in a dump `*-final_hlo-static-per-bundle-utilization.txt`, a row of slot counts per bundle."""
    lines = text.splitlines()
    columns = next((line.split(",") for line in lines if "VSTORE:SPILL" in line), None)
    if columns is None or "== UTILIZATION:" not in lines:
        return None
    at = [c.strip() for c in columns].index("VSTORE:SPILL")
    rows = lines[lines.index("== UTILIZATION:") + 1 :]
    return sum(int(row.split()[at]) for row in rows if row.strip())


# In the child: the only code here that imports JAX


def _load(spec: str) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The callable and its arguments' shapes.

    Raises:
        CostError: the file or the function does not give them.
    """
    path, _, name = spec.rpartition(":")
    sys.path.insert(0, str(Path(path).resolve().parent))
    module_spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    if module_spec is None or module_spec.loader is None:
        raise CostError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[module_spec.name] = module
    module_spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if function is None:
        raise CostError(f"{path} has no function {name!r}")
    made = function()
    if not (isinstance(made, tuple) and len(made) == 2 and callable(made[0])):
        raise CostError(f"{spec} must return (callable, tuple of jax.ShapeDtypeStruct)")
    return made


def _kernels(jaxpr: Any, trips: int | None = 1) -> Iterator[tuple[Any, int | None]]:
    """The pallas_calls of a traced program with their trips, in order."""
    from jax.extend import core

    for equation in jaxpr.eqns:
        if equation.primitive.name == "pallas_call":
            yield equation, trips
            continue
        inner = trips
        if equation.primitive.name == "scan" and trips is not None:
            inner = trips * equation.params["length"]
        elif equation.primitive.name == "while":
            inner = None
        for sub in core.jaxprs_in_params(equation.params):
            yield from _kernels(sub, inner)


def _compile(spec: str, topology: str, kernel: int | None) -> dict[str, Any]:
    """Compile a whole program, or one of its kernels alone."""
    import jax
    import numpy as np
    from jax.experimental import topologies
    from jax.experimental.layout import Format, Layout
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    try:
        devices = topologies.get_topology_desc(platform="tpu", topology_name=topology).devices
    except Exception as error:
        raise CostError(f"libtpu knows no topology {topology!r}: {error}") from error
    mesh = Mesh(np.array(devices[:1]), ("device",))
    sharding = NamedSharding(mesh, PartitionSpec())

    def placed(tree: Any) -> Any:
        return jax.tree.map(
            lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=sharding), tree
        )

    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        function, shapes = _load(spec)
        arguments = placed(shapes)
        start = time.perf_counter()
        traced = jax.jit(function).trace(*arguments)
        kernels = list(_kernels(traced.jaxpr))
        if kernel is not None:
            equation, _ = kernels[kernel]
            invars, outvars = ([v.aval for v in vs] for vs in (equation.invars, equation.outvars))
            rows = lambda avals: [  # noqa: E731
                Format(Layout(major_to_minor=tuple(range(a.ndim))), sharding) for a in avals
            ]
            arguments = placed(tuple(invars))
            traced = jax.jit(
                lambda *values: equation.primitive.bind(*values, **equation.params),
                in_shardings=tuple(rows(invars)),
                out_shardings=rows(outvars),
            ).trace(*arguments)
        lowered = traced.lower()
        lower_seconds = time.perf_counter() - start
        start = time.perf_counter()
        compiled = lowered.compile()
        compile_seconds = time.perf_counter() - start
    memory = compiled.memory_analysis()
    return {
        "device": devices[0].device_kind,
        "hlo": compiled.as_text(),
        "kernels": [(bool(e.params.get("interpret")), trips) for e, trips in kernels],
        "lower_seconds": lower_seconds,
        "compile_seconds": compile_seconds,
        "hbm_temp_bytes": memory.temp_size_in_bytes,
        "hbm_argument_bytes": memory.argument_size_in_bytes,
        "hbm_output_bytes": memory.output_size_in_bytes,
    }


def _child(arguments: Sequence[str]) -> int:
    spec, topology, kernel, out = arguments
    try:
        result = _compile(spec, topology, int(kernel) if kernel else None)
    except CostError as error:
        print(error, file=sys.stderr)
        return 2
    Path(out).write_text(json.dumps(result))
    return 0


# In the parent


def _run(
    spec: str, topology: str, kernel: int | None, flags: str, out: Path, timeout: float
) -> tuple[int, str]:
    """Compile in a child process. -> (exit status, stderr); a child that takes too long has SIGKILL's."""
    command = [sys.executable, str(Path(__file__).resolve()), "--child", spec, topology]
    command += ["" if kernel is None else str(kernel), str(out)]
    environment = os.environ | ENVIRONMENT | {"LIBTPU_INIT_ARGS": flags}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired:
        return -signal.SIGKILL, f"took longer than {timeout:.0f} s"
    return done.returncode, done.stderr


def _reason(stderr: str, status: int) -> str:
    """The lines of a child's stderr that say why it failed; what crash reporters add is left out."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    said = [
        line
        for line in lines
        if re.search(r"[Ee]rror|failed:|LLO_CHECK|exceed|took longer", line)
        and not re.search(r"coredump|stack trace", line)
    ]
    return " | ".join(line[:400] for line in (said or lines)[-3:]) or f"exit status {status}"


def _measure_kernel(
    spec: str, topology: str, index: int, trips: int | None, folder: Path, timeout: float
) -> tuple[Part, list[str]]:
    """One kernel alone. -> its part, and why a figure is missing."""
    profiles, out = folder / "profiles", folder / "compiled.json"
    profiles.mkdir(parents=True)

    def compile_into(dumps: Path, *flags: str) -> tuple[int, str]:
        dumps.mkdir()
        dump = (
            f"--xla_jf_dump_to={dumps} --xla_jf_dump_llo_text=true "
            "--xla_jf_dump_llo_pass_label_regex="
            "(final_hlo-static-per-bundle-utilization|pre-finalize-registers-and-allocations)"
        )
        return _run(spec, topology, index, " ".join([dump, *flags]), out, timeout)

    dumps = folder / "dumps"
    status, stderr = compile_into(dumps, f"--xla_jf_dump_static_llo_profile_to={profiles}")
    why = "the simulator gave no figure"
    if status == -signal.SIGABRT:
        why = f"the simulator ended the process: {_reason(stderr, status)}"
        dumps = folder / "dumps_not_simulated"
        status, stderr = compile_into(dumps)
    if status != 0:
        raise CostError(
            f"{spec}, kernel {index} alone does not compile for {topology}: {_reason(stderr, status)}"
        )
    compiled = json.loads(out.read_text())
    names = [i.name for i, _ in walk(parse_hlo(compiled["hlo"])) if i.is_pallas]
    if len(names) != 1:
        raise CostError(
            f"{spec}, kernel {index} alone compiles to {len(names)} kernels, not to one"
        )
    simulated = dict(
        profile
        for path in profiles.glob("*_static_llo_profile.textproto")
        if (profile := parse_profile(path.read_text(errors="replace")))
    )
    cycles = simulated.get(names[0])
    missing = [why] if cycles is None else []

    def read(kind: str) -> str:
        """The kernel's own dump of one kind; `<number>-<operation>-<number>-<kind>.txt`."""
        pattern = re.compile(rf"\d+-{re.escape(names[0])}-\d+-{kind}\.txt")
        return "".join(
            p.read_text(errors="replace") for p in dumps.iterdir() if pattern.fullmatch(p.name)
        )

    moved = compiled["hbm_argument_bytes"] + compiled["hbm_output_bytes"]
    rate = BYTES_PER_CYCLE.get(topology.partition(":")[0])
    if trips is None:
        missing.append("it runs in a loop whose trips are not known")
    part = Part(
        names[0],
        PALLAS,
        trips or 1,
        cycles,
        (trips or 1) * max(cycles or 0, moved / rate if rate else 0),
        hbm_bytes=moved,
        vmem_bytes=parse_vmem(read("pre-finalize-registers-and-allocations")) or None,
        spills=parse_spills(read("final_hlo-static-per-bundle-utilization")),
    )
    return part, [f"kernel {names[0]}: {why}" for why in missing]


def measure(
    spec: str, topology: str = "v5e", keep: Path | None = None, timeout: float = 900
) -> Cost:
    """Score a program.

    Args:
        spec: FILE.py:FUNC.
        topology: a generation (v4, v5e, v5p, v6e, tpu7x) or one of libtpu's topologies, e.g. v5e:2x2.
        keep: an empty or new folder for what libtpu writes; by default it is thrown away.
        timeout: seconds for each compilation.

    Raises:
        CostError: the program cannot be compiled, or a kernel of it cannot be compiled alone.
    """
    topology = TOPOLOGIES.get(topology, topology)
    path, colon, name = spec.rpartition(":")
    if not colon or not name.isidentifier():
        raise CostError(f"{spec!r} is not of the form FILE.py:FUNC")
    if not Path(path).is_file():
        raise CostError(f"{path}: no such file")
    if not has_libtpu():
        raise CostError(NO_LIBTPU)
    with contextlib.ExitStack() as stack:
        if keep is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tpu_cost")))
        else:
            folder = keep.resolve()
            folder.mkdir(parents=True, exist_ok=True)
            if any(folder.iterdir()):
                raise CostError(f"{keep} is not empty; name a new folder to keep dumps in")
        out = folder / "compiled.json"
        status, stderr = _run(spec, topology, None, "", out, timeout)
        if status == 2:
            raise CostError(_reason(stderr, status))
        if status != 0:
            raise CostError(f"{spec} does not compile for {topology}: {_reason(stderr, status)}")
        compiled = json.loads(out.read_text())
        parts, incomplete = [], []
        not_counted: collections.Counter[str] = collections.Counter()
        in_program = 0
        for instruction, trips in walk(parse_hlo(compiled["hlo"])):
            if instruction.is_pallas:
                in_program += 1
            elif instruction.cycles is not None:
                if trips is None:
                    incomplete.append(f"{instruction.name}: in a loop whose trips are not readable")
                cycles = instruction.cycles
                parts.append(
                    Part(
                        instruction.name,
                        instruction.opcode,
                        trips or 1,
                        cycles,
                        (trips or 1) * cycles,
                    )
                )
            elif instruction.moves_data:
                not_counted[instruction.opcode] += trips or 1
        for index, (interpreted, trips) in enumerate(compiled["kernels"]):
            if interpreted:
                incomplete.append(
                    f"kernel {index} runs in interpret mode: it is not compiled for TPU"
                )
                continue
            part, missing = _measure_kernel(
                spec, topology, index, trips, folder / f"kernel{index}", timeout
            )
            parts.append(part)
            incomplete += missing
        traced = sum(not interpreted for interpreted, _ in compiled["kernels"])
        if traced != in_program:
            incomplete.append(
                f"the compiled program calls kernels in {in_program} places, the traced one in {traced}"
            )
    known = round(sum(p.score for p in parts))
    return Cost(
        spec=spec,
        topology=topology,
        device=compiled["device"],
        score=None if incomplete else known,
        known=known,
        incomplete=incomplete,
        parts=sorted(parts, key=lambda p: -p.score),
        not_counted=dict(not_counted),
        hbm_temp_bytes=compiled["hbm_temp_bytes"],
        hbm_argument_bytes=compiled["hbm_argument_bytes"],
        hbm_output_bytes=compiled["hbm_output_bytes"],
        lower_seconds=compiled["lower_seconds"],
        compile_seconds=compiled["compile_seconds"],
        bytes_per_cycle=BYTES_PER_CYCLE.get(topology.partition(":")[0]),
    )


def _print(cost: Cost) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 140)
    said = f"{cost.score:,}" if cost.score is not None else f"incomplete, known {cost.known:,}"
    console.print(f"{cost.spec} on {cost.topology} ({cost.device}): {said} cycles", highlight=False)
    console.print(
        f"HBM temp {cost.hbm_temp_bytes:,} B, arguments {cost.hbm_argument_bytes:,} B, results "
        f"{cost.hbm_output_bytes:,} B; lowered in {cost.lower_seconds:.1f} s, compiled in "
        f"{cost.compile_seconds:.1f} s",
        highlight=False,
    )
    table = Table("operation", "kind")
    for title in ("trips", "cycles", "score", "HBM bytes", "VMEM bytes", "spills"):
        table.add_column(title, justify="right")
    for part in cost.parts:
        figures = (part.trips, part.cycles, round(part.score), part.hbm_bytes, part.vmem_bytes)
        cells = [f"{n:,}" if n is not None else "" for n in (*figures, part.spills)]
        table.add_row(part.name, part.kind, *cells)
    console.print(table)
    for opcode, count in sorted(cost.not_counted.items()):
        console.print(f"not counted: {opcode} × {count}", highlight=False)
    for why in cost.incomplete:
        console.print(f"no figure: {why}", highlight=False, markup=False)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Exit status 0: a score; 1: an incomplete one; 2: no measurement."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["--child"]:
        return _child(given[1:])
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("spec", metavar="FILE.py:FUNC")
    parser.add_argument("--topo", default="v5e", help="generation or topology (default: v5e)")
    parser.add_argument("--json", action="store_true", help="print every figure as JSON")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep what libtpu writes in DIR")
    options = parser.parse_args(given)
    try:
        cost = measure(options.spec, options.topo, options.keep)
    except CostError as error:
        print(f"tpu_cost: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(dataclasses.asdict(cost), indent=1))
    else:
        _print(cost)
    return 0 if cost.score is not None else 1


if __name__ == "__main__":
    sys.exit(main())
