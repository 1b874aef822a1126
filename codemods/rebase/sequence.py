"""Three-way merge of sequences: statements of a block, items of a list, entries of a YAML file."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher


@dataclass(frozen=True, slots=True)
class Item[T]:
    """One element.

    Attributes:
        value: the element.
        same: two elements with an equal `same` are the same for the merge (formatting is none of it).
        key: a name that finds the element again after it was changed; "" for one without.
        free: whether it may stand before or after its neighbours without a change of meaning.
        core: as `same`, without comments; "" where there is no telling.
    """

    value: T
    same: str
    key: str = ""
    free: bool = False
    core: str = ""


@dataclass(frozen=True, slots=True)
class Clash[T]:
    """Elements that both sides changed, as each side has them."""

    base: list[Item[T]]
    ours: list[Item[T]]
    theirs: list[Item[T]]


@dataclass(frozen=True, slots=True)
class Both[T]:
    """An element that both sides have; the caller merges the three versions."""

    base: Item[T]
    ours: Item[T]
    theirs: Item[T]


@dataclass(frozen=True, slots=True)
class Twin[T]:
    """An element that both sides added, in formatting or comments of their own."""

    ours: Item[T]
    theirs: Item[T]


@dataclass(frozen=True, slots=True)
class Added[T]:
    """Elements that the fork added in a place where upstream added others; their order does not matter.

    Attributes:
        ours, theirs: all that upstream added there, and what only the fork did.
        twins: what both did.
    """

    ours: list[Item[T]]
    theirs: list[Item[T]]
    twins: list[Twin[T]]


type Step[T] = Item[T] | Clash[T] | Both[T] | Added[T] | Twin[T]


def align[T](
    old: Sequence[Item[T]],
    new: Sequence[Item[T]],
    similar: Callable[[Item[T], Item[T]], bool] = lambda a, b: False,
) -> dict[int, int]:
    """Which element of `new` each element of `old` has become."""
    found: dict[int, int] = {}
    matcher = SequenceMatcher(None, [i.same for i in old], [i.same for i in new], autojunk=False)
    for block in matcher.get_matching_blocks():
        for k in range(block.size):
            found[block.a + k] = block.b + k
    taken = set(found.values())
    counts = Counter(i.key for i in old), Counter(i.key for i in new)
    places = {item.key: k for k, item in enumerate(new)}
    for k, item in enumerate(old):
        if k in found or not item.key or counts[0][item.key] != 1 or counts[1][item.key] != 1:
            continue
        other = places[item.key]
        if other not in taken and (item.free or _in_order(found, k, other)):
            found[k] = other
            taken.add(other)
    for k, item in enumerate(old):
        if k in found:
            continue
        low = max((found[j] for j in range(k) if j in found), default=-1)
        high = min((found[j] for j in range(k + 1, len(old)) if j in found), default=len(new))
        for other in range(low + 1, high):
            if other not in taken and similar(item, new[other]):
                found[k] = other
                taken.add(other)
                break
    return found


def _in_order(found: dict[int, int], old: int, new: int) -> bool:
    return all((a < old) == (b < new) for a, b in found.items() if a != old)


def merge[T](
    base: Sequence[Item[T]],
    ours: Sequence[Item[T]],
    theirs: Sequence[Item[T]],
    similar: Callable[[Item[T], Item[T]], bool] = lambda a, b: False,
) -> list[Step[T]]:
    """Merge three sequences.

    What the fork added goes behind the element that it stood behind; ours gives the order of everything else.
    Where both sides added something in one place and order matters, or one side removed what the other changed,
    the outcome is a `Clash`.
    """
    to_ours, to_theirs = align(base, ours, similar), align(base, theirs, similar)
    from_ours = {b: a for a, b in to_ours.items()}
    from_theirs = {b: a for a, b in to_theirs.items()}
    added_ours = _added(ours, from_ours)
    added_theirs = _added(theirs, from_theirs)
    steps: list[Step[T]] = []
    gone: dict[int, list[Step[T]]] = defaultdict(list)
    for k, item in enumerate(base):
        if k in to_ours:
            continue
        if k in to_theirs and (
            theirs[to_theirs[k]].same != item.same or not _in_order(to_theirs, k, to_theirs[k])
        ):  # what one side removed, the other changed or put elsewhere
            anchor = max((j for j in range(k) if j in to_ours), default=-1)
            gone[anchor].append(Clash([item], [], [theirs[to_theirs[k]]]))

    waiting = dict(added_theirs)
    # What the fork added behind something that upstream removed goes with the nearest element before it.
    for k in sorted(added_theirs):
        if k >= 0 and k not in to_ours:
            anchor = max((j for j in range(k) if j in to_ours), default=-1)
            items = waiting.pop(k)
            after = next((j for j in range(k + 1, len(base)) if j in to_ours), None)
            removed = base[anchor + 1 : after if after is not None else len(base)]
            if all(i.free for i in items):
                waiting.setdefault(anchor, []).extend(items)
            else:
                gone[anchor].append(Clash(list(removed), [], [*removed, *items]))

    def emit(anchor: int) -> None:
        """What was added behind the element `anchor` of the base, on both sides."""
        here, there = added_ours.get(anchor, []), waiting.pop(anchor, [])
        known = {i.same: i for i in here}
        cores = {i.core: i for i in here if i.core}
        new = [i for i in there if i.same not in known and i.core not in cores]
        twins = {
            id(known[i.same] if i.same in known else cores[i.core]): i
            for i in there
            if i.same in known or i.core in cores
        }

        def put(items: list[Item[T]]) -> None:
            for item in items:
                steps.append(Twin(item, twins[id(item)]) if id(item) in twins else item)

        if not new or not here:
            put(here)
            steps.extend(new)
        elif len(new) < len(there) and not _alone(here, there):
            steps.append(Clash([], here, there))
        elif all(i.free for i in (*here, *new)) and _distinct(here, new):
            both = [Twin(i, twins[id(i)]) for i in here if id(i) in twins]
            steps.append(Added(here, new, both))
        else:
            steps.append(Clash([], here, there))
        steps.extend(gone.pop(anchor, []))

    emit(-1)
    for k, item in enumerate(ours):
        if k not in from_ours:
            continue
        b = from_ours[k]
        if b in to_theirs:
            steps.append(Both(base[b], item, theirs[to_theirs[b]]))
        elif item.same != base[b].same:
            steps.append(Clash([base[b]], [item], []))
        emit(b)
    for anchor in sorted(waiting):
        emit(anchor)
    return steps


def _added[T](items: Sequence[Item[T]], known: dict[int, int]) -> dict[int, list[Item[T]]]:
    """Elements that the base does not have, by the element of the base that they stand behind."""
    found: dict[int, list[Item[T]]] = defaultdict(list)
    anchor = -1
    for k, item in enumerate(items):
        if k in known:
            anchor = known[k]
        else:
            found[anchor].append(item)
    return dict(found)


def _alone[T](here: list[Item[T]], there: list[Item[T]]) -> bool:
    """Whether what both added comes first in both, or in the same order at all if nothing else is between."""
    return all(i.free for i in (*here, *there))


def _distinct[T](here: list[Item[T]], there: list[Item[T]]) -> bool:
    keys = [i.key for i in (*here, *there)]
    return all(keys) and not {i.key for i in here} & {i.key for i in there}
