"""The map builder, on a small upstream with the kinds of moves that the real one made."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from codemods.errors import UserError
from codemods.maps import agreement, model
from codemods.maps.build import build
from codemods.maps.gitstore import GitStore
from codemods.maps.model import Entry, MoveMap

LICENCE = "# Copyright The Authors\n# Licensed under the Apache License\n"


def function(name: str, seed: str, lines: int = 8, parameters: str = "x, y") -> str:
    """A function whose body nothing else has."""
    body = "".join(f"  {seed}_{i} = x + {i} * y + len('{seed}{i}')\n" for i in range(lines))
    return f"def {name}({parameters}):\n{body}  return {seed}_0\n\n\n"


class Upstream:
    """A git repository that is written commit by commit."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir()
        self.git("init", "-q", "-b", "main")

    def git(self, *arguments: str) -> str:
        done = subprocess.run(
            ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(self.root), *arguments],
            check=True,
            capture_output=True,
            text=True,
        )
        return done.stdout.strip()

    def write(self, path: str, text: str) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")

    def move(self, old: str, new: str, edit: Callable[[str], str] = lambda text: text) -> None:
        source = self.root / old
        self.write(new, edit(source.read_text(encoding="utf-8")))
        source.unlink()

    def edit(self, path: str, old: str, new: str) -> None:
        text = (self.root / path).read_text(encoding="utf-8")
        assert old in text
        self.write(path, text.replace(old, new))

    def commit(self, message: str) -> str:
        self.git("add", "-A")
        self.git("commit", "-q", "-m", message)
        return self.git("rev-parse", "HEAD")


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> tuple[Upstream, dict[str, str]]:
    """The repository and its commits by name."""
    up = Upstream(tmp_path_factory.mktemp("upstream") / "repo")
    old = "src/MaxText"
    up.write(f"{old}/__init__.py", LICENCE + "from MaxText.train import train_step\n")
    up.write(
        f"{old}/train.py",
        "import numpy as np\n\nfrom MaxText import max_utils\nfrom MaxText.layers.decoders import Decoder\n\n\n"
        + function("train_step", "step", 14)
        + function("main", "mainbody", 6, "argv"),
    )
    up.write(f"{old}/max_utils.py", function("flatten", "flat") + function("unused", "unus"))
    up.write(f"{old}/pipe/__init__.py", "")
    up.write(f"{old}/pipe/_feed.py", function("feed", "feed") + "SIZE = 4\n")
    up.write(f"{old}/layers/__init__.py", LICENCE)
    up.write(
        f"{old}/layers/decoders.py",
        "class Decoder:\n  def __init__(self, config, mesh, slot=None):\n    self.config = config\n\n"
        "  def __call__(self, x, page_state=None):\n    return x\n\n\n"
        + function("stack", "stack", 20),
    )
    near = function("build_block", "near", 12)
    up.write(f"{old}/layers/llama.py", near + "NAME = 'llama'\n")
    up.write(f"{old}/layers/mistral.py", near + "NAME = 'mistral'\n")
    up.write(
        f"{old}/multi.py", function("pre", "pre", 20) + function("post", "post", 14) + "LIMIT = 9\n"
    )
    up.write(f"{old}/gone.py", function("vanish", "vanish"))
    up.write(
        f"{old}/types.py",
        "class Grouped:\n"
        + "".join(f"  field_{i}: int = {i}\n" for i in range(9))
        + "\n\n"
        + function("helper", "helper")
        + function("doomed", "doomed"),
    )
    up.write(f"{old}/user.py", "from MaxText.max_utils import flatten\nfrom MaxText import multi\n")
    up.write("tests/__init__.py", "")
    up.write("tests/moe_test.py", "from MaxText.multi import pre\n" + function("test_moe", "moe"))
    at = {"base": up.commit("base")}

    up.move("tests/moe_test.py", "tests/unit/moe_test.py")
    up.write("tests/unit/__init__.py", "")
    at["tests"] = up.commit("move tests")

    up.move(f"{old}/max_utils.py", "src/maxtext/utils/max_utils.py")
    up.write("src/maxtext/utils/__init__.py", LICENCE)
    # An empty file of another folder in the same commit must not attract an empty one that goes.
    up.write("src/maxtext/protos/__init__.py", "")
    at["utils"] = up.commit("move max_utils")

    for name in ("pipe", "unpipe", "repipe"):
        if name == "unpipe":
            up.git("revert", "--no-edit", "HEAD")
            at[name] = up.git("rev-parse", "HEAD")
            continue
        up.move(f"{old}/pipe/__init__.py", "src/maxtext/pipe/__init__.py")
        up.move(f"{old}/pipe/_feed.py", "src/maxtext/pipe/feed.py")
        at[name] = up.commit("move pipe")

    # A merge: its difference to the first parent counts, not the commits on the branch.
    up.git("checkout", "-q", "-b", "layers")
    up.move(f"{old}/layers/__init__.py", "src/maxtext/layers/__init__.py")
    up.move(f"{old}/layers/decoders.py", "src/maxtext/layers/decoders.py")
    up.commit("first half")
    up.move(f"{old}/layers/llama.py", "src/maxtext/models/llama.py")
    up.move(f"{old}/layers/mistral.py", "src/maxtext/models/mistral.py")
    up.commit("second half")
    up.git("checkout", "-q", "main")
    up.git("merge", "-q", "--no-ff", "--no-edit", "layers")
    at["layers"] = up.git("rev-parse", "HEAD")

    up.move(
        f"{old}/train.py",
        "src/maxtext/trainers/train.py",
        lambda text: text.replace("MaxText.layers", "maxtext.layers").replace(
            "from MaxText import max_utils", "from maxtext.utils import max_utils"
        ),
    )
    up.write(
        f"{old}/train.py",
        'import sys\nimport importlib\n\nOLD_MODULE_PATH = "MaxText.train"\n\n'
        'if __name__ == "__main__":\n  importlib.import_module("maxtext.trainers.train").main(sys.argv)\n',
    )
    at["train"] = up.commit("move train, leave a forwarding module")

    up.write("src/maxtext/multi/__init__.py", "")
    up.write("src/maxtext/multi/before.py", function("pre", "pre", 20) + "LIMIT = 9\n")
    up.write("src/maxtext/multi/after.py", function("post", "post", 14))
    (up.root / f"{old}/multi.py").unlink()
    at["split"] = up.commit("split multi")

    (up.root / f"{old}/gone.py").unlink()
    at["gone"] = up.commit("delete gone")

    up.move(f"{old}/types.py", "src/maxtext/types.py")
    at["types"] = up.commit("move types")
    up.edit("src/maxtext/types.py", "class Grouped:", "class Rewarded:")
    up.edit("src/maxtext/types.py", function("helper", "helper"), "")
    up.write("src/maxtext/helpers.py", function("helper", "helper"))
    at["renamed"] = up.commit("rename Grouped, move helper")
    up.edit("src/maxtext/types.py", function("doomed", "doomed"), "")
    at["doomed"] = up.commit("delete doomed")

    up.move(
        f"{old}/user.py",
        "src/maxtext/user.py",
        lambda _: "from maxtext.utils.max_utils import flatten\nfrom maxtext.multi import before as multi\n",
    )
    at["user"] = up.commit("move user")

    # So many edits that the two ends hardly resemble each other.
    up.write(
        "src/maxtext/layers/decoders.py",
        "class Decoder:\n  def __init__(self, config, mesh, *, rngs):\n    self.config = config\n\n"
        "  def __call__(self, x):\n    return x\n\n\n" + function("stack", "piled", 30),
    )
    at["edited"] = up.commit("rewrite the decoder")

    up.move(f"{old}/__init__.py", "src/maxtext/__init__.py")
    (up.root / f"{old}/train.py").unlink()
    up.edit("src/maxtext/__init__.py", "MaxText.train", "maxtext.trainers.train")
    up.edit("tests/unit/moe_test.py", "from MaxText.multi", "from maxtext.multi.before")
    at["end"] = up.commit("drop the old package")
    return up, at


