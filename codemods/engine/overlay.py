"""Putting a set of new files, and the edits that wire them in, into a copy of an upstream tree."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from codemods.engine import output
from codemods.engine.anchors import AnchoredFile, AnchorError
from codemods.engine.discover import discover
from codemods.engine.edits import Edit, apply, settle
from codemods.engine.source import Encoding, decode
from codemods.engine.tree import UnparsableError
from codemods.maps import symbols
from codemods.maps.symbols import SymbolTable, files_below
from codemods.rules.base import Rule
from codemods.upstream import Upstream, require_target, resolve_upstream

PACKAGE = "maxtext"


@dataclass(frozen=True, slots=True)
class Step:
    """What an integration rule does to one file of upstream.

    Attributes:
        path: the file, from the folder that holds the package.
        edit: finds the anchors and leaves the edits; all of them are made, or none.
        optional: only some versions of upstream have the file.
    """

    path: str
    edit: Callable[[AnchoredFile], None]
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Integration:
    """A rule that wires new files into upstream's: all of its edits are made, or none.

    Attributes:
        rule: the rule.
        steps: what it does to which file.
        provides: names that it defines for the edits of other rules, which are not made without it.
    """

    rule: Rule
    steps: tuple[Step, ...]
    provides: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Missing:
    """An edit that was not made.

    Attributes:
        path: the file, from the folder that holds the package.
        rule: the rule.
        reason: what was looked for and is not there.
    """

    path: str
    rule: str
    reason: str


@dataclass(slots=True)
class Overlay:
    """An overlay before it is written.

    Attributes:
        upstream: the tree that is copied.
        added: path → file that is put in, from the folder that holds the package.
        replaced: those of `added` that upstream has with other content.
        edited: path → new content of a file of upstream.
        edits: path → the edits that were made in it.
        missing: what could not be edited.
    """

    upstream: Upstream
    added: dict[str, Path] = field(default_factory=dict)
    replaced: list[str] = field(default_factory=list)
    edited: dict[str, bytes] = field(default_factory=dict)
    edits: dict[str, list[Edit]] = field(default_factory=dict)
    missing: list[Missing] = field(default_factory=list)


def overlay(spec: str, out: Path, new_files: Path, integrations: Iterable[Integration]) -> Overlay:
    """Make `out` a copy of an upstream tree with the new files and the edits in it, whole or not at all.

    Args:
        spec: the upstream tree: a folder or a version.
        out: the folder to make.
        new_files: see `plan`.
        integrations: the rules.

    Raises:
        UserError: a bad argument; nothing has been written then.
    """
    upstream = require_target(resolve_upstream(spec))
    output.check_output(out, upstream.root, "the upstream tree", reports=())
    made = plan(upstream, new_files, integrations)
    with output.staged(out) as stage:
        write_overlay(made, stage)
    return made


def plan(upstream: Upstream, new_files: Path, integrations: Iterable[Integration]) -> Overlay:
    """Work out an overlay in memory; nothing is written.

    Args:
        upstream: the tree to copy.
        new_files: a folder with the package's new files, laid out as in the package.
        integrations: the rules.
    """
    made = Overlay(upstream)
    for path in files_below(new_files):
        name = f"{new_files.name}/{path}"
        made.added[name] = new_files / path
        held = upstream.python_root / name
        if held.is_file() and held.read_bytes() != made.added[name].read_bytes():
            made.replaced.append(name)
    integrations = tuple(integrations)
    steps: dict[str, list[tuple[str, Step]]] = {}
    for integration in integrations:
        for step in integration.steps:
            steps.setdefault(step.path, []).append((integration.rule.id, step))
    drafts = {path: draft for path, todo in steps.items() if (draft := _draft(made, path, todo))}
    imports = _imports_of_added(made)
    while True:  # an edit that is withheld can take away what another one needs
        withheld = {missing.rule for missing in made.missing}
        found = _make(made, drafts, withheld)
        found = found or _unmet(made, drafts, integrations, withheld, imports)
        if not found:
            break
        made.missing += found
    made.missing += _rest_of_rules(made, drafts)
    made.missing += (
        Missing(path, "CHK006", f"it imports `{name}`, which this upstream does not have")
        for path, name in _unresolved(made, imports)
    )
    made.missing.sort(key=lambda m: (m.rule, m.path))
    return made


@dataclass(frozen=True, slots=True)
class _Draft:
    """A file of upstream and all that was found to change in it."""

    text: str
    encoding: Encoding
    edits: list[Edit]

    def by_rule(self) -> dict[str, list[Edit]]:
        """The edits of each rule."""
        rules: dict[str, list[Edit]] = {}
        for edit in self.edits:
            rules.setdefault(edit.rule, []).append(edit)
        return rules


def _draft(made: Overlay, path: str, steps: list[tuple[str, Step]]) -> _Draft | None:
    """Find what the steps change in one file; None if there is nothing to edit."""
    full = made.upstream.python_root / path
    if not full.is_file():
        for rule, step in steps:
            if not step.optional:
                made.missing.append(Missing(path, rule, "there is no such file"))
        return None
    try:
        text, encoding = decode(full.read_bytes(), python=True)
        edits, missing = _find(path, text, steps)
    except UnparsableError as error:
        reason = f"the file cannot be edited ({error.reason})"
        made.missing += [Missing(path, rule, reason) for rule, _ in steps]
        return None
    made.missing += missing
    return _Draft(text, encoding, edits)


def _make(made: Overlay, drafts: Mapping[str, _Draft], withheld: set[str]) -> list[Missing]:
    """Make the edits of all rules but those that are withheld; what of them cannot be made."""
    made.edits, made.edited = {}, {}
    missing: list[Missing] = []
    for path, draft in drafts.items():
        wanted = [edit for edit in draft.edits if edit.rule not in withheld]
        try:
            edits, clashes = _settled(path, draft.text, wanted)
        except UnparsableError as error:
            reason = f"the file cannot be edited ({error.reason})"
            missing += [Missing(path, rule, reason) for rule in sorted({e.rule for e in wanted})]
            continue
        missing += clashes
        if edits:
            made.edits[path] = edits
            made.edited[path] = draft.encoding.encode(apply(draft.text, edits))
    return missing


def run_steps(
    path: str, text: str, steps: Iterable[tuple[str, Step]]
) -> tuple[list[Edit], list[Missing]]:
    """The edits of one file's text, in order, and what was not found in it.

    Args:
        path: the file, for messages.
        text: its text.
        steps: rule ids and what they do.

    Raises:
        UnparsableError: the text is no Python, or would be none any more.
    """
    found, missing = _find(path, text, steps)
    edits, clashes = _settled(path, text, found)
    return edits, missing + clashes


def _find(
    path: str, text: str, steps: Iterable[tuple[str, Step]]
) -> tuple[list[Edit], list[Missing]]:
    """What the steps would change in a file, and which of them do not find their place."""
    file = AnchoredFile(path, text)
    missing: list[Missing] = []
    for rule, step in steps:
        file.rule = rule
        before = len(file.edits)
        try:
            step.edit(file)
        except AnchorError as error:
            del file.edits[before:]
            missing.append(Missing(path, rule, str(error)))
        except Exception as error:  # one edit must not cost the user all the others
            del file.edits[before:]
            fault = f"the rule failed ({type(error).__name__}: {error}); report the fault"
            missing.append(Missing(path, rule, fault))
    return file.ordered(), missing


def _settled(path: str, text: str, found: list[Edit]) -> tuple[list[Edit], list[Missing]]:
    """The edits that can be made together, in order, and whose cannot."""
    edits, clashes = settle(found)
    missing = []
    for _, dropped in clashes:
        missing.append(Missing(path, dropped.rule, "another rule changes the same place"))
        edits = [edit for edit in edits if edit.rule != dropped.rule]
    if edits:
        try:
            _parsed(apply(text, edits))
        except SyntaxError as error:
            raise UnparsableError(f"edited, it would be no Python: {error}") from None
    return edits, missing


def _unmet(
    made: Overlay,
    drafts: Mapping[str, _Draft],
    integrations: Iterable[Integration],
    withheld: set[str],
    added: list[tuple[str, str]],
) -> list[Missing]:
    """Edits whose names or imports this tree would not have: they would break it for all models."""
    missing = [
        Missing(path, rule, f"it needs `{name}`, which {integration.rule.id} does not give here")
        for integration in integrations
        if integration.rule.id in withheld
        for name in integration.provides
        for path, draft in drafts.items()
        for rule, edits in draft.by_rule().items()
        if rule not in withheld and any(_mentions(edit.new, name) for edit in edits)
    ]
    if missing:
        return missing
    wired = [
        (path, name)
        for path, data in made.edited.items()
        for name in sorted(_imported(data) - _imported(drafts[path].text))
    ]
    unresolved = set(_unresolved(made, [*added, *wired]))
    broken = _broken(added, unresolved)
    for path, name in wired:
        module = next((m for m in broken if name == m or name.startswith(f"{m}.")), None)
        if module:
            reason = f"it would import `{module}`, which cannot be imported here"
        elif (path, name) in unresolved:
            reason = f"it would import `{name}`, which is not there"
        else:
            continue
        text = drafts[path].text
        missing += [
            Missing(path, rule, reason)
            for rule, edits in drafts[path].by_rule().items()
            if rule not in withheld and name in _imported(apply(text, settle(edits)[0]))
        ]
    return missing


def _mentions(source: str, name: str) -> bool:
    """Whether code uses a name, other than in a quoted form that has a default."""
    return re.search(rf"(?<![\"'\w]){name}(?!\w)", source) is not None


def _broken(added: list[tuple[str, str]], unresolved: set[tuple[str, str]]) -> list[str]:
    """The new modules that cannot be imported: of what they import, or of what that imports, something is not there."""
    imports: dict[str, list[str]] = {}
    broken = set()
    for path, name in added:
        module = symbols.module_name(path)
        imports.setdefault(module, []).append(name)
        if (path, name) in unresolved:
            broken.add(module)
    while True:
        more = {
            module
            for module, names in imports.items()
            if module not in broken
            and any(name == b or name.startswith(f"{b}.") for name in names for b in broken)
        }
        if not more:
            return sorted(broken)
        broken |= more


def _rest_of_rules(made: Overlay, drafts: Mapping[str, _Draft]) -> list[Missing]:
    """The edits that could have been made, of rules that could not be made as a whole."""
    first: dict[str, Missing] = {}
    for missing in made.missing:
        first.setdefault(missing.rule, missing)
    listed = {(missing.path, missing.rule) for missing in made.missing}
    return [
        Missing(path, rule, f"it is of no use without the edits of {first[rule].path}")
        for path, draft in drafts.items()
        for rule in draft.by_rule()
        if rule in first and (path, rule) not in listed
    ]


def _imports_of_added(made: Overlay) -> list[tuple[str, str]]:
    """What the new files import of the package, by file."""
    return [
        (path, name)
        for path, source in made.added.items()
        if path.endswith(".py")
        for name in sorted(_imported(source.read_bytes()))
    ]


def _unresolved(made: Overlay, imports: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Those of the imports that neither upstream nor the new files have."""
    sources: dict[str, bytes | None] = {}
    for _, name in imports:
        parts = name.split(".")
        for depth in range(1, len(parts) + 1):
            stem = "/".join(parts[:depth])
            for path in (f"{stem}.py", f"{stem}/__init__.py"):
                if path not in sources and (data := _content(made, path)) is not None:
                    sources[path] = data
    table = SymbolTable.from_sources({symbols.canonical(p): data for p, data in sources.items()})
    return [(path, name) for path, name in imports if not table.exists(name)]


