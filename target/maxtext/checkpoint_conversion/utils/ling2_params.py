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

"""The parameters of Ling2: what they are in a MaxText checkpoint, and of which tensors of a Hugging Face (HF) one.

`parameters` is the one description that every conversion and comparison derives from. This module needs numpy alone, so
that a conversion can be planned where JAX is not installed.
"""

import dataclasses
import functools
import math
import re
import sys
from typing import Any, Callable, Iterable, Iterator, Mapping, Union

from maxtext.common import ling2_layers
import numpy as np

Path = tuple[str, ...]
Shape = tuple[int, ...]
# The HF tensor of a parameter, or a tuple of such per axis that the parameter stacks.
Sources = Union[str, tuple["Sources", ...]]

# Collections of a MaxText checkpoint.
PARAMS = "params"
ROUTING_BIAS = "MoEBiasVar"

HF_ARCHITECTURE = "BailingMoeV2_5ForCausalLM"

# How an HF tensor becomes a (slice of a) MaxText parameter.
IDENTITY = "identity"
TRANSPOSE = "transpose"  # transposed, then reshaped: HF has [out, in], MaxText [in, out] with the heads as axes of their own
TRANSFORMS = (IDENTITY, TRANSPOSE)

# Kinds of parameters beside those of `ling2_layers`.
NORM = "norm"  # the two norms of a layer
MTP = "mtp"  # what an MTP layer has around its transformer layer
TOP = "top"


@dataclasses.dataclass(frozen=True)
class ModelDims:
  """Every size and switch that the parameters depend on.

  Attributes:
    vocab_size: rows of the embedding.
    emb_dim: width of the hidden states.
    mlp_dim: width of a dense feed-forward.
    num_heads: attention heads; there are as many of queries, keys and values.
    head_dim: width of a GLA head.
    use_qk_norm: whether GLA normalizes queries and keys.
    q_lora_rank: rank of MLA's queries; 0 if they are projected at once.
    kv_lora_rank: rank of MLA's keys and values.
    qk_nope_head_dim: dims of an MLA query or key without position.
    qk_rope_head_dim: rotary dims of an MLA query or key.
    v_head_dim: width of an MLA value.
    num_experts: routed experts.
    moe_mlp_dim: width of a routed expert.
    shared_mlp_dim: width of the shared experts together.
    routed_bias: whether the router has a bias.
    pattern: which layer is what.
    mtp_num_layers: MTP layers.
    tied_embeddings: whether the output head is the embedding.
    param_scan_axis: axis that scanned layers are stacked on.
  """

  vocab_size: int
  emb_dim: int
  mlp_dim: int
  num_heads: int
  head_dim: int
  use_qk_norm: bool
  q_lora_rank: int
  kv_lora_rank: int
  qk_nope_head_dim: int
  qk_rope_head_dim: int
  v_head_dim: int
  num_experts: int
  moe_mlp_dim: int
  shared_mlp_dim: int
  routed_bias: bool
  pattern: ling2_layers.LayerPattern
  mtp_num_layers: int
  tied_embeddings: bool
  param_scan_axis: int = 1

  @classmethod
  def from_maxtext_config(cls, config: Any) -> "ModelDims":
    """Returns the dims of a MaxText config, or of options by name as a model's YAML file holds them.

    Args:
      config: MaxText config; or a mapping of options, where an option that is not given has the default of base.yml.

    Raises:
      ValueError: one line that names the option at fault.
    """
    option = _options_of(config)
    shared_expert_dim = option("moe_shared_expert_dim") or option("moe_mlp_dim")
    pattern = ling2_layers.LayerPattern(
        num_decoder_layers=option("num_decoder_layers"),
        interval=option("inhomogeneous_layer_cycle_interval"),
        num_dense_layers=option("first_num_dense_layers"),
        mla_tail_rule=option("mla_tail_rule"),
    )
    return cls(
        vocab_size=option("vocab_size"),
        emb_dim=option("emb_dim"),
        mlp_dim=option("mlp_dim"),
        num_heads=option("num_query_heads"),
        head_dim=option("head_dim"),
        use_qk_norm=option("use_qk_norm"),
        q_lora_rank=option("q_lora_rank"),
        kv_lora_rank=option("kv_lora_rank"),
        qk_nope_head_dim=option("qk_nope_head_dim"),
        qk_rope_head_dim=option("qk_rope_head_dim"),
        v_head_dim=option("v_head_dim"),
        num_experts=option("num_experts"),
        moe_mlp_dim=option("moe_mlp_dim"),
        shared_mlp_dim=option("shared_experts") * shared_expert_dim,
        routed_bias=option("routed_bias"),
        pattern=pattern,
        mtp_num_layers=option("mtp_num_layers"),
        tied_embeddings=option("logits_via_embedding"),
        param_scan_axis=option("param_scan_axis"),
    )

  @classmethod
  def from_hf_config(
      cls, hf_config: Mapping[str, Any], shapes: None | Mapping[str, Shape] = None, mla_tail_rule: None | str = None
  ) -> "ModelDims":
    """Returns the dims of an HF config; arguments and errors as those of `maxtext_options`."""
    return cls.from_maxtext_config(maxtext_options(hf_config, shapes, mla_tail_rule))


def _options_of(config: Any) -> Callable[[str], Any]:
  """Returns a function from the name of an option to its value."""
  return functools.partial(_yaml_option, config) if isinstance(config, Mapping) else functools.partial(getattr, config)


# Defaults of base.yml and of the fields that Ling2 adds, for what a model's YAML file may leave out.
_YAML_DEFAULTS: dict[str, Any] = {
    "use_qk_norm": False,
    "q_lora_rank": 0,
    "num_experts": 1,
    "moe_mlp_dim": -1,
    "moe_shared_expert_dim": 0,
    "shared_experts": 0,
    "routed_bias": False,
    "first_num_dense_layers": 0,
    "mla_tail_rule": ling2_layers.TAIL_LAST,
    "mtp_num_layers": 0,
    "logits_via_embedding": False,
    "param_scan_axis": 1,
    "normalization_layer_epsilon": 1e-5,
    "group_norm_size": 0,
    "use_linear_silu": False,
    "gla_slope_index": "zero_based",
    "mla_interleaved_rope": False,
    "partial_rotary_factor": 1.0,
    "rope_type": "default",
    "rope_max_timescale": 10_000,
    "rope_factor": 40,
    "rope_truncate": True,
    "rope_attention_scaling": False,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 1.0,
    "num_experts_per_tok": 1,
    "n_routing_groups": -1,
    "topk_routing_group": -1,
    "routed_scaling_factor": 1.0,
}