@pytest.fixture(scope="module")
def moves(history: tuple[Upstream, dict[str, str]]) -> MoveMap:
    """The map over the whole history."""
    up, at = history
    return build(up.root, at["base"], at["end"])


def test_moves_are_followed_commit_by_commit(
    moves: MoveMap, history: tuple[Upstream, dict[str, str]]
) -> None:
    at = {name: commit[:10] for name, commit in history[1].items()}
    assert moves.paths["tests/moe_test.py"] == Entry(
        "tests/unit/moe_test.py", "moved", (at["tests"],)
    )
    assert moves.modules["MaxText.max_utils"] == Entry(
        "maxtext.utils.max_utils", "moved", (at["utils"],)
    )
    assert moves.modules["tests.moe_test"].new == "tests.unit.moe_test"
    # Rewritten after the move: the two ends alone would not pair.
    assert moves.modules["MaxText.layers.decoders"] == Entry(
        "maxtext.layers.decoders", "moved", (at["layers"],)
    )


def test_a_move_taken_back_and_done_again(
    moves: MoveMap, history: tuple[Upstream, dict[str, str]]
) -> None:
    at = history[1]
    expected = tuple(at[name][:10] for name in ("pipe", "unpipe", "repipe"))
    assert moves.modules["MaxText.pipe._feed"] == Entry("maxtext.pipe.feed", "renamed", expected)
    assert moves.symbol("MaxText.pipe._feed", "SIZE") == Entry(
        "maxtext.pipe.feed.SIZE", "moved", expected
    )


