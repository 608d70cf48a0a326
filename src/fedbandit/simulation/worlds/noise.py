"""How rewards scatter around their means: Gaussian, bounded, by action, or as coins."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbandit.core.arrays import Matrix, is_among
from fedbandit.errors import InvalidParameter

if TYPE_CHECKING:
    from fedbandit.simulation.worlds.base import Block

ROOT3 = 3.0**0.5
NOISE_KINDS = {
    "gaussian": "normal with standard deviation `noise`",
    "uniform": "uniform on ±√3·`noise`: bounded, with the same standard deviation",
    "heteroscedastic": "normal with standard deviation `noise`·(1 + mean)/2, at least 0 and at most `noise`",
    "signs": "rewards are ±1 with mean ⟨θ*, x⟩, which must lie in [−1, 1]; `noise` is not used",
    "bernoulli": "rewards are 0 or 1, with probability 1/(1 + exp(−⟨θ*, x⟩)) of 1; `noise` is not used",
}
BY_ACTION = ("heteroscedastic", "signs", "bernoulli")  # need the mean of each action


def check_noise_kind(world: Any, *, finite: bool = True) -> None:
    """The world's `noise_kind` is one that it can draw; infinite decision sets have no noise by action."""
    allowed = [kind for kind in NOISE_KINDS if finite or kind not in BY_ACTION]
    if world.noise_kind is not None and not is_among(world.noise_kind, allowed):
        raise InvalidParameter(f"expected noise_kind to be one of {', '.join(allowed)}, got {world.noise_kind!r}")


def with_noise_of(kind: str | None, block: Block, n: int, noise: float, rng: np.random.Generator) -> Block:
    """The block of n rounds with its noise, one draw per round whatever is chosen; of coins also the means."""
    if kind is None or kind == "gaussian":
        return replace(block, noise=noise * rng.standard_normal(n))
    if kind == "uniform":
        return replace(block, noise=noise * ROOT3 * rng.uniform(-1.0, 1.0, n))
    if block.means is None:
        raise InvalidParameter(f"noise {kind!r} needs the mean of every action in a block")
    if kind == "heteroscedastic":
        spread = noise * np.clip((1.0 + block.means) / 2.0, 0.0, 1.0)
        return replace(block, noise=rng.standard_normal(n)[:, None] * spread)
    coins = rng.random(n)[:, None]
    return _signs(block, block.means, coins) if kind == "signs" else _bernoulli(block, block.means, coins)


def _signs(block: Block, means: Matrix, coins: Matrix) -> Block:
    if np.abs(means).max() > 1.0 + 1e-12:
        raise InvalidParameter(f"rewards of ±1 need means within [−1, 1], got {np.abs(means).max():g}")
    rewards = np.where(coins < (1.0 + means) / 2.0, 1.0, -1.0)
    return replace(block, noise=rewards - means)


def _bernoulli(block: Block, scores: Matrix, coins: Matrix) -> Block:
    means = 1.0 / (1.0 + np.exp(-scores))
    return replace(block, means=means, noise=(coins < means) - means)
