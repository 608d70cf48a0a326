"""Answers to exchanges, and to what cannot be served, as bytes."""

from __future__ import annotations

from http import HTTPStatus
from typing import NamedTuple

from fedbandit.service.http import error_responses
from fedbandit.wire import codec

LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in HTTPStatus}


class ExchangeReply(NamedTuple):
    """What goes back, and the word for it in logs and metrics."""

    status: int
    body: bytes
    result: str
    headers: dict[str, str] = {}  # noqa: RUF012 - nobody writes to it


def head_of(outcome: ExchangeReply, request_id: str, common: str, *, keep_alive: bool) -> bytes:
    """What goes before the body of an answer."""
    head = (
        f"{LINES[outcome.status]}{common}"
        f"content-type: {codec.CONTENT_TYPE if outcome.status == 200 else error_responses.JSON}\r\n"
        f"content-length: {len(outcome.body)}\r\nx-request-id: {request_id}\r\n"
    )
    for name, value in outcome.headers.items():
        head += f"{name.lower()}: {value}\r\n"
    if not keep_alive and "Connection" not in outcome.headers:
        head += "connection: close\r\n"
    return f"{head}\r\n".encode("latin-1")


def joined(headers: list[tuple[bytes, bytes]]) -> str:
    """The lines of headers."""
    return "".join(f"{name.decode('latin-1')}: {value.decode('latin-1')}\r\n" for name, value in headers)
