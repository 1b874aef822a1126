"""Faults through the command line: named in one line, exit status 2, nothing left behind, the source untouched."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from maxtext.checkpoint_conversion.ling2 import convert, orbax_files, plan, work

from codemods import cli
from migration_tests.checkpoint import hf_folders

REPOSITORY = Path(__file__).parents[3]


@contextmanager
def signals_kept() -> Iterator[None]:
    held = {
        number: signal.getsignal(number)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for number, handler in held.items():
            signal.signal(number, handler)


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """`ling2-migrate ckpt …` in this process: exit status, standard output, standard error."""

    def command(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["ling2-migrate", "ckpt", *map(str, arguments)])
        capfd.readouterr()
        with signals_kept(), pytest.raises(SystemExit) as caught:
            cli.main()
        out, err = capfd.readouterr()
        status = caught.value.code
        assert isinstance(status, int)
        return status, out, err

    return command


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hf_folders.small_folder(tmp_path_factory.mktemp("whole") / "hf")


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "hf"))


@pytest.fixture(scope="module")
def maxtext(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("maxtext") / "mt"
    convert.to_maxtext(plan.plan(whole, True), out, "hf", "test")
    return out


def assert_refused(result: tuple[int, str, str], *named: str) -> None:
    """Fails unless it was one line on standard error that names these, and exit status 2."""
    status, out, err = result
    assert status == 2, (out, err)
    assert out == ""
    assert err.startswith("ling2-migrate: error: ")
    assert err.count("\n") == 1, err
    assert all(word in err for word in named), err


FAULTS = hf_folders.UNREADABLE | hf_folders.UNACCOUNTED


@pytest.mark.parametrize("name", FAULTS)
def test_faults_of_the_source(name: str, folder: Path, run: Run) -> None:
    fault, named = FAULTS[name]
    fault(folder)
    before = hf_folders.snapshot(folder.parent)
    out = folder.parent / "new" / "out"
    result = run("to-maxtext", folder, out, "--scan-layers", "false")
    assert_refused(result, *(word for word in named if not word.startswith("[")))
    assert hf_folders.snapshot(folder.parent) == before


def test_places_that_cannot_be_taken(folder: Path, maxtext: Path, run: Run) -> None:
    parent = folder.parent
    (parent / "folder").mkdir()
    (parent / "file").write_text("x", encoding="utf-8")
    (parent / "link").symlink_to("nowhere")
    before = hf_folders.snapshot(parent)
    for name in ("folder", "file", "link"):
        result = run("to-maxtext", folder, parent / name, "--scan-layers", "true")
        assert_refused(result, str(parent / name), "exists")
        assert_refused(run("to-hf", maxtext, parent / name), str(parent / name), "exists")
    result = run("to-maxtext", folder, parent / "file" / "out", "--scan-layers", "true")
    assert_refused(result, str(parent / "file"))
    result = run("to-maxtext", folder, folder / "out", "--scan-layers", "true")
    assert_refused(result, "never written to")
    assert_refused(run("to-maxtext", folder, parent, "--scan-layers", "true"), str(parent))
    for place in (maxtext / "0" / "items" / "hf", maxtext / "0" / "hf", maxtext / "hf"):
        assert_refused(run("to-hf", maxtext, place), "never written to")
    assert_refused(run("to-hf", maxtext / "0" / "items", maxtext / "0" / "hf"), "never written to")
    assert_refused(run("to-hf", maxtext, parent / ("x" * 250)), "too long")
    assert_refused(run("to-hf", maxtext, parent / ("x" * 300)), "too long")
    (parent / "loop").symlink_to("loop")
    assert_refused(run("to-hf", maxtext, parent / "loop" / "out"), str(parent / "loop"))
    (parent / "loop").unlink()
    for name in ("a\\b", "a*", "a[1]", "\udcff"):
        result = run("to-maxtext", folder, parent / name, "--scan-layers", "true")
        assert_refused(result, "in the path of a MaxText checkpoint")
    assert hf_folders.snapshot(parent) == before


def test_sources_that_are_none(folder: Path, maxtext: Path, tmp_path: Path, run: Run) -> None:
    out = tmp_path / "out"
    assert_refused(run("to-maxtext", tmp_path / "no", out, "--scan-layers", "true"), "no such")
    for place in (maxtext, maxtext / "0", maxtext / "0" / "items"):
        result = run("to-maxtext", place, out, "--scan-layers", "true")
        assert_refused(result, "it is a MaxText checkpoint")
    assert_refused(run("to-hf", tmp_path / "no", out), "no such")
    assert_refused(run("to-hf", folder, out), "as a Hugging Face one has")
    assert_refused(run("compare-values", folder, folder), "no MaxText checkpoint")
    assert_refused(run("compare-shapes", maxtext, maxtext), "it is a MaxText checkpoint")
    assert_refused(run("to-hf", tmp_path, out), "is neither in it nor in")
    several = tmp_path / "several"
    shutil.copytree(maxtext, several)
    shutil.copytree(maxtext / "0", several / "10")
    assert_refused(run("to-hf", several, out), "0, 10")
    assert_refused(run("to-hf", tmp_path / ("x" * 300), out), "too long")
    odd = tmp_path / "a\\b"
    shutil.copytree(maxtext, odd)
    assert_refused(run("to-hf", odd, out), "in the path of a MaxText checkpoint")
    assert not out.exists()


def test_options_that_are_none(folder: Path, tmp_path: Path, run: Run) -> None:
    base = ("to-maxtext", folder, tmp_path / "out", "--scan-layers")
    assert_refused(run(*base, "perhaps"))
    assert_refused(run(*base, "true", "--shard", "3/2"), "3/2")
    assert_refused(run(*base, "true", "--group-size", "much"), "much")
    assert_refused(run(*base, "true", "--mla-tail-rule", "some"))
    assert_refused(run("to-maxtext", folder, tmp_path / "out"), "scan-layers")
    assert_refused(run("plan", folder, "--config", tmp_path / "no.yml"), "no.yml")
    (tmp_path / "bad.yml").write_text("a: [", encoding="utf-8")
    assert_refused(run("plan", folder, "--config", tmp_path / "bad.yml"), "bad.yml")
    (tmp_path / "few.yml").write_text("vocab_size: 3\n", encoding="utf-8")
    assert_refused(run("plan", folder, "--config", tmp_path / "few.yml"))
    for report in (tmp_path, tmp_path / "no" / "report.json"):
        result = run("compare-shapes", tmp_path, folder, "--report-json", report)
        assert_refused(result, str(report), "cannot be written")
    assert not (tmp_path / "out").exists()


def test_no_space(
    folder: Path, maxtext: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    before = hf_folders.snapshot(tmp_path)
    result = run("to-maxtext", folder, tmp_path / "a" / "b" / "out", "--scan-layers", "true")
    assert_refused(result, "1,000 are free")
    assert_refused(run("to-hf", maxtext, tmp_path / "out"), "1,000 are free")
    assert hf_folders.snapshot(tmp_path) == before


@pytest.mark.parametrize("direction", ["to-maxtext", "to-hf"])
def test_writes_that_fail(
    direction: str, folder: Path, maxtext: Path, tmp_path: Path, run: Run
) -> None:
    """A limit on the size of files is met while writing, as a full disk would be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = hf_folders.snapshot(tmp_path)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        if direction == "to-maxtext":
            result = run(direction, folder, tmp_path / "out", "--scan-layers", "true")
        else:
            result = run(direction, maxtext, tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert_refused(result, str(tmp_path), "large")
    assert hf_folders.snapshot(tmp_path) == before


def test_a_source_that_shrinks(
    folder: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill = convert.HfSource.fill

    def shrink(*args: Any) -> None:
        os.truncate(folder / hf_folders.SECOND, 1000)
        fill(*args)

    monkeypatch.setattr(convert.HfSource, "fill", shrink)
    result = run("to-maxtext", folder, tmp_path / "out", "--scan-layers", "true")
    assert_refused(result, hf_folders.SECOND, "changed")
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]


def damaged(maxtext: Path, out: Path, change: Callable[[Path], None]) -> Path:
    """A copy of a MaxText checkpoint with a fault."""
    shutil.copytree(maxtext, out)
    change(out / "0" / "items")
    return out


def largest_file(items: Path) -> Path:
    return max((p for p in items.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)


MAXTEXT_FAULTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "no metadata": (lambda items: (items / "_METADATA").unlink(), "_METADATA"),
    "metadata no JSON": (lambda items: (items / "_METADATA").write_text("{"), "_METADATA"),
    "metadata a list": (lambda items: (items / "_METADATA").write_text("[]"), "_METADATA"),
    "metadata of nothing": (lambda items: (items / "_METADATA").write_text("{}"), "_METADATA"),
    "no manifest": (lambda items: (items / "manifest.ocdbt").unlink(), "items"),
    "data cut off": (lambda items: os.truncate(largest_file(items), 4000), "cannot be read"),
    "data gone": (lambda items: largest_file(items).unlink(), "cannot be read"),
    "step metadata no JSON": (
        lambda items: (items.parent / "_CHECKPOINT_METADATA").write_text("{"),
        "_CHECKPOINT_METADATA",
    ),
    "no step metadata": (
        lambda items: (items.parent / "_CHECKPOINT_METADATA").unlink(),
        "--config",
    ),
}


@pytest.mark.parametrize("name", MAXTEXT_FAULTS)
def test_faults_of_a_maxtext_checkpoint(name: str, maxtext: Path, tmp_path: Path, run: Run) -> None:
    change, named = MAXTEXT_FAULTS[name]
    source = damaged(maxtext, tmp_path / "mt", change)
    before = hf_folders.snapshot(tmp_path)
    assert_refused(run("to-hf", source, tmp_path / "out"), named)
    assert hf_folders.snapshot(tmp_path) == before


def test_what_succeeds_says_so(
    folder: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    status, out, err = run("to-maxtext", folder, tmp_path / "mt", "--scan-layers", "true")
    assert (status, err) == (0, "")
    # Names with blanks and signs, from elsewhere, with a slash at the end.
    place = tmp_path / "a b" / "ü #{'%20"
    monkeypatch.chdir(tmp_path)
    result = run("to-maxtext", "hf/", f"a b/{place.name}/", "--scan-layers", "false")
    assert result[0] == 0
    assert run("compare-values", f"{place}/", "./hf")[0] == 0
    assert "peak memory" in out
    assert str(tmp_path / "mt" / "0" / "items") in out
    status, out, _ = run("to-hf", tmp_path / "mt", tmp_path / "hf2", "--group-size", "50K")
    assert status == 0
    assert len(list((tmp_path / "hf2").glob("*.safetensors"))) > 3
    status, out, _ = run(
        "restack", tmp_path / "mt" / "0", tmp_path / "un", "--scan-layers", "false"
    )
    assert status == 0
    status, out, _ = run("rename", tmp_path / "un", tmp_path / "renamed")
    assert status == 0
    assert "0 of " in out
    report = tmp_path / "report.json"
    for name in ("mt", "un", "renamed"):
        for command, said in (("compare-shapes", "the same"), ("compare-values", "identical")):
            status, out, _ = run(command, tmp_path / name, folder, "--report-json", report)
            assert status == 0
            assert f"verdict: {said}" in out
            assert report.is_file()
    hf_folders.UNACCOUNTED["tensor transposed"][0](folder)
    assert run("compare-values", tmp_path / "mt", folder)[0] == 1
    assert run("compare-shapes", tmp_path / "mt", folder)[0] == 1


def test_interrupted(whole: Path, tmp_path: Path) -> None:
    """Told to stop, a conversion stops, keeps what is done, and the same command goes on."""
    script = (
        "import sys, time\n"
        "from codemods import ckpt, cli\n"
        "convert = ckpt._import('convert')\n"
        "fill = convert.HfSource.fill\n"
        "def wait(*args):\n"
        "    print('at it', flush=True)\n"
        "    time.sleep(0.2)\n"
        "    fill(*args)\n"
        "convert.HfSource.fill = wait\n"
        "cli.main()\n"
    )
    arguments = ["ckpt", "to-maxtext", str(whole), str(tmp_path / "out"), "--scan-layers", "true"]
    arguments += ["--group-size", "20000"]
    process = subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        cwd=REPOSITORY,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    for _ in range(3):
        process.stdout.readline()
    time.sleep(0.1)
    process.terminate()
    _, err = process.communicate()
    assert process.returncode == 128 + signal.SIGTERM
    assert "the same command goes on" in err
    assert not (tmp_path / "out").exists()
    assert work.folder_of(tmp_path / "out").exists()
    command = [sys.executable, "-m", "codemods.cli", *arguments]
    assert subprocess.run(command, cwd=REPOSITORY, check=False).returncode == 0
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert orbax_files.find_items(tmp_path / "out").is_dir()