# Types of the options that are not whole numbers.
_OPTION_TYPES: dict[str, Any] = {
    **{name: bool for name, value in _YAML_DEFAULTS.items() if isinstance(value, bool)},
    **{name: str for name, value in _YAML_DEFAULTS.items() if isinstance(value, str)},
    **{name: (int, float) for name, value in _YAML_DEFAULTS.items() if isinstance(value, float)},
}
_TYPE_NAMES: dict[Any, str] = {bool: "true or false", str: "a name", int: "a whole number", (int, float): "a number"}


def _yaml_option(options: Mapping[str, Any], name: str) -> Any:
  for key in (name, f"base_{name}"):
    if key in options:
      value = options[key]
      wanted = _OPTION_TYPES.get(name, int)
      if not isinstance(value, wanted) or isinstance(value, bool) != (wanted is bool):
        raise ValueError(f"{key}: {_TYPE_NAMES[wanted]} is needed, the model's options have {value!r}.")
      return value
  if name in _YAML_DEFAULTS:
    return _YAML_DEFAULTS[name]
  raise ValueError(f"{name}: the model's options do not have it (nor base_{name}).")


# ---- HF configs -----------------------------------------------------------------------------------------------------

# What the published configuration class takes for a key that is not given. The sizes that make the model what it is have
# no default here: a config without them is more likely broken than meant.
_HF_DEFAULTS: dict[str, Any] = {
    "head_dim": 128,
    "num_key_value_heads": None,
    "hidden_act": "silu",
    "use_qkv_bias": False,
    "use_bias": False,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "max_position_embeddings": 32768,
    "rope_theta": 600000.0,
    "rope_scaling": None,
    "partial_rotary_factor": 0.5,
    "rope_interleave": True,
    "num_shared_experts": 1,
    "moe_shared_expert_intermediate_size": None,
    "n_group": 8,
    "topk_group": 4,
    "routed_scaling_factor": 1.0,
    "score_function": "sigmoid",
    "moe_router_enable_expert_bias": True,
    "use_qk_norm": True,
    "num_nextn_predict_layers": 0,
    "group_norm_size": 4,
    "linear_silu": False,
    "q_lora_rank": None,
}
# What configs of relatives call the same things: DeepSeek, transformers' own class of this model type, and MaxText forks.
_HF_ALIASES: dict[str, tuple[str, ...]] = {
    "num_experts": ("n_routed_experts",),
    "num_shared_experts": ("n_shared_experts",),
    "n_group": ("num_expert_group",),
    "score_function": ("scoring_func",),
    "linear_silu": ("use_linear_silu",),
    "moe_shared_expert_intermediate_size": ("moe_shared_expert_dim",),
    "num_nextn_predict_layers": ("mtp_num_layers",),
}
# Keys of the config or of this package that say what the model computes, beyond names and shapes of its weights.
_SLOPE_INDICES = ("zero_based", "hf")


class _HfConfig:
  """An HF config whose values are looked up with the type they have to be of."""

  def __init__(self, config: Mapping[str, Any]):
    self._config = config

  def get(self, key: str) -> Any:
    """Returns a value, under whichever of its names it has, or the published default if there is one."""
    given = {name: self._config[name] for name in (key, *_HF_ALIASES.get(key, ())) if name in self._config}
    said = {name: value for name, value in given.items() if value is not None}
    if said:
      (name, value), *others = said.items()
      for other, differing in others:
        if differing != value:
          raise ValueError(f"{name}: is {value!r} in the HF config, and its other name {other} is {differing!r}.")
      return value
    if given:
      return None
    if key in _HF_DEFAULTS:
      return _HF_DEFAULTS[key]
    raise ValueError(f"{key}: the HF config does not have it, and there is no safe default.")

  def integer(self, key: str, at_least: int = 1) -> int:
    """Returns a whole number."""
    return whole(key, self.get(key), at_least)

  def optional_integer(self, key: str) -> int:
    """Returns a whole number, 0 for null."""
    value = self.get(key)
    return 0 if value is None else whole(key, value, 0)

  def number(self, key: str) -> float:
    """Returns a positive number."""
    value = self.get(key)
    if not _is_number(value) or not value > 0:
      raise ValueError(f"{key}: a positive number is needed, the HF config has {value!r}.")
    return float(value)

  def flag(self, key: str) -> bool:
    """Returns true or false; null is false where the published default is."""
    value = self.get(key)
    if value is None and _HF_DEFAULTS.get(key) is False:
      return False
    if not isinstance(value, bool):
      raise ValueError(f"{key}: true or false is needed, the HF config has {value!r}.")
    return value


def _is_number(value: Any) -> bool:
  """Whether a JSON value is a number, and none of NaN and the infinities, which Python reads too."""
  return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def whole(key: str, value: Any, at_least: int) -> int:
  """Returns a value as a whole number; raises ValueError with one line if it is none or too small."""
  if not _is_number(value) or value != int(value):
    raise ValueError(f"{key}: a whole number is needed, the HF config has {value!r}.")
  if value < at_least:
    raise ValueError(f"{key}: has to be at least {at_least}, the HF config has {value!r}.")
  return int(value)


