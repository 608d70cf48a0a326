"""The exchange: `POST /v1/models/{model}/sync`, an upload in and a download out, as plain ASGI under Starlette.

A server process answers most exchanges one layer below (`express.py`); this is for whatever is not plain enough there.
"""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.types import Receive, Scope, Send

from fedbandit.errors import FedbanditError
from fedbandit.service.container import Container
from fedbandit.service.exchange.coordinator import MergeResult
from fedbandit.service.exchange.handler import ExchangeContext, ExchangeHandler
from fedbandit.service.exchange.ledger import IncomingUpload
from fedbandit.service.exchange.replies import ExchangeReply
from fedbandit.service.http import error_responses
from fedbandit.service.http.bodies import Disconnected, body_of
from fedbandit.wire import codec

BIG_DIM = 200  # from here on hashes, copies and factorisations are too long for the event loop
CONTENT_TYPE = codec.CONTENT_TYPE.encode()
JSON = error_responses.JSON.encode()
NO_SUCH_METHOD = ExchangeReply(
    405, error_responses.body_of("method_not_allowed", "an exchange is a POST"), "", {"Allow": "POST"}
)


class ExchangeEndpoint:
    """Glue: a body from ASGI, over the desk to the coordinator, and its answer back."""

    def __init__(self, container: Container, desk: ExchangeHandler | None = None) -> None:
        self._coordinator = container.coordinator
        self._handler = ExchangeHandler(container) if desk is None else desk

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        visit = self._handler.visit(scope["path_params"]["model"])
        if scope["method"] != "POST":
            await _send(send, NO_SUCH_METHOD, visit.request_id)
            return
        try:
            outcome = await self._accepted(visit, await self._exchange(visit, scope, receive))
        except Disconnected:
            return
        except Exception as error:  # noqa: BLE001 - whatever it is, the desk has an answer
            outcome = self._handler.failed(visit, error)
        await _send(send, outcome, visit.request_id)
        self._handler.note(visit, outcome)

    async def _exchange(self, visit: ExchangeContext, scope: Scope, receive: Receive) -> MergeResult:
        desk = self._handler
        desk.require_capacity(visit.model)
        if not desk.recognise(visit, _authorization(scope)):
            await desk.look_up(visit)
        limits: Any = {"limit": visit.max_bytes, "timeout_s": desk.body_timeout_s, "of": " for this model"}
        try:
            async with body_of(scope, receive, desk.memory, **limits) as body:
                desk.require_capacity(visit.model)  # a long body comes in pieces, and meanwhile others came
                upload = await self._checked(visit, body)
                return await self._coordinator.receive(visit.model, upload)
        except FedbanditError as error:
            raise await desk.explain(visit, error) from None

    async def _checked(self, visit: ExchangeContext, body: bytes) -> IncomingUpload:
        desk = self._handler

        def check() -> IncomingUpload:
            return desk.checked(visit, desk.decoded(visit, body), len(body))

        return await asyncio.to_thread(check) if visit.settings.dim >= BIG_DIM else check()

    async def _accepted(self, visit: ExchangeContext, answer: MergeResult) -> ExchangeReply:
        if visit.settings.dim >= BIG_DIM:
            return await asyncio.to_thread(self._handler.accepted, visit, answer)
        return self._handler.accepted(visit, answer)


def _authorization(scope: Scope) -> str | None:
    return next((value.decode("latin-1") for name, value in scope["headers"] if name == b"authorization"), None)


async def _send(send: Send, outcome: ExchangeReply, request_id: str) -> None:
    headers = [
        (b"content-type", CONTENT_TYPE if outcome.status == 200 else JSON),
        (b"content-length", str(len(outcome.body)).encode()),
        (b"x-request-id", request_id.encode()),
        *((name.lower().encode(), value.encode()) for name, value in outcome.headers.items()),
    ]
    await send({"type": "http.response.start", "status": outcome.status, "headers": headers})
    await send({"type": "http.response.body", "body": outcome.body})
