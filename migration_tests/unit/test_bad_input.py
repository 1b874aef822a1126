"""Arguments that are wrong: one line, exit status 2, nothing written."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from codemods import upstream as upstream_module
from codemods.maps import select
from migration_tests.checkouts import CommandLine, fork, git, repository, state
from migration_tests.support import UPSTREAM, write_files


@pytest.fixture
def cli(capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    return CommandLine(capfdbinary, monkeypatch)


Refused = Callable[..., str]


@pytest.fixture
def refused(cli: CommandLine, tmp_path: Path) -> Refused:
    """Runs a command line that must fail as a user's mistake does; returns the message."""

    def check(*arguments: str | Path) -> str:
        before = state(tmp_path)
        ran = cli(*arguments)
        assert ran.status == 2
        assert ran.out == b""
        assert ran.err.startswith("ling2-migrate: error: ")
        assert ran.err.count("\n") == 1
        assert state(tmp_path) == before
        return ran.err.removeprefix("ling2-migrate: error: ").rstrip("\n")

    return check


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    return fork(tmp_path / "fork")


# The checkout ------------------------------------------------------------------------------------------


def test_no_such_checkout(refused: Refused, tmp_path: Path) -> None:
    message = refused("run", tmp_path / "none", "--upstream", UPSTREAM, "--out", tmp_path / "out")
    assert message == f"{tmp_path / 'none'}: no such folder; give the path of a MaxText checkout"


