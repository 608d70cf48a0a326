"""How messages reach a server: bytes out, bytes in, and every failure as one of two errors.

`NotReachable` means: try again later. `Refused` means: saying it again will not help.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol
from urllib.parse import quote, urlsplit

import msgspec
import urllib3

from fedbandit.errors import FormatError, InvalidParameter, NotReachable, Refused
from fedbandit.sdk.retry import parse_retry_after
from fedbandit.wire.codec import CONTENT_TYPE, MAX_DIM, SyncReply, decode_reply, max_bytes

TRY_AGAIN = frozenset({408, 425, 429})  # and everything from 500 on
MAX_JSON = 1 << 20


@dataclass(frozen=True, slots=True)
class Answer:
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
        """The model's settings, as `terms_of` reads them."""
        ...

    def sync(self, body: bytes, *, timeout_s: float) -> Answer:
        """One exchange: an encoded upload in, the state after it out."""
        ...

    def state(self, incarnation: str, tag: str | None, *, timeout_s: float) -> Answer | None:
        """The newest state without an upload; None when it still is the one recognised by `tag`."""
        ...

    def close(self) -> None:
        """Give up connections."""
        ...


class _OnePiece:
    """A request leaves in one packet: sent apart, head and body wake the server twice."""

    _held: list[bytes] | None = None

    def request(self, *arguments: Any, **options: Any) -> None:
        self._held = []
        try:
            super().request(*arguments, **options)  # type: ignore[misc]
            whole = b"".join(self._held)
        finally:
            self._held = None
        self.send(whole)

    def send(self, data: Any) -> None:
        if self._held is None:
            super().send(data)  # type: ignore[misc]
        else:
            self._held.append(data)


class _Connection(_OnePiece, urllib3.connection.HTTPConnection):
    pass


class _SecureConnection(_OnePiece, urllib3.connection.HTTPSConnection):
    pass


class _Pool(urllib3.HTTPConnectionPool):
    ConnectionCls = _Connection


class _SecurePool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _SecureConnection


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
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.password:
            raise InvalidParameter(f"expected a server's address such as https://bandit.example, got {_safe(url)!r}")
        if not token or not token.isascii() or any(letter <= " " or letter == "\x7f" for letter in token):
            raise InvalidParameter("expected the agent's token as printed by `fedbandit agents add`")
        self.address = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
        self._path = f"{parts.path.rstrip('/')}/v1/models/{quote(model, safe='')}"
        self._headers = {"Authorization": f"Bearer {token}"}
        self._limit = max_bytes(MAX_DIM)
        self._pool: urllib3.HTTPConnectionPool
        if parts.scheme == "https":
            self._pool = _SecurePool(parts.hostname, parts.port, maxsize=1, ssl_context=_tls(ca, cert, key))
        else:
            self._pool = _Pool(parts.hostname, parts.port, maxsize=1)

    @property
    def is_in_the_clear(self) -> bool:
        """Whether the token could be read on the way."""
        parts = urlsplit(self.address)
        return parts.scheme == "http" and parts.hostname not in ("localhost", "127.0.0.1", "::1")

    def describe(self, *, timeout_s: float) -> dict[str, Any]:
        _, data = self._call("GET", self._path, timeout_s=timeout_s, accept="application/json")
        try:
            found = msgspec.json.decode(data, type=dict[str, Any])
        except msgspec.DecodeError:
            raise NotReachable(f"{self.address} answered with something else than a model's settings") from None
        if isinstance(found.get("dim"), int) and 1 <= found["dim"] <= MAX_DIM:
            self._limit = max_bytes(found["dim"])
        return found

    def sync(self, body: bytes, *, timeout_s: float) -> Answer:
        response, data = self._call("POST", f"{self._path}/sync", body=body, timeout_s=timeout_s)
        return self._answer(response, data)

    def state(self, incarnation: str, tag: str | None, *, timeout_s: float) -> Answer | None:
        path = f"{self._path}/state?incarnation={quote(incarnation, safe='')}"
        response, data = self._call("GET", path, timeout_s=timeout_s, tag=tag)
        return None if response.status == 304 else self._answer(response, data)

    def close(self) -> None:
        self._pool.close()

    def _answer(self, response: urllib3.BaseHTTPResponse, data: bytes) -> Answer:
        try:
            return Answer(decode_reply(data), response.headers.get("ETag"), len(data))
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
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise NotReachable(f"{self.address} did not answer: {_reason(error)}") from None
        if response.status in (200, 304):
            return response, data
        raise _failure(self.address, response, data)

    def _read(self, response: urllib3.BaseHTTPResponse) -> bytes:
        """The body, if it is no longer than an honest one; the connection goes back to be used again."""
        limit = max(self._limit, MAX_JSON)
        data = response.read(limit + 1)
        if len(data) > limit:
            response.close()
            raise NotReachable(f"{self.address} answered with more than the {limit} bytes that a model may have")
        response.release_conn()
        return data


def _failure(address: str, response: urllib3.BaseHTTPResponse, data: bytes) -> NotReachable | Refused:
    """The error in a response, in the server's own words where it has some."""
    status = response.status
    try:
        found = msgspec.json.decode(data, type=dict[str, Any])
    except msgspec.DecodeError:
        found = {}
    code, message = str(found.get("error", ""))[:100], str(found.get("message", ""))[:500]
    text = f"{address} answered {status}{f' {code}' if code else ''}{f': {message}' if message else ''}"
    if status >= 500 or status in TRY_AGAIN:
        wish = parse_retry_after(response.headers.get("Retry-After"), datetime.now(UTC))
        return NotReachable(text, retry_after_s=wish)
    return Refused(text, reason=code or f"http_{status}", status=status)


def _tls(ca: str | None, cert: str | None, key: str | None) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca)
        if cert is not None:
            context.load_cert_chain(cert, key)
    except OSError as error:
        raise InvalidParameter(f"the certificates cannot be used (ca={ca}, cert={cert}, key={key}): {error}") from None
    return context


def _reason(error: Exception) -> str:
    """The last clause of urllib3's message, which is the part that says what happened."""
    return str(error).rpartition("): ")[2] or type(error).__name__


def _safe(url: str) -> str:
    """An address without what may be a password in front of an @."""
    return url.rpartition("@")[2]
