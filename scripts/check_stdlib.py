#!/usr/bin/env python3
"""Run all rules over Python's standard library and the installed packages: nothing may change.

    python scripts/check_stdlib.py [--sample N --seed S] [--jobs N]

The prefilter is off, so every rule sees every file, as if the files were a checkout with nothing of MaxText in
it. Files that speak of MaxText are left out and named. Files that cannot be parsed must be named by the rules.
A change or a crash fails the check (exit status 1); what the rules list there is printed.
"""

from __future__ import annotations

import argparse
import ast
import random
import re
import sys
import sysconfig
import traceback
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from codemods.engine.pool import default_jobs, run_tasks, worker_state
from codemods.engine.project import Options, Project
from codemods.engine.rewrite import PYTHON_SUFFIXES, TEXT_SUFFIXES, rewrite
from codemods.maps import model, select
from codemods.maps.symbols import SymbolTable
from codemods.review.terminal import progress_bar
from codemods.rules import dumps, renames
from codemods.rules import select as select_rules

MAP = "d4ed2261--0.2.5.json.gz"
_MAXTEXT = re.compile(rb"maxtext", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Seen:
    """What the rules made of one file.

    Attributes:
        size: in bytes.
        python: whether it is a Python file.
        excluded: it speaks of MaxText, so the rules did not run.
        unparsable: why the rules could not read it; "" if they could.
        valid: whether CPython's own parser takes a file that the rules could not read.
        faults: edits and exceptions: there must be none.
        listed: sites that the rules list.
    """

    size: int
    python: bool
    excluded: bool = False
    unparsable: str = ""
    valid: bool = False
    faults: tuple[str, ...] = ()
    listed: tuple[str, ...] = ()


@dataclass
class Outcome:
    """All files, by path."""

    seen: dict[str, Seen] = field(default_factory=dict)

    @property
    def faults(self) -> list[str]:
        """Everything that must not be, as `path: what`."""
        return [
            f"{path}: {fault}" for path, one in sorted(self.seen.items()) for fault in one.faults
        ]

    @property
    def listed(self) -> list[str]:
        """Everything that the rules list, as `path: what`."""
        return [f"{path}: {site}" for path, one in sorted(self.seen.items()) for site in one.listed]


def folders() -> dict[str, Path]:
    """The folders to read: the standard library and the installed packages."""
    paths = sysconfig.get_paths()
    return {
        name: Path(paths[key])
        for name, key in (("library", "stdlib"), ("packages", "purelib"), ("platform", "platlib"))
    }


def all_files() -> list[Path]:
    """Every Python and text file below the folders, each once."""
    suffixes = (*PYTHON_SUFFIXES, *TEXT_SUFFIXES)
    found: dict[Path, Path] = {}
    for folder in folders().values():
        for path in folder.rglob("*"):
            if path.suffix in suffixes and path.is_file():
                found.setdefault(path.resolve(), path)
    return sorted(found.values())


def project() -> Project:
    """What the rules know of an empty checkout at the fork point."""
    return Project(
        map=model.load(select.DATA / MAP),
        enabled=select_rules(),
        options=Options(),
        placements={},
        old=SymbolTable([]),
        target=SymbolTable([]),
        modules={},
        names=renames.NAMES,
        dumps=dumps.plan([]),
    )


def check(files: Iterable[Path], jobs: int) -> Outcome:
    """Run the rules over files.

    Args:
        files: their full paths.
        jobs: how many processes; 0 for this one alone.
    """
    items = [str(f) for f in files]
    outcome = Outcome()
    state = {"project": project(), "roots": sorted(folders().values(), key=lambda p: -len(str(p)))}
    with progress_bar() as progress:
        for done, (path, seen) in enumerate(run_tasks(jobs, state, _check_one, items), 1):
            progress("checking", done, len(items))
            if not isinstance(seen, Seen):
                seen = Seen(0, True, faults=("the parser crashed",))
            outcome.seen[path] = seen
    return outcome


def _check_one(path: str) -> Seen:
    state = worker_state()
    data = Path(path).read_bytes()
    python = path.endswith(PYTHON_SUFFIXES)
    if _MAXTEXT.search(data):
        return Seen(len(data), python, excluded=True)
    root = next(r for r in state["roots"] if Path(path).is_relative_to(r))
    try:
        result = rewrite(Path(path).relative_to(root).as_posix(), data, state["project"], None)
    except Exception:  # whatever it is, it is a fault of a rule
        return Seen(len(data), python, faults=(f"raised {traceback.format_exc(limit=-3)}",))
    faults = [
        f"{e.line}: {e.rule}: {e.before[:60]!r} -> {(e.after or '')[:60]!r}" for e in result.edits
    ]
    listed: list[str] = []
    unparsable = ""
    for site in result.sites:
        if site.rule == "CHK001":
            unparsable = site.reason
        else:
            listed.append(f"{site.line}: {site.rule}: {site.before[:60]!r}: {site.reason}")
    if result.data is not None and not result.edits:
        faults.append("bytes changed without an edit")
    return Seen(
        len(data),
        python,
        unparsable=unparsable,
        valid=bool(unparsable) and python and _valid(data),
        faults=tuple(faults),
        listed=tuple(listed),
    )


def _valid(data: bytes) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(data)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def main() -> int:
    """Check and print the counts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sample", type=int, metavar="N", help="so many files, drawn at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=default_jobs())
    options = parser.parse_args()
    files = all_files()
    if options.sample:
        files = sorted(random.Random(options.seed).sample(files, min(options.sample, len(files))))
    outcome = check(files, options.jobs)
    seen = outcome.seen
    python = [s for s in seen.values() if s.python]
    print(
        f"{len(seen)} files ({len(python)} Python), {sum(s.size for s in seen.values()) / 1e6:.1f} MB, "
        f"Python {sys.version.split()[0]}"
    )
    excluded = sorted(path for path, s in seen.items() if s.excluded)
    print(
        f"{len(excluded)} speak of MaxText and are left out{': ' if excluded else ''}{', '.join(excluded)}"
    )
    unparsable = {path: s for path, s in sorted(seen.items()) if s.unparsable}
    print(f"{len(unparsable)} cannot be parsed and are named:")
    for path, one in unparsable.items():
        print(f"  {path}: {one.unparsable}{' (CPython parses it)' if one.valid else ''}")
    for name, lines in (("sites listed", outcome.listed), ("changes and crashes", outcome.faults)):
        print(f"{len(lines)} {name}")
        for line in lines:
            print(f"  {line}")
    return 1 if outcome.faults else 0


if __name__ == "__main__":
    sys.exit(main())
