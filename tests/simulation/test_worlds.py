"""Worlds draw what they say: shapes, norms, distributions, means, and the order of real data."""

import numpy as np
import pytest

from fedbandit import worlds
from fedbandit.errors import DimensionMismatch, InvalidParameter, NotFinite
from fedbandit.simulation.worlds import WORLDS, Block, block_size, sample_rows

SEED = np.random.SeedSequence(11)


def draw(world, n_blocks=1, seed=11, active=None):
    """θ* and some blocks, joined into arrays (n, K, d), (n, K) and (n,)."""
    stream = world.stream(np.random.SeedSequence(seed))
    active = np.zeros(world.block_rounds, dtype=np.int64) if active is None else active
    blocks = [stream.draw(active) for _ in range(n_blocks)]
    X = np.concatenate([[block.actions(i) for i in range(len(block))] for block in blocks])
    return stream.theta_star, X, np.concatenate([b.means for b in blocks]), np.concatenate([b.noise for b in blocks])


DRAWN = {
    "uniform": worlds.uniform(dim=5, n_actions=4, noise=0.3),
    "sphere": worlds.sphere(dim=5, n_actions=4, noise=0.3),
    "articles": worlds.articles(dim=5, n_actions=4, n_articles=50, noise=0.3),
    "adversarial": worlds.adversarial(dim=5, n_actions=4, noise=0.3),
}
every_drawn_world = pytest.mark.parametrize("world", DRAWN.values(), ids=DRAWN)


def test_every_world_of_the_catalog_is_tested_here():
    # tests/simulation/test_fixed_worlds.py; logistic: tests/algorithms/test_fedglbucb.py
    # tests/simulation/test_changing_worlds.py
    changing = {"abrupt-change", "small-change", "slow-change", "repeated-changes"}
    elsewhere = {"fixed-set", "fixed-features", "clusters", "logistic", *changing}
    assert set(WORLDS) == {*DRAWN, "ball", *elsewhere}


@every_drawn_world
def test_shapes_means_and_noise_fit_together(world):
    theta_star, X, means, noise = draw(world, n_blocks=2)
    n = 2 * world.block_rounds
    assert X.shape == (n, 4, 5) and means.shape == (n, 4) and noise.shape == (n,)
    np.testing.assert_allclose(means, X @ theta_star, rtol=1e-9, atol=1e-12)
    # n ≈ 8 000 draws of sd 0.3: mean within 4 · 0.3/√n of zero, sd within 4 · 0.3/√(2n) of 0.3.
    assert abs(noise.mean()) < 4 * 0.3 / np.sqrt(n)
    assert noise.std() == pytest.approx(0.3, abs=4 * 0.3 / np.sqrt(2 * n))


def test_the_uniform_world_is_the_authors():
    theta_star, X, means, _ = draw(worlds.uniform(), n_blocks=8)
    np.testing.assert_allclose(theta_star, 1 / np.sqrt(15))
    assert X.shape[1:] == (25, 15)
    assert np.abs(X).max() <= 1 / np.sqrt(15)
    numbers = X.ravel() * np.sqrt(15)  # uniform on [−1, 1]: mean 0, variance 1/3, fourth moment 1/5
    margin = 5 / np.sqrt(len(numbers))
    assert abs(numbers.mean()) < margin
    assert np.mean(numbers**2) == pytest.approx(1 / 3, abs=margin)
    assert np.mean(numbers**4) == pytest.approx(1 / 5, abs=margin)
    assert abs(np.mean(X[:, 0] * X[:, 1]) * 15) < margin * 5, "actions are independent of each other"
    assert means.max() < 1.0


def test_the_sphere_has_unit_actions_in_all_directions():
    theta_star, X, _, _ = draw(worlds.sphere(dim=4, n_actions=5), n_blocks=3)
    assert np.linalg.norm(theta_star) == pytest.approx(1.0)
    np.testing.assert_allclose(np.linalg.norm(X, axis=2), 1.0)
    rows = X.reshape(-1, 4)
    # The second moment of a uniform direction is I/d; entries have sd below 1/√n.
    np.testing.assert_allclose(rows.T @ rows / len(rows), np.eye(4) / 4, atol=5 / np.sqrt(len(rows)))


