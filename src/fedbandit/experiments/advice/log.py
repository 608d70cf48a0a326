"""Logs of past decisions: reading and checking them, and their conversion to an upload."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedbandit.algorithms.messages import Upload, packed_bytes
from fedbandit.core.arrays import (
    Matrix,
    Vector,
    as_float_array,
    finite,
    finite_at_least,
    frame_names,
    is_listing,
    path_of,
)
from fedbandit.core.features import block_features, block_names
from fedbandit.core.ridge import factorise
from fedbandit.core.statistics import SufficientStats
from fedbandit.errors import DimensionMismatch, FeatureMismatch, FormatError, InvalidInput, InvalidParameter
from fedbandit.simulation.datasets.table import grouped, labels_of, read_columns, select_features
from fedbandit.simulation.worlds import Index
from fedbandit.wire.identifiers import check_agent_id

HISTORY = "history"  # the agent that old data belongs to


@dataclass(frozen=True, eq=False)
class DecisionData:
    """n logged decisions: the agent, the row that was chosen, and its reward.

    `offers` (n, K, d) are the decision sets where they are known, `chosen` (n,) the row taken from them, `sizes` (n,)
    how many rows of an offer are real (short ones are filled up by their first row). `propensities` (n,) are the
    probabilities of the logged actions under the logging policy. `feature_names` are the columns of `x`.
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
    arms: tuple[str, ...] | None = None  # where each arm has a block of columns: the arms in the order of the blocks
    left_out: tuple[tuple[str, str], ...] = ()  # columns of the file that are no features, each with the reason

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
            raise InvalidInput("expected propensities above 0 and at most 1")

    @property
    def dim(self) -> int:
        """Number of features d."""
        return int(self.x.shape[1])

    @property
    def blocks(self) -> int:
        """Disjoint arms K, where columns stand arm after arm: a model of these rows takes `blocks=K`; else 1."""
        if self.arms is None or len(self.arms) < 2 or self.dim % len(self.arms):
            return 1
        p = self.dim // len(self.arms)
        owners = [name.rpartition("@")[2] for name in self.feature_names if "@" in name]
        return len(self.arms) if owners in ([], [arm for arm in self.arms for _ in range(p)]) else 1

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

    def without(self, agents: Sequence[int]) -> DecisionData:
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
) -> DecisionData:
    """A log from arrays: the rows that were chosen (n, d), or `offers` (n, K, d) with `chosen` (n,) and `x` None."""
    sets = None if offers is None else as_float_array(offers, "offers")
    numbers = None if chosen is None else as_float_array(chosen, "chosen")
    rows = None
    if (sets is None) != (numbers is None):
        raise InvalidInput("expected offers and chosen together: the decision sets, and the row taken from each")
    if sets is not None and numbers is not None:
        if not (np.isfinite(numbers) & (numbers == np.floor(numbers))).all():
            raise InvalidInput("expected chosen as whole numbers, the row that was taken from each decision set")
        rows = numbers.astype(np.int64)
        if sets.ndim != 3 or rows.shape != sets.shape[:1] or not ((rows >= 0) & (rows < sets.shape[1])).all():
            raise DimensionMismatch(
                f"expected offers (n, K, d) and chosen (n,) below K, got {sets.shape}, {rows.shape}"
            )
        taken = sets[np.arange(len(sets)), rows]
    else:
        taken = as_float_array(x, "rows")
        if taken.ndim != 2:
            raise DimensionMismatch(f"expected rows of shape (n, d), got {taken.shape}")
    if agents is not None and not is_listing(agents):
        raise InvalidInput(f"expected agents as a list, one for each row, got {agents!r}")
    labels = [0] * len(taken) if agents is None else list(cast(Iterable[Any], agents))
    names, who = np.unique(np.array([str(label) for label in labels]), return_inverse=True)
    return DecisionData(
        taken,
        as_float_array(rewards, "rewards"),
        who,
        tuple(names.tolist()),
        tuple(f"x{i}" for i in range(taken.shape[-1])),
        None if propensities is None else as_float_array(propensities, "propensities"),
        sets,
        rows,
        None if sets is None else np.full(len(sets), sets.shape[1]),
    )


def read_log(
    path: str | Path | Any,
    *,
    agent: str = "agent",
    reward: str = "reward",
    action: str = "action",
    decision: str = "decision",
    propensity: str = "propensity",
    features: Sequence[str] | None = None,
    ignore: Sequence[str] = (),
    arms: Sequence[str] | None = None,
) -> DecisionData:
    """A log from csv, parquet or a data frame, in one of three shapes, or as agents write it (`decision_log=`).

    One line per decision with the features of the chosen action; or, with a column `action`, features of the situation
    and which of the arms was taken (each arm gets a block of its own, `fb.block_features`); or, with a column
    `decision`, one line for each action on offer, with a reward only where it was taken.

    `features` are used in the order in which they are listed, text as one column of 0 and 1 for each value. Without
    `features`, all other columns of numbers are, but identifiers and what is in `ignore`. `log.left_out` names the
    columns that are not used, with the reason. `arms` is the order of the arms' blocks, and may have arms that the log
    has not; sorted by name when not given. `log.arms` has it.
    """
    is_frame = frame_names(path) is not None
    path = path if is_frame else path_of(path, "log")
    if not is_frame and is_decision_log(path):
        from fedbandit.experiments.advice.logged_decisions import read_decision_log

        return read_decision_log(path, features=features, ignore=ignore)
    columns, where = read_columns(path), "the data frame" if is_frame else path
    if reward not in columns:
        raise FormatError(f"expected a column {reward!r} in {where}, got {sorted(columns)}; name yours by --reward")
    if agent not in columns:
        what = f"expected a column {agent!r} with the deciding agent in {where}"
        raise FormatError(f"{what}, got {sorted(columns)}; name yours by --agent")
    others = {agent, reward, action, decision, propensity}
    X, names, left_out = select_features(columns, roles=others, agent=agent, features=features, ignore=ignore)
    y = as_float_array(columns[reward], f"the column {reward!r}")
    chance = as_float_array(columns[propensity], f"the column {propensity!r}") if propensity in columns else None
    who, agents = np.unique(labels_of(columns, agent), return_inverse=True)
    plain = DecisionData(
        X, np.nan_to_num(y) if decision in columns else y, agents, tuple(who.tolist()), names, left_out=left_out
    )
    if arms is not None and (decision in columns or action not in columns):
        raise InvalidParameter(
            f"arms are for logs with a column {action!r} and none called {decision!r}; this is another"
        )
    if decision in columns:
        return _by_offers(plain, y, chance, labels_of(columns, decision))
    if action in columns:
        taken = labels_of(columns, action)
        # Arms that are numbers are sorted as numbers: 10 after 9.
        found = (
            [str(arm) for arm in np.unique(columns[action]).tolist()] if columns[action].dtype.kind in "iuf" else None
        )
        return _by_arms(plain, chance, taken, arms or found or np.unique(taken).tolist())
    return replace(plain, propensities=chance)


