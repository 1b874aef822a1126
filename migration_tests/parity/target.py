"""The target side: Ling2 in an upstream MaxText tree, as `ling2-migrate overlay` makes it."""

from __future__ import annotations

import functools
import importlib
import os
from typing import Any

import jax
from flax import nnx
from flax.linen import logical_axis_rules

from migration_tests.parity import plan, probe

TRAIN = "train"


def load(name: str) -> Any:
    """Imports a module of the tree."""
    return importlib.import_module(f"maxtext.{name}")


class TargetSide(probe.Side):
    """How Ling2 of the target package is called."""

    def __init__(self, weights: dict[str, probe.Weights], options: dict[str, Any] | None = None):
        self.weights = weights
        self.options = options or {}
        self.ling2 = load("models.ling2")

    @functools.cache  # noqa: B019 (as long-lived as the process)
    def config(self, dtype: str, tree: str = "unscanned") -> Any:
        """The config of a tree of parameters."""
        return self._config(dtype=dtype, **plan.TREES[tree])

    def _config(self, **overrides: Any) -> Any:
        pyconfig, globals_ = load("configs.pyconfig"), load("utils.globals")
        options = {k: v for k, v in plan.RUN.items() if k != "gla_chunk_size"}
        options |= {"hardware": jax.default_backend()} | plan.MODEL | self.options | overrides
        base = os.path.join(globals_.MAXTEXT_CONFIGS_DIR, "base.yml")
        return pyconfig.initialize(
            ["parity", base], model_name="ling2", run_name="parity", **options
        )

    @functools.cache  # noqa: B019
    def mesh(self) -> Any:
        """The mesh of the devices there are."""
        config = self.config(plan.FLOAT32)
        return jax.sharding.Mesh(
            load("utils.maxtext_utils").create_device_mesh(config), config.mesh_axes
        )

    def tree(self, tree: str) -> dict[str, Any]:
        """Path, shape and whether it is optimized, of every weight of a tree."""
        flat = nnx.to_flat_state(nnx.state(self._abstract(tree, plan.FLOAT32)))
        return {
            "/".join(map(str, path)): [variable.get_value().shape, isinstance(variable, nnx.Param)]
            for path, variable in flat
            if probe.is_weight(variable)
        }

    def _abstract(self, tree: str, dtype: str) -> Any:
        creation = load("utils.model_creation_utils")
        return creation.create_nnx_abstract_model(self.config(dtype, tree), self.mesh())[1]

    def layer_kinds(self, layers: int, interval: int, dense: int) -> list[int]:
        options = {
            "base_num_decoder_layers": layers,
            "inhomogeneous_layer_cycle_interval": interval,
            "first_num_dense_layers": dense,
            "mtp_num_layers": 0,
        }
        config = self._config(dtype=plan.FLOAT32, **plan.UNSCANNED, **options)
        kinds = []
        for index in range(layers):
            with logical_axis_rules(config.logical_axis_rules):
                layer = nnx.eval_shape(
                    lambda i=index: self.ling2.Ling2DecoderLayer(
                        config, self.mesh(), TRAIN, i, rngs=nnx.Rngs(0)
                    )
                )
            is_mla = isinstance(layer.self_attention, load("layers.attention_mla").MLA)
            kinds.append(is_mla + 2 * hasattr(layer, "Ling2MoeBlock_0"))
        return kinds

    def log_decay(self, heads: int, layer: int, layers: int) -> Any:
        return load("kernels.gla").gla_log_decay(heads, layer, layers, "zero_based")

    def kernel(self, q: Any, k: Any, v: Any, g: Any, segments: Any) -> Any:
        return load("kernels.gla").chunk_gla(q, k, v, g, segment_ids=segments)[0]

    def pallas(self, q: Any, k: Any, v: Any, g: Any, segments: Any) -> Any:
        gla = load("kernels.gla")
        return gla.chunk_gla(q, k, v, g, segment_ids=segments, implementation="pallas_tpu")[0]

    def norm(self, x: Any, scale: Any, dtype: str) -> Any:
        epsilon = self.config(dtype).normalization_layer_epsilon
        make = functools.partial(load("layers.normalizations").RMSNorm, x.shape[-1], epsilon, dtype)
        return self._norm(make, x, scale)

    def group_norm(self, x: Any, scale: Any, groups: int, dtype: str) -> Any:
        epsilon = self.config(dtype).normalization_layer_epsilon
        norm = load("layers.normalizations").GroupRMSNorm
        return self._norm(functools.partial(norm, x.shape[-1], groups, epsilon, dtype), x, scale)

    def _norm(self, make: Any, x: Any, scale: Any) -> Any:
        with logical_axis_rules(self.config(plan.FLOAT32).logical_axis_rules):
            module = probe.fill(nnx.eval_shape(lambda: make(rngs=nnx.Rngs(0))), {("scale",): scale})
            return probe.run(lambda m, x: m(x), module, x)

    def layer(self, index: int, dtype: str, tree: str = "unscanned") -> probe.Layer:
        config = self.config(dtype, tree)
        with logical_axis_rules(config.logical_axis_rules):
            module = nnx.eval_shape(
                lambda: self.ling2.Ling2DecoderLayer(
                    config, self.mesh(), TRAIN, index, rngs=nnx.Rngs(0)
                )
            )
        dense = config.first_num_dense_layers
        name = f"dense_layers_{index}" if index < dense else f"moe_layers_{index - dense}"
        weights = {
            p[2:]: w
            for p, w in probe.weights_of(self.weights, tree).items()
            if p[:2] == ("decoder", name)
        }
        module = probe.fill(module, weights)
        moe = "Ling2MoeBlock_0"
        return probe.Layer(module, "self_attention", moe if hasattr(module, moe) else None)

    def run_attention(self, module: Any, x: Any, positions: Any, segments: Any, index: int) -> Any:
        if not isinstance(module, load("layers.attention_mla").MLA):
            return module(x, positions, segments, model_mode=TRAIN, global_layer_idx=index)
        out, _ = module(
            x, x, positions, decoder_segment_ids=segments, deterministic=True, model_mode=TRAIN
        )
        return out

    def run_layer(self, module: Any, x: Any, positions: Any, segments: Any, index: int) -> Any:
        return module(x, segments, positions, True, TRAIN, global_layer_idx=index)[0]

    def run_mla_rope(self, attention: Any, x: Any, positions: Any) -> Any:
        return attention.rotary_embedding(x, positions)

    def run_moe(self, moe: Any, x: Any) -> Any:
        return moe(x)[0]

    def model(self, tree: str, dtype: str) -> TargetModel:
        module = probe.fill(self._abstract(tree, dtype), probe.weights_of(self.weights, tree))
        return TargetModel(self, module, self.config(dtype, tree))


