"""Known right answers: what git alone loses or leaves at dead paths."""

from __future__ import annotations

from pathlib import Path

import pytest

from migration_tests.checkouts import CommandLine
from migration_tests.rebase.repos import MOVED, Repo, rebase, start

NAMES = "abcdef"


def _module(name: str, lines: int = 30) -> str:
    return "".join(f"{name.upper()}_{k} = {k}\n" for k in range(lines))


def _mass_rename(root: Path) -> Repo:
    """Six modules move; one is rewritten by more than half, one leaves a shim; the fork edits all and adds one."""
    repo = start(root, {f"src/MaxText/{n}.py": _module(n) for n in NAMES})
    move = {**MOVED, **{f"src/MaxText/{n}.py": f"src/maxtext/x/{n}.py" for n in NAMES}}
    repo.commit("move", {"src/maxtext/x/__init__.py": ""}, move=move)
    rewritten = "".join(f"A_{k} = {k}\n" if k < 12 else f"NEW_{k} = 'x{k}'\n" for k in range(30))
    shim = "from maxtext.x.b import *\n"
    repo.commit("rewrite", {"src/maxtext/x/a.py": rewritten, "src/MaxText/b.py": shim})
    repo.git("checkout", "-q", "fork")
    for n in NAMES:
        text = _module(n).replace(f"{n.upper()}_5 = 5\n", f"{n.upper()}_5 = 500\n")
        repo.commit(f"edit {n}", {f"src/MaxText/{n}.py": text})
    repo.commit("add g", {"src/MaxText/g.py": "from MaxText import a\n\nG = a.A_1\n"})
    return repo


@pytest.mark.parametrize("limit", ["", "1"])
def test_every_edit_of_a_mass_rename_arrives(cli: CommandLine, tmp_path: Path, limit: str) -> None:
    repo = _mass_rename(tmp_path / "repo")
    if limit:
        repo.git("config", "diff.renameLimit", limit)
        repo.git("config", "merge.renameLimit", limit)
    ran = rebase(cli, repo.root, tmp_path / "work")
    assert (ran.status, ran.err) == (0, "")
    for n in NAMES:
        assert f"{n.upper()}_5 = 500\n" in repo.show("new", f"src/maxtext/x/{n}.py")
    assert "NEW_20 = 'x20'\n" in repo.show("new", "src/maxtext/x/a.py")
    assert repo.show("new", "src/MaxText/b.py") == "from maxtext.x.b import *\n"
    assert "from maxtext.x import a\n" in repo.show("new", "src/maxtext/x/g.py")
    assert [p for p in repo.tree("new") if p.startswith("src/MaxText/")] == ["src/MaxText/b.py"]
    assert b"7 hunks of the fork: 7 applied" in ran.out
    assert repo.git("rev-list", "--count", "upstream..new").strip() == "7"


def test_formatting_and_a_change_of_one_call(cli: CommandLine, tmp_path: Path) -> None:
    body = "def f(*a):\n  return a\n\n\n{}\n"
    repo = start(tmp_path / "repo", {"src/MaxText/m.py": body.format("x = f(1,2)")})
    repo.commit(
        "move",
        {"src/maxtext/m.py": body.format("x = f(1, 2)")},
        move=MOVED,
        remove=("src/MaxText/m.py",),
    )
    repo.git("checkout", "-q", "fork")
    repo.commit("edit", {"src/MaxText/m.py": body.format("x = f(1,2,3)")})
    ran = rebase(cli, repo.root, tmp_path / "w")
    assert (ran.status, ran.err) == (0, "")
    assert repo.show("new", "src/maxtext/m.py") == body.format("x = f(1, 2, 3)")


def test_a_failed_codemod_is_a_conflict(cli: CommandLine, tmp_path: Path) -> None:
    text = _module("m") + "from MaxText.layers import n\n"
    repo = start(
        tmp_path / "repo", {"src/MaxText/layers/m.py": text, "src/MaxText/layers/n.py": "N = 1\n"}
    )
    move = {
        **MOVED,
        "src/MaxText/layers/m.py": "src/maxtext/models/m.py",
        "src/MaxText/layers/n.py": "src/maxtext/layers/n.py",
    }
    repo.commit("move", {"src/maxtext/models/__init__.py": ""}, move=move)
    repo.commit(
        "edit",
        {
            "src/maxtext/models/m.py": text.replace("MaxText", "maxtext").replace(
                "M_1 = 1", "M_1 = 10"
            )
        },
    )
    repo.git("checkout", "-q", "fork")
    repo.commit("edit", {"src/MaxText/layers/m.py": text + "def broken(:\n"})
    ran = rebase(cli, repo.root, tmp_path / "w")
    assert ran.status == 1
    assert b"the codemods could not handle it" in ran.out
    assert "new" not in repo.git("branch")


def _functions(*names: str) -> str:
    return "".join(
        f"def {n}(x):\n  y = x + 1\n  z = y * 2\n  return {n}_value(z)\n\n\n" for n in names
    )


