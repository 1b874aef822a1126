"""Checkpoints: Ling2 for the conversion tools, and what a checkpoint records of its model."""

from __future__ import annotations

import textwrap

from codemods.engine.anchors import AnchoredFile
from codemods.engine.overlay import Integration, Step
from codemods.rules.base import Example, Rule
from target.integration.config import MODEL_NAMES

GLOBALS = "maxtext/utils/globals.py"
CONVERSION = "maxtext/checkpoint_conversion"
PARAM_MAPPING = f"{CONVERSION}/utils/param_mapping.py"
HF_SHAPE = f"{CONVERSION}/utils/hf_shape.py"
HF_MODEL_CONFIGS = f"{CONVERSION}/utils/hf_model_configs.py"
CONVERSION_UTILS = f"{CONVERSION}/utils/utils.py"
TO_MAXTEXT = f"{CONVERSION}/to_maxtext.py"
TENSOR_HANDLING = f"{CONVERSION}/utils/tensor_handling.py"
LOAD_DYNAMIC = f"{CONVERSION}/utils/load_dynamic.py"
TO_HUGGINGFACE = f"{CONVERSION}/to_huggingface.py"
CHECKPOINTING = "maxtext/common/checkpointing.py"
MODEL_CREATION = "maxtext/utils/model_creation_utils.py"
MAXTEXT_UTILS = "maxtext/utils/maxtext_utils.py"

_UTILS = "maxtext.checkpoint_conversion.utils"
_MAPPING = f"from {_UTILS} import ling2_mapping"
_IDS = {"ling2": "local/ling2", "ling2-1t": "inclusionAI/Ling-2.5-1T"}
_CHECK = '''
def check_ling2_record(checkpoint_path, config):
  """Refuses a checkpoint that records another Ling2 model than the config asks for.

  Args:
    checkpoint_path: Path to the checkpoint directory, or to the items in it.
    config: MaxText config, of any model.
  """
  if not checkpoint_path or getattr(config, "decoder_block", None) != DecoderBlockType.LING2:
    return
  root = str(checkpoint_path).rstrip("/").removesuffix("/items")
  ling2_record.check(load_checkpoint_metadata(root), config, root)
'''

_CHECK_BIAS = '''
def refuse_without_routing_bias(restored, abstract_nnx_state, config):
  """Refuses a checkpoint of weights alone in place of a full state, whose routing bias would be a new one in silence.

  Args:
    restored: what was restored, in the layout on disk.
    abstract_nnx_state: the state that it is for.
    config: MaxText config, of any model.
  """
  if getattr(config, "decoder_block", None) != DecoderBlockType.LING2:
    return
  for path, variable in nnx.to_flat_state(abstract_nnx_state):
    if type(variable).__name__ == "MoEBiasVar":
      leaf = restored.get("nnx_aux")
      for key in path:
        leaf = leaf.get(key) if isinstance(leaf, dict) else None
      if leaf is None or isinstance(leaf, jax.ShapeDtypeStruct):
        name = "/".join(map(str, path))
        raise ValueError(
            f"The Ling2 checkpoint has weights alone, {name} not in a full state: name it in load_parameters_path."
        )
'''

_WITH_BIAS = '''
def _with_routing_bias(params, abstract_unboxed_pre_state, config):
  """Returns the parameters, and for Ling2 the routing bias with them."""
  is_nnx = isinstance(abstract_unboxed_pre_state, nnx.State)
  if not is_nnx or getattr(config, "decoder_block", None) != DecoderBlockType.LING2:
    return params
  from maxtext.layers.moe import MoEBiasVar  # pylint: disable=import-outside-toplevel

  return nnx.split_state(abstract_unboxed_pre_state.model, (nnx.Param, MoEBiasVar), ...)[0]
'''
_STORED = """
has_routing_bias = is_nnx and any(
    type(variable).__name__ == "MoEBiasVar" for _, variable in nnx.to_flat_state(abstract_unboxed_params)
)
if has_routing_bias and restore_key == "params":
  stored_collections = ckptr.metadata(epath.Path(load_parameters_from_path)).item_metadata.tree[restore_key]
  params_collection = checkpoint_collections.by_collection(want, stored_collections)
"""


