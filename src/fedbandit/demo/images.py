"""The demo's data: scikit-learn's handwritten digits as a bandit with ten arms, split among agents."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedbandit.core.arrays import Matrix
from fedbandit.core.features import block_features
from fedbandit.simulation.worlds import Index

N_ARMS = 10
N_COMPONENTS = 10


@dataclass(frozen=True, slots=True)
class Images:
    """Some images, in the order in which they come: contexts (n, p) and labels (n,)."""

    contexts: Matrix
    labels: Index

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def dim(self) -> int:
        """One block of p features and a constant for each class."""
        return N_ARMS * (int(self.contexts.shape[1]) + 1)

    def actions(self, n: int) -> Matrix:
        """The decision set of image n, (10, dim)."""
        return np.asarray(block_features(self.contexts[n], N_ARMS))

    def reward(self, n: int, arm: int) -> float:
        """1 if the class is right."""
        return float(self.labels[n] == arm)

    def save(self, path: Path) -> None:
        """To a file that an agent's process reads without scikit-learn."""
        np.savez(path, contexts=self.contexts, labels=self.labels)

    @classmethod
    def load(cls, path: Path) -> Images:
        """The images of a file."""
        with np.load(path, allow_pickle=False) as data:
            return cls(data["contexts"], data["labels"])


def deal(n_agents: int, seed: int, n_images: int | None = None) -> list[Images]:
    """The digits, shuffled and dealt out one by one, so that agent m's n-th image is number n·M + m of all."""
    from fedbandit.simulation.datasets.classes import Digits

    world = Digits(pca=N_COMPONENTS)
    order = np.random.default_rng(seed).permutation(len(world.labels))[:n_images]
    parts = [order[m::n_agents] for m in range(n_agents)]
    return [Images(world.contexts[part], world.labels[part]) for part in parts]
