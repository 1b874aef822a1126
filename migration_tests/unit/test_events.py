"""What happens in the middle of a run, and to repositories in odd states."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from codemods.engine import output
from migration_tests.checkouts import FORK, CommandLine, contents, fork, git, repository, state
from migration_tests.support import UPSTREAM, write_files

# Enough files that a run can be hit in each of its phases.
MANY = {
    f"src/MaxText/own/m{n}.py": "from MaxText import max_utils, train, pyconfig\n\n"
    + "x = [1, 2, 3]\n" * 60
    for n in range(80)
}


@pytest.fixture
def cli(capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    return CommandLine(capfdbinary, monkeypatch)


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return repository(tmp_path_factory.mktemp("big") / "fork", MANY)


def start(root: Path, out: Path, *options: str) -> subprocess.Popen[bytes]:
    """The program in a process group of its own."""
    command = [sys.executable, "-m", "codemods.cli", "run", str(root), "--upstream", UPSTREAM]
    command += ["--out", str(out), "--jobs", "2", *options]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )


def alive(group: int) -> list[int]:
    """The processes of a group that still run."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except (OSError, ValueError):
            continue
        if fields and fields[2] == str(group) and fields[0] != "Z":
            found.append(int(entry.name))
    return found


def wait_until(happens: object, seconds: float) -> None:
    assert callable(happens)
    end = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def duration(big: Path, tmp_path_factory: pytest.TempPathFactory) -> float:
    """How long an undisturbed run takes, in seconds."""
    begin = time.monotonic()
    process = start(big, tmp_path_factory.mktemp("whole") / "out")
    _, err = process.communicate(timeout=120)
    assert (process.returncode, err) in ((0, b""), (1, b""))
    return time.monotonic() - begin


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_interrupts(big: Path, duration: float, tmp_path: Path, number: int, status: int) -> None:
    before = state(big)
    chosen = random.Random(number)
    for share in (chosen.uniform(0.3, 0.6), chosen.uniform(0.6, 0.9)):
        process = start(big, tmp_path / "out")
        time.sleep(duration * share)
        os.killpg(process.pid, number)
        _, err = process.communicate(timeout=120)
        if process.returncode != status:
            # It was faster this time: done, or met while the interpreter was shutting down.
            assert (process.returncode, err) in ((0, b""), (-number, b""))
        else:
            assert err == b"ling2-migrate: interrupted; nothing half-written is left\n"
        # The output is whole if the signal came after it was in place.
        assert not (tmp_path / "out").exists() or (tmp_path / "out/report.json").exists()
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        assert os.listdir(tmp_path) == []
        wait_until(lambda group=process.pid: not alive(group), 60)
    assert state(big) == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_is_not_lost_where_python_ignores_exceptions(number: int) -> None:
    program = f"""
import os, signal, time, typer
from codemods import cli

signal.signal({number}, signal.SIG_DFL)  # also where the tests themselves run as `nohup` has it

class Finalized:
    def __del__(self):
        os.kill(os.getpid(), {number})
        time.sleep(0)

@cli.app.command()
def hit():
    Finalized()
    time.sleep(300)

cli.main()
"""
    result = subprocess.run(
        [sys.executable, "-c", program, "hit"], capture_output=True, timeout=120
    )
    assert result.stderr == b"ling2-migrate: interrupted; nothing half-written is left\n"
    assert result.returncode == 128 + number


def test_killed_at_any_moment(big: Path, duration: float, tmp_path: Path) -> None:
    before = state(big)
    chosen = random.Random(7)
    for _ in range(3):
        process = start(big, tmp_path / "out")
        time.sleep(duration * chosen.uniform(0.3, 0.9))
        process.kill()
        process.communicate(timeout=120)
        whole = (tmp_path / "out").exists()
        assert not whole or (tmp_path / "out/report.json").exists()
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        wait_until(lambda group=process.pid: not alive(group), 60)
    assert state(big) == before


