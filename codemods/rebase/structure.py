"""Three-way merge of Python by structure: blocks by statement, statements by node.

Both sides and the base are parsed with LibCST. A statement that only one side changed is taken from that side,
wherever it stands; one that both changed is merged node by node where the edits touch different nodes, and is a
conflict of just that statement where they touch the same.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from difflib import SequenceMatcher
from functools import lru_cache

import libcst as cst

from codemods.engine.tree import Tree, UnparsableError
from codemods.rebase import sequence
from codemods.rebase.certain import FORMATTING, TWIN, Resolution, resolve
from codemods.rebase.lines import Conflict, Part, joined, merge_lines
from codemods.rebase.sequence import Added, Both, Item, Twin
from codemods.rebase.tokens import code, comments, sums_up, with_comments

_LIKE = 0.6


@dataclass(slots=True)
class Statement:
    """A statement with the comments and empty lines before it.

    Attributes:
        text: its lines.
        node: its LibCST node; None for what follows the last statement of a file.
        sections: of a compound statement, each header with its block; empty for others.
    """

    text: str
    node: cst.CSTNode | None
    sections: list[tuple[str, list[Item[Statement]]]]


class CannotMergeError(Exception):
    """Both sides changed the same node."""


@lru_cache(maxsize=16)
def read(text: str) -> list[Item[Statement]]:
    """The statements of a file; callers do not change them.

    Raises:
        UnparsableError: it is no Python.
    """
    tree = Tree(text)
    items, end = _block(tree, tree.module.body, 0)
    if end < len(text):
        tail = text[end:]
        items.append(Item(Statement(tail, None, []), with_comments(tail), "(end of file)"))
    return items


def merge_python(base: str, ours: str, theirs: str) -> tuple[list[Part], list[Resolution]] | None:
    """Merge three texts of a Python file by structure.

    Returns:
        Merged text and conflicts, and what was resolved; None where one of them cannot be parsed.
    """
    try:
        b, o, t = (read(x) for x in (base, ours, theirs))
    except UnparsableError:
        return None
    found: list[Resolution] = []
    return joined(_merge_block(b, o, t, found)), found


def definitions(text: str) -> dict[str, Statement]:
    """The top-level definitions of a file by name: functions, classes, single assignments.

    Raises:
        UnparsableError: it is no Python.
    """
    return {i.key: i.value for i in read(text) if i.key and i.value.node is not None}


def _block(
    tree: Tree, body: Sequence[cst.CSTNode], start: int
) -> tuple[list[Item[Statement]], int]:
    items: list[Item[Statement]] = []
    for node in body:
        end = _line_end(tree.text, tree.span(node)[1])
        items.append(_item(tree, node, start, end))
        start = end
    return items, start


def _line_end(text: str, offset: int) -> int:
    if offset and text[offset - 1] == "\n":
        return offset
    end = text.find("\n", offset)
    return len(text) if end < 0 else end + 1


def _item(tree: Tree, node: cst.CSTNode, start: int, end: int) -> Item[Statement]:
    text = tree.text[start:end]
    statement = Statement(text, node, _sections(tree, node, start, end))
    key, free = _key(node)
    return Item(statement, with_comments(text), key, free, code(text))


def _sections(
    tree: Tree, node: cst.CSTNode, start: int, end: int
) -> list[tuple[str, list[Item[Statement]]]]:
    """The headers and blocks of a compound statement; none if a block is on its header's line."""
    found: list[tuple[str, list[Item[Statement]]]] = []
    at = start
    for clause in _clauses(node):
        inner = _inner(clause)
        if not inner:
            return []
        first = tree.span(inner[0])[0]
        if isinstance(inner[0], cst.FunctionDef | cst.ClassDef) and inner[0].decorators:
            first = min(first, tree.span(inner[0].decorators[0])[0])
        head_end = tree.text.rfind("\n", 0, first) + 1
        while head_end > at:  # comments and empty lines above the first statement belong to it
            before = tree.text.rfind("\n", 0, head_end - 1) + 1
            line = tree.text[before:head_end].strip()
            if line and not line.startswith("#"):
                break
            head_end = before
        if head_end <= at:
            return []
        items, body_end = _block(tree, inner, head_end)
        found.append((tree.text[at:head_end], items))
        at = body_end
    return found if at == end else []


