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
"""The Ling2 decoder: GLA and MLA attention in a fixed cycle, dense feed-forwards first and MoE after.

`common/ling2_layers.py` says which layer is what. A scanned decoder runs in three stages: the dense prefix layer by
layer, the cycles by a scan, and layer by layer what is left after the last whole cycle. `init_decoder_layers` and
`apply_decoder_layers` hold all of that; `NNXDecoder` calls them.

Names of the modules below the decoder:
  not scanned: `dense_layers_N`, then `moe_layers_N` counted from 0 again
  scanned: `dense_layers_N`, `layers/layer_i` (i-th layer of the cycle, stacked over the cycles), `layers_remainder/layer_i`
"""

# pylint: disable=arguments-differ
# pylint: disable=protected-access

import dataclasses
from typing import Any, Callable

from flax import nnx
import jax
from jax.ad_checkpoint import checkpoint_name
import jax.numpy as jnp
from jax.sharding import Mesh
from maxtext.common import ling2_layers
from maxtext.common.common_types import AttentionType, Config, MODEL_MODE_PREFILL
from maxtext.inference import kvcache
from maxtext.layers import attention_gla
from maxtext.layers import attention_mla
from maxtext.layers import initializers
from maxtext.layers import linears
from maxtext.layers import moe
from maxtext.layers import nnx_wrappers
from maxtext.layers import quantizations
from maxtext.layers.embeddings import RotaryEmbedding
from maxtext.layers.linears import Dropout
from maxtext.layers.normalizations import RMSNorm
from maxtext.utils import max_utils
from maxtext.utils import maxtext_utils
from maxtext.utils.sharding import create_sharding, get_logical_axis_rules, maybe_shard_with_logical


# That of the model code published with the checkpoints.
LATENT_NORM_EPSILON = 1e-6


class InterleavedRotaryEmbedding(RotaryEmbedding):
  """Rotary embedding of the pairs (0, 1), (2, 3), …, written out as all first halves, then all second halves.

  Scores do not depend on the order of the dims, as long as queries and keys have the same.
  """

  def __call__(self, inputs: jax.Array, position: None | jax.Array = None) -> jax.Array:
    return super().__call__(jnp.concatenate([inputs[..., ::2], inputs[..., 1::2]], axis=-1), position)


class Ling2MLA(attention_mla.MLA):
  """Multi-head latent attention whose rotary dims may be interleaved pairs (`mla_interleaved_rope`).

  Its keys and values may be of different widths when it caches them whole, too. Its latents are normalized with an epsilon
  of their own, whatever that of the other norms is.
  """

  def _init_projections(self, inputs_q_shape, inputs_kv_shape):
    super()._init_projections(inputs_q_shape, inputs_kv_shape)
    self.kv_norm.epsilon = LATENT_NORM_EPSILON
    if self.q_lora_rank > 0:
      self.q_norm.epsilon = LATENT_NORM_EPSILON

  def init_rotary_embedding(self):
    cfg = self.config
    if cfg.rope_type.startswith("yarn"):
      rotary_embedding = super().init_rotary_embedding()
      rotary_embedding.interleave = cfg.mla_interleaved_rope
      return rotary_embedding
    rotary_class = InterleavedRotaryEmbedding if cfg.mla_interleaved_rope else RotaryEmbedding
    return rotary_class(
        min_timescale=cfg.rope_min_timescale,
        max_timescale=cfg.rope_max_timescale,
        mesh=self.mesh,
        embedding_dims=self.qk_rope_head_dim,
        fprop_dtype=self.dtype,
        rope_linear_scaling_factor=cfg.rope_linear_scaling_factor,
        shard_mode=cfg.shard_mode,
        rngs=self.rngs,
    )

  def init_kv_caches(self, inputs_kv_shape):
    """Initializes the cache of whole keys and values (`mla_naive_kvcache`), which here are of different widths."""
    return kvcache.KVCache(
        max_prefill_length=self.max_prefill_predict_length,
        max_target_length=self.max_target_length,
        batch=inputs_kv_shape[0],
        key_seq_len=attention_mla.PLACEHOLDER_SEQ_LEN,
        value_seq_len=attention_mla.PLACEHOLDER_SEQ_LEN,
        key_heads=self.num_kv_heads,
        value_heads=self.num_kv_heads,
        key_head_size=self.qk_head_dim,
        value_head_size=self.v_head_dim,
        dtype=self.dtype,
        kv_quant=self.kv_quant,
        prefill_cache_axis_order=self.prefill_cache_axis_order,
        ar_cache_axis_order=self.ar_cache_axis_order,
        use_chunked_prefill=self.config.use_chunked_prefill,
        model_mode=self.model_mode,
        rngs=self.rngs,
    )


