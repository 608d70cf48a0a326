"""FedLinUCB in a world that changes: the kernel of lazy.py with epochs, tests for changes, silence and discounts.

The counterpart of core/change.py and algorithms/epochs.py, on the policies, buffers and sums of a lazy fleet.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from fedbandit.core.arrays import Matrix, Vector
from fedbandit.simulation.compiled.choose import choose, choose_known
from fedbandit.simulation.compiled.jit import exact_inner, inlined, inner, kernel
from fedbandit.simulation.compiled.lazy import LASTING, MARGIN, LazyFleet, LazyRule, adopt, fit, is_due
from fedbandit.simulation.compiled.linear import congruence, copy_row, gram, lower_of, spread
from fedbandit.simulation.compiled.round_block import TABLE, RoundBlock, RoundLog, book, earn
from fedbandit.simulation.compiled.sums import Sums, add_pair, move
from fedbandit.simulation.worlds import Index

SHIFT = 1e-12  # of tr A: what is added to A where a block lacks directions


class DriftRule(NamedTuple):
    """The numbers of a rule for a world that changes."""

    lazy: LazyRule
    max_silence: float
    old: float  # age of a model that is replaced, in observations of the fleet; inf: none
    horizon: float  # inf: nothing is discounted
    discounts: bool
    detects: bool
    noise_scale: float
    lam: float
    theta_bound: float
    roots: Vector  # (d + 1,), √ of the quantile for 0 … d degrees of freedom
    n_levels: int
    agent_block: int
    server_block: int


class DriftFleet(NamedTuple):
    """A lazy fleet, and what it knows of changes. Owner m < M is an agent, owner M the server."""

    lazy: LazyFleet
    prior: Vector  # packed
    sums: Sums  # (1): discounted, without λI
    epoch: Index  # (M + 1,)
    clock: Index  # (M + 1,)
    rounds: Index  # (M,), own rounds
    alarm: Index  # (M,)
    due_at: Vector  # (M,), own round at which a contact is due
    silence_due: Vector  # (M,)
    age_due: Vector  # (M,)
    seen: Index  # (M, 2), own rounds and clock at the last model; −1: none yet
    rate: Matrix  # (M, 2), observations of the fleet and own ones
    blocks: Sums  # ((M + 1) · levels)
    started: Index  # ((M + 1) · levels), 1 where there is a model at the block's start
    W: Matrix  # ((M + 1) · levels, d, d), that model
    theta_hat: Matrix  # ((M + 1) · levels, d)


@kernel
def play_drift(fleet: DriftFleet, rule: DriftRule, offer: RoundBlock, log: RoundLog, start: int, stop: int) -> int:
    """Rounds start … stop − 1 of a block; −1 − i means that the scores of round i are not finite."""
    kind, K, remembered, table, norms, rows, means, noise, active, _, _ = offer
    sums, counts, choices, sums_at, counts_at = log
    upper, scores, squares = np.empty(K), np.empty(K), np.empty(K)
    lazy = fleet.lazy
    theta_hat, W, value, square = lazy.theta_hat, lazy.W, lazy.value, lazy.square
    local_Sigma, local_b, local_n = lazy.local
    remembers = remembered and value.shape[0] > 0
    for i in range(start, stop):
        m = active[i]
        if lazy.wants_model[m]:
            take_model(fleet, rule, m)
            counts[1] += 1
            counts[2] += 1
        p = lazy.policy[m]
        beta, top = lazy.beta[p], lazy.top[p]
        if remembers:
            k = choose_known(table, rows, norms, i, K, theta_hat, W, p, beta, top, value, square)
            r = rows[i, k]
            gain = square[p, r]
        else:
            k = choose(table, rows, norms, i, K, theta_hat, W, p, True, beta, top, upper, scores, squares)
            r = rows[i, k] if kind == TABLE else i * K + k
            gain = squares[k]
        if k < 0:
            return -1 - i
        reward = earn(means, noise, i, k, sums, choices)
        add_pair(local_Sigma, local_b, local_n, m, table, r, reward)
        if local_n[m] == LASTING:
            P = np.empty(W.shape[1:])
            gram(W[p], P)
            lazy.top[p] = min(top, spread(P))
        lazy.trace[m] += gain
        lazy.gained[m] += gain
        fleet.rounds[m] += 1
        if rule.detects:
            at = m * rule.n_levels
            if not fleet.started[at]:
                keep_reference(fleet, at, p)
            add_pair(fleet.blocks.Sigma, fleet.blocks.b, fleet.blocks.n, at, table, r, reward)
            if fleet.blocks.n[at] >= rule.agent_block and close(fleet, rule, at, rule.agent_block, p):
                fleet.alarm[m] = 1
                fleet.due_at[m] = 0.0
        due = fleet.rounds[m] >= fleet.due_at[m]
        if not due and lazy.gained[m] >= lazy.allowed[m] * (1.0 - MARGIN):
            due = is_due(lazy, rule.lazy, m)
        if due:
            contact(fleet, rule, m, counts)
        book(sums, counts, sums_at, counts_at, i)
    return stop


@inlined
def contact(fleet: DriftFleet, rule: DriftRule, m: int, counts: Index) -> None:
    """Upload the buffer, which is merged or discarded, and take the model now or at the next round."""
    lazy, server = fleet.lazy, len(fleet.rounds)
    counts[0] += 1
    alarms = fleet.alarm[m] == 1
    fleet.alarm[m] = 0
    fleet.silence_due[m] = fleet.rounds[m] + rule.max_silence
    fleet.due_at[m] = min(fleet.silence_due[m], fleet.age_due[m])
    if fleet.epoch[m] < fleet.epoch[server]:
        clear(lazy.local, m)
    elif alarms:
        clear(lazy.local, m)
        restart(fleet, rule)
    else:
        receive(fleet, rule, m)
    if rule.lazy.arrival:
        lazy.wants_model[m] = 1
    else:
        take_model(fleet, rule, m)
        counts[1] += 1
        counts[2] += 1


@inlined
def receive(fleet: DriftFleet, rule: DriftRule, m: int) -> None:
    """The server merges a buffer, and tests for a change."""
    lazy, server = fleet.lazy, len(fleet.rounds)
    n = lazy.local.n[m]
    at = server * rule.n_levels
    if rule.detects:
        if not fleet.started[at]:
            keep_reference(fleet, at, 0)  # tests begin where the sums do: at the prior
        copy_sums(lazy.local, m, fleet.blocks, at)
    if rule.discounts:
        clock = fleet.clock[server] + n
        older = math.exp(-max(float(n), 0.0) / rule.horizon)
        newer = math.exp(-max(float(clock - fleet.clock[m]), 0.0) / rule.horizon)
        discount(lazy.local, m, fleet.sums, older, newer)
        with_prior(fleet.sums, fleet.prior, lazy.server)
        clear(lazy.local, m)
    else:
        move(lazy.local, m, lazy.server, 0)
    fleet.clock[server] += n
    lazy.version[0] += 1
    if rule.detects and fleet.blocks.n[at] >= rule.server_block:
        fit(lazy, rule.lazy, 0)
        if close(fleet, rule, at, rule.server_block, server + 1):
            restart(fleet, rule)


@inlined
def restart(fleet: DriftFleet, rule: DriftRule) -> None:
    """The server begins a new epoch at the prior."""
    lazy, server = fleet.lazy, len(fleet.rounds)
    clear(lazy.server, 0)
    copy_row(fleet.prior, lazy.server.Sigma[0])
    clear(fleet.sums, 0)
    lazy.version[0] += 1
    fleet.epoch[server] += 1
    forget_blocks(fleet, rule, server)


@inlined
def take_model(fleet: DriftFleet, rule: DriftRule, m: int) -> None:
    """Adopt the server's model with its epoch and clock."""
    server = len(fleet.rounds)
    adopt(fleet.lazy, rule.lazy, m)
    if fleet.epoch[m] != fleet.epoch[server]:
        fleet.epoch[m] = fleet.epoch[server]
        fleet.alarm[m] = 0
        forget_blocks(fleet, rule, m)
    if rule.old < math.inf:
        fleet.clock[m] = fleet.clock[server]
        fleet.age_due[m] = age_due(fleet.seen, fleet.rate, m, fleet.rounds[m], fleet.clock[m], rule.old)
    fleet.due_at[m] = min(fleet.silence_due[m], fleet.age_due[m])


