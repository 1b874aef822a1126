"""Compares two saved dumps: `.npz` files with arrays of the same names, such as those of a debug dumper.

Arrays are compared in the order of the first file, which is the order of the model if the dumper wrote them as they came; so the
first that is apart is the first along the model. A name may end in `|bfloat16`: what was computed in bfloat16 and is kept in
float32. An array of bfloat16 itself, which numpy saves as two bytes of nothing in particular, is read as such. Where two
floating dtypes meet, units in the last place are those of the coarser; float64 counts as float32. Integers and booleans have to
be equal.
"""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import numpy as np

from codemods.errors import UserError
from migration_tests.parity import metrics, plan, run

# At most an eighth of an array's root mean square: what is worth a comparison is further apart.
DEFAULT_ULPS = {plan.FLOAT32: 1024.0, plan.FLOAT16: 64.0, plan.BFLOAT16: 16.0}
NAMES = ("first", "second")


def compare(first: Path, second: Path, ulps: float | None = None) -> run.Parity:
    """Compares two dumps.

    Args:
        first: the reference.
        second: what is judged.
        ulps: tolerance in units in the last place of each array's dtype, relative to its root mean square; that of
            `DEFAULT_ULPS` if not given.

    Raises:
        UserError: a file is missing, is no npz file, or holds what is no number, or nothing.
    """
    files = (str(first), str(second))
    loaded = [_read(path) for path in (first, second)]
    rows = []
    for name in [*loaded[0], *(n for n in loaded[1] if n not in loaded[0])]:
        title = name.removesuffix("|bfloat16")
        present = [arrays.get(name) for arrays in loaded]
        dtype = _coarsest([entry[1] for entry in present if entry is not None])
        if dtype not in plan.ULP:
            component = plan.Component(name, title, 0, "integers are no sums", (dtype,), exact=True)
        elif ulps is None:
            component = plan.Component(name, title, DEFAULT_ULPS[dtype], "the usual one", (dtype,))
        else:
            component = plan.Component(name, title, ulps, "as asked for", (dtype,))
        if present[0] is None or present[1] is None:
            lacking = files[0] if present[0] is None else files[1]
            difference = metrics.Difference(metrics.ERROR, f"{lacking}: has no {name}")
        else:
            arrays = (present[0][0], present[1][0])
            difference = metrics.compare(*arrays, component.tolerance(dtype), dtype, NAMES)
        rows.append(run.Row(component, dtype, {NAMES: {title: difference}}))
    sides = {
        label: run.SideRun(label, [], f"the dump {file}")
        for label, file in zip(NAMES, files, strict=True)
    }
    return run.Parity(sides, rows, {}, run.too_wide(rows), 0.0)


def _coarsest(dtypes: list[str]) -> str:
    """The dtype in which arrays of two are compared: the one with the larger unit in the last place."""
    return max(dtypes, key=lambda dtype: plan.ULP.get(dtype, 0.0))


def _read(path: Path) -> dict[str, tuple[np.ndarray, str]]:
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    if not zipfile.is_zipfile(path):
        raise UserError(f"{path}: is no npz file; write one with numpy.savez")
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
    except (
        ValueError,
        OSError,
        EOFError,
        MemoryError,
        NotImplementedError,
        RuntimeError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise UserError(f"{path}: is no npz file of plain arrays ({error})") from error
    if not arrays:
        raise UserError(f"{path}: has no arrays")
    result = {}
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):
            raise UserError(f"{path}: {name} is no array; write the file with numpy.savez")
        if array.dtype.kind in "iub":
            dtype = str(array.dtype)
        elif name.endswith("|bfloat16"):
            dtype = plan.BFLOAT16
        else:
            dtype = plan.FLOAT16 if array.dtype == np.float16 else plan.FLOAT32
        if array.dtype.kind == "V" and array.dtype.itemsize == 2:
            array = (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
            dtype = plan.BFLOAT16
        elif array.dtype.kind not in "fiub":
            raise UserError(
                f"{path}: {name} holds {array.dtype}; only integers, booleans and real floats are compared"
            )
        result[name] = (array, dtype)
    return result