class Ling2DecoderLayer(nnx.Module):
  """One layer of a Ling2 decoder, or the transformer layer of an MTP layer.

  Attributes:
    config: MaxText config.
    mesh: the device mesh.
    model_mode: mode that the layer is built for.
    layer_idx: index in the whole model; it decides the layer's attention and feed-forward. MTP layers follow the decoder's.
    quant: optional quantization config.
  """

  def __init__(
      self,
      config: Config,
      mesh: Mesh,
      model_mode: str,
      layer_idx: int,
      quant: None | quantizations.AqtQuantization = None,
      *,
      rngs: nnx.Rngs,
  ):
    self.config = config
    self.mesh = mesh
    self.model_mode = model_mode
    self.layer_idx = layer_idx
    self.quant = quant
    self.rngs = rngs
    spec = ling2_layers.pattern_of(config).layer(layer_idx)
    self.is_mla = spec.attention == ling2_layers.MLA
    self.is_moe = spec.mlp == ling2_layers.MOE

    rules = get_logical_axis_rules()
    self.out_sharding = create_sharding(mesh, self._axis_names("activation_embed"), rules=rules)
    self.mlp_intermediate_sharding = create_sharding(mesh, self._axis_names("activation_mlp"), rules=rules)

    self.pre_self_attention_layer_norm = self._norm()
    self.post_self_attention_layer_norm = self._norm()
    batch_size, sequence_length = max_utils.get_batch_seq_len_for_mode(config, model_mode)
    inputs_shape = (batch_size, sequence_length, config.emb_dim)
    self.self_attention = self._mla(inputs_shape) if self.is_mla else self._gla(inputs_shape)
    if self.is_moe:
      self.Ling2MoeBlock_0 = moe.RoutedAndSharedMoE(
          config=config,
          mesh=mesh,
          kernel_init=initializers.nd_dense_init(config.dense_init_scale, "fan_in", "truncated_normal"),
          kernel_axes=("embed", None),
          dtype=config.dtype,
          weight_dtype=config.weight_dtype,
          quant=quant,
          rngs=rngs,
      )
    else:
      self.mlp = linears.MlpBlock(
          in_features=config.emb_dim,
          intermediate_dim=config.mlp_dim,
          activations=config.mlp_activations,
          intermediate_dropout_rate=config.dropout_rate,
          dtype=config.dtype,
          weight_dtype=config.weight_dtype,
          config=config,
          quant=quant,
          model_mode=model_mode,
          mesh=mesh,
          rngs=rngs,
      )
    self.dropout = Dropout(rate=config.dropout_rate, broadcast_dims=(-2,), rngs=rngs)

  def _norm(self) -> RMSNorm:
    cfg = self.config
    return RMSNorm(
        num_features=cfg.emb_dim,
        dtype=cfg.dtype,
        weight_dtype=cfg.weight_dtype,
        kernel_axes=("norm",),
        epsilon=cfg.normalization_layer_epsilon,
        rngs=self.rngs,
    )

  def _gla(self, inputs_shape) -> attention_gla.BailingMoeV2LinearAttention:
    return attention_gla.BailingMoeV2LinearAttention(
        config=self.config,
        mesh=self.mesh,
        model_mode=self.model_mode,
        layer_idx=self.layer_idx,
        inputs_shape=inputs_shape,
        quant=self.quant,
        rngs=self.rngs,
    )

  def _mla(self, inputs_shape) -> Ling2MLA:
    cfg = self.config
    # MLA scales its scores for YaRN whenever these two differ, whatever the rope type is.
    original_positions = cfg.original_max_position_embeddings
    max_positions = cfg.max_position_embeddings if cfg.rope_type.startswith("yarn") else original_positions
    return Ling2MLA(
        config=cfg,
        num_query_heads=cfg.num_query_heads,
        num_kv_heads=cfg.num_kv_heads,
        head_dim=cfg.head_dim,
        max_target_length=cfg.max_target_length,
        max_prefill_predict_length=cfg.max_prefill_predict_length,
        attention_kernel=cfg.attention,
        attention_type=AttentionType(cfg.attention_type),
        inputs_q_shape=inputs_shape,
        inputs_kv_shape=inputs_shape,
        mesh=self.mesh,
        dtype=cfg.dtype,
        weight_dtype=cfg.weight_dtype,
        dropout_rate=cfg.dropout_rate,
        float32_qk_product=cfg.float32_qk_product,
        float32_logits=cfg.float32_logits,
        quant=self.quant,
        kv_quant=quantizations.configure_kv_quant(cfg),
        q_lora_rank=cfg.q_lora_rank,
        kv_lora_rank=cfg.kv_lora_rank,
        qk_nope_head_dim=cfg.qk_nope_head_dim,
        qk_rope_head_dim=cfg.qk_rope_head_dim,
        v_head_dim=cfg.v_head_dim,
        max_position_embeddings=max_positions,
        original_max_position_embeddings=original_positions,
        mscale=cfg.mscale,
        rope_factor=cfg.rope_factor,
        model_mode=self.model_mode,
        rngs=self.rngs,
        attn_logits_soft_cap=cfg.attn_logits_soft_cap,
    )

  def _axis_names(self, last: str) -> tuple[str, str, str]:
    prefill = self.model_mode == MODEL_MODE_PREFILL
    return ("activation_batch", "prefill_activation_norm_length" if prefill else "activation_norm_length", last)

  def _shard(self, x: jax.Array) -> jax.Array:
    return maybe_shard_with_logical(
        x,
        logical_axes=self._axis_names("activation_embed"),
        mesh=self.mesh,
        shard_mode=self.config.shard_mode,
        debug_sharding=self.config.debug_sharding,
        extra_stack_level=1,
        rules=get_logical_axis_rules(),
    )

  def __call__(
      self,
      inputs: jax.Array,
      decoder_segment_ids: None | jax.Array,
      decoder_positions: None | jax.Array,
      deterministic: bool,
      model_mode: str,
      previous_chunk=None,
      slot: None | int = None,
      kv_cache=None,
      attention_metadata: None | dict[str, Any] = None,
      global_layer_idx: None | int | jax.Array = None,
  ):
    """Applies the layer.

    Args:
      inputs: [batch, length, emb].
      decoder_segment_ids: [batch, length] or None.
      decoder_positions: [batch, length].
      deterministic: whether dropout is off.
      model_mode: "train", "prefill" or "autoregressive".
      previous_chunk: given when a prefill continues the one before.
      slot: batch slot of a decoding request.
      kv_cache: externally managed cache of this layer; GLA layers have none.
      attention_metadata: metadata that goes with `kv_cache`.
      global_layer_idx: index in the whole model, where the layer cannot know it at construction (scanned layers).

    Returns:
      The output, and the updated `kv_cache` (None for GLA layers).
    """
    # A layer before may have returned (hidden_states, kv_cache).
    if isinstance(inputs, tuple):
      inputs = inputs[0]
    inputs = checkpoint_name(self._shard(inputs), "decoder_layer_input")
    attention_inputs = self._shard(self.pre_self_attention_layer_norm(inputs))
    if self.is_mla:
      attention_output, kv_cache = self.self_attention(
          attention_inputs,
          attention_inputs,
          decoder_positions,
          decoder_segment_ids=decoder_segment_ids,
          deterministic=deterministic,
          model_mode=model_mode,
          out_sharding=self.out_sharding,
          previous_chunk=previous_chunk,
          slot=slot,
          kv_cache=kv_cache,
          attention_metadata=attention_metadata,
      )
    else:
      attention_output = self.self_attention(
          attention_inputs,
          decoder_positions,
          decoder_segment_ids,
          model_mode=model_mode,
          previous_chunk=previous_chunk,
          global_layer_idx=global_layer_idx,
      )
      kv_cache = None
    hidden_states = inputs + self._shard(attention_output)

    mlp_inputs = self._shard(self.post_self_attention_layer_norm(hidden_states))
    if self.is_moe:
      mlp_output, load_balance_loss, routing = self.Ling2MoeBlock_0(
          mlp_inputs, intermediate_sharding=self.mlp_intermediate_sharding, out_sharding=self.out_sharding
      )
      self._record(load_balance_loss, routing)
    else:
      mlp_output = self.mlp(
          mlp_inputs,
          deterministic,
          intermediate_sharding=self.mlp_intermediate_sharding,
          out_sharding=self.out_sharding,
      )
    outputs = self._shard(self.dropout(hidden_states + self._shard(mlp_output), deterministic=deterministic))

    if getattr(self.config, "record_internal_nn_metrics", False):
      self.sow(nnx.Intermediate, "activation_mean", jnp.mean(outputs))
      self.sow(nnx.Intermediate, "activation_stdev", jnp.std(outputs))
      self.sow(nnx.Intermediate, "activation_fraction_zero", jnp.sum(outputs == 0) / jnp.size(outputs))
    return outputs, kv_cache

  def _record(self, load_balance_loss: None | jax.Array, routing: None | jax.Array) -> None:
    """Records what the trainer takes from an MoE layer.

    `routing` is the expert counts of this (micro)batch, from which the routing bias moves by their sign once per step; under
    gradient accumulation the counts themselves are handed on, to be summed first. Without counts it is the move itself.
    """
    cfg = self.config
    if load_balance_loss is not None:
      self.sow(nnx.Intermediate, "moe_lb_loss", load_balance_loss)
    if routing is None:
      return
    bias_updates = routing
    if jnp.issubdtype(routing.dtype, jnp.integer):
      self.moe_expert_counts = nnx.Intermediate(routing)
      if cfg.gradient_accumulation_steps == 1 and not getattr(cfg, "defer_small_all_reduces", False):
        bias_updates = moe.load_balance_updates_from_counts(routing, cfg.num_experts, cfg.routed_bias_update_rate)
    # Assigned rather than sown: gradient accumulation looks for an array under this name, not for a tuple of arrays.
    self.moe_bias_updates = nnx.Intermediate(bias_updates)


