"""Where a repository path that is written somewhere in a text points to after the migration."""

from __future__ import annotations

import posixpath
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from codemods.engine.project import OLD_ROOT

if TYPE_CHECKING:
    from codemods.engine.project import Project

# Upstream's repository has its packages there; an unpacked wheel is looked at as if it had, too.
SOURCE_ROOT = "src"

# Folders that a variable of `globals.py` stands for: (variable, old folders, new folder). The new
# column is what the same variable means in the target, so it holds for the folder's name too, even
# where the files below it went one level deeper.
ROOT_VARIABLES: dict[str, tuple[tuple[str, ...], str]] = {
    "MAXTEXT_PKG_DIR": (("src/MaxText",), "src/maxtext"),
    "MAXTEXT_REPO_ROOT": (("",), ""),
    "MAXTEXT_ASSETS_ROOT": (("src/MaxText/assets",), "src/maxtext/assets"),
    "MAXTEXT_TEST_ASSETS_ROOT": (("src/MaxText/test_assets", "tests/assets"), "tests/assets"),
    "MAXTEXT_CONFIGS_DIR": (("src/MaxText/configs",), "src/maxtext/configs"),
}

# What stands for something that is only known when the text is used.
_HOLE = re.compile(r"\$\{[^{}]*\}|\$\w+|\{[^{}]*\}|<[^<>]*>|\*\*|\*|\?|%[sdr]|\[[^\]]*\]")


# Patterns for all that a folder holds.
_EVERYTHING = frozenset({"**", "**/*", ".*", "*.*"})


@dataclass(frozen=True, slots=True)
class Place:
    """What became of an old path.

    Attributes:
        new: its path in the output; None if it has none.
        certain: whether the map names this very file or folder (False: a guess by its folder).
        note: what a reviewer should know.
        problem: why it cannot be rewritten; "" if it can.
        left_out: whether the file stays out of the output on purpose.
    """

    new: str | None
    certain: bool = True
    note: str = ""
    problem: str = ""
    left_out: bool = False


