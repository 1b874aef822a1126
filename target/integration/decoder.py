"""The NNX decoder: Ling2's layers are made and run by `models/ling2.py`."""

from __future__ import annotations

from codemods.engine.anchors import AnchoredFile
from codemods.engine.overlay import Integration, Step
from codemods.rules.base import Example, Rule

DECODERS = "maxtext/layers/nnx_decoders.py"
EMBEDDINGS = "maxtext/layers/embeddings.py"
DECODE_CHECKPOINT = "maxtext/utils/generate_param_only_checkpoint.py"

_UNROLL = """
if config.decoder_block == DecoderBlockType.LING2:
  ling2.unroll_decoder_layers(config, state.model["decoder"])
  return
"""
_BIAS = """
if config.decoder_block == DecoderBlockType.LING2:
  bf16_model = ling2.add_routing_bias(bf16_model, state.model)
"""

# Configurations that stand for MaxText's in its tests may lack fields.
_TABLE_DTYPE = """
# Ling2's logits are as precise with tied embeddings as with a head of their own.
is_ling2 = getattr(config, "decoder_block", None) == DecoderBlockType.LING2
table_dtype = attend_dtype if is_ling2 else jnp.bfloat16
"""


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


def _host_offload(file: AnchoredFile) -> None:
    offload = "self.config.parameter_memory_host_offload"
    scan = file.module.klass("NNXDecoder").function("_apply_layers_sequentially")
    scan.replace_all(offload, f"{offload} and not self.is_ling2")


def _order(file: AnchoredFile) -> None:
    file.module.klass("NNXDecoder").function("get_layers").prepend(
        "if self.is_ling2:\n  return ling2.get_layers(self)\n"
    )


def _tied_logits(file: AnchoredFile) -> None:
    attend = file.module.function("attend_on_embedding")
    attend.statement("return jnp.dot(...)").insert_before(_TABLE_DTYPE)
    attend.replace_all(
        "jnp.asarray(embedding_table, jnp.bfloat16)", "jnp.asarray(embedding_table, table_dtype)"
    )
    file.add_import("from maxtext.common.common_types import DecoderBlockType")


def _unrolled(file: AnchoredFile) -> None:
    file.module.function("_possibly_unroll_params_nnx").prepend(_UNROLL)
    file.add_import("from maxtext.models import ling2")


def _decode_bias(file: AnchoredFile) -> None:
    save = file.module.function("_save_decode_checkpoint_nnx")
    save.statement("bf16_model = jax.tree_util.tree_map(__cast, __tree)").insert_after(_BIAS)


INTEGRATIONS = (
    Integration(
        Rule(
            "INT009",
            "safe",
            "The NNX decoder has Ling2's layer classes, and makes and runs its layers with the functions of `models/ling2.py`",
            (
                "These bring parameters from host memory layer by layer, where the scan would bring a whole cycle's and keep "
                "them for the backward pass."
            ),
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

  def _apply_layers_sequentially(self, layers, y):
    if self.config.parameter_memory_host_offload:
      layers = to_device(layers)
    return layers(y)

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

  def _apply_layers_sequentially(self, layers, y):
    if self.config.parameter_memory_host_offload and not self.is_ling2:
      layers = to_device(layers)
    return layers(y)

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
            Step(DECODERS, _host_offload),
            Step(DECODERS, _order),
        ),
    ),
    Integration(
        Rule(
            "INT023",
            "safe",
            "A checkpoint made for decoding keeps Ling2's routing bias, and is unrolled to the names of its layers",
            examples=(
                Example(
                    path=DECODE_CHECKPOINT,
                    before="""\
from maxtext.common.common_types import DecoderBlockType
from maxtext.utils import gcs_utils


def _possibly_unroll_params_nnx(config, state, state_mesh_shardings, mesh):
  \"\"\"Unrolls.\"\"\"
  param_only_state, other_state = nnx.split_state(state, nnx.Param, ...)


def _save_decode_checkpoint_nnx(config, state, checkpoint_manager):
  bf16_model = jax.tree_util.tree_map(lambda x: x.astype(jnp.bfloat16), pure_model)
  bf16_model = _wrap_value(bf16_model)
""",
                    after="""\
from maxtext.common.common_types import DecoderBlockType
from maxtext.models import ling2
from maxtext.utils import gcs_utils


def _possibly_unroll_params_nnx(config, state, state_mesh_shardings, mesh):
  \"\"\"Unrolls.\"\"\"
  if config.decoder_block == DecoderBlockType.LING2:
    ling2.unroll_decoder_layers(config, state.model["decoder"])
    return
  param_only_state, other_state = nnx.split_state(state, nnx.Param, ...)


def _save_decode_checkpoint_nnx(config, state, checkpoint_manager):
  bf16_model = jax.tree_util.tree_map(lambda x: x.astype(jnp.bfloat16), pure_model)
  if config.decoder_block == DecoderBlockType.LING2:
    bf16_model = ling2.add_routing_bias(bf16_model, state.model)
  bf16_model = _wrap_value(bf16_model)
""",
                ),
            ),
        ),
        (Step(DECODE_CHECKPOINT, _unrolled), Step(DECODE_CHECKPOINT, _decode_bias)),
    ),
    Integration(
        Rule(
            "INT024",
            "safe",
            "Ling2's logits from tied embeddings are computed in the dtype of logits",
            "Upstream rounds the table to bfloat16 there, and still does for all other models.",
            examples=(
                Example(
                    path=EMBEDDINGS,
                    before="""\
from maxtext.common.common_types import Config


def attend_on_embedding(query, embedding_table, attend_dtype, config):
  return jnp.dot(query, jnp.asarray(embedding_table, jnp.bfloat16).T, preferred_element_type=attend_dtype)
""",
                    after="""\
from maxtext.common.common_types import Config, DecoderBlockType


def attend_on_embedding(query, embedding_table, attend_dtype, config):
  # Ling2's logits are as precise with tied embeddings as with a head of their own.
  is_ling2 = getattr(config, "decoder_block", None) == DecoderBlockType.LING2
  table_dtype = attend_dtype if is_ling2 else jnp.bfloat16
  return jnp.dot(query, jnp.asarray(embedding_table, table_dtype).T, preferred_element_type=attend_dtype)
""",
                ),
            ),
        ),
        (Step(EMBEDDINGS, _tied_logits),),
    ),
)
