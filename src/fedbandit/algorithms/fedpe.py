"""Fed-PE (Huang, Wu, Yang and Shen 2021): phased elimination where each agent has one fixed feature per arm."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from fedbandit.algorithms.planned_pulls import Index, PlannedAgent, PullPlan, from_everybody, names_of, steps_of
from fedbandit.algorithms.rules import one_of
from fedbandit.algorithms.synchronous import StepMessage
from fedbandit.core.arrays import Matrix, keep_finite, keep_whole
from fedbandit.core.design import multi_agent, spread_rows
from fedbandit.core.statistics import packed_length
from fedbandit.errors import DimensionMismatch, InvalidInput, InvalidParameter
from fedbandit.registry import Algorithm, RunSizes, option
from fedbandit.wire.identifiers import check_agent_id

PER_ARM, SHARED = "per-arm", "shared"
RELATIVE_ZERO = 1e-10  # eigenvalues this small beside the largest belong to directions that nobody pulled
PAIRS_PER_DIMENSION = 3  # of the pooled design
SMALLEST_MEAN = 1e-100  # a mean of zero would hide the direction of its feature


def _arms(sizes: RunSizes) -> int | None:
    return sizes.n_actions or None


@dataclass(frozen=True, kw_only=True)
class FedPE:
    """K arms; agent i has one fixed feature x_{i,a} for arm a, mean ⟨θ_a, x_{i,a}⟩; phase p has 2^p pulls per agent.

    `parameters="per-arm"` is the paper's setting: one θ_a for each arm, pulls by the multi-agent G-optimal design.
    `parameters="shared"` has one θ for all arms, and pulls 3d (agent, arm) pairs equally often: the way in which Salgia
    and Zhao (2023) run it for comparison. `shortest` is a lower bound on the lengths of features, which the paper takes
    as known, `n_steps` the steps of each agent, and `delta` the probability of failure. `width_factor` replaces the √c
    that δ gives by a number, for which nothing is proved; the comparison of Salgia and Zhao has 10.
    """

    synchronous: ClassVar[bool] = True

    dim: int
    n_arms: int = field(metadata=option("number of arms K", default=_arms, default_help="the world's actions"))
    n_steps: int = field(metadata=option("steps of each agent, T_m", default=steps_of, default_help="rounds / agents"))
    parameters: str = field(default=PER_ARM, metadata=option("'per-arm' (a θ for each arm) or 'shared' (one θ)"))
    shortest: float = field(default=0.5, metadata=option("lower bound on the length of features"))
    delta: float = 0.1
    width_factor: float | None = field(
        default=None, metadata=option("multiple of ‖x‖_V/ℓ that is the width, in place of the √c that δ gives")
    )

    def __post_init__(self) -> None:
        for name in ("dim", "n_arms", "n_steps"):
            keep_whole(self, name, 1)
        one_of(self.parameters, (PER_ARM, SHARED), "parameters")
        keep_finite(self, "shortest", 0.0, strictly=True)
        keep_finite(self, "delta", 0.0, strictly=True)
        if not self.delta < 1:
            raise InvalidParameter(f"expected delta in (0, 1), got {self.delta}")
        if self.width_factor is not None:
            keep_finite(self, "width_factor", 0.0, strictly=True)

    def agent(self, agent_id: str, *, incarnation: str | None = None) -> FedPEAgent:
        """A new agent, about to pull each arm once."""
        return FedPEAgent(self, check_agent_id(agent_id), incarnation)

    def server(self) -> FedPEServer:
        """A new server."""
        return FedPEServer(self)

    @cached_property
    def n_phases(self) -> int:
        """H: phases of 2, 4, 8, … pulls that `n_steps` steps can begin."""
        return max(1, math.ceil(math.log2(self.n_steps)))

    def confidence(self, n_agents: int) -> float:
        """c = min(2 log(2MKH/δ), 2 log(KH/δ) + d log k₀ + d): the squared width in units of ‖x‖²_V/ℓ².

        The square of `width_factor` where that is given.
        """
        if self.width_factor is not None:
            return self.width_factor**2
        union = 2.0 * math.log(2.0 * n_agents * self.n_arms * self.n_phases / self.delta)
        covering = 2.0 * math.log(self.n_arms * self.n_phases / self.delta) + self.dim
        tenths = 10
        while tenths / 10 * self.dim < covering + self.dim * math.log(tenths / 10):
            tenths += 1
        return min(union, covering + self.dim * math.log(tenths / 10))

    @cached_property
    def n_pairs(self) -> int:
        """(agent, arm) pairs of the pooled design."""
        return PAIRS_PER_DIMENSION * self.dim

    def phase_length(self, phase: int) -> int:
        """Steps of phase p: 2^p, and as many as rounding up can add."""
        return int(2 ** min(phase, 52)) + max(self.n_arms, self.n_pairs if self.parameters == SHARED else 0)

    def to_dict(self) -> dict[str, Any]:
        """Plain values with the algorithm's name."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        if self.width_factor is None:
            del values["width_factor"]  # so that specs without it keep their ids
        return {"algorithm": "FedPE", **values}


