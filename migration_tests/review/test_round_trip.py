"""`apply`: all accepted is the run, all rejected is the input, anything between is sound and accounted for."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from codemods.engine import hunks as hunks_module
from codemods.engine.apply import apply
from codemods.engine.hunks import find_hunks
from codemods.engine.keeping import blocked_by
from migration_tests.review.trees import PIECES, Run, check_applied, dangling, run, tree
from migration_tests.support import write_files

FIXTURE = Path(__file__).resolve().parents[1] / "fixtures" / "ant_pretrain"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(tmp_path_factory.mktemp("small"), PIECES)


@pytest.fixture(scope="module")
def fixture() -> Run:
    return run(FIXTURE, jobs=2)


def source(made: Run) -> dict[str, bytes]:
    return {path: (made.root / path).read_bytes() for path in made.migration.placements}


def test_all_accepted_is_the_run_and_all_rejected_is_the_input(small: Run) -> None:
    applied = small.apply(lambda name: "accepted")
    assert tree(applied.migration) == tree(small.migration)
    assert applied.data["left"] == []
    assert applied.data["hunks"] == small.data["hunks"]
    for nothing in ("rejected", None):
        applied = small.apply(lambda name, nothing=nothing: nothing)
        assert tree(applied.migration) == source(small)
        assert applied.data["hunks"] == applied.data["edits"] == applied.data["files"] == []
        assert {row["id"] for row in applied.data["left"]} == set(small.ids)


def test_the_fixture(fixture: Run) -> None:
    accepted = fixture.apply(lambda name: "accepted", jobs=2)
    assert tree(accepted.migration) == tree(fixture.migration)
    rejected = fixture.apply(lambda name: "rejected", jobs=2)
    assert tree(rejected.migration) == source(fixture)
    chance = random.Random(3)
    chosen = {
        name: chance.choices(["accepted", "rejected", None], (0.7, 0.2, 0.1))[0]
        for name in fixture.ids
    }
    check_applied(fixture, fixture.apply(chosen.__getitem__, jobs=2), chosen.__getitem__)


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_random_decisions(small: Run, data: st.DataObject) -> None:
    likely = data.draw(st.sampled_from(["accepted", "rejected", None]))
    others = data.draw(
        st.dictionaries(
            st.sampled_from(small.ids), st.sampled_from(["accepted", "rejected", None]), max_size=12
        )
    )

    def choose(name: str) -> str | None:
        return others.get(name, likely)

    check_applied(small, small.apply(choose), choose)


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(chance=st.randoms(use_true_random=False))
def test_a_second_review_is_one_review_of_both(small: Run, chance: random.Random) -> None:
    kinds = ["accepted", "accepted", "accepted", "rejected", None]
    first = {name: chance.choice(kinds) for name in small.ids}
    made = small.apply(first.__getitem__).data
    seen = {row["id"] for name in ("hunks", "files", "left") for row in made[name]}
    second = {n: chance.choice(kinds) for n in small.ids if n in seen and chance.random() < 0.3}
    entries = {name: {"decision": choice} for name, choice in second.items() if choice}
    further = small.decisions(lambda name: None) | {"report": made["id"], "decisions": entries}
    again = apply(made, further)
    both = {name: entries.get(name, {}).get("decision", first[name]) for name in small.ids}
    direct = small.apply(both.__getitem__)
    assert tree(again.migration) == tree(direct.migration)
    assert again.data["left"] == direct.data["left"]
    assert again.data["hunks"] == direct.data["hunks"]


@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_random_trees(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    gone = data.draw(st.sets(st.sampled_from(sorted(set(PIECES) - {"src/MaxText/train.py"}))))
    files = {path: text for path, text in PIECES.items() if path not in gone}
    made = run(tmp_path_factory.mktemp("tree"), files)
    chance = data.draw(st.randoms(use_true_random=False))
    chosen = {name: chance.choice(["accepted", "rejected", None]) for name in made.ids}
    check_applied(made, made.apply(chosen.__getitem__), chosen.__getitem__)


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_imports_follow_the_files_that_stay(small: Run, data: st.DataObject) -> None:
    kept = data.draw(st.sets(st.sampled_from([row["id"] for row in small.moves]), min_size=1))
    applied = small.apply(lambda name: "rejected" if name in kept else "accepted")
    after = tree(applied.migration)
    listed = {(s["file"], s["line"]) for s in applied.data["sites"]}
    held = {(row["file"], row["line"]) for row in applied.data["left"] if row["kind"] == "hunk"}
    missing = dangling(after, lambda name: name.startswith("maxtext"))
    assert not missing or listed | held, missing
    assert not [m for m in missing if "argus" not in m], missing


def test_a_rejected_move_keeps_imports_and_paths_right(small: Run) -> None:
    stays = next(row["id"] for row in small.moves if row["path"] == "src/MaxText/max_utils.py")
    applied = small.apply(lambda name: "rejected" if name == stays else "accepted")
    after = tree(applied.migration)
    assert after["src/MaxText/max_utils.py"].startswith(b"from maxtext.utils import max_logging\n")
    moe = after["src/maxtext/layers/moe.py"]
    assert b"from MaxText import max_utils\nfrom maxtext.utils import max_logging\n" in moe
    assert b"import MaxText.max_utils\n" in after["tests/unit/ling2_test.py"]
    assert b"`MaxText.max_utils`" in after["notes.md"]
    assert b"src/maxtext/layers/moe.py" in after["notes.md"]
    statuses = {(row["kind"], row["status"]) for row in applied.data["left"]}
    assert statuses == {("move", "rejected"), ("hunk", "held")}
    assert all("max_utils.py` stays in place" in r["why"] for r in applied.data["left"][1:])
    assert "CHK005" not in {site["rule"] for site in applied.data["sites"]} - {
        site["rule"] for site in small.data["sites"]
    }


def test_a_file_that_keeps_a_name_that_others_give_up(small: Run) -> None:
    path = "src/MaxText/configs/models/al_model.yml"
    stays = next(row["id"] for row in small.moves if row["path"] == path)
    applied = small.apply(lambda name: "rejected" if name == stays else "accepted")
    assert path in tree(applied.migration)
    row = next(row for row in applied.data["left"] if row["id"] == stays)
    assert "say `ling2` for `al_model` (first run.sh:1)" in row["why"]
    assert row["why"].endswith("so copy it to src/maxtext/configs/models/ling2.yml for them")
    script = next(h["id"] for h in small.data["hunks"] if h["file"] == "run.sh")
    applied = small.apply(lambda name: "rejected" if name == script else "accepted")
    said = "the configuration of `al_model` is `src/maxtext/configs/models/ling2.yml` now"
    assert said in applied.data["left"][0]["why"]
    stays = next(row["id"] for row in small.moves if row["path"] == "ALModel/al_model.py")
    applied = small.apply(lambda name: "rejected" if name == stays else "accepted")
    assert applied.data["left"][0]["why"] == ""  # whatever names this file is right


def test_a_name_in_a_file_that_stays(small: Run) -> None:
    """The class takes its new name in its old place, and all that name it follow."""
    stays = next(row["id"] for row in small.moves if row["path"] == "ALModel/al_model.py")
    applied = small.apply(lambda n: "rejected" if n == stays else "accepted")
    after = tree(applied.migration)
    assert b"class Ling2DecoderLayer" in after["ALModel/al_model.py"]
    test = after["tests/unit/ling2_test.py"]
    assert b"from ALModel.al_model import Ling2DecoderLayer\n" in test
    assert b"assert Ling2DecoderLayer()" in test
    assert [row["id"] for row in applied.data["left"]] == [stays]


def test_an_import_that_loses_a_name_with_its_last_use(fixture: Run) -> None:
    """The older layer's import goes since the branch that used it goes."""
    here = [h for h in fixture.data["hunks"] if h["file"] == "src/MaxText/layers/decoders.py"]
    use = next(h for h in here if "ling2.Ling2DecoderLayerToLinen]" in h["old"])
    bound = next(h for h in here if "    ling2,\n" in h["old"])
    assert use["set"] == bound["set"] is not None


