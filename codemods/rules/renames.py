"""REN: the AL names of the model become the Ling2 names, by an explicit table and never by a prefix.

Import statements, and the uses of what they bind, belong to the import rules; they read the same table
(`Project.names`), and `PythonFile.renamed` where a single use takes another name than the table's.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import libcst as cst

from codemods.engine.context import PythonFile
from codemods.engine.scopes import Scope, dotted_name
from codemods.engine.tree import Span, children
from codemods.rules.base import Example, Rule
from codemods.rules.doubled import CLASS_TESTS, CONTAINERS, Doubled

# The three layer classes become one class; the layer index decides what a layer is.
LAYERS = ("ALGenericLayer", "ALDenseLayer", "ALMoELayer")
ONE_CLASS = "Ling2DecoderLayer"
# What the two subclasses are called until a person has merged them into the one class.
KINDS: Mapping[str, str] = {"ALDenseLayer": "Ling2DenseLayer", "ALMoELayer": "Ling2MoELayer"}

# Module names in checkpoints that older runs wrote → what the model's module is called now.
CHECKPOINT_NAMES: Mapping[str, str] = {
    "ALMoeBlock_0": "Ling2MoeBlock_0",
    "DeepSeekMoeBlock_0": "Ling2MoeBlock_0",
}

# Identifier → new identifier, wherever it stands.
NAMES: Mapping[str, str] = {
    "ALGenericLayer": ONE_CLASS,
    "ALDenseLayer": ONE_CLASS,
    "ALMoELayer": ONE_CLASS,
    "ALGenericLayerToLinen": f"{ONE_CLASS}ToLinen",
    "ALDenseLayerToLinen": f"{ONE_CLASS}ToLinen",
    "ALMoELayerToLinen": f"{ONE_CLASS}ToLinen",
    "ALScannableBlock": "Ling2ScannableBlock",
    "ALScannableBlockToLinen": "Ling2ScannableBlockToLinen",
    "ALMoeBlock_0": "Ling2MoeBlock_0",
}

# Whole strings (and words of a command line) → new value.
STRINGS: Mapping[str, str] = {
    "al_model": "ling2",
    "al_model.yml": "ling2.yml",
    "pretrain_al_model.sh": "pretrain_ling2.sh",
    "DecoderBlockType.AL_MODEL": "DecoderBlockType.LING2",
}

_FORK = """\
from flax import nnx


class ALGenericLayer(nnx.Module):
  \"\"\"Pre-norm residual layer.\"\"\"

  def __init__(self, config, layer_idx, *, rngs):
    self.layer_idx = layer_idx


class ALDenseLayer(ALGenericLayer):
  \"\"\"Plain feed-forward part.\"\"\"


class ALMoELayer(ALGenericLayer):
  \"\"\"Experts.\"\"\"
