"""Off-policy evaluation: the reward that another policy would have earned, from a log, with intervals.

Replay (Li et al. 2011) plays a learning rule on a log and keeps the rounds where it would have chosen the logged
action. Inverse propensity weighs each reward by how much more often the policy would have earned it; the
self-normalised form divides by the weights themselves; the doubly robust form corrects a fitted model by the same
weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedbandit.algorithms.base import Rule
from fedbandit.core.arrays import Matrix, Vector, as_vector, finite_at_least
from fedbandit.core.ridge import RidgeModel
from fedbandit.core.statistics import SufficientStats
from fedbandit.errors import DimensionMismatch, InvalidInput, MissingPropensity
from fedbandit.experiments.advice.log import DecisionData
from fedbandit.experiments.compare import LEVEL, Interval, interval
from fedbandit.simulation.runner import SimulatedFleet
from fedbandit.simulation.worlds import Index

N_FOLDS = 5
SMALL_SAMPLE = 100  # with fewer effective observations an interval from the normal law is too narrow

Policy = Callable[[NDArray[np.float64]], Matrix]  # offers (n, K, d) -> probabilities (n, K)


@dataclass(frozen=True, slots=True)
class Replay:
    """A rule that was played on a log: mean reward of the rounds that counted, how many those were, and messages."""

    reward: Interval
    n_events: int
    n_accepted: int
    n_messages: int
    rewards: Vector  # of the accepted rounds, in order


@dataclass(frozen=True, slots=True)
class PolicyEstimates:
    """The mean reward of a policy by three estimators; `n_effective` = (Σw)²/Σw² is the effective sample size."""

    ips: Interval
    snips: Interval
    dr: Interval
    n_effective: float
    largest_weight: float

    @property
    def is_thin(self) -> bool:
        """Whether so little of the log agrees with the policy that the intervals should not be trusted."""
        return self.n_effective < SMALL_SAMPLE


def replay(rule: Rule, log: DecisionData, *, seed: int = 0, level: float = LEVEL) -> Replay:
    """Play `rule` on a log by rejection: unbiased when the log's decisions were random with known probabilities.

    A round counts if the rule chooses what was logged, and then only with probability p_min/p, which makes the kept
    rounds look as if logged uniformly; with equal propensities (or none given: uniform logging is assumed) all count.
    """
    offers, chosen, sizes = known_offers(log)
    fleet = SimulatedFleet(rule, log.n_agents)
    keep = _acceptance(log, sizes, np.random.default_rng(seed))
    kept = []
    for i in range(len(log)):
        agent = fleet.begin_round(i, str(log.agents[i]))
        decision = agent.choose(offers[i, : sizes[i]])
        if decision.index != chosen[i] or not keep[i]:
            agent.expire(decision)
            continue
        reward = float(log.rewards[i])
        kept.append(reward)
        fleet.end_round(agent, decision, reward, agent.observe(decision, reward))
    rewards = np.asarray(kept, dtype=np.float64)
    span = interval(rewards, level=level) if len(rewards) else Interval(math.nan, -math.inf, math.inf, 0)
    return Replay(span, len(log), len(rewards), fleet.n_up + fleet.n_down, rewards)


def _acceptance(log: DecisionData, sizes: Index, rng: np.random.Generator) -> NDArray[np.bool_]:
    # Relative to a uniform choice from each offer, so that offers of different sizes are all used.
    chance = 1.0 / sizes if log.propensities is None else log.propensities
    odds = chance * sizes
    return np.asarray(rng.random(len(log)) * odds <= odds.min())


def evaluate(
    log: DecisionData, policy: Policy, *, lam: float = 1.0, largest_weight: float | None = None, level: float = LEVEL
) -> PolicyEstimates:
    """Mean reward of a fixed policy from a log with propensities, by three estimators with normal intervals.

    `largest_weight` cuts importance weights, which trades variance for a bias towards what was logged.
    """
    parts = importance(log, policy, lam=lam, largest_weight=largest_weight)
    weights = parts.weights
    total = float(weights.sum())
    n_effective = total**2 / float(weights @ weights) if total > 0 else 0.0
    return PolicyEstimates(
        interval(weights * log.rewards, level=level),
        _normalised(weights, log.rewards, level),
        interval(parts.doubly_robust, level=level),
        n_effective,
        float(weights.max()),
    )


@dataclass(frozen=True, slots=True)
class Importance:
    """Round by round: the importance weight w, and the doubly robust value Σ_k π_k m_k + w (r − m), (n,) each."""

    weights: Vector
    doubly_robust: Vector


def importance(
    log: DecisionData, policy: Policy, *, lam: float = 1.0, largest_weight: float | None = None
) -> Importance:
    """What `evaluate` averages."""
    offers, chosen, sizes = known_offers(log)
    if log.propensities is None:
        raise MissingPropensity("expected propensities in the log: how probable was what was done?")
    target = as_probabilities(policy(offers), sizes)
    weights = target[np.arange(len(log)), chosen] / log.propensities
    if largest_weight is not None:
        weights = np.minimum(weights, finite_at_least(largest_weight, 0.0, "largest_weight", strictly=True))
    predicted = crossfitted(log, offers, lam)
    own = predicted[np.arange(len(log)), chosen]
    return Importance(weights, (target * predicted).sum(axis=1) + weights * (log.rewards - own))


def crossfitted(log: DecisionData, offers: NDArray[np.float64], lam: float) -> Matrix:
    """Predicted reward of every action on offer, each by a ridge model that did not see its round, (n, K)."""
    fold = np.arange(len(log)) % min(N_FOLDS, len(log))
    predicted = np.empty(offers.shape[:2])
    for f in np.unique(fold):
        seen, own = fold != f, fold == f
        stats = SufficientStats.prior(dim=log.dim, lam=lam)
        if seen.any():
            stats = stats + SufficientStats.of(log.x[seen], log.rewards[seen])
        predicted[own] = offers[own] @ RidgeModel(stats).theta_hat
    return predicted


def greedy(theta: ArrayLike, *, explore: float = 0.0) -> Policy:
    """The policy that takes the action with the largest ⟨θ, x⟩, or any action with probability `explore`."""
    direction = np.asarray(theta, dtype=np.float64)

    def policy(offers: NDArray[np.float64]) -> Matrix:
        scores = offers @ as_vector(direction, offers.shape[2], "theta")
        best = np.eye(offers.shape[1])[scores.argmax(axis=1)]
        return np.asarray((1.0 - explore) * best + explore / offers.shape[1])

    return policy


def as_probabilities(values: ArrayLike, sizes: Index) -> Matrix:
    """Probabilities (n, K) that add to 1 over the real actions of each offer."""
    target = np.asarray(values, dtype=np.float64)
    if target.ndim != 2 or len(target) != len(sizes):
        raise DimensionMismatch(f"expected probabilities of shape ({len(sizes)}, K), got {target.shape}")
    target = np.where(np.arange(target.shape[1]) < sizes[:, None], target, 0.0)
    totals = target.sum(axis=1)
    if not (target >= 0).all() or not (totals > 0).all():
        raise InvalidInput("expected probabilities that are not negative and not all 0")
    return np.asarray(target / totals[:, None])


def known_offers(log: DecisionData) -> tuple[NDArray[np.float64], Index, Index]:
    """All rows on offer, the row taken from each, and how many rows are real."""
    if log.offers is None or log.chosen is None or log.sizes is None:
        raise InvalidInput(
            "expected a log with all actions on offer: a column 'action', or 'decision' with a line each; or a "
            "decision log that was written with decision_log_rows='all'"
        )
    return log.offers, log.chosen, log.sizes


def _normalised(weights: Vector, rewards: Vector, level: float) -> Interval:
    """Σwr/Σw with the interval of the delta method."""
    total = float(weights.sum())
    if total <= 0:
        return Interval(math.nan, -math.inf, math.inf, len(weights))
    mean = float(weights @ rewards) / total
    around = interval(weights * (rewards - mean) / weights.mean(), level=level)
    return Interval(mean, mean - around.half, mean + around.half, len(weights))
