"""`ling2-migrate ckpt`: weights between Hugging Face's format and MaxText's. The work is done by target/."""

from __future__ import annotations

import json
import os
import re
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from codemods import __version__
from codemods.errors import UserError

app = typer.Typer(
    help="Move Ling2 weights between Hugging Face's format and MaxText's, and verify them.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

_PACKAGE = "maxtext.checkpoint_conversion.ling2"
WRITTEN_BY = f"ling2-migrate {__version__}"
_MOST_LISTED = 20
# Packages of the extra `model` that commands import.
_EXTRA = ("numpy", "ml_dtypes", "jax", "orbax", "tensorstore", "etils", "flax", "absl")


class Switch(StrEnum):
    """What an option that is true or false takes."""

    true = "true"
    false = "false"


class SlopeIndex(StrEnum):
    """What `--slope-index` takes."""

    zero_based = "zero_based"
    hf = "hf"


class ScanAxis(StrEnum):
    """What `--param-scan-axis` takes."""

    first = "0"
    second = "1"


class TailRule(StrEnum):
    """What `--mla-tail-rule` takes."""

    last = "last"
    all = "all"
    never = "never"


HfDir = Annotated[
    Path,
    typer.Argument(
        help="A checkpoint in Hugging Face's format: config.json, safetensors files, their index.",
        metavar="HF_DIR",
    ),
]
MaxTextDir = Annotated[
    Path,
    typer.Argument(
        help="A MaxText checkpoint: the folder of a step, its `items`, or one that holds a single step.",
        metavar="MAXTEXT_DIR",
    ),
]
Out = Annotated[
    Path, typer.Argument(help="The result. A folder that does not exist yet.", metavar="OUT")
]
ScanLayers = Annotated[
    Switch,
    typer.Option(
        "--scan-layers",
        case_sensitive=False,
        help="Whether MaxText stacks layers (its option `scan_layers`).",
    ),
]
ParamScanAxis = Annotated[
    ScanAxis,
    typer.Option(
        help="With --scan-layers true: the axis to stack on, MaxText's `param_scan_axis`."
    ),
]
Tail = Annotated[
    TailRule | None,
    typer.Option(
        help="Which layers after the last whole cycle are MLA. Default: what the tensors show."
    ),
]
HfConfig = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="config.json of the model, or its folder. Default: what the checkpoint records.",
        metavar="FILE",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers",
        "-j",
        min=1,
        help="Default: two more than cores, to compare as many as cores; at most 8.",
        metavar="N",
    ),
]
ShardOption = Annotated[
    str | None,
    typer.Option(
        help="Do the i-th of n parts, on one of n hosts that share OUT's folder. "
        "The host that finds all parts done finishes.",
        metavar="I/N",
    ),
]
GroupSize = Annotated[
    str | None,
    typer.Option(
        help="Size of what is complete at a time, so at most lost when killed; of one safetensors file. "
        "Such as 512M or 4G. Default: a sixteenth, from 256M to 1G (to HF: 4G).",
        metavar="SIZE",
    ),
]
ReportJson = Annotated[
    Path | None, typer.Option(help="Write the report to this file too.", metavar="FILE")
]

_PLAN_EXAMPLES = """
**Examples**

`ling2-migrate ckpt plan ~/ling2-hf` \\
`ling2-migrate ckpt plan ~/ling2-hf --config ling2.yml --scan-layers true --json > plan.json`

**Exit status**

0: every tensor has its place. 1: something is missing, extra, double or of the wrong shape; it is listed.
2: an error; it is one line on standard error.
"""


