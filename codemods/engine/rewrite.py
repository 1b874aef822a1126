"""One file through all rules: bytes in, bytes and findings out. Runs in a worker process."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from codemods.engine.context import PythonFile, SourceFile, TextFile
from codemods.engine.edits import Edit, LineIndex, Site, Tier, apply, line_starts, settle
from codemods.engine.project import OLD_ROOT, Project
from codemods.engine.source import decode
from codemods.engine.tree import UnparsableError
from codemods.maps import symbols
from codemods.rules import all_rules, configs, dumps, renames, run_python, run_text, text

PYTHON_SUFFIXES = (".py", ".pyi")
# Files of these names are text, so a NUL byte in one is a fault to list, not a sign of binary data.
TEXT_SUFFIXES = (".sh", ".md", ".rst", ".yml", ".yaml", ".toml", ".cfg", ".ini", ".json", ".ipynb")


@dataclass(frozen=True, slots=True)
class Finding:
    """An edit made or a site listed, as the report has it.

    Attributes:
        file: path in the checkout.
        line, column: where it starts, both from 1.
        rule, tier: which rule, and how far to trust it ("report": nothing was changed by it).
        before: the text that was there.
        after: what it became; None for a listed site.
        reason: why.
        todo: what a person should do; "" for an edit.
        start, end: character offsets in the decoded file.
        group: edits of a file that stand or fall together.
    """

    file: str
    line: int
    column: int
    rule: str
    tier: Tier
    before: str
    after: str | None
    reason: str
    todo: str = ""
    start: int = 0
    end: int = 0
    group: str = ""


@dataclass(frozen=True, slots=True)
class Imported:
    """An import statement of a rewritten file, to be checked against the new trees.

    Attributes:
        name: dotted module or `module.name`.
        line: in the rewritten file.
        old_line: the nearest line in the checkout's file.
    """

    name: str
    line: int
    old_line: int


@dataclass(slots=True)
class Result:
    """What became of one file.

    Attributes:
        path: in the checkout.
        data: its new bytes; None if they did not change.
        edits, sites: findings, in order.
        module: symbol table entry of the rewritten text, for Python.
        imports: what the rewritten Python imports from the old or new packages.
        considered: whether it held anything that the rules look for.
    """

    path: str
    data: bytes | None = None
    edits: list[Finding] = field(default_factory=list)
    sites: list[Finding] = field(default_factory=list)
    module: symbols.Module | None = None
    imports: list[Imported] = field(default_factory=list)
    considered: bool = False


class Prefilter:
    """Which files can hold anything for the rules, by their bytes and place alone."""

    def __init__(self, project: Project) -> None:
        roots = {
            root.encode()
            for root in project.old_roots
            if root not in ("tests", "benchmarks", "tools", "scripts", "setup")
        }
        dotted = {f"{root}.".encode() for root in project.old_roots} | {
            f"from {root} ".encode() for root in project.old_roots
        }
        names = {name.encode() for name in project.names}
        common = {OLD_ROOT.encode(), b"al_model", *roots, *dotted, *names}
        common |= {*text.WORDS, *configs.WORDS, *renames.WORDS, *dumps.WORDS, *project.dumps.words}
        self.words = self._pattern(common)
        self.renaming = {
            name.rpartition(".")[0]
            for name, entry in project.map.symbols.items()
            if entry.status == "renamed"
        }

    @staticmethod
    def _pattern(words: set[bytes]) -> re.Pattern[bytes]:
        return re.compile(b"|".join(re.escape(w) for w in sorted(words)))


_RELATIVE = re.compile(rb"^[ \t]*from[ \t]*\.", re.MULTILINE)


def rewrite(path: str, data: bytes, project: Project, prefilter: Prefilter | None) -> Result:
    """Run all rules on one file.

    Args:
        path: its path in the checkout.
        data: its bytes.
        project: what is known of the whole checkout.
        prefilter: skips files that hold nothing to do; None runs the rules on every file.
    """
    result = Result(path)
    python = path.endswith(PYTHON_SUFFIXES)
    canonical = project.canonical(path)
    if python:
        module = symbols.module_name(canonical)
        if prefilter is not None and not prefilter.words.search(data):
            moved = project.modules.get(module, module) != module
            if not (moved and (_RELATIVE.search(data) or module in prefilter.renaming)):
                return result
    elif prefilter is not None and not prefilter.words.search(data) and not _is_config(path):
        return result
    if not python and b"\0" in data[:8192] and not path.endswith(TEXT_SUFFIXES):
        return result
    result.considered = True
    try:
        if not python and b"\0" in data:
            raise UnparsableError(
                "the file holds a NUL byte", data[: data.index(b"\0")].count(b"\n") + 1
            )
        source, encoding = decode(data, python)
        file: SourceFile
        if python:
            package = path.endswith("__init__.py")
            file = PythonFile(path, source, project, module, package)
            run_python(file)
        else:
            file = TextFile(path, source, project)
            run_text(file)
    except UnparsableError as error:
        todo = "look at it by hand"
        if OLD_ROOT.encode() in data:
            todo = "fix the file or migrate it by hand, then run again"
        result.sites.append(_unparsable(path, error, todo))
        return result
    except RecursionError:
        deep = UnparsableError("an expression is nested too deep for the rules")
        result.sites.append(_unparsable(path, deep, "migrate it by hand"))
        return result
    except Exception as error:  # one file must not cost the user all the others
        fault = UnparsableError(f"a rule failed on this file ({type(error).__name__}: {error})")
        result.sites.append(_unparsable(path, fault, "migrate it by hand, and report the fault"))
        return result
    new_text, tree = _finish(result, file, python)
    if result.edits:
        try:
            result.data = encoding.encode(new_text)
        except UnicodeEncodeError:
            foreign = UnparsableError(f"the rewritten text cannot be written as {encoding.codec}")
            result.edits.clear()
            result.sites.append(_unparsable(path, foreign, "migrate it by hand"))
            return result
    if python:
        _check_python(result, file, project, new_text, tree)
    _check_survivors(result, file, project, new_text)
    result.sites.sort(key=lambda s: (s.line, s.column, s.rule))
    file.close()
    return result


def _is_config(path: str) -> bool:
    """Whether a file is a configuration of MaxText, whose keys are checked whatever they are."""
    return "/configs/" in path and path.endswith((".yml", ".yaml"))


def _unparsable(path: str, error: UnparsableError, todo: str) -> Finding:
    return Finding(path, error.line, error.column, "CHK001", "report", "", None, error.reason, todo)


def _finish(result: Result, file: SourceFile, python: bool) -> tuple[str, ast.Module | None]:
    """Settle and make the edits; if the outcome would not parse, take all of them back.

    Returns:
        The rewritten text, and its tree where it was parsed.
    """
    tree: ast.Module | None = None
    edits, clashes = settle(file.edits)
    new_text = apply(file.text, edits)
    lines = LineIndex(file.text)
    rules = all_rules()
    for stands, dropped in clashes:
        if _agrees(file.text, stands, dropped):
            continue
        reason = f"{stands.rule} changes the same text (to `{_short(stands.new)}`)"
        todo = f"{dropped.rule} wanted `{_short(dropped.new)}`; check the result"
        result.sites.append(
            _finding(file, lines, Site(dropped.start, dropped.end, "CHK002", reason, todo))
        )
    if python and edits:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(new_text)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            first = edits[0]
            message = getattr(error, "msg", str(error))
            reason = f"its {len(edits)} edits together would not parse ({message})"
            site = Site(first.start, first.end, "CHK003", reason, "migrate this file by hand")
            result.sites.append(_finding(file, lines, site))
            edits, new_text = [], file.text
    for edit in edits:
        result.edits.append(_finding(file, lines, edit, rules[edit.rule].tier))
    seen: set[tuple[int, int, str]] = set()
    for site in file.sites:
        key = (site.start, site.end, site.reason)
        if key not in seen:
            seen.add(key)
            result.sites.append(_finding(file, lines, site))
    return new_text, tree


def _agrees(text_: str, wide: Edit, narrow: Edit) -> bool:
    """Whether a wider edit does what a narrower one inside it wants."""
    if not wide.start <= narrow.start <= narrow.end <= wide.end:
        return False
    inner = Edit(narrow.start - wide.start, narrow.end - wide.start, narrow.new, narrow.rule)
    return apply(text_[wide.start : wide.end], [inner]) == wide.new


def _finding(
    file: SourceFile, lines: LineIndex, item: Edit | Site, tier: Tier = "report"
) -> Finding:
    line, column = lines.line_column(item.start)
    return Finding(
        file=file.path,
        line=line,
        column=column,
        rule=item.rule,
        tier=tier,
        before=file.text[item.start : item.end],
        after=item.new if isinstance(item, Edit) else None,
        reason=item.reason,
        todo="" if isinstance(item, Edit) else item.todo,
        start=item.start,
        end=item.end,
        group=item.group if isinstance(item, Edit) else "",
    )


def _short(text_: str) -> str:
    line = " ".join(text_.split())
    return line if len(line) <= 60 else line[:57] + "..."


class _OldLines:
    """From offsets in the rewritten text back to lines of the checkout's."""

    def __init__(self, file: SourceFile, edits: list[Finding]) -> None:
        self._old = LineIndex(file.text)
        self._shifts: list[tuple[int, int, int]] = []  # new start, new end, old start
        delta = 0
        for edit in edits:
            start = edit.start + delta
            size = len(edit.after or "")
            self._shifts.append((start, start + size, edit.start))
            delta += size - (edit.end - edit.start)
        self._edits = edits

    def offset(self, new: int) -> int:
        """The old offset of a new one; inside a replacement, where that starts."""
        delta = 0
        for (start, end, old_start), edit in zip(self._shifts, self._edits, strict=True):
            if new < start:
                break
            if new < end:
                return old_start
            delta = edit.end - end
        return new + delta

    def line_column(self, new: int) -> tuple[int, int]:
        """The old line and column of a new offset."""
        return self._old.line_column(self.offset(new))


