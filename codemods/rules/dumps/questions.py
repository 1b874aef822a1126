"""What the walk over a file asks: which calls are hooks, what is off, what may have effects."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from codemods.rules.dumps.code import Code, Span, Var
from codemods.rules.dumps.values import SETTING, UNKNOWN, Dumper, Hook, Instance, Outside, World

DECORATOR, CALL, VALUE, LOCAL, PARAMETER, FLAG, RESULT, IMPORT, MANUAL = (
    f"DMP00{n}" for n in range(1, 10)
)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
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
    [
        "abs",
        "all",
        "any",
        "bool",
        "bytes",
        "complex",
        "dict",
        "divmod",
        "enumerate",
        "float",
        "format",
        "frozenset",
        "getattr",
        "hasattr",
        "hash",
        "id",
        "int",
        "isinstance",
        "issubclass",
        "len",
        "list",
        "max",
        "min",
        "range",
        "repr",
        "reversed",
        "round",
        "set",
        "slice",
        "sorted",
        "str",
        "sum",
        "tuple",
        "type",
        "vars",
        "zip",
    ]
)
_PURE_METHODS = frozenset(
    [
        "astype",
        "reshape",
        "mean",
        "sum",
        "max",
        "min",
        "std",
        "var",
        "prod",
        "transpose",
        "swapaxes",
        "copy",
        "flatten",
        "ravel",
        "squeeze",
        "any",
        "all",
        "argmax",
        "argmin",
        "format",
        "join",
        "keys",
        "values",
        "items",
        "get",
        "strip",
        "lstrip",
        "rstrip",
        "lower",
        "upper",
        "title",
        "replace",
        "split",
        "rsplit",
        "startswith",
        "endswith",
        "removeprefix",
        "removesuffix",
        "zfill",
        "with_suffix",
        "as_posix",
        "isoformat",
    ]
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


class Questions:
    """What the walk over a file asks at every turn, and where it keeps its answers.

    Attributes:
        gone: every node that will not be in the result.
        unreached: those of them that are gone because nothing runs them any more, not because they fed a dump.
        operations: what to do to the text, in source order.
        findings: what is left to a person.
    """

    def __init__(self, world: World, file: Code, decisions: Decisions) -> None:
        self.world, self.file, self.decisions = world, file, decisions
        self.gone: set[ast.AST] = set()
        self.unreached: set[ast.AST] = set()
        self.operations: list[Operation] = []
        self.findings: list[Finding] = []
        self.frozen = 0
        self._asking: set[object] = set()

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
                    isinstance(statement, (*FUNCTIONS, ast.ClassDef, ast.Pass))
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
        if inner and isinstance(node, (ast.IfExp, ast.BoolOp, ast.Compare, *COMPREHENSIONS)):
            if isinstance(node, ast.Compare):
                return inner if len(node.ops) == 1 else [node]
            sure: list[ast.expr] = []  # of what is evaluated in any case, and once
            if isinstance(node, ast.IfExp):
                sure = self.effects(node.test)
            elif isinstance(node, ast.BoolOp):
                sure = self.effects(node.values[0])
            return inner if inner == sure else [node]
        return inner

    def _pure_call(self, node: ast.Call) -> bool:
        for value in self.world.values(self.file, node.func):
            if isinstance(value, Outside):
                name = value.name
                if name.startswith("builtins.") and name[9:] in _PURE_BUILTINS:
                    continue
                if name.startswith(_PURE_PREFIXES) and not _NOT_PURE.match(name):
                    continue
            method = isinstance(node.func, ast.Attribute) and node.func.attr in _PURE_METHODS
            if not (method and value == UNKNOWN):
                return False
        return True


def counted(world: World, file: Code, node: ast.For | ast.AsyncFor) -> ast.expr | None:
    """What a loop `for i, x in enumerate(xs)` goes over; None if it is not of that form."""
    call = node.iter
    if not isinstance(node, ast.For) or not isinstance(call, ast.Call) or len(call.args) != 1:
        return None
    if call.keywords or isinstance(call.args[0], ast.Starred) or spreads(file, call.args[0]):
        return None
    named = world.values(file, call.func) == {Outside("builtins.enumerate")}
    return call.args[0] if named else None


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
