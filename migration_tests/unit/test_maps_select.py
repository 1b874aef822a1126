"""Which map a checkout gets, and that a map for another base is refused."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from codemods.errors import UserError
from codemods.maps import model, select
from codemods.maps.gitstore import blob_id
from codemods.maps.model import MoveMap, TreeId
from codemods.upstream import Upstream, resolve_upstream

FILES = [f"src/MaxText/part_{i}.py" for i in range(30)]


def content(path: str, age: str) -> str:
    """Two thirds of the files differ from one age to the next."""
    return f"# {path} {age if FILES.index(path) % 3 else ''}\n"


def write(root: Path, age: str, own: tuple[int, ...] = ()) -> None:
    for index, path in enumerate(FILES):
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text("OWN = 1\n" if index in own else content(path, age), encoding="utf-8")


def git(root: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(root), *arguments],
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


@pytest.fixture
def target(tmp_path: Path) -> Upstream:
    """A tree on the new layout."""
    layers = tmp_path / "target/maxtext/layers"
    layers.mkdir(parents=True)
    for index in range(40):
        (layers / f"layer_{index}.py").write_text(f"N = {index}\n", encoding="utf-8")
    return resolve_upstream(str(tmp_path / "target"))


@pytest.fixture
def history(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A repository with both bases, the older one first."""
    root = tmp_path / "upstream"
    root.mkdir()
    git(root, "init", "-q", "-b", "main")
    commits = {}
    for age in ("older", "newer"):
        write(root, age)
        git(root, "add", "-A")
        git(root, "commit", "-q", "-m", age)
        commits[age] = git(root, "rev-parse", "HEAD")
    return root, commits


@pytest.fixture
def maps(
    tmp_path: Path,
    target: Upstream,
    history: tuple[Path, dict[str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """Shipped maps for both bases and two targets."""
    data = tmp_path / "data"
    data.mkdir()
    for age, date in (("older", "2025-01-01"), ("newer", "2026-01-01")):
        blobs = {p: blob_id(content(p, age).encode())[:10] for p in FILES}
        for label in ("T1", "T2"):
            map_ = MoveMap(TreeId(age, history[1][age], date), TreeId(label), blobs=blobs)
            model.dump(map_, data / f"{age}--{label}.json.gz")
    layers = {
        f"src/maxtext/layers/layer_{i}.py": blob_id(f"N = {i}\n".encode())[:10] for i in range(40)
    }
    listed = {"T1": layers, "T2": dict.fromkeys(layers, "0" * 10)}
    (data / "targets.json.gz").write_bytes(gzip.compress(json.dumps(listed).encode()))
    monkeypatch.setattr(select, "DATA", data)
    monkeypatch.setattr(select, "TARGETS", data / "targets.json.gz")
    select.targets.cache_clear()
    return data


@pytest.fixture(autouse=True)
def _forget() -> object:
    yield
    select.targets.cache_clear()


def test_by_merge_base(
    maps: Path, history: tuple[Path, dict[str, str]], target: Upstream, tmp_path: Path
) -> None:
    for age in ("older", "newer"):
        fork = tmp_path / f"fork-{age}"
        subprocess.run(["git", "clone", "-q", str(history[0]), str(fork)], check=True)
        git(fork, "checkout", "-q", "-b", "own", history[1][age])
        # Edited beyond recognition: history knows all the same.
        write(fork, "own")
        git(fork, "commit", "-q", "-am", "own")
        chosen = select.pick(fork, target)
        assert chosen.path == maps / f"{age}--T1.json.gz"
        assert chosen.map.base.label == age
        assert chosen.certain
        assert f"HEAD descends from upstream {age}" in chosen.why


def test_by_content(maps: Path, target: Upstream, tmp_path: Path) -> None:
    write(tmp_path / "plain", "older", own=(1, 2, 4))
    chosen = select.pick(tmp_path / "plain", target)
    assert chosen.map.base.label == "older"
    assert chosen.certain
    assert "27 of the 30 files at its paths unchanged (90%)" in chosen.why


def test_an_unpacked_wheel(maps: Path, target: Upstream, tmp_path: Path) -> None:
    write(tmp_path / "plain", "newer")
    shutil.move(tmp_path / "plain/src/MaxText", tmp_path / "wheel/MaxText")
    chosen = select.pick(tmp_path / "wheel", target)
    assert chosen.map.base.label == "newer"
    assert chosen.certain


def test_a_folder_inside_another_repository_is_not_taken_for_it(
    maps: Path, history: tuple[Path, dict[str, str]], target: Upstream
) -> None:
    inner = history[0] / "inner"
    write(inner, "older")
    chosen = select.pick(inner, target)
    assert chosen.map.base.label == "older"
    assert "best match" in chosen.why


def test_by_paths_alone(maps: Path, target: Upstream, tmp_path: Path) -> None:
    (tmp_path / "small/src/MaxText").mkdir(parents=True)
    for path in FILES[:4]:
        (tmp_path / "small" / path).write_text("OWN = 1\n", encoding="utf-8")
    chosen = select.pick(tmp_path / "small", target)
    assert not chosen.certain
    assert chosen.map.base.label == "newer"
    assert "by file paths alone" in chosen.why
    assert "--map" in chosen.why


def test_no_file_of_any_base(maps: Path, target: Upstream, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other/x.py").write_text("", encoding="utf-8")
    chosen = select.pick(tmp_path / "other", target)
    assert not chosen.certain
    assert chosen.map.base.label == "newer"
    assert "none of its files is at a path" in chosen.why
    assert "--map" in chosen.why


def test_an_upstream_near_a_target_is_said_to_be_so(
    maps: Path, target: Upstream, tmp_path: Path
) -> None:
    write(tmp_path / "plain", "newer")
    (target.python_root / "maxtext/layers/layer_0.py").write_text("changed\n", encoding="utf-8")
    chosen = select.pick(tmp_path / "plain", target)
    assert "97.5% of its files are as in T1" in chosen.why
    for index in range(9):
        (target.python_root / f"maxtext/layers/layer_{index}.py").write_text(
            "x\n", encoding="utf-8"
        )
    with pytest.raises(UserError, match="map build"):
        select.pick(tmp_path / "plain", target)


def test_a_map_for_another_base_is_refused(
    maps: Path, history: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    write(tmp_path / "plain", "newer", own=(1, 2))
    for age, fits in (("newer", True), ("older", False)):
        path = maps / f"{age}--T1.json.gz"
        if fits:
            assert select.require_fit(model.load(path), path, tmp_path / "plain").same == 28
        else:
            with pytest.raises(UserError, match="a map for another base"):
                select.require_fit(model.load(path), path, tmp_path / "plain")
    # A repository that has the base in its history, however much it changed since, is of that base.
    path = maps / "older--T1.json.gz"
    assert select.require_fit(model.load(path), path, history[0]).present == 30
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="a map for another base"):
        select.require_fit(model.load(path), path, tmp_path / "empty")


def test_contents_all_its_own_do_not_refuse_a_map(maps: Path, tmp_path: Path) -> None:
    write(tmp_path / "own", "newer", own=tuple(range(30)))
    path = maps / "older--T1.json.gz"
    assert select.require_fit(model.load(path), path, tmp_path / "own").same == 0
