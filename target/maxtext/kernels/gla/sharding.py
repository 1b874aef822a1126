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

"""Mesh axes over which values vary inside `jax.shard_map`, which scans, kernels and custom gradients have to agree on."""

import jax
from jax import lax


def varying_axes(*arrays: jax.Array | None) -> frozenset[str]:
  """Returns the manual mesh axes over which any of the arrays varies; none outside of shard_map."""
  return frozenset().union(*(_varying(jax.typeof(x)) for x in arrays if x is not None))


def vary(x: jax.Array, axes: frozenset[str]) -> jax.Array:
  """Marks x as varying over the axes as well. Its gradient is summed over those it did not vary over."""
  missing = tuple(sorted(axes - varying_axes(x)))
  return lax.pcast(x, missing, to="varying") if missing else x


def shape_with(axes: frozenset[str], shape: tuple[int, ...], dtype: jax.typing.DTypeLike) -> jax.ShapeDtypeStruct:
  """The type of an array that varies over the axes, as a kernel has to declare its results."""
  if hasattr(jax.sharding, "ManualAxisType"):
    return jax.ShapeDtypeStruct(shape, dtype, manual_axis_type=jax.sharding.ManualAxisType(varying=axes))
  return jax.ShapeDtypeStruct(shape, dtype, vma=axes)


def _varying(aval) -> frozenset[str]:
  # JAX 0.12 renamed the attribute; MaxText supports older ones as well.
  return aval.manual_axis_type.varying if hasattr(aval, "manual_axis_type") else aval.vma
