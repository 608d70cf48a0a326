"""How messages reach a server: bytes out, bytes in, and every failure as one of two errors.

`NotReachable` means: try again later. `Refused` is a permanent rejection; do not retry.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable
from urllib.parse import quote

import msgspec

from fedbandit.errors import FormatError, InvalidParameter, NotReachable
from fedbandit.http_client import MAX_JSON_BYTES, HttpClient, HttpReply, api_path
from fedbandit.pauses import pause_point
from fedbandit.sdk.reward_collection import Answer, CollectedRewards
from fedbandit.sdk.token_source import TokenSource, token_of
from fedbandit.wire.codec import (
    CONTENT_TYPE,
    MAX_DIM,
    REWARDS_HEADER,
    SyncReply,
    decode_reply,
    is_possible,
    max_bytes,
)


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
        token: TokenSource,
        ca: str | None = None,
        cert: str | None = None,
        key: str | None = None,
        fingerprint: str | None = None,
    ) -> None:
        if not isinstance(model, str):
            raise InvalidParameter(f"expected model as text, got {type(model).__name__}")
        largest = max_bytes(MAX_DIM)
        self._http = HttpClient(
            url,
            token=token_of(token),
            ca=ca,
            cert=cert,
            key=key,
            fingerprint=fingerprint,
            max_body_bytes=largest,
            pause=pause_point,
        )
        self._path = api_path("models", model)
        self.address = self._http.address
        self.exposes_token = self._http.exposes_token
        self.n_rewards = 0  # that the server keeps for agents of this model, as of its last answer

    def describe(self, *, timeout_s: float) -> dict[str, Any]:
        headers = {"Accept": "application/json"}
        found = self._http.call("GET", self._path, timeout_s=timeout_s, headers=headers).json_object()
        if found is None:
            raise NotReachable(f"{self.address} answered with something else than a model's settings")
        dim, blocks = found.get("dim"), found.get("blocks", 1)
        if isinstance(dim, int) and isinstance(blocks, int) and is_possible(dim, blocks):
            self._http.max_body_bytes = max(max_bytes(dim, blocks), MAX_JSON_BYTES)
        return found

    def sync(self, body: bytes, *, timeout_s: float) -> TransportReply:
        headers = {"Accept": CONTENT_TYPE, "Content-Type": CONTENT_TYPE}
        reply = self._http.call("POST", f"{self._path}/sync", timeout_s=timeout_s, body=body, headers=headers)
        self.n_rewards = _count(reply.headers.get(REWARDS_HEADER))
        return self._decoded(reply)

    def state(self, incarnation: str, tag: str | None, *, timeout_s: float) -> TransportReply | None:
        path = f"{self._path}/state?incarnation={quote(incarnation, safe='')}"
        headers = {"Accept": CONTENT_TYPE, **({} if tag is None else {"If-None-Match": tag})}
        reply = self._http.call("GET", path, timeout_s=timeout_s, headers=headers)
        self.n_rewards = _count(reply.headers.get(REWARDS_HEADER))
        return None if reply.status == 304 else self._decoded(reply)

    def collect(self, prefix: str, answers: list[Answer], *, timeout_s: float) -> CollectedRewards:
        found = self._post("rewards/collect", {"prefix": prefix, "answers": answers}, timeout_s)
        try:
            rewards = msgspec.convert(found.get("rewards"), list[tuple[str, float]])
            key = base64.urlsafe_b64decode(found.get("token_key", ""))
        except (msgspec.ValidationError, TypeError, ValueError) as error:
            raise NotReachable(f"{self.address} answered with something else than rewards: {error}") from None
        return CollectedRewards(rewards, key)

    def report(self, decision: str, reward: float, *, timeout_s: float) -> dict[str, Any]:
        return self._post("rewards", {"decision": decision, "reward": reward}, timeout_s)

    def _post(self, path: str, body: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        content = msgspec.json.encode(body)
        reply = self._http.call("POST", f"{self._path}/{path}", timeout_s=timeout_s, body=content, headers=headers)
        found = reply.json_object()
        if found is None:
            raise NotReachable(f"{self.address} answered with something else than JSON")
        return found

    def close(self) -> None:
        self._http.close()

    def _decoded(self, reply: HttpReply) -> TransportReply:
        try:
            return TransportReply(decode_reply(reply.body), _tag(reply.headers.get("etag")), len(reply.body))
        except FormatError as error:
            # The login page of some network in between also looks like this: it may be gone later.
            raise NotReachable(f"{self.address} answered with something else than a model: {error}") from None


def _count(header: str | None) -> int:
    return int(header) if header is not None and header.isascii() and header.isdecimal() and len(header) < 16 else 0


def _tag(header: str | None) -> str | None:
    """The strong form of an entity tag, as the server made it: a proxy that compresses answers marks tags as weak.

    To the server a weak tag is another question: whether data were taken out, not whether there is a newer model.
    """
    tag = (header or "").removeprefix("W/")
    return tag if tag and len(tag) <= 200 and tag.isascii() and tag.isprintable() else None
