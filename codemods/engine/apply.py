"""`ling2-migrate apply`: the migration again, with only what a reviewer accepted.

The run is repeated from the same input, so nothing depends on what became of its output. A rejected move keeps
its file where it is, and the rules then see a tree in which that file has not moved: imports of it and paths to
it stay right without anybody's doing. Edits are taken or left by hunk, and hunks of a set together.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from codemods import __version__
from codemods.engine import report
from codemods.engine.discover import discover
from codemods.engine.edits import Edit, line_starts
from codemods.engine.edits import apply as make_edits
from codemods.engine.hunks import NAMING, Hunk, HunkSet, find_hunks, parse_fragment, words
from codemods.engine.keeping import blocked_by
from codemods.engine.project import Options
from codemods.engine.rewrite import PYTHON_SUFFIXES, Finding
from codemods.engine.run import Migration, Settings, migrate
from codemods.engine.source import decode
from codemods.errors import UserError
from codemods.maps.symbols import canonical, module_name

Status = Literal["accepted", "rejected", "open", "held"]
_Key = tuple[str, int, int, str, str]
Row = dict[str, Any]


@dataclass(slots=True)
class Applied:
    """A migration with only what was accepted, before anything is written.

    Attributes:
        migration: it.
        data: its report.
        made, left: how many hunks and moves of the report were made, and how many were not.
    """

    migration: Migration
    data: Row
    made: int
    left: int


@dataclass(slots=True)
class _Verdict:
    """What becomes of one hunk or move of the report, and why if not what was decided."""

    status: Status
    why: str = ""


def apply(
    data: Row,
    decisions: Row,
    *,
    accept_open: bool = False,
    checkout: Path | None = None,
    upstream: str | None = None,
    jobs: int = 0,
    progress: Callable[[str, int, int], None] = lambda stage, done, total: None,
) -> Applied:
    """Work out the migration that a reviewer accepted; nothing is written.

    Args:
        data: the report of a run, or of an earlier `apply`.
        decisions: what was decided on it. What is not named there is open; on what `apply` has made, it is as
            it was.
        accept_open: make what is open; otherwise only what was accepted is made.
        checkout, upstream: where the input is now, if not where it was.
        jobs: worker processes; 0 runs everything in this one.
        progress: is told of the progress.

    Raises:
        UserError: the decisions are of another report, or the input is not what it was.
    """
    _check_pair(data, decisions)
    settings = _settings(data["request"], checkout, upstream, jobs)
    _check_files(data, settings.checkout)
    if data["applied"] is not None:
        data, decisions, before = _from_the_start(data, decisions, settings, progress)
        accept_open = accept_open or before
    verdicts = _verdicts(data, decisions["decisions"], accept_open)
    moves = {row["path"]: row for row in data["files"] if row["new"] != row["path"]}
    kept = _kept(moves, verdicts)
    migration = migrate(replace(settings, keep=frozenset(kept)), progress)
    _check_tools(data, migration)
    keys = {row["id"]: _keys(data, row) for row in data["hunks"]}
    if not kept and {_key(e) for e in migration.edits} != {k for ks in keys.values() for k in ks}:
        raise UserError(
            f"{settings.checkout}: the run does not come out as in the report; run again"
        )
    found = find_hunks(migration.checkout.root, migration.results)
    _align(found, keys)
    chosen = _chosen(data, keys, verdicts, found, any_moved=len(kept) < len(moves))
    _hold_names(data, verdicts, found, chosen)
    broken = _take(migration, found, chosen)
    if data["request"]["format"]:
        from codemods.engine.formatting import format_touched

        format_touched(migration)
    _hold_rest(data, verdicts, kept, chosen, broken, found)
    return _finish(data, decisions, accept_open, migration, found, chosen, verdicts, kept)


# Checks -------------------------------------------------------------------------------------------------


def _check_pair(data: Row, decisions: Row) -> None:
    if decisions["report"] != data["id"]:
        raise UserError(
            f"these decisions are of another report (theirs {decisions['report']}, this one {data['id']}); "
            "import them in report.html and export them again"
        )
    if data["version"] != __version__:
        raise UserError(
            f"the report is of version {data['version']}, this is {__version__}; run again"
        )
    known = {row["id"] for name in ("hunks", "files", "sites", "left") for row in data[name]}
    for name in decisions["decisions"]:
        if name not in known:
            raise UserError(f"the decisions name `{name}`, which the report does not have")


def _settings(request: Row, checkout: Path | None, upstream: str | None, jobs: int) -> Settings:
    return Settings(
        checkout=checkout or Path(request["checkout"]),
        upstream=upstream or request["upstream"],
        map=Path(request["map"]) if request["map"] else None,
        only=tuple(request["only"]),
        skip=tuple(request["skip"]),
        jobs=jobs,
        options=Options(rename_loggers=request["rename_loggers"]),
    )


def _check_files(data: Row, checkout: Path) -> None:
    """Whether the checkout is what the run read."""
    then: dict[str, str] = data["inputs"]["files"]
    now = report.digests(discover(checkout))
    changed = sorted(p for p in then.keys() | now.keys() if then.get(p) != now.get(p))
    if changed:
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        raise UserError(
            f"{checkout}: not what the run read ({changed[0]}{more} changed since); run again, "
            "then import the decisions in the new report.html"
        )


def _check_tools(data: Row, migration: Migration) -> None:
    """Whether upstream's tree and the map are what the run had."""
    if report.tree_digest(migration.upstream.root) != data["inputs"]["upstream"]:
        raise UserError(
            f"{migration.settings.upstream}: not the upstream tree that the run had; run again, or give that "
            "one with --upstream"
        )
    if report.file_digest(migration.map_path) != data["inputs"]["map"]:
        raise UserError(f"{migration.map_path}: not the map that the run had; run again")


