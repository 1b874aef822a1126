"""Weights of a checkpoint in HF format as the variables of a Ling2 model, and unscanned variables as scanned ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from maxtext.common import ling2_layers
from safetensors.numpy import load_file

VariablePath = tuple[str, ...]
Tensors = dict[VariablePath, np.ndarray]


def config_overrides(hf: dict[str, Any]) -> dict[str, Any]:
    """Returns the MaxText options that describe the model of an HF config."""
    experts = hf["num_experts"]
    overrides = {
        "vocab_size": hf["vocab_size"],
        "base_emb_dim": hf["hidden_size"],
        "base_mlp_dim": hf["intermediate_size"],
        "base_num_decoder_layers": hf["num_hidden_layers"],
        "base_num_query_heads": hf["num_attention_heads"],
        "base_num_kv_heads": hf["num_key_value_heads"],
        "head_dim": hf["head_dim"],
        "normalization_layer_epsilon": hf["rms_norm_eps"],
        "inhomogeneous_layer_cycle_interval": hf["layer_group_size"],
        "first_num_dense_layers": hf["first_k_dense_replace"],
        "mla_tail_rule": ling2_layers.TAIL_ALL,
        "use_qk_norm": hf["use_qk_norm"],
        "group_norm_size": hf["group_norm_size"],
        "partial_rotary_factor": hf["partial_rotary_factor"],
        "q_lora_rank": hf["q_lora_rank"] or 0,
        "kv_lora_rank": hf["kv_lora_rank"],
        "qk_nope_head_dim": hf["qk_nope_head_dim"],
        "qk_rope_head_dim": hf["qk_rope_head_dim"],
        "v_head_dim": hf["v_head_dim"],
        "mla_interleaved_rope": hf["rope_interleave"],
        "rope_max_timescale": int(hf["rope_theta"]),
        "max_position_embeddings": hf["max_position_embeddings"],
        "original_max_position_embeddings": hf["max_position_embeddings"],
        "num_experts": experts,
        "num_experts_per_tok": hf["num_experts_per_tok"],
        "base_moe_mlp_dim": hf["moe_intermediate_size"],
        "moe_shared_expert_dim": hf["moe_shared_expert_intermediate_size"],
        "shared_experts": hf["num_shared_experts"],
        "n_routing_groups": hf["n_group"],
        "topk_routing_group": hf["topk_group"],
        "routed_scaling_factor": hf["routed_scaling_factor"],
        "mtp_num_layers": hf["num_nextn_predict_layers"],
    }
    yarn = hf["rope_scaling"]
    if yarn is not None:
        assert yarn["rope_type"] == "yarn"
        # The factor of cos and sin is that of `mscale` over that of `mscale_all_dim`.
        assert yarn["mscale"] == yarn["mscale_all_dim"]
        overrides |= {
            "rope_type": "yarn",
            "rope_factor": int(yarn["factor"]),
            "original_max_position_embeddings": yarn["original_max_position_embeddings"],
            "beta_fast": yarn["beta_fast"],
            "beta_slow": yarn["beta_slow"],
            "mscale": yarn["mscale_all_dim"],
        }
    return overrides


def read_config(directory: Path) -> dict[str, Any]:
    """Returns the HF config of a checkpoint."""
    loaded: dict[str, Any] = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    return loaded


def load(directory: Path, config: Any) -> Tensors:
    """Returns the tensors of an HF checkpoint by the paths of an unscanned model's variables."""
    return from_hf(load_file(directory / "model.safetensors"), config)