def _split_repo(root: Path, *, twice: bool = False, gone: bool = False) -> Repo:
    """Upstream moves a module and puts its last function into another file; the fork changes both functions."""
    text = "import os\n\n\n" + _functions("stays", "goes")
    repo = start(root, {"src/MaxText/layers/m.py": text})
    head = "import os\n\n\n"
    new = {
        "src/maxtext/layers/m.py": head + _functions("stays"),
        "src/maxtext/layers/part.py": head
        + _functions("goes").replace("goes_value(z)", "goes_value(z, 1)"),
    }
    if twice:
        new["src/maxtext/layers/other.py"] = head + _functions("goes")
    if gone:
        new["src/maxtext/layers/part.py"] = head + _functions("stays", "goes")
        del new["src/maxtext/layers/m.py"]
    repo.commit("split", new, move=MOVED, remove=("src/MaxText/layers/m.py",))
    repo.git("checkout", "-q", "fork")
    edited = text.replace("def goes(x):\n  y = x + 1", "def goes(x):\n  y = x + os.getpid()")
    repo.commit("edit", {"src/MaxText/layers/m.py": edited})
    return repo


def test_a_change_goes_where_the_function_lives_now(cli: CommandLine, tmp_path: Path) -> None:
    repo = _split_repo(tmp_path / "repo")
    ran = rebase(cli, repo.root, tmp_path / "w")
    assert (ran.status, ran.err) == (0, "")
    part = repo.show("new", "src/maxtext/layers/part.py")
    assert "  y = x + os.getpid()\n" in part
    assert "goes_value(z, 1)" in part
    assert repo.show("new", "src/maxtext/layers/m.py") == repo.show(
        "upstream", "src/maxtext/layers/m.py"
    )
    assert b"1 moved" in ran.out
    assert b"1 applied" in ran.out


def test_a_change_of_a_file_that_was_merged_into_another(cli: CommandLine, tmp_path: Path) -> None:
    repo = _split_repo(tmp_path / "repo", gone=True)
    ran = rebase(cli, repo.root, tmp_path / "w")
    assert (ran.status, ran.err) == (0, "")
    assert "  y = x + os.getpid()\n" in repo.show("new", "src/maxtext/layers/part.py")


def test_two_possible_places_are_both_named(cli: CommandLine, tmp_path: Path) -> None:
    repo = _split_repo(tmp_path / "repo", twice=True)
    ran = rebase(cli, repo.root, tmp_path / "w")
    if ran.status == 0:  # the map knows which
        homes = [
            p
            for p in ("part", "other")
            if "os.getpid()" in repo.show("new", f"src/maxtext/layers/{p}.py")
        ]
        assert len(homes) == 1
    else:
        assert b"src/maxtext/layers/part.py" in ran.out
        assert b"src/maxtext/layers/other.py" in ran.out


def test_a_look_alike_is_named(cli: CommandLine, tmp_path: Path) -> None:
    body = "import os\n\n\n" + _functions("keep", "stage", "last")
    repo = start(tmp_path / "repo", {"src/MaxText/layers/pipeline.py": body})
    move = {**MOVED, "src/MaxText/layers/pipeline.py": "src/maxtext/layers/pipeline.py"}
    repo.commit("move", move=move)
    new = body.replace(
        "def stage(x):\n  y = x + 1\n  z = y * 2\n", "def stage(x):\n  w = new(x)\n  z = w\n"
    )
    repo.commit(
        "rewrite",
        {"src/maxtext/layers/pipeline.py": new, "src/maxtext/layers/pipeline_deprecated.py": body},
    )
    repo.git("checkout", "-q", "fork")
    edited = body.replace(
        "def stage(x):\n  y = x + 1\n  z = y * 2\n", "def stage(x):\n  y = x + 7\n  z = y * 7\n"
    )
    repo.commit("edit", {"src/MaxText/layers/pipeline.py": edited})
    ran = rebase(cli, repo.root, tmp_path / "w")
    assert ran.status == 1
    assert b"conflict" in ran.out
    assert b"src/maxtext/layers/pipeline.py: both sides changed the same lines" in ran.out
    assert b"src/maxtext/layers/pipeline_deprecated.py has `stage` as the fork knew it" in ran.out


def test_a_file_that_both_sides_renamed(cli: CommandLine, tmp_path: Path) -> None:
    repo = start(tmp_path / "repo", {"src/MaxText/m.py": _module("m")})
    repo.commit("move", move={**MOVED, "src/MaxText/m.py": "src/maxtext/theirs.py"})
    repo.git("checkout", "-q", "fork")
    repo.commit("rename", move={"src/MaxText/m.py": "src/MaxText/mine.py"})
    ran = rebase(cli, repo.root, tmp_path / "w")
    assert ran.status == 1
    words = b"upstream renamed it to src/maxtext/theirs.py, the fork to src/maxtext/mine.py"
    assert words in ran.out
    assert (tmp_path / "w/src/maxtext/mine.py").read_text() == _module("m")


def test_a_line_that_the_fork_moved_and_upstream_changed(cli: CommandLine, tmp_path: Path) -> None:
    one = "def one(x):\n" + "".join(f"  x = x + {k}\n" for k in range(8)) + "  return x\n\n\n"
    rest = _module("value", 60) + "\n\n"
    changed = one.replace("x + 3", "x + 33")
    repo = start(tmp_path / "repo", {"src/MaxText/m.py": rest + one})
    repo.commit("move", move={**MOVED, "src/MaxText/m.py": "src/maxtext/m.py"})
    repo.commit("a line", {"src/maxtext/m.py": rest + changed})
    repo.git("checkout", "-q", "fork")
    repo.commit("first", {"src/MaxText/m.py": one + rest})
    ran = rebase(cli, repo.root, tmp_path / "w")
    assert (ran.status, ran.err) == (0, "")
    assert repo.show("new", "src/maxtext/m.py").split() == (rest + changed).split()
    report = (tmp_path / "w/rebase-report.json").read_text()
    assert "the fork moved it, unchanged, and upstream changed it: upstream's stands" in report
