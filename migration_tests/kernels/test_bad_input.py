"""Arguments that do not fit are refused in one sentence that names them, before anything is computed."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from maxtext.kernels.gla import chunk_gla, recurrent_gla_step

pytestmark = pytest.mark.model

B, T, H, K, V = 2, 6, 4, 8, 5


def rows(*shape: int, dtype: str = "float32") -> jax.Array:
    return jnp.zeros(shape, dtype)


def good(**changed: Any) -> dict[str, Any]:
    arguments = {
        "q": rows(B, T, H, K),
        "k": rows(B, T, H, K),
        "v": rows(B, T, H, V),
        "g_gamma": -jnp.ones(H),
    }
    return {**arguments, **changed}


CHUNK = [
    ({"q": [[1.0]]}, TypeError, "q must be an array, got list"),
    ({"g_gamma": -1.0}, TypeError, "g_gamma must be an array, got float"),
    ({"q": rows(T, H, K)}, ValueError, r"q must have the shape \[B, T, H, K\], got \[6, 4, 8\]"),
    ({"v": rows(B, T, H)}, ValueError, r"v must have the shape \[B, T, H, V\], got \[2, 6, 4\]"),
    (
        {"k": rows(B, T, H, 7)},
        ValueError,
        r"k must have the shape \[B, T, H, K\] of q, \[2, 6, 4, 8\], got \[2, 6, 4, 7\]",
    ),
    (
        {"v": rows(B, 7, H, V)},
        ValueError,
        r"v must have the shape \[B, T, H, V\] of q, \[2, 6, 4, 5\], got \[2, 7, 4, 5\]",
    ),
    ({"k": rows(1, T, H, K)}, ValueError, r"k must have the shape .*, got \[1, 6, 4, 8\]"),
    (
        {"k": rows(B, T, 2, K), "v": rows(B, T, 2, V)},
        ValueError,
        "k must have as many heads as q, got 2 for 4: repeat the key/value heads",
    ),
    ({"v": rows(B, T, 1, V)}, ValueError, "v must have as many heads as q, got 1 for 4: repeat"),
    (
        {"q": rows(B, 0, H, K), "k": rows(B, 0, H, K), "v": rows(B, 0, H, V)},
        ValueError,
        "q must have at least one element on every axis, got T = 0",
    ),
    (
        {"v": rows(B, T, H, 0)},
        ValueError,
        "v must have at least one element on every axis, got V = 0",
    ),
    (
        {"q": rows(B, T, H, K, dtype="int32")},
        TypeError,
        "q must be float32, bfloat16 or float64, got int32",
    ),
    (
        {"v": rows(B, T, H, V, dtype="float16")},
        TypeError,
        "v must be float32, bfloat16 or float64, got float16",
    ),
    (
        {"k": rows(B, T, H, K, dtype="bfloat16")},
        TypeError,
        "k must have the dtype of q, got bfloat16 for float32",
    ),
    ({"g_gamma": -jnp.ones(H, jnp.int32)}, TypeError, "g_gamma must be floating point, got int32"),
    ({"g_gamma": -jnp.ones(3)}, ValueError, r"g_gamma must have the shape \[H\], \[4\], got \[3\]"),
    ({"g_gamma": -jnp.ones((B, T, H))}, ValueError, r"g_gamma must have the shape \[H\]"),
    (
        {"g_gamma": jnp.array([-1, 0, 0.25, -2])},
        ValueError,
        r"g_gamma is a log decay and must be at most 0, got 0.25",
    ),
    ({"g_gamma": np.array([-1, 0, 0.25, -2])}, ValueError, "g_gamma is a log decay"),
    ({"g_gamma": jnp.array([-1, 0, -jnp.inf, -2])}, ValueError, "g_gamma must be finite"),
    ({"g_gamma": jnp.full(4, jnp.nan)}, ValueError, "g_gamma must be finite"),
    ({"initial_state": 0}, TypeError, "initial_state must be an array, got int"),
    (
        {"initial_state": rows(B, H, K, V, dtype="bfloat16")},
        TypeError,
        "initial_state must be float32 for float32 inputs, got bfloat16",
    ),
    (
        {"initial_state": rows(B, H, V, K)},
        ValueError,
        r"initial_state must have the shape \[B, H, K, V\], \[2, 4, 8, 5\], got \[2, 4, 5, 8\]",
    ),
    ({"segment_ids": rows(B, T)}, TypeError, "segment_ids must be integers, got float32"),
    (
        {"segment_ids": rows(B, T, dtype="bool")},
        TypeError,
        "segment_ids must be integers, got bool",
    ),
    ({"segment_ids": [[1] * T] * B}, TypeError, "segment_ids must be an array, got list"),
    (
        {"segment_ids": rows(T, dtype="int32")},
        ValueError,
        r"segment_ids must have the shape \[B, T\], \[2, 6\], got \[6\]",
    ),
    (
        {"segment_ids": rows(1, T, dtype="int32")},
        ValueError,
        r"segment_ids must have the shape \[B, T\]",
    ),
    ({"chunk_size": 0}, ValueError, "chunk_size must be at least 1, got 0"),
    ({"chunk_size": -64}, ValueError, "chunk_size must be at least 1, got -64"),
    ({"chunk_size": 64.0}, TypeError, "chunk_size must be an integer or None, got float"),
    ({"chunk_size": True}, TypeError, "chunk_size must be an integer or None, got bool"),
    ({"scale": "1"}, TypeError, "scale must be a number or None, got str"),
    ({"scale": float("nan")}, ValueError, "scale must be finite, got nan"),
    ({"scale": 10**400}, ValueError, "scale must be finite, got a number beyond float64"),
    ({"g_gamma": np.full(4, -1e39)}, ValueError, "g_gamma must be finite"),
    (
        {"segment_ids": np.full((B, T), 2**32 + 1)},
        ValueError,
        "segment_ids must lie in the range of int32",
    ),
    (
        {"segment_ids": np.full((B, T), 2**31, "uint32")},
        ValueError,
        "segment_ids must lie in the range of int32",
    ),
    (
        {"output_final_state": "no"},
        TypeError,
        "output_final_state must be a bool, got str",
    ),
    ({"heads_major": 1}, TypeError, "heads_major must be a bool, got int"),
    (
        {"q": np.ma.zeros((B, T, H, K), "float32")},
        TypeError,
        "q must be an array without a mask, got a MaskedArray",
    ),
    (
        {"implementation": np.array(["xla", "reference"])},
        ValueError,
        "implementation must be None or one of",
    ),
    (
        {"implementation": "pallas"},
        ValueError,
        "implementation must be None or one of 'reference', 'xla', 'pallas_tpu', got 'pallas'",
    ),
]


@pytest.mark.parametrize(
    ("changed", "error", "message"), CHUNK, ids=lambda x: x[:40] if isinstance(x, str) else ""
)
def test_chunk_gla(changed: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        chunk_gla(**good(**changed))


def test_the_good_call_is_good() -> None:
    o, state = chunk_gla(
        **good(segment_ids=rows(B, T, dtype="int32"), chunk_size=np.int64(4), scale=np.float32(2))
    )
    assert o.shape == (B, T, H, V)
    assert state is None


def test_decay_that_is_traced_is_not_looked_at() -> None:
    jax.jit(lambda g: chunk_gla(**good(g_gamma=g)))(jnp.ones(H))


@pytest.mark.parametrize(
    "decay", [np.ones(H), jnp.ones(H), jnp.ones(H, "bfloat16")], ids=["numpy", "jax", "bfloat16"]
)
def test_decay_that_is_a_constant_inside_jit_is_looked_at(decay: Any) -> None:
    with pytest.raises(ValueError, match="g_gamma is a log decay"):
        jax.jit(lambda q: chunk_gla(**good(q=q, g_gamma=decay)))(rows(B, T, H, K))


def test_shapes_are_checked_under_jit() -> None:
    with pytest.raises(ValueError, match="k must have the shape"):
        jax.jit(lambda k: chunk_gla(**good(k=k)))(rows(B, T, H, 3))


def test_float64_is_for_the_plain_implementations() -> None:
    with jax.enable_x64(True):
        inputs = {name: x.astype("float64") for name, x in good().items()}
        state = jnp.zeros((B, H, K, V))
        for implementation in (None, "reference", "xla"):
            o, end = chunk_gla(
                **inputs,
                initial_state=state,
                output_final_state=True,
                implementation=implementation,
            )
            assert o.dtype == end.dtype == jnp.float64
        with pytest.raises(
            ValueError, match="implementation 'pallas_tpu' cannot compute in float64"
        ):
            chunk_gla(**inputs, implementation="pallas_tpu")
        with pytest.raises(
            TypeError, match="initial_state must be float64 for float64 inputs, got float32"
        ):
            chunk_gla(**inputs, initial_state=state.astype("float32"))


def test_pallas_on_a_backend_without_tpu_or_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    with pytest.raises(
        ValueError, match=r"implementation 'pallas_tpu' runs on a TPU, .* not on gpu; use 'xla'"
    ):
        chunk_gla(**good(implementation="pallas_tpu"))


def good_step(**changed: Any) -> dict[str, Any]:
    arguments = {
        "q": rows(B, H, K),
        "k": rows(B, H, K),
        "v": rows(B, H, V),
        "g_gamma": -jnp.ones(H),
        "state": rows(B, H, K, V),
    }
    return {**arguments, **changed}


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        (
            {"q": rows(B, 1, H, K)},
            ValueError,
            r"q must have the shape \[B, H, K\], got \[2, 1, 4, 8\]",
        ),
        (
            {"k": rows(B, 2, K)},
            ValueError,
            "k must have as many heads as q, got 2 for 4: repeat the key/value heads",
        ),
        (
            {"v": rows(3, H, V)},
            ValueError,
            r"v must have the shape \[B, H, V\] of q, \[2, 4, 5\], got \[3, 4, 5\]",
        ),
        (
            {"q": rows(B, H, K, dtype="float16")},
            TypeError,
            "q must be float32, bfloat16 or float64, got float16",
        ),
        (
            {"g_gamma": jnp.ones(H)},
            ValueError,
            "g_gamma is a log decay and must be at most 0, got 1.0",
        ),
        ({"state": None}, TypeError, "state must be an array"),
        (
            {"state": rows(B, H, V, K)},
            ValueError,
            r"state must have the shape \[B, H, K, V\], \[2, 4, 8, 5\]",
        ),
        (
            {"state": rows(B, H, K, V, dtype="bfloat16")},
            TypeError,
            "state must be float32 for float32 inputs",
        ),
        ({"valid": rows(B, dtype="int32")}, TypeError, "valid must be bool, got int32"),
        (
            {"valid": rows(3, dtype="bool")},
            ValueError,
            r"valid must have the shape \[B\], \[2\], got \[3\]",
        ),
        ({"scale": None, "valid": [True, False]}, TypeError, "valid must be an array, got list"),
    ],
    ids=lambda x: x[:40] if isinstance(x, str) else "",
)
def test_recurrent_gla_step(changed: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        recurrent_gla_step(**good_step(**changed))
