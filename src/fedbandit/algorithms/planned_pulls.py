"""Agents that follow a plan: so many pulls of this action, then of that one, until the phase is over.

Between two exchanges such an agent needs no estimate, only its place in the plan and the sum of rewards per entry, so
that a whole phase can be played without a decision (simulation/compiled/planned.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedbandit.algorithms.synchronous import StepMessage, SynchronousAgent
from fedbandit.core.arrays import Matrix, Vector, frozen
from fedbandit.errors import DimensionMismatch, InvalidInput
from fedbandit.registry import RunSizes

Index = NDArray[np.int64]
MOST_PULLS = 1 << 53  # of one entry; more steps than any run has


@dataclass(frozen=True)
class PullPlan:
    """Entries (action, number of pulls) in order; the rewards of the first `n_reported` of them are used."""

    rows: Index
    counts: Index
    n_reported: int

    @classmethod
    def of(cls, rows: Sequence[int], counts: Sequence[int], *, filler: tuple[int, int] | None = None) -> PullPlan:
        """Entries to report, and then pulls of one more action whose rewards are not used."""
        kept = [(row, min(count, MOST_PULLS)) for row, count in zip(rows, counts, strict=True) if count > 0]
        n_reported = len(kept)
        if filler is not None and filler[1] > 0:
            kept.append(filler)
        return cls(
            np.array([row for row, _ in kept], dtype=np.int64),
            np.array([count for _, count in kept], dtype=np.int64),
            n_reported,
        )

    @property
    def n_pulls(self) -> int:
        """Steps that the plan takes."""
        return int(self.counts.sum())


class PlannedAgent(SynchronousAgent):
    """Plays its plan; `_report` says what it sends when the plan is done."""

    def __init__(self, dim: int, agent_id: str, incarnation: str | None) -> None:
        super().__init__(dim, agent_id, incarnation)
        self.features: Matrix | None = None  # its actions, which must stay as they are
        self.plan = PullPlan.of([], [])
        self.sums: Vector = np.zeros(0)  # of rewards, per entry
        self._entry = 0
        self._left = 0

    def _report(self) -> StepMessage:
        """The message at the end of the plan."""
        raise NotImplementedError

    def follow(self, plan: PullPlan) -> None:
        """Start a plan at its first entry."""
        self.plan = plan
        self.sums = np.zeros(len(plan.rows))
        self._entry = 0
        self._left = int(plan.counts[0]) if len(plan.counts) else 0

    def finish(self, sums: Vector) -> None:
        """The plan was played elsewhere, with these sums of rewards."""
        self.sums = sums.copy()
        self._entry = len(self.plan.rows)
        self.n_rounds += self.plan.n_pulls

    def means(self) -> Vector:
        """The mean reward of each entry to report."""
        n = self.plan.n_reported
        return np.asarray(self.sums[:n] / self.plan.counts[:n])

    def meet(self, X: Matrix) -> None:
        """The actions of a round: those of the first round, in the same order."""
        if self.features is None:
            self._check_features(X)
            self.features = frozen(X.copy())
        elif X is not self.features and not np.array_equal(X, self.features):
            raise InvalidInput(
                f"{type(self).__name__} needs decision sets that never change; agent {self.agent_id!r} was offered "
                f"{len(X)} actions that differ from the {len(self.features)} of its first round"
            )

    def _check_features(self, X: Matrix) -> None:
        """Called with the actions of the first round."""

    def _choose(self, X: Matrix) -> int:
        self.meet(X)
        if self._entry >= len(self.plan.rows):
            raise InvalidInput(
                f"agent {self.agent_id!r} has no pulls left in its plan; deliver the messages of the step first"
            )
        row = int(self.plan.rows[self._entry])
        if row >= len(X):
            raise DimensionMismatch(f"expected at least {row + 1} actions, as the plan has; got {len(X)}")
        return row

    def _learn(self, index: int, x: Vector, reward: float) -> None:
        self.sums[self._entry] += reward
        self._left -= 1
        if self._left == 0:
            self._entry += 1
            self._left = int(self.plan.counts[self._entry]) if self._entry < len(self.plan.counts) else 0

    def end_step(self) -> StepMessage | None:
        """Nothing while the plan goes on."""
        return self._report() if self._entry == len(self.plan.rows) else None


def steps_of(sizes: RunSizes) -> int:
    """T_m, the steps of each agent in a run of this size."""
    return max(1, sizes.n_rounds // sizes.n_agents)


def names_of(agent_ids: Iterable[str]) -> list[str]:
    """The fleet in order of index, each agent once."""
    names = list(agent_ids)
    if not names or len(set(names)) != len(names):
        raise InvalidInput(f"expected the names of all agents, each once, got {len(names)} names")
    return names


def from_everybody(messages: Iterable[str], names: Sequence[str]) -> None:
    """All agents must have sent: phases end for everybody in the same step."""
    missing = set(names) - set(messages)
    if missing:
        raise InvalidInput(f"expected a message of every agent at the end of a phase, none came from {sorted(missing)}")