def _ids(file: AnchoredFile) -> None:
    ids = file.module.assignment("HF_IDS")
    for name in MODEL_NAMES:
        ids.add(f'"{name}": "{_IDS[name]}"')


def _mappings(file: AnchoredFile) -> None:
    for registry, function in (
        ("PARAM_MAPPING", "LING2_MAXTEXT_TO_HF_PARAM_MAPPING"),
        ("HOOK_FNS", "LING2_MAXTEXT_TO_HF_PARAM_HOOK_FN"),
    ):
        entries = file.module.assignment(registry)
        for name in MODEL_NAMES:
            entries.add(f'"{name}": {function}')
        file.add_import(f"from {_UTILS}.ling2_mapping import {function}")


def _shapes(file: AnchoredFile) -> None:
    shapes = file.module.assignment("HF_SHAPE")
    for name in MODEL_NAMES:
        shapes.add(f'"{name}": ling2_mapping.LING2_HF_WEIGHTS_TO_SHAPE')
    # The file imports nothing else.
    file.module.prepend(_MAPPING)


def _hf_configs(file: AnchoredFile) -> None:
    configs = file.module.assignment("HF_MODEL_CONFIGS")
    for name in MODEL_NAMES:
        configs.add(f'"{name}": ling2_hf_config.of_model("{name}")')
    file.add_import(f"from {_UTILS} import ling2_hf_config")


def _stacking(file: AnchoredFile, chooses: str = "_get_hf_loading_function") -> None:
    build = file.module.function("_build_single_axis_stacked_tensor")
    build.parameters.add('mt_key: str = ""', after="config")
    build.statement("mt_slice_shape_list = list(target_shape)").insert_before(
        "axis_to_stack = ling2_mapping.stack_axis(mt_key, config, axis_to_stack)"
    )
    chosen = file.module.function(chooses)
    chosen.parameters.add('mt_key: str = ""', after="config")
    chosen.expression("partial(_build_single_axis_stacked_tensor, ...)").arguments.add("mt_key")
    file.add_import(_MAPPING)


def _stacking_on_load(file: AnchoredFile) -> None:
    _stacking(file, "get_hf_loading_function")


def _loading(file: AnchoredFile) -> None:
    transform = file.module.function("transform_hf_state_to_mt_state")
    transform.statement("check_name = mt_name").insert_before(
        "mt_name = ling2_mapping.weight_name(mt_key, maxtext_config, mt_name)"
    )
    transform.expression("get_hf_loading_function(...)").arguments.add("mt_key")
    file.add_import(_MAPPING)


def _unstacking(file: AnchoredFile) -> None:
    process = file.module.function("process_maxtext_param")
    loop = process.statement("for i, hf_path in enumerate(hf_target_paths): ...")
    loop.insert_before(
        "axis_to_slice = ling2_mapping.stack_axis(maxtext_param_key, maxtext_config, axis_to_slice)"
    )
    file.add_import(_MAPPING)


def _architecture(file: AnchoredFile) -> None:
    validate = file.module.function("_validate_or_update_architecture")
    validate.statement("mismatches = []").insert_before(
        "attributes_to_check.extend(ling2_mapping.architecture(max_config))\n"
        "if override:\n"
        "  ling2_mapping.update_hf_config(hf_config, max_config)\n"
    )
    found = "filtered_map_keys = validate_and_filter_param_map_keys(param_map, state_keys)"
    file.module.function("main").statement(found).insert_after(
        "ling2_mapping.refuse_missing(param_map, filtered_map_keys, config)"
    )
    file.add_import(_MAPPING)


