"""The rules, by family. A family's module has `RULES` and `python(file)` and/or `text(file)`.

Rules never see each other's edits, only the original text, so their order cannot change the result;
but the dump, rename and signature rules say which imports and names they need, and go before the import
rules.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from types import ModuleType

from codemods.engine.context import PythonFile, TextFile
from codemods.errors import UserError
from codemods.rules import (
    checks,
    configs,
    definitions,
    dumps,
    imports,
    moves,
    notebooks,
    renames,
    signatures,
    text,
)
from codemods.rules.base import Rule

FAMILIES: tuple[ModuleType, ...] = (
    moves,
    imports,
    definitions,
    renames,
    dumps,
    configs,
    text,
    notebooks,
    signatures,
    checks,
)


@cache
def all_rules() -> dict[str, Rule]:
    """Every rule by id, in the order of the families."""
    return {rule.id: rule for family in FAMILIES for rule in family.RULES}


@cache
def documented_rules() -> dict[str, Rule]:
    """Every rule by id, with those of `overlay`, which `run` does not have."""
    from target.integration import INTEGRATIONS  # its rules are made of `codemods.rules.base`

    return all_rules() | {i.rule.id: i.rule for i in INTEGRATIONS}


def select(only: Iterable[str] = (), skip: Iterable[str] = ()) -> frozenset[str]:
    """The ids of the rules to run. `only` and `skip` take ids (`IMP001`) and families (`IMP`).

    Checks of the engine itself always run.

    Raises:
        UserError: an id or family that does not exist.
    """
    rules = all_rules()

    def ids(names: Iterable[str]) -> set[str]:
        found: set[str] = set()
        for name in names:
            matching = {i for i, r in rules.items() if name.upper() in (i, r.family)}
            if not matching and name.upper()[:3] == "INT":
                raise UserError(f"`{name}` is of `ling2-migrate overlay`; run does not have it")
            if not matching:
                raise UserError(f"no rule or family `{name}`; see `ling2-migrate run --list-rules`")
            found |= matching
        return found

    only, skip = list(only), list(skip)
    chosen = ids(only) if only else set(rules)
    chosen -= ids(skip)
    return frozenset(chosen | {r.id for r in checks.RULES})


def run_python(file: PythonFile) -> None:
    """Run every family on one Python file (or on Python embedded in another file)."""
    dumps.python(file)
    renames.python(file)
    signatures.python(file)
    imports.python(file)
    definitions.python(file)
    text.python(file)
    configs.python(file)


def run_text(file: TextFile) -> None:
    """Run every family on one file that is not Python."""
    if file.path.endswith(".ipynb"):
        notebooks.text(file)
        return
    configs.text(file)
    text.text(file)
