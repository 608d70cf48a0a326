"""OFUL (Abbasi-Yadkori et al. 2011): alone, with rare switching, or with everything shared at once."""

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
from fedbandit.algorithms.send_each import SendEachAgent
from fedbandit.algorithms.server import BaseServer
from fedbandit.core import radius as radii
from fedbandit.core.arrays import Matrix, Vector, at_least
from fedbandit.core.eager import EagerEstimate
from fedbandit.core.growth import GrowthTracker, exceeds
from fedbandit.core.statistics import SufficientStats
from fedbandit.core.structure import eager_estimate, growth_tracker, ridge_model, saved_estimate, saved_tracker
from fedbandit.registry import EVERY_TRAIT, Algorithm, option
from fedbandit.wire.identifiers import check_agent_id


@dataclass(frozen=True, kw_only=True)
class OFUL(PolicyRule):
    """The two ends of federation.

    `mode="independent"`: every agent learns alone, no messages. `mode="shared"`: one model for all, each round costs an
    upload and a download for every agent. `switching=C` takes a new model only when det Σ > (1 + C) det of the last
    (independent agents), which is FedLinUCB with a single agent and α = C.
    """

    takes_blocks: ClassVar[bool] = True

    mode: str = "independent"
    switching: float | None = field(
        default=None, metadata=option("C: take a new model only when det Σ has grown by 1 + C")
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self.mode, ("independent", "shared"), "mode")
        if self.switching is not None:
            object.__setattr__(self, "switching", at_least(self.switching, 0.0, "switching"))
            one_of(self.mode, ("independent",), "mode with rare switching")

    def agent(self, agent_id: str, *, incarnation: str | None = None) -> BaseAgent:
        """A new agent at the prior."""
        name = check_agent_id(agent_id)
        if self.mode == "shared":
            return SharedAgent(self, name, incarnation)
        if self.switching is None:
            return IndependentAgent(self, name, incarnation)
        return RareSwitchingAgent(self, name, incarnation)

    def check_fleet(self, n_agents: int) -> None:
        if self.mode == "independent" and n_agents > 1 and isinstance(self.radius, radii.Exogenous | radii.Adaptive):
            self._warn_unproven(
                f"fb.radius.{self.radius.kind} holds for each of {n_agents} independent OFUL agents by itself with "
                f"probability 1 - delta, and not for all of them together; for that divide delta by {n_agents}",
                stacklevel=3,  # this, the driver
            )

    def server(self) -> SharedServer:
        """A new server at the prior; independent agents never speak to it."""
        return SharedServer(self, self.prior)


class IndependentAgent(BaseAgent):
    """A new model each round, from its own data only."""

    rule: OFUL

    def __init__(self, rule: OFUL, agent_id: str, incarnation: str | None) -> None:
        super().__init__(rule, agent_id, incarnation)
        self.estimate: EagerEstimate | None = None

    def _basis(self) -> DecisionBasis:
        if self.estimate is None:
            prior = self.rule.prior_model
            return DecisionBasis(prior, self.rule.beta_for(prior, n_obs=0, version=0), 0)
        n_obs = self.estimate.stats.n_obs
        return DecisionBasis(
            self.estimate, self.rule.beta_for(self.estimate, n_obs=n_obs, version=n_obs), self.model_version
        )

    def _absorb(self, x: Vector, reward: float) -> Upload | None:
        if self.estimate is None:
            self.estimate = eager_estimate(self.rule.prior)
        self.estimate.observe(x, reward)
        self._switched()
        return None

    def _absorb_batch(self, stats: SufficientStats, X: Matrix, y: Vector) -> Upload | None:
        if self.estimate is None:
            self.estimate = eager_estimate(self.rule.prior)
        self.estimate.add(stats)
        self._switched()
        return None

    def _switched(self) -> None:
        self.model_version += 1
        self.n_switches += 1

    def _take(self, download: Download) -> Upload | None:
        return None

    def _state(self) -> dict[str, Any]:
        if self.estimate is None:
            return {"stats": None}
        return {"stats": self.estimate.stats.snapshot(), "tracker": self.estimate.tracker.state()}

    def _restore(self, state: dict[str, Any]) -> None:
        if state["stats"] is not None:
            self.estimate = saved_estimate(state["stats"], state["tracker"])


