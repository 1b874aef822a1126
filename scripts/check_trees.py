#!/usr/bin/env python3
"""Migrate a checkout and check the outcome with means of its own.

    python scripts/check_trees.py CHECKOUT --upstream DIR|VERSION [--keep DIR]

Runs `ling2-migrate run` as a user does and then reads the input, the output, the report and the upstream
tree. Nothing of the engine's own checks is used here: other regular expressions, another resolver.
Exit status: 0 all checks hold, 1 one does not, 2 the migration could not run.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import tokenize
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from codemods.errors import UserError
from codemods.upstream import resolve_upstream

MOST_LISTED = 0.10

# One occurrence of the old package that is not prose: an import, an `-m` target, a path.
_IMPORT = re.compile(
    r"\bfrom\s+MaxText(?:\.\w+)*\s+import\b|\bfrom\s+MaxText\.\w|"
    r"\bimport\s+(?:\w[\w.]*,\s*)*MaxText\b(?=\s*(?:[.,;#\\\"']|as\b|$))"
)
_MODULE_RUN = re.compile(r"(?<!\S)-m[\s\",']+MaxText\b")
_PATH = re.compile(r"src/MaxText\b|(?<![\w-])MaxText/(?=[a-z_.${*<\[])")
_SURVIVORS = {"import": _IMPORT, "-m target": _MODULE_RUN, "path": _PATH}
# A link to one commit or tag goes on showing the old tree, so its path is right.
_PINNED = re.compile(r"/(?:blob|tree|raw|commit)/(?:[0-9a-f]{7,40}|v?\d[\w.-]*)/\S*")
# The product's name in a sentence.
_PROSE = re.compile(
    r"(?<![\w/.$\-@\"'`])(?<!from )(?<!import )(?<!-m )(?<!cd )(?<!source = )(?<!--cov=)(?<!--source=)(?<!-p )MaxText(?![\w/\"'`])(?!\.\w)(?!\s+import\b)"
)


@dataclass
class Check:
    """One line of the table."""

    name: str
    result: str
    failures: list[str] = field(default_factory=list)


@dataclass
class Run:
    """A finished migration: both trees and what the report says.

    Attributes:
        checkout, out, upstream: the three trees; `upstream` is the folder that holds the packages.
        report: report.json.
        new: path in the checkout → path in the output, None if it stays out.
        listed: path in the checkout → the lines that the report lists.
    """

    checkout: Path
    out: Path
    upstream: Path
    report: dict[str, Any]
    new: dict[str, str | None] = field(default_factory=dict)
    listed: dict[str, set[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        moved = {f["path"]: f["new"] for f in self.report["files"]}
        self.new = {p: moved.get(p, p) for p in files_below(self.checkout)}
        for site in self.report["sites"]:
            last = site["line"] + site["before"].count("\n")
            self.listed.setdefault(site["file"], set()).update(range(site["line"], last + 1))

    def pairs(self) -> Iterator[tuple[str, str]]:
        """(path in the checkout, path in the output) of every file that is in both."""
        for old, new in self.new.items():
            if new is not None and (self.out / new).is_file() and not (self.out / new).is_symlink():
                yield old, new

    def named(self, path: str) -> bool:
        """Whether the report lists a file as one that could not be read or parsed."""
        return any(s["file"] == path and s["rule"] == "CHK001" for s in self.report["sites"])

    def is_listed(self, old: str, new: str, line: int) -> bool:
        """Whether a line of an output file comes from a line that the report lists."""
        listed = self.listed.get(old)
        return bool(listed) and not listed.isdisjoint(self._origins(old, new, line))

    def _origins(self, old: str, new: str, line: int) -> range:
        for tag, old_start, old_end, new_start, new_end in self._blocks(old, new):
            if new_start <= line - 1 < new_end:
                if tag == "equal" or old_end - old_start == new_end - new_start:
                    same = old_start + (line - new_start)
                    return range(same, same + 1)
                return range(old_start + 1, old_end + 1)
        return range(0)

    @cache  # noqa: B019 - a Run lives as long as the program
    def _blocks(self, old: str, new: str) -> list[tuple[str, int, int, int, int]]:
        matcher = difflib.SequenceMatcher(
            None, lines_of(self.checkout / old), lines_of(self.out / new), autojunk=False
        )
        return matcher.get_opcodes()

    __hash__ = object.__hash__


def files_below(root: Path) -> list[str]:
    """Files and links below a folder, without git's and Python's own."""
    found: list[str] = []
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(f for f in folders if f not in (".git", "__pycache__"))
        links = [f for f in folders if os.path.islink(os.path.join(folder, f))]
        found += [os.path.relpath(os.path.join(folder, f), root) for f in (*files, *links)]
    return sorted(found)


def text_of(path: Path) -> str | None:
    """A file's text; None for binary data."""
    data = path.read_bytes()
    if b"\0" in data:
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("latin-1")


