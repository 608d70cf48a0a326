"""The compiled fleet of FedLinUCB with `drift` or `max_silence`: its initial state and its numbers."""

from __future__ import annotations

import math

import numpy as np

from fedbandit.algorithms.fedlinucb import FedLinUCB
from fedbandit.core.arrays import Vector
from fedbandit.core.chi_square import upper_quantile
from fedbandit.core.drift import OLD, Discount, Restart
from fedbandit.core.statistics import packed_length
from fedbandit.simulation.compiled.drift import DriftFleet, DriftRule
from fedbandit.simulation.compiled.lazy import LazyFleet, LazyRule
from fedbandit.simulation.compiled.sums import Sums


def needs_drift_kernel(rule: object) -> bool:
    """Whether a rule does anything about time."""
    return isinstance(rule, FedLinUCB) and (rule.drift is not None or not math.isinf(rule.max_silence))


def drift_rule(rule: FedLinUCB, lazy: LazyRule) -> DriftRule:
    """The numbers of the rule."""
    drift = rule.drift
    detects = drift if isinstance(drift, Restart) else Restart(1.0)
    horizon = drift.horizon if isinstance(drift, Discount) else math.inf
    return DriftRule(
        lazy=lazy,
        max_silence=float(rule.max_silence),
        old=OLD * horizon,
        horizon=float(horizon),
        discounts=isinstance(drift, Discount),
        detects=isinstance(drift, Restart),
        noise_scale=detects.noise_scale,
        lam=rule.lam,
        theta_bound=detects.theta_bound,
        roots=_roots(detects.false_alarm, rule.dim),
        n_levels=detects.n_levels,
        agent_block=detects.agent_block,
        server_block=detects.server_block,
    )


def _roots(false_alarm: float, dim: int) -> Vector:
    return np.array([0.0, *(math.sqrt(upper_quantile(false_alarm, k)) for k in range(1, dim + 1))])


def drift_fleet(rule: FedLinUCB, numbers: DriftRule, lazy: LazyFleet, prior: Vector, M: int) -> DriftFleet:
    """A fleet at the prior, in its first epoch."""
    dim = rule.dim
    n_blocks = (M + 1) * numbers.n_levels if numbers.detects else 1
    return DriftFleet(
        lazy=lazy,
        prior=prior,
        sums=_no_sums(1, dim),
        epoch=np.zeros(M + 1, dtype=np.int64),
        clock=np.zeros(M + 1, dtype=np.int64),
        rounds=np.zeros(M, dtype=np.int64),
        alarm=np.zeros(M, dtype=np.int64),
        due_at=np.full(M, numbers.max_silence),
        silence_due=np.full(M, numbers.max_silence),
        age_due=np.full(M, math.inf),
        seen=np.full((M, 2), -1, dtype=np.int64),
        rate=np.zeros((M, 2)),
        blocks=_no_sums(n_blocks, dim),
        started=np.zeros(n_blocks, dtype=np.int64),
        W=np.zeros((n_blocks, dim, dim)),
        theta_hat=np.zeros((n_blocks, dim)),
    )


def _no_sums(n: int, dim: int) -> Sums:
    return Sums(np.zeros((n, packed_length(dim))), np.zeros((n, dim)), np.zeros(n, dtype=np.int64))
