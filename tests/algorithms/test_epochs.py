"""FedLinUCB in a world that changes: alarms, restarts, discarded uploads, silence and the age of sums."""

import math

import numpy as np
import pytest

import fedbandit as fb
from fedbandit.algorithms.messages import CHANGE_ALARM, OLDER_EPOCH
from fedbandit.errors import InvalidParameter, UnprovenRadius
from tests.builders import assert_stats_close, make_rule, rows, stats_of

R = 0.1


def restarting(**changes):
    drift = fb.drift.restart(noise_scale=R, agent_block=8, server_block=16, n_levels=4)
    return make_rule(**{"drift": drift, "alpha": math.inf, **changes})


def feed(agent, theta, n, *, seed=0):
    """Observe n rewards of this world; the first upload."""
    rng = np.random.default_rng(seed)
    for _ in range(n):
        x = rng.standard_normal(agent.dim)
        upload = agent.observe(x, float(x @ theta) + R * rng.standard_normal())
        if upload is not None:
            return upload
    return None


def knowing(rule, theta, n=200):
    """A server that has learnt θ from another agent."""
    server = rule.server()
    X = rows(n, rule.dim, seed=5)
    stats = fb.SufficientStats.of(X, X @ theta + R * np.random.default_rng(6).standard_normal(n))
    server.receive(fb.Upload("teacher", "one", 1, stats, 1.0))
    return server


def test_an_agent_that_finds_a_change_reports_it_and_the_server_restarts():
    rule, theta = restarting(join=True), np.ones(3)
    server, agent = knowing(rule, theta), rule.agent("a")
    agent.adopt(server.receive(agent.arrive()))
    assert feed(agent, theta, 500) is None
    upload = feed(agent, -theta, 100, seed=1)
    assert upload is not None and upload.alarm
    version = server.version
    reply = server.receive(upload)
    assert (reply.epoch, reply.outcome, reply.discarded) == (1, CHANGE_ALARM, upload.stats.n_obs)
    assert server.stats == rule.prior and server.version == version + 1
    agent.adopt(reply)
    assert agent.world.epoch == 1 and agent.model.stats == rule.prior and not agent.world.has_alarm
    assert agent.in_flight is None and agent.local.n_obs == 0


def test_the_server_finds_a_change_in_uploads_that_no_agent_can_see():
    rule, theta = restarting(), np.ones(3)
    server = knowing(rule, theta, n=400)
    rng = np.random.default_rng(0)
    for m in range(60):  # a few observations of each of many agents
        X = rng.standard_normal((4, 3))
        stats = fb.SufficientStats.of(X, X @ (1.3 * theta) + R * rng.standard_normal(4))
        server.receive(fb.Upload(f"a{m}", "one", 1, stats, 0.1, epoch=server.epoch))
        if server.epoch:
            break
    assert server.epoch == 1 and m >= 3


def test_an_upload_of_an_older_epoch_is_discarded_by_name_and_once():
    rule = restarting(alpha=1.0)
    server, agent = rule.server(), rule.agent("a")
    upload = feed(agent, np.ones(3), 100)
    server.restart()
    before = server.stats
    reply = server.receive(upload)
    assert (reply.outcome, reply.discarded, reply.acknowledged) == (OLDER_EPOCH, upload.stats.n_obs, upload.sequence)
    assert server.stats == before and server.clock == 0
    again = server.receive(upload)
    assert again.discarded == upload.stats.n_obs and again.acknowledged == upload.sequence
    agent.observe(np.ones(3), 1.0)  # of the old epoch, as the agent has not heard of the restart
    agent.adopt(reply)
    assert agent.local.n_obs == 0 and agent.world.n_dropped == 1 and agent.world.n_discarded == upload.stats.n_obs
    follow = feed(agent, np.ones(3), 100)
    assert follow.epoch == 1 and follow.dropped == 1
    assert server.receive(follow).outcome == ""
    assert server.n_discarded == upload.stats.n_obs + 1
    assert server.clock + server.n_discarded == agent.n_rounds


def test_an_alarm_of_an_older_epoch_restarts_nothing():
    rule = restarting()
    server = rule.server()
    server.restart()
    stats = stats_of([(np.ones(3), 1.0)], 3)
    reply = server.receive(fb.Upload("a", "one", 1, stats, 0.1, epoch=0, alarm=True))
    assert reply.outcome == OLDER_EPOCH and server.epoch == 1