@cache
def lines_of(path: Path) -> list[str]:
    """A text's lines, split at line feeds alone."""
    return (text_of(path) or "").split("\n")


def digest(root: Path) -> str:
    """A hash of a tree: paths, modes, contents, link targets; git's own folder included."""
    state = hashlib.sha256()
    for folder, folders, files in os.walk(root):
        folders.sort()
        for name in sorted((*files, *folders)):
            path = os.path.join(folder, name)
            status = os.lstat(path)
            state.update(f"{os.path.relpath(path, root)}\0{status.st_mode:o}\0".encode())
            if os.path.islink(path):
                state.update(os.fsencode(os.readlink(path)))
            elif os.path.isfile(path):
                with open(path, "rb") as stream:
                    state.update(hashlib.file_digest(stream, "sha256").digest())
    return state.hexdigest()


def migrate(checkout: Path, upstream: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Call the command line in a process of its own."""
    command = [sys.executable, "-m", "codemods.cli", "run", str(checkout), "--upstream", upstream]
    root = str(Path(__file__).resolve().parents[1])
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    }
    return subprocess.run(
        [*command, *options], capture_output=True, text=True, check=False, env=environment
    )


# The checks ---------------------------------------------------------------------------------------------


def check_parsed(run: Run, status: int, errors: str) -> Check:
    """(i) The run ended well, and every Python file parses or is named."""
    check = Check("no crash, every file parsed or named", "")
    if status not in (0, 1) or "Traceback" in errors:
        check.failures.append(f"exit status {status}: {errors.strip()[-300:]}")
    python = unparsed = 0
    for old, new in run.pairs():
        if not new.endswith((".py", ".pyi")):
            continue
        python += 1
        for root, path in ((run.checkout, old), (run.out, new)):
            try:
                parsed(root / path)
            except (SyntaxError, ValueError) as error:
                unparsed += 1
                if not run.named(old):
                    check.failures.append(f"{path}: {error}, not named")
    crashed = [s for s in run.report["sites"] if "crashed" in s["reason"]]
    check.failures += [f"{s['file']}: {s['reason']}" for s in crashed]
    check.result = f"{python} Python files, {unparsed} unparsable"
    return check


def check_survivors(run: Run) -> Check:
    """(ii) No import, `-m` target or path of the old package on a line that is not listed."""
    check = Check("old imports, -m targets and paths", "")
    counts: Counter[str] = Counter()
    for old, new in run.pairs():
        text = text_of(run.out / new)
        if text is None or "MaxText" not in text:
            continue
        for number, line in enumerate(text.split("\n"), 1):
            if "MaxText" not in line:
                continue
            for kind, pattern in _SURVIVORS.items():
                for match in pattern.finditer(line):
                    pinned = any(
                        p.start() <= match.start() < p.end() for p in _PINNED.finditer(line)
                    )
                    if pinned:
                        counts["in a link to a fixed commit"] += 1
                    elif run.is_listed(old, new, number):
                        counts["listed"] += 1
                    else:
                        shown = line[max(0, match.start() - 60) : match.end() + 60].strip()
                        check.failures.append(f"{new}:{number}: {kind}: {shown}")
    told = "".join(f", {n} {k}" for k, n in sorted(counts.items()))
    check.result = f"{len(check.failures)} unlisted{told}"
    return check


def check_share(run: Run) -> Check:
    """(iii) At most a tenth of all sites is listed."""
    edits, sites = len(run.report["edits"]), len(run.report["sites"])
    share = sites / (edits + sites) if edits + sites else 0.0
    by_rule = Counter(s["rule"] for s in run.report["sites"])
    told = ", ".join(f"{r} {n}" for r, n in by_rule.most_common())
    check = Check(
        "share of sites listed",
        f"{sites} of {edits + sites} = {share:.1%} (aim {MOST_LISTED:.0%}): {told}",
    )
    if share > MOST_LISTED:
        check.failures.append(f"{share:.1%} of the sites are listed")
    check.failures += [
        f"{s['file']}:{s['line']}: {s['rule']} has no reason"
        for s in run.report["sites"]
        if not s["reason"]
    ]
    return check


def check_imports(run: Run) -> tuple[Check, Check]:
    """(iv) Every import of the output's Python files, and every attribute of an imported module, resolves."""
    imports = Check("imports resolve in the output or upstream", "")
    attributes = Check("attributes of imported modules resolve", "")
    trees = Trees([run.out / "src", run.out, run.upstream, run.upstream.parent])
    old_trees = Trees([run.checkout / "src", run.checkout])
    roots = trees.packages() | {"MaxText"}
    seen = uses = listed = 0
    for old, new in run.pairs():
        if not new.endswith(".py") or run.named(old):
            continue
        tree = parsed(run.out / new)
        module = module_of(new)
        broken_before = None
        for node, dotted in imported(tree, module, new.endswith("__init__.py")):
            if dotted.split(".")[0] not in roots:
                continue
            seen += 1
            if trees.has(dotted):
                continue
            if run.is_listed(old, new, node.lineno):
                listed += 1
                continue
            if broken_before is None:
                broken_before = {
                    d
                    for _, d in imported(
                        parsed(run.checkout / old), module_of(old), old.endswith("__init__.py")
                    )
                    if not old_trees.has(d)
                }
            before = " (did not resolve in the checkout either)" if dotted in broken_before else ""
            imports.failures.append(f"{new}:{node.lineno}: {dotted}{before}")
        for node, dotted in module_attributes(tree, trees, roots):
            uses += 1
            if not trees.has(dotted) and not run.is_listed(old, new, node.lineno):
                attributes.failures.append(f"{new}:{node.lineno}: {dotted}")
    imports.result = f"{seen} names, {listed} listed, {len(imports.failures)} unresolved"
    attributes.result = f"{uses} uses, {len(attributes.failures)} unresolved and not listed"
    return imports, attributes


def check_again(run: Run, upstream: str) -> Check:
    """(v) A second run on the output changes nothing."""
    check = Check("second run changes nothing", "")
    again = migrate(run.out, upstream, "--json")
    if again.returncode not in (0, 1):
        check.failures.append(again.stderr.strip()[-300:])
        return check
    report = json.loads(again.stdout)
    check.failures += [
        f"{e['file']}:{e['line']}: {e['rule']}: {e['before'][:60]!r} -> {e['after'][:60]!r}"
        for e in report["edits"]
    ]
    check.failures += [
        f"{f['path']} -> {f['new']} ({f['rule']})" for f in report["files"] if f["new"] != f["path"]
    ]
    check.result = f"{len(report['edits'])} edits, {report['summary']['moved']} moves, {len(report['sites'])} sites"
    return check


def check_prose(run: Run) -> Check:
    """(vi) The product's name in prose is left alone: documents, and comments of Python files."""
    check = Check("prose mentions of MaxText unchanged", "")
    total = 0
    for old, new in run.pairs():
        before, after = (
            prose_mentions(root / path) for root, path in ((run.checkout, old), (run.out, new))
        )
        total += before
        if before != after:
            check.failures.append(f"{new}: {before} before, {after} after")
    check.result = f"{total} mentions, {len(check.failures)} files differ"
    return check


def check_compiled(run: Run) -> Check:
    """(viii) `compileall` of the output."""
    check = Check("compileall of the output", "clean")
    with tempfile.TemporaryDirectory() as cache_folder:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "compileall", "-q", str(run.out)],
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | {"PYTHONPYCACHEPREFIX": cache_folder},
        )
    broken = re.findall(r"Error compiling '([^']+)'", done.stdout)
    old_of = {new: old for old, new in run.pairs()}
    named = 0
    for path in broken:
        new = os.path.relpath(path, run.out)
        if run.named(old_of.get(new, new)):
            named += 1
        else:
            check.failures.append(new)
    if done.returncode and not broken:
        check.failures.append(done.stdout[-300:])
    if broken:
        check.result = f"{len(broken)} files do not compile, {named} of them named"
    return check