def test_a_forwarding_module_is_no_target(
    moves: MoveMap, history: tuple[Upstream, dict[str, str]]
) -> None:
    up, at = history
    assert moves.modules["MaxText.train"] == Entry(
        "maxtext.trainers.train", "moved", (at["train"][:10],)
    )
    while_it_stood = build(up.root, at["base"], at["user"])
    assert while_it_stood.modules["MaxText.train"].new == "maxtext.trainers.train"
    step = while_it_stood.symbol("MaxText.train", "train_step")
    assert step is not None
    assert step.new == "maxtext.trainers.train.train_step"
    assert not [e for e in while_it_stood.modules.values() if (e.new or "").startswith("MaxText")]


def test_a_split_keeps_one_home_and_sends_each_name_to_its_own(
    moves: MoveMap, history: tuple[Upstream, dict[str, str]]
) -> None:
    entry = moves.modules["MaxText.multi"]
    assert (entry.new, entry.status) == ("maxtext.multi.before", "split")
    assert entry.commits == (history[1]["split"][:10],)
    assert "maxtext.multi.after 1" in entry.note
    after = moves.symbol("MaxText.multi", "post")
    assert after is not None
    assert (after.new, after.status) == ("maxtext.multi.after.post", "moved")
    assert moves.kept["MaxText.multi"] == ("LIMIT", "pre")


def test_deletions_carry_their_commit(
    moves: MoveMap, history: tuple[Upstream, dict[str, str]]
) -> None:
    at = history[1]
    gone = Entry(None, "deleted", (at["gone"][:10],))
    assert moves.modules["MaxText.gone"] == gone
    assert moves.paths["src/MaxText/gone.py"] == gone
    assert moves.symbol("MaxText.gone", "vanish") == gone
    assert moves.symbol("MaxText.types", "doomed") == Entry(None, "deleted", (at["doomed"][:10],))


def test_empty_and_licence_only_files_pair_by_path(moves: MoveMap) -> None:
    assert moves.modules["MaxText.pipe"].new == "maxtext.pipe"
    assert moves.modules["MaxText.layers"].new == "maxtext.layers"
    assert "tests/__init__.py" not in moves.paths
    assert not [e for e in moves.modules.values() if e.new == "maxtext.protos"]


