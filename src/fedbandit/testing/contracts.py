"""What a contract is: a statement about the agents and servers of a rule, checked on a `Subject`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from fedbandit.algorithms.base import BaseAgent, Rule
from fedbandit.algorithms.messages import Reply, Request, Upload
from fedbandit.algorithms.rules import deliberate_radius
from fedbandit.core.arrays import Matrix, Vector
from fedbandit.core.statistics import SufficientStats
from fedbandit.registry import EVERY_TRAIT
from fedbandit.simulation.runner import SimulatedFleet

ROUNDS = frozenset({"any-time", "any-rows"})  # what it takes to play rounds one agent at a time
MOST_REPLIES = 1000  # in an exchange of two agents


@dataclass(frozen=True)
class Contract:
    """A statement about rules that have these traits."""

    name: str
    check: Callable[[Subject], None]
    needs: frozenset[str]

    def applies_to(self, traits: frozenset[str]) -> bool:
        """Whether a rule with these traits must keep it."""
        return self.needs <= traits


CONTRACTS: dict[str, Contract] = {}


def contract(*needs: str) -> Callable[[Callable[[Subject], None]], Callable[[Subject], None]]:
    """Add a function to the contracts, under its name."""

    def add(check: Callable[[Subject], None]) -> Callable[[Subject], None]:
        name = check.__name__.removeprefix("_")
        CONTRACTS[name] = Contract(name, check, frozenset(needs))
        return check

    return add


class BoundedFleet(SimulatedFleet):
    """A fleet in which an exchange that does not end is an error."""

    def __init__(self, rule: Rule, n_agents: int) -> None:
        super().__init__(rule, n_agents)
        self.n_left = MOST_REPLIES

    def exchange(self, request: Request) -> None:
        self.n_left = MOST_REPLIES
        super().exchange(request)

    def adopt(self, reply: Reply) -> Upload | None:
        self.n_left -= 1
        assert self.n_left > 0, f"an exchange of {len(self.agents)} agents goes on after {MOST_REPLIES} replies"
        return super().adopt(reply)


class Subject:
    """A rule under test, and what contracts do with it."""

    def __init__(self, rule: Rule, traits: frozenset[str] = EVERY_TRAIT) -> None:
        self.rule = rule
        self.dim = rule.dim
        self.traits = traits

    def changed(self, **numbers: Any) -> Rule:
        """The same rule with some numbers changed."""
        with deliberate_radius():
            return dataclasses.replace(self.rule, **numbers)  # type: ignore[type-var]

    def agent(self) -> BaseAgent:
        """A new agent."""
        return self.rule.agent("a")

    def rows(self, n: int, *, seed: int = 0) -> Matrix:
        """Gaussian rows (n, dim)."""
        return np.random.default_rng(seed).standard_normal((n, self.dim))

    def fleet(self, n_agents: int = 2) -> SimulatedFleet:
        """A new fleet."""
        return BoundedFleet(self.rule, n_agents)

    def played(self, n_rounds: int, *, rule: Rule | None = None) -> SimulatedFleet:
        """A fleet of two after some rounds without faults."""
        fleet = BoundedFleet(rule or self.rule, 2)
        rng = np.random.default_rng(0)
        for _ in range(n_rounds):
            play_round(fleet, str(rng.integers(2)), rng.standard_normal((4, self.dim)), rng.standard_normal())
        return fleet

    def uploading(self, agent: BaseAgent) -> Upload:
        """Observe until the agent uploads."""
        rng = np.random.default_rng(7)
        for _ in range(200):
            upload = agent.observe(rng.standard_normal(self.dim), float(rng.standard_normal()))
            if upload is not None:
                return upload
        raise AssertionError("the agent made no upload in 200 observations")


def play_round(
    fleet: SimulatedFleet, agent_id: str, actions: Matrix, reward: float
) -> tuple[int | None, Upload | None]:
    """One round; the index chosen and the upload made."""
    agent = fleet.agent(agent_id)
    pull = agent.arrive()
    if pull is not None:
        fleet.exchange(pull)
    decision = agent.choose(actions)
    upload = agent.observe(decision, reward)
    if upload is not None:
        fleet.exchange(upload)
    return decision.index, upload


def state_of(thing: Any) -> bytes:
    """All that an agent or a server knows, for a comparison before and after."""
    data = msgspec.msgpack.decode(thing.to_bytes())
    data["state"].pop("next_decision", None)  # saving skips a number on purpose
    return msgspec.msgpack.encode(data)


def stats_of(pairs: Iterable[tuple[Vector, float]], dim: int) -> SufficientStats:
    """The statistics of observed pairs, summed the plain way."""
    total = SufficientStats.zeros(dim)
    for x, reward in pairs:
        total = total + SufficientStats.of([x], [reward])
    return total


@contextmanager
def raising(error: type[Exception], words: str = "") -> Iterator[None]:
    """Assert that this error is raised, and that it says these words."""
    try:
        yield
    except error as raised:
        if words not in str(raised):
            raise AssertionError(f"expected {error.__name__} to say {words!r}, got {raised}") from raised
    else:
        raise AssertionError(f"expected {error.__name__}, and nothing was raised")


def close(got: Any, expected: Any, *, rtol: float = 1e-9, atol: float = 1e-12) -> bool:
    """Whether two arrays agree up to rounding."""
    return bool(np.allclose(got, expected, rtol=rtol, atol=atol))