# Reading Python -----------------------------------------------------------------------------------------


@cache
def parsed(path: Path) -> ast.Module:
    """A file's tree.

    Raises:
        SyntaxError, ValueError: it is no Python.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(path.read_bytes(), str(path))


def module_of(path: str) -> str:
    """The dotted name of a file by its path in a repository or wheel."""
    dotted = path.removeprefix("src/").removesuffix(".py").replace("/", ".")
    return dotted.removesuffix(".__init__")


def imported(tree: ast.Module, module: str, package: bool) -> Iterator[tuple[ast.stmt, str]]:
    """Every module or name that a file imports, as a dotted name; relative ones made absolute."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                parts = parts[: len(parts) - node.level + package]
                base = ".".join(filter(None, (*parts, base)))
            for alias in node.names:
                yield node, base if alias.name == "*" else f"{base}.{alias.name}"


def module_attributes(
    tree: ast.Module, trees: Trees, roots: set[str]
) -> Iterator[tuple[ast.Attribute, str]]:
    """`name.attribute` uses where an import alone binds `name` in the whole file, to one module."""
    bound: dict[str, set[str]] = {}
    rebound: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.asname or alias.name.split(".")[0]
                bound.setdefault(name, set()).add(alias.name if alias.asname else name)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                bound.setdefault(alias.asname or alias.name, set()).add(
                    f"{node.module}.{alias.name}"
                )
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            rebound.add(node.id)
        elif isinstance(node, ast.arg):
            rebound.add(node.arg)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) or (
            isinstance(node, ast.ExceptHandler) and node.name
        ):
            rebound.add(node.name)
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)):
            continue
        modules = bound.get(node.value.id, set())
        if node.value.id in rebound or len(modules) != 1 or node.attr.startswith("__"):
            continue
        module = next(iter(modules))
        if module.split(".")[0] in roots and trees.is_module(module):
            yield node, f"{module}.{node.attr}"


