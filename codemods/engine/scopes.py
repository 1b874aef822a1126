"""Which name means what: Python's scopes over one parsed file.

LibCST's ScopeProvider costs three times the parse, and does not look into quoted annotations. This
walk visits each code node once and follows the language reference (4.2, Naming and binding).
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

import libcst as cst

from codemods.engine.edits import line_starts
from codemods.engine.tree import Tree, UnparsableError, children

ScopeKind = Literal["module", "class", "function", "comprehension"]
BindingKind = Literal["import", "assignment", "parameter", "function", "class", "delete", "other"]


@dataclass(slots=True, eq=False)
class Binding:
    """One place that binds a name.

    Attributes:
        name: the bound name.
        kind: how it is bound ("other" is for, with, except, match, walrus, type alias).
        node: the import alias, the definition, the parameter or the Name node.
        scope: where the name lives.
    """

    name: str
    kind: BindingKind
    node: cst.CSTNode
    scope: Scope


@dataclass(slots=True, eq=False)
class Reference:
    """One use of a name, with the attributes that follow it (`a.b.c` → name `a`, trail `b`, `c`).

    Attributes:
        name: the name as written.
        start, end: where the name lies in the text.
        trail: (attribute name, start, end) of each attribute that follows directly.
        scope: the scope the use is written in.
        node: the Name node; None in a quoted annotation.
        top: the outermost node of the chain, whose parent says what is done with it; None if quoted.
        context: load, store (assignment target) or delete.
        early: written in a class body before that binds the name, so that an outer scope's is meant.
    """

    name: str
    start: int
    end: int
    trail: tuple[tuple[str, int, int], ...]
    scope: Scope
    node: cst.Name | None
    top: cst.BaseExpression | None
    context: Literal["load", "store", "delete"] = "load"
    early: bool = False

    @property
    def dotted(self) -> str:
        return ".".join([self.name, *(t[0] for t in self.trail)])


@dataclass(slots=True, eq=False)
class Scope:
    """A namespace.

    Attributes:
        kind: what made it; "function" is for lambdas and type parameters too.
        node: the node that made it.
        parent: the enclosing scope; None for the module.
        bindings: name → the places that bind it here.
        references: the uses written in this scope (not in nested ones).
        outside: names declared global or nonlocal here → the scope they live in.
    """

    kind: ScopeKind
    node: cst.CSTNode
    parent: Scope | None
    bindings: dict[str, list[Binding]] = field(default_factory=dict)
    references: list[Reference] = field(default_factory=list)
    outside: dict[str, Literal["global", "nonlocal"]] = field(default_factory=dict)

    def home(self, name: str, early: bool = False) -> Scope | None:
        """The scope whose binding a use of `name` written here sees; None for a builtin or unknown name.

        A class body's names are seen by the body itself and by the type parameters in it, not by what is
        nested in it (language reference, 4.2.2). `early` leaves the body itself out.
        """
        scope: Scope | None = self
        first = not early
        while scope is not None:
            declared = scope.outside.get(name)
            if declared == "global":
                top = scope
                while top.parent is not None:
                    top = top.parent
                return top if name in top.bindings else None
            if declared is None and name in scope.bindings and (first or scope.kind != "class"):
                return scope
            first = first and isinstance(scope.node, cst.TypeParameters)
            scope = scope.parent
        return None


# What holds statements of the same scope.
_BLOCKS = (
    cst.BaseSuite,
    cst.SimpleStatementLine,
    cst.Else,
    cst.Finally,
    cst.ExceptHandler,
    cst.ExceptStarHandler,
    cst.MatchCase,
)


class Scopes:
    """The scopes of one file.

    Attributes:
        module: the module's scope.
        all: every scope, outer before inner.
    """

    def __init__(self, tree: Tree, annotation: bool = False) -> None:
        """Work out the scopes of a file, or of the text of a quoted annotation."""
        self.tree = tree
        self.module = Scope("module", tree.module, None)
        self.all: list[Scope] = [self.module]
        self._of_node: dict[cst.CSTNode, Scope] = {tree.module: self.module}
        if annotation:
            (line,) = children(tree.module)
            (statement,) = children(line)
            self._annotation_expression(children(statement)[0], self.module)
        else:
            self._visit_children(tree.module, self.module)
            if _TYPE_COMMENT.search(tree.text):
                self._type_comments()
        self._by_home: dict[tuple[int, str], list[Reference]] | None = None

    def references(self, scope: Scope, name: str) -> list[Reference]:
        """All uses, in `scope` and in nested ones, of the `name` that `scope` binds; in source order."""
        if self._by_home is None:
            table: dict[tuple[int, str], list[Reference]] = {}
            for inner in self.all:
                for reference in inner.references:
                    home = inner.home(reference.name, reference.early)
                    if home is not None:
                        table.setdefault((id(home), reference.name), []).append(reference)
            for uses in table.values():
                uses.sort(key=lambda r: r.start)
            self._by_home = table
        return self._by_home.get((id(scope), name), [])

    def bindings(self) -> Iterator[Binding]:
        """Every binding of the file."""
        for scope in self.all:
            for places in scope.bindings.values():
                yield from places

    def scope_of(self, node: cst.CSTNode) -> Scope:
        """The innermost scope that a node is written in (a definition lies in the scope around it)."""
        parent = self.tree.parent(node)
        while parent is not None:
            scope = self._of_node.get(parent)
            if scope is not None and not self._evaluated_outside(parent, node):
                return scope
            parent = self.tree.parent(parent)
        return self.module

    def _evaluated_outside(self, definition: cst.CSTNode, node: cst.CSTNode) -> bool:
        """Whether `node` is a decorator, default, base, … of `definition`: evaluated around it."""
        if not isinstance(definition, (cst.FunctionDef, cst.ClassDef)):
            return False
        start = self.tree.span(definition.body)[0]
        return self.tree.span(node)[1] <= start

    def clear(self) -> None:
        """Take the scopes apart; nothing can be asked of them any more."""
        for scope in self.all:
            scope.bindings.clear()
            scope.references.clear()
        self.all.clear()

    # Building -------------------------------------------------------------------------------------

    def _new(self, kind: ScopeKind, node: cst.CSTNode, parent: Scope) -> Scope:
        scope = Scope(kind, node, parent)
        self.all.append(scope)
        self._of_node[node] = scope
        return scope

    def _bind(self, scope: Scope, name: str, kind: BindingKind, node: cst.CSTNode) -> None:
        declared = scope.outside.get(name)
        if declared == "global":
            scope = self.module
        elif declared == "nonlocal":
            outer = scope.parent.home(name) if scope.parent else None
            scope = outer or scope
        scope.bindings.setdefault(name, []).append(Binding(name, kind, node, scope))

    def _visit_children(self, node: cst.CSTNode, scope: Scope) -> None:
        for child in children(node):
            self._visit(child, scope)

    def _visit(self, node: cst.CSTNode, scope: Scope) -> None:
        method = _HANDLERS.get(type(node))
        if method is None:
            self._visit_children(node, scope)
        else:
            method(self, node, scope)

    def _refer(
        self,
        node: cst.BaseExpression,
        scope: Scope,
        context: Literal["load", "store", "delete"] = "load",
    ) -> None:
        """Record the chain that ends in `node` (a Name or Attribute); visit what is no plain chain."""
        trail: list[tuple[str, int, int]] = []
        root: cst.BaseExpression = node
        while isinstance(root, cst.Attribute):
            start, end = self.tree.span(root.attr)
            trail.append((root.attr.value, start, end))
            root = root.value
        if isinstance(root, cst.Name):
            start, end = self.tree.span(root)
            trail.reverse()
            early = scope.kind == "class" and context == "load" and root.value not in scope.bindings
            scope.references.append(
                Reference(root.value, start, end, tuple(trail), scope, root, node, context, early)
            )
        else:
            self._visit(root, scope)

    def _on_name(self, node: cst.Name | cst.Attribute, scope: Scope) -> None:
        self._refer(node, scope)

    def _on_call(self, node: cst.Call, scope: Scope) -> None:
        """A call; the types that `typing`'s own functions take may be quoted."""
        self._visit(node.func, scope)
        types = _TYPE_ARGUMENTS.get(_last_name(node.func))
        for position, argument in enumerate(node.args):
            key = position if argument.keyword is None else argument.keyword.value
            if types is not None and (key in types or (position > 0 and "*" in types)):
                self._annotation_expression(argument.value, scope)
            else:
                self._visit(argument.value, scope)

    def _on_keyword_argument(self, node: cst.Arg, scope: Scope) -> None:
        self._visit(node.value, scope)

    def _on_named_expr(self, node: cst.NamedExpr, scope: Scope) -> None:
        self._visit(node.value, scope)
        home = scope
        while home.kind == "comprehension" and home.parent is not None:
            home = home.parent
        self._target(node.target, home, "other")

    def _target(self, node: cst.CSTNode, scope: Scope, kind: BindingKind = "assignment") -> None:
        """An assignment target: names bind, everything else is evaluated."""
        if isinstance(node, cst.Name):
            self._bind(scope, node.value, "delete" if kind == "delete" else kind, node)
            self._refer(node, scope, "delete" if kind == "delete" else "store")
        elif isinstance(node, cst.Attribute):
            self._refer(node, scope, "delete" if kind == "delete" else "store")
        elif isinstance(node, (cst.Tuple, cst.List)):
            for element in node.elements:
                self._target(element.value, scope, kind)
        elif isinstance(node, cst.StarredElement):
            self._target(node.value, scope, kind)
        else:
            self._visit(node, scope)

    def _on_assign(self, node: cst.Assign, scope: Scope) -> None:
        self._visit(node.value, scope)
        for target in node.targets:
            self._target(target.target, scope)

    def _on_ann_assign(self, node: cst.AnnAssign, scope: Scope) -> None:
        self._annotation(node.annotation, scope)
        if node.value is not None:
            if _last_name(node.annotation.annotation) == "TypeAlias":
                self._annotation_expression(node.value, scope)
            else:
                self._visit(node.value, scope)
        self._target(node.target, scope)

    def _on_aug_assign(self, node: cst.AugAssign, scope: Scope) -> None:
        self._visit(node.value, scope)
        if isinstance(node.target, cst.Name):
            self._refer(node.target, scope)
        self._target(node.target, scope)

    def _on_del(self, node: cst.Del, scope: Scope) -> None:
        self._target(node.target, scope, "delete")

    def _on_for(self, node: cst.For, scope: Scope) -> None:
        self._visit(node.iter, scope)
        self._target(node.target, scope, "other")
        self._visit(node.body, scope)
        if node.orelse is not None:
            self._visit(node.orelse, scope)

    def _on_with_item(self, node: cst.WithItem, scope: Scope) -> None:
        self._visit(node.item, scope)
        if node.asname is not None:
            self._target(node.asname.name, scope, "other")

    def _on_except(self, node: cst.ExceptHandler | cst.ExceptStarHandler, scope: Scope) -> None:
        if node.type is not None:
            self._visit(node.type, scope)
        if node.name is not None:
            self._target(node.name.name, scope, "other")
        self._visit(node.body, scope)

    def _on_global(self, node: cst.Global, scope: Scope) -> None:
        for item in node.names:
            scope.outside[item.name.value] = "global"

    def _on_nonlocal(self, node: cst.Nonlocal, scope: Scope) -> None:
        for item in node.names:
            scope.outside[item.name.value] = "nonlocal"

    def _on_import(self, node: cst.Import, scope: Scope) -> None:
        for alias in node.names:
            name = _bound_name(alias)
            if alias.asname is None:
                name = name.partition(".")[0]
            self._bind(scope, name, "import", alias)

    def _on_import_from(self, node: cst.ImportFrom, scope: Scope) -> None:
        if not isinstance(node.names, cst.ImportStar):
            for alias in node.names:
                self._bind(scope, _bound_name(alias), "import", alias)

    def _on_function(self, node: cst.FunctionDef, scope: Scope) -> None:
        for decorator in node.decorators:
            self._visit(decorator.decorator, scope)
        self._bind(scope, node.name.value, "function", node)
        outer = scope
        if node.type_parameters is not None:
            outer = self._new("function", node.type_parameters, scope)
            self._type_parameters(node.type_parameters, outer)
        inner = self._new("function", node, outer)
        self._parameters(node.params, outer, inner)
        if node.returns is not None:
            self._annotation(node.returns, outer)
        self._declarations(node.body, inner)
        self._visit(node.body, inner)

    def _on_lambda(self, node: cst.Lambda, scope: Scope) -> None:
        inner = self._new("function", node, scope)
        self._parameters(node.params, scope, inner)
        self._visit(node.body, inner)

    def _declarations(self, body: cst.BaseSuite, scope: Scope) -> None:
        """`global` and `nonlocal` rule the whole function, so they are read before anything binds."""
        stack: list[cst.CSTNode] = [body]
        while stack:
            node = stack.pop()
            if isinstance(node, cst.Global):
                self._on_global(node, scope)
            elif isinstance(node, cst.Nonlocal):
                self._on_nonlocal(node, scope)
            elif isinstance(node, _BLOCKS) or (
                isinstance(node, cst.BaseCompoundStatement)
                and not isinstance(node, (cst.FunctionDef, cst.ClassDef))
            ):
                stack.extend(children(node))

    def _parameters(self, node: cst.Parameters, outer: Scope, inner: Scope) -> None:
        for parameter in children(node):
            if not isinstance(parameter, cst.Param):
                continue
            if parameter.annotation is not None:
                self._annotation(parameter.annotation, outer)
            if parameter.default is not None:
                self._visit(parameter.default, outer)
            self._bind(inner, parameter.name.value, "parameter", parameter)

    def _on_class(self, node: cst.ClassDef, scope: Scope) -> None:
        for decorator in node.decorators:
            self._visit(decorator.decorator, scope)
        self._bind(scope, node.name.value, "class", node)
        outer = scope
        if node.type_parameters is not None:
            outer = self._new("function", node.type_parameters, scope)
            self._type_parameters(node.type_parameters, outer)
        for argument in (*node.bases, *node.keywords):
            if isinstance(argument.value, cst.Subscript):  # `Base["Parameter"]`
                self._annotation_expression(argument.value, outer)
            else:
                self._visit(argument.value, outer)
        inner = self._new("class", node, outer)
        self._declarations(node.body, inner)
        self._visit(node.body, inner)

    def _type_parameters(self, node: cst.TypeParameters, scope: Scope) -> None:
        for parameter in node.params:
            self._bind(scope, parameter.param.name.value, "other", parameter)
            if isinstance(parameter.param, cst.TypeVar) and parameter.param.bound is not None:
                self._annotation_expression(parameter.param.bound, scope)
            if parameter.default is not None:
                self._annotation_expression(parameter.default, scope)

    def _on_type_alias(self, node: cst.TypeAlias, scope: Scope) -> None:
        self._bind(scope, node.name.value, "other", node.name)
        outer = scope
        if node.type_parameters is not None:
            outer = self._new("function", node.type_parameters, scope)
            self._type_parameters(node.type_parameters, outer)
        self._annotation_expression(node.value, outer)

    def _on_comprehension(
        self, node: cst.ListComp | cst.SetComp | cst.GeneratorExp | cst.DictComp, scope: Scope
    ) -> None:
        inner = self._new("comprehension", node, scope)
        clause: cst.CompFor | None = node.for_in
        where = scope  # the first iterable is evaluated outside
        while clause is not None:
            self._visit(clause.iter, where)
            where = inner
            self._target(clause.target, inner, "other")
            for condition in clause.ifs:
                self._visit(condition.test, inner)
            clause = clause.inner_for_in
        if isinstance(node, cst.DictComp):
            self._visit(node.key, inner)
            self._visit(node.value, inner)
        else:
            self._visit(node.elt, inner)

    def _on_match_name(self, node: cst.MatchAs | cst.MatchStar, scope: Scope) -> None:
        if isinstance(node, cst.MatchAs) and node.pattern is not None:
            self._visit(node.pattern, scope)
        if node.name is not None:
            self._target(node.name, scope, "other")

    def _on_match_mapping(self, node: cst.MatchMapping, scope: Scope) -> None:
        for element in node.elements:
            self._visit(element.key, scope)
            self._visit(element.pattern, scope)
        if node.rest is not None:
            self._target(node.rest, scope, "other")

    def _on_match_class(self, node: cst.MatchClass, scope: Scope) -> None:
        self._visit(node.cls, scope)
        for pattern in node.patterns:
            self._visit(pattern.value, scope)
        for keyword in node.kwds:
            self._visit(keyword.pattern, scope)

    def _annotation(self, node: cst.Annotation, scope: Scope) -> None:
        self._annotation_expression(node.annotation, scope)

    def _annotation_expression(self, node: cst.CSTNode, scope: Scope) -> None:
        """An annotation; a quoted part of it counts as the expression it holds."""
        if isinstance(node, cst.SimpleString):
            self._quoted(node, scope)
        elif isinstance(node, (cst.Subscript, cst.BinaryOperation, cst.Tuple, cst.List)):
            if isinstance(node, cst.Subscript):
                name = _last_name(node.value)
                if name in (
                    "Literal",
                    "Annotated",
                ):  # what follows the type in Annotated is any value
                    self._visit(node.value, scope)
                    types = 1 if name == "Annotated" else 0
                    for element in node.slice[:types]:
                        self._annotation_expression(element, scope)
                    for element in node.slice[types:]:
                        self._visit(element, scope)
                    return
            for child in children(node):
                self._annotation_expression(child, scope)
        elif isinstance(node, (cst.SubscriptElement, cst.Index, cst.Element)):
            for child in children(node):
                self._annotation_expression(child, scope)
        else:
            self._visit(node, scope)

    def _quoted(self, node: cst.SimpleString, scope: Scope) -> None:
        prefix = len(node.prefix) + len(node.quote)
        inner = node.value[prefix : -len(node.quote)]
        if "\\" not in inner and "b" not in node.prefix.lower():
            self._typed(inner, self.tree.span(node)[0] + prefix, scope)

    def _typed(self, text: str, base: int, scope: Scope) -> None:
        """An annotation that is written as text and starts at `base`: the names it holds are uses in `scope`."""
        try:
            ast.parse(text.strip(), mode="eval")
            inner_tree = Tree(text.strip())
        except (SyntaxError, ValueError, RecursionError, MemoryError, UnparsableError):
            return  # a string that is no expression is just a string
        base += len(text) - len(text.lstrip())
        for name in Scopes(inner_tree, annotation=True).module.references:
            scope.references.append(
                Reference(
                    name.name,
                    base + name.start,
                    base + name.end,
                    tuple((t, base + s, base + e) for t, s, e in name.trail),
                    scope,
                    None,
                    None,
                )
            )

    def _type_comments(self) -> None:
        """`# type: T` and `# type: (A, B) -> T` (PEP 484) name types as annotations do."""
        starts = line_starts(self.tree.text)
        spans = [(self.tree.span(s.node), s) for s in self.all if s is not self.module]
        try:
            tokens = list(tokenize.generate_tokens(io.StringIO(self.tree.text).readline))
        except (tokenize.TokenError, SyntaxError):
            return
        for token in tokens:
            if token.type != tokenize.COMMENT:
                continue
            found = _TYPE_COMMENT.match(token.string)
            if found is None:
                continue
            base = starts[token.start[0] - 1] + token.start[1]
            around = [
                s for (start, end), s in spans if start <= base < end and s.kind != "comprehension"
            ]
            scope = around[-1] if around else self.module
            for part in ("all", "arguments", "returned"):
                if found[part] is not None:
                    self._typed(found[part].replace("*", " "), base + found.start(part), scope)


