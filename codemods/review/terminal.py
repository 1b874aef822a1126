"""What goes to the terminal: progress, the summary, rules and their explanations."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from codemods.engine.overlay import Overlay
from codemods.engine.report import URGENT
from codemods.engine.run import Migration
from codemods.errors import UserError
from codemods.maps.model import MoveMap
from codemods.rules import all_rules, documented_rules

_MOST_LISTED = 20


def console(color: bool | None = None, stderr: bool = False) -> Console:
    """A console: colours as asked for, else only on a terminal and without NO_COLOR."""
    if color is None:
        return Console(stderr=stderr, highlight=False, soft_wrap=True)
    return Console(
        stderr=stderr,
        highlight=False,
        soft_wrap=True,
        force_terminal=color or None,
        no_color=not color,
        color_system="auto" if color else None,
    )


@contextmanager
def progress_bar() -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar on standard error; silent when that is no terminal."""
    out = console(stderr=True)
    if not out.is_terminal or os.environ.get("CI"):
        yield lambda stage, done, total: None
        return
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=out,
        transient=True,
        auto_refresh=False,  # its thread would be alive when worker processes are forked
    )
    tasks: dict[str, TaskID] = {}

    def progress(stage: str, done: int, total: int) -> None:
        if stage not in tasks:
            tasks[stage] = bar.add_task(stage, total=total)
        bar.update(tasks[stage], completed=done, total=total)
        if done == total or done % max(1, total // 100) == 0:
            bar.refresh()

    with bar:
        yield progress


def print_summary(
    out: Console, migration: Migration, counts: dict[str, object], where: Path | None
) -> None:
    """The result of a run in a screenful."""
    rules = all_rules()
    out.print(
        f"[bold]{escape(str(migration.checkout.root))}[/] → MaxText {escape(migration.upstream.label)}; "
        f"map {escape(migration.map_base)} → {escape(migration.map_target)} ({escape(migration.map_why)})"
    )
    for note in migration.notes:
        out.print(f"note: {escape(note)}")
    if not migration.changes and not migration.listed:
        out.print("nothing to do")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title, justify in (
        ("rule", "left"),
        ("edits", "right"),
        ("listed", "right"),
        ("what", "left"),
    ):
        table.add_column(title, justify=justify)  # type: ignore[arg-type]
    edits, sites = counts["edits_by_rule"], counts["sites_by_rule"]
    assert isinstance(edits, dict)
    assert isinstance(sites, dict)
    for rule in sorted({*edits, *sites}):
        table.add_row(
            rule, str(edits.get(rule, "")), str(sites.get(rule, "")), escape(rules[rule].summary)
        )
    out.print(table)
    out.print(
        f"{counts['files']} files: {counts['moved']} moved, {counts['rewritten']} rewritten, "
        f"{counts['left_out']} left out; {counts['edits']} edits, "
        f"[bold]{counts['sites']} sites for a person[/]"
    )
    urgent_first = sorted(migration.listed, key=lambda s: s.rule not in URGENT)
    for site in urgent_first[:_MOST_LISTED]:
        out.print(
            f"  {escape(site.file)}:{site.line}:{site.column} {site.rule} {escape(site.reason)}"
        )
    if len(migration.listed) > _MOST_LISTED:
        out.print(f"  … and {len(migration.listed) - _MOST_LISTED} more, in the report")
    if where is not None:
        out.print(f"tree: {escape(str(where))}")
        out.print(f"report: {escape(str(where / 'report.html'))} and report.json")


def print_applied(out: Console, data: dict[str, Any], where: Path) -> None:
    """The result of `apply`: what was made, and what was not."""
    left, sites = data["left"], data["sites"]
    out.print(f"[bold]{escape(data['checkout'])}[/] → MaxText {escape(data['upstream'])}")
    for note in data["notes"]:
        out.print(f"note: {escape(note)}")
    for status in ("rejected", "open", "held"):
        rows = [row for row in left if row["status"] == status]
        for row in rows[:_MOST_LISTED]:
            place = f"{row['file']}:{row['line']}" if row["kind"] == "hunk" else row["file"]
            said = ": ".join(filter(None, (row["note"], row["why"])))
            out.print(
                f"  {escape(place)} {' '.join(row['rules'])} {status} {escape(said)}".rstrip()
            )
        if len(rows) > _MOST_LISTED:
            out.print(f"  … and {len(rows) - _MOST_LISTED} more {status}, in the report")
    out.print(
        f"{data['applied']['made']} changes made, [bold]{len(left)} not made, "
        f"{len(sites)} sites for a person[/]"
    )
    out.print(f"tree: {escape(str(where))}")
    out.print(f"report: {escape(str(where / 'report.html'))} and report.json")


def print_page(out: Console, where: Path) -> None:
    """Print where the page of a report is."""
    out.print(f"report: {escape(str(where / 'report.html'))}")


def print_overlay(out: Console, made: Overlay, where: Path) -> None:
    """The result of an overlay: what went in, and what found no place."""
    rules = documented_rules()
    out.print(
        f"[bold]MaxText {escape(made.upstream.label)}[/] with {len(made.added)} new files; "
        f"{sum(len(e) for e in made.edits.values())} edits in {len(made.edits)} files"
    )
    for path in made.replaced:
        out.print(f"note: upstream has another {escape(path)}; it is replaced")
    for missing in made.missing:
        out.print(
            f"  {escape(missing.path)} {missing.rule} {escape(rules[missing.rule].summary)}: "
            f"{escape(missing.reason)}"
        )
    if made.missing:
        out.print(f"[bold]{len(made.missing)} edits were not made[/]; make them by hand")
    out.print(f"tree: {escape(str(where))}")


def print_rules() -> None:
    """Every rule: id, tier, summary."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("rule", "tier", "what"):
        table.add_column(title)
    for rule in documented_rules().values():
        table.add_row(rule.id, rule.tier, escape(rule.summary))
    console().print(table)


def explain(name: str) -> None:
    """A rule with its conditions and examples.

    Raises:
        UserError: no such rule.
    """
    rule = documented_rules().get(name.upper())
    if rule is None:
        raise UserError(f"no rule `{name}`; see `ling2-migrate run --list-rules`")
    out = console()
    out.print(f"[bold]{rule.id}[/] ({rule.tier}): {escape(rule.summary)}")
    if rule.detail:
        out.print(escape(rule.detail))
    for example in rule.examples:
        out.print(f"\n{escape(example.path)}")
        for sign, text, style in (("-", example.before, "red"), ("+", example.after, "green")):
            if sign == "+" and example.after == example.before:
                out.print(
                    "  (left as it is)" if not example.listed else "  (left as it is, and listed)"
                )
                continue
            for line in text.splitlines():
                out.print(f"{sign} {escape(line)}", style=style)


def print_map(built: MoveMap, path: Path) -> None:
    """What a map holds."""
    console().print(
        f"{escape(str(path))}: {escape(built.base.label)} → {escape(built.target.label)}, "
        f"{len(built.modules)} modules, {len(built.paths)} paths, {len(built.symbols)} names of their own, "
        f"{sum(len(v) for v in built.kept.values())} that went along"
    )
