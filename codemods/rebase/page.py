"""The report of a rebase: as data, and as a page that shows each conflict beside the fork's commit."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from html import escape
from typing import Any

from codemods import __version__
from codemods.rebase.lines import Conflict
from codemods.rebase.session import Outlook
from codemods.rebase.store import Store

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 96rem; padding: 0 1rem; color: #1b1b1b;
  background: #fff; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; } h3 { font-size: 1rem; }
table { border-collapse: collapse; width: 100%; table-layout: fixed; }
th, td { border: 1px solid #bbb; padding: .35rem .5rem; text-align: left; vertical-align: top; }
pre { margin: 0; white-space: pre-wrap; overflow-wrap: anywhere; font: 13px/1.4 ui-monospace, monospace; }
summary { cursor: pointer; } .quiet { color: #555; }
.conflict { background: #fff1e5; } .lost { background: #ffe0e0; }
@media (prefers-color-scheme: dark) {
  body { color: #e6e6e6; background: #161616; } th, td { border-color: #555; } .quiet { color: #aaa; }
  .conflict { background: #3a2a18; } .lost { background: #4a1f1f; }
}
"""


def as_data(store: Store, outlook: Outlook) -> dict[str, Any]:
    """Everything the page shows, as plain data."""
    branch = outlook.branch
    steps = []
    for step in outlook.steps:
        shown = store.text("log", "-1", "--format=%an%x00%as%x00%s", step.commit).split("\0")
        steps.append(
            {
                "commit": step.commit,
                "new": step.new,
                "state": step.state,
                "author": shown[0],
                "date": shown[1],
                "subject": shown[2],
                "dropped": step.dropped,
                "conflicts": [
                    {
                        "path": c.path,
                        "origin": c.origin,
                        "why": c.why,
                        "regions": [asdict(p) for p in c.parts if isinstance(p, Conflict)],
                        "change": _change(store, step.commit, c.origin),
                    }
                    for c in step.conflicts
                ],
                "resolutions": [{"path": r.path, **asdict(r.what)} for r in step.resolutions],
            }
        )
    return {
        "generator": f"ling2-migrate {__version__}",
        "base": branch.base,
        "tip": branch.tip,
        "onto": branch.onto,
        "onto_label": branch.onto_label,
        "new": outlook.new,
        "map": outlook.map_why,
        "notes": list(branch.notes),
        "steps": steps,
        "ledger": [
            {
                "path": a.hunk.path,
                "line": a.hunk.line,
                "lines": a.hunk.lines,
                "status": a.status,
                "where": a.where,
                "reason": a.reason,
            }
            for a in outlook.accounts
        ],
        "left": [asdict(site) for site in outlook.left],
        "counts": dict(outlook.counts()),
    }


def as_json(data: dict[str, Any]) -> str:
    """The data as JSON."""
    return json.dumps(data, indent=1, ensure_ascii=True) + "\n"


def render(data: dict[str, Any]) -> str:
    """The page."""
    counts = ", ".join(f"{n} {status}" for status, n in data["counts"].items()) or "not yet known"
    title = f"Rebase of {data['tip'][:10]} onto {data['onto_label']}"
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width">',
        f"<title>{_text(title)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{_text(title)}</h1>",
        f"<p>From base {data['base'][:10]}; map: {_text(data['map'])}. Hunks of the fork: {_text(counts)}.</p>",
        *(f"<p class=quiet>{_text(note)}</p>" for note in data["notes"]),
        "<h2>Conflicts</h2>",
        *(_conflicts(step) for step in data["steps"] if step["conflicts"]),
    ]
    if not any(step["conflicts"] for step in data["steps"]):
        parts.append("<p>None.</p>")
    parts += ["<h2>Resolved, with the reason</h2>"]
    parts += [_resolution(step, r) for step in data["steps"] for r in step["resolutions"]]
    parts += ["<h2>Also to look at</h2>"]
    sites = [(f"{s['path']}:{s['line']}", s["rule"], s["reason"]) for s in data["left"]]
    parts += [_table(("place", "rule", "reason"), sites) if sites else "<p>Nothing.</p>"]
    parts += ["<h2>Commits</h2>", _table(("fork", "new", "state", "subject"), _commits(data))]
    parts += ["<h2>Every hunk of the fork</h2>"]
    rows = [
        (f"{a['path']}:{a['line']}", a["status"], a["where"], a["reason"]) for a in data["ledger"]
    ]
    parts.append(_table(("hunk", "status", "in the result", "reason"), rows))
    parts.append("</body></html>\n")
    return "\n".join(parts)


def _change(store: Store, commit: str, path: str) -> str:
    """What the fork's commit did to a file."""
    shown = store.run(
        "show", "--format=", "--no-color", "--no-ext-diff", "--no-textconv", "-m", "--first-parent",
        commit, "--", path, accept=(0, 128),
    )  # fmt: skip
    return shown.decode("utf-8", "replace")


def _conflicts(step: dict[str, Any]) -> str:
    state = "resolved by hand" if step["state"] == "by hand" else step["state"]
    head = f"{step['commit'][:10]} {step['subject']} ({step['author']}, {step['date']}; {state})"
    parts = [f"<h3>{_text(head)}</h3>"]
    for conflict in step["conflicts"]:
        parts.append(f"<p class=conflict>{_text(conflict['path'])}: {_text(conflict['why'])}</p>")
        for region in conflict["regions"]:
            cells = "".join(
                f"<td><pre>{_text(region[side])}</pre></td>" for side in ("base", "ours", "theirs")
            )
            heads = "<tr><th>base</th><th>upstream</th><th>fork</th></tr>"
            parts.append(f"<table>{heads}<tr>{cells}</tr></table>")
        change = _text(conflict["change"])
        name = _text(conflict["origin"])
        parts.append(
            f"<details><summary>what the commit did to {name}</summary><pre>{change}</pre></details>"
        )
    return "\n".join(parts)


def _resolution(step: dict[str, Any], found: dict[str, Any]) -> str:
    head = f"{step['commit'][:10]} {found['path']}: {found['kind']}: {found['reason']}"
    heads = "".join(f"<th>{name}</th>" for name in ("base", "upstream", "fork", "result"))
    cells = "".join(
        f"<td><pre>{_text(found[side])}</pre></td>" for side in ("base", "ours", "theirs", "result")
    )
    table = f"<table><tr>{heads}</tr><tr>{cells}</tr></table>"
    return f"<details><summary>{_text(head)}</summary>{table}</details>"


def _commits(data: dict[str, Any]) -> list[tuple[str, ...]]:
    return [(s["commit"][:10], s["new"][:10], s["state"], s["subject"]) for s in data["steps"]]


def _table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    head = "".join(f"<th>{_text(h)}</th>" for h in heads)
    body = "".join(
        "<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def _text(value: str) -> str:
    return escape(value.encode("utf-8", "backslashreplace").decode("utf-8"))
