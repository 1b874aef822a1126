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

"""Gated linear attention with one fixed decay per head (Lightning Attention-2), chunked for training, recurrent for decoding."""

from maxtext.kernels.gla.api import IMPLEMENTATIONS, chunk_gla, recurrent_gla_step
from maxtext.kernels.gla.decay import build_slope_tensor, gla_log_decay

__all__ = ["IMPLEMENTATIONS", "build_slope_tensor", "chunk_gla", "gla_log_decay", "recurrent_gla_step"]
