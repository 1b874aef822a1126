"""`report.html`: the report's data as one page that needs no network."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

_MOST_PLACES = 20
# What keeps the output from running comes first.
_FIRST = ("CHK001", "CHK003", "IMP020", "CHK006")


def render(data: dict[str, Any]) -> str:
    """The page for the data of `report.json`: sites first, then edits by rule, equal ones folded."""
    environment = Environment(
        loader=PackageLoader("codemods.review", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    template = environment.get_template("report.html.j2")
    sites = sorted(_by_rule(data["sites"]), key=lambda group: group[0] not in _FIRST)
    return template.render(report=data, sites=sites, edits=_folded(data["edits"]))


def _by_rule(findings: list[dict[str, Any]]) -> list[tuple[str, list[dict[str, Any]]]]:
    ordered = sorted(findings, key=lambda f: (f["rule"], f["file"], f["line"]))
    return [(rule, list(group)) for rule, group in groupby(ordered, key=lambda f: f["rule"])]


def _folded(findings: list[dict[str, Any]]) -> list[tuple[str, int, list[dict[str, Any]]]]:
    """Edits by rule; those with the same before and after become one row with its places."""
    rules = []
    for rule, group in _by_rule(findings):
        rows: dict[tuple[str, str], dict[str, Any]] = {}
        for edit in group:
            row = rows.setdefault(
                (edit["before"], edit["after"]),
                {
                    "before": edit["before"],
                    "after": edit["after"],
                    "count": 0,
                    "places": [],
                    "more": 0,
                },
            )
            row["count"] += 1
            if len(row["places"]) < _MOST_PLACES:
                row["places"].append(f"{edit['file']}:{edit['line']}")
            else:
                row["more"] += 1
        ordered = sorted(rows.values(), key=lambda r: -r["count"])
        rules.append((rule, len(group), ordered))
    return rules
