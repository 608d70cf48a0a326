"""Worlds that change: θ* is what they say in every round, and the actions are those of the uniform world."""

import numpy as np
import pytest

from fedbandit import worlds
from fedbandit.errors import InvalidParameter

SIZES = {"dim": 6, "n_actions": 8, "noise": 0.0}
WORLDS = {
    "abrupt": worlds.abrupt_change(**SIZES, at=100),
    "small": worlds.small_change(**SIZES, at=100, angle=0.4),
    "slow": worlds.slow_change(**SIZES, quarter=500),
    "repeated": worlds.repeated_changes(**SIZES, every=700),
}


def truths(world, seed=3):
    """θ* of every round of the first two blocks, from actions and means."""
    stream = world.stream(np.random.SeedSequence(seed))
    blocks = [stream.draw(np.zeros(world.block_rounds, dtype=np.int64)) for _ in range(2)]
    assert stream.theta_star is None
    return np.concatenate(
        [[np.linalg.lstsq(b.actions(i), b.means[i], rcond=None)[0] for i in range(len(b))] for b in blocks]
    )


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
def test_theta_has_unit_length_and_starts_where_the_uniform_world_is(world):
    thetas = truths(world)
    np.testing.assert_allclose(np.linalg.norm(thetas, axis=1), 1.0, rtol=1e-9)
    np.testing.assert_allclose(thetas[0], 6**-0.5, rtol=1e-9)


def test_half_of_the_signs_flip_at_once():
    thetas = truths(WORLDS["abrupt"])
    assert np.ptp(thetas[:100], axis=0).max() < 1e-9 and np.ptp(thetas[100:], axis=0).max() < 1e-9
    assert (thetas[100] < 0).sum() == 3


def test_a_small_change_is_an_angle():
    thetas = truths(WORLDS["small"])
    assert thetas[99] @ thetas[100] == pytest.approx(np.cos(0.4))


def test_a_slow_change_is_a_quarter_of_a_turn():
    thetas = truths(WORLDS["slow"])
    assert abs(thetas[0] @ thetas[500]) < 1e-9 and thetas[0] @ thetas[1000] == pytest.approx(-1.0)
    assert (np.vecdot(thetas[1:], thetas[:-1]) > 0.99).all()


def test_repeated_changes_come_at_every_multiple():
    thetas = truths(WORLDS["repeated"])
    jumps = np.flatnonzero(np.vecdot(thetas[1:], thetas[:-1]) < 0.99) + 1
    assert jumps.tolist() == list(range(700, len(thetas), 700))


def test_seeds_change_what_flips_but_not_when():
    one, other = truths(WORLDS["abrupt"], seed=1), truths(WORLDS["abrupt"], seed=4)
    assert not np.array_equal(one[100] < 0, other[100] < 0)


@pytest.mark.parametrize(
    ("make", "bad"),
    [
        (worlds.abrupt_change, {"at": 0}),
        (worlds.small_change, {"angle": -1.0}),
        (worlds.slow_change, {"quarter": 0}),
        (worlds.repeated_changes, {"every": 1.5}),
    ],
)
def test_bad_numbers_are_named_errors(make, bad):
    with pytest.raises(InvalidParameter):
        make(**bad)


def test_one_dimension_changes_its_sign():
    for make in (worlds.abrupt_change, worlds.repeated_changes):
        thetas = truths(make(dim=1, n_actions=3, noise=0.0, **{"at" if make is worlds.abrupt_change else "every": 50}))
        assert thetas[49] == pytest.approx(1.0) and thetas[50] == pytest.approx(-1.0)
