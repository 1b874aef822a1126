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

"""The HF configs of the registered Ling2 models.

Transformers has another model under Ling2's `model_type`, so the class is one of our own.
"""

import os

from maxtext.checkpoint_conversion.utils import ling2_params
from maxtext.utils.globals import MAXTEXT_CONFIGS_DIR
import transformers
import yaml


class Ling2HfConfig(transformers.PretrainedConfig):
  """HF config of a Ling2 model."""

  model_type = "bailing_hybrid"

  def to_dict(self):
    """Returns the config as config.json has it; the published model code reads the older name of the rotary parameters."""
    result = super().to_dict()
    # `to_huggingface` looks the class up by the model type.
    result["architectures"] = [ling2_params.HF_ARCHITECTURE]
    result["rope_scaling"] = result.pop("rope_parameters", None)
    return result


def of_model(model_name: str) -> Ling2HfConfig:
  """Returns the HF config of a model from its YAML file."""
  with open(os.path.join(MAXTEXT_CONFIGS_DIR, "models", f"{model_name}.yml"), encoding="utf-8") as file:
    return Ling2HfConfig(**ling2_params.hf_config_of(yaml.safe_load(file)))
