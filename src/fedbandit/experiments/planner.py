"""The expected cost of a planned fleet: bounds from theory, and a small simulation scaled up."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from fedbandit.algorithms.fedlinucb import FedLinUCB
from fedbandit.algorithms.messages import n_bytes
from fedbandit.core import theory
from fedbandit.core.arrays import LARGEST, at_least, finite_at_least, whole_at_least
from fedbandit.core.block_rows import check_blocks
from fedbandit.errors import InvalidParameter
from fedbandit.experiments.sharing_cost import SharingCost
from fedbandit.simulation.runner import simulate
from fedbandit.simulation.worlds import Sphere

MIN_SIMULATED_AGENTS, MAX_SIMULATED_AGENTS = 20, 200


@dataclass(frozen=True, kw_only=True)
class PlannedFleet:
    """The fleet to plan for: M agents, d features, T rounds in all, and what is assumed of the world."""

    n_agents: int
    dim: int
    n_rounds: int
    lam: float = 1.0
    noise: float = 0.3
    theta_bound: float = 1.0
    action_bound: float = 1.0
    delta: float = 0.01
    blocks: int = 1  # disjoint arms: messages carry the blocks of Σ only

    def __post_init__(self) -> None:
        whole_at_least(self.n_agents, 1, "agents")
        whole_at_least(self.dim, 1, "dim")
        whole_at_least(self.n_rounds, 1, "rounds")
        check_blocks(self.dim, self.blocks)
        for name in ("lam", "action_bound"):  # their squares and quotients stay within float64
            value = finite_at_least(getattr(self, name), 0.0, name, strictly=True)
            if not 1 / LARGEST <= value <= LARGEST:
                raise InvalidParameter(f"expected {name} between {1 / LARGEST:g} and {LARGEST:g}, got {value:g}")
            object.__setattr__(self, name, value)


@dataclass(frozen=True, slots=True)
class TheoryBounds:
    """The theory for one α: the largest number of messages, and the radii that cover θ*."""

    alpha: float
    messages: float
    exogenous: float
    adaptive: float
    paper: float


def theory_bounds(fleet: PlannedFleet, alpha: float) -> TheoryBounds:
    """Message bound and radii at the end of the horizon, with the largest information ρ that T rounds can bring."""
    at_least(alpha, 0.0, "alpha", strictly=True)
    d, T, M, lam = fleet.dim, fleet.n_rounds, fleet.n_agents, fleet.lam
    L, S, R = fleet.action_bound, fleet.theta_bound, fleet.noise
    rho = d * math.log1p(T * L**2 / (lam * d))
    bound = theory.message_bound(dim=d, n_agents=M, n_rounds=T, lam=lam, alpha=alpha, action_bound=L)
    common = {"noise_scale": R, "theta_bound": S, "delta": fleet.delta, "lam": lam}
    sized = {**common, "dim": d, "n_agents": M, "n_rounds": T, "alpha": alpha}
    return TheoryBounds(
        alpha,
        min(bound, 2.0 * T),
        theory.exogenous_radius(rho=rho, **common),
        theory.adaptive_radius(rho=rho, **sized),  # type: ignore[arg-type]
        theory.paper_radius(action_bound=L, **sized),  # type: ignore[arg-type]
    )


def alpha_within_bound(fleet: PlannedFleet, messages: float) -> float | None:
    """The smallest α whose message bound is within a budget; None if there is none: an epoch may cost 2M."""
    epochs = theory.max_epochs(dim=fleet.dim, n_rounds=fleet.n_rounds, lam=fleet.lam, action_bound=fleet.action_bound)
    if messages >= 2 * fleet.n_rounds:
        return 0.0
    spare = messages / (2 * epochs) - fleet.n_agents
    return 1 / spare if spare > 0 else None


def expected_messages(fleet: PlannedFleet, alpha: float) -> float:
    """Messages when data comes evenly from all directions and agents: an estimate, neither a bound nor a fit.

    When the server's data is n·I/d, an agent that adds its own k rows multiplies the determinant by (1 + k/n)^d, so it
    exchanges after k = n((1+α)^(1/d) − 1) rounds of its own, while the fleet plays M times as many: its exchanges are
    spaced by the factor e^s = 1 + M((1+α)^(1/d) − 1) in n. While n < M/s that would be more than one exchange per round
    of its own, so at first every round is an exchange. The prior counts as λd/L² rows.
    """
    prior = fleet.lam * fleet.dim / fleet.action_bound**2
    s = math.log1p(fleet.n_agents * ((1 + alpha) ** (1 / fleet.dim) - 1))
    if s == 0:
        return 2.0 * fleet.n_rounds
    busy = max(0.0, fleet.n_agents / s - prior)
    if fleet.n_rounds <= busy:
        return 2.0 * fleet.n_rounds
    return 2 * busy + 2 * fleet.n_agents / s * math.log((fleet.n_rounds + prior) / (busy + prior))


@dataclass(frozen=True, slots=True)
class Trial:
    """One simulation of a small fleet: its messages, and how they compare with the formula."""

    alpha: float
    messages: float
    expected: float
    was_needed: bool = True

    @property
    def correction(self) -> float:
        """What the formula must be multiplied by."""
        return self.messages / self.expected


class Simulations:
    """A few small simulations at different α; between them the formula's correction is interpolated."""

    def __init__(self, fleet: PlannedFleet, *, budget: int | None = None) -> None:
        self.fleet = fleet
        self.small = small_fleet(fleet, budget or simulated_rounds(fleet.dim))
        self.trials: dict[float, Trial] = {}

    def messages(self, alpha: float) -> float:
        """Messages of the whole fleet at this α, simulated small and scaled up by the formula."""
        if alpha not in self.trials:
            self.trials[alpha] = self._try(alpha)
        return self._scaled(alpha, self.trials[alpha].correction)

    def alpha_for(self, messages: float) -> float | None:
        """The smallest α expected to stay within a budget; None if no α up to a million does."""
        for alpha in (1e-3, 1e-1, 1e1, 1e3):
            self.messages(alpha)
        for _ in range(6):
            found = self._solve(messages)
            if found is None or self.messages(found) <= messages:  # simulates there, which improves the next estimate
                return found
            messages *= 0.99
        return found

    def _solve(self, messages: float) -> float | None:
        low, high = 1e-9, 1e6
        if self._interpolated(high) > messages:
            return None
        for _ in range(100):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if self._interpolated(middle) > messages else (low, middle)
        return high

    def _interpolated(self, alpha: float) -> float:
        known = sorted(self.trials)
        corrections = [math.log(self.trials[value].correction) for value in known]
        return self._scaled(alpha, math.exp(float(np.interp(math.log(alpha), np.log(known), corrections))))

    def _scaled(self, alpha: float, correction: float) -> float:
        return min(correction * expected_messages(self.fleet, alpha), 2.0 * self.fleet.n_rounds)

    def _try(self, alpha: float) -> Trial:
        expected, most = expected_messages(self.small, alpha), 2.0 * self.small.n_rounds
        if expected >= most:  # an exchange every round: simulating it adds nothing
            return Trial(alpha, most, most, was_needed=False)
        fleet = self.small
        rule = FedLinUCB(dim=fleet.dim, alpha=alpha, beta=1.0, lam=fleet.lam)
        world = Sphere(dim=fleet.dim, n_actions=10, noise=fleet.noise)
        run = simulate(rule, world, n_agents=fleet.n_agents, n_rounds=fleet.n_rounds, record=[fleet.n_rounds])
        return Trial(alpha, float(max(run.n_messages, 1)), expected)


