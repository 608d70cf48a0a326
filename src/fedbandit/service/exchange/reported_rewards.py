"""Observations that the server books itself: a reward, and the row in the token of its decision."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fedbandit.core.arrays import Vector
from fedbandit.core.plausibility import MAX_TOTAL
from fedbandit.errors import DimensionMismatch, FedbanditError, ImplausibleUpload
from fedbandit.service.exchange.influence_limits import require_decidable
from fedbandit.service.exchange.ledger import AgentRow
from fedbandit.wire.settings import ModelSettings


@dataclass(slots=True)
class Bookings:
    """The state of a model and rows of agents while rewards are booked; pure, as the fold of uploads."""

    settings: ModelSettings
    state: Vector  # writable
    agents: dict[str, AgentRow]
    epoch: int = 0  # of the model; an agent's sums of an earlier one count for nothing
    clock: int = 0
    changed: dict[str, AgentRow] = field(default_factory=dict)
    n_counted: int = 0  # in the state; those of agents in quarantine are not

    def book(self, names: tuple[str, ...], numbers: Vector) -> FedbanditError | None:
        """Add one observation to the sums of the first of these agents that there is; why not, if it cannot be."""
        agent = next((self.agents[name] for name in names if name in self.agents), None)
        if agent is None:
            return ImplausibleUpload(f"there is no agent {names[0]!r} in this model, and none that was retired")
        if len(numbers) != len(self.state):
            return DimensionMismatch(f"expected the token of a decision with {self.settings.dim} features")
        try:
            if not agent.quarantined:
                if self.state[-3] > MAX_TOTAL - 1:
                    raise ImplausibleUpload(f"the model would count more than {MAX_TOTAL} observations")
                require_decidable(self.settings, float(self.state[-1] + numbers[-1]))
        except FedbanditError as error:
            return error
        is_first = agent.total is None or agent.epoch != self.epoch
        total = numbers if is_first else np.frombuffer(agent.total or b"", dtype="<f8") + numbers
        agent.total = total.tobytes()
        agent.epoch, agent.stamp = self.epoch, self.clock
        agent.n_obs += 1
        agent.reward_sum += float(numbers[-2])
        if not agent.quarantined:
            self.state += numbers
            self.n_counted += 1
        self.changed[agent.name] = agent
        return None
