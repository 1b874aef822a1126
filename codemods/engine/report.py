"""The report of a migration as data: what `report.json` holds."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from typing import Any

from codemods.engine.rewrite import Finding
from codemods.engine.run import Migration
from codemods.rules import all_rules

SCHEMA_VERSION = 1
# Discovery recognises an earlier run's report by this text near its start.
MARK = "ling2-migrate report"


def as_data(migration: Migration) -> dict[str, Any]:
    """The report as JSON data.

    Keys: `tool`, `schema`, `version`, `checkout`, `upstream`, `map` (base, target, why), `notes`,
    `summary` (counts), `files` (every file that moved, stays out or was rewritten), `edits` and `sites`
    (file, line, column, rule, tier, before, after, reason, …; `after` is null for a site) and `rules`
    (what each rule that is mentioned does).
    """
    edits, sites = migration.edits, migration.listed
    touched = {e.file for e in edits}
    files = [
        {
            "path": path,
            "new": placement.new,
            "rule": placement.rule,
            "why": placement.why,
            "rewritten": path in touched,
        }
        for path, placement in sorted(migration.placements.items())
        if placement.new != path or path in touched
    ]
    rules = all_rules()
    mentioned = sorted(
        {f.rule for f in (*edits, *sites)} | {str(f["rule"]) for f in files if f["rule"]}
    )
    return {
        "tool": MARK,
        "schema": SCHEMA_VERSION,
        "version": migration.version,
        "checkout": str(migration.checkout.root),
        "upstream": migration.upstream.label,
        "map": {
            "base": migration.map_base,
            "target": migration.map_target,
            "why": migration.map_why,
        },
        "notes": migration.notes,
        "summary": summary(migration),
        "files": files,
        "edits": [_row(e) for e in edits],
        "sites": [_row(s) for s in sites],
        "rules": {i: {"tier": rules[i].tier, "summary": rules[i].summary} for i in mentioned},
    }


def summary(migration: Migration) -> dict[str, Any]:
    """Counts: files, edits and sites by rule, and the share of sites that are left for a person."""
    edits, sites = migration.edits, migration.listed
    total = len(edits) + len(sites)
    return {
        "files": len(migration.placements),
        "python_files": sum(1 for p in migration.placements if p.endswith((".py", ".pyi"))),
        "moved": len(migration.moved),
        "left_out": len(migration.left_out),
        "rewritten": len({e.file for e in edits}),
        "edits": len(edits),
        "sites": len(sites),
        "listed_share": round(len(sites) / total, 4) if total else 0.0,
        "edits_by_rule": dict(sorted(Counter(e.rule for e in edits).items())),
        "sites_by_rule": dict(sorted(Counter(s.rule for s in sites).items())),
    }


def _row(finding: Finding) -> dict[str, Any]:
    row = asdict(finding)
    if not row["group"]:
        del row["group"]
    if finding.after is not None:
        del row["todo"]
    return row


def as_json(migration: Migration) -> bytes:
    """`as_data` as UTF-8 text; what is no UTF-8 in a path is escaped, as JSON allows."""
    text = json.dumps(as_data(migration), indent=1, ensure_ascii=False) + "\n"
    return text.encode("utf-8", "backslashreplace")
