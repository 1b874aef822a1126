"""The model against outputs of the published model code, in float32."""

from __future__ import annotations

import dataclasses
import json
import os
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from maxtext.checkpoint_conversion.utils import ling2_params
from maxtext.common import ling2_layers
from maxtext.kernels.gla import gla_log_decay
from maxtext.layers.moe import RoutedMoE
from maxtext.layers.nnx_decoders import NNXDecoder
from maxtext.models.ling2 import Ling2DecoderLayer
from safetensors.numpy import load_file

from migration_tests.checkpoint import hf_models
from migration_tests.model.inside import models, published

ORACLE = Path(os.environ.get("LING2_ORACLE", Path(__file__).parents[1] / "oracle"))
VARIANTS = sorted(path.name for path in ORACLE.iterdir() if (path / "config.json").is_file())
SLOPES = ("zero_based", "hf")
# Largest error, in units of the tensor's root mean square.
TOLERANCE = 2e-4
GRADIENT_TOLERANCE = 1e-3


def error(actual: Any, expected: Any) -> float:
    """Returns the largest absolute error as a multiple of the expected tensor's root mean square."""
    actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    assert actual.shape == expected.shape, (actual.shape, expected.shape)
    return float(np.abs(actual - expected).max() / np.sqrt(np.square(expected).mean()))


@dataclasses.dataclass
class Recorder:
    """Notes what layers, routers and output heads compute while a model is traced."""

    values: dict[str, jax.Array] = dataclasses.field(default_factory=dict)

    def patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        layer_call, topk = Ling2DecoderLayer.__call__, RoutedMoE.get_topk
        head = NNXDecoder.apply_output_head
        current: list[int] = []

        def record_layer(layer: Any, *args: Any, **kwargs: Any) -> Any:
            current.append(layer.layer_idx)
            attention = type(layer.self_attention)
            attention_call = attention.__call__

            def record_attention(module: Any, *inner: Any, **options: Any) -> Any:
                result = attention_call(module, *inner, **options)
                self.values[f"layer{layer.layer_idx}_attn"] = (
                    result[0] if isinstance(result, tuple) else result
                )
                return result

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(attention, "__call__", record_attention)
                result = layer_call(layer, *args, **kwargs)
            self.values[f"layer{layer.layer_idx}_out"] = result[0]
            return result

        def record_topk(module: Any, *args: Any, **kwargs: Any) -> Any:
            weight, index = topk(module, *args, **kwargs)
            self.values[f"layer{current[-1]}_topk_weight"] = weight
            self.values[f"layer{current[-1]}_topk_idx"] = index
            return weight, index

        def record_head(module: Any, *args: Any, normalize_y: bool = True, **kwargs: Any) -> Any:
            logits = head(module, *args, normalize_y=normalize_y, **kwargs)
            self.values["logits" if normalize_y else "mtp0_logits"] = logits
            if normalize_y:
                self.values["final_norm"] = module.decoder_norm(args[1])
            return logits

        monkeypatch.setattr(Ling2DecoderLayer, "__call__", record_layer)
        monkeypatch.setattr(RoutedMoE, "get_topk", record_topk)
        monkeypatch.setattr(NNXDecoder, "apply_output_head", record_head)


def config_of(variant: str, slope: str, **overrides: Any) -> Any:
    """Returns the MaxText config of an oracle checkpoint."""
    hf = json.loads((ORACLE / variant / "config.json").read_text(encoding="utf-8"))
    shapes = {name: tensor.shape for name, tensor in hf_tensors(variant).items()}
    options = ling2_params.maxtext_options(hf, shapes) | {
        "gla_slope_index": slope,
        "scan_layers": False,
        "remat_policy": "none",
        "max_target_length": 200,
        "sparse_matmul": False,
    }
    return models.make_config(**(options | overrides))


@cache
def hf_tensors(variant: str) -> hf_models.Tensors:
    """Returns the tensors of an oracle checkpoint."""
    return load_file(ORACLE / variant / "model.safetensors")


def parameters_of(tensors: hf_models.Tensors, config: Any) -> models.Tensors:
    """Returns HF tensors as the parameters of a model, all of them."""
    dims = ling2_params.ModelDims.from_maxtext_config(config)
    parameters = ling2_params.parameters(dims, config.scan_layers)
    assert {name for p in parameters for name in p.hf_names()} == set(tensors)
    return hf_models.converted(parameters, tensors)