def is_decision_log(path: str | Path) -> bool:
    """Whether this is a directory or a file of JSON lines rather than a table."""
    return Path(path).is_dir() or Path(path).suffix == ".jsonl"


def _by_offers(plain: DecisionData, y: Vector, chance: Vector | None, decisions: NDArray[Any]) -> DecisionData:
    _, numbers = np.unique(decisions, return_inverse=True)
    rows, firsts = grouped(numbers)
    taken = ~np.isnan(y)
    distinct = np.diff(np.sort(rows, axis=1), axis=1, prepend=-1) != 0
    n_taken = np.bincount(numbers[taken], minlength=numbers.max() + 1)
    if not (n_taken == 1).all():
        raise FormatError("expected a reward for exactly one action of each decision, none for the others")
    chosen = taken[rows].argmax(axis=1)
    lines = rows[np.arange(len(rows)), chosen]
    return replace(
        plain,
        x=plain.x[lines],
        rewards=y[lines],
        agents=plain.agents[firsts],
        propensities=None if chance is None else chance[lines],
        offers=plain.x[rows],
        chosen=chosen,
        sizes=distinct.sum(axis=1),
    )


def _by_arms(plain: DecisionData, chance: Vector | None, actions: NDArray[Any], order: Sequence[str]) -> DecisionData:
    taken, arms = actions.tolist(), tuple(map(str, order))
    if len(set(arms)) != len(arms):
        raise InvalidParameter(f"expected every arm once, got {', '.join(arms)}")
    unknown = sorted(set(taken) - set(arms))
    if unknown:
        raise FeatureMismatch(f"the log has the arms {', '.join(unknown)}, which are not among {', '.join(arms)}")
    place = {arm: i for i, arm in enumerate(arms)}
    chosen = np.array([place[arm] for arm in taken])
    offers = block_features(plain.x, len(arms))
    return replace(
        plain,
        x=offers[np.arange(len(plain)), chosen],
        feature_names=block_names(plain.feature_names, arms),
        propensities=chance,
        offers=offers,
        chosen=chosen,
        sizes=np.full(len(plain), len(arms)),
        arms=arms,
    )


def reordered(log: DecisionData, names: Sequence[str]) -> DecisionData:
    """The log with its features in the order of these names, which must be the same ones."""
    if sorted(names) != sorted(log.feature_names):
        missing, extra = set(names) - set(log.feature_names), set(log.feature_names) - set(names)
        raise FeatureMismatch(
            f"expected the features {', '.join(names)}; the log lacks {sorted(missing)} and has {sorted(extra)} beside"
        )
    place = [log.feature_names.index(name) for name in names]
    offers = None if log.offers is None else log.offers[:, :, place]
    return replace(log, x=log.x[:, place], feature_names=tuple(names), offers=offers)


def history(log: DecisionData | str | Path, *, lam: float = 1.0, agent_id: str = HISTORY, **columns: Any) -> Upload:
    """A log as one upload of a separate agent, so that its share is visible and it can be forgotten.

    A log with arms gives the sums by block, for a model with `blocks=log.blocks`. The incarnation comes from the data:
    the same log sent twice is a retry and counts once.
    """
    lam = finite_at_least(lam, 0.0, "lam", strictly=True)
    data = log if isinstance(log, DecisionData) else read_log(log, **columns)
    check_agent_id(agent_id)
    stats = SufficientStats.of(data.x, data.rewards, blocks=data.blocks)
    prior = SufficientStats.prior(dim=data.dim, lam=lam, blocks=data.blocks)
    growth = factorise((prior + stats).Sigma).log_det - data.dim * float(np.log(lam))
    incarnation = f"log-{hashlib.sha256(packed_bytes(stats)).hexdigest()[:16]}"
    return Upload(agent_id, incarnation, 1, stats, growth)


def columns_of(log: DecisionData) -> Mapping[str, NDArray[Any]]:
    """The log as columns, one line per decision, to write it to a file."""
    names = np.asarray(log.agent_names)
    columns: dict[str, NDArray[Any]] = {"agent": names[log.agents]}
    columns |= {name: log.x[:, i] for i, name in enumerate(log.feature_names)}
    if log.propensities is not None:
        columns["propensity"] = log.propensities
    return {**columns, "reward": log.rewards}
