"""The command line. Sub-commands import what they need when called, so that the codemods run without JAX."""

from __future__ import annotations

import io
import os
import signal
import sys
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer

from codemods import __version__, ckpt
from codemods.errors import UserError

app = typer.Typer(
    name="ling2-migrate",
    help="Carry a MaxText fork from the old layout (package MaxText) to upstream's (package maxtext).",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
map_app = typer.Typer(
    help="Make maps from old modules, paths and names to new ones.",
    no_args_is_help=True,
)
app.add_typer(map_app, name="map")
app.add_typer(ckpt.app, name="ckpt")


_LOCAL_GIT = (
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_COMMON_DIR",
    "GIT_OBJECT_DIRECTORY",
    "GIT_PREFIX",
)


Color = Annotated[
    bool | None,
    typer.Option(
        "--color/--no-color",
        help="Default: if the output is a terminal and NO_COLOR is not set.",
    ),
]
Jobs = Annotated[
    int | None,
    typer.Option(
        "--jobs", "-j", min=1, help="Worker processes. Default: one per core.", metavar="N"
    ),
]


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


_RUN_EXAMPLES = """
**Examples**

`ling2-migrate run ~/my-fork --upstream 0.2.5 --out ~/my-fork-migrated` \\
writes the migrated tree with `report.html` in it; open that next.

`ling2-migrate run ~/my-fork --upstream ~/maxtext --out ~/copy --branch migrated` \\
makes a copy of the repository with a branch of one commit per rule family.

`ling2-migrate run ~/my-fork --upstream 0.2.5 --check` \\
writes nothing; for continuous integration.

`ling2-migrate run . --upstream 0.2.5 --only IMP,TXT --diff | less` \\
shows what two families of rules would change.

`ling2-migrate run --explain IMP002` \\
tells what a rule does, with examples; `--list-rules` names them all.

**Exit status**

0: nothing is left for a person. 1: sites are left for a person, or --check found changes.
2: an error; it is one line on standard error, and nothing was written.
"""


@app.command(epilog=_RUN_EXAMPLES)
def run(
    checkout: Annotated[
        Path,
        typer.Argument(
            help="The fork: a git checkout or a plain folder. Never written to.", metavar="CHECKOUT"
        ),
    ],
    upstream: Annotated[
        str,
        typer.Option(
            help="Upstream's new tree: a folder (git checkout, unpacked wheel, site-packages) or a version on PyPI.",
            metavar="DIR|VERSION",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="The migrated tree with report.json and report.html in it. A folder that does not exist yet.",
            metavar="DIR",
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="Run only these rules or families (IMP001, IMP); repeat or separate by commas.",
            metavar="RULES",
        ),
    ] = None,
    skip: Annotated[
        list[str] | None, typer.Option(help="Do not run these rules or families.", metavar="RULES")
    ] = None,
    map_file: Annotated[
        Path | None,
        typer.Option(
            "--map", help="Use this map instead of the shipped one that fits.", metavar="FILE"
        ),
    ] = None,
    diff: Annotated[
        bool, typer.Option("--diff", help="Print the changes as a patch that `git apply` takes.")
    ] = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Write nothing; exit 1 if anything would change or is listed."
        ),
    ] = False,
    json_: Annotated[
        bool,
        typer.Option("--json", help="Print report.json on standard output instead of the summary."),
    ] = False,
    jobs: Jobs = None,
    branch: Annotated[
        str | None,
        typer.Option(
            help="Make --out a copy of the repository with this new branch: one commit per rule family.",
            metavar="NAME",
        ),
    ] = None,
    format_: Annotated[
        Formatter | None, typer.Option("--format", help="Format the statements that were touched.")
    ] = None,
    rename_loggers: Annotated[
        bool,
        typer.Option(
            "--rename-loggers", help="Rewrite dotted names given to logging.getLogger too."
        ),
    ] = False,
    color: Color = None,
    list_rules: Annotated[
        bool,
        typer.Option(
            "--list-rules", callback=_list_rules, is_eager=True, help="Print every rule and exit."
        ),
    ] = False,
    explain: Annotated[
        str | None,
        typer.Option(
            "--explain",
            callback=_explain,
            is_eager=True,
            metavar="RULE",
            help="Explain a rule with its examples and exit.",
        ),
    ] = None,
) -> None:
    """Migrate a checkout to upstream's layout.

    The checkout is only read. What the rules can rewrite with certainty is rewritten; every place that a
    person has to look at is listed in the report, with the reason.
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
    return tuple(
        part.strip() for value in values or () for part in value.split(",") if part.strip()
    )


_APPLY_EXAMPLES = """
**Examples**

