"""Algorithm 1 while it is measured whether θ* is inside every confidence ellipsoid that an agent decides by."""

from __future__ import annotations

import numpy as np

from fedbandit.algorithms.fedlinucb import FedLinUCBAgent
from fedbandit.algorithms.messages import Request
from fedbandit.errors import InvalidParameter
from fedbandit.experiments.drivers.base import RunOutcome, play_spec, rounds_of_spec
from fedbandit.experiments.spec import RunSpec
from fedbandit.simulation.runner import SimulatedFleet
from fedbandit.simulation.worlds import Stream


class CoverageFleet(SimulatedFleet):
    """A fleet that records ‖θ* − θ̂‖_Σ / β of every model that an agent adopts."""

    def __init__(self, spec: RunSpec, stream: Stream) -> None:
        super().__init__(spec.make_rule(), spec.n_agents)
        if stream.theta_star is None:
            raise InvalidParameter("coverage needs a world with theta_star")
        self.theta_star = stream.theta_star
        self.worst, self.beta_sum, self.n_models, self.beta_last = 0.0, 0.0, 0, 0.0
        self._measure(self.agent("0"))  # the prior, with which all agents start

    def exchange(self, request: Request) -> None:
        """Deliver the messages, then measure the model of the sender (FedLinUCB answers no other agent)."""
        agent = self.agent(request.agent_id)
        before = agent.n_switches
        super().exchange(request)
        if agent.n_switches > before:
            self._measure(agent)

    def _measure(self, agent: object) -> None:
        if not isinstance(agent, FedLinUCBAgent):
            raise InvalidParameter(f"coverage is measured for FedLinUCB only, got {type(agent).__name__}")
        distance, beta = agent.model.distance(self.theta_star), agent.beta
        self.worst = max(self.worst, distance / beta if beta > 0 else np.inf)
        self.beta_sum, self.n_models, self.beta_last = self.beta_sum + beta, self.n_models + 1, beta


def measure_coverage(spec: RunSpec, seed: int) -> RunOutcome:
    """Play a spec and measure every model.

    Facts: `worst_error`, the largest ‖θ* − θ̂‖_Σ in radii (covered if ≤ 1), and `beta`, the last radius used.
    """
    stream, blocks = rounds_of_spec(spec, seed)
    fleet = CoverageFleet(spec, stream)
    columns = play_spec(fleet, spec, stream, blocks)
    facts = {"worst_error": fleet.worst, "beta": fleet.beta_last, "beta_mean": fleet.beta_sum / fleet.n_models}
    return RunOutcome(columns, facts)
