"""One walk over a file: what goes, what stays in its place, and what a person has to look at.

The walk is repeated by `plan` with ever more decisions (parameters, locals, flags … that only fed
dumps), until nothing more falls; the last walk says what to edit.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from codemods.rules.dumps.code import Code, Function, FunctionNode, Span, Var
from codemods.rules.dumps.values import (
    DUMP_WORD,
    SETTING,
    UNKNOWN,
    Callee,
    Dumper,
    Hook,
    Instance,
    Outside,
    Type,
    World,
    bind,
    returned_argument,
)

DECORATOR, CALL, VALUE, LOCAL, PARAMETER, FLAG, RESULT, IMPORT, MANUAL = (
    f"DMP00{n}" for n in range(1, 10)
)
# Added to the depth of lambdas and comprehensions inside a hook call that is listed already.
_LISTED = 1000
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_PURE_PREFIXES = (
    "jax.numpy.",
    "numpy.",
    "jax.nn.",
    "jax.lax.",
    "jax.tree_util.keystr",
    "jax.device_get",
    "jax.process_index",
    "jax.random.",
    "math.",
    "os.path.",
    "functools.partial",
)
_NOT_PURE = re.compile(r"numpy\.(save\w*|load\w*|put\w*|copyto|random\..*|fromfile|memmap)\Z")
_PURE_BUILTINS = frozenset(
    "abs all any bool bytes complex dict divmod enumerate float format frozenset getattr hasattr hash id int "
    "isinstance issubclass len list max min range repr reversed round set slice sorted str sum tuple type "
    "vars zip".split()
)
_PURE_METHODS = frozenset(
    "astype reshape mean sum max min std var prod transpose swapaxes copy flatten ravel squeeze any all argmax "
    "argmin format join keys values items get strip lstrip rstrip lower upper title replace split rsplit "
    "startswith endswith removeprefix removesuffix zfill with_suffix as_posix isoformat".split()
)


@dataclass
class Decisions:
    """What falls with the hooks, beyond the hooks themselves.

    Attributes:
        variables: locals, module names and imports that nothing needs any more.
        parameters: (function key, name); a dataclass counts as the function that makes its objects.
        flags: those of them whose value says whether to dump: they count as off.
        attributes: (class key, name) of attributes set on self.
        results: (function key, index) of values returned.
        functions: keys of functions that go with their definition.
        tries: `try` statements that only import hooks or stand in for them.
        keys: keys of dict displays that are spread into calls.
        names: parameters with a dump word that no function takes any more.
    """

    variables: set[Var] = field(default_factory=set)
    parameters: set[tuple[str, str]] = field(default_factory=set)
    flags: set[tuple[str, str]] = field(default_factory=set)
    attributes: set[tuple[str, str]] = field(default_factory=set)
    results: set[tuple[str, int]] = field(default_factory=set)
    functions: set[str] = field(default_factory=set)
    tries: set[ast.Try] = field(default_factory=set)
    keys: set[ast.expr] = field(default_factory=set)
    names: set[str] = field(default_factory=set)

    def size(self) -> int:
        return sum(
            len(s)
            for s in (
                self.variables,
                self.parameters,
                self.flags,
                self.attributes,
                self.results,
                self.functions,
                self.tries,
                self.keys,
                self.names,
            )
        )


@dataclass(frozen=True, slots=True)
class Operation:
    """One thing to do to the text; `kind` names the method of the renderer."""

    kind: str
    rule: str
    nodes: tuple[ast.AST, ...]
    items: tuple[ast.AST, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """A place for a person."""

    node: ast.AST
    reason: str
    todo: str
    span: Span | None = None


class Walk:
    """What goes from one file, given the decisions.

    Attributes:
        gone: every node that will not be in the result.
        unreached: those of them that are gone because nothing runs them any more, not because they fed a dump.
        operations: what to do to the text, in source order.
        findings: what is left to a person.
    """

    def __init__(self, world: World, file: Code, decisions: Decisions, run: bool = True) -> None:
        """Walk the file; or only make ready to answer questions, if not `run`."""
        self.world, self.file, self.decisions = world, file, decisions
        self.gone: set[ast.AST] = set()
        self.unreached: set[ast.AST] = set()
        self.operations: list[Operation] = []
        self.findings: list[Finding] = []
        self._frozen = 0
        self._asking: set[object] = set()
        if run:
            self.block(file.tree.body)

    # Small questions ------------------------------------------------------------------------------

    def mark(self, *nodes: ast.AST | None) -> None:
        """Count nodes, and what is in them, as gone."""
        for node in nodes:
            if node is not None:
                self.gone.update(ast.walk(node))

    def leave_out(self, *nodes: ast.AST) -> None:
        """Count nodes as gone because nothing runs them any more."""
        for node in nodes:
            fed = {
                n
                for c in ast.walk(node)
                if isinstance(c, ast.Call) and self.hook(c)
                for n in ast.walk(c)
            }
            self.unreached.update(n for n in ast.walk(node) if n not in fed)
        self.mark(*nodes)

    def do(
        self, kind: str, rule: str, *nodes: ast.AST, items: Sequence[ast.AST] = (), reason: str = ""
    ) -> None:
        self.operations.append(Operation(kind, rule, nodes, tuple(items), reason))

    def find(self, node: ast.AST, reason: str, todo: str) -> None:
        self.findings.append(Finding(node, reason, todo))

    def hook(self, node: ast.expr) -> Hook | Dumper | None:
        """The hook that a call calls, or the dumper whose method it calls; None for any other expression."""
        if not isinstance(node, ast.Call):
            return None
        values = self.world.values(self.file, node.func)
        if not values or not all(isinstance(v, (Hook, Dumper)) for v in values):
            return None
        if len(values) > 1:
            returns = {v.returns if isinstance(v, Hook) else None for v in values}
            if len(returns) > 1:
                return Dumper()
        value = next(iter(sorted(values, key=repr)))
        assert isinstance(value, (Hook, Dumper))
        return value

    def hook_result(self, node: ast.stmt) -> bool:
        """Whether a statement only returns what a hook gives back."""
        return (
            isinstance(node, ast.Return)
            and node.value is not None
            and self.hook(node.value) is not None
        )

    def is_machinery(self, node: ast.expr) -> bool:
        values = self.world.values(self.file, node)
        return any(self.world.is_machinery(v) for v in values)

    def holds_hook(self, node: ast.AST) -> bool:
        """Whether a hook is called somewhere in a node."""
        return any(isinstance(n, ast.Call) and self.hook(n) is not None for n in ast.walk(node))

    def off(self, node: ast.expr) -> str | None:
        """ "off" if an expression is false once nothing is dumped, "on" if it is true, None otherwise."""
        if node in self._asking:
            return None
        self._asking.add(node)
        try:
            return self._off(node)
        finally:
            self._asking.discard(node)

    def _off(self, node: ast.expr) -> str | None:
        if isinstance(node, (ast.Name, ast.Attribute)):
            if isinstance(node, ast.Name):
                var = self.file.var_of.get(node)
                if var is not None and self._flag_var(var):
                    return "off"
            elif self._flag_attribute(node):
                return "off"
            return "off" if self.is_machinery(node) else None
        if isinstance(node, ast.Call):
            hook = self.hook(node)
            if isinstance(hook, Dumper) or (isinstance(hook, Hook) and hook.kind == "class"):
                return "off"
            name = node.func.id if isinstance(node.func, ast.Name) else ""
            if name in ("getattr", "hasattr") and len(node.args) > 1:
                key = node.args[1]
                if isinstance(key, ast.Constant) and SETTING.match(str(key.value)):
                    return "off"
            if (
                name in ("bool", "int", "len", "any", "str", "tuple", "list", "set")
                and len(node.args) == 1
            ):
                return "off" if self.off(node.args[0]) == "off" else None
            if isinstance(node.func, ast.Attribute) and node.func.attr in _PURE_METHODS:
                return "off" if self.off(node.func.value) == "off" else None
            return None
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return {"off": "on", "on": "off"}.get(self.off(node.operand) or "")
        if isinstance(node, ast.BoolOp):
            parts = [self.off(v) for v in node.values]
            decisive, other = ("off", "on") if isinstance(node.op, ast.And) else ("on", "off")
            if decisive in parts:
                return decisive
            return other if all(p == other for p in parts) else None
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            return self._off_comparison(node.left, node.ops[0], node.comparators[0])
        if isinstance(node, ast.IfExp):
            test = self.off(node.test)
            if test is not None:
                return self.off(node.body if test == "on" else node.orelse)
        return None

    def _off_comparison(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> str | None:
        if isinstance(op, (ast.In, ast.NotIn)) and self.off(right) == "off":
            return "off" if isinstance(op, ast.In) else "on"
        if self.off(left) == "off" and isinstance(right, ast.Constant):
            if isinstance(op, (ast.Is, ast.Eq)):
                return "off" if right.value else "on"
            if isinstance(op, (ast.IsNot, ast.NotEq)):
                return "on" if right.value else "off"
            if isinstance(op, ast.Gt):
                return "off"
        if self.off(right) == "off" and isinstance(left, ast.Constant) and isinstance(op, ast.Lt):
            return "off"
        return None

    def _flag_var(self, var: Var) -> bool:
        if var in self._asking or not var.stores:
            return False
        self._asking.add(var)
        try:
            for store in var.stores:
                if store.kind == "param":
                    function = self.file.functions.get(var.scope.node)
                    if function is None or (function.key, var.name) not in self.decisions.flags:
                        return False
                elif store.stmt is not None and self._import_try(self.file.parents.get(store.stmt)):
                    continue
                elif (
                    store.kind != "assign" or store.value is None or self.off(store.value) != "off"
                ):
                    return False
            return not var.pinned
        finally:
            self._asking.discard(var)

    def _import_try(self, node: ast.AST | None) -> bool:
        """Whether a node is, or is a handler of, a `try` that only imports dump machinery and sets constants."""
        if isinstance(node, ast.ExceptHandler):
            node = self.file.parents.get(node)
        return isinstance(node, ast.Try) and self.only_imports_hooks(node)

    def only_imports_hooks(self, node: ast.Try) -> bool:
        """Whether a `try` only imports hooks, and its handlers only stand in for them."""
        if node.finalbody or not node.handlers:
            return False
        imports = 0
        for statement in (*node.body, *node.orelse):
            if isinstance(statement, (ast.Import, ast.ImportFrom)):
                if not all(self.imports_machinery(statement, alias) for alias in statement.names):
                    return False
                imports += 1
            elif not _constant_assignment(statement):
                return False
        for handler in node.handlers:
            caught = (
                [n.id for n in ast.walk(handler.type) if isinstance(n, ast.Name)]
                if handler.type
                else []
            )
            if not set(caught) <= {"ImportError", "ModuleNotFoundError", "Exception"}:
                return False
            for statement in handler.body:
                if not (
                    isinstance(statement, (*_FUNCTIONS, ast.ClassDef, ast.Pass))
                    or _constant_assignment(statement)
                ):
                    return False
        return imports > 0

    def imports_machinery(self, statement: ast.Import | ast.ImportFrom, alias: ast.alias) -> bool:
        """Whether an import alias is of a dumper module or a hook."""
        if isinstance(statement, ast.Import):
            return self.world.is_machinery(Outside(alias.name))
        module = self.file.absolute(statement)
        if self.world.is_machinery(Outside(module)):
            return True
        if alias.name == "*":
            return False
        return any(self.world.is_machinery(v) for v in self.world._member(module, alias.name))

    def _flag_attribute(self, node: ast.Attribute) -> bool:
        if SETTING.match(node.attr) and not self.is_machinery(node):
            receivers = self.world.values(self.file, node.value)
            return not any(
                isinstance(v, Outside) and v.name.startswith("MaxText.") for v in receivers
            )
        for value in self.world.values(self.file, node.value):
            if not isinstance(value, Instance):
                continue
            for cls in self.world.lineage(value.key):
                if (cls.key, node.attr) in self.decisions.flags:
                    return True
                stored = self.world.attributes.get((cls.key, node.attr))
                if stored:
                    return all(f is self.file and self.off(v) == "off" for f, v in stored)
        return False

    def effects(self, node: ast.AST) -> list[ast.expr]:
        """The parts of an expression that may do more than give a value, once the hooks in it are gone."""
        if isinstance(node, ast.Call):
            base = self.effects(node.func.value) if isinstance(node.func, ast.Attribute) else []
            if not isinstance(node.func, (ast.Attribute, ast.Name)):
                base = self.effects(node.func)
            parts = [
                e for a in (*node.args, *(k.value for k in node.keywords)) for e in self.effects(a)
            ]
            if self.hook(node) is not None or self._pure_call(node):
                return base + parts
            return [node]
        if isinstance(node, ast.NamedExpr):
            var = self.file.var_of.get(node.target)
            return self.effects(node.value) if var in self.decisions.variables else [node]
        if isinstance(node, ast.Lambda):
            return []
        if isinstance(node, (ast.Await, ast.Yield, ast.YieldFrom)):
            assert isinstance(node, ast.expr)
            return [node]
        inner = [e for child in ast.iter_child_nodes(node) for e in self.effects(child)]
        if inner and isinstance(node, (ast.IfExp, ast.BoolOp, ast.Compare, *_COMPREHENSIONS)):
            sure: ast.AST | None = None
            if isinstance(node, ast.IfExp):
                sure = node.test
            elif isinstance(node, ast.BoolOp):
                sure = node.values[0]
            elif isinstance(node, ast.Compare):
                return inner if len(node.ops) == 1 else [node]
            return inner if sure is not None and inner == self.effects(sure) else [node]  # type: ignore[list-item]
        return inner

    def _pure_call(self, node: ast.Call) -> bool:
        for value in self.world.values(self.file, node.func):
            if isinstance(value, Outside):
                name = value.name
                if name.startswith("builtins.") and name[9:] in _PURE_BUILTINS:
                    continue
                if name.startswith(_PURE_PREFIXES) and not _NOT_PURE.match(name):
                    continue
            if isinstance(node.func, ast.Attribute) and node.func.attr in _PURE_METHODS:
                if value == UNKNOWN:
                    continue
            return False
        return True

    # Statements -----------------------------------------------------------------------------------

    def block(self, body: Sequence[ast.stmt]) -> bool:
        """Walk the statements of a block; True if none is left."""
        left = False
        for statement in body:
            before = len(self.operations), len(self.findings)
            rule = self.statement(statement)
            if rule is None:
                left = True
            else:
                del self.operations[before[0] :]
                del self.findings[before[1] :]
                self.mark(statement)
                self.do("remove_statement", rule, statement)
        return not left

    def fill(self, body: Sequence[ast.stmt]) -> None:
        """Put `pass` where the first statement of an emptied block was."""
        for index, operation in enumerate(self.operations):
            if operation.kind == "remove_statement" and operation.nodes[0] is body[0]:
                self.operations[index] = Operation("fill", operation.rule, operation.nodes)

    def statement(self, node: ast.stmt) -> str | None:
        """Walk one statement; the id of the rule that removes it whole, or None if (some of) it stays."""
        method = getattr(self, f"on_{type(node).__name__}", None)
        if method is not None:
            result: str | None = method(node)
            return result
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.expression(child)
        return None

    def on_Expr(self, node: ast.Expr) -> str | None:
        value = node.value
        if isinstance(value, (*_COMPREHENSIONS, ast.Lambda)) or not self.holds_hook(value):
            self.expression(value)
            return None
        effects = self.effects(value)
        if not effects:
            return CALL
        if effects == [value] or self.hook(value) is None:
            self.expression(value)
            return None
        if any(self._spreads(e) for e in effects):
            self.find(
                value, "an argument with side effects spans lines", "take the dump out by hand"
            )
            return None
        kept = {n for e in effects for n in ast.walk(e)}
        self.gone.update(n for n in ast.walk(value) if n not in kept)
        self.do(
            "keep_effects",
            CALL,
            node,
            items=effects,
            reason="the argument may do something, so it stays",
        )
        for effect in effects:
            self.expression(effect.value if isinstance(effect, ast.NamedExpr) else effect)
        return None

    def _spreads(self, node: ast.expr) -> bool:
        """Whether an expression has a line end outside any bracket of its own."""
        return spreads(self.file, node)

    def _dead_target(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Name):
            return self.file.var_of.get(node) in self.decisions.variables
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            function = self.file.function_of(node)
            if function is None or function.owner is None or not function.positional:
                return False
            return (
                node.value.id == function.positional[0]
                and (function.owner.key, node.attr) in self.decisions.attributes
            )
        if isinstance(node, (ast.Tuple, ast.List)):
            return all(self._dead_target(e) for e in node.elts)
        return False

    def on_Assign(self, node: ast.Assign) -> str | None:
        if all(self._dead_target(t) for t in node.targets) and not self.effects(node.value):
            return LOCAL
        target = node.targets[0]
        if isinstance(target, ast.Name) and target.id == "__all__":
            self._exports(node.value)
            return None
        if (
            len(node.targets) == 1
            and isinstance(target, ast.Name)
            and self._same(target, node.value)
        ):
            return VALUE
        for target in node.targets:
            self._unpack(target, node.value)
            if not isinstance(target, ast.Name):
                self.expression(target)
        self._assigned(node.targets[0], node.value)
        return None

    def _same(self, target: ast.Name, value: ast.expr) -> bool:
        """Whether `x = hook("a", x)` would be left as `x = x`."""
        if (
            self.file.scope_of(target).kind == "class"
            or self._frozen
            or not isinstance(value, ast.Call)
        ):
            return False
        while isinstance(value, ast.Call):
            hook = self.hook(value)
            if not isinstance(hook, Hook) or self.effects(value):
                return False
            argument = returned_argument(hook, value)
            if argument is None:
                return False
            value = argument
        return isinstance(value, ast.Name) and value.id == target.id

    def _assigned(self, target: ast.expr, value: ast.expr) -> None:
        """A value; an alias of a hook is told of by its uses, not here."""
        if isinstance(target, ast.Name) and self.hook(value) is None:
            if any(isinstance(v, Hook) for v in self.world.values(self.file, value)):
                return
        self.expression(value)

    def _exports(self, value: ast.expr) -> None:
        if not isinstance(value, (ast.List, ast.Tuple)):
            return
        dead = [
            e
            for e in value.elts
            if isinstance(e, ast.Constant)
            and self.file.top.names.get(str(e.value)) in self.decisions.variables
        ]
        if dead:
            self.mark(*dead)
            self.do("remove_items", IMPORT, value, items=dead, reason="the name is gone")

    def _unpack(self, target: ast.expr, value: ast.expr) -> None:
        if not isinstance(value, ast.Call) or not isinstance(target, (ast.Tuple, ast.List)):
            return
        dead = sorted(self.dead_results(value))
        items = [target.elts[i] for i in dead if i < len(target.elts)]
        if items:
            self.mark(*items)
            self.do("remove_items", RESULT, target, items=items)

    def dead_results(self, call: ast.Call) -> set[int]:
        """Positions of a call's value that the function no longer returns."""
        found: set[int] = set()
        for value in self.world.call_values.get(call, ()):
            if isinstance(value, Callee):
                found |= {i for k, i in self.decisions.results if k == value.key}
        return found

    def on_AnnAssign(self, node: ast.AnnAssign) -> str | None:
        if self._dead_target(node.target) and (node.value is None or not self.effects(node.value)):
            return LOCAL
        owner = self.file.classes.get(self.file.parents[node])
        if owner is not None and isinstance(node.target, ast.Name) and owner.fields:
            if (owner.key, node.target.id) in self.decisions.parameters:
                return PARAMETER
        self._annotation(node.annotation)
        if not isinstance(node.target, ast.Name):
            self.expression(node.target)
        if node.value is not None:
            self._assigned(node.target, node.value)
        return None

    def on_AugAssign(self, node: ast.AugAssign) -> str | None:
        if self._dead_target(node.target) and not self.effects(node.value):
            return LOCAL
        self.expression(node.target)
        self.expression(node.value)
        return None

    def on_Delete(self, node: ast.Delete) -> str | None:
        dead = [t for t in node.targets if isinstance(t, ast.Name) and self._dead_target(t)]
        if len(dead) == len(node.targets):
            return LOCAL
        if dead:
            self.mark(*dead)
            self.do("remove_items", LOCAL, node, items=dead)
        for target in node.targets:
            if target not in dead:
                self.expression(target)
        return None

    def on_Return(self, node: ast.Return) -> str | None:
        value = node.value
        function = self.file.function_of(node)
        if function is not None and isinstance(value, ast.Tuple):
            dead = [value.elts[i] for k, i in sorted(self.decisions.results) if k == function.key]
            if dead:
                self.mark(*dead)
                self.do("remove_items", RESULT, value, items=dead)
            for element in value.elts:
                if element not in dead:
                    self.expression(element)
        elif value is not None:
            self.expression(value)
        return None

    def on_If(self, node: ast.If) -> str | None:
        off = self.off(node.test)
        if off is not None and not self.effects(node.test):
            kept, dropped = (node.orelse, node.body) if off == "off" else (node.body, node.orelse)
            self.mark(node.test)
            self.leave_out(*dropped)
            if not kept or self.block(kept):
                return FLAG
            self.do("keep_else" if off == "off" else "keep_body", FLAG, node)
            return None
        self.expression(node.test)
        empty = self.block(node.body)
        empty_else = self.block(node.orelse) if node.orelse else False
        if empty and (empty_else or not node.orelse):
            if not self.effects(node.test):
                return CALL
            self.fill(node.body)
            self.find(
                node,
                "only dumps stood under this test, which may do something",
                "see whether it can go",
            )
        elif empty and is_elif(self.file, node):
            self.fill(node.body)
            self.find(
                node, "only dumps stood in this branch; others follow it", "see whether it can go"
            )
        elif empty:
            self.do("invert", CALL, node)
        if empty_else:
            self.do("drop_else", CALL, node, items=[node.orelse[0]])
        return None

    def on_While(self, node: ast.While) -> str | None:
        if self.off(node.test) == "off" and not self.effects(node.test) and not node.orelse:
            return FLAG
        self.expression(node.test)
        self._loop(node)
        return None

    def _loop(self, node: ast.While | ast.For | ast.AsyncFor) -> None:
        self._body(node, node.body, "loop")
        if node.orelse and self.block(node.orelse):
            self.do("drop_else", CALL, node, items=[node.orelse[0]])

    def _body(self, node: ast.AST, body: Sequence[ast.stmt], what: str) -> None:
        if self.block(body):
            self.fill(body)
            self.find(node, f"only dumps stood in this {what}", "see whether it can go")

    def on_For(self, node: ast.For | ast.AsyncFor) -> str | None:
        self.expression(node.iter)
        self._loop(node)
        return None

    on_AsyncFor = on_For

    def on_With(self, node: ast.With | ast.AsyncWith) -> str | None:
        dead = [i for i in node.items if self._dumper_item(i)]
        for item in node.items:
            if item in dead:
                self.mark(item)
            else:
                self.expression(item.context_expr)
        if len(dead) == len(node.items):
            if self.block(node.body):
                return FLAG
            self.do("keep_body", FLAG, node)
            return None
        if dead:
            self.do("remove_items", FLAG, node, items=dead)
        self._body(node, node.body, "with block")
        return None

    on_AsyncWith = on_With

    def _dumper_item(self, item: ast.withitem) -> bool:
        values = self.world.values(self.file, item.context_expr)
        if not values or not all(isinstance(v, Dumper) for v in values):
            return False
        if item.optional_vars is not None and not self._dead_target(item.optional_vars):
            return False
        return not self.effects(item.context_expr)

    def on_Try(self, node: ast.Try | ast.TryStar) -> str | None:
        if node in self.decisions.tries:
            return IMPORT
        self._body(node, node.body, "try block")
        for handler in node.handlers:
            if handler.type is not None:
                self.expression(handler.type)
            self._body(handler, handler.body, "except block")
        if node.orelse and self.block(node.orelse):
            self.do("drop_else", CALL, node, items=[node.orelse[0]])
        if node.finalbody:
            if self.block(node.finalbody):
                self.fill(node.finalbody)
                self.find(
                    node.finalbody[0],
                    "only dumps stood in this finally block",
                    "see whether it can go",
                )
        return None

    on_TryStar = on_Try

    def on_Match(self, node: ast.Match) -> str | None:
        self.expression(node.subject)
        for case in node.cases:
            for part in ast.walk(case.pattern):
                if isinstance(part, ast.expr) and isinstance(self.file.parents[part], ast.pattern):
                    self.expression(part)
            if case.guard is not None:
                self.expression(case.guard)
            if self.block(case.body):
                self.fill(case.body)
                self.find(case.body[0], "only dumps stood in this case", "see whether it can go")
        return None

    def on_Import(self, node: ast.Import | ast.ImportFrom) -> str | None:
        for alias in node.names:
            if alias.name == "*" and self.imports_machinery(node, alias):
                self.find(node, "takes whatever the dumper module offers", "remove it")
        return None

    on_ImportFrom = on_Import

    def on_FunctionDef(self, node: FunctionNode) -> str | None:
        function = self.file.functions[node]
        if function.key in self.decisions.functions:
            return LOCAL
        if self._about_dumps(node):
            self.find(node, "this function tests the dump hooks themselves", "delete it")
            return None
        self._decorators(node, function)
        dead = {n for k, n in self.decisions.parameters if k == function.key}
        arguments = node.args
        removed: list[ast.AST] = []
        for argument in ast.walk(arguments):
            if isinstance(argument, ast.arg) and self.file.parents[argument] is arguments:
                if argument.arg in dead:
                    removed.append(argument)
                elif argument.annotation is not None:
                    self._annotation(argument.annotation)
        self.mark(*removed)
        for name, default in function.defaults.items():
            if name in dead:
                self.mark(default)
            else:
                self.expression(default)
        if removed:
            self.do("remove_parameters", PARAMETER, node, items=removed)
            self._stale_docstring(node, dead)
        if node.returns is not None:
            positions = [i for k, i in self.decisions.results if k == function.key]
            if positions:
                self._return_annotation(node.returns, function, positions)
            else:
                self._annotation(node.returns)
        if self.block(node.body):
            self.fill(node.body)
        return None

    on_AsyncFunctionDef = on_FunctionDef

    def _about_dumps(self, node: FunctionNode) -> bool:
        """Whether a function asserts something of a hook or dumper, or is a test that switches dumping on."""
        if not node.name.startswith("test") and not any(
            isinstance(n, ast.Assert) for n in node.body
        ):
            return False
        for part in ast.walk(node):
            if isinstance(part, ast.Assert) and self.holds_hook(part.test):
                return True
            if isinstance(part, ast.Call):
                name = part.func.attr if isinstance(part.func, ast.Attribute) else ""
                if name.startswith("assert") and self.holds_hook(part):
                    return True
                for keyword in part.keywords:
                    on = not isinstance(keyword.value, ast.Constant) or keyword.value.value
                    if keyword.arg and SETTING.match(keyword.arg) and on:
                        return True
        return False

    def _stale_docstring(self, node: FunctionNode, names: set[str]) -> None:
        first = node.body[0]
        if not (isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)):
            return
        start, end = self.file.span(first)
        for name in sorted(names):
            pattern = rf"^\s*(?:[:@]param\s+)?({re.escape(name)})\b\s*(?:\([^)\n]*\))?\s*:"
            if DUMP_WORD.search(name):
                pattern = rf"\b({re.escape(name)})\b"
            match = re.search(pattern, self.file.text[start:end], re.MULTILINE)
            if match:
                reason = f"the docstring speaks of the removed parameter `{name}`"
                span = start + match.start(1), start + match.end(1)
                self.findings.append(Finding(first, reason, "reword it", span))

    def _return_annotation(self, node: ast.expr, function: Function, positions: list[int]) -> None:
        length = len(function.returns[0].value.elts)  # type: ignore[union-attr]
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple):
            if len(node.slice.elts) == length and length - len(positions) > 1:
                items = [node.slice.elts[i] for i in positions]
                self.mark(*items)
                self.do("remove_items", RESULT, node.slice, items=items)
                return
        self.find(node, "the function returns fewer values now", "correct the annotation")

    def _decorators(self, node: FunctionNode | ast.ClassDef, function: Function | None) -> None:
        for decorator in node.decorator_list:
            hook = self.hook(decorator)
            values = self.world.values(self.file, decorator)
            if hook is not None or any(isinstance(v, Hook) for v in values):
                if not self.effects(decorator):
                    self.mark(decorator)
                    self.do("remove_decorator", DECORATOR, node, items=[decorator])
                else:
                    self.find(
                        decorator,
                        "an argument of this decorator may do something",
                        "take it out by hand",
                    )
                continue
            self.expression(decorator)
            if function is not None and isinstance(decorator, ast.Call):
                self._static_numbers(decorator, [(function, 0)])

    def on_ClassDef(self, node: ast.ClassDef) -> str | None:
        self._decorators(node, None)
        for part in (*node.bases, *(k.value for k in node.keywords)):
            self.expression(part)
        if self.block(node.body):
            self.fill(node.body)
        return None

    # Expressions ----------------------------------------------------------------------------------

    def expression(self, node: ast.expr) -> None:
        """Walk an expression whose value is used."""
        if isinstance(node, (ast.Name, ast.Attribute)):
            self._reference(node)
            return
        if isinstance(node, ast.Call):
            self._call(node)
            return
        if isinstance(node, (ast.Lambda, *_COMPREHENSIONS)):
            self._delayed(node)
            return
        if isinstance(node, ast.IfExp):
            off = self.off(node.test)
            if off is not None and not self.effects(node.test):
                kept, dropped = (
                    (node.orelse, node.body) if off == "off" else (node.body, node.orelse)
                )
                self.mark(node.test)
                self.leave_out(dropped)
                self.do("keep_part", FLAG, node, kept)
                self.expression(kept)
                return
        if isinstance(node, ast.BoolOp):
            unit = "on" if isinstance(node.op, ast.And) else "off"
            dead = [v for v in node.values if self.off(v) == unit and not self.effects(v)]
            if dead and len(dead) < len(node.values):
                self.mark(*dead)
                self.do("remove_operands", FLAG, node, items=dead)
                for value in node.values:
                    if value not in dead:
                        self.expression(value)
                return
        if isinstance(node, ast.Dict):
            dead = [k for k in node.keys if k is not None and k in self.decisions.keys]
            if dead:
                self.do("remove_items", PARAMETER, node, items=dead)
            for key, value in zip(node.keys, node.values, strict=True):
                if key is not None and key in dead:
                    self.mark(key, value)
                else:
                    for part in (key, value):
                        if part is not None:
                            self.expression(part)
            return
        if isinstance(node, ast.Constant):
            self._string(node)
            return
        if isinstance(node, (ast.List, ast.Tuple)):
            self._settings(node, list(node.elts))
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr) and child not in self.gone:
                self.expression(child)
            elif isinstance(child, (ast.keyword, ast.FormattedValue, ast.Slice)):
                for part in ast.iter_child_nodes(child):
                    if isinstance(part, ast.expr):
                        self.expression(part)

    def _annotation(self, node: ast.expr) -> None:
        for part in ast.walk(node):
            if isinstance(part, ast.Constant):
                names = self.file.quoted.get(part, ())
                if any(
                    self.world.is_machinery(v)
                    for n in names
                    for v in self.world.of_var(self.file, n)
                ):
                    self.find(part, "an annotation names the dumper", "remove it")
            elif isinstance(part, ast.Name) and self.is_machinery(part):
                self.find(part, "an annotation names the dumper", "remove it")

    def _reference(self, node: ast.Name | ast.Attribute) -> None:
        if isinstance(node.ctx, ast.Load):
            if self.is_machinery(node):
                values = self.world.values(self.file, node)
                if any(isinstance(v, Outside) for v in values):
                    reason = "the dumper module is used as a value"
                elif any(isinstance(v, Dumper) for v in values):
                    reason = "a dumper is used as a value"
                else:
                    reason = "a dump hook is used as a value, so its calls cannot all be seen"
                self.find(
                    node,
                    reason,
                    "take it out by hand; the dumper module is not in the migrated tree",
                )
                return
            if isinstance(node, ast.Attribute):
                if SETTING.match(node.attr):
                    if self._flag_attribute(node):
                        self.find(
                            node,
                            "reads a setting of the dumper, which the migrated tree does not have",
                            "remove what depends on it",
                        )
                elif any(
                    self.world.is_machinery(v) for v in self.world.values(self.file, node.value)
                ):
                    self.find(
                        node, "takes from the dumper module what is no hook", "copy what is needed"
                    )
                    return
        if isinstance(node, ast.Attribute):
            self.expression(node.value)

    def _delayed(self, node: ast.expr) -> None:
        """A lambda or comprehension: hooks in it are called later or many times, and are left to a person."""
        if isinstance(node, _COMPREHENSIONS):
            self.expression(node.generators[0].iter)
            parts: list[ast.expr] = (
                [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
            )
            for index, clause in enumerate(node.generators):
                parts.extend(clause.ifs if index == 0 else [clause.iter, *clause.ifs])
        else:
            assert isinstance(node, ast.Lambda)
            for default in (*node.args.defaults, *node.args.kw_defaults):
                if default is not None:
                    self.expression(default)
            parts = [node.body]
        self._frozen += 1
        for part in parts:
            self.expression(part)
        self._frozen -= 1

    def _call(self, node: ast.Call) -> None:
        hook = self.hook(node)
        if hook is not None:
            self._hook_value(node, hook)
            return
        self._settings(node, [*node.args])
        dead: list[ast.AST] = []
        targets = self.world._targets(self.file, node)
        if targets:
            bound = [bind(function, callee, node) for function, callee in targets]
            for index, (function, _) in enumerate(targets):
                for name, argument in bound[index].items():
                    if argument is not None and (function.key, name) in self.decisions.parameters:
                        dead.append(argument)
        for keyword in node.keywords:
            if keyword.arg is None:
                continue
            if (
                keyword.arg in self.decisions.names
                and not targets
                and not self.effects(keyword.value)
            ):
                dead.append(keyword.value)
            elif SETTING.match(keyword.arg) and not self.effects(keyword.value):
                dead.append(keyword.value)
        names = self._static_names(node)
        dead.extend(n for n in names if n not in dead)
        dead = [n for n in dict.fromkeys(dead)]
        if dead:
            self.mark(*dead)
            items = [k if k.value in dead else None for k in node.keywords]
            self.do(
                "remove_items",
                PARAMETER,
                node,
                items=[*(a for a in node.args if a in dead), *(k for k in items if k is not None)],
            )
        first = node.args[0] if node.args else None
        if first is not None and any(
            k.arg in ("static_argnums", "donate_argnums") for k in node.keywords
        ):
            functions = [
                (self.world.functions[v.key], v.given)
                for v in self.world.values(self.file, first)
                if isinstance(v, Callee) and v.key in self.world.functions
            ]
            self._static_numbers(node, functions)
        self.expression(node.func)
        for argument in (*node.args, *(k.value for k in node.keywords)):
            if argument not in self.gone:
                self.expression(argument)

    def _hook_value(self, node: ast.Call, hook: Hook | Dumper) -> None:
        def left(reason: str) -> None:
            self.find(
                node,
                reason,
                "take the dump out by hand; the dumper module is not in the migrated tree",
            )
            for argument in (*node.args, *(k.value for k in node.keywords)):
                self.expression(argument)
            if isinstance(node.func, ast.Attribute) and isinstance(hook, Dumper):
                self.gone.discard(node.func)

        if self._frozen:
            if self._frozen < _LISTED:
                self.find(
                    node,
                    "a hook in a lambda or comprehension is called later or many times",
                    "take the dump out by hand; the dumper module is not in the migrated tree",
                )
            self._frozen += _LISTED
            for argument in (*node.args, *(k.value for k in node.keywords)):
                self.expression(argument)
            self._frozen -= _LISTED
            return
        if isinstance(hook, Dumper) or hook.kind == "class":
            left("the value of a call to the dumper is used")
            return
        argument = returned_argument(hook, node)
        if argument is None:
            if not hook.known:
                left(
                    "the hook's definition is not in the checkout, so what the call returns cannot be read"
                )
            elif hook.returns is None:
                left("the value of a hook that does not return its argument is used")
            else:
                left("it cannot be said which argument this call returns")
            return
        others = [a for a in (*node.args, *(k.value for k in node.keywords)) if a is not argument]
        if any(self.effects(a) for a in others):
            left("an argument that is not returned may do something")
            return
        if isinstance(argument, ast.Starred):
            left("it cannot be said which argument this call returns")
            return
        self.mark(node.func, *others)
        self.gone.add(node)
        self.do("keep_part", VALUE, node, argument)
        self.expression(argument)

    def _static_names(self, node: ast.Call) -> list[ast.AST]:
        """Values of static_argnames and donate_argnames that name nothing else than removed parameters."""
        whole: list[ast.AST] = []
        for keyword in node.keywords:
            if keyword.arg not in ("static_argnames", "donate_argnames"):
                continue
            value = keyword.value
            parts = value.elts if isinstance(value, (ast.Tuple, ast.List)) else [value]
            dead = [
                p
                for p in parts
                if isinstance(p, ast.Constant) and str(p.value) in self.decisions.names
            ]
            if dead and len(dead) == len(parts):
                whole.append(value)
            elif dead:
                self.mark(*dead)
                self.do("remove_items", PARAMETER, value, items=dead)
        return whole

    def _static_numbers(self, node: ast.Call, functions: list[tuple[Function, int]]) -> None:
        """Positions in static_argnums and donate_argnums move when a parameter before them goes."""
        for keyword in node.keywords:
            if keyword.arg not in ("static_argnums", "donate_argnums"):
                continue
            parts = (
                keyword.value.elts
                if isinstance(keyword.value, (ast.Tuple, ast.List))
                else [keyword.value]
            )
            numbers = [
                p.value for p in parts if isinstance(p, ast.Constant) and isinstance(p.value, int)
            ]
            for function, given in functions:
                gone = [
                    i - given
                    for i, name in enumerate(function.positional)
                    if (function.key, name) in self.decisions.parameters
                ]
                if gone and (
                    len(numbers) != len(parts) or any(n >= min(gone) or n < 0 for n in numbers)
                ):
                    self.find(
                        keyword.value,
                        "a parameter before these positions was removed, so they count anew",
                        "correct the positions",
                    )

    def _settings(self, node: ast.expr, elements: list[ast.expr]) -> None:
        """`"argus_dump_dir=/tmp/x"` among the arguments of a run goes."""
        dead = []
        for element in elements:
            text = (
                element.values[0]
                if isinstance(element, ast.JoinedStr) and element.values
                else element
            )
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                if re.match(r"argus_\w+=", text.value) and not self.effects(element):
                    dead.append(element)
        if dead:
            self.mark(*dead)
            self.do("remove_items", PARAMETER, node, items=dead)

    def _string(self, node: ast.Constant) -> None:
        if not isinstance(node.value, str):
            return
        text = node.value
        if text in self.decisions.names:
            self.find(node, "names a parameter that is gone", "remove it")
        elif SETTING.match(text):
            parent = self.file.parents.get(node)
            if not isinstance(parent, ast.Expr):
                self.find(node, "names a setting of the dumper", "remove it")
        elif "." in text and re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", text):
            module, _, name = text.rpartition(".")
            values = self.world._member(module, name)
            if self.world.is_machinery(Outside(module)) or any(
                self.world.is_machinery(v) for v in values
            ):
                self.find(
                    node,
                    "names a dump hook or the dumper module",
                    "remove what patches or loads it",
                )


def spreads(file: Code, node: ast.expr) -> bool:
    """Whether an expression has a line end outside any bracket of its own."""
    start, end = file.span(node)
    depth = 0
    last = None
    for token in file.tokens_in(start, end):
        if last is not None and depth == 0 and file.line_of(last.end) != file.line_of(token.start):
            return True
        if token.text in ("(", "[", "{"):
            depth += 1
        elif token.text in (")", "]", "}"):
            depth -= 1
        last = token
    return False


def is_elif(file: Code, node: ast.If) -> bool:
    """Whether what follows an `if` is an `elif`."""
    if len(node.orelse) != 1 or not isinstance(node.orelse[0], ast.If):
        return False
    start = file.span(node.orelse[0])[0]
    return file.text.startswith("elif", start)


def _constant_assignment(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Assign)
        and all(isinstance(t, ast.Name) for t in node.targets)
        and isinstance(node.value, (ast.Constant, ast.Lambda))
    )


__all__ = ["DUMP_WORD", "Decisions", "Type", "Walk", "is_elif", "spreads"]
