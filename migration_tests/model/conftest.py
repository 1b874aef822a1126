"""The tree that the model's checks run in: an upstream release with the model put into it, made once per run.

The checks in `inside/` import `maxtext` from that tree, which other tests' processes have from elsewhere, so each group of them
is a pytest run of its own. `LING2_OVERLAY` names a tree to use instead of making one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
INSIDE = Path(__file__).parent / "inside"
UPSTREAM = "0.2.5"


def make_overlay(out: Path) -> None:
    """Put the model into an upstream tree at `out`; other workers of this run wait for the one that does it."""
    log = out.parent / f"{out.name}.log"
    try:
        out.parent.joinpath(f"{out.name}.lock").touch(exist_ok=False)
    except FileExistsError:
        while not log.exists():
            time.sleep(0.5)
    else:
        command = [sys.executable, "-m", "codemods.cli", "overlay"]
        result = subprocess.run(
            [*command, "--upstream", UPSTREAM, "--out", str(out)],
            cwd=REPOSITORY,
            text=True,
            capture_output=True,
            check=False,
        )
        unfinished = log.with_suffix(".part")
        failure = result.stdout + result.stderr if result.returncode else ""
        unfinished.write_text(failure, encoding="utf-8")
        unfinished.rename(log)
    failure = log.read_text(encoding="utf-8")
    assert not failure, failure


@pytest.fixture(scope="session")
def overlay(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The upstream tree with the model in it."""
    given = os.environ.get("LING2_OVERLAY")
    if given:
        return Path(given)
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    out = shared / "overlay"
    make_overlay(out)
    return out


@pytest.fixture(scope="session")
def check(overlay: Path) -> Callable[..., None]:
    """A function that runs a file of `inside/` in the overlaid tree and fails if a test of it does."""

    def run(name: str, *options: str, devices: int = 1) -> None:
        environment = os.environ | {
            "DECOUPLE_GCLOUD": "TRUE",
            "JAX_PLATFORMS": "cpu",
            "PYTHONPATH": os.pathsep.join([str(overlay), str(REPOSITORY)]),
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        }
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "-rP", "-x"]
        result = subprocess.run(
            [*command, "-o", "python_files=check_*.py", str(INSIDE / name), *options],
            cwd=REPOSITORY,
            env={k: v for k, v in environment.items() if not k.startswith("PYTEST_")},
            text=True,
            capture_output=True,
            check=False,
        )
        assert result.returncode == 0, result.stdout[-20_000:] + result.stderr[-5_000:]

    return run
