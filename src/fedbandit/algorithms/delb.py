"""DELB (Wang, Hu, Chen and Wang 2020): phased elimination on one fixed action set that everybody knows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import ArrayLike

from fedbandit.algorithms.planned_pulls import Index, PlannedAgent, PullPlan, from_everybody, names_of, steps_of
from fedbandit.algorithms.synchronous import StepMessage
from fedbandit.core.arrays import Matrix, Vector, as_matrix, finite, frozen, keep_finite, keep_whole
from fedbandit.core.design import g_optimal
from fedbandit.errors import InvalidParameter
from fedbandit.registry import Algorithm, option
from fedbandit.wire.identifiers import check_agent_id

RELATIVE_ZERO = 1e-10  # eigenvalues this small beside the largest belong to directions that nobody pulled
MOST_PULLS = 1 << 53


@dataclass(frozen=True, kw_only=True)
class DELB:
    """Phase l pulls action x ⌈C 4^l d² log(M T_m) π(x)⌉ times, π a near-G-optimal design on the actions that are left.

    `n_steps` is T_m, the steps of each agent. `C` = 600 is the paper's constant, with which the first phase ends only
    in very long runs; smaller ones have no proof.
    """

    synchronous: ClassVar[bool] = True
    needs_fixed_actions: ClassVar[bool] = True  # the server is told the action set before the first step

    dim: int
    n_steps: int = field(metadata=option("steps of each agent, T_m", default=steps_of, default_help="rounds / agents"))
    C: float = field(default=600.0, metadata=option("multiplies the pulls of a phase", letter="C"))

    def __post_init__(self) -> None:
        keep_whole(self, "dim", 1)
        keep_whole(self, "n_steps", 1)
        keep_finite(self, "C", 0.0, strictly=True)

    def agent(self, agent_id: str, *, incarnation: str | None = None) -> DELBAgent:
        """A new agent without a plan."""
        return DELBAgent(self.dim, check_agent_id(agent_id), incarnation)

    def server(self) -> DELBServer:
        """A new server, which must be told the actions and the agents."""
        return DELBServer(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain values with the algorithm's name."""
        return {"algorithm": "DELB", "dim": self.dim, "n_steps": self.n_steps, "C": self.C}


@dataclass(frozen=True)
class Assignment(StepMessage):
    """An agent's pulls of the next phase, and θ_l of the last one, if there was one."""

    plan: PullPlan
    theta: Vector | None = None


@dataclass(frozen=True)
class MeanReport(StepMessage):
    """The mean reward of each entry of an agent's plan."""

    means: Vector


class DELBAgent(PlannedAgent):
    """Pulls what it is assigned and reports means."""

    theta_hat: Vector | None = None

    def _report(self) -> MeanReport:
        means = self.means()
        return MeanReport(self.agent_id, len(means), means)

    def adopt(self, reply: StepMessage) -> None:
        """Take θ_l and start the pulls of the next phase."""
        assignment = cast(Assignment, reply)
        if assignment.theta is not None:
            self.theta_hat = assignment.theta
            self.model_version += 1
            self.n_switches += 1
        self.follow(assignment.plan)


class DELBServer:
    """Makes the design of each phase, cuts it into equal blocks, estimates θ_l and drops actions."""

    def __init__(self, rule: DELB) -> None:
        self.rule = rule
        self.phase = 0  # l
        self.actions: Matrix | None = None
        self.active: Index = np.zeros(0, dtype=np.int64)
        self.theta_hat: Vector | None = None
        self.names: list[str] = []
        self.plans: list[PullPlan] = []

    def know_actions(self, actions: ArrayLike) -> None:
        """The action set, which is common knowledge and not counted."""
        self.actions = frozen(finite(as_matrix(actions, self.rule.dim), "actions").copy())
        self.active = np.arange(len(self.actions))

    def enroll(self, agent_ids: Iterable[str]) -> None:
        """All agents, in order of index."""
        self.names = names_of(agent_ids)

    def begin(self) -> Sequence[Assignment]:
        """The pulls of phase 1."""
        if self.actions is None:
            raise InvalidParameter("DELB needs the action set before the first step: server.know_actions(actions)")
        return self._assign()

    def end_step(self, messages: Mapping[str, StepMessage]) -> Sequence[Assignment]:
        """At the end of a phase: θ_l, and the pulls of the next phase."""
        if not messages:
            return ()
        from_everybody(messages, self.names)
        self.theta_hat = self._estimate([cast(MeanReport, messages[name]).means for name in self.names])
        values = self._known_actions[self.active] @ self.theta_hat
        self.active = self.active[values >= values.max() - 2.0 ** (1 - self.phase)]
        return self._assign()

    @property
    def _known_actions(self) -> Matrix:
        return cast(Matrix, self.actions)

    def _assign(self) -> Sequence[Assignment]:
        self.phase += 1
        weights = g_optimal(self._known_actions[self.active])
        support = np.flatnonzero(weights)
        total = self.rule.C * 4.0**self.phase * self.rule.dim**2 * math.log(len(self.names) * self.rule.n_steps)
        counts = [max(1, math.ceil(min(total * weight, MOST_PULLS))) for weight in weights[support]]
        self.plans = equal_blocks(self.active[support].tolist(), counts, len(self.names))
        extra = 0 if self.theta_hat is None else len(self.theta_hat)
        return [
            Assignment(name, 2 * len(plan.rows) + extra, plan, self.theta_hat)
            for name, plan in zip(self.names, self.plans, strict=True)
        ]

    def _estimate(self, means: Sequence[Vector]) -> Vector:
        """Least squares on all pulls of the phase."""
        X = self._known_actions[np.concatenate([plan.rows for plan in self.plans])]
        counts = np.concatenate([plan.counts for plan in self.plans]).astype(np.float64)
        V = (X * counts[:, None]).T @ X
        inverse = np.linalg.pinv(V, rcond=RELATIVE_ZERO, hermitian=True)
        return frozen(np.asarray(inverse @ (X.T @ (counts * np.concatenate(means)))))


def equal_blocks(rows: Sequence[int], counts: Sequence[int], n_blocks: int) -> list[PullPlan]:
    """All pulls laid end to end and cut into blocks of the same length; the last action fills the last block up.

    >>> [list(zip(plan.rows.tolist(), plan.counts.tolist())) for plan in equal_blocks([7, 8], [3, 4], 2)]
    [[(7, 3), (8, 1)], [(8, 4)]]
    """
    total = sum(counts)
    length = -(-total // n_blocks)
    ends = np.cumsum([*counts[:-1], counts[-1] + length * n_blocks - total], dtype=np.int64)
    starts = np.concatenate([[0], ends[:-1]])
    plans = []
    for block in range(n_blocks):
        low, high = block * length, (block + 1) * length
        sizes = np.minimum(ends, high) - np.maximum(starts, low)
        inside = np.flatnonzero(sizes > 0)
        plans.append(PullPlan.of([rows[int(i)] for i in inside], sizes[inside].tolist()))
    return plans


ENTRY = Algorithm(name="delb", rule=DELB, example={"n_steps": 100, "C": 0.1}, traits=frozenset())
