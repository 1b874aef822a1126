"""The FLOP count of a Ling2 model."""

from __future__ import annotations

from codemods.engine.anchors import AnchoredFile
from codemods.engine.overlay import Integration, Step
from codemods.rules.base import Example, Rule

MAXTEXT_UTILS = "maxtext/utils/maxtext_utils.py"
LING2 = "DecoderBlockType.LING2"
_COUNT = """
attention_tflops, learnable_weight_tflops = ling2_layers.calculate_ling2_tflops_training_per_device(
    config, total_ffn_flops_all_layers, qkv_flops + projection_flops, causal_attention_flops, embedding_flops
)
"""


def _dense_and_moe(file: AnchoredFile) -> None:
    file.module.function("get_dense_moe_layers").replace_all(
        "config.decoder_block == DecoderBlockType.DEEPSEEK",
        "config.decoder_block in (DecoderBlockType.DEEPSEEK, DecoderBlockType.LING2)",
    )


def _flops(file: AnchoredFile) -> None:
    count = file.module.function("calculate_tflops_training_per_device")
    for statement in (
        "total_ffn_flops = calculate_routed_and_shared_ffn_tflops_per_device(config)",
        "shared_flops = __value",
    ):
        test = count.statement(statement).branch_of().test
        test.collection("DecoderBlockType.DEEPSEEK").add(LING2)
    deepseek = count.branch("config.decoder_block == DecoderBlockType.DEEPSEEK4")
    deepseek.add_after(f"config.decoder_block == {LING2}", _COUNT)
    file.add_import("from maxtext.common import ling2_layers")


INTEGRATIONS = (
    Integration(
        Rule(
            "INT014",
            "safe",
            "The FLOP count knows Ling2's layers: which are dense, and which of them have linear attention",
            examples=(
                Example(
                    path=MAXTEXT_UTILS,
                    before="""\
from maxtext.common import checkpointing


def get_dense_moe_layers(config):
  if config.decoder_block == DecoderBlockType.DEEPSEEK:
    return config.first_num_dense_layers
  return 0


def calculate_tflops_training_per_device(config):
  if config.decoder_block in (DecoderBlockType.DEEPSEEK,):
    total_ffn_flops = calculate_routed_and_shared_ffn_tflops_per_device(config)
  if config.decoder_block == DecoderBlockType.DEEPSEEK4:
    attention_tflops = 4
  else:
    attention_tflops = 1
  if config.decoder_block in (DecoderBlockType.DEEPSEEK,):
    shared_flops = config.shared_experts
""",
                    after="""\
from maxtext.common import checkpointing, ling2_layers


def get_dense_moe_layers(config):
  if config.decoder_block in (DecoderBlockType.DEEPSEEK, DecoderBlockType.LING2):
    return config.first_num_dense_layers
  return 0


def calculate_tflops_training_per_device(config):
  if config.decoder_block in (DecoderBlockType.DEEPSEEK, DecoderBlockType.LING2,):
    total_ffn_flops = calculate_routed_and_shared_ffn_tflops_per_device(config)
  if config.decoder_block == DecoderBlockType.DEEPSEEK4:
    attention_tflops = 4
  elif config.decoder_block == DecoderBlockType.LING2:
    attention_tflops, learnable_weight_tflops = ling2_layers.calculate_ling2_tflops_training_per_device(
        config, total_ffn_flops_all_layers, qkv_flops + projection_flops, causal_attention_flops, embedding_flops
    )
  else:
    attention_tflops = 1
  if config.decoder_block in (DecoderBlockType.DEEPSEEK, DecoderBlockType.LING2,):
    shared_flops = config.shared_experts
""",
                ),
            ),
        ),
        (Step(MAXTEXT_UTILS, _dense_and_moe), Step(MAXTEXT_UTILS, _flops)),
    ),
)
