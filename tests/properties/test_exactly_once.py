"""Every observation counts exactly once, whatever the network loses, delays and repeats."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import fedbandit as fb
from tests.builders import FaultyNetwork, make_rule, names_with, stats_of
from tests.properties.histories import DIM, eighths, features, happen, histories

uploading_rule = pytest.mark.parametrize("name", names_with("any-time", "uploads", "sums"))


@uploading_rule
@settings(max_examples=40)
@given(history=histories())
def test_uploads_and_buffers_are_every_observation_once(name, history):
    network = FaultyNetwork(make_rule(name, dim=DIM), 3)
    for event in history:
        happen(network, event)
        assert network.server.stats + network.uncounted() == network.rule.prior + stats_of(network.seen, DIM)


@uploading_rule
@settings(max_examples=40)
@given(history=histories())
def test_the_server_is_the_prior_and_all_uploads_that_reached_it(name, history):
    network = FaultyNetwork(make_rule(name, dim=DIM), 3)
    for event in history:
        happen(network, event)
    merged = [
        upload.stats
        for (agent_id, sequence), upload in network.sent.items()
        if agent_id in network.server.ledger and sequence <= network.server.ledger[agent_id].sequence
    ]
    assert network.server.stats == sum(merged, network.rule.prior)
    assert network.server.version == len(merged)


@uploading_rule
@settings(max_examples=25)
@given(history=histories())
def test_when_the_network_recovers_every_upload_arrives(name, history):
    network = FaultyNetwork(make_rule(name, dim=DIM), 3)
    for event in history:
        happen(network, event)
    network.settle()
    for agent_id, agent in network.agents.items():
        merged = network.server.ledger[agent_id].sequence if agent_id in network.server.ledger else 0
        assert merged == agent.sequence
    assert network.server.stats + network.uncounted() == network.rule.prior + stats_of(network.seen, DIM)


@uploading_rule
@settings(max_examples=25)
@given(history=histories(), cut=st.integers(0, 40))
def test_agents_and_servers_killed_and_restored_in_the_middle_lose_nothing(name, history, cut):
    network = FaultyNetwork(make_rule(name, dim=DIM), 3)
    for i, event in enumerate(history):
        if i == cut:
            network.server = fb.load(network.server.to_bytes())
            network.agents = {key: fb.load(agent.to_bytes()) for key, agent in network.agents.items()}
        happen(network, event)
    assert network.server.stats + network.uncounted() == network.rule.prior + stats_of(network.seen, DIM)


@settings(max_examples=40)
@given(
    batches=st.lists(st.lists(st.tuples(features, eighths), min_size=1, max_size=4), min_size=1, max_size=6),
    seed=st.integers(0, 100),
)
def test_the_order_of_uploads_is_irrelevant(batches, seed):
    rule = make_rule(dim=DIM)
    uploads = [fb.Upload(str(i), "one", 1, stats_of(batch, DIM), 0.1) for i, batch in enumerate(batches)]
    order = np.random.default_rng(seed).permutation(len(uploads))
    one, other = rule.server(), rule.server()
    for i in range(len(uploads)):
        one.receive(uploads[i])
        other.receive(uploads[order[i]])
    assert one.stats == other.stats and one.version == other.version


@settings(max_examples=40)
@given(history=histories())
def test_an_agent_never_goes_back_to_an_older_model(history):
    network = FaultyNetwork(make_rule(dim=DIM, alpha=0.5), 3)
    newest = dict.fromkeys(network.agents, 0)
    for event in history:
        happen(network, event)
        for agent_id, agent in network.agents.items():
            assert agent.model_version >= newest[agent_id]
            newest[agent_id] = agent.model_version
            if agent.model_version == network.server.version:
                assert agent.model.stats == network.server.stats


@pytest.mark.parametrize("name", ["async-linucb", "dislinucb"])
@settings(max_examples=60)
@given(history=histories())
@example(  # a duplicate of an old answer, after a later upload was merged
    history=[
        ("observe", "0", (0.0, 1.125), 0.0, "reply lost"),
        ("observe", "0", (1.0, 0.125), 0.0, "reply twice"),
    ]
)
def test_an_eager_agent_always_knows_all_its_own_data(name, history):
    network = FaultyNetwork(make_rule(name, dim=DIM), 3)
    own = {agent_id: stats_of([], DIM) for agent_id in network.agents}
    for event in history:
        if event[0] == "observe":
            own[event[1]] = own[event[1]] + stats_of([(event[2], event[3])], DIM)
        happen(network, event)
        for agent_id, agent in network.agents.items():
            if agent.estimate is not None:
                lacking = agent.estimate.stats.Sigma - np.eye(DIM) - own[agent_id].Sigma
                assert np.linalg.eigvalsh(lacking).min() >= -1e-9
