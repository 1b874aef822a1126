"""Reading and planning, from headers alone; nothing here needs JAX."""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from maxtext.checkpoint_conversion.ling2 import hf_files, pieces, plan
from maxtext.checkpoint_conversion.ling2.errors import CheckpointError
from maxtext.checkpoint_conversion.utils import ling2_params
from ruamel.yaml import YAML

from migration_tests.checkpoint import hf_folders
from migration_tests.checkpoint.hf_models import ORACLE, VARIANTS, hf_config

REPOSITORY = Path(__file__).parents[2]
# The command line with the packages out of reach that planning does without.
WITHOUT_JAX = """
import sys
class Blocked:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.split(".")[0] in {"jax", "jaxlib", "flax", "orbax", "tensorstore", "safetensors", "ml_dtypes", "torch"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocked)
from codemods.cli import main
main()
"""
Fault = Callable[[Path], None]


def run_plan(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """`ckpt plan` where JAX is not installed."""
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_JAX, "ckpt", "plan", *map(str, arguments)],
        cwd=REPOSITORY,
        text=True,
        capture_output=True,
        check=False,
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hf_folders.small_folder(tmp_path_factory.mktemp("whole") / "hf")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return hf_folders.small_folder(tmp_path / "hf")


@pytest.mark.parametrize("name", hf_folders.UNREADABLE)
def test_what_cannot_be_read_is_named(name: str, folder: Path) -> None:
    fault, named = hf_folders.UNREADABLE[name]
    fault(folder)
    with pytest.raises(CheckpointError) as caught:
        plan.plan(folder, scan_layers=False)
    message = str(caught.value)
    assert "\n" not in message
    assert all(word in message for word in named), message


@pytest.mark.parametrize("name", hf_folders.UNACCOUNTED)
@pytest.mark.parametrize("scan_layers", [False, True])
def test_what_does_not_fit_is_listed(name: str, scan_layers: bool, folder: Path) -> None:
    fault, named = hf_folders.UNACCOUNTED[name]
    fault(folder)
    made = plan.plan(folder, scan_layers)
    listed = "\n".join(f"{p.kind} {p.name} {p.reason}" for p in made.problems)
    assert all(word in listed for word in named), listed
    with pytest.raises(CheckpointError):
        made.require_complete()


@pytest.mark.parametrize("scan_layers", [False, True])
def test_every_tensor_has_its_place(scan_layers: bool, whole: Path) -> None:
    made = plan.plan(whole, scan_layers)
    assert made.problems == []
    assert {row.tensor.name for row in made.rows} == set(hf_folders.read_folder(whole))
    assert made.total_bytes == sum(t.nbytes for t in hf_folders.read_folder(whole).values())
    data = json.loads(json.dumps(plan.to_json(made)))
    assert data["complete"] is True
    assert data["tensors"] == len(data["rows"])
    row = next(row for row in data["rows"] if row["source"] == hf_folders.EXPERT)
    assert row["dtype"] == "bfloat16"
    assert row["transform"] == "transpose"
    assert math.prod(row["target_shape"]) % math.prod(row["shape"]) == 0


@pytest.mark.parametrize("name", hf_folders.HARMLESS)
def test_what_is_no_fault(name: str, folder: Path) -> None:
    hf_folders.HARMLESS[name](folder)
    made = plan.plan(folder, scan_layers=True)
    assert made.problems == []
    assert len(made.redundant) == (4 if "share" in name else 0)
    plan.check_redundant(made)


def test_a_copy_with_other_values_or_shape(folder: Path) -> None:
    name = "model.layers.10.embed_tokens.weight"

    def other(values: np.ndarray) -> plan.Plan:
        hf_folders.write_file(folder / "more.safetensors", {name: values})
        (folder / hf_files.INDEX).unlink(missing_ok=True)
        return plan.plan(folder, False)

    values = hf_folders.read_folder(folder)[plan.EMBEDDING].copy()
    values.view(np.uint16)[3, 4] ^= 1
    made = other(values)
    assert made.problems == []
    with pytest.raises(CheckpointError, match=f"{name} has other values"):
        plan.check_redundant(made)
    (problem,) = other(values[1:]).problems
    assert (problem.kind, problem.name) == ("extra", name)


