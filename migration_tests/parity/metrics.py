"""How far two arrays are apart."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

PASS, FAIL, ERROR, MISSING = "pass", "fail", "error", "not run"


@dataclasses.dataclass
class Difference:
    """Two arrays compared. `problem` says in words why figures are missing or what else is wrong."""

    verdict: str
    problem: str = ""
    shape: tuple[int, ...] = ()
    max_abs: float | None = None
    relative_l2: float | None = None
    cosine: float | None = None
    ulp_p50: float | None = None
    ulp_p99: float | None = None
    ulp_max: float | None = None
    error: float | None = (
        None  # the largest absolute error over the root mean square of the reference
    )
    first_index: tuple[int, ...] | None = None
    differing: int = 0

    def as_json(self) -> dict[str, Any]:
        """As a JSON object, without what is not known."""
        return {k: v for k, v in dataclasses.asdict(self).items() if v is not None and v != ""}


def compare(
    reference: np.ndarray,
    other: np.ndarray,
    tolerance: float,
    dtype: str = "float32",
    names: tuple[str, str] = ("first", "second"),
) -> Difference:
    """Compares an array with a reference.

    Args:
        reference: what is right, if anything is.
        other: what is judged.
        tolerance: the largest absolute error that passes, as a multiple of the reference's root mean square.
        dtype: the dtype that both were computed in, whose units in the last place are counted.
        names: what to call the two where one of them is at fault.
    """
    if reference.shape != other.shape:
        shapes = f"{names[0]} {list(reference.shape)}, {names[1]} {list(other.shape)}"
        return Difference(FAIL, f"shapes differ: {shapes}", tuple(reference.shape))
    shape = tuple(int(n) for n in reference.shape)
    # The same infinity on both sides, such as what a mask fills in, is no difference.
    same = np.isinf(reference) & (reference == other)
    reference, other = (
        np.where(same, 0, array) if same.any() else array for array in (reference, other)
    )
    for name, array in zip(names, (reference, other), strict=True):
        bad = ~np.isfinite(array)
        if bad.any():
            where = _first(bad)
            what = f"{int(bad.sum())} of {array.size} values of {name} are not finite, the first at {list(where)}"
            return Difference(FAIL, what, shape, first_index=where, differing=int(bad.sum()))
    if not reference.size:
        return Difference(PASS, shape=shape)
    a, b = reference.astype(np.float64), other.astype(np.float64)
    errors = np.abs(a - b)
    rms = float(np.sqrt(np.mean(a**2)))
    norm_a, norm_b = float(np.linalg.norm(a)), float(np.linalg.norm(b))
    largest = float(errors.max())
    error = 0.0 if largest == 0 else (largest / rms if rms > 0 else float("inf"))
    ulps = np.abs(_ordered(reference, dtype) - _ordered(other, dtype)).ravel()
    beyond = errors > tolerance * rms
    differing = reference != other
    found = beyond if beyond.any() else differing
    return Difference(
        verdict=PASS if error <= tolerance else FAIL,
        shape=shape,
        max_abs=largest,
        relative_l2=float(np.linalg.norm(a - b) / norm_a) if norm_a > 0 else float(norm_b > 0),
        cosine=(
            float(np.sum(a * b) / (norm_a * norm_b))
            if norm_a * norm_b > 0
            else float(norm_a == norm_b)
        ),
        ulp_p50=float(np.percentile(ulps, 50)),
        ulp_p99=float(np.percentile(ulps, 99)),
        ulp_max=float(ulps.max()),
        error=error if np.isfinite(error) else None,
        first_index=_first(found) if found.any() else None,
        differing=int(differing.sum()),
    )


def _first(mask: np.ndarray) -> tuple[int, ...]:
    return tuple(int(i) for i in np.argwhere(mask)[0])


def _ordered(array: np.ndarray, dtype: str) -> np.ndarray:
    """Numbers as integers that are neighbours where the numbers are."""
    if array.dtype.kind in "iub":
        return array.astype(np.int64)
    bits = np.ascontiguousarray(array.astype(np.float32)).view(np.int32).astype(np.int64)
    bits = np.where(bits < 0, -(bits & 0x7FFFFFFF), bits)
    return bits >> 16 if dtype == "bfloat16" else bits
