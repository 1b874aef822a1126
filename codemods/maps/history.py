"""Where each file of a tree went: renames followed commit by commit.

Comparing only the two ends finds few of the moves of a large reorganisation, since files were moved
several times and edited in between; within one commit a moved file is still nearly itself. Every step
is paired here rather than by `git diff -M`, because the old path often lives on as a forwarding module
(so git sees no deletion to pair), and because empty or licence-only files must never pair by likeness.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from codemods.maps.gitstore import Change, GitStore, Step
from codemods.maps.symbols import scan

Progress = Callable[[int, int, str], None]

# Likeness (shared text over the larger text) from which a new file counts as an old one moved; git's own default.
MOVED = 0.5
# The same for a file that keeps its leaf name.
MOVED_SAME_NAME = 0.3
# The same for data files, which are often near-identical to each other.
MOVED_DATA = 0.9
_DATA = frozenset({".json", ".jsonl", ".csv", ".txt", ".yml", ".yaml"})
# Share of a new file that must come from one old file to count as a part of it.
PART = 0.3
# Lines a file must have, comments and blank lines aside, to be recognised by its content.
SUBSTANTIAL = 6


@dataclass(frozen=True, slots=True)
class Move:
    """One step of a file: from `old` to `new` at step number `step`."""

    step: int
    old: str
    new: str
    likeness: float


@dataclass(slots=True)
class Lineage:
    """The life of one file of the base.

    Attributes:
        path: where the base has it.
        current: where it is after the last step followed; None once it is deleted.
        moves: its moves, oldest first.
        parts: new files that took a part of it when it was split, with the share of theirs that came from it.
        deleted: number of the step that deleted it, while it is gone.
        last: where it was last.
    """

    path: str
    current: str | None
    moves: list[Move] = field(default_factory=list)
    parts: list[tuple[str, float]] = field(default_factory=list)
    deleted: int | None = None
    last: str = ""


@dataclass(slots=True)
class History:
    """What following found.

    Attributes:
        base: the tree followed from, path → blob id.
        steps: the steps followed, oldest first.
        lineages: base path → its life.
        moved: per step, old path → new path.
        changes: path → (step number, change) for each step that touched it.
    """

    base: dict[str, str]
    steps: list[Step]
    lineages: dict[str, Lineage]
    moved: list[dict[str, str]]
    changes: dict[str, list[tuple[int, Change]]]


class Texts:
    """Contents by blob id, as multisets of their lines."""

    def __init__(self, store: GitStore) -> None:
        self._store = store
        self._held: dict[str, Counter[bytes]] = {}

    def lines(self, blob: str) -> Counter[bytes]:
        """The lines of a blob that say something: no blank lines, no comments, indentation aside."""
        held = self._held.get(blob)
        if held is None:
            content = self._store.read(blob) or b""
            held = Counter()
            if b"\0" not in content[:8000]:
                for line in content.splitlines():
                    text = line.strip()
                    if text and not text.startswith((b"#", b"//")):
                        held[text] += 1
            self._held[blob] = held
        return held

    def emptied(self, change: Change) -> bool:
        """Whether a file's content gave way to a forwarding module, or to next to nothing."""
        if change.old is None or change.new is None:
            return False
        small = weight(self.lines(change.new)) * 5 < weight(self.lines(change.old))
        if not change.path.endswith(".py"):
            return small
        new = scan(self._store.read(change.new) or b"", change.path)
        if new.shim:
            return True
        # What still defines the same things (subclasses of what moved, say) is still the same module.
        old = scan(self._store.read(change.old) or b"", change.path)
        common = new.definitions.keys() & old.definitions.keys() - {"main"}
        return small and all(new.definitions[name].kind == "assign" for name in common)

    def substantial(self, blob: str) -> bool:
        """Whether a blob has enough content of its own to be recognised by it."""
        return self.lines(blob).total() >= SUBSTANTIAL


def weight(lines: Counter[bytes]) -> int:
    """How much text a multiset of lines is."""
    return sum([len(line) * count for line, count in lines.items()])


