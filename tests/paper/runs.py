"""Runs in which θ* is known, so that the statements of the paper can be held against what happened."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import fedbandit as fb
from fedbandit.simulation.runner import SimulatedFleet

DELTA = 0.1
NOISE = 0.3


@dataclass
class Witness:
    """What a run showed: the worst ‖θ* − θ̂_m‖_{Σ_m} / β of a round, its regret, and its largest radius."""

    worst: float = 0.0
    regret: float = 0.0
    largest_beta: float = 0.0
    optimism_broken: bool = False

    @property
    def covered(self) -> bool:
        return self.worst <= 1.0

    def look(self, agent, actions, decision, theta_star):
        """Hold one round, about to be played, against Theorem 1's two ingredients."""
        self.worst = max(self.worst, agent.model.distance(theta_star) / agent.beta)
        means = actions @ theta_star
        regret = float(means.max() - means[decision.index])
        width = float(agent.model.widths(decision.x[None])[0])
        self.optimism_broken |= regret > 2 * agent.beta * width + 1e-12
        self.regret += regret
        self.largest_beta = max(self.largest_beta, agent.beta)


def unit(rng, *shape):
    X = rng.standard_normal(shape)
    return X / np.linalg.norm(X, axis=-1, keepdims=True)


def play_watched(rule, *, n_agents, n_rounds, seed, reacts=False) -> tuple[Witness, SimulatedFleet]:
    """Rounds with unit actions and |θ*| = 1, watched.

    With `reacts`, everything that the paper allows reacts to rewards in buffers: an agent that was disappointed is
    not active again for long, and the next decision set offers the last direction again only after a good reward.
    """
    action_rng, noise_rng, order_rng = np.random.default_rng(seed).spawn(3)
    theta_star = unit(action_rng, rule.dim)
    fleet, witness = SimulatedFleet(rule, n_agents), Witness()
    resting = np.zeros(n_agents)
    actions = unit(action_rng, 4, rule.dim)
    for t in range(n_rounds):
        awake = np.flatnonzero(resting <= t)
        m = int(order_rng.choice(awake if len(awake) else np.arange(n_agents)))
        agent = fleet.agent(str(m))
        pull = agent.arrive()
        if pull is not None:
            fleet.exchange(pull)
        decision = agent.choose(actions)
        witness.look(agent, actions, decision, theta_star)
        noise = NOISE * float(noise_rng.standard_normal())
        upload = agent.observe(decision, float(decision.x @ theta_star) + noise)
        if upload is not None:
            fleet.exchange(upload)
        actions = unit(action_rng, 4, rule.dim)
        if reacts and noise < 0:
            resting[m] = t + 3 * n_agents
        elif reacts:
            actions[1:] = decision.x  # only the first action is new: the same direction again
    return witness, fleet


def fedlinucb(beta, **changes) -> fb.FedLinUCB:
    """Three features, λ = 1."""
    return fb.FedLinUCB(**{"dim": 3, "lam": 1.0, "alpha": 0.5, "beta": beta, **changes})
