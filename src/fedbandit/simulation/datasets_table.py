"""Your own data as a world: a table with one line for each arm of each decision, the reward of every arm known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fedbandit.core.arrays import Matrix, Vector, finite
from fedbandit.errors import DimensionMismatch, FormatError, InvalidInput, MissingExtra
from fedbandit.simulation.datasets_base import DataWorld
from fedbandit.simulation.worlds import Block, Index


@dataclass(frozen=True, kw_only=True, eq=False)
class Table(DataWorld):
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
) -> Table:
    """A world of your own data: one line for each arm of each decision, with the reward that this arm would have paid.

    `features` are all other numeric columns when left out. A decision belongs to one agent.
    """
    columns = read_columns(path)
    needed = {agent, decision, reward}
    if not needed <= columns.keys():
        raise FormatError(f"expected the columns {sorted(needed)} in {path}, got {sorted(columns)}")
    names = tuple(features) if features is not None else numeric_names(columns, needed)
    X = matrix_of(columns, names)
    y = finite(np.asarray(columns[reward], dtype=np.float64), "rewards")
    who, agents = np.unique(np.asarray(columns[agent]).astype(str), return_inverse=True)
    _, numbers = np.unique(np.asarray(columns[decision]).astype(str), return_inverse=True)
    rows, firsts = grouped(numbers)
    if (agents[rows] != agents[firsts][:, None]).any():
        raise InvalidInput(f"some decision in {path} has lines of two agents; a decision belongs to one")
    return Table(
        table=X,
        rewards=y,
        rows=rows,
        agents=agents[firsts],
        agent_names=tuple(who.tolist()),
        feature_names=names,
        shuffle=shuffle,
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


def read_columns(path: str | Path) -> Mapping[str, np.ndarray[Any, np.dtype[Any]]]:
    """The columns of a parquet or csv file by name."""
    try:
        import pyarrow as pa
        from pyarrow import csv, parquet
    except ImportError as error:
        raise MissingExtra("reading tables needs pyarrow: pip install 'fedbandit[lab]'") from error
    place = Path(path)
    try:
        table = csv.read_csv(place) if place.suffix.lower() == ".csv" else parquet.read_table(place)
    except FileNotFoundError:
        raise FormatError(f"there is no file {path}") from None
    except (pa.ArrowInvalid, OSError) as error:
        raise FormatError(f"expected a parquet or csv file in {path}: {error}") from None
    if table.num_rows == 0:
        raise FormatError(f"{path} has no lines")
    return {name: table.column(name).to_numpy(zero_copy_only=False) for name in table.column_names}


def numeric_names(columns: Mapping[str, np.ndarray[Any, np.dtype[Any]]], others: set[str]) -> tuple[str, ...]:
    """All columns of numbers or booleans but those named."""
    return tuple(name for name, values in columns.items() if name not in others and values.dtype.kind in "biuf")


def matrix_of(columns: Mapping[str, np.ndarray[Any, np.dtype[Any]]], names: Sequence[str]) -> Matrix:
    """Some columns side by side, (n, d), finite."""
    missing = [name for name in names if name not in columns]
    if missing:
        raise FormatError(f"expected the columns {missing}, which are not there")
    if not names:
        raise DimensionMismatch("expected at least one column of numbers as a feature, got none")
    return finite(np.stack([np.asarray(columns[name], dtype=np.float64) for name in names], axis=1), "features")
