"""One HTTP client for the SDK, the admin commands and `doctor`: a deadline per call, bounded bodies, TLS, named errors.

`NotReachable` means: try again later. `Refused` is a permanent rejection; do not retry.
"""

from __future__ import annotations

import hashlib
import json
import math
import ssl
import time
import weakref
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple
from urllib.parse import SplitResult, quote, urlsplit

import msgspec

from fedbandit.errors import InvalidParameter, NotReachable, Refused
from fedbandit.http_connection import HttpConnection, TooLong

RETRYABLE = frozenset({408, 425, 429})  # and everything from 500 on
MAX_JSON_BYTES = 1 << 20
MAX_EXPORT_BYTES = 1 << 29  # a model of 4096 features in full takes a quarter of it
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
ADMIN_TIMEOUT_S = 60.0
EXPORT_TIMEOUT_S = 600.0


class HttpReply(NamedTuple):
    """A response whose body was read; the names of its headers are in small letters."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json_object(self) -> dict[str, Any] | None:
        """The JSON object in the body; None if there is none, whatever the bytes are."""
        try:
            return msgspec.json.decode(self.body, type=dict[str, Any])
        except (ValueError, RecursionError):  # not JSON, not UTF-8, nested without end
            return None


class HttpClient:
    """One kept-alive connection to one server; calls come one at a time, from any thread.

    TLS uses the system's certificates or `ca`; with `cert` and `key` it is mutual. With a `fingerprint` (SHA-256, in
    hexadecimal) the server must have exactly this certificate, and unless `ca` is given, that is enough. `names_server`
    puts address and status before the words of a refusal. `pause` is called between the steps of a call, for a
    background thread that gives way to others.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | Callable[[], str] = "",
        ca: str | None = None,
        cert: str | None = None,
        key: str | None = None,
        fingerprint: str | None = None,
        max_body_bytes: int = MAX_JSON_BYTES,
        names_server: bool = True,
        pause: Callable[[], None] = lambda: None,
    ) -> None:
        parts = address_parts(url)
        self._base = quote(parts.path.rstrip("/"), safe="/%:@!$&'()*+,;=~")
        self.address = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
        self.max_body_bytes = max_body_bytes
        self._names_server = names_server
        self._host = parts.hostname or ""
        self._tls = _tls(ca, cert, key, is_pinned=fingerprint is not None) if parts.scheme == "https" else None
        if fingerprint is not None and self._tls is None:
            raise InvalidParameter(
                f"expected an https address with the fingerprint of a certificate, got {self.address}"
            )
        self._fingerprint = fingerprint
        self._port = parts.port or (80 if self._tls is None else 443)
        self._fixed = {"Host": parts.netloc, "Accept-Encoding": "identity", "User-Agent": "fedbandit"}
        self._token = token if callable(token) else None
        if token and not callable(token):
            self._fixed["Authorization"] = f"Bearer {token}"
        self._pause = pause
        self._idle: HttpConnection | None = None  # between two calls
        self._is_closed = False

    @property
    def exposes_token(self) -> bool:
        """Whether the token could be read on the way: no TLS, and a server beyond this machine."""
        parts = urlsplit(self.address)
        return parts.scheme == "http" and parts.hostname not in LOOPBACK

    def request(
        self,
        method: str,
        path: str,
        *,
        timeout_s: float,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> HttpReply:
        """The response, whatever its status; `NotReachable` if there is none within `timeout_s` for the whole call."""
        until = time.monotonic() + timeout_s
        connection, self._idle = self._idle, None
        try:
            request = self._head(method, path, {**self._fixed, **self._current_token(), **(headers or {})}, body)
            if connection is None or not connection.is_usable():
                connection = self._connect(connection, until)
            found, content = connection.request(request, body or b"", max_body_bytes=self.max_body_bytes, until=until)
        except TooLong:
            _close(connection)
            raise NotReachable(f"{self.address} answered with more than {self.max_body_bytes} bytes") from None
        except (OSError, ValueError) as error:
            _close(connection)
            raise NotReachable(f"{self.address} did not answer: {str(error) or type(error).__name__}") from None
        except BaseException:
            _close(connection)
            raise
        self._pause()
        self._idle = connection
        if self._is_closed:
            self.close()
        return HttpReply(found.status, found.headers, content)

    def _current_token(self) -> dict[str, str]:
        """The header of a token that may change from call to call."""
        return {} if self._token is None else {"Authorization": f"Bearer {self._token()}"}

    def call(self, method: str, path: str, **options: Any) -> HttpReply:
        """The same, with a status that reports a failure raised as `NotReachable` or `Refused`."""
        reply = self.request(method, path, **options)
        if reply.status < 300 or reply.status == 304:
            return reply
        raise _failure(self.address, reply, names_server=self._names_server)

    def close(self) -> None:
        """Close the connection; one that a call is using ends with the call."""
        self._is_closed = True
        connection, self._idle = self._idle, None
        _close(connection)

    def _connect(self, before: HttpConnection | None, until: float) -> HttpConnection:
        _close(before)
        connection = HttpConnection.open(self._host, self._port, tls=self._tls, until=until, pause=self._pause)
        if self._fingerprint is not None:
            try:
                self._require_pinned(connection.certificate())
            except BaseException:
                connection.close()
                raise
        return connection

    def _require_pinned(self, certificate: bytes) -> None:
        """Before anything is sent: the server has exactly the certificate that was pinned."""
        found = hashlib.sha256(certificate).hexdigest()
        if found != self._fingerprint:
            raise OSError(
                f"its certificate has the fingerprint {found}, expected {self._fingerprint}: another server, or a "
                f"certificate that was renewed since it was pinned"
            )

    def _head(self, method: str, path: str, headers: Mapping[str, str], body: bytes | None) -> bytes:
        lines = [f"{method} {self._base}{path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        if body is not None:
            lines.append(f"Content-Length: {len(body)}")
        text = "\r\n".join(lines)
        if text.count("\n") != len(lines) - 1 or text.count("\r") != len(lines) - 1:
            raise InvalidParameter("expected headers without line breaks")
        self._pause()
        return f"{text}\r\n\r\n".encode("latin-1")


def _close(connection: HttpConnection | None) -> None:
    if connection is not None:
        connection.close()


class AdminClient:
    """The administration API of a server: JSON in, JSON out. One connection, open as long as this object is used."""

    def __init__(self, url: str, token: str, ca_cert: str | None = None) -> None:
        check_token(token, "a token as printed by `fedbandit tokens add`; pass --token or set FEDBANDIT_TOKEN")
        self._http = HttpClient(url, token=token, ca=ca_cert, max_body_bytes=MAX_EXPORT_BYTES, names_server=False)
        weakref.finalize(self, self._http.close)  # a command has nobody who would close it later

    def call(self, method: str, *path: str, body: Any = None, query: dict[str, Any] | None = None) -> Any:
        """The server's answer, read as JSON; None when it is empty."""
        data = self.fetch(method, *path, body=body, query=query)
        if not data:
            return None
        try:
            return json.loads(data)
        except ValueError:
            raise NotReachable(f"{self._http.address} answered with something else than JSON") from None

    def fetch(
        self,
        method: str,
        *path: str,
        body: Any = None,
        query: dict[str, Any] | None = None,
        timeout_s: float = ADMIN_TIMEOUT_S,
    ) -> bytes:
        """The bytes of an answer."""
        address = api_path(*path)
        if query:
            address += "?" + "&".join(f"{name}={_quoted(str(value))}" for name, value in query.items())
        if body is None:
            return self._send(method, address, timeout_s=timeout_s)
        headers = {"Content-Type": "application/json"}
        return self._send(method, address, timeout_s=timeout_s, body=json.dumps(body).encode(), headers=headers)

    def send_upload(self, model: str, token: str, body: bytes, content_type: str) -> bytes:
        """One exchange on behalf of the agent that this token belongs to."""
        headers = {"Authorization": f"Bearer {token}", "Content-Type": content_type}
        path = api_path("models", model, "sync")
        return self._send("POST", path, timeout_s=ADMIN_TIMEOUT_S, body=body, headers=headers)

    def _send(self, method: str, path: str, **options: Any) -> bytes:
        return self._http.call(method, path, **options).body


def server_fingerprint(url: str, *, ca: str | None = None, timeout_s: float = 10.0) -> bytes:
    """SHA-256 of the certificate that the server has now; it is checked as for any other connection."""
    parts = address_parts(url)
    if parts.scheme != "https":
        raise InvalidParameter(f"expected an https address, whose certificate can be pinned, got {url!r}")
    until = time.monotonic() + timeout_s
    try:
        connection = HttpConnection.open(
            parts.hostname or "", parts.port or 443, tls=_tls(ca, None, None), until=until, pause=lambda: None
        )
    except OSError as error:
        raise NotReachable(f"{url} did not show its certificate: {error}") from None
    try:
        return hashlib.sha256(connection.certificate()).digest()
    finally:
        connection.close()


# -- addresses, tokens, headers


def api_path(*parts: str) -> str:
    """The path of a resource of the API, each part being one segment; `InvalidParameter` for what is no segment.

    >>> api_path("models", "a b")
    '/v1/models/a%20b'
    """
    for part in parts:
        if part in ("", ".", "..") or "/" in part or any("\ud800" <= letter <= "\udfff" for letter in part):
            raise InvalidParameter(f"expected the name of a model, agent or token, got {part!r}")
    return "/".join(["/v1", *(quote(part, safe="") for part in parts)])


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
        without_password = url.rpartition("@")[2]
        raise InvalidParameter(f"expected a server's address such as https://bandit.example, got {without_password!r}")
    return parts


def check_token(token: str, expected: str) -> None:
    """`InvalidParameter` for what cannot travel in a header; the token itself is not repeated."""
    if not isinstance(token, str):
        raise InvalidParameter(f"expected token as text, got {type(token).__name__}")
    if not token or not token.isascii() or any(letter <= " " or letter == "\x7f" for letter in token):
        raise InvalidParameter(f"expected {expected}: ASCII without spaces")


def parse_retry_after(header: str | None, now: datetime) -> float | None:
    """Seconds in a `Retry-After` header, which holds a number or a date; None when there is nothing to read.

    >>> parse_retry_after("2", datetime.now(UTC))
    2.0
    """
    if not header:
        return None
    try:
        seconds = float(header)
    except ValueError:
        try:
            when = parsedate_to_datetime(header)
            seconds = ((when if when.tzinfo else when.replace(tzinfo=UTC)) - now).total_seconds()
        except (ValueError, TypeError, OverflowError, IndexError):  # a year beyond 9999, a zone beyond a day
            return None
    return max(seconds, 0.0) if math.isfinite(seconds) else None


def _quoted(value: str) -> str:
    try:
        return quote(value, safe="")
    except UnicodeEncodeError:
        raise InvalidParameter(f"expected text in UTF-8, got {value!r}") from None


# -- errors


def _failure(address: str, reply: HttpReply, *, names_server: bool) -> NotReachable | Refused:
    """The error in a response, in the server's own words where it has some."""
    status, found = reply.status, reply.json_object() or {}
    code, message = _printable(found.get("error"), 100), _printable(found.get("message"), 500)
    text = f"{address} answered {status}{f' {code}' if code else ''}{f': {message}' if message else ''}"
    if status >= 500 or status in RETRYABLE:
        retry_after_s = parse_retry_after(reply.headers.get("retry-after"), datetime.now(UTC))
        return NotReachable(text, retry_after_s=retry_after_s)
    return Refused(text if names_server or not message else message, reason=code or f"http_{status}", status=status)


def _printable(value: Any, most: int) -> str:
    """A text of the server, fit for a log line."""
    text = value[:most] if isinstance(value, str) else ""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


# -- connections


def _tls(ca: str | None, cert: str | None, key: str | None, *, is_pinned: bool = False) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca)
        if is_pinned and ca is None:  # one certificate is accepted, whoever signed it and whatever name it has
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if cert is not None:
            context.load_cert_chain(cert, key)
    except OSError as error:
        raise InvalidParameter(f"the certificates cannot be used (ca={ca}, cert={cert}, key={key}): {error}") from None
    return context
