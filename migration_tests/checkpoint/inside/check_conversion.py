"""Conversions bit for bit, in every direction, and what is recorded."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from etils import epath
from maxtext.checkpoint_conversion.ling2 import (
    compare,
    convert,
    hf_files,
    orbax_files,
    pieces,
    plan,
    work,
)
from maxtext.checkpoint_conversion.ling2.errors import CheckpointError
from maxtext.checkpoint_conversion.utils import ling2_params
from maxtext.common import ling2_layers
from orbax import checkpoint as v0
from orbax.checkpoint import v1 as ocp

from migration_tests.checkpoint import hf_folders
from migration_tests.checkpoint.hf_models import hf_config

REPOSITORY = Path(__file__).parents[3]
ORACLE = Path(os.environ.get("LING2_ORACLE", REPOSITORY / "migration_tests" / "model" / "oracle"))
VARIANTS = sorted(path.parent.name for path in ORACLE.glob("*/config.json"))
WHOLE = convert.Settings(workers=2)
SMALL_GROUPS = convert.Settings(workers=2, group_bytes=100_000)


def oracle_tensors(variant: str) -> hf_folders.Tensors:
    """The tensors of an oracle checkpoint."""
    from safetensors.numpy import load_file

    return load_file(ORACLE / variant / "model.safetensors")


def to_maxtext(
    source: Path, out: Path, scan_layers: bool, settings: convert.Settings = WHOLE
) -> convert.MaxTextModel:
    """Convert, and open the result."""
    convert.to_maxtext(plan.plan(source, scan_layers), out, "zero_based", "test", settings)
    return convert.open_maxtext(out)


def to_hf(
    model: convert.MaxTextModel, out: Path, settings: convert.Settings = WHOLE
) -> hf_folders.Tensors:
    """Convert, and read the result."""
    convert.to_hf(model, out, settings)
    return hf_folders.read_folder(out)


# Each checkpoint from one layout to the other and back, the first from both.
CASES = [(VARIANTS[0], True), *((variant, i % 2 == 1) for i, variant in enumerate(VARIANTS))]


@pytest.mark.parametrize(("variant", "scan_layers"), CASES)
def test_oracle_round_trip(variant: str, scan_layers: bool, tmp_path: Path) -> None:
    settings = SMALL_GROUPS if scan_layers else WHOLE
    expected = oracle_tensors(variant)
    model = to_maxtext(ORACLE / variant, tmp_path / "mt", scan_layers, settings)
    assert model.scan_layers == scan_layers
    hf_folders.assert_same_bits(to_hf(model, tmp_path / "hf", settings), expected)
    config = (tmp_path / "hf" / "config.json").read_bytes()
    assert config == (ORACLE / variant / "config.json").read_bytes()
    # The other layout and back.
    convert.restack(model, tmp_path / "other", not scan_layers, "test", settings)
    other = convert.open_maxtext(tmp_path / "other")
    assert other.scan_layers != scan_layers
    convert.restack(other, tmp_path / "back", scan_layers, "test", settings)
    for name in ("mt", "other", "back"):
        assert compare.compare_values(tmp_path / name, ORACLE / variant).identical
    assert sorted(path.name for path in tmp_path.iterdir()) == ["back", "hf", "mt", "other"]


CONFIGS: dict[str, dict[str, Any]] = {
    "two MTP layers": {},
    "square": dict.fromkeys(
        ("hidden_size", "intermediate_size", "moe_intermediate_size", "vocab_size"), 32
    )
    | {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 8, "num_experts": 4}
    | {"moe_shared_expert_intermediate_size": 32, "v_head_dim": 8, "qk_nope_head_dim": 8},
    "no q LoRA, no MTP": {"q_lora_rank": None, "num_nextn_predict_layers": 0},
    "MLA alone": {"layer_group_size": 1, "num_hidden_layers": 4},
    "no dense layer": {"first_k_dense_replace": 0, "num_hidden_layers": 9},
    "three dense layers": {"first_k_dense_replace": 3, "num_hidden_layers": 12},
    "dense layers alone": {
        "first_k_dense_replace": 5,
        "num_hidden_layers": 5,
        "num_nextn_predict_layers": 0,
    },
    "tail": {"num_hidden_layers": 11, "layer_group_size": 4},
    "many cycles": {"num_hidden_layers": 19},
    "tied embeddings": {"tie_word_embeddings": True},
    "no QK norm": {"use_qk_norm": False},
    "two shared experts": {"num_shared_experts": 2},
    "no routing bias": {"moe_router_enable_expert_bias": False},
}


@pytest.mark.parametrize("name", CONFIGS)
def test_random_bits_round_trip(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dtypes per tensor, NaN payloads and all, cut into as many pieces as there can be."""
    monkeypatch.setattr(pieces, "PIECE_BYTES", 1500)
    monkeypatch.setattr(pieces, "MIN_CHUNK_BYTES", 400)
    monkeypatch.setattr(pieces, "MAX_CHUNK_BYTES", 600)
    config = hf_config(**CONFIGS[name])
    expected = hf_folders.random_bits(config)
    source = hf_folders.write_folder(tmp_path / "source", config, expected)
    settings = convert.Settings(workers=3, group_bytes=400_000)
    model = to_maxtext(source, tmp_path / "scanned", True, settings)
    hf_folders.assert_same_bits(to_hf(model, tmp_path / "hf", settings), expected)
    convert.restack(model, tmp_path / "unscanned", False, "test", settings)
    assert compare.compare_values(tmp_path / "unscanned", source).identical
    convert.restack(
        convert.open_maxtext(tmp_path / "unscanned"), tmp_path / "again", True, "test", settings
    )
    assert compare.compare_values(tmp_path / "again", source).identical


