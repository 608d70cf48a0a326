"""A world fitted to a log, and fleets that play in it: alone, together, personally, in clusters, all shared."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fedbandit.algorithms.base import Rule
from fedbandit.algorithms.messages import n_bytes
from fedbandit.algorithms.rules import LinearRule
from fedbandit.core.arrays import Matrix, Vector, finite_at_least, whole_at_least
from fedbandit.errors import InvalidParameter
from fedbandit.experiments.advice.homogeneity import Fit
from fedbandit.experiments.advice.log import DecisionData
from fedbandit.experiments.baselines import alone, clustered, fed, shared
from fedbandit.experiments.compare import Interval, interval
from fedbandit.simulation.participation import ByRows
from fedbandit.simulation.runner import simulate
from fedbandit.simulation.trace import Trace
from fedbandit.simulation.worlds import Block, Index, Stream, generator

ALPHAS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
N_OFFERED = 10  # actions in a decision set, where the log has none
MOST_ROUNDS = 20_000
MOST_CLUSTERED = 4_000  # rounds of CLUB, which has no kernel: beyond that it is left out
MOST_DENSE = 128  # features of disjoint arms up to which eager systems are played by the dense kernels
ENOUGH = 0.9  # of the gain of sharing everything: from here on fewer messages are worth more than more reward


@dataclass(frozen=True, eq=False)
class FittedWorld:
    """Agents with parameters drawn from their posterior given the log; decision sets as in the log.

    A run draws every θ_m anew from its distribution given the log, so that uncertainty about it is kept. Where
    the log has only the actions that were taken, a decision set is made of ten rows of the agent's own.
    """

    name: ClassVar[str] = "fitted"
    log: DecisionData
    fit: Fit
    block_rounds: int = 256

    @property
    def dim(self) -> int:
        return self.log.dim

    def stream(self, seed: np.random.SeedSequence) -> Stream:
        """One seeded run."""
        truth, actions, noise = (generator(part) for part in seed.spawn(3))
        thetas = self.fit.parameters(truth)
        own = [np.flatnonzero(self.log.agents == m) for m in range(self.log.n_agents)]
        return _FittedStream(self.log, own, thetas, self.fit.noise, actions, noise)


@dataclass(slots=True)
class _FittedStream:
    log: DecisionData
    own: Sequence[Index]
    thetas: Matrix
    noise: float
    action_rng: np.random.Generator
    noise_rng: np.random.Generator
    theta_star: Vector | None = None

    def draw(self, active: Index) -> Block:
        """The next rounds."""
        n_offered = 1 if self.log.offers is not None else N_OFFERED
        counts = np.array([len(rows) for rows in self.own])[active]
        places = (self.action_rng.random((len(active), n_offered)) * counts[:, None]).astype(np.int64)
        rows = np.stack([self.own[m][place] for m, place in zip(active, places, strict=True)])
        array = self.log.x[rows] if self.log.offers is None else self.log.offers[rows[:, 0]]
        means = np.einsum("nkd,nd->nk", array, self.thetas[active])
        return Block(self.noise * self.noise_rng.standard_normal(len(active)), means, np.ascontiguousarray(array))


@dataclass(frozen=True, slots=True)
class SystemOutcome:
    """One way to learn: mean reward per decision over seeds, what it gained over learning alone, and its messages."""

    system: str
    alpha: float | None
    reward: Interval
    gain: Interval
    messages: float
    rewards: tuple[float, ...] = ()  # by seed
    n_bytes: float = 0.0  # of its messages
    is_personal: bool = False  # each agent has a parameter of its own

    def lead_over(self, other: SystemOutcome) -> Interval:
        """What it earns more than the other per decision, paired by seed."""
        return interval(np.array(self.rewards) - np.array(other.rewards))


@dataclass(frozen=True, slots=True)
class Prospects:
    """What the fleet of the log would earn in as many rounds again, and the numbers to run it with."""

    alone: SystemOutcome
    shared: SystemOutcome
    federated: tuple[SystemOutcome, ...]
    n_rounds: int
    beta: float
    lam: float
    personal: tuple[SystemOutcome, ...] = ()
    clusters: SystemOutcome | None = None

    @property
    def best_gain(self) -> float:
        """The largest mean gain of any way to learn together."""
        return max(o.gain.mean for o in (*self.federated, self.shared))

    def share_of_gain(self, outcome: SystemOutcome) -> float:
        """What part of the largest gain of its kind this way to learn keeps; NaN where nothing is gained."""
        best = max(o.gain.mean for o in self.personal) if outcome.is_personal else self.best_gain
        return outcome.gain.mean / best if best > 0 else math.nan

    def reaches(self, outcome: SystemOutcome, budget: int | None = None) -> bool:
        """Whether it keeps 90 % of the largest gain or, with a budget, stays within it."""
        return outcome.messages <= budget if budget is not None else self.share_of_gain(outcome) >= ENOUGH

    def recommended(self, budget: int | None = None) -> SystemOutcome:
        """The fewest messages with 90 % of the gain of the best; with a budget, the best reward within it.

        Where no α reaches that: the best reward or, with a budget, the fewest messages.
        """
        return self._recommended(self.federated, budget)

    def recommended_personal(self, budget: int | None = None) -> SystemOutcome | None:
        """The same among those with a parameter for each agent."""
        return self._recommended(self.personal, budget) if self.personal else None

    def _recommended(self, tried: tuple[SystemOutcome, ...], budget: int | None) -> SystemOutcome:
        enough = [o for o in tried if self.reaches(o, budget)]
        if budget is None:
            return min(enough, key=lambda o: o.messages) if enough else max(tried, key=lambda o: o.reward.mean)
        return max(enough, key=lambda o: o.reward.mean) if enough else min(tried, key=lambda o: o.messages)


def prospects(
    log: DecisionData,
    fit: Fit,
    *,
    n_seeds: int = 5,
    n_rounds: int | None = None,
    beta: float | None = None,
    seed: int = 0,
    alphas: Sequence[float] = ALPHAS,
    watch: Callable[[], None] | None = None,
) -> Prospects:
    """Play the fitted world alone, by FedLinUCB at each α, also personal, in clusters, and all shared; one β for all.

    FedLinUCB is played as it is deployed: an agent downloads a model before its first decision.
    """
    n_seeds = whole_at_least(n_seeds, 1, "n_seeds")
    if n_seeds < 2:
        raise InvalidParameter("expected at least 2 seeds, got 1: an interval, and so an answer, needs two runs")
    counts = np.bincount(log.agents, minlength=log.n_agents)
    total = min(len(log), MOST_ROUNDS) if n_rounds is None else whole_at_least(n_rounds, 1, "n_rounds")
    world = FittedWorld(log, fit)
    lam = float(np.mean(np.einsum("ij,ij->i", log.x, log.x)))
    radius = 1.5 * fit.noise if beta is None else finite_at_least(beta, 0.0, "beta")
    numbers: dict[str, Any] = {"dim": log.dim, "beta": radius, "lam": lam}
    by_arm = {**numbers, "blocks": log.blocks}
    # The same numbers either way: with few features the dense kernel is faster than the reference engine with blocks.
    eager = by_arm if log.dim > MOST_DENSE else numbers
    rules: dict[str, Rule] = {
        "alone": alone(**eager),
        "shared": shared(**eager),
        # As live agents: a model when they connect (`join`), then one with each upload.
        **{f"α={alpha:g}": fed(alpha=alpha, join=True, **by_arm) for alpha in alphas},
        **{f"personal, α={alpha:g}": fed(alpha=alpha, join=True, personal="auto", **eager) for alpha in alphas},
        **({"clusters": clustered(**numbers)} if total <= MOST_CLUSTERED else {}),
    }
    pattern = ByRows(tuple(counts.tolist()))
    played: dict[str, list[Trace]] = {}
    for name, rule in rules.items():
        for s in range(n_seeds):
            trace = simulate(
                rule, world, n_agents=log.n_agents, n_rounds=total, seed=seed + s, participation=pattern, record=[total]
            )
            played.setdefault(name, []).append(trace)
            if watch is not None:
                watch()
    base = _rewards(played["alone"], total)

    def outcome(name: str, alpha: float | None = None, *, is_personal: bool = False) -> SystemOutcome:
        rewards = _rewards(played[name], total)
        messages = float(np.mean([trace.n_messages for trace in played[name]]))
        numbers = interval(rewards), interval(rewards - base), messages, tuple(rewards.tolist())
        return SystemOutcome(name, alpha, *numbers, _bytes(log, rules[name], played[name]), is_personal)

    return Prospects(
        outcome("alone"),
        outcome("shared"),
        tuple(outcome(f"α={alpha:g}", alpha) for alpha in alphas),
        total,
        radius,
        lam,
        tuple(outcome(f"personal, α={alpha:g}", alpha, is_personal=True) for alpha in alphas),
        outcome("clusters") if "clusters" in played else None,
    )


def _rewards(traces: Sequence[Trace], total: int) -> Vector:
    """Expected reward per decision of each run; the best reward less the regret would hide the level of the best."""
    return np.array([float(trace.reward[-1]) / total for trace in traces])


def _bytes(log: DecisionData, rule: Rule, traces: Sequence[Trace]) -> float:
    """Bytes on the wire; where a dense rule was played for a model with arms, as many messages of that model."""
    if not (isinstance(rule, LinearRule) and rule.takes_blocks) or rule.blocks == log.blocks:
        return float(np.mean([trace.n_bytes for trace in traces]))
    return float(np.mean([trace.n_messages for trace in traces])) * n_bytes(log.dim, log.blocks)


def rounds_to_independence(fit: Fit) -> float:
    """Own rounds after which an agent predicts better alone than with all data: about d/h²; never when h = 0."""
    return math.inf if fit.spread == 0 else fit.rank / fit.spread**2
