"""What a comparison says: on the terminal, as JSON and as a page."""

from __future__ import annotations

import html
import json
import math
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from codemods import __version__
from migration_tests.parity import metrics, plan
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
        where = "; could not run" if side.roots else ""
        if environment:
            where = (
                f"; {environment['backend']} ({environment['device']}), jax {environment['jax']}, "
                f"matmul precision {environment['matmul_precision']}"
            )
        out.print(Text.assemble((side.name, "bold"), f": {side.code}{where}"))
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
                Text(row.component.title if number == 0 else ""),
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
            # Why the weights of a model are not there is why all that need them have not run.
            told = {metrics.FAIL, metrics.ERROR}
            if row.component.name == "weights":
                told.add(metrics.MISSING)
            if worst and worst[1].verdict in told:
                out.print(
                    Text(f"{row.component.title}, {row.dtype}, {'–'.join(pair)}: {_what(*worst)}")
                )
    for note in parity.notes:
        out.print(Text(f"note: {note}"))
    out.print(Text(verdict_text(parity), _STYLES[metrics.FAIL if parity.status else metrics.PASS]))


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
body{font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:100rem;padding:0 1rem;color:#1b1f24;background:#fff}
table{border-collapse:collapse;width:100%}th,td{padding:.2rem .5rem;border-bottom:1px solid #d7dce1;text-align:left;
vertical-align:top}td.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
td.p{white-space:nowrap}td.a{min-width:12rem;overflow-wrap:anywhere}.wide{overflow-x:auto}.wide svg{min-width:40rem;width:100%;max-width:72rem}
.pass{color:#176639}.fail,.error{color:#b3151b;font-weight:600}.not{color:#7a5b00}.verdict a{color:inherit}
.verdict{font-size:1.1rem;padding:.6rem .8rem;border-left:4px solid}tr.first td{background:#fdecec}
svg polyline{fill:none;stroke:currentColor;stroke-width:2}svg .rule{stroke:currentColor;stroke-width:1}
.old-migrated{color:#8a6d00}.old-target{color:#1f6feb}.migrated-target{color:#9a3b9a}svg .mark{color:#b3151b;font-weight:600}
svg .old-target polyline{stroke-dasharray:10 5}svg .migrated-target polyline{stroke-dasharray:3 4}
details{margin:.1rem 0}summary{cursor:pointer}
@media(prefers-color-scheme:dark){body{color:#e6e8ea;background:#16191d}th,td{border-color:#3a4047}tr.first td{background:#3d1d20}
.pass{color:#6bd091}.fail,.error,svg .mark{color:#ff8b8b}.not{color:#e3c15a}
.old-migrated{color:#d9b64a}.old-target{color:#6cb2ff}.migrated-target{color:#e08ae0}}
"""
_PLOTTED = ("old-migrated", "old-target", "migrated-target")


def page(parity: Parity) -> str:
    """The page: it needs nothing from elsewhere."""
    state = "pass" if parity.status == 0 else "fail"
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>Parity</title><style>{_STYLE}</style></head><body><h1>Parity</h1>",
        f'<p class="verdict {state}">{_linked(parity)}</p><ul>',
    ]
    for side in parity.sides.values():
        environment = ", ".join(f"{k.replace('_', ' ')} {v}" for k, v in side.environment.items())
        where = f"; {environment or 'could not run'}" if side.roots else ""
        text = html.escape(side.code + where)
        parts.append(f"<li><strong>{side.name}</strong>: {text}</li>")
    parts += [f"<li>{html.escape(note)}</li>" for note in parity.notes]
    parts.append("</ul>")
    for dtype, points in parity.depth.items():
        if points:
            tolerance = plan.BY_NAME["logits"].tolerance(dtype)
            parts.append(f"<h2>Error along depth, {dtype}</h2>{_plot(points, tolerance)}")
    parts.append(
        "<h2>Components along the model</h2><p>Each is compared by itself, on the same inputs and weights; the whole model "
        "from logits on. The tolerance is for the largest absolute error over the root mean square of the first side named. "
        '</p><div class="wide"><table><thead><tr><th>component<th>dtype<th>pair<th>verdict<th>error<th>tolerance<th>worst array<th>max abs<th>rel. L2<th>cosine'
        "<th>ULP p50 / p99 / max<th>first index</tr></thead><tbody>"
    )
    for row in parity.rows:
        parts += [
            _page_row(row, pair, row is parity.first) for pair in row.pairs if row.pairs[pair]
        ]
    parts.append("</tbody></table></div></body></html>\n")
    return "\n".join(parts)


def _linked(parity: Parity) -> str:
    """The verdict, with a way to the component that it names."""
    text, first = html.escape(verdict_text(parity)), parity.first
    if first is None:
        return text
    title = html.escape(first.component.title)
    at = "The sides first part at: "
    return text.replace(at + title, f'{at}<a href="#first">{title}</a>', 1)


def _page_row(row: Row, pair: tuple[str, str], is_first: bool) -> str:
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
    )
    judged = (_number(difference.error), _number(row.component.tolerance(row.dtype)))
    against, figures = (
        "".join(f'<td class="n">{html.escape(text)}</td>' for text in texts)
        for texts in (judged, numbers)
    )
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
    start = "<tr>"
    if is_first:
        start = (
            '<tr class="first" id="first">'
            if pair == next(iter(row.pairs))
            else '<tr class="first">'
        )
    return (
        f'{start}<td>{title}<td>{row.dtype}<td class="p">{'–'.join(pair)}<td class="{verdict.split()[0]}">{verdict}'
        f'{against}<td class="a">{shown}{figures}</tr>'
    )


def _plot(points: list[tuple[str, dict[str, float]]], tolerance: float) -> str:
    """An SVG with one line a pair: relative L2 error, on a logarithmic scale, from layer to layer.

    Args:
        points: the error of each pair by the name of the place, in the order of the model.
        tolerance: that of the logits; the first place beyond it is marked.
    """
    width, height, left, right, bottom, top = 900, 320, 60, 50, 60, 30
    values = [v for _, errors in points for v in errors.values() if v > 0]
    low = math.floor(math.log10(min([*values, tolerance])))
    high = max(math.ceil(math.log10(max([*values, tolerance]))), low + 1)
    lowest = low - 1  # where no error is shown

    def x(index: int) -> float:
        return left + (width - left - right) * index / max(len(points) - 1, 1)

    def y(value: float) -> float:
        share = ((math.log10(value) if value > 0 else lowest) - lowest) / (high - lowest)
        return height - bottom - (height - bottom - top) * share

    def level(at: float, label: str, kind: str, more: str = "") -> str:
        return (
            f'<g class="{kind}"><line class="rule" x1="{left}" x2="{width - right}" y1="{at:.1f}" y2="{at:.1f}" {more}/>'
            f'<text x="{left - 6}" y="{at + 4:.1f}" text-anchor="end" fill="currentColor">{label}</text></g>'
        )

    parts = [
        f'<div class="wide"><svg viewBox="0 0 {width} {height}" role="img" '
        'aria-label="relative L2 error of the outputs along depth" font-size="12" fill="currentColor">',
        level(y(0), "equal", "", 'opacity=".15"'),
    ]
    step = (high - low) // 12 + 1
    for exponent in range(low, high + 1, step):
        parts.append(level(y(10.0**exponent), f"1e{exponent}", "", 'opacity=".15"'))
    at = y(tolerance)
    parts.append(
        f'<g class="mark"><line class="rule" x1="{left}" x2="{width - right}" y1="{at:.1f}" y2="{at:.1f}" stroke-dasharray="6 4"/>'
        f'<text x="{width - right}" y="{at - 4:.1f}" text-anchor="end" fill="currentColor">tolerance of the logits</text></g>'
    )
    beyond = [i for i, (_, errors) in enumerate(points) if max(errors.values()) > tolerance]
    if beyond:
        place = x(beyond[0])
        anchor = "end" if beyond[0] > len(points) / 2 else "start"
        parts.append(
            f'<g class="mark"><line class="rule" x1="{place:.1f}" x2="{place:.1f}" y1="{top - 8}" y2="{height - bottom}"/>'
            f'<text x="{place + (-6 if anchor == "end" else 6):.1f}" y="{top - 10}" text-anchor="{anchor}" fill="currentColor">'
            f"first beyond it: {html.escape(points[beyond[0]][0].replace('_', ' '))}</text></g>"
        )
    every = len(points) // 12 + 1
    for index, (name, _) in enumerate(points):
        if index % every and index < len(points) - 2:
            continue
        label = html.escape(name.replace("_", " ").replace("mtp", "MTP"))
        parts.append(
            f'<text x="{x(index):.1f}" y="{height - bottom + 18}" text-anchor="middle">{label}</text>'
        )
    for number, pair in enumerate(_PLOTTED):
        line = [
            (x(i), y(errors[pair]), errors[pair])
            for i, (_, errors) in enumerate(points)
            if pair in errors
        ]
        if not line:
            continue
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py, _ in line)
        start = left + 190 * number
        parts.append(
            f'<g class="{pair}" fill="currentColor"><polyline points="{path}"/>'
            f'<polyline points="{start},{height - 12} {start + 40},{height - 12}"/>'
            f'<text x="{start + 48}" y="{height - 8}">{pair.replace("-", "–")}</text>'
        )
        parts += [
            f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3.5"><title>{pair}: {value:.2e}</title></circle>'
            for px, py, value in line
        ]
        parts.append("</g>")
    parts.append("</svg></div>")
    return "".join(parts)


def write_page(parity: Parity, path: Path) -> None:
    """Writes the page."""
    path.write_text(page(parity), encoding="utf-8")
