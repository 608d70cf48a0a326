"""Worlds whose θ* changes: at once, a little, all the time, again and again.

Actions are those of the uniform world, so runs can be compared with it. θ* begins as 1/√d in every coordinate; its
length stays 1. Which coordinates change, and where to, is random by seed; when is not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedbandit.core.arrays import Matrix, keep_finite, keep_whole
from fedbandit.simulation.worlds.base import Block, DrawnStream, Index, Stream, generator, unit_rows
from fedbandit.simulation.worlds.synthetic import FiniteWorld

Truths = Callable[[Index], Matrix]  # θ* of each of these rounds, counted from 0: (n,) -> (n, d)


@dataclass(frozen=True, kw_only=True)
class ChangingWorld(FiniteWorld):
    """What all changing worlds share: the actions of the uniform world and a θ* that depends on the round."""

    def truths(self, rng: np.random.Generator) -> Truths:
        """θ* as a function of the round."""
        raise NotImplementedError

    def stream(self, seed: np.random.SeedSequence) -> Stream:
        """One seeded run."""
        actions, noise, truth = seed.spawn(3)
        theta_at = self.truths(generator(truth))
        scale = 2.0 * self.dim**-0.5
        played = 0

        def make(rng: np.random.Generator, active: Index) -> Block:
            nonlocal played
            array = rng.random((len(active), self.n_actions, self.dim))
            array -= 0.5
            array *= scale
            thetas = theta_at(played + np.arange(len(active)))
            played += len(active)
            return Block(np.empty(0), np.einsum("nkd,nd->nk", array, thetas), array)

        return DrawnStream(None, generator(actions), generator(noise), self.noise, make, self.noise_kind)

    @property
    def _start(self) -> Matrix:
        return np.full(self.dim, self.dim**-0.5)

    def _flipped(self, theta: Matrix, rng: np.random.Generator) -> Matrix:
        """θ with half of its signs flipped, at least one."""
        signs = np.ones(self.dim)
        signs[rng.permutation(self.dim)[: max(self.dim // 2, 1)]] = -1.0
        return theta * signs

    def _across(self, rng: np.random.Generator) -> Matrix:
        """A random unit vector orthogonal to the first θ*; −θ* in one dimension."""
        if self.dim == 1:
            return -self._start
        v = rng.standard_normal(self.dim)
        v -= (v @ self._start) * self._start
        return unit_rows(v)


@dataclass(frozen=True, kw_only=True)
class AbruptChange(ChangingWorld):
    """Half of the signs of θ* flip after `at` rounds."""

    name: ClassVar[str] = "abrupt-change"
    at: int = 30_000

    def __post_init__(self) -> None:
        super().__post_init__()
        keep_whole(self, "at", 1)

    def truths(self, rng: np.random.Generator) -> Truths:
        """θ* as a function of the round."""
        both = np.stack([self._start, self._flipped(self._start, rng)])
        return lambda rounds: both[(rounds >= self.at).astype(np.int64)]


@dataclass(frozen=True, kw_only=True)
class SmallChange(ChangingWorld):
    """θ* turns by `angle` (radians) in a random direction after `at` rounds."""

    name: ClassVar[str] = "small-change"
    at: int = 30_000
    angle: float = 0.4

    def __post_init__(self) -> None:
        super().__post_init__()
        keep_whole(self, "at", 1)
        keep_finite(self, "angle", 0.0)

    def truths(self, rng: np.random.Generator) -> Truths:
        """θ* as a function of the round."""
        turned = np.cos(self.angle) * self._start + np.sin(self.angle) * self._across(rng)
        both = np.stack([self._start, turned])
        return lambda rounds: both[(rounds >= self.at).astype(np.int64)]


@dataclass(frozen=True, kw_only=True)
class SlowChange(ChangingWorld):
    """θ* turns all the time, by a quarter of a turn every `quarter` rounds."""

    name: ClassVar[str] = "slow-change"
    quarter: int = 30_000

    def __post_init__(self) -> None:
        super().__post_init__()
        keep_whole(self, "quarter", 1)

    def truths(self, rng: np.random.Generator) -> Truths:
        """θ* as a function of the round."""
        start, across = self._start, self._across(rng)

        def turned(rounds: Index) -> Matrix:
            phi = (0.5 * np.pi / self.quarter) * rounds[:, None]
            return np.asarray(np.cos(phi) * start + np.sin(phi) * across)

        return turned


@dataclass(frozen=True, kw_only=True)
class RepeatedChanges(ChangingWorld):
    """Half of the signs of θ*, others each time, flip every `every` rounds."""

    name: ClassVar[str] = "repeated-changes"
    every: int = 15_000

    def __post_init__(self) -> None:
        super().__post_init__()
        keep_whole(self, "every", 1)

    def truths(self, rng: np.random.Generator) -> Truths:
        """θ* as a function of the round."""
        known = [self._start]

        def at(rounds: Index) -> Matrix:
            phases = rounds // self.every
            while len(known) <= int(phases[-1]):
                known.append(self._flipped(known[-1], rng))
            first = int(phases[0])
            return np.stack(known[first : int(phases[-1]) + 1])[phases - first]

        return at
