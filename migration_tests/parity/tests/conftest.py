"""One overlay, one migrated tree and one comparison of everything, for all tests of a run."""

from __future__ import annotations

import dataclasses
import os
import pickle
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from migration_tests.model.conftest import UPSTREAM, make_overlay
from migration_tests.parity import plan, run, weights

REPOSITORY = Path(__file__).parents[3]
CHECKOUT = REPOSITORY / "migration_tests" / "fixtures" / "ant_pretrain"
ORACLE = REPOSITORY / "migration_tests" / "model" / "oracle" / "base_s0"


@dataclasses.dataclass(frozen=True)
class Baseline:
    """The comparison of the checkout as it is, and the trees that it was made from."""

    parity: run.Parity
    folder: Path
    migrated: Path
    overlay: Path


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of all workers of this run."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


def once(place: Path, make: Callable[[], Any]) -> Any:
    """Returns what `make` returns; it is called by one worker, and the others wait for it."""
    try:
        place.with_suffix(".lock").touch(exist_ok=False)
    except FileExistsError:
        while not place.exists():
            time.sleep(0.5)
    else:
        made: Any = None
        try:
            made = make()
        finally:
            unfinished = place.with_suffix(".part")
            unfinished.write_bytes(pickle.dumps(made))
            unfinished.rename(place)
    weights.parameter_map()  # for what is unpickled
    result = pickle.loads(place.read_bytes())
    assert result is not None, "another worker could not make it; see its failure"
    return result


@pytest.fixture(scope="session")
def trees(shared: Path) -> tuple[Path, Path]:
    """The migrated checkout and the upstream tree with Ling2 in it."""
    given = os.environ.get("LING2_OVERLAY")
    overlay = Path(given) if given else shared / "overlay"
    if not given:
        make_overlay(overlay)

    def migrate() -> Path:
        migrated = shared / "migrated"
        run._tool("run", str(CHECKOUT), "--upstream", UPSTREAM, "--out", str(migrated))
        return migrated

    migrated: Path = once(shared / "migrated.pickle", migrate)
    return migrated, overlay


@pytest.fixture(scope="session")
def baseline(trees: tuple[Path, Path], shared: Path) -> Baseline:
    """Everything compared, three sides and the published code."""
    migrated, overlay = trees

    def compare() -> Baseline:
        folder = shared / "parity"
        request = run.Request(
            CHECKOUT, migrated=migrated, overlay=overlay, oracle=ORACLE, keep=folder
        )
        return Baseline(run.run(request), folder, migrated, overlay)

    compared: Baseline = once(shared / "parity.pickle", compare)
    return compared


Rerun = Callable[[str, list[str], list[tuple[str, str]]], run.Parity]


@pytest.fixture
def rerun(baseline: Baseline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rerun:
    """A function that runs one side anew, from other roots, and compares it with the others as they were."""
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(baseline.folder / "compiled"))
    shutil.copyfile(baseline.folder / "inputs.npz", tmp_path / "inputs.npz")

    def call(name: str, roots: list[str], names: list[tuple[str, str]]) -> run.Parity:
        components = [(plan.BY_NAME[component], dtype) for component, dtype in names]
        side = run.SideRun(name, roots, "a mutated tree")
        run._run_side(side, components, None, tmp_path)
        sides = dict(baseline.parity.sides) | {name: side}
        return run.Parity(sides, run._compare(sides, components, None), {}, [], 0.0)

    return call
