"""Logs of decisions that were made before: read them, judge another policy by them, hand them on as history."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedbandit.algorithms.messages import Upload, packed_bytes
from fedbandit.core.arrays import Matrix, Vector, as_float_array, finite, finite_at_least
from fedbandit.core.features import block_features
from fedbandit.core.ridge import factorise
from fedbandit.core.statistics import SufficientStats
from fedbandit.errors import DimensionMismatch, FormatError, InvalidInput
from fedbandit.simulation.datasets_table import grouped, matrix_of, numeric_names, read_columns
from fedbandit.simulation.worlds import Index

HISTORY = "history"  # the agent that old data belongs to


@dataclass(frozen=True, eq=False)
class Log:
    """n decisions that were made: by whom, the row that was chosen, and what it paid.

    `offers` (n, K, d) are the decision sets where they are known, `chosen` (n,) the row taken from them, `sizes` (n,)
    how many rows of an offer are real (short ones are filled up by their first row). `propensities` (n,) are the
    probabilities with which the logging policy took what it took.
    """

    x: Matrix
    rewards: Vector
    agents: Index
    agent_names: tuple[str, ...]
    feature_names: tuple[str, ...]
    propensities: Vector | None = None
    offers: NDArray[np.float64] | None = None
    chosen: Index | None = None
    sizes: Index | None = None

    def __post_init__(self) -> None:
        if self.x.ndim != 2 or 0 in self.x.shape:
            raise DimensionMismatch(f"expected rows of shape (n, d) with n, d ≥ 1, got {self.x.shape}")
        finite(self.x, "features")
        for name in ("rewards", "agents", "propensities", "chosen", "sizes"):
            values = getattr(self, name)
            if values is not None and values.shape != (len(self.x),):
                raise DimensionMismatch(f"expected {name} of shape ({len(self.x)},), got {values.shape}")
        finite(self.rewards, "rewards")
        if self.propensities is not None and not ((self.propensities > 0) & (self.propensities <= 1)).all():
            raise InvalidInput("expected propensities above 0 and at most 1: what was done was possible")

    @property
    def dim(self) -> int:
        """Number of features d."""
        return int(self.x.shape[1])

    @property
    def n_agents(self) -> int:
        """Number of agents M."""
        return len(self.agent_names)

    def __len__(self) -> int:
        return len(self.x)

    def of_agent(self, agent: int) -> tuple[Matrix, Vector]:
        """Rows and rewards of one agent."""
        mine = self.agents == agent
        return self.x[mine], self.rewards[mine]

    def without(self, agents: Sequence[int]) -> Log:
        """The log without some agents; the others keep their names and get new numbers."""
        kept = [m for m in range(self.n_agents) if m not in set(agents)]
        mine = np.isin(self.agents, kept)
        fields = ("x", "rewards", "propensities", "offers", "chosen", "sizes")
        parts: dict[str, Any] = {f: None if getattr(self, f) is None else getattr(self, f)[mine] for f in fields}
        names = tuple(self.agent_names[m] for m in kept)
        return replace(self, agents=np.searchsorted(kept, self.agents[mine]), agent_names=names, **parts)


def log_from_arrays(
    x: ArrayLike,
    rewards: ArrayLike,
    *,
    agents: ArrayLike | None = None,
    propensities: ArrayLike | None = None,
    offers: ArrayLike | None = None,
    chosen: ArrayLike | None = None,
) -> Log:
    """A log from arrays: the rows that were chosen (n, d), or `offers` (n, K, d) with `chosen` (n,) and `x` None."""
    sets = None if offers is None else as_float_array(offers, "offers")
    rows = None if chosen is None else np.asarray(chosen, dtype=np.int64)
    if sets is not None and rows is not None:
        if sets.ndim != 3 or rows.shape != sets.shape[:1] or not ((rows >= 0) & (rows < sets.shape[1])).all():
            raise DimensionMismatch(
                f"expected offers (n, K, d) and chosen (n,) below K, got {sets.shape}, {rows.shape}"
            )
        taken = sets[np.arange(len(sets)), rows]
    else:
        taken = as_float_array(x, "rows")
    who = np.zeros(len(taken), dtype=int) if agents is None else np.asarray(agents)
    names, numbers = np.unique(who.astype(str), return_inverse=True)
    return Log(
        taken,
        as_float_array(rewards, "rewards"),
        numbers,
        tuple(names.tolist()),
        tuple(f"x{i}" for i in range(taken.shape[-1])),
        None if propensities is None else as_float_array(propensities, "propensities"),
        sets,
        rows,
        None if sets is None else np.full(len(sets), sets.shape[1]),
    )


def read_log(
    path: str | Path,
    *,
    agent: str = "agent",
    reward: str = "reward",
    action: str = "action",
    decision: str = "decision",
    propensity: str = "propensity",
    features: Sequence[str] | None = None,
) -> Log:
    """A log from csv or parquet, in one of three shapes.

    One line a decision with the features of the chosen action; or, with a column `action`, features of the situation
    and which of the arms was taken (each arm gets a block of its own, `fb.block_features`); or, with a column
    `decision`, one line for each action on offer, with a reward only where it was taken. `features` are all other
    numeric columns when left out.
    """
    columns = read_columns(path)
    if reward not in columns:
        raise FormatError(f"expected a column {reward!r} in {path}, got {sorted(columns)}")
    if agent not in columns:
        raise FormatError(f"expected a column {agent!r} in {path}, got {sorted(columns)}; who made the decision?")
    others = {agent, reward, action, decision, propensity}
    names = tuple(features) if features is not None else numeric_names(columns, others)
    X = matrix_of(columns, names)
    y = np.asarray(columns[reward], dtype=np.float64)
    chance = np.asarray(columns[propensity], dtype=np.float64) if propensity in columns else None
    who, agents = np.unique(np.asarray(columns[agent]).astype(str), return_inverse=True)
    if decision in columns:
        return _by_offers(X, y, agents, tuple(who.tolist()), names, chance, columns[decision])
    if action in columns:
        return _by_arms(X, y, agents, tuple(who.tolist()), names, chance, columns[action])
    return Log(X, y, agents, tuple(who.tolist()), names, chance)


def _by_offers(
    X: Matrix,
    y: Vector,
    agents: Index,
    who: tuple[str, ...],
    names: tuple[str, ...],
    chance: Vector | None,
    decisions: NDArray[Any],
) -> Log:
    _, numbers = np.unique(decisions.astype(str), return_inverse=True)
    rows, firsts = grouped(numbers)
    taken = ~np.isnan(y)
    distinct = np.diff(np.sort(rows, axis=1), axis=1, prepend=-1) != 0
    n_taken = np.bincount(numbers[taken], minlength=numbers.max() + 1)
    if not (n_taken == 1).all():
        raise FormatError("expected a reward for exactly one action of each decision, none for the others")
    chosen = taken[rows].argmax(axis=1)
    lines = rows[np.arange(len(rows)), chosen]
    propensities = None if chance is None else chance[lines]
    return Log(X[lines], y[lines], agents[firsts], who, names, propensities, X[rows], chosen, distinct.sum(axis=1))


def _by_arms(
    X: Matrix,
    y: Vector,
    agents: Index,
    who: tuple[str, ...],
    names: tuple[str, ...],
    chance: Vector | None,
    actions: NDArray[Any],
) -> Log:
    arms, chosen = np.unique(actions, return_inverse=True)
    offers = block_features(X, len(arms))
    blocks = tuple(f"{name}@{arm}" for arm in arms for name in (*names, "1"))
    taken = offers[np.arange(len(X)), chosen]
    return Log(taken, y, agents, who, blocks, chance, offers, chosen, np.full(len(X), len(arms)))


def history(log: Log | str | Path, *, lam: float = 1.0, agent_id: str = HISTORY, **columns: Any) -> Upload:
    """A log as one upload of an agent of its own, so that it shows beside the others and can be forgotten.

    The incarnation comes from the data: the same log sent twice is a retry and counts once.
    """
    finite_at_least(lam, 0.0, "lam", strictly=True)
    data = log if isinstance(log, Log) else read_log(log, **columns)
    stats = SufficientStats.of(data.x, data.rewards)
    growth = factorise(stats.Sigma + lam * np.eye(stats.dim)).log_det - stats.dim * float(np.log(lam))
    incarnation = f"log-{hashlib.sha256(packed_bytes(stats)).hexdigest()[:16]}"
    return Upload(agent_id, incarnation, 1, stats, growth)


def columns_of(log: Log) -> Mapping[str, NDArray[Any]]:
    """The log as columns of one line a decision, to write it to a file."""
    names = np.asarray(log.agent_names)
    columns: dict[str, NDArray[Any]] = {"agent": names[log.agents]}
    columns |= {name: log.x[:, i] for i, name in enumerate(log.feature_names)}
    if log.propensities is not None:
        columns["propensity"] = log.propensities
    return {**columns, "reward": log.rewards}
