"""What must hold after every round of FedLinUCB: the trigger's inequalities, message counts, limits in α."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedbandit as fb
from fedbandit import theory
from fedbandit.simulation.runner import SimulatedFleet
from tests.builders import make_rule, play_round

alphas = st.sampled_from([0.01, 0.1, 0.5, 1.0, 3.0])
seeds = st.integers(0, 10_000)


def log_det(Sigma):
    return float(np.linalg.slogdet(Sigma)[1])


def smallest(Sigma):
    return float(np.linalg.eigvalsh(Sigma)[0])


def rounds(fleet, *, n_rounds, n_agents, seed, spread=0.0):
    """Play rounds without faults; yields after each. Rows differ in length by `spread` decades."""
    rng = np.random.default_rng(seed)
    dim = fleet.rule.dim
    for _ in range(n_rounds):
        actions = rng.standard_normal((3, dim)) * 10.0 ** rng.uniform(-spread, spread, size=(3, 1))
        yield play_round(fleet, str(rng.integers(n_agents)), actions, float(rng.standard_normal()))


@pytest.mark.parametrize("trigger", ["determinant", "spectral"])
@pytest.mark.parametrize("extra", [{}, {"join": True}, {"refresh": "arrival"}, {"join": True, "refresh": "arrival"}])
@settings(max_examples=12)
@given(alpha=alphas, lam=st.sampled_from([1e-3, 1.0, 1e3]), n_agents=st.integers(1, 4), seed=seeds)
def test_after_every_round_no_buffer_outgrows_its_model(trigger, extra, alpha, lam, n_agents, seed):
    fleet = SimulatedFleet(make_rule(alpha=alpha, lam=lam, trigger=trigger, **extra), n_agents)
    for _ in rounds(fleet, n_rounds=40, n_agents=n_agents, seed=seed, spread=0.5):
        everything = fleet.server.stats.Sigma
        for agent in fleet.agents.values():
            Sigma, local = agent.model.stats.Sigma, agent.local.Sigma
            scale = float(np.trace(Sigma))
            if trigger == "determinant":
                assert log_det(Sigma + local) - log_det(Sigma) <= math.log1p(alpha) + 1e-9
            assert smallest(alpha * Sigma - local) >= -1e-9 * scale
            everything = everything + local
        scale = float(np.trace(everything))
        assert smallest((1 + n_agents * alpha) * fleet.server.stats.Sigma - everything) >= -1e-9 * scale


@settings(max_examples=25)
@given(alpha=alphas, n_agents=st.integers(1, 5), seed=seeds)
def test_plain_messages_are_two_a_switch_and_stay_below_both_bounds(alpha, n_agents, seed):
    fleet = SimulatedFleet(make_rule(dim=2, alpha=alpha), n_agents)
    n_rounds = 120
    epochs: dict[int, int] = {}
    longest = n_seen = 0
    rng = np.random.default_rng(seed)
    for t in range(1, n_rounds + 1):
        before, epoch = fleet.n_up + fleet.n_down, theory.epoch_of(log_det(fleet.server.stats.Sigma))
        x = rng.standard_normal(2)
        longest, n_seen = max(longest, float(x @ x)), t
        play_round(fleet, str(rng.integers(n_agents)), x[None], 1.0)
        # An exchange belongs to the epoch in which it begins.
        epochs[epoch] = epochs.get(epoch, 0) + fleet.n_up + fleet.n_down - before
        n_messages = fleet.n_up + fleet.n_down
        assert n_messages == 2 * sum(agent.n_switches for agent in fleet.agents.values())
        bound = theory.message_bound(
            dim=2, n_agents=n_agents, n_rounds=n_seen, lam=1.0, alpha=alpha, action_bound=math.sqrt(longest)
        )
        assert n_messages <= bound
    assert max(epochs.values()) <= theory.messages_per_epoch(n_agents=n_agents, alpha=alpha) + 1e-9


@settings(max_examples=25)
@given(alpha=alphas, n_agents=st.integers(1, 5), seed=seeds)
def test_joining_adds_at_most_one_download_an_agent(alpha, n_agents, seed):
    fleet = SimulatedFleet(make_rule(alpha=alpha, join=True), n_agents)
    for _ in rounds(fleet, n_rounds=60, n_agents=n_agents, seed=seed):
        assert fleet.n_down == fleet.n_up + len(fleet.agents)
        assert fleet.n_down - fleet.n_up <= n_agents


@settings(max_examples=25)
@given(alpha=alphas, n_agents=st.integers(1, 5), seed=seeds)
def test_arrival_may_only_drop_the_last_download_of_an_agent(alpha, n_agents, seed):
    fleet = SimulatedFleet(make_rule(alpha=alpha, refresh="arrival"), n_agents)
    for _ in rounds(fleet, n_rounds=60, n_agents=n_agents, seed=seed):
        owed = sum(agent.arrive() is not None for agent in fleet.agents.values())
        assert fleet.n_down == fleet.n_up - owed


@settings(max_examples=60)
@given(alpha=alphas, seed=seeds, dim=st.integers(1, 5), n_model=st.integers(0, 12), n_buffer=st.integers(1, 25))
def test_the_spectral_trigger_never_fires_earlier_on_the_same_model_and_buffer(alpha, seed, dim, n_model, n_buffer):
    rng = np.random.default_rng(seed)
    rules = [make_rule(dim=dim, alpha=alpha, trigger=trigger) for trigger in ("determinant", "spectral")]
    determinant, spectral = (rule.agent("a") for rule in rules)
    model = rules[0].prior
    if n_model:
        model = model + fb.SufficientStats.of(rng.standard_normal((n_model, dim)), np.zeros(n_model))
    for agent in (determinant, spectral):
        agent.adopt(fb.Download("a", 1, model))
    for x in rng.standard_normal((n_buffer, dim)) * rng.uniform(0.1, 1.5, size=(n_buffer, 1)):
        fired = [agent.observe(x, 0.0) is not None for agent in (determinant, spectral)]
        assert fired[0] or not fired[1]
        if fired[0]:
            break  # from here on the two have different buffers


@settings(max_examples=30)
@given(alpha=st.sampled_from([0.0, 0.1, 1.0, 5.0]), seed=seeds, dim=st.integers(1, 4))
def test_a_single_agent_is_oful_with_rare_switching_choice_by_choice(alpha, seed, dim):
    federated = SimulatedFleet(make_rule(dim=dim, alpha=alpha), 1)
    alone = make_rule("oful-independent-rare-switching", dim=dim, switching=alpha).agent("a")
    rng = np.random.default_rng(seed)
    for _ in range(80):
        X, reward = rng.standard_normal((5, dim)), float(rng.standard_normal())
        decision = alone.choose(X)
        alone.observe(decision, reward)
        assert play_round(federated, "0", X, reward)[0] == decision.index
        assert federated.agent("0").n_switches == alone.n_switches
        assert federated.agent("0").model.stats == alone.model.stats


@settings(max_examples=30)
@given(seed=seeds, n_agents=st.integers(1, 4))
def test_alpha_zero_shares_everything_at_an_agent_s_own_steps(seed, n_agents):
    fleet = SimulatedFleet(make_rule(alpha=0.0), n_agents)
    for t, _ in enumerate(rounds(fleet, n_rounds=30, n_agents=n_agents, seed=seed), start=1):
        assert fleet.server.stats.n_obs == t
        assert fleet.n_up == fleet.n_down == t
        assert any(agent.model.stats == fleet.server.stats for agent in fleet.agents.values())
        assert all(agent.local.n_obs == 0 for agent in fleet.agents.values())


@settings(max_examples=20)
@given(seed=seeds, n_agents=st.integers(1, 4))
def test_alpha_infinity_leaves_every_agent_at_the_prior(seed, n_agents):
    rule = make_rule(alpha=math.inf)
    fleet, fresh = SimulatedFleet(rule, n_agents), rule.agent("fresh")
    rng = np.random.default_rng(seed)
    for _ in range(40):
        X = rng.standard_normal((4, 3))
        index, upload = play_round(fleet, str(rng.integers(n_agents)), X, 1.0)
        assert upload is None and index == fresh.choose(X).index
    assert fleet.n_up == fleet.n_down == 0
    assert sum(agent.local.n_obs for agent in fleet.agents.values()) == 40


@settings(max_examples=25)
@given(seed=seeds, n_agents=st.integers(2, 4), alpha=alphas)
def test_agents_that_do_not_act_are_not_disturbed(seed, n_agents, alpha):
    fleet = SimulatedFleet(make_rule(alpha=alpha), n_agents)
    bystander = fleet.agent("bystander")
    for _ in rounds(fleet, n_rounds=30, n_agents=n_agents, seed=seed):
        assert bystander.model_version == 0 and bystander.n_switches == 0


@settings(max_examples=40)
@given(seed=seeds, n_obs=st.integers(0, 30), lam=st.sampled_from([1e-6, 1.0, 1e6]))
def test_sigma_stays_positive_definite_and_symmetric(seed, n_obs, lam):
    rng = np.random.default_rng(seed)
    fleet = SimulatedFleet(make_rule(lam=lam, alpha=0.5), 2)
    for _ in range(n_obs):
        play_round(fleet, str(rng.integers(2)), rng.standard_normal((2, 3)) * 10.0 ** rng.uniform(-3, 3), 1.0)
    for stats in (fleet.server.stats, *(agent.model.stats for agent in fleet.agents.values())):
        np.testing.assert_array_equal(stats.Sigma, stats.Sigma.T)
        unit = np.sqrt(np.diagonal(stats.Sigma))
        assert smallest(stats.Sigma / np.outer(unit, unit)) > 0
