"""Runs files of `inside/` in processes of their own.

Conversions run JAX's libraries, whose threads do not go with the forks of other tests' workers. What is restored by MaxText
itself runs in the tree that the model's checks run in.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from migration_tests.model.conftest import overlay as overlay

REPOSITORY = Path(__file__).parents[2]
INSIDE = Path(__file__).parent / "inside"


@pytest.fixture(scope="session")
def check() -> Callable[..., None]:
    """A function that runs a file of `inside/`, with `maxtext` from a folder, and fails if a test of it does."""

    def run(name: str, *options: str, maxtext: Path = REPOSITORY / "target") -> None:
        environment = os.environ | {
            "DECOUPLE_GCLOUD": "TRUE",
            "JAX_PLATFORMS": "cpu",
            "PYTHONPATH": os.pathsep.join([str(maxtext), str(REPOSITORY)]),
        }
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "-rP", "-x"]
        settings = ["-o", "python_files=check_*.py", "-o", "pythonpath="]
        result = subprocess.run(
            [*command, *settings, str(INSIDE / name), *options],
            cwd=REPOSITORY,
            env={k: v for k, v in environment.items() if not k.startswith("PYTEST_")},
            text=True,
            capture_output=True,
            check=False,
        )
        assert result.returncode == 0, result.stdout[-20_000:] + result.stderr[-5_000:]

    return run
