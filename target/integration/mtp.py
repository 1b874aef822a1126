"""Multi-token prediction: Ling2's layer class and index, and the normed hidden state."""

from __future__ import annotations

from codemods.engine.anchors import AnchoredFile
from codemods.engine.overlay import Integration, Step
from codemods.rules.base import Example, Rule

MTP = "maxtext/layers/multi_token_prediction.py"
MODELS = "maxtext/models/models.py"
DECODERS = "maxtext/layers/nnx_decoders.py"

_LAYER_INDEX = """
# A Ling2 layer has to know its index in the model; MTP layers follow those of the decoder.
layer_kwargs = {}
if cfg.decoder_block == DecoderBlockType.LING2:
  layer_kwargs = {"layer_idx": cfg.num_decoder_layers + layer_number - 1}
"""
# Up to 0.2.4 an MTP layer has no final norm, and the output head always applies the decoder's.
_OWN_NORM_LAYER = """
if cfg.mtp_use_final_norm_hidden_state:
  final_norm = RMSNorm(
      num_features=cfg.emb_dim,
      epsilon=cfg.normalization_layer_epsilon,
      dtype=cfg.dtype,
      weight_dtype=cfg.weight_dtype,
      kernel_axes=("norm",),
      rngs=rngs,
  )
  setattr(self, f"mtp_{layer_number}_final_norm", final_norm)
"""
_OWN_NORM = """
head_kwargs = {}
if cfg.mtp_use_final_norm_hidden_state:
  mtp_hidden_state = getattr(mtp_layer, f"mtp_{k}_final_norm")(mtp_hidden_state)
  head_kwargs = {"normalize_y": False}
"""
_IDLE = """
# A Ling2 config asks for MTP by itself, also when the model is only to decode.
mtp_is_idle = self.config.decoder_block == DecoderBlockType.LING2 and model_mode != MODEL_MODE_TRAIN
"""


def _layer_index(file: AnchoredFile) -> None:
    init = file.module.klass("MultiTokenPredictionLayer").function("__init__")
    made = init.statement("self.transformer_layer = transformer_layer_module(...)")
    made.insert_before(_LAYER_INDEX)
    made.expression("transformer_layer_module(...)").arguments.add("**layer_kwargs")


def _layer_class(file: AnchoredFile) -> None:
    chosen = file.module.klass("Transformer").statement("mtp_layer = __types[-1]")
    chosen.insert_after(
        "if cfg.decoder_block == DecoderBlockType.LING2:\n  mtp_layer = Ling2DecoderLayer\n"
    )
    file.add_import("from maxtext.common.common_types import DecoderBlockType")
    file.add_import("from maxtext.models.ling2 import Ling2DecoderLayer")


def _hidden_state(file: AnchoredFile) -> None:
    call = file.module.klass("MultiTokenPredictionBlock").function("__call__")
    call.statement("mtp_hidden_state = main_hidden_state").insert_after(
        "if cfg.mtp_use_final_norm_hidden_state:\n"
        "  mtp_hidden_state = self.decoder.decoder_norm(main_hidden_state)\n"
    )
    logits = call.statement("mtp_logits = self.decoder.apply_output_head(...)")
    if call.has("normed_mtp_hidden_state = mtp_layer.final_norm(...)"):
        logits.insert_before(
            "if cfg.mtp_use_final_norm_hidden_state:\n  mtp_hidden_state = normed_mtp_hidden_state\n",
            apart=True,
        )
        return
    logits.insert_before(_OWN_NORM, apart=True)
    logits.expression("self.decoder.apply_output_head(...)").arguments.add("**head_kwargs")
    init = file.module.klass("MultiTokenPredictionLayer").function("__init__")
    init.statement("self.transformer_layer = transformer_layer_module(...)").insert_after(
        _OWN_NORM_LAYER
    )


def _output_head(file: AnchoredFile) -> None:
    head = file.module.klass("NNXDecoder").function("apply_output_head")
    if not head.parameters.holds("normalize_y"):
        head.parameters.add("normalize_y=True", after="model_mode")
        head.statement("y = self.decoder_norm(...)").only_if("normalize_y")


