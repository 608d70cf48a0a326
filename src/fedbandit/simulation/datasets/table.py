"""Your own data as a world: a table with one line for each arm of each decision, the reward of every arm known."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedbandit.core.arrays import Matrix, Vector, as_float_array, finite, frame_names, path_of
from fedbandit.errors import DimensionMismatch, FormatError, InvalidInput, MissingExtra
from fedbandit.simulation.datasets.base import DataWorld
from fedbandit.simulation.worlds import Block, Index

Column = NDArray[Any]
Columns = Mapping[str, Column]
IDENTIFIER = re.compile(
    r"(?i:(^|[_\-. ])(id|uid|uuid|guid)$|^(user|customer|client|visitor|session|item|order|row)id$)|(?<=[a-z])I[dD]$"
)
LEAST_ROWS = 30  # fewer whole numbers that grow from line to line may do so by chance
MOST_LEVELS = 50  # different values of a text column that is used as a feature


@dataclass(frozen=True, kw_only=True, eq=False)
class TableWorld(DataWorld):
    """Decisions with any number of arms each; `agent_names` are the agents 0, 1, … as the table calls them.

    Short decision sets are filled up by their first arm, which changes no choice.
    """

    name: ClassVar[str] = "table"
    table: Matrix  # (N, d)
    rewards: Vector  # (N,)
    rows: Index  # (n, K), lines of the table
    agents: Index  # (n,)
    agent_names: tuple[str, ...]
    feature_names: tuple[str, ...]
    shuffle: bool = True
    left_out: tuple[tuple[str, str], ...] = ()  # columns that are no features, each with the reason

    @property
    def shuffled(self) -> bool:  # type: ignore[override]
        return self.shuffle

    @property
    def dim(self) -> int:
        return int(self.table.shape[1])

    @property
    def n_arms(self) -> int:
        return int(self.rows.shape[1])

    @property
    def row_counts(self) -> tuple[int, ...]:
        return tuple(np.bincount(self.agents, minlength=len(self.agent_names)).tolist())

    @property
    def block_rounds(self) -> int:
        return 256

    def owners(self, rng: np.random.Generator) -> Index:
        return self.agents

    def offer(self, picked: Index, rng: np.random.Generator) -> Block:
        rows = self.rows[picked]
        return Block(np.zeros(len(picked)), self.rewards[rows], table=self.table, rows=rows)


def from_parquet(
    path: str | Path,
    *,
    agent: str = "agent",
    decision: str = "decision",
    reward: str = "reward",
    features: Sequence[str] | None = None,
    shuffle: bool = True,
) -> TableWorld:
    """A world of your own data: one line for each arm of each decision, with the reward that this arm would have paid.

    `features` are all other columns of numbers when not given, identifiers apart; `left_out` of the result names the
    columns that are none, with the reason. A decision belongs to one agent.
    """
    columns = read_columns(path)
    needed = {agent, decision, reward}
    if not needed <= columns.keys():
        raise FormatError(f"expected the columns {sorted(needed)} in {path}, got {sorted(columns)}")
    X, names, left_out = select_features(columns, roles=needed, agent=agent, features=features)
    y = finite(as_float_array(columns[reward], f"the column {reward!r}"), "rewards")
    who, agents = np.unique(labels_of(columns, agent), return_inverse=True)
    _, numbers = np.unique(labels_of(columns, decision), return_inverse=True)
    rows, firsts = grouped(numbers)
    if (agents[rows] != agents[firsts][:, None]).any():
        raise InvalidInput(f"some decision in {path} has lines of two agents; a decision belongs to one")
    return TableWorld(
        table=X,
        rewards=y,
        rows=rows,
        agents=agents[firsts],
        agent_names=tuple(who.tolist()),
        feature_names=names,
        shuffle=shuffle,
        left_out=left_out,
    )


def grouped(numbers: Index) -> tuple[Index, Index]:
    """Lines by group, (n, K), filled up by each group's first line, and those first lines; groups as they appear."""
    order = np.argsort(numbers, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(numbers[order]) != 0])
    sizes = np.diff(np.r_[starts, len(order)])
    width = np.arange(sizes.max())
    rows = order[starts[:, None] + np.where(width < sizes[:, None], width, 0)]
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    return rows, rows[:, 0]


