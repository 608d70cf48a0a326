"""Tail probabilities against scipy's."""

import math

import numpy as np
import pytest
from scipy import stats

from fedbandit.core.chi_square import chi2_tail
from fedbandit.core.tails import f_tail

LEVELS = (0.9, 0.5, 0.05, 1e-3, 1e-6, 1e-12)


@pytest.mark.parametrize("df", [1.0, 2.5, 10.0, 200.0, 1e4, 1e6])
def test_chi_square_tails_are_scipys(df):
    values = stats.chi2.isf(LEVELS, df)
    assert [chi2_tail(value, df) for value in values] == pytest.approx(list(LEVELS), rel=1e-6)


@pytest.mark.parametrize("df", [1.0, 7.0, 25.0, 400.0, 1e5])
@pytest.mark.parametrize("df_noise", [3.0, 10.0, 250.0, 1e5])
def test_f_tails_are_scipys(df, df_noise):
    values = stats.f.isf(LEVELS, df, df_noise)
    wanted = stats.f.sf(values, df, df_noise)
    assert [f_tail(value, df, df_noise) for value in values] == pytest.approx(wanted.tolist(), rel=1e-6)


def test_the_ends_of_the_range():
    assert (chi2_tail(0.0, 3.0), f_tail(-1.0, 3.0, 4.0)) == (1.0, 1.0)
    assert chi2_tail(1e6, 3.0) == 0.0
    assert f_tail(1e300, 3.0, 100.0) < 1e-300
    assert f_tail(2.0, 5.0, math.inf) == chi2_tail(10.0, 5.0)
    assert np.isfinite(f_tail(1.0, 1e7, 1e7))
