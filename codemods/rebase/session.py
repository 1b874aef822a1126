"""One rebase from start to end: the work folder, its state, conflicts for a person, the finished branch.

The work folder is a git repository of its own that borrows the user's objects; the new branch is made there, and a
conflict is left there as git leaves one. The state is written after every commit, so a run that was cut off goes on
with `--continue`. The user's repository gets the branch at the end, and nothing before.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from codemods.engine.run import Progress
from codemods.errors import UserError
from codemods.rebase import joined
from codemods.rebase.apply import Conflicted, Resolved
from codemods.rebase.certain import Resolution
from codemods.rebase.joined import upstreams_side
from codemods.rebase.ledger import Account, Auditor, Evidence
from codemods.rebase.left import Site, listed, unresolved
from codemods.rebase.lines import Conflict
from codemods.rebase.plan import Branch, carried_before, check_name, commits
from codemods.rebase.replay import Replay, Step
from codemods.rebase.store import SUBMODULE, Entry, GitError, Store, Tree, common_folder, git
from codemods.rebase.transform import Transformer, map_for, write_tree
from codemods.upstream import cache_folder

_META = ".git/ling2-migrate"
_SCHEMA = 2
_TYPES = "src/maxtext/configs/types.py"


@dataclass(slots=True)
class Choices:
    """What the user asked for.

    Attributes:
        branch: name of the new branch.
        squash: make one commit of the branch.
        drop_migrated: leave out commits that upstream has already.
        only, skip: rule ids or families.
        jobs: worker processes.
        last: the branch that an earlier rebase made, whose commits stand as they are.
    """

    branch: str = ""
    squash: bool = False
    drop_migrated: bool = False
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    jobs: int = 0
    last: str = ""


@dataclass(slots=True)
class Outlook:
    """The outcome of a rebase, or of a plan of one.

    Attributes:
        branch: what is carried.
        steps: what became of each commit.
        accounts: what became of each hunk of the fork; empty while a conflict is open.
        tree: the resulting files.
        new: the new branch's last commit; "" in a plan and while a conflict is open.
        map_why: which map, and why.
        left: what is left for a person beside conflicts.
    """

    branch: Branch
    steps: list[Step]
    accounts: list[Account] = field(default_factory=list)
    tree: Tree = field(default_factory=dict)
    new: str = ""
    map_why: str = ""
    left: list[Site] = field(default_factory=list)

    @property
    def open(self) -> list[Conflicted]:
        """Conflicts that wait for a person."""
        return [c for step in self.steps if step.state == "conflict" for c in step.conflicts]

    def counts(self) -> Counter[str]:
        """Hunks by what became of them."""
        return Counter(a.status for a in self.accounts)


class _Run:
    """A branch, its transformer and its replay, ready to work."""

    def __init__(
        self, store: Store, branch: Branch, choices: Choices, scratch: Path, progress: Progress
    ) -> None:
        self.store, self.branch, self.choices = store, branch, choices
        carried = carried_before(store, branch, choices.last) if choices.last else {}
        self.order = [] if choices.squash else commits(store, branch, set(carried))
        if choices.last and not self.order:
            raise UserError(
                f"{choices.last} has all commits of the branch; there is nothing to carry"
            )
        upstream = scratch / "upstream"
        write_tree(store, branch.onto, upstream)
        choice = map_for(store, branch.base, branch.onto, progress)
        self.map_why = choice.why
        outside = dict.fromkeys(p for c in self.order for p in c.outside)
        # What the ledger is about: the whole branch, or what came since the last rebase.
        self.since = next(
            (c for c in store.text("rev-list", "--topo-order", branch.tip).split() if c in carried),
            branch.base,
        )
        self.ground = carried.get(self.since, branch.onto)
        inside = [c.id for c in reversed(self.order)]
        within = [p for c in self.order for p in c.parents]
        trees = [branch.tip, *inside, *within, self.since, branch.base, *outside]
        self.transformer = Transformer(
            store,
            list(dict.fromkeys(trees)),
            upstream,
            choice,
            scratch,
            only=choices.only,
            skip=choices.skip,
            jobs=choices.jobs,
            progress=progress,
        )
        self.replay = Replay(
            store, branch, self.transformer, self.order, drop_migrated=choices.drop_migrated
        )
        self.replay.new |= carried

    def left(self, result: Tree) -> list[Site]:
        """What is left for a person beside conflicts."""
        store, branch = self.store, self.branch
        upstream = store.entries(branch.onto)
        found = unresolved(store, result, upstream, self.transformer.project.target)
        old, new = store.entries(self.since), store.entries(branch.tip)
        paths = sorted(p for p in new if old.get(p) != new[p])
        fields = (store.content(result.get(_TYPES)) or b"").decode("utf-8", "replace")
        return found + listed(self.transformer, self.since, branch.tip, paths, fields)

    def audit(self, result: Tree, steps: list[Step]) -> list[Account]:
        """The ledger for a result."""
        evidence = Evidence(
            conflicts=[c for s in steps for c in s.conflicts],
            by_hand=any(s.state == "by hand" for s in steps),
            resolutions=[r for s in steps for r in s.resolutions],
            dropped={p: why for s in steps for p, why in s.dropped.items()},
            skipped=[s.commit for s in steps if s.state == "skipped"],
        )
        tip = self.branch.tip
        auditor = Auditor(
            self.store, self.transformer, self.since, tip, self.ground, result, evidence
        )
        return auditor.all()


@contextmanager
def planned(
    branch: Branch, choices: Choices, progress: Progress
) -> Iterator[tuple[Outlook, Store]]:
    """Work out a rebase without touching anything.

    After a conflict, the plan goes on with upstream's side of it.

    Yields:
        The outcome, and the store that holds its objects for as long as the context lasts.
    """
    with tempfile.TemporaryDirectory(prefix="ling2-migrate-") as folder:
        store = Store.create(Path(folder) / "repository", branch.source)
        try:
            run = _Run(store, branch, choices, Path(folder), progress)
            yield _plan(run, progress), store
        finally:
            store.close()


def _plan(run: _Run, progress: Progress) -> Outlook:
    steps: list[Step] = []
    replay, store = run.replay, run.store
    if run.choices.squash:
        steps.append(replay.squashed())
    for done, commit in enumerate(run.order, 1):
        progress("carrying", done, len(run.order))
        step = replay.work_out(commit)
        steps.append(step)
        if step.state == "conflict":
            for conflict in step.conflicts:
                upstreams_side(store, step.tree, conflict)
            replay.record(step)
        else:
            replay.record(step)
    tree = steps[-1].tree if steps else {}
    if run.choices.squash and steps[0].state == "conflict":
        for conflict in steps[0].conflicts:
            upstreams_side(store, steps[0].tree, conflict)
    accounts = run.audit(tree, steps)
    return Outlook(run.branch, steps, accounts, tree, "", run.map_why, run.left(tree))


class Session:
    """A rebase in its work folder."""

    def __init__(self, folder: Path, state: dict[str, Any]) -> None:
        self.folder = folder  # absolute: git runs in it
        self.branch = Branch(
            Path(state["source"]),
            state["tip"],
            state["onto"],
            state["base"],
            state["onto_label"],
            tuple(state["notes"]),
        )
        choices = dict(state["choices"])
        choices["only"], choices["skip"] = tuple(choices["only"]), tuple(choices["skip"])
        self.choices = Choices(**choices)
        self.steps = [_step_from(s) for s in state["steps"]]
        self.done: bool = state["done"]
        self.store = Store(folder)

    @staticmethod
    def start(branch: Branch, choices: Choices, folder: Path) -> Session:
        """Make the work folder.

        Raises:
            UserError: the folder exists, or the branch's name is taken.
        """
        check_name(branch.source, choices.branch)
        folder = folder.absolute()
        if folder.exists() or folder.is_symlink():
            raise UserError(f"{folder}: exists; remove it or choose another --out")
        parent = folder.resolve().parent
        if not parent.is_dir():
            raise UserError(f"{parent}: no such folder")
        if branch.source in (parent, *parent.parents):
            raise UserError(f"{folder}: lies in the repository; choose an --out outside of it")
        state = {
            "schema": _SCHEMA,
            "source": str(branch.source),
            "tip": branch.tip,
            "onto": branch.onto,
            "base": branch.base,
            "onto_label": branch.onto_label,
            "notes": list(branch.notes),
            "choices": asdict(choices),
            "steps": [],
            "done": False,
        }
        stage = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=parent))
        try:
            repository = stage / "repository"
            Store.create(repository, branch.source).close()
            _prepare_repository(repository, branch, choices.branch)
            meta = repository / _META
            meta.mkdir()
            _write_json(meta / "state.json", state)
            repository.rename(folder)
        finally:
            shutil.rmtree(stage, ignore_errors=True)
        return Session(folder, state)

    @staticmethod
    def resume(folder: Path) -> Session:
        """Open a work folder again.

        Raises:
            UserError: it is none, or is of another version of this program.
        """
        try:
            state = json.loads((folder / _META / "state.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise UserError(f"{folder}: no rebase of this program is under way there") from None
        if state.get("schema") != _SCHEMA:
            raise UserError(f"{folder}: made by another version of this program; start again")
        return Session(folder.absolute(), state)

    def abort(self) -> None:
        """Remove the work folder; the user's repository has not been touched."""
        if (self.folder / ".git/MERGE_RR").is_file():
            self._remember()
        self.store.close()
        shutil.rmtree(self.folder)

    def go_on(self, progress: Progress, *, skip: bool = False) -> Outlook:
        """Carry commits until the end or the next conflict.

        Args:
            progress: told how far it is.
            skip: leave out the commit that is in conflict.

        Raises:
            UserError: a conflict is not resolved yet, the branch cannot be made, or a hunk is not accounted for.
        """
        if self.done:
            raise UserError(f"{self.folder}: this rebase is finished")
        try:
            with tempfile.TemporaryDirectory(prefix="ling2-migrate-") as scratch:
                current = self.steps[-1] if self.steps else None
                waiting = current is not None and current.state == "conflict"
                laid = waiting and current is not None and self._laid()[0] == current.commit
                if laid and not skip:
                    tree = self._resolved_tree()
                elif skip and not waiting:
                    raise UserError(
                        f"{self.folder}: no commit is in conflict, so none can be skipped"
                    )
                run = _Run(self.store, self.branch, self.choices, Path(scratch), progress)
                for step in self.steps:
                    run.replay.restore(step)
                if waiting and not laid and not skip and current is not None:
                    self._leave_conflict(current, self._parents(run, current))
                    raise UserError(
                        f"{self.folder}: was cut off before the conflict could be seen; resolve it, then --continue"
                    )
                if waiting and current is not None:
                    if skip:
                        run.replay.skip(current)
                    else:
                        current.tree = tree
                        current.state = "by hand"
                        self._record(run, current)
                    self._save()
                return self._carry(run, progress)
        except GitError as error:
            raise UserError(f"{self.branch.source}: git refuses ({error})") from None

    def _carry(self, run: _Run, progress: Progress) -> Outlook:
        outlook = Outlook(self.branch, self.steps, map_why=run.map_why)
        known = {s.commit for s in self.steps}
        if self.choices.squash and not self.steps:
            self._take(run, run.replay.squashed())
        for commit in run.order:
            if commit.id in known:
                continue
            if self.steps and self.steps[-1].state == "conflict":
                break
            progress("carrying", len(self.steps) + 1, len(run.order))
            self._take(run, run.replay.work_out(commit))
        if self.steps[-1].state == "conflict":
            self._leave_conflict(self.steps[-1], self._parents(run, self.steps[-1]))
            return outlook
        return self._finish(run, outlook)

    def _take(self, run: _Run, step: Step) -> None:
        self.steps.append(step)
        if step.state != "conflict":
            self._record(run, step)
        self._save()

    def _record(self, run: _Run, step: Step) -> None:
        if self.choices.squash:
            run.replay.record(step, _squash_message(run.store, self.branch), [self.branch.onto])
        else:
            run.replay.record(step)

    def _parents(self, run: _Run, step: Step) -> list[str]:
        if self.choices.squash:
            return [self.branch.onto]
        parents = run.store.parents(step.commit)
        return [run.replay.parent(p) for p in parents] or [self.branch.onto]

    def _finish(self, run: _Run, outlook: Outlook) -> Outlook:
        new = self.steps[-1].new
        tree = self.store.entries(new)
        outlook.tree = tree
        outlook.accounts = run.audit(tree, self.steps)
        outlook.left = run.left(tree)
        lost = [a for a in outlook.accounts if a.status == "lost"]
        if lost:
            first = lost[0]
            raise UserError(
                f"{first.hunk.path}:{first.hunk.line}: the fork's change is not accounted for "
                f"({first.reason}), and {len(lost) - 1} more; no branch was made; please report this"
            )
        self._check_out(tree, new)
        self.store.bring(self.branch.source, self.choices.branch, new, self.store.own_objects())
        self.done = True
        outlook.new = new
        self._save()
        return outlook

    # The work tree ---------------------------------------------------------------------------------

    def _check_out(self, tree: Tree, commit: str) -> None:
        """Put a commit into the work tree; what a partial clone lacks is left out of it."""
        self.store.run("update-ref", "--no-deref", f"refs/heads/{self.choices.branch}", commit)
        self._fill(tree)

    def _fill(self, tree: Tree) -> None:
        """Bring index and files to a tree. What git does not track there stays.

        Raises:
            UserError: a file that is not tracked stands where one of the tree goes.
        """
        tracked = self._listed("ls-files", "-z")
        for path in sorted(self._on_disk() & tree.keys() - tracked):
            if self.store.content(tree[path]) != (self.folder / path).read_bytes():
                raise UserError(
                    f"{self.folder / path}: is not tracked and would be overwritten; move it away, then --continue"
                )
        for path in tracked - tree.keys():
            with suppress(OSError):  # gone, or a folder by now
                (self.folder / path).unlink()
        fresh = self.folder / ".git/index.fresh"
        fresh.unlink(missing_ok=True)
        lines = (f"{e.mode} {e.blob}\t{p}\0" for p, e in sorted(tree.items()))
        data = "".join(lines).encode("utf-8", "surrogateescape")
        env = {"GIT_INDEX_FILE": str(fresh)}
        self.store.run("update-index", "-z", "--add", "--index-info", data=data, env=env)
        (self.folder / ".git/index.lock").unlink(missing_ok=True)  # of a run that was killed
        fresh.replace(self.folder / ".git/index")
        missing = self.store.missing(tree)
        if missing:
            self.store.run(
                "update-index", "-z", "--skip-worktree", "--stdin",
                data="".join(f"{p}\0" for p in missing).encode("utf-8", "surrogateescape"),
            )  # fmt: skip
        present = (p for p, e in tree.items() if p not in missing and e.mode != SUBMODULE)
        self.store.run(
            "checkout-index", "-f", "-q", "-u", "-z", "--stdin",
            data="".join(f"{p}\0" for p in present).encode("utf-8", "surrogateescape"),
        )  # fmt: skip

    def _listed(self, *command: str) -> set[str]:
        """The paths that a git command prints with `-z`."""
        shown = self.store.run(*command).decode("utf-8", "surrogateescape")
        return {path for path in shown.split("\0") if path}

    def _on_disk(self) -> set[str]:
        """The files of the work tree."""
        found: set[str] = set()
        for folder, folders, files in os.walk(self.folder):
            relative = os.path.relpath(folder, self.folder)
            if relative == ".":
                folders.remove(".git")
            prefix = "" if relative == "." else f"{relative}/"
            found |= {
                f"{prefix}{name}"
                for name in files
                if prefix or not name.startswith("rebase-report.")
            }
        return found

    def _leave_conflict(self, step: Step, parents: list[str]) -> None:
        """Leave a conflict as `git cherry-pick` does: the index, the files with markers, the message."""
        self._check_out(step.tree, parents[0])
        lines: list[str] = []
        for conflict in step.conflicts:
            zero = "0" * len(step.commit)
            lines.append(f"0 {zero}\t{conflict.path}\0")
            stages = (conflict.base, conflict.ours, conflict.theirs)
            for stage, entry in enumerate(stages, 1):
                if entry is not None:
                    lines.append(f"{entry.mode} {entry.blob} {stage}\t{conflict.path}\0")
        data = "".join(lines).encode("utf-8", "surrogateescape")
        self.store.run("update-index", "-z", "--index-info", data=data)
        label = step.commit[:10]
        for conflict in step.conflicts:
            target = self.folder / conflict.path
            text = conflict.text(f"HEAD ({self.branch.onto_label})", f"{label} (the fork's commit)")
            if text is None and conflict.ours is None and conflict.theirs is not None:
                text = self.store.content(conflict.theirs)
            if text is not None:
                try:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(text)
                except (FileExistsError, NotADirectoryError, IsADirectoryError):
                    continue  # a folder has its name; the index has it
        git_folder = self.folder / ".git"
        (git_folder / "MERGE_MSG").write_bytes(self.store.raw_commit(step.commit)[1])
        (git_folder / "CHERRY_PICK_HEAD").write_text(f"{step.commit}\n", encoding="ascii")
        self.store.run("rerere", accept=(0, 1, 128))
        (self.folder / _META / "laid").write_text(f"{step.commit} {parents[0]}", encoding="ascii")

    def _laid(self) -> tuple[str, str]:
        """The commit whose conflict is in the work tree as a whole, and on what it lies; "" if none is."""
        try:
            commit, parent = (self.folder / _META / "laid").read_text(encoding="ascii").split()
        except (OSError, ValueError):
            return "", ""
        return commit, parent

    def _resolved_tree(self) -> Tree:
        """The files as a person left them.

        Raises:
            UserError: a file is not resolved.
        """
        unmerged = self.store.run("ls-files", "-u", "-z").decode("utf-8", "surrogateescape")
        paths = sorted({x.partition("\t")[2] for x in unmerged.split("\0") if x})
        if paths:
            more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
            raise UserError(
                f"{self.folder}: {paths[0]}{more} not resolved yet; edit, then `git add` (or `git rm`)"
            )
        changed = sorted(self._listed("diff-files", "-z", "--name-only", "--ignore-submodules=all"))
        tree: Tree = {}
        for line in (
            self.store.run("ls-files", "-s", "-z").decode("utf-8", "surrogateescape").split("\0")
        ):
            if line:
                meta, _, path = line.partition("\t")
                mode, blob, _ = meta.split()
                tree[path] = Entry(mode, blob)
        changed = [path for path in changed if path in tree and tree[path].mode != SUBMODULE]
        if changed:
            more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
            raise UserError(
                f"{self.folder}: {changed[0]}{more} changed since `git add`; add that, or `git restore` it"
            )
        if tree == self.store.entries(self._laid()[1]):
            raise UserError(
                f"{self.folder}: nothing of the commit is left; resolve it and `git add`, or --skip to leave it out"
            )
        for conflict in self.steps[-1].conflicts:
            entry = tree.get(conflict.path)
            content = self.store.content(entry) if entry is not None else None
            if (
                content is not None
                and _has_markers(content)
                and not _had_markers(self.store, conflict)
            ):
                raise UserError(
                    f"{self.folder / conflict.path}: has conflict markers; resolve them and `git add` it"
                )
        self._remember()
        for name in ("MERGE_MSG", "CHERRY_PICK_HEAD"):
            (self.folder / ".git" / name).unlink(missing_ok=True)
        return tree

    def _remember(self) -> None:
        """Have git record how conflicts were resolved, for this work folder and the next one."""
        self.store.run("rerere", accept=(0, 1, 128))
        folder = self.folder / ".git/rr-cache"
        if folder.is_dir():
            with suppress(OSError):  # a convenience that is not worth stopping for
                shutil.copytree(folder, _remembered(self.branch.source), dirs_exist_ok=True)

    def _save(self) -> None:
        state = {
            "schema": _SCHEMA,
            "source": str(self.branch.source),
            "tip": self.branch.tip,
            "onto": self.branch.onto,
            "base": self.branch.base,
            "onto_label": self.branch.onto_label,
            "notes": list(self.branch.notes),
            "choices": asdict(self.choices),
            "steps": [_step_data(s) for s in self.steps],
            "done": self.done,
        }
        _write_json(self.folder / _META / "state.json", state)


