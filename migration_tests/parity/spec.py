"""A component of the user's own: a small Python file that names an old callable, a new one, inputs and a weight map.

    import numpy as np

    old = "MaxText.layers.normalizations:GroupRMSNorm"
    new = "maxtext.layers.normalizations:GroupRMSNorm"
    old_init = {"num_features": 64, "group_norm_size": 4}
    new_init = {"num_features": 64, "num_groups": 4}
    inputs = {"x": np.random.default_rng(0).standard_normal((2, 8, 64), np.float32)}
    weights = {"scale": "scale"}  # path in the old module: path in the new one

A callable is `package.module:name`, or `package.module:Class.method`. A class is an `nnx.Module`, made with its `_init` and
`rngs`, or a `linen.Module`, made with its `_init`; its parameters get the same random weights on both sides, and what else it
holds is as it makes it. A function with an `_init` is one that returns a module; any other object is called as it is. `inputs`
are given in order: arrays, which are traced, and what is static (a Python int, str, bool or None), which is not; `old_kwargs`
and `new_kwargs` are further arguments of the call and static. An `_init` or `_kwargs` may be a function that returns the dict;
it is called in the side's own process, where the side's packages can be imported: that is how a layer gets its config and
mesh. What the call returns is compared, or what a function `old_output` or `new_output` makes of it, where the two return
their arrays in another form; and the gradients of a weighted sum of it by inputs and weights (`gradients = ["x"]`: of inputs
only by these; `False`: none). `dtype` is "float32" or "bfloat16", which the inputs are then cast to; `side` is "target" (the
default) or "migrated"; `ulps` is the tolerance in units in the last place of the dtype, with its `reason`. Integers and
booleans have to be equal.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import inspect
import json
import os
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from migration_tests.parity import plan

if TYPE_CHECKING:
    from migration_tests.parity.side import Channel

# An eighth of the values' root mean square in bfloat16: what is worth a comparison is further apart.
ULPS = {plan.FLOAT32: 256.0, plan.BFLOAT16: 16.0}
REASON = "none was given in the specification"
NAMES = {
    "name", "old", "new", "inputs", "weights", "old_init", "new_init", "old_kwargs", "new_kwargs", "old_output", "new_output",
    "side", "ulps", "reason", "dtype", "gradients",
}  # fmt: skip
# What may be a function that returns it.
_MADE = ("old_init", "new_init", "old_kwargs", "new_kwargs")
_STATIC = str | int | None
# The streams of random numbers that a Linen module may ask for.
_STREAMS = ("params", "dropout", "aqt")


def read(path: Path) -> dict[str, Any]:
    """Returns what a specification defines.

    Raises:
        ValueError: one line that says what is wrong with it.
    """
    try:
        with _importable(path):
            defined = runpy.run_path(str(path))
    except (Exception, SystemExit) as error:
        said = f"{path}: {type(error).__name__}: {' '.join(str(error).split())}"
        if isinstance(error, ImportError) and str(error.name).split(".")[0].lower() == "maxtext":
            said += (
                " (import a side's packages in a function, such as old_init: each side has its own)"
            )
        raise ValueError(said) from error
    spec = {name: value for name, value in defined.items() if name in NAMES}
    for name in ("old", "new"):
        value = spec.get(name)
        if not isinstance(value, str) or value.count(":") != 1:
            raise ValueError(f"{path}: {name} has to be a string like package.module:name")
    if not isinstance(spec.get("inputs"), dict) or not spec["inputs"]:
        raise ValueError(f"{path}: inputs has to be a dict of arrays by name")
    spec["inputs"] = {
        str(name): (
            value if isinstance(value, _STATIC) else _array(value, f"{path}: inputs[{name!r}]")
        )
        for name, value in spec["inputs"].items()
    }
    for name in ("weights", *_MADE):
        value = spec.setdefault(name, {})
        if not (isinstance(value, dict) or (name in _MADE and callable(value))):
            more = ", or a function that returns one" if name in _MADE else ""
            raise ValueError(f"{path}: {name} has to be a dict{more}")
    paths = spec["weights"].values()
    if not all(isinstance(each, str) for each in (*spec["weights"], *paths)):
        raise ValueError(f"{path}: weights has to map paths to paths, which are strings")
    if len(set(paths)) < len(paths):
        raise ValueError(f"{path}: weights maps two paths to one")
    for name in ("old_output", "new_output"):
        if not callable(spec.setdefault(name, lambda out: out)):
            raise ValueError(f"{path}: {name} has to be a function of what the call returns")
    for name, values in (("side", ("target", "migrated")), ("dtype", plan.DTYPES)):
        value = spec.setdefault(name, values[0])
        if not isinstance(value, str) or value not in values:
            raise ValueError(f"{path}: {name} has to be {' or '.join(map(repr, values))}")
    ulps = spec.setdefault("ulps", ULPS[spec["dtype"]])
    if not isinstance(ulps, int | float) or not ulps >= 0:
        raise ValueError(f"{path}: ulps has to be a number that is not negative")
    gradients = spec.get("gradients", True)
    known = [name for name, value in spec["inputs"].items() if isinstance(value, np.ndarray)]
    if isinstance(gradients, bool):
        gradients = known if gradients else None
    elif not isinstance(gradients, list | tuple) or not set(gradients) <= set(known):
        raise ValueError(f"{path}: gradients has to be True, False or a list of names of inputs")
    spec["gradients"] = gradients
    spec.setdefault("name", path.stem)
    spec["notes"] = []
    for name in (name for name in defined if name not in NAMES and not name.startswith("_")):
        meant = difflib.get_close_matches(name, NAMES - set(defined), 1, 0.85)
        if meant:
            spec["notes"].append(f"{path.name}: {name} means nothing here; is it {meant[0]}?")
    return spec


@contextlib.contextmanager
def _importable(path: Path) -> Iterator[None]:
    """Modules beside a specification can be imported by it, as by a program."""
    folder = str(path.resolve().parent)
    sys.path.append(folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


def _array(value: Any, where: str) -> np.ndarray:
    """An input as an array of integers, booleans or numbers.

    Raises:
        ValueError: it is none.
    """
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):  # such as a key of JAX, or rows of several lengths
        array = np.empty((), object)
    if array.dtype.kind == "V" and array.dtype.fields is None and array.dtype.name != "void":
        array = array.astype(np.float32)  # bfloat16 and the like
    if array.dtype.kind not in "fiubc":
        raise ValueError(f"{where} is no array of numbers")
    return array


def component(spec: dict[str, Any]) -> plan.Component:
    """Returns the component that a specification is."""
    ulps, reason = float(spec["ulps"]), str(spec.get("reason", REASON))
    return plan.Component("spec", str(spec["name"]), ulps, reason, (spec["dtype"],))


def evaluate(
    job: dict[str, Any],
    folder: Path,
    status: dict[str, Any],
    short: Callable[[BaseException], str],
    channel: Channel,
) -> None:
    """Computes one side of a specification; runs in that side's process.

    Args:
        job: has `spec`, the file; `which`: "old" or "new"; and `inputs`, a file of those that are arrays.
        folder: where to write `results.npz`, and where the weights appear: `weights_spec.npz`, by the side's own paths, and
            `weights_spec.json`, path and shape in the old module of each.
        status: takes an error of the computation.
        short: an error in one line.
        channel: takes the description of the weights.
    """
    import jax.numpy as jnp

    path = Path(job["spec"])
    spec = read(path)
    sys.path.append(str(path.parent))
    which, dtype = job["which"], spec["dtype"]
    channel.doing(f"importing {spec[which]}")
    found, methods = _named(spec[which])
    channel.doing(f"making {spec[which]}")
    # Both sides get the arrays that the file made once: it may have drawn them at random.
    given = {name: jnp.asarray(value) for name, value in np.load(job["inputs"]).items()}
    inputs = spec["inputs"] | {
        name: value.astype(dtype) if jnp.issubdtype(value.dtype, jnp.floating) else value
        for name, value in given.items()
    }
    made = {name: spec[f"{which}_{name}"] for name in ("init", "kwargs")}
    init, kwargs = (dict(value() if callable(value) else value) for value in made.values())
    shapes, call = _callable(found, methods, init, kwargs, list(inputs.values()))
    channel.describe({"spec": {path: [shape, True] for path, shape in shapes.items()}})
    if not (folder / "weights_spec.npz").is_file():
        return  # they could not be carried, which the other process tells
    channel.doing(f"computing {spec[which]}")
    output = spec[f"{which}_output"]
    try:
        loaded = np.load(folder / "weights_spec.npz")
        weights = {path: jnp.asarray(loaded[path]) for path in loaded.files}
        originals = json.loads((folder / "weights_spec.json").read_text(encoding="utf-8"))
        arrays = _compute(
            lambda weights, inputs: output(call(weights, inputs)),
            weights,
            inputs,
            originals,
            spec["gradients"],
        )
        named = {f"spec|{dtype}|{name}": value for name, value in arrays.items()}
        np.savez(folder / "results.npz", **named)  # type: ignore[arg-type]
    except Exception as error:
        status["errors"][f"spec|{dtype}"] = short(error)
        if os.environ.get("PARITY_TRACEBACK"):
            raise


def _named(text: str) -> tuple[Any, list[str]]:
    """Returns what `package.module:a.b` names; of a class, the class and the name of the method.

    Raises:
        ImportError: the module cannot be imported.
        AttributeError: it has no such name.
        TypeError: what is named cannot be called.
    """
    module_name, _, qualified = text.partition(":")
    found: Any = importlib.import_module(module_name)
    names = qualified.split(".")
    while names and not (inspect.isclass(found) and not inspect.isclass(vars(found).get(names[0]))):
        found = getattr(found, names.pop(0))
    if names:
        getattr(found, names[0])
    if len(names) > 1 or not callable(found):
        raise TypeError(f"{text} is no function, class or method")
    return found, names


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
    traced = {n: value for n, value in enumerate(inputs) if hasattr(value, "dtype")}
    keys = {stream: jax.random.key(0) for stream in _STREAMS}
    made = None
    if not inspect.isclass(found):
        if not init:
            return {}, lambda _, inputs: found(*inputs, **kwargs)
        made = found(**init)
        if not isinstance(made, linen.Module | nnx.Module):
            raise TypeError(
                f"a function with an _init has to return a module, this one returns {type(made).__name__}"
            )
    elif not issubclass(found, linen.Module | nnx.Module):
        method = getattr(found(**init), name)
        return {}, lambda _, inputs: method(*inputs, **kwargs)
    if isinstance(made, linen.Module) or (made is None and issubclass(found, linen.Module)):
        linen_module = made or found(**init)

        def make_variables(traced: dict[int, Any]) -> Any:
            given = [traced.get(n, value) for n, value in enumerate(inputs)]
            return linen.meta.unbox(linen_module.init(keys, *given, **kwargs, method=name))

        flat = _flat(jax.eval_shape(make_variables, traced).get("params", {}))

        @jax.jit
        def make_others(traced: dict[int, Any]) -> Any:
            return {k: v for k, v in make_variables(traced).items() if k != "params"}

        others = make_others(traced)

        def call_linen(weights: dict[str, Any], inputs: list[Any]) -> Any:
            params: dict[str, Any] = {}
            for path, weight in weights.items():
                *names, last = path.split("/")
                node = params
                for part in names:
                    node = node.setdefault(part, {})
                node[last] = weight.astype(flat[path].dtype)
            out, _ = linen_module.apply(
                {"params": params, **others},
                *inputs,
                **kwargs,
                method=name,
                mutable=True,
                rngs=keys,
            )
            return out

        return {path: tuple(leaf.shape) for path, leaf in flat.items()}, call_linen

    def make() -> Any:
        return found(**({"rngs": nnx.Rngs(0)} if _takes_rngs(found) else {}) | init)

    graphdef, state = nnx.split(nnx.eval_shape(make))
    shapes = {
        "/".join(map(str, path)): tuple(variable.get_value().shape)
        for path, variable in nnx.to_flat_state(state)
        if probe.is_weight(variable)
    }

    @jax.jit
    def make_rest() -> Any:
        flat = nnx.to_flat_state(nnx.split(make())[1])
        return [None if probe.is_weight(variable) else variable.get_value() for _, variable in flat]

    rest = make_rest()

    def call_nnx(weights: dict[str, Any], inputs: list[Any]) -> Any:
        filled = []
        for (path, variable), value in zip(nnx.to_flat_state(state), rest, strict=True):
            if value is None:
                weight = weights["/".join(map(str, path))]
                value = weight.astype(variable.get_value().dtype)
            filled.append((path, variable.replace(value)))
        module = nnx.merge(graphdef, nnx.from_flat_state(filled))
        return getattr(module, name)(*inputs, **kwargs)

    return shapes, call_nnx


def _takes_rngs(found: Any) -> bool:
    """Whether a class or function takes `rngs`, be it by way of the `**kwargs` that it hands on to the class it extends."""
    for maker in found.__mro__ if inspect.isclass(found) else (found,):
        if inspect.isclass(maker) and "__init__" not in vars(maker):
            continue
        taken = inspect.signature(vars(maker)["__init__"] if inspect.isclass(maker) else maker)
        if "rngs" in taken.parameters:
            return True
        if not any(p.kind is p.VAR_KEYWORD for p in taken.parameters.values()):
            return False
    return False


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

    traced = {name: value for name, value in inputs.items() if hasattr(value, "dtype")}

    def outputs(weights: dict[str, Any], traced: dict[str, Any]) -> dict[str, Any]:
        leaves = jax.tree_util.tree_leaves_with_path(
            call(weights, list((inputs | traced).values()))
        )
        # One array is one array, whether a tuple is around it or not.
        names = (
            ["out"] if len(leaves) == 1 else [f"out{jax.tree_util.keystr(p)}" for p, _ in leaves]
        )
        return {name: jnp.asarray(leaf) for name, (_, leaf) in zip(names, leaves, strict=True)}

    try:
        out = jax.jit(outputs)(weights, traced)
    except (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError) as error:
        # Its first sentence; the others are of JAX's own workings.
        what = str(error).split("\n")[0]
        raise TypeError(
            f"an input is used as a constant ({what}): give it as a Python int, str or bool, or in old_kwargs and new_kwargs"
        ).with_traceback(error.__traceback__) from None
    if not out:
        raise ValueError("the call returned no array")
    arrays = {name: _numbers(leaf) for name, leaf in out.items()}
    if gradients is None:
        return arrays
    floating = {n: inputs[n] for n in gradients if jnp.issubdtype(inputs[n].dtype, jnp.floating)}

    def loss(weights: dict[str, Any], some: dict[str, Any]) -> Any:
        total = jnp.zeros((), jnp.float32)
        for name, leaf in outputs(weights, traced | some).items():
            if jnp.issubdtype(leaf.dtype, jnp.floating):
                total += jnp.sum(leaf.astype(jnp.float32) * plan.tensor(name, tuple(leaf.shape)))
        return total

    try:
        of_weights, of_inputs = jax.jit(jax.grad(loss, argnums=(0, 1)))(weights, floating)
    except Exception as error:
        what = f"{type(error).__name__}: {str(error)[:200]}"
        raise ValueError(
            f"the gradients cannot be computed; `gradients = False` leaves them out ({what})"
        ).with_traceback(error.__traceback__) from None
    for name, value in of_inputs.items():
        arrays[f"gradient of {name}"] = _numbers(value)
    for path, value in of_weights.items():
        original, shape = originals[path]
        arrays[f"gradient of {original}"] = _numbers(value).reshape(shape)
    return arrays


def _numbers(array: Any) -> np.ndarray:
    """An array as one that an npz file holds: integers and booleans as they are, other numbers in float32, complex ones as two."""
    import jax
    import jax.numpy as jnp

    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        array = jnp.stack((array.real, array.imag), -1)

    exact = jnp.issubdtype(array.dtype, jnp.integer) or array.dtype == bool
    return np.asarray(array) if exact else np.asarray(array, np.float32)