class Trees:
    """Finds modules and their names in folders that hold packages, by reading them."""

    def __init__(self, roots: list[Path]) -> None:
        self.roots = [r for r in roots if r.is_dir()]

    def packages(self) -> set[str]:
        """Top-level packages and folders of Python files."""
        return {
            child.name
            for root in self.roots
            for child in root.iterdir()
            if child.is_dir() and any(child.glob("**/*.py"))
        }

    def has(self, dotted: str) -> bool:
        """Whether a dotted name is a module or a name of one."""
        module, _, name = dotted.rpartition(".")
        return self.is_module(dotted) or (bool(module) and self._defines(module, name, frozenset()))

    def is_module(self, dotted: str) -> bool:
        return any(self._places(dotted)) or any(
            (root / dotted.replace(".", "/")).is_dir() for root in self.roots
        )

    def _places(self, dotted: str) -> Iterator[Path]:
        for root in self.roots:
            base = root / dotted.replace(".", "/")
            for path in (base.with_name(base.name + ".py"), base / "__init__.py"):
                if path.is_file():
                    yield path

    def _defines(self, module: str, name: str, seen: frozenset[str]) -> bool:
        if module in seen:
            return False
        for path in self._places(module):
            names, stars = bindings(path)
            if name in names or "__getattr__" in names:
                return True
            package = path.name == "__init__.py"
            for level, star in stars:
                parts = module.split(".")
                base = ".".join(parts[: len(parts) - level + package]) if level else ""
                if self._defines(".".join(filter(None, (base, star))), name, seen | {module}):
                    return True
        return False


