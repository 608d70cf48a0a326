"""A server process and many raw connections to it, with its memory and descriptors."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.live import LiveServer

LATE_S = 20.0


class LimitedServer(LiveServer):
    """A server that may have only so many descriptors."""

    n_descriptors = ""  # options of ulimit

    def command(self) -> list[str]:
        if not self.n_descriptors:
            return super().command()
        return ["sh", "-c", f'ulimit {self.n_descriptors}; exec "$@"', "sh", *super().command()]


@contextlib.contextmanager
def limited_server(
    folder: Path, *, n_descriptors: str = "", store: str = "memory:", **environment: object
) -> Iterator[LimitedServer]:
    """A server with settings from its environment: `body_timeout_s=1` is FEDBANDIT_BODY_TIMEOUT_S."""
    settings = {f"FEDBANDIT_{name.upper()}": str(value) for name, value in environment.items()}
    server = LimitedServer(folder, store, {"environment": settings})
    server.n_descriptors = n_descriptors
    try:
        yield server.start()
    finally:
        server.kill()
        server.http.clear()


def rss_mb(pid: int, field: str = "VmRSS") -> float:
    """Resident memory of a process; `VmHWM` is its peak since the last `forget_peak`."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.split(f"{field}:")[1].split()[0]) / 1024


class Growth:
    """Resident memory at its peak against the time before, in MB."""

    def __init__(self, server: LiveServer) -> None:
        self._pid = server.pid
        Path(f"/proc/{self._pid}/clear_refs").write_text("5")  # resets the peak
        self._before = rss_mb(self._pid)

    @property
    def mb(self) -> float:
        return rss_mb(self._pid, "VmHWM") - self._before


def n_open_files(server: LiveServer) -> int:
    """Descriptors that the server holds."""
    return sum(1 for _ in Path(f"/proc/{server.pid}/fd").iterdir())


class Crowd:
    """Raw connections that are closed at the end."""

    def __init__(self, server: LiveServer) -> None:
        self._address = ("127.0.0.1", server.port)
        self.sockets: list[socket.socket] = []

    def __enter__(self) -> Crowd:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self.sockets:
            each.close()

    def open(self, n: int = 1, *, receive_buffer: int = 0) -> list[socket.socket]:
        """More connections; a small receive buffer keeps unread replies in the server."""
        made = []
        for _ in range(n):
            each = socket.socket()
            if receive_buffer:
                each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            each.settimeout(LATE_S)
            each.connect(self._address)
            self.sockets.append(each)
            made.append(each)
        return made


def drip(line: socket.socket, piece: bytes, *, for_s: float) -> bool:
    """Send a piece again and again; whether the server closed the connection in time."""
    end = time.monotonic() + for_s
    try:
        while time.monotonic() < end:
            line.sendall(piece)
            time.sleep(0.01)
    except OSError:
        return True
    return False


def push(line: socket.socket, data: bytes) -> int:
    """Send as much as the server takes; how much that was."""
    sent, view = 0, memoryview(data)
    with contextlib.suppress(OSError):
        while sent < len(data):
            sent += line.send(view[sent : sent + (1 << 18)])
    return sent


def answer(line: socket.socket) -> tuple[int, dict[str, str], Any]:
    """Status, headers and JSON of the next answer; 0 if the connection ended without one."""
    data = b""
    with contextlib.suppress(OSError):
        while b"\r\n\r\n" not in data:
            piece = line.recv(1 << 16)
            if not piece:
                break
            data += piece
        head, _, body = data.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, value in (text.split(": ", 1) for text in lines)}
        while first and len(body) < int(headers.get("content-length", 0)):
            piece = line.recv(1 << 16)
            if not piece:
                break
            body += piece
        if first:
            is_json = headers.get("content-type", "").startswith("application/json")
            length = int(headers.get("content-length", 0))
            return int(first.split()[1]), headers, json.loads(body[:length]) if is_json else body
    return 0, {}, None


def is_closed(line: socket.socket, within_s: float = LATE_S) -> bool:
    """Whether the server closes the connection in time; what it sends before is discarded."""
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        line.settimeout(max(0.01, end - time.monotonic()))
        try:
            if not line.recv(1 << 16):
                return True
        except TimeoutError:
            return False
        except OSError:
            return True
    return False


def eventually(check: Any, within_s: float = LATE_S) -> bool:
    """Whether it becomes true in time."""
    end = time.monotonic() + within_s
    while not check():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def log_events(server: LiveServer, event: str) -> list[dict[str, Any]]:
    """Lines of the server's log with this event."""
    entries = [json.loads(text) for text in server.log().splitlines()]
    return [entry for entry in entries if entry["event"] == event]


def n_closed(server: LiveServer, reason: str) -> int:
    """Connections closed by the server, from its metrics."""
    text = server.request("GET", "/metrics").data.decode()
    wanted = f'fedbandit_closed_connections_total{{reason="{reason}"}} '
    return sum(int(float(line.removeprefix(wanted))) for line in text.splitlines() if line.startswith(wanted))
