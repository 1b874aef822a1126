"""One parse of a Python file: the LibCST tree, where each node lies in the text, and its parents."""

from __future__ import annotations

import ast
import dataclasses
import re
from bisect import bisect_right
from collections.abc import Iterator

import libcst as cst

# LibCST's PositionProvider costs twice the parse and a deep copy of the tree. Spans fall out of one
# run of its code generator, so we listen to that; the class is LibCST's own hook for it, and the
# version is pinned in pyproject.toml.
from libcst._nodes.internal import CodegenState


class UnparsableError(Exception):
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
_IS_NODE: dict[type, bool] = {}
_NOT_RECORDED = frozenset(
    {
        cst.SimpleWhitespace,
        cst.ParenthesizedWhitespace,
        cst.EmptyLine,
        cst.Newline,
        cst.Comment,
        cst.TrailingWhitespace,
    }
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


def _is_node(cls: type) -> bool:
    found = _IS_NODE.get(cls)
    if found is None:  # asking an abstract base class is slow, so each class is asked once
        found = _IS_NODE[cls] = issubclass(cls, cst.CSTNode)
    return found


def children(node: cst.CSTNode) -> list[cst.CSTNode]:
    """Child nodes that are code (no whitespace, comments or brackets), in source order."""
    found: list[cst.CSTNode] = []
    for name in _FIELDS.get(type(node)) or _fields(type(node)):
        value = getattr(node, name)
        cls = type(value)
        if cls is list or cls is tuple:
            found += [item for item in value if _is_node(type(item))]
        elif _IS_NODE[cls] if cls in _IS_NODE else _is_node(cls):
            found.append(value)
    return found


class _SpanState(CodegenState):
    """Records the half-open character span of every node, by its id, while LibCST generates code."""

    def __init__(self, default_indent: str, default_newline: str) -> None:
        super().__init__(default_indent, default_newline)
        self.offset = 0
        self.spans: dict[int, Span] = {}
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
        if type(node) not in _NOT_RECORDED:
            self.spans.setdefault(id(node), (start, self.offset))

    def record_syntactic_position(  # type: ignore[override]
        self,
        node: cst.CSTNode,
        *,
        start_node: cst.CSTNode | None = None,
        end_node: cst.CSTNode | None = None,
    ) -> _Recorder:
        return _Recorder(self, node, start_node, end_node)


class _Recorder:
    """Records a node's span without the whitespace and comments that belong to it."""

    __slots__ = ("_end_node", "_node", "_start", "_start_node", "_state")

    def __init__(
        self,
        state: _SpanState,
        node: cst.CSTNode,
        start_node: cst.CSTNode | None,
        end_node: cst.CSTNode | None,
    ) -> None:
        self._state = state
        self._node = node
        self._start_node = start_node
        self._end_node = end_node

    def __enter__(self) -> None:
        self._start = self._state.offset

    def __exit__(self, *_: object) -> None:
        spans = self._state.spans
        start = self._start if self._start_node is None else spans[id(self._start_node)][0]
        end = self._state.offset if self._end_node is None else spans[id(self._end_node)][1]
        spans[id(self._node)] = (start, end)


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
            raise UnparsableError("brackets are nested too deep for any Python parser") from None


class _AlteredError(Exception):
    """LibCST gives a text back with changes."""

    def __init__(self, given_back: str) -> None:
        super().__init__()
        self.given_back = given_back


def _lost_blanks(text: str, given_back: str) -> list[int]:
    """Offsets of the spaces and tabs without which `text` is what was given back; none if there is more to it."""
    lost: list[int] = []
    at = 0
    for offset, character in enumerate(text):
        if at < len(given_back) and given_back[at] == character:
            at += 1
        elif character in " \t":
            lost.append(offset)
        else:
            return []
    return lost if at == len(given_back) else []


def _parse(text: str) -> tuple[cst.Module, dict[int, Span]]:
    """The module of a text and the span of each node.

    Raises:
        _AlteredError: LibCST does not give the text back unchanged.
    """
    module = cst.parse_module(text)
    state = _SpanState(module.default_indent, module.default_newline)
    module._codegen(state)
    given_back = "".join(state.tokens)
    if given_back == text:
        return module, state.spans
    # LibCST loses an empty line before a last line that is indented and holds no code; not with code after it.
    longer = f"{text if text.endswith('\n') else text + '\n'}pass\n"
    whole = cst.parse_module(longer)
    state = _SpanState(whole.default_indent, whole.default_newline)
    whole._codegen(state)
    if "".join(state.tokens) != longer:
        raise _AlteredError(given_back)
    added = whole.body[-1]
    for node in (whole, added, *added.children):  # these go, and their ids may come again
        state.spans.pop(id(node), None)
    module = whole.with_changes(body=whole.body[:-1])
    state.spans[id(module)] = (0, len(text))
    return module, state.spans


def _squeezed(removed: list[int]) -> list[int]:
    """Where removed characters would stand in the text without them: the k-th one at (its offset - k)."""
    return [offset - k for k, offset in enumerate(removed)]


class Tree:
    """A parsed file.

    Attributes:
        text: the decoded text that was parsed.
        module: its LibCST module; never changed.
    """

    def __init__(self, text: str) -> None:
        """Parse.

        Raises:
            UnparsableError: a syntax error, NUL bytes, nesting too deep for the parser, or a text that
                LibCST does not give back unchanged.
        """
        self.text = text
        if "\0" in text:
            before = text[: text.index("\0")]
            raise UnparsableError("the file holds a NUL byte", before.count("\n") + 1)
        _check_brackets(text)
        # LibCST loses a form feed before code and does not know a lone carriage return as a line end.
        shadow = re.sub("\r(?!\n)", "\n", text) if "\r" in text else text
        self._removed = _squeezed([m.start() for m in re.finditer("\f", shadow)])
        shadow = shadow.replace("\f", "")
        try:
            try:
                self.module, self._spans = _parse(shadow)
            except (
                _AlteredError
            ) as error:  # it also loses blanks, as in `except E :` and `f"{x!r }"`
                lost = _lost_blanks(shadow, error.given_back)
                removed = [offset + k for k, offset in enumerate(self._removed)]
                removed += [offset + bisect_right(self._removed, offset) for offset in lost]
                self._removed = _squeezed(sorted(removed))
                kept = zip([-1, *lost], [*lost, len(shadow)], strict=True)
                self.module, self._spans = _parse("".join(shadow[a + 1 : b] for a, b in kept))
        except cst.ParserSyntaxError as error:
            reason = error.message.partition("@")[0].strip().splitlines()[0]
            raise UnparsableError(
                f"syntax error: {reason}", error.raw_line, error.raw_column + 1
            ) from None
        except RecursionError:
            raise UnparsableError("an expression is nested too deep for the parser") from None
        except _AlteredError:
            raise UnparsableError("the parser does not give this text back unchanged") from None
        self._nodes: list[cst.CSTNode] | None = None
        self._parents: dict[int, cst.CSTNode] = {}

    def span(self, node: cst.CSTNode) -> Span:
        """Where the node lies, without the whitespace and comments around it (brackets included)."""
        span = self._spans[id(node)]
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

    def _index(self) -> list[cst.CSTNode]:
        """Every code node in source order, found once; finds each one's parent as well."""
        if self._nodes is None:
            nodes: list[cst.CSTNode] = []
            parents = self._parents
            stack: list[cst.CSTNode] = [self.module]
            while stack:
                node = stack.pop()
                nodes.append(node)
                below = children(node)
                if below:
                    for child in below:
                        parents[id(child)] = node
                    below.reverse()
                    stack += below
            self._nodes = nodes
        return self._nodes

    def parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        """The node that holds this one; None for the module."""
        self._index()
        return self._parents.get(id(node))

    def ancestors(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """The node's parent, its parent, … up to the module."""
        parent = self.parent(node)
        while parent is not None:
            yield parent
            parent = self.parent(parent)

    def walk(self, node: cst.CSTNode | None = None) -> Iterator[cst.CSTNode]:
        """Every code node below (and with) `node`, in source order."""
        if node is None or node is self.module:
            yield from self._index()
            return
        stack: list[cst.CSTNode] = [node]
        while stack:
            node = stack.pop()
            yield node
            stack += reversed(children(node))
