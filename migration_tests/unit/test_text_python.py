"""Paths and commands inside Python source."""

from __future__ import annotations

import ast

import pytest

from migration_tests.unit.test_text_paths import make_project, migrate

G = "MAXTEXT_PKG_DIR, MAXTEXT_REPO_ROOT, MAXTEXT_ASSETS_ROOT = x"
EXPRESSIONS = [
    (
        'join(MAXTEXT_PKG_DIR, "configs", "sft.yml")',
        'join(MAXTEXT_PKG_DIR, "configs", "post_train", "sft.yml")',
    ),
    (
        "join(MAXTEXT_PKG_DIR, 'configs/sft.yml')",
        "join(MAXTEXT_PKG_DIR, 'configs/post_train/sft.yml')",
    ),
    (
        'join(MAXTEXT_PKG_DIR, "configs", "base.yml")',
        'join(MAXTEXT_PKG_DIR, "configs", "base.yml")',
    ),
    (
        'join(globals.MAXTEXT_REPO_ROOT, "src", "MaxText", "train.py")',
        'join(globals.MAXTEXT_REPO_ROOT, "src", "maxtext", "trainers", "pre_train", "train.py")',
    ),
    (
        'Path(MAXTEXT_PKG_DIR) / "configs" / "sft.yml"',
        'Path(MAXTEXT_PKG_DIR) / "configs" / "post_train" / "sft.yml"',
    ),
    (
        'Path(MAXTEXT_PKG_DIR, "train.py")',
        'Path(MAXTEXT_PKG_DIR, "trainers", "pre_train", "train.py")',
    ),
    ('f"{MAXTEXT_PKG_DIR}/configs/sft.yml"', 'f"{MAXTEXT_PKG_DIR}/configs/post_train/sft.yml"'),
    (
        'MAXTEXT_ASSETS_ROOT + "/tokenizer.gemma"',
        'MAXTEXT_ASSETS_ROOT + "/tokenizers/tokenizer.gemma"',
    ),
    (
        "f\"t={join(MAXTEXT_ASSETS_ROOT, 'tokenizer.gemma')}\"",
        "f\"t={join(MAXTEXT_ASSETS_ROOT, 'tokenizers', 'tokenizer.gemma')}\"",
    ),
    (
        'join(os.environ["MAXTEXT_PKG_DIR"], "train.py")',
        'join(os.environ["MAXTEXT_PKG_DIR"], "trainers", "pre_train", "train.py")',
    ),
    (
        'join(MAXTEXT_ASSETS_ROOT, f"tokenizer.{n}")',
        'join(MAXTEXT_ASSETS_ROOT, f"tokenizers/tokenizer.{n}")',
    ),
    (
        'join("src", "MaxText", "configs", "v5e", "16b.sh")',
        'join("src", "maxtext", "configs", "tpu", "v5e", "16b.sh")',
    ),
    ('"src/MaxText/configs/sft.yml"', '"src/maxtext/configs/post_train/sft.yml"'),
    ('"src/MaxText/configs/v5e/" + n', '"src/maxtext/configs/tpu/v5e/" + n'),
    ('f"python -m MaxText.train {x}"', 'f"python -m maxtext.trainers.pre_train.train {x}"'),
    (
        '["python3", "-m", "MaxText.train", "src/MaxText/configs/base.yml"]',
        '["python3", "-m", "maxtext.trainers.pre_train.train", "src/maxtext/configs/base.yml"]',
    ),
    ('"MaxText is fast; see MaxText/JetStream"', '"MaxText is fast; see MaxText/JetStream"'),
    ('sys.path.append("src/MaxText")', 'sys.path.append("src/maxtext")'),
    ('"src/MaxText/configs/v5e/{}.sh".format(n)', '"src/maxtext/configs/tpu/v5e/{}.sh".format(n)'),
]


@pytest.mark.parametrize(("before", "after"), EXPRESSIONS)
def test_expression(before: str, after: str) -> None:
    run = migrate(f"{G}\ny = {before}\n", "scripts/tool.py")
    assert run.text == f"{G}\ny = {after}\n"
    assert not [s for s in run.file.sites if s.rule.startswith("TXT")]
    ast.parse(run.text)
    assert migrate(run.text, "scripts/tool.py").text == run.text


LISTED = [
    'join(MAXTEXT_PKG_DIR, "configs", name)',
    'join(MAXTEXT_PKG_DIR, "elastic_train.py")',
    'join(MAXTEXT_PKG_DIR, "test_assets", "test_image.jpg")',
    '"src/MaxText/" + name',
    '"python3 -m MaxText." + name',
    'f"src/MaxText/layers/{name}.py"',
]


