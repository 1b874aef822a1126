"""Files as they come: what is migrated keeps all other bytes, what cannot be is listed and left as it is."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path

import pytest

from codemods.engine import pool, rewrite
from migration_tests.checkouts import CommandLine, contents, fork, repository, state
from migration_tests.support import write_files

OLD = "from MaxText import max_utils\n"
NEW = "from maxtext.utils import max_utils\n"


@pytest.fixture
def cli(capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    return CommandLine(capfdbinary, monkeypatch)


class Migrated:
    """A checkout after `run`: the files of the output and the lines of the report."""

    def __init__(self, cli: CommandLine, root: Path, *options: str) -> None:
        before = state(root)
        out = root.parent / "out"
        ran = cli.run(root, "--out", out, *options)
        assert ran.err == ""
        assert state(root) == before
        assert sorted(os.listdir(root.parent)) == [root.name, "out"]
        self.status = ran.status
        self.out = out
        self.files = contents(out)
        self.report = json.loads((out / "report.json").read_bytes())

    def listed(self, path: str) -> list[str]:
        """The reasons of the sites of a file."""
        return [s["reason"] for s in self.report["sites"] if s["file"] == path]


def migrated(cli: CommandLine, tmp_path: Path, files: Mapping[str, str | bytes]) -> Migrated:
    return Migrated(cli, fork(tmp_path / "fork", files))


# Bytes that are kept -----------------------------------------------------------------------------------

KEPT = {
    "bom": (b"\xef\xbb\xbf" + OLD.encode(), b"\xef\xbb\xbf" + NEW.encode()),
    "crlf": (b"# a\r\n" + OLD.encode().replace(b"\n", b"\r\n") + b"x = 1\r\n",
             b"# a\r\n" + NEW.encode().replace(b"\n", b"\r\n") + b"x = 1\r\n"),
    "lone_cr": (b"# a\rfrom MaxText import max_utils\rx = 1\r", b"# a\rfrom maxtext.utils import max_utils\rx = 1\r"),
    "mixed_newlines": (b"import os\r\nfrom MaxText import max_utils\nx = 1\rif x:\r\n  y = 2\n",
                       b"import os\r\nfrom maxtext.utils import max_utils\nx = 1\rif x:\r\n  y = 2\n"),
    "tabs": (b"def f():\n\tfrom MaxText import max_utils\n\treturn max_utils \t# c\t\n",
             b"def f():\n\tfrom maxtext.utils import max_utils\n\treturn max_utils \t# c\t\n"),
    "latin1": (b"# -*- coding: latin-1 -*-\nfrom MaxText import max_utils\ns = 'caf\xe9'\n",
               b"# -*- coding: latin-1 -*-\nfrom maxtext.utils import max_utils\ns = 'caf\xe9'\n"),
    "form_feed": (b"import os\n\x0c\nfrom MaxText import max_utils\n\x0cdef f():\n\x0c  return max_utils\n",
                  b"import os\n\x0c\nfrom maxtext.utils import max_utils\n\x0cdef f():\n\x0c  return max_utils\n"),
    "no_final_newline": (b"from MaxText import max_utils", b"from maxtext.utils import max_utils"),
    "separators": ("s = 'a\u2028b\x85c\x1cd'\nfrom MaxText import max_utils\nt = s\n".encode(),
                   "s = 'a\u2028b\x85c\x1cd'\nfrom maxtext.utils import max_utils\nt = s\n".encode()),
    "long_lines": (b"x = '" + b"y" * 200_000 + b"'\n" + OLD.encode() + b"z = [" + b"1, " * 20_000 + b"]\n",
                   b"x = '" + b"y" * 200_000 + b"'\n" + NEW.encode() + b"z = [" + b"1, " * 20_000 + b"]\n"),
    "trailing_blanks": (b"from MaxText import max_utils   \n\n\n   \n", b"from maxtext.utils import max_utils   \n\n\n   \n"),
    "blanks_at_the_end": (b"from MaxText import max_utils\n\n    ", b"from maxtext.utils import max_utils\n\n    "),
    "comment_at_the_end": (b"from MaxText import max_utils  # a\n\n  # b", b"from maxtext.utils import max_utils  # a\n\n  # b"),
    "continuation": (b"from MaxText \\\n    import max_utils\n", b"from maxtext.utils \\\n    import max_utils\n"),
}  # fmt: skip


def test_bytes_are_kept(cli: CommandLine, tmp_path: Path) -> None:
    result = migrated(cli, tmp_path, {f"tool/{n}.py": before for n, (before, _) in KEPT.items()})
    assert result.status == 0
    for name, (_, after) in KEPT.items():
        assert result.files[f"tool/{name}.py"] == after, name
    assert [s for s in result.report["sites"] if s["file"].startswith("tool/")] == []


def test_a_split_statement_keeps_the_line_ends(cli: CommandLine, tmp_path: Path) -> None:
    before = (
        b"def f():\r\n\tfrom MaxText import max_utils, train, pyconfig\r\n\treturn max_utils\r\n"
    )
    result = migrated(cli, tmp_path, {"tool/split.py": before})
    after = result.files["tool/split.py"]
    assert b"from maxtext.utils import max_utils\r\n\t" in after
    assert after.count(b"\n") == after.count(b"\r\n")


TEXTS = {
    "crlf.sh": (b"#!/bin/sh\r\npython3 -m MaxText.train a\r\n", b"#!/bin/sh\r\npython3 -m maxtext.trainers.pre_train.train a\r\n"),
    "bom.md": (b"\xef\xbb\xbfSee src/MaxText/max_utils.py\n", b"\xef\xbb\xbfSee src/maxtext/utils/max_utils.py\n"),
    "no_newline.yml": (b"a: src/MaxText/max_utils.py", b"a: src/maxtext/utils/max_utils.py"),
    "cr.txt": (b"x\rsrc/MaxText/max_utils.py\ry", b"x\rsrc/maxtext/utils/max_utils.py\ry"),
}  # fmt: skip


def test_bytes_of_texts_are_kept(cli: CommandLine, tmp_path: Path) -> None:
    result = migrated(cli, tmp_path, {f"text/{n}": before for n, (before, _) in TEXTS.items()})
    for name, (_, after) in TEXTS.items():
        assert result.files[f"text/{name}"] == after, name


def test_five_megabytes(cli: CommandLine, tmp_path: Path) -> None:
    filler = b"".join(b"TABLE_%04d = '%s'\n" % (n, b"v" * 1000) for n in range(5000))
    text = b"# src/MaxText/max_utils.py\n" + b"a word and another\n" * 260_000
    result = migrated(cli, tmp_path, {"tool/big.py": filler + OLD.encode(), "tool/big.md": text})
    assert result.files["tool/big.py"] == filler + NEW.encode()
    assert result.files["tool/big.md"] == text.replace(b"MaxText/max", b"maxtext/utils/max")


def test_modes_and_empty_files(cli: CommandLine, tmp_path: Path) -> None:
    root = fork(
        tmp_path / "fork",
        {"tool/run.sh": "python3 -m MaxText.train\n", "tool/same.sh": "true\n", "e": ""},
    )
    (root / "tool/run.sh").chmod(0o755)
    (root / "tool/same.sh").chmod(0o750)
    (root / "src/MaxText/max_utils.py").chmod(0o444)
    result = Migrated(cli, root)
    modes = {p: (result.out / p).stat().st_mode & 0o777 for p in result.files}
    assert modes["tool/run.sh"] == 0o755
    assert modes["tool/same.sh"] == 0o750
    assert modes["src/maxtext/utils/max_utils.py"] == 0o644
    assert result.files["e"] == b""
    assert result.files["src/maxtext/layers/__init__.py"] == b""


# Files that are listed and left ------------------------------------------------------------------------

LEFT = {
    "syntax.py": (b"from MaxText import (\nx = 1\n", "syntax error: "),
    "python2.py": (b"import MaxText\nprint 'x'\n", "syntax error: "),
    "nul.py": (b"import MaxText\nx = 1\0\n", "the file holds a NUL byte"),
    "no_text.py": (b"import MaxText\ns = '\xff\xfe'\n", "the bytes are no utf-8 text (byte 0xff)"),
    "unknown_coding.py": (b"# -*- coding: no-such -*-\nimport MaxText\n", "encoding: unknown encoding: no-such"),
    "terms.py": (b"import MaxText\nx = " + b" + ".join([b"a"] * 3000) + b"\n", "an expression is nested too deep"),
    "literals.py": (b"import MaxText\nx = " + b" ".join([b"'a'"] * 3000) + b"\n", "an expression is nested too deep"),
    "brackets.py": (b"import MaxText\nx = " + b"(" * 400 + b")" * 400 + b"\n", "brackets are nested too deep"),
    "unclosed.py": (b"import MaxText\nx = " + b"[" * 100_000 + b"\n", "brackets are nested too deep"),
    "nul.sh": (b"python3 -m MaxText.train\0\n", "the file holds a NUL byte"),
    "no_text.md": (b"src/MaxText/train.py \xe9\n", "the bytes are no utf-8 text (byte 0xe9)"),
    "book.ipynb": (b'{"cells": [{"source": "import MaxText"', "no notebook: "),
}  # fmt: skip


def test_what_cannot_be_read_is_listed_and_left(cli: CommandLine, tmp_path: Path) -> None:
    result = migrated(cli, tmp_path, {f"tool/{n}": before for n, (before, _) in LEFT.items()})
    assert result.status == 1
    for name, (before, reason) in LEFT.items():
        assert result.files[f"tool/{name}"] == before, name
        reasons = result.listed(f"tool/{name}")
        assert len(reasons) == 1, (name, reasons)
        assert reasons[0].startswith(reason), (name, reasons)
    assert result.files["src/maxtext/utils/max_utils.py"] == b"VALUE = 1\n"  # the rest is done
    assert b"from maxtext.utils import max_utils" in result.files["src/maxtext/layers/moe.py"]


# A worker that dies -----------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL])
def test_a_file_that_kills_its_worker(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    real = rewrite.rewrite

    def deadly(path: str, *rest: object) -> object:
        if path == "tool/deadly.py":
            os.kill(os.getpid(), number)
        return real(path, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(pool, "rewrite", deadly)
    others = {f"tool/t{n}.py": OLD for n in range(30)}
    before = fork(tmp_path / "fork", {"tool/deadly.py": OLD, **others})
    result = Migrated(cli, before, "--jobs", "2")
    assert result.status == 1
    assert result.listed("tool/deadly.py") == ["the parser crashed on this file"]
    assert result.files["tool/deadly.py"] == OLD.encode()
    assert {result.files[path] for path in others} == {NEW.encode()}


def test_a_worker_killed_from_outside(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = rewrite.rewrite
    mark = write_files(tmp_path, {"mark": ""}) / "mark"

    def once(path: str, *rest: object) -> object:
        if path == "tool/t7.py" and mark.exists():
            mark.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return real(path, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(pool, "rewrite", once)
    others = {f"tool/t{n}.py": OLD for n in range(30)}
    root = fork(tmp_path / "fork", others)
    ran = cli.run(root, "--out", tmp_path / "out", "--jobs", "2")
    assert not mark.exists()
    assert ran.status == 0
    files = contents(tmp_path / "out")
    assert {files[path] for path in others} == {NEW.encode()}


# Links, submodules and what is no file -----------------------------------------------------------------


def test_links_in_the_tree(cli: CommandLine, tmp_path: Path) -> None:
    root = fork(tmp_path / "fork", {"tool/own.py": "x = 1\n"})
    (root / "utils.py").symlink_to("src/MaxText/max_utils.py")
    (root / "src/MaxText/other.py").symlink_to("max_utils.py")
    (root / "package").symlink_to("src/MaxText")
    (root / "src/MaxText/tools").symlink_to("../../tool")
    (root / "here").symlink_to(".")
    (root / "through.py").symlink_to("package/max_utils.py")
    (root / "same.py").symlink_to("tool/own.py")
    (root / "..odd").mkdir()
    (root / "..odd/in.py").symlink_to("../tool/own.py")
    result = Migrated(cli, root)
    links = {
        p: c.removeprefix(b"-> ").decode() for p, c in result.files.items() if c.startswith(b"->")
    }
    assert links["utils.py"] == "src/maxtext/utils/max_utils.py"
    assert links["package"] == "src/maxtext"
    assert links["here"] == "."
    assert links["through.py"] == "src/maxtext/utils/max_utils.py"
    assert links["same.py"] == "tool/own.py"
    assert links["..odd/in.py"] == "../tool/own.py"
    assert len(links) == 8
    for path in links:
        assert (result.out / path).exists(), path
        assert (result.out / path).resolve().is_relative_to(result.out.resolve())
    assert result.status == 0


def test_links_for_a_person(cli: CommandLine, tmp_path: Path) -> None:
    root = fork(tmp_path / "fork")
    texts = {
        "absolute": str(root / "notes.md"),
        "up": "../outside",
        "nothing": "src/MaxText/none.py",
        "loop": "loop",
        "first": "second",
        "second": "first",
        "src/MaxText/up": "../../../outside",
        "layers": "src/MaxText/layers",
    }
    for path, text in texts.items():
        (root / path).symlink_to(text)
    result = Migrated(cli, root)
    assert result.status == 1
    reasons = {path: result.listed(path) for path in texts}
    assert all(len(r) == 1 for r in reasons.values()), reasons
    for path in ("absolute", "up", "src/MaxText/up"):
        assert reasons[path] == [f"a link that leads out of the tree (to `{texts[path]}`)"]
    for path in ("nothing", "loop", "first", "second"):
        assert reasons[path] == [f"a link that leads to nothing (to `{texts[path]}`)"]
        assert result.files[path] == b"-> " + texts[path].encode()
    assert "not in the output as one file or folder" in reasons["layers"][0]
    assert result.files["absolute"] == b"-> " + texts["absolute"].encode()


def test_a_link_whose_place_is_taken(cli: CommandLine, tmp_path: Path) -> None:
    root = fork(tmp_path / "fork")
    (root / "src/maxtext").symlink_to("MaxText")
    result = Migrated(cli, root)
    assert result.listed("src/maxtext") == [
        "a link (to `MaxText`) whose place the folder `src/maxtext` takes"
    ]
    assert result.files["src/maxtext/utils/max_utils.py"] == b"VALUE = 1\n"


def test_a_tracked_folder_that_became_a_link(cli: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    root = repository(tmp_path / "work/fork", {"data/a.txt": "a"})
    outside = write_files(tmp_path / "elsewhere", {"a.txt": "outside"})
    (root / "data/a.txt").unlink()
    (root / "data").rmdir()
    (root / "data").symlink_to(outside)
    result = Migrated(cli, root)
    assert result.files["data"] == b"-> " + os.fsencode(outside)
    assert (outside / "a.txt").read_text(encoding="utf-8") == "outside"
    assert os.listdir(outside) == ["a.txt"]


def test_pipes_are_listed(cli: CommandLine, tmp_path: Path) -> None:
    root = fork(tmp_path / "fork")
    os.mkfifo(root / "pipe.py")
    result = Migrated(cli, root)
    assert result.status == 1
    assert result.listed("pipe.py") == [
        "it is no regular file (a pipe, a socket or a device); it is not in the output"
    ]


def test_unreadable_files_are_listed(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.access  # root may read everything, so the question is answered for it

    def denied(path: os.PathLike[str] | str, mode: int, **options: bool) -> bool:
        return not os.fspath(path).endswith("secret.py") and real(path, mode, **options)

    monkeypatch.setattr(os, "access", denied)
    result = migrated(cli, tmp_path, {"tool/secret.py": OLD})
    assert result.status == 1
    assert result.listed("tool/secret.py") == [
        "the file cannot be read (Permission denied); it is not in the output"
    ]
    assert "tool/secret.py" not in result.files


def test_names_that_are_no_utf8(cli: CommandLine, tmp_path: Path) -> None:
    root = fork(tmp_path / "fork")
    name = b"caf\xe9.py"
    (root / os.fsdecode(name)).write_text("import MaxText.nowhere\n", encoding="utf-8")
    (root / os.fsdecode(b"\xff.md")).write_text("src/MaxText/max_utils.py\n", encoding="utf-8")
    result = Migrated(cli, root)
    assert (result.out / os.fsdecode(name)).exists()
    assert (result.out / os.fsdecode(b"\xff.md")).read_text() == "src/maxtext/utils/max_utils.py\n"
    assert result.listed(os.fsdecode(name))
    ran = cli.run(root, "--json")
    assert json.loads(ran.out)["sites"][0]["file"] == os.fsdecode(name)


def test_submodules_and_nested_repositories(cli: CommandLine, tmp_path: Path) -> None:
    root = fork(tmp_path / "fork")
    nested = repository(root / "third_party/dep")
    result = Migrated(cli, root)
    assert result.status == 1
    assert result.listed("third_party/dep") == ["a submodule; its files are not migrated"]
    for path, data in contents(nested).items():
        assert result.files[f"third_party/dep/{path}"] == data
    assert not (result.out / "third_party/dep/.git").exists()
