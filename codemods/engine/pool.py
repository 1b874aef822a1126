"""Files through worker processes; a file that kills its worker is named and the others go on."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from codemods.engine.project import Project
from codemods.engine.rewrite import Finding, Prefilter, Result, rewrite

_STATE: dict[str, Any] = {}
_STOPPING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
# Tasks handed out per process: enough to keep it busy, few enough to find the one that killed it.
_AHEAD = 4


def default_jobs() -> int:
    """As many processes as this process may use cores."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _start_worker(state: dict[str, Any]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt means
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPPING)
    warnings.simplefilter(
        "ignore", SyntaxWarning
    )  # of the checkout's strings, told by literal_eval
    _STATE.update(state)
    parent = multiprocessing.parent_process()
    if parent is not None:  # a killed parent must not leave workers behind
        threading.Thread(target=_follow, args=(parent,), daemon=True).start()
    # Trees are freed by reference counts where that is possible; the collector would walk them over and over.
    gc.freeze()
    gc.set_threshold(500_000, 20, 100)


def _follow(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)


def run_tasks[T](
    jobs: int, state: dict[str, Any], task: Callable[[str], T], items: Iterable[str]
) -> Iterator[tuple[str, T | BrokenProcessPool]]:
    """Run `task(item)` in worker processes, where `worker_state()` gives `state`.

    Args:
        jobs: how many processes; 0 runs the tasks in this one, where nothing guards against a crash.
        state: what the tasks need.
        task: a function of a module.
        items: what to run it on.

    Yields:
        (item, result) as they come; a `BrokenProcessPool` for an item that killed its worker, alone.
    """
    waiting = deque(items)
    if jobs == 0:
        _STATE.update(state)
        for item in waiting:
            yield item, task(item)
        return
    while waiting:
        suspects = yield from _in_pool(min(jobs, len(waiting)), state, task, waiting)
        for item in suspects:  # any of them may be the one, so each gets a process of its own
            alone = deque([item])
            lost = yield from _in_pool(1, state, task, alone)
            if lost:
                yield item, BrokenProcessPool(f"a worker died on {item}")


def _in_pool[T](
    jobs: int, state: dict[str, Any], task: Callable[[str], T], waiting: deque[str]
) -> Generator[tuple[str, T], None, list[str]]:
    """Run the tasks of `waiting` until it is empty or a worker dies; returns what was under way then."""
    executor = ProcessPoolExecutor(jobs, _context(), _start_worker, (state,))
    flying: dict[Future[T], str] = {}
    lost: list[str] = []
    broken = done = False
    try:
        while flying or (waiting and not broken):
            while waiting and not broken and len(flying) < jobs * _AHEAD:
                item = waiting.popleft()
                try:
                    with (
                        _signals_held()
                    ):  # a worker must not meet them before it has its own handlers
                        flying[executor.submit(task, item)] = item
                except BrokenProcessPool:
                    broken = True
                    lost.append(item)
            ready, _ = wait(flying, return_when=FIRST_COMPLETED)
            for future in ready:
                item = flying.pop(future)
                try:
                    yield item, future.result()
                except BrokenProcessPool:
                    broken = True
                    lost.append(item)
        done = True
    finally:
        if broken or not done:
            for process in list((executor._processes or {}).values()):
                process.kill()
        executor.shutdown(wait=done and not broken, cancel_futures=True)
    return lost


def _context() -> multiprocessing.context.BaseContext:
    methods = multiprocessing.get_all_start_methods()
    return multiprocessing.get_context("fork" if "fork" in methods else "spawn")


@contextmanager
def _signals_held() -> Iterator[None]:
    held = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)


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