RENAMED = {
    **PIECES,
    "src/MaxText/layers/embeddings.py": "class Qwen3NextRotaryEmbedding:\n  pass\n",
    "tools/use.py": (
        "from MaxText.layers.embeddings import Qwen3NextRotaryEmbedding\n\nX = Qwen3NextRotaryEmbedding()\n"
    ),
    "notes.md": "```python\nfrom ALModel.al_model import ALGenericLayer\n```\n",
}


def test_a_quoted_name_stands_with_the_import_that_binds_it(tmp_path: Path) -> None:
    text = "import MaxText.max_utils\n\n\ndef f(x: 'MaxText.max_utils.Thing', y='MaxText.train'):\n  return x\n"
    made = run(tmp_path, {**PIECES, "tools/quoted.py": text})
    hunks = {h["line"]: h for h in made.data["hunks"] if h["file"] == "tools/quoted.py"}
    assert hunks[1]["set"] == hunks[4]["set"] is not None
    applied = made.apply(lambda n: "rejected" if n == hunks[4]["id"] else "accepted")
    assert tree(applied.migration)["tools/quoted.py"] == text.encode()


def test_an_older_implementation_that_stays(tmp_path: Path) -> None:
    """The dumper is left out, so the hooks in a file that the run leaves out and a reviewer keeps go too."""
    hooked = "from MaxText.utils.argus_utils import dump_tensor\n\n\ndef f(x):\n  dump_tensor('x', x)\n  return x\n"
    made = run(tmp_path, {**PIECES, "src/MaxText/layers/ling2.py": hooked})
    stays = next(row for row in made.moves if row["path"] == "src/MaxText/layers/ling2.py")
    assert (stays["rule"], stays["new"]) == ("MAP005", None)
    applied = made.apply(lambda n: "rejected" if n == stays["id"] else "accepted")
    after = tree(applied.migration)
    assert after["src/MaxText/layers/ling2.py"].strip() == b"def f(x):\n  return x"
    assert not dangling(after, lambda name: name.startswith("maxtext"))


