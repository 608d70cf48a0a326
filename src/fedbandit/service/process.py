"""A server process: listen, say where, hand out the first admin token, and stop without losing an upload."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import FrameType
from typing import Any, cast

import uvicorn
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from fedbandit.errors import InvalidParameter
from fedbandit.service import admin
from fedbandit.service.app import make_app
from fedbandit.service.desk import Desk
from fedbandit.service.express import Express
from fedbandit.service.parts import Parts, make_parts
from fedbandit.service.protocol import Protocol
from fedbandit.service.settings import ServerSettings
from fedbandit.service.telemetry import LibraryLog, make_logger

SWITCH_INTERVAL_S = 0.0001  # the writer thread must not wait 5 ms for the event loop's thread after each statement


def run(
    settings: ServerSettings,
    *,
    new_admin_token: bool = False,
    say: Callable[[str], None] = print,
    page: Callable[[Parts], Sequence[BaseRoute]] | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT; `page` makes routes that stand beside the JSON surface."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    log = make_logger(settings.log_level)
    parts = make_parts(settings, log)
    listener = _listen(settings.host, settings.port)
    desk = Desk(parts)
    app = make_app(parts, routes=page(parts) if page else (), desk=desk)
    server = _Server(_config(settings, app, Express(desk, parts.coordinator)))
    server.stopping = parts.stopping
    with LibraryLog(log), asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_serve(server, parts, listener, new_admin_token, say))


async def _serve(
    server: _Server, parts: Parts, listener: socket.socket, new_admin_token: bool, say: Callable[[str], None]
) -> None:
    # Opened and written to before anybody is let in, so that a store that cannot be used is told plainly.
    await parts.start()
    token = await admin.first_admin_token(parts, renew=new_admin_token)

    async def announce() -> None:
        _calm_collector()
        host, port = listener.getsockname()[:2]
        if token is not None:
            say(f"admin token, shown only this once: {token}")
        address = f"[{host}]" if ":" in host else host
        say(f"fedbandit serves on {parts.settings.scheme}://{address}:{port}")

    server.announce = announce
    await server.serve(sockets=[listener])


def _calm_collector() -> None:
    """What was imported stays: the garbage collector need not look at it, nor run every few hundred objects."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


class _Server(uvicorn.Server):
    """uvicorn, which tells when it listens, and ends by itself after a signal instead of by the signal."""

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


def _config(settings: ServerSettings, app: ASGIApp, express: Express | None) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=cast(Any, partial(Protocol, express=express)),
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        backlog=4096,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=int(settings.drain_timeout_s) or 1,
        ssl_certfile=settings.tls_cert or None,
        ssl_keyfile=settings.tls_key or None,
        ssl_ca_certs=settings.client_ca or None,
        ssl_cert_reqs=ssl.CERT_REQUIRED if settings.client_ca else ssl.CERT_NONE,
    )


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise InvalidParameter(f"cannot listen on {host}:{port}: {error.strerror or error}") from None
    return listener


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
