"""Appendix A.1: an eager policy biases what is uploaded, a lazy one does not."""

import math

import numpy as np
import pytest

import fedbandit as fb

ACTIONS = np.array([[3.0, 0.0], [0.0, 1 / math.sqrt(10)]])  # x_A, x_B
N_AGENTS = 2000
RATIO = 19 * (1 - 1e-9)  # the example uploads at a ratio of 19; our triggers ask for strictly more


def mean_reward_of_A(rule, seed):
    """Agents that live two rounds each, with θ* = 0 and rewards ±1; the server's mean reward of A."""
    rng = np.random.default_rng(seed)
    server = rule.server()
    for i in range(N_AGENTS):
        agent = rule.agent(str(i))
        for reward in rng.choice([-1.0, 1.0], size=2):
            upload = agent.observe(agent.choose(ACTIONS), float(reward))
            if upload is not None:
                server.receive(upload)
    assert server.stats.Sigma[1, 1] == rule.lam, "B is never uploaded"
    n_A = (server.stats.Sigma[0, 0] - rule.lam) / 9.0
    return server.stats.b[0] / 3.0 / n_A, server.version


@pytest.mark.parametrize("seed", range(2))
def test_the_mean_reward_of_a_is_one_half_under_an_eager_policy(seed):
    rule = fb.AsyncLinUCB(dim=2, beta=0.5, lam=1.0, gamma_up=RATIO, gamma_down=math.inf)
    mean, n_uploads = mean_reward_of_A(rule, seed)
    # Only agents whose first reward was +1 play A again and upload; n ≈ 1 000 second rewards have sd 1/√n, and count
    # half: four standard deviations are 4 · 0.5/√1000, and those of n itself 4 · √2000/2.
    assert mean == pytest.approx(0.5, abs=0.065)
    assert n_uploads == pytest.approx(N_AGENTS / 2, abs=90)


@pytest.mark.parametrize("seed", range(2))
def test_the_mean_reward_of_a_is_zero_under_fedlinucb(seed):
    rule = fb.FedLinUCB(dim=2, beta=0.5, lam=1.0, alpha=RATIO - 1)
    mean, n_uploads = mean_reward_of_A(rule, seed)
    assert mean == pytest.approx(0.0, abs=4 / math.sqrt(2 * N_AGENTS))
    assert n_uploads == N_AGENTS


def test_the_trigger_at_exactly_nineteen_would_not_fire():
    agent = fb.FedLinUCB(dim=2, beta=0.5, lam=1.0, alpha=18.0).agent("a")
    assert [agent.observe(ACTIONS[0], 1.0) for _ in range(2)] == [None, None]
