"""A store in memory, for tests and demonstrations: its data end with the process."""

from __future__ import annotations

import hmac
import operator
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from fedbandit.core.group_sums import NO_GROUPS, GroupSums
from fedbandit.errors import AlreadyExists, UnknownAgent, UnknownModel
from fedbandit.service.exchange.ledger import FORGOTTEN, MAX_RETIRED, AgentRow, IncomingUpload
from fedbandit.service.model import Model
from fedbandit.service.stores import rows
from fedbandit.service.stores.base import (
    MAX_EVENTS,
    MAX_SAMPLES,
    AgentPage,
    AgentRecord,
    AgentSum,
    Contact,
    Event,
    FleetSummary,
    HistoryEntry,
    MergedBatch,
    ModelState,
    PageQuery,
    Principal,
    Role,
    Sample,
    Widening,
)
from fedbandit.service.stores.checkpoints import Checkpoint, KeptCheckpoint, make_room
from fedbandit.service.stores.memory_enrolments import MemoryEnrolments, ModelEnrolments, find_enrolment
from fedbandit.service.stores.memory_rewards import MemoryRewards, ModelRewards
from fedbandit.wire.settings import ModelSettings

RECORD_FIELDS = tuple(field.name for field in fields(AgentRecord))


@dataclass(slots=True)
class _StoredModel:
    model: Model
    packed: bytes
    detector: bytes | None = None
    agents: dict[str, AgentRow] = field(default_factory=dict)
    retired: dict[tuple[str, str], str] = field(default_factory=dict)
    events: deque[Event] = field(default_factory=lambda: deque(maxlen=MAX_EVENTS))
    samples: list[Sample] = field(default_factory=list)
    checkpoints: list[Checkpoint] = field(default_factory=list)
    enrolled: ModelEnrolments = field(default_factory=ModelEnrolments)
    rewards: ModelRewards = field(default_factory=ModelRewards)


