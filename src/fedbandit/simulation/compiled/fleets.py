"""The compiled fleet of each algorithm: its initial state, its kernel, and access to its policies from Python."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedbandit.algorithms.async_linucb import AsyncLinUCB
from fedbandit.algorithms.dcb import DCB
from fedbandit.algorithms.dislinucb import DisLinUCB
from fedbandit.algorithms.fedlinucb import FedLinUCB
from fedbandit.algorithms.messages import n_bytes, n_scalars, touched_bytes
from fedbandit.algorithms.oful import OFUL
from fedbandit.algorithms.rules import LinearRule
from fedbandit.algorithms.synchronous import SCALAR_BYTES
from fedbandit.core.arrays import Matrix, Vector
from fedbandit.core.decision_sets import Ball, Width
from fedbandit.core.kappa import FIRST_CHOICE, first_kappa
from fedbandit.core.personal import Fixed
from fedbandit.core.ridge import RidgeModel
from fedbandit.core.statistics import SufficientStats, packed_length
from fedbandit.simulation.compiled.async_linucb import AsyncFleet, AsyncRule, play_async
from fedbandit.simulation.compiled.dcb import DCBKernel
from fedbandit.simulation.compiled.dislinucb import DisFleet, DisRule, play_dislinucb
from fedbandit.simulation.compiled.drift import play_drift
from fedbandit.simulation.compiled.drift_fleet import drift_fleet, drift_rule, needs_drift_kernel
from fedbandit.simulation.compiled.eager import EagerFleet, EagerRule, Estimates, copy_estimate, play_eager
from fedbandit.simulation.compiled.lazy import LazyFleet, LazyRule, play_lazy
from fedbandit.simulation.compiled.lazy_blocks import block_fleet, play_lazy_blocks
from fedbandit.simulation.compiled.lazy_policies import drawing_fleet, drawing_rule, play_drawing
from fedbandit.simulation.compiled.personal import PersonalFleet, PersonalRule, play_personal
from fedbandit.simulation.compiled.radius import terms_of
from fedbandit.simulation.compiled.round_block import RoundBlock, RoundLog
from fedbandit.simulation.compiled.sums import Sums
from fedbandit.simulation.worlds import Index

WORTH_REMEMBERING = 48  # features; with fewer, computing a score is faster than fetching it from memory
REMEMBERED = 1 << 24  # scores of table rows that a lazy fleet may cache: two numbers each, a quarter of a gigabyte


@dataclass(frozen=True, slots=True)
class CompiledFleet:
    """One fleet with its kernel."""

    play: Callable[[RoundBlock, RoundLog, int, int], int]
    decide: Callable[[int, Ball], Vector] | None = None  # the decision of agent m on a ball
    dim: int = 0  # of the statistics that every message carries; 0: the kernel counts the numbers itself
    blocks: int = 1  # where there are several, the kernel counts those that uploads touched

    def counts(self, counts_at: Index) -> Index:
        """Messages up and down, switches, scalars and bytes, (n, 5), of what a kernel counted, (n, 4)."""
        scalars = counts_at[:, 3]
        sizes = scalars, SCALAR_BYTES * scalars
        if self.dim > 0:
            messages = counts_at[:, 0] + counts_at[:, 1]
            sizes = messages * n_scalars(self.dim, self.blocks), messages * n_bytes(self.dim, self.blocks)
            if self.blocks > 1:
                whole = touched_bytes(self.dim // self.blocks, 0)  # of an upload that touches nothing
                of_a_block = touched_bytes(self.dim // self.blocks, 1) - whole
                up = counts_at[:, 0] * whole + scalars * of_a_block
                sizes = sizes[0], up + counts_at[:, 1] * n_bytes(self.dim, self.blocks)
        return np.column_stack((counts_at[:, :3], *sizes))


# A rule's class -> the fleet with its kernel. A rule that is not here is played by the reference engine.
Build = Callable[[Any, int, int, bool], CompiledFleet]
KERNELS: dict[type[Any], Build] = {}


def kernel_of(rule: type[LinearRule]) -> Callable[[Build], Build]:
    """Register what makes a fleet of this rule: a function of the rule, n_agents, n_rows and on_ball."""

    def register(build: Build) -> Build:
        KERNELS[rule] = build
        return build

    return register


def is_lazy(rule: object) -> bool:
    """Whether the policy changes only at an exchange, or at a rare switch."""
    return (isinstance(rule, FedLinUCB) and rule.personal is None) or (
        isinstance(rule, OFUL) and rule.switching is not None
    )


def compiled_fleet(rule: LinearRule, n_agents: int, *, n_rows: int, on_ball: bool, seed: int = 0) -> CompiledFleet:
    """A fresh fleet; `n_rows` is the size of the table its actions come from, 0 if there is none."""
    if isinstance(rule, FedLinUCB | OFUL) and not rule.is_certain:
        return _drawing(rule, n_agents, seed)
    return KERNELS[type(rule)](rule, n_agents, n_rows, on_ball)


class Bound:
    """A kernel with its fleet and rule filled in.

    Only the first call goes through numba's dispatcher, which compiles or loads the machine code. Later calls go
    straight there: all offers have the same types (blocks.py), and looking these up costs as much as thirty rounds.
    """

    def __init__(self, kernel: Any, fleet: Any, numbers: Any) -> None:
        self.kernel, self.fleet, self.numbers = kernel, fleet, numbers
        self.entry: Callable[..., int] | None = None

    def __call__(self, offer: RoundBlock, log: RoundLog, start: int, stop: int) -> int:
        """Rounds start … stop − 1."""
        if self.entry is not None:
            return self.entry(self.fleet, self.numbers, offer, log, start, stop)
        reached = int(self.kernel(self.fleet, self.numbers, offer, log, start, stop))
        if hasattr(self.kernel, "overloads"):  # absent where compilation is disabled in numba
            types = tuple(map(self.kernel.typeof_pyval, (self.fleet, self.numbers, offer, log, start, stop)))
            self.entry = self.kernel.overloads[types].entry_point
        return reached


def _sums(n_owners: int, dim: int) -> Sums:
    """No data."""
    packed = packed_length(dim)
    return Sums(np.zeros((n_owners, packed)), np.zeros((n_owners, dim)), np.zeros(n_owners, dtype=np.int64))


def _at_prior(n_owners: int, rule: LinearRule) -> Sums:
    """λI and no data."""
    sums = _sums(n_owners, rule.dim)
    sums.Sigma[:] = _packed_prior(rule)
    return sums


def _packed_prior(rule: LinearRule) -> Vector:
    """λI, packed."""
    packed = np.zeros(packed_length(rule.dim))
    steps = np.arange(rule.dim)
    packed[steps * (steps + 3) // 2] = rule.lam
    return packed


@kernel_of(FedLinUCB)
def _lazy(rule: FedLinUCB | OFUL, M: int, n_rows: int, on_ball: bool) -> CompiledFleet:
    if isinstance(rule, FedLinUCB) and rule.personal is not None:
        return _personal(rule, M)
    numbers = _lazy_numbers(rule)
    if isinstance(rule, FedLinUCB) and rule.blocks > 1:
        by_block = Bound(play_lazy_blocks, block_fleet(rule, numbers, M), numbers)
        return CompiledFleet(by_block, dim=rule.dim, blocks=rule.blocks)
    fleet = _lazy_fleet(rule, numbers, M, n_rows, M if on_ball else 0)
    if isinstance(rule, FedLinUCB) and needs_drift_kernel(rule):
        timed = drift_rule(rule, numbers)
        in_time = drift_fleet(rule, timed, fleet, _packed_prior(rule), M)
        return CompiledFleet(Bound(play_drift, in_time, timed), dim=rule.dim)

    def decide(m: int, ball: Ball) -> Vector:
        # By the core's own functions, on sums that agree with the reference's to the last bit: on a ball every
        # decision moves all later ones a little, and a rounding error would grow from exchange to exchange.
        stats = SufficientStats(unpack(fleet.model.Sigma[m], rule.dim), fleet.model.b[m].copy(), int(fleet.model.n[m]))
        model = RidgeModel(stats)
        beta = rule.beta_for(model, n_obs=stats.n_obs, version=int(fleet.model_version[m]))
        fleet.undecided[m] = 0
        return ball.best(model.theta_hat, Width(model.inverse), beta)

    return CompiledFleet(Bound(play_lazy, fleet, numbers), decide, rule.dim)


def _drawing(rule: FedLinUCB | OFUL, M: int, seed: int) -> CompiledFleet:
    """A lazy rule whose policy draws at random."""
    numbers = _lazy_numbers(rule)
    fleet = drawing_fleet(rule, _lazy_fleet(rule, numbers, M, 0, 0), seed)
    return CompiledFleet(Bound(play_drawing, fleet, drawing_rule(rule, numbers)), dim=rule.dim)


def unpack(packed: Vector, dim: int) -> Matrix:
    """The symmetric (d, d) matrix of a lower triangle packed row by row."""
    full = np.empty((dim, dim))
    rows, columns = np.tril_indices(dim)
    full[rows, columns] = full[columns, rows] = packed
    return full


def _lazy_numbers(rule: FedLinUCB | OFUL) -> LazyRule:
    if isinstance(rule, FedLinUCB):
        spectral, arrival = rule.trigger == "spectral", rule.refresh == "arrival"
        return LazyRule(rule.alpha, math.log1p(rule.alpha), spectral, arrival, False, terms_of(rule))
    alpha = float(rule.switching or 0.0)
    return LazyRule(alpha, math.log1p(alpha), False, False, True, terms_of(rule))


def _lazy_fleet(rule: FedLinUCB | OFUL, numbers: LazyRule, M: int, n_rows: int, n_models: int) -> LazyFleet:
    dim = rule.dim
    n_servers = M if numbers.alone else 1
    n_policies = 1 + M + n_servers
    remembers = n_rows > 0 and dim >= WORTH_REMEMBERING and (M + 1) * n_rows <= REMEMBERED
    fleet = LazyFleet(
        policy=np.zeros(M, dtype=np.int64),
        theta_hat=np.zeros((n_policies, dim)),
        W=np.zeros((n_policies, dim, dim)),
        beta=np.zeros(n_policies),
        top=np.zeros(n_policies),
        value=np.empty((M + 1, n_rows) if remembers else (0, 0)),
        square=np.empty((M + 1, n_rows) if remembers else (0, 0)),
        local=_sums(M, dim),
        trace=np.zeros(M),
        gained=np.zeros(M),
        allowed=np.full(M, _allowed_at_first(numbers, dim)),
        wants_model=np.full(M, int(isinstance(rule, FedLinUCB) and rule.join)),
        undecided=np.ones(M, dtype=np.int64),
        model=_at_prior(n_models, rule),
        model_version=np.zeros(n_models, dtype=np.int64),
        server=_at_prior(n_servers, rule),
        version=np.zeros(n_servers, dtype=np.int64),
        fitted=np.zeros(n_servers, dtype=np.int64),
    )
    fleet.W[0] = np.eye(dim) * rule.lam**-0.5
    fleet.beta[0] = rule.beta_for(rule.prior_model, n_obs=0, version=0)
    fleet.top[0] = rule.lam**-0.5 * (1.0 + 1e-9)
    if remembers:
        fleet.value[0] = fleet.square[0] = np.nan
    return fleet


def _allowed_at_first(numbers: LazyRule, dim: int) -> float:
    """`allowance` of lazy.py before any growth."""
    if numbers.spectral or math.isinf(numbers.threshold):
        return numbers.alpha
    return dim * math.expm1(numbers.threshold / dim)


def _estimates(rule: LinearRule, n_slots: int, prior: int) -> Estimates:
    """Slots for running estimates, of which one is filled with the prior; the others cost no memory until used."""
    dim = rule.dim
    estimates = Estimates(
        theta_hat=np.zeros((n_slots, dim)),
        b=np.zeros((n_slots, dim)),
        P=np.zeros((n_slots, dim, dim)),
        top=np.zeros(n_slots),
        base=np.zeros(n_slots),
        growth=np.zeros(n_slots),
        since=np.zeros(n_slots),
        steps=np.zeros(n_slots, dtype=np.int64),
        n_obs=np.zeros(n_slots, dtype=np.int64),
    )
    estimates.P[prior] = rule.prior_model.inverse
    estimates.base[prior] = rule.prior_model.log_det
    estimates.top[prior] = rule.lam**-0.5 * (1.0 + 1e-9)
    return estimates


def _personal(rule: FedLinUCB, M: int) -> CompiledFleet:
    lazy = _lazy_numbers(rule)
    kappa = rule.personal.kappa if isinstance(rule.personal, Fixed) else -1.0
    fleet = PersonalFleet(
        lazy=_lazy_fleet(rule, lazy, M, 0, M),
        estimates=_estimates(rule, M, 0),
        own=_sums(M, rule.dim),
        own_squares=np.zeros(M),
        squares=np.zeros(1),
        sent_squares=np.zeros(M),
        others=_at_prior(M, rule),
        others_squares=np.zeros(M),
        prior=np.zeros((M, packed_length(rule.dim))),
        kappa=np.zeros(M),
        next_choice=np.full(M, FIRST_CHOICE),
        grounded=np.zeros(M, dtype=np.int64),
        running=np.zeros(M, dtype=np.int64),
    )
    numbers = PersonalRule(lazy, kappa, first_kappa(rule.dim), FIRST_CHOICE)
    return CompiledFleet(Bound(play_personal, fleet, numbers), dim=rule.dim)


@kernel_of(OFUL)
def _oful(rule: OFUL, M: int, n_rows: int, on_ball: bool) -> CompiledFleet:
    if is_lazy(rule):
        return _lazy(rule, M, n_rows, on_ball)
    shared = rule.mode == "shared"
    n_slots = 1 if shared else M
    fleet = EagerFleet(
        estimates=_estimates(rule, n_slots + 1, n_slots),
        sums=_sums(n_slots + 1, rule.dim),
        born=np.zeros(n_slots, dtype=np.int64),
    )
    fleet.sums.Sigma[n_slots] = _packed_prior(rule)

    numbers = EagerRule(shared, M, terms_of(rule))
    return CompiledFleet(Bound(play_eager, fleet, numbers), dim=rule.dim)


@kernel_of(DisLinUCB)
def _dislinucb(rule: DisLinUCB, M: int, n_rows: int, on_ball: bool) -> CompiledFleet:
    at_start = int(rule.enrolment == "start")
    fleet = DisFleet(
        estimates=_estimates(rule, M + 2, M),
        enrolled=np.full(M, at_start),
        synchronised=np.full(M, at_start),
        local=_sums(M, rule.dim),
        server=_at_prior(1, rule),
        version=np.zeros(1, dtype=np.int64),
        prior=_packed_prior(rule)[None, :],
        clock=np.zeros(2, dtype=np.int64),
    )
    copy_estimate(fleet.estimates, M, M + 1)

    return CompiledFleet(
        Bound(play_dislinucb, fleet, DisRule(rule.threshold, rule.clock == "global", terms_of(rule))), dim=rule.dim
    )


@kernel_of(DCB)
def _dcb(rule: DCB, M: int, n_rows: int, on_ball: bool) -> CompiledFleet:
    return CompiledFleet(DCBKernel(rule, M))


@kernel_of(AsyncLinUCB)
def _async(rule: AsyncLinUCB, M: int, n_rows: int, on_ball: bool) -> CompiledFleet:
    packed = packed_length(rule.dim)
    fleet = AsyncFleet(
        estimates=_estimates(rule, M + 2, M),
        born=np.zeros(M, dtype=np.int64),
        order=np.arange(M),
        n_enrolled=np.full(1, M if rule.enrolment == "start" else 0),
        enrolled=np.full(M, int(rule.enrolment == "start")),
        known=np.zeros((M, packed)),
        known_log_det=np.full(M, rule.prior_model.log_det),
        local=_sums(M, rule.dim),
        in_flight=np.zeros(M, dtype=np.int64),
        queue=np.zeros(M, dtype=np.int64),
        model_version=np.zeros(M, dtype=np.int64),
        server=_at_prior(1, rule),
        version=np.zeros(1, dtype=np.int64),
        prior=_packed_prior(rule),
    )

    numbers = AsyncRule(math.log(rule.gamma_up), math.log(rule.gamma_down), terms_of(rule))
    return CompiledFleet(Bound(play_async, fleet, numbers), dim=rule.dim)
