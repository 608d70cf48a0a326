"""Rewards from anywhere, independent of HTTP: reports by id or token, and what owners collect."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fedbandit.algorithms.messages import packed_bytes
from fedbandit.core.statistics import SufficientStats
from fedbandit.errors import DimensionMismatch, FedbanditError, InvalidInput, NotFinite
from fedbandit.service.container import Container
from fedbandit.service.stores.rewards import BOOKED, GivenUp, Outcome, Report, Waiting, owner_prefix
from fedbandit.wire.decision_token import DecisionToken, is_token, read_token, token_key
from fedbandit.wire.settings import ModelSettings

MAX_REPORTS = 1_000


async def report(container: Container, model: str, rewards: Sequence[tuple[str, float]]) -> list[tuple[str, Outcome]]:
    """Keep or book rewards, each given with the id or the token of its decision; the id and a status or error for each.

    All that can be stored are stored in one transaction; the errors of some do not affect the others.
    """
    settings = (await container.store.load(model)).settings
    secret = await container.store.token_secret(model)
    read = [_read(settings, secret, decision, reward) for decision, reward in rewards]
    reports = [item for item in read if isinstance(item, Report)]
    outcomes, n_expired = await container.store.report(model, reports, now=container.clock())
    following = iter(zip((item.decision for item in reports), outcomes, strict=True))
    results = [
        next(following) if isinstance(item, Report) else (decision[:80], item)
        for item, (decision, _) in zip(read, rewards, strict=True)
    ]
    await _tell(container, model, [outcome for _, outcome in results], n_expired)
    return results


def _read(settings: ModelSettings, secret: bytes, decision: str, reward: float) -> Report | FedbanditError:
    try:
        if not math.isfinite(reward):
            raise NotFinite(f"expected a finite reward, got {reward}")
        if abs(reward) > settings.largest_reward:
            raise InvalidInput(f"the model takes rewards with |r| ≤ {settings.largest_reward:g}, got {reward:g}")
        if not is_token(decision):
            owner_prefix(decision)
            return Report(decision, reward)
        token = read_token(secret, decision)
        owner_prefix(token.decision)
        return Report(token.decision, reward, _given_up(settings, token, reward))
    except FedbanditError as error:
        return error


def _given_up(settings: ModelSettings, token: DecisionToken, reward: float) -> GivenUp:
    if not settings.is_plain:
        raise InvalidInput(
            "decision tokens need a model without blocks, personal parameters, a control group or a response to change"
        )
    if len(token.x) not in (settings.dim, *settings.earlier_dims):
        raise DimensionMismatch(f"expected a decision with {settings.dim} features, got {len(token.x)}")
    if not np.isfinite(token.x).all():
        raise NotFinite("expected a finite row in the decision token")
    settings.check(token.x, reward)
    x = np.pad(token.x, (0, settings.dim - len(token.x)))  # made before features were added
    packed = packed_bytes(SufficientStats.of([x], [reward]))
    return GivenUp(token.agent, token.made_at, np.frombuffer(packed, dtype="<f8"))


async def _tell(container: Container, model: str, outcomes: Sequence[Outcome], n_expired: int) -> None:
    after = await container.store.state(model)
    for outcome in outcomes:
        word = outcome.code if isinstance(outcome, FedbanditError) else outcome
        container.metrics.count_reward(model, word)
        if isinstance(outcome, FedbanditError):
            container.history.refused(after.model, "", outcome)
    if n_expired:
        container.metrics.count_reward(model, "expired", n_expired)
        detail = f"{n_expired} that no agent collected"
        container.history.event(after.model, "rewards_expired", detail=detail)
    if BOOKED in outcomes:
        container.history.changed(after.model, after.packed)


async def collect(
    container: Container, model: str, agent: str, prefix: str, answers: Sequence[tuple[str, str]]
) -> tuple[Waiting, bytes]:
    """The next rewards of an owner, after what it did with the last ones; and the key of its decision tokens."""
    owner_prefix(f"{prefix}-0")
    found = await container.store.collect(model, agent, prefix, answers, now=container.clock())
    for _, outcome in answers:
        container.metrics.count_reward(model, f"owner_{outcome}")
    return found, token_key(await container.store.token_secret(model), agent)
