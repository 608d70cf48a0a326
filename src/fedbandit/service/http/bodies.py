"""Bodies of requests: the one reader for all routes, bounded in size, in time and in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.types import Receive, Scope

from fedbandit.errors import BodyTooLarge, BodyTooSlow
from fedbandit.service.http.body_memory import BodyMemory
from fedbandit.service.http.connections import take_body

LONG = 1 << 20  # from here on a copy is too long for the event loop


class Disconnected(Exception):
    """The client went away before its body was complete; there is nobody to answer."""


@asynccontextmanager
async def body_of(
    scope: Scope, receive: Receive, memory: BodyMemory, *, limit: int, timeout_s: float, of: str = ""
) -> AsyncIterator[bytes]:
    """The whole body of a request, while its memory is reserved: its announced length, or `limit` without one.

    `BodyTooLarge` beyond `limit` bytes (before any is read, if the length was announced), `BodyTooSlow` unless all of
    it is here after `timeout_s`, `Overloaded` without memory, `Disconnected` when the client leaves.
    """
    length = _announced(scope, limit)
    if length > limit:
        raise _too_large(limit, of)
    take_body()
    memory.reserve(length)
    try:
        try:
            # The first byte, too: a client that sends none would hold its memory for ever.
            async with asyncio.timeout(timeout_s):
                body = await _whole(receive, limit, of)
        except TimeoutError:
            raise too_slow() from None
        yield body
    finally:
        memory.release(length)


async def _whole(receive: Receive, limit: int, of: str) -> bytes:
    pieces: list[bytes] = []
    n_bytes = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        piece = message.get("body", b"")
        n_bytes += len(piece)
        if n_bytes > limit:
            raise _too_large(limit, of)
        pieces.append(piece)
        if not message.get("more_body", False):
            if len(pieces) == 1:
                return pieces[0]
            return b"".join(pieces) if n_bytes < LONG else await asyncio.to_thread(b"".join, pieces)


def _announced(scope: Scope, limit: int) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length":
            return int(value) if value.isdigit() else 0  # the parser has refused what is no number
        if name == b"transfer-encoding":
            return limit
    return 0


def _too_large(limit: int, of: str) -> BodyTooLarge:
    return BodyTooLarge(f"expected at most {limit} bytes{of}")


def too_slow() -> BodyTooSlow:
    """Said when a body is not complete in time."""
    return BodyTooSlow("the body did not arrive in time")
