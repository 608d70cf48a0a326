"""A store that forgets at the end of the process: for tests, demonstrations and as the yardstick of the others."""

from __future__ import annotations

import hmac
import operator
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedbandit.errors import AlreadyExists, UnknownAgent, UnknownModel
from fedbandit.service.exchange.ledger import FORGOTTEN, MAX_RETIRED, AgentRow, Fold, IncomingUpload
from fedbandit.service.model import Model, totals_of
from fedbandit.service.stores.base import (
    MAX_EVENTS,
    MAX_SAMPLES,
    AgentPage,
    AgentRecord,
    Event,
    FleetSummary,
    HistoryEntry,
    MergedBatch,
    ModelState,
    PageQuery,
    Principal,
    Role,
    Sample,
)
from fedbandit.wire.settings import ModelSettings


@dataclass(slots=True)
class _Entry:
    model: Model
    packed: bytes
    agents: dict[str, AgentRow] = field(default_factory=dict)
    retired: dict[tuple[str, str], str] = field(default_factory=dict)
    events: deque[Event] = field(default_factory=lambda: deque(maxlen=MAX_EVENTS))
    samples: list[Sample] = field(default_factory=list)


class MemoryStore:
    """Everything in dictionaries. No call awaits anything, so each is atomic in its event loop."""

    def __init__(self) -> None:
        self._models: dict[str, _Entry] = {}
        self._tokens: dict[str, tuple[Role, bytes]] = {}
        self._agent_tokens: dict[bytes, tuple[str, str]] = {}

    async def open(self) -> None:
        """Nothing to connect to."""

    async def close(self) -> None:
        """Nothing to let go of."""

    async def ping(self) -> None:
        """Memory is always there."""

    # -- models

    async def create(self, settings: ModelSettings, *, uid: str, now: float) -> Model:
        if settings.name in self._models:
            raise AlreadyExists(f"there is a model {settings.name!r} already")
        model = Model(settings, uid, now)
        self._models[settings.name] = _Entry(model, settings.prior())
        return model

    async def models(self) -> list[Model]:
        return [_counted(self._models[name]) for name in sorted(self._models)]

    async def load(self, model: str) -> Model:
        return _counted(self._entry(model))

    async def state(self, model: str) -> ModelState:
        entry = self._entry(model)
        return ModelState(_counted(entry), entry.packed)

    async def delete(self, model: str) -> None:
        entry = self._entry(model)
        for row in entry.agents.values():
            del self._agent_tokens[row.token_hash]
        del self._models[model]

    async def merge(self, model: str, batch: Sequence[IncomingUpload], *, now: float) -> MergedBatch:
        entry = self._entry(model)
        before = entry.model
        fold = Fold(
            before.settings,
            before.uid,
            before.version,
            np.frombuffer(entry.packed, dtype="<f8").copy(),
            before.growth,
            entry.agents,
            entry.retired,
        )
        outcomes = fold.run(batch, now=now)
        entry.retired.update(fold.newly_retired)
        for agent in {name for name, _ in fold.newly_retired}:
            _trim_retired(entry, agent)
        self._settle(entry, fold)
        return MergedBatch(_counted(entry), entry.packed, outcomes, fold.n_uploads)

    def _settle(self, entry: _Entry, fold: Fold) -> None:
        if not fold.n_uploads:
            return
        entry.packed = fold.state.tobytes()
        n_obs, reward_sum, reward_sq_sum = totals_of(entry.packed, fold.settings.dim)
        entry.model = replace(
            entry.model,
            version=fold.version,
            n_uploads=entry.model.n_uploads + fold.n_uploads,
            n_bytes=entry.model.n_bytes + fold.n_bytes,
            n_obs=n_obs,
            reward_sum=reward_sum,
            reward_sq_sum=reward_sq_sum,
            growth=fold.growth,
        )

    # -- agents

    async def enroll(self, model: str, agent: str, token_hash: bytes, *, now: float, renew: bool = False) -> None:
        entry = self._entry(model)
        row = entry.agents.get(agent)
        if row is not None and not renew:
            raise AlreadyExists(f"there is an agent {agent!r} in model {model!r} already")
        if row is None:
            entry.agents[agent] = AgentRow(agent, token_hash, created=now)
        else:
            del self._agent_tokens[row.token_hash]
            row.token_hash, row.revoked = token_hash, False
        self._agent_tokens[token_hash] = (model, agent)

    async def agent(self, model: str, agent: str) -> AgentRecord:
        return _seen(self._entry(model), self._row(model, agent))

    async def agents(self, model: str, query: PageQuery) -> AgentPage:
        entry = self._entry(model)
        wanted = query.search.casefold()
        found = [_seen(entry, row) for name, row in entry.agents.items() if wanted in name.casefold()]
        found.sort(key=operator.attrgetter("name"))
        found.sort(key=_sort_key(query.key), reverse=query.descending)
        return AgentPage(found[query.offset : query.offset + query.per_page], len(found))

    async def fleet(self, model: str, *, since: float) -> FleetSummary:
        rows = self._entry(model).agents.values()
        seen = [row.last_seen for row in rows if row.last_seen is not None]
        return FleetSummary(
            n_agents=len(rows),
            n_active=sum(at >= since for at in seen),
            n_silent=len(rows) - len(seen),
            n_revoked=sum(row.revoked for row in rows),
            n_with_unsent=sum(row.unsent > 0 for row in rows),
            unsent=sum(row.unsent for row in rows),
            last_seen=max(seen, default=None),
            n_quarantined=sum(row.quarantined for row in rows),
        )

    async def contribution(self, model: str, agent: str) -> bytes | None:
        return self._row(model, agent).total

    async def revoke(self, model: str, agent: str, *, now: float) -> None:
        self._row(model, agent).revoked = True

    async def forget(self, model: str, agent: str, *, now: float) -> Model:
        entry, row = self._entry(model), self._row(model, agent)
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
        )
        return self._summed_again(entry)

    async def quarantine(self, model: str, agent: str, *, on: bool, now: float) -> Model:
        entry, row = self._entry(model), self._row(model, agent)
        if row.quarantined == on:
            return _counted(entry)
        row.quarantined = on
        return self._summed_again(entry)

    def _summed_again(self, entry: _Entry) -> Model:
        state = np.frombuffer(entry.model.settings.prior(), dtype="<f8").copy()
        for other in entry.agents.values():
            if other.total is not None and not other.quarantined:
                state += np.frombuffer(other.total, dtype="<f8")
        entry.packed = state.tobytes()
        n_obs, reward_sum, reward_sq_sum = totals_of(entry.packed, entry.model.settings.dim)
        entry.model = replace(
            entry.model,
            version=entry.model.version + 1,
            generation=entry.model.generation + 1,
            n_obs=n_obs,
            reward_sum=reward_sum,
            reward_sq_sum=reward_sq_sum,
        )
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
            return Principal("agent", agent, model, self._row(model, agent).revoked)
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
            if isinstance(note.entry, Event):
                entry.events.append(note.entry)
            else:
                entry.samples.append(note.entry)
                if len(entry.samples) > MAX_SAMPLES:
                    half = MAX_SAMPLES // 2
                    entry.samples[:half] = entry.samples[1:half:2]

    async def events(self, model: str, *, limit: int = 100) -> list[Event]:
        return list(reversed(self._entry(model).events))[:limit]

    async def samples(self, model: str) -> list[Sample]:
        return list(self._entry(model).samples)

    # -- finding things

    def _entry(self, model: str) -> _Entry:
        entry = self._models.get(model)
        if entry is None:
            raise UnknownModel(f"there is no model {model!r}")
        return entry

    def _row(self, model: str, agent: str) -> AgentRow:
        row = self._entry(model).agents.get(agent)
        if row is None:
            raise UnknownAgent(f"there is no agent {agent!r} in model {model!r}")
        return row


