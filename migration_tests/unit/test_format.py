"""`--format black`: the touched statements and no other, meaning and report unchanged."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from migration_tests.checkouts import CommandLine, contents, fork

TEXT = '''\
from MaxText   import  max_utils, pyconfig
import os ,  sys


class A:
  def f(self):
    if self: from MaxText import max_utils as m
    y = max_utils.VALUE ; from MaxText   import  train
    from MaxText.layers import (attentions, deepseek, embeddings, linears, models, moe, normalizations, quantizations)
    text = ("""
    MaxText.train

       """ , 'python3 -m MaxText.train')
    x = {  'kept' : 1 }
    return y, m, train, text , x, attentions, deepseek, embeddings, linears, models, moe, normalizations
'''


@pytest.fixture
def cli(capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    return CommandLine(capfdbinary, monkeypatch)


def both(
    cli: CommandLine, tmp_path: Path, files: dict[str, str | bytes]
) -> tuple[dict[str, bytes], ...]:
    """The output without and with `--format`; the reports must be the same, but for the request."""
    root = fork(tmp_path / "fork", files)
    for name, options in (("plain", ()), ("formatted", ("--format", "black"))):
        ran = cli.run(root, "--out", tmp_path / name, *options)
        assert ran.err == ""
    reports = [
        json.loads((tmp_path / name / "report.json").read_bytes())
        for name in ("plain", "formatted")
    ]
    assert [report["request"].pop("format") for report in reports] == [None, "black"]
    assert reports[0] == reports[1]
    return contents(tmp_path / "plain"), contents(tmp_path / "formatted")


def test_only_touched_statements(cli: CommandLine, tmp_path: Path) -> None:
    plain, formatted = both(cli, tmp_path, {"tool/x.py": TEXT})
    before, after = plain["tool/x.py"].decode(), formatted["tool/x.py"].decode()
    assert before != after
    assert ast.dump(ast.parse(before)) == ast.dump(ast.parse(after))
    assert "import os ,  sys\n" in after
    assert "    x = {  'kept' : 1 }\n" in after
    assert "from maxtext.utils import max_utils\n" in after
    for line in after.splitlines():
        if "maxtext." in line and "import" in line:
            assert "   import" not in line
    assert {p: c for p, c in plain.items() if p != "tool/x.py"} == {
        p: c for p, c in formatted.items() if p != "tool/x.py"
    }


@pytest.mark.parametrize("tool", ["pyink", "black", "ruff"])
def test_line_length_and_indentation_of_the_checkout(
    cli: CommandLine, tmp_path: Path, tool: str
) -> None:
    text = "def f():\n  g(max_utils, aaaaaaaaaaaaaaaa,bbbbbbbbbbbbbbbbbbbbbbbbb, MaxText.max_utils.VALUE)\n"
    settings = f"[tool.{tool}]\nline-length = 60\n"
    _, formatted = both(
        cli,
        tmp_path,
        {"tool/x.py": f"import MaxText.max_utils\n{text}", "pyproject.toml": settings},
    )
    lines = formatted["tool/x.py"].decode().splitlines()
    assert lines[2:] == [
        "  g(",
        "      max_utils,",
        "      aaaaaaaaaaaaaaaa,",
        "      bbbbbbbbbbbbbbbbbbbbbbbbb,",
        "      maxtext.utils.max_utils.VALUE,",
        "  )",
    ]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"def f():\r\n\tfrom MaxText  import  max_utils\r\n", b"def f():\r\n\tfrom maxtext.utils import max_utils\r\n"),
        (b"\xef\xbb\xbffrom MaxText  import  max_utils", b"\xef\xbb\xbffrom maxtext.utils import max_utils"),
        (b"# coding: latin-1\nx = '\xe9'\nfrom MaxText  import  max_utils # \xe9\n",
         b"# coding: latin-1\nx = '\xe9'\nfrom maxtext.utils import max_utils  # \xe9\n"),
        (b"x = 1\n\x0c\nfrom MaxText  import  max_utils\n", b"x = 1\n\x0c\nfrom maxtext.utils import max_utils\n"),
        ("s = '\u2028'\nfrom MaxText  import  max_utils\n".encode(), "s = '\u2028'\nfrom maxtext.utils import max_utils\n".encode()),
        (b"if 1: from MaxText  import  max_utils\n", b"if 1: from maxtext.utils  import  max_utils\n"),
        (b"if 1:\n  x = ('''\n  a\n \n  ''',  'MaxText.max_utils')\n", b"if 1:\n  x = ('''\n  a\n \n  ''',  'maxtext.utils.max_utils')\n"),
    ],
)  # fmt: skip
def test_bytes_and_blocks(cli: CommandLine, tmp_path: Path, before: bytes, after: bytes) -> None:
    _, formatted = both(cli, tmp_path, {"tool/x.py": before})
    assert formatted["tool/x.py"] == after
