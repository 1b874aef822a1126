"""API: calls whose signature differs between the fork's tree and upstream's present one.

What a call is rewritten to is right for both: for upstream's function and for the one that the checkout
may carry along. So the migrated tree runs as it is, and goes on to run when it is joined with upstream.
A file that upstream has too is left to that join where the change is upstream's own.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import libcst as cst

from codemods.engine.context import PythonFile
from codemods.engine.project import OLD_ROOT
from codemods.engine.scopes import Binding, Reference, Scope, dotted_name
from codemods.engine.tree import Span
from codemods.maps.model import SignatureChange
from codemods.maps.symbols import absolute
from codemods.rules.base import Example, Rule

RULES = (
    Rule(
        "API001",
        "review",
        "five values unpacked from `RoutedMoE` or `RoutedAndSharedMoE`: three are enough, `out, lb_loss, *_`",
        "Upstream returns three (output, load-balance loss, bias updates). Where the last three names are "
        "unused, deleted, logged, printed or dumped, those statements go. Where they are sown or appended, "
        "other code may read them: they stay, and are None where the layer returns three values, since the "
        "layer records them itself then. Both forms take five values as well as three. Where the values are "
        "really used it is listed. The module that defines the classes is left alone: its callers inside "
        "agree with its definitions.",
        (
            Example(
                "from MaxText.layers import moe\n\n\ndef f(cfg, x):\n  layer = moe.RoutedMoE(cfg)\n"
                "  out, lb_loss, z_loss, counts, stats = layer(x)\n  del z_loss, counts, stats\n"
                "  return out, lb_loss\n",
                "from maxtext.layers import moe\n\n\ndef f(cfg, x):\n  layer = moe.RoutedMoE(cfg)\n"
                "  out, lb_loss, *_ = layer(x)\n  return out, lb_loss\n",
            ),
            Example(
                "from MaxText.layers import moe\n\n\ndef f(cfg, x):\n  layer = moe.RoutedMoE(cfg)\n"
                "  out, lb_loss, z_loss, _, _ = layer(x)\n  return out, lb_loss + z_loss\n",
                "from maxtext.layers import moe\n\n\ndef f(cfg, x):\n  layer = moe.RoutedMoE(cfg)\n"
                "  out, lb_loss, z_loss, _, _ = layer(x)\n  return out, lb_loss + z_loss\n",
                listed=("out, lb_loss, z_loss, _, _",),
            ),
        ),
    ),
    Rule(
        "API002",
        "review",
        "keywords that upstream no longer takes are dropped: `page_state`, `ep_*_axis_names`, defaults",
        "`page_state` (paged attention is gone upstream) and the `ep_{query,key,value,input,out}_axis_names` "
        "(upstream's sharding rules say it) go where the value has no side effect, also where the callee "
        "cannot be told, unless it is a function of the checkout that needs the argument. Any other "
        "removed keyword goes if its value is None or the old default. A file that upstream has too is only "
        "changed at calls whose callee is known.",
        (
            Example(
                "from MaxText.layers.attention_mla import MLA\n\n\ndef f(cfg, mesh, x):\n"
                '  layer = MLA(config=cfg, ep_query_axis_names=("batch",), mesh=mesh)\n'
                "  return layer(x, x, page_state=None)\n",
                "from maxtext.layers.attention_mla import MLA\n\n\ndef f(cfg, mesh, x):\n"
                "  layer = MLA(config=cfg, mesh=mesh)\n"
                "  return layer(x, x)\n",
            ),
        ),
    ),
    Rule(
        "API003",
        "report",
        "a call that does not fit upstream's signature and cannot be rewritten with certainty",
        "A removed parameter given by position or with a value that matters, a required one that is missing. "
        "In a file that upstream has too, what is listed is once for each function.",
        (
            Example(
                "from MaxText.layers.attention_op import AttentionOp\n\n\ndef f(cfg, axes):\n"
                "  return AttentionOp(config=cfg, flash_axis_names_q_ep=axes)\n",
                "from maxtext.layers.attention_op import AttentionOp\n\n\ndef f(cfg, axes):\n"
                "  return AttentionOp(config=cfg, flash_axis_names_q_ep=axes)\n",
                listed=("AttentionOp(config=cfg, flash_axis_names_q_ep=axes)",),
            ),
        ),
    ),
    Rule(
        "API004",
        "review",
        "parameters that got another name or take the config now",
        "`model_name` → `config` where the argument is `<config>.model_name`; `eps` → `epsilon`. "
        "`create_nnx_model`, now `from_pretrained`, returns the model alone when it is given a mesh: "
        "`[0]` and an unused second name go. Where the checkout carries the old definition along under its old "
        "name, the call fits that one and is listed instead (API003).",
        (
            Example(
                "from MaxText.multimodal_utils import get_image_offsets\n\n\n"
                "def f(cfg, out):\n  return get_image_offsets(cfg.model_name, out)\n",
                "from maxtext.multimodal.processor import get_image_offsets\n\n\n"
                "def f(cfg, out):\n  return get_image_offsets(cfg, out)\n",
            ),
        ),
    ),
    Rule(
        "API005",
        "review",
        "the annotation of a `page_state` parameter no longer names the deleted `page_manager`",
        "The parameter stays, so that callers that count positions keep working; upstream passes none.",
        (
            Example(
                "from MaxText.inference import page_manager\n\n\n"
                "def call(x, page_state: None | page_manager.PageState = None):\n  return x\n",
                "\n\ndef call(x, page_state: None = None):\n  return x\n",
            ),
        ),
    ),
    Rule(
        "API006",
        "report",
        "a class or method of the fork that no longer fits what upstream calls it with",
        "A `RoutedMoE` that returns five values; a method that overrides one of upstream's and lacks a "
        "parameter that upstream passes, or needs one that it no longer passes.",
        (
            Example(
                "from MaxText.layers.deepseek import DeepSeekGenericLayer\n\n\n"
                "class Mine(DeepSeekGenericLayer):\n\n  def attention_op(self, x, page_state):\n    return x\n",
                "from maxtext.models.deepseek import DeepSeekGenericLayer\n\n\n"
                "class Mine(DeepSeekGenericLayer):\n\n  def attention_op(self, x, page_state):\n    return x\n",
                listed=("attention_op",),
            ),
        ),
    ),
)

_FIVE_VALUED = ("RoutedMoE", "RoutedAndSharedMoE")
_FIVE_VALUED_MAKERS = ("get_routed_moe", "get_routed_and_shared_moe")
_MOE_NAME = re.compile(r"(?:^|_)moe|MoE|Moe")
_RECORDERS = frozenset(
    {"sow", "log", "info", "debug", "warning", "print", "append", "write", "add_scalar", "record"}
)
_READ_LATER = frozenset({"sow", "append"})
# Removed parameters that say nothing to upstream, whatever their value.
_GONE = {
    "page_state": "upstream has no paged attention any more",
    **{
        f"ep_{what}_axis_names": "upstream's sharding rules say which axes go over the experts"
        for what in ("query", "key", "value", "input", "out")
    },
}
_RENAMED = {"eps": "epsilon"}


def python(file: PythonFile) -> None:
    """Rewrite or list the calls of one file that upstream's signatures affect."""
    if re.search(r"MaxText|ALModel|page_state|_axis_names|[Mm]o[eE]", file.text):
        _Signatures(file).run()


