"""Training through MaxText's own entry point."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from maxtext.common import ling2_layers
from maxtext.trainers.pre_train import train
from maxtext.utils import (
    generate_param_only_checkpoint,
    maxtext_utils,
    model_creation_utils,
    train_utils,
)
from maxtext.utils.globals import MAXTEXT_CONFIGS_DIR

from migration_tests.model.inside import models
from migration_tests.model.inside.check_decoder import abstract_model, layers_config

STEPS = 30
# A dense GLA layer, two scanned cycles of MLA and GLA, and an MLA layer after them.
SHAPE = (6, 2, 1)
OPTIONS: dict[str, Any] = {
    "base_num_decoder_layers": SHAPE[0],
    "inhomogeneous_layer_cycle_interval": SHAPE[1],
    "first_num_dense_layers": SHAPE[2],
    "max_target_length": 16,
    "vocab_size": 64,
    "learning_rate": 3e-3,
    "learning_rate_schedule_steps": STEPS,
    "warmup_steps_fraction": 0.1,
    "router_z_loss_weight": 1e-3,
    "routed_bias_update_rate": 1e-2,
    "mtp_loss_scaling_factor": 0.3,
    "log_period": 1,
}


@dataclasses.dataclass
class Run:
    """What a training run has logged by step, and the weights it ended with."""

    config: Any
    metrics: list[dict[str, float]]
    tensors: models.Tensors

    def series(self, name: str) -> list[float]:
        return [step[f"learning/{name}"] for step in self.metrics]

    def unscanned_biases(self) -> list[np.ndarray]:
        """Returns the routing biases of the MoE layers in order, MTP layers last."""
        pattern = ling2_layers.pattern_of(self.config)
        names = [
            ("decoder", pattern.unscanned_name(i))
            for i in range(pattern.num_dense_layers, pattern.num_decoder_layers)
        ]
        if self.config.scan_layers:
            plan = pattern.scan_plan()
            stacked = {
                i: self.tensors["decoder", "layers", f"layer_{i}", *BIAS]
                for i in range(plan.interval)
            }
            biases = [stacked[i][c] for c in range(plan.num_cycles) for i in range(plan.interval)]
            biases += [
                self.tensors["decoder", "layers_remainder", f"layer_{i}", *BIAS]
                for i in range(plan.num_remainder_layers)
            ]
        else:
            biases = [self.tensors[*name, *BIAS] for name in names]
        for k in range(1, self.config.mtp_num_layers + 1):
            layer = ("mtp_block", f"mtp_layer_{k}", f"mtp_{k}_transformer_layer")
            biases.append(self.tensors[*layer, *BIAS])
        return biases


BIAS = ("Ling2MoeBlock_0", "MoeBlock_0", "gate", "bias")


@pytest.fixture(scope="module")
def start() -> models.Tensors:
    """Weights that all runs begin with, those of an unscanned model with an MTP layer."""
    config = layers_config(SHAPE, scan_layers=False, mtp_num_layers=1, vocab_size=64)
    tensors = models.random_tensors(abstract_model(config))
    return {
        path: np.zeros_like(tensor) if path[-1] == "bias" else tensor
        for path, tensor in tensors.items()
    }


@pytest.fixture(scope="module")
def run_training(tmp_path_factory: pytest.TempPathFactory, start: models.Tensors) -> Any:
    """Returns a function that trains with MaxText options and returns the `Run`."""
    cache = tmp_path_factory.mktemp("compiled")
    done: dict[str, Run] = {}

    def run(steps: int = STEPS, **options: Any) -> Run:
        key = json.dumps([steps, options], sort_keys=True, default=str)
        if key not in done:
            out = tmp_path_factory.mktemp("run")
            done[key] = train_once(out, start, steps, {"jax_cache_dir": str(cache)} | options)
        return done[key]

    return run


def train_once(out: Path, start: models.Tensors, steps: int, options: dict[str, Any]) -> Run:
    metrics_file = out / "metrics.jsonl"
    given: dict[str, Any] = models.RUN | models.TINY | OPTIONS
    given |= {
        "model_name": "ling2",
        "run_name": "check",
        "base_output_directory": str(out),
        "steps": steps,
        "metrics_file": str(metrics_file),
        "sparse_matmul": False,
    }
    given |= options
    argv = ["train", f"{MAXTEXT_CONFIGS_DIR}/base.yml"]
    argv += [f"{name}={value}" for name, value in given.items()]
    config, recorder = train.initialize(argv)
    weights_of_run = models.scanned(start, config) if config.scan_layers else start
    weights_of_run = {
        path: tensor
        for path, tensor in weights_of_run.items()
        if path[0] != "mtp_block" or config.mtp_num_layers
    }
    setup = maxtext_utils.setup_training_state

    def setup_with_weights(*args: Any, **kwargs: Any) -> Any:
        state, *rest = setup(*args, **kwargs)
        if int(state.optimizer.step.get_value()) == 0:
            flat = dict(nnx.to_flat_state(nnx.state(state.model)))
            assert set(weights_of_run) == {p for p, v in flat.items() if models.is_weight(p, v)}
            filled = [(p, flat[p].replace(jnp.asarray(t))) for p, t in weights_of_run.items()]
            nnx.update(state.model, nnx.from_flat_state(filled))
        return state, *rest

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(train_utils.maxtext_utils, "setup_training_state", setup_with_weights)
        state = train.train_loop(config, recorder)
    lines = metrics_file.read_text(encoding="utf-8").splitlines()
    tensors = {
        path: np.asarray(value.get_value())
        for path, value in nnx.to_flat_state(state.model)
        if models.is_weight(path, value)
    }
    return Run(config, [json.loads(line) for line in lines], tensors)


@pytest.mark.parametrize("mtp", [0, 1])
def test_thirty_steps(run_training: Any, mtp: int) -> None:
    loop = run_training(scan_layers=False, mtp_num_layers=mtp)
    scan = run_training(scan_layers=True, mtp_num_layers=mtp)
    losses = loop.series("loss")
    assert len(losses) == STEPS
    assert losses[-1] < 0.7 * losses[0]
    np.testing.assert_allclose(scan.series("loss"), losses, rtol=2e-4)
    np.testing.assert_allclose(scan.series("loss")[:5], losses[:5], rtol=1e-5)
    print(
        f"mtp={mtp} loss {losses[0]:.4f} -> {losses[-1]:.4f};",
        f"scan differs by {np.abs(np.divide(scan.series('loss'), losses) - 1).max():.1e}",
    )
    # The loss is the sum of its parts.
    for step in scan.metrics:
        parts = [
            step[f"learning/{n}"] for n in ("lm_loss", "mtp_loss", "moe_lb_loss", "router_z_loss")
        ]
        assert sum(parts) == pytest.approx(step["learning/loss"], rel=1e-5)
        assert (parts[1] > 0) == (mtp > 0)
        assert parts[3] > 0


@pytest.mark.parametrize("scan", [False, True])
def test_routing_bias_moves_in_every_layer(run_training: Any, scan: bool) -> None:
    run = run_training(scan_layers=scan, mtp_num_layers=1)
    biases = run.unscanned_biases()
    assert len(biases) == 6
    for bias in biases:
        assert bias.dtype == np.float32
        assert np.abs(bias).max() > 0
        assert abs(bias.mean()) < 1e-7
    assert len({bias.tobytes() for bias in biases}) == len(biases)
    other = run_training(scan_layers=not scan, mtp_num_layers=1).unscanned_biases()
    # A token that changes its expert can flip a sign in late steps.
    assert np.abs(np.subtract(biases, other)).mean() < 0.01


def test_steps_of_the_routing_bias(run_training: Any) -> None:
    """Each step moves a bias by plus or minus the rate, less the mean of that."""
    loop = run_training(2, scan_layers=False, mtp_num_layers=1)
    rate = loop.config.routed_bias_update_rate
    for bias in loop.unscanned_biases():
        moves = (bias - bias.min()) / rate
        assert set(np.round(moves, 3)) <= {0.0, 1.0, 2.0, 3.0, 4.0}


def test_gradient_accumulation(run_training: Any) -> None:
    whole = run_training(2, scan_layers=False, mtp_num_layers=1)
    parts = run_training(
        2,
        scan_layers=True,
        mtp_num_layers=1,
        per_device_batch_size=1,
        gradient_accumulation_steps=2,
    )
    for name in ("loss", "lm_loss", "mtp_loss", "router_z_loss", "grad_norm"):
        np.testing.assert_allclose(parts.series(name), whole.series(name), rtol=1e-4, err_msg=name)
    # Counts of the microbatches are summed before their sign is taken, once.
    np.testing.assert_array_equal(parts.unscanned_biases(), whole.unscanned_biases())


def test_optimizer_state_in_host_memory(run_training: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds: set[str] = set()
    setup = maxtext_utils.setup_training_state

    def setup_and_look(*args: Any, **kwargs: Any) -> Any:
        result = setup(*args, **kwargs)
        moments = [
            value.get_value()
            for path, value in nnx.to_flat_state(nnx.state(result[0].optimizer))
            if "mu" in path or "nu" in path
        ]
        kinds.update(moment.sharding.memory_kind for moment in moments)
        return result

    whole = run_training(scan_layers=True, mtp_num_layers=1)
    monkeypatch.setattr(maxtext_utils, "setup_training_state", setup_and_look)
    host = run_training(3, scan_layers=True, mtp_num_layers=1, optimizer_memory_host_offload=True)
    assert kinds == {"pinned_host"}
    np.testing.assert_allclose(host.series("loss"), whole.series("loss")[:3], rtol=1e-6)


def test_checkpoints_continue_bit_for_bit(run_training: Any, tmp_path: Path) -> None:
    options = {
        "scan_layers": True,
        "mtp_num_layers": 1,
        "enable_checkpointing": True,
        "async_checkpointing": False,
        "checkpoint_period": 3,
        "base_output_directory": str(tmp_path),
    }
    whole = run_training(scan_layers=True, mtp_num_layers=1)
    first = run_training(4, **options)
    second = run_training(6, **options)
    for name in ("loss", "grad_norm", "param_norm"):
        assert first.series(name) == whole.series(name)[:4]
        assert second.series(name) == whole.series(name)[4:6]


def test_checkpoint_for_decoding(run_training: Any, tmp_path: Path) -> None:
    """Upstream's tool makes of a scanned checkpoint one of bfloat16 weights that a decoder with a loop reads."""
    options = {
        "scan_layers": True,
        "mtp_num_layers": 0,
        "enable_checkpointing": True,
        "async_checkpointing": False,
        "checkpoint_period": 2,
        "base_output_directory": str(tmp_path / "trained"),
    }
    trained = run_training(3, **options)
    given = models.RUN | models.TINY | OPTIONS | options | {"sparse_matmul": False}
    config = models.make_config(
        **given
        | {
            "force_unroll": True,
            "base_output_directory": str(tmp_path / "decoding"),
            "load_full_state_path": str(tmp_path / "trained/check/checkpoints/2/items"),
        }
    )
    generate_param_only_checkpoint.generate_decode_checkpoint(config)
    loop = models.make_config(
        **given
        | {
            "scan_layers": False,
            "load_parameters_path": str(tmp_path / "decoding/checks/checkpoints/0/items"),
            "enable_checkpointing": True,
        }
    )
    model, _ = model_creation_utils.from_pretrained(loop)
    flat = dict(nnx.to_flat_state(nnx.state(model)))
    actual = {
        path: np.asarray(value.get_value(), np.float32)
        for path, value in flat.items()
        if models.is_weight(path, value)
    }
    rounded = {
        path: (
            tensor
            if path[-2:] == ("gate", "bias")
            else np.asarray(jnp.asarray(tensor, jnp.bfloat16), np.float32)
        )
        for path, tensor in trained.tensors.items()
    }
    scanned = models.scanned(actual, config)
    assert set(scanned) == set(rounded)
    for path, tensor in rounded.items():
        np.testing.assert_array_equal(scanned[path], tensor, err_msg=str(path))
