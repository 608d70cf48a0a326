"""What an agent with a parameter of its own will decide on, built beside the next model (next_model.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedbandit.algorithms.messages import Download
from fedbandit.algorithms.personal import Ground, PersonalAgent, follower_of
from fedbandit.core.arrays import Vector
from fedbandit.core.growth import GrowthTracker
from fedbandit.core.ridge import RidgeModel
from fedbandit.core.statistics import SufficientStats
from fedbandit.pauses import pause_point

if TYPE_CHECKING:
    from fedbandit.sdk.durable_agent import DurableAgent


class NextGround:
    """A model with what it holds of the agent's data, and after `complete` all that deciding on it needs."""

    def __init__(
        self, agent: PersonalAgent, ground: Ground, own: SufficientStats, download: Download, merged: int
    ) -> None:
        self._agent, self._own, self._download, self._merged = agent, own, download, merged
        self._ground = ground
        self.follower: GrowthTracker

    def complete(self) -> None:
        """What takes time, without the agent's lock: what the others know, κ, and Λ."""
        ground = self._ground.with_others(self._agent.rule.lam)
        pause_point()
        if ground.own is not self._ground.own:  # the model cannot hold them
            unmerged = self._own - self._ground.own.total(
                None, SufficientStats.zeros(ground.own.dim, ground.own.blocks)
            )
            self._own = ground.own.total(None, unmerged)
        self._ground = ground.with_prior(self._agent.rule, self._own)
        pause_point()
        assert self._ground.prior is not None
        self.follower = follower_of(self._ground.prior, self._own)
        pause_point()

    def use(self, rows: list[Vector]) -> None:
        """Decide on it from now on; `rows` were observed since. The caller has the agent's lock."""
        for x in rows:
            self.follower.observe(x)
        self._agent._use_ground(self._ground, self.follower)


def next_ground(durable: DurableAgent, model: RidgeModel, download: Download, merged: int) -> NextGround | None:
    """None for agents that decide on the fleet's model; the caller has the agent's lock."""
    agent = durable.agent
    if not isinstance(agent, PersonalAgent):
        return None
    kept = durable.kept_after(merged) if merged < durable.n_answered else []
    ground, own = agent._next_ground(model, download, merged, kept)
    return NextGround(agent, ground, own, download, merged)
