"""What the rules of all algorithms share: their numbers, checked once, and their radius."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from fedbandit.algorithms.base import Estimate
from fedbandit.core import radius as radii
from fedbandit.core.arrays import finite_at_least, whole_at_least
from fedbandit.core.ridge import RidgeModel
from fedbandit.core.statistics import SufficientStats
from fedbandit.errors import InvalidParameter


@dataclass(frozen=True, kw_only=True)
class LinearRule:
    """dim, beta and lam: what every linear bandit needs."""

    dim: int
    beta: float | radii.AnyRadius
    lam: float = 1.0
    features: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "dim", whole_at_least(self.dim, 1, "dim"))
        object.__setattr__(self, "lam", finite_at_least(self.lam, 0.0, "lam", strictly=True))
        radii.as_radius(self.beta)
        if self.features is not None:
            object.__setattr__(self, "features", tuple(str(name) for name in self.features))
            if len(self.features or ()) != self.dim:
                raise InvalidParameter(f"expected {self.dim} feature names, got {len(self.features or ())}")

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

    def beta_for(self, estimate: Estimate, *, n_obs: int, version: int) -> float:
        """β for a model with this log-determinant, these observations and this many uploads behind it."""
        if isinstance(self.radius, radii.Fixed):
            return self.radius.beta
        rho = max(estimate.log_det - self.prior_model.log_det, 0.0)
        beta = self.radius(
            radii.Evidence(self.dim, self.lam, self.trigger_level, rho, n_obs, version, self.trigger_kind)
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
    if value not in allowed:
        raise InvalidParameter(f"expected {name} to be one of {', '.join(map(repr, allowed))}, got {value!r}")


def check_agent_id(agent_id: str) -> str:
    """A name that can stand in a URL and a log line."""
    name = str(agent_id)
    if not name or len(name) > 200 or any(ord(letter) < 33 or ord(letter) == 127 for letter in name):
        raise InvalidParameter(f"expected an agent id of 1 to 200 characters without spaces, got {name!r}")
    return name
