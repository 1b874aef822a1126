"""MAP: where each file of the checkout goes."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from itertools import count
from pathlib import PurePosixPath

from codemods.engine.project import NEW_ROOT, Placement
from codemods.maps.model import MoveMap
from codemods.maps.symbols import canonical, module_name, scan
from codemods.rules.base import Example, Rule

RULES = (
    Rule(
        "MAP001",
        "safe",
        "a file that upstream has goes where upstream moved it",
        examples=(
            Example(
                "x = 1\n",
                "x = 1\n",
                path="src/MaxText/max_utils.py -> src/maxtext/utils/max_utils.py",
            ),
        ),
    ),
    Rule(
        "MAP002",
        "review",
        "a file of the fork's own goes where its neighbours went",
        "A module in layers/ that defines decoder layers or scannable blocks goes to models/, as "
        "upstream split that folder; a test goes to tests/unit/.",
        (
            Example(
                "class OwnDecoderLayer:\n  pass\n",
                "class OwnDecoderLayer:\n  pass\n",
                path="src/MaxText/layers/own.py -> src/maxtext/models/own.py",
            ),
            Example(
                "def own():\n  pass\n",
                "def own():\n  pass\n",
                path="src/MaxText/layers/own_ops.py -> src/maxtext/layers/own_ops.py",
            ),
        ),
    ),
    Rule(
        "MAP003",
        "review",
        "al_model files take Ling2's names; ALModel/ goes to models/",
        examples=(
            Example(
                "x = 1\n",
                "x = 1\n",
                path="ALModel/al_model.py -> src/maxtext/models/ling2.py",
            ),
            Example(
                "x: 1\n",
                "x: 1\n",
                path="src/MaxText/configs/models/al_model.yml -> src/maxtext/configs/models/ling2.yml",
            ),
        ),
    ),
    Rule(
        "MAP004",
        "review",
        "files that stay out: the dumper's module, an empty package file that has no new home, a shim or copy "
        "beside the file that has moved",
        examples=(
            Example(
                "def dump_tensor(name, x):\n  return x\n",
                "def dump_tensor(name, x):\n  return x\n",
                path="src/MaxText/utils/argus_utils.py -> ",
            ),
            Example(
                "from maxtext.common.profiler import *\n",
                "from maxtext.common.profiler import *\n",
                path="src/MaxText/profiler.py -> ",
                files={"src/maxtext/common/profiler.py": "class Profiler:\n  pass\n"},
            ),
        ),
    ),
    Rule(
        "MAP005",
        "report",
        "two files that would land on one path: the second keeps a path of its own or stays out",
        "layers/ling2.py is the older implementation: al_model.py takes its place and it is left out.",
        (
            Example(
                "x = 1\n",
                "x = 1\n",
                path="src/MaxText/layers/ling2.py -> ",
                files={"ALModel/al_model.py": "y = 1\n"},
                listed=("x = 1",),
            ),
        ),
    ),
    Rule(
        "MAP006",
        "report",
        "a file that upstream deleted and the fork changed is carried along",
        examples=(
            Example(
                "changed = 1\n",
                "changed = 1\n",
                path="src/MaxText/inference/page_manager.py -> src/maxtext/inference/page_manager.py",
                listed=("changed = 1",),
            ),
        ),
    ),
)

_ALL = tuple(rule.id for rule in RULES)

AL_FOLDER = "ALModel"
AL_MODULE = f"{AL_FOLDER}/al_model.py"
SUPERSEDED = "src/MaxText/layers/ling2.py"
LING2 = "src/maxtext/models/ling2.py"

_AL_NAME = re.compile(r"(?<![A-Za-z0-9])al_model(?![A-Za-z0-9])")
_DECODER_LAYER = re.compile(
    rb"^class \w*(?:DecoderLayer|ScannableBlock|DenseLayer|Mo[Ee]Layer)\b", re.MULTILINE
)
_TEST_FILE = re.compile(r"tests/(?:[\w-]+/)*(?:test_\w+|\w+_tests?)\.py\Z")


def place(
    files: Iterable[str],
    map_: MoveMap,
    dumpers: Collection[str],
    read: Callable[[str], bytes],
    changed: Callable[[str], bool],
    wheel: bool = False,
    enabled: Collection[str] = _ALL,
) -> dict[str, Placement]:
    """Place every file of a checkout; no two land on one path.

    Args:
        files: paths in the checkout.
        map_: upstream's moves.
        dumpers: dotted modules of the dump machinery.
        read: gives a file's bytes.
        changed: whether a file differs from the base's.
        wheel: the checkout is an unpacked wheel (no `src/`); placements then have none either.
        enabled: ids of the MAP rules that run; what a rule that is off would move stays.
    """
    paths = {path: (canonical(path) if wheel else path) for path in files}
    present = set(paths.values())
    homes = {e.new.rpartition("/")[0] for e in map_.paths.values() if e.new is not None}
    wanted = {
        path: _want(old, present, map_, homes, dumpers, partial(read, path), partial(changed, path))
        for path, old in paths.items()
    }
    wanted = {
        path: w if not w.rule or w.rule in enabled else Placement(paths[path])
        for path, w in wanted.items()
    }
    placed: dict[str, Placement] = {}
    taken: dict[str, str] = {}
    order = sorted(paths, key=lambda p: (wanted[p].new != paths[p], wanted[p].rule, p))
    for path in order:
        placement = wanted[path]
        new = placement.new
        holder = taken.get(new or "")
        if (
            new is not None
            and holder is not None
            and paths[holder] == new
            and "MAP004" in enabled
            and _gives_way(paths[path], read(path), read(holder))
        ):
            why = f"`{new}` is in the checkout already, and this file holds nothing that it lacks"
            placement = Placement(None, "MAP004", why, instead=new)
        elif new is not None and holder is not None:
            spare = next(p for p in _spares(paths[path], new) if p not in taken)
            placement = Placement(
                spare,
                "MAP005",
                placement.why,
                f"`{new}` is already taken by `{holder}`",
            )
        if placement.new is not None:
            taken[placement.new] = path
        if wheel and placement.new is not None and canonical(path) != path:
            placement = Placement(
                placement.new.removeprefix("src/"), placement.rule, placement.why, placement.problem
            )
        placed[path] = placement
    return {path: placed[path] for path in paths}


def _spares(old: str, new: str) -> Iterator[str]:
    """Paths for a file whose place `new` is taken: by its old folder, or where nothing moved its own, else renamed."""
    package = "src/MaxText/"
    if old.startswith(package):
        yield f"src/{NEW_ROOT}/{old.removeprefix(package)}"
    elif not old.startswith(f"{AL_FOLDER}/"):
        yield old
    place = PurePosixPath(new)
    yield place.with_stem(f"{place.stem}_own").as_posix()
    for number in count(2):
        yield place.with_stem(f"{place.stem}_own_{number}").as_posix()


def _gives_way(path: str, data: bytes, moved: bytes) -> bool:
    """Whether a file is the old layout's leftover of one that has moved: a shim, without code, or a copy."""
    if data == moved:
        return True
    if not path.endswith(".py"):
        return False
    module = scan(data, path)
    bound = (
        module.definitions or module.imports or module.modules or module.stars or module.exported
    )
    return module.shim or (module.package and not module.error and not bound)