@app.command(epilog=_PLAN_EXAMPLES)
def plan(
    hf_dir: HfDir,
    config: Annotated[
        Path | None,
        typer.Option(
            help="A model's MaxText options, such as ling2.yml, instead of what config.json says.",
            metavar="YML",
        ),
    ] = None,
    scan_layers: ScanLayers = Switch.false,
    mla_tail_rule: Tail = None,
    json_: Annotated[
        bool, typer.Option("--json", help="Print JSON, a row for every tensor.")
    ] = False,
) -> None:
    """Show what becomes of every tensor. Reads headers only, and needs no JAX."""
    with _errors():
        plans = _import("plan")
        options = None if config is None else _read_options(config)
        made = plans.plan(hf_dir, _is(scan_layers), options, mla_tail_rule)
    if json_:
        print(json.dumps(plans.to_json(made), indent=1))
    else:
        _print_plan(plans, made)
    raise typer.Exit(1 if made.problems else 0)


_CONVERT_EPILOG = """
A conversion that is stopped, however, is taken up again by the same command. Nothing is at OUT before all is.

**Exit status**

0: done. 2: an error; it is one line on standard error, and nothing is left behind.
"""


@app.command(epilog=_CONVERT_EPILOG)
def to_maxtext(
    hf_dir: HfDir,
    out: Out,
    scan_layers: ScanLayers,
    slope_index: Annotated[
        SlopeIndex | None,
        typer.Option(
            help="The slope convention that the weights were trained with; recorded in the checkpoint. "
            "Default: `gla_slope_index` of config.json, without it zero_based."
        ),
    ] = None,
    mla_tail_rule: Tail = None,
    param_scan_axis: ParamScanAxis = ScanAxis.second,
    shard: ShardOption = None,
    workers: Workers = None,
    group_size: GroupSize = None,
) -> None:
    """Convert Hugging Face's format to a checkpoint that MaxText restores (OUT/0/items)."""
    with _errors(), _settings(shard, workers, group_size) as settings:
        convert = _import("convert")
        axis = int(param_scan_axis)
        made = _import("plan").plan(hf_dir, _is(scan_layers), None, mla_tail_rule, axis)
        slope = slope_index.value if slope_index else made.slope_index
        done = convert.to_maxtext(made, out, slope, WRITTEN_BY, settings)
    _print_converted(done, out / convert.STEP / "items")


@app.command(epilog=_CONVERT_EPILOG)
def to_hf(
    maxtext_dir: MaxTextDir,
    out: Out,
    config: HfConfig = None,
    shard: ShardOption = None,
    workers: Workers = None,
    group_size: GroupSize = None,
) -> None:
    """Convert a MaxText checkpoint, scanned or not, to Hugging Face's format."""
    with _errors(), _settings(shard, workers, group_size) as settings:
        convert = _import("convert")
        done = convert.to_hf(convert.open_maxtext(maxtext_dir, config), out, settings)
    _print_converted(done, out)


@app.command(epilog=_CONVERT_EPILOG)
def restack(
    maxtext_dir: MaxTextDir,
    out: Out,
    scan_layers: ScanLayers,
    param_scan_axis: ParamScanAxis = ScanAxis.second,
    config: HfConfig = None,
    shard: ShardOption = None,
    workers: Workers = None,
    group_size: GroupSize = None,
) -> None:
    """Convert a MaxText checkpoint to one with its layers stacked, or not."""
    with _errors(), _settings(shard, workers, group_size) as settings:
        convert = _import("convert")
        model = convert.open_maxtext(maxtext_dir, config)
        axis = int(param_scan_axis)
        done = convert.restack(model, out, _is(scan_layers), WRITTEN_BY, settings, axis)
    _print_converted(done, out / convert.STEP / "items")


