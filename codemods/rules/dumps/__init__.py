"""DMP: strip the Argus dump hooks, and everything that only fed them.

The hooks are found by their definitions in the checkout, and followed through imports, re-exports and
assigned names. What only fed them (locals, parameters, flags, values returned) is found from all
files together, in `plan`; each file's edits fall out of it.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import libcst as cst

from codemods.engine.context import PythonFile
from codemods.engine.edits import Edit, Site, apply, settle
from codemods.rules.dumps.catalog import RULES
from codemods.rules.dumps.code import Code, Span
from codemods.rules.dumps.growth import Growth
from codemods.rules.dumps.render import Renderer
from codemods.rules.dumps.strip import CALL, DECORATOR, IMPORT, MANUAL, VALUE, Decisions, Walk
from codemods.rules.dumps.values import DEFAULT_MODULE, Callee, Hook, Outside, Type, Value, World

__all__ = [
    "RULES",
    "WORDS",
    "DumpFacts",
    "DumpPlan",
    "gather",
    "plan",
    "python",
    "survey",
]

# What the bytes of a file must hold for `survey` to be asked about it.
WORDS: tuple[bytes, ...] = (b"dump", b"argus", b"Dump", b"Argus")

_MOST_WORDS = 500


@dataclass(frozen=True, slots=True)
class DumpFacts:
    """A file that may hold hooks, for `plan`.

    Attributes:
        path: its path in the checkout.
        module_name: its dotted name, "" if it has none.
        is_package: whether it is an `__init__.py`.
        text: its text.
    """

    path: str
    module_name: str
    is_package: bool
    text: str


@dataclass(frozen=True, slots=True)
class FilePlan:
    """What is to be done to one file.

    Attributes:
        digest: of the text that it was made for.
        edits, sites: as the engine wants them.
        unused: spans of import aliases that nothing needs any more.
    """

    digest: bytes
    edits: tuple[Edit, ...] = ()
    sites: tuple[Site, ...] = ()
    unused: tuple[Span, ...] = ()


@dataclass(frozen=True)
class DumpPlan:
    """What is to be done about dumps in the whole checkout; empty where there are none.

    Attributes:
        words: what the bytes of a file must hold for `python` to be asked about it, beside `WORDS`.
        modules: dotted names of the dumper modules, which stay out of the migrated tree.
        files: path → what to do there.
        exports: dotted name → what it stands for, for Python that is no file of the checkout (notebooks).
    """

    words: tuple[bytes, ...] = ()
    modules: frozenset[str] = frozenset()
    files: dict[str, FilePlan] = field(default_factory=dict)
    exports: dict[str, Value] = field(default_factory=dict)


def survey(path: str, module_name: str, is_package: bool, text: str) -> DumpFacts | None:
    """What `plan` needs of one file; None if it cannot be parsed."""
    if _parse(path, module_name, is_package, text) is None:
        return None
    return DumpFacts(path, module_name, is_package, text)


def gather(read: Callable[[tuple[bytes, ...]], Iterable[DumpFacts]]) -> DumpPlan:
    """The plan for a checkout, from every file that matters.

    A parameter can only go when all calls of its function are seen, and these may stand in files without
    a dump word. So the plan says which names it wants to see everywhere, and is made again.

    Args:
        read: gives the facts of all files whose bytes hold one of some words.
    """
    parsed: dict[str, Code] = {}
    words = WORDS
    while True:
        for fact in read(words):
            if fact.path not in parsed:
                file = _parse(fact.path, fact.module_name, fact.is_package, fact.text)
                if file is not None:
                    parsed[fact.path] = file
        found = _plan(list(parsed.values()))
        more = (*words, *(w for w in found.words if w not in words))
        if more == words or len(more) > _MOST_WORDS:
            return found
        words = more


def plan(facts: list[DumpFacts]) -> DumpPlan:
    """What falls with the hooks, in all the files of `facts` (see `gather`)."""
    parsed = [_parse(f.path, f.module_name, f.is_package, f.text) for f in facts]
    return _plan([file for file in parsed if file is not None])


def _plan(parsed: list[Code]) -> DumpPlan:
    if not any(
        "argus" in f.text.lower() or ("dump_tensor" in f.text and "dumpable" in f.text)
        for f in parsed
    ):
        return DumpPlan()
    world = World(parsed)
    if not world.dumpers and not any(DEFAULT_MODULE.rpartition(".")[2] in f.text for f in parsed):
        return DumpPlan()
    growth = Growth(world)
    files = {f.path: _file_plan(growth, f) for f in growth.files}
    exports: dict[str, Value] = {}
    names: set[str] = set()
    for file in growth.files:
        for name, var in file.top.names.items():
            for value in world.of_var(file, var):
                if isinstance(value, Hook) and file.name:
                    exports[f"{file.name}.{name}"] = value
                    names.add(name)
    exports.update(world.hooks)
    for key, name in growth.decisions.parameters:
        function = world.functions.get(key)
        names.add(
            function.name if function is not None else key.rpartition(":")[2].rpartition(".")[2]
        )
    names |= growth.wanted | _carriers(growth)
    return DumpPlan(
        words=tuple(sorted({n.encode() for n in names if len(n) > 1 and not n.startswith("__")})),
        modules=world.dumpers,
        files=files,
        exports=exports,
    )


def _carriers(growth: Growth) -> set[str]:
    """Names of functions outside these files that are given a function whose signature is to change."""
    world = growth.world
    keys = {k for k, _ in growth.decisions.flags} | {k for k, _ in growth.decisions.parameters}
    keys |= {k[0] for k in growth._blocked_keys if isinstance(k, tuple) and isinstance(k[0], str)}
    found: set[str] = set()
    for key in keys:
        function = world.functions.get(key)
        if function is not None:
            found.add(
                function.owner.node.name
                if function.name == "__init__" and function.owner
                else function.name
            )
        elif key in world.classes:
            found.add(world.classes[key].node.name)
    for file, call in world.unresolved:
        for argument in (*call.args, *(k.value for k in call.keywords)):
            values = world.values(file, argument)
            if any(isinstance(v, Callee) and v.key in keys for v in values):
                for callee in world.values(file, call.func):
                    if isinstance(callee, Outside) and callee.name.startswith("MaxText."):
                        found.add(callee.name.rpartition(".")[2])
    return found


def _parse(path: str, name: str, is_package: bool, text: str) -> Code | None:
    try:
        return Code(path, name, is_package, text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _file_plan(growth: Growth, file: Code) -> FilePlan:
    walk = growth.walks[file]
    renderer = Renderer(file, walk.operations)
    edits = renderer.edits()
    findings = [
        *walk.findings,
        *renderer.findings,
        *(finding for owner, finding in growth.blocked if owner is file),
    ]
    sites = {}
    for finding in findings:
        span = finding.span or _node_span(file, finding.node)
        sites.setdefault((span, finding.reason), Site(*span, MANUAL, finding.reason, finding.todo))
    unused = [file.span(alias) for alias in _unused_aliases(growth, file)]
    plan_ = FilePlan(
        _digest(file.text),
        tuple(edits),
        tuple(sorted(sites.values(), key=lambda s: s.start)),
        tuple(sorted(unused)),
    )
    kept, clashes = settle(edits)
    try:
        result = apply(file.text, kept)
        ast.parse(re.sub("\r(?!\n)", "\n", result))
        broken = bool(clashes)
    except (SyntaxError, ValueError):
        broken = True
    if broken:
        first = edits[0]
        site = Site(
            first.start,
            first.end,
            MANUAL,
            "the dumps here are written in a way that cannot be taken out safely",
            "take them out by hand",
        )
        return FilePlan(plan_.digest, (), (site,), ())
    return plan_


def _node_span(file: Code, node: ast.AST) -> Span:
    if isinstance(
        node, (ast.expr, ast.stmt, ast.arg, ast.keyword, ast.alias, ast.ExceptHandler)
    ):
        start, end = file.span(node)
        if isinstance(node, (ast.stmt, ast.ExceptHandler)):  # the header says it all
            line = file.line_span(file.line_of(start))
            end = min(end, line[0] + len(file.text[line[0] : line[1]].rstrip()))
        return start, end
    return 0, 0


def _unused_aliases(growth: Growth, file: Code) -> Iterable[ast.alias]:
    walk = growth.walks[file]
    for scope in file.scopes.values():
        for var in scope.names.values():
            imports = [s for s in var.stores if s.kind == "import"]
            for store in imports:
                assert isinstance(store.node, ast.alias)
                statement = store.stmt
                if (
                    isinstance(statement, ast.Import)
                    and not store.node.asname
                    and "." in store.node.name
                ):
                    uses = [
                        n for n in var.loads if _chain(file, n).startswith(f"{store.node.name}.")
                    ]
                    machinery = walk.imports_machinery(statement, store.node)
                    if (machinery or uses) and all(n in walk.gone for n in uses):
                        yield store.node
                elif var in growth.decisions.variables:
                    yield store.node


def _chain(file: Code, node: ast.expr) -> str:
    """`a.b.c.` of the attributes that follow a name."""
    text = node.id + "." if isinstance(node, ast.Name) else ""
    parent = file.parents.get(node)
    while isinstance(parent, ast.Attribute) and parent.value is node:
        text += parent.attr + "."
        node, parent = parent, file.parents.get(parent)
    return text


def python(file: PythonFile) -> None:
    """Strip the dumps from one Python file, by the project's plan, and say which imports that frees."""
    dumps = file.project.dumps
    if not dumps.modules and not dumps.files and not dumps.exports:
        return
    if file.module_name in dumps.modules:
        return
    found = dumps.files.get(file.path)
    if found is None or found.digest != _digest(file.text):
        data = file.text.encode("utf-8", "surrogatepass")
        if not any(word in data for word in (*WORDS, *dumps.words)):
            return
        found = _embedded(file, dumps)
        if found is None:
            return
    rules = {rule.id for rule in RULES if rule.tier != "report" and rule.id != IMPORT}
    everything = all(file.enabled(rule) for rule in rules)
    for edit in found.edits:
        if everything or edit.rule in (DECORATOR, CALL, VALUE):
            file.edit(edit.rule, (edit.start, edit.end), edit.new, edit.reason)
    for site in found.sites:
        file.site(site.rule, (site.start, site.end), site.reason, site.todo)
    if everything and file.enabled(IMPORT):
        aliases = set(found.unused)
        if aliases:
            for node in file.tree.walk():
                if isinstance(node, cst.ImportAlias) and file.span(node) in aliases:
                    file.unused.add(node)


def _embedded(file: PythonFile, dumps: DumpPlan) -> FilePlan | None:
    """The plan for Python that was not among the files of the checkout: a notebook cell, a heredoc."""
    code = _parse(file.path, file.module_name, file.is_package, file.text)
    if code is None:
        return None
    world = World([code], dumps.exports)
    world.hooks.update({n: v for n, v in dumps.exports.items() if isinstance(v, Hook)})
    world.dumpers = dumps.modules
    return _file_plan(Growth(world, whole=False), code)
