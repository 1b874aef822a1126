"""`ling2-migrate overlay`: a whole tree or none, from wheels, checkouts and folders of packages."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from codemods.engine.anchors import AnchoredFile, AnchorError
from codemods.engine.overlay import Integration, Overlay, Step, overlay, plan, run_steps
from codemods.errors import UserError
from codemods.rules import documented_rules
from codemods.rules.base import Rule
from codemods.upstream import resolve_upstream
from migration_tests.checkouts import CommandLine, contents, git, state
from migration_tests.support import migrate_files, write_files
from target.integration import INTEGRATIONS, NEW_FILES, config_fields

ROOT = Path(__file__).parents[2]
RELEASES = ("0.2.4", "0.2.5")


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Overlay, Path]]:
    """The overlay of each release that is to take all edits."""
    folder = tmp_path_factory.mktemp("overlays")
    made = {}
    for version in RELEASES:
        out = folder / version
        made[version] = (overlay(version, out, NEW_FILES, INTEGRATIONS), out)
    return made


@pytest.fixture
def cli(capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    return CommandLine(capfdbinary, monkeypatch)


def digest(folder: Path) -> dict[str, str]:
    """What is in a folder, by path."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("version", RELEASES)
def test_every_edit_finds_its_place_in_a_release(
    released: dict[str, tuple[Overlay, Path]], version: str
) -> None:
    made, out = released[version]
    assert made.missing == []
    assert made.replaced == []
    edited = {edit.rule for edits in made.edits.values() for edit in edits}
    # The Linen decoder is gone there, and weights of several collections are converted as they are.
    older = {"INT015", "INT022"} if version == "0.2.5" else set()
    assert edited == {integration.rule.id for integration in INTEGRATIONS} - older
    before, after = digest(made.upstream.root), digest(out)
    del before[".sha256"]  # of the cache
    assert set(after) == set(before) | set(made.added)
    assert {p for p in before if after[p] != before[p]} == set(made.edited)


@pytest.mark.parametrize("version", RELEASES)
def test_a_second_overlay_changes_nothing(
    released: dict[str, tuple[Overlay, Path]], version: str, tmp_path: Path
) -> None:
    _, out = released[version]
    again = overlay(str(out), tmp_path / "again", NEW_FILES, INTEGRATIONS)
    assert again.missing == []
    assert again.edits == {}
    assert again.replaced == []
    assert digest(tmp_path / "again") == digest(out)


@pytest.mark.parametrize("version", RELEASES)
def test_edited_files_have_no_new_fault(
    released: dict[str, tuple[Overlay, Path]], version: str
) -> None:
    made, out = released[version]
    for path in made.edited:
        compile((out / path).read_bytes(), path, "exec")
        assert long_lines(out / path) <= long_lines(made.upstream.root / path), path
    before = faults(made.upstream.root, made.edited)
    assert faults(out, made.edited) - before == Counter()


def long_lines(path: Path) -> int:
    """How many lines of a file exceed MaxText's own limit."""
    return sum(len(line) > 125 for line in path.read_text(encoding="utf-8").splitlines())