@exact_inner
def age_due(seen: Index, rate: Matrix, m: int, n_rounds: int, clock: int, old: float) -> float:
    """The own round at which the model will be old, from how fast the fleet observes, as in algorithms/epochs.py."""
    if seen[m, 0] >= 0 and n_rounds > seen[m, 0]:
        rate[m, 0] = 0.5 * rate[m, 0] + (clock - seen[m, 1])
        rate[m, 1] = 0.5 * rate[m, 1] + (n_rounds - seen[m, 0])
    if seen[m, 0] < 0 or n_rounds > seen[m, 0]:
        seen[m, 0], seen[m, 1] = n_rounds, clock
    speed = 1.0
    if rate[m, 1] > 0.0:
        speed = max(rate[m, 0] / rate[m, 1], 1.0)
    return n_rounds + math.ceil(old / speed)


# -- tests for a change


@inlined
def keep_reference(fleet: DriftFleet, at: int, p: int) -> None:
    """Policy p is the model at the start of this block."""
    fleet.started[at] = 1
    for j in range(fleet.theta_hat.shape[1]):
        copy_row(fleet.lazy.W[p, j], fleet.W[at, j])
    copy_row(fleet.lazy.theta_hat[p], fleet.theta_hat[at])


@inlined
def forget_blocks(fleet: DriftFleet, rule: DriftRule, owner: int) -> None:
    """The owner's tests begin anew."""
    if rule.detects:
        for at in range(owner * rule.n_levels, (owner + 1) * rule.n_levels):
            clear(fleet.blocks, at)
            fleet.started[at] = 0