@dataclass(frozen=True, slots=True)
class _Callee:
    """What a call calls.

    Attributes:
        name: old dotted name, `MaxText.layers.attention_mla.MLA.__call__`.
        change: how it is called differently; None if it is not.
        own: parameters where the definition is of the checkout and upstream has none like it.
        required: those of `own` without a default.
    """

    name: str
    change: SignatureChange | None = None
    own: tuple[str, ...] = ()
    required: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _OldParameters:
    """Parameters of an old signature: names by position, all names, defaults as source text."""

    positional: tuple[str, ...]
    defaults: dict[str, str]


class _Signatures:
    def __init__(self, file: PythonFile) -> None:
        self.file = file
        self.project = file.project
        self.tree = file.tree
        self.text = file.text
        self.changes = self.project.map.signatures
        self.classes: dict[str, cst.ClassDef] = {}
        self.groups: dict[str, list[Span]] = {}
        self.removed: list[Span] = []

    def run(self) -> None:
        if self._unchanged:
            return
        calls: list[cst.Call] = []
        parameters: list[cst.Param] = []
        definitions: list[cst.ClassDef] = []
        for node in self.tree.walk():
            if isinstance(node, cst.Call):
                calls.append(node)
            elif isinstance(node, cst.ClassDef):
                definitions.append(node)
                if isinstance(self.tree.parent(node), cst.Module):
                    self.classes.setdefault(node.name.value, node)
            elif isinstance(node, cst.Param) and node.name.value == "page_state":
                parameters.append(node)
            elif isinstance(node, cst.DictElement):
                self._gone_key(node)
        for definition in definitions:
            self._definition(definition)
        defines = any(c in self.classes for c in _FIVE_VALUED)
        for call in calls:
            if not defines:
                self._five_values(call)
            self._call(call)
        if self._own_file and self._old_layout:
            for parameter in parameters:
                self._annotation(parameter)
            self._unused_imports()
        for reason, spans in self.groups.items():
            more = f" ({len(spans)} calls)" if len(spans) > 1 else ""
            self.file.site(
                "API003",
                spans[0],
                reason + more,
                "fit the lines that are your own when joining with upstream",
            )

    def _gone_key(self, element: cst.DictElement) -> None:
        """List a key of a dictionary that names a parameter that is gone: it may be spread into a call."""
        key = element.key
        name = key.evaluated_value if isinstance(key, cst.SimpleString) else None
        if name in _GONE and self._own_file and self._old_layout:
            self.file.site(
                "API003",
                self.file.span(key),
                f"{_GONE[str(name)]}, and this dictionary may give `{name}` to one of its layers",
                "drop the key if it does",
            )

    # Whose file it is -----------------------------------------------------------------------------

    @cached_property
    def _base_blob(self) -> str | None:
        """The blob that upstream's base tree has at this path."""
        blobs = self.project.map.blobs
        path = self.file.path
        return blobs.get(path) or blobs.get(f"src/{path}")

    @property
    def _own_file(self) -> bool:
        return self._base_blob is None

    @cached_property
    def _old_layout(self) -> bool:
        """Whether the file is of the old layout, or imports from it; what has been migrated is not."""
        roots = (OLD_ROOT, "ALModel")
        if self.file.module_name.partition(".")[0] in roots:
            return True
        for binding in self.file.scopes.bindings():
            statement = self.tree.parent(binding.node)
            if isinstance(statement, cst.ImportFrom):
                source = dotted_name(statement.module) if statement.module is not None else None
            elif isinstance(binding.node, cst.ImportAlias):
                source = dotted_name(binding.node.name)
            else:
                continue
            if (source or "").partition(".")[0] in roots:
                return True
        return False

    @cached_property
    def _unchanged(self) -> bool:
        """Whether the file is upstream's, byte for byte: then upstream's own later version counts."""
        if self._base_blob is None:
            return False
        data = self.text.encode("utf-8", "surrogatepass")
        blob = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        return blob.startswith(self._base_blob)

    # What a name means ----------------------------------------------------------------------------

    def _binding(self, node: cst.Name) -> tuple[Scope, list[Binding]] | None:
        home = self.file.scopes.scope_of(node).home(node.value)
        return None if home is None else (home, home.bindings[node.value])

    def _origin(self, node: cst.BaseExpression) -> str:
        """Old dotted name of what an expression names, "" if it names nothing of the old tree."""
        dotted = dotted_name(node)
        if dotted is None:
            return ""
        root: cst.BaseExpression = node
        while isinstance(root, cst.Attribute):
            root = root.value
        assert isinstance(root, cst.Name)
        bound = self._binding(root)
        if bound is None or len(bound[1]) != 1:
            return ""
        binding = bound[1][0]
        rest = dotted.partition(".")[2]
        if isinstance(binding.node, (cst.ClassDef, cst.FunctionDef)):
            if not isinstance(self.tree.parent(binding.node), cst.Module):
                return ""
            own = (
                f"{self.file.module_name}.{binding.name}" if self.file.module_name else binding.name
            )
            return f"{own}.{rest}" if rest else own
        if not isinstance(binding.node, cst.ImportAlias):
            return ""
        statement = self.tree.parent(binding.node)
        imported = dotted_name(binding.node.name) or ""
        if isinstance(statement, cst.ImportFrom):
            target = dotted_name(statement.module) if statement.module is not None else None
            module = absolute(
                self.file.module_name, self.file.is_package, len(statement.relative), target
            )
            base = f"{module}.{imported}"
        elif binding.node.asname is not None:
            base = imported
        else:
            return dotted if imported.partition(".")[0] == binding.name else ""
        return f"{base}.{rest}" if rest else base

    def _definer(self, dotted: str) -> str:
        """The dotted name at the definition, re-exports followed."""
        parts = dotted.split(".")
        for cut in range(len(parts) - 1, 0, -1):
            module = ".".join(parts[:cut])
            if self.project.old.is_module(module) and module in self.project.old.modules:
                found = self.project.old.resolve(module, parts[cut])
                if isinstance(found, tuple):
                    return ".".join([*found, *parts[cut + 1 :]])
                return dotted
        for entry in (self.project.map.symbols.get(dotted),):
            if entry is not None and entry.status == "reexport" and entry.new is not None:
                leaf = dotted.rpartition(".")[2]
                same = [s for s in self.changes if s.endswith(f".{leaf}")]
                if len(same) == 1:
                    return same[0]
        return dotted

    def _method(self, owner: str, name: str, depth: int = 0) -> _Callee | None:
        """The method `name` of the class `owner`, own or inherited."""
        if depth > 6:
            return None
        owner = self._definer(owner)
        change = self.changes.get(f"{owner}.{name}")
        if change is not None:
            return _Callee(f"{owner}.{name}", change)
        module, _, leaf = owner.rpartition(".")
        local = self.classes.get(leaf) if module in (self.file.module_name, "") else None
        if local is not None:
            for statement in local.body.body:
                if isinstance(statement, cst.FunctionDef) and statement.name.value == name:
                    return _own_callee(f"{owner}.{name}", statement.params)
            for base in local.bases:
                origin = self._origin(base.value)
                found = self._method(origin, name, depth + 1) if origin else None
                if found is not None:
                    return found
            return None
        definition = self.project.old.definition(module, leaf) if module else None
        if definition is None:
            return None
        if name in definition.methods:
            parameters = definition.methods[name]
            return _Callee(f"{owner}.{name}", None, parameters.names, parameters.required)
        for base_name in definition.bases:
            resolved = self.project.old.base(module, base_name)
            if resolved is not None:
                found = self._method(".".join(resolved), name, depth + 1)
                if found is not None:
                    return found
        return None

    def _callable(self, dotted: str) -> _Callee | None:
        """A function or class by its dotted name."""
        dotted = self._definer(dotted)
        change = self.changes.get(dotted)
        if change is not None:
            return _Callee(dotted, change)
        owner, _, name = dotted.rpartition(".")
        module, _, leaf = dotted.rpartition(".")
        if owner and not self.project.old.is_module(owner) and owner != self.file.module_name:
            found = self._method(owner, name)
            if found is not None:
                return found
        if module in (self.file.module_name, ""):
            for statement in self.tree.module.body:
                if isinstance(statement, cst.FunctionDef) and statement.name.value == leaf:
                    return _own_callee(dotted, statement.params)
            if leaf in self.classes:
                return self._method(dotted, "__init__")
        definition = self.project.old.definition(module, leaf) if module else None
        if definition is not None:
            signature = self.project.old.signature(module, leaf)
            if signature is not None:
                if definition.kind == "class" and definition.parameters is None:
                    inherited = self._inherited_constructor(module, definition.bases)
                    if inherited is not None:
                        return inherited
                return _Callee(dotted, None, signature.names, signature.required)
        return None

    def _inherited_constructor(self, module: str, bases: Sequence[str]) -> _Callee | None:
        for base in bases:
            resolved = self.project.old.base(module, base)
            if resolved is not None and ".".join(resolved) in self.changes:
                return _Callee(".".join(resolved), self.changes[".".join(resolved)])
        return None

    # What an object is ----------------------------------------------------------------------------

    def _types(self, node: cst.BaseExpression, depth: int = 0) -> list[str] | None:
        """Old dotted names of the classes that an expression is an instance of; None if that is not known."""
        if depth > 4:
            return None
        if isinstance(node, cst.IfExp):
            one, other = self._types(node.body, depth + 1), self._types(node.orelse, depth + 1)
            return None if one is None or other is None else one + other
        if isinstance(node, cst.Call):
            origin = self._origin(node.func)
            return [origin] if origin and self._is_class(origin) else None
        if isinstance(node, cst.Name):
            bound = self._binding(node)
            if bound is None:
                return None
            found: list[str] = []
            for binding in bound[1]:
                value = self._assigned(binding.node)
                types = self._types(value, depth + 1) if value is not None else None
                if types is None:
                    return None
                found += types
            return found
        if isinstance(node, cst.Attribute) and dotted_name(node.value) == "self":
            owner = self._class_around(node)
            return (
                None if owner is None else self._attribute_types(owner, node.attr.value, depth + 1)
            )
        return None

    def _is_class(self, dotted: str) -> bool:
        definer = self._definer(dotted)
        leaf = definer.rpartition(".")[2]
        return leaf[:1].isupper()

    def _assigned(self, node: cst.CSTNode) -> cst.BaseExpression | None:
        """The value in `name = value` that a binding stands for."""
        target = self.tree.parent(node)
        if isinstance(target, cst.AssignTarget):
            assign = self.tree.parent(target)
            if isinstance(assign, cst.Assign) and len(assign.targets) == 1:
                return assign.value
        if isinstance(target, cst.AnnAssign):
            return target.value
        return None

    def _class_around(self, node: cst.CSTNode) -> cst.ClassDef | None:
        for ancestor in self.tree.ancestors(node):
            if isinstance(ancestor, cst.ClassDef):
                return ancestor
        return None

    @cached_property
    def _attributes(self) -> dict[tuple[int, str], list[cst.BaseExpression]]:
        """(class, attribute) → every value that its methods assign to `self.attribute`."""
        found: dict[tuple[int, str], list[cst.BaseExpression]] = {}
        for node in self.tree.walk():
            if isinstance(node, cst.Assign) and len(node.targets) == 1:
                target = node.targets[0].target
                if isinstance(target, cst.Attribute) and dotted_name(target.value) == "self":
                    owner = self._class_around(node)
                    if owner is not None:
                        found.setdefault((id(owner), target.attr.value), []).append(node.value)
        return found

    def _attribute_types(self, owner: cst.ClassDef, name: str, depth: int) -> list[str] | None:
        values = self._attributes.get((id(owner), name))
        if values is None:
            for base in owner.bases:
                local = self.classes.get(dotted_name(base.value) or "")
                if local is not None and local is not owner and depth < 6:
                    found = self._attribute_types(local, name, depth + 1)
                    if found is not None:
                        return found
            return None
        types: list[str] = []
        for value in values:
            some = self._types(value, depth + 1)
            if some is None:
                return None
            types += some
        return types

    def _callees(self, call: cst.Call) -> list[_Callee] | None:
        """What a call may call; None if that is not known."""
        func = call.func
        origin = self._origin(func)
        if origin:
            found = self._callable(origin)
            return None if found is None else [found]
        if isinstance(func, cst.Attribute):
            if (
                isinstance(func.value, cst.Call)
                and dotted_name(func.value.func) == "super"
                and not func.value.args
            ):
                owner = self._class_around(call)
                if owner is None:
                    return None
                for base in owner.bases:
                    base_origin = self._origin(base.value)
                    if not base_origin:
                        continue
                    if func.attr.value == "__init__":
                        constructor = self._callable(base_origin)
                        return None if constructor is None else [constructor]
                    method = self._method(base_origin, func.attr.value)
                    if method is not None:
                        return [method]
                return None
            if dotted_name(func.value) == "self":
                owner = self._class_around(call)
                if owner is not None:
                    name = owner.name.value
                    dotted = f"{self.file.module_name}.{name}" if self.file.module_name else name
                    method = self._method(dotted, func.attr.value)
                    if method is not None:
                        return [method]
        types = self._types(func)
        name = "__call__"
        if types is None and isinstance(func, cst.Attribute):
            types, name = self._types(func.value), func.attr.value
        if types is None:
            return None
        found_methods = [self._method(t, name) for t in types]
        return [m for m in found_methods if m is not None] or None

    # Calls ----------------------------------------------------------------------------------------

    def _call(self, call: cst.Call) -> None:
        callees = self._callees(call)
        if callees is None:
            if self._own_file and self._old_layout:
                self._drop(call, self._gone_keywords(call))
            return
        for callee in callees:
            if callee.change is None:
                continue
            if callee.name.endswith(".create_nnx_model"):
                break
            self._changed(call, callee, callee.change, callees)
            return
        if any(c.name.endswith(".create_nnx_model") for c in callees):
            self._created_model(call)
            return
        if self._own_file and self._old_layout:
            needed = {n for c in callees for n in c.required}
            self._drop(call, [a for a in self._gone_keywords(call) if _keyword(a) not in needed])

    def _gone_keywords(self, call: cst.Call) -> list[cst.Arg]:
        return [a for a in call.args if _keyword(a) in _GONE and self._pure(a.value)]

    def _changed(
        self, call: cst.Call, callee: _Callee, change: SignatureChange, callees: list[_Callee]
    ) -> None:
        """A call of a function that upstream takes differently."""
        short = _short_name(callee.name)
        old = _parse(change.old)
        new = _parse(change.new)
        if old is None or new is None:
            return
        needed = {n for c in callees for n in c.required}
        carried = self._carried(callee.name)
        starred = any(a.star for a in call.args)
        drop: list[cst.Arg] = []
        kept: list[str] = []  # removed parameters that the call gives, and must not lose unseen
        edits: list[tuple[Span, str]] = []
        given: set[str] = set()
        last_positional = max(
            (k for k, a in enumerate(call.args) if a.keyword is None and not a.star), default=-1
        )
        for position, argument in enumerate(call.args):
            if argument.star:
                continue
            name = _keyword(argument)
            if name is None:
                if starred or position >= len(old.positional):
                    continue
                name = old.positional[position]
            renamed = self._renamed(name, argument, change, new)
            if renamed is not None and not carried:
                given.add(renamed[0])
                edits += renamed[1]
                continue
            given.add(name)
            if name not in change.removed:
                continue
            plain = self._value(argument) in ("None", old.defaults.get(name))
            without = plain or (name in _GONE and self._pure(argument.value))
            optional = name not in needed and (name in old.defaults or not carried)
            last = argument.keyword is not None or position == last_positional
            if without and optional and last:
                drop.append(argument)
            else:
                kept.append(name)
        missing = [] if starred else [n for n in change.added_required if n not in given]
        reason = _difference(short, kept, missing)
        if not self._own_file:
            if callee.name.startswith(f"{self.file.module_name}."):
                return  # upstream's version of this file has both the function and its calls
            if kept or missing or edits:
                self.groups.setdefault(reason, []).append(self.file.span(call))
        else:
            for span, text in edits:
                self.file.edit("API004", span, text, f"a parameter of `{short}` has changed")
            if kept or missing:
                was, now = _brief(change.old), _brief(change.new)
                self.file.site(
                    "API003",
                    self.file.span(call),
                    reason if was == now else f"{reason}; was ({was}), is ({now})",
                    "fit the call to upstream's signature",
                )
        self._drop(call, drop, f"upstream's `{short}` no longer takes it")

    def _carried(self, name: str) -> bool:
        """Whether the output goes on to use the checkout's own, old definition of a function or class."""
        parts = name.split(".")
        for cut in range(len(parts) - 1, 0, -1):
            module = ".".join(parts[:cut])
            if module in self.project.old.modules:
                if parts[cut] not in self.project.old.modules[module].definitions:
                    return False
                target = self.project.symbol(module, parts[cut])
                return target is not None and target.module == self.project.modules.get(module, "")
        return False

    def _renamed(
        self, name: str, argument: cst.Arg, change: SignatureChange, new: _OldParameters
    ) -> tuple[str, list[tuple[Span, str]]] | None:
        """The new name of a parameter, and the edits, where it is known under which name it goes on."""
        if name not in change.removed:
            return None
        names = {*new.positional, *new.defaults}
        if name == "model_name" and "config" in names and "config" not in change.old.split(", "):
            value = argument.value
            if isinstance(value, cst.Attribute) and value.attr.value == "model_name":
                edits = [(self.file.span(value), self.file.source(value.value))]
                if argument.keyword is not None:
                    edits.append((self.file.span(argument.keyword), "config"))
                return "config", edits
            return None
        if name in _RENAMED and _RENAMED[name] in names and _RENAMED[name] not in change.old:
            if argument.keyword is None:
                return _RENAMED[name], []
            return _RENAMED[name], [(self.file.span(argument.keyword), _RENAMED[name])]
        return None

    def _created_model(self, call: cst.Call) -> None:
        """`create_nnx_model(config, mesh)`: with a mesh, `from_pretrained` returns the model alone."""
        mesh: cst.BaseExpression | None = None
        positional = [a for a in call.args if a.keyword is None and not a.star]
        if len(positional) > 1:
            mesh = positional[1].value
        for argument in call.args:
            if _keyword(argument) == "mesh":
                mesh = argument.value
        if mesh is None or self.file.source(mesh) == "None":
            return
        reason = "given a mesh, upstream's `from_pretrained` returns the model alone"
        if not self._own_file:
            self.groups.setdefault(reason, []).append(self.file.span(call))
            return
        parent = self.tree.parent(call)
        if isinstance(parent, cst.Subscript) and self.file.source(parent).endswith("[0]"):
            self.file.edit(
                "API004", (self.file.span(call)[1], self.file.span(parent)[1]), "", reason
            )
            return
        if isinstance(parent, cst.Assign) and len(parent.targets) == 1:
            target = parent.targets[0].target
            if isinstance(target, cst.Tuple) and len(target.elements) == 2:
                first, second = (e.value for e in target.elements)
                same = self.file.source(second) == self.file.source(mesh)
                if isinstance(second, cst.Name) and (same or second.value == "_"):
                    self.file.edit(
                        "API004", self.file.span(target), self.file.source(first), reason
                    )
                    return
        self.file.site(
            "API003", self.file.span(call), reason, "take the mesh from where it was made"
        )

    def _drop(self, call: cst.Call, dropped: Sequence[cst.Arg], reason: str = "") -> None:
        """Remove arguments of a call."""
        gone = {id(a) for a in dropped}
        run: list[cst.Arg] = []  # neighbours that go together
        before: cst.Arg | None = None  # the last one that stays
        for argument in call.args:
            if id(argument) not in gone:
                if run:
                    stop = self._comma(self.file.span(run[-1])[1])
                    following = self.file.span(argument)[0]
                    between = self.text[stop:following]
                    start = self.file.span(run[0])[0]
                    if between.strip(" \t") == "":
                        stop = following
                    elif not self.text[self._line_start(start) : start].strip():
                        stop += len(between) - len(
                            between.lstrip(" \t")
                        )  # a comment takes its place
                    self._drop_run(run, (start, stop), reason)
                    run = []
                before = argument
                continue
            line = self._own_line(argument)
            if line is not None:
                self._drop_run([argument], line, reason)
            else:
                run.append(argument)
        if run:
            start, end = self.file.span(run[0])[0], self.file.span(run[-1])[1]
            span = (start, self._comma(end)) if before is None else (self.file.span(before)[1], end)
            self._drop_run(run, span, reason)

    def _drop_run(self, run: Sequence[cst.Arg], span: Span, reason: str) -> None:
        self.removed.append(span)
        self.file.edit("API002", span, "", _GONE.get(_keyword(run[0]) or "", reason))

    def _own_line(self, argument: cst.Arg) -> Span | None:
        """The lines of an argument that shares them with nothing, its comma included."""
        start, end = self.file.span(argument)
        stop = self._comma(end)
        line = self.text.rfind("\n", 0, start) + 1
        tail = re.match(r"[ \t]*(\r?\n)", self.text[stop:])
        if self.text[line:start].strip() == "" and tail is not None and line > 0:
            return line, stop + tail.end()
        return None

    def _value(self, argument: cst.Arg) -> str:
        """The source text of an argument's value."""
        text = self.file.source(argument)
        text = text.partition("=")[2].strip() if argument.keyword is not None else text
        try:
            return ast.unparse(ast.parse(text, mode="eval"))
        except SyntaxError:
            return text

    def _comma(self, offset: int) -> int:
        match = re.match(r"\s*,", self.text[offset : offset + 200])
        return offset + match.end() if match else offset

    def _pure(self, node: cst.BaseExpression) -> bool:
        """Whether evaluating an expression does nothing else."""
        return not any(
            isinstance(n, (cst.Call, cst.Await, cst.Yield, cst.NamedExpr, cst.Subscript))
            for n in self.tree.walk(node)
        )

    # Five values ----------------------------------------------------------------------------------

    def _five_values(self, call: cst.Call) -> None:
        if not self._is_routed(call):
            return
        value: cst.CSTNode = call
        parent = self.tree.parent(value)
        while isinstance(parent, cst.IfExp) and value is not parent.test:
            value, parent = parent, self.tree.parent(parent)
        if isinstance(parent, cst.Assign):
            target = parent.targets[0].target
            if len(parent.targets) > 1 or self._pairs(target):
                self._five_names(*(t.target for t in parent.targets))
            elif isinstance(target, (cst.Tuple, cst.List)):
                self._unpacking(parent, target)
            elif isinstance(target, cst.Name):
                self._held_whole(target)
        elif isinstance(parent, cst.NamedExpr) and isinstance(parent.target, cst.Name):
            self._held_whole(parent.target)
        elif isinstance(parent, cst.Subscript):
            self._index(parent)
        elif isinstance(parent, (cst.Element, cst.ListComp, cst.GeneratorExp)):
            self._five_of_many(parent)

    def _pairs(self, target: cst.BaseExpression) -> bool:
        """Whether a target unpacks the values in a value of its own: `(out, lb, z, c, s), state`."""
        return isinstance(target, (cst.Tuple, cst.List)) and any(
            isinstance(e.value, (cst.Tuple, cst.List)) for e in target.elements
        )

    def _five_names(self, *targets: cst.BaseExpression) -> None:
        """List the places where five names take the values."""
        for target in targets:
            for node in self.tree.walk(target):
                if isinstance(node, (cst.Tuple, cst.List)) and len(node.elements) == 5:
                    self.file.site("API001", self.file.span(node), _FIVE_TO_THREE, _FIVE_TODO)

    def _five_of_many(self, holder: cst.CSTNode) -> None:
        """A layer's values among others: list the names of the assignment or loop that takes them."""
        for ancestor in self.tree.ancestors(holder):
            if isinstance(ancestor, cst.Assign):
                self._five_names(*(t.target for t in ancestor.targets))
            elif isinstance(ancestor, (cst.For, cst.CompFor)):
                self._five_names(ancestor.target)
            if isinstance(ancestor, (cst.BaseSmallStatement, cst.BaseCompoundStatement)):
                return

    def _is_routed(self, call: cst.Call) -> bool:
        """Whether a call runs a RoutedMoE or RoutedAndSharedMoE."""
        func = call.func
        if isinstance(func, cst.Attribute) and func.attr.value == "apply":  # Linen
            func = func.value
        if isinstance(func, cst.Call):
            made = (dotted_name(func.func) or "").rpartition(".")[2]
            return made in (*_FIVE_VALUED, *_FIVE_VALUED_MAKERS)
        types = self._types(func)
        if types is not None:
            return any(t.rpartition(".")[2] in _FIVE_VALUED for t in types)
        if isinstance(func, cst.Name):
            bound = self._binding(func)
            values = [self._assigned(b.node) for b in bound[1]] if bound is not None else []
            for value in values:
                if isinstance(value, cst.Call):
                    made = (dotted_name(value.func) or "").rpartition(".")[2]
                    if made in _FIVE_VALUED_MAKERS:
                        return True
        name = (dotted_name(func) or "").rpartition(".")[2]
        if self._origin(func):
            return False
        return _MOE_NAME.search(name) is not None and not self._method_of_own_class(func)

    def _method_of_own_class(self, func: cst.BaseExpression) -> bool:
        """Whether `self.name` is a method of the class around it."""
        if not (isinstance(func, cst.Attribute) and dotted_name(func.value) == "self"):
            return False
        owner = self._class_around(func)
        return owner is not None and any(
            isinstance(s, cst.FunctionDef) and s.name.value == func.attr.value
            for s in owner.body.body
        )

    def _index(self, node: cst.Subscript) -> None:
        if len(node.slice) == 1 and isinstance(node.slice[0].slice, cst.Index):
            index = node.slice[0].slice.value
            late = isinstance(index, cst.Integer) and int(index.value, 0) >= 2
            if late or isinstance(index, cst.UnaryOperation):
                self.file.site("API001", self.file.span(node), _FIVE_TO_THREE, _FIVE_TODO)

    def _held_whole(self, target: cst.Name) -> None:
        """`result = layer(x)`: look at what becomes of the result."""
        bound = self._binding(target)
        if bound is None:
            return
        for use in self.file.scopes.references(bound[0], target.value):
            if use.context != "load" or use.top is None:
                continue
            parent = self.tree.parent(use.top)
            if isinstance(parent, cst.Subscript) and parent.value is use.top:
                self._index(parent)
            elif isinstance(parent, cst.Assign) and len(parent.targets) == 1:
                unpacked = parent.targets[0].target
                if isinstance(unpacked, (cst.Tuple, cst.List)):
                    self._unpacking(parent, unpacked)

    def _unpacking(self, assign: cst.Assign, target: cst.Tuple | cst.List) -> None:
        elements = target.elements
        span = self.file.span(target)
        starred = [k for k, e in enumerate(elements) if isinstance(e, cst.StarredElement)]
        if starred:
            rest = elements[starred[0]].value
            if len(elements) <= 5 and isinstance(rest, cst.Name) and self._rest_used(rest):
                self.file.site("API001", span, _FIVE_TO_THREE, _FIVE_TODO)
            return
        if len(elements) != 5:
            return
        extra = [e.value for e in elements[2:]]
        names = [n for n in extra if isinstance(n, cst.Name) and n.value != "_"]
        statements = (
            self._recordings(names) if all(isinstance(n, cst.Name) for n in extra) else None
        )
        if statements is None:
            self.file.site("API001", span, _FIVE_TO_THREE, _FIVE_TODO)
            return
        wanted = {n.value for n in names}
        line = self.tree.parent(assign)
        if any(self._read_later(s) for s in statements):
            edits = self._either(line, extra, statements, wanted)
            reason = "the fork's layer returns five values; upstream's three, and records the rest itself"
            rest_name = self._free_name(assign)
        else:
            edits = self._removals(statements, wanted)
            reason = "nothing reads what upstream's layer does not return"
            rest_name = "_" if not self._underscore_read(assign) else "_rest"
        if edits is None:
            self.file.site("API001", span, _FIVE_TO_THREE, _FIVE_TODO)
            return
        keep = 1 if self._is_blank(elements[1].value) else 2
        start = self.file.span(elements[keep - 1].value)[1]
        end = self.file.span(elements[4].value)[1]
        group = f"five-{span[0]}"
        self.file.edit("API001", (start, end), f", *{rest_name}", reason, group)
        for where, text in edits:
            self.file.edit("API001", where, text, reason, group)

    def _rest_used(self, rest: cst.Name) -> bool:
        """Whether a starred rest is read, other than by a test of how many values it holds."""
        for use in self._loads(rest):
            for ancestor in self.tree.ancestors(use.node) if use.node is not None else ():
                if isinstance(ancestor, cst.IfExp) and f"len({rest.value})" in self.file.source(
                    ancestor.test
                ):
                    break
            else:
                return True
        return False

    def _read_later(self, statement: cst.CSTNode) -> bool:
        """Whether a statement records a value where other code can read it (sown or appended, not printed)."""
        return any(
            isinstance(n, cst.Call)
            and (dotted_name(n.func) or "").rpartition(".")[2] in _READ_LATER
            for n in self.tree.walk(statement)
        )

    def _free_name(self, node: cst.CSTNode) -> str:
        """A name for the values behind the second that the function does not use yet."""
        scope = self.file.scopes.scope_of(node)
        used = {r.name for r in scope.references} | set(scope.bindings)
        return next(n for n in ("extra", "extra_values", "extra_of_five") if n not in used)

    def _either(
        self,
        line: cst.CSTNode | None,
        extra: Sequence[cst.BaseExpression],
        statements: Sequence[cst.CSTNode],
        wanted: set[str],
    ) -> list[tuple[Span, str]] | None:
        """Keep the recordings: the names are None where the layer returns three values."""
        if not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1:
            return None
        start, end = self.file.span(line.body[0])
        indent = self.text[self._line_start(start) : start]
        if indent.strip():
            return None
        newline, unit = self.tree.module.default_newline, self.tree.module.default_indent
        rest = self._free_name(line.body[0])
        used = {n.value for s in statements for n in self.tree.walk(s) if isinstance(n, cst.Name)}
        targets = ", ".join(name if (name := self.file.source(n)) in used else "_" for n in extra)
        bound = f"{targets} = {rest} if len({rest}) == 3 else (None, None, None)"
        after = self._line_end(end)
        edits = [((after, after), f"{indent}{bound}{newline}")]
        for statement in statements:
            if isinstance(statement, (cst.If, cst.Del)) or any(
                a in statements for a in self.tree.ancestors(statement)
            ):
                continue
            if self._asked(statement, wanted):
                continue
            own = self.tree.parent(statement)
            at = self.file.span(statement)[0]
            lead = self.text[self._line_start(at) : at]
            if not isinstance(own, cst.SimpleStatementLine) or len(own.body) != 1 or lead.strip():
                return None
            named = {n.value for n in self.tree.walk(statement) if isinstance(n, cst.Name)}
            name = next(n for e in extra if (n := self.file.source(e)) in named & wanted)
            edits.append(((at, at), f"if {name} is not None:{newline}{lead}{unit}"))
        return edits

    def _asked(self, statement: cst.CSTNode, wanted: set[str]) -> bool:
        """Whether an `if name is not None` around a statement sees to it already."""
        return any(
            isinstance(a, cst.If) and self.file.source(a.test).partition(" ")[0] in wanted
            for a in self.tree.ancestors(statement)
        )

    @staticmethod
    def _is_blank(node: cst.BaseExpression) -> bool:
        return isinstance(node, cst.Name) and node.value == "_"

    def _loads(self, name: cst.Name) -> list[Reference]:
        bound = self._binding(name)
        if bound is None:
            return []
        return [
            r for r in self.file.scopes.references(bound[0], name.value) if r.context != "store"
        ]

    def _underscore_read(self, node: cst.CSTNode) -> bool:
        scope = self.file.scopes.scope_of(node)
        return any(r.name == "_" and r.context == "load" for r in scope.references)

    def _recordings(self, names: Sequence[cst.Name]) -> list[cst.CSTNode] | None:
        """The statements that delete or record the names; None if anything else uses them."""
        wanted = {n.value for n in names}
        statements: dict[int, cst.CSTNode] = {}
        for name in names:
            bound = self._binding(name)
            if bound is None or len(bound[1]) != 1:
                stores = bound[1] if bound is not None else []
                if not all(self._is_five_target(b.node) or b.kind == "delete" for b in stores):
                    return None
            for use in self._loads(name):
                if bound is not None and use.scope is not bound[0]:
                    return None
                if self._removed_by_dumps(use):
                    continue
                statement = self._recording(use, wanted)
                if statement is None:
                    return None
                statements[id(statement)] = statement
        return list(statements.values())

    def _is_five_target(self, node: cst.CSTNode) -> bool:
        element = self.tree.parent(node)
        holder = self.tree.parent(element) if isinstance(element, cst.Element) else None
        return isinstance(holder, cst.Tuple) and len(holder.elements) == 5

    def _removed_by_dumps(self, use: Reference) -> bool:
        return any(
            e.rule.startswith("DMP") and e.start <= use.start and use.end <= e.end and e.new == ""
            for e in self.file.edits
        )

    def _recording(self, use: Reference, wanted: set[str]) -> cst.CSTNode | None:
        """The statement of a use that only deletes or records the value: the statement line or a whole `if`."""
        if use.node is None:
            return None
        below: cst.CSTNode = use.node
        for ancestor in self.tree.ancestors(use.node):
            if isinstance(ancestor, cst.Del):
                names = ancestor.target
                parts = (
                    [names]
                    if isinstance(names, cst.Name)
                    else [e.value for e in getattr(names, "elements", ())]
                )
                if parts and all(isinstance(p, cst.Name) for p in parts):
                    return ancestor
                return None
            if isinstance(ancestor, cst.Expr):
                return ancestor if self._records(ancestor.value) else None
            if isinstance(ancestor, cst.If) and below is ancestor.test:
                return ancestor if self._only_records(ancestor, wanted) else None
            if isinstance(ancestor, (cst.BaseCompoundStatement, cst.BaseSmallStatement)):
                return None
            below = ancestor
        return None

    def _records(self, node: cst.BaseExpression) -> bool:
        if not isinstance(node, cst.Call):
            return False
        called = (dotted_name(node.func) or "").rpartition(".")[2]
        if called not in _RECORDERS:
            return False
        return not any(
            isinstance(n, (cst.NamedExpr, cst.Await, cst.Yield)) for n in self.tree.walk(node)
        )

    def _only_records(self, node: cst.If, wanted: set[str]) -> bool:
        """`if name is not None:` around nothing but recordings of the names."""
        if node.orelse is not None or not re.fullmatch(
            r"\w+(?: is not None)?", self.file.source(node.test)
        ):
            return False
        for line in node.body.body:
            parts: Sequence[cst.CSTNode] = (
                line.body if isinstance(line, cst.SimpleStatementLine) else [line]
            )
            for part in parts:
                if not (isinstance(part, cst.Expr) and self._records(part.value)):
                    return False
                used = {n.value for n in self.tree.walk(part) if isinstance(n, cst.Name)}
                if not used & wanted:
                    return False
        return True

    def _removals(
        self, statements: list[cst.CSTNode], wanted: set[str]
    ) -> list[tuple[Span, str]] | None:
        """Edits that take the statements away; None if a block would be left empty."""
        spans: list[Span] = []
        whole = [s for s in statements if isinstance(s, cst.If)]
        for statement in statements:
            if isinstance(statement, cst.If):
                if not isinstance(self.tree.parent(statement), cst.IndentedBlock):
                    return None
                if self._alone(statement, statements):
                    return None
                span = self.file.span(statement)
                spans.append((self._line_start(span[0]), self._line_end(span[1])))
                continue
            if any(i in whole for i in self.tree.ancestors(statement)):
                continue
            if isinstance(statement, cst.Del):
                target = statement.target
                elements = (
                    [e.value for e in target.elements]
                    if isinstance(target, cst.Tuple)
                    else [target]
                )
                left = [
                    self.file.source(e)
                    for e in elements
                    if isinstance(e, cst.Name) and e.value not in wanted
                ]
                if left:
                    spans.extend(self._del_elements(elements, wanted))
                    continue
            line = self.tree.parent(statement)
            if not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1:
                return None
            if self._alone(line, [self.tree.parent(s) or s for s in statements]):
                return None
            start, end = self.file.span(statement)
            rest = re.match(r"[ \t]*(\r?\n|\Z)", self.text[end:])
            if rest is not None:
                spans.append((self._line_start(start), end + rest.end()))
            else:  # a comment behind it stays
                gap = re.match(r"[ \t]*", self.text[end:])
                spans.append((start, end + (gap.end() if gap else 0)))
        return [(span, "") for span in spans]

    def _del_elements(
        self, elements: Sequence[cst.BaseExpression], wanted: set[str]
    ) -> Iterator[Span]:
        """Spans that take the wanted names out of `del a, b`."""
        gone = [isinstance(e, cst.Name) and e.value in wanted for e in elements]
        last_kept = max(k for k, g in enumerate(gone) if not g)
        for k, element in enumerate(elements):
            if not gone[k]:
                continue
            start, end = self.file.span(element)
            if k < last_kept:
                yield start, self.file.span(elements[k + 1])[0]
            else:
                yield self.file.span(elements[k - 1])[1], end

    def _alone(self, line: cst.CSTNode, removed: list[cst.CSTNode]) -> bool:
        """Whether removing the statements would leave the block around `line` empty."""
        block = self.tree.parent(line)
        if not isinstance(block, cst.IndentedBlock):
            return True
        return all(any(s is r for r in removed) for s in block.body)

    def _line_start(self, offset: int) -> int:
        return self.text.rfind("\n", 0, offset) + 1

    def _line_end(self, offset: int) -> int:
        end = self.text.find("\n", offset - 1)
        return len(self.text) if end == -1 else end + 1

    # Definitions ----------------------------------------------------------------------------------

    def _definition(self, definition: cst.ClassDef) -> None:
        name = definition.name.value
        if (
            name in _FIVE_VALUED
            and definition is self.classes.get(name)
            and self._returns_five(definition)
        ):
            self.file.site(
                "API006",
                self.file.span(definition.name),
                f"`{name}` returns five values; upstream's returns three, and callers are rewritten to take "
                "either",
                "record z-loss, expert counts and router statistics inside it, and return three",
            )
        if not self._own_file:
            return
        for base in definition.bases:
            origin = self._origin(base.value)
            if origin:
                self._overrides(definition, self._definer(origin))

    def _returns_five(self, definition: cst.ClassDef) -> bool:
        methods = [m for m in definition.body.body if isinstance(m, cst.FunctionDef)]
        returned = [
            node.value
            for m in methods
            for node in self.tree.walk(m)
            if isinstance(node, cst.Return)
        ]
        return any(isinstance(v, cst.Tuple) and len(v.elements) == 5 for v in returned)

    def _overrides(self, definition: cst.ClassDef, base: str) -> None:
        for method in definition.body.body:
            if not isinstance(method, cst.FunctionDef):
                continue
            name = method.name.value
            change = self.changes.get(f"{base}.{name}")
            if change is None or name == "__init__":
                continue
            own = _own_callee(name, method.params)
            takes_any = method.params.star_kwarg is not None
            lacks = [n for n in change.added_required if n not in own.own and not takes_any]
            needs = [n for n in change.removed if n in own.required]
            if lacks or needs:
                parts = [f"lacks {_quoted(lacks)}, which upstream passes"] if lacks else []
                parts += (
                    [f"needs {_quoted(needs)}, which upstream no longer passes"] if needs else []
                )
                self.file.site(
                    "API006",
                    self.file.span(method.name),
                    f"overrides `{_short_name(base)}.{name}` and {', and '.join(parts)}",
                    "give it upstream's parameters",
                )

    # page_state -----------------------------------------------------------------------------------

    def _annotation(self, parameter: cst.Param) -> None:
        """`page_state: None | page_manager.PageState = None` → `page_state: None = None`."""
        if parameter.annotation is None or parameter.default is None:
            return
        annotation = parameter.annotation.annotation
        if "PageState" in self.file.source(annotation):
            span = self.file.span(annotation)
            self.removed.append(span)
            self.file.edit(
                "API005", span, "None", "upstream deleted page_manager and passes no page state"
            )

    def _unused_imports(self) -> None:
        """Imports that only served annotations and arguments that are gone."""
        if not self.removed:
            return
        for binding in self.file.scopes.bindings():
            alias = binding.node
            if (
                not isinstance(alias, cst.ImportAlias)
                or len(binding.scope.bindings[binding.name]) > 1
            ):
                continue
            if (dotted_name(alias.name) or "").rpartition(".")[2] not in (
                "page_manager",
                "PageState",
            ):
                continue
            uses = self.file.scopes.references(binding.scope, binding.name)
            if uses and all(any(s <= u.start < e for s, e in self.removed) for u in uses):
                self.file.unused.add(alias)


