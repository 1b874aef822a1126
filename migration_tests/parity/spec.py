"""A component of the user's own: a small Python file that names an old callable, a new one, inputs and a weight map.

    import numpy as np

    old = "MaxText.layers.normalizations:GroupRMSNorm"
    new = "maxtext.layers.normalizations:GroupRMSNorm"
    old_init = {"num_features": 64, "group_norm_size": 4}
    new_init = {"num_features": 64, "num_groups": 4}
    inputs = {"x": np.random.default_rng(0).standard_normal((2, 8, 64), np.float32)}
    weights = {"scale": "scale"}  # path in the old module: path in the new one

A callable is `package.module:name`, or `package.module:Class.method`. A class is an `nnx.Module`, made with its `_init` and
`rngs`, or a `linen.Module`, made with its `_init`; its parameters get the same random weights on both sides. `inputs` are
given in order; `old_kwargs` and `new_kwargs` are further arguments of the call. An `_init` or `_kwargs` may be a function
that returns the dict; it is called in the side's own process, where the side's packages can be imported: that is how a layer
gets its config and mesh. What the call returns is compared, and the gradients of a weighted sum of it by inputs and weights
(`gradients = ["x"]`: of inputs only by these; `False`: none). `dtype` is "float32" or "bfloat16", which the inputs are then cast to; `side` is "target"
(the default) or "migrated"; `ulps` is the tolerance in units in the last place of the dtype, with its `reason`.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from migration_tests.parity import plan

ULPS = 256.0
REASON = "none was given in the specification"
NAMES = {
    "name", "old", "new", "inputs", "weights", "old_init", "new_init", "old_kwargs", "new_kwargs", "side", "ulps", "reason",
    "dtype", "gradients",
}  # fmt: skip
# What may be a function that returns it.
_MADE = ("old_init", "new_init", "old_kwargs", "new_kwargs")


def read(path: Path) -> dict[str, Any]:
    """Returns what a specification defines.

    Raises:
        ValueError: one line that says what is wrong with it.
    """
    try:
        defined = runpy.run_path(str(path))
    except (Exception, SystemExit) as error:
        raise ValueError(f"{path}: {type(error).__name__}: {error}") from error
    spec = {name: value for name, value in defined.items() if name in NAMES}
    for name in ("old", "new"):
        value = spec.get(name)
        if not isinstance(value, str) or value.count(":") != 1:
            raise ValueError(f"{path}: {name} has to be a string like package.module:name")
    if not isinstance(spec.get("inputs"), dict) or not spec["inputs"]:
        raise ValueError(f"{path}: inputs has to be a dict of arrays by name")
    for name, value in spec["inputs"].items():
        if np.asarray(value).dtype.kind in "OSUM":
            raise ValueError(f"{path}: inputs[{name!r}] is no array of numbers")
    for name in ("weights", *_MADE):
        value = spec.setdefault(name, {})
        if not (isinstance(value, dict) or (name in _MADE and callable(value))):
            more = ", or a function that returns one" if name in _MADE else ""
            raise ValueError(f"{path}: {name} has to be a dict{more}")
    for name, values in (("side", ("target", "migrated")), ("dtype", plan.DTYPES)):
        if spec.setdefault(name, values[0]) not in values:
            raise ValueError(f"{path}: {name} has to be {' or '.join(map(repr, values))}")
    if not isinstance(spec.setdefault("ulps", ULPS), int | float) or not spec["ulps"] >= 0:
        raise ValueError(f"{path}: ulps has to be a number that is not negative")
    gradients = spec.get("gradients", True)
    known = list(spec["inputs"])
    if isinstance(gradients, bool):
        gradients = known if gradients else None
    elif not isinstance(gradients, list | tuple) or not set(gradients) <= set(known):
        raise ValueError(f"{path}: gradients has to be True, False or a list of names of inputs")
    spec["gradients"] = gradients
    spec.setdefault("name", path.stem)
    return spec


def component(spec: dict[str, Any]) -> plan.Component:
    """Returns the component that a specification is."""
    ulps, reason = float(spec["ulps"]), str(spec.get("reason", REASON))
    return plan.Component("spec", str(spec["name"]), ulps, reason, (spec["dtype"],))


def evaluate(
    job: dict[str, Any],
    folder: Path,
    status: dict[str, Any],
    short: Callable[[BaseException], str],
) -> None:
    """Computes one side of a specification; runs in that side's process.

    Args:
        job: has `spec`, the file, and `which`: "old" or "new".
        folder: where to write `described.json` and `results.npz`, and where the weights appear: `weights_spec.npz`, by the
            side's own paths, and `weights_spec.json`, path and shape in the old module of each.
        status: takes an error of the computation.
        short: an error in one line.
    """
    import jax.numpy as jnp

    spec = read(Path(job["spec"]))
    which, dtype = job["which"], spec["dtype"]
    module_name, _, qualified = spec[which].partition(":")
    found: Any = importlib.import_module(module_name)
    first, *methods = qualified.split(".")
    found = getattr(found, first)
    inputs = {name: jnp.asarray(value) for name, value in spec["inputs"].items()}
    inputs = {
        name: value.astype(dtype) if jnp.issubdtype(value.dtype, jnp.floating) else value
        for name, value in inputs.items()
    }
    made = {name: spec[f"{which}_{name}"] for name in ("init", "kwargs")}
    init, kwargs = (dict(value() if callable(value) else value) for value in made.values())
    shapes, call = _callable(found, methods, init, kwargs, list(inputs.values()))
    described = {path: [shape, True] for path, shape in shapes.items()}
    (folder / "described.json").write_text(json.dumps({"spec": described}), encoding="utf-8")
    print("described", flush=True)
    sys.stdin.readline()
    try:
        loaded = np.load(folder / "weights_spec.npz")
        weights = {path: jnp.asarray(loaded[path]) for path in loaded.files}
        originals = json.loads((folder / "weights_spec.json").read_text(encoding="utf-8"))
        arrays = _compute(call, weights, inputs, originals, spec["gradients"])
        named = {f"spec|{dtype}|{name}": value for name, value in arrays.items()}
        np.savez(folder / "results.npz", **named)  # type: ignore[arg-type]
    except Exception as error:
        status["errors"][f"spec|{dtype}"] = short(error)
        if os.environ.get("PARITY_TRACEBACK"):
            raise


Shapes = dict[str, tuple[int, ...]]
Call = Callable[[dict[str, Any], list[Any]], Any]


def _callable(
    found: Any, methods: list[str], init: dict[str, Any], kwargs: dict[str, Any], inputs: list[Any]
) -> tuple[Shapes, Call]:
    """Returns the shapes of what a callable has for weights, by path, and how it is called with weights and inputs."""
    import jax
    from flax import linen, nnx

    from migration_tests.parity import probe

    name = methods[0] if methods else "__call__"
    if not inspect.isclass(found):
        function = getattr(found, methods[0]) if methods else found
        return {}, lambda _, inputs: function(*inputs, **kwargs)
    if issubclass(found, linen.Module):
        linen_module = found(**init)

        def make_variables(*inputs: Any) -> Any:
            made = linen_module.init(jax.random.key(0), *inputs, **kwargs, method=name)
            return linen.meta.unbox(made)

        variables = jax.eval_shape(make_variables, *inputs)
        flat = _flat(variables.get("params", {}))
        others = {key: value for key, value in variables.items() if key != "params"}

        def call_linen(weights: dict[str, Any], inputs: list[Any]) -> Any:
            params: dict[str, Any] = {}
            for path, weight in weights.items():
                *names, last = path.split("/")
                node = params
                for part in names:
                    node = node.setdefault(part, {})
                node[last] = weight.astype(flat[path].dtype)
            state = jax.tree.map(lambda leaf: jax.numpy.zeros(leaf.shape, leaf.dtype), others)
            out, _ = linen_module.apply(
                {"params": params, **state},
                *inputs,
                **kwargs,
                method=name,
                mutable=True,
                rngs={"params": jax.random.key(0)},
            )
            return out

        return {path: tuple(leaf.shape) for path, leaf in flat.items()}, call_linen

    takes_rngs = "rngs" in inspect.signature(found.__init__).parameters

    def make() -> Any:
        return found(**init, **({"rngs": nnx.Rngs(0)} if takes_rngs else {}))

    module = nnx.eval_shape(make)
    shapes = {
        "/".join(map(str, path)): tuple(variable.get_value().shape)
        for path, variable in nnx.to_flat_state(nnx.state(module))
        if probe.is_weight(variable)
    }

    def call_nnx(weights: dict[str, Any], inputs: list[Any]) -> Any:
        filled = probe.fill(module, {tuple(path.split("/")): w for path, w in weights.items()})
        return getattr(filled, name)(*inputs, **kwargs)

    return shapes, call_nnx


def _flat(tree: Any, path: str = "") -> dict[str, Any]:
    """The leaves of nested mappings, by path."""
    if not hasattr(tree, "items"):
        return {path: tree}
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= _flat(value, f"{path}/{key}" if path else str(key))
    return flat


def _compute(
    call: Call,
    weights: dict[str, Any],
    inputs: dict[str, Any],
    originals: dict[str, tuple[str, list[int]]],
    gradients: list[str] | None,
) -> dict[str, np.ndarray]:
    """Returns what a call returns, and gradients, by name; those of weights by path and shape of the old module."""
    import jax
    import jax.numpy as jnp

    names = list(inputs)
    out = jax.jit(lambda weights, inputs: call(weights, [inputs[name] for name in names]))(
        weights, inputs
    )
    leaves = [
        (f"out{jax.tree_util.keystr(path)}", jnp.asarray(leaf))
        for path, leaf in jax.tree_util.tree_leaves_with_path(out)
    ]
    arrays = {name: _numbers(leaf) for name, leaf in leaves}
    if gradients is None:
        return arrays
    floating = {n: inputs[n] for n in gradients if jnp.issubdtype(inputs[n].dtype, jnp.floating)}

    def loss(weights: dict[str, Any], some: dict[str, Any]) -> Any:
        given = inputs | some
        leaves = jax.tree_util.tree_leaves_with_path(call(weights, [given[n] for n in names]))
        total = jnp.zeros((), jnp.float32)
        for path, leaf in leaves:
            if jnp.issubdtype(jnp.asarray(leaf).dtype, jnp.floating):
                factor = plan.tensor(f"out{jax.tree_util.keystr(path)}", tuple(leaf.shape))
                total += jnp.sum(leaf.astype(jnp.float32) * factor)
        return total

    of_weights, of_inputs = jax.jit(jax.grad(loss, argnums=(0, 1)))(weights, floating)
    for name, value in of_inputs.items():
        arrays[f"gradient of {name}"] = _numbers(value)
    for path, value in of_weights.items():
        original, shape = originals[path]
        arrays[f"gradient of {original}"] = _numbers(value).reshape(shape)
    return arrays


def _numbers(array: Any) -> np.ndarray:
    """An array as one that an npz file holds: integers and booleans as they are, other numbers in float32."""
    import jax.numpy as jnp

    exact = jnp.issubdtype(array.dtype, jnp.integer) or array.dtype == bool
    return np.asarray(array) if exact else np.asarray(array, np.float32)