def _want(
    old: str,
    present: Collection[str],
    map_: MoveMap,
    homes: Collection[str],
    dumpers: Collection[str],
    read: Callable[[], bytes],
    changed: Callable[[], bool],
) -> Placement:
    """Where a file would go if nothing else wanted the place."""
    if old.endswith(".py") and module_name(old) in dumpers:
        return Placement(None, "MAP004", "the dump hooks stay out of the migrated tree")
    if old == SUPERSEDED:
        if AL_MODULE in present:
            return Placement(
                None,
                "MAP005",
                f"superseded by {AL_MODULE}",
                f"`{AL_MODULE}` becomes `{LING2}`; this older implementation is left out",
                LING2,
            )
        return Placement(LING2, "MAP003", "the model's place upstream")
    entry = map_.paths.get(old)
    if entry is not None and entry.new is not None:
        by = (
            f"upstream moved it ({', '.join(entry.commits)})"
            if entry.commits
            else "upstream moved it"
        )
        return Placement(entry.new, "MAP001" if entry.new != old else "", by)
    if entry is None and old in map_.blobs:
        return Placement(old)
    own = _own(old, map_, homes, read)
    if entry is not None:
        by = f" in commit {entry.commits[-1]}" if entry.commits else ""
        why = f"upstream deleted it{by}; the checkout's copy is carried along"
        if old.endswith(".py") and changed():
            return Placement(own.new, "MAP006", why, f"upstream deleted this file{by}")
        return Placement(own.new, own.rule, why)
    return own


