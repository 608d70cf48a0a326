"""DisLinUCB: eager agents, and a synchronisation of all when one of them asks."""

import numpy as np
import pytest

import fedbandit as fb
from fedbandit import Download, Poll, Pull, SufficientStats, errors
from fedbandit.simulation.runner import SimulatedFleet
from tests.builders import make_rule, make_world, play, rows


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
    fleet = SimulatedFleet(rule, 3)
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


def test_data_in_an_upload_that_travels_stay_in_the_model_across_a_synchronisation():
    # b asks for a synchronisation, and its upload is lost; a's synchronisation, for which b's poll is lost too, is
    # answered to b only after b uploaded once more: the download holds neither of what b has in flight.
    rule = make_rule("dislinucb", dim=2, threshold=0.0)
    server = rule.server()
    server.enroll(["a", "b"])
    a, b = rule.agent("a"), rule.agent("b")
    travelling = b.observe([0.0, 1.0], 1.0)
    polls = server.receive(a.observe([1.0, 0.0], 1.0))
    assert polls == (Poll("b"),)
    pulled = server.receive(Pull("b", b.incarnation))  # λI + a's data, made before b's upload arrives
    b.adopt(pulled)
    assert b.in_flight is travelling
    np.testing.assert_allclose(b.synchronised.Sigma, np.diag([2.0, 2.0]))
    np.testing.assert_allclose(b.predict(np.eye(2)), [0.5, 0.5])  # its own reward counts, and counts once
    b.adopt(server.receive(travelling))
    np.testing.assert_allclose(b.predict(np.eye(2)), [0.5, 0.5])
    assert b.in_flight is None and b.synchronised == server.stats


def test_a_poll_answered_by_an_upload_that_was_merged_before_ends_the_synchronisation():
    # b's first upload is merged as its own synchronisation, whose answer is lost. Polled by the next one, b can only
    # send that upload again: it counts once, and the server must not wait for b any longer.
    rule = make_rule("dislinucb", dim=2, threshold=0.0)
    server = rule.server()
    server.enroll(["a", "b"])
    a, b = rule.agent("a"), rule.agent("b")
    (poll,) = server.receive(b.observe([0.0, 1.0], 1.0))
    lost = server.receive(a.adopt(poll))  # both are answered; b's answer never arrives
    a.adopt([reply for reply in lost if reply.agent_id == "a"])
    (poll,) = server.receive(a.observe([1.0, 0.0], 1.0))
    retried = b.adopt(poll)
    assert retried.sequence == 1 and server.ledger["b"].sequence == 1
    replies = server.receive(retried)
    assert [type(reply) for reply in replies] == [Download, Download] and not server.awaited
    for agent in (a, b):
        agent.adopt(replies)
        assert agent.synchronised == server.stats and agent.in_flight is None
    assert server.stats.n_obs == 2


def test_an_answer_to_a_poll_that_is_sent_twice_counts_once_and_is_answered():
    rule = make_rule("dislinucb", dim=2, threshold=0.0)
    server = rule.server()
    server.enroll(["a", "b", "c"])
    a, b, c = (rule.agent(name) for name in "abc")
    polls = server.receive(a.observe([1.0, 0.0], 1.0))
    answer = b.adopt(polls[0])
    assert server.receive(answer) == ()
    assert isinstance(server.receive(answer), Download)  # b asks again: it is merged, and c alone is awaited
    assert server.awaited == {"c"}
    assert len(server.receive(c.adopt(polls[1]))) == 3


@pytest.mark.parametrize("name", ["dislinucb", "async-linucb"])
def test_a_download_that_lacks_what_this_agent_has_uploaded_is_not_adopted(name):
    """A server that was restored from an older state, and has merged other uploads since, knows less than it did."""
    rule = make_rule(
        name, dim=2, **({"threshold": 0.0} if name == "dislinucb" else {"gamma_up": 1.0, "gamma_down": 1.0})
    )
    server = rule.server()
    server.enroll(["a"])
    agent = rule.agent("a")
    agent.adopt(server.receive(agent.observe([1.0, 0.0], 1.0)))
    assert agent.sequence == 1 and agent.in_flight is None
    before = agent.predict(np.eye(2))
    agent.adopt(Download("a", 99, SufficientStats.prior(dim=2, lam=1.0), 0))
    np.testing.assert_array_equal(agent.predict(np.eye(2)), before)
    assert before[0] > 0.0


def synchronisations(rule, participation="uniform"):
    world = make_world(dim=rule.dim)
    run = {"n_agents": 4, "n_rounds": 120, "record": "all", "participation": participation, "engine": "reference"}
    return fb.simulate(rule, world, **run).messages_up // 4


def test_a_global_clock_counts_the_rounds_of_all_agents():
    own, everybody = (synchronisations(make_rule("dislinucb", threshold=3.0, clock=c)) for c in (None, "global"))
    assert everybody[-1] > own[-1] > 0
    named = synchronisations(make_rule("dislinucb", threshold=3.0, clock="own"))
    assert np.array_equal(named, own)


def test_with_one_agent_both_clocks_are_the_same():
    traces = [
        fb.simulate(make_rule("dislinucb", threshold=3.0, clock=clock), make_world(), n_agents=1, n_rounds=200)
        for clock in ("own", "global")
    ]
    assert np.array_equal(traces[0].regret, traces[1].regret) and traces[0].n_messages == traces[1].n_messages > 0


def test_a_driver_that_does_not_tell_the_time_leaves_an_agent_its_own_rounds():
    own, everybody = (make_rule("dislinucb", threshold=3.0, clock=clock).agent("a") for clock in ("own", "global"))
    rng = np.random.default_rng(0)
    for x in rng.standard_normal((20, 3)):
        assert (own.observe(x, 0.5) is None) == (everybody.observe(x, 0.5) is None)


def test_a_saved_agent_keeps_its_clock():
    agent = make_rule("dislinucb", threshold=3.0, clock="global").agent("a")
    agent.now, agent.synchronised_at = 40, 17
    again = fb.load(agent.to_bytes())
    assert (again.now, again.synchronised_at) == (40, 17)


def test_an_unknown_clock_is_a_named_error():
    with pytest.raises(fb.errors.InvalidParameter, match="clock to be one of 'own', 'global'"):
        make_rule("dislinucb", clock="wall")
