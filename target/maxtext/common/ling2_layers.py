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

"""Which layer of a Ling2 decoder is what.

Ling2 mixes two attentions (GLA, linear; MLA, full) and two feed-forwards (dense, MoE). The configuration checks, the
model, the scan plan, the FLOP count and the checkpoint map all have to agree on the pattern, so all of them ask this
module. It imports neither jax nor the rest of MaxText.
"""

import dataclasses
from typing import Any

MLA = "mla"
GLA = "gla"
DENSE = "dense"
MOE = "moe"

# What the layers after the last whole cycle are, when the interval does not divide the number of layers.
TAIL_LAST = "last"  # the model's last layer is MLA, the others GLA
TAIL_ALL = "all"  # every one of them is MLA, as in the model code published with the checkpoints
TAIL_NEVER = "never"  # every one of them is GLA
MLA_TAIL_RULES = (TAIL_LAST, TAIL_ALL, TAIL_NEVER)


@dataclasses.dataclass(frozen=True)
class LayerSpec:
  """What one layer is made of: `attention` is "mla" or "gla", `mlp` is "dense" or "moe"."""

  attention: str
  mlp: str


@dataclasses.dataclass(frozen=True)
class ScanPlan:
  """The three stages of a scanned Ling2 decoder, in the order in which they run.

  Attributes:
    num_prefix_layers: leading layers that run one by one (the dense ones).
    interval: layers in one scanned cycle.
    num_cycles: iterations of the scan; layer `i` of cycle `c` has the global index `num_prefix_layers + c * interval + i`.
    num_remainder_layers: layers after the scan, again one by one.
  """

  num_prefix_layers: int
  interval: int
  num_cycles: int
  num_remainder_layers: int

  @property
  def remainder_base(self) -> int:
    """Global index of the first remainder layer."""
    return self.num_prefix_layers + self.num_cycles * self.interval


@dataclasses.dataclass(frozen=True)
class LayerPattern:
  """The pattern of a whole decoder.

  Attributes:
    num_decoder_layers: layers of the decoder, without the MTP layers.
    interval: length of a cycle; its last layer is MLA. `inhomogeneous_layer_cycle_interval` of the config.
    num_dense_layers: leading layers with a dense feed-forward. `first_num_dense_layers` of the config.
    mla_tail_rule: one of `MLA_TAIL_RULES`.
  """

  num_decoder_layers: int
  interval: int
  num_dense_layers: int
  mla_tail_rule: str = TAIL_LAST

  def __post_init__(self):
    if self.num_decoder_layers < 1:
      raise ValueError(f"Ling2 needs at least one decoder layer, got num_decoder_layers={self.num_decoder_layers}.")
    if self.interval < 1:
      raise ValueError(f"Ling2 needs inhomogeneous_layer_cycle_interval >= 1, got {self.interval}.")
    if not 0 <= self.num_dense_layers <= self.num_decoder_layers:
      raise ValueError(
          f"first_num_dense_layers={self.num_dense_layers} is not between 0 and num_decoder_layers="
          f"{self.num_decoder_layers}."
      )
    if self.mla_tail_rule not in MLA_TAIL_RULES:
      raise ValueError(f"mla_tail_rule must be one of {', '.join(MLA_TAIL_RULES)}, got {self.mla_tail_rule!r}.")

  def layer(self, layer_idx: int) -> LayerSpec:
    """Returns what the layer is. Layers at or above `num_decoder_layers` are MTP layers: always MLA and MoE."""
    if layer_idx < 0:
      raise ValueError(f"A layer index cannot be negative, got {layer_idx}.")
    if layer_idx >= self.num_decoder_layers:
      return LayerSpec(MLA, MOE)
    in_tail = layer_idx >= self.num_decoder_layers - self.num_decoder_layers % self.interval
    is_mla = (
        (layer_idx + 1) % self.interval == 0
        or (in_tail and self.mla_tail_rule == TAIL_ALL)
        or (layer_idx == self.num_decoder_layers - 1 and self.mla_tail_rule == TAIL_LAST)
    )
    return LayerSpec(MLA if is_mla else GLA, DENSE if layer_idx < self.num_dense_layers else MOE)

  def layers(self) -> list[LayerSpec]:
    """Returns what the decoder's layers are, in order."""
    return [self.layer(i) for i in range(self.num_decoder_layers)]

  def unscanned_name(self, layer_idx: int) -> str:
    """Returns the name of a decoder layer's module when layers are not scanned; MoE layers count from 0 after the prefix."""
    if layer_idx < self.num_dense_layers:
      return f"dense_layers_{layer_idx}"
    return f"moe_layers_{layer_idx - self.num_dense_layers}"

  def scan_plan(self) -> ScanPlan:
    """Returns how the decoder is scanned.

    A scan runs one structure over and over, so a cycle joins it only while its layers are what those of the first cycle
    are; the tail rule can make a late cycle differ, which then belongs to the remainder.
    """
    base = self.num_dense_layers

    def cycle(index: int) -> list[LayerSpec]:
      start = base + index * self.interval
      return [self.layer(start + i) for i in range(self.interval)]

    num_cycles = 0
    while base + (num_cycles + 1) * self.interval <= self.num_decoder_layers and cycle(num_cycles) == cycle(0):
      num_cycles += 1
    remainder = self.num_decoder_layers - base - num_cycles * self.interval
    return ScanPlan(base, self.interval, num_cycles, remainder)