# Decisions ----------------------------------------------------------------------------------------------


def _from_the_start(
    data: Row, decisions: Row, settings: Settings, progress: Callable[[str, int, int], None]
) -> tuple[Row, Row, bool]:
    """What a further review of what `apply` made comes to.

    Returns:
        The report of the run behind it, the decisions of all reviews on that, a later one's word counting
        more, and whether one of them had what was open made.
    """
    first = data["applied"]
    migration = migrate(settings, progress)
    _check_tools(data, migration)
    whole: Row = json.loads(report.as_json(report.as_data(migration, data["request"]["format"])))
    if whole["id"] != first["report"]:
        raise UserError(
            f"{settings.checkout}: the run does not come out as in report {first['report']}; run again"
        )
    known = {row["id"] for name in ("hunks", "files", "sites") for row in whole[name]}
    new = {row["id"]: row for row in data["hunks"] if row["id"] not in known}
    decided = {name: dict(entry) for name, entry in first["decisions"].items()}
    for name, entry in decisions["decisions"].items():
        names = [name]
        if name in new:  # a change that is another one since a file stays
            row = new[name]
            names = [r["id"] for r in whole["hunks"] if r["file"] == row["file"] and _meet(r, row)]
            if not names and entry.get("decision") == "rejected":
                raise UserError(
                    f"{row['file']}:{row['line']}: this change keeps a reference to a file that stays right; "
                    "it cannot be rejected by itself"
                )
        for one in names:
            decided[one] = decided.get(one, {}) | entry
    return whole, decisions | {"decisions": decided}, first["accept_open"]


def _verdicts(data: Row, decided: Row, accept_open: bool) -> dict[str, _Verdict]:
    """What is to become of each hunk and move; sets get one answer, the strictest of their hunks'."""
    default: Status = "accepted" if accept_open else "open"
    rows = [*data["hunks"], *(f for f in data["files"] if f["new"] != f["path"])]
    found = {
        row["id"]: _Verdict(decided.get(row["id"], {}).get("decision") or default) for row in rows
    }
    place = {row["id"]: f"{row['file']}:{row['line']}" for row in data["hunks"]}
    for members in data["sets"]:
        ids = members["hunks"]
        for status in ("rejected", "open"):
            against = next((i for i in ids if found[i].status == status), None)
            if against is None:
                continue
            for i in ids:
                if found[i].status == "accepted":
                    why = f"stands or falls with {place[against]}, which is {status}: {members['why']}"
                    found[i] = _Verdict("held", why)
            break
    return found


def _kept(moves: Mapping[str, Row], verdicts: Mapping[str, _Verdict]) -> set[str]:
    """The files that stay where they are; those that only have to get that as their verdict's reason."""
    keep = {path for path, row in moves.items() if verdicts[row["id"]].status != "accepted"}
    for path, other in blocked_by({p: r["new"] for p, r in moves.items()}, keep).items():
        why = f"`{other}` stays where it is, which is in the way of this move"
        verdicts[moves[path]["id"]].status = "held"
        verdicts[moves[path]["id"]].why = why
        keep.add(path)
    return keep


def _key(edit: Finding) -> _Key:
    return edit.file, edit.start, edit.end, edit.after or "", edit.rule


def _keys(data: Row, hunk: Row) -> set[_Key]:
    rows = [data["edits"][i] for i in hunk["edits"]]
    return {(r["file"], r["start"], r["end"], r["after"], r["rule"]) for r in rows}


