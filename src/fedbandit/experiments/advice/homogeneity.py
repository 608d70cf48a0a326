"""Tests of homogeneity and linearity: one parameter for all agents, the power of the test, the spread of agents.

All in whitened features z (mean of z zᵀ over the log is I), in which an agent's own parameter differs from the common
one by u_m. The spread h is the standard deviation of ⟨u_m, z⟩ in units of the noise. Null distributions come from the
wild bootstrap (each residual keeps its size and takes a random sign), so that the tests stay valid for rewards of 0 and
1 and for noise that differs between agents.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from fedbandit.core.arrays import Matrix, Vector
from fedbandit.errors import InvalidInput
from fedbandit.experiments.advice.log import DecisionData

N_BOOTSTRAP, N_POWER = 399, 150
SPREADS = (0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5)
LEVEL = 0.05
CHUNK = 64
RANK_TOLERANCE = 1e-9
LEAST_FREEDOM = 20  # residual degrees of freedom from which an estimate of the noise is used


@dataclass(frozen=True, slots=True)
class CommonTest:
    """Is one θ enough for all? `p_value` is Bonferroni's over Chow's F and a score test that also sees small agents."""

    p_value: float
    p_chow: float
    p_score: float
    power: dict[float, float]  # spread -> probability that this log would show it
    power_at_break_even: float

    @property
    def differs(self) -> bool:
        """Whether agents differ beyond chance."""
        return self.p_value < LEVEL


@dataclass(frozen=True, slots=True)
class Curvature:
    """Whether nonlinear terms explain what the linear model left: a p-value, and the share of the rest they explain."""

    p_value: float
    share: float

    @property
    def is_significant(self) -> bool:
        """Beyond chance, and by enough to matter."""
        return self.p_value < 0.01 and self.share > 0.01


class Fit:
    """A log in whitened features, rows sorted by agent, with the sums that all tests share."""

    def __init__(self, log: DecisionData) -> None:
        if len(log) < 3 * log.n_agents or len(log) < 30:
            raise InvalidInput(
                f"expected at least 30 decisions and 3 per agent, got {len(log)} of {log.n_agents} agents"
            )
        order = np.argsort(log.agents, kind="stable")
        X, self.y, self.agents = log.x[order], log.rewards[order], log.agents[order]
        self.n_agents = log.n_agents
        starts = np.searchsorted(self.agents, np.arange(self.n_agents + 1))
        self.parts = [slice(a, b) for a, b in pairwise(starts.tolist())]
        self.counts = np.diff(starts)
        if not X.any():
            raise InvalidInput("expected features that are not all 0")
        U, S, Vt = np.linalg.svd(X, full_matrices=False)
        kept = S / S[0] > RANK_TOLERANCE
        self.n = len(X)
        self.basis = U[:, kept]
        self.Z = self.basis * math.sqrt(self.n)
        self.back = Vt[kept].T * (math.sqrt(self.n) / S[kept])  # from whitened parameters to those of the features
        self.rank = int(kept.sum())
        self.theta = self.Z.T @ self.y / self.n
        self.residuals = self.y - self.Z @ self.theta

    @cached_property
    def own_bases(self) -> list[Matrix]:
        """An orthonormal basis of each agent's columns, (n_m, r_m)."""
        bases = []
        for part in self.parts:
            U, S, _ = np.linalg.svd(self.Z[part], full_matrices=False)
            bases.append(U[:, S / max(S[0], 1e-300) > RANK_TOLERANCE])
        return bases

    @cached_property
    def freedom(self) -> tuple[int, int]:
        """Parameters that own models have beyond the common one, and what is left for the noise."""
        total = sum(basis.shape[1] for basis in self.own_bases)
        return max(total - self.rank, 0), self.n - total

    @cached_property
    def noise(self) -> float:
        """Standard deviation of the noise: within agents if degrees of freedom remain, else around the common model."""
        _, within = self.freedom
        rss_common, rss_own, _ = self.statistics(self.residuals[:, None])
        if within >= LEAST_FREEDOM:
            return max(math.sqrt(float(rss_own[0]) / within), 1e-12)
        return max(math.sqrt(float(rss_common[0]) / max(self.n - self.rank, 1)), 1e-12)

    def statistics(self, E: Matrix) -> tuple[Vector, Vector, Vector]:
        """For each column of errors (n, B): Σ squares left by the common model, by own models, and the score."""
        total = np.einsum("ij,ij->j", E, E)
        rest = E - self.basis @ (self.basis.T @ E)
        common = np.einsum("ij,ij->j", rest, rest)
        explained, score = np.zeros(E.shape[1]), np.zeros(E.shape[1])
        for part, basis in zip(self.parts, self.own_bases, strict=True):
            inside = basis.T @ E[part]
            explained += np.einsum("ij,ij->j", inside, inside)
            pull = self.Z[part].T @ rest[part]
            score += np.einsum("ij,ij->j", pull, pull)
        return common, np.maximum(total - explained, 0.0), score

    def ratios(self, E: Matrix) -> tuple[Vector, Vector]:
        """Chow's F (0 where agents leave no freedom) and the score relative to the noise, for each column."""
        between, within = self.freedom
        common, own, score = self.statistics(E)
        if between > 0 and within >= LEAST_FREEDOM:
            chow = np.maximum(common - own, 0.0) / between / np.maximum(own / within, 1e-300)
        else:
            chow = np.zeros(E.shape[1])
        return chow, score / np.maximum(common, 1e-300)

    @cached_property
    def spread(self) -> float:
        """ĥ by moments: what the common model leaves beyond own models, less what chance explains."""
        between, _ = self.freedom
        common, own, _ = self.statistics(self.residuals[:, None])
        room = float((self.counts * (1.0 - self.counts / self.n)).sum())
        excess = (float(common[0] - own[0]) / self.noise**2 - between) / max(room, 1e-12)
        return math.sqrt(max(excess, 0.0))

    @property
    def break_even(self) -> float:
        """The spread at which an agent's own data predicts as well as all agents' data: √(d / rows of an agent)."""
        return math.sqrt(self.rank / float(np.median(self.counts)))

    def deviations(self, rng: np.random.Generator | None = None) -> Matrix:
        """u_m of each agent given the log, (M, r): posterior means, or a draw with `rng`."""
        u = np.zeros((self.n_agents, self.rank))
        variance = (self.spread * self.noise) ** 2 / self.rank
        if variance <= 0:
            return u
        for m, part in enumerate(self.parts):
            Z = self.Z[part]
            precision = Z.T @ Z / self.noise**2 + np.eye(self.rank) / variance
            root = np.linalg.cholesky(precision)
            u[m] = np.linalg.solve(precision, Z.T @ self.residuals[part] / self.noise**2)
            if rng is not None:
                u[m] += np.linalg.solve(root.T, rng.standard_normal(self.rank))
        return u

    def parameters(self, rng: np.random.Generator | None = None) -> Matrix:
        """θ_m of each agent in the log's own features, (M, d)."""
        return np.asarray((self.theta + self.deviations(rng)) @ self.back.T)