@dataclasses.dataclass(frozen=True)
class LayerRemat:
  """How single layers are rematerialized: with what policy, and whether common subexpressions are kept apart."""

  policy: None | Callable[..., Any]
  prevent_cse: bool


def run_layer(layer: nnx.Module, inputs: jax.Array, remat: None | LayerRemat, **kwargs):
  """Applies a layer, rematerialized in the backward pass if `remat` is given, and keeps what it has recorded and cached.

  Parameters that live in host memory are brought to the device here; rematerialized, they are brought again.

  Args:
    layer: the layer; its variables other than parameters are updated in place.
    inputs: [batch, length, emb].
    remat: None to keep all activations.
    **kwargs: of the layer's call.

  Returns:
    What the layer returns.
  """
  host_offload = layer.config.parameter_memory_host_offload
  if remat is None and not host_offload:
    return layer(inputs, **kwargs)
  graphdef, params, rest = nnx.split(layer, nnx.Param, ...)

  def pure_layer(params, rest, inputs):
    if host_offload:
      params = jax.tree.map(lambda x: jax.device_put(x, max_utils.device_space()), params)
    merged = nnx.merge(graphdef, params, rest)
    outputs = merged(inputs, **kwargs)
    _, _, new_rest = nnx.split(merged, nnx.Param, ...)
    return outputs, new_rest

  if remat is not None:
    pure_layer = jax.checkpoint(pure_layer, policy=remat.policy, prevent_cse=remat.prevent_cse)
  outputs, new_rest = pure_layer(params, rest, inputs)
  nnx.update(layer, new_rest)
  return outputs


