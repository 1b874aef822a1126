"""IMP: imports and what they bind, dotted names in code and in strings.

The unit of work is a binding: an import binds a name to an old module or to a symbol of one; its new
home follows from the map and from where the checkout's own files go, and every use of the name is
rewritten with it. Statements keep their place, comments, brackets and `as` names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, zip_longest

import libcst as cst

from codemods.engine.context import PythonFile
from codemods.engine.project import NEW_ROOT, OLD_ROOT, Target
from codemods.engine.scopes import Binding, Reference, Scope, dotted_name
from codemods.engine.tree import Span
from codemods.maps.symbols import absolute
from codemods.rules.base import Example, Rule
from codemods.rules.renames import KINDS

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
            Example('ENTRY = "MaxText.train"\n', 'ENTRY = "maxtext.trainers.pre_train.train"\n'),
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
    Rule(
        "IMP024",
        "report",
        "branches that choose between the layouts, which import the same once the old one is gone",
        examples=(
            Example(
                "try:\n  from maxtext.utils import max_utils\n"
                "except ImportError:\n  from MaxText import max_utils\n",
                "try:\n  from maxtext.utils import max_utils\n"
                "except ImportError:\n  from maxtext.utils import max_utils\n",
                listed=("from MaxText import max_utils",),
            ),
        ),
    ),
)

# In front of a dotted name that is imported from the repository's root.
_SOURCE_PREFIX = "src."
_LINTER_COMMENT = re.compile(r"#\s*(?:noqa|pylint:|type:|isort:|pyright:|mypy:|ruff:|pytype:)")
_DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+\Z")
# A name of the old package in the literal part of an f-string that runs into what is filled in.
_CUT_NAME = re.compile(rf"(?<![\w/.]){OLD_ROOT}\.[\w.]*\Z")
# The first part of an old name, up to a dot; an old name with a place to fill in; a pattern of old names.
_PREFIX = re.compile(rf"{OLD_ROOT}\.(?:[A-Za-z_]\w*\.)*\Z")
_TEMPLATE = re.compile(rf"(?<![\w/.-]){OLD_ROOT}\.(?:\w+\.)*\w*(?:%[(\w]|\{{)")
_PATTERN = re.compile(rf"(?<![\w/.-]){OLD_ROOT}\\\.")
# What makes a name before it go on: `.layers`, `:main`.
_NAME_GOES_ON = re.compile(r"[.:](?!\s)")
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
_GIVE_MODULES = frozenset({"import_module", "importorskip"})
_FIRST_KEYWORDS = frozenset({"target", "name", "modname", "mod_name", "in_dict"})
# Functions by which a module looks up its own names.
_SELF_LOOKUPS = frozenset({"globals", "locals", "vars", "eval", "exec"})
_IDENTIFIER = re.compile(r"[^\W\d]\w*")


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
        self._exported: tuple[frozenset[str], bool] | None = None
        self._bindings: dict[cst.CSTNode, Binding] | None = None
        self._module_bindings: dict[tuple[int, str], tuple[str, _Name]] = {}
        self._dynamic_names: frozenset[str] | None = None
        self._gone: set[str] = set()
        self._plain_modules: set[tuple[int, str]] = (
            set()
        )  # (scope, module) of the output's plain imports
        self._loaded: list[tuple[int, str]] | None = None  # (end of the statement, module)
        self._seen_strings: set[int] = set()  # those that a call has seen to

    def run(self) -> None:
        statements: list[cst.Import | cst.ImportFrom] = []
        strings: list[cst.SimpleString | cst.FormattedString | cst.ConcatenatedString] = []
        joined: list[cst.BinaryOperation] = []
        calls: list[cst.Call] = []
        for node in self.tree.walk():
            kind = type(node)
            if kind is cst.Import or kind is cst.ImportFrom:
                statements.append(node)  # type: ignore[arg-type]
            elif kind in (cst.SimpleString, cst.FormattedString, cst.ConcatenatedString):
                strings.append(node)  # type: ignore[arg-type]
            elif kind is cst.BinaryOperation:
                joined.append(node)  # type: ignore[arg-type]
            elif kind is cst.Call:
                calls.append(node)  # type: ignore[arg-type]
        for statement in statements:
            if isinstance(statement, cst.ImportFrom):
                self._from(statement)
            else:
                self._plain(statement)
        self._same_alternatives()
        self._patched_objects()
        self._strings(strings, joined, calls)

    # Statements -----------------------------------------------------------------------------------

    def _from(self, statement: cst.ImportFrom) -> None:
        module = self._absolute(statement)
        if statement.relative and not module and statement.module is not None:
            named = dotted_name(statement.module) or ""
            if self.file.module_name and named.split(".")[0] == OLD_ROOT:
                reason = "a relative import that leaves the tree"
                self.file.site(
                    "IMP020", self.file.span(statement), reason, "find out what it should import"
                )
        if module.startswith(f"{_SOURCE_PREFIX}{OLD_ROOT}"):
            self._through_source(statement, module)
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

    def _through_source(self, node: cst.CSTNode, name: str) -> None:
        """`from src.MaxText import …`: a second copy of the package, if `src` is no package of the checkout."""
        if name.split(".")[1] == OLD_ROOT:
            reason = f"`{name}` is imported through the folder `src`, as another module than `{name[4:]}`"
            self.file.site("IMP020", self.file.span(node), reason, "import it from `maxtext`")

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
                self._as_value(use, old, new)
                continue
            if self._follow(use, name, old, new, several):
                moved_away += 1
        # An import that only served what has moved away would bind an unused name.
        kept = several or binding.scope.kind == "class" or self._is_exported(binding)
        if uses and moved_away == len(uses) and not kept:
            name.dropped = True

    def _as_value(self, use: Reference, old: str, new: str, depth: int = 0) -> None:
        """A module that is assigned or passed on: what is used of it must still be in it."""
        if use.top is None or use.context != "load":
            return
        parent = self.tree.parent(use.top)
        alias = self._assigned_name(use.top)
        if alias and depth < 5:
            home = use.scope.home(alias)
            for further in self.file.scopes.references(home, alias) if home is not None else ():
                if further.trail:
                    self._still_in(further, old, new)
                else:
                    self._as_value(further, old, new, depth + 1)
            return
        if not self._scattered(old, new):
            return
        if isinstance(parent, (cst.BooleanOperation, cst.Comparison, cst.UnaryOperation, cst.If)):
            return  # asked whether it is there
        if isinstance(parent, cst.Arg):
            call = self.tree.parent(parent)
            if isinstance(call, cst.Call) and _called(call, _OBJECT_PATCHERS) and _literal(call, 1):
                if (
                    use.node is None
                ):  # a loaded module; one that an import binds is seen to by its name
                    literal = call.args[1].value
                    named = (_text(literal) or "", *self.file.span(literal))
                    self._still_in(replace(use, trail=(named,)), old, new)
                return
        reason = (
            f"the names of `{old}` went to several modules, and which are used of it cannot be seen"
        )
        self.file.site("IMP023", (use.start, use.end), reason, f"see that `{new}` has what is used")

    def _still_in(self, use: Reference, old: str, new: str) -> None:
        """List a use `value.name`, where the value is the module `new`, if it has no such name any more."""
        names = [t[0] for t in use.trail]
        found = self.project.dotted(".".join([old, *names]))
        if found is None:
            return
        target, rest = found
        names = names[: len(names) - (rest.count(".") + 1 if rest else 0)]
        whole = (use.start, use.trail[max(len(names), 1) - 1][2])
        if target.module is None:
            self.file.site("IMP020", whole, target.problem, _TODO_GONE)
            return
        there = target.dotted == ".".join([new, *names]) and self._is_loaded(
            target.module, new, use
        )
        if names and not there and not self._still_there(new, names, target):
            reason = f"`{use.dotted}` now is `{target.dotted}`, and `{use.name}` is `{new}`"
            self.file.site("IMP023", whole, reason, "import the new module by hand")

    def _loaded_value(self, node: cst.BaseExpression, old: str) -> None:
        """The module that a call gives (`import_module("MaxText.layers")`): what is used of it."""
        home = self.project.module(old)
        parent = self.tree.parent(node)
        if home is None or home.module is None or isinstance(parent, cst.Expr):
            return
        trail: list[tuple[str, int, int]] = []
        top = node
        while isinstance(parent, cst.Attribute):
            trail.append((parent.attr.value, *self.file.span(parent.attr)))
            top, parent = parent, self.tree.parent(parent)
        start, end = self.file.span(node)
        scope = self.file.scopes.scope_of(node)
        use = Reference(self.file.source(node), start, end, tuple(trail), scope, None, top)
        if trail:
            self._still_in(use, old, home.module)
        else:
            self._as_value(use, old, home.module)

    def _scattered(self, old: str, new: str) -> bool:
        """Whether a module was split, or is a package whose modules went elsewhere."""
        entry = self.project.map.modules.get(old)
        if entry is not None and entry.status == "split":
            return True
        for child in self.project.old.children(old):
            home = self.project.module(f"{old}.{child}")
            if home is not None and home.module != f"{new}.{child}":
                return True
        return False

    def _rename_use(self, use: Reference, name: _Name) -> None:
        self.file.edit("IMP006", (use.start, use.end), name.bound, group=self._group(name))

    def _follow(self, use: Reference, name: _Name, old: str, new: str, several: bool) -> bool:
        """Rewrite one `module.attr` use. Returns whether it no longer goes through the module."""
        names = [t[0] for t in use.trail]
        found = self.project.dotted(".".join([old, *names]))
        if found is None:
            self._rename_use(use, name)
            return False
        target, rest = found
        covered = len(names) - (rest.count(".") + 1 if rest else 0)
        end = use.trail[covered - 1][2] if covered else use.end
        whole = (use.start, end)
        if target.module is None:
            self.file.site("IMP020", whole, target.problem, _TODO_GONE)
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
            self._rename_use(use, name)
            return False
        if self._still_there(new, names[:covered], target):
            self._rename_use(use, name)
            return False
        dotted = target.dotted or ""
        if target.name is None and covered == len(names):
            self._as_value(use, ".".join([old, *names]), target.module)
        chosen = self.file.renamed.get(use.trail[covered - 1][1])
        if chosen is not None and target.name is not None:
            dotted = f"{target.module}.{chosen}"
        if dotted.startswith(f"{new}.") and self._is_loaded(target.module, new, use):
            text = name.bound + dotted[len(new) :]
            self.file.edit("IMP006", whole, text, group=self._group(name))
            return False
        if several:
            reason = f"`{use.dotted}` now is `{dotted}`, but `{use.name}` is bound in more than one way here"
            self.file.site("IMP023", whole, reason, "import the new module by hand")
            return False
        if dotted == new:
            self._rename_use(use, name)
            return False
        home = target.module
        parent, _, leaf = home.rpartition(".")
        if not parent:
            self.file.edit("IMP005", whole, dotted, group=self._group(name))
            self._need(name, "", home, home)
            return True
        local = self._local_name(parent, leaf, use.scope)
        self._need(name, parent, leaf, local)
        text = local if target.name is None else f"{local}.{dotted[len(home) + 1:]}"
        self.file.edit("IMP005", whole, text, group=self._group(name))
        return True

    def _is_loaded(self, module: str, package: str, use: Reference) -> bool:
        """Whether `module` is bound in its package once `package`, or an import above the use, is run."""
        if self._loaded is None:
            self._loaded = [
                (self.file.span(statement)[1], new)
                for line in self.tree.module.body
                for statement in (line.body if isinstance(line, cst.SimpleStatementLine) else ())
                if isinstance(statement, (cst.Import, cst.ImportFrom))
                for new in self._loaded_by(statement)
            ]
        return (
            module == package
            or module in self.project.loads(package)
            or any(end <= use.start and new == module for end, new in self._loaded)
        )

    def _loaded_by(self, statement: cst.Import | cst.ImportFrom) -> set[str]:
        """The new modules that a statement names, with their packages."""
        if isinstance(statement.names, cst.ImportStar):
            return set()
        found: set[str] = set()
        for alias in statement.names:
            imported = self._imported_as(alias)
            resolved = self.project.dotted(imported)
            new = resolved[0].module if resolved is not None else imported
            while new:
                found.add(new)
                new = new.rpartition(".")[0]
        return found

    def _still_there(self, new: str, names: list[str], target: Target) -> bool:
        """Whether the module's new home still hands on the same thing by the same names."""
        tree = self.project.target
        if tree.modules.get(new) is None or target.module is None:
            return False
        found: tuple[str, str] | str | None = new
        for name in names:
            if not isinstance(found, str):
                return False
            held = tree.modules.get(found)
            lazy = held is not None and held.dynamic and name in (held.exported or ())
            if lazy and not tree.is_module(f"{found}.{name}"):
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
            home = scope.home(candidate)
            if home is not None and home.kind == "function":
                continue  # bound by the function's own import, which may not have run yet
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
            if old.startswith(f"{_SOURCE_PREFIX}{OLD_ROOT}"):
                self._through_source(alias, old)
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
        if any(not self._is_plain(other) for other in binding.scope.bindings[old_root]):
            reason = f"`{old_root}` is bound in more than one way here"
            self.file.site("IMP023", self.file.span(name.alias), reason, f"import `{new}` by hand")
            for use in uses:
                end = use.trail[-1][2] if use.trail else use.end
                self.file.site("IMP023", (use.start, end), reason, "rename it first")
            return False
        if new_root != old_root and not self._is_free(new_root, new_root):
            return self._plain_uses_apart(name, uses, new)
        name.module, name.name, name.bound = "", new, new_root
        self._taken[new_root] = new_root
        self._plain_modules.add((id(binding.scope), new))
        key = (id(binding.scope), old_root)
        others = [b.node for b in binding.scope.bindings[old_root] if b.kind == "import"]
        if self._for_types(name.alias) and not all(map(self._for_types, others)):
            return True  # the uses belong to an import that runs
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

    def _for_types(self, node: cst.CSTNode) -> bool:
        """Whether an import stands below `if TYPE_CHECKING:`."""
        return any(
            isinstance(n, cst.If) and (dotted_name(n.test) or "").endswith("TYPE_CHECKING")
            for n in self.tree.ancestors(node)
        )

    def _is_plain(self, binding: Binding) -> bool:
        """Whether a binding of a package's name is `import a.b`, or a target that is rewritten as a use."""
        if isinstance(binding.node, cst.ImportAlias):
            statement = self.tree.parent(binding.node)
            return binding.node.asname is None and isinstance(statement, cst.Import)
        return binding.kind in ("assignment", "delete", "other")

    def _plain_uses_apart(self, name: _Name, uses: Sequence[Reference], new: str) -> bool:
        """The new package's name is taken in this file: bind the modules that the uses need instead."""
        found = [self.project.dotted(use.dotted) for use in uses]
        modules = [f[0].module if f is not None else None for f in found]
        if any(m is None or "." not in m for m in modules) or "." not in new:
            reason = f"`{new.split('.')[0]}` already means something else in this file"
            self.file.site(
                "IMP023", self.file.span(name.alias), reason, f"rename it, then import `{new}`"
            )
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
            for known in range(parts - 1, -1, -1):
                home = self.project.module(".".join(names[: known + 1]))
                if home is not None and home.module is not None:
                    parts, target = known, home
                    whole = (use.start, use.trail[parts - 1][2] if parts else use.end)
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
        if target.name is None and parts == len(use.trail):
            self._as_value(use, use.dotted, target.module)
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
        submodules = self.project.old.children(module)  # those that are loaded are bound as well
        used: dict[str, list[Reference]] = {}
        for scope in self.file.scopes.all:
            for reference in scope.references:
                bound = reference.name in public or reference.name in submodules
                if bound and scope.home(reference.name, reference.early) is None:
                    used.setdefault(reference.name, []).append(reference)
        elsewhere: dict[str, list[str]] = {}
        renames: list[tuple[Reference, str]] = []
        problems: list[str] = []
        handed_on: set[str] = set()
        if "__all__" in self.file.scopes.module.bindings:
            exported, whole = self._all_names()
            handed_on = public & exported if whole else public
        elif self.file.is_package:
            handed_on = public
        for name in sorted(handed_on | used.keys()):
            symbol = self.project.symbol(module, name)
            if symbol is None or symbol.module is None:
                problems.append(symbol.problem if symbol else f"`{name}` is unknown")
            elif symbol.name is None and (away := self._left_behind(module, name, symbol, used)):
                problems.append(away)
            elif self._star_binds(module, target.module, name, symbol):
                continue
            elif symbol.module != target.module or symbol.name != name:
                if name in handed_on:
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
            self.file.edit("IMP008", self._module_span(statement), target.module, group=group)
        for use, new in renames:
            self.file.edit("IMP008", (use.start, use.end), new, group=group)
        lines = [f"from {m} import {', '.join(sorted(ns))}" for m, ns in sorted(elsewhere.items())]
        if lines:
            separator = self._separator(statement)
            self.file.edit(
                "IMP008", (span[1], span[1]), separator + separator.join(lines), group=group
            )

    def _star_binds(self, module: str, new: str, name: str, symbol: Target) -> bool:
        """Whether a star import of the module at its new place binds `name` to the same thing."""
        if new in self.project.target.modules:
            bound = name in self.project.target.public(new)
            return bound and self._still_there(new, [name], symbol)
        held = self.project.old.modules.get(module)
        if held is None or name not in self.project.old.public(module):
            return False
        if name in held.imports:  # a module of the checkout's own goes on importing it
            return symbol.name is not None and held.imports[name].endswith(f".{symbol.name}")
        for star in held.stars:
            home = self.project.module(star)
            if (
                name in self.project.old.public(star)
                and home is not None
                and home.module is not None
            ):
                return self._star_binds(star, home.module, name, symbol)
        return False

    def _left_behind(
        self, module: str, name: str, home: Target, used: dict[str, list[Reference]]
    ) -> str:
        """A use of a module that a star import binds, whose attribute is not in the module any more."""
        for use in used.get(name, ()):
            found = self.project.dotted(".".join([module, use.dotted]))
            if found is None or not use.trail or home.module is None:
                continue
            target, rest = found
            names = [t[0] for t in use.trail]
            covered = len(names) - (rest.count(".") + 1 if rest else 0)
            if target.module is None:
                return target.problem
            if (target.dotted or "").startswith(home.module) or not covered:
                continue
            if not self._still_there(home.module, names[:covered], target):
                return f"`{use.dotted}` now is `{target.dotted}`"
        return ""

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
        holds = not relative or self._relative_holds(statement, module)
        groups: dict[str | None, list[tuple[_Name | None, str]]] = {}
        for name in names:
            if name.unused and self.file.enabled("IMP012"):
                continue
            stays = holds and name.module == module and not name.dropped and not name.extra
            if name.module is None or (stays and self._item(name) == self.file.source(name.alias)):
                groups.setdefault(None, []).append((name, self.file.source(name.alias)))
                continue
            if not name.dropped:
                groups.setdefault(name.module, []).append((name, self._item(name)))
            for extra_module, imported, bound in name.extra:
                text = imported if bound == imported else f"{imported} as {bound}"
                items = groups.setdefault(extra_module, [])
                if text not in [t for _, t in items]:
                    first = name.dropped and name.extra[0] == (extra_module, imported, bound)
                    items.append((name if first else None, text))  # its comments go along
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
        _, end = self.file.span(alias)
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
        # A linter's comment beside the opening bracket is meant for all names.
        linted = bool(_LINTER_COMMENT.match(comments.head))
        for new_module, items in groups.items():
            shown = old_module if new_module is None else new_module
            if new_module is not None and self._relative_holds(statement, new_module):
                shown = old_module
            if new_module == "":
                lines += [f"import {text}" for _, text in items]
                continue
            texts = list(dict.fromkeys(text for _, text in items))
            before: dict[str, list[str]] = {}
            after: dict[str, str] = {}
            below: dict[str, list[str]] = {}
            for name, text in items:  # the comments of names that become one name stay, all of them
                if name is not None:
                    key = id(name.alias)
                    before.setdefault(text, []).extend(comments.before.get(key, []))
                    below.setdefault(text, []).extend(comments.below.get(key, []))
                    if beside := comments.after.get(key):
                        after[text] = f"{after[text]}  {beside}" if text in after else beside
            one_line = f"from {shown} import {', '.join(texts)}"
            beside_bracket = comments.head if linted or not lines else ""
            if beside_bracket or any((*before.values(), *after.values(), *below.values())):
                body = "".join(
                    "".join(f"{step}{c}{newline}" for c in before.get(t, ()))
                    + f"{step}{t},{('  ' + after[t]) if t in after else ''}{newline}"
                    + "".join(f"{step}{c}{newline}" for c in below.get(t, ()))
                    for t in texts
                )
                opening = f"(  {beside_bracket}" if beside_bracket else "("
                lines.append(f"from {shown} import {opening}{newline}{body}{indent})")
            elif bracketed and len(texts) > 1 and (comments.step or len(indent + one_line) > 100):
                body = "".join(f"{step}{t},{newline}" for t in texts)
                lines.append(f"from {shown} import ({newline}{body}{indent})")
            else:
                lines.append(one_line)
        separator = self._separator(statement)
        placed = {id(n.alias) for items in groups.values() for n, _ in items if n is not None}
        if "\n" in separator:  # comments on names that are gone stay above the statement
            lines[:0] = comments.without(placed)
        trailing = self._trailing_comment(statement)
        if trailing and _LINTER_COMMENT.match(trailing):
            lines = [f"{line}  {trailing}" for line in lines[:-1]] + lines[-1:]
        self.file.edit(rule, (start, end), separator.join(lines), group=group)

    def _write_plain(self, statement: cst.Import, names: Sequence[_Name]) -> None:
        removed = {id(n) for n in names if n.unused and self.file.enabled("IMP012")}
        extras: list[str] = []
        for name in names:
            scope = self._binding(name.alias).scope
            for module, imported, bound in name.extra:
                if module:
                    text = imported if bound == imported else f"{imported} as {bound}"
                    line = f"from {module} import {text}"
                elif {
                    (id(s), imported) for s in (scope, self.file.scopes.module)
                } & self._plain_modules:
                    continue
                else:
                    self._plain_modules.add((id(scope), imported))
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

    def _remove_statement(
        self, statement: cst.Import | cst.ImportFrom, rule: str, group: str
    ) -> None:
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
        siblings = (
            line.body
            if isinstance(line, (cst.SimpleStatementLine, cst.SimpleStatementSuite))
            else ()
        )
        if len(siblings) < 2:
            self.file.edit(rule, (start, end), "pass", group=group)
        elif siblings[-1] is statement:
            before = self.file.span(siblings[-2])[1]
            self.file.edit(rule, (before, end), "", group=group)
        else:
            after = next(s for p, s in pairwise(siblings) if p is statement)
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
                found.below[id(previous)] = above
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
        imported = self._imported_as(alias)
        if alias.asname is None and isinstance(self.tree.parent(alias), cst.Import):
            return imported.split(".")[0]
        return imported

    def _imported_as(self, alias: cst.ImportAlias) -> str:
        """The absolute dotted name that an alias imports."""
        statement = self.tree.parent(alias)
        name = dotted_name(alias.name) or ""
        return (
            f"{self._absolute(statement)}.{name}" if isinstance(statement, cst.ImportFrom) else name
        )

    def _may_rename(self, binding: Binding, new: str, dotted: str) -> bool:
        """Whether the name that an import binds can change with all its uses."""
        if self._bound_otherwise(binding) or binding.scope.kind == "class":
            return False  # a class's name is an attribute: its uses are not to be seen
        if binding.scope.kind == "module" and binding.name in self._looked_up_names():
            return False
        if self._is_exported(binding) and binding.name not in self.project.names:
            return False  # a name of the table changes in `__all__` too
        if any(binding.name in s.outside for s in self.file.scopes.all):
            return False
        return self._taken.get(new) == dotted or (
            new not in self._taken and self._is_free(new, dotted)
        )

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
            if dotted not in (imported, self._new_name(imported)):
                return False
        return True

    def _is_exported(self, binding: Binding) -> bool:
        """Whether the module's `__all__` names what this import binds."""
        return binding.scope.kind == "module" and binding.name in self._all_names()[0]

    def _all_names(self) -> tuple[frozenset[str], bool]:
        """The names in the module's `__all__`, and whether they are all: it is put together of literals."""
        if self._exported is None:
            names: set[str] = set()
            whole = True
            for use in self.file.scopes.references(self.file.scopes.module, "__all__"):
                # `__all__ = […]`, `__all__ += […]`, `__all__.append(…)`
                statement: cst.CSTNode | None = use.top
                while statement is not None and not isinstance(
                    statement, (cst.Assign, cst.AugAssign, cst.AnnAssign, cst.Expr)
                ):
                    statement = self.tree.parent(statement)
                if isinstance(statement, cst.AnnAssign):
                    statement = statement.value
                if statement is not None:
                    names |= self._strings_in(statement)
                    whole &= not any(
                        isinstance(part, (cst.Name, cst.Comparison, cst.StarredElement))
                        and part is not use.node
                        and not (isinstance(part, cst.Name) and part.value in ("append", "extend"))
                        for part in self.tree.walk(statement)
                    )
            self._exported = frozenset(names), whole
        return self._exported

    def _strings_in(self, node: cst.CSTNode) -> set[str]:
        return {
            value
            for part in self.tree.walk(node)
            if isinstance(part, cst.SimpleString) and isinstance(value := part.evaluated_value, str)
        }

    def _looked_up_names(self) -> frozenset[str]:
        """Names that the module may look up in itself by a string: `globals()["name"]`, `eval("name")`."""
        if self._dynamic_names is None:
            names: set[str] = set()
            for scope in self.file.scopes.all:
                for use in scope.references:
                    if use.top is None or use.trail or use.name not in _SELF_LOOKUPS:
                        continue
                    node: cst.CSTNode | None = self.tree.parent(use.top)
                    while isinstance(
                        node, (cst.Call, cst.Attribute, cst.Subscript, cst.Comparison)
                    ):
                        for string in self._strings_in(node):
                            names |= set(_IDENTIFIER.findall(string))
                        node = self.tree.parent(node)
            self._dynamic_names = frozenset(names)
        return self._dynamic_names

    def _same_alternatives(self) -> None:
        """List branches of a try or an if that import the same thing once the old layout is gone."""
        for scope in self.file.scopes.all:
            for places in scope.bindings.values():
                imports = [
                    b for b in places if b.kind == "import" and b.node not in self.file.unused
                ]
                if len(imports) > 1:
                    self._alternatives([(b, self._imported(b)) for b in imports])

    def _alternatives(self, imports: Sequence[tuple[Binding, str]]) -> None:
        for binding, old in imports:
            new = self._new_name(old)
            if old == new or old.split(".")[0] not in self.project.old_roots:
                continue
            around = [
                n for n in self.tree.ancestors(binding.node) if isinstance(n, (cst.Try, cst.If))
            ]
            for other, imported in imports:
                if other is binding or imported != new:
                    continue
                if any(a in around for a in self.tree.ancestors(other.node)):
                    reason = f"the other branch imports `{new}` already, so both do the same now"
                    self.file.site(
                        "IMP024", self.file.span(binding.node), reason, "keep one of them"
                    )
                    break

    def _new_name(self, imported: str) -> str:
        found = self.project.dotted(imported)
        return (found[0].dotted or imported) if found is not None and not found[1] else imported

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
        if attribute in KINDS and attribute in self.project.names:
            reason = f"replaces `{attribute}`, which becomes one class with the others"
            self.file.site("REN003", self.file.span(literal), reason, "patch what replaces it")
        if new_name != attribute:
            self.file.edit("IMP009", self.file.span(literal), _requote(literal, new_name))
        if new_module != home.module:
            end = use.trail[-1][2] if use.trail else use.end
            reason = f"`{attribute}` lives in `{new_module}` now, not in `{home.module}`"
            self.file.site("IMP023", (use.start, end), reason, f"patch it on `{new_module}`")

    def _patched_kind(self, node: cst.SimpleString, kind: str) -> None:
        """List a patch of one of the layer classes that become one."""
        reason = f"patches `{kind}`, which is `{KINDS[kind]}` until the classes are merged"
        self.file.site("REN003", self.file.span(node), reason, "patch what replaces it")

    def _looked_up(self, module: str, name: str) -> Target | None:
        """Where a patched `module.name` is looked up: in the module itself, if that only imports it."""
        held = self.project.old.modules.get(module)
        home = self.project.module(module)
        if home is None or home.module is None:
            return self.project.symbol(module, name)
        if held is not None and name in held.imports and module in self.project.modules:
            imported = held.imports[name]
            kept = imported.rpartition(".")[2] != name  # imported under another name
            return Target(
                home.module, name if kept else self._new_name(imported).rpartition(".")[2]
            )
        if held is None and self.project.target.resolve(home.module, name) is not None:
            return Target(home.module, name)
        return self.project.symbol(module, name)

    def _strings(
        self,
        strings: Iterable[cst.SimpleString | cst.FormattedString | cst.ConcatenatedString],
        joined: Iterable[cst.BinaryOperation],
        calls: Iterable[cst.Call],
    ) -> None:
        constants = _Constants()
        roots = tuple(f"{r}." for r in self.project.old_roots)
        for call in calls:
            self._import_call(call)
            name = _text(call.args[0].value) if call.args else None
            if name is not None and _called(call, _GIVE_MODULES):
                self._loaded_value(call, name)
        for node in strings:
            if not isinstance(node, cst.SimpleString) or id(node) in self._seen_strings:
                continue
            value = node.evaluated_value
            if not isinstance(value, str):
                continue
            if value.startswith(roots) and _DOTTED.match(value):
                self._dotted_string(node, value, constants)
                subscript = self._subscript_of(node)
                if subscript is not None and dotted_name(subscript.value) == "sys.modules":
                    self._loaded_value(subscript, value)
            elif value.startswith(f"{_SOURCE_PREFIX}{OLD_ROOT}.") and _DOTTED.match(value):
                self._with_prefix(node, value)
            elif value == OLD_ROOT:
                self._root_string(node)
                constants.roots.add(self._assigned_name(node))
            elif isinstance(self.tree.parent(node), cst.ConcatenatedString):
                continue  # seen as a whole
            elif _PREFIX.match(value) or _TEMPLATE.search(value) or _PATTERN.search(value):
                self._built(node)
        for node in strings:
            if isinstance(node, (cst.FormattedString, cst.ConcatenatedString)):
                self._built_string(node, constants)
        for operation in joined:
            self._built_operation(operation, constants)
        for call in calls:
            self._built_call(call, constants)

    def _built_operation(self, operation: cst.BinaryOperation, constants: _Constants) -> None:
        """`"MaxText" + ".layers"`, `NAME + x`, `"%s.layers" % NAME`."""
        left, right = operation.left, operation.right
        if isinstance(operation.operator, cst.Modulo):
            filled = [e.value for e in right.elements] if isinstance(right, cst.Tuple) else [right]
            template = _text(left) or ""
            if constants.dotted(left) or (
                re.search(r"%s[.:]\w", template) and any(constants.any(n) for n in filled)
            ):
                self._built(operation)
        elif isinstance(operation.operator, cst.Add):
            if isinstance(left, cst.BinaryOperation) and isinstance(left.operator, cst.Add):
                left = left.right  # the operand before
            before, after = _text(left), _text(right)
            if after is None:
                goes_on = constants.dotted(left)
            else:
                goes_on = bool(_NAME_GOES_ON.match(after)) and (
                    constants.any(left) or before == OLD_ROOT
                )
            if goes_on or (constants.any(right) and (before is None or before.endswith("."))):
                self._built(operation)

    def _built_call(self, call: cst.Call, constants: _Constants) -> None:
        """`".".join(["MaxText", …])`, `"{}.layers".format(NAME)`."""
        function = call.func
        template = _text(function.value) if isinstance(function, cst.Attribute) else None
        if template is None or not isinstance(function, cst.Attribute):
            return
        parts: list[cst.BaseExpression] = []
        if function.attr.value == "join" and template == ".":
            lists = [a.value for a in call.args if isinstance(a.value, (cst.List, cst.Tuple))]
            parts = [element.value for several in lists for element in several.elements]
        elif function.attr.value == "format" and re.search(r"\}[.:]\w", template):
            parts = [a.value for a in call.args]
        if any(constants.any(part) or _text(part) == OLD_ROOT for part in parts):
            self._built(call)

    def _import_call(self, call: cst.Call) -> None:
        """`import_module(".moe", package="MaxText.layers")` and `__import__`: what they say together."""
        arguments = {
            key: argument.value
            for position, argument in enumerate(call.args)
            for key in [argument.keyword.value if argument.keyword is not None else position]
        }
        if _called(call, frozenset({"import_module", "find_spec", "resolve_name"})):
            self._relative_load(
                call,
                arguments.get(0, arguments.get("name")),
                arguments.get(1, arguments.get("package")),
            )
        elif dotted_name(call.func) == "__import__":
            first = arguments.get(0, arguments.get("name"))
            if isinstance(first, cst.SimpleString) and _text(first) is not None:
                self._dunder_import(call, first, arguments.get(3, arguments.get("fromlist")))

    def _relative_load(
        self, call: cst.Call, name: cst.BaseExpression | None, package: cst.BaseExpression | None
    ) -> None:
        base = _text(package) if package is not None else None
        if isinstance(package, cst.Name):
            base = self._constant(package)
        if isinstance(package, cst.Name) and package.value in ("__package__", "__name__"):
            base = self.file.module_name
            if package.value == "__package__" and not self.file.is_package:
                base = base.rpartition(".")[0]
        if not isinstance(base, str) or base.split(".")[0] not in self.project.old_roots:
            return
        if not isinstance(name, cst.SimpleString):
            if isinstance(package, cst.SimpleString):
                self._built(call)
                self._seen_strings.add(id(package))
            return
        relative = name.evaluated_value
        if not isinstance(relative, str) or not relative.startswith("."):
            return
        level = len(relative) - len(relative.lstrip("."))
        old = absolute(base, True, level, relative[level:])
        found = self.project.dotted(old)
        home = self.project.module(base)
        self._seen_strings |= {id(name), id(package)}
        if found is None or found[1] or found[0].module is None:
            problem = found[0].problem if found is not None else ""
            reason = problem or f"module `{old}` is in neither the checkout nor upstream's trees"
            self.file.site("IMP020", self.file.span(call), reason, _TODO_GONE)
            return
        new = found[0].dotted or ""
        new_base = home.module if home is not None else None
        if isinstance(package, cst.SimpleString) and new_base is not None:
            self.file.edit("IMP009", self.file.span(package), _requote(package, new_base))
        if new_base is None or absolute(new_base, True, level, relative[level:]) != new:
            self.file.edit("IMP009", self.file.span(name), _requote(name, new))

    def _constant(self, name: cst.Name) -> str | None:
        """The string that a name of the file holds, where it is assigned once."""
        home = self.file.scopes.scope_of(name).home(name.value)
        places = home.bindings[name.value] if home is not None else []
        for place in places if len(places) == 1 else ():
            target = self.tree.parent(place.node)
            statement = self.tree.parent(target) if target is not None else None
            if isinstance(statement, cst.Assign):
                return _text(statement.value)
        return None

    def _dunder_import(
        self, call: cst.Call, node: cst.SimpleString, names: cst.BaseExpression | None
    ) -> None:
        value = _text(node) or ""
        if value.split(".")[0] != OLD_ROOT:
            return
        listed = (
            [e.value for e in names.elements] if isinstance(names, (cst.List, cst.Tuple)) else []
        )
        if not listed:  # gives the root package, whose attributes are other ones now
            if not isinstance(self.tree.parent(call), cst.Expr) and (
                names is not None or "." in value
            ):
                self._built(call)
                self._seen_strings.add(id(node))
            return
        home = self.project.module(value)
        for name in listed:
            wanted = _text(name)
            target = self.project.symbol(value, wanted) if wanted is not None else None
            if home is None or target is None or target.dotted != f"{home.module}.{wanted}":
                self._built(call)
                self._seen_strings.add(id(node))
                return

    def _subscript_of(self, node: cst.CSTNode) -> cst.Subscript | None:
        """The subscript that `node` is the key of."""
        around = [n for n, _ in zip(self.tree.ancestors(node), range(3), strict=False)]
        return around[2] if len(around) == 3 and isinstance(around[2], cst.Subscript) else None

    def _with_prefix(self, node: cst.SimpleString, value: str) -> None:
        """`"src.MaxText.train"`: a name from the repository's root keeps its `src.`."""
        target = self._new_string(value.removeprefix(_SOURCE_PREFIX), patched=False)
        if target is None or target.module is None:
            problem = target.problem if target is not None else "a name that neither tree has"
            self.file.site("IMP020", self.file.span(node), problem, _TODO_GONE)
        else:
            new = f"{_SOURCE_PREFIX}{target.dotted}"
            self.file.edit("IMP010", self.file.span(node), _requote(node, new))

    def _dotted_string(self, node: cst.SimpleString, value: str, constants: _Constants) -> None:
        parent = self.tree.parent(node)
        if isinstance(parent, cst.ConcatenatedString):
            return
        call = self._call_of(node)
        if call is not None and _called(call, _LOGGERS):
            self._logger(node, value, self._new_string(value, patched=False))
            return
        loaded = call is not None and _called(call, _LOADERS)
        patched = call is not None and _called(call, _PATCHERS)
        target = self._new_string(value, patched)
        if target is None:
            if value.startswith(f"{OLD_ROOT}.") and not _looks_like_file(value):
                self._unknown(self.file.span(node), *_split(value))
            return
        if target.module is None:
            if value.startswith(f"{OLD_ROOT}.") or not _looks_like_file(value):
                self.file.site("IMP020", self.file.span(node), target.problem, _TODO_GONE)
            return
        assigned = self._assigned_name(node)
        if assigned:
            constants.names.add(assigned)
        new_value = target.dotted or ""
        kind = next((part for part in value.split(".") if part in KINDS), "") if patched else ""
        if kind and kind in self.project.names:
            # The one class does not stand for the subclass that is patched.
            new_value = ".".join(
                KINDS[kind] if new == self.project.names[kind] else new
                for new in new_value.split(".")
            )
            self._patched_kind(node, kind)
        if new_value == value:
            return
        self._carried(self.file.span(node), target)
        rule = "IMP009" if loaded or patched else "IMP010"
        self.file.edit(rule, self.file.span(node), _requote(node, new_value))

    def _logger(self, node: cst.SimpleString, value: str, new: Target | None) -> None:
        """A logger's name: rewritten by option, else listed."""
        if new is not None and new.dotted == value:
            return
        if new is None and not value.startswith(f"{OLD_ROOT}."):
            return
        if self.project.options.rename_loggers and new is not None and new.module is not None:
            self.file.edit("IMP011", self.file.span(node), _requote(node, new.dotted or value))
            return
        known = new is not None and new.module is not None
        self.file.site(
            "IMP011",
            self.file.span(node),
            (
                "logger names are kept unless asked for"
                if known
                else "a logger's name that is no module"
            ),
            "run with --rename-loggers, or keep the name on purpose",
        )

    def _root_string(self, node: cst.SimpleString) -> None:
        """The bare name: a module only where it is loaded or looked up; the product's name anywhere else."""
        call = self._call_of(node)
        if call is not None and _called(call, _LOGGERS):
            self._logger(node, OLD_ROOT, Target(NEW_ROOT))
        elif (call is not None and _called(call, _LOADERS - {"setattr", "delattr"})) or (
            self._is_key_of_modules(node)
        ):
            self.file.edit("IMP009", self.file.span(node), _requote(node, NEW_ROOT))

    def _is_key_of_modules(self, node: cst.SimpleString) -> bool:
        """Whether a string is looked up in `sys.modules`."""
        parent = self.tree.parent(node)
        if isinstance(parent, cst.Index) or (
            isinstance(parent, cst.DictElement) and parent.key is node
        ):
            _, parent, *_ = self.tree.ancestors(parent)  # the subscript's element, or the dict
            parent = parent if isinstance(parent, cst.Subscript) else self.tree.parent(parent)
        if isinstance(parent, cst.Arg):
            parent = self.tree.parent(parent)
        if not isinstance(parent, (cst.Call, cst.Subscript, cst.Comparison)):
            return False
        for part in self.tree.walk(parent):
            if isinstance(part, cst.Attribute) and dotted_name(part) == "sys.modules":
                return True
            if isinstance(part, cst.SimpleString) and part.evaluated_value == "sys.modules":
                return True
        return False

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
            home = self.project.module(module)
            if home is None:
                continue
            target = self._looked_up(module, parts[cut])
            rest = parts[cut + 1 :]
            imported = self.project.old.resolve(module, parts[cut]) if rest else None
            if isinstance(imported, str) and imported != f"{module}.{parts[cut]}":
                # Replaced in the module that is imported there, which may not have it any more.
                through = self._patched_name(".".join([imported, *rest]))
                held = self.project.module(imported)
                if through is not None and (held is None or through.module != held.module):
                    return through
            return None if target is None else _with_rest(target, ".".join(rest))
        return None

    def _built_string(
        self, node: cst.FormattedString | cst.ConcatenatedString, constants: _Constants
    ) -> None:
        if isinstance(self.tree.parent(node), cst.ConcatenatedString):
            return
        call = self._call_of(node)
        if isinstance(node, cst.FormattedString) and call is not None and _called(call, _IMPORTERS):
            if self._may_be_old(node):
                self._built(node)
            return
        parts = [
            part
            for part in self.tree.walk(node)
            if isinstance(
                part, (cst.FormattedStringText, cst.FormattedStringExpression, cst.SimpleString)
            )
            and not isinstance(self.tree.parent(part), cst.FormattedStringExpression)
        ]
        for part, following in zip_longest(parts, parts[1:]):
            if not isinstance(part, cst.FormattedStringExpression):
                cut = isinstance(following, cst.FormattedStringExpression)
                literal = part.value if isinstance(part, cst.FormattedStringText) else _text(part)
                if cut and _CUT_NAME.search(literal or ""):
                    self._built(node)
                    return
            else:
                expression = part.expression
                goes_on = isinstance(following, cst.FormattedStringExpression) or (
                    isinstance(following, cst.FormattedStringText)
                    and _NAME_GOES_ON.match(following.value)
                )
                if goes_on and constants.any(expression):
                    self._built(node)
                    return
        if isinstance(node, cst.ConcatenatedString):
            value = node.evaluated_value
            if isinstance(value, str) and (
                (value.startswith(f"{OLD_ROOT}.") and _DOTTED.match(value))
                or _PREFIX.match(value)
                or _TEMPLATE.search(value)
            ):
                self._built(node)

    def _may_be_old(self, node: cst.FormattedString) -> bool:
        """Whether an f-string that is imported can name something of the old tree."""
        roots = self.project.old_roots
        first = node.parts[0] if node.parts else None
        if isinstance(first, cst.FormattedStringText):
            head, dot, _ = first.value.partition(".")
            if dot:
                return (head or self.file.module_name.partition(".")[0]) in roots
            return any(root.startswith(head) for root in roots)
        if isinstance(first, cst.FormattedStringExpression):
            if isinstance(first.expression, cst.Name) and first.expression.value == "__name__":
                return False  # the module's own name, wherever it goes
            text = self.file.text
            return OLD_ROOT in text or any(f"{r}." in text or f"from {r} " in text for r in roots)
        return False

    def _built(self, node: cst.CSTNode) -> None:
        if isinstance(self.tree.parent(node), cst.Expr):
            return  # a docstring that ends with the product's name
        self.file.site(
            "IMP021",
            self.file.span(node),
            "the name is put together at run time, so its new form cannot be proven",
            "write the new name by hand",
        )

    def _call_of(self, node: cst.CSTNode) -> cst.Call | None:
        """The call that `node` is the first argument of, or the target or name by keyword."""
        argument = self.tree.parent(node)
        call = self.tree.parent(argument) if isinstance(argument, cst.Arg) else None
        if not isinstance(call, cst.Call) or not isinstance(argument, cst.Arg):
            return None
        named = argument.keyword is not None and argument.keyword.value in _FIRST_KEYWORDS
        return call if named or call.args[0] is argument else None

    def _assigned_name(self, node: cst.CSTNode) -> str:
        """The one name that the value `node` is assigned to, or ""."""
        parent = self.tree.parent(node)
        if isinstance(parent, cst.Assign) and len(parent.targets) == 1:
            target = parent.targets[0].target
            return target.value if isinstance(target, cst.Name) else ""
        if isinstance(parent, cst.AnnAssign) and isinstance(parent.target, cst.Name):
            return parent.target.value
        return ""