`ling2-migrate apply ~/migrated --decisions decisions.json` \\
writes `~/migrated-applied`: the migrated tree with only what was accepted, and the report of that.

`ling2-migrate apply ~/migrated --decisions decisions.json --accept-open --out ~/chosen` \\
leaves out only what was rejected.

**Exit status**

0: nothing is left for a person. 1: something is: sites, or changes that were not made.
2: an error; it is one line on standard error, and nothing was written.
"""


@app.command(epilog=_APPLY_EXAMPLES)
def apply(
    made: Annotated[
        Path,
        typer.Argument(
            help="The folder that `run --out` or an earlier `apply` made.", metavar="OUT"
        ),
    ],
    decisions: Annotated[
        Path,
        typer.Option(help="What was decided, as report.html exports it.", metavar="FILE"),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="The tree with what was accepted. A folder that does not exist yet; default: OUT-applied.",
            metavar="DIR",
        ),
    ] = None,
    accept_open: Annotated[
        bool,
        typer.Option("--accept-open", help="Make what is open too; leave out what is rejected."),
    ] = False,
    checkout: Annotated[
        Path | None,
        typer.Option(help="Where the checkout is now, if not where it was.", metavar="DIR"),
    ] = None,
    upstream: Annotated[
        str | None,
        typer.Option(
            help="Where upstream's tree is now, if not where it was.", metavar="DIR|VERSION"
        ),
    ] = None,
    branch: Annotated[
        str | None,
        typer.Option(
            help="Make a copy of the repository with this new branch: one commit per rule family.",
            metavar="NAME",
        ),
    ] = None,
    jobs: Jobs = None,
    color: Color = None,
) -> None:
    """Make the migrated tree with only what a reviewer accepted.

    The migration runs again from the same checkout, which must not have changed. A rejected move keeps its
    file in place, with all imports of it and paths to it right.
    """
    from codemods.engine.job import Choice, execute_apply

    choice = Choice(made, decisions, out, accept_open, checkout, upstream, branch, jobs, color)
    raise typer.Exit(execute_apply(choice))


@app.command()
def review(
    made: Annotated[
        Path,
        typer.Argument(help="A folder with a report.json, of `run` or `apply`.", metavar="OUT"),
    ],
) -> None:
    """Make `report.html` again from `report.json`."""
    from codemods.engine.report import read_report
    from codemods.review import page
    from codemods.review.terminal import console, print_page

    page.write(read_report(made), made)
    print_page(console(), made)


_OVERLAY_EXAMPLES = """
**Examples**

`ling2-migrate overlay --upstream 0.2.5 --out maxtext-ling2` \\
`ling2-migrate overlay --upstream ~/maxtext --out ~/maxtext-ling2`

**Exit status**

0: everything is in. 1: some edits found no place in this upstream; they are listed, and the rest is in.
2: an error; it is one line on standard error, and nothing was written.
"""


@app.command(epilog=_OVERLAY_EXAMPLES)
def overlay(
    upstream: Annotated[
        str,
        typer.Option(
            help="Upstream's tree: a folder (git checkout, unpacked wheel, site-packages) or a version on PyPI. "
            "Never written to.",
            metavar="DIR|VERSION",
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            help="The tree with Ling2 in it. A folder that does not exist yet.", metavar="DIR"
        ),
    ],
    color: Color = None,
) -> None:
    """Put Ling2 into a copy of an upstream MaxText tree.

    New files go to upstream's own paths; the INT rules (`run --list-rules`) wire them into upstream's files.
    Other models in the tree behave as before.
    """
    from codemods.engine.overlay import overlay as make
    from codemods.review.terminal import console, print_overlay
    from target.integration import INTEGRATIONS, NEW_FILES

    made = make(upstream, out, NEW_FILES, INTEGRATIONS)
    print_overlay(console(color), made, out)
    raise typer.Exit(1 if made.missing else 0)


_REBASE_EXAMPLES = """
**Examples**

