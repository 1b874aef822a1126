"""Code that has nothing to do with MaxText is left alone; the whole of it: scripts/check_stdlib.py."""

from __future__ import annotations

import random

from scripts.check_stdlib import all_files, check

SAMPLE, SEED = 150, 20260116
# Large files are left to the whole run, so that the sample takes the same time everywhere.
LARGEST = 100_000


def test_rules_leave_a_sample_of_the_standard_library_and_site_packages_alone() -> None:
    files = [f for f in all_files() if f.stat().st_size <= LARGEST]
    sample = random.Random(SEED).sample(files, SAMPLE)
    outcome = check(sample, jobs=2)
    assert len(outcome.seen) == SAMPLE
    assert outcome.faults == []
    assert [p for p, s in outcome.seen.items() if s.valid] == []
    assert (
        sum(s.python and not s.excluded and not s.unparsable for s in outcome.seen.values())
        > SAMPLE / 2
    )
