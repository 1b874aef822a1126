"""`ling2-migrate apply` and `review` on the command line: what is written, and what is refused."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from codemods.engine import report
from migration_tests.checkouts import CommandLine, Ran, contents, git, state
from migration_tests.review.trees import PIECES
from migration_tests.support import UPSTREAM, write_files


@pytest.fixture
def cli(capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    return CommandLine(capfdbinary, monkeypatch)


@pytest.fixture
def made(cli: CommandLine, tmp_path: Path) -> Path:
    """A checkout in `fork` and what `run` made of it in `out`."""
    root = write_files(tmp_path / "fork", PIECES)
    assert cli.run(root, "--out", tmp_path / "out").err == ""
    return tmp_path


def load(path: Path) -> Any:
    return json.loads(path.read_bytes())


def decide(place: Path, choose: Callable[[Any], str | None], **more: Any) -> Path:
    """Write decisions on the report in `place`/out."""
    data = load(place / "out/report.json")
    rows = [*data["hunks"], *(f for f in data["files"] if f["new"] != f["path"])]
    decisions = {r["id"]: {"decision": d} for r in rows if (d := choose(r))}
    file = {"tool": "ling2-migrate decisions", "schema": 1, "report": data["id"]}
    path = place / "decisions.json"
    path.write_text(json.dumps(file | {"decisions": decisions} | more), encoding="utf-8")
    return path


def test_what_is_accepted_is_made(cli: CommandLine, made: Path) -> None:
    path = decide(made, lambda row: "accepted")
    before = state(made / "fork")
    ran = cli("apply", made / "out", "--decisions", path, "--jobs", "1")
    assert ran.err == ""
    assert state(made / "fork") == before
    assert contents(made / "out-applied") == contents(made / "out")
    data = load(made / "out-applied/report.json")
    assert data["applied"]["report"] == load(made / "out/report.json")["id"]
    assert ran.status == (1 if data["sites"] else 0)
    assert b" changes made, 0 not made, " in ran.out


def test_what_is_rejected_or_open_is_listed(cli: CommandLine, made: Path) -> None:
    def choose(row: Any) -> str | None:
        return {"run.sh": "rejected", "notes.md": None}.get(row.get("file"), "accepted")

    path = decide(made, choose)
    decisions = load(path)
    name = next(i for i, d in decisions["decisions"].items() if d["decision"] == "rejected")
    decisions["decisions"][name]["note"] = "the script [goes] next week"
    path.write_text(json.dumps(decisions), encoding="utf-8")
    ran = cli("apply", made / "out", "--decisions", path, "--jobs", "1", "--out", made / "new")
    assert ran.status == 1
    assert ran.err == ""
    after, whole = contents(made / "new"), contents(made / "out")
    assert {p for p in after.keys() | whole.keys() if after.get(p) != whole.get(p)} == {
        "run.sh",
        "notes.md",
    }
    assert after["run.sh"] == PIECES["run.sh"].encode()
    left = load(made / "new/report.json")["left"]
    assert {(row["file"], row["status"]) for row in left} == {
        ("run.sh", "rejected"),
        ("notes.md", "open"),
    }
    assert next(r for r in left if r["id"] == name)["note"] == "the script [goes] next week"
    assert b"run.sh:1 TXT001 rejected the script [goes] next week" in ran.out.replace(
        b" TXT002", b""
    ).replace(b" TXT011", b"")
    again = cli("apply", made / "out", "--decisions", path, "--accept-open", "--jobs", "1")
    assert again.status == 1
    assert contents(made / "out-applied")["notes.md"] == whole["notes.md"]
    assert contents(made / "out-applied")["run.sh"] == PIECES["run.sh"].encode()


def test_options_of_the_run_are_asked_for_again(cli: CommandLine, tmp_path: Path) -> None:
    long = "from MaxText import max_utils, max_logging, train\nx = dict(a=max_utils.VALUE,b=2)\n"
    root = write_files(tmp_path / "fork", {**PIECES, "tools/x.py": long})
    options = ("--format", "black", "--skip", "TXT", "--rename-loggers")
    assert cli.run(root, "--out", tmp_path / "out", *options).err == ""
    path = decide(tmp_path, lambda row: "accepted")
    assert cli("apply", tmp_path / "out", "--decisions", path, "--jobs", "1").err == ""
    assert contents(tmp_path / "out-applied") == contents(tmp_path / "out")


def test_a_branch(cli: CommandLine, tmp_path: Path) -> None:
    root = write_files(tmp_path / "fork", PIECES)
    git(root, "init", "--quiet", "--initial-branch", "main")
    git(root, "add", "--all", "--force")
    git(root, "commit", "--quiet", "--message", "fork")
    assert cli.run(root, "--out", tmp_path / "out").err == ""
    path = decide(tmp_path, lambda r: "rejected" if r.get("file") == "run.sh" else "accepted")
    arguments = ("apply", tmp_path / "out", "--decisions", path, "--jobs", "1")
    assert cli(*arguments).err == ""
    ran = cli(*arguments, "--out", tmp_path / "copy", "--branch", "chosen")
    assert ran.err == ""
    copy = contents(tmp_path / "copy")
    assert b"# IMP: migrate to MaxText" in copy.pop(".git-blame-ignore-revs")
    assert copy == contents(tmp_path / "out-applied")
    assert git(tmp_path / "copy", "status", "--porcelain") == ""
    messages = git(tmp_path / "copy", "log", "--format=%B", "main..chosen")
    assert "IMP001 (×" in messages
    assert "MAP001 (×" in messages


def test_the_checkout_and_upstream_elsewhere(cli: CommandLine, made: Path) -> None:
    path = decide(made, lambda row: "accepted")
    (made / "fork").rename(made / "moved")
    arguments = ("apply", made / "out", "--decisions", path, "--jobs", "1")
    assert "no such folder" in cli(*arguments).err
    ran = cli(*arguments, "--checkout", made / "moved", "--upstream", UPSTREAM)
    assert ran.err == ""
    assert contents(made / "out-applied") == contents(made / "out")


def refused(ran: Ran, made: Path) -> str:
    """The one line of a refusal, which has written nothing."""
    assert (ran.status, ran.out) == (2, b"")
    assert ran.err.startswith("ling2-migrate: error: ")
    assert ran.err.count("\n") == 1
    assert not (made / "out-applied").exists()
    assert not [name for name in os.listdir(made) if "partial" in name]
    return ran.err.removeprefix("ling2-migrate: error: ")


def test_an_input_that_changed(cli: CommandLine, made: Path) -> None:
    path = decide(made, lambda row: "accepted")
    arguments = ("apply", made / "out", "--decisions", path, "--jobs", "1")
    for change, undo in (
        (
            lambda: (made / "fork/notes.md").write_text("x"),
            lambda: write_files(made / "fork", PIECES),
        ),
        (lambda: (made / "fork/new.py").write_text("x"), lambda: (made / "fork/new.py").unlink()),
    ):
        change()
        message = refused(cli(*arguments), made)
        assert "not what the run read (" in message
        assert "run again" in message
        undo()
    data = load(made / "out/report.json")
    for name in ("upstream", "map"):
        other = json.loads(json.dumps(data))
        other["inputs"][name] = "0" * 64
        (made / "out/report.json").write_text(json.dumps(other), encoding="utf-8")
        assert f"not the {name}" in refused(cli(*arguments), made)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"report": "0123456789abcdef"}, "these decisions are of another report"),
        ({"decisions": {"h0": {"decision": "accepted"}}}, "name `h0`, which the report does not"),
        ({"schema": 7}, "decisions schema 7, this version reads 1"),
        ({"tool": "x"}, "no decisions file"),
        ({"decisions": {"h0": {"decision": "maybe"}}}, "decisions/h0/decision: 'maybe' is not one"),
        ({"decisions": {"h0": {}}}, "decisions/h0: {} should be non-empty"),
        ({"extra": 1}, "the whole: Additional properties are not allowed"),
    ],
)
def test_bad_decisions(cli: CommandLine, made: Path, more: dict[str, Any], message: str) -> None:
    path = decide(made, lambda row: "accepted", **more)
    assert message in refused(cli("apply", made / "out", "--decisions", path), made)


def test_bad_files(cli: CommandLine, made: Path) -> None:
    path = decide(made, lambda row: "accepted")
    assert "no such file" in refused(cli("apply", made / "out", "--decisions", made / "x"), made)
    assert "no such folder" in refused(cli("apply", made / "no", "--decisions", path), made)
    assert "report.json: no such file" in refused(cli("apply", made, "--decisions", path), made)
    path.write_text("[" * 100_000, encoding="utf-8")
    assert "no JSON" in refused(cli("apply", made / "out", "--decisions", path), made)
    path.write_text("[]", encoding="utf-8")
    assert "no decisions file" in refused(cli("apply", made / "out", "--decisions", path), made)
    old = load(made / "out/report.json") | {"schema": 1}
    (made / "out/report.json").write_text(json.dumps(old), encoding="utf-8")
    assert "report schema 1, this version reads 3; run again" in refused(
        cli("review", made / "out"), made
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data["rules"].pop("MAP001"),
        lambda data: data["hunks"].remove(next(h for h in data["hunks"] if h["set"] is not None)),
        lambda data: data["sets"].pop(),
        lambda data: data["sets"][0]["hunks"].append("h0"),
        lambda data: data["edits"].clear(),
    ],
)
def test_a_report_that_was_changed(
    cli: CommandLine, made: Path, change: Callable[[Any], Any]
) -> None:
    path = decide(made, lambda row: "accepted")
    data = load(made / "out/report.json")
    change(data)
    (made / "out/report.json").write_bytes(report.as_json(data))
    for arguments in (("apply", made / "out", "--decisions", path), ("review", made / "out")):
        assert "the file has been changed, so run again" in refused(cli(*arguments), made)


def test_what_stops_the_output_is_listed_first(cli: CommandLine, tmp_path: Path) -> None:
    files = {
        **PIECES,
        "zz.py": "from MaxText.max_utils import gone\n",
        "a.md": "`MaxText/none.py`\n",
    }
    ran = cli.run(write_files(tmp_path / "fork", files), "--check")
    lines = [
        line for line in ran.out.decode().splitlines() if line.startswith("  ") and ".py:" in line
    ]
    assert lines[0].startswith("  zz.py:1:31 IMP020 ")


def test_a_second_review(cli: CommandLine, made: Path) -> None:
    """Decisions on what `apply` made: the rest of it is made, something else is taken back."""
    whole = contents(made / "out")
    path = decide(made, lambda row: "rejected" if row.get("file") == "run.sh" else "accepted")
    cli("apply", made / "out", "--decisions", path, "--out", made / "new", "--jobs", "1")
    first = load(made / "new/report.json")
    later = {row["id"]: {"decision": "accepted"} for row in first["left"]}
    note = next(h["id"] for h in first["hunks"] if h["file"] == "notes.md")
    later[note] = {"decision": "rejected", "note": "not the notes"}
    file = load(path) | {"report": first["id"], "decisions": later}
    path.write_text(json.dumps(file), encoding="utf-8")
    shutil.rmtree(made / "out")  # the report is all that is needed
    assert cli("apply", made / "new", "--decisions", path, "--jobs", "1").err == ""
    after = contents(made / "new-applied")
    assert {p for p in after.keys() | whole.keys() if after.get(p) != whole.get(p)} == {"notes.md"}
    second = load(made / "new-applied/report.json")
    assert [(r["id"], r["status"], r["note"]) for r in second["left"]] == [
        (note, "rejected", "not the notes")
    ]
    assert second["applied"]["report"] == first["applied"]["report"]


def test_review_makes_the_page_again(cli: CommandLine, made: Path) -> None:
    page = made / "out/report.html"
    first = page.read_bytes()
    page.unlink()
    ran = cli("review", made / "out")
    assert (ran.status, ran.out.decode(), ran.err) == (0, f"report: {page}\n", "")
    assert page.read_bytes() == first
    shutil.rmtree(made / "fork")  # the report is all that is needed
    assert cli("review", made / "out").status == 0
    assert page.read_bytes() == first


def test_reports_keep_to_their_schema(cli: CommandLine, made: Path) -> None:
    for name in ("report", "decisions"):
        Draft202012Validator.check_schema(report.schema(name))
    path = decide(made, lambda row: "rejected" if row["id"] > "h8" else None)
    assert (
        cli("apply", made / "out", "--decisions", path, "--out", made / "new", "--jobs", "1").err
        == ""
    )
    for place in ("out", "new"):
        data = load(made / place / "report.json")
        assert [
            e.message for e in Draft202012Validator(report.schema("report")).iter_errors(data)
        ] == []
        assert data["schema"] == report.SCHEMA_VERSION
    assert report.schema("report")["$id"].endswith(f":{report.SCHEMA_VERSION}")
    assert report.schema("decisions")["$id"].endswith(f":{report.DECISIONS_VERSION}")
