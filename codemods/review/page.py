"""`report.html`: a report as one page that a reviewer acts on, without a network or a server.

The page's data is compact JSON in it, and its script makes rows of them as they come into view. Text only ever
becomes text nodes, so nothing of the migrated code is markup.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import tempfile
from collections.abc import Iterator
from functools import cache
from importlib.resources import files as package_files
from itertools import pairwise
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from pygments.lexer import Lexer
from pygments.lexers import find_lexer_class_for_filename
from pygments.token import Comment, Generic, Keyword, Literal, Name, Number, _TokenType

from codemods.engine.discover import REPORT_FOLDER, is_report
from codemods.engine.edits import line_starts
from codemods.engine.report import DECISIONS_MARK, DECISIONS_VERSION, MARK, URGENT
from codemods.errors import UserError

# The page itself stays below this; what is beyond goes into files beside it.
_MOST_INLINE, _SHARD = 8_000_000, 2_000_000
_LONGEST_LEXED = 20_000

# A line is a flat list: class, text, class, text, …; a class ends in `*` where words changed.
Line = list[str]


def render(data: dict[str, Any], most_inline: int = _MOST_INLINE) -> tuple[str, list[str]]:
    """The page for the data of `report.json`, and scripts with more data if that is too much for one file.

    Args:
        data: the report.
        most_inline: how many bytes of code the page itself may hold, and half as many of the list of entries.
    """
    main, bodies = _page_data(data)
    code = [_json(body) for body in bodies]
    entries = [_json(item) for item in main.pop("items")]
    shards: list[str] = []
    main["shards"], main["lists"] = [], 0
    if _size(code) > most_inline:
        for start, part in _parts(code, most_inline):
            main["shards"].append(start)
            shards.append(f"window.shard({len(shards)},{part});")
        code = []
    if _size(entries) > most_inline // 2:
        for _, part in _parts(entries, most_inline):
            shards.append(f"window.list({main['lists']},{part});")
            main["lists"] += 1
        entries = []
    shards = [f"/* {MARK}: data */ {text}" for text in shards]
    environment = Environment(
        loader=PackageLoader("codemods.review", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template("report.html.j2").render(
        report=data,
        mark=MARK,
        css=_asset("report.css"),
        js=_asset("report.js"),
        data=Markup(_json(main)),
        entries=Markup(f"[{','.join(entries)}]"),
        bodies=Markup(f"[{','.join(code)}]"),
    )
    return page, shards


def _parts(rows: list[str], most: int) -> Iterator[tuple[int, str]]:
    """Cut a list of JSON texts into lists of limited length: the first one's number, the list."""
    start = size = 0
    for number, row in enumerate(rows):
        size += _size([row])
        if size >= min(_SHARD, most) or number == len(rows) - 1:
            yield start, f"[{','.join(rows[start : number + 1])}]"
            start, size = number + 1, 0


