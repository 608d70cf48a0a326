"""An exchange without ASGI: nearly all that a server does, answered where its bytes arrive.

A plain upload (its token and model seen before, its length announced, nothing else on the connection) needs no task,
no scope, no router and no messages. Everything else takes the way of `sync.py`; both use the same desk, so that a
client cannot tell them apart.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, NamedTuple

from fedbandit.errors import FedbanditError, Forbidden, Unauthenticated
from fedbandit.service.exchange.coordinator import Coordinator, MergeResult
from fedbandit.service.exchange.endpoint import BIG_DIM
from fedbandit.service.exchange.handler import CHECKED_BY_SETTINGS, ExchangeContext, ExchangeHandler
from fedbandit.service.exchange.replies import ExchangeReply
from fedbandit.service.http.bodies import too_slow

if TYPE_CHECKING:
    from fedbandit.service.http.fast_protocol import FastProtocol

TARGET = re.compile(rb"/v1/models/([A-Za-z0-9][A-Za-z0-9._-]*)/sync")
SPECIAL = frozenset({b"transfer-encoding", b"expect", b"origin", b"upgrade"})  # headers that plain uploads lack


class NoEvent:
    """Nobody waits for the pieces of a body here."""

    def set(self) -> None:
        """Nothing to do."""


class FastExchange:
    """One upload and its answer on a connection. uvicorn's protocol takes it for the cycle of a request."""

    message_event = NoEvent()

    def __init__(
        self,
        desk: ExchangeHandler,
        coordinator: Coordinator,
        protocol: FastProtocol,
        visit: ExchangeContext,
        length: int,
    ) -> None:
        self._handler = desk
        self._coordinator = coordinator
        self._protocol = protocol
        self._visit = visit
        self.length = length
        self._set_aside = False
        self._pieces: list[bytes | memoryview] = []
        self._timer: asyncio.TimerHandle | None = None
        self.response_complete = False
        self.disconnected = False
        self.keep_alive = True

    def open(self) -> None:
        """Before the body is read: is there memory for it?"""
        try:
            self._handler.memory.reserve(self.length)
            self._set_aside = True
        except FedbanditError as error:
            self._answer(self._handler.failed(self._visit, error))

    def add(self, piece: bytes | memoryview) -> None:
        """Some of the body. It cannot be more than was announced: the parser sees to that."""
        self._pieces.append(piece)

    def watch(self) -> None:
        """The rest of the body must come in time."""
        if self._set_aside and self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._handler.body_timeout_s, self._give_up)

    def _give_up(self) -> None:
        if not self.response_complete:
            self._answer(self._handler.failed(self._visit, too_slow()))

    def complete(self) -> None:
        """The body is here: check it and hand it over."""
        pieces, self._pieces = self._pieces, []
        self._stop_timer()
        visit, desk = self._visit, self._handler
        try:
            if len(pieces) == 1:
                body: bytes | memoryview = pieces[0]
            else:
                body = b"".join(pieces)
                desk.require_capacity(visit.model)  # it came in pieces, and meanwhile others came
            upload = desk.checked(visit, desk.decoded(visit, body), len(body))
            self._coordinator.submit(visit.model, upload, self._settled)
        except CHECKED_BY_SETTINGS as error:
            self._protocol.tell_later(self._explain(error))
        except Exception as error:  # noqa: BLE001 - whatever it is, the desk has an answer
            self._answer(desk.failed(visit, error))

    def lost(self) -> None:
        """The client went away. An upload that is complete is merged all the same; its retry will be recognised."""
        self._let_go()

    def _let_go(self) -> None:
        self._pieces = []
        if self._set_aside:
            self._set_aside = False
            self._handler.memory.release(self.length)
        self._stop_timer()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _settled(self, answer: MergeResult | FedbanditError) -> None:
        if isinstance(answer, MergeResult):
            self._answer(self._handler.accepted(self._visit, answer))
        else:
            self._protocol.tell_later(self._explain(answer))

    async def _explain(self, error: FedbanditError) -> None:
        self._answer(self._handler.failed(self._visit, await self._handler.explain(self._visit, error)))

    def _answer(self, outcome: ExchangeReply) -> None:
        if self.response_complete:
            return
        self._let_go()
        self.response_complete = True
        if not self.disconnected:
            if "Connection" in outcome.headers:
                self.keep_alive = False
            self._protocol.answer(outcome, self._visit.request_id, keep_alive=self.keep_alive)
            if not self.keep_alive:
                self._protocol.transport.close()
            self._protocol.exchange_complete()
        if outcome.status in (401, 403):
            self._protocol.guest = None
        self._handler.note(self._visit, outcome)


