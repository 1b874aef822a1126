"""The map from one MaxText tree to a later one: its data model and its JSON form.

A map answers three questions about the base tree: where did this *file* go, where did this *module*
go, and where does this top-level *name* of a module live now. Every answer carries its provenance.
"""

from __future__ import annotations

import gzip
import json
import zlib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from codemods.errors import UserError

SCHEMA_VERSION = 1

Status = Literal[
    "same",  # still where it was
    "moved",  # lives elsewhere under the same leaf name
    "renamed",  # lives on under another leaf name
    "split",  # (modules, paths) its content went to several places; `new` is the place that took most of it
    "deleted",  # gone; `new` is None and `commits` holds the deleting commit where history has it
    "reexport",  # (symbols) was importable here only because this module imported it; `new` is the definition's new place
]
Evidence = Literal["history", "symbols", "tree", "override"]


@dataclass(frozen=True, slots=True)
class Entry:
    """Where one thing of the base tree went.

    Attributes:
        new: dotted module, repository path or dotted `module.symbol` in the target; None if it is gone.
        status: what happened to it.
        commits: the commits that moved, split or deleted it, oldest first (abbreviated to 10 digits).
        evidence: what the entry rests on.
        confidence: 0..1; 1.0 for what the history records, the likeness of content otherwise.
        note: one line for a person (the reason of an override, the other parts of a split).
    """

    new: str | None
    status: Status
    commits: tuple[str, ...] = ()
    evidence: Evidence = "history"
    confidence: float = 1.0
    note: str = ""


@dataclass(frozen=True, slots=True)
class SignatureChange:
    """A function or constructor that is called differently in the target.

    Attributes:
        old: parameters of the base tree, as source text.
        new: parameters of the target tree, as source text.
        removed: parameters that the target no longer takes.
        added_required: parameters without a default that the base did not have.
    """

    old: str
    new: str
    removed: tuple[str, ...] = ()
    added_required: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TreeId:
    """Names one tree: a commit of upstream, a released version, or a directory.

    Attributes:
        label: what a person calls it (`d4ed2261`, `0.2.5`).
        revision: full commit id where it is a commit, or the commit a release matches best.
        date: ISO date of that commit, or "".
        digest: sha256 over (path, git blob id) of its Python files, to recognise the tree without git.
    """

    label: str
    revision: str = ""
    date: str = ""
    digest: str = ""


@dataclass(slots=True)
class MoveMap:
    """A whole map. Paths are repository paths (`src/MaxText/train.py`); a wheel's are given as such too.

    Attributes:
        base, target: the two trees.
        modules: old dotted module → entry (`MaxText.train` → `maxtext.trainers.pre_train.train`). Every
            Python file of the base has one, also outside the package (`tests.moe_test`).
        paths: old repository path → entry, for every file of the base that moved, split or was deleted.
        symbols: `old.module.name` → entry, only where the name did not simply go along with its module.
        kept: old module → the names that went along with it, checked to exist in the target module.
        signatures: `old.module.name` or `old.module.Class.method` → how its call changed.
        folders: old folder → new folder, for files the base does not have, most specific first.
        blobs: repository path → git blob id (10 digits) of the base's Python files, to recognise a checkout.
    """

    base: TreeId
    target: TreeId
    modules: dict[str, Entry] = field(default_factory=dict)
    paths: dict[str, Entry] = field(default_factory=dict)
    symbols: dict[str, Entry] = field(default_factory=dict)
    kept: dict[str, tuple[str, ...]] = field(default_factory=dict)
    signatures: dict[str, SignatureChange] = field(default_factory=dict)
    folders: dict[str, str] = field(default_factory=dict)
    blobs: dict[str, str] = field(default_factory=dict)

    def module(self, old: str) -> Entry | None:
        """The entry of an old dotted module, or None when the base has no such module."""
        return self.modules.get(old)

    def symbol(self, module: str, name: str) -> Entry | None:
        """Where `name`, importable from the old `module`, lives now; None when the base has no such name.

        A name that went along with its module gives a `moved` (or `same`) entry with the module's provenance.
        """
        own = self.symbols.get(f"{module}.{name}")
        if own is not None:
            return own
        if name in self.kept.get(module, ()):
            home = self.modules[module]
            return Entry(
                f"{home.new}.{name}",
                "same" if home.new == module else "moved",
                home.commits,
                home.evidence,
                home.confidence,
            )
        return None


def dump(map_: MoveMap, path: Path) -> None:
    """Write a map as JSON, keys sorted, default fields of entries left out; gzipped if the name ends in `.gz`."""

    def lean(entry: Entry) -> dict[str, Any]:
        full = asdict(entry)
        default = asdict(Entry(None, "same"))
        return {k: v for k, v in full.items() if k in ("new", "status") or v != default[k]}

    data = {
        "schema": SCHEMA_VERSION,
        "base": asdict(map_.base),
        "target": asdict(map_.target),
        "modules": {k: lean(v) for k, v in sorted(map_.modules.items())},
        "paths": {k: lean(v) for k, v in sorted(map_.paths.items())},
        "symbols": {k: lean(v) for k, v in sorted(map_.symbols.items())},
        "kept": {k: sorted(v) for k, v in sorted(map_.kept.items())},
        "signatures": {k: asdict(v) for k, v in sorted(map_.signatures.items())},
        "folders": map_.folders,
        "blobs": dict(sorted(map_.blobs.items())),
    }
    text = json.dumps(data, indent=0, separators=(",", ":")) + "\n"
    if path.suffix == ".gz":
        # No time stamp: the same map gives the same bytes.
        path.write_bytes(gzip.compress(text.encode(), mtime=0))
    else:
        path.write_text(text, encoding="utf-8")


def load(path: Path) -> MoveMap:
    """Read a map.

    Raises:
        UserError: no such file, not a map, or a map of another schema version.
    """
    try:
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
        data = json.loads(content)
        if data["schema"] != SCHEMA_VERSION:
            raise UserError(
                f"{path}: map schema {data['schema']}, this version reads {SCHEMA_VERSION}; rebuild it "
                "with `ling2-migrate map build`"
            )

        def entries(key: str) -> dict[str, Entry]:
            return {
                k: Entry(**{**v, "commits": tuple(v.get("commits", ()))})
                for k, v in data[key].items()
            }

        return MoveMap(
            base=TreeId(**data["base"]),
            target=TreeId(**data["target"]),
            modules=entries("modules"),
            paths=entries("paths"),
            symbols=entries("symbols"),
            kept={k: tuple(v) for k, v in data["kept"].items()},
            signatures={
                k: SignatureChange(
                    v["old"], v["new"], tuple(v["removed"]), tuple(v["added_required"])
                )
                for k, v in data["signatures"].items()
            },
            folders=data["folders"],
            blobs=data["blobs"],
        )
    except FileNotFoundError:
        raise UserError(f"{path}: no such map") from None
    except UserError:
        raise
    except (
        OSError,
        EOFError,
        zlib.error,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
    ) as error:
        raise UserError(f"{path}: not a ling2-migrate map ({error})") from None
