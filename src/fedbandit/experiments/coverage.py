"""Algorithm 1 with somebody watching: is θ* inside every confidence ellipsoid that an agent decides by?"""

from __future__ import annotations

import numpy as np

from fedbandit.algorithms.base import BaseAgent
from fedbandit.algorithms.fedlinucb import FedLinUCBAgent
from fedbandit.algorithms.messages import Request, Upload
from fedbandit.core.arrays import Vector
from fedbandit.errors import InvalidParameter
from fedbandit.experiments.drivers import Outcome, columns_of
from fedbandit.experiments.loop import opened, play_rounds
from fedbandit.experiments.spec import Spec
from fedbandit.simulation.runner import Fleet


class WatchedFleet(Fleet):
    """A fleet that notes ‖θ* − θ̂‖_Σ / β of every model an agent takes up."""

    def __init__(self, spec: Spec, theta_star: Vector) -> None:
        super().__init__(spec.make_rule(), spec.n_agents)
        self.theta_star = theta_star
        self.worst, self.beta_sum, self.n_models, self.beta_last = 0.0, 0.0, 0, 0.0
        self._watch(self.agent("0"))  # the prior, which all begin with

    def exchange(self, request: Request) -> None:
        """Carry the messages, then look at the model of whoever spoke (FedLinUCB answers nobody else)."""
        agent = self.agent(request.agent_id)
        before = agent.n_switches
        super().exchange(request)
        if agent.n_switches > before:
            self._watch(agent)

    def begin(self, t: int, agent: BaseAgent) -> None:
        """A round begins: agents that want a model before they decide get it."""
        pull = agent.arrive()
        if pull is not None:
            self.exchange(pull)

    def send(self, upload: Upload) -> None:
        """Deliver an upload at once."""
        self.exchange(upload)

    def _watch(self, agent: object) -> None:
        if not isinstance(agent, FedLinUCBAgent):
            raise InvalidParameter(f"coverage is watched for FedLinUCB only, got {type(agent).__name__}")
        distance, beta = agent.model.distance(self.theta_star), agent.beta
        self.worst = max(self.worst, distance / beta if beta > 0 else np.inf)
        self.beta_sum, self.n_models, self.beta_last = self.beta_sum + beta, self.n_models + 1, beta


def watched(spec: Spec, seed: int) -> Outcome:
    """Play a spec in plain Python and watch every model.

    Facts: `worst_error`, the largest ‖θ* − θ̂‖_Σ in radii (covered if ≤ 1), and `beta`, the last radius used.
    """
    stream, blocks = opened(spec, seed)
    if stream.theta_star is None:
        raise InvalidParameter("coverage needs a world that knows its theta_star")
    fleet = WatchedFleet(spec, stream.theta_star)
    trace = play_rounds(fleet, spec, stream, blocks)
    facts = {"worst_error": fleet.worst, "beta": fleet.beta_last, "beta_mean": fleet.beta_sum / fleet.n_models}
    return Outcome(columns_of(trace), facts)
