"""DMP: strip the Argus dump hooks, and everything that only fed them.

The hooks are found by their definitions in the checkout, and followed through imports, re-exports and
assigned names. What only fed them (locals, parameters, flags, values returned) is found from all
files together, by `gather`; each file's edits fall out of it.
"""

from __future__ import annotations

import re

import libcst as cst

from codemods.engine.context import PythonFile
from codemods.rules.dumps.catalog import RULES
from codemods.rules.dumps.growth import Growth
from codemods.rules.dumps.planning import (
    WORDS,
    DumpFacts,
    DumpPlan,
    FilePlan,
    deep,
    digest,
    file_plan,
    gather,
    parse,
    plan,
    survey,
)
from codemods.rules.dumps.questions import CALL, DECORATOR, IMPORT, MANUAL, VALUE
from codemods.rules.dumps.values import Hook, World

__all__ = ["RULES", "WORDS", "DumpFacts", "DumpPlan", "gather", "plan", "python", "survey"]

# Together they make a name that only fed dumps unused; without one of them it is still in use.
_EDITING = tuple(rule.id for rule in RULES if rule.tier != "report" and rule.id != IMPORT)


def python(file: PythonFile) -> None:
    """Strip the dumps from one Python file by the project's plan, and say which imports that frees."""
    dumps = file.project.dumps
    if not (dumps.modules or dumps.files or dumps.exports) or file.module_name in dumps.modules:
        return
    found = dumps.files.get(file.path)
    if found is None or found.digest != digest(file.text):
        data = file.text.encode("utf-8", "surrogatepass")
        if not any(word in data for word in (*WORDS, *dumps.words)):
            return
        found = _unplanned(file, dumps)
        if found is None:
            return
    everything = all(file.enabled(rule) for rule in _EDITING)
    edits = found.edits if everything else found.alone
    # A name may only go with the calls that it fed, so a reviewer takes or leaves them together.
    tied = any(edit.rule not in (DECORATOR, CALL, VALUE) for edit in edits)
    for edit in edits:
        group = "dumps" if tied and edit.rule != DECORATOR else ""
        file.edit(edit.rule, (edit.start, edit.end), edit.new, edit.reason, group)
    for site in found.sites:
        file.site(site.rule, (site.start, site.end), site.reason, site.todo)
    if found.unused and everything and file.enabled(IMPORT):
        aliases = set(found.unused)
        for node in file.tree.walk():
            if isinstance(node, cst.ImportAlias) and file.span(node) in aliases:
                file.unused.add(node)


def _unplanned(file: PythonFile, dumps: DumpPlan) -> FilePlan | None:
    """What to do with Python that was not looked at with the checkout: a notebook cell, a heredoc."""
    for name in dumps.changed:
        for match in re.finditer(rf"\b{re.escape(name)}\b(?=\s*\()", file.text):
            reason = f"`{name}` takes or returns less than before, and this call was not looked at"
            file.site(MANUAL, match.span(), reason, "compare the call with the definition")
    with deep():
        code = parse(DumpFacts(file.path, file.module_name, file.is_package, file.text))
        if code is None:
            names = {name.rpartition(".")[2] for name in (*dumps.exports, *dumps.modules)}
            for match in re.finditer("|".join(map(re.escape, sorted(names))), file.text):
                reason = "the file nests too deep, or is too new, to look for dumps in it"
                file.site(MANUAL, match.span(), reason, "take the dumps out by hand")
            return None
        world = World([code], dumps.exports)
        world.hooks.update({n: v for n, v in dumps.exports.items() if isinstance(v, Hook)})
        world.dumpers = dumps.modules
        return file_plan(Growth(world, whole=False), code)
