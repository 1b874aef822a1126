"""One step of the branch onto another tree: every file that the step changes, merged or in conflict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from codemods.rebase.certain import Resolution
from codemods.rebase.lines import Conflict, Part, render
from codemods.rebase.merge import merge_text
from codemods.rebase.store import Entry, Store, Tree
from codemods.rebase.transform import Virtual


@dataclass(frozen=True, slots=True)
class Resolved:
    """A resolution in a file.

    Attributes:
        path: the file, on the new layout.
        what: the resolution.
    """

    path: str
    what: Resolution


@dataclass(frozen=True, slots=True)
class Conflicted:
    """A file that a person has to look at.

    Attributes:
        path: the file, on the new layout.
        origin: its path in the fork.
        why: what is in the way, in a sentence.
        one_sided: whether one side has no such file, so that there are no lines to compare.
        base, ours, theirs: the file on each side, for git's index.
        parts: merged text and conflicts, where it could be merged that far.
        crlf: whether its lines end in carriage return and line feed.
    """

    path: str
    origin: str
    why: str
    one_sided: bool
    base: Entry | None
    ours: Entry | None
    theirs: Entry | None
    parts: tuple[Part, ...] = ()
    crlf: bool = False

    @property
    def regions(self) -> int:
        """How many places there are to look at."""
        return max(1, sum(isinstance(p, Conflict) for p in self.parts))

    def text(self, ours: str, theirs: str) -> bytes | None:
        """The file with conflict markers; None where there is no text to show."""
        if not self.parts:
            return None
        text = render(self.parts, ours, theirs)
        if self.crlf:
            text = text.replace("\n", "\r\n")
        return text.encode("utf-8", "surrogateescape")


@dataclass(slots=True)
class Outcome:
    """What became of a step.

    Attributes:
        tree: the resulting files; of files in conflict, upstream's.
        conflicts: what a person has to look at.
        resolutions: what both sides changed and was resolved.
        dropped: path in the fork → why its change has no place in the result.
    """

    tree: Tree
    conflicts: list[Conflicted] = field(default_factory=list)
    resolutions: list[Resolved] = field(default_factory=list)
    dropped: dict[str, str] = field(default_factory=dict)


def apply_step(
    store: Store,
    before: Virtual,
    after: Virtual,
    ours: Tree,
    renames: Mapping[str, str],
) -> Outcome:
    """Make the change between two virtual trees on another tree.

    Args:
        store: where contents are, and go.
        before, after: the trees between which the change lies.
        ours: the tree to make it on.
        renames: files that the change moved: path in `before` → path in `after`.
    """
    outcome = Outcome(dict(ours))
    for path, why in (before.left_out | after.left_out).items():
        outcome.dropped[path] = why
    moved_to = {new: old for old, new in renames.items()}
    for path in sorted(before.files.keys() | after.files.keys()):
        if path in renames:
            continue
        source = moved_to.get(path, path)
        _apply_file(store, before, after, source, path, outcome)
    return outcome


def _apply_file(
    store: Store, before: Virtual, after: Virtual, source: str, path: str, outcome: Outcome
) -> None:
    b, t = before.entry(source), after.entry(path)
    tree = outcome.tree
    o = tree.get(source)
    if source != path and (path in tree or o is None):
        # Upstream has a file there, or none to move: the parts of the move are changes of their own.
        _apply_file(store, before, after, path, path, outcome)
        _apply_file(store, before, after, source, source, outcome)
        return
    if b == t and source == path:
        return
    origin = after.origin.get(path) or before.origin.get(source) or path

    def conflict(
        why: str, one_sided: bool, parts: tuple[Part, ...] = (), crlf: bool = False
    ) -> None:
        outcome.conflicts.append(Conflicted(path, origin, why, one_sided, b, o, t, parts, crlf))

    for version in (before.files.get(source), after.files.get(path)):
        if version is not None and version.failure and o != b:
            conflict(f"the codemods could not handle it: {version.failure}", False)
            return
    if source != path:
        del tree[source]
    if o == b:
        _put(tree, path, t, conflict)
        return
    if o == t or (o is None and t is None):
        if o is not None:
            tree[path] = o
        return
    if o is None:
        conflict("upstream has no such file any more, and the fork changed it", True)
        return
    if t is None:
        conflict("the fork deleted it, and upstream changed it", True)
        return
    _merge(store, b, o, t, path, outcome, conflict)


def _put(tree: Tree, path: str, entry: Entry | None, conflict: object) -> None:
    if entry is None:
        tree.pop(path, None)
        return
    assert callable(conflict)
    folders = path.split("/")
    if any("/".join(folders[:k]) in tree for k in range(1, len(folders))) or any(
        known.startswith(f"{path}/") for known in tree
    ):
        conflict("a file on one side has the name of a folder on the other", True)
        return
    tree[path] = entry


def _merge(
    store: Store,
    b: Entry | None,
    o: Entry,
    t: Entry,
    path: str,
    outcome: Outcome,
    conflict: object,
) -> None:
    """Merge a file that both sides have and changed."""
    assert callable(conflict)
    mode = t.mode if b is None or o.mode == b.mode else o.mode
    if b is not None and b.mode not in (o.mode, t.mode) and o.mode != t.mode:
        conflict("its mode was changed on both sides", False)
        return
    if not (o.regular and t.regular and (b is None or b.regular)):
        what = (
            "a submodule or link" if o.mode == t.mode else "a file on one side, a link on the other"
        )
        conflict(f"{what}, changed on both sides", False)
        return
    if b is not None and b.blob == t.blob:
        outcome.tree[path] = Entry(mode, o.blob)
        return
    if o.blob == t.blob or (b is not None and o.blob == b.blob):
        outcome.tree[path] = Entry(mode, t.blob)
        return
    contents = [b"" if e is None else store.content(e) for e in (b, o, t)]
    if any(c is None for c in contents):
        conflict("its content is not in this repository (a partial clone)", False)
        return
    base, ours, theirs = (c or b"" for c in contents)
    if any(b"\0" in c[:8000] for c in (base, ours, theirs)):
        conflict("a binary file, changed on both sides", False)
        return
    texts, crlf = _texts(base, ours, theirs)
    parts, found = merge_text(path, *texts)
    outcome.resolutions += [Resolved(path, r) for r in found]
    if any(isinstance(p, Conflict) for p in parts):
        why = "both sides added it" if b is None else "both sides changed the same lines"
        conflict(why, False, tuple(parts), crlf)
        return
    text = "".join(p for p in parts if isinstance(p, str))
    if crlf:
        text = text.replace("\n", "\r\n")
    outcome.tree[path] = Entry(mode, store.write(text.encode("utf-8", "surrogateescape")))


def _texts(base: bytes, ours: bytes, theirs: bytes) -> tuple[tuple[str, str, str], bool]:
    """The three texts with line feeds, and whether the result has carriage returns too.

    A file's line ends are those of the side that changed them; they are compared with nothing else.
    """
    ends = [_crlf(x) for x in (base, ours, theirs)]
    texts = [x.decode("utf-8", "surrogateescape") for x in (base, ours, theirs)]
    if any(e is None for e in ends):  # mixed line ends are text like any other
        return (texts[0], texts[1], texts[2]), False
    lf = [x.replace("\r\n", "\n") for x in texts]
    crlf = ends[2] if ends[1] == ends[0] else ends[1]
    return (lf[0], lf[1], lf[2]), bool(crlf)


def _crlf(data: bytes) -> bool | None:
    """Whether all lines end in carriage return and line feed; None if some do."""
    pairs, feeds = data.count(b"\r\n"), data.count(b"\n")
    if pairs == 0:
        return False
    return True if pairs == feeds else None