def _trim_retired(entry: _Entry, agent: str) -> None:
    """The newest stay; a dictionary keeps the order in which they came."""
    lives = [key for key in entry.retired if key[0] == agent]
    for key in lives[: max(len(lives) - MAX_RETIRED, 0)]:
        del entry.retired[key]


def _counted(entry: _Entry) -> Model:
    return replace(entry.model, n_agents=len(entry.agents))


def _seen(entry: _Entry, row: AgentRow) -> AgentRecord:
    return AgentRecord(
        name=row.name,
        created=row.created,
        revoked=row.revoked,
        quarantined=row.quarantined,
        last_seen=row.last_seen,
        incarnation=row.incarnation,
        sequence=row.sequence,
        n_uploads=row.n_uploads,
        n_obs=row.n_obs,
        reward_sum=row.reward_sum,
        n_bytes=row.n_bytes,
        growth=row.growth,
        growth_most=row.growth_most,
        unsent=row.unsent,
        model_version=row.model_version,
    )


def _sort_key(key: str) -> Callable[[AgentRecord], Any]:
    if key == "mean_reward":
        return lambda agent: agent.reward_sum / agent.n_obs if agent.n_obs else 0.0
    if key == "last_seen":
        return lambda agent: agent.last_seen or 0.0
    return operator.attrgetter(key)