def test_articles_are_a_fixed_pool_drawn_without_replacement():
    world = worlds.articles()
    stream = world.stream(SEED)
    first, second = (stream.draw(np.zeros(world.block_rounds, dtype=np.int64)) for _ in range(2))
    assert first.table is second.table and first.table.shape == (1000, 25)
    np.testing.assert_allclose(np.linalg.norm(first.table, axis=1), 1.0)
    assert np.linalg.norm(stream.theta_star) == pytest.approx(1.0)
    for block in (first, second):
        assert block.rows.shape == (world.block_rounds, 25)
        assert (np.diff(np.sort(block.rows, axis=1), axis=1) > 0).all(), "no article twice in a round"
    # Coordinate i was N(0, (d−i)/d) before the norm became 1: variances fall like d, d−1, …, 1.
    variances = (first.table**2).mean(axis=0)
    expected = np.arange(25, 0, -1) / np.arange(25, 0, -1).sum()
    np.testing.assert_allclose(variances, expected, rtol=0.35, atol=0.003)
    assert variances[:5].mean() > 4 * variances[-5:].mean()


def test_sampled_rows_are_different_and_equally_likely():
    rng = np.random.default_rng(0)
    rows = sample_rows(rng, 20_000, 7, 3)
    assert rows.shape == (20_000, 3) and rows.min() == 0 and rows.max() == 6
    assert (np.diff(np.sort(rows, axis=1), axis=1) > 0).all()
    share = np.bincount(rows.ravel(), minlength=7) / 20_000
    np.testing.assert_allclose(share, 3 / 7, atol=5 * np.sqrt(3 / 7 * 4 / 7 / 20_000))
    np.testing.assert_array_equal(np.sort(sample_rows(rng, 10, 4, 4), axis=1), np.tile(np.arange(4), (10, 1)))


