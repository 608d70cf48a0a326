"""OFUL alone, with rare switching, and with everything shared."""

import numpy as np
import pytest

import fedbandit as fb
from fedbandit import errors
from tests.builders import make_rule, play, rows


def ridge(X, y, lam=1.0):
    return np.linalg.solve(lam * np.eye(X.shape[1]) + X.T @ X, X.T @ y)


def test_an_independent_agent_has_a_new_model_after_every_observation():
    agent = make_rule("oful-independent").agent("a")
    X, y = rows(30), rows(30, 1, seed=1)[:, 0]
    for n in range(1, 31):
        assert agent.observe(X[n - 1], float(y[n - 1])) is None
        np.testing.assert_allclose(agent.predict(np.eye(3)), ridge(X[:n], y[:n]), rtol=1e-8, atol=1e-12)
    assert agent.n_switches == 30


def test_an_independent_agent_is_loaded_to_the_last_bit():
    agent = make_rule("oful-independent").agent("a")
    for x in rows(30):
        agent.observe(x, 1.0)
    loaded = fb.load(agent.to_bytes())
    assert loaded.to_bytes() == agent.to_bytes()
    for x in rows(5, seed=1):
        np.testing.assert_array_equal(loaded.scores(np.eye(3)).upper, agent.scores(np.eye(3)).upper)
        assert loaded.observe(x, 1.0) is agent.observe(x, 1.0) is None


def test_independent_agents_send_nothing_and_know_only_their_own_data():
    fleet = play(make_rule("oful-independent"), 50)
    assert fleet.n_up == fleet.n_down == 0
    assert sum(agent.estimate.stats.n_obs for agent in fleet.agents.values()) == 50


def test_rare_switching_takes_a_new_model_when_the_determinant_has_grown_by_more_than_one_plus_c():
    agent = make_rule("oful-independent-rare-switching", dim=2, switching=3.0).agent("a")
    agent.observe([1.0, 0.0], 1.0)
    agent.observe([0.0, 1.0], 1.0)  # det = 4 = 1 + C: not strictly more
    assert agent.n_switches == 0 and not agent.predict(np.eye(2)).any()
    agent.observe([1e-3, 0.0], 1.0)
    assert agent.n_switches == 1 and agent.model.stats.n_obs == 3
    np.testing.assert_allclose(agent.predict(np.eye(2)), [0.5, 0.5], atol=1e-3)


def test_rare_switching_counts_every_observation_once_over_several_switches():
    agent = make_rule("oful-independent-rare-switching", dim=2, switching=0.5).agent("a")
    X, y = rows(40, 2), rows(40, 1, seed=1)[:, 0]
    for n, (x, reward) in enumerate(zip(X, y, strict=True), start=1):
        agent.observe(x, float(reward))
        assert agent.model.stats.n_obs + agent.local.n_obs == n
    assert agent.n_switches > 3


def test_rare_switching_stays_exact_over_thousands_of_rounds_without_a_switch():
    agent = make_rule("oful-independent-rare-switching", dim=2, switching=1e9).agent("a")
    X = rows(3_000, 2)
    for x in X:
        agent.observe(x, 0.0)
    assert agent.n_switches == 0
    assert agent.tracker.value == pytest.approx(np.linalg.slogdet(np.eye(2) + X.T @ X)[1], rel=1e-9)


def test_shared_agents_all_know_everything_after_every_round():
    rule = make_rule("oful-shared")
    fleet = play(rule, 25, n_agents=3)
    assert fleet.n_up == 25 and fleet.n_down == 75
    for agent in fleet.agents.values():
        assert agent.model.stats == fleet.server.stats
    assert fleet.server.stats.n_obs == 25


def test_options_that_contradict_each_other_are_named_errors():
    for numbers in ({"mode": "alone"}, {"switching": -1.0}, {"mode": "shared", "switching": 1.0}):
        with pytest.raises(errors.InvalidParameter):
            fb.OFUL(dim=2, beta=0.5, **numbers)
