"""The reduction in the proof of Theorem 2: an algorithm becomes a learner that uses nothing from other agents."""

from __future__ import annotations

from collections import deque

from fedbandit.algorithms.base import BaseAgent
from fedbandit.algorithms.decision import Decision
from fedbandit.algorithms.messages import Request, Upload
from fedbandit.core.radius import from_dict as radius_from_dict
from fedbandit.errors import InvalidParameter
from fedbandit.experiments.baselines import alone
from fedbandit.experiments.drivers.base import RunOutcome, play_spec, rounds_of_spec
from fedbandit.experiments.spec import RunSpec
from fedbandit.simulation.runner import SimulatedFleet


class ReducedFleet(SimulatedFleet):
    """Each agent runs the algorithm until it first communicates with the server, then OFUL from an empty state.

    The server receives uploads, because its replies decide which other agents communicate; no agent ever sees one.
    """

    def __init__(self, spec: RunSpec) -> None:
        super().__init__(spec.make_rule(), spec.n_agents)
        beta = radius_from_dict(dict(spec.rule["beta"]))
        self._oful = alone(dim=spec.dim, beta=beta, lam=float(spec.rule["lam"]))
        self.communicated: dict[str, int] = {}  # agent -> the round of its first communication
        self._t = 0

    @property
    def delta(self) -> int:
        """How many agents communicated: δ of the proof is the expectation of this."""
        return len(self.communicated)

    def begin_round(self, t: int, agent_id: str) -> BaseAgent:
        """The agent of round t; one that would download before it decides communicates by that."""
        self._t = t
        agent = self.agent(agent_id)
        pull = agent.arrive()
        if pull is not None:
            self.exchange(pull)
        return self.agent(agent_id)

    def end_round(self, agent: BaseAgent, decision: Decision, reward: float, upload: Upload | None) -> None:
        """Replace an agent that wants to upload, and all agents that the server would answer."""
        if upload is not None and agent.agent_id not in self.communicated:
            self.exchange(upload)

    def exchange(self, request: Request) -> None:
        """Follow a request through the server without giving any reply to an agent."""
        requests = deque([request])
        while requests:
            message = requests.popleft()
            self.count(message)
            self._isolate(message.agent_id)
            replies = self.server.receive(message)
            for reply in replies if isinstance(replies, tuple) else (replies,):
                self.count(reply)
                if reply.agent_id not in self.communicated:
                    # Its answer, for algorithms whose server waits for all: what it holds, once.
                    answer = self.agent(reply.agent_id).adopt(reply)
                    self._isolate(reply.agent_id)
                    if isinstance(answer, Upload):
                        requests.append(answer)

    def _isolate(self, agent_id: str) -> None:
        if agent_id not in self.communicated:
            self.communicated[agent_id] = self._t
            self.agents[agent_id] = self._oful.agent(agent_id, incarnation="isolated")


def reduced(spec: RunSpec, seed: int) -> RunOutcome:
    """Play the reduction of the spec's rule.

    Messages are those that the first communications would have been. Facts: `communicated`, the number of agents that
    reached one, and `share_before`, the share of all rounds that were played before it.
    """
    if "beta" not in spec.rule:
        raise InvalidParameter(f"the reduction needs a linear rule with a beta, got {spec.rule.get('algorithm')}")
    stream, blocks = rounds_of_spec(spec, seed)
    fleet = ReducedFleet(spec)
    columns = play_spec(fleet, spec, stream, blocks)
    before = sum(fleet.communicated.values()) + (spec.n_agents - fleet.delta) * spec.n_rounds
    share = before / (spec.n_agents * spec.n_rounds)
    return RunOutcome(columns, {"communicated": float(fleet.delta), "share_before": share})
