"""A decision: which action, in which row, by which model. Small, serialisable, good until its reward comes."""

from __future__ import annotations

from typing import Any

import msgspec

from fedbandit.core.arrays import Vector, as_float_array, frozen
from fedbandit.errors import FormatError


class Decision(msgspec.Struct, frozen=True, eq=False):
    """What `choose` returns and `observe` takes back, now or days later."""

    id: str
    index: int | None  # row in the decision set; None when it was not an array
    x: Vector  # the row itself, so that nobody has to keep the decision set
    agent_id: str
    model_version: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "id": self.id,
            "index": self.index,
            "x": self.x.tolist(),
            "agent_id": self.agent_id,
            "model_version": self.model_version,
        }

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
            )
        except (KeyError, TypeError, ValueError) as error:
            raise FormatError(f"expected a decision as written by Decision.to_dict, got {data!r}: {error}") from None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Decision) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash(self.id)
