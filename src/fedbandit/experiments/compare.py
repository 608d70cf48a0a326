"""From runs to statements: means with intervals over seeds, paired comparisons, fitted exponents."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fedbandit.core.arrays import Vector
from fedbandit.errors import InvalidParameter

LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over n seeds and its confidence interval; without a second seed the interval is infinite."""

    mean: float
    low: float
    high: float
    n: int

    @property
    def half(self) -> float:
        """Half the width of the interval."""
        return (self.high - self.low) / 2

    def contains(self, value: float) -> bool:
        """Whether a value lies inside."""
        return self.low <= value <= self.high

    def __format__(self, format_spec: str) -> str:
        """`12.3 ± 0.4`; the given format is used for both numbers."""
        number = format(self.mean, format_spec)
        return f"{number} ± {format(self.half, format_spec)}" if math.isfinite(self.half) else number


def interval(values: ArrayLike, *, level: float = LEVEL) -> Interval:
    """Mean and Student's t interval of one number per seed.

    >>> f"{interval([1.0, 2.0, 3.0]):.2f}"
    '2.00 ± 2.48'
    """
    from scipy import stats

    data = np.asarray(values, dtype=np.float64)
    if data.size == 0:
        raise InvalidParameter("expected at least one run to take a mean of, got none; did all of them fail?")
    mean = float(data.mean())
    if data.size == 1:
        return Interval(mean, -math.inf, math.inf, 1)
    half = float(stats.t.ppf(0.5 + level / 2, data.size - 1)) * float(data.std(ddof=1)) / math.sqrt(data.size)
    return Interval(mean, mean - half, mean + half, int(data.size))


def log_interval(values: ArrayLike, *, level: float = LEVEL) -> Interval:
    """Geometric mean of positive numbers and its interval, for ratios."""
    inner = interval(np.log(np.asarray(values, dtype=np.float64)), level=level)
    with np.errstate(over="ignore"):
        return Interval(float(np.exp(inner.mean)), float(np.exp(inner.low)), float(np.exp(inner.high)), inner.n)


def proportion(hits: ArrayLike, *, level: float = LEVEL) -> Interval:
    """The share of seeds where something held, with Clopper and Pearson's exact interval.

    >>> proportion([True] * 20).low > 0.8
    True
    """
    from scipy import stats

    data = np.asarray(hits, dtype=bool)
    k, n, tail = int(data.sum()), int(data.size), (1 - level) / 2
    low = 0.0 if k == 0 else float(stats.beta.ppf(tail, k, n - k + 1))
    high = 1.0 if k == n else float(stats.beta.ppf(1 - tail, k + 1, n - k))
    return Interval(k / n, low, high, n)


def paired(ours: Mapping[int, float], theirs: Mapping[int, float]) -> tuple[Vector, Vector]:
    """Two measures seed by seed, over the common seeds: both use the same random numbers, so most noise cancels."""
    seeds = sorted(ours.keys() & theirs.keys())
    return np.array([ours[s] for s in seeds]), np.array([theirs[s] for s in seeds])


def difference(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Interval:
    """Ours minus theirs, paired by seed."""
    a, b = paired(ours, theirs)
    return interval(a - b)


def ratio(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Interval:
    """Ours over theirs, paired by seed, as a geometric mean."""
    a, b = paired(ours, theirs)
    return log_interval(a / b)


def ratio_of_means(numerators: ArrayLike, denominators: ArrayLike, *, level: float = LEVEL) -> Interval:
    """Mean of the numerators over mean of the denominators, paired by seed, with Fieller's interval.

    The interval accounts for the uncertainty of both means. Where the seeds do not decide the sign of the denominator,
    any ratio is possible and the interval is infinite.

    >>> f"{ratio_of_means([0.9, 1.0, 1.1], [1.9, 2.0, 2.1]):.2f}"
    '0.50 ± 0.06'
    """
    from scipy import stats

    a, b = np.asarray(numerators, dtype=np.float64), np.asarray(denominators, dtype=np.float64)
    center, n = float(a.mean() / b.mean()), int(a.size)
    if n < 2:
        return Interval(center, -math.inf, math.inf, n)
    t2 = float(stats.t.ppf(0.5 + level / 2, n - 1)) ** 2 / n
    aa, ab, bb = (float(np.cov(u, v)[0, 1]) * t2 for u, v in ((a, a), (a, b), (b, b)))
    # All ρ with (ā − ρ b̄)² ≤ t² var(a − ρ b)/n: a quadratic in ρ.
    first, middle, last = float(b.mean()) ** 2 - bb, float(a.mean() * b.mean()) - ab, float(a.mean()) ** 2 - aa
    if first <= 0:
        return Interval(center, -math.inf, math.inf, n)
    root = math.sqrt(max(0.0, middle**2 - first * last))
    return Interval(center, (middle - root) / first, (middle + root) / first, n)


def slope(x: ArrayLike, y: ArrayLike) -> float:
    """The exponent p of the power law y ∝ x^p nearest to the points (least squares of logarithms)."""
    lx, ly = np.log(np.asarray(x, dtype=np.float64)), np.log(np.asarray(y, dtype=np.float64))
    lx = lx - lx.mean()
    return float(lx @ ly / (lx @ lx))


def exponent(x: ArrayLike, by_seed: Sequence[Mapping[int, float]]) -> Interval:
    """The exponent of y ∝ x^p, fitted for each seed apart; `by_seed` has one mapping for each x."""
    seeds = sorted(set.intersection(*(set(values) for values in by_seed)))
    return interval([slope(x, [values[seed] for values in by_seed]) for seed in seeds])
