"""`--diff`: the migration as a patch that `git apply` takes."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator

from codemods.engine.discover import Found
from codemods.engine.run import Migration

_ESCAPES = {7: "a", 8: "b", 9: "t", 10: "n", 11: "v", 12: "f", 13: "r", 34: '"', 92: "\\"}


def patch(migration: Migration) -> Iterator[bytes]:
    """The lines of the patch, in git's format: moves as renames, what stays out as deletions.

    Submodules that move are named in a line that `git apply` skips, since no patch can move them.
    """
    for found in sorted(migration.checkout.files, key=lambda f: f.path):
        new = migration.placements[found.path].new
        if found.kind == "submodule":
            if new != found.path:
                yield f"submodule {found.path} moves to {new}; not in this patch\n".encode(
                    "utf-8", "backslashreplace"
                )
        elif new is None:
            yield from _deletion(migration, found)
        else:
            yield from _change(migration, found, new)


def _deletion(migration: Migration, found: Found) -> Iterator[bytes]:
    yield _header(found.path, found.path)
    yield f"deleted file mode {_mode(migration, found)}\n".encode()
    yield from _hunks(_old(migration, found), b"", _name("a", found.path), b"/dev/null")


def _change(migration: Migration, found: Found, new: str) -> Iterator[bytes]:
    old = _old(migration, found)
    data = old
    result = migration.results.get(found.path)
    if found.path in migration.links:
        data = os.fsencode(migration.links[found.path])
    elif found.kind == "file" and result is not None and result.data is not None:
        data = result.data
    if new == found.path and data == old:
        return
    yield _header(found.path, new)
    if new != found.path:
        if data == old:
            yield b"similarity index 100%\n"
        yield b"rename from %s\nrename to %s\n" % (_name("", found.path), _name("", new))
    yield from _hunks(old, data, _name("a", found.path), _name("b", new))


def _old(migration: Migration, found: Found) -> bytes:
    full = migration.checkout.root / found.path
    return full.read_bytes() if found.kind == "file" else os.fsencode(os.readlink(full))


def _mode(migration: Migration, found: Found) -> str:
    if found.kind != "file":
        return "120000"
    return "100755" if (migration.checkout.root / found.path).stat().st_mode & 0o100 else "100644"


def _header(old: str, new: str) -> bytes:
    return b"diff --git %s %s\n" % (_name("a", old), _name("b", new))


def _name(side: str, path: str) -> bytes:
    """A path as git writes it: quoted if it holds control characters, quotes or anything but ASCII."""
    raw = os.fsencode(f"{side}/{path}" if side else path)
    if all(0x20 <= byte < 0x7F and byte not in _ESCAPES for byte in raw):
        return raw
    parts = []
    for byte in raw:
        if byte in _ESCAPES:
            parts.append(f"\\{_ESCAPES[byte]}")
        else:
            parts.append(chr(byte) if 0x20 <= byte < 0x7F else f"\\{byte:03o}")
    return f'"{"".join(parts)}"'.encode()


def _hunks(old: bytes, new: bytes, old_name: bytes, new_name: bytes) -> Iterator[bytes]:
    if old == new:
        return
    for name, sign in ((old_name, b"---"), (new_name, b"+++")):
        # A tab ends a name with a space in it.
        yield b"%s %s%s\n" % (
            sign,
            name,
            b"\t" if b" " in name and not name.startswith(b'"') else b"",
        )
    lines = difflib.diff_bytes(difflib.unified_diff, _lines(old), _lines(new))
    for number, line in enumerate(lines):
        if number >= 2:  # after the two lines of the names
            yield line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n"


def _lines(data: bytes) -> list[bytes]:
    """Lines as git sees them: only a line feed ends one."""
    parts = data.split(b"\n")
    return [part + b"\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])
