"""FedUCB: the tree of noise, exact counts, both schedules, and that noise comes from its own seeded generators."""

import math

import numpy as np
import pytest

import fedbandit as fb
from fedbandit.algorithms.catalog import rule_from_dict
from fedbandit.algorithms.feducb import FedUCB, NoisySums, Release, SumsPoll, lowest_set_bit, positive_definite
from fedbandit.errors import InvalidInput, InvalidParameter
from fedbandit.simulation.runner import new_fleet, play_rounds, rounds_of

WORLD = fb.worlds.sphere(dim=3, n_actions=8, noise=0.5)
M, STEPS = 4, 120


def make(**changes):
    return FedUCB(**{"dim": 3, "n_agents": M, "n_steps": STEPS, "batch": 5, "threshold": 30.0, **changes})


def played(rule, *, n_steps=STEPS, seed=0):
    fleet = new_fleet(rule, M)
    stream, blocks = rounds_of(WORLD, fb.participation.steps(), n_agents=M, n_rounds=M * n_steps, seed=seed)
    return play_rounds(fleet, stream, blocks, n_rounds=M * n_steps, record="all"), fleet


def test_the_corrected_schedule_sends_after_every_batch_whatever_the_data():
    trace, fleet = played(make())
    n_releases = STEPS // 5
    assert fleet.server.n_releases == n_releases
    assert (trace.messages_up[-1], trace.messages_down[-1]) == (M * n_releases, M * n_releases)
    assert trace.n_scalars == 2 * M * n_releases * (6 + 3)
    assert trace.n_bytes == 8 * trace.n_scalars
    sent = np.flatnonzero(np.diff(trace.messages_up, prepend=0))
    np.testing.assert_array_equal(sent, 5 * M * np.arange(1, n_releases + 1) - 1)


def test_the_published_schedule_counts_the_moment_matrix_up_and_the_sums_down():
    trace, fleet = played(make(schedule="as_published", epsilon=math.inf))
    n = fleet.server.n_releases
    assert 1 < n < STEPS
    polls = (M - 1) * n  # one agent starts a synchronisation, the others may have to be asked
    assert trace.messages_up[-1] == M * n
    assert M * n <= trace.messages_down[-1] <= M * n + polls
    assert trace.n_scalars == M * n * (10 + 9)  # (d+1)(d+2)/2 up, d(d+1)/2 + d down, nothing in a poll


def test_without_noise_a_release_is_the_exact_sum_of_all_batches():
    rule = make(epsilon=math.inf)
    assert rule.node_noise == 0 and rule.ridge == rule.lam
    fleet = new_fleet(rule, M)
    _, blocks = rounds_of(WORLD, fb.participation.steps(), n_agents=M, n_rounds=M * STEPS, seed=0)
    total_gram, total_moment, t = np.zeros((3, 3)), np.zeros(3), 0
    for active, block in blocks:
        for i in range(min(len(block), M * STEPS - t)):
            t += 1
            agent = fleet.begin_round(t, str(active[i]))
            decision = agent.choose(block.actions(i))
            reward = float(block.means[i, decision.index]) + block.noise_of(i, decision.index)
            total_gram, total_moment = total_gram + np.outer(decision.x, decision.x), total_moment + reward * decision.x
            agent.observe(decision, reward)
            fleet.end_round(agent, decision, reward, None)
            if t % (5 * M) == 0:
                for each in fleet.agents.values():
                    np.testing.assert_allclose(each.synchronised, total_gram + np.eye(3), atol=1e-9)
                    np.testing.assert_allclose(each.estimate.stats.b, total_moment, atol=1e-9)
                    assert each.n_known == t
    assert t == M * STEPS


def test_a_release_holds_the_noise_of_one_node_for_each_binary_digit():
    """After k batches the noise has the variance of M times the ones of k; the published tree has the same shape."""
    rule = make(batch=1, n_steps=64, n_agents=1)
    spread = {k: [] for k in (1, 3, 7, 8)}
    for seed in range(300):
        rule_of_seed = make(batch=1, n_steps=64, n_agents=1, seed=seed)
        agent, server = rule_of_seed.agent("0"), rule_of_seed.server()
        server.enroll(["0"])
        exact = np.zeros((3, 3))
        for k in range(1, 9):
            x = np.eye(3)[k % 3]
            agent.observe(agent.choose(x[None]), 0.0)
            exact = exact + np.outer(x, x)
            (release,) = server.end_step({"0": agent.end_step()})
            agent.adopt(release)
            if k in spread:
                spread[k].append((release.gram - exact)[0, 1])
    for k, values in spread.items():
        expected = rule.node_noise**2 * k.bit_count()
        assert np.var(values) == pytest.approx(expected, rel=0.3)  # 300 draws: a standard error of 8 %


