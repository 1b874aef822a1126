"""What a side computes, whichever side it is. `fork.py` and `target.py` say how their code is called.

Runs in a side's process: it needs JAX, numpy and `plan`, and imports no MaxText itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from migration_tests.parity import plan

Arrays = dict[str, Any]
# A module's weights by its paths.
Weights = dict[tuple[str, ...], np.ndarray]


@dataclasses.dataclass
class Layer:
    """A decoder layer with its weights, and what of it is called by itself."""

    module: Any
    attention: str
    moe: str | None


class Model(Protocol):
    """A whole model with its weights."""

    def forward(self, params: Any, batch: Arrays) -> Arrays:
        """Returns `logits`, `mtp_logits` and, unless scanned, `layer_N`: the output of each layer."""

    def losses(self, params: Any, batch: Arrays) -> tuple[Any, tuple[Arrays, Arrays]]:
        """Returns the loss; that and its parts by name; and what `forward` returns."""

    def params(self) -> Any:
        """What `forward` and `losses` take, and the latter is differentiated by."""

    def by_path(self, params: Any) -> Arrays:
        """Parameters or gradients by their paths, joined by slashes."""

    def step(self, batch: Arrays) -> Arrays:
        """Returns the parameters after one optimizer step, by their paths."""

    def embed(self, params: Any, tokens: Any, positions: Any) -> Any:
        """What the decoder makes of tokens before its first layer."""

    def head(self, params: Any, hidden: Any) -> Any:
        """Logits of the hidden states that the last layer returns."""

    def mtp_layer(
        self, params: Any, hidden: Any, embedded: Any, positions: Any, segments: Any
    ) -> Any:
        """What the first MTP layer returns, after its final norm."""


class Side(Protocol):
    """How a side's code is called."""

    def layer_kinds(self, layers: int, interval: int, dense: int) -> list[int]:
        """0 GLA, 1 MLA; plus 2 for a layer with experts."""

    def log_decay(self, heads: int, layer: int, layers: int) -> Any: ...

    def kernel(self, q: Any, k: Any, v: Any, g: Any, segments: Any) -> Any: ...

    def pallas(self, q: Any, k: Any, v: Any, g: Any, segments: Any) -> Any:
        """The Pallas kernel, or None where the side has none that can run here."""

    def norm(self, x: Any, scale: Any, dtype: str) -> Any: ...

    def group_norm(self, x: Any, scale: Any, groups: int, dtype: str) -> Any: ...

    def layer(self, index: int, dtype: str, tree: str = "unscanned") -> Layer: ...

    def run_attention(
        self, module: Any, x: Any, positions: Any, segments: Any, index: int
    ) -> Any: ...

    def run_layer(self, module: Any, x: Any, positions: Any, segments: Any, index: int) -> Any: ...

    def run_mla_rope(self, attention: Any, x: Any, positions: Any) -> Any: ...

    def run_moe(self, moe: Any, x: Any) -> Any: ...

    def model(self, tree: str, dtype: str) -> Model: ...


def fill(module: nnx.Module, weights: Weights) -> nnx.Module:
    """Returns a module without arrays as one with the given weights.

    Raises:
        KeyError: a weight is missing; the message has its path.
    """
    graphdef, state = nnx.split(module)
    filled = []
    for path, variable in nnx.to_flat_state(state):
        value = variable.get_value()
        shape, dtype = value.shape, value.dtype
        names = tuple(str(name) for name in path)
        if is_weight(variable):
            if names not in weights:
                raise KeyError(f"no weight for {'/'.join(names)}")
            new = jnp.asarray(weights[names], dtype)
            if new.shape != shape:
                raise ValueError(
                    f"{'/'.join(names)}: the weight has shape {new.shape}, the module {shape}"
                )
        elif jnp.issubdtype(dtype, jax.dtypes.prng_key):
            new = jnp.broadcast_to(jax.random.key(0), shape)
        else:
            new = jnp.zeros(shape, dtype)
        filled.append((path, variable.replace(new)))
    return nnx.merge(graphdef, nnx.from_flat_state(filled))


class NoWeightsError(Exception):
    """A tree has no weights: they could not be carried to it."""


def weights_of(trees: dict[str, Weights], tree: str) -> Weights:
    """Returns the weights of a tree.

    Raises:
        NoWeightsError: there are none.
    """
    if tree not in trees:
        raise NoWeightsError(f"the weights of the {tree} model could not be carried")
    return trees[tree]


def is_weight(variable: Any) -> bool:
    """Whether a variable is a parameter or a routing bias."""
    return isinstance(variable, nnx.Param) or type(variable).__name__ == "MoEBiasVar"