class MemoryStore(MemoryEnrolments, MemoryRewards):
    """Dictionaries. No call awaits anything, so each is atomic in its event loop."""

    def __init__(self) -> None:
        self._models: dict[str, _StoredModel] = {}
        self._tokens: dict[str, tuple[Role, bytes]] = {}
        self._agent_tokens: dict[bytes, tuple[str, str]] = {}

    async def open(self) -> None:
        """Nothing to connect to."""

    async def close(self) -> None:
        """Nothing to close."""

    async def ping(self) -> None:
        """Memory is always available."""

    # -- models

    async def create(self, settings: ModelSettings, *, uid: str, now: float) -> Model:
        if settings.name in self._models:
            raise AlreadyExists(f"there is a model {settings.name!r} already")
        model = Model(settings, uid, now)
        self._models[settings.name] = _StoredModel(model, settings.prior())
        return model

    async def models(self) -> list[Model]:
        return [_counted(self._models[name]) for name in sorted(self._models)]

    async def load(self, model: str) -> Model:
        return _counted(self._entry(model))

    async def state(self, model: str) -> ModelState:
        entry = self._entry(model)
        return ModelState(_counted(entry), entry.packed)

    async def configure(self, model: str, before: ModelSettings, after: ModelSettings) -> bool:
        entry = self._entry(model)
        if entry.model.settings != before:
            return False
        entry.model = replace(entry.model, settings=after)
        return True

    async def delete(self, model: str) -> None:
        entry = self._entry(model)
        for row in entry.agents.values():
            del self._agent_tokens[row.token_hash]
            self._agent_tokens.pop(row.old_token_hash or b"", None)
        del self._models[model]

    async def merge(self, model: str, batch: Sequence[IncomingUpload], *, now: float) -> MergedBatch:
        entry = self._entry(model)
        fold = rows.fold_of(entry.model, entry.packed, entry.detector, entry.agents, entry.retired)
        outcomes = fold.run(batch, now=now)
        entry.retired.update(fold.newly_retired)
        for agent in {name for name, _ in fold.newly_retired}:
            _trim_retired(entry, agent)
        if fold.n_uploads:
            entry.model, entry.packed, entry.detector = rows.folded(entry.model, fold)
        return MergedBatch(_counted(entry), entry.packed, outcomes, fold.n_uploads, fold.world.restarts)

    async def restart(self, model: str, *, now: float) -> Model:
        entry = self._entry(model)
        entry.model, entry.packed = rows.restarted(entry.model)
        entry.detector = None
        return _counted(entry)

    # -- agents

    async def enroll(
        self,
        model: str,
        agent: str,
        token_hash: bytes,
        *,
        now: float,
        renew: bool = False,
        old_until: float | None = None,
    ) -> None:
        entry = self._entry(model)
        row = entry.agents.get(agent)
        if row is not None and not renew:
            raise AlreadyExists(f"there is an agent {agent!r} in model {model!r} already")
        entry.enrolled.require_free(agent)
        if row is None:
            entry.agents[agent] = AgentRow(agent, token_hash, created=now)
        else:
            self._agent_tokens.pop(row.old_token_hash or b"", None)
            if old_until is None:
                del self._agent_tokens[row.token_hash]
            row.old_token_hash = None if old_until is None else row.token_hash
            row.old_token_until = old_until
            entry.enrolled.n_retired -= row.retired is not None
            row.token_hash, row.revoked, row.retired = token_hash, False, None
        self._agent_tokens[token_hash] = (model, agent)

    async def agent(self, model: str, agent: str) -> AgentRecord:
        return _record(self._row(model, agent))

    async def agents(self, model: str, query: PageQuery) -> AgentPage:
        entry = self._entry(model)
        wanted = query.search.casefold()
        rows_of_kind = [row for row in entry.agents.values() if query.retired in (None, row.retired is not None)]
        found = [_record(row) for row in rows_of_kind if wanted in row.name.casefold()]
        found.sort(key=operator.attrgetter("name"))
        found.sort(key=_sort_key(query.key), reverse=query.descending)
        return AgentPage(found[query.offset : query.offset + query.per_page], len(found))

    async def fleet(self, model: str, *, since: float) -> FleetSummary:
        agents = [row for row in self._entry(model).agents.values() if row.retired is None]
        seen = [row.last_seen for row in agents if row.last_seen is not None]
        return FleetSummary(
            n_agents=len(agents),
            n_active=sum(at >= since for at in seen),
            n_silent=len(agents) - len(seen),
            n_revoked=sum(row.revoked for row in agents),
            n_with_unsent=sum(row.unsent > 0 for row in agents),
            unsent=sum(row.unsent for row in agents),
            last_seen=max(seen, default=None),
            n_quarantined=sum(row.quarantined for row in agents),
        )

    async def contribution(self, model: str, agent: str) -> bytes | None:
        row = self._row(model, agent)
        return rows.contribution_of(self._entry(model).model, row.total, row.epoch, row.stamp)

    async def counted_sums(self, model: str, *, limit: int) -> list[AgentSum]:
        entry = self._entry(model)
        of_epoch = [row for row in entry.agents.values() if row.epoch == entry.model.epoch]
        found = [AgentSum(row.name, row.n_obs, row.total) for row in of_epoch if row.total is not None]
        quarantined = {row.name for row in of_epoch if row.quarantined}
        counted = [item for item in found if item.name not in quarantined]
        return sorted(counted, key=lambda item: (-item.n_obs, item.name))[:limit]

    async def revoke(self, model: str, agent: str, *, now: float) -> None:
        self._row(model, agent).revoked = True

    async def forget(self, model: str, agent: str, *, now: float) -> Model:
        entry, row = self._entry(model), self._row(model, agent)
        entry.rewards.forget(agent)
        if row.incarnation:
            entry.retired[agent, row.incarnation] = FORGOTTEN
        for name, incarnation in list(entry.retired):
            if name == agent:
                entry.retired[name, incarnation] = FORGOTTEN
        _trim_retired(entry, agent)
        entry.agents[agent] = AgentRow(
            agent,
            row.token_hash,
            row.revoked,
            last_seen=row.last_seen,
            created=row.created,
            quarantined=row.quarantined,
            retired=row.retired,
            enrolment=row.enrolment,
        )
        return self._recomputed(entry)

    async def quarantine(self, model: str, agent: str, *, on: bool, now: float) -> Model:
        entry, row = self._entry(model), self._row(model, agent)
        if row.quarantined == on:
            return _counted(entry)
        row.quarantined = on
        return self._recomputed(entry)

    async def widen(self, model: str, widen: Widening, *, now: float) -> Model:
        entry = self._entry(model)
        entry.model, entry.packed, entry.detector = rows.widened_model(entry.model, entry.packed, entry.detector, widen)
        for row in entry.agents.values():
            if row.total is not None:
                row.total = rows.widened_sum(row.total, entry.model.settings)
        entry.checkpoints.clear()
        return _counted(entry)

    def _recomputed(self, entry: _StoredModel) -> Model:
        counted = [row for row in entry.agents.values() if row.total is not None and not row.quarantined]
        of_epoch = (row for row in counted if row.epoch == entry.model.epoch)
        entry.packed = rows.recomputed(entry.model, ((row.total, row.stamp) for row in of_epoch))
        entry.detector = None
        groups = sum((GroupSums.from_bytes(row.groups) for row in counted), start=NO_GROUPS)
        entry.model = rows.corrected(entry.model, entry.packed, groups)
        return _counted(entry)

    # -- tokens of people

    async def put_token(self, name: str, role: Role, token_hash: bytes, *, now: float, replace: bool = False) -> bool:
        if name in self._tokens and not replace:
            return False
        self._tokens[name] = (role, token_hash)
        return True

    async def find_token(self, token_hash: bytes) -> Principal | None:
        owner = self._agent_tokens.get(token_hash)
        if owner is not None:
            model, agent = owner
            row = self._row(model, agent)
            is_old = row.old_token_hash is not None and hmac.compare_digest(row.old_token_hash, token_hash)
            until = row.old_token_until if is_old else None
            return Principal("agent", agent, model, row.revoked, row.retired is not None, until)
        for model, entry in self._models.items():
            enrolment = find_enrolment(entry.enrolled, token_hash)
            if enrolment is not None:
                return Principal("enrolment", enrolment, model)
        for name, (role, known) in self._tokens.items():
            if hmac.compare_digest(known, token_hash):
                return Principal(role, name)
        return None

    async def tokens(self) -> list[Principal]:
        return [Principal(role, name) for name, (role, _) in sorted(self._tokens.items())]

    async def drop_token(self, name: str) -> bool:
        return self._tokens.pop(name, None) is not None

    # -- history

    async def record(self, notes: Sequence[HistoryEntry]) -> None:
        entries = {entry.model.uid: entry for entry in self._models.values()}
        for note in notes:
            entry = entries.get(note.uid)
            if entry is None:
                continue
            if isinstance(note.entry, Contact):
                row = entry.agents.get(note.entry.agent)
                if row is not None:
                    row.last_seen = max(row.last_seen or note.entry.at, note.entry.at)
            elif isinstance(note.entry, Event):
                entry.events.append(note.entry)
            elif isinstance(note.entry, Checkpoint):
                _keep(entry.checkpoints, note.entry)
            else:
                entry.samples.append(note.entry)
                if len(entry.samples) > MAX_SAMPLES:
                    half = MAX_SAMPLES // 2
                    entry.samples[:half] = entry.samples[1:half:2]

    async def events(self, model: str, *, limit: int = 100) -> list[Event]:
        return list(reversed(self._entry(model).events))[:limit]

    async def samples(self, model: str) -> list[Sample]:
        return list(self._entry(model).samples)

    async def checkpoints(self, model: str) -> list[Checkpoint]:
        return list(self._entry(model).checkpoints)

    # -- lookup

    def _entry(self, model: str) -> _StoredModel:
        entry = self._models.get(model)
        if entry is None:
            raise UnknownModel(f"there is no model {model!r}")
        return entry

    def _row(self, model: str, agent: str) -> AgentRow:
        row = self._entry(model).agents.get(agent)
        if row is None:
            raise UnknownAgent(f"there is no agent {agent!r} in model {model!r}")
        return row