def maxtext_options(
    hf_config: Mapping[str, Any], shapes: None | Mapping[str, Shape] = None, mla_tail_rule: None | str = None
) -> dict[str, Any]:
  """Returns the MaxText options (over those of ling2.yml) that describe the model of an HF config.

  Args:
    hf_config: the contents of config.json.
    shapes: shapes of the checkpoint's tensors by name. They settle what the config leaves open: the width of the shared
      experts, which implementations read differently, which layers of the tail are MLA, and whether routers have a bias.
    mla_tail_rule: one of `ling2_layers.MLA_TAIL_RULES`; None for the rule that the config or else the tensors say, or
      without them that of the published model code.

  Raises:
    ValueError: one line that names the key at fault: missing, of the wrong type, impossible, or asking for what the model
      does not have.
  """
  hf = _HfConfig(hf_config)
  _refuse_what_the_model_lacks(hf_config, hf)
  heads = hf.integer("num_attention_heads")
  emb_dim = hf.integer("hidden_size")
  num_layers = hf.integer("num_hidden_layers")
  interval = hf.integer("layer_group_size")
  has_experts = hf.get("num_experts") is not None
  num_dense_layers = hf.integer("first_k_dense_replace", at_least=0) if has_experts else num_layers
  if num_dense_layers > num_layers:
    raise ValueError(f"first_k_dense_replace: {num_dense_layers} exceeds num_hidden_layers, which is {num_layers}.")
  mtp_num_layers = hf.optional_integer("num_nextn_predict_layers")
  if mtp_num_layers and not has_experts:
    raise ValueError("num_nextn_predict_layers: MTP layers have experts, and num_experts is null.")
  if shapes is not None:
    routed_bias = any(name.endswith(".mlp.gate.expert_bias") for name in shapes)
  else:
    routed_bias = hf.flag("moe_router_enable_expert_bias")
  options = {
      "vocab_size": hf.integer("vocab_size"),
      "base_emb_dim": emb_dim,
      "base_mlp_dim": hf.integer("intermediate_size"),
      "base_num_decoder_layers": num_layers,
      "base_num_query_heads": heads,
      "base_num_kv_heads": heads,
      "head_dim": hf.optional_integer("head_dim") or emb_dim // heads,
      "normalization_layer_epsilon": hf.number("rms_norm_eps"),
      "logits_via_embedding": hf.flag("tie_word_embeddings"),
      "inhomogeneous_layer_cycle_interval": interval,
      "first_num_dense_layers": num_dense_layers,
      "mla_tail_rule": mla_tail_rule or hf_config.get("mla_tail_rule") or _tail_rule(num_layers, interval, shapes),
      "use_qk_norm": hf.flag("use_qk_norm"),
      "group_norm_size": hf.integer("group_norm_size"),
      "use_linear_silu": hf.flag("linear_silu"),
      "q_lora_rank": hf.optional_integer("q_lora_rank"),
      "kv_lora_rank": hf.integer("kv_lora_rank"),
      "qk_nope_head_dim": hf.integer("qk_nope_head_dim"),
      "qk_rope_head_dim": hf.integer("qk_rope_head_dim"),
      "v_head_dim": hf.integer("v_head_dim"),
      "mla_interleaved_rope": hf.flag("rope_interleave"),
      "mtp_num_layers": mtp_num_layers,
  }
  if (slope_index := slope_index_of(hf_config)) is not None:
    options["gla_slope_index"] = slope_index
  if options["logits_via_embedding"]:
    options["normalize_embedding_logits"] = False
  options |= _rope_options(hf_config, hf)
  if has_experts:
    shared_experts = hf.integer("num_shared_experts")
    options |= {
        "num_experts": hf.integer("num_experts", at_least=2),
        "num_experts_per_tok": hf.integer("num_experts_per_tok"),
        "base_moe_mlp_dim": hf.integer("moe_intermediate_size"),
        "moe_shared_expert_dim": _shared_expert_dim(hf, shared_experts, shapes),
        "shared_experts": shared_experts,
        # Without groups, all experts are candidates.
        "n_routing_groups": hf.optional_integer("n_group") or -1,
        "topk_routing_group": hf.optional_integer("topk_group") or -1,
        "routed_scaling_factor": hf.number("routed_scaling_factor"),
        "routed_bias": routed_bias,
    }
    if not routed_bias:
      options["routed_bias_update_rate"] = 0.0
  return options


def slope_index_of(hf_config: Mapping[str, Any]) -> None | str:
  """Returns the slope convention that an HF config states, None if it states none.

  Raises:
    ValueError: it states one that there is not.
  """
  stated = hf_config.get("gla_slope_index")
  if stated is not None and stated not in _SLOPE_INDICES:
    raise ValueError(f"gla_slope_index: one of {', '.join(_SLOPE_INDICES)} is needed, the HF config has {stated!r}.")
  return stated


def refuse_more_than_there_is(hf_config: Mapping[str, Any], num_tensors: int) -> None:
  """Raises ValueError for a size that cannot be meant of so many tensors, before a parameter is made for each."""
  hf = _HfConfig(hf_config)
  for key in ("num_hidden_layers", "num_experts", "num_nextn_predict_layers"):
    if (count := hf.optional_integer(key)) > num_tensors:
      raise ValueError(f"{key}: is {count}, and the checkpoint has {num_tensors} tensors.")


def _refuse_what_the_model_lacks(hf_config: Mapping[str, Any], hf: _HfConfig) -> None:
  """Raises ValueError for what would be lost in silence."""
  if hf_config.get("quantization_config"):
    raise ValueError("quantization_config: the weights are quantized; they have to be dequantized before they are converted.")
  for key in ("use_qkv_bias", "use_bias"):
    if hf.flag(key):
      raise ValueError(f"{key}: is true, and Ling2's projections have no biases.")
  for key, only in (("hidden_act", "silu"), ("score_function", "sigmoid")):
    if hf.get(key) != only:
      raise ValueError(f"{key}: Ling2 has {only!r} alone, the HF config has {hf.get(key)!r}.")
  kv_heads = hf.get("num_key_value_heads")
  if kv_heads is not None and kv_heads != hf.integer("num_attention_heads"):
    raise ValueError(
        f"num_key_value_heads: {kv_heads!r} is not num_attention_heads, and Ling2 has as many heads of keys as of queries."
    )
  if hf.get("num_experts") is not None and not hf.get("num_shared_experts"):
    raise ValueError("num_shared_experts: Ling2's MoE layers have at least one shared expert.")


