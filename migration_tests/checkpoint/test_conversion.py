"""The checks of the converter. Each group is one process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Check = Callable[..., None]
REPOSITORY = Path(__file__).parents[2]


@pytest.mark.model
def test_conversion(check: Check) -> None:
    """Bit for bit in every direction, several hosts, comparisons, scripts."""
    check("check_conversion.py")


@pytest.mark.model
def test_kill(check: Check) -> None:
    """Killed at any moment, taken up again."""
    check("check_kill.py")


@pytest.mark.model
def test_faults(check: Check) -> None:
    """Faults are named, and nothing is left behind."""
    check("check_faults.py")


@pytest.mark.model
def test_restore(check: Check, overlay: Path) -> None:
    """MaxText restores the result and computes the logits of the published model code."""
    check("check_restore.py", maxtext=overlay)


IMPORTING = """
import sys
sys.path.insert(0, {site!r})
{before}
from target.importing import target_module
module = target_module("maxtext.checkpoint_conversion.ling2.hf_files")
import maxtext
from maxtext.common import ling2_layers
print(hasattr(maxtext, "REAL"), "maxtext.checkpoint_conversion" in sys.modules)
{after}
"""


@pytest.mark.parametrize("loaded", [False, True])
def test_upstream_beside_target(loaded: bool, tmp_path: Path) -> None:
    """Where upstream's package is installed, it is not loaded; where it is loaded, it stays what it is."""
    package = tmp_path / "maxtext"
    for folder in (package, package / "common", package / "checkpoint_conversion"):
        folder.mkdir()
        (folder / "__init__.py").write_text("", encoding="utf-8")
    (package / "__init__.py").write_text("REAL = True\n", encoding="utf-8")
    (package / "common" / "upstream.py").write_text("VALUE = 3\n", encoding="utf-8")
    script = IMPORTING.format(
        site=str(tmp_path),
        before="import maxtext.common" if loaded else "",
        after="from maxtext.common.upstream import VALUE" if loaded else "",
    )
    result = subprocess.run(
        [sys.executable, "-c", script], cwd=REPOSITORY, text=True, capture_output=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == [str(loaded), "True"]
