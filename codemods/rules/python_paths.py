"""Paths, commands and old names inside Python source: strings, comments, and paths put together."""

from __future__ import annotations

import posixpath
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from codemods.engine.context import PythonFile
from codemods.engine.scopes import dotted_name
from codemods.engine.tree import children
from codemods.rules.locations import ROOT_VARIABLES, SOURCE_ROOT
from codemods.rules.references import Scanner, package_aliases, python_triggers
from codemods.rules.shell import dump_parameters

_DOTTED_ONLY = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+\.?\Z")
_ROOT_NAME = re.compile(rf"(?:{'|'.join(ROOT_VARIABLES)}|__file__)\b")
_UNCHANGED = frozenset(  # calls that give back the path that they are given
    {
        "abspath",
        "realpath",
        "normpath",
        "expanduser",
        "expandvars",
        "str",
        "fspath",
        "Path",
        "PurePath",
        "PosixPath",
    }
)
_SAME_PATH = frozenset({"resolve", "absolute", "expanduser", "as_posix"})


def python(file: PythonFile) -> None:
    """Rewrite or list paths and commands in strings, comments and path expressions."""
    _Paths(file).run()


@dataclass(slots=True)
class _Item:
    """One part of a path expression.

    Attributes:
        node: where it stands.
        text: its literal text; "" for a root or a part known at run time only.
        kind: "root", "file" (a folder up from `__file__`), "text", or "hole".
        name: the variable of a root.
        up: folders up from the file.
    """

    node: cst.CSTNode
    kind: str
    text: str = ""
    name: str = ""
    up: int = 0


