"""The loop of Algorithm 1 for fleets that do more than deliver messages at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from fedbandit.algorithms.base import BaseAgent
from fedbandit.algorithms.messages import Upload
from fedbandit.experiments.spec import Spec
from fedbandit.simulation.runner import rounds_of, value_of
from fedbandit.simulation.trace import Recorder, Trace
from fedbandit.simulation.worlds import Block, Index, Stream

Blocks = Iterator[tuple[Index, Block]]


class Driven(Protocol):
    """A fleet that a loop can drive: it is told when a round begins, and handed what an agent wants to send."""

    n_up: int
    n_down: int
    n_switches: int

    def agent(self, agent_id: str) -> BaseAgent: ...
    def begin(self, t: int, agent: BaseAgent) -> None: ...
    def send(self, upload: Upload) -> None: ...


def opened(spec: Spec, seed: int) -> tuple[Stream, Blocks]:
    """The world and the active agents of a spec, exactly as the simulator would draw them."""
    return rounds_of(
        spec.make_world(), spec.make_participation(), n_agents=spec.n_agents, n_rounds=spec.n_rounds, seed=seed
    )


def play_rounds(fleet: Driven, spec: Spec, stream: Stream, blocks: Blocks) -> Trace:
    """Every round of the spec, in plain Python."""
    recorder = Recorder(spec.dim, spec.n_rounds, spec.record)
    regret = reward_sum = 0.0
    t = 0
    for active, block in blocks:
        for i in range(min(len(block), spec.n_rounds - t)):
            t += 1
            agent = fleet.agent(str(active[i]))
            fleet.begin(t, agent)
            actions = block.actions(i)
            decision = agent.choose(actions)
            mean, best = value_of(decision.index, decision.x, actions, block, i, stream)
            reward = mean + float(block.noise[i])
            before = agent.n_switches
            upload = agent.observe(decision, reward)
            fleet.n_switches += agent.n_switches - before
            if upload is not None:
                fleet.send(upload)
            regret, reward_sum = regret + best - mean, reward_sum + reward
            choice = -1 if decision.index is None else decision.index
            recorder.note(t, int(active[i]), choice, (regret, reward_sum, fleet.n_up, fleet.n_down, fleet.n_switches))
    return recorder.trace()
