"""Edits of a file that is known by its names and shapes: find an anchor, insert or replace beside it.

Every edit is a span of the file's own text (see `edits`), so nothing else changes. Every edit is made at
most once: what is there already is not inserted again. Where an anchor is gone, `AnchorError` says which.

Sources to insert are written with two spaces per level, from column 0; they are indented to their place.
Wildcards of a pattern (see `patterns`) can be used in what replaces it.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from functools import cached_property

import libcst as cst

from codemods.engine.edits import Edit
from codemods.engine.patterns import Bound, match, parse_pattern, same
from codemods.engine.tree import Span, Tree, children

# MaxText's own.
LINE_LENGTH = 125
_WILDCARD = re.compile(r"__\w+")
# What names an element within its text.
_NAMED = {
    cst.Call: re.compile(r"(\w+)\s*=(?!=)"),
    cst.ClassDef: re.compile(r"(\w+)\s*=(?!=)"),
    cst.FunctionDef: re.compile(r"\**(\w+)"),
    cst.Dict: re.compile(r"([^:]+):"),
}


class AnchorError(Exception):
    """What an edit is anchored on is not in the file, or not once; the message says what was looked for."""


class AnchoredFile:
    """A Python file under edits.

    Attributes:
        path: where it is in its tree.
        text: its text.
        edits: what has been found to change so far.
        rule: the rule that edits are noted under.
    """

    def __init__(self, path: str, text: str) -> None:
        """Parse.

        Raises:
            UnparsableError: see `Tree`.
        """
        self.path = path
        self.text = text
        self.tree = Tree(text)
        self.edits: list[Edit] = []
        self.rule = ""
        self._newline = "\r\n" if "\r\n" in text else "\n"

    @cached_property
    def module(self) -> Block:
        """The whole file."""
        return Block(self, self.tree.module, "the module")

    def edit(self, span: Span, new: str) -> None:
        """Make the text of `span` into `new`."""
        self.edits.append(Edit(*span, new.replace("\n", self._newline), self.rule))

    def ordered(self) -> list[Edit]:
        """The edits; of lines that are inserted at one place, those of the innermost block go first."""
        return sorted(self.edits, key=lambda e: (e.start, -self._depth(e)))

    def _depth(self, edit: Edit) -> int:
        if edit.end > edit.start or self.line_start(edit.start) != edit.start:
            return 0
        text = edit.new.lstrip("\r\n")
        return len(text) - len(text.lstrip(" "))

    def line_start(self, offset: int) -> int:
        """Where the line starts that an offset is in."""
        return self.text.rfind("\n", 0, offset) + 1

    def line_end(self, offset: int) -> int:
        """Where the line ends that an offset is in, with its line end."""
        return self.text.find("\n", offset) + 1 or len(self.text)

    def indent(self, offset: int) -> str:
        """The blanks that the line of an offset begins with."""
        start = self.line_start(offset)
        return self.text[start : len(self.text) - len(self.text[start:].lstrip(" \t"))]

    def add_import(self, statement: str) -> None:
        """Import at the top of the module: into the `from` import that is there, if its line is not full; else by itself.

        Args:
            statement: `import a.b` or `from a.b import c`, with one name.
        """
        wanted = parse_pattern(statement)
        imports = [
            line
            for line in self.tree.module.body
            if isinstance(line, cst.SimpleStatementLine)
            and isinstance(line.body[0], (cst.Import, cst.ImportFrom))
        ]
        if any(same(wanted, line.body[0]) for line in imports):
            return
        if isinstance(wanted, cst.ImportFrom):
            assert wanted.module is not None
            assert not isinstance(wanted.names, cst.ImportStar)
            name = cst.Module([]).code_for_node(wanted.names[0])
            alike = [
                (line, held, held.names)
                for line in imports
                if isinstance(held := line.body[0], cst.ImportFrom)
                and held.module is not None
                and same(wanted.module, held.module)
                and not held.relative
                and not isinstance(held.names, cst.ImportStar)
            ]
            if any(same(wanted.names[0], found) for _, _, names in alike for found in names):
                return
            for line, held, names in alike:
                if held.lpar or len(self._line(line)) + len(f", {name}") <= LINE_LENGTH:
                    Collection(self, held, names, f"imports of `{statement}`").add(name, sort=True)
                    return
        if not imports:
            raise AnchorError("no import at the top of the module")
        at = self._import_place(statement, imports)
        self.edit((at, at), f"{statement}\n")

    def _line(self, line: cst.SimpleStatementLine) -> str:
        start, _ = self.tree.span(line)
        return self.text[self.line_start(start) : self.line_end(start)].rstrip()

    def _import_place(self, statement: str, imports: list[cst.SimpleStatementLine]) -> int:
        """Where a new import line goes: in order among those of its package, else after all others."""
        root = statement.split()[1].split(".")[0]
        alike = [line for line in imports if self._root(line) == root]
        for line in alike:
            if self.tree.source(line) > statement:
                return self.line_start(self.tree.span(line)[0])
        return self.line_end(self.tree.span((alike or imports)[-1])[1])

    def _root(self, line: cst.SimpleStatementLine) -> str:
        words = self.tree.source(line).replace(".", " ").split()
        return words[1] if len(words) > 1 else ""


class Part:
    """A piece of the file.

    Attributes:
        file: the file.
        node: its node.
        label: what messages call it.
        bound: what the wildcards of the pattern stand for that found it.
    """

    def __init__(
        self, file: AnchoredFile, node: cst.CSTNode, label: str, bound: Bound | None = None
    ) -> None:
        self.file = file
        self.node = node
        self.label = label
        self.bound = bound or {}

    @property
    def span(self) -> Span:
        """Where it lies in the file's text."""
        return self.file.tree.span(self.node)

    @property
    def source(self) -> str:
        """Its text."""
        return self.file.tree.source(self.node)

    def filled(self, template: str) -> str:
        """A template with the source of what its wildcards stand for."""
        return _WILDCARD.sub(lambda m: self._bound_source(m[0]), template)

    def _bound_source(self, wildcard: str) -> str:
        node = self.bound.get(wildcard)
        if node is None:
            return wildcard
        source = self.file.tree.source(node)
        return f"({source})" if getattr(node, "lpar", ()) else source

    def collection_of(self, wildcard: str) -> Collection:
        """The collection that a wildcard stands for.

        Raises:
            AnchorError: it stands for something else.
        """
        node = self.bound[wildcard]
        items = _items(node)
        if items is None:
            raise AnchorError(
                f"`{_line(self.file.tree.source(node))}` in {self.label} is no list, set or tuple"
            )
        return Collection(self.file, node, items, f"collection in {self.label}")


