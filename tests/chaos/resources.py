"""Resident memory and open descriptors of every process, sampled during the whole run and compared with bounds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

INTERVAL_S = 0.25


class Bound(NamedTuple):
    """Limits of a kind of process."""

    memory_mb: float
    descriptors: int


class Usage(NamedTuple):
    """Usage of a process: peak resident memory since its start, and its descriptors now."""

    memory_mb: float
    descriptors: int


def usage_of(pid: int) -> Usage | None:
    """Read by /proc; None if the process is gone."""
    place = Path(f"/proc/{pid}")
    try:
        status = (place / "status").read_text()
        n_open = sum(1 for _ in (place / "fd").iterdir())
        peak_kb = int(status.split("VmHWM:")[1].split()[0])
    except (OSError, IndexError):  # ended, or ends just now
        return None
    return Usage(peak_kb / 1024, n_open)


class Watch:
    """Samples processes in a thread. `peaks` has the most that any process of a kind has held."""

    def __init__(self, bounds: dict[str, Bound], processes: Callable[[], Iterable[tuple[str, str, int]]]) -> None:
        self.peaks = dict.fromkeys(bounds, Usage(0.0, 0))
        self.violations: list[str] = []
        self.n_samples = 0
        self._bounds = bounds
        self._processes = processes
        self._reported: set[int] = set()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join(10.0)

    def _run(self) -> None:
        while not self._ending.wait(INTERVAL_S):
            for kind, name, pid in self._processes():
                self.sample(kind, name, pid)

    def sample(self, kind: str, name: str, pid: int) -> None:
        """Sample one process; each is reported once."""
        found = usage_of(pid)
        if found is None:
            return
        self.n_samples += 1
        memory, descriptors = self.peaks[kind]
        self.peaks[kind] = Usage(max(memory, found.memory_mb), max(descriptors, found.descriptors))
        bound = self._bounds[kind]
        if (found.memory_mb > bound.memory_mb or found.descriptors > bound.descriptors) and pid not in self._reported:
            self._reported.add(pid)
            self.violations.append(
                f"{name} held {found.memory_mb:.0f} MB and {found.descriptors} descriptors; "
                f"at most {bound.memory_mb:g} and {bound.descriptors} are expected"
            )
