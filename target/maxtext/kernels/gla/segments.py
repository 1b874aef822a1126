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

"""Where each token of a packed row stands: how many real tokens came before, and to which run it belongs.

The kernels treat a packed row as if its padding had been deleted: padding neither updates nor decays the state and
does not reset it. Two numbers per token carry all of that into a kernel, whatever the segment ids look like.
"""

from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp

# Segment id of a token that is padding, as in the rest of MaxText.
PADDING = 0


class TokenLayout(NamedTuple):
  """Positions and runs of the tokens of packed rows.

  With `r = abs(run)`, token j acts on token i >= j through the decay `exp(g * (position[i] - position[j]))` if both are
  real and `r[i] == r[j]`, and not at all otherwise. The incoming state belongs to `r == 1` and position 0.

  Attributes:
    position: int32 [B, T], the number of real tokens of the row up to and including this one.
    run: int32 [B, T], `r` at a real token and `-r` at padding. `r` is 1 plus the number of segment borders so far, so
      it never falls along a row; padding has the `r` of the last real token before it, or 1.
  """

  position: jax.Array
  run: jax.Array


def token_layout(segment_ids: jax.Array) -> TokenLayout:
  """Computes positions and runs from segment ids.

  A border is a real token whose id differs from that of the last real token before it; an id that comes back after
  padding continues its run.

  Args:
    segment_ids: int [B, T]; 0 is padding, any other number names a segment.

  Returns:
    The TokenLayout of the rows. O(T) work per row.
  """
  segment_ids = segment_ids.astype(jnp.int32)
  real = segment_ids != PADDING
  # Index of the last real token so far, or 0: lax.associative_scan of the ids takes minutes to compile for long rows.
  last = lax.cummax(jnp.where(real, lax.broadcasted_iota(jnp.int32, real.shape, 1), 0), axis=1)
  before = jnp.pad(jnp.take_along_axis(segment_ids, last, axis=1)[:, :-1], ((0, 0), (1, 0)))
  border = real & (before != PADDING) & (segment_ids != before)
  run = 1 + lax.cumsum(border.astype(jnp.int32), axis=1)
  position = lax.cumsum(real.astype(jnp.int32), axis=1)
  return TokenLayout(position, jnp.where(real, run, -run))