class Recorder(contextlib.ExitStack):
    """Notes, while a model is traced, what its output head and its layers return.

    Args:
        decoder: the class that has `apply_output_head`.
        layers: classes of layers that know their `layer_idx`.
        num_layers: layers of the decoder; those of MTP follow them.
    """

    def __init__(self, decoder: type, layers: tuple[type, ...], num_layers: int):
        super().__init__()
        self.heads: list[Any] = []
        self.layers: Arrays = {}

        def record_head(original: Any) -> Any:
            def call(*args: Any, **kwargs: Any) -> Any:
                self.heads.append(original(*args, **kwargs))
                return self.heads[-1]

            return call

        def record_layer(original: Any) -> Any:
            def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
                result = original(layer, *args, **kwargs)
                if layer.layer_idx < num_layers:
                    self.layers[f"layer_{layer.layer_idx}"] = result[0]
                return result

            return call

        self.enter_context(replaced(decoder, "apply_output_head", record_head))
        for layer_class in layers:
            self.enter_context(replaced(layer_class, "__call__", record_layer))

    def outputs(self) -> Arrays:
        """Returns `logits`, `mtp_logits` if there are any, and `layer_N`."""
        names = ("logits", "mtp_logits")
        return dict(zip(names, self.heads, strict=False)) | self.layers