def test_other_dtypes(tmp_path: Path) -> None:
    for dtype in ("float16", "float32", "float64"):
        config = hf_config()
        expected = hf_folders.random_bits(config, dtype)
        source = hf_folders.write_folder(tmp_path / dtype, config, expected)
        model = to_maxtext(source, tmp_path / f"{dtype}-mt", True)
        hf_folders.assert_same_bits(to_hf(model, tmp_path / f"{dtype}-hf"), expected)


def test_a_repeated_head_is_not_converted(tmp_path: Path) -> None:
    config = hf_config(tie_word_embeddings=True)
    tensors = hf_folders.random_bits(config)
    head = {plan.HEAD: tensors[plan.EMBEDDING]}
    source = hf_folders.write_folder(tmp_path / "source", config, tensors | head)
    model = to_maxtext(source, tmp_path / "mt", False)
    hf_folders.assert_same_bits(to_hf(model, tmp_path / "hf"), tensors)
    assert compare.compare_shapes(tmp_path / "mt", source).equal


def test_the_source_is_not_touched(tmp_path: Path) -> None:
    source = hf_folders.small_folder(tmp_path / "source")
    before = hf_folders.snapshot(source)
    model = to_maxtext(source, tmp_path / "mt", True)
    assert hf_folders.snapshot(source) == before
    held = hf_folders.snapshot(tmp_path / "mt")
    to_hf(model, tmp_path / "hf")
    convert.restack(model, tmp_path / "other", False, "test")
    assert hf_folders.snapshot(tmp_path / "mt") == held


def test_orbax_reads_it(tmp_path: Path) -> None:
    source = hf_folders.small_folder(tmp_path / "source")
    to_maxtext(source, tmp_path / "mt", True, SMALL_GROUPS)
    step = epath.Path(tmp_path / "mt" / "0")
    recorded = ocp.checkpointables_metadata(step).custom_metadata
    assert recorded["scan_layers"] is True
    assert recorded["ling2"]["gla_slope_index"] == "zero_based"
    assert recorded["ling2"]["mla_tail_rule"] == ling2_layers.TAIL_ALL
    assert recorded["ling2"]["written_by"] == "test"
    tree = ocp.load_checkpointables(step)["items"]
    assert tree["step"] == 0
    tensors = hf_folders.read_folder(source)
    embedding = tree["params"]["params"]["token_embedder"]["embedding"]
    assert np.asarray(embedding).tobytes() == tensors[plan.EMBEDDING].tobytes()
    routed = tree["params"]["MoEBiasVar"]["decoder"]["layers"]["layer_0"]["Ling2MoeBlock_0"]
    bias = np.asarray(routed["MoeBlock_0"]["gate"]["bias"])
    assert bias.dtype == np.float32
    for row, layer in enumerate((1, 4)):
        expected = tensors[f"model.layers.{layer}.mlp.gate.expert_bias"]
        assert bias[row].tobytes() == expected.tobytes()


