"""DCB's steps: decisions on active sums, then one pass over all buffers that averages, shifts and activates."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedbandit.algorithms.dcb import DCB, DCBMeetings, buffer_limit
from fedbandit.algorithms.messages import n_scalars
from fedbandit.core.arrays import Matrix, Vector
from fedbandit.simulation.compiled.choose import choose
from fedbandit.simulation.compiled.jit import exact_inner, inlined, kernel
from fedbandit.simulation.compiled.linear import factorise, rough_spread, solve
from fedbandit.simulation.compiled.radius import RadiusTerms, beta_of, terms_of
from fedbandit.simulation.compiled.round_block import TABLE, RoundBlock, RoundLog, book, earn
from fedbandit.simulation.synchronous_fleet import in_turn, not_in_steps
from fedbandit.simulation.worlds import Index

FIRST_STEPS = 1000  # steps that buffers have room for at first


class DCBRule(NamedTuple):
    """The numbers of DCB for a fleet."""

    weight: float  # s
    radius: RadiusTerms


class DCBFleet(NamedTuple):
    """M agents; packed pairs are a lower triangle, row by row, and then r x: p numbers."""

    theta_hat: Matrix  # (M, d)
    W: NDArray[np.float64]  # (M, d, d), lower triangular, WᵀW = A_i⁻¹
    beta: Vector  # (M,)
    top: Vector  # (M,) ≥ √λ_max(A_i⁻¹)
    active: Matrix  # (M, p), A_i and b_i
    new: Matrix  # (M, p), the pair of this step, weighted
    buffers: NDArray[np.float64]  # (2, M, capacity, p), those of this step and of the next in turn, oldest first
    clock: Index  # (2,), which of the two is this step's, and pairs in each of its buffers
    partners: Index  # (steps, M), σ of the steps that end in this block
    limits: Index  # (steps,), pairs that stay in the buffers then, besides the new ones


@kernel
def play_dcb(fleet: DCBFleet, rule: DCBRule, offer: RoundBlock, log: RoundLog, start: int, stop: int) -> int:
    """Rounds start … stop − 1 of a block, as `play_lazy`."""
    # Fields are taken out of their tuples here: inside the loop each access would count references.
    kind, K, _, table, norms, rows, means, noise, active, _, _ = offer
    sums, counts, choices, sums_at, counts_at = log
    upper, scores, squares = np.empty(K), np.empty(K), np.empty(K)
    theta_hat, W, betas, tops = fleet.theta_hat, fleet.W, fleet.beta, fleet.top
    n_agents = len(betas)
    step = 0
    for i in range(start, stop):
        m = active[i]
        k = choose(table, rows, norms, i, K, theta_hat, W, m, True, betas[m], tops[m], upper, scores, squares)
        if k < 0:
            return -1 - i
        r = rows[i, k] if kind == TABLE else i * K + k
        reward = earn(means, noise, i, k, sums, choices)
        write_pair(fleet.new, m, table, r, reward, rule.weight)
        if m == n_agents - 1:
            counts[0] += n_agents
            counts[3] += n_agents * fleet.clock[1] * fleet.new.shape[1]
            if end_step(fleet, step) > 0:
                for j in range(n_agents):
                    refit(fleet, rule, j)
                counts[2] += n_agents
            step += 1
        book(sums, counts, sums_at, counts_at, i)
    return stop


@exact_inner
def write_pair(new: Matrix, m: int, table: Matrix, r: int, reward: float, weight: float) -> None:
    """s x xᵀ and s r x of row r, packed, as the new pair of agent m."""
    dim = table.shape[1]
    at = 0
    for i in range(dim):
        for j in range(i + 1):
            new[m, at + j] = weight * (table[r, i] * table[r, j])
        at += i + 1
    for i in range(dim):
        new[m, at + i] = weight * (reward * table[r, i])


@exact_inner
def end_step(fleet: DCBFleet, step: int) -> int:
    """Average each buffer with its partner's, append the new pair, activate the oldest; returns how many of each."""
    this, n = fleet.clock[0], fleet.clock[1]
    buffers, active = fleet.buffers, fleet.active
    n_agents, size = active.shape
    n_due = max(n - fleet.limits[step], 0)
    for m in range(n_agents):
        partner = fleet.partners[step, m]
        for k in range(n):
            if k < n_due:
                for j in range(size):
                    active[m, j] += 0.5 * (buffers[this, m, k, j] + buffers[this, partner, k, j])
            else:
                for j in range(size):
                    buffers[1 - this, m, k - n_due, j] = 0.5 * (buffers[this, m, k, j] + buffers[this, partner, k, j])
        for j in range(size):
            buffers[1 - this, m, n - n_due, j] = fleet.new[m, j]
    fleet.clock[0] = 1 - this
    fleet.clock[1] = n + 1 - n_due
    return int(n_due)