class Ling2ScannableBlock(nnx.Module):
  """A run of consecutive layers: one cycle, to be scanned, or what is left after the last cycle.

  At construction `block_base_idx + i` decides what layer i is, which is the same in every iteration of a scan. At run time
  layer i of iteration `b` is layer `block_base_idx + b * num_of_layers + i` of the model.

  Attributes:
    config: MaxText config.
    mesh: the device mesh.
    model_mode: mode that the layers are built for.
    quant: optional quantization config.
    block_base_idx: index in the whole model of the first layer, in the first iteration.
    num_of_layers: number of layers; None for one cycle.
  """

  def __init__(
      self,
      config: Config,
      mesh: Mesh,
      model_mode: str,
      quant: None | quantizations.AqtQuantization = None,
      *,
      rngs: nnx.Rngs,
      block_base_idx: int = 0,
      num_of_layers: None | int = None,
  ):
    self.config = config
    self.mesh = mesh
    self.model_mode = model_mode
    self.quant = quant
    self.block_base_idx = block_base_idx
    self.num_of_layers = config.inhomogeneous_layer_cycle_interval if num_of_layers is None else num_of_layers
    for i in range(self.num_of_layers):
      layer = Ling2DecoderLayer(
          config=config, mesh=mesh, model_mode=model_mode, layer_idx=block_base_idx + i, quant=quant, rngs=rngs
      )
      setattr(self, f"layer_{i}", layer)

  def layers(self) -> list[Ling2DecoderLayer]:
    """Returns the block's layers in order."""
    return [getattr(self, f"layer_{i}") for i in range(self.num_of_layers)]

  def __call__(
      self,
      carry: jax.Array | tuple[jax.Array, jax.Array],
      decoder_segment_ids: None | jax.Array,
      decoder_positions: None | jax.Array,
      deterministic: bool,
      model_mode: str,
      previous_chunk=None,
      slot: None | int = None,
      kv_cache=None,
      attention_metadata: None | dict[str, Any] = None,
      layer_remat: None | LayerRemat = None,
  ):
    """Applies the layers.

    Args:
      carry: the hidden states, or in a scan the hidden states and the number of iterations done.
      decoder_segment_ids: as those of `Ling2DecoderLayer`, like the arguments not named here.
      decoder_positions: as above.
      deterministic: as above.
      model_mode: as above.
      previous_chunk: as above.
      slot: as above.
      kv_cache: externally managed caches, one entry per layer of the block.
      attention_metadata: as above.
      layer_remat: rematerialization of each layer by itself; None for none.

    Returns:
      The new carry, of the form of the old one, and the updated caches (None if there are none).
    """
    in_scan = isinstance(carry, tuple)
    hidden_states, block_idx = carry if in_scan else (carry, 0)
    new_kv_cache = []
    for i, layer in enumerate(self.layers()):
      hidden_states, layer_kv_cache = run_layer(
          layer,
          hidden_states,
          layer_remat,
          decoder_segment_ids=decoder_segment_ids,
          decoder_positions=decoder_positions,
          deterministic=deterministic,
          model_mode=model_mode,
          previous_chunk=previous_chunk,
          slot=slot,
          kv_cache=kv_cache[i] if kv_cache is not None and layer.is_mla else None,
          attention_metadata=attention_metadata,
          global_layer_idx=self.block_base_idx + block_idx * self.num_of_layers + i,
      )
      new_kv_cache.append(layer_kv_cache)
    carry = (hidden_states, block_idx + 1) if in_scan else hidden_states
    return carry, tuple(new_kv_cache) if kv_cache is not None else None


