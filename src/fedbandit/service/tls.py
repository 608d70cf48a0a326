"""TLS with limits on the number and the duration of handshakes.

asyncio reports a TLS connection only after its handshake, so that unfinished handshakes could exhaust all descriptors.
Here a connection is counted from the moment that it is accepted.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, cast

from fedbandit.errors import InvalidParameter
from fedbandit.service.http.connections import Connections
from fedbandit.service.settings import ServerSettings


def make_context(settings: ServerSettings) -> ssl.SSLContext | None:
    """The TLS context with the server's certificate and the authority of clients'; None without TLS."""
    if not settings.tls_cert:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key)
        if settings.client_ca:
            context.load_verify_locations(settings.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ValueError) as error:
        files = ", ".join(filter(None, (settings.tls_cert, settings.tls_key, settings.client_ca)))
        raise InvalidParameter(f"cannot use {files} for TLS: {error}") from None
    return context


class Handshake(asyncio.Protocol):
    """A connection during its handshake; afterwards the protocol that `make()` returns takes over."""

    _transport: asyncio.Transport

    def __init__(
        self, make: Callable[[], asyncio.Protocol], context: ssl.SSLContext, connections: Connections, timeout_s: float
    ) -> None:
        self._make = make
        self._context = context
        self._connections = connections
        self._timeout_s = timeout_s
        self._early = b""  # data received before the TLS layer, and later before the HTTP protocol, takes over
        self._is_lost = False
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if not self._connections.opened(self):
            self._connections.drop(self, "connection_limit")
            return
        self._transport.pause_reading()  # uvloop starts reading nevertheless
        self._task = asyncio.get_running_loop().create_task(self._run_handshake())

    def data_received(self, data: bytes) -> None:
        self._early += data

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        self._connections.closed(self)

    async def _run_handshake(self) -> None:
        try:
            if not self._transport.is_closing():
                self._hand_over(await self._secured())
        except ssl.SSLError:
            self._connections.count("tls_handshake")
        except ConnectionAbortedError:  # by the timer
            self._connections.count("too_slow")
        except OSError:  # the client disconnected
            pass
        finally:
            self._connections.closed(self)

    async def _secured(self) -> asyncio.Transport | None:
        loop = asyncio.get_running_loop()
        handshake = loop.create_task(
            loop.start_tls(
                self._transport, self, self._context, server_side=True, ssl_handshake_timeout=self._timeout_s
            )
        )
        await asyncio.sleep(0)  # until it has started; data may arrive here before
        early, self._early = self._early, b""
        layer = self._transport.get_protocol()
        if early and layer is not self:
            loop.call_soon(_feed, layer, early)
        return await handshake

    def _hand_over(self, secured: asyncio.Transport | None) -> None:
        if secured is None or secured.is_closing() or self._is_lost:
            self._transport.abort()
            return
        self._connections.closed(self)  # the HTTP protocol registers itself
        protocol = self._make()
        secured.set_protocol(protocol)
        protocol.connection_made(secured)
        if self._early:
            protocol.data_received(self._early)

    # -- the `Connection` protocol

    def abort(self) -> None:
        """Close it now."""
        self._is_lost = True
        self._transport.abort()

    def unsent_bytes(self) -> int:
        """No response is sent before the handshake."""
        return 0

    def body_read_begins(self) -> bool:
        """There is no body before the handshake."""
        return False


def _feed(layer: Any, data: bytes) -> None:
    """Pass data to the TLS layer, a buffered protocol, as its transport does."""
    rest = memoryview(data)
    while rest:
        buffer = memoryview(layer.get_buffer(len(rest)))
        n_bytes = min(len(buffer), len(rest))
        buffer[:n_bytes] = rest[:n_bytes]
        layer.buffer_updated(n_bytes)
        rest = rest[n_bytes:]


def within_tls(
    make: Callable[..., Any], context: ssl.SSLContext, connections: Connections
) -> Callable[..., asyncio.Protocol]:
    """A protocol factory for new connections; `make` is the factory of the protocol inside TLS."""

    def accepted(**options: Any) -> asyncio.Protocol:
        return Handshake(lambda: make(**options), context, connections, connections.settings.head_timeout_s)

    return accepted