def from_hf(source: dict[str, np.ndarray], config: Any) -> Tensors:
    """Returns tensors given by HF names by the paths of an unscanned model's variables; all of them have to find a place."""
    left = dict(source)
    tensors: Tensors = {}
    heads, dim = config.num_query_heads, config.head_dim

    def put(path: str, name: str, *shape: int, transpose: bool = True) -> None:
        tensor = left.pop(name)
        if transpose and tensor.ndim > 1:
            tensor = tensor.T
        tensors[tuple(path.split("/"))] = tensor.reshape(shape) if shape else tensor

    def put_mlp(path: str, name: str) -> None:
        for ours, theirs in (("wi_0", "gate_proj"), ("wi_1", "up_proj"), ("wo", "down_proj")):
            put(f"{path}/{ours}/kernel", f"{name}.{theirs}.weight")

    def put_layer(path: str, name: str, spec: ling2_layers.LayerSpec) -> None:
        put(f"{path}/pre_self_attention_layer_norm/scale", f"{name}.input_layernorm.weight")
        put(
            f"{path}/post_self_attention_layer_norm/scale",
            f"{name}.post_attention_layernorm.weight",
        )
        attention, theirs = f"{path}/self_attention", f"{name}.attention"
        if spec.attention == ling2_layers.MLA:
            qk = config.qk_nope_head_dim + config.qk_rope_head_dim
            if config.q_lora_rank:
                put(f"{attention}/wq_a/kernel", f"{theirs}.q_a_proj.weight")
                put(f"{attention}/q_norm/scale", f"{theirs}.q_a_layernorm.weight")
                put(f"{attention}/wq_b/kernel", f"{theirs}.q_b_proj.weight", -1, heads, qk)
            else:
                put(f"{attention}/query/kernel", f"{theirs}.q_proj.weight", -1, heads, qk)
            put(f"{attention}/wkv_a/kernel", f"{theirs}.kv_a_proj_with_mqa.weight")
            put(f"{attention}/kv_norm/scale", f"{theirs}.kv_a_layernorm.weight")
            kv = config.qk_nope_head_dim + config.v_head_dim
            put(f"{attention}/wkv_b/kernel", f"{theirs}.kv_b_proj.weight", -1, heads, kv)
            out = (heads, config.v_head_dim, config.emb_dim)
            put(f"{attention}/out/kernel", f"{theirs}.dense.weight", *out)
        else:
            qkv = (config.emb_dim, 3, heads, dim)
            put(f"{attention}/query_key_value/kernel", f"{theirs}.query_key_value.weight", *qkv)
            put(f"{attention}/g_proj/kernel", f"{theirs}.g_proj.weight", -1, heads, dim)
            put(f"{attention}/dense/kernel", f"{theirs}.dense.weight", heads, dim, -1)
            put(f"{attention}/g_norm/scale", f"{theirs}.g_norm.weight")
            put(f"{attention}/query_layernorm/scale", f"{theirs}.query_layernorm.weight")
            put(f"{attention}/key_layernorm/scale", f"{theirs}.key_layernorm.weight")
        if spec.mlp == ling2_layers.DENSE:
            put_mlp(f"{path}/mlp", f"{name}.mlp")
            return
        routed = f"{path}/Ling2MoeBlock_0/MoeBlock_0"
        put(f"{routed}/gate/kernel", f"{name}.mlp.gate.weight")
        if f"{name}.mlp.gate.expert_bias" in left:
            put(f"{routed}/gate/bias", f"{name}.mlp.gate.expert_bias")
        for ours, projection in (("wi_0", "gate_proj"), ("wi_1", "up_proj"), ("wo", "down_proj")):
            tensors[*routed.split("/"), ours] = np.stack(
                [
                    left.pop(f"{name}.mlp.experts.{e}.{projection}.weight").T
                    for e in range(config.num_experts)
                ]
            )
        put_mlp(f"{path}/Ling2MoeBlock_0/shared_experts", f"{name}.mlp.shared_experts")

    put("token_embedder/embedding", "model.word_embeddings.weight", transpose=False)
    put("decoder/decoder_norm/scale", "model.norm.weight")
    put("decoder/logits_dense/kernel", "lm_head.weight")
    pattern = ling2_layers.pattern_of(config)
    for i in range(pattern.num_decoder_layers):
        put_layer(f"decoder/{pattern.unscanned_name(i)}", f"model.layers.{i}", pattern.layer(i))
    for k in range(1, config.mtp_num_layers + 1):
        i = pattern.num_decoder_layers + k - 1
        path, name = f"mtp_block/mtp_layer_{k}", f"model.layers.{i}"
        put(f"{path}/mtp_{k}_embedding_norm/scale", f"{name}.enorm.weight")
        put(f"{path}/mtp_{k}_hidden_state_norm/scale", f"{name}.hnorm.weight")
        put(f"{path}/mtp_{k}_projection/kernel", f"{name}.eh_proj.weight")
        put(f"{path}/mtp_{k}_final_norm/scale", f"{name}.final_layernorm.weight")
        put_layer(f"{path}/mtp_{k}_transformer_layer", name, pattern.layer(i))
    assert not left, sorted(left)
    return tensors


def scanned(tensors: Tensors, config: Any) -> Tensors:
    """Returns the variables of an unscanned model as those of a scanned one.

    Parameters are stacked on `param_scan_axis`, the routing bias, which is none, on axis 0.
    """
    pattern = ling2_layers.pattern_of(config)
    plan = pattern.scan_plan()
    result: Tensors = {}
    stacks: dict[VariablePath, list[np.ndarray]] = {}
    for i in range(pattern.num_decoder_layers):
        source = ("decoder", pattern.unscanned_name(i))
        of_layer = {
            path[2:]: tensor for path, tensor in sorted(tensors.items()) if path[:2] == source
        }
        for rest, tensor in of_layer.items():
            if i < plan.num_prefix_layers:
                result[*source, *rest] = tensor
            elif i < plan.remainder_base:
                name = f"layer_{(i - plan.num_prefix_layers) % plan.interval}"
                stacks.setdefault(("decoder", "layers", name, *rest), []).append(tensor)
            else:
                name = f"layer_{i - plan.remainder_base}"
                result["decoder", "layers_remainder", name, *rest] = tensor
    for path, stack in stacks.items():
        is_parameter = path[-2:] != ("gate", "bias")
        result[path] = np.stack(stack, axis=config.param_scan_axis if is_parameter else 0)
    names = {pattern.unscanned_name(i) for i in range(pattern.num_decoder_layers)}
    for path, tensor in tensors.items():
        if path[0] != "decoder" or path[1] not in names:
            result[path] = tensor
    return result