@cache
def computed(variant: str, slope: str) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Returns what the model computes, and what it should."""
    reference = dict(np.load(ORACLE / variant / f"ref_{slope}_T200.npz"))
    config = config_of(variant, slope)
    model = models.make_model(config, parameters_of(hf_tensors(variant), config))
    graphdef, state = nnx.split(model)
    recorder = Recorder()

    @jax.jit
    def forward(state: Any, ids: jax.Array) -> dict[str, jax.Array]:
        recorder.values.clear()
        nnx.merge(graphdef, state)(ids, models.positions_of(ids), enable_dropout=False)
        return dict(recorder.values)

    with pytest.MonkeyPatch.context() as monkeypatch:
        recorder.patch(monkeypatch)
        values = forward(state, jnp.asarray(reference["input_ids"]))
    return jax.tree.map(np.asarray, values), reference


@pytest.mark.parametrize("slope", SLOPES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_outputs(variant: str, slope: str, record_property: Any) -> None:
    values, reference = computed(variant, slope)
    errors: dict[str, float] = {}
    # Outputs are those of row 0; a trimmed reference has some positions only.
    at = reference.get("positions", np.arange(reference["input_ids"].shape[1]))
    values = {name: value[:1, at] for name, value in values.items()}
    for name, expected in reference.items():
        if name in ("input_ids", "positions"):
            continue
        if name.endswith("_log_decay"):
            config = config_of(variant, slope)
            layer = int(name.removeprefix("layer").removesuffix("_log_decay"))
            decay = gla_log_decay(
                config.num_query_heads, layer, config.num_decoder_layers, config.gla_slope_index
            )
            errors[name] = error(decay, expected)
        elif name.endswith("_topk_idx"):
            assert np.array_equal(np.sort(values[name][0]), np.sort(expected)), name
        elif name.endswith("_topk_weight"):
            chosen = name.replace("weight", "idx")
            ours = np.take_along_axis(values[name][0], values[chosen][0].argsort(-1), -1)
            theirs = np.take_along_axis(expected, reference[chosen].argsort(-1), -1)
            errors[name] = error(ours, theirs)
        else:
            errors[name] = error(values[name], expected)
    worst = max(errors, key=lambda name: errors[name])
    for name in ("logits", "mtp0_logits", worst):
        if name in errors:
            record_property(name, errors[name])
            print(f"{variant} {slope} {name}: {errors[name]:.2e}")
    assert errors[worst] <= TOLERANCE, (worst, errors[worst])
    assert "logits" in errors
    assert ("mtp0_logits" in errors) == (config_of(variant, slope).mtp_num_layers > 0)


@pytest.mark.parametrize("variant", VARIANTS)
def test_layers_are_those_of_the_published_code(variant: str) -> None:
    config = config_of(variant, "hf")
    _, reference = computed(variant, "zero_based")
    linear = {
        i
        for i, spec in enumerate(ling2_layers.pattern_of(config).layers())
        if spec.attention == ling2_layers.GLA
    }
    decays = [name for name in reference if name.endswith("_log_decay")]
    assert {int(name.removeprefix("layer").removesuffix("_log_decay")) for name in decays} == linear


# Sizes and options that no checkpoint at hand has.
OTHERS: dict[str, dict[str, Any]] = {
    # All layers MLA and MoE; one expert a token, whose score is its weight; tied embeddings.
    "mla": {
        "num_hidden_layers": 2,
        "layer_group_size": 1,
        "first_k_dense_replace": 0,
        "num_experts_per_tok": 1,
        "tie_word_embeddings": True,
        "num_nextn_predict_layers": 2,
    },
    # Heads that are no power of two, three dense layers, two of four groups of experts, SiLU, no norm of queries and keys.
    "gla": {
        "num_hidden_layers": 5,
        "layer_group_size": 4,
        "first_k_dense_replace": 3,
        "num_attention_heads": 5,
        "num_key_value_heads": 5,
        "group_norm_size": 5,
        "partial_rotary_factor": 0.3,
        "linear_silu": True,
        "use_qk_norm": False,
        "q_lora_rank": None,
        "num_experts": 12,
        "n_group": 4,
        "topk_group": 2,
        "num_experts_per_tok": 4,
        "num_shared_experts": 2,
        "routed_scaling_factor": 0.7,
    },
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_configs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a computation of its own in float64. An epsilon this large shows which norms have it."""
    hf = hf_models.hf_config(rms_norm_eps=0.1, **OTHERS[name])
    options = ling2_params.maxtext_options(hf) | {"scan_layers": name == "gla"}
    config = models.make_config(**options, max_target_length=24, sparse_matmul=False)
    shapes = ling2_params.hf_shapes(ling2_params.ModelDims.from_maxtext_config(config))
    tensors = {
        name: (
            tensor if tensor.ndim == 1 or "embeddings" in name else tensor / shapes[name][1] ** 0.5
        )
        for name, tensor in hf_models.random_tensors(shapes).items()
    }
    model = models.make_model(config, parameters_of(tensors, config))
    heads: list[jax.Array] = []
    head = NNXDecoder.apply_output_head

    def record_head(*args: Any, **kwargs: Any) -> Any:
        heads.append(head(*args, **kwargs))
        return heads[-1]

    def forward(model: nnx.Module, ids: jax.Array) -> list[jax.Array]:
        heads.clear()
        model(ids, models.positions_of(ids), enable_dropout=False)
        return list(heads)

    monkeypatch.setattr(NNXDecoder, "apply_output_head", record_head)
    rows = np.random.default_rng(0).integers(0, hf["vocab_size"], (2, 24))
    actual = models.compiled(model, forward)({}, jnp.asarray(rows))
    expected = [published.Published(hf, tensors).logits(row) for row in rows]
    errors = [error(actual[0], [main for main, _ in expected])]
    for k in range(hf["num_nextn_predict_layers"]):
        errors.append(error(actual[1 + k], [mtp[k] for _, mtp in expected]))
    assert len(actual) == len(errors)
    print(name, " ".join(f"{e:.1e}" for e in errors))
    assert max(errors) <= TOLERANCE