class _Paths:
    def __init__(self, file: PythonFile) -> None:
        self.file = file
        self.tree = file.tree
        self.scanner = Scanner(file, names=False)
        self.places = self.scanner.places
        self._packages = package_aliases(file.text) if "__file__" in file.text else frozenset()
        self._statements = [(file.span(node)[0], node) for node in children(self.tree.module)]
        self._starts = [start for start, _ in self._statements]
        self._done: set[cst.CSTNode] = set()
        self._comments: set[int] = set()

    def run(self) -> None:
        text = self.file.text
        for hit in _ROOT_NAME.finditer(text):
            chain = self._chain(hit.start())
            if chain and self._is_root(chain[-1]):
                self._expression(chain)
        for hit in python_triggers(self.places.tops).finditer(text):
            self._at(hit.start())
        for hit in re.finditer("argus_dump_", text):
            chain = self._chain(hit.start())
            if not self._in_string(chain):
                continue
            self._dump_argument(chain)

    # Where things are ---------------------------------------------------------------------------------

    def _chain(self, offset: int) -> list[cst.CSTNode]:
        """The nodes around `offset`, outermost first; empty between the statements."""
        at = bisect_right(self._starts, offset) - 1
        if at < 0:
            return []
        node = self._statements[at][1]
        chain: list[cst.CSTNode] = []
        start, end = self.file.span(node)
        while start <= offset < end:
            chain.append(node)
            for child in children(node):
                try:
                    start, end = self.file.span(child)
                except KeyError:
                    continue
                if start <= offset < end:
                    node = child
                    break
            else:
                break
        return chain

    @staticmethod
    def _in_string(chain: list[cst.CSTNode]) -> bool:
        return bool(chain) and isinstance(chain[-1], (cst.SimpleString, cst.FormattedStringText))

    def _at(self, offset: int) -> None:
        """An old name at `offset`: scan the string or comment around it."""
        chain = self._chain(offset)
        if self._in_string(chain):
            node = chain[-1]
            if node in self._done:
                return
            self._done.add(node)
            self._string(chain)
            return
        start = self.file.text.rfind("\n", 0, offset) + 1
        mark = self.file.text.find("#", start, offset)
        while mark != -1 and self._in_string(self._chain(mark)):
            mark = self.file.text.find("#", mark + 1, offset)
        if mark == -1 or mark in self._comments:
            return
        self._comments.add(mark)
        end = self.file.text.find("\n", mark)
        self.scanner.open_end = False
        self.scanner.scan(mark, len(self.file.text) if end == -1 else end)

    def _string(self, chain: list[cst.CSTNode]) -> None:
        node = chain[-1]
        start, end = self.file.span(node)
        parent = chain[-2] if len(chain) > 1 else None
        if isinstance(node, cst.SimpleString):
            body = node.raw_value
            if "b" in node.prefix.lower():
                return
            start += len(node.prefix) + len(node.quote)
            end -= len(node.quote)
            if _DOTTED_ONLY.match(body):
                return  # the import rules own strings that are nothing but a dotted name
            if self._is_path_part(chain):
                self._expression(chain)
                return
        self.scanner.open_end = self._runs_on(node, parent, chain)
        self.scanner.scan(start, end)

    def _runs_on(
        self, node: cst.CSTNode, parent: cst.CSTNode | None, chain: list[cst.CSTNode]
    ) -> bool:
        """Whether something is appended to the text of `node` at run time."""
        if isinstance(parent, cst.FormattedString):
            parts = list(parent.parts)
            at = next(k for k, part in enumerate(parts) if part is node)
            return at + 1 < len(parts)
        if isinstance(parent, cst.ConcatenatedString):
            right = parent.right
            return (
                parent.left is node
                and isinstance(right, cst.FormattedString)
                and bool(right.parts and isinstance(right.parts[0], cst.FormattedStringExpression))
            )
        return (
            isinstance(parent, cst.BinaryOperation)
            and isinstance(parent.operator, cst.Add)
            and (parent.left is node or (parent.right is node and self._added_to(parent, chain)))
        )

    @staticmethod
    def _added_to(operation: cst.BinaryOperation, chain: list[cst.CSTNode]) -> bool:
        at = next(k for k, node in enumerate(chain) if node is operation)
        outer = chain[at - 1] if at else None
        return (
            isinstance(outer, cst.BinaryOperation)
            and isinstance(outer.operator, cst.Add)
            and outer.left is operation
        )

    # Path expressions ---------------------------------------------------------------------------------

    def _is_root(self, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.Name):
            return node.value in ROOT_VARIABLES or node.value == "__file__"
        return isinstance(node, cst.SimpleString) and node.raw_value in ROOT_VARIABLES

    def _is_path_part(self, chain: list[cst.CSTNode]) -> bool:
        parent = chain[-2] if len(chain) > 1 else None
        if isinstance(parent, cst.BinaryOperation) and isinstance(parent.operator, cst.Divide):
            return True
        if isinstance(parent, cst.Arg) and len(chain) > 2 and isinstance(chain[-3], cst.Call):
            return _called(chain[-3]) in ("join", "joinpath") and _is_join(chain[-3])
        return False

    def _expression(self, chain: list[cst.CSTNode]) -> None:
        """Rewrite the largest path expression around the last node of `chain`."""
        top = chain[-1]
        for node in reversed(chain[:-1]):
            if isinstance(
                node, (cst.Arg, cst.FormattedStringExpression, cst.SubscriptElement, cst.Index)
            ):
                continue
            if self._is_step(node, top):
                top = node
                continue
            break
        if top in self._done:
            return
        self._done.add(top)
        for node in self.tree.walk(top):
            if isinstance(node, (cst.SimpleString, cst.Name)):
                self._done.add(node)
        items = list(self._items(top))
        anchor = max((k for k, i in enumerate(items) if i.kind in ("root", "file")), default=None)
        if anchor is None:
            self._literal(items, top)
        elif items[anchor].kind == "file":
            self._from_file(items, anchor)
        else:
            root = items[anchor]
            old_root, new_root = self.scanner.root_folder(root.name)
            self._rest(items, anchor, old_root, new_root, top)

    def _is_step(self, node: cst.CSTNode, inner: cst.CSTNode) -> bool:
        """Whether `node` makes a longer path (or the same path) of `inner`."""
        if isinstance(node, cst.Call):
            name = _called(node)
            if _is_join(node) or name in _UNCHANGED or name == "dirname":
                return True
            if name in ("get", "getenv") and "environ" in (dotted_name(node.func) or "environ"):
                # A default is a path of its own.
                return (
                    bool(node.args) and node.args[0].value is inner and self._is_environment(node)
                )
            return isinstance(node.func, cst.Attribute) and name in _SAME_PATH | {"joinpath"}
        if isinstance(node, cst.BinaryOperation):
            return isinstance(node.operator, cst.Divide) or (
                isinstance(node.operator, cst.Add) and node.left is inner
            )
        if isinstance(node, cst.Attribute):
            return (
                self._is_package_file(node)
                or node.attr.value in ROOT_VARIABLES
                or node.attr.value in ("parent", "parents")
                or node.attr.value in _SAME_PATH | {"joinpath"}
            )
        if isinstance(node, cst.Subscript):
            return isinstance(node.value, cst.Attribute) and (
                node.value.attr.value == "parents" or node.value.attr.value == "environ"
            )
        if isinstance(node, cst.FormattedString):
            first = node.parts[0] if node.parts else None
            return isinstance(first, cst.FormattedStringExpression) and first.expression is inner
        return False

    @staticmethod
    def _is_environment(call: cst.Call) -> bool:
        first = call.args[0].value
        return isinstance(first, cst.SimpleString) and first.raw_value in ROOT_VARIABLES

    def _items(self, node: cst.CSTNode) -> Iterator[_Item]:
        """The parts of a path expression, left to right."""
        if isinstance(node, cst.SimpleString):
            if node.raw_value in ROOT_VARIABLES:
                yield _Item(node, "hole")
            else:
                yield _Item(node, "text", node.raw_value)
        elif isinstance(node, cst.Name) and node.value in ROOT_VARIABLES:
            yield _Item(node, "root", name=node.value)
        elif isinstance(node, cst.Attribute) and node.attr.value in ROOT_VARIABLES:
            yield _Item(node, "root", name=node.attr.value)
        elif self._is_package_folder(node):
            yield _Item(node, "root", name="MAXTEXT_PKG_DIR")
        elif (up := _up(node)) is not None:
            yield _Item(node, "file", up=up)
        elif isinstance(node, cst.Call):
            yield from self._call_items(node)
        elif isinstance(node, cst.Subscript) and (name := _environ_key(node)) in ROOT_VARIABLES:
            yield _Item(node, "root", name=name)
        elif (isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Divide)) or (
            isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Add)
        ):
            yield from self._items(node.left)
            yield from self._items(node.right)
        elif isinstance(node, cst.FormattedString):
            for part in node.parts:
                if isinstance(part, cst.FormattedStringText):
                    yield _Item(part, "text", part.value)
                elif part is node.parts[0] and isinstance(part, cst.FormattedStringExpression):
                    yield from self._items(part.expression)
                else:
                    yield _Item(part, "hole")
        else:
            yield _Item(node, "hole")

    def _is_package_folder(self, node: cst.CSTNode) -> bool:
        """`os.path.dirname(MaxText.__file__)`."""
        if not isinstance(node, cst.Call) or _called(node) != "dirname" or len(node.args) != 1:
            return False
        return self._is_package_file(node.args[0].value)

    def _is_package_file(self, node: cst.CSTNode) -> bool:
        return (
            isinstance(node, cst.Attribute)
            and node.attr.value == "__file__"
            and isinstance(node.value, cst.Name)
            and node.value.value in self._packages
        )

    def _call_items(self, node: cst.Call) -> Iterator[_Item]:
        name = _called(node)
        if name in ("get", "getenv") and node.args and self._is_environment(node):
            first = node.args[0].value
            assert isinstance(first, cst.SimpleString)
            yield _Item(node, "root", name=first.raw_value)
        elif _is_join(node) or name in _UNCHANGED:
            if isinstance(node.func, cst.Attribute) and name == "joinpath":
                yield from self._items(node.func.value)
            for argument in node.args:
                if argument.star or argument.keyword is not None:
                    yield _Item(argument, "hole")
                else:
                    yield from self._items(argument.value)
        elif isinstance(node.func, cst.Attribute) and name in _SAME_PATH:
            yield from self._items(node.func.value)
        elif isinstance(node.func, cst.Attribute) and name == "joinpath":
            yield from self._items(node.func.value)
            for argument in node.args:
                yield from self._items(argument.value)
        else:
            yield _Item(node, "hole")

    def _literal(self, items: list[_Item], top: cst.CSTNode) -> None:
        """A path of literals that begins in the repository (`os.path.join("src", "MaxText", …)`)."""
        source = SOURCE_ROOT
        for start, item in enumerate(items):
            if item.kind != "text":
                continue
            first = item.text.strip("/").split("/")
            following = items[start + 1].text if start + 1 < len(items) else ""
            begins = item.text.startswith(("src/MaxText", "MaxText/")) or first[0] == "MaxText"
            begins = begins or (item.text.strip("/") == source and following.startswith("MaxText"))
            begins = begins or (start == 0 and first[0] in self.places.tops)
            if not begins:
                continue
            bare = first[0] == "MaxText"
            root = source if bare else ""
            self._rest(items, start - 1, root, "src" if bare else "", top)
            return

    def _rest(
        self,
        items: list[_Item],
        anchor: int,
        old_root: str,
        new_root: str,
        top: cst.CSTNode,
        outside: bool = False,
    ) -> None:
        """Rewrite the parts after `anchor` so that they lead from `new_root` to the same thing."""
        rest = items[anchor + 1 :]
        if not rest:
            return
        glued = self._is_glued(rest[0])
        parts: list[list[str]] = []
        for number, item in enumerate(rest):
            if item.kind == "text":
                parts.append([p for p in item.text.split("/") if p not in ("", ".")])
            else:
                parts.append([f"{{{number}}}"])
        if glued:
            flat = "".join(i.text if i.kind == "text" else f"{{{n}}}" for n, i in enumerate(rest))
            old_parts = [p for p in flat.split("/") if p]
        else:
            if any(i.kind == "text" and i.text.startswith("/") for i in rest):
                return  # an absolute path: what stands before it does not count
            old_parts = [p for group in parts for p in group]
        if not old_parts or old_parts[0].startswith("{"):
            return
        old = posixpath.normpath(posixpath.join(old_root, *old_parts))
        place = self.places.resolve(old)
        migrated = self.places.is_new(posixpath.join(new_root, *old_parts))
        if migrated and not outside and not (place is not None and place.certain):
            return
        span = self._text_span(rest[0].node, rest[-1].node)
        named = any("MaxText" in p for p in old_parts)
        if place is None or place.new is None:
            if place is None and not named and not self._known_parent(old):
                return
            rule = "TXT016" if any(i.kind != "text" for i in rest) else "TXT010"
            problem = place.problem if place is not None else f"the old tree has no {old}"
            self.file.site(rule, span, problem, "write the new path by hand")
            return
        new = posixpath.relpath(place.new or ".", new_root) if new_root else place.new
        if new == posixpath.join(*old_parts):
            return
        if new.startswith("..") and not outside:
            self.file.site(
                "TXT010",
                span,
                f"it is {place.new} now, which is not below {new_root}",
                "start from another folder of globals.py (MAXTEXT_REPO_ROOT, MAXTEXT_TEST_ASSETS_ROOT)",
            )
            return
        rule = "TXT015" if outside else "TXT010" if place.certain else "TXT006"
        if glued:
            self._write_glued(rest, old_parts, new.split("/"), rule, place.note)
        else:
            self._write_parts(rest, parts, new.split("/"), rule, place.note)

    def _known_parent(self, old: str) -> bool:
        """Whether a path that the tree does not have still lies in a folder that it scattered."""
        folder = posixpath.dirname(old)
        return folder.startswith(self.places.old_package + "/") and self.places.is_folder(folder)

    def _is_glued(self, item: _Item) -> bool:
        """Whether the text goes on in the same string as what stands before (`f"{ROOT}/x"`, `ROOT + "/x"`)."""
        return item.kind == "text" and (
            isinstance(item.node, cst.FormattedStringText)
            or (
                isinstance(parent := self.tree.parent(item.node), cst.BinaryOperation)
                and isinstance(parent.operator, cst.Add)
            )
        )

    def _text_span(self, first: cst.CSTNode, last: cst.CSTNode) -> tuple[int, int]:
        return self.file.span(first)[0], self.file.span(last)[1]

    def _write_glued(
        self, rest: list[_Item], old: list[str], new: list[str], rule: str, note: str
    ) -> None:
        """The literal beginning of a path that is one text."""
        first = rest[0]
        same = 0
        while same < min(len(old), len(new)) and old[-1 - same] == new[-1 - same]:
            same += 1
        kept = "/".join(old[len(old) - same :])
        changed_old = "/".join(old[: len(old) - same])
        changed_new = "/".join(new[: len(new) - same])
        start, end = self.file.span(first.node)
        source = self.file.text[start:end]
        at = source.find(changed_old + ("/" if changed_old and kept else "")) if changed_old else -1
        if not changed_old:  # folders come in before what stays
            head = old[0].split("{")[0]
            at = source.find(head)
            if at == -1 or not head:
                self.file.site(
                    rule, (start, end), f"the path is {'/'.join(new)} now", "write it by hand"
                )
                return
            self.file.edit(rule, (start + at, start + at), changed_new + "/", note)
            return
        if at == -1:
            self.file.site(
                rule, (start, end), f"the path is {'/'.join(new)} now", "write it by hand"
            )
            return
        stop = start + at + len(changed_old)
        if not changed_new and source[stop - start : stop - start + 1] == "/":
            stop += 1
        self.file.edit(rule, (start + at, stop), changed_new, note)

    def _write_parts(
        self, rest: list[_Item], parts: list[list[str]], new: list[str], rule: str, note: str
    ) -> None:
        """The separate strings of a join: only those change that have to."""
        head = 0
        used = 0
        while head < len(parts) and new[used : used + len(parts[head])] == parts[head]:
            used += len(parts[head])
            head += 1
        tail, left = len(parts), len(new)
        while (
            tail > head
            and left - len(parts[tail - 1]) >= used
            and (new[left - len(parts[tail - 1]) : left] == parts[tail - 1])
        ):
            tail -= 1
            left -= len(parts[tail])
        middle = new[used:left]
        if head == tail and not middle:
            return
        if any(item.kind != "text" for item in rest[head:tail]):
            self.file.site(
                rule,
                self._text_span(rest[0].node, rest[-1].node),
                f"the path is {'/'.join(new)} now",
                "write it by hand",
            )
            return
        if not middle:  # a folder less: write the neighbour too
            if head > 0:
                head -= 1
                middle = parts[head]
            elif tail < len(parts):
                middle = parts[tail]
                tail += 1
        if head == tail:
            self._insert(rest, head, middle, rule, note)
            return
        if tail - head == len(middle) and all(len(group) == 1 for group in parts[head:tail]):
            group = f"path{self.file.span(rest[head].node)[0]}"
            for item, part in zip(rest[head:tail], middle, strict=True):
                self._replace(item, part, rule, note, group)
            return
        start = self.file.span(rest[head].node)[0]
        end = self.file.span(rest[tail - 1].node)[1]
        first = rest[head].node
        assert isinstance(first, cst.SimpleString)
        between = self.file.text[start:end]
        if "#" in between or not self._siblings(rest[head:tail]):
            self.file.site(
                rule, (start, end), f"the path is {'/'.join(new)} now", "write it by hand"
            )
            return
        if tail - head == 1 and len(parts[head]) > 1:
            self._replace(rest[head], "/".join(middle), rule, note)
            return
        strings = (f"{first.prefix}{first.quote}{m}{first.quote}" for m in middle)
        self.file.edit(rule, (start, end), self._joiner(first).join(strings), note)

    def _replace(self, item: _Item, path: str, rule: str, note: str, group: str = "") -> None:
        """Another path in the same string; a slash at either end stays."""
        node = item.node
        assert isinstance(node, cst.SimpleString)
        start, end = self.file.span(node)
        lead = "/" if item.text.startswith("/") else ""
        trail = "/" if item.text.endswith("/") else ""
        written = f"{node.prefix}{node.quote}{lead}{path}{trail}{node.quote}"
        self.file.edit(rule, (start, end), written, note, group)

    def _siblings(self, items: list[_Item]) -> bool:
        calls = set()
        for item in items:
            parent = self.tree.parent(item.node)
            calls.add(self.tree.parent(parent) if isinstance(parent, cst.Arg) else None)
        return len(items) == 1 or len(calls) == 1 or (None in calls and len(calls) == 1)

    def _joiner(self, node: cst.CSTNode) -> str:
        parent = self.tree.parent(node)
        return " / " if isinstance(parent, cst.BinaryOperation) else ", "

    def _insert(self, rest: list[_Item], at: int, middle: list[str], rule: str, note: str) -> None:
        near = rest[at] if at < len(rest) else rest[at - 1]
        quote = next((i.node.quote for i in rest if isinstance(i.node, cst.SimpleString)), '"')
        start, end = self.file.span(near.node)
        joiner = self._joiner(near.node)
        if isinstance(near.node, cst.SimpleString) and len(near.text.strip("/").split("/")) > 1:
            inside = start + len(near.node.prefix) + len(near.node.quote)
            text = "/".join(middle)
            if at < len(rest):
                self.file.edit(rule, (inside, inside), text + "/", note)
            else:
                close = end - len(near.node.quote)
                self.file.edit(rule, (close, close), "/" + text, note)
            return
        strings = joiner.join(f"{quote}{m}{quote}" for m in middle)
        if at < len(rest):
            self.file.edit(rule, (start, start), f"{strings}{joiner}", note)
        else:
            self.file.edit(rule, (end, end), f"{joiner}{strings}", note)

    # From __file__ ------------------------------------------------------------------------------------

    def _from_file(self, items: list[_Item], anchor: int) -> None:
        if not self.file.path.endswith(".py"):
            return
        item = items[anchor]
        if item.up == 0:
            return
        old_path = self.file.project.canonical(self.file.path)
        new_path = self.places.files.get(old_path, old_path) or old_path
        old_folder = old_path
        for _ in range(item.up):
            if not old_folder:
                return  # it leaves the checkout
            old_folder = posixpath.dirname(old_folder)
        new_folder = new_path
        for _ in range(item.up):
            new_folder = posixpath.dirname(new_folder)
        rest = items[anchor + 1 :]
        same = self._same_folder(old_folder)
        if item.up == 1 and not rest and new_folder != (same or new_folder):
            found = self._joined_below(item.node, old_folder, same or "")
            if not (found and self._climb(item, same or "", new_folder)):
                self.file.site(
                    "TXT015",
                    self.file.span(item.node),
                    f"this file's own folder is {new_folder} now, while {old_folder} is {same}",
                    "go up as many folders as the code needs",
                )
            return
        wanted = new_folder if item.up == 1 else same
        if wanted is None or not f"{new_path}/".startswith(f"{wanted}/" if wanted else ""):
            if new_folder != old_folder and not rest:
                self._list_folder(item, old_folder)
                return
            wanted = new_folder
        deeper = new_folder.count("/") + bool(new_folder) - wanted.count("/") - bool(wanted)
        if deeper and not self._change_depth(item, deeper):
            self._list_folder(item, old_folder)
            return
        if rest:
            target = posixpath.normpath(
                posixpath.join(old_folder, *(i.text for i in rest if i.kind == "text"))
            )
            if (
                wanted == old_folder
                or self.places.resolve(target) is not None
                or target in ("", ".")
            ):
                self._rest(items, anchor, old_folder, wanted, item.node, outside=True)

    def _climb(self, item: _Item, wanted: str, here: str) -> bool:
        """Go up from the folder `here` to `wanted` above it."""
        if not here.startswith(f"{wanted}/"):
            return False
        return self._change_depth(item, here.count("/") - wanted.count("/"))

    def _joined_below(self, node: cst.CSTNode, old: str, new: str) -> bool:
        """Whether a folder is only used to find things that are in `new` as they were in `old`.

        It has to be assigned to a name, all uses of which are the first part of a join.
        """
        parent = self.tree.parent(node)
        if not isinstance(parent, cst.Assign) or len(parent.targets) != 1:
            return False
        target = parent.targets[0].target
        if not isinstance(target, cst.Name):
            return False
        scope = next((n for n in self.tree.ancestors(node) if isinstance(n, cst.FunctionDef)), None)
        names = [n for n in self.tree.walk(scope) if isinstance(n, cst.Name)]
        uses = 0
        for use in names:
            if use.value != target.value or isinstance(self.tree.parent(use), cst.AssignTarget):
                continue
            argument = self.tree.parent(use)
            call = self.tree.parent(argument) if isinstance(argument, cst.Arg) else None
            if not isinstance(call, cst.Call) or not _is_join(call) or call.args[0] is not argument:
                return False
            items = list(self._call_items(call))[1:]
            parts = [i.text if i.kind == "text" else "{}" for i in items]
            place = self.places.resolve(posixpath.join(old, *parts)) if parts else None
            if place is None or place.new != posixpath.join(new, *parts):
                return False
            uses += 1
        return uses > 0

    def _same_folder(self, old: str) -> str | None:
        """Where the folder `old` as such is now."""
        if old in ("", "src", "tests"):
            return old
        place = self.places.resolve(old)
        return place.new if place is not None and place.certain else None

    def _list_folder(self, item: _Item, old_folder: str) -> None:
        self.file.site(
            "TXT015",
            self.file.span(item.node),
            f"it leads to {old_folder or 'the repository root'} in the old layout",
            "name that folder from the file's new place",
        )

    def _change_depth(self, item: _Item, deeper: int) -> bool:
        """Go `deeper` more (or fewer) folders up from `__file__`."""
        node = item.node
        start, end = self.file.span(node)
        if isinstance(node, cst.Subscript):  # .parents[n]
            index = node.slice[0].slice
            assert isinstance(index, cst.Index)
            value = int(cst.ensure_type(index.value, cst.Integer).value) + deeper
            if value < 0:
                return False
            self.file.edit("TXT015", self.file.span(index.value), str(value))
            return True
        if isinstance(node, cst.Attribute):  # .parent.parent
            if deeper > 0:
                self.file.edit("TXT015", (end, end), ".parent" * deeper)
                return True
            inner: cst.BaseExpression = node
            for _ in range(-deeper):
                if not (isinstance(inner, cst.Attribute) and inner.attr.value == "parent"):
                    return False
                inner = inner.value
            self.file.edit("TXT015", (self.file.span(inner)[1], end), "")
            return True
        if isinstance(node, cst.Call) and _called(node) == "dirname":
            if deeper > 0:
                opening = f"{self.file.source(node.func)}("
                group = f"up{start}"
                self.file.edit("TXT015", (start, start), opening * deeper, group=group)
                self.file.edit("TXT015", (end, end), ")" * deeper, group=group)
                return True
            inside: cst.BaseExpression = node
            for _ in range(-deeper):
                if not (isinstance(inside, cst.Call) and _called(inside) == "dirname"):
                    return False
                inside = inside.args[0].value
            self.file.edit("TXT015", (start, end), self.file.source(inside))
            return True
        return False

    # Parameters of the dump hooks ---------------------------------------------------------------------

    def _dump_argument(self, chain: list[cst.CSTNode]) -> None:
        """`"argus_dump_dir=/tmp"` in a list of arguments, or in a command in one string."""
        node = chain[-1]
        start, end = self.file.span(node)
        text = self.file.text
        whole = node
        for outer in reversed(chain[:-1]):
            if isinstance(outer, (cst.FormattedString, cst.ConcatenatedString)):
                whole = outer
            else:
                break
        begin, stop = self.file.span(whole)
        value = re.sub(r"\A[rRfFbBuU]*([\"']{3}|[\"'])|([\"']{3}|[\"'])\Z", "", text[begin:stop])
        if ("dump", begin) in self._dumped:
            return
        self._dumped.add(("dump", begin))
        parent = chain[chain.index(whole) - 1]
        if isinstance(parent, cst.Element) and re.fullmatch(r"(?:--)?argus_dump_\w+=\S*", value):
            self._drop_element(parent, begin, stop)
        elif isinstance(node, (cst.SimpleString, cst.FormattedStringText)):
            if re.fullmatch(r"argus_dump_\w+", value):
                return  # a key: the configuration rules look at it
            dump_parameters(self.file, "TXT014", start, end)

    @property
    def _dumped(self) -> set[tuple[str, int]]:
        found: set[tuple[str, int]] = self.__dict__.setdefault("_dumped_spans", set())
        return found

    def _drop_element(self, element: cst.Element, begin: int, stop: int) -> None:
        text = self.file.text
        after = re.compile(r"[ \t]*,[ \t]*").match(text, stop)
        stop = after.end() if after is not None else stop
        line_start = text.rfind("\n", 0, begin) + 1
        line_end = text.find("\n", stop)
        line_end = len(text) if line_end == -1 else line_end + 1
        if not text[line_start:begin].strip() and not text[stop:line_end].strip():
            self.file.edit("TXT014", (line_start, line_end), "")
            return
        if after is None:
            before = re.compile(r",\s*\Z").search(text, max(0, begin - 200), begin)
            begin = before.start() if before is not None else begin
        self.file.edit("TXT014", (begin, stop), "")


