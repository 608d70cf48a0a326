"""Truths about worlds that change, over histories with lost, late and repeated messages."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedbandit as fb
from tests.builders import FaultyNetwork, make_rule, stats_of
from tests.properties.histories import DIM, eighths, features, happen, histories

TINY = fb.drift.restart(noise_scale=0.5, agent_block=2, server_block=3, n_levels=3, false_alarm=0.05)
batches = st.lists(st.lists(st.tuples(features, eighths), min_size=1, max_size=4), min_size=1, max_size=6)


def counted(network):
    """merged + discarded + unsent, where what an agent dropped and has not reported is discarded."""
    server, total = network.server, 0
    for agent_id, agent in network.agents.items():
        merged = server.ledger[agent_id].sequence if agent_id in server.ledger else 0
        total += agent.local.n_obs + agent.world.n_dropped
        if agent.in_flight is not None and agent.in_flight.sequence > merged:
            total += agent.in_flight.stats.n_obs + agent.in_flight.dropped
    return server.clock + server.n_discarded + total


@pytest.mark.parametrize("alpha", [0.3, 2.0])
@settings(max_examples=60)
@given(history=histories(max_size=60), restarts=st.sets(st.integers(0, 60), max_size=3), cut=st.integers(0, 60))
def test_merged_and_discarded_and_unsent_are_all_that_was_observed(alpha, history, restarts, cut):
    network = FaultyNetwork(make_rule(dim=DIM, alpha=alpha, drift=TINY, max_silence=6, join=True), 3)
    for i, event in enumerate(history):
        if i in restarts:
            network.server.restart()
        if i == cut:
            network.server = fb.load(network.server.to_bytes())
            network.agents = {key: fb.load(agent.to_bytes()) for key, agent in network.agents.items()}
        happen(network, event)
        assert counted(network) == len(network.seen)
        epochs = [agent.world.epoch for agent in network.agents.values()]
        assert max(epochs) <= network.server.epoch
    network.settle()
    assert counted(network) == len(network.seen)


@settings(max_examples=60)
@given(batches=batches, seed=st.integers(0, 100), horizon=st.sampled_from([3.0, 50.0, math.inf]))
def test_the_order_of_discounted_uploads_is_irrelevant(batches, seed, horizon):
    rule = make_rule(dim=DIM, drift=fb.drift.discount(horizon=horizon))
    rng = np.random.default_rng(seed)
    uploads = [
        fb.Upload(str(i), "one", 1, stats_of(batch, DIM), 0.1, clock=int(rng.integers(0, 20)) - 20)
        for i, batch in enumerate(batches)
    ]
    one, other = rule.server(), rule.server()
    for upload in uploads:
        one.receive(upload)
    for i in rng.permutation(len(uploads)):
        other.receive(uploads[i])
        other.receive(uploads[i])  # again: it counts once
    np.testing.assert_allclose(one.stats.Sigma, other.stats.Sigma, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(one.stats.b, other.stats.b, rtol=1e-12, atol=1e-12)
    assert one.clock == other.clock == one.stats.n_obs


EQUIVALENT = {
    "no horizon": {"drift": fb.drift.discount(horizon=math.inf)},
    "no limit of silence": {"max_silence": math.inf},
    "no alarm": {"drift": fb.drift.restart(noise_scale=1e3)},
    "all but the last own round": {"max_silence": 10_000},
}


@pytest.mark.parametrize("name", EQUIVALENT)
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1000), alpha=st.sampled_from([0.1, 1.0]), refresh=st.sampled_from(["upload", "arrival"]))
def test_without_change_silence_and_horizon_it_is_fedlinucb_choice_by_choice(name, seed, alpha, refresh):
    common = {"dim": 4, "alpha": alpha, "beta": 0.5, "refresh": refresh}
    world = fb.worlds.uniform(dim=4, n_actions=6)
    run = {"n_agents": 4, "n_rounds": 250, "seed": seed, "record": "all", "engine": "reference"}
    plain = fb.simulate(fb.FedLinUCB(**common), world, **run)
    other = fb.simulate(fb.FedLinUCB(**common, **EQUIVALENT[name]), world, **run)
    assert np.array_equal(plain.choices, other.choices)
    assert np.array_equal(plain.messages, other.messages) and np.array_equal(plain.switches, other.switches)
