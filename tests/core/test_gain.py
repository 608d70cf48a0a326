"""The gain over control: the interval covers at all looks together, and the forecast keeps its word."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbandit.core.gain import LEAST, LEVEL, gain_over_control, half_width
from fedbandit.core.group_sums import GROUPS, NO_GROUPS, GroupSums, RewardSums
from fedbandit.errors import FormatError, InvalidParameter

N, Q = 4_000, 0.1


def sums(rewards):
    values = np.asarray(rewards, dtype=float)
    return RewardSums(len(values), float(values.sum()), float(values @ values))


def gaussian(rng):
    return rng.normal(0.2, 1.0, N), rng.normal(0.0, 1.0, N)


def rare_clicks(rng):
    return (rng.random(N) < 0.03).astype(float), (rng.random(N) < 0.03).astype(float)


def skewed(rng):
    return rng.exponential(1.0, N), rng.exponential(1.0, N)


def learning(rng):
    """Treatment gets better with time; what is covered is the mean difference so far."""
    return 0.5 * np.minimum(np.arange(N) / 2_000, 1.0) + rng.normal(0.0, 0.5, N), rng.normal(0.0, 0.5, N)


WORLDS = {
    "gaussian": (gaussian, lambda t: np.full(t, 0.2)),
    "rare clicks": (rare_clicks, lambda t: np.zeros(t)),
    "skewed": (skewed, lambda t: np.zeros(t)),
    "learning": (learning, lambda t: np.cumsum(0.5 * np.minimum(np.arange(t) / 2_000, 1.0)) / np.arange(1, t + 1)),
}


@cache
def _grid():
    grid = np.geomspace(1.0, 2 * N, 2_000)
    return np.log(grid), np.log([half_width(c, 1.0) for c in grid])


def half_widths(clock):
    """`half_width` of many clocks at variance 1, on a grid so fine that the error is below 1e-4."""
    return np.exp(np.interp(np.log(clock), *_grid()))


def misses(draw, effect, rng):
    """Whether any of all the intervals of one experiment, one after every observation, misses the effect so far."""
    treated, controlled = draw(rng)
    is_control = rng.random(N) < Q
    counts = np.arange(1, N + 1)
    n_c = np.cumsum(is_control)
    n_t = counts - n_c
    looks = (n_c >= LEAST) & (n_t >= LEAST)
    moments = []
    for values, mask, n in ((treated, ~is_control, n_t), (controlled, is_control, n_c)):
        kept, n = np.where(mask, values, 0.0), np.maximum(n, 2)
        mean = np.cumsum(kept) / n
        moments.append((mean, (np.cumsum(kept**2) - n * mean**2) / (n - 1)))
    (mean_t, var_t), (mean_c, var_c) = moments
    clock = n_c[looks] * n_t[looks] / counts[looks]
    half = half_widths(clock) * np.sqrt(np.maximum(var_t, var_c)[looks])
    return bool((np.abs(mean_t - mean_c - effect(N))[looks] > half).any())


@pytest.mark.parametrize("name", WORLDS)
def test_intervals_cover_the_gain_in_a_thousand_experiments_with_a_look_after_every_observation(name):
    rng = np.random.default_rng(1)
    assert sum(misses(*WORLDS[name], rng) for _ in range(1_000)) <= 1_000 * LEVEL


def test_the_gain_of_these_sums_is_the_interval_of_the_formula():
    rng = np.random.default_rng(2)
    one, two = rng.normal(1.0, 1.0, 400), rng.normal(1.5, 0.5, 7_600)
    found = gain_over_control(GroupSums(sums(one), sums(two)), control=0.05)
    assert found.gain == pytest.approx(two.mean() - one.mean())
    half = half_width(400 * 7_600 / 8_000, float(np.var(one, ddof=1)))
    assert (found.low, found.high) == pytest.approx((found.gain - half, found.gain + half))
    assert (found.state, found.n_more) == ("better", 0)
    assert found.relative == pytest.approx(found.gain / one.mean())
    worse = gain_over_control(GroupSums(sums(two), sums(one)), control=0.95)
    assert worse.state == "worse" and worse.high == pytest.approx(-found.low)


def test_the_forecast_is_when_the_interval_excludes_zero_if_the_gain_stays():
    def scaled(factor):
        n_control, n_treatment = round(100 * factor), round(1_900 * factor)
        return GroupSums(
            RewardSums(n_control, 0.0, float(n_control)), RewardSums(n_treatment, 0.1 * n_treatment, n_treatment * 1.01)
        )

    now = gain_over_control(scaled(1), control=0.05)
    assert now.state == "undecided"
    after = 1 + now.n_more / 2_000
    assert gain_over_control(scaled(1.02 * after), control=0.05).state == "better"
    assert gain_over_control(scaled(0.98 * after), control=0.05).state == "undecided"


def test_small_groups_have_no_interval_and_say_how_many_are_missing():
    nothing = gain_over_control(NO_GROUPS, control=0.05)
    assert (nothing.gain, nothing.low, nothing.state, nothing.n_more) == (None, None, "undecided", None)
    few = gain_over_control(GroupSums(sums([1.0] * 20), sums([0.0] * 500)), control=0.05)
    assert (few.low, few.n_more) == (None, 200)
    equal = gain_over_control(GroupSums(sums([1.0, 0.0] * 50), sums([1.0, 0.0] * 500)), control=0.1)
    assert equal.gain == 0.0 and equal.n_more is None
    with pytest.raises(InvalidParameter):
        gain_over_control(NO_GROUPS, control=0.05, level=1.5)


rewards = st.lists(st.tuples(st.sampled_from(GROUPS), st.integers(-5, 5)), max_size=30)


@given(rewards, rewards)
def test_sums_per_group_add_and_survive_their_bytes(first, second):
    def of(pairs):
        total = NO_GROUPS
        for group, reward in pairs:
            total = total.observe(group, float(reward))
        return total

    assert of(first) + of(second) == of(first + second)
    assert GroupSums.from_bytes(of(first).to_bytes()) == of(first)
    assert of(first).n_obs == len(first)
    assert len(of(first).to_bytes()) == (48 if first else 0)


@pytest.mark.parametrize("packed", [b"x", b"x" * 47, np.full(6, np.nan).tobytes(), np.full(6, 0.5).tobytes()])
def test_bytes_that_are_no_sums_are_named(packed):
    with pytest.raises(FormatError):
        GroupSums.from_bytes(packed)
