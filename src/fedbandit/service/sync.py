"""The exchange: `POST /v1/models/{model}/sync`, an upload in and a download out, as plain ASGI under Starlette.

A server process answers most exchanges one layer below (`express.py`); this is for whatever is not plain enough there.
"""

from __future__ import annotations

import asyncio

from starlette.types import Message, Receive, Scope, Send

from fedbandit.errors import BodyTooSlow, FedbanditError
from fedbandit.service import problems
from fedbandit.service.coordinator import Answer
from fedbandit.service.desk import Desk, Outcome, Visit, too_large
from fedbandit.service.parts import Parts
from fedbandit.wire import codec

BIG_DIM = 200  # from here on a Cholesky factorisation is too long for the event loop
CONTENT_TYPE = codec.CONTENT_TYPE.encode()
JSON = problems.JSON.encode()
NO_SUCH_METHOD = Outcome(405, problems.body_of("method_not_allowed", "an exchange is a POST"), "", {"Allow": "POST"})


class Disconnected(Exception):
    """The client went away before its body was complete; there is nobody to answer."""


class SyncEndpoint:
    """Glue: a body from ASGI, over the desk to the coordinator, and its answer back."""

    def __init__(self, parts: Parts, desk: Desk | None = None) -> None:
        self._coordinator = parts.coordinator
        self._desk = Desk(parts) if desk is None else desk

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        visit = self._desk.visit(scope["path_params"]["model"])
        if scope["method"] != "POST":
            await _send(send, NO_SUCH_METHOD, visit.request_id)
            return
        try:
            outcome = self._desk.accepted(visit, await self._exchange(visit, scope, receive))
        except Disconnected:
            return
        except Exception as error:  # noqa: BLE001 - whatever it is, the desk has an answer
            outcome = self._desk.failed(visit, error)
        await _send(send, outcome, visit.request_id)
        self._desk.note(visit, outcome)

    async def _exchange(self, visit: Visit, scope: Scope, receive: Receive) -> Answer:
        desk = self._desk
        desk.require_capacity(visit.model)
        headers = _headers(scope)
        if not desk.recognise(visit, headers.get(b"authorization")):
            await desk.look_up(visit)
        body = await self._read(receive, headers, visit.max_bytes)
        desk.require_capacity(visit.model)  # a long body comes in pieces, and meanwhile others came
        request = desk.decoded(visit, body)
        if request.dim >= BIG_DIM:
            upload = await asyncio.to_thread(desk.checked, visit, request, len(body))
        else:
            upload = desk.checked(visit, request, len(body))
        try:
            return await self._coordinator.receive(visit.model, upload)
        except FedbanditError as error:
            raise await desk.explain(visit, error) from None

    async def _read(self, receive: Receive, headers: dict[bytes, str], limit: int) -> bytes:
        """The body, if it is not too long and comes in time; memory for it is set aside before it is read."""
        length = _content_length(headers, limit)
        self._desk.set_aside(length)
        try:
            # The first byte, too: a client that sends none would hold the memory set aside for it for ever.
            async with asyncio.timeout(self._desk.body_timeout_s):
                return await _whole(receive, limit)
        except TimeoutError:
            raise BodyTooSlow("the body did not arrive in time") from None
        finally:
            self._desk.give_back(length)


async def _whole(receive: Receive, limit: int) -> bytes:
    body = bytearray()
    while True:
        message: Message = await receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        body += message.get("body", b"")
        if len(body) > limit:
            raise too_large(limit)
        if not message.get("more_body", False):
            return bytes(body)


def _content_length(headers: dict[bytes, str], limit: int) -> int:
    """The announced length, or the limit where none was announced."""
    text = headers.get(b"content-length")
    if text is None:
        return limit
    length = int(text) if text.isascii() and text.isdigit() else 0
    if length > limit:
        raise too_large(limit)
    return length


def _headers(scope: Scope) -> dict[bytes, str]:
    """The two headers that an exchange needs."""
    return {
        name: value.decode("latin-1")
        for name, value in scope["headers"]
        if name in (b"authorization", b"content-length")
    }


async def _send(send: Send, outcome: Outcome, request_id: str) -> None:
    headers = [
        (b"content-type", CONTENT_TYPE if outcome.status == 200 else JSON),
        (b"content-length", str(len(outcome.body)).encode()),
        (b"x-request-id", request_id.encode()),
        *((name.lower().encode(), value.encode()) for name, value in outcome.headers.items()),
    ]
    await send({"type": "http.response.start", "status": outcome.status, "headers": headers})
    await send({"type": "http.response.body", "body": outcome.body})
