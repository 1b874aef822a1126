"""The dump hooks' parameters on command lines, and Python inside other texts."""

from __future__ import annotations

import subprocess

import pytest

from migration_tests.unit.test_text_paths import migrate

PARAMETERS = [
    ("cmd a=1 argus_dump_x=1 b=2", "cmd a=1 b=2"),
    ("cmd argus_dump_x=1", "cmd"),
    ("cmd --argus_dump_x=1 b", "cmd b"),
    ('cmd argus_dump_x="$D/a b" c', "cmd c"),
    ('cmd "argus_dump_x=1" c', "cmd c"),
    ("cmd argus_dump_x=$(date +%s) c", "cmd c"),
    ("cmd argus_dump_x=${A:-b c} c", "cmd c"),
    ('CMD="run argus_dump_x=/tmp"', 'CMD="run"'),
    ('CMD="argus_dump_x=1 argus_dump_y=2 a=1"', 'CMD="a=1"'),
    ("cmd a=1 argus_dump_x=1; echo", "cmd a=1; echo"),
    ("cmd \\\n  a=1 \\\n  argus_dump_x=1 \\\n  b=2", "cmd \\\n  a=1 \\\n  b=2"),
    ("cmd \\\n  a=1 \\\n  argus_dump_x=1\necho", "cmd \\\n  a=1\necho"),
    ("cmd \\\n  a=1 \\\n  argus_dump_x=1 \\\n  argus_dump_y=2\necho", "cmd \\\n  a=1\necho"),
    ("cmd \\\n  argus_dump_x=1 a=1 \\\n  b", "cmd \\\n  a=1 \\\n  b"),
    ("ARGS=(a=1 argus_dump_x=1)\necho", "ARGS=(a=1)\necho"),
    ("ARGS=(\n  a=1\n  argus_dump_x=1\n)\necho", "ARGS=(\n  a=1\n)\necho"),
    ('CMD="run \\\n  argus_dump_x=1 \\\n  b=2"', 'CMD="run \\\n  b=2"'),
    ('CMD="run \\\n  argus_dump_x=1"\necho', 'CMD="run"\necho'),
]


@pytest.mark.parametrize(("before", "after"), PARAMETERS)
def test_parameters_are_removed_and_the_shell_still_reads_it(before: str, after: str) -> None:
    run = migrate(before + "\n")
    assert run.text == after + "\n"
    assert not run.listed
    subprocess.run(["bash", "-n"], input=run.text, text=True, check=True, capture_output=True)


def test_carriage_returns() -> None:
    assert migrate("cmd \\\r\n  a \\\r\n  argus_dump_x=1\r\necho\r\n").text == (
        "cmd \\\r\n  a\r\necho\r\n"
    )


def test_lists_of_arguments() -> None:
    block = migrate("args:\n  - a\n  - argus_dump_x=1\n  - b\n", "job.yml")
    assert block.text == "args:\n  - a\n  - b\n"
    assert migrate('args: ["a", "argus_dump_x=1"]\n', "job.yml").text == 'args: ["a"]\n'
    lines = migrate('{"args": [\n  "argus_dump_x=1",\n  "b"\n]}\n', "a.json")
    assert lines.text == '{"args": [\n  "b"\n]}\n'


def test_what_may_set_a_variable_is_listed() -> None:
    run = migrate("argus_dump_dir=/tmp\nrun $argus_dump_dir\n")
    assert run.text == "argus_dump_dir=/tmp\nrun $argus_dump_dir\n"
    assert run.listed == ["argus_dump_dir=/tmp"]


def test_python_arguments() -> None:
    before = (
        'ARGV = [\n    "a=1",\n    "argus_dump_x=1",\n    f"argus_dump_y={d}",\n]\n'
        'C = "run argus_dump_z=2 b"\n'
    )
    run = migrate(before, "scripts/run.py")
    assert run.text == 'ARGV = [\n    "a=1",\n]\nC = "run b"\n'


def test_python_in_a_heredoc() -> None:
    before = (
        "python3 - <<'EOF'\nfrom MaxText import max_utils, pyconfig\n"
        'print("MaxText", max_utils.log)\nEOF\n'
    )
    assert migrate(before).text == (
        "python3 - <<'EOF'\nfrom maxtext.utils import max_utils\nfrom maxtext.configs import pyconfig\n"
        'print("MaxText", max_utils.log)\nEOF\n'
    )


