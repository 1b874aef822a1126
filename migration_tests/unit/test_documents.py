"""What the documents say of the rules is what the rules are."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from codemods.rules import documented_rules

ROOT = Path(__file__).parents[2]


def test_rule_table_is_current() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts/rule_table.py"), "--check"], check=False, cwd=ROOT
    )
    assert done.returncode == 0, "run scripts/rule_table.py"


def test_rules_named_in_documents_exist() -> None:
    for name in ("README.md", "MIGRATION.md", "CHANGELOG.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        named = set(re.findall(r"\b(?:MAP|IMP|REN|DMP|CFG|TXT|API|CHK|INT)\d{3}\b", text))
        assert named <= set(documented_rules()), name
