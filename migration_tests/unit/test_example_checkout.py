"""The example checkout, migrated: what must be gone, what must be listed, and that nothing else is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from codemods.engine.run import Migration, Settings, migrate
from codemods.rules import all_rules
from migration_tests.support import UPSTREAM, Outcome, outcome_of, write_files

FIXTURES = Path(__file__).parents[1] / "fixtures"
CHECKOUT = FIXTURES / "ant_pretrain"
# Every site that needs a person, each looked at: file → lines with the rules that list them.
SITES: dict[str, dict[int, list[str]]] = yaml.safe_load(
    (FIXTURES / "ant_pretrain.sites.yml").read_text(encoding="utf-8")
)
OLD = re.compile(
    r"\bAL(?:Generic|Dense|MoE)Layer\w*|\bALScannableBlock\w*|\bALModel\b|\bAL_MODEL\b|\bAlModel\w*|al_model"
    r"|argus_dump_\w+|argus_utils|\b_dump_tensor\b|\b_dumpable\b"
    r"|\bMaxText\.[a-z]|\bMaxText/[a-z]|(?:from|import) MaxText(?:\.| import|$)|-m ?MaxText"
)


@pytest.fixture(scope="module")
def migration() -> Migration:
    return migrate(Settings(CHECKOUT, UPSTREAM, jobs=2))


@pytest.fixture(scope="module")
def outcome(migration: Migration) -> Outcome:
    return outcome_of(migration)


def test_exactly_the_sites_that_need_a_person_are_listed(outcome: Outcome) -> None:
    found: dict[str, dict[int, list[str]]] = {}
    for site in outcome.sites:
        rules = found.setdefault(site.file, {}).setdefault(site.line, [])
        if site.rule not in rules:
            rules.append(site.rule)
        assert site.reason
    assert {f: {n: sorted(r) for n, r in lines.items()} for f, lines in found.items()} == SITES


def test_no_old_name_is_left_unlisted(migration: Migration, outcome: Outcome) -> None:
    homes = {w.new: p for p, w in migration.placements.items() if w.new is not None}
    for path, text in outcome.texts.items():
        assert not OLD.search(path), path
        old = homes[path]
        source = (CHECKOUT / old).read_text(encoding="utf-8").split("\n")
        listed = {source[n - 1].strip() for n in SITES.get(old, {})}
        named = {s.before for s in outcome.sites if s.file == old and s.before}
        for line in text.split("\n"):
            if OLD.search(line) and line.strip() not in listed:
                # A split or shortened statement is no line of the checkout; what is listed of it stands in it.
                assert any(n in line for n in named), f"{path}: {line}"


def test_python_compiles(outcome: Outcome) -> None:
    for path, text in outcome.texts.items():
        if path.endswith(".py"):
            compile(text, path, "exec")


def test_a_second_run_changes_nothing(outcome: Outcome, tmp_path: Path) -> None:
    again = migrate(Settings(write_files(tmp_path, outcome.texts), UPSTREAM, jobs=2))
    assert [(e.file, e.line, e.rule, e.before, e.after) for e in again.edits] == []
    assert again.moved == {}
    assert again.left_out == []


def test_the_examples_hold_a_place_for_every_rule_that_edits(migration: Migration) -> None:
    variant = migrate(Settings(FIXTURES / "ant_pretrain_variant", UPSTREAM, jobs=2))
    at_work = {f.rule for m in (migration, variant) for f in (*m.edits, *m.listed)}
    at_work |= {w.rule for m in (migration, variant) for w in m.placements.values()}
    editing = {r.id for r in all_rules().values() if r.tier != "report"}
    assert editing - at_work == set()