@app.command(epilog=_CONVERT_EPILOG)
def rename(
    maxtext_dir: MaxTextDir,
    out: Out,
    config: HfConfig = None,
    shard: ShardOption = None,
    workers: Workers = None,
    group_size: GroupSize = None,
) -> None:
    """Give the parameters of a MaxText checkpoint of an older fork today's names and shapes."""
    with _errors(), _settings(shard, workers, group_size) as settings:
        convert = _import("convert")
        model = convert.open_maxtext(maxtext_dir, config)
        axis = model.dims.param_scan_axis
        done = convert.restack(model, out, model.scan_layers, WRITTEN_BY, settings, axis)
    for old, new in list(model.renamed.items())[:_MOST_LISTED]:
        print(f"  {old} → {new}")
    if len(model.renamed) > _MOST_LISTED:
        print(f"  … and {len(model.renamed) - _MOST_LISTED} more")
    print(f"{len(model.renamed)} of {len(model.leaves)} arrays have another name now")
    _print_converted(done, out / convert.STEP / "items")


_COMPARE_EPILOG = """
**Exit status**

0: they agree. 1: they differ; the differences are listed. 2: an error; it is one line on standard error.
"""


@app.command(epilog=_COMPARE_EPILOG)
def compare_shapes(maxtext_dir: MaxTextDir, hf_dir: HfDir, report_json: ReportJson = None) -> None:
    """Compare names and shapes of a MaxText checkpoint with those of a Hugging Face one."""
    raise typer.Exit(run_compare_shapes(maxtext_dir, hf_dir, report_json=report_json))


@app.command(epilog=_COMPARE_EPILOG)
def compare_values(
    maxtext_dir: MaxTextDir,
    hf_dir: HfDir,
    max_abs: Annotated[
        float,
        typer.Option(min=0.0, help="Largest difference that counts as equal; 0: the same bits."),
    ] = 0.0,
    min_cosine: Annotated[
        float,
        typer.Option(min=-1.0, max=1.0, help="With --max-abs: smallest cosine that counts too."),
    ] = 0.999999,
    report_json: ReportJson = None,
    workers: Workers = None,
) -> None:
    """Compare values: per tensor the largest difference, in numbers and in ULP, and the cosine."""
    status = run_compare_values(
        maxtext_dir,
        hf_dir,
        max_abs=max_abs,
        min_cosine=min_cosine,
        report_json=report_json,
        workers=workers,
    )
    raise typer.Exit(status)


def run_compare_shapes(
    maxtext_dir: Path, hf_dir: Path, report_json: Path | None = None, **expected: int | None
) -> int:
    """Compare names and shapes, print the result and return the exit status.

    Args:
        maxtext_dir: the MaxText checkpoint.
        hf_dir: the HF checkpoint.
        report_json: a file for the report.
        expected: what to take instead of what config.json says; attributes of `compare.Expected`.

    Raises:
        UserError: one of the checkpoints cannot be read, or the report cannot be written.
    """
    _check_report(report_json)
    with _errors():
        compare = _import("compare")
        report = compare.compare_shapes(maxtext_dir, hf_dir, compare.Expected(**expected))
    _write_report(report.to_json(), report_json)
    _print_shapes(report)
    print("verdict: the same names and shapes" if report.equal else "verdict: they differ")
    return 0 if report.equal else 1


def run_compare_values(
    maxtext_dir: Path,
    hf_dir: Path,
    max_abs: float = 0.0,
    min_cosine: float = 0.999999,
    report_json: Path | None = None,
    workers: int | None = None,
    **expected: int | None,
) -> int:
    """Compare values, print the result and return the exit status; arguments and errors as `run_compare_shapes`.

    Args:
        maxtext_dir: the MaxText checkpoint.
        hf_dir: the HF checkpoint.
        max_abs: largest difference that counts as equal.
        min_cosine: smallest cosine that does.
        report_json: a file for the report.
        workers: parameters compared at a time.
        expected: see there.
    """
    _check_report(report_json)
    with _errors(), _progress("comparing") as progress:
        compare = _import("compare")
        report = compare.compare_values(
            maxtext_dir,
            hf_dir,
            compare.Expected(**expected),
            max_abs,
            min_cosine,
            workers or min(8, os.cpu_count() or 1),
            progress,
        )
    _write_report(report.to_json(), report_json)
    _print_shapes(report.shapes)
    _print_values(report)
    return 0 if report.equal else 1


