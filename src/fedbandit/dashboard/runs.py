"""Visitors' simulations: one process at a time, a short queue, a few results remembered."""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from fedbandit.dashboard.spec import Spec
from fedbandit.dashboard.worker import Step, Steps
from fedbandit.errors import Overloaded

MAX_WAITING = 4
MAX_KEPT = 24
TIMEOUT_S = 300.0
State = Literal["waiting", "running", "done", "failed"]


@dataclass(slots=True)
class Run:
    """A simulation and how far it is."""

    spec: Spec
    state: State = "waiting"
    problem: str = ""
    steps: dict[str, list[Step]] = field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        """Whether nothing will be added."""
        return self.state in ("done", "failed")

    @property
    def progress(self) -> float:
        """From 0 to 1."""
        latest = max((steps[-1].round for steps in self.steps.values()), default=0)
        return latest / self.spec.n_rounds


class Runs:
    """The queue. The exchange must not notice: the work is done in another process, at a low priority."""

    def __init__(self, log: Any, *, timeout_s: float = TIMEOUT_S) -> None:
        self._log = log
        self._timeout_s = timeout_s
        self._runs: dict[str, Run] = {}
        self._task: asyncio.Task[None] | None = None

    def find(self, run_id: str) -> Run | None:
        """A run that is remembered."""
        return self._runs.get(run_id)

    def ahead(self, run: Run) -> int:
        """How many runs come before a waiting one."""
        open_runs = [other for other in self._runs.values() if not other.is_over]
        return open_runs.index(run) if run in open_runs else 0

    def start(self, spec: Spec) -> Run:
        """The run of a spec: one that exists, or a new one at the end of the queue."""
        known = self._runs.get(spec.id)
        if known is not None and known.state != "failed":
            return known
        if sum(run.state == "waiting" for run in self._runs.values()) >= MAX_WAITING:
            raise Overloaded(f"{MAX_WAITING} simulations wait already; please try again in a minute")
        self._runs.pop(spec.id, None)
        run = self._runs[spec.id] = Run(spec)
        self._trim()
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._work())
        return run

    def _trim(self) -> None:
        over = [run_id for run_id, run in self._runs.items() if run.is_over]
        for run_id in over[: max(len(self._runs) - MAX_KEPT, 0)]:
            del self._runs[run_id]

    async def _work(self) -> None:
        while True:
            run = next((run for run in self._runs.values() if run.state == "waiting"), None)
            if run is None:
                return
            await self._play(run)
            self._log.info("simulation", run=run.spec.id, state=run.state, problem=run.problem)

    async def _play(self, run: Run) -> None:
        run.state = "running"
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._follow(run)
        except TimeoutError:
            run.state, run.problem = "failed", f"it took longer than {self._timeout_s:.0f} s and was stopped"
        except (OSError, msgspec.DecodeError) as error:
            run.state, run.problem = "failed", f"the simulation could not be run: {error}"

    async def _follow(self, run: Run) -> None:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "fedbandit.dashboard.worker"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=_environment(),
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(msgspec.json.encode(run.spec) + b"\n")
            async for line in process.stdout:
                for step in msgspec.json.decode(line, type=Steps).steps:
                    run.steps.setdefault(step.line, []).append(step)
            status = await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.stdout.read()  # to its end, or the pipe stays open
                await process.wait()
        run.state = "done" if status == 0 and run.progress >= 1 else "failed"
        if run.state == "failed":
            run.problem = "the simulation ended before its last round"


def _environment() -> dict[str, str]:
    """The server's environment without its secrets, and with one thread for linear algebra."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FEDBANDIT_")}
    threads = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
    return {**kept, **dict.fromkeys(threads, "1")}
