"""Training: the router z-loss, and the routed bias of every MoE layer."""

from __future__ import annotations

import textwrap

from codemods.engine.anchors import AnchoredFile, AnchorError
from codemods.engine.overlay import Integration, Step
from codemods.rules.base import Example, Rule

MOE = "maxtext/layers/moe.py"
TRAIN = "maxtext/trainers/pre_train/train.py"
ACCUMULATION = "maxtext/utils/gradient_accumulation.py"

_GATE_LOSS = """
if self.z_loss_weight > 0.0 and not _initializing:
  z_loss = jnp.mean(jnp.square(jax.nn.logsumexp(output.astype(jnp.float32), axis=-1)))
  self.sow(nnx.Intermediate, "router_z_loss", self.z_loss_weight * z_loss)
"""
# Configurations that stand for MaxText's in its tests may lack fields.
_IS_LING2 = 'getattr(config, "decoder_block", None) == DecoderBlockType.LING2'
# Like Megatron-LM's, the loss is the sum over the layers.
_COLLECT = """
# get MoE router z-loss, summed over layers
router_z_loss = 0.0
if getattr(config, "router_z_loss_weight", 0.0) > 0.0:
  router_z_losses = maxtext_utils.collect_intermediates_by_suffix(intermediate_outputs, "router_z_loss")
  if router_z_losses:
    router_z_loss = jnp.sum(jnp.concatenate(router_z_losses))
    __add
"""
_COUNTS = '''
def returns_expert_counts(config) -> bool:
  """Whether an MoE layer's third value is expert counts, which the caller turns into the routed-bias update."""
  is_ling2 = getattr(config, "decoder_block", None) == ctypes.DecoderBlockType.LING2
  return is_ling2 or getattr(config, "gradient_accumulation_steps", 1) > 1
'''


def _gate_loss(file: AnchoredFile) -> None:
    gate = file.module.klass("GateLogit")
    init = gate.function("__init__")
    init.parameters.add("z_loss_weight: float = 0.0", after="matmul_precision")
    init.document(
        "z_loss_weight: Weight of the router z-loss; 0 records none.", after="matmul_precision"
    )
    init.statement("self.model_name = model_name").insert_after(
        "self.z_loss_weight = z_loss_weight"
    )
    gate.function("__call__").statement("pre_bias_logits = None").insert_after(
        _GATE_LOSS, apart=True
    )
    routed = file.module.klass("RoutedMoE").function("__init__")
    routed.expression("GateLogit(...)").arguments.add(
        "z_loss_weight=self.config.router_z_loss_weight", after="model_name"
    )


def _train_loss(file: AnchoredFile) -> None:
    loss = file.module.function("loss_fn")
    scaled = loss.has("loss = _add_aux_loss(loss, moe_lb_loss)")
    add = "loss = _add_aux_loss(loss, router_z_loss)" if scaled else "loss += router_z_loss"
    loss.statement("if config.num_experts > 1: ...").insert_after(
        _COLLECT.replace("__add", add), apart=True
    )
    loss.collection('"xent_sum"', '"moe_lb_loss"').add(
        '"router_z_loss": router_z_loss', after='"moe_lb_loss"'
    )
    step = file.module.function("train_step")
    step.statement("scalar_metrics.update(bias_metrics)").insert_before(
        'if getattr(config, "router_z_loss_weight", 0.0) > 0.0:\n'
        '  scalar_metrics["learning/router_z_loss"] = aux["router_z_loss"]\n'
    )


def _accumulated_loss(file: AnchoredFile) -> None:
    whole = file.module.function("gradient_accumulation_loss_and_grad")
    whole.statement("is_nnx = isinstance(model, nnx.Module)").insert_after(
        'use_router_z_loss = getattr(config, "router_z_loss_weight", 0.0) > 0.0'
    )
    whole.statement('__sums["moe_lb_loss"] += aux["moe_lb_loss"]').insert_after(
        "if use_router_z_loss:\n" '  acc_grad_and_loss["router_z_loss"] += aux["router_z_loss"]\n'
    )
    whole.statement("init_grad_and_loss = __value").insert_after(
        "if use_router_z_loss:\n" '  init_grad_and_loss["router_z_loss"] = 0.0\n'
    )
    whole.statement("loss = jnp.where(has_weights, loss, 0.0)").insert_before(
        "if use_router_z_loss:\n"
        '  loss += grad_and_loss["router_z_loss"] / config.gradient_accumulation_steps\n'
    )
    if whole.has("for key in __keys: ..."):
        whole.collection('"moe_lb_loss"', '"indexer_loss"', '"mtp_loss"', keyed=False).add(
            '"router_z_loss"', after='"moe_lb_loss"'
        )


