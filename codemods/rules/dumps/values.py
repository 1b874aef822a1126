"""What an expression may stand for: hooks and dumpers above all, and the functions that dumps pass through."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from codemods.rules.dumps.code import Class, Code, Function, Store, Var

DUMP_WORD = re.compile(r"dump|argus", re.IGNORECASE)
SETTING = re.compile(r"argus_\w+\Z")
# What the fork's dumper offers, for a checkout that only imports it.
DEFAULT_MODULE = "MaxText.utils.argus_utils"
DEFAULT_HOOKS = ("dump_tensor", "dumpable", "Dumper")


@dataclass(frozen=True, slots=True)
class Hook:
    """A function or class of the dump machinery.

    Attributes:
        name: its dotted name.
        kind: "function" hands values over, "decorator" wraps, "class" makes dumpers.
        returns: the parameter that it always returns unchanged; None if it does not, or is not known to.
        parameters: names that can be given by position, in order.
        known: whether its definition was read.
        given: how many positional arguments functools.partial has given already.
        keywords: keyword arguments given already.
    """

    name: str
    kind: str
    returns: str | None = None
    parameters: tuple[str, ...] = ()
    known: bool = True
    given: int = 0
    keywords: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Outside:
    """A module, or something in a module, by its dotted name."""

    name: str


@dataclass(frozen=True, slots=True)
class Dumper:
    """A dumper object, or anything got from one."""


@dataclass(frozen=True, slots=True)
class Callee:
    """A function of the checkout, with `given` positional and `keywords` arguments already bound.

    Attributes:
        other: whether what it returns is something else, as of a gradient.
    """

    key: str
    given: int = 0
    keywords: frozenset[str] = frozenset()
    other: bool = False


@dataclass(frozen=True, slots=True)
class Type:
    """A class of the checkout."""

    key: str


@dataclass(frozen=True, slots=True)
class Instance:
    """An object of a class of the checkout."""

    key: str


@dataclass(frozen=True, slots=True)
class Pack:
    """A tuple of known length."""

    elements: tuple[frozenset[Value], ...]


Value = Hook | Outside | Dumper | Callee | Type | Instance | Pack
Values = frozenset[Value]
NOTHING: Values = frozenset()
_FLOW_ROUNDS = 12
# Expressions that cannot stand for anything of interest.
_DULL = (
    ast.JoinedStr,
    ast.BinOp,
    ast.Compare,
    ast.UnaryOp,
    ast.Dict,
    ast.ListComp,
    ast.DictComp,
    ast.Lambda,
)
UNKNOWN = Outside("?")
NONE = Outside("None")
SOMETHING: Values = frozenset({UNKNOWN})

# Calls that give back a function that takes the same arguments as their first.
_TRANSPARENT = frozenset(
    {
        "jax.jit",
        "jax.checkpoint",
        "jax.remat",
        "jax.named_call",
        "jax.ad_checkpoint.checkpoint",
        "jax.named_scope",
        "flax.nnx.jit",
        "flax.nnx.remat",
        "flax.linen.jit",
        "flax.linen.remat",
        "functools.wraps",
        "functools.cache",
        "functools.lru_cache",
        "builtins.staticmethod",
        "builtins.classmethod",
        "builtins.property",
        "abc.abstractmethod",
        "typing.overload",
    }
)

# Calls that give back a function that takes the same arguments as their first, and returns other values.
_SAME_ARGUMENTS = frozenset(
    {
        "jax.grad",
        "jax.value_and_grad",
        "jax.jacfwd",
        "jax.jacrev",
        "jax.hessian",
        "flax.nnx.grad",
        "flax.nnx.value_and_grad",
    }
)


class World:
    """The files looked at together, and what names in them may stand for.

    Attributes:
        files: the parsed files.
        modules: dotted name → file.
        functions, classes: by key.
        dumpers: dotted names of the dumper modules.
        inert: keys of functions that do nothing but dump; they count as hooks.
    """

    def __init__(self, files: Iterable[Code], known: dict[str, Value] | None = None) -> None:
        self.files = list(files)
        self.known = known or {}
        self.modules = {f.name: f for f in self.files if f.name}
        self.functions: dict[str, Function] = {}
        self.classes: dict[str, Class] = {}
        self.inert: dict[str, Hook] = {}
        for file in self.files:
            for function in file.functions.values():
                self.functions[function.key] = function
            for cls in file.classes.values():
                self.classes[cls.key] = cls
        self.dumpers = frozenset(f.name for f in self.files if f.name and is_dumper(f))
        if not any(d.endswith("argus_utils") for d in self.dumpers):
            self.assumed = {
                f"{DEFAULT_MODULE}.{name}": Hook(
                    f"{DEFAULT_MODULE}.{name}",
                    (
                        "class"
                        if name == "Dumper"
                        else "decorator" if name == "dumpable" else "function"
                    ),
                    known=False,
                )
                for name in DEFAULT_HOOKS
            }
        else:
            self.assumed = {}
        self.hooks = {
            name: hook for d in self.dumpers for name, hook in _hooks_of(self.modules[d]).items()
        }
        self.parameters: dict[tuple[str, str], set[Value]] = {}
        self.attributes: dict[tuple[str, str], list[tuple[Code, ast.expr]]] = {}
        self.calls: dict[str, list[tuple[Code, ast.Call, Callee]]] = {}
        self._calls: list[tuple[Code, ast.Call]] = []
        self.call_values: dict[ast.Call, Values] = {}
        self.unresolved: list[tuple[Code, ast.Call]] = []
        self._memo: dict[ast.AST, Values] = {}
        self._var_memo: dict[Var, Values] = {}
        self._busy: set[object] = set()
        self._uncalled: set[str] = set()
        for file in self.files:
            for node in file.parents:
                if isinstance(node, (ast.Assign, ast.AnnAssign)):
                    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                    for target in targets:
                        self._attribute_store(file, target, node.value)

    def _attribute_store(self, file: Code, target: ast.expr, value: ast.expr | None) -> None:
        if not (isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and value):
            return
        function = file.function_of(target)
        if function is None or function.owner is None or not function.positional:
            return
        if target.value.id == function.positional[0] and not function.static:
            key = (function.owner.key, target.attr)
            self.attributes.setdefault(key, []).append((file, value))

    # Values ---------------------------------------------------------------------------------------

    def forget(self) -> None:
        """Drop what was worked out, after `inert` or `parameters` grew."""
        self._memo.clear()
        self._var_memo.clear()

    def values(self, file: Code, node: ast.expr) -> Values:
        """What an expression may stand for; holds UNKNOWN unless all is known."""
        found = self._memo.get(node)
        if found is None:
            if node in self._busy:
                return NOTHING
            self._busy.add(node)
            try:
                found = self._evaluate(file, node)
            finally:
                self._busy.discard(node)
            self._memo[node] = found
        return found

    def _evaluate(self, file: Code, node: ast.expr) -> Values:
        if isinstance(node, ast.Name):
            var = file.var_of.get(node)
            if var is not None:
                return self.of_var(file, var)
            for star in file.stars:
                found = self._member(file.absolute(star), node.id)
                if any(isinstance(v, Hook) for v in found):
                    return found
            return frozenset({Outside(f"builtins.{node.id}")})
        if isinstance(node, ast.Attribute):
            return self._union(self._attribute(v, node.attr) for v in self.values(file, node.value))
        if isinstance(node, ast.Call):
            return self._call(file, node)
        if isinstance(node, ast.IfExp):
            return self.values(file, node.body) | self.values(file, node.orelse)
        if isinstance(node, ast.BoolOp):
            return self._union(self.values(file, v) for v in node.values)
        if isinstance(node, ast.NamedExpr):
            return self.values(file, node.value)
        if isinstance(node, (ast.Tuple, ast.List)):
            if any(isinstance(e, ast.Starred) for e in node.elts):
                return SOMETHING
            return frozenset({Pack(tuple(self.values(file, e) for e in node.elts))})
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            index = node.slice.value
            if isinstance(index, int):
                return self._union(self._item(v, index) for v in self.values(file, node.value))
        if isinstance(node, ast.Constant) and node.value is None:
            return frozenset({NONE})
        return SOMETHING

    @staticmethod
    def _union(parts: Iterable[Values]) -> Values:
        found: set[Value] = set()
        for part in parts:
            found |= part
        return frozenset(found)

    @staticmethod
    def _item(value: Value, index: int) -> Values:
        if isinstance(value, Pack) and -len(value.elements) <= index < len(value.elements):
            return value.elements[index]
        return frozenset({value}) if isinstance(value, Dumper) else SOMETHING

    def of_var(self, file: Code, var: Var) -> Values:
        """What a variable may stand for."""
        found = self._var_memo.get(var)
        if found is None:
            if var in self._busy:
                return NOTHING
            self._busy.add(var)
            try:
                found = self._union(self._stored(file, s, var) for s in var.stores)
                hooks = frozenset(
                    v for v in found if isinstance(v, (Hook, Dumper)) or self.is_machinery(v)
                )
                if hooks and any(s.kind == "import" and in_import_try(file, s) for s in var.stores):
                    found = hooks  # the fallback stands in for the hook
            finally:
                self._busy.discard(var)
            self._var_memo[var] = found
        return found

    def is_machinery(self, value: Value) -> bool:
        """Whether a value is a dumper module, a hook or a dumper."""
        if isinstance(value, Outside):
            return value.name in self.dumpers or (
                bool(self.assumed) and value.name == DEFAULT_MODULE
            )
        return isinstance(value, (Hook, Dumper))

    def _stored(self, file: Code, store: Store, var: Var) -> Values:
        if store.kind == "import":
            return self._imported(file, store)
        if store.kind in ("def", "class"):
            if isinstance(store.node, ast.ClassDef):
                return frozenset({Type(file.classes[store.node].key)})
            function = file.functions[store.node]
            return frozenset({self.inert.get(function.key) or Callee(function.key)})
        if store.kind == "param":
            return self._parameter(file, store, var)
        if store.kind in ("assign", "walrus") and store.value is not None:
            return self.values(file, store.value)
        if store.kind == "unpack" and store.value is not None:
            found = self.values(file, store.value)
            for index in store.path:
                found = (
                    self._union(self._item(v, index) for v in found) if index >= 0 else SOMETHING
                )
            return found
        if store.kind == "with" and store.value is not None:
            found = self.values(file, store.value)
            return found if found and all(isinstance(v, Dumper) for v in found) else SOMETHING
        return SOMETHING if store.kind != "assign" else NOTHING

    def _imported(self, file: Code, store: Store) -> Values:
        alias, statement = store.node, store.stmt
        assert isinstance(alias, ast.alias)
        if isinstance(statement, ast.Import):
            return frozenset(
                {Outside(alias.name if alias.asname else alias.name.partition(".")[0])}
            )
        assert isinstance(statement, ast.ImportFrom)
        return self._member(file.absolute(statement), alias.name)

    def _member(self, module: str, name: str) -> Values:
        """What `name` of a module stands for."""
        dotted = f"{module}.{name}"
        if dotted in self.hooks:
            return frozenset({self.hooks[dotted]})
        if dotted in self.assumed:
            return frozenset({self.assumed[dotted]})
        file = self.modules.get(module)
        if file is not None and file.name not in self.dumpers:
            var = file.top.names.get(name)
            if var is not None and var.stores:
                return self.of_var(file, var)
            for star in file.stars:
                found = self._member(file.absolute(star), name)
                if any(isinstance(v, Hook) for v in found):
                    return found
        if dotted in self.known:
            return frozenset({self.known[dotted]})
        return frozenset({Outside(dotted)})

    def _attribute(self, value: Value, name: str) -> Values:
        if isinstance(value, Outside):
            if value in (UNKNOWN, NONE):
                return NOTHING if value == NONE else SOMETHING
            return self._member(value.name, name)
        if isinstance(value, Dumper):
            return frozenset({value})
        if isinstance(value, Hook):
            return frozenset({Dumper()}) if value.kind == "class" else SOMETHING
        if isinstance(value, (Type, Instance)) and value.key in self.classes:
            for cls in self.lineage(value.key):
                if name in cls.methods:
                    method = cls.methods[name]
                    if method.key in self.inert:
                        hook = self.inert[method.key]
                        bound = int(isinstance(value, Instance) and not method.static)
                        return frozenset(
                            {Hook(hook.name, hook.kind, hook.returns, hook.parameters[bound:])}
                        )
                    if any(d for d in method.node.decorator_list if ast.unparse(d) == "property"):
                        return self._returned(method)
                    return frozenset(
                        {Callee(method.key, int(isinstance(value, Instance) and not method.static))}
                    )
                stored = self.attributes.get((cls.key, name))
                if stored:
                    return self._union(self.values(f, v) for f, v in stored)
                if name in cls.fields:
                    return self._annotated(cls.module, cls.fields[name].annotation)
        return SOMETHING

    def lineage(self, key: str) -> Iterator[Class]:
        """A class and its bases in the checkout, nearest first."""
        seen: set[str] = set()
        queue = [key]
        while queue:
            key = queue.pop(0)
            if key in seen or key not in self.classes:
                continue
            seen.add(key)
            cls = self.classes[key]
            yield cls
            for base in cls.node.bases:
                queue.extend(v.key for v in self.values(cls.module, base) if isinstance(v, Type))

    def _parameter(self, file: Code, store: Store, var: Var) -> Values:
        argument = store.node
        assert isinstance(argument, ast.arg)
        definition = var.scope.node
        function = file.functions.get(definition)
        if function is None:
            return SOMETHING
        owner = function.owner
        if owner is not None and function.positional[:1] == (argument.arg,) and not function.static:
            return frozenset({Instance(owner.key)})
        found: set[Value] = set(self.parameters.get((function.key, argument.arg), ()))
        default = function.defaults.get(argument.arg)
        if default is not None:
            values = self.values(file, default)
            # A hook as a default value: callers may well give something else.
            found |= {UNKNOWN if isinstance(v, Hook) else v for v in values}
        if argument.annotation is not None:
            found |= self._annotated(file, argument.annotation)
        if any(isinstance(v, Dumper) for v in found) and found <= {Dumper(), NONE, UNKNOWN}:
            return frozenset({Dumper()})
        if not found:
            return SOMETHING if function.key in self._uncalled else NOTHING
        return frozenset(found)

    def _annotated(self, file: Code, annotation: ast.expr) -> Values:
        """What a variable with this annotation may be: an object of the classes it names."""
        names: list[Values] = []
        for part in ast.walk(annotation):
            if isinstance(part, ast.Constant):
                names.extend(self.of_var(file, var) for var in file.quoted.get(part, ()))
            elif isinstance(part, (ast.Name, ast.Attribute)):
                names.append(self.values(file, part))
        found: set[Value] = set()
        for value in self._union(names):
            if isinstance(value, Type):
                found.add(Instance(value.key))
            elif isinstance(value, Hook) and value.kind == "class":
                found.add(Dumper())
        return frozenset(found)

    def _call(self, file: Code, node: ast.Call) -> Values:
        found: list[Values] = []
        for callee in self.values(file, node.func):
            found.append(self._called(file, node, callee))
        return self._union(found)

    def _called(self, file: Code, node: ast.Call, callee: Value) -> Values:
        if isinstance(callee, Outside):
            first = (
                node.args[0] if node.args and not isinstance(node.args[0], ast.Starred) else None
            )
            if callee.name in ("functools.partial", "builtins.partial") and first is not None:
                return self._partial(node, self.values(file, first))
            if callee.name in _TRANSPARENT:
                return self.values(file, first) if first is not None else frozenset({callee})
            if callee.name in _SAME_ARGUMENTS and first is not None:
                return frozenset(
                    replace(v, other=True) if isinstance(v, Callee) else UNKNOWN
                    for v in self.values(file, first)
                )
            return SOMETHING
        if isinstance(callee, Hook):
            if callee.kind == "class":
                return frozenset({Dumper()})
            argument = returned_argument(callee, node)
            if argument is not None:
                return self.values(file, argument)
            made = callee.kind == "decorator" and all(
                isinstance(a, (ast.Constant, ast.JoinedStr)) for a in node.args
            )
            return frozenset({callee}) if made else frozenset({UNKNOWN})
        if isinstance(callee, Dumper):
            return frozenset({callee})
        if isinstance(callee, Type):
            return frozenset({Instance(callee.key)})
        if isinstance(callee, Callee) and callee.other:
            return SOMETHING
        if isinstance(callee, Callee) and callee.key in self.functions:
            return self._returned(self.functions[callee.key])
        return SOMETHING

    @staticmethod
    def _partial(node: ast.Call, functions: Values) -> Values:
        rest = node.args[1:]
        if any(isinstance(a, ast.Starred) for a in rest):
            return SOMETHING
        keywords = frozenset(k.arg for k in node.keywords if k.arg)
        found: set[Value] = set()
        for value in functions:
            if isinstance(value, Callee):
                given = value.given + len(rest)
                found.add(Callee(value.key, given, value.keywords | keywords, value.other))
            elif isinstance(value, Hook):
                found.add(
                    Hook(
                        value.name,
                        value.kind,
                        value.returns,
                        value.parameters,
                        value.known,
                        value.given + len(rest),
                        value.keywords | keywords,
                    )
                )
            elif isinstance(value, Outside) and value.name in _TRANSPARENT:
                found.add(value)
            else:
                found.add(UNKNOWN)
        return frozenset(found)

    def _returned(self, function: Function) -> Values:
        if function.module.name in self.dumpers or not function.returns:
            return SOMETHING
        return self._union(
            self.values(function.module, r.value) for r in function.returns if r.value is not None
        )

    # Calls ----------------------------------------------------------------------------------------

    def link(self) -> None:
        """Work out which calls reach which functions, following functions that are passed about."""
        self._calls = [
            (file, node)
            for file in self.files
            if file.name not in self.dumpers
            for node in file.parents
            if isinstance(node, ast.Call)
        ]
        self._uncalled, self.parameters = set(), {}
        called = {f.key for file, node in self._calls for f, _ in self._targets(file, node)}
        self._uncalled = {*self.functions, *self.classes} - called
        self._flow()
        self.relink()

    def relink(self) -> None:
        """Work out again which calls reach which functions, after `inert` grew."""
        self.forget()
        self.calls, self.call_values, self.unresolved = {}, {}, []
        for file, node in self._calls:
            self.call_values[node] = self.values(file, node.func)
            targets = self._targets(file, node)
            for function, callee in targets:
                self.calls.setdefault(function.key, []).append((file, node, callee))
            if not targets:
                self.unresolved.append((file, node))

    def _flow(self) -> None:
        """What parameters may stand for, from what calls give, until nothing new comes."""
        calls = self._calls
        for _ in range(_FLOW_ROUNDS):
            self.forget()
            changed = False
            for file, node in calls:
                for function, callee in self._targets(file, node):
                    for name, argument in bind(function, callee, node).items():
                        if argument is None or isinstance(argument, _DULL):
                            values = SOMETHING
                        else:
                            values = self.values(file, argument)
                        known = self.parameters.setdefault((function.key, name), set())
                        size = len(known)
                        known.update(
                            UNKNOWN if isinstance(v, Outside) and v != NONE else v for v in values
                        )
                        changed = changed or len(known) > size
            if not changed:
                break
        self.forget()

    def _targets(self, file: Code, node: ast.Call) -> list[tuple[Function, Callee]]:
        """The functions that a call may reach: by itself, or later through functools.partial."""
        found: list[tuple[Function, Callee]] = []
        callees = self.values(file, node.func)
        if callees & {Outside("functools.partial")} and node.args:
            callees = self.values(file, node.args[0])
            partial = True
        else:
            partial = False
        for callee in callees:
            if isinstance(callee, Callee) and callee.key in self.functions:
                found.append((self.functions[callee.key], callee))
            elif isinstance(callee, Type) and callee.key in self.classes:
                for cls in self.lineage(callee.key):
                    if cls.init is not None:
                        found.append(
                            (cls.init, Callee(cls.init.key, int(cls.init.owner is not None)))
                        )
                        break
            elif isinstance(callee, Instance):
                for cls in self.lineage(callee.key):
                    if "__call__" in cls.methods:
                        found.append(
                            (cls.methods["__call__"], Callee(cls.methods["__call__"].key, 1))
                        )
                        break
        if partial:
            found = [(f, Callee(c.key, c.given - 1, c.keywords, c.other)) for f, c in found]
        return [(f, c) for f, c in found if f.module.name not in self.dumpers]


def bind(function: Function, callee: Callee, node: ast.Call) -> dict[str, ast.expr | None]:
    """Parameter name → argument of a call; None where `*` or `**` may give it.

    For `functools.partial(f, …)` the callee's `given` is -1 for the function itself.
    """
    found: dict[str, ast.expr | None] = {}
    position = callee.given
    open_ended = False
    for argument in node.args:
        if isinstance(argument, ast.Starred):
            open_ended = True
            break
        if 0 <= position < len(function.positional):
            found[function.positional[position]] = argument
        position += 1
    if open_ended:
        for name in function.positional[max(position, 0) :]:
            found[name] = None
    for keyword in node.keywords:
        if keyword.arg is None:
            continue
        if keyword.arg in function.names:
            found[keyword.arg] = keyword.value
    return found


def is_dumper(file: Code) -> bool:
    """Whether a file defines the hooks: a module named after Argus, or one with the fork's two functions."""
    defined = {n.name for n in file.tree.body if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    return bool(
        defined
        and ("argus" in file.name.rpartition(".")[2] or {"dump_tensor", "dumpable"} <= defined)
    )


def _hooks_of(file: Code) -> dict[str, Hook]:
    """The hooks that a dumper module defines: what has a dump word in its name, or uses one that has."""
    functions = {
        n.name: n for n in file.tree.body if isinstance(n, (ast.FunctionDef, ast.ClassDef))
    }
    chosen = {name for name in functions if DUMP_WORD.search(name)}
    state = {
        target.id
        for node in file.tree.body
        if isinstance(node, (ast.Assign, ast.AnnAssign))
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name) and not target.id.isupper()
    }
    changed = True
    while changed:
        changed = False
        for name, node in functions.items():
            if name not in chosen:
                used = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
                if used & (chosen | state):
                    chosen.add(name)
                    changed = True
    return {f"{file.name}.{name}": _read(f"{file.name}.{name}", functions[name]) for name in chosen}


