"""Worlds: θ*, decision sets, rewards. A seed gives the same world whatever the algorithm does.

A world draws its rounds in blocks of a fixed size, so that a run of 1 000 rounds is the beginning of one of 2 000.
Actions and noise come from separate streams: changing one does not move the other.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbandit.registry import Registry
from fedbandit.simulation.worlds.arrays import FromArrays, from_arrays
from fedbandit.simulation.worlds.base import (
    BLOCK_NUMBERS,
    MOST_AGENTS,
    Block,
    DrawnStream,
    Index,
    Stream,
    World,
    block_size,
    check_numbers,
    generator,
    reseed,
    sample_rows,
    unit_rows,
)
from fedbandit.simulation.worlds.changing import AbruptChange, RepeatedChanges, SlowChange, SmallChange
from fedbandit.simulation.worlds.clusters import Clusters
from fedbandit.simulation.worlds.fixed import FixedFeatures, FixedSet, FixedStream
from fedbandit.simulation.worlds.logistic import Logistic
from fedbandit.simulation.worlds.reactive import History, PlayedRound, ReactiveWorld, reactive
from fedbandit.simulation.worlds.synthetic import Adversarial, Articles, BallWorld, Sphere, Uniform

if TYPE_CHECKING:
    from fedbandit.simulation.datasets.base import DataWorld


def real(name: str, **options: Any) -> DataWorld:
    """The world of a data set by name: digits, flights, yogurt and others of packages; lastfm and more by download."""
    from fedbandit.simulation.datasets import catalog as data_sets

    return data_sets.real(name, **options)


def from_parquet(path: str | Path, **columns: Any) -> DataWorld:
    """A world of your own table: agent, decision, features and reward, one line for each arm of each decision."""
    from fedbandit.simulation.datasets.table import from_parquet as read

    return read(path, **columns)


uniform, articles, sphere, ball, adversarial = Uniform, Articles, Sphere, BallWorld, Adversarial
fixed_set, fixed_features, clusters, logistic = FixedSet, FixedFeatures, Clusters, Logistic
abrupt_change, small_change, slow_change, repeated_changes = AbruptChange, SmallChange, SlowChange, RepeatedChanges
_CHANGING = (AbruptChange, SmallChange, SlowChange, RepeatedChanges)
_OURS = (Uniform, Articles, Sphere, BallWorld, Adversarial, FixedSet, FixedFeatures, Clusters, Logistic, *_CHANGING)
WORLDS: Registry[Callable[..., World]] = Registry(
    "world", {world.name: world for world in _OURS}, group="fedbandit.worlds"
)

__all__ = [
    "BLOCK_NUMBERS",
    "MOST_AGENTS",
    "WORLDS",
    "AbruptChange",
    "Adversarial",
    "Articles",
    "BallWorld",
    "Block",
    "Clusters",
    "DrawnStream",
    "FixedFeatures",
    "FixedSet",
    "FixedStream",
    "FromArrays",
    "History",
    "Index",
    "Logistic",
    "PlayedRound",
    "ReactiveWorld",
    "RepeatedChanges",
    "SlowChange",
    "SmallChange",
    "Sphere",
    "Stream",
    "Uniform",
    "World",
    "abrupt_change",
    "adversarial",
    "articles",
    "ball",
    "block_size",
    "check_numbers",
    "clusters",
    "fixed_features",
    "fixed_set",
    "from_arrays",
    "from_parquet",
    "generator",
    "logistic",
    "reactive",
    "real",
    "repeated_changes",
    "reseed",
    "sample_rows",
    "slow_change",
    "small_change",
    "sphere",
    "uniform",
    "unit_rows",
]
