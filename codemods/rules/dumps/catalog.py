"""The dump rules' descriptions and examples."""

from __future__ import annotations

from codemods.rules.base import Example, Rule

RULES: tuple[Rule, ...] = tuple(
    Rule(f"DMP00{n}", t, s)
    for n, t, s in (
        (1, "safe", "a"), (2, "safe", "a"), (3, "safe", "a"), (4, "review", "a"), (5, "review", "a"), (6, "review", "a"),
        (7, "review", "a"), (8, "safe", "a"), (9, "report", "a"))
)
