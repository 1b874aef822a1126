"""Runs the dump rules alone on a few texts, without the engine's files and workers."""

from __future__ import annotations

import ast
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import cast

import libcst as cst

from codemods.engine.context import PythonFile
from codemods.engine.edits import Edit, Site, apply, settle
from codemods.engine.project import Project
from codemods.rules import dumps

ALL = frozenset(rule.id for rule in dumps.RULES)
ARGUS_PATH = "src/MaxText/utils/argus_utils.py"
ARGUS = '''\
"""The dumper, after the fork's."""
import functools

_ACTIVE = None


def dump_tensor(name, x, layer=None):
  if _ACTIVE is not None:
    _ACTIVE.record(name, x)
  return x


def dump_stats(name, tree):
  if _ACTIVE is not None:
    _ACTIVE.record(name, tree)


def dumpable(target=None, *, name=None):
  if isinstance(target, str):
    return functools.partial(dumpable, name=target)
  if target is None:
    return functools.partial(dumpable, name=name)

  @functools.wraps(target)
  def wrapper(*args, **kwargs):
    return dump_tensor(name, target(*args, **kwargs))

  return wrapper


class Dumper:
  def __init__(self, config):
    self.directory = config.argus_dump_dir

  def is_dump_step(self, step):
    return bool(self.directory)

  def save(self, step, **trees):
    print(step, trees)

  def recording(self):
    return self

  def __enter__(self):
    return self

  def __exit__(self, *exc):
    pass


def unrelated(x):
  return x + 1
'''


@dataclass
class Stripped:
    """What the rules made of some texts.

    Attributes:
        texts: path → text after the edits, with the freed imports gone.
        sites: path → what is listed.
        edits: path → the edits.
        plan: the plan behind it.
    """

    texts: dict[str, str] = field(default_factory=dict)
    sites: dict[str, list[Site]] = field(default_factory=dict)
    edits: dict[str, list[Edit]] = field(default_factory=dict)
    plan: dumps.DumpPlan = field(default_factory=dumps.DumpPlan)

    def listed(self, path: str, before: str) -> list[str]:
        """The listed spans' lines, as they stand in the text before."""
        return [
            (
                before[: site.start].splitlines(keepends=True)[-1:][0].rstrip("\n")
                + before[site.start :].split("\n", 1)[0]
                if site.start and not before[: site.start].endswith("\n")
                else before[site.start :].split("\n", 1)[0]
            )
            for site in self.sites[path]
        ]


def module_name(path: str) -> tuple[str, bool]:
    """Dotted name of a path, and whether it is a package."""
    parts = path.removeprefix("src/").removesuffix(".py").split("/")
    package = parts[-1] == "__init__"
    return ".".join(parts[:-1] if package else parts), package


def make_plan(files: Mapping[str, str]) -> dumps.DumpPlan:
    """The plan for a checkout of these texts."""

    def read(words: tuple[bytes, ...]) -> Iterable[dumps.DumpFacts]:
        for path, text in files.items():
            if any(word in text.encode("utf-8", "surrogatepass") for word in words):
                facts = dumps.survey(path, *module_name(path), text)
                if facts is not None:
                    yield facts

    return dumps.gather(read)


def strip(files: Mapping[str, str], enabled: frozenset[str] = ALL) -> Stripped:
    """Run the rules on every text."""
    result = Stripped(plan=make_plan(files))
    project = cast(Project, types.SimpleNamespace(dumps=result.plan, enabled=enabled))
    for path, text in files.items():
        file = PythonFile(path, text, project, *module_name(path))
        dumps.python(file)
        kept, clashes = settle([*file.edits, *_freed_imports(file)])
        assert not clashes
        result.texts[path] = apply(text, kept)
        result.sites[path] = sorted(file.sites, key=lambda s: s.start)
        result.edits[path] = file.edits
        ast.parse(result.texts[path].replace("\r\n", "\n"))
    return result


def _freed_imports(file: PythonFile) -> Iterable[Edit]:
    """What the import rules make of `file.unused`, in the simplest form."""
    for node in file.tree.walk():
        if not isinstance(node, (cst.Import, cst.ImportFrom)) or isinstance(
            node.names, cst.ImportStar
        ):
            continue
        unused = [a for a in node.names if a in file.unused]
        if not unused:
            continue
        start, end = file.span(node)
        if len(unused) == len(node.names):
            line = file.tree.parent(node)
            assert line is not None
            block = file.tree.parent(line)
            if isinstance(block, cst.IndentedBlock) and len(block.body) == 1:
                yield Edit(start, end, "pass", "TEST")
                continue
            newline = file.text.find("\n", end)
            begin = file.text.rfind("\n", 0, start) + 1
            yield Edit(begin, len(file.text) if newline < 0 else newline + 1, "", "TEST")
            continue
        kept = ", ".join(file.source(a).rstrip(", ") for a in node.names if a not in file.unused)
        yield Edit(file.span(node.names[0])[0], file.span(node.names[-1])[1], kept, "TEST")
