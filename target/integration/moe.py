"""Expert routing chosen by what a model needs, and the width of its shared expert."""

from __future__ import annotations

from codemods.engine.anchors import AnchoredFile, AnchorError, Block
from codemods.engine.overlay import Integration, Step
from codemods.rules.base import Example, Rule

MOE = "maxtext/layers/moe.py"
MAXTEXT_UTILS = "maxtext/utils/maxtext_utils.py"

# The prefixes are those that the file itself has.
_PREDICATE = '''
def uses_bias_corrected_routing(model_name: str, decoder_block: Optional[ctypes.DecoderBlockType]) -> bool:
  """Whether experts are selected by their biased scores and weighted by the unbiased ones (DeepSeek-V3, Ling2)."""
  return decoder_block == ctypes.DecoderBlockType.LING2 or model_name.startswith(__prefixes)
'''
# Configurations that stand for MaxText's in its tests may lack fields.
_CONFIG_TEST = 'uses_bias_corrected_routing(self.config.model_name, getattr(self.config, "decoder_block", None))'
_SINGLE = "is_single = self.config.decoder_block == ctypes.DecoderBlockType.LING2 and self.num_experts_per_tok == 1"
_BIAS_DTYPE = """
# Ling2 moves its bias by steps that are lost in a lower precision.
bias_dtype = jnp.float32 if self.decoder_block == ctypes.DecoderBlockType.LING2 else self.weight_dtype
"""


def _predicate(file: AnchoredFile) -> None:
    gate = file.module.klass("GateLogit")
    try:
        prefixes = file.module.function("uses_bias_corrected_routing").expression(
            "model_name.startswith(__prefixes)"
        )
    except AnchorError:
        prefixes = gate.function("__call__").expression("self.model_name.startswith(__prefixes)")
    tuple_ = prefixes.filled("__prefixes")
    file.module.statement("class GateLogit: ...").insert_before(prefixes.filled(_PREDICATE))
    gate.replace_all(
        f"self.model_name.startswith({tuple_})",
        "uses_bias_corrected_routing(self.model_name, self.decoder_block)",
    )
    file.module.klass("RoutedMoE").replace_all(
        f"self.config.model_name.startswith({tuple_})",
        _CONFIG_TEST,
    )
    _gate_parameter(gate)
    routed = file.module.klass("RoutedMoE").function("__init__")
    routed.expression("GateLogit(...)").arguments.add(
        "decoder_block=self.config.decoder_block", after="model_name"
    )


def _gate_parameter(gate: Block) -> None:
    init = gate.function("__init__")
    init.parameters.add(
        "decoder_block: Optional[ctypes.DecoderBlockType] = None", after="matmul_precision"
    )
    init.document(
        "decoder_block: The decoder block, which decides with the model's name how experts are selected.",
        after="matmul_precision",
    )
    init.statement("self.model_name = model_name").insert_after(
        "self.decoder_block = decoder_block"
    )


def _bias_variable(file: AnchoredFile) -> None:
    """LING2's is float32, and no parameter (before 0.2.5 that was so for one name prefix only)."""
    init = file.module.klass("GateLogit").function("__init__")
    bias = init.statement("self.bias = MoEBiasVar(...)")
    bias.insert_before(_BIAS_DTYPE)
    bias.replace_all("self.weight_dtype", "bias_dtype")
    test = bias.branch_of().test
    if test.matches('self.model_name.startswith("deepseek4")'):
        # The state of a Linen decoder holds parameters alone.
        test.replace(
            f"{test.source} or (self.decoder_block == ctypes.DecoderBlockType.LING2 and nnx_decoder)"
        )
        init.parameters.add("nnx_decoder: bool = True", after="matmul_precision")
        init.document(
            "nnx_decoder: Whether the gate is in an NNX decoder rather than a Linen one.",
            after="matmul_precision",
        )
        routed = file.module.klass("RoutedMoE").function("__init__")
        routed.expression("GateLogit(...)").arguments.add(
            'nnx_decoder=getattr(self.config, "pure_nnx_decoder", True)', after="model_name"
        )


def _weights(file: AnchoredFile) -> None:
    topk = file.module.klass("RoutedMoE").function("get_topk")
    scaled = topk.statement(
        "top_k_weights = self.deepseek_scale_weights(top_k_weights)"
    ).branch_of()
    scaled.test.collection("ctypes.DecoderBlockType.DEEPSEEK").add("ctypes.DecoderBlockType.LING2")


def _single_expert(file: AnchoredFile) -> None:
    """Weights are made to add up to 1 only where there are several."""
    scale = file.module.klass("RoutedMoE").function("deepseek_scale_weights")
    summed = scale.statement("weights /= weights.sum(-1, keepdims=True) + 1e-20").branch_of()
    summed.whole.insert_before(_SINGLE)
    if not summed.test.matches("__test and not is_single"):
        summed.test.replace(f"{summed.test.source} and not is_single")


def _shared_width(file: AnchoredFile) -> None:
    file.module.function("get_shared_expert_mlp_dim").prepend(
        "if config.decoder_block == DecoderBlockType.LING2 and config.moe_shared_expert_dim > 0:\n"
        "  return config.moe_shared_expert_dim\n"
    )