# ---- Arguments ------------------------------------------------------------------------------------------------------


def _is(switch: Switch) -> bool:
    return switch is Switch.true


def _import(name: str) -> Any:
    """A module of the package that does the work; orbax is not to look for accelerators."""
    from target.importing import target_module

    if "jax" not in sys.modules:
        os.environ["JAX_PLATFORMS"] = "cpu"
    try:
        return target_module(f"{_PACKAGE}.{name}")
    except ModuleNotFoundError as error:
        package = (error.name or "").split(".")[0]
        if package not in _EXTRA:
            raise
        raise UserError(
            f"this command needs {package}; install the extra: pip install 'ling2-migrate[model]'"
        ) from None


@contextmanager
def _errors() -> Iterator[None]:
    """Turns errors of checkpoints into those of the command line."""
    error_type = _import("errors").CheckpointError
    try:
        yield
    except error_type as error:
        raise UserError(str(error)) from None


@contextmanager
def _settings(shard: str | None, workers: int | None, group_size: str | None) -> Iterator[Any]:
    """The settings of a conversion, with a progress bar."""
    convert, work = _import("convert"), _import("work")
    given: dict[str, Any] = {"workers": workers} if workers else {}
    if shard is not None:
        given["shard"] = work.Shard.parse(shard)
    if group_size is not None:
        given["group_bytes"] = _parse_size(group_size)
    try:
        with _progress("converting") as progress:
            yield convert.Settings(report=progress, **given)
    except Exception:
        raise
    except BaseException:
        print("ling2-migrate: the same command goes on from here", file=sys.stderr)
        raise


def _parse_size(text: str) -> int:
    found = re.fullmatch(r"(\d+)([KMGT]?)B?", text.strip().upper())
    if not found or not int(found[1]):
        raise UserError(f"--group-size {text}: a number of bytes is needed, such as 512M or 4G")
    return int(found[1]) << 10 * " KMGT".index(found[2] or " ")


