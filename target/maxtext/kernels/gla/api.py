# Copyright 2023–2026 Google LLC
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#    https://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.

"""Gated linear attention with one fixed log decay per head: what models call.

The recurrence is that of Lightning Attention-2 (Qin et al., 2024, https://arxiv.org/abs/2401.04658), a linear attention
whose state decays by the same factor at every token:

  S_t = exp(g) S_{t-1} + k_t v_t^T        (the current token is not decayed)
  o_t = scale * q_t S_t
"""

import math
import numbers
import operator

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from maxtext.kernels.gla.reference import recurrent_gla
from maxtext.kernels.gla.segments import token_layout
from maxtext.kernels.gla.sharding import vary, varying_axes
from maxtext.kernels.gla.xla import chunk_gla_xla

IMPLEMENTATIONS = ("reference", "xla", "pallas_tpu")


def chunk_gla(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    g_gamma: jax.Array,
    *,
    scale: float | None = None,
    initial_state: jax.Array | None = None,
    output_final_state: bool = False,
    segment_ids: jax.Array | None = None,
    chunk_size: int | None = None,
    heads_major: bool = False,
    implementation: str | None = None,
) -> tuple[jax.Array, jax.Array | None]:
  """Gated linear attention over whole sequences, for training and prefill.

  Differentiable in q, k, v and initial_state, through the output and through the final state. The decay is a constant: it
  gets no gradient (zeros). "pallas_tpu" can be differentiated once. Works under jit, grad, vmap, remat, scan and shard_map
  over batch and heads. XLA cannot divide the kernels of "pallas_tpu" by itself: on a mesh of several devices, call this
  inside of shard_map.

  Packed rows are treated as if their padding had been deleted: the state starts from zero at every token whose segment
  differs from that of the last real token before it, and padding neither updates, decays nor resets it. The output and
  the gradients of q, k and v are 0 at padding. The initial state belongs to a row's first segment, the final state is
  that of its last one; a row of padding alone hands its initial state on.

  NaN and infinity at padding go nowhere. At a real token they spread as in the recurrence, from k and v to the rest of the
  segment; with "xla" a v that is not finite also reaches the other outputs of its chunk, and with "pallas_tpu" what is not
  finite in q, k or v reaches those, and from k and v the rest of the row.

  Args:
    q: [B, T, H, K], float32 or bfloat16; float64 too for "reference" and "xla". T, H, K and V may be any numbers >= 1.
    k: [B, T, H, K], dtype of q. As many heads as q: repeat the heads of grouped keys and values first.
    v: [B, T, H, V], dtype of q.
    g_gamma: [H], floating point, log decay per token, at most 0 and finite.
    scale: factor of the output; K ** -0.5 if None.
    initial_state: [B, H, K, V], float32 (float64 for float64 inputs), or None for zeros.
    output_final_state: whether to return the state after the last real token of each row.
    segment_ids: integers [B, T] in the range of int32; 0 is padding. None when every token is real and each row is one segment.
    chunk_size: tokens that are worked through at once; None for a good size. "reference" has no chunks and ignores it.
    heads_major: whether XLA has q, k and v in memory as [B, H, T, K], as projections to heads leave them, and is to have the
      output so, rather than in the order of a program's arguments. "pallas_tpu" then reads and writes that order, which
      spares copies of another; results do not depend on it.
    implementation: "reference" (recurrent, the truth), "xla" (chunked, for any backend), "pallas_tpu" (fused kernels; they
      are interpreted, slowly, on a CPU) or None: "pallas_tpu" where the code is traced for a TPU and the dtype allows it,
      else "xla".

  Returns:
    The output [B, T, H, V] in the dtype of v, and the final state [B, H, K, V], float32 (float64 for float64 inputs), or
    None unless output_final_state is set.

  Raises:
    TypeError: an argument is not an array or number of the kind above; the message names it.
    ValueError: shapes do not fit, there is no token, the decay is positive or not finite (where it is not traced),
      chunk_size is less than 1, the implementation is unknown or impossible here; the message names the argument.
  """
  q, k, v, g_gamma, initial_state, scale = _checked(q, k, v, g_gamma, initial_state, scale, ("B", "T", "H"), "initial_state")
  segment_ids = None if segment_ids is None else _checked_segment_ids(segment_ids, q.shape[:2])
  chunk_size = _checked_chunk_size(chunk_size)
  for name, value in (("output_final_state", output_final_state), ("heads_major", heads_major)):
    if not isinstance(value, (bool, np.bool_)):
      raise TypeError(f"{name} must be a bool, got {type(value).__name__}")
  implementation = _chosen(implementation, q.dtype)

  # Inside of shard_map everything has to vary over the same mesh axes, also what is the same on all devices.
  axes = varying_axes(q, k, v, g_gamma, initial_state, segment_ids)
  q, k, v, g_gamma, initial_state, segment_ids = jax.tree.map(
      lambda x: vary(x, axes), (q, k, v, g_gamma, initial_state, segment_ids)
  )
  options = {"scale": scale, "output_final_state": output_final_state, "chunk_size": chunk_size}
  if implementation == "pallas_tpu":
    # pylint: disable-next=import-outside-toplevel
    from maxtext.kernels.gla.pallas_tpu import chunk_gla_pallas

    return chunk_gla_pallas(q, k, v, g_gamma, initial_state, segment_ids, heads_major=bool(heads_major), **options)
  layout = None if segment_ids is None else token_layout(segment_ids)
  run = recurrent_gla if implementation == "reference" else chunk_gla_xla
  return run(q, k, v, g_gamma, initial_state, layout, **options)