def whole(model: convert.MaxTextModel, leaf: Any, parameter: Any) -> np.ndarray:
    """The bits of an array of a checkpoint."""
    bits = np.empty(leaf.shape, hf_files.MOVED_AS[leaf.dtype])
    model.checkpoint.read(leaf, parameter, (slice(None),) * len(leaf.shape), bits)
    return bits


def saved_by_orbax(
    path: Path, model: convert.MaxTextModel, rename: dict[str, str], training: bool
) -> None:
    """Save a checkpoint anew by Orbax, whole arrays to a chunk: of a training run, or with other names."""
    tree: dict[str, Any] = {"step": 3}
    for parameter in model.parameters:
        leaf = model.leaves[parameter.key]
        bits = whole(model, leaf, parameter)
        values = bits.view(leaf.dtype)
        names = [rename.get(name, name) for name in parameter.path]
        if rename and names[1] == "layers_remainder":
            names[1:3] = [model.dims.pattern.unscanned_name(parameter.layers[0])]
        is_bias = parameter.collection == ling2_params.ROUTING_BIAS
        keys = ["params", "params", *names]
        if training and is_bias:
            keys = ["nnx_aux", "model", *names]
        if rename and len(parameter.layers) > 1 and is_bias:  # it was optimized
            values = np.moveaxis(values, 0, 1)
        elif "dense" in names and "kernel" in names and rename:  # heads are no axis of their own
            layers = values.shape[1:2] if len(parameter.layers) > 1 else ()
            values = np.moveaxis(values, 1, 0) if layers else values
            values = values.reshape(*layers, -1, values.shape[-1])
            values = np.moveaxis(values, 0, 1) if layers else values
        node = tree
        for key in keys[:-1]:
            node = node.setdefault(key, {})
        node[keys[-1]] = values
    if training:
        tree["opt_state"] = {"count": np.zeros((), np.int32)}
        tree["nnx_aux"]["model"]["rngs"] = {"count": np.zeros((), np.uint32)}
    context = ocp.Context()
    context.array.saving.use_zarr3 = True
    with context:
        ocp.save_checkpointables(epath.Path(path), {"items": tree})


@pytest.mark.parametrize("scan_layers", [False, True])
def test_checkpoints_of_training_runs(scan_layers: bool, tmp_path: Path) -> None:
    source = hf_folders.small_folder(tmp_path / "source")
    model = to_maxtext(source, tmp_path / "mt", scan_layers)
    saved_by_orbax(tmp_path / "run" / "3", model, {}, training=True)
    with pytest.raises(CheckpointError, match="--config"):
        convert.open_maxtext(tmp_path / "run")
    trained = convert.open_maxtext(tmp_path / "run", source)
    assert trained.checkpoint.other_leaves == 3
    hf_folders.assert_same_bits(
        to_hf(trained, tmp_path / "hf", SMALL_GROUPS), hf_folders.read_folder(source)
    )
    convert.restack(trained, tmp_path / "other", not scan_layers, "test")
    assert compare.compare_values(tmp_path / "other", source).identical


def tree_of(
    model: convert.MaxTextModel, *above: str, below: tuple[str, ...] = ()
) -> dict[str, Any]:
    """The parameters of a model as a tree."""
    tree: dict[str, Any] = {}
    for parameter in model.parameters:
        leaf = model.leaves[parameter.key]
        bits = whole(model, leaf, parameter)
        keys = (*above, *parameter.path, *below)
        node = tree
        for key in keys[:-1]:
            node = node.setdefault(key, {})
        node[keys[-1]] = bits.view(leaf.dtype)
    return tree