def _read_options(path: Path) -> dict[str, Any]:
    """The options in a MaxText YAML file."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        options = YAML(typ="safe").load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except (YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: is no YAML ({str(error).splitlines()[0]})") from None
    if not isinstance(options, dict):
        raise UserError(f"{path}: has no options")
    return options


def _check_report(path: Path | None) -> None:
    """Refuse, before the work, a report that could not be written after it."""
    if path is not None and (path.is_dir() or not path.parent.is_dir()):
        reason = "is a folder" if path.is_dir() else f"there is no folder {path.parent}"
        raise UserError(f"{path}: cannot be written ({reason})")


def _write_report(report: dict[str, Any], path: Path | None) -> None:
    if path is None:
        return
    try:
        path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror})") from None


# ---- Terminal -------------------------------------------------------------------------------------------------------


@contextmanager
def _progress(what: str) -> Iterator[Callable[[int, int], None] | None]:
    """A bar of bytes on standard error; none when that is no terminal."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    out = Console(stderr=True)
    if not out.is_terminal or os.environ.get("CI"):
        yield None
        return
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    bar = Progress(TextColumn("{task.description}"), *columns, console=out, transient=True)
    task = bar.add_task(what, total=None)
    with bar:
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _bytes(count: float) -> str:
    for unit in ("bytes", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def _peak() -> int:
    """The most memory that this process has had."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _print_converted(done: Any, where: Path) -> None:
    bound = 2 * done.largest + (1 << 30)
    print(
        f"{done.parameters} parameters, {done.tensors} HF tensors, {_bytes(done.nbytes)}; "
        f"peak memory {_bytes(_peak())} (bound {_bytes(bound)})"
    )
    print(f"checkpoint: {where}" if done.finished else "this part is done; other parts are not")


def _print_plan(plans: Any, made: Any) -> None:
    rows: dict[str, list[Any]] = {}
    for row in made.rows:
        rows.setdefault(row.parameter.key, []).append(row)
    lines = [("source", "target", "shape", "dtype", "transform")]
    for held in rows.values():
        parameter, shape = held[0].parameter, "×".join(map(str, held[0].tensor.shape))
        lines.append(
            (
                plans.folded(row.tensor.name for row in held),
                parameter.key,
                f"{shape} → {'×'.join(map(str, parameter.shape))}",
                ", ".join(dict.fromkeys(row.tensor.dtype for row in held)),
                parameter.transform + (", stack" if len(parameter.stack_axes) else ""),
            )
        )
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(map(str.ljust, line, widths)).rstrip())
    for name, other in made.redundant.items():
        print(f"{name} repeats {other}; compared with it, not converted")
    for problem in made.problems:
        print(f"{problem.kind}: {problem.name} {problem.reason}")
    counts: dict[str, int] = {}
    for problem in made.problems:
        counts[problem.kind] = counts.get(problem.kind, 0) + 1
    said = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    print(
        f"{len(made.rows)} tensors → {len(rows)} parameters, {_bytes(made.total_bytes)} "
        f"({made.total_bytes} bytes); {said or 'all accounted for'}"
    )


def _print_shapes(report: Any) -> None:
    data = report.to_json()
    for title, names in (
        ("no parameter of the model", data["missing_mapping"]),
        ("missing in MaxText", data["missing_orbax"]),
        ("missing in HF", [name for held in data["missing_hf"].values() for name in held]),
        ("HF alone", data["unmatched_hf"]),
        ("twice in HF", data["duplicate_hf"]),
    ):
        for name in names[:_MOST_LISTED]:
            print(f"{title}: {name}")
        if len(names) > _MOST_LISTED:
            print(f"{title}: … and {len(names) - _MOST_LISTED} more")
    for row in data["shape_mismatch"][:_MOST_LISTED]:
        print(f"shape: {row['orbax']} {row['orbax_shape']}, HF makes it {row['expected_shape']}")
    print(
        f"{data['mapped_ok_count']} of {data['orbax_leaf_count']} arrays agree in name and shape; "
        f"{data['missing_mapping_count']} without mapping, {data['missing_hf_count']} missing in HF, "
        f"{data['missing_orbax_count']} missing in MaxText, {data['shape_mismatch_count']} of another shape, "
        f"{data['unmatched_hf_count']} in HF alone"
    )


def _print_values(report: Any) -> None:
    differing = [d for d in report.differences if d.differing]
    differing.sort(key=lambda d: (d.max_abs != d.max_abs, d.max_abs), reverse=True)
    for d in differing[:_MOST_LISTED]:
        ok = "" if not d.within(report.max_abs, report.min_cosine) else " (within the tolerance)"
        ulp = "-" if d.max_ulp is None else d.max_ulp
        print(
            f"{d.name}: max abs {d.max_abs:.3e}, {ulp} ULP, cosine {d.cosine:.9f}, "
            f"{d.differing} of {d.elements} differ{ok}"
        )
    if len(differing) > _MOST_LISTED:
        print(f"… and {len(differing) - _MOST_LISTED} more that differ")
    for row in report.by_layer():
        if row["max_abs"] != 0 or row["failed"]:
            layer = "top" if row["layer"] is None else f"layer {row['layer']}"
            print(
                f"{layer}: {row['failed']} of {row['compared']} too far apart, max abs {row['max_abs']:.3e}, "
                f"least cosine {row['min_cosine']:.9f}"
            )
    same = sum(not d.differing for d in report.differences)
    print(f"{same} of {len(report.differences)} arrays compared are the same to the last bit")
    if report.identical:
        print("verdict: identical")
    elif report.equal:
        print(f"verdict: equal within max abs {report.max_abs}, cosine {report.min_cosine}")
    else:
        print("verdict: they differ")
