"""The fold: a batch of uploads, decided one by one and added in order. Pure; every store uses it inside a transaction.

state = ((λI + u₁) + u₂) + …, in the order of arrival, so that it equals the in-memory server's to the last bit.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from fedbandit.algorithms.messages import Upload
from fedbandit.algorithms.server import LedgerEntry, is_next
from fedbandit.core.arrays import Vector
from fedbandit.core.plausibility import MAX_TOTAL
from fedbandit.core.statistics import SufficientStats
from fedbandit.errors import (
    DimensionMismatch,
    FedbanditError,
    Forbidden,
    ImplausibleUpload,
    StaleIncarnation,
    Unauthenticated,
)
from fedbandit.service.model import GrowthWindow

FORGOTTEN = "forgotten"
SUPERSEDED = "superseded"
_NO_STATS = SufficientStats.zeros(1)  # the ledger looks at names and sequences only


class Incoming(NamedTuple):
    """A decoded, plausible upload with the hash of the token it came with."""

    agent: str
    incarnation: str
    sequence: int
    digest: bytes
    numbers: Vector  # packed
    growth: float
    token_hash: bytes
    model_version: int = 0
    waiting: int = 0
    n_bytes: int = 0


class Acknowledged(NamedTuple):
    """The last merged sequence of an upload's incarnation, and whether this upload was counted just now."""

    sequence: int
    is_new: bool


Outcome = Acknowledged | FedbanditError


@dataclass(slots=True)
class AgentRow:
    """A working copy of what the store keeps of one agent."""

    name: str
    token_hash: bytes
    revoked: bool = False
    incarnation: str = ""
    sequence: int = 0
    digest: bytes = b""
    total: bytes | None = None  # everything merged from this agent, all its lives, packed
    n_uploads: int = 0
    n_obs: int = 0
    reward_sum: float = 0.0
    n_bytes: int = 0
    growth: float = 0.0  # of the last upload
    growth_most: float = 0.0
    waiting: int = 0
    model_version: int = 0
    last_seen: float | None = None
    id: int = 0


@dataclass(slots=True)
class Fold:
    """The state and the agents of one batch while it is folded."""

    dim: int
    version: int
    state: Vector  # writable
    growth: GrowthWindow
    agents: dict[str, AgentRow]
    retired: Mapping[tuple[str, str], str]  # (agent, incarnation) -> why, for those that the batch mentions
    n_uploads: int = 0
    n_bytes: int = 0
    changed: dict[str, AgentRow] = field(default_factory=dict)
    newly_retired: dict[tuple[str, str], str] = field(default_factory=dict)

    def run(self, batch: Sequence[Incoming], *, now: float) -> list[Outcome]:
        """For each upload what is acknowledged when the whole batch is in, or why it was refused."""
        taken = [self._decide(upload, now) for upload in batch]
        return [self._outcome(upload, result) for upload, result in zip(batch, taken, strict=True)]

    def _decide(self, upload: Incoming, now: float) -> bool | FedbanditError:
        try:
            return self._take(upload, now)
        except FedbanditError as error:
            return error

    def _outcome(self, upload: Incoming, result: bool | FedbanditError) -> Outcome:
        if isinstance(result, FedbanditError):
            return result
        agent = self.agents[upload.agent]
        return Acknowledged(agent.sequence if agent.incarnation == upload.incarnation else 0, result)

    def _take(self, upload: Incoming, now: float) -> bool:
        """Count the upload if it is the next of its agent; False if it was counted before."""
        agent = self._authenticated(upload)
        if not self._is_next(agent, upload):
            return False
        if self.state[-3] + upload.numbers[-3] > MAX_TOTAL:
            raise ImplausibleUpload(f"the model would count more than {MAX_TOTAL} observations")
        if agent.incarnation and agent.incarnation != upload.incarnation:
            self.newly_retired[agent.name, agent.incarnation] = SUPERSEDED
        self._book(agent, upload, now)
        self.state += upload.numbers
        self.version += 1
        self.n_uploads += 1
        self.n_bytes += upload.n_bytes
        self.growth = self.growth.add(upload.growth)
        return True

    def _authenticated(self, upload: Incoming) -> AgentRow:
        """The row of the agent whose token came with the upload; the database has the last word on tokens."""
        agent = self.agents.get(upload.agent)
        if agent is None or not hmac.compare_digest(agent.token_hash, upload.token_hash):
            raise Forbidden(f"this token does not belong to agent {upload.agent!r} of this model")
        if agent.revoked:
            raise Unauthenticated(f"the token of agent {upload.agent!r} was revoked")
        if len(upload.numbers) != len(self.state):
            raise DimensionMismatch(f"expected an upload for {self.dim} features, got {len(upload.numbers)} numbers")
        return agent

    def _is_next(self, agent: AgentRow, upload: Incoming) -> bool:
        key = (agent.name, upload.incarnation)
        is_retired = key in self.retired or key in self.newly_retired
        if upload.sequence == agent.sequence + 1 and upload.incarnation == agent.incarnation and not is_retired:
            return True  # as nearly always; whatever else it is, the rules say
        reason = self.newly_retired.get(key) or self.retired.get(key)
        if reason == FORGOTTEN:
            raise StaleIncarnation(
                f"agent {agent.name!r} was forgotten: what incarnation {upload.incarnation!r} gathered may not come "
                f"back; it can go on in a new incarnation, with an empty state directory"
            )
        known = LedgerEntry(agent.incarnation, agent.sequence, agent.digest) if agent.incarnation else None
        named = Upload(agent.name, upload.incarnation, upload.sequence, _NO_STATS, upload.growth)
        return is_next(known, {upload.incarnation} if reason else set(), named, upload.digest)

    def _book(self, agent: AgentRow, upload: Incoming, now: float) -> None:
        agent.incarnation = upload.incarnation
        agent.sequence = upload.sequence
        agent.digest = upload.digest
        agent.total = upload.numbers.tobytes() if agent.total is None else add_packed(agent.total, upload.numbers)
        agent.n_uploads += 1
        n_obs, reward_sum, _ = upload.numbers[-3:].tolist()
        agent.n_obs += int(n_obs)
        agent.reward_sum += reward_sum
        agent.n_bytes += upload.n_bytes
        agent.growth = upload.growth
        agent.growth_most = max(agent.growth_most, upload.growth)
        agent.waiting = upload.waiting
        agent.model_version = upload.model_version
        agent.last_seen = now
        self.changed[agent.name] = agent


def add_packed(total: bytes, numbers: Vector) -> bytes:
    """Two packed sums as one."""
    return (np.frombuffer(total, dtype="<f8") + numbers).tobytes()
