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
"""The linear attention of Ling2 (Bailing MoE V2.5): gated linear attention with one fixed decay per head."""

from flax import nnx
import jax
from jax.ad_checkpoint import checkpoint_name
import jax.numpy as jnp
from jax.sharding import Mesh
from maxtext.common import ling2_layers
from maxtext.common.common_types import (
    Array,
    CACHE_BATCH,
    CACHE_BATCH_PREFILL,
    CACHE_HEADS,
    Config,
    D_KV,
    HEAD,
    KV_BATCH,
    LENGTH,
    MODEL_MODE_AUTOREGRESSIVE,
    MODEL_MODE_PREFILL,
    MODEL_MODE_TRAIN,
    PREFILL_KV_BATCH,
    PREFILL_LENGTH,
)
from maxtext.kernels.gla import chunk_gla, gla_log_decay, recurrent_gla_step
from maxtext.layers.embeddings import PartialRotaryEmbedding, YarnRotaryEmbedding
from maxtext.layers.initializers import NdInitializer, nd_dense_init
from maxtext.layers.linears import DenseGeneral
from maxtext.layers.normalizations import GroupRMSNorm, RMSNorm
from maxtext.layers.quantizations import AqtQuantization as Quant
from maxtext.utils.sharding import (
    create_sharding,
    logical_to_mesh_axes,
    maybe_shard_with_logical,
    remove_incompatible_mesh_axes_from_partition_spec,
)


class PartialYarnRotaryEmbedding(YarnRotaryEmbedding):
  """YaRN on the leading `rotary_dim` dims of each head; the others pass."""

  def __init__(self, rotary_dim: int, **kwargs):
    super().__init__(embedding_dims=rotary_dim, **kwargs)

  def __call__(self, inputs: Array, position: None | Array = None) -> Array:
    rotated, passed = jnp.split(inputs, [self.embedding_dims], axis=-1)
    return jnp.concatenate([super().__call__(rotated, position), passed], axis=-1)


