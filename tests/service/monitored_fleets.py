"""Fleets of real FedLinUCB agents, monitored while they learn: actions are chosen adaptively, uploads are triggered."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from fedbandit import FedLinUCB
from fedbandit.algorithms.messages import packed_bytes
from fedbandit.core.statistics import SufficientStats
from fedbandit.service.assumptions import AssumptionCheck, DataSums, data_checks
from fedbandit.service.model import Model
from fedbandit.service.stores.base import AgentSum
from fedbandit.service.stores.checkpoints import Checkpoint, KeptCheckpoint, make_room
from tests.service.uploads import settings


@dataclass
class MonitoredFleet:
    """Agents of one rule in a world with K fresh actions per round; `signs` multiply θ, by agent."""

    dim: int
    n_agents: int
    seed: int
    signs: tuple[int, ...] = (1,)
    noise: float = 0.3
    alpha: float = 1.0
    beta: float = 0.5
    n_actions: int = 10
    clicks: bool = False  # rewards of 0 and 1
    n_obs: int = 0
    version: int = 0
    checkpoints: list[Checkpoint] = field(default_factory=list)
    options: dict[str, object] = field(default_factory=dict)  # settings of the model

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        rule = FedLinUCB(dim=self.dim, alpha=self.alpha, beta=self.beta, lam=1.0, join=True)
        self.server = rule.server()
        self.agents = [rule.agent(f"agent-{m}") for m in range(self.n_agents)]
        self.totals = [SufficientStats.zeros(self.dim) for _ in self.agents]
        self.flip = 1
        theta = self.rng.standard_normal(self.dim)
        self.theta = theta / np.linalg.norm(theta)

    def play(self, n_each: int, *, looks: int) -> Iterator[dict[str, AssumptionCheck]]:
        """Rounds of random agents, `n_each` for each on average; the checks at each look, by name."""
        n_rounds = n_each * self.n_agents
        for t in range(1, n_rounds + 1):
            self._round(int(self.rng.integers(self.n_agents)))
            if t * looks // n_rounds > (t - 1) * looks // n_rounds:
                yield {check.name: check for check in self.checks()}

    def _round(self, m: int) -> None:
        agent = self.agents[m]
        pull = agent.arrive()
        if pull is not None:
            agent.adopt(self.server.receive(pull))
        X = self.rng.standard_normal((self.n_actions, self.dim)) / np.sqrt(self.dim)
        decision = agent.choose(X)
        upload = agent.observe(decision, self._reward(X[decision.index], m))
        while upload is not None:
            self.totals[m] = self.totals[m] + upload.stats
            self.version += 1
            upload = agent.adopt(self.server.receive(upload))

    def _reward(self, x: np.ndarray, m: int) -> float:
        mean = self.flip * self.signs[m % len(self.signs)] * float(x @ self.theta)
        if self.clicks:
            return float(self.rng.random() < np.clip(0.3 + 0.3 * mean, 0.0, 1.0))
        return mean + self.noise * float(self.rng.standard_normal())

    def checks(self) -> list[AssumptionCheck]:
        """What the monitor says of the merged data, as at the server; then the state becomes a checkpoint."""
        total = sum(self.totals, SufficientStats.prior(dim=self.dim, lam=1.0))
        model = Model(
            settings(dim=self.dim, **self.options),
            "uid",
            0.0,
            version=self.version,
            n_uploads=self.version,
            n_obs=total.n_obs,
            n_agents=self.n_agents,
        )
        sums = [AgentSum(f"agent-{m}", part.n_obs, packed_bytes(part)) for m, part in enumerate(self.totals)]
        found = data_checks(model, packed_bytes(total), DataSums(sums, self.checkpoints))
        new = Checkpoint(float(self.version), self.version, 0, total.n_obs, packed_bytes(total))
        kept = [KeptCheckpoint(i, item.version, 0, item.n_obs) for i, item in enumerate(self.checkpoints)]
        is_kept, gone = make_room(kept, new)
        self.checkpoints = [item for i, item in enumerate(self.checkpoints) if i not in gone] + [new] * is_kept
        return found