def _align(found: tuple[list[Hunk], list[HunkSet]], keys: Mapping[str, set[_Key]]) -> None:
    """Give each hunk that the report has its id there, and others one that the report does not have."""
    names = {frozenset(ks): name for name, ks in keys.items()}
    for hunk in found[0]:
        known = names.get(frozenset(map(_key, hunk.edits)))
        hunk.id = known or (f"{hunk.id}+" if hunk.id in keys else hunk.id)


def _chosen(
    data: Row,
    keys: Mapping[str, set[_Key]],
    verdicts: Mapping[str, _Verdict],
    found: tuple[list[Hunk], list[HunkSet]],
    any_moved: bool,
) -> list[bool]:
    """For each set of the run's hunks, whether to make it.

    A hunk that the report has too goes by its verdict, one that came to be since a move was rejected by those
    of the hunks on the same lines. Where there are none, it is made if it only says where things are, or if it
    is in an older implementation that stays although it was to be left out.
    """
    hunks, sets = found
    owner = {key: name for name, ks in keys.items() for key in ks}
    by_file: dict[str, list[Row]] = {}
    for row in data["hunks"]:
        by_file.setdefault(row["file"], []).append(row)
    older = {row["path"] for row in data["files"] if row["rule"] == "MAP005" and row["new"] is None}
    chosen = [True] * len(sets)
    for hunk in hunks:
        names = {hunk.id}
        if hunk.id not in keys:
            names = {owner[k] for e in hunk.edits if (k := _key(e)) in owner}
            names |= {row["id"] for row in by_file.get(hunk.file, ()) if _meet(row, hunk)}
        if names:
            good = all(verdicts[name].status == "accepted" for name in names)
        else:
            follows = all(e.rule[:3] in ("IMP", "TXT") for e in hunk.edits)
            good = any_moved and (follows or hunk.file in older)
        chosen[hunk.set] &= good
    return chosen


def _hold_names(
    data: Row,
    verdicts: Mapping[str, _Verdict],
    found: tuple[list[Hunk], list[HunkSet]],
    chosen: list[bool],
) -> None:
    """A name is changed everywhere or nowhere: an import of it from a file that stays is not rewritten."""
    edits = data["edits"]
    names = {e["before"] for e in edits if e["rule"] in NAMING and e["before"].isidentifier()}
    there: dict[str, list[Hunk]] = {}
    for hunk in found[0]:
        there.setdefault(hunk.file, []).append(hunk)
    lost: set[str] = set()
    for row in data["hunks"]:
        if verdicts[row["id"]].status == "accepted" and not any(
            _meet(row, hunk) for hunk in there.get(row["file"], ())
        ):
            for edit in (edits[i] for i in row["edits"]):
                lost |= names & (words(edit["before"]) - words(edit["after"]))
    for hunk in found[0] if lost else ():
        for e in hunk.edits:
            if e.rule[:3] in ("REN", "IMP") and lost & (words(e.before) - words(e.after or "")):
                chosen[hunk.set] = False


def _take(
    migration: Migration, found: tuple[list[Hunk], list[HunkSet]], chosen: list[bool]
) -> set[int]:
    """Leave only the chosen sets' edits in the migration; `chosen` loses what would not compile.

    Returns:
        The sets that it lost.
    """
    hunks, _ = found
    broken: set[int] = set()
    by_file: dict[str, list[Hunk]] = {}
    for hunk in hunks:
        by_file.setdefault(hunk.file, []).append(hunk)
    whole = {path: (r.edits, r.data) for path, r in migration.results.items()}
    waiting = set(by_file)
    while waiting:
        path = min(waiting)
        waiting.remove(path)
        result, (edits, data) = migration.results[path], whole[path]
        taken = [e for h in by_file[path] if chosen[h.set] for e in h.edits]
        if len(taken) == len(edits):
            result.edits, result.data = edits, data
            continue
        source = (migration.checkout.root / path).read_bytes()
        python = path.endswith(PYTHON_SUFFIXES)
        text, encoding = decode(source, python)
        new = make_edits(text, (Edit(e.start, e.end, e.after or "", e.rule) for e in taken))
        if python and taken and not _compiles(new, path) and _compiles(text, path):
            for hunk in by_file[path]:
                if chosen[hunk.set]:
                    chosen[hunk.set] = False
                    broken.add(hunk.set)
                    waiting |= {h.file for h in hunks if h.set == hunk.set}
            waiting.add(path)
            continue
        result.edits, result.data = taken, encoding.encode(new) if taken else None
    return broken


