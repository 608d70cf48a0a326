"""Eager policies: the running estimate of core/eager.py, and OFUL, alone or shared, on top of it."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from fedbandit.core.arrays import Matrix, Vector
from fedbandit.simulation.compiled.choose import choose
from fedbandit.simulation.compiled.jit import inner, kernel
from fedbandit.simulation.compiled.linear import copy_row, factorise, gram, is_stale, solve, spread
from fedbandit.simulation.compiled.radius import RadiusTerms, beta_of
from fedbandit.simulation.compiled.round_block import TABLE, RoundBlock, RoundLog, book, earn
from fedbandit.simulation.compiled.sums import Sums, add_pair
from fedbandit.simulation.worlds import Index


class Estimates(NamedTuple):
    """Running ridge estimates, one per slot."""

    theta_hat: Matrix  # (S, d)
    b: Matrix  # (S, d)
    P: Matrix  # (S, d, d), Σ⁻¹
    top: Vector  # (S,) ≥ √λ_max(P); observations only lower it
    base: Vector  # (S,), log det of what growth is counted from
    growth: Vector  # (S,), log det Σ − base
    since: Vector  # (S,), growth since the last exact restart
    steps: Index  # (S,), observations since then
    n_obs: Index  # (S,)


@inner
def copy_estimate(estimates: Estimates, source: int, target: int) -> None:
    """Copy slot `source` to slot `target`."""
    copy_row(estimates.theta_hat[source], estimates.theta_hat[target])
    copy_row(estimates.b[source], estimates.b[target])
    for i in range(estimates.b.shape[1]):
        copy_row(estimates.P[source, i], estimates.P[target, i])
    estimates.top[target] = estimates.top[source]
    estimates.base[target] = estimates.base[source]
    estimates.growth[target] = estimates.growth[source]
    estimates.since[target] = estimates.since[source]
    estimates.steps[target] = estimates.steps[source]
    estimates.n_obs[target] = estimates.n_obs[source]


@inner
def restart(estimates: Estimates, s: int, Sigma: Vector) -> None:
    """Recompute slot s from a factorisation of its Σ (packed); the base of its growth stays."""
    W = np.empty(estimates.P[s].shape)
    log_det = factorise(Sigma, W)
    gram(W, estimates.P[s])
    solve(W, estimates.b[s], estimates.theta_hat[s])
    estimates.top[s] = spread(estimates.P[s])
    estimates.growth[s] = log_det - estimates.base[s]
    estimates.since[s] = 0.0
    estimates.steps[s] = 0


@inner
def follow(estimates: Estimates, s: int, table: Matrix, r: int, reward: float) -> bool:
    """Add row r of the table with its reward to slot s, O(d²); True when rounding errors call for a restart."""
    P, b, x = estimates.P[s], estimates.b[s], table[r]
    dim = len(x)
    u = np.empty(dim)
    g = 0.0
    for i in range(dim):
        total = 0.0
        for j in range(dim):
            total += P[i, j] * x[j]
        u[i] = total
        g += x[i] * total
    for j in range(dim):
        b[j] += reward * x[j]
    for i in range(dim):
        scaled = u[i] / (1.0 + g)
        total = 0.0
        for j in range(dim):
            entry = P[i, j] - scaled * u[j]
            P[i, j] = entry
            total += entry * b[j]
        estimates.theta_hat[s, i] = total
    step = math.log1p(g)
    estimates.growth[s] += step
    estimates.since[s] += step
    estimates.steps[s] += 1
    estimates.n_obs[s] += 1
    return is_stale(estimates.since[s], estimates.steps[s], dim)


@inner
def beta_at(estimates: Estimates, s: int, radius: RadiusTerms, n_uploads: int) -> float:
    """β of slot s."""
    return beta_of(radius, estimates.base[s] + estimates.growth[s], estimates.n_obs[s], n_uploads)


class EagerRule(NamedTuple):
    """The numbers of OFUL: alone, or one model for all."""

    shared: bool
    n_agents: int
    radius: RadiusTerms


class EagerFleet(NamedTuple):
    """Learners with their own sums; the last slot is the prior, which a learner uses until its first observation."""

    estimates: Estimates  # (S+1) slots, S = M or 1
    sums: Sums  # (S+1) owners
    born: Index  # (S,)


@kernel
def play_eager(fleet: EagerFleet, rule: EagerRule, offer: RoundBlock, log: RoundLog, start: int, stop: int) -> int:
    """Rounds start … stop − 1 of a block, as `play_lazy`."""
    # Fields are taken out of their tuples here: inside the loop each access would count references.
    kind, K, _, table, norms, rows, means, noise, active, _, _ = offer
    sums, counts, choices, sums_at, counts_at = log
    upper, scores, squares = np.empty(K), np.empty(K), np.empty(K)
    estimates, own_sums = fleet.estimates, fleet.sums
    theta_hat, P = estimates.theta_hat, estimates.P
    prior = len(fleet.born)
    for i in range(start, stop):
        m = active[i]
        own = 0 if rule.shared else m
        s = own if fleet.born[own] else prior
        beta = beta_at(estimates, s, rule.radius, estimates.n_obs[s])
        k = choose(table, rows, norms, i, K, theta_hat, P, s, False, beta, estimates.top[s], upper, scores, squares)
        if k < 0:
            return -1 - i
        r = rows[i, k] if kind == TABLE else i * K + k
        reward = earn(means, noise, i, k, sums, choices)
        if not fleet.born[own]:
            fleet.born[own] = 1
            copy_estimate(estimates, prior, own)
            copy_row(own_sums.Sigma[prior], own_sums.Sigma[own])
        add_pair(own_sums.Sigma, own_sums.b, own_sums.n, own, table, r, reward)
        if follow(estimates, own, table, r, reward):
            restart(estimates, own, own_sums.Sigma[own])
        if rule.shared:
            counts[0] += 1
            counts[1] += rule.n_agents
            counts[2] += rule.n_agents
        else:
            counts[2] += 1
        book(sums, counts, sums_at, counts_at, i)
    return stop
