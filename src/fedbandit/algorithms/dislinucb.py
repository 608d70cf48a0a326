"""DisLinUCB (Wang et al. 2020): everybody synchronises when one agent's growth times its waiting exceeds D."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from fedbandit.algorithms.base import BaseAgent
from fedbandit.algorithms.messages import Download, Poll, Pull, Receipt, Reply, Request, Upload
from fedbandit.algorithms.policies import PolicyRule
from fedbandit.algorithms.rules import one_of
from fedbandit.algorithms.scoring import DecisionBasis
from fedbandit.algorithms.server import BaseServer
from fedbandit.core.arrays import Matrix, Vector, at_least
from fedbandit.core.eager import EagerEstimate
from fedbandit.core.growth import exceeds
from fedbandit.core.statistics import SufficientStats
from fedbandit.core.structure import eager_estimate, saved_estimate
from fedbandit.registry import Algorithm, RunSizes, option
from fedbandit.wire.identifiers import check_agent_id


def _matching_threshold(run: RunSizes) -> float:
    """T/(M d log T), with which the authors match the regret of a single agent."""
    return run.n_rounds / (run.n_agents * run.dim * math.log(max(run.n_rounds, 2)))


@dataclass(frozen=True, kw_only=True)
class DisLinUCB(PolicyRule):
    """The synchronous baseline: `threshold` is D, and a synchronisation costs an upload and a download of every agent.

    An agent asks for one when log(det V_i / det V_last) · n_i > D, with n_i its own rounds since the last, or with
    `clock` "global" the rounds of the whole fleet since then, where a driver such as the simulator tells them.
    `enrolment` tells a simulation when the server hears of an agent: at the "start", or at its "arrival" (first round).
    """

    takes_blocks: ClassVar[bool] = True
    without_proof: ClassVar[str] = (
        "each agent adds its own data to what was synchronised, so that it holds for one agent between two "
        "synchronisations with probability 1 - delta, and not for all of them together"
    )

    threshold: float = field(
        metadata=option(
            "D: growth times rounds since the last synchronisation that triggers the next one",
            default=_matching_threshold,
            default_help="T/(M d log T), chosen by its authors to match the regret",
            letter="D",
        )
    )
    enrolment: str = field(
        default="start",
        metadata=option(
            "when a simulated server learns of an agent: at the 'start', or at its 'arrival' (first round)"
        ),
    )

    clock: str | None = field(
        default=None,
        metadata=option("what n counts since the last synchronisation: 'own' rounds of the agent, or 'global' rounds"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self.enrolment, ("start", "arrival"), "enrolment")
        if self.clock is not None:
            one_of(self.clock, ("own", "global"), "clock")
        object.__setattr__(self, "threshold", at_least(self.threshold, 0.0, "threshold"))

    def to_dict(self) -> dict[str, Any]:
        """As for every rule; without the clock where none was chosen, so that old runs keep their ids."""
        return {name: value for name, value in super().to_dict().items() if name != "clock" or value is not None}

    def agent(self, agent_id: str, *, incarnation: str | None = None) -> DisLinUCBAgent:
        """A new agent at the prior."""
        return DisLinUCBAgent(self, check_agent_id(agent_id), incarnation)

    def server(self) -> DisLinUCBServer:
        """A new server at the prior; `enroll` the whole fleet before the first round."""
        return DisLinUCBServer(self, self.prior)


class DisLinUCBAgent(BaseAgent):
    """Decides eagerly on λI + W_syn + W_i: what all shared, and its own since then."""

    rule: DisLinUCB

    def __init__(self, rule: DisLinUCB, agent_id: str, incarnation: str | None) -> None:
        super().__init__(rule, agent_id, incarnation)
        self.synchronised: SufficientStats = rule.prior
        self.estimate: EagerEstimate | None = None
        self.n_since = 0
        self.synchronised_at = 0  # by the global clock

    def _estimate(self) -> EagerEstimate:
        if self.estimate is None:
            self.estimate = eager_estimate(self.synchronised)
        return self.estimate

    def _basis(self) -> DecisionBasis:
        estimate = self._estimate()
        beta = self.rule.beta_for(estimate, n_obs=estimate.stats.n_obs, version=self.model_version)
        return DecisionBasis(estimate, beta, self.model_version)

    def _absorb(self, x: Vector, reward: float) -> Upload | None:
        self._gather(x, reward)
        self._estimate().observe(x, reward)
        self.n_since += 1
        self.n_switches += 1
        return self._synchronise_if_due()

    def _absorb_batch(self, stats: SufficientStats, X: Matrix, y: Vector) -> Upload | None:
        self._gather_batch(stats)
        self._estimate().add(stats)
        self.n_since += stats.n_obs
        self.n_switches += 1
        return self._synchronise_if_due()

    def _synchronise_if_due(self) -> Upload | None:
        growth = self._estimate().tracker.value
        if self.in_flight is None and exceeds(growth * self._rounds_since(), self.rule.threshold):
            return self._send(growth)
        return None

    def _rounds_since(self) -> int:
        """n: rounds since the last synchronisation, by the rule's clock."""
        if self.rule.clock == "global":
            return max(self.now - self.synchronised_at, self.n_since)
        return self.n_since

    def _take(self, download: Download) -> Upload | None:
        merged = self.sequence - (self.in_flight is not None)
        if download.version < self.model_version or download.acknowledged < merged:
            return None  # late: made before what this agent has uploaded since
        self.synchronised = download.stats
        if self.in_flight is not None:
            self.synchronised = self.synchronised + self.in_flight.stats
        self.model_version = download.version
        self.n_switches += 1
        self.estimate = None
        self.n_since = 0
        self.synchronised_at = self.now
        if self._local is not None and self._local.n_obs > 0:
            self._estimate().add(self._local.snapshot())
            self.n_since = self._local.n_obs
            return self._synchronise_if_due()
        return None

    def _state(self) -> dict[str, Any]:
        common = {"synchronised": self.synchronised, "n_since": self.n_since, "clock": [self.now, self.synchronised_at]}
        if self.estimate is None:
            return {**common, "stats": None}
        return {
            **common,
            "stats": self.estimate.stats.snapshot(),
            "tracker": self.estimate.tracker.state(),
        }

    def _restore(self, state: dict[str, Any]) -> None:
        self.synchronised = state["synchronised"]
        self.n_since = state["n_since"]
        self.now, self.synchronised_at = state.get("clock", (0, 0))  # states of before have no clock
        if state["stats"] is not None:
            self.estimate = saved_estimate(state["stats"], state["tracker"])


