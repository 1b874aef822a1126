"""The main job: a checkout on the old layout in, a migrated tree and an honest report out."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from codemods import __version__
from codemods.engine import output
from codemods.engine.discover import Checkout, discover, reader
from codemods.engine.keeping import without_moves
from codemods.engine.links import Links, settle_links, without
from codemods.engine.pool import default_jobs, rewrite_all, run_tasks, worker_state
from codemods.engine.project import NEW_ROOT, OLD_ROOT, Options, Placement, Project
from codemods.engine.rewrite import PYTHON_SUFFIXES, Finding, Result
from codemods.engine.target import target_table
from codemods.errors import UserError
from codemods.maps import model, select, symbols
from codemods.maps.symbols import SymbolTable
from codemods.rules import dumps, moves, renames
from codemods.rules import select as select_rules
from codemods.upstream import Upstream, require_target, resolve_upstream

Progress = Callable[[str, int, int], None]


def _silent(stage: str, done: int, total: int) -> None:
    """Say nothing of the progress."""


@dataclass(slots=True)
class Settings:
    """What the user asked for; see the options of `ling2-migrate run`.

    Attributes:
        checkout: the folder to migrate.
        upstream: folder or version of upstream's new tree.
        map: a map file instead of the shipped one.
        choice: a map that is known to fit, instead of either.
        only, skip: rule ids or families.
        jobs: worker processes; 0 runs everything in this one.
        options: choices that rules read.
        prefilter: skip files whose bytes hold nothing to do.
        keep: files that stay where they are, whatever the rules say.
    """

    checkout: Path
    upstream: str
    map: Path | None = None
    choice: select.Choice | None = None
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    jobs: int = field(default_factory=default_jobs)
    options: Options = field(default_factory=Options)
    prefilter: bool = True
    keep: frozenset[str] = frozenset()


@dataclass(slots=True)
class Migration:
    """A finished migration, before anything is written.

    Attributes:
        checkout: what was migrated.
        upstream: the tree it was migrated to.
        settings: what was asked for.
        map_base, map_target, map_why: which map, and why that one.
        map_path: the map's file.
        placements: every file of the checkout → where it goes.
        results: every file that a rule looked at.
        links: links that say something new in the output → what.
        sites: findings that belong to no rule of a file's text (placements, links, resolution).
        notes: what the user should know.
    """

    checkout: Checkout
    upstream: Upstream
    settings: Settings
    map_base: str
    map_target: str
    map_why: str
    map_path: Path
    placements: dict[str, Placement]
    results: dict[str, Result]
    links: dict[str, str] = field(default_factory=dict)
    sites: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    version: str = __version__

    @property
    def edits(self) -> list[Finding]:
        """Every edit, by file and position."""
        return [e for path in sorted(self.results) for e in self.results[path].edits]

    @property
    def listed(self) -> list[Finding]:
        """Every site for a person, by file and position."""
        found = [s for r in self.results.values() for s in r.sites] + self.sites
        return sorted(found, key=lambda s: (s.file, s.line, s.column, s.rule))

    @property
    def moved(self) -> dict[str, str]:
        """Files that change their path: old → new."""
        return {p: w.new for p, w in self.placements.items() if w.new is not None and w.new != p}

    @property
    def left_out(self) -> list[str]:
        """Files that are not in the output."""
        return sorted(p for p, w in self.placements.items() if w.new is None)

    @property
    def changes(self) -> bool:
        """Whether the output differs from the checkout."""
        return bool(self.moved or self.left_out or any(r.edits for r in self.results.values()))


@dataclass(slots=True)
class Prepared:
    """What is known of a checkout before any of its files is rewritten.

    Attributes:
        checkout: its files.
        upstream: the tree it is migrated to.
        choice: which map, and why that one.
        read: reads one of its files.
        project: what the rules may ask for, with the placements in it.
        links: its links that say something new in the output, or stay out.
    """

    checkout: Checkout
    upstream: Upstream
    choice: select.Choice
    read: Callable[[str], bytes]
    project: Project
    links: Links


def prepare(settings: Settings, progress: Progress = _silent) -> Prepared:
    """Read a checkout and work out where its files go and what its names mean; nothing is rewritten.

    Raises:
        UserError: a bad argument, see the messages.
    """
    enabled = select_rules(settings.only, settings.skip)
    checkout = discover(settings.checkout)
    upstream = require_target(resolve_upstream(settings.upstream))
    source_root = _layout(checkout)
    choice = _choose_map(settings, upstream)
    read = reader(checkout.root)
    python = [
        f.path for f in checkout.files if f.kind == "file" and f.path.endswith(PYTHON_SUFFIXES)
    ]

    old, facts, names = _survey(checkout, python, source_root, settings.jobs, progress)
    plan = dumps.DumpPlan()
    if any(i.startswith("DMP") for i in enabled):
        try:
            plan = dumps.gather(
                lambda words: _dump_facts(words, facts, checkout, python, source_root)
            )
        except Exception as error:
            raise UserError(
                f"{checkout.root}: the dump rules failed ({type(error).__name__}: {error}); "
                "run with --skip DMP, and report the fault"
            ) from error
    target = target_table(upstream.root)
    placements = moves.place(
        [f.path for f in checkout.files],
        choice.map,
        plan.modules,
        read,
        _changed(choice.map, read, source_root),
        wheel=source_root == "",
        enabled=enabled,
    )
    placements |= {path: Placement(path) for path in settings.keep if path in placements}
    links = settle_links(checkout, placements)
    placements = without(placements, links.left_out)
    project = Project(
        map=without_moves(choice.map, settings.keep, wheel=source_root == ""),
        enabled=enabled,
        options=settings.options,
        placements=placements,
        old=old,
        target=target,
        modules=moves.modules(placements, wheel=source_root == ""),
        names=renames.plan(names) if any(i.startswith("REN") for i in enabled) else {},
        dumps=plan,
        source_root=source_root,
        config_fields=_config_fields(upstream, target),
    )
    return Prepared(checkout, upstream, choice, read, project, links)


def migrate(settings: Settings, progress: Progress = _silent) -> Migration:
    """Work out the whole migration in memory; nothing is written.

    Raises:
        UserError: a bad argument, see the messages.
    """
    prepared = prepare(settings, progress)
    checkout, project, links = prepared.checkout, prepared.project, prepared.links
    placements = dict(project.placements)
    map_ = prepared.choice.map
    migration = Migration(
        checkout=checkout,
        upstream=prepared.upstream,
        settings=settings,
        map_base=map_.base.label,
        map_target=map_.target.label,
        map_why=prepared.choice.why,
        map_path=prepared.choice.path,
        placements=placements,
        results={},
        links=links.texts,
        notes=list(checkout.notes),
    )
    files = sorted((f for f in checkout.files if f.kind == "file"), key=lambda f: -f.size)
    paths = [f.path for f in files if placements[f.path].new is not None]
    for done, result in enumerate(
        rewrite_all(checkout.root, paths, project, settings.jobs, settings.prefilter), 1
    ):
        progress("rewriting", done, len(paths))
        if result.considered or result.sites:
            migration.results[result.path] = result
    _list_placements(migration, prepared.read, project.enabled)
    _list_left_alone(migration, links)
    _check_imports(migration, project)
    return migration


def _choose_map(settings: Settings, upstream: Upstream) -> select.Choice:
    """The map asked for, if it fits the checkout, else the shipped one that fits best."""
    if settings.choice is not None:
        return settings.choice
    if settings.map is None:
        return select.pick(settings.checkout, upstream)
    given = model.load(settings.map)
    found = select.require_fit(given, settings.map, settings.checkout)
    return select.Choice(given, settings.map, f"given with --map, {select.told(found)}", True)


def _layout(checkout: Checkout) -> str:
    """The folder that holds the package: "src" or "".

    Raises:
        UserError: no MaxText code of either layout.
    """
    paths = {f.path for f in checkout.files}
    for package in (OLD_ROOT, NEW_ROOT):
        for root in ("src/", ""):
            prefix = f"{root}{package}/"
            if any(p.startswith(prefix) and p.endswith(".py") for p in paths):
                return root.rstrip("/")
    if any(p.endswith(".py") and _imports_maxtext(checkout.root / p) for p in sorted(paths)):
        return "src"
    raise UserError(
        f"{checkout.root}: no MaxText code in it (looked for the packages {OLD_ROOT} and {NEW_ROOT}, at the "
        "top and below src/, and for Python that imports them); give the root of a MaxText checkout"
    )


def _imports_maxtext(path: Path) -> bool:
    try:
        data = path.read_bytes()
    except OSError:
        return False
    return b"MaxText" in data or b"import maxtext" in data or b"from maxtext" in data


# A definition's name with the model's old or new name in it.
_RENAME_WORDS = (*renames.WORDS, b"ing2")
_Surveyed = tuple[symbols.Module, dumps.DumpFacts | None, renames.RenameFacts | None]


def _survey_one(path: str) -> _Surveyed:
    state = worker_state()
    canonical = symbols.canonical(path) if state["source_root"] == "" else path
    try:
        data = (state["root"] / path).read_bytes()
    except OSError as error:
        name = symbols.module_name(canonical)
        return symbols.Module(name, canonical, False, error=str(error)), None, None
    module = symbols.scan(data, canonical)
    has_dumps = any(word in data for word in dumps.WORDS)
    has_names = any(word in data for word in _RENAME_WORDS)
    return (
        module,
        dumps.survey(path, module.name, module.package, _lenient(data)) if has_dumps else None,
        renames.survey(path, _lenient(data)) if has_names else None,
    )


def _lenient(data: bytes) -> str:
    """A Python file's text for a survey, whatever its encoding."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def _dump_facts(
    words: tuple[bytes, ...],
    known: list[dumps.DumpFacts],
    checkout: Checkout,
    python: list[str],
    source_root: str,
) -> Iterator[dumps.DumpFacts]:
    """The facts of every Python file that holds one of `words`; those of dump words are known already."""
    yield from known
    if words == dumps.WORDS:
        return
    seen = {fact.path for fact in known}
    for path in python:
        if path in seen:
            continue
        try:
            data = (checkout.root / path).read_bytes()
        except OSError:
            continue
        if any(word in data for word in words):
            name = symbols.module_name(symbols.canonical(path) if source_root == "" else path)
            facts = dumps.survey(path, name, path.endswith("__init__.py"), _lenient(data))
            if facts is not None:
                yield facts


