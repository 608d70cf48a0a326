"""A simulation in a process of its own: reads a spec, writes where each algorithm stands, line by line as JSON.

Started by `runs.py` as `python -m fedbandit.dashboard.worker`, at a low priority and within limits of time and
memory; it ends when whoever started it does.
"""

from __future__ import annotations

import math
import os
import resource
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from fedbandit.algorithms.base import Rule
from fedbandit.algorithms.catalog import CATALOG
from fedbandit.dashboard.spec import ALPHA_FACTOR, Spec
from fedbandit.simulation.participation import Even
from fedbandit.simulation.runner import Fleet, rounds_of, value_of
from fedbandit.simulation.worlds import WORLDS, Block, Stream

NICE = 10  # behind everything else, and yet not starved for ever on a busy machine
MAX_CPU_S = 120
MAX_MEMORY = 4 << 30  # of addresses; what is really used is far less
N_POINTS = 80
REPORT_S = 0.15
BETA = 0.5
GAMMA = 6.0


class Step(msgspec.Struct):
    """Where an algorithm stands: round, regret, messages so far."""

    line: str
    round: int
    regret: float
    messages: int


class Steps(msgspec.Struct):
    """What the worker writes, once in a while."""

    steps: list[Step]


def rules_of(spec: Spec) -> dict[str, Rule]:
    """The algorithms to compare, with the numbers that the command line's `simulate` takes by default."""
    dim = WORLDS[spec.world]().dim
    common: dict[str, Any] = {"dim": dim, "beta": BETA, "lam": 1.0}
    threshold = spec.n_rounds / (spec.n_agents * dim * math.log(spec.n_rounds))
    return {
        "fedlinucb": CATALOG["fedlinucb"](alpha=spec.alpha, **common),
        "fedlinucb-more": CATALOG["fedlinucb"](alpha=ALPHA_FACTOR * spec.alpha, **common),
        "async-linucb": CATALOG["async-linucb"](gamma_up=GAMMA, gamma_down=GAMMA, **common),
        "dislinucb": CATALOG["dislinucb"](threshold=threshold, **common),
        "oful-independent": CATALOG["oful-independent"](**common),
    }


class Contestant:
    """One algorithm's fleet, playing the same rounds as all others."""

    def __init__(self, name: str, rule: Rule, n_agents: int) -> None:
        self.name = name
        self.fleet = Fleet(rule, n_agents)
        self.regret = 0.0

    def play(self, who: int, block: Block, i: int, stream: Stream) -> None:
        """One round of Algorithm 1."""
        agent = self.fleet.agent(str(who))
        pull = agent.arrive()
        if pull is not None:
            self.fleet.exchange(pull)
        actions = block.actions(i)
        decision = agent.choose(actions)
        mean, best = value_of(decision.index, decision.x, actions, block, i, stream)
        upload = agent.observe(decision, mean + float(block.noise[i]))
        if upload is not None:
            self.fleet.exchange(upload)
        self.regret += best - mean

    def step(self, t: int) -> Step:
        """Where it stands after round t."""
        return Step(self.name, t, round(self.regret, 3), self.fleet.n_up + self.fleet.n_down)


def play(spec: Spec) -> Iterator[list[Step]]:
    """All algorithms side by side, with a list of steps at about eighty rounds, denser at the beginning."""
    world = WORLDS[spec.world]()
    contestants = [Contestant(name, rule, spec.n_agents) for name, rule in rules_of(spec).items()]
    marks = set(np.linspace(1, spec.n_rounds**0.5, N_POINTS).round(3).tolist())
    noted = {int(mark**2) for mark in marks} | {spec.n_rounds}
    stream, blocks = rounds_of(world, Even(), n_agents=spec.n_agents, n_rounds=spec.n_rounds, seed=spec.seed)
    t = 0
    for active, block in blocks:
        for i in range(min(len(block), spec.n_rounds - t)):
            t += 1
            for contestant in contestants:
                contestant.play(int(active[i]), block, i, stream)
            if t in noted:
                yield [contestant.step(t) for contestant in contestants]


def main() -> None:
    """Read a spec from the first line of the input, play, write."""
    spec = msgspec.json.decode(sys.stdin.buffer.readline(), type=Spec)
    _be_modest()
    _end_with_parent()
    waiting: list[Step] = []
    last = 0.0
    for steps in play(spec):
        waiting += steps
        if time.monotonic() - last >= REPORT_S or steps[0].round == spec.n_rounds:
            sys.stdout.buffer.write(msgspec.json.encode(Steps(waiting)) + b"\n")
            sys.stdout.buffer.flush()
            waiting, last = [], time.monotonic()


def _be_modest() -> None:
    os.nice(NICE)
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_S, MAX_CPU_S))
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))


def _end_with_parent() -> None:
    """The input is a pipe that the server holds open: it closes when the server is gone, however it went."""

    def watch() -> None:
        # Not through sys.stdin: a thread that waits inside it holds a lock which the interpreter needs to end.
        while os.read(0, 4096):
            pass
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    main()