def test_near_identical_files_keep_their_names(moves: MoveMap) -> None:
    for name in ("llama", "mistral"):
        assert moves.modules[f"MaxText.layers.{name}"].new == f"maxtext.models.{name}"


def test_symbols_renamed_or_moved_within_one_commit(
    moves: MoveMap, history: tuple[Upstream, dict[str, str]]
) -> None:
    at = history[1]
    renamed = moves.symbols["MaxText.types.Grouped"]
    assert (renamed.new, renamed.status) == ("maxtext.types.Rewarded", "renamed")
    assert renamed.commits == (at["types"][:10], at["renamed"][:10])
    assert renamed.note == "Grouped became Rewarded"
    moved = moves.symbols["MaxText.types.helper"]
    assert (moved.new, moved.status) == ("maxtext.helpers.helper", "moved")


def test_reexports_lead_to_the_definition(moves: MoveMap) -> None:
    assert moves.modules["MaxText.user"].new == "maxtext.user"
    for old, new in (
        ("MaxText.train_step", "maxtext.trainers.train.train_step"),
        ("MaxText.train.Decoder", "maxtext.layers.decoders.Decoder"),
        ("MaxText.train.max_utils", "maxtext.utils.max_utils"),
        ("MaxText.user.multi", "maxtext.multi.before"),
    ):
        entry = moves.symbols[old]
        assert (entry.new, entry.status) == (new, "reexport"), old
    assert "np" in moves.kept["MaxText.train"]


def test_changed_calls(moves: MoveMap) -> None:
    made = moves.signatures["MaxText.layers.decoders.Decoder"]
    assert (made.old, made.new) == ("config, mesh, slot=None", "config, mesh, *, rngs")
    assert (made.removed, made.added_required) == (("slot",), ("rngs",))
    called = moves.signatures["MaxText.layers.decoders.Decoder.__call__"]
    assert (called.removed, called.added_required) == (("page_state",), ())
    assert "MaxText.train.train_step" not in moves.signatures


def test_folders_follow_their_files(moves: MoveMap) -> None:
    assert moves.folders["src/MaxText/pipe"] == "src/maxtext/pipe"
    assert moves.folders["src/MaxText"] == "src/maxtext"
    names = list(moves.folders)
    assert names.index("src/MaxText/pipe") < names.index("src/MaxText")


def test_nothing_points_at_nothing_and_no_two_paths_meet(
    moves: MoveMap, history: tuple[Upstream, dict[str, str]]
) -> None:
    up, at = history
    found = agreement.check(up.root, model.MoveMap(**_named(moves, at)))
    assert found.missing == []
    assert found.collisions == []
    assert found.disagreements == []
    assert (found.imported, found.bound, found.agreed) == (6, 6, 6)


def _named(map_: MoveMap, at: dict[str, str]) -> dict[str, object]:
    """The fields of a map whose ends are named by full commit ids."""
    fields = {name: getattr(map_, name) for name in MoveMap.__slots__}
    fields["base"] = model.TreeId(at["base"], at["base"])
    fields["target"] = model.TreeId(at["end"], at["end"])
    return fields


def test_a_folder_as_target_compares_trees_for_the_last_step(
    history: tuple[Upstream, dict[str, str]], tmp_path: Path
) -> None:
    up, at = history
    up.git("worktree", "add", "-q", "--detach", str(tmp_path / "tree"), at["end"])
    tree = tmp_path / "tree"
    (tree / "src/maxtext/layers/decoders.py").rename(tree / "src/maxtext/layers/nnx_decoders.py")
    (tree / "src/maxtext/helpers.py").unlink()
    try:
        map_ = build(up.root, at["base"], str(tree))
    finally:
        up.git("worktree", "remove", "--force", str(tree))
    decoders = map_.modules["MaxText.layers.decoders"]
    assert (decoders.new, decoders.status, decoders.evidence) == (
        "maxtext.layers.nnx_decoders",
        "renamed",
        "tree",
    )
    assert decoders.commits == (at["layers"][:10],)
    helper = map_.symbol("MaxText.types", "helper")
    assert helper is not None
    assert (helper.status, helper.evidence, helper.commits) == ("deleted", "tree", ())
    assert map_.target.revision == at["end"]


