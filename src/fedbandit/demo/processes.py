"""The demo's processes: one server and many agents, each with a thread that reads its output."""

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

from fedbandit.cli.dashboard_link import new_link
from fedbandit.errors import LiveError
from fedbandit.http_client import AdminClient

START_TIMEOUT_S = 60.0
LINK_S = 600.0


class DemoFailed(LiveError):
    """A process of the demo failed."""


def _environment(**more: str) -> dict[str, str]:
    # A dozen processes on a few cores: one thread each avoids oversubscription.
    return {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", **more}


class ServerProcess:
    """`fedbandit serve` on a directory and a free port of this machine."""

    def __init__(self, data: Path, log: Path) -> None:
        self.admin_token = secrets.token_urlsafe(32)
        command = [sys.executable, "-m", "fedbandit.cli.serve", "--data", str(data), "--port", "0", "--while-stdin"]
        self._log = log
        with log.open("w", encoding="utf-8") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,  # closes when this process ends, even by SIGKILL, and the server ends with it
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=_environment(FEDBANDIT_ADMIN_TOKEN=self.admin_token),
                start_new_session=True,  # Ctrl-C is handled here: the server is stopped after its agents
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

    @property
    def admin(self) -> AdminClient:
        """A client with the administrator's token."""
        return AdminClient(self.url, self.admin_token)

    def link(self, target: str) -> str:
        """A one-time link that opens a view of the dashboard signed in."""
        return new_link(self.admin, self.url, target=target, ttl_s=LINK_S)

    def stop(self) -> None:
        """Stop it with SIGTERM."""
        _stop(self._process, graceful=True)
        if self._process.stdin is not None:
            self._process.stdin.close()

    def wait(self) -> None:
        """Wait until it ends."""
        self._process.wait()


@dataclass(slots=True)
class AgentProcess:
    """One agent and its progress; after a kill it continues in a new process."""

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
    asked: int = -1  # the image whose decision is pending
    resumed_at: int | None = None
    carried_over: int = 0  # decisions whose reward was observed after the restart
    process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start the process, or restart it from the journal."""
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
        _reader(self.process, self._handle)

    def kill(self) -> None:
        """Kill the process with SIGKILL, without a flush."""
        if self.process is not None and self.process.poll() is None:
            self.state = "killed"
            self.process.kill()
            self.process.wait()

    def stop(self) -> None:
        """Kill the process if it still runs."""
        if self.process is not None:
            _stop(self.process, graceful=False)

    def check(self) -> None:
        """Raise `DemoFailed` if the agent exited before it was done."""
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

    def _handle(self, line: str) -> None:
        try:
            found: dict[str, Any] = json.loads(line)
        except json.JSONDecodeError:
            return  # truncated by the kill
        if "start" in found:
            again = self.state == "restarting"
            self.state = "resumed" if again else "running"
            if again:
                self.resumed_at, self.carried_over = found["start"], found["pending"]
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


def _reader(process: subprocess.Popen[str], handle: Callable[[str], None]) -> None:
    """Start a thread that passes each line of a process to `handle`, until it ends."""
    stdout = process.stdout
    if stdout is None:
        return

    def read() -> None:
        with stdout:
            for line in stdout:
                handle(line.rstrip("\n"))

    threading.Thread(target=read, name="fedbandit-demo-reader", daemon=True).start()


def _stop(process: subprocess.Popen[str], *, graceful: bool) -> None:
    if process.poll() is not None:
        return
    if graceful:
        process.terminate()
        try:
            process.wait(15.0)
            return
        except subprocess.TimeoutExpired:
            pass
    process.kill()
    process.wait()
