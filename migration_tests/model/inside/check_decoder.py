"""What the decoder is made of, and that it computes the same whether scanned or not."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from flax.linen import logical_axis_rules
from maxtext.common import ling2_layers
from maxtext.common.common_types import MODEL_MODE_TRAIN
from maxtext.layers import attention_gla
from maxtext.layers.attention_gla import BailingMoeV2LinearAttention
from maxtext.layers.attention_mla import MLA
from maxtext.layers.linears import MlpBlock
from maxtext.layers.moe import MoEBiasVar, RoutedAndSharedMoE
from maxtext.layers.multi_token_prediction import MultiTokenPredictionLayer
from maxtext.layers.nnx_decoders import NNXDecoder
from maxtext.models import ling2
from maxtext.utils import model_creation_utils

from migration_tests.model.inside import models

# (layers, interval, dense layers, tail rule): prefix 0, 1, 2; cycles alone, and with a remainder.
SHAPES = [
    (4, 2, 0, "last"),
    (5, 2, 0, "last"),
    (5, 2, 1, "never"),
    (4, 2, 1, "last"),
    (4, 2, 2, "last"),
    (5, 2, 2, "all"),
]
TOLERANCE = 1e-5


def layers_config(shape: tuple[Any, ...], **overrides: Any) -> Any:
    """Returns the config of a model of the given numbers of layers."""
    num_layers, interval, dense, tail_rule = (*shape, "last")[:4]
    options = {
        "base_num_decoder_layers": num_layers,
        "inhomogeneous_layer_cycle_interval": interval,
        "first_num_dense_layers": dense,
        "mla_tail_rule": tail_rule,
        "max_target_length": 24,
        "sparse_matmul": False,
        "mtp_num_layers": 0,
    }
    return models.make_config(**(options | overrides))


def abstract_model(config: Any) -> nnx.Module:
    """Returns a model without arrays."""
    _, abstract = model_creation_utils.create_nnx_abstract_model(config, models.make_mesh(config))
    return abstract


def weight_paths(model: nnx.Module) -> set[str]:
    """Returns the paths of a model's weights."""
    flat = nnx.to_flat_state(nnx.state(model))
    return {"/".join(map(str, path)) for path, value in flat if models.is_weight(path, value)}


def tokens_of(config: Any, seed: int = 0) -> jax.Array:
    """Returns two rows of random tokens."""
    rng = np.random.default_rng(seed)
    return jnp.asarray(rng.integers(0, config.vocab_size, (2, config.max_target_length)))


