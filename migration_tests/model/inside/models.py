"""Small Ling2 configs and models for the checks."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("DECOUPLE_GCLOUD", "TRUE")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

# pylint: disable=wrong-import-position
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from maxtext.checkpoint_conversion.utils import ling2_params
from maxtext.configs import pyconfig
from maxtext.utils import maxtext_utils, model_creation_utils
from maxtext.utils.globals import MAXTEXT_CONFIGS_DIR

from migration_tests.checkpoint import hf_models

VariablePath = tuple[str, ...]
Tensors = dict[VariablePath, np.ndarray]

TINY: dict[str, Any] = {
    "vocab_size": 128,
    "base_emb_dim": 64,
    "base_mlp_dim": 96,
    "base_num_decoder_layers": 6,
    "base_num_query_heads": 4,
    "base_num_kv_heads": 4,
    "head_dim": 16,
    "inhomogeneous_layer_cycle_interval": 3,
    "group_norm_size": 2,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "base_moe_mlp_dim": 32,
    "moe_shared_expert_dim": 40,
    "n_routing_groups": 2,
    "topk_routing_group": 1,
}
RUN: dict[str, Any] = {
    "hardware": "cpu",
    "skip_jax_distributed_system": True,
    "jax_cache_dir": "",
    "dataset_type": "synthetic",
    "enable_checkpointing": False,
    "override_model_config": True,
    "attention": "dot_product",
    "megablox": False,
    "dtype": "float32",
    "weight_dtype": "float32",
    "matmul_precision": "highest",
    "per_device_batch_size": 2,
    "max_target_length": 32,
    "max_prefill_predict_length": 16,
    "sharding_tolerance": 1.0,
    "enable_dropout": False,
    "log_config": False,
}


def make_config(model_name: str = "ling2", **overrides: Any) -> Any:
    """Returns the config of a small model; `overrides` are MaxText options."""
    options = RUN | (TINY if model_name == "ling2" else {}) | overrides
    base = os.path.join(MAXTEXT_CONFIGS_DIR, "base.yml")
    return pyconfig.initialize(
        ["checks", base], model_name=model_name, run_name="checks", **options
    )


def make_mesh(config: Any) -> jax.sharding.Mesh:
    """Returns the mesh of a config."""
    return jax.sharding.Mesh(maxtext_utils.create_device_mesh(config), config.mesh_axes)


def make_model(config: Any, tensors: Tensors | None = None, mode: str = "train") -> nnx.Module:
    """Returns a model with the given variables, or with random ones of a size at which every part matters."""
    mesh = make_mesh(config)
    _, abstract = model_creation_utils.create_nnx_abstract_model(config, mesh, model_mode=mode)
    graphdef, state = nnx.split(abstract)
    flat = dict(nnx.to_flat_state(state))
    if tensors is None:
        tensors = random_tensors(abstract)
    places = {path for path, variable in flat.items() if is_weight(path, variable)}
    assert places == set(tensors), sorted(places ^ set(tensors))
    filled = []
    for path, variable in flat.items():
        shape, dtype = variable.get_value().shape, variable.get_value().dtype
        if path in tensors:
            assert tensors[path].shape == shape, (path, tensors[path].shape, shape)
            value = jnp.asarray(tensors[path], dtype)
        elif jnp.issubdtype(dtype, jax.dtypes.prng_key):
            value = jnp.broadcast_to(jax.random.key(0), shape)
        else:
            value = jnp.zeros(shape, dtype)
        if mesh.size > 1:
            value = jax.device_put(value, variable.get_value().sharding)
        filled.append((path, variable.replace(value)))
    return nnx.merge(graphdef, nnx.from_flat_state(filled))


def is_weight(path: VariablePath, variable: Any) -> bool:
    """Whether a variable is one of the weights: a parameter, or a routing bias."""
    del path
    return isinstance(variable, nnx.Param) or type(variable).__name__ == "MoEBiasVar"


def random_tensors(abstract: nnx.Module, seed: int = 0) -> Tensors:
    """Returns random weights for a model."""
    rng = np.random.default_rng(seed)
    tensors: Tensors = {}
    for path, variable in sorted(nnx.to_flat_state(nnx.state(abstract)), key=lambda item: item[0]):
        if not is_weight(path, variable):
            continue
        shape = variable.get_value().shape
        if path[-1] == "scale":
            tensor = 1 + 0.2 * rng.standard_normal(shape)
        elif path[-1] == "bias":
            tensor = 0.1 * rng.standard_normal(shape)
        elif path[-1] == "embedding":
            tensor = rng.standard_normal(shape)
        else:
            fan_in = shape[-2] if path[-1] in ("wi_0", "wi_1", "wo") else np.prod(shape) / shape[-1]
            tensor = rng.standard_normal(shape) / np.sqrt(min(fan_in, shape[0]))
        tensors[path] = tensor.astype(np.float32)
    return tensors


def scanned(tensors: Tensors, config: Any) -> Tensors:
    """Returns the weights of an unscanned model as those of a scanned one."""
    dims = ling2_params.ModelDims.from_maxtext_config(config)
    before, after = (ling2_params.parameters(dims, scan_layers) for scan_layers in (False, True))
    return hf_models.restacked(tensors, before, after)


def compiled(model: nnx.Module, call: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `call(model, *args)` compiled, as a function of the weights and the arguments.

    The weights are a dict like that of `random_tensors`, so that they can be changed without compiling again.
    """
    graphdef, state = nnx.split(model)
    flat = dict(nnx.to_flat_state(state))

    def run(tensors: Tensors, *args: Any) -> Any:
        filled = flat | {
            path: flat[path].replace(jnp.asarray(tensor)) for path, tensor in tensors.items()
        }
        merged = nnx.merge(graphdef, nnx.from_flat_state(list(filled.items())), copy=True)
        return call(merged, *args)

    return jax.jit(run)


def positions_of(tokens: Any) -> jax.Array:
    """Returns the positions of rows that are one sequence each."""
    return jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
