"""Participation patterns: each has its documented statistics, and draws the same in small and in large steps."""

import numpy as np
import pytest

import fedbandit as fb
from fedbandit import participation
from fedbandit.errors import InvalidParameter
from fedbandit.simulation.participation import PARTICIPATION

N = 20_000
EVERY_PATTERN = {
    **{name: make() for name, make in PARTICIPATION.items()},
    "sequence": participation.sequence([3, 1, 2], repeat=True),
    "episodes": participation.episodes([[0, 1], [4], [2, 3, 0]]),
}


def active(pattern, n=N, *, n_agents=5, seed=0):
    return pattern.start(n_agents, np.random.default_rng(seed))(n)


@pytest.mark.parametrize("pattern", EVERY_PATTERN.values(), ids=EVERY_PATTERN)
def test_agents_are_numbers_of_the_fleet_and_a_seed_repeats_them(pattern):
    agents = active(pattern, 3000)
    assert agents.shape == (3000,) and agents.dtype == np.int64
    assert agents.min() >= 0 and agents.max() < 5
    np.testing.assert_array_equal(agents, active(pattern, 3000))


def in_blocks(pattern, *, n_agents=5):
    """A thousand rounds, drawn in blocks of odd sizes."""
    draw = pattern.start(n_agents, np.random.default_rng(0))
    return np.concatenate([draw(n) for n in (7, 1, 600, 392)])


@pytest.mark.parametrize("name", ["round-robin", "sequence", "episodes"])
def test_patterns_without_chance_go_on_where_the_last_block_ended(name):
    np.testing.assert_array_equal(in_blocks(EVERY_PATTERN[name]), active(EVERY_PATTERN[name], 1000))


def test_outages_episodes_and_sessions_reach_across_blocks():
    online = in_blocks(participation.outages(fraction=0.6, length=100), n_agents=10).reshape(10, 100)
    assert max(len(set(part.tolist())) for part in online) == 4
    for episode in in_blocks(participation.random_episodes(probability=1.0)).reshape(200, 5):
        assert sorted(episode) == [0, 1, 2, 3, 4]
    assert len(set(in_blocks(participation.bursts(length=1e9)).tolist())) == 1


def test_even_participation_is_uniform():
    share = np.bincount(active(participation.uniform()), minlength=5) / N
    np.testing.assert_allclose(share, 0.2, atol=5 * np.sqrt(0.16 / N))


def test_zipf_is_skewed_as_its_exponent_says():
    share = np.bincount(active(participation.zipf(exponent=1.0)), minlength=5) / N
    expected = (1 / np.arange(1, 6)) / (1 / np.arange(1, 6)).sum()
    np.testing.assert_allclose(share, expected, atol=5 * np.sqrt(0.25 / N))
    even = np.bincount(active(participation.zipf(exponent=0.0)), minlength=5) / N
    np.testing.assert_allclose(even, 0.2, atol=5 * np.sqrt(0.16 / N))


def test_round_robin_takes_turns():
    np.testing.assert_array_equal(active(participation.round_robin(), 12), np.arange(12) % 5)


def test_bursts_last_as_long_as_they_should():
    agents = active(participation.bursts(length=10.0), n_agents=1000)
    lengths = np.diff(np.flatnonzero(np.diff(agents)))
    # With 1 000 agents hardly any two sessions in a row are of the same agent: mean 10, sd √90, n ≈ 2 000.
    assert lengths.mean() == pytest.approx(10.0, abs=5 * np.sqrt(90 / len(lengths)))
    short = active(participation.bursts(length=1.0), n_agents=1000)
    assert np.mean(np.diff(short) != 0) > 0.99


