"""One HTTP/1.1 connection: a request out, a bounded response in, connecting and TLS included, all before one deadline.

A socket's timeout bounds one read. A server that sends a byte per second never exceeds it, so each step here gets what
is left of the whole call. Only the host name lookup is up to the system.

Written on sockets, because a general client runs half a millisecond of Python code per request, a tenth of which is
enough here: the threads of an application wait for the interpreter's lock while the background thread runs it.
"""

from __future__ import annotations

import re
import socket
import ssl
import time
from collections.abc import Callable
from typing import NamedTuple

MAX_HEAD_BYTES = 1 << 16
PIECE = 1 << 16  # bytes received at once
FIRST = 1 << 14  # bytes sent with the head: sent apart, head and body wake the server twice
MAX_INTERIM = 8  # responses "wait", of status 1xx, before the real one
STATUS = re.compile(r"HTTP/1\.([01]) ([1-9][0-9][0-9])(?: .*)?")
NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
NO_BODY = frozenset({204, 304})


class TooLong(ValueError):
    """A body is longer than allowed."""


class Malformed(ValueError):
    """What came is no HTTP."""


class Head(NamedTuple):
    """Status and headers of a response, names in small letters; whether the connection may be used again."""

    status: int
    headers: dict[str, str]
    is_kept: bool


