"""Policies that tell their probabilities: UCB with a uniform share, inverse gap weighting, Thompson sampling.

A policy reads the model and random numbers that are a function of the decision's number, and nothing else. With a lazy
algorithm it therefore keeps what makes `fb.radius.exogenous` hold: actions that do not depend on buffered rewards.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np

from fedbandit.algorithms.rules import LinearRule, one_of
from fedbandit.algorithms.scoring import DecisionBasis, check_scores
from fedbandit.core.arrays import TIE, Matrix, Vector, as_vector, finite_at_least, whole_at_least
from fedbandit.core.counter_random import CounterRandom
from fedbandit.core.decision_sets import DecisionSet, Width, first_best
from fedbandit.core.policy import auto_gamma, inverse_gap, pick, with_uniform_share
from fedbandit.core.products import product
from fedbandit.errors import InvalidInput, InvalidParameter
from fedbandit.registry import option

POLICIES = ("ucb", "inverse-gap", "thompson")
CONTROL_POLICY = "control"  # of decisions that the application's default made
UNCERTAIN_TRAITS = frozenset({"scores", "ucb", "certain"})  # what a policy with chance in it does not promise
MOST_SAMPLES = 100_000
LARGEST_SEED = (1 << 53) - 1  # exact in JSON and JavaScript


@dataclass(frozen=True, kw_only=True)
class PolicyRule(LinearRule):
    """A rule whose agents decide by a policy: for sure by default, or with probabilities that decisions tell."""

    policy: str = field(
        default="ucb",
        metadata=option("'ucb', 'inverse-gap' or 'thompson'; the last two tell the probability of each decision"),
    )
    explore: float = field(default=0.0, metadata=option("share of decisions that are uniformly random, from 0 to 1"))
    gamma: str | float = field(
        default="auto", metadata=option("sharpness of 'inverse-gap': a number, or 'auto' for √(n K/d)")
    )
    propensity_samples: int = field(
        default=100, metadata=option("draws for the probability of a 'thompson' decision; 0: it tells none")
    )
    policy_seed: int = field(default=0, metadata=option("seed of the policy's random numbers"))
    control: float = field(
        default=0.0, metadata=option("share of decisions that the application's own default makes, from 0 to below 1")
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self.policy, POLICIES, "policy")
        explore = finite_at_least(self.explore, 0.0, "explore")
        if explore > 1.0:
            raise InvalidParameter(f"expected explore between 0 and 1, got {explore:g}")
        object.__setattr__(self, "explore", explore)
        control = finite_at_least(self.control, 0.0, "control")
        if control >= 1.0:
            raise InvalidParameter(f"expected control from 0 to below 1, got {control:g}")
        object.__setattr__(self, "control", control)
        object.__setattr__(self, "gamma", as_gamma(self.gamma))
        for name, most in (("propensity_samples", MOST_SAMPLES), ("policy_seed", LARGEST_SEED)):
            value = whole_at_least(getattr(self, name), 0, name)
            if value > most:
                raise InvalidParameter(f"expected {name} ≤ {most}, got {value}")
            object.__setattr__(self, name, value)

    @property
    def is_certain(self) -> bool:
        """Whether the model alone determines a decision."""
        return self.policy == "ucb" and self.explore == 0.0 and self.control == 0.0

    @property
    def added_traits(self) -> frozenset[str]:
        """Traits that every rule of this kind has."""
        return frozenset({"policies"})

    @property
    def forgone_traits(self) -> frozenset[str]:
        """Traits of the registered entry that do not hold with these numbers."""
        return frozenset() if self.is_certain else UNCERTAIN_TRAITS

    def to_dict(self) -> dict[str, Any]:
        values = super().to_dict()
        for one in fields(PolicyRule):
            if one.metadata and values[one.name] == one.default:
                del values[one.name]  # ids of specs do not change by options that are not used
        return values


def as_gamma(value: Any) -> float | str:
    """A number ≥ 0 or "auto"; also the text of a number, as it comes from a command line."""
    if isinstance(value, str):
        if value == "auto":
            return value
        try:
            value = float(value)
        except ValueError:
            raise InvalidParameter(f"expected gamma as a number or 'auto', got {value!r}") from None
    return finite_at_least(value, 0.0, "gamma")


class Draw(NamedTuple):
    """What a policy drew: a row, its probability (None: not told) and its score."""

    choice: int | None  # None: not of an array
    x: Vector
    propensity: float | None
    score: float | None
    policy: str | None = None  # what made it, where that is not the lottery's own policy


class Lottery(Protocol):
    """A decision set under a policy and a model: everything about a decision but its number."""

    policy: str
    version: int

    def draw(self, number: int) -> Draw: ...

    def propensity_of(self, index: int, number: int) -> float | None: ...


class PolicyDraws:
    """The random part of one agent's decisions."""

    def __init__(self, rule: PolicyRule, agent_id: str, incarnation: str) -> None:
        self.rule = rule
        self._identity = {"seed": rule.policy_seed, "agent_id": agent_id, "incarnation": incarnation}

    @cached_property
    def exploring(self) -> CounterRandom:
        """Draw 0: whether to explore; draw 1: which row."""
        return CounterRandom(**self._identity, purpose="explore")  # type: ignore[arg-type]

    @cached_property
    def controlling(self) -> CounterRandom:
        """Draw 0: whether the decision is in the control group; draw 1: which row, where there is no default."""
        return CounterRandom(**self._identity, purpose="control")  # type: ignore[arg-type]

    @cached_property
    def deciding(self) -> CounterRandom:
        """The policy's own draws."""
        return CounterRandom(**self._identity, purpose="policy")  # type: ignore[arg-type]

    @cached_property
    def estimating(self) -> CounterRandom:
        """Draws that estimate a probability."""
        return CounterRandom(**self._identity, purpose="propensity")  # type: ignore[arg-type]

    def explored(self, number: int, n_actions: int) -> int | None:
        """A uniform row, with probability ε."""
        explore = self.rule.explore
        if explore == 0.0 or self.exploring.uniform(number, 0) >= explore:
            return None
        return self.exploring.index(number, n_actions, 1)

    def offer(self, basis: DecisionBasis, X: Matrix) -> Lottery:
        """These rows, judged by the policy; bad rows are a named error here, so that drawing cannot fail."""
        if self.rule.policy == "inverse-gap":
            return InverseGapLottery(self, basis, X)
        if self.rule.policy == "thompson":
            return ThompsonLottery(self, basis, X)
        return UcbLottery(self, basis, X)

    def offer_set(self, basis: DecisionBasis, decision_set: DecisionSet) -> Lottery:
        """An infinite decision set: only Thompson sampling without a uniform share can draw from it."""
        if self.rule.control > 0.0:
            raise InvalidInput("a rule with control needs a finite array of actions, got a decision set with best()")
        if self.rule.policy != "thompson" or self.rule.explore > 0.0:
            raise InvalidInput(
                f"policy={self.rule.policy!r} with explore={self.rule.explore:g} needs a finite array of actions, got "
                f"a decision set with best(); use policy='ucb' or 'thompson' with explore=0"
            )
        return ThompsonSetLottery(self, basis, decision_set)


