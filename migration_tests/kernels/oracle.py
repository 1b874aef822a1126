"""Gated linear attention in float64 NumPy, forward and backward, token by token, and how far a result is from it.

Written from the recurrence alone and from the raw segment ids: nothing here is shared with the code under test.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

# Values that are smaller than this on average underflow in float32 and count as 0.
TINY = 1e-30


@dataclass(frozen=True)
class Results:
    """Outputs and gradients; `d_` is the gradient of sum(o * d_o) + sum(final_state * d_final_state)."""

    o: Array
    final_state: Array
    d_q: Array
    d_k: Array
    d_v: Array
    d_initial_state: Array


def recurrence(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    g: ArrayLike,
    d_o: ArrayLike,
    *,
    scale: float | None = None,
    initial_state: ArrayLike | None = None,
    d_final_state: ArrayLike | None = None,
    segment_ids: ArrayLike | None = None,
) -> Results:
    """q, k [B, T, H, K]; v, d_o [B, T, H, V]; g [H]; states [B, H, K, V]; segment_ids [B, T], 0 is padding."""
    q, k, v, g, d_o = (np.asarray(x, np.float64) for x in (q, k, v, g, d_o))
    batch, time, heads, key_dim = q.shape
    shape = (batch, heads, key_dim, v.shape[-1])
    start = np.zeros(shape) if initial_state is None else np.asarray(initial_state, np.float64)
    d_end = np.zeros(shape) if d_final_state is None else np.asarray(d_final_state, np.float64)
    ids = np.ones((batch, time), int) if segment_ids is None else np.asarray(segment_ids)
    scale = key_dim**-0.5 if scale is None else scale
    decay = np.exp(g)[:, None, None]

    o, final, d_start = np.zeros_like(v), np.empty(shape), np.empty(shape)
    d_q, d_k, d_v = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    for b in range(batch):
        real = np.flatnonzero(ids[b])
        reset = np.zeros(time, bool)
        reset[real[1:]] = ids[b, real[1:]] != ids[b, real[:-1]]
        state, states = start[b], np.empty((time, *shape[1:]))
        for t in real:
            state = k[b, t, :, :, None] * v[b, t, :, None, :] + (0 if reset[t] else decay * state)
            states[t] = state
            o[b, t] = scale * np.einsum("hk,hkv->hv", q[b, t], state)
        final[b] = state
        d_state = d_end[b]
        for t in real[::-1]:
            d_state = d_state + scale * q[b, t, :, :, None] * d_o[b, t, :, None, :]
            d_q[b, t] = scale * np.einsum("hv,hkv->hk", d_o[b, t], states[t])
            d_k[b, t] = np.einsum("hv,hkv->hk", v[b, t], d_state)
            d_v[b, t] = np.einsum("hk,hkv->hv", k[b, t], d_state)
            d_state = np.zeros(shape[1:]) if reset[t] else decay * d_state
        d_start[b] = d_state
    return Results(o, final, d_q, d_k, d_v, d_start)


def relative_error(actual: ArrayLike, expected: Array, head_axis: int) -> float:
    """Root mean square of the difference over that of the expected values, of the worst head; infinite for NaN."""
    actual = np.moveaxis(np.asarray(actual, np.float64), head_axis, 0).reshape(
        expected.shape[head_axis], -1
    )
    expected = np.moveaxis(expected, head_axis, 0).reshape(actual.shape)
    if not np.isfinite(actual).all():
        return float("inf")
    difference = np.sqrt(np.mean((actual - expected) ** 2, axis=1))
    size = np.sqrt(np.mean(expected**2, axis=1))
    return float(np.max(np.where(difference <= TINY, 0, difference / np.maximum(size, TINY))))
