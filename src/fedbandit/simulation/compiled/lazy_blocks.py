"""FedLinUCB with one block of columns per arm: the lazy kernel with sums, factors and growth by block.

A choice costs p² per action instead of d², an exchange K·p³ instead of d³. log det is a sum over blocks, so the bounds
by the trace that lazy.py explains hold for the whole as they do there.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from fedbandit.algorithms.fedlinucb import FedLinUCB
from fedbandit.core.arrays import LARGEST, Matrix, Vector
from fedbandit.core.statistics import packed_length
from fedbandit.simulation.compiled.choose import first_best
from fedbandit.simulation.compiled.jit import inlined, inner, kernel
from fedbandit.simulation.compiled.lazy import MARGIN, LazyRule, allowance
from fedbandit.simulation.compiled.linear import exceeds, factorise, log_det_growth, solve
from fedbandit.simulation.compiled.radius import beta_of
from fedbandit.simulation.compiled.round_block import TABLE, RoundBlock, RoundLog, best_of, book
from fedbandit.simulation.worlds import Index


class BlockFleet(NamedTuple):
    """M agents and their server. Policy 0 is the prior's, m + 1 agent m's own, M + 1 the server's newest."""

    policy: Index  # (M,)
    theta_hat: Matrix  # (policies, K, p)
    W: Matrix  # (policies, K, p, p), lower triangular
    beta: Vector  # (policies,)
    Sigma: Matrix  # (M + 1, K, p(p+1)/2): buffers of the agents, and the server's sums
    b: Matrix  # (M + 1, K, p)
    n: Index  # (M + 1,)
    touched: Index  # (M, K), 1 where the buffer has data
    trace: Vector  # (M,), Σ of the squared widths of what the buffer holds
    gained: Vector  # (M,), the part of it since the growth was last computed
    allowed: Vector  # (M,), how much of that cannot reach the threshold yet
    wants_model: Index  # (M,)
    version: Index  # (1,)
    fitted: Index  # (1,)


