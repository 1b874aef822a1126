"""Ling2's map in an upstream release: against the model's own variables, and through upstream's own tools."""

from __future__ import annotations

from collections.abc import Callable

import pytest

# Fixtures.
from migration_tests.model.conftest import INSIDE, check, overlay  # noqa: F401

pytestmark = pytest.mark.model
CHECKS = INSIDE.parents[1] / "checkpoint" / "inside"
Check = Callable[..., None]


def test_map_is_of_the_models_variables(check: Check) -> None:  # noqa: F811
    """Names, shapes and scan axes of all kinds of models, the released ones among them."""
    check(str(CHECKS / "check_mapping.py"))


def test_upstreams_tools(check: Check) -> None:  # noqa: F811
    """`to_maxtext`, `from_pretrained` and `to_huggingface`, bit by bit; and what a checkpoint records."""
    check(str(CHECKS / "check_upstream_conversion.py"), devices=16)
