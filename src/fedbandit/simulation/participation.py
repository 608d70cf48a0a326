"""Participation patterns: which agent is active in each round."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from fedbandit.core.arrays import is_listing, keep_finite, keep_whole, whole_at_least
from fedbandit.errors import InvalidParameter
from fedbandit.registry import Registry
from fedbandit.simulation.synchronous_fleet import in_turn
from fedbandit.simulation.worlds import History, Index, World

Draw = Callable[[int], Index]  # number of rounds -> the active agent of each


class Participation(Protocol):
    """A participation pattern; `start` returns a function that gives the next n active agents."""

    name: ClassVar[str]

    def start(self, n_agents: int, rng: np.random.Generator) -> Draw:
        """A fresh run for this many agents."""
        ...


@dataclass(frozen=True)
class Even:
    """Every round, one agent uniformly at random."""

    name: ClassVar[str] = "uniform"

    def start(self, n_agents: int, rng: np.random.Generator) -> Draw:
        return lambda n: rng.integers(n_agents, size=n)


@dataclass(frozen=True)
class Zipf:
    """Agent m with probability ∝ 1/(m+1)^exponent: few agents act often, many rarely."""

    name: ClassVar[str] = "zipf"
    exponent: float = 1.0

    def __post_init__(self) -> None:
        keep_finite(self, "exponent", 0.0)

    def start(self, n_agents: int, rng: np.random.Generator) -> Draw:
        weights = np.arange(1.0, n_agents + 1.0) ** -self.exponent
        edges = np.cumsum(weights / weights.sum())
        return lambda n: np.minimum(np.searchsorted(edges, rng.random(n), side="right"), n_agents - 1)


@dataclass(frozen=True)
class RoundRobin:
    """Agents in turn."""

    name: ClassVar[str] = "round-robin"

    def start(self, n_agents: int, rng: np.random.Generator) -> Draw:
        clock = [0]

        def draw(n: int) -> Index:
            clock[0] += n
            return in_turn(clock[0] - n, n, n_agents)

        return draw


@dataclass(frozen=True)
class Steps(RoundRobin):
    """Steps of M rounds, in each of which every agent acts once, in order of index: what synchronous systems need."""

    name: ClassVar[str] = "steps"


@dataclass(frozen=True)
class Bursts:
    """Sessions: a random agent stays active for a geometric number of rounds with this mean."""

    name: ClassVar[str] = "bursts"
    length: float = 20.0

    def __post_init__(self) -> None:
        keep_finite(self, "length", 1.0)

    def start(self, n_agents: int, rng: np.random.Generator) -> Draw:
        current = [int(rng.integers(n_agents))]

        def draw(n: int) -> Index:
            ends = rng.random(n) < 1.0 / self.length
            newcomers = rng.integers(n_agents, size=n)
            active = np.empty(n, dtype=np.int64)
            for i in range(n):
                active[i] = current[0]
                if ends[i]:
                    current[0] = int(newcomers[i])
            return active

        return draw


@dataclass(frozen=True)
class Outages:
    """A random part of the fleet is offline for a while, then another; the rest act evenly."""

    name: ClassVar[str] = "outages"
    fraction: float = 0.5
    length: int = 500

    def __post_init__(self) -> None:
        keep_finite(self, "fraction", 0.0)
        if not self.fraction < 1:
            raise InvalidParameter(f"expected the offline fraction in [0, 1), got {self.fraction}")
        keep_whole(self, "length", 1)

    def start(self, n_agents: int, rng: np.random.Generator) -> Draw:
        n_online = max(1, math.ceil(n_agents * (1 - self.fraction)))
        online = [rng.permutation(n_agents)[:n_online]]
        left = [self.length]

        def draw(n: int) -> Index:
            parts = []
            while n > 0:
                if left[0] == 0:
                    online[0], left[0] = rng.permutation(n_agents)[:n_online], self.length
                take = min(n, left[0])
                parts.append(online[0][rng.integers(n_online, size=take)])
                left[0] -= take
                n -= take
            return np.concatenate(parts)

        return draw


@dataclass(frozen=True)
class Explicit:
    """An explicit list of active agents; with `repeat` it starts again at its end."""

    name: ClassVar[str] = "sequence"
    agents: tuple[int, ...]
    repeat: bool = False

    def __post_init__(self) -> None:
        if not self.agents:
            raise InvalidParameter("expected a sequence with at least one agent")

    def start(self, n_agents: int, rng: np.random.Generator) -> Draw:
        order = np.asarray(self.agents, dtype=np.int64)
        if order.min() < 0 or order.max() >= n_agents:
            raise InvalidParameter(f"expected agents from 0 to {n_agents - 1}, got {order.min()} to {order.max()}")
        clock = [0]

        def draw(n: int) -> Index:
            rounds = clock[0] + np.arange(n)
            clock[0] += n
            # Blocks may reach past the end of the list; the runner asks only for rounds that it plays.
            return order[rounds % len(order)]

        return draw


@dataclass(frozen=True)
class Episodes:
    """Algorithm 2: in episode k the agents of P_k act one after another; the sets repeat after the last one."""

    name: ClassVar[str] = "episodes"
    sets: tuple[tuple[int, ...], ...]

    def start(self, n_agents: int, rng: np.random.Generator) -> Draw:
        return self.flattened().start(n_agents, rng)

    def flattened(self) -> Explicit:
        """The same order as one list: Algorithm 1's view of it."""
        return Explicit(tuple(agent for episode in self.sets for agent in episode), repeat=True)


