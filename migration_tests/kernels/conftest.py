"""The kernel tests run on the host's CPU, as eight devices, so that shard_map has something to divide."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator

import pytest

collect_ignore_glob: list[str] = []

if importlib.util.find_spec("jax") is None:
    # They need the extra `model`, as their mark says.
    collect_ignore_glob.append("test_*.py")
else:
    import jax

    # The settings of this process only: environment variables would reach the subprocesses of other tests.
    if "JAX_PLATFORMS" not in os.environ:
        jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 8)


@pytest.fixture(scope="module")
def quick_compilation() -> Iterator[None]:
    """Compiles for a few milliseconds of work: most of these tests' time would be spent in the optimizer."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
