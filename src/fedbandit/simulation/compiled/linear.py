"""Linear algebra of the kernels: the counterpart of core/ridge.py and core/growth.py.

Sums of data are kept packed: a symmetric matrix is a vector of d(d+1)/2 numbers, row by row, entry (i, j ≤ i) at
i(i+1)/2 + j. It halves their memory, and they add like vectors. What costs O(d³) unpacks first: loops over (d, d)
arrays compile to vector instructions, loops over moving offsets do not.
"""

from __future__ import annotations

import math

import numpy as np

from fedbandit.core.arrays import Matrix, Vector
from fedbandit.core.growth import MAX_GROWTH, MIN_STEPS
from fedbandit.simulation.compiled.eigenvalue_floor import floored_factor
from fedbandit.simulation.compiled.jit import inner

POWERS = 6  # multiplications that guess λ_max
SLACK = 1.0 + 1e-6  # a bound is raised by this much, far more than rounding can take from it


@inner
def exceeds(growth: float, threshold: float) -> bool:
    """growth > threshold, ties counted as not exceeding, as in core/growth.py."""
    return growth > threshold * (1.0 + 1e-12)


@inner
def is_stale(since: float, steps: int, dim: int) -> bool:
    """Whether a running inverse needs a fresh factorisation, as in core/growth.py."""
    return since > MAX_GROWTH or steps >= max(MIN_STEPS, dim)


@inner
def dim_of(packed: Vector) -> int:
    """d of a packed matrix."""
    return int((math.sqrt(8.0 * len(packed) + 1.0) - 1.0) / 2.0 + 0.5)


@inner
def copy_row(source: Vector, target: Vector) -> None:
    """target ← source."""
    for j in range(len(source)):
        target[j] = source[j]


@inner
def added(one: Vector, other: Vector) -> Vector:
    """The sum of two packed matrices."""
    total = np.empty(len(one))
    for j in range(len(one)):
        total[j] = one[j] + other[j]
    return total


@inner
def lower_of(packed: Vector) -> Matrix:
    """The lower triangle (d, d) of a packed matrix; what is above the diagonal is not set."""
    dim = dim_of(packed)
    lower = np.empty((dim, dim))
    at = 0
    for i in range(dim):
        for j in range(i + 1):
            lower[i, j] = packed[at + j]
        at += i + 1
    return lower


@inner
def factorise(Sigma: Vector, W: Matrix) -> float:
    """W (d, d) lower triangular with Wᵀ W = Σ⁻¹, Σ packed; returns log det Σ.

    Σ is brought to unit diagonal first, as in core/ridge.py; above the diagonal W is zero.
    """
    C = lower_of(Sigma)
    dim = C.shape[0]
    scale = np.empty(dim)
    log_scale = 0.0
    for i in range(dim):
        scale[i] = math.sqrt(C[i, i])
        log_scale += math.log(scale[i])
    for i in range(dim):
        for j in range(i + 1):
            C[i, j] /= scale[i] * scale[j]
    log_det = _invert_cholesky(C, W)
    if math.isnan(log_det):
        log_det = floored_factor(C, W)
    for i in range(dim):
        for j in range(i + 1):
            W[i, j] /= scale[j]
    return log_det + 2.0 * log_scale


@inner
def _invert_cholesky(C: Matrix, W: Matrix) -> float:
    """W = L⁻¹ with L Lᵀ = C; returns log det C, NaN where a pivot is not positive. C is not changed.

    Row by row: row i of W is (e_i − Σ_{k<i} L_ik · row k) / L_ii.
    """
    dim = C.shape[0]
    L = np.empty((dim, dim))
    log_det = 0.0
    for i in range(dim):
        for j in range(i):
            s = 0.0
            for k in range(j):
                s += L[i, k] * L[j, k]
            L[i, j] = (C[i, j] - s) * W[j, j]
        s = 0.0
        for k in range(i):
            s += L[i, k] * L[i, k]
        pivot = C[i, i] - s
        if not pivot > 0.0:
            return math.nan
        log_det += math.log(pivot)
        inverse = 1.0 / math.sqrt(pivot)
        for j in range(dim):
            W[i, j] = 0.0
        for k in range(i):
            lik = L[i, k] * inverse
            for j in range(k + 1):
                W[i, j] -= lik * W[k, j]
        W[i, i] = inverse
    return log_det


@inner
def solve(W: Matrix, b: Vector, theta: Vector) -> None:
    """θ̂ = Wᵀ(W b)."""
    for j in range(len(b)):
        theta[j] = 0.0
    for i in range(len(b)):
        s = 0.0
        for j in range(i + 1):
            s += W[i, j] * b[j]
        for j in range(i + 1):
            theta[j] += s * W[i, j]


@inner
def times_packed(A: Vector, x: Vector, y: Vector) -> None:
    """y = A x with A packed."""
    dim = len(x)
    for i in range(dim):
        y[i] = 0.0
    at = 0
    for i in range(dim):
        for j in range(i):
            y[i] += A[at + j] * x[j]
            y[j] += A[at + j] * x[i]
        y[i] += A[at + i] * x[i]
        at += i + 1


