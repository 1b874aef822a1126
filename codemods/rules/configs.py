"""CFG: the configuration keys of the fork, in YAML, JSON, TOML, on command lines and in Python."""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from codemods.engine.context import PythonFile, SourceFile, TextFile
from codemods.engine.scopes import dotted_name
from codemods.engine.tree import Span
from codemods.rules.base import Example, Rule
from codemods.rules.locations import locations

WORDS: tuple[bytes, ...] = (
    b"layer_group_size",
    b"moe_layer_freq",
    b"argus_dump",
    b"al_model",
    b"base_config",
)

_EXAMPLE = "src/MaxText/configs/models/al_model.yml"

RULES = (
    Rule(
        "CFG001",
        "safe",
        "`layer_group_size` becomes `inhomogeneous_layer_cycle_interval`",
        "In configuration files and on command lines. In a file of Hugging Face's (it names its "
        "`architectures` or `model_type`) the key is theirs and stays.",
        (
            Example(
                "layer_group_size: 5  # 4 GLA, 1 MLA\n",
                "inhomogeneous_layer_cycle_interval: 5  # 4 GLA, 1 MLA\n",
                _EXAMPLE,
            ),
        ),
    ),
    Rule(
        "CFG002",
        "safe",
        "`moe_layer_freq: [0, 1, 1, …]` becomes `first_num_dense_layers` and `interleave_moe_layer_step: 1`",
        "Only for zeros followed by ones, one for each layer. Any other value cannot be said with the "
        "target's keys and is listed.",
        (
            Example(
                "base_num_decoder_layers: 4\nmoe_layer_freq: [0, 1, 1, 1]  # one dense layer\n",
                "base_num_decoder_layers: 4\nfirst_num_dense_layers: 1  # one dense layer\n"
                "interleave_moe_layer_step: 1\n",
                _EXAMPLE,
            ),
            Example(
                "moe_layer_freq: [0, 1, 0, 1]\n",
                "moe_layer_freq: [0, 1, 0, 1]\n",
                _EXAMPLE,
                listed=("moe_layer_freq",),
            ),
        ),
    ),
    Rule(
        "CFG003",
        "safe",
        "`decoder_block` and `model_name`: `al_model` becomes `ling2`, quoted as it was",
        examples=(Example('decoder_block: "al_model"\n', 'decoder_block: "ling2"\n', _EXAMPLE),),
    ),
    Rule(
        "CFG004",
        "safe",
        "`argus_dump_*` keys are removed; a comment behind one stays",
        examples=(
            Example(
                "argus_dump_enabled: False  # see the debugging guide\nmlp_dim: 8\n",
                "# see the debugging guide\nmlp_dim: 8\n",
                _EXAMPLE,
            ),
        ),
    ),
    Rule(
        "CFG005",
        "report",
        "keys of a configuration file that the target's configuration does not take",
        "Those that `ling2-migrate overlay` adds to it count as taken.",
        (
            Example(
                "no_such_key_anywhere: 1\n",
                "no_such_key_anywhere: 1\n",
                _EXAMPLE,
                listed=("no_such_key_anywhere",),
            ),
        ),
    ),
    Rule(
        "CFG006",
        "safe",
        "`base_config`: a file that is no longer found by its old name",
        "The target looks beside the file, then below configs/.",
        (
            Example(
                'base_config: "inference_jetstream.yml"\n',
                'base_config: "inference/inference_jetstream.yml"\n',
                "src/MaxText/configs/v5e/llama2_70b_v5e-16.yml",
            ),
        ),
    ),
    Rule(
        "CFG007",
        "review",
        "`layer_group_size` in Python: attributes, keywords, string keys",
        "Left alone where the object is a Hugging Face configuration by its name (`hf_config`). The "
        "definition of the field is listed: the target's configuration has it.",
        (
            Example(
                "def last(config, i):\n  return (i + 1) % config.layer_group_size == 0\n",
                "def last(config, i):\n  return (i + 1) % config.inhomogeneous_layer_cycle_interval == 0\n",
            ),
        ),
    ),
    Rule(
        "CFG008",
        "review",
        "`config.moe_layer_freq[i] == 0` becomes `i < config.first_num_dense_layers`; other uses are listed",
        "The list of zeros and ones became a count.",
        (
            Example(
                "def is_dense(config, i):\n  return config.moe_layer_freq[i] == 0\n",
                "def is_dense(config, i):\n  return i < config.first_num_dense_layers\n",
            ),
            Example(
                "def moe_layers(config):\n  return sum(config.moe_layer_freq)\n",
                "def moe_layers(config):\n  return sum(config.moe_layer_freq)\n",
                listed=("config.moe_layer_freq",),
            ),
        ),
    ),
)

