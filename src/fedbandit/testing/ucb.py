"""Contracts of UCB agents: scores, ties, infinite decision sets and radii."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedbandit import errors
from fedbandit.algorithms.decision import Decision
from fedbandit.core import radius as radii
from fedbandit.core.arrays import Vector
from fedbandit.core.decision_sets import Ball
from fedbandit.testing.contracts import ROUNDS, Subject, close, contract, raising


@contract("scores", *ROUNDS)
def _the_choice_has_the_largest_upper_bound(subject: Subject) -> None:
    agent = subject.played(40).agent("0")
    for seed in range(20):
        X = subject.rows(9, seed=seed)
        scores = agent.scores(X)
        assert close(scores.means, agent.predict(X))
        assert agent.choose(X).index == int(scores.upper.argmax())


@contract("scores", *ROUNDS)
def _a_large_decision_set_is_searched_as_exactly_as_a_small_one(subject: Subject) -> None:
    agent, rng = subject.played(60).agent("0"), np.random.default_rng(0)
    for spread in (0.0, 1.0):  # rows of equal and of very different length
        X = rng.standard_normal((2000, subject.dim)) * 10.0 ** (spread * rng.uniform(-2, 1, size=(2000, 1)))
        X[1950] = X[40] = X[int(agent.scores(X).upper.argmax())]  # a tie: the lowest index must win
        upper = agent.scores(X).upper
        assert agent.choose(X).index == int((upper >= upper.max() - 1e-12 * abs(upper.max())).argmax())


@contract("scores", *ROUNDS)
def _top_k_lists_different_rows_best_first_and_begins_with_the_choice(subject: Subject) -> None:
    agent, X = subject.played(40).agent("0"), subject.rows(8)
    top = [decision.index for decision in agent.choose(X, k=8)]
    assert sorted(index for index in top if index is not None) == list(range(8))
    assert top == np.argsort(-agent.scores(X).upper, kind="stable").tolist()
    assert [decision.index for decision in agent.choose(X, k=3)] == top[:3]
    assert agent.choose(X).index == top[0]


@contract("ucb", *ROUNDS)
def _an_upper_bound_is_the_mean_and_beta_times_the_width(subject: Subject) -> None:
    agent = subject.played(40, rule=subject.changed(beta=0.5)).agent("0")
    scores = agent.scores(subject.rows(9))
    assert close(scores.upper, scores.means + 0.5 * scores.widths, rtol=1e-12)


@contract("ucb", *ROUNDS)
def _at_the_start_all_actions_tie_and_the_first_is_chosen(subject: Subject) -> None:
    X = subject.rows(30)
    X /= np.linalg.norm(X, axis=1)[:, None]
    assert subject.agent().choose(X).index == 0


@contract("ucb", *ROUNDS)
def _infinite_decision_sets_are_chosen_from_by_their_own_best(subject: Subject) -> None:
    agent = subject.played(40).agent("0")
    decision = agent.choose(Ball(subject.dim, radius=2.0))
    assert decision.index is None and close(np.linalg.norm(decision.x), 2.0, rtol=1e-6)
    others = subject.rows(500)
    others *= 2.0 / np.linalg.norm(others, axis=1)[:, None]
    assert agent.scores(others).upper.max() <= agent.scores(decision.x[None]).upper[0] + 1e-9
    agent.observe(Decision.from_dict(json.loads(json.dumps(decision.to_dict()))), 1.0)
    with raising(errors.InvalidInput, "top k"):
        agent.choose(Ball(subject.dim), k=2)


@dataclass
class _OwnSet:
    """A decision set that answers whatever it was made with."""

    answer: Any

    def best(self, theta_hat: Vector, width: Any, beta: float) -> Any:
        return self.answer


@contract("ucb")
def _a_decision_set_with_a_bad_answer_is_a_named_error(subject: Subject) -> None:
    agent, good = subject.agent(), np.eye(subject.dim)[0]
    assert agent.choose(_OwnSet(good.tolist())).x.tolist() == good.tolist()
    with raising(errors.DimensionMismatch):
        agent.choose(_OwnSet([1.0] * (subject.dim + 1)))
    with raising(errors.NotFinite):
        agent.choose(_OwnSet([np.nan] * subject.dim))


@contract("ucb", *ROUNDS)
def _a_theory_radius_widens_as_the_model_rests_on_more(subject: Subject) -> None:
    X = subject.rows(4)
    for beta in (
        radii.adaptive(n_agents=2, noise_scale=0.3),
        radii.exogenous(noise_scale=0.3),
        radii.counted(noise_scale=0.3),
    ):
        rule = subject.changed(beta=beta)
        ratios = []
        for agent in (rule.agent("x"), subject.played(60, rule=rule).agent("0")):
            scores = agent.scores(X)
            ratios.append((scores.upper - scores.means) / scores.widths)
            assert close(ratios[-1], ratios[-1][0], rtol=1e-7)
        assert ratios[1][0] > ratios[0][0] > 0