@inlined
def close(fleet: DriftFleet, rule: DriftRule, first: int, size: int, p: int) -> bool:
    """Test the owner's blocks that are complete, and start new ones at policy p; whether one is an alarm."""
    found = False
    blocks = fleet.blocks
    for level in range(rule.n_levels):
        at = first + level
        if blocks.n[at] < size:
            break
        if is_alarm(blocks.Sigma[at], blocks.b[at], blocks.n[at], fleet.W[at], fleet.theta_hat[at], rule):
            found = True
        if level + 1 < rule.n_levels:
            if not fleet.started[at + 1]:
                fleet.started[at + 1] = 1
                for j in range(fleet.theta_hat.shape[1]):
                    copy_row(fleet.W[at, j], fleet.W[at + 1, j])
                copy_row(fleet.theta_hat[at], fleet.theta_hat[at + 1])
            move(blocks, at, blocks, at + 1)
        else:
            clear(blocks, at)
        keep_reference(fleet, at, p)
        size *= 2
    return found


@inner
def is_alarm(Sigma: Vector, b: Vector, n: int, W: Matrix, theta_hat: Vector, rule: DriftRule) -> bool:
    """Whether Q of a block is above its level (core/change.py); Q = fᵀ(I + A)⁻¹ A⁻¹ f with A = W S_B Wᵀ, f = W e."""
    dim = len(b)
    S = lower_of(Sigma)
    e = np.empty(dim)
    for i in range(dim):
        s = b[i]
        for j in range(dim):
            s -= (S[i, j] if j <= i else S[j, i]) * theta_hat[j]
        e[i] = s
    f = np.zeros(dim)
    for i in range(dim):
        for j in range(i + 1):
            f[i] += W[i, j] * e[j]
    A = congruence(W, Sigma)
    trace = 0.0
    for i in range(dim):
        trace += A[i, i]
    g = solve_shifted(A, 1.0, f)
    h = solve_shifted(A, SHIFT * trace, f)
    statistic = 0.0
    theta = theta_hat.copy()
    for i in range(dim):
        statistic += g[i] * h[i]
        for j in range(i + 1):
            theta[j] += W[i, j] * g[i]
    size = 0.0
    for j in range(dim):
        size += theta[j] * theta[j]
    bias = rule.lam * max(rule.theta_bound, math.sqrt(size)) * widest(W) / rule.noise_scale
    level = rule.roots[min(n, dim)] + bias
    return bool(statistic / (rule.noise_scale * rule.noise_scale) > level * level)


