"""Conflicts that a later commit of the branch meets again: they are seen once, at the last commit that changes the file.

Where a commit is in conflict and a later one changes the same lines, a person would resolve what the branch itself has
given up by then, and would do so once for every such commit. So the earlier commits carry what merges, upstream's
lines stand where it does not, and the last commit brings all that the branch made of the file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from codemods.rebase.apply import Conflicted, Outcome, apply_step
from codemods.rebase.lines import Conflict, merge_lines
from codemods.rebase.plan import Commit
from codemods.rebase.relocate import Homes
from codemods.rebase.store import Entry, Store, Tree
from codemods.rebase.transform import Rewritten, Transformer, Virtual


@dataclass(slots=True)
class Waiting:
    """A file whose conflict waits for a later commit.

    Attributes:
        first: the commit that met the conflict.
        now: the file as the last commit so far left it; a person may have changed it since.
        before: the same, one commit earlier.
        skipped: commits that a person left out, and that changed the file.
    """

    first: str
    now: Entry | None = None
    before: Entry | None = None
    skipped: list[str] = field(default_factory=list)


class Lines:
    """The branch as lines of commits that follow each other without a merge or a fork."""

    def __init__(self, order: Sequence[Commit]) -> None:
        children = Counter(p for c in order for p in c.parents)
        self.line: dict[str, list[str]] = {}
        for commit in order:
            single = len(commit.parents) == 1 and not commit.outside
            above = self.line.get(commit.parents[0]) if single else None
            if above is None or children[commit.parents[0]] > 1:
                above = []
            if len(commit.parents) + len(commit.outside) == 1:
                above.append(commit.id)
                self.line[commit.id] = above

    def after(self, commit: str) -> list[str]:
        """The commits that follow in its line."""
        line = self.line.get(commit, [commit])
        return line[line.index(commit) + 1 :]


def upstreams_side(store: Store, tree: Tree, conflict: Conflicted) -> None:
    """Put a file in conflict into a tree: what merged, and upstream's lines where nothing did."""
    if not conflict.parts or conflict.ours is None:
        return
    text = "".join(p.ours if isinstance(p, Conflict) else p for p in conflict.parts)
    if conflict.crlf:
        text = text.replace("\n", "\r\n")
    blob = store.write(text.encode("utf-8", "surrogateescape"))
    tree[conflict.path] = Entry(conflict.ours.mode, blob)