def read_columns(path: str | Path | Any) -> Columns:
    """The columns of a parquet or csv file, or of a data frame (pandas, polars, pyarrow), by name."""
    try:
        import pyarrow as pa
        from pyarrow import csv, parquet
    except ImportError as error:
        raise MissingExtra("reading tables needs pyarrow: install fedbandit[lab]") from error
    names = frame_names(path)
    if names is not None:
        return _columns_of(pa.table(path).select(names), "the data frame")
    place = path_of(path, "path")
    try:
        table = csv.read_csv(place) if place.suffix.lower() == ".csv" else parquet.read_table(place)
    except FileNotFoundError:
        raise FormatError(f"there is no file {path}") from None
    except (pa.ArrowInvalid, OSError, UnicodeEncodeError) as error:
        raise FormatError(f"expected a parquet or csv file in {path}: {error}") from None
    return _columns_of(table, str(path))


def _columns_of(table: Any, what: str) -> Columns:
    if table.num_rows == 0:
        raise FormatError(f"{what} has no lines")
    return {name: table.column(name).to_numpy(zero_copy_only=False) for name in table.column_names}


def labels_of(columns: Columns, name: str) -> Column:
    """A column of names as text; a line without one is a named error."""
    values = columns[name].tolist()
    missing = sum(value is None or value != value for value in values)
    if missing:
        raise FormatError(f"expected a value on every line of the column {name!r}, {missing} lines have none")
    return np.asarray([str(value) for value in values])


def select_features(
    columns: Columns,
    *,
    roles: set[str],
    agent: str,
    features: Sequence[str] | None = None,
    ignore: Sequence[str] = (),
) -> tuple[Matrix, tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Features (n, d), their names, and the columns that are no features with the reason for each.

    `features` are used as they are listed, in that order; text among them gets one column of 0 and 1 for each of its
    values. Without `features`, all columns of numbers are, but those in `roles`, in `ignore`, and identifiers.
    """
    missing = [name for name in (*(features or ()), *ignore) if name not in columns]
    if missing:
        raise FormatError(f"expected the columns {missing}, which are not there; there are {sorted(columns)}")
    reasons: dict[str, str] = {}
    chosen = list(dict.fromkeys(features)) if features is not None else []
    for name, values in columns.items():
        if name in roles or name in chosen:
            continue
        if name in ignore:
            reasons[name] = "ignored as asked"
        elif features is not None:
            reasons[name] = "not among the features that were asked for"
        else:
            why = unusable(name, values, columns[agent])
            if why is None:
                chosen.append(name)
            else:
                reasons[name] = why
    if not chosen:
        told = "; ".join(f"{name}: {why}" for name, why in reasons.items())
        raise DimensionMismatch(
            f"expected at least one column of numbers as a feature, got none{told and f' ({told})'}"
        )
    parts = [_encoded(name, columns[name]) for name in chosen]
    names = tuple(label for labels, _ in parts for label in labels)
    return np.concatenate([block for _, block in parts], axis=1), names, tuple(reasons.items())


def unusable(name: str, values: Column, agents: Column) -> str | None:
    """Why a column is no feature unless it is asked for; None where it is one."""
    if values.dtype.kind in "mM":
        return "a date or time"
    if values.dtype.kind not in "biuf":
        n_values = len(set(map(str, values.tolist())))
        return f"text of {n_values} different values; ask for it as a feature to get one column of 0 and 1 for each"
    if values.dtype.kind == "b" or not _all_whole(values):
        return None
    if IDENTIFIER.search(name):
        return "its name and whole numbers look like an identifier"
    if len(values) >= LEAST_ROWS and (np.diff(values) > 0).all():
        return "its whole numbers only grow from line to line, as a line number or a time does"
    pairs = {(str(who), int(value)) for who, value in zip(agents.tolist(), values.tolist(), strict=True)}
    n_agents, n_values = len({who for who, _ in pairs}), len({value for _, value in pairs})
    if len(pairs) == n_agents == n_values > 2:
        return "one whole number for each agent and another for every other: it numbers the agents"
    return None


def _all_whole(values: Column) -> bool:
    return bool(np.isfinite(values).all() and (values == np.floor(values)).all())


def _encoded(name: str, values: Column) -> tuple[list[str], Matrix]:
    """A column as features: a number as it is, text as one column of 0 and 1 for each value."""
    if values.dtype.kind in "biuf":
        return [name], finite(np.asarray(values, dtype=np.float64)[:, None], f"numbers in the column {name!r}")
    if values.dtype.kind in "mM":
        raise InvalidInput(
            f"the column {name!r} holds dates or times; make numbers of them (the hour, the weekday) first"
        )
    levels, places = np.unique(np.asarray([str(value) for value in values.tolist()]), return_inverse=True)
    if len(levels) > MOST_LEVELS:
        raise InvalidInput(
            f"the text column {name!r} has {len(levels)} different values, which would be as many features; "
            f"at most {MOST_LEVELS} are taken: group them first, or use fb.HashingFeatures"
        )
    return [f"{name}={level}" for level in levels.tolist()], np.eye(len(levels))[places]
