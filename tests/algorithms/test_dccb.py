"""DCCB: agents with other rewards part, those of one cluster go on sharing."""

import math

import msgspec
import numpy as np
import pytest

import fedbandit as fb
from fedbandit.algorithms.dcb import DCB, unpacked
from fedbandit.algorithms.dccb import DCCB
from fedbandit.errors import AlreadyObserved, FormatError, InvalidParameter
from fedbandit.simulation.runner import new_fleet

DIM = 3


def play(rule, thetas, n_steps, seed=0, noise=0.1):
    """A fleet in which agent m has θ* = thetas[m]; the rows and rewards of each agent."""
    M = len(thetas)
    fleet, rng = new_fleet(rule, M), np.random.default_rng(seed)
    seen = [([], []) for _ in range(M)]
    for t in range(1, n_steps * M + 1):
        m = (t - 1) % M
        agent = fleet.begin_round(t, str(m))
        decision = agent.choose(rng.standard_normal((5, rule.dim)))
        reward = float(decision.x @ thetas[m] + noise * rng.standard_normal())
        seen[m][0].append(decision.x)
        seen[m][1].append(reward)
        agent.observe(decision, reward)
        fleet.end_round(agent, decision, reward, None)
    return fleet, [(np.array(X), np.array(y)) for X, y in seen]


def rule(**changes):
    return DCCB(**{"dim": DIM, "beta": 0.5, "threshold": 2.0, "seed": 1, **changes})


def test_among_equals_with_a_wide_threshold_it_is_dcb():
    same = [np.ones(DIM)] * 4
    one, _ = play(rule(threshold=1e9), same, 50)
    other, _ = play(DCB(dim=DIM, beta=0.5, seed=1), same, 50)
    for a, b in zip(one.agents.values(), other.agents.values(), strict=True):
        assert np.array_equal(a.active, b.active) and np.array_equal(a.buffer, b.buffer)
    assert one.n_up == other.n_up


def test_agents_with_different_rewards_part_and_clusters_stay_together():
    thetas = [np.ones(DIM)] * 3 + [-np.ones(DIM)] * 3
    fleet, _ = play(rule(), thetas, 120)
    for m, agent in enumerate(fleet.agents.values()):
        cluster = {"0", "1", "2"} if m < 3 else {"3", "4", "5"}
        assert agent.neighbours == cluster


@pytest.mark.parametrize("mass", ["paper", "fleet"])
def test_an_agent_that_is_alone_has_exactly_its_own_data(mass):
    thetas = [np.ones(DIM), -np.ones(DIM)]
    fleet, seen = play(rule(mass=mass), thetas, 80)
    for agent, (X, y) in zip(fleet.agents.values(), seen, strict=True):
        assert agent.neighbours == {agent.agent_id}
        stats = unpacked(agent.active + agent.buffer.sum(axis=0), DIM)
        np.testing.assert_allclose(stats.Sigma, np.eye(DIM) + X.T @ X, rtol=1e-9)
        np.testing.assert_allclose(stats.b, X.T @ y, rtol=1e-9)


def test_dropping_is_mutual():
    thetas = [np.ones(DIM), np.ones(DIM), -np.ones(DIM)]
    fleet, _ = play(rule(), thetas, 15)
    for agent in fleet.agents.values():
        for peer in fleet.agents.values():
            assert (peer.agent_id in agent.neighbours) == (agent.agent_id in peer.neighbours)


def test_messages_carry_the_estimate_and_the_neighbours_and_partings_count():
    same = [np.ones(DIM)] * 4
    together, _ = play(rule(threshold=1e9), same, 30)
    plain, _ = play(DCB(dim=DIM, beta=0.5, seed=1), same, 30)
    assert together.n_scalars == plain.n_scalars + 30 * 4 * (DIM + 4)
    apart, _ = play(rule(), [np.ones(DIM), -np.ones(DIM)], 40)
    dropped, _ = play(DCB(dim=DIM, beta=0.5, seed=1), same[:2], 40)
    assert apart.n_up > dropped.n_up  # each parting is one more message


