"""Live agents without a network: a hub in the same process, and ways to it that fail on demand."""

from __future__ import annotations

import shutil
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from fedbandit import FedLinUCB
from fedbandit.algorithms.snapshot import agent_state
from fedbandit.errors import NotReachable, Refused
from fedbandit.sdk import LiveAgent, LocalServer, Transport, open_agent
from fedbandit.sdk.journal.pending_ring import HEADER_BYTES
from fedbandit.sdk.sync_client import Backoff
from fedbandit.sdk.transport import TransportReply


def make_hub(**changes: Any) -> LocalServer:
    """A server for three features that is told everything at once (alpha = 0) unless said otherwise."""
    return LocalServer(FedLinUCB(**{"dim": 3, "alpha": 0.0, "beta": 0.5, **changes}))


def make_live(way: Transport | LocalServer, **options: Any) -> LiveAgent:
    """A live agent named "a"; it tries again after milliseconds."""
    transport = way.transport("a") if isinstance(way, LocalServer) else way
    options.setdefault("backoff", Backoff(Random(0), first_s=0.002, most_s=0.01))
    return open_agent(transport, model="local", **options)


class Way:
    """The way to a hub, with things that go wrong: `faults` are used up one by one, `down` holds until it is lifted."""

    def __init__(self, hub: LocalServer, agent_id: str = "a") -> None:
        self.inner = hub.transport(agent_id)
        self.faults: deque[str | Exception] = deque()
        self.down = False
        self.delay_s = 0.0
        self.gate = threading.Event()
        self.gate.set()
        self.bodies: list[bytes] = []
        self.threads: set[str] = set()
        self.times: list[float] = []

    @property
    def address(self) -> str:
        return "test"

    def describe(self, *, timeout_s: float) -> dict[str, Any]:
        self._visit(timeout_s)
        return self.inner.describe(timeout_s=timeout_s)

    def sync(self, body: bytes, *, timeout_s: float) -> TransportReply:
        self.bodies.append(body)
        self.times.append(time.monotonic())
        self._visit(timeout_s)
        fault = self.faults.popleft() if self.faults else None
        if isinstance(fault, Exception):
            raise fault
        if fault == "lost request":
            raise NotReachable("the request was lost")
        answer = self.inner.sync(body, timeout_s=timeout_s)
        if fault == "lost reply":
            raise NotReachable("the reply was lost")
        return answer

    def state(self, incarnation: str, tag: str | None, *, timeout_s: float) -> TransportReply | None:
        self._visit(timeout_s)
        return self.inner.state(incarnation, tag, timeout_s=timeout_s)

    def close(self) -> None:
        self.inner.close()

    def _visit(self, timeout_s: float) -> None:
        self.threads.add(threading.current_thread().name)
        if not self.gate.wait(timeout_s) or self.down:
            raise NotReachable("nobody answers")


def refused(reason: str = "sequence_conflict", status: int = 409) -> Refused:
    return Refused(f"the server said {reason}", reason=reason, status=status)


def wait_until(holds: Callable[[], bool], timeout_s: float = 10.0) -> None:
    """Wait for the background; an assertion if it never comes."""
    end = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.001)


def whole_rows(n: int, dim: int = 3, seed: int = 0) -> np.ndarray:
    """Rows of small whole numbers: sums of them are exact in any order."""
    return np.random.default_rng(seed).integers(-3, 4, size=(n, dim)).astype(float)


def everything_about(agent: LiveAgent) -> dict[str, Any]:
    """All that must survive a kill."""
    durable = agent._durable
    state = agent_state(durable.agent, pending=False)
    state.pop("next_decision")  # saving skips a number on purpose
    waiting = [(w.number, w.choice, w.model_version, w.made_at, w.x.tolist()) for w in durable.agent._pending.values()]
    return {**state, "waiting": sorted(waiting)}


def as_if_killed(directory: Path, where: Path) -> Path:
    """What a new process would find if this one were killed now."""
    shutil.copytree(directory, where)
    return where


def power_cut(state: Path, *, torn: Sequence[int] = ()) -> None:
    """As if the machine had started anew since; the bodies of these numbers never reached the disk."""
    ring = state / "decisions"
    content = bytearray(ring.read_bytes())
    content[24:32] = b"lastboot"
    n_slots = int.from_bytes(content[16:24], "little")
    body_bytes = (len(content) - HEADER_BYTES) // n_slots - 8
    for number in torn:
        where = HEADER_BYTES + 8 * n_slots + (number % n_slots) * body_bytes
        content[where : where + body_bytes] = bytes(body_bytes)
    ring.write_bytes(bytes(content))
    db = sqlite3.connect(state / "journal.db")
    with db:
        db.execute("UPDATE position SET boot = x'00'")
    db.close()
