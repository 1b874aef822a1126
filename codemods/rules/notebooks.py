"""Jupyter notebooks: the code cells as one module, Markdown cells as documents, JSON kept as it is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from json import JSONDecodeError

from codemods.engine.context import TextFile
from codemods.engine.tree import Span, Tree, UnparsableError
from codemods.rules import embedded
from codemods.rules.base import Rule
from codemods.rules.embedded import Escape, Piece
from codemods.rules.references import package_variables
from codemods.rules.text import scan_text

RULES: tuple[Rule, ...] = ()  # a notebook's edits carry the ids of the rules that make them

_TOKEN = re.compile(
    r'[ \t\r\n]*(?:(?P<string>"(?:[^"\\]|\\.)*")|(?P<mark>[{}\[\]:,])|(?P<other>[^\s{}\[\]:,"]+))'
)
_ESCAPE = re.compile(r"\\u[0-9a-fA-F]{4}|\\.")
_SHORT = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", '"': '"', "\\": "\\", "/": "/"}
_MAGIC = re.compile(r"^([ \t]*)(!|%|\?)|^[^\n#'\"]*\?\??[ \t]*$|^([ \t]*)[\w, ]+=[ \t]*(!|%)")
_CELL_MAGIC = re.compile(r"\s*%%(?P<name>\w+)")
_PYTHON_CELLS = frozenset({"time", "timeit", "capture", "prun", "python", "python3"})


@dataclass
class _Cell:
    kind: str = ""
    strings: list[Span] = field(default_factory=list)  # of the source's JSON strings, with quotes
    listed: bool = False  # whether the source is a list of lines


def text(file: TextFile) -> None:
    """Rewrite a notebook.

    Raises:
        UnparsableError: the file is no JSON.
    """
    try:
        json.loads(file.text)
    except JSONDecodeError as error:
        raise UnparsableError(f"no notebook: {error.msg}", error.lineno, error.colno) from None
    writer = _Writer(file.text)
    shell_lines = Piece(escape=writer)
    documents: list[Piece] = []
    code: list[Piece] = []
    for cell in _cells(file.text):
        piece = _decoded(file.text, cell.strings)
        piece.escape = writer
        writer.items.update(start for start, _ in cell.strings if cell.listed)
        magic = _CELL_MAGIC.match(piece.text)
        if cell.kind != "code":
            documents.append(piece)
        elif magic is not None and magic["name"] not in _PYTHON_CELLS:
            _append(shell_lines, piece, 0, len(piece.text))
        else:
            code.append(_split(piece, shell_lines))
    module = _joined(code, shell_lines.escape)
    if module.text.strip() and embedded.run(file, module, "cells") is not None:
        bad = [(part, problem) for part in code if (problem := _fault(part)) is not None]
        for part, problem in bad:
            at = _line_offset(part.text, problem.line)
            end = part.text.find("\n", at)
            file.site(
                "TXT009",
                part.host_span(at, end if end > at else len(part.text)),
                f"this cell cannot be parsed ({problem.reason})",
                "migrate the cell by hand; its paths and dotted names were rewritten",
            )
        documents += [part for part, _ in bad]
        faulty = {id(part) for part, _ in bad}
        good = _joined([c for c in code if id(c) not in faulty], shell_lines.escape)
        embedded.run(file, good, "cells")
    roots = package_variables(module.text)
    for number, piece in enumerate([shell_lines, *documents]):
        inner = TextFile(file.path, piece.text, file.project)
        scan_text(inner, document=piece is not shell_lines, roots=roots)
        piece.bring_back(inner, file, f"text{number}")


def _line_offset(text: str, line: int) -> int:
    offset = 0
    for _ in range(line - 1):
        offset = text.find("\n", offset) + 1
    return offset


def _append(target: Piece, source: Piece, start: int, end: int) -> None:
    target.text += source.text[start:end]
    target.starts += source.starts[start:end]
    target.ends += source.ends[start:end]
    if source.text[start:end] and not target.text.endswith("\n"):
        target.add_escaped("\n", target.ends[-1], target.ends[-1])


def _joined(cells: list[Piece], escape: Escape) -> Piece:
    module = Piece(escape=escape)
    for cell in cells:
        _append(module, cell, 0, len(cell.text))
    return module


def _fault(cell: Piece) -> UnparsableError | None:
    try:
        Tree(cell.text)
    except UnparsableError as problem:
        return problem
    return None


def _split(cell: Piece, shell_lines: Piece) -> Piece:
    """The Python of a cell; magics, replaced in it by `pass`, go to the shell's text."""
    module = Piece(escape=cell.escape)
    position, in_magic, depth_text = 0, False, ""
    for line in cell.text.splitlines(keepends=True):
        stop = position + len(line)
        found = None if in_magic or _inside_string(depth_text) else _MAGIC.match(line)
        if found is not None or in_magic:
            _append(shell_lines, cell, position, stop)
            if not in_magic:
                indent = line[: len(line) - len(line.lstrip(" \t"))]
                at = cell.starts[position]
                for char in f"{indent}pass\n":
                    module.add_escaped(char, at, at)
            in_magic = line.rstrip("\r\n").endswith("\\")
        else:
            _append(module, cell, position, stop)
            depth_text += line
        position = stop
    return module


