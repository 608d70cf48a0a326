"""The exchange: `POST /v1/models/{model}/sync`, an upload in and a download out, as plain ASGI under Starlette."""

from __future__ import annotations

import asyncio
import time
from typing import Any, NamedTuple

from starlette.types import Message, Receive, Scope, Send

from fedbandit.core.plausibility import information, require_plausible
from fedbandit.errors import (
    BodyTooLarge,
    BodyTooSlow,
    DimensionMismatch,
    FedbanditError,
    Forbidden,
    FormatError,
    Overloaded,
    Unauthenticated,
    UnknownModel,
)
from fedbandit.service import problems
from fedbandit.service.coordinator import Answer
from fedbandit.service.ledger import Incoming
from fedbandit.service.model import ModelSettings
from fedbandit.service.parts import Parts
from fedbandit.wire import codec

BIG_DIM = 200  # from here on a Cholesky factorisation is too long for the event loop
MAX_COUNT = 1 << 53
CONTENT_TYPE = codec.CONTENT_TYPE.encode()
JSON = problems.JSON.encode()


class Disconnected(Exception):
    """The client went away before its body was complete; there is nobody to answer."""


class Outcome(NamedTuple):
    """What goes back, and the word for it in logs and metrics."""

    status: int
    body: bytes
    result: str
    headers: dict[str, str] = {}  # noqa: RUF012 - nobody writes to it


NO_SUCH_METHOD = Outcome(405, problems.body_of("method_not_allowed", "an exchange is a POST"), "", {"Allow": "POST"})


