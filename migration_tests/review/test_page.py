"""`report.html` without a browser: what is in the file, whatever the code and the paths hold."""

from __future__ import annotations

import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from codemods.engine import report
from codemods.engine.discover import discover
from codemods.errors import UserError
from codemods.review import page
from migration_tests.review.trees import PIECES, run

HOSTILE = {
    **PIECES,
    "tools/script.py": (
        "from MaxText import max_utils  # </script><script>window.broken = 1</script> <!-- <img src=x>\n"
        "TEXT = '<b onclick=alert(1)>&amp;</b>\u2028'\n"
    ),
    "tools/q'uo\"te\n<b>.py": "from MaxText import max_utils\n",
    os.fsdecode(b"tools/caf\xe9.py"): "from MaxText import max_utils\n",
    "tools/long.py": f"from MaxText import max_utils; x = '{'y' * 1_000_000}'\n",
    "tools/long.sh": f"echo {'z' * 1_000_000}; python3 -m MaxText.train {'w' * 100_000}\n",
    "tools/binary.py": b"from MaxText import max_utils\n\0\n",
    "tools/binary.bin": bytes(range(256)) * 10 + b"MaxText.train",
    "tools/crlf.py": b"import os\r\nfrom MaxText import max_utils\r\n",
}


class Elements(HTMLParser):
    """Tags and the text of script elements, as a browser would see them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self._open: dict[str, str | None] | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._open = dict(attrs) if tag == "script" else None

    def handle_data(self, data: str) -> None:
        if self._open is not None:
            self.scripts.append((self._open, data))
            self._open = None


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return run(tmp_path_factory.mktemp("hostile"), HOSTILE).data


def texts(body: Any) -> str:
    return json.dumps(body, ensure_ascii=False)


def test_hostile_text_stays_text(hostile: Any) -> None:
    html, shards = page.render(hostile)
    assert shards == []
    found = Elements(html)
    assert len(found.scripts) == found.tags.count("script") == 4
    assert "img" not in found.tags
    assert "b" not in found.tags
    main, entries, bodies = (json.loads(text) for attrs, text in found.scripts if "id" in attrs)
    paths = {main["said"]["f"][entry["f"]] for entry in entries}
    assert {"tools/q'uo\"te\n<b>.py", "tools/caf\udce9.py"} <= paths
    line = "from MaxText import max_utils  # </script><script>window.broken = 1</script> <!-- <img src=x>"
    assert line in {"".join(part[1::2]) for body in bodies if len(body) == 3 for part in body[1]}


def test_long_lines_are_cut_around_the_change(hostile: Any) -> None:
    html, _ = page.render(hostile)
    assert len(html) < 300_000
    hunk = next(h for h in hostile["hunks"] if h["file"] == "tools/long.sh")
    assert "python3 -m MaxText.train" in hunk["old"]
    assert "python3 -m maxtext.trainers.pre_train.train" in hunk["new"]
    assert re.match(r"⟨\d+ characters⟩z+; ", hunk["old"])
    assert re.search(r"w⟨\d+ characters⟩\n\Z", hunk["old"])
    assert len(hunk["old"]) < 1000
    hunk = next(h for h in hostile["hunks"] if h["file"] == "tools/long.py")
    assert hunk["new"].startswith("from maxtext.utils import max_utils; x = 'yyy")
    assert len(hunk["new"]) < 1000


def test_binary_files_are_named_and_not_shown(hostile: Any) -> None:
    site = next(s for s in hostile["sites"] if s["file"] == "tools/binary.py")
    assert site["rule"] == "CHK001"
    assert site["code"]["text"] == ""
    assert not [h for h in hostile["hunks"] if "binary" in h["file"]]


def test_lines_pair_and_words_are_marked() -> None:
    pairs, old, new = page._changed(
        "x.py", ["a = f(b)", "same", "gone"], ["a = g(b)", "same", "new", "more"]
    )
    assert pairs == "~=~+"
    assert ["".join(line[1::2]) for line in old] == ["a = f(b)", "same", "gone"]
    assert ["".join(line[1::2]) for line in new] == ["a = g(b)", "new", "more"]
    assert [t for k, t in zip(old[0][::2], old[0][1::2], strict=True) if k.endswith("*")] == ["f"]
    assert [t for k, t in zip(new[0][::2], new[0][1::2], strict=True) if k.endswith("*")] == ["g"]
    assert page._changed("x.py", [], ["x"]) == ["+", [], [["", "x"]]]
    assert page._changed("x.py", ["x"], []) == ["-", [["", "x"]], []]


def test_highlighting_changes_no_text() -> None:
    for path in ("x.py", "x.sh", "x.yml", "x.md", "x.ipynb", "Dockerfile", "x.unknown", "x.toml"):
        lines = ["def f(x):  # c", "\tif 'a' <b>:", "", '"""', "\x0c\u2028", "  "]
        assert ["".join(line[1::2]) for line in page._highlight(path, lines)] == lines
    assert page._highlight("x.py", ["from a import b"])[0][:2] == ["k", "from"]


