"""Checks every message that passes the proxy: no version may have two states, no upload two contents."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence

import msgspec
import numpy as np

from fedbandit.algorithms.messages import digest_of
from fedbandit.errors import FormatError
from fedbandit.wire.codec import BlockSyncReply, decode_reply, decode_request
from fedbandit.wire.decision_token import is_token
from tests.chaos.agent_record import MODEL, dense_numbers, n_packed

NAMELESS = "without a name"


class TrafficMonitor:
    """Records messages. `uploads` maps (agent, sequence) to a digest; `sums` adds each upload once."""

    def __init__(self, model: str = MODEL, expected: frozenset[str] = frozenset()) -> None:
        self.model, self._expected = model, expected  # codes of refusals that are no violation
        self.sizes: dict[tuple[str, int], tuple[int, int]] = {}  # observed and dropped, by agent and sequence
        self._lock = threading.Lock()
        self.versions: dict[int, bytes] = {}
        self.uploads: dict[tuple[str, int], bytes] = {}
        self.incarnations: dict[str, str] = {}
        self.sums: dict[str, np.ndarray] = {}
        self.booked: set[tuple[str, float]] = set()  # decisions that servers booked by their tokens, and their rewards
        self.dropped: Counter[str] = Counter()  # observations that uploads report as dropped, by agent
        self.counts: Counter[str] = Counter()
        self.violations: list[str] = []

    def request(self, path: str, body: bytes) -> None:
        """Record a request of an agent."""
        if model_of(path) not in (None, self.model):
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
                self.sizes[key] = (int(dense_numbers(found)[-3]), found.dropped or 0)
                return
            self.counts["retries"] += 1
            if self.uploads[key] != found.digest:
                self.violations.append(f"upload {key} was sent with other contents")

    def reply(self, path: str, request: bytes, status: int, body: bytes) -> None:
        """Record a server's reply, whether or not it is delivered."""
        if model_of(path) not in (None, self.model):
            self._foreign(path, status, body)
            return
        with self._lock:
            self.counts[f"status_{status}"] += 1
            if status == 200 and path.endswith("/sync"):
                self._reply_to_sync(request, body)
            elif status == 200 and "/state" in path:
                self._state(body)
            elif status == 200 and path.endswith("/rewards"):
                self._note_booked(request, body)
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

    def _note_booked(self, request: bytes, body: bytes) -> None:
        """A server forgets what a token booked when its clock is set ahead; so it is noted as soon as it is said."""
        asked, found = msgspec.json.decode(request), msgspec.json.decode(body)
        pairs = zip(asked.get("rewards") or [asked], found.get("results") or [found], strict=True)
        self.booked.update(
            (answer["decision"], float(report["reward"]))
            for report, answer in pairs
            if is_token(report["decision"]) and answer["status"] == "booked"
        )

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
        if status != 503 and code not in self._expected:
            self.violations.append(f"{path} was answered {status} {code}")


def _code_of(body: bytes) -> str:
    try:
        return msgspec.json.decode(body, type=dict[str, str])["error"]
    except (msgspec.DecodeError, KeyError):
        return NAMELESS


def model_of(path: str) -> str | None:
    """The model that a path names, if it names one."""
    _, has_model, rest = path.partition("/models/")
    return rest.partition("?")[0].partition("/")[0] if has_model else None


class Monitors:
    """A monitor for each model; messages about others go to the first one."""

    def __init__(self, first: TrafficMonitor, others: Sequence[TrafficMonitor]) -> None:
        self._first = first
        self._of = {monitor.model: monitor for monitor in others}

    def request(self, path: str, body: bytes) -> None:
        """Record a request of an agent."""
        self._of.get(model_of(path) or "", self._first).request(path, body)

    def reply(self, path: str, request: bytes, status: int, body: bytes) -> None:
        """Record a server's reply."""
        self._of.get(model_of(path) or "", self._first).reply(path, request, status, body)
