"""The report of a migration as data: what `report.json` holds, and reading it and the decisions back.

Both files have a published JSON Schema beside the page's code: `codemods/review/report.schema.json` and
`codemods/review/decisions.schema.json`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections import Counter
from dataclasses import asdict
from functools import cache
from importlib.resources import files as package_files
from itertools import pairwise
from pathlib import Path
from typing import Any

from codemods.engine.discover import Checkout
from codemods.engine.edits import line_starts
from codemods.engine.hunks import Hunk, HunkSet, Lines, find_hunks, read_lines
from codemods.engine.rewrite import Finding
from codemods.engine.run import Migration
from codemods.engine.tree import UnparsableError
from codemods.errors import UserError
from codemods.maps import symbols
from codemods.rules import all_rules

SCHEMA_VERSION = 3
DECISIONS_VERSION = 1
# Discovery recognises an earlier run's report by this text near its start.
MARK = "ling2-migrate report"
DECISIONS_MARK = "ling2-migrate decisions"
# Sites of these rules keep the output from running, so they are shown first.
URGENT = ("CHK001", "CHK003", "IMP020", "CHK006")
_LONGEST_LINE, _MOST_LINES, _CONTEXT = 600, 400, 2


def as_data(
    migration: Migration,
    format_: str | None = None,
    found: tuple[list[Hunk], list[HunkSet]] | None = None,
    applied: dict[str, Any] | None = None,
    left: list[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """The report as JSON data; the schema says what each key means.

    Args:
        migration: what was done.
        format_: the formatter that ran over touched statements.
        found: hunks and sets of the migration, where they are known already.
        applied: of a report of `apply`: which report and which decisions it comes from.
        left: of a report of `apply`: what was not done, and why.
    """
    edits, sites = migration.edits, migration.listed
    hunks, sets = found or find_hunks(migration.checkout.root, migration.results)
    touched = {e.file for e in edits}
    placed = [
        {
            "id": move_id(path),
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
    left = left or []
    mentioned = sorted(
        {f.rule for f in (*edits, *sites)}
        | {str(f["rule"]) for f in placed if f["rule"]}
        | {rule for row in left for rule in row["rules"]}
    )
    shown = [(n, s) for n, s in enumerate(sets) if len(s.hunks) > 1]
    numbers = {n: i for i, (n, _) in enumerate(shown)}
    row_of = {id(e): i for i, e in enumerate(edits)}
    hunk_rows = [_hunk_row(h, numbers.get(h.set), row_of) for h in hunks]
    inputs = {
        "files": digests(migration.checkout),
        "upstream": tree_digest(migration.upstream.root),
        "map": file_digest(migration.map_path),
    }
    identity = [inputs, [h.id for h in hunks], placed, applied, left]
    return {
        "tool": MARK,
        "schema": SCHEMA_VERSION,
        "version": migration.version,
        "id": _digest(json.dumps(identity).encode())[:16],
        "checkout": str(migration.checkout.root),
        "upstream": migration.upstream.label,
        "map": {
            "base": migration.map_base,
            "target": migration.map_target,
            "why": migration.map_why,
        },
        "notes": migration.notes,
        "summary": summary(migration) | {"hunks": len(hunks), "left": len(left)},
        "files": placed,
        "sites": _site_rows(migration, sites),
        "left": left,
        "hunks": hunk_rows,
        "sets": [{"why": s.why, "hunks": s.hunks} for _, s in shown],
        "edits": [_row(e) for e in edits],
        "rules": {
            i: {
                "tier": rules[i].tier,
                "summary": rules[i].summary,
                "detail": rules[i].detail,
                "examples": [
                    {"path": e.path, "before": e.before, "after": e.after}
                    for e in rules[i].examples
                ],
            }
            for i in mentioned
        },
        "applied": applied,
        "request": _request(migration, format_),
        "inputs": inputs,
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


def move_id(path: str) -> str:
    """The id under which a file's move, or its staying out, is decided."""
    return "m" + _digest(path.encode("utf-8", "surrogatepass"))[:12]