def _inside_string(code: str) -> bool:
    """Whether a triple-quoted string is open at the end of `code`."""
    quote = ""
    for found in re.finditer(
        r"\\.|#[^\n]*|\"\"\"|'''|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", code, re.DOTALL
    ):
        mark = found.group()
        if quote:
            if quote in mark and mark.startswith(quote):
                quote = ""
        elif mark in ('"""', "'''"):
            quote = mark
    return bool(quote)


class _Writer:
    """Writes replacements into JSON strings."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.items: set[int] = set()  # where the strings of lists begin

    def __call__(self, new: str, start: int, end: int) -> tuple[str, int, int]:
        host = self.host
        if (
            not new
            and host[start - 1] == '"'
            and host[end] == '"'
            and host[start - 2 : start - 1] != "\\"
        ):
            return self._without_item(start, end)
        closes = host[end] == '"'
        separator = self._separator(start)
        written = []
        lines = new.splitlines(keepends=True)
        for number, line in enumerate(lines):
            ends_line = line.endswith("\n")
            written.append(json.dumps(line, ensure_ascii=False)[1:-1])
            if ends_line and separator and not (closes and number == len(lines) - 1):
                written.append(separator)
        return "".join(written), start, end

    def _separator(self, start: int) -> str:
        """What stands between two lines of the list that `start` lies in; "" for a single string."""
        host = self.host
        line_start = host.rfind("\n", 0, start) + 1
        quote = re.compile(r'[ \t]*(?=")').match(host, line_start)
        if quote is None or quote.end() not in self.items:
            return ""
        newline = "\r\n" if host[line_start - 2 : line_start] == "\r\n" else "\n"
        return f'",{newline}{quote.group()}"'

    def _without_item(self, start: int, end: int) -> tuple[str, int, int]:
        """A line of the list falls away with its quotes and one comma."""
        host = self.host
        begin, stop = start - 1, end + 1
        after = re.compile(r",\s*").match(host, stop)
        if after is not None:
            return "", begin, after.end()
        before = re.compile(r",\s*\Z").search(host, max(0, begin - 200), begin)
        if before is not None:
            return "", before.start(), stop
        return "", start, end


def _cells(text: str) -> Iterator[_Cell]:
    """The cells of a notebook, by one walk over its JSON tokens."""
    stack: list[str] = []  # keys of the open objects; "[]" for arrays
    keys: list[str] = []
    cell = _Cell()
    position, expect_key = 0, False
    while (token := _TOKEN.match(text, position)) is not None:
        position = token.end()
        mark, string = token["mark"], token["string"]
        if mark == "{":
            stack.append("{")
            keys.append("")
            expect_key = True
            if len(stack) == 3 and keys[0] == "cells":
                cell = _Cell()
        elif mark == "[":
            stack.append("[")
            keys.append("[]")
            expect_key = False
        elif mark in ("}", "]"):
            if mark == "}" and len(stack) == 3 and keys[0] == "cells":
                yield cell
            stack.pop()
            keys.pop()
            expect_key = False
        elif mark == ",":
            expect_key = bool(stack) and stack[-1] == "{"
        elif mark == ":":
            expect_key = False
        elif string is not None:
            span = token.span("string")
            if expect_key:
                keys[-1] = json.loads(string)
            elif keys[:1] == ["cells"] and len(keys) == 3 and keys[2] == "cell_type":
                cell.kind = json.loads(string)
            elif keys[:1] == ["cells"] and keys[2:] in (["source"], ["source", "[]"]):
                cell.strings.append(span)
                cell.listed = len(keys) == 4


def _decoded(text: str, strings: list[Span]) -> Piece:
    piece = Piece()
    for start, end in strings:
        position = start + 1
        for found in _ESCAPE.finditer(text, start + 1, end - 1):
            piece.add(text[position : found.start()], position)
            escape = found.group()
            position = found.end()
            if escape[1] == "u":
                code = int(escape[2:], 16)
                if (
                    0xDC00 <= code <= 0xDFFF
                    and piece.text
                    and 0xD800 <= ord(piece.text[-1]) <= 0xDBFF
                ):
                    high = ord(piece.text[-1])
                    piece.text = piece.text[:-1] + chr(
                        0x10000 + ((high - 0xD800) << 10) + code - 0xDC00
                    )
                    piece.ends[-1] = position
                    continue
                char = chr(code)
            else:
                char = _SHORT[escape[1]]
            piece.add_escaped(char, found.start(), position)
        piece.add(text[position : end - 1], position)
    return piece