`ling2-migrate rebase ~/my-fork --onto upstream/main --plan` \\
tells what would be in conflict, and writes nothing.

`ling2-migrate rebase ~/my-fork --onto upstream/main --branch migrated --out ~/work` \\
carries the commits of HEAD, one for one, to a new branch.

`ling2-migrate rebase --continue --out ~/work` \\
goes on when a conflict in ~/work has been resolved and added.

**Exit status**

0: done (the branch is in the repository), or a plan without conflicts. 1: a conflict waits for a person.
2: an error; it is one line on standard error, and the repository is as it was.
"""


@app.command(epilog=_REBASE_EXAMPLES)
def rebase(
    checkout: Annotated[
        Path | None,
        typer.Argument(
            help="The fork's git repository. It gets the finished branch and nothing else.",
            metavar="CHECKOUT",
        ),
    ] = None,
    onto: Annotated[
        str | None,
        typer.Option(help="Upstream's commit to stand on, fetched before.", metavar="REV"),
    ] = None,
    revision: Annotated[
        str, typer.Option("--from", help="The branch to carry.", metavar="REV")
    ] = "HEAD",
    base: Annotated[
        str | None,
        typer.Option(
            help="Upstream's commit that the branch stands on. Default: the merge base.",
            metavar="REV",
        ),
    ] = None,
    branch: Annotated[str, typer.Option(help="The new branch's name.", metavar="NAME")] = "",
    out: Annotated[
        Path | None,
        typer.Option(
            help="The work folder: conflicts are left there, and the new branch is checked out in it.",
            metavar="DIR",
        ),
    ] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Tell what would happen; write nothing.")
    ] = False,
    squash: Annotated[
        bool, typer.Option("--squash", help="Make one commit of the whole branch.")
    ] = False,
    last: Annotated[
        str,
        typer.Option(
            help="A branch that an earlier rebase made on the same upstream: only what the fork has got since "
            "is carried, on top of it.",
            metavar="REV",
        ),
    ] = "",
    drop_migrated: Annotated[
        bool,
        typer.Option("--drop-migrated", help="Leave out commits that upstream has already."),
    ] = False,
    continue_: Annotated[
        bool, typer.Option("--continue", help="Go on after a conflict was resolved.")
    ] = False,
    skip: Annotated[
        bool, typer.Option("--skip", help="Go on without the commit that is in conflict.")
    ] = False,
    abort: Annotated[
        bool, typer.Option("--abort", help="Give up and remove the work folder.")
    ] = False,
    skip_rules: Annotated[
        list[str] | None,
        typer.Option(help="Do not run these rules or families.", metavar="RULES"),
    ] = None,
    jobs: Jobs = None,
    color: Color = None,
) -> None:
    """Carry a branch onto a new upstream, across the rename.

    The branch's base and each of its commits are put on the new layout, and the change between them is made on
    top of upstream: one commit out for each commit in. What has one certain answer is resolved, with its reason in
    the report; the rest is left as an ordinary git conflict.
    """
    from codemods.engine.pool import default_jobs
    from codemods.rebase.job import Request, execute
    from codemods.rebase.session import Choices

    choices = Choices(
        branch=branch,
        squash=squash,
        drop_migrated=drop_migrated,
        skip=_names(skip_rules),
        jobs=jobs or default_jobs(),
        last=last,
    )
    request = Request(
        checkout=checkout,
        onto=onto,
        revision=revision,
        base=base,
        out=out,
        choices=choices,
        plan=plan,
        continue_=continue_,
        skip=skip,
        abort=abort,
        color=color,
    )
    raise typer.Exit(execute(request))


_PARITY_EXAMPLES = """
**Examples**