# Where runs and tools of all versions have weights: keys above and below a parameter's path, folders, files.
LAYOUTS: list[tuple[tuple[str, ...], tuple[str, ...], str, bool, bool]] = [
    (("params", "params"), (), "3/items", True, True),
    (("params", "params"), (), "3/items", False, True),
    (("params", "params"), (), "3/default", True, False),
    (("params", "params"), (), "step_3/items", False, False),
    (("params", "params"), (), "3/state", True, True),
    (("params",), (), ".", True, True),
    ((), ("value",), "items", True, False),
    (("model",), ("value",), "12/items", True, True),
]


@pytest.mark.parametrize(("above", "below", "place", "ocdbt", "zarr3"), LAYOUTS)
def test_layouts_of_other_writers(
    above: tuple[str, ...],
    below: tuple[str, ...],
    place: str,
    ocdbt: bool,
    zarr3: bool,
    tmp_path: Path,
) -> None:
    source = hf_folders.small_folder(tmp_path / "source")
    tree = tree_of(to_maxtext(source, tmp_path / "mt", True), *above, below=below)
    tree["opt_state"] = {"mu": {"params": {"decoder": {"kernel": np.ones((2, 3), np.float32)}}}}
    tree["rngs"] = {"params": {"count": {"value": np.zeros((), np.uint32)}}}
    path = tmp_path / "run" / place
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = v0.PyTreeCheckpointHandler(use_ocdbt=ocdbt, use_zarr3=zarr3)
    v0.Checkpointer(handler).save(path, tree)
    for named in {path, tmp_path / "run"}:
        model = convert.open_maxtext(named, source)
        assert model.checkpoint.other_leaves == 2
        assert compare.compare_values(named, source).identical
    hf_folders.assert_same_bits(to_hf(model, tmp_path / "hf"), hf_folders.read_folder(source))


def test_layers_on_another_axis(tmp_path: Path) -> None:
    """`param_scan_axis: 0`: written, recorded, found by shapes where nothing is recorded, and taken to axis 1."""
    source = hf_folders.small_folder(tmp_path / "source")
    expected = hf_folders.read_folder(source)
    made = plan.plan(source, True, param_scan_axis=0)
    convert.to_maxtext(made, tmp_path / "mt", "hf", "test")
    model = convert.open_maxtext(tmp_path / "mt")
    stacked = next(p for p in model.parameters if len(p.layers) > 1 and p.kind == "norm")
    assert len(stacked.layers) == model.leaves[stacked.key].shape[0] == 2
    assert model.checkpoint.custom_metadata["ling2"]["param_scan_axis"] == 0
    assert compare.compare_values(tmp_path / "mt", source).identical
    hf_folders.assert_same_bits(to_hf(model, tmp_path / "hf"), expected)
    saved_by_orbax(tmp_path / "run" / "3", model, {}, training=True)
    trained = convert.open_maxtext(tmp_path / "run", source)
    assert trained.dims.param_scan_axis == 0
    hf_folders.assert_same_bits(to_hf(trained, tmp_path / "hf2"), expected)
    convert.restack(trained, tmp_path / "one", True, "test")
    assert convert.open_maxtext(tmp_path / "one").dims.param_scan_axis == 1
    assert compare.compare_values(tmp_path / "one", source).identical


# Decoders whose scan has no cycle, one, or no rest; with no layer that is not dense, and without MTP.
SMALL: list[dict[str, Any]] = [
    {"num_hidden_layers": 1, "first_k_dense_replace": 0},
    {"num_hidden_layers": 2, "first_k_dense_replace": 1, "num_nextn_predict_layers": 0},
    {"num_hidden_layers": 3, "first_k_dense_replace": 0, "num_experts_per_tok": 1},
    {"num_hidden_layers": 2, "first_k_dense_replace": 2, "num_nextn_predict_layers": 3},
    {"num_hidden_layers": 2, "num_experts": None, "num_nextn_predict_layers": 0},
    {"num_hidden_layers": 4, "layer_group_size": 1, "first_k_dense_replace": 2},
    {"num_hidden_layers": 5, "q_lora_rank": None, "tie_word_embeddings": True},
    {"num_hidden_layers": 8, "mla_tail_rule": "last", "num_shared_experts": 2},
    {"num_hidden_layers": 8, "mla_tail_rule": "never", "use_qk_norm": False},
    {"num_hidden_layers": 7, "num_shared_experts": None, "n_shared_experts": 3},
]


