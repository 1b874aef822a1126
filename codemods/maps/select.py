"""Which map a checkout needs: by merge base, else by the best match of its files."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from codemods.engine.discover import READ_ONLY_GIT
from codemods.errors import UserError
from codemods.maps.gitstore import blob_id
from codemods.maps.model import MoveMap, TreeId, load
from codemods.maps.symbols import canonical, python_files
from codemods.upstream import Upstream

DATA = Path(__file__).with_name("data")
TARGETS = DATA / "targets.json.gz"

# Share of the files at the base's paths that must have the base's content for the match to be certain. (Forks
# that edit their base are at 0.9 and more; the bases that ship, months apart, are at 0.4 to 0.8 of each other.)
CERTAIN = 0.6
# A shipped base that fits by so much more shows that a map given by hand is for another base.
BETTER = 0.1
# Below this share, or with fewer files, contents tell nothing: a small tree with text of its own.
TELLING = 0.05
ENOUGH_FILES = 20
# Share of an upstream's files that must be as in a shipped target for that target's map to serve.
SERVES = 0.9


@dataclass(frozen=True, slots=True)
class Match:
    """How well a tree fits a base.

    Attributes:
        same: files with the base's path and content.
        present: files with the base's path.
        base: Python files of the base.
    """

    same: int
    present: int
    base: int

    @property
    def share(self) -> float:
        """The share of the files at the base's paths that have its content."""
        return self.same / self.present if self.present else 0.0


@dataclass(frozen=True, slots=True)
class Choice:
    """A map and the reason it was taken.

    Attributes:
        map: the map.
        path: its file.
        why: one line for the user.
        certain: whether the base is known from git or the contents match; else by paths alone.
    """

    map: MoveMap
    path: Path
    why: str
    certain: bool


def shipped() -> list[Path]:
    """The map files that ship with this program."""
    return sorted(p for p in DATA.glob("*.json.gz") if p != TARGETS)


@cache
def _load(path: Path) -> MoveMap:
    return load(path)


@cache
def targets() -> dict[str, dict[str, str]]:
    """Shipped target label → repository path → blob id (10 digits) of its Python files."""
    data: dict[str, dict[str, str]] = json.loads(gzip.decompress(TARGETS.read_bytes()))
    return data


def fingerprint(root: Path) -> dict[str, str]:
    """Repository path → blob id (10 digits) of the Python files below a folder."""
    found: dict[str, str] = {}
    for path in python_files(root):
        try:
            found[canonical(path)] = blob_id((root / path).read_bytes())[:10]
        except OSError:
            continue
    return found


def match(files: Mapping[str, str], base: Mapping[str, str]) -> Match:
    """Compare a tree with a base, both as path → blob id."""
    present = [p for p in base if p in files]
    return Match(sum(files[p] == base[p] for p in present), len(present), len(base))


def pick(checkout: Path, upstream: Upstream) -> Choice:
    """Choose the shipped map for a checkout and an upstream.

    The base is the newest shipped one that the checkout's HEAD descends from, where the checkout is the
    root of a git repository; else the one whose files the checkout matches best; else the newest.

    Args:
        checkout: the tree to migrate.
        upstream: the tree to migrate to.

    Raises:
        UserError: no shipped map leads to this upstream.
    """
    target, target_note = _target(upstream)
    maps = {p: _load(p) for p in shipped() if p.name.endswith(f"--{target}.json.gz")}
    files = fingerprint(checkout)
    matches = {p: match(files, m.blobs) for p, m in maps.items()}
    from_git = [p for p, m in maps.items() if _descends(checkout, m.base)]
    if from_git:
        path = max(from_git, key=lambda p: maps[p].base.date)
        base = maps[path].base
        why = f"HEAD descends from upstream {base.label} ({base.date}), {told(matches[path])}"
        return Choice(maps[path], path, f"{why}{target_note}", True)
    # The same number of equal files, then of equal paths, then the later base.
    path = max(maps, key=lambda p: (matches[p].same, matches[p].present, maps[p].base.date))
    found, base = matches[path], maps[path].base
    if not found.present:
        why = (
            f"none of its files is at a path of upstream's, so the newest base, {base.label} ({base.date}), is "
            "taken; give --map if the fork point is another"
        )
        return Choice(maps[path], path, f"{why}{target_note}", False)
    if found.share >= CERTAIN:
        why = f"best match is upstream {base.label} ({base.date}), {told(found)}"
        return Choice(maps[path], path, f"{why}{target_note}", True)
    why = (
        f"upstream {base.label} ({base.date}) by file paths alone: {told(found)}; give --map if the "
        "fork point is another"
    )
    return Choice(maps[path], path, f"{why}{target_note}", False)


def require_fit(map_: MoveMap, path: Path, checkout: Path) -> Match:
    """Check that a map given by hand belongs to a checkout.

    Raises:
        UserError: the checkout is on another base, or on the new layout.
    """
    files = fingerprint(checkout)
    found = match(files, map_.blobs)
    if _descends(checkout, map_.base):
        return found
    others = {_load(p).base.label: match(files, _load(p).blobs) for p in shipped()}
    better = max(others, key=lambda label: others[label].share)
    foreign = found.present == 0
    if found.present >= ENOUGH_FILES:
        foreign |= TELLING <= found.share < CERTAIN
        foreign |= others[better].share >= found.share + BETTER
    if foreign:
        raise UserError(
            f"{path}: a map for another base: of upstream {map_.base.label}, {checkout} has "
            f"{found.present} of {found.base} paths, {found.same} of them unchanged; leave --map out "
            "to have one chosen"
        )
    return found


def _target(upstream: Upstream) -> tuple[str, str]:
    """The shipped target that an upstream is, or comes nearest to, with a note if it is not the same."""
    package_root = upstream.python_root / upstream.layout
    files = {f"src/{upstream.layout}/{p}": b for p, b in fingerprint(package_root).items()}
    shares: dict[str, float] = {}
    for label, known in targets().items():
        package = {p: b for p, b in known.items() if p.startswith("src/maxtext/")}
        same = sum(files.get(p) == b for p, b in package.items())
        shares[label] = same / max(len(package.keys() | files.keys()), 1)
    label = max(shares, key=lambda name: shares[name])
    if shares[label] == 1.0:
        return label, ""
    if shares[label] < SERVES:
        raise UserError(
            f"{upstream.label}: no shipped map leads to this upstream (nearest is {label}, "
            f"{shares[label]:.0%} the same files); make one with `ling2-migrate map build` and give it with --map"
        )
    return label, (
        f"; upstream {upstream.label} is not a tree that maps ship for: {shares[label]:.1%} of its "
        f"files are as in {label}, whose map is taken"
    )


def _descends(checkout: Path, base: TreeId) -> bool:
    """Whether the checkout is a repository's root whose HEAD has the base's commit in its history."""
    if not base.revision or not (checkout / ".git").exists():
        return False
    try:
        done = subprocess.run(
            ["git", "-C", str(checkout), "merge-base", "--is-ancestor", base.revision, "HEAD"],
            capture_output=True,
            check=False,
            env=os.environ | READ_ONLY_GIT,
        )
    except FileNotFoundError:
        return False
    return done.returncode == 0


def told(found: Match) -> str:
    """A match in words."""
    return f"{found.same} of the {found.present} files at its paths unchanged ({found.share:.0%})"
