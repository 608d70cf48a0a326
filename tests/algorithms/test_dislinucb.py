"""DisLinUCB: eager agents, and a synchronisation of all when one of them asks."""

import numpy as np
import pytest

from fedbandit import Download, Poll, errors
from fedbandit.simulation.runner import Fleet
from tests.builders import make_rule, play, rows


def test_an_agent_asks_when_log_det_growth_times_its_own_rounds_exceeds_the_threshold():
    threshold = 2 * np.log(4.0)
    agent = make_rule("dislinucb", dim=2, threshold=threshold).agent("a")
    assert agent.observe([1.0, 0.0], 1.0) is None  # 1 · log 2
    assert agent.observe([0.0, 1.0], 1.0) is None  # 2 · log 4: not strictly more
    assert agent.observe([0.0, 0.0], 1.0) is not None  # 3 · log 4


def test_a_synchronisation_costs_an_upload_and_a_download_of_every_agent():
    fleet = play(make_rule("dislinucb"), 300, n_agents=4)
    assert fleet.n_up == fleet.n_down > 0
    assert fleet.n_up % 4 == 0


def test_after_a_synchronisation_everybody_knows_everything_and_nobody_holds_a_buffer():
    rule = make_rule("dislinucb", threshold=50.0)
    fleet = Fleet(rule, 3)
    seen = 0
    for i, x in enumerate(rows(500)):
        seen += 1
        upload = fleet.agent(str(i % 3)).observe(x, 1.0)
        if upload is not None:
            fleet.exchange(upload)
            break
    assert fleet.server.stats.n_obs == seen and fleet.n_up == 3
    for agent in fleet.agents.values():
        assert agent.synchronised == fleet.server.stats
        assert agent.local.n_obs == 0 and agent.n_since == 0


def test_decisions_are_eager_on_shared_and_own_data():
    agent = make_rule("dislinucb", threshold=np.inf).agent("a")
    X, y = rows(20), rows(20, 1, seed=1)[:, 0]
    for x, reward in zip(X, y, strict=True):
        assert agent.observe(x, float(reward)) is None
    theta = np.linalg.solve(np.eye(3) + X.T @ X, X.T @ y)
    np.testing.assert_allclose(agent.predict(np.eye(3)), theta, rtol=1e-8)


def test_the_server_polls_the_others_and_answers_when_the_last_one_has_spoken():
    rule = make_rule("dislinucb", threshold=0.0)
    server = rule.server()
    server.enroll(["a", "b", "c"])
    a, b, c = (rule.agent(name) for name in "abc")
    replies = server.receive(a.observe(np.ones(3), 1.0))
    assert replies == (Poll("b"), Poll("c"))
    assert server.receive(b.adopt(replies[0])) == ()
    final = server.receive(c.adopt(replies[1]))
    assert [reply.agent_id for reply in final] == ["a", "b", "c"]
    assert all(isinstance(reply, Download) and reply.stats == server.stats for reply in final)


def test_a_lone_agent_is_answered_at_once():
    rule = make_rule("dislinucb", threshold=0.0)
    server, agent = rule.server(), rule.agent("a")
    (reply,) = server.receive(agent.observe(np.ones(3), 1.0))
    assert isinstance(reply, Download)


def test_a_threshold_below_zero_is_a_named_error():
    with pytest.raises(errors.InvalidParameter, match="threshold"):
        make_rule("dislinucb", threshold=-1.0)
