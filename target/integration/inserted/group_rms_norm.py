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
"""The layer that goes into `maxtext/layers/normalizations.py`; its imports are there."""

from typing import Any

from flax import nnx
import jax
from jax import lax
import jax.numpy as jnp


class GroupRMSNorm(nnx.Module):
  """RMS normalization of groups of features, each over itself; one scale for all features.

  Attributes:
    num_features: number of features, over the trailing axes of the input taken together.
    num_groups: number of groups of consecutive features; divides `num_features`.
    epsilon: added to the mean square.
    dtype: dtype of the output.
    weight_dtype: dtype of the scale.
    kernel_axes: logical axes of the scale.
  """

  def __init__(
      self,
      num_features: int,
      num_groups: int,
      epsilon: float = 1e-6,
      dtype: Any = jnp.float32,
      weight_dtype: Any = jnp.float32,
      kernel_axes: tuple[None | str, ...] = (),
      *,
      rngs: nnx.Rngs,
  ):
    if num_groups < 1 or num_features % num_groups:
      raise ValueError(f"{num_groups} groups do not divide {num_features} features.")
    self.num_features = num_features
    self.num_groups = num_groups
    self.epsilon = epsilon
    self.dtype = dtype
    self.scale = nnx.Param(
        jax.nn.initializers.ones(rngs.params(), (num_features,), weight_dtype),
        out_sharding=kernel_axes,
    )

  def __call__(self, x: jnp.ndarray) -> jnp.ndarray:
    """Normalizes [batch, length, ...], where the trailing axes hold the features. Computes in float32."""
    groups = jnp.asarray(x, jnp.float32).reshape(x.shape[:2] + (self.num_groups, self.num_features // self.num_groups))
    groups = groups * lax.rsqrt(jnp.mean(lax.square(groups), axis=-1, keepdims=True) + self.epsilon)
    scale = jnp.asarray(self.scale.get_value(), jnp.float32).reshape(x.shape[2:])
    return jnp.asarray(groups.reshape(x.shape) * scale, self.dtype)