def _training_only(file: AnchoredFile) -> None:
    call = file.module.klass("Transformer").function("__call__")
    branch = call.statement("self.mtp_block(...)").branch_of()
    branch.whole.insert_before(_IDLE, apart=True)
    if not branch.test.matches("__test and not mtp_is_idle"):
        branch.test.replace(f"{branch.test.source} and not mtp_is_idle")
    for name in ("DecoderBlockType", "MODEL_MODE_TRAIN"):
        file.add_import(f"from maxtext.common.common_types import {name}")


INTEGRATIONS = (
    Integration(
        Rule(
            "INT010",
            "safe",
            "A multi-token prediction layer of Ling2 is a `Ling2DecoderLayer` that knows its index",
            "With scanned layers too, where the decoder's own class is that of a block of layers.",
            examples=(
                Example(
                    path=MTP,
                    before="""\
class MultiTokenPredictionLayer(nnx.Module):

  def __init__(self, config, layer_number, transformer_layer_module, rngs):
    cfg = config
    self.transformer_layer = transformer_layer_module(
        config=cfg,
        rngs=rngs,
    )
""",
                    after="""\
class MultiTokenPredictionLayer(nnx.Module):

  def __init__(self, config, layer_number, transformer_layer_module, rngs):
    cfg = config
    # A Ling2 layer has to know its index in the model; MTP layers follow those of the decoder.
    layer_kwargs = {}
    if cfg.decoder_block == DecoderBlockType.LING2:
      layer_kwargs = {"layer_idx": cfg.num_decoder_layers + layer_number - 1}
    self.transformer_layer = transformer_layer_module(
        config=cfg,
        rngs=rngs,
        **layer_kwargs,
    )
""",
                ),
                Example(
                    path=MODELS,
                    before="""\
from maxtext.common.common_types import Config
from maxtext.layers.quantizations import AqtQuantization


class Transformer(nnx.Module):

  def __init__(self, cfg, layer_types):
    mtp_layer = layer_types[-1]
    self.mtp_block = Block(mtp_layer)
""",
                    after="""\
from maxtext.common.common_types import Config, DecoderBlockType
from maxtext.layers.quantizations import AqtQuantization
from maxtext.models.ling2 import Ling2DecoderLayer


class Transformer(nnx.Module):

  def __init__(self, cfg, layer_types):
    mtp_layer = layer_types[-1]
    if cfg.decoder_block == DecoderBlockType.LING2:
      mtp_layer = Ling2DecoderLayer
    self.mtp_block = Block(mtp_layer)
""",
                ),
            ),
        ),
        (Step(MTP, _layer_index), Step(MODELS, _layer_class)),
    ),
    Integration(
        Rule(
            "INT011",
            "safe",
            "Multi-token prediction is fed normed hidden states where `mtp_use_final_norm_hidden_state` is set",
            "An upstream whose MTP layers have no final norm of their own gets one for this case.",
            examples=(
                Example(
                    path=MTP,
                    before="""\
class MultiTokenPredictionBlock(nnx.Module):

  def __call__(self, main_hidden_state):
    cfg = self.config
    mtp_hidden_state = main_hidden_state
    for k in range(cfg.mtp_num_layers):
      mtp_hidden_state = self.layer(mtp_hidden_state)
      normed_mtp_hidden_state = mtp_layer.final_norm(mtp_hidden_state)
      mtp_logits = self.decoder.apply_output_head(normed_mtp_hidden_state)
""",
                    after="""\
class MultiTokenPredictionBlock(nnx.Module):

  def __call__(self, main_hidden_state):
    cfg = self.config
    mtp_hidden_state = main_hidden_state
    if cfg.mtp_use_final_norm_hidden_state:
      mtp_hidden_state = self.decoder.decoder_norm(main_hidden_state)
    for k in range(cfg.mtp_num_layers):
      mtp_hidden_state = self.layer(mtp_hidden_state)
      normed_mtp_hidden_state = mtp_layer.final_norm(mtp_hidden_state)
      if cfg.mtp_use_final_norm_hidden_state:
        mtp_hidden_state = normed_mtp_hidden_state

      mtp_logits = self.decoder.apply_output_head(normed_mtp_hidden_state)
""",
                ),
                Example(
                    path=MTP,
                    before="""\
class MultiTokenPredictionLayer(nnx.Module):

  def __init__(self, config, rngs, layer_number):
    cfg = config
    self.transformer_layer = transformer_layer_module(config=cfg)


class MultiTokenPredictionBlock(nnx.Module):

  def __call__(self, main_hidden_state):
    cfg = self.config
    mtp_hidden_state = main_hidden_state
    for k in range(cfg.mtp_num_layers):
      mtp_hidden_state = mtp_layer(mtp_hidden_state)
      mtp_logits = self.decoder.apply_output_head(mtp_hidden_state)
""",
                    after="""\
class MultiTokenPredictionLayer(nnx.Module):

  def __init__(self, config, rngs, layer_number):
    cfg = config
    self.transformer_layer = transformer_layer_module(config=cfg)
    if cfg.mtp_use_final_norm_hidden_state:
      final_norm = RMSNorm(
          num_features=cfg.emb_dim,
          epsilon=cfg.normalization_layer_epsilon,
          dtype=cfg.dtype,
          weight_dtype=cfg.weight_dtype,
          kernel_axes=("norm",),
          rngs=rngs,
      )
      setattr(self, f"mtp_{layer_number}_final_norm", final_norm)


class MultiTokenPredictionBlock(nnx.Module):

  def __call__(self, main_hidden_state):
    cfg = self.config
    mtp_hidden_state = main_hidden_state
    if cfg.mtp_use_final_norm_hidden_state:
      mtp_hidden_state = self.decoder.decoder_norm(main_hidden_state)
    for k in range(cfg.mtp_num_layers):
      mtp_hidden_state = mtp_layer(mtp_hidden_state)
      head_kwargs = {}
      if cfg.mtp_use_final_norm_hidden_state:
        mtp_hidden_state = getattr(mtp_layer, f"mtp_{k}_final_norm")(mtp_hidden_state)
        head_kwargs = {"normalize_y": False}

      mtp_logits = self.decoder.apply_output_head(mtp_hidden_state, **head_kwargs)
""",
                ),
                Example(
                    path=DECODERS,
                    before="""\
class NNXDecoder(nnx.Module):

  def apply_output_head(self, y, model_mode):
    y = self.decoder_norm(y)
    return self.logits_dense(y)
""",
                    after="""\
class NNXDecoder(nnx.Module):

  def apply_output_head(self, y, model_mode, normalize_y=True):
    if normalize_y:
      y = self.decoder_norm(y)
    return self.logits_dense(y)
""",
                ),
            ),
        ),
        (Step(MTP, _hidden_state), Step(DECODERS, _output_head)),
    ),
    Integration(
        Rule(
            "INT016",
            "safe",
            "The multi-token prediction of LING2 runs in training alone",
            "Its layers have no caches, and a configuration of Ling2 asks for it when the model is to decode as well.",
            examples=(
                Example(
                    path=MODELS,
                    before="""\
from maxtext.common.common_types import Config, MODEL_MODE_TRAIN


class Transformer(nnx.Module):

  def __call__(self, tokens, model_mode):
    logits, hidden_state = self.decoder(tokens)
    # A side-car.
    if getattr(self.config, "mtp_num_layers", 0) > 0:
      self.mtp_block(hidden_state)
    return logits
""",
                    after="""\
from maxtext.common.common_types import Config, DecoderBlockType, MODEL_MODE_TRAIN


class Transformer(nnx.Module):

  def __call__(self, tokens, model_mode):
    logits, hidden_state = self.decoder(tokens)
    # A Ling2 config asks for MTP by itself, also when the model is only to decode.
    mtp_is_idle = self.config.decoder_block == DecoderBlockType.LING2 and model_mode != MODEL_MODE_TRAIN

    # A side-car.
    if getattr(self.config, "mtp_num_layers", 0) > 0 and not mtp_is_idle:
      self.mtp_block(hidden_state)
    return logits
""",
                ),
            ),
        ),
        (Step(MODELS, _training_only),),
    ),
)
