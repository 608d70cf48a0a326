"""Claims of studies follow from intervals: a claim holds for every value inside them."""

import math
import re

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fedbandit.experiments import claims
from fedbandit.experiments.claims import OPEN
from fedbandit.experiments.compare import Interval, ratio_of_means
from fedbandit.experiments.studies.table1 import says_growth

numbers = st.floats(-5, 5, allow_nan=False)


@st.composite
def intervals(draw, values=numbers) -> Interval:
    if draw(st.integers(0, 9)) == 0:
        return Interval(draw(values), -math.inf, math.inf, 1)
    low, mean, high = sorted(draw(st.tuples(values, values, values)))
    return Interval(mean, low, high, 3)


ratios = intervals(st.floats(0.01, 5, allow_nan=False))


@given(intervals(), numbers)
def test_a_side_is_named_only_if_the_whole_interval_is_there(value, limit):
    found = claims.side(value, limit)
    assert (found == claims.BELOW) == (value.high < limit)
    assert (found == claims.ABOVE) == (value.low > limit)


@given(st.dictionaries(st.integers(1, 5_000), ratios, min_size=1, max_size=6))
def test_a_delay_costs_less_only_where_every_interval_up_to_it_says_so(times):
    text = claims.says_delay(times)
    if found := re.search(r"up to ([\d,]+) rounds costs less than 10 %", text):
        reach = int(found[1].replace(",", ""))
        assert all(value.high < 1.1 for delay, value in times.items() if delay <= reach)
    elif "costs more than 10 %" in text:
        assert all(value.low > 1.1 for value in times.values())
    else:
        assert OPEN in text


def test_the_delay_that_was_called_cheap_is_open():
    """A mean of 0.91 in [0.57, 1.45] said "costs less than 10 %"; so did a delay beyond one that costs more."""
    assert OPEN in claims.says_delay({10: Interval(0.91, 0.57, 1.45, 3)})
    gap = {3: Interval(1.0, 0.9, 1.05, 8), 10: Interval(1.3, 1.2, 1.4, 8), 30: Interval(1.0, 0.9, 1.05, 8)}
    assert claims.says_delay(gap) == "a delay up to 3 rounds costs less than 10 %"


@given(ratios)
def test_a_direction_is_named_only_if_the_interval_has_one(value):
    text = claims.says_change(value)
    assert (text == "grows") == (value.low > 1) and (text == "falls") == (value.high < 1)
    assert (OPEN in text) == (value.low <= 1 <= value.high)


@given(intervals())
def test_a_gain_is_claimed_only_if_no_loss_is_possible(gap):
    text = claims.says_gain(gap)
    assert text.startswith("sharing gains ") == (gap.low > 0 and math.isfinite(gap.half))
    assert text.startswith("sharing loses ") == (gap.high < 0 and math.isfinite(gap.half))
    assert "little" not in text


def test_the_gain_on_wine_is_not_little():
    """0.755 against 0.914 was called "little to gain", since the interval of the *part reached* was wide."""
    gap = Interval(0.159, 0.12, 0.198, 3)
    assert claims.says_gain(gap) == "sharing gains 0.159 [0.120, 0.198]"


@given(intervals(), st.floats(0.1, 1.5))
def test_a_part_is_less_than_wanted_only_if_its_upper_end_is(part, wanted):
    text = claims.says_part(part, wanted)
    assert (", less than" in text) == (part.high < wanted)
    if OPEN not in text and ", less than" not in text:
        assert part.low > wanted


@given(intervals(), numbers)
def test_an_estimate_is_called_biased_only_if_the_truth_is_outside(value, truth):
    text = claims.says_truth(value, truth)
    assert (text == "is biased") == (not value.low <= truth <= value.high)
    if found := re.match(r"is at most (\S+) off", text):
        most = float(found[1].replace("\u202f", ""))
        assert max(abs(value.low - truth), abs(value.high - truth)) <= most * 1.01 + 1e-9


@given(intervals(), numbers)
def test_a_rate_is_within_only_if_the_upper_end_of_the_exponent_is(measured, promised):
    found = claims.says_rate(measured, promised, slack=0.02)
    assert (found == "above") == (measured.low > promised + 0.02)
    assert (found == "within") == (measured.high < promised + 0.02)


@given(st.lists(st.tuples(intervals(), numbers), max_size=4), st.integers(0, 5))
def test_growth_that_seeds_leave_open_is_not_denied(found, n_unclear):
    above = [("DisLinUCB", "regret", "M", value, promised) for value, promised in found]
    text = says_growth(above, n_unclear)
    assert text.startswith("no system's") == (not above and not n_unclear)
    assert text.count("DisLinUCB's") == len(above)
    assert (f"{n_unclear} {OPEN}" in text) == (n_unclear > 0)


@given(st.lists(ratios, min_size=1, max_size=6))
def test_none_beats_the_base_only_if_none_can(relative):
    text = claims.says_few(relative)
    shown = sum(value.high < 0.95 for value in relative)
    possible = sum(value.low <= 0.95 for value in relative)
    if text.startswith("none") and "is shown" not in text:
        assert possible == 0
    elif text.startswith("none"):
        assert shown == 0
    else:
        assert text.startswith(f"{shown} of {len(relative)} settings are better")


@given(intervals(st.floats(0, 1)), st.floats(0.5, 1))
def test_a_radius_fails_only_if_the_interval_excludes_what_it_promises(held, promised):
    assert (claims.says_coverage(held, promised) == "fails as expected") == (held.high < promised)


@given(st.lists(intervals(), min_size=1, max_size=4))
def test_an_order_holds_only_if_every_step_is_shown(steps):
    text = claims.says_order(steps)
    assert (text == "holds") == all(step.high < 0 for step in steps)
    assert (text == "does not hold") == any(step.low > 0 for step in steps)


@given(st.integers(0, 2**32 - 1), st.floats(0.2, 1.0), st.integers(2, 12))
def test_the_interval_of_a_ratio_holds_its_own_mean(seed, true_ratio, n):
    rng = np.random.default_rng(seed)
    b = 1 + 0.3 * rng.normal(size=n)
    a = true_ratio * b + 0.1 * rng.normal(size=n)
    assume(abs(b.mean()) > 1e-6)
    found = ratio_of_means(a, b)
    assert found.low <= found.mean <= found.high or found.half == math.inf


def test_the_interval_of_a_ratio_covers_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(3)
    hits = 0
    for _ in range(400):
        b = 0.5 + 0.3 * rng.normal(size=8)
        a = 0.8 * b + 0.2 * rng.normal(size=8)
        hits += ratio_of_means(a, b).contains(0.8)
    assert 0.92 <= hits / 400 <= 0.98


def test_a_ratio_to_something_that_may_be_zero_has_no_interval():
    found = ratio_of_means([0.1, -0.1, 0.2], [0.02, -0.03, 0.02])
    assert found.half == math.inf


@pytest.mark.parametrize("text", [claims.says_gain(Interval(0.1, -math.inf, math.inf, 1))])
def test_one_seed_decides_nothing(text):
    assert OPEN in text and "inf" not in text
