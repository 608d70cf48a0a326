"""The statistic of a change: χ² while nothing changes, large when something did, whatever the features' scales."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbandit.core.change import ChangeDetector, ChangeSensitivity, change_statistic
from fedbandit.core.ridge import RidgeModel
from fedbandit.core.statistics import SufficientStats
from fedbandit.core.structure import ridge_model

R = 0.3
SENSITIVITY = ChangeSensitivity(noise_scale=R, lam=1.0, theta_bound=1.0, false_alarm=1e-6)


def data(rng, n, theta, scales=1.0):
    X = rng.standard_normal((n, len(theta))) * scales
    return SufficientStats.of(X, X @ (theta / scales) + R * rng.standard_normal(n))


def model_of(stats, lam=1e-9):
    return RidgeModel(SufficientStats.prior(dim=stats.dim, lam=lam) + stats)


def written_out(block, model):
    """Q as in the formula."""
    S, e = block.Sigma, block.b - block.Sigma @ model.theta_hat
    return float(e @ np.linalg.solve(S + S @ np.linalg.inv(model.stats.Sigma) @ S, e)) / R**2


@given(dim=st.integers(1, 8), n=st.integers(20, 60), seed=st.integers(0, 1000))
def test_the_statistic_is_the_formula(dim, n, seed):
    rng = np.random.default_rng(seed)
    theta = rng.standard_normal(dim)
    model, block = model_of(data(rng, 50, theta), lam=0.5), data(rng, n, theta)
    assert change_statistic(block, model, noise_scale=R) == pytest.approx(written_out(block, model), rel=1e-8)


@given(K=st.integers(2, 5), p=st.integers(1, 4), n=st.integers(1, 40), seed=st.integers(0, 1000))
def test_by_blocks_a_test_is_the_dense_one(K, p, n, seed):
    rng = np.random.default_rng(seed)
    rows = np.zeros((n + 30, K, p))
    rows[np.arange(n + 30), rng.integers(K, size=n + 30)] = rng.standard_normal((n + 30, p))
    X, y = rows.reshape(n + 30, -1), rng.standard_normal(n + 30)
    tests = []
    for blocks in (1, K):
        model = ridge_model(
            SufficientStats.prior(dim=K * p, lam=0.5, blocks=blocks) + SufficientStats.of(X[:30], y[:30], blocks=blocks)
        )
        tests.append(SENSITIVITY.test(SufficientStats.of(X[30:], y[30:], blocks=blocks), model))
    dense, by_blocks = tests
    assert by_blocks.n_degrees == dense.n_degrees
    assert by_blocks.statistic == pytest.approx(dense.statistic, rel=1e-9)
    assert by_blocks.level == pytest.approx(dense.level, rel=1e-9)


@pytest.mark.parametrize("n", [40, 3, 400])
def test_the_statistic_is_its_degrees_of_freedom_on_average_while_nothing_changes(n):
    dim = 10
    rng = np.random.default_rng(1)
    theta = rng.standard_normal(dim)
    found = [
        change_statistic(block := data(rng, n, theta), model_of(data(rng, 200, theta)), noise_scale=R)
        for _ in range(600)
    ]
    k = SENSITIVITY.n_degrees(block)
    assert k == min(n, dim)
    assert np.mean(found) == pytest.approx(k, abs=4 * np.sqrt(2 * k / 600))
    assert np.var(found) == pytest.approx(2 * k, rel=0.3)


@given(seed=st.integers(0, 1000))
def test_scales_of_features_do_not_matter(seed):
    rng, dim = np.random.default_rng(seed), 6
    theta, scales = rng.standard_normal(dim), 10.0 ** rng.uniform(-4, 4, dim)
    states = [np.random.default_rng(seed + 1) for _ in range(2)]
    plain, scaled = (
        change_statistic(data(r, 30, theta, s), model_of(data(r, 80, theta, s), lam=1e-20), noise_scale=R)
        for r, s in zip(states, (1.0, scales), strict=True)
    )
    assert scaled == pytest.approx(plain, rel=1e-6)


def test_a_change_is_found():
    rng, theta = np.random.default_rng(0), np.full(5, 5**-0.5)
    model = model_of(data(rng, 500, theta), lam=1.0)
    assert not SENSITIVITY.test(data(rng, 50, theta), model).is_alarm
    assert SENSITIVITY.test(data(rng, 50, -theta), model).is_alarm


@pytest.mark.parametrize("size", [1.0, 5.0])  # the second is beyond the declared bound of 1
@pytest.mark.parametrize("n", [1, 5, 30, 500])
@pytest.mark.parametrize("n_known", [0, 3, 20])
def test_what_the_ridge_hides_is_no_change(size, n, n_known):
    rng, theta = np.random.default_rng(n), np.full(5, size * 5**-0.5)
    known = data(rng, n_known, theta) if n_known else SufficientStats.zeros(5)
    test = SENSITIVITY.test(data(rng, n, theta), model_of(known, lam=1.0))
    assert not test.is_alarm


@settings(max_examples=40)
@given(n_levels=st.integers(1, 4), first=st.integers(1, 6), n=st.integers(1, 90), cut=st.integers(0, 90))
def test_blocks_are_dyadic_and_a_saved_detector_continues(n_levels, first, n, cut):
    rng = np.random.default_rng(n)
    detector = ChangeDetector(2, first=first, n_levels=n_levels, sensitivity=SENSITIVITY)
    models = [model_of(data(rng, 5, np.ones(2)), lam=1.0) for _ in range(n + 1)]
    for i in range(n):
        if i == cut:
            state = detector.state()
            detector = ChangeDetector(2, first=first, n_levels=n_levels, sensitivity=SENSITIVITY)
            detector.restore(state)
        x = rng.standard_normal(2)
        detector.observe(x, float(x.sum()), models[i])
    blocks = detector.state()["blocks"]
    left = n % (first * 2 ** (n_levels - 1))  # of the longest block, and so of all shorter ones
    held = sum(block.n_obs for block in blocks.values())
    assert held == (n % first if n_levels == 1 else left)
    for level, block in blocks.items():
        assert block.n_obs == (n % first if level == "0" else first * 2 ** (int(level) - 1))
    for level, reference in detector.state()["references"].items():
        start = n - n % (first * 2 ** int(level))  # the round at which the block of this level began
        assert start == 0 or reference == models[start - 1].stats or reference == models[start].stats


def test_a_detector_finds_a_large_change_in_a_short_block_and_a_small_one_in_a_long_block():
    rng, dim = np.random.default_rng(3), 5
    theta = np.full(dim, dim**-0.5)
    model = model_of(data(rng, 5_000, theta), lam=1.0)

    def rounds_to_alarm(shift):
        detector = ChangeDetector(dim, first=30, n_levels=6, sensitivity=SENSITIVITY)
        for n in range(1, 3_000):
            x = rng.standard_normal(dim)
            if detector.observe(x, float(x @ (theta + shift)) + R * rng.standard_normal(), model) is not None:
                return n
        return None

    assert rounds_to_alarm(np.zeros(dim)) is None
    assert rounds_to_alarm(np.full(dim, 0.5)) == 30
    assert 60 <= rounds_to_alarm(np.full(dim, 0.06)) <= 1_000