def test_the_adversary_shows_one_direction_after_another_in_phases():
    world = worlds.adversarial(dim=3, n_actions=5, gap=0.2, phase=50, noise=0.0)
    theta_star, X, means, _ = draw(world)
    assert np.linalg.norm(theta_star) == pytest.approx(0.2 * np.sqrt(3))
    directions = X[:, 0] / np.linalg.norm(X[:, 0], axis=1)[:, None]
    for t in range(0, 450, 13):
        # All actions are ± one direction, at lengths from 1 down to ½, both signs of each.
        cosines = X[t] @ directions[t]
        np.testing.assert_allclose(np.abs(cosines), np.linalg.norm(X[t], axis=1))
        np.testing.assert_allclose(cosines, [1.0, -1.0, 0.75, -0.75, 0.5])
        assert abs(means[t]).max() == pytest.approx(0.2)
        same_phase, next_phase = (t // 50) * 50, (t // 50 + 1) * 50
        np.testing.assert_array_equal(X[t], X[same_phase])
        assert directions[t] @ directions[next_phase] == pytest.approx(0.0, abs=1e-9)
        np.testing.assert_array_equal(X[t], X[t + 150])


def test_phases_go_on_across_blocks():
    phase = 999  # does not divide the size of a block
    _, X, _, _ = draw(worlds.adversarial(dim=7, n_actions=2, phase=phase, noise=0.0), n_blocks=2)
    changes = np.flatnonzero((np.diff(X[:, 0], axis=0) != 0).any(axis=1)) + 1
    assert (changes % phase == 0).all() and len(changes) == (len(X) - 1) // phase


def test_the_ball_offers_everything_within_its_radius():
    world = worlds.ball(dim=4, radius=2.5, noise=0.2)
    stream = world.stream(SEED)
    block = stream.draw(np.zeros(world.block_rounds, dtype=np.int64))
    assert np.linalg.norm(stream.theta_star) == pytest.approx(1.0)
    assert block.actions(0).radius == 2.5 and block.actions(0) is block.actions(7) and block.means is None
    assert block.noise.std() == pytest.approx(0.2, abs=4 * 0.2 / np.sqrt(2 * len(block)))


# -- data as arrays

FEATURES = np.arange(60.0).reshape(10, 3, 2)
REWARDS = np.arange(30.0).reshape(10, 3)


def test_arrays_are_shown_in_order_again_and_again():
    world = worlds.from_arrays(FEATURES.tolist(), REWARDS.tolist(), shuffle=False)
    theta_star, X, means, noise = draw(world)
    assert theta_star is None and not noise.any()
    for t in range(25):
        np.testing.assert_array_equal(X[t], FEATURES[t % 10])
        np.testing.assert_array_equal(means[t], REWARDS[t % 10])


def test_shuffled_arrays_show_every_row_once_before_any_row_twice():
    _, X, means, _ = draw(worlds.from_arrays(FEATURES, REWARDS))
    ids = X[:, 0, 0] / 6
    for start in range(0, 50, 10):
        assert sorted(ids[start : start + 10]) == list(range(10))
    assert not np.array_equal(ids[:10], ids[10:20])
    np.testing.assert_array_equal(means[:, 0], 3 * ids)


def test_with_agents_each_one_sees_its_own_rows():
    owners = np.array([0, 1, 1, 0, 2, 2, 2, 0, 1, 0])
    world = worlds.from_arrays(FEATURES, REWARDS, agents=owners, shuffle=False)
    active = np.resize([0, 1, 2, 1], world.block_rounds)
    _, X, _, _ = draw(world, active=active)
    shown = (X[:, 0, 0] / 6).astype(int)
    for agent in range(3):
        rows = np.flatnonzero(owners == agent)
        mine = shown[active == agent]
        np.testing.assert_array_equal(mine[:12], np.resize(rows, 12))


def test_an_agent_without_rows_is_a_named_error():
    world = worlds.from_arrays(FEATURES, REWARDS, agents=[0] * 10)
    with pytest.raises(InvalidParameter, match="no rows for agent 3"):
        world.stream(SEED).draw(np.array([3]))


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: worlds.from_arrays(FEATURES[0], REWARDS), DimensionMismatch),
        (lambda: worlds.from_arrays(FEATURES, REWARDS[:, :2]), DimensionMismatch),
        (lambda: worlds.from_arrays(np.empty((0, 3, 2)), np.empty((0, 3))), DimensionMismatch),
        (lambda: worlds.from_arrays(FEATURES, REWARDS, agents=[0, 1]), DimensionMismatch),
        (lambda: worlds.from_arrays(FEATURES * np.nan, REWARDS), NotFinite),
        (lambda: worlds.from_arrays(FEATURES, REWARDS * np.inf), NotFinite),
        (lambda: worlds.uniform(dim=0), InvalidParameter),
        (lambda: worlds.uniform(n_actions=0), InvalidParameter),
        (lambda: worlds.sphere(noise=-0.1), InvalidParameter),
        (lambda: worlds.articles(n_articles=10, n_actions=11), InvalidParameter),
        (lambda: worlds.ball(radius=0.0), InvalidParameter),
        (lambda: worlds.adversarial(n_actions=1), InvalidParameter),
        (lambda: worlds.adversarial(phase=0), InvalidParameter),
        (lambda: worlds.adversarial(gap=0.0), InvalidParameter),
    ],
)
@pytest.mark.filterwarnings("ignore:invalid value encountered in multiply")  # how the test makes its bad data
def test_a_world_that_makes_no_sense_is_a_named_error(make, error):
    with pytest.raises(error):
        make()


def test_blocks_have_a_sensible_size_and_need_actions():
    assert block_size(1) == 4096 and block_size(10**9) == 16
    with pytest.raises(InvalidParameter, match="a block needs actions"):
        Block(np.zeros(3)).actions(0)
