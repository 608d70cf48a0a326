"""A control group: a share of decisions by the application's default, flagged, with probabilities, and counted."""

import numpy as np
import pytest

import fedbandit as fb
from fedbandit.core.group_sums import NO_GROUPS, GroupSums
from fedbandit.errors import InvalidInput, InvalidParameter
from fedbandit.simulation.runner import SimulatedFleet
from tests.builders import make_agent, make_rule, rows

Q = 0.3


def agent_with(q=Q, **changes):
    return make_agent(control=q, **changes)


def decided(agent, n=400, **options):
    return [agent.choose(rows(5, seed=seed), **options) for seed in range(n)]


def test_a_share_of_decisions_takes_the_default_and_says_so():
    decisions = decided(make_rule(control=Q).agent("a", incarnation="one"), default=3)
    control = [decision for decision in decisions if decision.group == "control"]
    assert len(control) == pytest.approx(Q * 400, abs=3 * np.sqrt(400 * Q * (1 - Q)))
    assert {decision.index for decision in control} == {3}
    assert {decision.policy for decision in control} == {"control"}
    plain = make_rule().agent("a", incarnation="one")
    treated = [(d.index, plain.choose(rows(5, seed=n)).index) for n, d in enumerate(decisions) if d.group != "control"]
    assert all(index == without for index, without in treated)
    assert {d.group for d in decisions} == {"control", "treatment"}


def test_without_a_default_control_is_uniform():
    decisions = decided(make_rule(control=0.9).agent("a", incarnation="one"), n=1_000)
    control = [decision.index for decision in decisions if decision.group == "control"]
    counts = np.bincount(control, minlength=5)
    assert ((counts - len(control) / 5) ** 2 / (len(control) / 5)).sum() < 23.5  # χ² with 4 degrees of freedom, 1e-4


@pytest.mark.parametrize("policy", [{}, {"explore": 0.2}, {"policy": "inverse-gap", "gamma": 3.0}])
@pytest.mark.parametrize("default", [None, 1])
def test_probabilities_are_those_of_both_together(policy, default):
    agent = make_rule(control=Q, **policy).agent("a", incarnation="one")
    agent.partial_fit(rows(30, seed=1), rows(30, seed=2)[:, 0])
    X, n = rows(4), 3_000
    decisions = agent.choose_many([X] * n, defaults=[default] * n)
    told = {(decision.index): decision.propensity for decision in decisions}
    if default is None or policy:
        assert sum(told.values()) == pytest.approx(1.0)
    for index, p in told.items():
        share = np.mean([decision.index == index for decision in decisions])
        assert abs(share - p) < 5 * np.sqrt(p * (1 - p) / n) + 1e-12


def test_the_coin_is_that_of_the_decisions_number():
    first, second = (decided(make_rule(control=Q).agent("a", incarnation="one"), n=50) for _ in range(2))
    assert [d.to_dict() for d in first] == [d.to_dict() for d in second]
    agent = make_rule(control=Q).agent("a", incarnation="one")
    half = decided(agent, n=25)
    resumed = fb.load(agent.to_bytes())
    rest = [resumed.choose(rows(5, seed=seed)) for seed in range(25, 50)]
    groups = {decision.id: decision.group for decision in first}
    assert all(groups[decision.id] == decision.group for decision in [*half, *rest] if decision.id in groups)
    other = decided(make_rule(control=Q).agent("b", incarnation="one"), n=50)
    assert [d.group for d in other] != [d.group for d in first]


