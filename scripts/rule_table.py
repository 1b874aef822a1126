"""Write the table of every rule into MIGRATION.md, between its two markers.

    python scripts/rule_table.py [--check]

With --check nothing is written; the exit status is 1 if the table is not the one of the rules.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from codemods.rules import documented_rules

DOCUMENT = Path(__file__).parents[1] / "MIGRATION.md"
START, END = "<!-- rules: start -->", "<!-- rules: end -->"


def table() -> str:
    """The table as Markdown: id, tier, what the rule does and under which conditions."""
    rows = ["| rule | tier | what it does |", "|---|---|---|"]
    for rule in documented_rules().values():
        text = f"{rule.summary.rstrip('.')}. {rule.detail}" if rule.detail else rule.summary
        rows.append(
            f"| {rule.id} | {rule.tier} | {' '.join(text.split()).replace('|', '&#124;')} |"
        )
    return "\n".join(rows)


def with_table(text: str) -> str:
    """The document with the table of now.

    Raises:
        ValueError: a marker is missing.
    """
    before, _, rest = text.partition(START)
    _, marker, after = rest.partition(END)
    if not marker:
        raise ValueError(f"{DOCUMENT.name}: the markers {START} and {END} are missing")
    return f"{before}{START}\n{table()}\n{END}{after}"


def main() -> int:
    """Run the script."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    arguments = parser.parse_args()
    text = DOCUMENT.read_text(encoding="utf-8")
    new = with_table(text)
    if arguments.check:
        return int(new != text)
    DOCUMENT.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
