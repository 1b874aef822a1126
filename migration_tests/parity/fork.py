"""The fork's side: a checkout on the old layout, and what the codemods make of it. Both are called the same way."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import yaml
from flax import nnx
from flax.training import train_state

from migration_tests.parity import plan, probe

TRAIN = "train"
# Modules by what they are needed for: the old name, and where the codemods put it.
MODULES: dict[str, dict[str, tuple[str, ...]]] = {
    "old": {
        "model": ("ALModel.al_model", "MaxText.layers.ling2"),
        "pyconfig": ("MaxText.pyconfig",),
        "attention_gla": ("MaxText.layers.attention_gla",),
        "attention_mla": ("MaxText.layers.attention_mla",),
        "normalizations": ("MaxText.layers.normalizations",),
        "decoders": ("MaxText.layers.decoders",),
        "creation": ("MaxText.model_creation_utils",),
        "utils": ("MaxText.maxtext_utils",),
        "train": ("MaxText.train",),
        "optimizers": ("MaxText.optimizers",),
    },
    "migrated": {
        "model": ("maxtext.models.ling2",),
        "pyconfig": ("maxtext.configs.pyconfig",),
        "attention_gla": ("maxtext.layers.attention_gla",),
        "attention_mla": ("maxtext.layers.attention_mla",),
        "normalizations": ("maxtext.layers.normalizations",),
        "decoders": ("maxtext.layers.decoders",),
        "creation": ("maxtext.utils.model_creation_utils",),
        "utils": ("maxtext.utils.maxtext_utils",),
        "train": ("maxtext.trainers.pre_train.train",),
        "optimizers": ("maxtext.optimizers.optimizers",),
    },
}
PACKAGES = {"old": "MaxText", "migrated": "maxtext"}
MODEL_NAMES = ("al_model", "ling2")
DENSE_LAYERS = ("ALDenseLayer", "Ling2DenseLayer", "Ling2DecoderLayer")
MOE_LAYERS = ("ALMoELayer", "Ling2MoELayer", "Ling2DecoderLayer")
ATTENTIONS = ("self_attention", "attention")
MOE_BLOCKS = ("Ling2MoeBlock_0", "ALMoeBlock_0", "DeepSeekMoeBlock_0")


class ForkSide(probe.Side):
    """How the fork's model is called."""

    def __init__(
        self, kind: str, weights: dict[str, probe.Weights], options: dict[str, Any] | None = None
    ):
        self.kind = kind
        self.weights = weights
        self.options = options or {}
        self.load("model")

    @functools.cache  # noqa: B019 (as long-lived as the process)
    def load(self, role: str) -> Any:
        """Imports the module of a role; the first of its names that there is."""
        names = MODULES[self.kind][role]
        for name in names[:-1]:
            try:
                return importlib.import_module(name)
            except ModuleNotFoundError as error:
                if error.name is None or not (name + ".").startswith(error.name + "."):
                    raise
        return importlib.import_module(names[-1])

    @functools.cache  # noqa: B019
    def _configs(self) -> Path:
        spec = importlib.util.find_spec(PACKAGES[self.kind])
        assert spec is not None
        return Path((spec.submodule_search_locations or [""])[0]) / "configs"

    @functools.cache  # noqa: B019
    def config(self, dtype: str, tree: str = "unscanned") -> Any:
        """The config of a tree of parameters."""
        return self._config(dtype=dtype, **plan.TREES[tree])

    def _config(self, **overrides: Any) -> Any:
        options = plan.RUN | plan.MODEL | self.options | overrides
        options |= {k.removeprefix("base_"): v for k, v in options.items() if k.startswith("base_")}
        layers, dense = options["num_decoder_layers"], options["first_num_dense_layers"]
        options["layer_group_size"] = options["inhomogeneous_layer_cycle_interval"]
        options["moe_layer_freq"] = [0] * dense + [1] * (layers - dense)
        options["run_name"] = "parity"
        base = self._configs() / "base.yml"
        known = set(yaml.safe_load(base.read_text(encoding="utf-8")))
        name = next(n for n in MODEL_NAMES if (self._configs() / "models" / f"{n}.yml").is_file())
        given = {k: v for k, v in options.items() if k in known}
        return self.load("pyconfig").initialize(["parity", str(base)], model_name=name, **given)

    @functools.cache  # noqa: B019
    def mesh(self) -> Any:
        """The mesh of the devices there are."""
        config = self.config(plan.FLOAT32)
        return jax.sharding.Mesh(self.load("utils").create_device_mesh(config), config.mesh_axes)

    def _class(self, names: tuple[str, ...]) -> Any:
        module = self.load("model")
        for name in names:
            if name in vars(module):
                return vars(module)[name]
        raise AttributeError(f"{module.__name__} has none of {', '.join(names)}")

    def _make(self, config: Any, index: int, dense: int) -> Any:
        layer_class = self._class(DENSE_LAYERS if index < dense else MOE_LAYERS)
        return nnx.eval_shape(
            lambda: layer_class(config, self.mesh(), TRAIN, index, rngs=nnx.Rngs(0))
        )

    def tree(self, tree: str) -> dict[str, Any]:
        """Path, shape and whether it is optimized, of every weight of a tree."""
        model = ForkModel(self, None, self.config(plan.FLOAT32, tree))
        return {path: [leaf.shape, True] for path, leaf in model.shapes().items()}

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
            layer = self._make(config, index, dense)
            is_mla = isinstance(self._part(layer, ATTENTIONS), self.load("attention_mla").MLA)
            kinds.append(is_mla + 2 * any(hasattr(layer, name) for name in MOE_BLOCKS))
        return kinds

    def _part(self, layer: Any, names: tuple[str, ...]) -> Any:
        return getattr(layer, next(name for name in names if hasattr(layer, name)))

    def log_decay(self, heads: int, layer: int, layers: int) -> Any:
        # The method reads these three of its layer.
        stand_in = SimpleNamespace(
            num_heads=heads, layer_idx=layer, config=SimpleNamespace(num_decoder_layers=layers)
        )
        attention = self.load("attention_gla").BailingMoeV2LinearAttention
        return attention.log_decay(stand_in, layer)

    def kernel(self, q: Any, k: Any, v: Any, g: Any, segments: Any) -> Any:
        chunk_size = plan.RUN["gla_chunk_size"]
        chunk_gla = self.load("attention_gla").chunk_gla
        return chunk_gla(q, k, v, g, segment_ids=segments, chunk_size=chunk_size)

    def pallas(self, q: Any, k: Any, v: Any, g: Any, segments: Any) -> Any:
        # Its own kernel, of a package that is not in the checkout, takes no segments. What its layers call is compared.
        return self.kernel(q, k, v, g, segments)

    def norm(self, x: Any, scale: Any, dtype: str) -> Any:
        epsilon = self.config(dtype).normalization_layer_epsilon
        norm = self.load("normalizations").RMSNorm
        return self._norm(functools.partial(norm, x.shape[-1], epsilon, jnp.dtype(dtype)), x, scale)

    def group_norm(self, x: Any, scale: Any, groups: int, dtype: str) -> Any:
        epsilon = self.config(dtype).normalization_layer_epsilon
        norm = self.load("normalizations").GroupRMSNorm
        make = functools.partial(norm, x.shape[-1], groups, epsilon, jnp.dtype(dtype))
        return self._norm(make, x, scale)

    def _norm(self, make: Any, x: Any, scale: Any) -> Any:
        module = probe.fill(nnx.eval_shape(lambda: make(rngs=nnx.Rngs(0))), {("scale",): scale})
        return probe.run(lambda m, x: m(x), module, x)

    def layer(self, index: int, dtype: str, tree: str = "unscanned") -> probe.Layer:
        dense = (plan.MODEL | plan.TREES[tree])["first_num_dense_layers"]
        module = self._make(self.config(dtype, tree), index, dense)
        name = f"dense_layers_{index}" if index < dense else f"moe_layers_{index - dense}"
        weights = {
            p[2:]: w
            for p, w in probe.weights_of(self.weights, tree).items()
            if p[:2] == ("decoder", name)
        }
        module = probe.fill(module, weights)
        attention = next(name for name in ATTENTIONS if hasattr(module, name))
        moe = next((name for name in MOE_BLOCKS if hasattr(module, name)), None)
        return probe.Layer(module, attention, moe)

    def run_attention(self, module: Any, x: Any, positions: Any, segments: Any, index: int) -> Any:
        if isinstance(module, self.load("attention_mla").MLA):
            return module(x, x, positions, segments, model_mode=TRAIN, deterministic=True)[0]
        out = module(x, positions, segments, model_mode=TRAIN, global_layer_idx=index)
        return out[0] if isinstance(out, tuple) else out

    def run_layer(self, module: Any, x: Any, positions: Any, segments: Any, index: int) -> Any:
        return module(x, segments, positions, True, TRAIN, global_layer_idx=index)[0]

    def run_mla_rope(self, attention: Any, x: Any, positions: Any) -> Any:
        return attention.apply_rotary_embedding(x, positions)

    def run_moe(self, moe: Any, x: Any) -> Any:
        return moe(x)[0]

    def model(self, tree: str, dtype: str) -> ForkModel:
        return ForkModel(self, probe.weights_of(self.weights, tree), self.config(dtype, tree))