class BailingMoeV2LinearAttention(nnx.Module):
  """Gated linear attention of Ling2.

  Computes, with S_t = e^g S_{t-1} + k_t v_t^T:

    q, k, v = qkv(x)                    one projection; SiLU if `use_linear_silu`, RMSNorm per head on q and k, RoPE
    o_t     = d^-1/2 q_t S_t
    y       = dense(GroupRMSNorm(o) * sigmoid(g_proj(x)))

  The decay g depends on the head and on the layer's index in the whole model, which a scanned layer learns at run time.

  The recurrence runs over the whole sequence: it is split over the batch and heads axes of the mesh only. Under context
  parallelism the sequence of q, k and v is gathered, and every device of a context group computes all of it.

  Attributes:
    config: MaxText config.
    mesh: the device mesh.
    model_mode: mode that the module is built for; it has a state to carry unless that is "train".
    layer_idx: index in the whole model, used where the caller gives no `global_layer_idx`.
    inputs_shape: [batch, length, emb] of the inputs; the carried state is made for that batch.
    quant: optional quantization of the projections.
    kernel_init: initializer of the projections.
  """

  def __init__(
      self,
      config: Config,
      mesh: Mesh,
      model_mode: str,
      layer_idx: int,
      inputs_shape: tuple[int, ...],
      quant: None | Quant = None,
      kernel_init: NdInitializer = nd_dense_init(1.0, "fan_in", "normal"),
      *,
      rngs: nnx.Rngs,
  ):
    self.config = config
    self.mesh = mesh
    self.model_mode = model_mode
    self.layer_idx = layer_idx
    self.quant = quant
    self.kernel_init = kernel_init
    self.rngs = rngs
    cfg = config
    self.num_heads = cfg.num_query_heads
    self.head_dim = cfg.head_dim

    self.query_key_value = self._projection(
        cfg.emb_dim, (3, self.num_heads, self.head_dim), -1, ("embed_attn", None, "heads", "kv")
    )
    self.g_proj = self._projection(cfg.emb_dim, (self.num_heads, self.head_dim), -1, ("embed_attn", "heads", "kv"))
    self.dense = self._projection((self.num_heads, self.head_dim), cfg.emb_dim, (-2, -1), ("heads", "kv", "embed_attn"))
    if cfg.use_qk_norm:
      self.query_layernorm = self._head_norm()
      self.key_layernorm = self._head_norm()
    else:
      self.query_layernorm = None
      self.key_layernorm = None
    self.g_norm = GroupRMSNorm(
        num_features=self.num_heads * self.head_dim,
        num_groups=cfg.group_norm_size,
        epsilon=cfg.normalization_layer_epsilon,
        dtype=cfg.dtype,
        weight_dtype=cfg.weight_dtype,
        kernel_axes=("norm",),
        rngs=rngs,
    )
    self.rotary_embedding = self._rotary_embedding()

    if model_mode == MODEL_MODE_TRAIN:
      self.recurrent_state = None
    else:
      # The inference engine finds the state by this name. It is kept in float32: it sums over the whole sequence.
      cache_batch = CACHE_BATCH_PREFILL if model_mode == MODEL_MODE_PREFILL else CACHE_BATCH
      self.recurrent_state = nnx.Cache(
          jnp.zeros((inputs_shape[0], self.num_heads, self.head_dim, self.head_dim), jnp.float32),
          out_sharding=(cache_batch, CACHE_HEADS, None, None),
      )

  def _projection(self, in_features, out_features, axis, kernel_axes) -> DenseGeneral:
    cfg = self.config
    return DenseGeneral(
        in_features_shape=in_features,
        out_features_shape=out_features,
        axis=axis,
        kernel_init=self.kernel_init,
        kernel_axes=kernel_axes,
        dtype=cfg.dtype,
        weight_dtype=cfg.weight_dtype,
        quant=self.quant,
        shard_mode=cfg.shard_mode,
        matmul_precision=cfg.matmul_precision,
        rngs=self.rngs,
    )

  def _head_norm(self) -> RMSNorm:
    cfg = self.config
    return RMSNorm(
        num_features=self.head_dim,
        epsilon=cfg.normalization_layer_epsilon,
        dtype=cfg.dtype,
        weight_dtype=cfg.weight_dtype,
        shard_mode=cfg.shard_mode,
        kernel_axes=("norm",),
        rngs=self.rngs,
    )

  def _rotary_embedding(self) -> nnx.Module:
    """Rotary embedding of the leading dims, half-split: plain, or YaRN where the config says so."""
    cfg = self.config
    if cfg.rope_type.startswith("yarn"):
      return PartialYarnRotaryEmbedding(
          rotary_dim=ling2_layers.gla_rotary_dim(cfg),
          mesh=self.mesh,
          max_position_embeddings=cfg.max_position_embeddings,
          original_max_position_embeddings=cfg.original_max_position_embeddings,
          beta_fast=cfg.beta_fast,
          beta_slow=cfg.beta_slow,
          rope_theta=cfg.rope_max_timescale,
          rope_factor=cfg.rope_factor,
          fprop_dtype=cfg.dtype,
          shard_mode=cfg.shard_mode,
          interleave=False,
          truncate=cfg.rope_truncate,
          attention_scaling=cfg.rope_attention_scaling,
          rngs=self.rngs,
      )
    return PartialRotaryEmbedding(
        min_timescale=cfg.rope_min_timescale,
        max_timescale=cfg.rope_max_timescale,
        mesh=self.mesh,
        embedding_dims=self.head_dim,
        partial_rotary_factor=cfg.partial_rotary_factor,
        cast_as_fprop_dtype=True,
        fprop_dtype=cfg.dtype,
        shard_mode=cfg.shard_mode,
        rngs=self.rngs,
    )

  def __call__(
      self,
      inputs: Array,
      inputs_positions: Array,
      decoder_segment_ids: None | Array = None,
      *,
      model_mode: str = MODEL_MODE_TRAIN,
      previous_chunk: None | Array = None,
      global_layer_idx: None | int | Array = None,
  ) -> Array:
    """Applies the attention.

    Args:
      inputs: [batch, length, emb].
      inputs_positions: [batch, length], positions within their sequence.
      decoder_segment_ids: [batch, length], 0 is padding; None if all tokens of a row are one sequence.
      model_mode: "train", "prefill" (starts from an empty state and leaves the state after each row's last token) or
        "autoregressive" (one token per row, carries the state on).
      previous_chunk: given in a prefill that continues the one before (chunked prefill): the state is carried on.
      global_layer_idx: index of the layer in the whole model, may be traced; None for the one given at construction.

    Returns:
      [batch, length, emb].
    """
    cfg = self.config
    batch_name, length_name = (PREFILL_KV_BATCH, PREFILL_LENGTH) if model_mode == MODEL_MODE_PREFILL else (KV_BATCH, LENGTH)
    head_axes = (batch_name, length_name, HEAD, D_KV)
    head_sharding = create_sharding(self.mesh, head_axes)
    log_decay = gla_log_decay(
        self.num_heads,
        self.layer_idx if global_layer_idx is None else global_layer_idx,
        cfg.num_decoder_layers,
        cfg.gla_slope_index,
    )

    with jax.named_scope("gla_qkv"):
      qkv = self.query_key_value(
          inputs, out_sharding=create_sharding(self.mesh, (batch_name, length_name, None, HEAD, D_KV))
      )
      qkv = checkpoint_name(qkv, "qkv_proj")
      if cfg.use_linear_silu:
        qkv = jax.nn.silu(qkv)
      query, key, value = (jnp.squeeze(x, 2) for x in jnp.split(qkv, 3, axis=2))
      if self.query_layernorm is not None:
        query = self.query_layernorm(query)
        key = self.key_layernorm(key)
      query = self.rotary_embedding(query, inputs_positions)
      key = self.rotary_embedding(key, inputs_positions)
      query = checkpoint_name(self._shard(query, head_axes), "query_proj")
      key = checkpoint_name(self._shard(key, head_axes), "key_proj")
      value = checkpoint_name(self._shard(value, head_axes), "value_proj")

    with jax.named_scope("gla_kernel"):
      if model_mode == MODEL_MODE_AUTOREGRESSIVE:
        out = self._decode(query, key, value, log_decay)
      else:
        out = self._attend(query, key, value, log_decay, decoder_segment_ids, batch_name, model_mode, previous_chunk)
      out = checkpoint_name(self._shard(out, head_axes), "context")

    with jax.named_scope("gla_gate"):
      # A projection of the layer's input, so policies that keep the query, key and value projections keep it too.
      gate = checkpoint_name(checkpoint_name(self.g_proj(inputs, out_sharding=head_sharding), "qkv_proj"), "gla_gate")
      out = self.g_norm(out) * jax.nn.sigmoid(gate.astype(jnp.float32)).astype(cfg.dtype)
      out = checkpoint_name(self._shard(out, head_axes), "attention_out")

    with jax.named_scope("gla_out"):
      out = self.dense(out)
      return checkpoint_name(out, "out_proj")

  def _shard(self, x: Array, logical_axes: tuple[None | str, ...]) -> Array:
    return maybe_shard_with_logical(
        x, logical_axes, self.mesh, self.config.shard_mode, debug_sharding=self.config.debug_sharding, extra_stack_level=1
    )

  def _attend(self, query, key, value, log_decay, segment_ids, batch_name, model_mode, previous_chunk) -> Array:
    """Runs the chunked kernel on each device's rows and heads.

    Args:
      query: [batch, length, heads, head_dim], like `key` and `value`.
      key: as above.
      value: as above.
      log_decay: [heads].
      segment_ids: [batch, length] or None.
      batch_name: logical name of the batch axis.
      model_mode: "train" or "prefill".
      previous_chunk: given when a prefill continues the one before.

    Returns:
      [batch, length, heads, head_dim].
    """
    prefill = model_mode == MODEL_MODE_PREFILL
    initial_state = self._state(query.shape[0]) if prefill and previous_chunk is not None else None

    def spec(logical_axes, shape):
      axes = logical_to_mesh_axes(logical_axes, self.mesh)
      return remove_incompatible_mesh_axes_from_partition_spec(axes, shape, self.mesh, allow_remove_axes=True)

    batch, _, heads, head_dim = query.shape
    qkv_spec = spec((batch_name, None, HEAD, None), query.shape)
    state_spec = spec((batch_name, HEAD, None, None), (batch, heads, head_dim, head_dim))
    decay_spec = spec((HEAD,), (heads,))
    segment_spec = spec((batch_name, None), query.shape[:2])

    def kernel(query, key, value, log_decay, segment_ids, initial_state):
      return chunk_gla(
          query,
          key,
          value,
          log_decay,
          initial_state=initial_state,
          output_final_state=prefill,
          segment_ids=segment_ids,
          heads_major=True,
      )

    out, final_state = jax.shard_map(
        kernel,
        mesh=self.mesh,
        in_specs=(
            qkv_spec,
            qkv_spec,
            qkv_spec,
            decay_spec,
            None if segment_ids is None else segment_spec,
            None if initial_state is None else state_spec,
        ),
        out_specs=(qkv_spec, state_spec if prefill else None),
    )(query, key, value, log_decay, segment_ids, initial_state)
    if prefill and self.recurrent_state is not None:
      self.recurrent_state.set_value(final_state)
    return out

  def _decode(self, query, key, value, log_decay) -> Array:
    """Runs the recurrence one token on; query, key, value and the result are [batch, 1, heads, head_dim]."""
    if query.shape[1] != 1:
      raise ValueError(f"Autoregressive decoding takes one token at a time, got {query.shape[1]}.")
    if self.recurrent_state is None:
      raise ValueError("Decoding needs a model built with model_mode='prefill' or 'autoregressive', not 'train'.")
    out, state = recurrent_gla_step(
        jnp.squeeze(query, 1), jnp.squeeze(key, 1), jnp.squeeze(value, 1), log_decay, self._state(query.shape[0])
    )
    self.recurrent_state.set_value(state)
    return out[:, None]

  def _state(self, batch: int) -> Array:
    """Returns the carried state, [batch, heads, head_dim, head_dim]; an empty one of one row stands for any batch."""
    if self.recurrent_state is None:
      raise ValueError("Continuing a prefill needs a model built with model_mode='prefill', not 'train'.")
    state = self.recurrent_state.get_value()
    if state.shape[0] not in (1, batch):
      raise ValueError(f"The model carries the state of {state.shape[0]} rows, but was called with {batch}.")
    return jnp.broadcast_to(state, (batch, *state.shape[1:]))
