"""How messages reach a server: bytes out, bytes in, and every failure as one of two errors.

`NotReachable` means: try again later. `Refused` means: saying it again will not help.
"""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from http.client import HTTPException
from typing import Any, Protocol
from urllib.parse import SplitResult, quote, urlsplit

import msgspec
import urllib3

from fedbandit.errors import FormatError, InvalidParameter, NotReachable, Refused
from fedbandit.sdk.deadline import Deadline, Pool, SecurePool, TimedTLSSocket
from fedbandit.sdk.retry import parse_retry_after
from fedbandit.wire.codec import CONTENT_TYPE, MAX_DIM, SyncReply, decode_reply, max_bytes

TRY_AGAIN = frozenset({408, 425, 429})  # and everything from 500 on
MAX_JSON = 1 << 20


@dataclass(frozen=True, slots=True)
class TransportReply:
    """The server's state, how to recognise it again, and what it weighed."""

    reply: SyncReply
    tag: str | None
    n_bytes: int


class Transport(Protocol):
    """One agent's way to one model on one server. Calls come one at a time, from any thread."""

    @property
    def address(self) -> str:
        """Where the server is, for people."""
        ...

    def describe(self, *, timeout_s: float) -> dict[str, Any]:
        """The model's settings, as `ModelDescription.from_dict` reads them."""
        ...

    def sync(self, body: bytes, *, timeout_s: float) -> TransportReply:
        """One exchange: an encoded upload in, the state after it out."""
        ...

    def state(self, incarnation: str, tag: str | None, *, timeout_s: float) -> TransportReply | None:
        """The newest state without an upload; None when it still is the one recognised by `tag`."""
        ...

    def close(self) -> None:
        """Give up connections."""
        ...


class HttpTransport:
    """HTTP with one kept-alive connection; TLS by the system's certificates or `ca`, mutual with `cert` and `key`."""

    def __init__(
        self,
        url: str,
        *,
        model: str,
        token: str,
        ca: str | None = None,
        cert: str | None = None,
        key: str | None = None,
    ) -> None:
        for name, value in (("model", model), ("token", token)):
            if not isinstance(value, str):
                raise InvalidParameter(f"expected {name} as text, got {type(value).__name__}")
        parts = address_parts(url)
        check_token(token, "the agent's token as printed by `fedbandit agents add`")
        self.address = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
        self._path = f"{parts.path.rstrip('/')}/v1/models/{segment(model, 'model')}"
        self._headers = {"Authorization": f"Bearer {token}"}
        self._limit = max_bytes(MAX_DIM)
        self._deadline = Deadline()
        self._pool: urllib3.HTTPConnectionPool
        if parts.scheme == "https":
            context = _tls(ca, cert, key)
            self._pool = SecurePool(
                parts.hostname or "", parts.port, maxsize=1, ssl_context=context, deadline=self._deadline
            )
        else:
            self._pool = Pool(parts.hostname or "", parts.port, maxsize=1, deadline=self._deadline)

    @property
    def is_in_the_clear(self) -> bool:
        """Whether the token could be read on the way."""
        parts = urlsplit(self.address)
        return parts.scheme == "http" and parts.hostname not in ("localhost", "127.0.0.1", "::1")

    def describe(self, *, timeout_s: float) -> dict[str, Any]:
        _, data = self._call("GET", self._path, timeout_s=timeout_s, accept="application/json")
        found = _object(data)
        if found is None:
            raise NotReachable(f"{self.address} answered with something else than a model's settings")
        if isinstance(found.get("dim"), int) and 1 <= found["dim"] <= MAX_DIM:
            self._limit = max_bytes(found["dim"])
        return found

    def sync(self, body: bytes, *, timeout_s: float) -> TransportReply:
        response, data = self._call("POST", f"{self._path}/sync", body=body, timeout_s=timeout_s)
        return self._answer(response, data)

    def state(self, incarnation: str, tag: str | None, *, timeout_s: float) -> TransportReply | None:
        path = f"{self._path}/state?incarnation={quote(incarnation, safe='')}"
        response, data = self._call("GET", path, timeout_s=timeout_s, tag=tag)
        return None if response.status == 304 else self._answer(response, data)

    def close(self) -> None:
        self._pool.close()

    def _answer(self, response: urllib3.BaseHTTPResponse, data: bytes) -> TransportReply:
        try:
            return TransportReply(decode_reply(data), _tag(response.headers.get("ETag")), len(data))
        except FormatError as error:
            # A login page of some network in between looks like this, too: it may be gone later.
            raise NotReachable(f"{self.address} answered with something else than a model: {error}") from None

    def _call(
        self,
        method: str,
        path: str,
        *,
        timeout_s: float,
        body: bytes | None = None,
        tag: str | None = None,
        accept: str = CONTENT_TYPE,
    ) -> tuple[urllib3.BaseHTTPResponse, bytes]:
        headers = {**self._headers, "Accept": accept}
        if body is not None:
            headers["Content-Type"] = CONTENT_TYPE
        if tag is not None:
            headers["If-None-Match"] = tag
        self._deadline.begin(timeout_s)
        try:
            response = self._pool.urlopen(
                method,
                path,
                body=body,
                headers=headers,
                timeout=urllib3.Timeout(total=timeout_s),
                retries=False,
                redirect=False,
                preload_content=False,
                decode_content=False,
            )
            data = self._read(response)
        except (urllib3.exceptions.HTTPError, HTTPException, OSError, ValueError) as error:
            self._deadline.give_up()
            raise NotReachable(f"{self.address} did not answer: {reason_of(error)}") from None
        if response.status in (200, 304):
            return response, data
        raise _failure(self.address, response, data)

    def _read(self, response: urllib3.BaseHTTPResponse) -> bytes:
        """The body, if it is no longer than an honest one; the connection goes back to be used again."""
        limit = max(self._limit, MAX_JSON)
        data = response.read(limit + 1)
        if len(data) > limit or (not response.closed and response.read(1)):  # a second read finds the end, and closes
            response.close()
            raise NotReachable(f"{self.address} answered with more than the {limit} bytes that a model may have")
        response.release_conn()
        return data