def _called(call: cst.Call) -> str:
    """The last part of a called name."""
    function = call.func
    if isinstance(function, cst.Attribute):
        return function.attr.value
    return function.value if isinstance(function, cst.Name) else ""


def _is_join(call: cst.Call) -> bool:
    name = dotted_name(call.func) or ""
    return name in ("join",) or name.endswith(("path.join", "osp.join", ".joinpath"))


def _environ_key(node: cst.Subscript) -> str:
    if not (dotted_name(node.value) or "").endswith("environ") or len(node.slice) != 1:
        return ""
    index = node.slice[0].slice
    value = index.value if isinstance(index, cst.Index) else None
    return value.raw_value if isinstance(value, cst.SimpleString) else ""


def _up(node: cst.CSTNode) -> int | None:
    """How many folders up from `__file__` an expression leads; None when it does not start there."""
    if isinstance(node, cst.Name):
        return 0 if node.value == "__file__" else None
    if isinstance(node, cst.Call):
        name = _called(node)
        if name in _UNCHANGED and len(node.args) == 1:
            return _up(node.args[0].value)
        if name == "dirname" and len(node.args) == 1:
            below = _up(node.args[0].value)
            return None if below is None else below + 1
        if isinstance(node.func, cst.Attribute) and name in _SAME_PATH and not node.args:
            return _up(node.func.value)
        return None
    if isinstance(node, cst.Attribute) and node.attr.value == "parent":
        below = _up(node.value)
        return None if below is None else below + 1
    if isinstance(node, cst.Subscript) and isinstance(node.value, cst.Attribute):
        if node.value.attr.value != "parents" or len(node.slice) != 1:
            return None
        index = node.slice[0].slice
        below = _up(node.value.value)
        if (
            below is None
            or not isinstance(index, cst.Index)
            or not isinstance(index.value, cst.Integer)
        ):
            return None
        return below + int(index.value.value) + 1
    return None
