"""Contracts of synchronous systems: agents that act once per step, and what travels between steps."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedbandit.errors import AlreadyObserved, FedbanditError, UnknownDecision
from fedbandit.simulation.synchronous_fleet import SynchronousFleet
from fedbandit.testing.contracts import Subject, contract, raising

STEPS = ("steps", "any-rows")
N_AGENTS = 3


@contract(*STEPS)
def _steps_are_the_same_again(subject: Subject) -> None:
    choices, counts = zip(*(_played(subject, 30) for _ in range(2)), strict=True)
    assert choices[0] == choices[1], "two runs of the same rule and rewards chose differently"
    assert counts[0] == counts[1], "two runs of the same rule and rewards sent different messages"


@contract(*STEPS)
def _a_decision_has_its_row_and_learns_nothing(subject: Subject) -> None:
    fleet = _fleet(subject)
    agent, X = fleet.begin_round(1, "0"), subject.rows(6)
    decision = agent.choose(X)
    assert decision.index is not None and np.array_equal(decision.x, X[decision.index])
    assert agent.choose(X).index == decision.index, "choosing again without a reward chose another row"


@contract(*STEPS)
def _bad_rows_and_rewards_of_a_step_are_named_errors(subject: Subject) -> None:
    agent, d = _fleet(subject).begin_round(1, "0"), subject.dim
    bad_rows: tuple[Any, ...] = (np.ones((2, d + 1)), np.empty((0, d)), np.full((2, d), np.nan), "rows", None)
    for bad in bad_rows:
        with raising(FedbanditError):
            agent.choose(bad)
    decision = agent.choose(subject.rows(3))
    bad_rewards: tuple[Any, ...] = (np.nan, np.inf, "much", None)
    for reward in bad_rewards:
        with raising(FedbanditError):
            agent.observe(decision, reward)
    agent.observe(decision, 1.0)


@contract(*STEPS)
def _a_step_takes_one_reward_of_its_own_decision(subject: Subject) -> None:
    fleet = _fleet(subject)
    agent, other = fleet.begin_round(1, "0"), fleet.agents["1"]
    decision = agent.choose(subject.rows(3))
    with raising(UnknownDecision):
        other.observe(decision, 1.0)
    agent.observe(decision, 1.0)
    with raising(AlreadyObserved):
        agent.observe(decision, 1.0)


@contract(*STEPS)
def _counts_never_fall_and_bytes_are_eight_per_number(subject: Subject) -> None:
    fleet, before = _fleet(subject), (0, 0, 0, 0)
    rng = np.random.default_rng(0)
    for t in range(1, 10 * N_AGENTS + 1):
        _play_round(fleet, t, rng)
        after = (fleet.n_up, fleet.n_down, fleet.n_switches, fleet.n_scalars)
        assert all(now >= then for now, then in zip(after, before, strict=True)), f"{before} became {after}"
        assert fleet.n_bytes == 8 * fleet.n_scalars
        before = after


def _fleet(subject: Subject) -> SynchronousFleet:
    rule: Any = subject.rule
    return SynchronousFleet(rule, N_AGENTS)


def _played(subject: Subject, n_steps: int) -> tuple[list[int | None], tuple[int, ...]]:
    fleet, rng = _fleet(subject), np.random.default_rng(1)
    choices = [_play_round(fleet, t, rng) for t in range(1, n_steps * N_AGENTS + 1)]
    return choices, (fleet.n_up, fleet.n_down, fleet.n_switches, fleet.n_scalars)


def _play_round(fleet: SynchronousFleet, t: int, rng: np.random.Generator) -> int | None:
    agent = fleet.begin_round(t, str((t - 1) % N_AGENTS))
    decision, reward = agent.choose(rng.standard_normal((4, fleet.dim))), float(rng.standard_normal())
    agent.observe(decision, reward)
    fleet.end_round(agent, decision, reward, None)
    return decision.index