def recurrent_gla_step(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    g_gamma: jax.Array,
    state: jax.Array,
    *,
    scale: float | None = None,
    valid: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
  """Gated linear attention of one more token per row, for decoding.

  Computes in float32, or in float64 for float64 inputs. Differentiable except for the decay, which is a constant.

  Args:
    q: [B, H, K], float32, bfloat16 or float64.
    k: [B, H, K], dtype of q. As many heads as q: repeat the heads of grouped keys and values first.
    v: [B, H, V], dtype of q.
    g_gamma: [H], floating point, log decay per token, at most 0 and finite.
    state: [B, H, K, V], float32 (float64 for float64 inputs): the final state of chunk_gla or of the last step.
    scale: factor of the output; K ** -0.5 if None.
    valid: bool [B], False for rows that have no token in this step: their output is 0 and their state stays. None if all
      rows have one.

  Returns:
    The output [B, H, V] in the dtype of v, and the new state, in shape and dtype of the old one.

  Raises:
    TypeError: an argument is not an array or number of the kind above; the message names it.
    ValueError: shapes do not fit or the decay is positive or not finite (where it is not traced); the message names the
      argument.
  """
  if state is None:
    raise TypeError("state must be an array; start from zeros or from the final state of chunk_gla")
  q, k, v, g_gamma, state, scale = _checked(q, k, v, g_gamma, state, scale, ("B", "H"), "state")
  dtype = v.dtype
  q, k, v = (x.astype(state.dtype) for x in (q, k, v))
  if valid is not None:
    valid = _array("valid", valid)
    if valid.dtype != jnp.bool_:
      raise TypeError(f"valid must be bool, got {valid.dtype}")
    _check_shape("valid", valid, "[B]", q.shape[:1])
    q, k, v = (jnp.where(valid[:, None, None], x, 0) for x in (q, k, v))
  new_state = state * jnp.exp(g_gamma)[:, None, None] + k[..., :, None] * v[..., None, :]
  if valid is not None:
    new_state = jnp.where(valid[:, None, None, None], new_state, state)
  output = scale * jnp.einsum("bhk,bhkv->bhv", q, new_state, precision=lax.Precision.HIGHEST)
  return output.astype(dtype), new_state


def _checked(q, k, v, g_gamma, state, scale, axes, state_name):
  """Checks and converts what chunk_gla and recurrent_gla_step share; `axes` names the axes before K or V."""
  concrete_g_gamma = g_gamma  # inside jit, the array made of it is traced
  q, k, v, g_gamma = _array("q", q), _array("k", k), _array("v", v), _array("g_gamma", g_gamma)
  shape = f"[{', '.join(axes)}, {{}}]".format
  for name, x, last in (("q", q, "K"), ("k", k, "K"), ("v", v, "V")):
    if x.ndim != len(axes) + 1:
      raise ValueError(f"{name} must have the shape {shape(last)}, got {list(x.shape)}")
    if x.dtype not in (jnp.float32, jnp.bfloat16, jnp.float64):
      raise TypeError(f"{name} must be float32, bfloat16 or float64, got {x.dtype}")
    for axis, size in zip((*axes, last), x.shape):
      if size == 0:
        raise ValueError(f"{name} must have at least one element on every axis, got {axis} = 0: {list(x.shape)}")
  for name, x in (("k", k), ("v", v)):
    if x.shape[-2] != q.shape[-2]:
      raise ValueError(
          f"{name} must have as many heads as q, got {x.shape[-2]} for {q.shape[-2]}: repeat the key/value heads "
          "(jnp.repeat on the heads' axis)"
      )
  _check_shape("k", k, shape("K") + " of q", q.shape)
  _check_shape("v", v, shape("V") + " of q", (*q.shape[:-1], v.shape[-1]))
  for name, x in (("k", k), ("v", v)):
    if x.dtype != q.dtype:
      raise TypeError(f"{name} must have the dtype of q, got {x.dtype} for {q.dtype}")

  if not jnp.issubdtype(g_gamma.dtype, jnp.floating):
    raise TypeError(f"g_gamma must be floating point, got {g_gamma.dtype}")
  _check_shape("g_gamma", g_gamma, "[H]", q.shape[-2:-1])
  if not isinstance(concrete_g_gamma, jax.core.Tracer) and getattr(concrete_g_gamma, "is_fully_addressable", True):
    decays = np.asarray(concrete_g_gamma).astype(np.float64)
    with np.errstate(over="ignore"):
      computed = decays.astype(jnp.promote_types(q.dtype, jnp.float32))  # what is finite in float64 may not be here
    if not np.all(np.isfinite(computed)):
      raise ValueError(f"g_gamma must be finite, got {decays.tolist()}")
    if np.any(decays > 0):
      raise ValueError(f"g_gamma is a log decay and must be at most 0, got {decays.max()} (exp(g_gamma) is the factor)")

  state_dtype = jnp.promote_types(q.dtype, jnp.float32)
  if state is not None:
    state = _array(state_name, state)
    if state.dtype != state_dtype:
      raise TypeError(f"{state_name} must be {state_dtype} for {q.dtype} inputs, got {state.dtype}")
    _check_shape(state_name, state, "[B, H, K, V]", (q.shape[0], *q.shape[-2:], v.shape[-1]))

  if scale is None:
    scale = q.shape[-1] ** -0.5
  elif isinstance(scale, bool) or not isinstance(scale, numbers.Real):
    raise TypeError(f"scale must be a number or None, got {type(scale).__name__}")
  try:
    scale = float(scale)
  except OverflowError as error:  # of an integer or a fraction
    raise ValueError("scale must be finite, got a number beyond float64") from error
  if not math.isfinite(scale):
    raise ValueError(f"scale must be finite, got {scale}")
  return q, k, v, lax.stop_gradient(g_gamma.astype(state_dtype)), state, scale


def _checked_segment_ids(segment_ids, shape) -> jax.Array:
  concrete = segment_ids
  segment_ids = _array("segment_ids", segment_ids)
  if not jnp.issubdtype(segment_ids.dtype, jnp.integer):
    raise TypeError(f"segment_ids must be integers, got {segment_ids.dtype}")
  _check_shape("segment_ids", segment_ids, "[B, T]", shape)
  if isinstance(concrete, np.ndarray) and np.any(concrete != concrete.astype(np.int32)):
    raise ValueError("segment_ids must lie in the range of int32")
  return segment_ids.astype(jnp.int32)


def _checked_chunk_size(chunk_size) -> int | None:
  if chunk_size is None:
    return None
  try:
    if isinstance(chunk_size, bool):
      raise TypeError
    chunk_size = operator.index(chunk_size)
  except TypeError as error:
    raise TypeError(f"chunk_size must be an integer or None, got {type(chunk_size).__name__}") from error
  if chunk_size < 1:
    raise ValueError(f"chunk_size must be at least 1, got {chunk_size}")
  return chunk_size


def _chosen(implementation: str | None, dtype) -> str:
  """The implementation to run, having checked that it can."""
  if implementation is None:
    # pylint: disable-next=import-outside-toplevel
    from maxtext.kernels.gla.pallas_tpu_lowering import on_tpu

    return "pallas_tpu" if on_tpu() and dtype != jnp.float64 else "xla"
  if not isinstance(implementation, str) or implementation not in IMPLEMENTATIONS:
    raise ValueError(f"implementation must be None or one of {', '.join(map(repr, IMPLEMENTATIONS))}, got {implementation!r}")
  if implementation == "pallas_tpu":
    if dtype == jnp.float64:
      raise ValueError("implementation 'pallas_tpu' cannot compute in float64; use 'xla' or 'reference', or float32 inputs")
    if jax.default_backend() not in ("cpu", "tpu"):
      raise ValueError(
          f"implementation 'pallas_tpu' runs on a TPU, or interpreted on a CPU, not on {jax.default_backend()}; use 'xla'"
      )
  return implementation


def _array(name: str, x) -> jax.Array:
  if not isinstance(x, (jax.Array, np.ndarray)):
    raise TypeError(f"{name} must be an array, got {type(x).__name__}")
  if isinstance(x, np.ma.MaskedArray):
    raise TypeError(f"{name} must be an array without a mask, got a MaskedArray; mark padding with segment_ids")
  return jnp.asarray(x)


def _check_shape(name: str, x: jax.Array, meaning: str, shape: tuple[int, ...]) -> None:
  if x.shape != shape:
    raise ValueError(f"{name} must have the shape {meaning}, {list(shape)}, got {list(x.shape)}")
