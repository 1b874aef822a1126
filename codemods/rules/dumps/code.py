"""One Python file as the dump rules see it: its `ast`, names and scopes, and where things lie in the text.

Which parameters and locals fall with the hooks can only be said from all files at once, so this uses
the standard library's parser: many times faster than LibCST, and with exact positions too.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

Span = tuple[int, int]
StoreKind = Literal[
    "assign", "unpack", "aug", "param", "import", "def", "class", "loop", "with", "walrus", "other"
]
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass(eq=False, slots=True)
class Store:
    """One place that gives a name a value.

    Attributes:
        kind: how.
        node: the Name, alias, parameter or definition.
        stmt: the statement it is in; None for a parameter.
        value: what is stored, where that is an expression of its own.
        path: for "unpack", the index at each level of the target; -1 for a starred name.
    """

    kind: StoreKind
    node: ast.AST
    stmt: ast.stmt | None = None
    value: ast.expr | None = None
    path: tuple[int, ...] = ()


@dataclass(eq=False, slots=True)
class Var:
    """A name in a scope: who sets it, who reads it (quoted annotations too), who deletes it.

    `pinned` names may be reached in ways not seen here (global, nonlocal, locals()).
    """

    name: str
    scope: Scope
    stores: list[Store] = field(default_factory=list)
    loads: list[ast.expr] = field(default_factory=list)
    deletes: list[ast.Name] = field(default_factory=list)
    pinned: bool = False


@dataclass(eq=False, slots=True)
class Scope:
    """A namespace."""

    kind: Literal["module", "class", "function", "comprehension"]
    node: ast.AST
    parent: Scope | None
    names: dict[str, Var] = field(default_factory=dict)
    outside: dict[str, str] = field(default_factory=dict)

    def var(self, name: str) -> Var:
        """The variable `name` that lives here, made if it is new."""
        scope = self
        declared = self.outside.get(name)
        if declared == "global":
            while scope.parent is not None:
                scope = scope.parent
        elif declared == "nonlocal" and self.parent is not None:
            found = self.parent.find(name)
            if found is not None:
                return found
        if name not in scope.names:
            scope.names[name] = Var(name, scope)
        return scope.names[name]

    def find(self, name: str) -> Var | None:
        """The variable that a use of `name` written here means; None for a builtin or unknown name."""
        scope: Scope | None = self
        first = True
        while scope is not None:
            if scope.outside.get(name) == "global":
                while scope.parent is not None:
                    scope = scope.parent
                return scope.names.get(name)
            if name in scope.names and (first or scope.kind != "class"):
                return scope.names[name]
            if scope.kind != "comprehension":
                first = False
            scope = scope.parent
        return None


@dataclass(eq=False)
class Function:
    """A function or method of the checkout, or what a dataclass generates as its `__init__`.

    Attributes:
        key: unique in the checkout.
        module: the file it is in.
        node: its definition; the class for a dataclass.
        owner: its class if it is a method.
        positional: names that can be given by position, in order (with self).
        keyword_only: the other names.
        star, double_star: whether it has *args, **kwargs.
        defaults: default values by name.
    """

    key: str
    module: Code
    node: FunctionNode | ast.ClassDef
    owner: Class | None
    positional: tuple[str, ...]
    keyword_only: tuple[str, ...] = ()
    star: bool = False
    double_star: bool = False
    defaults: dict[str, ast.expr] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        return self.positional + self.keyword_only

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def static(self) -> bool:
        """Whether a method takes no self or cls."""
        return any(_name_of(d) == "staticmethod" for d in self.node.decorator_list)

    @cached_property
    def returns(self) -> list[ast.Return]:
        """Its return statements, in source order; empty for a generator, whose calls mean something else."""
        if not isinstance(self.node, _FUNCTIONS):
            return []
        found: list[ast.Return] = []
        stack: list[ast.AST] = list(reversed(self.node.body))
        while stack:
            node = stack.pop()
            if isinstance(node, (ast.Yield, ast.YieldFrom)):
                return []
            if isinstance(node, ast.Return):
                found.append(node)
            if not isinstance(node, (*_FUNCTIONS, ast.ClassDef, ast.Lambda)):
                stack.extend(reversed(list(ast.iter_child_nodes(node))))
        return found


@dataclass(eq=False)
class Class:
    """A class of the checkout: its methods, and its fields if it is a dataclass."""

    key: str
    module: Code
    node: ast.ClassDef
    methods: dict[str, Function] = field(default_factory=dict)
    fields: dict[str, ast.AnnAssign] = field(default_factory=dict)
    init: Function | None = None


def _name_of(node: ast.expr) -> str:
    """The last name of `a.b.c` or `a.b.c(...)`."""
    if isinstance(node, ast.Call):
        node = node.func
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


@dataclass(frozen=True, slots=True)
class Token:
    """A token that is no white space, with its character span."""

    kind: int
    text: str
    start: int
    end: int


class Code:
    """A parsed file.

    Attributes:
        path, name, is_package, text: as given.
        tree: its `ast.Module`.
        parents: node → the node that holds it.
        scopes: the node that makes a scope → the scope.
        var_of: every Name (and quoted annotation name) → its variable.
        functions, classes: by their node.
        quoted: Constant → names used in it, for quoted annotations.
    """

    def __init__(self, path: str, name: str, is_package: bool, text: str) -> None:
        """Parse.

        Raises:
            SyntaxError, ValueError, RecursionError, MemoryError: as `ast.parse`.
        """
        self.path, self.name, self.is_package, self.text = path, name, is_package, text
        shadow = re.sub("\r(?!\n)", "\n", text) if "\r" in text else text
        self._shadow = shadow
        self.tree = ast.parse(shadow)
        self._lines = [0, *(m.end() for m in re.finditer("\n", shadow))]
        self.parents: dict[ast.AST, ast.AST] = {}
        self.scopes: dict[ast.AST, Scope] = {}
        self.var_of: dict[ast.AST, Var] = {}
        self.functions: dict[ast.AST, Function] = {}
        self.classes: dict[ast.AST, Class] = {}
        self.stars: list[ast.ImportFrom] = []
        self.quoted: dict[ast.Constant, list[Var]] = {}
        self._loads: list[tuple[Scope, ast.Name]] = []
        self._quotes: list[tuple[Scope, ast.Constant]] = []
        self._keys: dict[str, int] = {}
        self.top = self._scope("module", self.tree, None)
        for node in ast.walk(self.tree):
            for child in ast.iter_child_nodes(node):
                self.parents[child] = node
        self._body(self.tree.body, self.top, "", None)
        self._resolve()

    # Where things lie -----------------------------------------------------------------------------

    def offset(self, line: int, column: int) -> int:
        """Character offset of `ast`'s line (from 1) and column (UTF-8 bytes)."""
        start = self._lines[line - 1]
        if column:
            end = self._lines[line] if line < len(self._lines) else len(self.text)
            source = self._shadow[start:end]
            if not source.isascii():
                column = len(source.encode("utf-8")[:column].decode("utf-8", "ignore"))
        return start + column

    def span(
        self, node: ast.expr | ast.stmt | ast.keyword | ast.arg | ast.alias | ast.ExceptHandler
    ) -> Span:
        """The node's characters, without brackets around it; a definition's without its decorators."""
        end_line, end_column = node.end_lineno, node.end_col_offset
        assert end_line is not None
        assert end_column is not None
        return self.offset(node.lineno, node.col_offset), self.offset(end_line, end_column)

    def source(self, node: ast.expr | ast.stmt) -> str:
        start, end = self.span(node)
        return self.text[start:end]

    def line_of(self, offset: int) -> int:
        """Index (from 0) of the line that holds an offset."""
        return bisect_right(self._lines, offset) - 1

    def line_span(self, line: int) -> Span:
        """A line (index from 0) with its line end."""
        return self._lines[line], (
            self._lines[line + 1] if line + 1 < len(self._lines) else len(self.text)
        )

    @property
    def line_count(self) -> int:
        return len(self._lines)

    @cached_property
    def tokens(self) -> list[Token]:
        """Names, operators, strings, comments … in order (f-strings in their parts)."""
        skip = {tokenize.ENCODING, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
        found = []
        for token in tokenize.generate_tokens(io.StringIO(self._shadow, newline="\n").readline):
            if token.type not in skip and token.type != tokenize.ENDMARKER:
                start = self._lines[token.start[0] - 1] + token.start[1]
                end = self._lines[token.end[0] - 1] + token.end[1]
                found.append(Token(token.type, token.string, start, end))
        return found

    @cached_property
    def _starts(self) -> list[int]:
        return [token.start for token in self.tokens]

    @cached_property
    def comments(self) -> list[Token]:
        return [token for token in self.tokens if token.kind == tokenize.COMMENT]

    def tokens_in(self, start: int, end: int) -> Iterator[Token]:
        """Tokens that begin in a span."""
        index = bisect_right(self._starts, start - 1)
        while index < len(self.tokens) and self.tokens[index].start < end:
            yield self.tokens[index]
            index += 1

    def comments_in(self, start: int, end: int) -> list[Token]:
        return [t for t in self.tokens_in(start, end) if t.kind == tokenize.COMMENT]

    def next_code(self, offset: int) -> Token | None:
        """The first token at or after an offset that is no comment."""
        index = bisect_right(self._starts, offset - 1)
        while index < len(self.tokens):
            if self.tokens[index].kind != tokenize.COMMENT:
                return self.tokens[index]
            index += 1
        return None

    def previous_code(self, offset: int) -> Token | None:
        """The last token before an offset that is no comment."""
        index = bisect_right(self._starts, offset - 1) - 1
        while index >= 0:
            if self.tokens[index].kind != tokenize.COMMENT:
                return self.tokens[index]
            index -= 1
        return None

    def outer_span(self, node: ast.expr) -> Span:
        """The node's span with the brackets that only group it."""
        start, end = self.span(node)
        while True:
            before, after = self.previous_code(start), self.next_code(end)
            if before is None or after is None or before.text != "(" or after.text != ")":
                return start, end
            ahead = self.previous_code(before.start)
            if ahead is not None and (
                ahead.text in (")", "]", "}")
                or ahead.kind == tokenize.STRING
                or (ahead.kind == tokenize.NAME and not _is_keyword(ahead.text))
            ):
                return start, end
            start, end = before.start, after.end

    def indent(self, offset: int) -> str:
        """The white space that the line of an offset begins with."""
        start, end = self.line_span(self.line_of(offset))
        line = self.text[start:end]
        return line[: len(line) - len(line.lstrip(" \t\f"))]

    # Names and scopes -----------------------------------------------------------------------------

    def _scope(
        self,
        kind: Literal["module", "class", "function", "comprehension"],
        node: ast.AST,
        parent: Scope | None,
    ) -> Scope:
        scope = self.scopes[node] = Scope(kind, node, parent)
        return scope

    def scope_of(self, node: ast.AST) -> Scope:
        """The innermost scope whose code holds a node."""
        parent = self.parents.get(node)
        while parent is not None and parent not in self.scopes:
            parent = self.parents.get(parent)
        return self.scopes[parent] if parent is not None else self.top

    def function_of(self, node: ast.AST) -> Function | None:
        """The function whose body a node is directly in; None in a lambda, class body or module."""
        parent = self.parents.get(node)
        while parent is not None:
            if isinstance(parent, (ast.Lambda, ast.ClassDef)):
                return None
            if parent in self.functions:
                return self.functions[parent]
            parent = self.parents.get(parent)
        return None

    def statement_of(self, node: ast.AST) -> ast.stmt | None:
        """The innermost statement that holds a node."""
        current: ast.AST | None = node
        while current is not None and not isinstance(current, ast.stmt):
            current = self.parents.get(current)
        return current

    def absolute(self, node: ast.ImportFrom) -> str:
        """The absolute module that an import names."""
        if not node.level:
            return node.module or ""
        parts = self.name.split(".") if self.name else []
        drop = node.level - (1 if self.is_package else 0)
        base = parts[: len(parts) - drop] if drop <= len(parts) else []
        return ".".join([*base, *([node.module] if node.module else [])])

    def _body(self, body: list[ast.stmt], scope: Scope, qualname: str, owner: Class | None) -> None:
        for statement in body:
            self._declare(statement, scope)
        for statement in body:
            self._visit(statement, scope, qualname, owner, statement)

    def _declare(self, node: ast.AST, scope: Scope) -> None:
        stack: list[ast.AST] = [node]
        while stack:
            node = stack.pop()
            if isinstance(node, (ast.Global, ast.Nonlocal)):
                for name in node.names:
                    scope.outside[name] = "global" if isinstance(node, ast.Global) else "nonlocal"
                    scope.var(name).pinned = True
            elif not isinstance(node, (*_FUNCTIONS, ast.ClassDef, ast.expr)):
                stack.extend(ast.iter_child_nodes(node))

    def _key(self, qualname: str) -> str:
        key = f"{self.path}:{qualname}"
        count = self._keys[key] = self._keys.get(key, 0) + 1
        return key if count == 1 else f"{key}#{count}"

    def _visit(
        self, node: ast.AST, scope: Scope, qualname: str, owner: Class | None, stmt: ast.stmt
    ) -> None:
        if isinstance(node, ast.stmt):
            stmt = node
        if isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Load):
                self._loads.append((scope, node))
            elif isinstance(node.ctx, ast.Del):
                var = scope.var(node.id)
                var.deletes.append(node)
                self.var_of[node] = var
            else:
                self._store(node, scope, Store("other", node, stmt))
            return
        if isinstance(node, _FUNCTIONS):
            self._function(node, scope, qualname, owner)
            return
        if isinstance(node, ast.ClassDef):
            self._class(node, scope, qualname)
            return
        if isinstance(node, ast.Lambda):
            for default in (*node.args.defaults, *node.args.kw_defaults):
                if default is not None:
                    self._visit(default, scope, qualname, None, stmt)
            inner = self._scope("function", node, scope)
            for argument in _arguments(node.args):
                inner.var(argument.arg).stores.append(Store("param", argument))
            self._visit(node.body, inner, qualname, None, stmt)
            return
        if isinstance(node, _COMPREHENSIONS):
            self._comprehension(node, scope, qualname, stmt)
            return
        if isinstance(node, ast.Assign):
            self._visit(node.value, scope, qualname, None, stmt)
            for target in node.targets:
                self._target(target, scope, stmt, node.value, (), qualname)
            return
        if isinstance(node, ast.AnnAssign):
            self._annotation(node.annotation, scope, qualname, stmt)
            if node.value is not None:
                self._visit(node.value, scope, qualname, None, stmt)
            if isinstance(node.target, ast.Name):
                self._store(node.target, scope, Store("assign", node.target, stmt, node.value))
            else:
                self._visit(node.target, scope, qualname, None, stmt)
            return
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            self._visit(node.value, scope, qualname, None, stmt)
            self._store(node.target, scope, Store("aug", node.target, stmt, node.value))
            return
        if isinstance(node, ast.NamedExpr):
            self._visit(node.value, scope, qualname, None, stmt)
            home = scope
            while home.kind == "comprehension" and home.parent is not None:
                home = home.parent
            self._store(node.target, home, Store("walrus", node.target, stmt, node.value))
            return
        if isinstance(node, (ast.For, ast.AsyncFor)):
            self._visit(node.iter, scope, qualname, None, stmt)
            for name in ast.walk(node.target):
                if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store):
                    self._store(name, scope, Store("loop", name, stmt))
                elif isinstance(name, ast.Name):
                    self._loads.append((scope, name))
            for child in (*node.body, *node.orelse):
                self._visit(child, scope, qualname, owner, stmt)
            return
        if isinstance(node, ast.withitem):
            self._visit(node.context_expr, scope, qualname, None, stmt)
            if isinstance(node.optional_vars, ast.Name):
                name = node.optional_vars
                self._store(name, scope, Store("with", name, stmt, node.context_expr))
            elif node.optional_vars is not None:
                self._visit(node.optional_vars, scope, qualname, None, stmt)
            return
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                if alias.name == "*":
                    assert isinstance(node, ast.ImportFrom)
                    self.stars.append(node)
                    continue
                bound = alias.asname or (
                    alias.name.partition(".")[0] if isinstance(node, ast.Import) else alias.name
                )
                scope.var(bound).stores.append(Store("import", alias, node))
            return
        if (isinstance(node, ast.ExceptHandler) and node.name) or (
            isinstance(node, (ast.MatchAs, ast.MatchStar)) and node.name
        ):
            scope.var(node.name).stores.append(Store("other", node, stmt))
        elif isinstance(node, ast.MatchMapping) and node.rest:
            scope.var(node.rest).stores.append(Store("other", node, stmt))
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("locals", "vars", "eval", "exec")
            and (node.func.id != "vars" or not node.args)
        ):
            for var in scope.names.values():
                var.pinned = True
        for part in ast.iter_child_nodes(node):
            self._visit(part, scope, qualname, owner, stmt)

    def _store(self, node: ast.Name, scope: Scope, store: Store) -> None:
        var = scope.var(node.id)
        var.stores.append(store)
        self.var_of[node] = var

    def _target(
        self,
        node: ast.expr,
        scope: Scope,
        stmt: ast.stmt,
        value: ast.expr,
        path: tuple[int, ...],
        qualname: str,
    ) -> None:
        if isinstance(node, ast.Name):
            self._store(node, scope, Store("unpack" if path else "assign", node, stmt, value, path))
        elif isinstance(node, (ast.Tuple, ast.List)):
            starred = False
            for index, element in enumerate(node.elts):
                starred = starred or isinstance(element, ast.Starred)
                self._target(
                    element, scope, stmt, value, (*path, -1 if starred else index), qualname
                )
        elif isinstance(node, ast.Starred):
            self._target(node.value, scope, stmt, value, path, qualname)
        else:
            self._visit(node, scope, qualname, None, stmt)

    def _comprehension(
        self,
        node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp,
        scope: Scope,
        qualname: str,
        stmt: ast.stmt,
    ) -> None:
        inner = self._scope("comprehension", node, scope)
        for index, clause in enumerate(node.generators):
            self._visit(clause.iter, scope if index == 0 else inner, qualname, None, stmt)
            for name in ast.walk(clause.target):
                if isinstance(name, ast.Name):
                    self._store(name, inner, Store("loop", name, None))
            for condition in clause.ifs:
                self._visit(condition, inner, qualname, None, stmt)
        for part in (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,):
            self._visit(part, inner, qualname, None, stmt)

    def _function(
        self, node: FunctionNode, scope: Scope, qualname: str, owner: Class | None
    ) -> None:
        for decorator in node.decorator_list:
            self._visit(decorator, scope, qualname, None, node)
        scope.var(node.name).stores.append(Store("def", node, node))
        inner = self._scope("function", node, scope)
        arguments = node.args
        for value in (*arguments.defaults, *arguments.kw_defaults):
            if value is not None:
                self._visit(value, scope, qualname, None, node)
        for argument in _arguments(arguments):
            if argument.annotation is not None:
                self._annotation(argument.annotation, scope, qualname, node)
            inner.var(argument.arg).stores.append(Store("param", argument))
        if node.returns is not None:
            self._annotation(node.returns, scope, qualname, node)
        positional = tuple(a.arg for a in (*arguments.posonlyargs, *arguments.args))
        defaults = dict(zip(reversed(positional), reversed(arguments.defaults), strict=False))
        for argument, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
            if value is not None:
                defaults[argument.arg] = value
        path = f"{qualname}.{node.name}" if qualname else node.name
        function = self.functions[node] = Function(
            self._key(path),
            self,
            node,
            owner,
            positional,
            tuple(a.arg for a in arguments.kwonlyargs),
            arguments.vararg is not None,
            arguments.kwarg is not None,
            defaults,
        )
        if owner is not None:
            owner.methods[node.name] = function
        self._body(node.body, inner, path, None)

    def _class(self, node: ast.ClassDef, scope: Scope, qualname: str) -> None:
        for part in (*node.decorator_list, *node.bases, *(k.value for k in node.keywords)):
            self._visit(part, scope, qualname, None, node)
        scope.var(node.name).stores.append(Store("class", node, node))
        path = f"{qualname}.{node.name}" if qualname else node.name
        found = self.classes[node] = Class(self._key(path), self, node)
        inner = self._scope("class", node, scope)
        self._body(node.body, inner, path, found)
        if (
            any(_name_of(d) == "dataclass" for d in node.decorator_list)
            and "__init__" not in found.methods
        ):
            for statement in node.body:
                if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                    found.fields[statement.target.id] = statement
            found.init = Function(
                found.key,
                self,
                node,
                None,
                tuple(found.fields),
                defaults={n: f.value for n, f in found.fields.items() if f.value is not None},
            )
        else:
            found.init = found.methods.get("__init__")

    def _annotation(self, node: ast.expr, scope: Scope, qualname: str, stmt: ast.stmt) -> None:
        for part in ast.walk(node):
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                self._quotes.append((scope, part))
        self._visit(node, scope, qualname, None, stmt)

    def _resolve(self) -> None:
        for scope, node in self._loads:
            var = scope.find(node.id)
            if var is not None:
                var.loads.append(node)
                self.var_of[node] = var
        for scope, constant in self._quotes:
            try:
                inner = ast.parse(str(constant.value).strip(), mode="eval")
            except (SyntaxError, ValueError, RecursionError):
                continue
            for name in ast.walk(inner):
                var = scope.find(name.id) if isinstance(name, ast.Name) else None
                if var is not None:
                    var.loads.append(constant)
                    self.quoted.setdefault(constant, []).append(var)


def _arguments(node: ast.arguments) -> Iterator[ast.arg]:
    yield from (*node.posonlyargs, *node.args)
    if node.vararg is not None:
        yield node.vararg
    yield from node.kwonlyargs
    if node.kwarg is not None:
        yield node.kwarg


def _is_keyword(name: str) -> bool:
    return name in [
        "return",
        "yield",
        "await",
        "in",
        "is",
        "not",
        "and",
        "or",
        "if",
        "else",
        "elif",
        "while",
        "for",
        "lambda",
        "assert",
        "del",
        "raise",
        "from",
        "with",
        "as",
        "print",
        "import",
        "except",
        "case",
        "match",
    ]
