"""Properties of the rules together, on random sources.

The sources are put together from what forks hold: imports of every form, uses of what they bind, dump hooks,
AL names, dotted names and paths in strings, and ordinary code around them.
"""

from __future__ import annotations

import ast
import itertools
import json
import os
import re
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from codemods.engine.context import PythonFile
from codemods.engine.edits import apply, settle
from codemods.engine.project import Options, Project
from codemods.engine.rewrite import Result, rewrite
from codemods.maps import model, select
from codemods.maps.symbols import SymbolTable, module_name
from codemods.rules import (
    all_rules,
    configs,
    dumps,
    imports,
    moves,
    renames,
    run_python,
    signatures,
    text,
)
from codemods.rules import select as select_rules
from codemods.upstream import resolve_upstream
from migration_tests.support import UPSTREAM
from migration_tests.unit.dump_driver import ARGUS, ARGUS_PATH

FIXTURE = Path(__file__).parents[1] / "fixtures" / "ant_pretrain"

profile = settings(
    derandomize=True,
    max_examples=80,
    deadline=None,
    database=None,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

# What every checkout of these tests holds beside the random file.
BASE = {
    "src/MaxText/__init__.py": "",
    "src/MaxText/train.py": "def train_loop(config):\n  pass\n",
    "src/MaxText/own.py": "LIMIT = 3\n\n\nclass Own:\n  pass\n\n\ndef helper(x):\n  return x\n",
    ARGUS_PATH: ARGUS,
    "ALModel/al_model.py": "class ALDenseLayer:\n  pass\n\n\nclass ALMoELayer:\n  pass\n",
}
PATHS = ("tools/random_tool.py", "src/MaxText/layers/random_ops.py", "tests/random_test.py")


# Sources ------------------------------------------------------------------------------------------------

# Old module → names that can be imported from it: symbols and submodules.
NAMES = {
    "MaxText": ("max_utils", "max_logging", "pyconfig", "multimodal_utils", "optimizers", "own"),
    "MaxText.layers": ("moe", "embeddings", "linears", "decoders"),
    "MaxText.layers.moe": ("RoutedMoE", "GateLogit"),
    "MaxText.layers.embeddings": ("Qwen3NextRotaryEmbedding", "RotaryEmbedding"),
    "MaxText.layers.linears": ("DenseGeneral", "MlpBlock"),
    "MaxText.common_types": ("DecoderBlockType", "Config", "Array"),
    "MaxText.max_utils": ("print_system_information", "close_summary_writer"),
    "MaxText.own": ("Own", "helper", "LIMIT"),
    "ALModel.al_model": ("ALDenseLayer", "ALMoELayer"),
    "jax": ("numpy", "lax"),
    "os": ("path",),
}
ATTRIBUTES = {
    "max_utils": ("print_system_information", "close_summary_writer"),
    "max_logging": ("log",),
    "pyconfig": ("initialize",),
    "multimodal_utils": ("load_image_from_path", "NUM_IMAGE_CHANNELS"),
    "moe": ("RoutedMoE", "GateLogit"),
    "embeddings": ("Qwen3NextRotaryEmbedding", "RotaryEmbedding"),
    "linears": ("DenseGeneral", "MlpBlock"),
    "decoders": ("Decoder",),
    "own": ("Own", "helper", "LIMIT"),
    "DecoderBlockType": ("AL_MODEL", "LING2", "DEEPSEEK"),
    "numpy": ("zeros", "float32"),
    "path": ("join",),
}
MODULES = [m for m in NAMES if m.startswith("MaxText.")]
STRINGS = (
    '"MaxText"',
    '"MaxText is a framework."',
    '"MaxText.train"',
    '"MaxText.layers.moe.RoutedMoE"',
    '"python3 -m MaxText.train src/MaxText/configs/base.yml"',
    '"src/MaxText/configs/base.yml"',
    "'al_model'",
    '"model_name=al_model"',
    '"ALDenseLayer"',
    'f"MaxText.{name}"',
    'f"{x}/MaxText"',
    '"""Two lines on MaxText.\n\n  See MaxText.layers.moe.\n  """',
    "'plain'",
    '"é ü"',
)


@dataclass
class Writer:
    """Draws a source and keeps what its names are bound to.

    Attributes:
        draw: hypothesis's.
        bound: name in the source → the old name it stands for.
        dumps: the hooks by the names they are bound to.
    """

    draw: st.DrawFn
    bound: dict[str, str]
    dumps: set[str]

    def pick[T](self, options: Iterable[T]) -> T:
        return self.draw(st.sampled_from(list(options)))

    def chance(self, of: int = 2) -> bool:
        return self.draw(st.integers(1, of)) == 1

    def import_(self) -> str:
        form = self.pick(("from", "from", "from", "brackets", "plain", "as", "root"))
        if form == "root":
            self.bound["mt"] = "MaxText"
            return "import MaxText as mt\n"
        if form in ("plain", "as"):
            module = self.pick(MODULES)
            if form == "as":
                name = f"lib{self.draw(st.integers(0, 2))}"
                self.bound[name] = module.rpartition(".")[2]
                return f"import {module} as {name}\n"
            self.bound["MaxText"] = "MaxText"
            return f"import {module}\n"
        module = self.pick(NAMES)
        names = self.draw(
            st.lists(st.sampled_from(NAMES[module]), min_size=1, max_size=3, unique=True)
        )
        parts = []
        for name in names:
            if self.chance(4):
                alias = f"{name.lower()}_{self.draw(st.integers(0, 1))}"
                self.bound[alias] = name
                parts.append(f"{name} as {alias}")
            else:
                self.bound[name] = name
                parts.append(name)
        comment = self.pick(("", "", "  # noqa: F401", "  # why"))
        if form == "brackets":
            lines = "".join(f"    {p},{self.pick(('', '  # kept'))}\n" for p in parts)
            return f"from {module} import ({comment}\n{lines})\n"
        return f"from {module} import {', '.join(parts)}{comment}\n"

    def dump_import(self) -> str:
        module = "MaxText.utils.argus_utils"
        form = self.pick(("hooks", "plain", "module"))
        if form == "hooks":
            self.dumps |= {"_dump_tensor", "_dumpable"}
            return f"from {module} import dump_tensor as _dump_tensor, dumpable as _dumpable\n"
        if form == "plain":
            self.dumps |= {"dump_tensor"}
            return f"from {module} import dump_tensor\n"
        self.dumps |= {"argus_utils.dump_tensor"}
        return "from MaxText.utils import argus_utils\n"

    def value(self) -> str:
        """An expression."""
        form = self.draw(st.integers(0, 11))
        if form <= 3 and self.bound:
            name = self.pick(sorted(self.bound))
            old = self.bound[name]
            if old == "MaxText":
                return f"{name}.{self.pick(('max_utils.print_system_information', 'layers.moe.RoutedMoE', 'own.Own'))}"
            if old in ATTRIBUTES:
                name = f"{name}.{self.pick(ATTRIBUTES[old])}"
            return self.pick(
                (name, f"{name}(x, 1)", f"{name}(\n      x,  # first\n      y=2,\n  )")
            )
        if form == 4:
            return self.pick(STRINGS)
        if form == 5:
            return f"[{self.value()} for y in x if y]"
        if form == 6:
            return f"(lambda x, y=1: {self.value()})"
        if form == 7 and self.dumps:
            hook = self.pick(sorted(d for d in self.dumps if "able" not in d) or ["x"])
            return f'{hook}("a", x)'
        if form == 8:
            return f"{{'k': {self.value()}, **x}}"
        if form == 9:
            return f"x[{self.value()}]"
        return self.pick(("x", "x + 1", "(y := x)", "None", "x.T @ y", "not x", "-1.5e3"))

    def simple(self) -> str:
        form = self.draw(st.integers(0, 11))
        if form == 0 and self.dumps:
            hook = self.pick(sorted(d for d in self.dumps if "able" not in d) or ["print"])
            return f'{hook}({self.pick(STRINGS)}, x){self.pick(("", "  # look"))}\n'
        if form == 1 and self.dumps:
            hook = self.pick(sorted(d for d in self.dumps if "able" not in d) or ["str"])
            return f'layer_name = "l" + str(x)\n{hook}(layer_name, x)\n'
        if form == 2:
            return f'mock.patch("{self.pick(MODULES)}.{self.pick(("run", "RoutedMoE"))}")\n'
        if form == 3:
            return f'm = importlib.import_module("{self.pick(NAMES)}")\n'
        if form == 4:
            return 'p = os.path.join(x, "src", "MaxText", "configs", "base.yml")\n'
        if form == 5:
            return f"y: {self.pick(('int', chr(34) + self.pick(sorted(self.bound) or ['int']) + chr(34)))} = {self.value()}\n"
        if form == 6:
            return self.import_()
        if form == 7:
            return "pass\n" if self.chance() else "# a comment on MaxText\nx = 1; y = 2\n"
        if form == 8:
            return f"print({self.value()}, {self.value()})\n"
        return f"{self.pick(('x', 'y', 'z'))} {self.pick(('=', '=', '+='))} {self.value()}\n"

    def block(self, depth: int) -> str:
        parts = [self.statement(depth) for _ in range(self.draw(st.integers(1, 3)))]
        return textwrap.indent("".join(parts), "  ", lambda line: bool(line.strip()))

    def statement(self, depth: int) -> str:
        if depth == 0 or self.chance(3):
            return self.simple()
        form = self.draw(st.integers(0, 8))
        inner = self.block
        if form == 0:
            other = f"else:\n{inner(depth - 1)}" if self.chance() else ""
            return f"if {self.value()}:\n{inner(depth - 1)}{other}"
        if form == 1:
            return f"try:\n{inner(depth - 1)}except ImportError:\n{inner(depth - 1)}"
        if form == 2:
            return f"for y in {self.value()}:\n{inner(depth - 1)}"
        if form == 3:
            return f"with open(x) as f:\n{inner(depth - 1)}"
        if form == 4:
            return f"if TYPE_CHECKING:\n{inner(depth - 1)}"
        if form == 5:
            base = self.pick(
                sorted(n for n, o in self.bound.items() if o[:1].isupper()) or ["object"]
            )
            dumped = self.pick((*("@_dumpable\n" for _ in self.dumps & {"_dumpable"}), ""))
            base = "object" if base in ("MaxText", "mt") else base
            return f"{dumped}class C({base}):\n  'Doc of MaxText.'\n\n{inner(depth - 1)}\n"
        decorators = [
            d for d in ('@_dumpable("f")\n', "@_dumpable  # tail\n") if "_dumpable" in self.dumps
        ]
        decorator = self.pick((*decorators, "@cache\n", ""))
        parameter = self.pick(("", ", y=None", ", max_utils=None", ", *, own: 'Own' = None"))
        return (
            f"{decorator}def f{self.draw(st.integers(0, 2))}(x{parameter}):\n{inner(depth - 1)}\n"
        )

    def source(self) -> str:
        parts = [self.pick(("", '"""Doc: MaxText tools."""\n', "#!/usr/bin/env python3\n# x\n"))]
        parts.append(
            "import importlib\nimport os\nfrom unittest import mock\nfrom functools import cache\n"
        )
        parts.append("from typing import TYPE_CHECKING\n\n")
        parts += [self.import_() for _ in range(self.draw(st.integers(1, 4)))]
        if self.chance():
            parts.append(self.dump_import())
        parts.append("\nx = y = z = name = 0\n\n")
        parts += [self.statement(2) for _ in range(self.draw(st.integers(1, 5)))]
        if self.chance(5) and self.bound:
            parts.append(f"__all__ = ['{self.pick(sorted(self.bound))}']\n")
        return "".join(parts)


@st.composite
def sources(draw: st.DrawFn) -> str:
    """A Python file."""
    source = Writer(draw, {}, set()).source()
    ast.parse(source)
    return source


# What `--only` and `--skip` are given.
type Chosen = tuple[tuple[str, ...], tuple[str, ...]]
FAMILY_NAMES = sorted({rule.family for rule in all_rules().values()} - {"CHK"})
RULE_SETS = st.one_of(
    st.just(((), ())),
    st.tuples(st.just(()), st.lists(st.sampled_from(sorted(all_rules())), max_size=8, unique=True)),
    st.tuples(st.lists(st.sampled_from(FAMILY_NAMES), min_size=1, unique=True), st.just(())),
)


# Running the rules --------------------------------------------------------------------------------------


@cache
def _shipped() -> tuple[model.MoveMap, SymbolTable]:
    map_ = model.load(select.DATA / "d4ed2261--0.2.5.json.gz")
    return map_, SymbolTable.from_folder(resolve_upstream(UPSTREAM).root)


def project_with(path: str, data: bytes, enabled: frozenset[str]) -> Project:
    """What the rules know of a checkout of `BASE` and one file more."""
    map_, target = _shipped()
    files = {**{p: t.encode() for p, t in BASE.items()}, path: data}
    old = SymbolTable.from_sources(files)
    texts = {p: d.decode("latin-1" if b"latin-1" in d else "utf-8-sig") for p, d in files.items()}
    facts = [
        fact
        for p, t in texts.items()
        if (fact := dumps.survey(p, module_name(p), p.endswith("__init__.py"), t)) is not None
    ]
    plan = dumps.plan(facts) if any(i.startswith("DMP") for i in enabled) else dumps.DumpPlan()
    names = renames.plan([renames.survey(p, t) for p, t in texts.items()])
    placements = moves.place(
        files, map_, plan.modules, files.__getitem__, lambda p: True, enabled=enabled
    )
    return Project(
        map=map_,
        enabled=enabled,
        options=Options(),
        placements=placements,
        old=old,
        target=target,
        modules=moves.modules(placements),
        names=names if any(i.startswith("REN") for i in enabled) else {},
        dumps=plan,
    )


def run(path: str, data: bytes, enabled: frozenset[str] = select_rules()) -> tuple[bytes, Result]:
    """A file's bytes after the rules, and what was found."""
    project = project_with(path, data, enabled)
    result = rewrite(path, data, project, None)
    return data if result.data is None else result.data, result


def new_path(path: str) -> str:
    """Where a file of `PATHS` is after a migration."""
    placement = project_with(path, b"", select_rules()).placements[path]
    assert placement.new is not None
    return placement.new


# Properties ---------------------------------------------------------------------------------------------


@profile
@given(sources(), st.sampled_from(PATHS), RULE_SETS)
def test_output_parses_and_is_the_input_with_the_stated_edits(
    source: str, path: str, chosen: Chosen
) -> None:
    enabled = select_rules(*chosen)
    data, result = run(path, source.encode(), enabled)
    after = data.decode()
    ast.parse(after)
    assert [s for s in result.sites if s.rule in ("CHK001", "CHK003")] == []
    assert {f.rule for f in (*result.edits, *result.sites)} <= enabled

    rebuilt, position = "", 0
    for edit in result.edits:
        assert position <= edit.start <= edit.end
        assert source[edit.start : edit.end] == edit.before
        assert edit.line == source.count("\n", 0, edit.start) + 1
        assert edit.after is not None
        rebuilt += source[position : edit.start] + edit.after
        position = edit.end
    assert rebuilt + source[position:] == after
    assert _untouched(source, result) - Counter(map(ast.dump, _simple(after))) == Counter()


def _simple(source: str) -> list[ast.stmt]:
    return [
        n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.stmt) and not hasattr(n, "body")
    ]