def _inner(clause: cst.CSTNode) -> Sequence[cst.CSTNode]:
    """The statements of a clause's block, or the cases of a `match`; none where it has no block of its own."""
    if isinstance(clause, cst.Match):
        return clause.cases
    body = getattr(clause, "body", None)
    return body.body if isinstance(body, cst.IndentedBlock) else ()


def _clauses(node: cst.CSTNode) -> list[cst.CSTNode]:
    if isinstance(node, cst.FunctionDef | cst.ClassDef | cst.With | cst.Match | cst.MatchCase):
        return [node]
    found: list[cst.CSTNode] = []
    if isinstance(node, cst.If | cst.For | cst.While):
        clause: cst.CSTNode | None = node
        while clause is not None:
            found.append(clause)
            clause = getattr(clause, "orelse", None)
    elif isinstance(node, cst.Try):
        found = [node, *node.handlers]
        found += [c for c in (node.orelse, node.finalbody) if c is not None]
    return found


def _key(node: cst.CSTNode) -> tuple[str, bool]:
    """The name that finds a statement again, and whether its place among its neighbours is free."""
    if isinstance(node, cst.FunctionDef):
        return f"def {node.name.value}", not node.decorators or all(
            _plain(d.decorator) for d in node.decorators
        )
    if isinstance(node, cst.ClassDef):
        return f"class {node.name.value}", True
    if isinstance(node, cst.MatchCase):
        guard = "" if node.guard is None else f" if {_code(node.guard)}"
        constant = isinstance(node.pattern, cst.MatchValue | cst.MatchSingleton)
        return f"case {_code(node.pattern)}{guard}", constant and not guard
    if not isinstance(node, cst.SimpleStatementLine) or len(node.body) != 1:
        return "", False
    small = node.body[0]
    if isinstance(small, cst.Import | cst.ImportFrom):
        names = small.names
        if isinstance(names, cst.ImportStar):
            return "", False
        origin = ""
        if isinstance(small, cst.ImportFrom):
            origin = "." * len(small.relative) + _code(small.module)
        if isinstance(small, cst.ImportFrom) and len(names) > 1:
            return f"from {origin}", True
        return f"import {origin} {', '.join(sorted(_code(n) for n in names)).rstrip(',')}", True
    if isinstance(small, cst.Assign) and len(small.targets) == 1:
        target = small.targets[0].target
        if isinstance(target, cst.Name):
            # `A = 1`: an enum's member, a constant.
            literal = isinstance(small.value, cst.BaseNumber | cst.SimpleString)
            return f"= {target.value}", literal
        return f"= {_code(target)}", False
    if isinstance(small, cst.AnnAssign):
        # A field: its name is what counts. Only plain names are free of their place.
        return f": {_code(small.target)}", isinstance(small.target, cst.Name)
    return "", False


def _plain(decorator: cst.BaseExpression) -> bool:
    """A decorator that does not put a function in the place of another (as `@f.setter` or `@overload`)."""
    return not isinstance(decorator, cst.Attribute) or decorator.attr.value not in (
        "setter",
        "deleter",
        "getter",
        "register",
    )


_MODULE = cst.Module([])


def _code(node: cst.CSTNode | None) -> str:
    if isinstance(node, cst.Annotation):  # LibCST writes the sign before it with its parent only
        node = node.annotation
    return "" if node is None else code(_MODULE.code_for_node(node))


def _similar(old: Item[Statement], new: Item[Statement]) -> bool:
    a, b = old.value, new.value
    if a.node is None or type(a.node) is not type(b.node):
        return False
    if old.key and new.key and old.key != new.key:
        return _origin(a.node) == _origin(b.node) != "" and bool(_bound([old]) & _bound([new]))
    if isinstance(a.node, cst.SimpleStatementLine) and isinstance(b.node, cst.SimpleStatementLine):
        if type(a.node.body[0]) is not type(b.node.body[0]):
            return False
    elif a.sections and b.sections and code(a.sections[0][0]) == code(b.sections[0][0]):
        return True
    matcher = SequenceMatcher(None, old.same.split(), new.same.split(), autojunk=False)
    return matcher.quick_ratio() >= _LIKE and matcher.ratio() >= _LIKE


