"""Commit by commit: what each changed, made on top of the new upstream."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from codemods.rebase.apply import Conflicted, Outcome, Resolved, apply_step
from codemods.rebase.joined import Joiner, Waiting
from codemods.rebase.plan import TRAILER, Branch, Commit
from codemods.rebase.relocate import Homes
from codemods.rebase.store import GitError, Store, Tree
from codemods.rebase.transform import Transformer


@dataclass(slots=True)
class Step:
    """A commit carried over.

    Attributes:
        commit: the fork's commit; the tip for a squashed branch.
        new: the commit that came of it, or the one that stands in its place; "" while it is in conflict.
        tree: the tree of `new`, or what a conflict has so far.
        state: "carried", "empty" (all of it is upstream), "merge" (a merge of upstream, with nothing of its own),
            "joined" (what it changed waits for a later commit), "dropped", "skipped", "conflict", "by hand" (a conflict
            that a person resolved).
        conflicts, resolutions, dropped: see `Outcome`.
        waiting: files whose conflict is seen at a later commit.
    """

    commit: str
    new: str = ""
    tree: Tree = field(default_factory=dict)
    state: str = "carried"
    conflicts: list[Conflicted] = field(default_factory=list)
    resolutions: list[Resolved] = field(default_factory=list)
    dropped: dict[str, str] = field(default_factory=dict)
    waiting: dict[str, Waiting] = field(default_factory=dict)


class Replay:
    """Carries the commits of one branch."""

    def __init__(
        self,
        store: Store,
        branch: Branch,
        transformer: Transformer,
        order: Sequence[Commit] = (),
        *,
        drop_migrated: bool = False,
    ) -> None:
        self.store = store
        self.branch = branch
        self.transformer = transformer
        self.drop_migrated = drop_migrated
        self.new: dict[str, str] = {}
        self.homes = Homes(transformer.project.map, transformer.project.target)
        self.joiner = Joiner(store, transformer, self.homes, order, self._renames, self.parent)

    def parent(self, commit: str) -> str:
        """What stands for a parent: its new commit, or the new upstream for one of upstream's."""
        return self.new.get(commit, self.branch.onto)

    def work_out(self, commit: Commit) -> Step:
        """What becomes of one commit, whose parents have been carried; nothing is recorded."""
        if len(commit.parents) + len(commit.outside) > 1:
            return self._merge(commit)
        before = (*commit.parents, *commit.outside)
        outcome = self._between(
            before[0] if before else self.store.empty_tree(),
            commit.id,
            self.store.entries(self.parent(before[0]) if before else self.branch.onto),
        )
        self.joiner.settle(commit.id, outcome)
        step = self._step(commit.id, outcome)
        step.waiting = {p: replace(w) for p, w in self.joiner.waiting(commit.id).items()}
        return step

    def squashed(self) -> Step:
        """The whole branch as one step."""
        ours = self.store.entries(self.branch.onto)
        return self._step(self.branch.tip, self._between(self.branch.base, self.branch.tip, ours))

    def record(
        self, step: Step, message: bytes | None = None, parents: Sequence[str] | None = None
    ) -> None:
        """Make the commit of a step that is not in conflict, and remember it.

        Args:
            step: what to record; `new` is set.
            message: instead of the commit's own.
            parents: instead of what stands for the commit's parents.
        """
        if step.state != "skipped":
            old = self.store.parents(step.commit) or [self.branch.base]
            above = list(dict.fromkeys(parents or [self.parent(p) for p in old]))
            above = self._without_ancestors(above)
            same = step.tree == self.store.entries(above[0])
            if (
                step.state == "carried"
                and same
                and any(self.joiner.touches(step.commit, path) for path in step.waiting)
            ):
                step.state = "joined"
            elif step.state == "carried" and same:
                step.state = "dropped" if self.drop_migrated else "empty"
            if step.state in ("merge", "dropped") and len(above) == 1:
                step.new = above[0]
            else:
                step.new = self._write(step, above, message)
        self.new[step.commit] = step.new

    def skip(self, step: Step) -> None:
        """Leave a commit out."""
        step.state = "skipped"
        parents = self.store.parents(step.commit)
        step.new = self.parent(parents[0]) if parents else self.branch.onto
        self.new[step.commit] = step.new
        self.joiner.skipped(step.commit)
        step.waiting = {p: replace(w) for p, w in self.joiner.waiting(step.commit).items()}

    def restore(self, step: Step) -> None:
        """Take up a step of an earlier run of the program."""
        self.joiner.restore(step.commit, step.waiting)
        if step.state != "conflict":
            self.new[step.commit] = step.new

    def _step(self, commit: str, outcome: Outcome) -> Step:
        state = "conflict" if outcome.conflicts else "carried"
        return Step(
            commit,
            "",
            outcome.tree,
            state,
            outcome.conflicts,
            outcome.resolutions,
            outcome.dropped,
        )

    def _between(self, before: str, after: str, ours: Tree) -> Outcome:
        old, new = self.transformer.step(before, after)
        return apply_step(self.store, old, new, ours, self._renames(before, after), self.homes)

    def _renames(self, before: str, after: str) -> dict[str, str]:
        """Files that a step of the fork moved, as paths on the new layout."""
        listed = self.store.run(
            "-c", "diff.renameLimit=0", "diff-tree", "-r", "-z", "-M", "--diff-filter=R",
            "--name-status", before, after,
        ).decode("utf-8", "surrogateescape").split("\0")  # fmt: skip
        found: dict[str, str] = {}
        placements = self.transformer.placements
        for old, new in zip(listed[1::3], listed[2::3], strict=False):
            a = placements[old].new if old in placements else old
            b = placements[new].new if new in placements else new
            if a is not None and b is not None and a != b:
                found[a] = b
        return found

    def _merge(self, commit: Commit) -> Step:
        """A merge commit: of upstream into the branch, or of two lines of the branch."""
        store = self.store
        parents = store.parents(commit.id)
        merged = _merge_tree(store, parents[0], parents[1])
        tree = store.text("rev-parse", f"{commit.id}^{{tree}}")
        if len(commit.parents) == 2:
            return self._merge_lines(commit, merged, tree)
        inner = commit.parents[0] if commit.parents else ""
        if not inner:  # two of upstream's commits, merged by the fork
            return self._step(
                commit.id,
                self._between(parents[0], commit.id, store.entries(self.branch.onto)),
            )
        ours = store.entries(self.new[inner])
        own = store.text("rev-parse", f"{inner}^{{tree}}")
        if tree == own or (merged.clean and merged.tree == tree):
            return Step(commit.id, tree=dict(ours), state="merge")
        # What the person who merged changed beside what git made of it.
        outcome = self._between(merged.tree, commit.id, ours) if merged.clean else None
        if outcome is None:
            old, new = store.entries(merged.tree), store.entries(commit.id)
            differing = {p for p in old.keys() | new.keys() if old.get(p) != new.get(p)}
            outcome = self._whole(commit, differing, ours)
        return self._step(commit.id, outcome)

    def _whole(self, commit: Commit, paths: set[str], ours: Tree) -> Outcome:
        """Files that a merge of upstream resolved: all that the fork made of them so far, on top of upstream's."""
        upstream = commit.outside[0]
        before, after = self.transformer.step(upstream, commit.id)
        places = self.transformer.placements
        wanted = {places[p].new if p in places else p for p in paths}
        for virtual in (before, after):
            for known in virtual.files.keys() - wanted:
                del virtual.files[known]
        fresh = self.store.entries(self.branch.onto)
        start = dict(ours)
        for path in wanted:
            if path is not None and path in fresh:
                start[path] = fresh[path]
        return apply_step(self.store, before, after, start, {}, self.homes)

    def _merge_lines(self, commit: Commit, merged: _Merged, tree: str) -> Step:
        """A merge of two lines of the branch: the new lines merged, with the resolution that the fork's has."""
        store = self.store
        first, second = (self.new[p] for p in commit.parents)
        if second == first:
            return Step(commit.id, tree=dict(store.entries(first)), state="merge")
        again = _merge_tree(store, first, second)
        old, new = store.entries(merged.tree), store.entries(commit.id)
        paths = {p for p in old.keys() | new.keys() if old.get(p) != new.get(p)}
        places = self.transformer.placements
        wanted = {places[p].new if p in places else p for p in paths} | set(again.conflicts)
        ours = dict(store.entries(again.tree))
        start = store.entries(first)
        for path in wanted:
            if path is None:
                continue
            if path in start:
                ours[path] = start[path]
            else:
                ours.pop(path, None)
        before, after = self.transformer.step(commit.parents[0], commit.id)
        for virtual in (before, after):
            for known in virtual.files.keys() - wanted:
                del virtual.files[known]
        step = self._step(commit.id, apply_step(store, before, after, ours, {}, self.homes))
        # In conflict now, though the fork's merge took its first parent's file as it is.
        for name in sorted(set(again.conflicts) - set(before.files) - set(after.files)):
            mine, other = store.entries(first).get(name), store.entries(second).get(name)
            why = "the two lines of the branch no longer merge here"
            step.conflicts.append(Conflicted(name, name, why, False, None, mine, other))
            step.state = "conflict"
        return step

    def _without_ancestors(self, above: list[str]) -> list[str]:
        """The parents, but not the new upstream where another parent stands on it already."""
        if len(above) > 1 and self.branch.onto in above:
            return [p for p in above if p != self.branch.onto]
        return above

    def _write(self, step: Step, parents: list[str], message: bytes | None) -> str:
        tree = self.store.write_tree(step.tree)
        headers, text = self.store.raw_commit(step.commit)
        known = dict(headers)
        lines = [b"tree " + tree.encode()]
        lines += [b"parent " + p.encode() for p in parents]
        lines.append(b"author " + known[b"author"])
        lines.append(b"committer " + self._committer(known[b"committer"]))
        if b"encoding" in known and message is None:
            lines.append(b"encoding " + known[b"encoding"])
        body = self._with_trailer(message if message is not None else text, step.commit)
        return self.store.write_commit(b"\n".join(lines) + b"\n\n" + body)

    def _committer(self, fallback: bytes) -> bytes:
        """Who runs this, at the time of the fork's commit, so that the same branch gives the same commits."""
        shown = subprocess.run(
            ["git", "-C", str(self.branch.source), "var", "GIT_COMMITTER_IDENT"],
            capture_output=True,
            check=False,
        )
        if shown.returncode != 0:
            return fallback
        return shown.stdout.strip().rsplit(b" ", 2)[0] + b" " + b" ".join(fallback.split()[-2:])

    def _with_trailer(self, message: bytes, commit: str) -> bytes:
        if not message.endswith(
            b"\n"
        ):  # git would take the trailer for more of the last line's paragraph
            message += b"\n"
        return self.store.run(
            "-c", "trailer.separators=:", "-c", "core.commentChar=#", "interpret-trailers", "--no-divider",
            "--where=end", "--if-exists=addIfDifferent", "--if-missing=add",
            "--trailer", f"{TRAILER}: {commit}", data=message,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Merged:
    """What git makes of two commits: the tree, whether it is without conflicts, and the files in conflict."""

    tree: str
    clean: bool
    conflicts: tuple[str, ...]


def _merge_tree(store: Store, first: str, second: str) -> _Merged:
    """Merge two commits as git does.

    Where contents are missing (a partial clone), files that lack them are left out and put back from the first.

    Raises:
        GitError: git is older than 2.38, or cannot merge them at all.
    """
    try:
        return _merged(store, first, second)
    except GitError:
        common = store.run("merge-base", first, second, accept=(0, 1)).decode().strip()
        base = store.present(common or store.empty_tree())
        merged = _merged(store, store.present(first, base), store.present(second, base))
        tree, whole = dict(store.entries(merged.tree)), store.entries(first)
        tree |= {p: whole[p] for p in store.missing(whole)}
        return _Merged(store.write_tree(tree), merged.clean, merged.conflicts)


def _merged(store: Store, first: str, second: str) -> _Merged:
    shown = store.run(
        "-c", "merge.renameLimit=0", "merge-tree", "--write-tree", "--name-only", "-z",
        "--no-messages", "--allow-unrelated-histories", first, second, accept=(0, 1),
    ).decode("utf-8", "surrogateescape")  # fmt: skip
    tree, *paths = shown.rstrip("\0").split("\0")
    return _Merged(tree, not paths, tuple(paths))