@contextlib.contextmanager
def replaced(owner: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """Replaces a function of a class by what `make` makes of it."""
    original = getattr(owner, name)
    setattr(owner, name, make(original))
    try:
        yield
    finally:
        setattr(owner, name, original)


def run(call: Callable[..., Any], module: nnx.Module, *args: Any) -> Any:
    """Returns `call(module, *args)`, compiled."""
    graphdef, state = nnx.split(module)

    @jax.jit
    def compiled(state: Any, *args: Any) -> Any:
        return call(nnx.merge(graphdef, state), *args)

    return compiled(state, *args)


def _real(x: Any, segments: Any) -> Any:
    """What padding holds is nobody's business."""
    return jnp.where((segments > 0).reshape(segments.shape + (1,) * (x.ndim - 2)), x, 0)


class Probe:
    """The components of a side, by name; each takes a dtype and returns arrays by name."""

    def __init__(self, side: Side, inputs: Arrays):
        self.side = side
        self.inputs = {name: jnp.asarray(value) for name, value in inputs.items()}
        self._models: dict[tuple[str, str], Model] = {}
        self._outputs: dict[tuple[str, str], Arrays] = {}

    def compute(self, component: str, dtype: str) -> Arrays:
        """Returns what a component computes."""
        computed: Arrays = getattr(self, component)(dtype)
        return computed

    def take(self, name: str, dtype: str) -> Any:
        """An input in a dtype."""
        return self.inputs[name].astype(dtype)

    def model(self, tree: str, dtype: str) -> Model:
        """A model, made once."""
        if (tree, dtype) not in self._models:
            self._models[tree, dtype] = self.side.model(tree, dtype)
        return self._models[tree, dtype]

    # ---- parts -------------------------------------------------------------------------------------------------

    def pattern(self, dtype: str) -> Arrays:
        del dtype
        return {
            f"layers {layers}, interval {interval}, dense {dense}": np.asarray(
                self.side.layer_kinds(layers, interval, dense)
            )
            for layers, interval, dense in plan.PATTERNS
        }

    def embedding(self, dtype: str) -> Arrays:
        model = self.model("unscanned", dtype)
        tokens, positions = self.inputs["tokens"], self.inputs["packed_positions"]
        return {"out": jax.jit(model.embed)(model.params(), tokens, positions)}

    def rms_norm(self, dtype: str) -> Arrays:
        x = self.take("hidden", dtype)
        return {"out": self.side.norm(x, self.inputs["norm_scale"], dtype)}

    def decay(self, dtype: str) -> Arrays:
        del dtype
        return {
            f"heads {heads}, layers {layers}": jnp.stack(
                [self.side.log_decay(heads, i, layers) for i in range(layers)]
            )
            for heads, layers in plan.DECAYS
        }

    def gla_kernel(self, dtype: str) -> Arrays:
        return self._kernel(self.side.kernel, dtype)

    def gla_pallas(self, dtype: str) -> Arrays:
        return self._kernel(self.side.pallas, dtype)

    def _kernel(self, kernel: Callable[..., Any], dtype: str) -> Arrays:
        q, k, v = (self.take(name, dtype) for name in ("query", "key", "value"))
        g, segments = self.inputs["log_decay"], self.inputs["ragged_segments"]
        even = plan.RAGGED // 16 * 16
        one = jnp.ones_like(segments)
        compiled = jax.jit(kernel)
        return {
            "whole chunks": compiled(q[:, :even], k[:, :even], v[:, :even], g, one[:, :even]),
            "ragged": compiled(q, k, v, g, one),
            "packed": _real(compiled(q, k, v, g, segments), segments),
        }

    def gla_gradients(self, dtype: str) -> Arrays:
        q, k, v = (self.take(name, dtype) for name in ("query", "key", "value"))
        g, segments = self.inputs["log_decay"], self.inputs["ragged_segments"]

        def weighed(q: Any, k: Any, v: Any) -> Any:
            out = _real(self.side.kernel(q, k, v, g, segments), segments)
            return jnp.sum(out.astype(jnp.float32) * self.inputs["cotangent"])

        gradients = jax.jit(jax.grad(weighed, argnums=(0, 1, 2)))(q, k, v)
        names = ("query", "key", "value")
        return {n: _real(x, segments) for n, x in zip(names, gradients, strict=True)}

    def group_norm(self, dtype: str) -> Arrays:
        x, scale = self.take("grouped", dtype), self.inputs["group_scale"]
        return {
            f"groups {groups}": self.side.group_norm(x, scale, groups, dtype) for groups in (2, 8)
        }

    def partial_rope(self, dtype: str) -> Arrays:
        layer = self.side.layer(0, dtype)
        rope = getattr(layer.module, layer.attention).rotary_embedding
        x = self.take("heads_at_positions", dtype)
        return {"out": run(lambda m, x, at: m(x, at), rope, x, self.inputs["packed_positions"])}

    def mla_rope(self, dtype: str) -> Arrays:
        layer = self.side.layer(1, dtype)
        attention = getattr(layer.module, layer.attention)
        x = self.take("rope_at_positions", dtype)
        out = run(self.side.run_mla_rope, attention, x, self.inputs["packed_positions"])
        return {"out": out}

    def gla_layer(self, dtype: str) -> Arrays:
        later = self._attention(2, dtype, packed_only=True)
        return self._attention(0, dtype) | {f"later layer, {n}": x for n, x in later.items()}

    def mla_layer(self, dtype: str) -> Arrays:
        return self._attention(1, dtype)

    def _attention(self, index: int, dtype: str, packed_only: bool = False) -> Arrays:
        layer = self.side.layer(index, dtype)
        attention = getattr(layer.module, layer.attention)
        x, segments = self.take("hidden", dtype), self.inputs["packed_segments"]

        def call(module: Any, x: Any, positions: Any, segments: Any) -> Any:
            return self.side.run_attention(module, x, positions, segments, index)

        packed = run(call, attention, x, self.inputs["packed_positions"], segments)
        result = {"packed": _real(packed, segments)}
        if not packed_only:
            ones = jnp.ones_like(segments)
            result["one sequence"] = run(call, attention, x, self.inputs["positions"], ones)
        return result

    def router_scores(self, dtype: str) -> Arrays:
        layer = self.side.layer(1, dtype)
        gate = self._routed(layer).gate
        biased, unbiased = run(lambda m, x: m(x), gate, self.take("hidden", dtype))
        return {"scores": unbiased, "with bias": biased}

    def _routed(self, layer: Layer) -> Any:
        if layer.moe is None:
            raise ValueError("the layer has no experts")
        return getattr(layer.module, layer.moe).MoeBlock_0

    def _topk(self) -> tuple[Any, Any]:
        routed = self._routed(self.side.layer(1, plan.FLOAT32))
        weights, indices = run(
            lambda m, biased, scores: m.get_topk(biased, scores),
            routed,
            self.inputs["biased_scores"],
            self.inputs["scores"],
        )
        return weights, jax.nn.one_hot(indices, self.inputs["scores"].shape[-1])

    def router_choice(self, dtype: str) -> Arrays:
        del dtype
        _, chosen = self._topk()
        return {"experts": chosen.sum(-2)}

    def router_weights(self, dtype: str) -> Arrays:
        del dtype
        weights, chosen = self._topk()
        return {"weight of each expert": jnp.einsum("bsk,bske->bse", weights, chosen)}

    def moe(self, dtype: str) -> Arrays:
        layer = self.side.layer(1, dtype)
        if layer.moe is None:
            raise ValueError("the layer has no experts")
        block = getattr(layer.module, layer.moe)
        x = self.take("hidden", dtype)
        return {
            "shared experts": run(lambda m, x: m(x, deterministic=True), block.shared_experts, x),
            "out": run(self.side.run_moe, block, x),
        }

    def dense_mlp(self, dtype: str) -> Arrays:
        mlp = self.side.layer(0, dtype).module.mlp
        return {"out": run(lambda m, x: m(x, deterministic=True), mlp, self.take("hidden", dtype))}

    def layer_gla_dense(self, dtype: str) -> Arrays:
        return self._layer(0, dtype)

    def layer_mla_dense(self, dtype: str) -> Arrays:
        return self._layer(1, dtype, "two_dense")

    def layer_gla_moe(self, dtype: str) -> Arrays:
        return self._layer(2, dtype)

    def layer_mla_moe(self, dtype: str) -> Arrays:
        return self._layer(1, dtype)

    def _layer(self, index: int, dtype: str, tree: str = "unscanned") -> Arrays:
        layer = self.side.layer(index, dtype, tree)
        segments = self.inputs["packed_segments"]

        def call(module: Any, x: Any, positions: Any, segments: Any) -> Any:
            return self.side.run_layer(module, x, positions, segments, index)

        x = self.take("hidden", dtype)
        out = run(call, layer.module, x, self.inputs["packed_positions"], segments)
        return {"packed": _real(out, segments)}

    # ---- the whole model ---------------------------------------------------------------------------------------

    def _batch(self) -> Arrays:
        return {
            "inputs": self.inputs["tokens"],
            "inputs_position": self.inputs["packed_positions"],
            "inputs_segmentation": self.inputs["packed_segments"],
            "targets": self.inputs["targets"],
            "targets_position": self.inputs["packed_positions"],
            "targets_segmentation": self.inputs["target_segments"],
        }

    def _run_model(self, tree: str, dtype: str) -> Arrays:
        """Outputs, losses and, where they are compared, gradients, of one compiled program."""
        if dtype == plan.BFLOAT16:
            tree = "settled"
        if (tree, dtype) in self._outputs:
            return self._outputs[tree, dtype]
        model, batch = self.model(tree, dtype), self._batch()

        @jax.jit
        def compiled(params: Any, batch: Arrays) -> Arrays:
            if tree != "unscanned":
                _, (losses, outputs) = model.losses(params, batch)
                return {**outputs, "losses": losses}
            gradient = jax.value_and_grad(model.losses, has_aux=True)
            (_, (losses, outputs)), gradients = gradient(params, batch)
            return {**outputs, "losses": losses, "gradients": gradients}

        result: Arrays = compiled(model.params(), batch)
        for name in result:
            if name not in ("losses", "gradients"):
                result[name] = _real(result[name], batch["inputs_segmentation"])
        self._outputs[tree, dtype] = result
        return result

    def depth(self, dtype: str) -> Arrays:
        """The output of every layer, in order, for the plot along depth; no component of its own."""
        result = self._run_model("unscanned", dtype)
        names = sorted((n for n in result if n.startswith("layer_")), key=lambda n: int(n[6:]))
        return {n: result[n] for n in (*names, "logits", "mtp_logits") if n in result}

    def logits(self, dtype: str) -> Arrays:
        return {"logits": self._run_model("unscanned", dtype)["logits"]}

    def mtp(self, dtype: str) -> Arrays:
        return {"logits": self._run_model("unscanned", dtype)["mtp_logits"]}

    def loss(self, dtype: str) -> Arrays:
        return dict(self._run_model("unscanned", dtype)["losses"])

    def gradients(self, dtype: str) -> Arrays:
        gradients = self._run_model("unscanned", dtype)["gradients"]
        return self.model("unscanned", dtype).by_path(gradients)

    def step(self, dtype: str) -> Arrays:
        return self.model("unscanned", dtype).step(self._batch())

    def oracle(self, dtype: str) -> Arrays:
        """What a checkpoint's reference has: the first row's outputs."""
        tokens = self.inputs["oracle_tokens"]
        ones = jnp.ones_like(tokens)
        targets = jnp.roll(tokens, -1, 1).at[:, -1].set(0)
        batch = {
            "inputs": tokens,
            "inputs_position": jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape),
            "inputs_segmentation": ones,
            "targets": targets,
            "targets_segmentation": ones,
        }
        model = self.model("unscanned", dtype)
        result = jax.jit(model.forward)(model.params(), batch)
        names, at = {"mtp_logits": "MTP logits"}, self.inputs["oracle_positions"]
        return {names.get(n, n.replace("_", " ")): value[:1, at] for n, value in result.items()}

    def scan(self, dtype: str) -> Arrays:
        result = self._run_model("scanned", dtype)
        # The fork's losses of the routers are one for each cycle here, and its loss is one too.
        losses = {n: value for n, value in result["losses"].items() if n in ("lm_loss", "mtp_loss")}
        return {"logits": result["logits"], "MTP logits": result["mtp_logits"], **losses}

    def head(self, dtype: str) -> Arrays:
        model = self.model("unscanned", dtype)
        return {"logits": jax.jit(model.head)(model.params(), self.take("hidden", dtype))}

    def mtp_layer(self, dtype: str) -> Arrays:
        model = self.model("unscanned", dtype)
        hidden, embedded = self.take("hidden", dtype), self.take("embedded", dtype)
        positions, segments = self.inputs["packed_positions"], self.inputs["packed_segments"]
        out = jax.jit(model.mtp_layer)(model.params(), hidden, embedded, positions, segments)
        return {"out": _real(out, segments)}
