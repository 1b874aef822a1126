"""Notebooks: what changes, and that everything else keeps its bytes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from codemods.engine.tree import UnparsableError
from migration_tests.unit.test_text_paths import migrate


def notebook(*cells: dict[str, Any], indent: int | None = 1) -> str:
    """A notebook as Jupyter writes it."""
    held = {"cells": list(cells), "metadata": {"a": "MaxText.train é"}, "nbformat": 4}
    return json.dumps(held, indent=indent, ensure_ascii=False) + "\n"


def code(*lines: str, **more: Any) -> dict[str, Any]:
    """A code cell."""
    return {
        "cell_type": "code",
        "metadata": {},
        "outputs": more.get("outputs", []),
        "source": list(lines),
    }


def document(*lines: str) -> dict[str, Any]:
    """A Markdown cell."""
    return {"cell_type": "markdown", "metadata": {}, "source": list(lines)}


def sources(text: str) -> list[str]:
    """The source of each cell."""
    return ["".join(cell["source"]) for cell in json.loads(text)["cells"]]


def test_cells_are_one_module() -> None:
    before = notebook(
        document("MaxText in `src/MaxText/train.py`\n"),
        code("from MaxText import max_utils as mu, train\n", "x = 'é \"quoted\"'"),
        code('print(mu.log(), train.main(), "src/MaxText/configs/sft.yml")'),
    )
    run = migrate(before, "nb/a.ipynb")
    assert sources(run.text) == [
        "MaxText in `src/maxtext/trainers/pre_train/train.py`\n",
        "from maxtext.utils import max_utils as mu\nfrom maxtext.trainers.pre_train import train\n"
        "x = 'é \"quoted\"'",
        'print(mu.log(), train.main(), "src/maxtext/configs/post_train/sft.yml")',
    ]
    changed = set(run.text.splitlines()) - set(before.splitlines())
    assert len(changed) == 4
    assert run.text == json.dumps(json.loads(run.text), indent=1, ensure_ascii=False) + "\n"


def test_magics_are_shell() -> None:
    before = notebook(
        code(
            "!python3 -m MaxText.train \\\n",
            "    src/MaxText/configs/base.yml argus_dump_x=1\n",
            "y = 1",
        ),
        code(
            "if x:\n",
            "  !python -m MaxText.decode\n",
            "files = !ls src/MaxText/configs\n",
            "%run -m MaxText.train",
        ),
        code("%%bash\n", "python3 -m MaxText.train"),
        code("%%time\n", "from MaxText import train\n", "train.main?"),
    )
    run = migrate(before, "nb/a.ipynb")
    assert sources(run.text) == [
        "!python3 -m maxtext.trainers.pre_train.train \\\n    src/maxtext/configs/base.yml\ny = 1",
        "if x:\n  !python -m maxtext.inference.decode\nfiles = !ls src/maxtext/configs\n"
        "%run -m maxtext.trainers.pre_train.train",
        "%%bash\npython3 -m maxtext.trainers.pre_train.train",
        "%%time\nfrom maxtext.trainers.pre_train import train\ntrain.main?",
    ]
    assert not run.listed


def test_source_as_one_string_and_escapes() -> None:
    before = (
        '{"cells": [{"cell_type": "code", "source": "from MaxText import max_utils, train\\n\\u00e9 = \\"MaxText\\"\\n",'
        ' "outputs": [{"text": "MaxText.train"}]}], "nbformat": 4}'
    )
    run = migrate(before, "nb/a.ipynb")
    assert run.text == before.replace(
        "from MaxText import max_utils, train",
        "from maxtext.utils import max_utils\\nfrom maxtext.trainers.pre_train import train",
    )


def test_one_string_on_a_line_of_its_own() -> None:
    cell = {"cell_type": "code", "source": "from MaxText import max_utils, train\n", "outputs": []}
    before = json.dumps({"cells": [cell], "nbformat": 4}, indent=1)
    run = migrate(before, "nb/a.ipynb")
    assert sources(run.text) == [
        "from maxtext.utils import max_utils\nfrom maxtext.trainers.pre_train import train\n"
    ]


def test_outputs_and_metadata_are_never_touched() -> None:
    output = {"output_type": "stream", "text": ["from MaxText.train import main\n"]}
    before = notebook(code("x = 1", outputs=[output]))
    run = migrate(before, "nb/a.ipynb")
    assert run.text == before
    assert not run.listed


def test_a_faulty_cell_is_listed_and_the_others_go_on() -> None:
    before = notebook(
        code("from MaxText import train\n"),
        code("x = (\n", "path = 'src/MaxText/configs/sft.yml'"),
        code("train.main()"),
    )
    run = migrate(before, "nb/a.ipynb")
    assert sources(run.text)[0] == "from maxtext.trainers.pre_train import train\n"
    assert "post_train/sft.yml" in sources(run.text)[1]
    assert [s.rule for s in run.file.sites] == ["TXT009"]


def test_removed_line_goes_with_its_json_line() -> None:
    before = notebook(
        code("argv = [\n", "  'a',\n", "  'argus_dump_x=1',\n", "]\n"),
        code("!run a argus_dump_y=1"),
    )
    run = migrate(before, "nb/a.ipynb")
    assert sources(run.text) == ["argv = [\n  'a',\n]\n", "!run a"]
    assert run.text == json.dumps(json.loads(run.text), indent=1, ensure_ascii=False) + "\n"


def test_no_json_is_no_notebook() -> None:
    with pytest.raises(UnparsableError, match="no notebook"):
        migrate("{ src/MaxText/train.py\n", "nb/a.ipynb")