def likeness(old: Counter[bytes], new: Counter[bytes]) -> tuple[float, float]:
    """Shared text over the larger of both, and over the new one alone."""
    shared = weight(old & new)
    larger = max(weight(old), weight(new), 1)
    return shared / larger, shared / max(weight(new), 1)


def leaf(path: str) -> str:
    """A file's name for comparison: without the leading underscore of a private module."""
    name = PurePosixPath(path).name
    return name if name.startswith("__") else name.removeprefix("_")


def follow(
    store: GitStore,
    base: dict[str, str],
    steps: list[Step],
    progress: Progress | None = None,
) -> History:
    """Follow every file of a tree through steps.

    Args:
        store: where contents are read.
        base: the tree to start from, path → blob id.
        steps: the steps, oldest first; the first one starts at `base`.
        progress: called with (steps done, steps, commit).

    Returns:
        the lives of the files and what moved at each step.
    """
    texts = Texts(store)
    lineages = {path: Lineage(path, path, last=path) for path in base}
    owner: dict[str, str] = {path: path for path in base}
    tree = dict(base)
    by_leaf: dict[str, set[str]] = defaultdict(set)
    for path in base:
        by_leaf[leaf(path)].add(path)
    moved: list[dict[str, str]] = []
    touched: dict[str, list[tuple[int, Change]]] = defaultdict(list)
    dead: dict[str, str] = {}
    dead_blob: dict[str, str] = {}

    for number, step in enumerate(steps):
        if progress:
            progress(number, len(steps), step.commit[:10])
        for change in step.changes:
            touched[change.path].append((number, change))
        pairs, parts = pair(texts, step.changes, frozenset(owner))
        # Deleted without a new file in this step: it may have been copied to its new place earlier.
        claimed = {new for new, _ in pairs.values()}
        gone = {change.path for change in step.changes if change.new is None}
        for change in step.changes:
            if change.path in gone and change.path in owner and change.path not in pairs:
                free = sorted(by_leaf[leaf(change.path)] - owner.keys() - gone - claimed)
                found = _copied(texts, change, free, tree)
                if found is not None:
                    pairs[change.path] = found
                    claimed.add(found[0])
        leaving = {old: owner.pop(old) for old in pairs if old in owner}
        for old, (new, alike) in pairs.items():
            if old in leaving:
                life = lineages[leaving[old]]
                life.moves.append(Move(number, old, new, alike))
                life.current = life.last = new
                owner[new] = life.path
        for old, taken in parts.items():
            home = leaving.get(old) or owner.get(old)
            if home is not None:
                lineages[home].parts.extend(t for t in taken if t[0] != lineages[home].current)
        for change in step.changes:
            path = change.path
            if change.new is None:
                tree.pop(path, None)
                by_leaf[leaf(path)].discard(path)
                if path in owner:
                    life = lineages[owner.pop(path)]
                    life.current, life.deleted = None, number
                    dead[path], dead_blob[path] = life.path, change.old or ""
                continue
            tree[path] = change.new
            by_leaf[leaf(path)].add(path)
            if change.old is None and path in dead and path not in owner:
                # A deletion taken back.
                back = likeness(texts.lines(dead_blob[path]), texts.lines(change.new))[0]
                if back >= MOVED or dead_blob[path] == change.new:
                    life = lineages[dead.pop(path)]
                    life.current, life.deleted = path, None
                    owner[path] = life.path
        moved.append({old: new for old, (new, _) in pairs.items()})
    if progress:
        progress(len(steps), len(steps), "")
    return History(base, steps, lineages, moved, dict(touched))