def test_a_file_as_checkout(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    message = refused("run", tmp_path / "file", "--upstream", UPSTREAM, "--check")
    assert message == f"{tmp_path / 'file'}: not a folder; give the path of a MaxText checkout"


def test_a_path_below_a_file_as_checkout(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    message = refused("run", tmp_path / "file/below", "--upstream", UPSTREAM, "--check")
    assert (
        message == f"{tmp_path / 'file/below'}: no such folder; give the path of a MaxText checkout"
    )


def test_a_path_that_no_file_can_have(refused: Refused, checkout: Path, tmp_path: Path) -> None:
    long = tmp_path / ("x" * 300)
    assert refused("run", long, "--upstream", UPSTREAM, "--check").endswith(
        ": cannot be read (File name too long)"
    )
    assert refused("run", checkout, "--upstream", UPSTREAM, "--out", long).endswith(
        ": cannot be written to (File name too long); choose another --out"
    )


@pytest.mark.parametrize(
    "files",
    [{}, {"README.md": "MaxText is nice.\n", "tool.py": "import os\n"}],
    ids=["empty", "other"],
)
def test_no_maxtext_code(refused: Refused, tmp_path: Path, files: dict[str, str]) -> None:
    (tmp_path / "other").mkdir()
    write_files(tmp_path / "other", files)
    message = refused("run", tmp_path / "other", "--upstream", UPSTREAM, "--out", tmp_path / "out")
    assert message.startswith(f"{tmp_path / 'other'}: no MaxText code in it (")


def test_a_bare_repository(refused: Refused, tmp_path: Path) -> None:
    repository(tmp_path / "fork")
    git(tmp_path, "clone", "--quiet", "--bare", "fork", "bare.git")
    message = refused("run", tmp_path / "bare.git", "--upstream", UPSTREAM, "--check")
    assert message == (
        f"{tmp_path / 'bare.git'}: a bare git repository; clone it and give the path of the clone"
    )


# Upstream ----------------------------------------------------------------------------------------------


def test_upstream_that_is_no_maxtext(refused: Refused, checkout: Path, tmp_path: Path) -> None:
    write_files(tmp_path / "other", {"src/tool/layers/moe.py": ""})
    message = refused("run", checkout, "--upstream", tmp_path / "other", "--out", tmp_path / "out")
    assert message == (
        f"{tmp_path / 'other'}: no MaxText in it (looked for maxtext/ and MaxText/, also below src/)"
    )


def test_upstream_on_the_old_layout(refused: Refused, checkout: Path) -> None:
    message = refused("run", checkout, "--upstream", checkout, "--check")
    assert "is on the old layout (package MaxText)" in message


def test_no_such_upstream(refused: Refused, checkout: Path, tmp_path: Path) -> None:
    message = refused("run", checkout, "--upstream", tmp_path / "none", "--check")
    assert message == f"{tmp_path / 'none'}: no such folder, and no version number either"


def test_upstream_near_no_shipped_map(refused: Refused, checkout: Path, tmp_path: Path) -> None:
    write_files(tmp_path / "other", {"src/maxtext/layers/moe.py": "x = 1\n"})
    message = refused("run", checkout, "--upstream", tmp_path / "other", "--check")
    assert "no shipped map leads to this upstream" in message
    assert "--map" in message


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (
            "ERROR: Could not find a version that satisfies the requirement maxtext==99.9 (from versions: 0.1.0)\n"
            "ERROR: No matching distribution found for maxtext==99.9\n",
            "No matching distribution found for maxtext==99.9",
        ),
        (
            "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError(x)': /simple/\n"
            "ERROR: Could not find a version that satisfies the requirement maxtext==99.9 (from versions: none)\n"
            "ERROR: No matching distribution found for maxtext==99.9\n",
            "no connection to it; unpack the wheel and give the folder",
        ),
    ],
    ids=["unknown", "offline"],
)
def test_a_version_that_cannot_be_had(
    refused: Refused,
    checkout: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    said: str,
    reason: str,
) -> None:
    def answer(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "", said)

    monkeypatch.setenv(upstream_module.CACHE_VARIABLE, str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setattr(upstream_module.subprocess, "run", answer)
    message = refused("run", checkout, "--upstream", "99.9", "--check")
    assert message == f"maxtext 99.9.0: cannot be had from PyPI ({reason})"


# Rules and options -------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["--only", "--skip"])
def test_an_unknown_rule(refused: Refused, checkout: Path, option: str) -> None:
    message = refused("run", checkout, "--upstream", UPSTREAM, "--check", option, "IMP,XYZ")
    assert message == "no rule or family `XYZ`; see `ling2-migrate run --list-rules`"


def test_explain_an_unknown_rule(refused: Refused) -> None:
    message = refused("run", "--explain", "IMP999")
    assert message == "no rule `IMP999`; see `ling2-migrate run --list-rules`"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run"], "Missing argument 'CHECKOUT'."),
        (["run", "."], "Missing option '--upstream'."),
        (["run", ".", "--upstream"], "Option '--upstream' requires an argument."),
        (["run", ".", "--upstream", "0.2.5", "--no-such"], "No such option: --no-such"),
        (
            ["run", ".", "--upstream", "0.2.5", "--check", "--jobs", "0"],
            "Invalid value for '--jobs'",
        ),
        (
            ["run", ".", "--upstream", "0.2.5", "--check", "--format", "no"],
            "Invalid value for '--format'",
        ),
        (["run", ".", "more", "--upstream", "0.2.5"], "Got unexpected extra argument"),
        (["run", ".", "--upstream", "0.2.5"], "give --out DIR, or --check, --diff or --json"),
        (["run", ".", "--upstream", "0.2.5", "--check", "--out", "o"], "--check writes nothing"),
        (["run", ".", "--upstream", "0.2.5", "--check", "--branch", "b"], "--branch needs --out"),
        (["run", ".", "--upstream", "0.2.5", "--diff", "--json"], "--diff and --json both print"),
        (["fly"], "No such command 'fly'."),
        (["--fly"], "No such option: --fly"),
        (["map", "build"], "Missing option '--upstream'."),
    ],
)
def test_wrong_options(refused: Refused, arguments: list[str], said: str) -> None:
    assert refused(*arguments).startswith(said)


# Maps --------------------------------------------------------------------------------------------------