@inner
def solve_shifted(A: Matrix, shift: float, f: Vector) -> Vector:
    """(A + shift·I)⁻¹ f for a positive semi-definite A, of which the lower triangle is read."""
    dim = len(f)
    L = np.empty((dim, dim))
    x = np.empty(dim)
    for i in range(dim):
        for j in range(i):
            s = A[i, j]
            for k in range(j):
                s -= L[i, k] * L[j, k]
            L[i, j] = s / L[j, j]
        s = A[i, i] + shift
        for k in range(i):
            s -= L[i, k] * L[i, k]
        L[i, i] = math.sqrt(max(s, 0.5 * shift))
        s = f[i]
        for k in range(i):
            s -= L[i, k] * x[k]
        x[i] = s / L[i, i]
    for i in range(dim - 1, -1, -1):
        s = x[i]
        for k in range(i + 1, dim):
            s -= L[k, i] * x[k]
        x[i] = s / L[i, i]
    return x


@inner
def widest(W: Matrix) -> float:
    """`RidgeModel.spread` of core/ridge.py: ‖P⁸‖_F^(1/16) with P = WᵀW."""
    dim = W.shape[0]
    P = np.empty((dim, dim))
    gram(W, P)
    scale = 0.0
    for i in range(dim):
        for j in range(dim):
            scale = max(scale, abs(P[i, j]))
    for i in range(dim):
        for j in range(dim):
            P[i, j] /= scale
    for _ in range(3):
        P = squared(P)
    total = 0.0
    for i in range(dim):
        for j in range(dim):
            total += P[i, j] * P[i, j]
    return float(math.sqrt(scale) * math.sqrt(total) ** 0.0625 * (1.0 + 1e-9))


@inner
def squared(P: Matrix) -> Matrix:
    """P² of a symmetric P."""
    dim = P.shape[0]
    square = np.zeros((dim, dim))
    for i in range(dim):
        for k in range(dim):
            w = P[i, k]
            for j in range(dim):
                square[i, j] += w * P[k, j]
    return square


# -- sums


@exact_inner
def clear(sums: Sums, m: int) -> None:
    """No data."""
    for j in range(sums.Sigma.shape[1]):
        sums.Sigma[m, j] = 0.0
    for j in range(sums.b.shape[1]):
        sums.b[m, j] = 0.0
    sums.n[m] = 0


@exact_inner
def copy_sums(source: Sums, m: int, target: Sums, s: int) -> None:
    """Add the sums of owner m of `source` to owner s of `target`; the source stays."""
    for j in range(source.Sigma.shape[1]):
        target.Sigma[s, j] += source.Sigma[m, j]
    for j in range(source.b.shape[1]):
        target.b[s, j] += source.b[m, j]
    target.n[s] += source.n[m]


@exact_inner
def discount(source: Sums, m: int, target: Sums, older: float, newer: float) -> None:
    """target ← older · target + newer · source; counts add."""
    for j in range(source.Sigma.shape[1]):
        target.Sigma[0, j] = older * target.Sigma[0, j] + newer * source.Sigma[m, j]
    for j in range(source.b.shape[1]):
        target.b[0, j] = older * target.b[0, j] + newer * source.b[m, j]
    target.n[0] += source.n[m]


@exact_inner
def with_prior(sums: Sums, prior: Vector, target: Sums) -> None:
    """target ← λI + sums."""
    for j in range(len(prior)):
        target.Sigma[0, j] = prior[j] + sums.Sigma[0, j]
    for j in range(sums.b.shape[1]):
        target.b[0, j] = sums.b[0, j]
    target.n[0] = sums.n[0]
