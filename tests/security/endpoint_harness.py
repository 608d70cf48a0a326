"""The code that a body passes, from bytes to the ledger: the real exchange endpoint and a real agent, in this process.

    harness = EndpointHarness()
    harness.upload(body)      # "merged", "repeated", or the code of a named error
    harness.answer(body)     # the same for a reply to an agent

Both raise `Hostile` when a body did more than it may: an unnamed error, a 500, a changed state after a refusal.
"""

from __future__ import annotations

import asyncio
import io
import json
from random import Random
from typing import Any

import numpy as np
from starlette.routing import Router

import fedbandit as fb
from fedbandit.algorithms.messages import packed_bytes
from fedbandit.errors import FedbanditError
from fedbandit.http_client import HttpClient, HttpReply
from fedbandit.sdk.durable_agent import DurableAgent
from fedbandit.sdk.sync_client import Backoff, SyncClient
from fedbandit.sdk.transport import HttpTransport
from fedbandit.service.admin.auth import hash_token
from fedbandit.service.container import make_container
from fedbandit.service.exchange.endpoint import ExchangeEndpoint
from fedbandit.service.settings import ServerSettings
from fedbandit.service.stores.memory import MemoryStore
from fedbandit.service.telemetry import make_logger
from fedbandit.wire import codec
from fedbandit.wire.settings import ModelDescription, ModelSettings

AGENT, MODEL, DIM = "shop-1", "news", 2  # as the vectors in docs have them
SETTINGS = ModelSettings(name=MODEL, dim=DIM, lam=1.0, alpha=1.0, radius=fb.radius.fixed(0.5))
TOKEN = "fb_" + "t" * 43
LIFE = "0123456789abcdef0123456789abcdef"
NOT_FOUND = Router()  # for all paths but that of the exchange
DOCUMENTED = frozenset({200, 400, 401, 403, 404, 405, 408, 409, 413, 422, 503})


class Hostile(AssertionError):
    """A body had a forbidden effect."""


class EndpointHarness:
    """One model of two features with one agent, whose uploads 1 and 2 are merged; reset before each upload."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.log = io.BytesIO()
        self.n_merged = 0
        self._first = [_upload(sequence) for sequence in (1, 2)]
        self._open()

    def close(self) -> None:
        self.loop.close()

    # -- the server

    def upload(self, body: bytes, *, token: str = TOKEN, length: int | None = None) -> str:
        """The result of the exchange for a body."""
        before = self.state()
        status, answer = self._post(body, token, length)
        if status not in DOCUMENTED:
            raise Hostile(f"{status} {answer!r}: {self.log.getvalue()[-2000:]!r}")
        if status == 200:
            return self._accepted(answer, before)
        if self.state() != before:
            raise Hostile(f"a refusal ({status} {answer!r}) changed the state")
        told = json.loads(answer)
        if set(told) != {"error", "message"}:
            raise Hostile(f"an error of another shape: {told}")
        return str(told["error"])

    def state(self) -> tuple[Any, ...]:
        """State that a rejection must not change."""
        entry = self.store._models[MODEL]
        rows = [(row.incarnation, row.sequence, row.digest, row.total, row.n_obs) for row in entry.agents.values()]
        return (entry.packed, entry.model.version, entry.model.n_obs, dict(entry.retired), rows)

    def _accepted(self, answer: bytes, before: tuple[Any, ...]) -> str:
        reply = codec.decode_reply(answer)
        if not np.isfinite(codec.numbers_of(reply)).all():
            raise Hostile("numbers that are not finite were merged")
        if self.state() == before:
            return "repeated"
        self.n_merged += 1
        self._open()
        return "merged"

    def _open(self) -> None:
        self.store = MemoryStore()
        settings = ServerSettings(database="memory:", body_timeout_s=1.0)
        self.container = make_container(
            settings, make_logger("error", self.log), store=self.store, clock=lambda: 1000.0
        )
        self.endpoint = ExchangeEndpoint(self.container, NOT_FOUND)
        self.loop.run_until_complete(self._populate())

    async def _populate(self) -> None:
        await self.store.create(SETTINGS, uid="0", now=0.0)
        await self.store.enroll(MODEL, AGENT, hash_token(TOKEN), now=0.0)
        for upload in self._first:
            sent: list[Any] = []
            await self._call(codec.encode(upload), TOKEN, None, sent)

    def _post(self, body: bytes, token: str, length: int | None) -> tuple[int, bytes]:
        sent: list[Any] = []
        self.loop.run_until_complete(self._call(body, token, length, sent))
        return sent[0]["status"], sent[1]["body"]

    async def _call(self, body: bytes, token: str, length: int | None, sent: list[Any]) -> None:
        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        headers = [(b"authorization", f"Bearer {token}".encode())]
        headers += [(b"content-length", str(len(body) if length is None else length).encode())]
        scope = {"type": "http", "method": "POST", "path": f"/v1/models/{MODEL}/sync", "headers": headers}
        await self.endpoint(scope, receive, send)

    # -- the agent

    def answer(self, body: bytes) -> str:
        """The result of a reply at a live agent, whose model stays usable in any case."""
        durable = DurableAgent(ModelDescription(SETTINGS, "0123456789abcdef"), AGENT)
        client = SyncClient(durable, _Speaking(body), backoff=Backoff(Random(0)), timeout_s=1.0)
        durable.agent.sequence = 3  # as the vectors' answers acknowledge it
        try:
            client.refresh()
        except FedbanditError as error:
            if client.last_error is None:
                raise Hostile(f"{error!r} went unnoticed: the background thread would ask again at once") from error
            outcome = type(error).code  # of a Refused, not the reason that the server gave
        else:
            outcome = "adopted"
        if (
            not np.isfinite(durable.agent.model.theta_hat).all()
            or not np.isfinite(durable.scores(np.eye(DIM)).upper).all()
        ):
            raise Hostile(f"an answer ({outcome}) left the agent unable to decide")
        return outcome


class _Speaking(HttpTransport):
    """The transport of live agents with one fixed reply."""

    def __init__(self, body: bytes) -> None:
        super().__init__("http://127.0.0.1:9", model=MODEL, token=TOKEN)
        self._http = _FixedReply(body)


class _FixedReply(HttpClient):
    """The HTTP client with one fixed body for every call."""

    def __init__(self, body: bytes) -> None:
        super().__init__("http://127.0.0.1:9", token=TOKEN)
        self._body = body

    def call(self, *_: Any, **__: Any) -> HttpReply:
        return HttpReply(200, {}, self._body)


def _upload(sequence: int) -> codec.SyncRequest:
    stats = fb.SufficientStats.of(np.array([[1.0, 2.0], [2.0, -1.0]]), np.array([1.0, float(sequence)]))
    upload = fb.Upload(AGENT, LIFE, sequence, stats, 0.5)
    assert len(packed_bytes(stats)) == 8 * 8
    return codec.request_of(upload)
