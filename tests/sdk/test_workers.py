"""The recipes of docs/how-to/workers.md: their own text, real gunicorn and uvicorn, a real server, workers killed."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import urllib3

import fedbandit as fb
from tests.live import LiveServer, running_server

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "workers.md"
N_WORKERS = 2
N_SLOTS = 8  # agents that there are; gunicorn's recipe uses two for each worker
WSGI = """
import os

import numpy as np


def app(environ, start_response):
    decision = app.agent.choose(np.eye(3))
    app.agent.observe(decision, 1.0)
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [f"{os.getpid()} {app.agent.agent_id}".encode()]
"""
ROUTE = """

@app.get("/")
def serve_one():
    from fastapi.responses import PlainTextResponse

    agent = app.state.agent
    agent.observe(agent.choose([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]), 1.0)
    return PlainTextResponse(f"{os.getpid()} {agent.agent_id}")
"""


def recipe(mark: str, places: dict[str, str]) -> str:
    """The block of the page with this word, with this test's places in it."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (text,) = [block for block in blocks if mark in block]
    for old, new in places.items():
        assert old in text, old
        text = text.replace(old, new)
    return text


class Site:
    """A web server with its workers."""

    def __init__(self, folder: Path, port: int, process: subprocess.Popen[bytes]) -> None:
        self.folder, self.process = folder, process
        self.url = f"http://127.0.0.1:{port}/"
        self.http = urllib3.PoolManager(retries=False)
        self.n_served = 0

    def visit(self, timeout_s: float = 60.0) -> tuple[int, str]:
        """One decision with its reward: the worker that made it, and its identity."""
        deadline = time.monotonic() + timeout_s
        while True:
            assert self.process.poll() is None, (self.folder / "site.log").read_text()[-3000:]
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
def site(folder: Path, module: str, *arguments: str, **environment: str) -> Iterator[Site]:
    """`python -m module … port` in this folder."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", module, *(argument.replace("PORT", str(port)) for argument in arguments)]
    variables = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "HOME": str(folder), **environment}
    log_path = folder / "site.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, env=variables, start_new_session=True)
    try:
        yield Site(folder, port, process)
    finally:
        process.terminate()
        try:
            process.wait(60)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(30)


@contextmanager
def gunicorn(folder: Path, server: LiveServer) -> Iterator[Site]:
    pytest.importorskip("gunicorn", reason="gunicorn is for POSIX")
    places = {
        "/run/secrets": str(folder / "secrets"),
        "/var/lib/shop": str(folder / "state"),
        "https://bandit.example": server.url,
        "workers = 8": f"workers = {N_WORKERS}",
    }
    (folder / "shop.py").write_text(WSGI)
    (folder / "gunicorn.conf.py").write_text(recipe("post_worker_init", places))
    with site(folder, "gunicorn", "-c", "gunicorn.conf.py", "-b", "127.0.0.1:PORT", "shop:app") as running:
        yield running


@contextmanager
def uvicorn(folder: Path, server: LiveServer, **environment: str) -> Iterator[Site]:
    places = {"/run/secrets": str(folder / "secrets"), "/var/lib/shop": str(folder / "state")}
    (folder / "shop.py").write_text(recipe("lifespan", {**places, "https://bandit.example": server.url}) + ROUTE)
    arguments = ["shop:app", "--workers", str(N_WORKERS), "--port", "PORT", "--timeout-worker-healthcheck", "30"]
    with site(folder, "uvicorn", *arguments, **environment) as running:
        yield running


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LiveServer]:
    with running_server(tmp_path / "server") as server:
        server.add_model("news", dim=3)
        (tmp_path / "secrets").mkdir()
        for number in range(N_SLOTS):
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


def flush_slots(server: LiveServer, folder: Path, tokens: Path, prefix: str) -> None:
    """What was not uploaded stays in the slots; the page says how to send it when no worker comes for it."""
    for state_dir in sorted(folder.iterdir()):
        token = (tokens / f"{prefix}{state_dir.name}.token").read_text()
        with fb.connect(server.url, model="news", token=token, state_dir=state_dir) as agent:
            agent.flush()


@pytest.mark.parametrize("start", [gunicorn, uvicorn])
def test_a_site_survives_the_death_of_its_workers_in_any_order(tmp_path: Path, server: LiveServer, start) -> None:
    """Directories by the number of a worker took the site down after two deaths."""
    with start(tmp_path, server) as running:
        for victims in ([0], [1, 0], [1]):
            alive = running.workers()
            for place in victims:
                end(sorted(alive)[place])
        last = running.workers()
        assert set(last.values()) <= {f"shop-{number}" for number in range(2 * N_WORKERS)}
        n_served = running.n_served
    flush_slots(server, tmp_path / "state", tmp_path / "secrets", "shop-")
    assert server.show("news")["n_obs"] == n_served


@pytest.mark.slow
def test_pods_of_a_stateful_set_keep_to_their_own_volumes(tmp_path: Path, server: LiveServer) -> None:
    """Two pods with a volume each and the same application; one is killed as a whole and comes back under its name."""
    n_served = 0
    for name in ("shop-0", "shop-1"):
        (tmp_path / name).mkdir()
        for slot in range(N_SLOTS):
            (tmp_path / "secrets" / f"{name}-{slot}.token").write_text(server.add_agent("news", f"{name}-{slot}"))

    def pod(name: str):
        folder = tmp_path / name
        (folder / "secrets").mkdir(exist_ok=True)
        return uvicorn(folder, server, STATE=str(folder / "state"), TOKENS=f"{tmp_path}/secrets/{name}-")

    with pod("shop-1") as second:
        with pod("shop-0") as first:
            found = [set(first.workers().values()), set(second.workers().values())]
            assert found == [{"shop-0-0", "shop-0-1"}, {"shop-1-0", "shop-1-1"}]
            n_served += first.n_served
            os.killpg(first.process.pid, signal.SIGKILL)  # the pod as a whole
        with pod("shop-0") as first:
            assert set(first.workers().values()) == {"shop-0-0", "shop-0-1"}
            n_served += first.n_served
        n_served += second.n_served
    for name in ("shop-0", "shop-1"):
        flush_slots(server, tmp_path / name / "state", tmp_path / "secrets", f"{name}-")
    assert server.show("news")["n_obs"] == n_served
