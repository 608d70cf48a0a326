"""What people chose: households at a shelf, customers with contracts on offer, travellers with ways to go.

The agents are the persons or households themselves. An occasion is a round: what was on offer are the arms, with
their features of that occasion, and the one that this person really took pays 1. Whatever a person likes is
learnt from few occasions each, and tastes differ: these worlds are for the question whether to share.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import ClassVar

import numpy as np

from fedbandit.core.arrays import Matrix, Vector, keep_whole
from fedbandit.errors import InvalidParameter
from fedbandit.simulation.datasets.base import DataWorld
from fedbandit.simulation.datasets.choice_files import READERS, Offers
from fedbandit.simulation.datasets.table import grouped
from fedbandit.simulation.worlds import Block, Index

SAME = 1e-8  # values whose differences are below this share of them are equal


@dataclass(frozen=True, slots=True, eq=False)
class Occasions:
    """Occasions of all people in the order of the data; a short one is filled up with its first alternative."""

    agents: Index  # (n,)
    people: tuple[str, ...]
    rows: Index  # (n, K), which alternatives
    table: Matrix  # (N, d), features of each alternative on its occasion
    rewards: Vector  # (N,), 1 if it was taken
    feature_names: tuple[str, ...]
    n_labels: int  # columns that say which alternative it is


@dataclass(frozen=True, kw_only=True)
class Choices(DataWorld):
    """A data set of people's choices.

    Features: one column for each alternative that has a name (a brand, a mode of travel), or else a constant; and what
    was known of the alternative on that occasion (its price, whether it was advertised), less its mean over what was on
    offer, in units of its standard deviation. All are divided by the root mean square length of rows. Scales are fitted
    on all occasions, which uses future offers, but no choices.

    A person's occasions come in the order of the data, or in a random one with `in_order=False`. People with fewer than
    `least_occasions` are left out.
    """

    in_order: bool = True
    least_occasions: int = 1

    def __post_init__(self) -> None:
        keep_whole(self, "least_occasions", 1)

    @property
    def shuffled(self) -> bool:  # type: ignore[override]
        return not self.in_order

    @cached_property
    def occasions(self) -> Occasions:
        """The data as rounds, read at first use."""
        return load_occasions(self.name, self.least_occasions)

    @property
    def dim(self) -> int:
        return int(self.occasions.table.shape[1])

    @property
    def row_numbers(self) -> int:
        # What was known of the alternative, which one it is where it has a name, and the reward.
        return self.dim - self.occasions.n_labels + (self.occasions.n_labels > 1) + 1

    @property
    def n_arms(self) -> int:
        return int(self.occasions.rows.shape[1])

    @cached_property
    def row_counts(self) -> tuple[int, ...]:
        return tuple(np.bincount(self.occasions.agents).tolist())

    @property
    def block_rounds(self) -> int:
        return 256  # rows are numbers of alternatives, so a block is small

    def owners(self, rng: np.random.Generator) -> Index:
        return self.occasions.agents

    def offer(self, picked: Index, rng: np.random.Generator) -> Block:
        rows = self.occasions.rows[picked]
        return Block(np.zeros(len(picked)), self.occasions.rewards[rows], table=self.occasions.table, rows=rows)


@dataclass(frozen=True, kw_only=True)
class Yogurt(Choices):
    """100 households buy yogurt of four brands, known by price and advertisement (Jain et al. 1994)."""

    name: ClassVar[str] = "yogurt"


@dataclass(frozen=True, kw_only=True)
class Catsup(Choices):
    """300 households buy catsup of four kinds, known by price, display and advertisement (Jain et al. 1994)."""

    name: ClassVar[str] = "catsup"


@dataclass(frozen=True, kw_only=True)
class Crackers(Choices):
    """136 households buy saltine crackers of four brands, known by price, display and advertisement (Jain et al.)."""

    name: ClassVar[str] = "crackers"


@dataclass(frozen=True, kw_only=True)
class Tuna(Choices):
    """3 093 households buy tinned tuna of five kinds, known by price alone (Kim, Blattberg and Rossi 1995)."""

    name: ClassVar[str] = "tuna"


@dataclass(frozen=True, kw_only=True)
class Trains(Choices):
    """235 Dutch travellers were asked which of two trains they prefer: price, time, changes and comfort (1987)."""

    name: ClassVar[str] = "trains"


@dataclass(frozen=True, kw_only=True)
class Electricity(Choices):
    """361 customers were asked up to twelve times which of four contracts for electricity they prefer (K. Train)."""

    name: ClassVar[str] = "electricity"


@dataclass(frozen=True, kw_only=True)
class Swissmetro(Choices):
    """1 191 travellers were asked nine times whether they would take train, car or a planned underground (1998)."""

    name: ClassVar[str] = "swissmetro"


@lru_cache(maxsize=8)
def load_occasions(name: str, least_occasions: int) -> Occasions:
    """Features and decision sets of those who have enough occasions."""
    offers = in_random_order(READERS[name]())
    rows, firsts = grouped(offers.occasion)
    people = offers.person[firsts]
    people_names, agents, counts = np.unique(people, return_inverse=True, return_counts=True)
    enough = counts[agents] >= least_occasions
    if not enough.any():
        raise InvalidParameter(
            f"expected least_occasions up to the {counts.max()} of the busiest person in {name}, got {least_occasions}"
        )
    kept, numbers = np.unique(agents[enough], return_inverse=True)
    labels, label_names = _labels(offers)
    known = np.stack([relative(values, offers.occasion) for values in offers.attributes.values()], axis=1)
    table = np.concatenate([labels, known], axis=1)
    table /= np.sqrt((table**2).sum(axis=1).mean())
    return Occasions(
        agents=numbers,
        people=tuple(str(person) for person in people_names[kept].tolist()),
        rows=rows[enough],
        table=table,
        rewards=offers.taken.astype(np.float64),
        feature_names=(*label_names, *offers.attributes),
        n_labels=len(label_names),
    )


def in_random_order(offers: Offers) -> Offers:
    """The alternatives of each occasion in a random but fixed order: ties go to the first arm, and the order in which a
    file lists brands would favour one of them."""
    shuffled = np.random.default_rng(0).permutation(len(offers.person))
    return offers.lines(shuffled[np.argsort(offers.occasion[shuffled], kind="stable")])


def _labels(offers: Offers) -> tuple[Matrix, tuple[str, ...]]:
    """One column for each alternative by name; one constant where alternatives have none."""
    if offers.label is None:
        return np.ones((len(offers.person), 1)), ("constant",)
    kinds, index = np.unique(offers.label, return_inverse=True)
    return np.eye(len(kinds))[index], tuple(str(kind) for kind in kinds.tolist())


def relative(values: Vector, occasion: Index) -> Vector:
    """Values less their mean on the same occasion, with root mean square 1; 0 if they never differ."""
    centred = values - (np.bincount(occasion, values) / np.bincount(occasion))[occasion]
    largest = float(np.abs(centred).max())
    if largest <= SAME * float(np.abs(values).max()):  # a mean of equal values may differ from them by rounding
        return np.zeros_like(centred)
    centred = centred / largest  # before squares could underflow
    return np.asarray(centred / np.sqrt((centred**2).mean()))
