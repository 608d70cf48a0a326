"""Products with a matrix that is dense, (d, d), or has the blocks (K, p, p) of a block-diagonal one."""

from __future__ import annotations

import numpy as np

from fedbandit.core.arrays import Matrix, Vector
from fedbandit.core.products import gram, inverse_root, times_vector


def times(A: Matrix, x: Vector) -> Vector:
    """A x, (d,).

    >>> times(np.array([[[2.0]], [[3.0]]]), np.array([1.0, 10.0]))
    array([ 2., 30.])
    """
    if A.ndim == 2:
        return times_vector(A, x)
    return np.asarray(np.vecdot(A, x.reshape(len(A), 1, A.shape[-1]))).reshape(-1)


def transposed(A: Matrix) -> Matrix:
    """Aᵀ, a view."""
    return A.swapaxes(-1, -2)


def squared(A: Matrix) -> Matrix:
    """Aᵀ A."""
    return gram(A) if A.ndim == 2 else transposed(A) @ A


def root(A: Matrix) -> Matrix:
    """W, lower triangular, with Wᵀ W = A⁻¹; `LinAlgError` unless A is positive definite."""
    return inverse_root(A)[0] if A.ndim == 2 else np.linalg.inv(np.linalg.cholesky(A))
