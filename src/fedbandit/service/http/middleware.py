"""Around the JSON surface: a request id for each call, a limit on bodies, a log line, and no answer without a shape."""

from __future__ import annotations

import time
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fedbandit.errors import FedbanditError
from fedbandit.service.container import Container
from fedbandit.service.http import error_responses
from fedbandit.service.http.bodies import Disconnected, body_of

API = "/v1/"
BODIES = frozenset({"POST", "PUT", "PATCH"})
QUIET = frozenset({"/healthz", "/readyz", "/metrics"})  # asked every few seconds by machines


class RequestMiddleware:
    """Plain ASGI middleware."""

    def __init__(self, app: ASGIApp, container: Container) -> None:
        self._app = app
        self._container = container
        self._limit = container.settings.max_json_kb << 10

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] not in BODIES or not scope["path"].startswith(API):
            await self._app(scope, receive, send)  # nothing there reads a body
            return
        await self._container.gate.principal(_authorization(scope))  # nobody's body is read without a token
        container = self._container
        limits: Any = {"limit": self._limit, "timeout_s": container.settings.body_timeout_s}
        async with body_of(scope, receive, container.memory, **limits) as body:
            await self._app(scope, _again(body, receive), send)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        request_id = self._container.request_ids.next()
        status = 0

        async def send_named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
            await send(message)

        try:
            await self._pass_on(scope, receive, send_named)
        except Disconnected:
            return
        except FedbanditError as error:
            code = error_responses.status_of(error)
            await _send_problem(send_named, code, error.code, str(error), error_responses.extra_headers(code, error))
        except Exception as error:
            # The client gets a shape, the operator the traceback.
            self._container.log.error("internal_error", request=request_id, path=scope["path"], exc_info=error)
            if not status:
                await _send_problem(send_named, 500, *error_responses.INTERNAL)
        if scope["path"] not in QUIET:
            spent = round(1e3 * (time.perf_counter() - began), 2)
            about = {"request": request_id, "method": scope["method"], "path": scope["path"]}
            self._container.log.info("request", **about, status=status, ms=spent)


def _again(body: bytes, receive: Receive) -> Receive:
    """`receive` with the body read already, so that it is refused by us rather than in a parser's words."""
    whole: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return whole.pop() if whole else await receive()

    return receive_again


def _authorization(scope: Scope) -> str | None:
    return next((value.decode("latin-1") for name, value in scope["headers"] if name == b"authorization"), None)


async def _send_problem(send: Send, status: int, code: str, text: str, headers: dict[str, str] | None = None) -> None:
    body = error_responses.body_of(code, text)
    about = {"Content-Type": error_responses.JSON, "Content-Length": str(len(body)), **(headers or {})}
    pairs = [(name.lower().encode(), value.encode()) for name, value in about.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": body})
