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
        """Before the body is read: is there room for it?"""
        try:
            self._desk.require_capacity(self._visit.model)
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
            self._protocol.answer(*self._message(outcome))
            if not self.keep_alive:
                self._protocol.transport.close()
            self._protocol.exchange_complete()
        if outcome.status in (401, 403):
            self._protocol.guest = None
        self._desk.note(self._visit, outcome)

    def _message(self, outcome: Outcome) -> tuple[bytes, bytes]:
        head = (
            f"{LINES[outcome.status]}{self._protocol.common_lines()}"
            f"content-type: {codec.CONTENT_TYPE if outcome.status == 200 else problems.JSON}\r\n"
            f"content-length: {len(outcome.body)}\r\nx-request-id: {self._visit.request_id}\r\n"
        )
        for name, value in outcome.headers.items():
            head += f"{name.lower()}: {value}\r\n"
        if "Connection" in outcome.headers:
            self.keep_alive = False
        elif not self.keep_alive:
            head += "connection: close\r\n"
        return f"{head}\r\n".encode("latin-1"), outcome.body


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

    def exchange(self, protocol: Protocol, url: bytes, headers: list[tuple[bytes, bytes]]) -> Exchange | None:
        """The exchange that a POST begins; None if it has to go the long way."""
        authorization, length = _plain(headers)
        if length is None:
            return None
        guest = protocol.guest
        if guest is not None and guest.url == url and guest.authorization == authorization:
            return self._known(protocol, guest, length)
        target = TARGET.fullmatch(url)
        if target is None:
            return None
        visit = self._desk.visit(target[1].decode("ascii"))
        try:
            if not self._desk.recognise(visit, authorization.decode("latin-1")):
                return None
        except (Forbidden, Unauthenticated):
            return None
        protocol.guest = Guest(url, authorization, visit)
        if not _is_small(visit, length):
            return None
        return Exchange(self._desk, self._coordinator, protocol, visit, length)

    def exchange_again(self, protocol: Protocol, guest: Guest) -> Exchange | None:
        """The same for whoever came before with the same head; None if that was too long ago."""
        return self._known(protocol, guest, guest.n_bytes - len(guest.head))

    def _known(self, protocol: Protocol, guest: Guest, length: int) -> Exchange | None:
        visit = self._desk.visit(guest.visit.model)
        if not self._desk.recognise_again(visit, guest.visit) or not _is_small(visit, length):
            return None
        return Exchange(self._desk, self._coordinator, protocol, visit, length)


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