class ShedExchange:
    """An upload that came at a bad time and has its answer; its body, if there is one to come, is nobody's business."""

    message_event = NoEvent()
    response_complete = True
    disconnected = False
    keep_alive = True

    def watch(self) -> None:
        """It may take its time."""

    def lost(self) -> None:
        """It held nothing."""


SHED = ShedExchange()


class FastPathConnection(NamedTuple):
    """Who came last on a connection: most come again, by the same line and with the same header."""

    url: bytes
    authorization: bytes
    visit: ExchangeContext
    head: bytes = b""
    n_bytes: int = 0  # of the head and the body; 0 while the head is not known


class FastPath:
    """Tells the plain uploads among requests."""

    def __init__(self, desk: ExchangeHandler, coordinator: Coordinator) -> None:
        self._handler = desk
        self._coordinator = coordinator

    def exchange(
        self, protocol: FastProtocol, url: bytes, headers: list[tuple[bytes, bytes]]
    ) -> FastExchange | ShedExchange | None:
        """The exchange that a POST begins; None if it has to go the long way."""
        target = TARGET.fullmatch(url)
        if target is None:
            return None
        authorization, length = _plain(headers)
        if length is None:
            return None
        model = target[1].decode("ascii")
        why_full = self._handler.why_full(model)
        if why_full is not None:
            return self._shed(protocol, model, why_full) if protocol.may_stay else None
        guest = protocol.guest
        if guest is not None and guest.url == url and guest.authorization == authorization:
            return self._known(protocol, guest, length)
        visit = self._handler.visit(model)
        try:
            if not self._handler.recognise(visit, authorization.decode("latin-1")):
                return None
        except (Forbidden, Unauthenticated):
            return None
        protocol.authenticated()
        protocol.guest = FastPathConnection(url, authorization, visit)
        if not _is_small(visit, length):
            return None
        return FastExchange(self._handler, self._coordinator, protocol, visit, length)

    def exchange_again(self, protocol: FastProtocol, guest: FastPathConnection) -> FastExchange | ShedExchange | None:
        """The same for whoever came before with the same head; None if that was too long ago."""
        why_full = self._handler.why_full(guest.visit.model)
        if why_full is not None:
            return self._shed(protocol, guest.visit.model, why_full)
        return self._known(protocol, guest, guest.n_bytes - len(guest.head))

    def _known(self, protocol: FastProtocol, guest: FastPathConnection, length: int) -> FastExchange | None:
        visit = self._handler.visit(guest.visit.model)
        if not self._handler.recognise_again(visit, guest.visit) or not _is_small(visit, length):
            return None
        return FastExchange(self._handler, self._coordinator, protocol, visit, length)

    def _shed(self, protocol: FastProtocol, model: str, why: str) -> ShedExchange:
        """The server has no time now, which the client is told; whoever it is, since asking would take time."""
        protocol.answer(self._handler.shed(why), self._handler.request_id(), keep_alive=True)
        self._handler.note_shed(model)
        protocol.exchange_complete()
        return SHED


def _is_small(visit: ExchangeContext, length: int) -> bool:
    return visit.settings.dim < BIG_DIM and length <= visit.max_bytes


def _plain(headers: list[tuple[bytes, bytes]]) -> tuple[bytes, int | None]:
    """The authorization and the length of a request; no length if there is more to know of it."""
    authorization = b""
    length: int | None = None
    for name, value in headers:
        if name == b"authorization":
            authorization = value
        elif name == b"content-length":
            length = int(value) if value.isdigit() else None
        elif name in SPECIAL:
            return b"", None
    return authorization, length
