"""The examples of the INT rules hold, and every rule edits a file at most once."""

from __future__ import annotations

import pytest

from codemods.engine.edits import apply
from codemods.engine.overlay import Integration, run_steps
from codemods.rules import all_rules, documented_rules
from codemods.rules.base import Example
from target.integration import INTEGRATIONS

CASES = [
    pytest.param(integration, example, id=f"{integration.rule.id}-{number}")
    for integration in INTEGRATIONS
    for number, example in enumerate(integration.rule.examples)
]


def run_example(integration: Integration, path: str, text: str) -> tuple[str, list[str]]:
    """The text after the rule's steps on that file, and what was not found."""
    steps = [(integration.rule.id, s) for s in integration.steps if s.path == path]
    assert steps, "the example's path is none of the rule's files"
    edits, missing = run_steps(path, text, steps)
    return apply(text, edits), [m.reason for m in missing]


@pytest.mark.parametrize(("integration", "example"), CASES)
def test_example(integration: Integration, example: Example) -> None:
    text, missing = run_example(integration, example.path, example.before)
    assert text == example.after
    for reason in example.listed:
        assert reason in missing
    if example.after != example.before:
        again, _ = run_example(integration, example.path, text)
        assert again == text


@pytest.mark.parametrize(("integration", "example"), CASES)
def test_without_its_anchor_a_rule_says_what_it_looked_for(
    integration: Integration, example: Example
) -> None:
    text, missing = run_example(integration, example.path, "import jax\n")
    steps = [s for s in integration.steps if s.path == example.path]
    assert text == "import jax\n"
    assert len(missing) <= len(steps)
    # The switch to the Linen decoder is one that a newer configuration does not have.
    assert missing or (
        example.path == "maxtext/configs/types.py" and integration.rule.id == "INT015"
    )
    assert all(reason.startswith("no ") for reason in missing)


def test_rules_are_documented_in_order_and_are_not_those_of_run() -> None:
    ids = [integration.rule.id for integration in INTEGRATIONS]
    assert ids == [f"INT{number:03}" for number in range(1, len(ids) + 1)]
    assert set(ids) <= set(documented_rules())
    assert not set(ids) & set(all_rules())
    assert all(i.rule.summary and i.rule.examples and i.steps for i in INTEGRATIONS)
