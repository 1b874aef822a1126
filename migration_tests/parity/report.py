"""What a comparison says: on the terminal, as JSON and as a page."""

from __future__ import annotations

import html
import json
import math
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from codemods import __version__
from migration_tests.parity import metrics
from migration_tests.parity.run import MIGRATED, Parity, Row

SCHEMA = 1
_TABLE_WIDTH = 140
_STYLES = {
    metrics.PASS: "green",
    metrics.FAIL: "bold red",
    metrics.ERROR: "bold red",
    metrics.MISSING: "yellow",
}


def verdict_text(parity: Parity) -> str:
    """The outcome in one or two sentences."""
    if parity.status == 2:
        failed = [side for side in parity.sides.values() if side.failed]
        return " ".join(f"The {side.name} side could not run: {side.failed}." for side in failed)
    first = parity.first
    if first is None:
        return "All components are within tolerance."
    where = f"{first.component.title} ({first.dtype})"
    return f"The sides first part at: {where}. {_who(parity, first)}"


def _who(parity: Parity, first: Row) -> str:
    """Which sides agree at a component, and with whom the published code agrees, if it was asked."""
    names = [name for name in parity.sides if any(name in pair for pair in first.pairs)]
    erring = parity.erring(first)
    if erring:
        said = f"It could not be computed or carried on: {', '.join(erring)}."
    else:
        odd = parity.odd_one(first)
        agree = [name for name in names if name != odd]
        if odd in names and len(names) > 2:
            said = f"{' and '.join(agree)} agree, {odd} does not."
        else:
            said = (
                f"No two of {', '.join(names)} agree."
                if len(names) > 2
                else f"{' and '.join(names)} differ."
            )
    for row in parity.rows:
        if row.component.name == "oracle" and row is not first and row.pairs:
            fine = [pair[1] for pair in row.pairs if row.verdict(pair) == metrics.PASS]
            said += f" The published code agrees with: {', '.join(fine) or 'none'}."
    return said


def as_json(parity: Parity) -> dict[str, Any]:
    """Everything, as one JSON object."""
    first = parity.first
    return {
        "schema": SCHEMA,
        "tool": f"ling2-migrate {__version__}",
        "status": parity.status,
        "verdict": verdict_text(parity),
        "first": first
        and {
            "component": first.component.name,
            "title": first.component.title,
            "dtype": first.dtype,
            "side": parity.odd_one(first),
        },
        "seconds": round(parity.seconds, 1),
        "sides": {
            side.name: {
                "code": side.code,
                "failed": side.failed,
                "environment": side.environment,
                "seconds": {name: round(value, 2) for name, value in side.seconds.items()},
                "modules": side.loaded,
            }
            for side in parity.sides.values()
        },
        "components": [_row(row) for row in parity.rows],
        "depth": {
            dtype: [{"at": name, **errors} for name, errors in points]
            for dtype, points in parity.depth.items()
        },
        "notes": parity.notes,
    }


def _row(row: Row) -> dict[str, Any]:
    component = row.component
    return {
        "component": component.name,
        "title": component.title,
        "dtype": row.dtype,
        "tolerance": component.tolerance(row.dtype),
        "tolerance_of": "largest absolute error over the root mean square of the reference",
        "reason": component.reason,
        "failed": row.failed,
        "pairs": {
            "-".join(pair): {
                "verdict": row.verdict(pair),
                "arrays": {name: difference.as_json() for name, difference in compared.items()},
            }
            for pair, compared in row.pairs.items()
        },
    }


def write_json(parity: Parity, path: Path) -> None:
    """Writes the JSON report."""
    path.write_text(json.dumps(as_json(parity), indent=1) + "\n", encoding="utf-8")


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return "0" if value == 0 else f"{value:.1e}"