class Block(Part):
    """A module, class, function or branch: something with statements in it."""

    def klass(self, name: str) -> Block:
        """A class in this block's own statements.

        Raises:
            AnchorError: there is none of that name.
        """
        return self._definition(cst.ClassDef, name, f"class `{name}`")

    def function(self, name: str) -> Block:
        """A function, or a method of this class, in this block's own statements.

        Raises:
            AnchorError: there is none of that name.
        """
        return self._definition(cst.FunctionDef, name, f"function `{name}`")

    def _definition(self, kind: type[cst.CSTNode], name: str, what: str) -> Block:
        for statement in self.statements:
            if isinstance(statement, kind) and statement.name.value == name:  # type: ignore[attr-defined]
                inside = isinstance(self.node, cst.Module)
                return Block(
                    self.file, statement, f"`{name}`" if inside else f"{self.label}.`{name}`"
                )
        raise AnchorError(f"no {what} in {self.label}")

    @property
    def statements(self) -> Sequence[cst.BaseStatement]:
        """The block's own statements."""
        body = self.node if isinstance(self.node, cst.Module) else getattr(self.node, "body", None)
        held = getattr(body, "body", ())
        return tuple(s for s in held if isinstance(s, cst.BaseStatement))

    @property
    def parameters(self) -> Collection:
        """The parameters of this function."""
        assert isinstance(self.node, cst.FunctionDef)
        held = self.node.params
        found: list[cst.CSTNode] = [*held.posonly_params, *held.params]
        if isinstance(held.star_arg, (cst.Param, cst.ParamStar)):
            found.append(held.star_arg)
        found += held.kwonly_params
        if held.star_kwarg is not None:
            found.append(held.star_kwarg)
        return Collection(self.file, self.node, found, f"parameters of {self.label}")

    @property
    def bases(self) -> Collection:
        """The bases of this class."""
        assert isinstance(self.node, cst.ClassDef)
        return Collection(self.file, self.node, self.node.bases, f"bases of {self.label}")

    def statement(self, pattern: str) -> Statement:
        """The one statement here, at any depth, that matches.

        Raises:
            AnchorError: there is none, or several.
        """
        return self._one(self._statements(pattern), f"statement `{_line(pattern)}`")

    def last_statement(self, pattern: str) -> Statement:
        """The last statement here, at any depth, that matches.

        Raises:
            AnchorError: there is none.
        """
        found = list(self._statements(pattern))
        if not found:
            raise AnchorError(f"no statement `{_line(pattern)}` in {self.label}")
        return found[-1]

    def _statements(self, pattern: str) -> Iterator[Statement]:
        wanted = parse_pattern(pattern)
        for node in self.file.tree.walk(self.node):
            if isinstance(node, cst.SimpleStatementLine) and len(node.body) == 1:
                small = node.body[0]
                bound = match(wanted, small)
                if bound is None and isinstance(small, cst.Expr):
                    bound = match(wanted, small.value)
            elif isinstance(node, cst.BaseCompoundStatement):
                if isinstance(self.file.tree.parent(node), cst.If):
                    continue  # an `elif`
                bound = match(wanted, node)
            else:
                continue
            if bound is not None:
                yield Statement(self.file, node, self.label, bound)

    def has(self, statement: str) -> bool:
        """Whether a statement that matches is here, at any depth."""
        return next(self._statements(statement), None) is not None

    def assignment(self, name: str) -> Collection:
        """The collection that a name is assigned once here: `name = {…}`, `name = Literal[…]`.

        Raises:
            AnchorError: there is no such assignment, or it is of something else.
        """
        return self.statement(f"{name} = __value").collection_of("__value")

    def branch(self, test: str) -> Branch:
        """The one `if` or `elif` here, at any depth, with this test.

        Raises:
            AnchorError: there is none, or several.
        """
        wanted = parse_pattern(test)
        found = (
            Branch(self.file, node, self.label, bound)
            for node in self.file.tree.walk(self.node)
            if isinstance(node, cst.If) and (bound := match(wanted, node.test)) is not None
        )
        return self._one(found, f"`if {_line(test)}`")

    def case(self, pattern: str) -> Case:
        """The one `case` here, at any depth, of a value.

        Raises:
            AnchorError: there is none, or several.
        """
        wanted = parse_pattern(pattern)
        found = (
            Case(self.file, node, self.label)
            for node in self.file.tree.walk(self.node)
            if isinstance(node, cst.MatchCase)
            and isinstance(node.pattern, cst.MatchValue)
            and same(wanted, node.pattern.value)
        )
        return self._one(found, f"`case {_line(pattern)}`")

    def expression(self, pattern: str) -> Expression:
        """The one expression here that matches.

        Raises:
            AnchorError: there is none, or several.
        """
        return self._one(self._expressions(pattern), f"`{_line(pattern)}`")

    def _expressions(self, pattern: str) -> Iterator[Expression]:
        wanted = parse_pattern(pattern)
        for node in self.file.tree.walk(self.node):
            if isinstance(node, cst.BaseExpression):
                bound = match(wanted, node)
                if bound is not None:
                    yield Expression(self.file, node, self.label, bound)

    def replace_all(self, pattern: str, template: str) -> None:
        """Make every expression here that matches into the template.

        Raises:
            AnchorError: neither the pattern nor what replaces it is here.
        """
        done = [e.span for e in self._expressions(template)]
        found = [
            e
            for e in self._expressions(pattern)
            if not any(start <= e.span[0] and e.span[1] <= end for start, end in done)
        ]
        if not found and not done:
            raise AnchorError(f"no `{_line(pattern)}` in {self.label}")
        for expression in found:
            expression.replace(template)

    def collection(self, *held: str, keyed: bool | None = None) -> Collection:
        """The one list, set, tuple, dictionary or subscript here that holds these elements (or keys).

        Args:
            held: the elements or keys.
            keyed: look for dictionaries alone, or for anything else.

        Raises:
            AnchorError: there is none, or several.
        """
        found = []
        for node in self.file.tree.walk(self.node):
            items = _items(node)
            if items is not None and keyed in (None, isinstance(node, cst.Dict)):
                candidate = Collection(self.file, node, items, f"collection in {self.label}")
                if all(candidate.holds(name) for name in held):
                    found.append(candidate)
        names = ", ".join(f"`{name}`" for name in held)
        return self._one(iter(found), f"collection that holds {names}")

    def document(self, text: str, after: str) -> None:
        """Add a line to the list of names in the docstring of this function or class, if it has one.

        Args:
            text: `name: what it is`.
            after: the name to put it after; without it in the docstring, nothing is added.
        """
        first = self._own(0)
        start, end = first.span
        name = text.partition(":")[0]
        entry = re.compile(rf"^([ \t]+){after}:[^\n]*\n(?:\1[ \t]+[^\n]*\n)*", re.MULTILINE)
        found = entry.search(self.file.text, start, end)
        if (
            first.is_docstring
            and found
            and not re.search(rf"^\s+{name}:", first.source, re.MULTILINE)
        ):
            self.file.edit((found.end(), found.end()), f"{found[1]}{text}\n")

    def prepend(self, source: str) -> None:
        """Insert statements as the first ones of this block, after a docstring."""
        first = self._own(0)
        if first.is_docstring:
            first.insert_after(source)
        else:
            first.insert_before(source)

    def append(self, source: str) -> None:
        """Insert statements as the last ones of this block."""
        self._own(-1).insert_after(source)

    def _own(self, index: int) -> Statement:
        """The first or last statement of this block.

        Raises:
            AnchorError: it has none on lines of their own.
        """
        if not self.statements:
            raise AnchorError(f"no statements on lines of their own in {self.label}")
        return Statement(self.file, self.statements[index], self.label)

    def _one[T](self, found: Iterator[T], what: str) -> T:
        first = next(found, None)
        if first is None:
            raise AnchorError(f"no {what} in {self.label}")
        more = sum(1 for _ in found)
        if more:
            raise AnchorError(f"{more + 1} times {what} in {self.label}, where one was expected")
        return first