def test_the_slope_convention_of_the_config(folder: Path) -> None:
    assert plan.plan(folder, False).slope_index == "zero_based"
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(config | {"gla_slope_index": "hf"}), encoding="utf-8")
    assert plan.plan(folder, False).slope_index == "hf"


def test_a_head_that_is_the_embedding(tmp_path: Path) -> None:
    config = hf_config(tie_word_embeddings=True)
    tensors = hf_folders.random_bits(config)
    tied = tensors | {plan.HEAD: tensors[plan.EMBEDDING]}
    made = plan.plan(hf_folders.write_folder(tmp_path / "same", config, tied), False)
    assert made.problems == []
    assert made.redundant == {plan.HEAD: plan.EMBEDDING}
    plan.check_redundant(made)
    other = tied[plan.HEAD].copy()
    other.view(np.uint16)[-1, -1] ^= 1
    folder = hf_folders.write_folder(tmp_path / "other", config, tied | {plan.HEAD: other})
    with pytest.raises(CheckpointError, match=plan.HEAD):
        plan.check_redundant(plan.plan(folder, False))


def test_without_an_index_all_files_are_read(folder: Path) -> None:
    (folder / hf_files.INDEX).unlink()
    assert plan.plan(folder, False).problems == []


def test_a_file_that_changes_while_it_is_read(folder: Path) -> None:
    checkpoint = hf_files.open_checkpoint(folder)
    tensor = checkpoint.tensors[hf_folders.HEAD]
    room = np.empty(tensor.nbytes, np.uint8)
    checkpoint.read(tensor, room)
    tensor.file.write_bytes(tensor.file.read_bytes()[:-9])
    with pytest.raises(CheckpointError, match="changed"):
        checkpoint.read(tensor, room)
    tensor.file.unlink()
    with pytest.raises(CheckpointError, match=hf_folders.FIRST):
        checkpoint.read(tensor, room)


# ---- The command ----------------------------------------------------------------------------------------------------


def test_plan_without_jax(whole: Path) -> None:
    result = run_plan(whole, "--scan-layers", "true")
    assert result.returncode == 0, result.stderr
    assert "all accounted for" in result.stdout
    assert "model.layers.{1,4}.mlp.experts.{0..4}.up_proj.weight" in result.stdout
    result = run_plan(whole, "--json")
    assert result.returncode == 0
    assert json.loads(result.stdout)["complete"] is True


def test_plan_lists_and_exits_1(folder: Path) -> None:
    hf_folders.UNACCOUNTED["tensor missing"][0](folder)
    result = run_plan(folder)
    assert result.returncode == 1
    assert f"missing: {hf_folders.HEAD}" in result.stdout
    result = run_plan(folder, "--json")
    assert result.returncode == 1
    assert json.loads(result.stdout)["problems"][0]["name"] == hf_folders.HEAD


@pytest.mark.parametrize("name", ["shard ends within the data", "no config"])
def test_plan_exits_2_with_one_line(name: str, folder: Path) -> None:
    hf_folders.UNREADABLE[name][0](folder)
    result = run_plan(folder)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.startswith("ling2-migrate: error: ")
    assert result.stderr.count("\n") == 1


def test_conversion_without_jax_names_the_extra(whole: Path, tmp_path: Path) -> None:
    script = WITHOUT_JAX
    command = ["ckpt", "to-maxtext", str(whole), str(tmp_path / "out"), "--scan-layers", "false"]
    result = subprocess.run(
        [sys.executable, "-c", script, *command],
        cwd=REPOSITORY,
        text=True,
        capture_output=True,
        check=False,
    )
    assert result.returncode == 2
    assert "ling2-migrate[model]" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_plan_by_the_options_of_maxtext(whole: Path, tmp_path: Path) -> None:
    options = ling2_params.maxtext_options(hf_config(num_hidden_layers=10)) | {
        "decoder_block": "ling2"
    }
    with open(tmp_path / "model.yml", "w", encoding="utf-8") as stream:
        YAML().dump(options, stream)
    assert run_plan(whole, "--config", tmp_path / "model.yml").returncode == 0
    with open(tmp_path / "other.yml", "w", encoding="utf-8") as stream:
        YAML().dump(options | {"base_mlp_dim": 39}, stream)
    result = run_plan(whole, "--config", tmp_path / "other.yml")
    assert result.returncode == 1
    assert "shape: model.layers.0.mlp.gate_proj.weight" in result.stdout


