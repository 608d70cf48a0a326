"""A warning for lazy agents that are never given an answer: they decide on what they adopt, so they never learn."""

from __future__ import annotations

import warnings

from fedbandit.algorithms.base import BaseAgent
from fedbandit.errors import NothingAdopted

LONG = 500  # observations after the first upload


class AdoptionCheck:
    """Warns once, when an agent has made its first upload `LONG` observations ago and has adopted no model since."""

    __slots__ = ("_since",)

    def __init__(self) -> None:
        self._since: int | None = None  # observations that the agent had at its first upload

    def look(self, agent: BaseAgent) -> bool:
        """Whether there is anything left to watch; called each time the trigger holds."""
        if agent.n_switches > 0:
            return False
        if agent.sequence == 0 or self._since is None:
            self._since = agent.n_rounds
            return True
        if agent.n_rounds - self._since < LONG:
            return True
        warnings.warn(
            f"agent {agent.agent_id!r} made its first upload at observation {self._since} and was never given a model: "
            f"after {agent.n_rounds} observations it still decides as at the first. Pass what observe() returns to "
            f"server.receive() and the reply to agent.adopt(), or use fb.OFUL for one agent without a server",
            NothingAdopted,
            stacklevel=5,  # look, the trigger, _absorb, observe
        )
        return False
