"""Contracts of any agent: deciding and learning."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedbandit import errors
from fedbandit.testing.contracts import ROUNDS, Subject, close, contract, raising


@contract(*ROUNDS)
def _choose_returns_a_decision_with_its_row_index_and_version(subject: Subject) -> None:
    agent, X = subject.played(30).agent("0"), subject.rows(6)
    decision = agent.choose(X)
    assert decision.index is not None and np.array_equal(decision.x, X[decision.index])
    assert decision.agent_id == "0" and decision.model_version == agent.model_version
    X[decision.index] = 0.0
    assert decision.x.any(), "the decision keeps its own copy of the row"
    with raising(ValueError, "read-only"):
        decision.x[0] = 1.0


@contract(*ROUNDS)
def _choosing_learns_nothing(subject: Subject) -> None:
    agent = subject.played(25).agent("0")
    before = agent.predict(np.eye(subject.dim))
    for seed in range(5):
        agent.choose(subject.rows(4, seed=seed))
    assert np.array_equal(agent.predict(np.eye(subject.dim)), before)


@contract("certain", *ROUNDS)
def _choosing_many_equals_choosing_one_by_one(subject: Subject) -> None:
    agent = subject.played(40).agent("0")
    sizes = (1, 5, 700, 3, 4, 1500, 683, 682, 3, *(10,) * 60, 2000, 7)
    sets: list[Any] = [subject.rows(n, seed=i) for i, n in enumerate(sizes)]
    sets[1] = sets[1].tolist()
    together = agent.choose_many(sets)
    for decision, X in zip(together, sets, strict=True):
        alone = agent.choose(X)
        assert decision.index == alone.index and np.array_equal(decision.x, alone.x)
    assert len({decision.id for decision in together}) == len(sets)
    assert agent.choose_many([]) == []
    for k in (1, 3):
        several = agent.choose_many(sets[1:], k=k)
        alone_too = [agent.choose(X, k=k) for X in sets[1:]]
        assert [[d.index for d in each] for each in several] == [[d.index for d in each] for each in alone_too]


@contract(*ROUNDS)
def _choosing_many_decides_nothing_if_one_set_is_bad(subject: Subject) -> None:
    agent, d = subject.agent(), subject.dim
    wrong: list[Any] = [np.zeros((2, d + 1)), np.zeros((0, d))]
    for number in (np.nan, np.inf, 1e200):
        wrong.append(np.full((1, d), number))
    for bad in wrong:
        with raising(errors.InvalidInput):
            agent.choose_many([subject.rows(2), bad, subject.rows(3)])
    with raising(errors.InvalidInput):
        agent.choose_many([subject.rows(2), subject.rows(3)], k=3)
    assert agent.n_pending == 0


@contract(*ROUNDS)
def _rewards_may_come_late_and_in_any_order(subject: Subject) -> None:
    agent, fleet = subject.agent(), subject.fleet(1)
    fleet.agents["a"] = agent
    decisions = [agent.choose(subject.rows(4, seed=seed)) for seed in range(12)]
    assert agent.n_pending == 12
    for i in np.random.default_rng(0).permutation(12):
        upload = agent.observe(decisions[i], float(i))
        if upload is not None:
            fleet.exchange(upload)
    assert (agent.n_pending, agent.n_rounds) == (0, 12)
    for decision in decisions:
        with raising(errors.AlreadyObserved):
            agent.observe(decision, 1.0)


@contract("ridge", *ROUNDS)
def _a_fleet_learns_what_pays(subject: Subject) -> None:
    theta = np.resize([0.6, -0.3, 0.1], subject.dim)
    rng, fleet = np.random.default_rng(0), subject.fleet()
    for t in range(max(400, 100 * subject.dim)):
        agent = fleet.begin_round(t, str(t % 2))
        decision = agent.choose(rng.uniform(-1, 1, size=(5, subject.dim)))
        reward = float(decision.x @ theta + 0.1 * rng.standard_normal())
        fleet.end_round(agent, decision, reward, agent.observe(decision, reward))
    for agent_id in ("0", "1"):
        assert close(fleet.agent(agent_id).predict(np.eye(subject.dim)), theta, rtol=0.0, atol=0.1)


@contract("ridge", *ROUNDS)
def _partial_fit_knows_as_much_as_observing_row_by_row(subject: Subject) -> None:
    X, y = subject.rows(20), np.random.default_rng(1).standard_normal(20)
    batch, single = subject.fleet(1), subject.fleet(1)
    upload = batch.agent("0").partial_fit(X, y)
    if upload is not None:
        batch.exchange(upload)
    for x, reward in zip(X, y, strict=True):
        upload = single.agent("0").observe(x, float(reward))
        if upload is not None:
            single.exchange(upload)
    assert batch.agent("0").n_rounds == single.agent("0").n_rounds == 20
    if subject.traits >= {"uploads", "sums"}:
        known = [fleet.server.stats + fleet.agent("0").local for fleet in (batch, single)]
        assert known[0].n_obs == known[1].n_obs == 20
        assert close(known[0].Sigma, known[1].Sigma) and close(known[0].b, known[1].b)
    elif "uploads" not in subject.traits:  # twenty Gaussian rows are far past any switch of its model
        lam = float(getattr(subject.rule, "lam", 1.0))
        theta = np.linalg.solve(lam * np.eye(subject.dim) + X.T @ X, X.T @ y)
        assert close(batch.agent("0").predict(np.eye(subject.dim)), theta, rtol=1e-8)
