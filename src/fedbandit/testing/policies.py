"""Contracts of rules with policies: probabilities that are told are those that decisions have."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedbandit import errors
from fedbandit.algorithms.base import BaseAgent
from fedbandit.testing.contracts import ROUNDS, Subject, close, contract, raising

CHANCE: tuple[dict[str, Any], ...] = (
    {"policy": "ucb", "explore": 0.25},
    {"policy": "inverse-gap", "gamma": 4.0},
    {"policy": "inverse-gap", "gamma": "auto", "explore": 0.25},
    {"policy": "thompson", "propensity_samples": 20, "explore": 0.25},
)


def _agent(subject: Subject, incarnation: str = "policies", **numbers: Any) -> BaseAgent:
    """An agent with some data behind its model, or in it."""
    agent = subject.changed(**numbers).agent("a", incarnation=incarnation)
    agent.partial_fit(subject.rows(30, seed=1), subject.rows(30, seed=2)[:, 0])
    return agent


@contract("policies", *ROUNDS)
def _by_default_a_decision_is_certain_and_says_so(subject: Subject) -> None:
    decision = _agent(subject, policy="ucb", explore=0.0, control=0.0).choose(subject.rows(5))
    assert (decision.propensity, decision.policy) == (1.0, "ucb")
    assert decision.score is not None


@contract("policies", *ROUNDS)
def _a_decision_tells_its_policy_probability_and_score(subject: Subject) -> None:
    for numbers in CHANCE:
        agent = _agent(subject, **numbers)
        for decision in agent.choose_many([subject.rows(5, seed=seed) for seed in range(20)]):
            is_control = decision.group == "control"
            assert is_control or (decision.policy == numbers["policy"] and decision.score is not None)
            assert decision.propensity is not None and 0.0 < decision.propensity <= 1.0
            assert type(decision).from_dict(decision.to_dict()) == decision


@contract("policies", *ROUNDS)
def _a_policy_draws_the_same_for_the_same_agent_incarnation_and_number(subject: Subject) -> None:
    sets = [subject.rows(5, seed=seed) for seed in range(40)]
    for numbers in CHANCE:
        first, again = (_agent(subject, **numbers).choose_many(sets) for _ in range(2))
        assert [d.to_dict() for d in first] == [d.to_dict() for d in again]
        one_by_one = _agent(subject, **numbers)
        assert [one_by_one.choose(X).index for X in sets] == [d.index for d in first]
        other = _agent(subject, "another", **numbers).choose_many(sets)
        assert [d.index for d in other] != [d.index for d in first]


@contract("policies", *ROUNDS)
def _frequencies_are_the_probabilities_that_are_told(subject: Subject) -> None:
    X, n = subject.rows(4), 1500
    for numbers in CHANCE[:3]:
        decisions = _agent(subject, **numbers).choose_many([X] * n)
        told = {decision.index: decision.propensity for decision in decisions}
        assert close(sum(p for p in told.values() if p is not None), 1.0), "every row has a chance, and they add to 1"
        for index, p in told.items():
            assert p is not None
            share = np.mean([decision.index == index for decision in decisions])
            assert abs(share - p) < 5.0 * np.sqrt(p * (1.0 - p) / n)  # five standard deviations, by fixed draws


@contract("policies", *ROUNDS)
def _inverse_propensity_weights_have_mean_one(subject: Subject) -> None:
    X, n = subject.rows(4), 1500
    for numbers in CHANCE:
        decisions = _agent(subject, **numbers).choose_many([X] * n)
        for index in range(len(X)):
            weights = [1.0 / (d.propensity or np.nan) if d.index == index else 0.0 for d in decisions]
            assert abs(np.mean(weights) - 1.0) < 5.0 * np.std(weights) / np.sqrt(n)


@contract("policies", *ROUNDS)
def _a_list_has_no_probability(subject: Subject) -> None:
    for numbers in CHANCE:
        agent = _agent(subject, **numbers)
        with raising(errors.InvalidInput, "probability of a list"):
            agent.choose(subject.rows(3), k=2)
        with raising(errors.InvalidInput, "probability of a list"):
            agent.choose_many([subject.rows(3)], k=1)
        assert agent.n_pending == 0
