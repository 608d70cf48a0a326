import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbandit.errors import InvalidParameter
from fedbandit.experiments.compare import (
    Interval,
    difference,
    exponent,
    interval,
    log_interval,
    proportion,
    ratio,
    slope,
)


def test_t_intervals_cover_the_mean_as_often_as_they_say():
    rng = np.random.default_rng(0)
    hits = [interval(rng.normal(3.0, 2.0, size=5)).contains(3.0) for _ in range(2000)]
    assert np.mean(hits) == pytest.approx(0.95, abs=0.02)  # three standard errors are 0.015


def test_one_seed_has_no_interval_and_none_is_an_error():
    assert interval([2.0]) == Interval(2.0, -math.inf, math.inf, 1)
    assert f"{interval([2.0]):.1f}" == "2.0"
    with pytest.raises(InvalidParameter):
        interval([])


def test_pairing_uses_the_seeds_that_both_have():
    ours, theirs = {0: 2.0, 1: 4.0, 2: 100.0}, {0: 1.0, 1: 2.0, 3: 7.0}
    assert difference(ours, theirs).mean == 1.5
    assert ratio(ours, theirs).mean == pytest.approx(2.0)
    assert ratio(ours, theirs).half == pytest.approx(0.0, abs=1e-12)


def test_pairing_is_sharper_than_two_separate_means():
    rng = np.random.default_rng(1)
    luck = rng.normal(0, 10, size=30)
    ours = {s: float(luck[s] + rng.normal(1, 1)) for s in range(30)}
    theirs = {s: float(luck[s] + rng.normal(0, 1)) for s in range(30)}
    assert difference(ours, theirs).half < interval(list(ours.values())).half / 3


@given(st.floats(-3, 3), st.floats(0.1, 10))
def test_a_power_law_gives_its_exponent_back(power, scale):
    x = [1.0, 2.0, 5.0, 9.0]
    assert slope(x, [scale * v**power for v in x]) == pytest.approx(power, abs=1e-9)


def test_exponents_carry_the_spread_of_the_seeds():
    x = [1.0, 10.0, 100.0]
    by_seed = [{0: v**0.4, 1: v**0.5, 2: v**0.6} for v in x]
    fitted = exponent(x, by_seed)
    assert fitted.mean == pytest.approx(0.5)
    assert fitted.contains(0.4)
    assert fitted.n == 3


def test_shares_and_geometric_means():
    assert proportion([True] * 20).high == 1.0
    assert proportion([False] * 20).low == 0.0
    assert proportion([False] * 20).high < 0.17  # three in twenty would be seen
    assert log_interval([1.0, 4.0]).mean == pytest.approx(2.0)
