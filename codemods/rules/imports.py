"""IMP: imports and what they bind, dotted names in code and in strings.

The unit of work is a binding: an import binds a name to an old module or to a symbol of one; its new
home follows from the map and from where the checkout's own files go, and every use of the name is
rewritten with it. Statements keep their place, comments, brackets and `as` names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import libcst as cst

from codemods.engine.context import PythonFile
from codemods.engine.project import OLD_ROOT, Target
from codemods.engine.scopes import Binding, Reference, Scope, dotted_name
from codemods.engine.tree import Span
from codemods.maps.symbols import absolute
from codemods.rules.base import Example, Rule

RULES = (
    Rule(
        "IMP001",
        "safe",
        "`from MaxText.x import name` names the module where the name lives now",
        "Re-exports are followed to the definition. Function-local, try/except and TYPE_CHECKING imports "
        "stay where they are; comments, brackets and `as` names are kept.",
        (
            Example(
                "from MaxText.layers.moe import RoutedMoE\n",
                "from maxtext.layers.moe import RoutedMoE\n",
            ),
            Example(
                "try:\n  from MaxText import max_utils as mu\nexcept ImportError:\n  mu = None\n",
                "try:\n  from maxtext.utils import max_utils as mu\nexcept ImportError:\n  mu = None\n",
            ),
        ),
    ),
    Rule(
        "IMP002",
        "safe",
        "a `from` import whose names now live apart becomes one statement per module, in the same place",
        "A comment on a name travels with the name; a linter's comment at the end of the line is kept on "
        "each statement.",
        (
            Example(
                "from MaxText import max_logging, optimizers\n",
                "from maxtext.utils import max_logging\nfrom maxtext.optimizers import optimizers\n",
            ),
        ),
    ),
    Rule(
        "IMP003",
        "safe",
        "`import MaxText.x` and `import MaxText.x as y`",
        examples=(
            Example(
                "import MaxText.layers.moe as moe_lib\n", "import maxtext.layers.moe as moe_lib\n"
            ),
        ),
    ),
    Rule(
        "IMP004",
        "safe",
        "dotted uses of a package: `MaxText.a.b.c`, `mt.a.b`",
        "A submodule that was only bound because another module imported it gets an import of its own.",
        (
            Example(
                "import MaxText.max_utils\n\nMaxText.max_utils.print_system_information()\n",
                "import maxtext.utils.max_utils\n\nmaxtext.utils.max_utils.print_system_information()\n",
            ),
            Example(
                "import MaxText.max_utils\n\nmaxtext = MaxText.max_utils.print_system_information()\n",
                "from maxtext.utils import max_utils\n\nmaxtext = max_utils.print_system_information()\n",
            ),
        ),
    ),
    Rule(
        "IMP005",
        "safe",
        "`module.attr` whose attribute lives in another module now, although the import looks right",
        examples=(
            Example(
                "from MaxText import multimodal_utils\n\n"
                "image = multimodal_utils.load_image_from_path(path)\n",
                "from maxtext.multimodal import utils\n\nimage = utils.load_image_from_path(path)\n",
            ),
        ),
    ),
    Rule(
        "IMP006",
        "safe",
        "names that got a new name, with all their uses",
        "Uses are renamed where the import is the only thing that binds the name and the new name is "
        "free; where not, in `__all__`, or beside a fallback in try/except, the old name is kept with `as`.",
        (
            Example(
                "from MaxText.layers.embeddings import Qwen3NextRotaryEmbedding\n\n"
                "def rope(x: 'Qwen3NextRotaryEmbedding'):\n  return Qwen3NextRotaryEmbedding()\n",
                "from maxtext.layers.embeddings import PartialRotaryEmbedding\n\n"
                "def rope(x: 'PartialRotaryEmbedding'):\n  return PartialRotaryEmbedding()\n",
            ),
        ),
    ),
    Rule(
        "IMP007",
        "safe",
        "relative imports that no longer lead to the right module become absolute",
        "A relative import that still is right, since both files move together, is left alone.",
        (
            Example(
                "from . import moe\nfrom ..max_utils import print_system_information\n",
                "from . import moe\nfrom maxtext.utils.max_utils import print_system_information\n",
                path="src/MaxText/layers/own_layer.py",
            ),
        ),
    ),
    Rule(
        "IMP008",
        "review",
        "star imports, where every name of the file that they bind can be proven",
        "Names that live elsewhere now get an explicit import beside it. A star import of a module whose "
        "names went to several places, in a file that hands them on, is listed.",
        (
            Example(
                "from MaxText.max_logging import *\n\nlog('x')\n",
                "from maxtext.utils.max_logging import *\n\nlog('x')\n",
            ),
        ),
    ),
    Rule(
        "IMP009",
        "safe",
        "quoted targets of mock.patch, importlib.import_module, pytest.importorskip and kin",
        "A patched name stays in the module that looks it up, as mock requires, wherever it is defined.",
        (
            Example(
                'import importlib\n\nmoe = importlib.import_module("MaxText.layers.moe")\n',
                'import importlib\n\nmoe = importlib.import_module("maxtext.layers.moe")\n',
            ),
        ),
    ),
    Rule(
        "IMP010",
        "review",
        "other strings that are nothing but a dotted name of the old tree",
        examples=(
            Example(
                'ENTRY = "MaxText.train"\n', 'ENTRY = "maxtext.trainers.pre_train.train"\n'
            ),
        ),
    ),
    Rule(
        "IMP011",
        "review",
        "logger names (with --rename-loggers; listed without)",
        examples=(
            Example(
                'import logging\n\nlog = logging.getLogger("MaxText.train")\n',
                'import logging\n\nlog = logging.getLogger("MaxText.train")\n',
                listed=('"MaxText.train"',),
            ),
        ),
    ),
    Rule(
        "IMP012",
        "safe",
        "imports that nothing needs any more once the dump hooks are gone",
        examples=(
            Example(
                "from MaxText.utils.argus_utils import dump_tensor\n\n"
                "def f(x):\n  dump_tensor('x', x)\n  return x\n",
                "\ndef f(x):\n  return x\n",
            ),
        ),
    ),
    Rule(
        "IMP020",
        "report",
        "a name whose new place is not certain: deleted upstream, unknown in both trees, …",
        examples=(
            Example(
                "from MaxText.layers.attentions import no_such_name\n",
                "from MaxText.layers.attentions import no_such_name\n",
                listed=("no_such_name",),
            ),
        ),
    ),
    Rule(
        "IMP021",
        "report",
        "a dotted name that is put together at run time",
        examples=(
            Example(
                'import importlib\n\nmodule = importlib.import_module(f"MaxText.layers.{name}")\n',
                'import importlib\n\nmodule = importlib.import_module(f"MaxText.layers.{name}")\n',
                listed=('f"MaxText.layers.{name}"',),
            ),
        ),
    ),
    Rule(
        "IMP022",
        "report",
        "rewritten to the checkout's own copy of something that upstream deleted",
        "It resolves in the output; it will not once the checkout is joined with upstream.",
        (
            Example(
                "from MaxText.common_types import EP_AS_CONTEXT\n",
                "from maxtext.common.common_types import EP_AS_CONTEXT\n",
                files={"src/MaxText/common_types.py": 'EP_AS_CONTEXT = "ep_as_context"\n'},
                listed=("EP_AS_CONTEXT",),
            ),
        ),
    ),
    Rule(
        "IMP023",
        "report",
        "a use that cannot follow its import without clashing with another name",
        examples=(
            Example(
                "import MaxText\n\ndef f(maxtext):\n  return dir(MaxText), maxtext\n",
                "import MaxText\n\ndef f(maxtext):\n  return dir(MaxText), maxtext\n",
                listed=("dir(MaxText)",),
            ),
        ),
    ),
)

_LINTER_COMMENT = re.compile(r"#\s*(?:noqa|pylint:|type:|isort:|pyright:|mypy:|ruff:|pytype:)")
_DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+\Z")
# A name of the old package in the literal part of an f-string that runs into what is filled in.
_CUT_NAME = re.compile(rf"(?<![\w/.]){OLD_ROOT}\.[\w.]*\Z")
_FROM = re.compile(r"from(?:[ \t\f]|\\\r?\n)*")
_DOTS = re.compile(r"\.(?:[ \t\f.]|\\\r?\n)*")

# Calls whose string argument is imported or looked up, by the last parts of the called name.
_LOADERS = frozenset(
    {
        "patch",
        "patch.dict",
        "patch.multiple",
        "import_module",
        "importorskip",
        "find_spec",
        "run_module",
        "__import__",
        "resolve_name",
        "setattr",
        "delattr",
        "get_data",
        "files",
    }
)
_IMPORTERS = frozenset({"patch", "import_module", "importorskip", "find_spec", "run_module"})
_PATCHERS = frozenset({"patch", "patch.dict", "patch.multiple", "setattr", "delattr"})
# Calls that take a module and the name of one of its attributes.
_OBJECT_PATCHERS = frozenset({"patch.object", "setattr", "delattr", "getattr", "hasattr"})
_LOGGERS = frozenset({"getLogger", "get_logger"})


@dataclass(slots=True)
class _Name:
    """One imported name of a statement and what becomes of it.

    Attributes:
        alias: its node.
        module: the new module to import from ("" for a plain `import`); None: left as it is.
        name: what to import (a dotted module for a plain `import`).
        bound: the name it binds afterwards.
        extra: further (module, name, bound) that its uses need.
        dropped: nothing needs it any more.
    """

    alias: cst.ImportAlias
    module: str | None = None
    name: str = ""
    bound: str = ""
    extra: list[tuple[str, str, str]] = field(default_factory=list)
    dropped: bool = False
    unused: bool = False


def python(file: PythonFile) -> None:
    """Rewrite the file's imports, their uses, and dotted names in strings."""
    _Imports(file).run()


