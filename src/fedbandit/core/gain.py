"""The gain of an algorithm over control, with an interval that may be looked at at any time.

The interval is an asymptotic confidence sequence (Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas 2021) by Robbins'
normal mixture, from sums alone: r̄_T − r̄_C ± √V · √(2(τη + 1)/(τη) · log(√(τη + 1)/level)), V = s²(1/n_C + 1/n_T),
s² the larger of the two groups' variances, and the clock τ = n_C n_T/(n_C + n_T). With probability 1 − level all
intervals together contain the mean difference so far, up to an error that vanishes as groups grow. docs/theory.md says
what it assumes.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

from fedbandit.core.arrays import finite_at_least
from fedbandit.core.group_sums import GroupSums
from fedbandit.errors import InvalidParameter

GainState = Literal["better", "worse", "undecided"]
LEVEL = 0.05
LEAST = 30  # rewards per group from which there is an interval
TIGHTEST_AT = 500.0  # control rewards at which the interval is as narrow as it can be
MOST_MORE = 10**12


@dataclass(frozen=True, slots=True)
class Gain:
    """Mean reward of treatment minus that of control. `low` and `high` are None while a group is too small."""

    n_control: int
    n_treatment: int
    mean_control: float | None
    mean_treatment: float | None
    gain: float | None
    low: float | None
    high: float | None
    level: float
    state: GainState
    n_more: int | None  # observations until the interval excludes 0, if the gain stays as it is; None: not foreseeable

    def to_dict(self) -> dict[str, Any]:
        """Plain values for the API."""
        return {**asdict(self), "relative": self.relative}

    @property
    def relative(self) -> float | None:
        """The gain as a share of control's mean reward, where that is positive."""
        if self.gain is None or self.mean_control is None or self.mean_control <= 0:
            return None
        return self.gain / self.mean_control


def gain_over_control(groups: GroupSums, *, control: float, level: float = LEVEL) -> Gain:
    """The gain so far. `control` is the share of decisions in the control group, for the forecast."""
    if not 0.0 < finite_at_least(level, 0.0, "level", strictly=True) < 1.0:
        raise InvalidParameter(f"expected a level between 0 and 1, got {level:g}")
    one, two = groups.control, groups.treatment
    counts = (one.n_obs, two.n_obs, one.mean, two.mean)
    if one.mean is None or two.mean is None:
        return Gain(*counts, None, None, None, level, "undecided", None)
    gain = two.mean - one.mean
    if min(one.n_obs, two.n_obs) < LEAST:
        more = math.ceil((LEAST - one.n_obs) / control) if one.n_obs < LEAST and control > 0 else LEAST - two.n_obs
        return Gain(*counts, gain, None, None, level, "undecided", max(more, 1))
    variance = max(one.variance or 0.0, two.variance or 0.0)
    clock = one.n_obs * two.n_obs / (one.n_obs + two.n_obs)
    half = half_width(clock, variance, level)
    low, high = gain - half, gain + half
    state: GainState = "better" if low > 0 else "worse" if high < 0 else "undecided"
    n_more = 0 if state != "undecided" else _n_more(gain, clock, variance, groups.n_obs, level)
    return Gain(*counts, gain, low, high, level, state, n_more)


def half_width(clock: float, variance: float, level: float = LEVEL) -> float:
    """Half of the interval at the clock τ = n_C n_T/(n_C + n_T).

    >>> round(half_width(500.0, 1.0), 3), round(half_width(2000.0, 1.0), 3)
    (0.136, 0.07)
    """
    x = clock * _eta(level)
    return math.sqrt(variance / clock * 2.0 * (x + 1.0) / x * math.log(math.sqrt(x + 1.0) / level))


def _eta(level: float) -> float:
    """The mixture's parameter that makes the interval narrowest at `TIGHTEST_AT`."""
    t = -2.0 * math.log(level)
    return (t + math.log1p(t)) / TIGHTEST_AT


def _n_more(gain: float, clock: float, variance: float, n_obs: int, level: float) -> int | None:
    """Observations until the half-width falls below |gain|, groups in the proportion of now."""
    if gain == 0.0:
        return None
    low, high = clock, clock
    while half_width(high, variance, level) >= abs(gain):
        high *= 2.0
        if high / clock * n_obs > MOST_MORE:
            return None
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if half_width(middle, variance, level) >= abs(gain) else (low, middle)
    return max(math.ceil((high / clock - 1.0) * n_obs), 1)
