"""Conflicts with one certain answer, and their near neighbours that have none."""

from __future__ import annotations

import pytest

from codemods.rebase.lines import Conflict, render
from codemods.rebase.merge import merge_text


def merged(base: str, ours: str, theirs: str, path: str = "m.py") -> tuple[str | None, list[str]]:
    """The merged text, None with a conflict; and the kinds of what was resolved."""
    parts, found = merge_text(path, base, ours, theirs)
    kinds = [r.kind for r in found]
    if any(isinstance(p, Conflict) for p in parts):
        return None, kinds
    return "".join(p for p in parts if isinstance(p, str)), kinds


CERTAIN = [
    # base, upstream, fork, result, kind
    ("x = f(a,b)\n", "x = f(a, b)\n", "x = f(a,b,c)\n", "x = f(a, b, c)\n", "formatting"),
    ("x = f(a,b)\n", "x = f(a,b,c)\n", "x = f(a, b)\n", "x = f(a,b,c)\n", "formatting"),
    ("x = 1\n", "x = g(1)\ny = 2\n", "x = g(1)\n", "x = g(1)\ny = 2\n", ""),
    ("x = 1\ny = 2\n", "x = g(1)\nnew()\ny = 3\n", "x = g(1)\ny = 2\n", "x = g(1)\nnew()\ny = 3\n", ""),
    ("f(a=1)\n", "f(a=1, b=2)\n", "f(a=1, c=3)\n", "f(a=1, b=2, c=3)\n", "different nodes"),
    ("f(a, k=1)\n", "f(b, k=1)\n", "f(a, k=2)\n", "f(b, k=2)\n", "different nodes"),
    ("x = 1\n", "y = f(2)\n", "# why\nx = 1\n", "# why\ny = f(2)\n", "comments"),
    ("X = ['a']\n", "X = ['a', 'b']\n", "X = ['a', 'c']\n", "X = ['a', 'b', 'c']\n", "different nodes"),
    ("X = {1: 2}\n", "X = {1: 2, 3: 4}\n", "X = {1: 2, 5: 6}\n", "X = {1: 2, 3: 4, 5: 6}\n", "different nodes"),
    ("from a import b\n\nb\n", "from a import b, c\n\nb\n", "from a import b, d\n\nb\nd\n",
     "from a import b, c, d\n\nb\nd\n", "different nodes"),
    ("import a\n\na.x\n", "import a\nimport b\n\na.x\n", "import a\nimport c\n\na.x\nc.y\n",
     "import a\nimport b\nimport c\n\na.x\nc.y\n", "both added"),
    ("class E:\n  A = 1\n\n\nf()\n", "class E:\n  A = 1\n  B = 2\n\n\nf()\n", "class E:\n  A = 1\n  C = 3\n\n\nf()\n",
     "class E:\n  A = 1\n  B = 2\n  C = 3\n\n\nf()\n", "both added"),
    ("def f():\n  pass\n", "def f():\n  pass\n\n\ndef g():\n  pass\n", "def f():\n  pass\n\n\ndef h():\n  return 1\n",
     "def f():\n  pass\n\n\ndef g():\n  pass\n\n\ndef h():\n  return 1\n", "both added"),
    ("match x:\n  case 1:\n    a()\n", "match x:\n  case 1:\n    a()\n  # new\n", "match x:\n  case 1:\n    b()\n",
     "match x:\n  case 1:\n    b()\n  # new\n", ""),
    ("match x:\n  case 1:\n    a()\n  case _:\n    z()\n", "match x:\n  case 1:\n    a()\n  case 2:\n    b()\n  case _:\n    z()\n",
     "match x:\n  case 1:\n    a()\n  case A.B:\n    c()\n  case _:\n    z()\n",
     "match x:\n  case 1:\n    a()\n  case 2:\n    b()\n  case A.B:\n    c()\n  case _:\n    z()\n", "both added"),
    ("def f(a, b: int):\n  a\n", "def f(a, b: str):\n  a\n", "def f(a, b: int = 3):\n  a\n", "def f(a, b: str = 3):\n  a\n", "different nodes"),
    ("def f(a, b: int=1):\n  a\n", "def f(a, b: str=1):\n  a\n", "def f(a, b: int):\n  a\n", "def f(a, b: str):\n  a\n", "different nodes"),
    ("def f(a) -> int:\n  a\n", "def f(a) -> str:\n  a\n", "def f(b) -> int:\n  a\n", "def f(b) -> str:\n  a\n", "different nodes"),
    ("x: int\n", "x: str\n", "x: int = 3\n", "x: str = 3\n", "different nodes"),
    ("class A:\n  x = 1\n", "class A(B):\n  x = 1\n", "class A(metaclass=M):\n  x = 1\n", "class A(B, metaclass=M):\n  x = 1\n", "different nodes"),
    ("async def f(a):\n  x\n", "def f(a):\n  x\n", "async def f(b):\n  x\n", "def f(b):\n  x\n", "different nodes"),
    ("class C:\n  a: int = 1\n", "class C:\n  a: int = 1\n  b: int = F(1, x=2)\n  c: int = 1\n", "class C:\n  a: int = 1\n  b: int = F(\n      1, x=2\n  )\n  d: int = 1\n",
     "class C:\n  a: int = 1\n  b: int = F(1, x=2)\n  c: int = 1\n  d: int = 1\n", "same change"),
]  # fmt: skip


