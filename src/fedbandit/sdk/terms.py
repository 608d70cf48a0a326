"""What the server says about a model, and the rule an agent makes of it: nobody sets alpha in an application."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedbandit.algorithms.fedlinucb import FedLinUCB
from fedbandit.core import radius as radii
from fedbandit.core.arrays import Matrix, Vector
from fedbandit.errors import FormatError, InvalidInput

SLACK = 1.0 + 1e-9  # a row of norm L in the application's arithmetic may come out a bit longer in ours


@dataclass(frozen=True, slots=True)
class Terms:
    """A model's fixed numbers; `settings` changes when they do."""

    model: str
    rule: FedLinUCB
    settings: str
    agent_id: str | None = None  # whom the token belongs to
    action_bound: float | None = None  # L
    reward_bound: float | None = None

    def check(self, x: Vector, reward: float) -> None:
        """Refuse here what would make the server refuse a whole upload later."""
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

    def to_dict(self) -> dict[str, Any]:
        """Plain values in the shape that the server uses."""
        return {
            "name": self.model,
            "dim": self.rule.dim,
            "lam": self.rule.lam,
            "alpha": None if math.isinf(self.rule.alpha) else self.rule.alpha,
            "radius": radii.to_dict(self.rule.radius),
            "features": None if self.rule.features is None else list(self.rule.features),
            "action_bound": self.action_bound,
            "reward_bound": self.reward_bound,
            "settings": self.settings,
            "agent": self.agent_id,
        }


def terms_of(data: dict[str, Any]) -> Terms:
    """The terms in a server's answer; an α that JSON cannot write (infinity: never exchange) comes as null."""
    try:
        features = data.get("features")
        rule = FedLinUCB(
            dim=data["dim"],
            lam=data["lam"],
            alpha=math.inf if data["alpha"] is None else data["alpha"],
            beta=radii.from_dict(data["radius"]),
            features=None if not features else tuple(features),
            join=True,
        )
        agent = data.get("agent")
        return Terms(
            model=str(data["name"]),
            rule=rule,
            settings=str(data.get("settings", "")),
            agent_id=None if agent is None else str(agent),
            action_bound=_number(data.get("action_bound")),
            reward_bound=_number(data.get("reward_bound")),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise FormatError(f"expected a model's settings from the server, got {data!r}: {error}") from None


def _number(value: Any) -> float | None:
    return None if value is None else float(value)