GROUP_OLD, GROUP_NEW = "layer_group_size", "inhomogeneous_layer_cycle_interval"
FREQ_OLD, FREQ_NEW, STEP_NEW = (
    "moe_layer_freq",
    "first_num_dense_layers",
    "interleave_moe_layer_step",
)
_TODO_FREQ = (
    f"say it with {FREQ_NEW} and {STEP_NEW}, or keep the model's own per-layer choice in its code"
)
_FREQ_REASON = f"{FREQ_OLD} is not zeros followed by ones for every layer, which is all that {FREQ_NEW} can say"
_MODEL_KEYS = frozenset({"decoder_block", "model_name", "base_model_name"})
_LAYER_KEYS = ("base_num_decoder_layers", "num_decoder_layers")
_HUGGING_FACE = frozenset({"architectures", "model_type", "auto_map"})
_HUGGING_FACE_NAME = re.compile(
    r"(?:\A|_|\.)(?:hf|huggingface|hugging_face|pretrained)", re.IGNORECASE
)
_STRUCTURED = re.compile(r"\.(?:ya?ml|json)\Z")
_COMMENT = re.compile(r"[ \t]+#[^\n]*|[ \t]*(?=\r?\n|\Z)")
_REPEATED = re.compile(r"\[0\](?:\*(?P<zeros>\d+))?\s*\+\s*\[1\](?:\*(?P<ones>\d+))?\Z")
_PARAMETER = re.compile(
    rf"(?<![\w.-])(?P<dashes>--)?(?P<key>{GROUP_OLD}|{FREQ_OLD})(?P<value>=(?P<quote>[\"']?)(?P<list>\[[^\]\n]*\])?(?P=quote))?"
    r"(?!\w)"
)
_TOP_KEY = re.compile(r"^(?P<key>[A-Za-z_]\w*)[ \t]*:(?=\s|\Z)", re.MULTILINE)


def text(file: TextFile) -> None:
    """Rewrite or list the fork's configuration keys in a file that is not Python."""
    if _STRUCTURED.search(file.path):
        if _structured(file):
            return
        for found in re.finditer(r"\bargus_dump_\w+(?=[\"']?[ \t]*:)", file.text):
            file.site("CFG004", found.span(), "the file cannot be parsed", "remove the key by hand")
    _parameters(file, 0, len(file.text))


# YAML and JSON ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Key:
    """A key of a mapping with its value.

    Attributes:
        name: the key.
        mapping, key, value: the parsed nodes.
        flow: whether the mapping is written `{…}`.
    """

    name: str
    mapping: MappingNode
    key: ScalarNode
    value: Node
    flow: bool


def _structured(file: TextFile) -> bool:
    """Rewrite a YAML or JSON file; False when it has to be treated as plain text."""
    wanted = any(
        word in file.text for word in (GROUP_OLD, FREQ_OLD, "argus_dump", "base_config")
    ) or ("al_model" in file.text)
    if not wanted:
        _unknown_keys(file)
        return True
    try:
        documents = list(YAML().compose_all(file.text))
    except (YAMLError, ValueError):
        return False
    for document in documents:
        if document is None:
            continue
        keys = list(_keys(document))
        if any(
            entry.name in _HUGGING_FACE for entry in keys if entry.mapping is document
        ) and file.path.endswith(".json"):
            continue
        _Document(file, document, keys).run()
    _unknown_keys(file)
    return True


def _keys(node: Node) -> Iterator[_Key]:
    """Every key with its value, each node once (aliases lead to the same nodes)."""
    seen: set[int] = set()
    stack = [node]
    while stack:
        node = stack.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, MappingNode):
            for key, value in node.value:
                if isinstance(key, ScalarNode):
                    yield _Key(key.value, node, key, value, bool(node.flow_style))
                stack.append(value)
        elif isinstance(node, SequenceNode):
            stack.extend(node.value)