`ling2-migrate parity ~/my-fork --oracle ~/tiny-hf-checkpoint --json parity.json --html parity.html`

`ling2-migrate parity ~/my-fork --migrated ~/my-fork-migrated --only 'gla*,router*'` \\
compares some components, with a migrated tree in which a person has dealt with what was listed.

`ling2-migrate parity ~/my-fork --spec my_norm.py` \\
compares a component of your own; the file names an old callable, a new one, inputs and a weight map.

`ling2-migrate parity --dumps old.npz new.npz`

`ling2-migrate parity --aot v5e:2x2` \\
compiles the target's parts for TPUs, on a machine that has none. No numbers are compared.

**Exit status**

0: all within tolerance. 1: not. 2: a side could not run, or an error.
"""


@app.command(epilog=_PARITY_EXAMPLES)
def parity(
    checkout: Annotated[
        Path | None,
        typer.Argument(help="The fork as it is. Never written to.", metavar="CHECKOUT"),
    ] = None,
    upstream: Annotated[
        str, typer.Option(help="Upstream's tree or version.", metavar="DIR|VERSION")
    ] = "0.2.5",
    migrated: Annotated[
        Path | None,
        typer.Option(
            help="The migrated tree, if there is one; else `run` makes it.", metavar="DIR"
        ),
    ] = None,
    overlaid: Annotated[
        Path | None,
        typer.Option(
            "--overlay",
            help="The upstream tree with Ling2 in it, if there is one; else `overlay` makes it.",
            metavar="DIR",
        ),
    ] = None,
    oracle: Annotated[
        Path | None,
        typer.Option(
            help="A Hugging Face checkpoint with reference outputs (ref_zero_based_T200.npz) of the published code.",
            metavar="DIR",
        ),
    ] = None,
    sides: Annotated[
        list[str] | None,
        typer.Option("--sides", help="Of old, migrated, target: two or three.", metavar="SIDES"),
    ] = None,
    dtypes: Annotated[
        list[str] | None,
        typer.Option("--dtype", help="float32, bfloat16; default: both.", metavar="DTYPES"),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Only these components (patterns are allowed).", metavar="NAMES"),
    ] = None,
    spec: Annotated[
        Path | None,
        typer.Option(help="Compare what this Python file specifies instead.", metavar="FILE"),
    ] = None,
    dumps: Annotated[
        tuple[Path, Path] | None,
        typer.Option(help="Compare the arrays of two npz files instead.", metavar="OLD NEW"),
    ] = None,
    ulps: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Tolerance for --dumps, in units in the last place. Default: 1024, 64 of float16, 16 of bfloat16.",
            metavar="N",
        ),
    ] = None,
    aot: Annotated[
        str | None,
        typer.Option(help="Compile the target for this TPU topology instead.", metavar="TOPOLOGY"),
    ] = None,
    json_: Annotated[
        Path | None, typer.Option("--json", help="Write the report here.", metavar="FILE")
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option(
            "--html", help="Write a page with a plot of the error along depth.", metavar="FILE"
        ),
    ] = None,
    keep: Annotated[
        Path | None,
        typer.Option(help="Keep the trees and results here; a new folder.", metavar="DIR"),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs",
            "-j",
            min=1,
            help="Sides that run at the same time. Default: 2, or 1 where they would share a TPU.",
            metavar="N",
        ),
    ] = None,
    color: Color = None,
) -> None:
    """Compare what the fork computes with what it computes once migrated, and with the target package.

    Each component runs on the same inputs and weights in a process of its own side; the first along the model
    that is apart is named.
    """
    from codemods.review.terminal import console
    from migration_tests.parity.command import Arguments, execute

    arguments = Arguments(
        checkout=checkout,
        upstream=upstream,
        migrated=migrated,
        overlay=overlaid,
        oracle=oracle,
        sides=_names(sides),
        dtypes=_names(dtypes),
        only=_names(only),
        spec=spec,
        dumps=dumps,
        ulps=ulps,
        aot=aot,
        json=json_,
        page=page,
        keep=keep,
        jobs=jobs,
    )
    raise typer.Exit(execute(arguments, console(color), console(color, stderr=True)))


_MAP_EXAMPLES = """
**Examples**

