"""Known right answers: what git alone loses or leaves at dead paths."""

from __future__ import annotations

from pathlib import Path

import pytest

from migration_tests.checkouts import CommandLine
from migration_tests.rebase.repos import MOVED, Repo, start

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
    ran = cli(
        "rebase", repo.root, "--onto", "upstream", "--branch", "new", "--out", tmp_path / "work",
        "--jobs", "1",
    )  # fmt: skip
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
    ran = cli(
        "rebase",
        repo.root,
        "--onto",
        "upstream",
        "--branch",
        "new",
        "--out",
        tmp_path / "w",
        "--jobs",
        "1",
    )
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
    ran = cli(
        "rebase",
        repo.root,
        "--onto",
        "upstream",
        "--branch",
        "new",
        "--out",
        tmp_path / "w",
        "--jobs",
        "1",
    )
    assert ran.status == 1
    assert b"the codemods could not handle it" in ran.out
    assert "new" not in repo.git("branch")
