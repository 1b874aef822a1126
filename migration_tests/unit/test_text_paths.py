"""Old names in running text: commands, paths, variables, URLs, links, names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from codemods.engine.context import PythonFile, SourceFile, TextFile
from codemods.engine.edits import apply, settle
from codemods.engine.project import Options, Placement, Project
from codemods.maps.model import Entry, MoveMap, TreeId
from codemods.maps.symbols import SymbolTable
from codemods.rules import run_python, run_text, select
from codemods.rules.dumps import DumpPlan

PATHS: dict[str, str | None] = {
    "src/MaxText/__init__.py": "src/maxtext/__init__.py",
    "src/MaxText/train.py": "src/maxtext/trainers/pre_train/train.py",
    "src/MaxText/train_compile.py": "src/maxtext/trainers/pre_train/train_compile.py",
    "src/MaxText/decode.py": "src/maxtext/inference/decode.py",
    "src/MaxText/elastic_train.py": None,
    "src/MaxText/max_utils.py": "src/maxtext/utils/max_utils.py",
    "src/MaxText/pyconfig.py": "src/maxtext/configs/pyconfig.py",
    "src/MaxText/layers/moe.py": "src/maxtext/layers/moe.py",
    "src/MaxText/layers/linears.py": "src/maxtext/layers/linears.py",
    "src/MaxText/layers/deepseek.py": "src/maxtext/models/deepseek.py",
    "src/MaxText/configs/base.yml": "src/maxtext/configs/base.yml",
    "src/MaxText/configs/sft.yml": "src/maxtext/configs/post_train/sft.yml",
    "src/MaxText/configs/models/al_model.yml": "src/maxtext/configs/models/ling2.yml",
    "src/MaxText/configs/models/llama2-7b.yml": "src/maxtext/configs/models/llama2-7b.yml",
    "src/MaxText/configs/v5e/16b.sh": "src/maxtext/configs/tpu/v5e/16b.sh",
    "src/MaxText/configs/v5e/llama2_7b.sh": "src/maxtext/configs/tpu/v5e/llama2_7b.sh",
    "src/MaxText/assets/tokenizer.llama2": "src/maxtext/assets/tokenizers/tokenizer.llama2",
    "src/MaxText/assets/tokenizer.gemma": "src/maxtext/assets/tokenizers/tokenizer.gemma",
    "src/MaxText/test_assets/test_image.jpg": "tests/assets/test_image.jpg",
    "src/MaxText/utils/argus_utils.py": None,
    "ALModel/al_model.py": "src/maxtext/models/ling2.py",
    "scripts/pretrain_al_model.sh": "scripts/pretrain_ling2.sh",
    "tests/moe_test.py": "tests/unit/moe_test.py",
    "tests/decode_tests.py": "tests/integration/decode_tests.py",
    "tests/conftest.py": "tests/conftest.py",
    "end_to_end/tpu/test_gemma.sh": "tests/end_to_end/tpu/test_gemma.sh",
    "end_to_end/tpu/Run_Gemma.md": "tests/end_to_end/tpu/Run_Gemma.md",
    "docs/guide.md": "docs/guide.md",
    "docs/al_model.md": "docs/ling2.md",
    "README.md": "README.md",
}
OLD = {
    "src/MaxText/train.py": b"def main(): ...\n",
    "src/MaxText/layers/moe.py": b"class RoutedMoE:\n  def get_topk(self): ...\n",
    "src/MaxText/max_utils.py": b"def log(): ...\n",
    "ALModel/al_model.py": b"class ALMoELayer: ...\n",
}


def dotted(path: str) -> str:
    """The module of a Python file's path."""
    return path.removeprefix("src/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def make_project(
    fields: frozenset[str] | None = None, extra: Mapping[str, str | None] | None = None
) -> Project:
    """A checkout with the files of PATHS."""
    paths = {**PATHS, **(extra or {})}
    modules = {dotted(p): (dotted(n) if n else None) for p, n in paths.items() if p.endswith(".py")}
    sources = {p: OLD.get(p, b"") for p in paths if p.endswith(".py")}
    target = {n: OLD.get(p, b"") for p, n in paths.items() if n and n.endswith(".py")}
    gone = Entry(None, "deleted", ("abcdef1234",))
    return Project(
        map=MoveMap(
            TreeId("old"),
            TreeId("new"),
            modules={m: (Entry(n, "moved") if n else gone) for m, n in modules.items()},
            paths={p: (Entry(n, "moved") if n else gone) for p, n in paths.items()},
            kept={"MaxText.train": ("main",), "MaxText.layers.moe": ("RoutedMoE",)},
        ),
        enabled=select(),
        options=Options(),
        placements={
            p: Placement(
                n,
                "MAP001" if n and n != p else "MAP004" if p.endswith("argus_utils.py") else "",
                problem="" if n else "upstream deleted it",
            )
            for p, n in paths.items()
        },
        old=SymbolTable.from_sources(sources),
        target=SymbolTable.from_sources(target),
        modules=modules,
        names={"ALDenseLayer": "Ling2DecoderLayer", "AlModelRoutingTest": "Ling2RoutingTest"},
        dumps=DumpPlan(),
        config_fields=fields,
    )


