"""What a model fixes for every agent, and its description as a server sends it."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedbandit.algorithms.fedlinucb import FedLinUCB
from fedbandit.algorithms.messages import packed_bytes
from fedbandit.core import radius as radii
from fedbandit.core.arrays import Matrix, Vector, finite_at_least
from fedbandit.core.plausibility import Bounds
from fedbandit.core.statistics import SufficientStats
from fedbandit.errors import FormatError, InvalidInput, InvalidParameter
from fedbandit.wire.codec import MAX_DIM
from fedbandit.wire.identifiers import check_model_name

LARGEST_BOUND = 1e30  # the scores of 2⁵³ such observations are finite at λ ≥ 1e-3
# For models that set no bound: beyond any sensible scale, and no data within it can keep an agent from deciding.
DEFAULT_BOUND = 1e9
DEFAULT_MAX_RATE = 10_000.0  # observations per second and agent
MAX_SHARE_DIM = 200  # beyond it a factorisation for every upload takes too long
SLACK = 1.0 + 1e-9  # a row of norm L in the application's arithmetic may come out a bit longer in ours


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """What a model fixes when it is created; every agent gets the same."""

    name: str
    dim: int
    lam: float
    alpha: float
    radius: radii.AnyRadius
    features: tuple[str, ...] | None = None
    action_bound: float | None = None
    reward_bound: float | None = None
    max_rate: float | None = None
    max_share: float | None = None

    def __post_init__(self) -> None:
        check_model_name(self.name)
        if self.dim > MAX_DIM:
            raise InvalidParameter(f"expected dim ≤ {MAX_DIM}, got {self.dim}")
        self.rule()
        for feature in self.features or ():
            if not feature.isprintable():  # also a lone surrogate, which no answer could carry
                raise InvalidParameter(f"expected printable feature names, got {feature[:100]!a}")
        for name, bound in (("action_bound", self.action_bound), ("reward_bound", self.reward_bound)):
            if bound is not None and finite_at_least(bound, 0.0, name, strictly=True) > LARGEST_BOUND:
                raise InvalidParameter(f"expected {name} ≤ {LARGEST_BOUND:g}, got {bound:g}")
        if self.max_rate is not None:
            finite_at_least(self.max_rate, 0.0, "max_rate", strictly=True)
        if self.max_share is not None:
            if not 0.0 < self.max_share <= 1.0:
                raise InvalidParameter(f"expected max_share above 0 and at most 1, got {self.max_share:g}")
            if self.dim > MAX_SHARE_DIM:
                raise InvalidParameter(
                    f"expected dim ≤ {MAX_SHARE_DIM} with max_share, which factorises Σ for every upload"
                )

    def rule(self, *, min_upload: int = 1) -> FedLinUCB:
        """The algorithm of the model's agents, which begin with a download."""
        return FedLinUCB(
            dim=self.dim,
            lam=self.lam,
            alpha=self.alpha,
            beta=self.radius,
            features=self.features,
            join=True,
            min_upload=min_upload,
        )

    @property
    def bounds(self) -> Bounds:
        """What an upload must respect, whether the model's creator set it or not."""
        return Bounds(self.largest_action, self.largest_reward)

    @property
    def largest_action(self) -> float:
        """The longest action that an upload may hold."""
        return DEFAULT_BOUND if self.action_bound is None else self.action_bound

    @property
    def largest_reward(self) -> float:
        """The largest |r| that an upload may hold."""
        return DEFAULT_BOUND if self.reward_bound is None else self.reward_bound

    @property
    def observation_rate(self) -> float:
        """Observations per second that one agent may bring."""
        return DEFAULT_MAX_RATE if self.max_rate is None else self.max_rate

    def prior(self) -> bytes:
        """The packed state before any upload: λ on the diagonal, zero elsewhere."""
        return packed_bytes(SufficientStats.prior(dim=self.dim, lam=self.lam))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for files, the database and the wire; α = ∞ (never exchange), which JSON has not, is null."""
        return {
            "name": self.name,
            "dim": self.dim,
            "lam": self.lam,
            "alpha": None if math.isinf(self.alpha) else self.alpha,
            "radius": radii.to_dict(self.radius),
            "features": None if self.features is None else list(self.features),
            "action_bound": self.action_bound,
            "reward_bound": self.reward_bound,
            "max_rate": self.max_rate,
            "max_share": self.max_share,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> ModelSettings:
        """The settings of a dictionary made by `to_dict`; other keys are ignored."""
        if type(data["dim"]) is not int:
            raise InvalidParameter(f"expected dim as a whole number, got {data['dim']!r}")
        features = data.get("features")
        if features is not None and not (isinstance(features, list) and all(isinstance(f, str) for f in features)):
            raise InvalidParameter("expected features as a list of names")
        return cls(
            name=data["name"],
            dim=data["dim"],
            lam=float(data["lam"]),
            alpha=math.inf if data["alpha"] is None else float(data["alpha"]),
            radius=radii.from_dict(data["radius"]),
            features=None if features is None else tuple(features),
            action_bound=_number(data.get("action_bound")),
            reward_bound=_number(data.get("reward_bound")),
            max_rate=_number(data.get("max_rate")),
            max_share=_number(data.get("max_share")),
        )

    @classmethod
    def of_request(cls, values: dict[str, Any]) -> ModelSettings:
        """The settings of a new model: `beta` is a number, or `radius` a dictionary with its kind; α is finite."""
        beta, radius = values.get("beta"), values.get("radius")
        if (beta is None) == (radius is None):
            raise InvalidParameter("expected beta, a number, or radius, an object with its kind: one of the two")
        finite_at_least(values["alpha"], 0.0, "alpha")
        if beta is not None:
            radius = radii.to_dict(radii.as_radius(beta))
        return cls.from_dict({**values, "radius": radius})

    def check(self, x: Vector, reward: float) -> None:
        """Refuse an observation that would make the server refuse a whole upload later."""
        if self.reward_bound is not None and abs(reward) > self.reward_bound * SLACK:
            raise InvalidInput(f"the model takes rewards with |r| ≤ {self.reward_bound:g}, got {reward:g}")
        if self.action_bound is not None:
            norm = math.sqrt(float(x @ x))
            if norm > self.action_bound * SLACK:
                raise InvalidInput(f"the model takes actions with ‖x‖ ≤ {self.action_bound:g}, got {norm:g}")

    def check_all(self, X: Matrix, y: Vector) -> None:
        """The same for many rows."""
        if self.reward_bound is not None or self.action_bound is not None:
            longest = int(np.einsum("ij,ij->i", X, X).argmax())
            self.check(X[longest], float(y[longest]))
            largest = int(np.abs(y).argmax())
            self.check(X[largest], float(y[largest]))

    def to_json(self) -> str:
        """One line, the same for the same settings."""
        return json.dumps(self.to_dict(), sort_keys=True)


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """The settings of a model as a server describes them to an agent; the id changes when they do."""

    settings: ModelSettings
    settings_id: str = ""
    agent_id: str | None = None  # whom the token belongs to

    def to_dict(self) -> dict[str, Any]:
        """Plain values in the shape that the server uses."""
        return {**self.settings.to_dict(), "settings": self.settings_id, "agent": self.agent_id}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> ModelDescription:
        """The description in a server's answer; `FormatError` for anything else."""
        try:
            agent = data.get("agent")
            settings = ModelSettings.from_dict(data)
            return cls(settings, str(data.get("settings", "")), None if agent is None else str(agent))
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError, RecursionError) as error:
            raise FormatError(f"expected a model's settings from the server, got {_brief(data)}: {error}") from None


def _brief(data: dict[str, Any]) -> str:
    try:
        return repr(data)[:200]
    except RecursionError:
        return "an object without end"


def _number(value: Any) -> float | None:
    return None if value is None else float(value)
