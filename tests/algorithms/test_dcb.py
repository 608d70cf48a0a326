"""DCB: what an agent knows is the average that its paper describes, counted message by message."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedbandit as fb
from fedbandit.algorithms.dcb import DCB, DCBAgent, FleetMembers, buffer_limit, unpacked
from fedbandit.errors import InvalidInput, InvalidParameter, ProtocolError
from fedbandit.simulation.runner import new_fleet
from tests.simulation.engines import assert_same_trace, both_engines


def play_steps(rule, n_agents, n_steps, seed=0):
    """A fleet after some steps, and the rows and rewards of each agent in each step."""
    fleet, rng = new_fleet(rule, n_agents), np.random.default_rng(seed)
    X, y = np.empty((n_steps, n_agents, rule.dim)), np.empty((n_steps, n_agents))
    for step in range(n_steps):
        for m in range(n_agents):
            agent = fleet.begin_round(step * n_agents + m + 1, str(m))
            decision = agent.choose(rng.standard_normal((4, rule.dim)))
            X[step, m], y[step, m] = decision.x, rng.standard_normal()
            agent.observe(decision, y[step, m])
            fleet.end_round(agent, decision, y[step, m], None)
    return fleet, X, y


def weights(rule, n_agents, n_steps):
    """w[i, u, j]: the weight of agent j's pair of step u in all sums of agent i, by the permutations alone."""
    server = rule.server()
    server.enroll(str(m) for m in range(n_agents))
    w = np.zeros((n_agents, n_steps, n_agents))
    for step in range(n_steps):
        partners = server.draw()
        for u in range(max(0, step - buffer_limit(step, n_agents) - 1), step):
            w[:, u] = 0.5 * (w[:, u] + w[partners, u])
        w[:, step] = rule.weight(n_agents) * np.eye(n_agents)
    return w


@pytest.mark.parametrize("mass", ["paper", "fleet"])
def test_sums_are_the_averages_of_all_pairs_by_the_permutations(mass):
    rule = DCB(dim=2, beta=0.5, lam=2.0, mass=mass, seed=3)
    M, n_steps = 3, 30
    fleet, X, y = play_steps(rule, M, n_steps)
    w = weights(rule, M, n_steps)
    for i, agent in enumerate(fleet.agents.values()):
        stats = unpacked(agent.active + agent.buffer.sum(axis=0), 2)
        np.testing.assert_allclose(stats.Sigma, 2.0 * np.eye(2) + np.einsum("uj,uja,ujb->ab", w[i], X, X), rtol=1e-12)
        np.testing.assert_allclose(stats.b, np.einsum("uj,uj,uja->a", w[i], y, X), rtol=1e-9, atol=1e-12)


def test_averaging_conserves_the_weight_of_every_pair():
    """Summed over agents a pair keeps its weight s; that is why s = 1 leaves each agent with 1/M of what it needs."""
    for mass, total in (("paper", 1.0), ("fleet", 4.0)):
        w = weights(DCB(dim=1, beta=0.5, mass=mass), 4, 40)
        np.testing.assert_allclose(w.sum(axis=0), total)


def test_when_a_pair_counts_every_agent_has_the_mean_of_the_fleet():
    """L halvings leave a deviation of about 2^(−L/2) = (M^1.5 t)⁻²: who met whom is forgotten by then."""
    M, n_steps = 15, 120
    rule = DCB(dim=2, beta=0.5, mass="fleet")
    fleet, X, y = play_steps(rule, M, n_steps)
    n_active = n_steps - len(fleet.agents["0"].buffer)
    assert n_active > 60
    Sigma = np.eye(2) + np.einsum("uja,ujb->ab", X[:n_active], X[:n_active])
    b = np.einsum("uj,uja->a", y[:n_active], X[:n_active])
    for agent in fleet.agents.values():
        found = unpacked(agent.active, 2)
        np.testing.assert_allclose(found.Sigma, Sigma, atol=1e-4 * Sigma.max())
        np.testing.assert_allclose(found.b, b, atol=1e-4 * Sigma.max())


