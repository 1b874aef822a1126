"""The command `ling2-migrate parity`."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from rich.console import Console

from codemods.errors import UserError
from migration_tests.parity import plan, report, run


@dataclasses.dataclass(frozen=True)
class Arguments:
    """What the command line says."""

    checkout: Path | None = None
    upstream: str = "0.2.5"
    migrated: Path | None = None
    overlay: Path | None = None
    oracle: Path | None = None
    sides: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    spec: Path | None = None
    dumps: tuple[Path, Path] | None = None
    ulps: float | None = None
    aot: str | None = None
    json: Path | None = None
    page: Path | None = None
    keep: Path | None = None
    jobs: int | None = None


def execute(arguments: Arguments, out: Console, progress: Console) -> int:
    """Runs the command.

    Args:
        arguments: what the command line says.
        out: where the outcome goes.
        progress: where it is told what is going on.

    Returns:
        The exit status.

    Raises:
        UserError: options that do not go together, or an input that is not what it should be.
    """
    written = [path for path in (arguments.json, arguments.page) if path is not None]
    for path in written:
        if not path.resolve().parent.is_dir():
            raise UserError(f"{path.parent}: no such folder")
        if path.is_dir():
            raise UserError(f"{path}: is a folder; name a file in it")
        if not os.access(path if path.exists() else path.resolve().parent, os.W_OK):
            raise UserError(f"{path}: cannot be written")
    if len({path.resolve() for path in written}) < len(written):
        raise UserError("--json and --html name the same file")
    ways = [
        name
        for name, given in (
            ("--spec", arguments.spec),
            ("--dumps", arguments.dumps),
            ("--aot", arguments.aot),
        )
        if given is not None
    ]
    if len(ways) > 1:
        raise UserError(f"{' and '.join(ways)} do not go together")
    if ways:
        _refuse(arguments, ways[0])
    if arguments.ulps is not None and arguments.dumps is None:
        raise UserError("--ulps is for --dumps; components have tolerances of their own")
    if arguments.aot is not None:
        from migration_tests.parity import aot

        return aot.execute(arguments, out, progress)
    parity = _compared(arguments, progress)
    if arguments.json is not None:
        report.write_json(parity, arguments.json)
    if arguments.page is not None:
        report.write_page(parity, arguments.page)
    report.print_table(parity, out)
    return parity.status


def _refuse(arguments: Arguments, way: str) -> None:
    """Refuses options that would do nothing, rather than let somebody believe that they did.

    Raises:
        UserError: one is given.
    """
    options = {
        "--oracle": arguments.oracle,
        "--sides": arguments.sides,
        "--dtype": arguments.dtypes,
        "--only": arguments.only,
    }
    if way != "--spec":
        options |= {
            "--migrated": arguments.migrated,
            "--overlay": arguments.overlay,
            "--keep": arguments.keep,
        }
    for option, given in options.items():
        if given:
            where = (
                "; the specification says it" if way == "--spec" and option != "--oracle" else ""
            )
            raise UserError(f"{option} does not go with {way}{where}")


def _compared(arguments: Arguments, progress: Console) -> run.Parity:
    if arguments.dumps is not None:
        from migration_tests.parity import dumps

        if arguments.checkout is not None:
            raise UserError("--dumps needs no checkout")
        return dumps.compare(*arguments.dumps, arguments.ulps)
    if arguments.checkout is None:
        raise UserError("CHECKOUT is missing: the fork to compare, a folder")
    if not arguments.checkout.is_dir():
        raise UserError(f"{arguments.checkout}: no such folder")
    request = run.Request(
        checkout=arguments.checkout,
        upstream=arguments.upstream,
        migrated=arguments.migrated,
        overlay=arguments.overlay,
        oracle=arguments.oracle,
        sides=arguments.sides or run.SIDES,
        dtypes=arguments.dtypes or plan.DTYPES,
        only=arguments.only,
        jobs=arguments.jobs or run.usual_jobs(),
        keep=arguments.keep,
    )

    def say(text: str) -> None:
        progress.print(f"parity: {text}", markup=False)

    if arguments.spec is not None:
        return run.run_spec(request, arguments.spec, say)
    return run.run(request, say)