class TargetModel(probe.Model):
    """A whole Ling2 of the target package."""

    def __init__(self, side: TargetSide, module: nnx.Module, config: Any):
        self.side, self.config = side, config
        split: Any = nnx.split(module, nnx.Param, ...)
        self.graphdef, self._params, self.rest = split

    def params(self) -> Any:
        return self._params

    def _merged(self, params: Any) -> Any:
        return nnx.merge(self.graphdef, params, self.rest, copy=True)

    def _recorded(self) -> probe.Recorder:
        decoder = load("layers.nnx_decoders").NNXDecoder
        layers = () if self.config.scan_layers else (self.side.ling2.Ling2DecoderLayer,)
        return probe.Recorder(decoder, layers, self.config.num_decoder_layers)

    def forward(self, params: Any, batch: probe.Arrays) -> probe.Arrays:
        model = self._merged(params)
        with self._recorded() as recorder:
            model(
                decoder_input_tokens=batch["inputs"],
                decoder_positions=batch["inputs_position"],
                decoder_segment_ids=batch["inputs_segmentation"],
                enable_dropout=False,
                decoder_target_tokens=batch["targets"],
                decoder_target_mask=batch["targets_segmentation"],
            )
        return recorder.outputs()

    def losses(
        self, params: Any, batch: probe.Arrays
    ) -> tuple[Any, tuple[probe.Arrays, probe.Arrays]]:
        train = load("trainers.pre_train.train")
        with self._recorded() as recorder:
            loss, aux = train.loss_fn(
                self._merged(params), self.config, dict(batch), None, None, is_train=True
            )
        lm_loss = aux["xent_sum"] / (aux["total_weights"] + load("utils.globals").EPS)
        parts = {name: aux[name] for name in ("mtp_loss", "router_z_loss")}
        return loss, ({"loss": loss, "lm_loss": lm_loss, **parts}, recorder.outputs())

    def by_path(self, params: Any) -> probe.Arrays:
        return {"/".join(map(str, p)): v.get_value() for p, v in nnx.to_flat_state(params)}

    def step(self, batch: probe.Arrays) -> probe.Arrays:
        train = load("trainers.pre_train.train")
        optimizers = load("optimizers.optimizers")
        states = load("common.train_state_nnx")
        model = self._merged(self._params)
        tx = optimizers.get_optimizer(self.config, lambda _: self.config.learning_rate, model)
        graphdef, state = nnx.split(
            states.TrainStateNNX(model, nnx.Optimizer(model, tx, wrt=nnx.Param))
        )

        @jax.jit
        def step(state: Any, batch: Any) -> Any:
            new_state, metrics = train.train_step(graphdef, self.config, None, None, state, batch)
            return new_state, metrics["scalar"]["learning/grad_norm"]

        new_state, norm = step(state, batch)
        flat = nnx.to_flat_state(new_state)
        weights = {
            "/".join(map(str, path[1:])): variable.get_value()
            for path, variable in flat
            if path[0] == "model" and probe.is_weight(variable)
        }
        return {**weights, "gradient norm": norm}

    def embed(self, params: Any, tokens: Any, positions: Any) -> Any:
        model = self._merged(params)
        return model.decoder._apply_embedding(model.token_embedder, tokens, positions, True, TRAIN)

    def head(self, params: Any, hidden: Any) -> Any:
        model = self._merged(params)
        return model.decoder.apply_output_head(model.token_embedder, hidden, True, TRAIN)

    def mtp_layer(
        self, params: Any, hidden: Any, embedded: Any, positions: Any, segments: Any
    ) -> Any:
        layer = self._merged(params).mtp_block.mtp_layer_1
        out = layer(
            hidden,
            embedded,
            position_ids=positions,
            decoder_segment_ids=segments,
            deterministic=True,
            model_mode=TRAIN,
        )
        return layer.final_norm(out)
