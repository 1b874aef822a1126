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
    "src/MaxText/layers/ling2.py": Placement(None),
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


# Identifiers ------------------------------------------------------------------------------------------

FORMS = {
    "class": ("class ALScannableBlock:\n  pass\n", "class Ling2ScannableBlock:\n  pass\n"),
    "use": (
        "class ALScannableBlock:\n  pass\n\n\nx = ALScannableBlock()\n",
        "class Ling2ScannableBlock:\n  pass\n\n\nx = Ling2ScannableBlock()\n",
    ),
    "use before definition": (
        "def f():\n  return ALScannableBlock()\n\n\nclass ALScannableBlock:\n  pass\n",
        "def f():\n  return Ling2ScannableBlock()\n\n\nclass Ling2ScannableBlock:\n  pass\n",
    ),
    "annotation": (
        "class ALScannableBlock:\n  pass\n\n\ndef f(x: ALScannableBlock) -> 'ALScannableBlock': ...\n",
        "class Ling2ScannableBlock:\n  pass\n\n\ndef f(x: Ling2ScannableBlock) -> 'Ling2ScannableBlock': ...\n",
    ),
    "global": (
        "def f():\n  global ALScannableBlock\n  ALScannableBlock = 1\n",
        "def f():\n  global Ling2ScannableBlock\n  Ling2ScannableBlock = 1\n",
    ),
    "walrus and comprehension": (
        "y = [ALScannableBlock for _ in x if (ALScannableBlock := 1)]\n",
        "y = [Ling2ScannableBlock for _ in x if (Ling2ScannableBlock := 1)]\n",
    ),
    "attribute of self": (
        "self.ALMoeBlock_0 = f(self.ALMoeBlock_0)\n",
        "self.Ling2MoeBlock_0 = f(self.Ling2MoeBlock_0)\n",
    ),
    "attribute of a call": ("x = f().ALMoeBlock_0.wi\n", "x = f().Ling2MoeBlock_0.wi\n"),
    "keyword": ("x = dict(ALMoeBlock_0=1)\n", "x = dict(Ling2MoeBlock_0=1)\n"),
    "linen wrapper": (
        "ALScannableBlockToLinen = w(1)\nx = ALScannableBlockToLinen\n",
        "Ling2ScannableBlockToLinen = w(1)\nx = Ling2ScannableBlockToLinen\n",
    ),
    "star import": (
        "from ALModel.al_model import *\n\nx = ALScannableBlock()\n",
        "from ALModel.al_model import *\n\nx = Ling2ScannableBlock()\n",
    ),
    "test class": (
        "class AlModelRoutingTest(Base):\n  pass\n\n\nx = AlModelRoutingTest\n",
        "class Ling2RoutingTest(Base):\n  pass\n\n\nx = Ling2RoutingTest\n",
    ),
    "test class, name inside": (
        "class TestAlModelRouting:\n  pass\n",
        "class TestLing2Routing:\n  pass\n",
    ),
    "test function": (
        "def test_al_model_routes():\n  pass\n",
        "def test_ling2_routes():\n  pass\n",
    ),
    "constant": ("AL_MODEL_YML = 1\nx = AL_MODEL_YML\n", "LING2_YML = 1\nx = LING2_YML\n"),
    "local variable": (
        "def f():\n  al_model_config = 1\n  return al_model_config\n",
        "def f():\n  ling2_config = 1\n  return ling2_config\n",
    ),
    "deepseek block in a layer of the model": (
        "class ALMoELayer(Base):\n\n  def f(self):\n    return self.DeepSeekMoeBlock_0\n",
        "class Ling2MoELayer(Base):\n\n  def f(self):\n    return self.Ling2MoeBlock_0\n",
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_identifiers(name):
    before, after = FORMS[name]
    result = rename(before)
    assert result.text == after
    again = rename(after)
    assert again.text == after


LOOK_ALIKES = {
    "AXIS": "AXIS = 0\n",
    "MaxAX": "MaxAX = 1\n",
    "ALIGN": "ALIGN = 8\nALIGN_BYTES = 512\n",
    "ALBERT": 'ALBERT = "albert"\n\n\nclass ALBERTLayer:\n  pass\n',
    "longer name": "ALDenseLayer_v2 = 1\nMyALDenseLayer = 2\nALDenseLayers = 3\n",
    "prose": "# ALMOST everything is final_model, real_model or total_al_models.\n",
    "string": 'x = "ALBERT", "final_model", "global_model", "almodel", "ALDenseLayerV2"\n',
    "camel": "class FinalModelTest:\n  pass\n\n\nclass AlModelsTest:\n  pass\n",
    "foreign import": "from paddle.models import ALDenseLayer\n\nx = ALDenseLayer(1)\n",
    "foreign attribute": "import paddle\n\nx = paddle.ALDenseLayer(1)\n",
    "deepseek": "class DeepSeekMoELayer(Base):\n\n  def f(self):\n    return self.DeepSeekMoeBlock_0\n",
    "deepseek string": 'x = {"DeepSeekMoeBlock_0": 1}\n',
    "AL alone": 'x = "AL"  # AL\n',
    "bytes": 'x = b"\\x00"  # al-model, al.model\n',
    "already new": "class Ling2ScannableBlock:\n  pass\n\n\nx = DecoderBlockType.LING2\ny = 'ling2'\n",
}


@pytest.mark.parametrize("name", LOOK_ALIKES)
def test_look_alikes_stay(name):
    assert rename(LOOK_ALIKES[name]) == Renamed(LOOK_ALIKES[name])


def test_imports_and_their_uses_are_left_to_the_import_rules():
    text = "from ALModel.al_model import ALScannableBlock as Block, ALMoELayer\n\nx = Block()\ny: ALMoELayer = x\n"
    assert rename(text) == Renamed(text)


def test_an_unknown_name_of_the_models_module_is_listed():
    text = "class ALFancyBlock:\n  pass\n"
    result = rename(text, "ALModel/extra.py")
    assert result.text == text
    assert result.sites == ["ALFancyBlock"]
    assert rename(text).sites == []


def test_a_parameter_with_the_models_name_is_listed():
    text = "def f(al_model_path):\n  return al_model_path\n"
    result = rename(text)
    assert result.text == text
    assert result.sites == ["al_model_path"]


def test_a_derived_name_that_is_taken_is_listed():
    text = "class AlModelRoutingTest:\n  pass\n\n\nclass Ling2RoutingTest:\n  pass\n"
    result = rename(text)
    assert result.text == text
    assert result.sites == ["AlModelRoutingTest"]


def test_a_definition_whose_new_name_is_bound_is_listed():
    text = "class ALScannableBlock:\n  pass\n\n\nclass Ling2ScannableBlock:\n  pass\n\n\nx = ALScannableBlock()\n"
    result = rename(text)
    assert result.text == text
    assert result.sites == ["ALScannableBlock"]


def test_a_use_that_would_be_captured_is_listed():
    text = "class ALScannableBlock:\n  pass\n\n\ndef f(Ling2ScannableBlock):\n  return ALScannableBlock\n"
    result = rename(text)
    assert "  return ALScannableBlock\n" in result.text
    assert result.sites == ["ALScannableBlock"]


def test_an_old_implementation_imported_beside_it_is_no_collision_in_other_files():
    text = (
        "from MaxText.layers.ling2 import Ling2DecoderLayer\nfrom ALModel.al_model import ALScannableBlock\n\n"
        "x = Ling2DecoderLayer, ALScannableBlock\n"
    )
    assert rename(text) == Renamed(text)


# The three layer classes ---------------------------------------------------------------------------------

NEW = """\
  def __new__(cls, *args, **kwargs):
    if cls is Ling2DecoderLayer:
      cls = cls._kind(*args, **kwargs)
    return super().__new__(cls)

  @staticmethod
  def _kind(config, mesh, layer_idx, quant=None, *, rngs):
    \"\"\"Dense or experts, by the layer index.\"\"\"
    dense = layer_idx < config.first_num_dense_layers
    return Ling2DenseLayer if dense else Ling2MoELayer
"""


def test_the_base_class_chooses_by_the_layer_index():
    result = rename(MODEL)
    assert (
        'class Ling2DecoderLayer(nnx.Module):\n  """Shared."""\n\n' + NEW + "\n  def __init__"
        in result.text
    )
    assert "class Ling2DenseLayer(Ling2DecoderLayer):" in result.text
    assert "class Ling2MoELayer(Ling2DecoderLayer):" in result.text
    assert result.sites == ["ALDenseLayer", "ALMoELayer"]
    assert rename(result.text) == Renamed(result.text)


def test_the_chosen_class_is_built():
    """The generated code in plain Python: `__init__` of the chosen class runs, others are not redirected."""
    namespace: dict[str, object] = {}
    source = rename(MODEL).text.replace(
        "from flax import nnx", "class nnx:\n  Module = object\n  Rngs = int"
    )
    exec(compile(source, "model", "exec"), namespace)
    config = type("Config", (), {"first_num_dense_layers": 1})
    base, dense, moe = (
        namespace[n] for n in ("Ling2DecoderLayer", "Ling2DenseLayer", "Ling2MoELayer")
    )
    assert type(base(config, None, 0, rngs=1)) is dense
    assert type(base(config, None, layer_idx=4, rngs=1)) is moe
    assert type(moe(config, None, 0, rngs=1)) is moe
    assert type(type("Sub", (moe,), {})(config, None, 0, rngs=1)).__name__ == "Sub"
    assert base(config, None, 4, rngs=1).layer_idx == 4


def test_without_a_docstring_the_choice_stands_first():
    result = rename(MODEL.replace('  """Shared."""\n\n', ""))
    assert "class Ling2DecoderLayer(nnx.Module):\n" + NEW + "\n  def __init__" in result.text


def test_the_attention_of_the_layer_is_listed():
    text = MODEL.replace("    self.config = config\n", "    self.attention = f(config)\n")
    result = rename(text)
    assert "    self.attention = f(config)\n" in result.text
    assert "self.attention" in result.sites


NO_CHOICE = {
    "no index": MODEL.replace("layer_idx: int, ", "").replace(
        "    self.layer_idx = layer_idx\n", ""
    ),
    "no init": MODEL.replace(
        "__init__(self, config, mesh, layer_idx: int", "setup(self, config, mesh, layer_idx: int"
    ),
    "own new": MODEL.replace(
        '  """Shared."""\n',
        '  """Shared."""\n\n  def __new__(cls, *a, **k):\n    return object()\n',
    ),
    "one kind only": MODEL[: MODEL.index("class ALMoELayer")],
}


@pytest.mark.parametrize("name", NO_CHOICE)
def test_where_the_base_class_cannot_choose_it_says_so(name):
    result = rename(NO_CHOICE[name])
    assert "_kind" not in result.text
    assert any("cannot choose" in r for r in result.reasons)


USES = {
    "value": ("x = ALMoELayer\n", "x = Ling2DecoderLayer\n"),
    "registry": (
        'REG = {"dense": ALDenseLayer, "moe": ALMoELayer}\n',
        'REG = {"dense": Ling2DecoderLayer, "moe": Ling2DecoderLayer}\n',
    ),
    "registry by class name": (
        'REG = {\n    "ALDenseLayer": ALDenseLayer,\n    "ALMoELayer": ALMoELayer,\n}\n',
        'REG = {\n    "Ling2DecoderLayer": Ling2DecoderLayer,\n}\n',
    ),
    "wrappers": (
        "ALDenseLayerToLinen = w(\n    ALDenseLayer,\n    fn=f,\n)\n\nALMoELayerToLinen = w(\n    ALMoELayer,\n    fn=f,\n)\n\ny = 1\n",
        "Ling2DecoderLayerToLinen = w(\n    Ling2DecoderLayer,\n    fn=f,\n)\n\ny = 1\n",
    ),
    "all": (
        '__all__ = ["ALDenseLayer", "ALGenericLayer", "ALMoELayer", "f"]\n',
        '__all__ = ["Ling2DecoderLayer", "f"]\n',
    ),
    "all, lines": (
        '__all__ = [\n    "ALDenseLayer",\n    "ALMoELayer",\n]\n',
        '__all__ = [\n    "Ling2DecoderLayer",\n]\n',
    ),
    "isinstance of both": (
        "def f(x):\n  return isinstance(x, (ALDenseLayer, ALMoELayer))\n",
        "def f(x):\n  return isinstance(x, (Ling2DecoderLayer,))\n",
    ),
    "isinstance of the base": (
        "def f(x):\n  return isinstance(x, ALGenericLayer)\n",
        "def f(x):\n  return isinstance(x, Ling2DecoderLayer)\n",
    ),
    "annotation of both": (
        "def f(x: ALDenseLayer | None): ...\n",
        "def f(x: Ling2DecoderLayer | None): ...\n",
    ),
    "constructor, literal index": (
        "x = ALDenseLayer(c, m, 0, rngs=r), ALMoELayer(c, m, layer_idx=4, rngs=r)\n",
        "x = Ling2DecoderLayer(c, m, 0, rngs=r), Ling2DecoderLayer(c, m, layer_idx=4, rngs=r)\n",
    ),
    "constructor under a condition": (
        "def f(i):\n  if i < c.first:\n    return ALDenseLayer(c, m, i, rngs=r)\n",
        "def f(i):\n  if i < c.first:\n    return Ling2DecoderLayer(c, m, i, rngs=r)\n",
    ),
    "either class": (
        "def f(sparse):\n  return ALMoELayer if sparse else ALDenseLayer\n",
        "def f(sparse):\n  return Ling2DecoderLayer\n",
    ),
    "partial": ("p = partial(ALMoELayer, c)\n", "p = partial(Ling2DecoderLayer, c)\n"),
    "super": (
        "class ALScannableBlock:\n  x = super(ALMoELayer, y)\n",
        "class Ling2ScannableBlock:\n  x = super(Ling2MoELayer, y)\n",
    ),
}


@pytest.mark.parametrize("name", USES)
def test_uses_of_the_layer_classes(name):
    before, after = USES[name]
    result = rename(model(before))
    assert tail_of(result) == after
    assert result.sites == ["ALDenseLayer", "ALMoELayer"]
    assert rename(result.text).text == result.text


TOLD_APART = {
    "isinstance": (
        "def f(x):\n  return isinstance(x, ALMoELayer)\n",
        "isinstance(x, Ling2MoELayer)",
    ),
    "isinstance, union": (
        "def f(x):\n  return isinstance(x, ALMoELayer | None)\n",
        "x, Ling2MoELayer | None",
    ),
    "issubclass": (
        "def f(x):\n  return issubclass(x, ALDenseLayer)\n",
        "issubclass(x, Ling2DenseLayer)",
    ),
    "assertIsInstance": ("self.assertIsInstance(x, ALMoELayer)\n", "(x, Ling2MoELayer)"),
    "subclass": ("class Cold(ALMoELayer):\n  pass\n", "class Cold(Ling2MoELayer)"),
    "subclass of the base": (
        "class Cold(ALGenericLayer):\n  pass\n",
        "class Cold(Ling2DecoderLayer)",
    ),
    "match": ("match x:\n  case ALMoELayer():\n    y = 1\n", "case Ling2MoELayer():"),
    "type is": ("def f(x):\n  return type(x) is ALMoELayer\n", "type(x) is Ling2MoELayer"),
    "class attribute": (
        "def f(x):\n  return x.__class__ == ALDenseLayer\n",
        "x.__class__ == Ling2DenseLayer",
    ),
    "unbound method": ("x = ALMoELayer.__call__\n", "x = Ling2MoELayer.__call__"),
    "patched": (
        "mock.patch.object(ALDenseLayer, 'f')\n",
        "mock.patch.object(Ling2DenseLayer, 'f')",
    ),
    "class name": (
        "def f(x):\n  return type(x).__name__ == 'ALMoELayer'\n",
        "__name__ == 'Ling2MoELayer'",
    ),
    "class names": (
        "def f(x):\n  return type(x).__name__ in ['ALMoELayer']\n",
        "__name__ in ['Ling2MoELayer']",
    ),
    "string case": ("match x:\n  case 'ALMoELayer':\n    y = 1\n", "case 'Ling2MoELayer':"),
    "table by class name": (
        "T = {'ALDenseLayer': 1, 'ALMoELayer': 2}\n",
        "{'Ling2DenseLayer': 1, 'Ling2MoELayer': 2}",
    ),
    "no index": ("x = ALMoELayer(c, m, rngs=r)\n", "x = Ling2MoELayer(c, m, rngs=r)"),
    "arguments passed on": (
        "x = ALMoELayer(*args, **kwargs)\n",
        "x = Ling2MoELayer(*args, **kwargs)",
    ),
    "index of the other kind": (
        "x = ALMoELayer(c, m, 0, rngs=r)\n",
        "x = Ling2MoELayer(c, m, 0, rngs=r)",
    ),
    "index without a condition": (
        "def f(n):\n  return [ALMoELayer(c, m, i, rngs=r) for i in range(n)]\n",
        "[Ling2DecoderLayer(c, m, i, rngs=r) for i",
    ),
    "base class built": (
        "x = ALGenericLayer(c, m, 1, rngs=r)\n",
        "x = Ling2DecoderLayer(c, m, 1, rngs=r)",
    ),
}


@pytest.mark.parametrize("name", TOLD_APART)
def test_code_that_tells_the_classes_apart_is_listed(name):
    before, after = TOLD_APART[name]
    result = rename(model(before))
    assert after in tail_of(result)
    assert len(result.sites) > 2
    assert "AL" not in tail_of(result)


IMPORTED = {
    "isinstance": ("def f(x):\n  return isinstance(x, {n})\n", "Ling2MoELayer"),
    "subclass": ("class Cold({n}):\n  pass\n", "Ling2MoELayer"),
    "no index": ("x = {n}(c)\n", "Ling2MoELayer"),
    "value": ("x = {n}\n", None),
    "constructor": ("x = {n}(c, m, 4, rngs=r)\n", None),
    "isinstance of both": ("def f(x):\n  return isinstance(x, ({n}, {d}))\n", None),
}


@pytest.mark.parametrize("name", IMPORTED)
@pytest.mark.parametrize(
    ("line", "n", "d"),
    [
        ("from ALModel.al_model import ALDenseLayer, ALMoELayer", "ALMoELayer", "ALDenseLayer"),
        ("from ALModel.al_model import ALDenseLayer as D, ALMoELayer as M", "M", "D"),
        ("from ALModel import al_model", "al_model.ALMoELayer", "al_model.ALDenseLayer"),
    ],
)
def test_imported_classes(name, line, n, d):
    """Single uses that take another name than the import are handed to the import rules."""
    body, chosen = IMPORTED[name]
    text = f"{line}\n\n{body.format(n=n, d=d)}"
    result = rename(text, files={"ALModel/al_model.py": MODEL})
    assert set(result.chosen.values()) == ({chosen} if chosen else set())
    assert bool(result.sites) is (chosen is not None)


def test_hybrid_attention_is_listed_and_kept():
    text = "class HybridAttention:\n  pass\n\n\nx = HybridAttention()\n"
    result = rename(text)
    assert result.text == text
    assert result.sites == ["HybridAttention", "HybridAttention"]


# The enum -------------------------------------------------------------------------------------------------

ENUM = 'class DecoderBlockType(enum.Enum):\n  LING2 = "ling2"\n{member}  ALBERT = "albert"\n'


def test_the_member_goes():
    result = rename(ENUM.format(member='  AL_MODEL = "al_model"\n'))
    assert result == Renamed(ENUM.format(member=""))


def test_the_comment_behind_the_member_stays():
    result = rename(ENUM.format(member='  AL_MODEL = "al_model"  # of today\n'))
    assert result.text == ENUM.format(member="  # of today\n")


def test_the_member_is_renamed_where_there_is_no_other():
    text = 'class DecoderBlockType(str, enum.Enum):\n  AL_MODEL = "al_model"\n'
    assert rename(text) == Renamed(text.replace("AL_MODEL", "LING2").replace("al_model", "ling2"))


def test_members_of_other_values_are_listed():
    result = rename(ENUM.format(member='  AL_MODEL = "other"\n'))
    assert len(result.sites) == 1


MEMBER = {
    "attribute": ("x = DecoderBlockType.AL_MODEL\n", "x = DecoderBlockType.LING2\n"),
    "value": ("x = c.DecoderBlockType.AL_MODEL.value\n", "x = c.DecoderBlockType.LING2.value\n"),
    "alias": (
        "from MaxText.common_types import DecoderBlockType as T\n\nx = T.AL_MODEL\n",
        "from MaxText.common_types import DecoderBlockType as T\n\nx = T.LING2\n",
    ),
    "subscript": ('x = DecoderBlockType["AL_MODEL"]\n', 'x = DecoderBlockType["LING2"]\n'),
    "getattr": (
        'x = getattr(DecoderBlockType, "AL_MODEL")\n',
        'x = getattr(DecoderBlockType, "LING2")\n',
    ),
    "name": ('x = b.name == "AL_MODEL"\n', 'x = b.name == "LING2"\n'),
    "value call": ('x = DecoderBlockType("al_model")\n', 'x = DecoderBlockType("ling2")\n'),
    "in a tuple": ("x = b in (T.AL_MODEL, T.LING2, T.D)\n", "x = b in (T.LING2, T.D)\n"),
    "in a tuple, behind": ("x = b in (T.LING2, T.AL_MODEL)\n", "x = b in (T.LING2,)\n"),
    "in a tuple, before": ("x = b in (T.AL_MODEL, T.LING2)\n", "x = b in (T.LING2,)\n"),
    "not in a list": ("x = b not in [T.LING2, T.D, T.AL_MODEL]\n", "x = b not in [T.LING2, T.D]\n"),
    "in a set": ("x = {T.LING2, T.AL_MODEL}\n", "x = {T.LING2}\n"),
    "constant": ("BLOCKS = (T.LING2, T.D, T.AL_MODEL)\n", "BLOCKS = (T.LING2, T.D)\n"),
    "or": ("x = b == T.LING2 or b == T.AL_MODEL\n", "x = b == T.LING2\n"),
    "or, before": ("x = b == T.AL_MODEL or b == T.LING2\n", "x = b == T.LING2\n"),
    "or in brackets": ("x = (b == T.LING2) or (b == T.AL_MODEL)\n", "x = (b == T.LING2)\n"),
    "pattern": (
        "match b:\n  case T.LING2 | T.AL_MODEL:\n    x = 1\n",
        "match b:\n  case T.LING2:\n    x = 1\n",
    ),
    "pattern, before": (
        "match b:\n  case T.AL_MODEL | T.LING2:\n    x = 1\n",
        "match b:\n  case T.LING2:\n    x = 1\n",
    ),
    "equal cases": (
        "match b:\n  case T.LING2:\n    x = 1\n  case T.AL_MODEL:\n    x = 1\n  case _:\n    x = 2\n",
        "match b:\n  case T.LING2:\n    x = 1\n  case _:\n    x = 2\n",
    ),
    "equal dict entries": (
        "x = {T.LING2: 1, T.AL_MODEL: 1, T.D: 2}\n",
        "x = {T.LING2: 1, T.D: 2}\n",
    ),
    "equal last entry": ("x = {T.LING2: 1, T.AL_MODEL: 1}\n", "x = {T.LING2: 1}\n"),
    "strings": ('x = name in ("ling2", "al_model")\n', 'x = name in ("ling2",)\n'),
}


@pytest.mark.parametrize("name", MEMBER)
def test_members(name):
    before, after = MEMBER[name]
    result = rename(before)
    assert result == Renamed(after)
    assert rename(after).text == after


TWICE = {
    "cases": (
        "match b:\n  case T.LING2:\n    x = 1\n  case T.AL_MODEL:\n    x = 2\n",
        "T.AL_MODEL",
    ),
    "branches": ("if b == T.LING2:\n  x = 1\nelif b == T.AL_MODEL:\n  x = 2\n", "b == T.AL_MODEL"),
    "dict": ("x = {T.LING2: 1, T.AL_MODEL: 2}\n", "T.AL_MODEL"),
    "list that is run through": ('for m in ["ling2", "al_model"]:\n  f(m)\n', '"al_model"'),
    "assignments": ("ALDenseLayerToLinen = w(1)\nALMoELayerToLinen = w(2)\n", "ALMoELayerToLinen"),
}


@pytest.mark.parametrize("name", TWICE)
def test_what_is_said_twice_and_differs_is_listed(name):
    before, listed = TWICE[name]
    result = rename(before)
    assert result.sites == [listed]
    assert "AL" not in result.text
    assert "al_" not in result.text


def test_a_case_of_the_implementation_that_is_left_out_gives_way():
    text = (
        "from MaxText.layers import ling2\n\nmatch b:\n  case T.LING2:\n    x = ling2.Old\n"
        "  case T.AL_MODEL:\n    x = 2\n"
    )
    old = {"src/MaxText/layers/ling2.py": "Old = 1\n"}
    result = rename(text, files=old)
    assert result.text.endswith("match b:\n  case T.LING2:\n    x = 2\n")
    assert result.sites == ["T.LING2"]


# Strings, comments, checkpoint names ------------------------------------------------------------------------

STRINGS = {
    "model name": ('x = "al_model"\n', 'x = "ling2"\n'),
    "argument": ('x = ["model_name=al_model"]\n', 'x = ["model_name=ling2"]\n'),
    "flag": ('x = "--model_name=al_model --n=1"\n', 'x = "--model_name=ling2 --n=1"\n'),
    "f-string": ('x = f"model_name=al_model run={y}"\n', 'x = f"model_name=ling2 run={y}"\n'),
    "file": ('x = "al_model.yml"\n', 'x = "ling2.yml"\n'),
    "file in a folder": ('x = "models/al_model.yml"\n', 'x = "models/ling2.yml"\n'),
    "script": ('x = "scripts/pretrain_al_model.sh"\n', 'x = "scripts/pretrain_ling2.sh"\n'),
    "other file of the checkout": ('x = "al_model_notes.md"\n', 'x = "ling2_notes.md"\n'),
    "path of the model": ('x = "ALModel/al_model.py"\n', 'x = "src/maxtext/models/ling2.py"\n'),
    "class name": ('x = getattr(m, "ALDenseLayer")\n', 'x = getattr(m, "Ling2DecoderLayer")\n'),
    "block name": ('x = "ALScannableBlock"\n', 'x = "Ling2ScannableBlock"\n'),
    "message": (
        'raise ValueError("ALScannableBlock broke")\n',
        'raise ValueError("Ling2ScannableBlock broke")\n',
    ),
    "single quotes": ("x = 'al_model'\n", "x = 'ling2'\n"),
    "raw": ("x = r'al_model\\d'\n", "x = r'ling2\\d'\n"),
    "environment": ('x = {"MODEL": "al_model"}\n', 'x = {"MODEL": "ling2"}\n'),
    "checkpoint path": (
        'x = r"layers_(\\d+)/ALMoeBlock_0/gate"\n',
        'x = r"layers_(\\d+)/Ling2MoeBlock_0/gate"\n',
    ),
    "checkpoint key": ('x = "params-ALMoeBlock_0-wi"\n', 'x = "params-Ling2MoeBlock_0-wi"\n'),
    "checkpoint f-string": (
        'x = f"l_{i}.ALMoeBlock_0.gate"\n',
        'x = f"l_{i}.Ling2MoeBlock_0.gate"\n',
    ),
    "parameter tree": ('x = params["ALMoeBlock_0"]\n', 'x = params["Ling2MoeBlock_0"]\n'),
    "hasattr": ('x = hasattr(m, "ALMoeBlock_0")\n', 'x = hasattr(m, "Ling2MoeBlock_0")\n'),
    "comment": ("x = 1  # ALMoELayer of al_model\n", "x = 1  # Ling2DecoderLayer of ling2\n"),
    "docstring": (
        'def f():\n  """The AL model, see ALScannableBlock and al_model.yml."""\n',
        'def f():\n  """The Ling2 model, see Ling2ScannableBlock and ling2.yml."""\n',
    ),
    "comment in an enum": ("# DecoderBlockType.AL_MODEL\n", "# DecoderBlockType.LING2\n"),
}


@pytest.mark.parametrize("name", STRINGS)
def test_strings_and_comments(name):
    before, after = STRINGS[name]
    result = rename(before)
    assert result == Renamed(after)
    assert rename(after) == Renamed(after)


LEFT = {
    "outside the checkout": ('x = "gs://b/al_model/run"\n', "gs://b/al_model/run"),
    "absolute": ('x = "/data/al_model/tok"\n', "/data/al_model/tok"),
    "a name of the user's": ('x = "al_model_baseline"\n', "al_model_baseline"),
    "folder": ('x = join(root, "ALModel")\n', '"ALModel"'),
    "member by name, owner unknown": ('x = table["AL_MODEL"]\n', '"AL_MODEL"'),
    "attribute, owner unknown": ("x = settings.AL_MODEL\n", "AL_MODEL"),
    "old name asked for": ('x = "ALMoeBlock_0" in path\n', '"ALMoeBlock_0"'),
    "old name replaced": ('x = s.replace("ALMoeBlock_0", y)\n', '"ALMoeBlock_0"'),
}


@pytest.mark.parametrize("name", LEFT)
def test_strings_that_are_listed(name):
    text, listed = LEFT[name]
    result = rename(text)
    assert result.text == text
    assert result.sites == [listed]


def test_strings_that_other_rules_import_are_left():
    text = (
        'a = importlib.import_module("ALModel.al_model")\nb = "ALModel.al_model.ALMoELayer"\n'
        'c = "src/MaxText/configs/models/al_model.yml"\n'
    )
    assert rename(text) == Renamed(text)


LEGACY = {
    "key": (
        'T = {\n    "ALMoeBlock_0": "x",\n    "attention": "y",\n}\n',
        'T = {\n    "Ling2MoeBlock_0": "x",\n    "ALMoeBlock_0": "x",\n    "attention": "y",\n}\n',
    ),
    "key in one line": (
        'T = {"ALMoeBlock_0": 1}\n',
        'T = {"Ling2MoeBlock_0": 1, "ALMoeBlock_0": 1}\n',
    ),
    "value": (
        'T = {\n    "DeepSeekMoeBlock_0": "ALMoeBlock_0",\n    "a": "b",\n}\n',
        'T = {\n    "DeepSeekMoeBlock_0": "Ling2MoeBlock_0",\n    "ALMoeBlock_0": "Ling2MoeBlock_0",\n    "a": "b",\n}\n',
    ),
    "candidates": (
        'T = ("ALMoeBlock_0", "DeepSeekMoeBlock_0")\n',
        'T = ("Ling2MoeBlock_0", "ALMoeBlock_0", "DeepSeekMoeBlock_0")\n',
    ),
    "alternatives of a pattern": (
        'T = r"(ALMoeBlock_0|DeepSeekMoeBlock_0)/wi"\n',
        'T = r"(Ling2MoeBlock_0|ALMoeBlock_0|DeepSeekMoeBlock_0)/wi"\n',
    ),
}


@pytest.mark.parametrize("name", LEGACY)
def test_tables_of_checkpoint_names_go_on_reading_the_old_ones(name):
    before, after = LEGACY[name]
    result = rename(before)
    assert result.text == after
    assert len(result.sites) == 1
    assert rename(after).text == after


# The table, and the whole family --------------------------------------------------------------------------------


def test_the_table_is_explicit():
    assert all(not k.startswith("AL") or k in renames.NAMES for k in renames.plan([]))
    assert renames.plan([]) == dict(renames.NAMES)


def test_survey_finds_whole_words_only():
    text = (
        "class AlModelTest:\n  def test_al_model_x(self): ...\n\n\nclass FinalModelTest: ...\n"
        "def real_model(): ...\nAL_MODEL_YML = 1\nal_model = 2\nMETALMODEL = 3\n"
    )
    assert renames.survey("t.py", text).derived == {
        "AlModelTest",
        "test_al_model_x",
        "AL_MODEL_YML",
    }


def test_switched_off_rules_do_nothing():
    file = PythonFile("tools/x.py", MODEL, project({}, enabled=frozenset()))
    renames.python(file)
    assert file.edits == []
    assert file.sites == []


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("indent", ["  ", "    ", "\t"])
def test_line_ends_and_indentation_of_the_file(newline, indent):
    text = MODEL.replace("  ", indent).replace("\n", newline)
    result = rename(text)
    assert f"{newline}{indent}def __new__(cls, *args, **kwargs):{newline}" in result.text
    assert result.text.count("\n") == result.text.count(newline)


def test_rule_ids_and_examples():
    ids = [r.id for r in renames.RULES]
    assert len(ids) == len(set(ids))
    assert all(i.startswith("REN") for i in ids)
    assert all(r.examples for r in renames.RULES)