def _record(file: AnchoredFile) -> None:
    file.module.statement("def load_checkpoint_metadata(): ...").insert_after(_CHECK)
    file.module.statement("def _restored_linen_to_nnx(): ...").insert_before(_CHECK_BIAS)
    restored = file.module.function("_restored_linen_to_nnx")
    restored.statement("return _linen_items_to_nnx(...)").insert_before(
        "refuse_without_routing_bias(restored_linen, abstract_nnx_state, config)"
    )
    saved = file.module.function("save_checkpoint")
    saved.statement('if hasattr(config, "scan_layers"): ...').insert_after(
        'if getattr(config, "decoder_block", None) == DecoderBlockType.LING2:\n'
        "  custom_metadata.update(ling2_record.of_config(config))\n"
    )
    load = file.module.function("load_state_if_possible")
    load.branch("step is not None").prepend(
        'if getattr(maxtext_config, "decoder_block", None) == DecoderBlockType.LING2:\n'
        "  check_ling2_record(checkpoint_manager.directory / str(step), maxtext_config)\n"
    )
    load.statement("restored_params = load_params_from_path(...)").insert_before(
        "check_ling2_record(load_parameters_from_path, maxtext_config)"
    )
    load.statement("restored_state = _load_full_state_from_path(...)").insert_before(
        "check_ling2_record(load_full_state_from_path, maxtext_config)"
    )
    file.add_import("from maxtext.common import ling2_record")
    file.add_import("from maxtext.common.common_types import DecoderBlockType")


def _check_decoding(file: AnchoredFile) -> None:
    setup = file.module.function("setup_decode_state")
    setup.statement("unboxed_abstract_state, state_mesh_annotations, _ = __call").insert_before(
        "checkpointing.check_ling2_record(config.load_parameters_path, config)"
    )


def _check_pretrained(file: AnchoredFile) -> None:
    load = file.module.function("from_pretrained")
    load.statement("config = verify_and_sync_scan_layers(config)").insert_after(
        "checkpointing.check_ling2_record(config.load_parameters_path, config)"
    )


def _pretrained_collections(file: AnchoredFile) -> None:
    load = file.module.function("from_pretrained")
    load.statement('restore_args = {"params": {"params": __args}}').insert_after(
        'stored_collections = metadata.item_metadata.tree["params"]\n'
        "item_to_restore, restore_args = (\n"
        '    {"params": checkpoint_collections.by_collection(tree["params"]["params"], stored_collections)}\n'
        "    for tree in (item_to_restore, restore_args)\n"
        ")\n"
    )
    load.replace_all(
        'restored["params"]["params"]', 'checkpoint_collections.merged(restored["params"])'
    )
    file.add_import("from maxtext.common import checkpoint_collections")


def _bias_to_maxtext(file: AnchoredFile) -> None:
    """Up to 0.2.4 one collection was converted."""
    info = file.module.function("get_maxtext_model_info")
    all_of_them = "maxtext_utils.get_abstract_param(maxtext_model_flax, config)"
    if not info.has(f"abstract_params_tree = {all_of_them}"):
        info.replace_all(
            f'{all_of_them}["params"]', f"ling2_mapping.abstract_weights({all_of_them}, config)"
        )


def _bias_loaded(file: AnchoredFile) -> None:
    """Up to 0.2.4 one collection was loaded."""
    weights = file.module.function("_abstract_params")
    only = "nnx.split_state(abstract_unboxed_pre_state.model, nnx.Param, ...)[0]"
    if not weights.has(f"return {only}") and not file.module.has("def _with_routing_bias(): ..."):
        return
    file.module.statement("def _abstract_params(): ...").insert_after(_WITH_BIAS)
    file.module.function("load_state_if_possible").replace_all(
        "_abstract_params(abstract_unboxed_pre_state)",
        "_with_routing_bias(_abstract_params(abstract_unboxed_pre_state), abstract_unboxed_pre_state, maxtext_config)",
    )
    load = file.module.function("load_params_from_path")
    load.statement(
        "restore_args = ocp.checkpoint_utils.construct_restore_args(params_collection)"
    ).insert_before(_STORED)
    load.replace_all(
        'restored_collection["params"] if is_nnx else restored_collection',
        "checkpoint_collections.merged(restored_collection) if is_nnx else restored_collection",
    )
    file.add_import("from maxtext.common import checkpoint_collections")


