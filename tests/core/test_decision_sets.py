"""Finite sets with their ties, and the ball against brute force."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbandit import Ball, RidgeModel, SufficientStats
from fedbandit.core.decision_sets import DecisionSet, Width, farthest_point, first_best, top_indices
from fedbandit.errors import DimensionMismatch, InvalidParameter


def value(x, theta_hat, inverse, beta):
    """⟨θ̂, x⟩ + β‖x‖_{Σ⁻¹}."""
    return x @ theta_hat + beta * np.sqrt(np.einsum("...i,ij,...j->...", x, inverse, x))


def brute_force(theta_hat, inverse, beta, *, n=200_000, seed=0):
    """The best of many points of the unit sphere, polished: x ← (θ̂ + βPx/‖x‖_P) normalised never gets worse."""
    rng = np.random.default_rng(seed)
    points = rng.standard_normal((n, len(theta_hat)))
    points /= np.linalg.norm(points, axis=1)[:, None]
    x = points[np.argsort(value(points, theta_hat, inverse, beta))[-50:]]
    for _ in range(3_000):
        step = x @ inverse
        step *= beta / np.maximum(np.sqrt(np.einsum("ij,ij->i", step, x)), 1e-300)[:, None]
        x = theta_hat + step
        x /= np.linalg.norm(x, axis=1)[:, None]
    return float(value(x, theta_hat, inverse, beta).max())


def spd(eigenvalues, seed=0):
    """A matrix with these eigenvalues in a random basis, and the basis."""
    n = len(eigenvalues)
    Q = np.linalg.qr(np.random.default_rng(seed).standard_normal((n, n)))[0]
    return Q @ np.diag(eigenvalues) @ Q.T, Q


# -- ties


def test_the_lowest_index_wins_among_scores_within_a_relative_1e_12():
    assert first_best(np.array([1.0, 2.0, 2.0 * (1 + 1e-13)])) == 1
    assert first_best(np.array([1.0, 2.0, 2.0 * (1 + 1e-11)])) == 2
    assert first_best(np.array([-2.0 * (1 + 1e-13), -2.0, -3.0])) == 0
    assert first_best(np.array([0.0, 0.0])) == 0
    assert first_best(np.array([0.0, 1e-300])) == 1
    assert first_best(np.array([-5.0])) == 0


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=12), st.integers(0, 100))
def test_top_k_equals_choosing_the_best_again_and_again(scores, noise):
    # Ties that rounding has disturbed: every value carries its own error far below the tolerance.
    disturbed = np.array(scores, dtype=float)
    disturbed *= 1 + 1e-14 * np.random.default_rng(noise).standard_normal(len(scores))
    expected = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    for k in range(1, len(scores) + 1):
        assert top_indices(disturbed, k) == expected[:k]


@given(st.integers(2, 30), st.integers(0, 1000))
def test_at_the_prior_all_unit_norm_actions_tie_and_the_first_is_taken(dim, seed):
    X = np.random.default_rng(seed).standard_normal((40, dim))
    X /= np.linalg.norm(X, axis=1)[:, None]
    model = RidgeModel(SufficientStats.prior(dim=dim, lam=0.1))
    assert first_best(model.predict(X) + 0.5 * model.widths(X)) == 0


# -- the ball


@pytest.mark.parametrize("dim", [2, 3, 5])
@pytest.mark.parametrize("seed", range(4))
def test_the_ball_finds_what_brute_force_finds(dim, seed):
    rng = np.random.default_rng(100 * dim + seed)
    inverse, _ = spd(10.0 ** rng.uniform(-3, 1, size=dim), seed)
    theta_hat, beta = rng.standard_normal(dim), 10.0 ** rng.uniform(-1, 1)
    x = Ball(dim).best(theta_hat, Width(inverse), beta)
    assert np.linalg.norm(x) == pytest.approx(1.0)
    found = brute_force(theta_hat, inverse, beta)
    assert value(x, theta_hat, inverse, beta) == pytest.approx(found, rel=1e-9)


@pytest.mark.parametrize("seed", range(10))
def test_the_optimist_of_the_ball_is_a_stationary_point_to_the_last_digits(seed):
    """At the optimum the gradient θ̂ + βΣ⁻¹x/‖x‖_{Σ⁻¹} points along x."""
    rng = np.random.default_rng(seed)
    inverse, _ = spd(10.0 ** rng.uniform(-2, 1, size=4), seed)
    theta_hat, beta = rng.standard_normal(4), 10.0 ** rng.uniform(-1, 1)
    x = Ball(4).best(theta_hat, Width(inverse), beta)
    gradient = theta_hat + beta * inverse @ x / float(Width(inverse)(x))
    np.testing.assert_allclose(gradient / np.linalg.norm(gradient), x, atol=1e-9)


@pytest.mark.parametrize("strength", [0.0, 1e-14, 0.3, 0.699, 0.701, 3.0])
def test_the_ball_is_exact_in_the_hard_case(strength):
    # θ̂ has no part in the leading eigenspace: below a strength of (4 − 0.5)/√0.5·… the root sits at the pole.
    inverse, Q = spd([0.5, 1.0, 4.0], seed=3)
    theta_hat = strength * (Q[:, 0] + 0.5 * Q[:, 1])
    for beta in (0.2, 1.0):
        x = Ball(3).best(theta_hat, Width(inverse), beta)
        found = brute_force(theta_hat, inverse, beta)
        assert value(x, theta_hat, inverse, beta) >= found * (1 - 1e-9)
        assert np.linalg.norm(x) == pytest.approx(1.0)


def test_in_the_hard_case_the_rest_of_the_length_goes_into_the_leading_eigenspace():
    inverse = np.diag([1.0, 4.0])
    theta = farthest_point(np.array([0.3, 0.0]), inverse, 1.0)
    # Stationarity at the pole: u₁ = 0.3·1/(4 − 1) = 0.1, and θ = θ̂ + √p u with ‖u‖ = 1.
    np.testing.assert_allclose(theta, [0.3 + 0.1, 2.0 * np.sqrt(1 - 0.01)], rtol=1e-12)


def test_at_the_prior_the_ball_takes_the_first_axis_whatever_the_basis():
    for dim in (1, 2, 7):
        x = Ball(dim, radius=2.0).best(np.zeros(dim), Width(np.eye(dim) / 3.0), 0.5)
        np.testing.assert_allclose(x, 2.0 * np.eye(dim)[0], atol=1e-12)


@given(
    st.floats(-10, 10).filter(lambda v: v == 0 or abs(v) > 1e-9),
    st.floats(1e-6, 1e6),
    st.just(0.0) | st.floats(1e-120, 10),
)
def test_in_one_dimension_the_ball_is_the_sign_of_the_estimate(theta, variance, beta):
    x = Ball(1, radius=3.0).best(np.array([theta]), Width(np.array([[variance]])), beta)
    assert x[0] == pytest.approx(3.0 if theta >= 0 else -3.0)


@given(st.integers(1, 6), st.integers(0, 1000), st.sampled_from([0.0, 1e-9, 1e-3, 1.0, 1e3]))
def test_no_point_of_the_ball_is_better_than_its_best(dim, seed, beta):
    rng = np.random.default_rng(seed)
    inverse, Q = spd(10.0 ** rng.uniform(-6, 6, size=dim), seed)
    theta_hat = Q @ np.where(rng.random(dim) < 0.3, 0.0, rng.standard_normal(dim) * 10.0 ** rng.uniform(-4, 4))
    best = Ball(dim, radius=0.5).best(theta_hat, Width(inverse), beta)
    assert np.linalg.norm(best) == pytest.approx(0.5)
    others = rng.standard_normal((500, dim))
    others *= 0.5 / np.linalg.norm(others, axis=1)[:, None]
    others = np.vstack([others, 0.5 * Q.T, -0.5 * Q.T])
    scale = np.linalg.norm(theta_hat) + beta * np.sqrt(np.linalg.eigvalsh(inverse)[-1])
    assert value(others, theta_hat, inverse, beta).max() <= value(best, theta_hat, inverse, beta) + 1e-9 * scale


def test_without_exploration_the_ball_follows_the_estimate():
    x = Ball(2, radius=2.0).best(np.array([3.0, 4.0]), Width(np.eye(2)), 0.0)
    np.testing.assert_allclose(x, [1.2, 1.6])
    np.testing.assert_allclose(Ball(2).best(np.zeros(2), Width(np.eye(2)), 0.0), [1.0, 0.0])


def test_a_ball_that_makes_no_sense_is_a_named_error():
    for numbers in ({"dim": 0}, {"dim": 2, "radius": 0.0}, {"dim": 2, "radius": np.inf}):
        with pytest.raises(InvalidParameter):
            Ball(**numbers)
    with pytest.raises(InvalidParameter, match="beta"):
        farthest_point(np.zeros(2), np.eye(2), -1.0)
    with pytest.raises(DimensionMismatch):
        Ball(2).best(np.zeros(2), Width(np.eye(3)), 1.0)


def test_width_takes_one_action_or_many():
    inverse, _ = spd([0.5, 2.0])
    X = np.array([[1.0, 2.0], [3.0, -1.0]])
    width = Width(inverse)
    np.testing.assert_allclose(width(X), [np.sqrt(x @ inverse @ x) for x in X])
    assert float(width(X[0])) == pytest.approx(width(X)[0])


def test_anything_with_best_is_a_decision_set():
    assert isinstance(Ball(3), DecisionSet)
    assert not isinstance(np.eye(3), DecisionSet)
