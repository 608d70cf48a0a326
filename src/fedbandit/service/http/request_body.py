"""The one reader of request bodies, for all routes: bounded in size, in time and in memory."""

from __future__ import annotations

import asyncio

from starlette.types import Receive, Scope

from fedbandit.errors import BodyTooLarge, BodyTooSlow
from fedbandit.service.http.connections import BodyMemory, body_read_begins

LARGE_BYTES = 1 << 20  # from this size on, pieces are joined outside the event loop


class ClientDisconnected(Exception):
    """The client disconnected before its body was complete; no response can be sent."""


class read_body:  # noqa: N801 - used like a function
    """`async with read_body(…) as body`: the complete body; its memory stays reserved inside the block.

    The declared length is reserved, or `limit` for a body without one. Raises `BodyTooLarge` beyond `limit` bytes
    (before reading, if the length is declared), `BodyTooSlow` if the body is incomplete after `timeout_s`,
    `Overloaded` without free memory, and `ClientDisconnected`.
    """

    __slots__ = ("_length", "_limit", "_memory", "_receive", "_timeout_s")

    def __init__(self, scope: Scope, receive: Receive, memory: BodyMemory, *, limit: int, timeout_s: float) -> None:
        self._receive = receive
        self._memory = memory
        self._limit = limit
        self._timeout_s = timeout_s
        self._length = 0
        for name, value in scope["headers"]:
            if name == b"content-length":
                self._length = int(value) if value.isdigit() else 0  # the HTTP parser has refused anything but digits
                break
            if name == b"transfer-encoding":
                self._length = limit
                break

    async def __aenter__(self) -> bytes:
        if self._length > self._limit:
            raise self._too_large()
        is_complete = body_read_begins()
        self._memory.reserve(self._length)
        try:
            if is_complete:
                return await self._read()
            # The timeout covers the first byte, too: a client that sends nothing must not keep its reservation.
            async with asyncio.timeout(self._timeout_s):
                return await self._read()
        except TimeoutError:
            self._memory.release(self._length)
            raise BodyTooSlow("the body did not arrive in time") from None
        except BaseException:
            self._memory.release(self._length)
            raise

    async def __aexit__(self, *_: object) -> None:
        self._memory.release(self._length)

    async def _read(self) -> bytes:
        pieces: list[bytes] = []
        n_bytes = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnected
            piece: bytes = message.get("body", b"")
            n_bytes += len(piece)
            if n_bytes > self._limit:
                raise self._too_large()
            if not message.get("more_body", False):
                break
            pieces.append(piece)
        if not pieces:
            return piece
        pieces.append(piece)
        return b"".join(pieces) if n_bytes < LARGE_BYTES else await asyncio.to_thread(b"".join, pieces)

    def _too_large(self) -> BodyTooLarge:
        return BodyTooLarge(f"expected at most {self._limit} bytes")


def header(scope: Scope, name: bytes) -> str | None:
    """The value of a request header, None without one; `name` in lower case."""
    for key, value in scope["headers"]:
        if key == name:
            text: str = value.decode("latin-1")
            return text
    return None
