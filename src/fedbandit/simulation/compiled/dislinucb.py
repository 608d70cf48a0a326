"""Rounds of DisLinUCB: eager between synchronisations; agents without observations since share one estimate."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedbandit.core.arrays import Matrix
from fedbandit.simulation.compiled.choose import choose
from fedbandit.simulation.compiled.eager import Estimates, beta_at, copy_estimate, follow, restart
from fedbandit.simulation.compiled.jit import inlined, kernel
from fedbandit.simulation.compiled.linear import added, copy_row, exceeds
from fedbandit.simulation.compiled.radius import RadiusTerms
from fedbandit.simulation.compiled.round_block import TABLE, RoundBlock, RoundLog, book, earn
from fedbandit.simulation.compiled.sums import Sums, add_pair, move
from fedbandit.simulation.worlds import Index


class DisRule(NamedTuple):
    """The numbers of DisLinUCB."""

    threshold: float
    by_global_clock: bool
    radius: RadiusTerms


class DisFleet(NamedTuple):
    """M agents; slot M is the shared estimate of the last synchronisation, slot M+1 the prior."""

    estimates: Estimates  # (M+2) slots
    enrolled: Index  # (M,), 1 for agents that take part in the next synchronisation
    synchronised: Index  # (M,), 1 for agents that have the shared estimate
    local: Sums  # (M) buffers since the last synchronisation; an agent with an empty one uses slot M, or M+1
    server: Sums  # (1)
    version: Index  # (1,)
    prior: Matrix  # (1, d(d+1)/2), λI, packed
    clock: Index  # (2,), the round that is played, and that of the last synchronisation


@kernel
def play_dislinucb(fleet: DisFleet, rule: DisRule, offer: RoundBlock, log: RoundLog, start: int, stop: int) -> int:
    """Rounds start … stop − 1 of a block, as `play_lazy`."""
    # Fields are taken out of their tuples here: inside the loop each access would count references.
    kind, K, _, table, norms, rows, means, noise, active, _, _ = offer
    sums, counts, choices, sums_at, counts_at = log
    upper, scores, squares = np.empty(K), np.empty(K), np.empty(K)
    estimates, local = fleet.estimates, fleet.local
    theta_hat, P = estimates.theta_hat, estimates.P
    shared = len(fleet.local.n)
    for i in range(start, stop):
        m = active[i]
        fleet.clock[0] += 1
        fleet.enrolled[m] = 1
        base = shared if fleet.synchronised[m] else shared + 1
        s = m if local.n[m] > 0 else base
        beta = beta_at(estimates, s, rule.radius, fleet.version[0] if fleet.synchronised[m] else 0)
        k = choose(table, rows, norms, i, K, theta_hat, P, s, False, beta, estimates.top[s], upper, scores, squares)
        if k < 0:
            return -1 - i
        r = rows[i, k] if kind == TABLE else i * K + k
        reward = earn(means, noise, i, k, sums, choices)
        if local.n[m] == 0:
            copy_estimate(estimates, base, m)
        add_pair(local.Sigma, local.b, local.n, m, table, r, reward)
        if follow(estimates, m, table, r, reward):
            known = fleet.server.Sigma[0] if fleet.synchronised[m] else fleet.prior[0]
            restart(estimates, m, added(known, local.Sigma[m]))
        counts[2] += 1
        # An agent that has never been synchronised counts from the first round on.
        last = fleet.clock[1] if fleet.synchronised[m] else 0
        n_since = fleet.clock[0] - last if rule.by_global_clock else local.n[m]
        if exceeds(estimates.growth[m] * n_since, rule.threshold):
            synchronise(fleet, counts)
            fleet.clock[1] = fleet.clock[0]
        book(sums, counts, sums_at, counts_at, i)
    return stop


@inlined
def synchronise(fleet: DisFleet, counts: Index) -> None:
    """All enrolled agents upload and download; an empty upload is all zeros and need not be added."""
    estimates = fleet.estimates
    n_agents = len(fleet.local.n)
    n_enrolled = 0
    for m in range(n_agents):
        if fleet.enrolled[m]:
            n_enrolled += 1
            fleet.synchronised[m] = 1
        if fleet.local.n[m] > 0:
            move(fleet.local, m, fleet.server, 0)
    copy_row(fleet.server.b[0], estimates.b[n_agents])
    estimates.n_obs[n_agents] = fleet.server.n[0]
    restart(estimates, n_agents, fleet.server.Sigma[0])
    estimates.base[n_agents] += estimates.growth[n_agents]
    estimates.growth[n_agents] = 0.0
    fleet.version[0] += n_enrolled
    for j in range(3):
        counts[j] += n_enrolled
