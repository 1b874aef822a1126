"""Writing the migrated tree: whole or not at all, and never into the checkout."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from codemods.engine.discover import REPORT_NAMES, Checkout, Found, is_report
from codemods.errors import UserError


def check_output(
    out: Path,
    checkout: Path,
    what: str = "the checkout",
    reports: tuple[str, ...] = REPORT_NAMES,
) -> None:
    """Whether `out` can be made.

    Args:
        out: the folder to make.
        checkout: the folder that is read.
        what: what messages call it.
        reports: names that reports get in the output.

    Raises:
        UserError: `out` exists and is not an empty folder, lies inside the checkout (or the checkout in
            it), the checkout holds another file under a report's name, or its parent cannot be written to.
    """
    resolved, source = out.resolve(), checkout.resolve()
    if resolved == source or source in resolved.parents:
        raise UserError(
            f"{out}: lies inside {what}, which is never written to; choose another --out"
        )
    if resolved in source.parents:
        raise UserError(f"{out}: holds {what} itself; choose another --out")
    try:
        _check_place(out, resolved.parent)
    except OSError as error:
        where = error.filename or out
        raise UserError(
            f"{where}: cannot be written to ({error.strerror}); choose another --out"
        ) from None
    for name in reports:
        taken = checkout / name
        if os.path.lexists(taken) and not is_report(taken):
            raise UserError(f"{taken}: this name is needed for the report; rename the file first")


def _check_place(out: Path, parent: Path) -> None:
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise UserError(f"{out}: exists and is not a folder; choose another --out")
    if out.exists() and any(out.iterdir()):
        raise UserError(f"{out}: exists and is not empty; remove it or choose another --out")
    if out.exists() and os.path.ismount(out):
        raise UserError(
            f"{out}: a mount point, which cannot be made whole; choose a folder in it as --out"
        )
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir():
        raise UserError(f"{parent}: not a folder; choose another --out")
    # Root may write anywhere that is mounted writable, so ask by trying.
    try:
        os.rmdir(tempfile.mkdtemp(dir=parent, prefix=_stage_prefix(out)))
    except OSError as error:
        raise UserError(
            f"{parent}: cannot be written to ({error.strerror}); choose another --out"
        ) from None


def _stage_prefix(out: Path) -> str:
    """How the folder begins in which a run builds `out`; the process id tells whether that run still lives."""
    return f".{out.resolve().name[:150]}.partial-{os.getpid()}-"


def _remove_stale(out: Path) -> None:
    """Remove what killed runs with the same `out` have left behind."""
    parent = out.resolve().parent
    pattern = re.compile(re.escape(f".{out.resolve().name[:150]}.partial-") + r"(\d+)-\w+")
    for entry in os.listdir(parent):
        found = pattern.fullmatch(entry)
        if found and not _alive(int(found[1])):
            shutil.rmtree(parent / entry, ignore_errors=True)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


@contextmanager
def staged(out: Path) -> Iterator[Path]:
    """A folder beside `out` that becomes `out` when the block ends well, and goes when it does not.

    Raises:
        UserError: the disk is full or refuses a write.
    """
    parent = out.resolve().parent
    made: list[Path] = []
    stage: Path | None = None
    try:
        _make_parents(parent, made)
        _remove_stale(out)
        stage = Path(tempfile.mkdtemp(dir=parent, prefix=_stage_prefix(out)))
        yield stage
        stage.chmod(0o777 & ~_umask())
        stage.rename(
            out.resolve()
        )  # onto nothing, or an empty folder, as check_output has made sure
    except BaseException as error:
        if stage is not None:
            shutil.rmtree(stage, ignore_errors=True)
        for folder in reversed(made):
            try:
                folder.rmdir()
            except OSError:
                break
        if isinstance(error, OSError):
            where = error.filename or out
            why = error.strerror or error
            raise UserError(f"{where}: cannot be written ({why}); nothing is left behind") from None
        raise


def _make_parents(parent: Path, made: list[Path]) -> None:
    """Make `parent`; `made` gets the folders made, innermost last."""
    if not parent.exists():
        _make_parents(parent.parent, made)
        parent.mkdir(exist_ok=True)
        made.append(parent)


def _umask() -> int:
    current = os.umask(0o022)
    os.umask(current)
    return current


def write(stage: Path, path: str, data: bytes, like: Path) -> None:
    """Write one file of the output with the mode of the checkout's file `like`."""
    target = stage / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)
    target.chmod(like.stat().st_mode & 0o777 | 0o600)


def carry(stage: Path, checkout: Checkout, found: Found, new: str, link: str | None = None) -> None:
    """Copy an entry that no rule changes.

    Args:
        stage: the folder that becomes the output.
        checkout: where the entry is.
        found: the entry.
        new: its path in the output.
        link: what a link says there, if not what it says now.
    """
    source = checkout.root / found.path
    target = stage / new
    target.parent.mkdir(parents=True, exist_ok=True)
    if found.kind == "submodule":
        if source.is_dir():
            shutil.copytree(
                source,
                target,
                symlinks=True,
                dirs_exist_ok=True,
                ignore=shutil.ignore_patterns(".git"),
            )
        return
    if found.kind in ("link", "outside"):
        os.symlink(os.readlink(source) if link is None else link, target)
        return
    shutil.copyfile(source, target)
    target.chmod(source.stat().st_mode & 0o777 | 0o600)
