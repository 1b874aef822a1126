"""Matching code by its shape: a pattern is Python with wildcards, and layout and comments do not count.

In a pattern a name that begins with two underscores stands for any expression (the same one wherever it
occurs), `...` among arguments or elements for any number of them, and `...` as the body of a compound
statement says that only its header counts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cache

import libcst as cst

Bound = dict[str, cst.CSTNode]

# What layout alone decides: blanks, brackets around an expression, commas, semicolons.
_LAYOUT = frozenset(
    {
        "leading_lines",
        "lines_after_decorators",
        "lines_after_module_docstring",
        "header",
        "footer",
        "indent",
        "newline",
        "trailing_whitespace",
        "lpar",
        "rpar",
        "comma",
        "semicolon",
        "equal",
    }
)
_HEADERS: dict[type[cst.CSTNode], tuple[str, ...]] = {
    cst.If: ("test",),
    cst.While: ("test",),
    cst.For: ("target", "iter"),
    cst.With: ("items",),
    cst.ClassDef: ("name",),
    cst.FunctionDef: ("name",),
}


@cache
def _fields(cls: type[cst.CSTNode]) -> tuple[str, ...]:
    return tuple(
        f.name
        for f in dataclasses.fields(cls)
        if f.name not in _LAYOUT and not f.name.startswith("whitespace")
    )


@cache
def parse_pattern(code: str) -> cst.CSTNode:
    """A pattern's node: an expression, a small statement, or a compound statement.

    Raises:
        ValueError: the code is no single expression or statement.
    """
    try:
        return cst.parse_expression(code)
    except cst.ParserSyntaxError:
        pass
    try:
        statement = cst.parse_statement(code)
    except cst.ParserSyntaxError as error:
        raise ValueError(f"no Python: {code!r}") from error
    if isinstance(statement, cst.SimpleStatementLine):
        (small,) = statement.body
        return small
    return statement


def match(pattern: cst.CSTNode, node: cst.CSTNode) -> Bound | None:
    """What the wildcards of a pattern stand for in a node; None if it does not match."""
    bound: Bound = {}
    return bound if _match(pattern, node, bound) else None


def same(one: cst.CSTNode, other: cst.CSTNode) -> bool:
    """Whether two nodes are the same code."""
    return _match(one, other, None)


def _match(pattern: cst.CSTNode, node: cst.CSTNode, bound: Bound | None) -> bool:
    if bound is not None and isinstance(pattern, cst.Name) and pattern.value.startswith("__"):
        held = bound.setdefault(pattern.value, node)
        return held is node or same(held, node)
    if isinstance(pattern, cst.SimpleString) and isinstance(node, cst.SimpleString):
        return _text(pattern) == _text(node)
    if type(pattern) is not type(node):
        return False
    names = _fields(type(pattern))
    if bound is not None and _is_header(pattern):
        names = _HEADERS[type(pattern)]
    return all(_match_value(getattr(pattern, n), getattr(node, n), bound) for n in names)


def _text(string: cst.SimpleString) -> object:
    """A string's value; how far the lines of one are indented is layout."""
    value = string.evaluated_value
    if isinstance(value, str) and string.quote in ('"""', "'''"):
        return [line.strip() for line in value.splitlines()]
    return [value]


def _match_value(pattern: object, node: object, bound: Bound | None) -> bool:
    if isinstance(pattern, cst.CSTNode):
        return isinstance(node, cst.CSTNode) and _match(pattern, node, bound)
    if isinstance(pattern, (list, tuple)):
        return isinstance(node, (list, tuple)) and _match_all(pattern, node, bound)
    return pattern == node


def _match_all(
    patterns: Sequence[cst.CSTNode], nodes: Sequence[cst.CSTNode], bound: Bound | None
) -> bool:
    """Match a sequence; one `...` in it, with wildcards on, stands for any run of items."""
    rest = [i for i, p in enumerate(patterns) if bound is not None and _is_rest(p)]
    if not rest:
        return len(patterns) == len(nodes) and all(
            _match(p, n, bound) for p, n in zip(patterns, nodes, strict=True)
        )
    first, after = rest[0], len(patterns) - rest[0] - 1
    if len(nodes) < first + after:
        return False
    ends = nodes[len(nodes) - after :] if after else ()
    return _match_all(patterns[:first], nodes[:first], bound) and _match_all(
        patterns[first + 1 :], ends, bound
    )


def _is_rest(node: cst.CSTNode) -> bool:
    return isinstance(node, (cst.Arg, cst.Element)) and isinstance(node.value, cst.Ellipsis)


def _is_header(pattern: cst.CSTNode) -> bool:
    body = getattr(pattern, "body", None)
    return (
        type(pattern) in _HEADERS
        and isinstance(body, cst.SimpleStatementSuite)
        and len(body.body) == 1
        and isinstance(body.body[0], cst.Expr)
        and isinstance(body.body[0].value, cst.Ellipsis)
    )