@dataclass(slots=True)
class _Constants:
    """Names of the file that hold an old name.

    Attributes:
        names: those that hold a dotted one, which is rewritten.
        roots: those that hold the bare name of the package, which may be the product's.
    """

    names: set[str] = field(default_factory=set)
    roots: set[str] = field(default_factory=set)

    def dotted(self, node: cst.CSTNode) -> bool:
        return isinstance(node, cst.Name) and node.value in self.names

    def any(self, node: cst.CSTNode) -> bool:
        return isinstance(node, cst.Name) and (node.value in self.names or node.value in self.roots)


@dataclass(slots=True)
class _Comments:
    """Comments inside a bracketed import.

    Attributes:
        head: beside the opening bracket.
        before: id of an alias → comment lines above it.
        after: id of an alias → comment beside it.
        below: id of the last alias → comment lines between it and the closing bracket.
        step: indentation of the names, "" if they do not stand on lines of their own.
    """

    head: str = ""
    before: dict[int, list[str]] = field(default_factory=dict)
    after: dict[int, str] = field(default_factory=dict)
    below: dict[int, list[str]] = field(default_factory=dict)
    step: str = ""

    def without(self, placed: set[int]) -> list[str]:
        """The comments on all other names than those in `placed`, linters' left out."""
        beside = {key: [comment] for key, comment in self.after.items() if comment}
        found = [
            comment
            for kind in (self.before, beside, self.below)
            for key, comments in kind.items()
            if key not in placed
            for comment in comments
        ]
        return [c for c in found if not _LINTER_COMMENT.match(c)]


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


def _text(node: cst.CSTNode) -> str | None:
    """The value of a string literal; None for anything else."""
    value = node.evaluated_value if isinstance(node, cst.SimpleString) else None
    return value if isinstance(value, str) else None


def _literal(call: cst.Call, position: int) -> bool:
    """Whether an argument of a call is a string literal."""
    return any(_text(a.value) is not None for a in call.args[position : position + 1])


def _looks_like_file(value: str) -> bool:
    return bool(
        re.search(
            r"\.(?:py|sh|yml|yaml|md|rst|json|txt|ipynb|toml|cfg|ini|html|whl|log|csv|png|svg)\Z",
            value,
        )
    )


def _requote(node: cst.SimpleString, value: str) -> str:
    return f"{node.prefix}{node.quote}{value}{node.quote}"


def _called(call: cst.Call, names: frozenset[str]) -> bool:
    dotted = dotted_name(call.func) or ""
    parts = dotted.split(".")
    return parts[-1] in names or ".".join(parts[-2:]) in names
