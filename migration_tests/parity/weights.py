"""Carries one set of weights to every side, by the map of parameters that checkpoint conversion uses."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from target.importing import target_module

Described = dict[str, tuple[tuple[int, ...], bool]]


class CarryError(Exception):
    """The weights of a side are not those of the model; the text says which."""


def parameter_map() -> ModuleType:
    """Returns the module that describes Ling2's parameters."""
    return target_module("maxtext.checkpoint_conversion.utils.ling2_params")


def mapped(described: Described, options: dict[str, Any]) -> dict[str, Any]:
    """Returns the parameter that each path of a side is.

    Args:
        described: shape, and whether the optimizer steps it, by path.
        options: MaxText options of the model.

    Raises:
        CarryError: a path is no parameter of the model, two are the same one, or one is missing.
    """
    params = parameter_map()
    dims = params.ModelDims.from_maxtext_config(options)
    scan = options["scan_layers"]
    pattern = dims.pattern
    remainder: dict[tuple[str, ...], tuple[str, ...]] = {}
    if scan:
        # The fork calls a layer after the scan as it does without one.
        plan = pattern.scan_plan()
        for layer in range(plan.remainder_base, pattern.num_decoder_layers):
            new = ("decoder", "layers_remainder", f"layer_{layer - plan.remainder_base}")
            remainder["decoder", pattern.unscanned_name(layer)] = new
    paths = {}
    for path in described:
        names = tuple(path.split("/"))
        moved = remainder.get(names[:2])
        paths[path] = (*moved, *names[2:]) if moved else names
    try:
        renamed = params.rename_all(paths.values(), params.parameters(dims, scan))
    except ValueError as error:
        raise CarryError(str(error)) from error
    return {path: renamed[names] for path, names in paths.items()}


def carry(
    described: Described,
    parameters: dict[str, Any],
    tensor: Callable[[str, tuple[int, ...]], np.ndarray],
) -> dict[str, np.ndarray]:
    """Returns the weights of a side by its own paths, in its own shapes.

    Args:
        described: as that of `mapped`.
        parameters: what `mapped` returned.
        tensor: the tensor of a Hugging Face name and shape.

    Raises:
        CarryError: a shape is not that of the parameter; the text has both.
    """
    params = parameter_map()
    carried = {}
    for path, parameter in parameters.items():
        shape, optimized = tuple(described[path][0]), described[path][1]
        value = np.empty(parameter.shape, np.float32)
        for index, name in parameter.slices():
            value[index] = params.to_maxtext(parameter, tensor(name, parameter.hf_shape))
        try:
            carried[path] = _stored(value, parameter, shape, optimized)
        except ValueError as error:
            raise CarryError(
                f"{path} has shape {list(shape)}; the map makes it {list(value.shape)}"
            ) from error
    return carried


def _stored(
    value: np.ndarray, parameter: Any, shape: tuple[int, ...], optimized: bool
) -> np.ndarray:
    """Returns a parameter in the shape that a side stores it in; the fork merges neighbouring axes, such as heads.

    Raises:
        ValueError: the shape is not one of the parameter.
    """
    params = parameter_map()
    if shape == value.shape:
        return value
    if len(parameter.layers) > 1:
        # Layers are stacked on axis 1 of what is optimized, and in front of a routing bias that is not.
        axis = 1 if optimized else 0
        one = (
            parameter.shape[: parameter.stack_axes[-1]]
            + parameter.shape[parameter.stack_axes[-1] + 1 :]
        )
        ours = shape[:axis] + shape[axis + 1 :]
        if shape[axis] != len(parameter.layers) or not _regroups(params, ours, one):
            raise ValueError
        layers = np.moveaxis(value, parameter.stack_axes[-1], 0)
        return np.moveaxis(layers.reshape(len(layers), *ours), 0, axis)
    if not _regroups(params, shape, value.shape):
        raise ValueError
    return value.reshape(shape)


def _regroups(params: ModuleType, one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    return bool(params.is_regrouped(one, other) or params.is_regrouped(other, one))


def canonical(computed: dict[str, np.ndarray], parameters: dict[str, Any]) -> dict[str, np.ndarray]:
    """Returns what a side computes for its unscanned parameters by the target's paths and shapes.

    Arrays that belong to no parameter, or have not its size, stay as they are.
    """
    result = {}
    for path, value in computed.items():
        parameter = parameters.get(path)
        if parameter is None:
            result[path] = value
            continue
        fits = value.size == np.prod(parameter.shape)
        result["/".join(parameter.path)] = value.reshape(parameter.shape) if fits else value
    return result