@cache
def bindings(path: Path) -> tuple[frozenset[str], tuple[tuple[int, str], ...]]:
    """The names that a module's own level binds, and its star imports as (level, module)."""
    try:
        tree = parsed(path)
    except (SyntaxError, ValueError):
        return frozenset(), ()
    names: set[str] = set()
    stars: list[tuple[int, str]] = []
    stack: list[ast.AST] = list(tree.body)
    while stack:
        node = stack.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
            continue
        if isinstance(node, ast.Import):
            names.update(a.asname or a.name.split(".")[0] for a in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.update(a.asname or a.name for a in node.names if a.name != "*")
            stars += [(node.level, node.module or "") for a in node.names if a.name == "*"]
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        if not isinstance(
            node, (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
        ):
            stack.extend(ast.iter_child_nodes(node))
    return frozenset(names), tuple(stars)


def prose_mentions(path: Path) -> int:
    """How often a text has the product's name in prose; of Python files only the comments count."""
    text = text_of(path)
    if text is None or "MaxText" not in text:
        return 0
    if path.suffix != ".py":
        return len(_PROSE.findall(text))
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (tokenize.TokenError, SyntaxError):
        return 0
    return sum(len(_PROSE.findall(t.string)) for t in tokens if t.type == tokenize.COMMENT)


def main() -> int:
    """Run all checks and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--upstream", required=True, metavar="DIR|VERSION")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the migrated tree here")
    options = parser.parse_args()
    upstream = resolve_upstream(options.upstream)
    with tempfile.TemporaryDirectory() as scratch:
        out = options.keep or Path(scratch) / "out"
        before = digest(options.checkout)
        done = migrate(options.checkout, options.upstream, "--out", str(out), "--no-color")
        if not (out / "report.json").is_file():
            print(done.stderr.strip()[-2000:], file=sys.stderr)
            return 2
        after = digest(options.checkout)
        report = json.loads((out / "report.json").read_text(encoding="utf-8"))
        run = Run(options.checkout, out, upstream.python_root, report)
        checks = [
            check_parsed(run, done.returncode, done.stderr),
            check_survivors(run),
            check_share(run),
            *check_imports(run),
            check_again(run, options.upstream),
            check_prose(run),
            Check(
                "input tree byte-identical",
                before[:12],
                [] if before == after else [f"the tree's hash is {after[:12]} after the run"],
            ),
            check_compiled(run),
        ]
    summary = report["summary"]
    print(
        f"{options.checkout} -> {options.upstream}: {summary['files']} files, {summary['moved']} moved, "
        f"{summary['rewritten']} rewritten, {summary['edits']} edits, {summary['sites']} sites; "
        f"map {report['map']['base']} -> {report['map']['target']}"
    )
    for check in checks:
        print(f"  {'FAIL' if check.failures else 'ok':4}  {check.name}: {check.result}")
        for failure in check.failures:
            print(f"          {failure}")
    return 1 if any(c.failures for c in checks) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as mistake:
        print(f"error: {mistake}", file=sys.stderr)
        sys.exit(2)
