"""Rounds over a network that delays and loses messages, or reaches an agent only while it is active."""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from fedbandit.algorithms.base import BaseAgent
from fedbandit.algorithms.fedlinucb import FedLinUCBAgent
from fedbandit.algorithms.messages import Download, Reply, Request, Upload
from fedbandit.errors import InvalidParameter
from fedbandit.experiments.drivers.base import RunOutcome, play_spec, rounds_of_spec
from fedbandit.experiments.spec import RunSpec
from fedbandit.simulation.runner import SimulatedFleet
from fedbandit.simulation.worlds import generator

Message = Request | Reply


@dataclass(frozen=True, slots=True)
class NetworkFaults:
    """Messages take `delay` rounds each way, are lost with probability `loss` and retried after `patience` rounds.

    With `reach="active"` replies are held until their agent's next round: no agent can be reached offline.
    """

    delay: int = 0
    loss: float = 0.0
    patience: int = 100
    reach: str = "always"

    def __post_init__(self) -> None:
        if self.delay < 0 or not 0 <= self.loss < 1 or self.patience < 1 or self.reach not in ("always", "active"):
            raise InvalidParameter(f"expected delay ≥ 0, loss in [0, 1), patience ≥ 1, reach always or active: {self}")


class UnreliableFleet(SimulatedFleet):
    """A fleet whose messages take time; counts every one that is sent, also those that are lost."""

    def __init__(self, spec: RunSpec, faults: NetworkFaults, rng: np.random.Generator) -> None:
        super().__init__(spec.make_rule(), spec.n_agents)
        self.faults, self.rng, self.now = faults, rng, 0
        self._number = itertools.count()
        self.in_transit: list[tuple[int, int, Message]] = []  # arrival, tie-break, message
        self.held: dict[str, list[Reply]] = defaultdict(list)  # for agents that are not active
        self.retry_at: dict[tuple[str, int], int] = {}  # request -> the round in which it is sent again
        self.growths: list[float] = []  # determinant growth at the end of each exchange
        self.active = ""
        self.n_for_others = 0  # replies to agents that were not the active one

    def exchange(self, request: Request) -> None:
        """Send a request; it may be delayed or lost."""
        self.retry_at[_key(request)] = self.now + self.faults.patience + 2 * self.faults.delay
        self._send(request)

    def begin_round(self, t: int, agent_id: str) -> BaseAgent:
        """Deliver what is due at round t, what was held for this agent, and send again what is overdue."""
        agent = self.agent(agent_id)
        self.now, self.active, agent.now = t, agent_id, t
        while self.in_transit and self.in_transit[0][0] <= t:
            self._deliver(heapq.heappop(self.in_transit)[2])
        for reply in self.held.pop(agent_id, ()):
            self._adopt(reply)
        # Both may be due: an agent that always has an upload in flight would otherwise never ask for a model.
        for request in (agent.in_flight, agent.arrive()):
            if request is not None and self.retry_at.get(_key(request), -1) <= t:
                self.exchange(request)
        return agent

    def unmerged(self) -> int:
        """Observations that are unsent or in flight and not merged."""
        held = 0
        for agent in self.agents.values():
            known = self.server.ledger.get(agent.agent_id)
            merged = 0 if known is None else known.sequence
            held += agent.local.n_obs
            if agent.in_flight is not None and agent.in_flight.sequence > merged:
                held += agent.in_flight.stats.n_obs
        return held

    def _send(self, message: Message) -> None:
        self.count(message)
        if isinstance(message, Reply):
            self.n_for_others += message.agent_id != self.active
        if self.faults.loss and self.rng.random() < self.faults.loss:
            return
        if self.faults.delay == 0:
            self._deliver(message)
        else:
            heapq.heappush(self.in_transit, (self.now + self.faults.delay, next(self._number), message))

    def _deliver(self, message: Message) -> None:
        if isinstance(message, Request):
            replies = self.server.receive(message)
            for reply in replies if isinstance(replies, tuple) else (replies,):
                self._send(reply)
        elif self.faults.reach == "active" and message.agent_id != self.active:
            self.held[message.agent_id].append(message)
        else:
            self._adopt(message)

    def _adopt(self, reply: Reply) -> None:
        agent = self.agent(reply.agent_id)
        before, growth = agent.n_switches, agent.growth if isinstance(agent, FedLinUCBAgent) else 0.0
        if isinstance(reply, Download):
            self.retry_at.pop((agent.agent_id, 0), None)
        upload = self.adopt(reply)
        if agent.n_switches > before and growth > 0:
            self.growths.append(growth)
        if upload is not None:
            self.exchange(upload)


def _key(request: Request) -> tuple[str, int]:
    """An agent's upload by its sequence, or its pull as 0."""
    return request.agent_id, request.sequence if isinstance(request, Upload) else 0


def over_unreliable_network(spec: RunSpec, seed: int) -> RunOutcome:
    """Algorithm 1 with the network faults of the spec's driver between agents and server.

    Facts: `effective_alpha`, the determinant's relative growth when an exchange ends (a geometric mean over exchanges),
    `effective_alpha_late`, the same over the second half of them, `log_growth_max`, the largest log-determinant growth,
    `for_others`, the number of replies to agents that were not active, `uncounted`, the share of observations that the
    server has not merged at the end, and `miscounted`, how many are lost or counted twice.
    """
    faults = NetworkFaults(**{key: value for key, value in spec.driver.items() if key != "name"})
    fleet = UnreliableFleet(spec, faults, generator(np.random.SeedSequence([seed, 2])))
    columns = play_spec(fleet, spec, *rounds_of_spec(spec, seed))
    return RunOutcome(columns, _facts(fleet, spec.n_rounds))


def _facts(fleet: UnreliableFleet, n_rounds: int) -> dict[str, float]:
    growths = np.array(fleet.growths or [0.0])
    return {
        "effective_alpha": float(np.expm1(growths.mean())),
        "effective_alpha_late": float(np.expm1(growths[len(growths) // 2 :].mean())),
        "log_growth_max": float(growths.max()),
        "for_others": float(fleet.n_for_others),
        "uncounted": 1.0 - fleet.server.stats.n_obs / n_rounds,
        "miscounted": float(abs(fleet.server.stats.n_obs + fleet.unmerged() - n_rounds)),
    }
