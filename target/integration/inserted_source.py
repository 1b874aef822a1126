"""Classes and functions that edits insert, kept as Python files in `inserted/`."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).parent / "inserted"


@cache
def source_of(module: str, name: str) -> str:
    """The text of a class or function in one of the files.

    Raises:
        KeyError: the file has no definition of that name.
    """
    text = (_FOLDER / f"{module}.py").read_text(encoding="utf-8")
    definition = _definition(text, name)
    assert definition.end_lineno is not None
    return "\n".join(text.split("\n")[definition.lineno - 1 : definition.end_lineno]) + "\n"


@cache
def field_names(module: str, name: str) -> frozenset[str]:
    """The names that a class in one of the files annotates.

    Raises:
        KeyError: the file has no class of that name.
    """
    text = (_FOLDER / f"{module}.py").read_text(encoding="utf-8")
    return frozenset(
        statement.target.id
        for statement in _definition(text, name).body
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
    )


def _definition(text: str, name: str) -> ast.ClassDef | ast.FunctionDef:
    for statement in ast.parse(text).body:
        if isinstance(statement, (ast.ClassDef, ast.FunctionDef)) and statement.name == name:
            return statement
    raise KeyError(name)
