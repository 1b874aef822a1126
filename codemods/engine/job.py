"""What `ling2-migrate run` does around the migration: checks, output, report, exit status."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from codemods.engine import output, report
from codemods.engine.discover import REPORT_NAMES
from codemods.engine.pool import default_jobs
from codemods.engine.project import Options
from codemods.engine.run import Migration, Settings, migrate, write_tree
from codemods.errors import UserError
from codemods.review import page
from codemods.review.terminal import console, print_summary, progress_bar


@dataclass(slots=True)
class Request:
    """One call of `ling2-migrate run`; the fields are its options."""

    checkout: Path
    upstream: str
    out: Path | None = None
    map: Path | None = None
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    jobs: int | None = None
    options: Options = field(default_factory=Options)
    diff: bool = False
    check: bool = False
    json: bool = False
    branch: str | None = None
    format: str | None = None
    color: bool | None = None


def execute(request: Request) -> int:
    """Migrate, write and report.

    Returns:
        The exit status: 0 nothing is left for a person, 1 sites are left or `--check` found changes.

    Raises:
        UserError: a bad argument; nothing has been written then.
    """
    if request.out is None and not (request.diff or request.check or request.json):
        raise UserError("give --out DIR, or --check, --diff or --json to write nothing")
    if request.branch and request.out is None:
        raise UserError("--branch needs --out: the branch is made in a copy of the repository there")
    if request.check and request.out is not None:
        raise UserError("--check writes nothing; leave out --out")
    if not request.checkout.is_dir():
        raise UserError(f"{request.checkout}: no such folder; give the path of a MaxText checkout")
    if request.out is not None:
        output.check_output(request.out, request.checkout)
        for name in REPORT_NAMES:
            taken = request.checkout / name
            if taken.is_file() and report.MARK.encode() not in taken.read_bytes()[:400]:
                raise UserError(f"{taken}: this name is needed for the report; rename the file first")
    settings = Settings(
        checkout=request.checkout,
        upstream=request.upstream,
        map=request.map,
        only=request.only,
        skip=request.skip,
        jobs=request.jobs or default_jobs(),
        options=request.options,
    )
    with progress_bar() as progress:
        migration = migrate(settings, progress)
        if request.format:
            from codemods.engine.formatting import format_touched

            format_touched(migration)
        if request.out is not None:
            with output.staged(request.out) as stage:
                if request.branch:
                    from codemods.engine.branch import write_branch

                    write_branch(migration, stage, request.branch)
                else:
                    write_tree(migration, stage, progress)
                data = report.as_data(migration)
                (stage / "report.json").write_text(report.as_json(migration), encoding="utf-8")
                (stage / "report.html").write_text(page.render(data), encoding="utf-8")
    if request.diff:
        for line in diff_lines(migration):
            sys.stdout.write(line)
    if request.json:
        sys.stdout.write(report.as_json(migration))
    elif not request.diff:
        print_summary(console(request.color), migration, report.summary(migration), request.out)
    if request.check:
        return 1 if migration.changes or migration.listed else 0
    return 1 if migration.listed else 0


def diff_lines(migration: Migration) -> Iterator[str]:
    """The migration as a unified diff with git's headers for moves."""
    for path, placement in sorted(migration.placements.items()):
        result = migration.results.get(path)
        new = placement.new
        if new == path and (result is None or result.data is None):
            continue
        yield f"diff --git a/{path} b/{new or path}\n"
        if new is None:
            yield f"deleted: {path} stays out of the migrated tree ({placement.why})\n"
            continue
        if new != path:
            yield f"rename from {path}\nrename to {new}\n"
        if result is None or result.data is None:
            continue
        old = (migration.checkout.root / path).read_bytes()
        yield from _unified(old, result.data, path, new)


def _unified(old: bytes, new: bytes, path: str, new_path: str) -> Iterator[str]:
    def lines(data: bytes) -> list[str]:
        return data.decode("utf-8", "surrogateescape").splitlines(keepends=True)

    for line in difflib.unified_diff(lines(old), lines(new), f"a/{path}", f"b/{new_path}"):
        text = line.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        yield text if text.endswith("\n") else f"{text}\n\\ No newline at end of file\n"
