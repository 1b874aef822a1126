"""One step of the branch onto another tree: every file that the step changes, merged or in conflict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from codemods.rebase.certain import Resolution
from codemods.rebase.lines import Conflict, Part, render
from codemods.rebase.merge import merge_text
from codemods.rebase.relocate import Homes, look_alikes, nothing_left, place, split
from codemods.rebase.store import Entry, Store, Tree
from codemods.rebase.transform import Virtual


@dataclass(frozen=True, slots=True)
class Resolved:
    """A resolution in a file.

    Attributes:
        path: the file, on the new layout.
        what: the resolution.
        source: the file that the fork made the change in, on the new layout, where that is another.
    """

    path: str
    what: Resolution
    source: str = ""


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
    homes: Homes | None = None,
) -> Outcome:
    """Make the change between two virtual trees on another tree.

    Args:
        store: where contents are, and go.
        before, after: the trees between which the change lies.
        ours: the tree to make it on.
        renames: files that the change moved: path in `before` → path in `after`.
        homes: where upstream keeps what; None looks for nothing elsewhere.
    """
    outcome = Outcome(dict(ours))
    for path, why in (before.left_out | after.left_out).items():
        outcome.dropped[path] = why
    elsewhere = _Elsewhere(store, homes) if homes is not None else None
    if elsewhere is not None:
        elsewhere.relocate(before, after, outcome)
    moved_to = {new: old for old, new in renames.items()}
    # What goes makes room first: a folder's last file, where a file takes the folder's name.
    for path in sorted(
        before.files.keys() | after.files.keys(), key=lambda p: (p in after.files, p)
    ):
        if path in renames or (elsewhere is not None and path in elsewhere.done):
            continue
        source = moved_to.get(path, path)
        mine, taken = outcome.tree.get(source), path in outcome.tree
        _apply_file(store, before, after, source, path, outcome, elsewhere)
        if source != path and mine is not None and not taken and homes is not None:
            _renamed_twice(before, after, source, path, mine, homes, outcome)
    return outcome


def _renamed_twice(
    before: Virtual,
    after: Virtual,
    source: str,
    path: str,
    mine: Entry,
    homes: Homes,
    outcome: Outcome,
) -> None:
    """Make a conflict of a file that upstream and the fork gave two new names; it stands under the fork's."""
    origin = before.origin.get(source, source)
    name, upstreams, forks = (p.rpartition("/")[2] for p in (origin, source, path))
    if homes.moved(origin) != source or name in (upstreams, forks) or upstreams == forks:
        return
    why = f"upstream renamed it to {source}, the fork to {path}"
    for k, known in enumerate(outcome.conflicts):
        if known.path == path:
            outcome.conflicts[k] = replace(known, why=f"{known.why}; {why}")
            return
    sides = before.entry(source), mine, after.entry(path)
    outcome.conflicts.append(Conflicted(path, after.origin.get(path, path), why, False, *sides))


class _Elsewhere:
    """Changes that go to another file than the one the fork made them in.

    Attributes:
        done: files of which nothing else is left.
        entries: the fork's files without those changes.
        notes: what a person should know of a file that is in conflict.
    """

    def __init__(self, store: Store, homes: Homes) -> None:
        self.store, self.homes = store, homes
        self.done: set[str] = set()
        self.entries: dict[str, Entry] = {}
        self.notes: dict[str, str] = {}

    def relocate(self, before: Virtual, after: Virtual, outcome: Outcome) -> None:
        """Make every such change that can be made with certainty."""
        for path in sorted(before.files.keys() & after.files.keys()):
            if path.endswith(".py") and before.files[path] != after.files[path]:
                self._file(before, after, path, outcome)

    def _text(self, entry: Entry | None) -> str | None:
        content = self.store.content(entry) if entry is not None and entry.regular else None
        try:
            return content.decode() if content is not None else None
        except UnicodeDecodeError:
            return None

    def _file(self, before: Virtual, after: Virtual, path: str, outcome: Outcome) -> None:
        old, new = before.files[path], after.files[path]
        base, theirs = self._text(old.entry), self._text(new.entry)
        ours = self._text(outcome.tree.get(path))
        if base is None or theirs is None or old.failure or new.failure:
            return
        if path in outcome.tree and (ours is None or ours == base):
            return
        found = split(self.homes, after.origin[path], path, base, ours, theirs)
        if found is None:
            return
        notes = [found.twice] if found.twice else []
        if ours is None and not nothing_left(base, found.theirs):
            homes = {
                f"`{m.name.rpartition(' ')[2]}` is in {m.target} now": None for m in found.moves
            }
            self.notes[path] = "; ".join([*homes, *notes])
            return
        rest = theirs
        texts: dict[str, str] = {}
        resolved: list[Resolved] = []
        for move in found.moves:
            text = texts.get(move.target) or self._text(outcome.tree.get(move.target))
            placed = place(move, text) if text is not None else None
            name = move.name.rpartition(" ")[2]
            if placed is None or any(isinstance(p, Conflict) for p in placed[0]):
                notes.append(f"`{name}` is in {move.target} now, and was changed there too")
                continue
            texts[move.target] = "".join(p for p in placed[0] if isinstance(p, str))
            resolved += [Resolved(move.target, r, path) for r in placed[1]]
            rest = rest.replace(move.theirs.text, move.base.text, 1)
        if ours is None and notes:
            self.notes[path] = "; ".join(notes)
            return
        for target, text in texts.items():
            mode = outcome.tree[target].mode
            outcome.tree[target] = Entry(mode, self.store.write(text.encode()))
        outcome.resolutions += resolved
        if notes:
            self.notes[path] = "; ".join(notes)
        if ours is None:
            self.done.add(path)
        elif rest != theirs:
            self.entries[path] = Entry(new.entry.mode, self.store.write(rest.encode()))

    def look(self, path: str, texts: tuple[str, str, str], tree: Tree) -> str:
        """Where else upstream has what a file in conflict defined, in words."""
        if not path.endswith(".py"):
            return ""
        return look_alikes(self.homes, lambda p: self._text(tree.get(p)), path, *texts)


def _apply_file(
    store: Store,
    before: Virtual,
    after: Virtual,
    source: str,
    path: str,
    outcome: Outcome,
    elsewhere: _Elsewhere | None,
) -> None:
    b, t = before.entry(source), after.entry(path)
    if elsewhere is not None and path in elsewhere.entries:
        t = elsewhere.entries[path]
    tree = outcome.tree
    o = tree.get(source)
    if source != path and (path in tree or o is None):
        # Upstream has a file there, or none to move: the parts of the move are changes of their own.
        _apply_file(store, before, after, path, path, outcome, elsewhere)
        _apply_file(store, before, after, source, source, outcome, elsewhere)
        return
    if b == t and source == path:
        return
    origin = after.origin.get(path) or before.origin.get(source) or path

    def conflict(
        why: str, one_sided: bool, parts: tuple[Part, ...] = (), crlf: bool = False
    ) -> None:
        note = elsewhere.notes.get(path) if elsewhere is not None else None
        if note:
            why = f"{why}; {note}"
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
    _merge(store, b, o, t, path, outcome, conflict, elsewhere)


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
    elsewhere: _Elsewhere | None,
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
        whys = {p.why: None for p in parts if isinstance(p, Conflict) and p.why}
        why = "both sides added it" if b is None else "both sides changed the same lines"
        why = "; ".join(whys) or why
        said = elsewhere.look(path, texts, outcome.tree) if elsewhere is not None else ""
        why = f"{why}; {said}" if said else why
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
