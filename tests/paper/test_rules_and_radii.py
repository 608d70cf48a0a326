"""Which rule may use which radius: those that say so hold, the others warn by name, and a run shows why."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest

import fedbandit as fb
from fedbandit.algorithms.rules import deliberate_radius
from fedbandit.core.radius import Evidence
from fedbandit.errors import UnprovenRadius

DELTA = 0.01
EXOGENOUS = fb.radius.exogenous(noise_scale=1.0, theta_bound=0.0, delta=DELTA)
ADAPTIVE = fb.radius.adaptive(n_agents=2000, noise_scale=1.0, theta_bound=0.0, delta=DELTA)
ACTIONS = np.array([[3.0, 0.0], [0.0, 1 / math.sqrt(10)]])  # the paper's appendix A.1
RATIO = 19 * (1 - 1e-9)


def eager(beta):
    return fb.AsyncLinUCB(dim=2, beta=beta, gamma_up=RATIO, gamma_down=math.inf)


def synchronous(beta):
    return fb.DisLinUCB(dim=2, beta=beta, threshold=1.0)


@pytest.mark.parametrize("make", [eager, synchronous])
@pytest.mark.parametrize("beta", [EXOGENOUS, ADAPTIVE], ids=lambda beta: beta.kind)
def test_an_eager_rule_with_a_radius_that_has_no_proof_for_it_warns_where_it_is_made(make, beta):
    with pytest.warns(UnprovenRadius, match=f"{beta.kind} has no proof for (Async|Dis)LinUCB") as caught:
        rule = make(beta)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fb.load(rule.agent("a").to_bytes()).rule == rule  # told once, not at every load
        with deliberate_radius():
            assert make(beta) == rule
        make(0.5)
        make(fb.radius.counted(noise_scale=1.0))


@pytest.mark.parametrize("beta", [EXOGENOUS, ADAPTIVE], ids=lambda beta: beta.kind)
def test_rules_that_may_use_a_radius_do_not_warn(beta):
    fb.FedLinUCB(dim=2, beta=beta)
    world = fb.worlds.uniform(dim=2, n_actions=3)
    for rule, n_agents in [
        (fb.OFUL(dim=2, beta=beta, mode="shared"), 5),
        (fb.OFUL(dim=2, beta=beta), 1),
        (fb.OFUL(dim=2, beta=beta, switching=1.0), 1),
    ]:
        fb.simulate(rule, world, n_agents=n_agents, n_rounds=20, engine="reference")


@pytest.mark.parametrize("beta", [EXOGENOUS, ADAPTIVE], ids=lambda beta: beta.kind)
@pytest.mark.parametrize("switching", [None, 1.0])
def test_independent_learners_are_each_covered_and_a_fleet_of_them_is_told_so(beta, switching):
    rule, world = fb.OFUL(dim=2, beta=beta, switching=switching), fb.worlds.uniform(dim=2, n_actions=3)
    with pytest.warns(UnprovenRadius, match="each of 5 independent OFUL agents by itself") as caught:
        fb.simulate(rule, world, n_agents=5, n_rounds=20, engine="reference")
    assert caught[0].filename == __file__


def error_of_the_server(rule, seed, *, n_agents=2000):
    """‖θ* − θ̂‖_Σ at the end of A.1's fleet: agents that act twice, θ* = 0, rewards ±1; and log det Σ."""
    rng = np.random.default_rng(seed)
    server = rule.server()
    for i in range(n_agents):
        agent = rule.agent(str(i))
        for reward in rng.choice([-1.0, 1.0], size=2):
            upload = agent.observe(agent.choose(ACTIONS), float(reward))
            if upload is not None:
                server.receive(upload)
    model = fb.RidgeModel(server.stats)
    return model.distance(np.zeros(2)), Evidence(2, 1.0, 0.0, model.log_det, server.stats.n_obs, server.version)


@pytest.mark.parametrize("seed", range(2))
def test_the_server_of_async_linucb_misses_theta_star_by_several_radii_and_that_of_fedlinucb_does_not(seed):
    # Decisions at β = 0.5 as the example has them; the radii are held against what the server ends up with.
    error, evidence = error_of_the_server(eager(0.5), seed)
    assert error / EXOGENOUS(evidence) > 5.0
    assert error / ADAPTIVE(evidence) > 4.5, "as AsyncLinUCB computes it, with α = 0: it knows of no buffers"
    error, evidence = error_of_the_server(fb.FedLinUCB(dim=2, beta=0.5, alpha=RATIO - 1), seed)
    assert error / EXOGENOUS(evidence) <= 1.0


@pytest.mark.parametrize(
    "make",
    [lambda beta: fb.OFUL(dim=1, beta=beta), lambda beta: fb.DisLinUCB(dim=1, beta=beta, threshold=math.inf)],
    ids=["OFUL independent", "DisLinUCB between two synchronisations"],
)
def test_each_of_many_learners_is_covered_often_enough_and_all_of_them_together_are_not(make):
    # δ = 0.2, one action, θ* = 0, N(0, 1): what each learner promises holds, what a fleet of 150 would need does not.
    delta, n_agents, n_rounds = 0.2, 150, 100
    with deliberate_radius():
        rule = make(fb.radius.exogenous(noise_scale=1.0, theta_bound=0.0, delta=delta))
    rng = np.random.default_rng(0)
    missed = 0
    for m in range(n_agents):
        agent = rule.agent(str(m))
        for noise in rng.standard_normal(n_rounds).tolist():
            agent.observe([1.0], noise)
            scores = agent.scores([[1.0]])
            if abs(float(scores.means[0])) > float(scores.upper[0] - scores.means[0]):
                missed += 1
                break
    assert 0 < missed <= delta * n_agents


@pytest.mark.parametrize("beta", [EXOGENOUS, ADAPTIVE], ids=lambda beta: beta.kind)
def test_a_shared_oful_holds_all_data_in_the_order_of_time_so_that_even_reactions_do_no_harm(beta):
    # Agents leave for good after a bad reward: it is merged before anybody can react.
    rule = fb.OFUL(dim=1, beta=beta, mode="shared")
    for seed in range(3):
        server = rule.server()
        for i, (first, second) in enumerate(np.random.default_rng(seed).standard_normal((400, 2)).tolist()):
            agent = rule.agent(str(i))
            for noise in (first, second) if first > 0 else (first,):
                agent.adopt(server.receive(agent.observe([1.0], noise)))
            server.fleet.clear()  # nobody comes back: no need to tell the others
        model = fb.RidgeModel(server.stats)
        radius = rule.beta_for(model, n_obs=model.stats.n_obs, version=server.version)
        assert model.distance(np.zeros(1)) <= radius