class RareSwitchingAgent(BaseAgent):
    """A new model only when the determinant has grown by 1 + C (their section 5.1)."""

    rule: OFUL

    def __init__(self, rule: OFUL, agent_id: str, incarnation: str | None) -> None:
        super().__init__(rule, agent_id, incarnation)
        self.model = rule.prior_model
        self.tracker: GrowthTracker | None = None
        self._threshold = math.log1p(rule.switching or 0.0)

    def _basis(self) -> DecisionBasis:
        model, version = self.model, self.model_version
        return DecisionBasis(model, self.rule.beta_for(model, n_obs=model.stats.n_obs, version=version), version)

    def _absorb(self, x: Vector, reward: float) -> Upload | None:
        self._gather(x, reward)
        tracker = self._tracking()
        tracker.observe(x)
        if tracker.is_stale:
            tracker.restart(self.model.stats.Sigma + self.local.Sigma)
        self._switch_if_due()
        return None

    def _absorb_batch(self, stats: SufficientStats, X: Matrix, y: Vector) -> Upload | None:
        self._gather_batch(stats)
        self._tracking().restart(self.model.stats.Sigma + self.local.Sigma)
        self._switch_if_due()
        return None

    def _tracking(self) -> GrowthTracker:
        if self.tracker is None:
            self.tracker = growth_tracker(self.model)
        return self.tracker

    def _switch_if_due(self) -> None:
        if self._local is not None and exceeds(self._tracking().value, self._threshold):
            self.model = ridge_model(self.model.stats + self._local.snapshot())
            self._local.clear()
            self.tracker = None
            self.model_version += 1
            self.n_switches += 1

    def _take(self, download: Download) -> Upload | None:
        return None

    def _state(self) -> dict[str, Any]:
        tracker = None if self.tracker is None else self.tracker.state()
        return {"model": self.model.stats, "tracker": tracker}

    def _restore(self, state: dict[str, Any]) -> None:
        self.model = ridge_model(state["model"])
        if state["tracker"] is not None:
            self.tracker = saved_tracker(state["tracker"], self.model)


class SharedAgent(SendEachAgent):
    """Sends every observation at once and decides on the model of all."""

    rule: OFUL

    def _basis(self) -> DecisionBasis:
        model, version = self.model, self.model_version
        return DecisionBasis(model, self.rule.beta_for(model, n_obs=model.stats.n_obs, version=version), version)


class SharedServer(BaseServer):
    """Merges each upload and sends the new model to everybody."""

    rule: OFUL

    def __init__(self, rule: OFUL, prior: SufficientStats) -> None:
        super().__init__(rule, prior)
        self.fleet: dict[str, None] = {}

    def enroll(self, agent_ids: Iterable[str]) -> None:
        self.fleet.update(dict.fromkeys(agent_ids))

    def receive(self, message: Request) -> Download | Receipt | tuple[Reply, ...]:
        """Merge an upload once; the new model goes to the whole fleet."""
        if isinstance(message, Pull):
            return self._download(message.agent_id, message.incarnation)
        if not self._merge_once(message):
            return self._download(message.agent_id, message.incarnation)
        self.fleet.setdefault(message.agent_id)
        return tuple(self._download(agent_id) for agent_id in self.fleet)

    def _state(self) -> dict[str, Any]:
        return {"fleet": list(self.fleet)}

    def _restore(self, state: dict[str, Any]) -> None:
        self.enroll(state["fleet"])


OFUL_SHARED = Algorithm(name="oful-shared", rule=OFUL, fixed={"mode": "shared", "switching": None})
OFUL_INDEPENDENT = Algorithm(
    name="oful-independent",
    rule=OFUL,
    fixed={"mode": "independent"},
    variants={
        "rare-switching": {"switching": 1.0},
        "thompson": {"policy": "thompson", "explore": 0.1, "propensity_samples": 5},
    },
    traits=EVERY_TRAIT - {"uploads", "sums"},
)