def shared_mlp_dims(hf_config: Mapping[str, Any]) -> list[int]:
  """Returns the widths that the shared experts together may have, the likeliest first; 0 where there are no experts."""
  hf = _HfConfig(hf_config)
  if hf.get("num_experts") is None:
    return [0]
  shared_experts = hf.integer("num_shared_experts")
  return list(dict.fromkeys(dim * shared_experts for dim in _shared_expert_dims(hf, shared_experts)))


def _shared_expert_dims(hf: _HfConfig, shared_experts: int) -> list[int]:
  """Returns the widths that one shared expert may have.

  Where `moe_shared_expert_intermediate_size` is given, the published model code ignores it, other implementations take it
  for the width of one shared expert, and it could be that of all of them; the tensors tell.
  """
  width = hf.integer("moe_intermediate_size")
  stated = hf.optional_integer("moe_shared_expert_intermediate_size")
  candidates = [stated, width] if stated else [width]
  if stated and stated % shared_experts == 0:
    candidates.append(stated // shared_experts)
  return candidates


def _shared_expert_dim(hf: _HfConfig, shared_experts: int, shapes: None | Mapping[str, Shape]) -> int:
  """Returns the width of one shared expert."""
  candidates = _shared_expert_dims(hf, shared_experts)
  for name, shape in (shapes or {}).items():
    if name.endswith(".mlp.shared_experts.gate_proj.weight"):
      return next((dim for dim in candidates if shape and dim * shared_experts == shape[0]), candidates[0])
  return candidates[0]


def _tail_rule(num_layers: int, interval: int, shapes: None | Mapping[str, Shape]) -> str:
  """Returns the rule that the tensors follow; that of the published model code if they follow none, or are not given."""
  tail = range(num_layers - num_layers % interval, num_layers)
  if shapes is None:
    return ling2_layers.TAIL_ALL
  mla = {i for i in tail if f"model.layers.{i}.attention.kv_a_proj_with_mqa.weight" in shapes}
  for rule in (ling2_layers.TAIL_ALL, ling2_layers.TAIL_LAST, ling2_layers.TAIL_NEVER):
    pattern = ling2_layers.LayerPattern(num_layers, interval, 0, rule)
    if mla == {i for i in tail if pattern.layer(i).attention == ling2_layers.MLA}:
      return rule
  return ling2_layers.TAIL_ALL


def _rope_options(hf_config: Mapping[str, Any], hf: _HfConfig) -> dict[str, Any]:
  """Returns the options of the rotary embeddings, from the older keys or from `rope_parameters`."""
  parameters = hf_config.get("rope_parameters")
  scaling = hf.get("rope_scaling") if parameters is None else parameters
  if scaling is not None and not isinstance(scaling, Mapping):
    raise ValueError(f"rope_scaling: an object or null is needed, the HF config has {scaling!r}.")
  scaling = scaling or {}
  # Keys within the object come first: it is the newer place for all of them.
  rope = _HfConfig({**hf_config, **scaling})
  max_positions = hf.integer("max_position_embeddings")
  options = {
      "rope_type": "default",
      "rope_max_timescale": whole("rope_theta", rope.get("rope_theta"), 1),
      "partial_rotary_factor": rope.number("partial_rotary_factor"),
      "max_position_embeddings": max_positions,
      "original_max_position_embeddings": max_positions,
  }
  rope_type = scaling.get("rope_type") or scaling.get("type") or "default"
  if rope_type == "default":
    return options
  if rope_type != "yarn":
    raise ValueError(f"rope_scaling: Ling2 has 'default' and 'yarn', the HF config has {rope_type!r}.")
  return options | _yarn_options(scaling, max_positions)


def _yarn_options(scaling: Mapping[str, Any], max_positions: int) -> dict[str, Any]:
  """Returns the options of YaRN.

  HF scales cosines and sines by one factor and the scores of MLA by another, which is made of `mscale_all_dim`.
  """

  def integer(name: str, default: Any = None) -> int:
    value = scaling.get(name)
    return whole(f"rope_scaling.{name}", default if value is None else value, 1)

  def number(name: str) -> float:
    value = scaling.get(name)
    if value is not None and not (_is_number(value) and value >= 0):
      raise ValueError(f"rope_scaling.{name}: a number is needed, the HF config has {value!r}.")
    return float(value or 0.0)

  factor = integer("factor")
  original = integer("original_max_position_embeddings", max_positions)

  def magnitude(mscale: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1.0

  truncate = scaling.get("truncate", True)
  if not isinstance(truncate, bool):
    raise ValueError(f"rope_scaling.truncate: true or false is needed, the HF config has {truncate!r}.")
  mscale, mscale_all_dim = number("mscale"), number("mscale_all_dim")
  attention_factor = number("attention_factor")
  if scaling.get("attention_factor") is None:
    attention_factor = magnitude(mscale) / magnitude(mscale_all_dim) if mscale and mscale_all_dim else magnitude(1.0)
  if not (math.isclose(attention_factor, 1.0) or math.isclose(attention_factor, magnitude(1.0))):
    raise ValueError(
        f"rope_scaling: its mscale, mscale_all_dim or attention_factor scale cosines and sines by {attention_factor}; MaxText "
        f"knows 1 and {magnitude(1.0)}."
    )
  return {
      "rope_type": "yarn",
      "rope_factor": factor,
      # A config may keep the length from before it was extended.
      "max_position_embeddings": max_positions if max_positions > original else factor * original,
      "original_max_position_embeddings": original,
      "beta_fast": integer("beta_fast", 32),
      "beta_slow": integer("beta_slow", 1),
      "mscale": mscale_all_dim,
      "rope_truncate": truncate,
      "rope_attention_scaling": not math.isclose(attention_factor, 1.0),
  }


# ---- MaxText configs as HF configs -----------------------------------------------------------------------------------


def hf_config_of(config: Any) -> dict[str, Any]:
  """Returns the contents of config.json for the model of a MaxText config: what `maxtext_options` reads back.

  Beside the published keys it has `gla_slope_index` and `mla_tail_rule`, which the published model code does not know and
  has fixed answers for ("hf" and "all").

  Args:
    config: as that of `ModelDims.from_maxtext_config`.
  """
  option = _options_of(config)
  dims = ModelDims.from_maxtext_config(config)
  result = {
      "architectures": [HF_ARCHITECTURE],
      "model_type": "bailing_hybrid",
      "vocab_size": dims.vocab_size,
      "hidden_size": dims.emb_dim,
      "intermediate_size": dims.mlp_dim,
      "num_hidden_layers": dims.pattern.num_decoder_layers,
      "num_attention_heads": dims.num_heads,
      "num_key_value_heads": dims.num_heads,
      "head_dim": dims.head_dim,
      "hidden_act": "silu",
      "use_qkv_bias": False,
      "use_bias": False,
      "rms_norm_eps": option("normalization_layer_epsilon"),
      "tie_word_embeddings": dims.tied_embeddings,
      "layer_group_size": dims.pattern.interval,
      "first_k_dense_replace": dims.pattern.num_dense_layers,
      "mla_tail_rule": dims.pattern.mla_tail_rule,
      "gla_slope_index": option("gla_slope_index"),
      "use_qk_norm": dims.use_qk_norm,
      "group_norm_size": option("group_norm_size"),
      "linear_silu": option("use_linear_silu"),
      "q_lora_rank": dims.q_lora_rank or None,
      "kv_lora_rank": dims.kv_lora_rank,
      "qk_nope_head_dim": dims.qk_nope_head_dim,
      "qk_rope_head_dim": dims.qk_rope_head_dim,
      "v_head_dim": dims.v_head_dim,
      "rope_interleave": option("mla_interleaved_rope"),
      "partial_rotary_factor": option("partial_rotary_factor"),
      "rope_theta": float(option("rope_max_timescale")),
      "rope_scaling": None,
      "max_position_embeddings": option("max_position_embeddings"),
      "num_nextn_predict_layers": dims.mtp_num_layers,
      "num_experts": None,
  }
  rope_type = option("rope_type")
  if getattr(rope_type, "value", rope_type) == "yarn":
    result["rope_scaling"] = _rope_scaling(option)
  if dims.num_experts > 1:
    shared_experts = option("shared_experts")
    result |= {
        "num_experts": dims.num_experts,
        "num_experts_per_tok": option("num_experts_per_tok"),
        "moe_intermediate_size": dims.moe_mlp_dim,
        "moe_shared_expert_intermediate_size": dims.shared_mlp_dim // shared_experts,
        "num_shared_experts": shared_experts,
        # One group is no groups.
        "n_group": max(option("n_routing_groups"), 1),
        "topk_group": max(option("topk_routing_group"), 1),
        "routed_scaling_factor": option("routed_scaling_factor"),
        "moe_router_enable_expert_bias": dims.routed_bias,
        "norm_topk_prob": True,
        "score_function": "sigmoid",
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "router_dtype": "fp32",
    }
  return result


def _rope_scaling(option: Callable[[str], Any]) -> dict[str, Any]:
  factor, mscale = option("rope_factor"), option("mscale")
  result = {
      "rope_type": "yarn",
      "factor": float(factor),
      "original_max_position_embeddings": option("original_max_position_embeddings"),
      "beta_fast": option("beta_fast"),
      "beta_slow": option("beta_slow"),
      "truncate": option("rope_truncate"),
      "mscale_all_dim": mscale,
  }
  if option("rope_attention_scaling"):
    result["attention_factor"] = 0.1 * math.log(factor) + 1.0
  elif mscale:
    result["mscale"] = mscale
  else:
    result["attention_factor"] = 1.0
  return result


# ---- The parameters -------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Parameter:
  """One parameter of a MaxText checkpoint.

  Attributes:
    path: its path below the collection, such as ("decoder", "moe_layers_0", "self_attention", "wkv_b", "kernel").
    collection: `PARAMS`, or `ROUTING_BIAS` for the routing bias, which is none of the parameters that are optimized.
    shape: as stored, with the stacked axes.
    sources: the HF tensors, nested once per stacked axis: experts first, then layers.
    stack_axes: the axis in `shape` of each level of `sources`.
    hf_shape: the shape of one HF tensor.
    transform: one of `TRANSFORMS`.
    layers: indices in the whole model of the layers it belongs to: none, one, or several where layers are stacked.
    kind: "gla", "mla", "dense", "moe", "norm", "mtp" or "top".
  """

  path: Path
  collection: str
  shape: Shape
  sources: Sources
  stack_axes: Shape
  hf_shape: Shape
  transform: str
  layers: tuple[int, ...]
  kind: str

  @property
  def key(self) -> str:
    """The name that upstream's conversion tools use, such as "params-decoder-decoder_norm-scale"."""
    return "-".join((self.collection, *self.path))

  @property
  def slice_shape(self) -> Shape:
    """The shape of what one HF tensor becomes: `shape` without the stacked axes."""
    return tuple(size for axis, size in enumerate(self.shape) if axis not in self.stack_axes)

  @property
  def keeps_float32(self) -> bool:
    """Whether it stays in float32 whatever the dtype of the weights: the routing bias moves by steps too small for others."""
    return self.collection == ROUTING_BIAS

  def slices(self) -> Iterator[tuple[tuple[Any, ...], str]]:
    """Yields, for each HF tensor, the index of its slice in the MaxText tensor, and its name."""

    def walk(sources: Sources, level: int, index: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], str]]:
      if isinstance(sources, str):
        yield index, sources
        return
      axis = self.stack_axes[level]
      for i, source in enumerate(sources):
        yield from walk(source, level + 1, (*index[:axis], i, *index[axis + 1 :]))

    yield from walk(self.sources, 0, (slice(None),) * len(self.shape))

  def hf_names(self) -> list[str]:
    """Returns the names of the HF tensors, in the order of `slices`."""
    return [name for _, name in self.slices()]


