"""A transport for responses: sent in one piece, and closed without resetting a client that is still sending."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

LINGER_S = 2.0
MAX_JOINED_BYTES = 1 << 20  # longer responses are not copied into one piece


class ResponseTransport:
    """Sends what is written within one iteration of the event loop by one system call.

    Otherwise the head and the body of a response would cost the server and its client a wake-up each.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        is_receiving: Callable[[], bool],
        close_timeout_s: float,
    ) -> None:
        self._transport = transport
        self._loop = loop
        self._is_receiving = is_receiving
        self._close_timeout_s = close_timeout_s
        self._pieces: list[bytes] = []
        self.is_lingering = False  # the last response is sent, and input is discarded

    def write(self, data: bytes) -> None:
        """Send the data at the next `flush`, or at the end of this iteration of the event loop."""
        if not self._pieces:
            self._loop.call_soon(self.flush)
        self._pieces.append(data)

    def flush(self) -> None:
        """Send what was written, unless the connection is being closed."""
        pieces, self._pieces = self._pieces, []
        if not pieces or self.is_closing():
            return
        if len(pieces) == 1:
            self._transport.write(pieces[0])
        elif sum(map(len, pieces)) < MAX_JOINED_BYTES:
            self._transport.write(b"".join(pieces))
        else:
            self._transport.writelines(pieces)

    def close(self) -> None:
        """Close the connection when everything is sent.

        A socket that is closed with unread input is reset, and the reset may overtake the response: a proxy would then
        report 502 where the server sent 413. While a request is incomplete its input is discarded for `LINGER_S`.
        """
        self.flush()
        if self.is_lingering or self._transport.is_closing() or not self._is_receiving():
            self._close()
            return
        self.is_lingering = True
        if self._transport.can_write_eof():
            self._transport.write_eof()
        if not self._transport.is_reading():
            self._transport.resume_reading()
        self._loop.call_later(LINGER_S, self._close)

    def _close(self) -> None:
        # `close` waits until everything is sent, which a client that does not read could delay without end.
        if not self._transport.is_closing() and self._transport.get_write_buffer_size():
            self._loop.call_later(self._close_timeout_s, self._transport.abort)
        self._transport.close()

    def is_closing(self) -> bool:
        """Whether nothing more can be sent."""
        return self.is_lingering or self._transport.is_closing()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
