"""`--branch`: one commit per rule family in a copy of the repository, and the tree of a plain run at its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from codemods.engine.branch import BLAME
from codemods.rules import all_rules
from migration_tests.checkouts import CommandLine, contents, fork, git, repository, state

EXTRA = {
    "ALModel/al_model.py": "from MaxText.layers import moe\n\n\nclass ALDenseLayer(moe.RoutedMoE):\n  pass\n",
    "src/MaxText/configs/models/al_model.yml": "decoder_block: 'al_model'\nlayer_group_size: 5\n",
    "tool/latin.py": "# coding: latin-1\nfrom MaxText import max_utils  # café\n".encode("latin-1"),
}


@pytest.fixture
def cli(capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    return CommandLine(capfdbinary, monkeypatch)


def branched(cli: CommandLine, root: Path, *options: str) -> tuple[Path, dict[str, bytes]]:
    """The copy with the branch, and what a run without `--branch` writes."""
    before = state(root)
    plain, copy = root.parent / "plain", root.parent / "copy"
    one = cli.run(root, "--out", plain, *options)
    two = cli.run(root, "--out", copy, "--branch", "moved", *options)
    assert (one.err, two.err) == ("", "")
    assert one.status == two.status
    assert state(root) == before
    return copy, contents(plain)


def tree(copy: Path) -> dict[str, bytes]:
    """The files of the copy, but for the list of commits that only a branch has."""
    found = contents(copy)
    del found[BLAME]
    return found


def subjects(copy: Path) -> list[str]:
    found = git(copy, "log", "--reverse", "--format=%s", "main..moved").splitlines()
    assert found.pop() == "List the commits of the migration for git blame"
    return found


def test_one_commit_per_family(cli: CommandLine, tmp_path: Path) -> None:
    copy, plain = branched(cli, repository(tmp_path / "fork", EXTRA))
    assert git(copy, "status", "--porcelain") == ""
    assert git(copy, "branch", "--show-current") == "moved\n"
    assert tree(copy) == plain
    tracked = git(copy, "ls-files", "-z").split("\0")[:-1]
    assert sorted(tracked) == sorted({*plain, BLAME})
    families = [subject.partition(":")[0] for subject in subjects(copy)]
    assert families[0] == "MAP"
    assert len(set(families)) == len(families)
    assert {"IMP", "REN", "CFG", "TXT"} <= set(families)
    assert (copy / "report.html").exists()
    git(copy, "fsck", "--strict")


def test_git_blame_looks_through_the_migration(cli: CommandLine, tmp_path: Path) -> None:
    known = "# formatted\n" + "1" * 40  # without a line end
    copy, _ = branched(cli, repository(tmp_path / "fork", {BLAME: known}))
    listed = (copy / BLAME).read_text(encoding="utf-8")
    assert listed.startswith(f"{known}\n# ling2-migrate ")
    ids = [line for line in listed.splitlines() if not line.startswith("#")][1:]
    assert ids == git(copy, "log", "--reverse", "--format=%H", "main..moved~1").split()
    (copy / BLAME).write_text("\n".join(ids), encoding="utf-8")  # git refuses what it does not have
    shown = ("blame", "--line-porcelain", "run.sh")
    assert ids[-1] in git(copy, *shown) or any(x in git(copy, *shown) for x in ids)
    through = git(copy, "-c", f"blame.ignoreRevsFile={BLAME}", *shown)
    assert not any(f"{x} " in through for x in ids)


def test_uncommitted_changes_are_no_work_of_the_migration(cli: CommandLine, tmp_path: Path) -> None:
    root = repository(tmp_path / "fork")
    (root / "run.sh").write_text("python3 -m MaxText.decode\n", encoding="utf-8")
    copy, _ = branched(cli, root)
    own = git(copy, "log", "--reverse", "--format=%H", "main..moved").split()[0]
    assert own not in (copy / BLAME).read_text(encoding="utf-8")


def test_messages_carry_what_the_rules_do(cli: CommandLine, tmp_path: Path) -> None:
    copy, _ = branched(cli, repository(tmp_path / "fork", EXTRA))
    messages = git(copy, "log", "--format=%B", "main..moved")
    rule = all_rules()["IMP001"]
    assert f"IMP001 (×4, {rule.tier}): {rule.summary}" in messages
    assert "MAP001 (×" in messages
    words = " ".join(messages.split())
    for name in ("MAP002", "REN001", "CFG001"):
        assert (f"{name} (×" in words) == (" ".join(all_rules()[name].detail.split()) in words)
    assert all_rules()["CFG001"].detail in words
    assert "to MaxText 0.2.5" in messages


def test_each_family_can_be_reverted(cli: CommandLine, tmp_path: Path) -> None:
    copy, _ = branched(cli, repository(tmp_path / "fork", EXTRA))
    commits = git(copy, "log", "--reverse", "--format=%H %s", "main..moved").splitlines()
    shell = next(line.split()[0] for line in commits if " TXT:" in line)
    git(copy, "revert", "--no-edit", shell)
    assert (copy / "run.sh").read_text(encoding="utf-8").startswith("python3 -m MaxText.train")
    assert "maxtext" in (copy / "src/maxtext/layers/moe.py").read_text(encoding="utf-8")


def test_a_dirty_tree_comes_first(cli: CommandLine, tmp_path: Path) -> None:
    root = repository(tmp_path / "fork")
    (root / "run.sh").write_text("python3 -m MaxText.decode\n", encoding="utf-8")
    (root / "new.py").write_text("from MaxText import max_utils\n", encoding="utf-8")
    (root / "notes.md").unlink()
    copy, plain = branched(cli, root)
    assert tree(copy) == plain
    assert subjects(copy)[0] == "Uncommitted changes of the checkout, as they were"
    assert git(copy, "show", "--format=", "--name-status", "main~0..moved~0", "--", "notes.md")
    assert git(copy, "show", "moved~1:new.py" if len(subjects(copy)) == 2 else "moved:new.py")
    assert git(root, "diff", "--name-only") == "notes.md\nrun.sh\n"


def test_nothing_of_the_users_runs(cli: CommandLine, tmp_path: Path) -> None:
    root = repository(tmp_path / "fork")
    for hook in (
        "pre-commit",
        "commit-msg",
        "post-commit",
        "reference-transaction",
        "post-index-change",
    ):
        path = root / ".git/hooks" / hook
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\necho {hook} >> {tmp_path / 'ran'}\nexit 1\n", encoding="utf-8")
        path.chmod(0o755)
    git(root, "config", "commit.gpgSign", "true")
    git(root, "config", "gpg.program", "/bin/false")
    git(root, "config", "core.fsmonitor", f"touch {tmp_path / 'ran'}; false")
    copy, plain = branched(cli, root)
    assert not (tmp_path / "ran").exists()
    assert tree(copy) == plain


def test_moves_that_cross_and_names_that_git_ignores(cli: CommandLine, tmp_path: Path) -> None:
    extra = {
        ".gitignore": "*.log\n/src/maxtext/\nmine/\n",
        "src/MaxText/data.log": "a\n",
        "mine/al_model.txt": "al_model\n",
        # Upstream's tests moved to tests/unit; one is there already.
        "tests/max_utils_test.py": "from MaxText import max_utils\n",
        "tests/unit/al_model_test.py": "x = 1\n",
    }
    root = repository(tmp_path / "fork", extra)
    (root / "link.py").symlink_to("src/MaxText/max_utils.py")
    git(root, "add", "link.py")
    git(root, "commit", "--quiet", "--message", "link")
    copy, plain = branched(cli, root)
    assert tree(copy) == plain
    assert plain["link.py"] == b"-> src/maxtext/utils/max_utils.py"
    assert sorted(git(copy, "ls-files", "-z").split("\0")[:-1]) == sorted({*plain, BLAME})


def test_formatting_is_a_commit_of_its_own(cli: CommandLine, tmp_path: Path) -> None:
    ugly = "from MaxText   import  max_utils\nprint( max_utils )\n"
    copy, plain = branched(
        cli, repository(tmp_path / "fork", {"tool/u.py": ugly}), "--format", "black"
    )
    assert tree(copy) == plain
    assert plain["tool/u.py"] == b"from maxtext.utils import max_utils\nprint( max_utils )\n"
    assert subjects(copy)[-1] == "Format the statements that were touched"


@pytest.mark.parametrize(
    "kind", ["worktree", "detached", "shallow", "merging", "crlf", "bare_worktree"]
)
def test_kinds_of_repositories(cli: CommandLine, tmp_path: Path, kind: str) -> None:
    base = repository(tmp_path / "base", EXTRA)
    root = tmp_path / "fork"
    if kind == "worktree":
        git(base, "worktree", "add", "--quiet", "-b", "side", str(root))
    elif kind == "bare_worktree":
        git(tmp_path, "clone", "--quiet", "--bare", "base", "bare.git")
        git(tmp_path / "bare.git", "worktree", "add", "--quiet", str(root), "main")
    elif kind == "shallow":
        git(base, "commit", "--quiet", "--allow-empty", "--message", "second")
        git(tmp_path, "clone", "--quiet", "--depth", "1", f"file://{base}", "fork")
    else:
        base.rename(root)
        if kind == "detached":
            git(root, "checkout", "--quiet", "--detach")
        elif kind == "merging":
            git(root, "checkout", "--quiet", "-b", "side")
            git(root, "commit", "--quiet", "--allow-empty", "--message", "side")
            git(root, "checkout", "--quiet", "main")
            git(root, "commit", "--quiet", "--allow-empty", "--message", "main")
            git(root, "merge", "--no-commit", "--no-ff", "--strategy", "ours", "side")
        elif kind == "crlf":
            git(root, "config", "core.autocrlf", "true")
            git(root, "config", "core.safecrlf", "true")
            (root / "run.sh").write_bytes(b"python3 -m MaxText.train\r\n")
    copy, plain = branched(cli, root)
    assert tree(copy) == plain
    assert git(copy, "status", "--porcelain") == ""
    parents = git(copy, "log", "--format=%P", "-n", "3", "moved").splitlines()
    assert all(len(line.split()) == 1 for line in parents)


def test_submodules_stay_submodules(cli: CommandLine, tmp_path: Path) -> None:
    dep = repository(tmp_path / "dep")
    root = repository(tmp_path / "fork")
    for path in ("third_party/dep", "src/MaxText/layers/dep"):
        git(root, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(dep), path)
    git(root, "commit", "--quiet", "--message", "submodules")
    before = state(root)
    ran = cli.run(root, "--out", tmp_path / "copy", "--branch", "moved")
    assert ran.status == 1
    assert state(root) == before
    stage = git(tmp_path / "copy", "ls-files", "--stage").splitlines()
    links = [line.split("\t")[1] for line in stage if line.startswith("160000")]
    assert links == ["src/maxtext/layers/dep", "third_party/dep"]
    assert git(tmp_path / "copy", "status", "--porcelain") == ""


def test_a_user_without_a_name(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = repository(tmp_path / "fork")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    for who in ("AUTHOR", "COMMITTER"):
        for what in ("NAME", "EMAIL"):
            monkeypatch.delenv(f"GIT_{who}_{what}", raising=False)
    monkeypatch.delenv("EMAIL", raising=False)
    copy, _ = branched(cli, root)
    assert (
        git(copy, "log", "-1", "--format=%an <%ae>") == "ling2-migrate <ling2-migrate@localhost>\n"
    )


def test_a_repository_in_another_is_left_alone(cli: CommandLine, tmp_path: Path) -> None:
    outer = repository(tmp_path / "outer", {"x": "x"})
    fork(outer / "inner")
    before = state(outer)
    ran = cli.run(outer / "inner", "--out", tmp_path / "out")
    assert (ran.status, ran.err) == (0, "")
    assert state(outer) == before
    assert b"taken as a plain folder" not in ran.out