def _untouched(source: str, result: Result) -> Counter[str]:
    """The simple statements that no edit reaches."""
    starts = [
        0,
        *itertools.accumulate(len(line.encode()) for line in source.splitlines(keepends=True)),
    ]
    encoded = [
        (len(source[: e.start].encode()), len(source[: e.end].encode())) for e in result.edits
    ]
    left: Counter[str] = Counter()
    for node in _simple(source):
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        if not any(first <= end and start <= last for first, last in encoded):
            left[ast.dump(node)] += 1
    return left


@profile
@given(sources(), st.sampled_from(PATHS), RULE_SETS)
def test_a_second_run_changes_nothing(source: str, path: str, chosen: Chosen) -> None:
    enabled = select_rules(*chosen)
    data, _ = run(path, source.encode(), enabled)
    path = new_path(path) if any(i.startswith("MAP") for i in enabled) else path
    again, result = run(path, data, enabled)
    assert result.edits == []
    assert again == data


@profile
@given(sources(), st.sampled_from(PATHS), st.randoms(use_true_random=False))
def test_the_order_of_rules_and_edits_does_not_matter(
    source: str, path: str, random: Random
) -> None:
    project = project_with(path, source.encode(), select_rules())
    package = path.endswith("__init__.py")

    def fresh() -> PythonFile:
        return PythonFile(path, source, project, module_name(path), package)

    usual = fresh()
    run_python(usual)
    other = fresh()
    # These say which imports and names they need, so they go first; among themselves in any order.
    for families in ([dumps, renames, signatures], [imports, text, configs]):
        random.shuffle(families)
        for family in families:
            family.python(other)
    random.shuffle(other.edits)
    expected = apply(source, settle(usual.edits)[0])
    assert apply(source, settle(other.edits)[0]) == expected
    assert {(s.start, s.end, s.rule, s.reason) for s in other.sites} == {
        (s.start, s.end, s.rule, s.reason) for s in usual.sites
    }


