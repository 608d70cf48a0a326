"""The policy of a model as its settings carry it: nothing of it on the wire where it is the default."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """How the agents of a model decide; the rule checks the numbers."""

    policy: str = "ucb"
    explore: float = 0.0
    gamma: str | float = "auto"
    propensity_samples: int = 100
    policy_seed: int = 0

    @classmethod
    def of(cls, rule: Any) -> PolicyChoice:
        """The policy of a rule."""
        return cls(**{one.name: getattr(rule, one.name) for one in fields(cls)})

    @property
    def numbers(self) -> dict[str, Any]:
        """As options of a rule."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    def to_dict(self) -> dict[str, Any]:
        """Plain values, without those that are the default: settings without a policy keep their id."""
        return {one.name: getattr(self, one.name) for one in fields(self) if getattr(self, one.name) != one.default}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> PolicyChoice:
        """The choice in the settings of a model; what is missing or null is the default."""
        known = (one.name for one in fields(cls))
        return cls(**{name: data[name] for name in known if data.get(name) is not None})


UCB = PolicyChoice()  # the largest upper bound, for sure
