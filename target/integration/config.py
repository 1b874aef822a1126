"""The decoder block, the model names, the configuration fields and their checks."""

from __future__ import annotations

from codemods.engine.anchors import AnchoredFile
from codemods.engine.overlay import Integration, Step
from codemods.rules.base import Example, Rule
from target.integration.inserted_source import field_names, source_of

COMMON_TYPES = "maxtext/common/common_types.py"
TYPES = "maxtext/configs/types.py"
MODEL_NAMES = ("ling2", "ling2-1t")


def _decoder_block(file: AnchoredFile) -> None:
    file.module.klass("DecoderBlockType").append('LING2 = "ling2"')


def _model_names(file: AnchoredFile) -> None:
    names = file.module.assignment("ModelName")
    for name in MODEL_NAMES:
        names.add(f'"{name}"')


def _fields(file: AnchoredFile) -> None:
    file.module.statement("class Qwen3Next: ...").insert_after(source_of("ling2_config", "Ling2"))
    file.module.klass("MaxTextConfig").bases.add("Ling2", after="Qwen3Next")


def _routed_bias(file: AnchoredFile) -> None:
    bias = file.module.klass("MaxTextConfig").statement(
        "if self.routed_bias and self.routed_bias_update_rate > 0.0 and self.decoder_block not in __blocks: ..."
    )
    bias.collection_of("__blocks").add("DecoderBlockType.LING2")


def _own_checks(file: AnchoredFile) -> None:
    rotary = file.module.klass("MaxTextConfig").statement(
        "if self.partial_rotary_factor is not None and self.partial_rotary_factor != 1.0: ..."
    )
    rotary.otherwise().add_after(
        "self.decoder_block == DecoderBlockType.LING2", "ling2_layers.validate_config(self)"
    )
    # Without dense layers their width is used nowhere.
    fully_moe = "is_fully_moe and self.base_mlp_dim != self.base_moe_mlp_dim"
    file.module.klass("MaxTextConfig").replace_all(
        fully_moe, f"{fully_moe} and self.decoder_block != DecoderBlockType.LING2"
    )
    file.add_import("from maxtext.common import ling2_layers")


INTEGRATIONS = (
    Integration(
        Rule(
            "INT001",
            "safe",
            "`DecoderBlockType` gets the member LING2",
            examples=(
                Example(
                    path=COMMON_TYPES,
                    before="""\
class DecoderBlockType(enum.Enum):
  DEFAULT = "default"
  ENVY = "envy"
""",
                    after="""\
class DecoderBlockType(enum.Enum):
  DEFAULT = "default"
  ENVY = "envy"
  LING2 = "ling2"
""",
                ),
                Example(
                    path=COMMON_TYPES,
                    before="""\
class BlockType(enum.Enum):
  DEFAULT = "default"
""",
                    after="""\
class BlockType(enum.Enum):
  DEFAULT = "default"
""",
                    listed=("no class `DecoderBlockType` in the module",),
                ),
            ),
        ),
        (Step(COMMON_TYPES, _decoder_block),),
        provides=("LING2",),
    ),
    Integration(
        Rule(
            "INT002",
            "safe",
            "`ModelName` gets `ling2` and `ling2-1t`",
            examples=(
                Example(
                    path=TYPES,
                    before="""\
ModelName = Literal[
    "default",
    "gpt3-6b",
]
""",
                    after="""\
ModelName = Literal[
    "default",
    "gpt3-6b",
    "ling2",
    "ling2-1t",
]
""",
                ),
            ),
        ),
        (Step(TYPES, _model_names),),
    ),
    Integration(
        Rule(
            "INT003",
            "safe",
            "The configuration gets Ling2's own fields, as a class of their own",
            "Every default leaves the other models as they are.",
            examples=(
                Example(
                    path=TYPES,
                    before="""\
class Qwen3Next(BaseModel):
  gdn_chunk_size: int = 64


class MaxTextConfig(
    MoE,
    Qwen3Next,
    Rope,
):
  lora: int = 1
""",
                    after=(
                        """\
class Qwen3Next(BaseModel):
  gdn_chunk_size: int = 64


"""
                        + source_of("ling2_config", "Ling2")
                        + """

class MaxTextConfig(
    MoE,
    Qwen3Next,
    Ling2,
    Rope,
):
  lora: int = 1
"""
                    ),
                ),
            ),
        ),
        (Step(TYPES, _fields),),
        provides=tuple(sorted(field_names("ling2_config", "Ling2"))),
    ),
    Integration(
        Rule(
            "INT004",
            "safe",
            "The configuration's checks let LING2 have a routed bias and a partial rotary factor, and call its own",
            "Where no layer is dense, the width of dense layers need not be that of experts.",
            examples=(
                Example(
                    path=TYPES,
                    before="""\
from maxtext.common.common_types import DecoderBlockType


class MaxTextConfig(Base):

  def check(self):
    if self.routed_bias and self.routed_bias_update_rate > 0.0 and self.decoder_block not in (
        DecoderBlockType.DEEPSEEK,
    ):
      raise ValueError("no routed bias")
    is_fully_moe = self.first_num_dense_layers == 0
    if is_fully_moe and self.base_mlp_dim != self.base_moe_mlp_dim:
      raise ValueError("two widths")
    if self.decoder_block == DecoderBlockType.QWEN3_NEXT:
      self.check_rotary()
    else:
      if self.partial_rotary_factor is not None and self.partial_rotary_factor != 1.0:
        raise ValueError("no partial rotary factor")
""",
                    after="""\
from maxtext.common import ling2_layers
from maxtext.common.common_types import DecoderBlockType


class MaxTextConfig(Base):

  def check(self):
    if self.routed_bias and self.routed_bias_update_rate > 0.0 and self.decoder_block not in (
        DecoderBlockType.DEEPSEEK,
        DecoderBlockType.LING2,
    ):
      raise ValueError("no routed bias")
    is_fully_moe = self.first_num_dense_layers == 0
    if is_fully_moe and self.base_mlp_dim != self.base_moe_mlp_dim and self.decoder_block != DecoderBlockType.LING2:
      raise ValueError("two widths")
    if self.decoder_block == DecoderBlockType.QWEN3_NEXT:
      self.check_rotary()
    elif self.decoder_block == DecoderBlockType.LING2:
      ling2_layers.validate_config(self)
    else:
      if self.partial_rotary_factor is not None and self.partial_rotary_factor != 1.0:
        raise ValueError("no partial rotary factor")
""",
                ),
            ),
        ),
        (Step(TYPES, _routed_bias), Step(TYPES, _own_checks)),
    ),
)
