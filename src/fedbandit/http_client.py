"""One HTTP client for the SDK, the admin commands and `doctor`: a deadline per call, bounded bodies, TLS, named errors.

A socket's timeout bounds one read. A server that sends a byte per second never exceeds it, so each read here gets what
is left of the whole call: connecting, TLS, head and body together. Only the host name lookup is up to the system.

`NotReachable` means: try again later. `Refused` is a permanent rejection; do not retry.
"""

from __future__ import annotations

import json
import math
import os
import re
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from typing import Any, NamedTuple, cast
from urllib.parse import SplitResult, quote, urlsplit

import msgspec
import urllib3

from fedbandit.errors import InvalidParameter, NotReachable, Refused

RETRYABLE = frozenset({408, 425, 429})  # and everything from 500 on
MAX_JSON_BYTES = 1 << 20
MAX_EXPORT_BYTES = 1 << 29  # a model of 4096 features in full takes a quarter of it
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
ADMIN_TIMEOUT_S = 60.0
EXPORT_TIMEOUT_S = 600.0


class HttpReply(NamedTuple):
    """A response whose body was read."""

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

    TLS uses the system's certificates or `ca`; with `cert` and `key` it is mutual. `names_server` puts
    address and status before the words of a refusal. `pause` is called between the steps of a call, for a background
    thread that gives way to others.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str = "",
        ca: str | None = None,
        cert: str | None = None,
        key: str | None = None,
        max_body_bytes: int = MAX_JSON_BYTES,
        names_server: bool = True,
        pause: Callable[[], None] = lambda: None,
    ) -> None:
        parts = address_parts(url)
        self._base = parts.path.rstrip("/")
        self.address = f"{parts.scheme}://{parts.netloc}{self._base}"
        self.max_body_bytes = max_body_bytes
        self._names_server = names_server
        self._authorization = {"Authorization": f"Bearer {token}"} if token else {}
        self._deadline = _Deadline(pause)
        self._pool: urllib3.HTTPConnectionPool
        if parts.scheme == "https":
            context = _tls(ca, cert, key)
            self._pool = _SecurePool(
                parts.hostname or "", parts.port, maxsize=1, ssl_context=context, deadline=self._deadline
            )
        else:
            self._pool = _Pool(parts.hostname or "", parts.port, maxsize=1, deadline=self._deadline)

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
        self._deadline.begin(timeout_s)
        try:
            response = self._pool.urlopen(
                method,
                self._base + path,
                body=body,
                headers={**self._authorization, **(headers or {})},
                timeout=urllib3.Timeout(total=timeout_s),
                retries=False,
                redirect=False,
                preload_content=False,
                decode_content=False,
            )
            return HttpReply(response.status, response.headers, self._read(response))
        except (urllib3.exceptions.HTTPError, HTTPException, OSError, ValueError) as error:
            self._deadline.give_up()
            raise NotReachable(f"{self.address} did not answer: {_reason_of(error)}") from None

    def call(self, method: str, path: str, **options: Any) -> HttpReply:
        """The same, with a status that reports a failure raised as `NotReachable` or `Refused`."""
        reply = self.request(method, path, **options)
        if reply.status < 300 or reply.status == 304:
            return reply
        raise _failure(self.address, reply, names_server=self._names_server)

    def close(self) -> None:
        """Close the connection."""
        self._pool.close()

    def _read(self, response: urllib3.BaseHTTPResponse) -> bytes:
        """The body, if it is no longer than allowed; the connection goes back to be used again."""
        limit = self.max_body_bytes
        data = response.read(limit + 1)
        if len(data) > limit or (not response.closed and response.read(1)):  # a second read finds the end, and closes
            response.close()
            raise NotReachable(f"{self.address} answered with more than {limit} bytes")
        response.release_conn()
        return data


class AdminClient:
    """The administration API of a server: JSON in, JSON out."""

    def __init__(self, url: str, token: str, ca_cert: str | None = None) -> None:
        check_token(token, "a token as printed by `fedbandit tokens add`; pass --token or set FEDBANDIT_TOKEN")
        self._http = HttpClient(url, token=token, ca=ca_cert, max_body_bytes=MAX_EXPORT_BYTES, names_server=False)

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
            return self._http.call(method, address, timeout_s=timeout_s).body
        headers = {"Content-Type": "application/json"}
        return self._http.call(
            method, address, timeout_s=timeout_s, body=json.dumps(body).encode(), headers=headers
        ).body

    def send_upload(self, model: str, token: str, body: bytes, content_type: str) -> bytes:
        """One exchange on behalf of the agent that this token belongs to."""
        headers = {"Authorization": f"Bearer {token}", "Content-Type": content_type}
        path = api_path("models", model, "sync")
        return self._http.call("POST", path, timeout_s=ADMIN_TIMEOUT_S, body=body, headers=headers).body


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
        retry_after_s = parse_retry_after(reply.headers.get("Retry-After"), datetime.now(UTC))
        return NotReachable(text, retry_after_s=retry_after_s)
    return Refused(text if names_server or not message else message, reason=code or f"http_{status}", status=status)