@dataclass(frozen=True)
class LocalEstimates(StepMessage):
    """For each arm that an agent pulled in a phase the vector x ȳ/‖x‖², (n, d), in the order of its plan."""

    vectors: Matrix


@dataclass(frozen=True)
class GlobalEstimates(StepMessage):
    """θ_a and c V_a of the arms that are active anywhere; one entry for all arms where θ is shared."""

    arms: Index  # (n,)
    theta: Matrix  # (n, d)
    squares: NDArray[np.float64]  # (n, d, d), c V_a


@dataclass(frozen=True)
class ActiveArms(StepMessage):
    """The arms that an agent has left."""

    arms: Index


@dataclass(frozen=True)
class Allocation(StepMessage):
    """How often an agent pulls which arm in the next phase."""

    arms: Index
    counts: Index


class FedPEAgent(PlannedAgent):
    """Drops arms by the global estimates, pulls what it is allocated, sends one vector per arm."""

    def __init__(self, rule: FedPE, agent_id: str, incarnation: str | None) -> None:
        super().__init__(rule.dim, agent_id, incarnation)
        self.rule = rule
        self.phase = 0
        self.active: Index = np.arange(rule.n_arms)
        self.best_arm = 0
        self.follow(PullPlan.of(range(rule.n_arms), [1] * rule.n_arms))

    def _check_features(self, X: Matrix) -> None:
        if len(X) != self.rule.n_arms:
            raise DimensionMismatch(f"expected {self.rule.n_arms} arms, got {len(X)}")
        shortest = float(np.sqrt(np.einsum("ij,ij->i", X, X).min()))
        if shortest < self.rule.shortest * (1 - 1e-9):
            raise InvalidInput(
                f"expected features of length {self.rule.shortest:g} or more, got one of {shortest:g}; pass shortest="
            )

    def _report(self) -> LocalEstimates:
        x = cast(Matrix, self.features)[self.plan.rows[: self.plan.n_reported]]
        means = self.means()
        means = np.where(np.abs(means) < SMALLEST_MEAN, SMALLEST_MEAN, means)
        return LocalEstimates(self.agent_id, x.size, x * (means / np.einsum("ij,ij->i", x, x))[:, None])

    def adopt(self, reply: StepMessage) -> ActiveArms | None:
        """After estimates: drop arms, and say which are left. After an allocation: start the phase."""
        if isinstance(reply, GlobalEstimates):
            self._drop_arms(reply)
            return ActiveArms(self.agent_id, len(self.active), self.active.copy())
        allocation = cast(Allocation, reply)
        self.phase += 1
        n_idle = self.rule.phase_length(self.phase) - int(allocation.counts.sum())
        self.follow(PullPlan.of(allocation.arms.tolist(), allocation.counts.tolist(), filler=(self.best_arm, n_idle)))
        return None

    def _drop_arms(self, estimates: GlobalEstimates) -> None:
        """Keep the arms whose upper bound reaches the best lower bound."""
        at = np.searchsorted(estimates.arms, self.active) if self.rule.parameters == PER_ARM else self.active * 0
        x = cast(Matrix, self.features)[self.active]
        means = np.einsum("ij,ij->i", estimates.theta[at], x)
        squares = np.maximum(np.einsum("ij,ijk,ik->i", x, estimates.squares[at], x), 0.0)
        widths = np.sqrt(squares) / self.rule.shortest
        self.best_arm = int(self.active[np.argmax(means)])
        self.active = self.active[means + widths >= (means - widths).max()]
        self.model_version += 1
        self.n_switches += 1