@pytest.mark.parametrize(
    "changes",
    [
        {"base_emb_dim": "26"},
        {"base_num_decoder_layers": 10.5},
        {"head_dim": None},
        {"use_qk_norm": "yes"},
        {"routed_bias": 1},
        {"num_experts": True},
        {"mla_tail_rule": ["all"]},
    ],
    ids=str,
)
def test_options_of_the_wrong_type_are_named(changes: dict[str, Any], whole: Path) -> None:
    options = ling2_params.maxtext_options(hf_config(num_hidden_layers=10)) | changes
    with pytest.raises(CheckpointError, match=f"{next(iter(changes))}: .* is needed"):
        plan.plan(whole, False, options)


def test_the_tail_rule_goes_before_the_options(whole: Path) -> None:
    options = ling2_params.maxtext_options(hf_config(num_hidden_layers=10))
    assert plan.plan(whole, False, options).problems == []
    assert plan.plan(whole, False, options, "never").problems != []


def test_plan_of_the_largest_model(tmp_path: Path) -> None:
    """Headers as the released model would have them, without data: seconds, and no memory."""
    path = REPOSITORY / "target" / "maxtext" / "configs" / "models" / "ling2-1t.yml"
    dims = ling2_params.ModelDims.from_maxtext_config(
        YAML(typ="safe").load(path.read_text("utf-8"))
    )
    entries = [(name, "bfloat16", shape) for name, shape in ling2_params.hf_shapes(dims).items()]
    step = 300
    for number in range(0, len(entries), step):
        part = entries[number : number + step]
        header, offsets = hf_files.build_header(part)
        name, _, shape = part[-1]
        with open(tmp_path / f"model-{number:05}.safetensors", "wb") as stream:
            stream.write(header)
            stream.truncate(offsets[name] + math.prod(shape) * 2)
    config = _config_of(dims)
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    start = time.process_time()
    for scan_layers in (False, True):
        made = plan.plan(tmp_path, scan_layers)
        assert made.problems == []
        assert len(made.rows) == len(entries) > 50_000
    assert made.total_bytes > 1e12
    assert time.process_time() - start < 20


def _config_of(dims: ling2_params.ModelDims) -> dict[str, Any]:
    return hf_config(
        vocab_size=dims.vocab_size,
        hidden_size=dims.emb_dim,
        intermediate_size=dims.mlp_dim,
        num_hidden_layers=dims.pattern.num_decoder_layers,
        num_attention_heads=dims.num_heads,
        num_key_value_heads=dims.num_heads,
        head_dim=dims.head_dim,
        layer_group_size=dims.pattern.interval,
        first_k_dense_replace=dims.pattern.num_dense_layers,
        q_lora_rank=dims.q_lora_rank or None,
        kv_lora_rank=dims.kv_lora_rank,
        qk_nope_head_dim=dims.qk_nope_head_dim,
        qk_rope_head_dim=dims.qk_rope_head_dim,
        v_head_dim=dims.v_head_dim,
        num_experts=dims.num_experts,
        moe_intermediate_size=dims.moe_mlp_dim,
        moe_shared_expert_intermediate_size=dims.shared_mlp_dim,
        num_nextn_predict_layers=dims.mtp_num_layers,
    )


@pytest.mark.parametrize("variant", VARIANTS)
def test_plan_of_oracle_checkpoints(variant: str) -> None:
    assert plan.plan(ORACLE / variant, False).problems == []
    assert plan.plan(ORACLE / variant, True).problems == []


