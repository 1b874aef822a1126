"""What the published model code computes, written anew in NumPy and float64 from the description of its rules."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

Array = np.ndarray
# Of the norms of MLA's latents; all other norms have the config's.
LATENT_EPSILON = 1e-6


def rms_norm(x: Array, scale: Array, epsilon: float) -> Array:
    """RMSNorm over the last axis."""
    return x / np.sqrt(np.square(x).mean(-1, keepdims=True) + epsilon) * scale


def silu(x: Array) -> Array:
    """x * sigmoid(x)."""
    return x * sigmoid(x)


def sigmoid(x: Array) -> Array:
    """The logistic function."""
    return 1 / (1 + np.exp(-x))


def alibi_slopes(heads: int) -> Array:
    """One slope per head; those of the next lower power of two, then every other one of the doubled power."""
    power = 1 << (heads.bit_length() - 1)
    slopes = [2.0 ** (-8 * (k + 1) / power) for k in range(power)]
    slopes += [2.0 ** (-8 * (k + 1) / (2 * power)) for k in range(0, 2 * (heads - power), 2)]
    return np.array(slopes)


@dataclasses.dataclass
class Published:
    """A model of the published kind, without YaRN.

    Attributes:
        config: contents of config.json.
        tensors: the weights by HF name.
    """

    config: dict[str, Any]
    tensors: dict[str, Array]

    def logits(self, ids: Array) -> tuple[Array, list[Array]]:
        """Logits of one row of tokens, and those of each MTP layer."""
        cfg = self.config
        embedding = self._weight("model.word_embeddings")
        head = embedding if cfg["tie_word_embeddings"] else self._weight("lm_head")
        x = embedding[ids]
        for layer in range(cfg["num_hidden_layers"]):
            x = self._layer(x, layer)
        x = self._norm(x, "model.norm")
        logits = x @ head.T
        mtp = []
        for k in range(cfg["num_nextn_predict_layers"]):
            layer = cfg["num_hidden_layers"] + k
            prefix = f"model.layers.{layer}"
            ids = np.append(ids[1:], 0)
            inputs = [
                self._norm(embedding[ids], f"{prefix}.enorm"),
                self._norm(x, f"{prefix}.hnorm"),
            ]
            x = self._layer(self._linear(np.concatenate(inputs, -1), f"{prefix}.eh_proj"), layer)
            x = self._norm(x, f"{prefix}.final_layernorm")
            mtp.append(x @ head.T)
        return logits, mtp

    def _weight(self, name: str) -> Array:
        return self.tensors[f"{name}.weight"].astype(np.float64)

    def _linear(self, x: Array, name: str) -> Array:
        return x @ self._weight(name).T

    def _norm(self, x: Array, name: str, epsilon: float | None = None) -> Array:
        return rms_norm(x, self._weight(name), epsilon or self.config["rms_norm_eps"])

    def _layer(self, x: Array, layer: int) -> Array:
        prefix = f"model.layers.{layer}"
        is_mla = f"{prefix}.attention.kv_b_proj.weight" in self.tensors
        attend = self._mla if is_mla else self._gla
        inputs = self._norm(x, f"{prefix}.input_layernorm")
        x = x + attend(inputs, f"{prefix}.attention", layer)
        is_moe = f"{prefix}.mlp.gate.weight" in self.tensors
        feed_forward = self._moe if is_moe else self._mlp
        return x + feed_forward(
            self._norm(x, f"{prefix}.post_attention_layernorm"), f"{prefix}.mlp"
        )

    def _angles(self, length: int, dims: int) -> Array:
        frequencies = float(self.config["rope_theta"]) ** (-np.arange(0, dims, 2) / dims)
        return (np.arange(length)[:, None] * frequencies)[:, None]

    def _gla(self, x: Array, prefix: str, layer: int) -> Array:
        cfg = self.config
        length, heads, dim = len(x), cfg["num_attention_heads"], cfg["head_dim"]
        projected = self._linear(x, f"{prefix}.query_key_value").reshape(length, 3, heads, dim)
        if cfg["linear_silu"]:
            projected = silu(projected)
        query, key, value = np.moveaxis(projected, 1, 0)
        if cfg["use_qk_norm"]:
            query = self._norm(query, f"{prefix}.query_layernorm")
            key = self._norm(key, f"{prefix}.key_layernorm")
        rotary = int(dim * cfg["partial_rotary_factor"])
        angles = self._angles(length, rotary)

        def rotated(y: Array) -> Array:
            first, second = np.split(y[..., :rotary], 2, -1)
            turned = [
                first * np.cos(angles) - second * np.sin(angles),
                second * np.cos(angles) + first * np.sin(angles),
            ]
            return np.concatenate([*turned, y[..., rotary:]], -1)

        query, key = rotated(query), rotated(key)
        last = max(cfg["num_hidden_layers"] - 1, 1)
        decay = np.exp(-alibi_slopes(heads) * (1 - layer / last + 1e-5))[:, None, None]
        state = np.zeros((heads, dim, dim))
        out = np.empty_like(query)
        for t in range(length):
            state = decay * state + key[t][:, :, None] * value[t][:, None]
            out[t] = np.einsum("hk,hkv->hv", query[t], state) / np.sqrt(dim)
        groups = out.reshape(length, cfg["group_norm_size"], -1)
        normed = rms_norm(groups, np.ones(1), cfg["rms_norm_eps"]).reshape(length, -1)
        gate = sigmoid(self._linear(x, f"{prefix}.g_proj"))
        return self._linear(normed * self._weight(f"{prefix}.g_norm") * gate, f"{prefix}.dense")

    def _mla(self, x: Array, prefix: str, layer: int) -> Array:
        del layer
        cfg = self.config
        length, heads = len(x), cfg["num_attention_heads"]
        nope, rope = cfg["qk_nope_head_dim"], cfg["qk_rope_head_dim"]
        query = x
        if cfg["q_lora_rank"]:
            latent = self._linear(x, f"{prefix}.q_a_proj")
            latent = self._norm(latent, f"{prefix}.q_a_layernorm", LATENT_EPSILON)
            query = self._linear(latent, f"{prefix}.q_b_proj")
        else:
            query = self._linear(x, f"{prefix}.q_proj")
        query = query.reshape(length, heads, nope + rope)
        latent = self._linear(x, f"{prefix}.kv_a_proj_with_mqa")
        latent, shared_key = np.split(latent, [cfg["kv_lora_rank"]], -1)
        latent = self._norm(latent, f"{prefix}.kv_a_layernorm", LATENT_EPSILON)
        both = self._linear(latent, f"{prefix}.kv_b_proj").reshape(length, heads, -1)
        key, value = np.split(both, [nope], -1)
        turn = np.exp(1j * self._angles(length, rope))

        def rotated(y: Array) -> Array:
            pairs = (y[..., ::2] + 1j * y[..., 1::2]) * turn
            return np.stack([pairs.real, pairs.imag], -1).reshape(y.shape)

        scores = np.einsum("thd,shd->hts", query[..., :nope], key)
        scores += np.einsum(
            "thd,sd->hts", rotated(query[..., nope:]), rotated(shared_key[:, None])[:, 0]
        )
        scores = np.where(np.tri(length, dtype=bool), scores / np.sqrt(nope + rope), -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        out = np.einsum("hts,shv->thv", weights, value).reshape(length, -1)
        return self._linear(out, f"{prefix}.dense")

    def _mlp(self, x: Array, prefix: str) -> Array:
        gate = silu(self._linear(x, f"{prefix}.gate_proj"))
        return self._linear(gate * self._linear(x, f"{prefix}.up_proj"), f"{prefix}.down_proj")

    def _moe(self, x: Array, prefix: str) -> Array:
        cfg = self.config
        groups, chosen = cfg["n_group"], cfg["num_experts_per_tok"]
        scores = sigmoid(self._linear(x, f"{prefix}.gate"))
        biased = scores + self.tensors[f"{prefix}.gate.expert_bias"]
        by_group = biased.reshape(len(x), groups, -1)
        best = np.sort(by_group, -1)[..., -2:].sum(-1)
        kept = best >= np.sort(best, -1)[:, -cfg["topk_group"], None]
        biased = np.where(kept[..., None], by_group, -np.inf).reshape(scores.shape)
        selected = biased >= np.sort(biased, -1)[:, -chosen, None]
        weights = np.where(selected, scores, 0)
        if chosen > 1:
            weights /= weights.sum(-1, keepdims=True) + 1e-20
        weights *= cfg["routed_scaling_factor"]
        out = self._mlp(x, f"{prefix}.shared_experts")
        for expert in range(cfg["num_experts"]):
            out += weights[:, expert, None] * self._mlp(x, f"{prefix}.experts.{expert}")
        return out