class UcbLottery:
    """The largest upper bound, or with probability ε a uniform row."""

    policy = "ucb"

    def __init__(self, draws: PolicyDraws, basis: DecisionBasis, X: Matrix) -> None:
        self._draws, self._basis, self._X, self.version = draws, basis, X, basis.version
        if basis.beta == 0.0 or draws.rule.explore > 0.0:
            check_scores(X, X)  # a row that is not the best may be drawn
        self._best, self._score = basis.search(X)

    def draw(self, number: int) -> Draw:
        index = self._draws.explored(number, len(self._X))
        index, score = (self._best, self._score) if index is None else (index, self._score_of(index))
        return Draw(index, self._X[index].copy(), self.propensity_of(index, number), score)

    def propensity_of(self, index: int, number: int) -> float:
        return with_uniform_share(float(index == self._best), self._draws.rule.explore, len(self._X))

    def _score_of(self, index: int) -> float:
        if index == self._best:
            return self._score
        return float(self._basis.estimate.upper(self._X[index : index + 1], self._basis.beta)[0])


class InverseGapLottery:
    """Inverse gap weighting (Abe and Long 1999; Foster and Rakhlin 2020) on the model's means."""

    policy = "inverse-gap"

    def __init__(self, draws: PolicyDraws, basis: DecisionBasis, X: Matrix) -> None:
        self._draws, self._X, self.version = draws, X, basis.version
        with np.errstate(over="ignore", invalid="ignore"):
            self._means = basis.estimate.predict(X)
        check_scores(X, self._means)
        gamma = draws.rule.gamma
        if isinstance(gamma, str):
            gamma = auto_gamma(basis.estimate.n_obs, len(X), X.shape[1])
        self._p = inverse_gap(self._means, gamma)

    def draw(self, number: int) -> Draw:
        index = self._draws.explored(number, len(self._X))
        if index is None:
            index = pick(self._p, self._draws.deciding.uniform(number))
        return Draw(index, self._X[index].copy(), self.propensity_of(index, number), float(self._means[index]))

    def propensity_of(self, index: int, number: int) -> float:
        return with_uniform_share(float(self._p[index]), self._draws.rule.explore, len(self._X))


