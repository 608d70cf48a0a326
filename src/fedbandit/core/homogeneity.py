"""Tests whether several sums belong to one parameter: agents against each other, or before against after a moment.

From sufficient statistics alone. A part (A, c, n, Σr²) is compared with the rest of the data (S_o, b_o): under one θ
the gap e = c − Aθ_o has covariance R²(A + AΣ_o⁻¹A), so Q = eᵀ(A + AΣ_o⁻¹A)⁻¹e/R² is χ² with as many degrees of freedom
as directions that both have seen. R² is estimated from the residuals of each part's own fit, which other parameters
elsewhere do not inflate, and never below the estimate of all parts together; F instead of χ² accounts for its error.
docs/theory.md has the reasons, and what adaptively chosen actions change.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedbandit.core.arrays import Vector
from fedbandit.core.statistics import SufficientStats
from fedbandit.core.tails import f_tail

LEVEL = 1e-4  # probability that parts with one parameter are called different, at one look, over all parts
LEAST_FREEDOM = 10  # observations beyond the rank of a part from which its noise can be estimated
RANK_TOLERANCE = 1e-9
PRIOR_OBSERVATIONS = 1e-4  # of each feature: keeps the rest's estimate finite where it has seen nothing
TINY = 1e-300
LARGEST_BINARY = 0.25  # variance of a reward of 0 or 1
TOLERATED_RATIO = 1.15  # of the F over all parts: what heavy tails and adaptive actions may add to it


@dataclass(frozen=True, slots=True)
class Difference:
    """One part against the rest: F = Q/df over the noise, with its p-value (not corrected for the number of parts)."""

    index: int
    statistic: float  # Q = eᵀ(A + AΣ_o⁻¹A)⁻¹e / R̂²
    df: float
    df_noise: float
    p_value: float


@dataclass(frozen=True, slots=True)
class HomogeneityTest:
    """Whether one θ fits all parts. `share` is of what a common θ leaves unexplained: the part own θs would explain."""

    parts: tuple[Difference, ...]  # those that could be tested, the most different first
    noise: float  # R̂, from the residuals within parts
    p_worst: float  # of the most different part, corrected for the number of parts
    p_all: float  # of all parts together
    share: float
    detectable: float  # the share that this amount of data would have shown in most cases

    @property
    def p_value(self) -> float:
        """Bonferroni over the two tests."""
        return min(1.0, 2.0 * min(self.p_worst, self.p_all))

    @property
    def differs(self) -> bool:
        """Whether the parts differ beyond chance."""
        return self.p_value < LEVEL


def compare_parts(parts: Sequence[SufficientStats], total: SufficientStats) -> HomogeneityTest | None:
    """Whether `parts` have one parameter; `total` are the sums of all data, without ridge, of which they are a part.

    None if the data are too few: it takes two parts with `LEAST_FREEDOM` observations beyond their rank. O(d³) each.
    """
    usable = [index for index, part in enumerate(parts) if part.n_obs > 0]
    if len(usable) < 2:
        return None
    scale = _scales(total)
    fits = [_Fit(parts[index], total, scale) for index in usable]
    df_noise = sum(fit.freedom for fit in fits)
    if sum(fit.freedom >= LEAST_FREEDOM for fit in fits) < 2:
        return None
    pooled = max(sum(fit.rss for fit in fits) / df_noise, _least_noise(total))
    found = [
        fit.difference(index, pooled) for index, fit in zip(usable, fits, strict=True) if fit.freedom >= LEAST_FREEDOM
    ]
    worst = min(found, key=lambda item: item.p_value)
    p_all, share, detectable = _together(fits, pooled, df_noise)
    ordered = tuple(sorted(found, key=lambda item: (item.p_value, -item.statistic / max(item.df, 1.0))))
    p_worst = min(1.0, worst.p_value * len(found))
    return HomogeneityTest(ordered, math.sqrt(pooled), p_worst, p_all, share, detectable)


class _Fit:
    """A part's own fit, and its gap to the rest, in features of mean square one."""

    def __init__(self, part: SufficientStats, total: SufficientStats, scale: Vector) -> None:
        outer = np.multiply.outer(scale, scale)
        A, c = part.Sigma * outer, part.b * scale
        rest, b = (total.Sigma - part.Sigma) * outer, (total.b - part.b) * scale
        self.n = part.n_obs
        self.weight = 1.0 - part.n_obs / total.n_obs
        values, vectors = np.linalg.eigh(A)
        seen = values > RANK_TOLERANCE * max(float(values[-1]), TINY)
        root, V = np.sqrt(values[seen]), vectors[:, seen]
        own = (V.T @ c) / root  # A^(-1/2) c, of length rank
        self.freedom = max(part.n_obs - len(root), 0)
        rss = part.reward_sq_sum - float(own @ own)
        self.rss = max(rss, 1e-13 * part.reward_sq_sum) if self.freedom else 0.0
        # The rest's estimate with hardly any prior: λ would bias it where the rest has seen little.
        prior = max(PRIOR_OBSERVATIONS, 1e-12 * total.n_obs)
        Sigma_o = rest + prior * np.eye(len(b))
        half = V * root
        solved = np.linalg.solve(Sigma_o, np.column_stack([half, b]))
        gap = own - half.T @ solved[:, -1]
        K = half.T @ solved[:, :-1]
        inverse = np.linalg.inv(np.eye(len(root)) + 0.5 * (K + K.T))
        self.gap_square = max(float(gap @ inverse @ gap), 0.0)
        # Directions that the rest has not seen count nothing: (I + K)⁻¹(I + K₀) has eigenvalues 0 there, 1 elsewhere.
        K0 = K - prior * (solved[:, :-1].T @ solved[:, :-1])
        self.df = float(np.clip(np.einsum("ij,ji->", inverse, np.eye(len(root)) + K0), 0.0, len(root)))

    def difference(self, index: int, pooled: float) -> Difference:
        """The F test of this part, with the larger of its own noise and that of all parts."""
        noise = self.noise(pooled)
        df = max(math.ceil(self.df - 1e-6), 1)
        statistic = self.gap_square / noise
        return Difference(index, statistic, df, self.freedom, f_tail(statistic / df, df, self.freedom))

    def noise(self, pooled: float) -> float:
        """R̂² to compare this part with."""
        return max(self.rss / self.freedom, pooled) if self.freedom >= LEAST_FREEDOM else pooled


