"""Policies that change only at an exchange: FedLinUCB, and OFUL with rare switching as a fleet of one-agent servers.

Exact, and cheap because a frozen policy makes two things free. With A = W Σ_loc Wᵀ, WᵀW = Σ_m⁻¹, whose trace is the sum
of the chosen actions' squared widths, 1 + tr A ≤ det(I + A) ≤ (1 + tr A/d)^d: in most rounds a sum decides the trigger,
and a determinant is computed only where the bounds disagree. And each row of a table is scored once per policy.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from fedbandit.core.arrays import Matrix, Vector
from fedbandit.simulation.compiled.choose import choose, choose_known, width_sq
from fedbandit.simulation.compiled.jit import inlined, inner, kernel
from fedbandit.simulation.compiled.linear import (
    congruence,
    copy_row,
    exceeds,
    factorise,
    gram,
    headroom,
    log_det_growth,
    rough_spread,
    solve,
    spread,
)
from fedbandit.simulation.compiled.radius import RadiusTerms, beta_of
from fedbandit.simulation.compiled.round_block import BALL, TABLE, RoundBlock, RoundLog, best_of, book
from fedbandit.simulation.compiled.sums import Sums, add_pair, move
from fedbandit.simulation.worlds import Index

LASTING = 32  # own rounds after which computing a tighter bound on a policy's widths pays off
MARGIN = 1e-9  # bounds this close to the threshold are not trusted; the determinant is computed


class LazyRule(NamedTuple):
    """The numbers of a lazy rule."""

    alpha: float
    threshold: float  # log(1 + α)
    spectral: bool
    arrival: bool
    alone: bool  # every agent is its own server, and nothing travels
    radius: RadiusTerms


class LazyFleet(NamedTuple):
    """M agents and their server (alone: a server each).

    Policy 0 is the prior's, agent m has policy 0 or its own, m + 1; the last ones are the servers' newest.
    """

    policy: Index  # (M,)
    theta_hat: Matrix  # (policies, d)
    W: Matrix  # (policies, d, d), lower triangular, WᵀW = Σ_m⁻¹
    beta: Vector  # (policies,)
    top: Vector  # (policies,) ≥ √λ_max(Σ_m⁻¹)
    value: Matrix  # (M+1, N), cached scores of the table's rows by policy; or (0, 0)
    square: Matrix
    local: Sums  # (M) buffers
    trace: Vector  # (M,), tr A
    gained: Vector  # (M,), the part of it since the determinant was last computed
    allowed: Vector  # (M,), how much of that cannot reach the threshold yet
    wants_model: Index  # (M,), 1 where a download comes before the next round
    undecided: Index  # (M,), 1 where the decision on a ball is out of date
    model: Sums  # on a ball: what each agent's decision rests on; else (0)
    model_version: Index  # on a ball
    server: Sums  # of 1 or M servers
    version: Index  # (1 or M,), uploads merged
    fitted: Index  # (1 or M,), the version that policy M + 1 + s of server s is made from


@kernel
def play_lazy(fleet: LazyFleet, rule: LazyRule, offer: RoundBlock, log: RoundLog, start: int, stop: int) -> int:
    """Rounds start … stop − 1 of a block; returns where it stopped.

    It stops early if a decision on a ball is needed. −1 − i means that the scores of round i are not finite.
    """
    # Fields are taken out of their tuples here: inside the loop each access would count references.
    kind, K, remembered, table, norms, rows, means, noise, active, decided, best_mean = offer
    sums, counts, choices, sums_at, counts_at = log
    upper, scores, squares = np.empty(K), np.empty(K), np.empty(K)
    by_action = noise.shape[1] > 1
    theta_hat, W, value, square = fleet.theta_hat, fleet.W, fleet.value, fleet.square
    local_Sigma, local_b, local_n = fleet.local
    policies, betas, tops, wants_model = fleet.policy, fleet.beta, fleet.top, fleet.wants_model
    traces, gained, allowed = fleet.trace, fleet.gained, fleet.allowed
    remembers = remembered and value.shape[0] > 0
    for i in range(start, stop):
        m = active[i]
        if wants_model[m]:
            adopt(fleet, rule, m)
            counts[1] += 1
            counts[2] += 1
        p = policies[m]
        beta, top = betas[p], tops[p]
        if kind == BALL:
            if fleet.undecided[m]:
                return i
            k, r = 0, m
            gain = width_sq(W, p, True, table, r)
        elif remembers:
            k = choose_known(table, rows, norms, i, K, theta_hat, W, p, beta, top, value, square)
            r = rows[i, k]
            gain = square[p, r]
        else:
            k = choose(table, rows, norms, i, K, theta_hat, W, p, True, beta, top, upper, scores, squares)
            r = rows[i, k] if kind == TABLE else i * K + k
            gain = squares[k]
        if k < 0:
            return -1 - i
        mean = decided[m] if kind == BALL else means[i, k]
        reward = mean + noise[i, k if by_action else 0]
        sums[0] += (best_mean if kind == BALL else best_of(means, i)) - mean
        sums[1] += reward
        choices[i] = -1 if kind == BALL else k
        add_pair(local_Sigma, local_b, local_n, m, table, r, reward)
        if local_n[m] == LASTING:
            P = np.empty(W.shape[1:])
            gram(W[p], P)
            tops[p] = min(top, spread(P))
        traces[m] += gain
        gained[m] += gain
        if gained[m] >= allowed[m] * (1.0 - MARGIN) and is_due(fleet, rule, m):
            exchange(fleet, rule, m, counts)
        book(sums, counts, sums_at, counts_at, i)
    return stop


@inlined
def is_due(fleet: LazyFleet, rule: LazyRule, m: int) -> bool:
    """The trigger (Algorithm 1, line 8), where the trace alone does not rule it out."""
    W, local = fleet.W[fleet.policy[m]], fleet.local.Sigma[m]
    fleet.gained[m] = 0.0
    if rule.spectral:
        # λ_max(A) > α; λ_max grows by at most what the trace does.
        fleet.allowed[m] = headroom(congruence(W, local), rule.alpha) if exceeds(fleet.trace[m], rule.alpha) else 0.0
        due = bool(fleet.allowed[m] < 0.0)
    elif fleet.trace[m] > rule.alpha * (1.0 + MARGIN):
        due = True
    else:
        growth = log_det_growth(W, local)
        fleet.allowed[m] = allowance(rule, growth, fleet.theta_hat.shape[1])
        due = exceeds(growth, rule.threshold)
    return due


@inner
def allowance(rule: LazyRule, growth: float, dim: int) -> float:
    """The trace that cannot take log det from `growth` past the threshold, d(e^(gap/d) − 1); at first α if spectral."""
    if rule.spectral:
        return rule.alpha
    return dim * math.expm1(max(rule.threshold - growth, 0.0) / dim)


@inlined
def exchange(fleet: LazyFleet, rule: LazyRule, m: int, counts: Index) -> None:
    """Upload the buffer and clear it; adopt the new model now, or at the next round (Algorithm 1, lines 9 to 14)."""
    s = m if rule.alone else 0
    move(fleet.local, m, fleet.server, s)
    fleet.version[s] += 1
    if not rule.alone:
        counts[0] += 1
    if rule.arrival:
        fleet.wants_model[m] = 1
        return
    adopt(fleet, rule, m)
    counts[2] += 1
    if not rule.alone:
        counts[1] += 1


@inlined
def adopt(fleet: LazyFleet, rule: LazyRule, m: int) -> None:
    """The server's sums become agent m's model."""
    s = m if rule.alone else 0
    fleet.wants_model[m] = 0
    fleet.undecided[m] = 1
    fleet.trace[m] = 0.0
    fleet.gained[m] = 0.0
    dim = fleet.theta_hat.shape[1]
    fleet.allowed[m] = allowance(rule, 0.0, dim)
    if fleet.version[s] == 0:
        return  # joined before the first upload: the model is still the prior
    if fleet.fitted[s] != fleet.version[s]:
        fit(fleet, rule, s)
    p, newest = m + 1, len(fleet.policy) + 1 + s
    fleet.policy[m] = p
    for i in range(dim):
        copy_row(fleet.W[newest, i], fleet.W[p, i])
    copy_row(fleet.theta_hat[newest], fleet.theta_hat[p])
    fleet.beta[p], fleet.top[p] = fleet.beta[newest], fleet.top[newest]
    if fleet.value.shape[0] > 0:
        for r in range(fleet.value.shape[1]):
            fleet.value[p, r] = math.nan
            fleet.square[p, r] = math.nan
    if len(fleet.model_version) > 0:
        keep(fleet, m, s)


@inlined
def fit(fleet: LazyFleet, rule: LazyRule, s: int) -> None:
    """The policy of server s as it is now: θ̂ = Σ⁻¹b and all that decisions need (Algorithm 1, line 14)."""
    newest = len(fleet.policy) + 1 + s
    W = fleet.W[newest]
    log_det = factorise(fleet.server.Sigma[s], W)
    solve(W, fleet.server.b[s], fleet.theta_hat[newest])
    fleet.top[newest] = rough_spread(W)
    fleet.beta[newest] = beta_of(rule.radius, log_det, fleet.server.n[s], fleet.version[s])
    fleet.fitted[s] = fleet.version[s]


@inlined
def keep(fleet: LazyFleet, m: int, s: int) -> None:
    """Record the sums behind agent m's model: on a ball, Python decides on them when the agent is next active."""
    copy_row(fleet.server.Sigma[s], fleet.model.Sigma[m])
    copy_row(fleet.server.b[s], fleet.model.b[m])
    fleet.model.n[m] = fleet.server.n[s]
    fleet.model_version[m] = fleet.version[s]
