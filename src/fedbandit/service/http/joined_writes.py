"""A transport that sends an answer in one piece, and lets a client that is still sending read why it was refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

LINGER_S = 2.0
LONG = 1 << 20  # what is longer is not copied into one piece


class JoinedWrites:
    """Sends what is written within one turn of the event loop by one system call.

    Two small packets for one answer cost the server and its client a wake-up each.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        is_sending: Callable[[], bool],
        close_timeout_s: float,
    ) -> None:
        self._transport = transport
        self._loop = loop
        self._is_sending = is_sending
        self._close_timeout_s = close_timeout_s
        self._pieces: list[bytes] = []
        self.lingers = False  # all is said, and what the client still sends is thrown away

    def write(self, data: bytes) -> None:
        """Keep the data until the turn is over."""
        if not self._pieces:
            self._loop.call_soon(self.flush)
        self._pieces.append(data)

    def writelines(self, pieces: tuple[bytes, ...]) -> None:
        """All that there is to say in this turn."""
        self.flush()
        if not self.is_closing():
            self._transport.writelines(pieces)

    def close(self) -> None:
        """Send what is left, then close.

        A socket that is closed while the client sends is reset, and a reset may overtake the answer: then a proxy says
        502 where we said 413. So such a client is heard a little longer.
        """
        self.flush()
        if self.lingers or self._transport.is_closing() or not self._is_sending():
            self._close()
            return
        self.lingers = True
        if self._transport.can_write_eof():
            self._transport.write_eof()
        if not self._transport.is_reading():
            self._transport.resume_reading()
        self._loop.call_later(LINGER_S, self._close)

    def _close(self) -> None:
        """A transport is closed when all is sent, which a client that does not read would put off for ever."""
        if not self._transport.is_closing() and self._transport.get_write_buffer_size():
            self._loop.call_later(self._close_timeout_s, self._transport.abort)
        self._transport.close()

    def is_closing(self) -> bool:
        """Whether nothing more can be sent."""
        return self.lingers or self._transport.is_closing()

    def flush(self) -> None:
        """Send what was written."""
        pieces, self._pieces = self._pieces, []
        if not pieces or self.is_closing():  # the client may have left within this turn
            return
        if len(pieces) == 1:
            self._transport.write(pieces[0])
        elif sum(map(len, pieces)) < LONG:
            self._transport.write(b"".join(pieces))
        else:
            self._transport.writelines(pieces)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