def _survey(
    checkout: Checkout, python: list[str], source_root: str, jobs: int, progress: Progress
) -> tuple[SymbolTable, list[dumps.DumpFacts], list[renames.RenameFacts]]:
    """Read every Python file once: its symbols, what it has of the dump hooks and of the AL names."""
    found: list[symbols.Module] = []
    facts: list[dumps.DumpFacts] = []
    names: list[renames.RenameFacts] = []
    state = {"root": checkout.root, "source_root": source_root}
    for done, (path, outcome) in enumerate(run_tasks(jobs, state, _survey_one, python), 1):
        progress("reading", done, len(python))
        if isinstance(outcome, BaseException):
            name = symbols.module_name(path)
            found.append(symbols.Module(name, path, False, error="the parser crashed"))
            continue
        module, dump_facts, rename_facts = outcome
        found.append(module)
        if dump_facts is not None:
            facts.append(dump_facts)
        if rename_facts is not None:
            names.append(rename_facts)
    found.sort(key=lambda m: m.path)
    facts.sort(key=lambda f: f.path)
    return SymbolTable(found), facts, names


def _changed(
    map_: model.MoveMap, read: Callable[[str], bytes], source_root: str
) -> Callable[[str], bool]:
    """A function that says whether a file of the checkout differs from the base's."""

    def changed(path: str) -> bool:
        known = map_.blobs.get(path if source_root else symbols.canonical(path))
        data = read(path)
        blob = hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
        return known is None or not blob.startswith(known)

    return changed


