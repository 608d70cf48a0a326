"""Where runs happen: processes on this machine, or a Ray cluster, both through joblib."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from fedbandit.errors import MissingExtra
from fedbandit.experiments.spec import RunSpec

Task = tuple[RunSpec, int]  # what, and with which seed
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Cluster:
    """A Ray cluster: the one at `address`, or a local one of `n_cpus` for the duration of the sweep."""

    address: str | None = None
    n_cpus: int | None = None
    temp_dir: str | None = None


class WorkersDied(Exception):
    """Worker processes were killed; `in_flight` are the tasks that were handed out and not finished."""

    def __init__(self, in_flight: Sequence[Task], reason: str) -> None:
        super().__init__(reason)
        self.in_flight = tuple(in_flight)


def in_processes(
    function: Callable[[Task], T], tasks: Sequence[Task], n_jobs: int, cluster: Cluster | None
) -> Iterator[T]:
    """`function` of every task, in the order they finish."""
    return _on_ray(function, tasks, n_jobs, cluster) if cluster is not None else _locally(function, tasks, n_jobs)


def _locally(function: Callable[[Task], T], tasks: Sequence[Task], n_jobs: int) -> Iterator[T]:
    import joblib
    from joblib.externals.loky import get_reusable_executor
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    handed_out: list[Task] = []

    def hand_out() -> Iterator[Any]:
        for task in tasks:
            handed_out.append(task)
            yield joblib.delayed(function)(task)

    # joblib runs one job in this process, which a crashing run would end: use an idle second worker instead.
    with joblib.parallel_config(backend="loky", n_jobs=max(2, n_jobs), inner_max_num_threads=1):
        parallel = joblib.Parallel(return_as="generator_unordered", batch_size=1, pre_dispatch=n_jobs)
        results = parallel(hand_out())
        try:
            with warnings.catch_warnings():
                # Big fleets make a worker's memory grow; loky then replaces it by a fresh one, as intended.
                warnings.filterwarnings("ignore", message="A worker stopped while some jobs", category=UserWarning)
                yield from results
        except TerminatedWorkerError as error:
            raise WorkersDied(handed_out, str(error)) from None
        except (KeyboardInterrupt, GeneratorExit):
            get_reusable_executor().shutdown(wait=False, kill_workers=True)
            raise


def _on_ray(function: Callable[[Task], T], tasks: Sequence[Task], n_jobs: int, cluster: Cluster) -> Iterator[T]:
    import joblib

    with ray_cluster(cluster, n_jobs) as n_cpus:
        # Ray's hook for joblib returns lists only, so results come and are saved a batch at a time.
        size = max(2 * n_cpus, 1)
        with joblib.parallel_config(backend="ray", n_jobs=n_cpus):
            for first in range(0, len(tasks), size):
                batch = tasks[first : first + size]
                try:
                    yield from joblib.Parallel(batch_size=1)(joblib.delayed(function)(task) for task in batch)
                except _ray_errors() as error:
                    raise WorkersDied(batch, str(error)) from None


@contextlib.contextmanager
def ray_cluster(cluster: Cluster, n_jobs: int) -> Iterator[int]:
    """Connect to Ray, or start it here; yields the number of processors it has. Leaves a running Ray as it was."""
    if cluster.address is None:
        _keep_ray_out_of_the_home_directory()
    try:
        import ray as untyped_ray
        import ray.util.joblib as hook
    except ImportError as error:
        raise MissingExtra("runs on a cluster need ray: install fedbandit[ray]") from error
    ray: Any = untyped_ray  # types its functions in part only
    register_ray: Any = hook.register_ray
    mine = not ray.is_initialized()
    if mine and cluster.address is not None:
        ray.init(address=cluster.address, log_to_driver=False)
    elif mine:
        _start_here(ray, cluster, n_jobs)
    register_ray()
    try:
        yield max(1, int(ray.cluster_resources().get("CPU", 1)))
    finally:
        if mine:
            ray.shutdown()


def _keep_ray_out_of_the_home_directory() -> None:
    """Give Ray its token by the environment, where it would write one to a file; it reads this when it is imported."""
    if "RAY_AUTH_MODE" not in os.environ and "ray" not in sys.modules:
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")


def _start_here(ray: Any, cluster: Cluster, n_jobs: int) -> None:
    ray.init(
        num_cpus=cluster.n_cpus or n_jobs,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="error",
        _temp_dir=cluster.temp_dir,
    )


def _ray_errors() -> type[Exception]:
    import ray

    return ray.exceptions.RayError
