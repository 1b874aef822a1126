"""Fixtures of the tests of `rebase`."""

from __future__ import annotations

import pytest

from migration_tests.checkouts import CommandLine


@pytest.fixture
def cli(
    capfdbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> CommandLine:
    """`ling2-migrate` in this process, with a cache of its own and a user who has a name."""
    from migration_tests.rebase.repos import ENVIRONMENT

    for key, value in ENVIRONMENT.items():
        if "AUTHOR" not in key:
            monkeypatch.setenv(key, value)
    monkeypatch.setenv("LING2_MIGRATE_CACHE", str(tmp_path_factory.mktemp("cache")))
    return CommandLine(capfdbinary, monkeypatch)