def _has_markers(content: bytes) -> bool:
    lines = content.split(b"\n")
    return any(x.startswith(b"<<<<<<< ") for x in lines) and any(
        x.startswith(b">>>>>>> ") for x in lines
    )


def _had_markers(store: Store, conflict: Conflicted) -> bool:
    """Whether a file holds what looks like markers on one of its sides already."""
    entries = (conflict.base, conflict.ours, conflict.theirs)
    return any(_has_markers(store.content(e) or b"") for e in entries if e is not None)


def _prepare_repository(repository: Path, branch: Branch, name: str) -> None:
    git(repository, "symbolic-ref", "HEAD", f"refs/heads/{name}")
    git(repository, "update-ref", f"refs/heads/{name}", branch.onto)
    # Files are there as git has them, whatever ends of lines and filters (as those of git-lfs) the user has set up.
    settings = {"core.autocrlf": "false", "core.safecrlf": "false", "rerere.enabled": "true"}
    for key in ("user.name", "user.email", "rerere.enabled", "rerere.autoUpdate", "merge.tool"):
        with suppress(GitError):
            settings[key] = git(branch.source, "config", "--get", key).decode().strip()
    listed = git(
        branch.source, "config", "-z", "--name-only", "--get-regexp", r"^filter\.", accept=(0, 1)
    )
    for key in listed.decode("utf-8", "surrogateescape").split("\0"):
        driver = key.rpartition(".")[0]
        if driver:
            settings |= {f"{driver}.{part}": "" for part in ("clean", "smudge", "process")}
            settings[f"{driver}.required"] = "false"
    for key, value in settings.items():
        git(repository, "config", key, value)
    for known in (common_folder(branch.source) / "rr-cache", _remembered(branch.source)):
        if known.is_dir():
            shutil.copytree(known, repository / ".git/rr-cache", dirs_exist_ok=True)
    info = repository / ".git/info"
    info.mkdir(exist_ok=True)
    (info / "exclude").write_text("/rebase-report.*\n", encoding="utf-8")


