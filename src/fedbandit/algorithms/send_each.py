"""An agent that sends each observation at once: what a central learner needs, and the most messages there can be."""

from __future__ import annotations

from typing import Any, Protocol

from fedbandit.algorithms.adoption_check import AdoptionCheck
from fedbandit.algorithms.base import BaseAgent, Rule
from fedbandit.algorithms.messages import Download, Receipt, Upload
from fedbandit.core.arrays import Matrix, Vector
from fedbandit.core.ridge import RidgeModel
from fedbandit.core.statistics import SufficientStats
from fedbandit.core.structure import ridge_model


class RuleWithPrior(Rule, Protocol):
    """A rule that says which model agents start with."""

    @property
    def prior_model(self) -> RidgeModel: ...


class SendEachAgent(BaseAgent):
    """Uploads whenever none is in flight, and decides on the newest model that it was given.

    What is observed while an upload is in flight goes with the next one.
    """

    def __init__(self, rule: RuleWithPrior, agent_id: str, incarnation: str | None) -> None:
        super().__init__(rule, agent_id, incarnation)
        self.model = rule.prior_model
        self._answer_watch: AdoptionCheck | None = AdoptionCheck()

    def _absorb(self, x: Vector, reward: float) -> Upload | None:
        self._gather(x, reward)
        return self._send_if_free()

    def _absorb_batch(self, stats: SufficientStats, X: Matrix, y: Vector) -> Upload | None:
        self._gather_batch(stats)
        return self._send_if_free()

    def _send_if_free(self) -> Upload | None:
        if self._answer_watch is not None and not self._answer_watch.look(self):
            self._answer_watch = None
        if self.in_flight is not None or self._local is None or self._local.n_obs == 0:
            return None
        return self._send(0.0)

    def _received(self, receipt: Receipt) -> Upload | None:
        return self._send_if_free()

    def _take(self, download: Download) -> Upload | None:
        if download.version >= self.model_version:
            self.model = ridge_model(download.stats)
            self.model_version = download.version
            self.n_switches += 1
        return self._send_if_free()

    def _state(self) -> dict[str, Any]:
        return {"model": self.model.stats}

    def _restore(self, state: dict[str, Any]) -> None:
        self.model = ridge_model(state["model"])