@pytest.mark.parametrize("scan", [False, True])
@pytest.mark.parametrize("remat", ["none", "full"])
def test_gradients(scan: bool, remat: str) -> None:
    directory = ORACLE / "base_s0"
    expected_by_name = dict(np.load(directory / "grads_zero_based_T200.npz"))
    ids = jnp.asarray(np.load(directory / "ref_zero_based_T200.npz")["input_ids"])
    config = config_of("base_s0", "zero_based", scan_layers=scan, remat_policy=remat)
    tensors = parameters_of(hf_tensors("base_s0"), config)
    losses = expected_by_name.pop("loss_main"), expected_by_name.pop("loss_mtp")
    # The routing bias has no gradient: the reference has none, and it is no parameter here.
    bias = {
        name: np.zeros(config.num_experts, np.float32)
        for name in (f"model.layers.{i}.mlp.gate.expert_bias" for i in range(1, 7))
    }
    expected = parameters_of(expected_by_name | bias, config)
    model = models.make_model(config, tensors)
    graphdef, params, rest = nnx.split(model, nnx.Param, ...)
    logits: dict[bool, jax.Array] = {}
    head = NNXDecoder.apply_output_head

    def record_head(module: Any, *args: Any, normalize_y: bool = True, **kwargs: Any) -> Any:
        logits[normalize_y] = head(module, *args, normalize_y=normalize_y, **kwargs)
        return logits[normalize_y]

    def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], -1)
        return -jnp.mean(chosen)

    @jax.jit
    @partial(jax.grad, has_aux=True)
    def gradients(params: Any) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        merged = nnx.merge(graphdef, params, rest, copy=True)
        merged(ids, models.positions_of(ids), enable_dropout=False)
        main = cross_entropy(logits[True][:, :-1], ids[:, 1:])
        mtp = cross_entropy(logits[False][:, :-2], ids[:, 2:])
        return main + 0.3 * mtp, (main, mtp)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(NNXDecoder, "apply_output_head", record_head)
        gradient, actual_losses = gradients(params)
    np.testing.assert_allclose(actual_losses, losses, rtol=1e-6)
    actual = {path: value.get_value() for path, value in nnx.to_flat_state(gradient)}
    compared = [path for path in expected if path[-2:] != ("gate", "bias")]
    assert set(actual) == set(compared)
    errors = {path: error(actual[path], expected[path]) for path in compared}
    worst = max(errors, key=lambda path: errors[path])
    print(f"scan={scan} remat={remat} {'/'.join(worst)}: {errors[worst]:.2e}")
    assert errors[worst] <= GRADIENT_TOLERANCE, (worst, errors[worst])