@dataclass
class Run:
    """What the rules made of one text."""

    text: str
    file: SourceFile

    @property
    def listed(self) -> list[str]:
        """The text of each listed place."""
        return [self.file.text[s.start : s.end] for s in self.file.sites]

    @property
    def rules(self) -> set[str]:
        """The rules at work."""
        return {e.rule for e in self.file.edits} | {s.rule for s in self.file.sites}


def migrate(text: str, path: str = "run.sh", project: Project | None = None) -> Run:
    """Run all rules over one text."""
    project = project or make_project()
    file: SourceFile
    if path.endswith(".py"):
        file = PythonFile(path, text, project, dotted(path))
        run_python(file)
    else:
        file = TextFile(path, text, project)
        run_text(file)
    edits, clashes = settle(file.edits)
    assert not clashes
    return Run(apply(text, edits), file)


BASE_YML = "src/maxtext/configs/base.yml"
REWRITTEN = [
    # commands
    ("python3 -m MaxText.train x", "python3 -m maxtext.trainers.pre_train.train x"),
    ("python -mMaxText.decode", "python -mmaxtext.inference.decode"),
    ('python3 -m "MaxText.decode" x', 'python3 -m "maxtext.inference.decode" x'),
    (
        "torchrun --nnodes 2 -m MaxText.train",
        "torchrun --nnodes 2 -m maxtext.trainers.pre_train.train",
    ),
    ("python3 -u -m \\\n  MaxText.train", "python3 -u -m \\\n  maxtext.trainers.pre_train.train"),
    ("python3 -m src.MaxText.train", "python3 -m src.maxtext.trainers.pre_train.train"),
    ("python3 -m tests.moe_test", "python3 -m tests.unit.moe_test"),
    ("python src/MaxText/train.py", "python src/maxtext/trainers/pre_train/train.py"),
    ("python3 MaxText/train.py", "python3 maxtext/trainers/pre_train/train.py"),
    ("MaxText/configs/base.yml $@", "maxtext/configs/base.yml $@"),
    # paths
    ("./src/MaxText/decode.py", "./src/maxtext/inference/decode.py"),
    ("cat $REPO/src/MaxText/configs/sft.yml", "cat $REPO/src/maxtext/configs/post_train/sft.yml"),
    ("cp ${R}/src/MaxText/train.py .", "cp ${R}/src/maxtext/trainers/pre_train/train.py ."),
    ("export A=$(pwd)/src/MaxText/assets", "export A=$(pwd)/src/maxtext/assets"),
    ("x=`pwd`/src/MaxText/train.py", "x=`pwd`/src/maxtext/trainers/pre_train/train.py"),
    ('X="${D:-src/MaxText/configs}"', 'X="${D:-src/maxtext/configs}"'),
    ("ls ~/maxtext/MaxText/train.py", "ls ~/maxtext/src/maxtext/trainers/pre_train/train.py"),
    ("ls src/MaxText/test_assets/", "ls tests/assets/"),
    (
        "pytest tests/moe_test.py::AlModelRoutingTest",
        "pytest tests/unit/moe_test.py::Ling2RoutingTest",
    ),
    ("bash end_to_end/tpu/test_gemma.sh", "bash tests/end_to_end/tpu/test_gemma.sh"),
    ("bash src/MaxText/configs/v5e/16B.sh", "bash src/maxtext/configs/tpu/v5e/16b.sh"),
    ("sh scripts/pretrain_al_model.sh a", "sh scripts/pretrain_ling2.sh a"),
    # patterns
    ("ls src/MaxText/**", "ls src/maxtext/**"),
    ("ls src/MaxText/configs/v5e/*.sh", "ls src/maxtext/configs/tpu/v5e/*.sh"),
    ("ls src/MaxText/assets/tokenizer.${M}", "ls src/maxtext/assets/tokenizers/tokenizer.${M}"),
    ("ls src/MaxText/configs/models/$M.yml", "ls src/maxtext/configs/models/$M.yml"),
    # variables
    (
        'x "${MAXTEXT_PKG_DIR:-${MAXTEXT_REPO_ROOT:-$PWD}/src/MaxText}"/configs/base.yml',
        'x "${MAXTEXT_PKG_DIR:-${MAXTEXT_REPO_ROOT:-$PWD}/src/maxtext}"/configs/base.yml',
    ),
    (
        'x "${MAXTEXT_PKG_DIR:-${MAXTEXT_REPO_ROOT:-$PWD}/src/MaxText}/"configs/sft.yml a',
        'x "${MAXTEXT_PKG_DIR:-${MAXTEXT_REPO_ROOT:-$PWD}/src/maxtext}/"configs/post_train/sft.yml a',
    ),
    (
        't="${MAXTEXT_ASSETS_ROOT:-${MAXTEXT_PKG_DIR:-${R:-$PWD}/src/MaxText/assets}}"/tokenizer.gemma',
        't="${MAXTEXT_ASSETS_ROOT:-${MAXTEXT_PKG_DIR:-${R:-$PWD}/src/maxtext/assets}}"/tokenizers/tokenizer.gemma',
    ),
    (
        "\"${MAXTEXT_ASSETS_ROOT:-src/MaxText/assets}\"'/tokenizer.llama2'",
        "\"${MAXTEXT_ASSETS_ROOT:-src/maxtext/assets}\"'/tokenizers/tokenizer.llama2'",
    ),
    ("cat $MAXTEXT_PKG_DIR/train.py", "cat $MAXTEXT_PKG_DIR/trainers/pre_train/train.py"),
    (
        "cat ${MAXTEXT_REPO_ROOT}/tests/moe_test.py",
        "cat ${MAXTEXT_REPO_ROOT}/tests/unit/moe_test.py",
    ),
    (
        '"${MAXTEXT_PKG_DIR:-${MAXTEXT_REPO_ROOT:-$PWD}/src/MaxText}"/test_assets/test_image.jpg',
        '"${MAXTEXT_REPO_ROOT:-$PWD}"/tests/assets/test_image.jpg',
    ),
    # a variable for the module
    (
        "E=${1:-train} # or train_compile\npython3 -m MaxText.$E x",
        "E=${1:-train} # or train_compile\npython3 -m maxtext.trainers.pre_train.$E x",
    ),
    # names
    ("model_name=al_model", "model_name=ling2"),
    ('decoder_block="al_model"', 'decoder_block="ling2"'),
    ("MODEL=${MODEL:-al_model}", "MODEL=${MODEL:-ling2}"),
    ("# ALDenseLayer", "# Ling2DecoderLayer"),
    (
        'pytest -k "not AlModelHelper and test_al_model_x"',
        'pytest -k "not Ling2Helper and test_ling2_x"',
    ),
]


