"""The fold of a batch: each upload is accepted or refused, and added in order. Pure; stores run it in a transaction.

state = ((λI + u₁) + u₂) + …, in the order of arrival, so that it equals the in-memory server's state bit by bit.
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
    ModelChanged,
    StaleIncarnation,
    Unauthenticated,
)
from fedbandit.service.exchange.influence_limits import require_decidable, require_rate, require_share
from fedbandit.service.model import GrowthWindow
from fedbandit.wire.settings import ModelSettings

MAX_RETIRED = 10_000  # superseded incarnations of one agent that are remembered; docs/operations.md has the reasons
FORGOTTEN = "forgotten"
SUPERSEDED = "superseded"
_NO_STATS = SufficientStats.zeros(1)  # `is_next` uses names and sequences only


class IncomingUpload(NamedTuple):
    """A decoded, plausible upload with the hash of its token."""

    agent: str
    incarnation: str
    sequence: int
    digest: bytes
    numbers: Vector  # packed
    growth: float
    token_hash: bytes
    model_version: int = 0
    unsent: int = 0
    n_bytes: int = 0
    uid: str | None = None  # of the model that the upload was checked against; None: not checked


class Acknowledged(NamedTuple):
    """The last merged sequence of an upload's incarnation, and whether this upload was merged in this batch."""

    sequence: int
    is_new: bool


MergeOutcome = Acknowledged | FedbanditError


@dataclass(slots=True)
class AgentRow:
    """A working copy of one agent's row."""

    name: str
    token_hash: bytes
    revoked: bool = False
    incarnation: str = ""
    sequence: int = 0
    digest: bytes = b""
    total: bytes | None = None  # sum of all merged uploads, over all incarnations, packed
    n_uploads: int = 0
    n_obs: int = 0
    reward_sum: float = 0.0
    n_bytes: int = 0
    growth: float = 0.0  # of the last upload
    growth_most: float = 0.0
    unsent: int = 0
    model_version: int = 0
    last_seen: float | None = None
    id: int = 0
    created: float = 0.0
    quarantined: bool = False  # uploads are added to its total, and not to the model


