"""One parse of a Python file: the LibCST tree, where each node lies in the text, and its parents."""

from __future__ import annotations

import ast
import dataclasses
import re
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import libcst as cst

# LibCST's PositionProvider costs twice the parse and a deep copy of the tree. Spans fall out of one
# run of its code generator, so we listen to that; the class is LibCST's own hook for it, and the
# version is pinned in pyproject.toml.
from libcst._nodes.internal import CodegenState


class Unparsable(Exception):
    """The text is no Python that can be rewritten; the message says why, with line and column if known."""

    def __init__(self, reason: str, line: int = 1, column: int = 1) -> None:
        super().__init__(reason)
        self.reason = reason
        self.line = line
        self.column = column


Span = tuple[int, int]

_WHITESPACE_FIELDS = frozenset(
    {
        "leading_lines",
        "lines_after_decorators",
        "header",
        "footer",
        "indent",
        "newline",
        "trailing_whitespace",
        "default_indent",
        "default_newline",
        "encoding",
        "has_trailing_newline",
    }
)
_FIELDS: dict[type, tuple[str, ...]] = {}
_NOT_RECORDED = (
    cst.BaseParenthesizableWhitespace,
    cst.EmptyLine,
    cst.Newline,
    cst.Comment,
    cst.TrailingWhitespace,
)


def _fields(cls: type) -> tuple[str, ...]:
    found = _FIELDS.get(cls)
    if found is None:
        found = _FIELDS[cls] = tuple(
            f.name
            for f in dataclasses.fields(cls)
            if f.name not in _WHITESPACE_FIELDS
            and not f.name.startswith("whitespace")
            and f.name not in ("lpar", "rpar", "lbracket", "rbracket", "lbrace", "rbrace")
        )
    return found


def children(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Child nodes that are code (no whitespace, comments or brackets), in source order."""
    for name in _fields(type(node)):
        value = getattr(node, name)
        if isinstance(value, cst.CSTNode):
            yield value
        elif isinstance(value, (list, tuple)):
            for item in value:
                if isinstance(item, cst.CSTNode):
                    yield item


class _SpanState(CodegenState):
    """Records the half-open character span of every node while LibCST generates code."""

    def __init__(self, default_indent: str, default_newline: str) -> None:
        super().__init__(default_indent, default_newline)
        self.offset = 0
        self.spans: dict[cst.CSTNode, Span] = {}
        self._starts: list[int] = []

    def add_token(self, value: str) -> None:
        self.tokens.append(value)
        self.offset += len(value)

    def add_indent_tokens(self) -> None:
        for token in self.indent_tokens:
            self.add_token(token)

    def before_codegen(self, node: cst.CSTNode) -> None:
        self._starts.append(self.offset)

    def after_codegen(self, node: cst.CSTNode) -> None:
        start = self._starts.pop()
        if node not in self.spans and not isinstance(node, _NOT_RECORDED):
            self.spans[node] = (start, self.offset)

    @contextmanager
    def record_syntactic_position(
        self,
        node: cst.CSTNode,
        *,
        start_node: cst.CSTNode | None = None,
        end_node: cst.CSTNode | None = None,
    ) -> Iterator[None]:
        start = self.offset
        yield
        if start_node is not None:
            start = self.spans[start_node][0]
        end = self.spans[end_node][1] if end_node is not None else self.offset
        self.spans[node] = (start, end)


# CPython's tokenizer stops at 200 open brackets; LibCST's native parser would overrun its stack instead.
_DEEPEST_BRACKETS = 200
_BRACKETS = re.compile(r"[()\[\]{}]")


def _check_brackets(text: str) -> None:
    depth = deepest = 0
    for bracket in _BRACKETS.findall(text):
        depth += 1 if bracket in "([{" else -1
        deepest = max(deepest, depth)
    if deepest > _DEEPEST_BRACKETS:  # brackets in strings count too, so let CPython decide
        try:
            ast.parse(text)
        except (SyntaxError, MemoryError, RecursionError):
            raise Unparsable("brackets are nested too deep for any Python parser") from None


class Tree:
    """A parsed file.

    Attributes:
        text: the decoded text that was parsed.
        module: its LibCST module; never changed.
    """

    def __init__(self, text: str) -> None:
        """Parse.

        Raises:
            Unparsable: a syntax error, NUL bytes, nesting too deep for the parser, or a text that
                LibCST does not give back unchanged.
        """
        self.text = text
        if "\0" in text:
            before = text[: text.index("\0")]
            raise Unparsable("the file holds a NUL byte", before.count("\n") + 1)
        _check_brackets(text)
        # LibCST loses a form feed before code and does not know a lone carriage return as a line end.
        shadow = re.sub("\r(?!\n)", "\n", text) if "\r" in text else text
        self._removed = [m.start() for m in re.finditer("\f", shadow)]
        shadow = shadow.replace("\f", "")
        try:
            self.module = cst.parse_module(shadow)
            state = _SpanState(self.module.default_indent, self.module.default_newline)
            self.module._codegen(state)
        except cst.ParserSyntaxError as error:
            reason = error.message.partition("@")[0].strip().splitlines()[0]
            raise Unparsable(f"syntax error: {reason}", error.raw_line, error.raw_column + 1) from None
        except RecursionError:
            raise Unparsable("an expression is nested too deep for the parser") from None
        if "".join(state.tokens) != shadow:
            raise Unparsable("the parser does not give this text back unchanged")
        # Where a removed form feed stood in the shadow: k-th one at (its offset - k).
        self._removed = [offset - k for k, offset in enumerate(self._removed)]
        self._spans = state.spans
        self._parents: dict[cst.CSTNode, cst.CSTNode] | None = None

    def span(self, node: cst.CSTNode) -> Span:
        """Where the node lies, without the whitespace and comments around it (brackets included)."""
        span = self._spans[node]
        if self._removed:
            start, end = span
            span = (
                start + bisect_right(self._removed, start),
                end + bisect_right(self._removed, end - 1 if end > start else start),
            )
        return span

    def source(self, node: cst.CSTNode) -> str:
        """The node's own source text."""
        start, end = self.span(node)
        return self.text[start:end]

    def parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        """The node that holds this one; None for the module."""
        return self.parents.get(node)

    @property
    def parents(self) -> dict[cst.CSTNode, cst.CSTNode]:
        """Every code node → its parent; made when first asked for."""
        if self._parents is None:
            parents: dict[cst.CSTNode, cst.CSTNode] = {}
            stack: list[cst.CSTNode] = [self.module]
            while stack:
                node = stack.pop()
                for child in children(node):
                    parents[child] = node
                    stack.append(child)
            self._parents = parents
        return self._parents

    def ancestors(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """The node's parent, its parent, … up to the module."""
        parent = self.parent(node)
        while parent is not None:
            yield parent
            parent = self.parent(parent)

    def walk(self, node: cst.CSTNode | None = None) -> Iterator[cst.CSTNode]:
        """Every code node below (and with) `node`, in source order."""
        stack: list[Any] = [self.module if node is None else node]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(reversed(list(children(node))))