def init_decoder_layers(decoder: nnx.Module, rngs: nnx.Rngs) -> None:
  """Builds the layers of an `NNXDecoder`, scanned or not, and registers them under the names of the module docstring."""
  cfg = decoder.config
  pattern = ling2_layers.pattern_of(cfg)
  plan = pattern.scan_plan()
  for layer_idx in range(plan.num_prefix_layers if cfg.scan_layers else pattern.num_decoder_layers):
    layer = decoder._create_single_layer(Ling2DecoderLayer, rngs, layer_idx=layer_idx)
    setattr(decoder, pattern.unscanned_name(layer_idx), layer)
  if not cfg.scan_layers:
    return
  if plan.num_cycles > 0:
    decoder.layers = decoder._create_scanned_layers(
        Ling2ScannableBlock,
        length=plan.num_cycles,
        metadata_axis_name="layers",
        rngs=rngs,
        block_base_idx=plan.num_prefix_layers,
    )
  if plan.num_remainder_layers > 0:
    decoder.layers_remainder = decoder._create_single_layer(
        Ling2ScannableBlock, rngs, block_base_idx=plan.remainder_base, num_of_layers=plan.num_remainder_layers
    )


def get_layers(decoder: nnx.Module) -> list[nnx.Module]:
  """Returns the modules of an `NNXDecoder` that hold its layers, in the order in which they run."""
  pattern = ling2_layers.pattern_of(decoder.config)
  names = [pattern.unscanned_name(i) for i in range(pattern.num_decoder_layers)] + ["layers", "layers_remainder"]
  return [getattr(decoder, name) for name in names if hasattr(decoder, name)]


