"""Worlds whose decision sets stay: one set for everybody, features per agent; and users in clusters."""

import numpy as np
import pytest

from fedbandit import worlds
from fedbandit.errors import InvalidParameter


def draw(world, active, seed=11):
    stream = world.stream(np.random.SeedSequence(seed))
    block = stream.draw(np.asarray(active))
    return stream, np.array([block.actions(i) for i in range(len(active))]), block


def test_the_fixed_set_is_in_the_unit_ball_and_never_changes():
    stream, X, block = draw(worlds.fixed_set(dim=4, n_actions=2000), [0, 1, 5])
    assert (X[0] == X[1]).all() and (X[0] == stream.fixed_actions).all()
    lengths = np.linalg.norm(X[0], axis=1)
    assert lengths.max() <= 1.0
    # Uniform in the ball: length^d is uniform on [0, 1], mean 1/2 with sd 0.29/√n.
    assert np.mean(lengths**4) == pytest.approx(0.5, abs=5 * 0.29 / np.sqrt(2000))
    np.testing.assert_allclose(X[0].mean(axis=0), 0.0, atol=5 / np.sqrt(2000))
    assert np.linalg.norm(stream.theta_star) == pytest.approx(1.0)
    np.testing.assert_allclose(block.means, X @ stream.theta_star)


@pytest.mark.parametrize("shared", [False, True])
def test_features_belong_to_an_agent_whoever_came_before(shared):
    world = worlds.fixed_features(dim=3, n_actions=4, shared=shared)
    _, X, first = draw(world, [2, 0, 2, 7])
    _, Y, second = draw(world, [7, 2, 1, 0])
    assert (X[0] == X[2]).all() and (X[0] == Y[1]).all() and (X[3] == Y[0]).all() and (X[1] == Y[3]).all()
    np.testing.assert_array_equal(first.means[[0, 3]], second.means[[1, 0]])
    assert not np.allclose(X[0], X[1])
    lengths = np.linalg.norm(X, axis=2)
    assert lengths.min() >= 0.5 and lengths.max() <= 1.0


def test_each_arm_has_a_parameter_of_its_own_unless_it_is_shared():
    agents = np.arange(50)
    for shared in (False, True):
        stream, X, block = draw(worlds.fixed_features(dim=3, n_actions=4, shared=shared), agents)
        thetas = [np.linalg.lstsq(X[:, a], block.means[:, a], rcond=None)[0] for a in range(4)]
        for a in range(4):
            np.testing.assert_allclose(X[:, a] @ thetas[a], block.means[:, a], atol=1e-12)
        assert np.allclose(thetas[0], thetas[1]) == shared
        np.testing.assert_allclose(np.linalg.norm(thetas, axis=1), 1.0)
        assert (stream.theta_star is not None) == shared


def test_agents_of_a_cluster_share_their_parameter():
    stream, X, block = draw(worlds.clusters(dim=3, n_actions=40, n_clusters=2), [0, 1, 2, 3])
    thetas = [np.linalg.lstsq(X[i], block.means[i], rcond=None)[0] for i in range(4)]
    np.testing.assert_allclose(thetas[0], thetas[2])
    np.testing.assert_allclose(thetas[1], thetas[3])
    assert not np.allclose(thetas[0], thetas[1])
    assert stream.theta_star is None


def test_clusters_may_be_inexact():
    _, X, block = draw(worlds.clusters(dim=3, n_actions=40, n_clusters=1, spread=0.2), [0, 1])
    one, two = (np.linalg.lstsq(X[i], block.means[i], rcond=None)[0] for i in range(2))
    assert 0 < np.linalg.norm(one - two) <= 0.5
    assert np.linalg.norm(one) == pytest.approx(1.0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: worlds.fixed_features(shortest=0.0),
        lambda: worlds.fixed_features(shortest=1.5),
        lambda: worlds.fixed_features(shared="yes"),
        lambda: worlds.clusters(n_clusters=0),
        lambda: worlds.clusters(spread=-1.0),
        lambda: worlds.fixed_set(n_actions=0),
    ],
)
def test_bad_numbers_are_refused(make):
    with pytest.raises(InvalidParameter):
        make()