def _failure(address: str, response: urllib3.BaseHTTPResponse, data: bytes) -> NotReachable | Refused:
    """The error in a response, in the server's own words where it has some."""
    status = response.status
    found = _object(data) or {}
    code, message = _words(found.get("error"), 100), _words(found.get("message"), 500)
    text = f"{address} answered {status}{f' {code}' if code else ''}{f': {message}' if message else ''}"
    if status >= 500 or status in TRY_AGAIN:
        wish = parse_retry_after(response.headers.get("Retry-After"), datetime.now(UTC))
        return NotReachable(text, retry_after_s=wish)
    return Refused(text, reason=code or f"http_{status}", status=status)


def _object(data: bytes) -> dict[str, Any] | None:
    """The JSON object in an answer; None if there is none, whatever the bytes are."""
    try:
        return msgspec.json.decode(data, type=dict[str, Any])
    except (ValueError, RecursionError):  # not JSON, not UTF-8, nested without end
        return None


def _words(value: Any, most: int) -> str:
    """A text of the server, fit for a log line."""
    text = value[:most] if isinstance(value, str) else ""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _tag(header: str | None) -> str | None:
    """An entity tag that can be sent back, as the server made it: a proxy that compresses answers marks tags as weak.

    To the server a weak one is another question: whether data were taken out, not whether there is a newer model.
    """
    tag = (header or "").removeprefix("W/")
    return tag if tag and len(tag) <= 200 and tag.isascii() and tag.isprintable() else None


def _tls(ca: str | None, cert: str | None, key: str | None) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca)
        context.sslsocket_class = TimedTLSSocket
        if cert is not None:
            context.load_cert_chain(cert, key)
    except OSError as error:
        raise InvalidParameter(f"the certificates cannot be used (ca={ca}, cert={cert}, key={key}): {error}") from None
    return context


def check_token(token: str, expected: str) -> None:
    """`InvalidParameter` for what cannot travel in a header; the token itself is not repeated."""
    if not token or not token.isascii() or any(letter <= " " or letter == "\x7f" for letter in token):
        raise InvalidParameter(f"expected {expected}: ASCII without spaces")


def segment(name: str, what: str) -> str:
    """A name as one segment of an address; `InvalidParameter` for what would be another address.

    >>> segment("a b", "model")
    'a%20b'
    """
    if name in ("", ".", "..") or "/" in name or any("\ud800" <= letter <= "\udfff" for letter in name):
        raise InvalidParameter(f"expected the name of the {what}, got {name!r}")
    return quote(name, safe="")


def address_parts(url: str) -> SplitResult:
    """The parts of a server's address; anything else is a named error."""
    if not isinstance(url, str):
        raise InvalidParameter(f"expected url as text, got {type(url).__name__}")
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - a port that is no number shows here
    except ValueError as error:
        raise InvalidParameter(f"expected a server's address such as https://bandit.example: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.password:
        raise InvalidParameter(f"expected a server's address such as https://bandit.example, got {_safe(url)!r}")
    return parts


def reason_of(error: Exception) -> str:
    """What happened to a connection, in the words of the system: urllib3's message without its objects."""
    text = str(error).rpartition("): ")[2] or type(error).__name__
    return re.sub(r"<[^<>]*\bobject at 0x[0-9a-f]+>:? ?|\bHTTPS?Connection(Pool)?\([^()]*\):? ?", "", text)


def _safe(url: str) -> str:
    """An address without what may be a password in front of an @."""
    return url.rpartition("@")[2]
