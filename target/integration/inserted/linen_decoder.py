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
"""The method that goes into the Linen decoder, `maxtext/layers/decoders.py`, of versions that have one."""

from flax import linen as nn
import jax.numpy as jnp
from maxtext.common import ling2_layers


def _apply_ling2_layers(self, layer_classes, y, broadcast_args, previous_chunk, slot, kv_caches, attention_metadata):
  """Applies Ling2's layers: one by one, or the dense prefix, the scanned cycles and the layers after them.

  Args:
    layer_classes: the classes of `get_decoder_layers`, rematted.
    y: embedded tokens, [batch, length, emb].
    broadcast_args: segment ids, positions, deterministic and model mode.
    previous_chunk: as the decoder's.
    slot: as the decoder's.
    kv_caches: externally managed caches, one entry per layer, updated in place; only those of MLA layers are read.
    attention_metadata: as the decoder's.

  Returns:
    The output of the last layer.
  """
  cfg = self.config
  pattern = ling2_layers.pattern_of(cfg)
  plan = pattern.scan_plan()
  if cfg.scan_layers and kv_caches is not None:
    raise ValueError("Ling2 with externally managed caches needs scan_layers=False in the Linen decoder.")
  module_kwargs = {"config": cfg, "mesh": self.mesh, "quant": self.quant, "model_mode": self.model_mode}
  call_kwargs = {"previous_chunk": previous_chunk, "slot": slot, "attention_metadata": attention_metadata}

  for layer_idx in range(plan.num_prefix_layers if cfg.scan_layers else pattern.num_decoder_layers):
    is_mla = pattern.layer(layer_idx).attention == ling2_layers.MLA
    layer = layer_classes[-1](name=pattern.unscanned_name(layer_idx), layer_idx=layer_idx, **module_kwargs)
    y, kv_cache = layer(
        y,
        *broadcast_args,
        kv_cache=kv_caches[layer_idx] if kv_caches is not None and is_mla else None,
        global_layer_idx=layer_idx,
        **call_kwargs,
    )
    if kv_caches is not None and kv_cache is not None:
      kv_caches[layer_idx] = kv_cache
  if not cfg.scan_layers:
    return y

  block_class = layer_classes[0]
  if plan.num_cycles > 0:
    scanned = self.scan_decoder_layers(
        cfg,
        block_class,
        plan.num_cycles,
        "layers",
        self.mesh,
        in_axes_tuple=(nn.broadcast,) * len(broadcast_args),
        model_mode=self.model_mode,
        block_base_idx=plan.num_prefix_layers,
    )
    # The carry counts the iterations, from which the block's layers know their index in the model.
    (y, _), _ = scanned((y, jnp.zeros((), jnp.int32)), *broadcast_args)
  if plan.num_remainder_layers > 0:
    remainder = block_class(
        name="layers_remainder",
        block_base_idx=plan.remainder_base,
        num_of_layers=plan.num_remainder_layers,
        **module_kwargs,
    )
    y, _ = remainder(y, *broadcast_args, **call_kwargs)
  return y