def print_table(parity: Parity, out: Console) -> None:
    """Prints a table of the components, then the outcome."""
    for side in parity.sides.values():
        environment = side.environment
        where = (
            f"{environment['backend']} ({environment['device']}), jax {environment['jax']}, "
            f"matmul precision {environment['matmul_precision']}"
            if environment
            else "did not start"
        )
        out.print(f"[bold]{side.name}[/bold]: {escape(side.code)}; {escape(where)}")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title, justify in (
        ("component", "left"),
        ("dtype", "left"),
        ("pair", "left"),
        ("max abs", "right"),
        ("rel. L2", "right"),
        ("1 - cosine", "right"),
        ("ULP p50/p99/max", "right"),
        ("error", "right"),
        ("tolerance", "right"),
        ("verdict", "left"),
    ):
        table.add_column(title, justify=justify, no_wrap=title != "verdict")  # type: ignore[arg-type]
    for row in parity.rows:
        for number, pair in enumerate(row.pairs):
            worst = row.worst(pair)
            if worst is None:
                continue
            difference = worst[1]
            verdict = row.verdict(pair)
            if pair[0] == MIGRATED and verdict == metrics.PASS and len(row.pairs) > 1:
                continue  # said by the other two; the JSON and the page have it
            cosine = None if difference.cosine is None else max(0.0, 1 - difference.cosine)
            ulps = "–"
            if difference.ulp_max is not None:
                parts = (difference.ulp_p50, difference.ulp_p99, difference.ulp_max)
                ulps = "/".join(f"{p:.0f}" if (p or 0) < 1e6 else f"{p:.0e}" for p in parts)
            table.add_row(
                row.component.title if number == 0 else "",
                row.dtype if number == 0 else "",
                "–".join(pair),
                _number(difference.max_abs),
                _number(difference.relative_l2),
                _number(cosine),
                ulps,
                _number(difference.error),
                _number(row.component.tolerance(row.dtype)),
                f"[{_STYLES[verdict]}]{verdict}[/]",
            )
    # Wider than a narrow terminal rather than cut: every figure is there.
    terminal = out.width
    out.width = max(terminal, _TABLE_WIDTH)
    out.print(table, crop=False)
    out.width = terminal
    for row in parity.rows:
        for pair in row.pairs:
            worst = row.worst(pair)
            if worst and worst[1].verdict in (metrics.FAIL, metrics.ERROR):
                out.print(
                    escape(f"{row.component.title}, {row.dtype}, {'–'.join(pair)}: {_what(*worst)}")
                )
    for note in parity.notes:
        out.print(escape(f"note: {note}"))
    out.print(
        escape(verdict_text(parity)), style=_STYLES[metrics.FAIL if parity.status else metrics.PASS]
    )


def _what(name: str, difference: metrics.Difference) -> str:
    if difference.problem:
        return f"{name}: {difference.problem}" if name else difference.problem
    at = (
        f", the first at {list(difference.first_index)}"
        if difference.first_index is not None
        else ""
    )
    return f"{name or 'the array'} differs in {difference.differing} values{at}"


# ---- the page --------------------------------------------------------------------------------------------------------

_STYLE = """
body{font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:76rem;padding:0 1rem;color:#1b1f24;background:#fff}
table{border-collapse:collapse;width:100%}th,td{padding:.2rem .5rem;border-bottom:1px solid #d7dce1;text-align:left;
vertical-align:top}td.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.pass{color:#176639}.fail,.error{color:#b3151b;font-weight:600}.not{color:#7a5b00}
.verdict{font-size:1.1rem;padding:.6rem .8rem;border-left:4px solid}svg{max-width:100%;height:auto}
details{margin:.1rem 0}summary{cursor:pointer}code{font-size:.92em}caption{text-align:left;font-weight:600}
@media(prefers-color-scheme:dark){body{color:#e6e8ea;background:#16191d}th,td{border-color:#3a4047}
.pass{color:#6bd091}.fail,.error{color:#ff8b8b}.not{color:#e3c15a}}
"""
_COLOURS = {"old-migrated": "#8a6d00", "old-target": "#1f6feb", "migrated-target": "#9a3b9a"}


def page(parity: Parity) -> str:
    """The page: it needs nothing from elsewhere."""
    state = "pass" if parity.status == 0 else "fail"
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>Parity</title><style>{_STYLE}</style></head><body><h1>Parity</h1>",
        f'<p class="verdict {state}">{html.escape(verdict_text(parity))}</p><ul>',
    ]
    for side in parity.sides.values():
        environment = ", ".join(f"{k.replace('_', ' ')} {v}" for k, v in side.environment.items())
        text = html.escape(f"{side.code}; {environment or 'did not start'}")
        parts.append(f"<li><strong>{side.name}</strong>: {text}</li>")
    parts += [f"<li>{html.escape(note)}</li>" for note in parity.notes]
    parts.append("</ul>")
    for dtype, points in parity.depth.items():
        if points:
            parts.append(f"<h2>Error along depth, {dtype}</h2>{_plot(points)}")
    parts.append(
        "<h2>Components along the model</h2><p>Each is compared by itself, on the same inputs and weights; the whole model "
        "from logits on. The tolerance is for the largest absolute error over the root mean square of the first side named. "
        "</p><table><thead><tr><th>component<th>dtype<th>pair<th>worst array<th>max abs<th>rel. L2<th>cosine"
        "<th>ULP p50 / p99 / max<th>first index<th>error<th>tolerance<th>verdict</tr></thead><tbody>"
    )
    for row in parity.rows:
        parts += [_page_row(row, pair) for pair in row.pairs if row.pairs[pair]]
    parts.append("</tbody></table></body></html>\n")
    return "\n".join(parts)


