"""Ling2's map in upstream releases: against the model's own variables, and through upstream's own tools."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from codemods.engine.overlay import overlay as overlay_of
from target.integration import INTEGRATIONS, NEW_FILES

pytestmark = pytest.mark.model
Check = Callable[..., None]


@pytest.fixture
def sixteen_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as upstream's tool shards a checkpoint over."""
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=16")


def test_map_is_of_the_models_variables(check: Check, overlay: Path) -> None:
    """Names, shapes and scan axes of all kinds of models, the released ones among them."""
    check("check_mapping.py", maxtext=overlay)


@pytest.mark.usefixtures("sixteen_devices")
def test_upstreams_tools(check: Check, overlay: Path) -> None:
    """`to_maxtext`, `from_pretrained` and `to_huggingface`, bit by bit; and what a checkpoint records."""
    check("check_upstream_conversion.py", maxtext=overlay)


@pytest.mark.usefixtures("sixteen_devices")
def test_upstreams_tools_of_0_2_4(check: Check, tmp_path: Path) -> None:
    """The same in the release before, which has one collection on disk."""
    overlay_of("0.2.4", tmp_path / "tree", NEW_FILES, INTEGRATIONS)
    check("check_upstream_conversion.py", "-k", "base_s0-True", maxtext=tmp_path / "tree")
