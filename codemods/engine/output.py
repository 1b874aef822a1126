"""Writing the migrated tree: whole or not at all, and never into the checkout."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from codemods.engine.discover import Checkout, Found
from codemods.engine.project import Placement
from codemods.errors import UserError


def check_output(out: Path, checkout: Path) -> None:
    """Whether `out` can be made.

    Raises:
        UserError: it exists and is not an empty folder, lies inside the checkout (or the checkout in
            it), or its parent cannot be written to.
    """
    resolved, source = out.resolve(), checkout.resolve()
    if resolved == source or source in resolved.parents:
        raise UserError(f"{out}: lies inside the checkout, which is never written to; choose another --out")
    if resolved in source.parents:
        raise UserError(f"{out}: holds the checkout itself; choose another --out")
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise UserError(f"{out}: exists and is not a folder; choose another --out")
    if out.exists() and any(out.iterdir()):
        raise UserError(f"{out}: exists and is not empty; remove it or choose another --out")
    parent = resolved.parent
    while not parent.exists():
        parent = parent.parent
    # Root may write anywhere that is mounted writable, so ask by trying.
    try:
        with tempfile.TemporaryDirectory(dir=parent, prefix=".ling2-migrate-"):
            pass
    except OSError as error:
        raise UserError(f"{parent}: cannot be written to ({error.strerror}); choose another --out") from None


@contextmanager
def staged(out: Path) -> Iterator[Path]:
    """A folder beside `out` that becomes `out` when the block ends well, and goes when it does not.

    Raises:
        UserError: the disk is full or refuses a write.
    """
    parent = out.resolve().parent
    made = _make_parents(parent)
    stage = Path(tempfile.mkdtemp(dir=parent, prefix=f".{out.name}.partial-"))
    try:
        yield stage
        stage.chmod(0o755)
        if out.exists():
            out.rmdir()  # an empty folder, as check_output has made sure
        stage.rename(out)
    except BaseException as error:
        shutil.rmtree(stage, ignore_errors=True)
        for folder in made:
            try:
                folder.rmdir()
            except OSError:
                break
        if isinstance(error, OSError):
            where = error.filename or stage
            raise UserError(f"{where}: cannot be written ({error.strerror}); nothing is left behind") from None
        raise


def _make_parents(parent: Path) -> list[Path]:
    """Make `parent`; returns the folders made, innermost first."""
    made = []
    missing = parent
    while not missing.exists():
        made.append(missing)
        missing = missing.parent
    parent.mkdir(parents=True, exist_ok=True)
    return made


def write(stage: Path, path: str, data: bytes, like: Path) -> None:
    """Write one file of the output with the mode of the checkout's file `like`."""
    target = stage / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)
    target.chmod(like.stat().st_mode & 0o777 | 0o600)


def carry(
    stage: Path, checkout: Checkout, found: Found, new: str, placements: dict[str, Placement]
) -> None:
    """Copy an entry that no rule changes; a link inside the tree is pointed at its target's new place."""
    source = checkout.root / found.path
    target = stage / new
    target.parent.mkdir(parents=True, exist_ok=True)
    if found.kind == "submodule":
        if source.is_dir():
            shutil.copytree(
                source, target, symlinks=True, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".git")
            )
        return
    if found.kind in ("link", "outside"):
        link = os.readlink(source)
        if found.kind == "link":
            link = _relink(found.path, link, new, placements)
        os.symlink(link, target)
        return
    shutil.copyfile(source, target)
    target.chmod(source.stat().st_mode & 0o777 | 0o600)


def _relink(old: str, link: str, new: str, placements: dict[str, Placement]) -> str:
    """What a relative link must say from its new place to reach its target's new place."""
    target = os.path.normpath(os.path.join(os.path.dirname(old), link))
    placement = placements.get(target)
    new_target = placement.new if placement is not None else None
    if new_target is None:
        moved = {
            p.new[: -len(rest)]
            for path, p in placements.items()
            if path.startswith(f"{target}/")
            and p.new is not None
            and p.new.endswith(rest := path[len(target) :])
        }
        new_target = moved.pop() if len(moved) == 1 else target
    if new == old and new_target == target:
        return link
    return os.path.relpath(new_target, PurePosixPath(new).parent.as_posix()).replace(os.sep, "/")