class DisLinUCBServer(BaseServer):
    """Polls everybody when one agent asks, and answers everybody when all have answered."""

    rule: DisLinUCB

    def __init__(self, rule: DisLinUCB, prior: SufficientStats) -> None:
        super().__init__(rule, prior)
        self.fleet: dict[str, None] = {}
        self.awaited: set[str] = set()

    def enroll(self, agent_ids: Iterable[str]) -> None:
        self.fleet.update(dict.fromkeys(agent_ids))

    def receive(self, message: Request) -> Download | Receipt | tuple[Reply, ...]:
        """Merge an upload once; poll the others, or answer all when it was the last one awaited."""
        if isinstance(message, Pull):
            return self._download(message.agent_id, message.incarnation)
        if not self._merge_once(message) and message.agent_id not in self.awaited:
            return self._download(message.agent_id, message.incarnation)
        self.fleet.setdefault(message.agent_id)
        if not self.awaited:
            self.awaited = set(self.fleet) - {message.agent_id}
            polls = tuple(Poll(agent_id) for agent_id in self.fleet if agent_id in self.awaited)
            return polls or (self._download(message.agent_id),)
        self.awaited.discard(message.agent_id)
        if self.awaited:
            return ()
        return tuple(self._download(agent_id) for agent_id in self.fleet)

    def _state(self) -> dict[str, Any]:
        return {"fleet": list(self.fleet), "awaited": sorted(self.awaited)}

    def _restore(self, state: dict[str, Any]) -> None:
        self.enroll(state["fleet"])
        self.awaited = set(state["awaited"])


DISLINUCB = Algorithm(
    name="dislinucb", rule=DisLinUCB, example={"threshold": 2.0}, variants={"global": {"clock": "global"}}
)
