"""Conflicts are left as git leaves them, and a rebase goes on, is given up or survives being cut off."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from codemods.errors import UserError
from codemods.rebase import session
from migration_tests.checkouts import CommandLine, Ran
from migration_tests.rebase.repos import MOVED, Repo, rebase, start

BODY = "".join(f"def f{k}(x):\n  return x + {k}\n\n\n" for k in range(6))


def edited(number: int, new: str) -> str:
    """The module with one function's result changed."""
    return BODY.replace(f"return x + {number}\n", f"return {new}\n")


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    """Upstream and the fork change `f2` in different ways; the fork has a commit before and after that."""
    made = start(tmp_path / "repo", {"src/MaxText/m.py": BODY})
    made.commit("move", move={**MOVED, "src/MaxText/m.py": "src/maxtext/m.py"})
    made.commit("upstream's", {"src/maxtext/m.py": edited(2, "x - 2")})
    made.git("checkout", "-q", "fork")
    made.commit("first", {"src/MaxText/own.py": "from MaxText.m import f1\n"})
    made.commit("the fork's f2", {"src/MaxText/m.py": edited(2, "x * 2")})
    both = edited(2, "x * 2").replace("return x + 5\n", "return x * 5\n")
    made.commit("f5", {"src/MaxText/m.py": both})
    return made


def begin(cli: CommandLine, repo: Repo, tmp_path: Path, *more: str) -> Ran:
    """Start a rebase of the fork in tmp_path/work."""
    return rebase(cli, repo.root, tmp_path / "work", *more)


