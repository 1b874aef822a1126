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

"""Ling2 for `to_maxtext` and `to_huggingface`: names, hooks and shapes, all of them made of `ling2_params`.

The sizes are those of the MaxText config, so a checkpoint of other sizes than the registered HF config's converts too.
"""

import functools
from typing import Any, Callable

from maxtext.checkpoint_conversion.utils import ling2_params
from maxtext.common import checkpoint_collections

LING2 = "ling2"
# Attributes of the HF config and of the MaxText config that have to agree, beside those that are asked of every model.
_ARCHITECTURE = (
    ("head_dim", "head_dim"),
    ("layer_group_size", "inhomogeneous_layer_cycle_interval"),
    ("first_k_dense_replace", "first_num_dense_layers"),
    ("num_nextn_predict_layers", "mtp_num_layers"),
    ("moe_shared_expert_intermediate_size", "moe_shared_expert_dim"),
    ("num_shared_experts", "shared_experts"),
    ("use_qk_norm", "use_qk_norm"),
    ("group_norm_size", "group_norm_size"),
    ("tie_word_embeddings", "logits_via_embedding"),
)


def _parameters(maxtext_config: Any, scan_layers: bool) -> list[ling2_params.Parameter]:
  return ling2_params.parameters(ling2_params.ModelDims.from_maxtext_config(maxtext_config), scan_layers)


def _key(parameter: ling2_params.Parameter, maxtext_config: Any) -> str:
  # Releases that still have the Linen decoder keep everything on disk among the parameters.
  collection = ling2_params.PARAMS if hasattr(maxtext_config, "pure_nnx_decoder") else parameter.collection
  return "-".join((collection, *parameter.path))


def _names(parameter: ling2_params.Parameter) -> Any:
  """Returns the HF tensors as the conversion tools want them: nested lists, the level of the first axis outermost."""
  sources: Any = parameter.sources
  if len(parameter.stack_axes) == 2 and parameter.stack_axes[0] > parameter.stack_axes[1]:
    sources = tuple(zip(*sources))

  def as_lists(names: Any) -> Any:
    return names if isinstance(names, str) else [as_lists(name) for name in names]

  return as_lists(sources)


def LING2_MAXTEXT_TO_HF_PARAM_MAPPING(config, maxtext_config, scan_layers=False) -> dict[str, Any]:
  """Returns the HF tensors of every parameter of Ling2.

  Args:
    config: HF config as a dict; what is needed of it the MaxText config has as well.
    maxtext_config: MaxText config.
    scan_layers: whether the decoder is scanned.

  Returns:
    From the key of a parameter to the name of its HF tensor, or a list of names (stacked experts or layers), or a list of
    such lists (experts, each with its layers).
  """
  del config
  return {_key(p, maxtext_config): _names(p) for p in _parameters(maxtext_config, scan_layers)}


def LING2_MAXTEXT_TO_HF_PARAM_HOOK_FN(
    config, maxtext_config, scan_layers=False, saving_to_hf=False
) -> dict[str, Callable[[Any, Any], Any]]:
  """Returns what turns one HF tensor into (a slice of) a parameter, or back, for every parameter that is transposed.

  Args:
    config: HF config as a dict, not needed.
    maxtext_config: MaxText config.
    scan_layers: whether the decoder is scanned.
    saving_to_hf: whether the way is to HF.
  """
  del config
  convert = ling2_params.to_hf if saving_to_hf else ling2_params.to_maxtext
  return {
      _key(p, maxtext_config): functools.partial(_hook, convert, p)
      for p in _parameters(maxtext_config, scan_layers)
      if p.transform != ling2_params.IDENTITY
  }


def _hook(convert: Callable[[ling2_params.Parameter, Any], Any], parameter: ling2_params.Parameter, tensor: Any, shape: Any) -> Any:
  result = convert(parameter, tensor)
  if tuple(shape) != result.shape:
    raise ValueError(f"{parameter.key}: {tuple(shape)} is asked for, its tensors make {result.shape}.")
  return result


def LING2_HF_WEIGHTS_TO_SHAPE(config) -> dict[str, list[int]]:
  """Returns the shape of every HF tensor by name. `config` is the HF config as a dict."""
  dims = ling2_params.ModelDims.from_hf_config(config)
  return {name: list(shape) for name, shape in ling2_params.hf_shapes(dims).items()}


def is_ling2(config: Any) -> bool:
  """Whether a MaxText config is of a Ling2 model."""
  block = getattr(config, "decoder_block", None)
  return getattr(block, "value", block) == LING2


def stack_axis(mt_key: str, config: Any, default: int) -> int:
  """Returns the axis on which the conversion tools stack the tensors of a parameter that are in one list.

  Of a scanned Ling2 only the parameters of the scanned cycles have a layer axis; the experts of the other layers, and the
  routing bias, are stacked in front.

  Args:
    mt_key: key of the parameter.
    config: MaxText config, of any model.
    default: the axis for other models.
  """
  if not is_ling2(config):
    return default
  if not mt_key.split("-", 1)[1].startswith("decoder-layers-"):
    return 0
  # In a Linen decoder, which up to 0.2.4 there is, the bias is a parameter.
  is_variable = mt_key.endswith("gate-bias") and getattr(config, "pure_nnx_decoder", True)
  return 0 if is_variable else config.param_scan_axis


def weight_name(mt_key: str, config: Any, default: str) -> str:
  """Returns the name of a parameter among all weights of the model, where collections are not told apart.

  Args:
    mt_key: key of the parameter.
    config: MaxText config, of any model.
    default: the name for other models.
  """
  return mt_key.split("-", 1)[1].replace("-", ".") if is_ling2(config) else default


def abstract_weights(collections: Any, config: Any) -> Any:
  """Returns the weights that a release with the Linen decoder converts: its parameters, and Ling2's routing bias.

  Args:
    collections: abstract variables of the model by collection.
    config: MaxText config, of any model.
  """
  if not is_ling2(config):
    return collections[ling2_params.PARAMS]
  wanted = (ling2_params.PARAMS, ling2_params.ROUTING_BIAS)
  return checkpoint_collections.merged({name: collections[name] for name in wanted if name in collections})


def architecture(config: Any) -> list[tuple[str, str]]:
  """Returns the further attributes of the HF and MaxText configs that have to agree before a Ling2 model goes to HF."""
  return list(_ARCHITECTURE) if is_ling2(config) else []


def update_hf_config(hf_config: Any, config: Any) -> None:
  """Makes the HF config that of a MaxText config, of a Ling2 model."""
  if is_ling2(config):
    hf_config.update(ling2_params.hf_config_of(config))


def refuse_missing(param_map: dict[str, Any], found: list[Any], config: Any) -> None:
  """Raises ValueError if a checkpoint of Ling2 lacks parameters, which would be left out of the HF checkpoint in silence."""
  missing = sorted(set(param_map) - set(found)) if is_ling2(config) else []
  if missing:
    raise ValueError(
        f"The checkpoint lacks {len(missing)} parameters of the model, the first {missing[0]}. Of a checkpoint with optimizer "
        "state, `ling2-migrate ckpt to-hf` converts the routing bias too."
    )