def unroll_decoder_layers(config: Config, decoder_state: nnx.State) -> None:
  """Turns the state of a scanned decoder into that of one that is not scanned, in place.

  Args:
    config: config of the scanned model.
    decoder_state: variables below `decoder`; those of the cycles are taken apart, those of the remainder renamed.
  """
  pattern = ling2_layers.pattern_of(config)
  plan = pattern.scan_plan()
  cycles = decoder_state["layers"] if plan.num_cycles > 0 else {}
  remainder = decoder_state["layers_remainder"] if plan.num_remainder_layers > 0 else {}

  def of_cycle(cycle):
    def take(variable):
      # Variables that are no parameters, such as the routing bias, are stacked on their first axis.
      axis = config.param_scan_axis if isinstance(variable, nnx.Param) else 0
      return variable.replace(jnp.take(variable.get_value(), cycle, axis=axis))

    return take

  for layer_idx in range(plan.num_prefix_layers, pattern.num_decoder_layers):
    if layer_idx < plan.remainder_base:
      cycle, i = divmod(layer_idx - plan.num_prefix_layers, plan.interval)
      layer = jax.tree.map(of_cycle(cycle), cycles[f"layer_{i}"], is_leaf=lambda x: isinstance(x, nnx.Variable))
    else:
      layer = remainder[f"layer_{layer_idx - plan.remainder_base}"]
    decoder_state[pattern.unscanned_name(layer_idx)] = layer
  for name in ("layers", "layers_remainder"):
    decoder_state.pop(name, None)


def add_routing_bias(params: dict[str, Any], state: nnx.State) -> dict[str, Any]:
  """Returns the parameters and the routing biases of a model's state as one tree; the biases keep their dtype."""
  biases = nnx.split_state(state, moe.MoEBiasVar, ...)[0].to_pure_dict()

  def merge(tree, more):
    return tree | {k: merge(tree.get(k, {}), v) if isinstance(v, dict) else v for k, v in more.items()}

  return merge(params, biases)