def _span(node: Node) -> Span:
    return node.start_mark.index, node.end_mark.index


class _Document:
    """One YAML document (or JSON file) with keys to look at."""

    def __init__(self, file: TextFile, root: Node, keys: list[_Key]) -> None:
        self.file = file
        self.text = file.text
        self.root = root
        self.keys = keys
        self.json = file.path.endswith(".json")
        self._counts = Counter((id(k.mapping), k.name) for k in keys)

    def run(self) -> None:
        for entry in self.keys:
            name = entry.name
            if name == GROUP_OLD:
                if self._once(entry, "CFG001") and self._free(entry, GROUP_NEW, "CFG001"):
                    self.file.edit("CFG001", self._inside(entry.key), GROUP_NEW)
            elif name == FREQ_OLD:
                if self._once(entry, "CFG002"):
                    self._frequency(entry)
            elif name in _MODEL_KEYS:
                named = isinstance(entry.value, ScalarNode) and entry.value.value == "al_model"
                if named and not self._is_alias(entry):
                    span = self._value_span(entry.value, "al_model")
                    self.file.edit("CFG003", span, "ling2")
            elif name == "argus_dump" or name.startswith("argus_dump_"):
                self._remove(entry)
            elif name == "base_config" and entry.mapping is self.root:
                self._base_config(entry)

    def _once(self, entry: _Key, rule: str) -> bool:
        if self._counts[(id(entry.mapping), entry.name)] == 1:
            return True
        self.file.site(
            rule,
            _span(entry.key),
            f"{entry.name} stands twice in this mapping; which one counts depends on the reader",
            "keep one of them",
        )
        return False

    def _free(self, entry: _Key, new: str, rule: str) -> bool:
        """Whether the mapping does not have the new key yet."""
        if self._counts[(id(entry.mapping), new)] == 0:
            return True
        self.file.site(
            rule,
            _span(entry.key),
            f"the mapping already has {new}",
            f"keep one of {entry.name} and {new}",
        )
        return False

    def _is_alias(self, entry: _Key) -> bool:
        """Whether the value is written elsewhere (`*name`)."""
        return _span(entry.value)[0] < _span(entry.key)[1]

    def _inside(self, node: Node) -> Span:
        """The scalar's text without its quotes."""
        start, end = _span(node)
        quoted = self.text[start] in "\"'"
        return (start + 1, end - 1) if quoted else (start, end)

    def _value_span(self, node: Node, value: str) -> Span:
        start, end = _span(node)
        at = self.text.find(value, start, end)
        return at, at + len(value)

    def _line_end(self, offset: int) -> int:
        end = self.text.find("\n", offset)
        return len(self.text) if end == -1 else end

    def _end(self, node: Node) -> int:
        """Where the node's own text ends (block nodes are marked up to the next token)."""
        if isinstance(node, (SequenceNode, MappingNode)) and not node.flow_style and node.value:
            last = node.value[-1]
            return self._end(last[1] if isinstance(last, tuple) else last)
        start, end = _span(node)
        return start + len(self.text[start:end].rstrip())

    # The list of layers ---------------------------------------------------------------------------

    def _frequency(self, entry: _Key) -> None:
        span = (_span(entry.key)[0], max(_span(entry.key)[1], self._end(entry.value)))
        if self._is_alias(entry) or entry.value.anchor:
            self.file.site(
                "CFG002",
                _span(entry.key),
                "the list is shared through an anchor or alias",
                f"write {FREQ_NEW} in each place by hand",
            )
            return
        dense = _dense_layers(self._list(entry.value))
        if dense is None or not self._agrees(entry, dense):
            self.file.site("CFG002", span, _FREQ_REASON, _TODO_FREQ)
            return
        if not self._free(entry, FREQ_NEW, "CFG002"):
            return
        quote = self.text[_span(entry.key)[0]] if self.text[_span(entry.key)[0]] in "\"'" else ""
        first = f"{quote}{FREQ_NEW}{quote}: {dense[0]}"
        second = f"{quote}{STEP_NEW}{quote}: 1"
        if self._counts[(id(entry.mapping), STEP_NEW)]:
            self.file.edit("CFG002", span, first, f"{STEP_NEW} is set already")
            return
        line_start = self.text.rfind("\n", 0, span[0]) + 1
        indent = self.text[line_start : span[0]]
        newline = (
            "\r\n"
            if self.text[self._line_end(span[0]) - 1 : self._line_end(span[0])] == "\r"
            else "\n"
        )
        if indent.strip():
            if entry.flow:
                self.file.edit("CFG002", span, f"{first}, {second}")
            else:  # `- moe_layer_freq: …`, the first key of a list's mapping
                column = " " * len(indent)
                self._block(span, first, f"{column}{second}", newline, column)
            return
        if entry.flow:
            self.file.edit("CFG002", span, f"{first},{newline}{indent}{second}")
        else:
            self._block(span, first, f"{indent}{second}", newline, indent)

    def _block(self, span: Span, first: str, second: str, newline: str, indent: str) -> None:
        """Two keys for one, each on its line; comments of the first stay with it."""
        group = f"freq{span[0]}"
        comments = re.findall(r"(?<=\s)#[^\n]*", self.text[span[0] : span[1]])
        line_end = self._line_end(span[1])
        stop = line_end - 1 if self.text[line_end - 1 : line_end] == "\r" else line_end
        kept = "".join(f"{newline}{indent}{comment.rstrip()}" for comment in comments)
        self.file.edit("CFG002", span, first, group=group)
        self.file.edit("CFG002", (stop, stop), f"{kept}{newline}{second}", group=group)

    def _list(self, node: Node) -> list[str] | str | None:
        if isinstance(node, SequenceNode):
            return [v.value if isinstance(v, ScalarNode) else "?" for v in node.value]
        return str(node.value) if isinstance(node, ScalarNode) else None

    def _agrees(self, entry: _Key, dense: tuple[int, int]) -> bool:
        """Whether the list has as many entries as the model has layers, where that is said."""
        for other in self.keys:
            if other.mapping is entry.mapping and other.name in _LAYER_KEYS:
                value = other.value.value if isinstance(other.value, ScalarNode) else ""
                if str(value).isdigit() and int(value) != sum(dense):
                    return False
        return True

    # Keys that go -----------------------------------------------------------------------------------

    def _remove(self, entry: _Key) -> None:
        start = _span(entry.key)[0]
        stop = max(_span(entry.key)[1], self._end(entry.value))
        if self._is_alias(entry):
            stop = self._line_end(start)
            comment = re.compile(r"[ \t]+#").search(self.text, start, stop)
            stop = comment.start() if comment else stop
        elif entry.value.anchor:
            self.file.site(
                "CFG004",
                (start, stop),
                f"the value has the anchor &{entry.value.anchor}, which may be used elsewhere",
                "remove the key by hand",
            )
            return
        if stop == _span(entry.key)[1]:  # no value
            stop = self.text.find(":", stop) + 1
        if entry.flow:
            after = re.compile(r"\s*,[ \t]*").match(self.text, stop)
            before = re.compile(r",\s*\Z").search(self.text, max(0, start - 400), start)
            line_start = self.text.rfind("\n", 0, start) + 1
            if after is not None:
                line_end = self._line_end(after.end())
                alone = not self.text[line_start:start].strip() and after.end() == line_end
                self.file.edit(
                    "CFG004", (line_start, line_end + 1) if alone else (start, after.end()), ""
                )
            else:
                self.file.edit("CFG004", (before.start() if before else start, stop), "")
            return
        line_start = self.text.rfind("\n", 0, start) + 1
        indent = self.text[line_start:start]
        tail = _COMMENT.match(self.text, stop)
        comments = re.findall(r"(?<=\s)#[^\n]*", self.text[start:stop])
        if tail is not None and tail.group().strip():
            comments.append(tail.group().strip())
        line_end = self._line_end(stop)
        if indent.strip():  # `- argus_dump_x: 1`
            self.file.site(
                "CFG004",
                (start, stop),
                "it is the first key of a list's entry",
                "remove it by hand",
            )
        elif comments:
            kept = "\n".join(f"{indent}{comment.rstrip()}" for comment in comments)
            self.file.edit("CFG004", (line_start, line_end), kept)
        else:
            self.file.edit("CFG004", (line_start, min(line_end + 1, len(self.text))), "")

    # base_config ------------------------------------------------------------------------------------

    def _base_config(self, entry: _Key) -> None:
        if not isinstance(entry.value, ScalarNode) or self._is_alias(entry):
            return
        written = str(entry.value.value)
        if not written or written.startswith("/"):
            return
        places = locations(self.file.project)
        path = self.file.project.canonical(self.file.path)
        old_configs, new_configs = places.root_folder("MAXTEXT_CONFIGS_DIR")
        candidates = [
            posixpath.join(posixpath.dirname(path), written),
            posixpath.join(old_configs, written),
        ]
        old = next((c for c in map(posixpath.normpath, candidates) if c in places.files), None)
        if old is None:
            return
        new = places.files[old]
        span = self._inside(entry.value)
        if new is None:
            self.file.site(
                "CFG006",
                span,
                f"{old} has no place in the migrated tree",
                "inherit from what replaced it",
            )
            return
        here = places.new_folder_of(path)
        if new in (posixpath.normpath(posixpath.join(f, written)) for f in (here, new_configs)):
            return
        if new.startswith(new_configs + "/"):
            self.file.edit("CFG006", span, new[len(new_configs) + 1 :])
        else:
            self.file.edit("CFG006", span, posixpath.relpath(new, here))