_FIVE_TO_THREE = (
    "upstream's expert layer returns three values (output, load-balance loss, bias updates); the fourth and "
    "fifth, or a z-loss as the third, are used here"
)
_FIVE_TODO = "take z-loss and expert counts from what the layer records"


def _keyword(argument: cst.Arg) -> str | None:
    return argument.keyword.value if argument.keyword is not None else None


def _own_callee(name: str, parameters: cst.Parameters) -> _Callee:
    listed = [*parameters.posonly_params, *parameters.params, *parameters.kwonly_params]
    return _Callee(
        name,
        None,
        tuple(p.name.value for p in listed),
        tuple(p.name.value for p in listed if p.default is None),
    )


def _parse(signature: str) -> _OldParameters | None:
    """The parameters of a signature's source text."""
    try:
        tree = ast.parse(f"def f({signature}): pass")
    except SyntaxError:
        return None
    function = tree.body[0]
    assert isinstance(function, ast.FunctionDef)
    arguments = function.args
    positional = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
    defaults: dict[str, str] = {}
    if arguments.defaults:
        for name, default in zip(
            positional[-len(arguments.defaults) :], arguments.defaults, strict=True
        ):
            defaults[name] = ast.unparse(default)
    for argument, keyword_default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        defaults[argument.arg] = ast.unparse(keyword_default) if keyword_default else ""
    return _OldParameters(tuple(positional), defaults)


def _short_name(dotted: str) -> str:
    """`MLA.__call__` of `MaxText.layers.attention_mla.MLA.__call__`, `f` of `MaxText.train.f`."""
    parts = dotted.split(".")
    if len(parts) > 1 and parts[-2][:1].isupper() and not parts[-2].startswith("MaxText"):
        return ".".join(parts[-2:])
    return parts[-1]


def _difference(short: str, given: Sequence[str], missing: Sequence[str]) -> str:
    parts = []
    if given:
        parts.append(f"no longer takes {_quoted(given)}, given here")
    if missing:
        parts.append(f"needs {_quoted(missing)}, missing here")
    return f"upstream's `{short}` {' and '.join(parts) or 'takes other parameters'}"


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(f"`{n}`" for n in names)


def _brief(signature: str) -> str:
    return signature if len(signature) <= 160 else signature[:157] + "..."