def to_maxtext(parameter: Parameter, tensor: np.ndarray) -> np.ndarray:
  """Returns an HF tensor as the slice of the parameter that it becomes, as a view.

  Raises:
    ValueError: the tensor is not of the parameter's `hf_shape`.
  """
  if tensor.shape != parameter.hf_shape:
    raise ValueError(f"{parameter.key}: its HF tensor has shape {tensor.shape}, the config makes it {parameter.hf_shape}.")
  if parameter.transform == IDENTITY:
    return tensor
  return tensor.T.reshape(parameter.slice_shape)


def to_hf(parameter: Parameter, tensor: np.ndarray) -> np.ndarray:
  """Returns a slice of the parameter as the HF tensor that it is, as a view where its strides allow.

  Raises:
    ValueError: the slice is not of the parameter's `slice_shape`.
  """
  if tensor.shape != parameter.slice_shape:
    raise ValueError(f"{parameter.key}: has a slice of shape {tensor.shape}, the config makes it {parameter.slice_shape}.")
  if parameter.transform == IDENTITY:
    return tensor
  return tensor.reshape(parameter.hf_shape[::-1]).T


@dataclasses.dataclass(frozen=True)
class _Leaf:
  """A parameter of one layer: paths and names below it. `num_experts` HF tensors, if it is not 0, make up one parameter."""

  path: str
  hf_name: str
  shape: Shape
  hf_shape: Shape
  kind: str
  transform: str = TRANSPOSE
  collection: str = PARAMS
  num_experts: int = 0

  def sources(self, layer: int) -> Sources:
    name = f"model.layers.{layer}.{self.hf_name}"
    if not self.num_experts:
      return name
    return tuple(name.format(expert=expert) for expert in range(self.num_experts))


