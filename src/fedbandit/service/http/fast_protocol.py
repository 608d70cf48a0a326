"""The HTTP protocol of a connection: bounded, and plain exchanges are answered where their bytes arrive."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, cast

from fedbandit.service.exchange.fast_path import FastExchange, FastPath, FastPathConnection, ShedExchange
from fedbandit.service.http.bounded_protocol import BoundedProtocol

BLANK_LINE = b"\r\n\r\n"


class FastProtocol(BoundedProtocol):
    """What an exchange needs no ASGI for."""

    _exchange: FastExchange | ShedExchange | None = None  # the one whose body is being read
    _idle_since: float | None = None  # after an exchange
    _idle_timer: asyncio.TimerHandle | None = None
    _n_begun = 0  # messages in what was received last
    guest: FastPathConnection | None = None
    may_stay = True  # the client wants to go on after its answer

    def __init__(self, *args: Any, express: FastPath | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self._express = express

    def on_message_begin(self) -> None:
        self._n_begun += 1
        super().on_message_begin()

    def _begin_request(self) -> None:
        exchange = self._plain_exchange()
        if exchange is None:
            super()._begin_request()
            return
        self._begin(exchange)

    def _begin(self, exchange: FastExchange | ShedExchange) -> None:
        self.cycle = cast(Any, exchange)
        self._exchange = exchange
        if isinstance(exchange, FastExchange):
            exchange.keep_alive = self.may_stay
            exchange.open()

    def _plain_exchange(self) -> FastExchange | ShedExchange | None:
        """The exchange that begins here, if nothing else is under way on this connection."""
        if self._express is None or self.parser.get_method() != b"POST" or self._is_busy():
            return None
        self.may_stay = self.parser.get_http_version() != "1.0" and self.parser.should_keep_alive()
        return self._express.exchange(self, self.url, self.headers)

    def on_body(self, body: bytes) -> None:
        exchange = self._exchange
        if exchange is None:
            super().on_body(body)
            return
        self._is_heard = True
        if isinstance(exchange, FastExchange) and not exchange.response_complete:
            exchange.add(body)

    def on_message_complete(self) -> None:
        exchange = self._exchange
        if exchange is None:
            super().on_message_complete()
            return
        self._is_heard = self._is_between = True
        self._exchange = None
        if isinstance(exchange, FastExchange) and not exchange.response_complete:
            exchange.complete()

    def data_received(self, data: bytes) -> None:
        self._idle_since = None
        if not self._is_between or self._joined.lingers or self._refusal is not None:
            super().data_received(data)
        elif not self._is_same_again(data):
            self._n_begun = 0
            super().data_received(data)
            self._remember(data)

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
        self._connections.busy(self)
        self._unset_keepalive_if_required()
        self._begin(exchange)
        if isinstance(exchange, FastExchange):
            exchange.add(memoryview(data)[len(guest.head) :])
        self.on_message_complete()
        return True

    def _remember(self, data: bytes) -> None:
        """If that was one exchange and nothing else, the next one will most likely have the same head."""
        guest, cycle = self.guest, cast(Any, self.cycle)
        if guest is None or self._n_begun != 1 or not self._is_between or not isinstance(cycle, FastExchange):
            return
        head = data[: len(data) - cycle.length]
        if cycle.keep_alive and head.find(BLANK_LINE) == len(head) - len(BLANK_LINE):
            self.guest = guest._replace(head=head, n_bytes=len(data))

    def connection_lost(self, exc: Exception | None) -> None:
        exchange, self._exchange = self._exchange, None
        super().connection_lost(exc)
        if exchange is not None:
            exchange.lost()
        if self._idle_timer is not None:
            self._idle_timer.cancel()

    # -- what an exchange asks of its connection

    def exchange_complete(self) -> None:
        """An answer is sent: what is pipelined behind it comes next, or nothing for a while."""
        if self.pipeline or self.flow.read_paused or self._refusal is not None:
            self.on_response_complete()
            return
        self.server_state.total_requests += 1
        self._connections.idle(self)
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

    def _watch(self) -> None:
        if self._exchange is not None:
            self._exchange.watch()
        super()._watch()
