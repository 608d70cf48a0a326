"""Contracts of any agent: what it accepts, and the named error for what it does not; an error changes nothing."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np

from fedbandit import errors
from fedbandit.algorithms.decision import Decision
from fedbandit.core.arrays import Matrix, Vector
from fedbandit.testing.contracts import ROUNDS, BoundedFleet, Subject, close, contract, raising, state_of


@contract("certain", *ROUNDS)
def _nested_lists_and_arrays_give_the_same_answers(subject: Subject) -> None:
    agent, X = subject.played(30).agent("0"), subject.rows(5)
    others: tuple[Any, ...] = (X.tolist(), tuple(map(tuple, X)), np.asfortranarray(X))
    for other in others:
        assert agent.choose(other).index == agent.choose(X).index
        assert close(agent.predict(other), agent.predict(X))


@contract(*ROUNDS)
def _a_bad_decision_set_is_a_named_error_and_changes_nothing(subject: Subject) -> None:
    agent, d = subject.played(25).agent("0"), subject.dim
    before = state_of(agent)
    for actions, error, words in _bad_sets(d):
        calls: tuple[Callable[[Any], Any], ...] = (
            agent.choose,
            lambda X: agent.choose(X, k=1 if "certain" in subject.traits else None),
            lambda X: agent.choose_many([subject.rows(2), X]),
            agent.predict,
            agent.scores,
            lambda X: agent.partial_fit(X, np.ones(len(X))),
        )
        for call in calls:
            with raising(error, words):
                call(actions)
        assert state_of(agent) == before


def _bad_sets(d: int) -> list[tuple[Any, type[Exception], str]]:
    def with_one(value: float, n: int = 2) -> Matrix:
        X = np.ones((n, d))
        X[-1, 0] = value
        return X

    return [
        (np.ones((2, d + 1)), errors.DimensionMismatch, f"{d} features, got {d + 1}"),
        (np.ones(d), errors.DimensionMismatch, f"got shape ({d},)"),
        (np.ones((2, d, 1)), errors.DimensionMismatch, "got shape"),
        (np.empty((0, d)), errors.EmptyDecisionSet, "at least one row"),
        ([], errors.EmptyDecisionSet, "at least one row"),
        ([["word"] * d], errors.InvalidInput, "as numbers"),
        (with_one(np.nan), errors.NotFinite, "1 entries"),
        (with_one(np.nan, 1000), errors.NotFinite, "entries"),
        (with_one(np.inf), errors.NotFinite, "1 entries"),
        (with_one(-np.inf), errors.NotFinite, "1 entries"),
        (with_one(1e160), errors.NotFinite, "1 entries"),
        (with_one(1e300), errors.NotFinite, "1 entries"),
    ]


@contract(*ROUNDS)
def _a_bad_observation_is_a_named_error_and_changes_nothing(subject: Subject) -> None:
    agent, good = subject.played(25).agent("0"), np.ones(subject.dim)
    before = state_of(agent)

    def with_first(value: float) -> Vector:
        return np.concatenate([[value], good[1:]])

    bad: list[tuple[Any, Any, type[Exception]]] = [
        (np.ones(subject.dim + 1), 1.0, errors.DimensionMismatch),
        (good[None], 1.0, errors.DimensionMismatch),
        (["a"] * subject.dim, 1.0, errors.InvalidInput),
        *((with_first(value), 1.0, errors.NotFinite) for value in (np.nan, np.inf, 1e155)),
        *((good, value, errors.NotFinite) for value in (np.nan, -np.inf, 1e200)),
        *((good, value, errors.InvalidInput) for value in (None, "good")),
    ]
    for row, reward, error in bad:
        with raising(error):
            agent.observe(row, reward)
    rewards: list[tuple[Any, type[Exception]]] = [
        ([1.0], errors.DimensionMismatch),
        ([1.0, np.nan], errors.NotFinite),
        ("ab", errors.InvalidInput),
    ]
    for y, error in rewards:
        with raising(error):
            agent.partial_fit(subject.rows(2), y)
    assert state_of(agent) == before


@contract(*ROUNDS)
def _a_bad_reward_or_row_leaves_its_decision_pending(subject: Subject) -> None:
    agent = subject.agent()
    decision = agent.choose(subject.rows(3))
    with raising(errors.NotFinite):
        agent.observe(decision, np.nan)
    tampered = ((np.ones(subject.dim + 1), errors.DimensionMismatch), (np.full(subject.dim, np.nan), errors.NotFinite))
    for x, error in tampered:
        with raising(error):
            agent.observe(Decision(decision.id, 0, x, "a", 0), 1.0)
    assert agent.n_pending == 1
    agent.observe(decision, 1.0)


@contract(*ROUNDS)
def _the_largest_numbers_that_pass_never_turn_into_nan(subject: Subject) -> None:
    fleet = BoundedFleet(subject.changed(lam=1e-6), 2)
    for i in range(40):
        x = np.resize([1e70, 1.0, 1e-70] if i % 2 else [1e-50, 1e50, 1.0], subject.dim)
        upload = fleet.agent(str(i % 2)).observe(x, 1e70 if i % 3 else -1e50)
        if upload is not None:
            fleet.exchange(upload)
    for agent in fleet.agents.values():
        scores = agent.scores(np.eye(subject.dim))
        assert np.isfinite([scores.means, scores.widths, scores.upper]).all()
        assert agent.choose(np.eye(subject.dim)).index in range(subject.dim)
    assert np.isfinite(fleet.server.stats.Sigma).all()


@contract("certain", *ROUNDS)
def _k_must_be_possible(subject: Subject) -> None:
    agent = subject.agent()
    bad: tuple[Any, ...] = (0, 4, -1, 1.5)
    for k in bad:
        with raising(errors.InvalidInput, "k"):
            agent.choose(subject.rows(3), k=k)
    assert agent.n_pending == 0


@contract(*ROUNDS)
def _a_second_reward_an_unknown_and_a_foreign_decision_raise_and_change_nothing(subject: Subject) -> None:
    rule, X = subject.rule, subject.rows(3)
    agent, other = rule.agent("a"), rule.agent("b")
    decision, foreign = agent.choose(X), other.choose(X)
    twin = rule.agent("a").choose(X)  # the same name, another incarnation
    unmade = Decision(decision.id[:-1] + "7", 0, decision.x, "a", 0)
    nonsense = Decision("no-number", 0, decision.x, "a", 0)
    agent.observe(decision, 1.0)
    before = state_of(agent)
    with raising(errors.AlreadyObserved, "has its reward already"):
        agent.observe(decision, 1.0)
    for stranger in (foreign, twin, unmade, nonsense):
        with raising(errors.UnknownDecision, "never made"):
            agent.observe(stranger, 1.0)
    assert state_of(agent) == before
    agent.observe(foreign.x, 1.0)  # as the message advises


@contract(*ROUNDS)
def _an_expired_decision_takes_no_reward(subject: Subject) -> None:
    agent = subject.agent()
    decision = agent.choose(subject.rows(3))
    agent.expire(decision)
    assert agent.n_pending == 0
    with raising(errors.AlreadyObserved, "expired"):
        agent.observe(decision, 1.0)
    agent.expire(decision)  # once more does no harm
    with raising(errors.UnknownDecision):
        agent.expire(subject.rule.agent("b").choose(subject.rows(3)))


@contract(*ROUNDS)
def _the_oldest_decisions_are_dropped_when_too_many_are_pending(subject: Subject) -> None:
    agent = subject.agent()
    agent.max_pending = 3
    first, *rest = (agent.choose(subject.rows(2)) for _ in range(4))
    assert agent.n_pending == 3
    with raising(errors.AlreadyObserved, "dropped as the oldest of 3"):
        agent.observe(first, 1.0)
    for decision in rest:
        agent.observe(decision, 1.0)


@contract(*ROUNDS)
def _a_decision_survives_json_and_pickle(subject: Subject) -> None:
    agent, X = subject.agent(), subject.rows(3)
    by_json = Decision.from_dict(json.loads(json.dumps(agent.choose(X).to_dict())))
    by_pickle = pickle.loads(pickle.dumps(agent.choose(X)))
    for decision in (by_json, by_pickle):
        agent.observe(decision, 1.0)
    assert agent.n_pending == 0