def _merge_block(
    base: list[Item[Statement]],
    ours: list[Item[Statement]],
    theirs: list[Item[Statement]],
    found: list[Resolution],
    *,
    distinct: bool = False,
) -> list[Part]:
    """Merge a block; of one that is `distinct`, an enumeration's, no two members may have one value."""
    parts: list[Part] = []
    for step in sequence.merge(base, ours, theirs, _similar):
        if isinstance(step, Item):
            parts.append(step.value.text)
        elif isinstance(step, Both):
            parts += merge_statement(step.base.value, step.ours.value, step.theirs.value, found)
        elif isinstance(step, Added):
            texts = _text(step.ours), _text(step.theirs)
            found += [r for twin in step.twins if (r := _twin(twin)) is not None]
            # One name from two places, or two members of an enumeration that would be one.
            if _bound(step.ours) & _bound(step.theirs) or (
                distinct and _values(step.ours) & _values(step.theirs)
            ):
                parts.append(Conflict("", *texts))
                continue
            found.append(
                Resolution(
                    "both added",
                    "both sides added definitions of different names in one place, where order does not matter",
                    "",
                    *texts,
                    "".join(texts),
                )
            )
            parts += texts
        elif isinstance(step, Twin):
            resolved = _twin(step)
            found += [resolved] if resolved is not None else []
            parts.append(step.ours.value.text)
        elif not step.ours and [i.same for i in step.base] == [i.same for i in step.theirs]:
            text = _text(step.theirs)
            reason = "upstream removed it, and the fork put it elsewhere, unchanged: it stays"
            found.append(Resolution("kept", reason, "", "", text, text))
            parts.append(text)
        else:
            texts3 = _text(step.base), _text(step.ours), _text(step.theirs)
            parts += _certain(*texts3, found)
    return parts


def _enumeration(node: cst.CSTNode | None) -> bool:
    """Whether a class is an enumeration, by the names of what it derives from."""
    return isinstance(node, cst.ClassDef) and any(
        _code(base.value).endswith(("Enum", "Flag")) for base in node.bases
    )


def _values(items: list[Item[Statement]]) -> set[str]:
    """What single names are set to."""
    found: set[str] = set()
    for item in items:
        line = item.value.node
        for node in line.body if isinstance(line, cst.SimpleStatementLine) else ():
            if isinstance(node, cst.Assign):
                found.add(_code(node.value))
    return found


def _twin(twin: Twin[Statement]) -> Resolution | None:
    """What to say of a statement that both sides added; None if they have the same text."""
    ours, theirs = twin.ours.value.text, twin.theirs.value.text
    if ours == theirs:
        return None
    if twin.ours.same == twin.theirs.same:
        return Resolution("same change", FORMATTING, "", ours, theirs, ours)
    return Resolution("comments", TWIN, "", ours, theirs, ours)


def _origin(node: cst.CSTNode) -> str:
    """The module that a `from … import` line names; "" for anything else."""
    small = node.body[0] if isinstance(node, cst.SimpleStatementLine) else None
    if not isinstance(small, cst.ImportFrom) or isinstance(small.names, cst.ImportStar):
        return ""
    return "." * len(small.relative) + _code(small.module)


def _bound(items: list[Item[Statement]]) -> set[str]:
    """Names that import statements bind."""
    found: set[str] = set()
    for item in items:
        line = item.value.node
        for node in line.body if isinstance(line, cst.SimpleStatementLine) else ():
            if isinstance(node, cst.Import | cst.ImportFrom) and not isinstance(
                node.names, cst.ImportStar
            ):
                for alias in node.names:
                    name = alias.evaluated_alias or alias.evaluated_name
                    plain = isinstance(node, cst.Import) and alias.asname is None
                    found.add(f"import {name}" if plain and "." in name else name)
    return found


