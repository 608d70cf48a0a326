"""Which states of a model are kept, so that a change over time can be tested: few, spread evenly over its data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fedbandit.algorithms.messages import n_packed

MAX_CHECKPOINTS = 16
MAX_BYTES = 1 << 20  # of one state; models with larger ones (more than about 500 features) keep none
LEAST_GROWTH = 1.0 / MAX_CHECKPOINTS  # of the data since the last one


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The packed sums of a model at an earlier version."""

    at: float
    version: int
    generation: int
    n_obs: int
    packed: bytes


class KeptCheckpoint(NamedTuple):
    """A checkpoint without its sums."""

    id: int
    version: int
    generation: int
    n_obs: int


def keeps_checkpoints(dim: int) -> bool:
    """Whether the states of a model with this many features are small enough to be kept."""
    return 8 * n_packed(dim) <= MAX_BYTES


def next_count(n_obs: int) -> int:
    """The number of observations from which the checkpoint after one at `n_obs` is due."""
    return n_obs + max(int(LEAST_GROWTH * n_obs), 1)


def make_room(kept: Sequence[KeptCheckpoint], new: Checkpoint) -> tuple[bool, list[int]]:
    """Whether `new` is kept, and the ids of those that are deleted for it. `kept` is in the order of insertion.

    Checkpoints from before data were taken out say nothing about the sums of now, and all go. Of more than
    `MAX_CHECKPOINTS` the one goes whose neighbours are closest to each other.
    """
    same = [item for item in kept if item.generation == new.generation]
    if kept and kept[-1].version >= new.version:
        return False, []  # another replica has written a later one
    if same and same[-1].n_obs > new.n_obs:
        same = []
    gone = [item.id for item in kept if item not in same]
    if same and new.n_obs < next_count(same[-1].n_obs):
        return False, gone
    if len(same) >= MAX_CHECKPOINTS:
        counts = [0, *(item.n_obs for item in same), new.n_obs]
        gaps = [counts[i + 2] - counts[i] for i in range(len(same))]
        gone.append(same[gaps.index(min(gaps))].id)
    return True, gone