class FedPEServer:
    """Joins local estimates, and allocates pulls by a design over all agents' active arms."""

    def __init__(self, rule: FedPE) -> None:
        self.rule = rule
        self.phase = 0
        self.names: list[str] = []
        self.confidence = 0.0  # c
        self.directions: NDArray[np.float64] = np.zeros((0, 0, 0))  # e, known from what agents send at first
        self.active: NDArray[np.bool_] = np.zeros((0, 0), dtype=bool)
        self.counts: Index = np.zeros((0, 0), dtype=np.int64)  # pulls of the phase that goes on
        self.n_pairs_allocated = 0  # entries of all allocations so far

    def enroll(self, agent_ids: Iterable[str]) -> None:
        """All agents, in order of index."""
        self.names = names_of(agent_ids)
        shape = (len(self.names), self.rule.n_arms)
        self.confidence = self.rule.confidence(len(self.names))
        self.directions = np.zeros((*shape, self.rule.dim))
        self.active = np.ones(shape, dtype=bool)
        self.counts = np.ones(shape, dtype=np.int64)

    def begin(self) -> Sequence[StepMessage]:
        """Nothing: every agent pulls each arm once."""
        return ()

    def end_step(self, messages: Mapping[str, StepMessage]) -> Sequence[StepMessage]:
        """Local estimates give global ones; active arms give allocations."""
        if not messages:
            return ()
        from_everybody(messages, self.names)
        ordered = [messages[name] for name in self.names]
        if isinstance(ordered[0], LocalEstimates):
            return self._joined([cast(LocalEstimates, message).vectors for message in ordered])
        self.active[:] = False
        for m, message in enumerate(ordered):
            self.active[m, cast(ActiveArms, message).arms] = True
        return self._allocated()

    def _joined(self, vectors: Sequence[Matrix]) -> Sequence[GlobalEstimates]:
        """V_a = (Σ_i n e eᵀ)⁺ and θ_a = V_a Σ_i n θ_{i,a}."""
        local = np.zeros_like(self.directions)
        for m, rows in enumerate(vectors):
            local[m, self.counts[m] > 0] = rows
        if self.phase == 0:
            largest = np.abs(local).max(axis=2, keepdims=True)  # so that no square of a tiny mean is lost
            self.directions = local / largest / np.linalg.norm(local / largest, axis=2, keepdims=True)
        n = self.counts.astype(np.float64)
        grams = np.einsum("ia,iaj,iak->ajk", n, self.directions, self.directions)
        moments = np.einsum("ia,iaj->aj", n, local)
        arms = np.flatnonzero(self.active.any(axis=0))
        if self.rule.parameters == SHARED:
            grams, moments, arms = grams.sum(axis=0, keepdims=True), moments.sum(axis=0, keepdims=True), arms[:1] * 0
        V = np.linalg.pinv(grams[arms], rcond=RELATIVE_ZERO, hermitian=True)
        theta = np.einsum("ajk,ak->aj", V, moments[arms])
        size = len(arms) * (self.rule.dim + packed_length(self.rule.dim))
        return [GlobalEstimates(name, size, arms, theta, self.confidence * V) for name in self.names]

    def _allocated(self) -> Sequence[Allocation]:
        self.phase += 1
        self.counts = self._pooled() if self.rule.parameters == SHARED else self._by_design()
        replies = []
        for name, counts in zip(self.names, self.counts, strict=True):
            arms = np.flatnonzero(counts)
            self.n_pairs_allocated += len(arms)
            replies.append(Allocation(name, 2 * len(arms), arms, counts[arms]))
        return replies

    def _by_design(self) -> Index:
        weights = multi_agent(self.directions, self.active)
        return np.asarray(np.ceil(2.0 ** min(self.phase, 52) * weights), dtype=np.int64)

    def _pooled(self) -> Index:
        """3d pairs of all agents' active arms, the same number of pulls each."""
        agents, arms = np.nonzero(self.active)
        chosen = spread_rows(self.directions[agents, arms], self.rule.n_pairs)
        counts = np.zeros_like(self.counts)
        counts[agents[chosen], arms[chosen]] = -(-(2 ** min(self.phase, 52)) // len(chosen))
        return counts


ENTRY = Algorithm(
    name="fedpe",
    rule=FedPE,
    example={"n_arms": 4, "n_steps": 100},
    variants={"shared": {"parameters": SHARED}},
    traits=frozenset(),
)
