"""Random edits on both sides: the known right answer comes out, or a conflict; nothing is lost in silence."""

from __future__ import annotations

import ast
import re
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from codemods.rebase.lines import Conflict, Part
from codemods.rebase.merge import merge_text
from codemods.rebase.plan import open_branch
from codemods.rebase.session import Choices, planned
from migration_tests.rebase.repos import MOVED, start

# A module as named parts; an edit replaces, removes or adds a part. Whatever an edit adds has a word of its own.
Parts = dict[str, str]


def _base() -> Parts:
    parts = {
        "imports": "import os\nfrom a import (\n    b,\n    c,\n)\n\n",
        "const": "LIMIT = 1\nNAMES = [\n    'x',\n    'y',\n]\n\n\n",
    }
    for k in range(4):
        parts[f"f{k}"] = (
            f"def f{k}(x, y=1):\n  # step {k}\n  z = call(x, first={k})\n  if z:\n    return y + {k}\n  return b(z)\n\n\n"
        )
    parts["cls"] = (
        "class Kind(Enum):\n  ONE = 'one'\n  TWO = 'two'\n\n  def show(self):\n    return self.value\n\n\n"
    )
    return parts


BASE = "".join(_base().values())
_FUNCTIONS = [f"f{k}" for k in range(4)]


@st.composite
def edits(draw: st.DrawFn, side: str) -> tuple[str, set[str], set[str]]:
    """A version of the module: its text, the words that it adds, the parts that it touches."""
    parts = _base()
    words: set[str] = set()
    touched: set[str] = set()
    for number in range(draw(st.integers(1, 4))):
        word = f"{side}{number}"
        kind = draw(
            st.sampled_from(
                [
                    "body",
                    "argument",
                    "comment",
                    "add",
                    "remove",
                    "member",
                    "item",
                    "import",
                    "const",
                    "wrap",
                ]
            )
        )
        name = draw(st.sampled_from(_FUNCTIONS))
        if kind in ("body", "argument", "comment", "remove", "wrap"):
            if not parts[name]:
                continue
            touched.add(name)
        if kind == "body":
            at = draw(st.sampled_from(["  if z:\n", "  return b(z)\n", "  z = call("]))
            parts[name] = parts[name].replace(at, f"  {word}(x)\n{at}", 1)
        elif kind == "argument":
            parts[name] = parts[name].replace("first=", f"{word}=x, first=", 1)
        elif kind == "comment":
            parts[name] = re.sub(r"# step (\d)", rf"# step \1 {word}", parts[name], count=1)
        elif kind == "wrap":
            parts[name] = parts[name].replace("return b(z)", f"return {word}(b(z))", 1)
        elif kind == "remove":
            parts[name] = ""
        elif kind == "add":
            touched.add(name)
            parts[name] += f"def {word}():\n  return {word!r}\n\n\n"
        elif kind == "member":
            touched.add("cls")
            parts["cls"] = parts["cls"].replace("\n\n  def", f"\n  M_{word} = '{word}'\n\n  def", 1)
        elif kind == "item":
            touched.add("const")
            parts["const"] = parts["const"].replace("]", f"    '{word}',\n]", 1)
        elif kind == "const":
            touched.add("const")
            parts["const"] = parts["const"].replace("LIMIT = 1\n", f"LIMIT = {word}\n", 1)
        elif kind == "import":
            touched.add("imports")
            parts["imports"] = parts["imports"].replace("    c,\n", f"    c,\n    {word},\n", 1)
        words.add(word)
    text = "".join(parts.values())
    return text, {w for w in words if re.search(rf"(?<![a-z]){w}\b", text)}, touched


def _has(text: str, word: str) -> bool:
    return re.search(rf"(?<![a-z]){word}\b", text) is not None


def _texts(parts: list[Part]) -> tuple[str, str]:
    """The merged text with conflicts taken as the fork has them, and as upstream has them."""
    fork = "".join(p.theirs if isinstance(p, Conflict) else p for p in parts)
    ours = "".join(p.ours if isinstance(p, Conflict) else p for p in parts)
    return fork, ours


@settings(max_examples=60, deadline=None)
@given(edits("u"), edits("k"))
def test_nothing_is_lost_in_silence(
    ours: tuple[str, set[str], set[str]], theirs: tuple[str, set[str], set[str]]
) -> None:
    parts, found = merge_text("src/maxtext/m.py", BASE, ours[0], theirs[0])
    conflicts = [p for p in parts if isinstance(p, Conflict)]
    fork, upstream = _texts(parts)
    for word in theirs[1]:
        assert _has(fork, word)
    for word in ours[1]:
        assert _has(upstream, word)
    # What one side took out is out, where there is no conflict about it.
    for name in _FUNCTIONS:
        if f"def {name}(" not in theirs[0]:
            assert f"def {name}(" not in fork
        if f"def {name}(" not in ours[0]:
            assert f"def {name}(" not in upstream
    if not conflicts:
        ast.parse(fork)
        assert len(re.findall(r"^def f\d\(", fork, re.MULTILINE)) == len(
            set(re.findall(r"^def f\d\(", fork, re.MULTILINE))
        )
    if not ours[2] & theirs[2] and "" not in (ours[0], theirs[0]):
        assert all(not isinstance(p, Conflict) or _neighbours(ours[2], theirs[2]) for p in parts)
    for resolution in found:
        assert resolution.reason


