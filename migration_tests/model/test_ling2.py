"""The checks of the Ling2 model, in the upstream tree with the model in it. Each group is one process."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytestmark = pytest.mark.model
Check = Callable[..., None]


def test_config(check: Check) -> None:
    """Wrong configurations are refused, the released ones hold."""
    check("check_config.py")


def test_oracle_outputs(check: Check) -> None:
    """Outputs of the published model code."""
    check("check_oracle.py", "-k", "not gradients")


def test_oracle_gradients(check: Check) -> None:
    """Gradients of the published model code."""
    check("check_oracle.py", "-k", "gradients")


def test_decoder(check: Check) -> None:
    """Layers, names, scan against loop, packing, MTP states."""
    check("check_decoder.py")


def test_decode(check: Check) -> None:
    """Prefill and steps against the whole sequence."""
    check("check_decode.py")


def test_options(check: Check) -> None:
    """Lower precision, quantization, host memory, prefill in chunks."""
    check("check_options.py")


def test_train(check: Check) -> None:
    """Training through the entry point."""
    check("check_train.py")


def test_meshes(check: Check) -> None:
    """Eight virtual devices against one."""
    check("check_meshes.py", devices=8)
