"""Rounds with a network that is slow, forgetful, or reaches an agent only while it is active."""

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
from fedbandit.experiments.drivers import Outcome, columns_of
from fedbandit.experiments.loop import opened, play_rounds
from fedbandit.experiments.spec import Spec
from fedbandit.simulation.runner import Fleet
from fedbandit.simulation.worlds import generator

Letter = Request | Reply


@dataclass(frozen=True, slots=True)
class Post:
    """How messages travel: `delay` rounds each way, lost with probability `loss`, sent again after `patience` rounds.

    With `reach="active"` what is meant for an agent waits until that agent's next round: nobody can be reached offline.
    """

    delay: int = 0
    loss: float = 0.0
    patience: int = 100
    reach: str = "always"

    def __post_init__(self) -> None:
        if self.delay < 0 or not 0 <= self.loss < 1 or self.patience < 1 or self.reach not in ("always", "active"):
            raise InvalidParameter(f"expected delay ≥ 0, loss in [0, 1), patience ≥ 1, reach always or active: {self}")


class PostalFleet(Fleet):
    """A fleet whose messages take time; counts every one that is sent, also those that are lost."""

    def __init__(self, spec: Spec, post: Post, rng: np.random.Generator) -> None:
        super().__init__(spec.make_rule(), spec.n_agents)
        self.post, self.rng, self.now = post, rng, 0
        self._number = itertools.count()
        self.on_the_way: list[tuple[int, int, Letter]] = []  # arrival, tie-break, letter
        self.waiting: dict[str, list[Reply]] = defaultdict(list)
        self.retry: dict[tuple[str, int], int] = {}  # what was asked -> when it is asked again
        self.growths: list[float] = []  # determinant growth with which each exchange ended
        self.active = ""
        self.n_for_others = 0  # what the server sent to agents that were not the active one

    def send(self, letter: Letter) -> None:
        """Post a letter; it may be lost."""
        self.n_up += isinstance(letter, Upload)
        self.n_down += isinstance(letter, Download)
        if isinstance(letter, Reply):
            self.n_for_others += letter.agent_id != self.active
        if isinstance(letter, Request):
            self.retry[_name(letter)] = self.now + self.post.patience + 2 * self.post.delay
        if self.post.loss and self.rng.random() < self.post.loss:
            return
        if self.post.delay == 0:
            self._arrive(letter)
        else:
            heapq.heappush(self.on_the_way, (self.now + self.post.delay, next(self._number), letter))

    def begin(self, t: int, agent: BaseAgent) -> None:
        """Round t begins for this agent: what is due arrives, what waited is read, what is overdue goes again."""
        self.now, self.active = t, agent.agent_id
        while self.on_the_way and self.on_the_way[0][0] <= t:
            self._arrive(heapq.heappop(self.on_the_way)[2])
        for letter in self.waiting.pop(agent.agent_id, ()):
            self._read(letter)
        # Both may be due: an agent whose uploads are always under way would never come to ask for a model otherwise.
        for wanted in (agent.in_flight, agent.arrive()):
            if wanted is not None and self.retry.get(_name(wanted), -1) <= t:
                self.send(wanted)

    def unmerged(self) -> int:
        """Observations that agents hold and the server has not merged: in buffers, or in uploads that never came."""
        held = 0
        for agent in self.agents.values():
            known = self.server.ledger.get(agent.agent_id)
            merged = 0 if known is None else known.sequence
            held += agent.local.n_obs
            if agent.in_flight is not None and agent.in_flight.sequence > merged:
                held += agent.in_flight.stats.n_obs
        return held

    def _arrive(self, letter: Letter) -> None:
        if isinstance(letter, Request):
            replies = self.server.receive(letter)
            for reply in replies if isinstance(replies, tuple) else (replies,):
                self.send(reply)
        elif self.post.reach == "active" and letter.agent_id != self.active:
            self.waiting[letter.agent_id].append(letter)
        else:
            self._read(letter)

    def _read(self, reply: Reply) -> None:
        agent = self.agent(reply.agent_id)
        before, growth = agent.n_switches, agent.growth if isinstance(agent, FedLinUCBAgent) else 0.0
        if isinstance(reply, Download):
            self.retry.pop((agent.agent_id, 0), None)
        answer = agent.adopt(reply)
        self.n_switches += agent.n_switches - before
        if agent.n_switches > before and growth > 0:
            self.growths.append(growth)
        if answer is not None:
            self.send(answer)


def _name(request: Request) -> tuple[str, int]:
    """Which request this is: an agent's upload by its number, or its pull."""
    return request.agent_id, request.sequence if isinstance(request, Upload) else 0


def delivered_by_mail(spec: Spec, seed: int) -> Outcome:
    """The loop of Algorithm 1 with the post of the spec's driver between agents and server.

    Facts: `effective_alpha`, the determinant's relative growth when an exchange ends (a geometric mean over exchanges),
    `effective_alpha_late`, the same over the second half of them, `log_growth_max`, the largest log-determinant growth,
    `for_others`, how often the server spoke to an agent that was not active, `uncounted`, the share of observations
    that the server has not merged at the end, and `miscounted`, how many are lost or counted twice.
    """
    post = Post(**{key: value for key, value in spec.driver.items() if key != "name"})
    fleet = PostalFleet(spec, post, generator(np.random.SeedSequence([seed, 2])))
    trace = play_rounds(fleet, spec, *opened(spec, seed))
    return Outcome(columns_of(trace), _facts(fleet, spec.n_rounds))


def _facts(fleet: PostalFleet, n_rounds: int) -> dict[str, float]:
    growths = np.array(fleet.growths or [0.0])
    return {
        "effective_alpha": float(np.expm1(growths.mean())),
        "effective_alpha_late": float(np.expm1(growths[len(growths) // 2 :].mean())),
        "log_growth_max": float(growths.max()),
        "for_others": float(fleet.n_for_others),
        "uncounted": 1.0 - fleet.server.stats.n_obs / n_rounds,
        "miscounted": float(abs(fleet.server.stats.n_obs + fleet.unmerged() - n_rounds)),
    }
