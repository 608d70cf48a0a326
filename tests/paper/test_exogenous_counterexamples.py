"""Where `exogenous` must fail: something outside reacts to rewards that wait in a buffer. `adaptive` holds there.

All examples have one dimension, θ* = 0, the single action x = 1, λ = 1 and α = 1: an agent uploads its second
observation together with the first, because det = 2 does not exceed 1 + α and det = 3 does.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

import fedbandit as fb

NOISE = 1.0
N_PAIRS = 1000
EXOGENOUS = fb.radius.exogenous(noise_scale=NOISE, theta_bound=0.0, delta=0.01)
ADAPTIVE = fb.radius.adaptive(n_agents=2 * N_PAIRS, noise_scale=NOISE, theta_bound=0.0, delta=0.01)


class Fleet:
    """Agents by number and their server; only what is uploaded arrives."""

    def __init__(self):
        self.rule = fb.FedLinUCB(dim=1, lam=1.0, alpha=1.0, beta=EXOGENOUS)
        self.server = self.rule.server()
        self.agents: dict[str, fb.algorithms.fedlinucb.FedLinUCBAgent] = {}
        self.worst = dict.fromkeys(("exogenous", "adaptive"), 0.0)

    def agent(self, name):
        return self.agents.setdefault(name, self.rule.agent(name, incarnation="one"))

    def reward(self, name, noise):
        """The agent plays x = 1 and is rewarded by noise alone; an upload is merged and its model looked at."""
        agent = self.agent(name)
        upload = agent.observe([1.0], noise)
        if upload is not None:
            agent.adopt(self.server.receive(upload))
            self.look(agent)

    def look(self, agent):
        evidence = fb.radius.Evidence(1, 1.0, 1.0, agent.model.log_det, agent.model.stats.n_obs, self.server.version)
        error = agent.model.distance(np.zeros(1))
        for name, radius in (("exogenous", EXOGENOUS), ("adaptive", ADAPTIVE)):
            self.worst[name] = max(self.worst[name], error / radius(evidence))


def disappointed_agents_leave(rng, *, quitting):
    """Each agent acts twice, unless its first reward makes it leave for good."""
    fleet = Fleet()
    for i, (first, second) in enumerate(NOISE * rng.standard_normal((N_PAIRS, 2))):
        fleet.reward(str(i), first)
        if first > 0 or not quitting:
            fleet.reward(str(i), second)
    return fleet.worst


def good_rewards_come_sooner(rng, *, sooner):
    """Each agent decides four times; in the end only the good rewards (or the first half of them) have come."""
    fleet = Fleet()
    for i, noises in enumerate(NOISE * rng.standard_normal((N_PAIRS, 4))):
        agent = fleet.agent(str(i))
        decisions = [agent.choose([[1.0]]) for _ in noises]
        arrived = noises > 0 if sooner else np.arange(4) < 2
        for decision, noise, here in zip(decisions, noises, arrived, strict=True):
            if here:
                upload = agent.observe(decision, float(noise))
                if upload is not None:
                    agent.adopt(fleet.server.receive(upload))
                    fleet.look(agent)
    return fleet.worst


def noise_tells_of_a_buffer(rng, *, telling):
    """B's noise is there only if A's buffered noise is positive; once B has uploaded, A acts again if B's was there."""
    fleet = Fleet()
    for i in range(N_PAIRS):
        first, second, *others = NOISE * rng.standard_normal(4)
        fleet.reward(f"a{i}", first)
        there = first > 0 if telling else rng.random() < 0.5
        for noise in others:
            fleet.reward(f"b{i}", noise if there else 0.0)
        if there:
            fleet.reward(f"a{i}", second)
    return fleet.worst


def worst_of_runs(example, *, n_runs=20, **how):
    runs = [example(np.random.default_rng(seed), **how) for seed in range(n_runs)]
    return {name: [run[name] for run in runs] for name in ("exogenous", "adaptive")}


def test_agents_that_leave_after_a_disappointment_break_the_exogenous_radius():
    leaving = worst_of_runs(disappointed_agents_leave, quitting=True, n_runs=8)
    staying = worst_of_runs(disappointed_agents_leave, quitting=False, n_runs=8)
    # Only lucky first rewards are uploaded: their mean is 0.8σ, so the error grows like 0.4·√n against √log n.
    assert min(leaving["exogenous"]) > 2.0
    assert max(staying["exogenous"]) <= 1.0
    assert max(staying["exogenous"]) > 0.4, "the radius is not so wide that nothing could break it"
    assert max(leaving["adaptive"]) <= 1.0


@pytest.mark.slow
def test_rewards_that_come_sooner_when_they_are_good_break_the_exogenous_radius():
    sooner = worst_of_runs(good_rewards_come_sooner, sooner=True)
    assert min(sooner["exogenous"]) > 2.0
    assert max(worst_of_runs(good_rewards_come_sooner, sooner=False)["exogenous"]) <= 1.0


@pytest.mark.slow
def test_noise_that_depends_on_noise_in_another_buffer_breaks_the_exogenous_radius():
    telling = worst_of_runs(noise_tells_of_a_buffer, telling=True)
    assert min(telling["exogenous"]) > 1.2
    assert max(telling["adaptive"]) <= 1.0
    assert max(worst_of_runs(noise_tells_of_a_buffer, telling=False)["exogenous"]) <= 1.0


def test_the_adaptive_radius_pays_for_it():
    rho = math.log(2 * N_PAIRS)
    evidence = fb.radius.Evidence(1, 1.0, 1.0, rho, 2 * N_PAIRS, N_PAIRS)
    assert ADAPTIVE(evidence) > 100 * EXOGENOUS(evidence)
