"""What other policies would have earned on a log: models fitted to its first part, judged on the rest.

The judged rounds are weighed by the logged probabilities (evaluation.py), so nothing is learnt from rounds that judge
the same policy. A gain is against what the logged decisions themselves earned in those rounds, paired round by round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbandit.core.arrays import Matrix, Vector, finite_at_least
from fedbandit.core.counter_random import CounterRandom
from fedbandit.core.decision_sets import first_best
from fedbandit.core.policy import auto_gamma, inverse_gap
from fedbandit.core.ridge import RidgeModel
from fedbandit.core.statistics import SufficientStats
from fedbandit.errors import DimensionMismatch, InvalidParameter, MissingPropensity, NoSupport
from fedbandit.experiments.advice.evaluation import PolicyEstimates, evaluate, importance, known_offers
from fedbandit.experiments.advice.log import DecisionData
from fedbandit.experiments.compare import LEVEL, Interval, interval

TARGETS = ("greedy", "ucb", "inverse-gap", "thompson", "uniform")
N_DEVIATIONS = 5.0  # of the mean weight below 1 that cannot be chance
SAMPLES = 200  # draws of θ for the probabilities of Thompson sampling


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetPolicy:
    """A policy to be judged: its name, and the numbers of it."""

    name: str
    beta: float = 1.0
    explore: float = 0.0
    gamma: float | str = "auto"

    def __post_init__(self) -> None:
        if self.name not in TARGETS:
            raise InvalidParameter(f"expected a policy among {', '.join(TARGETS)}, got {self.name!r}")
        finite_at_least(self.beta, 0.0, "beta")
        if not 0.0 <= self.explore <= 1.0:
            raise InvalidParameter(f"expected explore between 0 and 1, got {self.explore:g}")

    def probabilities(self, model: RidgeModel, X: Matrix) -> Vector:
        """Of each row of one decision set."""
        K = len(X)
        p = np.full(K, 1.0 / K)
        if self.name == "inverse-gap":
            gamma = auto_gamma(model.n_obs, K, X.shape[1]) if isinstance(self.gamma, str) else self.gamma
            p = inverse_gap(model.predict(X), gamma)
        elif self.name == "thompson":
            z = CounterRandom(seed=0, agent_id="", incarnation="", purpose="evaluate").normals(0, SAMPLES * X.shape[1])
            scores = model.predict(X)[:, None] + self.beta * model.whitened(X) @ z.reshape(-1, X.shape[1]).T
            p = np.bincount(scores.argmax(axis=0), minlength=K) / SAMPLES
        elif self.name != "uniform":
            p = np.zeros(K)
            p[first_best(model.predict(X) if self.name == "greedy" else model.upper(X, self.beta))] = 1.0
        return self.explore / K + (1.0 - self.explore) * p


@dataclass(frozen=True, slots=True)
class Judged:
    """A policy with its estimates, and its gain over the logged decisions by the doubly robust estimate."""

    policy: TargetPolicy
    estimates: PolicyEstimates
    gain: Interval


@dataclass(frozen=True, slots=True)
class Comparison:
    """Policies on the judged part of a log."""

    logged: Interval  # mean reward of the logged decisions in that part
    judged: tuple[Judged, ...]
    n_train: int
    n_test: int


def require_support(log: DecisionData) -> None:
    """Refuse a log whose probabilities are missing, or are 0 for actions that another policy would take."""
    _, _, sizes = known_offers(log)
    if log.propensities is None:
        raise MissingPropensity(
            "expected the probability of every logged decision (propensity), and some have none: what another policy "
            "would have earned cannot be estimated. Log decisions of a policy that tells it: policy='inverse-gap', "
            "explore=…, or 'thompson' with propensity_samples > 0"
        )
    certain = int(((log.propensities == 1.0) & (sizes > 1)).sum())
    if certain:
        raise NoSupport(
            f"{certain} of {len(log)} decisions were certain, so that every other action had probability 0: the log "
            f"says nothing about them. Log some weeks with explore=0.05 or policy='inverse-gap' first"
        )


def compare_policies(
    log: DecisionData,
    policies: Sequence[TargetPolicy],
    *,
    train: float = 0.5,
    lam: float = 1.0,
    model: RidgeModel | None = None,
    level: float = LEVEL,
) -> Comparison:
    """Judge policies on the part of a log after the first `train` of it, to which their model is fitted.

    With a `model`, that one is used instead, and with `train=0` the whole log judges it.
    """
    require_support(log)
    lam = finite_at_least(lam, 0.0, "lam", strictly=True)
    if not 0.0 < level < 1.0:
        raise InvalidParameter(f"expected level above 0 and below 1, got {level:g}")
    if not 0.0 <= train < 1.0:
        raise InvalidParameter(f"expected train from 0 to below 1, got {train:g}")
    n_train = int(train * len(log))
    if model is None:
        if n_train == 0:
            raise InvalidParameter("expected a part of the log to fit a model to: train > 0, or a model")
        stats = SufficientStats.prior(dim=log.dim, lam=lam) + SufficientStats.of(log.x[:n_train], log.rewards[:n_train])
        model = RidgeModel(stats)
    elif model.dim != log.dim:
        raise DimensionMismatch(f"expected a model with the log's {log.dim} features, got one with {model.dim}")
    rest = part_of(log, n_train)
    return Comparison(
        interval(rest.rewards, level=level),
        tuple(_judge(rest, policy, model, lam, level) for policy in policies),
        n_train,
        len(rest),
    )


def part_of(log: DecisionData, start: int) -> DecisionData:
    """The log from this decision on."""
    fields = ("x", "rewards", "agents", "propensities", "offers", "chosen", "sizes")
    parts: dict[str, Any] = {f: None if getattr(log, f) is None else getattr(log, f)[start:] for f in fields}
    return replace(log, **parts)


def _judge(log: DecisionData, policy: TargetPolicy, model: RidgeModel, lam: float, level: float) -> Judged:
    offers, _, sizes = known_offers(log)
    target = np.zeros(offers.shape[:2])
    for i, size in enumerate(sizes):
        target[i, :size] = policy.probabilities(model, offers[i, :size])

    def fixed(_: NDArray[np.float64]) -> Matrix:
        return target

    parts = importance(log, fixed, lam=lam)
    _require_weights(policy, parts.weights)
    return Judged(
        policy,
        evaluate(log, fixed, lam=lam, level=level),
        interval(parts.doubly_robust - log.rewards, level=level),
    )


def _require_weights(policy: TargetPolicy, weights: Vector) -> None:
    """Importance weights have mean 1 unless the policy takes actions that the log takes never, or too seldom."""
    mean, deviation = float(weights.mean()), float(weights.std()) / len(weights) ** 0.5
    if mean + N_DEVIATIONS * deviation < 1.0:
        raise NoSupport(
            f"the weights of policy {policy.name!r} have mean {mean:.2f} instead of 1: it takes actions that the log "
            f"takes never, or so seldom that {len(weights)} decisions are too few. Log with a larger explore, or judge "
            f"a policy that is nearer to the logged one, for example by --explore"
        )
