"""The estimate of an eager policy equals the ridge model of the same data after every observation."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbandit import RidgeModel, SufficientStats
from fedbandit.core.eager import EagerEstimate


@given(st.integers(1, 5), st.integers(0, 1000), st.lists(st.booleans(), min_size=1, max_size=10))
def test_it_equals_the_ridge_model_of_all_data_so_far(dim, seed, batches):
    rng = np.random.default_rng(seed)
    stats = SufficientStats.prior(dim=dim, lam=0.5)
    estimate = EagerEstimate(stats)
    probe = rng.standard_normal((3, dim))
    for batch in batches:
        X, y = rng.standard_normal((3 if batch else 1, dim)), rng.standard_normal(3 if batch else 1)
        if batch:
            estimate.add(SufficientStats.of(X, y))
        else:
            estimate.observe(X[0], float(y[0]))
        stats = stats + SufficientStats.of(X, y)
        model = RidgeModel(stats)
        np.testing.assert_allclose(estimate.theta_hat, model.theta_hat, rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(estimate.widths(probe), model.widths(probe), rtol=1e-8)
        np.testing.assert_allclose(estimate.predict(probe), model.predict(probe), rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(estimate.inverse, model.inverse, rtol=1e-8, atol=1e-10)
        assert estimate.log_det == pytest.approx(model.log_det, abs=1e-9)


def test_it_stays_exact_over_thousands_of_observations_with_a_tiny_ridge():
    rng = np.random.default_rng(0)
    estimate = EagerEstimate(SufficientStats.prior(dim=4, lam=1e-6))
    X = rng.standard_normal((5_000, 4)) * 10.0 ** np.linspace(-3, 3, 4)
    y = rng.standard_normal(5_000)
    for x, reward in zip(X, y, strict=True):
        estimate.observe(x, float(reward))
    model = RidgeModel(SufficientStats.prior(dim=4, lam=1e-6) + SufficientStats.of(X, y))
    np.testing.assert_allclose(estimate.theta_hat, model.theta_hat, rtol=1e-8)
    np.testing.assert_allclose(estimate.widths(np.eye(4)), model.widths(np.eye(4)), rtol=1e-8)
