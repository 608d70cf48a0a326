"""The fold of a batch: each upload is accepted or refused, and added in order. Pure; stores run it in a transaction.

state = ((λI + u₁) + u₂) + …, in the order of arrival, so that it equals the in-memory server's state bit by bit.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from fedbandit.algorithms.messages import CHANGE_ALARM, Upload
from fedbandit.algorithms.server import LedgerEntry, is_next
from fedbandit.core.arrays import Vector
from fedbandit.core.block_packing import widened
from fedbandit.core.drift import Restart
from fedbandit.core.group_sums import NO_GROUPS, GroupSums
from fedbandit.core.plausibility import MAX_TOTAL
from fedbandit.core.statistics import SufficientStats
from fedbandit.errors import (
    DimensionMismatch,
    FedbanditError,
    Forbidden,
    ImplausibleUpload,
    LaterEpoch,
    ModelChanged,
    Retired,
    StaleIncarnation,
    Unauthenticated,
)
from fedbandit.service.exchange.epochs import BY_AGENT, BY_SERVER, BY_UPLOAD, EpochState, weighted
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
    settings_id: str | None = None  # of the settings that the upload was checked against; None: not checked
    groups: GroupSums = NO_GROUPS
    epoch: int = 0
    alarm: bool = False
    dropped: int = 0
    clock: int = 0


class Acknowledged(NamedTuple):
    """The last merged sequence of an upload's incarnation, and whether this upload was merged in this batch."""

    sequence: int
    is_new: bool
    excluded: bool = False  # the agent is in quarantine
    outcome: str = ""  # why it was discarded in this batch; "" if it was merged
    discarded: int = 0  # observations of the agent that were discarded so far


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
    retired: float | None = None
    groups: bytes = b""  # sums by group of all merged uploads
    enrolment: str = ""
    old_token_hash: bytes | None = None  # the token before, valid until `old_token_until`
    old_token_until: float | None = None
    n_discarded: int = 0
    epoch: int = 0  # of `total`: sums of an earlier epoch count for nothing
    stamp: int = 0  # of `total`: the model's clock as of which it is discounted

    def accepts(self, token_hash: bytes, now: float) -> bool:
        """Whether this is the agent's token, or the one before while that is still valid."""
        if hmac.compare_digest(self.token_hash, token_hash):
            return True
        is_old = self.old_token_hash is not None and hmac.compare_digest(self.old_token_hash, token_hash)
        return is_old and now < (self.old_token_until or 0.0)