def _json(value: Any) -> str:
    """Compact JSON that may stand in a script element: no tag can begin or end in it."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def _size(rows: list[str]) -> int:
    """How many bytes texts take in a file."""
    return sum(len(row.encode("utf-8", "backslashreplace")) for row in rows)


def write(data: dict[str, Any], folder: Path, most_inline: int = _MOST_INLINE) -> None:
    """Write `report.html` into a folder, with `report-data/` beside it if the report is huge.

    Args:
        data: the report.
        folder: where the page goes.
        most_inline: see `render`.

    Raises:
        UserError: `report-data/` holds a file of somebody else's under a name that is needed.
    """
    page, shards = render(data, most_inline)
    beside = folder / REPORT_FOLDER
    for old in beside.glob("*.js"):
        if is_report(old):
            old.unlink()
    if beside.is_dir() and not any(beside.iterdir()):
        beside.rmdir()
    for number, shard in enumerate(shards):
        place = beside / f"{number}.js"
        if os.path.lexists(place):
            raise UserError(f"{place}: this name is needed for the report; rename the file first")
        beside.mkdir(exist_ok=True)
        place.write_bytes(shard.encode("utf-8", "backslashreplace"))
    with tempfile.TemporaryDirectory(dir=folder, prefix=".report-") as scratch:
        fresh = Path(scratch) / "report.html"
        fresh.write_bytes(page.encode("utf-8", "backslashreplace"))
        fresh.replace(folder / "report.html")


def _asset(name: str) -> Markup:
    return Markup((package_files("codemods.review") / "templates" / name).read_text("utf-8"))


# Data ---------------------------------------------------------------------------------------------------


class _Once:
    """Things that the page holds once, however many entries have them: code, paths, reasons."""

    def __init__(self) -> None:
        self.all: list[Any] = []
        self._known: dict[Any, int] = {}

    def add(self, key: Any, make: Any) -> int:
        """The number of a thing; `make` makes it if it is new."""
        if key not in self._known:
            self._known[key] = len(self.all)
            self.all.append(make())
        return self._known[key]


def _page_data(data: dict[str, Any]) -> tuple[dict[str, Any], list[Any]]:
    bodies = _Once()
    items: list[dict[str, Any]] = []
    for site in sorted(
        data["sites"], key=lambda s: (s["rule"] not in URGENT, s["rule"], s["file"], s["line"])
    ):
        items.append(_site(site, bodies))
    for row in data["left"]:
        items.append(_left(data, row, bodies))
    moves = [f for f in data["files"] if f["new"] != f["path"]]
    for row in sorted(moves, key=lambda f: (f["rule"], f["path"])):
        items.append(
            {
                "k": "move",
                "i": row["id"],
                "f": row["path"],
                "to": row["new"],
                "r": [row["rule"] or "link"],
                "t": _tier(data, row["rule"]),
                "y": row["why"],
            }
        )
    for row in sorted(data["hunks"], key=lambda h: (h["rules"][0], h["file"], h["line"])):
        items.append(_hunk(row, bodies))
    new_places = {f["path"]: f["new"] for f in moves}
    said = {name: _Once() for name in "fyr"}
    for item in items:
        for name, once in said.items():
            item[name] = once.add(_json(item[name]), lambda value=item[name]: value)
    main = {
        "id": data["id"],
        "items": items,
        "said": {name: once.all for name, once in said.items()},
        "sets": [s["why"] for s in data["sets"]],
        "rules": data["rules"],
        "moved": new_places,
        "decisions": {"tool": DECISIONS_MARK, "schema": DECISIONS_VERSION, "report": data["id"]},
        "before": _before(data),
        "final": data["applied"] is not None,
    }
    return main, bodies.all


def _before(data: dict[str, Any]) -> dict[str, Any]:
    """What an earlier review leaves to be seen: its notes, and the sites that it dealt with."""
    decided = data["applied"]["decisions"] if data["applied"] else {}
    sites = {site["id"] for site in data["sites"]}
    kept = {
        name: {field: said for field, said in entry.items() if field == "note" or name in sites}
        for name, entry in decided.items()
    }
    return {name: entry for name, entry in kept.items() if entry}


def _tier(data: dict[str, Any], rule: str) -> str:
    return str(data["rules"][rule]["tier"]) if rule else "report"


def _site(site: dict[str, Any], bodies: _Once) -> dict[str, Any]:
    code = site["code"]
    lines = _lines(code["text"])
    key = ("site", _kind(site["file"]), code["text"])
    return {
        "k": "site",
        "i": site["id"],
        "f": site["file"],
        "l": site["line"],
        "c": site["column"],
        "r": [site["rule"]],
        "t": "report",
        "y": site["reason"],
        "todo": site["todo"],
        "n": code["line"],
        "b": bodies.add(key, lambda: ["s", _highlight(site["file"], lines)]),
    }


def _left(data: dict[str, Any], row: dict[str, Any], bodies: _Once) -> dict[str, Any]:
    item = {
        "k": "left",
        "i": row["id"],
        "f": row["file"],
        "r": row["rules"] or ["link"],
        "t": row.get("tier") or _tier(data, "".join(row["rules"])),
        "y": row["why"],
        "s": row["status"],
    }
    if row["kind"] == "move":
        return item | {"to": row["new"]}
    if row["set"] is not None:
        item["g"] = row["set"]
    return item | _code(row, bodies)


def _hunk(row: dict[str, Any], bodies: _Once) -> dict[str, Any]:
    item = {
        "k": "hunk",
        "i": row["id"],
        "f": row["file"],
        "r": row["rules"],
        "t": row["tier"],
        "y": "; ".join(row["reasons"]),
        **_code(row, bodies),
    }
    if row["set"] is not None:
        item["g"] = row["set"]
    if len(_lines(row["old"])) <= 1 and len(_lines(row["new"])) <= 1:
        item["one"] = 1  # may be folded with its like
    return item


def _code(row: dict[str, Any], bodies: _Once) -> dict[str, Any]:
    """The changed lines, and those around, which identical changes do not share."""
    above, old, new, below = (_lines(row[name]) for name in ("above", "old", "new", "below"))
    kind = _kind(row["file"])
    around = ("around", kind, row["above"], row["below"])
    lines_above, lines_below = len(above), len(below)

    def context() -> list[Any]:
        shown = _highlight(row["file"], [*above, *below])
        return [shown[:lines_above], shown[len(shown) - lines_below :]]

    return {
        "l": row["line"],
        "m": row["new_line"],
        "b": bodies.add(
            ("hunk", kind, row["old"], row["new"]), lambda: _changed(row["file"], old, new)
        ),
        "x": bodies.add(around, context),
    }


def _kind(path: str) -> str:
    """What decides how a file is highlighted."""
    name = path.rpartition("/")[2]
    return name if "." not in name else name.rpartition(".")[2]


_END = re.compile(r"\r\n|\n|\r")


def _lines(text: str) -> list[str]:
    starts = [*line_starts(text), len(text)]
    lines = [_END.sub("", text[a:b]) for a, b in pairwise(starts)]
    if lines and not lines[-1]:
        lines.pop()
    return lines


# Words and colours --------------------------------------------------------------------------------------

_WORD = re.compile(r"\w+|\s+|[^\w\s]")


def _changed(path: str, old: list[str], new: list[str]) -> list[Any]:
    """A hunk's body: how its lines pair, the old lines, the new lines.

    The pairing has a sign for each row: `=` the same line on both sides, `~` a line that changed, `-` and `+` one
    that only one side has. Lines that are the same are only among the old ones.
    """
    rows: list[str] = []
    keep: list[int] = []
    marks_old: dict[int, list[tuple[int, int]]] = {}
    marks_new: dict[int, list[tuple[int, int]]] = {}
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    for tag, a, b, c, d in matcher.get_opcodes():
        if tag == "equal":
            rows.append("=" * (b - a))
            continue
        pairs = min(b - a, d - c)
        rows.append("~" * pairs + "-" * (b - a - pairs) + "+" * (d - c - pairs))
        keep += range(c, d)
        for n in range(pairs):
            marks_old[a + n], marks_new[c + n] = _word_diff(old[a + n], new[c + n])
    shown_old, shown_new = _highlight(path, old), _highlight(path, new)
    return [
        "".join(rows),
        [_marked(line, marks_old.get(n, [])) for n, line in enumerate(shown_old)],
        [_marked(shown_new[n], marks_new.get(n, [])) for n in keep],
    ]


def _word_diff(old: str, new: str) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Spans of the words that differ between two lines."""
    a, b = _WORD.findall(old), _WORD.findall(new)
    matcher = difflib.SequenceMatcher(None, a, b, autojunk=False)
    if matcher.quick_ratio() < 0.3:
        return [], []  # another line altogether
    marks: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])
    offsets = [[0], [0]]
    for side, words in enumerate((a, b)):
        for word in words:
            offsets[side].append(offsets[side][-1] + len(word))
    for tag, a1, a2, b1, b2 in matcher.get_opcodes():
        if tag != "equal":
            for side, (first, last) in enumerate(((a1, a2), (b1, b2))):
                if last > first:
                    marks[side].append((offsets[side][first], offsets[side][last]))
    return marks


