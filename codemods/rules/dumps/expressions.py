"""Expressions: hook calls give way to their argument, what is off is folded, what calls need no more goes."""

from __future__ import annotations

import ast
import re

from codemods.rules.dumps.code import Function
from codemods.rules.dumps.questions import COMPREHENSIONS, FLAG, PARAMETER, VALUE, Questions
from codemods.rules.dumps.values import (
    SETTING,
    Callee,
    Dumper,
    Hook,
    Outside,
    bind,
    returned_argument,
)

# Added to the depth of lambdas and comprehensions inside a hook call that is listed already.
_LISTED = 1000


class Expressions(Questions):
    """The walk over expressions."""

    def expression(self, node: ast.expr) -> None:
        """Walk an expression whose value is used."""
        if isinstance(node, (ast.Name, ast.Attribute)):
            self._reference(node)
            return
        if isinstance(node, ast.Call):
            self._call(node)
            return
        if isinstance(node, (ast.Lambda, *COMPREHENSIONS)):
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
                    continue
                if key is not None:
                    self.expression(key)
                self.expression(value)
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
        if isinstance(node, COMPREHENSIONS):
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
        self.frozen += 1
        for part in parts:
            self.expression(part)
        self.frozen -= 1

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
            ) or (SETTING.match(keyword.arg) and not self.effects(keyword.value)):
                dead.append(keyword.value)
        names = self._static_names(node)
        dead.extend(n for n in names if n not in dead)
        dead = list(dict.fromkeys(dead))
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
            k.arg in ("argnums", "static_argnums", "donate_argnums") for k in node.keywords
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

        if self.frozen:
            if self.frozen < _LISTED:
                self.find(
                    node,
                    "a hook in a lambda or comprehension is called later or many times",
                    "take the dump out by hand; the dumper module is not in the migrated tree",
                )
            self.frozen += _LISTED
            for argument in (*node.args, *(k.value for k in node.keywords)):
                self.expression(argument)
            self.frozen -= _LISTED
            return
        if isinstance(hook, Dumper) or hook.kind == "class":
            left("the value of a call to the dumper is used")
            return
        result = returned_argument(hook, node)
        if result is None:
            if not hook.known:
                left(
                    "the hook's definition is not in the checkout, so what the call returns cannot be read"
                )
            elif hook.returns is None:
                left("the value of a hook that does not return its argument is used")
            else:
                left("it cannot be said which argument this call returns")
            return
        others = [a for a in (*node.args, *(k.value for k in node.keywords)) if a is not result]
        if any(self.effects(a) for a in others):
            left("an argument that is not returned may do something")
            return
        if isinstance(result, ast.Starred):
            left("it cannot be said which argument this call returns")
            return
        self.mark(node.func, *others)
        self.gone.add(node)
        self.do("keep_part", VALUE, node, result)
        self.expression(result)

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
            if keyword.arg not in ("argnums", "static_argnums", "donate_argnums"):
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
            value = text.value if isinstance(text, ast.Constant) else None
            if (
                isinstance(value, str)
                and re.match(r"argus_\w+=", value)
                and not self.effects(element)
            ):
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
