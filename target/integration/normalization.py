"""GroupRMSNorm, and the lists of decoder blocks that are normalized with RMSNorm."""

from __future__ import annotations

from codemods.engine.anchors import AnchoredFile
from codemods.engine.overlay import Integration, Step
from codemods.rules.base import Example, Rule
from target.integration.inserted_source import source_of

NORMALIZATIONS = "maxtext/layers/normalizations.py"
LINEARS = "maxtext/layers/linears.py"
DECODERS = "maxtext/layers/nnx_decoders.py"
LINEN_DECODERS = "maxtext/layers/decoders.py"


def _group_rms_norm(file: AnchoredFile) -> None:
    file.module.statement("class RMSNorm: ...").insert_after(
        source_of("group_rms_norm", "GroupRMSNorm")
    )


def _norm_list(klass: str, file: AnchoredFile) -> None:
    norm = file.module.klass(klass).function("get_norm_layer")
    norm.collection("DecoderBlockType.LLAMA2", "DecoderBlockType.DEEPSEEK").add(
        "DecoderBlockType.LING2"
    )


INTEGRATIONS = (
    Integration(
        Rule(
            "INT005",
            "safe",
            "`GroupRMSNorm` is put beside `RMSNorm`",
            examples=(
                Example(
                    path=NORMALIZATIONS,
                    before="""\
class RMSNorm(nnx.Module):
  epsilon = 1e-6


def l2norm(x):
  return x
""",
                    after=(
                        """\
class RMSNorm(nnx.Module):
  epsilon = 1e-6


"""
                        + source_of("group_rms_norm", "GroupRMSNorm")
                        + """

def l2norm(x):
  return x
"""
                    ),
                ),
            ),
        ),
        (Step(NORMALIZATIONS, _group_rms_norm),),
    ),
    Integration(
        Rule(
            "INT006",
            "safe",
            "LING2 is among the decoder blocks that are normalized with RMSNorm",
            examples=(
                Example(
                    path=LINEARS,
                    before="""\
class MlpBlock:

  def get_norm_layer(self):
    if self.config.decoder_block in (DecoderBlockType.LLAMA2, DecoderBlockType.DEEPSEEK):
      return RMSNorm
    return LayerNorm
""",
                    after="""\
class MlpBlock:

  def get_norm_layer(self):
    if self.config.decoder_block in (DecoderBlockType.LLAMA2, DecoderBlockType.DEEPSEEK, DecoderBlockType.LING2):
      return RMSNorm
    return LayerNorm
""",
                ),
            ),
        ),
        (
            Step(LINEARS, lambda file: _norm_list("MlpBlock", file)),
            Step(DECODERS, lambda file: _norm_list("NNXDecoder", file)),
            Step(LINEN_DECODERS, lambda file: _norm_list("Decoder", file), optional=True),
        ),
    ),
)
