"""The agent of `FedLinUCB(personal=…)`: a parameter of its own, with what the fleet knows as its prior.

Trigger, messages and server are FedLinUCB's. The agent decides on Λ = P + A (core/personal_prior.py), A all of its own
observations: the policy is eager in its own data, and no regret guarantee is claimed for it (docs/theory.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from fedbandit.algorithms.fedlinucb import FedLinUCB, FedLinUCBAgent
from fedbandit.algorithms.messages import Download, Upload
from fedbandit.algorithms.own_sums import OwnSums
from fedbandit.algorithms.scoring import DecisionBasis
from fedbandit.core.arrays import Vector
from fedbandit.core.block_growth import BlockGrowthTracker
from fedbandit.core.block_products import times
from fedbandit.core.block_ridge import BlockRidgeModel
from fedbandit.core.growth import GrowthTracker
from fedbandit.core.kappa import FIRST_CHOICE, choose_kappa, first_kappa
from fedbandit.core.personal import Fixed
from fedbandit.core.personal_prior import (
    BlockPersonalEstimate,
    Others,
    PersonalEstimate,
    PersonalPrior,
    others_of,
    prior_of,
)
from fedbandit.core.ridge import RidgeModel
from fedbandit.core.statistics import SufficientStats
from fedbandit.core.structure import ridge_model


class Ground(NamedTuple):
    """A model, what it holds of the agent's own data, and what the others know: replaced by one assignment."""

    model: RidgeModel
    version: int
    own: OwnSums
    others: Others | None = None  # None: not computed yet
    prior: PersonalPrior | None = None  # None: κ is to be chosen

    def with_others(self, lam: float) -> Ground:
        """With what the others know; own sums that the model cannot hold are left to the fleet."""
        if self.others is not None:
            return self
        others = others_of(self.model.stats, self.own.merged, lam)
        if others is not None:
            return self._replace(others=others)
        return self._replace(own=self.own.nothing()).with_others(lam)

    def with_prior(self, rule: FedLinUCB, own: SufficientStats) -> Ground:
        """With the prior of the rule's κ, or of the one that is chosen from these own observations."""
        ground = self.with_others(rule.lam)
        assert ground.others is not None
        kappa = first_kappa(rule.dim)
        if isinstance(rule.personal, Fixed):
            kappa = rule.personal.kappa
        elif own.n_obs >= FIRST_CHOICE:
            kappa = choose_kappa(ground.others, own)
        return ground._replace(prior=prior_of(ground.others, kappa))