def test_a_folder_as_base_is_placed_at_its_nearest_commit(
    history: tuple[Upstream, dict[str, str]], tmp_path: Path
) -> None:
    up, at = history
    up.git("worktree", "add", "-q", "--detach", str(tmp_path / "fork"), at["utils"])
    fork = tmp_path / "fork"
    (fork / "src/MaxText/own.py").write_text("OWN = 1\n", encoding="utf-8")
    try:
        map_ = build(up.root, str(fork), at["end"])
    finally:
        up.git("worktree", "remove", "--force", str(fork))
    # The tree before the move that was taken back, and after: of equals, the newest.
    assert map_.base.revision == at["unpipe"]
    assert map_.modules["MaxText.train"].new == "maxtext.trainers.train"
    assert map_.modules["maxtext.utils.max_utils"].status == "same"


def test_a_base_that_is_no_first_parent_ancestor(
    history: tuple[Upstream, dict[str, str]],
) -> None:
    up, at = history
    side = up.git("rev-parse", "layers~1")
    map_ = build(up.root, side, at["end"])
    assert map_.modules["maxtext.layers.decoders"].status == "same"
    assert map_.modules["MaxText.layers.llama"].new == "maxtext.models.llama"


def test_progress_counts_to_the_end(history: tuple[Upstream, dict[str, str]]) -> None:
    up, at = history
    seen: list[tuple[int, int]] = []
    build(
        up.root, at["user"], at["end"], progress=lambda done, total, _: seen.append((done, total))
    )
    assert seen == [(0, 2), (1, 2), (2, 2)]


def test_a_missing_blob_is_tolerated(
    history: tuple[Upstream, dict[str, str]], tmp_path: Path
) -> None:
    up, at = history
    copy = tmp_path / "copy"
    subprocess.run(["git", "clone", "-q", "--bare", str(up.root), str(copy)], check=True)
    blob = up.git("rev-parse", f"{at['base']}:src/MaxText/gone.py")
    (copy / "objects" / blob[:2] / blob[2:]).unlink()
    with GitStore(copy) as store:
        assert store.read(blob) is None
    map_ = build(copy, at["base"], at["end"])
    assert map_.modules["MaxText.gone"].status == "deleted"
    assert map_.modules["MaxText.train"].new == "maxtext.trainers.train"


@pytest.mark.parametrize("bad", ["no-such-revision", "0123456789abcdef"])
def test_unknown_revisions_are_one_clear_line(
    history: tuple[Upstream, dict[str, str]], bad: str
) -> None:
    up, at = history
    with pytest.raises(UserError, match=bad) as caught:
        build(up.root, bad, at["end"])
    assert "\n" not in str(caught.value)


def test_no_repository(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a git repository"):
        build(tmp_path, "a", "b")
    with pytest.raises(UserError, match="no such folder"):
        build(tmp_path / "absent", "a", "b")


def test_a_map_survives_its_file(moves: MoveMap, tmp_path: Path) -> None:
    for name in ("map.json", "map.json.gz"):
        model.dump(moves, tmp_path / name)
        assert model.load(tmp_path / name) == moves
    first = (tmp_path / "map.json.gz").read_bytes()
    model.dump(moves, tmp_path / "map.json.gz")
    assert (tmp_path / "map.json.gz").read_bytes() == first
    (tmp_path / "cut.json.gz").write_bytes(first[: len(first) // 2])
    with pytest.raises(UserError, match="not a ling2-migrate map"):
        model.load(tmp_path / "cut.json.gz")