def _nested(flat: dict[tuple[str, ...], Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for path, value in flat.items():
        inner = nested
        for name in path[:-1]:
            inner = inner.setdefault(name, {})
        inner[path[-1]] = jnp.asarray(value)
    return nested


class ForkModel(probe.Model):
    """A whole model of the fork, which is Linen around NNX layers."""

    def __init__(self, side: ForkSide, weights: probe.Weights | None, config: Any):
        self.side, self.weights, self.config = side, weights, config
        self.model = side.load("creation").from_config(config, mesh=side.mesh())

    def shapes(self) -> dict[str, Any]:
        """Shapes of the parameters by path."""
        tokens = jnp.zeros(
            (plan.RUN["per_device_batch_size"], self.config.max_target_length), jnp.int32
        )

        def init(key: Any) -> Any:
            targets = {"decoder_target_tokens": tokens, "decoder_target_mask": tokens}
            return self.model.init({"params": key}, tokens, tokens, **targets)["params"]

        unboxed = jax.tree.map(
            lambda leaf: leaf.unbox() if hasattr(leaf, "unbox") else leaf,
            jax.eval_shape(init, jax.random.PRNGKey(0)),
            is_leaf=lambda leaf: hasattr(leaf, "unbox"),
        )
        return self.by_path(unboxed)

    def params(self) -> Any:
        assert self.weights is not None
        return _nested(self.weights)

    def by_path(self, params: Any) -> probe.Arrays:
        leaves = jax.tree_util.tree_leaves_with_path(params)
        return {"/".join(str(key.key) for key in path): leaf for path, leaf in leaves}

    def _recorded(self) -> probe.Recorder:
        # The class in each hierarchy that has the call.
        module = self.side.load("model")
        classes = [vars(module)[n] for n in (*DENSE_LAYERS, *MOE_LAYERS) if n in vars(module)]
        owners = {next(c for c in inspect.getmro(k) if "__call__" in vars(c)) for k in classes}
        layers = () if self.config.scan_layers else tuple(owners)
        decoder = self.side.load("decoders").Decoder
        return probe.Recorder(decoder, layers, self.config.num_decoder_layers)

    def forward(self, params: Any, batch: probe.Arrays) -> probe.Arrays:
        with self._recorded() as recorder:
            self.model.apply(
                {"params": params},
                batch["inputs"],
                batch["inputs_position"],
                decoder_segment_ids=batch["inputs_segmentation"],
                enable_dropout=False,
                mutable=["intermediates", "mtp_losses"],
                decoder_target_tokens=batch["targets"],
                decoder_target_mask=batch["targets_segmentation"],
            )
        return recorder.outputs()

    def losses(
        self, params: Any, batch: probe.Arrays
    ) -> tuple[Any, tuple[probe.Arrays, probe.Arrays]]:
        train, key = self.side.load("train"), jax.random.PRNGKey(0)
        with self._recorded() as recorder:
            loss, aux = train.loss_fn(
                self.model, self.config, dict(batch), key, params, is_train=True
            )
        parts = {name: aux[name] for name in ("lm_loss", "mtp_loss", "router_z_loss")}
        return loss, ({"loss": loss, **parts}, recorder.outputs())

    def step(self, batch: probe.Arrays) -> probe.Arrays:
        train, optimizers = self.side.load("train"), self.side.load("optimizers")
        tx = optimizers.get_optimizer(self.config, lambda _: self.config.learning_rate, self.model)
        create: Any = train_state.TrainState.create
        state = create(apply_fn=self.model.apply, params=self.params(), tx=tx)

        @jax.jit
        def step(state: Any, batch: Any) -> Any:
            key = jax.random.PRNGKey(0)
            new_state, metrics, *_ = train.train_step(
                self.model, self.config, None, None, state, batch, key
            )
            return new_state.params, metrics["scalar"]["learning/grad_norm"]

        params, norm = step(state, batch)
        return {**self.by_path(params), "gradient norm": norm}

    def embed(self, params: Any, tokens: Any, positions: Any) -> Any:
        bound = self.model.bind({"params": params})
        arguments = {
            "shared_embedding": bound.shared_embedding,
            "decoder_input_tokens": tokens,
            "decoder_positions": positions,
            "deterministic": True,
            "model_mode": TRAIN,
        }
        # Positions came to it in the course of time.
        taken = inspect.signature(bound.decoder._apply_embedding).parameters
        return bound.decoder._apply_embedding(**{n: arguments[n] for n in arguments if n in taken})

    def head(self, params: Any, hidden: Any) -> Any:
        bound = self.model.bind({"params": params})
        return bound.decoder.apply_output_head(bound.shared_embedding, hidden, True, TRAIN)

    def mtp_layer(
        self, params: Any, hidden: Any, embedded: Any, positions: Any, segments: Any
    ) -> Any:
        prediction = importlib.import_module(
            self.side.load("attention_gla").__name__.replace(
                "attention_gla", "multi_token_prediction"
            )
        )
        layer = nnx.eval_shape(
            lambda: prediction.MultiTokenPredictionLayer(
                self.config, self.side.mesh(), 1, self.side._class(MOE_LAYERS), rngs=nnx.Rngs(0)
            )
        )
        weights = self.by_path(params["mtp_block"]["mtp_layer_1"])
        layer = probe.fill(layer, {tuple(path.split("/")): w for path, w in weights.items()})
        return layer(hidden, embedded, positions, segments, True, TRAIN)
