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

"""The fixed decays of Lightning Attention: one log decay per head, smaller in the upper layers.

Slopes are those of ALiBi (Press, Smith and Lewis, "Train Short, Test Long", 2022). The decay of a layer is that of
Lightning Attention-2 (Qin et al., 2024) as Ling 2.5 uses it: `g = -slope * (1 - i / (L - 1) + 1e-5)`.
"""

import operator

import jax
import jax.numpy as jnp
import numpy as np

SLOPE_INDEXES = ("zero_based", "hf")


def _slopes_of_power_of_two(n: int) -> list[float]:
  return [2.0 ** (-8.0 * (head + 1) / n) for head in range(n)]


def build_slope_tensor(num_heads: int) -> np.ndarray:
  """Returns the ALiBi slopes of the heads.

  For a power of two the slopes are `2 ** (-8 * (head + 1) / num_heads)`. Otherwise they are those of the next lower
  power of two, followed by every other slope of twice that power.

  Args:
    num_heads: number of heads, at least 1.

  Returns:
    float32 [num_heads], all positive.

  Raises:
    TypeError: num_heads is not an integer.
    ValueError: num_heads is less than 1.
  """
  num_heads = _integer("num_heads", num_heads)
  if num_heads < 1:
    raise ValueError(f"num_heads must be at least 1, got {num_heads}")
  lower = 1 << (num_heads.bit_length() - 1)
  slopes = _slopes_of_power_of_two(lower)
  if lower != num_heads:
    slopes += _slopes_of_power_of_two(2 * lower)[::2][: num_heads - lower]
  return np.array(slopes, np.float32)


def gla_log_decay(num_heads: int, layer_idx: int | jax.Array, num_layers: int, slope_index: str = "zero_based") -> jax.Array:
  """Returns the log decay per token of every head of one layer: `-slope * (1 - i / (num_layers - 1) + 1e-5)`.

  Implementations of Ling 2.5 differ in `i` for the same weights, so it has to be the one the model was trained with:
  "zero_based" takes `layer_idx` (Megatron ports, vLLM, sglang), "hf" takes `layer_idx - 1` (the model code published
  with the checkpoints, sglang-jax).

  Args:
    num_heads: number of heads, at least 1.
    layer_idx: index of the decoder layer, the first being 0. May be traced, so that layers can be scanned.
    num_layers: number of decoder layers of the model, at least 1.
    slope_index: "zero_based" or "hf".

  Returns:
    float32 [num_heads], negative.

  Raises:
    TypeError: num_heads, num_layers or layer_idx is not an integer.
    ValueError: num_heads or num_layers is less than 1, slope_index is unknown, or a layer_idx that is not traced lies
      outside of [0, num_layers).
  """
  if slope_index not in SLOPE_INDEXES:
    raise ValueError(f"slope_index must be one of {', '.join(map(repr, SLOPE_INDEXES))}, got {slope_index!r}")
  num_layers = _integer("num_layers", num_layers)
  if num_layers < 1:
    raise ValueError(f"num_layers must be at least 1, got {num_layers}")
  slopes = build_slope_tensor(num_heads)
  if isinstance(layer_idx, jax.core.Tracer):
    if layer_idx.shape != () or not jnp.issubdtype(layer_idx.dtype, jnp.integer):
      raise TypeError(f"layer_idx must be an integer scalar, got {layer_idx.dtype}{list(layer_idx.shape)}")
  else:
    layer_idx = _integer("layer_idx", layer_idx)
    if not 0 <= layer_idx < num_layers:
      raise ValueError(f"layer_idx must lie in [0, {num_layers}), got {layer_idx}")
  index = layer_idx - 1 if slope_index == "hf" else layer_idx
  top = max(num_layers - 1, 1)
  # 1 - i / top as (top - i) / top: the difference is exact, so that the top layer's factor is 1e-5 and no rounding error.
  factor = jnp.asarray(top - index, jnp.float32) / top + 1e-5
  return -slopes * factor


def _integer(name: str, value) -> int:
  try:
    if isinstance(value, bool):
      raise TypeError
    return operator.index(value)
  except TypeError as error:
    raise TypeError(f"{name} must be an integer, got {type(value).__name__}") from error