def _remembered(source: Path) -> Path:
    """Where resolutions (git's rerere) of a repository's rebases are kept from one work folder to the next."""
    name = hashlib.sha256(os.fsencode(common_folder(source))).hexdigest()[:16]
    return cache_folder() / f"rr-cache-{name}"


def _squash_message(store: Store, branch: Branch) -> bytes:
    listed = store.text(
        "log", "--format=* %s (%h)", "--reverse", branch.tip, f"^{branch.base}", f"^{branch.onto}"
    )
    count = len(listed.splitlines())
    text = f"{count} commits of the fork, on {branch.onto_label}\n\n{listed}\n"
    return text.encode("utf-8", "surrogateescape")


def _write_json(path: Path, data: object) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(data, ensure_ascii=True), encoding="utf-8")
    os.replace(partial, path)


def _entry_data(entry: Entry | None) -> list[str] | None:
    return None if entry is None else [entry.mode, entry.blob]


def _entry_from(data: list[str] | None) -> Entry | None:
    return None if data is None else Entry(*data)


def _step_data(step: Step) -> dict[str, Any]:
    open_ = step.state == "conflict"
    return {
        "commit": step.commit,
        "new": step.new,
        "state": step.state,
        "tree": {p: _entry_data(e) for p, e in step.tree.items()} if open_ else {},
        "conflicts": [
            {
                "path": c.path,
                "origin": c.origin,
                "why": c.why,
                "one_sided": c.one_sided,
                "base": _entry_data(c.base),
                "ours": _entry_data(c.ours),
                "theirs": _entry_data(c.theirs),
                "parts": [p if isinstance(p, str) else asdict(p) for p in c.parts],
                "crlf": c.crlf,
            }
            for c in step.conflicts
        ],
        "resolutions": [
            {"path": r.path, "source": r.source, **asdict(r.what)} for r in step.resolutions
        ],
        "dropped": step.dropped,
        "waiting": joined.as_data(step.waiting),
    }


def _step_from(data: dict[str, Any]) -> Step:
    conflicts = [
        Conflicted(
            c["path"],
            c["origin"],
            c["why"],
            c["one_sided"],
            _entry_from(c["base"]),
            _entry_from(c["ours"]),
            _entry_from(c["theirs"]),
            tuple(p if isinstance(p, str) else Conflict(**p) for p in c["parts"]),
            c["crlf"],
        )
        for c in data["conflicts"]
    ]
    resolutions = []
    for item in data["resolutions"]:
        fields_ = dict(item)
        path, source = fields_.pop("path"), fields_.pop("source")
        resolutions.append(Resolved(path, Resolution(**fields_), source))
    tree = {p: Entry(*e) for p, e in data["tree"].items()}
    return Step(
        data["commit"],
        data["new"],
        tree,
        data["state"],
        conflicts,
        resolutions,
        data["dropped"],
        joined.from_data(data["waiting"]),
    )