def test_outages_keep_a_part_of_the_fleet_away_for_a_while():
    agents = active(participation.outages(fraction=0.6, length=100), n_agents=10)
    groups = [set(part.tolist()) for part in np.split(agents, N // 100)]
    assert max(map(len, groups)) <= 4, "at most 40 % of ten agents are online at a time"
    assert sum(len(group) == 4 for group in groups) > 0.9 * len(groups)
    assert len({frozenset(group) for group in groups}) > 20, "it is not always the same ones"
    share = np.bincount(agents, minlength=10) / N
    assert share.min() > 0.05


def test_nobody_is_away_at_a_fraction_of_zero_and_somebody_is_always_there():
    assert len(set(active(participation.outages(fraction=0.0), 400))) == 5
    assert len(set(active(participation.outages(fraction=0.99, length=50), 50))) == 1


def test_a_sequence_is_played_as_written():
    np.testing.assert_array_equal(active(participation.sequence([3, 1, 2]), 3), [3, 1, 2])
    np.testing.assert_array_equal(active(participation.sequence([3, 1], repeat=True), 5), [3, 1, 3, 1, 3])


def test_episodes_are_their_sets_one_after_another():
    pattern = participation.episodes([[0, 1], [4], [2, 3, 0]])
    np.testing.assert_array_equal(active(pattern, 8), [0, 1, 4, 2, 3, 0, 0, 1])
    assert pattern.flattened().agents == (0, 1, 4, 2, 3, 0)


def test_in_random_episodes_every_agent_acts_at_most_once_an_episode():
    everybody = active(participation.random_episodes(probability=1.0), 500)
    for episode in everybody.reshape(100, 5):
        assert sorted(episode) == [0, 1, 2, 3, 4]
    assert len({tuple(episode) for episode in everybody.reshape(100, 5)}) > 30, "the order is random"
    share = np.bincount(active(participation.random_episodes(probability=0.3)), minlength=5) / N
    np.testing.assert_allclose(share, 0.2, atol=0.02)


@pytest.mark.parametrize(
    "make",
    [
        lambda: participation.zipf(exponent=-1.0),
        lambda: participation.bursts(length=0.5),
        lambda: participation.outages(fraction=1.0),
        lambda: participation.outages(fraction=-0.1),
        lambda: participation.outages(length=0),
        lambda: participation.random_episodes(probability=0.0),
        lambda: participation.random_episodes(probability=1.5),
        lambda: participation.sequence([]),
        lambda: participation.episodes([[], []]).start(3, np.random.default_rng(0)),
        lambda: participation.sequence([0, 5]).start(5, np.random.default_rng(0)),
        lambda: participation.sequence([-1]).start(5, np.random.default_rng(0)),
    ],
)
def test_a_pattern_that_makes_no_sense_is_a_named_error(make):
    with pytest.raises(InvalidParameter):
        make()


def test_rows_of_arrays_are_played_once_each_by_their_owners():
    features = np.arange(36.0).reshape(6, 3, 2)
    world = fb.worlds.from_arrays(features, features[:, :, 0], agents=[0, 0, 0, 1, 2, 2])
    assert (world.row_counts, world.n_rows, world.fleet_size) == ((3, 1, 2), 6, 3)
    rule = fb.FedLinUCB(dim=2, alpha=1.0, beta=0.5)
    for pattern in (fb.participation.by_rows(world), "by-rows"):
        trace = fb.simulate(rule, world, n_agents=3, n_rounds=6, participation=pattern, record="all")
        assert sorted(trace.agents.tolist()) == [0, 0, 0, 1, 2, 2]
    with pytest.raises(InvalidParameter, match="pass agents="):
        fb.participation.by_rows(fb.worlds.from_arrays(features, features[:, :, 0]))
    with pytest.raises(InvalidParameter, match="a world from data"):
        fb.participation.by_rows(fb.worlds.uniform())


def test_a_pattern_has_a_name_and_rounds_may_be_written_as_1e3():
    rule, world = fb.FedLinUCB(dim=15, alpha=1.0, beta=0.5), fb.worlds.uniform()
    by_name = fb.simulate(rule, world, n_agents=5, n_rounds=1e3, participation="zipf")
    by_object = fb.simulate(rule, world, n_agents=5, n_rounds=1000, participation=fb.participation.zipf())
    assert by_name.regret[-1] == by_object.regret[-1]
    with pytest.raises(InvalidParameter, match="expected participation to be one of uniform, zipf"):
        fb.simulate(rule, world, n_agents=5, n_rounds=10, participation="zipfian")
