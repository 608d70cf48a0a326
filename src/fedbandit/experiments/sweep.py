"""Specs × seeds in processes, here or on a Ray cluster: can be interrupted, resumed, and survives runs that fail."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from fedbandit.errors import InvalidParameter
from fedbandit.experiments.drivers.base import RunOutcome, play
from fedbandit.experiments.run_store import FailedRun, RunStore
from fedbandit.experiments.spec import RunSpec
from fedbandit.experiments.workers import Cluster, Task, WorkersDied, in_processes

Watch = Callable[["Finished"], None]


@dataclass(frozen=True, slots=True)
class Finished:
    """The outcome of one run: its processor time, and its result or its error."""

    task: Task
    seconds: float
    outcome: RunOutcome | None
    failure: FailedRun | None


@dataclass(frozen=True, slots=True)
class Tally:
    """The result of a sweep: numbers of runs made and found, and the runs that failed."""

    n_run: int
    n_found: int
    failures: tuple[FailedRun, ...]


def pending(store: RunStore, tasks: Iterable[Task]) -> list[Task]:
    """The runs that are not on disk yet, each once: the longest first so that no core idles at the end, then by seed.

    By seed, so that a sweep that is interrupted has something of every spec.
    """
    unique = dict.fromkeys(tasks)
    _refuse_twins(spec for spec, _ in unique)
    missing = [(spec, seed) for spec, seed in unique if not store.has(spec, seed)]
    return sorted(missing, key=lambda task: (-task[0].n_rounds, task[1]))


def sweep(
    store: RunStore,
    tasks: Sequence[Task],
    *,
    n_jobs: int | None = None,
    cluster: Cluster | None = None,
    watch: Watch | None = None,
) -> Tally:
    """Run every (spec, seed) that is not on disk yet; a KeyboardInterrupt loses no finished run.

    `n_jobs` are processes on this machine (all cores when left out); with a `cluster` the runs go to Ray instead.
    """
    waiting = pending(store, tasks)
    n_found = len(dict.fromkeys(tasks)) - len(waiting)
    failures = []
    for finished in _every(waiting, n_jobs or os.cpu_count() or 1, cluster):
        spec, seed = finished.task
        if finished.outcome is not None:
            store.save(spec, seed, finished.outcome, finished.seconds)
        if finished.failure is not None:
            store.fail(finished.failure)
            failures.append(finished.failure)
        if watch is not None:
            watch(finished)
    return Tally(len(waiting) - len(failures), n_found, tuple(failures))


def run_one(task: Task) -> Finished:
    """Play one run on one BLAS thread; an error becomes a value, so that the others go on."""
    from threadpoolctl import threadpool_limits

    spec, seed = task
    started = time.process_time()
    try:
        with threadpool_limits(limits=1):
            outcome = play(spec, seed)
    except Exception as error:  # noqa: BLE001 - any error of a run is reported and must not stop the others
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        failure = FailedRun(spec.id, seed, text, traceback.format_exc())
        return Finished(task, time.process_time() - started, None, failure)
    return Finished(task, time.process_time() - started, outcome, None)


def _every(tasks: Sequence[Task], n_jobs: int, cluster: Cluster | None) -> Iterator[Finished]:
    """All runs as they finish. When workers die, the runs that may be the cause are repeated one by one."""
    waiting = list(tasks)
    while waiting:
        done: set[Task] = set()
        try:
            for finished in in_processes(run_one, waiting, n_jobs, cluster):
                done.add(finished.task)
                yield finished
            return
        except WorkersDied as died:
            suspects = [task for task in died.in_flight if task not in done]
            yield from _one_by_one(suspects, cluster)
            done.update(suspects)
        waiting = [task for task in waiting if task not in done]


def _one_by_one(suspects: Sequence[Task], cluster: Cluster | None) -> Iterator[Finished]:
    for task in suspects:
        try:
            yield from in_processes(run_one, [task], 1, cluster)
        except WorkersDied as died:
            spec, seed = task
            error = "WorkerDied: the process running it was killed (out of memory?)"
            yield Finished(task, 0.0, None, FailedRun(spec.id, seed, error, str(died)))


def _refuse_twins(specs: Iterable[RunSpec]) -> None:
    seen: dict[str, RunSpec] = {}
    for spec in specs:
        if seen.setdefault(spec.id, spec) != spec:
            raise InvalidParameter(f"two different specs share the id {spec.id}; change an option of one of them")


__all__ = ["Cluster", "Finished", "Tally", "Task", "pending", "run_one", "sweep"]