def _read(dotted: str, node: ast.FunctionDef | ast.ClassDef) -> Hook:
    """What a hook's definition says of it."""
    if isinstance(node, ast.ClassDef):
        return Hook(dotted, "class")
    parameters = tuple(a.arg for a in (*node.args.posonlyargs, *node.args.args))
    inner = {n.name for n in ast.walk(node) if isinstance(n, ast.FunctionDef) and n is not node}
    given_back = {r.value.id for r in own_returns(node) if isinstance(r.value, ast.Name)}
    if inner & given_back:
        # What it wraps is the parameter that is called; a maker of decorators calls none of its own.
        called = {
            c.func.id
            for c in ast.walk(node)
            if isinstance(c, ast.Call) and isinstance(c.func, ast.Name)
        }
        wrapped = next((p for p in parameters if p in called), None)
        return Hook(dotted, "decorator", wrapped, parameters)
    return Hook(dotted, "function", returned_parameter(node), parameters)


def own_returns(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.Return]:
    """The return statements of a function, without those of functions in it."""
    stack: list[ast.AST] = list(node.body)
    while stack:
        part = stack.pop()
        if isinstance(part, ast.Return):
            yield part
        if not isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            stack.extend(ast.iter_child_nodes(part))


def returned_parameter(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str | None:
    """The parameter that every return gives back and nothing in the function sets; None if there is none.

    The function must not be able to end without a return.
    """
    names = {a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)}
    returned: set[str | None] = set()
    stack: list[ast.AST] = list(node.body)
    while stack:
        part = stack.pop()
        if isinstance(part, ast.Return):
            returned.add(part.value.id if isinstance(part.value, ast.Name) else None)
        elif isinstance(part, (ast.Yield, ast.YieldFrom)):
            return None
        elif isinstance(part, ast.Name) and not isinstance(part.ctx, ast.Load):
            names.discard(part.id)
        if not isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            stack.extend(ast.iter_child_nodes(part))
    if len(returned) != 1 or not _always_returns(node.body):
        return None
    name = returned.pop()
    return name if name in names else None