def test_what_a_killed_run_leaves_goes_with_the_next(cli: CommandLine, tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    write_files(tmp_path, {f".out.partial-{dead.pid}-abc_1/src/maxtext/x.py": "x = 1\n"})
    # Another run that is alive, another output's, and what only looks alike, stay.
    others = [f".out.partial-{os.getpid()}-abc", ".out.partial-x", f".other.partial-{dead.pid}-abc"]
    for name in others:
        (tmp_path / name).mkdir()
    ran = cli.run(fork(tmp_path / "fork"), "--out", tmp_path / "out")
    assert ran.status == 0
    assert sorted(os.listdir(tmp_path)) == sorted(["fork", "out", *others])


def test_an_ignored_hangup_stays_ignored(big: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "codemods.cli", "run", str(big), "--upstream", UPSTREAM]
    process = subprocess.Popen(
        ["nohup", *command, "--out", str(tmp_path / "out")],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    time.sleep(1.5)
    os.killpg(process.pid, signal.SIGHUP)
    assert process.wait(timeout=60) in (0, 1)
    assert (tmp_path / "out/report.json").exists()


# The disk ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [(), ("--branch", "new")], ids=["tree", "branch"])
@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_full_disk(
    cli: CommandLine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    after: int,
    options: tuple[str, ...],
) -> None:
    root = repository(tmp_path / "fork")
    before = state(root)
    real = shutil.copyfile
    copied = 0

    def copyfile(source: str, target: str, **rest: bool) -> object:
        nonlocal copied
        copied += 1
        if copied > after:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(source, target, **rest)

    monkeypatch.setattr(shutil, "copyfile", copyfile)
    ran = cli.run(root, "--out", tmp_path / "new/sub/out", *options)
    assert ran.status == 2
    assert ran.out == b""
    assert ran.err.count("\n") == 1
    assert "No space left on device" in ran.err
    assert os.listdir(tmp_path) == ["fork"]
    assert state(root) == before


def test_a_full_disk_when_the_report_is_written(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Path.write_bytes

    def write_bytes(path: Path, data: bytes) -> int:
        if path.name == "report.html":
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return real(path, data)

    monkeypatch.setattr(Path, "write_bytes", write_bytes)
    ran = cli.run(fork(tmp_path / "fork"), "--out", tmp_path / "out")
    assert ran.status == 2
    assert ran.err.endswith(
        "report.html: cannot be written (No space left on device); nothing is left behind\n"
    )
    assert os.listdir(tmp_path) == ["fork"]


def test_the_output_appears_while_it_is_built(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = output.write

    def write(*arguments: object) -> None:
        write_files(tmp_path / "out", {"theirs": "x"})
        real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(output, "write", write)
    ran = cli.run(fork(tmp_path / "fork"), "--out", tmp_path / "out")
    assert ran.status == 2
    assert ran.err.endswith("cannot be written (Directory not empty); nothing is left behind\n")
    assert contents(tmp_path / "out") == {"theirs": b"x"}
    assert sorted(os.listdir(tmp_path)) == ["fork", "out"]


def test_standard_output_that_goes_away(big: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "codemods.cli",
        "run",
        str(big),
        "--upstream",
        UPSTREAM,
        "--diff",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline().startswith(b"diff --git a/")
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    assert process.wait(timeout=60) == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, which takes nothing")
def test_standard_output_that_is_full(tmp_path: Path) -> None:
    root = fork(tmp_path / "fork")
    command = [
        sys.executable,
        "-m",
        "codemods.cli",
        "run",
        str(root),
        "--upstream",
        UPSTREAM,
        "--json",
    ]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 2
    assert done.stderr == b"ling2-migrate: error: standard output: No space left on device\n"


# States of repositories --------------------------------------------------------------------------------


def noted(cli: CommandLine, root: Path) -> tuple[int, str, dict[str, bytes]]:
    """The exit status of a run that must not touch its input, the notes it prints and the output."""
    before = state(root)
    out = root.parent / f"{root.name}-out"
    ran = cli.run(root, "--out", out)
    assert ran.err == ""
    assert state(root) == before
    notes = [line for line in ran.out.decode().splitlines() if line.startswith("note: ")]
    return ran.status, "\n".join(notes), contents(out)


def test_a_clean_repository_needs_no_note(cli: CommandLine, tmp_path: Path) -> None:
    assert noted(cli, repository(tmp_path / "fork"))[:2] == (0, "")


def test_a_dirty_tree(cli: CommandLine, tmp_path: Path) -> None:
    root = repository(tmp_path / "fork", {".gitignore": "*.log\nbuild/\n", "gone.py": "x = 1\n"})
    (root / "run.sh").write_text("python3 -m MaxText.decode\n", encoding="utf-8")
    (root / "gone.py").unlink()
    write_files(
        root,
        {
            "new.py": "from MaxText import max_utils\n",
            "a.log": "",
            "build/b.py": "x",
            "build/c": "",
        },
    )
    status, notes, files = noted(cli, root)
    assert status == 0
    assert notes.splitlines() == [
        "note: the working tree has uncommitted changes; they are migrated as they are",
        "note: 1 tracked files are not on disk (deleted, or outside a sparse checkout); they are not in the output",
        "note: 1 untracked files are migrated too",
        "note: 2 files or folders that git ignores are not in the output",
    ]
    assert files["run.sh"] == b"python3 -m maxtext.inference.decode\n"
    assert files["new.py"] == b"from maxtext.utils import max_utils\n"
    assert not {"gone.py", "a.log", "build/b.py"} & set(files)


def test_an_unborn_branch(cli: CommandLine, tmp_path: Path) -> None:
    root = fork(tmp_path / "fork")
    git(root, "init", "--quiet")
    status, notes, files = noted(cli, root)
    assert status == 0
    assert "the repository has no commit yet; the files are migrated as they are" in notes
    assert "src/maxtext/utils/max_utils.py" in files


def test_a_detached_head_a_worktree_and_a_shallow_clone(cli: CommandLine, tmp_path: Path) -> None:
    base = repository(tmp_path / "base")
    git(base, "commit", "--quiet", "--allow-empty", "--message", "second")
    git(base, "checkout", "--quiet", "--detach")
    git(base, "worktree", "add", "--quiet", str(tmp_path / "tree"), "main")
    git(tmp_path, "clone", "--quiet", "--depth", "1", f"file://{base}", "shallow")
    files = [noted(cli, tmp_path / name) for name in ("base", "tree", "shallow")]
    assert [status for status, _, _ in files] == [0, 0, 0]
    assert files[0] == files[1] == files[2]


def test_a_partial_clone_fetches_nothing(cli: CommandLine, tmp_path: Path) -> None:
    base = repository(tmp_path / "base")
    (base / "run.sh").write_text("python3 -m MaxText.decode\n", encoding="utf-8")
    git(base, "commit", "--quiet", "--all", "--message", "second")
    git(base, "config", "uploadpack.allowFilter", "true")
    git(tmp_path, "clone", "--quiet", "--filter=blob:none", f"file://{base}", "partial")
    missing = git(tmp_path / "partial", "rev-list", "--objects", "--all", "--missing=print")
    assert "\n?" in missing
    (tmp_path / "partial/run.sh").write_text("python3 -m MaxText.train\n", encoding="utf-8")
    status, notes, _ = noted(cli, tmp_path / "partial")
    assert status == 0
    assert "uncommitted changes" in notes


def test_a_file_system_monitor_is_not_started(cli: CommandLine, tmp_path: Path) -> None:
    root = repository(tmp_path / "fork")
    git(root, "config", "core.fsmonitor", f"touch {tmp_path / 'ran'}; false")
    assert noted(cli, root)[0] == 0
    assert not (tmp_path / "ran").exists()


def test_a_repository_of_another_owner(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = repository(tmp_path / "fork", {".gitignore": "*.log\n"})
    write_files(root, {"a.log": "a"})
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    status, notes, files = noted(cli, root)
    assert status == 0
    assert "git does not read this repository (detected dubious ownership in repository at" in notes
    assert "git config --global --add safe.directory" in notes
    assert files["a.log"] == b"a"
    ran = cli.run(root, "--out", tmp_path / "out", "--branch", "new")
    assert ran.status == 2
    assert ran.err.count("\n") == 1
    assert "dubious ownership" in ran.err


def test_a_git_file_that_leads_nowhere(cli: CommandLine, tmp_path: Path) -> None:
    root = fork(tmp_path / "fork", {".git": "gitdir: /nowhere/at/all\n"})
    status, notes, files = noted(cli, root)
    assert status == 0
    assert "git does not read this repository" in notes
    assert ".git" not in files


def test_the_environment_of_a_git_hook(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = repository(tmp_path / "other", {"theirs.py": "x = 1\n"})
    root = repository(tmp_path / "fork")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other / ".git/index"))
    before = state(root), state(other)
    ran = cli.run(root, "--out", tmp_path / "out")
    assert (ran.status, ran.err) == (0, "")
    assert (state(root), state(other)) == before
    assert len(contents(tmp_path / "out")) == len(FORK)


# Trees that need little or nothing ---------------------------------------------------------------------


def test_a_second_run_has_nothing_to_do(cli: CommandLine, tmp_path: Path) -> None:
    assert cli.run(fork(tmp_path / "fork"), "--out", tmp_path / "one").status == 0
    ran = cli.run(tmp_path / "one", "--out", tmp_path / "two")
    assert ran.status == 0
    assert ran.out.decode().splitlines()[-1] == "nothing to do"
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    checked = cli.run(tmp_path / "one", "--check")
    assert checked.status == 0


def test_what_is_left_is_listed_again(cli: CommandLine, tmp_path: Path) -> None:
    root = fork(
        tmp_path / "fork", {"tool/x.py": "P = '/opt/MaxText/lib.so'\nimport MaxText.nowhere\n"}
    )
    assert cli.run(root, "--out", tmp_path / "one").status == 1
    ran = cli.run(tmp_path / "one", "--out", tmp_path / "two")
    assert ran.status == 1
    assert "tool/x.py:1:" in ran.out.decode()
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_own_scripts_alone(cli: CommandLine, tmp_path: Path) -> None:
    text = "from MaxText import max_utils\nfrom MaxText.layers import deepseek\n"
    root = write_files(
        tmp_path / "scripts", {"a/tool.py": text, "tests/own_test.py": "import MaxText.train\n"}
    )
    ran = cli.run(root, "--out", tmp_path / "out")
    assert (ran.status, ran.err) == (0, "")
    assert (
        "none of its files is at a path of upstream's, so the newest base, d4ed2261 (2026-01-16), is taken"
        in (ran.out.decode())
    )
    assert contents(tmp_path / "out")["a/tool.py"] == (
        b"from maxtext.utils import max_utils\nfrom maxtext.models import deepseek\n"
    )