class Statement(Block):
    """A statement: what stands before, after or in place of it can be edited."""

    def only_if(self, test: str) -> None:
        """Put this statement, of one or more lines, below an `if`, unless it is in one with that test."""
        try:
            held = self.branch_of().test.matches(test)
        except AnchorError:
            held = False
        if not held:
            end = self.file.line_end(self._end())
            margin = self.file.indent(self.span[0])
            body = textwrap.indent(self.file.text[self.span[0] : end], "  ").lstrip(" ")
            self.file.edit((self.span[0], end), f"if {test}:\n{margin}  {body}")

    @property
    def is_docstring(self) -> bool:
        """Whether it is a string by itself."""
        small = self.node.body[0] if isinstance(self.node, cst.SimpleStatementLine) else None
        return isinstance(small, cst.Expr) and isinstance(
            small.value, (cst.SimpleString, cst.ConcatenatedString)
        )

    def branch_of(self) -> Branch:
        """The innermost `if` or `elif` whose body holds this statement.

        Raises:
            AnchorError: it is in none.
        """
        below: cst.CSTNode = self.node
        for node in self.file.tree.ancestors(self.node):
            if isinstance(node, cst.If) and node.body is below:
                return Branch(self.file, node, self.label)
            below = node
        raise AnchorError(f"`{_line(self.source)[:60]}` in {self.label} is in no `if`")

    def otherwise(self) -> Branch:
        """The `if` or `elif` whose `else` holds this statement.

        Raises:
            AnchorError: it is not in an `else`.
        """
        for node in self.file.tree.ancestors(self.node):
            if isinstance(node, cst.Else):
                branch = self.file.tree.parent(node)
                if isinstance(branch, cst.If):
                    return Branch(self.file, branch, self.label)
        raise AnchorError(f"`{_line(self.source)[:60]}` in {self.label} is in no `else`")

    def insert_before(self, source: str, apart: bool = False) -> None:
        """Insert statements before this one and its comments, unless they are in its block.

        Args:
            source: the statements.
            apart: leave a blank line between.
        """
        if not self._held(source):
            start = self._start()
            blank = self._blank(source) or "\n" * apart
            self.file.edit((start, start), self._indented(source) + blank)

    def insert_after(self, source: str, apart: bool = False) -> None:
        """Insert statements after this one, unless they are in its block.

        Args:
            source: the statements.
            apart: leave a blank line between.
        """
        if not self._held(source):
            end = self.file.line_end(self._end())
            lead = "" if self.file.text[:end].endswith("\n") or not end else "\n"
            blank = self._blank(source) or "\n" * apart
            self.file.edit((end, end), lead + blank + self._indented(source))

    def _start(self) -> int:
        decorators = getattr(self.node, "decorators", ())
        first = decorators[0] if decorators else self.node
        start = self.file.line_start(self.file.tree.span(first)[0])
        margin = self.file.indent(start)
        while start:
            above = self.file.line_start(start - 1)
            if not self.file.text.startswith(f"{margin}#", above):
                break
            start = above
        return start

    def _end(self) -> int:
        node: cst.CSTNode = self.node
        while True:  # an indented block's own span begins the next line
            suite = _last_suite(node)
            if suite is None:
                return self.file.tree.span(node)[1]
            node = suite.body[-1]

    def _indented(self, source: str) -> str:
        text = textwrap.dedent(source).strip("\n")
        return textwrap.indent(text, self.file.indent(self.span[0])) + "\n"

    def _blank(self, source: str) -> str:
        """Blank lines between definitions, as the surroundings have them."""
        first = cst.parse_module(textwrap.dedent(source)).body[0]
        if not isinstance(first, (cst.ClassDef, cst.FunctionDef)):
            return ""
        if isinstance(self.file.tree.parent(self.node), cst.Module):
            return "\n\n"
        return "\n"

    def _held(self, source: str) -> bool:
        """Whether the statements stand in this one's block already, one after the other."""
        wanted = cst.parse_module(textwrap.dedent(source)).body
        parent = self.file.tree.parent(self.node)
        held = [s for s in getattr(parent, "body", ()) if isinstance(s, cst.BaseStatement)]
        return any(
            all(same(w, h) for w, h in zip(wanted, held[at : at + len(wanted)], strict=True))
            for at in range(len(held) - len(wanted) + 1)
        )