def _always_returns(body: list[ast.stmt]) -> bool:
    last = body[-1]
    if isinstance(last, (ast.Return, ast.Raise)):
        return True
    if isinstance(last, ast.If):
        return bool(last.orelse) and _always_returns(last.body) and _always_returns(last.orelse)
    if isinstance(last, (ast.With, ast.AsyncWith)):
        return _always_returns(last.body)
    if isinstance(last, ast.Try):
        return _always_returns(last.finalbody or last.body) and all(
            _always_returns(h.body) for h in last.handlers
        )
    return False


def returned_argument(hook: Hook, node: ast.Call) -> ast.expr | None:
    """The argument of a hook call that is the call's value; None if that cannot be said."""
    if hook.returns is None or any(isinstance(a, ast.Starred) for a in node.args):
        return None
    if hook.returns in hook.keywords:
        return None
    found: ast.expr | None = None
    if hook.returns in hook.parameters:
        index = hook.parameters.index(hook.returns) - hook.given
        if 0 <= index < len(node.args):
            found = node.args[index]
    for keyword in node.keywords:
        if keyword.arg == hook.returns:
            found = keyword.value
    if hook.kind == "decorator" and isinstance(found, (ast.Constant, ast.JoinedStr)):
        return None  # dumpable("name") gives the decorator
    return found


def in_import_try(file: Code, store: Store) -> bool:
    """Whether an import stands in a `try` that catches its failing."""
    parent = file.parents.get(store.stmt) if store.stmt is not None else None
    return isinstance(parent, ast.Try) and bool(parent.handlers) and store.stmt in parent.body