def _parsed(source: bytes | str) -> ast.Module:
    """The tree of a Python source."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # upstream's own invalid escapes
        return ast.parse(source)


def _imported(source: bytes | str) -> set[str]:
    """The modules, and the names in modules, that a file imports from the package."""
    names: set[str] = set()
    for node in ast.walk(_parsed(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in names if name.split(".")[0] == PACKAGE}


def _content(made: Overlay, path: str) -> bytes | None:
    """A file of the package as the overlay has it."""
    if path in made.added:
        return made.added[path].read_bytes()
    if path in made.edited:
        return made.edited[path]
    try:
        return (made.upstream.python_root / path).read_bytes()
    except OSError:
        return None


def write_overlay(made: Overlay, stage: Path) -> None:
    """Write the tree into the folder `stage`: of a checkout what git knows, of installed packages MaxText."""
    checkout = discover(made.upstream.root)
    tops = _tops(made.upstream)
    for found in checkout.files:
        if tops is None or PurePosixPath(found.path).parts[0] in tops:
            output.carry(stage, checkout, found, found.path)
    package = stage / made.upstream.python_root.relative_to(made.upstream.root)
    for path, data in made.edited.items():
        output.write(package, path, data, made.upstream.python_root / path)
    for path, source in made.added.items():
        output.write(package, path, source.read_bytes(), source)


def _tops(upstream: Upstream) -> set[str] | None:
    """The top-level names that came with MaxText where other packages may lie beside it; else None."""
    if not upstream.wheel:
        return None
    tops = {PACKAGE}
    for record in upstream.root.glob(f"{PACKAGE}-*.dist-info/RECORD"):
        for line in record.read_text(encoding="utf-8", errors="replace").splitlines():
            tops.add(line.split("/")[0])
    return tops
