"""The symbol table of a source tree: which module binds which name, and where that name comes from.

Reading only, with the standard library's `ast`; nothing of the tree is ever imported. The map builder
compares two such tables, and the engine uses one to check that every import of an output tree resolves.
"""

from __future__ import annotations

import ast
import os
import stat
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Kind = Literal["class", "function", "assign"]

_SKIPPED_FOLDERS = frozenset({".git", "__pycache__", "node_modules", ".venv"})


# What a wheel of MaxText holds at its root and the repository below `src/`.
WHEEL_ROOTS = frozenset({"MaxText", "maxtext", "dependencies", "install_maxtext_extra_deps"})


@dataclass(frozen=True, slots=True)
class Parameters:
    """The parameters of a function, annotations left out.

    Attributes:
        text: as source text, without the brackets.
        names: every parameter that can be passed by name or position, in order (`*`/`**` ones with their stars).
        required: those without a default.
    """

    text: str
    names: tuple[str, ...]
    required: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Definition:
    """A name that a module defines itself.

    Attributes:
        name: the name.
        kind: what defines it (of several definitions, a class or function goes before an assignment).
        line, end: first (decorators included) and last line.
        parameters: of a function, or of the class's own `__init__` (without `self`); None where there are none.
        methods: of a class: method → parameters (without `self`/`cls`).
        members: of a class: every name bound in its body or set on `self` by its methods, and its annotated fields.
        fields: of a class: its annotated fields in order, with their default as source text or None.
        decorated: whether it has a decorator.
        bases: of a class: its bases as dotted text ("" for anything else than a dotted name).
        alias: of an assignment `name = other` or `name = a.b`: the dotted right side; of a function `name` that
            at most warns and then returns `a.name` of its own arguments: `a.name`; else "".
    """

    name: str
    kind: Kind
    line: int
    end: int
    parameters: Parameters | None = None
    methods: Mapping[str, Parameters] = field(default_factory=dict)
    members: frozenset[str] = frozenset()
    fields: tuple[tuple[str, str | None], ...] = ()
    bases: tuple[str, ...] = ()
    decorated: bool = False
    alias: str = ""


@dataclass(frozen=True, slots=True)
class Module:
    """What one Python file binds at module level.

    Attributes:
        name: dotted name (`MaxText.layers.moe`; the package itself for an `__init__.py`).
        path: path in its repository.
        package: whether it is an `__init__.py`.
        definitions: name → definition, conditional ones included.
        imports: bound name → dotted target (`jnp` → `jax.numpy`, `a` → `a` for `import a.b`).
        modules: dotted modules named by plain `import` statements, for submodules bound implicitly.
        stars: modules imported with `*`.
        exported: the names of a literal `__all__`, or None.
        dynamic: names may exist that the text does not bind (a module-level `__getattr__`, or `globals()`
            handed on or written to); where there is an `__all__`, those that it lists.
        shim: only forwards to another module: it defines nothing and does nothing but import.
        error: why the file could not be read, or "".
    """

    name: str
    path: str
    package: bool
    definitions: Mapping[str, Definition] = field(default_factory=dict)
    imports: Mapping[str, str] = field(default_factory=dict)
    modules: tuple[str, ...] = ()
    stars: tuple[str, ...] = ()
    exported: tuple[str, ...] | None = None
    dynamic: bool = False
    shim: bool = False
    error: str = ""


def module_name(path: str) -> str:
    """The dotted name of a Python file from its repository path: `src/` does not count, nor `__init__`."""
    parts = path.removeprefix("src/").removesuffix(".py").split("/")
    if parts[-1] == "__init__" and len(parts) > 1:
        parts.pop()
    return ".".join(parts)