@pytest.mark.parametrize("changes", SMALL, ids=str)
def test_small_decoders(changes: dict[str, Any], tmp_path: Path) -> None:
    config = hf_config(**changes)
    expected = hf_folders.random_bits(config)
    source = hf_folders.write_folder(tmp_path / "source", config, expected)
    for scan_layers in (False, True):
        out = tmp_path / str(scan_layers)
        model = to_maxtext(source, out / "mt", scan_layers)
        assert compare.compare_values(out / "mt", source).identical
        hf_folders.assert_same_bits(to_hf(model, out / "hf"), expected)
        convert.restack(model, out / "other", not scan_layers, "test")
        hf_folders.assert_same_bits(
            to_hf(convert.open_maxtext(out / "other"), out / "hf2"), expected
        )


@pytest.mark.parametrize(
    ("block", "scan_layers"),
    [("ALMoeBlock_0", False), ("DeepSeekMoeBlock_0", False), ("ALMoeBlock_0", True)],
)
def test_older_names(block: str, scan_layers: bool, tmp_path: Path) -> None:
    source = hf_folders.small_folder(tmp_path / "source")
    model = to_maxtext(source, tmp_path / "mt", scan_layers)
    older = {"Ling2MoeBlock_0": block, "self_attention": "attention"}
    older |= {"query_layernorm": "query_norm", "mtp_1_projection": "projection_layer"}
    older |= {f"layer_{number}": f"layers_{number}" for number in range(9)}
    saved_by_orbax(tmp_path / "old" / "0", model, older, training=False)
    found = convert.open_maxtext(tmp_path / "old", source / "config.json")
    assert len(found.renamed) > (60 if scan_layers else 100)
    convert.restack(found, tmp_path / "new", scan_layers, "test")
    assert convert.open_maxtext(tmp_path / "new").renamed == {}
    convert.restack(found, tmp_path / "other", not scan_layers, "test")
    assert compare.compare_values(tmp_path / "other", source).identical
    assert compare.compare_values(tmp_path / "new", source).identical
    assert compare.compare_values(tmp_path / "old", source).identical
    hf_folders.assert_same_bits(to_hf(found, tmp_path / "hf"), hf_folders.read_folder(source))


def test_names_that_mean_nothing(tmp_path: Path) -> None:
    source = hf_folders.small_folder(tmp_path / "source")
    model = to_maxtext(source, tmp_path / "mt", False)
    saved_by_orbax(tmp_path / "old", model, {"wkv_a": "wkv_z"}, training=False)
    with pytest.raises(CheckpointError, match="wkv_z"):
        convert.open_maxtext(tmp_path / "old", source)


def test_layers_that_are_missing(tmp_path: Path) -> None:
    """A checkpoint that lacks what its config has is refused, with names."""
    source = hf_folders.small_folder(tmp_path / "source")
    to_maxtext(source, tmp_path / "mt", False)
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    larger = tmp_path / "config.json"
    larger.write_text(json.dumps(config | {"num_nextn_predict_layers": 3}), encoding="utf-8")
    with pytest.raises(CheckpointError, match="mtp_layer_3"):
        convert.open_maxtext(tmp_path / "mt", larger)


# ---- Several hosts --------------------------------------------------------------------------------------------------


def shards(count: int, order: list[int]) -> list[convert.Settings]:
    """The settings of several hosts, in the order in which they run."""
    return [
        convert.Settings(workers=1, group_bytes=30_000, shard=work.Shard(number, count))
        for number in order
    ]


def test_hosts_one_after_another(tmp_path: Path) -> None:
    source = hf_folders.small_folder(tmp_path / "source")
    made = plan.plan(source, True)
    for settings in shards(3, [2, 3, 1]):
        assert not (tmp_path / "mt").exists()
        done = convert.to_maxtext(made, tmp_path / "mt", "hf", "test", settings)
    assert done.finished
    assert compare.compare_values(tmp_path / "mt", source).identical
    model = convert.open_maxtext(tmp_path / "mt")
    for settings in shards(2, [2, 1]):
        done = convert.to_hf(model, tmp_path / "hf", settings)
    assert done.finished
    expected = hf_folders.read_folder(source)
    hf_folders.assert_same_bits(hf_folders.read_folder(tmp_path / "hf"), expected)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hf", "mt", "source"]