@pytest.mark.parametrize("text", LISTED)
def test_what_cannot_be_proven_is_listed(text: str) -> None:
    run = migrate(f"{G}\ny = {text}\n", "scripts/tool.py")
    assert run.text == f"{G}\ny = {text}\n"
    assert run.listed


def test_names_put_together_are_the_import_rules_part() -> None:
    text = 'y = importlib.import_module(f"MaxText.layers.{name}")\n'
    run = migrate(text, "scripts/tool.py")
    assert run.text == text
    assert {s.rule for s in run.file.sites} == {"IMP021"}


def test_comments_and_docstrings() -> None:
    before = (
        '"""Runs MaxText.\n\n  python3 -m MaxText.train src/MaxText/configs/base.yml\n"""\n\n'
        "x = 1  # see src/MaxText/layers/deepseek.py and `MaxText.max_utils.log`; MaxText rules\n"
        'y = "# src/MaxText"  # tests/moe_test.py\n'
    )
    run = migrate(before, "scripts/tool.py")
    assert run.text == (
        '"""Runs MaxText.\n\n  python3 -m maxtext.trainers.pre_train.train src/maxtext/configs/base.yml\n"""\n\n'
        "x = 1  # see src/maxtext/models/deepseek.py and `maxtext.utils.max_utils.log`; MaxText rules\n"
        'y = "# src/maxtext"  # tests/unit/moe_test.py\n'
    )


FROM_FILE = [
    # tests/moe_test.py goes one folder deeper
    ("dirname(dirname(__file__))", "dirname(dirname(dirname(__file__)))"),
    (
        "os.path.dirname(os.path.dirname(os.path.abspath(__file__)))",
        "os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))",
    ),
    ("Path(__file__).resolve().parent.parent", "Path(__file__).resolve().parent.parent.parent"),
    ("Path(__file__).parents[1]", "Path(__file__).parents[2]"),
    (
        'join(dirname(__file__), "..", "README.md")',
        'join(dirname(__file__), "..", "..", "README.md")',
    ),
    (
        'join(dirname(dirname(__file__)), "src", "MaxText", "train.py")',
        'join(dirname(dirname(dirname(__file__))), "src", "maxtext", "trainers", "pre_train", "train.py")',
    ),
    ('join(dirname(__file__), "output.txt")', 'join(dirname(__file__), "output.txt")'),
]


@pytest.mark.parametrize(("before", "after"), FROM_FILE)
def test_from_file(before: str, after: str) -> None:
    run = migrate(f"y = {before}\n", "tests/moe_test.py")
    assert run.text == f"y = {after}\n"
    ast.parse(run.text)


def test_own_folder_of_a_file_that_left_its_folder() -> None:
    before = (
        "import os\n\ndef f(name):\n  here = os.path.dirname(__file__)\n"
        "  return os.path.join(here, 'configs', 'base.yml')\n"
    )
    run = migrate(before, "src/MaxText/pyconfig.py")
    assert run.text == before.replace(
        "os.path.dirname(__file__)", "os.path.dirname(os.path.dirname(__file__))"
    )
    before = (
        "import os\n\ndef f():\n  here = os.path.dirname(__file__)\n  return os.listdir(here)\n"
    )
    run = migrate(before, "src/MaxText/pyconfig.py")
    assert run.text == before
    assert run.listed == ["os.path.dirname(__file__)"]


def test_package_folder_under_another_name() -> None:
    before = (
        "import os\nimport MaxText as mt\n\nMAXTEXT_REPO_ROOT = os.path.dirname(mt.__file__)\n"
        'p = f"{MAXTEXT_REPO_ROOT}/configs/sft.yml"\n'
    )
    run = migrate(before, "scripts/tool.py")
    assert run.text.endswith('p = f"{MAXTEXT_REPO_ROOT}/configs/post_train/sft.yml"\n')


def test_lines_of_a_join_stay_lines() -> None:
    project = make_project(
        extra={
            "src/MaxText/inference/configs/multi/a.yml": "src/maxtext/configs/inference/many/a.yml"
        }
    )
    before = (
        'p = os.path.join(\n    MAXTEXT_REPO_ROOT,\n    "src",\n    "MaxText",\n    "inference",\n'
        '    "configs",\n    "multi",\n    "a.yml",\n)\n'
    )
    run = migrate(before, "scripts/tool.py", project)
    assert run.text == (
        'p = os.path.join(\n    MAXTEXT_REPO_ROOT,\n    "src",\n    "maxtext",\n    "configs",\n'
        '    "inference",\n    "many",\n    "a.yml",\n)\n'
    )
