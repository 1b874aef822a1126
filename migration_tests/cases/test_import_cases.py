"""Import and name faults seen in such tools, each as a tiny input with the right output.

The rename table, unless a case says otherwise: `oldpkg.m.AxAttn` → `newpkg.m.LingAttn`,
`oldpkg.layers` → `newpkg.layers`, `oldpkg.m.run` → `newpkg.m.start`; `oldpkg.m` itself stays.
"""

from __future__ import annotations

import ast

import pytest

from codemods.maps.model import Entry, MoveMap, TreeId
from migration_tests.support import Outcome, rewrite_with_map

PATH = "tool.py"

TARGET = {
    "newpkg/__init__.py": "",
    "newpkg/m.py": "class LingAttn: ...\ndef start(): ...\n",
    "newpkg/layers.py": "class Dense: ...\n",
    "newpkg/exec.py": "def run(): ...\n",
    "newpkg/whole.py": "def run(): ...\nclass Other: ...\n",
    "oldpkg/__init__.py": "",
    "oldpkg/m.py": "class Other: ...\nclass B: ...\n",
    "oldpkg/runner.py": "",
}


def table() -> MoveMap:
    """The rename table of the cases."""
    return MoveMap(
        TreeId("old"),
        TreeId("new"),
        modules={
            "oldpkg": Entry("oldpkg", "same"),
            "oldpkg.m": Entry("oldpkg.m", "same"),
            "oldpkg.runner": Entry("oldpkg.runner", "same"),
            "oldpkg.layers": Entry("newpkg.layers", "moved"),
            "oldpkg.run": Entry("newpkg.exec", "renamed"),
            "oldpkg.whole": Entry("newpkg.whole", "moved"),
        },
        symbols={
            "oldpkg.m.AxAttn": Entry("newpkg.m.LingAttn", "renamed"),
            "oldpkg.m.run": Entry("newpkg.m.start", "renamed"),
        },
        kept={
            "oldpkg.m": ("Other", "B"),
            "oldpkg.layers": ("Dense",),
            "oldpkg.run": ("run",),
            "oldpkg.whole": ("run", "Other"),
        },
    )


def migrate(text: str, path: str = PATH) -> tuple[str, Outcome]:
    """Migrate one text; a second run must change nothing and the result must compile."""
    first = rewrite_with_map({path: text}, table(), TARGET, names={})
    new = first.texts[path]
    ast.parse(new)
    second = rewrite_with_map({path: new}, table(), TARGET, names={})
    assert second.texts[path] == new
    return new, first


def lines(*parts: str) -> str:
    return "\n".join(parts) + "\n"


REWRITTEN = {
    "alias of a module": (
        lines("import oldpkg.layers as L", "x = L.Dense()"),
        lines("import newpkg.layers as L", "x = L.Dense()"),
    ),
    "alias of a symbol, statement split": (
        lines("from oldpkg.m import AxAttn as A, Other", "x = A(Other)"),
        lines("from newpkg.m import LingAttn as A", "from oldpkg.m import Other", "x = A(Other)"),
    ),
    "re-export mark": (
        lines("from oldpkg.m import run as run"),
        lines("from newpkg.m import start as run"),
    ),
    "fallback in try": (
        lines(
            "try:",
            "    from oldpkg.m import run",
            "except ImportError:",
            "    run = None",
            "run and run()",
        ),
        lines(
            "try:",
            "    from newpkg.m import start as run",
            "except ImportError:",
            "    run = None",
            "run and run()",
        ),
    ),
    "TYPE_CHECKING and a quoted annotation": (
        lines(
            "from typing import TYPE_CHECKING",
            "if TYPE_CHECKING:",
            "    from oldpkg.m import AxAttn, B",
            "def f(x: 'AxAttn', y: B): ...",
        ),
        lines(
            "from typing import TYPE_CHECKING",
            "if TYPE_CHECKING:",
            "    from newpkg.m import LingAttn",
            "    from oldpkg.m import B",
            "def f(x: 'LingAttn', y: B): ...",
        ),
    ),
    "shebang, docstring and __future__ stay first": (
        lines(
            "#!/usr/bin/env python",
            "'''d'''",
            "from __future__ import annotations",
            "import oldpkg.m",
            "oldpkg.m.run()",
        ),
        lines(
            "#!/usr/bin/env python",
            "'''d'''",
            "from __future__ import annotations",
            "import newpkg.m",
            "newpkg.m.start()",
        ),
    ),
    "comments on names in brackets": (
        lines(
            "from oldpkg.m import (",
            "    # kernels",
            "    AxAttn,  # fused",
            "    # config",
            "    B,",
            ")",
        ),
        lines(
            "from newpkg.m import (",
            "    # kernels",
            "    LingAttn,  # fused",
            ")",
            "from oldpkg.m import (",
            "    # config",
            "    B,",
            ")",
        ),
    ),
    "module and object share a name": (
        lines("from oldpkg.run import run", "run()", "import oldpkg.runner"),
        lines("from newpkg.exec import run", "run()", "import oldpkg.runner"),
    ),
    "star import of a module that moved whole": (
        lines("from oldpkg.whole import *", "run()"),
        lines("from newpkg.whole import *", "run()"),
    ),
    "a name in __all__ keeps the API": (
        lines("from oldpkg.m import run", "__all__ = ['run']"),
        lines("from newpkg.m import start as run", "__all__ = ['run']"),
    ),
    "quoted targets": (
        lines(
            "import importlib",
            "from unittest import mock",
            "@mock.patch('oldpkg.m.run')",
            "def test(_):",
            '    importlib.import_module("oldpkg.layers")',
            '    print("oldpkg is old")',
        ),
        lines(
            "import importlib",
            "from unittest import mock",
            "@mock.patch('newpkg.m.start')",
            "def test(_):",
            '    importlib.import_module("newpkg.layers")',
            '    print("oldpkg is old")',
        ),
    ),
    "function-local import stays local": (
        lines("def f():", "    from oldpkg.m import run", "    return run()"),
        lines("def f():", "    from newpkg.m import start", "    return start()"),
    ),
    "a shadowed name is not renamed": (
        lines("from oldpkg.m import run", "def f(run):", "    return run", "run()"),
        lines("from newpkg.m import start", "def f(run):", "    return run", "start()"),
    ),
    "a new name that is taken is not captured": (
        lines("from oldpkg.m import run", "def f(start):", "    return run(start)"),
        lines("from newpkg.m import start as run", "def f(start):", "    return run(start)"),
    ),
    "one-line suite": (
        lines("if True: from oldpkg.m import AxAttn, B"),
        lines("if True: from newpkg.m import LingAttn; from oldpkg.m import B"),
    ),
    "two statements on a line": (
        lines("from oldpkg.m import AxAttn; import os", "AxAttn"),
        lines("from newpkg.m import LingAttn; import os", "LingAttn"),
    ),
    "the root under a name of its own": (
        lines("import oldpkg as o", "o.layers.Dense()"),
        lines("from newpkg import layers", "layers.Dense()"),
    ),
    "patch.object": (
        lines(
            "from unittest import mock",
            "from oldpkg import whole",
            "mock.patch.object(whole, 'run')",
        ),
        lines(
            "from unittest import mock",
            "from newpkg import whole",
            "mock.patch.object(whole, 'run')",
        ),
    ),
}


