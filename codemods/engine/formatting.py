"""`--format black`: format the simple statements that were touched, and nothing else."""

from __future__ import annotations

import ast
import textwrap
import tomllib
from pathlib import Path

import black

from codemods.engine.edits import Edit, apply
from codemods.engine.rewrite import Finding
from codemods.engine.run import Migration
from codemods.engine.source import decode


def format_touched(migration: Migration) -> None:
    """Run black over each rewritten simple statement of Python files, with the checkout's line length.

    The indentation around a statement is kept (MaxText indents by two), so only the statement's own
    lines change. What black refuses stays as the rules left it.
    """
    mode = black.Mode(line_length=_line_length(migration.checkout.root), magic_trailing_comma=True)
    for path, result in migration.results.items():
        if result.data is None or not path.endswith((".py", ".pyi")):
            continue
        text, encoding = decode(result.data, python=True)
        touched = _touched_lines(result.edits, migration.checkout.root / path, text)
        formatted = _formatted(text, touched, mode)
        if formatted != text:
            result.data = encoding.encode(formatted)


def _line_length(root: Path) -> int:
    """The line length of the checkout's own formatter settings; black's default without any."""
    try:
        tools = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8")).get("tool", {})
    except (OSError, ValueError):
        tools = {}
    for tool in ("pyink", "black", "ruff"):
        length = tools.get(tool, {}).get("line-length")
        if isinstance(length, int):
            return length
    return black.DEFAULT_LINE_LENGTH


def _touched_lines(edits: list[Finding], source: Path, new_text: str) -> set[int]:
    """Lines of the rewritten text that an edit reaches."""
    lines: set[int] = set()
    delta = 0
    for edit in edits:
        start = edit.start + delta
        size = len(edit.after or "")
        first = new_text.count("\n", 0, start) + 1
        lines.update(range(first, first + new_text.count("\n", start, start + size) + 1))
        delta += size - (edit.end - edit.start)
    return lines


def _formatted(text: str, touched: set[int], mode: black.Mode) -> str:
    lines = text.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    edits: list[Edit] = []
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.stmt) or hasattr(node, "body"):
            continue
        last = node.end_lineno or node.lineno
        if touched.isdisjoint(range(node.lineno, last + 1)):
            continue
        block = "".join(lines[node.lineno - 1 : last])
        indent = block[: len(block) - len(block.lstrip(" \t"))]
        try:
            new = black.format_str(textwrap.dedent(block), mode=mode)
        except black.InvalidInput:
            continue
        newline = "\r\n" if block.endswith("\r\n") else "\n"
        new = newline.join(indent + line if line else line for line in new.splitlines())
        new += block[len(block.rstrip("\r\n")) :]
        if ast.dump(ast.parse(textwrap.dedent(new))) == ast.dump(ast.parse(textwrap.dedent(block))):
            edits.append(Edit(starts[node.lineno - 1], starts[last], new, "format"))
    unique = {(e.start, e.end): e for e in edits}
    return apply(text, [unique[key] for key in sorted(unique)])