def _marked(line: Line, marks: list[tuple[int, int]]) -> Line:
    """A highlighted line with changed spans marked."""
    if not marks:
        return line
    parts: Line = []
    position = 0
    for kind, text in zip(line[::2], line[1::2], strict=True):
        end = position + len(text)
        cuts = sorted({position, end, *(c for span in marks for c in span if position < c < end)})
        for start, stop in pairwise(cuts):
            changed = any(a <= start and stop <= b for a, b in marks)
            parts += [f"{kind}*" if changed else kind, text[start - position : stop - position]]
        position = end
    return parts


_CLASSES: tuple[tuple[_TokenType, str], ...] = (
    (Comment, "c"),
    (Literal.String, "s"),
    (Number, "m"),
    (Keyword, "k"),
    (Name.Decorator, "d"),
    (Name.Function, "f"),
    (Name.Class, "f"),
    (Name.Tag, "f"),
    (Name.Builtin, "b"),
    (Name.Variable, "b"),
    (Generic.Heading, "k"),
)


@cache
def _class(token: _TokenType) -> str:
    return next((name for kind, name in _CLASSES if token[: len(kind)] == kind), "")


@cache
def _lexer(kind: str) -> Lexer | None:
    found = find_lexer_class_for_filename(f"x.{kind}") or find_lexer_class_for_filename(kind)
    return found(stripnl=False, ensurenl=False) if found else None


def _highlight(path: str, lines: list[str]) -> list[Line]:
    """Lines as classes and texts. The lines stand alone, so a docstring's inside may be taken for code."""
    text = "\n".join(lines)
    lexer = _lexer(_kind(path))
    plain: list[Line] = [["", line] for line in lines]
    if lexer is None or len(text) > _LONGEST_LEXED:
        return plain
    shown: list[Line] = [[]]
    for token, value in lexer.get_tokens(text):
        kind = _class(token)
        for number, part in enumerate(value.split("\n")):
            if number:
                shown.append([])
            if part and shown[-1] and shown[-1][-2] == kind:
                shown[-1][-1] += part
            elif part:
                shown[-1] += [kind, part]
    same = len(shown) == len(lines) and all(
        "".join(a[1::2]) == b for a, b in zip(shown, lines, strict=True)
    )
    return shown if same else plain