def test_heredoc_that_the_shell_expands_keeps_its_variables() -> None:
    before = (
        "python3 <<EOF\nfrom MaxText import train\n"
        'train.main("${RUN}", "$MAXTEXT_PKG_DIR/configs/sft.yml")\nEOF\n'
    )
    assert migrate(before).text == (
        "python3 <<EOF\nfrom maxtext.trainers.pre_train import train\n"
        'train.main("${RUN}", "$MAXTEXT_PKG_DIR/configs/post_train/sft.yml")\nEOF\n'
    )


def test_indented_heredoc_in_a_workflow() -> None:
    before = "run: |\n    python3 - <<'EOF'\n    from MaxText import train\n    EOF\n"
    after = (
        "run: |\n    python3 - <<'EOF'\n    from maxtext.trainers.pre_train import train\n    EOF\n"
    )
    assert migrate(before, ".github/workflows/a.yml").text == after


def test_other_heredocs_are_text() -> None:
    before = "cat > a.yml <<EOF\nbase: src/MaxText/configs/sft.yml\nEOF\n"
    after = "cat > a.yml <<EOF\nbase: src/maxtext/configs/post_train/sft.yml\nEOF\n"
    assert migrate(before).text == after


def test_python_command() -> None:
    before = 'python3 -c "import MaxText.max_utils as m; print(\\"$X\\", m.log())"\n'
    after = 'python3 -c "import maxtext.utils.max_utils as m; print(\\"$X\\", m.log())"\n'
    assert migrate(before).text == after


ONE_LINE = "from maxtext.utils import max_utils; from maxtext.trainers.pre_train import train"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "  # from MaxText import max_utils, train\n",
            "  # from maxtext.utils import max_utils\n  # from maxtext.trainers.pre_train import train\n",
        ),
        ("`from MaxText import max_utils, train` it is\n", f"`{ONE_LINE}` it is\n"),
        (
            'python3 -c "from MaxText import max_utils, train; train.main()"\n',
            f'python3 -c "{ONE_LINE}; train.main()"\n',
        ),
    ],
)
def test_an_import_that_is_split_stays_where_it_can_stand(before: str, after: str) -> None:
    assert migrate(before).text == after


def test_code_blocks_of_documents() -> None:
    before = (
        "Intro to MaxText:\n\n1. Run\n\n   ```python\n   from MaxText import max_utils as mu, train\n"
        '   mu.log("src/MaxText/configs/sft.yml")\n   ```\n\n>>> none\n'
    )
    run = migrate(before, "docs/guide.md")
    assert run.text == (
        "Intro to MaxText:\n\n1. Run\n\n   ```python\n   from maxtext.utils import max_utils as mu\n"
        "   from maxtext.trainers.pre_train import train\n"
        '   mu.log("src/maxtext/configs/post_train/sft.yml")\n   ```\n\n>>> none\n'
    )


def test_doctest_block_keeps_its_output() -> None:
    before = "```python\n>>> from MaxText import train\n>>> train.main()\nhello from MaxText\n```\n"
    after = before.replace(
        "from MaxText import train", "from maxtext.trainers.pre_train import train"
    )
    assert migrate(before, "docs/guide.md").text == after


def test_restructured_text() -> None:
    before = ".. code-block:: python\n\n   from MaxText import train\n   train.main()\n\nMaxText it is.\n"
    after = before.replace(
        "from MaxText import train", "from maxtext.trainers.pre_train import train"
    )
    assert migrate(before, "docs/guide.rst").text == after


def test_import_in_a_sentence_and_in_a_faulty_block() -> None:
    assert migrate("Use `from MaxText import max_utils`.\n", "docs/guide.md").text == (
        "Use `from maxtext.utils import max_utils`.\n"
    )
    run = migrate("```python\nfrom MaxText import train\nx = (\n```\n", "docs/guide.md")
    assert run.text == "```python\nfrom maxtext.trainers.pre_train import train\nx = (\n```\n"
    run = migrate("```python\nfrom MaxText import (\n```\n", "docs/guide.md")
    assert run.rules == {"TXT009"}
