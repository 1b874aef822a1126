"""The maps that ship: what they say of well-known files and names, and that 0.2.5 has all they point at."""

from __future__ import annotations

import itertools
import re

import pytest

from codemods.maps import agreement, model, select
from codemods.maps.model import MoveMap
from codemods.maps.symbols import SymbolTable, scan
from codemods.upstream import resolve_upstream

BASES = ("d4ed2261", "7026b75c", "0.1.0")
TARGETS = ("1e97f2e9", "e591f30c", "0.2.5")
PAIRS = list(itertools.product(BASES, TARGETS))

# Old module → new module, in every target.
MODULES = {
    "MaxText": "maxtext",
    "MaxText.train": "maxtext.trainers.pre_train.train",
    "MaxText.train_compile": "maxtext.trainers.pre_train.train_compile",
    "MaxText.train_utils": "maxtext.utils.train_utils",
    "MaxText.pyconfig": "maxtext.configs.pyconfig",
    "MaxText.common_types": "maxtext.common.common_types",
    "MaxText.checkpointing": "maxtext.common.checkpointing",
    "MaxText.metric_logger": "maxtext.common.metric_logger",
    "MaxText.max_utils": "maxtext.utils.max_utils",
    "MaxText.max_logging": "maxtext.utils.max_logging",
    "MaxText.maxtext_utils": "maxtext.utils.maxtext_utils",
    "MaxText.globals": "maxtext.utils.globals",
    "MaxText.model_creation_utils": "maxtext.utils.model_creation_utils",
    "MaxText.optimizers": "maxtext.optimizers.optimizers",
    "MaxText.maxengine": "maxtext.inference.maxengine.maxengine",
    "MaxText.input_pipeline._grain_data_processing": "maxtext.input_pipeline.grain_data_processing",
    "MaxText.layers.attention_op": "maxtext.layers.attention_op",
    "MaxText.layers.attention_mla": "maxtext.layers.attention_mla",
    "MaxText.layers.deepseek": "maxtext.models.deepseek",
    "MaxText.layers.gemma3": "maxtext.models.gemma3",
    "MaxText.layers.linears": "maxtext.layers.linears",
    "MaxText.layers.models": "maxtext.models.models",
    "MaxText.layers.moe": "maxtext.layers.moe",
    "MaxText.layers.multi_token_prediction": "maxtext.layers.multi_token_prediction",
    "MaxText.layers.normalizations": "maxtext.layers.normalizations",
    "MaxText.layers.nnx_wrappers": "maxtext.layers.nnx_wrappers",
    "MaxText.layers.quantizations": "maxtext.layers.quantizations",
    "MaxText.layers": "maxtext.layers",
    "MaxText.kernels.ragged_attention": "maxtext.kernels.attention.ragged_attention",
    "MaxText.utils.ckpt_conversion.utils.param_mapping": (
        "maxtext.checkpoint_conversion.utils.param_mapping"
    ),
    "tests.moe_test": "tests.unit.moe_test",
}