class Joiner:
    """Finds conflicts that are better seen later, and brings them back there."""

    def __init__(
        self,
        store: Store,
        transformer: Transformer,
        homes: Homes,
        order: Sequence[Commit],
        renames: Callable[[str, str], dict[str, str]],
        carried: Callable[[str], str],
    ) -> None:
        """Read the branch.

        Args:
            store, transformer, homes: where contents are; the new layout; where upstream keeps what.
            order: the commits to carry, parents first.
            renames: the files that a step moved.
            carried: what stands for a commit of the fork.
        """
        self._store, self._transformer, self._homes = store, transformer, homes
        self._lines = Lines(order)
        self._renames, self._carried = renames, carried
        self._waiting: dict[int, dict[str, Waiting]] = {}

    def waiting(self, commit: str) -> dict[str, Waiting]:
        """The files that wait in the line of a commit."""
        return self._waiting.setdefault(id(self._lines.line.get(commit)), {})

    def restore(self, commit: str, waiting: dict[str, Waiting]) -> None:
        """Take up what an earlier run of the program knew after a commit."""
        self._waiting[id(self._lines.line.get(commit))] = dict(waiting)

    def skipped(self, commit: str) -> None:
        """Note that a person left a commit out."""
        waiting = self.waiting(commit)
        for path, known in list(waiting.items()):
            if known.first == commit:
                del waiting[path]
                continue
            known.now = known.before
            if self.touches(commit, path):
                known.skipped.append(commit)

    def settle(self, commit: str, outcome: Outcome) -> None:
        """Take conflicts of a commit that are seen later out of its outcome, and bring in those that waited for it."""
        if commit not in self._lines.line:
            return
        waiting = self.waiting(commit)
        before = self._store.entries(self._carried(self._parent(commit)))
        for path, known in list(waiting.items()):
            if self.touches(commit, path) and self._last(commit, path) == commit:
                self._bring(commit, path, known, before, outcome)
                del waiting[path]
        for conflict in list(outcome.conflicts):
            path = conflict.path
            if path in waiting:
                pass
            elif self._last(commit, path) != commit and self._pays(commit, path, before):
                waiting[path] = Waiting(commit)
            else:
                continue
            outcome.conflicts.remove(conflict)
            upstreams_side(self._store, outcome.tree, conflict)
        for path, known in waiting.items():
            known.before = known.now
            if before.get(path) != known.now and known.first != commit:
                continue  # a person has changed it: what they made of it is merged at the end
            known.now = outcome.tree.get(path)

    def _parent(self, commit: str) -> str:
        return self._store.parents(commit)[0]

    def touches(self, commit: str, path: str) -> bool:
        """Whether a commit changes a file."""
        old, new = self._transformer.step(self._parent(commit), commit)
        return old.entry(path) != new.entry(path)

    def _last(self, commit: str, path: str) -> str:
        """The last commit of the line that changes a file; `commit` itself if none does later, or one moves it."""
        found = commit
        for later in self._lines.after(commit):
            moved = self._renames(self._parent(later), later)
            if path in moved or path in moved.values():
                return commit
            if self.touches(later, path):
                found = later
        return found

    def _between(self, old: str, new: str, path: str) -> tuple[Virtual, Virtual]:
        """What differs between two commits in one file."""
        before, after = self._transformer.step(old, new)
        return _only(before, path), _only(after, path)

    def _apply(self, old: str, new: str, path: str, ours: Tree) -> Outcome:
        before, after = self._between(old, new, path)
        return apply_step(self._store, before, after, ours, {}, self._homes)

    def _pays(self, commit: str, path: str, before: Tree) -> bool:
        """Whether fewer places are in conflict when all that the branch makes of a file is seen at once."""
        parent, last = self._parent(commit), self._last(commit, path)
        together = _places(self._apply(parent, last, path, before))
        tree, apart = before, 0
        for each in (commit, *self._lines.after(commit)):
            outcome = self._apply(self._parent(each), each, path, tree)
            apart += _places(outcome)
            if apart > together:
                return True
            tree = outcome.tree
            for conflict in outcome.conflicts:
                upstreams_side(self._store, tree, conflict)
        return False

    def _bring(
        self, commit: str, path: str, known: Waiting, before: Tree, outcome: Outcome
    ) -> None:
        """Put all that the branch made of a file since `known.first` into the outcome of `commit`."""
        parent = self._parent(known.first)
        ours = dict(outcome.tree)
        fresh = self._store.entries(self._carried(parent)).get(path)
        if before.get(path) != known.now:
            fresh = before.get(path)  # a person worked on it in between
        ours.pop(path, None)
        if fresh is not None:
            ours[path] = fresh
        old, new = self._between(parent, commit, path)
        clean = all(self._without(new, path, skipped) for skipped in known.skipped)
        whole = apply_step(self._store, old, new, ours, {}, self._homes)
        outcome.tree = whole.tree
        outcome.conflicts = [c for c in outcome.conflicts if c.path != path]
        outcome.resolutions = [r for r in outcome.resolutions if r.path != path]
        outcome.resolutions += whole.resolutions
        said = f"with what the commits from {known.first[:10]} on changed there"
        if not clean:
            said += f", {', '.join(c[:10] for c in known.skipped)} too, which was skipped"
            if not whole.conflicts:
                origin = new.origin.get(path) or old.origin.get(path) or path
                sides = old.entry(path), fresh, new.entry(path)
                whole.conflicts.append(Conflicted(path, origin, "look at it", False, *sides))
        outcome.conflicts += [replace(c, why=f"{c.why}; {said}") for c in whole.conflicts]

    def _without(self, virtual: Virtual, path: str, commit: str) -> bool:
        """Take a skipped commit's change out of a file; False if later changes stand on it."""
        old, new = self._between(self._parent(commit), commit, path)
        found = virtual.files.get(path)
        versions = [v.entry(path) for v in (new, old)]
        if found is None or None in versions:
            return False
        contents = [self._store.content(e) for e in (versions[0], versions[1], found.entry)]
        if any(c is None or b"\0" in c for c in contents):
            return False
        texts = [(c or b"").decode("utf-8", "surrogateescape") for c in contents]
        parts = merge_lines(*texts)
        if any(isinstance(p, Conflict) for p in parts):
            return False
        text = "".join(p for p in parts if isinstance(p, str))
        blob = self._store.write(text.encode("utf-8", "surrogateescape"))
        entry = Entry(found.entry.mode, blob)
        virtual.files[path] = Rewritten(path, entry, found.failure)
        return True


def _only(virtual: Virtual, path: str) -> Virtual:
    files = {p: f for p, f in virtual.files.items() if p == path}
    return Virtual(files, {p: o for p, o in virtual.origin.items() if p == path})


def _places(outcome: Outcome) -> int:
    return sum(c.regions for c in outcome.conflicts)


def as_data(waiting: dict[str, Waiting]) -> dict[str, object]:
    """What waits, as plain data."""
    return {
        path: [
            w.first,
            *(None if e is None else [e.mode, e.blob] for e in (w.now, w.before)),
            w.skipped,
        ]
        for path, w in waiting.items()
    }


def from_data(data: dict[str, list[object]]) -> dict[str, Waiting]:
    """The same back again."""
    return dict(_from_data(data))


def _from_data(data: dict[str, list[object]]) -> Iterator[tuple[str, Waiting]]:
    for path, (first, now, before, skipped) in data.items():
        assert isinstance(first, str)
        assert isinstance(skipped, list)
        entries = [Entry(*e) if isinstance(e, list) else None for e in (now, before)]
        yield path, Waiting(first, entries[0], entries[1], skipped)
