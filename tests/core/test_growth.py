"""The running log-determinant against a fresh factorisation, at the sizes and scales where rounding could build up."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbandit import RidgeModel, SufficientStats
from fedbandit.core.growth import MAX_GROWTH, TOGETHER, GrowthTracker, exceeds
from fedbandit.core.ridge import factorise
from fedbandit.core.statistics import RunningStats

DRIFT = 1e-8


class Tracked:
    """A tracker with the Σ it speaks of, refreshed as its owners do it."""

    def __init__(self, dim, lam):
        self.model = RidgeModel(SufficientStats.prior(dim=dim, lam=lam))
        self.tracker = GrowthTracker(self.model.inverse, self.model.log_det)
        self.local = RunningStats(dim)
        self.n_restarts = 0

    def observe(self, x):
        self.local.observe(x, 0.0)
        self.tracker.observe(x)
        if self.tracker.is_stale:
            self.tracker.restart(self.Sigma)
            self.n_restarts += 1

    @property
    def Sigma(self):
        return self.model.stats.Sigma + self.local.Sigma

    def drift(self):
        """Error of log det and of Σ⁻¹, relative, with Σ⁻¹ measured in its own scale."""
        factor = factorise(self.Sigma)
        growth = factor.log_det - self.model.log_det
        exact = factor.W.T @ factor.W
        unit = np.sqrt(np.diagonal(exact))
        return max(
            abs(self.tracker.value - growth) / max(1.0, growth),
            float(np.max(np.abs(self.tracker.P - exact) / np.outer(unit, unit))),
        )

    def rounding_level(self):
        """The accuracy of a fresh factorisation: the condition of Σ at unit diagonal, times the rounding."""
        unit = np.sqrt(np.diagonal(self.Sigma))
        return float(np.linalg.cond(self.Sigma / np.outer(unit, unit))) * np.finfo(float).eps


def features(rng, dim, *, decades):
    """One row, whose features differ by `decades` in scale."""
    half = decades / 2
    scale = 10.0 ** np.linspace(-half, half, dim) if dim > 1 else 10.0 ** rng.uniform(-half, half)
    return rng.standard_normal(dim) * scale


@pytest.mark.parametrize("decades", [0, 6])
@pytest.mark.parametrize("lam", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("dim", [1, 2, 15, 60])
def test_growth_follows_a_fresh_factorisation_over_scales_and_ridges(dim, lam, decades):
    rng = np.random.default_rng(dim)
    tracked = Tracked(dim, lam)
    worst = 0.0
    for i in range(700):
        tracked.observe(features(rng, dim, decades=decades))
        if i < 5 or i % 17 == 0:
            worst = max(worst, tracked.drift())
    assert worst <= DRIFT


@pytest.mark.parametrize("lam", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("dim", [1, 15, 60])
def test_rows_over_six_decades_cost_no_more_than_the_factorisation_itself_loses(dim, lam):
    # With fewer rows than dimensions and λ = 1e-6 the rows of size 10³ leave κ = 1e13: there Σ itself, as float64,
    # knows its smallest eigenvalues to three digits, and two factorisations of it agree no better.
    rng = np.random.default_rng(dim)
    tracked = Tracked(dim, lam)
    for i in range(300):
        tracked.observe(rng.standard_normal(dim) * 10.0 ** rng.uniform(-3, 3))
        if i % 13 == 0:
            assert tracked.drift() <= max(DRIFT, tracked.rounding_level())


@pytest.mark.parametrize("lam", [1e-6, 1e6])
def test_growth_holds_in_four_hundred_dimensions(lam):
    rng = np.random.default_rng(0)
    tracked = Tracked(400, lam)
    for i in range(120):
        tracked.observe(features(rng, 400, decades=6))
        if i in (1, 60, 119):
            assert tracked.drift() <= DRIFT
    assert np.isfinite(tracked.tracker.value)


def test_one_hundred_thousand_observations_without_an_exchange_leave_no_drift():
    rng = np.random.default_rng(0)
    tracked = Tracked(5, 1e-6)
    X = rng.standard_normal((100_000, 5)) * 10.0 ** np.linspace(-3, 3, 5)
    for i, x in enumerate(X):
        tracked.observe(x)
        if i % 9_973 == 0:
            assert tracked.drift() <= DRIFT
    fresh = np.linalg.slogdet(1e-6 * np.eye(5) + X.T @ X)[1] - 5 * np.log(1e-6)
    assert tracked.tracker.value == pytest.approx(fresh, rel=DRIFT)
    assert tracked.n_restarts >= 100_000 // 256


@pytest.mark.slow
@pytest.mark.parametrize(("dim", "lam"), [(15, 1e-6), (15, 1e6)])
def test_a_million_observations_without_an_exchange_leave_no_drift(dim, lam):
    rng = np.random.default_rng(0)
    tracked = Tracked(dim, lam)
    Sigma = lam * np.eye(dim)
    scale = 10.0 ** np.linspace(-3, 3, dim)
    for _ in range(100):
        X = rng.standard_normal((10_000, dim)) * scale
        Sigma += X.T @ X
        for x in X:
            tracked.observe(x)
        assert tracked.drift() <= DRIFT
    fresh = np.linalg.slogdet(Sigma)[1] - dim * np.log(lam)
    assert tracked.tracker.value == pytest.approx(fresh, rel=DRIFT)


def test_without_refreshing_the_inverse_does_drift_so_the_restart_is_needed():
    # One huge row after a tiny ridge cancels all digits of P in its direction.
    tracked = Tracked(2, 1e-6)
    tracked.tracker.observe(np.array([1e6, 1e6]))
    tracked.local.observe(np.array([1e6, 1e6]), 0.0)
    assert tracked.drift() > DRIFT
    assert tracked.tracker.is_stale
    tracked.tracker.restart(tracked.Sigma)
    assert tracked.drift() <= DRIFT


@given(st.integers(1, 5), st.integers(0, 1000), st.lists(st.booleans(), min_size=1, max_size=12))
def test_growth_adds_up_over_rebases_and_never_falls(dim, seed, rebases):
    rng = np.random.default_rng(seed)
    tracked = Tracked(dim, 1.0)
    total = 0.0
    for rebase in rebases:
        before = tracked.tracker.value
        x = rng.standard_normal(dim)
        assert tracked.tracker.observe(x) >= before
        tracked.local.observe(x, 0.0)
        if rebase:
            total += tracked.tracker.value
            tracked.tracker.rebase()
            assert tracked.tracker.value == 0.0
    total += tracked.tracker.value
    assert total == pytest.approx(factorise(tracked.Sigma).log_det - tracked.model.log_det, abs=1e-9)
    assert tracked.tracker.log_det_base + tracked.tracker.value == pytest.approx(tracked.model.log_det + total)


def test_a_zero_row_changes_nothing():
    tracked = Tracked(3, 2.0)
    assert tracked.tracker.observe(np.zeros(3)) == 0.0
    np.testing.assert_allclose(tracked.tracker.P, np.eye(3) / 2.0)


def test_a_saved_tracker_goes_on_to_the_same_bit():
    rng = np.random.default_rng(0)
    tracked = Tracked(4, 0.1)
    for _ in range(10):
        tracked.observe(rng.standard_normal(4))
    copy = GrowthTracker.from_state(tracked.tracker.state(), 4)
    for _ in range(300):
        x = rng.standard_normal(4)
        assert copy.observe(x) == tracked.tracker.observe(x)
        assert copy.is_stale == tracked.tracker.is_stale
    np.testing.assert_array_equal(copy.P, tracked.tracker.P)


def test_a_ratio_of_exactly_one_plus_alpha_does_not_exceed_it():
    # det(I + diag(3, 0)) = 4 exactly; the logarithms of both sides are rounded differently.
    for alpha in range(1, 200):
        tracker = GrowthTracker(np.eye(2), 0.0)
        tracker.observe(np.array([np.sqrt(float(alpha)), 0.0]))
        assert not exceeds(tracker.value, np.log1p(alpha))
        tracker.observe(np.array([1e-4, 0.0]))
        assert exceeds(tracker.value, np.log1p(alpha))


def test_nothing_exceeds_infinity_and_any_growth_exceeds_zero():
    assert not exceeds(1e300, np.inf)
    assert exceeds(1e-300, 0.0)
    assert not exceeds(0.0, 0.0)


@given(st.integers(1, 40), st.integers(0, 3 * TOGETHER), st.integers(0, 2**32 - 1))
def test_rows_that_are_added_together_count_as_rows_one_by_one(dim, n_rows, seed):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n_rows, dim)) * rng.uniform(0.1, 3.0)
    one_by_one, together = (GrowthTracker(np.eye(dim), 0.0) for _ in range(2))
    for x in X:
        one_by_one.observe(x)
    assert together.observe_rows(X) == together.value
    assert together.value == pytest.approx(one_by_one.value, rel=1e-11, abs=1e-13)
    np.testing.assert_allclose(together.P, one_by_one.P, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(together.P, together.P.T)
    assert together.is_stale == one_by_one.is_stale and together._steps == n_rows
    assert together._steepest >= one_by_one._steepest * (1.0 - 1e-9)


@pytest.mark.parametrize("n_together", [1, 50])
def test_small_steps_cost_no_digits_however_much_they_add_up_to(n_together):
    tracked = Tracked(30, 1.0)
    rng = np.random.default_rng(1)
    for _ in range(2000 // n_together):
        X = rng.standard_normal((n_together, 30)) * 5.0
        for x in X:
            tracked.local.observe(x, 0.0)
        tracked.tracker.observe_rows(X)
    assert tracked.tracker.value > 20.0 * MAX_GROWTH
    assert not tracked.tracker.is_overdue
    assert tracked.drift() < 1e-11


@pytest.mark.parametrize("n_together", [1, 50])
def test_a_step_that_costs_digits_cannot_be_put_off(n_together):
    tracker = GrowthTracker(np.eye(8), 0.0)
    X = np.random.default_rng(0).standard_normal((n_together, 8))
    tracker.observe_rows(X)
    assert not tracker.is_overdue
    tracker.observe_rows(1e4 * X)
    assert tracker.is_overdue