def _dense_layers(value: list[str] | str | None) -> tuple[int, int] | None:
    """(zeros, ones) of a list of zeros followed by ones; None for anything else."""
    if isinstance(value, str):
        repeated = _REPEATED.match(value.replace(" ", "").strip("()"))
        if repeated is not None:
            return int(repeated["zeros"] or 1), int(repeated["ones"] or 1)
        if not re.fullmatch(r"\[\s*[01](?:\s*,\s*[01])*\s*,?\s*\]", value):
            return None
        value = re.findall(r"[01]", value)
    if not value or set(value) - {"0", "1"} or "1" not in value:
        return None
    zeros = value.index("1")
    return (zeros, len(value) - zeros) if "0" not in value[zeros:] else None


def _unknown_keys(file: TextFile) -> None:
    """List top-level keys of a configuration file that the target does not take."""
    fields = file.project.config_fields
    path = file.project.canonical(file.path)
    if fields is None or not path.endswith((".yml", ".yaml")):
        return
    if not path.startswith("src/MaxText/") or "/configs/" not in path:
        return
    for found in _TOP_KEY.finditer(file.text):
        key = found["key"]
        if (
            key in fields
            or key in (GROUP_OLD, FREQ_OLD, "base_config")
            or key.startswith("argus_dump")
        ):
            continue
        file.site(
            "CFG005",
            found.span("key"),
            f"the target's configuration has no `{key}`",
            "drop it, rename it to what replaced it, or add the field to the target's configuration",
        )