class Branch(Block):
    """An `if` or `elif` with its body."""

    def add_after(self, test: str, source: str) -> None:
        """Insert an `elif` after this branch, unless the chain has one with that test."""
        assert isinstance(self.node, cst.If)
        wanted = parse_pattern(test)
        if any(same(wanted, link.test) for link in self._chain()):
            return
        end = self.file.line_end(self._own(-1)._end())
        margin = self.file.indent(self.span[0])
        body = textwrap.indent(textwrap.dedent(source).strip("\n"), f"{margin}  ")
        self.file.edit((end, end), f"{margin}elif {test}:\n{body}\n")

    def add_before(self, test: str, source: str) -> None:
        """Insert a branch before this one, unless the chain has one with that test."""
        wanted = parse_pattern(test)
        if any(same(wanted, link.test) for link in self._chain()):
            return
        start = self.span[0]
        margin = self.file.indent(start)
        body = textwrap.indent(textwrap.dedent(source).strip("\n"), f"{margin}  ")
        elif_ = self.file.text.startswith("elif", start)
        word, rest = ("elif", "") if elif_ else ("if", "el")
        self.file.edit((start, start), f"{word} {test}:\n{body}\n{margin}{rest}")

    def _chain(self) -> Iterator[cst.If]:
        node: cst.CSTNode | None = self.node
        parent = self.file.tree.parent(self.node)
        while isinstance(parent, cst.If) and parent.orelse is node:
            node, parent = parent, self.file.tree.parent(parent)
        while isinstance(node, cst.If):
            yield node
            node = node.orelse

    @property
    def whole(self) -> Statement:
        """The whole `if` statement that begins with this branch."""
        return Statement(self.file, self.node, self.label, self.bound)

    @property
    def test(self) -> Expression:
        """The condition."""
        assert isinstance(self.node, cst.If)
        return Expression(self.file, self.node.test, self.label, self.bound)