def simulated_rounds(dim: int) -> int:
    """How many rounds a small simulation may have, so that a plan takes seconds in any dimension."""
    return int(min(200_000, max(10_000, 2_000_000 // dim)))


def small_fleet(fleet: PlannedFleet, budget: int) -> PlannedFleet:
    """A fleet to simulate: as many rounds for each agent as the real one if the budget allows, with fewer agents."""
    own = max(1, fleet.n_rounds // fleet.n_agents)
    n_agents = min(fleet.n_agents, MAX_SIMULATED_AGENTS, max(MIN_SIMULATED_AGENTS, budget // own))
    return replace(fleet, n_agents=n_agents, n_rounds=min(fleet.n_rounds, budget, n_agents * own))


def bytes_per_day(fleet: PlannedFleet, messages: float, days: float) -> float:
    """Bytes of statistics on the wire in a day."""
    return messages * bytes_per_message(fleet) / days


def bytes_per_message(fleet: PlannedFleet) -> int:
    """Bytes of one upload or download."""
    return n_bytes(fleet.dim, fleet.blocks)


def raw_rows(fleet: PlannedFleet) -> SharingCost:
    """What sending every raw row would cost: its features and the reward; with blocks the context, arm and reward."""
    numbers = None if fleet.blocks == 1 else fleet.dim // fleet.blocks + 2
    return SharingCost(
        n_agents=fleet.n_agents, n_rounds=fleet.n_rounds, dim=fleet.dim, row_numbers=numbers, blocks=fleet.blocks
    )