@dataclass(frozen=True)
class RandomEpisodes:
    """Algorithm 2 with random participation: each agent joins an episode with this probability, in random order."""

    name: ClassVar[str] = "random-episodes"
    probability: float = 0.5

    def __post_init__(self) -> None:
        keep_finite(self, "probability", 0.0, strictly=True)
        if not self.probability <= 1:
            raise InvalidParameter(f"expected a probability in (0, 1], got {self.probability}")

    def start(self, n_agents: int, rng: np.random.Generator) -> Draw:
        waiting: list[int] = []

        def draw(n: int) -> Index:
            while len(waiting) < n:
                present = np.flatnonzero(rng.random(n_agents) < self.probability)
                waiting.extend(rng.permutation(present).tolist())
            active = np.asarray(waiting[:n], dtype=np.int64)
            del waiting[:n]
            return active

        return draw


@dataclass(frozen=True)
class ByRows:
    """Agent m acts `counts[m]` times in a pass, in random order; then the next pass begins.

    With a world from data and its counts, a pass plays every row once, at the agent that owns it.
    """

    name: ClassVar[str] = "by-rows"
    counts: tuple[int, ...]

    def __post_init__(self) -> None:
        counts = tuple(whole_at_least(count, 0, "a count") for count in self.counts)
        if not any(counts):
            raise InvalidParameter("expected at least one agent with rows")
        object.__setattr__(self, "counts", counts)

    def start(self, n_agents: int, rng: np.random.Generator) -> Draw:
        if len(self.counts) > n_agents:
            raise InvalidParameter(f"expected n_agents = {len(self.counts)}, as the data has; got {n_agents}")
        everybody = np.repeat(np.arange(len(self.counts)), self.counts)
        waiting = np.empty(0, dtype=np.int64)

        def draw(n: int) -> Index:
            nonlocal waiting
            while len(waiting) < n:
                waiting = np.concatenate([waiting, rng.permutation(everybody)])
            active, waiting = waiting[:n], waiting[n:]
            return active

        return draw


NextAgent = Callable[[History, int, np.random.Generator], int]