def git(work: Path, *arguments: str) -> str:
    """Run git in the work folder."""
    done = subprocess.run(
        ["git", "-C", str(work), *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout


def test_a_conflict_is_gits_own_and_continues(cli: CommandLine, repo: Repo, tmp_path: Path) -> None:
    before = repo.state()
    ran = begin(cli, repo, tmp_path)
    work = tmp_path / "work"
    assert (ran.status, ran.err) == (1, "")
    assert b"conflict" in ran.out
    assert b"--continue" in ran.out
    assert repo.state() == before
    assert git(work, "status", "--porcelain").splitlines() == ["UU src/maxtext/m.py"]
    stages = git(work, "ls-files", "-u").splitlines()
    assert [line.split()[2] for line in stages] == ["1", "2", "3"]
    text = (work / "src/maxtext/m.py").read_text()
    assert text.count("<<<<<<< ") == 1
    assert "return x * 2\n" in text
    assert "return x - 2\n" in text
    assert "def f2" not in text.partition("<<<<<<< ")[2].partition(">>>>>>> ")[0]
    page = (work / "rebase-report.html").read_text()
    assert "the fork&#x27;s f2" in page
    assert "return x * 2" in page

    ran = cli("rebase", "--continue", "--out", work)
    assert ran.status == 2
    assert "src/maxtext/m.py not resolved yet" in ran.err
    (work / "src/maxtext/m.py").write_text(edited(2, "x * 2 - 2"))
    git(work, "add", "src/maxtext/m.py")
    ran = cli("rebase", "--continue", "--out", work)
    assert (ran.status, ran.err) == (0, "")
    assert repo.show("new", "src/maxtext/m.py") == edited(2, "x * 2 - 2").replace(
        "x + 5\n", "x * 5\n"
    )
    assert repo.git("log", "--format=%s", "upstream..new").splitlines() == [
        "f5",
        "the fork's f2",
        "first",
    ]
    assert git(work, "status", "--porcelain") == ""


def test_author_date_and_message_are_kept(cli: CommandLine, repo: Repo, tmp_path: Path) -> None:
    begin(cli, repo, tmp_path)
    cli("rebase", "--skip", "--out", tmp_path / "work")
    for old, new in (("fork~2", "new~1"), ("fork", "new")):
        shape = "--format=%an %ae %aI %s"
        assert repo.git("log", "-1", shape, old) == repo.git("log", "-1", shape, new)
        trailer = f"Rebased-from: {repo.git('rev-parse', old).strip()}"
        assert repo.git("log", "-1", "--format=%b", new).strip() == trailer


def test_skip_leaves_a_commit_out_and_says_so(cli: CommandLine, repo: Repo, tmp_path: Path) -> None:
    begin(cli, repo, tmp_path)
    ran = cli("rebase", "--skip", "--out", tmp_path / "work")
    assert (ran.status, ran.err) == (0, "")
    assert repo.show("new", "src/maxtext/m.py") == edited(2, "x - 2").replace("x + 5\n", "x * 5\n")
    data = json.loads((tmp_path / "work/rebase-report.json").read_text())
    assert [s["state"] for s in data["steps"]] == ["carried", "skipped", "carried"]
    assert data["counts"].get("lost") is None


def test_abort_leaves_nothing(cli: CommandLine, repo: Repo, tmp_path: Path) -> None:
    before = repo.state()
    begin(cli, repo, tmp_path)
    ran = cli("rebase", "--abort", "--out", tmp_path / "work")
    assert ran.status == 0
    assert not (tmp_path / "work").exists()
    assert repo.state() == before
    assert cli("rebase", "--continue", "--out", tmp_path / "work").status == 2


def test_paths_may_be_relative(
    cli: CommandLine, repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert rebase(cli, Path("repo"), Path("work")).status == 1
    (tmp_path / "work/src/maxtext/m.py").write_text(edited(2, "x * 2 - 2"))
    git(tmp_path / "work", "add", "src/maxtext/m.py")
    ran = cli("rebase", "--continue", "--out", "work")
    assert (ran.status, ran.err) == (0, "")
    monkeypatch.chdir(tmp_path / "work/src")
    ran = cli("rebase", "--abort", "--out", "..")
    assert ran.status == 2
    assert "this rebase is finished, and branch new is in " in ran.err
    assert (tmp_path / "work/src").is_dir()
    monkeypatch.chdir(tmp_path)
    assert rebase(cli, Path("repo"), Path("skipped"), "--branch", "other").status == 1
    ran = cli("rebase", "--skip", "--out", "skipped")
    assert (ran.status, ran.err) == (0, "")
    assert rebase(cli, Path("repo"), Path("given-up"), "--branch", "third").status == 1
    assert cli("rebase", "--abort", "--out", "given-up").status == 0
    assert not (tmp_path / "given-up").exists()


def test_the_old_layout_is_no_place_to_carry_to(cli: CommandLine, repo: Repo) -> None:
    ran = cli("rebase", repo.root, "--onto", "upstream~2", "--plan", "--jobs", "1")
    assert ran.status == 2
    assert "--onto upstream~2: has no package maxtext" in ran.err


def test_a_plan_writes_nothing(cli: CommandLine, repo: Repo, tmp_path: Path) -> None:
    before = repo.state()
    ran = cli("rebase", repo.root, "--onto", "upstream", "--plan", "--jobs", "1")
    assert ran.status == 1
    assert b"src/maxtext/m.py: both sides changed the same lines, 1 place\n" in ran.out
    assert repo.state() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["repo"]


def test_markers_that_are_left_are_named(cli: CommandLine, repo: Repo, tmp_path: Path) -> None:
    begin(cli, repo, tmp_path)
    work = tmp_path / "work"
    git(work, "add", "src/maxtext/m.py")
    ran = cli("rebase", "--continue", "--out", work)
    assert ran.status == 2
    assert "conflict markers" in ran.err


@pytest.mark.parametrize("place", ["save", "record"])
def test_cut_off_anywhere_goes_on(
    cli: CommandLine, repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    begin(cli, repo, tmp_path)
    work = tmp_path / "work"
    (work / "src/maxtext/m.py").write_text(edited(2, "x * 2"))
    git(work, "add", "src/maxtext/m.py")
    name = {"save": "_save", "record": "_finish"}[place]
    with monkeypatch.context() as patch:

        def cut(*_: object) -> None:
            raise UserError("cut off")

        patch.setattr(session.Session, name, cut)
        assert cli("rebase", "--continue", "--out", work).status == 2
    assert "new" not in repo.git("branch").split()
    ran = cli("rebase", "--continue", "--out", work)
    assert (ran.status, ran.err) == (0, "")
    assert repo.show("new", "src/maxtext/m.py") == edited(2, "x * 2").replace("x + 5\n", "x * 5\n")


def test_cut_off_before_the_conflict_is_there_takes_nothing_for_an_answer(
    cli: CommandLine, repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:

        def cut(*_: object) -> None:
            raise UserError("cut off")

        patch.setattr(session.Session, "_leave_conflict", cut)
        assert begin(cli, repo, tmp_path).status == 2
    work = tmp_path / "work"
    ran = cli("rebase", "--continue", "--out", work)
    assert ran.status == 2
    assert "resolve it" in ran.err
    assert git(work, "status", "--porcelain").splitlines() == ["UU src/maxtext/m.py"]
    (work / "src/maxtext/m.py").write_text(edited(2, "x * 2"))
    git(work, "add", "src/maxtext/m.py")
    assert cli("rebase", "--continue", "--out", work).status == 0
    assert repo.show("new", "src/maxtext/m.py") == edited(2, "x * 2").replace("x + 5\n", "x * 5\n")


def test_a_finished_rebase_is_over(cli: CommandLine, repo: Repo, tmp_path: Path) -> None:
    begin(cli, repo, tmp_path)
    cli("rebase", "--skip", "--out", tmp_path / "work")
    ran = cli("rebase", "--continue", "--out", tmp_path / "work")
    assert ran.status == 2
    assert "finished" in ran.err


def test_squash_makes_one_commit(cli: CommandLine, repo: Repo, tmp_path: Path) -> None:
    begin(cli, repo, tmp_path, "--squash")
    work = tmp_path / "work"
    (work / "src/maxtext/m.py").write_text(edited(2, "x * 2").replace("x + 5\n", "x * 5\n"))
    git(work, "add", "src/maxtext/m.py")
    ran = cli("rebase", "--continue", "--out", work)
    assert (ran.status, ran.err) == (0, "")
    assert repo.git("rev-list", "--count", "upstream..new").strip() == "1"
    assert "* the fork's f2 (" in repo.git("log", "-1", "--format=%b", "new")


def test_upstreams_own_change_is_an_empty_commit_or_left_out(
    cli: CommandLine, repo: Repo, tmp_path: Path
) -> None:
    repo.git("checkout", "-q", "-B", "fork", repo.base)
    repo.commit("same as upstream", {"src/MaxText/m.py": edited(2, "x - 2")})
    repo.commit("own", {"src/MaxText/m.py": edited(2, "x - 2").replace("x + 5\n", "x * 5\n")})
    ran = begin(cli, repo, tmp_path)
    assert ran.status == 0
    assert repo.git("rev-list", "--count", "upstream..new").strip() == "2"
    out = tmp_path / "work2"
    ran = cli(
        "rebase",
        repo.root,
        "--onto",
        "upstream",
        "--branch",
        "lean",
        "--out",
        out,
        "--jobs",
        "1",
        "--drop-migrated",
    )
    assert ran.status == 0
    assert repo.git("log", "--format=%s", "upstream..lean").split() == ["own"]
    assert b"already upstream" in ran.out


def test_a_second_rebase_starts_from_the_last(cli: CommandLine, repo: Repo, tmp_path: Path) -> None:
    begin(cli, repo, tmp_path)
    work = tmp_path / "work"
    (work / "src/maxtext/m.py").write_text(edited(2, "x * 2 - 2"))
    git(work, "add", "src/maxtext/m.py")
    assert cli("rebase", "--continue", "--out", work).status == 0
    resolved = edited(2, "x * 2 - 2").replace("x + 5\n", "x * 5\n")

    # The fork goes on: what was carried stands, with the resolution.
    more = repo.show("fork", "src/MaxText/m.py").replace("return x + 0\n", "return x * 10\n")
    repo.commit("f0", {"src/MaxText/m.py": more})
    first = ["rebase", repo.root, "--onto", "upstream", "--jobs", "1"]
    ran = cli(*first, "--last", "new", "--branch", "new2", "--out", tmp_path / "w2")
    assert (ran.status, ran.err) == (0, "")
    assert repo.show("new2", "src/maxtext/m.py") == resolved.replace("x + 0\n", "x * 10\n")
    assert repo.git("rev-parse", "new2~1") == repo.git("rev-parse", "new")
    ran = cli(*first, "--last", "new2", "--branch", "new3", "--out", tmp_path / "w3")
    assert ran.status == 2
    assert "nothing to carry" in ran.err

    # Upstream goes on: the branch that was made is carried, so no conflict comes again.
    repo.git("checkout", "-q", "upstream")
    repo.commit(
        "again",
        {
            "src/maxtext/z/m.py": edited(2, "x - 2").replace("x + 4\n", "x + 44\n"),
            "src/maxtext/z/__init__.py": "",
        },
        remove=("src/maxtext/m.py",),
    )
    arguments = [
        "--from",
        "new2",
        "--onto",
        "upstream",
        "--branch",
        "new4",
        "--out",
        tmp_path / "w4",
    ]
    ran = cli("rebase", repo.root, *arguments, "--jobs", "1")
    assert (ran.status, ran.err) == (0, "")
    right = resolved.replace("x + 0\n", "x * 10\n").replace("x + 4\n", "x + 44\n")
    assert repo.show("new4", "src/maxtext/z/m.py") == right
    assert "from maxtext.z.m import f1" in repo.show("new4", "src/maxtext/own.py")


def test_work_of_a_persons_in_the_folder_is_not_lost(
    cli: CommandLine, repo: Repo, tmp_path: Path
) -> None:
    repo.commit("last", {"notes.txt": "the fork's\n"})
    begin(cli, repo, tmp_path)
    work = tmp_path / "work"
    own = work / "src/maxtext/own.py"
    (work / "src/maxtext/m.py").write_text(edited(2, "x * 2"))
    git(work, "add", "src/maxtext/m.py")
    (work / "src/scratch.txt").write_text("mine\n")
    before = own.read_text()
    own.write_text("changed\n")
    ran = cli("rebase", "--continue", "--out", work)
    assert ran.status == 2
    assert "src/maxtext/own.py changed since `git add`" in ran.err
    assert own.read_text() == "changed\n"
    own.write_text(before)
    (work / "notes.txt").write_text("mine\n")
    ran = cli("rebase", "--continue", "--out", work)
    assert ran.status == 2
    assert "notes.txt: is not tracked and would be overwritten" in ran.err
    assert (work / "notes.txt").read_text() == "mine\n"
    (work / "notes.txt").unlink()
    ran = cli("rebase", "--continue", "--out", work)
    assert (ran.status, ran.err) == (0, "")
    assert (work / "src/scratch.txt").read_text() == "mine\n"
    assert git(work, "status", "--porcelain").splitlines() == ["?? src/scratch.txt"]


def test_a_conflict_that_was_thrown_away_is_no_answer(
    cli: CommandLine, repo: Repo, tmp_path: Path
) -> None:
    begin(cli, repo, tmp_path)
    git(tmp_path / "work", "reset", "-q", "--hard")
    ran = cli("rebase", "--continue", "--out", tmp_path / "work")
    assert ran.status == 2
    assert "nothing of the commit is left" in ran.err
    assert cli("rebase", "--skip", "--out", tmp_path / "work").status == 0


@pytest.mark.parametrize("end", ["--continue", "--abort"])
def test_git_remembers_how_it_was_resolved(
    cli: CommandLine, repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    before = repo.state()
    begin(cli, repo, tmp_path)
    work = tmp_path / "work"
    (work / "src/maxtext/m.py").write_text(edited(2, "x * 2 - 2"))
    git(work, "add", "src/maxtext/m.py")
    cli("rebase", end, "--out", work)
    if end == "--abort":
        assert repo.state() == before
    assert not (repo.root / ".git/rr-cache").exists()
    target = ["--onto", "upstream", "--branch", "again", "--out", tmp_path / "work2"]
    assert cli("rebase", repo.root, *target, "--jobs", "1").status == 1
    assert (tmp_path / "work2/src/maxtext/m.py").read_text() == edited(2, "x * 2 - 2")
    assert git(tmp_path / "work2", "status", "--porcelain").startswith("UU ")  # to be looked at


@pytest.mark.parametrize("seconds", [0.5, 1.0, 2.0])
def test_killed_outright(repo: Repo, cli: CommandLine, tmp_path: Path, seconds: float) -> None:
    """SIGKILL at some moment, of the first run and of the one that goes on: nothing is lost."""
    begin(cli, repo, tmp_path)
    work = tmp_path / "work"
    (work / "src/maxtext/m.py").write_text(edited(2, "x * 2"))
    git(work, "add", "src/maxtext/m.py")
    before = repo.state()
    command = [sys.executable, "-m", "codemods.cli", "rebase", "--continue", "--out", str(work)]
    running = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        running.wait(seconds)
    except subprocess.TimeoutExpired:
        os.killpg(running.pid, signal.SIGKILL)
        running.wait()
    if "new" not in repo.git("branch").split():
        assert {k: v for k, v in repo.state().items() if k in before} == before
        ran = cli("rebase", "--continue", "--out", work)
        assert (ran.status, ran.err) == (0, "")
    assert repo.show("new", "src/maxtext/m.py") == edited(2, "x * 2").replace("x + 5\n", "x * 5\n")
    repo.git("fsck", "--strict")
