"""Where files go: upstream's moves, homes by rule, places that are taken, half-migrated trees."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest

from codemods.engine.project import Placement
from codemods.maps import select
from codemods.maps.model import MoveMap, load
from codemods.rules import moves

MAP_FILE = "d4ed2261--0.2.5.json.gz"


@pytest.fixture(scope="module")
def shipped() -> MoveMap:
    """The shipped map of ant-pretrain's fork point."""
    return load(select.DATA / MAP_FILE)


def place(
    map_: MoveMap, files: Mapping[str, str], wheel: bool = False, **options: object
) -> dict[str, Placement]:
    enabled = options.get("enabled", tuple(r.id for r in moves.RULES))
    assert isinstance(enabled, tuple)
    return moves.place(
        files, map_, (), lambda p: files[p].encode(), lambda p: True, wheel=wheel, enabled=enabled
    )


OWN = {
    "src/MaxText/own.py": "src/maxtext/own.py",
    "src/MaxText/layers/own.py": "src/maxtext/layers/own.py",
    "src/MaxText/kernels/own.py": "src/maxtext/kernels/own.py",
    "src/MaxText/kernels/own/deep.py": "src/maxtext/kernels/own/deep.py",
    "src/MaxText/sft/own.py": "src/maxtext/trainers/post_train/sft/own.py",
    "src/MaxText/utils/ckpt_conversion/utils/own.py": "src/maxtext/checkpoint_conversion/utils/own.py",
    "src/MaxText/inference_mlperf/own.py": "src/maxtext/inference/mlperf/own.py",
    "src/MaxText/configs/own.yml": "src/maxtext/configs/own.yml",
    "src/MaxText/configs/models/own.yml": "src/maxtext/configs/models/own.yml",
    "src/MaxText/own_package/__init__.py": "src/maxtext/own_package/__init__.py",
    "src/MaxText/own_package/data.json": "src/maxtext/own_package/data.json",
    "src/MaxText/optimizers/__init__.py": "src/maxtext/optimizers/__init__.py",
    "src/MaxText/Own.py": "src/maxtext/Own.py",
    "src/MaxText/train": "src/maxtext/train",
    "tests/own_test.py": "tests/unit/own_test.py",
    "tests/own_helper.py": "tests/own_helper.py",
    "scripts/own.py": "scripts/own.py",
    "own.py": "own.py",
    "MaxTextOwn/own.py": "MaxTextOwn/own.py",
}


@pytest.mark.parametrize("old", OWN)
def test_own_files(shipped: MoveMap, old: str) -> None:
    assert place(shipped, {old: "x = 1\n"})[old].new == OWN[old]


def test_own_files_in_every_folder_of_the_old_tree_keep_apart(shipped: MoveMap) -> None:
    folders = {p.rpartition("/")[0] for p in (*shipped.blobs, *shipped.paths)}
    files = dict.fromkeys((*shipped.blobs, *shipped.paths), "x = 1\n")
    for folder in folders:
        for name in ("own.py", "own_test.py", "__init__.py", "own.json", "own.sh"):
            files.setdefault(f"{folder}/{name}" if folder else name, f"y = {name!r}\n")
    placed = place(shipped, files)
    homes = Counter(w.new for w in placed.values() if w.new is not None)
    assert [home for home, count in homes.items() if count > 1] == []
    assert [home for home in homes if "MaxText" in home] == []
    folders_of_output = {home.rpartition("/")[0] for home in homes}
    assert folders_of_output.isdisjoint(homes)


TAKEN = {
    "a file of the fork's own at upstream's new place": (
        {"src/MaxText/max_utils.py": "a = 1\n", "src/MaxText/utils/max_utils.py": "b = 1\n"},
        {
            "src/MaxText/max_utils.py": "src/maxtext/utils/max_utils.py",
            "src/MaxText/utils/max_utils.py": "src/maxtext/utils/max_utils_own.py",
        },
        "src/MaxText/utils/max_utils.py",
    ),
    "three for one place": (
        {
            "src/MaxText/layers/own.py": "class OwnDecoderLayer: ...\n",
            "src/MaxText/models/own.py": "b = 1\n",
            "src/maxtext/models/own.py": "c = 1\n",
        },
        {
            "src/MaxText/layers/own.py": "src/maxtext/layers/own.py",
            "src/MaxText/models/own.py": "src/maxtext/models/own_own.py",
            "src/maxtext/models/own.py": "src/maxtext/models/own.py",
        },
        "src/MaxText/layers/own.py",
    ),
    "a test of that name": (
        {"tests/own_test.py": "a = 1\n", "tests/unit/own_test.py": "b = 1\n"},
        {
            "tests/own_test.py": "tests/own_test.py",
            "tests/unit/own_test.py": "tests/unit/own_test.py",
        },
        "tests/own_test.py",
    ),
    "the model's place": (
        {"ALModel/al_model.py": "a = 1\n", "src/maxtext/models/ling2.py": "b = 1\n"},
        {
            "ALModel/al_model.py": "src/maxtext/models/ling2_own.py",
            "src/maxtext/models/ling2.py": "src/maxtext/models/ling2.py",
        },
        "ALModel/al_model.py",
    ),
}