def test_a_host_that_has_nothing_to_do_and_comes_late(tmp_path: Path) -> None:
    source = hf_folders.small_folder(tmp_path / "source")
    made, out = plan.plan(source, False), tmp_path / "mt"
    first, late = (
        convert.Settings(workers=1, group_bytes=1 << 30, shard=work.Shard(number, 2))
        for number in (1, 2)
    )
    assert convert.to_maxtext(made, out, "hf", "test", first).finished
    before = hf_folders.snapshot(out)
    assert convert.to_maxtext(made, out, "hf", "test", late).finished
    assert hf_folders.snapshot(out) == before
    with pytest.raises(CheckpointError, match="exists"):
        convert.to_maxtext(made, out, "hf", "test", first)
    (tmp_path / "other").mkdir()
    with pytest.raises(CheckpointError, match="exists"):
        convert.to_maxtext(made, tmp_path / "other", "hf", "test", late)


def test_a_run_without_shard_does_what_hosts_left(tmp_path: Path) -> None:
    source = hf_folders.small_folder(tmp_path / "source")
    made = plan.plan(source, False)
    (settings,) = shards(3, [2])
    assert not convert.to_maxtext(made, tmp_path / "mt", "hf", "test", settings).finished
    whole = convert.Settings(workers=2, group_bytes=30_000)
    assert convert.to_maxtext(made, tmp_path / "mt", "hf", "test", whole).finished
    assert compare.compare_values(tmp_path / "mt", source).identical


def test_hosts_that_count_differently(tmp_path: Path) -> None:
    """What two hosts both do is there once; one that does all is refused while hosts do parts, and they while it is."""
    source = hf_folders.small_folder(tmp_path / "source")
    made = plan.plan(source, False)
    write, ran = orbax_files.GroupWriter.flush, []

    def nested(settings: convert.Settings, within: Any) -> bool:
        """Convert, and do something else once, before the first part is done."""

        def flush(writer: orbax_files.GroupWriter) -> None:
            orbax_files.GroupWriter.flush = write  # type: ignore[method-assign]
            within()
            write(writer)

        orbax_files.GroupWriter.flush = flush  # type: ignore[method-assign]
        return bool(convert.to_maxtext(made, tmp_path / "mt", "hf", "test", settings).finished)

    whole = convert.Settings(workers=1, group_bytes=30_000)
    (third,), (half,) = shards(3, [1]), shards(2, [1])

    def refused(settings: convert.Settings) -> Any:
        def run() -> None:
            with pytest.raises(CheckpointError, match="another process"):
                convert.to_maxtext(made, tmp_path / "mt", "hf", "test", settings)
            ran.append(settings)

        return run

    def other_half() -> None:
        assert not convert.to_maxtext(made, tmp_path / "mt", "hf", "test", half).finished
        refused(whole)()
        refused(third)()

    assert not nested(third, other_half)
    assert nested(whole, refused(half))
    assert ran == [whole, third, half]
    assert compare.compare_values(tmp_path / "mt", source).identical
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mt", "source"]


def test_hosts_at_the_same_time(tmp_path: Path) -> None:
    source = hf_folders.small_folder(tmp_path / "source")
    command = [sys.executable, "-m", "codemods.cli", "ckpt", "to-maxtext", str(source)]
    command += [str(tmp_path / "mt"), "--scan-layers", "true", "--group-size", "20000"]
    hosts = [subprocess.Popen([*command, "--shard", f"{i}/3"], cwd=REPOSITORY) for i in (1, 2, 3)]
    assert [host.wait() for host in hosts] == [0, 0, 0]
    assert compare.compare_values(tmp_path / "mt", source).identical
    assert not work.folder_of(tmp_path / "mt").exists()


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "a/b", "1/0", "-1/2"])
def test_shards_that_are_none(text: str) -> None:
    with pytest.raises(CheckpointError, match="i/n"):
        work.Shard.parse(text)


# ---- Comparison -----------------------------------------------------------------------------------------------------


