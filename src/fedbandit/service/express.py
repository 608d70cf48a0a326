"""An exchange without ASGI: nearly all that a server does, answered where its bytes arrive.

A plain upload (its token and model seen before, its length announced, nothing else on the connection) needs no task,
no scope, no router and no messages. Everything else takes the way of `sync.py`; both use the same desk, so that a
client cannot tell them apart.
"""

from __future__ import annotations

import asyncio
import re
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple

from fedbandit.errors import BodyTooSlow, FedbanditError, Forbidden, Unauthenticated
from fedbandit.service import problems
from fedbandit.service.coordinator import Answer, Coordinator
from fedbandit.service.desk import Desk, Outcome, Visit
from fedbandit.service.sync import BIG_DIM
from fedbandit.wire import codec

if TYPE_CHECKING:
    from fedbandit.service.protocol import Protocol

TARGET = re.compile(rb"/v1/models/([A-Za-z0-9][A-Za-z0-9._-]*)/sync")
SPECIAL = frozenset({b"transfer-encoding", b"expect", b"origin", b"upgrade"})  # headers that plain uploads lack
LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in HTTPStatus}


class NoEvent:
    """Nobody waits for the pieces of a body here."""

    def set(self) -> None:
        """Nothing to do."""


class Exchange:
    """One upload and its answer on a connection. uvicorn's protocol takes it for the cycle of a request."""

    message_event = NoEvent()

    def __init__(self, desk: Desk, coordinator: Coordinator, protocol: Protocol, visit: Visit, length: int) -> None:
        self._desk = desk
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
            self._desk.set_aside(self.length)
            self._set_aside = True
        except FedbanditError as error:
            self._answer(self._desk.failed(self._visit, error))

    def add(self, piece: bytes | memoryview) -> None:
        """Some of the body. It cannot be more than was announced: the parser sees to that."""
        self._pieces.append(piece)

    def watch(self) -> None:
        """The rest of the body must come in time."""
        if self._set_aside and self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._desk.body_timeout_s, self._give_up)

    def _give_up(self) -> None:
        if not self.response_complete:
            self._answer(self._desk.failed(self._visit, BodyTooSlow("the body did not arrive in time")))

    def complete(self) -> None:
        """The body is here: check it and hand it over."""
        pieces = self._pieces
        self._let_go()
        visit, desk = self._visit, self._desk
        try:
            if len(pieces) == 1:
                body: bytes | memoryview = pieces[0]
            else:
                body = b"".join(pieces)
                desk.require_capacity(visit.model)  # it came in pieces, and meanwhile others came
            upload = desk.checked(visit, desk.decoded(visit, body), len(body))
            self._coordinator.submit(visit.model, upload, self._settled)
        except Exception as error:  # noqa: BLE001 - whatever it is, the desk has an answer
            self._answer(desk.failed(visit, error))

    def lost(self) -> None:
        """The client went away. An upload that is complete is merged all the same; its retry will be recognised."""
        self._let_go()

    def _let_go(self) -> None:
        self._pieces = []
        if self._set_aside:
            self._set_aside = False
            self._desk.give_back(self.length)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _settled(self, answer: Answer | FedbanditError) -> None:
        if isinstance(answer, Answer):
            self._answer(self._desk.accepted(self._visit, answer))
        else:
            self._protocol.tell_later(self._explain(answer))

    async def _explain(self, error: FedbanditError) -> None:
        self._answer(self._desk.failed(self._visit, await self._desk.explain(self._visit, error)))

    def _answer(self, outcome: Outcome) -> None:
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
        self._desk.note(self._visit, outcome)


class Shed:
    """An upload that came at a bad time and has its answer; its body, if there is one to come, is nobody's business."""

    message_event = NoEvent()
    response_complete = True
    disconnected = False
    keep_alive = True

    def watch(self) -> None:
        """It may take its time."""

    def lost(self) -> None:
        """It held nothing."""


SHED = Shed()


def head_of(outcome: Outcome, request_id: str, common: str, *, keep_alive: bool) -> bytes:
    """What goes before the body of an answer."""
    head = (
        f"{LINES[outcome.status]}{common}"
        f"content-type: {codec.CONTENT_TYPE if outcome.status == 200 else problems.JSON}\r\n"
        f"content-length: {len(outcome.body)}\r\nx-request-id: {request_id}\r\n"
    )
    for name, value in outcome.headers.items():
        head += f"{name.lower()}: {value}\r\n"
    if not keep_alive and "Connection" not in outcome.headers:
        head += "connection: close\r\n"
    return f"{head}\r\n".encode("latin-1")


class Guest(NamedTuple):
    """Who came last on a connection: most come again, by the same line and with the same header."""

    url: bytes
    authorization: bytes
    visit: Visit
    head: bytes = b""
    n_bytes: int = 0  # of the head and the body; 0 while the head is not known


class Express:
    """Tells the plain uploads among requests."""

    def __init__(self, desk: Desk, coordinator: Coordinator) -> None:
        self._desk = desk
        self._coordinator = coordinator

    def exchange(self, protocol: Protocol, url: bytes, headers: list[tuple[bytes, bytes]]) -> Exchange | Shed | None:
        """The exchange that a POST begins; None if it has to go the long way."""
        target = TARGET.fullmatch(url)
        if target is None:
            return None
        authorization, length = _plain(headers)
        if length is None:
            return None
        model = target[1].decode("ascii")
        why_full = self._desk.why_full(model)
        if why_full is not None:
            return self._shed(protocol, model, why_full) if protocol.may_stay else None
        guest = protocol.guest
        if guest is not None and guest.url == url and guest.authorization == authorization:
            return self._known(protocol, guest, length)
        visit = self._desk.visit(model)
        try:
            if not self._desk.recognise(visit, authorization.decode("latin-1")):
                return None
        except (Forbidden, Unauthenticated):
            return None
        protocol.guest = Guest(url, authorization, visit)
        if not _is_small(visit, length):
            return None
        return Exchange(self._desk, self._coordinator, protocol, visit, length)

    def exchange_again(self, protocol: Protocol, guest: Guest) -> Exchange | Shed | None:
        """The same for whoever came before with the same head; None if that was too long ago."""
        why_full = self._desk.why_full(guest.visit.model)
        if why_full is not None:
            return self._shed(protocol, guest.visit.model, why_full)
        return self._known(protocol, guest, guest.n_bytes - len(guest.head))

    def _known(self, protocol: Protocol, guest: Guest, length: int) -> Exchange | None:
        visit = self._desk.visit(guest.visit.model)
        if not self._desk.recognise_again(visit, guest.visit) or not _is_small(visit, length):
            return None
        return Exchange(self._desk, self._coordinator, protocol, visit, length)

    def _shed(self, protocol: Protocol, model: str, why: str) -> Shed:
        """The server has no time now, which the client is told; whoever it is, since asking would take time."""
        protocol.answer(self._desk.shed(why), self._desk.request_id(), keep_alive=True)
        self._desk.note_shed(model)
        protocol.exchange_complete()
        return SHED


def _is_small(visit: Visit, length: int) -> bool:
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


def joined(headers: list[tuple[bytes, bytes]]) -> str:
    """The lines of headers."""
    return "".join(f"{name.decode('latin-1')}: {value.decode('latin-1')}\r\n" for name, value in headers)
