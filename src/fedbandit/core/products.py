"""Products and factorisations in pieces that are too small for a BLAS library to use its threads.

A BLAS that splits a product over threads waits for the slowest of them. In an application whose processors are busy
that one may not run for milliseconds, and every other thread that calls BLAS meanwhile waits, too: with OpenBLAS, two
threads and two busy processors, one factorisation at d = 128 took 30 ms instead of 1. How many threads BLAS uses is a
setting of the whole process, which belongs to the application. So nothing here changes it, and nothing here is large
enough to be split: OpenBLAS uses one thread up to m·n·k = 2¹⁸ for a matrix product and 9 216 numbers for a matrix times
a vector. Each piece also releases the interpreter's lock, so other Python threads run in between; the
background thread of a live agent pauses there, because a thread that waits for the lock rarely wakes up during a piece.
"""

from __future__ import annotations

import numpy as np

from fedbandit.core.arrays import Matrix, Vector
from fedbandit.pauses import pause_point

BLOCK = 64
MAX_WORK = BLOCK**3  # m·n·k of one piece
WORTH_S = 0.5e-6  # of work before a pause, for each column: the calls that wait for it take longer as well
MAX_ENTRIES = 8192  # of a matrix times a vector


def times_vector(A: Matrix, x: Vector) -> Vector:
    """A x, (m,)."""
    # vecdot is one dot product for each row, which stays in this thread.
    return A @ x if A.size <= MAX_ENTRIES else np.vecdot(A, x)


def product(A: Matrix, B: Matrix) -> Matrix:
    """A B, (m, n).

    >>> A = np.arange(40_000.0).reshape(200, 200)
    >>> bool(np.allclose(product(A, A.T), A @ A.T))
    True
    """
    (m, k), n = A.shape, B.shape[1]
    if m * n * k <= MAX_WORK:
        return A @ B
    C = np.empty((m, n))
    for i in range(0, m, BLOCK):
        for j in range(0, n, BLOCK):
            _tile(A[i : i + BLOCK], B[:, j : j + BLOCK], C[i : i + BLOCK, j : j + BLOCK])
            pause_point(n * WORTH_S)
    return C


def gram(A: Matrix, out: Matrix | None = None) -> Matrix:
    """Aᵀ A, (n, n), symmetric to the last bit."""
    k, n = A.shape
    if n * n * k <= MAX_WORK:
        return np.matmul(A.T, A, out=out)
    C = np.empty((n, n)) if out is None else out
    for i in range(0, n, BLOCK):
        for j in range(i, n, BLOCK):
            _tile(A[:, i : i + BLOCK].T, A[:, j : j + BLOCK], C[i : i + BLOCK, j : j + BLOCK])
            pause_point(n * WORTH_S)
            if j > i:
                C[j : j + BLOCK, i : i + BLOCK] = C[i : i + BLOCK, j : j + BLOCK].T
    return C


def inverse_root(A: Matrix) -> tuple[Matrix, float]:
    """W = L⁻¹ with A = L Lᵀ, so that Wᵀ W = A⁻¹, and log det A; `LinAlgError` unless A is positive definite.

    By halves: with A = [[P, Qᵀ], [Q, R]] and W₁ = root of P, the rest is the root W₂ of R − (Q W₁ᵀ)(Q W₁ᵀ)ᵀ.
    """
    n = len(A)
    if n <= BLOCK:
        L = np.linalg.cholesky(A)
        pause_point()
        return np.linalg.inv(L), 2.0 * float(np.log(np.diagonal(L)).sum())
    half = (n // 2 + BLOCK - 1) // BLOCK * BLOCK
    first, log_det_first = inverse_root(A[:half, :half])
    across = product(A[half:, :half], first.T)
    rest, log_det_rest = inverse_root(A[half:, half:] - gram(across.T))
    W = np.zeros((n, n))
    W[:half, :half] = first
    W[half:, half:] = rest
    W[half:, :half] = -product(product(rest, across), first)
    return W, log_det_first + log_det_rest


def _tile(A: Matrix, B: Matrix, C: Matrix) -> None:
    """C ← A B, along the inner dimension in pieces."""
    k = A.shape[1]
    step = max(MAX_WORK // (A.shape[0] * B.shape[1]), 1)
    np.matmul(A[:, :step], B[:step], out=C)
    for at in range(step, k, step):
        C += A[:, at : at + step] @ B[at : at + step]
