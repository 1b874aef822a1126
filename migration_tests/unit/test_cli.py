"""The command line as a user meets it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from codemods import __version__
from codemods.rules import all_rules
from migration_tests.checkouts import CommandLine, contents, fork, git, repository, state
from migration_tests.support import UPSTREAM

EXTRA: dict[str, str | bytes] = {
    "ALModel/al_model.py": "from MaxText.layers import moe\n\n\nclass ALDenseLayer(moe.RoutedMoE):\n  pass\n",
    "src/MaxText/utils/argus_utils.py": "def dump_tensor(name, x):\n  pass\n\n\ndef dumpable(f):\n  return f\n",
    "tool/no_newline.py": "from MaxText import max_utils",
    "tool/crlf.py": b"import os\r\nfrom MaxText import max_utils\r\n",
    "tool/form_feed.py": b"x = 1\x0c\nfrom MaxText import max_utils\ny = '\xe2\x80\xa8'\n",
    "tool/latin.py": b"# coding: latin-1\nfrom MaxText import max_utils  # caf\xe9\n",
    'with space/na"me\tä.py': "from MaxText import max_utils\n",
    "src/MaxText/with space ä.py": "x = 1\n",
    "src/MaxText/empty ä.py": "",
    "data.bin": bytes(range(256)),
    "src/MaxText/data.bin": bytes(range(256)),
}


@pytest.fixture
def cli(capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    return CommandLine(capfdbinary, monkeypatch)


def program(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    """The program in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "codemods.cli", *arguments],
        capture_output=True,
        text=True,
        check=False,
        **options,  # type: ignore[call-overload]
    )


