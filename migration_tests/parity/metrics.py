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
        tolerance: the largest absolute error that passes, as a multiple of the reference's root mean square; integers and
            booleans on both sides, which are choices and no sums, have to be equal whatever it is.
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
    bad = [~np.isfinite(array) for array in (reference, other)]
    if any(mask.any() for mask in bad):
        said = [
            f"{int(mask.sum())} of {mask.size} values of {name} are not finite, the first at {list(_first(mask))}"
            for name, mask in zip(names, bad, strict=True)
            if mask.any()
        ]
        either = bad[0] | bad[1]
        return Difference(
            FAIL,
            "; ".join(said),
            shape,
            first_index=_first(either),
            differing=int(either.sum()),
        )
    if not reference.size:
        return Difference(PASS, shape=shape)
    choices = reference.dtype.kind in "iub" and other.dtype.kind in "iub"
    a, b = reference.astype(np.float64), other.astype(np.float64)
    # By a power of two, which rounds nothing, so that no square is too large or too small.
    scale = 2.0 ** (float(np.frexp(max(np.abs(a).max(), np.abs(b).max()))[1]) - 1)
    a, b = a / scale, b / scale
    errors = np.abs(a - b)
    rms = float(np.sqrt(np.mean(a**2)))
    norm_a, norm_b = float(np.linalg.norm(a)), float(np.linalg.norm(b))
    largest = float(errors.max())
    error = 0.0 if largest == 0 else (largest / rms if rms > 0 else float("inf"))
    if choices:
        ulps = errors.ravel() * scale
    else:
        ulps = np.abs(_ordered(reference, dtype) - _ordered(other, dtype)).ravel()
    differing = reference != other
    beyond = differing if choices else errors > tolerance * rms
    found = beyond if beyond.any() else differing
    return Difference(
        verdict=FAIL if (differing.any() if choices else error > tolerance) else PASS,
        shape=shape,
        max_abs=largest * scale,
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
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(mask)), mask.shape))


def _ordered(array: np.ndarray, dtype: str) -> np.ndarray:
    """Numbers as integers that are neighbours where the numbers are."""
    if dtype == "float16":
        bits = np.ascontiguousarray(array.astype(np.float16)).view(np.int16).astype(np.int64)
        return np.where(bits < 0, -(bits & 0x7FFF), bits)
    with np.errstate(over="ignore"):  # numbers beyond float32 are neighbours of its infinity
        single = np.ascontiguousarray(array.astype(np.float32))
    bits = single.view(np.int32).astype(np.int64)
    bits = np.where(bits < 0, -(bits & 0x7FFFFFFF), bits)
    return bits >> 16 if dtype == "bfloat16" else bits
