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

"""Whether a Pallas TPU kernel is compiled or interpreted, which is known for sure only when it is lowered.

A program that is traced on a host without a TPU may still be for one, as when it is lowered for a TPU topology. So where
tracing does not tell, the kernel is bound as a primitive of its own, whose lowering for a TPU is the kernel and for other
platforms the interpreter.

Lowering also drops the mesh axes over which values vary inside `jax.shard_map`: the interpreter keeps its buffers and loop
counters without them, so that its own loops would not pass the check of these axes. The primitive has passed it by then.
"""

from collections.abc import Callable
import functools

import jax
from jax.experimental.pallas import tpu as pltpu
from jax.extend import core
from jax.interpreters import batching, mlir
import jax.numpy as jnp


def on_tpu() -> bool:
  """Whether the code being traced is for a TPU: the device kind of the abstract mesh if one is set (as when lowering
  for a TPU topology on a CPU host), else that of the default device."""
  return pltpu.is_tpu_device()


def kernel_or_interpreter(run: Callable, results: list[tuple[tuple, jax.typing.DTypeLike]], *arrays) -> list[jax.Array]:
  """`run(*arrays, interpret=...)`, not interpreted where that is lowered for a TPU.

  Args:
    run: calls a Pallas kernel.
    results: shapes and dtypes of what it returns.
    *arrays: its operands, which vary over the same mesh axes.
  """
  return _kernel_p.bind(*arrays, run=run, results=tuple(results))


_kernel_p = core.Primitive("gla_kernel")
_kernel_p.multiple_results = True


@_kernel_p.def_impl
def _impl(*arrays, **params):
  return jax.jit(functools.partial(_kernel_p.bind, **params))(*arrays)


@_kernel_p.def_abstract_eval
def _abstract_eval(first, *_, run, results):
  del run

  def like_first(shape, dtype):
    sharding = first.sharding.update(spec=jax.sharding.PartitionSpec(*[None] * len(shape)))
    return first.update(shape=shape, dtype=jnp.dtype(dtype), sharding=sharding)

  return [like_first(*result) for result in results]


def _lower(ctx, *arrays, run, results, interpret):
  del results
  avals = [jax.core.ShapedArray(x.shape, x.dtype) for x in ctx.avals_in]
  return mlir.lower_fun(functools.partial(run, interpret=interpret))(ctx.replace(avals_in=avals), *arrays)


mlir.register_lowering(_kernel_p, functools.partial(_lower, interpret=True))
mlir.register_lowering(_kernel_p, functools.partial(_lower, interpret=False), platform="tpu")


def _batch(arrays, axes, *, run, results):
  (size,) = {x.shape[axis] for x, axis in zip(arrays, axes) if axis is not None}

  def mapped(*arrays, interpret):
    return jax.vmap(functools.partial(run, interpret=interpret), in_axes=tuple(axes))(*arrays)

  results = tuple(((size, *shape), dtype) for shape, dtype in results)
  return _kernel_p.bind(*arrays, run=mapped, results=results), [0] * len(results)


batching.primitive_batchers[_kernel_p] = _batch