# Command lines and other text -------------------------------------------------------------------------


def _parameters(file: SourceFile, start: int, end: int) -> None:
    """`layer_group_size=5` and `moe_layer_freq=[0,1,1]` as words of a command, and mentions of the keys."""
    for found in _PARAMETER.finditer(file.text, start, end):
        key = found["key"]
        if key == GROUP_OLD:
            file.edit("CFG001", found.span("key"), GROUP_NEW)
            continue
        dense = _dense_layers(found["list"]) if found["list"] else None
        if dense is None:
            reason = (
                _FREQ_REASON
                if found["value"]
                else f"{FREQ_OLD} became {FREQ_NEW}, which is a count"
            )
            file.site("CFG002", found.span(), reason, _TODO_FREQ)
            continue
        dashes = found["dashes"] or ""
        between = " "
        quote = file.text[found.start() - 1 : found.start()]
        if quote in ("'", '"') and file.text[found.end() : found.end() + 1] == quote:
            before = file.text[max(0, found.start() - 40) : found.start() - 1].rstrip()
            listed = before.endswith((",", "[")) and file.text[found.end() + 1 :].lstrip()[:1] in (
                ",",
                "]",
            )
            between = f"{quote}, {quote}" if listed else f"{quote} {quote}"
        file.edit(
            "CFG002", found.span(), f"{dashes}{FREQ_NEW}={dense[0]}{between}{dashes}{STEP_NEW}=1"
        )


# Python -----------------------------------------------------------------------------------------------