def _config_fields(upstream: Upstream, table: SymbolTable) -> frozenset[str] | None:
    """The names that configuration takes: fields in upstream's types.py, keys of its base.yml, what `overlay` adds."""
    from target.integration import config_fields

    module = table.modules.get("maxtext.configs.types")
    if module is None:
        return None
    names = {
        name
        for definition in module.definitions.values()
        if definition.kind == "class"
        for name, _ in definition.fields
    }
    base = upstream.python_root / "maxtext/configs/base.yml"
    if base.is_file():
        for line in base.read_text(encoding="utf-8", errors="replace").splitlines():
            key, colon, _ = line.partition(":")
            if colon and key.replace("_", "").isalnum() and not line[0].isspace():
                names.add(key)
    return frozenset(names) | config_fields()


def _list_placements(
    migration: Migration, read: Callable[[str], bytes], enabled: Iterable[str]
) -> None:
    """List every file whose place a person has to decide."""
    for path, placement in sorted(migration.placements.items()):
        if not placement.problem or placement.rule not in enabled:
            continue
        first = read(path)[:200].decode("utf-8", "replace").splitlines()[:1]
        todo = (
            "move what is still needed of it by hand"
            if placement.new is None
            else f"decide where it belongs; it is at `{placement.new}` for now"
        )
        migration.sites.append(
            Finding(
                path,
                1,
                1,
                placement.rule,
                "report",
                first[0] if first else "",
                None,
                placement.problem,
                todo,
            )
        )


