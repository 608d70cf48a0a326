"""Enrolment in the store in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from fedbandit.errors import AlreadyExists, InvalidParameter, Unauthenticated, UnknownEnrolment
from fedbandit.service.exchange.ledger import AgentRow
from fedbandit.service.stores import enrolments as rules
from fedbandit.service.stores import rows
from fedbandit.service.stores.enrolments import EnrolledAgent, Enrolment, Redeemed, Redemption


@dataclass(slots=True)
class ModelEnrolments:
    """The enrolments of one model, and what its agents came with."""

    by_name: dict[str, Enrolment] = field(default_factory=dict)
    hashes: dict[str, bytes] = field(default_factory=dict)
    nonces: dict[bytes, str] = field(default_factory=dict)  # -> agent
    sessions: dict[str, str] = field(default_factory=dict)
    folded: set[bytes] = field(default_factory=set)
    n_retired: int = 0

    def require_free(self, agent: str) -> None:
        """Raise `AlreadyExists` if an agent of this name was folded."""
        if rules.name_hash(agent) in self.folded:
            raise AlreadyExists(rows.was_folded(agent))


class MemoryEnrolments:
    """The part of the store in memory that machines which come and go need."""

    _agent_tokens: dict[bytes, tuple[str, str]]

    if TYPE_CHECKING:

        def _entry(self, model: str) -> Any: ...
        def _row(self, model: str, agent: str) -> AgentRow: ...

    async def create_enrolment(self, model: str, enrolment: Enrolment, secret_hash: bytes, *, now: float) -> None:
        kept = self._enrolled(model)
        for name in [name for name, old in kept.by_name.items() if _ended_at(old) < now - rules.KEPT_S]:
            del kept.by_name[name], kept.hashes[name]
        if len(kept.by_name) >= rules.MAX_ENROLMENTS:
            raise InvalidParameter(f"expected at most {rules.MAX_ENROLMENTS} enrolments of a model; revoke old ones")
        if enrolment.name in kept.by_name:
            raise AlreadyExists(f"there is an enrolment {enrolment.name!r} in model {model!r} already")
        kept.by_name[enrolment.name], kept.hashes[enrolment.name] = enrolment, secret_hash

    async def enrolments(self, model: str) -> list[Enrolment]:
        kept = self._enrolled(model).by_name
        return [kept[name] for name in sorted(kept)]

    async def revoke_enrolment(self, model: str, name: str) -> None:
        kept = self._enrolled(model).by_name
        if name not in kept:
            raise UnknownEnrolment(f"there is no enrolment {name!r} in model {model!r}")
        kept[name] = replace(kept[name], revoked=True)

    async def redeem(self, model: str, wanted: Redemption, *, now: float) -> Redeemed:
        kept, agents = self._enrolled(model), self._agents(model)
        name = _find(kept.hashes, wanted.secret_hash)
        if name is None:
            raise Unauthenticated("this enrolment is not known here")
        enrolment = kept.by_name[name]
        known = kept.nonces.get(wanted.nonce_hash)
        if known is not None:
            row = agents[known]
            found = EnrolledAgent(known, row.token_hash, row.revoked, row.retired is not None)
            return found.answer(wanted, name)
        enrolment.require_active(now)
        kept.require_free(wanted.agent)
        if wanted.agent in agents or wanted.token_hash in self._agent_tokens:
            raise AlreadyExists(f"there is an agent {wanted.agent!r} in model {model!r} already")
        agents[wanted.agent] = AgentRow(wanted.agent, wanted.token_hash, created=now, enrolment=name)
        kept.nonces[wanted.nonce_hash] = wanted.agent
        kept.by_name[name] = replace(enrolment, n_used=enrolment.n_used + 1)
        self._agent_tokens[wanted.token_hash] = (model, wanted.agent)
        return Redeemed(wanted.agent, name, is_new=True)

    async def start(self, model: str, agent: str, *, previous: str, session: str) -> None:
        self._row(model, agent)
        sessions = self._enrolled(model).sessions
        sessions[agent] = rules.next_session(sessions.get(agent, ""), previous, session, agent)

    async def retire(self, model: str, agent: str, *, on: bool, now: float) -> None:
        row, kept = self._row(model, agent), self._enrolled(model)
        if (row.retired is not None) == on or agent == rules.FOLDED:
            return
        row.retired, row.revoked, row.unsent = now if on else None, on, 0
        kept.n_retired += 1 if on else -1

    async def silent(self, model: str, *, before: float, limit: int) -> list[str]:
        found = [
            (row.created if row.last_seen is None else row.last_seen, name)
            for name, row in self._agents(model).items()
            if row.retired is None
        ]
        return [name for at, name in sorted(found) if at < before][:limit]

    async def fold_retired(self, model: str, *, before: float, token_hash: bytes, now: float) -> int:
        kept, agents = self._enrolled(model), self._agents(model)
        found = [
            row
            for name, row in agents.items()
            if row.retired is not None and row.retired < before and not row.quarantined and name != rules.FOLDED
        ][: rules.MAX_FOLDED]
        if not found:
            return 0
        held = agents.get(rules.FOLDED)
        if held is None:
            held = AgentRow(rules.FOLDED, token_hash, revoked=True, created=now, retired=now)
            agents[rules.FOLDED] = held
            self._agent_tokens[token_hash] = (model, rules.FOLDED)
        sums = rows.folded_sums(self._entry(model).model, [*map(_fold_row, [*found, held])])
        held.total, held.n_uploads, held.n_obs, held.reward_sum = sums[:4]
        held.n_bytes, held.growth_most, held.last_seen, held.groups = sums[4:8]
        held.n_discarded, held.epoch, held.stamp = sums[8:]
        for row in found:
            del agents[row.name], self._agent_tokens[row.token_hash]
            self._agent_tokens.pop(row.old_token_hash or b"", None)
            kept.folded.add(rules.name_hash(row.name))
            kept.sessions.pop(row.name, None)
        kept.nonces = {nonce: name for nonce, name in kept.nonces.items() if name in agents}
        return len(found)

    def _enrolled(self, model: str) -> ModelEnrolments:
        found: ModelEnrolments = self._entry(model).enrolled
        return found

    def _agents(self, model: str) -> dict[str, AgentRow]:
        found: dict[str, AgentRow] = self._entry(model).agents
        return found


def find_enrolment(kept: ModelEnrolments, secret_hash: bytes) -> str | None:
    """The name of the enrolment with this secret."""
    return _find(kept.hashes, secret_hash)


def _find(hashes: Mapping[str, bytes], secret_hash: bytes) -> str | None:
    for name, known in hashes.items():
        try:
            rules.require_secret(known, secret_hash)
        except Unauthenticated:
            continue
        return name
    return None


def _ended_at(old: Enrolment) -> float:
    is_used_up = old.max_uses is not None and old.n_used >= old.max_uses
    return old.created if old.revoked or is_used_up else 1e300 if old.expires is None else old.expires


def _fold_row(row: AgentRow) -> tuple[Any, ...]:
    """A row of `rows.FOLD_COLUMNS`."""
    counts = (row.n_uploads, row.n_obs, row.reward_sum, row.n_bytes, row.growth_most)
    return (row.id, row.name, row.total, *counts, row.last_seen, row.groups, row.n_discarded, row.epoch, row.stamp)