`ling2-migrate map build --upstream ~/maxtext/.git --from d4ed2261 --to 0.2.5 -o my.json.gz` \\
`ling2-migrate run ~/my-fork --upstream 0.2.5 --map my.json.gz --out ~/migrated`

Maps for the usual bases and versions ship with this program and are chosen by `run`; make one only when
`run` says that none fits.
"""


@map_app.command("build", epilog=_MAP_EXAMPLES)
def map_build(
    upstream: Annotated[
        Path, typer.Option(help="Upstream's git repository, with its history.", metavar="GITDIR")
    ],
    base: Annotated[
        str,
        typer.Option(
            "--from",
            help="The old tree: a revision, a version or a folder.",
            metavar="REV|VERSION|DIR",
        ),
    ],
    target: Annotated[
        str,
        typer.Option(
            "--to",
            help="The new tree: a revision, a version or a folder.",
            metavar="REV|VERSION|DIR",
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The map file (.json or .json.gz).", metavar="FILE")
    ],
) -> None:
    """Derive a map from upstream's history and from both trees' symbol tables."""
    from codemods.maps import build, model
    from codemods.review.terminal import print_map, progress_bar

    if out.exists():
        raise UserError(f"{out}: exists; remove it or choose another -o")
    if not out.resolve().parent.is_dir():
        raise UserError(f"{out.parent}: no such folder")
    with progress_bar() as progress:
        built = build.build(
            upstream, base, target, progress=lambda done, total, what: progress(what, done, total)
        )
    partial = out.with_name(f".partial-{os.getpid()}-{out.name}")
    try:
        model.dump(built, partial)
        partial.rename(out)
    finally:
        partial.unlink(missing_ok=True)
    print_map(built, out)


def main() -> NoReturn:
    """Run the command line; a user's mistake is one line and exit status 2."""
    _handle_signals()
    for name in _LOCAL_GIT:  # set where a git hook runs this program; they mean another repository
        os.environ.pop(name, None)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(
            stream, io.TextIOWrapper
        ):  # a path may hold what the terminal's encoding does not
            stream.reconfigure(errors="backslashreplace")
    command = typer.main.get_command(app)
    try:
        status: Any = command.main(prog_name="ling2-migrate", standalone_mode=False)
        sys.stdout.flush()
        sys.exit(status if isinstance(status, int) else 0)
    except UserError as error:
        _fail(str(error))
    except BrokenPipeError:  # the reader of --diff or --json went away
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        _fail(f"{error.filename or 'standard output'}: {error.strerror or error}")
    except typer.TyperException as error:
        if error.format_message():
            _fail(error.format_message())
        sys.exit(2)  # no command was given, so the help has been printed
    except _StoppedError as error:
        print(
            "ling2-migrate: interrupted; nothing half-written is left", file=sys.stderr, flush=True
        )
        # Everything is unwound by now; the pool's own clean-up at exit can trip over workers that are gone.
        os._exit(128 + error.number)


class _StoppedError(BaseException):
    """A signal asks the program to end. (Typer has an answer of its own to KeyboardInterrupt.)"""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def _handle_signals() -> None:
    """Let SIGINT, SIGTERM and SIGHUP raise `_StoppedError` in the main thread."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # as `nohup` has it
            signal.signal(number, _stop)
    sys.unraisablehook = _unraisable


def _stop(number: int, _frame: FrameType | None) -> NoReturn:
    raise _StoppedError(number)


def _unraisable(ignored: sys.UnraisableHookArgs) -> None:
    """Python drops what is raised in a finalizer or a weak reference's callback: ask again, a moment later."""
    error = ignored.exc_value
    if not isinstance(error, _StoppedError):
        sys.__unraisablehook__(ignored)
        return
    signal.signal(signal.SIGALRM, lambda _number, frame: _stop(error.number, frame))
    signal.setitimer(signal.ITIMER_REAL, 0.01)


def _fail(message: str) -> NoReturn:
    print(f"ling2-migrate: error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
