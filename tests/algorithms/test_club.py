"""CLUB: the graph loses wrong edges, clusters share data, and every round costs an upload and a download."""

import math

import numpy as np
import pytest

import fedbandit as fb
from fedbandit.algorithms.club import edge_bound
from fedbandit.errors import InvalidParameter
from fedbandit.simulation.runner import SimulatedFleet, play_rounds, rounds_of
from tests.builders import assert_stats_close


def played(n_rounds=3000, n_agents=12, **changes):
    rule = fb.CLUB(**{"dim": 4, "beta": 0.3, "edge_width": 0.5, **changes})
    world = fb.worlds.clusters(dim=4, n_actions=8, n_clusters=3, noise=0.1)
    fleet = SimulatedFleet(rule, n_agents)
    stream, blocks = rounds_of(world, fb.participation.uniform(), n_agents=n_agents, n_rounds=n_rounds, seed=0)
    return fleet, play_rounds(fleet, stream, blocks, n_rounds=n_rounds, record="log")


def test_users_end_with_those_of_their_own_cluster():
    server = played(density=100.0)[0].server  # a full graph at the start
    assert server.n_clusters == 3
    for cluster in range(3):
        members = {int(server.cluster[server.users[str(m)]]) for m in range(cluster, 12, 3)}
        assert len(members) == 1


def test_a_cluster_is_served_by_the_data_of_its_users():
    fleet, _ = played()
    server = fleet.server
    for name, user in server.users.items():
        expected = server.rule.prior
        for other in np.flatnonzero(server.cluster == server.cluster[user]):
            expected = expected + server.sums[other]
        assert_stats_close(server._download(name).stats, expected)


def test_components_are_those_of_the_graph():
    server = played(edge_width=0.2, density=1.0)[0].server
    reachable = np.linalg.matrix_power(server.edges.astype(float) + np.eye(12), 12) > 0
    np.testing.assert_array_equal(reachable, server.cluster[:, None] == server.cluster)


def test_every_round_costs_an_upload_and_a_download():
    _, trace = played(n_rounds=200)
    assert trace.messages_up[-1] == trace.messages_down[-1] == 200


def test_exploration_grows_with_the_rounds_of_all_users():
    rule = fb.CLUB(dim=2, beta=0.7)
    assert rule.exploration(0) == pytest.approx(0.7 * math.sqrt(math.log(2)))
    assert rule.exploration(98) == pytest.approx(0.7 * math.sqrt(math.log(100)))


def test_edges_go_when_estimates_differ_by_more_than_their_bounds():
    server = fb.CLUB(dim=2, beta=1.0, density=100.0, edge_width=0.3).server()
    server.enroll(["a", "b"])
    agents = {name: fb.CLUB(dim=2, beta=1.0).agent(name, incarnation="one") for name in "ab"}
    for n in range(1, 200):
        for name, sign in (("a", 1.0), ("b", -1.0)):
            agents[name].adopt(server.receive(agents[name].observe([1.0, 0.0], sign)))
        distance = np.linalg.norm(server.estimates[0] - server.estimates[1])
        allowed = 2 * edge_bound(np.array([n]), 0.3)[0]
        if not server.edges[0, 1]:
            assert distance > allowed
            return
        assert distance <= allowed
    pytest.fail("the edge between opposite users stayed")


def test_a_server_comes_back_exactly():
    server = played(n_rounds=500)[0].server
    again = fb.load(server.to_bytes())
    assert again.to_bytes() == server.to_bytes()
    np.testing.assert_array_equal(again.edges, server.edges)
    assert again._download("3") == server._download("3")


def test_a_user_who_comes_later_joins_the_graph():
    server = fb.CLUB(dim=2, beta=1.0, density=100.0).server()
    server.enroll(["a", "b"])
    agent = fb.CLUB(dim=2, beta=1.0).agent("late", incarnation="one")
    agent.adopt(server.receive(agent.arrive()))
    agent.adopt(server.receive(agent.observe([1.0, 0.0], 1.0)))
    assert server.users["late"] == 2
    assert server.edges[2, :2].all()
    assert server.n_clusters == 1


def test_it_needs_a_number_for_its_radius():
    with pytest.raises(InvalidParameter, match="number"):
        fb.CLUB(dim=2, beta=fb.radius.exogenous(noise_scale=1.0))


def test_where_users_differ_clusters_beat_one_model_for_all_and_learning_alone():
    world = fb.worlds.clusters(dim=6, n_actions=10, n_clusters=2, noise=0.3)
    run = {"n_agents": 40, "n_rounds": 4000}
    rules = {
        "club": fb.CLUB(dim=6, beta=0.3, edge_width=0.8),
        "alone": fb.OFUL(dim=6, beta=0.5),
        "shared": fb.OFUL(dim=6, beta=0.5, mode="shared"),
    }
    regret = {
        name: np.mean([fb.simulate(rule, world, seed=seed, **run).regret[-1] for seed in range(2)])
        for name, rule in rules.items()
    }
    assert regret["club"] < regret["alone"] < regret["shared"]
