"""What several test modules share: migrating a few texts without a command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from codemods.engine.project import Options, Project
from codemods.engine.rewrite import Finding, rewrite
from codemods.engine.run import Migration, Settings, migrate
from codemods.maps.model import MoveMap
from codemods.maps.symbols import SymbolTable
from codemods.rules import dumps, moves, renames, select

UPSTREAM = "0.2.5"


@dataclass
class Outcome:
    """Texts after a migration, by new path, and what was found."""

    texts: dict[str, str] = field(default_factory=dict)
    edits: list[Finding] = field(default_factory=list)
    sites: list[Finding] = field(default_factory=list)

    def listed(self, path: str, line: int) -> list[Finding]:
        """The sites of one line of the checkout."""
        return [s for s in self.sites if s.file == path and s.line == line]


def write_files(root: Path, files: Mapping[str, str | bytes]) -> Path:
    """Write a checkout from texts."""
    for path, text in files.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text.encode() if isinstance(text, str) else text)
    return root


def migrate_files(
    root: Path,
    files: Mapping[str, str | bytes],
    *,
    only: tuple[str, ...] = (),
    skip: tuple[str, ...] = (),
    options: Options | None = None,
    prefilter: bool = True,
) -> Outcome:
    """Migrate texts as a checkout against the released upstream, with the shipped map that fits."""
    write_files(root, files)
    settings = Settings(
        root,
        UPSTREAM,
        only=only,
        skip=skip,
        jobs=0,
        options=options or Options(),
        prefilter=prefilter,
    )
    return outcome_of(migrate(settings))


def outcome_of(migration: Migration) -> Outcome:
    """The texts of a migration."""
    outcome = Outcome(edits=migration.edits, sites=migration.listed)
    for path, placement in migration.placements.items():
        if placement.new is not None:
            result = migration.results.get(path)
            data = result.data if result is not None else None
            if data is None:
                data = (migration.checkout.root / path).read_bytes()
            outcome.texts[placement.new] = data.decode("utf-8", "surrogateescape")
    return outcome


def rewrite_with_map(
    files: Mapping[str, str],
    map_: MoveMap,
    target: Mapping[str, str],
    *,
    names: Mapping[str, str] | None = None,
    options: Options | None = None,
) -> Outcome:
    """Run the rules on texts with a map made by hand and a target tree given as texts."""
    old = SymbolTable.from_sources({p: t.encode() for p, t in files.items() if p.endswith(".py")})
    facts = []
    for path, text in files.items():
        if path.endswith(".py"):
            module = next(m for m in old.modules.values() if m.path == path)
            found = dumps.survey(path, module.name, module.package, text)
            if found is not None:
                facts.append(found)
    plan = dumps.plan(facts)
    placements = moves.place(files, map_, plan.modules, lambda p: files[p].encode(), lambda p: True)
    project = Project(
        map=map_,
        enabled=select(),
        options=options or Options(),
        placements=placements,
        old=old,
        target=SymbolTable.from_sources({p: t.encode() for p, t in target.items()}),
        modules=moves.modules(placements),
        names=(
            renames.plan(renames.survey(p, t) for p, t in files.items()) if names is None else names
        ),
        dumps=plan,
    )
    outcome = Outcome()
    for path, text in files.items():
        result = rewrite(path, text.encode(), project, None)
        new = placements[path].new
        if new is not None:
            outcome.texts[new] = text if result.data is None else result.data.decode()
        outcome.edits += result.edits
        outcome.sites += result.sites
    return outcome
