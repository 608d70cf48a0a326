"""DELB: phases, plans, elimination, exact counts, and the regret that its constant C gives."""

import math

import numpy as np
import pytest

import fedbandit as fb
from fedbandit.algorithms.delb import equal_blocks
from fedbandit.algorithms.planned_pulls import PullPlan
from fedbandit.errors import InvalidInput, InvalidParameter
from fedbandit.simulation.synchronous_fleet import SynchronousFleet

ACTIONS = np.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.6], [-0.5, 0.2]])


def make_fleet(n_agents=3, **changes):
    return SynchronousFleet(fb.DELB(**{"dim": 2, "n_steps": 100, "C": 0.1, **changes}), n_agents, ACTIONS)


def play_phase(fleet, theta, rng=None):
    """Every agent finishes its plan with rewards of these means, and the messages of the phase travel."""
    for agent in fleet.agents.values():
        n, X = agent.plan.counts, ACTIONS[agent.plan.rows]
        noise = 0.0 if rng is None else np.sqrt(n) * rng.standard_normal(len(n))
        agent.finish(n * (X @ theta) + noise)
    fleet.end_step()


def test_blocks_have_the_same_length_and_hold_every_pull():
    plans = equal_blocks([4, 9, 2], [5, 1, 7], 4)
    assert [plan.n_pulls for plan in plans] == [4, 4, 4, 4]
    pulled = {row: sum(int(p.counts[p.rows == row].sum()) for p in plans) for row in (4, 9, 2)}
    assert pulled == {4: 5, 9: 1, 2: 7 + 3}  # three pulls fill the last block up


def test_a_phase_pulls_each_action_as_often_as_the_design_says():
    fleet = make_fleet()
    server = fleet.server
    total = 0.1 * 4 * 2**2 * math.log(3 * 100)
    pulls = sum(plan.n_pulls for plan in server.plans)
    support = {int(row) for plan in server.plans for row in plan.rows}
    assert total <= pulls <= total + len(support) + 3
    assert all(agent.plan is plan for agent, plan in zip(fleet.agents.values(), server.plans, strict=True))


def test_without_noise_the_estimate_is_exact_and_bad_actions_are_dropped_in_the_phase_that_can_tell():
    fleet, theta = make_fleet(), np.array([1.0, 0.3])
    gaps = (ACTIONS @ theta).max() - ACTIONS @ theta
    for phase in range(1, 6):
        assert fleet.server.phase == phase
        play_phase(fleet, theta)
        np.testing.assert_allclose(fleet.server.theta_hat[: 2 if phase < 3 else 1], theta[: 2 if phase < 3 else 1])
        assert fleet.server.active.tolist() == np.flatnonzero(gaps <= 2.0 ** (1 - phase)).tolist()
    assert fleet.server.active.tolist() == [0]
    np.testing.assert_allclose(fleet.agents["1"].theta_hat, fleet.server.theta_hat)


def test_every_number_of_every_message_is_counted():
    fleet = make_fleet()
    assigned = sum(len(agent.plan.rows) for agent in fleet.agents.values())
    assert (fleet.n_up, fleet.n_down, fleet.n_scalars) == (0, 3, 2 * assigned)
    play_phase(fleet, np.array([1.0, 0.3]))
    again = sum(len(agent.plan.rows) for agent in fleet.agents.values())
    assert (fleet.n_up, fleet.n_down, fleet.n_switches) == (3, 6, 3)
    assert fleet.n_scalars == 2 * assigned + assigned + 3 * 2 + 2 * again  # lists, means, θ to each, lists
    assert fleet.n_bytes == 8 * fleet.n_scalars


def test_nothing_travels_within_a_phase():
    rule = fb.DELB(dim=2, n_steps=1000, C=600.0)
    trace = fb.simulate(rule, fb.worlds.fixed_set(dim=2, n_actions=6), n_agents=3, n_rounds=300, record="all")
    assert trace.messages_up[-1] == 0
    assert set(trace.messages_down.tolist()) == {3}