"""

RULES = (
    Rule(
        "REN001",
        "safe",
        "identifiers of the table: definitions, uses, attributes, keyword names",
        "Only names of the table change, and test classes and functions of the checkout that carry the "
        "model's name as a whole word (`AlModelRoutingTest`, `test_al_model_router`). `AXIS`, `MaxAX`, "
        "`ALIGN` or `ALBERT` are never touched. A name that would be captured by another binding is listed.",
        (
            Example(
                "class ALScannableBlock:\n  pass\n\n\nblock = ALScannableBlock()\nALIGN = 8\n",
                "class Ling2ScannableBlock:\n  pass\n\n\nblock = Ling2ScannableBlock()\nALIGN = 8\n",
            ),
            Example(
                "class AlModelRoutingTest:\n\n  def test_al_model_routes(self):\n    pass\n",
                "class Ling2RoutingTest:\n\n  def test_ling2_routes(self):\n    pass\n",
            ),
        ),
    ),
    Rule(
        "REN002",
        "review",
        "`ALGenericLayer`, `ALDenseLayer` and `ALMoELayer` become `Ling2DecoderLayer`",
        "Constructor calls, registries, annotations and wrappers name the one class; the layer index "
        "decides what it builds. In the module that defines the classes the base class takes the new name "
        "and chooses in `__new__`, by `layer_idx < config.first_num_dense_layers`, between the two "
        "subclasses, which stay as `Ling2DenseLayer` and `Ling2MoELayer` (upstream names DeepSeek's so) "
        "until a person merges them; so the module runs and computes what it did. A constructor call "
        "without a layer index, or with a literal one of the other kind, keeps the subclass and is listed; "
        "one whose index is not chosen by a condition around it is rewritten and listed.",
        (
            Example(
                "from ALModel.al_model import ALMoELayer\n\n\n"
                "def tail(cfg, rngs, first):\n  if first:\n    return ALMoELayer(cfg, first, rngs=rngs)\n",
                "from maxtext.models.ling2 import Ling2DecoderLayer\n\n\n"
                "def tail(cfg, rngs, first):\n  if first:\n    return Ling2DecoderLayer(cfg, first, rngs=rngs)\n",
                files={"ALModel/al_model.py": _FORK},
            ),
        ),
    ),
    Rule(
        "REN003",
        "report",
        "code that tells the layer classes apart, or that a person has to merge",
        "Definitions of the subclasses, classes derived from them, isinstance, issubclass, type tests, class "
        "patterns, unbound methods, and tests of a class name. Each keeps its meaning, since it names the "
        "subclass (`Ling2MoELayer`), but that goes when the classes are merged. `isinstance` with both "
        "kinds is rewritten and not listed. `HybridAttention` is listed where it is defined: upstream's "
        "layer picks MLA or GLA itself.",
        (
            Example(
                "from ALModel.al_model import ALMoELayer\n\n\n"
                "def has_experts(layer):\n  return isinstance(layer, ALMoELayer)\n",
                "from maxtext.models.ling2 import Ling2MoELayer\n\n\n"
                "def has_experts(layer):\n  return isinstance(layer, Ling2MoELayer)\n",
                listed=("isinstance(layer, ALMoELayer)",),
                files={"ALModel/al_model.py": _FORK},
            ),
        ),
    ),
    Rule(
        "REN004",
        "safe",
        "`DecoderBlockType.AL_MODEL` becomes `DecoderBlockType.LING2`",
        "The member `AL_MODEL` goes where the enum has `LING2`; where it has not, it is renamed.",
        (
            Example(
                'import enum\n\n\nclass DecoderBlockType(enum.Enum):\n  LING2 = "ling2"\n'
                '  AL_MODEL = "al_model"\n\n\nBLOCK = DecoderBlockType.AL_MODEL\n',
                'import enum\n\n\nclass DecoderBlockType(enum.Enum):\n  LING2 = "ling2"\n'
                "\n\nBLOCK = DecoderBlockType.LING2\n",
            ),
        ),
    ),
    Rule(
        "REN005",
        "safe",
        "strings: the model name, table names, `model_name=al_model`, file names of the checkout",
        "A name that is put together from parts, or that lies outside the checkout, is listed (REN009).",
        (
            Example(
                'ARGS = ["model_name=al_model", "models/al_model.yml"]\n',
                'ARGS = ["model_name=ling2", "models/ling2.yml"]\n',
            ),
        ),
    ),
    Rule(
        "REN006",
        "review",
        "checkpoint names: `ALMoeBlock_0` becomes `Ling2MoeBlock_0`",
        "Attributes, paths and patterns take the new name. Where code asks for old names (a key or member of "
        "a table, a comparison) they must stay readable: a table gets the new name beside the old one, "
        "which is listed; a comparison is listed and left. `DeepSeekMoeBlock_0` is upstream's own name "
        "too; it changes only as an attribute of a layer class of the model. The layer's `attention`, upstream's "
        "`self_attention`, is listed where it is assigned.",
        (
            Example(
                'LEGACY = {\n    "ALMoeBlock_0": "experts",\n}\n',
                'LEGACY = {\n    "Ling2MoeBlock_0": "experts",\n    "ALMoeBlock_0": "experts",\n}\n',
                listed=('"ALMoeBlock_0"',),
            ),
        ),
    ),
    Rule(
        "REN007",
        "safe",
        "comments and docstrings that name something of the table",
        examples=(
            Example(
                "# Built like ALScannableBlock, see al_model.yml.\nx = 1\n",
                "# Built like Ling2ScannableBlock, see ling2.yml.\nx = 1\n",
            ),
        ),
    ),
    Rule(
        "REN008",
        "review",
        "what is said twice once two names are one",
        "A doubled member of a set, of a tuple that is only asked with `in` or isinstance, of `__all__`, a "
        "doubled operand of `or`, both sides of `x if test else x`, a doubled pattern, key, case or assignment goes where both say the same. "
        "Where they do not, they are listed.",
        (
            Example(
                "def f(block, kinds):\n  return block in (kinds.DecoderBlockType.LING2, kinds.DecoderBlockType.AL_MODEL)\n",
                "def f(block, kinds):\n  return block in (kinds.DecoderBlockType.LING2,)\n",
            ),
        ),
    ),
    Rule(
        "REN009",
        "report",
        "an AL name that is in no table, or cannot take its new name here",
        examples=(
            Example(
                'OUT = "gs://bucket/al_model/run1"\n',
                'OUT = "gs://bucket/al_model/run1"\n',
                listed=("gs://bucket/al_model/run1",),
            ),
        ),
    ),
)

# The model's name as a whole word of an identifier: snake case, upper case, camel case.
_MODEL_WORD = re.compile(
    r"(?<![A-Za-z0-9])al_model(?![A-Za-z0-9])"
    r"|(?<![A-Za-z0-9])AL_MODEL(?![A-Za-z0-9])"
    r"|(?<![A-Z])AlModel(?![a-z0-9])"
)
_NEW_WORD = {"al_model": "ling2", "AL_MODEL": "LING2", "AlModel": "Ling2"}
_DEFINED = re.compile(
    r"^[ \t]*(?:async[ \t]+def|def|class)[ \t]+(\w*(?:al_model|AlModel)\w*)"
    r"|^(\w*(?:al_model|AL_MODEL)\w*)[ \t]*(?::[^=\n]+)?=(?!=)",
    re.MULTILINE,
)
# Anything that could concern this family; a file without a match is left alone at once.
_ANY = re.compile(r"AL[A-Z]\w*[a-z]|AL_MODEL|AlModel|al_model|\bAL model\b|HybridAttention")
# Bytes of which a file must hold one to concern this family (beside the names of the table).
WORDS = (b"AL_MODEL", b"AlModel", b"al_model", b"AL model", b"ALModel", b"HybridAttention")
_LOOKS_AL = re.compile(r"AL[A-Z][a-z]\w*\Z")
_TOKEN = re.compile(r"[\w./:$*{}~@%+-]")
_LOADERS = frozenset({"import_module", "importorskip", "__import__", "find_spec", "run_module"})
_STRING_TESTS = frozenset({"replace", "startswith", "endswith", "removeprefix"})


@dataclass(frozen=True, slots=True)
class RenameFacts:
    """What one file contributes to the table.

    Attributes:
        derived: identifiers it defines that carry the model's name as a whole word.
        defined: every class or function name that a new name could run into.
    """

    derived: frozenset[str]
    defined: frozenset[str]


def survey(path: str, text: str) -> RenameFacts:
    """Identifiers that a Python file defines with the model's name in them."""
    del path
    found: set[str] = set()
    if "al_model" in text or "AlModel" in text or "AL_MODEL" in text:
        for match in _DEFINED.finditer(text):
            name = match.group(1) or match.group(2)
            if _MODEL_WORD.search(name) and name not in ("al_model", "AL_MODEL"):
                found.add(name)
    defined = frozenset(
        re.findall(r"^[ \t]*(?:def|class)[ \t]+(\w*[lL]ing2\w*)", text, re.MULTILINE)
    )
    return RenameFacts(frozenset(found), defined)


def plan(facts: Iterable[RenameFacts]) -> dict[str, str]:
    """The whole table: `NAMES` and the derived names whose new form is free in the checkout."""
    facts = list(facts)
    taken = {name for fact in facts for name in fact.defined}
    table = dict(NAMES)
    for name in sorted({name for fact in facts for name in fact.derived}):
        new = new_name(name)
        if new not in taken:
            table[name] = new
    return table


def new_name(name: str) -> str:
    """`name` with the model's name replaced: `AlModelRoutingTest` → `Ling2RoutingTest`."""
    return _MODEL_WORD.sub(lambda m: _NEW_WORD[m.group()], name)


def python(file: PythonFile) -> None:
    """Rename in one file, and list what a person has to see."""
    if file.project.names and _ANY.search(file.text):
        _Renames(file).run()


