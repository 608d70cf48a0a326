"""Theorem 1's first half: θ* stays inside every agent's ellipsoid, with the radii that promise it."""

import math

import pytest

from fedbandit import radius, theory
from tests.paper.runs import DELTA, NOISE, fedlinucb, play_watched

N_RUNS, N_AGENTS, N_ROUNDS = 10, 4, 150
ADAPTIVE = radius.adaptive(n_agents=N_AGENTS, noise_scale=NOISE, delta=DELTA)
WITH_HORIZON = radius.adaptive(n_agents=N_AGENTS, noise_scale=NOISE, delta=DELTA, n_rounds=N_ROUNDS)
EXOGENOUS = radius.exogenous(noise_scale=NOISE, delta=DELTA)
OPTIONS = [
    {},
    {"alpha": 1.0},
    {"alpha": 1 / N_AGENTS**2},
    {"join": True},
    {"refresh": "arrival"},
    {"trigger": "spectral"},
    {"join": True, "refresh": "arrival", "trigger": "spectral"},
]


def watch(rule, *, reacts=False, n_runs=N_RUNS):
    return [
        play_watched(rule, n_agents=N_AGENTS, n_rounds=N_ROUNDS, seed=seed, reacts=reacts)[0] for seed in range(n_runs)
    ]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize(
    ("beta", "reacts"),
    [(ADAPTIVE, True), (WITH_HORIZON, False), (EXOGENOUS, False)],
    ids=["adaptive, everything reacts", "adaptive with T", "exogenous"],
)
def test_theta_star_is_covered_in_every_round_of_enough_runs_and_regret_obeys_theorem_1(options, beta, reacts):
    rule = fedlinucb(beta, **options)
    witnesses = watch(rule, reacts=reacts)
    # The promise is a fraction 1 − δ = 0.9 of runs; the radii have slack, so that all of them are usually covered.
    assert sum(witness.covered for witness in witnesses) >= (1 - DELTA) * N_RUNS
    for witness in witnesses:
        if not witness.covered:
            continue
        assert not witness.optimism_broken, "regret of a round ≤ 2β‖x‖"
        assert witness.regret <= theory.regret_bound(
            dim=3,
            n_agents=N_AGENTS,
            n_rounds=N_ROUNDS,
            lam=1.0,
            alpha=rule.alpha,
            beta=witness.largest_beta,
            theta_bound=1.0,
            action_bound=1.0,
        )


def test_these_runs_would_notice_a_radius_that_is_too_small():
    # 40 % of the exogenous radius misses θ* in most runs, and a round's regret then breaks its bound in some of them.
    full = watch(fedlinucb(EXOGENOUS), n_runs=20)
    assert max(witness.worst for witness in full) > 0.5
    assert sum(witness.worst > 0.4 for witness in full) > 10
    blind = watch(fedlinucb(0.05))
    assert sum(witness.covered for witness in blind) == 0
    assert any(witness.optimism_broken for witness in blind)


def test_theta_star_at_the_prior_needs_exactly_the_ridge_term():
    # Before any data θ̂ = 0, and ‖θ*‖_{λI} = √λ·‖θ*‖: a radius without √λS could not cover it.
    rule = fedlinucb(radius.exogenous(noise_scale=0.0, theta_bound=1.0), lam=4.0)
    agent = rule.agent("a")
    assert agent.beta == pytest.approx(2.0)
    assert agent.model.distance([1.0, 0.0, 0.0]) == pytest.approx(2.0)


def test_regret_is_far_below_its_bound_but_not_zero():
    witness, fleet = play_watched(fedlinucb(EXOGENOUS), n_agents=N_AGENTS, n_rounds=N_ROUNDS, seed=0)
    assert 1.0 < witness.regret < N_ROUNDS / 2
    assert fleet.n_up + fleet.n_down > theory.lower_bound_messages(n_agents=N_AGENTS, n_rounds=N_ROUNDS)


@pytest.mark.slow
@pytest.mark.parametrize(("beta", "reacts"), [(ADAPTIVE, True), (EXOGENOUS, False)], ids=["adaptive", "exogenous"])
def test_coverage_over_three_hundred_runs(beta, reacts):
    n_runs = 300
    covered = sum(witness.covered for witness in watch(fedlinucb(beta), reacts=reacts, n_runs=n_runs))
    # Were the truth exactly 1 − δ, fewer than this many covered runs would have a chance below 1 in 40 000.
    assert covered >= (1 - DELTA) * n_runs - 4 * math.sqrt(n_runs * DELTA * (1 - DELTA))
