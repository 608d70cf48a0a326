"""A real server process on a free loopback port, for tests that need one.

    with running_server(tmp_path) as server:
        server.add_model("news", dim=3)
        token = server.add_agent("news", "shop-1")
        fb.connect(server.url, model="news", token=token)

`server.kill()` ends it as a power cut would, `server.stop()` by SIGTERM, `server.start()` brings it back on the same
port and data.
"""

from __future__ import annotations

import json
import os
import queue
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import urllib3

START_TIMEOUT_S = 60.0


class LiveServer:
    """A server process and the calls that tests make before the thing they test."""

    def __init__(self, folder: Path, store: str, options: dict[str, Any]) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.store = store
        self.options = dict(options)
        self.admin_token: str = self.options.pop("admin_token", None) or "fb_" + secrets.token_urlsafe(32)
        self.port = int(self.options.pop("port", 0))
        self.environment: dict[str, str] = self.options.pop("environment", {})
        self.url = ""
        self.lines: list[str] = []
        self.process: subprocess.Popen[str] | None = None
        self.log_path = self.folder / f"server-{secrets.token_hex(4)}.log"
        self.http = urllib3.PoolManager(retries=False, maxsize=4)

    @property
    def data_dir(self) -> Path:
        return self.folder / "data"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def command(self) -> list[str]:
        command = [sys.executable, "-m", "fedbandit.cli.serve", "--port", str(self.port)]
        if self.store == "sqlite":
            command += ["--data", str(self.data_dir)]
        else:
            command += ["--database", self.store]
        for name, value in self.options.items():
            option = "--" + name.replace("_", "-")
            command += [option] if value is True else [option, str(value)]
        return command

    def start(self) -> LiveServer:
        """Start the process and wait until it serves."""
        environment = {**os.environ, "FEDBANDIT_ADMIN_TOKEN": self.admin_token, **self.environment}
        with self.log_path.open("a", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                self.command(), stdout=subprocess.PIPE, stderr=log, text=True, env=environment, start_new_session=True
            )
        self.url = self._wait_for_address()
        self.port = int(self.url.rpartition(":")[2])
        return self

    def _wait_for_address(self) -> str:
        """The address that the server prints once it listens; a thread keeps its pipe from filling."""
        process = self.process
        assert process is not None and process.stdout is not None
        lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        stdout = process.stdout

        def read() -> None:
            for line in stdout:
                lines.put(line)
            lines.put(None)
            stdout.close()

        threading.Thread(target=read, daemon=True).start()
        end = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                line = lines.get(timeout=max(end - time.monotonic(), 0.01))
            except queue.Empty:
                self.kill()
                raise AssertionError(f"the server did not start in time; {self.log()[-2000:]}") from None
            if line is None:
                process.wait()
                raise AssertionError(f"the server ended with {process.returncode}; {self.log()[-2000:]}")
            self.lines.append(line.rstrip("\n"))
            if line.startswith("fedbandit serves on "):
                return line.split()[-1]

    def stop(self, timeout_s: float = 30.0) -> int:
        """SIGTERM, as an operator stops it; returns the exit status."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout_s)

    def kill(self) -> None:
        """SIGKILL: as if the power went."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def log(self) -> str:
        """What the server logged so far, one JSON object a line."""
        return self.log_path.read_text(encoding="utf-8") if self.log_path.exists() else ""

    # -- calls

    def request(self, method: str, path: str, *, token: str | None = None, **options: Any) -> urllib3.BaseHTTPResponse:
        """Any call; as the administrator unless a token is given ('' for none)."""
        headers = dict(options.pop("headers", {}))
        token = self.admin_token if token is None else token
        if token:
            headers["Authorization"] = f"Bearer {token}"
        return self.http.request(method, self.url + path, headers=headers, timeout=30.0, **options)

    def call(self, method: str, path: str, body: Any = None, *, token: str | None = None) -> Any:
        """A JSON call that must succeed."""
        answer = self.request(method, path, token=token, **({} if body is None else {"json": body}))
        assert answer.status < 300, f"{method} {path}: {answer.status} {answer.data[:500]!r}"
        return json.loads(answer.data) if answer.data else None

    def add_model(self, name: str = "news", **settings: Any) -> dict[str, Any]:
        """A model; dim 3, beta 0.5 unless said otherwise."""
        settings = {"dim": 3, **settings}
        if "radius" not in settings:
            settings.setdefault("beta", 0.5)
        made: dict[str, Any] = self.call("POST", "/v1/models", {"name": name, **settings})
        return made

    def add_agent(self, model: str, name: str) -> str:
        """The token of a new agent."""
        token: str = self.call("POST", f"/v1/models/{model}/agents", {"name": name})["token"]
        return token

    def show(self, model: str) -> dict[str, Any]:
        """Show the settings, version and totals of a model."""
        shown: dict[str, Any] = self.call("GET", f"/v1/models/{model}")
        return shown


@contextmanager
def running_server(tmp_path: Path, store: str = "sqlite", **options: Any) -> Iterator[LiveServer]:
    """A server on `tmp_path` (SQLite), on `postgresql://…` or on `memory:`; options as `fedbandit serve` has."""
    server = LiveServer(tmp_path, store, options)
    try:
        yield server.start()
    finally:
        server.kill()
        server.http.clear()
