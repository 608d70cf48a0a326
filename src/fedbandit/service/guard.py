"""Around the JSON surface: a request id for each call, a limit on bodies, a log line, and no answer without a shape."""

from __future__ import annotations

import asyncio
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fedbandit.errors import BodyTooLarge, BodyTooSlow
from fedbandit.service import problems
from fedbandit.service.parts import Parts

BODIES = frozenset({"POST", "PUT", "PATCH"})
QUIET = frozenset({"/healthz", "/readyz", "/metrics"})  # asked every few seconds by machines


class Guard:
    """Plain ASGI middleware."""

    def __init__(self, app: ASGIApp, parts: Parts) -> None:
        self._app = app
        self._parts = parts
        self._limit = parts.settings.max_json_kb << 10

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        request_id = self._parts.request_ids.next()
        status = 0

        async def send_named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
            await send(message)

        try:
            settings = self._parts.settings
            whole = await _whole_body(scope, receive, self._limit, settings.body_timeout_s)
            await self._app(scope, whole, send_named)
        except (BodyTooLarge, BodyTooSlow) as error:
            code = problems.status_of(error)
            await _send_problem(send_named, code, error.code, str(error), problems.extra_headers(code, error))
        except Exception as error:
            # The client gets a shape, the operator the traceback.
            self._parts.log.error("internal_error", request=request_id, path=scope["path"], exc_info=error)
            if not status:
                await _send_problem(send_named, 500, *problems.INTERNAL)
        if scope["path"] not in QUIET:
            spent = round(1e3 * (time.perf_counter() - began), 2)
            about = {"request": request_id, "method": scope["method"], "path": scope["path"]}
            self._parts.log.info("request", **about, status=status, ms=spent)


async def _whole_body(scope: Scope, receive: Receive, limit: int, timeout_s: float) -> Receive:
    """`receive` with the body read already: bounded, in time, and refused by us rather than in a parser's words."""
    if scope["method"] not in BODIES:
        return receive
    body = bytearray()
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                message = await receive()
                body += message.get("body", b"")
                if len(body) > limit:
                    raise BodyTooLarge(f"expected a body of at most {limit} bytes")
                if not message.get("more_body", False):
                    break
    except TimeoutError:
        raise BodyTooSlow("the body did not arrive in time") from None
    whole: list[Message] = [{"type": "http.request", "body": bytes(body), "more_body": False}]

    async def receive_again() -> Message:
        return whole.pop() if whole else await receive()

    return receive_again


async def _send_problem(send: Send, status: int, code: str, text: str, headers: dict[str, str] | None = None) -> None:
    body = problems.body_of(code, text)
    about = {"Content-Type": problems.JSON, "Content-Length": str(len(body)), **(headers or {})}
    pairs = [(name.lower().encode(), value.encode()) for name, value in about.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": body})