class ThompsonLottery:
    """The row with the largest ⟨θ, x⟩ for θ ~ N(θ̂, β²Σ⁻¹).

    Its probability is estimated by n more draws of θ: of the n + 1, the share in which this row is the best, the draw
    that decides included, also when a uniform row is played instead. With that share q̂, 1/(ε/K + (1 − ε) q̂) is an
    unbiased inverse propensity weight, up to the event that none of n + 1 draws picks the row.
    """

    policy = "thompson"

    def __init__(self, draws: PolicyDraws, basis: DecisionBasis, X: Matrix) -> None:
        self._draws, self._X, self.version = draws, X, basis.version
        with np.errstate(over="ignore", invalid="ignore"):
            self._means = basis.estimate.predict(X)
            self._white = basis.beta * basis.estimate.whitened(X)  # (K, d): scores are means + white @ z, z ~ N(0, I)
            check_scores(X, self._means + np.vecdot(self._white, self._white))

    def draw(self, number: int) -> Draw:
        scores = self._sampled_scores(number)
        sampled = first_best(scores)
        index = self._draws.explored(number, len(self._X))
        index = sampled if index is None else index
        propensity = self._estimated(index, sampled, number)
        return Draw(index, self._X[index].copy(), propensity, float(scores[index]))

    def propensity_of(self, index: int, number: int) -> float | None:
        return self._estimated(index, first_best(self._sampled_scores(number)), number)

    def _sampled_scores(self, number: int) -> Vector:
        return self._scores(self._draws.deciding.normals(number, self._X.shape[1])[:, None])[:, 0]

    def _estimated(self, index: int, sampled: int, number: int) -> float | None:
        n, dim = self._draws.rule.propensity_samples, self._X.shape[1]
        if n == 0:
            return None
        n_hits = int(index == sampled) + self._n_best(index, self._draws.estimating.normals(number, n * dim))
        return with_uniform_share(n_hits / (n + 1), self._draws.rule.explore, len(self._X))

    def _n_best(self, index: int, normals: Vector) -> int:
        """In how many samples this row is the best."""
        scores = self._scores(normals.reshape(-1, self._X.shape[1]).T)
        best = scores.max(axis=0)
        return int(((scores >= best - TIE * np.abs(best)).argmax(axis=0) == index).sum())

    def _scores(self, z: Matrix) -> Matrix:
        """Scores (K, n) for columns of normals (d, n)."""
        return np.asarray(self._means[:, None] + product(self._white, z))


class ThompsonSetLottery:
    """The best action of an infinite decision set for one θ; it has a density instead of a probability."""

    policy = "thompson"

    def __init__(self, draws: PolicyDraws, basis: DecisionBasis, decision_set: DecisionSet) -> None:
        self._draws, self._basis, self._set, self.version = draws, basis, decision_set, basis.version

    def draw(self, number: int) -> Draw:
        estimate, beta, _ = self._basis
        dim = len(estimate.theta_hat)
        theta = estimate.theta_hat + beta * (estimate.whitened(np.eye(dim)) @ self._draws.deciding.normals(number, dim))
        x = as_vector(self._set.best(theta, Width(estimate.inverse), 0.0), dim, "best()").copy()
        return Draw(None, x, None, float(x @ theta))

    def propensity_of(self, index: int, number: int) -> None:
        return None


def draws_of(rule: Any, agent_id: str, incarnation: str) -> PolicyDraws | None:
    """The random part of an agent's decisions; None where a rule's decisions have none."""
    if not isinstance(rule, PolicyRule) or rule.is_certain:
        return None
    return PolicyDraws(rule, agent_id, incarnation)