def _text(items: list[Item[Statement]]) -> str:
    return "".join(i.value.text for i in items)


def _certain(base: str, ours: str, theirs: str, found: list[Resolution]) -> list[Part]:
    resolved = resolve(Conflict(base, ours, theirs), python=True)
    if resolved is None:
        return [Conflict(base, ours, theirs)]
    found.append(resolved)
    return [resolved.result]


def merge_statement(
    base: Statement, ours: Statement, theirs: Statement, found: list[Resolution]
) -> list[Part]:
    if theirs.text == base.text or ours.text == theirs.text:
        return [ours.text]
    if ours.text == base.text:
        return [theirs.text]
    kinds = [len(s.sections) for s in (base, ours, theirs)]
    if kinds[0] and kinds.count(kinds[0]) == 3 and _same_clauses(base, ours, theirs):
        parts: list[Part] = []
        for b, o, t in zip(base.sections, ours.sections, theirs.sections, strict=True):
            parts += _merge_leaf(b[0], o[0], t[0], found, header=True)
            parts += _merge_block(b[1], o[1], t[1], found, distinct=_enumeration(ours.node))
        return parts
    return _merge_leaf(base.text, ours.text, theirs.text, found, header=False)


def _same_clauses(*statements: Statement) -> bool:
    shapes = {
        (type(s.node), tuple(h.strip().split(maxsplit=1)[0].rstrip(":") for h, _ in s.sections))
        for s in statements
        if s.node is not None
    }
    names = {
        s.node.name.value for s in statements if isinstance(s.node, cst.FunctionDef | cst.ClassDef)
    }
    decorated = any(h.lstrip().startswith(("@", "#")) for s in statements for h, _ in s.sections)
    return len(names) <= 1 and (
        len(shapes) == 1 or (decorated and len({k for k, _ in shapes}) == 1)
    )


def _merge_leaf(
    base: str, ours: str, theirs: str, found: list[Resolution], *, header: bool
) -> list[Part]:
    """Merge a simple statement, or a header, with the comments before it."""
    if ours == theirs or theirs == base:
        return [ours]
    if ours == base:
        return [theirs]
    lines = merge_lines(base, ours, theirs)
    if all(isinstance(p, str) for p in lines) and _apart(base, ours, theirs):
        return lines
    resolved = resolve(Conflict(base, ours, theirs), python=True)
    if resolved is None:
        merged = merge_expression(base, ours, theirs, header=header)
        if merged is not None:
            resolved = Resolution(
                "different nodes",
                "both sides changed the statement, in different nodes of it",
                base,
                ours,
                theirs,
                merged,
            )
    if resolved is not None:
        found.append(resolved)
        return [resolved.result]
    if all(isinstance(p, str) for p in lines):
        return lines
    return [Conflict(base, ours, theirs)]


def _apart(base: str, ours: str, theirs: str) -> bool:
    """Whether one side changed comments alone and the other code alone, so that lines tell them apart."""
    return (code(ours) == code(base)) != (code(theirs) == code(base))


# Statements by node ----------------------------------------------------------------------------------


def merge_expression(base: str, ours: str, theirs: str, *, header: bool = False) -> str | None:
    """Merge three versions of one statement by node, in the formatting of `ours`; None if edits meet.

    Comments before the statement and in it must be the same in two of the three versions.
    """
    notes = [comments(x) for x in (base, ours, theirs)]
    if notes[2] != notes[0] and notes[1] != notes[0]:
        return None
    if notes[2] != notes[0]:
        return None  # the fork's comments would be lost
    try:
        modules = [_statement(x, header) for x in (base, ours, theirs)]
        merged = _merge_node(*(m.body[0] for m in modules))
    except (CannotMergeError, cst.ParserSyntaxError, UnparsableError):
        return None
    assert merged is not None
    indent = re.match(r"[ \t]*", _first_code_line(ours))
    assert indent is not None
    lead = ours[: len(ours) - len(_from_first_code_line(ours))]
    text = modules[1].code_for_node(_strip_lead(merged)).rstrip("\n")
    if header:
        text = _without_pass(text)
    result = lead + indent[0] + text + "\n"
    try:
        cst.parse_module(_dedented(result, header))
    except (cst.ParserSyntaxError, UnparsableError):
        return None
    return result if sums_up(base, ours, theirs, result) else None


