"""HF checkpoints as folders, and faults that are put into them."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from maxtext.checkpoint_conversion.ling2 import hf_files
from maxtext.checkpoint_conversion.utils import ling2_params

from migration_tests.checkpoint.hf_models import Tensors, hf_config

BITS = {"float32": np.uint32, "bfloat16": np.uint16, "float16": np.uint16, "float64": np.uint64}
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
HEAD = "lm_head.weight"
EXPERT = "model.layers.2.mlp.experts.3.up_proj.weight"


def random_bits(config: dict[str, Any], dtype: str = "bfloat16", seed: int = 0) -> Tensors:
    """Tensors of random bits, NaN, infinities and subnormals among them; the routing bias in float32."""
    rng = np.random.default_rng(seed)
    tensors = {}
    for name, shape in ling2_params.hf_shapes(
        ling2_params.ModelDims.from_hf_config(config)
    ).items():
        kind = "float32" if name.endswith("expert_bias") else dtype
        bits = rng.integers(0, np.iinfo(BITS[kind]).max, shape, BITS[kind], endpoint=True)
        tensors[name] = bits.view(np.dtype(kind))
    return tensors


def write_file(path: Path, tensors: Tensors) -> None:
    """Write a safetensors file."""
    entries = [(name, tensor.dtype.name, tensor.shape) for name, tensor in tensors.items()]
    header, _ = hf_files.build_header(entries)
    path.write_bytes(header + b"".join(tensor.tobytes() for tensor in tensors.values()))


def write_folder(directory: Path, config: dict[str, Any], tensors: Tensors) -> Path:
    """Write a checkpoint of two files with an index."""
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    names = sorted(tensors)
    half = len(names) // 2
    for file, part in ((FIRST, names[:half]), (SECOND, names[half:])):
        write_file(directory / file, {name: tensors[name] for name in part})
    index = hf_files.build_index([directory / FIRST, directory / SECOND])
    (directory / hf_files.INDEX).write_text(index, encoding="utf-8")
    return directory


def small_folder(directory: Path, **changes: Any) -> Path:
    """A checkpoint in which every size is another one, with two cycles and a rest when scanned."""
    config = hf_config(**{"num_hidden_layers": 10, **changes})
    return write_folder(directory, config, random_bits(config))


def read_folder(directory: Path) -> Tensors:
    """All tensors of a checkpoint; the index has to name them all, with their files and bytes in all."""
    tensors: Tensors = {}
    places = {}
    for path in sorted(directory.glob("*.safetensors")):
        data = path.read_bytes()
        for tensor in hf_files.read_header(path)[2]:
            assert tensor.name not in tensors
            raw = data[tensor.offset : tensor.offset + tensor.nbytes]
            tensors[tensor.name] = np.frombuffer(raw, tensor.dtype).reshape(tensor.shape)
            places[tensor.name] = path.name
    index = json.loads((directory / hf_files.INDEX).read_text(encoding="utf-8"))
    assert index["weight_map"] == places
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in tensors.values())
    return tensors


def assert_same_bits(actual: Tensors, expected: Tensors) -> None:
    """Fails unless both have the same names, dtypes, shapes and bytes."""
    assert actual.keys() == expected.keys(), actual.keys() ^ expected.keys()
    for name, tensor in expected.items():
        other = actual[name]
        assert (other.dtype, other.shape) == (tensor.dtype, tensor.shape), name
        assert other.tobytes() == tensor.tobytes(), name


def snapshot(directory: Path) -> dict[str, bytes | None]:
    """The contents of a folder."""
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else None
        for path in sorted(directory.rglob("*"))
    }


# ---- Faults ---------------------------------------------------------------------------------------------------------


def edit_header(path: Path, edit: Callable[[dict[str, Any]], None], pad: int = 8) -> None:
    """Change what the header of a file says; its data stay."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    edit(header)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % pad)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])


def _file_of(directory: Path, name: str) -> Path:
    index = json.loads((directory / hf_files.INDEX).read_text(encoding="utf-8"))
    return directory / str(index["weight_map"][name])


def _header(name: str, **changes: Any) -> Callable[[Path], None]:
    """A fault: other values in a tensor's entry of the header."""

    def put(directory: Path) -> None:
        edit_header(_file_of(directory, name), lambda header: header[name].update(changes))

    return put


def _shifted(name: str, by: int) -> Callable[[Path], None]:
    def put(directory: Path) -> None:
        def edit(header: dict[str, Any]) -> None:
            header[name]["data_offsets"] = [at + by for at in header[name]["data_offsets"]]

        edit_header(_file_of(directory, name), edit)

    return put


