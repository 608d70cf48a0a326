"""Classification as a bandit: the arms are the classes, the right one pays 1, and only the chosen one is observed.

The data sets come with scikit-learn, offline. Their agents are artificial: these rows were not gathered by a fleet.
They are split over agents at random, or by label so that agents see different classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import ClassVar

import numpy as np

from fedbandit.core.arrays import Matrix, Vector, keep_whole
from fedbandit.core.features import block_features
from fedbandit.errors import InvalidParameter, MissingExtra
from fedbandit.simulation.datasets.base import DataWorld, even_counts, label_split, random_split
from fedbandit.simulation.worlds import Block, Index

SPLITS = ("random", "labels")


@dataclass(frozen=True, kw_only=True)
class Classes(DataWorld):
    """One of scikit-learn's data sets. A row's context fills the block of an arm (`fb.block_features`).

    Columns are brought to mean 0 and one scale, then to `pca` principal components (all columns when None), then
    divided by the root mean square length, so that a typical context has length 1; a constant stands behind them.
    The components are fitted on all rows, which uses future contexts, but no labels.
    `split` is "random", or "labels": each agent sees about two classes. Both are drawn anew with each seed.
    """

    n_agents: int = 20
    split: str = "random"
    pca: int | None = None

    def __post_init__(self) -> None:
        keep_whole(self, "n_agents", 1)
        if self.split not in SPLITS:
            raise InvalidParameter(f"expected split to be one of {', '.join(SPLITS)}, got {self.split!r}")
        if self.pca is not None:
            keep_whole(self, "pca", 1)

    @cached_property
    def contexts(self) -> Matrix:
        """(n, p) without the constant."""
        X, _ = load_classes(self.name)
        return reduced(X, self.pca)

    @cached_property
    def labels(self) -> Index:
        """The right class of each row, (n,)."""
        return load_classes(self.name)[1]

    @property
    def dim(self) -> int:
        return int(self.n_arms * (self.contexts.shape[1] + 1))

    @property
    def row_numbers(self) -> int:
        return int(self.contexts.shape[1]) + 2  # the context, the arm and the reward

    @property
    def blocks(self) -> int:
        """Each row lies in the block of columns of its class."""
        return self.n_arms

    @cached_property
    def n_arms(self) -> int:
        return int(self.labels.max()) + 1

    @property
    def row_counts(self) -> tuple[int, ...]:
        return even_counts(len(self.labels), self.n_agents)

    def owners(self, rng: np.random.Generator) -> Index:
        if self.split == "random":
            return random_split(len(self.labels), self.row_counts, rng)
        return label_split(self.labels, self.row_counts, rng)

    def offer(self, picked: Index, rng: np.random.Generator) -> Block:
        array = block_features(self.contexts[picked], self.n_arms)
        means = (self.labels[picked, None] == np.arange(self.n_arms)).astype(np.float64)
        return Block(np.zeros(len(picked)), means, array)


@dataclass(frozen=True, kw_only=True)
class Digits(Classes):
    """1 797 handwritten digits of 8 by 8 pixels; ten arms."""

    name: ClassVar[str] = "digits"
    pca: int | None = 10


@dataclass(frozen=True, kw_only=True)
class BreastCancer(Classes):
    """569 tumours, 30 measurements each; two arms."""

    name: ClassVar[str] = "breast_cancer"
    n_agents: int = 10
    pca: int | None = 10


@dataclass(frozen=True, kw_only=True)
class Wine(Classes):
    """178 wines, 13 measurements each; three arms."""

    name: ClassVar[str] = "wine"
    n_agents: int = 5


@lru_cache(maxsize=8)
def load_classes(name: str) -> tuple[Matrix, Index]:
    """Columns and labels of a data set that comes with scikit-learn."""
    try:
        from sklearn import datasets
    except ImportError as error:
        raise MissingExtra(f"the {name} world needs scikit-learn: install fedbandit[data]") from error
    X, labels = getattr(datasets, f"load_{name}")(return_X_y=True)
    # Pixels share a scale, and those at the edge hardly vary: only measurements in different units are standardised.
    return (X / 16.0 if name == "digits" else standard(X)), np.asarray(labels, dtype=np.int64)


def standard(X: Matrix) -> Matrix:
    """Columns with mean 0 and deviation 1; a constant column becomes 0."""
    spread = X.std(axis=0)
    return np.asarray((X - X.mean(axis=0)) / np.where(spread > 0, spread, 1.0))


def reduced(X: Matrix, n_components: int | None) -> Matrix:
    """Principal components, the largest first, with root mean square length 1."""
    centred = X - X.mean(axis=0)
    if n_components is not None:
        if n_components > min(X.shape):
            raise InvalidParameter(f"expected pca from 1 to {min(X.shape)}, got {n_components}")
        _, _, V = np.linalg.svd(centred, full_matrices=False)
        centred = centred @ _signed(V[:n_components]).T
    return np.asarray(centred / np.sqrt((centred**2).sum(axis=1).mean()))


def _signed(V: Matrix) -> Matrix:
    """The largest entry of each direction is positive, so that all machines agree."""
    largest: Vector = V[np.arange(len(V)), np.abs(V).argmax(axis=1)]
    return V * np.sign(largest)[:, None]
