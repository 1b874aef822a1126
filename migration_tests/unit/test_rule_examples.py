"""Every rule's own examples, which are also its documentation, hold with all rules on."""

from __future__ import annotations

from pathlib import Path

import pytest

from codemods.rules import all_rules
from codemods.rules.base import Example
from migration_tests.support import migrate_files

CASES = [
    pytest.param(rule.id, example, id=f"{rule.id}-{number}")
    for rule in all_rules().values()
    for number, example in enumerate(rule.examples)
]
# What makes a folder a checkout of the fork point, so that the shipped map fits.
BASE = {"src/MaxText/__init__.py": "", "src/MaxText/pyconfig.py": "", "src/MaxText/train.py": ""}


@pytest.mark.parametrize(("rule", "example"), CASES)
def test_example(rule: str, example: Example, tmp_path: Path) -> None:
    path, arrow, new_path = example.path.partition(" -> ")
    files = {**BASE, **example.files, path: example.before}
    outcome = migrate_files(tmp_path, files)
    if arrow:
        if not new_path:
            assert all(text != example.before for text in outcome.texts.values())
        else:
            assert outcome.texts[new_path] == example.after
    else:
        assert example.after in [
            t for p, t in outcome.texts.items() if Path(p).suffix == Path(path).suffix
        ]
    lines = example.before.splitlines()
    for listed in example.listed:
        numbers = {n for n, line in enumerate(lines, 1) if listed in line}
        assert any(s.file == path and s.line in numbers for s in outcome.sites), listed
    if rule[:3] != "MAP" and (example.listed or example.after != example.before):
        assert any(
            f.rule == rule for f in (*outcome.edits, *outcome.sites)
        ), f"{rule} is not at work"


def test_every_rule_has_an_example_and_says_what_it_does() -> None:
    for rule in all_rules().values():
        assert rule.summary
        assert rule.examples or rule.family == "CHK", rule.id