def test_no_such_map(refused: Refused, checkout: Path, tmp_path: Path) -> None:
    path = tmp_path / "none.json"
    message = refused("run", checkout, "--upstream", UPSTREAM, "--map", path, "--check")
    assert message == f"{path}: no such map"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("map.json", b"x = 1\n"),
        ("map.json", b'{"modules": {}}'),
        ("map.json", b"[]"),
        ("map.json", b"\xff\xfe\x00"),
        ("map.json.gz", b"no gzip"),
        ("map.json.gz", gzip.compress(b"{}", mtime=0)[:-4]),
    ],
)
def test_a_map_that_is_none(
    refused: Refused, checkout: Path, tmp_path: Path, name: str, content: bytes
) -> None:
    (tmp_path / name).write_bytes(content)
    message = refused("run", checkout, "--upstream", UPSTREAM, "--map", tmp_path / name, "--check")
    assert message.startswith(f"{tmp_path / name}: not a ling2-migrate map")


def test_a_folder_as_map(refused: Refused, checkout: Path, tmp_path: Path) -> None:
    message = refused("run", checkout, "--upstream", UPSTREAM, "--map", tmp_path, "--check")
    assert message.startswith(f"{tmp_path}: not a ling2-migrate map")


def test_a_map_of_another_schema(refused: Refused, checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "map.json").write_text(json.dumps({"schema": 999}), encoding="utf-8")
    message = refused(
        "run", checkout, "--upstream", UPSTREAM, "--map", tmp_path / "map.json", "--check"
    )
    assert message.startswith(f"{tmp_path / 'map.json'}: map schema 999, this version reads ")


def test_a_map_for_another_base(refused: Refused, tmp_path: Path) -> None:
    write_files(tmp_path / "scripts", {"mine/tool.py": "import MaxText\n"})
    shipped = select.shipped()[0]
    message = refused(
        "run", tmp_path / "scripts", "--upstream", UPSTREAM, "--map", shipped, "--check"
    )
    assert message.startswith(f"{shipped}: a map for another base: ")


# The output --------------------------------------------------------------------------------------------


def test_an_output_that_is_not_empty(refused: Refused, checkout: Path, tmp_path: Path) -> None:
    write_files(tmp_path / "out", {"mine": ""})
    message = refused("run", checkout, "--upstream", UPSTREAM, "--out", tmp_path / "out")
    assert (
        message == f"{tmp_path / 'out'}: exists and is not empty; remove it or choose another --out"
    )


@pytest.mark.parametrize("kind", ["file", "link"])
def test_an_output_that_is_no_folder(
    refused: Refused, checkout: Path, tmp_path: Path, kind: str
) -> None:
    out = tmp_path / "out"
    if kind == "file":
        out.write_text("", encoding="utf-8")
    else:
        out.symlink_to(tmp_path / "elsewhere")
    message = refused("run", checkout, "--upstream", UPSTREAM, "--out", out)
    assert message == f"{out}: exists and is not a folder; choose another --out"


@pytest.mark.parametrize("where", ["", "new", "src/new"])
def test_an_output_in_the_checkout(refused: Refused, checkout: Path, where: str) -> None:
    message = refused("run", checkout, "--upstream", UPSTREAM, "--out", checkout / where)
    assert "lies inside the checkout, which is never written to" in message


def test_an_output_in_the_checkout_by_a_link(
    refused: Refused, checkout: Path, tmp_path: Path
) -> None:
    (tmp_path / "door").symlink_to(checkout / "src")
    message = refused("run", checkout, "--upstream", UPSTREAM, "--out", tmp_path / "door/new")
    assert "lies inside the checkout, which is never written to" in message


def test_an_output_that_holds_the_checkout(
    refused: Refused, checkout: Path, tmp_path: Path
) -> None:
    message = refused("run", checkout, "--upstream", UPSTREAM, "--out", tmp_path)
    assert message == f"{tmp_path}: holds the checkout itself; choose another --out"


