"""The loop of Algorithm 1, for any algorithm: read it beside the paper."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np

from fedbandit.algorithms.base import BaseAgent, Rule
from fedbandit.algorithms.messages import Download, Pull, Request, Upload
from fedbandit.algorithms.server import BaseServer
from fedbandit.core.arrays import Vector, whole_at_least
from fedbandit.core.decision_sets import Ball, DecisionSet
from fedbandit.errors import DimensionMismatch, InvalidParameter, MissingExtra
from fedbandit.simulation.participation import Even, Participation
from fedbandit.simulation.trace import Recorder, Trace
from fedbandit.simulation.worlds import Block, Index, Stream, World, generator

Progress = Callable[[int], None]  # called with the number of rounds played since the last call


class Fleet:
    """M agents and their server in memory; delivers messages at once and counts them."""

    def __init__(self, rule: Rule, n_agents: int) -> None:
        self.rule = rule
        self.server: BaseServer = rule.server()
        if getattr(rule, "enrolment", "start") == "start":
            self.server.enroll(str(m) for m in range(n_agents))
        self.agents: dict[str, BaseAgent] = {}
        self.n_up = self.n_down = self.n_switches = 0

    def agent(self, agent_id: str) -> BaseAgent:
        """The agent of this name; it comes into being when it is first needed, and the server hears of it then."""
        if agent_id not in self.agents:
            self.server.enroll([agent_id])
            self.agents[agent_id] = self.rule.agent(agent_id, incarnation="simulation")
        return self.agents[agent_id]

    def exchange(self, request: Request) -> None:
        """Carry a message to the server, its replies to their addressees, and so on until nobody has more to say."""
        mail = deque([request])
        while mail:
            message = mail.popleft()
            self.n_up += isinstance(message, Upload)
            replies = self.server.receive(message)
            for reply in replies if isinstance(replies, tuple) else (replies,):
                self.n_down += isinstance(reply, Download)
                agent = self.agent(reply.agent_id)
                before = agent.n_switches
                answer = agent.adopt(reply)
                self.n_switches += agent.n_switches - before
                if answer is not None:
                    mail.append(answer)


def run_reference(
    rule: Rule,
    world: World,
    participation: Participation,
    *,
    n_agents: int,
    n_rounds: int,
    seed: int,
    record: str | Sequence[int],
    progress: Progress | None = None,
) -> Trace:
    """Play `n_rounds` rounds of Algorithm 1 in plain Python."""
    fleet = Fleet(rule, n_agents)
    recorder = Recorder(rule.dim, n_rounds, record)
    regret = reward_sum = 0.0
    t = 0
    stream, blocks = rounds_of(world, participation, n_agents=n_agents, n_rounds=n_rounds, seed=seed)
    for active, block in blocks:
        played = min(len(block), n_rounds - t)
        for i in range(played):
            t += 1
            agent = fleet.agent(str(active[i]))  # line 3: agent m_t is active
            pull = agent.arrive()
            if pull is not None:
                fleet.exchange(pull)
            actions = block.actions(i)  # line 4: receive D_t
            decision = agent.choose(actions)  # line 5: the optimistic decision
            mean, best = value_of(decision.index, decision.x, actions, block, i, stream)
            reward = mean + float(block.noise[i])  # line 6: receive r_t
            before = agent.n_switches
            upload = agent.observe(decision, reward)  # lines 7 and 8: learn, and test the determinant
            fleet.n_switches += agent.n_switches - before
            if upload is not None:
                fleet.exchange(upload)  # lines 9 to 14
            regret += best - mean
            reward_sum += reward
            choice = -1 if decision.index is None else decision.index
            totals = (regret, reward_sum, fleet.n_up, fleet.n_down, fleet.n_switches)
            recorder.note(t, int(active[i]), choice, totals)
        if progress is not None:
            progress(played)
    return recorder.trace()


def rounds_of(
    world: World, participation: Participation, *, n_agents: int, n_rounds: int, seed: int
) -> tuple[Stream, Iterator[tuple[Index, Block]]]:
    """The stream of a seed and its blocks of rounds with the agents active in them."""
    world_seed, participation_seed = np.random.SeedSequence(seed).spawn(2)
    stream = world.stream(world_seed)
    draw = participation.start(n_agents, generator(participation_seed))
    limit = getattr(participation, "agents", None)
    if limit is not None and not getattr(participation, "repeat", True) and len(limit) < n_rounds:
        raise InvalidParameter(f"the sequence of active agents has {len(limit)} rounds, {n_rounds} were asked for")

    def blocks() -> Iterator[tuple[Index, Block]]:
        played = 0
        while played < n_rounds:
            active = draw(world.block_rounds)
            yield active, stream.draw(active)
            played += world.block_rounds

    return stream, blocks()


def value_of(index: int | None, x: Vector, actions: Any, block: Block, i: int, stream: Stream) -> tuple[float, float]:
    """Expected reward of the choice, and of the best action there was."""
    if index is not None and block.means is not None:
        return float(block.means[i, index]), float(block.means[i].max())
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
    rule: Rule,
    world: World,
    *,
    n_agents: int,
    n_rounds: int,
    seed: int = 0,
    participation: Participation | None = None,
    record: str | Sequence[int] = "log",
    progress: Progress | None = None,
    engine: str = "auto",
) -> Trace:
    """Play `n_rounds` rounds of `rule` in `world` and return what happened.

    All rules see the same decision sets, noise and active agents for the same seed. `record` is "log" (about 200
    rounds), "all" (every round, with choices) or a list of round numbers. `engine` is "reference" (plain Python),
    "compiled" (machine code, needs `fedbandit[lab]`; same trace, rounding apart) or "auto": compiled where possible.
    """
    whole_at_least(n_agents, 1, "n_agents")
    whole_at_least(n_rounds, 1, "n_rounds")
    if rule.dim != world.dim:
        raise DimensionMismatch(f"expected a rule for the world's {world.dim} features, got one for {rule.dim}")
    return _engine(engine, rule)(
        rule,
        world,
        participation or Even(),
        n_agents=n_agents,
        n_rounds=n_rounds,
        seed=seed,
        record=record,
        progress=progress,
    )


def _engine(name: str, rule: Rule) -> Callable[..., Trace]:
    """The function that plays: machine code where it is asked for, or possible and not declined."""
    if name not in ("auto", "reference", "compiled"):
        raise InvalidParameter(f"expected engine 'auto', 'reference' or 'compiled', got {name!r}")
    if name == "reference":
        return run_reference
    if find_spec("numba") is None:
        if name == "auto":
            return run_reference
        raise MissingExtra("the compiled engine needs numba: pip install 'fedbandit[lab]'")
    from fedbandit.simulation.compiled import has_kernel, run_compiled

    if name == "auto" and not has_kernel(rule):
        return run_reference
    return partial(run_compiled, strict=name == "compiled")


__all__ = ["Fleet", "Pull", "run_reference", "simulate"]
