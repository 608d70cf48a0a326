"""The running log-determinant behind the trigger, and the estimate of an eager policy: O(d²) an observation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fedbandit.core.arrays import Matrix, Vector
from fedbandit.core.ridge import factorise

# A rank-one step multiplies the relative error of the inverse by at most det(Σ_after)/det(Σ_before); restarting
# after 8 nats of growth keeps the loss below four digits, and happens at most O(d log T) times in a life.
MAX_GROWTH = 8.0
MIN_STEPS = 256


def exceeds(growth: float, threshold: float) -> bool:
    """growth > threshold, with ties counted as not exceeding although rounding may differ.

    Integer features reach a determinant ratio of exactly 1 + α; the strict inequality of Algorithm 1 must not depend
    on the last bit of a logarithm.
    """
    return growth > threshold * (1.0 + 1e-12)


class GrowthTracker:
    """log det Σ_now − log det Σ_base and Σ_now⁻¹, as observations are added to Σ_now one by one.

    After x arrives, log det grows by log(1 + xᵀPx) with P = Σ_now⁻¹, and P loses uuᵀ/(1 + xᵀPx), u = Px.
    The owner of Σ_now calls `restart` when `is_stale` says that rounding may have built up.
    """

    __slots__ = ("P", "_max_steps", "_scratch", "_since", "_steps", "log_det_base", "value")

    def __init__(self, P: Matrix, log_det_base: float) -> None:
        dim = len(P)
        self.P: Matrix = P.copy()
        self.log_det_base = log_det_base
        self.value = 0.0
        self._scratch: Matrix = np.empty((dim, dim))
        self._since = 0.0
        self._steps = 0
        self._max_steps = max(MIN_STEPS, dim)

    def observe(self, x: Vector) -> float:
        """Add x xᵀ to Σ_now; returns the growth so far."""
        P, scratch = self.P, self._scratch
        u = P @ x
        g = float(x @ u)
        step = math.log1p(g)
        np.multiply(u[:, None], u / (1.0 + g), out=scratch)
        np.subtract(P, scratch, out=P)
        self.value += step
        self._since += step
        self._steps += 1
        return self.value

    @property
    def is_stale(self) -> bool:
        """Whether so much was added since the last exact restart that rounding deserves a fresh factorisation."""
        return self._since > MAX_GROWTH or self._steps >= self._max_steps

    def rebase(self) -> None:
        """Count growth from Σ_now on."""
        self.log_det_base += self.value
        self.value = 0.0

    def state(self) -> dict[str, Any]:
        """Everything, as plain values, so that a saved tracker goes on to the same bit."""
        return {
            "P": self.P.astype("<f8").tobytes(),
            "log_det_base": self.log_det_base,
            "value": self.value,
            "since": self._since,
            "steps": self._steps,
        }

    @classmethod
    def from_state(cls, state: dict[str, Any], dim: int) -> GrowthTracker:
        """The tracker of a dictionary made by `state`."""
        tracker = cls(np.frombuffer(state["P"], dtype="<f8").reshape(dim, dim), float(state["log_det_base"]))
        tracker.value = float(state["value"])
        tracker._since = float(state["since"])
        tracker._steps = int(state["steps"])
        return tracker

    def restart(self, Sigma_now: Matrix) -> None:
        """Exact again, from a fresh factorisation of Σ_now; the base stays."""
        factor = factorise(Sigma_now)
        np.matmul(factor.W.T, factor.W, out=self.P)
        self.value = factor.log_det - self.log_det_base
        self._since = 0.0
        self._steps = 0
