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
"""The fields that go into `maxtext/configs/types.py`; their imports are there."""

from typing import Literal

from pydantic.fields import Field
from pydantic.main import BaseModel
from pydantic.types import NonNegativeFloat, NonNegativeInt


class Ling2(BaseModel):
  """Configuration specific to Ling2 models: gated linear attention, their routing and their MTP layers."""

  group_norm_size: NonNegativeInt = Field(
      0, description="Number of groups (not their width) that the output of gated linear attention (GLA) is normalized in."
  )
  use_linear_silu: bool = Field(False, description="Whether SiLU is applied to the queries, keys and values of GLA.")
  gla_slope_index: Literal["zero_based", "hf"] = Field(
      "zero_based",
      description=(
          "Which index of a layer its decay is made of: its own ('zero_based'), or the one before it ('hf', as in the model"
          " code published with the checkpoints)."
      ),
  )
  mla_tail_rule: Literal["last", "all", "never"] = Field(
      "last",
      description=(
          "Which layers after the last whole inhomogeneous_layer_cycle_interval have full attention: the model's last one,"
          " all of them, or never any of them."
      ),
  )
  mla_interleaved_rope: bool = Field(False, description="Whether the rotary dimensions of MLA are interleaved pairs.")
  moe_shared_expert_dim: NonNegativeInt = Field(
      0, description="Intermediate dimension of a shared expert. If 0, that of the routed experts."
  )
  routed_bias_zero_mean: bool = Field(
      False, description="Whether the mean over experts is subtracted from the routed bias after each of its updates."
  )
  router_z_loss_weight: NonNegativeFloat = Field(
      0.0, description="Weight of the loss on the squared log-sum-exp of the router's logits."
  )
  mtp_use_final_norm_hidden_state: bool = Field(
      False, description="Whether a multi-token prediction layer is fed the state after the final norm, not before it."
  )