def test_it_needs_a_world_with_one_fixed_set():
    for engine in ("reference", "compiled"):
        with pytest.raises(InvalidParameter, match="fixed_set"):
            fb.simulate(fb.DELB(dim=2, n_steps=10), fb.worlds.uniform(dim=2), n_agents=2, n_rounds=20, engine=engine)


def test_actions_that_change_are_refused():
    agent = fb.DELB(dim=2, n_steps=10).agent("a")
    agent.follow(PullPlan.of([0], [5]))
    agent.observe(agent.choose(ACTIONS), 1.0)
    with pytest.raises(InvalidInput, match="never change"):
        agent.choose(ACTIONS + 1.0)


def test_an_agent_without_a_plan_does_not_choose():
    with pytest.raises(InvalidInput, match="no pulls left"):
        fb.DELB(dim=2, n_steps=10).agent("a").choose(ACTIONS)


def test_a_missing_report_is_named():
    fleet = make_fleet()
    for agent in fleet.agents.values():
        agent.finish(np.zeros(len(agent.plan.rows)))
    messages = {name: agent.end_step() for name, agent in fleet.agents.items() if name != "2"}
    with pytest.raises(InvalidInput, match="'2'"):
        fleet.server.end_step(messages)


@pytest.mark.parametrize("bad", [{"C": 0.0}, {"C": math.nan}, {"dim": 0}, {"n_steps": 0}])
def test_bad_numbers_are_refused(bad):
    with pytest.raises(InvalidParameter):
        fb.DELB(**{"dim": 2, "n_steps": 10, **bad})


def test_the_server_must_know_the_actions_before_it_begins():
    server = fb.DELB(dim=2, n_steps=10).server()
    server.enroll(["0"])
    with pytest.raises(InvalidParameter, match="know_actions"):
        server.begin()


# d = 20, M = 10, 10⁶ steps each, K = 120 in the unit ball, noise 1; section "DELB" of docs/systems.md.
REFERENCE = {600.0: 5.67e6, 10.0: 2.94e6, 1.0: 6.6e5, 0.1: 8.2e4, 0.01: 9.2e3}


@pytest.mark.slow
@pytest.mark.parametrize("C", REFERENCE)
def test_regret_by_C_is_that_of_other_code_within_a_factor_of_two(C):
    pytest.importorskip("numba")
    rule, world = fb.DELB(dim=20, n_steps=10**6, C=C), fb.worlds.fixed_set(dim=20, n_actions=120, noise=1.0)
    run = {"n_agents": 10, "n_rounds": 10**7, "record": [10**7], "engine": "compiled"}
    traces = [fb.simulate(rule, world, seed=seed, **run) for seed in range(5)]
    mean = np.mean([trace.regret[-1] for trace in traces])
    assert REFERENCE[C] / 2 < mean < REFERENCE[C] * 2
    if C == 600.0:
        assert all(trace.messages_up[-1] == 0 for trace in traces)  # phase 1 does not end


def test_C_10_sends_about_as_many_bits_up_as_others_publish():
    """Salgia and Zhao: 336 bits up per agent at 24 bits a number, the phase that the run cuts short included."""
    bits = []
    for seed in range(5):
        stream = fb.worlds.fixed_set(dim=20, n_actions=120).stream(np.random.SeedSequence(seed))
        X, rng = stream.fixed_actions, np.random.default_rng(seed)
        fleet = SynchronousFleet(fb.DELB(dim=20, n_steps=10**6, C=10.0), 10, X)
        plans, n_steps = [], 0
        while n_steps <= 10**6:
            plans += [agent.plan for agent in fleet.agents.values()]
            n_steps += plans[-1].n_pulls
            for agent in fleet.agents.values():
                n = agent.plan.counts
                agent.finish(n * (X[agent.plan.rows] @ stream.theta_star) + np.sqrt(n) * rng.standard_normal(len(n)))
            fleet.end_step()
        assert len(plans) == 4 * 10
        bits.append(24 * sum(len(plan.rows) for plan in plans) / 10)
    assert 250 < np.mean(bits) < 400