# Help --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ((), ["run", "map", "--version"]),
        (("run",), ["--upstream", "--out", "--branch", "Examples", "Exit status", "ling2-migrate run ~/my-fork"]),
        (("map",), ["build"]),
        (("map", "build"), ["--from", "--to", "Examples", "ling2-migrate map build"]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help(
    cli: CommandLine,
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...],
    words: list[str],
    option: str,
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    ran = cli(*command, option)
    assert (ran.status, ran.err) == (0, "")
    for word in words:
        assert word in ran.out.decode(), word


@pytest.mark.parametrize("command", [(), ("map",)])
def test_no_command_prints_the_help(cli: CommandLine, command: tuple[str, ...]) -> None:
    ran = cli(*command)
    assert (ran.status, ran.err) == (2, "")
    assert b"Usage: ling2-migrate" in ran.out


def test_version(cli: CommandLine) -> None:
    assert cli("--version").out.decode() == f"ling2-migrate {__version__}\n"


def test_list_rules(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    ran = cli("run", "--list-rules")
    assert (ran.status, ran.err) == (0, "")
    listed = [line.split()[:2] for line in ran.out.decode().splitlines()]
    for rule in all_rules().values():
        assert [rule.id, rule.tier] in listed


@pytest.mark.parametrize("name", list(all_rules()))
def test_explain(cli: CommandLine, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("COLUMNS", "500")
    ran = cli("run", "--explain", name.lower())
    assert (ran.status, ran.err) == (0, "")
    rule = all_rules()[name]
    assert ran.out.decode().startswith(f"{name} ({rule.tier}): ")
    for example in rule.examples:
        assert example.path in ran.out.decode()


def test_completion() -> None:
    env = os.environ | {
        "_LING2_MIGRATE_COMPLETE": "complete_bash",
        "COMP_WORDS": "ling2-migrate ru",
        "COMP_CWORD": "1",
    }
    done = program(env=env)
    assert done.stdout.split() == ["run"]
    env |= {"COMP_WORDS": "ling2-migrate run --up", "COMP_CWORD": "2"}
    assert program(env=env).stdout.split() == ["--upstream"]
    shown = program(env=os.environ | {"_LING2_MIGRATE_COMPLETE": "source_bash"}).stdout
    assert "ling2-migrate" in shown
    if shutil.which("bash"):
        assert subprocess.run(["bash", "-n"], input=shown, text=True, check=False).returncode == 0


# Output for programs -----------------------------------------------------------------------------------


def test_json_alone(cli: CommandLine, tmp_path: Path) -> None:
    root = fork(tmp_path / "fork", EXTRA)
    before = state(tmp_path)
    ran = cli.run(root, "--json")
    assert ran.err == ""
    assert state(tmp_path) == before
    data = json.loads(ran.out)
    assert data["summary"]["edits"] == len(data["edits"])
    assert ran.status == (1 if data["sites"] else 0)
    written = cli.run(root, "--json", "--out", tmp_path / "out")
    assert written.out == ran.out == (tmp_path / "out/report.json").read_bytes()


def test_json_in_a_terminal_of_another_encoding(tmp_path: Path) -> None:
    root = fork(tmp_path / "fork", {"tool/ä.py": "import MaxText.nowhere  # ä\n"})
    env = os.environ | {"PYTHONIOENCODING": "ascii"}
    for options in (["--json"], ["--check"]):
        done = program("run", str(root), "--upstream", UPSTREAM, *options, env=env)
        assert (done.returncode, done.stderr) == (1, "")


def test_check(cli: CommandLine, tmp_path: Path) -> None:
    root = fork(tmp_path / "fork")
    before = state(tmp_path)
    ran = cli.run(root, "--check")
    assert (ran.status, ran.err) == (1, "")
    assert state(tmp_path) == before
    assert "4 edits" in ran.out.decode()


def test_diff_applies(cli: CommandLine, tmp_path: Path) -> None:
    root = fork(tmp_path / "fork", EXTRA)
    (root / "link.py").symlink_to("src/MaxText/max_utils.py")
    (root / "src/MaxText/link.py").symlink_to("../../notes.md")
    (root / "run.sh").chmod(0o755)
    git(root, "init", "--quiet", "--initial-branch", "main")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "fork")
    before = state(root)
    ran = cli.run(root, "--diff")
    assert ran.err == ""
    assert state(root) == before
    cli.run(root, "--out", tmp_path / "out")
    (tmp_path / "patch").write_bytes(ran.out)
    for name, options in (("indexed", ("--index",)), ("plain", ())):
        shutil.copytree(root, tmp_path / name, symlinks=True)
        git(tmp_path / name, "update-index", "--refresh")
        git(tmp_path / name, "apply", *options, str(tmp_path / "patch"))
        assert contents(tmp_path / name) == contents(tmp_path / "out")
        assert (tmp_path / name / "run.sh").stat().st_mode & 0o111
    shutil.copytree(root, tmp_path / "bare folder", symlinks=True)
    shutil.rmtree(tmp_path / "bare folder/.git")
    git(tmp_path / "bare folder", "apply", str(tmp_path / "patch"))
    assert contents(tmp_path / "bare folder") == contents(tmp_path / "out")
    assert b"\ndeleted file mode 100644\n" in ran.out


def test_diff_of_a_migrated_tree_is_empty(cli: CommandLine, tmp_path: Path) -> None:
    cli.run(fork(tmp_path / "fork"), "--out", tmp_path / "out")
    ran = cli.run(tmp_path / "out", "--diff")
    assert (ran.status, ran.out, ran.err) == (0, b"", "")


# Rules, jobs, colours ----------------------------------------------------------------------------------


def test_only_and_skip(cli: CommandLine, tmp_path: Path) -> None:
    root = fork(tmp_path / "fork")
    cli.run(root, "--out", tmp_path / "only", "--only", "map,TXT001")
    cli.run(root, "--out", tmp_path / "skip", "--skip", "TXT", "--skip", "IMP001")
    only, skip = contents(tmp_path / "only"), contents(tmp_path / "skip")
    assert (
        only["run.sh"]
        == b"python3 -m maxtext.trainers.pre_train.train src/MaxText/configs/base.yml\n"
    )
    assert skip["run.sh"].startswith(b"python3 -m MaxText.train src/MaxText")
    for files in (only, skip):
        assert files["src/maxtext/layers/moe.py"].startswith(b"from MaxText import max_utils\n")


def test_jobs_change_nothing(cli: CommandLine, tmp_path: Path) -> None:
    root = repository(tmp_path / "fork", EXTRA)
    for jobs in ("1", "2", "5"):
        cli.run(root, "--out", tmp_path / f"out{jobs}", "-j", jobs)
    first = contents(tmp_path / "out1")
    report = (tmp_path / "out1/report.json").read_bytes()
    for jobs in ("2", "5"):
        assert contents(tmp_path / f"out{jobs}") == first
        assert (tmp_path / f"out{jobs}/report.json").read_bytes() == report


def test_colours(cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = fork(tmp_path / "fork")
    monkeypatch.setenv("TERM", "xterm-256color")
    assert b"\x1b[" in cli.run(root, "--check", "--color").out
    assert b"\x1b[" not in cli.run(root, "--check", "--no-color").out
    assert b"\x1b[" not in cli.run(root, "--check").out  # no terminal
    monkeypatch.setenv("NO_COLOR", "1")
    assert b"\x1b[" in cli.run(root, "--check", "--color").out


def test_a_terminal(tmp_path: Path) -> None:
    pty = pytest.importorskip("pty", reason="terminals need a Unix")
    root = fork(tmp_path / "fork")
    command = [
        sys.executable,
        "-m",
        "codemods.cli",
        "run",
        str(root),
        "--upstream",
        UPSTREAM,
        "--check",
    ]
    for no_color in (False, True):
        env = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "CI", "FORCE_COLOR")}
        env |= {"TERM": "xterm-256color"} | ({"NO_COLOR": "1"} if no_color else {})
        parent, child = pty.openpty()
        process = subprocess.Popen(command, stdout=child, stderr=subprocess.PIPE, env=env)
        os.close(child)
        shown = b""
        while True:
            try:
                part = os.read(parent, 65536)
            except OSError:
                break
            if not part:
                break
            shown += part
        os.close(parent)
        assert process.stderr is not None
        assert process.stderr.read() == b""  # no progress where that is no terminal
        process.stderr.close()
        assert process.wait() == 1
        if no_color:
            assert b"\x1b[3" not in shown
        assert b"4 edits" in shown.replace(b"\x1b[1m", b"").replace(b"\x1b[0m", b"")