def _trim_retired(entry: _StoredModel, agent: str) -> None:
    """Keep the newest; a dictionary is in the order of insertion."""
    keys = [key for key in entry.retired if key[0] == agent]
    for key in keys[: max(len(keys) - MAX_RETIRED, 0)]:
        del entry.retired[key]


def _keep(checkpoints: list[Checkpoint], new: Checkpoint) -> None:
    kept = [KeptCheckpoint(i, old.version, old.generation, old.n_obs) for i, old in enumerate(checkpoints)]
    is_kept, gone = make_room(kept, new)
    checkpoints[:] = [old for i, old in enumerate(checkpoints) if i not in gone] + [new] * is_kept


def _counted(entry: _StoredModel) -> Model:
    n_agents = sum(row.retired is None for row in entry.agents.values())
    n_waiting = entry.rewards.n_waiting
    return replace(
        entry.model,
        n_agents=n_agents,
        n_retired=entry.enrolled.n_retired,
        n_rewards=n_waiting,
        n_answered=len(entry.rewards.by_decision) - n_waiting,
    )


def _record(row: AgentRow) -> AgentRecord:
    known = {name: getattr(row, name) for name in RECORD_FIELDS}
    return AgentRecord(**{**known, "groups": GroupSums.from_bytes(row.groups)})


def _sort_key(key: str) -> Callable[[AgentRecord], Any]:
    if key == "mean_reward":
        return lambda agent: agent.reward_sum / agent.n_obs if agent.n_obs else 0.0
    if key == "last_seen":
        return lambda agent: agent.last_seen or 0.0
    return operator.attrgetter(key)