def digests(checkout: Checkout) -> dict[str, str]:
    """Path → SHA-256 of the content of every file, or of what a link says. What cannot be read has ""."""
    found: dict[str, str] = {}
    for entry in checkout.files:
        full = checkout.root / entry.path
        if entry.kind == "submodule":
            continue
        try:
            if entry.kind == "file":
                with full.open("rb") as stream:
                    found[entry.path] = hashlib.file_digest(stream, "sha256").hexdigest()
            else:
                found[entry.path] = _digest(os.fsencode(os.readlink(full)))
        except OSError:
            found[entry.path] = ""
    return found


def tree_digest(root: Path) -> str:
    """A hash of what a migration reads of an upstream tree: its Python files and the base configuration."""
    state = hashlib.sha256()
    for path in sorted(symbols.files_below(root)):
        if path.endswith((".py", "configs/base.yml")):
            state.update(path.encode("utf-8", "surrogateescape") + b"\0")
            try:
                state.update(hashlib.sha256((root / path).read_bytes()).digest())
            except OSError:
                continue
    return state.hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 of a file; "" if it cannot be read."""
    try:
        return _digest(path.read_bytes())
    except OSError:
        return ""


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _request(migration: Migration, format_: str | None) -> dict[str, Any]:
    """What `run` was asked for, so that `apply` can ask for it again."""
    settings = migration.settings
    upstream = Path(settings.upstream)
    return {
        "checkout": str(settings.checkout.resolve()),
        "upstream": str(upstream.resolve()) if upstream.is_dir() else settings.upstream,
        "map": str(settings.map.resolve()) if settings.map else None,
        "only": list(settings.only),
        "skip": list(settings.skip),
        "rename_loggers": settings.options.rename_loggers,
        "format": format_,
    }


def _row(finding: Finding) -> dict[str, Any]:
    row = asdict(finding)
    if not row["group"]:
        del row["group"]
    if finding.after is not None:
        del row["todo"]
    return row


def _hunk_row(hunk: Hunk, number: int | None, row_of: dict[int, int]) -> dict[str, Any]:
    return {
        "id": hunk.id,
        "file": hunk.file,
        "rules": hunk.rules,
        "tier": hunk.tier,
        "set": number,
        "edits": [row_of[id(e)] for e in hunk.edits],
        "reasons": list(dict.fromkeys(e.reason for e in hunk.edits if e.reason)),
        **hunk_text(hunk),
    }


def hunk_text(hunk: Hunk) -> dict[str, Any]:
    """Where a hunk is and its lines; of long lines and many lines, the part where old and new part."""
    pairs = enumerate(zip(hunk.old, hunk.new, strict=False))
    same = next((n for n, (a, b) in pairs if a != b), min(len(hunk.old), len(hunk.new)))
    return {
        "line": hunk.line,
        "last": hunk.last,
        "new_line": hunk.new_line,
        "old": clip(hunk.old, same),
        "new": clip(hunk.new, same),
        "above": clip(hunk.above),
        "below": clip(hunk.below),
    }


def clip(text: str, focus: int = 0) -> str:
    """A text without what makes pages huge: long lines are cut around the offset `focus`, many lines to the first.

    What is left out is said in place, between `⟨` and `⟩`.
    """
    parts: list[str] = []
    position = 0
    lines = [text[a:b] for a, b in pairwise([*line_starts(text), len(text)])]
    for number, line in enumerate(lines):
        if number == _MOST_LINES:
            parts.append(f"⟨{len(lines) - number} more lines⟩\n")
            break
        if len(line) > _LONGEST_LINE:
            inside = focus - position if 0 <= focus - position < len(line) else 0
            start = max(0, inside - _LONGEST_LINE // 3)
            end = start + _LONGEST_LINE
            head = f"⟨{start} characters⟩" if start else ""
            tail = f"⟨{len(line) - end} characters⟩" if end < len(line) else ""
            parts.append(head + line[start:end] + (f"{tail}\n" if tail else ""))
        else:
            parts.append(line)
        position += len(line)
    return "".join(parts)


def _site_rows(migration: Migration, sites: list[Finding]) -> list[dict[str, Any]]:
    """The sites with the lines around each."""
    rows: list[dict[str, Any]] = []
    texts: dict[str, Lines | None] = {}
    seen: Counter[tuple[object, ...]] = Counter()
    # A pipe would be waited for, and a link may lead out of the checkout.
    plain = {found.path for found in migration.checkout.files if found.kind == "file"}
    for site in sites:
        row = _row(site)
        if site.file not in texts:
            texts[site.file] = None
            if site.file in plain:
                with contextlib.suppress(OSError, UnparsableError):
                    texts[site.file] = read_lines(migration.checkout.root, site.file)
        lines = texts[site.file]
        first = max(site.line - _CONTEXT, 1)
        code = (
            lines.between(first, site.line + _CONTEXT) if lines and "\0" not in lines.text else ""
        )
        key = (site.file, site.rule, site.before, site.reason, site.start)
        seen[key] += 1
        row["id"] = "s" + _digest(repr((*key, seen[key])).encode())[:12]
        focus = sum(len(lines.between(n, n)) for n in range(first, site.line)) if lines else 0
        focus += site.column - 1
        row["code"] = {"line": first, "text": clip(code, focus)}
        rows.append(row)
    return rows


def as_json(data: dict[str, Any]) -> bytes:
    """Report data as UTF-8 text; what is no UTF-8 in a path is escaped, as JSON allows."""
    text = json.dumps(data, indent=1, ensure_ascii=False) + "\n"
    return text.encode("utf-8", "backslashreplace")


# Reading back -------------------------------------------------------------------------------------------


@cache
def schema(name: str) -> dict[str, Any]:
    """The JSON Schema of `report` or `decisions`."""
    text = (package_files("codemods.review") / f"{name}.schema.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def read_report(out: Path) -> dict[str, Any]:
    """The data of a folder's `report.json`.

    Raises:
        UserError: there is none, it is no report, or it is one of another version.
    """
    if not out.is_dir():
        raise UserError(f"{out}: no such folder; give the one that `run --out` made")
    path = out / "report.json"
    data = _read(path, "give the folder that `run --out` made")
    if not isinstance(data, dict) or data.get("tool") != MARK:
        raise UserError(f"{path}: no report of this program")
    if data.get("schema") != SCHEMA_VERSION:
        raise UserError(
            f"{path}: report schema {data.get('schema')}, this version reads {SCHEMA_VERSION}; run again"
        )
    _validate(data, "report", path)
    _check_references(data, path)
    return data


def _check_references(data: dict[str, Any], path: Path) -> None:
    """Whether what rows of a report say of other rows is there.

    Raises:
        UserError: it is not; somebody has changed the file.
    """
    hunks, left = data["hunks"], [row for row in data["left"] if row["kind"] == "hunk"]
    rules = {rule for row in (*hunks, *data["left"]) for rule in row["rules"]}
    rules |= {row["rule"] for name in ("sites", "files") for row in data[name] if row["rule"]}
    ids = {row["id"] for row in (*hunks, *left)}
    numbers = {n for row in (*hunks, *left) if (n := row["set"]) is not None}
    edits = {n for row in hunks for n in row["edits"]}
    good = (
        rules <= data["rules"].keys()
        and ids.issuperset(name for row in data["sets"] for name in row["hunks"])
        and numbers <= set(range(len(data["sets"])))
        and edits <= set(range(len(data["edits"])))
        and all(isinstance(row["new"], str) for row in left)
        and len(ids) == len(hunks) + len(left)
    )
    if not good:
        raise UserError(
            f"{path}: rows of it refer to others that are not there; the file has been changed, so run again"
        )


def read_decisions(path: Path) -> dict[str, Any]:
    """The data of a decisions file, as the page exports it.

    Raises:
        UserError: there is no such file, or it holds no decisions of this version.
    """
    data = _read(path, "export the decisions from report.html")
    if not isinstance(data, dict) or data.get("tool") != DECISIONS_MARK:
        raise UserError(f"{path}: no decisions file; export one from report.html")
    if data.get("schema") != DECISIONS_VERSION:
        raise UserError(
            f"{path}: decisions schema {data.get('schema')}, this version reads {DECISIONS_VERSION}; "
            "export again"
        )
    _validate(data, "decisions", path)
    return data


def _read(path: Path, todo: str) -> Any:
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; {todo}") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: no JSON ({error}); {todo}") from None


def _validate(data: Any, name: str, path: Path) -> None:
    import jsonschema

    found = jsonschema.Draft202012Validator(schema(name))
    error = next(iter(found.iter_errors(data)), None)
    if error is not None:
        where = "/".join(map(str, error.absolute_path)) or "the whole"
        message = error.message if len(error.message) <= 200 else error.message[:197] + "..."
        raise UserError(f"{path}: {where}: {message}")
