"""The command line. Sub-commands import what they need when called, so that the codemods run without JAX."""

from __future__ import annotations

import signal
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from codemods import __version__
from codemods.errors import UserError

app = typer.Typer(
    name="ling2-migrate",
    help="Carry a MaxText fork from the old layout (package MaxText) to upstream's (package maxtext).",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
map_app = typer.Typer(help="Build and inspect maps from old modules, paths and names to new ones.", no_args_is_help=True)
app.add_typer(map_app, name="map")


class Formatter(StrEnum):
    """What `--format` takes."""

    black = "black"


def _version(value: bool) -> None:
    if value:
        typer.echo(f"ling2-migrate {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def _list_rules(value: bool) -> None:
    if value:
        from codemods.review.terminal import print_rules

        print_rules()
        raise typer.Exit


def _explain(value: str | None) -> None:
    if value:
        from codemods.review.terminal import explain

        explain(value)
        raise typer.Exit


@app.command()
def run(
    checkout: Annotated[Path, typer.Argument(help="The fork: a git checkout or a plain folder. Never written to.")],
    upstream: Annotated[
        str, typer.Option(help="Upstream's new tree: a folder, or a version on PyPI.", metavar="DIR|VERSION")
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="The migrated tree, made new, with report.json and report.html in it.", metavar="DIR"),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Run only these rules or families (IMP001, IMP); repeat or separate by commas.")
    ] = None,
    skip: Annotated[list[str] | None, typer.Option(help="Do not run these rules or families.")] = None,
    map_file: Annotated[
        Path | None, typer.Option("--map", help="Use this map instead of the shipped one that fits.")
    ] = None,
    diff: Annotated[bool, typer.Option("--diff", help="Print a unified diff of the changes.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit 1 if anything would change or is listed.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print report.json on standard output instead of the summary.")] = False,
    jobs: Annotated[int | None, typer.Option("--jobs", "-j", min=1, help="Worker processes. Default: one per core.")] = None,
    branch: Annotated[
        str | None,
        typer.Option(help="Make --out a copy of the repository with this new branch: one commit per rule family."),
    ] = None,
    format_: Annotated[
        Formatter | None, typer.Option("--format", help="Format the statements that were touched.")
    ] = None,
    rename_loggers: Annotated[
        bool, typer.Option("--rename-loggers", help="Rewrite dotted names given to logging.getLogger too.")
    ] = False,
    color: Annotated[bool | None, typer.Option("--color/--no-color", help="Default: if the output is a terminal and NO_COLOR is not set.")] = None,
    list_rules: Annotated[
        bool, typer.Option("--list-rules", callback=_list_rules, is_eager=True, help="Print every rule and exit.")
    ] = False,
    explain: Annotated[
        str | None, typer.Option("--explain", callback=_explain, is_eager=True, metavar="RULE", help="Explain a rule with its examples and exit.")
    ] = None,
) -> None:
    """Migrate a checkout.

    Exit status: 0 nothing is left for a person, 1 sites are left (or --check found changes), 2 error.
    """
    from codemods.engine.job import Request, execute
    from codemods.engine.project import Options

    request = Request(
        checkout=checkout,
        upstream=upstream,
        out=out,
        map=map_file,
        only=_names(only),
        skip=_names(skip),
        jobs=jobs,
        options=Options(rename_loggers=rename_loggers),
        diff=diff,
        check=check,
        json=json_,
        branch=branch,
        format=format_.value if format_ else None,
        color=color,
    )
    raise typer.Exit(execute(request))


def _names(values: list[str] | None) -> tuple[str, ...]:
    return tuple(part.strip() for value in values or () for part in value.split(",") if part.strip())


@map_app.command("build")
def map_build(
    upstream: Annotated[Path, typer.Option(help="Upstream's git repository, with its history.", metavar="GITDIR")],
    base: Annotated[str, typer.Option("--from", help="The old tree: a revision, a version or a folder.", metavar="REV|VERSION|DIR")],
    target: Annotated[str, typer.Option("--to", help="The new tree: a revision, a version or a folder.", metavar="REV|VERSION|DIR")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The map file (.json or .json.gz).", metavar="FILE")],
) -> None:
    """Derive a map from upstream's history and from both trees' symbol tables."""
    from codemods.review.terminal import progress_bar, print_map

    from codemods.maps import build, model

    if out.exists():
        raise UserError(f"{out}: exists; remove it or choose another -o")
    if not out.resolve().parent.is_dir():
        raise UserError(f"{out.parent}: no such folder")
    with progress_bar() as progress:
        built = build.build(upstream, base, target, progress=progress)
    model.dump(built, out)
    print_map(built, out)


def main() -> NoReturn:
    """Run the command line; a user's mistake is one line and exit status 2."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    command = typer.main.get_command(app)
    try:
        status: Any = command.main(prog_name="ling2-migrate", standalone_mode=False)
        sys.exit(status if isinstance(status, int) else 0)
    except UserError as error:
        _fail(" ".join(str(error).split()))
    except typer.TyperException as error:
        _fail(" ".join(error.format_message().split()))
    except (KeyboardInterrupt, typer.Abort):
        print("ling2-migrate: interrupted; nothing was written", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # the reader of --diff or --json went away
        sys.stderr.close()
        sys.exit(0)


def _fail(message: str) -> NoReturn:
    print(f"ling2-migrate: error: {message}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