class SyncEndpoint:
    """Glue: who is it, what is it, can it come from data; then the coordinator's answer goes back."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._settings: dict[str, ModelSettings] = {}
        self._n_inflight = 0
        self._turn_began: float | None = None
        self._max_turn_s = parts.settings.max_turn_ms / 1e3
        self._max_inflight = parts.settings.max_inflight_mb << 20

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = time.perf_counter()
        parts = self._parts
        model = scope["path_params"]["model"]
        log: dict[str, Any] = {"request": parts.request_ids.next(), "model": model}
        if scope["method"] != "POST":
            await _send(send, NO_SUCH_METHOD, log["request"])
            return
        try:
            answer, upload = await self._exchange(scope, receive, model, log)
            result = "merged" if answer.acknowledged.is_new else "repeated"
            outcome = Outcome(200, _reply(answer, upload), result, {"ETag": answer.merged.model.tag})
            log["version"] = answer.merged.model.version
        except Disconnected:
            return
        except FedbanditError as error:
            outcome = self._refused(error, log)
        except Exception as error:
            parts.log.error("internal_error", **log, exc_info=error)
            outcome = Outcome(500, problems.body_of(*problems.INTERNAL), "failed")
        await _send(send, outcome, log["request"])
        spent = time.perf_counter() - began
        parts.metrics.exchange_seconds.observe(spent)
        if model in self._settings:  # a name that somebody made up must not become a label
            parts.metrics.exchanges.labels(model, outcome.result).inc()
        parts.log.info("exchange", **log, result=outcome.result, status=outcome.status, ms=round(1e3 * spent, 2))

    def _refused(self, error: FedbanditError, log: dict[str, Any]) -> Outcome:
        log["error"] = error.code
        self._parts.metrics.refusals.labels(error.code).inc()
        status = problems.status_of(error)
        headers = problems.extra_headers(status, error)
        return Outcome(status, problems.body_of(error.code, str(error)), "refused", headers)

    async def _exchange(
        self, scope: Scope, receive: Receive, model: str, log: dict[str, Any]
    ) -> tuple[Answer, Incoming]:
        self._require_capacity(model)
        headers = _headers(scope)
        principal, token_hash = await self._parts.gate.agent(headers.get(b"authorization"), model)
        log["agent"] = principal.name
        settings = self._settings.get(model) or await self._load(model)
        body = await self._read(receive, headers, codec.max_bytes(settings.dim))
        self._require_capacity(model)  # a long body comes in pieces, and meanwhile others came
        request = codec.decode_request(body)
        log["sequence"] = request.sequence
        if request.agent != principal.name:
            raise Forbidden(f"this token belongs to agent {principal.name!r}, the upload names {request.agent!r}")
        try:
            upload = await self._checked(request, settings, token_hash, len(body))
            answer = await self._parts.coordinator.receive(model, upload)
        except (Forbidden, Unauthenticated):
            await self._parts.gate.explain(token_hash)
            raise
        except (UnknownModel, DimensionMismatch):
            self._settings.pop(model, None)  # deleted, or made anew by another replica
            raise
        return answer, upload

    def _require_capacity(self, model: str) -> None:
        """`Overloaded` when too many uploads wait, or one turn of the event loop has read uploads for too long.

        Past saturation the backlog is in sockets that nobody has read yet, where the coordinator does not see it; but
        the more of them are ready, the longer a turn lasts. What is shed costs a fraction of what is read.
        """
        now = time.perf_counter()
        if self._turn_began is None:
            self._turn_began = now
            asyncio.get_running_loop().call_soon(self._end_turn)
        elif now - self._turn_began > self._max_turn_s:
            raise Overloaded("more uploads arrived at once than can be read in time")
        self._parts.coordinator.require_room(model)

    def _end_turn(self) -> None:
        self._turn_began = None

    async def _checked(
        self, request: codec.SyncRequest, settings: ModelSettings, token_hash: bytes, n_bytes: int
    ) -> Incoming:
        """The upload, if data can have given it."""
        if not request.incarnation.isprintable():
            raise FormatError("the message is malformed; expected a printable incarnation")
        if request.dim != settings.dim:
            raise DimensionMismatch(f"expected an upload with {settings.dim} features, got {request.dim}")
        numbers = codec.numbers_of(request)
        if settings.dim >= BIG_DIM:
            await asyncio.to_thread(require_plausible, numbers, settings.dim, settings.bounds)
        else:
            require_plausible(numbers, settings.dim, settings.bounds)
        # A buffer cannot have grown by more than its data allow, whatever the agent says.
        growth = min(max(request.growth, 0.0), information(numbers, settings.dim, settings.lam))
        return Incoming(
            agent=request.agent,
            incarnation=request.incarnation,
            sequence=request.sequence,
            digest=request.digest,
            numbers=numbers,
            growth=growth,
            token_hash=token_hash,
            model_version=min(request.model_version, MAX_COUNT),
            waiting=min(request.waiting, MAX_COUNT),
            n_bytes=n_bytes,
        )

    async def _load(self, model: str) -> ModelSettings:
        settings = (await self._parts.store.load(model)).settings
        self._settings[model] = settings
        return settings

    async def _read(self, receive: Receive, headers: dict[bytes, str], limit: int) -> bytes:
        """The body, if it is not too long and comes in time; memory for it is set aside before it is read."""
        length = _content_length(headers, limit)
        if self._n_inflight + length > self._max_inflight:
            raise Overloaded("too many bodies are being received")
        self._n_inflight += length
        try:
            # The first byte, too: a client that sends none would hold the memory set aside for it for ever.
            async with asyncio.timeout(self._parts.settings.body_timeout_s):
                message = await receive()
                if message["type"] == "http.request" and not message.get("more_body", False):
                    body: bytes = message.get("body", b"")
                    if len(body) > limit:
                        raise _too_large(limit)
                    return body
                return await _rest(message, receive, limit)
        except TimeoutError:
            raise BodyTooSlow("the body did not arrive in time") from None
        finally:
            self._n_inflight -= length


async def _rest(message: Message, receive: Receive, limit: int) -> bytes:
    body = bytearray()
    while True:
        if message["type"] == "http.disconnect":
            raise Disconnected
        body += message.get("body", b"")
        if len(body) > limit:
            raise _too_large(limit)
        if not message.get("more_body", False):
            return bytes(body)
        message = await receive()


def _content_length(headers: dict[bytes, str], limit: int) -> int:
    """The announced length, or the limit where none was announced."""
    text = headers.get(b"content-length")
    if text is None:
        return limit
    length = int(text) if text.isascii() and text.isdigit() else 0
    if length > limit:
        raise _too_large(limit)
    return length


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"expected at most {limit} bytes for this model")


def _headers(scope: Scope) -> dict[bytes, str]:
    """The two headers that an exchange needs."""
    return {
        name: value.decode("latin-1")
        for name, value in scope["headers"]
        if name in (b"authorization", b"content-length")
    }


def _reply(answer: Answer, upload: Incoming) -> bytes:
    model = answer.merged.model
    return codec.encode(
        codec.SyncReply(
            agent=upload.agent,
            version=model.version,
            acknowledged=answer.acknowledged.sequence,
            dim=model.settings.dim,
            stats=answer.merged.packed,
            settings=model.settings_id,
        )
    )


async def _send(send: Send, outcome: Outcome, request_id: str) -> None:
    headers = [
        (b"content-type", CONTENT_TYPE if outcome.status == 200 else JSON),
        (b"content-length", str(len(outcome.body)).encode()),
        (b"x-request-id", request_id.encode()),
        *((name.lower().encode(), value.encode()) for name, value in outcome.headers.items()),
    ]
    await send({"type": "http.response.start", "status": outcome.status, "headers": headers})
    await send({"type": "http.response.body", "body": outcome.body})
