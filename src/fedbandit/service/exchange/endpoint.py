"""The exchange, `POST /v1/models/{model}/sync`: a plain ASGI application in front of the router."""

from __future__ import annotations

import asyncio
import re

from starlette.types import ASGIApp, Receive, Scope, Send

from fedbandit.errors import FedbanditError
from fedbandit.service.container import Container
from fedbandit.service.exchange.handler import ExchangeContext, ExchangeHandler, ExchangeReply
from fedbandit.service.http import error_responses
from fedbandit.service.http.request_body import ClientDisconnected, header, read_body

ROUTE = "/v1/models/{model}/sync"
PATH = re.compile(ROUTE.replace("{model}", "([^/]+)"))
LARGE_DIM = 200  # from this dimension on, hashes, copies and factorisations run outside the event loop
METHOD_NOT_ALLOWED = ExchangeReply(
    405,
    error_responses.body_of("method_not_allowed", "an exchange is a POST"),
    "refused",
    ((b"content-type", error_responses.JSON.encode()), (b"allow", b"POST")),
)


class ExchangeEndpoint:
    """Answers exchanges; all other requests go to `app`."""

    def __init__(self, container: Container, app: ASGIApp, handler: ExchangeHandler | None = None) -> None:
        self.app = app
        self._coordinator = container.coordinator
        self._handler = ExchangeHandler(container) if handler is None else handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        target = PATH.fullmatch(scope["path"]) if scope["type"] == "http" else None
        if target is None:
            await self.app(scope, receive, send)
            return
        context = self._handler.begin(target[1])
        if scope["method"] != "POST":
            await _send(send, METHOD_NOT_ALLOWED, context.request_id)
            return
        try:
            reply = await self._exchange(context, scope, receive)
        except ClientDisconnected:
            return
        except Exception as error:  # noqa: BLE001 - `failed` has a reply for every error
            reply = self._handler.failed(context, error)
        await _send(send, reply, context.request_id)
        self._handler.record(context, reply)

    async def _exchange(self, context: ExchangeContext, scope: Scope, receive: Receive) -> ExchangeReply:
        handler = self._handler
        handler.require_capacity(context.model)
        if not handler.authenticate(context, header(scope, b"authorization")):
            await handler.look_up(context)
        try:
            async with read_body(
                scope, receive, handler.memory, limit=context.cached.max_bytes, timeout_s=handler.body_timeout_s
            ) as body:
                handler.require_capacity(context.model)  # other uploads may have arrived since the first check
                if context.cached.settings.dim < LARGE_DIM:
                    upload = handler.checked(context, body)
                else:
                    upload = await asyncio.to_thread(handler.checked, context, body)
                result = await self._coordinator.receive(context.model, upload)
        except FedbanditError as error:
            raise await handler.explain(context, error) from None
        if context.cached.settings.dim < LARGE_DIM:
            return handler.accepted(context, result)
        return await asyncio.to_thread(handler.accepted, context, result)


async def _send(send: Send, reply: ExchangeReply, request_id: str) -> None:
    headers = [
        *reply.headers,
        (b"content-length", b"%d" % len(reply.body)),
        (b"x-request-id", request_id.encode()),
    ]
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})