INTEGRATIONS = (
    Integration(
        Rule(
            "INT007",
            "safe",
            "Selecting experts by biased scores is asked of one function, which knows LING2 beside the model names",
            (
                "The function is true for exactly the name prefixes that the file tested before, and for LING2, whose "
                "bias is float32 and no parameter. "
                "`GateLogit` gets the decoder block for it, and LING2's weights are scaled as DeepSeek's, except that the weight "
                "of a single expert is its score."
            ),
            examples=(
                Example(
                    path=MOE,
                    before="""\
class GateLogit(nnx.Module):

  def __init__(
      self,
      model_name: str,
      matmul_precision: str = "default",
  ):
    self.model_name = model_name
    if self.model_name.startswith(("deepseek3", "kimi")):
      # Not a parameter.
      self.bias = MoEBiasVar(default_bias_init(bias_shape, self.weight_dtype))

  def __call__(self, scores):
    if self.model_name.startswith(("deepseek3", "kimi")):
      return scores, scores + self.bias
    return scores


class RoutedMoE(nnx.Module):

  def __init__(self, config):
    self.gate = GateLogit(model_name=config.model_name)

  def get_topk(self, scores, top_k_weights):
    if self.config.model_name.startswith(("deepseek3", "kimi")):
      scores = self.deepseek_routing(scores)
    if self.config.decoder_block in (ctypes.DecoderBlockType.DEEPSEEK, ctypes.DecoderBlockType.DEEPSEEK4):
      top_k_weights = self.deepseek_scale_weights(top_k_weights)
    return top_k_weights

  def deepseek_scale_weights(self, weights):
    if self.config.routed_score_func == "sigmoid":
      weights /= weights.sum(-1, keepdims=True) + 1e-20
    return weights
""",
                    after="""\
def uses_bias_corrected_routing(model_name: str, decoder_block: Optional[ctypes.DecoderBlockType]) -> bool:
  \"\"\"Whether experts are selected by their biased scores and weighted by the unbiased ones (DeepSeek-V3, Ling2).\"\"\"
  return decoder_block == ctypes.DecoderBlockType.LING2 or model_name.startswith(("deepseek3", "kimi"))


class GateLogit(nnx.Module):

  def __init__(
      self,
      model_name: str,
      matmul_precision: str = "default",
      decoder_block: Optional[ctypes.DecoderBlockType] = None,
  ):
    self.model_name = model_name
    self.decoder_block = decoder_block
    if uses_bias_corrected_routing(self.model_name, self.decoder_block):
      # Ling2 moves its bias by steps that are lost in a lower precision.
      bias_dtype = jnp.float32 if self.decoder_block == ctypes.DecoderBlockType.LING2 else self.weight_dtype
      # Not a parameter.
      self.bias = MoEBiasVar(default_bias_init(bias_shape, bias_dtype))

  def __call__(self, scores):
    if uses_bias_corrected_routing(self.model_name, self.decoder_block):
      return scores, scores + self.bias
    return scores


class RoutedMoE(nnx.Module):

  def __init__(self, config):
    self.gate = GateLogit(model_name=config.model_name, decoder_block=self.config.decoder_block)

  def get_topk(self, scores, top_k_weights):
    if uses_bias_corrected_routing(self.config.model_name, getattr(self.config, "decoder_block", None)):
      scores = self.deepseek_routing(scores)
    if self.config.decoder_block in (
        ctypes.DecoderBlockType.DEEPSEEK,
        ctypes.DecoderBlockType.DEEPSEEK4,
        ctypes.DecoderBlockType.LING2,
    ):
      top_k_weights = self.deepseek_scale_weights(top_k_weights)
    return top_k_weights

  def deepseek_scale_weights(self, weights):
    is_single = self.config.decoder_block == ctypes.DecoderBlockType.LING2 and self.num_experts_per_tok == 1
    if self.config.routed_score_func == "sigmoid" and not is_single:
      weights /= weights.sum(-1, keepdims=True) + 1e-20
    return weights
""",
                ),
            ),
        ),
        (
            Step(MOE, _predicate),
            Step(MOE, _bias_variable),
            Step(MOE, _weights),
            Step(MOE, _single_expert),
        ),
        provides=("uses_bias_corrected_routing",),
    ),
    Integration(
        Rule(
            "INT008",
            "safe",
            "A shared expert of LING2 has the width `moe_shared_expert_dim` where that is set",
            "The FLOP count asks the same function.",
            examples=(
                Example(
                    path=MAXTEXT_UTILS,
                    before="""\
def get_shared_expert_mlp_dim(config):
  \"\"\"The width.\"\"\"
  return config.moe_mlp_dim
""",
                    after="""\
def get_shared_expert_mlp_dim(config):
  \"\"\"The width.\"\"\"
  if config.decoder_block == DecoderBlockType.LING2 and config.moe_shared_expert_dim > 0:
    return config.moe_shared_expert_dim
  return config.moe_mlp_dim
""",
                ),
            ),
        ),
        (Step(MAXTEXT_UTILS, _shared_width),),
    ),
)
