"""A component of the user's own: a small Python file that names an old callable, a new one, inputs and a weight map.

    import numpy as np

    old = "MaxText.layers.normalizations:GroupRMSNorm"
    new = "maxtext.layers.normalizations:GroupRMSNorm"
    old_init = {"num_features": 64, "group_norm_size": 4}
    new_init = {"num_features": 64, "num_groups": 4}
    inputs = {"x": np.random.default_rng(0).standard_normal((2, 8, 64), np.float32)}
    weights = {"scale": "scale"}  # path in the old module: path in the new one

A callable is `package.module:name`, or `package.module:Class.method`. A class is an `nnx.Module`; it is made with its `_init`
and `rngs`, and its parameters get the same random weights on both sides. `inputs` are given in order; `old_kwargs` and
`new_kwargs` are further arguments of the call. `side` is "target" (the default) or "migrated"; `ulps` is the tolerance in units
in the last place of float32, with its `reason`.
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
}  # fmt: skip


def read(path: Path) -> dict[str, Any]:
    """Returns what a specification defines.

    Raises:
        ValueError: one line that says what is wrong with it.
    """
    try:
        defined = runpy.run_path(str(path))
    except Exception as error:
        raise ValueError(f"{path}: {type(error).__name__}: {error}") from error
    spec = {name: value for name, value in defined.items() if name in NAMES}
    for name in ("old", "new"):
        value = spec.get(name)
        if not isinstance(value, str) or value.count(":") != 1:
            raise ValueError(f"{path}: {name} has to be a string like package.module:name")
    if not isinstance(spec.get("inputs"), dict) or not spec["inputs"]:
        raise ValueError(f"{path}: inputs has to be a dict of arrays by name")
    for name in ("weights", "old_init", "new_init", "old_kwargs", "new_kwargs"):
        if not isinstance(spec.setdefault(name, {}), dict):
            raise ValueError(f"{path}: {name} has to be a dict")
    if spec.setdefault("side", "target") not in ("target", "migrated"):
        raise ValueError(f"{path}: side has to be 'target' or 'migrated'")
    spec.setdefault("name", path.stem)
    return spec


def component(spec: dict[str, Any]) -> plan.Component:
    """Returns the component that a specification is."""
    ulps, reason = float(spec.get("ulps", ULPS)), str(spec.get("reason", REASON))
    return plan.Component("spec", str(spec["name"]), ulps, reason, (plan.FLOAT32,))


def evaluate(
    job: dict[str, Any],
    folder: Path,
    status: dict[str, Any],
    short: Callable[[BaseException], str],
) -> None:
    """Computes one side of a specification; runs in that side's process.

    Args:
        job: has `spec`, the file, and `which`: "old" or "new".
        folder: where to write `described.json` and `results.npz`, and where the weights appear.
        status: takes an error of the computation.
        short: an error in one line.
    """
    import jax
    import jax.numpy as jnp
    from flax import nnx

    from migration_tests.parity import probe

    spec = read(Path(job["spec"]))
    which = job["which"]
    module_name, _, qualified = spec[which].partition(":")
    found: Any = importlib.import_module(module_name)
    first, *methods = qualified.split(".")
    found = getattr(found, first)
    inputs = [jnp.asarray(value) for value in spec["inputs"].values()]
    kwargs, init = spec[f"{which}_kwargs"], dict(spec[f"{which}_init"])
    module, described = None, {}
    if inspect.isclass(found):
        takes_rngs = "rngs" in inspect.signature(found.__init__).parameters

        def make() -> Any:
            return found(**init, **({"rngs": nnx.Rngs(0)} if takes_rngs else {}))

        module = nnx.eval_shape(make)
        for path, variable in nnx.to_flat_state(nnx.state(module)):
            if probe.is_weight(variable):
                described["/".join(map(str, path))] = [variable.get_value().shape, True]
    (folder / "described.json").write_text(json.dumps({"spec": described}), encoding="utf-8")
    print("described", flush=True)
    sys.stdin.readline()
    try:
        if module is None:
            function = getattr(found, methods[0]) if methods else found
            out = jax.jit(lambda *args: function(*args, **kwargs))(*inputs)
        else:
            loaded = np.load(folder / "weights_spec.npz")
            weights = {tuple(path.split("/")): loaded[path] for path in loaded.files}
            module = probe.fill(module, weights)
            name = methods[0] if methods else "__call__"
            out = probe.run(lambda m, *args: getattr(m, name)(*args, **kwargs), module, *inputs)
        leaves = jax.tree_util.tree_leaves_with_path(out)
        arrays = {
            f"out{jax.tree_util.keystr(path)}": np.asarray(leaf, np.float32)
            for path, leaf in leaves
        }
        named = {f"spec|{plan.FLOAT32}|{name}": value for name, value in arrays.items()}
        np.savez(folder / "results.npz", **named)  # type: ignore[arg-type]
    except Exception as error:
        status["errors"][f"spec|{plan.FLOAT32}"] = short(error)
        if os.environ.get("PARITY_TRACEBACK"):
            raise