def test_names_that_are_defined_and_used_apart(tmp_path: Path) -> None:
    """A definition that upstream renamed, and code in documents, stand with all that has the name."""
    made = run(tmp_path, RENAMED)
    for rule, users in (
        ("IMP013", {"tools/use.py"}),
        ("REN002", {"notes.md", "tests/al_model_test.py"}),
    ):
        name = next(h["id"] for h in made.data["hunks"] if rule in h["rules"])
        members = next(s["hunks"] for s in made.data["sets"] if name in s["hunks"])
        files = {h["file"] for h in made.data["hunks"] if h["id"] in members}
        assert users <= files
        applied = made.apply(lambda n, name=name: "rejected" if n == name else "accepted")
        assert {row["id"] for row in applied.data["left"]} == set(members)


def test_a_set_stands_or_falls_together(small: Run) -> None:
    """A class and the import of it in another file are one set, and one rejection rejects both."""
    name = next(h["id"] for h in small.data["hunks"] if "class ALGenericLayer" in h["old"])
    members = next(s for s in small.data["sets"] if name in s["hunks"])
    files = {h["file"] for h in small.data["hunks"] if h["id"] in members["hunks"]}
    assert files == {"ALModel/al_model.py", "tests/al_model_test.py"}
    assert "the name `ALGenericLayer`" in members["why"]
    applied = small.apply(lambda i: "rejected" if i == name else "accepted")
    left = {row["id"]: row for row in applied.data["left"]}
    assert set(members["hunks"]) == left.keys()
    assert left.pop(name)["status"] == "rejected"
    for row in left.values():
        assert row["status"] == "held"
        assert "stands or falls with ALModel/al_model.py:5, which is rejected" in row["why"]
    assert b"class ALGenericLayer" in tree(applied.migration)["src/maxtext/models/ling2.py"]


