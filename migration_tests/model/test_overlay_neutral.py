"""Other models train bit for bit alike in an upstream tree and in its overlay.

Each run is a process of its own with the tree on its path; this file is also the program that it runs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SMALL: dict[str, Any] = {
    "override_model_config": True,
    "hardware": "cpu",
    "skip_jax_distributed_system": True,
    "dataset_type": "synthetic",
    "enable_checkpointing": False,
    "attention": "dot_product",
    "megablox": False,
    "sparse_matmul": False,
    "per_device_batch_size": 2,
    "max_target_length": 16,
    "vocab_size": 64,
    "base_emb_dim": 32,
    "sharding_tolerance": 1.0,
    "learning_rate": 1e-2,
    "log_period": 1,
    "log_config": False,
    "run_name": "neutral",
    "steps": 2,
}
# What the edits touch: routing and its bias, MTP, accumulation, scan; norms, shared experts, a remainder.
MODELS: dict[str, dict[str, Any]] = {
    "deepseek3-tiny": {
        "scan_layers": True,
        "base_num_decoder_layers": 3,
        "first_num_dense_layers": 1,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 8,
        "v_head_dim": 8,
        "max_position_embeddings": 16,
        "original_max_position_embeddings": 16,
        "rope_factor": 1,
        "mtp_num_layers": 1,
        "routed_bias_update_rate": 1e-3,
        "load_balance_loss_weight": 1e-2,
        "gradient_accumulation_steps": 2,
    },
    "qwen3-next-80b-a3b": {
        "scan_layers": False,
        "base_num_decoder_layers": 3,
        "inhomogeneous_layer_cycle_interval": 2,
        "base_num_query_heads": 2,
        "base_num_kv_heads": 1,
        "head_dim": 8,
        "base_mlp_dim": 16,
        "base_moe_mlp_dim": 16,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "gdn_key_head_dim": 8,
        "gdn_value_head_dim": 8,
        "gdn_num_key_heads": 2,
        "gdn_num_value_heads": 2,
        "gdn_chunk_size": 8,
    },
}


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Upstream's tree and its overlay."""
    from codemods.engine.overlay import overlay
    from target.integration import INTEGRATIONS, NEW_FILES

    out = tmp_path_factory.mktemp("overlay") / "tree"
    return overlay("0.2.5", out, NEW_FILES, INTEGRATIONS).upstream.root, out


@pytest.mark.model
@pytest.mark.parametrize("model_name", MODELS)
def test_training_is_bit_for_bit_that_of_upstream(
    model_name: str, trees: tuple[Path, Path], tmp_path: Path
) -> None:
    before, after = (trained(tree, model_name, tmp_path / tree.name) for tree in trees)
    assert (Path(before["tree"]).parents[1], Path(after["tree"]).parents[1]) == trees
    assert len(before["metrics"]) == SMALL["steps"]
    assert after["metrics"] == before["metrics"]
    assert after["state"] == before["state"]


def trained(tree: Path, model_name: str, out: Path) -> dict[str, Any]:
    """What `main` prints with a tree on its path."""
    env = os.environ | {
        "PYTHONPATH": str(tree),
        "DECOUPLE_GCLOUD": "TRUE",
        "JAX_PLATFORMS": "cpu",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    env.pop("XLA_FLAGS", None)
    done = subprocess.run(
        [sys.executable, "-P", __file__, model_name, str(out)],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def main(model_name: str, out: Path) -> None:
    """Train a small model through MaxText's entry point; print its metrics and a digest of its final state."""
    import hashlib

    import maxtext
    import numpy as np
    from flax import nnx
    from maxtext.trainers.pre_train import train
    from maxtext.utils.globals import MAXTEXT_CONFIGS_DIR

    options = SMALL | MODELS[model_name] | {"model_name": model_name}
    # Programs that are the same in both trees are compiled once.
    options |= {"base_output_directory": str(out), "jax_cache_dir": str(out.with_name("compiled"))}
    options |= {"metrics_file": str(out / "metrics.jsonl")}
    out.mkdir(parents=True)
    config, recorder = train.initialize(
        ["train", f"{MAXTEXT_CONFIGS_DIR}/base.yml", *(f"{k}={v}" for k, v in options.items())]
    )
    state = train.train_loop(config, recorder)
    arrays = {
        "/".join(map(str, path)): np.asarray(value.get_value())
        for path, value in nnx.to_flat_state(nnx.state((state.model, state.optimizer)))
        if not isinstance(value, nnx.RngState)
    }
    lines = (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    metrics = [
        {k: v for k, v in json.loads(line).items() if k.startswith("learning/")} for line in lines
    ]
    digests = {
        name: hashlib.sha256(array.tobytes()).hexdigest() for name, array in sorted(arrays.items())
    }
    print(json.dumps({"tree": maxtext.__file__, "metrics": metrics, "state": digests}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
