"""Programs that the GLA kernels are measured by: functions without arguments -> (callable, shapes).

    python scripts/tpu_cost.py scripts/gla_specs.py:forward --topo v5e

All of them go through `maxtext.kernels.gla.chunk_gla` and its own differentiation rule, with inputs and outputs
[batch, length, heads, width] as the model has them.
  forward              as inference runs it: nothing is saved
  train_forward        the output and what is saved for the gradient. A saved value that is an input or an output
                       of chunk_gla is there already and is no further output
  backward             the gradients of q, k, v (and of the initial state) from the inputs, what was saved and
                       the cotangents
  xla_forward_CHUNK    the chunked XLA scan, chunks of 64, 128 and 256 tokens
  xla_backward_CHUNK   its gradients, with the forward pass that they need, in one program
Each is there for every case of CASES: its name is the program's with the case's after an underscore, such as
`backward_segments`; the case `dense` has no suffix.
"""

# No postponed annotations here: dataclasses look those up in sys.modules, where a module that is loaded by its
# path need not be.
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

TARGET = Path(__file__).resolve().parents[1] / "target"
if str(TARGET) not in sys.path:
    sys.path.insert(0, str(TARGET))

from maxtext.kernels.gla import chunk_gla  # noqa: E402

Shapes = tuple[jax.ShapeDtypeStruct, ...]
Spec = tuple[Callable[..., Any], Shapes]
XLA_CHUNKS = (64, 128, 256)


@dataclass(frozen=True, slots=True)
class Case:
    """Sizes and options of one call of chunk_gla. By default the attention of Ling2's 16B model."""

    batch: int = 2
    length: int = 4096
    heads: int = 16
    key_width: int = 128
    value_width: int = 128
    dtype: str = "bfloat16"
    segments: bool = False
    states: bool = False

    def inputs(self) -> Shapes:
        """q, k, v, the log decay, then the initial state and the segment ids where the case has them."""
        rows = (self.batch, self.length, self.heads)
        shapes = [jax.ShapeDtypeStruct((*rows, self.key_width), self.dtype)] * 2
        shapes.append(jax.ShapeDtypeStruct((*rows, self.value_width), self.dtype))
        shapes.append(jax.ShapeDtypeStruct((self.heads,), jnp.float32))
        if self.states:
            state = (self.batch, self.heads, self.key_width, self.value_width)
            shapes.append(jax.ShapeDtypeStruct(state, jnp.float32))
        if self.segments:
            shapes.append(jax.ShapeDtypeStruct(rows[:2], jnp.int32))
        return tuple(shapes)

    def call(self, implementation: str, chunk_size: int | None, *inputs: Any) -> Any:
        """chunk_gla on these inputs: the output, with the final state where the case has states."""
        q, k, v, g_gamma, *rest = inputs
        output, final_state = chunk_gla(
            q,
            k,
            v,
            g_gamma,
            initial_state=rest[0] if self.states else None,
            output_final_state=self.states,
            segment_ids=rest[-1] if self.segments else None,
            chunk_size=chunk_size,
            implementation=implementation,
        )
        return (output, final_state) if self.states else output

    def vjp(self, implementation: str, chunk_size: int | None, *inputs: Any) -> tuple[Any, Any]:
        """jax.vjp in q, k, v and the initial state; the other inputs are constants."""
        at = [0, 1, 2, 4] if self.states else [0, 1, 2]

        def differentiated(*values: Any) -> Any:
            given = list(inputs)
            for index, value in zip(at, values, strict=True):
                given[index] = value
            return self.call(implementation, chunk_size, *given)

        return jax.vjp(differentiated, *(inputs[i] for i in at))


CASES = {
    "dense": Case(),
    "segments": Case(segments=True),
    "states": Case(states=True),
    "segments_states": Case(segments=True, states=True),
    "32k": Case(length=32768),
    "t500": Case(length=500),
    "t2000": Case(length=2000),
    "h4": Case(heads=4),
    "h20": Case(heads=20),
    "h20_d64": Case(heads=20, key_width=64, value_width=64),
    "h20_segments_states": Case(heads=20, segments=True, states=True),
    "h40": Case(heads=40),
    "h64": Case(heads=64),
    "h128": Case(heads=128),
    "d64": Case(key_width=64, value_width=64),
    "d64_segments_states": Case(key_width=64, value_width=64, segments=True, states=True),
    "d96": Case(key_width=96, value_width=96),
    "d256": Case(key_width=256, value_width=256),
    "k128_v256": Case(value_width=256),
    "h4_d64_t500": Case(length=500, heads=4, key_width=64, value_width=64),
    "f32": Case(dtype="float32"),
    "f32_segments_states": Case(dtype="float32", segments=True, states=True),
}


