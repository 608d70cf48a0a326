"""The loop of Algorithm 1, for any algorithm: read it beside the paper."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any, Protocol, cast

import numpy as np

from fedbandit.algorithms.base import BaseAgent, Rule
from fedbandit.algorithms.decision import Decision
from fedbandit.algorithms.messages import Download, Reply, Request, Upload
from fedbandit.algorithms.rules import LinearRule
from fedbandit.algorithms.server import BaseServer
from fedbandit.algorithms.synchronous import SynchronousRule, is_synchronous
from fedbandit.core.arrays import Vector, is_among, whole_at_least
from fedbandit.core.decision_sets import Ball, DecisionSet
from fedbandit.errors import DimensionMismatch, InvalidParameter, MissingExtra
from fedbandit.simulation.block_checks import BlockChecker, checked_active, checked_theta_star
from fedbandit.simulation.participation import Participation, Reactive, Steps, as_pattern
from fedbandit.simulation.run_metadata import describe, installed_version, plain_values
from fedbandit.simulation.synchronous_fleet import SynchronousFleet
from fedbandit.simulation.trace import Recorder, Trace
from fedbandit.simulation.worlds import (
    Block,
    History,
    Index,
    PlayedRound,
    ReactiveWorld,
    Stream,
    World,
    generator,
)

Progress = Callable[[int], None]  # called with the number of rounds played since the last call
Blocks = Iterator[tuple[Index, Block]]  # rounds with the agents active in them


class PlayableFleet(Protocol):
    """What the loop needs of a fleet; the counts are totals so far."""

    n_up: int
    n_down: int
    n_switches: int
    n_scalars: int
    n_bytes: int

    @property
    def dim(self) -> int: ...
    def begin_round(self, t: int, agent_id: str) -> Any: ...
    def end_round(self, agent: Any, decision: Decision, reward: float, upload: Any) -> None: ...


class SimulatedFleet:
    """M agents and their server in memory; delivers messages immediately and counts them.

    A subclass changes what happens between agents and server by `begin_round`, `end_round` and `exchange`.
    """

    def __init__(self, rule: Rule, n_agents: int) -> None:
        self.rule = rule
        self.server: BaseServer = rule.server()
        if getattr(rule, "enrolment", "start") == "start":
            self.server.enroll(str(m) for m in range(n_agents))
        self.agents: dict[str, BaseAgent] = {}
        self.incarnation = "simulation"  # of every agent; what policies draw at random depends on it
        self.now = 0  # the round that is played, from 1
        self.n_up = self.n_down = self.n_switches = self.n_scalars = self.n_bytes = 0

    @property
    def dim(self) -> int:
        return self.rule.dim

    def agent(self, agent_id: str) -> BaseAgent:
        """The agent of this name, created and enrolled at first use."""
        if agent_id not in self.agents:
            self.server.enroll([agent_id])
            self.agents[agent_id] = self.rule.agent(agent_id, incarnation=self.incarnation)
        return self.agents[agent_id]

    def begin_round(self, t: int, agent_id: str) -> BaseAgent:
        """The agent that decides in round t, after the download that its algorithm asks for."""
        agent = self.agent(agent_id)
        self.now = agent.now = t
        pull = agent.arrive()
        if pull is not None:
            self.exchange(pull)
        return agent

    def end_round(self, agent: BaseAgent, decision: Decision, reward: float, upload: Upload | None) -> None:
        """Deliver the upload that the agent triggers after it has observed the reward."""
        if upload is not None:
            self.exchange(upload)

    def exchange(self, request: Request) -> None:
        """Deliver a request, the replies to it, the uploads that these trigger, and so on until none is left."""
        requests = deque([request])
        while requests:
            message = requests.popleft()
            self.count(message)
            replies = self.server.receive(message)
            for reply in replies if isinstance(replies, tuple) else (replies,):
                self.count(reply)
                upload = self.adopt(reply)
                if upload is not None:
                    requests.append(upload)

    def count(self, message: Request | Reply) -> None:
        """Count a message that is sent, if it carries statistics."""
        if isinstance(message, Upload | Download):
            self.n_up += isinstance(message, Upload)
            self.n_down += isinstance(message, Download)
            self.n_scalars += message.n_scalars
            self.n_bytes += message.n_bytes

    def adopt(self, reply: Reply) -> Upload | None:
        """Hand a reply to its agent and count the switches; returns the upload that this triggers."""
        agent = self.agent(reply.agent_id)
        agent.now = self.now
        before = agent.n_switches
        upload = agent.adopt(reply)
        self.n_switches += agent.n_switches - before
        return upload


def play_rounds(
    fleet: PlayableFleet,
    stream: Stream,
    blocks: Blocks,
    *,
    n_rounds: int,
    record: str | Sequence[int],
    progress: Progress | None = None,
) -> Trace:
    """Play `n_rounds` rounds of Algorithm 1 in plain Python: the one loop of the simulator and of all drivers."""
    recorder = Recorder(fleet.dim, n_rounds, record)
    history = getattr(blocks, "history", None)
    regret = reward_sum = 0.0
    t = 0
    for active, block in blocks:
        played = min(len(block), n_rounds - t)
        for i in range(played):
            t += 1
            agent = fleet.begin_round(t, str(active[i]))  # line 3: agent m_t is active
            actions = block.actions(i)  # line 4: receive D_t
            decision = agent.choose(actions)  # line 5: the optimistic decision
            mean, best = value_of(decision.index, decision.x, actions, block, i, stream)
            reward = mean + block.noise_of(i, decision.index)  # line 6: receive r_t
            before = agent.n_switches
            upload = agent.observe(decision, reward)  # lines 7 and 8: learn, and test the determinant
            fleet.n_switches += agent.n_switches - before
            n_before = fleet.n_up + fleet.n_down
            fleet.end_round(agent, decision, reward, upload)  # lines 9 to 14
            if history is not None:
                exchanged = fleet.n_up + fleet.n_down > n_before
                history.add(PlayedRound(int(active[i]), actions, decision.index, decision.x, reward, exchanged))
            regret += best - mean
            reward_sum += reward
            choice = -1 if decision.index is None else decision.index
            counts = (fleet.n_up, fleet.n_down, fleet.n_switches, fleet.n_scalars, fleet.n_bytes)
            recorder.note(t, int(active[i]), choice, (regret, reward_sum, *counts))
        if progress is not None:
            progress(played)
    return recorder.trace()


def rounds_of(
    world: World, participation: Participation, *, n_agents: int, n_rounds: int, seed: int
) -> tuple[Stream, Blocks]:
    """The stream of a seed and its blocks of rounds with the agents active in them, all of it checked."""
    reacts = is_reactive(world, participation)
    block_rounds = 1 if reacts else whole_at_least(world.block_rounds, 1, "block_rounds of the world")
    world_seed, participation_seed = np.random.SeedSequence(seed).spawn(2)
    stream = world.stream(world_seed)
    check = BlockChecker(world.dim, checked_theta_star(stream.theta_star, world.dim))
    draw = participation.start(n_agents, generator(participation_seed))
    limit = getattr(participation, "agents", None)
    if limit is not None and not getattr(participation, "repeat", True) and len(limit) < n_rounds:
        raise InvalidParameter(f"the sequence of active agents has {len(limit)} rounds, {n_rounds} were asked for")

    def blocks() -> Blocks:
        played = 0
        while played < n_rounds:
            active = checked_active(draw(block_rounds), n_agents, block_rounds)
            yield active, check(stream.draw(active), block_rounds)
            played += block_rounds

    return stream, RoundsThatReact(blocks(), stream, draw) if reacts else blocks()


def is_reactive(world: World, participation: Participation) -> bool:
    """Whether decision sets or active agents depend on past rewards."""
    return isinstance(world, ReactiveWorld) or isinstance(participation, Reactive)


class RoundsThatReact:
    """Blocks of one round each, drawn when the round before is over, with the history that they depend on."""

    def __init__(self, blocks: Blocks, stream: Any, draw: Any) -> None:
        self.history = History()
        self._blocks = blocks
        for who in (stream, draw):
            if hasattr(who, "history"):
                who.history = self.history

    def __iter__(self) -> Blocks:
        return self._blocks

    def __next__(self) -> tuple[Index, Block]:
        return next(self._blocks)


def value_of(index: int | None, x: Vector, actions: Any, block: Block, i: int, stream: Stream) -> tuple[float, float]:
    """Expected reward of the choice, and of the best action there was."""
    means = block.means_of(i)
    if index is not None and means is not None:
        return float(means[index]), float(means.max())
    if stream.theta_star is None:
        raise InvalidParameter("a world of infinite decision sets needs theta_star")
    return float(x @ stream.theta_star), best_mean(actions, stream.theta_star)


def best_mean(decision_set: DecisionSet, theta_star: Vector) -> float:
    """max ⟨θ*, x⟩ over an infinite decision set."""
    if isinstance(decision_set, Ball):
        return decision_set.radius * float(np.linalg.norm(theta_star))
    from fedbandit.core.decision_sets import Width

    certain = Width(np.zeros((len(theta_star), len(theta_star))))
    return float(decision_set.best(theta_star, certain, 0.0) @ theta_star)


def simulate(
    rule: Rule | SynchronousRule,
    world: World,
    *,
    n_agents: int,
    n_rounds: int,
    seed: int = 0,
    participation: Participation | str | None = None,
    record: str | Sequence[int] = "log",
    progress: Progress | None = None,
    engine: str = "auto",
) -> Trace:
    """Play `n_rounds` rounds of `rule` in `world` and return the trace.

    All rules see the same decision sets, noise and active agents for the same seed. `participation` is one of
    `fb.participation`, or its name; synchronous rules need `fb.participation.steps()`, their default. `record` is
    "log" (about 200 rounds), "all" (every round, with choices) or a list of round numbers. `engine` is "reference"
    (plain Python), "compiled" (machine code, needs `fedbandit[lab]`; same trace, rounding apart) or "auto": compiled
    where possible.
    """
    n_agents, n_rounds = whole_at_least(n_agents, 1, "n_agents"), whole_at_least(n_rounds, 1, "n_rounds")
    seed = whole_at_least(seed, 0, "seed")
    if isinstance(rule, type) or not hasattr(rule, "server"):
        raise InvalidParameter(f"expected a rule such as fb.FedLinUCB(dim=…, alpha=…, beta=…), got {rule!r}")
    if isinstance(world, type) or not hasattr(world, "stream"):
        raise InvalidParameter(f"expected a world such as fb.worlds.uniform(), got {world!r}")
    if progress is not None and not callable(progress):
        raise InvalidParameter(f"expected progress as a function of a number of rounds, got {progress!r}")
    if rule.dim != world.dim:
        raise DimensionMismatch(f"expected a rule for the world's {world.dim} features, got one for {rule.dim}")
    if isinstance(rule, LinearRule):
        rule.check_fleet(n_agents)
    pattern = Steps() if participation is None and is_synchronous(rule) else as_pattern(participation, world)
    run: dict[str, Any] = {"n_agents": n_agents, "n_rounds": n_rounds, "seed": seed, "record": record}
    trace = _played(engine, rule, world, pattern, run, progress)
    about = {"rule": plain_values(rule.to_dict()), "world": describe(world), "participation": describe(pattern)}
    return replace(trace, about={"fedbandit": installed_version(), "engine": engine, **about, **plain_values(run)})


def _played(
    engine: str,
    rule: Rule | SynchronousRule,
    world: World,
    pattern: Participation,
    run: dict[str, Any],
    progress: Progress | None,
) -> Trace:
    """The trace of the compiled engine where it is requested, or possible and not declined."""
    if not is_among(engine, ("auto", "reference", "compiled")):
        raise InvalidParameter(f"expected engine 'auto', 'reference' or 'compiled', got {engine!r}")
    if engine == "compiled" and find_spec("numba") is None:
        raise MissingExtra("the compiled engine needs numba: install fedbandit[lab]")
    report = _OnceEach(progress)
    if engine != "reference" and find_spec("numba") is not None:
        from fedbandit.simulation.compiled import NotCompiled, run_compiled

        try:
            return run_compiled(rule, world, pattern, **run, progress=report)
        except NotCompiled as found:
            if engine == "compiled" and not found.by_choice:
                raise InvalidParameter(f"the compiled engine cannot play {found}; engine='reference' can") from None
    report.start_again()
    rounds = {key: run[key] for key in ("n_agents", "n_rounds", "seed")}
    stream, blocks = rounds_of(world, pattern, **rounds)
    fleet = new_fleet(rule, run["n_agents"], stream, seed=run["seed"])
    return play_rounds(fleet, stream, blocks, n_rounds=run["n_rounds"], record=run["record"], progress=report)


def new_fleet(
    rule: Rule | SynchronousRule, n_agents: int, stream: Stream | None = None, *, seed: int = 0
) -> PlayableFleet:
    """The fleet of a rule, synchronous or not; some need to know the fixed actions of a stream."""
    if is_synchronous(rule):
        return SynchronousFleet(cast(SynchronousRule, rule), n_agents, getattr(stream, "fixed_actions", None))
    fleet = SimulatedFleet(cast(Rule, rule), n_agents)
    fleet.incarnation = incarnation_of(seed)
    return fleet


def incarnation_of(seed: int) -> str:
    """The incarnation of agents in a run with this seed: other seeds draw other numbers."""
    return f"simulation-{seed}"


class _OnceEach:
    """Reports each round once to `progress`, also when a second engine starts again from the first round."""

    def __init__(self, progress: Progress | None) -> None:
        self.progress, self.reported, self.played = progress, 0, 0

    def start_again(self) -> None:
        self.played = 0

    def __call__(self, played: int) -> None:
        self.played += played
        new = self.played - self.reported
        if new > 0:
            self.reported = self.played
            if self.progress is not None:
                self.progress(new)


__all__ = ["SimulatedFleet", "incarnation_of", "new_fleet", "play_rounds", "rounds_of", "simulate"]