def _bytes(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def put(directory: Path) -> None:
        path = directory / name
        path.write_bytes(change(path.read_bytes()))

    return put


def _index(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def put(directory: Path) -> None:
        path = directory / hf_files.INDEX
        index = json.loads(path.read_text(encoding="utf-8"))
        change(index)
        path.write_text(json.dumps(index), encoding="utf-8")

    return put


def _config(**changes: Any) -> Callable[[Path], None]:
    def put(directory: Path) -> None:
        path = directory / "config.json"
        config = json.loads(path.read_text(encoding="utf-8")) | changes
        kept = {key: value for key, value in config.items() if value is not ...}
        path.write_text(json.dumps(kept), encoding="utf-8")

    return put


def _rewrite(change: Callable[[Tensors], None], file: str = FIRST) -> Callable[[Path], None]:
    """A fault: other tensors in a file; the index names them."""

    def put(directory: Path) -> None:
        tensors = read_folder(directory)
        index = json.loads((directory / hf_files.INDEX).read_text(encoding="utf-8"))
        held = {name: tensors[name] for name, place in index["weight_map"].items() if place == file}
        change(held)
        write_file(directory / file, held)
        others = {name: place for name, place in index["weight_map"].items() if place != file}
        index["weight_map"] = others | dict.fromkeys(held, file)
        (directory / hf_files.INDEX).write_text(json.dumps(index), encoding="utf-8")

    return put


def _replace_by_folder(directory: Path) -> None:
    (directory / SECOND).unlink()
    (directory / SECOND).mkdir()


def _remove_shards(directory: Path) -> None:
    for name in (FIRST, SECOND, hf_files.INDEX):
        (directory / name).unlink()


def _replace_by_dead_link(directory: Path) -> None:
    (directory / SECOND).unlink()
    os.symlink("nowhere", directory / SECOND)


def _add_to_both(directory: Path) -> None:
    """One tensor in both files, the index naming the second."""
    tensors = read_folder(directory)
    name = min(name for name in tensors if _file_of(directory, name).name == SECOND)
    first = {n: t for n, t in tensors.items() if _file_of(directory, n).name == FIRST}
    write_file(directory / FIRST, first | {name: tensors[name]})


def _double_entry(directory: Path) -> None:
    path = directory / FIRST
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = data[8 : 8 + length].rstrip()
    name = min(key for key in json.loads(header) if key != "__metadata__")
    entry = json.dumps({name: json.loads(header)[name]}).encode()[1:-1]
    header = header[:-1] + b"," + entry + b"}"
    path.write_bytes(struct.pack("<Q", len(header)) + header + data[8 + length :])


def _overlap(directory: Path) -> None:
    """The second tensor of a file begins within the first."""

    def edit(header: dict[str, Any]) -> None:
        first, second = sorted(
            (entry for name, entry in header.items() if name != "__metadata__"),
            key=lambda entry: entry["data_offsets"],
        )[:2]
        length = second["data_offsets"][1] - second["data_offsets"][0]
        start = first["data_offsets"][1] - 2
        second["data_offsets"] = [start, start + length]

    edit_header(directory / FIRST, edit)


def _swap_shape(directory: Path) -> None:
    def change(tensors: Tensors) -> None:
        tensors[HEAD] = np.ascontiguousarray(tensors[HEAD].T)

    _rewrite(change)(directory)


def _float32(name: str) -> Callable[[Path], None]:
    def change(tensors: Tensors) -> None:
        tensors[name] = tensors[name].astype(np.float32)

    return _rewrite(change, SECOND if name > "model.layers.3" else FIRST)


def _renamed(change: Callable[[str], str]) -> Callable[[Path], None]:
    """A fault: other names of the tensors."""

    def put(directory: Path) -> None:
        tensors = {change(name): tensor for name, tensor in read_folder(directory).items()}
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        shutil.rmtree(directory)
        write_folder(directory, config, tensors)

    return put


# What cannot be read: `plan` says so with exit status 2. Value: the fault, and what the message has to name.
UNREADABLE: dict[str, tuple[Callable[[Path], None], tuple[str, ...]]] = {
    "shard is a folder": (_replace_by_folder, (SECOND,)),
    "shard is a dead link": (_replace_by_dead_link, (SECOND,)),
    "shard is empty": (_bytes(FIRST, lambda _: b""), (FIRST, "0 bytes")),
    "shard has seven bytes": (_bytes(FIRST, lambda data: data[:7]), (FIRST, "7 bytes")),
    "shard ends within the header": (_bytes(FIRST, lambda data: data[:100]), (FIRST, "header")),
    "shard ends within the data": (_bytes(FIRST, lambda data: data[:-1]), (FIRST, "truncated")),
    "bytes after the data": (_bytes(FIRST, lambda data: data + b"\0\0"), (FIRST, "2 bytes")),
    "header longer than the file": (
        _bytes(FIRST, lambda data: struct.pack("<Q", 1 << 40) + data[8:]),
        (FIRST, str(1 << 40)),
    ),
    "header of no length": (
        _bytes(FIRST, lambda data: struct.pack("<Q", 0) + data[8:]),
        (FIRST, "JSON"),
    ),
    "header is no JSON": (_bytes(FIRST, lambda data: data[:8] + b"?" + data[9:]), (FIRST, "JSON")),
    "header is no text": (
        _bytes(FIRST, lambda data: data[:9] + b"\xff\xfe" + data[11:]),
        (FIRST, "UTF-8"),
    ),
    "header is a list": (
        _bytes(FIRST, lambda data: struct.pack("<Q", 8) + b"[1,2,3] " + data),
        (FIRST, "object"),
    ),
    "tensor twice in a header": (_double_entry, (FIRST, "twice")),
    "entry without dtype": (
        lambda d: edit_header(d / FIRST, lambda header: header[HEAD].pop("dtype")),
        (FIRST, HEAD),
    ),
    "unknown dtype": (_header(HEAD, dtype="F12"), (FIRST, HEAD, "F12")),
    "integers": (_header(HEAD, dtype="I16"), (FIRST, HEAD, "I16")),
    "dtype of another size": (_header(HEAD, dtype="F32"), (FIRST, HEAD, "bytes")),
    "shape of text": (_header(HEAD, shape="44"), (FIRST, HEAD)),
    "negative size": (_header(HEAD, shape=[-44, -26]), (FIRST, HEAD)),
    "shape of another size": (_header(HEAD, shape=[44, 25]), (FIRST, HEAD)),
    "offsets beyond the file": (_shifted(HEAD, 1 << 30), (FIRST, HEAD)),
    "one offset": (_header(HEAD, data_offsets=[0]), (FIRST, HEAD)),
    "offsets in reverse": (_header(HEAD, data_offsets=[44 * 26 * 2, 0]), (FIRST, HEAD)),
    "data that overlap": (_overlap, (FIRST, "overlap")),
    "index is no JSON": (_bytes(hf_files.INDEX, lambda _: b"{"), (hf_files.INDEX,)),
    "index is a list": (_bytes(hf_files.INDEX, lambda _: b"[]"), (hf_files.INDEX,)),
    "index without weight_map": (_index(lambda index: index.pop("weight_map")), ("weight_map",)),
    "index names a file that is not there": (
        _index(lambda index: index["weight_map"].update({HEAD: "model-9.safetensors"})),
        ("model-9.safetensors", HEAD),
    ),
    "index leads out of the folder": (
        _index(lambda index: index["weight_map"].update({HEAD: "../x.safetensors"})),
        ("../x.safetensors", HEAD),
    ),
    "index names the wrong file": (
        _index(lambda index: index["weight_map"].update({HEAD: SECOND})),
        (SECOND, HEAD),
    ),
    "index names a tensor that is not there": (
        _index(lambda index: index["weight_map"].update({"model.more.weight": FIRST})),
        (FIRST, "model.more.weight"),
    ),
    "no shard": (
        _remove_shards,
        ("safetensors",),
    ),
    "no config": (lambda d: (d / "config.json").unlink(), ("config.json",)),
    "config is no JSON": (_bytes("config.json", lambda data: data[:-1]), ("config.json", "JSON")),
    "config is a list": (_bytes("config.json", lambda _: b"[]"), ("config.json",)),
    "config is no text": (_bytes("config.json", lambda _: b"\xff\xff"), ("config.json",)),
    "config of another model": (_config(model_type="llama"), ("config.json", "llama")),
    "config of no model": (_config(model_type=...), ("config.json", "model_type")),
    "config without a size": (_config(hidden_size=...), ("config.json", "hidden_size")),
    "config with text for a size": (_config(hidden_size="x"), ("config.json", "hidden_size")),
    "config with an infinite number": (
        _config(rope_theta=float("inf")),
        ("config.json", "rope_theta"),
    ),
    "config with more layers than there can be": (
        _config(num_hidden_layers=10**12),
        ("config.json", "num_hidden_layers"),
    ),
    "config with one size under two names": (
        _config(n_routed_experts=6),
        ("config.json", "num_experts", "n_routed_experts"),
    ),
    "eight bits": (_header(HEAD, dtype="F8_E4M3", shape=[44, 52]), (FIRST, HEAD, "F8_E4M3")),
    "config with more dense layers than layers": (
        _config(first_k_dense_replace=99),
        ("config.json", "first_k_dense_replace"),
    ),
}
# What can be read and does not fit: `plan` lists it with exit status 1, a conversion refuses it with 2.
UNACCOUNTED: dict[str, tuple[Callable[[Path], None], tuple[str, ...]]] = {
    "tensor missing": (_rewrite(lambda tensors: tensors.__delitem__(HEAD)), (HEAD, "missing")),
    "tensor extra": (
        _rewrite(lambda tensors: tensors.update({"model.more.weight": tensors[HEAD]})),
        ("model.more.weight",),
    ),
    "tensor in two shards": (_add_to_both, (FIRST, SECOND)),
    "tensor transposed": (_swap_shape, (HEAD, "[26, 44]")),
    "config of fewer layers": (_config(num_hidden_layers=6), ("model.layers.6.enorm",)),
    "config of more experts": (_config(num_experts=6), ("mlp.experts.5",)),
    "config without the MTP layers": (
        _config(num_nextn_predict_layers=0),
        ("num_nextn_predict_layers 0", "layers 0 to 11"),
    ),
    "config of an MTP layer more": (
        _config(num_nextn_predict_layers=3),
        ("num_nextn_predict_layers 3", "layers 0 to 11"),
    ),
    "names without their first part": (
        _renamed(lambda name: name.removeprefix("model.")),
        ("model.layers", "layers.0."),
    ),
    "expert of another dtype": (_float32(EXPERT), (EXPERT, "float32")),
    "shard that the index does not name": (
        lambda d: write_file(d / "more.safetensors", {HEAD: np.zeros((44, 26), np.float32)}),
        ("more.safetensors",),
    ),
}


def _as_in_a_cache(directory: Path) -> None:
    """Links to files that have other names, as in the cache of Hugging Face's hub."""
    blobs = directory.with_name(f"{directory.name}-blobs")
    directory.rename(blobs)
    directory.mkdir()
    for number, path in enumerate(sorted(blobs.iterdir())):
        (directory / path.name).symlink_to(f"../{blobs.name}/{number}")
        path.rename(blobs / str(number))


def _shared_by_mtp(directory: Path) -> None:
    tensors = read_folder(directory)
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    for layer in (10, 11):
        name = f"model.layers.{layer}"
        tensors[f"{name}.embed_tokens.weight"] = tensors["model.word_embeddings.weight"]
        tensors[f"{name}.shared_head.head.weight"] = tensors[HEAD]
    shutil.rmtree(directory)
    write_folder(directory, config, tensors)


def _hidden_file(directory: Path) -> None:
    (directory / f"._{FIRST}").write_bytes(b"Mac OS X")


# What differs from other checkpoints and is right.
HARMLESS: dict[str, Callable[[Path], None]] = {
    "files of a cache": _as_in_a_cache,
    "config with a mark of its byte order": _bytes(
        "config.json", lambda data: b"\xef\xbb\xbf" + data
    ),
    "shard without tensors": lambda d: write_file(d / "model-3.safetensors", {}),
    "hidden file": _hidden_file,
    "index without an entry": _index(lambda index: index["weight_map"].pop(HEAD)),
    "index with another total": _index(lambda index: index.update(metadata={"total_size": 1})),
    "index with more in it": _index(lambda index: index.update(more=[None])),
    "header with metadata": lambda d: edit_header(
        d / FIRST, lambda header: header.update(__metadata__={"format": "pt", "x": "y"})
    ),
    "MTP layers with what they share": _shared_by_mtp,
    "config with other names": _config(
        num_experts=..., n_routed_experts=5, num_shared_experts=..., n_shared_experts=1
    ),
    "config with null for false": _config(use_bias=None, use_qkv_bias=None, linear_silu=None),
    "config with more keys": _config(dtype="bfloat16", torch_dtype=..., more={"a": [None]}),
}
assert ml_dtypes.bfloat16 is not None  # numpy knows the name by the import