class Locations:
    """Answers for one checkout; made once per project."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.old_package = f"{SOURCE_ROOT}/{OLD_ROOT}"
        canonical = project.canonical
        files: dict[str, str | None] = {p: e.new for p, e in project.map.paths.items()}
        for path, placement in project.placements.items():
            place = placement.new or placement.instead
            files[canonical(path)] = canonical(place) if place else None
        self.files = files
        self._deep: dict[str, Counter[str | None]] = defaultdict(Counter)
        self._direct: dict[str, Counter[str | None]] = defaultdict(Counter)
        self._new_files: dict[str, list[str]] = defaultdict(list)
        self._lower: dict[str, list[str]] = defaultdict(list)
        self._new_paths = {new for new in files.values() if new is not None}
        for path in list(self._new_paths):
            parts = path.split("/")
            self._new_paths.update("/".join(parts[:depth]) for depth in range(1, len(parts)))
        for old, new in files.items():
            self._lower[old.lower()].append(old)
            parts = old.split("/")
            for depth in range(1, len(parts)):
                folder = "/".join(parts[:depth])
                tail = "/" + "/".join(parts[depth:])
                home = new[: -len(tail)] if new is not None and new.endswith(tail) else None
                self._deep[folder][home] += 1
                if new is not None:
                    self._new_files[folder].append(new)
                if depth == len(parts) - 1:
                    self._direct[folder][home] += 1
        self.tops = frozenset(
            p.split("/", 1)[0] for p, new in files.items() if "/" in p and new != p
        ) - {SOURCE_ROOT, OLD_ROOT}
        names: dict[str, set[str | None]] = defaultdict(set)
        self._named: dict[str, list[str]] = defaultdict(list)
        for old, new in files.items():
            names[posixpath.basename(old)].add(posixpath.basename(new) if new else None)
            self._named[posixpath.basename(old)].append(old)
        self.basenames = {
            old: next(iter(new))
            for old, new in names.items()
            if re.search(r"(?<![A-Za-z])al_model", old) and len(new) == 1
        }
        self.package_parts = frozenset(
            part
            for path in files
            if path.startswith(self.old_package + "/")
            for first in [path[len(self.old_package) + 1 :].split("/", 1)[0]]
            for part in (first, first.removesuffix(".py"))
        )

    def root_folder(self, variable: str) -> tuple[str, str]:
        """The folder that one of the MAXTEXT_* variables stands for: (old path, new path)."""
        olds, new = ROOT_VARIABLES[variable]
        for old in olds:
            if old in self._deep:
                return old, new
        return olds[0], new

    def is_folder(self, path: str) -> bool:
        return path == "" or path in self._deep

    def is_new(self, path: str) -> bool:
        """Whether a file or folder of the migrated tree has this path already."""
        return posixpath.normpath(path) in self._new_paths

    def new_folders(self, folder: str) -> list[str]:
        """The folders that the files below the old `folder` lie in after the migration."""
        return sorted({posixpath.dirname(new) for new in self._new_files.get(folder, ())})

    def new_folder_of(self, path: str) -> str:
        """The folder that the file at the old `path` lies in after the migration."""
        path = self.project.canonical(path)
        return posixpath.dirname(self.files.get(path, path) or path)

    def resolve(self, path: str, recursive: bool = False) -> Place | None:
        """Where the old `path` (file, folder, or a pattern with holes) is now.

        Args:
            path: a path of the old tree.
            recursive: whether a final `*` stands for all below a folder, not just what is in it.

        Returns:
            None when the old tree has no such path and none of its folders says where it would be.
        """
        path = posixpath.normpath(path) if path else ""
        if path in ("", "."):
            return Place("")
        if path == "tests":
            return Place(path)  # what it holds went to its folders
        if _HOLE.search(path):
            return self._pattern(path, recursive)
        for olds, new in ROOT_VARIABLES.values():
            if path in olds and (path in self._deep or path == self.old_package):
                return Place(new)
        if path in self.files:
            return self._file(path)
        if path in self._deep:
            return self._folder(path)
        if (place := self._module(path)) is not None:
            return place
        twins = self._lower.get(path.lower(), [])
        if len(twins) == 1 and self.files[twins[0]] is not None:
            return Place(self.files[twins[0]], False, f"the tree spells it {twins[0]}")
        if not self.project.old.is_module(OLD_ROOT):
            return None  # a migrated tree: what is still named by an old path was listed before
        return self._namesake(path) or self._below(path)

    def _namesake(self, path: str) -> Place | None:
        """The only file of the old tree that has the name of a file that it does not have."""
        name = posixpath.basename(path)
        olds = self._named.get(name, []) if path.startswith(self.old_package) else []
        if len(olds) != 1 or len(name) < 10 or self.files[olds[0]] is None:
            return None
        return Place(
            self.files[olds[0]], False, f"no such file; the only one of that name was {olds[0]}"
        )

    def _file(self, path: str) -> Place:
        placement = self.project.path(path)
        if placement is None:
            return self._placed(self.files[path], "", "")
        if placement.new is None and placement.rule == "MAP004":
            return Place(None, problem=placement.why, left_out=True)
        note = placement.why if placement.rule != "MAP001" else ""
        return self._placed(placement.new, placement.problem or placement.why, note)

    @staticmethod
    def _placed(new: str | None, problem: str, note: str) -> Place:
        if new is None:
            return Place(None, problem=problem or "the file has no place in the migrated tree")
        return Place(new, note=note)

    def _module(self, path: str) -> Place | None:
        """`MaxText/layers/moe`: a module written with slashes."""
        module = path + ".py"
        if module not in self.files:
            return None
        place = self._file(module)
        return place if place.new is None else Place(place.new.removesuffix(".py"), note=place.note)

    def _folder(self, path: str) -> Place:
        homes = self._deep[path]
        living = {home: n for home, n in homes.items() if home is not None}
        if len(living) == 1 and (len(homes) == 1 or homes[None] <= living[next(iter(living))]):
            (home,) = living
            return Place(home)
        news = self._new_files[path]
        if not news:
            return Place(None, problem="upstream deleted everything in this folder")
        common = _common(news)
        if posixpath.basename(common) == posixpath.basename(path):
            return Place(common)
        spread = Counter(posixpath.dirname(new) for new in news)
        told = ", ".join(f"{folder} ({n})" for folder, n in spread.most_common(4))
        if living:
            best, count = max(living.items(), key=lambda item: item[1])
            if 2 * count >= len(news):
                return Place(best, False, f"its files went to {told}")
        return Place(None, problem=f"its files went to different folders: {told}")

    def _below(self, path: str) -> Place | None:
        """A path that the tree does not have, by the nearest folder that it has."""
        folder, below = posixpath.split(path)
        homes = self._direct.get(folder)
        while folder and folder not in self._deep:
            folder, name = posixpath.split(folder)
            below = f"{name}/{below}"
            homes = self._deep.get(folder)
        if not folder or folder == self.old_package or homes is None:
            return None
        living = [home for home in homes if home is not None]
        if len(living) != 1 or (homes[None] and homes[None] > homes[living[0]]):
            return None
        return Place(
            posixpath.join(living[0], below), False, f"no such file in the old tree; {folder} moved"
        )

    def _pattern(self, path: str, recursive: bool) -> Place | None:
        parts = path.split("/")
        fixed = next(k for k, part in enumerate(parts) if _HOLE.search(part))
        folder, rest = "/".join(parts[:fixed]), "/".join(parts[fixed:])
        if folder and (rest in _EVERYTHING or (recursive and rest == "*")):
            place = self.resolve(folder)
            if place is None or place.new is None:
                return place
            return Place(posixpath.join(place.new, rest), place.certain, place.note)
        if not folder:
            return None
        homes: Counter[str | None] = Counter()
        matches = re.compile(_glob(path)).fullmatch
        renamed = rest.replace("al_model", "ling2")
        for old, new in self.files.items():
            if old.startswith(folder + "/") and matches(old):
                tail = old[len(folder) :]
                if renamed != rest:  # the model's own files: the pattern takes their new name
                    tail = tail.replace("al_model", "ling2")
                homes[new[: -len(tail)] if new and new.endswith(tail) else None] += 1
        living = [home for home in homes if home is not None]
        if not homes:
            direct = self._direct.get(folder, Counter()) if len(parts) == fixed + 1 else None
            homes = direct or self._deep.get(folder, Counter())
            living = [home for home in homes if home is not None]
            if len(living) == 1 and folder != self.old_package:
                return Place(posixpath.join(living[0], rest), False, f"{folder} moved as a whole")
            if len(living) < 2:
                return None
        if len(living) == 1 and homes[None] <= homes[living[0]]:
            return Place(
                posixpath.join(living[0], renamed),
                False,
                f"all that it can match in {folder} moved there",
            )
        homes_told = [f"{home} ({homes[home]})" for home in sorted(living)]
        if homes[None]:
            homes_told.append(f"deleted or renamed ({homes[None]})")
        told = ", ".join(homes_told)
        return Place(None, problem=f"what it can match did not go to one place: {told}")


def _glob(path: str) -> str:
    """A regular expression for the paths that a path with holes can mean."""
    out, position = [], 0
    for hole in _HOLE.finditer(path):
        out.append(re.escape(path[position : hole.start()]))
        out.append(".*" if hole.group() == "**" else "[^/]" if hole.group() == "?" else "[^/]*")
        position = hole.end()
    out.append(re.escape(path[position:]))
    return "".join(out)


def _common(paths: Iterable[str]) -> str:
    folders = [posixpath.dirname(path) for path in paths]
    return posixpath.commonpath(folders) if all(folders) else ""


_last: Locations | None = None


def locations(project: Project) -> Locations:
    """The locations of a project; the last one asked for is kept."""
    global _last
    if _last is None or _last.project is not project:
        _last = Locations(project)
    return _last