def _compiles(text: str, path: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(text, path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _hold_rest(
    data: Row,
    verdicts: Mapping[str, _Verdict],
    kept: set[str],
    chosen: list[bool],
    broken: set[int],
    found: tuple[list[Hunk], list[HunkSet]],
) -> None:
    """Find what was accepted and yet not made, and say why. What was made otherwise, for a kept file, is made."""
    there = {h.id: h.set for h in found[0]}
    made: dict[str, list[Hunk]] = {}
    for hunk in found[0]:
        if chosen[hunk.set]:
            made.setdefault(hunk.file, []).append(hunk)
    for row in data["hunks"]:
        verdict = verdicts[row["id"]]
        number = there.get(row["id"])
        if verdict.status != "accepted" or (number is not None and chosen[number]):
            continue
        if number in broken:
            verdict.why = "with only a part of its changes a file would not compile"
        elif number is not None:
            verdict.why = "with files that stay in place, this hangs on what was not made"
        elif any(_meet(row, h) for h in made.get(row["file"], ())):
            continue
        else:
            named = [p for p in sorted(kept) if len(kept) == 1 or _says(row["old"], p)]
            who = f"`{named[0]}` stays" if named else "files stay"
            verdict.why = f"{who} in place, so this stays as it was"
        verdict.status = "held"


def _meet(row: Row, other: Hunk | Row) -> bool:
    """Whether a hunk of the report and another of the same file have lines in common."""
    lines = (other.line, other.last) if isinstance(other, Hunk) else (other["line"], other["last"])
    return bool(row["line"] <= max(lines) and lines[0] <= max(row["last"], row["line"]))


_TOKEN = re.compile(r"[\w./]*\w")


def _says(text: str, path: str) -> bool:
    """Whether a text names a file, or the module in it."""
    module = module_name(canonical(path)).rpartition(".")[2]
    return path.rpartition("/")[2] in text or (
        path.endswith(".py") and module in _NAME.findall(text)
    )


# The report of it ---------------------------------------------------------------------------------------


def _finish(
    data: Row,
    decisions: Row,
    accept_open: bool,
    migration: Migration,
    found: tuple[list[Hunk], list[HunkSet]],
    chosen: list[bool],
    verdicts: Mapping[str, _Verdict],
    kept: set[str],
) -> Applied:
    """The report: what was made, and all the rest of the run's report with the reason."""
    notes = {i: d["note"] for i, d in decisions["decisions"].items() if d.get("note")}
    if kept:
        _forget_old_names(data, migration)
    moved, models = _moved(migration), _models(migration)
    left: list[Row] = []
    for row in data["files"]:
        if row["new"] != row["path"] and verdicts[row["id"]].status != "accepted":
            left.append(_left_move(row, verdicts[row["id"]], migration.edits))
    for row in data["hunks"]:
        if verdicts[row["id"]].status != "accepted":
            hunk = _left_hunk(row, verdicts[row["id"]], moved)
            pairs = dict.fromkeys(_model_name(data["edits"][i]) for i in row["edits"])
            said = (
                f"the configuration of `{p[0]}` is {models[p]} now" for p in pairs if p in models
            )
            left.append(hunk | {"why": "; ".join(filter(None, (hunk["why"], *said)))})
    for row in left:
        row["note"] = notes.get(row["id"], "")
        row["set"] = None
    total = len(data["hunks"]) + sum(row["new"] != row["path"] for row in data["files"])
    made = total - len(left)
    migration.notes.append(f"{made} of {total} changes of report {data['id']} were made")
    applied = {
        "report": data["id"],
        "made": made,
        "decisions": decisions["decisions"],
        "accept_open": accept_open,
    }
    fresh = report.as_data(
        migration, data["request"]["format"], _remaining(found, chosen), applied, left
    )
    _tie(fresh, left, data["sets"])
    return Applied(migration, fresh, made, len(left))


def _tie(fresh: Row, left: list[Row], sets: list[Row]) -> None:
    """Put the hunks that were left into sets of the new report: those that stood together in the run's."""
    rows = {row["id"]: row for row in left}
    for members in sets:
        names = [name for name in members["hunks"] if name in rows]
        if len(names) > 1:
            for name in names:
                rows[name]["set"] = len(fresh["sets"])
            fresh["sets"].append({"why": members["why"], "hunks": names})


def _remaining(
    found: tuple[list[Hunk], list[HunkSet]], chosen: list[bool]
) -> tuple[list[Hunk], list[HunkSet]]:
    """The hunks that were made, with their lines in the files as they are now, and their sets."""
    hunks: list[Hunk] = []
    sets = [HunkSet(why=s.why) for s in found[1]]
    shifts: dict[str, int] = {}
    for hunk in found[0]:
        if chosen[hunk.set]:
            shift = shifts.get(hunk.file, 0)
            hunks.append(replace(hunk, new_line=hunk.line + shift))
            shifts[hunk.file] = shift + len(line_starts(hunk.new)) - len(line_starts(hunk.old))
            sets[hunk.set].hunks.append(hunk.id)
    return hunks, sets


def _forget_old_names(data: Row, migration: Migration) -> None:
    """Old names that stand rightly since a file kept its place are no sites."""
    known = {(s["file"], s["start"]) for s in data["sites"]}

    def stays(site: Finding) -> bool:
        return site.rule != "CHK005" or (site.file, site.start) in known

    for result in migration.results.values():
        result.sites = [s for s in result.sites if stays(s)]


def _left_move(row: Row, verdict: _Verdict, made: list[Finding]) -> Row:
    return {
        "id": row["id"],
        "kind": "move",
        "status": verdict.status,
        "file": row["path"],
        "new": row["new"],
        "rules": [row["rule"]] if row["rule"] else [],
        "why": "; ".join(filter(None, (verdict.why, _still_renamed(row, made)))),
    }


def _models(migration: Migration) -> dict[tuple[str, str], str]:
    """Old and new name of each model whose configuration file was renamed → the file."""
    pairs = ((PurePosixPath(old), PurePosixPath(new)) for old, new in migration.moved.items())
    return {
        (old.stem, new.stem): f"`{new}`"
        for old, new in pairs
        if _is_model(old) and old.stem != new.stem
    }


def _is_model(path: PurePosixPath) -> bool:
    return path.parent.name == "models" and path.suffix in (".yml", ".yaml")


def _still_renamed(row: Row, made: list[Finding]) -> str:
    """What a model's configuration is looked for by, where it kept a name that commands and code gave up."""
    old, new = PurePosixPath(row["path"]), PurePosixPath(row["new"] or row["path"])
    if not _is_model(old) or old.stem == new.stem:
        return ""
    calls = [e for e in made if _model_name(e) == (old.stem, new.stem)]
    if not calls:
        return ""
    places = f"{len(calls)} places" if len(calls) > 1 else "1 place"
    return (
        f"{places} that were changed say `{new.stem}` for `{old.stem}` (first {calls[0].file}:{calls[0].line}); a "
        f"model's configuration is found by its file's name beside base.yml, so copy it to {new} for them"
    )


def _model_name(edit: Finding | Row) -> tuple[str, str]:
    """What an edit turns into what, if that may be a model's name: without quotes, and without an ending."""
    texts = (
        (edit.before, edit.after) if isinstance(edit, Finding) else (edit["before"], edit["after"])
    )
    before, after = ((t or "").strip("\\'\"").removesuffix(".yml") for t in texts)
    return before, after


_NAME = re.compile(r"[A-Za-z0-9_]+")


def _left_hunk(row: Row, verdict: _Verdict, moved: Mapping[str, str]) -> Row:
    gone = dict.fromkeys(name for name in _named(row["old"]) if name in moved)
    longest = [n for n in gone if not any(m.startswith((f"{n}.", f"{n}/")) for m in gone)]
    said = [] if "in place" in verdict.why else [f"`{n}` is {moved[n]} now" for n in longest]
    return {
        "id": row["id"],
        "kind": "hunk",
        "status": verdict.status,
        "file": row["file"],
        "rules": row["rules"],
        "tier": row["tier"],
        "why": "; ".join(filter(None, (verdict.why, *said))),
        **{k: row[k] for k in ("line", "last", "new_line", "old", "new", "above", "below")},
    }


def _moved(migration: Migration) -> dict[str, str]:
    """Paths and modules of the checkout that are elsewhere in the output → where, for a person."""
    found: dict[str, str] = {}
    for path, placement in migration.placements.items():
        if placement.new == path:
            continue
        out = "not in the output"
        found[path] = f"`{placement.new}`" if placement.new else out
        if path.endswith(".py"):
            new = module_name(canonical(placement.new)) if placement.new else ""
            found[module_name(canonical(path))] = f"`{new}`" if new else out
    return found


def _named(text: str) -> Iterator[str]:
    """Paths and dotted modules that a few lines name, `from` imports put together."""
    for token in _TOKEN.findall(text):
        yield token
        while "." in token and "/" not in token:
            token = token.rpartition(".")[0]
            yield token
    tree = parse_fragment(text)
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
