"""Outlying agents: each tested against all others by Chow's test with Holm's correction, the worst one first."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedbandit.core.arrays import Matrix, Vector
from fedbandit.experiments.advice.homogeneity import LEAST_FREEDOM, LEVEL, Fit


@dataclass(frozen=True, slots=True)
class Outliers:
    """Agents that do not follow the others, and the p-value with which each was found.

    Without a `core`, too few agents remain to define a common parameter: agents follow parameters of their own.
    """

    agents: tuple[int, ...]
    p_values: tuple[float, ...]
    core: bool


def outliers(fit: Fit, *, level: float = LEVEL) -> Outliers:
    """Remove the agent that fits the others worst, as long as Holm's test finds one."""
    sums = _Sums(fit)
    kept = list(range(fit.n_agents))
    found: list[tuple[int, float]] = []
    while len(kept) >= 3:
        p = np.array([sums.p_value(m, [k for k in kept if k != m]) for m in kept])
        worst = int(p.argmin())
        adjusted = min(1.0, float(p[worst]) * len(kept))
        if adjusted >= level:
            break
        found.append((kept.pop(worst), adjusted))
    if fit.n_agents == 2:
        p_two = sums.p_value(0, [1])
        found = [(0, p_two), (1, p_two)] if p_two < level else []
        kept = [] if found else kept
    core = len(kept) >= max(2, -(-2 * fit.n_agents // 3)) or not found
    return Outliers(tuple(m for m, _ in found), tuple(p for _, p in found), core)


class _Sums:
    """Sums of squares by agent, so that any group's fit costs one small solve."""

    def __init__(self, fit: Fit) -> None:
        self.fit = fit
        self.A = np.stack([fit.Z[part].T @ fit.Z[part] for part in fit.parts])
        self.c = np.stack([fit.Z[part].T @ fit.y[part] for part in fit.parts])
        self.yy = np.array([fit.y[part] @ fit.y[part] for part in fit.parts])
        self.ranks = np.array([basis.shape[1] for basis in fit.own_bases])
        own = np.array([self._left(self.A[m], self.c[m], self.yy[m]) for m in range(fit.n_agents)])
        self.own: Vector = np.where(fit.counts > self.ranks, own, 0.0)

    def p_value(self, agent: int, others: list[int]) -> float:
        """Chow's test of one agent against others, with the larger of its own noise and that of all agents."""
        from scipy import stats

        A, c, yy = self.A[others].sum(axis=0), self.c[others].sum(axis=0), float(self.yy[others].sum())
        apart = self._left(A, c, yy) + float(self.own[agent])
        together = self._left(A + self.A[agent], c + self.c[agent], yy + float(self.yy[agent]))
        freedom = int(self.fit.counts[agent] - self.ranks[agent])
        variance = self.fit.noise**2
        if freedom >= LEAST_FREEDOM:
            variance = max(variance, float(self.own[agent]) / freedom)
        rank = max(int(self.ranks[agent]), 1)
        value = max(together - apart, 0.0) / rank / variance
        within = max(self.fit.freedom[1], LEAST_FREEDOM)
        return float(stats.f.sf(value, rank, within))

    def _left(self, A: Matrix, c: Vector, yy: float) -> float:
        """Σ squares that least squares leaves."""
        values, vectors = np.linalg.eigh(A)
        usable = values > 1e-9 * max(float(values[-1]), 1e-300)
        inside = (vectors[:, usable].T @ c) / np.sqrt(values[usable])
        return max(float(yy - inside @ inside), 0.0)
