"""The ridge estimate of an eager policy, updated at every observation."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedbandit.core.arrays import Matrix, Vector
from fedbandit.core.growth import GrowthTracker
from fedbandit.core.products import product
from fedbandit.core.ridge import RidgeModel, factorise
from fedbandit.core.statistics import RunningStats, SufficientStats


class EagerEstimate:
    """θ̂, Σ⁻¹ and log det Σ after every observation, O(d²) each; exact again at each `restart`."""

    __slots__ = ("_theta_hat", "stats", "tracker")

    def __init__(self, stats: SufficientStats) -> None:
        self.stats = RunningStats(stats.dim)
        self.stats.add(stats)
        model = RidgeModel(stats)
        self.tracker = GrowthTracker(model.inverse, model.log_det)
        self._theta_hat: Vector | None = model.theta_hat

    def observe(self, x: Vector, reward: float) -> None:
        """Add one pair."""
        self.stats.observe(x, reward)
        self.tracker.observe(x)
        if self.tracker.is_stale:
            self.tracker.restart(self.stats.Sigma)
        self._theta_hat = None

    def add(self, stats: SufficientStats) -> None:
        """Add data that was summed elsewhere."""
        self.stats.add(stats)
        self.tracker.restart(self.stats.Sigma)
        self._theta_hat = None

    def forget_theta(self) -> None:
        """Recompute θ̂ when it is next read."""
        self._theta_hat = None

    @property
    def n_obs(self) -> int:
        """Observations behind the estimate."""
        return self.stats.n_obs

    @property
    def theta_hat(self) -> Vector:
        """θ̂ = Σ⁻¹ b."""
        if self._theta_hat is None:
            self._theta_hat = self.tracker.P @ self.stats.b
        return self._theta_hat

    @property
    def inverse(self) -> Matrix:
        """Σ⁻¹; a view that the next observation changes."""
        return self.tracker.P

    @property
    def log_det(self) -> float:
        """log det Σ."""
        return self.tracker.log_det_base + self.tracker.value

    def predict(self, actions: Matrix) -> Vector:
        """⟨θ̂, x⟩ of each row."""
        return actions @ self.theta_hat

    def widths(self, actions: Matrix) -> Vector:
        """‖x‖_{Σ⁻¹} of each row."""
        forms = np.vecdot(actions @ self.tracker.P, actions)
        return np.asarray(np.sqrt(np.maximum(forms, 0.0)))

    def whitened(self, actions: Matrix) -> Matrix:
        """W x of each row with Wᵀ W = Σ⁻¹, (k, d); factorises Σ, O(d³)."""
        return product(actions, factorise(self.stats.Sigma).W.T)

    def upper(self, actions: Matrix, beta: float) -> Vector:
        """⟨θ̂, x⟩ + β‖x‖_{Σ⁻¹} of each row."""
        return self.predict(actions) + beta * self.widths(actions)

    def contenders(self, actions: Matrix, beta: float) -> NDArray[np.intp] | None:
        """None: pruning would cost more than it saves, because Σ⁻¹ changes every round."""
        return None