def _page_row(row: Row, pair: tuple[str, str]) -> str:
    worst = row.worst(pair)
    assert worst is not None
    name, difference = worst
    verdict = row.verdict(pair)
    ulps = (difference.ulp_p50, difference.ulp_p99, difference.ulp_max)
    first = "" if difference.first_index is None else str(list(difference.first_index))
    cosine = "–" if difference.cosine is None else f"{difference.cosine:.9f}"
    numbers = (
        _number(difference.max_abs),
        _number(difference.relative_l2),
        cosine,
        " / ".join("–" if u is None else f"{u:.0f}" for u in ulps),
        first,
        _number(difference.error),
        _number(row.component.tolerance(row.dtype)),
    )
    cells = "".join(f'<td class="n">{html.escape(text)}</td>' for text in numbers)
    arrays = row.pairs[pair]
    others = "".join(
        f"<li>{html.escape(key)}: {html.escape(each.problem or _number(each.error))}</li>"
        for key, each in arrays.items()
        if key != name
    )
    shown = html.escape(name + (f": {difference.problem}" if difference.problem else ""))
    if others:
        shown = f"<details><summary>{shown}</summary><ul>{others}</ul></details>"
    title = f'<span title="{html.escape(row.component.reason)}">{html.escape(row.component.title)}</span>'
    return (
        f"<tr><td>{title}<td>{row.dtype}<td>{'–'.join(pair)}<td>{shown}{cells}"
        f'<td class="{verdict.split()[0]}">{verdict}</tr>'
    )


def _plot(points: list[tuple[str, dict[str, float]]]) -> str:
    """An SVG with one line a pair: relative L2 error, on a logarithmic scale, from layer to layer."""
    floor = 1e-9
    width, height, left, bottom, top = 900, 300, 60, 60, 15
    values = [max(v, floor) for _, errors in points for v in errors.values()]
    low = math.floor(math.log10(min(values)))
    high = max(math.ceil(math.log10(max(values))), low + 1)

    def x(index: int) -> float:
        return left + (width - left - 20) * index / max(len(points) - 1, 1)

    def y(value: float) -> float:
        share = (math.log10(max(value, floor)) - low) / (high - low)
        return height - bottom - (height - bottom - top) * share

    parts = [
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="relative L2 error of the outputs along depth" '
        'font-size="12" fill="currentColor">'
    ]
    for exponent in range(low, high + 1):
        at = y(10.0**exponent)
        parts.append(
            f'<line x1="{left}" x2="{width - 20}" y1="{at:.1f}" y2="{at:.1f}" stroke="currentColor" opacity=".15"/>'
            f'<text x="{left - 6}" y="{at + 4:.1f}" text-anchor="end">1e{exponent}</text>'
        )
    for index, (name, _) in enumerate(points):
        label = html.escape(name.replace("_", " "))
        parts.append(
            f'<text x="{x(index):.1f}" y="{height - bottom + 18}" text-anchor="middle">{label}</text>'
        )
    for number, (pair, colour) in enumerate(_COLOURS.items()):
        line = [
            (x(i), y(errors[pair]), errors[pair])
            for i, (_, errors) in enumerate(points)
            if pair in errors
        ]
        if not line:
            continue
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py, _ in line)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [
            f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3.5" fill="{colour}"><title>{pair}: {value:.2e}</title></circle>'
            for px, py, value in line
        ]
        parts.append(
            f'<text x="{left + 150 * number}" y="{height - 8}" fill="{colour}">{pair.replace("-", "–")}</text>'
        )
    parts.append("</svg>")
    return "".join(parts)


def write_page(parity: Parity, path: Path) -> None:
    """Writes the page."""
    path.write_text(page(parity), encoding="utf-8")