# ---- Pieces ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("piece", "least", "most"), [(1 << 26, 1 << 22, 1 << 26), (500, 100, 200)])
def test_pieces_cover_every_parameter_once(
    piece: int, least: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "PIECE_BYTES", piece)
    monkeypatch.setattr(pieces, "MIN_CHUNK_BYTES", least)
    monkeypatch.setattr(pieces, "MAX_CHUNK_BYTES", most)
    dims = ling2_params.ModelDims.from_hf_config(hf_config(num_hidden_layers=17))
    cut = 0
    for scan_layers in (False, True):
        for parameter in ling2_params.parameters(dims, scan_layers):
            grid = pieces.write_shape(parameter, 2)
            covered = np.zeros(parameter.shape, int)
            found = pieces.split(parameter, 2, grid)
            cut += len(found) > 1
            for one in found:
                covered[one.box] += 1
                assert one.shape == one.parameter.shape or parameter.stack_axes
                assert all(side.start % step == 0 for side, step in zip(one.box, grid, strict=True))
            assert (covered == 1).all(), parameter.key
            # Zarr stores the chunks at an array's end whole: as little of them as can be is beyond it.
            for size, step in zip(parameter.shape, grid, strict=True):
                count = math.ceil(size / step)
                assert count * step - size < count, parameter.key
    assert (cut > 20) == (piece == 500)


@pytest.mark.parametrize("block", [(512, 2048), (3, 7)])
@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.uint64])
@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        *(((), ()), ((7,), (0,)), ((5, 70), (1, 0)), ((70, 5), (1, 0))),
        *(((3, 5, 40), (2, 0, 1)), ((3, 5, 40), (0, 2, 1)), ((3, 5, 40), (1, 2, 0))),
        *(((4, 1, 33), (2, 1, 0)), ((2, 3, 4, 9), (0, 3, 1, 2)), ((0, 4), (1, 0))),
    ],
)
def test_move(
    shape: tuple[int, ...],
    axes: tuple[int, ...],
    dtype: type,
    block: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pieces, "_ROWS", block[0])
    monkeypatch.setattr(pieces, "_COLUMNS", block[1])
    values = np.arange(math.prod(shape), dtype=dtype).reshape(shape)
    source = values.transpose(axes)
    room = np.zeros((2, *source.shape, 2), dtype)
    for target in (np.zeros(source.shape, dtype), room[1, ..., 0]):
        pieces.move(target, source)
        assert np.array_equal(target, source)
    assert not room[0].any()
    assert not room[1, ..., 1].any()


# ---- Files that are written once ------------------------------------------------------------------------------------


@pytest.mark.parametrize("direct", [True, False], ids=["past the page cache", "through it"])
@pytest.mark.parametrize(
    "sizes",
    [
        *([], [0], [1], [65536], [65535, 1], [8, 65536, 3]),
        *([100_000] * 7, [3, 200_000, 5], [131_072, 131_072], [262_144, 1]),
    ],
    ids=str,
)
def test_a_sequential_file_has_what_was_put_into_it(
    sizes: list[int], direct: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hf_files.SequentialFile, "_BUFFER_BYTES", 1 << 17)
    if not direct:
        monkeypatch.setattr(hf_files.os, "O_DIRECT", 0)
    path = tmp_path / "file"
    path.write_bytes(b"longer than what comes" * 50_000)
    data = [np.random.default_rng(size).integers(0, 256, size, np.uint8) for size in sizes]
    with hf_files.SequentialFile(path) as file:
        for part in data:
            at = file.position
            file.room(part.size)[:] = part
            assert file.position == at + part.size
    assert path.read_bytes() == b"".join(part.tobytes() for part in data)


def test_a_file_system_that_cannot_write_past_the_page_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes the flag and refuses the write, as some do."""
    write, refused = os.write, []

    def refuse(descriptor: int, view: memoryview) -> int:
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT:
            refused.append(descriptor)
            raise OSError(errno.EINVAL, "Invalid argument")
        return write(descriptor, view)

    monkeypatch.setattr(hf_files.os, "write", refuse)
    with hf_files.SequentialFile(tmp_path / "file") as file:
        file.room(100)[:] = 7
    assert len(refused) == 1
    assert (tmp_path / "file").read_bytes() == bytes([7] * 100)


def test_an_error_of_a_sequential_file_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, view: memoryview) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(hf_files.os, "write", full)
    file = hf_files.SequentialFile(tmp_path / "file")
    with pytest.raises(OSError, match="No space left"), file:
        file.room(100)[:] = 7
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(file._descriptor)


def test_scratch_memory_is_of_one_thread() -> None:
    scratch = pieces.Scratch()
    first = scratch.array((4, 5), np.uint32)
    again = scratch.array((3,), np.uint16)
    assert first.shape == (4, 5)
    assert np.shares_memory(first, again)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(scratch.array, (4, 5), np.uint32).result()
    assert not np.shares_memory(first, other)