# Names of 0.2.5 whose place was read off the released files.
SYMBOLS = {
    "MaxText.layers.moe.RoutedMoE": "maxtext.layers.moe.RoutedMoE",
    "MaxText.layers.attention_op.AttentionOp": "maxtext.layers.attention_op.AttentionOp",
    "MaxText.layers.attention_mla.MLA": "maxtext.layers.attention_mla.MLA",
    "MaxText.layers.deepseek.DeepSeekMoELayer": "maxtext.models.deepseek.DeepSeekMoELayer",
    "MaxText.layers.normalizations.RMSNorm": "maxtext.layers.normalizations.RMSNorm",
    "MaxText.layers.linears.DenseGeneral": "maxtext.layers.linears.DenseGeneral",
    "MaxText.layers.linears.MlpBlock": "maxtext.layers.linears.MlpBlock",
    "MaxText.layers.pipeline.Pipeline": "maxtext.layers.pipeline.Pipeline",
    "MaxText.layers.embeddings.YarnRotaryEmbedding": "maxtext.layers.embeddings.YarnRotaryEmbedding",
    "MaxText.layers.embeddings.Qwen3NextRotaryEmbedding": (
        "maxtext.layers.embeddings.PartialRotaryEmbedding"
    ),
    "MaxText.layers.nnx_wrappers.to_linen_class": "maxtext.layers.nnx_wrappers.to_linen_class",
    "MaxText.layers.quantizations.AqtQuantization": "maxtext.layers.quantizations.AqtQuantization",
    "MaxText.layers.multi_token_prediction.MultiTokenPredictionBlock": (
        "maxtext.layers.multi_token_prediction.MultiTokenPredictionBlock"
    ),
    "MaxText.common_types.DecoderBlockType": "maxtext.common.common_types.DecoderBlockType",
    "MaxText.common_types.ShardMode": "maxtext.common.common_types.ShardMode",
    "MaxText.pyconfig.initialize": "maxtext.configs.pyconfig.initialize",
    "MaxText.train.train_step": "maxtext.trainers.pre_train.train.train_step",
    "MaxText.train.loss_fn": "maxtext.trainers.pre_train.train.loss_fn",
    "MaxText.train_utils.setup_train_loop": "maxtext.utils.train_utils.setup_train_loop",
    "MaxText.optimizers.get_optimizer": "maxtext.optimizers.optimizers.get_optimizer",
    "MaxText.gradient_accumulation.gradient_accumulation_loss_and_grad": (
        "maxtext.utils.gradient_accumulation.gradient_accumulation_loss_and_grad"
    ),
    "MaxText.metric_logger.MetricLogger": "maxtext.common.metric_logger.MetricLogger",
    "MaxText.profiler.Profiler": "maxtext.common.profiler.Profiler",
    "MaxText.data_loader.DataLoader": "maxtext.common.data_loader.DataLoader",
    "MaxText.maxengine.MaxEngine": "maxtext.inference.maxengine.maxengine.MaxEngine",
    "MaxText.maxtext_utils.get_functional_train_with_signature": (
        "maxtext.utils.maxtext_utils.get_functional_train_with_signature"
    ),
    "MaxText.maxtext_utils.calculate_tflops_training_per_device": (
        "maxtext.utils.maxtext_utils.calculate_tflops_training_per_device"
    ),
    "MaxText.maxtext_utils.create_device_mesh": "maxtext.utils.maxtext_utils.create_device_mesh",
    "MaxText.inference.kvcache.KVQuant": "maxtext.inference.kvcache.KVQuant",
    "MaxText.tokenizer.SentencePieceTokenizer": (
        "maxtext.input_pipeline.tokenizer.SentencePieceTokenizer"
    ),
    "MaxText.model_creation_utils.create_nnx_model": (
        "maxtext.utils.model_creation_utils.from_pretrained"
    ),
    "MaxText.sharding.remove_size_one_mesh_axis": "maxtext.utils.sharding.remove_size_one_mesh_axis",
    "MaxText.sharding.maybe_shard_with_name": "maxtext.utils.sharding.maybe_shard_with_name",
    "MaxText.checkpointing.load_params_from_path": (
        "maxtext.common.checkpointing.load_params_from_path"
    ),
    "MaxText.checkpointing.create_orbax_emergency_checkpoint_manager": (
        "maxtext.common.emergency_checkpointing.create_emergency_checkpoint_manager"
    ),
    "MaxText.utils.ckpt_conversion.utils.utils.HF_IDS": "maxtext.utils.globals.HF_IDS",
    "MaxText.utils.ckpt_conversion.utils.param_mapping.PARAM_MAPPING": (
        "maxtext.checkpoint_conversion.utils.param_mapping.PARAM_MAPPING"
    ),
    "MaxText.rl.train_rl.setup_configs_and_devices": (
        "maxtext.utils.model_creation_utils.setup_configs_and_devices"
    ),
    "MaxText.sft.hooks.SFTTrainingHooks": "maxtext.trainers.post_train.sft.hooks.SFTTrainingHooks",
    "MaxText.distillation.train_distill.MaxTextToTunixIterator": (
        "maxtext.trainers.post_train.distillation.distillation_utils.MaxTextToTunixIterator"
    ),
    "MaxText.multimodal_utils.PreprocessorOutput": "maxtext.multimodal.utils.PreprocessorOutput",
    "MaxText.multimodal_utils.merge_mm_embeddings": "maxtext.multimodal.utils.merge_mm_embeddings",
    "MaxText.multimodal_utils.reformat_prompt": "maxtext.multimodal.processor.reformat_prompt",
    "MaxText.multimodal_utils.get_image_offsets": "maxtext.multimodal.processor.get_image_offsets",
    "MaxText.multimodal_utils.insert_sequence": "maxtext.multimodal.processor_gemma3.insert_sequence",
    # Importable through a re-export at the fork point; the definition is what lasts.
    "MaxText.layers.deepseek.RMSNorm": "maxtext.layers.normalizations.RMSNorm",
    "MaxText.layers.attentions.AttentionOp": "maxtext.layers.attention_op.AttentionOp",
    "MaxText.layers.deepseek.moe": "maxtext.layers.moe",
    "MaxText.Transformer": "maxtext.models.models.Transformer",
    "MaxText.from_config": "maxtext.utils.model_creation_utils.from_config",
    # What is left at the old place only warns and hands on.
    "MaxText.maxtext_utils.get_input_data_sharding": "maxtext.utils.sharding.get_input_data_sharding",
    # Gone, and known to be.
    "MaxText.layers.attention_mla.mla_as_linen": None,
    "MaxText.layers.models.TransformerLinenPure": None,
    "MaxText.layers.decoders.Decoder": None,
    "MaxText.sharding.remove_fsdp_sharding": None,
    "MaxText.maxtext_utils.get_kv_cache_annotations": None,
    "MaxText.inference.page_manager.PageManager": None,
    "MaxText.train_utils.create_training_tools": None,
}