def _together(fits: Sequence[_Fit], pooled: float, df_noise: int) -> tuple[float, float, float]:
    """p-value over all parts, the share of variance between parts, and the share that would have been seen."""
    df = max(sum(fit.df * fit.weight for fit in fits), 1.0)
    between = sum(fit.gap_square * fit.weight / fit.noise(pooled) for fit in fits)
    ratio = between / df
    room = max(sum(fit.n * fit.weight for fit in fits), 1.0)
    excess = max(between - df, 0.0) / room  # variance of ⟨θ_m − θ, x⟩ in units of the noise
    # About three standard deviations of `between` beyond what is tolerated.
    limit = df * (TOLERATED_RATIO - 1.0) + 6.0 * math.sqrt(2.0 * df * (1.0 + df / df_noise))
    seen = limit / room
    return f_tail(ratio / TOLERATED_RATIO, df, df_noise), excess / (1.0 + excess), seen / (1.0 + seen)


def _least_noise(total: SufficientStats) -> float:
    """The variance of rewards of 0 and 1 where it is largest; nothing for other rewards.

    The variance of a click depends on its probability: own fits have small residuals where an arm is nearly always or
    never right, and compare with them what differs where it is uncertain. Sums do not show where that is.
    """
    is_binary = abs(total.reward_sq_sum - total.reward_sum) <= 1e-9 * max(total.reward_sum, 0.0)
    return LARGEST_BINARY if is_binary else TINY


def _scales(total: SufficientStats) -> Vector:
    """Factors that give every feature a mean square of one; 1 for a feature that was never seen."""
    squares = np.diagonal(total.Sigma) / total.n_obs
    return np.where(squares > 0, 1.0 / np.sqrt(np.maximum(squares, TINY)), 1.0)


@dataclass(frozen=True, slots=True)
class ChangeTest:
    """Whether θ was the same before and after each of several moments."""

    index: int  # of the moment at which before and after differ most
    n_moments: int
    p_value: float  # corrected for the number of moments
    share: float  # of what one θ leaves unexplained: the part that two would explain
    detectable: float

    @property
    def differs(self) -> bool:
        """Whether before and after differ beyond chance."""
        return self.p_value < LEVEL


def compare_times(earlier: Sequence[SufficientStats], total: SufficientStats) -> ChangeTest | None:
    """Whether θ changed: `earlier` are the sums, without ridge, at some moments, and `total` those of now.

    None if no moment has enough data on both sides. A change between two moments shows at the nearest, weakened by the
    data between them.
    """
    tested = []
    for index, before in enumerate(earlier):
        found = compare_parts([before, total - before], total)
        if found is not None:
            tested.append((index, found))
    if not tested:
        return None
    index, worst = min(tested, key=lambda item: item[1].p_value)
    p_value = min(1.0, worst.p_value * len(tested))
    return ChangeTest(index, len(tested), p_value, worst.share, min(found.detectable for _, found in tested))