def test_rewards_by_group_travel_with_uploads_and_are_counted_once():
    rule = make_rule(control=Q, alpha=0.5)
    server, agent = rule.server(), rule.agent("a", incarnation="one")
    expected = {"control": [], "treatment": []}
    for n in range(200):
        decision = agent.choose(rows(5, seed=n), default=0)
        reward = float(n % 7)
        expected[decision.group].append(reward)
        upload = agent.observe(decision, reward)
        if n % 10 == 0:
            agent.observe([1.0, 0.0, 0.0], 5.0)  # no decision: in no group
        while upload is not None:
            server.receive(upload)
            upload = agent.adopt(server.receive(upload))  # a retry
    total = server.groups + agent.local_groups
    assert (total.control.n_obs, total.treatment.n_obs) == tuple(len(values) for values in expected.values())
    assert total.control.reward_sum == sum(expected["control"])
    assert total.treatment.reward_sq_sum == sum(value**2 for value in expected["treatment"])
    assert server.stats.n_obs + agent.local.n_obs == 220
    again = fb.load(server.to_bytes()), fb.load(agent.to_bytes())
    assert again[0].groups + again[1].local_groups == total


def test_an_upload_in_flight_keeps_its_groups_through_a_snapshot():
    agent = agent_with(alpha=0.0)
    upload = agent.observe(agent.choose(rows(3)), 1.0)
    assert upload.groups.n_obs == 1 and not agent.local_groups
    resumed = fb.load(agent.to_bytes())
    assert resumed.in_flight.groups == upload.groups
    assert resumed.in_flight.digest() == upload.digest()
    plain = fb.Upload(upload.agent_id, upload.incarnation, upload.sequence, upload.stats, upload.growth)
    assert plain.digest() != upload.digest()


def test_control_decisions_teach_the_model():
    agent = make_rule(control=0.99, alpha=0.0).agent("a", incarnation="one")
    decision = agent.choose(rows(3), default=2)
    assert decision.group == "control"
    upload = agent.observe(decision, 1.0)
    assert upload.stats.b == pytest.approx(rows(3)[2])


def test_without_control_nothing_is_different():
    agent = make_agent()
    decision = agent.choose(rows(3), default=1)
    assert (decision.group, decision.propensity) == ("treatment", 1.0)
    assert "group" not in decision.to_dict() and "policy" not in decision.to_dict()
    agent.observe(decision, 1.0)
    assert agent.local_groups is NO_GROUPS
    assert make_rule().to_dict() == make_rule(control=0.0).to_dict()
    assert "control" not in make_rule().to_dict() and make_rule(control=0.1).to_dict()["control"] == 0.1


@pytest.mark.parametrize("default", [-1, 3, True, 0.5, "first"])
@pytest.mark.parametrize("q", [0.0, Q])
def test_a_bad_default_is_named_whether_or_not_there_is_a_control_group(default, q):
    agent = agent_with(q)
    with pytest.raises(InvalidInput, match="expected default"):
        agent.choose(rows(3), default=default)
    with pytest.raises(InvalidInput, match="defaults"):
        agent.choose_many([rows(3)], defaults=[0, 1])
    assert agent.n_pending == 0


def test_what_has_no_control_group_says_so():
    with pytest.raises(InvalidParameter, match="control"):
        make_rule(control=1.0)
    with pytest.raises(InvalidInput, match="probability of a list"):
        agent_with().choose(rows(3), k=2)
    with pytest.raises(InvalidInput, match="finite array"):
        agent_with().choose(fb.Ball(3))


def test_a_simulated_fleet_has_a_control_group():
    rule = fb.FedLinUCB(dim=3, alpha=0.1, beta=0.5, control=0.2)
    world = fb.worlds.uniform(dim=3, n_actions=5, noise=0.3)
    trace = fb.simulate(rule, world, n_agents=4, n_rounds=500, seed=1)
    reference = fb.simulate(rule, world, n_agents=4, n_rounds=500, seed=1, engine="reference")
    assert trace.regret[-1] == pytest.approx(reference.regret[-1], rel=1e-9)
    plain = fb.simulate(fb.FedLinUCB(dim=3, alpha=0.1, beta=0.5), world, n_agents=4, n_rounds=500, seed=1)
    assert trace.regret[-1] > plain.regret[-1]  # a fifth of the decisions is uniform
    assert isinstance(SimulatedFleet(rule, 2).server.groups, GroupSums)
