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

"""What a Ling2 checkpoint says of the model that its weights are for, beyond their names and shapes.

The same weights give other outputs under another slope convention or tail rule. A checkpoint therefore records them in
its custom metadata, beside MaxText's own `scan_layers`, and loading it into a model that is configured otherwise is
refused. This module imports neither jax nor the rest of MaxText.
"""

import dataclasses
from typing import Any, Mapping

from maxtext.common import ling2_layers

METADATA_KEY = "ling2"
MAXTEXT = "MaxText"


def custom_metadata(
    gla_slope_index: str, mla_tail_rule: str, scan_layers: bool, param_scan_axis: int, written_by: str
) -> dict[str, Any]:
  """Returns the custom metadata of a checkpoint.

  Args:
    gla_slope_index: the convention that the weights were trained with.
    mla_tail_rule: the rule that says which layers of the tail are MLA.
    scan_layers: whether layers are stacked.
    param_scan_axis: the axis that they are stacked on.
    written_by: name and version of the tool.
  """
  record = {
      "gla_slope_index": gla_slope_index,
      "mla_tail_rule": mla_tail_rule,
      "param_scan_axis": param_scan_axis,
      "written_by": written_by,
  }
  return {"scan_layers": scan_layers, METADATA_KEY: record}


def of_config(config: Any) -> dict[str, Any]:
  """Returns the custom metadata of what MaxText saves under a config."""
  return custom_metadata(
      config.gla_slope_index, config.mla_tail_rule, config.scan_layers, config.param_scan_axis, MAXTEXT
  )


def check(metadata: Mapping[str, Any], config: Any, path: str) -> None:
  """Refuses a checkpoint that records another model than the config asks for; one without a record passes.

  Args:
    metadata: custom metadata of the checkpoint.
    config: MaxText config of a Ling2 model.
    path: of the checkpoint, for the message.

  Raises:
    ValueError: one line that says what clashes.
  """
  record = metadata.get(METADATA_KEY)
  if record is None:
    return
  clashes = []
  for name, recorded in (
      ("gla_slope_index", record.get("gla_slope_index")),
      ("mla_tail_rule", record.get("mla_tail_rule")),
      ("scan_layers", metadata.get("scan_layers")),
      ("param_scan_axis", record.get("param_scan_axis") if config.scan_layers else None),
  ):
    wanted = getattr(config, name)
    if recorded is None or recorded == wanted:
      continue
    if name == "mla_tail_rule":
      # Rules differ only where there is a tail.
      pattern = ling2_layers.pattern_of(config)
      if pattern.layers() == dataclasses.replace(pattern, mla_tail_rule=recorded).layers():
        continue
    clashes.append(f"{name}={recorded}, the config has {name}={wanted}")
  if clashes:
    raise ValueError(f"The Ling2 checkpoint {path} is for {'; '.join(clashes)}. Set the config to what the checkpoint is for.")
