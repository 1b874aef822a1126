"""Judge what `rebase` resolved by itself; shares no code with it.

    python scripts/judge_rebase.py REPORT.json TREE UPSTREAM

REPORT is rebase-report.json, TREE the resulting files, UPSTREAM upstream's files. For every resolved region the base,
the fork's and upstream's text are replayed: what the fork added must be in the result, or be upstream's already, or
have a reason in the report; what upstream added must be in the result; what the fork removed must be gone. Every
changed Python file must compile, and its imports of the packages maxtext and MaxText must resolve.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_SIGNS = re.compile(r"\w+|[^\w\s]")
# Kinds that take a side as a whole, so a person can read the reason beside both texts.
_EXPLAINED = {"formatting"}


@dataclass
class Verdict:
    """What the judge found.

    Attributes:
        regions: how many resolved regions were judged.
        faults: what is wrong, one line each.
        unresolved: imports of changed files that resolve nowhere.
        files: how many Python files were compiled.
        comments: comment lines of the fork that gave way to upstream's, as the ledger says.
    """

    regions: int = 0
    faults: list[str] = field(default_factory=list)
    unresolved: list[str] = field(default_factory=list)
    files: int = 0
    comments: int = 0


def signs(text: str) -> Counter[str]:
    """Words and signs of a text; commas do not count, since lists may end in one."""
    return Counter(x for x in _SIGNS.findall(text) if x != ",")


def lines(text: str) -> Counter[str]:
    """Lines that say something, without the white space around them."""
    return Counter(x.strip() for x in text.split("\n") if re.search(r"\w", x))


def halves(line: str) -> tuple[str, str]:
    """The code and the comment of a line of Python or YAML."""
    match = re.match(r"""((?:"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|[^#"'])*)(#.*)?""", line)
    assert match is not None
    return match[1].strip(), match[2] or ""


def spoken(region: dict[str, Any]) -> set[str]:
    """Lines of the fork whose comments are not in the result of a region, which has the same code on both sides."""
    if region["kind"] != "comments":
        return set()
    ours, theirs, result = (lines(region[k]) for k in ("ours", "theirs", "result"))
    bare = [{halves(x)[0] for x in side} - {""} for side in (ours, theirs, result)]
    if not bare[0] == bare[1] == bare[2]:
        return set()
    return {x for x in theirs - result if halves(x)[1]}


def judge_region(region: dict[str, Any], excused: Collection[str] = ()) -> str:
    """What is wrong with one resolution; "" if nothing.

    Args:
        region: the resolution, as the report has it.
        excused: lines of the fork that gave way with a reason in the ledger.
    """
    base, ours, theirs, result = (region[k] for k in ("base", "ours", "theirs", "result"))
    theirs = "\n".join(x for x in theirs.split("\n") if x.strip() not in excused)
    kind = region["kind"]
    if kind in _EXPLAINED:
        silent = theirs if signs(theirs) == signs(base) else ours
        if signs(silent) != signs(base):
            return "neither side changed formatting alone"
    added = lines(theirs) - lines(base)
    missing = added - lines(result)
    if missing:
        words = signs(theirs) - signs(base)
        if words - signs(result):
            lost = ", ".join((words - signs(result)).keys())
            if kind not in _EXPLAINED or signs(theirs) != signs(base):
                return f"the fork's {next(iter(missing))!r} is not in the result ({lost})"
    gone = signs(ours) - signs(base) - signs(result)
    if gone:
        return f"upstream's {next(iter(gone))!r} is not in the result"
    removed = lines(base) - lines(theirs)
    allowed = lines(ours) | lines(theirs)
    kept = (removed & lines(result)) - (lines(theirs) & removed)
    if kept - (lines(ours) - lines(base)) and kind not in ("comments", "different nodes"):
        still = kept - (lines(ours) - lines(base))
        return f"the fork removed {next(iter(still))!r}, and the result has it"
    invented = lines(result) - allowed
    if signs("\n".join(invented)) - signs(ours) - signs(theirs):
        return f"{next(iter(invented))!r} is on neither side"
    return ""


class Modules:
    """The modules of a folder's packages, and the names each binds at its top level."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._names: dict[Path, set[str] | None] = {}

    def find(self, dotted: str) -> Path | None:
        """The file or folder of a module; None if there is none."""
        for top in (self.root / "src", self.root):
            place = top.joinpath(*dotted.split("."))
            for file in (place.with_suffix(".py"), place / "__init__.py"):
                if file.is_file():
                    return file
            if place.is_dir():
                return place
        return None

    def resolves(self, dotted: str, name: str) -> bool:
        """Whether `from dotted import name` finds something."""
        place = self.find(dotted)
        if place is None:
            return False
        if name == "*" or self.find(f"{dotted}.{name}") is not None:
            return True
        names = self.names(place) if place.is_file() else set()
        return names is None or name in names

    def names(self, file: Path) -> set[str] | None:
        """Names that a module binds; None where a star import or `__getattr__` hides them."""
        if file not in self._names:
            self._names[file] = self._bound(file)
        return self._names[file]

    @staticmethod
    def _bound(file: Path) -> set[str] | None:
        try:
            tree = ast.parse(file.read_text(encoding="utf-8", errors="replace"))
        except SyntaxError:
            return None
        found: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.Import | ast.ImportFrom):
                if any(a.name == "*" for a in node.names):
                    return None
                found |= {(a.asname or a.name).split(".")[0] for a in node.names}
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
        return None if "__getattr__" in found else found


def judge_file(path: Path, root: Path, modules: Modules, verdict: Verdict) -> None:
    """Compile a file and look for its imports."""
    shown = path.relative_to(root)
    try:
        tree = ast.parse(path.read_bytes())
    except SyntaxError as error:
        verdict.faults.append(f"{shown}:{error.lineno}: does not compile ({error.msg})")
        return
    verdict.files += 1
    for node in ast.walk(tree):
        wanted: list[tuple[str, str]] = []
        if isinstance(node, ast.Import):
            wanted = [(a.name, "*") for a in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            wanted = [(node.module, a.name) for a in node.names]
        for module, name in wanted:
            if module.split(".")[0] in ("maxtext", "MaxText") and not modules.resolves(
                module, name
            ):
                assert isinstance(node, ast.stmt)
                verdict.unresolved.append(f"{shown}:{node.lineno}: {module} {name}")


def judge(report: dict[str, Any], tree: Path, upstream: Path) -> Verdict:
    """Judge a whole report."""
    verdict = Verdict()
    explained = {
        a["where"]
        for a in report["ledger"]
        if "comments" in a["reason"] or a["status"] == "conflict"  # which shows a person the file
    }
    for step in report["steps"]:
        excused: dict[str, set[str]] = {}
        for region in step["resolutions"]:
            if region["path"] in explained:
                excused.setdefault(region["path"], set()).update(spoken(region))
        verdict.comments += sum(len(x) for x in excused.values())
        for region in step["resolutions"]:
            verdict.regions += 1
            fault = judge_region(region, excused.get(region["path"], ()))
            if fault:
                verdict.faults.append(
                    f"{step['commit'][:10]} {region['path']} ({region['kind']}): {fault}"
                )
    for account in report["ledger"]:
        if account["status"] == "lost" or (
            account["status"] == "dropped" and not account["reason"]
        ):
            verdict.faults.append(f"{account['path']}:{account['line']}: {account['status']}")
    modules = Modules(tree)
    for path in sorted(tree.rglob("*.py")):
        twin = upstream / path.relative_to(tree)
        if not twin.is_file() or twin.read_bytes() != path.read_bytes():
            judge_file(path, tree, modules, verdict)
    return verdict


def main() -> int:
    """Judge the files named on the command line."""
    if len(sys.argv) != 4:
        print(__doc__, file=sys.stderr)
        return 2
    report = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    verdict = judge(report, Path(sys.argv[2]), Path(sys.argv[3]))
    for line in (*verdict.faults, *(f"unresolved import {x}" for x in verdict.unresolved)):
        print(line)
    print(
        f"{verdict.regions} resolved regions, {verdict.files} changed Python files, "
        f"{verdict.comments} comment lines that gave way with a reason; "
        f"{len(verdict.faults)} faults, {len(verdict.unresolved)} unresolved imports"
    )
    return 1 if verdict.faults or verdict.unresolved else 0


if __name__ == "__main__":
    sys.exit(main())
