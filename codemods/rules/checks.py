"""CHK: what the engine itself checks and lists; always on."""

from __future__ import annotations

from codemods.rules.base import Example, Rule

RULES = (
    Rule(
        "CHK001",
        "report",
        "a file that cannot be read or parsed is left byte for byte",
        examples=(Example("import MaxText (\n", "import MaxText (\n", listed=("import",)),),
    ),
    Rule(
        "CHK002",
        "report",
        "two rules want to change the same text: the wider change stands",
    ),
    Rule(
        "CHK003",
        "report",
        "the rewritten file would no longer parse, so it is left byte for byte",
    ),
    Rule(
        "CHK004",
        "report",
        "a link out of the tree or a submodule is left as it is",
    ),
    Rule(
        "CHK005",
        "report",
        "an old name is still there after all rules",
        "The package's name in code, a path or an `-m` target, an AL name, a dump hook. A URL to a fixed "
        "commit is none of these, nor is the product's name in prose.",
    ),
    Rule(
        "CHK006",
        "report",
        "an import of the output that resolves neither in the upstream tree nor in the output",
    ),
)