def python(file: PythonFile) -> None:
    """Rewrite or list the two keys in Python: attributes, keywords, names in strings."""
    text_ = file.text
    if GROUP_OLD not in text_ and FREQ_OLD not in text_:
        return
    covered: list[Span] = []
    for node in file.tree.walk():
        if isinstance(node, cst.Attribute) and node.attr.value in (GROUP_OLD, FREQ_OLD):
            covered.append(file.span(node.attr))
            _attribute(file, node)
        elif isinstance(node, cst.Arg) and node.keyword is not None:
            if node.keyword.value in (GROUP_OLD, FREQ_OLD):
                covered.append(file.span(node.keyword))
                _keyword(file, node)
        elif isinstance(node, (cst.SimpleString, cst.FormattedStringText)):
            source = node.value
            if GROUP_OLD in source or FREQ_OLD in source:
                covered.append(file.span(node))
                _python_string(file, node)
        elif isinstance(node, cst.Name) and node.value in (GROUP_OLD, FREQ_OLD):
            span = file.span(node)
            if any(s <= span[0] < e for s, e in covered):
                continue
            covered.append(span)
            _name(file, node)
    for found in _PARAMETER.finditer(text_):
        if any(s <= found.start() < e for s, e in covered):
            continue
        if "#" in text_[text_.rfind("\n", 0, found.start()) + 1 : found.start()]:
            _parameters(file, found.start(), found.end())


def _attribute(file: PythonFile, node: cst.Attribute) -> None:
    holder = dotted_name(node.value) or ""
    if _HUGGING_FACE_NAME.search(holder):
        return
    if node.attr.value == GROUP_OLD:
        file.edit("CFG007", file.span(node.attr), GROUP_NEW)
        return
    comparison = _comparison(file, node)
    if comparison is None:
        file.site(
            "CFG008", file.span(node), f"{FREQ_OLD}, a list, became {FREQ_NEW}, a count", _TODO_FREQ
        )
        return
    whole, index, dense = comparison
    operator = "<" if dense else ">="
    new = f"{index} {operator} {file.source(node.value)}.{FREQ_NEW}"
    file.edit(
        "CFG008", file.span(whole), new, f"the list was zeros for the first {FREQ_NEW} layers"
    )


def _comparison(file: PythonFile, node: cst.Attribute) -> tuple[cst.Comparison, str, bool] | None:
    """`node[i] == 0`: the comparison, `i`, and whether it asks for a dense layer."""
    subscript = file.tree.parent(node)
    if (
        not isinstance(subscript, cst.Subscript)
        or subscript.value is not node
        or len(subscript.slice) != 1
    ):
        return None
    index = subscript.slice[0].slice
    whole = file.tree.parent(subscript)
    if not isinstance(index, cst.Index) or not isinstance(whole, cst.Comparison):
        return None
    if whole.left is not subscript or len(whole.comparisons) != 1:
        return None
    target = whole.comparisons[0]
    if not isinstance(target.operator, (cst.Equal, cst.NotEqual)):
        return None
    if not isinstance(target.comparator, cst.Integer) or target.comparator.value not in ("0", "1"):
        return None
    value = index.value
    if isinstance(value, (cst.UnaryOperation, cst.NamedExpr)):
        return None  # counted from the end
    source = file.source(value)
    if isinstance(value, (cst.IfExp, cst.Lambda, cst.BooleanOperation, cst.Comparison)):
        source = f"({source})"
    dense = (target.comparator.value == "0") == isinstance(target.operator, cst.Equal)
    return whole, source, dense


def _keyword(file: PythonFile, node: cst.Arg) -> None:
    assert node.keyword is not None
    call = file.tree.parent(node)
    if isinstance(call, cst.Call) and _has_parameter(file, call, node.keyword.value):
        return  # a function of the checkout with a parameter of that name
    if isinstance(call, cst.Call) and re.search(
        r"(?<!Model)Config\Z", dotted_name(call.func) or ""
    ):
        called = (dotted_name(call.func) or "").rpartition(".")[2]
        if called not in ("MaxTextConfig", "Config"):
            return  # transformers.DeepseekV3Config(…)
    if node.keyword.value == GROUP_OLD:
        file.edit("CFG007", file.span(node.keyword), GROUP_NEW)
        return
    dense = _dense_layers(file.source(node.value))
    if dense is None:
        file.site("CFG008", file.span(node), _FREQ_REASON, _TODO_FREQ)
        return
    start = file.span(node.keyword)[0]
    end = file.span(node.value)[1]
    file.edit("CFG008", (start, end), f"{FREQ_NEW}={dense[0]}, {STEP_NEW}=1")


