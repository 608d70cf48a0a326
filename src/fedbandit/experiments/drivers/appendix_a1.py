"""The example of Appendix A.1: two arms, ±1 rewards, and every agent plays two rounds. What is the server's bias?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedbandit.algorithms.base import BaseAgent
from fedbandit.algorithms.decision import Decision
from fedbandit.algorithms.messages import Upload
from fedbandit.core.arrays import Matrix
from fedbandit.core.theory import exogenous_radius
from fedbandit.experiments.drivers.base import RunOutcome
from fedbandit.experiments.spec import RunSpec
from fedbandit.simulation.participation import Explicit
from fedbandit.simulation.runner import SimulatedFleet, play_rounds, rounds_of
from fedbandit.simulation.worlds import Block, DrawnStream, Index, Stream

ARMS: Matrix = np.array([[3.0, 0.0], [0.0, 1 / math.sqrt(10)]])  # A and B
DELTA = 0.01


@dataclass(frozen=True)
class TwoArms:
    """Arms A and B in every round, θ* = 0, and a reward of ±1 by a fair coin."""

    name: ClassVar[str] = "two-arms"
    seed: int
    dim: int = 2
    block_rounds: int = 1024

    def stream(self, seed: np.random.SeedSequence) -> Stream:
        """The coins of this world's own seed, so that all rules see the same."""
        coins = np.random.default_rng(np.random.SeedSequence([self.seed, 1]))
        return DrawnStream(np.zeros(2), coins, coins, 0.0, self._block)

    def _block(self, coins: np.random.Generator, active: Index) -> Block:
        n = len(active)
        rewards = coins.choice([-1.0, 1.0], size=n)
        return Block(np.empty(0), np.tile(rewards[:, None], 2), table=ARMS, rows=np.tile(np.arange(2), (n, 1)))


class ServerView(SimulatedFleet):
    """A fleet that records the state of the server's data after certain numbers of agents."""

    def __init__(self, spec: RunSpec, marks: set[int]) -> None:
        super().__init__(spec.make_rule(), 0)  # not enrolled: a server that pushes would check all agents per upload
        self.marks, self.n_played = marks, 0
        self.rows: list[tuple[float, ...]] = []

    def end_round(self, agent: BaseAgent, decision: Decision, reward: float, upload: Upload | None) -> None:
        """Deliver the upload, then record."""
        super().end_round(agent, decision, reward, upload)
        self.n_played += 1
        if self.n_played % 2 == 0 and self.n_played // 2 in self.marks:
            self.rows.append((self.n_played, self.n_played // 2, *self._mean_and_error()))

    def _mean_and_error(self) -> tuple[float, float]:
        """Mean reward of the data at the server, and the error of its estimate in radii."""
        stats = self.server.stats
        if stats.n_obs == 0:
            return 0.0, 0.0
        prior = self.rule.server().stats.Sigma
        rho = float(np.linalg.slogdet(stats.Sigma)[1] - np.linalg.slogdet(prior)[1])
        theta_hat = np.linalg.solve(stats.Sigma, stats.b)
        error = math.sqrt(max(float(theta_hat @ stats.Sigma @ theta_hat), 0.0))
        beta = exogenous_radius(rho=rho, lam=float(prior[0, 0]), noise_scale=1.0, theta_bound=0.0, delta=DELTA)
        return stats.reward_sum / stats.n_obs, error / beta


def two_rounds_each(spec: RunSpec, seed: int) -> RunOutcome:
    """Play A.1: agents are active one after another, two rounds each.

    Columns, one row for each recorded number of agents: `agents`, the server's `mean_reward` of its data (all of it is
    arm A's), and `error_in_radii`, ‖θ̂ − θ*‖_Σ in units of OFUL's radius at δ = 0.01, which guarantees at most 1.
    """
    M = spec.n_agents
    fleet = ServerView(spec, {*np.geomspace(min(4, M), M, 12).round().astype(int).tolist(), M})
    in_turn = Explicit(tuple(np.repeat(np.arange(M), 2).tolist()))
    rounds = rounds_of(TwoArms(seed), in_turn, n_agents=M, n_rounds=2 * M, seed=seed)
    play_rounds(fleet, *rounds, n_rounds=2 * M, record=[2 * M])
    names = ("rounds", "agents", "mean_reward", "error_in_radii")
    columns = dict(zip(names, np.array(fleet.rows).T, strict=True))
    return RunOutcome(columns, {"mean_reward": float(columns["mean_reward"][-1])})