def test_decisions_rest_on_pairs_that_were_averaged_often_enough():
    M = 2
    fleet, _, _ = play_steps(DCB(dim=1, beta=0.5), M, 60)
    agent = fleet.agents["0"]
    kept = buffer_limit(59, M) + 1
    assert kept - 1 == math.floor(4 * math.log2(M**1.5 * 59))
    assert len(agent.buffer) == kept
    assert agent.model_version == agent.n_switches <= 60 - kept + 1


def test_until_the_first_pair_is_due_an_agent_decides_on_the_prior():
    fleet, _, _ = play_steps(DCB(dim=2, beta=0.5), 4, 12)
    assert buffer_limit(12, 4) >= 12
    assert all(agent.n_switches == 0 and agent.model.stats.b.any() == 0 for agent in fleet.agents.values())
    assert fleet.n_switches == 0


def test_a_message_carries_the_whole_buffer():
    dim, M, n_steps = 3, 5, 40
    rule = DCB(dim=dim, beta=0.5)
    trace = fb.simulate(
        rule, fb.worlds.uniform(dim=dim), n_agents=M, n_rounds=M * n_steps, record="all", engine="reference"
    )
    lengths = [0]
    for step in range(n_steps):
        lengths.append(min(lengths[-1], buffer_limit(step, M)) + 1)
    pairs = np.cumsum(lengths[:-1]) * M
    ends = np.arange(M, M * n_steps + 1, M) - 1
    assert np.array_equal(trace.messages_up[ends], M * np.arange(1, n_steps + 1))
    assert trace.messages_down[-1] == 0
    assert np.array_equal(trace.scalars[ends], pairs * (dim * (dim + 1) // 2 + dim))
    assert np.array_equal(trace.bytes, 8 * trace.scalars)


def test_a_fleet_of_one_is_a_delayed_single_learner():
    fleet, X, y = play_steps(DCB(dim=2, beta=0.5), 1, 30)
    agent = fleet.agents["0"]
    seen = 30 - len(agent.buffer)
    rows, rewards = X[:seen, 0], y[:seen, 0]
    np.testing.assert_allclose(agent.model.stats.Sigma, np.eye(2) + rows.T @ rows, rtol=1e-12)
    np.testing.assert_allclose(agent.model.stats.b, rows.T @ rewards, rtol=1e-12)


def test_the_radius_counts_the_weight_of_a_pair():
    exogenous = fb.radius.exogenous(noise_scale=0.3)
    for mass, scale in (("paper", 1.0), ("fleet", 2.0)):
        rule = DCB(dim=2, beta=exogenous, mass=mass)
        fleet = new_fleet(rule, 4)
        assert fleet.agents["0"].beta == pytest.approx(1.0 + scale * 0.3 * math.sqrt(2 * math.log(100)))
    assert new_fleet(DCB(dim=2, beta=0.7), 4).agents["0"].beta == 0.7


def test_theta_star_stays_within_the_radius():
    """Ten runs in which every model of every agent is measured; at δ = 0.01 none should be out."""
    world = fb.worlds.uniform(dim=4, noise=0.3)
    for seed in range(10):
        rule = DCB(dim=4, beta=fb.radius.exogenous(noise_scale=0.3), seed=seed)
        fleet, rng = new_fleet(rule, 4), np.random.default_rng(seed)
        theta = world.stream(np.random.SeedSequence(seed)).theta_star
        for t in range(1, 481):
            agent = fleet.begin_round(t, str((t - 1) % 4))
            decision = agent.choose(rng.uniform(-0.5, 0.5, (5, 4)))
            agent.observe(decision, float(decision.x @ theta + 0.3 * rng.standard_normal()))
            fleet.end_round(agent, decision, 0.0, None)
            assert agent.model.distance(theta) <= agent.beta


@pytest.mark.parametrize("change", [{"mass": "heavy"}, {"seed": -1}, {"dim": 0}, {"beta": math.nan}])
def test_bad_numbers_are_named_errors(change):
    with pytest.raises(InvalidParameter):
        DCB(**{"dim": 2, "beta": 0.5, **change})


def test_other_radii_are_refused():
    with pytest.raises(InvalidParameter, match=r"number or fb\.radius\.exogenous"):
        DCB(dim=2, beta=fb.radius.paper(n_agents=2, n_rounds=5, noise_scale=0.1))


def test_messages_out_of_step_are_named_errors():
    rule = DCB(dim=2, beta=0.5)
    agent = DCBAgent(rule, "a", "x")
    with pytest.raises(ProtocolError, match="not told its fleet"):
        agent.end_step()
    agent.adopt(FleetMembers("a", 0, ("a", "b")))
    empty = agent.end_step()
    with pytest.raises(ProtocolError, match="has not acted"):
        agent.adopt(empty)
    agent.observe(agent.choose(np.eye(2)), 1.0)
    agent.adopt(empty)
    agent.observe(agent.choose(np.eye(2)), 1.0)
    with pytest.raises(ProtocolError, match="same number of steps"):
        agent.adopt(empty)
    with pytest.raises(InvalidInput):
        agent.adopt(object())
    server = rule.server()
    server.enroll(["a", "b"])
    with pytest.raises(ProtocolError, match="buffers of 2 agents"):
        server.end_step({"a": empty})


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_both_engines_play_the_same_trace(data):
    pytest.importorskip("numba")
    dim, K = data.draw(st.integers(1, 6), label="dim"), data.draw(st.integers(1, 6), label="K")
    world = data.draw(
        st.sampled_from(
            [
                fb.worlds.uniform(dim=dim, n_actions=K),
                fb.worlds.sphere(dim=dim, n_actions=K),
                fb.worlds.articles(dim=dim, n_actions=K, n_articles=K + 5),
            ]
        ),
        label="world",
    )
    rule = DCB(
        dim=dim,
        beta=data.draw(st.sampled_from([0.1, 0.5, fb.radius.exogenous(noise_scale=0.3)]), label="beta"),
        lam=data.draw(st.sampled_from([0.1, 1.0]), label="lam"),
        mass=data.draw(st.sampled_from(["paper", "fleet"]), label="mass"),
        seed=data.draw(st.integers(0, 9), label="rule's seed"),
    )
    run = {"n_agents": data.draw(st.integers(1, 7), label="M"), "n_rounds": data.draw(st.integers(1, 500), label="T")}
    reference, compiled = both_engines(rule, world, **run, seed=data.draw(st.integers(0, 99), label="seed"))
    assert_same_trace(reference, compiled)


def test_buffers_of_the_compiled_engine_grow_with_the_run():
    pytest.importorskip("numba")
    run = {"n_agents": 2, "n_rounds": 6000, "record": [6000]}
    rule, world = DCB(dim=1, beta=0.5), fb.worlds.uniform(dim=1, n_actions=2)
    reference, compiled = both_engines(rule, world, **run)
    assert reference.n_scalars == compiled.n_scalars
    assert reference.regret[-1] == pytest.approx(compiled.regret[-1])


def test_both_engines_refuse_rounds_that_are_no_steps():
    pytest.importorskip("numba")
    for engine in ("reference", "compiled"):
        with pytest.raises(InvalidParameter, match="DCB acts in steps"):
            fb.simulate(
                DCB(dim=2, beta=0.5),
                fb.worlds.uniform(dim=2),
                n_agents=3,
                n_rounds=30,
                participation="uniform",
                engine=engine,
            )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n_agents", "mass", "expected"),
    [(15, "paper", 299.8), (15, "fleet", 269.0), (100, "paper", 2138.0), (100, "fleet", 1934.0)],
)
def test_regret_in_the_authors_world_is_that_of_the_reference(n_agents, mass, expected):
    """T = 30 000, β = 0.5; ten seeds. The reference is a mean of three: four standard errors of the difference."""
    pytest.importorskip("numba")
    regrets = []
    for seed in range(10):
        rule = DCB(dim=15, beta=0.5, mass=mass, seed=seed)
        trace = fb.simulate(rule, fb.worlds.uniform(dim=15), n_agents=n_agents, n_rounds=30_000, seed=seed)
        regrets.append(trace.regret[-1])
        assert trace.n_messages == 30_000
        assert trace.n_scalars / 135 == pytest.approx(1.85e6, rel=0.005)
    standard_error = np.std(regrets, ddof=1) * math.sqrt(1 / len(regrets) + 1 / 3)
    assert abs(np.mean(regrets) - expected) < 4 * standard_error
