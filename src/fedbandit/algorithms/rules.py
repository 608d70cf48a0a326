"""What the rules of all algorithms share: their numbers, checked once, and their radius."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from functools import cached_property
from types import FrameType
from typing import Any, ClassVar

from fedbandit.algorithms.scoring import Estimate
from fedbandit.core import radius as radii
from fedbandit.core.arrays import finite_at_least, is_among, is_listing, whole_at_least
from fedbandit.core.block_rows import check_arms, check_blocks
from fedbandit.core.ridge import RidgeModel
from fedbandit.core.statistics import SufficientStats
from fedbandit.core.structure import ridge_model
from fedbandit.errors import InvalidParameter, UnprovenRadius

_radius_is_deliberate: ContextVar[bool] = ContextVar("radius_is_deliberate", default=False)


@contextmanager
def deliberate_radius() -> Iterator[None]:
    """Rules made here keep quiet about a radius that has no proof for them: they are compared, or loaded again."""
    token = _radius_is_deliberate.set(True)
    try:
        yield
    finally:
        _radius_is_deliberate.reset(token)


@dataclass(frozen=True, kw_only=True)
class LinearRule:
    """dim, beta and lam: what every linear bandit needs."""

    takes_blocks: ClassVar[bool] = False  # whether the algorithm has a form by blocks
    without_proof: ClassVar[str] = ""  # why `exogenous` and `adaptive` have no proof for this algorithm, if so

    dim: int
    beta: float | radii.AnyRadius
    lam: float = 1.0
    features: tuple[str, ...] | None = None
    blocks: int = 1  # disjoint arms: K blocks of dim/K columns, and every row in one of them
    arms: tuple[str, ...] | None = None  # names of the blocks

    def __post_init__(self) -> None:
        object.__setattr__(self, "dim", whole_at_least(self.dim, 1, "dim"))
        object.__setattr__(self, "lam", finite_at_least(self.lam, 0.0, "lam", strictly=True))
        radius = radii.as_radius(self.beta)
        if self.without_proof and isinstance(radius, radii.Exogenous | radii.Adaptive):
            name = type(self).__name__
            self._warn_unproven(
                f"fb.radius.{radius.kind} has no proof for {name}: {self.without_proof}. Use FedLinUCB for a "
                f"guarantee, or a number or fb.radius.counted for {name} as published, which promises none",
            )
        if self.features is not None:
            if not is_listing(self.features):
                raise InvalidParameter(f"expected features as a list of names, got {self.features!r}")
            object.__setattr__(self, "features", tuple(str(name) for name in self.features))
            if len(self.features or ()) != self.dim:
                raise InvalidParameter(f"expected {self.dim} feature names, got {len(self.features or ())}")
        object.__setattr__(self, "blocks", check_blocks(self.dim, self.blocks))
        if self.blocks > 1 and not self.takes_blocks:
            raise InvalidParameter(
                f"{type(self).__name__} has no form by blocks, got blocks = {self.blocks}; leave blocks out (rows of "
                f"fb.block_features work with every algorithm), or use FedLinUCB, OFUL, DisLinUCB or AsyncLinUCB"
            )
        object.__setattr__(self, "arms", check_arms(self.arms, self.blocks, self.features))

    def check_fleet(self, n_agents: int) -> None:
        """Warn if the radius promises less for this many agents than for one; called by drivers that know M."""

    def _warn_unproven(self, why: str, *, stacklevel: int = 1) -> None:
        """Warn where the rule is made, however many classes `__post_init__` passes through."""
        if _radius_is_deliberate.get():
            return
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_name in ("__post_init__", "__init__"):
            frame, stacklevel = frame.f_back, stacklevel + 1
        warnings.warn(why, UnprovenRadius, stacklevel=stacklevel + 1)

    @cached_property
    def radius(self) -> radii.AnyRadius:
        """β as an object."""
        return radii.as_radius(self.beta)

    @cached_property
    def prior(self) -> SufficientStats:
        """Σ = λI, b = 0."""
        return SufficientStats.prior(dim=self.dim, lam=self.lam, blocks=self.blocks)

    @cached_property
    def prior_model(self) -> RidgeModel:
        """The model before any data, shared by all agents until they learn."""
        return ridge_model(self.prior)

    @property
    def trigger_level(self) -> float:
        """α as the radius sees it; 0 where an algorithm has none."""
        return 0.0

    @property
    def trigger_kind(self) -> str:
        """Which trigger the radius must allow for."""
        return "determinant"

    def beta_for(self, estimate: Estimate, *, n_obs: int, version: int, own_buffer: bool = False) -> float:
        """β for a model with this log-determinant, these observations and this many uploads behind it.

        `own_buffer`: the agent held data that the model lacks when it adopted it.
        """
        if isinstance(self.radius, radii.Fixed):
            return self.radius.beta
        rho = max(estimate.log_det - self.prior_model.log_det, 0.0)
        beta = self.radius(
            radii.Evidence(self.dim, self.lam, self.trigger_level, rho, n_obs, version, self.trigger_kind, own_buffer)
        )
        if not math.isfinite(beta):
            raise InvalidParameter(f"expected a finite radius, got {beta} at alpha = {self.trigger_level:g}")
        return beta

    def to_dict(self) -> dict[str, Any]:
        """Plain values with the algorithm's name, for files and for the wire."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values["beta"] = radii.to_dict(self.radius)
        values["features"] = None if self.features is None else list(self.features)
        values["arms"] = None if self.arms is None else list(self.arms)
        if self.blocks == 1:  # as it was written before there was a choice: ids of specs stay
            del values["blocks"]
        if self.arms is None:
            del values["arms"]
        return {"algorithm": type(self).__name__, **values}


def one_of(value: str, allowed: tuple[str, ...], name: str) -> None:
    """`value` is one of the allowed words."""
    if not is_among(value, allowed):
        raise InvalidParameter(f"expected {name} to be one of {', '.join(map(repr, allowed))}, got {value!r}")
