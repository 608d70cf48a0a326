"""Data contradict declared numbers only where they are wrong, and do so when they are."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbandit.core.consistency import distance_to_ball, least_noise_scale
from fedbandit.core.ridge import RidgeModel
from fedbandit.core.statistics import SufficientStats

LAM = 1.0


def fitted(X, r):
    return RidgeModel(SufficientStats.prior(dim=X.shape[1], lam=LAM) + SufficientStats.of(X, r))


def linear_data(seed, *, theta, noise, n=2000):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, len(theta))) / np.sqrt(len(theta))
    return X, X @ theta + noise * rng.standard_normal(n)


@pytest.mark.parametrize("noise", [0.05, 0.3, 2.0])
def test_the_right_noise_scale_is_not_contradicted_and_half_of_it_is(noise):
    theta = np.array([0.6, -0.5, 0.4])
    bounds = [
        least_noise_scale(fitted(*linear_data(seed, theta=theta, noise=noise)), lam=LAM, theta_bound=1.0)
        for seed in range(20)
    ]
    assert max(bounds) < noise
    assert min(bounds) > 0.5 * noise


def test_actions_that_react_to_every_reward_do_not_contradict_the_right_noise_scale():
    for seed in range(20):
        rng = np.random.default_rng(seed)
        rows, rewards, x = [], [], 1.0
        for _ in range(500):
            rewards.append(0.3 * rng.standard_normal())
            rows.append([x])
            x = 1.0 if rewards[-1] > 0 else 0.01  # go on where it went well
        bound = least_noise_scale(fitted(np.array(rows), np.array(rewards)), lam=LAM, theta_bound=1.0)
        assert bound <= 0.3


def test_two_opposite_halves_need_more_noise_than_either_has():
    theta = np.array([0.6, -0.5, 0.4, 0.3])
    halves = [linear_data(seed, theta=sign * theta, noise=0.1) for seed, sign in ((1, 1.0), (2, -1.0))]
    pooled = fitted(np.vstack([X for X, _ in halves]), np.concatenate([r for _, r in halves]))
    assert least_noise_scale(pooled, lam=LAM, theta_bound=1.0) > 0.3


def test_no_data_contradict_nothing():
    assert least_noise_scale(RidgeModel(SufficientStats.prior(dim=2, lam=LAM)), lam=LAM, theta_bound=1.0) == 0.0


@given(st.integers(0, 10_000), st.floats(0.01, 2.0))
def test_the_distance_to_the_ball_is_the_least_one(seed, radius):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((30, 3)) * np.array([1.0, 10.0, 0.1])
    ridge = fitted(X, rng.standard_normal(30) + X @ rng.standard_normal(3))
    least = distance_to_ball(ridge, radius)
    directions = rng.standard_normal((200, 3))
    inside = radius * directions / np.linalg.norm(directions, axis=1, keepdims=True) * rng.random((200, 1))
    assert all(ridge.distance(theta) >= least * (1 - 1e-9) for theta in inside)
    norm = float(np.linalg.norm(ridge.theta_hat))
    if norm <= radius:
        assert least == 0.0
    else:
        assert least <= ridge.distance(ridge.theta_hat * radius / norm) * (1 + 1e-9)