def relative(actual: Any, expected: Any) -> float:
    """Returns the largest error as a multiple of the largest expected value."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    return float(np.abs(actual - expected).max() / np.abs(expected).max())


class TestLayers:
    """RFC-0002, phase 1."""

    @pytest.mark.parametrize(
        ("layer_idx", "dense", "attention", "mlp"),
        [
            (0, 1, BailingMoeV2LinearAttention, MlpBlock),
            (1, 1, BailingMoeV2LinearAttention, RoutedAndSharedMoE),
            (2, 1, MLA, RoutedAndSharedMoE),
            (2, 3, MLA, MlpBlock),
            (6, 1, MLA, RoutedAndSharedMoE),  # the MTP layer
        ],
    )
    def test_kinds(self, layer_idx: int, dense: int, attention: type, mlp: type) -> None:
        config = layers_config((6, 3, dense))
        mesh = models.make_mesh(config)
        with logical_axis_rules(config.logical_axis_rules):
            layer = nnx.eval_shape(
                lambda: ling2.Ling2DecoderLayer(
                    config, mesh, MODEL_MODE_TRAIN, layer_idx, rngs=nnx.Rngs(0)
                )
            )
        assert isinstance(layer.self_attention, attention)
        assert isinstance(layer.Ling2MoeBlock_0 if layer.is_moe else layer.mlp, mlp)
        assert layer.is_moe == (mlp is RoutedAndSharedMoE)

    @pytest.mark.parametrize("layer_idx", [1, 2])
    def test_forward_of_one(self, layer_idx: int) -> None:
        config = layers_config((6, 3, 1))
        mesh = models.make_mesh(config)
        inputs = jax.random.normal(jax.random.key(0), (2, 24, config.emb_dim))
        with logical_axis_rules(config.logical_axis_rules):
            layer = ling2.Ling2DecoderLayer(
                config, mesh, MODEL_MODE_TRAIN, layer_idx, rngs=nnx.Rngs(0)
            )
            outputs, kv_cache = layer(
                inputs, None, models.positions_of(inputs[..., 0]), True, MODEL_MODE_TRAIN
            )
        assert outputs.shape == inputs.shape
        assert bool(jnp.isfinite(outputs).all())
        assert kv_cache is None

    def test_dispatch(self) -> None:
        for scan, layer_class in (
            (False, ling2.Ling2DecoderLayer),
            (True, ling2.Ling2ScannableBlock),
        ):
            model = abstract_model(layers_config((6, 3, 1), scan_layers=scan, mtp_num_layers=1))
            assert model.decoder.get_decoder_layers() == [layer_class]
            transformer_layer = model.mtp_block.mtp_layer_1.transformer_layer
            assert isinstance(transformer_layer, ling2.Ling2DecoderLayer)
            assert transformer_layer.layer_idx == 6


class TestNames:
    """The names that checkpoints hold."""

    def test_unscanned(self) -> None:
        paths = weight_paths(abstract_model(layers_config((6, 3, 1), scan_layers=False)))
        layers = {path.split("/")[1] for path in paths if path.startswith("decoder/")}
        assert layers == {"dense_layers_0", "decoder_norm", "logits_dense"} | {
            f"moe_layers_{i}" for i in range(5)
        }
        gla, mla = "decoder/moe_layers_0/self_attention", "decoder/moe_layers_1/self_attention"
        assert {path for path in paths if path.startswith(gla)} == {
            f"{gla}/{name}"
            for name in (
                "query_key_value/kernel",
                "g_proj/kernel",
                "dense/kernel",
                "g_norm/scale",
                "query_layernorm/scale",
                "key_layernorm/scale",
            )
        }
        assert f"{mla}/wkv_a/kernel" in paths
        assert "decoder/dense_layers_0/mlp/wi_0/kernel" in paths
        routed = "decoder/moe_layers_0/Ling2MoeBlock_0"
        assert f"{routed}/MoeBlock_0/gate/bias" in paths
        assert f"{routed}/shared_experts/wo/kernel" in paths

    def test_scanned(self) -> None:
        paths = weight_paths(abstract_model(layers_config((9, 3, 1), scan_layers=True)))
        layers = {
            "/".join(path.split("/")[1:3]) for path in paths if "layers" in path.split("/")[1]
        }
        assert {name for name in layers if not name.startswith("dense_layers_0/")} == {
            *(f"layers/layer_{i}" for i in range(3)),
            *(f"layers_remainder/layer_{i}" for i in range(2)),
        }
        assert any(name.startswith("dense_layers_0/") for name in layers)

    def test_shapes_of_stacks(self) -> None:
        model = abstract_model(layers_config((8, 3, 1), scan_layers=True))
        layer = model.decoder.layers.layer_0
        assert layer.pre_self_attention_layer_norm.scale.shape == (64, 2)
        assert layer.self_attention.query_key_value.kernel.shape == (64, 2, 3, 4, 16)
        assert layer.Ling2MoeBlock_0.MoeBlock_0.gate.bias.shape == (2, 8)
        assert layer.Ling2MoeBlock_0.shared_experts.wi_0.kernel.shape == (64, 2, 40)

    def test_routing_bias_is_no_parameter(self) -> None:
        model = abstract_model(layers_config((6, 3, 1), scan_layers=False, weight_dtype="bfloat16"))
        bias = model.decoder.moe_layers_0.Ling2MoeBlock_0.MoeBlock_0.gate.bias
        assert isinstance(bias, MoEBiasVar)
        assert not isinstance(bias, nnx.Param)
        assert bias.dtype == jnp.float32
        assert model.decoder.moe_layers_0.self_attention.dense.kernel.dtype == jnp.bfloat16


def forward_and_gradients(config: Any, tensors: models.Tensors) -> tuple[Any, Any, models.Tensors]:
    """Returns logits, what was recorded, and gradients of a projection of the logits."""
    tokens = tokens_of(config)
    graphdef, params, rest = nnx.split(models.make_model(config, tensors), nnx.Param, ...)
    cotangent = jax.random.normal(jax.random.key(1), (*tokens.shape, config.vocab_size))

    def loss(params: Any) -> Any:
        merged = nnx.merge(graphdef, params, rest, copy=True)
        logits = merged(tokens, models.positions_of(tokens), enable_dropout=False)
        recorded = nnx.pop(merged, nnx.Intermediate).to_pure_dict()
        return jnp.mean(logits * cotangent), (logits, recorded)

    (_, aux), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    flat = {path: np.asarray(value.get_value()) for path, value in nnx.to_flat_state(gradient)}
    return *aux, flat


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "-".join(map(str, shape)))
class TestScanEqualsLoop:
    """RFC-0002, phase 2."""

    def test_forward_and_gradients(self, shape: tuple[Any, ...]) -> None:
        loop_config = layers_config(shape, scan_layers=False, remat_policy="full")
        config = layers_config(shape, scan_layers=True, remat_policy="full")
        unscanned = models.random_tensors(abstract_model(loop_config))
        logits, recorded, gradients = forward_and_gradients(loop_config, unscanned)
        scanned_logits, scanned_recorded, actual = forward_and_gradients(
            config, models.scanned(unscanned, config)
        )
        assert relative(scanned_logits, logits) <= TOLERANCE
        biases = {path: tensor for path, tensor in unscanned.items() if path not in gradients}
        expected = models.scanned(gradients | biases, config)
        errors = {path: relative(actual[path], expected[path]) for path in actual}
        assert set(actual) == {path for path in expected if path[-2:] != ("gate", "bias")}
        print(
            shape,
            f"logits {relative(scanned_logits, logits):.1e}, gradients {max(errors.values()):.1e}",
        )
        assert max(errors.values()) <= TOLERANCE, max(errors, key=lambda path: errors[path])
        # No layer is left out: each has parameters of its own, and the output depends on all of them.
        assert {path[1] for path in unscanned if "layers_" in path[1]} == {
            ling2_layers.pattern_of(config).unscanned_name(i) for i in range(shape[0])
        }
        assert {path for path, gradient in gradients.items() if not gradient.any()} == set()
        # Every MoE layer records its expert counts, and both ways the same ones.
        pattern = ling2_layers.pattern_of(config)
        counts = recorded["decoder"]
        expected_counts = [
            counts[pattern.unscanned_name(i)]["moe_expert_counts"]
            for i in range(pattern.num_dense_layers, pattern.num_decoder_layers)
        ]
        assert [np.sum(layer) for layer in expected_counts] == [48 * 2] * len(expected_counts)
        actual_counts = layers_in_order(scanned_recorded["decoder"], pattern, "moe_expert_counts")
        np.testing.assert_array_equal(actual_counts, expected_counts)


def layers_in_order(recorded: Any, pattern: ling2_layers.LayerPattern, name: str) -> list[Any]:
    """Returns what the MoE layers of a scanned decoder have recorded under a name, in the order of the layers."""
    plan = pattern.scan_plan()
    result = []
    for i in range(pattern.num_dense_layers, pattern.num_decoder_layers):
        if i < plan.remainder_base:
            cycle, layer = divmod(i - plan.num_prefix_layers, plan.interval)
            result.append(recorded["layers"][f"layer_{layer}"][name][cycle])
        else:
            layer = i - plan.remainder_base
            result.append(recorded["layers_remainder"][f"layer_{layer}"][name])
    return result


class TestEveryLayerCounts:
    """A layer that is left out, run twice or run with another's index shows."""

    SHAPE = (9, 3, 1)

    @pytest.fixture(scope="class")
    def forwards(self) -> Any:
        unscanned = layers_config(self.SHAPE, scan_layers=False)
        scanned = layers_config(self.SHAPE, scan_layers=True)
        tensors = models.random_tensors(abstract_model(unscanned))
        tokens = tokens_of(unscanned)

        def forward(model: nnx.Module) -> jax.Array:
            return model(tokens, models.positions_of(tokens), enable_dropout=False)

        def run(config: Any, given: models.Tensors) -> Any:
            return models.compiled(models.make_model(config, given), forward)

        loop = run(unscanned, tensors)
        scan = run(scanned, models.scanned(tensors, scanned))
        return tensors, loop, lambda given: scan(models.scanned(given, scanned))

    def test_perturbed_layers(self, forwards: Any) -> None:
        tensors, loop, scan = forwards
        pattern = ling2_layers.LayerPattern(*self.SHAPE)
        plan = pattern.scan_plan()
        assert (plan.num_prefix_layers, plan.num_cycles, plan.num_remainder_layers) == (1, 2, 2)
        base = np.asarray(loop(tensors))
        assert relative(scan(tensors), base) <= TOLERANCE
        outputs = [base]
        for i in range(pattern.num_decoder_layers):
            name = ("decoder", pattern.unscanned_name(i), "pre_self_attention_layer_norm", "scale")
            changed = tensors | {name: tensors[name] * 1.5}
            outputs.append(np.asarray(loop(changed)))
            assert relative(scan(changed), outputs[-1]) <= TOLERANCE, i
        for i, one in enumerate(outputs):
            for other in outputs[:i]:
                assert relative(one, other) > 1e-4

    def test_index_of_each_layer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The decays that a scanned model uses are those of the layers' indices in the whole model."""
        seen: list[int] = []
        log_decay = attention_gla.gla_log_decay

        def record(num_heads: int, layer_idx: Any, *args: Any) -> Any:
            jax.debug.callback(
                lambda index: seen.append(int(index)), jnp.asarray(layer_idx), ordered=True
            )
            return log_decay(num_heads, layer_idx, *args)

        monkeypatch.setattr(attention_gla, "gla_log_decay", record)
        config = layers_config(self.SHAPE, scan_layers=True, remat_policy="none")
        model = models.make_model(config)
        tokens = tokens_of(config)
        call = models.compiled(
            model, lambda m: m(tokens, models.positions_of(tokens), enable_dropout=False)
        )
        jax.block_until_ready(call({}))
        jax.effects_barrier()
        linear = [
            i
            for i, spec in enumerate(ling2_layers.pattern_of(config).layers())
            if spec.attention == ling2_layers.GLA
        ]
        assert seen == linear