class HttpConnection:
    """A connected socket; calls come one at a time. `pause` is called between the steps of a call.

    After any exception from `request` it is of no more use and must be closed.
    """

    def __init__(self, connected: socket.socket, pause: Callable[[], None]) -> None:
        self._socket = connected
        self._pause = pause
        self._until = 0.0
        self._received, self._at = b"", 0  # bytes that came, and how many of them were taken
        self._is_kept = True

    @classmethod
    def open(
        cls, host: str, port: int, *, tls: ssl.SSLContext | None, until: float, pause: Callable[[], None]
    ) -> HttpConnection:
        """Connect to the first address that accepts, before `until` on the monotonic clock."""
        failure: OSError = OSError("no address was found")
        for family, kind, protocol, _, address in socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM):
            connection = socket.socket(family, kind, protocol)
            try:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.settimeout(_left_s(until))
                connection.connect(address)
                connection.settimeout(_left_s(until))  # for the handshake of TLS, which keeps to it as a whole
                return cls(connection if tls is None else tls.wrap_socket(connection, server_hostname=host), pause)
            except OSError as error:
                connection.close()
                failure = error
            except BaseException:  # raised by a signal handler, or a name that TLS cannot check
                connection.close()
                raise
        raise failure

    def certificate(self) -> bytes:
        """The server's certificate (DER); empty without TLS."""
        return (self._socket.getpeercert(binary_form=True) or b"") if isinstance(self._socket, ssl.SSLSocket) else b""

    def close(self) -> None:
        """Close it."""
        self._is_kept = False
        self._socket.close()

    def __del__(self) -> None:
        self._socket.close()

    def is_usable(self) -> bool:
        """Whether another request can be sent: the server has neither closed it nor sent what nobody asked for."""
        if not self._is_kept:
            return False
        try:
            self._socket.settimeout(0.0)
            socket.socket.recv(self._socket, 1, socket.MSG_PEEK)  # below TLS: is there anything at all?
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def request(self, head: bytes, body: bytes, *, max_body_bytes: int, until: float) -> tuple[Head, bytes]:
        """Send a request and read the response; `OSError`, `Malformed` or `TooLong`."""
        self._until = until
        try:
            self._send(head + body[:FIRST])
            if len(body) > FIRST:
                self._send(memoryview(body)[FIRST:])
        except BrokenPipeError:
            self._is_kept = False  # the server may have said why before it stopped reading
        found = self._read_head()
        for _ in range(MAX_INTERIM):
            if found.status >= 200:
                break
            found = self._read_head()
        if found.status < 200:
            raise Malformed(f"status {found.status} instead of a response")
        self._pause()
        content = self._read_body(found, max_body_bytes)
        self._is_kept = self._is_kept and found.is_kept and self._at == len(self._received)
        return found, content

    # -- writing and reading -----------------------------------------------------------------------------------

    def _send(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        while view:
            self._socket.settimeout(_left_s(self._until))
            self._pause()  # before the call: whoever waits for the interpreter's lock now has it while the system sends
            view = view[self._socket.send(view) :]

    def _receive(self) -> bytes:
        """Some bytes; none at the end of the connection."""
        self._socket.settimeout(_left_s(self._until))
        return self._socket.recv(PIECE)

    def _take_until(self, mark: bytes) -> bytes:
        """Everything before `mark`, which is taken as well."""
        while (end := self._received.find(mark, self._at)) < 0:
            if len(self._received) - self._at > MAX_HEAD_BYTES:
                raise Malformed(f"more than {MAX_HEAD_BYTES} bytes of headers")
            self._received, self._at = self._received[self._at :] + (self._receive() or _closed()), 0
        found, self._at = self._received[self._at : end], end + len(mark)
        return found

    def _take(self, n_bytes: int) -> bytes:
        """Exactly so many bytes."""
        pieces, missing = [], n_bytes
        while True:
            piece = self._received[self._at : self._at + missing]
            self._at += len(piece)
            missing -= len(piece)
            pieces.append(piece)
            if missing == 0:
                return b"".join(pieces) if len(pieces) > 1 else piece
            self._pause()
            self._received, self._at = self._receive() or _closed(), 0

    # -- responses ---------------------------------------------------------------------------------------------

    def _read_head(self) -> Head:
        first, *lines = self._take_until(b"\r\n\r\n").decode("latin-1").split("\r\n")
        status = STATUS.fullmatch(first)
        if status is None:
            raise Malformed("no HTTP/1.1 status line")
        self._pause()
        headers: dict[str, str] = {}
        for line in lines:
            name, colon, value = line.partition(":")
            if not colon or NAME.fullmatch(name) is None:
                raise Malformed("a line that is no header")
            key, text = name.lower(), value.strip(" \t")
            headers[key] = f"{headers[key]}, {text}" if key in headers else text
        asked = headers.get("connection", "").lower()
        is_kept = "close" not in asked if status[1] == "1" else "keep-alive" in asked
        return Head(int(status[2]), headers, is_kept)

    def _read_body(self, head: Head, most: int) -> bytes:
        if head.status in NO_BODY:
            return b""
        encoding = head.headers.get("transfer-encoding", "identity").lower()
        if encoding == "chunked":
            self._is_kept &= "content-length" not in head.headers  # two lengths: whoever reads the other one is lost
            return self._read_chunks(most)
        if encoding != "identity":
            raise Malformed(f"transfer encoding {encoding[:40]!r}, which was not asked for")
        if "content-length" not in head.headers:
            return self._read_to_end(most)
        lengths = {text.strip() for text in head.headers["content-length"].split(",")}
        length = lengths.pop()
        if lengths or not (length.isascii() and length.isdecimal()) or len(length) > 18:
            raise Malformed("no single content length")
        if int(length) > most:
            raise TooLong
        return self._take(int(length))

    def _read_chunks(self, most: int) -> bytes:
        chunks: list[bytes] = []
        while True:
            size = self._take_until(b"\r\n").partition(b";")[0].strip()
            if not size or len(size) > 15 or not set(size) <= set(b"0123456789abcdefABCDEF"):
                raise Malformed("no length of a chunk")
            n_bytes = int(size, 16)
            most -= n_bytes
            if most < 0:
                raise TooLong
            if n_bytes == 0:
                break
            chunks.append(self._take(n_bytes))
            if self._take(2) != b"\r\n":
                raise Malformed("a chunk that does not end where it should")
        while self._take_until(b"\r\n"):
            pass  # headers after the body
        return b"".join(chunks)

    def _read_to_end(self, most: int) -> bytes:
        self._is_kept = False
        pieces = [self._received[self._at :]]
        self._received, self._at = b"", 0
        most -= len(pieces[0])
        while most >= 0 and (piece := self._receive()):
            pieces.append(piece)
            most -= len(piece)
        if most < 0:
            raise TooLong
        return b"".join(pieces)


def _left_s(until: float) -> float:
    left = until - time.monotonic()
    if left <= 0.0:
        raise TimeoutError("timed out")
    return left


def _closed() -> bytes:
    raise ConnectionError("the connection was closed before the end of the response")