class _Imports:
    def __init__(self, file: PythonFile) -> None:
        self.file = file
        self.project = file.project
        self.tree = file.tree
        self._taken: dict[str, str] = {}  # new bound name → what it is bound to
        self._identifiers: dict[str, list[Binding]] | None = None
        self._used: set[str] = set()
        self._exported: frozenset[str] | None = None
        self._bindings: dict[cst.CSTNode, Binding] | None = None
        self._module_bindings: dict[tuple[int, str], tuple[str, _Name]] = {}
        self._gone: set[str] = set()
        self._plain_modules: set[str] = set()  # modules that plain imports of the output bind

    def run(self) -> None:
        statements: list[cst.Import | cst.ImportFrom] = []
        strings: list[cst.SimpleString | cst.FormattedString | cst.ConcatenatedString] = []
        joined: list[cst.BinaryOperation] = []
        for node in self.tree.walk():
            kind = type(node)
            if kind is cst.Import or kind is cst.ImportFrom:
                statements.append(node)  # type: ignore[arg-type]
            elif kind in (cst.SimpleString, cst.FormattedString, cst.ConcatenatedString):
                strings.append(node)  # type: ignore[arg-type]
            elif kind is cst.BinaryOperation:
                joined.append(node)  # type: ignore[arg-type]
        for statement in statements:
            if isinstance(statement, cst.ImportFrom):
                self._from(statement)
            else:
                self._plain(statement)
        self._patched_objects()
        self._strings(strings, joined)

    # Statements -----------------------------------------------------------------------------------

    def _from(self, statement: cst.ImportFrom) -> None:
        module = self._absolute(statement)
        if not module or not (module.split(".")[0] in self.project.old_roots or statement.relative):
            if not isinstance(statement.names, cst.ImportStar):
                names = [_Name(a, unused=a in self.file.unused) for a in statement.names]
                if any(n.unused for n in names):
                    self._write_from(statement, module, names)
            return
        rule = "IMP007" if statement.relative else "IMP001"
        if isinstance(statement.names, cst.ImportStar):
            self._star(statement, module)
            return
        if not self.file.enabled(rule):
            return
        names = []
        for alias in statement.names:
            name = _Name(alias)
            names.append(name)
            if alias in self.file.unused:
                name.unused = True
                continue
            old = dotted_name(alias.name) or ""
            target = self.project.symbol(module, old)
            if target is None:
                if module.split(".")[0] == OLD_ROOT and not statement.relative:
                    self._unknown(self.file.span(alias), module, old)
                continue
            if target.module is None:
                self.file.site("IMP020", self.file.span(alias), target.problem, _TODO_GONE)
                continue
            self._carried(self.file.span(alias), target)
            self._retarget(name, module, old, target)
        self._write_from(statement, module, names)

    def _carried(self, span: Span, target: Target) -> None:
        """List, once a file, what is rewritten to the checkout's own copy although upstream deleted it."""
        entry = self.project.map.modules.get(self.file.module_name)
        if not target.note or target.gone in self._gone or (entry and entry.status == "deleted"):
            return  # a file that upstream deleted itself is listed as such
        self._gone.add(target.gone)
        self.file.site("IMP022", span, target.note, _TODO_CARRIED)

    def _absolute(self, statement: cst.ImportFrom) -> str:
        target = dotted_name(statement.module) if statement.module is not None else None
        level = len(statement.relative)
        if level and not self.file.module_name:
            return ""
        return absolute(self.file.module_name, self.file.is_package, level, target)

    def _unknown(self, span: Span, module: str, name: str) -> None:
        known = self.project.module(module)
        what = f"`{module}.{name}`" if known is not None else f"module `{module}`"
        reason = f"{what} is in neither the checkout nor upstream's old or new tree"
        self.file.site("IMP020", span, reason, "find out what it should import")

    def _retarget(self, name: _Name, module: str, old: str, target: Target) -> None:
        """Decide what the alias imports from now on and rewrite the uses of what it binds."""
        binding = self._binding(name.alias)
        bound = binding.name
        assert target.module is not None
        if target.name is None:
            parent, _, leaf = target.module.rpartition(".")
            if not parent:  # a top-level package cannot be imported `from` anything
                return
            name.module, name.name = parent, leaf
        else:
            name.module, name.name = target.module, target.name
        if name.alias.asname is not None or name.name == bound:
            name.bound = bound
        elif self._may_rename(binding, name.name, f"{name.module}.{name.name}"):
            name.bound = name.name
        else:
            name.bound = bound
        self._taken[name.bound] = f"{name.module}.{name.name}"
        if target.name is None:
            self._uses_of_module(name, binding, f"{module}.{old}", target.module)
        else:
            self._uses_of_symbol(name, binding)

    def _uses_of_symbol(self, name: _Name, binding: Binding) -> None:
        """Rename the uses of a symbol; REN may have chosen another name for single uses."""
        kept = False
        uses = self.file.scopes.references(binding.scope, binding.name)
        for use in uses:
            chosen = self.file.renamed.get(use.start)
            if chosen is not None and chosen != name.name:
                self._need(name, name.module or "", chosen, chosen)
                self.file.edit("IMP006", (use.start, use.end), chosen, group=self._group(name))
                continue
            kept = True
            if name.bound != binding.name:
                self.file.edit("IMP006", (use.start, use.end), name.bound, group=self._group(name))
        if uses and not kept:
            name.dropped = True

    def _uses_of_module(self, name: _Name, binding: Binding, old: str, new: str) -> None:
        """Follow `module.attr` uses of a name bound to a module."""
        self._module_bindings[(id(binding.scope), binding.name)] = (old, name)
        uses = self.file.scopes.references(binding.scope, binding.name)
        several = self._bound_otherwise(binding)
        moved_away = 0
        for use in uses:
            if not use.trail:
                if name.bound != binding.name:
                    self._rename_use(use, name)
                continue
            if self._follow(use, name, old, new, several):
                moved_away += 1
        # An import that only served what has moved away would bind an unused name.
        if uses and moved_away == len(uses) and not several and not self._is_exported(binding):
            name.dropped = True

    def _rename_use(self, use: Reference, name: _Name) -> None:
        self.file.edit("IMP006", (use.start, use.end), name.bound, group=self._group(name))

    def _follow(self, use: Reference, name: _Name, old: str, new: str, several: bool) -> bool:
        """Rewrite one `module.attr` use. Returns whether it no longer goes through the module."""
        names = [t[0] for t in use.trail]
        found = self.project.dotted(".".join([old, *names]))
        span = (use.start, use.end)
        if found is None:
            if name.bound != use.name:
                self._rename_use(use, name)
            return False
        target, rest = found
        covered = len(names) - (rest.count(".") + 1 if rest else 0)
        end = use.trail[covered - 1][2] if covered else use.end
        whole = (use.start, end)
        if target.module is None:
            self.file.site("IMP020", whole, target.problem, _TODO_GONE)
            if name.bound != use.name:
                self._rename_use(use, name)
            return False
        self._carried(whole, target)
        if covered == 0:
            attribute = names[0]
            if not self._dynamic(old, attribute):
                self.file.site(
                    "IMP020",
                    (use.start, use.trail[0][2]),
                    f"neither tree has a name `{attribute}` in `{old}`",
                    "find out what it should use",
                )
            if name.bound != use.name:
                self._rename_use(use, name)
            return False
        if self._still_there(new, names[:covered], target):
            if name.bound != use.name:
                self._rename_use(use, name)
            return False
        dotted = target.dotted or ""
        chosen = self.file.renamed.get(use.trail[covered - 1][1])
        if chosen is not None and target.name is not None:
            dotted = f"{target.module}.{chosen}"
        if dotted.startswith(f"{new}."):
            text = name.bound + dotted[len(new) :]
            if text != self.file.text[whole[0] : whole[1]]:
                rule = "IMP006" if covered else "IMP004"
                self.file.edit(rule, whole, text, group=self._group(name))
            return False
        if several:
            reason = (
                f"`{use.dotted}` now is `{dotted}`, but `{use.name}` is bound in more than one way here"
            )
            self.file.site("IMP023", whole, reason, "import the new module by hand")
            return False
        if dotted == new:
            if name.bound != use.name:
                self._rename_use(use, name)
            return False
        home = target.module if target.name is not None else target.module
        parent, _, leaf = home.rpartition(".")
        if not parent:
            self.file.edit("IMP005", whole, dotted, group=self._group(name))
            self._need(name, "", home, home)
            return True
        local = self._local_name(parent, leaf, use.scope)
        self._need(name, parent, leaf, local)
        text = local if target.name is None else f"{local}.{dotted[len(home) + 1:]}"
        self.file.edit("IMP005", whole, text, group=self._group(name))
        del span
        return True

    def _still_there(self, new: str, names: list[str], target: Target) -> bool:
        """Whether the module's new home still hands on the same thing by the same names."""
        tree = self.project.target
        if tree.modules.get(new) is None or target.module is None:
            return False
        found: tuple[str, str] | str | None = new
        for name in names:
            if not isinstance(found, str):
                return False
            held = tree.modules[found] if found in tree.modules else None
            if held is not None and held.dynamic and name in (held.exported or ()):
                return True  # handed on when asked for, by a `__getattr__`, and named in `__all__`
            if name not in tree.names(found):  # a submodule is there only once something imports it
                return False
            found = tree.resolve(found, name)
        if target.name is None:
            return found == target.module
        return isinstance(found, tuple) and found == tree.resolve(target.module, target.name)

    def _dynamic(self, module: str, attribute: str) -> bool:
        """Whether a module may have an attribute that its text does not show."""
        if attribute.startswith("__"):
            return True
        held = self.project.old.modules.get(module)
        return held is None or held.dynamic or bool(held.error)

    def _need(self, name: _Name, module: str, imported: str, bound: str) -> None:
        item = (module, imported, bound)
        if item not in name.extra:
            name.extra.append(item)
        self._taken[bound] = f"{module}.{imported}" if module else imported

    def _local_name(self, parent: str, leaf: str, scope: Scope) -> str:
        """A name to bind module `parent.leaf` to: its leaf, unless that means something else here."""
        dotted = f"{parent}.{leaf}"
        candidates = [leaf, f"{parent.rpartition('.')[2]}_{leaf}"]
        candidates += [f"{candidates[1]}_{n}" for n in range(2, 100)]
        for candidate in candidates:
            if self._taken.get(candidate) == dotted:
                return candidate
            if candidate in self._taken:
                continue
            if self._is_free(candidate, dotted):
                return candidate
        raise AssertionError(f"no free name for {dotted}")

    # Plain imports --------------------------------------------------------------------------------

    def _plain(self, statement: cst.Import) -> None:
        names: list[_Name] = []
        for alias in statement.names:
            name = _Name(alias)
            names.append(name)
            old = dotted_name(alias.name) or ""
            if alias in self.file.unused:
                name.unused = True
                continue
            if old.split(".")[0] not in self.project.old_roots or not self.file.enabled("IMP003"):
                continue
            found = self.project.dotted(old)
            if found is None or found[1]:
                if old.split(".")[0] == OLD_ROOT:
                    self._unknown(self.file.span(alias), *_split(old))
                continue
            target = found[0]
            if target.module is None or target.name is not None:
                problem = target.problem or f"`{old}` is no module"
                self.file.site("IMP020", self.file.span(alias), problem, _TODO_GONE)
                continue
            self._carried(self.file.span(alias), target)
            binding = self._binding(alias)
            if alias.asname is not None:
                name.module, name.name, name.bound = "", target.module, binding.name
                self._uses_of_module(name, binding, old, target.module)
                if name.dropped and name.extra:
                    continue
                name.dropped = False
            elif not self._plain_uses(name, binding, old, target.module):
                continue
        self._write_plain(statement, names)

    def _plain_uses(self, name: _Name, binding: Binding, old: str, new: str) -> bool:
        """`import MaxText.a.b` binds `MaxText`: rewrite every dotted use of it. False if it must stay."""
        old_root = binding.name
        new_root = new.split(".")[0]
        uses = self.file.scopes.references(binding.scope, old_root)
        if new_root != old_root and not self._is_free(new_root, new_root):
            return self._plain_uses_apart(name, uses, new)
        name.module, name.name, name.bound = "", new, new_root
        self._taken[new_root] = new_root
        self._plain_modules.add(new)
        key = (id(binding.scope), old_root)
        if key in self._module_bindings:
            return True  # an earlier import of the same package has seen to the uses
        self._module_bindings[key] = (old_root, name)
        imported = {
            dotted_name(b.node.name) or ""
            for b in binding.scope.bindings[old_root]
            if isinstance(b.node, cst.ImportAlias)
        }
        served = [self._plain_use(name, use, imported, new) for use in uses]
        name.dropped = bool(served) and not any(served) and imported == {old}
        return True

    def _plain_uses_apart(self, name: _Name, uses: Sequence[Reference], new: str) -> bool:
        """The new package's name is taken in this file: bind the modules that the uses need instead."""
        found = [self.project.dotted(use.dotted) for use in uses]
        modules = [f[0].module if f is not None else None for f in found]
        if any(m is None or "." not in m for m in modules) or "." not in new:
            reason = f"`{new.split('.')[0]}` already means something else in this file"
            self.file.site("IMP023", self.file.span(name.alias), reason, f"rename it, then import `{new}`")
            for use in uses:
                end = use.trail[-1][2] if use.trail else use.end
                self.file.site("IMP023", (use.start, end), reason, "rename it first")
            return False
        for use, item, module in zip(uses, found, modules, strict=True):
            assert item is not None
            assert module is not None
            target, rest = item
            parent, _, leaf = module.rpartition(".")
            local = self._local_name(parent, leaf, use.scope)
            self._need(name, parent, leaf, local)
            parts = len(use.trail) - (rest.count(".") + 1 if rest else 0)
            end = use.trail[parts - 1][2] if parts else use.end
            text = local if target.name is None else f"{local}.{target.name}"
            self._carried((use.start, end), target)
            self.file.edit("IMP004", (use.start, end), text, group=self._group(name))
        if not uses:
            parent, _, leaf = new.rpartition(".")
            self._need(name, parent, leaf, self._local_name(parent, leaf, self.file.scopes.module))
        name.module, name.name, name.dropped = "", new, True
        return True

    def _plain_use(self, name: _Name, use: Reference, imported: set[str], new: str) -> bool:
        """Rewrite one dotted use. Returns whether the import of `new` serves it."""
        found = self.project.dotted(use.dotted)
        if found is None:
            return True
        target, rest = found
        parts = len(use.trail) - (rest.count(".") + 1 if rest else 0)
        whole = (use.start, use.trail[parts - 1][2] if parts else use.end)
        if target.module is None:
            self.file.site("IMP020", whole, target.problem, _TODO_GONE)
            # The old root is bound no more, so what is known of the name is rewritten all the same.
            names = use.dotted.split(".")
            for parts in range(parts - 1, -1, -1):
                home = self.project.module(".".join(names[: parts + 1]))
                if home is not None and home.module is not None:
                    target, whole = home, (use.start, use.trail[parts - 1][2] if parts else use.end)
                    break
            else:
                return True
        self._carried(whole, target)
        assert target.module is not None
        dotted = target.dotted or ""
        chosen = self.file.renamed.get(use.trail[parts - 1][1]) if parts else None
        if chosen is not None and target.name is not None:
            dotted = f"{target.module}.{chosen}"
        self.file.edit("IMP004", whole, dotted, group=self._group(name))
        covered = any(
            (t := self.project.module(i)) is not None
            and t.module is not None
            and (t.module == target.module or t.module.startswith(f"{target.module}."))
            for i in imported
        )
        if not covered:
            self._need(name, "", target.module, target.module.split(".")[0])
        return target.module == new or new.startswith(f"{target.module}.") or covered

    # Star imports ---------------------------------------------------------------------------------

    def _star(self, statement: cst.ImportFrom, module: str) -> None:
        span = self.file.span(statement)
        target = self.project.module(module)
        if target is None or target.module is None:
            if target is not None or module.split(".")[0] == OLD_ROOT:
                problem = target.problem if target else f"module `{module}` is unknown"
                self.file.site("IMP020", span, problem, _TODO_GONE)
            return
        public = self.project.old.public(module)
        if not public:
            public = set(self.project.map.kept.get(module, ()))
            public |= {
                s.rpartition(".")[2]
                for s in self.project.map.symbols
                if s.rpartition(".")[0] == module
            }
            public = {n for n in public if not n.startswith("_")}
        used: dict[str, list[Reference]] = {}
        for scope in self.file.scopes.all:
            for reference in scope.references:
                if reference.name in public and scope.home(reference.name) is None:
                    used.setdefault(reference.name, []).append(reference)
        elsewhere: dict[str, list[str]] = {}
        renames: list[tuple[Reference, str]] = []
        problems: list[str] = []
        hands_on = self.file.is_package or "__all__" in self.file.scopes.module.bindings
        for name in sorted(public if hands_on else used):
            symbol = self.project.symbol(module, name)
            if symbol is None or symbol.module is None:
                problems.append(symbol.problem if symbol else f"`{name}` is unknown")
            elif symbol.module != target.module or (symbol.name or name) != name:
                if hands_on:
                    problems.append(f"`{name}` now is `{symbol.dotted}`")
                    continue
                parent, _, leaf = (symbol.dotted or "").rpartition(".")
                if symbol.module != target.module:
                    elsewhere.setdefault(parent, []).append(leaf)
                renames += [(use, leaf) for use in used[name] if leaf != name]
        if problems:
            reason = f"not every name it binds is where the module went: {'; '.join(problems[:3])}"
            self.file.site("IMP020", span, reason, "import the names by name")
            return
        still_right = self._relative_holds(statement, target.module)
        group = f"star:{span[0]}"
        if not still_right:
            self.file.edit(
                "IMP008", self._module_span(statement), target.module, group=group
            )
        for use, new in renames:
            self.file.edit("IMP008", (use.start, use.end), new, group=group)
        lines = [f"from {m} import {', '.join(sorted(ns))}" for m, ns in sorted(elsewhere.items())]
        if lines:
            separator = self._separator(statement)
            self.file.edit(
                "IMP008", (span[1], span[1]), separator + separator.join(lines), group=group
            )

    # Writing statements ---------------------------------------------------------------------------

    def _group(self, name: _Name) -> str:
        return f"import:{self.file.span(name.alias)[0]}"

    def _module_span(self, statement: cst.ImportFrom) -> Span:
        start, _ = self.file.span(statement)
        match = _FROM.match(self.file.text, start)
        assert match is not None
        if statement.module is not None:
            return match.end(), self.file.span(statement.module)[1]
        dots = _DOTS.match(self.file.text, match.end())
        assert dots is not None
        return match.end(), match.end() + len(dots.group().rstrip(" \t\f\\\r\n"))

    def _relative_holds(self, statement: cst.ImportFrom, module: str) -> bool:
        """Whether a relative import, read from the file's new place, leads to `module`."""
        if not statement.relative:
            return False
        home = self.project.modules.get(self.file.module_name)
        if not home:
            return False
        target = dotted_name(statement.module) if statement.module is not None else None
        level = len(statement.relative)
        return absolute(home, self.file.is_package, level, target) == module

    def _write_from(self, statement: cst.ImportFrom, module: str, names: Sequence[_Name]) -> None:
        relative = bool(statement.relative)
        rule = "IMP007" if relative else "IMP001"
        groups: dict[str | None, list[tuple[_Name | None, str]]] = {}
        for name in names:
            if name.unused and self.file.enabled("IMP012"):
                continue
            if name.module is None:
                groups.setdefault(None, []).append((name, self.file.source(name.alias)))
                continue
            if not name.dropped:
                groups.setdefault(name.module, []).append((name, self._item(name)))
            for extra_module, imported, bound in name.extra:
                text = imported if bound == imported else f"{imported} as {bound}"
                items = groups.setdefault(extra_module, [])
                if text not in [t for _, t in items]:
                    items.append((None, text))
        removed = any(n.unused for n in names) and self.file.enabled("IMP012")
        group = self._group(names[0])
        if not groups:
            self._remove_statement(statement, "IMP012" if removed else "IMP005", group)
            return
        if set(groups) == {None} and not removed:
            return
        same_names = len(groups) == 1 and not any(
            n.dropped or n.extra or (n.unused and removed) for n in names
        )
        if same_names:
            (new_module,) = groups
            assert new_module is not None
            if not (relative and self._relative_holds(statement, new_module)):
                self.file.edit(rule, self._module_span(statement), new_module, group=group)
            seen: set[str] = set()
            for name in names:
                text = self._item(name)
                if text in seen:
                    same_names = False
                seen.add(text)
            if same_names:
                for name in names:
                    self.file.edit(
                        "IMP006", self.file.span(name.alias), self._item(name), group=group
                    )
                return
            self.file.edits = [e for e in self.file.edits if e.group != group or e.rule != rule]
        rule = "IMP002" if len(groups) > 1 else ("IMP012" if removed else rule)
        self._split(statement, module, groups, rule, group)

    def _item(self, name: _Name) -> str:
        """The text of one imported name."""
        alias = name.alias
        old = dotted_name(alias.name) or ""
        if alias.asname is None:
            return name.name if name.bound == name.name else f"{name.name} as {name.bound}"
        if name.name == old:
            return self.file.source(alias)
        if name.name == name.bound:
            return name.name
        start, end = self.file.span(alias)
        name_end = self.file.span(alias.name)[1]
        return name.name + self.file.text[name_end:end]

    def _split(
        self,
        statement: cst.ImportFrom,
        module: str,
        groups: dict[str | None, list[tuple[_Name | None, str]]],
        rule: str,
        group: str,
    ) -> None:
        start, end = self.file.span(statement)
        module_start, module_end = self._module_span(statement)
        old_module = self.file.text[module_start:module_end]
        bracketed = statement.lpar is not None
        comments = self._comments(statement) if bracketed else _Comments()
        indent = self._indent(statement)
        step = comments.step or indent + self.tree.module.default_indent
        newline = self.tree.module.default_newline
        lines: list[str] = []
        for new_module, items in groups.items():
            shown = old_module if new_module is None else new_module
            if new_module is not None and self._relative_holds(statement, new_module):
                shown = old_module
            if new_module == "":
                lines += [f"import {text}" for _, text in items]
                continue
            texts: list[str] = []
            for name, text in items:
                if text not in texts:
                    texts.append(text)
            before = {text: comments.before.get(id(n.alias), []) for n, text in items if n}
            after = {text: comments.after.get(id(n.alias), "") for n, text in items if n}
            one_line = f"from {shown} import {', '.join(texts)}"
            if any(before.values()) or any(after.values()):
                body = "".join(
                    "".join(f"{step}{c}{newline}" for c in before.get(t, []))
                    + f"{step}{t},{('  ' + after[t]) if after.get(t) else ''}{newline}"
                    for t in texts
                )
                lines.append(f"from {shown} import ({newline}{body}{indent})")
            elif bracketed and len(texts) > 1 and (comments.step or len(indent + one_line) > 100):
                body = "".join(f"{step}{t},{newline}" for t in texts)
                lines.append(f"from {shown} import ({newline}{body}{indent})")
            else:
                lines.append(one_line)
        separator = self._separator(statement)
        if comments.head:  # a comment beside the opening bracket
            lines[0] = f"{comments.head}{newline}{indent}{lines[0]}" if "\n" in separator else lines[0]
        trailing = self._trailing_comment(statement)
        if trailing and _LINTER_COMMENT.match(trailing):
            lines = [f"{line}  {trailing}" for line in lines[:-1]] + lines[-1:]
        self.file.edit(rule, (start, end), separator.join(lines), group=group)

    def _write_plain(self, statement: cst.Import, names: Sequence[_Name]) -> None:
        removed = {id(n) for n in names if n.unused and self.file.enabled("IMP012")}
        extras: list[str] = []
        for name in names:
            for module, imported, bound in name.extra:
                if module:
                    text = imported if bound == imported else f"{imported} as {bound}"
                    line = f"from {module} import {text}"
                elif imported in self._plain_modules:
                    continue
                else:
                    self._plain_modules.add(imported)
                    line = f"import {imported}"
                if line not in extras:
                    extras.append(line)
        gone = removed | {id(n) for n in names if n.dropped}
        group = self._group(names[0])
        if gone:
            kept = [n for n in names if id(n) not in gone]
            if not kept and not extras:
                self._remove_statement(statement, "IMP012", group)
                return
            lines = [f"import {', '.join(self._plain_item(n) for n in kept)}"] if kept else []
            lines += extras
            rule = "IMP012" if removed else "IMP005"
            text = self._separator(statement).join(lines)
            self.file.edit(rule, self.file.span(statement), text, group=group)
            return
        for name in names:
            if name.module is not None:
                self.file.edit(
                    "IMP003", self.file.span(name.alias), self._plain_item(name), group=group
                )
        if extras:
            separator = self._separator(statement)
            end = self.file.span(statement)[1]
            text = separator + separator.join(extras)
            self.file.edit("IMP004", (end, end), text, group=group)

    def _plain_item(self, name: _Name) -> str:
        if name.module is None:
            return self.file.source(name.alias)
        _, end = self.file.span(name.alias)
        return name.name + self.file.text[self.file.span(name.alias.name)[1] : end]

    def _remove_statement(self, statement: cst.Import | cst.ImportFrom, rule: str, group: str) -> None:
        """Take the statement out; a block that held nothing else keeps a `pass`."""
        line = self.tree.parent(statement)
        start, end = self.file.span(statement)
        text = self.file.text
        if isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1:
            block = self.tree.parent(line)
            if isinstance(block, cst.IndentedBlock) and len(block.body) == 1:
                self.file.edit(rule, (start, end), "pass", group=group)
                return
            line_start = text.rfind("\n", 0, start) + 1
            line_end = text.find("\n", end)
            line_end = len(text) if line_end == -1 else line_end + 1
            rest = text[end:line_end].strip()
            if not rest:
                self.file.edit(rule, (line_start, line_end), "", group=group)
            else:  # a comment on the line stays
                while end < line_end and text[end] in " \t":
                    end += 1
                self.file.edit(rule, (start, end), "", group=group)
            return
        siblings = line.body if isinstance(line, (cst.SimpleStatementLine, cst.SimpleStatementSuite)) else ()
        if len(siblings) < 2:
            self.file.edit(rule, (start, end), "pass", group=group)
        elif siblings[-1] is statement:
            before = self.file.span(siblings[-2])[1]
            self.file.edit(rule, (before, end), "", group=group)
        else:
            after = next(s for p, s in zip(siblings, siblings[1:], strict=False) if p is statement)
            self.file.edit(rule, (start, self.file.span(after)[0]), "", group=group)

    def _indent(self, statement: cst.CSTNode) -> str:
        start, _ = self.file.span(statement)
        line_start = self.file.text.rfind("\n", 0, start) + 1
        lead = self.file.text[line_start:start]
        return lead if not lead.strip() else ""

    def _separator(self, statement: cst.CSTNode) -> str:
        """What stands between two statements here: a new line, or `; ` in a one-line suite."""
        line = self.tree.parent(statement)
        if isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1:
            return self.tree.module.default_newline + self._indent(statement)
        return "; "

    def _trailing_comment(self, statement: cst.CSTNode) -> str:
        line = self.tree.parent(statement)
        if isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1:
            comment = line.trailing_whitespace.comment
            return comment.value if comment is not None else ""
        return ""

    def _comments(self, statement: cst.ImportFrom) -> _Comments:
        """Which comment in a bracketed import belongs to which name."""
        assert not isinstance(statement.names, cst.ImportStar)
        text = self.file.text
        found = _Comments()
        aliases = list(statement.names)
        _, end = self.file.span(statement)
        opening = text.index("(", self._module_span(statement)[1])
        position = opening + 1
        previous: cst.ImportAlias | None = None
        for alias in [*aliases, None]:
            start = self.file.span(alias)[0] if alias is not None else end - 1
            same_line, *own_lines = text[position:start].replace("\r", "").split("\n")
            beside = same_line[same_line.index("#") :].strip() if "#" in same_line else ""
            above = [line.strip() for line in own_lines if line.strip().startswith("#")]
            if previous is None:
                found.head = beside
            else:
                found.after[id(previous)] = beside
            if alias is not None:
                found.before[id(alias)] = above
                if own_lines and not found.step:
                    found.step = own_lines[-1]
                position = self.file.span(alias)[1]
            elif above and previous is not None:  # comments before the closing bracket
                found.before[id(previous)] = found.before.get(id(previous), []) + above
            previous = alias
        return found

    # What a name means ----------------------------------------------------------------------------

    def _binding(self, alias: cst.ImportAlias) -> Binding:
        if self._bindings is None:
            self._bindings = {b.node: b for b in self.file.scopes.bindings() if b.kind == "import"}
        return self._bindings[alias]

    def _bound_otherwise(self, binding: Binding) -> bool:
        """Whether something else than this import binds the name in its scope."""
        for other in binding.scope.bindings[binding.name]:
            if other is not binding and not self._same_import(other, binding):
                return True
        return False

    def _same_import(self, one: Binding, other: Binding) -> bool:
        if one.kind != "import" or other.kind != "import":
            return False
        return self._imported(one) == self._imported(other)

    def _imported(self, binding: Binding) -> str:
        alias = binding.node
        assert isinstance(alias, cst.ImportAlias)
        statement = self.tree.parent(alias)
        name = dotted_name(alias.name) or ""
        if isinstance(statement, cst.ImportFrom):
            return f"{self._absolute(statement)}.{name}"
        return name if alias.asname is not None else name.split(".")[0]

    def _may_rename(self, binding: Binding, new: str, dotted: str) -> bool:
        """Whether the name that an import binds can change with all its uses."""
        if self._bound_otherwise(binding):
            return False
        if self._is_exported(binding) and binding.name not in self.project.names:
            return False  # a name of the table changes in `__all__` too
        if any(binding.name in s.outside for s in self.file.scopes.all):
            return False
        return self._taken.get(new) == dotted or (new not in self._taken and self._is_free(new, dotted))

    def _is_free(self, name: str, dotted: str) -> bool:
        """Whether `name` means nothing in this file yet, or only ever the import of `dotted`."""
        if self._identifiers is None:
            self._identifiers = {}
            for binding in self.file.scopes.bindings():
                self._identifiers.setdefault(binding.name, []).append(binding)
            self._used = {r.name for s in self.file.scopes.all for r in s.references}
        bindings = self._identifiers.get(name)
        if bindings is None:
            return name not in self._used
        for binding in bindings:
            if binding.kind != "import":
                return False
            if binding.node in self.file.unused:
                continue
            imported = self._imported(binding)
            found = self.project.dotted(imported)
            new = found[0].dotted if found is not None and not found[1] else imported
            if new != dotted and imported != dotted:
                return False
        return True

    def _is_exported(self, binding: Binding) -> bool:
        """Whether the module's `__all__` names what this import binds."""
        if binding.scope.kind != "module":
            return False
        if self._exported is None:
            names: set[str] = set()
            for place in self.file.scopes.module.bindings.get("__all__", []):
                statement = self.tree.parent(place.node)
                while statement is not None and not isinstance(
                    statement, (cst.Assign, cst.AugAssign, cst.AnnAssign)
                ):
                    statement = self.tree.parent(statement)
                if statement is not None:
                    for node in self.tree.walk(statement):
                        if isinstance(node, cst.SimpleString):
                            names.add(str(node.evaluated_value))
            self._exported = frozenset(names)
        return binding.name in self._exported

    # Strings --------------------------------------------------------------------------------------

    def _patched_objects(self) -> None:
        """`patch.object(module, "attr")`: both follow the attribute."""
        if not self._module_bindings:
            return
        for (_, bound), (old, name) in list(self._module_bindings.items()):
            del bound
            binding = self._binding(name.alias)
            if name.module is None:
                continue
            for use in self.file.scopes.references(binding.scope, binding.name):
                if use.top is None:
                    continue
                argument = self.tree.parent(use.top)
                call = self.tree.parent(argument) if argument is not None else None
                if not (isinstance(call, cst.Call) and isinstance(argument, cst.Arg)):
                    continue
                if not _called(call, _OBJECT_PATCHERS) or len(call.args) < 2:
                    continue
                literal = call.args[1].value
                if call.args[0] is not argument or not isinstance(literal, cst.SimpleString):
                    continue
                module = ".".join([old, *(t[0] for t in use.trail)])
                self._patched_object(name, use, module, literal)

    def _patched_object(
        self, name: _Name, use: Reference, module: str, literal: cst.SimpleString
    ) -> None:
        attribute = str(literal.evaluated_value)
        home = self.project.module(module)
        if home is None or home.module is None:
            return
        target = self._looked_up(module, attribute)
        if target is None:
            return
        if target.module is None:
            self.file.site("IMP020", self.file.span(literal), target.problem, _TODO_GONE)
            return
        new_module, new_name = _split(target.dotted or "")
        if new_name != attribute:
            self.file.edit("IMP009", self.file.span(literal), _requote(literal, new_name))
        if new_module != home.module:
            end = use.trail[-1][2] if use.trail else use.end
            reason = f"`{attribute}` lives in `{new_module}` now, not in `{home.module}`"
            self.file.site("IMP023", (use.start, end), reason, f"patch it on `{new_module}`")

    def _looked_up(self, module: str, name: str) -> Target | None:
        """Where a patched `module.name` is looked up: in the module itself, if that only imports it."""
        held = self.project.old.modules.get(module)
        home = self.project.module(module)
        if held is not None and home is not None and home.module is not None:
            if name in held.imports and module in self.project.modules:
                imported = held.imports[name]
                target = self.project.dotted(imported)
                new = name
                if target is not None and not target[1] and target[0].dotted:
                    if imported.rpartition(".")[2] == name:  # not imported under another name
                        new = target[0].dotted.rpartition(".")[2]
                return Target(home.module, new)
        if held is None and home is not None and home.module is not None:
            if self.project.target.resolve(home.module, name) is not None:
                return Target(home.module, name)
        return self.project.symbol(module, name)

    def _strings(
        self,
        strings: Iterable[cst.SimpleString | cst.FormattedString | cst.ConcatenatedString],
        joined: Iterable[cst.BinaryOperation],
    ) -> None:
        constants: set[str] = set()
        roots = tuple(f"{r}." for r in self.project.old_roots)
        for node in strings:
            if isinstance(node, cst.SimpleString):
                value = node.evaluated_value
                if not isinstance(value, str):
                    continue
                if value.startswith(roots) and _DOTTED.match(value):
                    self._dotted_string(node, value, constants)
                elif value in self.project.old_roots and "." not in value and value == OLD_ROOT:
                    self._root_string(node)
                elif value.startswith(OLD_ROOT + ".") and _DOTTED.match(value.rstrip(".")):
                    self._prefix_string(node, value)
        for node in strings:
            if isinstance(node, (cst.FormattedString, cst.ConcatenatedString)):
                self._built_string(node, constants)
        for operation in joined:
            if isinstance(operation.operator, (cst.Add, cst.Modulo)):
                for side in (operation.left, operation.right):
                    if isinstance(side, cst.Name) and side.value in constants:
                        self._built(operation)

    def _dotted_string(self, node: cst.SimpleString, value: str, constants: set[str]) -> None:
        parent = self.tree.parent(node)
        if isinstance(parent, cst.ConcatenatedString):
            return
        call = self._call_of(node)
        if call is not None and _called(call, _LOGGERS):
            new = self._new_string(value, patched=False)
            if new is not None and new.dotted == value:
                return
            if new is None and not value.startswith(f"{OLD_ROOT}."):
                return
            if self.project.options.rename_loggers and new is not None and new.module is not None:
                text = _requote(node, _joined(new, value))
                self.file.edit("IMP011", self.file.span(node), text)
            else:
                self.file.site(
                    "IMP011",
                    self.file.span(node),
                    "logger names are kept unless asked for"
                    if new is not None and new.module is not None
                    else "a logger's name that is no module",
                    "run with --rename-loggers, or keep the name on purpose",
                )
            return
        loaded = call is not None and _called(call, _LOADERS)
        patched = call is not None and _called(call, _PATCHERS)
        target = self._new_string(value, patched)
        if target is None:
            if value.startswith(f"{OLD_ROOT}.") and not _looks_like_file(value):
                self._unknown(self.file.span(node), *_split(value))
            return
        if target.module is None:
            self.file.site("IMP020", self.file.span(node), target.problem, _TODO_GONE)
            return
        assigned = self._assigned_name(node)
        if assigned:
            constants.add(assigned)
        new_value = target.dotted or ""
        if new_value == value:
            return
        self._carried(self.file.span(node), target)
        rule = "IMP009" if loaded or patched else "IMP010"
        self.file.edit(rule, self.file.span(node), _requote(node, new_value))

    def _root_string(self, node: cst.SimpleString) -> None:
        """The bare name: a module only where it is loaded; the product's name anywhere else."""
        call = self._call_of(node)
        if call is not None and _called(call, _LOADERS - {"setattr", "delattr"}):
            self.file.edit("IMP009", self.file.span(node), _requote(node, "maxtext"))

    def _prefix_string(self, node: cst.SimpleString, value: str) -> None:
        """`"MaxText.layers."`: the first half of a name that is put together."""
        self._built(node)

    def _new_string(self, value: str, patched: bool) -> Target | None:
        """What a dotted string means now, with the attributes behind the symbol in `name`."""
        if patched:
            looked_up = self._patched_name(value)
            if looked_up is not None:
                return looked_up
        found = self.project.dotted(value)
        if found is None:
            return None
        target, rest = found
        if target.name is None and rest and target.module is not None:
            return None  # its last part names nothing that is known
        return _with_rest(target, rest)

    def _patched_name(self, value: str) -> Target | None:
        """A patched `module.name[.attribute]`: the name is replaced in the module that is named."""
        parts = value.split(".")
        for cut in range(len(parts) - 1, 0, -1):
            module = ".".join(parts[:cut])
            if self.project.module(module) is not None:
                target = self._looked_up(module, parts[cut])
                return None if target is None else _with_rest(target, ".".join(parts[cut + 1 :]))
        return None

    def _built_string(
        self, node: cst.FormattedString | cst.ConcatenatedString, constants: set[str]
    ) -> None:
        if isinstance(self.tree.parent(node), cst.ConcatenatedString):
            return
        call = self._call_of(node)
        if isinstance(node, cst.FormattedString) and call is not None and _called(call, _IMPORTERS):
            self._built(node)
            return
        parts = list(self.tree.walk(node))
        for part, following in zip(parts, [*parts[1:], None], strict=True):
            if isinstance(part, cst.FormattedStringText):
                cut = isinstance(following, cst.FormattedStringExpression)
                if cut and _CUT_NAME.search(part.value):
                    self._built(node)
                    return
            elif isinstance(part, cst.FormattedStringExpression):
                expression = part.expression
                if isinstance(expression, cst.Name) and expression.value in constants:
                    self._built(node)
                    return
        if isinstance(node, cst.ConcatenatedString):
            value = node.evaluated_value
            if isinstance(value, str) and value.startswith(f"{OLD_ROOT}.") and _DOTTED.match(value):
                self._built(node)

    def _built(self, node: cst.CSTNode) -> None:
        self.file.site(
            "IMP021",
            self.file.span(node),
            "the name is put together at run time, so its new form cannot be proven",
            "write the new name by hand",
        )

    def _call_of(self, node: cst.CSTNode) -> cst.Call | None:
        argument = self.tree.parent(node)
        call = self.tree.parent(argument) if isinstance(argument, cst.Arg) else None
        return call if isinstance(call, cst.Call) and call.args[:1] == [argument] or (
            isinstance(call, cst.Call) and call.args and call.args[0] is argument
        ) else None

    def _assigned_name(self, node: cst.CSTNode) -> str:
        parent = self.tree.parent(node)
        if isinstance(parent, cst.Assign) and len(parent.targets) == 1:
            target = parent.targets[0].target
            return target.value if isinstance(target, cst.Name) else ""
        if isinstance(parent, cst.AnnAssign) and isinstance(parent.target, cst.Name):
            return parent.target.value
        return ""


