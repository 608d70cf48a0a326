"""The optimistic choice from a decision set, with as few quadratic forms as possible.

Arrays are passed whole, with an index: slicing rows and fields costs as much as a small product.
"""

from __future__ import annotations

import math

from fedbandit.core.arrays import LARGEST, TIE, Matrix, Vector
from fedbandit.simulation.compiled.jit import inlined, inner
from fedbandit.simulation.worlds import Index


@inner
def width_sq(forms: Matrix, s: int, lower: bool, table: Matrix, r: int) -> float:
    """xᵀ Σ⁻¹ x of row r of the table, forms[s] being W, lower triangular with WᵀW = Σ⁻¹, or else Σ⁻¹ itself."""
    dim = table.shape[1]
    total = 0.0
    for i in range(dim):
        # Rows of W are read in whole vectors of four: what is above the diagonal is zero.
        end = min((i | 3) + 1, dim) if lower else dim
        y = 0.0
        for j in range(end):
            y += forms[s, i, j] * table[r, j]
        total += y * (y if lower else table[r, i])
    return max(total, 0.0)


@inlined
def choose(
    table: Matrix,
    rows: Index,
    norms: Vector,
    i: int,
    n_actions: int,
    theta_hat: Matrix,
    forms: Matrix,
    s: int,
    lower: bool,
    beta: float,
    top: float,
    upper: Vector,
    scores: Vector,
    squares: Vector,
) -> int:
    """The optimistic action of round i under policy s; −1 where the best score is NaN or too large.

    ⟨θ̂,x⟩ + β‖x‖·top bounds a score from above, top ≥ √λ_max(Σ⁻¹). The most promising action is evaluated first, and
    then only those whose bound reaches the best so far. `squares` (K,) holds xᵀΣ⁻¹x of those. With rows (n, K) the
    actions are rows of a table of known norms; without, round i has its own K rows.
    """
    first = bound_all(table, rows, norms, i, n_actions, theta_hat, s, beta * top, upper, scores)
    start = i * n_actions
    listed = rows.shape[0] > 0
    r = rows[i, first] if listed else start + first
    squares[first] = width_sq(forms, s, lower, table, r)
    best = scores[first] + beta * math.sqrt(squares[first])
    mean = scores[first]
    n_rivals = 0
    for k in range(n_actions):
        # Written so that a NaN is evaluated too, and found below.
        if k != first and not upper[k] < best - 2.0 * TIE * abs(best):
            r = rows[i, k] if listed else start + k
            squares[k] = width_sq(forms, s, lower, table, r)
            upper[k] = scores[k] + beta * math.sqrt(squares[k])
            n_rivals += 1
            if not upper[k] <= best:
                best = upper[k]
        else:
            upper[k] = -math.inf
    upper[first] = mean + beta * math.sqrt(squares[first])
    chosen = first
    if not abs(best) <= LARGEST:
        chosen = -1
    elif n_rivals > 0:
        chosen = first_best(upper, best, n_actions)
    return chosen


@inner
def bound_all(
    table: Matrix,
    rows: Index,
    norms: Vector,
    i: int,
    n_actions: int,
    theta_hat: Matrix,
    s: int,
    reach: float,
    upper: Vector,
    means: Vector,
) -> int:
    """⟨θ̂,x⟩ of each action in `means`, ⟨θ̂,x⟩ + reach·‖x‖ in `upper`; returns where that is largest."""
    first = 0
    dim = table.shape[1]
    if rows.shape[0] > 0:
        for k in range(n_actions):
            r = rows[i, k]
            mean = 0.0
            for j in range(dim):
                mean += table[r, j] * theta_hat[s, j]
            means[k] = mean
            upper[k] = norms[r]
    else:
        for k in range(n_actions):
            r = i * n_actions + k
            mean = 0.0
            square = 0.0
            for j in range(dim):
                mean += table[r, j] * theta_hat[s, j]
                square += table[r, j] * table[r, j]
            means[k] = mean
            upper[k] = square
        for k in range(n_actions):
            upper[k] = math.sqrt(upper[k])
    for k in range(n_actions):
        upper[k] = means[k] + reach * upper[k]
    for k in range(n_actions):
        if upper[k] > upper[first]:
            first = k
    return first


@inner
def first_best(scores: Vector, best: float, n_actions: int) -> int:
    """The lowest index among the scores within a relative 1e-12 of the best, as in core/decision_sets.py."""
    least = best - TIE * abs(best)
    for k in range(n_actions):
        if scores[k] >= least:
            return k
    return -1


@inlined
def choose_known(
    table: Matrix,
    rows: Index,
    norms: Vector,
    i: int,
    n_actions: int,
    theta_hat: Matrix,
    W: Matrix,
    s: int,
    beta: float,
    top: float,
    value: Matrix,
    square: Matrix,
) -> int:
    """`choose` for a table and frozen policies, which cache what is known about each row.

    value[s, r] is a row's score where square[s, r], its xᵀΣ⁻¹x, is a number; else a bound on it; NaN is unknown.
    """
    first = 0
    lead = -math.inf
    for k in range(n_actions):
        r = rows[i, k]
        if math.isnan(value[s, r]):
            value[s, r] = mean_of(table, r, theta_hat, s) + beta * top * norms[r]
        if value[s, r] > lead:
            lead = value[s, r]
            first = k
    best = -math.inf
    for n in range(n_actions + 1):  # the most promising first, then all
        r = rows[i, first if n == 0 else n - 1]
        if value[s, r] < best - 2.0 * TIE * abs(best):
            continue
        if math.isnan(square[s, r]):
            square[s, r] = width_sq(W, s, True, table, r)
            value[s, r] = mean_of(table, r, theta_hat, s) + beta * math.sqrt(square[s, r])
        if not value[s, r] <= best:
            best = value[s, r]
    least = best - TIE * abs(best)
    chosen = -1
    if abs(best) <= LARGEST:
        for k in range(n_actions):
            r = rows[i, k]
            if value[s, r] >= least and not math.isnan(square[s, r]):
                chosen = k
                break
    return chosen


@inlined
def mean_of(table: Matrix, r: int, theta_hat: Matrix, s: int) -> float:
    """⟨θ̂, x⟩ of row r under policy s."""
    mean = 0.0
    for j in range(table.shape[1]):
        mean += table[r, j] * theta_hat[s, j]
    return mean
