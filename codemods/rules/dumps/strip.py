"""One walk over a file: what goes, what stays in its place, and what a person has to look at.

The walk is repeated by `Growth` with ever more decisions (parameters, locals, flags … that only fed
dumps), until nothing more falls; the last walk says what to edit.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from typing import Any

from codemods.rules.dumps.code import Code, Function, FunctionNode
from codemods.rules.dumps.expressions import Expressions
from codemods.rules.dumps.questions import (
    CALL,
    COMPREHENSIONS,
    DECORATOR,
    FLAG,
    IMPORT,
    LOCAL,
    PARAMETER,
    RESULT,
    VALUE,
    Decisions,
    Finding,
    Operation,
    counted,
    is_elif,
    spreads,
)
from codemods.rules.dumps.values import (
    DUMP_WORD,
    SETTING,
    Callee,
    Dumper,
    Hook,
    World,
    returned_argument,
)

_TEST_FILE = re.compile(r"(?:^|/)(?:tests?/|test_[^/]*\.py$|[^/]*_test\.py$)")


class Walk(Expressions):
    """What goes from one file, given the decisions."""

    def __init__(self, world: World, file: Code, decisions: Decisions, run: bool = True) -> None:
        """Walk the file; or only make ready to answer questions, if not `run`."""
        super().__init__(world, file, decisions)
        if run:
            self.block(file.tree.body)

    def block(self, body: Sequence[ast.stmt]) -> bool:
        """Walk the statements of a block; True if none is left."""
        left = removed = False
        for statement in body:
            before = len(self.operations), len(self.findings)
            rule = self.statement(statement)
            if rule is None:
                # The import rules take out the import; here it counts as gone already.
                left = left or not self._freed_import(statement)
            else:
                removed = True
                del self.operations[before[0] :]
                del self.findings[before[1] :]
                self.mark(statement)
                self.do("remove_statement", rule, statement)
        return removed and not left

    def _freed_import(self, node: ast.stmt) -> bool:
        """Whether nothing needs any name of an import statement any more."""
        if not isinstance(node, (ast.Import, ast.ImportFrom)):
            return False
        names = [a.asname or a.name for a in node.names]
        scope = self.file.scope_of(node)
        return all(n in scope.names and scope.names[n] in self.decisions.variables for n in names)

    def fill(self, body: Sequence[ast.stmt]) -> None:
        """Put `pass` where the first removed statement of an emptied block was."""
        for index, operation in enumerate(self.operations):
            if operation.kind == "remove_statement" and operation.nodes[0] in body:
                self.operations[index] = Operation("fill", operation.rule, operation.nodes)
                return

    def statement(self, node: ast.stmt) -> str | None:
        """Walk one statement; the id of the rule that removes it whole, or None if (some of) it stays."""
        handler = _HANDLERS.get(type(node))
        if handler is not None:
            return handler(self, node)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.expression(child)
        return None

    def _on_expr(self, node: ast.Expr) -> str | None:
        value = node.value
        if isinstance(value, (*COMPREHENSIONS, ast.Lambda)) or not self.holds_hook(value):
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

    def _on_assign(self, node: ast.Assign) -> str | None:
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
            or self.frozen
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
        alias = isinstance(target, ast.Name) and self.hook(value) is None
        if not (alias and any(isinstance(v, Hook) for v in self.world.values(self.file, value))):
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
        for element in value.elts:
            name = str(element.value) if isinstance(element, ast.Constant) else ""
            var = self.file.top.names.get(name)
            if var is None or element in dead:
                continue
            if any(self.world.is_machinery(v) for v in self.world.of_var(self.file, var)):
                reason = "hands on a dump hook that another listed place still needs"
                self.find(element, reason, "take it out with that place")

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

    def _on_ann_assign(self, node: ast.AnnAssign) -> str | None:
        if self._dead_target(node.target) and (node.value is None or not self.effects(node.value)):
            return LOCAL
        owner = self.file.classes.get(self.file.parents[node])
        name = node.target.id if isinstance(node.target, ast.Name) else ""
        if owner is not None and owner.fields and (owner.key, name) in self.decisions.parameters:
            return PARAMETER
        self._annotation(node.annotation)
        if not isinstance(node.target, ast.Name):
            self.expression(node.target)
        if node.value is not None:
            self._assigned(node.target, node.value)
        return None

    def _on_aug_assign(self, node: ast.AugAssign) -> str | None:
        if self._dead_target(node.target) and not self.effects(node.value):
            return LOCAL
        self.expression(node.target)
        self.expression(node.value)
        return None

    def _on_delete(self, node: ast.Delete) -> str | None:
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

    def _on_return(self, node: ast.Return) -> str | None:
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

    def _on_if(self, node: ast.If) -> str | None:
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

    def _on_while(self, node: ast.While) -> str | None:
        if self.off(node.test) == "off" and not self.effects(node.test) and not node.orelse:
            return FLAG
        self.expression(node.test)
        self._loop(node)
        return None

    def _loop(self, node: ast.While | ast.For | ast.AsyncFor) -> bool:
        """Walk the blocks of a loop; True if its body is left empty."""
        empty = self._body(node, node.body, "loop")
        if node.orelse and self.block(node.orelse):
            self.do("drop_else", CALL, node, items=[node.orelse[0]])
        return empty

    def _body(self, node: ast.AST, body: Sequence[ast.stmt], what: str) -> bool:
        if not self.block(body):
            return False
        self.fill(body)
        self.find(node, f"only dumps stood in this {what}", "see whether it can go")
        return True

    def _on_for(self, node: ast.For | ast.AsyncFor) -> str | None:
        if not self._loop(node) and self._counts_for_dumps(node):
            assert isinstance(node.target, ast.Tuple)
            assert isinstance(node.iter, ast.Call)
            self.mark(node.target.elts[0], node.iter.func)
            self.do("drop_count", LOCAL, node)
            self.expression(node.iter.args[0])
        else:
            self.expression(node.iter)
        return None

    def _counts_for_dumps(self, node: ast.For | ast.AsyncFor) -> bool:
        """Whether a loop counts with `enumerate`, and the count only fed dumps."""
        if not isinstance(node.target, ast.Tuple) or len(node.target.elts) != 2:
            return False
        count = node.target.elts[0]
        return self._dead_target(count) and counted(self.world, self.file, node) is not None

    def _on_with(self, node: ast.With | ast.AsyncWith) -> str | None:
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

    def _dumper_item(self, item: ast.withitem) -> bool:
        values = self.world.values(self.file, item.context_expr)
        if not values or not all(isinstance(v, Dumper) for v in values):
            return False
        if item.optional_vars is not None and not self._dead_target(item.optional_vars):
            return False
        return not self.effects(item.context_expr)

    def _on_try(self, node: ast.Try | ast.TryStar) -> str | None:
        if node in self.decisions.tries:
            return IMPORT
        self._body(node, node.body, "try block")
        for handler in node.handlers:
            if handler.type is not None:
                self.expression(handler.type)
            self._body(handler, handler.body, "except block")
        if node.orelse and self.block(node.orelse):
            self.do("drop_else", CALL, node, items=[node.orelse[0]])
        if node.finalbody and self.block(node.finalbody):
            self.fill(node.finalbody)
            self.find(
                node.finalbody[0],
                "only dumps stood in this finally block",
                "see whether it can go",
            )
        return None

    def _on_match(self, node: ast.Match) -> str | None:
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

    def _on_import(self, node: ast.Import | ast.ImportFrom) -> str | None:
        for alias in node.names:
            if alias.name == "*" and self.imports_machinery(node, alias):
                self.find(node, "takes whatever the dumper module offers", "remove it")
        return None

    def _on_function_def(self, node: FunctionNode) -> str | None:
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

    def _about_dumps(self, node: FunctionNode) -> bool:
        """Whether a function asserts something of a hook or dumper, or is a test that switches dumping on."""
        if not node.name.startswith("test") and not (
            _TEST_FILE.search(self.file.path) and any(isinstance(n, ast.Assert) for n in node.body)
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
        value = function.returns[0].value
        length = len(value.elts) if isinstance(value, ast.Tuple) else 0
        parts = node.slice if isinstance(node, ast.Subscript) else None
        if isinstance(parts, ast.Tuple) and len(parts.elts) == length > len(positions) + 1:
            items = [parts.elts[i] for i in positions]
            self.mark(*items)
            self.do("remove_items", RESULT, parts, items=items)
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

    def _on_class_def(self, node: ast.ClassDef) -> str | None:
        self._decorators(node, None)
        for part in (*node.bases, *(k.value for k in node.keywords)):
            self.expression(part)
        if self.block(node.body):
            self.fill(node.body)
        return None


_HANDLERS: dict[type[ast.stmt], Callable[[Walk, Any], str | None]] = {
    ast.Expr: Walk._on_expr,
    ast.Assign: Walk._on_assign,
    ast.AnnAssign: Walk._on_ann_assign,
    ast.AugAssign: Walk._on_aug_assign,
    ast.Delete: Walk._on_delete,
    ast.Return: Walk._on_return,
    ast.If: Walk._on_if,
    ast.While: Walk._on_while,
    ast.For: Walk._on_for,
    ast.With: Walk._on_with,
    ast.Try: Walk._on_try,
    ast.Match: Walk._on_match,
    ast.Import: Walk._on_import,
    ast.FunctionDef: Walk._on_function_def,
    ast.ClassDef: Walk._on_class_def,
    ast.AsyncFor: Walk._on_for,
    ast.AsyncWith: Walk._on_with,
    ast.TryStar: Walk._on_try,
    ast.ImportFrom: Walk._on_import,
    ast.AsyncFunctionDef: Walk._on_function_def,
}