class Case(Block):
    """A `case` with its body."""

    def add_after(self, value: str, source: str) -> None:
        """Insert a `case` after this one, unless its `match` has one of that value."""
        wanted = parse_pattern(value)
        match_ = self.file.tree.parent(self.node)
        assert isinstance(match_, cst.Match)
        for held in match_.cases:
            if isinstance(held.pattern, cst.MatchValue) and same(wanted, held.pattern.value):
                return
        end = self.file.line_end(self._own(-1)._end())
        margin = self.file.indent(self.span[0])
        body = textwrap.indent(textwrap.dedent(source).strip("\n"), f"{margin}  ")
        self.file.edit((end, end), f"{margin}case {value}:\n{body}\n")


class Expression(Block):
    """An expression: it can be replaced, and a call gets arguments."""

    def matches(self, pattern: str) -> bool:
        """Whether it is what a pattern says."""
        return match(parse_pattern(pattern), self.node) is not None

    def replace(self, template: str) -> None:
        """Make this expression into another one; lines after the first are indented to its line."""
        margin = self.file.indent(self.span[0])
        first, *more = textwrap.dedent(self.filled(template)).strip("\n").split("\n")
        self.file.edit(self.span, "\n".join([first, *(margin + line for line in more)]))

    @property
    def arguments(self) -> Collection:
        """The arguments of this call.

        Raises:
            AnchorError: it is no call.
        """
        if not isinstance(self.node, cst.Call):
            raise AnchorError(f"`{_line(self.source)}` in {self.label} is no call")
        return Collection(self.file, self.node, self.node.args, f"arguments in {self.label}")


