"""FedLinUCB with a parameter for each agent: its two ends, exact own sums, and what changes for nobody else."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedbandit as fb
from fedbandit.algorithms.fedlinucb import FedLinUCBAgent
from fedbandit.simulation.runner import SimulatedFleet
from tests.builders import FaultyNetwork, stats_of
from tests.properties.histories import DIM, happen, histories

personal = st.sampled_from(["auto", 0.0, 1.0, 10.0])
options = st.sampled_from([{}, {"join": True}, {"refresh": "arrival"}, {"join": True, "refresh": "arrival"}])


def rule_with(kappa, *, dim=DIM, **more):
    return fb.FedLinUCB(**{"dim": dim, "beta": 0.5, "alpha": 1.0, "personal": kappa, **more})


class RecordingNetwork(FaultyNetwork):
    """Which uploads each version of the server holds."""

    def __init__(self, rule, n_agents):
        super().__init__(rule, n_agents)
        self.merged = {0: {}}
        self.seen_by = {name: [] for name in self.agents}
        receive = self.server.receive

        def recording(message):
            reply = receive(message)
            self.merged[self.server.version] = {k: e.sequence for k, e in self.server.ledger.items()}
            return reply

        self.server.receive = recording

    def observe(self, agent_id, x, reward, fate="ok"):
        self.seen_by[agent_id].append((x, reward))
        super().observe(agent_id, x, reward, fate)

    def own_in_model(self, agent):
        last = self.merged[agent.model_version].get(agent.agent_id, 0)
        sent = (upload.stats for (name, n), upload in self.sent.items() if name == agent.agent_id and n <= last)
        return sum(sent, fb.SufficientStats.zeros(agent.dim))


@given(history=histories(), kappa=personal, more=options)
@settings(max_examples=120)
def test_the_own_part_of_the_model_is_exact_whatever_the_network_does(history, kappa, more):
    network = RecordingNetwork(rule_with(kappa, **more), 3)
    for event in history:
        happen(network, event)
        for agent in network.agents.values():
            assert agent.held == network.own_in_model(agent)
            assert agent.own == stats_of(network.seen_by[agent.agent_id], DIM)


@given(history=histories(), more=options)
@settings(max_examples=60)
def test_kappa_zero_decides_on_the_model_and_all_that_it_lacks(history, more):
    """κ = 0 is FedLinUCB made eager: ridge regression on Σ_m, the upload that Σ_m lacks, and the buffer."""
    network = RecordingNetwork(rule_with(0.0, **more), 3)
    for event in history:
        happen(network, event)
        for agent in network.agents.values():
            stats = agent.model.stats + agent.own - agent.held
            known = fb.RidgeModel(stats)
            scores = agent.scores(np.eye(DIM))
            assert np.allclose(scores.means, known.theta_hat, rtol=1e-8, atol=1e-9)
            assert np.allclose(scores.widths, known.widths(np.eye(DIM)), rtol=1e-8, atol=1e-9)


def test_kappa_zero_that_always_exchanges_is_fedlinucb_that_always_exchanges():
    world = fb.worlds.uniform(dim=6, n_actions=8)
    runs = [
        fb.simulate(rule, world, n_agents=5, n_rounds=600, seed=4, record="all", engine="reference")
        for rule in (rule_with(0.0, dim=6, alpha=0.0), fb.FedLinUCB(dim=6, beta=0.5, alpha=0.0))
    ]
    assert np.array_equal(runs[0].choices, runs[1].choices)
    assert np.array_equal(runs[0].n_messages, runs[1].n_messages)


@pytest.mark.parametrize("alpha", [0.3, 4.0])
def test_kappa_zero_of_one_agent_is_oful(alpha):
    world = fb.worlds.uniform(dim=6, n_actions=8)
    runs = [
        fb.simulate(rule, world, n_agents=1, n_rounds=600, seed=4, record="all", engine="reference")
        for rule in (rule_with(0.0, dim=6, alpha=alpha), fb.OFUL(dim=6, beta=0.5))
    ]
    assert np.array_equal(runs[0].choices, runs[1].choices)


@given(seed=st.integers(0, 99))
@settings(max_examples=20)
def test_a_large_kappa_is_learning_alone_from_the_fleets_estimate(seed):
    """κ → ∞: ridge regression on own data only, of strength 1/κ, towards what the others estimate."""
    kappa, rng = 1e6, np.random.default_rng(seed)
    network = FaultyNetwork(rule_with(kappa, dim=3), 2)
    for _ in range(60):
        network.observe(str(rng.integers(2)), rng.standard_normal(3).tolist(), float(rng.standard_normal()), "ok")
    agent = network.agents["0"]
    others = agent.model.stats - agent.held
    start = np.linalg.solve(others.Sigma, others.b)
    Lambda = agent.own.Sigma + np.eye(3) / kappa
    theta = np.linalg.solve(Lambda, agent.own.b + start / kappa)
    assert np.allclose(agent.predict(np.eye(3)), theta, rtol=1e-3, atol=1e-3)


def test_an_agent_without_data_of_its_own_estimates_what_the_fleet_does():
    network = FaultyNetwork(rule_with(10.0, dim=3, join=True), 2)
    rng = np.random.default_rng(0)
    for _ in range(30):
        network.observe("0", rng.standard_normal(3).tolist(), float(rng.standard_normal()), "ok")
    network.pull("1", "ok")
    newcomer = network.agents["1"]
    assert newcomer.own.n_obs == 0
    assert np.allclose(newcomer.predict(np.eye(3)), newcomer.model.theta_hat)


@given(history=histories(), more=options)
@settings(max_examples=30)
def test_messages_and_the_server_are_those_of_fedlinucb(history, more):
    """The same observations: the same uploads at the same moments, whatever the agents decide on."""
    ours, plain = FaultyNetwork(rule_with("auto", **more), 3), FaultyNetwork(rule_with(None, **more), 3)
    for event in history:
        happen(ours, event)
        happen(plain, event)
    assert ours.server.stats == plain.server.stats
    assert ours.sent.keys() == plain.sent.keys()
    assert all(ours.sent[key].digest() == plain.sent[key].digest() for key in ours.sent)


@given(history=histories(max_size=60), kappa=personal, cut=st.integers(0, 60))
@settings(max_examples=40)
def test_a_saved_agent_continues_bit_for_bit(history, kappa, cut):
    whole, broken = (FaultyNetwork(rule_with(kappa), 3) for _ in range(2))
    for i, event in enumerate(history):
        if i == cut:
            broken.agents = {name: fb.load(agent.to_bytes()) for name, agent in broken.agents.items()}
        happen(whole, event)
        happen(broken, event)
        for name, agent in whole.agents.items():
            assert np.array_equal(agent.predict(np.eye(DIM)), broken.agents[name].predict(np.eye(DIM)))
            assert agent.kappa == broken.agents[name].kappa


def test_without_personal_nothing_is_different():
    plain = fb.FedLinUCB(dim=2, beta=0.5)
    assert type(plain.agent("a")) is FedLinUCBAgent
    assert "personal" not in plain.to_dict()


def test_agents_that_differ_learn_their_own_parameters():
    """Two halves with opposite parameters: one model for all can do nothing, personal ones find both."""
    rng, theta = np.random.default_rng(0), np.array([0.8, -0.4, 0.2])
    earned = {}
    for name, rule in (("shared", rule_with(None, dim=3, alpha=0.1)), ("auto", rule_with("auto", dim=3, alpha=0.1))):
        fleet, total = SimulatedFleet(rule, 6), 0.0
        for t in range(900):
            m = t % 6
            actions = rng.standard_normal((5, 3))
            agent = fleet.begin_round(t, str(m))
            decision = agent.choose(actions)
            mean = float(decision.x @ theta) * (1 if m % 2 else -1)
            total += mean
            reward = mean + 0.3 * float(rng.standard_normal())
            fleet.end_round(agent, decision, reward, agent.observe(decision, reward))
        earned[name] = total / 900
    assert earned["shared"] < 0.2
    assert earned["auto"] > 0.8
