"""The trees of a branch as they would be on the new layout."""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from codemods.engine.pool import run_tasks, worker_state
from codemods.engine.project import Placement, Project
from codemods.engine.rewrite import Finding, Prefilter, Result, rewrite
from codemods.engine.run import Progress, Settings, prepare
from codemods.errors import UserError
from codemods.maps import build, model, select, symbols
from codemods.rebase.store import Entry, Store, Tree
from codemods.rules import dumps
from codemods.upstream import cache_folder

# Rules that leave a file as it is because they cannot handle it.
_FAILED = ("CHK001", "CHK003")


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A file on the new layout.

    Attributes:
        path: its path there.
        entry: its mode and content there.
        failure: why the codemods could not handle it; "" if they could.
    """

    path: str
    entry: Entry
    failure: str = ""


@dataclass(slots=True)
class Virtual:
    """A commit's files on the new layout, as far as the branch touches them.

    Attributes:
        files: path on the new layout → the file.
        origin: path on the new layout → path in the commit.
        left_out: path in the commit → why it has no place on the new layout.
    """

    files: dict[str, Rewritten] = field(default_factory=dict)
    origin: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def entry(self, path: str) -> Entry | None:
        """The file at a path of the new layout."""
        found = self.files.get(path)
        return found.entry if found else None


def map_for(store: Store, base: str, onto: str, progress: Progress) -> select.Choice:
    """The map from one upstream commit to another: shipped, kept from an earlier run, or built from history.

    Raises:
        UserError: the history between them cannot be read.
    """
    for path in select.shipped():
        left, _, right = path.name.removesuffix(".json.gz").partition("--")
        if base.startswith(left) and onto.startswith(right):
            return select.Choice(model.load(path), path, "it is the map between the two", True)
    digest = hashlib.sha256(b"".join(Path(str(m.__file__)).read_bytes() for m in _MAP_CODE))
    name = f"map-{base[:12]}--{onto[:12]}-{digest.hexdigest()[:12]}.json.gz"
    path = cache_folder() / name
    if path.is_file():
        return select.Choice(model.load(path), path, "kept from an earlier run", True)
    built = build.build(
        store.path,
        base,
        onto,
        progress=lambda done, total, what: progress("following moves", done, total),
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".partial-{name}")
        model.dump(built, partial)
        partial.replace(path)
    except OSError:
        pass  # the next run builds it again
    return select.Choice(built, path, "built from the history between the two", True)


_MAP_CODE = (build, model, symbols)


class Transformer:
    """Puts trees of one branch on the new layout; each content of a path is rewritten once.

    All trees are rewritten with the same knowledge (map, placements, names), which comes from all of them, so
    what the rules make of a file depends on its path and content alone. Only what to do about dump hooks follows from
    a whole tree, and is found out for each.
    """

    def __init__(
        self,
        store: Store,
        commits: list[str],
        upstream: Path,
        choice: select.Choice,
        scratch: Path,
        *,
        only: tuple[str, ...] = (),
        skip: tuple[str, ...] = (),
        jobs: int = 0,
        progress: Progress = lambda stage, done, total: None,
    ) -> None:
        """Read the branch.

        Args:
            store: where the commits are.
            commits: every commit (or tree) that is asked for, the newest first.
            upstream: the new upstream's tree, as a folder.
            choice: the map from the branch's base to it.
            scratch: an empty folder to work in.
            only, skip: rule ids or families.
            jobs: worker processes; 0 works in this one.
            progress: told how far it is.

        Raises:
            UserError: a commit holds no MaxText code, or a rule failed on the whole.
        """
        self._store = store
        self._jobs = jobs
        self.results: dict[tuple[str, str, bytes], Result | None] = {}
        self._commits = commits
        union: Tree = {}
        for commit in commits:
            for path, entry in store.entries(commit).items():
                union.setdefault(path, entry)
        folder = scratch / "union"
        _write_files(store, union, folder)
        # What upstream has not moved but changed where it was is no leftover there: it stays.
        left = {p for p, entry in choice.map.paths.items() if entry.new is None}
        keep = frozenset(p for p in left & union.keys() if os.path.lexists(upstream / p))
        settings = Settings(
            folder, str(upstream), choice=choice, only=only, skip=skip, keep=keep, jobs=jobs
        )
        self._prepared = prepare(settings, progress)
        self.project = self._prepared.project
        self._blobs = scratch / "blobs"
        self._blobs.mkdir()
        self._plans: dict[str, dumps.DumpPlan] = {}

    @property
    def placements(self) -> Mapping[str, Placement]:
        """Where each file of any commit goes."""
        return self.project.placements

    def step(self, before: str, after: str) -> tuple[Virtual, Virtual]:
        """What differs between two of the commits, as it is in each of them on the new layout."""
        old, new = self._store.entries(before), self._store.entries(after)
        paths = {p for p in old.keys() | new.keys() if old.get(p) != new.get(p)}
        for commit in (before, after):
            plan = self._plan(commit)
            if plan is not None:
                paths |= plan.files.keys()
        return self._rewrite(before, paths), self._rewrite(after, paths)

    def result(self, commit: str, path: str) -> Result | None:
        """What the rules did to a touched file of a commit; None if it holds nothing for them."""
        entry = self._store.entries(commit).get(path)
        if entry is None:
            return None
        return self.results.get((path, entry.blob, self._plan_key(commit, path)))

    def _plan(self, commit: str) -> dumps.DumpPlan | None:
        """What to do about dump hooks in a commit; None where no commit has any."""
        if not self.project.dumps.files:
            return None
        if commit not in self._plans:
            self._plans[commit] = self._dump_plan(commit)
        return self._plans[commit]

    def _plan_key(self, commit: str, path: str) -> bytes:
        plan = self._plan(commit)
        if plan is None:
            return b""
        shared = (plan.words, plan.modules, plan.changed, sorted(plan.exports))
        return hashlib.sha256(pickle.dumps((plan.files.get(path), shared))).digest()

    def _rewrite(self, commit: str, paths: set[str]) -> Virtual:
        tree = self._store.entries(commit)
        virtual = Virtual()
        wanted: dict[str, tuple[str, Path]] = {}
        keys: dict[str, tuple[str, str, bytes]] = {}
        for path in sorted(paths & tree.keys()):
            entry = tree[path]
            key = (path, entry.blob, self._plan_key(commit, path))
            keys[path] = key
            if not entry.regular or key in self.results:
                continue
            content = self._store.read(entry.blob)
            if content is None:
                continue
            file = self._blobs / entry.blob
            file.write_bytes(content)
            wanted[path] = (path, file)
        plan = self._plan(commit)
        project = self.project if plan is None else replace(self.project, dumps=plan)
        for path, result in _rewrite_files(project, wanted, self._jobs):
            self.results[keys[path]] = result
        for path, key in keys.items():
            self._put(virtual, path, tree[path], self.results.get(key))
        return virtual

    def _put(self, virtual: Virtual, path: str, entry: Entry, result: Result | None) -> None:
        placement = self.placements[path] if path in self.placements else Placement(path)
        if placement.new is None:
            virtual.left_out[path] = placement.why or placement.problem or "it has no new place"
            return
        failure = ""
        if entry.regular and result is None:
            failure = "its content is not in this repository (a partial clone)"
        if result is not None:
            failure = next((s.reason for s in result.sites if s.rule in _FAILED), "")
            if result.data is not None:
                entry = Entry(entry.mode, self._store.write(result.data))
        virtual.files[placement.new] = Rewritten(placement.new, entry, failure)
        virtual.origin[placement.new] = path

    def _dump_plan(self, commit: str) -> dumps.DumpPlan:
        tree = self._store.entries(commit)
        known: dict[str, dumps.DumpFacts | None] = {}

        def facts(words: tuple[bytes, ...]) -> Iterator[dumps.DumpFacts]:
            for path, entry in tree.items():
                if not path.endswith(".py") or not entry.regular:
                    continue
                data = self._store.read(entry.blob)
                if data is None or not any(word in data for word in words):
                    continue
                if path not in known:
                    name = symbols.module_name(path)
                    text = data.decode("utf-8-sig", "replace")
                    known[path] = dumps.survey(path, name, path.endswith("__init__.py"), text)
                found = known[path]
                if found is not None:
                    yield found

        try:
            return dumps.gather(facts)
        except Exception as error:
            raise UserError(
                f"{commit[:10]}: the dump rules failed ({type(error).__name__}: {error}); run with "
                "--skip DMP, and report the fault"
            ) from error


def _rewrite_files(
    project: Project, files: Mapping[str, tuple[str, Path]], jobs: int
) -> Iterator[tuple[str, Result]]:
    state = {"files": dict(files), "project": project, "filter": Prefilter(project)}
    # A few files are not worth the start of processes.
    for path, result in run_tasks(jobs if len(files) > 40 else 0, state, _rewrite_one, files):
        if not isinstance(result, Result):
            reason = "the parser crashed on this file"
            site = Finding(path, 1, 1, "CHK001", "report", "", None, reason, "migrate it by hand")
            result = Result(path, sites=[site])
        yield path, result


def _rewrite_one(item: str) -> Result:
    state = worker_state()
    path, file = state["files"][item]
    return rewrite(path, file.read_bytes(), state["project"], state["filter"])


def write_tree(store: Store, commit: str, folder: Path) -> None:
    """Write a commit's files to a folder; what is missing in a partial clone is an empty file there."""
    _write_files(store, store.entries(commit), folder)


def _write_files(store: Store, tree: Tree, folder: Path) -> None:
    for path, entry in _parents_first(tree):
        if not entry.regular:
            continue
        target = folder / path
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(store.content(entry) or b"")
        except (FileExistsError, NotADirectoryError, IsADirectoryError):
            continue  # a file in one commit, a folder in another


def _parents_first(tree: Tree) -> Iterable[tuple[str, Entry]]:
    return sorted(tree.items(), key=lambda item: item[0])
