"""The files inside the archives of HetRec 2011 and MovieLens, each in its own dialect of text."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedbandit.core.arrays import Vector
from fedbandit.errors import FormatError, MissingExtra
from fedbandit.simulation.datasets.download import SOURCES, fetch
from fedbandit.simulation.worlds import Index

GENRES_100K = (  # in the order of the flags in u.item
    "unknown",
    "Action",
    "Adventure",
    "Animation",
    "Children's",
    "Comedy",
    "Crime",
    "Documentary",
    "Drama",
    "Fantasy",
    "Film-Noir",
    "Horror",
    "Musical",
    "Mystery",
    "Romance",
    "Sci-Fi",
    "Thriller",
    "War",
    "Western",
)
YEAR = re.compile(r"\((\d{4})\)\s*$")


@dataclass(frozen=True, slots=True, eq=False)
class Touched:
    """Events (user, item) and tags (item, tag, weight), with the numbers and words of the files."""

    users: Index
    items: Index
    tagged_items: Index
    tags: np.ndarray[Any, np.dtype[Any]]
    weights: Vector


def read_touched(name: str, folder: str | None, least_rating: float) -> Touched:
    """Events and tags of a data set; the archive is fetched if it is not there."""
    path = fetch(SOURCES[name], folder)
    try:
        with zipfile.ZipFile(path) as archive:
            return READERS[name](Archive(archive), least_rating)
    except (zipfile.BadZipFile, KeyError, ValueError, UnicodeDecodeError) as error:
        raise FormatError(f"{path} is not a known {name} archive: {error}") from None


class Archive:
    """A zip file whose members are found by their last name, in whatever folder they are."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self.archive = archive
        self.members = {member.rpartition("/")[2]: member for member in archive.namelist()}

    def table(self, member: str, **options: Any) -> Any:
        """A member as a data frame."""
        return _pandas().read_csv(io.BytesIO(self._bytes(member)), **options)

    def lines(self, member: str, encoding: str = "latin-1") -> list[str]:
        """A member as lines of text."""
        return self._bytes(member).decode(encoding).splitlines()

    def _bytes(self, member: str) -> bytes:
        if member not in self.members:
            raise KeyError(f"it has no {member}")
        return self.archive.read(self.members[member])


def _pandas() -> Any:
    try:
        import pandas
    except ImportError as error:
        raise MissingExtra("reading these files needs pandas: install fedbandit[data]") from error
    return pandas


def _tabs(archive: Archive, member: str, columns: list[str]) -> Any:
    # Titles hold quotes that close nowhere, and bytes of several encodings: only numbers are read.
    return archive.table(member, sep="\t", usecols=columns, quoting=3, encoding="latin-1")


def lastfm(archive: Archive, least_rating: float) -> Touched:
    """user_artists.dat (userID artistID weight), user_taggedartists.dat (userID artistID tagID day month year).

    The weight is how often the user listened to the artist; it stands in for a rating.
    """
    heard = _tabs(archive, "user_artists.dat", ["userID", "artistID", "weight"])
    heard = heard[heard["weight"] >= least_rating]
    tagged = _tabs(archive, "user_taggedartists.dat", ["artistID", "tagID"])
    return _touched(heard["userID"], heard["artistID"], tagged["artistID"], tagged["tagID"])


def delicious(archive: Archive, least_rating: float) -> Touched:
    """user_taggedbookmarks.dat (userID bookmarkID tagID …), bookmark_tags.dat (bookmarkID tagID tagWeight)."""
    kept = _tabs(archive, "user_taggedbookmarks.dat", ["userID", "bookmarkID"])
    tagged = _tabs(archive, "bookmark_tags.dat", ["bookmarkID", "tagID", "tagWeight"])
    # A page's tag counts how many people gave it; the logarithm keeps a popular page from being one tag only.
    weights = np.log1p(tagged["tagWeight"].to_numpy(dtype=np.float64))
    return _touched(kept["userID"], kept["bookmarkID"], tagged["bookmarkID"], tagged["tagID"], weights)


def movielens_100k(archive: Archive, least_rating: float) -> Touched:
    """u.data (user, item, rating, time by tabs), u.item (number | title | … | 19 flags of genres)."""
    rated = archive.table("u.data", sep="\t", header=None, names=["user", "item", "rating", "time"])
    tags = []
    for line in archive.lines("u.item"):
        fields = line.split("|")
        flags = fields[-len(GENRES_100K) :]
        genres = [genre for genre, flag in zip(GENRES_100K, flags, strict=True) if flag == "1"]
        tags += [(int(fields[0]), tag) for tag in [*genres, *_decade(fields[1])]]
    return _rated(rated, least_rating, tags)


def movielens_1m(archive: Archive, least_rating: float) -> Touched:
    """ratings.dat (user::item::rating::time), movies.dat (item::title::genres by bars)."""
    # A single colon is a fast separator, and leaves an empty column between any two.
    columns = ["user", "_1", "item", "_2", "rating", "_3", "time"]
    rated = archive.table("ratings.dat", sep=":", header=None, names=columns, usecols=["user", "item", "rating"])
    tags = []
    for line in archive.lines("movies.dat"):
        item, title, genres = line.split("::")
        tags += [(int(item), tag) for tag in [*genres.split("|"), *_decade(title)]]
    return _rated(rated, least_rating, tags)


def movielens_20m(archive: Archive, least_rating: float) -> Touched:
    """ratings.csv, movies.csv (movieId, title, genres by bars), tags.csv (userId, movieId, tag, timestamp)."""
    rated = archive.table("ratings.csv", usecols=["userId", "movieId", "rating"])
    rated = rated.rename(columns={"userId": "user", "movieId": "item"})
    movies = archive.table("movies.csv", usecols=["movieId", "genres"])
    tags = [
        (int(item), genre)
        for item, genres in zip(movies["movieId"], movies["genres"], strict=True)
        for genre in genres.split("|")
    ]
    given = archive.table("tags.csv", usecols=["movieId", "tag"]).dropna()
    tags += [(int(item), str(tag).strip().lower()) for item, tag in zip(given["movieId"], given["tag"], strict=True)]
    return _rated(rated, least_rating, tags)


def _decade(title: str) -> list[str]:
    found = YEAR.search(title)
    return [f"{found.group(1)[:3]}0s"] if found else []


def _rated(rated: Any, least_rating: float, tags: Iterable[tuple[int, str]]) -> Touched:
    rated = rated[rated["rating"] >= least_rating]
    items, words = zip(*tags, strict=True)
    return _touched(rated["user"], rated["item"], items, words)


def _touched(users: Any, items: Any, tagged: Any, tags: Any, weights: Vector | None = None) -> Touched:
    words = np.asarray(tags)
    return Touched(
        np.asarray(users, dtype=np.int64),
        np.asarray(items, dtype=np.int64),
        np.asarray(tagged, dtype=np.int64),
        words,
        np.ones(len(words)) if weights is None else weights,
    )


READERS: dict[str, Callable[[Archive, float], Touched]] = {
    "lastfm": lastfm,
    "delicious": delicious,
    "movielens-100k": movielens_100k,
    "movielens-1m": movielens_1m,
    "movielens-20m": movielens_20m,
}
