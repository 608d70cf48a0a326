"""How messages reach a server: bytes out, bytes in, and every failure as one of two errors.

`NotReachable` means: try again later. `Refused` is a permanent rejection; do not retry.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable
from urllib.parse import quote

from fedbandit.errors import FormatError, InvalidParameter, NotReachable
from fedbandit.http_client import MAX_JSON_BYTES, HttpClient, HttpReply, api_path, check_token
from fedbandit.sdk.pauses import pause_point
from fedbandit.wire.codec import CONTENT_TYPE, MAX_DIM, SyncReply, decode_reply, max_bytes


@dataclass(frozen=True, slots=True)
class TransportReply:
    """The state of the server, its entity tag, and the length of the body."""

    reply: SyncReply
    tag: str | None
    n_bytes: int


@runtime_checkable
class Transport(Protocol):
    """Carries the messages of one agent to one model on one server. Calls come one at a time, from any thread."""

    @property
    def address(self) -> str:
        """The server's address, for logs and errors."""
        ...

    def describe(self, *, timeout_s: float) -> dict[str, Any]:
        """The model's settings, as `ModelDescription.from_dict` reads them."""
        ...

    def sync(self, body: bytes, *, timeout_s: float) -> TransportReply:
        """One exchange: an encoded upload in, the state after it out."""
        ...

    def state(self, incarnation: str, tag: str | None, *, timeout_s: float) -> TransportReply | None:
        """The newest state without an upload; None when it still has the entity tag `tag`."""
        ...

    def close(self) -> None:
        """Close the connection."""
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
        if not isinstance(model, str):
            raise InvalidParameter(f"expected model as text, got {type(model).__name__}")
        check_token(token, "the agent's token as printed by `fedbandit agents add`")
        largest = max_bytes(MAX_DIM)
        self._http = HttpClient(url, token=token, ca=ca, cert=cert, key=key, max_body_bytes=largest, pause=pause_point)
        self._path = api_path("models", model)
        self.address = self._http.address
        self.exposes_token = self._http.exposes_token

    def describe(self, *, timeout_s: float) -> dict[str, Any]:
        headers = {"Accept": "application/json"}
        found = self._http.call("GET", self._path, timeout_s=timeout_s, headers=headers).json_object()
        if found is None:
            raise NotReachable(f"{self.address} answered with something else than a model's settings")
        if isinstance(found.get("dim"), int) and 1 <= found["dim"] <= MAX_DIM:
            self._http.max_body_bytes = max(max_bytes(found["dim"]), MAX_JSON_BYTES)
        return found

    def sync(self, body: bytes, *, timeout_s: float) -> TransportReply:
        headers = {"Accept": CONTENT_TYPE, "Content-Type": CONTENT_TYPE}
        reply = self._http.call("POST", f"{self._path}/sync", timeout_s=timeout_s, body=body, headers=headers)
        return self._decoded(reply)

    def state(self, incarnation: str, tag: str | None, *, timeout_s: float) -> TransportReply | None:
        path = f"{self._path}/state?incarnation={quote(incarnation, safe='')}"
        headers = {"Accept": CONTENT_TYPE, **({} if tag is None else {"If-None-Match": tag})}
        reply = self._http.call("GET", path, timeout_s=timeout_s, headers=headers)
        return None if reply.status == 304 else self._decoded(reply)

    def close(self) -> None:
        self._http.close()

    def _decoded(self, reply: HttpReply) -> TransportReply:
        try:
            return TransportReply(decode_reply(reply.body), _tag(reply.headers.get("ETag")), len(reply.body))
        except FormatError as error:
            # The login page of some network in between also looks like this: it may be gone later.
            raise NotReachable(f"{self.address} answered with something else than a model: {error}") from None


def _tag(header: str | None) -> str | None:
    """The strong form of an entity tag, as the server made it: a proxy that compresses answers marks tags as weak.

    To the server a weak tag is another question: whether data were taken out, not whether there is a newer model.
    """
    tag = (header or "").removeprefix("W/")
    return tag if tag and len(tag) <= 200 and tag.isascii() and tag.isprintable() else None
