"""The demo's processes: one server, many agents, each with a thread that reads what it says."""

from __future__ import annotations

import json
import os
import queue
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedbandit.demo.worker import Task
from fedbandit.errors import LiveError

START_TIMEOUT_S = 60.0


class DemoFailed(LiveError):
    """A process of the demo ended before its time."""


def _environment(**more: str) -> dict[str, str]:
    # A dozen processes on a few cores: more than one thread each would only be in the others' way.
    return {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", **more}


class ServerProcess:
    """`fedbandit serve` on a directory and a free port of this machine."""

    def __init__(self, data: Path, log: Path) -> None:
        self.admin_token = secrets.token_urlsafe(32)
        command = [sys.executable, "-m", "fedbandit.cli.serve", "--data", str(data), "--port", "0", "--while-stdin"]
        command.append(
            "--open-dashboard"
        )  # whoever runs the demo should see its dashboard; it serves this machine only
        self._log = log
        with log.open("w", encoding="utf-8") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,  # closes when we end, however we end, and the server ends with it
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=_environment(FEDBANDIT_ADMIN_TOKEN=self.admin_token),
                start_new_session=True,  # Ctrl-C is for us: we end it when its agents have ended
            )
        self.url = self._address()

    def _address(self) -> str:
        lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        _reader(self._process, lines.put)
        end = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < end and self._process.poll() is None:
            try:
                line = lines.get(timeout=0.1)
            except queue.Empty:
                continue
            if line.startswith("fedbandit serves on "):
                return line.split()[-1]
        self.stop()
        raise DemoFailed(f"the server did not start:\n{self._log.read_text(encoding='utf-8')[-2000:]}")

    def stop(self) -> None:
        """As an operator stops it."""
        _end(self._process, gently=True)
        if self._process.stdin is not None:
            self._process.stdin.close()

    def wait(self) -> None:
        """Until somebody else stops it."""
        self._process.wait()


@dataclass(slots=True)
class AgentProcess:
    """One agent and what is known about it; it may live in several processes, one after the other."""

    name: str
    task_path: Path
    n_images: int
    token: str = field(repr=False)
    arms: dict[int, int] = field(default_factory=dict)  # image -> class chosen
    rewards: dict[int, float] = field(default_factory=dict)
    exchanges: int = 0
    refreshes: int = 0
    version: int = 0
    n_bytes: int = 0
    state: str = "starting"
    asked: int = -1  # the image that waits for its reward
    resumed_at: int | None = None
    carried_over: int = 0  # decisions whose reward came to the second process
    process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Begin, or begin again from the journal."""
        if self.state == "killed":
            self.state = "restarting"
        with self.task_path.with_suffix(".log").open("a", encoding="utf-8") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "fedbandit.demo.worker", str(self.task_path)],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=_environment(FEDBANDIT_TOKEN=self.token),
                start_new_session=True,
            )
        _reader(self.process, self._hear)

    def kill(self) -> None:
        """SIGKILL: no goodbye, no flush."""
        if self.process is not None and self.process.poll() is None:
            self.state = "killed"
            self.process.kill()
            self.process.wait()

    def stop(self) -> None:
        """End it if it still runs."""
        if self.process is not None:
            _end(self.process, gently=False)

    def check(self) -> None:
        """An agent that ended by itself before it was done has failed."""
        if self.state in ("starting", "running", "restarting", "resumed") and self.process is not None:
            code = self.process.poll()
            if code is not None and code != 0:
                log = self.task_path.with_suffix(".log").read_text(encoding="utf-8")
                raise DemoFailed(f"agent {self.name} ended with status {code}:\n{log[-2000:]}")

    @property
    def n_seen(self) -> int:
        """Images with a reward."""
        return len(self.rewards)

    @property
    def mean_reward(self) -> float:
        """Over all images so far."""
        return sum(self.rewards.values()) / max(len(self.rewards), 1)

    def _hear(self, line: str) -> None:
        try:
            found: dict[str, Any] = json.loads(line)
        except json.JSONDecodeError:
            return  # cut off by the kill
        if "start" in found:
            again = self.state == "restarting"
            self.state = "resumed" if again else "running"
            if again:
                self.resumed_at, self.carried_over = found["start"], found["waiting"]
            return
        if "asked" in found:
            self.asked = found["asked"]
            return
        if "n" in found:
            self.arms[found["n"]] = found["arm"]
            self.rewards[found["n"]] = found["reward"]
        self.exchanges, self.refreshes = found["exchanges"], found["refreshes"]
        self.version, self.n_bytes = found["version"], found["bytes"]
        if "done" in found:
            self.state = "done"


def make_agents(
    tasks: dict[str, Task], tokens: dict[str, str], sizes: dict[str, int], folder: Path
) -> list[AgentProcess]:
    """Agents that have not started yet."""
    agents = []
    for name, task in tasks.items():
        path = folder / f"{name}.json"
        task.save(path)
        agents.append(AgentProcess(name, path, sizes[name], tokens[name]))
    return agents


def _reader(process: subprocess.Popen[str], hear: Callable[[str], None]) -> None:
    """A thread that passes on what a process prints, until it ends."""
    stdout = process.stdout
    if stdout is None:
        return

    def read() -> None:
        with stdout:
            for line in stdout:
                hear(line.rstrip("\n"))

    threading.Thread(target=read, name="fedbandit-demo-reader", daemon=True).start()


def _end(process: subprocess.Popen[str], *, gently: bool) -> None:
    if process.poll() is not None:
        return
    if gently:
        process.terminate()
        try:
            process.wait(15.0)
            return
        except subprocess.TimeoutExpired:
            pass
    process.kill()
    process.wait()