def perturbed(source: Path, out: Path, name: str, change: Any) -> Path:
    """A copy of a checkpoint with one tensor changed."""
    shutil.copytree(source, out)
    tensors = hf_folders.read_folder(out)
    values = tensors[name].copy()
    change(values)
    for path in sorted(out.glob("*.safetensors")):
        held = {t.name: tensors[t.name] for t in hf_folders.hf_files.read_header(path)[2]}
        hf_folders.write_file(path, held | ({name: values} if name in held else {}))
    return out


def oracle_folder(path: Path) -> Path:
    """An oracle checkpoint in two files."""
    config = json.loads((ORACLE / VARIANTS[0] / "config.json").read_text(encoding="utf-8"))
    return hf_folders.write_folder(path, config, oracle_tensors(VARIANTS[0]))


def test_values_that_differ(tmp_path: Path) -> None:
    source = oracle_folder(tmp_path / "source")
    to_maxtext(source, tmp_path / "mt", True)
    name = "model.layers.4.mlp.experts.2.down_proj.weight"

    def one_ulp(values: np.ndarray) -> None:
        values[1, 2] = np.nextafter(values[1, 2], np.float32(9), dtype=np.float32)

    other = perturbed(source, tmp_path / "ulp", name, one_ulp)
    report = compare.compare_values(tmp_path / "mt", other)
    assert not report.equal
    (found,) = report.failed
    assert (found.differing, found.max_ulp, found.layers) == (1, 1, (4,))
    assert 0 < found.max_abs < 1e-7
    assert found.cosine > 0.999999
    data = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert data["verdict"] == "different"
    assert data["failed_count"] == 1
    assert data["compared_count"] == data["orbax_leaf_count"] == data["mapped_ok_count"]
    assert [row["layer"] for row in data["by_layer"] if row["failed"]] == [4]
    assert compare.compare_values(tmp_path / "mt", other, max_abs=1e-6).equal

    def nan(values: np.ndarray) -> None:
        values[0, 0] = np.nan

    other = perturbed(source, tmp_path / "nan", name, nan)
    report = compare.compare_values(tmp_path / "mt", other, max_abs=1e6)
    assert [d.max_ulp for d in report.failed] == [None]
    assert json.loads(json.dumps(report.to_json(), allow_nan=False))["max_abs"] == "nan"

    def turned(values: np.ndarray) -> None:
        values[...] = -values

    other = perturbed(source, tmp_path / "turned", name, turned)
    assert compare.compare_values(tmp_path / "mt", other, max_abs=1e6).failed[0].cosine < 0.9


def test_a_transposed_square_is_seen(tmp_path: Path) -> None:
    config = hf_config(**CONFIGS["square"])
    expected = hf_folders.random_bits(config, "float32")
    source = hf_folders.write_folder(tmp_path / "source", config, expected)
    to_maxtext(source, tmp_path / "mt", False)
    name = "model.layers.0.mlp.gate_proj.weight"

    def turned(values: np.ndarray) -> None:
        values[...] = values.T.copy()

    other = perturbed(source, tmp_path / "other", name, turned)
    assert compare.compare_shapes(tmp_path / "mt", other).equal
    assert [d.hf for d in compare.compare_values(tmp_path / "mt", other).failed] == [name]


def test_values_of_another_dtype(tmp_path: Path) -> None:
    """Float32 against bfloat16 is compared in float32, and the distance given in steps of bfloat16."""
    source = oracle_folder(tmp_path / "source")
    tensors = hf_folders.read_folder(source)
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    cut = {name: tensor.astype("bfloat16") for name, tensor in tensors.items()}
    to_maxtext(hf_folders.write_folder(tmp_path / "cut", config, cut), tmp_path / "mt", False)
    report = compare.compare_values(tmp_path / "mt", source)
    assert not report.equal
    assert all(d.max_ulp is not None and d.max_ulp <= 1 for d in report.differences)
    assert compare.compare_values(tmp_path / "mt", source, max_abs=0.05, min_cosine=0.999).equal