@lru_cache(maxsize=4)
def _words(names: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(
        rf"\b(?:{'|'.join(map(re.escape, names))})\b|{_MODEL_WORD.pattern}|\bALModel\b|\bAL model\b"
    )


Use = Literal["call", "isinstance", "base", "match", "type", "attribute", "super", "value"]


class _Renames(Doubled):
    def __init__(self, file: PythonFile) -> None:
        super().__init__(file)
        self.names = file.project.names
        self.pattern = _words(tuple(sorted(self.names, key=lambda n: (-len(n), n))))
        self.covered: list[Span] = []  # names, strings and imports: what is left is comments
        self.local_layers: dict[str, cst.ClassDef] = {}
        self.kept: set[tuple[int, str]] = set()  # (scope, name) that cannot take its new name
        self.reported: set[str] = set()  # words listed once a file
        self.quoted: set[int] = set()  # names in quoted annotations that the import rules follow

    def run(self) -> None:
        identifiers: list[cst.Name] = []
        strings: list[cst.SimpleString | cst.FormattedStringText] = []
        classes: list[cst.ClassDef] = []
        containers: list[cst.CSTNode] = []
        stack: list[cst.CSTNode] = [self.tree.module]
        while stack:
            node = stack.pop()
            if isinstance(node, (cst.Import, cst.ImportFrom)):
                self.covered.append(self.file.span(node))
                continue
            if isinstance(node, cst.Name):
                identifiers.append(node)
            elif isinstance(node, (cst.SimpleString, cst.FormattedStringText)):
                strings.append(node)
            else:
                if isinstance(node, cst.ClassDef):
                    classes.append(node)
                elif isinstance(node, CONTAINERS):
                    containers.append(node)
                stack.extend(reversed(list(children(node))))
        for definition in classes:
            if definition.name.value in LAYERS and self._at_top(definition):
                self.local_layers.setdefault(definition.name.value, definition)
        self._collisions()
        for name in identifiers:
            self._identifier(name)
        self._layer_aliases()
        self.quoted = {
            r.start
            for scope in self.file.scopes.all
            for r in scope.references
            if r.node is None and self._import_of(r.scope, r.name) is not None
        }
        for string in strings:
            self._string(string)
        self._comments()
        for definition in classes:
            self._class(definition)
        for container in containers:
            self._doubled(container)
        self._doubled_statements()
        self._unused_imports()

    # Identifiers ----------------------------------------------------------------------------------

    def _at_top(self, node: cst.ClassDef) -> bool:
        return isinstance(self.tree.parent(node), cst.Module)

    def _collisions(self) -> None:
        """Names of this file whose new name is bound to something else in the same scope."""
        for scope in self.file.scopes.all:
            for name, bindings in scope.bindings.items():
                if name not in self.names or all(b.kind == "import" for b in bindings):
                    continue
                new = self._definition_name(name)
                others = [
                    b
                    for b in scope.bindings.get(new, ())
                    if not (
                        isinstance(b.node, cst.ImportAlias) and self._imported(b.node) in self.names
                    )
                ]
                if others:
                    self.kept.add((id(scope), name))
                    self._list(
                        "REN009",
                        self.file.span(_name_node(bindings[0].node)),
                        f"`{name}` would become `{new}`, which this file binds otherwise",
                        f"rename one of the two, then `{name}`",
                    )

    def _definition_name(self, name: str) -> str:
        return KINDS[name] if name in self.local_layers and name in KINDS else self.names[name]

    def _identifier(self, node: cst.Name) -> None:
        value = node.value
        span = self.file.span(node)
        if not _MODEL_WORD.search(value) and value not in self.names:
            if value == "HybridAttention":
                self._hybrid(span)
            elif value == "DeepSeekMoeBlock_0":
                self._deepseek_block(node, span)
            elif _LOOKS_AL.match(value):
                self._unknown_definition(node, span)
            return
        self.covered.append(span)
        parent = self.tree.parent(node)
        if isinstance(parent, cst.Attribute) and parent.attr is node:
            self._attribute(node, parent, span)
            return
        if isinstance(parent, cst.Arg) and parent.keyword is node:
            if value in self.names:
                self._edit("REN001", span, self.names[value])
            elif value != "al_model":
                self._unknown_word(span, value)
            return
        if isinstance(parent, (cst.ClassDef, cst.FunctionDef)) and parent.name is node:
            scope = self.file.scopes.scope_of(parent)
            if (id(scope), value) in self.kept:
                return
            if value in KINDS and value in self.local_layers:
                self._edit("REN002", span, KINDS[value])
            elif value in self.names:
                self._edit("REN002" if value in LAYERS else "REN001", span, self.names[value])
            else:
                self._unknown_word(span, value)
            return
        scope = self.file.scopes.scope_of(node)
        home = scope.home(value)
        bindings = home.bindings[value] if home is not None else []
        if any(b.kind == "import" for b in bindings):
            return
        if home is not None and (id(home), value) in self.kept:
            return
        if value not in self.names:
            self._own_variable(node, span, home)
            return
        new = self._use_name(node, value) if value in LAYERS else self.names[value]
        found = scope.home(new)
        if found is not None and found is not home and home is not None:
            self._list(
                "REN009",
                span,
                f"`{value}` would become `{new}`, which an inner scope binds otherwise",
                "rename the inner name first",
            )
            return
        self._edit("REN002" if value in LAYERS else "REN001", span, new)

    def _own_variable(self, node: cst.Name, span: Span, home: Scope | None) -> None:
        """A variable with the model's name in it: `al_model_config`."""
        value = node.value
        if value == "AL_MODEL" and isinstance(home, Scope) and home.kind == "class":
            return  # an enum member, see _class
        new = new_name(value)
        if (
            home is None
            or home.kind == "class"
            or any(b.kind == "parameter" for b in home.bindings[value])
            or new in home.bindings
            or home.kind == "module"
        ):
            self._unknown_word(span, value)
            return
        self._edit("REN001", span, new)

    def _attribute(self, node: cst.Name, parent: cst.Attribute, span: Span) -> None:
        value = node.value
        root = _root(parent)
        owner = dotted_name(parent.value) or ""
        if value == "AL_MODEL":
            leaf = owner.rpartition(".")[2]
            if isinstance(root, cst.Name):
                leaf = self._import_leaf(root, owner) or leaf
            if leaf[:1].isupper() or leaf in ("self", "cls"):
                self._edit("REN004", span, "LING2")
            elif value not in self.names:
                self._unknown_word(span, value)
            return
        bound = self._root_import(root) if isinstance(root, cst.Name) else None
        if bound is not None and self._foreign(bound):
            return
        if value in LAYERS:
            new = self._use_name(parent, value)
            if bound is not None:
                if new != self.names[value] and self.file.enabled("REN002"):
                    self.file.renamed[span[0]] = new
                self.changes.append((*span, new))
            else:
                self._edit("REN002", span, new)
        elif value in self.names:
            if bound is not None and isinstance(parent.value, cst.Name):
                self.changes.append(
                    (*span, self.names[value])
                )  # the import rules follow `module.name`
                return
            rule = "REN006" if value in CHECKPOINT_NAMES else "REN001"
            self._edit(rule, span, self.names[value])
        elif value != "al_model" or bound is None:
            self._unknown_word(span, value)

    def _import_leaf(self, root: cst.Name, owner: str) -> str:
        """What `owner` is called where it comes from, if the file imports it under another name."""
        alias = self._root_import(root)
        if alias is None or "." in owner:
            return ""
        return (dotted_name(alias.name) or "").rpartition(".")[2]

    def _foreign(self, alias: cst.ImportAlias) -> bool:
        """Whether an import brings something that is not of the checkout."""
        statement = self.tree.parent(alias)
        if isinstance(statement, cst.ImportFrom):
            if statement.relative:
                return False
            first = (dotted_name(statement.module) or "") if statement.module is not None else ""
        else:
            first = dotted_name(alias.name) or ""
        first = first.partition(".")[0]
        if first in self.file.project.old_roots:
            return False
        return not self.file.project.old.has_root(first)

    def _layer_aliases(self) -> None:
        """Uses of imported layer classes: the import rules rename them, single uses may differ."""
        for binding in self.file.scopes.bindings():
            alias = binding.node
            if not isinstance(alias, cst.ImportAlias) or not isinstance(
                self.tree.parent(alias), cst.ImportFrom
            ):
                continue
            old = self._imported(alias)
            if old not in self.names or self._foreign(alias):
                continue
            for use in self.file.scopes.references(binding.scope, binding.name):
                new = self.names[old]
                if old in LAYERS and use.node is not None:
                    chosen = self._use_name(use.node, old)
                    if chosen != new and self.file.enabled("REN002"):
                        self.file.renamed[use.start] = chosen
                        self.changes.append((use.start, use.end, chosen))
                        continue
                self.changes.append(
                    (use.start, use.end, use.name if alias.asname is not None else new)
                )

    def _deepseek_block(self, node: cst.Name, span: Span) -> None:
        parent = self.tree.parent(node)
        if not (isinstance(parent, cst.Attribute) and parent.attr is node):
            return
        for ancestor in self.tree.ancestors(node):
            if isinstance(ancestor, cst.ClassDef):
                owner = dotted_name(parent.value)
                if owner == "self" and self._of_the_model(ancestor):
                    self._edit("REN006", span, CHECKPOINT_NAMES[node.value])
                return

    def _of_the_model(self, definition: cst.ClassDef) -> bool:
        if definition.name.value in NAMES:
            return True
        return any(
            (dotted_name(base.value) or "").rpartition(".")[2] in LAYERS
            for base in definition.bases
        )

    def _unknown_definition(self, node: cst.Name, span: Span) -> None:
        """A class or function of the model's own modules that looks like an AL name and is in no table."""
        parent = self.tree.parent(node)
        if not (isinstance(parent, (cst.ClassDef, cst.FunctionDef)) and parent.name is node):
            return
        if self.file.path.startswith("ALModel/") or self.local_layers:
            self._list(
                "REN009",
                span,
                f"`{node.value}` is in no table of names",
                "give it its Ling2 name, if it is one of the model's",
            )

    def _unknown_word(self, span: Span, word: str) -> None:
        if word not in self.reported:
            self.reported.add(word)
            self._list(
                "REN009",
                span,
                f"`{word}` carries the model's old name; nothing says who else uses it",
                f"rename it to `{new_name(word)}` if nothing outside the checkout needs it",
            )

    # The layer classes ----------------------------------------------------------------------------

    def _use_name(self, node: cst.BaseExpression, old: str) -> str:
        """What a use of a layer class becomes; lists the uses that tell the classes apart.

        Args:
            node: the Name, or the Attribute that ends in the name.
        """
        if old not in KINDS:
            use, where = self._use(node)
            if use == "call" and old == "ALGenericLayer":
                self._list(
                    "REN003",
                    self.file.span(where),
                    "built the base class itself; now the index chooses between dense and experts",
                    "see that a layer of that index is wanted",
                )
            if use == "base" and isinstance(where, cst.ClassDef) and where.name.value not in LAYERS:
                self._list(
                    "REN003",
                    self.file.span(where.name),
                    f"`{where.name.value}` is derived from the base class: the layer index does not choose it",
                    "say by the layer index where it stands, or build it by name",
                )
            return self.names[old]
        use, where = self._use(node)
        kind = KINDS[old]
        if use == "call":
            assert isinstance(where, cst.Call)
            return self._constructor(where, old)
        if use == "value":
            return self.names[old]
        if use == "super":
            return kind
        if use == "isinstance":
            assert isinstance(where, cst.Call)
            if self._covers_both(where):
                return self.names[old]
            reason = f"true for {_WHAT[old]} layers only; once the classes are one it would be true for all"
            span = self.file.span(where)
        elif use == "base":
            assert isinstance(where, cst.ClassDef)
            if where.name.value in LAYERS:
                return kind
            reason = f"derived from `{old}`, which becomes one class with the others"
            span = self.file.span(where.name)
        elif use == "match":
            reason = f"a class pattern for {_WHAT[old]} layers only; it tells nothing once the classes are one"
            span = self.file.span(where)
        elif use == "type":
            reason = (
                f"asks for the class of {_WHAT[old]} layers, which goes when the classes are merged"
            )
            span = self.file.span(where)
        else:
            reason = f"uses `{old}` itself, not a layer of it; it goes when the classes are merged"
            span = self.file.span(where)
        self._list("REN003", span, reason, "ask for the layer index instead")
        return kind

    def _use(self, node: cst.BaseExpression) -> tuple[Use, cst.CSTNode]:
        parent = self.tree.parent(node)
        if isinstance(parent, cst.Call) and parent.func is node:
            return "call", parent
        if isinstance(parent, cst.Attribute) and parent.value is node:
            return "attribute", parent
        if isinstance(parent, cst.MatchClass) and parent.cls is node:
            return "match", parent
        if isinstance(parent, (cst.Comparison, cst.ComparisonTarget)):
            comparison = (
                parent if isinstance(parent, cst.Comparison) else self.tree.parent(parent) or parent
            )
            if re.search(r"\btype\(|__class__", self.file.source(comparison)):
                return "type", comparison
            return "value", parent
        current: cst.CSTNode | None = parent
        below: cst.CSTNode = node
        while isinstance(current, (cst.Element, cst.Tuple, cst.BinaryOperation)):
            below, current = current, self.tree.parent(current)
        if isinstance(current, cst.Arg):
            holder = self.tree.parent(current)
            if isinstance(holder, cst.ClassDef):
                return "base", holder
            if isinstance(holder, cst.Call):
                called = (dotted_name(holder.func) or "").rpartition(".")[2]
                position = next((i for i, a in enumerate(holder.args) if a is current), -1)
                if called in CLASS_TESTS and position == 1:
                    return "isinstance", holder
                if called in ("assertIsInstance", "assertNotIsInstance") and position == 1:
                    return "isinstance", holder
                if called == "super" and position == 0:
                    return "super", holder
                if called == "object" and position == 0 and below is node:
                    return "attribute", holder
        if isinstance(parent, cst.Subscript) and isinstance(self.tree.parent(parent), cst.Arg):
            return "value", parent
        return "value", parent or node

    def _covers_both(self, call: cst.Call) -> bool:
        """Whether the second argument of an isinstance names both kinds, or the base."""
        named = {
            self._layer_of(n)
            for n in self.tree.walk(call.args[1].value)
            if isinstance(n, (cst.Name, cst.Attribute))
        }
        return "ALGenericLayer" in named or set(KINDS) <= named

    def _layer_of(self, node: cst.CSTNode) -> str:
        """The old name of the layer class that a Name or Attribute stands for, or ""."""
        if isinstance(node, cst.Attribute):
            return node.attr.value if node.attr.value in LAYERS else ""
        assert isinstance(node, cst.Name)
        alias = self._root_import(node)
        value = self._imported(alias) if alias is not None else node.value
        return value if value in LAYERS else ""

    def _constructor(self, call: cst.Call, old: str) -> str:
        """`ALMoELayer(…)` → `Ling2DecoderLayer(…)` if the layer index will choose the same class."""
        span = self.file.span(call)
        kind = KINDS[old]
        given: cst.BaseExpression | None = None
        starred = any(a.star for a in call.args)
        for argument in call.args:
            if argument.keyword is not None and argument.keyword.value == "layer_idx":
                given = argument.value
        position = self._index_position(call.func, old)
        positional = [a for a in call.args if a.keyword is None and not a.star]
        if given is None and position is not None and position < len(positional):
            given = positional[position].value
        if given is None:
            what = "passes its arguments on" if starred else "passes no layer index"
            self._list(
                "REN003",
                span,
                f"this call {what}, so that the index cannot choose between dense and experts",
                f"pass `layer_idx`, then call `{ONE_CLASS}`",
            )
            return kind
        if isinstance(given, cst.Integer):
            index = int(given.value.replace("_", ""), 0)
            if (index == 0) != (old == "ALDenseLayer"):
                self._list(
                    "REN003",
                    span,
                    f"layer {index} of the model is not of this kind, if only the first is dense",
                    f"pass an index of the right kind, then call `{ONE_CLASS}`",
                )
                return kind
            return ONE_CLASS
        if not self._chosen(call):
            self._list(
                "REN003",
                span,
                f"built {_WHAT[old]} layers whatever the index; now the index decides",
                "make sure that the index starts "
                + ("below" if old == "ALDenseLayer" else "at or beyond")
                + " `first_num_dense_layers`",
            )
        return ONE_CLASS

    def _chosen(self, node: cst.CSTNode) -> bool:
        """Whether a condition around the call, in the same function, picks the kind."""
        for ancestor in self.tree.ancestors(node):
            if isinstance(ancestor, (cst.If, cst.IfExp, cst.MatchCase)):
                return True
            if isinstance(ancestor, (cst.FunctionDef, cst.ClassDef)):
                return False
        return False

    def _index_position(self, called: cst.BaseExpression, old: str) -> int | None:
        """Where `layer_idx` stands among the parameters of the class's constructor."""
        definition = self.local_layers.get(old) or self.local_layers.get("ALGenericLayer")
        for local in (definition, self.local_layers.get("ALGenericLayer")):
            init = _method(local, "__init__") if local is not None else None
            if init is not None:
                names = [p.name.value for p in (*init.params.posonly_params, *init.params.params)][
                    1:
                ]
                return names.index("layer_idx") if "layer_idx" in names else None
        root = _root(called)
        alias = self._root_import(root) if isinstance(root, cst.Name) else None
        if alias is not None:
            module = self._module_of(alias, called)
            signature = self.file.project.old.signature(module, old) if module else None
            if signature is not None:
                names = [n for n in signature.names if not n.startswith("*")]
                return names.index("layer_idx") if "layer_idx" in names else None
        return 3

    def _hybrid(self, span: Span) -> None:
        self._list(
            "REN003",
            span,
            "`HybridAttention` goes inline: the layer picks MLA or GLA from its index",
            f"move the choice into `{ONE_CLASS}.__init__`, then drop the class and its name",
        )

    def _class(self, definition: cst.ClassDef) -> None:
        name = definition.name.value
        self._enum(definition)
        if name not in self.local_layers or definition is not self.local_layers[name]:
            return
        if name in KINDS:
            self._list(
                "REN003",
                self.file.span(definition.name),
                f"`{name}` becomes one class with `ALGenericLayer`; until then it is `{KINDS[name]}`",
                f"merge its body into `{ONE_CLASS}`, chosen by the layer index",
            )
        elif (id(self.file.scopes.module), name) not in self.kept:
            self._choose_by_index(definition)
            self._attention(definition)

    def _attention(self, base: cst.ClassDef) -> None:
        """`self.attention` of the layer is a checkpoint name too, but `attention` alone is too common a word."""
        for node in self.tree.walk(base):
            if isinstance(node, cst.AssignTarget) and dotted_name(node.target) == "self.attention":
                self._list(
                    "REN006",
                    self.file.span(node.target),
                    "checkpoints know the layer's attention as `attention`; upstream's name is `self_attention`",
                    "rename the attribute with its uses, or leave it to the conversion of checkpoints",
                )
                return

    def _choose_by_index(self, base: cst.ClassDef) -> None:
        """Give the base class a `__new__` that picks the subclass by the layer index."""
        init = _method(base, "__init__")
        reason = ""
        if not set(KINDS) <= set(self.local_layers):
            reason = "the dense and the experts class are not both defined in this file"
        elif _method(base, "__new__") is not None:
            reason = "it has a `__new__` of its own"
        elif init is None:
            reason = "it has no `__init__` that takes the layer index"
        else:
            parameters = _plain_parameters(init.params)
            if parameters is None:
                reason = "its `__init__` takes no plain `config` and `layer_idx`"
        if reason:
            self._list(
                "REN003",
                self.file.span(base.name),
                f"`{ONE_CLASS}` cannot choose between dense and experts by itself: {reason}",
                "merge the classes by hand",
            )
            return
        module = self.tree.module
        unit, newline = module.default_indent, module.default_newline
        first = base.body.body[0]
        start = self.file.span(first)[0]
        line = self.text.rfind("\n", 0, start) + 1
        indent = self.text[line:start] if self.text[line:start].isspace() else unit
        lines = [
            "def __new__(cls, *args, **kwargs):",
            f"{unit}if cls is {ONE_CLASS}:",
            f"{unit}{unit}cls = cls._kind(*args, **kwargs)",
            f"{unit}return super().__new__(cls)",
            "",
            "@staticmethod",
            f"def _kind({parameters}):",
            f'{unit}"""Dense or experts, by the layer index."""',
            f"{unit}dense = layer_idx < config.first_num_dense_layers",
            f"{unit}return {KINDS['ALDenseLayer']} if dense else {KINDS['ALMoELayer']}",
        ]
        body = newline.join(indent + text if text else "" for text in lines)
        docstring = _docstring(base)
        if docstring is not None:
            offset = self.file.span(docstring)[1]
            inserted = newline + newline + body
        else:
            # Right behind the colon, where no other rule removes anything.
            after = self.file.span(base.bases[-1] if base.bases else base.name)[1]
            offset = self.text.index(":", after) + 1
            inserted = newline + body + newline
        self.file.edit("REN002", (offset, offset), inserted)

    def _enum(self, definition: cst.ClassDef) -> None:
        """`AL_MODEL = "al_model"` in an enum."""
        members: dict[str, tuple[cst.SimpleStatementLine, cst.Assign, cst.Name]] = {}
        for line in definition.body.body:
            if isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1:
                statement = line.body[0]
                if isinstance(statement, cst.Assign) and len(statement.targets) == 1:
                    target = statement.targets[0].target
                    if isinstance(target, cst.Name):
                        members[target.value] = (line, statement, target)
        if "AL_MODEL" not in members:
            return
        line, statement, target = members["AL_MODEL"]
        span = self.file.span(target)
        other = members.get("LING2")
        if other is None:
            self._edit("REN004", span, "LING2")
            return
        old, new = (_literal(s.value) for s in (statement, other[1]))
        if old != "al_model" or new != "ling2":
            self._list(
                "REN004",
                span,
                f"`AL_MODEL` and `LING2` do not hold the names of one model ({old!r}, {new!r})",
                "say which value stays",
            )
            self._edit("REN004", span, "LING2")
            return
        self._remove_statement("REN004", line)

    # Strings and comments -------------------------------------------------------------------------

    def _string(self, node: cst.SimpleString | cst.FormattedStringText) -> None:
        start, end = self.file.span(node)
        self.covered.append((start, end))
        if self.text[start:end].strip("'\"") == "HybridAttention":
            self._hybrid((start, end))
        if not self.pattern.search(self.text, start, end):
            return
        value = node.evaluated_value if isinstance(node, cst.SimpleString) else None
        exact = value if isinstance(value, str) else None
        if self._loaded(node):
            return
        documentation = self._is_docstring(node)
        if isinstance(node, cst.SimpleString) and exact is not None and not documentation:
            if exact in KINDS and self._kind_string(node, exact):
                return
            if (
                exact in CHECKPOINT_NAMES
                and exact in self.names
                and self._checkpoint_string(node, exact)
            ):
                return
            if exact == "AL_MODEL":
                self._member_string(node, (start, end))
                return
            if exact == "ALModel":
                self._list(
                    "REN009",
                    (start, end),
                    "the folder ALModel is no more: its files go to different places",
                    "name the file or module that is meant",
                )
                return
            if (
                exact.partition(".")[0] in self.file.project.old_roots
                and re.fullmatch(r"\w+(?:\.\w+)+", exact)
                and not exact.endswith((".py", ".yml", ".sh"))
            ):
                return  # a dotted name: the import rules
        before = len(self.file.edits)
        self._words_in(start, end, "REN007" if documentation else "REN005")
        if exact is not None and re.fullmatch(r"[\w./-]+", exact):
            self._whole_literal((start, end), before)

    def _whole_literal(self, span: Span, since: int) -> None:
        """Make the edits in a string that is one word into one edit of the string.

        Other rules that know the string as a path or an attribute's name replace it whole.
        """
        inside = sorted(self.file.edits[since:], key=lambda e: e.start)
        if inside:
            del self.file.edits[since:]
            parts: list[str] = []
            position = span[0]
            for edit in inside:
                if edit.start < position:  # two words of one path
                    continue
                parts += (self.text[position : edit.start], edit.new)
                position = edit.end
            parts.append(self.text[position : span[1]])
            self.file.edit(inside[0].rule, span, "".join(parts), inside[0].reason)

    def _loaded(self, node: cst.CSTNode) -> bool:
        """Whether a string is the argument of a call that imports what it names."""
        argument = self.tree.parent(node)
        call = self.tree.parent(argument) if isinstance(argument, cst.Arg) else None
        return isinstance(call, cst.Call) and (
            (dotted_name(call.func) or "").rpartition(".")[2] in _LOADERS
        )

    def _is_docstring(self, node: cst.CSTNode) -> bool:
        parent = self.tree.parent(node)
        while isinstance(parent, (cst.FormattedString, cst.ConcatenatedString)):
            parent = self.tree.parent(parent)
        return isinstance(parent, cst.Expr)

    def _comments(self) -> None:
        self.covered.sort()
        starts = [s for s, _ in self.covered]
        for match in self.pattern.finditer(self.text):
            k = bisect_right(starts, match.start()) - 1
            while k >= 0 and self.covered[k][1] <= match.start() and k > 0:
                k -= 1
                if match.start() - self.covered[k][0] > 200_000:
                    break
            if k >= 0 and self.covered[k][0] <= match.start() < self.covered[k][1]:
                continue
            line = self.text.rfind("\n", 0, match.start()) + 1
            if "#" in self.text[line : match.start()]:
                self._word(match, line, len(self.text), "REN007")

    def _words_in(self, start: int, end: int, rule: str) -> None:
        for match in self.pattern.finditer(self.text, start, end):
            self._word(match, start, end, rule)

    def _word(self, match: re.Match[str], low: int, high: int, rule: str) -> None:
        """One AL word in a string or comment; `low` and `high` bound the text it stands in."""
        prose = rule == "REN007"
        if match.group() == "AL model":
            if prose:
                self._edit(rule, match.span(), "Ling2 model")
            return
        start, end = match.span()
        if self._in_quoted_chain(start, low):
            return
        while start > low and (self.text[start - 1].isalnum() or self.text[start - 1] == "_"):
            start -= 1
        while end < high and (self.text[end].isalnum() or self.text[end] == "_"):
            end += 1
        word = self.text[start:end]
        first, last = start, end
        while first > low and _TOKEN.match(self.text[first - 1]):
            first -= 1
        while last < high and _TOKEN.match(self.text[last]):
            last += 1
        token = self.text[first:last].rstrip(".:")
        last = first + len(token)
        if word in self.names:
            beside = self.text[start - 1 : start] + self.text[end : end + 1]
            if word in CHECKPOINT_NAMES and "|" in beside:  # one of a pattern's alternatives
                new = self.names[word]
                if not re.search(rf"\b{new}\b", self.text[low:high]):
                    self._edit("REN006", (start, end), f"{new}|{word}")
                self._list_kept((start, end), word)
                return
            if self._module_path(token):
                return
            self._edit(
                "REN006" if word in CHECKPOINT_NAMES else rule, (start, end), self.names[word]
            )
            return
        if self._module_path(token):
            return
        if "://" in token or token.startswith(("/", "~")):
            self._list(
                "REN009",
                (first, last),
                "names something outside the checkout, which keeps its name",
                "rename it there, then here",
            )
            return
        if ("/" in token or token.startswith("ALModel")) and self._path(token, first, last, rule):
            return
        if word == "ALModel":
            self._list(
                "REN009",
                (start, end),
                "the folder ALModel is no more: its files go to different places",
                "name the file or module that is meant",
            )
            return
        if word in ("al_model", "AL_MODEL"):
            if word == "AL_MODEL" and not (
                prose or self.text[:start].endswith("DecoderBlockType.")
            ):
                self._unknown_word((start, end), word)
                return
            self._edit(rule, (start, end), _NEW_WORD[word])
            return
        extension = re.match(r"\.\w+", self.text[end:high])
        name = word + (extension.group() if extension else "")
        if name in STRINGS or self._file_renamed(name):
            self._edit(rule, (start, end), new_name(word))
        elif prose and not extension:
            self._unknown_word((start, end), word)
        else:
            self._unknown_word((start, end), name)

    def _in_quoted_chain(self, offset: int, low: int) -> bool:
        """Whether a word of a string belongs to `name.attribute` of an imported name in an annotation."""
        while offset > low and (self.text[offset - 1].isalnum() or self.text[offset - 1] in "_."):
            offset -= 1
        return offset in self.quoted

    def _module_path(self, token: str) -> bool:
        """A dotted name or a path of the old package: the import and location rules rewrite it whole."""
        if "MaxText" in token:
            return True
        return re.fullmatch(r"ALModel(?:\.\w+)+", token) is not None and not token.endswith(".py")

    def _path(self, token: str, first: int, last: int, rule: str) -> bool:
        """A path of the checkout: as a whole where it goes."""
        placement = self.file.project.path(token.rstrip("/"))
        if placement is None or placement.new is None:
            return False
        tail = "/" if token.endswith("/") else ""
        self._edit(rule, (first, last), placement.new + tail)
        return True

    def _file_renamed(self, name: str) -> bool:
        """Whether a file of that name in the checkout gets the new name."""
        wanted = new_name(name)
        return any(
            old.rpartition("/")[2] == name
            and placement.new is not None
            and placement.new.rpartition("/")[2] == wanted
            for old, placement in self.file.project.placements.items()
            if old.endswith(name)
        )

    def _member_string(self, node: cst.SimpleString, span: Span) -> None:
        """`"AL_MODEL"` as the name of an enum member."""
        parent: cst.CSTNode | None = self.tree.parent(node)
        holder: cst.BaseExpression | None = None
        if isinstance(parent, cst.Index):
            element = self.tree.parent(parent)
            subscript = self.tree.parent(element) if element is not None else None
            holder = subscript.value if isinstance(subscript, cst.Subscript) else None
        elif isinstance(parent, cst.Arg):
            call = self.tree.parent(parent)
            if isinstance(call, cst.Call) and dotted_name(call.func) in ("getattr", "hasattr"):
                holder = call.args[0].value
        if isinstance(parent, cst.ComparisonTarget):
            parent = self.tree.parent(parent)
        by_name = isinstance(parent, cst.Comparison) and any(
            isinstance(side, cst.Attribute) and side.attr.value in ("name", "_name_")
            for side in (parent.left, *(c.comparator for c in parent.comparisons))
        )
        member = holder is not None and (dotted_name(holder) or "").endswith("DecoderBlockType")
        if by_name or member:
            self._edit("REN004", (span[0] + 1, span[1] - 1), "LING2")
        else:
            self._unknown_word(span, "AL_MODEL")

    def _kind_string(self, node: cst.SimpleString, old: str) -> bool:
        """A layer class by its name, where the two kinds are told apart. Returns whether it was dealt with."""
        span = self.file.span(node)
        inner = (span[0] + len(node.prefix) + len(node.quote), span[1] - len(node.quote))
        parent = self.tree.parent(node)
        if isinstance(
            parent, (cst.MatchValue, cst.Comparison, cst.ComparisonTarget)
        ) or self._class_name_test(node):
            self._edit("REN002", inner, KINDS[old])
            self._list(
                "REN003",
                span,
                f"asks for {_WHAT[old]} layers by class name; the name goes when the classes are merged",
                "ask for the layer index instead",
            )
            return True
        if isinstance(parent, cst.DictElement) and parent.key is node:
            holder = self.tree.parent(parent)
            assert isinstance(holder, cst.Dict)
            if self._differs_from_other_kind(holder, parent):
                self._edit("REN002", inner, KINDS[old])
                self._list(
                    "REN003",
                    span,
                    "this table tells the layer classes apart by name, which cannot be once they are one",
                    "key it by the layer index, or by a name of its own",
                )
                return True
        return False

    def _class_name_test(self, node: cst.CSTNode) -> bool:
        """Whether a string, or a list that it is in, is compared with a `__name__`."""
        current = self.tree.parent(node)
        while isinstance(
            current, (cst.Element, cst.List, cst.Tuple, cst.Set, cst.ComparisonTarget)
        ):
            current = self.tree.parent(current)
        return isinstance(current, cst.Comparison) and "__name__" in self.file.source(current)

    def _differs_from_other_kind(self, holder: cst.Dict, own: cst.DictElement) -> bool:
        """Whether the dict has the other kind as a key too, with another value."""
        for element in holder.elements:
            if (
                isinstance(element, cst.DictElement)
                and element is not own
                and isinstance(element.key, cst.SimpleString)
                and element.key.evaluated_value in LAYERS
                and self._becomes(element.value) != self._becomes(own.value)
            ):
                return True
        return False

    def _checkpoint_string(self, node: cst.SimpleString, old: str) -> bool:
        """A checkpoint name on its own. Returns whether it was dealt with."""
        span = self.file.span(node)
        inner = (span[0] + len(node.prefix) + len(node.quote), span[1] - len(node.quote))
        parent = self.tree.parent(node)
        new = self.names[old]
        if isinstance(parent, (cst.Comparison, cst.ComparisonTarget, cst.MatchValue)):
            self._list(
                "REN006",
                span,
                f"asks for the old checkpoint name; checkpoints written from now on say `{new}`",
                "ask for both names, or for the new one once the checkpoints are converted",
            )
            return True
        if isinstance(parent, cst.Arg):
            call = self.tree.parent(parent)
            if (
                isinstance(call, cst.Call)
                and isinstance(call.func, cst.Attribute)
                and call.func.attr.value in _STRING_TESTS
            ):
                self._list("REN006", span, "reads the old checkpoint name", f"it is `{new}` now")
                return True
            return False
        quoted = self.text[span[0] : inner[0]] + new + self.text[inner[1] : span[1]]
        if isinstance(parent, cst.DictElement):
            holder = self.tree.parent(parent)
            assert isinstance(holder, cst.Dict)
            keys = {
                e.key.evaluated_value
                for e in holder.elements
                if isinstance(e, cst.DictElement) and isinstance(e.key, cst.SimpleString)
            }
            if parent.key is node:
                value = self.file.source(parent.value)
                legacy = _literal(parent.value) == new  # a table from old names to the new one
                if new not in keys and not legacy and "\n" not in value:
                    self._beside(parent, f"{quoted}: {value}", before=True)
                self._list_kept(span, old)
                return True
            self._edit("REN006", inner, new)
            if old not in keys and keys & set(CHECKPOINT_NAMES):
                entry = f"{self.text[span[0]:span[1]]}: {quoted}"
                self._beside(parent, entry, before=False)
                self._list_kept(span, old)
            return True
        if isinstance(parent, cst.Element):
            holder_ = self.tree.parent(parent)
            assert isinstance(holder_, (cst.List, cst.Tuple, cst.Set))
            values = {_literal(e.value) for e in holder_.elements}
            if new not in values:
                self._beside(parent, quoted, before=True)
            self._list_kept(span, old)
            return True
        return False

    def _list_kept(self, span: Span, old: str) -> None:
        self._list(
            "REN006",
            span,
            f"`{old}` stays beside the new name, so that checkpoints written before can be read",
            "drop it when none is left",
        )

    def _beside(self, element: cst.CSTNode, text: str, *, before: bool) -> None:
        """Put a new element before or behind one, on a line of its own if that one has one."""
        start, end = self.file.span(element)
        line = self.text.rfind("\n", 0, start) + 1
        lead = self.text[line:start]
        own_line = lead.isspace() or (lead == "" and line > 0)
        gap = (self.tree.module.default_newline + lead) if own_line else " "
        if before:
            self.file.edit("REN006", (start, start), f"{text},{gap}")
        else:
            self.file.edit("REN006", (end, end), f",{gap}{text}")


_WHAT = {"ALDenseLayer": "dense", "ALMoELayer": "experts"}


def _root(node: cst.CSTNode) -> cst.CSTNode:
    while isinstance(node, cst.Attribute):
        node = node.value
    return node


def _name_node(node: cst.CSTNode) -> cst.CSTNode:
    """The name of a definition or parameter; other binding nodes are names themselves."""
    name = getattr(node, "name", node)
    return name if isinstance(name, cst.Name) else node


def _literal(node: cst.BaseExpression) -> object:
    return node.evaluated_value if isinstance(node, cst.SimpleString) else None


def _method(definition: cst.ClassDef, name: str) -> cst.FunctionDef | None:
    for statement in definition.body.body:
        if isinstance(statement, cst.FunctionDef) and statement.name.value == name:
            return statement
    return None


def _docstring(definition: cst.ClassDef) -> cst.BaseExpression | None:
    first = definition.body.body[0]
    if isinstance(first, cst.SimpleStatementLine) and isinstance(first.body[0], cst.Expr):
        value = first.body[0].value
        if isinstance(value, (cst.SimpleString, cst.ConcatenatedString)) and len(first.body) == 1:
            return value
    return None


_PLAIN_DEFAULT = re.compile(r"None|True|False|-?\d[\d_.]*|\"[^\"\\]*\"|'[^'\\]*'")


def _plain_parameters(parameters: cst.Parameters) -> str | None:
    """The parameters after `self`, without annotations; None if the layer index cannot be read from them."""
    parts: list[str] = []
    names: set[str] = set()

    def add(parameter: cst.Param) -> bool:
        name = parameter.name.value
        names.add(name)
        if parameter.default is None:
            parts.append(name)
            return True
        default = cst.Module([]).code_for_node(parameter.default)
        plain = _PLAIN_DEFAULT.fullmatch(default) is not None
        parts.append(f"{name}={default if plain else 'None'}")
        return plain or name not in ("config", "layer_idx")

    if parameters.posonly_params:
        return None
    for parameter in parameters.params[1:]:
        if not add(parameter):
            return None
    if isinstance(parameters.star_arg, cst.Param):
        parts.append(f"*{parameters.star_arg.name.value}")
    elif parameters.kwonly_params:
        parts.append("*")
    for parameter in parameters.kwonly_params:
        if not add(parameter):
            return None
    if parameters.star_kwarg is not None:
        parts.append(f"**{parameters.star_kwarg.name.value}")
    return ", ".join(parts) if {"config", "layer_idx"} <= names else None
