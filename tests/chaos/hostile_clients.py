"""Clients that cost a server memory, descriptors and time, with and without a token: a process of raw connections.

python -m tests.chaos.hostile_clients KIND PORT SECONDS RESULT, the tokens as JSON on standard input
"""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

# Every route that reads a body; {model} is the model under test, {large} has replies of megabytes.
READING = (
    "/login",
    "/logout",
    "/v1/models",
    "/v1/models/{model}/agents",
    "/v1/tokens",
    "/v1/models/{model}/sync",
    "/v1/models/{large}/sync",
)
ANSWERING = ("/v1/models/{large}/state", "/v1/models/{large}/export", "/v1/models", "/metrics", "/")
KINDS = ("endless_heads", "slow_bodies", "never_read", "silent")
PIECE = 1 << 18
TURN_S = 0.01
DRIP_TURNS = 20
AWAY_TURNS = 30  # before a connection is made again
BODY = 1_000_000
N_LARGE = 40


class Client(NamedTuple):
    """What one connection sends: first this, then this again and again, every so many turns."""

    first: bytes
    again: bytes
    every: int


def clients(kind: str, names: dict[str, str]) -> Iterator[Client]:
    """All connections of a kind, on every route, without a token, as agent and as administrator."""
    for token in ("", names["agent_token"], names["admin_token"]):
        secret = f"Authorization: Bearer {token}\r\n" if token else ""
        for route in ANSWERING if kind == "never_read" else READING:
            path = route.format(**names)
            yield from _clients(kind, path, secret)


def _clients(kind: str, path: str, secret: str) -> Iterator[Client]:
    post = f"POST {path} HTTP/1.1\r\nHost: x\r\n{secret}"
    if kind == "endless_heads":
        yield Client(f"{post}X-Long: ".encode(), b"a" * PIECE, 1)
        yield Client(post.encode(), b"X-More: and more\r\n" * (PIECE // 18), 1)
    elif kind == "slow_bodies":
        head = f"{post}Content-Length: {BODY}\r\nContent-Type: application/json\r\n\r\n".encode()
        for _ in range(20):
            yield Client(head + b" " * (BODY - 1000), b" ", DRIP_TURNS)
        yield Client(f"{post}Transfer-Encoding: chunked\r\n\r\n".encode(), b"1\r\n \r\n", DRIP_TURNS)
    elif kind == "never_read":
        get = f"GET {path} HTTP/1.1\r\nHost: x\r\n{secret}\r\n".encode()
        for _ in range(N_LARGE if "/large/" in path else 10):
            yield Client(get * 20, b"", DRIP_TURNS)
    else:
        for _ in range(30):
            yield Client(b"", b"", DRIP_TURNS)


class Line:
    """One connection, made again whenever the server ends it."""

    def __init__(self, address: tuple[str, int], client: Client, counts: Counter[str]) -> None:
        self._address, self._client, self._counts = address, client, counts
        self._socket: socket.socket | None = None
        self._unsent = memoryview(b"")
        self._turn = self._begin_at = 0

    def work(self, *, reads: bool) -> None:
        """A turn: send what can be sent without waiting."""
        self._turn += 1
        if self._turn < self._begin_at:
            return
        try:
            if self._socket is None:
                self._open()
            if not self._unsent and self._client.again and self._turn % self._client.every == 0:
                self._unsent = memoryview(self._client.again)
            self._push()
            if reads:
                self._notice_end()
        except BlockingIOError:
            pass
        except OSError:
            self._counts["ended_by_server"] += self._socket is not None
            self._begin_at = self._turn + AWAY_TURNS
            self.close()

    def _open(self) -> None:
        made = socket.socket()
        if not self._client.again and self._client.first:  # an unread answer shall stay with the server
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        made.settimeout(0.2)
        try:
            made.connect(self._address)
        except OSError:
            made.close()
            raise
        made.setblocking(False)
        self._socket, self._unsent = made, memoryview(self._client.first)
        self._counts["connections"] += 1

    def _push(self) -> None:
        assert self._socket is not None
        while self._unsent:
            n = self._socket.send(self._unsent[:PIECE])
            self._counts["bytes"] += n
            self._unsent = self._unsent[n:]

    def _notice_end(self) -> None:
        assert self._socket is not None
        if not self._socket.recv(1 << 16):
            raise ConnectionResetError

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None


def main(kind: str, port: str, seconds: str, result: str) -> None:
    names = json.load(sys.stdin)
    counts: Counter[str] = Counter()
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
    lines = [Line(("127.0.0.1", int(port)), client, counts) for client in clients(kind, names)]
    end = time.monotonic() + float(seconds)
    while time.monotonic() < end and not stopped:
        for line in lines:
            line.work(reads=kind != "never_read")
        time.sleep(TURN_S)
    for line in lines:
        line.close()
    with contextlib.suppress(OSError):
        Path(result).write_text(json.dumps(counts))


if __name__ == "__main__":
    main(*sys.argv[1:])