@dataclass(slots=True)
class Fold:
    """The state and the agents of a batch during its fold."""

    settings: ModelSettings
    settings_id: str  # of the model in this transaction
    version: int
    state: Vector  # writable
    growth: GrowthWindow
    agents: dict[str, AgentRow]
    retired: Mapping[tuple[str, str], str]  # (agent, incarnation) -> reason, for those in the batch
    world: EpochState
    n_uploads: int = 0
    n_bytes: int = 0
    changed: dict[str, AgentRow] = field(default_factory=dict)
    newly_retired: dict[tuple[str, str], str] = field(default_factory=dict)
    groups: GroupSums = NO_GROUPS  # of the model

    def run(self, batch: Sequence[IncomingUpload], *, now: float) -> list[MergeOutcome]:
        """For each upload what is acknowledged after the whole batch, or why it was refused."""
        taken: list[str | FedbanditError | None] = []
        for upload in batch:
            try:
                taken.append(self._take(upload, now))
            except FedbanditError as error:
                taken.append(error)
        outcomes: list[MergeOutcome] = []
        for upload, result in zip(batch, taken, strict=True):
            if isinstance(result, FedbanditError):
                outcomes.append(result)
                continue
            agent = self.agents[upload.agent]
            sequence = agent.sequence if agent.incarnation == upload.incarnation else 0
            is_new = result is not None
            outcomes.append(Acknowledged(sequence, is_new, agent.quarantined, result or "", agent.n_discarded))
        return outcomes

    def _take(self, upload: IncomingUpload, now: float) -> str | None:
        """Merge the upload, or discard it and say why, if it is the next of its agent; None if it was before."""
        if self.settings.blocks > 1:
            upload = self._fitted(upload)
        agent = self._authenticated(upload, now)
        if not self._is_next(agent, upload):
            return None
        outcome = "" if upload.epoch == self.world.epoch and not upload.alarm else self._epoch_outcome(agent, upload)
        n_obs = agent.n_obs + agent.n_discarded
        require_rate(self.settings, agent.name, n_obs, float(upload.numbers[-3]), now - agent.created)
        if not (outcome or agent.quarantined):
            self._require_bounded(agent, upload)
        if agent.incarnation and agent.incarnation != upload.incarnation:
            self.newly_retired[agent.name, agent.incarnation] = SUPERSEDED
        self.n_uploads += 1
        self.n_bytes += upload.n_bytes
        self._record(agent, upload, now)
        if outcome:
            self._discard(agent, upload, outcome)
        else:
            self._merge(agent, upload)
        return outcome

    def _epoch_outcome(self, agent: AgentRow, upload: IncomingUpload) -> str:
        """Why an upload of another epoch, or with an alarm, is discarded; "" if it is merged.

        Only models whose agents may restart them learn of a restart by an upload.
        """
        if upload.epoch > self.world.epoch and not isinstance(self.settings.drift, Restart) and not agent.quarantined:
            raise LaterEpoch(
                f"agent {agent.name!r} is in epoch {upload.epoch}, the model in epoch {self.world.epoch}: the server "
                f"was restored to a state before a restart. `models restart` brings the model there again"
            )
        return self.world.outcome_of(upload.epoch, upload.alarm and not agent.quarantined)

    def _discard(self, agent: AgentRow, upload: IncomingUpload, outcome: str) -> None:
        n_obs = int(upload.numbers[-3])
        agent.n_discarded += n_obs
        self.world.n_discarded += n_obs
        if outcome == CHANGE_ALARM:
            self._restart(agent.name, BY_AGENT)

    def _merge(self, agent: AgentRow, upload: IncomingUpload) -> None:
        if upload.epoch > self.world.epoch and not agent.quarantined:
            self._restart(agent.name, BY_UPLOAD, upload.epoch)
        before, n_obs = self.state, int(upload.numbers[-3])
        if not agent.quarantined:
            if self.settings.drift is None:
                self.state = before + upload.numbers
            else:
                self.state = self.world.aged(before, upload.numbers, upload.clock)
            self.world.clock += n_obs
            self.version += 1
            self.growth = self.growth.add(upload.growth)
        agent.total = self._total(agent, upload).tobytes()
        agent.epoch, agent.stamp = self.world.epoch, self.world.clock
        agent.n_obs += n_obs
        agent.reward_sum += float(upload.numbers[-2])
        if upload.groups != NO_GROUPS:
            agent.groups = (GroupSums.from_bytes(agent.groups) + upload.groups).to_bytes()
            if not agent.quarantined:
                self.groups += upload.groups
        if self.settings.drift is None or agent.quarantined:
            return
        if self.world.finds_change(before, upload.numbers, self.state):
            self._restart(agent.name, BY_SERVER)

    def _restart(self, agent: str, reason: str, epoch: int | None = None) -> None:
        self.state = self.world.restart(agent, reason, epoch=epoch)
        self.version += 1

    def _total(self, agent: AgentRow, upload: IncomingUpload) -> Vector:
        """The agent's sums of this epoch with the upload, discounted for the clock now."""
        total = None if agent.total is None or agent.epoch != self.world.epoch else agent.total
        if self.settings.drift is None:
            return upload.numbers if total is None else np.frombuffer(total, dtype="<f8") + upload.numbers
        new = weighted(upload.numbers, self.world.weight_of(upload.clock))
        return new if total is None else self.world.moved(np.frombuffer(total, dtype="<f8"), agent.stamp) + new

    def _fitted(self, upload: IncomingUpload) -> IncomingUpload:
        """The upload with as many blocks as the model has now, which may have been widened since the check."""
        settings, n = self.settings, len(upload.numbers) - 3
        p = settings.dim // settings.blocks
        per_block = p * (p + 1) // 2 + p
        if n % per_block or not 0 < n // per_block < settings.blocks:
            return upload
        return upload._replace(numbers=widened(upload.numbers, p, settings.blocks))

    def _require_bounded(self, agent: AgentRow, upload: IncomingUpload) -> None:
        """Refuse an upload beyond the limits of one agent's influence."""
        if self.state[-3] > MAX_TOTAL - upload.numbers[-3]:  # exact: a sum just above 2⁵³ would be rounded down
            raise ImplausibleUpload(f"the model would count more than {MAX_TOTAL} observations")
        require_decidable(self.settings, float(self.state[-1] + upload.numbers[-1]))
        if self.settings.max_share is not None:
            require_share(self.settings, agent.name, self.state + upload.numbers, self._total(agent, upload))

    def _authenticated(self, upload: IncomingUpload, now: float) -> AgentRow:
        """The row of the agent whose token came with the upload; the row decides, not a cache."""
        agent = self.agents.get(upload.agent)
        if agent is None or not agent.accepts(upload.token_hash, now):
            raise Forbidden(f"this token does not belong to agent {upload.agent!r} of this model")
        if agent.revoked:
            if agent.retired is not None:
                raise Retired(f"agent {upload.agent!r} was retired; its contribution stays")
            raise Unauthenticated(f"the token of agent {upload.agent!r} was revoked")
        if upload.settings_id is not None and upload.settings_id != self.settings_id:
            raise ModelChanged("the model's settings changed, or it was created again; send the upload again")
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

    def _record(self, agent: AgentRow, upload: IncomingUpload, now: float) -> None:
        agent.incarnation = upload.incarnation
        agent.sequence = upload.sequence
        agent.digest = upload.digest
        agent.n_uploads += 1
        agent.n_discarded += upload.dropped
        self.world.n_discarded += upload.dropped
        agent.n_bytes += upload.n_bytes
        agent.growth = upload.growth
        agent.growth_most = max(agent.growth_most, upload.growth)
        agent.unsent = upload.unsent
        agent.model_version = upload.model_version
        agent.last_seen = now
        self.changed[agent.name] = agent
