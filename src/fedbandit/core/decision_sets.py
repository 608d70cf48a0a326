"""Decision sets: a finite array of actions, a ball, or any object with a method `best`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from fedbandit.core.arrays import TIE, Matrix, Vector, as_vector, keep_finite, keep_whole
from fedbandit.errors import InvalidParameter


class Width:
    """‖x‖_{Σ⁻¹} as a function of one action (d,) or of many (k, d); `.matrix` is Σ⁻¹ itself."""

    __slots__ = ("matrix",)

    def __init__(self, matrix: Matrix) -> None:
        self.matrix = matrix

    def __call__(self, x: Vector | Matrix) -> Vector:
        return np.asarray(np.sqrt(np.maximum(np.einsum("...i,...i->...", x @ self.matrix, x), 0.0)))


@runtime_checkable
class DecisionSet(Protocol):
    """A set of actions that finds its optimistic action; any object with this method may be passed to `choose`."""

    def best(self, theta_hat: Vector, width: Width, beta: float) -> Vector:
        """The x in the set with the largest ⟨θ̂, x⟩ + β·width(x), (d,)."""
        ...


def first_best(scores: Vector) -> int:
    """Index of the best score; the lowest one among those within a relative 1e-12 of the best.

    >>> first_best(np.array([1.0, 2.0, 2.0 + 1e-15]))
    1
    """
    index = int(scores.argmax())
    best = scores.item(index)
    if index == 0 or not math.isfinite(best):  # NaN ties with no score: return its index, so that the caller detects it
        return index
    return int((scores >= best - TIE * abs(best)).argmax())


def top_indices(scores: Vector, k: int) -> list[int]:
    """The k best, best first, ties as in `first_best`."""
    rest = scores.copy()
    chosen = []
    for _ in range(k):
        index = first_best(rest)
        chosen.append(index)
        rest[index] = -np.inf
    return chosen


@dataclass(frozen=True, slots=True)
class Ball:
    """All x with ‖x‖₂ ≤ radius: infinitely many actions, solved exactly."""

    dim: int
    radius: float = 1.0

    def __post_init__(self) -> None:
        keep_whole(self, "dim", 1)
        keep_finite(self, "radius", 0.0, strictly=True)

    def best(self, theta_hat: Vector, width: Width, beta: float) -> Vector:
        """The optimistic action: radius · θ̃/‖θ̃‖ with θ̃ the point of the confidence ellipsoid farthest from 0."""
        theta_tilde = farthest_point(theta_hat, width.matrix, beta)
        norm = float(np.linalg.norm(theta_tilde))
        if norm == 0.0:  # beta = 0 and no estimate yet: all actions are equally good, take the first axis
            return self.radius * _first_axis(self.dim)
        return np.asarray(self.radius / norm * theta_tilde)


def _first_axis(dim: int) -> Vector:
    axis = np.zeros(dim)
    axis[0] = 1.0
    return axis


def farthest_point(theta_hat: Vector, inverse: Matrix, beta: float) -> Vector:
    """argmax ‖θ‖ over the ellipsoid ‖θ − θ̂‖_Σ ≤ β, given Σ⁻¹.

    In the eigenbasis of Σ⁻¹ (eigenvalues p) θ = θ̂ + β√p·u with ‖u‖ = 1, and stationarity gives
    u_i = β√p_i θ̂_i / (μ − β²p_i) with μ ≥ β² max p the root of the secular equation ‖u(μ)‖ = 1. When θ̂ has no part in
    the leading eigenspace the root can sit at the pole; the remaining length then goes into that eigenspace, in the
    direction nearest to the first axis that has a part in it, so that the answer does not depend on the basis.
    """
    theta_hat = as_vector(theta_hat, len(inverse), "theta_hat")
    if beta < 0:
        raise InvalidParameter(f"expected beta ≥ 0, got {beta}")
    p, Q = np.linalg.eigh(inverse)
    a = beta * np.sqrt(np.maximum(p, 0.0))
    c = Q.T @ theta_hat
    if a[-1] <= 1e-100 * np.linalg.norm(c):
        return theta_hat
    leading = p >= p[-1] * (1.0 - 1e-10)
    s = a / a[-1]  # in units of the longest axis no square under- or overflows
    weights = s * (c / a[-1])
    weights[leading & (np.abs(c) <= 1e-12 * (np.linalg.norm(c) + a[-1]))] = 0.0
    mu, at_pole = _secular_root(s * s, weights)
    gap = mu - s * s
    u = np.divide(weights, gap, out=np.zeros_like(weights), where=weights != 0.0)
    if at_pole:
        missing = np.sqrt(max(1.0 - float(u @ u), 0.0))
        u = u + missing * (Q.T @ _axis_in(Q[:, leading]))
    return np.asarray(theta_hat + Q @ (a * u))


def _axis_in(basis: Matrix) -> Vector:
    """The unit vector in the span of `basis` (d, k) nearest to the first coordinate axis with a part in it."""
    for row in basis:
        length = float(np.linalg.norm(row))
        if length > 1e-6:
            return np.asarray(basis @ row / length)
    return np.asarray(basis[:, 0])


def _secular_root(poles: Vector, weights: Vector) -> tuple[float, bool]:
    """The root μ ≥ max(poles) of Σ (weights/(μ − poles))² = 1, and whether it is the pole itself (hard case)."""
    top = float(poles[-1])
    active = weights != 0.0
    if not active.any():
        return top, True
    poles, weights = poles[active], weights[active]
    if float(poles.max()) < top * (1.0 - 1e-10) and float(np.sum((weights / (top - poles)) ** 2)) <= 1.0:
        return top, True
    low, high = max(top, float(np.max(poles + np.abs(weights)))), top + float(np.linalg.norm(weights))
    # ‖u(μ)‖⁻¹ is nearly linear in μ, so Newton on it converges in a few steps; bisection guards it.
    mu = low
    for _ in range(100):
        ratio = weights / (mu - poles)
        norm_sq = float(ratio @ ratio)
        if norm_sq > 1.0:
            low = mu
        else:
            high = mu
        slope = float(np.sum(ratio * ratio / (mu - poles)))
        step = (np.sqrt(norm_sq) - 1.0) * norm_sq / slope
        following = mu + step
        if not low <= following <= high:
            following = 0.5 * (low + high)
        if abs(following - mu) <= 1e-15 * abs(mu):
            return following, False
        mu = following
    return mu, False


def has_best(actions: Any) -> bool:
    """Whether this is a decision-set object rather than rows."""
    return type(actions) is not np.ndarray and hasattr(actions, "best") and not hasattr(actions, "columns")