@inlined
def refit(fleet: DCBFleet, rule: DCBRule, m: int) -> None:
    """θ̂ and all that decisions need, from the active sums of agent m."""
    dim = fleet.theta_hat.shape[1]
    packed = dim * (dim + 1) // 2
    W = fleet.W[m]
    log_det = factorise(fleet.active[m, :packed], W)
    solve(W, fleet.active[m, packed:], fleet.theta_hat[m])
    fleet.top[m] = rough_spread(W)
    fleet.beta[m] = beta_of(rule.radius, log_det, 0, 0)


class DCBKernel:
    """The kernel with its fleet; draws the permutations of the steps that end in a block."""

    def __init__(self, rule: DCB, n_agents: int) -> None:
        self.meetings = DCBMeetings(rule)
        self.meetings.enroll(str(m) for m in range(n_agents))
        self.rule, self.n_agents = rule, n_agents
        self.n_rounds = self.n_steps = 0
        self.numbers = DCBRule(rule.weight(n_agents), terms_of(rule, rule.weighted_radius(n_agents)))

        self.fleet = new_dcb_fleet(rule, n_agents, beta_of(self.numbers.radius, rule.prior_model.log_det, 0, 0))

    def __call__(self, offer: RoundBlock, log: RoundLog, start: int, stop: int) -> int:
        """Rounds start … stop − 1."""
        active = offer.active[start:stop]
        wrong = np.flatnonzero(active != in_turn(self.n_rounds, len(active), self.n_agents))
        if len(wrong) > 0:
            raise not_in_steps(self.n_rounds + int(wrong[0]) + 1, int(active[wrong[0]]), self.rule)
        self._draw((self.n_rounds + len(active)) // self.n_agents - self.n_steps)
        self.n_rounds += len(active)
        return int(play_dcb(self.fleet, self.numbers, offer, log, start, stop))

    def _draw(self, n_steps: int) -> None:
        if n_steps > len(self.fleet.limits):
            room = np.zeros((n_steps, self.n_agents), dtype=np.int64)
            self.fleet = self.fleet._replace(partners=room, limits=np.zeros(n_steps, dtype=np.int64))
        most = buffer_limit(self.n_steps + n_steps, self.n_agents) + 2
        if most > self.fleet.buffers.shape[2]:
            self.fleet = self.fleet._replace(buffers=with_capacity(self.fleet.buffers, 2 * most))
        for step in range(n_steps):
            self.fleet.partners[step] = self.meetings.draw()
            self.fleet.limits[step] = buffer_limit(self.n_steps + step, self.n_agents)
        self.n_steps += n_steps


def with_capacity(buffers: NDArray[np.float64], capacity: int) -> NDArray[np.float64]:
    """The same buffers with room for this many pairs each."""
    wider = np.zeros((2, buffers.shape[1], capacity, buffers.shape[3]))
    wider[:, :, : buffers.shape[2]] = buffers
    return wider


def new_dcb_fleet(rule: DCB, M: int, beta: float) -> DCBFleet:
    """A fleet at the prior."""
    dim, size = rule.dim, n_scalars(rule.dim)
    capacity = buffer_limit(FIRST_STEPS, M) + 2
    steps = np.arange(dim)
    active = np.zeros((M, size))
    active[:, steps * (steps + 3) // 2] = rule.lam
    return DCBFleet(
        theta_hat=np.zeros((M, dim)),
        W=np.tile(np.eye(dim) * rule.lam**-0.5, (M, 1, 1)),
        beta=np.full(M, beta),
        top=np.full(M, rule.lam**-0.5 * (1.0 + 1e-9)),
        active=active,
        new=np.zeros((M, size)),
        buffers=np.zeros((2, M, capacity, size)),
        clock=np.zeros(2, dtype=np.int64),
        partners=np.zeros((0, M), dtype=np.int64),
        limits=np.zeros(0, dtype=np.int64),
    )