def test_a_server_that_lost_a_restart_learns_of_it_from_an_upload():
    rule = restarting()
    server = knowing(rule, np.ones(3))
    stats = stats_of([(np.ones(3), 1.0)], 3)
    server.receive(fb.Upload("a", "one", 1, stats, 0.1, epoch=2))
    assert server.epoch == 2 and server.stats == rule.prior + stats


def test_any_model_can_be_restarted_by_hand():
    rule = make_rule(alpha=0.1)
    server, agent = rule.server(), rule.agent("a")
    agent.adopt(server.receive(agent.observe([1.0, 0.0, 0.0], 1.0)))
    server.restart()
    agent.adopt(server.receive(agent.observe([1.0, 0.0, 0.0], 1.0)))
    assert agent.world.epoch == 1 and agent.model.stats == rule.prior
    assert server.n_discarded == 1 and server.clock == 1


@pytest.mark.parametrize("refresh", ["upload", "arrival"])
def test_no_agent_is_silent_for_longer_than_it_may(refresh):
    rule = make_rule(alpha=math.inf, max_silence=7, refresh=refresh)
    server, agent = rule.server(), rule.agent("a")
    made = []
    for n in range(1, 50):
        pull = agent.arrive()
        if pull is not None:
            agent.adopt(server.receive(pull))
        upload = agent.observe([1.0, 0.0, 0.0], 1.0)
        if upload is not None:
            made.append(n)
            agent.adopt(server.receive(upload))
    assert made == [7, 14, 21, 28, 35, 42, 49]


def test_a_late_answer_does_not_lengthen_the_silence():
    rule = make_rule(alpha=math.inf, max_silence=5)
    server, agent = rule.server(), rule.agent("a")
    for _ in range(4):
        assert agent.observe([1.0, 0.0, 0.0], 1.0) is None
    upload = agent.observe([1.0, 0.0, 0.0], 1.0)
    for _ in range(6):
        assert agent.observe([1.0, 0.0, 0.0], 1.0) is None  # one exchange at a time
    due = agent.adopt(server.receive(upload))
    assert due is not None and due.stats.n_obs == 6


def test_fewer_observations_than_an_upload_may_hold_wait_also_in_silence():
    rule = make_rule(alpha=math.inf, max_silence=2, min_upload=4)
    agent = rule.agent("a")
    uploads = [agent.observe([1.0, 0.0, 0.0], 1.0) for _ in range(4)]
    assert uploads[:3] == [None] * 3 and uploads[3] is not None


def test_discounted_sums_are_weighted_by_age():
    rule = make_rule(drift=fb.drift.discount(horizon=10.0))
    server = rule.server()
    one, two = stats_of([([1.0, 0, 0], 1.0)], 3), stats_of([([0, 1.0, 0], 1.0)] * 5, 3)
    server.receive(fb.Upload("a", "one", 1, one, 0.1, clock=0))
    server.receive(fb.Upload("b", "one", 1, two, 0.1, clock=1))
    w = math.exp(-0.6), math.exp(-0.5)
    np.testing.assert_allclose(np.diag(server.stats.Sigma), [1 + w[0], 1 + 5 * w[1], 1.0], rtol=1e-14)
    np.testing.assert_allclose(server.stats.b, [w[0], 5 * w[1], 0.0], rtol=1e-14)
    assert server.stats.n_obs == server.clock == 6


def test_an_agent_replaces_a_discounted_model_that_is_old():
    rule = make_rule(alpha=math.inf, drift=fb.drift.discount(horizon=100.0), join=True)
    server, agent = rule.server(), rule.agent("a")
    made = []
    for n in range(1, 61):  # nine observations of the rest of the fleet for each own one
        server.receive(fb.Upload("fleet", "one", n, stats_of([([1.0, 0, 0], 1.0)] * 9, 3), 0.1, clock=server.clock))
        pull = agent.arrive()
        if pull is not None:
            agent.adopt(server.receive(pull))
        upload = agent.observe([1.0, 0.0, 0.0], 1.0)
        if upload is not None:
            made.append(n)
            agent.adopt(server.receive(upload))
    assert made[0] == 30 and 2 <= np.diff(made).max() <= 4  # 0.3 H = 30 observations of the fleet, about 3 own ones


