"""Migrated checkouts with their reports, and decisions on them."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from codemods.engine import report
from codemods.engine.apply import Applied, apply
from codemods.engine.run import Migration, Settings, migrate
from codemods.engine.source import decode
from codemods.maps.symbols import module_name
from migration_tests.support import UPSTREAM, write_files

Data = dict[str, Any]

# Every kind of tie between hunks: imports and uses, a renamed class in two files, dump hooks with a parameter
# that fed them, a key of the configuration in code and in a file, moves of files that others name.
PIECES: Mapping[str, str] = {
    "src/MaxText/__init__.py": "",
    "src/MaxText/layers/__init__.py": "",
    "src/MaxText/utils/__init__.py": "",
    "src/MaxText/utils/argus_utils.py": (
        "def dump_tensor(name, x, **where):\n  return x\n\n\ndef dumpable(f):\n  return f\n"
    ),
    "src/MaxText/max_utils.py": "from MaxText import max_logging\n\nVALUE = len(max_logging.log('x'))\n",
    "src/MaxText/max_logging.py": "def log(text):\n  print(text)\n",
    "src/MaxText/layers/linears.py": "class DenseGeneral:\n  pass\n",
    "src/MaxText/layers/moe.py": (
        "from MaxText import max_utils, max_logging\n"
        "from MaxText.layers import linears\n"
        "from MaxText.utils.argus_utils import dump_tensor, dumpable\n\n\n"
        "class RoutedMoE(linears.DenseGeneral):\n"
        "  @dumpable\n"
        "  def __call__(self, x, layer_name='moe'):\n"
        "    dump_tensor('moe_in', x, layer=layer_name)\n"
        "    max_logging.log(max_utils.VALUE)\n"
        "    return x\n"
    ),
    "ALModel/al_model.py": (
        "from MaxText.layers import moe\n"
        "from MaxText.utils.argus_utils import dump_tensor\n\n\n"
        "class ALGenericLayer:\n"
        "  def __call__(self, x, config):\n"
        "    dump_tensor('in', x)\n"
        "    if config.layer_group_size:\n"
        "      x = moe.RoutedMoE()(x, layer_name='al')\n"
        "    return x\n"
    ),
    "tests/al_model_test.py": (
        "import MaxText.max_utils\n"
        "from ALModel.al_model import ALGenericLayer\n\n\n"
        "def test_layer():\n"
        "  assert ALGenericLayer()\n"
        "  assert MaxText.max_utils.VALUE\n"
    ),
    "src/MaxText/configs/models/al_model.yml": "decoder_block: 'al_model'\nlayer_group_size: 5\n",
    "src/MaxText/configs/base.yml": "model_name: default\n",
    "run.sh": "python3 -m MaxText.train src/MaxText/configs/base.yml model_name=al_model\n",
    "src/MaxText/train.py": "from MaxText import max_utils\n\nif __name__ == '__main__':\n  print(max_utils)\n",
    "notes.md": "See `src/MaxText/layers/moe.py` and `MaxText.max_utils`.\n",
}


@dataclass(frozen=True)
class Run:
    """A migration, its report and the decisions that can be made on it."""

    root: Path
    migration: Migration
    data: Data

    @property
    def moves(self) -> list[Data]:
        """The rows of files that move or stay out."""
        return [row for row in self.data["files"] if row["new"] != row["path"]]

    @property
    def ids(self) -> list[str]:
        """All that can be decided, but sites."""
        return [row["id"] for row in (*self.data["hunks"], *self.moves)]

    def decisions(self, choose: Callable[[str], str | None]) -> Data:
        """Decisions as the page exports them."""
        chosen = {name: choice for name in self.ids if (choice := choose(name))}
        return {
            "tool": report.DECISIONS_MARK,
            "schema": report.DECISIONS_VERSION,
            "report": self.data["id"],
            "decisions": {name: {"decision": choice} for name, choice in chosen.items()},
        }

    def apply(self, choose: Callable[[str], str | None], jobs: int = 0) -> Applied:
        """Apply decisions."""
        return apply(self.data, self.decisions(choose), jobs=jobs)


def run(root: Path, files: Mapping[str, str | bytes] | None = None, jobs: int = 0) -> Run:
    """Migrate a checkout, written first if files are given; the report went through JSON."""
    if files is not None:
        write_files(root, files)
    migration = migrate(Settings(root, UPSTREAM, jobs=jobs))
    return Run(root, migration, json.loads(report.as_json(report.as_data(migration))))


def tree(migration: Migration) -> dict[str, bytes]:
    """Path → content of every file of the output."""
    found: dict[str, bytes] = {}
    for path, placement in migration.placements.items():
        if placement.new is not None:
            result = migration.results.get(path)
            data = result.data if result is not None else None
            found[placement.new] = (
                data if data is not None else (migration.checkout.root / path).read_bytes()
            )
    return found


def compiles(data: bytes) -> bool:
    """Whether Python takes a file."""
    try:
        compile(data, "x.py", "exec")
    except (SyntaxError, ValueError):
        return False
    return True


def check_applied(made: Run, applied: Applied, choose: Callable[[str], str | None]) -> None:
    """What must hold whatever was decided."""
    after, data = tree(applied.migration), applied.data
    for path, placement in applied.migration.placements.items():
        before = (made.root / path).read_bytes()
        if placement.new is not None and path.endswith(".py") and compiles(before):
            assert compiles(after[placement.new]), path

    # The tree is what the report says, worked out here from the report alone.
    places = {row["path"]: row["new"] for row in data["files"]}
    expected: dict[str, bytes] = {}
    for path in made.migration.placements:
        new = places.get(path, path)
        if new is None:
            continue
        data_there = (made.root / path).read_bytes()
        edits = [e for e in data["edits"] if e["file"] == path]
        if not edits:
            expected[new] = data_there
            continue
        text, encoding = decode(data_there, path.endswith(".py"))
        parts, position = [], 0
        for edit in edits:
            parts += [text[position : edit["start"]], edit["after"]]
            position = edit["end"]
        expected[new] = encoding.encode("".join([*parts, text[position:]]))
    assert after == expected

    # Exactly the rest is left.
    left = {row["id"]: row["status"] for row in data["left"]}
    done = {row["id"] for row in data["hunks"]}
    assert len(left) == len(data["left"])
    assert not left.keys() & done
    assert left.keys() <= set(made.ids)
    kept = {row["path"] for row in made.moves} - {
        row["path"] for row in data["files"] if row["new"] != row["path"]
    }
    for row in made.data["hunks"]:
        choice = choose(row["id"])
        if choice == "accepted":
            assert left.get(row["id"], "held") == "held"
            if row["id"] not in done and row["id"] not in left:  # made otherwise, for a kept file
                assert kept
                assert any(h["file"] == row["file"] for h in data["hunks"])
        else:
            assert left[row["id"]] == (choice or "open")
    for row in made.moves:
        choice = choose(row["id"])
        if choice == "accepted":
            assert left.get(row["id"], "held") == "held"
            assert (row["id"] in left) == (row["path"] in kept)
        else:
            assert left[row["id"]] == (choice or "open")
            assert row["path"] in kept
            assert row["path"] in after
    whys = {row["id"]: row["why"] for row in data["left"]}
    for members in made.data["sets"]:
        # What a kept file makes needless is no part of a set any more, unless names would come apart.
        names = [
            name
            for name in members["hunks"]
            if "the name `" in members["why"] or "in place, so" not in whys.get(name, "")
        ]
        states = {name in done for name in names if name in done or name in left}
        assert len(states) <= 1, members["why"]
    assert applied.made + applied.left == len(made.ids)
    assert all(row["why"] for row in data["left"] if row["status"] == "held")


def dangling(files: Mapping[str, bytes], known: Callable[[str], bool]) -> list[str]:
    """Imports from the old and the new package that resolve neither in a tree nor among what is known."""
    modules = {module_name(path) for path in files if path.endswith(".py")}
    packages = {m.rsplit(".", n)[0] for m in modules for n in range(1, m.count(".") + 1)}
    found = []
    for path, data in files.items():
        if not path.endswith(".py"):
            continue
        for node in ast.walk(ast.parse(data)):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                names = [node.module]
                if node.module not in modules:  # a folder, or upstream's module
                    names = [f"{node.module}.{alias.name}" for alias in node.names]
            for name in names:
                ours = name in modules or name in packages or name.rpartition(".")[0] in modules
                if (
                    name.split(".")[0].lower() in ("maxtext", "almodel")
                    and not ours
                    and not known(name)
                ):
                    found.append(f"{path}: {name}")
    return found