class Collection(Part):
    """Elements between brackets: of a list, set, tuple, dictionary, subscript, call, definition or import."""

    def __init__(
        self, file: AnchoredFile, node: cst.CSTNode, items: Sequence[cst.CSTNode], label: str
    ) -> None:
        super().__init__(file, node, label)
        self.items = items

    def holds(self, key: str) -> bool:
        """Whether an element (a key, a name) is among the elements."""
        return self._find(key) is not None

    def _find(self, key: str) -> cst.CSTNode | None:
        return next((item for item in self.items if self._key(item) == _plain(key)), None)

    def _key(self, item: cst.CSTNode) -> str:
        """What names an element: a dictionary's key, a parameter's or argument's name, else its own text."""
        part: cst.CSTNode = item
        star = ""
        if isinstance(item, cst.DictElement):
            part = item.key
        elif isinstance(item, cst.Param):
            part = item.name
        elif isinstance(item, cst.Arg):
            part = item.keyword or item.value
            star = item.star
        elif isinstance(item, cst.Element):
            part = item.value
        elif isinstance(item, cst.SubscriptElement):
            part = item.slice
        return star + _plain(self.file.tree.source(part))

    def add(self, text: str, after: str | None = None, sort: bool = False) -> None:
        """Add an element, unless one of the same key is there.

        Args:
            text: the element; `key: value` in a dictionary, `name: type = default` among parameters.
            after: the key of the element to put it after; the last one when not given.
            sort: put it before the first element with a greater key.

        Raises:
            AnchorError: there is no element `after`, or none at all.
        """
        pattern = _NAMED.get(type(self.node))
        named = pattern.match(text) if pattern else None
        key = named[1] if named else text
        if self.holds(key):
            return
        if not self.items:
            raise AnchorError(f"{self.label}: nothing is there to add `{text}` to")
        if sort:
            name = _plain(key).casefold()
            greater = [i for i in self.items if self._key(i).casefold() > name]
            if greater:
                self._before(greater[0], text)
                return
        found = self.items[-1] if after is None else self._find(after)
        if found is None:
            raise AnchorError(f"{self.label}: no `{after}`")
        self._after(found, text)

    def _after(self, item: cst.CSTNode, text: str) -> None:
        source = self.file.text
        start, end = self._bare(item)
        if not self._own_line(start):
            first, last = self._bare(self.items[0])[0], self._bare(self.items[-1])[1]
            line = self.file.text[self.file.line_start(first) : self.file.line_end(first)].rstrip()
            if "\n" not in source[first:last] and len(line) + len(text) + 2 > LINE_LENGTH:
                self._spread(first, last, item, text)
            else:
                self.file.edit((end, end), f", {text}")
            return
        comma = re.compile(r"\s*,").match(source, end)
        margin = self.file.indent(start)
        if comma is None:
            self.file.edit((end, end), f",\n{margin}{text}")
            return
        rest = re.compile(r"[ \t]*(#[^\r\n]*)?").match(source, comma.end())
        at = rest.end() if rest else comma.end()
        if source[at : at + 1] not in "\r\n":  # another element follows on the line
            self.file.edit((comma.end(), comma.end()), f" {text},")
            return
        self.file.edit((at, at), f"\n{margin}{text},")

    def _spread(self, first: int, last: int, item: cst.CSTNode, text: str) -> None:
        """Put the elements on lines of their own, with a new one after `item`."""
        margin = self.file.indent(first)
        lines = []
        for held in self.items:
            start, end = self._bare(held)
            lines.append(self.file.text[start:end])
            if held is item:
                lines.append(text)
        comma = re.compile(r"[ \t]*,?[ \t]*").match(self.file.text, last)
        end = comma.end() if comma else last
        self.file.edit(
            (first, end), "".join(f"\n{margin}    {line}," for line in lines) + f"\n{margin}"
        )

    def _before(self, item: cst.CSTNode, text: str) -> None:
        start, _ = self._bare(item)
        between = f"\n{self.file.indent(start)}" if self._own_line(start) else " "
        self.file.edit((start, start), f"{text},{between}")

    def _own_line(self, offset: int) -> bool:
        """Whether an element begins its line."""
        return not self.file.text[self.file.line_start(offset) : offset].strip()

    def _bare(self, item: cst.CSTNode) -> Span:
        """An element without its comma."""
        span = self.file.tree.span
        parts = [part for part in children(item) if not isinstance(part, cst.Comma)]
        comma = getattr(item, "comma", None)
        start, end = span(item)
        if isinstance(comma, cst.Comma):
            end = min(end, span(comma)[0])
        return start, max([len(self.file.text[:end].rstrip()), *(span(part)[1] for part in parts)])


def _last_suite(node: cst.CSTNode) -> cst.IndentedBlock | None:
    """The indented block that a compound statement ends with."""
    parts: list[object] = [node]
    if isinstance(node, (cst.Try, cst.TryStar)):
        parts += [*node.handlers, node.orelse, node.finalbody]
    elif isinstance(node, (cst.If, cst.For, cst.While)):
        parts.append(node.orelse)
    elif isinstance(node, cst.Match):
        parts += node.cases
    last = [part for part in parts if part is not None][-1]
    if isinstance(last, cst.If) and last is not node:
        return _last_suite(last)
    body = getattr(last, "body", None)
    return body if isinstance(body, cst.IndentedBlock) else None


def _items(node: cst.CSTNode) -> Sequence[cst.CSTNode] | None:
    if isinstance(node, (cst.List, cst.Set, cst.Tuple, cst.Dict)):
        return node.elements
    return node.slice if isinstance(node, cst.Subscript) else None


def _plain(code: str) -> str:
    """Code without blanks, and with one kind of quotes."""
    return "".join(code.split()).replace("'", '"')


def _line(code: str) -> str:
    return " ".join(code.split())
