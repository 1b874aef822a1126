"""Renames: every form before and after, look-alikes, idempotence."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

import pytest

from codemods.engine.context import PythonFile
from codemods.engine.edits import apply, settle
from codemods.engine.project import Options, Placement, Project
from codemods.maps import symbols
from codemods.maps.model import MoveMap, TreeId
from codemods.maps.symbols import SymbolTable
from codemods.rules import renames
from codemods.rules.dumps import DumpPlan

PLACEMENTS = {
    "ALModel/al_model.py": Placement("src/maxtext/models/ling2.py"),
    "src/MaxText/configs/models/al_model.yml": Placement("src/maxtext/configs/models/ling2.yml"),
    "scripts/pretrain_al_model.sh": Placement("scripts/pretrain_ling2.sh"),
    "docs/al_model_notes.md": Placement("docs/ling2_notes.md"),
}


@dataclass
class Renamed:
    """What the family made of one text."""

    text: str
    sites: list[str] = field(default_factory=list)  # the text each listed site spans
    reasons: list[str] = field(default_factory=list)
    chosen: dict[str, str] = field(default_factory=dict)  # use → name, for the import rules


def project(files: dict[str, str] | None = None, enabled: frozenset[str] | None = None) -> Project:
    sources = dict(files or {})
    facts = [renames.survey(p, t) for p, t in sources.items()]
    return Project(
        map=MoveMap(TreeId("base"), TreeId("target")),
        enabled=frozenset(r.id for r in renames.RULES) if enabled is None else enabled,
        options=Options(),
        placements=PLACEMENTS,
        old=SymbolTable.from_sources({p: t.encode() for p, t in sources.items()}),
        target=SymbolTable([]),
        modules={"ALModel.al_model": "maxtext.models.ling2"},
        names=renames.plan(facts),
        dumps=DumpPlan(),
    )


def rename(
    text: str, path: str = "tools/example.py", files: dict[str, str] | None = None
) -> Renamed:
    sources = {path: text, **(files or {})}
    file = PythonFile(path, text, project(sources), symbols.module_name(path))
    renames.python(file)
    edits, clashes = settle(file.edits)
    assert not clashes, clashes
    result = apply(text, edits)
    ast.parse(result)
    return Renamed(
        result,
        [text[s.start : s.end] for s in file.sites],
        [s.reason for s in file.sites],
        {text[o : o + 40].split("(")[0].split(")")[0]: n for o, n in file.renamed.items()},
    )


MODEL = '''\
from flax import nnx


class ALGenericLayer(nnx.Module):
  """Shared."""

  def __init__(self, config, mesh, layer_idx: int, quant: "Quant | None" = None, *, rngs: nnx.Rngs):
    self.config = config
    self.layer_idx = layer_idx


class ALDenseLayer(ALGenericLayer):
  """Dense."""

  def __init__(self, config, mesh, layer_idx, quant=None, *, rngs):
    super().__init__(config, mesh, layer_idx, quant, rngs=rngs)


class ALMoELayer(ALGenericLayer):
  """Experts."""

  def __init__(self, config, mesh, layer_idx, quant=None, *, rngs):
    super().__init__(config, mesh, layer_idx, quant, rngs=rngs)
'''


def model(tail: str) -> str:
    return MODEL + "\n\n" + tail


def tail_of(result: Renamed) -> str:
    """What follows the three classes."""
    marker = "    super().__init__(config, mesh, layer_idx, quant, rngs=rngs)\n"
    return result.text.rpartition(marker)[2].lstrip("\n")


def test_smoke():
    r = rename(model("x = ALMoELayer(c, m, 3, rngs=r)\n"))
    print(r)
