"""uvicorn's HTTP protocol with limits on the size and duration of heads, on unread bodies and responses, on pipelining.

Requests that cannot be served are refused with the same JSON shape as all other errors.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any, cast

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from fedbandit.errors import FedbanditError, HeadTooLarge, MalformedRequest, Overloaded
from fedbandit.service.http import error_responses
from fedbandit.service.http.connections import CURRENT, Connections
from fedbandit.service.http.response_transport import ResponseTransport

PIECE = 4096  # bytes per call of the parser, except within a body of known length
MAX_HEADERS = 100
MAX_PIPELINED = 32
MAX_DISCARDED_BYTES = 4 << 20  # after a refusal
MALFORMED = "the bytes are not an HTTP request"
UPGRADE_HEADERS = (b"upgrade", b"http2-settings")


class BoundedProtocol(HttpToolsProtocol):
    """One connection.

    It is closed when a head stays incomplete for `head_timeout_s`, when a body goes on for `body_timeout_s` after its
    response (`request_body.py` limits all other bodies), and when its client does not read a response. uvicorn limits
    the time between requests.
    """

    _in_head = True
    _is_between_messages = True
    _is_chunked = False
    _offers_upgrade = False
    _request_began = False  # in the data that was received last
    _awaits_client = False  # pipelined requests are held until the client has read the last response
    _refusal: FedbanditError | None = None
    _incomplete_timer: asyncio.TimerHandle | None = None
    _unread_timer: asyncio.TimerHandle | None = None
    _n_head = 0  # bytes of the head so far, trailers included
    _n_silent = 0  # bytes since the last callback of the parser
    _had_callback = False
    _n_discarded = 0
    _reads_body = False  # the application has reserved memory for the body, and reads it
    _n_buffered = 0  # bytes of the body that arrived before that
    _n_unsent = 0  # at the last check

    def __init__(self, *args: Any, connections: Connections, **options: Any) -> None:
        super().__init__(*args, **options)
        self._connections = connections
        self._settings = connections.settings
        self._max_head = connections.settings.max_head_kb << 10

    # -- the connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._output = ResponseTransport(
            cast(asyncio.Transport, transport), self.loop, self._is_receiving, self._settings.body_timeout_s
        )
        super().connection_made(cast(asyncio.Transport, self._output))
        if not self._connections.opened(self):
            self._refuse(Overloaded(f"{self._connections.limit} connections are open"), "connection_limit")
        self._update_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._in_head, self._is_between_messages = False, True
        self._connections.closed(self)
        self._release()
        super().connection_lost(exc)
        self._stop_timer("_unread_timer")
        self._update_timer()
        # Free the bodies now: cycles of references may stay until the next garbage collection.
        for cycle in (self.cycle, *(queued for queued, _ in self.pipeline)):
            if isinstance(cycle, RequestResponseCycle):
                cycle.body = bytearray()
        self.pipeline.clear()
        self.cycle = cast(Any, None)

    def abort(self) -> None:
        """Close the connection now."""
        self._output.abort()

    def unsent_bytes(self) -> int:
        """Bytes of responses that the client has not taken."""
        n_bytes: int = self._output.get_write_buffer_size()
        return n_bytes

    # -- input

    def data_received(self, data: bytes) -> None:
        if self._output.is_lingering or self._refusal is not None:
            self._n_discarded += len(data)
            if self._n_discarded > MAX_DISCARDED_BYTES:
                self.abort()
            return
        self._connections.idle.pop(self, None)
        self._unset_keepalive_if_required()
        self._request_began = False
        self._feed(memoryview(data))
        if self._request_began and not self._is_between_messages and self._refusal is None:
            self.flow.pause_reading()  # until the application asks for the rest of the body
        self._update_timer()

    def _feed(self, data: memoryview) -> None:
        while data and self._refusal is None and not self.transport.is_closing():
            is_framing = self._in_head or self._is_between_messages or self._is_chunked
            piece = data[:PIECE] if is_framing else data
            self._had_callback = False
            try:
                self.parser.feed_data(piece)
                data = data[len(piece) :]
            except httptools.HttpParserUpgrade as upgrade:
                data = data[cast(int, upgrade.args[0]) :]
                self._decline_upgrade()
            except httptools.HttpParserError as error:
                self._refuse(self._reason(error))
                return
            self._n_silent = len(piece) if self._had_callback else self._n_silent + len(piece)
            if is_framing and self._n_silent > self._max_head + PIECE:
                self._refuse(self._head_too_large())

    def _reason(self, error: httptools.HttpParserError) -> FedbanditError:
        """Why the parser stopped: malformed bytes, or an error that one of the callbacks below raised."""
        cause = error.__context__ if isinstance(error, httptools.HttpParserCallbackError) else None
        if isinstance(cause, FedbanditError):
            return cause
        if cause is not None and not isinstance(cause, (httptools.HttpParserError, UnicodeDecodeError)):
            self._connections.log.error("internal_error", exc_info=cause)
        return MalformedRequest(MALFORMED)

    def on_message_begin(self) -> None:
        self._in_head, self._is_between_messages, self._is_chunked = True, False, False
        self._had_callback = True
        self._n_head = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._add_to_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._add_to_head(len(name) + len(value) + 4)
        if self._in_head:  # trailers are not used
            if len(self.headers) >= MAX_HEADERS:
                raise HeadTooLarge(f"expected at most {MAX_HEADERS} headers")
            super().on_header(name, value)

    def _add_to_head(self, n_bytes: int) -> None:
        self._had_callback = True
        self._n_head += n_bytes
        if self._n_head > self._max_head:
            raise self._head_too_large()

    def _head_too_large(self) -> HeadTooLarge:
        return HeadTooLarge(f"expected a request line and headers of at most {self._max_head} bytes")

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                raise MalformedRequest("this server is not a proxy")
            self._offers_upgrade = True
            return
        if len(self.pipeline) >= MAX_PIPELINED:
            raise Overloaded(f"expected at most {MAX_PIPELINED} pipelined requests")
        self._is_chunked = any(name == b"transfer-encoding" for name, _ in self.headers)
        self._request_began, self._reads_body = True, False
        super().on_headers_complete()
        self._in_head = False
        self._had_callback = True
        if self._incomplete_timer is not None:
            self._stop_timer("_incomplete_timer")

    def _decline_upgrade(self) -> None:
        """Parse the request again without its offer of another protocol, as HTTP permits.

        The parser stops at such a head and takes what follows for the other protocol; uvicorn would continue and take
        the body for the next request.
        """
        self._offers_upgrade = False
        head = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())]
        for name, value in self.headers:
            kept = value
            if name == b"connection":
                kept = b",".join(token for token in value.split(b",") if token.strip().lower() not in UPGRADE_HEADERS)
            if name not in UPGRADE_HEADERS and b"\n" not in kept:
                head.append(name + b": " + kept)
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        try:
            self.parser.feed_data(b"\r\n".join(head) + b"\r\n\r\n")
        except httptools.HttpParserError as error:
            self._refuse(self._reason(error))

    def on_chunk_header(self) -> None:
        """The next chunk begins."""
        self._had_callback = True

    def on_body(self, body: bytes) -> None:
        self._had_callback = True
        if not (self._reads_body or self.cycle.response_complete):
            try:
                self._connections.memory.reserve(len(body))
            except Overloaded as error:
                self._refuse(error)
                return
            self._n_buffered += len(body)
        super().on_body(body)

    def body_read_begins(self) -> bool:
        """The application reads the body of its request, within memory of its own; whether the body is complete.

        With further requests behind it, even if only in part, it is.
        """
        self._reads_body = True
        self._release()
        return self._is_between_messages or self._in_head or bool(self.pipeline)

    def _release(self) -> None:
        self._connections.memory.release(self._n_buffered)
        self._n_buffered = 0

    def on_message_complete(self) -> None:
        self._had_callback = True
        if not self._offers_upgrade:
            self._is_between_messages = True
            super().on_message_complete()

    def _is_receiving(self) -> bool:
        """Whether the client is sending a request, and may not read a response before it has finished."""
        return self._refusal is not None or not (self._is_between_messages or self._in_head)

    def _is_busy(self) -> bool:
        """Whether an earlier request has yet to be answered, or its response to be read by the client."""
        cycle = cast("RequestResponseCycle | None", self.cycle)  # None before the first request
        return self.flow.write_paused or (cycle is not None and not cycle.response_complete)

    # -- refusals

    def _refuse(self, error: FedbanditError, reason: str = "") -> None:
        """Serve no further request on this connection; the error is sent after the responses to earlier requests."""
        self._refusal = error
        self._connections.count(reason or error.code)
        if not self._is_busy():
            self._send_refusal()
        elif not (self._in_head or self._is_between_messages):  # the error is in the body of the latest request
            if self.pipeline or getattr(self.cycle, "response_started", True):
                self.transport.close()
                return
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            self._send_refusal()

    def _send_refusal(self) -> None:
        assert self._refusal is not None
        status, body, headers = error_responses.response_to(self._refusal)
        request_id = self._connections.request_ids.next().encode()
        pairs = [
            *self.server_state.default_headers,
            *(pair for pair in headers if pair[0] != b"connection"),
            (b"content-length", b"%d" % len(body)),
            (b"x-request-id", request_id),
            (b"connection", b"close"),
        ]
        lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}".encode(), *(b"%b: %b" % pair for pair in pairs)]
        self.transport.write(b"\r\n".join(lines) + b"\r\n\r\n" + body)
        self.transport.close()

    def send_400_response(self, msg: str) -> None:
        self._refuse(MalformedRequest(MALFORMED))

    # -- responses

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        before = CURRENT.set((self._connections, self))
        super()._start_asgi_task(cycle, app)
        CURRENT.reset(before)

    def on_response_complete(self) -> None:
        self._release()
        cycle = cast("RequestResponseCycle | None", self.cycle)
        if cycle is None:  # the client left while requests were pipelined, which uvicorn does not tell the first one
            return
        if cycle.response_complete:
            cycle.body = bytearray()  # free what the application did not read
        self._output.flush()
        if self.flow.write_paused and not self.transport.is_closing():
            self._awaits_client = True
            return
        if self._refusal is not None and not self.pipeline:
            self._send_refusal()
            return
        is_last = not self.pipeline
        super().on_response_complete()
        if is_last:
            self._connections.idle[self] = None
        self._update_timer()

    def pause_writing(self) -> None:
        """The client does not read what is written; no further request is read until it does."""
        super().pause_writing()
        self.flow.pause_reading()
        self._n_unsent = self.unsent_bytes()
        self._unread_timer = self.loop.call_later(self._settings.body_timeout_s, self._require_progress)
        self._connections.unsent(self)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._connections.sent(self)
        self._stop_timer("_unread_timer")
        if self._awaits_client:
            self._awaits_client = False
            self.on_response_complete()
        elif self._refusal is not None and not self._is_busy():
            self._send_refusal()
        elif not self.pipeline:
            self.flow.resume_reading()

    def _require_progress(self) -> None:
        """Drop a client that has read less than a quarter of the unsent bytes within `body_timeout_s`."""
        before, self._n_unsent = self._n_unsent, self.unsent_bytes()
        if self._n_unsent > 0.75 * before:
            self._connections.drop(self, "unread_responses")
        else:
            self._unread_timer = self.loop.call_later(self._settings.body_timeout_s, self._require_progress)

    # -- timeouts

    def _update_timer(self) -> None:
        """Run a timer while a head or a body is incomplete; a request that arrives in one packet needs none."""
        is_incomplete = self._is_incomplete()
        if is_incomplete and self._incomplete_timer is None:
            settings = self._settings
            timeout_s = settings.head_timeout_s if self._in_head else settings.body_timeout_s
            self._incomplete_timer = self.loop.call_later(timeout_s, self._close_incomplete)
        elif not is_incomplete and self._incomplete_timer is not None:
            self._stop_timer("_incomplete_timer")

    def _is_incomplete(self) -> bool:
        """Whether a head is incomplete, or a body after its response; `request_body.py` times all other bodies."""
        return self._in_head or (not self._is_between_messages and not self._is_busy())

    def _close_incomplete(self) -> None:
        self._incomplete_timer = None
        if self._is_incomplete():
            self._connections.count("too_slow")
            self.transport.close()

    def _stop_timer(self, name: str) -> None:
        timer: asyncio.TimerHandle | None = getattr(self, name)
        if timer is not None:
            timer.cancel()
            setattr(self, name, None)