def _own(old: str, map_: MoveMap, homes: Collection[str], read: Callable[[], bytes]) -> Placement:
    """A home by rule for a file that upstream's map does not place; `homes` are folders of the new tree."""
    folder, _, name = old.rpartition("/")
    rule, why = "", ""
    new_name = _AL_NAME.sub("ling2", name)
    if new_name != name:
        rule, why = "MAP003", "al_model is named ling2 upstream"
    if folder == AL_FOLDER or folder.startswith(f"{AL_FOLDER}/"):
        if name == "__init__.py" and not read().strip():
            return Placement(None, "MAP004", "the empty package file has no new home")
        new_folder = f"src/{NEW_ROOT}/models{folder[len(AL_FOLDER):]}"
        return Placement(f"{new_folder}/{new_name}", "MAP003", "the model's place upstream")
    new_folder = folder
    if folder == "src/MaxText/layers" and name.endswith(".py") and _DECODER_LAYER.search(read()):
        new_folder = f"src/{NEW_ROOT}/models"
        rule, why = rule or "MAP002", "it defines decoder layers, which upstream keeps in models/"
    elif folder == "tests" or folder.startswith("tests/"):
        if _TEST_FILE.match(old) and "tests" in map_.folders:
            moved = _folder(folder, map_.folders)
            above = {p.as_posix() for p in PurePosixPath(old).parents} - {"tests", "."}
            if moved != folder and above.isdisjoint(homes):
                new_folder = moved
                rule, why = rule or "MAP002", f"tests went to {moved}/"
    elif folder.startswith("src/MaxText") or folder == "MaxText":
        packages = {
            path.removesuffix("/__init__.py"): entry.new.removesuffix("/__init__.py")
            for path, entry in map_.paths.items()
            if path.endswith("/__init__.py") and entry.new is not None
        }
        new_folder = _folder(folder, {**map_.folders, **packages})
        rule, why = rule or "MAP002", f"its package or its neighbours went to {new_folder}/"
    else:  # a folder that upstream moved as it is (end_to_end → tests/end_to_end) takes its files along
        whole = {o: n for o, n in map_.folders.items() if n.endswith(f"/{o}")}
        new_folder = _folder(folder, whole)
        if new_folder != folder:
            rule, why = rule or "MAP002", f"its folder went to {new_folder}/"
    new = f"{new_folder}/{new_name}" if new_folder else new_name
    return Placement(new, rule, why) if new != old else Placement(old)


def _folder(folder: str, folders: Mapping[str, str]) -> str:
    """The new place of a folder: by the nearest ancestor that moved."""
    parent, rest = folder, ""
    while parent:
        moved = folders.get(parent)
        if moved is not None:
            return f"{moved}{rest}"
        parent, _, leaf = parent.rpartition("/")
        rest = f"/{leaf}{rest}"
    return folder


def modules(placements: Mapping[str, Placement], wheel: bool = False) -> dict[str, str | None]:
    """Dotted module of each Python file → dotted module of its new place (None: it stays out)."""

    def dotted(path: str) -> str:
        return module_name(canonical(path) if wheel else path)

    table: dict[str, str | None] = {}
    for old, placement in placements.items():
        if old.endswith(".py"):
            new = placement.new or placement.instead
            table[dotted(old)] = dotted(new) if new else None
    if table.get(AL_FOLDER, "") is None:
        del table[AL_FOLDER]
    return table