def test_packed_sequences_do_not_see_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in the logits nor in those of the MTP layer, at whose last token there is no next one."""
    config = layers_config((4, 3, 1), scan_layers=True, mtp_num_layers=1)
    model = models.make_model(config)
    rng = np.random.default_rng(0)
    one, other = rng.integers(0, config.vocab_size, 10), rng.integers(0, config.vocab_size, 11)
    packed = jnp.asarray(np.r_[one, other, [0] * 3])[None]
    segments = jnp.asarray([1] * 10 + [2] * 11 + [0] * 3)[None]
    positions = jnp.asarray([*range(10), *range(11), 0, 0, 0])[None]

    heads: list[jax.Array] = []
    head = NNXDecoder.apply_output_head

    def record_head(*args: Any, **kwargs: Any) -> Any:
        heads.append(head(*args, **kwargs))
        return heads[-1]

    def forward(model: nnx.Module, tokens: Any, positions: Any, segments: Any) -> jax.Array:
        heads.clear()
        model(tokens, positions, segments, enable_dropout=False)
        return jnp.stack(heads)

    monkeypatch.setattr(NNXDecoder, "apply_output_head", record_head)
    call = models.compiled(model, forward)
    together = call({}, packed, positions, segments)
    assert together.shape == (2, 1, 24, config.vocab_size)
    for start, sequence in ((0, one), (10, other)):
        padded = jnp.asarray(np.r_[sequence, [0] * (24 - len(sequence))])[None]
        ones = (jnp.arange(24) < len(sequence)).astype(jnp.int32)[None]
        alone = call({}, padded, models.positions_of(padded), ones)
        end = start + len(sequence)
        for actual, expected in zip(together, alone, strict=True):
            assert relative(actual[:, start:end], expected[:, : len(sequence)]) <= TOLERANCE


@pytest.mark.parametrize("normed", [False, True])
def test_states_between_mtp_layers(normed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    config = layers_config(
        (3, 3, 1), scan_layers=True, mtp_num_layers=2, mtp_use_final_norm_hidden_state=normed
    )
    model = models.make_model(config)
    assert model.mtp_block.mtp_layer_2.transformer_layer.layer_idx == 4
    fed: list[jax.Array] = []
    call = MultiTokenPredictionLayer.__call__

    def record(layer: Any, prev_hidden_state: jax.Array, *args: Any, **kwargs: Any) -> jax.Array:
        output = call(layer, prev_hidden_state, *args, **kwargs)
        fed.extend((prev_hidden_state, output, layer.final_norm(output)))
        return output

    monkeypatch.setattr(MultiTokenPredictionLayer, "__call__", record)
    tokens = tokens_of(config)

    def forward(model: nnx.Module) -> Any:
        _, hidden, *_ = model.decoder(model.token_embedder, tokens, models.positions_of(tokens))
        model(tokens, models.positions_of(tokens), enable_dropout=False)
        return hidden, model.decoder.decoder_norm(hidden), list(fed)

    hidden, normed_hidden, states = models.compiled(model, forward)({})
    first, output, normed_output, second, *_ = states
    assert relative(first, normed_hidden if normed else hidden) <= TOLERANCE
    assert relative(second, normed_output if normed else output) <= TOLERANCE


def test_ways_of_multiplying_by_experts() -> None:
    """The grouped matmul kernel (interpreted here, MaxText's default) and ragged products give what the dense product does."""
    logits = {}
    for sparse, megablox in ((False, False), (True, False), (True, True)):
        config = layers_config((2, 2, 1), sparse_matmul=sparse, megablox=megablox)
        tokens = tokens_of(config)
        call = models.compiled(
            models.make_model(config),
            lambda model, tokens: model(tokens, models.positions_of(tokens), enable_dropout=False),
        )
        logits[sparse, megablox] = call({}, tokens)
    for other in ((True, False), (True, True)):
        assert relative(logits[other], logits[False, False]) <= TOLERANCE


def routed_by_hand(
    scores: np.ndarray, bias: np.ndarray, groups: int, kept: int, chosen: int, factor: float
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the experts of one token, sorted, and their weights, by the definition of group-limited routing."""
    biased = scores + bias
    grouped = biased.reshape(groups, -1)
    best = np.argsort(-np.sort(grouped)[:, -2:].sum(1), kind="stable")[:kept]
    allowed = np.isin(np.arange(groups), best).repeat(grouped.shape[1])
    experts = np.sort(np.argsort(np.where(allowed, -biased, np.inf), kind="stable")[:chosen])
    return experts, scores[experts] / scores[experts].sum() * factor


@pytest.mark.parametrize(
    ("experts", "groups", "kept", "chosen"), [(4, 2, 1, 2), (8, 4, 2, 3), (12, 3, 2, 4)]
)
def test_groups_that_routing_has_masked(experts: int, groups: int, kept: int, chosen: int) -> None:
    """Biased scores may all be negative; an expert of a masked group is not chosen for all that."""
    config = layers_config(
        (2, 2, 1),
        num_experts=experts,
        n_routing_groups=groups,
        topk_routing_group=kept,
        num_experts_per_tok=chosen,
    )
    mesh = models.make_mesh(config)
    with logical_axis_rules(config.logical_axis_rules):
        layer = ling2.Ling2DecoderLayer(config, mesh, MODEL_MODE_TRAIN, 1, rngs=nnx.Rngs(0))
    routed = layer.Ling2MoeBlock_0.MoeBlock_0
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((200, experts))
    bias = rng.uniform(-3, -1, (200, experts))
    if experts == 4:
        logits[0], bias[0] = (2, 1, 0, -1), (-0.9, -0.9, -2, -2)
    scores = 1 / (1 + np.exp(-logits))
    weights_of, indices = jax.jit(lambda *args: routed.get_topk(*args))(
        jnp.asarray(scores + bias, jnp.float32)[None], jnp.asarray(scores, jnp.float32)[None]
    )
    order = np.argsort(np.asarray(indices[0]), axis=-1)
    actual = np.take_along_axis(np.asarray(indices[0]), order, -1)
    expected = [
        routed_by_hand(s, b, groups, kept, chosen, config.routed_scaling_factor)
        for s, b in zip(scores, bias, strict=True)
    ]
    np.testing.assert_array_equal(actual, [row for row, _ in expected])
    np.testing.assert_allclose(
        np.take_along_axis(np.asarray(weights_of[0]), order, -1),
        [row for _, row in expected],
        rtol=1e-5,
    )
    if experts == 4:
        assert actual[0].tolist() == [0, 1]


def test_silu_on_queries_keys_and_values() -> None:
    outputs = []
    for silu in (False, True):
        config = layers_config((3, 3, 1), use_linear_silu=silu)
        mesh = models.make_mesh(config)
        inputs = jax.random.normal(jax.random.key(0), (2, 24, config.emb_dim))
        with logical_axis_rules(config.logical_axis_rules):
            attention = attention_gla.BailingMoeV2LinearAttention(
                config, mesh, MODEL_MODE_TRAIN, 0, inputs.shape, rngs=nnx.Rngs(0)
            )
            positions = models.positions_of(inputs[..., 0])
            outputs.append(attention(inputs, positions))
            if not silu:
                project = attention.query_key_value
                attention.query_key_value = nnx.static(
                    lambda x, out_sharding, project=project: jax.nn.silu(project(x, out_sharding))
                )
                outputs.append(attention(inputs, positions))
    plain, by_hand, by_option = outputs
    assert relative(by_option, by_hand) == 0
    assert relative(by_option, plain) > 0.1