@profile
@given(sources(), st.sampled_from(PATHS))
def test_the_same_again(source: str, path: str) -> None:
    assert run(path, source.encode()) == run(path, source.encode())


def _crlf(source: str) -> bytes:
    return source.replace("\n", "\r\n").encode()


def _bom(source: str) -> bytes:
    return b"\xef\xbb\xbf" + source.encode()


def _tabs(source: str) -> bytes:
    return re.sub(r"(?m)^(?:  )+", lambda m: "\t" * (len(m.group()) // 2), source).encode()


def _form_feed(source: str) -> bytes:
    return re.sub(r"(?m)^(?=x = y = z)", "\f\n", source).encode()


def _latin_1(source: str) -> bytes:
    return _after_shebang(source, "# -*- coding: latin-1 -*-\n# é\n").encode("latin-1")


def _after_shebang(source: str, lines: str) -> str:
    shebang = "#!/usr/bin/env python3\n"
    rest = source.removeprefix(shebang)
    return source[: len(source) - len(rest)] + lines + rest


@pytest.mark.parametrize(
    "spell", [_crlf, _bom, _tabs, _form_feed, _latin_1], ids=lambda f: f.__name__[1:]
)
@settings(profile, max_examples=30)
@given(source=sources(), path=st.sampled_from(PATHS))
def test_another_spelling_of_the_file_changes_only_the_spelling(
    spell: Callable[[str], bytes], source: str, path: str
) -> None:
    plain, usual = run(path, source.encode())
    spelled, result = run(path, spell(source))
    assert spelled == spell(plain.decode())
    assert [e.rule for e in result.edits] == [e.rule for e in usual.edits]


def test_hash_seeds_and_jobs_do_not_matter() -> None:
    reports = []
    for seed, jobs in (("0", "1"), ("7", "2")):
        command = [
            sys.executable,
            "-m",
            "codemods.cli",
            "run",
            str(FIXTURE),
            "--upstream",
            UPSTREAM,
        ]
        done = subprocess.run(
            [*command, "--json", "--jobs", jobs],
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | {"PYTHONHASHSEED": seed},
        )
        assert done.returncode in (0, 1), done.stderr
        reports.append(json.loads(done.stdout))
    assert reports[0] == reports[1]