def test_noise_is_of_the_seed_and_the_agent():
    first, _ = played(make(seed=3))
    again, _ = played(make(seed=3))
    other, _ = played(make(seed=4))
    np.testing.assert_array_equal(first.choices, again.choices)
    assert not np.array_equal(first.choices, other.choices)
    one, two = (make(batch=1).agent(name) for name in ("0", "1"))
    for agent in (one, two):
        agent.observe(agent.choose(np.eye(3)), 1.0)
    assert not np.allclose(one.end_step().gram, two.end_step().gram)


def test_the_sizes_of_the_noise_spelled_out():
    published = make(schedule="as_published", epsilon=2.0, delta=0.05)
    m = 1 + math.ceil(math.log2(STEPS))
    assert published.n_levels == m == 8
    assert published.node_noise == pytest.approx(math.sqrt(16 * m * (1 + 1) ** 2 * math.log(200) ** 2 / 4.0))
    spread = 4 * math.sqrt(3) + 2 * math.log(2 * STEPS / 0.1)
    assert published.shift == pytest.approx(published.node_noise * math.sqrt(2 * m) * spread)
    corrected = make(epsilon=2.0, delta=0.05)
    assert corrected.n_levels == math.floor(math.log2(24)) + 1 == 5
    assert corrected.node_noise == pytest.approx(math.sqrt(5 * (math.log(20) + 2.0)) / 2.0)
    ridge = math.sqrt(M * 5) * corrected.node_noise * (math.sqrt(5 + math.log(10)) + math.sqrt(3))
    assert corrected.ridge == pytest.approx(ridge)


def test_noise_costs_regret_and_without_it_sharing_pays():
    regret = {}
    for epsilon in (math.inf, 1.0):
        runs = [played(make(epsilon=epsilon), seed=seed)[0].regret[-1] for seed in range(3)]
        regret[epsilon] = float(np.mean(runs))
    assert regret[math.inf] < regret[1.0]
    alone = [
        fb.simulate(fb.OFUL(dim=3, beta=3.0), WORLD, n_agents=M, n_rounds=M * STEPS, seed=seed).regret[-1]
        for seed in range(3)
    ]
    assert regret[math.inf] < np.mean(alone)


def test_a_release_that_noise_left_indefinite_is_lifted():
    lifted, changed = positive_definite(np.diag([-2.0, 5.0]), 0.5)
    assert changed
    np.testing.assert_allclose(lifted, np.diag([0.5, 5.0]), atol=1e-12)
    same, changed = positive_definite(np.eye(2), 0.5)
    assert not changed
    np.testing.assert_array_equal(same, np.eye(2))
    agent = make().agent("0")
    agent.adopt(Release("0", 9, -100 * np.eye(3), np.zeros(3), 20))
    assert agent.n_lifted == 1
    assert agent.choose(np.eye(3)).index in (0, 1, 2)


def test_bad_numbers_and_messages_are_named_errors():
    for bad in (
        {"schedule": "fixed"},
        {"epsilon": 0.0},
        {"delta": 0.0},
        {"failure": 1.0},
        {"batch": 0},
        {"lam": 0.0},
        {"beta": math.nan},
        {"seed": -1},
    ):
        with pytest.raises(InvalidParameter):
            make(**bad)
    with pytest.raises(InvalidInput):
        make().agent("0").adopt(SumsPoll("0", 0))
    server = make().server()
    server.enroll(["0"])
    with pytest.raises(InvalidInput):
        server.end_step({"0": SumsPoll("0", 0)})
    assert isinstance(make(schedule="as_published").agent("0").adopt(SumsPoll("0", 0)), NoisySums)


def test_a_rule_describes_itself_and_nothing_claims_privacy():
    for rule in (make(), make(beta=0.5), make(beta=fb.radius.fixed(0.5))):
        assert rule_from_dict(rule.to_dict()) == rule
    with pytest.raises(InvalidParameter, match="beta"):
        make(beta=fb.radius.exogenous(noise_scale=0.3))
    assert "no privacy is claimed" in FedUCB.__doc__
    assert [lowest_set_bit(k) for k in (1, 2, 6, 8)] == [0, 1, 1, 3]