def faults(root: Path, paths: Iterable[str]) -> Counter[tuple[str, str]]:
    """What ruff says of unused imports, undefined names and the like, by file."""
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--select", "F"]
    done = subprocess.run(
        [*command, "--output-format", "json", *paths],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    return Counter((Path(f["filename"]).name, f["message"]) for f in json.loads(done.stdout))


def test_config_fields_are_those_of_the_edited_configuration(
    released: dict[str, tuple[Overlay, Path]],
) -> None:
    made, out = released["0.2.5"]
    types = (out / "maxtext/configs/types.py").read_text(encoding="utf-8")
    old = (made.upstream.root / "maxtext/configs/types.py").read_text(encoding="utf-8")
    assert config_fields()
    for name in config_fields():
        assert f"\n  {name}: " in types
        assert f"\n  {name}: " not in old


def test_keys_that_an_overlay_adds_are_known_to_run(tmp_path: Path) -> None:
    files = {
        "src/MaxText/__init__.py": "",
        "src/MaxText/pyconfig.py": "",
        "src/MaxText/train.py": "",
        "src/MaxText/configs/models/al_model.yml": "group_norm_size: 4\nsome_other_size: 4\n",
    }
    listed = [s for s in migrate_files(tmp_path, files).sites if s.rule == "CFG005"]
    assert [s.line for s in listed] == [2]


# A moved upstream -------------------------------------------------------------------------------------

MOVED = {
    "src/maxtext/layers/linears.py": (
        "class MlpBlock:\n\n  def get_norm_layer(self):\n"
        "    if block in (DecoderBlockType.LLAMA2, DecoderBlockType.DEEPSEEK):\n      pass\n"
    ),
    "src/maxtext/layers/moe.py": "class Experts:\n  pass\n",
    "src/maxtext/layers/normalizations.py": "class RMSNorm(:\n",
    "src/maxtext/common/common_types.py": 'class DecoderBlockType:\n  LLAMA2 = "llama2"\n',
    "src/maxtext/models/ling2.py": "# upstream's own\n",
    "README.md": "MaxText\n",
    ".github/workflow.yml": "on: push\n",
    "src/maxtext/layers/__pycache__/moe.cpython-312.pyc": b"\0",
    ".git/config": "[core]\n",
}


def test_what_has_moved_is_listed_and_the_rest_goes_in(tmp_path: Path) -> None:
    root = write_files(tmp_path / "upstream", MOVED)
    made = overlay(str(root), tmp_path / "out", NEW_FILES, INTEGRATIONS)
    missing = {(m.rule, m.path): m.reason for m in made.missing}
    assert missing["INT007", "maxtext/layers/moe.py"] == "no class `RoutedMoE` in the module"
    assert missing["INT002", "maxtext/configs/types.py"] == "there is no such file"
    assert missing["INT005", "maxtext/layers/normalizations.py"].startswith(
        "the file cannot be edited"
    )
    assert ("INT006", "maxtext/layers/decoders.py") not in missing
    assert any(m.rule == "CHK006" and m.path == "maxtext/models/ling2.py" for m in made.missing)
    assert all(m.rule in documented_rules() for m in made.missing)
    out = tmp_path / "out/src/maxtext"
    assert "LING2" in (out / "common/common_types.py").read_text()
    # A list of norms alone would be of no use.
    assert "LING2" not in (out / "layers/linears.py").read_text()
    assert missing["INT006", "maxtext/layers/linears.py"] == (
        "it is of no use without the edits of maxtext/layers/nnx_decoders.py"
    )
    assert made.replaced == ["maxtext/models/ling2.py"]
    assert (out / "models/ling2.py").read_bytes() == (NEW_FILES / "models/ling2.py").read_bytes()
    assert (tmp_path / "out/.github/workflow.yml").is_file()
    assert not (tmp_path / "out/.git").exists()
    assert not list(out.rglob("__pycache__"))


def failing(rule: str) -> list[Integration]:
    """The rules, of which one does not find its places."""

    def fail(_: AnchoredFile) -> None:
        raise AnchorError("it has moved")

    return [
        (
            dataclasses.replace(i, steps=tuple(dataclasses.replace(s, edit=fail) for s in i.steps))
            if i.rule.id == rule
            else i
        )
        for i in INTEGRATIONS
    ]


def test_what_others_need_is_withheld_with_them() -> None:
    """The model imports the norm, and edits of the decoder and of MTP import the model."""
    made = plan(resolve_upstream("0.2.5"), NEW_FILES, failing("INT005"))
    edited = {edit.rule for edits in made.edits.values() for edit in edits}
    withheld = {missing.rule for missing in made.missing}
    assert edited.isdisjoint(withheld)
    assert {"INT005", "INT009", "INT010", "INT023"} <= withheld
    assert {"INT001", "INT004", "INT006", "INT007"} <= edited
    for path, data in made.edited.items():
        assert not re.search(rb"models\.ling2|import ling2$|^ +ling2,$", data, re.MULTILINE), path


def test_names_that_a_missing_rule_was_to_define_are_not_used(tmp_path: Path) -> None:
    """Used is what is not asked for with a default, and what an edit defines for itself is its own."""
    files = {f"maxtext/layers/{name}.py": "x\n" for name in "abcd"} | {"maxtext/__init__.py": ""}
    root = write_files(tmp_path / "upstream", files)
    no_files = tmp_path / "maxtext"
    no_files.mkdir()

    def rule(number: int, path: str, new: str, *provides: str) -> Integration:
        def edit(file: AnchoredFile) -> None:
            file.module.expression("x" if new else "y").replace(new)

        step = Step(f"maxtext/layers/{path}.py", edit)
        return Integration(Rule(f"INT{number:03}", "safe", ""), (step,), provides)

    rules = [
        rule(1, "a", "", "width"),
        rule(2, "b", "cfg.width", "depth"),
        rule(3, "c", 'getattr(cfg, "width", 0) + widths'),
        rule(4, "d", "cfg.depth"),
    ]
    made = plan(resolve_upstream(str(root)), no_files, rules)
    assert list(made.edits) == ["maxtext/layers/c.py"]
    assert [(m.rule, m.reason) for m in made.missing] == [
        ("INT001", "no `y` in the module"),
        ("INT002", "it needs `width`, which INT001 does not give here"),
        ("INT004", "it needs `depth`, which INT002 does not give here"),
    ]


def test_two_rules_for_one_place_clash() -> None:
    def make(word: str) -> Step:
        def edit(file: AnchoredFile) -> None:
            file.module.expression("x").replace(word)

        return Step("a.py", edit)

    edits, missing = run_steps("a.py", "x\n", [("INT001", make("b")), ("INT002", make("c"))])
    assert [e.new for e in edits] == ["b"]
    assert [(m.rule, m.reason) for m in missing] == [
        ("INT002", "another rule changes the same place")
    ]


def test_a_rule_that_fails_costs_no_other() -> None:
    def fail(_: AnchoredFile) -> None:
        raise IndexError("list index out of range")

    def edit(file: AnchoredFile) -> None:
        file.module.expression("x").replace("b")

    steps = [("INT001", Step("a.py", fail)), ("INT002", Step("a.py", edit))]
    edits, missing = run_steps("a.py", "x\n", steps)
    assert [e.new for e in edits] == ["b"]
    assert missing[0].reason.startswith("the rule failed (IndexError: list index")


def test_an_edit_that_would_not_parse_is_not_made(tmp_path: Path) -> None:
    def edit(file: AnchoredFile) -> None:
        file.module.expression("x").replace("(")

    root = write_files(
        tmp_path / "upstream", {"maxtext/layers/a.py": "x\n", "maxtext/__init__.py": ""}
    )
    rule = Integration(Rule("INT001", "safe", "break it"), (Step("maxtext/layers/a.py", edit),))
    made = plan(resolve_upstream(str(root)), NEW_FILES, [rule])
    assert made.edited == {}
    assert "it would be no Python" in made.missing[-1].reason


def test_of_a_repository_what_git_ignores_stays_out(tmp_path: Path) -> None:
    root = write_files(
        tmp_path / "upstream",
        {
            "src/maxtext/layers/a.py": "",
            "src/maxtext/untracked.py": "",
            ".gitignore": "/.venv\n",
            ".venv/lib/b.py": "",
        },
    )
    (root / "link").symlink_to("src/maxtext")
    git(root, "init", "--quiet")
    git(root, "add", "src/maxtext/layers", "link")
    git(root, "commit", "--quiet", "--message", "tree")
    before = state(root)
    out = tmp_path / "out"
    overlay(str(root), out, NEW_FILES, [])
    assert sorted(p.name for p in out.iterdir()) == [".gitignore", "link", "src"]
    assert os.readlink(out / "link") == "src/maxtext"
    assert (out / "src/maxtext/untracked.py").is_file()
    assert state(root) == before


def test_of_a_folder_of_packages_only_maxtext_is_taken(tmp_path: Path) -> None:
    root = write_files(
        tmp_path / "site-packages",
        {
            "maxtext/__init__.py": "",
            "maxtext/layers/a.py": "",
            "maxtext-0.3.0.dist-info/RECORD": "dependencies/a.txt,,\nmaxtext/__init__.py,,\n../../bin/x,,\n",
            "dependencies/a.txt": "",
            "numpy/__init__.py": "",
        },
    )
    out = tmp_path / "out"
    overlay(str(root), out, NEW_FILES, [])
    assert sorted(p.name for p in out.iterdir()) == ["dependencies", "maxtext"]


# The command line ---------------------------------------------------------------------------------------


def test_command(cli: CommandLine, tmp_path: Path) -> None:
    root = write_files(tmp_path / "upstream", MOVED)
    before = contents(root)
    ran = cli("overlay", "--upstream", root, "--out", tmp_path / "out")
    assert (ran.status, ran.err) == (1, "")
    out = ran.out.decode()
    assert "note: upstream has another maxtext/models/ling2.py; it is replaced" in out
    assert (
        "maxtext/configs/types.py INT002 `ModelName` gets `ling2` and `ling2-1t`: there is no such file"
        in out
    )
    assert "edits were not made" in out
    assert contents(root) == before


@pytest.mark.parametrize("name", ["INT", "int004"])
def test_run_does_not_have_these_rules(cli: CommandLine, tmp_path: Path, name: str) -> None:
    ran = cli("run", tmp_path, "--upstream", "0.2.5", "--check", "--only", name)
    assert ran.status == 2
    assert f"`{name}` is of `ling2-migrate overlay`" in ran.err


def test_rules_are_listed_and_explained(cli: CommandLine) -> None:
    assert b"INT015" in cli("run", "--list-rules").out
    out = cli("run", "--explain", "INT001").out.decode()
    assert "`DecoderBlockType` gets the member LING2" in out
    assert '+   LING2 = "ling2"' in out


def test_command_with_a_release(cli: CommandLine, tmp_path: Path) -> None:
    ran = cli("overlay", "--upstream", "0.2.5", "--out", tmp_path / "out")
    assert (ran.status, ran.err) == (0, "")
    assert b"not made" not in ran.out
    assert (tmp_path / "out/maxtext/models/ling2.py").is_file()


@pytest.mark.parametrize(
    ("upstream", "out", "said"),
    [
        ("nowhere", "out", "nowhere: no such folder, and no version number either"),
        ("empty", "out", "no MaxText in it"),
        ("old", "out", "is on the old layout"),
        ("new", "new/out", "lies inside the upstream tree, which is never written to"),
        ("new", ".", "holds the upstream tree itself"),
        ("new", "full", "exists and is not empty"),
    ],
)
def test_mistakes_are_one_line_and_write_nothing(
    cli: CommandLine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    upstream: str,
    out: str,
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_files(
        tmp_path,
        {
            "empty/README.md": "",
            "old/MaxText/layers/moe.py": "",
            "new/maxtext/layers/moe.py": "",
            "full/file": "",
        },
    )
    before = contents(tmp_path)
    ran = cli("overlay", "--upstream", upstream, "--out", out)
    assert (ran.status, ran.out, ran.err.count("\n")) == (2, b"", 1)
    assert said in ran.err
    assert contents(tmp_path) == before


def test_nothing_is_left_of_an_overlay_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write_files(tmp_path / "upstream", MOVED)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "somewhere")

    monkeypatch.setattr("codemods.engine.output.write", full)
    with pytest.raises(UserError, match="No space left"):
        overlay(str(root), tmp_path / "deep/out", NEW_FILES, INTEGRATIONS)
    assert sorted(os.listdir(tmp_path)) == ["upstream"]


@pytest.mark.network
def test_installed_without_the_sources(tmp_path: Path) -> None:
    """A wheel holds what `overlay` needs. (pip fetches setuptools to build it.)"""
    source = tmp_path / "source"
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("codemods", "target"):
        shutil.copytree(ROOT / name, source / name, ignore=ignored)
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source / name)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir"]
    subprocess.run([*pip, str(tmp_path / "wheel"), str(source)], check=True)
    (wheel,) = (tmp_path / "wheel").iterdir()
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    files = {p for p in digest(ROOT / "target") if "__pycache__" not in p}
    assert set(digest(tmp_path / "site/target")) == files
    run = [sys.executable, "-m", "codemods.cli"]
    done = subprocess.run(
        [*run, "overlay", "--upstream", "0.2.5", "--out", str(tmp_path / "out")],
        cwd=tmp_path / "site",
        env=os.environ | {"PYTHONPATH": str(tmp_path / "site")},
        check=False,
    )
    assert done.returncode == 0
    assert (tmp_path / "out/maxtext/configs/models/ling2.yml").is_file()