def pair(
    texts: Texts, changes: Iterable[Change], owned: frozenset[str] = frozenset()
) -> tuple[dict[str, tuple[str, float]], dict[str, list[tuple[str, float]]]]:
    """Pair the files that went with the files that came, within one step.

    Args:
        texts: contents.
        changes: the step's changes.
        owned: paths that hold a file of the base; another file's content never moves onto one that stays.

    Returns:
        old path → (new path, likeness), one to one; and for each file that was split, the new files
        that took a part of it with the share of theirs that came from it.
    """
    sources: dict[str, str] = {}
    targets: dict[str, str] = {}
    rewritten: dict[str, float] = {}
    listed = list(changes)
    for change in listed:
        if change.old is None and change.new is not None:
            targets[change.path] = change.new
        elif change.new is None and change.old is not None:
            sources[change.path] = change.old
    if not sources and not targets:
        return {}, {}
    for change in listed:
        if change.old is not None and change.new is not None:
            stays = likeness(texts.lines(change.old), texts.lines(change.new))[0]
            if stays < MOVED:
                rewritten[change.path] = stays
                if targets and texts.substantial(change.old) and texts.emptied(change):
                    sources[change.path] = change.old
                if sources and change.path not in owned and texts.substantial(change.new):
                    targets[change.path] = change.new

    scored: list[tuple[float, float, str, str]] = []
    for old, old_blob in sources.items():
        if not texts.substantial(old_blob):
            continue
        for new, new_blob in targets.items():
            if old == new or not texts.substantial(new_blob):
                continue
            if PurePosixPath(old).suffix != PurePosixPath(new).suffix:
                continue
            tail = _shared_tail(old, new)
            alike = (
                1.0
                if old_blob == new_blob
                else likeness(texts.lines(old_blob), texts.lines(new_blob))[0]
            )
            least = max(_threshold(old, tail), rewritten.get(old, 0.0), rewritten.get(new, 0.0))
            if alike >= least:
                # Near-identical files abound (data, configs): the same name and folders count too.
                scored.append((alike + 0.1 * min(tail, 4), alike, old, new))
    scored.sort(key=lambda s: (-s[0], -s[1], s[2], s[3]))
    pairs: dict[str, tuple[str, float]] = {}
    taken: set[str] = set()
    for _, alike, old, new in scored:
        if old not in pairs and new not in taken:
            pairs[old] = (new, round(alike, 3))
            taken.add(new)

    went = {path: blob for path, blob in sources.items() if path not in rewritten}
    _pair_absorbed(texts, went, targets, pairs, taken)
    parts = _split(texts, sources, targets, pairs, taken)
    _pair_by_path(texts, sources, targets, pairs, taken)
    return pairs, parts


def _shared_tail(old: str, new: str) -> int:
    """How many of the last parts two paths share."""
    if leaf(old) != leaf(new):
        return 0
    count = 1
    for a, b in zip(old.split("/")[-2::-1], new.split("/")[-2::-1], strict=False):
        if a != b:
            break
        count += 1
    return count


def _threshold(path: str, tail: int) -> float:
    if PurePosixPath(path).suffix in _DATA:
        return MOVED_DATA
    return MOVED_SAME_NAME if tail else MOVED


def _pair_absorbed(
    texts: Texts,
    sources: dict[str, str],
    targets: dict[str, str],
    pairs: dict[str, tuple[str, float]],
    taken: set[str],
) -> None:
    """Python files most of whose content is now in a new, larger file."""
    found: list[tuple[float, str, str]] = []
    for old, old_blob in sources.items():
        if old in pairs or not old.endswith(".py") or not texts.substantial(old_blob):
            continue
        whole = texts.lines(old_blob)
        for new, new_blob in targets.items():
            if new != old and new not in taken and new.endswith(".py"):
                share = weight(whole & texts.lines(new_blob)) / max(weight(whole), 1)
                if share >= MOVED:
                    found.append((share, old, new))
    for share, old, new in sorted(found, key=lambda f: (-f[0], f[1], f[2])):
        if old not in pairs and new not in taken:
            pairs[old] = (new, round(share, 3))
            taken.add(new)


