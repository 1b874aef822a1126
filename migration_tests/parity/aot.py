"""Compiles the target's GLA kernels for TPUs on a machine that has none. No number is compared, so it is no check of numerics."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from codemods.errors import UserError

if TYPE_CHECKING:
    from migration_tests.parity.command import Arguments

SCRIPTS = Path(__file__).parents[2] / "scripts"
# Programs of scripts/gla_specs.py, at the sizes of the 16B model.
PROGRAMS = {
    "forward_segments": "GLA kernel, packed rows",
    "backward_segments": "GLA kernel's gradients, packed rows",
}
SAID = "These are a compiler's and a simulator's words: nothing ran, no time was measured and no number was compared."


@dataclasses.dataclass(frozen=True)
class Compiled:
    """What compiling one program has come to."""

    program: str
    problem: str = ""
    cycles: int | None = None
    incomplete: tuple[str, ...] = ()


def _tpu_cost() -> Any:
    path = SCRIPTS / "tpu_cost.py"
    if not path.is_file():
        raise UserError(f"--aot needs the scripts of the repository; {path} is not there")
    spec = importlib.util.spec_from_file_location("tpu_cost", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["tpu_cost"] = module
    spec.loader.exec_module(module)
    return module


def compile_all(topology: str, progress: Console) -> list[Compiled]:
    """Compiles the programs.

    Args:
        topology: a generation such as v5e, or one of libtpu's topologies such as v5e:2x2.
        progress: where it is told what is going on.

    Raises:
        UserError: libtpu is not installed, or the scripts are not there.
    """
    cost = _tpu_cost()
    if not cost.has_libtpu():
        raise UserError(str(cost.NO_LIBTPU))
    generation = topology.partition(":")[0]
    if generation not in cost.TOPOLOGIES:
        raise UserError(
            f"{topology}: no such topology; generations are {', '.join(cost.TOPOLOGIES)}"
        )
    found = []
    for program, title in PROGRAMS.items():
        progress.print(f"parity: compiling {title} for {topology}", markup=False)
        try:
            measured = cost.measure(f"{SCRIPTS / 'gla_specs.py'}:{program}", topology)
        except cost.CostError as error:
            found.append(Compiled(title, " ".join(str(error).split())))
        else:
            found.append(Compiled(title, "", measured.score, tuple(measured.incomplete)))
    return found


def execute(arguments: Arguments, out: Console, progress: Console) -> int:
    """Runs `--aot`; returns 0 if everything compiles, else 1.

    Raises:
        UserError: as `compile_all`; or options that do not go with it.
    """
    assert arguments.aot is not None
    if arguments.page is not None or arguments.checkout is not None:
        raise UserError(
            "--aot compiles the target alone: it takes no CHECKOUT, and --json but no --html"
        )
    found = compile_all(arguments.aot, progress)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("program", f"for {arguments.aot}", "cycles"):
        table.add_column(title)
    for compiled in found:
        cycles = "–" if compiled.cycles is None else f"{compiled.cycles:,}"
        verdict = escape(compiled.problem) if compiled.problem else "compiles for TPU"
        table.add_row(compiled.program, verdict, cycles)
    out.print(table)
    for compiled in found:
        for why in compiled.incomplete:
            out.print(escape(f"{compiled.program}: no figure: {why}"))
    out.print(SAID)
    status = 1 if any(compiled.problem for compiled in found) else 0
    if arguments.json is not None:
        report = {
            "kind": "compiled ahead of time",
            "numeric": False,
            "topology": arguments.aot,
            "said": SAID,
            "status": status,
            "programs": [dataclasses.asdict(compiled) for compiled in found],
        }
        arguments.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return status