@pytest.mark.parametrize(("before", "after"), REWRITTEN)
def test_shell(before: str, after: str) -> None:
    run = migrate(before + "\n")
    assert run.text == after + "\n"
    assert not run.listed
    assert migrate(run.text).text == run.text


KEPT = [
    "MaxText is a library. MaxText. See MaxText/JetStream, HuggingFace/MaxText and MaxText-compatible.",
    "https://github.com/AI-Hypercomputer/maxtext/blob/28e5097ac467/src/MaxText/train.py#L3",
    "https://github.com/AI-Hypercomputer/maxtext/blob/v0.1/src/MaxText/train.py",
    "gs://bucket/src/MaxText/train.py",
    "export MAXTEXT_PKG_DIR=/x",
    "global_model experimental_model",
    "pytest -m 'not tpu' tests/conftest.py",
]


@pytest.mark.parametrize("text", KEPT)
def test_prose_and_pinned_urls_stay(text: str) -> None:
    run = migrate(text + "\n", "docs/guide.md")
    assert run.text == text + "\n"
    assert not run.listed


LISTED = [
    ("python3 -m MaxText.elastic_train", "MaxText.elastic_train"),
    ("python3 -m MaxText.no_such_thing", "MaxText.no_such_thing"),
    ("ls src/MaxText/no_such_file.py", "src/MaxText/no_such_file.py"),
    ("cat src/MaxText/elastic_train.py", "src/MaxText/elastic_train.py"),
    ("python3 -m MaxText.$M", "MaxText.$M"),
    ("for m in train decode; do python3 -m MaxText.$m; done", "MaxText.$m"),
    ("ls src/MaxText/configs/*.yml", "src/MaxText/configs/*.yml"),
    ("cd MaxText", "MaxText"),
    ("ls /deps/MaxText/somewhere", "MaxText/somewhere"),
    ("X=gs_ckpt_al_model_v2", "al_model_v2"),
    ("X=AlModelRun", "AlModelRun"),
]


@pytest.mark.parametrize(("text", "place"), LISTED)
def test_what_is_not_certain_is_listed(text: str, place: str) -> None:
    run = migrate(text + "\n")
    assert run.text == text + "\n"
    assert place in run.listed
    assert all(s.reason for s in run.file.sites)


