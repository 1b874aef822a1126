"""Getting hold of upstream: folders of every kind, and versions through pip, its cache and its failures."""

from __future__ import annotations

import hashlib
import json
import zipfile
from pathlib import Path

import pytest

from codemods import upstream
from codemods.errors import UserError
from codemods.upstream import require_target, resolve_upstream


def package(root: Path, layout: str, version: str = "0.2.5") -> None:
    (root / layout / "layers").mkdir(parents=True)
    (root / layout / "__init__.py").write_text(f'__version__ = "{version}"\n', encoding="utf-8")


def wheel(folder: Path, version: str) -> Path:
    """A wheel that pip takes."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"maxtext-{version}-py3-none-any.whl"
    info = f"maxtext-{version}.dist-info"
    files = {
        "maxtext/__init__.py": "",
        "maxtext/version.py": f'__version__ = "{version}"\n',
        "maxtext/layers/__init__.py": "",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: maxtext\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a pip that knows no index."""
    folder = tmp_path / "cache"
    monkeypatch.setenv(upstream.CACHE_VARIABLE, str(folder))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    for name in ("PIP_FIND_LINKS", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.mark.parametrize(
    ("layout", "below", "is_wheel"),
    [
        ("maxtext", "src", False),
        ("maxtext", "", True),
        ("MaxText", "src", False),
        ("MaxText", "", True),
    ],
)
def test_a_folder(tmp_path: Path, layout: str, below: str, is_wheel: bool) -> None:
    package(tmp_path / below, layout)
    found = resolve_upstream(str(tmp_path))
    assert (found.layout, found.wheel, found.version) == (layout, is_wheel, "0.2.5")
    assert found.python_root == tmp_path / below
    if layout == "maxtext":
        assert require_target(found) is found
    else:
        with pytest.raises(UserError, match="old layout"):
            require_target(found)


def test_the_new_package_goes_before_the_old_one_beside_it(tmp_path: Path) -> None:
    package(tmp_path / "src", "MaxText", "0.2.1")
    (tmp_path / "src/maxtext/layers").mkdir(parents=True)
    found = resolve_upstream(str(tmp_path))
    assert (found.layout, found.version) == ("maxtext", "0.2.1")


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    (tmp_path / "empty").mkdir()
    for spec, words in (
        (tmp_path / "absent", "no such folder"),
        (tmp_path / "file", "not a folder"),
        (tmp_path / "empty", "no MaxText in it"),
    ):
        with pytest.raises(UserError, match=words) as caught:
            resolve_upstream(str(spec))
        assert "\n" not in str(caught.value)


def test_a_version_is_fetched_once(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = wheel(tmp_path / "index", "9.9.9")
    monkeypatch.setenv("PIP_FIND_LINKS", str(source.parent))
    found = resolve_upstream("9.9.9")
    assert found.root == cache / "maxtext-9.9.9"
    assert (found.label, found.version, found.layout, found.wheel) == (
        "9.9.9",
        "9.9.9",
        "maxtext",
        True,
    )
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    assert json.loads((cache / "hashes.json").read_text(encoding="utf-8")) == {"9.9.9": digest}
    # From now on without any index.
    monkeypatch.delenv("PIP_FIND_LINKS")
    source.unlink()
    assert resolve_upstream("9.9.9") == found
    assert sorted(p.name for p in cache.iterdir()) == [
        "hashes.json",
        "maxtext-9.9.9",
        "maxtext-9.9.9-py3-none-any.whl",
    ]


def test_a_version_that_cannot_be_had(cache: Path) -> None:
    with pytest.raises(UserError, match=r"maxtext 9\.9\.8: cannot be had") as caught:
        resolve_upstream("9.9.8")
    assert "\n" not in str(caught.value)
    assert list(cache.iterdir()) == []


def test_a_wheel_with_another_hash_is_refused(cache: Path, tmp_path: Path) -> None:
    wheel(cache, "0.2.5")
    with pytest.raises(UserError, match=r"sha256 is .*, not 2fe8e4ffc3a0"):
        resolve_upstream("0.2.5")
    assert not (cache / "maxtext-0.2.5").exists()
    # Of a version that no hash ships for, the first one seen is the one that counts.
    path = wheel(cache, "9.9.9")
    resolve_upstream("9.9.9")
    path.write_bytes(path.read_bytes() + b"more")
    with pytest.raises(UserError, match="sha256"):
        resolve_upstream("9.9.9")


def test_a_half_unpacked_folder_is_made_anew(cache: Path) -> None:
    wheel(cache, "9.9.9")
    (cache / "maxtext-9.9.9/maxtext").mkdir(parents=True)
    (cache / "maxtext-9.9.9/maxtext/stale.py").write_text("", encoding="utf-8")
    found = resolve_upstream("9.9.9")
    assert (found.root / "maxtext/layers/__init__.py").is_file()
    assert not (found.root / "maxtext/stale.py").exists()


def test_what_is_no_wheel(cache: Path) -> None:
    cache.mkdir()
    (cache / "maxtext-9.9.9-py3-none-any.whl").write_bytes(b"not a zip")
    with pytest.raises(UserError, match="not a wheel"):
        resolve_upstream("9.9.9")


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv(upstream.CACHE_VARIABLE, str(tmp_path / "file"))
    with pytest.raises(UserError, match="cannot keep maxtext"):
        resolve_upstream("9.9.9")


def test_where_the_cache_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(upstream.CACHE_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert upstream.cache_folder() == tmp_path / "ling2-migrate"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert upstream.cache_folder() == Path.home() / ".cache/ling2-migrate"
    monkeypatch.setenv(upstream.CACHE_VARIABLE, "/elsewhere")
    assert upstream.cache_folder() == Path("/elsewhere")


@pytest.mark.parametrize("spec", ["9.9", "9.9.0", "v9.9.0", "v9.9"])
def test_spellings_of_a_version(
    spec: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel(tmp_path / "index", "9.9.0")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    assert upstream.resolve_upstream(spec).version == "9.9.0"


@pytest.mark.parametrize(
    ("spec", "expected"),
    [("0.2.5", True), ("0.2.5rc1", True), ("1.0.post2", True), ("d4ed2261", False), ("5", False)],
)
def test_what_counts_as_a_version(spec: str, expected: bool) -> None:
    assert upstream.is_version(spec) is expected