@dataclass(frozen=True, eq=False)
class Reactive:
    """m_t = `agent`(history, M, rng): any function of all past rounds, rewards in agents' buffers included."""

    name: ClassVar[str] = "reactive"
    agent: NextAgent

    def __post_init__(self) -> None:
        agent: Any = self.agent
        if not callable(agent) or isinstance(agent, type):
            raise InvalidParameter(f"expected agent as a function of history, n_agents and rng, got {self.agent!r}")

    def start(self, n_agents: int, rng: np.random.Generator) -> ReactiveDraw:
        return ReactiveDraw(self.agent, n_agents, rng)


class ReactiveDraw:
    """One run, one round at a time; `history` is set by whoever plays it."""

    def __init__(self, agent: NextAgent, n_agents: int, rng: np.random.Generator) -> None:
        self.agent, self.n_agents, self.rng = agent, n_agents, rng
        self.history = History()

    def __call__(self, n: int) -> Index:
        """The active agent of the next round."""
        chosen = whole_at_least(self.agent(self.history, self.n_agents, self.rng), 0, "the active agent's number")
        return np.full(n, chosen, dtype=np.int64)


def reactive(agent: NextAgent) -> Reactive:
    """Who is active depends on all past choices and rewards: `agent(history, n_agents, rng)` gives its number.

    >>> def next_after_a_bad_reward(history, n_agents, rng):
    ...     last = history.last
    ...     return 0 if last is None else (last.agent + (last.reward < 0)) % n_agents
    >>> reactive(next_after_a_bad_reward).name
    'reactive'
    """
    return Reactive(agent)


class HasRows(Protocol):
    """A world from data: it has the number of rows of each agent."""

    @property
    def row_counts(self) -> tuple[int, ...]: ...


def by_rows(world: HasRows) -> ByRows:
    """Every agent as often as it has rows, in random order: with `n_rounds = world.n_rows`, one pass over the data."""
    if not hasattr(type(world), "row_counts"):
        raise InvalidParameter(f"expected a world from data, whose rows belong to agents, got {world!r}")
    return ByRows(world.row_counts)


def as_pattern(participation: Participation | str | None, world: World) -> Participation:
    """The participation pattern of an object or a name; uniformly at random when None."""
    if participation is None:
        return Even()
    if isinstance(participation, str):
        if participation == ByRows.name:
            return by_rows(world)  # type: ignore[arg-type]
        if participation not in PARTICIPATION:
            names = ", ".join([*PARTICIPATION, ByRows.name])
            raise InvalidParameter(f"expected participation to be one of {names}, got {participation!r}")
        return PARTICIPATION[participation]()
    if isinstance(participation, type) or not callable(getattr(participation, "start", None)):
        raise InvalidParameter(f"expected a participation such as fb.participation.zipf(), got {participation!r}")
    return participation


def sequence(agents: Sequence[int], *, repeat: bool = False) -> Explicit:
    """Agents by an explicit list."""
    return Explicit(_numbers(agents), repeat)


def episodes(sets: Sequence[Sequence[int]]) -> Episodes:
    """Algorithm 2's participation sets P_1, P_2, …, each in its order."""
    if not is_listing(sets):
        raise InvalidParameter(f"expected a list of participation sets, got {sets!r}")
    return Episodes(tuple(_numbers(episode) for episode in sets))


def _numbers(agents: Any) -> tuple[int, ...]:
    if not is_listing(agents):
        raise InvalidParameter(f"expected a list of agents' numbers, got {agents!r}")
    return tuple(whole_at_least(agent, 0, "an agent's number") for agent in agents)


uniform, zipf, round_robin, steps = Even, Zipf, RoundRobin, Steps
bursts, outages, random_episodes = Bursts, Outages, RandomEpisodes
PARTICIPATION: Registry[Callable[..., Participation]] = Registry(
    "participation",
    {pattern.name: pattern for pattern in (Even, Zipf, RoundRobin, Steps, Bursts, Outages, RandomEpisodes)},
    group="fedbandit.participation",
)
