"""What is left for a person in the finished branch beside conflicts: imports that resolve nowhere, listed sites."""

from __future__ import annotations

import ast
import re
from collections import Counter
from dataclasses import dataclass

from codemods.engine.project import NEW_ROOT, OLD_ROOT
from codemods.engine.rewrite import Finding
from codemods.maps import symbols
from codemods.maps.symbols import SymbolTable
from codemods.rebase.store import Store, Tree
from codemods.rebase.transform import Transformer


@dataclass(frozen=True, slots=True)
class Site:
    """A place to look at.

    Attributes:
        path, line: where; of a listed site, in the fork's file.
        rule: the rule that lists it.
        reason: why.
    """

    path: str
    line: int
    rule: str
    reason: str


def unresolved(store: Store, tree: Tree, upstream: Tree, target: SymbolTable) -> list[Site]:
    """Imports of changed Python files that neither upstream nor the result has."""
    changed = {
        p: store.content(e) or b""
        for p, e in tree.items()
        if p.endswith(".py") and e.regular and upstream.get(p) != e
    }
    gone = {p for p in upstream if p not in tree} | changed.keys()
    modules = [m for m in target.modules.values() if m.path not in gone]
    modules += [symbols.scan(data, path) for path, data in changed.items()]
    table = SymbolTable(modules)
    found: list[Site] = []
    for path, data in sorted(changed.items()):
        try:
            parsed = ast.parse(data)
        except (SyntaxError, ValueError, RecursionError):
            continue
        name = symbols.module_name(path)
        for node in ast.walk(parsed):
            if isinstance(node, ast.Import):
                wanted = [a.name for a in node.names]
            elif isinstance(node, ast.ImportFrom):
                package = path.endswith("__init__.py")
                origin = symbols.absolute(name, package, node.level, node.module)
                wanted = [origin if a.name == "*" else f"{origin}.{a.name}" for a in node.names]
            else:
                continue
            for dotted in wanted:
                if dotted.split(".")[0] in (NEW_ROOT, OLD_ROOT) and not table.exists(dotted):
                    reason = f"`{dotted}` is neither in upstream nor in the new branch"
                    found.append(Site(path, node.lineno, "CHK006", reason))
    return found


def listed(
    transformer: Transformer, base: str, tip: str, paths: list[str], fields: str
) -> list[Site]:
    """Sites that the rules list in the fork's files and not in the base's.

    Args:
        transformer: has rewritten both.
        base, tip: the commits.
        paths: the fork's files.
        fields: the text of the result's configuration types; a key that is a field there is none to look at.
    """
    found: list[Site] = []
    for path in paths:
        old, new = transformer.result(base, path), transformer.result(tip, path)
        known = Counter(_shape(s) for s in old.sites) if old is not None else Counter()
        for site in new.sites if new is not None else ():
            if known[_shape(site)] > 0:
                known[_shape(site)] -= 1
            elif site.rule != "CHK006" and not (  # those are looked for in the result
                site.rule == "CFG005" and _is_field(site.before, fields)
            ):
                found.append(Site(path, site.line, site.rule, f"{site.reason}; {site.todo}"))
    return found


def _shape(site: Finding) -> tuple[str, str, str]:
    return site.rule, site.before, site.reason


def _is_field(text: str, fields: str) -> bool:
    """Whether a line of a configuration file has a key that is a field."""
    key = text.partition(":")[0].strip()
    return re.search(rf"^[ \t]+{re.escape(key)}[ \t]*:", fields, re.MULTILINE) is not None