def test_drift_and_silence_are_saved_with_rule_agent_and_server():
    rule = restarting(max_silence=9, alpha=1.0)
    assert fb.load(rule.agent("a").to_bytes()).rule.to_dict() == rule.to_dict()
    server, agent = rule.server(), rule.agent("a")
    rng = np.random.default_rng(0)
    twins = fb.load(server.to_bytes()), fb.load(agent.to_bytes())
    for i in range(300):
        if i % 40 == 20:
            twins = tuple(fb.load(thing.to_bytes()) for thing in twins)
        x = rng.standard_normal(3)
        reward = float(x.sum()) * (1 if i < 150 else -1)
        uploads = [agent.observe(x, reward), twins[1].observe(x, reward)]
        assert (uploads[0] is None) == (uploads[1] is None)
        if uploads[0] is not None:
            assert uploads[0].alarm == uploads[1].alarm
            assert_stats_close(uploads[1].stats, uploads[0].stats)
            agent.adopt(server.receive(uploads[0]))
            twins[1].adopt(twins[0].receive(uploads[1]))
    assert server.epoch == twins[0].epoch == 1
    assert_stats_close(twins[1].model.stats, agent.model.stats)


def test_a_plain_rule_is_saved_as_before():
    assert "drift" not in make_rule().to_dict() and "max_silence" not in make_rule().to_dict()


@pytest.mark.parametrize("bad", [0, -1, 1.5, math.nan, "soon", None])
def test_silence_is_a_whole_number_of_rounds_or_infinite(bad):
    with pytest.raises(InvalidParameter):
        make_rule(max_silence=bad)


def test_a_radius_for_one_theta_is_unproven_with_discounted_sums():
    with pytest.warns(UnprovenRadius, match="discounted"):
        make_rule(drift="discount:100", beta=fb.radius.exogenous(noise_scale=R))


def test_a_restart_drops_the_own_sums_of_personal_agents():
    rule = make_rule(alpha=0.1, personal=1.0)
    server, agent = rule.server(), rule.agent("a")
    for _ in range(5):
        upload = agent.observe([1.0, 0.5, 0.0], 1.0)
        if upload is not None:
            agent.adopt(server.receive(upload))
    assert agent.own.n_obs == 5
    server.restart()
    while (upload := agent.observe([1.0, 0.5, 0.0], 1.0)) is None:
        pass
    agent.adopt(server.receive(upload))
    assert agent.own.n_obs == 0 and agent.held.n_obs == 0
    agent.choose(np.eye(3))
    assert agent.predict(np.eye(3)) == pytest.approx(np.zeros(3))


@pytest.mark.parametrize("drift", ["restart:0.3", "discount:100"])
def test_drift_and_personal_together_are_refused(drift):
    with pytest.raises(InvalidParameter, match="personal"):
        make_rule(drift=drift, personal="auto")


@pytest.mark.parametrize("blocks", [1, 2])
def test_a_change_in_one_arm_restarts_the_model(blocks):
    rule = make_rule(dim=4, blocks=blocks, alpha=0.5, drift="restart:0.1", max_silence=20)
    server, agent = rule.server(), rule.agent("a")
    rng = np.random.default_rng(0)
    found = []
    for theta in ([1.0, 1.0, 1.0, 1.0], [1.0, 1.0, -1.0, -1.0]):
        for _ in range(300):
            x = np.zeros((2, 2))
            x[rng.integers(2)] = rng.standard_normal(2)
            reward = float(x.reshape(-1) @ theta) + 0.1 * rng.standard_normal()
            upload = agent.observe(x.reshape(-1), reward)
            if upload is not None:
                agent.adopt(server.receive(upload))
        found.append(server.epoch)
    assert found == [0, 1]
    assert server.clock + server.n_discarded + agent.local.n_obs + agent.world.n_dropped == 600
    np.testing.assert_allclose(agent.predict(np.eye(4)), [1.0, 1.0, -1.0, -1.0], atol=0.1)


def test_a_restart_by_hand_works_with_blocks():
    rule = make_rule(dim=4, blocks=2, alpha=0.1)
    server, agent = rule.server(), rule.agent("a")
    agent.adopt(server.receive(agent.observe([1.0, 0.5, 0.0, 0.0], 1.0)))
    server.restart()
    assert server.stats == rule.prior