def _bound_name(alias: cst.ImportAlias) -> str:
    if alias.asname is not None:
        assert isinstance(alias.asname.name, cst.Name)
        return alias.asname.name.value
    return dotted_name(alias.name) or ""


def _last_name(node: cst.BaseExpression) -> str:
    return (dotted_name(node) or "").rpartition(".")[2]


def dotted_name(node: cst.CSTNode) -> str | None:
    """`a.b.c` of a chain of names; None for any other expression."""
    parts: list[str] = []
    while isinstance(node, cst.Attribute):
        parts.append(node.attr.value)
        node = node.value
    if not isinstance(node, cst.Name):
        return None
    parts.append(node.value)
    return ".".join(reversed(parts))


# Which arguments of typing's functions are types: positions, keywords, "*" for all but the first.
_TYPE_ARGUMENTS: dict[str, frozenset[int | str]] = {
    "cast": frozenset({0, "typ"}),
    "TypeVar": frozenset({"*", "bound", "default"}),
    "NewType": frozenset({1, "tp"}),
    "ForwardRef": frozenset({0, "arg"}),
    "assert_type": frozenset({1, "typ"}),
}
_TYPE_COMMENT = re.compile(
    r"#\s*type:(?!\s*ignore\b)\s*(?:(?P<arguments>\([^#]*\))\s*->\s*(?P<returned>[^#]+)|(?P<all>[^#]+))"
)