class PersonalAgent(FedLinUCBAgent):
    """Decides on a parameter of its own: what the others know as a prior, and all of its own observations."""

    def __init__(self, rule: FedLinUCB, agent_id: str, incarnation: str | None) -> None:
        super().__init__(rule, agent_id, incarnation)
        self._ground = Ground(self.model, 0, OwnSums(rule.dim, blocks=rule.blocks))
        self._follower: GrowthTracker | None = None  # Λ⁻¹ and log det Λ, as observations come; None: to be made
        self._target: Vector = np.zeros(rule.dim)  # Pθ_o + c
        self._n_own = 0
        self._next_choice = FIRST_CHOICE

    # -- what it knows

    @property
    def kappa(self) -> float:
        """κ as it is used now."""
        with self._lock:
            self._basis()
            prior = self._ground.prior
            return first_kappa(self.dim) if prior is None else prior.kappa

    @property
    def own(self) -> SufficientStats:
        """The lifetime sums A, c, n, Σr and Σr² of this agent's own observations, sent or not."""
        with self._lock:
            return self._total_of(self._ground.own)

    @property
    def held(self) -> SufficientStats:
        """(U, u): the own observations that the model in use holds."""
        with self._lock:
            return self._ground.own.merged

    def _total_of(self, own: OwnSums) -> SufficientStats:
        """With what is in flight and in the buffer."""
        sent = self.in_flight
        if sent is None or sent.epoch != self.world.epoch:
            return own.total(None, self.local)
        is_complete = self.sequence >= sent.sequence  # else an exception left its content in the buffer, too
        return own.total(sent, self.local if is_complete else SufficientStats.zeros(self.dim, self.blocks))

    # -- deciding

    def _basis(self) -> DecisionBasis:
        judgement = self._judgement
        if judgement is None:
            with self._lock:
                judgement = self._judgement = self._judge()
        return judgement

    def _judge(self) -> DecisionBasis:
        follower = self._follower or self._restart()
        inverse = follower.inverse_now()
        log_det = follower.log_det_base + follower.value
        model, version, own, _, _ = self._ground
        n_obs = model.stats.n_obs - own.merged.n_obs + self._n_own
        kind = PersonalEstimate if self.blocks == 1 else BlockPersonalEstimate
        estimate = kind(inverse, times(inverse, self._target), log_det, n_obs)
        beta = self.rule.beta_for(estimate, n_obs=n_obs, version=version, own_buffer=self._own_buffer)
        return DecisionBasis(estimate, beta, version)

    def _restart(self) -> GrowthTracker:
        """Λ exactly, from a fresh factorisation; κ is chosen anew where it is due."""
        ground, own = self._ground.with_others(self.rule.lam), self.own
        if ground.own is not self._ground.own:
            self._ground = ground
            own = self.own
        if ground.prior is None or own.n_obs >= self._next_choice:
            ground = ground.with_prior(self.rule, own)
        assert ground.prior is not None
        self._ground = ground
        return self._follow(ground.prior, follower_of(ground.prior, own), own)

    def _follow(self, prior: PersonalPrior, follower: GrowthTracker, own: SufficientStats) -> GrowthTracker:
        """Decide on this prior and these own observations, which the follower holds."""
        self._target, self._n_own = prior.h + own.b, own.n_obs
        while self._next_choice <= own.n_obs:
            self._next_choice *= 2
        self._follower = follower
        return follower

    # -- learning

    def _absorb(self, x: Vector, reward: float) -> Upload | None:
        follower = self._follower
        self._follower = self._judgement = None  # an exception in between finds none, and Λ is made anew
        upload = super()._absorb(x, reward)
        if follower is None:
            return upload
        follower.observe(x)
        if self.blocks == 1:
            self._target += reward * x
        else:
            self._target.reshape(self.blocks, -1)[int(x[0])] += reward * x[1:]
        self._n_own += 1
        if not follower.is_stale and (self._n_own < self._next_choice or isinstance(self.rule.personal, Fixed)):
            self._follower = follower
        return upload

    def _gather_batch(self, stats: SufficientStats) -> None:
        self._follower = self._judgement = None
        super()._gather_batch(stats)

    # -- talking

    def _acknowledge(self, sequence: int) -> None:
        sent = self.in_flight
        if sent is not None and sequence >= sent.sequence and sent.epoch == self.world.epoch:
            self._ground = self._ground._replace(own=self._ground.own.answered(sent))
        super()._acknowledge(sequence)

    def _take(self, download: Download) -> Upload | None:
        if download.version >= self.model_version:
            known = self._ground.own if download.epoch == self.world.epoch else self._ground.own.nothing()
            own = known.in_model(download.acknowledged, excluded=download.excluded)
            self._stand_on(Ground(ridge_model(download.stats), download.version, own))
        return super()._take(download)

    def _stand_on(self, ground: Ground) -> None:
        self._follower = self._judgement = None
        self._ground = ground

    def _next_ground(
        self, model: RidgeModel, download: Download, merged: int, kept: Iterable[Upload]
    ) -> tuple[Ground, SufficientStats]:
        """What to stand on with this download, and the own observations: under the lock, and cheap.

        `merged` is the last own upload in it, which may be in flight still; `kept` are answered uploads.
        """
        if download.epoch != self.world.epoch:  # own observations are of a world that is gone
            nothing = self._ground.own.nothing()
            return Ground(model, download.version, nothing), nothing.merged
        own, sent = self._ground.own, self.in_flight
        if sent is not None and sent.sequence <= merged:
            own = own.answered(sent)
        own = own.in_model(merged, excluded=download.excluded, kept=kept)
        return Ground(model, download.version, own), self._total_of(own)

    def _use_ground(self, ground: Ground, follower: GrowthTracker) -> None:
        """Decide on what `_next_ground` gave and was completed elsewhere; the follower holds all own observations."""
        assert ground.prior is not None
        self._stand_on(ground)
        self._follow(ground.prior, follower, self.own)

    def _judgement_of(self, model: RidgeModel, version: int) -> DecisionBasis | None:
        return None  # made when it is asked for

    def _begin_at_prior(self) -> None:
        self._stand_on(Ground(self.rule.prior_model, 0, self._ground.own.without_model()))
        super()._begin_at_prior()

    def _begin_own_sums(self) -> None:
        self._stand_on(self._ground._replace(own=self._ground.own.nothing(), others=None, prior=None))

    def _end_epoch(self) -> None:
        """A restart drops own sums, too: they are of a world that is gone."""
        self._begin_own_sums()
        self._next_choice = FIRST_CHOICE

    # -- saving

    def _state(self) -> dict[str, Any]:
        prior, follower = self._ground.prior, self._follower
        return super()._state() | {
            "own_sums": self._ground.own.state(),
            "kappa": None if prior is None else prior.kappa,
            "next_choice": self._next_choice,
            "n_own": self._n_own,
            "follower": None if follower is None else follower.state(),
            "target": np.asarray(self._target, dtype="<f8").tobytes(),
        }

    def _restore(self, state: dict[str, Any]) -> None:
        super()._restore(state)
        ground = Ground(self.model, self.model_version, OwnSums.from_state(self.dim, state["own_sums"], self.blocks))
        if state["kappa"] is not None:
            ground = ground.with_others(self.rule.lam)
            assert ground.others is not None
            ground = ground._replace(prior=prior_of(ground.others, float(state["kappa"])))
        self._ground = ground
        self._next_choice, self._n_own = int(state["next_choice"]), int(state["n_own"])
        self._target = np.frombuffer(state["target"], dtype="<f8").copy()
        if state["follower"] is not None:
            if self.blocks == 1:
                self._follower = GrowthTracker.from_state(state["follower"], self.dim)
            else:
                assert ground.prior is not None
                self._follower = BlockGrowthTracker.of_state(state["follower"], _model_of(ground.prior))


def follower_of(prior: PersonalPrior, own: SufficientStats) -> GrowthTracker:
    """Λ⁻¹ and log det Λ of a prior and own observations, ready to follow more of them."""
    is_dense = prior.P.ndim == 2
    follower = GrowthTracker(prior.P, prior.log_det) if is_dense else BlockGrowthTracker(_model_of(prior))
    follower.restart(prior.P + own.Sigma)
    return follower


def _model_of(prior: PersonalPrior) -> BlockRidgeModel:
    """The prior by blocks as the base of a tracker."""
    return BlockRidgeModel(SufficientStats(prior.P, prior.h))