@pytest.mark.parametrize(("base", "ours", "theirs", "result", "kind"), CERTAIN)
def test_what_is_certain_is_resolved(
    base: str, ours: str, theirs: str, result: str, kind: str
) -> None:
    text, kinds = merged(base, ours, theirs)
    assert text == result
    assert not kind or kind in kinds


UNCERTAIN = [
    ("class E(Enum):\n  A = 1\n", "class E(Enum):\n  A = 1\n  B = 2\n", "class E(Enum):\n  A = 1\n  C = 2\n"),
    ("x = 1\n", "x = 2\n", "x = 3\n"),
    ("x = 1\ny = 1\n", "x = 2\ny = 1\n", "y = 1\n"),  # changed there, removed here
    ("x = 1\ny = 1\n", "y = 1\n", "x = 2\ny = 1\n"),
    ("f(a)\n", "f(a, b)\n", "f(a, c)\n"),  # by position
    ("def f(a):\n  pass\n", "def f(a, b=1):\n  pass\n", "def f(a, c=1):\n  pass\n"),
    ("def f():\n  a()\n", "def f():\n  a()\n  b()\n", "def f():\n  a()\n  c()\n"),  # in order
    ("X = ('a',)\n", "X = ('a', 'b')\n", "X = ('a', 'c')\n"),  # a tuple may be unpacked
    ("from a import b\n\nb\n", "from x import b\n\nb\n", "from y import b\n\nb\n"),
    ("x = 1\n", "if t:\n  x = g(2)\n", "x = g(1)\n"),
    ("z = 1\n", "z = 1\n\n\nclass C:\n  a = 1\n", "class C:\n  a = 2\n\n\nz = 1\n"),  # twice
    ("x = 1  # one\n", "x = 2  # two\n", "x = 1  # uno\n"),
    ("match x:\n  case 1:\n    a()\n", "match x:\n  case 1:\n    a()\n  case 2 | 3:\n    b()\n", "match x:\n  case 1:\n    a()\n  case 3:\n    c()\n"),
    ("match x:\n  case 1:\n    a()\n", "match x:\n  case 1:\n    a()\n  case 2 if y:\n    b()\n", "match x:\n  case 1:\n    a()\n  case 3:\n    c()\n"),
]  # fmt: skip


@pytest.mark.parametrize(("base", "ours", "theirs"), UNCERTAIN)
def test_what_is_not_certain_is_a_conflict(base: str, ours: str, theirs: str) -> None:
    assert merged(base, ours, theirs)[0] is None


