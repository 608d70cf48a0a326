"""Rewards that reach the server instead of the agent that made the decision: their rules, for every store.

A reward is kept by the id of its decision, once, until the owner of the decision has booked it and says so. What was
said stays for a while, so that a repetition is recognised and a different reward is a conflict. A reward that comes
with a decision token, which the owner made when it gave the decision up, is booked by the server itself.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from fedbandit.core.arrays import Vector
from fedbandit.errors import FedbanditError, InvalidParameter, OwnerEnded, RewardConflict, RewardsFull

MAX_WAITING = 100_000  # rewards of one model that no owner has collected
MAX_KEPT = 1_000_000  # rewards of one model, collected or booked, that are remembered
MAX_COLLECTED = 1_000  # in one answer
WAITING_S = 30 * 86400.0  # then a reward that nobody collected expires
ANSWERED_S = 7 * 86400.0  # a reward is remembered after its owner has answered
TOKEN_S = 90 * 86400.0  # a decision token is valid for this long, and what it booked is remembered for longer
SLACK_S = 86400.0  # for clocks that differ
HORIZON = ""  # decision of the row whose reward is the time up to which booked rewards were removed

# The last three are what an owner may answer.
WAITING, BOOKED, NOT_PENDING, REFUSED = "waiting", "booked", "not_pending", "refused"
DECISION = re.compile(r"([0-9a-f]{1,32})-[0-9]{1,19}")


def owner_prefix(decision: str) -> str:
    """The part of a decision's id that names the state directory in which it was made.

    >>> owner_prefix("0a1b2c3d4e5f-17")
    '0a1b2c3d4e5f'
    """
    match = DECISION.fullmatch(decision)
    if match is None:
        raise InvalidParameter(f"expected the id of a decision, such as 0a1b2c3d4e5f-17, got {decision[:80]!r}")
    return match[1]


class GivenUp(NamedTuple):
    """A decision that its owner gave up for a token, which was verified."""

    agent: str
    made_at: float
    numbers: Vector  # the packed sums of the one observation


class Report(NamedTuple):
    """A reward for a decision."""

    decision: str
    reward: float
    token: GivenUp | None = None


class KnownReward(NamedTuple):
    """What the store has for a decision."""

    reward: float
    outcome: str  # empty while it waits


class Owner(NamedTuple):
    """Who made the decisions with one prefix."""

    agent: str
    is_ended: bool  # retired or folded
    is_forgotten: bool


@dataclass(frozen=True, slots=True)
class Waiting:
    """What an owner gets: rewards by the ids of their decisions, and how many the model keeps in all."""

    rewards: list[tuple[str, float]]
    n_waiting: int


Outcome = str | FedbanditError


def decide(
    report: Report,
    known: KnownReward | None,
    owner: Owner | None,
    *,
    n_waiting: int,
    n_kept: int,
    horizon: float,
    now: float,
) -> tuple[Outcome, bool]:
    """The status of a report, and whether it must be stored: kept for its owner, or booked by its token.

    `horizon` is the latest `until` of booked rewards that were removed, by whatever clock.
    """
    is_dropped = known is not None and known.outcome in (NOT_PENDING, REFUSED)
    if known is not None and known.reward != report.reward and not (is_dropped and report.token is not None):
        return RewardConflict(
            f"decision {report.decision!r} was reported with reward {known.reward:g} before, now with "
            f"{report.reward:g}; the first one holds"
        ), False
    if owner is not None and owner.is_forgotten:
        return OwnerEnded(
            f"the data of agent {owner.agent!r}, who made decision {report.decision!r}, were forgotten; nothing of "
            f"its decisions is taken any more"
        ), False
    if report.token is not None:
        return _by_token(report, report.token, known, n_kept=n_kept, now=max(now, horizon))
    if known is not None:
        return known.outcome or WAITING, False
    if owner is not None and owner.is_ended:
        return OwnerEnded(
            f"agent {owner.agent!r}, who made decision {report.decision!r}, was retired and collects no reward; only "
            f"the decision's token could book it"
        ), False
    if n_waiting >= MAX_WAITING:
        return RewardsFull(
            f"{n_waiting} rewards wait for their owners already: do the agents exchange or refresh?"
        ), False
    return WAITING, True


def _by_token(
    report: Report, token: GivenUp, known: KnownReward | None, *, n_kept: int, now: float
) -> tuple[Outcome, bool]:
    if known is not None and known.outcome == BOOKED:
        return BOOKED, False
    if now - token.made_at > TOKEN_S:
        return OwnerEnded(
            f"the token of decision {report.decision!r} is older than {TOKEN_S / 86400:.0f} days, or a server's clock "
            f"was set ahead since it was made; whether it was booked is no longer remembered"
        ), False
    if n_kept >= MAX_KEPT:
        return RewardsFull(f"{n_kept} booked rewards are remembered already; older ones expire"), False
    return BOOKED, True


def change_of(known: KnownReward | None, outcome: str) -> tuple[int, int]:
    """How the numbers of waiting and of remembered rewards change when this outcome is stored."""
    was_waiting = known is not None and not known.outcome
    was_answered = known is not None and bool(known.outcome)
    is_waiting = outcome == WAITING
    return is_waiting - was_waiting, (not is_waiting) - was_answered


class RewardStore(Protocol):
    """The part of a store that rewards from anywhere need."""

    async def token_secret(self, model: str) -> bytes:
        """The secret that keys of decision tokens are derived from; random, and as old as the model."""
        ...

    async def report(self, model: str, reports: Sequence[Report], *, now: float) -> tuple[list[Outcome], int]:
        """Keep or book rewards, each once, in one transaction; a status or an error for each, and how many expired."""
        ...

    async def collect(
        self, model: str, agent: str, prefix: str, answers: Sequence[tuple[str, str]], *, now: float
    ) -> Waiting:
        """Record what the owner did with rewards, and give it the next ones. The first call registers the prefix."""
        ...
