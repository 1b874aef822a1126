"""The judge of `scripts/judge_rebase.py` lets right resolutions pass and sees each kind of wrong one."""

from __future__ import annotations

from pathlib import Path

import pytest

from migration_tests.support import write_files
from scripts.judge_rebase import judge, judge_region


def region(kind: str, base: str, ours: str, theirs: str, result: str) -> dict[str, str]:
    """A resolution as the report has it."""
    return {"kind": kind, "base": base, "ours": ours, "theirs": theirs, "result": result}


RIGHT = [
    region("different nodes", "f(a)\n", "f(a, b=1)\n", "f(a, c=2)\n", "f(a, b=1, c=2)\n"),
    region("both added", "", "b = 1\n", "c = 2\n", "b = 1\nc = 2\n"),
    region("formatting", "f(a,b)\n", "f(a, b)\n", "f(a,b,c)\n", "f(a, b, c)\n"),
    region("already upstream", "x = 1\n", "x = 2\ny = 3\n", "x = 2\n", "x = 2\ny = 3\n"),
]
WRONG = [
    (region("both added", "", "b = 1\n", "c = 2\n", "b = 1\n"), "the fork's"),
    (region("both added", "", "b = 1\n", "c = 2\n", "c = 2\n"), "upstream's"),
    (region("already upstream", "x = 1\n", "y = 3\n", "x = 2\n", "y = 3\n"), "the fork's"),
    (region("different nodes", "f(a)\n", "f(a, b=1)\n", "f(a, c=2)\n", "f(a, b=1, c=2, d=3)\n"), "neither side"),
    (region("formatting", "f(a)\n", "f(b)\n", "f(c)\n", "f(b)\n"), "formatting alone"),
    (region("already upstream", "x = 1\ny = 1\n", "x = 1\ny = 2\n", "y = 1\n", "x = 1\ny = 2\n"), "removed"),
]  # fmt: skip


@pytest.mark.parametrize("found", RIGHT)
def test_right_resolutions_pass(found: dict[str, str]) -> None:
    assert judge_region(found) == ""


@pytest.mark.parametrize(("found", "words"), WRONG)
def test_wrong_resolutions_are_seen(found: dict[str, str], words: str) -> None:
    assert words in judge_region(found)


def test_files_that_do_not_compile_or_resolve_are_seen(tmp_path: Path) -> None:
    upstream = {"src/maxtext/__init__.py": "", "src/maxtext/a.py": "A = 1\n"}
    write_files(tmp_path / "upstream", upstream)
    changed = {
        "src/maxtext/b.py": "from maxtext.a import A, B\nimport maxtext.gone\nfrom MaxText import x\n",
        "src/maxtext/c.py": "def (:\n",
    }
    write_files(tmp_path / "tree", {**upstream, **changed})
    ledger = [{"path": "m.py", "where": "", "line": 1, "status": "dropped", "reason": ""}]
    verdict = judge({"steps": [], "ledger": ledger}, tmp_path / "tree", tmp_path / "upstream")
    assert verdict.unresolved == [
        "src/maxtext/b.py:1: maxtext.a B",
        "src/maxtext/b.py:2: maxtext.gone *",
        "src/maxtext/b.py:3: MaxText x",
    ]
    assert [f.partition(":")[0] for f in verdict.faults] == ["m.py", "src/maxtext/c.py"]


def test_a_comment_that_gave_way_needs_its_reason_in_the_ledger(tmp_path: Path) -> None:
    for folder in ("tree", "upstream"):
        (tmp_path / folder).mkdir()
    gone = region("comments", "", "# up\nx: 1\n", "# fork\nx: 1\n", "# up\nx: 1\n") | {
        "path": "a.yml"
    }
    report = {"steps": [{"commit": "c" * 40, "resolutions": [gone]}], "ledger": []}
    assert len(judge(report, tmp_path / "tree", tmp_path / "upstream").faults) == 1
    account = {"path": "a.yml", "where": "a.yml", "line": 1, "status": "already upstream"}
    report["ledger"] = [account | {"reason": "the same but for comments"}]
    verdict = judge(report, tmp_path / "tree", tmp_path / "upstream")
    assert (verdict.faults, verdict.comments) == ([], 1)