@inner
def gram(W: Matrix, P: Matrix) -> None:
    """P = WᵀW = Σ⁻¹."""
    for i in range(P.shape[0]):
        for j in range(i + 1):
            P[i, j] = P[j, i] = 0.0
        for k in range(i + 1):
            w = W[i, k]
            for j in range(i + 1):
                P[k, j] += w * W[i, j]


@inner
def rough_spread(W: Matrix) -> float:
    """A cheap bound ≥ √λ_max(WᵀW): ‖W‖₂² ≤ ‖W‖₁‖W‖_∞, often twice too large."""
    dim = W.shape[0]
    columns = np.zeros(dim)
    widest = 0.0
    for i in range(dim):
        s = 0.0
        for j in range(i + 1):
            s += abs(W[i, j])
            columns[j] += abs(W[i, j])
        widest = max(widest, s)
    tallest = 0.0
    for j in range(dim):
        tallest = max(tallest, columns[j])
    return math.sqrt(widest * tallest) * SLACK


@inner
def spread(P: Matrix) -> float:
    """A number ≥ √λ_max(P), seldom much larger: powers of P guess it, a Cholesky factorisation proves the guess."""
    dim = P.shape[0]
    row_sum = 0.0
    v = np.empty(dim)
    for i in range(dim):
        s = 0.0
        for j in range(dim):
            s += abs(P[i, j])
        v[i] = s
        row_sum = max(row_sum, s)
    guess = _rayleigh(P, v)
    for factor in (1.15, 1.6):
        if guess * factor >= row_sum:
            break
        if is_below(P, guess * factor):
            return math.sqrt(guess * factor) * SLACK
    return math.sqrt(row_sum) * SLACK


@inner
def _rayleigh(P: Matrix, v: Vector) -> float:
    """vᵀPv / vᵀv after some multiplications of v by P: at most λ_max, and near it."""
    dim = len(v)
    u = np.empty(dim)
    guess = 0.0
    for _ in range(POWERS):
        square = 0.0
        for j in range(dim):
            square += v[j] * v[j]
        scale = 1.0 / math.sqrt(square)
        guess = 0.0
        for i in range(dim):
            s = 0.0
            for j in range(dim):
                s += P[i, j] * v[j]
            u[i] = s * scale
            guess += s * scale * v[i] * scale
        for j in range(dim):
            v[j] = u[j]
    return guess


@inner
def is_below(A: Matrix, level: float) -> bool:
    """Whether A ≺ level·I for a symmetric A, of which the lower triangle is read: level·I − A has a Cholesky factor."""
    dim = A.shape[0]
    L = np.empty((dim, dim))
    for i in range(dim):
        for j in range(i):
            s = 0.0
            for k in range(j):
                s += L[i, k] * L[j, k]
            L[i, j] = (-A[i, j] - s) / L[j, j]
        s = 0.0
        for k in range(i):
            s += L[i, k] * L[i, k]
        pivot = level - A[i, i] - s
        if not pivot > 0.0:
            return False
        L[i, i] = math.sqrt(pivot)
    return True


@inner
def congruence(W: Matrix, Sigma: Vector) -> Matrix:
    """A = W Σ Wᵀ, (d, d), the lower triangle only; W is lower triangular, Σ packed."""
    S = lower_of(Sigma)
    dim = S.shape[0]
    A = np.empty((dim, dim))
    v = np.empty(dim)
    for i in range(dim):
        for k in range(i + 1):  # v = Σ w_i, as far as row i of W reaches; each entry of the triangle counts twice
            w = W[i, k]
            s = w * S[k, k]
            for j in range(k):
                v[j] += w * S[k, j]
                s += W[i, j] * S[k, j]
            v[k] = s
        for k in range(i + 1):
            s = 0.0
            for j in range(k + 1):
                s += v[j] * W[k, j]
            A[i, k] = s
    return A


@inner
def log_det_growth(W: Matrix, Sigma: Vector) -> float:
    """log det(I + W Σ Wᵀ) with full relative precision, also where it is tiny: pivots are kept as 1 + e."""
    A = congruence(W, Sigma)
    growth = 0.0
    for i in range(A.shape[0]):
        for j in range(i):
            s = 0.0
            for k in range(j):
                s += A[i, k] * A[j, k]
            A[i, j] = (A[i, j] - s) / A[j, j]
        s = 0.0
        for k in range(i):
            s += A[i, k] * A[i, k]
        e = max(A[i, i] - s, 0.0)
        growth += math.log1p(e)
        A[i, i] = math.sqrt(1.0 + e)
    return growth


@inner
def headroom(A: Matrix, level: float) -> float:
    """How much trace can be added to A before λ_max(A) may pass the level; negative where it has passed it."""
    if not is_below(A, level * (1.0 + 1e-12)):
        return -1.0
    room = 0.5 * level
    while room > 1e-3 * level:
        if is_below(A, level - room):
            return room
        room *= 0.5
    return 0.0