def _check_python(
    result: Result, file: SourceFile, project: Project, new_text: str, tree: ast.Module | None
) -> None:
    """Read the rewritten text: its symbol table entry, and what it imports from the packages at stake."""
    assert isinstance(file, PythonFile)
    placement = project.placements.get(file.path)
    new_path = (placement.new if placement else None) or file.path
    if not result.edits and not result.sites and new_path == file.path:
        return
    if tree is None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(new_text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return  # LibCST's parser takes more than CPython's, and this file was left as it was
    result.module = symbols.scan(tree, project.canonical(new_path))
    if not result.edits and not result.sites:
        return
    package = result.module.package
    back = _OldLines(file, result.edits)
    starts = line_starts(new_text)
    for node in _statements(tree):
        if isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = symbols.absolute(result.module.name, package, node.level, node.module)
            names = [base if a.name == "*" else f"{base}.{a.name}" for a in node.names if base]
        else:
            continue
        for name in names:
            old_line, _ = back.line_column(starts[min(node.lineno - 1, len(starts) - 1)])
            result.imports.append(Imported(name, node.lineno, old_line))


def _statements(tree: ast.Module) -> Iterator[ast.AST]:
    """Every statement of a file; expressions are not looked into."""
    stack: list[ast.AST] = [tree]
    while stack:
        node = stack.pop()
        yield node
        for name in ("body", "orelse", "handlers", "finalbody", "cases"):
            below = getattr(node, name, None)
            if type(below) is list:
                stack += below


# A dotted name, a path or an `-m` target of the old package; the product's name in prose is none of these.
_SURVIVOR = re.compile(
    rf"(?<![\w/.])(?<!\w-)(?:{OLD_ROOT}(?:\.[a-z_]\w*)+|-m\s*{OLD_ROOT}\b)"
    rf"|(?<![\w.-])(?:[\w.${{}}-]*/)*{OLD_ROOT}/(?=[a-z_.$*{{])"
    rf"|^[ \t>]*(?:from\s+{OLD_ROOT}(?:\.\w+)*\s+import\b|import\s+{OLD_ROOT}\b)",
    re.MULTILINE,
)


@lru_cache(maxsize=8)
def _survivor_words(
    names: frozenset[str], dumps_found: bool
) -> tuple[tuple[str, ...], re.Pattern[str]]:
    """Old names of any kind: the package's, the table's, the model's, and of the dump hooks where there are any.

    Returns:
        Words, one of which every match holds, and the pattern.
    """
    words = [*sorted(names), "ALModel", "AL_MODEL", "al_model"]
    if dumps_found:
        words += ["argus_utils", "argus_dump_", "_dump_tensor", "_dumpable"]
    patterns = "|".join(w + r"\w+" if w.endswith("dump_") else re.escape(w) for w in words)
    return (OLD_ROOT, *words), re.compile(
        rf"{_SURVIVOR.pattern}|(?<![A-Za-z0-9])(?:{patterns})(?![A-Za-z0-9])", re.MULTILINE
    )


def _survivors(new_text: str, project: Project) -> Iterator[re.Match[str]]:
    """Every old name, in order; the pattern is slow, so it only runs near one of its words."""
    words, pattern = _survivor_words(frozenset(project.names), bool(project.dumps.modules))
    lines: set[int] = set()
    for word in words:
        at = new_text.find(word)
        while at != -1:
            lines.add(new_text.rfind("\n", 0, at) + 1)
            at = new_text.find("\n", at)
            at = new_text.find(word, at) if at != -1 else -1
    position = 0
    for line in sorted(lines):
        before = (
            new_text.rfind("\n", 0, max(line - 1, 0)) + 1
        )  # a match may start on the line before
        end = new_text.find("\n", line)
        for match in pattern.finditer(
            new_text, max(before, position), len(new_text) if end == -1 else end
        ):
            position = match.end()
            yield match
    for match in _ROOT_IN_VARIABLE.finditer(new_text):
        used = rf"\$\{{?{match['name']}\}}?[./]|-m[ \t]+[\"']?\$\{{?{match['name']}\b"
        if re.search(used, new_text):
            yield match


# A shell variable that holds the package's name and is put in front of a module or path.
_ROOT_IN_VARIABLE = re.compile(
    rf"^[ \t]*(?:export[ \t]+|readonly[ \t]+)?(?P<name>\w+)=([\"']?){OLD_ROOT}\2[ \t]*(?:#.*)?$",
    re.MULTILINE,
)


_PINNED_URL = re.compile(
    r"https?://[^\s\"')>]*/(?:blob|tree|raw|commit)/(?!main/|master/|HEAD/)[^\s\"')>]*"
)


def _pinned(new_text: str, offset: int) -> bool:
    """Whether the offset lies in a URL to a fixed commit or tag, where the old path is the right one."""
    line_start = new_text.rfind("\n", 0, offset) + 1
    line_end = new_text.find("\n", offset)
    line = new_text[line_start : len(new_text) if line_end == -1 else line_end]
    return any(m.start() <= offset - line_start < m.end() for m in _PINNED_URL.finditer(line))


def _check_survivors(result: Result, file: SourceFile, project: Project, new_text: str) -> None:
    """List every old name that is still there and that no site of this file accounts for."""
    back = _OldLines(file, result.edits)
    listed = {s.line for s in result.sites}
    for match in _survivors(new_text, project):
        if _pinned(new_text, match.start()):
            continue
        start = back.offset(match.start())
        line, column = back.line_column(match.start())
        if line in listed or any(s.start <= start < max(s.end, s.start + 1) for s in result.sites):
            continue
        listed.add(line)
        result.sites.append(
            Finding(
                file=file.path,
                line=line,
                column=column,
                rule="CHK005",
                tier="report",
                before=match.group(),
                after=None,
                reason="an old name is left that no rule rewrites with certainty",
                todo="rewrite it by hand, or keep it on purpose",
                start=start,
                end=start + len(match.group()),
            )
        )