def _has_parameter(file: PythonFile, call: cst.Call, name: str) -> bool:
    """Whether a function of the checkout that is called like this takes a parameter `name`."""
    called = (dotted_name(call.func) or "").rpartition(".")[2]
    pattern = rf"\bdef[ \t]+{re.escape(called)}[ \t]*\([^)]*\b{name}\b"
    if called and re.search(pattern, file.text):
        return True
    for module in file.project.old.modules.values():
        found = module.definitions.get(called)
        if found is not None and found.parameters is not None and name in found.parameters.names:
            return True
    return False


def _python_string(file: PythonFile, node: cst.SimpleString | cst.FormattedStringText) -> None:
    start, end = file.span(node)
    if isinstance(node, cst.SimpleString) and node.raw_value in (GROUP_OLD, FREQ_OLD):
        parent = file.tree.parent(node)
        if (
            isinstance(parent, cst.DictElement)
            and parent.key is node
            and node.raw_value == FREQ_OLD
            and not _in_hugging_face_table(file, node)
        ):
            dense = _dense_layers(file.source(parent.value))
            if dense is not None:
                quote = f"{node.prefix}{node.quote}"
                new = f"{quote}{FREQ_NEW}{node.quote}: {dense[0]}, {quote}{STEP_NEW}{node.quote}: 1"
                file.edit("CFG008", (start, file.span(parent.value)[1]), new)
                return
        holder = _holder(file, node)
        if _HUGGING_FACE_NAME.search(holder) or _in_hugging_face_table(file, node):
            return
        if node.raw_value == GROUP_OLD:
            at = start + len(node.prefix) + len(node.quote)
            file.edit("CFG007", (at, at + len(GROUP_OLD)), GROUP_NEW)
        else:
            file.site(
                "CFG008",
                (start, end),
                f"{FREQ_OLD}, a list, became {FREQ_NEW}, a count",
                _TODO_FREQ,
            )
        return
    _parameters(file, start, end)


def _in_hugging_face_table(file: PythonFile, node: cst.CSTNode) -> bool:
    """Whether a string is a key of a literal that is one of Hugging Face's configurations."""
    for outer in file.tree.ancestors(node):
        if isinstance(outer, cst.Dict):
            keys = {
                element.key.raw_value
                for element in outer.elements
                if isinstance(element, cst.DictElement)
                and isinstance(element.key, cst.SimpleString)
            }
            return bool(keys & _HUGGING_FACE)
        if isinstance(outer, cst.BaseStatement):
            break
    return False


def _holder(file: PythonFile, node: cst.CSTNode) -> str:
    """The name of what a string key is looked up in."""
    for outer in file.tree.ancestors(node):
        if isinstance(outer, cst.Subscript):
            return dotted_name(outer.value) or ""
        if isinstance(outer, cst.Call):
            function = outer.func
            if isinstance(function, cst.Attribute):
                return dotted_name(function.value) or ""
            first = outer.args[0].value if outer.args else None
            return dotted_name(first) or "" if first is not None else ""
        if isinstance(outer, (cst.BaseStatement, cst.Dict)):
            return ""
    return ""


def _name(file: PythonFile, node: cst.Name) -> None:
    """A variable, parameter or field of that name."""
    parent = file.tree.parent(node)
    span = file.span(node)
    in_class = False
    if isinstance(parent, (cst.AnnAssign, cst.AssignTarget)):
        for outer in file.tree.ancestors(node):
            if isinstance(outer, cst.FunctionDef):
                break
            if isinstance(outer, cst.ClassDef):
                in_class = True
                break
    if in_class:
        new = GROUP_NEW if node.value == GROUP_OLD else f"{FREQ_NEW} and {STEP_NEW}"
        file.site(
            "CFG007" if node.value == GROUP_OLD else "CFG008",
            span,
            f"the fork's own field; the target's configuration has {new}",
            "drop the field where the target's configuration has its own",
        )
