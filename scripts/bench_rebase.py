"""Carry real branches with `rebase`, beside plain `git merge` and `git rebase`, and print what each leaves to a person.

    python scripts/bench_rebase.py UPSTREAM_GIT FORK_GIT [--only BRANCH] [--target REV] [--out FILE]

UPSTREAM_GIT is a repository of AI-Hypercomputer/maxtext with its branch ds32_flash, FORK_GIT one of primatrix/maxtext.
Neither is written to. A fork hunk (`git diff -U3 base tip`) needs a person when it lies in a file whose conflict is
one-sided or that ended at a dead path; in a file with content conflicts as many hunks count as there are regions.
After a conflict both git's and this program's commit-by-commit runs go on with upstream's side of it.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from codemods.rebase import page
from codemods.rebase.ledger import hunks
from codemods.rebase.plan import Branch, open_branch
from codemods.rebase.session import Choices, planned
from codemods.rebase.store import Entry, Store, Tree, git
from codemods.rebase.transform import write_tree
from scripts.judge_rebase import Modules, Verdict, judge, judge_file

TARGETS = ("e591f30cbbf217ed67ef71263ec0538239f9c3b8", "1e97f2e9839c677504d31c8e486efcbb3712de1e")
BRANCHES = (("fork main", "fork", "main"), ("feat/kda", "fork", "feat/kda"), ("ds32_flash", "upstream", "ds32_flash"))  # fmt: skip
_MARKER = re.compile(rb"^<<<<<<< ", re.MULTILINE)
_STALE = re.compile(rb"^[ \t]*(?:from MaxText[. ]|import MaxText\b)", re.MULTILINE)


@dataclass
class Row:
    """What one way of carrying a branch leaves.

    Attributes:
        files: files in conflict.
        regions: places in them.
        one_sided: conflicts where one side has no file.
        dead: files of the fork at paths that upstream has left.
        stale: import lines of the old package that upstream's tree does not have.
        unresolved: imports of changed files that resolve nowhere.
        person: fork hunks that need a person.
        hunks: all of them.
        seconds: how long it took.
        note: the rest.
    """

    files: int = 0
    regions: int = 0
    one_sided: int = 0
    dead: int = 0
    stale: int = 0
    unresolved: int = 0
    person: int = 0
    hunks: int = 0
    seconds: float = 0.0
    note: str = ""
    conflicts: dict[str, int] = field(default_factory=dict)


def plain_merge(store: Store, ours: str, theirs: str) -> tuple[Tree, dict[str, tuple[str, ...]]]:
    """`git merge` without a work tree: the files, and for each in conflict the contents of its stages."""
    shown = store.run(
        "merge-tree", "--write-tree", "-z", "--no-messages", ours, theirs, accept=(0, 1)
    )
    tree, *records = shown.decode("utf-8", "surrogateescape").rstrip("\0").split("\0")
    stages: dict[str, dict[str, str]] = {}
    for record in records:
        meta, _, path = record.partition("\t")
        _, blob, stage = meta.split()
        stages.setdefault(path, {})[stage] = blob
    return dict(store.entries(tree)), {
        path: tuple(found.get(k, "") for k in "123") for path, found in stages.items()
    }


def count(
    store: Store, branch: Branch, tree: Tree, conflicts: dict[str, tuple[str, ...]], folder: Path
) -> Row:
    """The row of a merged tree."""
    row = Row()
    upstream, tip = store.entries(branch.onto), store.entries(branch.tip)
    per_file = Counter(h.path for h in hunks(store, branch.base, branch.tip))
    row.hunks = per_file.total()
    by_blob = {tip[p].blob: p for p in per_file if p in tip}
    counted: set[str] = set()
    for path, stages in conflicts.items():
        row.files += 1
        origin = by_blob.get(stages[2], path)
        entry = tree.get(path)
        regions = len(_MARKER.findall(store.content(entry) or b"")) if entry else 0
        row.regions += regions
        counted.add(origin)
        if "" in stages[1:]:
            row.one_sided += 1
            row.person += per_file[origin]
        else:
            row.person += min(max(regions, 1), per_file[origin] or 1)
    for path in per_file:
        if path.startswith("src/MaxText/") and path in tree and path not in upstream:
            row.dead += 1
            row.person += 0 if path in counted else per_file[path]
    _imports(store, branch, tree, folder, row)
    return row


def _imports(store: Store, branch: Branch, tree: Tree, folder: Path, row: Row) -> None:
    upstream = store.entries(branch.onto)
    write_tree(store, branch.onto, folder)
    changed = [p for p, e in tree.items() if p.endswith(".py") and upstream.get(p) != e]
    for path in changed:
        content = store.content(tree[path]) or b""
        known = store.content(upstream.get(path)) or b""
        row.stale += max(0, len(_STALE.findall(content)) - len(_STALE.findall(known)))
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    verdict, modules = Verdict(), Modules(folder)
    for path in changed:
        judge_file(folder / path, folder, modules, verdict)
    row.unresolved = len(verdict.unresolved)


def by_merge(store: Store, branch: Branch, folder: Path) -> Row:
    """Plain `git merge`."""
    begun = time.monotonic()
    base = store.present(branch.base)
    tree, conflicts = plain_merge(
        store, store.present(branch.onto, base), store.present(branch.tip, base)
    )
    seconds = time.monotonic() - begun
    row = count(store, branch, tree, conflicts, folder)
    row.seconds = seconds
    return row


def by_rebase(store: Store, branch: Branch, folder: Path) -> Row:
    """Plain `git rebase`: each commit that is no merge, picked onto the result so far."""
    begun = time.monotonic()
    listed = store.text(
        "rev-list", "--topo-order", "--reverse", "--no-merges", branch.tip, f"^{branch.onto}"
    ).split()
    tree, all_conflicts, stops = store.entries(branch.onto), dict[str, tuple[str, ...]](), 0
    marked: Tree = {}
    for commit in listed:
        parent = store.parents(commit)[0]
        root = store.present(parent)
        ours, theirs = store.present(store.write_tree(tree), root), store.present(commit, root)
        merged, conflicts = plain_merge(store, ours, theirs)
        stops += bool(conflicts)
        for path, stages in conflicts.items():
            if path in merged:
                marked[path] = merged.pop(path)
            if stages[1]:
                merged[path] = Entry("100644", stages[1])
        tip = store.entries(branch.tip)
        last = {tip[p].blob: p for p in tip}
        names = {p: last.get(s[2], p) for p, s in conflicts.items()}
        all_conflicts |= {
            p: (s[0], s[1], tip[names[p]].blob if names[p] in tip and s[2] else s[2])
            for p, s in conflicts.items()
        }
        tree = merged
    seconds = time.monotonic() - begun
    row = count(store, branch, tree | marked, all_conflicts, folder)
    row.seconds, row.note = seconds, f"{stops} of {len(listed)} commits stop"
    return row


def by_us(branch: Branch, folder: Path, *, squash: bool) -> tuple[Row, Verdict]:
    """This program, and the judge on what it resolved."""
    begun = time.monotonic()
    with planned(branch, Choices(squash=squash), lambda stage, done, total: None) as (
        outlook,
        store,
    ):
        seconds = time.monotonic() - begun
        row = Row(seconds=seconds)
        upstream, folder_up = store.entries(branch.onto), folder / "upstream"
        per_file = Counter(a.hunk.path for a in outlook.accounts)
        row.hunks = per_file.total()
        files: dict[str, int] = {}
        for step in outlook.steps:
            for conflict in step.conflicts:
                files[conflict.origin] = files.get(conflict.origin, 0) + conflict.regions
                row.one_sided += conflict.one_sided
                if conflict.one_sided:
                    files[conflict.origin] = per_file[conflict.origin] or 1
        row.files, row.regions = len(files), sum(files.values())
        row.person = sum(min(n, per_file[p] or 1) for p, n in files.items())
        for account in outlook.accounts:
            path = account.where
            row.dead += (
                path.startswith("src/MaxText/") and path in outlook.tree and path not in upstream
            )
        _imports(store, branch, outlook.tree, folder / "tree", row)
        write_tree(store, branch.onto, folder_up)
        report = page.as_data(store, outlook)
        verdict = judge(report, folder / "tree", folder_up)
        statuses = ", ".join(f"{n} {s}" for s, n in outlook.counts().most_common())
        stops = sum(bool(s.conflicts) for s in outlook.steps)
        row.note = (
            f"{stops} of {len(outlook.steps)} commits stop; {verdict.regions} regions resolved, "
            f"{verdict.comments} comment lines gave way; {statuses}"
        )
        (folder / "report.json").write_text(json.dumps(report), encoding="utf-8")
        return row, verdict


def main() -> int:
    """Measure; the exit status is 1 if the judge finds a fault or a hunk is lost."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("upstream", type=Path)
    parser.add_argument("fork", type=Path)
    parser.add_argument("--only", help="one branch")
    parser.add_argument("--target", default="", help="the first digits of one target")
    parser.add_argument("--out", type=Path, help="write the rows as JSON")
    arguments = parser.parse_args()
    faults: list[str] = []
    rows: list[dict[str, object]] = []
    total: Counter[str] = Counter()
    everything: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="bench-rebase-") as scratch:
        both = Path(scratch) / "both"
        git(Path(scratch), "init", "--quiet", str(both))
        places = {"upstream": arguments.upstream.resolve(), "fork": arguments.fork.resolve()}
        folders = []
        for place in places.values():
            objects = git(place, "rev-parse", "--git-path", "objects").decode().strip()
            folders.append(str((place / objects).resolve()))
        info = both / ".git/objects/info"
        info.mkdir(parents=True, exist_ok=True)
        (info / "alternates").write_text("\n".join(folders) + "\n", encoding="utf-8")
        for label, where, ref in BRANCHES:
            if arguments.only not in (None, label):
                continue
            tip = git(places[where], "rev-parse", f"refs/heads/{ref}").decode().strip()
            git(both, "update-ref", f"refs/heads/{where}/{ref}", tip)
            for target in (t for t in TARGETS if t.startswith(arguments.target)):
                branch = open_branch(both, tip, target, None)
                print(f"\n{label} ({tip[:8]}, base {branch.base[:8]}) → {target[:8]}")
                with tempfile.TemporaryDirectory(prefix="bench-rebase-") as name:
                    folder = Path(name)
                    store = Store.create(folder / "store", both)
                    found = {
                        "git merge": by_merge(store, branch, folder / "merge"),
                        "git rebase": by_rebase(store, branch, folder / "rebase"),
                    }
                    store.close()
                    for way, squash in (("rebase --squash", True), ("rebase", False)):
                        work = folder / f"ours{squash:d}"
                        work.mkdir()
                        row, verdict = by_us(branch, work, squash=squash)
                        found[way] = row
                        faults += [f"{label} {target[:8]} {way}: {f}" for f in verdict.faults]
                        for name_ in verdict.unresolved:
                            print(f"  {way}: unresolved {name_}")
                for way, row in found.items():
                    print(
                        f"  {way:16} {row.files:3} files, {row.regions:3} regions, {row.one_sided:2} one-sided, "
                        f"{row.dead:2} dead, {row.stale:3} stale, {row.unresolved:3} unresolved, "
                        f"{row.person:3} of {row.hunks:3} hunks for a person ({row.person / row.hunks:.0%}), "
                        f"{row.seconds:5.1f} s; {row.note}",
                        flush=True,
                    )
                    total[way] += row.person
                    everything[way] += row.hunks
                    rows.append({"branch": label, "target": target, "way": way} | vars(row))
    print("\nall branches and targets")
    for way, person in total.items():
        print(f"  {way:16} {person} of {everything[way]} hunks ({person / everything[way]:.0%})")
    print(f"judge: {len(faults)} faults")
    for fault in faults:
        print(f"  {fault}")
    if arguments.out:
        arguments.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