def _first_code_line(text: str) -> str:
    return _from_first_code_line(text).partition("\n")[0]


def _from_first_code_line(text: str) -> str:
    at = 0
    for line in text.splitlines(keepends=True):
        if line.strip() and not line.lstrip().startswith("#"):
            return text[at:]
        at += len(line)
    return text


def _dedented(text: str, header: bool) -> str:
    """A statement at the left margin, a header with a block; inner lines keep their indentation."""
    body = _from_first_code_line(text).lstrip(" \t")
    if not header:
        return body if body.endswith("\n") else body + "\n"
    line = body.rstrip("\n")
    word = re.match(r"\w+", line)
    lead = {"elif": "if x:\n  pass\n", "else": "if x:\n  pass\n", "except": "try:\n  pass\n"}
    before = lead.get(word[0] if word else "", "")
    if word and word[0] == "finally":
        before = "try:\n  pass\n"
    lines = line.splitlines()
    first = re.sub(r"^[ \t]*", "", lines[0])
    if first.startswith("@"):
        width = min(len(x) - len(x.lstrip()) for x in lines[1:] if x.strip()) if lines[1:] else 0
        line = "\n".join([first, *(x[width:] for x in lines[1:])])
    return f"{before}{line}\n  pass\n"


def _statement(text: str, header: bool) -> cst.Module:
    """A module of one statement."""
    module = cst.parse_module(_dedented(text, header))
    if len(module.body) != 1:
        raise CannotMergeError
    return module


def _without_pass(text: str) -> str:
    lines = text.split("\n")
    return "\n".join(lines[:-1]) if lines[-1].strip() == "pass" else text


def _strip_lead(node: cst.CSTNode) -> cst.CSTNode:
    if hasattr(node, "leading_lines"):
        return node.with_changes(leading_lines=())
    return node


def _merge_node(
    base: cst.CSTNode | None, ours: cst.CSTNode | None, theirs: cst.CSTNode | None
) -> cst.CSTNode | None:
    """Merge one node; a node that only one side changed is that side's.

    Raises:
        CannotMergeError: both sides changed it, and not in different nodes below.
    """
    b, o, t = (_code(n) for n in (base, ours, theirs))
    if t == b or o == t:
        return ours
    if o == b:
        return theirs
    if base is None or ours is None or theirs is None:
        raise CannotMergeError
    if not type(base) is type(ours) is type(theirs):
        raise CannotMergeError
    changes: dict[str, object] = {}
    for field in fields(ours):
        name = field.name
        values = [getattr(n, name) for n in (base, ours, theirs)]
        if name.startswith("whitespace") or name in (
            "comma",
            "equal",
            "leading_lines",
            "lpar",
            "rpar",
        ):
            continue
        if all(isinstance(v, tuple | list) for v in values):
            if any(isinstance(x, cst.CSTNode) for v in values for x in v):
                changes[name] = _merge_items(ours, *values)
        elif all(v is None or isinstance(v, cst.CSTNode) for v in values):
            changes[name] = _merge_node(*values)
        elif any(isinstance(v, cst.CSTNode) for v in values):
            shown = [_code(v) if isinstance(v, cst.CSTNode) else str(v) for v in values]
            if shown[2] not in (shown[0], shown[1]):
                if shown[1] != shown[0]:
                    raise CannotMergeError
                changes[name] = values[2]
        elif isinstance(values[1], str) and values[2] != values[0]:
            if values[1] != values[0] and values[1] != values[2]:
                raise CannotMergeError
            changes[name] = values[2]
    name = {cst.Param: "default", cst.AnnAssign: "value"}.get(type(ours), "")
    if changes.get(name) is not None:  # the `=` comes and goes with what is behind it
        changes["equal"] = _equal(ours if getattr(ours, name) is not None else theirs)
    elif name in changes:
        changes["equal"] = cst.MaybeSentinel.DEFAULT
    merged = ours.with_changes(**changes)
    if _code(merged) == o:
        raise CannotMergeError  # what the fork changed is none of the fields above
    return merged


