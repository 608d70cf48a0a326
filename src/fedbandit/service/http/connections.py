"""All open connections of a server process: their number, which are closed first, the memory of bodies and responses.

At the limit a connection that has presented no valid token is closed before one that has, the oldest first.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from contextvars import ContextVar
from typing import Any, Protocol

from fedbandit.errors import Overloaded
from fedbandit.service.settings import ServerSettings
from fedbandit.service.telemetry import Metrics, RequestIds

if sys.platform != "win32":
    import resource

RESERVED_DESCRIPTORS = 64  # for the store, logs, threads and the listener
MAX_BACKLOG = 4096
LOG_INTERVAL_S = 1.0


class Connection(Protocol):
    """What the registry needs of a connection."""

    def abort(self) -> None:
        """Close it now and discard what was not sent."""

    def unsent_bytes(self) -> int:
        """Bytes of responses that the client has not taken."""

    def body_read_begins(self) -> bool:
        """The application reads the body of its request, within memory of its own; whether the body is complete."""


CURRENT: ContextVar[tuple[Connections, Connection] | None] = ContextVar("connection", default=None)


def mark_authenticated() -> None:
    """The current request presented a valid token."""
    current = CURRENT.get()
    if current is not None:
        registry, connection = current
        registry.authenticated(connection)


def body_read_begins() -> bool:
    """The application reads the body of the current request; whether the server has all of it already."""
    current = CURRENT.get()
    return current is not None and current[1].body_read_begins()


class BodyMemory:
    """Counts the bytes of request bodies in memory, and refuses to exceed `limit`."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.n_bytes = 0

    def reserve(self, n_bytes: int) -> None:
        """Reserve memory before a body is read; `Overloaded` if the budget is used up. Pair with `release`."""
        if self.n_bytes + n_bytes > self._limit:
            raise Overloaded("too many bodies are in memory")
        self.n_bytes += n_bytes

    def release(self, n_bytes: int) -> None:
        """Return memory that was reserved."""
        self.n_bytes -= n_bytes


class Connections:
    """A registry that bounds the number of connections and the memory of unread responses."""

    def __init__(
        self, settings: ServerSettings, memory: BodyMemory, metrics: Metrics, log: Any, request_ids: RequestIds
    ) -> None:
        self.settings = settings
        self.memory = memory
        self.request_ids = request_ids
        self.log = log
        self.backlog, self.limit = _limits(settings.max_connections)
        self._max_unsent = settings.max_outgoing_mb << 20
        self._anonymous: dict[Connection, None] = {}  # no valid token so far; oldest first
        self._authenticated: set[Connection] = set()
        self.idle: dict[Connection, None] = {}  # all requests answered, and the next one not begun; longest idle first
        self._unsent: dict[Connection, int] = {}  # responses larger than the client's buffers; oldest first
        self._n_unsent = 0
        self._reasons: Counter[str] = Counter()
        self._closed = metrics.closed_connections
        metrics.connections.set_function(self.__len__)

    def __len__(self) -> int:
        return len(self._anonymous) + len(self._authenticated)

    def opened(self, connection: Connection) -> bool:
        """Register a connection; False if it must be refused.

        Beyond the limit the oldest connection without a token is closed for it, or else the longest idle one.
        """
        self._anonymous[connection] = None
        if len(self) <= self.limit:
            return True
        victim = next(iter(self._anonymous))
        if victim is connection:
            victim = next(iter(self.idle), connection)
        if victim is not connection:
            self.drop(victim, "connection_limit")
        return victim is not connection

    def authenticated(self, connection: Connection) -> None:
        """A valid token was presented on the connection."""
        if connection in self._anonymous:
            del self._anonymous[connection]
            self._authenticated.add(connection)

    def closed(self, connection: Connection) -> None:
        """Remove a connection; nothing happens if it is not registered."""
        self._anonymous.pop(connection, None)
        self._authenticated.discard(connection)
        self.idle.pop(connection, None)
        self.sent(connection)

    def unsent(self, connection: Connection) -> None:
        """The client takes a response more slowly than it is written. Beyond the limit the oldest such are dropped."""
        self.sent(connection)
        n_bytes = self._unsent[connection] = connection.unsent_bytes()
        self._n_unsent += n_bytes
        while self._n_unsent > self._max_unsent and len(self._unsent) > 1:
            self.drop(next(iter(self._unsent)), "unread_responses")

    def sent(self, connection: Connection) -> None:
        """The client has taken everything that was written."""
        self._n_unsent -= self._unsent.pop(connection, 0)

    def drop(self, connection: Connection, reason: str) -> None:
        """Close a connection to stay within a limit."""
        self.closed(connection)
        self.count(reason)
        connection.abort()

    def count(self, reason: str) -> None:
        """Count a connection that the server closed; at most one log entry per second lists the reasons."""
        self._closed.labels(reason).inc()
        if not self._reasons:
            asyncio.get_running_loop().call_later(LOG_INTERVAL_S, self._log_closed)
        self._reasons[reason] += 1

    def _log_closed(self) -> None:
        reasons, self._reasons = dict(self._reasons), Counter()
        self.log.warning("connections_closed", reasons=reasons, open=len(self), limit=self.limit)


def raise_descriptor_limit() -> None:
    """Raise the limit of open descriptors to the hard limit of the system."""
    if sys.platform == "win32":
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):  # pragma: no cover - some systems allow less than they report
        return


def _limits(max_connections: int) -> tuple[int, int]:
    """The length of the listen backlog, and the number of open connections.

    The whole backlog may be accepted in one iteration of the event loop, before any connection can be closed.
    """
    n_descriptors = 1 << 20
    if sys.platform != "win32":
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        n_descriptors = n_descriptors if soft == resource.RLIM_INFINITY else soft
    backlog = max(1, min(MAX_BACKLOG, n_descriptors // 4))
    return backlog, max(1, min(max_connections, n_descriptors - backlog - RESERVED_DESCRIPTORS))
