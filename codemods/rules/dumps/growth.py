"""What falls with the hooks: repeated walks over all files until no further name is found to feed dumps only."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from codemods.rules.dumps.code import Class, Code, Function, FunctionNode, Store, Var
from codemods.rules.dumps.questions import Decisions, Finding, counted
from codemods.rules.dumps.strip import Walk
from codemods.rules.dumps.values import (
    DUMP_WORD,
    UNKNOWN,
    Callee,
    Dumper,
    Hook,
    Instance,
    Outside,
    Type,
    World,
    bind,
    in_import_try,
    returned_argument,
    returned_parameter,
)

_ROUNDS = 60
FLAG = "dump_enabled"  # the fork's own parameter of the train step


class Growth:
    """The decisions for a set of files.

    Attributes:
        decisions: what falls.
        walks: the last walk over each file; its operations are what to do.
        blocked: (file, finding) of what only fed dumps but cannot be removed with certainty.
        wanted: names whose every use must be seen (functions, attributes) for these decisions to hold,
            or whose uses would decide more.
    """

    def __init__(self, world: World, whole: bool = True) -> None:
        """Decide.

        Args:
            world: the files.
            whole: whether they are all files that matter; if not, what other files may use stays.
        """
        self.world, self.whole = world, whole
        self.files = [f for f in world.files if f.name not in world.dumpers]
        self.decisions = Decisions()
        self.walks: dict[Code, Walk] = {}
        self.blocked: list[tuple[Code, Finding]] = []
        self.wanted: set[str] = set()
        self.blocked_keys: dict[object, tuple[Code, Finding]] = {}
        world.link()
        self._escaped = self._escapes()
        self._attributes = self._attribute_loads()
        self._importers = self._who_imports()
        self.aliases = {
            var.name
            for file in self.files
            for var in file.top.names.values()
            if any(isinstance(v, (Hook, Dumper)) for v in world.of_var(file, var))
        }
        self._home = {id(s): f for f in self.files for s in f.scopes.values()}
        touched = list(self.files)
        for _ in range(_ROUNDS):
            pattern = self._words()
            for file in touched:
                run = pattern.search(file.text) is not None
                self.walks[file] = Walk(world, file, self.decisions, run)
            self._gone = {n for w in self.walks.values() for n in w.gone}
            self._fed = {n for w in self.walks.values() for n in w.gone - w.unreached}
            variables, names = set(self.decisions.variables), self._decided()
            before = self._size()
            self.blocked_keys = {}
            self._grow()
            if self._size() == before:
                if len(touched) == len(self.files):
                    break
                touched = list(self.files)  # nothing new where it was looked for: look everywhere
            else:
                touched = self._touched(
                    self.decisions.variables - variables, self._decided() - names
                )
        self.blocked = list(self.blocked_keys.values())

    def _decided(self) -> set[str]:
        """The names, beyond variables, that decisions so far are about."""
        decisions = self.decisions
        members = (*decisions.parameters, *decisions.flags, *decisions.attributes)
        keys = {key for key, _ in (*decisions.parameters, *decisions.results)} | decisions.functions
        names = {name for _, name in members} | decisions.names
        names |= {hook.name.rpartition(".")[2] for hook in self.world.inert.values()}
        functions = self.world.functions
        return names | {handle(functions[key]) for key in keys if key in functions}

    def _touched(self, variables: set[Var], names: set[str]) -> list[Code]:
        """The files that new decisions may change."""
        files = {self._home[id(var.scope)] for var in variables}
        if names:
            pattern = re.compile("|".join(re.escape(n) for n in sorted(names)))
            files |= {f for f in self.files if pattern.search(f.text)}
        return list(files) or list(self.files)

    def _words(self) -> re.Pattern[str]:
        """What a file must hold to be changed."""
        names = {"dump", "Dump", "argus", "Argus", *self.aliases, *self.wanted}
        names |= {hook.name.rpartition(".")[2] for hook in self.world.inert.values()}
        return re.compile("|".join(re.escape(n) for n in sorted(names)))

    # What is known of uses ------------------------------------------------------------------------

    def _attribute_loads(self) -> dict[str, list[tuple[Code, ast.Attribute]]]:
        found: dict[str, list[tuple[Code, ast.Attribute]]] = {}
        for file in self.files:
            for node in file.parents:
                if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Store):
                    found.setdefault(node.attr, []).append((file, node))
        return found

    def _who_imports(self) -> dict[tuple[str, str], list[tuple[Code, Var]]]:
        found: dict[tuple[str, str], list[tuple[Code, Var]]] = {}
        for file in self.files:
            for var in all_vars(file):
                for store in var.stores:
                    if store.kind == "import" and isinstance(store.stmt, ast.ImportFrom):
                        assert isinstance(store.node, ast.alias)
                        module = file.absolute(store.stmt)
                        if module not in self.world.modules:
                            # Perhaps a module of these files by another root: count it as one.
                            module = module.rpartition(".")[2]
                        found.setdefault((module, store.node.name), []).append((file, var))
        return found

    def _importing(self, file: Code, name: str) -> list[Var]:
        """The variables of other files that import a name of this one."""
        if not file.name:
            return []
        modules = {file.name, file.name.rpartition(".")[2]}
        return [v for m in sorted(modules) for _, v in self._importers.get((m, name), ())]

    def _escapes(self) -> set[str]:
        """Functions that reach code that is not seen, so that not all their calls are known."""
        found: set[str] = set()
        for file in self.files:
            for node in file.parents:
                if not isinstance(node, (ast.Name, ast.Attribute)) or not isinstance(
                    node.ctx, ast.Load
                ):
                    continue
                keys = self._function_keys(file, node)
                if keys and not self._followed(file, node):
                    found |= keys
        for function in self.world.functions.values():
            if function.owner is None and self._has_strange_decorator(function):
                found.add(function.key)
        return found

    def _function_keys(self, file: Code, node: ast.expr) -> set[str]:
        keys = set()
        for value in self.world.values(file, node):
            if isinstance(value, Callee):
                keys.add(value.key)
            elif isinstance(value, Type) and value.key in self.world.classes:
                init = self.world.classes[value.key].init
                if init is not None:
                    keys.add(init.key)
        return keys

    def _has_strange_decorator(self, function: Function) -> bool:
        for decorator in function.node.decorator_list:
            values = self.world.values(function.module, decorator)
            known = all(
                isinstance(v, (Hook, Dumper))
                or (isinstance(v, Outside) and v.name.startswith(("jax.", "flax.", "functools.")))
                for v in values
            )
            if not known and not isinstance(function.node, ast.ClassDef):
                text = ast.unparse(decorator)
                if not text.startswith(
                    ("jax.", "nnx.", "nn.", "functools.", "partial(jax", "staticmethod")
                ):
                    return True
        return False

    def _followed(self, file: Code, node: ast.expr) -> bool:
        """Whether a function that stands here is followed to all its calls."""
        parent = file.parents[node]
        if isinstance(parent, ast.Call):
            if node is parent.func:
                return True
            return self._passed(file, parent, node)
        if isinstance(parent, ast.keyword):
            call = file.parents[parent]
            return isinstance(call, ast.Call) and self._passed(file, call, node)
        if isinstance(parent, (ast.IfExp, ast.BoolOp, ast.NamedExpr)):
            return self._followed(file, parent)
        if isinstance(parent, (ast.Tuple, ast.List)) and isinstance(parent.ctx, ast.Load):
            above = file.parents[parent]
            return isinstance(above, (ast.Return, ast.Assign)) and self._followed(file, parent)
        if isinstance(parent, ast.Assign):
            return all(
                isinstance(t, (ast.Name, ast.Tuple, ast.List))
                or (isinstance(t, ast.Attribute) and isinstance(t.value, ast.Name))
                for t in parent.targets
            )
        if isinstance(parent, ast.Return):
            function = file.function_of(parent)
            return function is not None
        if isinstance(parent, ast.Attribute):
            return parent.attr not in ("lower", "trace", "eval_shape", "__wrapped__")
        return isinstance(
            parent,
            (
                ast.Expr,
                ast.Compare,
                ast.arg,
                ast.AnnAssign,
                ast.FunctionDef,
                ast.ClassDef,
                ast.Subscript,
                ast.BinOp,
            ),
        )

    def _passed(self, file: Code, call: ast.Call, node: ast.expr) -> bool:
        callees = self.world.values(file, call.func)
        if not callees:
            return False
        for callee in callees:
            if isinstance(callee, Outside):
                name = callee.name
                if name in (
                    "builtins.isinstance",
                    "builtins.issubclass",
                    "builtins.print",
                    "builtins.callable",
                ):
                    continue
                first = bool(call.args) and node is call.args[0]
                known = first and self.world.values(file, call) - {UNKNOWN}
                if known and self._followed(file, call):
                    continue
                return False
            if isinstance(callee, Callee):
                function = self.world.functions.get(callee.key)
                if function is None or node not in bind(function, callee, call).values():
                    return False
            elif not isinstance(callee, (Hook, Dumper)):
                return False
        return True

    # Growing --------------------------------------------------------------------------------------

    def _alive(self, loads: list[ast.expr]) -> bool:
        return any(n not in self._gone for n in loads)

    def _block(self, key: object, file: Code, node: ast.AST, reason: str, todo: str) -> None:
        self.blocked_keys.setdefault(key, (file, Finding(node, reason, todo)))

    def _grow(self) -> None:
        """Find what else falls: in each file first, then what other files take part in."""
        before = self._size()
        self._find_flags()
        self._find_inert_functions()
        self._find_keys()
        self._find_variables()
        if self._size() == before:
            self._find_parameters()
            self._find_attributes()
            self._find_results()

    def _size(self) -> int:
        return self.decisions.size() + len(self.world.inert)

    def _functions(self) -> Iterator[Function]:
        for function in self.world.functions.values():
            if function.module.name not in self.world.dumpers:
                yield function
        for cls in self.world.classes.values():
            if cls.fields and cls.init is not None and cls.module.name not in self.world.dumpers:
                yield cls.init

    def _find_flags(self) -> None:
        """Parameters with a dump word whose value comes from a dumper, or says whether a hook is called."""
        off_names: set[str] = set()
        for file in self.files:
            walk = self.walks[file]
            for node in file.parents:
                if not isinstance(node, ast.keyword) or not node.arg:
                    continue
                if DUMP_WORD.search(node.arg) and walk.off(node.value) == "off":
                    off_names.add(node.arg)
        for function in self._functions():
            for name in function.names:
                key = (function.key, name)
                if key in self.decisions.flags or not DUMP_WORD.search(name):
                    continue
                default = function.defaults.get(name)
                if default is not None and not (
                    isinstance(default, ast.Constant) and not default.value
                ):
                    continue
                if self._fed_by_dumper(function, name) or (
                    default is not None
                    and (
                        self._guards_hook(function, name)
                        or (
                            name == FLAG
                            and self._only_gives_none(function, name)
                            and not self._switched_on(function, name)
                        )
                        or (name in off_names and self._uses_machinery(function.module))
                    )
                ):
                    self.decisions.flags.add(key)

    def _fed_by_dumper(self, function: Function, name: str) -> bool:
        for file, call, callee in self.world.calls.get(function.key, ()):
            argument = bind(function, callee, call).get(name)
            if argument is not None and self.walks[file].off(argument) == "off":
                return True
        return False

    @staticmethod
    def _only_gives_none(function: Function, name: str) -> bool:
        """Whether all that a flag decides is `value if flag else None`, here or in what it is passed to."""
        file = function.module
        scope = file.scopes.get(function.node)
        var = scope.names.get(name) if scope is not None else None
        if var is None:
            return False
        tests = [n for n in var.loads if isinstance(file.parents.get(n), ast.IfExp)]
        for load in var.loads:
            parent = file.parents.get(load)
            if isinstance(parent, ast.IfExp):
                other = parent.orelse
                if parent.test is not load or not (
                    isinstance(other, ast.Constant) and other.value is None
                ):
                    return False
            elif not (isinstance(parent, ast.keyword) and parent.arg == name):
                return False
        return bool(tests)

    def _switched_on(self, function: Function, name: str) -> bool:
        """Whether a call gives a flag a value that is true whatever the dumper says; such calls are listed."""
        found = False
        for file, call, callee in self.world.calls.get(function.key, ()):
            argument = bind(function, callee, call).get(name)
            if isinstance(argument, ast.Constant) and argument.value:
                found = True
                reason = f"`{name}` is given here whether or not a step is dumped"
                self._block(
                    (function.key, name, call), file, argument, reason, "give it up by hand"
                )
        return found

    def _guards_hook(self, function: Function, name: str) -> bool:
        file = function.module
        scope = file.scopes.get(function.node)
        var = scope.names.get(name) if scope is not None else None
        if var is None or isinstance(function.node, ast.ClassDef):
            return False
        for load in var.loads:
            statement = file.statement_of(load)
            if not isinstance(statement, (ast.If, ast.While)) or load not in set(
                ast.walk(statement.test)
            ):
                continue
            if any(self.walks[file].holds_hook(s) for s in statement.body):
                return True
        return False

    def _uses_machinery(self, file: Code) -> bool:
        return any(
            self.world.is_machinery(v)
            for var in all_vars(file)
            if any(s.kind == "import" for s in var.stores)
            for v in self.world.of_var(file, var)
        )

    def _find_inert_functions(self) -> None:
        """Private or dump-named functions that only dump count as hooks themselves."""
        found = False
        for function in self.world.functions.values():
            node, file = function.node, function.module
            if isinstance(node, ast.ClassDef) or file.name in self.world.dumpers:
                continue
            if function.key in self.world.inert:
                continue
            own = function.name.startswith("_") or DUMP_WORD.search(function.name)
            if not own and (
                function.owner is not None or not self.whole or function.name in _exported(file)
            ):
                continue
            if function.name.startswith("__") or function.key in self._escaped:
                continue
            if function.owner is not None and self._overridden(function):
                continue
            if node.decorator_list:
                continue
            body = [s for s in node.body if not _is_text(s)]
            rest = [s for s in body if s not in self._gone]
            wraps = len(body) == 1 and self.walks[file].hook_result(body[0])
            # A public function that gives its argument back does so for its own sake, unless a hook does.
            if not wraps and (len(rest) == len(body) or (rest and not own)):
                continue
            returned = self._handed_back(file, node) if wraps else returned_parameter(node)
            if rest and not (len(rest) == 1 and isinstance(rest[0], ast.Return) and returned):
                continue
            if function.key not in self.world.calls:
                self.wanted.add(handle(function))
                continue
            if not rest:
                returned = None
            calls = self.world.calls[function.key]
            if returned is None and not all(
                isinstance(f.parents[c], ast.Expr) for f, c, _ in calls
            ):
                continue
            self.world.inert[function.key] = Hook(
                function.name, "function", returned, function.positional
            )
            found = True
        if found:
            self.world.relink()
            self._escaped = self._escapes()

    def _handed_back(self, file: Code, node: FunctionNode) -> str | None:
        """The parameter that `return hook("a", x)` gives back."""
        last = node.body[-1]
        value = last.value if isinstance(last, ast.Return) else None
        while isinstance(value, ast.Call):
            hook = self.walks[file].hook(value)
            value = returned_argument(hook, value) if isinstance(hook, Hook) else None
        names = {a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)}
        return value.id if isinstance(value, ast.Name) and value.id in names else None

    def _overridden(self, function: Function) -> bool:
        """Whether a method takes part in overriding, so that its signature is not its own."""
        owner = function.owner
        assert owner is not None
        for cls in self.world.classes.values():
            if cls is owner or function.name not in cls.methods:
                continue
            if owner in list(self.world.lineage(cls.key)) or cls in list(
                self.world.lineage(owner.key)
            ):
                return True
        return False

    def _find_keys(self) -> None:
        """Keys of dict displays that are spread into calls: `step(**{"dump_enabled": …})` by way of a name."""
        for file in self.files:
            for var in all_vars(file):
                if (
                    len(var.stores) != 1
                    or not isinstance(var.stores[0].value, ast.Dict)
                    or var.pinned
                ):
                    continue
                display = var.stores[0].value
                assert isinstance(display, ast.Dict)
                for key, value in zip(display.keys, display.values, strict=True):
                    if not isinstance(key, ast.Constant) or key.value not in self.decisions.names:
                        continue
                    spread = var.loads and all(self._spread(file, load) for load in var.loads)
                    if spread and not self.walks[file].effects(value):
                        self.decisions.keys.add(key)

    @staticmethod
    def _spread(file: Code, load: ast.expr) -> bool:
        parent = file.parents.get(load)
        return isinstance(parent, ast.keyword) and parent.arg is None

    def _find_parameters(self) -> None:
        candidates: set[tuple[str, str]] = set()
        by_key = {f.key: f for f in self._functions()}
        for function in by_key.values():
            if function.key in self.world.inert:
                continue
            for index, name in enumerate(function.names):
                key = (function.key, name)
                if key in self.decisions.parameters:
                    continue
                if index == 0 and function.owner is not None and not function.static:
                    continue
                if self._parameter_unused(function, name):
                    candidates.add(key)
        while True:
            refused = {
                key for key in candidates if not self._removable(by_key[key[0]], key[1], candidates)
            }
            if not refused:
                break
            candidates -= refused
        self.decisions.parameters |= candidates
        self.wanted.update(handle(by_key[owner]) for owner, _ in candidates)
        for _, name in self.decisions.parameters:
            if DUMP_WORD.search(name) and all(
                (f.key, name) in self.decisions.parameters
                for f in by_key.values()
                if name in f.names and not isinstance(f.node, ast.ClassDef)
            ):
                self.decisions.names.add(name)

    def _parameter_unused(self, function: Function, name: str) -> bool:
        """Whether a parameter only fed dumps."""
        file = function.module
        flag = (function.key, name) in self.decisions.flags
        if isinstance(function.node, ast.ClassDef):
            uses = self._field_uses(file.classes[function.node], name)
            if any(n not in self._gone for n in uses):
                return False
            return flag or any(n in self._fed for n in uses)
        var = file.scopes[function.node].names.get(name)
        if var is None or var.pinned or len(var.stores) != 1 or self._alive(var.loads):
            return False
        if var.deletes and not all(self._whole_delete(file, d) for d in var.deletes):
            return False
        if flag or Dumper() in self.world.of_var(file, var):
            return True
        # What no call gives, or what a function left empty took, does no harm.
        body = [s for s in function.node.body if not _is_text(s)]
        if not any(n in self._fed for n in var.loads) or all(s in self._gone for s in body):
            return False
        if function.key not in self.world.calls:
            self.wanted.add(handle(function))
            return False
        return True

    @staticmethod
    def _whole_delete(file: Code, node: ast.Name) -> bool:
        return isinstance(file.parents.get(node), ast.Delete)

    def _field_uses(self, cls: Class, name: str) -> list[ast.Attribute]:
        found = []
        for file, node in self._attributes.get(name, ()):
            values = self.world.values(file, node.value)
            known = [v for v in values if isinstance(v, Instance)]
            if not known or any(v.key == cls.key for v in known) or UNKNOWN in values:
                found.append(node)
        return found

    def _removable(self, function: Function, name: str, candidates: set[tuple[str, str]]) -> bool:
        """Whether a parameter can go from the definition and from every call."""
        key = (function.key, name)
        flag = key in self.decisions.flags
        file, node = function.module, function.node
        here: ast.AST = node

        def refuse(reason: str) -> bool:
            self._block(
                key,
                file,
                here,
                f"parameter `{name}` only fed dumps, but {reason}",
                "remove it and what is passed for it",
            )
            return False

        if function.owner is not None:
            if function.name.startswith("__") and function.name not in ("__init__", "__call__"):
                return refuse("Python calls this method itself")
            if self._overridden(function):
                return refuse("other classes override this method")
            if not flag and not self._method_known(function, name):
                return refuse("calls of a method of this name are not all known")
        if function.key in self._escaped and not flag:
            return refuse("the function is passed on, so its calls are not all known")
        if function.key in self._escaped and flag:
            for caller, call in self.world.unresolved:
                if any(
                    k.arg == name and self.walks[caller].off(k.value) != "off"
                    for k in call.keywords
                ):
                    here, file = call, caller
                    return refuse("this call gives it to a function that is not followed")
        if not self.whole and not flag and not self._local(function):
            return False
        if not flag and file.top.names.get("__all__") and function.name in _exported(file):
            return refuse("the function is exported")
        if isinstance(node, ast.ClassDef) and name not in self.decisions.names:
            for caller, call in self.world.unresolved:
                if any(k.arg == name for k in call.keywords):
                    here, file = call, caller
                    return refuse("a call that is not followed gives a field of this name")
        for caller, call, callee in self.world.calls.get(function.key, ()):
            bound = bind(function, callee, call)
            here, file = call, caller
            if name in bound and bound[name] is None:
                return refuse("a call gives it with `*`")
            if not flag and any(k.arg is None for k in call.keywords):
                return refuse("a call may give it with `**`")
            argument = bound.get(name)
            if argument is None:
                continue
            if self.walks[caller].effects(argument):
                return refuse("what is passed for it may do something")
            for other in self.world.values(caller, call.func):
                if (
                    isinstance(other, Callee)
                    and other.key != function.key
                    and other.key in self.world.functions
                ):
                    partner = self.world.functions[other.key]
                    names = [n for n, a in bind(partner, other, call).items() if a is argument]
                    if any(
                        (partner.key, n) not in candidates
                        and (partner.key, n) not in self.decisions.parameters
                        for n in names
                    ):
                        return refuse("the same call may reach another function")
        return True

    def _local(self, function: Function) -> bool:
        """Whether a function can only be named in its own file."""
        if isinstance(function.module.parents[function.node], ast.Module):
            return function.name.startswith("_")
        return function.owner is None

    def _method_known(self, function: Function, name: str) -> bool:
        """Whether no unresolved call may give this parameter of a method."""
        index = function.positional.index(name) if name in function.positional else None
        attribute = function.name
        for _, call in self.world.unresolved:
            if UNKNOWN not in self.world.call_values[call]:
                continue
            if attribute in ("__init__", "__call__"):
                matches = any(k.arg == name for k in call.keywords)
                if matches:
                    return False
                continue
            if not isinstance(call.func, ast.Attribute) or call.func.attr != attribute:
                continue
            given = len(call.args) + 1
            if any(k.arg == name or k.arg is None for k in call.keywords) or (
                index is not None and given > index
            ):
                return False
        return True

    def _find_attributes(self) -> None:
        """Attributes set on self that hold a dumper, or only fed dumps."""
        for (key, name), stored in self.world.attributes.items():
            cls = self.world.classes[key]
            if (key, name) in self.decisions.attributes or cls.module.name in self.world.dumpers:
                continue
            loads = [
                node
                for file, node in self._attributes.get(name, ())
                if not self._other_class(file, node, key)
            ]
            if any(node not in self._gone for node in loads):
                continue
            hooked = all(
                self.walks[f].is_machinery(v) or self.walks[f].off(v) == "off" for f, v in stored
            )
            private = name.startswith("_") or DUMP_WORD.search(name)
            if not hooked and not (private and self.whole and any(n in self._fed for n in loads)):
                continue
            if any(self.walks[f].effects(v) for f, v in stored) and not hooked:
                file, value = stored[0]
                self._block(
                    (key, name),
                    file,
                    value,
                    f"attribute `{name}` only fed dumps, but what it is set to may do something",
                    "remove it",
                )
                continue
            self.wanted.add(name)
            self.decisions.attributes.add((key, name))

    def _other_class(self, file: Code, node: ast.Attribute, key: str) -> bool:
        values = self.world.values(file, node.value)
        known = {v.key for v in values if isinstance(v, Instance)}
        if not known or UNKNOWN in values:
            return False
        family = {c.key for k in known for c in self.world.lineage(k)}
        return key not in family and not any(
            k in {c.key for c in self.world.lineage(key)} for k in known
        )

    def _find_results(self) -> None:
        """Positions of returned tuples that are None once nothing is dumped."""
        for function in self._functions():
            returns = function.returns
            if not returns or isinstance(function.node, ast.ClassDef):
                continue
            tuples = [r.value for r in returns if isinstance(r.value, ast.Tuple)]
            if len(tuples) != len(returns) or len({len(t.elts) for t in tuples}) != 1:
                continue
            if any(isinstance(e, ast.Starred) for t in tuples for e in t.elts):
                continue
            walk = self.walks[function.module]
            for index in range(len(tuples[0].elts)):
                if (function.key, index) in self.decisions.results:
                    continue
                if not all(self._vanishes(walk, t.elts[index]) for t in tuples):
                    continue
                reason = self._result_used(function, index, len(tuples[0].elts))
                if reason:
                    self._block(
                        (function.key, index),
                        function.module,
                        tuples[0].elts[index],
                        f"this value is None now that nothing is dumped, but {reason}",
                        "drop it here and where the result is unpacked",
                    )
                else:
                    self.wanted.add(function.name)
                    self.decisions.results.add((function.key, index))

    def _vanishes(self, walk: Walk, node: ast.expr) -> bool:
        """Whether a value is None now, and was something else only when dumping."""
        if isinstance(node, ast.IfExp):
            off = walk.off(node.test)
            if off is None:
                return False
            kept = node.orelse if off == "off" else node.body
            return (isinstance(kept, ast.Constant) and kept.value is None) or self._vanishes(
                walk, kept
            )
        if isinstance(node, ast.Name):
            var = walk.file.var_of.get(node)
            if (
                var is None
                or var.pinned
                or any(s.kind != "assign" or s.value is None for s in var.stores)
            ):
                return False
            return bool(var.stores) and all(
                self._vanishes(walk, s.value) for s in var.stores if s.value is not None
            )
        return False

    def _result_used(self, function: Function, index: int, length: int) -> str:
        """Why a position of a result cannot go; "" if it can."""
        if function.key in self._escaped:
            return "the function is passed on, so its calls are not all known"
        if function.owner is not None and self._overridden(function):
            return "other classes override this method"
        if not self.whole and not self._local(function):
            return "other files may call the function"
        for file in self.files:
            for node in file.parents:
                if (
                    isinstance(node, ast.Call)
                    and any(
                        k.arg in ("out_shardings", "out_specs", "out_axes") for k in node.keywords
                    )
                    and function.key
                    in {v.key for v in self.world.values(file, node) if isinstance(v, Callee)}
                ):
                    return "the shardings of its results are given by position"
        for file, call, _ in self.world.calls.get(function.key, ()):
            if not any(
                isinstance(v, Callee) and v.key == function.key
                for v in self.world.call_values.get(call, ())
            ):
                continue  # functools.partial
            if any(isinstance(v, Callee) and v.other for v in self.world.call_values[call]):
                return "the function is differentiated"
            if len([v for v in self.world.call_values[call] if isinstance(v, Callee)]) > 1:
                return "a call may reach another function"
            if UNKNOWN in self.world.call_values[call]:
                return "a call may reach another function"
            parent = file.parents[call]
            if not isinstance(parent, ast.Assign) or parent.value is not call:
                if isinstance(parent, ast.Expr):
                    continue
                return f"the result is used as a whole in {file.path}, line {call.lineno}"
            for target in parent.targets:
                if not isinstance(target, (ast.Tuple, ast.List)) or len(target.elts) != length:
                    return f"the result is not unpacked by name in {file.path}, line {call.lineno}"
                element = target.elts[index]
                if any(isinstance(e, ast.Starred) for e in target.elts) or not isinstance(
                    element, ast.Name
                ):
                    return f"the result is not unpacked by name in {file.path}, line {call.lineno}"
                var = file.var_of[element]
                if var.pinned or self._alive(var.loads):
                    return f"`{element.id}` is still used in {file.path}, line {call.lineno}"
        return ""

    def _find_variables(self) -> None:
        """Locals, module names, imports and fallbacks that nothing needs any more."""
        world, decisions = self.world, self.decisions
        for file in self.files:
            walk = self.walks[file]
            exported = _exported(file)
            for statement in file.parents:
                if not isinstance(statement, ast.Try) or not walk.only_imports_hooks(statement):
                    continue
                bound = _bound_in(file, statement)
                if not any(self._needed(file, var) for var in bound):
                    decisions.tries.add(statement)
                    decisions.variables.update(bound)
            candidates: list[Var] = []
            for var in all_vars(file):
                if var in decisions.variables or not var.stores or var.pinned:
                    continue
                if any(s.kind == "param" for s in var.stores) or var.scope.kind == "comprehension":
                    continue
                machinery = any(world.is_machinery(v) for v in world.of_var(file, var))
                if var.scope.kind == "class" and not machinery:
                    continue
                read = var.loads or self._was_fed(file, var) or self._dead_result_target(file, var)
                if not machinery and not read:
                    continue
                if self._needed(file, var) or (var.name in exported and not machinery):
                    continue
                if var.scope.kind == "class" and self._kept_attribute(file, var):
                    continue
                candidates.append(var)
            chosen = set(candidates)
            while True:
                refused = {
                    v
                    for v in chosen
                    if not all(self._store_goes(file, s, v, chosen) for s in v.stores)
                }
                if not refused:
                    break
                chosen -= refused
            for var in candidates:
                if var in chosen:
                    decisions.variables.add(var)
                    if var.scope.kind == "module" and not all(
                        s.kind == "import" for s in var.stores
                    ):
                        self.wanted.add(var.name)
                    for store in var.stores:
                        if store.kind == "def":
                            decisions.functions.add(file.functions[store.node].key)
                            self.wanted.add(var.name)
                else:
                    self._explain(file, var)
        for key in world.inert:
            function = world.functions[key]
            if key in decisions.functions or function.owner is None:
                continue
            loads = [n for f, n in self._attributes.get(function.name, ()) if n not in self._gone]
            if not loads:
                decisions.functions.add(key)
                self.wanted.add(function.name)

    def _kept_attribute(self, file: Code, var: Var) -> bool:
        """Whether a hook that a class body names is asked for as an attribute; it is listed then."""
        if all(node in self._gone for _, node in self._attributes.get(var.name, ())):
            return False
        for store in var.stores:
            reason = "a dump hook is kept as an attribute, so its calls cannot all be seen"
            self._block((var, store.node), file, store.node, reason, "take it out by hand")
        return True

    def _needed(self, file: Code, var: Var) -> bool:
        """Whether something that stays reads a variable, here or in another file."""
        if self._alive(var.loads):
            return True
        if any(
            d not in self._gone and not isinstance(file.parents.get(d), ast.Delete)
            for d in var.deletes
        ):
            return True
        if var.scope.kind != "module":
            return False
        if any(v not in self.decisions.variables for v in self._importing(file, var.name)):
            return True
        if file.name:
            for other, node in self._attributes.get(var.name, ()):
                if node not in self._gone and Outside(file.name) in self.world.values(
                    other, node.value
                ):
                    return True
        imports = all(s.kind == "import" for s in var.stores)
        if not imports and not (var.name.startswith("_") or DUMP_WORD.search(var.name)):
            return not any(isinstance(v, Hook) for v in self.world.of_var(file, var))
        return False

    def _was_fed(self, file: Code, var: Var) -> bool:
        return var.scope.kind == "module" and any(
            v in self.decisions.variables for v in self._importing(file, var.name)
        )

    def _dead_result_target(self, file: Code, var: Var) -> bool:
        """Whether a name is only unpacked from a position that a function no longer returns."""
        return bool(var.stores) and all(
            s.kind == "unpack"
            and isinstance(s.value, ast.Call)
            and len(s.path) == 1
            and s.path[0] in self.walks[file].dead_results(s.value)
            for s in var.stores
        )

    def _store_goes(self, file: Code, store: Store, var: Var, chosen: set[Var]) -> bool:
        """Whether a statement that sets a variable can go with it."""
        walk = self.walks[file]
        statement = store.stmt
        if statement is None:
            return False
        parent = file.parents.get(statement)
        if isinstance(parent, ast.ExceptHandler):
            parent = file.parents.get(parent)
        if isinstance(parent, ast.Try) and parent in self.decisions.tries:
            return True
        if store.kind == "import":
            return all(s.kind == "import" for s in var.stores) or in_import_try(file, store)
        if statement in self._gone or store.node in self._gone:
            return True
        if store.kind in ("assign", "aug"):
            value = store.value
            if isinstance(statement, ast.Assign) and not all(
                isinstance(t, ast.Name) and (file.var_of[t] in chosen) for t in statement.targets
            ):
                return False
            return value is None or not walk.effects(value)
        if store.kind == "unpack" and isinstance(statement, ast.Assign) and store.value is not None:
            dead = walk.dead_results(store.value) if isinstance(store.value, ast.Call) else set()
            if len(store.path) == 1 and store.path[0] in dead:
                return True
            names = [n for t in statement.targets for n in ast.walk(t) if isinstance(n, ast.Name)]
            return all(
                file.var_of[n] in chosen for n in names if n in file.var_of
            ) and not walk.effects(store.value)
        if store.kind == "walrus":
            return True
        if store.kind == "loop" and isinstance(statement, ast.For):
            target = statement.target
            return (
                isinstance(target, ast.Tuple)
                and len(target.elts) == 2
                and store.node is target.elts[0]
                and any(n in self._fed for n in var.loads)
                and counted(self.world, file, statement) is not None
            )
        if store.kind == "def":
            function = file.functions[store.node]
            if isinstance(file.parents[store.node], ast.ClassDef):
                return False
            if function.key in self.world.inert:
                return True
            return not any(walk.effects(d) for d in function.node.decorator_list) and (
                var.scope.kind == "function" or var.name.startswith("_")
            )
        if store.kind == "with":
            return Dumper() in self.world.of_var(file, var)
        return False

    def _explain(self, file: Code, var: Var) -> None:
        """Say why a variable that only fed dumps stays, where a person could do better."""
        for store in var.stores:
            if store.stmt is None or store.kind in ("import", "def", "class"):
                continue
            if store.kind in ("assign", "aug") and any(n in self._fed for n in var.loads):
                together = isinstance(store.stmt, ast.Assign) and len(store.stmt.targets) > 1
                what = "it is set with others" if together else "its value may do something"
                self._block(
                    var,
                    file,
                    store.node,
                    f"`{var.name}` only fed dumps, but {what}",
                    "remove it if nothing else needs it",
                )
                return


def handle(function: Function) -> str:
    """The name by which other files call a function: its class's for a constructor."""
    if function.owner is not None and function.name in ("__init__", "__call__"):
        return function.owner.node.name
    return function.name


def all_vars(file: Code) -> Iterator[Var]:
    """Every variable of a file."""
    for scope in file.scopes.values():
        yield from scope.names.values()


def _bound_in(file: Code, node: ast.Try) -> list[Var]:
    names = set()
    for statement in (*node.body, *node.orelse, *(s for h in node.handlers for s in h.body)):
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            names |= {(a.asname or a.name).partition(".")[0] for a in statement.names}
        elif isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(statement.name)
        elif isinstance(statement, ast.Assign):
            names |= {t.id for t in statement.targets if isinstance(t, ast.Name)}
    scope = file.scope_of(node)
    return [scope.names[n] for n in sorted(names) if n in scope.names]


def _exported(file: Code) -> set[str]:
    """The names in `__all__`."""
    for node in file.tree.body:
        if isinstance(node, ast.Assign) and any(
            isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets
        ):
            return {str(c.value) for c in ast.walk(node.value) if isinstance(c, ast.Constant)}
    return set()


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
