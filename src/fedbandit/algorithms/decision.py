"""A decision: which action, in which row, by which model. Small, serialisable, good until its reward comes."""

from __future__ import annotations

from typing import Any

import msgspec

from fedbandit.core.arrays import Vector, as_float_array, frozen
from fedbandit.errors import FormatError

CERTAIN: dict[str, Any] = {"propensity": 1.0, "score": None, "policy": "ucb"}


class Decision(msgspec.Struct, frozen=True, eq=False):
    """What `choose` returns and `observe` takes back, now or days later."""

    id: str
    index: int | None  # row in the decision set; None when it was not an array
    x: Vector  # the row itself, so that nobody has to keep the decision set
    agent_id: str
    model_version: int
    block: int | None = None  # of `choose_context`: the arm's block, and `x` is the context in it
    arm: str | None = None  # its name, where the model has names
    propensity: float | None = 1.0  # probability of this choice under the policy; None: the policy does not tell it
    score: float | None = None  # what the policy compared: upper bound, mean or sampled mean of the row
    policy: str = "ucb"  # what made it; "control" where that was the application's default

    @property
    def group(self) -> str:
        """control if the application's default made it, else treatment."""
        return "control" if self.policy == "control" else "treatment"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; what has its default is left out."""
        values = {
            "id": self.id,
            "index": self.index,
            "x": self.x.tolist(),
            "agent_id": self.agent_id,
            "model_version": self.model_version,
        }
        if self.block is not None:
            values["block"] = self.block
        if self.arm is not None:
            values["arm"] = self.arm
        chance = {"propensity": self.propensity, "score": self.score, "policy": self.policy}
        return values | {name: value for name, value in chance.items() if value != CERTAIN[name]}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Decision:
        """The decision of a dictionary made by `to_dict`."""
        try:
            return cls(
                str(data["id"]),
                None if data["index"] is None else int(data["index"]),
                frozen(as_float_array(data["x"], "the decision's row")),
                str(data["agent_id"]),
                int(data["model_version"]),
                None if data.get("block") is None else int(data["block"]),
                None if data.get("arm") is None else str(data["arm"]),
                _number(data.get("propensity", CERTAIN["propensity"])),
                _number(data.get("score")),
                str(data.get("policy", CERTAIN["policy"])),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise FormatError(f"expected a decision as written by Decision.to_dict, got {data!r}: {error}") from None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Decision) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash(self.id)


def _number(value: Any) -> float | None:
    return None if value is None else float(value)