INTEGRATIONS = (
    Integration(
        Rule(
            "INT017",
            "safe",
            "The conversion tools know the models `ling2` and `ling2-1t`: ids, names, hooks, shapes and HF configs",
            examples=(
                Example(
                    path=GLOBALS,
                    before="""\
HF_IDS = {
    "default": "tokenizers/llama2",
}
""",
                    after="""\
HF_IDS = {
    "default": "tokenizers/llama2",
    "ling2": "local/ling2",
    "ling2-1t": "inclusionAI/Ling-2.5-1T",
}
""",
                ),
                Example(
                    path=PARAM_MAPPING,
                    before="""\
import numpy as np

PARAM_MAPPING = {
    "gemma2-2b": GEMMA2_MAXTEXT_TO_HF_PARAM_MAPPING,
}
HOOK_FNS = {
    "gemma2-2b": GEMMA2_MAXTEXT_TO_HF_PARAM_HOOK_FN,
}
""",
                    after="""\
import numpy as np
from maxtext.checkpoint_conversion.utils.ling2_mapping import LING2_MAXTEXT_TO_HF_PARAM_MAPPING
from maxtext.checkpoint_conversion.utils.ling2_mapping import LING2_MAXTEXT_TO_HF_PARAM_HOOK_FN

PARAM_MAPPING = {
    "gemma2-2b": GEMMA2_MAXTEXT_TO_HF_PARAM_MAPPING,
    "ling2": LING2_MAXTEXT_TO_HF_PARAM_MAPPING,
    "ling2-1t": LING2_MAXTEXT_TO_HF_PARAM_MAPPING,
}
HOOK_FNS = {
    "gemma2-2b": GEMMA2_MAXTEXT_TO_HF_PARAM_HOOK_FN,
    "ling2": LING2_MAXTEXT_TO_HF_PARAM_HOOK_FN,
    "ling2-1t": LING2_MAXTEXT_TO_HF_PARAM_HOOK_FN,
}
""",
                ),
                Example(
                    path=HF_SHAPE,
                    before="""\
'''Shapes.'''


def GEMMA3_HF_WEIGHTS_TO_SHAPE(config):
  return {}


HF_SHAPE = {
    "gemma3-4b": GEMMA3_HF_WEIGHTS_TO_SHAPE,
}
""",
                    after="""\
'''Shapes.'''
from maxtext.checkpoint_conversion.utils import ling2_mapping


def GEMMA3_HF_WEIGHTS_TO_SHAPE(config):
  return {}


HF_SHAPE = {
    "gemma3-4b": GEMMA3_HF_WEIGHTS_TO_SHAPE,
    "ling2": ling2_mapping.LING2_HF_WEIGHTS_TO_SHAPE,
    "ling2-1t": ling2_mapping.LING2_HF_WEIGHTS_TO_SHAPE,
}
""",
                ),
                Example(
                    path=HF_MODEL_CONFIGS,
                    before="""\
import transformers

HF_MODEL_CONFIGS = {
    "gemma2-2b": gemma2_2b_config,
}
""",
                    after="""\
import transformers
from maxtext.checkpoint_conversion.utils import ling2_hf_config

HF_MODEL_CONFIGS = {
    "gemma2-2b": gemma2_2b_config,
    "ling2": ling2_hf_config.of_model("ling2"),
    "ling2-1t": ling2_hf_config.of_model("ling2-1t"),
}
""",
                ),
            ),
        ),
        (
            Step(GLOBALS, _ids),
            Step(PARAM_MAPPING, _mappings),
            Step(HF_SHAPE, _shapes),
            Step(HF_MODEL_CONFIGS, _hf_configs),
        ),
    ),
    Integration(
        Rule(
            "INT018",
            "safe",
            "The conversion tools ask Ling2's map on which axis a list of tensors is stacked",
            (
                "A scanned LING2 has stacked cycles beside single layers, whose experts are stacked too; `scan_layers` "
                "alone does not tell them apart. Other models get the axis that they had."
            ),
            examples=(
                Example(
                    path=TO_MAXTEXT,
                    before="""\
from maxtext.models import models


def _build_single_axis_stacked_tensor(hf_source_keys, tensor_getter_fn, target_shape, config):
  axis_to_stack = config.param_scan_axis if config.scan_layers else 0

  # The slice.
  mt_slice_shape_list = list(target_shape)
  return mt_slice_shape_list


def _get_hf_loading_function(hf_source_keys_or_key, tensor_getter, shape, config, mt_key=""):
  return partial(
      _build_single_axis_stacked_tensor,
      hf_source_keys_or_key,
      tensor_getter,
      shape,
      config,
  )
""",
                    after="""\
from maxtext.checkpoint_conversion.utils import ling2_mapping
from maxtext.models import models


def _build_single_axis_stacked_tensor(hf_source_keys, tensor_getter_fn, target_shape, config, mt_key: str = ""):
  axis_to_stack = config.param_scan_axis if config.scan_layers else 0

  axis_to_stack = ling2_mapping.stack_axis(mt_key, config, axis_to_stack)
  # The slice.
  mt_slice_shape_list = list(target_shape)
  return mt_slice_shape_list


def _get_hf_loading_function(hf_source_keys_or_key, tensor_getter, shape, config, mt_key=""):
  return partial(
      _build_single_axis_stacked_tensor,
      hf_source_keys_or_key,
      tensor_getter,
      shape,
      config,
      mt_key,
  )
""",
                ),
                Example(
                    path=TENSOR_HANDLING,
                    before="""\
import numpy as np


def _build_single_axis_stacked_tensor(hf_source_keys, tensor_getter_fn, target_leaf, config):
  axis_to_stack = config.param_scan_axis if config.scan_layers else 0

  mt_slice_shape_list = list(target_shape)
  return mt_slice_shape_list


def get_hf_loading_function(hf_source_keys_or_key, tensor_getter, mt_target_leaf, config):
  return partial(_build_single_axis_stacked_tensor, hf_source_keys_or_key, tensor_getter, mt_target_leaf, config)
""",
                    after="""\
import numpy as np
from maxtext.checkpoint_conversion.utils import ling2_mapping


def _build_single_axis_stacked_tensor(hf_source_keys, tensor_getter_fn, target_leaf, config, mt_key: str = ""):
  axis_to_stack = config.param_scan_axis if config.scan_layers else 0

  axis_to_stack = ling2_mapping.stack_axis(mt_key, config, axis_to_stack)
  mt_slice_shape_list = list(target_shape)
  return mt_slice_shape_list


def get_hf_loading_function(hf_source_keys_or_key, tensor_getter, mt_target_leaf, config, mt_key: str = ""):
  return partial(_build_single_axis_stacked_tensor, hf_source_keys_or_key, tensor_getter, mt_target_leaf, config, mt_key)
""",
                ),
                Example(
                    path=LOAD_DYNAMIC,
                    before="""\
from maxtext.checkpoint_conversion.utils import tensor_handling


def transform_hf_state_to_mt_state(flat_target, param_map_mt_to_hf, maxtext_config):
  for mt_key, hf_source in param_map_mt_to_hf.items():
    mt_name = mt_key.replace("params-", "").replace("-", ".")
    check_name = mt_name
    load_fn = get_hf_loading_function(hf_source, flat_target[check_name], maxtext_config)
    load_fn()
""",
                    after="""\
from maxtext.checkpoint_conversion.utils import ling2_mapping, tensor_handling


def transform_hf_state_to_mt_state(flat_target, param_map_mt_to_hf, maxtext_config):
  for mt_key, hf_source in param_map_mt_to_hf.items():
    mt_name = mt_key.replace("params-", "").replace("-", ".")
    mt_name = ling2_mapping.weight_name(mt_key, maxtext_config, mt_name)
    check_name = mt_name
    load_fn = get_hf_loading_function(hf_source, flat_target[check_name], maxtext_config, mt_key)
    load_fn()
""",
                ),
                Example(
                    path=CONVERSION_UTILS,
                    before="""\
from maxtext.utils import max_logging


def process_maxtext_param(maxtext_param_key, weight, hf_target_paths, maxtext_config):
  if maxtext_config.scan_layers:
    axis_to_slice = maxtext_config.param_scan_axis
  else:
    axis_to_slice = 0
  for i, hf_path in enumerate(hf_target_paths):
    emit(hf_path, weight, i, axis_to_slice)
""",
                    after="""\
from maxtext.checkpoint_conversion.utils import ling2_mapping
from maxtext.utils import max_logging


def process_maxtext_param(maxtext_param_key, weight, hf_target_paths, maxtext_config):
  if maxtext_config.scan_layers:
    axis_to_slice = maxtext_config.param_scan_axis
  else:
    axis_to_slice = 0
  axis_to_slice = ling2_mapping.stack_axis(maxtext_param_key, maxtext_config, axis_to_slice)
  for i, hf_path in enumerate(hf_target_paths):
    emit(hf_path, weight, i, axis_to_slice)
""",
                ),
            ),
        ),
        (
            Step(TO_MAXTEXT, _stacking),
            Step(CONVERSION_UTILS, _unstacking),
            Step(TENSOR_HANDLING, _stacking_on_load, optional=True),
            Step(LOAD_DYNAMIC, _loading, optional=True),
        ),
    ),
    Integration(
        Rule(
            "INT019",
            "safe",
            "`to_huggingface` compares or overrides all of Ling2's architecture, and refuses a checkpoint that lacks a parameter",
            (
                "What the tool compares for every model leaves out the layer pattern. A parameter that the checkpoint "
                "lacks (the routing bias, which a parameter-only checkpoint of upstream does not keep) would be left out "
                "with a warning."
            ),
            examples=(
                Example(
                    path=TO_HUGGINGFACE,
                    before="""\
from maxtext.utils import max_logging


def _validate_or_update_architecture(hf_config, max_config, override):
  attributes_to_check = [("hidden_size", "emb_dim")]
  mismatches = []
  return mismatches


def main(argv):
  filtered_map_keys = validate_and_filter_param_map_keys(param_map, state_keys)
  convert(filtered_map_keys)
""",
                    after="""\
from maxtext.checkpoint_conversion.utils import ling2_mapping
from maxtext.utils import max_logging


def _validate_or_update_architecture(hf_config, max_config, override):
  attributes_to_check = [("hidden_size", "emb_dim")]
  attributes_to_check.extend(ling2_mapping.architecture(max_config))
  if override:
    ling2_mapping.update_hf_config(hf_config, max_config)
  mismatches = []
  return mismatches


def main(argv):
  filtered_map_keys = validate_and_filter_param_map_keys(param_map, state_keys)
  ling2_mapping.refuse_missing(param_map, filtered_map_keys, config)
  convert(filtered_map_keys)
""",
                ),
            ),
        ),
        (Step(TO_HUGGINGFACE, _architecture),),
    ),
    Integration(
        Rule(
            "INT020",
            "safe",
            "A checkpoint of LING2 records its slope convention and tail rule, and is refused where the config says otherwise",
            "The record is in the checkpoint's custom metadata; a checkpoint without one is taken as it is.",
            examples=(
                Example(
                    path=CHECKPOINTING,
                    before="""\
from maxtext.common import grain_utility


def _restored_linen_to_nnx(restored_linen, abstract_nnx_state, config=None):
  return _linen_items_to_nnx(restored_linen, abstract_nnx_state)


def load_state_if_possible(checkpoint_manager, load_parameters_from_path, load_full_state_from_path, maxtext_config):
  if checkpoint_manager is not None:
    step = latest_step(checkpoint_manager)
    if step is not None:
      return checkpoint_manager.restore(step)
  if load_parameters_from_path != "":
    restored_params = load_params_from_path(load_parameters_from_path)
    return None, restored_params
  restored_state = _load_full_state_from_path(load_full_state_from_path)
  return restored_state, None


def load_checkpoint_metadata(checkpoint_dir_path):
  return {}


def save_checkpoint(checkpoint_manager, step, state, config=None):
  custom_metadata = {}
  if config:
    if hasattr(config, "scan_layers"):
      custom_metadata["scan_layers"] = config.scan_layers
  return checkpoint_manager.save(step, state, custom_metadata)
""",
                    after="""\
from maxtext.common import grain_utility, ling2_record
from maxtext.common.common_types import DecoderBlockType


"""
                    + _CHECK_BIAS.strip("\n")
                    + """


def _restored_linen_to_nnx(restored_linen, abstract_nnx_state, config=None):
  refuse_without_routing_bias(restored_linen, abstract_nnx_state, config)
  return _linen_items_to_nnx(restored_linen, abstract_nnx_state)


def load_state_if_possible(checkpoint_manager, load_parameters_from_path, load_full_state_from_path, maxtext_config):
  if checkpoint_manager is not None:
    step = latest_step(checkpoint_manager)
    if step is not None:
      if getattr(maxtext_config, "decoder_block", None) == DecoderBlockType.LING2:
        check_ling2_record(checkpoint_manager.directory / str(step), maxtext_config)
      return checkpoint_manager.restore(step)
  if load_parameters_from_path != "":
    check_ling2_record(load_parameters_from_path, maxtext_config)
    restored_params = load_params_from_path(load_parameters_from_path)
    return None, restored_params
  check_ling2_record(load_full_state_from_path, maxtext_config)
  restored_state = _load_full_state_from_path(load_full_state_from_path)
  return restored_state, None


def load_checkpoint_metadata(checkpoint_dir_path):
  return {}


"""
                    + _CHECK.strip("\n")
                    + """


def save_checkpoint(checkpoint_manager, step, state, config=None):
  custom_metadata = {}
  if config:
    if hasattr(config, "scan_layers"):
      custom_metadata["scan_layers"] = config.scan_layers
    if getattr(config, "decoder_block", None) == DecoderBlockType.LING2:
      custom_metadata.update(ling2_record.of_config(config))
  return checkpoint_manager.save(step, state, custom_metadata)
""",
                ),
                Example(
                    path=MODEL_CREATION,
                    before="""\
def from_pretrained(config):
  config = verify_and_sync_scan_layers(config)
  return config
""",
                    after="""\
def from_pretrained(config):
  config = verify_and_sync_scan_layers(config)
  checkpointing.check_ling2_record(config.load_parameters_path, config)
  return config
""",
                ),
                Example(
                    path=MAXTEXT_UTILS,
                    before="""\
def setup_decode_state(config, mesh, checkpoint_manager, init_state_fn):
  unboxed_abstract_state, state_mesh_annotations, _ = get_abstract_state(config, mesh, init_state_fn, False)
  return load(unboxed_abstract_state), state_mesh_annotations
""",
                    after="""\
def setup_decode_state(config, mesh, checkpoint_manager, init_state_fn):
  checkpointing.check_ling2_record(config.load_parameters_path, config)
  unboxed_abstract_state, state_mesh_annotations, _ = get_abstract_state(config, mesh, init_state_fn, False)
  return load(unboxed_abstract_state), state_mesh_annotations
""",
                ),
            ),
        ),
        (
            Step(CHECKPOINTING, _record),
            Step(MODEL_CREATION, _check_pretrained),
            Step(MAXTEXT_UTILS, _check_decoding),
        ),
    ),
    Integration(
        Rule(
            "INT021",
            "safe",
            "`from_pretrained` restores weights from the collection of the checkpoint that holds them",
            (
                "The routing bias is in a collection of its own; it was looked for among the parameters, and its array "
                "was left deleted. What is among the parameters is restored as before."
            ),
            examples=(
                Example(
                    path=MODEL_CREATION,
                    before="""\
from maxtext.common import checkpointing


def from_pretrained(metadata, ckptr):
  if "params" in metadata.item_metadata.tree:
    item_to_restore = {"params": {"params": target_for_restore}}
    restore_args = {
        "params": {
            "params": construct_restore_args(target_for_restore)
        }
    }
  restored = ckptr.restore(item_to_restore, restore_args)
  checkpoint = restored["params"]["params"]
  return checkpoint
""",
                    after="""\
from maxtext.common import checkpoint_collections, checkpointing


def from_pretrained(metadata, ckptr):
  if "params" in metadata.item_metadata.tree:
    item_to_restore = {"params": {"params": target_for_restore}}
    restore_args = {
        "params": {
            "params": construct_restore_args(target_for_restore)
        }
    }
    stored_collections = metadata.item_metadata.tree["params"]
    item_to_restore, restore_args = (
        {"params": checkpoint_collections.by_collection(tree["params"]["params"], stored_collections)}
        for tree in (item_to_restore, restore_args)
    )
  restored = ckptr.restore(item_to_restore, restore_args)
  checkpoint = checkpoint_collections.merged(restored["params"])
  return checkpoint
""",
                ),
            ),
        ),
        (Step(MODEL_CREATION, _pretrained_collections),),
    ),
    Integration(
        Rule(
            "INT022",
            "safe",
            "Up to 0.2.4, which convert and load one collection, Ling2's routing bias goes with the parameters",
            (
                "`to_maxtext` writes it among them. Loading parameters finds it there, or in the collection of its own "
                "that newer versions and `ling2-migrate ckpt` write."
            ),
            examples=(
                Example(
                    path=TO_MAXTEXT,
                    before="""\
def get_maxtext_model_info(config):
  abstract_params_tree = maxtext_utils.get_abstract_param(maxtext_model_flax, config)["params"]
  return abstract_params_tree
""",
                    after="""\
def get_maxtext_model_info(config):
  abstract_params_tree = ling2_mapping.abstract_weights(maxtext_utils.get_abstract_param(maxtext_model_flax, config), config)
  return abstract_params_tree
""",
                ),
                Example(
                    path=CHECKPOINTING,
                    before="""\
from maxtext.common import grain_utility


def _abstract_params(abstract_unboxed_pre_state):
  if isinstance(abstract_unboxed_pre_state, nnx.State):
    return nnx.split_state(abstract_unboxed_pre_state.model, nnx.Param, ...)[0]
  return abstract_unboxed_pre_state.params


def load_state_if_possible(abstract_unboxed_pre_state, maxtext_config):
  params = _abstract_params(abstract_unboxed_pre_state)
  return load_params_from_path(params)


def load_params_from_path(params, restore_key):
  params_collection = {"params": want} if is_nnx else want
  restore_args = ocp.checkpoint_utils.construct_restore_args(params_collection)
  restored_collection = ckptr.restore(params_collection, restore_args)
  restored_weights = restored_collection["params"] if is_nnx else restored_collection
  return restored_weights
""",
                    after=(
                        """\
from maxtext.common import checkpoint_collections, grain_utility


def _abstract_params(abstract_unboxed_pre_state):
  if isinstance(abstract_unboxed_pre_state, nnx.State):
    return nnx.split_state(abstract_unboxed_pre_state.model, nnx.Param, ...)[0]
  return abstract_unboxed_pre_state.params


"""
                        + _WITH_BIAS.strip("\n")
                        + """


def load_state_if_possible(abstract_unboxed_pre_state, maxtext_config):
  params = _with_routing_bias(_abstract_params(abstract_unboxed_pre_state), abstract_unboxed_pre_state, maxtext_config)
  return load_params_from_path(params)


def load_params_from_path(params, restore_key):
  params_collection = {"params": want} if is_nnx else want
"""
                        + textwrap.indent(_STORED.strip("\n"), "  ")
                        + """
  restore_args = ocp.checkpoint_utils.construct_restore_args(params_collection)
  restored_collection = ckptr.restore(params_collection, restore_args)
  restored_weights = checkpoint_collections.merged(restored_collection) if is_nnx else restored_collection
  return restored_weights
"""
                    ),
                ),
            ),
        ),
        (Step(TO_MAXTEXT, _bias_to_maxtext), Step(CHECKPOINTING, _bias_loaded)),
    ),
)