def test_split_folder_says_where_its_files_went() -> None:
    run = migrate("src/MaxText/layers @team\n", ".github/CODEOWNERS")
    assert run.text == "src/maxtext/layers @team\n"
    assert {e.rule for e in run.file.edits} == {"TXT006"}
    assert "src/maxtext/models (1)" in run.file.edits[0].reason


def test_stale_reference_to_the_only_file_of_a_name() -> None:
    project = make_project(
        extra={"src/MaxText/utils/llama_ckpt.py": "src/maxtext/checkpoint_conversion/llama_ckpt.py"}
    )
    run = migrate("python3 -m MaxText.llama_ckpt; cat src/MaxText/llama_ckpt.py\n", project=project)
    assert run.text == (
        "python3 -m maxtext.checkpoint_conversion.llama_ckpt; cat src/maxtext/checkpoint_conversion/llama_ckpt.py\n"
    )
    assert run.rules == {"TXT006"}


def test_patterns_of_tools_reach_below_a_folder() -> None:
    assert migrate("src/MaxText/*\ntests/*\n", ".gitignore").text == "src/maxtext/*\ntests/*\n"
    assert migrate("ls src/MaxText/*\n").listed == ["src/MaxText/*"]


def test_url_of_the_main_branch_is_rewritten() -> None:
    base = "https://github.com/AI-Hypercomputer/maxtext/blob/main"
    run = migrate(
        f"[x]({base}/src/MaxText/train.py#L1) and {base}/end_to_end/tpu/Run_Gemma.md.\n",
        "docs/guide.md",
    )
    assert run.text == (
        f"[x]({base}/src/maxtext/trainers/pre_train/train.py#L1) and {base}/tests/end_to_end/tpu/Run_Gemma.md.\n"
    )
    gone = migrate(f"{base}/src/MaxText/elastic_train.py\n", "docs/guide.md")
    assert gone.listed == ["src/MaxText/elastic_train.py"]


def test_links_follow_both_ends() -> None:
    text = "[a](../../src/MaxText/train.py) [b](test_gemma.sh) [c](../../README.md#top) [d](https://x.y/MaxText)\n"
    run = migrate(text, "end_to_end/tpu/Run_Gemma.md")
    assert run.text == (
        "[a](../../../src/maxtext/trainers/pre_train/train.py) [b](test_gemma.sh) [c](../../../README.md#top) "
        "[d](https://x.y/MaxText)\n"
    )


def test_link_to_a_renamed_document() -> None:
    run = migrate("[x](al_model.md) ![i](../docs/guide.md)\n", "docs/guide.md")
    assert run.text == "[x](ling2.md) ![i](../docs/guide.md)\n"


def test_dotted_names_in_documents() -> None:
    run = migrate("`MaxText.layers.moe.RoutedMoE.get_topk` of MaxText.\n", "docs/guide.md")
    assert run.text == "`maxtext.layers.moe.RoutedMoE.get_topk` of MaxText.\n"


def test_structured_files() -> None:
    launch = '{"module": "MaxText.train", "args": ["src/MaxText/configs/base.yml", "argus_dump_x=1", "a=1"]}\n'
    assert migrate(launch, ".vscode/launch.json").text == (
        f'{{"module": "maxtext.trainers.pre_train.train", "args": ["{BASE_YML}", "a=1"]}}\n'
    )
    docker = 'CMD ["python3", "-m", "MaxText.train", "src/MaxText/configs/base.yml"]\n'
    assert migrate(docker, "Dockerfile").text == (
        f'CMD ["python3", "-m", "maxtext.trainers.pre_train.train", "{BASE_YML}"]\n'
    )
    toml = (
        '[project]\nname = "MaxText"\n[tool.x]\npackages = ["src/MaxText", "ALModel"]\n'
        'omit = ["src/MaxText/utils/argus_utils.py"]\n[tool.y]\nMaxText = ["*.yml"]\nsource = ["MaxText"]\n'
    )
    assert migrate(toml, "pyproject.toml").text == (
        '[project]\nname = "MaxText"\n[tool.x]\npackages = ["src/maxtext"]\n'
        'omit = []\n[tool.y]\nmaxtext = ["*.yml"]\nsource = ["maxtext"]\n'
    )


def test_switched_off_rules_do_nothing() -> None:
    project = make_project()
    project.enabled = project.enabled - {"TXT002"}
    run = migrate("python3 -m MaxText.train src/MaxText/configs/sft.yml\n", project=project)
    assert run.text == "python3 -m maxtext.trainers.pre_train.train src/MaxText/configs/sft.yml\n"