@dataclass(slots=True)
class Fold:
    """The state and the agents of a batch during its fold."""

    settings: ModelSettings
    uid: str  # of the model in this transaction
    version: int
    state: Vector  # writable
    growth: GrowthWindow
    agents: dict[str, AgentRow]
    retired: Mapping[tuple[str, str], str]  # (agent, incarnation) -> reason, for those in the batch
    n_uploads: int = 0
    n_bytes: int = 0
    changed: dict[str, AgentRow] = field(default_factory=dict)
    newly_retired: dict[tuple[str, str], str] = field(default_factory=dict)

    def run(self, batch: Sequence[IncomingUpload], *, now: float) -> list[MergeOutcome]:
        """For each upload what is acknowledged after the whole batch, or why it was refused."""
        taken = [self._decide(upload, now) for upload in batch]
        return [self._outcome(upload, result) for upload, result in zip(batch, taken, strict=True)]

    def _decide(self, upload: IncomingUpload, now: float) -> bool | FedbanditError:
        try:
            return self._take(upload, now)
        except FedbanditError as error:
            return error

    def _outcome(self, upload: IncomingUpload, result: bool | FedbanditError) -> MergeOutcome:
        if isinstance(result, FedbanditError):
            return result
        agent = self.agents[upload.agent]
        return Acknowledged(agent.sequence if agent.incarnation == upload.incarnation else 0, result)

    def _take(self, upload: IncomingUpload, now: float) -> bool:
        """Merge the upload if it is the next of its agent; False if it was merged before."""
        agent = self._authenticated(upload)
        if not self._is_next(agent, upload):
            return False
        total = upload.numbers if agent.total is None else np.frombuffer(agent.total, dtype="<f8") + upload.numbers
        self._require_bounded(agent, upload, total, now)
        if agent.incarnation and agent.incarnation != upload.incarnation:
            self.newly_retired[agent.name, agent.incarnation] = SUPERSEDED
        self._record(agent, upload, total, now)
        self.n_uploads += 1
        self.n_bytes += upload.n_bytes
        if not agent.quarantined:
            self.state += upload.numbers
            self.version += 1
            self.growth = self.growth.add(upload.growth)
        return True

    def _require_bounded(self, agent: AgentRow, upload: IncomingUpload, total: Vector, now: float) -> None:
        """Refuse an upload beyond the limits of one agent's influence; in quarantine only the rate is limited."""
        require_rate(self.settings, agent.name, agent.n_obs, float(upload.numbers[-3]), now - agent.created)
        if agent.quarantined:
            return
        if self.state[-3] > MAX_TOTAL - upload.numbers[-3]:  # exact: a sum just above 2⁵³ would be rounded down
            raise ImplausibleUpload(f"the model would count more than {MAX_TOTAL} observations")
        require_decidable(self.settings, float(self.state[-1] + upload.numbers[-1]))
        if self.settings.max_share is not None:
            require_share(self.settings, agent.name, self.state + upload.numbers, total)

    def _authenticated(self, upload: IncomingUpload) -> AgentRow:
        """The row of the agent whose token came with the upload; the row decides, not a cache."""
        agent = self.agents.get(upload.agent)
        if agent is None or not hmac.compare_digest(agent.token_hash, upload.token_hash):
            raise Forbidden(f"this token does not belong to agent {upload.agent!r} of this model")
        if agent.revoked:
            raise Unauthenticated(f"the token of agent {upload.agent!r} was revoked")
        if upload.uid is not None and upload.uid != self.uid:
            raise ModelChanged("the model was deleted and created again; send the upload again")
        if len(upload.numbers) != len(self.state):
            raise DimensionMismatch(
                f"expected an upload for {self.settings.dim} features, got {len(upload.numbers)} numbers"
            )
        return agent

    def _is_next(self, agent: AgentRow, upload: IncomingUpload) -> bool:
        key = (agent.name, upload.incarnation)
        is_retired = key in self.retired or key in self.newly_retired
        if upload.sequence == agent.sequence + 1 and upload.incarnation == agent.incarnation and not is_retired:
            return True  # the usual case; `is_next` decides all others
        reason = self.newly_retired.get(key) or self.retired.get(key)
        if reason == FORGOTTEN:
            raise StaleIncarnation(
                f"agent {agent.name!r} was forgotten: data of incarnation {upload.incarnation!r} are not "
                f"accepted again; it can continue in a new incarnation, with an empty state directory"
            )
        known = LedgerEntry(agent.incarnation, agent.sequence, agent.digest) if agent.incarnation else None
        named = Upload(agent.name, upload.incarnation, upload.sequence, _NO_STATS, upload.growth)
        return is_next(known, {upload.incarnation} if reason else set(), named, upload.digest)

    def _record(self, agent: AgentRow, upload: IncomingUpload, total: Vector, now: float) -> None:
        agent.incarnation = upload.incarnation
        agent.sequence = upload.sequence
        agent.digest = upload.digest
        agent.total = total.tobytes()
        agent.n_uploads += 1
        n_obs, reward_sum, _ = upload.numbers[-3:].tolist()
        agent.n_obs += int(n_obs)
        agent.reward_sum += reward_sum
        agent.n_bytes += upload.n_bytes
        agent.growth = upload.growth
        agent.growth_most = max(agent.growth_most, upload.growth)
        agent.unsent = upload.unsent
        agent.model_version = upload.model_version
        agent.last_seen = now
        self.changed[agent.name] = agent


def add_packed(total: bytes, numbers: Vector) -> bytes:
    """The sum of two packed sums."""
    return (np.frombuffer(total, dtype="<f8") + numbers).tobytes()
