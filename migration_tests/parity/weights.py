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
    paths = {path: tuple(path.split("/")) for path in described}
    try:
        renamed = params.rename_all(paths.values(), dims, options["scan_layers"])
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
        shape = tuple(described[path][0])
        older = described[path][1] and parameter.collection == params.ROUTING_BIAS
        value = np.empty(parameter.shape, np.float32)
        for index, name in parameter.slices():
            value[index] = params.to_maxtext(parameter, tensor(name, parameter.hf_shape))
        try:
            carried[path] = params.to_stored(parameter, value, shape, older)
        except ValueError as error:
            raise CarryError(
                f"{path} has shape {list(shape)}; the map makes it {list(value.shape)}"
            ) from error
    return carried


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
