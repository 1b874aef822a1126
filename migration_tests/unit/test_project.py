"""What old names mean in the migrated tree."""

from __future__ import annotations

import pickle
from collections.abc import Mapping

import pytest

from codemods.engine.project import MODULE_ATTRIBUTES, Options, Project
from codemods.maps.symbols import SymbolTable
from codemods.rules import dumps, moves
from migration_tests.unit.two_layouts import MAP, NEW, OLD


def project(extra: Mapping[str, str] | None = None, target: Mapping[str, str] = NEW) -> Project:
    """The old package as a checkout, with more files."""
    files = {**OLD, **(extra or {})}
    placements = moves.place(files, MAP, (), lambda p: files[p].encode(), lambda p: True)
    return Project(
        map=MAP,
        enabled=frozenset(),
        options=Options(),
        placements=placements,
        old=SymbolTable.from_sources(
            {p: t.encode() for p, t in files.items() if p.endswith(".py")}
        ),
        target=SymbolTable.from_sources({p: t.encode() for p, t in target.items()}),
        modules=moves.modules(placements),
        names={},
        dumps=dumps.DumpPlan(),
    )


@pytest.mark.parametrize(
    ("old", "new", "rest"),
    [
        ("MaxText", "maxtext", ""),
        ("MaxText.max_utils", "maxtext.utils.max_utils", ""),
        ("MaxText.max_utils.show.__doc__", "maxtext.utils.max_utils.show", "__doc__"),
        ("MaxText.multimodal_utils.load", "maxtext.multimodal.utils.load", ""),
        ("MaxText.multimodal_utils.resize", "maxtext.multimodal.processor_llama4.resize", ""),
        ("MaxText.layers.embeddings.OldRope.f", "maxtext.layers.embeddings.Rope", "f"),
        ("MaxText.layers.gemma.RoutedMoE", "maxtext.layers.moe.RoutedMoE", ""),
        ("MaxText.pyconfig.max_utils.show", "maxtext.utils.max_utils.show", ""),
        ("MaxText.Transformer", "maxtext.models.models.Transformer", ""),
        ("MaxText.models.Transformer", "maxtext.models.models.Transformer", ""),
        ("MaxText.own.load", "maxtext.multimodal.utils.load", ""),
        ("MaxText.own.OldRope", "maxtext.layers.embeddings.Rope", ""),
        ("MaxText.own.mu.devices", "maxtext.utils.max_utils.devices", ""),
        ("MaxText.own.OWN", "maxtext.own.OWN", ""),
    ],
)
def test_dotted(old: str, new: str, rest: str) -> None:
    own = (
        "from MaxText.multimodal_utils import load\nfrom MaxText.layers.embeddings import *\n"
        "import MaxText.max_utils as mu\nOWN = 1\n"
    )
    found = project({"src/MaxText/own.py": own}).dotted(old)
    assert found is not None
    assert (found[0].dotted, found[1]) == (new, rest)


@pytest.mark.parametrize("name", sorted(MODULE_ATTRIBUTES))
def test_every_module_has_its_attributes(name: str) -> None:
    for module in ("MaxText", "MaxText.max_utils"):
        found = project().symbol(module, name)
        assert found is not None
        assert found.name == name


@pytest.mark.parametrize(
    "name", ["os.path", "my.MaxText", "maxtext.utils.max_utils", "MaxTextX.train"]
)
def test_other_roots_are_no_old_names(name: str) -> None:
    assert project().dotted(name) is None


def test_deleted_and_unknown_names_have_a_problem() -> None:
    gone = project().symbol("MaxText.multimodal_utils", "no_such_name")
    assert gone is not None
    assert gone.module is None
    assert "no_such_name" in gone.problem
    kept = project().symbol("MaxText.multimodal_utils", "gone")
    assert kept is not None
    assert kept.dotted == "maxtext.multimodal.processor_llama4.gone"  # the checkout's own copy
    assert "0123456789" in kept.note


def test_a_circle_of_imports_ends() -> None:
    extra = {
        "src/MaxText/a.py": "from MaxText.b import name\n",
        "src/MaxText/b.py": "from MaxText.a import name\n",
    }
    assert project(extra).symbol("MaxText.a", "name") is not None


def test_what_importing_a_module_loads() -> None:
    own = {
        "src/MaxText/own.py": "from MaxText.layers.gemma import Gemma\nimport MaxText.pyconfig\n"
    }
    about = project(own)
    assert about.loads("maxtext") == {"maxtext"}
    assert about.loads("maxtext.models.gemma") == {
        "maxtext",
        "maxtext.models",
        "maxtext.models.gemma",
        "maxtext.layers",
        "maxtext.layers.moe",
    }
    assert {"maxtext.own", "maxtext.models.gemma", "maxtext.configs.pyconfig"} <= about.loads(
        "maxtext.own"
    )


def test_paths_of_files_and_folders() -> None:
    about = project({"src/MaxText/profiler.py": "x = 1\n", "src/maxtext/profiler.py": "x = 1\n"})
    found = {
        p: about.path(p)
        for p in ("src/MaxText/max_utils.py", "src/MaxText", "src/MaxText/profiler.py")
    }
    assert {p: f.new for p, f in found.items() if f is not None} == {
        "src/MaxText/max_utils.py": "src/maxtext/utils/max_utils.py",
        "src/MaxText": "src/maxtext",
        "src/MaxText/profiler.py": "src/maxtext/profiler.py",
    }
    assert about.path("src/maxtext/profiler.py") is None


def test_a_project_goes_to_a_worker_whole() -> None:
    about = project()
    about.dotted("MaxText.max_utils.show")
    about.loads("maxtext.models.gemma")
    copy = pickle.loads(pickle.dumps(about))
    assert copy.dotted("MaxText.max_utils.show") == about.dotted("MaxText.max_utils.show")
    assert copy.loads("maxtext.models.gemma") == about.loads("maxtext.models.gemma")