def pattern_of(config: Any) -> LayerPattern:
  """Returns the layer pattern that a MaxText config asks for."""
  return LayerPattern(
      num_decoder_layers=config.num_decoder_layers,
      interval=config.inhomogeneous_layer_cycle_interval,
      num_dense_layers=config.first_num_dense_layers,
      mla_tail_rule=config.mla_tail_rule,
  )


def gla_rotary_dim(config: Any) -> int:
  """Returns how many leading dims of a GLA head are rotated."""
  return int(config.head_dim * config.partial_rotary_factor)


def validate_config(config: Any) -> None:
  """Rejects what a Ling2 decoder cannot be or cannot run with.

  Args:
    config: MaxText config with its derived fields set.

  Raises:
    ValueError: one line that names the fields at fault.
  """
  pattern = pattern_of(config)
  specs = pattern.layers()
  has_mla = config.mtp_num_layers > 0 or any(spec.attention == MLA for spec in specs)

  def check_at_least_one(*names: str) -> None:
    for name in names:
      if getattr(config, name) < 1:
        raise ValueError(f"Ling2 needs {name} to be at least 1, got {getattr(config, name)}.")

  # Sizes.
  check_at_least_one("vocab_size", "emb_dim", "num_query_heads", "head_dim")
  if any(spec.mlp == DENSE for spec in specs):
    check_at_least_one("mlp_dim")
  if has_mla:
    check_at_least_one("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    if config.qk_rope_head_dim % 2:
      raise ValueError(f"qk_rope_head_dim={config.qk_rope_head_dim} has to be even: dims are rotated in pairs.")
  if config.normalization_layer_epsilon <= 0:
    raise ValueError(f"normalization_layer_epsilon={config.normalization_layer_epsilon} has to be positive.")

  # Attention.
  if config.num_query_heads != config.num_kv_heads:
    raise ValueError(
        f"Ling2 needs as many kv heads as query heads, got num_query_heads={config.num_query_heads} and "
        f"num_kv_heads={config.num_kv_heads}."
    )
  if config.attention_type != MLA:
    raise ValueError(f"Ling2 needs attention_type='mla' for its full-attention layers, got {config.attention_type!r}.")
  if any(spec.attention == GLA for spec in specs):
    width = config.num_query_heads * config.head_dim
    if config.group_norm_size < 1 or width % config.group_norm_size:
      raise ValueError(
          f"group_norm_size={config.group_norm_size} is a number of groups and has to divide "
          f"num_query_heads * head_dim = {width}."
      )
    rotary_dim = gla_rotary_dim(config)
    if not 0 < rotary_dim <= config.head_dim or rotary_dim % 2:
      raise ValueError(
          f"partial_rotary_factor={config.partial_rotary_factor} makes {rotary_dim} of head_dim={config.head_dim} rotary; "
          "it has to be a positive even number of them."
      )
  if config.fused_qkv:
    raise ValueError("fused_qkv=True is for standard attention; Ling2 fuses the projections of its GLA layers by itself.")
  if config.attention in ("vllm_rpa", "vllm_batched_rpa", "paged"):
    raise ValueError(f"Ling2 does not run with attention={config.attention!r}: GLA layers have no paged state.")
  for field in ("use_indexer", "attention_sink", "attention_bias", "mlp_bias"):
    if getattr(config, field, False):
      raise ValueError(f"Ling2 does not support {field}.")
  check_at_least_one("rope_min_timescale", "rope_max_timescale")
  rope_type = str(getattr(config.rope_type, "value", config.rope_type))
  if rope_type not in ("default", "yarn"):
    raise ValueError(f"Ling2 has rope_type 'default' and 'yarn', got {rope_type!r}.")
  if config.rope_linear_scaling_factor != 1.0:
    raise ValueError(
        f"Ling2 does not support rope_linear_scaling_factor={config.rope_linear_scaling_factor}; longer sequences need "
        "rope_type='yarn'."
    )
  if rope_type == "yarn":
    check_at_least_one("rope_factor", "beta_slow")
    if config.beta_fast <= config.beta_slow:
      raise ValueError(f"rope_type='yarn' needs beta_fast={config.beta_fast} greater than beta_slow={config.beta_slow}.")
    if config.original_max_position_embeddings < 1:
      raise ValueError("rope_type='yarn' needs original_max_position_embeddings, the length the model was trained at.")
    if config.max_position_embeddings <= config.original_max_position_embeddings:
      raise ValueError(
          f"rope_type='yarn' needs max_position_embeddings={config.max_position_embeddings} greater than "
          f"original_max_position_embeddings={config.original_max_position_embeddings}."
      )
    if config.max_target_length > config.max_position_embeddings:
      raise ValueError(
          f"max_target_length={config.max_target_length} exceeds max_position_embeddings="
          f"{config.max_position_embeddings}, and YaRN has no frequencies beyond them."
      )

  # Feed-forward.
  if config.interleave_moe_layer_step != 1:
    raise ValueError(
        "Ling2 places dense layers by first_num_dense_layers alone; interleave_moe_layer_step has to be 1, "
        f"got {config.interleave_moe_layer_step}."
    )
  if config.mtp_num_layers > 0 or any(spec.mlp == MOE for spec in specs):
    if config.num_experts < 2:
      raise ValueError(f"Ling2 has MoE layers here, so it needs num_experts > 1, got {config.num_experts}.")
    if config.routed_score_func != "sigmoid":
      raise ValueError(f"Ling2 routes on sigmoid scores: routed_score_func is {config.routed_score_func!r}.")
    if config.routed_scaling_factor <= 0:
      raise ValueError(f"routed_scaling_factor={config.routed_scaling_factor} has to be positive.")
    if config.routed_bias_update_rate < 0:
      raise ValueError(f"routed_bias_update_rate={config.routed_bias_update_rate} cannot be negative.")
    if config.shared_experts < 1:
      raise ValueError("Ling2's MoE layers have a shared expert; shared_experts has to be at least 1.")
    expert_inputs = getattr(config, "moe_expert_input_dim", -1)
    if expert_inputs not in (-1, config.emb_dim):
      raise ValueError(f"Ling2's experts read all of emb_dim={config.emb_dim}, not moe_expert_input_dim={expert_inputs}.")
    candidates = config.num_experts
    if config.n_routing_groups != -1:
      if config.n_routing_groups < 1 or config.num_experts % config.n_routing_groups:
        raise ValueError(f"n_routing_groups={config.n_routing_groups} does not divide num_experts={config.num_experts}.")
      group_size = config.num_experts // config.n_routing_groups
      if group_size < 2:
        raise ValueError(
            f"n_routing_groups={config.n_routing_groups} leaves one expert in a group; groups are scored by their two best."
        )
      if not 1 <= config.topk_routing_group <= config.n_routing_groups:
        raise ValueError(
            f"topk_routing_group={config.topk_routing_group} is not between 1 and n_routing_groups="
            f"{config.n_routing_groups}."
        )
      candidates = config.topk_routing_group * group_size
    if config.num_experts_per_tok > candidates:
      raise ValueError(
          f"num_experts_per_tok={config.num_experts_per_tok} exceeds the {candidates} experts that routing leaves."
      )

  # Ways of running that the decoder has no answer for.
  if config.use_chunked_prefill and any(spec.attention == MLA for spec in specs):
    raise ValueError("Ling2 does not support use_chunked_prefill: MLA's caches cannot continue a prefill.")
  if config.stack_prefill_result_cache and not config.scan_layers:
    raise ValueError(
        "Ling2 does not support stack_prefill_result_cache without scan_layers: GLA and MLA layers cache different things."
    )
  aqt = config.quantization in ("int4", "int8", "intmp") and not config.use_qwix_quantization
  if aqt and not config.sparse_matmul:
    raise ValueError(
        "Ling2 with sparse_matmul=False is quantized by Qwix, since AQT does not multiply densely by experts: set "
        "use_qwix_quantization=True."
    )
  if getattr(config, "using_pipeline_parallelism", False):
    raise ValueError("Ling2 does not support pipeline parallelism.")
  if config.ici_context_parallelism * config.dcn_context_parallelism > 1 and config.context_parallel_load_balance:
    raise ValueError(
        "Ling2 with context parallelism needs context_parallel_load_balance=False: a GLA layer gathers the sequence and "
        "runs over it in order."
    )
  if config.ici_sequence_parallelism * config.dcn_sequence_parallelism > 1 and "sequence" not in config.mesh_axes:
    raise ValueError("Sequence parallelism needs the axis 'sequence' in mesh_axes; ici_context_parallelism has one.")
  if config.ici_tensor_sequence_parallelism * config.dcn_tensor_sequence_parallelism > 1:
    # Measured on eight virtual devices: outputs are right, gradients of the norms of GLA's queries and keys are not.
    raise ValueError("Ling2 does not support tensor-sequence parallelism; use ici_tensor_parallelism.")
  if getattr(config, "mhc_expansion_rate", 1) > 1:
    raise ValueError(f"Ling2 does not support mhc_expansion_rate={config.mhc_expansion_rate}.")
  for field in ("use_batch_split_schedule", "engram_layers", "te_moe_block"):
    if getattr(config, field, None):
      raise ValueError(f"Ling2 does not support {field}.")


def calculate_gla_flops_per_device(config: Any) -> tuple[float, float]:
  """Returns the FLOPs of one GLA layer's forward pass per device: of its weights, and of its recurrence.

  The recurrence is counted as it is defined, an outer product and a product with the state per token and head; a
  chunked kernel spends more, which is not useful work.
  """
  tokens = config.per_device_batch_size * config.max_target_length
  width = config.num_query_heads * config.head_dim
  weights = 2 * tokens * config.emb_dim * (3 * width + width + width)  # fused QKV, gate, output
  recurrence = 2 * tokens * width * config.head_dim * 2  # k v^T and q S
  return weights, recurrence


def calculate_ling2_tflops_training_per_device(
    config: Any,
    total_ffn_flops: float,
    mla_weight_flops: float,
    mla_attention_flops: float,
    embedding_flops: float,
) -> tuple[float, float]:
  """Returns the training TFLOPs per device of a Ling2 decoder: of attention, and of learnable weights.

  Args:
    config: MaxText config.
    total_ffn_flops: forward FLOPs of the feed-forwards of all layers.
    mla_weight_flops: forward FLOPs of one MLA layer's projections.
    mla_attention_flops: forward FLOPs of one MLA layer's attention scores and values.
    embedding_flops: forward FLOPs of the output head.
  """
  specs = pattern_of(config).layers()
  num_mla = sum(spec.attention == MLA for spec in specs)
  num_gla = len(specs) - num_mla
  gla_weight_flops, gla_recurrence_flops = calculate_gla_flops_per_device(config)
  weights = total_ffn_flops + embedding_flops + mla_weight_flops * num_mla + gla_weight_flops * num_gla
  attention = mla_attention_flops * num_mla + gla_recurrence_flops * num_gla
  return attention * 3 / 10**12, weights * 3 / 10**12