def _printable(value: Any, most: int) -> str:
    """A text of the server, fit for a log line."""
    text = value[:most] if isinstance(value, str) else ""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _reason_of(error: Exception) -> str:
    """What happened to a connection, in the words of the system: urllib3's message without its objects."""
    text = str(error).rpartition("): ")[2] or type(error).__name__
    return re.sub(r"<[^<>]*\bobject at 0x[0-9a-f]+>:? ?|\bHTTPS?Connection(Pool)?\([^()]*\):? ?", "", text)


# -- connections


class _Deadline:
    """When the call that is under way must be over; calls come one at a time."""

    def __init__(self, pause: Callable[[], None]) -> None:
        self.pause = pause
        self._at = 0.0
        self._open: socket.socket | None = None  # the last connection that was made

    def begin(self, timeout_s: float) -> None:
        """Start a new call."""
        self._at = time.monotonic() + timeout_s

    def left_s(self) -> float:
        """Seconds that are left; `TimeoutError` when there are none."""
        left = self._at - time.monotonic()
        if left <= 0.0:
            raise TimeoutError("timed out")
        return left

    def holds_for(self, connection: socket.socket) -> None:
        """Remember the connection that is in use."""
        self._open = connection

    def give_up(self) -> None:
        """Close what a failed call may have left open."""
        connection, self._open = self._open, None
        if connection is not None and connection.fileno() >= 0:
            os.close(connection.detach())  # `close` would wait for a response object that nobody has any more


class _Timed:
    """Socket calls that take no longer than the deadline allows."""

    deadline: _Deadline | None = None

    def _limit(self) -> None:
        if self.deadline is not None:
            self.settimeout(self.deadline.left_s())  # type: ignore[attr-defined]

    def recv_into(self, *arguments: Any) -> int:
        self._limit()
        n_bytes = super().recv_into(*arguments)  # type: ignore[misc]
        if self.deadline is not None:
            self.deadline.pause()
        return cast("int", n_bytes)

    def send(self, *arguments: Any) -> int:
        self._limit()
        return super().send(*arguments)  # type: ignore[misc,no-any-return]

    def sendall(self, *arguments: Any) -> None:
        self._limit()
        super().sendall(*arguments)  # type: ignore[misc]


class _TimedSocket(_Timed, socket.socket):
    pass


class _TimedTLSSocket(_Timed, ssl.SSLSocket):
    """What a TLS context makes of a socket, by its `sslsocket_class`."""


class _SingleWrite:
    """Sends a request in one packet: sent apart, head and body wake the server twice."""

    sock: Any
    _held: list[bytes] | None = None

    def __init__(self, *arguments: Any, deadline: _Deadline, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._deadline = deadline

    def connect(self) -> None:
        super().connect()  # type: ignore[misc]
        if isinstance(self.sock, _Timed):
            self.sock.deadline = self._deadline
            self._deadline.holds_for(cast("socket.socket", self.sock))

    def _new_conn(self) -> socket.socket:
        """Connect to the first address that accepts."""
        failure: OSError = OSError("no address was found")
        host, port = self._dns_host, self.port  # type: ignore[attr-defined]
        for family, kind, protocol, _, address in socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM):
            connection = _TimedSocket(family, kind, protocol)
            try:
                for option in self.socket_options or ():  # type: ignore[attr-defined]
                    connection.setsockopt(*option)
                connection.deadline = self._deadline
                connection._limit()
                connection.connect(address)
                connection._limit()  # for the handshake of TLS, which keeps to the timeout as a whole
                return connection
            except OSError as error:
                connection.close()
                failure = error
        raise failure

    def request(self, *arguments: Any, **options: Any) -> None:
        self._deadline.pause()
        self._held = []
        try:
            super().request(*arguments, **options)  # type: ignore[misc]
            whole = b"".join(self._held)
        finally:
            self._held = None
        self._deadline.pause()
        self.send(whole)
        self._deadline.pause()

    def getresponse(self) -> Any:
        response = super().getresponse()  # type: ignore[misc]
        self._deadline.pause()
        return response

    def putheader(self, *arguments: Any) -> None:
        super().putheader(*arguments)  # type: ignore[misc]
        self._deadline.pause()

    def send(self, data: Any) -> None:
        if self._held is None:
            super().send(data)  # type: ignore[misc]
        else:
            self._held.append(data)


class _Connection(_SingleWrite, urllib3.connection.HTTPConnection):
    pass


class _SecureConnection(_SingleWrite, urllib3.connection.HTTPSConnection):
    pass


class _Pool(urllib3.HTTPConnectionPool):
    ConnectionCls = _Connection


class _SecurePool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _SecureConnection


def _tls(ca: str | None, cert: str | None, key: str | None) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca)
        context.sslsocket_class = _TimedTLSSocket
        if cert is not None:
            context.load_cert_chain(cert, key)
    except OSError as error:
        raise InvalidParameter(f"the certificates cannot be used (ca={ca}, cert={cert}, key={key}): {error}") from None
    return context