def _vector(path: str, hf_name: str, size: int, kind: str, collection: str = PARAMS) -> _Leaf:
  return _Leaf(path, hf_name, (size,), (size,), kind, IDENTITY, collection)


def _kernel(path: str, hf_name: str, inputs: Shape, outputs: Shape, kind: str) -> _Leaf:
  return _Leaf(f"{path}/kernel", f"{hf_name}.weight", (*inputs, *outputs), (math.prod(outputs), math.prod(inputs)), kind)


def _mlp(path: str, hf_name: str, dims: ModelDims, width: int, kind: str) -> list[_Leaf]:
  emb = dims.emb_dim
  return [
      _kernel(f"{path}/wi_0", f"{hf_name}.gate_proj", (emb,), (width,), kind),
      _kernel(f"{path}/wi_1", f"{hf_name}.up_proj", (emb,), (width,), kind),
      _kernel(f"{path}/wo", f"{hf_name}.down_proj", (width,), (emb,), kind),
  ]


def _gla(dims: ModelDims) -> list[_Leaf]:
  emb, heads, dim = dims.emb_dim, dims.num_heads, dims.head_dim
  ours, theirs, kind = "self_attention", "attention", ling2_layers.GLA
  leaves = [
      _kernel(f"{ours}/query_key_value", f"{theirs}.query_key_value", (emb,), (3, heads, dim), kind),
      _kernel(f"{ours}/g_proj", f"{theirs}.g_proj", (emb,), (heads, dim), kind),
      _kernel(f"{ours}/dense", f"{theirs}.dense", (heads, dim), (emb,), kind),
      _vector(f"{ours}/g_norm/scale", f"{theirs}.g_norm.weight", heads * dim, kind),
  ]
  if dims.use_qk_norm:
    leaves += [
        _vector(f"{ours}/query_layernorm/scale", f"{theirs}.query_layernorm.weight", dim, kind),
        _vector(f"{ours}/key_layernorm/scale", f"{theirs}.key_layernorm.weight", dim, kind),
    ]
  return leaves


def _mla(dims: ModelDims) -> list[_Leaf]:
  emb, heads = dims.emb_dim, dims.num_heads
  qk, kv = dims.qk_nope_head_dim + dims.qk_rope_head_dim, dims.qk_nope_head_dim + dims.v_head_dim
  ours, theirs, kind = "self_attention", "attention", ling2_layers.MLA
  if dims.q_lora_rank:
    leaves = [
        _kernel(f"{ours}/wq_a", f"{theirs}.q_a_proj", (emb,), (dims.q_lora_rank,), kind),
        _vector(f"{ours}/q_norm/scale", f"{theirs}.q_a_layernorm.weight", dims.q_lora_rank, kind),
        _kernel(f"{ours}/wq_b", f"{theirs}.q_b_proj", (dims.q_lora_rank,), (heads, qk), kind),
    ]
  else:
    leaves = [_kernel(f"{ours}/query", f"{theirs}.q_proj", (emb,), (heads, qk), kind)]
  return leaves + [
      _kernel(f"{ours}/wkv_a", f"{theirs}.kv_a_proj_with_mqa", (emb,), (dims.kv_lora_rank + dims.qk_rope_head_dim,), kind),
      _vector(f"{ours}/kv_norm/scale", f"{theirs}.kv_a_layernorm.weight", dims.kv_lora_rank, kind),
      _kernel(f"{ours}/wkv_b", f"{theirs}.kv_b_proj", (dims.kv_lora_rank,), (heads, kv), kind),
      _kernel(f"{ours}/out", f"{theirs}.dense", (heads, dims.v_head_dim), (emb,), kind),
  ]


def _moe(dims: ModelDims) -> list[_Leaf]:
  emb, experts, width, kind = dims.emb_dim, dims.num_experts, dims.moe_mlp_dim, ling2_layers.MOE
  routed = "Ling2MoeBlock_0/MoeBlock_0"
  leaves = [_kernel(f"{routed}/gate", "mlp.gate", (emb,), (experts,), kind)]
  if dims.routed_bias:
    leaves.append(_vector(f"{routed}/gate/bias", "mlp.gate.expert_bias", experts, kind, ROUTING_BIAS))
  for leaf in _mlp("", "mlp.experts.{expert}", dims, width, kind):
    # Experts are stacked in front, and their kernels are parameters of the block itself.
    path = routed + leaf.path.removesuffix("/kernel")
    leaves.append(dataclasses.replace(leaf, path=path, shape=(experts, *leaf.shape), num_experts=experts))
  return leaves + _mlp("Ling2MoeBlock_0/shared_experts", "mlp.shared_experts", dims, dims.shared_mlp_dim, kind)