def _counts(file: AnchoredFile) -> None:
    """Older versions have no counts: there the layer returns the update itself."""
    routed = file.module.klass("RoutedMoE")
    steps = 'getattr(self.config, "gradient_accumulation_steps", 1) > 1'
    try:
        routed.replace_all(steps, "returns_expert_counts(self.config)")
    except AnchorError:
        return
    file.module.statement("def calculate_load_balance_updates(): ...").insert_before(_COUNTS)


def _bias_update(file: AnchoredFile) -> None:
    step = file.module.function("train_step")
    named = 'getattr(config, "model_name", "").startswith("deepseek4")'
    step.replace_all(named, f"(\n    {named}\n    or {_IS_LING2}\n)")
    every = step.statement("flat_intermediates = traverse_util.flatten_dict(...)").branch_of()
    every.statement("max_logging.log(...)").only_if(_IS_LING2.replace("==", "!="))
    every.statement("node.bias.value = node.bias.value + jnp.array(update_val)").insert_after(
        'if getattr(config, "routed_bias_zero_mean", False):\n'
        "  node.bias.value = node.bias.value - jnp.mean(node.bias.value, axis=-1, keepdims=True)\n"
    )
    file.add_import("from maxtext.common.common_types import DecoderBlockType")


INTEGRATIONS = (
    Integration(
        Rule(
            "INT012",
            "safe",
            "The router z-loss is recorded by every gate, summed over the layers and added to the loss",
            "Where `router_z_loss_weight` is 0, nothing is computed or recorded. Gradient accumulation carries it.",
            examples=(
                Example(
                    path=MOE,
                    before="""\
class GateLogit(nnx.Module):

  def __init__(self, model_name: str, matmul_precision: str = "default"):
    self.model_name = model_name

  def __call__(self, inputs, _initializing=False):
    output = self.dot(inputs)
    pre_bias_logits = None
    return output, pre_bias_logits


class RoutedMoE(nnx.Module):

  def __init__(self, config):
    self.gate = GateLogit(model_name=config.model_name)
""",
                    after="""\
class GateLogit(nnx.Module):

  def __init__(self, model_name: str, matmul_precision: str = "default", z_loss_weight: float = 0.0):
    self.model_name = model_name
    self.z_loss_weight = z_loss_weight

  def __call__(self, inputs, _initializing=False):
    output = self.dot(inputs)
    pre_bias_logits = None

    if self.z_loss_weight > 0.0 and not _initializing:
      z_loss = jnp.mean(jnp.square(jax.nn.logsumexp(output.astype(jnp.float32), axis=-1)))
      self.sow(nnx.Intermediate, "router_z_loss", self.z_loss_weight * z_loss)
    return output, pre_bias_logits


class RoutedMoE(nnx.Module):

  def __init__(self, config):
    self.gate = GateLogit(model_name=config.model_name, z_loss_weight=self.config.router_z_loss_weight)
""",
                ),
                Example(
                    path=TRAIN,
                    before="""\
def loss_fn(model, config):
  moe_lb_loss = 0.0
  if config.num_experts > 1:
    moe_lb_loss = jnp.mean(collect("moe_lb_loss"))
    loss += moe_lb_loss
  aux = {
      "xent_sum": xent_sum,
      "moe_lb_loss": moe_lb_loss,
  }
  return loss, aux


def train_step(model, config, aux):
  scalar_metrics.update(bias_metrics)
""",
                    after=(
                        """\
def loss_fn(model, config):
  moe_lb_loss = 0.0
  if config.num_experts > 1:
    moe_lb_loss = jnp.mean(collect("moe_lb_loss"))
    loss += moe_lb_loss

"""
                        + textwrap.indent(_COLLECT.strip("\n"), "  ").replace(
                            "__add", "loss += router_z_loss"
                        )
                        + """
  aux = {
      "xent_sum": xent_sum,
      "moe_lb_loss": moe_lb_loss,
      "router_z_loss": router_z_loss,
  }
  return loss, aux


def train_step(model, config, aux):
  if getattr(config, "router_z_loss_weight", 0.0) > 0.0:
    scalar_metrics["learning/router_z_loss"] = aux["router_z_loss"]
  scalar_metrics.update(bias_metrics)
"""
                    ),
                ),
                Example(
                    path=ACCUMULATION,
                    before="""\
def gradient_accumulation_loss_and_grad(model, config):
  is_nnx = isinstance(model, nnx.Module)

  def accumulate_gradient(acc_grad_and_loss, data):
    acc_grad_and_loss["moe_lb_loss"] += aux["moe_lb_loss"]
    return acc_grad_and_loss, aux

  init_grad_and_loss = {"loss": 0.0, "moe_lb_loss": 0.0}
  grad_and_loss, aux = jax.lax.scan(accumulate_gradient, init_grad_and_loss, data)
  loss = jnp.where(has_weights, loss, 0.0)
  for key in ("moe_lb_loss", "indexer_loss", "mtp_loss"):
    aux[key] = aux[key] / config.gradient_accumulation_steps
  return loss, aux
""",
                    after="""\
def gradient_accumulation_loss_and_grad(model, config):
  is_nnx = isinstance(model, nnx.Module)
  use_router_z_loss = getattr(config, "router_z_loss_weight", 0.0) > 0.0

  def accumulate_gradient(acc_grad_and_loss, data):
    acc_grad_and_loss["moe_lb_loss"] += aux["moe_lb_loss"]
    if use_router_z_loss:
      acc_grad_and_loss["router_z_loss"] += aux["router_z_loss"]
    return acc_grad_and_loss, aux

  init_grad_and_loss = {"loss": 0.0, "moe_lb_loss": 0.0}
  if use_router_z_loss:
    init_grad_and_loss["router_z_loss"] = 0.0
  grad_and_loss, aux = jax.lax.scan(accumulate_gradient, init_grad_and_loss, data)
  if use_router_z_loss:
    loss += grad_and_loss["router_z_loss"] / config.gradient_accumulation_steps
  loss = jnp.where(has_weights, loss, 0.0)
  for key in ("moe_lb_loss", "router_z_loss", "indexer_loss", "mtp_loss"):
    aux[key] = aux[key] / config.gradient_accumulation_steps
  return loss, aux
""",
                ),
            ),
        ),
        (
            Step(MOE, _gate_loss),
            Step(TRAIN, _train_loss),
            Step(ACCUMULATION, _accumulated_loss),
        ),
    ),
    Integration(
        Rule(
            "INT013",
            "safe",
            "Every MoE layer of LING2 gets its own update of the routed bias, scanned or not",
            (
                "The layers return expert counts, which `models/ling2.py` turns into updates; the trainer adds each "
                "to the bias beside which it was recorded, and takes the mean off where `routed_bias_zero_mean` is set."
            ),
            examples=(
                Example(
                    path=TRAIN,
                    before="""\
from maxtext.common.goodput import record_goodput


def train_step(config, aux, node):
  if getattr(config, "model_name", "").startswith("deepseek4"):
    max_logging.log("updating")
    flat_intermediates = traverse_util.flatten_dict(aux.get("outputs"))
    for update_val in flat_intermediates:
      node.bias.value = node.bias.value + jnp.array(update_val)
""",
                    after="""\
from maxtext.common.common_types import DecoderBlockType
from maxtext.common.goodput import record_goodput


def train_step(config, aux, node):
  if (
      getattr(config, "model_name", "").startswith("deepseek4")
      or getattr(config, "decoder_block", None) == DecoderBlockType.LING2
  ):
    if getattr(config, "decoder_block", None) != DecoderBlockType.LING2:
      max_logging.log("updating")
    flat_intermediates = traverse_util.flatten_dict(aux.get("outputs"))
    for update_val in flat_intermediates:
      node.bias.value = node.bias.value + jnp.array(update_val)
      if getattr(config, "routed_bias_zero_mean", False):
        node.bias.value = node.bias.value - jnp.mean(node.bias.value, axis=-1, keepdims=True)
""",
                ),
                Example(
                    path=MOE,
                    before="""\
def calculate_load_balance_updates(top_k_indices):
  return top_k_indices


class RoutedMoE(nnx.Module):

  def dense_matmul(self, top_k_indices):
    if getattr(self.config, "gradient_accumulation_steps", 1) > 1:
      return calculate_expert_counts(top_k_indices)
    return calculate_load_balance_updates(top_k_indices)
""",
                    after='''\
def returns_expert_counts(config) -> bool:
  """Whether an MoE layer's third value is expert counts, which the caller turns into the routed-bias update."""
  is_ling2 = getattr(config, "decoder_block", None) == ctypes.DecoderBlockType.LING2
  return is_ling2 or getattr(config, "gradient_accumulation_steps", 1) > 1


def calculate_load_balance_updates(top_k_indices):
  return top_k_indices


class RoutedMoE(nnx.Module):

  def dense_matmul(self, top_k_indices):
    if returns_expert_counts(self.config):
      return calculate_expert_counts(top_k_indices)
    return calculate_load_balance_updates(top_k_indices)
''',
                ),
            ),
        ),
        (Step(MOE, _counts), Step(TRAIN, _bias_update)),
    ),
)
