"""From the files of a checkout to what is to be done in each."""

from __future__ import annotations

import ast
import hashlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from codemods.engine.edits import Edit, Site, apply, settle
from codemods.rules.dumps.code import Code, Span
from codemods.rules.dumps.growth import FLAG, Growth, handle
from codemods.rules.dumps.questions import MANUAL, Decisions, Finding
from codemods.rules.dumps.render import Renderer
from codemods.rules.dumps.strip import Walk
from codemods.rules.dumps.values import (
    DEFAULT_MODULE,
    Callee,
    Hook,
    Outside,
    Value,
    World,
    is_dumper,
)

# What the bytes of a file must hold for `survey` to be asked about it.
WORDS: tuple[bytes, ...] = (b"dump", b"argus", b"Dump", b"Argus")
# A checkout where dumps touch more names than this is looked at as far as that.
_MOST_WORDS = 500
_DEEPEST = 30_000


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
        alone: the edits that hold when not all rules run: nothing falls but the hooks.
        unused: spans of import aliases that nothing needs any more.
    """

    digest: bytes
    edits: tuple[Edit, ...] = ()
    sites: tuple[Site, ...] = ()
    unused: tuple[Span, ...] = ()
    alone: tuple[Edit, ...] = ()


@dataclass(frozen=True)
class DumpPlan:
    """What is to be done about dumps in the whole checkout; empty where there are none.

    Attributes:
        words: what the bytes of a file must hold for `python` to be asked about it, beside `WORDS`.
        modules: dotted names of the dumper modules, which stay out of the migrated tree.
        files: path → what to do there, for every file that was looked at.
        exports: dotted name → what it stands for, for Python that is no file of the checkout (notebooks).
        changed: names of functions that are gone, or take or return less than before.
    """

    words: tuple[bytes, ...] = ()
    modules: frozenset[str] = frozenset()
    files: dict[str, FilePlan] = field(default_factory=dict)
    exports: dict[str, Value] = field(default_factory=dict)
    changed: frozenset[str] = frozenset()


def survey(path: str, module_name: str, is_package: bool, text: str) -> DumpFacts | None:
    """What `plan` needs of one file; None if it cannot be parsed."""
    try:
        ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return DumpFacts(path, module_name, is_package, text)


@contextmanager
def deep() -> Iterator[None]:
    """Room for long chains of operators and of `elif`, which nest one level for each link."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, _DEEPEST))
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


class Sources:
    """Files of the checkout, parsed when they are first needed."""

    def __init__(self) -> None:
        self.facts: dict[str, DumpFacts] = {}
        self._parsed: dict[str, Code | None] = {}

    def add(self, facts: Iterable[DumpFacts]) -> None:
        for fact in facts:
            self.facts.setdefault(fact.path, fact)

    def get(self, fact: DumpFacts) -> Code | None:
        if fact.path not in self._parsed:
            self._parsed[fact.path] = parse(fact)
        return self._parsed[fact.path]

    def holding(self, words: Iterable[str]) -> list[Code]:
        """The parsed files that hold one of some words."""
        pattern = re.compile("|".join(re.escape(w) for w in sorted(words)))
        found = [self.get(f) for f in self.facts.values() if pattern.search(f.text)]
        return [file for file in found if file is not None]


def gather(read: Callable[[tuple[bytes, ...]], Iterable[DumpFacts]]) -> DumpPlan:
    """The plan for a checkout, from every file that matters.

    A parameter can only go when all calls of its function are seen, and these may stand in files without
    a dump word. So the plan says which names it wants to see everywhere, and is made again.

    Args:
        read: gives the facts (see `survey`) of all Python files whose bytes hold one of some words.
    """
    sources = Sources()
    words = WORDS
    while True:
        sources.add(read(words))
        with deep():
            found = _plan(sources, {w.decode() for w in words if w not in WORDS})
        more = (*words, *(w for w in found.words if w not in words))
        if more == words or len(more) > _MOST_WORDS:
            return found
        words = more


def plan(facts: list[DumpFacts]) -> DumpPlan:
    """What falls with the hooks, if `facts` are of all files that matter (see `gather`)."""
    sources = Sources()
    sources.add(facts)
    with deep():
        return _plan(sources, set())


def _plan(sources: Sources, known: set[str]) -> DumpPlan:
    words = {"argus", "Argus", FLAG}
    for fact in sources.facts.values():
        stem = fact.module_name.rpartition(".")[2]
        if "argus" in stem or ("def dump_tensor" in fact.text and "def dumpable" in fact.text):
            file = sources.get(fact)
            if file is not None and file.name and is_dumper(file):
                words |= {name.rpartition(".")[2] for name in World([file]).hooks}
                words.add(stem)
    if len(words) == 3 and not any(
        DEFAULT_MODULE.rpartition(".")[2] in f.text for f in sources.facts.values()
    ):
        return DumpPlan()
    words |= known
    while True:
        growth = Growth(World(sources.holding(words)))
        wanted = _wanted(growth)
        if wanted <= words or len(words) > _MOST_WORDS:
            return _result(growth, wanted)
        words |= wanted


