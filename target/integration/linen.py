"""The Linen decoder that upstream had up to 0.2.4."""

from __future__ import annotations

import textwrap

from codemods.engine.anchors import AnchoredFile
from codemods.engine.overlay import Integration, Step
from codemods.rules.base import Example, Rule
from target.integration.inserted_source import source_of

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


INTEGRATIONS = (
    Integration(
        Rule(
            "INT015",
            "safe",
            "The Linen decoder, where upstream has one, runs Ling2's layers: one by one, or prefix, scan and remainder",
            "Only the layers that have full attention read externally managed caches.",
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
            ),
        ),
        (
            Step(LINEN_DECODERS, _classes, optional=True),
            Step(LINEN_DECODERS, _execution, optional=True),
        ),
    ),
)
