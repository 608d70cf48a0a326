"""Async-LinUCB (Li and Wang 2022): agents upload on their own, the server pushes to whom it finds out of date."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from fedbandit.algorithms.base import BaseAgent
from fedbandit.algorithms.messages import Download, Pull, Receipt, Reply, Request, Upload
from fedbandit.algorithms.policies import PolicyRule
from fedbandit.algorithms.rules import one_of
from fedbandit.algorithms.scoring import DecisionBasis
from fedbandit.algorithms.server import BaseServer
from fedbandit.core.arrays import Matrix, Vector, at_least
from fedbandit.core.eager import EagerEstimate
from fedbandit.core.growth import exceeds
from fedbandit.core.ridge import factorise
from fedbandit.core.statistics import SufficientStats
from fedbandit.core.structure import eager_estimate, saved_estimate
from fedbandit.registry import Algorithm, option
from fedbandit.wire.identifiers import check_agent_id


@dataclass(frozen=True, kw_only=True)
class AsyncLinUCB(PolicyRule):
    """Upload when det(V_i+λI)/det(V_i−ΔV_i+λI) > gamma_up; push to j when det(V_g+λI)/det(V_g−ΔV_−j+λI) > gamma_down.

    Both are ratios; 1 means always. The policy is eager and is refreshed at a push. (The public code of the authors
    forgets that refresh and loses a quarter to a third in regret; this is the algorithm as the article states it.)
    A push carries the whole of V_g rather than the part that j lacks: the numbers are as many, and j ends up with
    the same sum. `enrolment` tells a simulation when the server hears of an agent: at the "start", or at its "arrival"
    (first round), which is how Li and Wang's published figures come about.
    """

    takes_blocks: ClassVar[bool] = True
    without_proof: ClassVar[str] = (
        "it decides on rewards in its own buffer, so that what it uploads depends on them and the server's mean is "
        "biased"
    )

    gamma_up: float = field(
        metadata=option("determinant ratio above which an agent uploads; 1: always", default=6.0, letter="g")
    )
    gamma_down: float = field(
        metadata=option("determinant ratio above which the server pushes its model to an agent; 1: always", default=6.0)
    )
    enrolment: str = field(
        default="start",
        metadata=option(
            "when a simulated server learns of an agent: at the 'start', or at its 'arrival' (first round)"
        ),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self.enrolment, ("start", "arrival"), "enrolment")
        object.__setattr__(self, "gamma_up", at_least(self.gamma_up, 1.0, "gamma_up"))
        object.__setattr__(self, "gamma_down", at_least(self.gamma_down, 1.0, "gamma_down"))

    def agent(self, agent_id: str, *, incarnation: str | None = None) -> AsyncLinUCBAgent:
        """A new agent at the prior."""
        return AsyncLinUCBAgent(self, check_agent_id(agent_id), incarnation)

    def server(self) -> AsyncLinUCBServer:
        """A new server at the prior; `enroll` the whole fleet before the first round."""
        return AsyncLinUCBServer(self, self.prior)


class AsyncLinUCBAgent(BaseAgent):
    """Decides eagerly on all it has downloaded and all its own data."""

    rule: AsyncLinUCB

    def __init__(self, rule: AsyncLinUCB, agent_id: str, incarnation: str | None) -> None:
        super().__init__(rule, agent_id, incarnation)
        self.shared: SufficientStats = rule.prior  # λI + V_i − ΔV_i: what the server knows that this agent has
        self.estimate: EagerEstimate | None = None
        self._threshold = math.log(rule.gamma_up)

    def _estimate(self) -> EagerEstimate:
        """λI + V_i, tracked from λI + V_i − ΔV_i, so that its growth is the trigger's."""
        if self.estimate is None:
            self.estimate = eager_estimate(self.shared)
        return self.estimate

    def _basis(self) -> DecisionBasis:
        estimate = self._estimate()
        beta = self.rule.beta_for(estimate, n_obs=estimate.stats.n_obs, version=self.model_version)
        return DecisionBasis(estimate, beta, self.model_version)

    def _absorb(self, x: Vector, reward: float) -> Upload | None:
        estimate = self._estimate()
        self._gather(x, reward)
        estimate.observe(x, reward)
        self.n_switches += 1
        return self._upload_if_due()

    def _absorb_batch(self, stats: SufficientStats, X: Matrix, y: Vector) -> Upload | None:
        estimate = self._estimate()
        self._gather_batch(stats)
        estimate.add(stats)
        self.n_switches += 1
        return self._upload_if_due()

    def _upload_if_due(self) -> Upload | None:
        growth = self._estimate().tracker.value
        if self.in_flight is not None or self._local is None or self._local.n_obs == 0:
            return None
        if not exceeds(growth, self._threshold):
            return None
        upload = self._send(growth)
        self.shared = self.shared + upload.stats
        self._estimate().tracker.rebase()
        return upload

    def _take(self, download: Download) -> Upload | None:
        merged = self.sequence - (self.in_flight is not None)
        if download.version < self.model_version or download.acknowledged < merged:
            return None  # late: made before what this agent has uploaded since
        self.shared = download.stats
        if self.in_flight is not None:
            self.shared = self.shared + self.in_flight.stats
        self.model_version = download.version
        self.n_switches += 1
        self.estimate = eager_estimate(self.shared)
        if self._local is not None and self._local.n_obs > 0:
            self.estimate.add(self._local.snapshot())
        return self._upload_if_due()

    def _state(self) -> dict[str, Any]:
        if self.estimate is None:
            return {"shared": self.shared, "stats": None}
        return {
            "shared": self.shared,
            "stats": self.estimate.stats.snapshot(),
            "tracker": self.estimate.tracker.state(),
        }

    def _restore(self, state: dict[str, Any]) -> None:
        self.shared = state["shared"]
        if state["stats"] is not None:
            self.estimate = saved_estimate(state["stats"], state["tracker"])


