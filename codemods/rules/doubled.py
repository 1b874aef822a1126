"""What is said twice once two names have become one: members, keys, cases, operands, assignments.

The rename rules collect what a file's text becomes; this looks for places that then say the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import libcst as cst

from codemods.engine.context import PythonFile
from codemods.engine.scopes import Scope, dotted_name
from codemods.engine.tree import Span
from codemods.maps.symbols import absolute

# Nodes in which something can be said twice.
CONTAINERS = (
    cst.Tuple,
    cst.List,
    cst.Set,
    cst.Dict,
    cst.MatchOr,
    cst.BooleanOperation,
    cst.IfExp,
    cst.Match,
    cst.If,
)
# Calls that ask for the class of something; their second argument is a class or a tuple of classes.
CLASS_TESTS = frozenset({"isinstance", "issubclass"})


class Doubled:
    """Removes what is said twice in one file (REN008), and lists what only looks so.

    Attributes:
        changes: (start, end, new text) of every name that changes, whichever rule makes the edit.
    """

    def __init__(self, file: PythonFile) -> None:
        self.file = file
        self.tree = file.tree
        self.text = file.text
        self.changes: list[tuple[int, int, str]] = []
        self._listed: set[tuple[Span, str, str]] = set()

    # What an import brings ------------------------------------------------------------------------

    def _root_import(self, root: cst.Name) -> cst.ImportAlias | None:
        return self._import_of(self.file.scopes.scope_of(root), root.value)

    def _import_of(self, scope: Scope, name: str) -> cst.ImportAlias | None:
        """The import that a name used in `scope` comes from."""
        home = scope.home(name)
        if home is None:
            return None
        for binding in home.bindings[name]:
            if isinstance(binding.node, cst.ImportAlias):
                return binding.node
        return None

    def _imported(self, alias: cst.ImportAlias) -> str:
        return (dotted_name(alias.name) or "").rpartition(".")[2]

    def _module_of(self, alias: cst.ImportAlias, called: cst.BaseExpression) -> str:
        """The old module that an imported class, or the module before it, comes from."""
        statement = self.tree.parent(alias)
        if isinstance(statement, cst.Import):
            return (dotted_name(called) or "").rpartition(".")[0]
        assert isinstance(statement, cst.ImportFrom)
        target = dotted_name(statement.module) if statement.module is not None else None
        module = absolute(
            self.file.module_name, self.file.is_package, len(statement.relative), target
        )
        if isinstance(called, cst.Attribute):
            return f"{module}.{self._imported(alias)}"
        return module

    # What is said twice ---------------------------------------------------------------------------

    def _doubled(self, node: cst.CSTNode) -> None:
        if isinstance(node, (cst.Tuple, cst.List, cst.Set)):
            self._doubled_members(node)
        elif isinstance(node, cst.Dict):
            self._doubled_keys(node)
        elif isinstance(node, cst.MatchOr):
            for first, second in self._twins([p.pattern for p in node.patterns]):
                a, b = node.patterns[first].pattern, node.patterns[second].pattern
                if self._drop_of(a, b):
                    previous = node.patterns[second - 1].pattern
                    span = (self.file.span(previous)[1], self.file.span(b)[1])
                else:
                    following = node.patterns[first + 1].pattern
                    span = (self.file.span(a)[0], self.file.span(following)[0])
                self.file.edit("REN008", span, "")
        elif isinstance(node, cst.BooleanOperation):
            if isinstance(node.operator, cst.Or):
                for _ in self._twins([node.left, node.right]):
                    left, right = self.file.span(node.left), self.file.span(node.right)
                    if self._drop_of(node.left, node.right):
                        self.file.edit("REN008", (left[1], right[1]), "")
                    else:
                        self.file.edit("REN008", (left[0], right[0]), "")
        elif isinstance(node, cst.IfExp):
            if isinstance(node.test, (cst.Name, cst.Attribute)):
                for _ in self._twins([node.body, node.orelse]):
                    span = (self.file.span(node.body)[1], self.file.span(node.orelse)[1])
                    self.file.edit("REN008", span, "")
        elif isinstance(node, cst.Match):
            self._doubled_cases(node)
        elif isinstance(node, cst.If):
            self._doubled_branches(node)

    def _becomes(self, node: cst.CSTNode) -> str:
        """A node's text with the changes made, blanks apart."""
        start, end = self.file.span(node)
        parts: list[str] = []
        position = start
        for s, e, new in sorted(set(self.changes)):
            if position <= s and e <= end:
                parts += (self.text[position:s], new)
                position = e
        parts.append(self.text[position:end])
        return re.sub(r"\s+", " ", "".join(parts)).replace("( ", "(").replace(" )", ")")

    def _touched(self, node: cst.CSTNode) -> bool:
        start, end = self.file.span(node)
        return any(start <= s and e <= end for s, e, _ in self.changes)

    def _twins(self, nodes: Sequence[cst.CSTNode]) -> Iterator[tuple[int, int]]:
        """Pairs (first, second) of equal nodes of which at least one was changed."""
        if not any(self._touched(n) for n in nodes):
            return
        seen: dict[str, int] = {}
        for k, node in enumerate(nodes):
            text = self._becomes(node)
            if text in seen:
                if self._touched(node) or self._touched(nodes[seen[text]]):
                    yield seen[text], k
            else:
                seen[text] = k

    def _drop_of(self, first: cst.CSTNode, second: cst.CSTNode) -> bool:
        """Of two equal nodes, whether the second goes: the changed one does, else the later."""
        return self._touched(second) or not self._touched(first)

    def _doubled_members(self, node: cst.Tuple | cst.List | cst.Set) -> None:
        elements = node.elements
        if any(isinstance(e, cst.StarredElement) for e in elements):
            return
        pairs = list(self._twins([e.value for e in elements]))
        if not pairs:
            return
        if not self._only_asked(node):
            _first, second = pairs[0]
            self._list(
                "REN008",
                self.file.span(elements[second].value),
                "two names that are one now: what goes through this runs the same twice",
                "drop one, if the length does not matter",
            )
            return
        dropped = {
            second if self._drop_of(elements[first].value, elements[second].value) else first
            for first, second in pairs
        }
        self._remove_elements(node, sorted(dropped))

    def _only_asked(self, node: cst.Tuple | cst.List | cst.Set) -> bool:
        """Whether nothing depends on how many members there are."""
        if isinstance(node, cst.Set):
            return True
        parent = self.tree.parent(node)
        if isinstance(parent, cst.ComparisonTarget):
            return isinstance(parent.operator, (cst.In, cst.NotIn))
        if isinstance(parent, cst.Arg):
            call = self.tree.parent(parent)
            if isinstance(call, cst.Call):
                called = (dotted_name(call.func) or "").rpartition(".")[2]
                return called in (*CLASS_TESTS, "assertIsInstance", "frozenset", "set")
        if isinstance(parent, (cst.Assign, cst.AnnAssign)):
            target = parent.targets[0].target if isinstance(parent, cst.Assign) else parent.target
            if isinstance(target, cst.Name) and target.value == "__all__":
                return True
            # A constant of enum members: a list of kinds.
            return (
                isinstance(target, cst.Name)
                and target.value.isupper()
                and all(
                    re.fullmatch(r"[\w.]*\b[A-Z]\w*\.[A-Z0-9_]+", self.file.source(e.value))
                    for e in node.elements
                )
            )
        return False

    def _remove_elements(self, node: cst.Tuple | cst.List | cst.Set, dropped: list[int]) -> None:
        elements = node.elements
        left = [k for k in range(len(elements)) if k not in dropped]
        for k in dropped:
            start, end = self.file.span(elements[k])
            stop = self._comma(end)
            line = self.text.rfind("\n", 0, start) + 1
            tail = re.match(r"[ \t]*(\r?\n)", self.text[stop:])
            if self.text[line:start].strip() == "" and tail is not None and stop > end and line > 0:
                self.file.edit("REN008", (line, stop + tail.end()), "")
            elif k + 1 < len(elements):
                following = self.file.span(elements[k + 1])[0]
                between = self.text[stop:following]
                self.file.edit("REN008", (start, stop if "#" in between else following), "")
            else:
                before = self.file.span(elements[k - 1])[1]
                comma = self._comma(before)
                single = isinstance(node, cst.Tuple) and len(left) == 1 and left[0] == k - 1
                self.file.edit("REN008", (comma if single else before, end), "")
        if isinstance(node, cst.Tuple) and len(left) == 1 and left[0] == len(elements) - 1:
            end = self.file.span(elements[-1])[1]
            if self._comma(end) == end:
                self.file.edit("REN008", (end, end), ",")

    def _comma(self, offset: int) -> int:
        match = re.match(r"\s*,", self.text[offset : offset + 200])
        return offset + match.end() if match else offset

    def _doubled_keys(self, node: cst.Dict) -> None:
        elements = [e for e in node.elements if isinstance(e, cst.DictElement)]
        for first, second in self._twins([e.key for e in elements]):
            a, b = elements[first], elements[second]
            if self._becomes(a.value) == self._becomes(b.value):
                gone = b if self._drop_of(a.key, b.key) else a
                start, end = self.file.span(gone)
                stop = self._comma(end)
                line = self.text.rfind("\n", 0, start) + 1
                tail = re.match(r"[ \t]*(\r?\n)", self.text[stop:])
                if (
                    self.text[line:start].strip() == ""
                    and tail is not None
                    and line > 0
                    and stop > end
                ):
                    self.file.edit("REN008", (line, stop + tail.end()), "")
                elif gone is elements[-1] and len(elements) > 1:
                    self.file.edit("REN008", (self.file.span(elements[-2])[1], end), "")
                else:
                    following = elements[elements.index(gone) + 1]
                    self.file.edit("REN008", (start, self.file.span(following)[0]), "")
            else:
                self._list(
                    "REN008",
                    self.file.span(b.key),
                    "two keys are one now and their values differ; the later one wins",
                    "keep the value that is meant",
                )

    def _doubled_cases(self, node: cst.Match) -> None:
        cases = [c for c in node.cases if c.guard is None]
        for first, second in self._twins([c.pattern for c in cases]):
            a, b = cases[first], cases[second]
            if self._becomes(a.body) == self._becomes(b.body):
                gone = b if self._drop_of(a.pattern, b.pattern) else a
                self._remove_lines("REN008", self.file.span(gone))
                continue
            old = a if self._touched(b.pattern) else b
            if self._superseded(old.body) and not self._touched(old.pattern):
                self._remove_lines("REN008", self.file.span(old))
                self._list(
                    "REN008",
                    self.file.span(old.pattern),
                    "built the first implementation, which is left out; the case of the model that is trained "
                    "takes its place",
                    "look whether anything of it is still wanted",
                )
            else:
                self._list(
                    "REN008",
                    self.file.span(b.pattern),
                    "two cases are one now and do different things; the first one wins",
                    "keep the one that is meant",
                )

    def _superseded(self, body: cst.CSTNode) -> bool:
        """Whether a block uses a module of the checkout that stays out of the migrated tree."""
        for node in self.tree.walk(body):
            alias = self._root_import(node) if isinstance(node, cst.Name) else None
            if alias is None or not isinstance(self.tree.parent(alias), cst.ImportFrom):
                continue
            assert isinstance(node, cst.Name)
            module = self._module_of(alias, node)
            if self._left_out(module) or self._left_out(f"{module}.{self._imported(alias)}"):
                return True
        return False

    def _left_out(self, module: str) -> bool:
        held = self.file.project.old.modules.get(module)
        placement = self.file.project.placements.get(held.path) if held is not None else None
        return placement is not None and placement.new is None

    def _doubled_branches(self, node: cst.If) -> None:
        parent = self.tree.parent(node)
        if isinstance(parent, cst.If) and parent.orelse is node:
            return  # seen from the head of the chain
        chain = [node]
        while isinstance(chain[-1].orelse, cst.If):
            chain.append(chain[-1].orelse)
        for first, second in self._twins([c.test for c in chain]):
            if self._becomes(chain[first].body) != self._becomes(chain[second].body):
                self._list(
                    "REN008",
                    self.file.span(chain[second].test),
                    "two branches ask the same now and do different things; the first one wins",
                    "keep the one that is meant",
                )

    def _doubled_statements(self) -> None:
        """Assignments at module level that say the same: the wrappers of the layer classes."""
        lines = [
            s
            for s in self.tree.module.body
            if isinstance(s, cst.SimpleStatementLine)
            and len(s.body) == 1
            and isinstance(s.body[0], cst.Assign)
        ]
        for first, second in self._twins([s.body[0] for s in lines]):
            gone = lines[second] if self._drop_of(lines[first], lines[second]) else lines[first]
            self._remove_statement("REN008", gone, blank_lines=True)
        assigned: dict[str, cst.SimpleStatementLine] = {}
        for line in lines:
            assign = line.body[0]
            assert isinstance(assign, cst.Assign)
            target = self._becomes(assign.targets[0].target)
            known = assigned.setdefault(target, line)
            if (
                known is not line
                and self._touched(assign.targets[0].target)
                and self._becomes(known.body[0]) != self._becomes(assign)
            ):
                self._list(
                    "REN008",
                    self.file.span(assign.targets[0].target),
                    f"`{target}` is assigned twice now, from two names that are one; the later one wins",
                    "keep the one that is meant",
                )

    def _unused_imports(self) -> None:
        """Imports whose every use went with what was said twice."""
        removed = [(e.start, e.end) for e in self.file.edits if e.rule == "REN008" and e.new == ""]
        if not removed:
            return
        for binding in self.file.scopes.bindings():
            alias = binding.node
            if (
                isinstance(alias, cst.ImportAlias)
                and len(binding.scope.bindings[binding.name]) == 1
            ):
                uses = self.file.scopes.references(binding.scope, binding.name)
                if uses and all(any(s <= u.start < e for s, e in removed) for u in uses):
                    self.file.unused.add(alias)

    # Leaving edits and sites ----------------------------------------------------------------------

    def _edit(self, rule: str, span: Span, new: str) -> None:
        self.changes.append((*span, new))
        self.file.edit(rule, span, new)

    def _list(self, rule: str, span: Span, reason: str, todo: str = "") -> None:
        key = (span, rule, reason)
        if key not in self._listed:
            self._listed.add(key)
            self.file.site(rule, span, reason, todo)

    def _remove_statement(
        self, rule: str, line: cst.SimpleStatementLine, *, blank_lines: bool = False
    ) -> None:
        """Remove a statement with its line; a comment behind it stays."""
        start, end = self.file.span(line.body[0])
        rest = re.match(r"[ \t]*(\r?\n|\Z)", self.text[end:])
        if rest is None:
            gap = re.match(r"[ \t]*", self.text[end:])
            self.file.edit(rule, (start, end + (gap.end() if gap else 0)), "")
            return
        low = self.text.rfind("\n", 0, start) + 1
        high = end + rest.end()
        if blank_lines:  # the blank lines between the two go with it
            blank = re.match(r"(?:[ \t]*\r?\n)+", self.text[high:])
            high += blank.end() if blank else 0
        self.file.edit(rule, (low, high), "")

    def _remove_lines(self, rule: str, span: Span) -> None:
        low = self.text.rfind("\n", 0, span[0]) + 1
        high = self.text.find("\n", span[1] - 1)
        self.file.edit(rule, (low, len(self.text) if high == -1 else high + 1), "")
