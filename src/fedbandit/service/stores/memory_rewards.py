"""Rewards from anywhere in the store in memory."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbandit.errors import FedbanditError, Forbidden
from fedbandit.service.exchange.reported_rewards import Bookings
from fedbandit.service.stores import rewards as rules
from fedbandit.service.stores import rows
from fedbandit.service.stores.enrolments import FOLDED
from fedbandit.service.stores.rewards import KnownReward, Outcome, Owner, Report, Waiting


@dataclass(slots=True)
class _Kept:
    prefix: str
    reward: float
    outcome: str
    until: float


@dataclass(slots=True)
class ModelRewards:
    """The rewards of one model, and who made which decisions."""

    secret: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    by_decision: dict[str, _Kept] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)  # prefix -> agent
    forgotten: set[str] = field(default_factory=set)  # prefixes
    horizon: float = 0.0  # the latest `until` of booked rewards that were removed

    @property
    def n_waiting(self) -> int:
        """Rewards that no owner has collected."""
        return sum(not kept.outcome for kept in self.by_decision.values())

    def forget(self, agent: str) -> None:
        """No reward of this agent's decisions is taken any more."""
        self.forgotten |= {prefix for prefix, owner in self.owners.items() if owner == agent}
        mine = [key for key, kept in self.by_decision.items() if kept.prefix in self.forgotten and not kept.outcome]
        for decision in mine:
            del self.by_decision[decision]

    def expire(self, now: float) -> int:
        """Remove what is too old; how many of them no owner had collected."""
        old = {decision: kept for decision, kept in self.by_decision.items() if kept.until < now}
        self.horizon = max([self.horizon, *(kept.until for kept in old.values() if kept.outcome == rules.BOOKED)])
        for decision in old:
            del self.by_decision[decision]
        return sum(not kept.outcome for kept in old.values())


class MemoryRewards:
    """The part of the store in memory that rewards from anywhere need."""

    if TYPE_CHECKING:

        def _entry(self, model: str) -> Any: ...

    async def token_secret(self, model: str) -> bytes:
        secret: bytes = self._entry(model).rewards.secret
        return secret

    async def report(self, model: str, reports: Sequence[Report], *, now: float) -> tuple[list[Outcome], int]:
        entry = self._entry(model)
        kept: ModelRewards = entry.rewards
        n_expired = kept.expire(now)
        agents = {name: replace(row) for name, row in entry.agents.items()}
        state, before = np.frombuffer(entry.packed, dtype="<f8").copy(), entry.model
        bookings = Bookings(before.settings, state, agents, before.epoch, before.clock)
        outcomes = []
        for report in reports:
            found = kept.by_decision.get(report.decision)
            known = None if found is None else KnownReward(found.reward, found.outcome)
            n_waiting = kept.n_waiting
            outcome, is_new = rules.decide(
                report,
                known,
                _owner(entry, report.decision),
                n_waiting=n_waiting,
                n_kept=len(kept.by_decision) - n_waiting,
                horizon=kept.horizon,
                now=now,
            )
            if is_new and report.token is not None:
                refusal = bookings.book((report.token.agent, FOLDED), report.token.numbers)
                outcome, is_new = (outcome, True) if refusal is None else (refusal, False)
            if is_new and not isinstance(outcome, FedbanditError):
                decision, prefix, reward, stored, until = rows.reward_values(report, outcome, now)
                kept.by_decision[decision] = _Kept(prefix, reward, stored, until)
            outcomes.append(outcome)
        entry.agents.update(bookings.changed)
        if bookings.n_counted:
            entry.model, entry.packed = rows.booked(entry.model, bookings)
        return outcomes, n_expired

    async def collect(
        self, model: str, agent: str, prefix: str, answers: Sequence[tuple[str, str]], *, now: float
    ) -> Waiting:
        kept: ModelRewards = self._entry(model).rewards
        if kept.owners.setdefault(prefix, agent) != agent:
            raise Forbidden(f"decisions with the prefix {prefix!r} belong to another agent")
        for decision, outcome in answers:
            found = kept.by_decision.get(decision)
            if found is not None and found.prefix == prefix and not found.outcome:
                found.outcome, found.until = outcome, now + rules.ANSWERED_S
        mine = [
            (item.until, decision, item.reward)
            for decision, item in kept.by_decision.items()
            if item.prefix == prefix and not item.outcome
        ]
        first = sorted(mine)[: rules.MAX_COLLECTED]
        return Waiting([(decision, reward) for _, decision, reward in first], kept.n_waiting)


def _owner(entry: Any, decision: str) -> Owner | None:
    prefix = rules.owner_prefix(decision)
    agent = entry.rewards.owners.get(prefix)
    if agent is None:
        return None
    row = entry.agents.get(agent)
    is_ended = row is None or row.retired is not None
    return Owner(agent, is_ended=is_ended, is_forgotten=prefix in entry.rewards.forgotten)