def held(html: str) -> dict[str, Any]:
    """The data in a page, by the id of its element."""
    return {a["id"]: json.loads(t) for a, t in Elements(html).scripts if a.get("id")}


def test_a_huge_report_is_spread(hostile: Any) -> None:
    """Code and the list of entries go into files beside the page, each of limited length."""
    whole, none = page.render(hostile)
    small, shards = page.render(hostile, most_inline=2000)
    assert none == []
    before, after = held(whole), held(small)
    assert after["entries"] == after["bodies"] == []
    numbers = len(after["data"]["shards"])
    assert numbers > 3
    assert after["data"]["lists"] == len(shards) - numbers > 1
    code, entries = [], []
    for number, text in enumerate(shards):
        kind, nth = ("shard", number) if number < numbers else ("list", number - numbers)
        head = f"/* {report.MARK}: data */ window.{kind}({nth},"
        assert text.startswith(head)
        rows = json.loads(text.removeprefix(head).removesuffix(");"))
        if kind == "shard":
            assert after["data"]["shards"][number] == len(code)
            code += rows
        else:
            entries += rows
        longest = max(len(page._json(row)) for row in rows)
        assert len(text) < 2000 + longest + 100
    assert code == before["bodies"]
    assert entries == before["entries"]


def test_the_page_itself_stays_small() -> None:
    """What is counted is bytes, with signs that are escaped in scripts at their length there."""
    assert page._size([page._json("<<")]) == len('"\\u003c\\u003c"')
    assert page._size([page._json("层")]) == 5


def test_files_beside_the_page(hostile: Any, tmp_path: Path) -> None:
    (tmp_path / "src/MaxText").mkdir(parents=True)
    page.write(hostile, tmp_path, most_inline=2000)
    assert list((tmp_path / "report-data").iterdir())
    assert discover(tmp_path).files == []  # a report is no part of a checkout
    page.write(hostile, tmp_path)
    assert not (tmp_path / "report-data").exists()
    (tmp_path / "report-data").mkdir()
    own = tmp_path / "report-data/0.js"
    own.write_text("mine", encoding="utf-8")
    page.write(hostile, tmp_path)
    with pytest.raises(UserError, match=r"0\.js: this name is needed"):
        page.write(hostile, tmp_path, most_inline=2000)
    assert own.read_text(encoding="utf-8") == "mine"


def test_paths_that_are_no_text(hostile: Any, tmp_path: Path) -> None:
    page.write(hostile, tmp_path)
    html = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "tools/caf\\udce9.py" in html
    assert json.loads(report.as_json(hostile)) == hostile


def test_no_changes_at_all(tmp_path: Path) -> None:
    done = {"src/maxtext/__init__.py": "", "src/maxtext/utils/max_utils.py": "VALUE = 1\n"}
    data = run(tmp_path, done).data
    assert data["hunks"] == data["sites"] == data["files"] == []
    html, _ = page.render(data)
    assert "0 edits in 0 hunks" in html
