"""Middleware of the JSON API: request ids, bounded bodies, one log entry per request, one shape of errors."""

from __future__ import annotations

import time
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fedbandit.errors import FedbanditError
from fedbandit.service.container import Container
from fedbandit.service.http import error_responses
from fedbandit.service.http.request_body import ClientDisconnected, header, read_body

API = "/v1/"
METHODS_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})
NOT_LOGGED = frozenset({"/healthz", "/readyz", "/metrics"})  # requested every few seconds by monitoring


class RequestMiddleware:
    """Plain ASGI middleware."""

    def __init__(self, app: ASGIApp, container: Container) -> None:
        self._app = app
        self._container = container
        self._limit = container.settings.max_json_kb << 10

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        request_id = self._container.request_ids.next()
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
            await send(message)

        try:
            await self._handle(scope, receive, send_with_id)
        except ClientDisconnected:
            return
        except FedbanditError as error:
            await _send_error(send_with_id, error_responses.response_to(error))
        except Exception as error:
            self._container.log.error("internal_error", request=request_id, path=scope["path"], exc_info=error)
            if not status:
                await _send_error(send_with_id, error_responses.internal())
        if scope["path"] not in NOT_LOGGED:
            elapsed_s = time.perf_counter() - started
            fields = {"request": request_id, "method": scope["method"], "path": scope["path"]}
            if self._container.open_telemetry is not None:
                name = f"{scope['method']} request"  # paths have names of models and agents: too many for span names
                self._container.open_telemetry.request(name, elapsed_s, status=status, attributes=fields)
            self._container.log.info("request", **fields, status=status, ms=round(1e3 * elapsed_s, 2))

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] not in METHODS_WITH_BODY or not scope["path"].startswith(API):
            await self._app(scope, receive, send)  # no such route reads a body
            return
        container = self._container
        await container.authenticator.principal(header(scope, b"authorization"))  # no body is read without a token
        limits: Any = {"limit": self._limit, "timeout_s": container.settings.body_timeout_s}
        async with read_body(scope, receive, container.memory, **limits) as body:
            await self._app(scope, _replayed(body, receive), send)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """`receive` that yields a body which was read before."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return messages.pop() if messages else await receive()

    return replay


async def _send_error(send: Send, response: error_responses.ErrorResponse) -> None:
    headers = [*response.headers, (b"content-length", b"%d" % len(response.body))]
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": response.body})
