"""Upper tail probabilities of F distributions, without SciPy; those of χ² are in chi_square.py."""

from __future__ import annotations

import math

from fedbandit.core.chi_square import away_from_zero, chi2_tail

MAX_STEPS = 10_000


def f_tail(value: float, df: float, df_noise: float) -> float:
    """P(F > value) for `df` over `df_noise` degrees of freedom: I_z(df_noise/2, df/2) at z = dn/(dn + df·value).

    >>> round(f_tail(4.965, 1.0, 10.0), 4), round(f_tail(2.978, 10.0, 10.0), 4)
    (0.05, 0.05)
    """
    if value <= 0:
        return 1.0
    if math.isinf(df_noise):
        return chi2_tail(df * value, df)
    return _incomplete_beta(df_noise / (df_noise + df * value), 0.5 * df_noise, 0.5 * df)


def _incomplete_beta(z: float, a: float, b: float) -> float:
    """I_z(a, b), by its continued fraction on the side where that converges fast."""
    if z <= 0.0:
        return 0.0
    if z >= 1.0:
        return 1.0
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(z) + b * math.log1p(-z)
    front = math.exp(min(log_front, 700.0))
    if z < (a + 1.0) / (a + b + 2.0):
        return min(front * _beta_fraction(z, a, b) / a, 1.0)
    return max(1.0 - front * _beta_fraction(1.0 - z, b, a) / b, 0.0)


def _beta_fraction(z: float, a: float, b: float) -> float:
    c, d = 1.0, 1.0 / away_from_zero(1.0 - (a + b) * z / (a + 1.0))
    product = d
    for m in range(1, MAX_STEPS):
        even = m * (b - m) * z / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * z / ((a + 2 * m) * (a + 2 * m + 1))
        for step in (even, odd):
            d = 1.0 / away_from_zero(1.0 + step * d)
            c = away_from_zero(1.0 + step / c)
            product *= c * d
        if abs(c * d - 1.0) < 1e-15:
            break
    return product
