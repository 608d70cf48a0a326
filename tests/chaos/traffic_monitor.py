"""Checks every message that passes the proxy: no version may have two states, no upload two contents."""

from __future__ import annotations

import threading
from collections import Counter

import msgspec
import numpy as np

from fedbandit.algorithms.messages import digest_of
from fedbandit.errors import FormatError
from fedbandit.wire.codec import BlockSyncReply, decode_reply, decode_request
from tests.chaos.agent_record import MODEL, dense_numbers, n_packed

NAMELESS = "without a name"


class TrafficMonitor:
    """Records messages. `uploads` maps (agent, sequence) to a digest; `sums` adds each upload once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.versions: dict[int, bytes] = {}
        self.uploads: dict[tuple[str, int], bytes] = {}
        self.incarnations: dict[str, str] = {}
        self.sums: dict[str, np.ndarray] = {}
        self.dropped: Counter[str] = Counter()  # observations that uploads report as dropped, by agent
        self.counts: Counter[str] = Counter()
        self.violations: list[str] = []

    def request(self, path: str, body: bytes) -> None:
        """Record a request of an agent."""
        if _is_foreign(path):
            return
        if not path.endswith("/sync"):
            self.counts["downloads_asked"] += 1
            return
        found = decode_request(body)
        key = (found.agent, found.sequence)
        with self._lock:
            self.counts["uploads_sent"] += 1
            if self.incarnations.setdefault(found.agent, found.incarnation) != found.incarnation:
                self.violations.append(f"{found.agent} changed its incarnation")
            if key not in self.uploads:
                self.uploads[key] = found.digest
                self.sums[found.agent] = self.sums.get(found.agent, np.zeros(n_packed())) + dense_numbers(found)
                self.dropped[found.agent] += found.dropped or 0
                return
            self.counts["retries"] += 1
            if self.uploads[key] != found.digest:
                self.violations.append(f"upload {key} was sent with other contents")

    def reply(self, path: str, request: bytes, status: int, body: bytes) -> None:
        """Record a server's reply, whether or not it is delivered."""
        if _is_foreign(path):
            self._foreign(path, status, body)
            return
        with self._lock:
            self.counts[f"status_{status}"] += 1
            if status == 200 and path.endswith("/sync"):
                self._reply_to_sync(request, body)
            elif status == 200 and "/state" in path:
                self._state(body)
            elif status not in (200, 304):
                self._refusal(path, status, body)

    def _reply_to_sync(self, request: bytes, body: bytes) -> None:
        reply, asked = self._state(body), decode_request(request)
        if reply is not None and (reply.agent != asked.agent or reply.acknowledged < asked.sequence):
            self.violations.append(f"a 200 to {asked.agent} {asked.sequence} acknowledges {reply.acknowledged}")

    def _state(self, body: bytes):  # type: ignore[no-untyped-def]
        try:
            reply = decode_reply(body)
        except FormatError as error:
            self.violations.append(f"a 200 that is no reply: {error}")
            return None
        # A reply with some blocks says the digest of all.
        is_short = isinstance(reply, BlockSyncReply) and reply.digest is not msgspec.UNSET
        digest = reply.digest if is_short else digest_of(reply.stats)
        if self.versions.setdefault(reply.version, digest) != digest:
            self.violations.append(f"version {reply.version} has two states")
        return reply

    def _foreign(self, path: str, status: int, body: bytes) -> None:
        """A reply about the recreated model: rejections are expected, and must be named."""
        with self._lock:
            self.counts[f"remade_status_{status}"] += 1
            code = _code_of(body) if status not in (200, 304) else ""
            if status == 500 or code == NAMELESS:
                self.violations.append(f"{path} was answered {status} {code}")

    def _refusal(self, path: str, status: int, body: bytes) -> None:
        code = _code_of(body)
        self.counts[f"refused_{code}"] += 1
        if status != 503:
            self.violations.append(f"{path} was answered {status} {code}")


def _code_of(body: bytes) -> str:
    try:
        return msgspec.json.decode(body, type=dict[str, str])["error"]
    except (msgspec.DecodeError, KeyError):
        return NAMELESS


def _is_foreign(path: str) -> bool:
    """Whether a path belongs to another model than the monitored one."""
    _, has_model, rest = path.partition("/models/")
    return bool(has_model) and rest.partition("/")[0] != MODEL
