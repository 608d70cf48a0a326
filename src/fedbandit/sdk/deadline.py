"""Connections whose calls end in time: the deadline of a call holds for everything that its sockets do.

A socket's timeout bounds one read. A server that sends a byte a second never exceeds it, so each read here gets what is
left of the whole call: connecting, TLS, head and body together. Only the lookup of the name is up to the system.
"""

from __future__ import annotations

import os
import socket
import ssl
import time
from typing import Any, cast

import urllib3

from fedbandit.sdk.pauses import pause_point


class Deadline:
    """When the call of a transport must be over; calls come one at a time."""

    def __init__(self) -> None:
        self._at = 0.0
        self._open: socket.socket | None = None  # the last connection that was made

    def begin(self, timeout_s: float) -> None:
        """A new call."""
        self._at = time.monotonic() + timeout_s

    def left_s(self) -> float:
        """Seconds that are left; `TimeoutError` when there are none."""
        left = self._at - time.monotonic()
        if left <= 0.0:
            raise TimeoutError("timed out")
        return left

    def holds_for(self, connection: socket.socket) -> None:
        """From now on this connection is the one in use."""
        self._open = connection

    def give_up(self) -> None:
        """Close what a failed call may have left open."""
        connection, self._open = self._open, None
        if connection is not None and connection.fileno() >= 0:
            os.close(connection.detach())  # `close` would wait for a response object that nobody has any more


class _Timed:
    """Socket calls that take no longer than the deadline allows."""

    deadline: Deadline | None = None

    def _limit(self) -> None:
        if self.deadline is not None:
            self.settimeout(self.deadline.left_s())  # type: ignore[attr-defined]

    def recv_into(self, *arguments: Any) -> int:
        self._limit()
        n_bytes = super().recv_into(*arguments)  # type: ignore[misc]
        pause_point()
        return cast("int", n_bytes)

    def send(self, *arguments: Any) -> int:
        self._limit()
        return super().send(*arguments)  # type: ignore[misc,no-any-return]

    def sendall(self, *arguments: Any) -> None:
        self._limit()
        super().sendall(*arguments)  # type: ignore[misc]


class _Socket(_Timed, socket.socket):
    pass


class TimedTLSSocket(_Timed, ssl.SSLSocket):
    """What a context makes of a socket, by its `sslsocket_class`."""


class _OnePiece:
    """A request leaves in one packet: sent apart, head and body wake the server twice."""

    sock: Any
    _held: list[bytes] | None = None

    def __init__(self, *arguments: Any, deadline: Deadline, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._deadline = deadline

    def connect(self) -> None:
        super().connect()  # type: ignore[misc]
        if isinstance(self.sock, _Timed):
            self.sock.deadline = self._deadline
            self._deadline.holds_for(cast("socket.socket", self.sock))

    def _new_conn(self) -> socket.socket:
        """A connection to the first address that takes one."""
        failure: OSError = OSError("no address was found")
        host, port = self._dns_host, self.port  # type: ignore[attr-defined]
        for family, kind, protocol, _, address in socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM):
            connection = _Socket(family, kind, protocol)
            try:
                for option in self.socket_options or ():  # type: ignore[attr-defined]
                    connection.setsockopt(*option)
                connection.deadline = self._deadline
                connection._limit()
                connection.connect(address)
                connection._limit()  # for the handshake of TLS, which keeps to the timeout as a whole
                return connection
            except OSError as error:
                connection.close()
                failure = error
        raise failure

    def request(self, *arguments: Any, **options: Any) -> None:
        pause_point()
        self._held = []
        try:
            super().request(*arguments, **options)  # type: ignore[misc]
            whole = b"".join(self._held)
        finally:
            self._held = None
        pause_point()
        self.send(whole)
        pause_point()

    def getresponse(self) -> Any:
        response = super().getresponse()  # type: ignore[misc]
        pause_point()
        return response

    def putheader(self, *arguments: Any) -> None:
        super().putheader(*arguments)  # type: ignore[misc]
        pause_point()

    def send(self, data: Any) -> None:
        if self._held is None:
            super().send(data)  # type: ignore[misc]
        else:
            self._held.append(data)


class _Connection(_OnePiece, urllib3.connection.HTTPConnection):
    pass


class _SecureConnection(_OnePiece, urllib3.connection.HTTPSConnection):
    pass


class Pool(urllib3.HTTPConnectionPool):
    """Connections in the clear."""

    ConnectionCls = _Connection


class SecurePool(urllib3.HTTPSConnectionPool):
    """Connections by TLS."""

    ConnectionCls = _SecureConnection
