"""FedLinUCB: Algorithm 1 of the paper, with the options of docs/theory.md that keep its guarantee."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedbandit.algorithms.adoption_check import AdoptionCheck
from fedbandit.algorithms.base import BaseAgent
from fedbandit.algorithms.messages import Download, Pull, Receipt, Request, Upload
from fedbandit.algorithms.rules import LinearRule, one_of
from fedbandit.algorithms.scoring import DecisionBasis
from fedbandit.algorithms.server import BaseServer
from fedbandit.core import radius as radii
from fedbandit.core.arrays import Matrix, Vector, at_least, whole_at_least
from fedbandit.core.growth import GrowthTracker, exceeds
from fedbandit.core.products import times_vector
from fedbandit.core.ridge import RidgeModel
from fedbandit.core.statistics import SufficientStats
from fedbandit.errors import InvalidParameter
from fedbandit.registry import Algorithm, option
from fedbandit.wire.identifiers import check_agent_id


@dataclass(frozen=True, kw_only=True)
class FedLinUCB(LinearRule):
    """Agents that decide alone and speak to the server only when they have learnt something worth sharing.

    `alpha` is the determinant growth that triggers an exchange (0: always, inf: never); it is not exploration, which
    is `beta`, a number or a `fb.radius`. Options beyond the paper, each with the same guarantee: `join` downloads once
    before the first decision, `refresh="arrival"` delays the download of an exchange to the agent's next round,
    `trigger="spectral"` exchanges when λ_max(Σ_m⁻¹ Σ_loc) > α. `min_upload` is the fewest observations that travel
    together; it costs what a larger α costs (`fb.theory.held_back_alpha`), so radii that depend on α refuse it.
    """

    alpha: float = field(
        default=1.0,
        metadata=option(
            "determinant growth that triggers an exchange; 0: always, inf: never. Not exploration", letter="a"
        ),
    )
    join: bool = field(default=False, metadata=option("download once before the first decision"))
    refresh: str = field(
        default="upload",
        metadata=option(
            "when the download of an exchange happens: at the 'upload', or at the agent's next round ('arrival')"
        ),
    )
    trigger: str = field(default="determinant", metadata=option("'determinant' (the paper) or 'spectral'"))
    min_upload: int = field(default=1, metadata=option("fewest observations per upload"))

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "min_upload", whole_at_least(self.min_upload, 1, "min_upload"))
        if self.min_upload > 1 and isinstance(self.radius, radii.Adaptive | radii.Paper):
            raise InvalidParameter(
                f"this radius holds while buffers stay below alpha, and min_upload = {self.min_upload} lets them grow; "
                f"use fb.radius.exogenous, or a larger alpha (fb.theory.held_back_alpha) instead of min_upload"
            )
        object.__setattr__(self, "alpha", at_least(self.alpha, 0.0, "alpha"))
        one_of(self.refresh, ("upload", "arrival"), "refresh")
        one_of(self.trigger, ("determinant", "spectral"), "trigger")

    def to_dict(self) -> dict[str, Any]:
        values = super().to_dict()
        if self.min_upload == 1:  # as it was written before there was a choice: ids of specs stay
            del values["min_upload"]
        return values

    @property
    def trigger_level(self) -> float:
        return self.alpha

    @property
    def trigger_kind(self) -> str:
        return self.trigger

    def agent(self, agent_id: str, *, incarnation: str | None = None) -> FedLinUCBAgent:
        """A new agent at the prior."""
        return FedLinUCBAgent(self, check_agent_id(agent_id), incarnation)

    def server(self) -> FedLinUCBServer:
        """A new server at the prior."""
        return FedLinUCBServer(self, self.prior)


class FedLinUCBAgent(BaseAgent):
    """Decides on its model only, never on its buffer: the policy is lazy and changes only at an exchange."""

    rule: FedLinUCB

    def __init__(self, rule: FedLinUCB, agent_id: str, incarnation: str | None) -> None:
        super().__init__(rule, agent_id, incarnation)
        self._deciding = nullcontext()  # judgements are replaced, never changed
        self.model: RidgeModel = rule.prior_model
        self._judgement: DecisionBasis | None = None
        self._tracker: GrowthTracker | None = None
        self._threshold = math.log1p(rule.alpha)
        self._top_bound = 0.0  # ≥ λ_max(Σ_m⁻¹ Σ_loc), for the spectral trigger
        self._wants_model = rule.join
        self._own_buffer = False  # whether this agent held data that the model lacks when it adopted the model
        self._spectral = rule.trigger == "spectral"
        self._answer_watch: AdoptionCheck | None = AdoptionCheck()

    # -- deciding

    def _basis(self) -> DecisionBasis:
        judgement = self._judgement
        if judgement is None:
            with self._lock:
                model, version = self.model, self.model_version
                held = self._own_buffer
                beta = self.rule.beta_for(model, n_obs=model.stats.n_obs, version=version, own_buffer=held)
                judgement = self._judgement = DecisionBasis(model, beta, version)
        return judgement

    @property
    def beta(self) -> float:
        """The confidence radius of the current model."""
        return self._basis().beta

    @property
    def growth(self) -> float:
        """log det(Σ_m + what was gathered since) − log det Σ_m; an exchange is due above log(1 + α)."""
        with self._lock:
            return 0.0 if self._tracker is None else self._tracker.value

    # -- learning

    def _absorb(self, x: Vector, reward: float) -> Upload | None:
        self._gather(x, reward)
        if self._tracker is None and self._holds_more_than_one():
            self._count_growth()  # an exception came between a new model and its growth
            return self._exchange_if_due()
        tracker = self._tracker or self._tracking()
        growth = tracker.observe(x)
        if tracker.is_stale:
            self._renew(tracker)
            growth = tracker.value
        if self._spectral:
            z = times_vector(self.model.factor.W, x)
            self._top_bound += float(z @ z)
        return None if growth <= self._threshold else self._exchange_if_due()

    def _renew(self, tracker: GrowthTracker) -> None:
        """Called when rounding may have built up."""
        tracker.restart(self._everything())

    def _absorb_batch(self, stats: SufficientStats, X: Matrix, y: Vector) -> Upload | None:
        self._gather_batch(stats)
        self._count_growth()
        return self._exchange_if_due()

    def _exchange_if_due(self) -> Upload | None:
        """The trigger (Algorithm 1, line 8); one exchange at a time."""
        if self._answer_watch is not None and not self._answer_watch.look(self):
            self._answer_watch = None
        if self.in_flight is None and self.should_upload:
            return self.upload_now()
        return None

    @property
    def should_upload(self) -> bool:
        """Whether det(Σ_m + Σ_loc) > (1 + α) det Σ_m (or the spectral test) holds for the buffer."""
        with self._lock:
            if self._local is None or self._local.n_obs < self.rule.min_upload or self._tracker is None:
                return False
            # det(I + A) ≥ 1 + λ_max(A): the spectral trigger never fires before this one does.
            if not exceeds(self._tracker.value, self._threshold):
                return False
            return not self._spectral or self._spectral_due()

    def _spectral_due(self) -> bool:
        if exceeds(self._top_bound, self.rule.alpha):
            W = self.model.factor.W
            buffer = self._everything() - self.model.stats.Sigma
            self._top_bound = float(np.linalg.eigvalsh(W @ buffer @ W.T)[-1])
        return exceeds(self._top_bound, self.rule.alpha)

    def upload_now(self) -> Upload | None:
        """The buffer as an upload, trigger or not; the unanswered one if there is one, None if too little was seen."""
        with self._lock:
            if self.in_flight is not None:
                return self.in_flight
            if self._local is None or self._local.n_obs < self.rule.min_upload:
                return None
            return self._send(self.growth)

    # -- talking

    def arrive(self) -> Pull | None:
        with self._lock:
            return Pull(self.agent_id, self.incarnation) if self._wants_model else None

    def _received(self, receipt: Receipt) -> Upload | None:
        self._wants_model = self.rule.refresh == "arrival"
        return self._recount()

    def _take(self, download: Download) -> Upload | None:
        if download.version < self.model_version:
            return self._recount()  # a late reply: a newer model is in use, but the upload may be answered now
        self._wants_model = False
        self._tracker = None
        self.model = RidgeModel(download.stats)
        self.model_version = download.version
        self._own_buffer = self.in_flight is not None or (self._local is not None and self._local.n_obs > 0)
        self.n_switches += 1
        self._judgement = None
        return self._recount()

    def _recount(self) -> Upload | None:
        """Growth from the model on; data that was seen while the exchange was under way counts already."""
        self._tracker = None
        self._top_bound = 0.0
        if self.in_flight is None and (self._local is None or self._local.n_obs == 0):
            return None
        self._count_growth()
        return self._exchange_if_due()

    def _count_growth(self) -> None:
        """Exactly, from all data that the model does not hold."""
        tracker = GrowthTracker(self.model.inverse, self.model.log_det)
        tracker.restart(self._everything())
        self._tracker, self._top_bound = tracker, math.inf

    def _holds_more_than_one(self) -> bool:
        return self.in_flight is not None or (self._local is not None and self._local.n_obs > 1)

    def _tracking(self) -> GrowthTracker:
        if self._tracker is None:
            self._tracker = GrowthTracker(self.model.inverse, self.model.log_det)
        return self._tracker

    def _everything(self) -> Matrix:
        """Σ_m and all data that the model does not hold."""
        Sigma = self.model.stats.Sigma
        if self.in_flight is not None:
            Sigma = Sigma + self.in_flight.stats.Sigma
        if self._local is not None:
            Sigma = Sigma + self._local.Sigma
        return Sigma

    # -- saving

    def _state(self) -> dict[str, Any]:
        return {
            "model": self.model.stats,
            "tracker": None if self._tracker is None or self._tracker.is_at_base else self._tracker.state(),
            "top_bound": self._top_bound,
            "wants_model": self._wants_model,
            "own_buffer": self._own_buffer,
        }

    def _restore(self, state: dict[str, Any]) -> None:
        self.model = RidgeModel(state["model"])
        if state["tracker"] is not None:
            self._tracker = GrowthTracker.from_state(state["tracker"], self.dim)
        self._top_bound = state["top_bound"]
        self._wants_model = state["wants_model"]
        self._own_buffer = state["own_buffer"]


class FedLinUCBServer(BaseServer):
    """Adds what it is sent, and answers the sender (Algorithm 1, lines 10 and 12)."""

    rule: FedLinUCB

    def receive(self, message: Request) -> Download | Receipt:
        """Merge an upload once and answer with the new state (or a receipt, when the download waits for arrival)."""
        if isinstance(message, Pull):
            return self._download(message.agent_id, message.incarnation)
        self._merge_once(message)
        download = self._download(message.agent_id, message.incarnation)
        if self.rule.refresh == "arrival":
            return Receipt(message.agent_id, download.acknowledged)
        return download


FEDLINUCB = Algorithm(
    name="fedlinucb",
    rule=FedLinUCB,
    example={"alpha": 1.0},
    variants={
        "join": {"join": True},
        "arrival": {"refresh": "arrival"},
        "spectral": {"trigger": "spectral", "alpha": 0.5},
        "all-options": {"join": True, "refresh": "arrival", "trigger": "spectral", "alpha": 0.5},
    },
)