def _layer(dims: ModelDims, spec: ling2_layers.LayerSpec) -> list[_Leaf]:
  attention = _mla(dims) if spec.attention == ling2_layers.MLA else _gla(dims)
  mlp = _moe(dims) if spec.mlp == ling2_layers.MOE else _mlp("mlp", "mlp", dims, dims.mlp_dim, ling2_layers.DENSE)
  return [
      _vector("pre_self_attention_layer_norm/scale", "input_layernorm.weight", dims.emb_dim, NORM),
      _vector("post_self_attention_layer_norm/scale", "post_attention_layernorm.weight", dims.emb_dim, NORM),
      *attention,
      *mlp,
  ]


def _mtp(dims: ModelDims, number: int) -> list[_Leaf]:
  """What MTP layer `number`, counted from 1, has around its transformer layer."""
  emb = dims.emb_dim
  return [
      _vector(f"mtp_{number}_embedding_norm/scale", "enorm.weight", emb, MTP),
      _vector(f"mtp_{number}_hidden_state_norm/scale", "hnorm.weight", emb, MTP),
      _kernel(f"mtp_{number}_projection", "eh_proj", (2 * emb,), (emb,), MTP),
      _vector(f"mtp_{number}_final_norm/scale", "final_layernorm.weight", emb, MTP),
  ]


def _single(prefix: Path, leaf: _Leaf, layer: int) -> Parameter:
  return Parameter(
      path=(*prefix, *leaf.path.split("/")),
      collection=leaf.collection,
      shape=leaf.shape,
      sources=leaf.sources(layer),
      stack_axes=(0,) if leaf.num_experts else (),
      hf_shape=leaf.hf_shape,
      transform=leaf.transform,
      layers=(layer,),
      kind=leaf.kind,
  )


def _stacked(prefix: Path, leaf: _Leaf, layers: tuple[int, ...], param_scan_axis: int) -> Parameter:
  """A parameter of several layers: those that are optimized are stacked on `param_scan_axis`, others in front."""
  axis = param_scan_axis if leaf.collection == PARAMS else 0
  sources: Sources = tuple(leaf.sources(layer) for layer in layers)
  stack_axes: Shape = (axis,)
  if leaf.num_experts:
    sources = tuple(zip(*sources))
    stack_axes = (1 if axis == 0 else 0, axis)
  return dataclasses.replace(
      _single(prefix, leaf, layers[0]),
      shape=(*leaf.shape[:axis], len(layers), *leaf.shape[axis:]),
      sources=sources,
      stack_axes=stack_axes,
      layers=layers,
  )


def parameters(dims: ModelDims, scan_layers: bool) -> list[Parameter]:
  """Returns the parameters of a model: those of the top, then layer by layer.

  Args:
    dims: the model.
    scan_layers: whether the decoder is scanned, which stacks the layers of its cycles.
  """
  embedding = (dims.vocab_size, dims.emb_dim)
  result = [
      Parameter(
          ("token_embedder", "embedding"), PARAMS, embedding, "model.word_embeddings.weight", (), embedding, IDENTITY, (), TOP
      ),
      Parameter(
          ("decoder", "decoder_norm", "scale"), PARAMS, embedding[1:], "model.norm.weight", (), embedding[1:], IDENTITY, (), TOP
      ),
  ]
  if not dims.tied_embeddings:
    head = ("decoder", "logits_dense", "kernel")
    result.append(Parameter(head, PARAMS, embedding[::-1], "lm_head.weight", (), embedding, TRANSPOSE, (), TOP))

  pattern = dims.pattern
  plan = pattern.scan_plan()
  one_by_one = range(plan.num_prefix_layers if scan_layers else pattern.num_decoder_layers)
  for layer in one_by_one:
    prefix = ("decoder", pattern.unscanned_name(layer))
    result += [_single(prefix, leaf, layer) for leaf in _layer(dims, pattern.layer(layer))]
  if scan_layers:
    for i in range(plan.interval if plan.num_cycles else 0):
      layers = tuple(range(plan.num_prefix_layers + i, plan.remainder_base, plan.interval))
      leaves = _layer(dims, pattern.layer(layers[0]))
      result += [_stacked(("decoder", "layers", f"layer_{i}"), leaf, layers, dims.param_scan_axis) for leaf in leaves]
    for i in range(plan.num_remainder_layers):
      layer = plan.remainder_base + i
      prefix = ("decoder", "layers_remainder", f"layer_{i}")
      result += [_single(prefix, leaf, layer) for leaf in _layer(dims, pattern.layer(layer))]

  for number in range(1, dims.mtp_num_layers + 1):
    layer = pattern.num_decoder_layers + number - 1
    prefix = ("mtp_block", f"mtp_layer_{number}")
    result += [_single(prefix, leaf, layer) for leaf in _mtp(dims, number)]
    transformer = (*prefix, f"mtp_{number}_transformer_layer")
    result += [_single(transformer, leaf, layer) for leaf in _layer(dims, pattern.layer(layer))]
  return result


def hf_shapes(dims: ModelDims) -> dict[str, Shape]:
  """Returns the shapes of the tensors of an HF checkpoint by name."""
  return {name: p.hf_shape for p in parameters(dims, scan_layers=False) for name in p.hf_names()}


# ---- Names of older checkpoints -------------------------------------------------------------------------------------

_MOE_BLOCKS = ("Ling2MoeBlock_0", "ALMoeBlock_0", "DeepSeekMoeBlock_0")
# First names below a layer, and names below a GLA attention.
_IN_LAYER = {"attention": "self_attention", **{name: _MOE_BLOCKS[0] for name in _MOE_BLOCKS}}
_IN_ATTENTION = {"query_norm": "query_layernorm", "key_norm": "key_layernorm"}
_IN_MTP = {
    "embedding_norm": "mtp_{}_embedding_norm",
    "hidden_state_norm": "mtp_{}_hidden_state_norm",
    "projection_layer": "mtp_{}_projection",
    "final_layernorm": "mtp_{}_final_norm",
    "transformer_layer": "mtp_{}_transformer_layer",
}