def _split(
    texts: Texts,
    sources: dict[str, str],
    targets: dict[str, str],
    pairs: dict[str, tuple[str, float]],
    taken: set[str],
) -> dict[str, list[tuple[str, float]]]:
    """Files whose content went to several new files; the one that took most becomes the pair."""
    parts: dict[str, list[tuple[str, float]]] = {}
    origin = {new: old for old, (new, _) in pairs.items()}
    for old, old_blob in sources.items():
        if not old.endswith(".py") or (old in pairs and pairs[old][1] >= 0.9):
            continue
        whole = texts.lines(old_blob)
        if not texts.substantial(old_blob):
            continue
        shares: list[tuple[int, float, str]] = []
        for new, new_blob in targets.items():
            if new == old or PurePosixPath(old).suffix != PurePosixPath(new).suffix:
                continue
            lines = texts.lines(new_blob)
            mover = origin.get(new)
            if mover not in (None, old):
                lines = lines - texts.lines(sources[mover])
            shared = weight(whole & lines)
            share = shared / max(weight(lines), 1)
            if lines.total() >= SUBSTANTIAL and share >= PART:
                shares.append((shared, share, new))
        shares.sort(key=lambda s: (-s[0], s[2]))
        if sum(s[0] for s in shares) < MOVED * weight(whole) or len(shares) < 2:
            continue
        if old not in pairs:
            best = next((s for s in shares if s[2] not in taken), None)
            if best is None:
                continue
            pairs[old] = (best[2], round(best[0] / max(weight(whole), 1), 3))
            taken.add(best[2])
        parts[old] = [(new, round(share, 3)) for _, share, new in shares]
    return parts


def _pair_by_path(
    texts: Texts,
    sources: dict[str, str],
    targets: dict[str, str],
    pairs: dict[str, tuple[str, float]],
    taken: set[str],
) -> None:
    """Files with too little content pair by the move of the folder around them."""
    votes: dict[str, Counter[str]] = defaultdict(Counter)
    for old, (new, _) in pairs.items():
        olds, news = old.split("/"), new.split("/")
        # A folder's move is also its parent's, as long as the folder names below agree.
        tail = 1
        while tail < min(len(olds), len(news)):
            votes["/".join(olds[:-tail])]["/".join(news[:-tail])] += 1
            if olds[-tail - 1] != news[-tail - 1]:
                break
            tail += 1
    for old in sorted(sources):
        if old in pairs or texts.substantial(sources[old]):
            continue
        folder, _, name = old.rpartition("/")
        below = name
        while folder:
            for home, _ in votes[folder].most_common() if folder in votes else ():
                new = f"{home}/{below}"
                if home != folder and new in targets and new not in taken:
                    pairs[old] = (new, 1.0)
                    taken.add(new)
                    break
            if old in pairs:
                break
            folder, _, last = folder.rpartition("/")
            below = f"{last}/{below}"
    # A file of a few lines that moved alone: the only one of its name that went, and the only one that came.
    gone, came = Counter(map(leaf, sources.keys() - pairs.keys())), Counter(
        map(leaf, targets.keys() - taken)
    )
    for old in sorted(sources.keys() - pairs.keys()):
        name = leaf(old)
        if (
            name == "__init__.py"
            or gone[name] > 1
            or came[name] > 1
            or texts.substantial(sources[old])
        ):
            continue
        for new in sorted(targets.keys() - taken):
            if leaf(new) == name and new != old and not texts.substantial(targets[new]):
                pairs[old] = (new, 1.0)
                taken.add(new)
                break


def _copied(
    texts: Texts, change: Change, candidates: Iterable[str], tree: dict[str, str]
) -> tuple[str, float] | None:
    """The one of the standing files that has the content of the file deleted now."""
    if change.old is None or not texts.substantial(change.old):
        return None
    old = texts.lines(change.old)
    best: tuple[float, str] | None = None
    for path in candidates:
        alike = likeness(old, texts.lines(tree[path]))[0]
        if alike >= MOVED and (best is None or alike > best[0]):
            best = (alike, path)
    return (best[1], round(best[0], 3)) if best else None