class AsyncLinUCBServer(BaseServer):
    """Keeps, for every agent, what that agent knows; pushes where the gap has grown past gamma_down."""

    rule: AsyncLinUCB

    def __init__(self, rule: AsyncLinUCB, prior: SufficientStats) -> None:
        super().__init__(rule, prior)
        self._prior_log_det = factorise(prior.Sigma).log_det
        self._threshold = math.log(rule.gamma_down)
        # What agent j knows of the server's sum, λI + V_g − ΔV_−j, and its log-determinant: they change only when j
        # uploads or is pushed to, so an upload costs two factorisations, not one per agent.
        self.known: dict[str, tuple[SufficientStats, float]] = {}

    def enroll(self, agent_ids: Iterable[str]) -> None:
        for agent_id in agent_ids:
            self.known.setdefault(agent_id, (self.rule.prior, self._prior_log_det))

    def receive(self, message: Request) -> Download | Receipt | tuple[Reply, ...]:
        """Merge an upload once, then push to every agent whose knowledge has fallen behind."""
        if isinstance(message, Pull):
            return self._pushed(message.agent_id, factorise(self.stats.Sigma).log_det)
        if not self._merge_once(message):
            return self._pushed(message.agent_id, factorise(self.stats.Sigma).log_det)
        self.enroll([message.agent_id])
        own = self.known[message.agent_id][0] + message.stats
        self.known[message.agent_id] = (own, factorise(own.Sigma).log_det)
        log_det = factorise(self.stats.Sigma).log_det
        behind = [j for j, (_, known) in self.known.items() if exceeds(log_det - known, self._threshold)]
        replies: list[Reply] = [self._pushed(agent_id, log_det) for agent_id in behind]
        if message.agent_id not in behind:
            replies.append(Receipt(message.agent_id, message.sequence))
        return tuple(replies)

    def _pushed(self, agent_id: str, log_det: float) -> Download:
        self.known[agent_id] = (self.stats, log_det)
        return self._download(agent_id)

    def _state(self) -> dict[str, Any]:
        return {"known": {agent_id: stats for agent_id, (stats, _) in self.known.items()}}

    def _restore(self, state: dict[str, Any]) -> None:
        self.known = {name: (stats, factorise(stats.Sigma).log_det) for name, stats in state["known"].items()}


ASYNC_LINUCB = Algorithm(name="async-linucb", rule=AsyncLinUCB, example={"gamma_up": 2.0, "gamma_down": 2.0})
