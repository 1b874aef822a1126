"""A conflict that later commits of the branch meet again is seen once, at the last of them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from migration_tests.checkouts import CommandLine
from migration_tests.rebase.repos import MOVED, Repo, rebase, start

LINES = "".join(f"V{k} = {k}\n" for k in range(30))


def edited(**values: int) -> str:
    """The module with some values changed."""
    text = LINES
    for name, value in values.items():
        text = text.replace(f"{name} = {name[1:]}\n", f"{name} = {value}\n")
    return text


def histories(root: Path, *versions: str) -> Repo:
    """Upstream changes V5; the fork's commits make the module what is given, with a file of each commit's own."""
    repo = start(root, {"src/MaxText/m.py": LINES})
    repo.commit("move", move={**MOVED, "src/MaxText/m.py": "src/maxtext/m.py"})
    repo.commit("upstream's", {"src/maxtext/m.py": edited(V5=50)})
    repo.git("checkout", "-q", "fork")
    for k, text in enumerate(versions):
        repo.commit(f"c{k}", {"src/MaxText/m.py": text, f"own{k}.txt": f"{k}\n"})
    return repo


def resolve(work: Path, text: str) -> None:
    """Write the module as a person resolves it."""
    (work / "src/maxtext/m.py").write_text(text, encoding="utf-8")
    subprocess.run(["git", "-C", str(work), "add", "src/maxtext/m.py"], check=True)


def test_one_stop_for_three_commits(cli: CommandLine, tmp_path: Path) -> None:
    repo = histories(
        tmp_path / "repo",
        edited(V5=6),
        edited(V5=7, V20=1),
        edited(V5=8, V20=1),
        edited(V5=8, V20=2),
    )
    ran = rebase(cli, repo.root, tmp_path / "work")
    assert ran.status == 1
    assert b"1 joined" not in ran.out  # each commit has a file of its own
    text = (tmp_path / "work/src/maxtext/m.py").read_text()
    assert "V5 = 50\n||||||| base\nV5 = 5\n=======\nV5 = 8\n" in text
    assert "V20 = 2\n" in text
    head = repo.git("rev-parse", "fork").strip()
    assert (tmp_path / "work/.git/CHERRY_PICK_HEAD").read_text().strip() == head
    resolve(tmp_path / "work", edited(V5=58, V20=2))
    ran = cli("rebase", "--continue", "--out", tmp_path / "work")
    assert (ran.status, ran.err) == (0, "")
    assert repo.show("new", "src/maxtext/m.py") == edited(V5=58, V20=2)
    assert repo.git("log", "--format=%s", "upstream..new").split() == ["c3", "c2", "c1", "c0"]
    assert "V20 = 1\n" in repo.show("new~2", "src/maxtext/m.py")
    report = json.loads((tmp_path / "work/rebase-report.json").read_text())
    assert sum(len(s["conflicts"]) for s in report["steps"]) == 1
    assert "from " + repo.git("rev-parse", "--short=10", "fork~3").strip() in json.dumps(report)


def test_what_the_branch_gave_up_is_no_conflict(cli: CommandLine, tmp_path: Path) -> None:
    repo = histories(tmp_path / "repo", edited(V5=6), edited(V5=50), edited(V5=50, V9=1))
    ran = rebase(cli, repo.root, tmp_path / "work")
    assert (ran.status, ran.err) == (0, "")
    assert repo.show("new", "src/maxtext/m.py") == edited(V5=50, V9=1)


def test_a_commit_that_only_waits_keeps_its_place(cli: CommandLine, tmp_path: Path) -> None:
    repo = histories(tmp_path / "repo", LINES)
    for value in (6, 7):
        repo.commit(f"v{value}", {"src/MaxText/m.py": edited(V5=value)})
    ran = rebase(cli, repo.root, tmp_path / "work", "--drop-migrated")
    assert ran.status == 1
    assert b"1 joined" in ran.out
    resolve(tmp_path / "work", edited(V5=57))
    assert cli("rebase", "--continue", "--out", tmp_path / "work").status == 0
    assert repo.git("log", "--format=%s", "upstream..new").split() == ["v7", "v6", "c0"]


def test_conflicts_in_different_places_stay_with_their_commits(
    cli: CommandLine, tmp_path: Path
) -> None:
    repo = histories(tmp_path / "repo", edited(V5=6), edited(V5=6, V20=1))
    assert rebase(cli, repo.root, tmp_path / "work").status == 1
    first = repo.git("rev-parse", "fork~1").strip()
    assert (tmp_path / "work/.git/CHERRY_PICK_HEAD").read_text().strip() == first


@pytest.mark.parametrize("answer", ["resolved", "skipped"])
def test_a_stop_for_another_file_in_between(cli: CommandLine, tmp_path: Path, answer: str) -> None:
    repo = start(tmp_path / "repo", {"src/MaxText/m.py": LINES, "other.txt": "a\n"})
    repo.commit("move", move={**MOVED, "src/MaxText/m.py": "src/maxtext/m.py"})
    repo.commit("upstream's", {"src/maxtext/m.py": edited(V5=50), "other.txt": "up\n"})
    repo.git("checkout", "-q", "fork")
    repo.commit("c0", {"src/MaxText/m.py": edited(V5=6)})
    repo.commit("c1", {"src/MaxText/m.py": edited(V5=6, V15=1), "other.txt": "fork\n"})
    repo.commit("c2", {"src/MaxText/m.py": edited(V5=7, V15=1)})
    work = tmp_path / "work"
    ran = rebase(cli, repo.root, work)
    assert ran.status == 1
    status = subprocess.run(
        ["git", "-C", str(work), "status", "--porcelain"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "UU other.txt" in status
    assert "UU src" not in status
    if answer == "resolved":
        (work / "other.txt").write_text("both\n")
        subprocess.run(["git", "-C", str(work), "add", "other.txt"], check=True)
        resolve(work, edited(V5=50, V15=1, V25=1))  # a person may change the waiting file too
        ran = cli("rebase", "--continue", "--out", work)
        wanted = "V15 = 1\n", "V25 = 1\n"
    else:
        ran = cli("rebase", "--skip", "--out", work)
        wanted = "V15 = 15\n", "V25 = 25\n"
    assert ran.status == 1, ran.err
    text = (work / "src/maxtext/m.py").read_text()
    assert "V5 = 50\n||||||| base\nV5 = 5\n=======\nV5 = 7\n" in text
    assert all(line in text for line in wanted)
