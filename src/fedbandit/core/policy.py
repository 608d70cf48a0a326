"""Probabilities of actions: inverse gap weighting, a uniform share, and how a number in [0, 1) picks an action."""

from __future__ import annotations

import math

import numpy as np

from fedbandit.core.arrays import Vector
from fedbandit.core.decision_sets import first_best


def auto_gamma(n_obs: int, n_actions: int, dim: int) -> float:
    """γ = √(n K/d) for a model of n observations: the sharper, the more it knows."""
    return math.sqrt(n_obs * n_actions / dim)


def inverse_gap(means: Vector, gamma: float) -> Vector:
    """p_k = 1/(K + γ(m_* − m_k)) for all but the best action, which gets the rest; all (K,).

    >>> inverse_gap(np.array([1.0, 0.0]), gamma=2.0)
    array([0.75, 0.25])
    """
    best = first_best(means)
    # Means within a relative 1e-12 of the best tie with it, and may be above it.
    p = 1.0 / (len(means) + gamma * np.maximum(means[best] - means, 0.0))
    p[best] = 0.0
    p[best] = 1.0 - float(np.cumsum(p)[-1])  # one after the other, as in every other engine
    return np.asarray(p)


def with_uniform_share(p: float, explore: float, n_actions: int) -> float:
    """ε/K + (1 − ε) p: the probability of an action whose policy gives way to a uniform action with probability ε."""
    return explore / n_actions + (1.0 - explore) * p


def pick(p: Vector, u: float) -> int:
    """The first k with p_0 + … + p_k > u; rounding can leave a sum a little below 1, and then the last possible one.

    >>> [pick(np.array([0.25, 0.0, 0.75]), u) for u in (0.0, 0.2, 0.25, 0.99)]
    [0, 0, 2, 2]
    """
    above = np.cumsum(p) > u
    return int(above.argmax()) if above[-1] else int(np.flatnonzero(p)[-1])
