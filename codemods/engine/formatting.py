"""`--format black`: format the simple statements that were touched, and nothing else."""

from __future__ import annotations

import ast
import textwrap
import tomllib
import warnings
from collections.abc import Iterator
from pathlib import Path

from black import format_str
from black.const import DEFAULT_LINE_LENGTH
from black.mode import Mode
from black.parsing import InvalidInput

from codemods.engine.edits import Edit, apply, line_starts
from codemods.engine.rewrite import PYTHON_SUFFIXES, Finding
from codemods.engine.run import Migration
from codemods.engine.source import decode


def format_touched(migration: Migration) -> None:
    """Run black over each rewritten simple statement of Python files, with the checkout's line length.

    The indentation around a statement is kept (MaxText indents by two), so only the statement's own
    lines change. What black refuses stays as the rules left it.
    """
    length = _line_length(migration.checkout.root)
    for path, result in migration.results.items():
        if result.data is None or not path.endswith(PYTHON_SUFFIXES):
            continue
        text, encoding = decode(result.data, python=True)
        formatted = _formatted(text, _touched_lines(result.edits, text), length)
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
    return DEFAULT_LINE_LENGTH


def _touched_lines(edits: list[Finding], new_text: str) -> set[int]:
    """Lines of the rewritten text that an edit reaches."""
    starts = line_starts(new_text)
    lines: set[int] = set()
    delta = line = 0
    for edit in edits:
        start = edit.start + delta
        size = len(edit.after or "")
        while line < len(starts) and starts[line] <= start:
            line += 1
        last = line
        while last < len(starts) and starts[last] < start + size:
            last += 1
        lines.update(range(line, last + 1))
        delta += size - (edit.end - edit.start)
    return lines


def _formatted(text: str, touched: set[int], length: int) -> str:
    tree = _parse(text)
    starts = [*line_starts(text), len(text)]
    edits: dict[tuple[int, int], Edit] = {}
    for node in _simple_statements(tree):
        last = node.end_lineno or node.lineno
        span = (starts[node.lineno - 1], starts[last])
        if touched.isdisjoint(range(node.lineno, last + 1)) or span in edits:
            continue
        new = _format_block(text[span[0] : span[1]], length)
        if new is not None:
            edits[span] = Edit(*span, new, "format")
    # Another statement may begin on a line that one ends on; the first of them then stands.
    chosen: list[Edit] = []
    for span in sorted(edits):
        if not chosen or chosen[-1].end <= span[0]:
            chosen.append(edits[span])
    formatted = apply(text, chosen)
    return formatted if ast.dump(_parse(formatted)) == ast.dump(tree) else text


def _simple_statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """Simple statements without a string of several lines, whose lines are not black's to move."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.stmt) or hasattr(node, "body") or isinstance(node, ast.Match):
            continue
        strings = (n for n in ast.walk(node) if isinstance(n, (ast.Constant, ast.JoinedStr)))
        if all(n.lineno == n.end_lineno for n in strings):
            yield node


def _format_block(block: str, length: int) -> str | None:
    """Whole lines as black would have them, indented as they were; None where it cannot."""
    indent = block[: len(block) - len(block.lstrip(" \t"))]
    newline = "\r\n" if "\r\n" in block else "\n"
    body = textwrap.dedent(block.replace("\r\n", "\n"))
    if "\r" in body or "\f" in body:
        return None
    try:
        statements = ast.parse(body).body
        if any(hasattr(statement, "body") for statement in statements):
            return None  # `if x: y = 1` on one line
        mode = Mode(line_length=max(length - len(indent.expandtabs()), 1))
        formatted = format_str(body, mode=mode)
    except (InvalidInput, SyntaxError, ValueError):
        return None
    lines = [indent + line if line else line for line in formatted.splitlines()]
    return newline.join(lines) + block[len(block.rstrip("\r\n")) :]


def _parse(text: str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text)
