"""Conflicts in import blocks: the imports follow from what the rest of the merged file uses."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from codemods.rebase.certain import Resolution
from codemods.rebase.lines import Conflict, Part, joined
from codemods.rebase.tokens import comments


@dataclass(frozen=True, slots=True)
class Binding:
    """One name that an import binds.

    Attributes:
        name: the name; "a.b" of `import a.b`, which binds `a` but is of use for `a.b`.
        statement: an import statement for it alone.
    """

    name: str
    statement: str


def bindings(text: str) -> dict[str, Binding] | None:
    """What a piece of nothing but imports at the left margin binds; None if there is anything else in it."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return None
    found: dict[str, Binding] = {}
    for node in tree.body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                tail = f" as {alias.asname}" if alias.asname else ""
                name = alias.asname or alias.name
                found[name] = Binding(name, f"import {alias.name}{tail}\n")
        elif isinstance(node, ast.ImportFrom):
            origin = "." * node.level + (node.module or "")
            for alias in node.names:
                if alias.name == "*":
                    return None
                tail = f" as {alias.asname}" if alias.asname else ""
                name = alias.asname or alias.name
                found[name] = Binding(name, f"from {origin} import {alias.name}{tail}\n")
        else:
            return None
    return found


def used(text: str) -> set[str] | None:
    """Names and dotted names that a file uses outside of import statements; None if it cannot be parsed."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return None
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            dotted = _dotted(node)
            if dotted:
                found.add(dotted)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)  # in `__all__`, or an annotation in quotes
    return found


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        left = _dotted(node.value)
        return f"{left}.{node.attr}" if left else ""
    return ""


def settle_imports(parts: list[Part]) -> tuple[list[Part], list[Resolution]]:
    """Resolve the conflicts that hold nothing but imports, once everything else is merged.

    Upstream's imports stay. A name that the fork imports anew is imported if the merged file uses it and nothing else
    binds it; one that it imports from another place than upstream does stays a conflict.
    """
    open_ = [p for p in parts if isinstance(p, Conflict)]
    sides = {id(c): tuple(bindings(x) for x in (c.base, c.ours, c.theirs)) for c in open_}
    if not open_ or any(side is None for found in sides.values() for side in found):
        return parts, []
    if not all(
        any(found) and _same_comments(c) for c, found in zip(open_, sides.values(), strict=True)
    ):
        return parts, []
    text = "".join(p.ours if isinstance(p, Conflict) else p for p in parts)
    uses = used(text)
    everything = _bound(text)
    if uses is None:
        return parts, []
    out: list[Part] = []
    found: list[Resolution] = []
    for part in parts:
        if isinstance(part, str):
            out.append(part)
            continue
        base, ours, theirs = (side or {} for side in sides[id(part)])
        result = part.ours
        fits = True
        for name, binding in theirs.items():
            known = base.get(name)
            if known is not None and known.statement == binding.statement:
                continue
            mine = ours.get(name)
            if mine is not None:
                fits &= mine.statement == binding.statement
            elif name in uses or any(u.startswith(f"{name}.") for u in uses):
                fits &= name.split(".")[0] not in everything or "." in name
                result += binding.statement
        if not fits:
            out.append(part)
            continue
        reason = "imports follow from use: upstream's, and what the merged file uses of the fork's"
        found.append(Resolution("imports", reason, part.base, part.ours, part.theirs, result))
        out.append(result)
    return joined(out), found


def _same_comments(conflict: Conflict) -> bool:
    """Whether the fork's imports have no comment of their own, which would be lost."""
    known = set(comments(conflict.base)) | set(comments(conflict.ours))
    return set(comments(conflict.theirs)) <= known


def _bound(text: str) -> set[str]:
    """Names that a file binds at its top level."""
    found: set[str] = set()
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(a.asname or a.name).split(".")[0] for a in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.If | ast.Try | ast.With | ast.For):
            found |= {
                n.id
                for n in ast.walk(node)
                if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
            }
    return found
