"""Appendix A.1's example: two arms, ±1 rewards, and every agent plays two rounds. Who uploads, and what does it say?"""

from __future__ import annotations

import math

import numpy as np

from fedbandit.core.arrays import Matrix
from fedbandit.core.theory import exogenous_radius
from fedbandit.experiments.drivers import Outcome
from fedbandit.experiments.spec import Spec
from fedbandit.simulation.runner import Fleet

ARMS: Matrix = np.array([[3.0, 0.0], [0.0, 1 / math.sqrt(10)]])  # A and B
DELTA = 0.01


def two_rounds_each(spec: Spec, seed: int) -> Outcome:
    """Play A.1 with θ* = 0: agents come one after another, two rounds each, rewards are ±1 by a fair coin.

    Columns, one row for each recorded number of agents: `agents`, the server's `mean_reward` of its data (all of it is
    arm A's), and `error_in_radii`, ‖θ̂ − θ*‖_Σ in units of OFUL's radius at δ = 0.01, which promises at most 1.
    """
    rng = np.random.default_rng(np.random.SeedSequence([seed, 1]))
    fleet = Fleet(spec.make_rule(), 0)  # nobody enrols: a server that pushes would look at all agents at each upload
    rows = []
    marks = set(np.unique(np.geomspace(4, spec.n_agents, 12).round().astype(int)).tolist()) | {spec.n_agents}
    for m in range(spec.n_agents):
        _act_twice(fleet, str(m), rng)
        if m + 1 in marks:
            rows.append([m + 1, *_server_view(fleet)])
    columns = np.array(rows)
    names = ("rounds", "agents", "mean_reward", "error_in_radii")
    table = np.column_stack([2 * columns[:, 0], columns])
    return Outcome({name: table[:, i] for i, name in enumerate(names)}, {"mean_reward": float(table[-1, 2])})


def _act_twice(fleet: Fleet, agent_id: str, rng: np.random.Generator) -> None:
    agent = fleet.agent(agent_id)
    for _ in range(2):
        decision = agent.choose(ARMS)
        upload = agent.observe(decision, float(rng.choice([-1.0, 1.0])))
        if upload is not None:
            fleet.exchange(upload)


def _server_view(fleet: Fleet) -> tuple[float, float]:
    """Mean reward of the data at the server, and the error of its estimate in radii."""
    stats = fleet.server.stats
    if stats.n_obs == 0:
        return 0.0, 0.0
    prior = fleet.rule.server().stats.Sigma
    rho = float(np.linalg.slogdet(stats.Sigma)[1] - np.linalg.slogdet(prior)[1])
    theta_hat = np.linalg.solve(stats.Sigma, stats.b)
    error = math.sqrt(max(float(theta_hat @ stats.Sigma @ theta_hat), 0.0))
    beta = exogenous_radius(rho=rho, lam=float(prior[0, 0]), noise_scale=1.0, theta_bound=0.0, delta=DELTA)
    return stats.reward_sum / stats.n_obs, error / beta
