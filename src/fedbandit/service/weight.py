"""What one agent's data do to a model: one that lies within the rules is seen by its weight, not by its numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedbandit.algorithms.fedlinucb import FedLinUCB
from fedbandit.algorithms.messages import stats_from_bytes
from fedbandit.core.arrays import Vector
from fedbandit.core.ridge import RidgeModel
from fedbandit.core.statistics import SufficientStats
from fedbandit.service.stores.base import State


@dataclass(frozen=True, slots=True)
class Weight:
    """An agent's part in a model."""

    share: float  # tr(Σ⁻¹Σ_a)/d; all agents' and the prior's, tr(Σ⁻¹λI)/d, add to 1
    pull: float  # ‖θ̂ − θ̂₋ₐ‖_Σ, how far θ̂ would move without the agent
    beta: float  # the radius to compare the pull with
    change: Vector  # θ̂ − θ̂₋ₐ, by feature

    def to_dict(self) -> dict[str, Any]:
        """What the weight's route answers."""
        return {"share": self.share, "pull": self.pull, "beta": self.beta, "change": self.change.tolist()}


def weigh(state: State, contribution: bytes | None) -> Weight:
    """The weight of everything that was merged from one agent; O(d³)."""
    settings = state.model.settings
    ridge = RidgeModel(stats_from_bytes(state.packed, settings.dim))
    beta = _radius(state, ridge)
    if contribution is None:
        return Weight(0.0, 0.0, beta, np.zeros(settings.dim))
    mine = stats_from_bytes(contribution, settings.dim)
    rest = without(ridge.stats, mine, settings.lam)
    share = float(np.vdot(ridge.inverse, mine.Sigma)) / settings.dim
    return Weight(share, ridge.distance(rest.theta_hat), beta, ridge.theta_hat - rest.theta_hat)


def without(everything: SufficientStats, mine: SufficientStats, lam: float) -> RidgeModel:
    """The model of the others: taking out nearly all the data must not leave a diagonal below λ by rounding."""
    stats = everything - mine
    Sigma = stats.Sigma.copy()
    np.fill_diagonal(Sigma, np.maximum(np.diagonal(Sigma), lam))
    return RidgeModel(replace(stats, Sigma=Sigma))


def _radius(state: State, ridge: RidgeModel) -> float:
    settings = state.model.settings
    rule = FedLinUCB(dim=settings.dim, lam=settings.lam, alpha=settings.alpha, beta=settings.radius)
    return rule.beta_for(ridge, n_obs=ridge.stats.n_obs, version=state.model.version)