_HANDLERS: dict[type[cst.CSTNode], Callable[..., None]] = {
    cst.Call: Scopes._on_call,
    cst.Name: Scopes._on_name,
    cst.Attribute: Scopes._on_name,
    cst.Arg: Scopes._on_keyword_argument,
    cst.NamedExpr: Scopes._on_named_expr,
    cst.Assign: Scopes._on_assign,
    cst.AnnAssign: Scopes._on_ann_assign,
    cst.AugAssign: Scopes._on_aug_assign,
    cst.Del: Scopes._on_del,
    cst.For: Scopes._on_for,
    cst.WithItem: Scopes._on_with_item,
    cst.ExceptHandler: Scopes._on_except,
    cst.ExceptStarHandler: Scopes._on_except,
    cst.Global: Scopes._on_global,
    cst.Nonlocal: Scopes._on_nonlocal,
    cst.Import: Scopes._on_import,
    cst.ImportFrom: Scopes._on_import_from,
    cst.FunctionDef: Scopes._on_function,
    cst.Lambda: Scopes._on_lambda,
    cst.ClassDef: Scopes._on_class,
    cst.TypeAlias: Scopes._on_type_alias,
    cst.ListComp: Scopes._on_comprehension,
    cst.SetComp: Scopes._on_comprehension,
    cst.GeneratorExp: Scopes._on_comprehension,
    cst.DictComp: Scopes._on_comprehension,
    cst.MatchAs: Scopes._on_match_name,
    cst.MatchStar: Scopes._on_match_name,
    cst.MatchMapping: Scopes._on_match_mapping,
    cst.MatchClass: Scopes._on_match_class,
}
