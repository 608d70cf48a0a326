"""FedLinUCB: Algorithm 1 of the paper, with the options of docs/theory.md that keep its guarantee."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from fedbandit.algorithms.adoption_check import AdoptionCheck
from fedbandit.algorithms.base import BaseAgent
from fedbandit.algorithms.epochs import AgentEpoch, EpochServer
from fedbandit.algorithms.messages import Download, Pull, Receipt, Request, Upload
from fedbandit.algorithms.policies import PolicyRule
from fedbandit.algorithms.rules import one_of
from fedbandit.algorithms.scoring import DecisionBasis
from fedbandit.core import drift as drifts
from fedbandit.core import personal as personals
from fedbandit.core import radius as radii
from fedbandit.core.arrays import Matrix, Vector, at_least, whole_at_least
from fedbandit.core.block_growth import BlockGrowthTracker
from fedbandit.core.block_statistics import BlockRunningStats
from fedbandit.core.group_sums import NO_GROUPS
from fedbandit.core.growth import GrowthTracker, exceeds
from fedbandit.core.products import BLOCK, times_vector
from fedbandit.core.ridge import RidgeModel
from fedbandit.core.statistics import SufficientStats
from fedbandit.core.structure import growth_tracker, ridge_model, saved_tracker
from fedbandit.errors import InvalidParameter
from fedbandit.registry import Algorithm, option
from fedbandit.wire.identifiers import check_agent_id


@dataclass(frozen=True, kw_only=True)
class FedLinUCB(PolicyRule):
    """Agents that decide alone and speak to the server only when they have learnt something worth sharing.

    `alpha` is the determinant growth that triggers an exchange (0: always, inf: never); it is not exploration, which
    is `beta`, a number or a `fb.radius`. Options beyond the paper, each with the same guarantee: `join` downloads once
    before the first decision, `refresh="arrival"` delays the download of an exchange to the agent's next round,
    `trigger="spectral"` exchanges when λ_max(Σ_m⁻¹ Σ_loc) > α. `min_upload` is the fewest observations that travel
    together; it costs what a larger α costs (`fb.theory.held_back_alpha`), so radii that depend on α refuse it.
    `personal` gives each agent a parameter of its own (`fb.personal.auto()`, `fb.personal.fixed(kappa)`), without a
    guarantee.
    `max_silence` is the most own rounds without an exchange. `drift` is for a world that changes:
    `fb.drift.restart(…)` detects changes and restarts, `fb.drift.discount(…)` weights observations by their age.
    """

    takes_blocks: ClassVar[bool] = True

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
    personal: personals.Personal | str | float | None = field(
        default=None,
        metadata=option("a parameter of its own for each agent: 'auto', or how much they differ, κ ≥ 0"),
    )
    max_silence: float = field(default=math.inf, metadata=option("most own rounds without an exchange"))
    drift: drifts.AnyDrift | None = field(
        default=None,
        metadata=option("a world that changes: 'restart:R' with the noise scale, or 'discount:H' with the horizon"),
    )

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
        if self.personal is not None:
            object.__setattr__(self, "personal", personals.as_personal(self.personal))
            if not isinstance(self.radius, radii.Fixed):
                self._warn_unproven(
                    f"fb.radius.{self.radius.kind} has no proof with personal: agents decide eagerly on their own "
                    f"data, for a parameter of their own. Use a number, which promises nothing"
                )
        if self.max_silence != math.inf:
            object.__setattr__(self, "max_silence", float(whole_at_least(self.max_silence, 1, "max_silence")))  # type: ignore[arg-type]
        object.__setattr__(self, "drift", drifts.as_drift(self.drift))
        if self.drift is not None and self.personal is not None:
            raise InvalidParameter(
                "expected drift or personal, got both: agents that differ look like a world that changes, and own sums "
                "cannot be taken out of discounted ones; restart() by hand works with personal"
            )
        if isinstance(self.drift, drifts.Discount) and not isinstance(self.radius, radii.Fixed):
            self._warn_unproven(
                f"fb.radius.{self.radius.kind} has no proof with discounted sums: it covers one θ* for ever. Use a "
                f"number, or fb.drift.restart, which keeps the radius within an epoch"
            )

    def to_dict(self) -> dict[str, Any]:
        values = super().to_dict()
        if self.min_upload == 1:  # as it was written before there was a choice: ids of specs stay
            del values["min_upload"]
        if self.personal is None:
            del values["personal"]
        else:
            values["personal"] = personals.to_dict(personals.as_personal(self.personal))
        if math.isinf(self.max_silence):
            del values["max_silence"]
        if self.drift is None:
            del values["drift"]
        else:
            values["drift"] = drifts.to_dict(self.drift)
        return values

    @property
    def trigger_level(self) -> float:
        return self.alpha

    @property
    def trigger_kind(self) -> str:
        return self.trigger

    def agent(self, agent_id: str, *, incarnation: str | None = None) -> FedLinUCBAgent:
        """A new agent at the prior."""
        if self.personal is not None:
            from fedbandit.algorithms.personal import PersonalAgent  # a subclass of the agent below

            return PersonalAgent(self, check_agent_id(agent_id), incarnation)
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
        self.defers_renewal = False  # whether a thread of the driver makes new growth trackers
        self.is_renewal_due = False
        self._answer_watch: AdoptionCheck | None = AdoptionCheck()
        self.world = AgentEpoch(rule)

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

    def use_rule(self, rule: FedLinUCB, *, birth: str | None = None) -> None:
        """Continue under another α, β, policy, drift or silence; the rest is as it was. `birth` names decisions."""
        with self._lock:
            self.world.use(rule, self.n_rounds, is_other_drift=rule.drift != self.rule.drift)
            self.rule = rule
            self._threshold = math.log1p(rule.alpha)
            self._judgement = None
            self._name_decisions(self.incarnation if birth is None else birth)

    # -- learning

    def _absorb(self, x: Vector, reward: float) -> Upload | None:
        self._gather(x, reward)
        if self.world.detector is not None:
            self.world.observe(x, reward, self.model)
        if self._tracker is None and self._holds_more_than_one():
            self._count_growth()  # a small model was adopted, or an exception came between a model and its growth
            return None if self.defers_renewal else self._exchange_if_due()
        tracker = self._tracker or self._tracking()
        growth = tracker.observe(x)
        if tracker.is_stale:
            self._renew(tracker)
            growth = tracker.value
        if self._spectral:
            W = self.model.factor.W
            z = times_vector(W, x) if W.ndim == 2 else times_vector(W[int(x[0])], x[1:])
            self._top_bound += float(z @ z)
        if growth <= self._threshold and self.n_rounds < self.world.due_at:
            return None
        return self._exchange_if_due()

    def _renew(self, tracker: GrowthTracker) -> None:
        """Called when rounding may have built up."""
        if isinstance(tracker, BlockGrowthTracker):
            tracker.restart_last(self._everything_in)
        elif not self.defers_renewal or tracker.is_overdue:
            tracker.restart(self._everything())
        elif tracker.is_due and self.dim > BLOCK:
            self.is_renewal_due = True  # below that, waking a thread costs more than an overdue restart

    def _absorb_batch(self, stats: SufficientStats, X: Matrix, y: Vector) -> Upload | None:
        self._gather_batch(stats)
        self.world.observe_batch(stats, self.model)
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
            if self.n_rounds >= self.world.due_at:
                return True
            # det(I + A) ≥ 1 + λ_max(A): the spectral trigger never fires before this one does.
            if not exceeds(self._tracker.value, self._threshold):
                return False
            return not self._spectral or self._spectral_due()

    def _spectral_due(self) -> bool:
        if exceeds(self._top_bound, self.rule.alpha):
            W = self.model.factor.W
            buffer = self._everything() - self.model.stats.Sigma
            self._top_bound = float(np.linalg.eigvalsh(W @ buffer @ W.swapaxes(-1, -2))[..., -1].max())
        return exceeds(self._top_bound, self.rule.alpha)

    def upload_now(self) -> Upload | None:
        """The buffer as an upload, trigger or not; the unanswered one if there is one, None if too little was seen."""
        with self._lock:
            if self.in_flight is not None:
                return self.in_flight
            if self._local is None or self._local.n_obs < self.rule.min_upload:
                return None
            return self._send(0.0 if self._tracker is None else self._tracker.value)

    def _make_upload(self, growth: float) -> Upload:
        world = self.world
        return Upload(
            self.agent_id,
            self.incarnation,
            self.sequence + 1,
            self.local,
            growth,
            epoch=world.epoch,
            alarm=world.has_alarm,
            dropped=world.n_dropped,
            clock=world.clock,
            groups=NO_GROUPS if self._local is None else self._local.groups,
        )

    def _complete_upload(self) -> None:
        is_new = self.in_flight is not None and self.sequence < self.in_flight.sequence
        if is_new and (self.world.watches_time or self.world.n_dropped):
            self.world.sent(self.n_rounds)
        super()._complete_upload()

    # -- talking

    def arrive(self) -> Pull | None:
        with self._lock:
            return Pull(self.agent_id, self.incarnation) if self._wants_model else None

    def _received(self, receipt: Receipt) -> Upload | None:
        self._wants_model = self.rule.refresh == "arrival"
        return self._recount()

    def _take(self, download: Download) -> Upload | None:
        if download.version < self.model_version or download.epoch < self.world.epoch:
            return self._recount()  # a late reply: a newer model is in use, but the upload may be answered now
        self._wants_model = False
        self._tracker = None
        self._begin(download)
        self.model = ridge_model(download.stats)
        self.model_version = download.version
        self._own_buffer = self._has_unmerged_data()
        self.n_switches += 1
        self._judgement = None
        return self._recount()

    def _begin(self, download: Download) -> None:
        """The epoch and the clock of a download that is adopted; what was gathered in an earlier epoch is dropped."""
        if download.epoch != self.world.epoch:
            self._end_epoch()
            self.world.begin(download, self)
        if self.world.watches_time or download.discarded:
            self.world.adopted(download, self.n_rounds)

    def _end_epoch(self) -> None:
        """Called before the model of another epoch is used."""

    def _use(self, model: RidgeModel, version: int, tracker: GrowthTracker | None) -> None:
        """Use a model that was factorised elsewhere, with the growth of all data that it does not hold.

        Without a tracker the next observation counts them. The trigger is tested by the next one, or by the caller.
        """
        self._wants_model = False
        self._own_buffer = self._has_unmerged_data()
        judgement = self._judgement_of(model, version)
        # An exception in between finds no tracker, and `_absorb` counts anew; a judgement is one assignment.
        self._tracker = None
        self.model, self.model_version = model, version
        self._judgement = judgement
        self._tracker = tracker
        self.n_switches += 1
        self._top_bound = 0.0 if tracker is None or tracker.is_at_base else math.inf

    def _judgement_of(self, model: RidgeModel, version: int) -> DecisionBasis | None:
        """What decisions on a model rest on; None: it is made at the next decision."""
        beta = self.rule.beta_for(model, n_obs=model.stats.n_obs, version=version, own_buffer=self._own_buffer)
        return DecisionBasis(model, beta, version)

    def _begin_at_prior(self) -> None:
        """Give up the model for the prior; the buffer and the upload in flight stay."""
        self.model, self.model_version, self._judgement = self.rule.prior_model, 0, None
        self._own_buffer = self._has_unmerged_data()
        self._recount()

    def _begin_own_sums(self) -> None:
        """A new incarnation: what an earlier one sent is the fleet's from now on."""

    def _recount(self) -> Upload | None:
        """Growth from the model on; data that was seen while the exchange was under way counts already."""
        self._tracker = None
        self._top_bound = 0.0
        if not self._has_unmerged_data():
            return None
        self._count_growth()
        return self._exchange_if_due()

    def _count_growth(self) -> None:
        """Exactly, from all data that the model does not hold."""
        tracker = growth_tracker(self.model)
        tracker.restart(self._everything())
        self._tracker, self._top_bound = tracker, math.inf

    def _has_unmerged_data(self) -> bool:
        return self.in_flight is not None or (self._local is not None and self._local.n_obs > 0)

    def _holds_more_than_one(self) -> bool:
        return self.in_flight is not None or (self._local is not None and self._local.n_obs > 1)

    def _tracking(self) -> GrowthTracker:
        if self._tracker is None:
            self._tracker = growth_tracker(self.model)
        return self._tracker

    def _everything(self) -> Matrix:
        """Σ_m and all data that the model does not hold."""
        Sigma = self.model.stats.Sigma
        if self.in_flight is not None:
            Sigma = Sigma + self.in_flight.stats.Sigma
        if self._local is not None:
            Sigma = Sigma + self._local.Sigma
        return Sigma

    def _everything_in(self, block: int) -> Matrix:
        """One block of that."""
        Sigma: Matrix = self.model.stats.Sigma[block]
        if self.in_flight is not None:
            Sigma = Sigma + self.in_flight.stats.Sigma[block]
        if isinstance(self._local, BlockRunningStats):
            Sigma = Sigma + self._local.block_of(block)
        return Sigma

    # -- saving

    def _state(self) -> dict[str, Any]:
        state = {
            "model": self.model.stats,
            "tracker": None if self._tracker is None or self._tracker.is_at_base else self._tracker.state(),
            "top_bound": self._top_bound,
            "wants_model": self._wants_model,
            "own_buffer": self._own_buffer,
        }
        if self.world.watches_time or self.world.epoch or self.world.n_dropped:
            state["world"] = self.world.state()
        return state

    def _restore(self, state: dict[str, Any]) -> None:
        self.model = ridge_model(state["model"])
        if state["tracker"] is not None:
            self._tracker = saved_tracker(state["tracker"], self.model)
        self._top_bound = state["top_bound"]
        self._wants_model = state["wants_model"]
        self._own_buffer = state["own_buffer"]
        self.world.restore(state.get("world", {}))


class FedLinUCBServer(EpochServer):
    """Adds what it is sent, and answers the sender (Algorithm 1, lines 10 and 12)."""

    rule: FedLinUCB

    def receive(self, message: Request) -> Download | Receipt:
        """Merge an upload once and answer with the new state (or a receipt, when the download waits for arrival)."""
        if isinstance(message, Pull):
            return self._download(message.agent_id, message.incarnation)
        entry = self._next_entry(message)
        outcome = "" if entry is None else self._count(message, entry)
        download = self._download(message.agent_id, message.incarnation, outcome)
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
        "personal": {"personal": "auto"},
        "personal-fixed": {"personal": 1.0, "refresh": "arrival", "join": True},
        "silence": {"max_silence": 5},
        "restart": {"drift": drifts.Restart(10.0, agent_block=5, server_block=8)},
        "explore": {"explore": 0.2},
        "inverse-gap": {"policy": "inverse-gap"},
        "thompson": {"policy": "thompson", "propensity_samples": 5},
        "control": {"control": 0.25},
        "all-options": {"join": True, "refresh": "arrival", "trigger": "spectral", "alpha": 0.5},
    },
)
