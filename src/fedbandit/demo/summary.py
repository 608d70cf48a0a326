"""The baselines of the demo, and the check that every observation counted exactly once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedbandit.algorithms.base import Rule
from fedbandit.algorithms.fedlinucb import FedLinUCB
from fedbandit.algorithms.oful import OFUL
from fedbandit.core.statistics import SufficientStats
from fedbandit.demo.images import N_ARMS, Images
from fedbandit.experiments.sharing_cost import SharingCost
from fedbandit.simulation.participation import sequence
from fedbandit.simulation.runner import simulate
from fedbandit.simulation.worlds import from_arrays


@dataclass(frozen=True, slots=True)
class LearningResult:
    """One way to learn: rewards in the order of the images, messages and bytes."""

    name: str
    rewards: tuple[float, ...]
    n_messages: int
    n_bytes: int

    @property
    def mean_reward(self) -> float:
        """Mean reward over all images."""
        return float(np.mean(self.rewards))

    @property
    def late_reward(self) -> float:
        """Mean reward over the last quarter."""
        return float(np.mean(self.rewards[-len(self.rewards) // 4 :]))


def alone(parts: Sequence[Images], *, beta: float, lam: float) -> LearningResult:
    """Every agent learns from its own images only; nothing is sent."""
    return _simulated("alone", OFUL(dim=parts[0].dim, blocks=N_ARMS, beta=beta, lam=lam), parts)


def every_decision(parts: Sequence[Images], *, beta: float, lam: float) -> LearningResult:
    """Each decision downloads before and uploads after: FedLinUCB with α = 0, `join` and `refresh="arrival"`."""
    rule = FedLinUCB(dim=parts[0].dim, blocks=N_ARMS, alpha=0.0, beta=beta, lam=lam, join=True, refresh="arrival")
    return _simulated("two messages per decision", rule, parts)


def everything_shared(parts: Sequence[Images], *, beta: float, lam: float) -> LearningResult:
    """One model learns from each image immediately; counted as an upload and a download to all agents."""
    rule = OFUL(dim=parts[0].dim, blocks=N_ARMS, beta=beta, lam=lam, mode="shared")
    return _simulated("a broadcast per decision", rule, parts)


def _simulated(name: str, rule: Rule, parts: Sequence[Images]) -> LearningResult:
    """The rule on the same images in the same order, by the simulator."""
    order = _order(parts)
    agents = [m for m, _ in order]
    features = np.array([parts[m].actions(n) for m, n in order])
    rewards = [[parts[m].reward(n, arm) for arm in range(N_ARMS)] for m, n in order]
    world = from_arrays(features, rewards, agents=agents, shuffle=False)
    trace = simulate(
        rule,
        world,
        n_agents=len(parts),
        n_rounds=len(order),
        participation=sequence(agents),
        record="all",
        engine="reference",
    )
    earned = tuple(np.diff(trace.reward, prepend=0.0).tolist())
    return LearningResult(name, earned, trace.n_messages, int(trace.n_bytes))


def sharing_cost(parts: Sequence[Images]) -> SharingCost:
    """The cost of sharing everything; a raw row is the context, the arm and the reward."""
    return SharingCost(
        n_agents=len(parts),
        n_rounds=sum(map(len, parts)),
        dim=parts[0].dim,
        row_numbers=int(parts[0].contexts.shape[1]) + 2,
        blocks=N_ARMS,
    )


def _order(parts: Sequence[Images]) -> list[tuple[int, int]]:
    """(agent, image) in the order in which images were dealt out."""
    return sorted(((m, n) for m, part in enumerate(parts) for n in range(len(part))), key=lambda pair: pair[::-1])


def in_order(parts: Sequence[Images], rewards: Sequence[dict[int, float]]) -> tuple[float, ...]:
    """The rewards of the agents in the order in which images were dealt out."""
    return tuple(rewards[m][n] for m, n in _order(parts))


def seen(parts: Sequence[Images], arms: Sequence[dict[int, int]]) -> SufficientStats:
    """The statistics of what the agents reported."""
    rows = np.array([parts[m].actions(n)[arms[m][n]] for m, n in _order(parts)])
    rewards = np.array([parts[m].reward(n, arms[m][n]) for m, n in _order(parts)])
    return SufficientStats.of(rows, rewards, blocks=N_ARMS)


@dataclass(frozen=True, slots=True)
class Conservation:
    """The agents' reported data against the server's (without λI)."""

    seen: SufficientStats
    held: SufficientStats

    @property
    def gap(self) -> float:
        """Largest difference in Σ and b, relative to the largest entry."""
        scale = max(float(np.abs(self.seen.Sigma).max()), 1.0)
        gap_Sigma = float(np.abs(self.seen.Sigma - self.held.Sigma).max())
        return max(gap_Sigma, float(np.abs(self.seen.b - self.held.b).max())) / scale

    @property
    def holds(self) -> bool:
        """Every observation counted exactly once: counts equal, sums equal up to rounding."""
        same = self.seen.n_obs == self.held.n_obs and self.seen.reward_sum == self.held.reward_sum
        return same and self.gap < 1e-12
