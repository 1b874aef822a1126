"""The example checkout computes: its model runs forward and backward, and its own tests pass.

Everything runs in a subprocess, since the checkout's package and jax belong to it and not to the codemods.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.model

CHECKOUT = Path(__file__).parents[1] / "fixtures" / "ant_pretrain"

FORWARD_AND_BACKWARD = """
import jax
import jax.numpy as jnp

from MaxText import train
from tests.al_model_test_utils import build, tiny_batch, tiny_config

config = tiny_config(router_z_loss_weight=1e-3)
model, params = build(config)
batch = tiny_batch(config)


def loss(params):
  return train.loss_fn(model, config, batch, jax.random.PRNGKey(0), params)


(value, aux), grads = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
assert jnp.isfinite(value) and aux["mtp_loss"] > 0 and aux["router_z_loss"] > 0
for path, leaf in jax.tree_util.tree_leaves_with_path(grads):
  name = jax.tree_util.keystr(path)
  assert bool(jnp.all(jnp.isfinite(leaf))), name
  # The router's bias selects and takes no gradient; every other parameter takes part.
  assert (float(jnp.abs(leaf).max()) > 0) != name.endswith("['gate']['bias']"), name
"""


def run_in_checkout(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run this Python in the checkout, with its import roots and on the CPU; nothing is written there."""
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        # Compiling is what takes the time at these sizes.
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": os.pathsep.join((str(CHECKOUT / "src"), str(CHECKOUT))),
    }
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=CHECKOUT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_model_runs_forward_and_backward() -> None:
    done = run_in_checkout("-c", FORWARD_AND_BACKWARD)
    assert done.returncode == 0, done.stdout + done.stderr


def test_own_tests_pass() -> None:
    done = run_in_checkout("-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore")
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