def test_dump_hooks_fall_with_their_import(small: Run) -> None:
    """The decorator's import only goes if the decorator goes."""
    decorator = next(h for h in small.data["hunks"] if "@dumpable" in h["old"])
    applied = small.apply(lambda i: "rejected" if i == decorator["id"] else "accepted")
    moe = tree(applied.migration)["src/maxtext/layers/moe.py"]
    assert b"@dumpable" in moe
    assert b"import dump_tensor, dumpable\n" in moe
    row = next(
        r for r in applied.data["left"] if "import dump_tensor, dumpable" in r.get("old", "")
    )
    assert "`MaxText.utils.argus_utils` is not in the output now" in row["why"]


def test_what_would_not_compile_is_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were hunks not tied, a choice could leave half a statement; then the file's changes are held back."""
    for name in ("_join_groups", "_join_removed_imports", "_join_topics"):
        monkeypatch.setattr(hunks_module, name, lambda *arguments: None)
    text = (
        "from MaxText import max_utils\n"
        "try:\n  from MaxText.utils.argus_utils import dump_tensor\n"
        "except ImportError:  # outside\n  def dump_tensor(name, value):\n    return value\n\n\n"
        "def f(x):\n  dump_tensor('x', x)\n  return max_utils.VALUE\n"
    )
    made = run(tmp_path, {**PIECES, "tools/x.py": text})
    hook = next(h for h in made.data["hunks"] if h["old"].startswith("try:"))
    other = next(h for h in made.data["hunks"] if "except ImportError" in h["old"])
    assert made.data["sets"] == [] or hook["set"] is None
    applied = made.apply(lambda name: "rejected" if name == hook["id"] else "accepted")
    after = tree(applied.migration)
    assert after["tools/x.py"] == text.encode()
    left = {row["id"]: row for row in applied.data["left"]}
    assert left[hook["id"]]["status"] == "rejected"
    assert left[other["id"]]["status"] == "held"
    assert "a file would not compile" in left[other["id"]]["why"]
    assert {row["file"] for row in left.values()} == {"tools/x.py"}


def test_hunks_cover_all_edits_with_whole_lines(fixture: Run) -> None:
    hunks, sets = find_hunks(fixture.root, fixture.migration.results)
    assert Counter(id(e) for h in hunks for e in h.edits) == Counter(
        id(e) for e in fixture.migration.edits
    )
    assert len({h.id for h in hunks}) == len(hunks)
    assert sorted(i for s in sets for i in s.hunks) == sorted(h.id for h in hunks)
    for path, result in fixture.migration.results.items():
        here = [h for h in hunks if h.file == path]
        for before, after in pairwise(here):
            assert before.last < after.line
        if result.data is None:
            continue
        old = (fixture.root / path).read_bytes().decode("utf-8").splitlines(keepends=True)
        new = result.data.decode("utf-8").splitlines(keepends=True)
        for hunk in here:
            assert "".join(old[hunk.line - 1 : hunk.last]) == hunk.old
            size = len(hunk.new.splitlines())
            assert "".join(new[hunk.new_line - 1 : hunk.new_line - 1 + size]) == hunk.new


def test_ids_outlive_changes_elsewhere(tmp_path: Path, small: Run) -> None:
    changed = {
        **PIECES,
        "src/MaxText/layers/moe.py": "# A new line.\n" + PIECES["src/MaxText/layers/moe.py"],
    }
    assert run(tmp_path / "same", PIECES).data["id"] == small.data["id"]
    again = run(write_files(tmp_path / "again", changed))
    assert again.data["id"] != small.data["id"]
    assert {h["id"] for h in again.data["hunks"]} == {h["id"] for h in small.data["hunks"]}


def test_what_stays_too() -> None:
    moves = {"a": "b", "b": "c", "d/e": "f", "g": "d", "h": None, "i": "h/j"}
    assert blocked_by(moves, {"b"}) == {"a": "b"}
    assert blocked_by(moves, {"d/e"}) == {"g": "d/e"}
    assert blocked_by(moves, {"h"}) == {"i": "h"}
    assert blocked_by(moves, {"a"}) == {}
