"""The gunicorn recipe of docs/how-to/threads.md: its own text, a real gunicorn, a real server, workers killed."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import urllib3

import fedbandit as fb
from tests.live import LiveServer, running_server

pytest.importorskip("gunicorn", reason="gunicorn is for POSIX")

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "threads.md"
N_WORKERS = 2
APP = """
import os

import numpy as np


def app(environ, start_response):
    decision = app.agent.choose(np.eye(3))
    app.agent.observe(decision, 1.0)
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [f"{os.getpid()} {app.agent.agent_id}".encode()]
"""


def recipe(folder: Path, url: str) -> str:
    """The page's own gunicorn.conf.py, with this test's places in it."""
    (text,) = [
        block
        for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
        if "post_worker_init" in block
    ]
    places = {
        "/run/secrets": str(folder / "secrets"),
        "/var/lib/shop": str(folder / "state"),
        "https://bandit.example": url,
        "workers = 8": f"workers = {N_WORKERS}",
    }
    for old, new in places.items():
        assert old in text, old
        text = text.replace(old, new)
    return text


class Site:
    """A gunicorn with its workers."""

    def __init__(self, folder: Path, port: int, process: subprocess.Popen[bytes]) -> None:
        self.folder, self.process = folder, process
        self.url = f"http://127.0.0.1:{port}/"
        self.http = urllib3.PoolManager(retries=False)
        self.n_served = 0

    def visit(self, timeout_s: float = 60.0) -> tuple[int, str]:
        """One decision with its reward: the worker that made it, and its identity."""
        deadline = time.monotonic() + timeout_s
        while True:
            assert self.process.poll() is None, (self.folder / "gunicorn.log").read_text()[-3000:]
            try:
                answer = self.http.request("GET", self.url, headers={"Connection": "close"}, timeout=30.0)
                break
            except urllib3.exceptions.NewConnectionError:  # not yet listening; nothing was sent
                assert time.monotonic() < deadline
                time.sleep(0.1)
        assert answer.status == 200, answer.data
        self.n_served += 1
        pid, identity = answer.data.decode().split()
        return int(pid), identity

    def workers(self) -> dict[int, str]:
        """All workers with their identities, each seen at work; no two of them share one."""
        found: dict[int, str] = {}
        deadline = time.monotonic() + 60
        while len(found) < N_WORKERS:
            assert time.monotonic() < deadline, found
            pid, identity = self.visit()
            assert found.get(pid, identity) == identity
            found[pid] = identity
        assert len(set(found.values())) == N_WORKERS, found
        return found


@contextmanager
def site(folder: Path, server: LiveServer, config: str) -> Iterator[Site]:
    (folder / "shop.py").write_text(APP)
    (folder / "gunicorn.conf.py").write_text(config)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "gunicorn", "-c", "gunicorn.conf.py", "-b", f"127.0.0.1:{port}", "shop:app"]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "HOME": str(folder)}
    with (folder / "gunicorn.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, env=environment)
    try:
        yield Site(folder, port, process)
    finally:
        process.terminate()
        try:
            process.wait(60)
        finally:
            process.kill()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LiveServer]:
    with running_server(tmp_path / "server") as server:
        server.add_model("news", dim=3)
        (tmp_path / "secrets").mkdir()
        for number in range(2 * N_WORKERS):
            token = server.add_agent("news", f"shop-{number}")
            (tmp_path / "secrets" / f"shop-{number}.token").write_text(token)
        yield server


def end(pid: int) -> None:
    """Kill a worker and wait until it is gone."""
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.02)
    raise AssertionError(f"worker {pid} is still there")


def test_a_site_survives_the_death_of_its_workers_in_any_order(tmp_path: Path, server: LiveServer) -> None:
    """The recipe before counted workers, and the master ended after two deaths."""
    with site(tmp_path, server, recipe(tmp_path, server.url)) as running:
        for victims in ([0], [1], [0, 1], [1, 0], [1]):
            alive = running.workers()
            for place in victims:
                end(sorted(alive)[place])
        last = running.workers()
        assert set(last.values()) <= {f"shop-{number}" for number in range(2 * N_WORKERS)}
        n_served = running.n_served
    # What was not uploaded waits in the directories; the page says how to send it when no worker comes for it.
    for state_dir in sorted((tmp_path / "state").iterdir()):
        token = (tmp_path / "secrets" / f"shop-{state_dir.name}.token").read_text()
        with fb.connect(server.url, model="news", token=token, state_dir=state_dir) as agent:
            agent.flush()
    assert server.show("news")["n_obs"] == n_served