def test_entries_of_a_yaml_file() -> None:
    base = "a: 1\nb: 2\n"
    ours, theirs = base + "# up\nc: 3\n", base + "# fork\nd:\n  - 4\n  - 5\n"
    assert merged(base, ours, theirs, "base.yml") == (
        base + "# up\nc: 3\n# fork\nd:\n  - 4\n  - 5\n",
        ["different entries"],
    )
    assert merged(base, base + "c: 3\n", base + "c: 4\n", "base.yml")[0] is None
    same = merged(base, base + "# x\nc: 3\nd: 4\n", base + "# y\nc: 3\ne: 5\n", "base.yml")
    assert same == (base + "# x\nc: 3\nd: 4\ne: 5\n", ["different entries", "comments"])
    both = merge_text("base.yml", "", "# head\na: 1\nb: 2\nc: 3\n", "# head\na: 1\nb: 4\nd: 5\n")[0]
    assert both == ["# head\na: 1\n", Conflict("", "b: 2\n", "b: 4\n"), "c: 3\nd: 5\n"]
    twice = merged(
        "a: 1\nm: 1\nz: 1\n", "a: 1\nk: 2\nm: 1\nz: 1\n", "a: 1\nm: 1\nz: 1\nk: 3\n", "x.yml"
    )
    assert twice[0] is None


def test_a_conflict_is_as_small_as_the_statements() -> None:
    base = "def f(x):\n  a = 1\n  b = 2\n  c = 3\n  return a\n"
    ours = base.replace("b = 2", "b = 20").replace("a = 1", "a = one()")
    theirs = base.replace("b = 2", "b = 200").replace("c = 3", "c = three()")
    parts, _ = merge_text("m.py", base, ours, theirs)
    (conflict,) = [p for p in parts if isinstance(p, Conflict)]
    assert (conflict.ours, conflict.base, conflict.theirs) == (
        "  b = 20\n",
        "  b = 2\n",
        "  b = 200\n",
    )
    text = render(parts, "upstream", "fork")
    assert "  a = one()\n<<<<<<< upstream\n  b = 20\n||||||| base\n" in text
    assert ">>>>>>> fork\n  c = three()\n" in text


def test_text_of_other_kinds_is_merged_by_lines() -> None:
    base = "one\ntwo\nthree\n"
    assert merged(base, "one\ntwo\n3\n", "1\ntwo\nthree\n", "a.md") == ("1\ntwo\n3\n", [])
    assert merged(base, "one\n2\nthree\n", "one\nzwei\nthree\n", "a.md")[0] is None
    assert merged("a  b\n", "a  b \n", "a  c\n", "a.md")[0] == "a  c\n"


def test_definitions_that_both_sides_moved_are_not_doubled() -> None:
    inner = "    def move(x):\n      return x + 1\n"
    head, tail = (
        "class C:\n  def f(self):\n    a = 1\n",
        "    b = 2\n    c = 3\n    d = 4\n    return d\n",
    )
    base = head + tail + inner
    ours = head + "    b = 2\n" + inner + "    c = 3\n    d = 4\n    return d\n"
    theirs = head + inner + tail
    text, kinds = merged(base, ours, theirs)
    assert text == ours
    assert kinds == ["already upstream"]
    other = theirs.replace("x + 1", "x + 2")
    assert merged(base, ours, other)[0] is None


def test_a_definition_that_is_removed_here_and_moved_there_is_not_lost() -> None:
    base = "def a():\n  pass\n\n\nx = 1\ny = 2\n"
    theirs = "x = 1\ny = 3\n\n\ndef a():\n  pass\n"
    parts, _ = merge_text("m.py", base, "x = 1\ny = 4\n", theirs)
    fork = "".join(p.theirs if isinstance(p, Conflict) else p for p in parts)
    assert "def a():" in fork
    assert any(isinstance(p, Conflict) for p in parts)
