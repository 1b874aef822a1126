"""The example checkout, migrated, and the target package compute the same; what is said of it holds."""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from migration_tests.parity import metrics, plan, report, run
from migration_tests.parity.tests.conftest import REPOSITORY, Baseline

pytestmark = pytest.mark.model


def test_everything_is_within_tolerance(baseline: Baseline) -> None:
    parity = baseline.parity
    assert {name: side.failed for name, side in parity.sides.items()} == dict.fromkeys(
        run.SIDES, ""
    )
    apart = [
        (row.component.name, row.dtype, pair, row.worst(pair))
        for row in parity.rows
        for pair in row.pairs
        if row.verdict(pair) != metrics.PASS
    ]
    assert not apart, apart
    assert parity.status == 0
    compared = {(row.component.name, row.dtype) for row in parity.rows}
    assert compared >= {(c.name, dtype) for c in plan.COMPONENTS for dtype in c.dtypes}
    assert ("oracle", plan.FLOAT32) in compared
    for row in parity.rows:
        print(row.component.name, row.dtype, *(row.worst(pair) for pair in row.pairs))


def test_old_and_migrated_are_the_same_to_the_bit(baseline: Baseline) -> None:
    for row in baseline.parity.rows:
        for name, difference in row.pairs.get((run.OLD, run.MIGRATED), {}).items():
            assert difference.differing == 0, (row.component.name, row.dtype, name)


def test_gradients_of_every_parameter(baseline: Baseline) -> None:
    (row,) = (row for row in baseline.parity.rows if row.component.name == "gradients")
    target = baseline.parity.sides[run.TARGET].parameters["unscanned"]
    assert set(row.pairs[run.OLD, run.TARGET]) == set(target)
    gradients = baseline.parity.sides[run.OLD].of("gradients", plan.FLOAT32)
    for path, gradient in gradients.items():
        assert (np.abs(gradient).max() > 0) != path.endswith("gate/bias"), path


def test_scanned_is_as_unscanned_on_every_side(baseline: Baseline) -> None:
    for side in baseline.parity.sides.values():
        scanned, unscanned = side.of("scan", plan.FLOAT32), side.of("logits", plan.FLOAT32)
        difference = metrics.compare(unscanned["logits"], scanned["logits"], 1e-5)
        assert difference.verdict == metrics.PASS, (side.name, difference)


def test_inputs_tell_rules_apart() -> None:
    """Inputs at which the faults that people make show."""
    inputs, dims = plan.inputs(), plan.MODEL
    biased, scores = inputs["biased_scores"], inputs["scores"]
    # Of the group that is kept, the second best is below 0 at some places: filled with 0, the other group would win.
    best_two = np.sort(biased.reshape(*biased.shape[:2], dims["n_routing_groups"], -1), -1)[
        ..., -2:
    ]
    kept = best_two.sum(-1).argmax(-1)[..., None]
    second = np.take_along_axis(best_two[..., 0], kept, -1)
    assert 0.1 < (second < 0).mean() < 0.9
    assert (np.argsort(biased) != np.argsort(scores)).any()
    assert plan.RAGGED % plan.RUN["gla_chunk_size"]
    assert plan.LENGTH % plan.RUN["gla_chunk_size"]
    for name in ("packed_segments", "ragged_segments"):
        assert len(np.unique(inputs[name])) > 2
        assert (inputs[name] == 0).any()
    smallest = np.sqrt(np.square(inputs["hidden"]).mean(-1)).min()
    assert smallest**2 < 10 * plan.MODEL["normalization_layer_epsilon"]
    assert dims["base_num_query_heads"] * dims["head_dim"] != dims["base_emb_dim"]


def test_what_ran_is_said(baseline: Baseline) -> None:
    """Which modules are the fork's and which upstream's; backend, device, versions and precision."""
    told = report.as_json(baseline.parity)
    sides = told["sides"]
    assert any(path.endswith("ALModel/al_model.py") for path in sides["old"]["modules"])
    assert not any("/MaxText/" in path for path in sides["migrated"]["modules"])
    assert any(path.endswith("maxtext/models/ling2.py") for path in sides["migrated"]["modules"])
    assert any(path.endswith("kernels/gla/xla.py") for path in sides["target"]["modules"])
    for side in sides.values():
        assert set(side["environment"]) >= {"backend", "device", "jax", "matmul_precision"}


def test_page(baseline: Baseline, tmp_path: Path) -> None:
    report.write_page(baseline.parity, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "All components are within tolerance." in page
    # Layers, logits and MTP logits in both dtypes, and a line for each pair of sides, also in the legend.
    assert page.count("<svg") == 2
    assert page.count("<polyline") == 2 * 6
    assert page.count("<circle") == 2 * 3 * (plan.MODEL["base_num_decoder_layers"] + 2)
    assert not re.search(r"(src|href)=|https?://|@import", page)
    assert all(html.escape(component.title) in page for component in plan.COMPONENTS)


def test_json_is_plain(baseline: Baseline, tmp_path: Path) -> None:
    report.write_json(baseline.parity, tmp_path / "report.json")
    told = json.loads(
        (tmp_path / "report.json").read_text(encoding="utf-8"), parse_constant=pytest.fail
    )
    assert told["status"] == 0
    assert told["first"] is None
    gradients = next(row for row in told["components"] if row["component"] == "gradients")
    array = next(iter(gradients["pairs"]["old-target"]["arrays"].values()))
    assert {"max_abs", "relative_l2", "cosine", "ulp_p50", "ulp_p99", "ulp_max", "error"} <= set(
        array
    )
    assert gradients["reason"]


@pytest.mark.cpu_only
def test_pallas_kernels_are_interpreted_here(baseline: Baseline) -> None:
    if any(side.environment["backend"] != "cpu" for side in baseline.parity.sides.values()):
        pytest.skip("this machine has an accelerator")
    assert any("interpreted" in note for note in baseline.parity.notes)


@pytest.mark.tpu
def test_pallas_kernels_are_compiled_on_a_tpu(baseline: Baseline) -> None:
    if any(side.environment["backend"] != "tpu" for side in baseline.parity.sides.values()):
        pytest.skip("this machine has no TPU")
    assert not any("interpreted" in note for note in baseline.parity.notes)


@pytest.mark.aot
def test_compiles_for_tpu(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "codemods.cli", "parity", "--aot", "v5e:2x2"]
    done = subprocess.run(
        [*command, "--json", str(tmp_path / "aot.json")],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads((tmp_path / "aot.json").read_text(encoding="utf-8"))
    assert told["numeric"] is False
    assert all(program["cycles"] > 0 for program in told["programs"])
    assert "no number was compared" in done.stdout