def rename_legacy(path: Path, dims: ModelDims, scan_layers: bool) -> Path:
  """Returns the path that a parameter of an older checkpoint has today; one of today stays as it is.

  Args:
    path: path below the collection.
    dims: the model.
    scan_layers: whether the checkpoint's layers are stacked. Older ones call a layer after the scan as they do without one.
  """
  if len(path) < 3:
    return path
  if path[0] == "mtp_block":
    number = re.fullmatch(r"mtp_layer_(\d+)", path[1])
    if number is None:
      return path
    own = _IN_MTP.get(path[2], path[2]).format(number[1])
    return (*path[:2], own, *_rename_in_layer(path[3:]))
  if path[0] != "decoder":
    return path
  if path[1] in ("layers", "layers_remainder"):
    return (*path[:2], re.sub(r"^layers_(\d+)$", r"layer_\1", path[2]), *_rename_in_layer(path[3:]))
  if scan_layers:
    base = dims.pattern.scan_plan().remainder_base
    for layer in range(base, dims.pattern.num_decoder_layers):
      if path[1] == dims.pattern.unscanned_name(layer):
        return ("decoder", "layers_remainder", f"layer_{layer - base}", *_rename_in_layer(path[2:]))
  return (*path[:2], *_rename_in_layer(path[2:]))


def _rename_in_layer(path: Path) -> Path:
  if not path:
    return path
  first = _IN_LAYER.get(path[0], path[0])
  if first == "self_attention" and len(path) > 1:
    return (first, _IN_ATTENTION.get(path[1], path[1]), *path[2:])
  return (first, *path[1:])


def rename_all(paths: Iterable[Path], dims: ModelDims, scan_layers: bool) -> dict[Path, Parameter]:
  """Returns, for the paths of an older checkpoint, the parameters that they are.

  Args:
    paths: paths below the collection.
    dims: the model.
    scan_layers: whether the checkpoint's layers are stacked.

  Raises:
    ValueError: one line with the paths that are of no parameter and the parameters that no path is of, or with two paths
      that are of one.
  """
  by_path = {parameter.path: parameter for parameter in parameters(dims, scan_layers)}
  result: dict[Path, Parameter] = {}
  taken: dict[Path, Path] = {}
  unknown = []
  for path in paths:
    new = rename_legacy(path, dims, scan_layers)
    if new not in by_path:
      unknown.append("/".join(path))
      continue
    if new in taken:
      raise ValueError(f"{'/'.join(taken[new])} and {'/'.join(path)} are both {'/'.join(new)}.")
    taken[new] = path
    result[path] = by_path[new]
  missing = ["/".join(path) for path in by_path if path not in taken]
  problems = [f"No parameter of the model is meant by {_some(unknown)}."] if unknown else []
  problems += [f"The checkpoint lacks {_some(missing)}."] if missing else []
  if problems:
    raise ValueError(" ".join(problems))
  return result


def _some(names: list[str]) -> str:
  names = sorted(names)
  return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def is_regrouped(one: Shape, other: Shape) -> bool:
  """Whether a shape is another one with neighbouring axes merged, so that a reshape between them keeps every value's place.

  Older checkpoints have, for instance, kernels whose heads are no axis of their own.
  """
  return _merges(one, other) or _merges(other, one)


def _merges(shape: Shape, of: Shape) -> bool:
  rest = list(of)
  for size in shape:
    merged = 1
    while rest and merged < size:
      merged *= rest.pop(0)
    if merged != size:
      return False
  return all(size == 1 for size in rest)


def _without(shape: Shape, axis: int) -> Shape:
  return shape[:axis] + shape[axis + 1 :]


def _layers_axis(parameter: Parameter, shape: Shape, older: bool) -> int | None:
  """Returns the axis of the layers in a stored array of a parameter of several layers; None if its shape is no such one.

  MaxText stacks what is optimized on axis 1 (`param_scan_axis`), and in front what is not. Older checkpoints optimize the
  routing bias. In them axis 1 is that of a shape whose heads are merged.
  """
  own = parameter.stack_axes[-1]
  for axis in (1, own) if older else (own, 1):
    if (
        len(shape) > axis
        and shape[axis] == len(parameter.layers)
        and is_regrouped(_without(shape, axis), _without(parameter.shape, own))
    ):
      return axis
  return None


def is_stored_as(parameter: Parameter, shape: Shape, older: bool) -> bool:
  """Whether a shape is a parameter's, perhaps in the layout of an older checkpoint.

  Args:
    parameter: the parameter.
    shape: of the array that a checkpoint has.
    older: whether the array is of an older checkpoint; this decides where the shape alone does not.
  """
  if len(parameter.layers) < 2:
    return is_regrouped(shape, parameter.shape)
  return _layers_axis(parameter, shape, older) is not None


def keeps_layout(parameter: Parameter, shape: Shape, older: bool) -> bool:
  """Whether an array that `is_stored_as` holds for is laid out as the parameter is today."""
  if shape != parameter.shape:
    return False
  return len(parameter.layers) < 2 or _layers_axis(parameter, shape, older) == parameter.stack_axes[-1]


def from_stored(parameter: Parameter, array: np.ndarray, older: bool) -> np.ndarray:
  """Returns an array that `is_stored_as` holds for in today's layout, as a view where its strides allow."""
  if len(parameter.layers) < 2:
    return array.reshape(parameter.shape)
  own = parameter.stack_axes[-1]
  layers = np.moveaxis(array, _layers_axis(parameter, array.shape, older), 0)
  return np.moveaxis(layers.reshape(len(layers), *_without(parameter.shape, own)), 0, own)


def to_stored(parameter: Parameter, value: np.ndarray, shape: Shape, older: bool) -> np.ndarray:
  """Returns a parameter in the layout of a checkpoint: the inverse of `from_stored`.

  Raises:
    ValueError: the shape is none that the parameter is stored in.
  """
  if not is_stored_as(parameter, shape, older):
    raise ValueError(f"{parameter.key} has shape {list(value.shape)}, which is not stored as {list(shape)}.")
  if len(parameter.layers) < 2:
    return value.reshape(shape)
  axis = _layers_axis(parameter, shape, older)
  layers = np.moveaxis(value, parameter.stack_axes[-1], 0)
  return np.moveaxis(layers.reshape(len(layers), *_without(shape, axis)), 0, axis)