@pytest.fixture(scope="module")
def maps() -> dict[tuple[str, str], MoveMap]:
    """The shipped maps by their ends."""
    loaded = [model.load(path) for path in select.shipped()]
    return {(m.base.label, m.target.label): m for m in loaded}


@pytest.fixture(scope="module")
def released() -> SymbolTable:
    """The symbol table of the released 0.2.5."""
    return SymbolTable.from_folder(resolve_upstream("0.2.5").root)


def test_every_pair_ships_and_is_small(maps: dict[tuple[str, str], MoveMap]) -> None:
    assert sorted(maps) == sorted(PAIRS)
    for path in select.shipped():
        assert path.stat().st_size < 600_000
    assert sorted(select.targets()) == sorted(TARGETS)


@pytest.mark.parametrize("pair", PAIRS)
def test_known_modules(maps: dict[tuple[str, str], MoveMap], pair: tuple[str, str]) -> None:
    map_ = maps[pair]
    # Older bases lack a few of them.
    present = {old: new for old, new in MODULES.items() if old in map_.modules}
    assert len(present) >= len(MODULES) - 6
    assert {old: map_.modules[old].new for old in present} == present
    assert "MaxText.train" in present
    decoders = map_.modules["MaxText.layers.decoders"]
    expected = None if pair[1] == "0.2.5" else "maxtext.layers.decoders"
    assert decoders.new == expected


def test_known_symbols(maps: dict[tuple[str, str], MoveMap]) -> None:
    map_ = maps["d4ed2261", "0.2.5"]
    found = {}
    for old in SYMBOLS:
        entry = map_.symbol(*old.rsplit(".", 1))
        assert entry is not None, old
        found[old] = entry.new
    assert found == SYMBOLS