def _neighbours(ours: set[str], theirs: set[str]) -> bool:
    """Whether the sides touch parts that lie side by side, where a removal can meet an addition."""
    order = list(_base())
    places = [{order.index(name) for name in side} for side in (ours, theirs)]
    return any(abs(a - b) == 1 for a in places[0] for b in places[1])


@settings(max_examples=60, deadline=None)
@given(edits("k"))
def test_a_change_on_one_side_alone_is_taken_as_it_is(
    theirs: tuple[str, set[str], set[str]],
) -> None:
    assert merge_text("m.py", BASE, BASE, theirs[0])[0] == [theirs[0]]
    assert merge_text("m.py", BASE, theirs[0], BASE)[0] == [theirs[0]]
    assert merge_text("m.py", BASE, theirs[0], theirs[0])[0] == [theirs[0]]


_STEPS = st.lists(
    st.tuples(st.sampled_from(["edit", "add", "rename", "remove"]), st.integers(0, 3)),
    min_size=1,
    max_size=4,
)


@settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(_STEPS, st.sets(st.integers(0, 3)), st.sets(st.integers(0, 3)))
def test_histories(steps: list[tuple[str, int]], rewritten: set[int], shims: set[int]) -> None:
    """Upstream moves four modules, rewrites some and leaves shims; the fork edits, adds, renames and removes."""
    with tempfile.TemporaryDirectory() as folder:
        text = {k: "".join(f"M{k}_{n} = {n}\n" for n in range(20)) for k in range(4)}
        repo = start(Path(folder) / "repo", {f"src/MaxText/m{k}.py": text[k] for k in range(4)})
        move = {f"src/MaxText/m{k}.py": f"src/maxtext/x/m{k}.py" for k in range(4)}
        repo.commit("move", {"src/maxtext/x/__init__.py": ""}, move={**MOVED, **move})
        later = {
            f"src/maxtext/x/m{k}.py": text[k].replace(f"M{k}_18 = 18", f"M{k}_18 = 'up'")
            for k in rewritten
        }
        later |= {f"src/MaxText/m{k}.py": f"from maxtext.x.m{k} import *\n" for k in shims}
        repo.commit("later", later)
        repo.git("checkout", "-q", "fork")
        expected: dict[int, str | None] = dict(text)
        places = {k: f"src/MaxText/m{k}.py" for k in range(4)}
        own = 0
        for kind, k in steps:
            now = expected[k]
            if kind == "add":
                own += 1
                repo.commit(
                    "add", {f"src/MaxText/own{own}.py": f"from MaxText.m{k} import M{k}_1\n"}
                )
            elif now is None:
                continue
            elif kind == "edit":
                expected[k] = f"FORK_{len(now)} = 1\n{now}"
                repo.commit("edit", {places[k]: str(expected[k])})
            elif kind == "rename":
                new = places[k].replace(".py", "r.py")
                repo.commit("rename", move={places[k]: new})
                places[k] = new
            elif kind == "remove":
                repo.commit("remove", remove=(places[k],))
                expected[k] = None
        if repo.git("rev-list", "--count", f"{repo.base}..fork").strip() == "0":
            return
        branch = open_branch(repo.root, "fork", "upstream", None)
        with planned(branch, Choices(), lambda stage, done, total: None) as (outlook, store):
            assert outlook.counts()["lost"] == 0
            if outlook.open:
                return
            for k, wanted in expected.items():
                name = places[k].removeprefix("src/MaxText/")
                entry = next(
                    (
                        e
                        for p, e in outlook.tree.items()
                        if p.startswith("src/maxtext/") and p.endswith(f"/{name}")
                    ),
                    None,
                )
                if wanted is None:
                    assert entry is None
                    continue
                if k in rewritten:
                    wanted = wanted.replace(f"M{k}_18 = 18", f"M{k}_18 = 'up'")
                assert (store.content(entry) or b"").decode() == wanted
            assert sum("/own" in p for p in outlook.tree) == own
            assert {p for p in outlook.tree if p.startswith("src/MaxText/")} == {
                f"src/MaxText/m{k}.py" for k in shims
            }
