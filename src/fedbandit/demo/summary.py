"""The baselines of the demo, and the check that every observation counted exactly once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedbandit.algorithms.fedlinucb import FedLinUCB
from fedbandit.algorithms.messages import n_bytes
from fedbandit.algorithms.oful import OFUL
from fedbandit.core.statistics import SufficientStats
from fedbandit.demo.images import Images
from fedbandit.experiments.sharing_cost import SharingCost


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
    rule = OFUL(dim=parts[0].dim, beta=beta, lam=lam)
    agents = [rule.agent(str(m)) for m in range(len(parts))]
    rewards = []
    for m, n in _order(parts):
        decision = agents[m].choose(parts[m].actions(n))
        rewards.append(parts[m].reward(n, decision.index or 0))
        agents[m].observe(decision, rewards[-1])
    return LearningResult("alone", tuple(rewards), 0, 0)


def sharing_cost(parts: Sequence[Images]) -> SharingCost:
    """The cost of sharing everything; a raw row is the context, the arm and the reward."""
    return SharingCost(
        n_agents=len(parts),
        n_rounds=sum(map(len, parts)),
        dim=parts[0].dim,
        row_numbers=int(parts[0].contexts.shape[1]) + 2,
    )


def every_decision(parts: Sequence[Images], *, beta: float, lam: float) -> LearningResult:
    """Each decision downloads before and uploads after: FedLinUCB with α = 0, `join` and `refresh="arrival"`."""
    rule = FedLinUCB(dim=parts[0].dim, alpha=0.0, beta=beta, lam=lam, join=True, refresh="arrival")
    server, agents = rule.server(), [rule.agent(str(m)) for m in range(len(parts))]
    rewards, n_messages = [], 0
    for m, n in _order(parts):
        agent = agents[m]
        if (pull := agent.arrive()) is not None:
            agent.adopt(server.receive(pull))
            n_messages += 1
        decision = agent.choose(parts[m].actions(n))
        rewards.append(parts[m].reward(n, decision.index or 0))
        if (upload := agent.observe(decision, rewards[-1])) is not None:
            agent.adopt(server.receive(upload))  # a receipt: the download comes on arrival
            n_messages += 1
    return LearningResult("two messages per decision", tuple(rewards), n_messages, n_messages * n_bytes(parts[0].dim))


def everything_shared(parts: Sequence[Images], *, beta: float, lam: float) -> LearningResult:
    """One model learns from each image immediately; counted as an upload and a download to all agents."""
    agent = OFUL(dim=parts[0].dim, beta=beta, lam=lam).agent("all")
    rewards = []
    for m, n in _order(parts):
        decision = agent.choose(parts[m].actions(n))
        rewards.append(parts[m].reward(n, decision.index or 0))
        agent.observe(decision, rewards[-1])
    n_messages = sharing_cost(parts).broadcast
    return LearningResult("a broadcast per decision", tuple(rewards), n_messages, n_messages * n_bytes(parts[0].dim))


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
    return SufficientStats.of(rows, rewards)


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
