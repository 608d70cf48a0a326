"""All open connections of a server process: how many there may be, which are closed first, and what answers may wait.

A connection on which no valid token was presented is closed before one that has presented a token, the oldest first.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter as Counts
from contextvars import ContextVar
from typing import Any, Protocol

from fedbandit.service.http.body_memory import BodyMemory
from fedbandit.service.settings import ServerSettings
from fedbandit.service.telemetry import Metrics, RequestIds

if sys.platform != "win32":
    import resource

RESERVED_DESCRIPTORS = 64  # for the store, logs, threads and the listener
MAX_BACKLOG = 4096
LOG_INTERVAL_S = 1.0


class Connection(Protocol):
    """What is asked of a connection."""

    def abort(self) -> None:
        """End it now, with whatever was not sent."""

    def unsent_bytes(self) -> int:
        """How much of its answers the client has not taken."""

    def take_body(self) -> None:
        """The handler of its request reads the body."""


CURRENT: ContextVar[tuple[Connections, Connection] | None] = ContextVar("connection", default=None)


def mark_authenticated() -> None:
    """The request that is being handled has presented a valid token."""
    current = CURRENT.get()
    if current is not None:
        registry, connection = current
        registry.authenticated(connection)


def take_body() -> None:
    """The handler of the request begins to read its body, within memory of its own."""
    current = CURRENT.get()
    if current is not None:
        current[1].take_body()


class Connections:
    """Counts connections and keeps their number, and the memory of unread answers, within limits."""

    def __init__(
        self, settings: ServerSettings, memory: BodyMemory, metrics: Metrics, log: Any, request_ids: RequestIds
    ) -> None:
        self.settings = settings
        self.memory = memory
        self.request_ids = request_ids
        self.log = log
        self.backlog, self.limit = _limits(settings.max_connections)
        self._max_unsent = settings.max_outgoing_mb << 20
        self._unknown: dict[Connection, None] = {}  # no valid token so far; in the order in which they came
        self._known: set[Connection] = set()
        self._idle: dict[Connection, None] = {}  # between requests; the longest first
        self._unsent: dict[Connection, int] = {}  # answers that are too long for the client's buffers; oldest first
        self._n_unsent = 0
        self._reasons: Counts[str] = Counts()
        self._closed = metrics.closed_connections
        metrics.connections.set_function(self.__len__)

    def __len__(self) -> int:
        return len(self._unknown) + len(self._known)

    def opened(self, connection: Connection) -> bool:
        """One more. Beyond the limit the oldest without a token is closed for it, or else the one that is idle longest;
        False if there is neither.
        """
        self._unknown[connection] = None
        if len(self) <= self.limit:
            return True
        victim = next(iter(self._unknown))
        if victim is connection:
            victim = next(iter(self._idle), connection)
        if victim is not connection:
            self.drop(victim, "connection_limit")
        return victim is not connection

    def authenticated(self, connection: Connection) -> None:
        """A valid token came on it."""
        if connection in self._unknown:
            del self._unknown[connection]
            self._known.add(connection)

    def idle(self, connection: Connection) -> None:
        """It waits for its client's next request."""
        self._idle[connection] = None

    def busy(self, connection: Connection) -> None:
        """The next request has begun."""
        self._idle.pop(connection, None)

    def closed(self, connection: Connection) -> None:
        """It is no more."""
        self._unknown.pop(connection, None)
        self._known.discard(connection)
        self._idle.pop(connection, None)
        self.sent(connection)

    def unsent(self, connection: Connection) -> None:
        """Its client does not take an answer as fast as it is written. Beyond the limit the slowest are ended."""
        self.sent(connection)
        n_bytes = self._unsent[connection] = connection.unsent_bytes()
        self._n_unsent += n_bytes
        while self._n_unsent > self._max_unsent and len(self._unsent) > 1:
            self.drop(next(iter(self._unsent)), "unread_answers")

    def sent(self, connection: Connection) -> None:
        """Its client has taken what there was."""
        self._n_unsent -= self._unsent.pop(connection, 0)

    def drop(self, connection: Connection, reason: str) -> None:
        """End a connection that costs too much."""
        self.closed(connection)
        self.count(reason)
        connection.abort()

    def count(self, reason: str) -> None:
        """A connection is ended by the server; at most one line a second tells how many, and why."""
        self._closed.labels(reason).inc()
        if not self._reasons:
            asyncio.get_running_loop().call_later(LOG_INTERVAL_S, self._report)
        self._reasons[reason] += 1

    def _report(self) -> None:
        reasons, self._reasons = dict(self._reasons), Counts()
        self.log.warning("connections_closed", reasons=reasons, open=len(self), limit=self.limit)


def raise_descriptor_limit() -> None:
    """As many descriptors as the system lets us have."""
    if sys.platform == "win32":
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):  # pragma: no cover - some systems have less than they say
        return


def _limits(max_connections: int) -> tuple[int, int]:
    """How many connections may wait to be accepted, and how many may be open.

    All that wait may be accepted in one turn of the event loop, before any other can be closed.
    """
    n_descriptors = 1 << 20
    if sys.platform != "win32":
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        n_descriptors = n_descriptors if soft == resource.RLIM_INFINITY else soft
    backlog = max(1, min(MAX_BACKLOG, n_descriptors // 4))
    return backlog, max(1, min(max_connections, n_descriptors - backlog - RESERVED_DESCRIPTORS))
