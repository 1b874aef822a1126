#!/usr/bin/env python3
"""Measure a report page in headless Chromium: its size, its first paint, and how it filters.

    python scripts/bench_report.py OUT [--rounds N] [--json]

OUT is a folder that `ling2-migrate run --out` made. In every round a new browser with an empty profile opens
OUT/report.html from the disk. What is measured:
  paint    from the start of the navigation to the first contentful paint
  list     … until the rows are there and the page takes keys
  search   a word typed into the search field, to the frame that shows the outcome: the first, which reads all
           text, from files beside the page where a huge report has them
  again    another one after it
  filter   a rule chosen, to the frame that shows the outcome
  clear    all filters cleared, to the frame that shows the outcome
  accept   all changes accepted, to the frame that shows it
  frame    the longest time between two frames while the page scrolls through 20,000 pixels
Milliseconds, median of the rounds. The page is opened once before the first round, so that it is in the disk's
cache.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

MOST_PAINT, MOST_SIZE, MOST_FILTER = 3000, 15_000_000, 200
_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
# When the browser has painted, and when the page's own script was done.
_PAINTED = """() => new Promise(done => {
  const all = new Set(["first-contentful-paint", "list"]), found = {};
  const seen = list => {
    for (const entry of list.getEntries()) if (all.delete(entry.name)) found[entry.name] = entry.startTime;
    if (!all.size) done(found);
  };
  for (const type of ["paint", "mark"]) new PerformanceObserver(seen).observe({type, buffered: true});
})"""
# Sets a field or presses a button, and waits for the frame after the page has said what came of it.
_TIMED = """([name, value, event]) => new Promise(done => {
  const start = performance.now(), field = document.getElementById(name);
  new MutationObserver((_, observer) => {
    observer.disconnect();
    requestAnimationFrame(() => setTimeout(() => done(performance.now() - start)));
  }).observe(document.getElementById("status"), {childList: true});
  if (event === "click") { field.click(); return; }
  field.value = value;
  field.dispatchEvent(new Event(event));
})"""
_SCROLL = """() => new Promise(done => {
  let last = performance.now(), longest = 0, steps = 0;
  const step = now => {
    longest = Math.max(longest, now - last);
    last = now;
    scrollBy(0, 200);
    if (++steps < 100) requestAnimationFrame(step); else done(longest);
  };
  requestAnimationFrame(step);
})"""


def measure(page: Page, url: str, rule: str) -> dict[str, float]:
    """Open the page and do what a reviewer does."""
    page.goto(url)
    seen = page.evaluate(_PAINTED)

    def timed(name: str, value: str = "", event: str = "click") -> float:
        return float(page.evaluate(_TIMED, [name, value, event]))

    found = {
        "paint": seen["first-contentful-paint"],
        "list": seen["list"],
        "search": timed("search", "import", "input"),
        "again": timed("search", "import max", "input"),
        "clear": timed("clear"),
        "filter": timed("rule", rule, "change"),
    }
    timed("clear")
    found["frame"] = page.evaluate(_SCROLL)
    found["accept"] = timed("accept-shown")
    return found


def main(arguments: list[str]) -> int:
    """Measure and print; 1 if an aim is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args(arguments)
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        print("no Chromium on this machine; on Debian: apt-get install chromium", file=sys.stderr)
        return 2
    report = json.loads((options.out / "report.json").read_bytes())
    rule = max(report["summary"]["edits_by_rule"].items(), key=lambda item: item[1])[0]
    beside = list((options.out / "report-data").glob("*.js"))
    size = (options.out / "report.html").stat().st_size
    url = (options.out.resolve() / "report.html").as_uri()
    rounds: list[dict[str, float]] = []
    with sync_playwright() as playwright:
        for number in range(options.rounds + 1):
            browser = playwright.chromium.launch(executable_path=program, args=list(_FLAGS))
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            measured = measure(page, url, rule)
            version = browser.version
            browser.close()
            if number:
                rounds.append(measured)
    middle = {name: statistics.median(r[name] for r in rounds) for name in rounds[0]}
    slowest = max(middle[name] for name in ("search", "again", "filter", "clear"))
    met = {
        f"first paint {middle['paint']:.0f} ms (aim: at most {MOST_PAINT})": middle["paint"]
        <= MOST_PAINT,
        f"page {size / 1e6:.1f} MB (aim: at most {MOST_SIZE / 1e6:g})": size <= MOST_SIZE,
        f"slowest filter {slowest:.0f} ms (aim: at most {MOST_FILTER})": slowest <= MOST_FILTER,
    }
    if options.json:
        data = {"chromium": version, "size": size, "beside": len(beside), "rounds": rounds}
        print(json.dumps(data | {"median": middle, "aims": met}, indent=1))
    else:
        print(
            f"{options.out}: {report['summary']['edits']} edits in {report['summary']['hunks']} hunks, "
            f"{report['summary']['sites']} sites; {size / 1e6:.1f} MB and {len(beside)} files beside it; "
            f"Chromium {version}, {options.rounds} rounds"
        )
        for name, value in middle.items():
            values = [r[name] for r in rounds]
            print(f"{name:8} {value:8.0f} ms  ({min(values):.0f} … {max(values):.0f})")
        for line, good in met.items():
            print(f"{'ok  ' if good else 'MISS'} {line}")
    return 0 if all(met.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