def test_deletions_of_history_carry_their_commit(maps: dict[tuple[str, str], MoveMap]) -> None:
    for pair, map_ in maps.items():
        for old, entry in {**map_.modules, **map_.symbols}.items():
            if entry.status == "deleted" and entry.evidence == "history":
                assert entry.commits, (pair, old)
                assert re.fullmatch(r"[0-9a-f]{10}", entry.commits[-1]), (pair, old)
            elif entry.status == "deleted":
                assert entry.note, (pair, old)


def test_no_target_is_on_the_old_layout_and_none_is_taken_twice(
    maps: dict[tuple[str, str], MoveMap],
) -> None:
    for pair, map_ in maps.items():
        entries = {**map_.modules, **map_.symbols}
        assert not {
            old: e.new for old, e in entries.items() if e.new and e.new.split(".")[0] == "MaxText"
        }, pair
        assert not [e.new for e in map_.paths.values() if e.new and e.new.startswith("src/MaxText")]
        assert agreement.collisions(map_) == []
        # A file that did not move is not in the way of one that did.
        still = {p for p in map_.blobs if p not in map_.paths}
        assert not still & {e.new for e in map_.paths.values()}, pair


@pytest.mark.network
@pytest.mark.parametrize("base", BASES)
def test_the_release_has_everything_that_is_mapped_to_it(
    maps: dict[tuple[str, str], MoveMap], released: SymbolTable, base: str
) -> None:
    map_ = maps[base, "0.2.5"]
    wanted = [e.new for e in map_.modules.values()]
    wanted += [e.new for e in map_.symbols.values()]
    for old, names in map_.kept.items():
        wanted += [f"{map_.modules[old].new}.{name}" for name in names]
    inside = [w for w in wanted if w and w.split(".")[0] == "maxtext"]
    assert len(inside) > 2500
    assert [w for w in inside if not released.exists(w)] == []
    paths = {m.path for m in released.modules.values()}
    moved = {e.new for e in map_.paths.values() if e.new and e.new.startswith("src/maxtext/")}
    absent = {p for p in moved if p.endswith(".py")} - paths
    # Packages that do without an `__init__.py` of their own.
    assert absent <= {"src/maxtext/utils/__init__.py", "src/maxtext/examples/__init__.py"}


@pytest.mark.network
def test_signatures_are_those_of_the_release(
    maps: dict[tuple[str, str], MoveMap], released: SymbolTable
) -> None:
    signatures = maps["d4ed2261", "0.2.5"].signatures
    page_state = [k for k, s in signatures.items() if "page_state" in s.removed]
    assert "MaxText.layers.attention_mla.MLA.__call__" in page_state
    assert "MaxText.layers.deepseek.DeepSeekMoELayer.__call__" in page_state
    attention = signatures["MaxText.layers.attentions.Attention"]
    assert "ep_query_axis_names" not in attention.new
    assert (
        set(attention.removed) >= {"query_axis_names"} or "ep_query_axis_names" in attention.removed
    )
    accumulate = signatures["MaxText.gradient_accumulation.gradient_accumulation_loss_and_grad"]
    assert "extra_dpo_args" in accumulate.removed
    for text in (attention.new, accumulate.new):
        assert scan(f"def f({text}): ...", "m.py").definitions
    entry = maps["d4ed2261", "0.2.5"].symbol("MaxText.layers.attentions", "Attention")
    assert entry is not None
    assert entry.new is not None
    made = released.signature(*entry.new.rsplit(".", 1))
    assert made is not None
    assert made.text == attention.new


def test_folders_of_the_forks_own_files(maps: dict[tuple[str, str], MoveMap]) -> None:
    for pair, map_ in maps.items():
        folders = map_.folders
        assert folders["src/MaxText"] == "src/maxtext", pair
        assert folders["src/MaxText/layers"] == "src/maxtext/layers", pair
        assert folders["src/MaxText/configs/models"] == "src/maxtext/configs/models", pair
        assert folders["src/MaxText/input_pipeline"] == "src/maxtext/input_pipeline", pair
        assert folders["tests"] == "tests/unit", pair
        depths = [f.count("/") for f in folders]
        assert depths == sorted(depths, reverse=True), pair
