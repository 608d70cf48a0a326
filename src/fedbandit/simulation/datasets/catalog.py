"""Worlds from real data by name, beside the synthetic ones; nothing is loaded before it is needed."""

from __future__ import annotations

from collections.abc import Callable

from fedbandit.core.arrays import is_among
from fedbandit.errors import InvalidParameter
from fedbandit.registry import Registry
from fedbandit.simulation.datasets.base import DataWorld, ReferenceRewards
from fedbandit.simulation.datasets.choices import Catsup, Crackers, Electricity, Swissmetro, Trains, Tuna, Yogurt
from fedbandit.simulation.datasets.classes import BreastCancer, Digits, Wine
from fedbandit.simulation.datasets.flights import Flights
from fedbandit.simulation.datasets.table import TableWorld, from_parquet
from fedbandit.simulation.datasets.tags import Delicious, LastFm, MovieLens1M, MovieLens20M, MovieLens100k
from fedbandit.simulation.worlds import WORLDS, World

OFFLINE: dict[str, type[DataWorld]] = {world.name: world for world in (Digits, BreastCancer, Wine, Flights)}
CHOSEN: dict[str, type[DataWorld]] = {
    world.name: world for world in (Yogurt, Catsup, Crackers, Tuna, Trains, Electricity, Swissmetro)
}
DOWNLOADED: dict[str, type[DataWorld]] = {
    world.name: world for world in (LastFm, Delicious, MovieLens100k, MovieLens1M, MovieLens20M)
}
REAL: dict[str, type[DataWorld]] = {**OFFLINE, **CHOSEN, **DOWNLOADED}
EVERY: Registry[Callable[..., World]] = Registry("world", REAL, including=WORLDS)


def real(name: str, **options: object) -> DataWorld:
    """The world of this data set: `OFFLINE` and `CHOSEN` come with packages, the others are downloaded once."""
    if not is_among(name, REAL):
        raise InvalidParameter(f"expected a data set among {', '.join(REAL)}, got {name!r}")
    try:
        return REAL[name](**options)
    except TypeError as error:
        raise InvalidParameter(f"the {name} world cannot be made from {options}: {error}") from None


__all__ = [
    "CHOSEN",
    "DOWNLOADED",
    "EVERY",
    "OFFLINE",
    "REAL",
    "DataWorld",
    "ReferenceRewards",
    "TableWorld",
    "from_parquet",
    "real",
]
