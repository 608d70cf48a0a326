"""Variance that the features of a log predict out of sample, by one model for all and by own models."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedbandit.core.arrays import Matrix, Vector
from fedbandit.core.ridge import RidgeModel
from fedbandit.core.statistics import SufficientStats
from fedbandit.experiments.advice.log import DecisionData
from fedbandit.simulation.worlds import Index

N_FOLDS = 5
LEAST_SHARE = 0.0005  # a share displayed as 0.0 % counts as none
BEYOND_CHANCE = 1.96  # standard errors: the larger of two shares is tested, each at 2.5 %


@dataclass(frozen=True, slots=True)
class Explained:
    """Share of the variance of rewards that is predicted out of sample, by three models."""

    shared: float  # one θ for all
    own: float  # each agent its own
    both: float  # own parameters drawn towards the common one
    shared_with_constant: float  # one θ for all, if the features had a column of ones
    z_score: float  # of the better of `shared` and `both`: its share over the standard error of that

    @property
    def best(self) -> float:
        """The share that a model with common data predicts."""
        return max(self.shared, self.both)

    @property
    def anything(self) -> bool:
        """Whether features predict rewards better than their mean does, beyond chance."""
        return self.best >= LEAST_SHARE and self.z_score > BEYOND_CHANCE


def explained_by(log: DecisionData, *, lam: float = 1.0) -> Explained:
    """Out-of-sample R² by five folds: a common ridge model, own ones, and own ones drawn towards the common one."""
    fold = _folds(log)
    losses = np.zeros((5, len(log)))  # squared errors of: shared, own, both, shared with a constant, the mean
    wide = np.hstack([log.x, np.ones((len(log), 1))])
    for f in range(N_FOLDS):
        seen, held = fold != f, fold == f
        shared, own, both = _parameters(log, seen, lam)
        for i, theta in enumerate((np.tile(shared, (log.n_agents, 1)), own, both)):
            losses[i, held] = log.rewards[held] - np.einsum("ij,ij->i", log.x[held], theta[log.agents[held]])
        losses[3, held] = log.rewards[held] - wide[held] @ _ridge(wide[seen], log.rewards[seen], lam)
        losses[4, held] = log.rewards[held] - log.rewards[seen].mean()
    losses **= 2
    spread = max(float(losses[4].sum()), 1e-300)
    shares: list[float] = (1.0 - losses[:4].sum(axis=1) / spread).tolist()
    better = losses[4] - losses[0 if shares[0] >= shares[2] else 2]
    error = float(better.std(ddof=1)) * math.sqrt(len(log))
    return Explained(shares[0], shares[1], shares[2], shares[3], float(better.sum()) / max(error, 1e-300))


def _parameters(log: DecisionData, seen: Index, lam: float) -> tuple[Vector, Matrix, Matrix]:
    """θ of all, each agent's own (M, d), and own ones drawn towards the common one (M, d)."""
    common = _ridge(log.x[seen], log.rewards[seen], lam)
    alone, mixed = np.zeros((log.n_agents, log.dim)), np.tile(common, (log.n_agents, 1))
    for m in range(log.n_agents):
        mine = seen & (log.agents == m)
        if mine.any():
            alone[m] = _ridge(log.x[mine], log.rewards[mine], lam)
            mixed[m] += _ridge(log.x[mine], log.rewards[mine] - log.x[mine] @ common, log.dim * lam)
    return common, alone, mixed


def _ridge(X: Matrix, y: Vector, lam: float) -> Vector:
    return RidgeModel(SufficientStats.prior(dim=X.shape[1], lam=lam) + SufficientStats.of(X, y)).theta_hat


def _folds(log: DecisionData) -> Index:
    """Every agent's decisions dealt evenly to the folds, in their order."""
    fold = np.empty(len(log), dtype=np.int64)
    for m in range(log.n_agents):
        mine = np.flatnonzero(log.agents == m)
        fold[mine] = (np.arange(len(mine)) + m) % N_FOLDS
    return fold
