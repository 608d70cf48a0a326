"""uvicorn's HTTP protocol within bounds: the size and time of a head, bodies that nobody reads yet, answers that nobody
takes, requests sent ahead. Whatever cannot be served is refused in the one shape of errors.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from fedbandit.errors import FedbanditError, HeadTooLarge, MalformedRequest, Overloaded
from fedbandit.service.exchange.replies import ExchangeReply, head_of, joined
from fedbandit.service.http import error_responses
from fedbandit.service.http.connections import CURRENT, Connections
from fedbandit.service.http.joined_writes import JoinedWrites

PIECE = 4096  # what the parser gets at a time while it reads anything but a body of known length
MAX_HEADERS = 100
MAX_PIPELINED = 32
LINGER_BYTES = 4 << 20
MALFORMED = "these bytes are no HTTP request"
HOP = (b"upgrade", b"http2-settings")  # what an offer of another protocol adds to a request


class BoundedProtocol(HttpToolsProtocol):
    """One connection.

    A connection is closed when a head stays half for `head_timeout_s`, when a body goes on after its answer for
    `body_timeout_s` (`bodies.py` limits other bodies), and when its client does not take an answer. Silence between
    requests has uvicorn's limit.
    """

    _in_head = True
    _is_between = True  # the last message is complete, and no other has begun
    _is_chunked = False
    _is_offer = False  # the head offers another protocol
    _has_begun = False  # a request began in what was received last
    _is_held_back = False  # what is pipelined waits until the client has taken its last answer
    _refusal: FedbanditError | None = None
    _half_timer: asyncio.TimerHandle | None = None
    _unread_timer: asyncio.TimerHandle | None = None
    _n_head = 0  # bytes of the head so far, trailers included
    _n_unheard = 0  # bytes since the parser last told anything
    _is_heard = False
    _n_ignored = 0
    _is_taken = False  # the application reads the body of the request, and has reserved memory for it
    _n_held = 0  # bytes of a body that came before that
    _n_unsent = 0  # when it was looked at last

    def __init__(self, *args: Any, connections: Connections, **options: Any) -> None:
        super().__init__(*args, **options)
        self._connections = connections
        self._settings = connections.settings
        self._max_head = connections.settings.max_head_kb << 10
        self._default: list[tuple[bytes, bytes]] | None = None
        self._common = ""

    # -- the connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._joined = JoinedWrites(
            cast(asyncio.Transport, transport), self.loop, self._is_sending, self._settings.body_timeout_s
        )
        super().connection_made(cast(asyncio.Transport, self._joined))
        if not self._connections.opened(self):
            self._refuse(Overloaded(f"{self._connections.limit} connections are open"), "connection_limit")
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._in_head, self._is_between = False, True
        self._connections.closed(self)
        self._release()
        super().connection_lost(exc)
        self._stop_timer("_unread_timer")
        self._watch()
        # The garbage collector may take its time with what refers to itself; bodies must not wait for it.
        for cycle in (self.cycle, *(waiting for waiting, _ in self.pipeline)):
            _forget_body(cycle)
        self.pipeline.clear()
        self.cycle = cast(Any, None)

    def authenticated(self) -> None:
        """A valid token came on this connection."""
        self._connections.authenticated(self)

    def abort(self) -> None:
        """End the connection now."""
        self._joined.abort()

    def unsent_bytes(self) -> int:
        """What the client has not taken of its answers."""
        n_bytes: int = self._joined.get_write_buffer_size()
        return n_bytes

    # -- what arrives

    def data_received(self, data: bytes) -> None:
        if self._joined.lingers or self._refusal is not None:
            self._n_ignored += len(data)
            if self._n_ignored > LINGER_BYTES:
                self.abort()
            return
        self._connections.busy(self)
        self._unset_keepalive_if_required()
        self._has_begun = False
        self._feed(memoryview(data))
        if self._has_begun and not self._is_between and self._refusal is None:
            self.flow.pause_reading()  # the rest of a body when the application asks for it
        self._watch()

    def _feed(self, data: memoryview) -> None:
        while data and self._refusal is None and not self.transport.is_closing():
            is_framing = self._in_head or self._is_between or self._is_chunked
            piece = data[:PIECE] if is_framing else data
            self._is_heard = False
            try:
                self.parser.feed_data(piece)
                data = data[len(piece) :]
            except httptools.HttpParserUpgrade as upgrade:
                data = data[cast(int, upgrade.args[0]) :]
                self._decline_offer()
            except httptools.HttpParserError as error:
                self._refuse(self._reason(error))
                return
            self._n_unheard = len(piece) if self._is_heard else self._n_unheard + len(piece)
            if is_framing and self._n_unheard > self._max_head + PIECE:
                self._refuse(self._too_large())

    def _reason(self, error: httptools.HttpParserError) -> FedbanditError:
        """Why the parser stopped: bytes that are no request, or what one of the methods below had against it."""
        cause = error.__context__ if isinstance(error, httptools.HttpParserCallbackError) else None
        if isinstance(cause, FedbanditError):
            return cause
        if cause is not None and not isinstance(cause, (httptools.HttpParserError, UnicodeDecodeError)):
            self._connections.log.error("internal_error", exc_info=cause)
        return MalformedRequest(MALFORMED)

    def on_message_begin(self) -> None:
        self._in_head, self._is_between, self._is_chunked = True, False, False
        self._is_heard = True
        self._n_head = 0
        self.url = b""
        self.headers = []
        self.expect_100_continue = False

    def on_url(self, url: bytes) -> None:
        self._add_to_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._add_to_head(len(name) + len(value) + 4)
        if self._in_head:  # no use is made of trailers
            if len(self.headers) >= MAX_HEADERS:
                raise HeadTooLarge(f"expected at most {MAX_HEADERS} headers")
            super().on_header(name, value)

    def _add_to_head(self, n_bytes: int) -> None:
        self._is_heard = True
        self._n_head += n_bytes
        if self._n_head > self._max_head:
            raise self._too_large()

    def _too_large(self) -> HeadTooLarge:
        return HeadTooLarge(f"expected a request line and headers of at most {self._max_head} bytes")

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                raise MalformedRequest("this server is no proxy")
            self._is_offer = True
            return
        if len(self.pipeline) >= MAX_PIPELINED:
            raise Overloaded(f"expected at most {MAX_PIPELINED} requests ahead of their answers")
        self._is_chunked = any(name == b"transfer-encoding" for name, _ in self.headers)
        self._begin_request()
        self._in_head = False
        self._is_heard = True
        self._stop_timer("_half_timer")

    def _begin_request(self) -> None:
        self._has_begun, self._is_taken = True, False
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()  # uvicorn's scope
        self.url, self.expect_100_continue = url, expects
        self.headers.extend(headers)
        super().on_headers_complete()

    def _decline_offer(self) -> None:
        """Read the request as if it had offered nothing, which a server may do.

        At such a head the parser stops and takes what follows for the other protocol; uvicorn would go on and take the
        body for the next request.
        """
        self._is_offer = False
        head = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())]
        for name, value in self.headers:
            kept = value
            if name == b"connection":
                kept = b",".join(token for token in value.split(b",") if token.strip().lower() not in HOP)
            if name not in HOP and b"\n" not in kept:
                head.append(name + b": " + kept)
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        try:
            self.parser.feed_data(b"\r\n".join(head) + b"\r\n\r\n")
        except httptools.HttpParserError as error:
            self._refuse(self._reason(error))

    def on_chunk_header(self) -> None:
        """The next chunk begins."""
        self._is_heard = True

    def on_body(self, body: bytes) -> None:
        self._is_heard = True
        if not (self._is_taken or self.cycle.response_complete):
            try:
                self._connections.memory.reserve(len(body))
            except Overloaded as error:
                self._refuse(error)
                return
            self._n_held += len(body)
        super().on_body(body)

    def take_body(self) -> None:
        """The application has memory for the body of its request, and reads it."""
        self._is_taken = True
        self._release()

    def _release(self) -> None:
        self._connections.memory.release(self._n_held)
        self._n_held = 0

    def on_message_complete(self) -> None:
        self._is_heard = True
        if not self._is_offer:
            self._is_between = True
            super().on_message_complete()

    def _is_sending(self) -> bool:
        """Whether the client is in the middle of something, and would not read an answer before it is through."""
        return self._refusal is not None or not (self._is_between or self._in_head)

    def _is_busy(self) -> bool:
        """Whether something before has yet to be answered, or read by the client."""
        cycle = cast("RequestResponseCycle | None", self.cycle)  # uvicorn has none at first
        return self.flow.write_paused or (cycle is not None and not cycle.response_complete)

    # -- refusals

    def _refuse(self, error: FedbanditError, reason: str = "") -> None:
        """Serve nothing more on this connection; the error is told when all that came before has its answer."""
        self._refusal = error
        self._connections.count(reason or error.code)
        if not self._is_busy():
            self._tell_refusal()
        elif not (self._in_head or self._is_between):  # it is the body of the last request that is no good
            if self.pipeline or getattr(self.cycle, "response_started", True):
                self.transport.close()
                return
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            self._tell_refusal()

    def _tell_refusal(self) -> None:
        error = self._refusal
        assert error is not None
        status = error_responses.status_of(error)
        headers = {**error_responses.extra_headers(status, error), "Connection": "close"}
        outcome = ExchangeReply(status, error_responses.body_of(error.code, str(error)), "refused", headers)
        self.answer(outcome, self._connections.request_ids.next(), keep_alive=False)
        self.transport.close()

    def send_400_response(self, msg: str) -> None:
        self._refuse(MalformedRequest(MALFORMED))

    # -- answers

    def answer(self, outcome: ExchangeReply, request_id: str, *, keep_alive: bool) -> None:
        """Send an answer."""
        head = head_of(outcome, request_id, self._common_lines(), keep_alive=keep_alive)
        self.transport.writelines((head, outcome.body))

    def _common_lines(self) -> str:
        """The headers of every answer; uvicorn makes a new list of them every second."""
        if self._default is not self.server_state.default_headers:
            self._default = self.server_state.default_headers
            self._common = joined(self._default)
        return self._common

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        before = CURRENT.set((self._connections, self))
        super()._start_asgi_task(cycle, app)
        CURRENT.reset(before)

    def on_response_complete(self) -> None:
        self._release()
        cycle = cast("RequestResponseCycle | None", self.cycle)
        if cycle is None:  # the client left while requests were queued behind this one, which uvicorn does not tell it
            return
        if cycle.response_complete:
            _forget_body(cycle)
        self._joined.flush()
        if self.flow.write_paused and not self.transport.is_closing():
            self._is_held_back = True
            return
        if self._refusal is not None and not self.pipeline:
            self._tell_refusal()
            return
        is_last = not self.pipeline
        super().on_response_complete()
        if is_last:
            self._connections.idle(self)
        self._watch()

    def pause_writing(self) -> None:
        """The client does not take what is written; until it does, no other request of it is read."""
        super().pause_writing()
        self.flow.pause_reading()
        self._n_unsent = self.unsent_bytes()
        self._unread_timer = self.loop.call_later(self._settings.body_timeout_s, self._require_taken)
        self._connections.unsent(self)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._connections.sent(self)
        self._stop_timer("_unread_timer")
        if self._is_held_back:
            self._is_held_back = False
            self.on_response_complete()
        elif self._refusal is not None and not self._is_busy():
            self._tell_refusal()
        elif not self.pipeline:
            self.flow.resume_reading()

    def _require_taken(self) -> None:
        """A client has to take a quarter of what is written within the time that a body has to arrive."""
        before, self._n_unsent = self._n_unsent, self.unsent_bytes()
        if self._n_unsent > 0.75 * before:
            self._connections.drop(self, "unread_answers")
        else:
            self._unread_timer = self.loop.call_later(self._settings.body_timeout_s, self._require_taken)

    # -- what must come in time

    def _watch(self) -> None:
        """A timer while a head or a body is half there, which a whole request in one packet never needs."""
        is_half = self._is_half()
        if is_half and self._half_timer is None:
            settings = self._settings
            timeout_s = settings.head_timeout_s if self._in_head else settings.body_timeout_s
            self._half_timer = self.loop.call_later(timeout_s, self._give_up)
        elif not is_half:
            self._stop_timer("_half_timer")

    def _is_half(self) -> bool:
        """Whether a head is half there, or the body of a request that has its answer; other bodies have a timer."""
        return self._in_head or (not self._is_between and not self._is_busy())

    def _give_up(self) -> None:
        self._half_timer = None
        if self._is_half():
            self._connections.count("too_slow")
            self.transport.close()

    def _stop_timer(self, name: str) -> None:
        timer: asyncio.TimerHandle | None = getattr(self, name)
        if timer is not None:
            timer.cancel()
            setattr(self, name, None)


def _forget_body(cycle: RequestResponseCycle | None) -> None:
    """What the application did not read is of no use any more."""
    if isinstance(cycle, RequestResponseCycle):
        cycle.body = bytearray()