def scan(source: bytes | str | ast.Module, path: str) -> Module:
    """Read one file.

    Args:
        source: its text or bytes (an encoding line is followed), or its tree.
        path: its repository path, from which its module name follows.

    Returns:
        what it binds; for a file that does not parse, an empty module with `error` set.
    """
    name = module_name(path)
    package = path.rsplit("/", 1)[-1] == "__init__.py"
    try:
        if isinstance(source, ast.Module):
            tree = source
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(source)
        return _Scanner(name, path, package).module(tree)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return Module(name, path, package, error=f"{type(error).__name__}: {error}")


def absolute(module: str, package: bool, level: int, target: str | None) -> str:
    """The dotted module that `from <level dots><target> import …` in `module` names; "" if it leaves the tree."""
    if level == 0:
        return target or ""
    parts = module.split(".")
    drop = level - 1 if package else level
    if drop >= len(parts) + (0 if target else 1) or drop > len(parts):
        return ""
    kept = parts[: len(parts) - drop]
    return ".".join([*kept, target] if target else kept)


def dotted(node: ast.AST) -> str:
    """`a.b.c` for a chain of attributes on a name, else ""."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join([node.id, *reversed(parts)])


class _Scanner:
    """Collects the bindings of one module; visits statements that run at import, never function bodies."""

    def __init__(self, name: str, path: str, package: bool) -> None:
        self.name, self.path, self.package = name, path, package
        self.definitions: dict[str, Definition] = {}
        self.imports: dict[str, str] = {}
        self.modules: list[str] = []
        self.stars: list[str] = []
        self.exported: tuple[str, ...] | None = None
        self.dynamic = False
        self.effects = False
        self.script = False

    def module(self, tree: ast.Module) -> Module:
        body = tree.body
        if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
            body = body[1:]
        self.block(body)
        own = self.package or self.effects or not all(map(_is_forwarded, self.definitions.values()))
        shim = not own and (
            (bool(self.imports or self.stars) and not self.script)
            or any(_is_import_module(node) for node in ast.walk(tree))
        )
        return Module(
            self.name,
            self.path,
            self.package,
            self.definitions,
            self.imports,
            tuple(self.modules),
            tuple(self.stars),
            self.exported,
            self.dynamic,
            shim,
        )

    def block(self, body: Iterable[ast.stmt]) -> None:
        for statement in body:
            self.statement(statement)

    def statement(self, node: ast.stmt) -> None:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if node.name == "__getattr__":
                self.dynamic = True
            made = parameters(node.args)
            self.define(
                Definition(
                    node.name,
                    "function",
                    _first(node),
                    _last(node),
                    made,
                    alias=_forwarded_to(node, made),
                )
            )
        elif isinstance(node, ast.ClassDef):
            self.define(_class(node))
        elif isinstance(node, ast.Import):
            for alias in node.names:
                self.modules.append(alias.name)
                if alias.asname:
                    self.imports[alias.asname] = alias.name
                else:
                    root = alias.name.split(".")[0]
                    self.imports[root] = root
        elif isinstance(node, ast.ImportFrom):
            source = absolute(self.name, self.package, node.level, node.module)
            for alias in node.names:
                if alias.name == "*":
                    self.stars.append(source)
                else:
                    self.imports[alias.asname or alias.name] = f"{source}.{alias.name}"
        elif isinstance(node, ast.Assign):
            self.expression(node.value)
            for target in node.targets:
                self.target(target, node, node.value)
        elif isinstance(node, (ast.AnnAssign, ast.AugAssign)):
            if node.value is not None:
                self.expression(node.value)
            self.target(node.target, node, node.value)
        elif isinstance(node, ast.TypeAlias):
            self.target(node.name, node, node.value)
        elif isinstance(node, (ast.If, ast.While)):
            if _is_main_test(node.test):
                self.script = True
            else:
                self.effects |= isinstance(node, ast.While)
                self.expression(node.test)
                self.block(node.body)
            self.block(node.orelse)
        elif isinstance(node, (ast.For, ast.AsyncFor)):
            self.effects = True
            self.target(node.target, node, None)
            self.expression(node.iter)
            self.block(node.body)
            self.block(node.orelse)
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            self.effects = True
            for item in node.items:
                if item.optional_vars is not None:
                    self.target(item.optional_vars, node, None)
                self.expression(item.context_expr)
            self.block(node.body)
        elif isinstance(node, (ast.Try, ast.TryStar)):
            self.block(node.body)
            for handler in node.handlers:
                self.block(handler.body)
            self.block(node.orelse)
            self.block(node.finalbody)
        elif isinstance(node, ast.Match):
            self.effects = True
            self.expression(node.subject)
            for case in node.cases:
                for part in ast.walk(case.pattern):
                    bound = getattr(part, "name", None) or getattr(part, "rest", None)
                    if isinstance(bound, str):
                        self.define(Definition(bound, "assign", _first(node), _last(node)))
                self.block(case.body)
        elif isinstance(node, ast.Delete):
            for gone in node.targets:
                if isinstance(gone, ast.Name):
                    self.definitions.pop(gone.id, None)
                    self.imports.pop(gone.id, None)
        elif isinstance(node, ast.Expr):
            self.effects |= isinstance(node.value, ast.Call) and not _is_warning(node.value)
            self.expression(node.value)

    def target(self, target: ast.expr, node: ast.stmt, value: ast.expr | None) -> None:
        if isinstance(target, ast.Name):
            if target.id == "__all__" and value is not None:
                self.export(node, value)
                return
            self.dynamic |= value is not None and _is_globals(value)
            alias = dotted(value) if isinstance(node, ast.Assign) and value is not None else ""
            self.define(Definition(target.id, "assign", _first(node), _last(node), alias=alias))
        elif isinstance(target, (ast.Tuple, ast.List)):
            for element in target.elts:
                self.target(element, node, None)
        elif isinstance(target, ast.Starred):
            self.target(target.value, node, None)
        elif isinstance(target, (ast.Subscript, ast.Attribute)):
            self.effects = True
            self.dynamic |= _is_globals(target.value)

    def export(self, node: ast.stmt, value: ast.expr) -> None:
        names: list[str] = []
        if isinstance(value, (ast.List, ast.Tuple, ast.Set)):
            names = [
                e.value
                for e in value.elts
                if isinstance(e, ast.Constant) and isinstance(e.value, str)
            ]
        if isinstance(node, ast.AugAssign):
            names = [*(self.exported or ()), *names]
        self.exported = tuple(names)

    def expression(self, node: ast.expr) -> None:
        """Names bound by `:=` at module level, and `globals().update(…)`."""
        stack: list[ast.AST] = [node]
        while stack:
            part = stack.pop()
            if isinstance(part, ast.Lambda):
                continue
            if isinstance(part, ast.NamedExpr):
                self.define(Definition(part.target.id, "assign", part.lineno, part.end_lineno or 0))
            elif isinstance(part, ast.Attribute) and _is_globals(part.value):
                self.dynamic |= part.attr in ("update", "setdefault", "__setitem__")
            stack.extend(ast.iter_child_nodes(part))

    def define(self, new: Definition) -> None:
        old = self.definitions.get(new.name)
        if old is None or old.kind == "assign" or new.kind != "assign":
            self.definitions[new.name] = new


def parameters(args: ast.arguments, *, bound: bool = False) -> Parameters:
    """The parameters of a function without their annotations; `bound` drops the first one (`self`)."""
    positional = [*args.posonlyargs, *args.args]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(args.defaults))
    defaults += args.defaults
    pieces: list[str] = []
    names: list[str] = []
    required: list[str] = []
    for index, (arg, default) in enumerate(zip(positional, defaults, strict=True)):
        if not (bound and index == 0):
            names.append(arg.arg)
            if default is None:
                required.append(arg.arg)
            pieces.append(_piece(arg.arg, default))
        if args.posonlyargs and index == len(args.posonlyargs) - 1 and pieces:
            pieces.append("/")
    if args.vararg:
        names.append(f"*{args.vararg.arg}")
        pieces.append(f"*{args.vararg.arg}")
    elif args.kwonlyargs:
        pieces.append("*")
    for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
        names.append(arg.arg)
        if default is None:
            required.append(arg.arg)
        pieces.append(_piece(arg.arg, default))
    if args.kwarg:
        names.append(f"**{args.kwarg.arg}")
        pieces.append(f"**{args.kwarg.arg}")
    return Parameters(", ".join(pieces), tuple(names), tuple(required))


def _piece(name: str, default: ast.expr | None) -> str:
    return name if default is None else f"{name}={ast.unparse(default)}"


def _class(node: ast.ClassDef) -> Definition:
    methods: dict[str, Parameters] = {}
    members: set[str] = set()
    fields: list[tuple[str, str | None]] = []
    stack: list[ast.stmt] = list(reversed(node.body))
    while stack:
        part = stack.pop()
        if isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef)):
            static = any(dotted(d) == "staticmethod" for d in part.decorator_list)
            methods[part.name] = parameters(part.args, bound=not static)
            members.add(part.name)
            first = (*part.args.posonlyargs, *part.args.args)[:1]
            if first and not static:
                members.update(_set_on(part, first[0].arg))
        elif isinstance(part, ast.ClassDef):
            members.add(part.name)
        elif isinstance(part, ast.AnnAssign):
            if isinstance(part.target, ast.Name):
                members.add(part.target.id)
                default = None if part.value is None else ast.unparse(part.value)
                if "ClassVar" not in ast.unparse(part.annotation):
                    fields.append((part.target.id, default))
        elif isinstance(part, ast.Assign):
            for target in part.targets:
                members.update(n.id for n in ast.walk(target) if isinstance(n, ast.Name))
        elif isinstance(part, (ast.If, ast.Try, ast.With, ast.For)):
            inner = [s for s in ast.iter_child_nodes(part) if isinstance(s, ast.stmt)]
            stack.extend(reversed(inner))
    return Definition(
        node.name,
        "class",
        _first(node),
        _last(node),
        methods.get("__init__"),
        methods,
        frozenset(members),
        tuple(fields),
        tuple(dotted(b) for b in node.bases),
        bool(node.decorator_list),
    )


def _set_on(function: ast.AST, self_name: str) -> Iterator[str]:
    """Attributes of `self_name` that a function assigns to; expressions are not looked into, for speed."""
    stack: list[ast.AST] = [function]
    while stack:
        node = stack.pop()
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, (ast.AnnAssign, ast.AugAssign, ast.For, ast.AsyncFor)):
            targets = [node.target]
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            targets = [i.optional_vars for i in node.items if i.optional_vars is not None]
        for target in targets:
            for part in ast.walk(target):
                if (
                    isinstance(part, ast.Attribute)
                    and isinstance(part.ctx, ast.Store)
                    and isinstance(part.value, ast.Name)
                    and part.value.id == self_name
                ):
                    yield part.attr
        for name in ("body", "orelse", "handlers", "finalbody", "cases"):
            stack += getattr(node, name, ())


def _first(node: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(d.lineno for d in decorators)])


def _last(node: ast.stmt) -> int:
    return node.lineno if node.end_lineno is None else node.end_lineno


def _is_main_test(test: ast.expr) -> bool:
    return isinstance(test, ast.Compare) and dotted(test.left) == "__name__"


def _forwarded_to(node: ast.FunctionDef | ast.AsyncFunctionDef, made: Parameters) -> str:
    """What a function kept for old callers hands its arguments on to: `module.name` of the same name, or ""."""
    body = [s for s in node.body if not (isinstance(s, ast.Expr) and _says_only(s.value))]
    if len(body) != 1 or not isinstance(body[0], ast.Return) or node.decorator_list:
        return ""
    call = body[0].value
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return ""
    handed = [dotted(a) for a in call.args] + [
        dotted(k.value) if k.arg == dotted(k.value) else "" for k in call.keywords
    ]
    same = call.func.attr == node.name and handed == list(made.names)
    return dotted(call.func) if same else ""


def _says_only(value: ast.expr) -> bool:
    """A docstring, or a call that warns or logs."""
    return isinstance(value, ast.Constant) or (isinstance(value, ast.Call) and _is_warning(value))


def _is_warning(call: ast.Call) -> bool:
    return dotted(call.func).split(".")[-1] in ("warn", "warning", "info", "log", "set_verbosity")


def _is_globals(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and dotted(node.func) == "globals"


def _is_import_module(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and dotted(node.func).split(".")[-1] == "import_module"


def _is_forwarded(definition: Definition) -> bool:
    """`name = module.name`, the loaded module itself, or the constants that name old and new module."""
    return definition.kind == "assign" and (
        "." in definition.alias
        or definition.name.startswith("_")
        or definition.name.endswith("_MODULE_PATH")
    )


class SymbolTable:
    """The modules of one tree, and what each name in them is.

    Attributes:
        modules: dotted name → module. Of two files with one name, a package goes before a module.
    """

    def __init__(self, modules: Iterable[Module]) -> None:
        self.modules: dict[str, Module] = {}
        for module in modules:
            held = self.modules.get(module.name)
            if held is None or (module.package and not held.package):
                self.modules[module.name] = module
        self._children: dict[str, set[str]] = {}
        for name in self.modules:
            parent, _, leaf = name.rpartition(".")
            while True:
                known = self._children.setdefault(parent, set())
                if leaf in known:
                    break
                known.add(leaf)
                if not parent:
                    break
                parent, _, leaf = parent.rpartition(".")

    @classmethod
    def from_folder(cls, root: Path, paths: Iterable[str] | None = None) -> SymbolTable:
        """Read a folder: a checkout (packages below `src/`) or an unpacked wheel (packages at the root).

        Args:
            root: the folder.
            paths: Python files to read, relative to it with `/`; all below it when not given.
        """
        found = python_files(root) if paths is None else paths
        modules = []
        for path in found:
            try:
                modules.append(scan((root / path).read_bytes(), canonical(path)))
            except OSError as error:
                name = module_name(canonical(path))
                modules.append(Module(name, path, path.endswith("__init__.py"), error=str(error)))
        return cls(modules)

    @classmethod
    def from_sources(cls, sources: Mapping[str, bytes | None]) -> SymbolTable:
        """Read sources by repository path; None stands for a file whose content cannot be had."""
        return cls(
            (
                scan(source, path)
                if source is not None
                else Module(
                    module_name(path), path, path.endswith("__init__.py"), error="no content"
                )
            )
            for path, source in sources.items()
        )

    @classmethod
    def union(cls, *tables: SymbolTable) -> SymbolTable:
        """One table of several trees; where two hold the same module, the earlier tree's stands."""
        merged: dict[str, Module] = {}
        for table in tables:
            for name, module in table.modules.items():
                merged.setdefault(name, module)
        return cls(merged.values())

    def is_module(self, name: str) -> bool:
        """Whether `name` is a module or package (namespace packages included) of the tree."""
        return name in self.modules or name in self._children

    def has_root(self, name: str) -> bool:
        """Whether the first part of a dotted name is a package or module of the tree."""
        return self.is_module(name.split(".")[0])

    def children(self, name: str) -> frozenset[str]:
        """The leaf names of the modules and packages right below package `name`."""
        return frozenset(self._children.get(name, ()))

    def names(self, module: str) -> frozenset[str]:
        """Every name that `module` binds: definitions, imports, and what its star imports bring."""
        return frozenset(self._names(module, set()))

    def _names(self, module: str, seen: set[str]) -> set[str]:
        held = self.modules.get(module)
        if held is None or module in seen:
            return set()
        seen.add(module)
        bound = set(held.definitions) | set(held.imports)
        for star in held.stars:
            bound |= self.public(star, seen)
        return bound

    def public(self, module: str, _seen: set[str] | None = None) -> set[str]:
        """What `from module import *` binds."""
        held = self.modules.get(module)
        if held is None:
            return set()
        if held.exported is not None:
            return set(held.exported)
        bound = self._names(module, set() if _seen is None else _seen)
        return {n for n in bound if not n.startswith("_")}

    def resolve(self, module: str, name: str) -> tuple[str, str] | str | None:
        """What `from module import name` gives.

        Re-exports, aliases (`Name = other.Name`) and star imports are followed to the definition.

        Returns:
            `(defining module, name)` for a symbol: for one imported from outside the tree, that outside
            module; a dotted name for a module; None when `module` is of the tree and has no such name.
            A module with a `__getattr__` of its own, or one that does not parse, is taken to define any name.
        """
        return self._resolve(module, name, set())

    def _resolve(
        self, module: str, name: str, seen: set[tuple[str, str]]
    ) -> tuple[str, str] | str | None:
        submodule = f"{module}.{name}"
        if (module, name) in seen:
            # `from p import sub` in the package p itself, or a circle of imports.
            return submodule if self.is_module(submodule) else None
        seen.add((module, name))
        held = self.modules.get(module)
        if held is None:
            if self.is_module(submodule):
                return submodule
            return None if self.is_module(module) else (module, name)
        definition = held.definitions.get(name)
        target = held.imports.get(name)
        if definition is not None and not (definition.kind == "assign" and target):
            if definition.alias:
                followed = self._alias(held, definition.alias, seen)
                if followed is not None:
                    return followed
            return (module, name)
        if target is not None:
            return self._target(target, seen) or ((module, name) if definition else None)
        if self.is_module(submodule):
            return submodule
        for star in held.stars:
            if not self.has_root(star):
                continue
            star_module = self.modules.get(star)
            if star_module is None or (
                name not in star_module.exported
                if star_module.exported is not None
                else name.startswith("_")
            ):
                continue
            found = self._resolve(star, name, seen)
            if found is not None:
                return found
        if held.error or (held.dynamic and name in (held.exported or (name,))):
            return (module, name)
        return None

    def _alias(
        self, held: Module, alias: str, seen: set[tuple[str, str]]
    ) -> tuple[str, str] | None:
        """`Name = a.b` at module level: where it leads, if to another symbol of the tree through an import."""
        root, *rest = alias.split(".")
        target = held.imports.get(root)
        if target is None or not self.has_root(target):
            return None
        found = self._target(".".join([target, *rest]), seen)
        return found if isinstance(found, tuple) and self.is_module(found[0]) else None

    def _target(self, target: str, seen: set[tuple[str, str]]) -> tuple[str, str] | str | None:
        """What a dotted import target is."""
        if not self.has_root(target):
            parent, _, leaf = target.rpartition(".")
            return (parent, leaf) if parent else target
        if "." not in target:
            return target
        # The longest prefix that is a module; one name below it is resolved, more are attributes of it.
        parent, _, leaf = target.rpartition(".")
        if not self.is_module(parent):
            return None
        return self._resolve(parent, leaf, seen)

    def exists(self, name: str) -> bool:
        """Whether a dotted name (module, `module.symbol` or `module.Class.member`) is in the tree.

        Members of a class are checked only where all its bases are known.
        """
        parts = name.split(".")
        for cut in range(len(parts), 0, -1):
            prefix = ".".join(parts[:cut])
            if not self.is_module(prefix):
                continue
            if cut == len(parts):
                return True
            found = self.resolve(prefix, parts[cut])
            return self._has_members(found, parts[cut + 1 :])
        return False

    def _has_members(self, found: tuple[str, str] | str | None, rest: list[str]) -> bool:
        if found is None:
            return False
        if not rest:
            return True
        if isinstance(found, str):
            if not self.has_root(found):
                return True
            return self._has_members(self.resolve(found, rest[0]), rest[1:])
        member = self.member(found[0], found[1], rest[0])
        return member is not False

    def member(self, module: str, name: str, member: str) -> bool | None:
        """Whether the class `module.name` has `member`; None where that cannot be known."""
        definition = self.definition(module, name)
        if definition is None or definition.kind != "class":
            return None
        if member in definition.members:
            return True
        certain = True
        for base in definition.bases:
            if base.split(".")[-1] in ("object", "Enum", "IntEnum", "StrEnum"):
                continue
            home = self.base(module, base)
            inherited = None if home is None else self.member(*home, member)
            if inherited:
                return True
            certain &= inherited is False
        return False if certain else None

    def base(self, module: str, base: str) -> tuple[str, str] | None:
        """The definition that the dotted text of a base class in `module` names, if it is in the tree."""
        held = self.modules.get(module)
        if held is None or not base:
            return None
        root, *rest = base.split(".")
        found: tuple[str, str] | str | None = self.resolve(module, root)
        for part in rest:
            if not isinstance(found, str):
                return None
            found = self.resolve(found, part)
        if isinstance(found, tuple) and self.definition(*found) is not None:
            return found
        return None

    def definition(self, module: str, name: str) -> Definition | None:
        """The definition of a name that `module` itself defines, or None."""
        held = self.modules.get(module)
        return held.definitions.get(name) if held else None

    def signature(self, module: str, name: str, _depth: int = 0) -> Parameters | None:
        """How `module.name` is called: a function's parameters, or a class's constructor's.

        A constructor is looked up in the bases that are in the tree; a class without one whose annotated
        fields make it (a dataclass, a pydantic or a Linen module) takes its fields, inherited ones first.
        """
        definition = self.definition(module, name)
        if definition is None or definition.kind == "assign":
            return None
        if definition.kind == "function" or definition.parameters is not None:
            return definition.parameters
        for base in definition.bases:
            home = self.base(module, base)
            if home is not None and _depth < 20:
                made = self.definition(*home)
                own = self.signature(*home, _depth + 1)
                if own is not None and made is not None and not made.fields:
                    return own
        fields = self._fields(module, definition, _depth)
        if not fields or not (definition.bases or definition.decorated):
            return None
        pieces = tuple(n if d is None else f"{n}={d}" for n, d in fields.items())
        required = tuple(n for n, d in fields.items() if d is None)
        return Parameters(", ".join(pieces), tuple(fields), required)

    def _fields(self, module: str, definition: Definition, depth: int = 0) -> dict[str, str | None]:
        """The annotated fields of a class with their defaults, inherited ones first."""
        fields: dict[str, str | None] = {}
        for base in definition.bases:
            home = self.base(module, base)
            made = self.definition(*home) if home else None
            if home is not None and made is not None and depth < 20:
                fields |= self._fields(home[0], made, depth + 1)
        return fields | dict(definition.fields)


def canonical(path: str) -> str:
    """A path of an unpacked wheel as the repository has it: its packages are below `src/` there."""
    root, _, below = path.partition("/")
    return f"src/{path}" if below and root in WHEEL_ROOTS else path


def files_below(root: Path) -> Iterator[str]:
    """The files below a folder, sorted by folder, relative with `/`; links, pipes and tool folders are left out."""
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(f for f in folders if f not in _SKIPPED_FOLDERS)
        relative = Path(folder).relative_to(root).as_posix()
        prefix = "" if relative == "." else f"{relative}/"
        for name in sorted(files):
            if stat.S_ISREG(os.lstat(os.path.join(folder, name)).st_mode):
                yield f"{prefix}{name}"


def python_files(root: Path) -> Iterator[str]:
    """The Python files below a folder, as `files_below` gives them."""
    return (path for path in files_below(root) if path.endswith(".py"))
