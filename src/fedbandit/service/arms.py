"""The arms of a model with one block of columns per arm: observations, mean reward, share of information, estimate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fedbandit.core.arrays import Vector
from fedbandit.errors import InvalidParameter
from fedbandit.service.insight import ModelInsight

SORTS = ("name", "n_obs", "mean_reward", "share", "norm")
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Arm:
    """One arm. `n_obs` and `mean_reward` are None where no feature is constant: sums do not tell them then."""

    name: str
    n_obs: int | None
    mean_reward: float | None
    share: float  # of the model's information: tr(I − λΣ⁻¹) over the arm's block, divided by d
    norm: float  # ‖θ̂‖ of the arm

    def to_dict(self) -> dict[str, Any]:
        """Plain values for the API."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class ArmTable:
    """All arms of a model in its own order; the shares of all arms and of the prior add to 1."""

    arms: tuple[Arm, ...]
    prior_share: float
    constant: int | None  # which feature of a block is constant, and so counts; None: none is

    def sorted(self, sort: str) -> list[Arm]:
        """The arms by one of `SORTS`, descending with a leading `-`; arms without a value come last."""
        key = sort.removeprefix("-")
        if key not in SORTS:
            raise InvalidParameter(f"expected sort to be one of {', '.join(SORTS)}, got {sort[:50]!r}")
        known = [arm for arm in self.arms if getattr(arm, key) is not None]
        unknown = [arm for arm in self.arms if getattr(arm, key) is None]
        return sorted(known, key=lambda arm: getattr(arm, key), reverse=sort.startswith("-")) + unknown

    def to_dict(self) -> dict[str, Any]:
        """Plain values for the API."""
        arms = [arm.to_dict() for arm in self.arms]
        return {"arms": arms, "prior_share": self.prior_share, "constant": self.constant}


def arm_table(insight: ModelInsight) -> ArmTable:
    """The arms of a model; `InvalidParameter` for a model without blocks."""
    model, ridge = insight.model, insight.ridge
    settings, blocks = model.settings, model.settings.blocks
    if blocks == 1:
        raise InvalidParameter(f"model {settings.name!r} has no blocks: create it with blocks or arms")
    p = settings.dim // blocks
    inverse = ridge.inverse_diagonal.reshape(blocks, p)
    shares = (1.0 - settings.lam * inverse).sum(axis=1) / settings.dim
    norms = np.linalg.norm(ridge.theta_hat.reshape(blocks, p), axis=1)
    diagonal = ridge.stats.diagonal.reshape(blocks, p) - settings.lam
    sums = ridge.stats.b.reshape(blocks, p)
    place = _constant(diagonal, sums, model.n_obs, model.reward_sum)
    names: Sequence[str] = settings.arms or [f"arm {i + 1}" for i in range(blocks)]
    counts = None if place is None else np.rint(diagonal[:, place])
    arms = [
        Arm(
            names[k],
            None if counts is None else int(counts[k]),
            None if counts is None or place is None or not counts[k] else float(sums[k, place] / counts[k]),
            float(max(shares[k], 0.0)),
            float(norms[k]),
        )
        for k in range(blocks)
    ]
    return ArmTable(tuple(arms), insight.prior_share, place)


def _constant(diagonal: Vector, sums: Vector, n_obs: int, reward_sum: float) -> int | None:
    """The feature that is 1 in every row: over all arms Σx² is then n and Σrx is Σr, and each arm's Σx² is whole."""
    scale = max(abs(reward_sum), 1.0)
    for place in reversed(range(diagonal.shape[1])):  # `choose_context` puts its constant last
        counts, rewards = diagonal[:, place], sums[:, place]
        is_whole = bool(np.all(np.abs(counts - np.rint(counts)) <= ROUNDING * np.maximum(counts, 1.0)))
        is_count = is_whole and abs(float(counts.sum()) - n_obs) <= ROUNDING * max(n_obs, 1)
        if is_count and abs(float(rewards.sum()) - reward_sum) <= ROUNDING * scale * max(n_obs, 1) ** 0.5:
            return place
    return None