@pytest.mark.parametrize("name", TAKEN)
def test_a_place_that_is_taken(shipped: MoveMap, name: str) -> None:
    files, expected, listed = TAKEN[name]
    placed = place(shipped, files)
    assert {path: w.new for path, w in placed.items()} == expected
    assert placed[listed].rule == "MAP005"
    assert placed[listed].problem


SHIM = """\
import sys
import importlib
from maxtext.utils import max_logging

NEW_MODULE_PATH = "maxtext.trainers.pre_train.train"

if __name__ == "__main__":
  importlib.import_module(NEW_MODULE_PATH).main(sys.argv)
"""


@pytest.mark.parametrize(
    ("old", "text", "new"),
    [
        ("src/MaxText/train.py", SHIM, "src/maxtext/trainers/pre_train/train.py"),
        (
            "src/MaxText/profiler.py",
            "from maxtext.common.profiler import *\n",
            "src/maxtext/common/profiler.py",
        ),
        (
            "src/MaxText/sft/__init__.py",
            "# licence\n",
            "src/maxtext/trainers/post_train/sft/__init__.py",
        ),
        ("src/MaxText/max_utils.py", "def main(): ...\n", "src/maxtext/utils/max_utils.py"),
        ("src/MaxText/configs/sft.yml", "x: 1\n", "src/maxtext/configs/post_train/sft.yml"),
    ],
    ids=["script", "names", "package", "copy", "copy of data"],
)
@pytest.mark.parametrize("wheel", [False, True])
def test_half_migrated(shipped: MoveMap, old: str, text: str, new: str, wheel: bool) -> None:
    """A shim or copy at the old place stays out; its module is the one that has moved."""
    moved = text if "max_utils" in old or "yml" in old else "def main(): ...\nclass Profiler: ...\n"
    if wheel:
        old, new = old.removeprefix("src/"), new.removeprefix("src/")
    placed = place(shipped, {old: text, new: moved}, wheel)
    assert (placed[old].new, placed[old].rule) == (None, "MAP004")
    assert placed[new].new == new
    if old.endswith(".py"):
        table = moves.modules(placed, wheel)
        dotted = (
            old.removeprefix("src/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        )
        assert table[dotted] == new.removeprefix("src/").removesuffix(".py").removesuffix(
            "/__init__"
        ).replace("/", ".")


def test_work_at_both_places_is_kept_and_listed(shipped: MoveMap) -> None:
    old, new = "src/MaxText/max_utils.py", "src/maxtext/utils/max_utils.py"
    placed = place(shipped, {old: "def own(): ...\n", new: "def other(): ...\n"})
    assert placed[old] == Placement(
        "src/maxtext/max_utils.py",
        "MAP005",
        placed[old].why,
        f"`{new}` is already taken by `{new}`",
    )


def test_a_migrated_tree_stays(shipped: MoveMap) -> None:
    files = {e.new: "x = 1\n" for e in shipped.paths.values() if e.new is not None}
    assert {p: w.new for p, w in place(shipped, files).items() if w.new != p} == {}


def test_a_rule_that_is_off_moves_nothing(shipped: MoveMap) -> None:
    files = {"src/MaxText/own.py": "x = 1\n", "src/MaxText/max_utils.py": "x = 1\n"}
    placed = place(shipped, files, enabled=("MAP001",))
    assert placed["src/MaxText/own.py"].new == "src/MaxText/own.py"
    assert placed["src/MaxText/max_utils.py"].new == "src/maxtext/utils/max_utils.py"


def test_the_older_model_means_the_newer_one(shipped: MoveMap) -> None:
    files = {
        "ALModel/__init__.py": "",
        "ALModel/al_model.py": "a = 1\n",
        "src/MaxText/layers/ling2.py": "b = 1\n",
    }
    placed = place(shipped, files)
    assert placed["src/MaxText/layers/ling2.py"].new is None
    assert moves.modules(placed) == {
        "ALModel.al_model": "maxtext.models.ling2",
        "MaxText.layers.ling2": "maxtext.models.ling2",
    }
