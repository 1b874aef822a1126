"""The Linen decoder that upstream had up to 0.2.4."""

from __future__ import annotations

import textwrap

from codemods.engine.anchors import AnchoredFile
from codemods.engine.overlay import Integration, Step
from codemods.rules.base import Example, Rule
from target.integration.inserted_source import source_of

TYPES = "maxtext/configs/types.py"
LINEN_DECODERS = "maxtext/layers/decoders.py"
METHOD = source_of("linen_decoder", "_apply_ling2_layers")

_CLASSES = """
if self.config.scan_layers:
  return [ling2.Ling2ScannableBlockToLinen, ling2.Ling2DecoderLayerToLinen]
return [ling2.Ling2DecoderLayerToLinen]
"""
_CALL = """
y = self._apply_ling2_layers(
    RemattedBlockLayers, y, broadcast_args, previous_chunk, slot, kv_caches, attention_metadata
)
"""
_CHECKS = """
if self.decoder_block == DecoderBlockType.LING2 and not self.pure_nnx_decoder:
  if self.routed_bias and self.routed_bias_update_rate > 0.0:
    raise ValueError(
        "Ling2's Linen decoder does not update the routed bias: set pure_nnx_decoder=True or routed_bias_update_rate=0."
    )
  if self.mtp_num_layers > 0:
    raise ValueError("Ling2's Linen decoder has no MTP layers: set pure_nnx_decoder=True or mtp_num_layers=0.")
  if self.scan_layers and self.force_unroll:
    raise ValueError("Checkpoints of Ling2's scanned Linen decoder are not unrolled: set pure_nnx_decoder=True.")
"""


def _classes(file: AnchoredFile) -> None:
    decoder = file.module.klass("Decoder")
    layers = decoder.function("get_decoder_layers")
    layers.case("DecoderBlockType.DEEPSEEK").add_after("DecoderBlockType.LING2", _CLASSES)
    file.add_import("from maxtext.models import ling2")


def _execution(file: AnchoredFile) -> None:
    decoder = file.module.klass("Decoder")
    decoder.function("__call__").branch("cfg.scan_layers").add_before(
        "cfg.decoder_block == DecoderBlockType.LING2", _CALL
    )
    decoder.statement("def scan_decoder_layers(): ...").insert_after(METHOD)
    file.add_import("from maxtext.common import ling2_layers")


def _checks(file: AnchoredFile) -> None:
    if file.module.has("pure_nnx_decoder: bool = __field"):
        config = file.module.klass("MaxTextConfig")
        config.statement("if linen_flags: ...").insert_before(_CHECKS, apart=True)


INTEGRATIONS = (
    Integration(
        Rule(
            "INT015",
            "safe",
            "The Linen decoder, where upstream has one, runs Ling2's layers: one by one, or prefix, scan and remainder",
            (
                "Only the layers that have full attention read externally managed caches. What that decoder cannot do, "
                "to update the routed bias and to predict several tokens, the configuration refuses."
            ),
            examples=(
                Example(
                    path=LINEN_DECODERS,
                    before="""\
from maxtext.common.common_types import DecoderBlockType
from maxtext.models import deepseek, llama2


class Decoder(nn.Module):

  def get_decoder_layers(self):
    match self.config.decoder_block:
      case DecoderBlockType.LLAMA2:
        return [llama2.LlamaDecoderLayerToLinen]
      case DecoderBlockType.DEEPSEEK:
        return [deepseek.DeepSeekDenseLayerToLinen, deepseek.DeepSeekMoELayerToLinen]
      case _:
        raise ValueError("Incorrect decoder_block name")

  def scan_decoder_layers(self, layer, length):
    return nn.scan(layer, length=length)

  def __call__(self, y):
    if cfg.scan_layers:
      y = self.scan_decoder_layers(layer, cfg.num_decoder_layers)(y)
    else:
      y = layer(y)
    return y
""",
                    after="""\
from maxtext.common import ling2_layers
from maxtext.common.common_types import DecoderBlockType
from maxtext.models import deepseek, ling2, llama2


class Decoder(nn.Module):

  def get_decoder_layers(self):
    match self.config.decoder_block:
      case DecoderBlockType.LLAMA2:
        return [llama2.LlamaDecoderLayerToLinen]
      case DecoderBlockType.DEEPSEEK:
        return [deepseek.DeepSeekDenseLayerToLinen, deepseek.DeepSeekMoELayerToLinen]
      case DecoderBlockType.LING2:
        if self.config.scan_layers:
          return [ling2.Ling2ScannableBlockToLinen, ling2.Ling2DecoderLayerToLinen]
        return [ling2.Ling2DecoderLayerToLinen]
      case _:
        raise ValueError("Incorrect decoder_block name")

  def scan_decoder_layers(self, layer, length):
    return nn.scan(layer, length=length)

"""
                    + textwrap.indent(METHOD, "  ")
                    + """
  def __call__(self, y):
    if cfg.decoder_block == DecoderBlockType.LING2:
      y = self._apply_ling2_layers(
          RemattedBlockLayers, y, broadcast_args, previous_chunk, slot, kv_caches, attention_metadata
      )
    elif cfg.scan_layers:
      y = self.scan_decoder_layers(layer, cfg.num_decoder_layers)(y)
    else:
      y = layer(y)
    return y
""",
                ),
                Example(
                    path=TYPES,
                    before="""\
class Flags(BaseModel):
  pure_nnx_decoder: bool = Field(True)


class MaxTextConfig(Flags):

  def check(self):
    linen_flags = [flag for flag in (self.pure_nnx_decoder,) if not flag]
    if linen_flags:
      logger.warning("Linen")
""",
                    after="""\
class Flags(BaseModel):
  pure_nnx_decoder: bool = Field(True)


class MaxTextConfig(Flags):

  def check(self):
    linen_flags = [flag for flag in (self.pure_nnx_decoder,) if not flag]
"""
                    + textwrap.indent(_CHECKS.lstrip("\n"), "    ")
                    + """
    if linen_flags:
      logger.warning("Linen")
""",
                ),
                Example(
                    path=TYPES,
                    before="""\
class MaxTextConfig(Flags):
  nnx: bool = True
""",
                    after="""\
class MaxTextConfig(Flags):
  nnx: bool = True
""",
                ),
            ),
        ),
        (
            Step(LINEN_DECODERS, _classes, optional=True),
            Step(LINEN_DECODERS, _execution, optional=True),
            Step(TYPES, _checks),
        ),
    ),
)
