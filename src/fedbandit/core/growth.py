"""The running log-determinant behind the trigger, and the estimate of an eager policy: O(d²) per observation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fedbandit.core.arrays import Matrix, Vector
from fedbandit.core.products import gram, product, times_vector
from fedbandit.core.ridge import factorise

# Rounding in a step is relative to the inverse before it, which in some direction is det(Σ_after)/det(Σ_before) times
# the one after it. Later steps do not enlarge that error: to first order Σ ΔP Σ is kept, and Σ only grows. So errors of
# steps add, and each is at most the growth of its own step. Restarting after 8 nats keeps the loss below four digits
# whatever the steps were, and happens at most O(d log T) times per run; where a restart can wait for another thread,
# only a single step of 12 nats cannot.
MAX_GROWTH = 8.0
MIN_STEPS = 256
TOGETHER = 64  # rows that are added by one product


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

    __slots__ = ("P", "_max_steps", "_scratch", "_since", "_steepest", "_steps", "log_det_base", "value")

    def __init__(self, P: Matrix, log_det_base: float) -> None:
        dim = len(P)
        self.P: Matrix = P.copy()
        self.log_det_base = log_det_base
        self.value = 0.0
        self._scratch: Matrix = np.empty((dim, dim))
        self._since = 0.0
        self._steepest = 0.0  # an upper bound of the largest step, in nats
        self._steps = 0
        self._max_steps = max(MIN_STEPS, dim)

    def observe(self, x: Vector) -> float:
        """Add x xᵀ to Σ_now; returns the growth so far."""
        P, scratch = self.P, self._scratch
        u = times_vector(P, x)
        g = float(x @ u)
        step = math.log1p(g)
        np.multiply(u[:, None], u / (1.0 + g), out=scratch)
        np.subtract(P, scratch, out=P)
        self.value += step
        self._since += step
        if step > self._steepest:
            self._steepest = step
        self._steps += 1
        return self.value

    def observe_rows(self, X: Matrix) -> float:
        """Add all rows of X (n, d), many by one product each time; returns the growth so far."""
        for at in range(0, len(X), TOGETHER):
            self._observe_together(X[at : at + TOGETHER])
        return self.value

    def _observe_together(self, X: Matrix) -> None:
        """log det grows by log det S with S = I + X P Xᵀ, and P loses (X P)ᵀ S⁻¹ (X P)."""
        U = product(X, self.P)
        S = product(U, X.T)
        S.flat[:: len(S) + 1] += 1.0
        L = np.linalg.cholesky(S)
        gram(product(np.linalg.inv(L), U), out=self._scratch)
        np.subtract(self.P, self._scratch, out=self.P)
        step = 2.0 * float(np.log(np.diagonal(L)).sum())
        self.value += step
        self._since += step
        self._steepest = max(self._steepest, min(step, math.log(float(np.trace(S)))))
        self._steps += len(X)

    def inverse_now(self) -> Matrix:
        """A copy of Σ_now⁻¹."""
        return self.P.copy()

    @property
    def is_stale(self) -> bool:
        """Whether enough was added since the last exact restart for rounding errors to need a fresh factorisation."""
        return self._since > MAX_GROWTH or self._steps >= self._max_steps

    @property
    def is_due(self) -> bool:
        """Whether a postponed restart should be made by another thread now."""
        return self._steepest > MAX_GROWTH or self._steps >= 8 * self._max_steps

    @property
    def is_overdue(self) -> bool:
        """Whether a postponed restart can be postponed no further."""
        return self._steepest > 1.5 * MAX_GROWTH or self._steps >= 16 * self._max_steps

    @property
    def is_at_base(self) -> bool:
        """Whether nothing was added to Σ_base."""
        return self._steps == 0 and self.value == 0.0

    def rebase(self) -> None:
        """Count growth from Σ_now on."""
        self.log_det_base += self.value
        self.value = 0.0

    def state(self) -> dict[str, Any]:
        """The complete state as plain values; a restored tracker continues bit for bit."""
        return {
            "P": np.asarray(self.P, dtype="<f8").tobytes(),
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
        tracker._since = tracker._steepest = float(state["since"])
        tracker._steps = int(state["steps"])
        return tracker

    def restart(self, Sigma_now: Matrix) -> None:
        """Exact again, from a fresh factorisation of Σ_now; the base stays."""
        factor = factorise(Sigma_now)
        gram(factor.W, out=self.P)
        self.value = factor.log_det - self.log_det_base
        self._since = self._steepest = 0.0
        self._steps = 0