def test_values_of_two_narrow_dtypes(tmp_path: Path) -> None:
    """Neither of float16 and bfloat16 holds the other: what one of them makes 0 or infinite differs."""
    config = hf_config()
    tensors = {
        name: np.full(t.shape, 1.0, "bfloat16")
        for name, t in hf_folders.random_bits(config).items()
    }
    for value, other, differs in ((1.0, 1.0, False), (1e30, np.inf, True), (1e-30, 0.0, True)):
        folder = tmp_path / str(value)
        tensors["model.norm.weight"] = np.full(26, value, "bfloat16")
        hf_folders.write_folder(folder / "hf", config, tensors)
        to_maxtext(folder / "hf", folder / "mt", False)
        halves = tensors | {"model.norm.weight": np.full(26, other, "float16")}
        hf_folders.write_folder(folder / "half", config, halves)
        report = compare.compare_values(folder / "mt", folder / "half")
        assert [d.hf for d in report.failed] == (["model.norm.weight"] if differs else [])


def test_copies_are_compared(tmp_path: Path) -> None:
    source = hf_folders.small_folder(tmp_path / "source")
    hf_folders.HARMLESS["MTP layers with what they share"](source)
    to_maxtext(source, tmp_path / "mt", False)
    assert compare.compare_values(tmp_path / "mt", source).identical
    name = "model.layers.11.shared_head.head.weight"

    def other(values: np.ndarray) -> None:
        values.view(np.uint16)[0, 0] ^= 1

    changed = perturbed(source, tmp_path / "other", name, other)
    assert compare.compare_shapes(tmp_path / "mt", changed).equal
    assert [d.hf for d in compare.compare_values(tmp_path / "mt", changed).failed] == [name]


def test_shapes_that_differ(tmp_path: Path) -> None:
    source = hf_folders.small_folder(tmp_path / "source")
    to_maxtext(source, tmp_path / "mt", False)
    for name, (fault, _) in hf_folders.UNACCOUNTED.items():
        other = tmp_path / name
        shutil.copytree(source, other)
        fault(other)
        report = compare.compare_shapes(tmp_path / "mt", other)
        assert report.equal == (
            name in ("expert of another dtype", "shard that the index does not name")
        ), name
        data = json.loads(json.dumps(report.to_json()))
        assert data["verdict"] == ("equal" if report.equal else "different")
    expected = compare.Expected(num_experts=4)
    assert compare.compare_shapes(tmp_path / "mt", source, expected).mismatches


# ---- Scripts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("script", ["compare_orbax_safetensors.py", "compare_params.py"])
def test_scripts(script: str, tmp_path: Path) -> None:
    source = oracle_folder(tmp_path / "source")
    to_maxtext(source, tmp_path / "mt", False)
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    report = tmp_path / "report.json"
    command = [sys.executable, str(REPOSITORY / "scripts" / script)]
    command += ["--orbax-items-dir", f"{tmp_path / 'mt' / '0' / 'items'}/"]
    options = [
        *("--first-num-dense-layers", str(config["first_k_dense_replace"])),
        *("--num-experts", str(config["num_experts"])),
        *("--mtp-num-layers", str(config["num_nextn_predict_layers"])),
        *("--report-json", str(report)),
    ]
    result = subprocess.run([*command, "--hf-dir", str(source), *options], check=False)
    assert result.returncode == 0
    data = json.loads(report.read_text(encoding="utf-8"))
    assert data["mapped_ok_count"] == data["orbax_leaf_count"] > 0
    assert data["missing_mapping_count"] == 0
    result = subprocess.run([*command, "--hf-dir", str(source), "--num-experts", "7"], check=False)
    assert result.returncode == 1
    result = subprocess.run([*command, "--hf-dir", str(tmp_path)], check=False)
    assert result.returncode == 2


def test_leftovers_of_a_merge_are_no_part_of_the_result(tmp_path: Path) -> None:
    source = hf_folders.small_folder(tmp_path / "source")
    model = to_maxtext(source, tmp_path / "mt", False, SMALL_GROUPS)
    names = {path.name for path in model.checkpoint.items.iterdir()}
    databases = {name for name in names if name.startswith("ocdbt.process_")}
    assert len(databases) > 1
    assert names - databases == {"_METADATA", "commit_success.txt", "d", "manifest.ocdbt"}
    assert orbax_files.find_items(tmp_path / "mt" / "0") == model.checkpoint.items