@dataclass(slots=True)
class _Comments:
    """Comments inside a bracketed import.

    Attributes:
        head: beside the opening bracket.
        before: id of an alias → comment lines above it.
        after: id of an alias → comment beside it.
        step: indentation of the names, "" if they do not stand on lines of their own.
    """

    head: str = ""
    before: dict[int, list[str]] = field(default_factory=dict)
    after: dict[int, str] = field(default_factory=dict)
    step: str = ""


_TODO_GONE = "decide what replaces it"
_TODO_CARRIED = "find upstream's replacement before joining with upstream"


def _split(dotted: str) -> tuple[str, str]:
    module, _, name = dotted.rpartition(".")
    return module, name


def _with_rest(target: Target, rest: str) -> Target:
    """A target with attributes behind it."""
    if target.module is None or not rest:
        return target
    return replace(target, name=f"{target.name}.{rest}" if target.name else rest)


def _joined(target: Target, default: str) -> str:
    return target.dotted or default


def _looks_like_file(value: str) -> bool:
    return bool(re.search(r"\.(?:py|sh|yml|yaml|md|json|txt|ipynb|toml|whl|log|csv)\Z", value))


def _requote(node: cst.SimpleString, value: str) -> str:
    return f"{node.prefix}{node.quote}{value}{node.quote}"


def _called(call: cst.Call, names: frozenset[str]) -> bool:
    dotted = dotted_name(call.func) or ""
    parts = dotted.split(".")
    return parts[-1] in names or ".".join(parts[-2:]) in names
