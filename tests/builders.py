"""Things that tests are made of, so that a test mentions only what matters to it."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedbandit import SufficientStats, Upload, worlds
from fedbandit.algorithms.base import BaseAgent, Rule
from fedbandit.algorithms.catalog import ALGORITHMS
from fedbandit.algorithms.messages import Reply
from fedbandit.registry import Algorithm
from fedbandit.simulation.runner import SimulatedFleet
from fedbandit.testing.contracts import play_round, state_of, stats_of

__all__ = [
    "EXAMPLES",
    "RULE_NAMES",
    "FaultyNetwork",
    "assert_stats_close",
    "make_agent",
    "make_rule",
    "make_world",
    "names_with",
    "play",
    "play_round",
    "rows",
    "state_of",
    "stats_of",
]

# Every rule of the contract suite: the example numbers of each registered algorithm, and of its variants.
EXAMPLES: dict[str, tuple[Algorithm, dict[str, Any]]] = {
    name: (entry, numbers) for entry in ALGORITHMS.usable().values() for name, numbers in entry.examples.items()
}
RULE_NAMES = tuple(EXAMPLES)


def names_with(*traits: str) -> tuple[str, ...]:
    """The rules whose entries have these traits."""
    return tuple(name for name, (entry, _) in EXAMPLES.items() if entry.traits.issuperset(traits))


def is_certain(name: str) -> bool:
    """Whether the model alone determines a decision of this rule: no policy that draws, and no control group."""
    return bool(getattr(make_rule(name), "is_certain", True))


def make_rule(name: str = "fedlinucb", **changes: Any) -> Any:
    """A small rule: three features, β = 0.5, λ = 1."""
    entry, numbers = EXAMPLES[name]
    return entry.make(**{"dim": 3, **entry.known({"beta": 0.5, "lam": 1.0}), **numbers, **changes})


def make_agent(name: str = "fedlinucb", *, agent_id: str = "a", **changes: Any) -> Any:
    """One agent of such a rule."""
    return make_rule(name, **changes).agent(agent_id)


def make_world(**changes: Any) -> Any:
    """The authors' world, small."""
    return worlds.uniform(**{"dim": 3, "n_actions": 5, "noise": 0.3, **changes})


def rows(n: int, dim: int = 3, *, seed: int = 0) -> np.ndarray:
    """Gaussian rows (n, dim)."""
    return np.random.default_rng(seed).standard_normal((n, dim))


def assert_stats_close(got: SufficientStats, expected: SufficientStats, *, rtol: float = 1e-10) -> None:
    """Equal up to rounding, counts exactly."""
    scale = float(np.abs(expected.Sigma).max()) + 1.0
    np.testing.assert_allclose(got.Sigma, expected.Sigma, rtol=rtol, atol=rtol * scale)
    np.testing.assert_allclose(got.b, expected.b, rtol=rtol, atol=rtol * scale)
    assert got.n_obs == expected.n_obs


def play(rule: Rule, n_rounds: int, *, n_agents: int = 2, seed: int = 0) -> SimulatedFleet:
    """A fleet after some rounds of choosing, observing and exchanging without faults."""
    fleet = SimulatedFleet(rule, n_agents)
    rng = np.random.default_rng(seed)
    for _ in range(n_rounds):
        play_round(fleet, str(rng.integers(n_agents)), rng.standard_normal((4, rule.dim)), rng.standard_normal())
    return fleet


class FaultyNetwork:
    """A fleet whose requests and replies get lost, come late and come twice; it remembers all that was seen."""

    def __init__(self, rule: Rule, n_agents: int) -> None:
        self.rule = rule
        self.server = rule.server()
        names = [str(m) for m in range(n_agents)]
        self.server.enroll(names)
        self.agents: dict[str, BaseAgent] = {name: rule.agent(name, incarnation="one") for name in names}
        self.seen: list[tuple[np.ndarray, float]] = []
        self.sent: dict[tuple[str, int], Upload] = {}
        self.undelivered: list[Reply] = []

    def observe(self, agent_id: str, x: np.ndarray, reward: float, fate: str = "ok") -> None:
        """An agent sees a pair; what it wants to send has this fate."""
        self.seen.append((x, reward))
        self.agents[agent_id].observe(x, reward)
        self.send(agent_id, fate)

    def send(self, agent_id: str, fate: str = "ok") -> None:
        """Send what an agent has in flight, if anything: for the first time or again."""
        upload = self.agents[agent_id].in_flight
        if upload is None:
            return
        before = self.sent.setdefault((agent_id, upload.sequence), upload)
        assert before == upload, "the upload of an unanswered exchange must stay identical"
        if fate == "request lost":
            return
        for _ in range(2 if fate == "request twice" else 1):
            self._answer(self.server.receive(upload), lost=fate == "reply lost", twice=fate == "reply twice")

    def pull(self, agent_id: str, fate: str = "ok") -> None:
        """An agent that arrives for a round asks for a download if its algorithm wants one."""
        pull = self.agents[agent_id].arrive()
        if pull is not None and fate != "request lost":
            self._answer(self.server.receive(pull), lost=fate == "reply lost", twice=False)

    def deliver_late(self, which: int) -> None:
        """Deliver a reply that was lost before; it may be delivered again later."""
        if self.undelivered:
            self._deliver(self.undelivered[which % len(self.undelivered)])

    def settle(self) -> None:
        """Let everything that is in flight arrive."""
        for _ in range(4):
            for agent_id in self.agents:
                self.send(agent_id)

    def _answer(self, replies: Any, *, lost: bool, twice: bool) -> None:
        for reply in replies if isinstance(replies, tuple) else (replies,):
            if lost:
                self.undelivered.append(reply)
                continue
            for _ in range(2 if twice else 1):
                self._deliver(reply)

    def _deliver(self, reply: Reply) -> None:
        if self.agents[reply.agent_id].adopt(reply) is not None:
            self.send(reply.agent_id)

    def uncounted(self) -> SufficientStats:
        """All that agents hold and the server has not merged."""
        total = SufficientStats.zeros(self.rule.dim)
        for agent_id, agent in self.agents.items():
            total = total + agent.local
            merged = self.server.ledger[agent_id].sequence if agent_id in self.server.ledger else 0
            if agent.in_flight is not None and agent.in_flight.sequence > merged:
                total = total + agent.in_flight.stats
        return total
