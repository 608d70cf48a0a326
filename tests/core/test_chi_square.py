"""χ² tails and quantiles against SciPy's, and against closed forms."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbandit.core.chi_square import log_upper_tail, upper_quantile
from fedbandit.errors import InvalidParameter

chi2 = pytest.importorskip("scipy.stats").chi2
DEGREES = [1, 2, 3, 7, 15, 25, 100, 1_000, 4_096]


@pytest.mark.parametrize("k", DEGREES)
@pytest.mark.parametrize("p", [1e-300, 1e-30, 1e-9, 1e-6, 1e-3, 0.05, 0.5, 0.95, 0.999])
def test_quantiles_are_scipys(k, p):
    assert upper_quantile(p, k) == pytest.approx(chi2.isf(p, k), rel=1e-10)


@given(k=st.integers(1, 5_000), x=st.floats(1e-3, 20_000.0))
def test_tails_are_scipys(k, x):
    tail = log_upper_tail(x, k)
    if tail > -690:  # below that SciPy's tail underflows
        assert tail == pytest.approx(chi2.logsf(x, k), rel=1e-9, abs=1e-12)


@given(k=st.integers(1, 500), p=st.floats(1e-12, 0.999))
def test_a_quantile_has_its_tail(k, p):
    assert math.exp(log_upper_tail(upper_quantile(p, k), k)) == pytest.approx(p, rel=1e-9)


def test_two_degrees_of_freedom_are_an_exponential():
    assert log_upper_tail(9.0, 2) == pytest.approx(-4.5, rel=1e-14)
    assert log_upper_tail(0.0, 2) == 0.0


@pytest.mark.parametrize("bad", [0.0, 1.0, -0.1, math.nan, math.inf, None])
def test_a_probability_is_between_zero_and_one(bad):
    with pytest.raises(InvalidParameter):
        upper_quantile(bad, 3)
