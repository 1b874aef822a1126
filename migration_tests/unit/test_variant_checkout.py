"""The second example checkout against a judgement that was written without a look at the rules."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from codemods.engine.run import Migration, Settings, migrate
from codemods.maps.symbols import absolute, module_name
from migration_tests.support import UPSTREAM, Outcome, outcome_of

FIXTURES = Path(__file__).parents[1] / "fixtures"
CHECKOUT = FIXTURES / "ant_pretrain_variant"
EXPECTED: dict[str, Any] = yaml.safe_load(
    (FIXTURES / "ant_pretrain_variant.expected.yml").read_text(encoding="utf-8")
)


@pytest.fixture(scope="module")
def migration() -> Migration:
    return migrate(Settings(CHECKOUT, UPSTREAM, jobs=2))


@pytest.fixture(scope="module")
def outcome(migration: Migration) -> Outcome:
    return outcome_of(migration)


def text_of(outcome: Outcome, path: str) -> str:
    """A file of the output, in whichever of its right places it is."""
    for place in (path, *EXPECTED["other_homes"].get(path, ())):
        if place in outcome.texts:
            return outcome.texts[place]
    raise AssertionError(f"the output has no {path}")


def is_listed(outcome: Outcome, entry: dict[str, Any]) -> bool:
    sites = [s for s in outcome.sites if s.file == entry["file"]]
    if entry["family"] == "MAP":
        return bool(sites)
    source = (CHECKOUT / entry["file"]).read_bytes().decode("utf-8", "surrogateescape")
    for site in sites:
        last = site.line + source.count("\n", site.start, site.end)
        if site.line <= entry["line"] <= last:
            return True
    return False


def test_paths(outcome: Outcome) -> None:
    for path in EXPECTED["must_exist"]:
        text_of(outcome, path)
    for path in EXPECTED["must_not_exist"]:
        assert not [p for p in outcome.texts if p == path or p.startswith(f"{path}/")], path


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def contained() -> Iterator[Any]:
    for path, lines in EXPECTED["must_contain"].items():
        for line in lines:
            yield pytest.param(path, [line] if isinstance(line, str) else line, id=f"{path}:{line}")


@pytest.mark.parametrize(("path", "lines"), list(contained()))
def test_line_is_there(outcome: Outcome, path: str, lines: list[str]) -> None:
    data = text_of(outcome, path).encode("utf-8", "surrogateescape")
    text = data.decode("utf-8") if _is_utf8(data) else data.decode("latin-1")
    assert any(line.rstrip("\r") in lines for line in text.split("\n"))


def bound() -> Iterator[Any]:
    for path, names in EXPECTED["must_bind"].items():
        for name, dotted in names.items():
            yield pytest.param(path, name, dotted, id=f"{path}:{name}")


@pytest.mark.parametrize(("path", "name", "dotted"), list(bound()))
def test_name_is_bound(outcome: Outcome, path: str, name: str, dotted: str) -> None:
    imports: dict[str, set[str]] = {}
    home = module_name(path)
    for node in ast.walk(ast.parse(text_of(outcome, path))):
        if isinstance(node, ast.ImportFrom):
            module = absolute(home, path.endswith("__init__.py"), node.level, node.module)
            for alias in node.names:
                imports.setdefault(alias.asname or alias.name, set()).add(f"{module}.{alias.name}")
        elif isinstance(node, ast.Import):
            for alias in node.names:
                imports.setdefault(alias.asname or alias.name, set()).add(alias.name)
    assert dotted in imports.get(name, set())


@pytest.mark.parametrize(
    "entry", EXPECTED["must_be_listed"], ids=lambda e: f"{e['file']}:{e['line']}"
)
def test_site_is_listed(outcome: Outcome, entry: dict[str, Any]) -> None:
    assert is_listed(outcome, entry), entry["why"]


@pytest.mark.parametrize(
    "entry", EXPECTED["rewritten_or_listed"], ids=lambda e: f"{e['file']}:{e['line']}"
)
def test_rewritten_or_listed(migration: Migration, outcome: Outcome, entry: dict[str, Any]) -> None:
    if is_listed(outcome, entry):
        return
    new = migration.placements[entry["file"]].new
    assert new is not None
    lines = {line.strip() for line in outcome.texts[new].split("\n")}
    for wanted in [entry["new"]] if entry["new"] is None else entry["new"]:
        if wanted is None:
            if entry["text"].strip() not in lines:
                return
        elif wanted.strip() in lines:
            return
    raise AssertionError(f"neither listed nor as one of {entry['new']}")


def test_unchanged(outcome: Outcome) -> None:
    for path in EXPECTED["must_be_unchanged"]["files"]:
        assert (
            text_of(outcome, path).encode("utf-8", "surrogateescape")
            == (CHECKOUT / path).read_bytes()
        )
    for path, entry in EXPECTED["must_be_unchanged"]["lines"].items():
        found = [line.rstrip("\r") for line in text_of(outcome, path).split("\n")]
        for line in entry["lines"]:
            assert line in found, f"{path}: {line}"


def test_bytes_are_kept(outcome: Outcome) -> None:
    for entry in EXPECTED["bytes_kept"]:
        data = text_of(outcome, entry["file"]).encode("utf-8", "surrogateescape")
        if entry.get("line_ending") == "crlf":
            assert data.count(b"\n") == data.count(b"\r\n") > 0
        if "starts_with_hex" in entry:
            assert data.startswith(bytes.fromhex(entry["starts_with_hex"]))
        if "form_feeds" in entry:
            assert data.count(b"\f") == entry["form_feeds"]
        if entry.get("indent") == "tab":
            assert b"\n\t" in data
            assert b"\n  " not in data
        if entry.get("encoding") == "latin-1":
            with pytest.raises(UnicodeDecodeError):
                data.decode("utf-8")
        if entry.get("final_newline") is False:
            assert not data.endswith(b"\n")


@pytest.mark.parametrize("entry", EXPECTED["must_not_contain"], ids=lambda e: e["pattern"])
def test_nothing_old_is_left_unsaid(
    migration: Migration, outcome: Outcome, entry: dict[str, Any]
) -> None:
    pattern = re.compile(entry["pattern"])
    allowed = {
        (place["file"], line) for place in entry.get("allowed", ()) for line in place["lines"]
    }
    homes = {w.new: p for p, w in migration.placements.items() if w.new is not None}
    for path, text in outcome.texts.items():
        source = (
            (CHECKOUT / homes[path]).read_bytes().decode("utf-8", "surrogateescape").split("\n")
        )
        sites = [s for s in outcome.sites if s.file == homes[path]]
        listed = {source[s.line - 1].strip() for s in sites}
        named = {s.before for s in sites if s.before and "\n" not in s.before}
        for line in text.split("\n"):
            if pattern.search(line) and (path, line.rstrip("\r")) not in allowed:
                # A statement that was split is no line of the checkout; its listed name is still in it.
                assert line.strip() in listed or any(n in line for n in named), f"{path}: {line}"


def test_python_compiles(outcome: Outcome) -> None:
    for path, text in outcome.texts.items():
        if path.endswith(".py"):
            compile(text.encode("utf-8", "surrogateescape"), path, "exec")


def test_second_run_changes_nothing(outcome: Outcome, tmp_path: Path) -> None:
    for path, text in outcome.texts.items():
        target = tmp_path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text.encode("utf-8", "surrogateescape"))
    again = migrate(Settings(tmp_path, UPSTREAM, jobs=2))
    assert not again.edits
    assert not again.moved
    assert not again.left_out