def signs(n: int, n_columns: int, rng: np.random.Generator) -> Iterator[Matrix]:
    """Random signs, (n, ≤ CHUNK) at a time, `n_columns` in all."""
    for first in range(0, n_columns, CHUNK):
        yield rng.choice([-1.0, 1.0], size=(n, min(CHUNK, n_columns - first)))


def common_test(fit: Fit, rng: np.random.Generator, *, n_bootstrap: int = N_BOOTSTRAP) -> CommonTest:
    """Test whether one θ fits all agents, and how large a spread this log would have shown."""
    chow, score = (float(value[0]) for value in fit.ratios(fit.residuals[:, None]))
    drawn = [fit.ratios(fit.residuals[:, None] * s) for s in signs(fit.n, n_bootstrap, rng)]
    null_chow, null_score = (np.concatenate([d[i] for d in drawn]) for i in (0, 1))
    p_chow = p_of(chow, null_chow) if null_chow.any() else 1.0
    p_score = p_of(score, null_score)
    limits = (float(np.quantile(null_chow, 1 - LEVEL / 2)), float(np.quantile(null_score, 1 - LEVEL / 2)))
    errors = fit.residuals - np.einsum("ij,ij->i", fit.Z, fit.deviations()[fit.agents])
    power = {h: _power(fit, errors, h, limits, rng) for h in SPREADS}
    at_break_even = _power(fit, errors, fit.break_even, limits, rng)
    return CommonTest(min(1.0, 2 * min(p_chow, p_score)), p_chow, p_score, power, at_break_even)


def _power(fit: Fit, errors: Vector, spread: float, limits: tuple[float, float], rng: np.random.Generator) -> float:
    hits = 0
    for s in signs(fit.n, N_POWER, rng):
        u = rng.standard_normal((fit.n_agents, fit.rank, s.shape[1])) * (spread * fit.noise / math.sqrt(fit.rank))
        E = errors[:, None] * s
        for part, own in zip(fit.parts, u, strict=True):
            E[part] += fit.Z[part] @ own
        chow, score = fit.ratios(E)
        hits += int(((chow > limits[0]) & (limits[0] > 0) | (score > limits[1])).sum())
    return hits / N_POWER


def p_of(value: float, null: Vector) -> float:
    """The share of the null that is as large, the value itself counted in."""
    return float((1 + (null >= value - 1e-12 * abs(value)).sum()) / (1 + len(null)))


def curvature(fit: Fit, rng: np.random.Generator, *, n_bootstrap: int = N_BOOTSTRAP) -> Curvature:
    """Ramsey's RESET with squares of the strongest directions, around what each agent's own parameter predicts."""
    u = fit.deviations()
    predicted = np.einsum("ij,ij->i", fit.Z, fit.theta + u[fit.agents])
    errors = fit.y - predicted
    size = predicted.std() or 1.0
    bent = np.column_stack([((predicted - predicted.mean()) / size) ** k for k in (2, 3)] + [fit.Z[:, :8] ** 2])
    bent -= fit.basis @ (fit.basis.T @ bent)
    if fit.spread > 0:
        for part, basis in zip(fit.parts, fit.own_bases, strict=True):
            bent[part] -= basis @ (basis.T @ bent[part])
    U, S, _ = np.linalg.svd(bent, full_matrices=False)
    Q = U[:, S / math.sqrt(fit.n) > 1e-8]
    if Q.shape[1] == 0:
        return Curvature(1.0, 0.0)
    value = float(((Q.T @ errors) ** 2).sum())
    null = np.concatenate([((Q.T @ (errors[:, None] * s)) ** 2).sum(axis=0) for s in signs(fit.n, n_bootstrap, rng)])
    return Curvature(p_of(value, null), max(0.0, (value - float(null.mean())) / float(errors @ errors)))
