"""Last.fm, Delicious and MovieLens by the literature's protocol: agents are users, items are known by their tags.

Tags by item are weighted by TF-IDF and reduced to 25 principal components. Each event (a user listened to an artist,
bookmarked a page, rated a film) is a round of that user: the item pays 1 and is offered among 24 items that the user
never touched, which pay 0. The 24 are drawn anew with each seed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import ClassVar

import numpy as np

from fedbandit.core.arrays import Matrix, keep_finite, keep_whole
from fedbandit.errors import InvalidParameter, MissingExtra
from fedbandit.simulation.datasets.base import DataWorld
from fedbandit.simulation.datasets.formats import Touched, read_touched
from fedbandit.simulation.worlds import Block, Index, generator

TRIES = 200


@dataclass(frozen=True, slots=True, eq=False)
class Events:
    """Events: users and items numbered from 0, features of items."""

    users: Index  # (n,)
    items: Index  # (n,)
    table: Matrix  # (N, d)
    touched: Index  # sorted user·N + item of all events, also of those that are not played
    user_names: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Tagged(DataWorld):
    """A data set of users, items and tags.

    `folder` holds the downloaded archive (the cache directory when None). Users with fewer than `least_events` events
    are left out; `n_agents` keeps the most active of the others.
    """

    dim: int = 25
    n_actions: int = 25
    least_events: int = 1
    n_agents: int | None = None
    least_rating: float = 0.0
    folder: str | None = None

    def __post_init__(self) -> None:
        keep_whole(self, "dim", 1)
        keep_whole(self, "n_actions", 2)
        keep_whole(self, "least_events", 1)
        keep_finite(self, "least_rating", 0.0)
        if self.n_agents is not None:
            keep_whole(self, "n_agents", 1)

    @cached_property
    def events(self) -> Events:
        """The data, read at first use; downloaded if need be."""
        return load_events(self.name, self.folder, self.dim, self.least_rating, self.least_events, self.n_agents)

    @property
    def n_arms(self) -> int:
        return self.n_actions

    @cached_property
    def row_counts(self) -> tuple[int, ...]:
        return tuple(np.bincount(self.events.users).tolist())

    @property
    def block_rounds(self) -> int:
        return 256

    def owners(self, rng: np.random.Generator) -> Index:
        return self.events.users

    def offer(self, picked: Index, rng: np.random.Generator) -> Block:
        users, items = self.events.users[picked], self.events.items[picked]
        rows = untouched(users, self.n_actions, self.events, rng)
        place = rng.integers(self.n_actions, size=len(picked))
        rows[np.arange(len(picked)), place] = items
        means = (np.arange(self.n_actions) == place[:, None]).astype(np.float64)
        return Block(np.zeros(len(picked)), means, table=self.events.table, rows=rows)


def untouched(users: Index, k: int, events: Events, rng: np.random.Generator) -> Index:
    """k different items for each user that the user never touched, (n, k), by drawing again where needed."""
    N = len(events.table)
    rows = rng.integers(N, size=(len(users), k))
    for _ in range(TRIES):
        keys = users[:, None] * N + rows
        place = np.minimum(np.searchsorted(events.touched, keys), len(events.touched) - 1)
        bad = events.touched[place] == keys
        order = np.argsort(rows, axis=1, kind="stable")
        twice = np.diff(np.take_along_axis(rows, order, axis=1), axis=1) == 0
        np.put_along_axis(bad, order[:, 1:], np.take_along_axis(bad, order[:, 1:], axis=1) | twice, axis=1)
        if not bad.any():
            return rows
        rows[bad] = rng.integers(N, size=int(bad.sum()))
    raise InvalidParameter(f"some users touched nearly all of the {N} items: there are not {k} others to offer")


@dataclass(frozen=True, kw_only=True)
class LastFm(Tagged):
    """1 892 listeners, 17 632 artists; the tags are those that listeners gave (HetRec 2011)."""

    name: ClassVar[str] = "lastfm"


@dataclass(frozen=True, kw_only=True)
class Delicious(Tagged):
    """1 867 people, 69 226 bookmarked pages; the tags are those of all of Delicious (HetRec 2011)."""

    name: ClassVar[str] = "delicious"


@dataclass(frozen=True, kw_only=True)
class MovieLens100k(Tagged):
    """943 viewers, 1 682 films. It has no tags: genres and the decade of release stand in for them."""

    name: ClassVar[str] = "movielens-100k"


@dataclass(frozen=True, kw_only=True)
class MovieLens1M(Tagged):
    """6 040 viewers, 3 883 films. It has no tags: genres and the decade of release stand in for them."""

    name: ClassVar[str] = "movielens-1m"


@dataclass(frozen=True, kw_only=True)
class MovieLens20M(Tagged):
    """20 million ratings; tags by viewers, and genres. As in the literature, viewers with 3 000 ratings or more."""

    name: ClassVar[str] = "movielens-20m"
    least_events: int = 3000


@lru_cache(maxsize=2)
def load_events(
    name: str, folder: str | None, dim: int, least_rating: float, least_events: int, n_agents: int | None
) -> Events:
    """Read the archive and number its users and items; items without a tag can be neither events nor offers."""
    data = read_touched(name, folder, least_rating)
    known = np.unique(data.tagged_items)
    events = np.unique(np.stack([data.users, data.items], axis=1), axis=0)
    events = events[np.isin(events[:, 1], known)]
    if len(events) == 0:
        raise InvalidParameter(f"the {name} data has no event whose item has a tag")
    items = np.searchsorted(known, events[:, 1])
    names, users = np.unique(events[:, 0], return_inverse=True)
    counts = np.bincount(users)
    kept = np.flatnonzero(counts >= least_events)
    kept = np.sort(kept[np.argsort(-counts[kept], kind="stable")][:n_agents])
    if len(kept) == 0 or (n_agents is not None and len(kept) < n_agents):
        raise InvalidParameter(f"{len(kept)} users of {name} have {least_events} events or more; ask for fewer agents")
    mine = np.isin(users, kept)
    users, items = np.searchsorted(kept, users[mine]), items[mine]
    table = item_features(data, known, dim)
    # In a random but fixed order, so that the order of item numbers carries no information even without shuffling.
    order = generator(np.random.SeedSequence(0)).permutation(len(users))
    touched = np.sort(users * len(known) + items)
    return Events(users[order], items[order], table, touched, tuple(str(n) for n in names[kept]))


def item_features(data: Touched, known: Index, dim: int) -> Matrix:
    """TF-IDF of tags, the `dim` largest principal components, rows of length 1 (0 for items without weight)."""
    try:
        from scipy import sparse
        from sklearn.decomposition import PCA
    except ImportError as error:
        raise MissingExtra("tags need scikit-learn and scipy: install fedbandit[data]") from error
    tags, columns = np.unique(data.tags, return_inverse=True)
    if not dim < min(len(tags), len(known)):
        raise InvalidParameter(
            f"expected dim below the {min(len(tags), len(known))} tags or items there are, got {dim}"
        )
    rows = np.searchsorted(known, data.tagged_items)
    counts = sparse.csr_matrix((data.weights, (rows, columns)), shape=(len(known), len(tags)))
    documents = np.bincount(counts.indices, minlength=len(tags))
    weighted = counts @ sparse.diags(np.log(len(known) / documents) + 1.0)
    lengths = np.sqrt(np.asarray(weighted.multiply(weighted).sum(axis=1)).ravel())
    weighted = sparse.diags(1.0 / np.where(lengths > 0, lengths, 1.0)) @ weighted
    reduced = PCA(n_components=dim, svd_solver="arpack", random_state=0).fit_transform(weighted.tocsr())
    lengths = np.linalg.norm(reduced, axis=1)
    return np.asarray(reduced / np.where(lengths > 0, lengths, 1.0)[:, None])