def _sources(jaxpr: Any, inputs: list[Any]) -> list[Any]:
    """For each result of a traced program the value it is: one of `inputs`, a traced variable or a constant.

    A result that a nested call or stop_gradient only hands on is the value that went in.
    """
    known = dict(zip(jaxpr.invars, inputs, strict=True))

    def value(atom: Any) -> Any:
        return atom if isinstance(atom, core.Literal) else known.get(atom, atom)

    for equation in jaxpr.eqns:
        ins = [value(v) for v in equation.invars]
        if equation.primitive.name == "stop_gradient":
            known[equation.outvars[0]] = ins[0]
        elif equation.primitive.name in ("jit", "pjit", "closed_call", "remat", "checkpoint"):
            (inner,) = core.jaxprs_in_params(equation.params)
            outs = _sources(inner, ins)
            for var, out in zip(equation.outvars, outs, strict=True):
                if any(out is i for i in ins):
                    known[var] = out
    return [value(v) for v in jaxpr.outvars]


@dataclass(frozen=True, slots=True)
class Split:
    """A gradient in two programs, and what goes from one to the other."""

    outputs: Any
    vjp: Any
    saved: list[int]
    """The leaves of `vjp` that are neither an input nor an output, each value once."""
    sources: list[int]
    """For each leaf of `vjp` the value it is, by its number among inputs, outputs and what is saved."""
    values: list[jax.ShapeDtypeStruct]
    """The shapes of inputs, outputs and what is saved."""

    @property
    def needed(self) -> list[int]:
        """The numbers of the values that the backward pass reads."""
        return sorted(set(self.sources))


def split(case: Case) -> Split:
    """Trace the gradient of a case, for the TPU of the abstract mesh if one is set. Nothing runs."""
    inputs = case.inputs()
    traced, (outputs, vjp) = jax.make_jaxpr(
        partial(case.vjp, "pallas_tpu", None), return_shape=True
    )(*inputs)
    leaves = jax.tree.leaves(vjp)
    results = jax.tree.leaves(outputs)
    found = _sources(traced, list(traced.invars))
    values = [*traced.invars, *found[: len(results)]]
    saved, sources = [], []
    for leaf, value in enumerate(found[len(results) :]):
        at = next((i for i, v in enumerate(values) if v is value), len(values))
        if at == len(values):
            values.append(value)
            saved.append(leaf)
        sources.append(at)
    shapes = [*inputs, *results, *(leaves[i] for i in saved)]
    return Split(outputs, vjp, saved, sources, shapes)


def _forward(case: Case, implementation: str, chunk_size: int | None) -> Spec:
    return partial(case.call, implementation, chunk_size), case.inputs()


def _train_forward(case: Case) -> Spec:
    def outputs_and_saved(*inputs: Any) -> Any:
        outputs, vjp = case.vjp("pallas_tpu", None, *inputs)
        leaves = jax.tree.leaves(vjp)
        return outputs, [leaves[i] for i in split(case).saved]

    return outputs_and_saved, case.inputs()


def _backward(case: Case) -> Spec:
    def arguments_of(parts: Split) -> list[jax.ShapeDtypeStruct]:
        return [*(parts.values[i] for i in parts.needed), *jax.tree.leaves(parts.outputs)]

    shapes = arguments_of(split(case))

    def gradients(*arguments: Any) -> Any:
        parts = split(case)
        if [(a.shape, a.dtype) for a in arguments_of(parts)] != [
            (a.shape, a.dtype) for a in shapes
        ]:
            raise ValueError(
                "what is saved for this case depends on the TPU: make its shapes, too, under the "
                "topology's abstract mesh (jax.sharding.use_abstract_mesh)"
            )
        value = dict(zip(parts.needed, arguments, strict=False))
        vjp = jax.tree.unflatten(jax.tree.structure(parts.vjp), [value[s] for s in parts.sources])
        cotangents = arguments[len(parts.needed) :]
        return vjp(jax.tree.unflatten(jax.tree.structure(parts.outputs), cotangents))

    return gradients, tuple(shapes)


def _backward_alone(case: Case, implementation: str, chunk_size: int | None) -> Spec:
    inputs = case.inputs()
    outputs = jax.eval_shape(partial(case.call, implementation, chunk_size), *inputs)
    leaves, structure = jax.tree.flatten(outputs)

    def gradients(*arguments: Any) -> Any:
        _, vjp = case.vjp(implementation, chunk_size, *arguments[: len(inputs)])
        return vjp(jax.tree.unflatten(structure, arguments[len(inputs) :]))

    return gradients, (*inputs, *leaves)


def spec_name(program: str, case: str) -> str:
    """The name of the function for a program and a case."""
    return program if case == "dense" else f"{program}_{case}"


def specs() -> dict[str, Callable[[], Spec]]:
    """Every function of this module that gives a program, by name."""
    made: dict[str, Callable[[], Spec]] = {}
    for name, case in CASES.items():
        made[spec_name("forward", name)] = partial(_forward, case, "pallas_tpu", None)
        made[spec_name("train_forward", name)] = partial(_train_forward, case)
        made[spec_name("backward", name)] = partial(_backward, case)
        for chunk in XLA_CHUNKS:
            made[spec_name(f"xla_forward_{chunk}", name)] = partial(_forward, case, "xla", chunk)
            made[spec_name(f"xla_backward_{chunk}", name)] = partial(
                _backward_alone, case, "xla", chunk
            )
    return made


globals().update(specs())
