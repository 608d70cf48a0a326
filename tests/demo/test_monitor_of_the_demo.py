"""The images of the demo are dealt out at random: no monitor may say that its agents differ."""

import numpy as np

import fedbandit as fb
from fedbandit.core.homogeneity import compare_parts
from fedbandit.core.statistics import SufficientStats
from fedbandit.demo.images import deal
from fedbandit.demo.summary import _order

N_AGENTS = 8


def test_agents_that_see_images_at_random_are_not_called_different_however_rows_are_assigned() -> None:
    parts = deal(N_AGENTS, 0)
    rule = fb.FedLinUCB(dim=parts[0].dim, alpha=4.0, beta=0.3, lam=0.3)
    server, agents = rule.server(), [rule.agent(f"agent-{m}") for m in range(N_AGENTS)]
    rows, rewards, owners = [], [], []
    for m, n in _order(parts):
        decision = agents[m].choose(parts[m].actions(n))
        reward = parts[m].reward(n, decision.index)
        rows.append(decision.x)
        rewards.append(reward)
        owners.append(m)
        if upload := agents[m].observe(decision, reward):
            agents[m].adopt(server.receive(upload))
    X, y, who, rng = np.array(rows), np.array(rewards), np.array(owners), np.random.default_rng(1)
    total = SufficientStats.of(X, y)
    for assigned in (who, *(rng.permutation(who) for _ in range(6))):
        found = compare_parts([SufficientStats.of(X[assigned == m], y[assigned == m]) for m in range(N_AGENTS)], total)
        assert found is not None and not found.differs, found.p_value
