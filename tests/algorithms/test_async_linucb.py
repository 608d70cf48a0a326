"""Async-LinUCB: eager agents that upload alone, a server that pushes to whom it finds out of date."""

import numpy as np
import pytest

from fedbandit import Download, Receipt, errors
from tests.builders import make_rule, play, rows


def test_an_agent_uploads_when_its_own_news_grow_the_determinant_by_more_than_gamma():
    agent = make_rule("async-linucb", dim=2, gamma_up=4.0).agent("a")
    assert agent.observe([1.0, 0.0], 1.0) is None  # ratio 2
    assert agent.observe([0.0, 1.0], 1.0) is None  # ratio 4: not strictly more
    assert agent.observe([1e-3, 0.0], 1.0) is not None
    # What was uploaded is no news: the ratio begins anew from all the agent knows, det 4.
    agent.adopt(Receipt("a", 1))
    assert agent.observe([0.0, 2.0], 1.0) is None  # (1+1)(1+1+4) / 4 = 3
    assert agent.observe([2.0, 0.0], 1.0) is not None


def test_decisions_are_eager_on_downloaded_and_own_data():
    rule = make_rule("async-linucb", gamma_up=np.inf)
    agent = rule.agent("a")
    X, y = rows(20), rows(20, 1, seed=1)[:, 0]
    for x, reward in zip(X[:10], y[:10], strict=True):
        agent.observe(x, float(reward))
    others = rule.prior + type(rule.prior).of(X[10:], y[10:])
    agent.adopt(Download("a", 1, others))
    theta = np.linalg.solve(np.eye(3) + X.T @ X, X.T @ y)
    np.testing.assert_allclose(agent.predict(np.eye(3)), theta, rtol=1e-8)


def test_the_policy_is_refreshed_at_a_push():
    rule = make_rule("async-linucb")
    agent = rule.agent("a")
    agent.observe([0.1, 0.0, 0.0], 1.0)
    before = agent.predict(np.eye(3))
    agent.adopt(Download("a", 1, rule.prior + type(rule.prior).of(rows(10), np.ones(10))))
    assert np.abs(agent.predict(np.eye(3)) - before).max() > 0.01


def test_the_server_pushes_only_to_agents_that_have_fallen_behind():
    rule = make_rule("async-linucb", dim=2, gamma_up=1.0, gamma_down=4.0)
    server = rule.server()
    server.enroll(["a", "b"])
    a = rule.agent("a")
    first = server.receive(a.observe([1.0, 0.0], 1.0))  # b lacks a factor 2
    assert first == (Receipt("a", 1),)
    a.adopt(first)
    second = server.receive(a.observe([2.0, 0.0], 1.0))  # b lacks a factor 6
    assert [type(reply) for reply in second] == [Download, Receipt]
    assert second[0].agent_id == "b" and second[0].stats == server.stats
    a.adopt(second)
    third = server.receive(a.observe([1.0, 0.0], 1.0))  # b was pushed to: a factor 7/6
    assert third == (Receipt("a", 3),)


def test_what_the_server_believes_an_agent_knows_is_what_it_knows():
    fleet = play(make_rule("async-linucb", gamma_up=1.5, gamma_down=1.5), 200, n_agents=4)
    assert fleet.n_down > 0
    for agent_id, (known, log_det) in fleet.server.known.items():
        agent = fleet.agent(agent_id)
        np.testing.assert_allclose(agent.shared.Sigma, known.Sigma, rtol=1e-12)
        np.testing.assert_allclose(agent.estimate.stats.Sigma, known.Sigma + agent.local.Sigma, rtol=1e-10)
        assert log_det == pytest.approx(np.linalg.slogdet(known.Sigma)[1])


def test_costs_are_one_an_upload_and_one_a_push():
    fleet = play(make_rule("async-linucb"), 200, n_agents=4)
    assert fleet.server.version == fleet.n_up
    assert fleet.n_switches == fleet.n_down  # of those that an exchange causes: a receipt changes no policy


def test_ratios_below_one_are_named_errors():
    for key in ("gamma_up", "gamma_down"):
        with pytest.raises(errors.InvalidParameter, match=key):
            make_rule("async-linucb", **{key: 0.9})
