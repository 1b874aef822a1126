"""IMP, continued: definitions of the checkout's own copy of a module that upstream renamed in place.

Importers are sent to upstream's name, so the copy that is carried along has to define that name too.
"""

from __future__ import annotations

import libcst as cst

from codemods.engine.context import PythonFile
from codemods.engine.scopes import Binding
from codemods.engine.tree import Span
from codemods.rules.base import Example, Rule

RULES = (
    Rule(
        "IMP013",
        "review",
        "a definition that upstream renamed, in the file that goes where upstream's is",
        "With all its uses in the file and in `__all__`. Where the new name means something else in the file "
        "already, it is listed.",
        (
            Example(
                "class Qwen3NextRotaryEmbedding:\n  pass\n\n\nROPE = Qwen3NextRotaryEmbedding\n",
                "class PartialRotaryEmbedding:\n  pass\n\n\nROPE = PartialRotaryEmbedding\n",
                path="src/MaxText/layers/embeddings.py -> src/maxtext/layers/embeddings.py",
            ),
        ),
    ),
)


def python(file: PythonFile) -> None:
    """Rename what the file defines and upstream's file defines under another name."""
    home = file.project.modules.get(file.module_name)
    if not home:
        return
    scope = file.scopes.module
    for name, places in scope.bindings.items():
        entry = file.project.map.symbols.get(f"{file.module_name}.{name}")
        if entry is None or entry.status != "renamed" or entry.new is None:
            continue
        module, _, new = entry.new.rpartition(".")
        if module != home or any(p.kind not in ("class", "function") for p in places):
            continue
        if file.project.target.definition(module, new) is None:
            continue
        spans = [_name_span(file, place) for place in places]
        uses = file.scopes.references(scope, name)
        if _is_taken(file, new):
            reason = f"upstream calls it `{new}`, which means something else in this file"
            file.site("IMP013", spans[0], reason, "settle the names by hand")
            continue
        group = f"definition:{name}"
        why = ", ".join(entry.commits)
        for span in [*spans, *((use.start, use.end) for use in uses), *_exports(file, name)]:
            file.edit("IMP013", span, new, why, group)


def _name_span(file: PythonFile, place: Binding) -> Span:
    assert isinstance(place.node, (cst.ClassDef, cst.FunctionDef))
    return file.span(place.node.name)


def _is_taken(file: PythonFile, name: str) -> bool:
    return any(
        name in scope.bindings or any(use.name == name for use in scope.references)
        for scope in file.scopes.all
    )


def _exports(file: PythonFile, name: str) -> list[Span]:
    """Where `__all__` names it, without the quotes."""
    spans = []
    for place in file.scopes.module.bindings.get("__all__", []):
        statement = next(
            (a for a in file.tree.ancestors(place.node) if isinstance(a, cst.BaseSmallStatement)),
            None,
        )
        for node in file.tree.walk(statement) if statement is not None else ():
            if isinstance(node, cst.SimpleString) and node.evaluated_value == name:
                start, end = file.span(node)
                edge = len(node.quote)
                spans.append((start + len(node.prefix) + edge, end - edge))
    return spans
