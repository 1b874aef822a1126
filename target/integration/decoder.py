"""The NNX decoder: Ling2's layers are made and run by `models/ling2.py`."""

from __future__ import annotations

from codemods.engine.anchors import AnchoredFile
from codemods.engine.overlay import Integration, Step
from codemods.rules.base import Example, Rule

DECODERS = "maxtext/layers/nnx_decoders.py"


def _classes(file: AnchoredFile) -> None:
    layers = file.module.klass("NNXDecoder").function("get_decoder_layers")
    layers.collection("DecoderBlockType.DEEPSEEK").add(
        "DecoderBlockType.LING2: get_scannable(ling2.Ling2DecoderLayer, ling2.Ling2ScannableBlock)"
    )
    file.add_import("from maxtext.models import ling2")


def _construction(file: AnchoredFile) -> None:
    decoder = file.module.klass("NNXDecoder")
    flags = decoder.function("__init__")
    flags.last_statement("self.__flag = self.config.decoder_block == __block").insert_after(
        "self.is_ling2 = self.config.decoder_block == DecoderBlockType.LING2"
    )
    decoder.function("_init_decoder_layers").branch("self.is_gemma4_small").add_after(
        "self.is_ling2", "ling2.init_decoder_layers(self, rngs)"
    )


def _execution(file: AnchoredFile) -> None:
    call = file.module.klass("NNXDecoder").function("__call__")
    sequential = call.branch("self.is_gemma4_small")
    sequential.add_after(
        "self.is_ling2",
        "y = ling2.apply_decoder_layers(self, y, layer_args, layer_kwargs, kv_caches)",
    )


def _order(file: AnchoredFile) -> None:
    file.module.klass("NNXDecoder").function("get_layers").prepend(
        "if self.is_ling2:\n  return ling2.get_layers(self)\n"
    )


INTEGRATIONS = (
    Integration(
        Rule(
            "INT009",
            "safe",
            "The NNX decoder has Ling2's layer classes, and makes and runs its layers with the functions of `models/ling2.py`",
            examples=(
                Example(
                    path=DECODERS,
                    before="""\
from maxtext.models import deepseek, llama2


class NNXDecoder(nnx.Module):

  def __init__(self, config, rngs):
    self.is_gemma4 = self.config.decoder_block == DecoderBlockType.GEMMA4
    self._init_decoder_layers(rngs)

  def _init_decoder_layers(self, rngs):
    if self.is_gemma4_small:
      self.layers = []
    else:
      self._init_sequential_layers(rngs)

  def get_decoder_layers(self):
    layer_map = {DecoderBlockType.DEEPSEEK: [deepseek.Dense, deepseek.MoE]}
    return layer_map[self.config.decoder_block]

  def __call__(self, y):
    if self.is_gemma4_small:
      y = self._apply_small(y)
    elif cfg.scan_layers:
      y = self._apply_scanned(y)
    return y

  def get_layers(self):
    \"\"\"All of them.\"\"\"
    return [self.layers]
""",
                    after="""\
from maxtext.models import deepseek, ling2, llama2


class NNXDecoder(nnx.Module):

  def __init__(self, config, rngs):
    self.is_gemma4 = self.config.decoder_block == DecoderBlockType.GEMMA4
    self.is_ling2 = self.config.decoder_block == DecoderBlockType.LING2
    self._init_decoder_layers(rngs)

  def _init_decoder_layers(self, rngs):
    if self.is_gemma4_small:
      self.layers = []
    elif self.is_ling2:
      ling2.init_decoder_layers(self, rngs)
    else:
      self._init_sequential_layers(rngs)

  def get_decoder_layers(self):
    layer_map = {
        DecoderBlockType.DEEPSEEK: [deepseek.Dense, deepseek.MoE],
        DecoderBlockType.LING2: get_scannable(ling2.Ling2DecoderLayer, ling2.Ling2ScannableBlock),
    }
    return layer_map[self.config.decoder_block]

  def __call__(self, y):
    if self.is_gemma4_small:
      y = self._apply_small(y)
    elif self.is_ling2:
      y = ling2.apply_decoder_layers(self, y, layer_args, layer_kwargs, kv_caches)
    elif cfg.scan_layers:
      y = self._apply_scanned(y)
    return y

  def get_layers(self):
    \"\"\"All of them.\"\"\"
    if self.is_ling2:
      return ling2.get_layers(self)
    return [self.layers]
""",
                ),
            ),
        ),
        (
            Step(DECODERS, _classes),
            Step(DECODERS, _construction),
            Step(DECODERS, _execution),
            Step(DECODERS, _order),
        ),
    ),
)
