"""Compares two saved dumps: `.npz` files with arrays of the same names, such as those of a debug dumper.

Arrays are compared in the order of the first file, which is the order of the model if the dumper wrote them as they came; so the
first that is apart is the first along the model. A name may end in `|bfloat16`: what was computed in bfloat16 and is kept in
float32. An array of bfloat16 itself, which numpy saves as two bytes of nothing in particular, is read as such.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from codemods.errors import UserError
from migration_tests.parity import metrics, plan, run

DEFAULT_ULPS = 1024.0


def compare(first: Path, second: Path, ulps: float = DEFAULT_ULPS) -> run.Parity:
    """Compares two dumps.

    Args:
        first: the reference.
        second: what is judged.
        ulps: tolerance in units in the last place of each array's dtype, relative to its root mean square.

    Raises:
        UserError: a file is missing or is no npz file.
    """
    names = (str(first), str(second))
    loaded = [_read(path) for path in (first, second)]
    rows = []
    for name in [*loaded[0], *(n for n in loaded[1] if n not in loaded[0])]:
        title = name.removesuffix("|bfloat16")
        present = [arrays.get(name) for arrays in loaded]
        dtype = next(entry[1] for entry in present if entry is not None)
        component = plan.Component(name, title, ulps, "as asked for", (dtype,))
        if present[0] is None or present[1] is None:
            lacking = names[0] if present[0] is None else names[1]
            difference = metrics.Difference(metrics.ERROR, f"{lacking}: has no {name}")
        else:
            arrays = (present[0][0], present[1][0])
            difference = metrics.compare(
                *arrays, component.tolerance(dtype), dtype, ("first", "second")
            )
        rows.append(run.Row(component, dtype, {("first", "second"): {title: difference}}))
    sides = {
        label: run.SideRun(label, [], f"the dump {name}")
        for label, name in zip(("first", "second"), names, strict=True)
    }
    return run.Parity(sides, rows, {}, [], 0.0)


def _read(path: Path) -> dict[str, tuple[np.ndarray, str]]:
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
    except (ValueError, OSError, EOFError) as error:
        raise UserError(f"{path}: is no npz file of plain arrays ({error})") from error
    except AttributeError as error:
        raise UserError(f"{path}: is one array, not an npz file") from error
    result = {}
    for name, array in arrays.items():
        dtype = plan.BFLOAT16 if name.endswith("|bfloat16") else plan.FLOAT32
        if array.dtype.kind == "V" and array.dtype.itemsize == 2:
            array = (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
            dtype = plan.BFLOAT16
        elif array.dtype.kind not in "fiub":
            raise UserError(f"{path}: {name} holds {array.dtype}, which is no number")
        result[name] = (array, dtype)
    return result
