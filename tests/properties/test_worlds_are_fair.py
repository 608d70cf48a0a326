"""A comparison is fair: a seed fixes the world whatever the algorithm, and each source of chance stands alone."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedbandit as fb
from fedbandit import participation, worlds
from fedbandit.simulation.runner import rounds_of
from tests.builders import make_rule, make_world, names_with

WORLDS = {
    "uniform": lambda **noise: worlds.uniform(dim=3, n_actions=4, **noise),
    "articles": lambda **noise: worlds.articles(dim=3, n_actions=4, n_articles=20, **noise),
    "sphere": lambda **noise: worlds.sphere(dim=3, n_actions=4, **noise),
    "adversarial": lambda **noise: worlds.adversarial(dim=3, n_actions=4, phase=7, **noise),
    "ball": lambda **noise: worlds.ball(dim=3, **noise),
    "arrays": lambda **noise: worlds.from_arrays(
        np.random.default_rng(0).standard_normal((30, 4, 3)), np.zeros((30, 4)), **noise
    ),
}
participation_sets = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=5), min_size=1, max_size=8)
PLAYABLE = names_with("any-time", "any-rows")
every_world = pytest.mark.parametrize("world", WORLDS)


def columns(trace):
    return [trace.agents, trace.choices, trace.regret, trace.reward, trace.messages_up, trace.switches]


def run(rule, world, **changes):
    numbers = {"n_agents": 4, "n_rounds": 60, "seed": 3, "record": "all", "engine": "reference", **changes}
    return fb.simulate(rule, world, **numbers)


def blocks(world, *, seed, n_rounds=50, n_agents=5):
    stream, parts = rounds_of(world, participation.uniform(), n_agents=n_agents, n_rounds=n_rounds, seed=seed)
    return stream, list(parts)


def offered(block, i):
    actions = block.actions(i)
    return actions if isinstance(actions, np.ndarray) else np.array([actions.radius])


@every_world
def test_a_seed_gives_the_same_world_and_another_seed_another(world):
    (stream, first), (again, second), (_, other) = (blocks(WORLDS[world](), seed=seed) for seed in (5, 5, 6))
    if stream.theta_star is not None:
        np.testing.assert_array_equal(stream.theta_star, again.theta_star)
    for (active, block), (active_again, block_again) in zip(first, second, strict=True):
        np.testing.assert_array_equal(active, active_again)
        np.testing.assert_array_equal(block.noise, block_again.noise)
        np.testing.assert_array_equal(offered(block, 0), offered(block_again, 0))
    assert not np.array_equal(first[0][0], other[0][0])


@every_world
def test_changing_the_noise_changes_neither_actions_nor_participation(world):
    (_, quiet), (_, loud) = blocks(WORLDS[world](noise=0.1), seed=5), blocks(WORLDS[world](noise=0.4), seed=5)
    for (active, block), (active_loud, block_loud) in zip(quiet, loud, strict=True):
        np.testing.assert_array_equal(active, active_loud)
        np.testing.assert_allclose(4.0 * block.noise, block_loud.noise, rtol=1e-12)
        for i in range(0, len(block), 7):
            np.testing.assert_array_equal(offered(block, i), offered(block_loud, i))


@every_world
def test_changing_participation_changes_neither_actions_nor_noise(world):
    made = WORLDS[world]()
    numbers = {"n_agents": 5, "n_rounds": 50, "seed": 5}
    _, even = rounds_of(made, participation.uniform(), **numbers)
    _, turns = rounds_of(made, participation.round_robin(), **numbers)
    for (active, block), (in_turn, block_in_turn) in zip(even, turns, strict=True):
        assert not np.array_equal(active, in_turn)
        np.testing.assert_array_equal(block.noise, block_in_turn.noise)
        np.testing.assert_array_equal(offered(block, 3), offered(block_in_turn, 3))


def test_every_algorithm_sees_the_same_agents_and_could_have_earned_the_same():
    traces = [run(make_rule(name), make_world(noise=0.3)) for name in PLAYABLE]
    for trace in traces[1:]:
        np.testing.assert_array_equal(trace.agents, traces[0].agents)
        # reward + regret = best mean + noise: what the world offered, whatever was chosen.
        np.testing.assert_allclose(trace.reward + trace.regret, traces[0].reward + traces[0].regret, rtol=1e-9)


@pytest.mark.parametrize("name", PLAYABLE)
@settings(max_examples=5)
@given(seed=st.integers(0, 1000), n_rounds=st.integers(1, 80))
def test_a_short_run_is_the_beginning_of_a_long_one(name, seed, n_rounds):
    short = run(make_rule(name), make_world(), seed=seed, n_rounds=n_rounds)
    long = run(make_rule(name), make_world(), seed=seed, n_rounds=90)
    for column, longer in zip(columns(short), columns(long), strict=True):
        np.testing.assert_array_equal(column, longer[:n_rounds])


@every_world
def test_a_thousand_rounds_are_the_beginning_of_two_thousand(world):
    short, long = (run(make_rule(), WORLDS[world](), n_rounds=n) for n in (1000, 2000))
    for column, longer in zip(columns(short), columns(long), strict=True):
        np.testing.assert_array_equal(column, longer[:1000])


@pytest.mark.parametrize("name", PLAYABLE)
@settings(max_examples=8)
@given(
    seed=st.integers(0, 1000),
    episodes=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=5), min_size=1, max_size=8),
)
def test_algorithm_2_has_the_trace_of_algorithm_1_on_the_flattened_order(name, seed, episodes):
    flat = [agent for episode in episodes for agent in episode]
    n_rounds = len(flat)
    numbers = {"seed": seed, "n_rounds": n_rounds}
    told_in_episodes = run(make_rule(name), make_world(), participation=participation.episodes(episodes), **numbers)
    told_in_rounds = run(make_rule(name), make_world(), participation=participation.sequence(flat), **numbers)
    np.testing.assert_array_equal(told_in_episodes.agents, flat)
    for column, other in zip(columns(told_in_episodes), columns(told_in_rounds), strict=True):
        np.testing.assert_array_equal(column, other)