def _equal(node: cst.CSTNode) -> object:
    """The sign between a parameter or an annotated name and what is behind it."""
    assert isinstance(node, cst.Param | cst.AnnAssign)
    return node.equal


def _merge_items(
    parent: cst.CSTNode,
    base: Sequence[cst.CSTNode],
    ours: Sequence[cst.CSTNode],
    theirs: Sequence[cst.CSTNode],
) -> tuple[cst.CSTNode, ...]:
    free = isinstance(parent, cst.List | cst.Set)
    b, o, t = ([_element(n, free) for n in v] for v in (base, ours, theirs))
    merged: list[cst.CSTNode] = []

    def put(nodes: Sequence[cst.CSTNode], foreign: bool) -> None:
        for node in nodes:
            merged.append(_with_separator(node, ours) if foreign else node)

    known = {id(n) for n in ours}
    for step in sequence.merge(b, o, t, _same_kind):
        if isinstance(step, Item):
            put([step.value], id(step.value) not in known)
        elif isinstance(step, Both):
            node = _merge_node(step.base.value, step.ours.value, step.theirs.value)
            assert node is not None
            if hasattr(node, "comma"):
                node = node.with_changes(comma=_comma(step.ours.value))
            put([node], False)
        elif isinstance(step, Added):
            put([i.value for i in step.ours], False)
            put([i.value for i in step.theirs], True)
        elif isinstance(step, Twin):
            put([step.ours.value], False)
        else:
            raise CannotMergeError
    for k, node in enumerate(merged[:-1]):
        if getattr(node, "comma", None) is cst.MaybeSentinel.DEFAULT:
            merged[k] = node.with_changes(comma=_separator(ours))
    if merged and not ours and hasattr(merged[-1], "comma"):
        merged[-1] = merged[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
    if merged and ours and hasattr(merged[-1], "comma"):
        merged[-1] = merged[-1].with_changes(comma=_comma(ours[-1]))
        before = [k for k, n in enumerate(merged[:-1]) if n is ours[-1]]
        for k in before:
            merged[k] = merged[k].with_changes(comma=_separator(ours))
    return tuple(merged)


def _separator(items: Sequence[cst.CSTNode]) -> object:
    """A comma as it stands between the items."""
    for item in items[:-1]:
        comma = getattr(item, "comma", None)
        if isinstance(comma, cst.Comma):
            return comma
    return cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))


def _comma(node: cst.CSTNode) -> object:
    return getattr(node, "comma", cst.MaybeSentinel.DEFAULT)


def _with_separator(node: cst.CSTNode, items: Sequence[cst.CSTNode]) -> cst.CSTNode:
    return node.with_changes(comma=_separator(items)) if hasattr(node, "comma") else node


def _same_kind(old: Item[cst.CSTNode], new: Item[cst.CSTNode]) -> bool:
    return type(old.value) is type(new.value) and not old.key and not new.key


def _element(node: cst.CSTNode, free: bool) -> Item[cst.CSTNode]:
    same = (
        _code(node.with_changes(comma=cst.MaybeSentinel.DEFAULT))
        if hasattr(node, "comma")
        else _code(node)
    )
    if isinstance(node, cst.Arg):
        if node.keyword is not None:
            return Item(node, same, f"{node.keyword.value}=", True)
        return Item(node, same)
    if isinstance(node, cst.Param):
        return Item(node, same, node.name.value, False)
    if isinstance(node, cst.DictElement):
        return Item(node, same, _code(node.key), True)
    if isinstance(node, cst.ImportAlias):
        return Item(node, same, same, True)
    if isinstance(node, cst.Element):
        return Item(node, same, same if free else "", free)
    return Item(node, same)
