"""Files through worker processes; a file that kills its worker is named and the others go on."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from codemods.engine.project import Project
from codemods.engine.rewrite import Finding, Prefilter, Result, rewrite

_STATE: dict[str, Any] = {}


def default_jobs() -> int:
    """As many processes as this process may use cores."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _start_worker(state: dict[str, Any]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt means
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _STATE.update(state)
    parent = multiprocessing.parent_process()
    if parent is not None:  # a killed parent must not leave workers behind
        threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()
    # Trees are freed by reference counts where that is possible; the collector would walk them over and over.
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)


def run_tasks[T](
    jobs: int, state: dict[str, Any], task: Callable[[str], T], items: Iterable[str]
) -> Iterator[tuple[str, T | BrokenProcessPool]]:
    """Run `task(item)` in worker processes, where `worker_state()` gives `state`.

    Yields:
        (item, result) as they come; a `BrokenProcessPool` for an item that killed its worker, alone.
    """
    pending = list(items)
    if jobs == 1 and len(pending) < 8:
        _STATE.update(state)
        for item in pending:
            yield item, task(item)
        return
    context = multiprocessing.get_context(
        "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"
    )
    suspects: list[str] = []
    executor = ProcessPoolExecutor(jobs, context, _start_worker, (state,))
    try:
        futures: dict[Future[T], str] = {executor.submit(task, item): item for item in pending}
        while futures:
            done, _ = wait(futures, return_when=FIRST_COMPLETED)
            for future in done:
                item = futures.pop(future)
                try:
                    yield item, future.result()
                except BrokenProcessPool:
                    suspects.append(item)
    finally:
        for process in list((executor._processes or {}).values()) if suspects else ():
            process.kill()
        executor.shutdown(wait=not suspects, cancel_futures=True)
    for item in suspects:  # any of them may be the one, so each gets a process of its own
        with ProcessPoolExecutor(1, context, _start_worker, (state,)) as lone:
            try:
                yield item, lone.submit(task, item).result()
            except BrokenProcessPool as error:
                yield item, error


def worker_state() -> dict[str, Any]:
    """What `run_tasks` was given as `state`."""
    return _STATE


def _rewrite_one(path: str) -> Result:
    root: Path = _STATE["root"]
    project: Project = _STATE["project"]
    if _STATE["prefilter"] and "filter" not in _STATE:
        _STATE["filter"] = Prefilter(project)
    try:
        data = (root / path).read_bytes()
    except OSError as error:
        reason = f"the file cannot be read ({error.strerror})"
        finding = Finding(path, 1, 1, "CHK001", "report", "", None, reason, "check its permissions")
        return Result(path, sites=[finding])
    return rewrite(path, data, project, _STATE.get("filter"))


def rewrite_all(
    root: Path, paths: Iterable[str], project: Project, jobs: int, prefilter: bool = True
) -> Iterator[Result]:
    """Run the rules on files of a checkout, largest first, in `jobs` processes; results come as they are done."""
    state = {"root": root, "project": project, "prefilter": prefilter}
    _STATE.pop("filter", None)
    for path, result in run_tasks(jobs, state, _rewrite_one, paths):
        if isinstance(result, BrokenProcessPool):
            reason = "the parser crashed on this file"
            finding = Finding(
                path, 1, 1, "CHK001", "report", "", None, reason, "migrate it by hand"
            )
            result = Result(path, sites=[finding])
        yield result