def test_the_printed_threshold_separates_nobody_before_very_many_steps():
    printed = DCCB(dim=15, beta=0.5, noise_scale=0.3, kappa=1 / 45)
    assert (
        printed.separation(2000) == printed.noise_scale * math.sqrt(30 * math.log(2000) + 2 * math.log(200)) + 1
        and printed.separation(2000) > 5
    )
    assert printed.separation(10**7) < 0.1
    assert rule(threshold=2.0).separation(99) == pytest.approx(2 * math.sqrt((1 + math.log(100)) / 100))


def test_it_runs_in_the_simulator():
    trace = fb.simulate(rule(), fb.worlds.uniform(dim=DIM), n_agents=4, n_rounds=200)
    assert trace.messages_up[-1] >= 200 and trace.messages_down[-1] == 0


@pytest.mark.parametrize("change", [{"kappa": 0.0}, {"delta": 1.0}, {"threshold": 0.0}, {"noise_scale": -1.0}])
def test_bad_numbers_are_named_errors(change):
    with pytest.raises(InvalidParameter):
        rule(**change)


@pytest.mark.parametrize("rule", [DCB(dim=2, beta=0.5, mass="fleet"), DCCB(dim=2, beta=0.5, threshold=0.5)])
@pytest.mark.parametrize("n_rounds", [0, 5, 4 * 40 + 2])
def test_a_saved_fleet_goes_on_as_if_it_had_never_stopped(rule, n_rounds):
    """Also in the middle of a step, with rewards that are not in the buffers yet."""
    M, rng = 4, np.random.default_rng(0)
    truth = rng.standard_normal((2, 2))  # two clusters
    fleets = [new_fleet(rule, M), new_fleet(rule, M)]

    def play(fleet, t, X, noise):
        agent = fleet.begin_round(t, str((t - 1) % M))
        decision = agent.choose(X)
        reward = float(decision.x @ truth[int(agent.agent_id) % 2]) + noise
        agent.observe(decision, reward)
        fleet.end_round(agent, decision, reward, None)
        return decision.index, agent.beta, agent.n_switches

    def one_round(t):
        X, noise = rng.standard_normal((4, 2)), 0.1 * rng.standard_normal()
        return [play(fleet, t, X, noise) for fleet in fleets]

    for t in range(1, n_rounds + 1):
        one_round(t)
    saved = fleets[1]
    saved.server = fb.load(saved.server.to_bytes())
    for name in list(saved.agents):
        saved.agents[name] = fb.load(saved.agents[name].to_bytes())
    for t in range(n_rounds + 1, n_rounds + 120):
        first, second = one_round(t)
        assert first == second
    for agent, twin in zip(fleets[0].agents.values(), saved.agents.values(), strict=True):
        np.testing.assert_array_equal(agent.active, twin.active)
        np.testing.assert_array_equal(agent.buffer, twin.buffer)


def test_a_decision_without_its_reward_is_saved_with_its_agent():
    rule = DCB(dim=2, beta=0.5)
    agent = rule.agent("0")
    decision = agent.choose(np.eye(2))
    loaded = fb.load(agent.to_bytes())
    loaded.observe(decision, 1.0)
    with pytest.raises(AlreadyObserved):
        loaded.observe(decision, 1.0)
    assert loaded.choose(np.eye(2)).id != decision.id


@pytest.mark.parametrize("rule", [DCB(dim=2, beta=0.5), DCCB(dim=2, beta=0.5)])
def test_a_damaged_state_is_a_named_error(rule):
    for thing in (rule.agent("0"), rule.server()):
        data = msgspec.msgpack.decode(thing.to_bytes())
        for key in data["state"]:
            left = {name: value for name, value in data["state"].items() if name != key}
            with pytest.raises(FormatError, match="damaged"):
                fb.load(msgspec.msgpack.encode({**data, "state": left}))
    data = msgspec.msgpack.decode(rule.agent("0").to_bytes())
    for packed in (
        None,
        {"shape": [3], "data": bytes(24)},
        {"shape": [5], "data": b"\xff" * 40},
        {"shape": [5], "data": b""},
    ):
        with pytest.raises(FormatError, match="damaged"):
            fb.load(msgspec.msgpack.encode({**data, "state": {**data["state"], "active": packed}}))
