"""Rounds of Async-LinUCB: eager agents trigger their uploads, the server pushes to agents that are out of date."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedbandit.core.arrays import Matrix, Vector
from fedbandit.simulation.compiled.choose import choose
from fedbandit.simulation.compiled.eager import Estimates, beta_at, copy_estimate, follow, restart
from fedbandit.simulation.compiled.jit import inlined, kernel
from fedbandit.simulation.compiled.linear import added, copy_row, exceeds, factorise
from fedbandit.simulation.compiled.radius import RadiusTerms
from fedbandit.simulation.compiled.round_block import TABLE, RoundBlock, RoundLog, book, earn
from fedbandit.simulation.compiled.sums import Sums, add_pair, move
from fedbandit.simulation.worlds import Index


class AsyncRule(NamedTuple):
    """The numbers of Async-LinUCB, as logarithms."""

    log_gamma_up: float
    log_gamma_down: float
    radius: RadiusTerms


class AsyncFleet(NamedTuple):
    """M agents; slot M is the prior, slot M+1 what a push carries."""

    estimates: Estimates  # (M+2) slots
    born: Index  # (M,)
    order: Index  # (M,), enrolled agents in the order of their enrolment
    n_enrolled: Index  # (1,)
    enrolled: Index  # (M,)
    known: Matrix  # (M, d(d+1)/2), λI + V_g − ΔV_−j: the data that agent j has, as known to the server
    known_log_det: Vector  # (M,)
    local: Sums  # (M) buffers
    in_flight: Index  # (M,), 1 while an upload is queued at the server; its buffer is kept until then
    queue: Index  # (M,), agents with a queued upload, in order
    model_version: Index  # (M,)
    server: Sums  # (1)
    version: Index  # (1,)
    prior: Vector  # λI, packed


@kernel
def play_async(fleet: AsyncFleet, rule: AsyncRule, offer: RoundBlock, log: RoundLog, start: int, stop: int) -> int:
    """Rounds start … stop − 1 of a block, as `play_lazy`."""
    # Fields are taken out of their tuples here: inside the loop each access would count references.
    kind, K, _, table, norms, rows, means, noise, active, _, _ = offer
    sums, counts, choices, sums_at, counts_at = log
    upper, scores, squares = np.empty(K), np.empty(K), np.empty(K)
    estimates = fleet.estimates
    theta_hat, P = estimates.theta_hat, estimates.P
    prior = len(fleet.born)
    for i in range(start, stop):
        m = active[i]
        enroll(fleet.enrolled, fleet.order, fleet.n_enrolled, m)
        s = m if fleet.born[m] else prior
        beta = beta_at(estimates, s, rule.radius, fleet.model_version[m])
        k = choose(table, rows, norms, i, K, theta_hat, P, s, False, beta, estimates.top[s], upper, scores, squares)
        if k < 0:
            return -1 - i
        r = rows[i, k] if kind == TABLE else i * K + k
        reward = earn(means, noise, i, k, sums, choices)
        learn(fleet, m, table, r, reward)
        counts[2] += 1
        if exceeds(estimates.growth[m], rule.log_gamma_up):
            exchange_all(fleet, rule, m, counts)
        book(sums, counts, sums_at, counts_at, i)
    return stop


@inlined
def enroll(enrolled: Index, order: Index, n_enrolled: Index, m: int) -> None:
    """Enrol agent m at the server, unless it is enrolled already."""
    if not enrolled[m]:
        enrolled[m] = 1
        order[n_enrolled[0]] = m
        n_enrolled[0] += 1


@inlined
def learn(fleet: AsyncFleet, m: int, table: Matrix, r: int, reward: float) -> None:
    """Add row r of the table and its reward to the estimate and to the buffer."""
    assign_slot(fleet, m)
    add_pair(fleet.local.Sigma, fleet.local.b, fleet.local.n, m, table, r, reward)
    if follow(fleet.estimates, m, table, r, reward):
        restart(fleet.estimates, m, added(fleet.known[m], fleet.local.Sigma[m]))


@inlined
def assign_slot(fleet: AsyncFleet, m: int) -> None:
    """Assign a slot of its own to agent m."""
    if not fleet.born[m]:
        fleet.born[m] = 1
        copy_estimate(fleet.estimates, len(fleet.born), m)
        copy_row(fleet.prior, fleet.known[m])


@inlined
def exchange_all(fleet: AsyncFleet, rule: AsyncRule, m: int, counts: Index) -> None:
    """Merge queued uploads in order; each may cause pushes, and a push may trigger another agent's upload.

    No agent observes meanwhile, so each has at most one upload in such a sequence.
    """
    waiting = send(fleet, m, 0)
    done = 0
    while done < waiting:
        sender = fleet.queue[done]
        done += 1
        log_det = merge(fleet, sender)
        counts[0] += 1
        for place in range(fleet.n_enrolled[0]):
            j = fleet.order[place]
            if exceeds(log_det - fleet.known_log_det[j], rule.log_gamma_down):
                push(fleet, j, log_det)
                counts[1] += 1
                counts[2] += 1
                due = fleet.local.n[j] > 0 and exceeds(fleet.estimates.growth[j], rule.log_gamma_up)
                if due and not fleet.in_flight[j]:
                    waiting = send(fleet, j, waiting)


@inlined
def send(fleet: AsyncFleet, m: int, waiting: int) -> int:
    """Queue agent m's upload; its growth counts from here on. Returns the length of the queue."""
    fleet.queue[waiting] = m
    fleet.in_flight[m] = 1
    fleet.estimates.base[m] += fleet.estimates.growth[m]
    fleet.estimates.growth[m] = 0.0
    return waiting + 1


@inlined
def merge(fleet: AsyncFleet, m: int) -> float:
    """Merge an upload; returns log det of the server's sum, and puts the content of a push into slot M+1."""
    for j in range(fleet.known.shape[1]):
        fleet.known[m, j] += fleet.local.Sigma[m, j]
    fleet.known_log_det[m] = factorise(fleet.known[m], np.empty(fleet.estimates.P[m].shape))
    move(fleet.local, m, fleet.server, 0)
    fleet.version[0] += 1
    fleet.in_flight[m] = 0
    estimates, pushed = fleet.estimates, len(fleet.born) + 1
    copy_row(fleet.server.b[0], estimates.b[pushed])
    estimates.n_obs[pushed] = fleet.server.n[0]
    estimates.base[pushed] = 0.0
    restart(estimates, pushed, fleet.server.Sigma[0])
    estimates.base[pushed] = estimates.growth[pushed]
    estimates.growth[pushed] = 0.0
    return float(estimates.base[pushed])


@inlined
def push(fleet: AsyncFleet, j: int, log_det: float) -> None:
    """Agent j adopts the server's sum and keeps its own buffer on top of it."""
    estimates = fleet.estimates
    fleet.born[j] = 1
    copy_row(fleet.server.Sigma[0], fleet.known[j])
    fleet.known_log_det[j] = log_det
    fleet.model_version[j] = fleet.version[0]
    copy_estimate(estimates, len(fleet.born) + 1, j)
    if fleet.local.n[j] > 0:
        for i in range(estimates.b.shape[1]):
            estimates.b[j, i] += fleet.local.b[j, i]
        estimates.n_obs[j] += fleet.local.n[j]
        restart(estimates, j, added(fleet.known[j], fleet.local.Sigma[j]))
        if fleet.in_flight[j]:  # on its way already: growth counts from after it
            estimates.base[j] += estimates.growth[j]
            estimates.growth[j] = 0.0