@pytest.mark.parametrize("name", REWRITTEN)
def test_rewritten(name: str) -> None:
    before, after = REWRITTEN[name]
    assert migrate(before)[0] == after


def test_relative_imports_become_right_absolute_ones() -> None:
    files = {
        "oldpkg/sub/q.py": "from ..m import AxAttn\nfrom .. import layers\nlayers.Dense(AxAttn)\n",
        "oldpkg/__init__.py": "",
        "oldpkg/sub/__init__.py": "",
        "oldpkg/layers.py": "class Dense: ...\n",
    }
    map_ = table()
    map_.paths = {"oldpkg/layers.py": Entry("newpkg/layers.py", "moved")}
    outcome = rewrite_with_map(files, map_, TARGET, names={})
    assert outcome.texts["oldpkg/sub/q.py"] == (
        "from newpkg.m import LingAttn\nfrom newpkg import layers\nlayers.Dense(LingAttn)\n"
    )


LISTED = {
    "f-string": ("import importlib\nMOD = 'oldpkg.m'\nimportlib.import_module(f'{MOD}.run')\n", 3),
    "joined string": ("MOD = 'oldpkg.layers'\nx = MOD + '.Dense'\n", 2),
    "star import with a renamed name handed on": ("from oldpkg.m import *\n__all__ = ['run']\n", 1),
}


@pytest.mark.parametrize("name", LISTED)
def test_listed(name: str) -> None:
    text, line = LISTED[name]
    assert migrate(text)[1].listed(PATH, line)


def test_a_logger_name_is_by_option() -> None:
    text = 'import logging\nlogging.getLogger("oldpkg.layers")\n'
    new, outcome = migrate(text)
    assert new == text
    assert outcome.listed(PATH, 2)


def test_only_names_of_the_table_change() -> None:
    text = lines(
        "class AXAttn(AXBase): ...",
        "AXIS = 0",
        'R = {"AXAttn": AXAttn}',
        "AXAttn_v2 = 1",
        "MaxAX = 2",
    )
    outcome = rewrite_with_map({PATH: text}, table(), TARGET, names={})
    assert outcome.texts[PATH] == text
    assert not outcome.edits


def test_no_state_between_files() -> None:
    files = {"a.py": "from oldpkg.m import run\nrun()\n", "__init__.py": ""}
    outcome = rewrite_with_map(files, table(), TARGET, names={})
    assert outcome.texts["__init__.py"] == ""
    assert outcome.texts["a.py"] == "from newpkg.m import start\nstart()\n"


@pytest.mark.parametrize(
    "text",
    [
        "x = " + " + ".join(["a"] * 3000) + "\n",
        "x = " + " ".join(['"a"'] * 3000) + "\n",
        "x = " + "(" * 3000 + ")" * 3000 + "\n",
    ],
    ids=["sum", "strings", "brackets"],
)
def test_depth(text: str) -> None:
    files = {"deep.py": "from oldpkg.m import run\n" + text, "a.py": "from oldpkg.m import run\n"}
    outcome = rewrite_with_map(files, table(), TARGET, names={})
    assert outcome.texts["deep.py"] == files["deep.py"]
    assert [s.rule for s in outcome.sites if s.file == "deep.py"] == ["CHK001"]
    assert outcome.texts["a.py"] == "from newpkg.m import start\n"
