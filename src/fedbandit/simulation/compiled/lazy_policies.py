"""Lazy rules whose policy draws at random: the rounds of lazy.py with another choice, and the reference's numbers."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedbandit.algorithms.fedlinucb import FedLinUCB
from fedbandit.algorithms.oful import OFUL
from fedbandit.algorithms.policies import POLICIES
from fedbandit.core.arrays import LARGEST, Matrix, Vector
from fedbandit.core.counter_random import FIRST, GAMMA, SECOND, TO_UNIT, key_of
from fedbandit.simulation.compiled.choose import choose, first_best, mean_of, width_sq
from fedbandit.simulation.compiled.jit import inlined, inner, kernel
from fedbandit.simulation.compiled.lazy import LASTING, MARGIN, LazyFleet, LazyRule, adopt, exchange, is_due
from fedbandit.simulation.compiled.linear import gram, spread
from fedbandit.simulation.compiled.round_block import TABLE, RoundBlock, RoundLog, book, earn
from fedbandit.simulation.compiled.sums import add_pair
from fedbandit.simulation.runner import incarnation_of
from fedbandit.simulation.worlds import Index

UCB, INVERSE_GAP, THOMPSON = range(len(POLICIES))
STEP, MIX_FIRST, MIX_SECOND = np.uint64(GAMMA), np.uint64(FIRST), np.uint64(SECOND)
ONE, S11, S27, S30, S31 = (np.uint64(n) for n in (1, 11, 27, 30, 31))
Keys = NDArray[np.uint64]


class DrawingRule(NamedTuple):
    """The numbers of a lazy rule and of its policy."""

    lazy: LazyRule
    policy: int
    explore: float
    control: float  # share of uniform decisions in the control group
    gamma: float  # below 0: √(n K/d)


class DrawingFleet(NamedTuple):
    """M agents, their server, and what their draws depend on."""

    lazy: LazyFleet
    exploring: Keys  # (M,), of the draws that decide whether to explore, and what
    deciding: Keys  # (M,), of the policy's own draws
    controlling: Keys  # (M,), of the draws that decide whether a decision is in the control group, and what it is
    n_decisions: Index  # (M,)
    n_obs: Index  # (M,), observations behind each agent's model


def drawing_rule(rule: FedLinUCB | OFUL, lazy: LazyRule) -> DrawingRule:
    """The numbers of a rule."""
    gamma = -1.0 if isinstance(rule.gamma, str) else float(rule.gamma)
    return DrawingRule(lazy, POLICIES.index(rule.policy), rule.explore, rule.control, gamma)


def drawing_fleet(rule: FedLinUCB | OFUL, lazy: LazyFleet, seed: int) -> DrawingFleet:
    """A fresh fleet in a run with this seed."""
    M = len(lazy.policy)

    def keys(purpose: str) -> Keys:
        whose = (key_of(rule.policy_seed, str(m), incarnation_of(seed), purpose) for m in range(M))
        return np.fromiter(whose, dtype=np.uint64, count=M)

    drawn = keys("explore"), keys("policy"), keys("control")
    return DrawingFleet(lazy, *drawn, np.zeros(M, dtype=np.int64), np.zeros(M, dtype=np.int64))


@kernel
def play_drawing(
    fleet: DrawingFleet, rule: DrawingRule, offer: RoundBlock, log: RoundLog, start: int, stop: int
) -> int:
    """Rounds start … stop − 1 of a block, as `play_lazy`; finite decision sets only."""
    kind, K, _, table, norms, rows, means, noise, active, _, _ = offer
    sums, counts, choices, sums_at, counts_at = log
    upper, scores, squares = np.empty(K), np.empty(K), np.empty(K)
    lazy = fleet.lazy
    theta_hat, W = lazy.theta_hat, lazy.W
    theta = np.empty((1, theta_hat.shape[1]))
    local_Sigma, local_b, local_n = lazy.local
    for i in range(start, stop):
        m = active[i]
        s = m if rule.lazy.alone else 0
        if lazy.wants_model[m]:
            adopt(lazy, rule.lazy, m)
            fleet.n_obs[m] = lazy.server.n[s]
            counts[1] += 1
            counts[2] += 1
        p = lazy.policy[m]
        beta, top = lazy.beta[p], lazy.top[p]
        seed = output(fleet.deciding[m], fleet.n_decisions[m])
        if rule.policy == INVERSE_GAP:
            k = draw_by_gap(table, rows, i, K, theta_hat, p, gamma_of(rule, fleet.n_obs[m], K, table), seed, scores)
        elif rule.policy == THOMPSON:
            sample_theta(theta_hat, W, p, beta, seed, theta)
            k = best_mean(table, rows, i, K, theta, 0, scores)
        else:
            k = choose(table, rows, norms, i, K, theta_hat, W, p, True, beta, top, upper, scores, squares)
        if k < 0:
            return -1 - i
        if rule.explore > 0.0:
            seed = output(fleet.exploring[m], fleet.n_decisions[m])
            if uniform(seed, 0) < rule.explore:
                k = min(int(uniform(seed, 1) * K), K - 1)
        if rule.control > 0.0:
            seed = output(fleet.controlling[m], fleet.n_decisions[m])
            if uniform(seed, 0) < rule.control:
                k = min(int(uniform(seed, 1) * K), K - 1)
        fleet.n_decisions[m] += 1
        r = rows[i, k] if kind == TABLE else i * K + k
        gain = width_sq(W, p, True, table, r)
        reward = earn(means, noise, i, k, sums, choices)
        add_pair(local_Sigma, local_b, local_n, m, table, r, reward)
        if local_n[m] == LASTING:
            P = np.empty(W.shape[1:])
            gram(W[p], P)
            lazy.top[p] = min(top, spread(P))
        lazy.trace[m] += gain
        lazy.gained[m] += gain
        if lazy.gained[m] >= lazy.allowed[m] * (1.0 - MARGIN) and is_due(lazy, rule.lazy, m):
            exchange(lazy, rule.lazy, m, counts)
            if not rule.lazy.arrival:
                fleet.n_obs[m] = lazy.server.n[s]
        book(sums, counts, sums_at, counts_at, i)
    return stop


@inner
def output(seed: np.uint64, n: int) -> np.uint64:
    """Output n of SplitMix64, as in core/counter_random.py."""
    z = seed + (np.uint64(n) + ONE) * STEP
    z = (z ^ (z >> S30)) * MIX_FIRST
    z = (z ^ (z >> S27)) * MIX_SECOND
    return z ^ (z >> S31)


@inner
def uniform(seed: np.uint64, i: int) -> float:
    """Draw i of the decision with this seed, in [0, 1)."""
    return float(output(seed, i) >> S11) * TO_UNIT


@inner
def gamma_of(rule: DrawingRule, n_obs: int, n_actions: int, table: Matrix) -> float:
    """γ as it is, or √(n K/d)."""
    return rule.gamma if rule.gamma >= 0.0 else math.sqrt(n_obs * n_actions / table.shape[1])


@inlined
def best_mean(table: Matrix, rows: Index, i: int, n_actions: int, theta: Matrix, s: int, scores: Vector) -> int:
    """The action of round i with the largest ⟨θ_s, x⟩, the scores of all in `scores`; −1 where one is not finite."""
    best = -math.inf
    total = 0.0
    for k in range(n_actions):
        r = rows[i, k] if rows.shape[0] > 0 else i * n_actions + k
        scores[k] = mean_of(table, r, theta, s)
        total += abs(scores[k])
        if scores[k] > best:
            best = scores[k]
    return first_best(scores, best, n_actions) if total <= LARGEST else -1


@inlined
def draw_by_gap(
    table: Matrix,
    rows: Index,
    i: int,
    n_actions: int,
    theta_hat: Matrix,
    s: int,
    gamma: float,
    seed: np.uint64,
    scores: Vector,
) -> int:
    """The action of round i by inverse gap weighting, as `inverse_gap` and `pick` of core/policy.py."""
    best = best_mean(table, rows, i, n_actions, theta_hat, s, scores)
    chosen = -1
    if best >= 0:
        most = scores[best]
        others = 0.0
        for k in range(n_actions):
            scores[k] = 1.0 / (n_actions + gamma * max(most - scores[k], 0.0))
            if k != best:
                others += scores[k]
        scores[best] = 1.0 - others
        chosen = pick(scores, uniform(seed, 0), n_actions)
    return chosen


@inner
def pick(p: Vector, u: float, n_actions: int) -> int:
    """The first k with p_0 + … + p_k > u, or the last possible one."""
    total = 0.0
    last = 0
    for k in range(n_actions):
        total += p[k]
        if total > u:
            return k
        if p[k] > 0.0:
            last = k
    return last


@inner
def sample_theta(theta_hat: Matrix, W: Matrix, s: int, beta: float, seed: np.uint64, theta: Matrix) -> None:
    """θ = θ̂ + β Wᵀ z into theta[0], z the normals of the decision with this seed."""
    dim = theta_hat.shape[1]
    for j in range(dim):
        theta[0, j] = theta_hat[s, j]
    for i in range(dim):
        first = i - i % 2
        radius = math.sqrt(-2.0 * math.log(1.0 - uniform(seed, first)))
        angle = 2.0 * math.pi * uniform(seed, first + 1)
        z = radius * (math.cos(angle) if i % 2 == 0 else math.sin(angle))
        for j in range(i + 1):
            theta[0, j] += beta * z * W[s, i, j]
