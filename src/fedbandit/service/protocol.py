"""uvicorn's HTTP protocol with three changes: plain exchanges are answered here, an answer leaves in one piece, and a
refusal can be read by a client that is still sending."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from fedbandit.service.desk import Outcome
from fedbandit.service.express import Exchange, Express, Guest, Shed, head_of, joined

HALF_TIMEOUT_S = 30.0
BLANK_LINE = b"\r\n\r\n"
LINGER_S = 2.0
LINGER_BYTES = 4 << 20


class JoinedWrites:
    """A transport that sends what is written within one turn of the event loop by one system call."""

    def __init__(
        self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, is_sending: Callable[[], bool]
    ) -> None:
        self._transport = transport
        self._loop = loop
        self._is_sending = is_sending
        self._pieces: list[bytes] = []
        self.lingers = False  # all is said, and what the client still sends is thrown away

    def write(self, data: bytes) -> None:
        """Keep the data until the turn is over."""
        if not self._pieces:
            self._loop.call_soon(self._flush)
        self._pieces.append(data)

    def writelines(self, pieces: tuple[bytes, ...]) -> None:
        """All that there is to say in this turn."""
        self._flush()
        if not self.is_closing():
            self._transport.writelines(pieces)

    def close(self) -> None:
        """Send what is left, then close.

        A socket that is closed while the client sends is reset, and a reset may overtake the answer: then a proxy says
        502 where we said 413. So such a client is heard a little longer.
        """
        self._flush()
        if self.lingers or self._transport.is_closing() or not self._is_sending():
            self._transport.close()
            return
        self.lingers = True
        if self._transport.can_write_eof():
            self._transport.write_eof()
        if not self._transport.is_reading():
            self._transport.resume_reading()
        self._loop.call_later(LINGER_S, self._transport.close)

    def is_closing(self) -> bool:
        """Whether nothing more can be sent."""
        return self.lingers or self._transport.is_closing()

    def _flush(self) -> None:
        pieces, self._pieces = self._pieces, []
        if pieces and not self.is_closing():  # the client may have left within this turn
            self._transport.write(pieces[0] if len(pieces) == 1 else b"".join(pieces))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Protocol(HttpToolsProtocol):
    """Two small packets for one answer cost the server and its client a wake-up each.

    A connection on which a head stays half is closed, and so is one on which a body goes on after its answer: other
    bodies have a limit of their own, silence between requests has uvicorn's.
    """

    _in_head = True
    _half_timer: asyncio.TimerHandle | None = None
    _exchange: Exchange | Shed | None = None  # the one whose body is being read
    _idle_since: float | None = None  # after an exchange
    _idle_timer: asyncio.TimerHandle | None = None
    _n_begun = 0  # messages in what was received last
    _is_between = True  # the last message is complete, and no other has begun
    guest: Guest | None = None
    may_stay = True  # the client wants to go on after its answer

    def __init__(self, *args: Any, express: Express | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self._express = express
        self._default: list[tuple[bytes, bytes]] | None = None
        self._common = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._joined = JoinedWrites(cast(asyncio.Transport, transport), self.loop, self._is_in_body)
        self._n_heard = 0
        super().connection_made(cast(asyncio.Transport, self._joined))
        self._watch()

    def on_message_begin(self) -> None:
        self._in_head = True
        self._is_between = False
        self._n_begun += 1
        self.url = b""
        self.headers = []
        self.expect_100_continue = False

    def on_headers_complete(self) -> None:
        self._in_head = False
        exchange = self._plain_exchange()
        if exchange is None:
            self._go_the_long_way()
            return
        self._begin(exchange)

    def _begin(self, exchange: Exchange | Shed) -> None:
        self.cycle = cast(Any, exchange)
        self._exchange = exchange
        if isinstance(exchange, Exchange):
            exchange.keep_alive = self.may_stay
            exchange.open()

    def _go_the_long_way(self) -> None:
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()  # uvicorn's scope, which an exchange can do without
        self.url, self.expect_100_continue = url, expects
        self.headers.extend(headers)
        super().on_headers_complete()

    def _plain_exchange(self) -> Exchange | Shed | None:
        """The exchange that begins here, if nothing else is under way on this connection."""
        if self._express is None or self.parser.get_method() != b"POST" or self._is_busy():
            return None
        self.may_stay = self.parser.get_http_version() != "1.0" and self.parser.should_keep_alive()
        return self._express.exchange(self, self.url, self.headers)

    def _is_busy(self) -> bool:
        """Whether something before has yet to be answered, or read by the client."""
        cycle = cast("RequestResponseCycle | None", self.cycle)  # uvicorn has none at first
        return self.flow.write_paused or (cycle is not None and not cycle.response_complete)

    def on_body(self, body: bytes) -> None:
        exchange = self._exchange
        if exchange is None:
            super().on_body(body)
        elif isinstance(exchange, Exchange) and not exchange.response_complete:
            exchange.add(body)

    def on_message_complete(self) -> None:
        self._is_between = True
        exchange, self._exchange = self._exchange, None
        if exchange is None:
            super().on_message_complete()
        elif isinstance(exchange, Exchange) and not exchange.response_complete:
            exchange.complete()

    def _is_in_body(self) -> bool:
        return not self._is_between and not self._in_head

    def data_received(self, data: bytes) -> None:
        if self._joined.lingers:
            self._n_heard += len(data)
            if self._n_heard > LINGER_BYTES:
                self.transport.close()
            return
        self._idle_since = None
        if self._is_between:
            if self._is_same_again(data):
                return
            self._n_begun = 0
            super().data_received(data)
            self._remember(data)
        else:
            super().data_received(data)
        self._watch()

    def _is_same_again(self, data: bytes) -> bool:
        """Whether it is a whole exchange with the very head that the parser took for one before; if so, it begins."""
        guest = self.guest
        if guest is None or len(data) != guest.n_bytes or not data.startswith(guest.head) or self._is_busy():
            return False
        assert self._express is not None
        self.may_stay = True
        exchange = self._express.exchange_again(self, guest)
        if exchange is None:
            return False
        self._unset_keepalive_if_required()
        self._begin(exchange)
        if isinstance(exchange, Exchange):
            exchange.add(memoryview(data)[len(guest.head) :])
        self.on_message_complete()
        return True

    def _remember(self, data: bytes) -> None:
        """If that was one exchange and nothing else, the next one will most likely have the same head."""
        guest, cycle = self.guest, cast(Any, self.cycle)
        if guest is None or self._n_begun != 1 or not self._is_between or not isinstance(cycle, Exchange):
            return
        head = data[: len(data) - cycle.length]
        if cycle.keep_alive and head.find(BLANK_LINE) == len(head) - len(BLANK_LINE):
            self.guest = guest._replace(head=head, n_bytes=len(data))

    def connection_lost(self, exc: Exception | None) -> None:
        self._in_head, self._is_between = False, True
        super().connection_lost(exc)
        if self._exchange is not None:
            self._exchange.lost()
            self._exchange = None
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._watch()

    # -- what an exchange asks of its connection

    def answer(self, outcome: Outcome, request_id: str, *, keep_alive: bool) -> None:
        """Send an answer."""
        head = head_of(outcome, request_id, self._common_lines(), keep_alive=keep_alive)
        self.transport.writelines((head, outcome.body))

    def _common_lines(self) -> str:
        """The headers of every answer; uvicorn makes a new list of them every second."""
        if self._default is not self.server_state.default_headers:
            self._default = self.server_state.default_headers
            self._common = joined(self._default)
        return self._common

    def exchange_complete(self) -> None:
        """An answer is sent: what is pipelined behind it comes next, or nothing for a while."""
        if self.pipeline or self.flow.read_paused:
            self.on_response_complete()
            return
        self.server_state.total_requests += 1
        # A timer per connection rather than one per request: it looks how long nothing came when it rings.
        self._idle_since = self.loop.time()
        if self._idle_timer is None:
            self._idle_timer = self.loop.call_later(self.timeout_keep_alive, self._end_if_idle)

    def _end_if_idle(self) -> None:
        self._idle_timer = None
        if self._idle_since is None:
            return
        left = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self._idle_timer = self.loop.call_later(left, self._end_if_idle)
        else:
            self.transport.close()

    def tell_later(self, work: Coroutine[Any, Any, None]) -> None:
        """Something that has to wait before it can answer; a stopping server waits for it."""
        task = self.loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    # -- what must come in time

    def _watch(self) -> None:
        """Timers while a head or a body is half there, which a whole request in one packet never needs."""
        if self._exchange is not None:
            self._exchange.watch()
        is_half = self._is_half()
        if is_half and self._half_timer is None:
            self._half_timer = self.loop.call_later(HALF_TIMEOUT_S, self._give_up)
        elif not is_half and self._half_timer is not None:
            self._half_timer.cancel()
            self._half_timer = None

    def _is_half(self) -> bool:
        """Whether a head is half there, or the body of a request that has its answer; other bodies have a timer."""
        return self._in_head or (not self._is_between and not self._is_busy())

    def _give_up(self) -> None:
        if self._is_half():
            self.transport.close()