def _result(growth: Growth, wanted: set[str]) -> DumpPlan:
    world, decisions = growth.world, growth.decisions
    exports: dict[str, Value] = dict(world.hooks)
    for file in growth.files:
        for name, var in file.top.names.items():
            for value in world.of_var(file, var):
                if isinstance(value, Hook) and file.name:
                    exports[f"{file.name}.{name}"] = value
    keys = {key for key, _ in (*decisions.parameters, *decisions.results)} | decisions.functions
    return DumpPlan(
        words=tuple(sorted(name.encode() for name in wanted)),
        modules=world.dumpers,
        files={file.path: file_plan(growth, file) for file in growth.files},
        exports=exports,
        changed=frozenset(_handles(world, keys)),
    )


def _handles(world: World, keys: Iterable[str]) -> Iterator[str]:
    """The names by which functions of these keys are called."""
    for key in keys:
        if key in world.functions:
            yield handle(world.functions[key])
        elif key in world.classes:
            yield world.classes[key].node.name


def _wanted(growth: Growth) -> set[str]:
    """Names whose uses, wherever they are, matter for the decisions."""
    world, decisions = growth.world, growth.decisions
    names = set(growth.wanted) | growth.aliases | {name for _, name in decisions.flags}
    keys = {key for key, _ in (*decisions.flags, *decisions.parameters)}
    keys |= {k[0] for k in growth.blocked_keys if isinstance(k, tuple) and isinstance(k[0], str)}
    names.update(_handles(world, keys))
    for file, call in world.unresolved:  # functions elsewhere that are given one of these
        for argument in (*call.args, *(k.value for k in call.keywords)):
            if isinstance(argument, (ast.Name, ast.Attribute)):
                values = world.values(file, argument)
                if any(isinstance(v, Callee) and v.key in keys for v in values):
                    for callee in world.values(file, call.func):
                        if isinstance(callee, Outside) and "." in callee.name:
                            names.add(callee.name.rpartition(".")[2])
    return {name for name in names if len(name) > 1 and not name.startswith("__")}


def parse(fact: DumpFacts) -> Code | None:
    """The parsed file; None if it is no Python."""
    try:
        return Code(fact.path, fact.module_name, fact.is_package, fact.text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def digest(text: str) -> bytes:
    """What a plan remembers a text by."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def file_plan(growth: Growth, file: Code) -> FilePlan:
    """The edits, sites and freed imports of one file; no edits if they would leave no valid Python."""
    renderer = Renderer(file, growth.walks[file].operations)
    edits = renderer.edits()
    alone = edits and Renderer(file, Walk(growth.world, file, Decisions()).operations).edits()
    findings = [
        *growth.walks[file].findings,
        *renderer.findings,
        *(finding for owner, finding in growth.blocked if owner is file),
    ]
    if not (_sound(file.text, edits) and _sound(file.text, alone)):
        reason = "the dumps here are written in a way that cannot be taken out safely"
        site = Site(edits[0].start, edits[0].end, MANUAL, reason, "take them out by hand")
        return FilePlan(digest(file.text), (), (site,))
    sites: dict[tuple[Span, str], Site] = {}
    for finding in findings:
        span = finding.span or _span(file, finding)
        sites.setdefault((span, finding.reason), Site(*span, MANUAL, finding.reason, finding.todo))
    return FilePlan(
        digest(file.text),
        tuple(edits),
        tuple(sorted(sites.values(), key=lambda s: s.start)),
        tuple(sorted(file.span(alias) for alias in _unused_aliases(growth, file))),
        tuple(alone),
    )


def _sound(text: str, edits: list[Edit]) -> bool:
    """Whether all edits can be made together and leave valid Python."""
    kept, clashes = settle(edits)
    try:
        ast.parse(re.sub("\r(?!\n)", "\n", apply(text, kept)))
    except (SyntaxError, ValueError):
        return False
    return not clashes


def _span(file: Code, finding: Finding) -> Span:
    node = finding.node
    assert isinstance(node, (ast.expr, ast.stmt, ast.arg, ast.ExceptHandler))
    start, end = file.span(node)
    if isinstance(node, (ast.stmt, ast.ExceptHandler)):  # the header says it all
        first, last = file.line_span(file.line_of(start))
        end = min(end, first + len(file.text[first:last].rstrip()))
    return start, end


def _unused_aliases(growth: Growth, file: Code) -> Iterator[ast.alias]:
    walk = growth.walks[file]
    for scope in file.scopes.values():
        for var in scope.names.values():
            for store in var.stores:
                if not isinstance(store.node, ast.alias):
                    continue
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
    """`a.b.c.` of a name and the attributes that follow it."""
    text = node.id + "." if isinstance(node, ast.Name) else ""
    parent = file.parents.get(node)
    while isinstance(parent, ast.Attribute) and parent.value is node:
        text += parent.attr + "."
        node, parent = parent, file.parents.get(parent)
    return text
