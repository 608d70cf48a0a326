"""Upper tails and quantiles of χ² distributions, far out in the tail, without SciPy.

P(χ²_k > x) is the regularised upper incomplete gamma function Q(k/2, x/2): its continued fraction converges quickly
above the mean, and the series of 1 − Q below it. Logarithms throughout: tails of 1e-300 are as exact as those of 0.1.
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

from fedbandit.core.arrays import finite_at_least, whole_at_least
from fedbandit.errors import InvalidParameter

MAX_TERMS = 100_000  # both expansions need about √k of them
TINY = 1e-300
PRECISION = 1e-15


def log_upper_tail(x: float, n_degrees: float) -> float:
    """log P(χ²_k > x) for k > 0 degrees of freedom.

    >>> round(math.exp(log_upper_tail(2.0, 2)), 12) == round(math.exp(-1.0), 12)
    True
    """
    a, z = 0.5 * finite_at_least(n_degrees, 0.0, "n_degrees"), 0.5 * finite_at_least(x, 0.0, "x")
    if a == 0.0:
        raise InvalidParameter("expected n_degrees > 0, got 0")
    if z == 0.0:
        return 0.0
    front = a * math.log(z) - z - math.lgamma(a)
    if z < a + 1.0:
        return math.log1p(-math.exp(front + math.log(series(a, z))))
    return front + math.log(fraction(a, z))


def chi2_tail(value: float, df: float) -> float:
    """P(χ²_df > value); 1 for a negative value.

    >>> round(chi2_tail(3.841, 1.0), 4), round(chi2_tail(18.307, 10.0), 4)
    (0.05, 0.05)
    """
    return math.exp(log_upper_tail(max(value, 0.0), df))


@lru_cache(maxsize=4096)
def upper_quantile(probability: float, n_degrees: int) -> float:
    """The x with P(χ²_k > x) = probability, which is in (0, 1).

    >>> round(upper_quantile(1e-6, 15), 4)
    56.4934
    """
    if not 0.0 < finite_at_least(probability, 0.0, "probability") < 1.0:
        raise InvalidParameter(f"expected a probability between 0 and 1, got {probability:g}")
    k = whole_at_least(n_degrees, 1, "n_degrees")
    target = math.log(probability)
    low, high = 0.0, _guess(probability, k)
    while log_upper_tail(high, k) > target:
        low, high = high, 2.0 * high
    x = high
    # Newton's steps on the logarithm, which is concave; bisection where one would leave the bracket.
    for _ in range(200):
        tail = log_upper_tail(x, k)
        if tail > target:
            low = x
        else:
            high = x
        density = (0.5 * k - 1.0) * math.log(x) - 0.5 * x - 0.5 * k * math.log(2.0) - math.lgamma(0.5 * k)
        step = x + (tail - target) * math.exp(tail - density)
        following = step if low < step < high else 0.5 * (low + high)
        if abs(following - x) <= 4e-16 * x:
            break
        x = following
    return x


def _guess(probability: float, k: int) -> float:
    """Wilson and Hilferty's: the cube root of χ²_k/k is nearly normal."""
    z = -NormalDist().inv_cdf(probability)
    spread = 2.0 / (9.0 * k)
    return max(k * (1.0 - spread + z * math.sqrt(spread)) ** 3, 1e-3)


def series(a: float, z: float) -> float:
    """Σ zⁿ / (a (a+1) … (a+n)): the lower tail is z^a e^(−z)/Γ(a) times it."""
    term = total = 1.0 / a
    for n in range(1, MAX_TERMS):
        term *= z / (a + n)
        total += term
        if term <= PRECISION * total:
            break
    return total


def fraction(a: float, z: float) -> float:
    """Legendre's continued fraction by Lentz's method: the upper tail is z^a e^(−z)/Γ(a) times it."""
    b = z + 1.0 - a
    c, d = 1.0 / TINY, 1.0 / b
    value = d
    for n in range(1, MAX_TERMS):
        numerator = -n * (n - a)
        b += 2.0
        d = 1.0 / away_from_zero(numerator * d + b)
        c = away_from_zero(b + numerator / c)
        value *= c * d
        if abs(c * d - 1.0) <= PRECISION:
            break
    return value


def away_from_zero(number: float) -> float:
    """The number, or the smallest that a continued fraction can divide by."""
    return number if abs(number) > TINY else TINY
