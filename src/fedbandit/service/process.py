"""A server process: listen, print the address and the first admin token, and stop without losing an upload."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import FrameType
from typing import Any

import uvicorn
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from fedbandit.errors import InvalidParameter
from fedbandit.service.admin import operations
from fedbandit.service.app import make_app
from fedbandit.service.container import Container, make_container
from fedbandit.service.http.bounded_protocol import BoundedProtocol
from fedbandit.service.http.connections import Connections, raise_descriptor_limit
from fedbandit.service.settings import ServerSettings
from fedbandit.service.telemetry import LibraryLog, make_logger
from fedbandit.service.tls import make_context, within_tls

UNSENT_BYTES = 128 << 10  # in the send buffer of one connection
SWITCH_INTERVAL_S = 0.0001  # the default of 5 ms would delay the writer thread after each statement


def run(
    settings: ServerSettings,
    *,
    new_admin_token: bool = False,
    say: Callable[[str], None] = print,
    dashboard: Callable[[Container], Sequence[BaseRoute]] | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT; `dashboard` makes the routes that precede those of the API."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    log = make_logger(settings.log_level)
    container = make_container(settings, log)
    raise_descriptor_limit()
    connections = connections_of(container)
    listener = _listen(settings.host, settings.port)
    app = make_app(container, routes=dashboard(container) if dashboard else ())
    server = _Server(_config(settings, app, connections))
    server.stopping = container.stopping
    with LibraryLog(log), asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_serve(server, container, listener, new_admin_token, say))


async def _serve(
    server: _Server, container: Container, listener: socket.socket, new_admin_token: bool, say: Callable[[str], None]
) -> None:
    # The store is opened and written to before the server listens, so that a failure is reported at the start.
    await container.start()
    token = await operations.first_admin_token(container, renew=new_admin_token)
    await operations.record_restore(container)

    async def announce() -> None:
        _tune_garbage_collector()
        host, port = listener.getsockname()[:2]
        if token is not None:
            say(f"admin token, shown only this once: {token}")
        address = f"[{host}]" if ":" in host else host
        say(f"fedbandit serves on {container.settings.scheme}://{address}:{port}")

    server.announce = announce
    await server.serve(sockets=[listener])


def _tune_garbage_collector() -> None:
    """Exclude imported objects from collections, and run collections less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


class _Server(uvicorn.Server):
    """uvicorn with a callback once it listens; after a signal it returns instead of raising the signal again."""

    announce: Callable[[], Any]
    stopping: asyncio.Event

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if not self.should_exit:
            await self.announce()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.stopping.set()
        super().handle_exit(sig, frame)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)


def connections_of(container: Container) -> Connections:
    """The connection registry of a server."""
    return Connections(container.settings, container.memory, container.metrics, container.log, container.request_ids)


def _config(settings: ServerSettings, app: ASGIApp, connections: Connections) -> uvicorn.Config:
    make_protocol: Any = partial(BoundedProtocol, connections=connections)
    context = make_context(settings)
    if context is not None:
        make_protocol = within_tls(make_protocol, context, connections)
    return uvicorn.Config(
        app,
        http=make_protocol,
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        backlog=connections.backlog,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=int(settings.drain_timeout_s) or 1,
    )


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if hasattr(socket, "TCP_NOTSENT_LOWAT"):  # unread responses stay in our memory, where they are counted
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
    try:
        listener.bind((host, port))
    except (OSError, TypeError, UnicodeError) as error:  # an invalid host name may raise TypeError
        listener.close()
        reason = getattr(error, "strerror", None) or error
        raise InvalidParameter(f"cannot listen on {host}:{port}: {reason}") from None
    return listener


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