def apply_decoder_layers(
    decoder: nnx.Module,
    hidden_states: jax.Array,
    layer_args: tuple[Any, ...],
    layer_kwargs: dict[str, Any],
    kv_caches=None,
) -> jax.Array:
  """Runs the layers of an `NNXDecoder`.

  Args:
    decoder: the decoder; its variables other than parameters are updated in place.
    hidden_states: embedded tokens, [batch, length, emb].
    layer_args: decoder_segment_ids, decoder_positions, deterministic and model_mode.
    layer_kwargs: further arguments of the layers' calls.
    kv_caches: externally managed caches, one entry per decoder layer, updated in place; only those of MLA layers are read.

  Returns:
    The output of the last layer.
  """
  cfg = decoder.config
  pattern = ling2_layers.pattern_of(cfg)
  plan = pattern.scan_plan()
  segment_ids, positions, deterministic, model_mode = layer_args

  def layer_remat(prevent_cse):
    if not cfg.remat_policy or cfg.remat_policy == "none":
      return None
    return LayerRemat(decoder.get_remat_policy(), prevent_cse)

  def run_one_by_one(layers, base_idx, hidden_states):
    # These layers stand outside of the scan, where common subexpressions have to be kept apart.
    remat = layer_remat(cfg.scan_layers or maxtext_utils.should_prevent_cse_in_remat(cfg))
    for layer_idx, layer in enumerate(layers, base_idx):
      hidden_states, kv_cache = run_layer(
          layer,
          hidden_states,
          remat,
          decoder_segment_ids=segment_ids,
          decoder_positions=positions,
          deterministic=deterministic,
          model_mode=model_mode,
          kv_cache=kv_caches[layer_idx] if kv_caches is not None and layer.is_mla else None,
          global_layer_idx=layer_idx,
          **layer_kwargs,
      )
      if kv_caches is not None and kv_cache is not None:
        kv_caches[layer_idx] = kv_cache
    return hidden_states

  num_single = plan.num_prefix_layers if cfg.scan_layers else pattern.num_decoder_layers
  single_layers = [getattr(decoder, pattern.unscanned_name(i)) for i in range(num_single)]
  hidden_states = run_one_by_one(single_layers, 0, hidden_states)
  if not cfg.scan_layers:
    return hidden_states

  if plan.num_cycles > 0:
    base, end = plan.num_prefix_layers, plan.remainder_base
    cycle_caches = None
    if kv_caches is not None:
      cycle_caches = [tuple(kv_caches[i : i + plan.interval]) for i in range(base, end, plan.interval)]
    # The carry counts the iterations, from which the block's layers know their index in the model.
    (hidden_states, _), decoder.layers, _ = decoder._apply_layers_sequentially(
        decoder.layers,
        (hidden_states, jnp.zeros((), jnp.int32)),
        *layer_args,
        length=plan.num_cycles,
        kv_caches_stacked=cycle_caches,
        skip_block_remat=True,
        layer_remat=layer_remat(maxtext_utils.should_prevent_cse_in_remat(cfg)),
        **layer_kwargs,
    )
    if cycle_caches is not None:
      updated = [cache for caches in cycle_caches for cache in caches]
      for layer_idx, cache in zip(range(base, end), updated):
        if cache is not None:
          kv_caches[layer_idx] = cache

  if plan.num_remainder_layers > 0:
    hidden_states = run_one_by_one(decoder.layers_remainder.layers(), plan.remainder_base, hidden_states)
  return hidden_states


Ling2DecoderLayerToLinen = nnx_wrappers.to_linen_class(
    Ling2DecoderLayer,
    base_metadata_fn=initializers.variable_to_logically_partitioned,
)

Ling2ScannableBlockToLinen = nnx_wrappers.to_linen_class(
    Ling2ScannableBlock,
    base_metadata_fn=initializers.variable_to_logically_partitioned,
)
