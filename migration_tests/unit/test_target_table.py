"""The symbol table of the upstream tree comes out the same from the cache, and is never out of date."""

from __future__ import annotations

from pathlib import Path

import pytest

from codemods.engine.target import target_table
from codemods.maps.symbols import SymbolTable
from codemods.upstream import CACHE_VARIABLE


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv(CACHE_VARIABLE, str(folder))
    return folder


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "tree"
    (folder / "maxtext").mkdir(parents=True)
    (folder / "maxtext/__init__.py").write_text("")
    (folder / "maxtext/moe.py").write_text(
        "class RoutedMoE:\n  def __init__(self):\n    self.x = 1\n"
    )
    return folder


def read(tree: Path) -> SymbolTable:
    target_table.cache_clear()
    return target_table(tree)


def test_the_cached_table_is_the_table(cache: Path, tree: Path) -> None:
    first = read(tree)
    (kept,) = cache.iterdir()
    written = kept.stat().st_mtime_ns
    second = read(tree)
    assert second.modules == first.modules == SymbolTable.from_folder(tree).modules
    assert second.exists("maxtext.moe.RoutedMoE")
    assert kept.stat().st_mtime_ns == written


def test_a_changed_tree_is_read_anew(cache: Path, tree: Path) -> None:
    read(tree)
    (tree / "maxtext/moe.py").write_text("class Other:\n  pass\n")
    table = read(tree)
    assert table.exists("maxtext.moe.Other")
    assert not table.exists("maxtext.moe.RoutedMoE")


@pytest.mark.parametrize("content", [b"", b"no pickle", b"\x80\x05K\x01."])
def test_a_spoilt_cache_is_done_without(cache: Path, tree: Path, content: bytes) -> None:
    read(tree)
    (kept,) = cache.iterdir()
    kept.write_bytes(content)
    assert read(tree).exists("maxtext.moe.RoutedMoE")
    assert len(kept.read_bytes()) > 100


def test_a_cache_that_cannot_be_written_is_done_without(cache: Path, tree: Path) -> None:
    cache.write_text("a file where the folder should be")
    assert read(tree).exists("maxtext.moe.RoutedMoE")