def _list_left_alone(migration: Migration, links: Links) -> None:
    """List the links and submodules that a person has to look at, and what could not be read."""
    found: list[tuple[str, str, str, str]] = []
    for path, reason in migration.checkout.skipped.items():
        found.append(
            (path, "CHK001", f"{reason}; it is not in the output", "bring it over by hand")
        )
    for path, reason in links.listed.items():
        found.append((path, "CHK004", reason, "check where it should point"))
    for entry in migration.checkout.files:
        if entry.kind == "submodule":
            reason = "a submodule; its files are not migrated"
            found.append((entry.path, "CHK004", reason, "migrate it as a checkout of its own"))
    for path, rule, reason, todo in found:
        migration.sites.append(Finding(path, 1, 1, rule, "report", path, None, reason, todo))


def _check_imports(migration: Migration, project: Project) -> None:
    """Whether every import of a rewritten file resolves in the upstream tree or in the output."""
    wheel = project.source_root == ""
    modules: list[symbols.Module] = []
    for path, placement in migration.placements.items():
        if not path.endswith(".py") or placement.new is None:
            continue
        result = migration.results.get(path)
        if result is not None and result.module is not None:
            modules.append(result.module)
            continue
        canonical = symbols.canonical(path) if wheel else path
        new = symbols.canonical(placement.new) if wheel else placement.new
        held = project.old.modules.get(symbols.module_name(canonical))
        if held is not None:
            modules.append(replace(held, name=symbols.module_name(new), path=new))
    output_table = SymbolTable(modules)
    roots = {name.split(".")[0] for name in project.modules.values() if name} | {NEW_ROOT}
    for path in sorted(migration.results):
        result = migration.results[path]
        listed = {s.line for s in result.sites}
        for imported in result.imports:
            name = imported.name
            if name.split(".")[0] not in roots or imported.old_line in listed:
                continue
            if output_table.exists(name) or project.target.exists(name):
                continue
            listed.add(imported.old_line)
            result.sites.append(
                Finding(
                    path,
                    imported.old_line,
                    1,
                    "CHK006",
                    "report",
                    name,
                    None,
                    (
                        f"`{name}` is neither in the upstream tree nor in the output"
                        if project.target.has_root(name)
                        else f"the given upstream tree has no `{name.split('.')[0]}/`, so this is the map's word alone"
                    ),
                    "find out what it should import",
                )
            )
        result.sites.sort(key=lambda s: (s.line, s.column, s.rule))


def write_tree(migration: Migration, stage: Path, progress: Progress = _silent) -> None:
    """Write the migrated tree into the folder `stage`."""
    files = migration.checkout.files
    for done, found in enumerate(files, 1):
        progress("writing", done, len(files))
        new = migration.placements[found.path].new
        if new is None:
            continue
        result = migration.results.get(found.path)
        if found.kind == "file" and result is not None and result.data is not None:
            output.write(stage, new, result.data, migration.checkout.root / found.path)
        else:
            output.carry(stage, migration.checkout, found, new, migration.links.get(found.path))