def block_fleet(rule: FedLinUCB, numbers: LazyRule, M: int) -> BlockFleet:
    """A fresh fleet at the prior."""
    K, p = rule.blocks, rule.dim // rule.blocks
    packed = packed_length(p)
    W = np.zeros((M + 2, K, p, p))
    steps = np.arange(p)
    W[0, :, steps, steps] = 1.0 / math.sqrt(rule.lam)
    Sigma = np.zeros((M + 1, K, packed))
    Sigma[M, :, steps * (steps + 3) // 2] = rule.lam
    beta = np.zeros(M + 2)
    beta[0] = rule.beta_for(rule.prior_model, n_obs=0, version=0)
    return BlockFleet(
        policy=np.zeros(M, dtype=np.int64),
        theta_hat=np.zeros((M + 2, K, p)),
        W=W,
        beta=beta,
        Sigma=Sigma,
        b=np.zeros((M + 1, K, p)),
        n=np.zeros(M + 1, dtype=np.int64),
        touched=np.zeros((M, K), dtype=np.int64),
        trace=np.zeros(M),
        gained=np.zeros(M),
        allowed=np.full(M, rule.dim * math.expm1(numbers.threshold / rule.dim)),
        wants_model=np.full(M, int(rule.join)),
        version=np.zeros(1, dtype=np.int64),
        fitted=np.zeros(1, dtype=np.int64),
    )


@inner
def block_of(table: Matrix, r: int, p: int) -> int:
    """The block of row r; −1 if it has numbers in several."""
    dim = table.shape[1]
    first = 0
    while first < dim and table[r, first] == 0.0:
        first += 1
    if first == dim:
        return 0
    block = first // p
    for j in range((block + 1) * p, dim):
        if table[r, j] != 0.0:
            return -1
    return block


@kernel
def play_lazy_blocks(fleet: BlockFleet, rule: LazyRule, offer: RoundBlock, log: RoundLog, start: int, stop: int) -> int:
    """Rounds start … stop − 1 of a block; −1 − i if the scores of round i are not finite, −1 − n − i if a row is bad.

    counts[3] counts the blocks that uploads touched.
    """
    kind, n_actions, _, table, _, rows, means, noise, active, _, _ = offer
    sums, counts, choices, sums_at, counts_at = log
    upper, squares = np.empty(n_actions), np.empty(n_actions)
    by_action = noise.shape[1] > 1
    theta_hat, W, Sigma, b = fleet.theta_hat, fleet.W, fleet.Sigma, fleet.b
    p = W.shape[2]
    for i in range(start, stop):
        m = active[i]
        if fleet.wants_model[m]:
            adopt(fleet, rule, m)
            counts[1] += 1
            counts[2] += 1
        s = fleet.policy[m]
        beta = fleet.beta[s]
        best = -math.inf
        for k in range(n_actions):
            r = rows[i, k] if kind == TABLE else i * n_actions + k
            block = block_of(table, r, p)
            if block < 0:
                return -1 - len(active) - i
            at = block * p
            mean, square = 0.0, 0.0
            for j in range(p):
                mean += theta_hat[s, block, j] * table[r, at + j]
                y = 0.0
                for c in range(j + 1):
                    y += W[s, block, j, c] * table[r, at + c]
                square += y * y
            squares[k] = square
            upper[k] = mean + beta * math.sqrt(square)
            if not upper[k] <= best:
                best = upper[k]
        if not abs(best) <= LARGEST:
            return -1 - i
        k = first_best(upper, best, n_actions)
        r = rows[i, k] if kind == TABLE else i * n_actions + k
        reward = means[i, k] + noise[i, k if by_action else 0]
        sums[0] += best_of(means, i) - means[i, k]
        sums[1] += reward
        choices[i] = k
        block = block_of(table, r, p)
        at, place = block * p, 0
        for j in range(p):
            x = table[r, at + j]
            if x != 0.0:
                fleet.touched[m, block] = 1
            for c in range(j + 1):
                Sigma[m, block, place + c] += x * table[r, at + c]
            b[m, block, j] += reward * x
            place += j + 1
        fleet.n[m] += 1
        fleet.trace[m] += squares[k]
        fleet.gained[m] += squares[k]
        if fleet.gained[m] >= fleet.allowed[m] * (1.0 - MARGIN) and is_due(fleet, rule, m):
            exchange(fleet, rule, m, counts)
        book(sums, counts, sums_at, counts_at, i)
    return stop


@inlined
def is_due(fleet: BlockFleet, rule: LazyRule, m: int) -> bool:
    """The trigger, where the trace alone does not rule it out."""
    fleet.gained[m] = 0.0
    due = True
    if not fleet.trace[m] > rule.alpha * (1.0 + MARGIN):
        growth, s = 0.0, fleet.policy[m]
        for block in range(fleet.touched.shape[1]):
            if fleet.touched[m, block]:
                growth += log_det_growth(fleet.W[s, block], fleet.Sigma[m, block])
        fleet.allowed[m] = allowance(rule, growth, fleet.b.shape[1] * fleet.b.shape[2])
        due = exceeds(growth, rule.threshold)
    return due


@inlined
def exchange(fleet: BlockFleet, rule: LazyRule, m: int, counts: Index) -> None:
    """Upload the touched blocks; adopt the new model now, or at the next round."""
    server = len(fleet.policy)
    for block in range(fleet.touched.shape[1]):
        if fleet.touched[m, block]:
            counts[3] += 1
            fleet.touched[m, block] = 0
            for j in range(fleet.Sigma.shape[2]):
                fleet.Sigma[server, block, j] += fleet.Sigma[m, block, j]
                fleet.Sigma[m, block, j] = 0.0
            for j in range(fleet.b.shape[2]):
                fleet.b[server, block, j] += fleet.b[m, block, j]
                fleet.b[m, block, j] = 0.0
    fleet.n[server] += fleet.n[m]
    fleet.n[m] = 0
    fleet.version[0] += 1
    counts[0] += 1
    if rule.arrival:
        fleet.wants_model[m] = 1
        return
    adopt(fleet, rule, m)
    counts[2] += 1
    counts[1] += 1


@inlined
def adopt(fleet: BlockFleet, rule: LazyRule, m: int) -> None:
    """The server's sums become agent m's model."""
    fleet.wants_model[m] = 0
    fleet.trace[m] = 0.0
    fleet.gained[m] = 0.0
    n_blocks, p = fleet.b.shape[1], fleet.b.shape[2]
    fleet.allowed[m] = allowance(rule, 0.0, n_blocks * p)
    if fleet.version[0] > 0:
        newest = len(fleet.policy) + 1
        if fleet.fitted[0] != fleet.version[0]:
            fit(fleet, rule)
        fleet.policy[m] = m + 1
        fleet.W[m + 1] = fleet.W[newest]
        fleet.theta_hat[m + 1] = fleet.theta_hat[newest]
        fleet.beta[m + 1] = fleet.beta[newest]


@inlined
def fit(fleet: BlockFleet, rule: LazyRule) -> None:
    """The server's newest policy."""
    server, newest = len(fleet.policy), len(fleet.policy) + 1
    log_det = 0.0
    for block in range(fleet.b.shape[1]):
        log_det += factorise(fleet.Sigma[server, block], fleet.W[newest, block])
        solve(fleet.W[newest, block], fleet.b[server, block], fleet.theta_hat[newest, block])
    fleet.beta[newest] = beta_of(rule.radius, log_det, fleet.n[server], fleet.version[0])
    fleet.fitted[0] = fleet.version[0]
