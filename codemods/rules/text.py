"""TXT: old names in text files, and paths and commands inside Python source."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator

from codemods.engine.context import TextFile
from codemods.engine.project import NEW_ROOT, OLD_ROOT
from codemods.engine.tree import Span
from codemods.rules import embedded, shell
from codemods.rules.base import Example, Rule
from codemods.rules.embedded import Piece
from codemods.rules.python_paths import python
from codemods.rules.references import Scanner

__all__ = ["RULES", "WORDS", "python", "text"]

# A file that holds none of these is not looked at.
WORDS: tuple[bytes, ...] = (
    b"MaxText",
    b"MAXTEXT_",
    b"al_model",
    b"ALModel",
    b"argus_dump_",
    b"tests/",
    b"tests.",
    b"end_to_end",
    b"dependencies/",
    b"pedagogical_examples",
    b"local_datasets",
    b"scripts/",
    b"tools/",
    b"__file__",
    b"](",
)

RULES = (
    Rule(
        "TXT001",
        "safe",
        'modules that are run: `python3 -m MaxText.x`, `"module": "MaxText.x"`',
        "A module that the old tree does not have, or whose new place is not certain, is listed.",
        (
            Example(
                "python3 -m MaxText.train src/MaxText/configs/base.yml run_name=r\n",
                "python3 -m maxtext.trainers.pre_train.train src/maxtext/configs/base.yml run_name=r\n",
                "run.sh",
            ),
            Example(
                "python3 -m MaxText.no_such_module\n",
                "python3 -m MaxText.no_such_module\n",
                "run.sh",
                listed=("MaxText.no_such_module",),
            ),
        ),
    ),
    Rule(
        "TXT002",
        "safe",
        "paths into the repository that the map moves",
        "With any folder or variable in front. `MaxText/…` without `src/` keeps that form. A path that "
        "the old tree does not have is listed; `MaxText/JetStream` and other prose stays.",
        (
            Example(
                "COPY src/MaxText/configs/sft.yml /app/\n",
                "COPY src/maxtext/configs/post_train/sft.yml /app/\n",
                "Dockerfile",
            ),
            Example(
                "See `src/MaxText/layers/deepseek.py`; MaxText is fast.\n",
                "See `src/maxtext/models/deepseek.py`; MaxText is fast.\n",
                "docs/x.md",
            ),
        ),
    ),
    Rule(
        "TXT003",
        "safe",
        "paths behind the variables of globals.py, with and without shell defaults",
        "`MAXTEXT_PKG_DIR`, `MAXTEXT_ASSETS_ROOT`, … keep their names; what changes is the path behind "
        "them and the default inside them.",
        (
            Example(
                'python3 x.py "${MAXTEXT_PKG_DIR:-${MAXTEXT_REPO_ROOT:-$PWD}/src/MaxText}"/configs/sft.yml\n',
                'python3 x.py "${MAXTEXT_PKG_DIR:-${MAXTEXT_REPO_ROOT:-$PWD}/src/maxtext}"'
                "/configs/post_train/sft.yml\n",
                "run.sh",
            ),
        ),
    ),
    Rule(
        "TXT004",
        "safe",
        "URLs of files on the repository's main branch",
        "main has the new layout. A URL that names a commit, a tag or another branch stays.",
        (
            Example(
                "https://github.com/AI-Hypercomputer/maxtext/blob/main/src/MaxText/train.py\n"
                "https://github.com/AI-Hypercomputer/maxtext/blob/28e5097a/src/MaxText/train.py\n",
                "https://github.com/AI-Hypercomputer/maxtext/blob/main/src/maxtext/trainers/pre_train/train.py\n"
                "https://github.com/AI-Hypercomputer/maxtext/blob/28e5097a/src/MaxText/train.py\n",
                "docs/x.md",
            ),
        ),
    ),
    Rule(
        "TXT005",
        "safe",
        "dotted names in documents, comments and docstrings",
        examples=(
            Example(
                "`MaxText.layers.moe.RoutedMoE` is part of MaxText.\n",
                "`maxtext.layers.moe.RoutedMoE` is part of MaxText.\n",
                "docs/x.md",
            ),
        ),
    ),
    Rule(
        "TXT006",
        "review",
        "paths that follow from a folder (a pattern, a split folder), and stale ones",
        "Rewritten where all that the folder or pattern holds moved to one place, where most of a split "
        "folder did, and where a file or module that the old tree does not have can only mean the one "
        "file of that name; listed otherwise.",
        (
            Example(
                "ls src/MaxText/configs/quantization/${NAME}.json\n",
                "ls src/maxtext/configs/quantization/${NAME}.json\n",
                "run.sh",
            ),
        ),
    ),
    Rule(
        "TXT007",
        "safe",
        "relative links between documents, when either end moves",
        examples=(
            Example(
                "[train](../src/MaxText/train.py)\n",
                "[train](../src/maxtext/trainers/pre_train/train.py)\n",
                "docs/x.md",
            ),
        ),
    ),
    Rule(
        "TXT008",
        "safe",
        "packaging and tool tables: package lists, package data, coverage sources",
        examples=(
            Example(
                '[tool.coverage.run]\nsource = ["MaxText"]\n',
                '[tool.coverage.run]\nsource = ["maxtext"]\n',
                "pyproject.toml",
            ),
        ),
    ),
    Rule(
        "TXT009",
        "report",
        "embedded Python (heredoc, code block, notebook cell) that cannot be parsed",
        "Its paths and dotted names are rewritten as in any text; its imports are listed.",
        (
            Example(
                "```python\nfrom MaxText import (\n```\n",
                "```python\nfrom MaxText import (\n```\n",
                "docs/x.md",
                listed=("from MaxText import (",),
            ),
        ),
    ),
    Rule(
        "TXT010",
        "safe",
        "paths that Python puts together: os.path.join, pathlib, f-strings",
        "From the variables of globals.py, where every part is a literal. Parts that are only known at "
        "run time are listed when what they can mean went to different places.",
        (
            Example(
                "import os\n\npath = os.path.join(MAXTEXT_PKG_DIR, 'configs', 'sft.yml')\n",
                "import os\n\npath = os.path.join(MAXTEXT_PKG_DIR, 'configs', 'post_train', 'sft.yml')\n",
            ),
        ),
    ),
    Rule(
        "TXT011",
        "safe",
        "the model's name in commands: `model_name=al_model`, `decoder_block=al_model`",
        examples=(
            Example(
                "python3 -m MaxText.train model_name=al_model\n",
                "python3 -m maxtext.trainers.pre_train.train model_name=ling2\n",
                "run.sh",
            ),
        ),
    ),
    Rule(
        "TXT012",
        "review",
        "AL names and file names in text",
        "By the explicit table only. A name made from `al_model` that may belong to data outside the "
        "checkout is listed.",
        (
            Example(
                "The `ALDenseLayer` of al_model.\n",
                "The `Ling2DecoderLayer` of ling2.\n",
                "docs/x.md",
            ),
        ),
    ),
    Rule(
        "TXT013",
        "review",
        "`-m MaxText.$VARIABLE`, where all values the file gives the variable are in one new package",
        examples=(
            Example(
                "EXECUTABLE=train # or train_compile\npython3 -m MaxText.$EXECUTABLE\n",
                "EXECUTABLE=train # or train_compile\n"
                "python3 -m maxtext.trainers.pre_train.$EXECUTABLE\n",
                "run.sh",
            ),
        ),
    ),
    Rule(
        "TXT014",
        "safe",
        "`argus_dump_*` parameters on command lines and in argument lists are removed",
        "Line continuations stay right. What may set a shell variable is listed.",
        (
            Example(
                "python3 -m MaxText.train \\\n  steps=10 \\\n  argus_dump_enabled=True\n",
                "python3 -m maxtext.trainers.pre_train.train \\\n  steps=10\n",
                "run.sh",
            ),
        ),
    ),
    Rule(
        "TXT015",
        "review",
        "paths from `__file__`: the number of folders up, and the path from there",
        examples=(
            Example(
                "import os\n\nROOT = os.path.dirname(os.path.dirname(__file__))\n",
                "import os\n\nROOT = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))\n",
                "tests/moe_test.py",
                files={},
            ),
            Example(
                'import os\n\nPKG = os.environ.get("MAXTEXT_PKG_DIR", os.path.dirname(__file__))\n',
                'import os\n\nPKG = os.environ.get("MAXTEXT_PKG_DIR", os.path.dirname(__file__))\n',
                "src/MaxText/globals.py",
                files={},
                listed=("os.path.dirname(__file__)",),
            ),
        ),
    ),
    Rule(
        "TXT016",
        "report",
        "paths that are put together at run time from parts that cannot be proven",
        examples=(
            Example(
                'path = "src/MaxText/" + name\n',
                'path = "src/MaxText/" + name\n',
                listed=('"src/MaxText/" + name',),
            ),
        ),
    ),
)

_DOCUMENT = re.compile(r"\.(?:md|rst|markdown|mdx|ipynb)\Z", re.IGNORECASE)
_STRUCTURED = re.compile(r"\.(?:ya?ml|json)\Z")  # their keys are the configuration rules' part
_PACKAGING = re.compile(r"\.(?:toml|cfg|ini)\Z|(?:\A|/)(?:\.coveragerc|MANIFEST\.in|tox\.ini)\Z")

_FENCE = re.compile(
    r"^(?P<indent>[ \t>]*)(?P<fence>`{3,}|~{3,})[ \t]*\{?(?:code-block|code|code-cell)?\}?[ \t]*"
    r"(?:python3?|py|ipython3?|pycon)\b[^\n]*\n(?P<body>.*?)^[ \t>]*(?P=fence)[ \t]*$",
    re.MULTILINE | re.DOTALL | re.IGNORECASE,
)
_DIRECTIVE = re.compile(
    r"^(?P<indent>[ \t]*)\.\. (?:code-block|code|sourcecode):: *(?:python3?|py)[ \t]*\n"
    r"(?:(?P=indent)[ \t]+:[^\n]*\n)*[ \t]*\n(?P<body>(?:(?P=indent)[ \t]+\S[^\n]*\n?|[ \t]*\n)+)",
    re.MULTILINE,
)
_IMPORT_LINE = re.compile(
    r"(?:^[ \t]*(?:[#>*-]+[ \t]+)?(?:>>> )?|`)"
    r"(?P<code>(?:from[ \t]+(?:src\.)?(?:MaxText|ALModel)[\w.]*[ \t]+import[ \t]+(?:\([^()`]*\)|[\w., \t*]+)"
    r"|import[ \t]+(?:MaxText|ALModel)[\w.]*(?:[ \t]+as[ \t]+\w+)?))",
    re.MULTILINE,
)
_LEAD = re.compile(r"[ \t]*(?:[#>*-]+[ \t]+)?(?:>>> )?")
_LINE_END = re.compile(r"[ \t]*(?:\r?\n|\Z)")
_LINK = re.compile(
    r"\]\(<?(?P<md>(?![a-z][a-z+.-]*:|[#/$])[^)\s#?<>{}]+)"
    r"|(?:src|href)=[\"'](?P<html>(?![a-z][a-z+.-]*:|[#/$])[^\"'\s#?<>{}]+)"
    r"|^[ \t]*\.\. (?:image|figure|include|literalinclude|csv-table)::[ \t]+(?P<rst>(?!https?:)[^\s:/][^\s]*)"
    r"|^[ \t]*(?:`{3,}|:{3,})\{(?:include|literalinclude|image|figure)\}[ \t]+(?P<myst>(?!https?:)[^\s:/][^\s]*)"
    r"|^\[[^\]\n]+\]:[ \t]+(?P<ref>(?![a-z][a-z+.-]*:|[#/$])[^\s#?<>{}]+)",
    re.MULTILINE,
)
_TABLE_KEY = re.compile(r"(?:^|[{,])[ \t]*[\"']?(?P<key>MaxText)[\"']?(?=[ \t]*=)", re.MULTILINE)
_TABLE_VALUE = re.compile(r"(?<=[\"'])MaxText(?=(?:\*|\.\*)?[\"'])")
_PLAIN_VALUE = re.compile(
    r"^[ \t]*(?:source|packages|include|known_first_party|package|cov|testpaths)[ \t]*=[ \t]*(?:\n[ \t]+)?"
    r"(?P<value>MaxText)\b(?![./])",
    re.MULTILINE,
)
_OPTION = re.compile(
    r"(?:--(?:cov|source|pyargs|include-package)[= \t]|\bmypy\b[^\n;&|]*[ \t](?:-p|--package)[ \t]+)"
    r"[\"']?(?P<package>MaxText)(?![\w./-])"
)
_PROSE_KEYS = re.compile(
    r"^[ \t]*(?:name|description|title|authors?|maintainers?|keywords|project)[ \t]*=", re.MULTILINE
)
_INCLUDE = re.compile(
    r"^[ \t]*(?:graft|recursive-include|prune|recursive-exclude)[ \t]+(?P<name>MaxText)\b(?!/)",
    re.MULTILINE,
)


def text(file: TextFile) -> None:
    """Rewrite or list the old names of a text file."""
    scan_text(file, document=_DOCUMENT.search(file.path) is not None)


def scan_text(
    file: TextFile, document: bool, roots: dict[str, tuple[str, str]] | None = None
) -> None:
    """The rules for one text that is not a notebook.

    Args:
        document: whether it is a document with links and code blocks.
        roots: meanings of MAXTEXT_* variables that hold here (see `Scanner`).
    """
    scanner = Scanner(file, document)
    scanner.roots.update(roots or {})
    regions = _python_regions(file.text, document)
    for number, (piece, span) in enumerate(regions):
        if not _concerns(file, piece.text) or scanner.claims.holds(span[0]):
            continue
        problem = embedded.run(file, piece, f"python{number}")
        if problem is None:
            if piece.masks:
                scanner.scan(*span, only_variables=True)
            scanner.claims.add(*span)
        elif re.search(r"\b(?:from|import)[ \t]+(?:MaxText|ALModel)", piece.text):
            for line in re.finditer(
                r"[^\n]*\b(?:from|import)[ \t]+(?:MaxText|ALModel)[^\n]*", piece.text
            ):
                if _IMPORT_LINE.search(line.group()) is None:
                    file.site(
                        "TXT009",
                        piece.host_span(*line.span()),
                        f"this Python cannot be parsed ({problem.reason}, line {problem.line} of it)",
                        "migrate it by hand",
                    )
                    scanner.claims.add(*piece.host_span(*line.span()))
    for found in _IMPORT_LINE.finditer(file.text):
        start, stop = found.span("code")
        stop -= len(found["code"]) - len(found["code"].rstrip(" \t,."))
        if scanner.claims.holds(start):
            continue
        lead = file.text[file.text.rfind("\n", 0, start) + 1 : start]
        alone = _LEAD.fullmatch(lead) is not None and _LINE_END.match(file.text, stop) is not None
        piece = Piece(prefix=lead, one_line=not alone)
        piece.add(file.text[start:stop], start)
        if embedded.run(file, piece, f"import{start}") is None:
            scanner.claims.add(start, stop)
    if document:
        _links(scanner)
    if _PACKAGING.search(file.path):
        _packaging(scanner)
    for found in _OPTION.finditer(file.text):
        file.edit("TXT008", found.span("package"), NEW_ROOT)
        scanner.claims.add(*found.span("package"))
    scanner.scan(0, len(file.text))
    if "argus_dump_" in file.text:
        keys = _STRUCTURED.search(file.path) is None
        shell.dump_parameters(file, "TXT014", 0, len(file.text), keys)


def _concerns(file: TextFile, code: str) -> bool:
    """Whether a piece of Python can hold anything to rewrite."""
    return any(word.decode() in code for word in WORDS[:-1]) or any(
        name in code
        for name in ("dump_tensor", "dumpable", "Dumper", "layer_group_size", "moe_layer_freq")
    )


def _python_regions(text: str, document: bool) -> Iterator[tuple[Piece, Span]]:
    if document:
        for pattern in (_FENCE, _DIRECTIVE):
            for found in pattern.finditer(text):
                yield _block(text, found.span("body")), found.span("body")
    if "python" in text:
        yield from shell.python_pieces(text)


def _block(text: str, span: Span) -> Piece:
    """The code of an indented block; of a doctest, its input only."""
    body = text[span[0] : span[1]]
    lines = body.splitlines(keepends=True)
    doctest = any(
        line.lstrip(" \t>").startswith(">>> ") or line.lstrip().startswith(">>> ") for line in lines
    )
    quoted = (
        all(line.lstrip(" \t").startswith(">") for line in lines if line.strip()) and not doctest
    )
    indents = [len(line) - len(line.lstrip(" \t")) for line in lines if line.strip()]
    indent = min(indents, default=0)
    first = next((line for line in lines if line.strip()), "")
    prefix = first[:indent] + (">>> " if doctest else "> " if quoted else "")
    piece, at = Piece(prefix=prefix), span[0]
    for line in lines:
        kept = line[indent:] if line.strip() else "\n"
        if doctest:
            prompt = re.match(r">>> |\.\.\. |>>>$|\.\.\.$", kept)
            kept = kept[prompt.end() :] if prompt else "\n"
        elif quoted:
            kept = re.sub(r"\A>[ ]?", "", kept)
        piece.add(kept, at + len(line) - len(kept))
        at += len(line)
    return piece


def _links(scanner: Scanner) -> None:
    """Links that lead from the document to an old file."""
    here = posixpath.dirname(scanner.project.canonical(scanner.file.path))
    for found in _LINK.finditer(scanner.text):
        assert found.lastgroup is not None
        start, stop = found.span(found.lastgroup)
        if scanner.claims.holds(start):
            continue
        target = posixpath.normpath(posixpath.join(here, scanner.text[start:stop]))
        if not target.startswith("..") and scanner.link(start, stop, target):
            scanner.claims.add(start, stop)


def _packaging(scanner: Scanner) -> None:
    """The package's bare name where a tool reads it as one."""
    file = scanner.file
    for pattern in (_TABLE_KEY, _TABLE_VALUE, _PLAIN_VALUE, _INCLUDE):
        for found in pattern.finditer(file.text):
            start = found.start(found.lastgroup) if found.lastgroup else found.start()
            line = file.text[file.text.rfind("\n", 0, start) + 1 : start]
            if _PROSE_KEYS.match(line) or line.lstrip().startswith("#"):
                continue
            span = (start, start + len(OLD_ROOT))
            file.edit("TXT008", span, NEW_ROOT)
            scanner.claims.add(*span)