def test_an_output_below_a_file(refused: Refused, checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    message = refused("run", checkout, "--upstream", UPSTREAM, "--out", tmp_path / "file/out")
    assert message == f"{tmp_path / 'file'}: not a folder; choose another --out"


@pytest.mark.skipif(
    not Path("/proc/self").exists(), reason="needs /proc, which nobody may write to"
)
def test_an_output_where_nobody_may_write(refused: Refused, checkout: Path) -> None:
    message = refused("run", checkout, "--upstream", UPSTREAM, "--out", "/proc/out")
    assert message.startswith("/proc: cannot be written to (")


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_a_name_that_the_report_needs(
    refused: Refused, checkout: Path, tmp_path: Path, kind: str
) -> None:
    taken = checkout / "report.json"
    if kind == "file":
        taken.write_text("{}", encoding="utf-8")
    elif kind == "folder":
        taken.mkdir()
    else:
        taken.symlink_to("notes.md")
    message = refused("run", checkout, "--upstream", UPSTREAM, "--out", tmp_path / "out")
    assert message == f"{taken}: this name is needed for the report; rename the file first"


# Branches ----------------------------------------------------------------------------------------------


def test_a_branch_of_a_plain_folder(refused: Refused, checkout: Path, tmp_path: Path) -> None:
    message = refused(
        "run", checkout, "--upstream", UPSTREAM, "--out", tmp_path / "out", "--branch", "new"
    )
    assert message == f"{checkout}: --branch needs the root of a git repository; run without it"


def test_a_branch_of_a_folder_in_a_repository(refused: Refused, tmp_path: Path) -> None:
    repository(tmp_path / "outer", {"inner/tool.py": "import MaxText\n"})
    inner = tmp_path / "outer/inner"
    message = refused(
        "run", inner, "--upstream", UPSTREAM, "--out", tmp_path / "out", "--branch", "new"
    )
    assert message == f"{inner}: --branch needs the root of a git repository; run without it"


@pytest.mark.parametrize("name", ["", "a b", "-x", "@{-1}", "a..b", "x.lock", "HEAD"])
def test_a_name_that_no_branch_can_have(refused: Refused, tmp_path: Path, name: str) -> None:
    root = repository(tmp_path / "fork")
    message = refused(
        "run", root, "--upstream", UPSTREAM, "--out", tmp_path / "out", f"--branch={name}"
    )
    assert message == f"`{name}` is no name for a branch"


@pytest.mark.parametrize("name", ["main", "main/sub", "work"])
def test_a_branch_that_exists(refused: Refused, tmp_path: Path, name: str) -> None:
    root = repository(tmp_path / "fork")
    git(root, "branch", "work/inner")
    taken = "work/inner" if name == "work" else "main"
    message = refused(
        "run", root, "--upstream", UPSTREAM, "--out", tmp_path / "out", "--branch", name
    )
    assert message == f"{root}: has a branch `{taken}` already; choose another --branch"


def test_a_branch_of_a_repository_without_commits(
    refused: Refused, checkout: Path, tmp_path: Path
) -> None:
    git(checkout, "init", "--quiet")
    message = refused(
        "run", checkout, "--upstream", UPSTREAM, "--out", tmp_path / "out", "--branch", "new"
    )
    assert message == f"{checkout}: the repository has no commit yet; commit first"


def test_a_branch_of_a_sparse_checkout(refused: Refused, tmp_path: Path) -> None:
    root = repository(tmp_path / "fork")
    git(root, "sparse-checkout", "set", "--no-cone", "/src/")
    message = refused(
        "run", root, "--upstream", UPSTREAM, "--out", tmp_path / "out", "--branch", "new"
    )
    assert "a sparse checkout; --branch would delete what is not on disk" in message


# What was fetched, and maps that are to be made --------------------------------------------------------


def test_a_map_is_not_written_over(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "map.json").write_text("{}", encoding="utf-8")
    message = refused(
        "map",
        "build",
        "--upstream",
        tmp_path,
        "--from",
        "a",
        "--to",
        "b",
        "-o",
        tmp_path / "map.json",
    )
    assert message == f"{tmp_path / 'map.json'}: exists; remove it or choose another -o"


def test_a_map_of_no_repository(refused: Refused, tmp_path: Path) -> None:
    refused(
        "map",
        "build",
        "--upstream",
        tmp_path,
        "--from",
        "a",
        "--to",
        "b",
        "-o",
        tmp_path / "m.json",
    )
    assert os.listdir(tmp_path) == []
