"""Rounds of FedLinUCB with a parameter for each agent: exchanges as in lazy.py, decisions on Λ = P + A.

The counterpart of algorithms/personal.py and core/personal_prior.py. Here no message is lost, so that at each download
the model holds all of the agent's own observations: U = A, and Σ_o = Σ_ser − A.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedbandit.core.arrays import Matrix, Vector
from fedbandit.simulation.compiled.choose import choose, width_sq
from fedbandit.simulation.compiled.eager import Estimates, beta_at, follow
from fedbandit.simulation.compiled.jit import inlined, inner, kernel
from fedbandit.simulation.compiled.kappa import chosen_kappa
from fedbandit.simulation.compiled.lazy import MARGIN, LazyFleet, LazyRule, adopt, exchange, is_due
from fedbandit.simulation.compiled.linear import added, copy_row, factorise, gram, solve, spread, times_packed
from fedbandit.simulation.compiled.round_block import TABLE, RoundBlock, RoundLog, best_of, book
from fedbandit.simulation.compiled.sums import Sums, add_pair
from fedbandit.simulation.worlds import Index


class PersonalRule(NamedTuple):
    """The numbers of the lazy rule below, and of `fb.personal`."""

    lazy: LazyRule
    kappa: float  # fixed, or negative: chosen from the data
    first_kappa: float  # before it is chosen for the first time
    first_choice: int


class PersonalFleet(NamedTuple):
    """M agents: the fleet of lazy.py for models and exchanges, and what each agent knows by itself."""

    lazy: LazyFleet
    estimates: Estimates  # (M), on Λ = P + A; b is Pθ_o + c
    own: Sums  # (M), the lifetime sums A, c, n
    own_squares: Vector  # (M,), Σr²
    squares: Vector  # (1,), Σr² of the server
    sent_squares: Vector  # (M,), Σr² of the agent's uploads
    others: Sums  # (M), Σ_o, b_o, n_o
    others_squares: Vector  # (M,), Σr² of the others
    prior: Matrix  # (M, d(d+1)/2), P packed
    kappa: Vector  # (M,)
    next_choice: Index  # (M,), own observations at which κ is chosen again
    grounded: Index  # (M,), 1 where κ was chosen for this model
    running: Index  # (M,), 1 where the estimate is up to date


@kernel
def play_personal(
    fleet: PersonalFleet, rule: PersonalRule, offer: RoundBlock, log: RoundLog, start: int, stop: int
) -> int:
    """Rounds start … stop − 1 of a block, as `play_lazy`."""
    # Fields are taken out of their tuples here: inside the loop each access would count references.
    kind, K, _, table, norms, rows, means, noise, active, _, _ = offer
    sums, counts, choices, sums_at, counts_at = log
    upper, scores, squares = np.empty(K), np.empty(K), np.empty(K)
    by_action = noise.shape[1] > 1
    lazy, estimates = fleet.lazy, fleet.estimates
    theta_hat, P = estimates.theta_hat, estimates.P
    local_Sigma, local_b, local_n = lazy.local
    own_Sigma, own_b, own_n = fleet.own
    for i in range(start, stop):
        m = active[i]
        if lazy.wants_model[m]:
            adopt(lazy, rule.lazy, m)
            stand_on(fleet, m)
            counts[1] += 1
            counts[2] += 1
        if not fleet.running[m]:
            prepare(fleet, rule, m)
        beta = beta_at(estimates, m, rule.lazy.radius, lazy.model_version[m])
        k = choose(table, rows, norms, i, K, theta_hat, P, m, False, beta, estimates.top[m], upper, scores, squares)
        if k < 0:
            return -1 - i
        r = rows[i, k] if kind == TABLE else i * K + k
        mean = means[i, k]
        reward = mean + noise[i, k if by_action else 0]
        sums[0] += best_of(means, i) - mean
        sums[1] += reward
        choices[i] = k
        gain = width_sq(lazy.W, lazy.policy[m], True, table, r)
        add_pair(local_Sigma, local_b, local_n, m, table, r, reward)
        add_pair(own_Sigma, own_b, own_n, m, table, r, reward)
        fleet.own_squares[m] += reward * reward
        is_stale = follow(estimates, m, table, r, reward)
        if is_stale or (rule.kappa < 0.0 and own_n[m] >= fleet.next_choice[m]):
            fleet.running[m] = 0
        lazy.trace[m] += gain
        lazy.gained[m] += gain
        if lazy.gained[m] >= lazy.allowed[m] * (1.0 - MARGIN) and is_due(lazy, rule.lazy, m):
            fleet.squares[0] += fleet.own_squares[m] - fleet.sent_squares[m]
            fleet.sent_squares[m] = fleet.own_squares[m]
            exchange(lazy, rule.lazy, m, counts)
            if not rule.lazy.arrival:
                stand_on(fleet, m)
        book(sums, counts, sums_at, counts_at, i)
    return stop


@inlined
def stand_on(fleet: PersonalFleet, m: int) -> None:
    """What the others know, of the model that agent m has just adopted: all of its own observations are in it."""
    server, own, others = fleet.lazy.server, fleet.own, fleet.others
    for j in range(own.Sigma.shape[1]):
        others.Sigma[m, j] = server.Sigma[0, j] - own.Sigma[m, j]
    for j in range(own.b.shape[1]):
        others.b[m, j] = server.b[0, j] - own.b[m, j]
    others.n[m] = server.n[0] - own.n[m]
    fleet.others_squares[m] = fleet.squares[0] - fleet.own_squares[m]
    fleet.grounded[m] = 0
    fleet.running[m] = 0


@inlined
def prepare(fleet: PersonalFleet, rule: PersonalRule, m: int) -> None:
    """Λ of agent m from a fresh factorisation; κ is chosen anew where it is due."""
    dim = fleet.own.b.shape[1]
    estimates = fleet.estimates
    W, spread_of = np.empty((dim, dim)), np.empty((dim, dim))
    theta = np.empty(dim)
    factorise(fleet.others.Sigma[m], W)
    gram(W, spread_of)
    solve(W, fleet.others.b[m], theta)
    is_due_now = rule.kappa < 0.0 and fleet.own.n[m] >= fleet.next_choice[m]
    if not fleet.grounded[m] or is_due_now:
        kappa = rule.kappa
        if kappa < 0.0:
            kappa = rule.first_kappa
            if fleet.own.n[m] >= rule.first_choice:
                scale = noise_of(fleet.others_squares[m], fleet.others.b[m], theta, fleet.others.n[m])
                A, c = fleet.own.Sigma[m], fleet.own.b[m]
                n, squares = fleet.own.n[m], fleet.own_squares[m]
                kappa = chosen_kappa(fleet.others.Sigma[m], theta, A, c, n, squares, scale, rule.first_kappa)
        fleet.kappa[m] = kappa
        fleet.grounded[m] = 1
    while fleet.next_choice[m] <= fleet.own.n[m]:
        fleet.next_choice[m] *= 2
    kappa = fleet.kappa[m]
    prior = fleet.prior[m]
    h = np.empty(dim)
    if kappa == 0.0:
        copy_row(fleet.others.Sigma[m], prior)
        copy_row(fleet.others.b[m], h)
    else:
        prior_of(spread_of, kappa, prior, W)
        times_packed(prior, theta, h)
    for j in range(dim):
        estimates.b[m, j] = h[j] + fleet.own.b[m, j]
    estimates.base[m] = 0.0
    log_det = factorise(added(prior, fleet.own.Sigma[m]), W)
    gram(W, estimates.P[m])
    solve(W, estimates.b[m], estimates.theta_hat[m])
    estimates.top[m] = spread(estimates.P[m])
    estimates.growth[m] = log_det
    estimates.since[m] = 0.0
    estimates.steps[m] = 0
    estimates.n_obs[m] = fleet.others.n[m] + fleet.own.n[m]
    fleet.running[m] = 1


@inner
def prior_of(spread_of: Matrix, kappa: float, prior: Vector, W: Matrix) -> float:
    """P = (Σ_o⁻¹ + κI)⁻¹, packed; returns log det P. W is overwritten."""
    dim = spread_of.shape[0]
    packed = np.empty(len(prior))
    at = 0
    for i in range(dim):
        for j in range(i + 1):
            packed[at + j] = spread_of[i, j]
        packed[at + i] += kappa
        at += i + 1
    log_det = factorise(packed, W)
    P = np.empty((dim, dim))
    gram(W, P)
    at = 0
    for i in range(dim):
        for j in range(i + 1):
            prior[at + j] = P[i, j]
        at += i + 1
    return -log_det


@inner
def noise_of(squares: float, b: Vector, theta: Vector, n_obs: int) -> float:
    """Mean squared residual of the others' fit; 0 where there are none."""
    if n_obs == 0:
        return 0.0
    explained = 0.0
    for j in range(len(b)):
        explained += b[j] * theta[j]
    return max(squares - explained, 0.0) / n_obs
