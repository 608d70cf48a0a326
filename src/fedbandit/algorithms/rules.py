"""What the rules of all algorithms share: their numbers, checked once, and their radius."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar

from fedbandit.algorithms.scoring import Estimate
from fedbandit.core import radius as radii
from fedbandit.core.arrays import finite_at_least, is_among, is_listing, whole_at_least
from fedbandit.core.ridge import RidgeModel
from fedbandit.core.statistics import SufficientStats
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

    without_proof: ClassVar[str] = ""  # why `exogenous` and `adaptive` have no proof for this algorithm, if so

    dim: int
    beta: float | radii.AnyRadius
    lam: float = 1.0
    features: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "dim", whole_at_least(self.dim, 1, "dim"))
        object.__setattr__(self, "lam", finite_at_least(self.lam, 0.0, "lam", strictly=True))
        radius = radii.as_radius(self.beta)
        if self.without_proof and isinstance(radius, radii.Exogenous | radii.Adaptive):
            name = type(self).__name__
            self._warn_unproven(
                f"fb.radius.{radius.kind} has no proof for {name}: {self.without_proof}. Use FedLinUCB for a "
                f"guarantee, or a number or fb.radius.counted for {name} as published, which promises none",
                stacklevel=4,  # __post_init__ of both classes, __init__
            )
        if self.features is not None:
            if not is_listing(self.features):
                raise InvalidParameter(f"expected features as a list of names, got {self.features!r}")
            object.__setattr__(self, "features", tuple(str(name) for name in self.features))
            if len(self.features or ()) != self.dim:
                raise InvalidParameter(f"expected {self.dim} feature names, got {len(self.features or ())}")

    def check_fleet(self, n_agents: int) -> None:
        """Warn if the radius promises less for this many agents than for one; called by drivers that know M."""

    def _warn_unproven(self, why: str, *, stacklevel: int) -> None:
        if not _radius_is_deliberate.get():
            warnings.warn(why, UnprovenRadius, stacklevel=stacklevel + 1)

    @cached_property
    def radius(self) -> radii.AnyRadius:
        """β as an object."""
        return radii.as_radius(self.beta)

    @cached_property
    def prior(self) -> SufficientStats:
        """Σ = λI, b = 0."""
        return SufficientStats.prior(dim=self.dim, lam=self.lam)

    @cached_property
    def prior_model(self) -> RidgeModel:
        """The model before any data, shared by all agents until they learn."""
        return RidgeModel(self.prior)

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
        return {"algorithm": type(self).__name__, **values}


def one_of(value: str, allowed: tuple[str, ...], name: str) -> None:
    """`value` is one of the allowed words."""
    if not is_among(value, allowed):
        raise InvalidParameter(f"expected {name} to be one of {', '.join(map(repr, allowed))}, got {value!r}")
