"""M agents that act in steps, and what travels between them: a fleet for the one loop of runner.py."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

import numpy as np

from fedbandit.algorithms.decision import Decision
from fedbandit.algorithms.synchronous import StepMessage, SynchronousAgent, SynchronousRule
from fedbandit.core.arrays import Matrix
from fedbandit.errors import InvalidParameter
from fedbandit.simulation.worlds import Index


class SynchronousFleet:
    """A step is M consecutive rounds, one per agent in order of index; messages travel after the last of them.

    The rounds of a step that is cut short by the end of the run are played, and nothing travels after them.
    """

    def __init__(self, rule: SynchronousRule, n_agents: int, fixed_actions: Matrix | None = None) -> None:
        self.rule = rule
        self.n_up = self.n_down = self.n_switches = self.n_scalars = self.n_bytes = 0
        self.agents = {str(m): rule.agent(str(m), incarnation="simulation") for m in range(n_agents)}
        self.server = rule.server()
        self.server.enroll(self.agents)
        if getattr(rule, "needs_fixed_actions", False):
            self._announce(fixed_actions)
        self._ids = list(self.agents)
        self._counts_replies = not getattr(rule, "peer_to_peer", False)
        self._exchange(self._deliver(self.server.begin()))

    def _announce(self, actions: Matrix | None) -> None:
        """Tell the server the action set that everybody knows in advance, which costs no message."""
        if actions is None:
            raise InvalidParameter(
                f"{type(self.rule).__name__} needs a world with one fixed action set, such as fb.worlds.fixed_set()"
            )
        cast(Any, self.server).know_actions(actions)

    @property
    def dim(self) -> int:
        return self.rule.dim

    def begin_round(self, t: int, agent_id: str) -> SynchronousAgent:
        """The agent whose turn it is in this step."""
        if agent_id != self._ids[(t - 1) % len(self._ids)]:
            raise not_in_steps(t, agent_id, self.rule)
        return self.agents[agent_id]

    def end_round(self, agent: SynchronousAgent, decision: Decision, reward: float, upload: None) -> None:
        """End the step after its last agent."""
        if agent.agent_id == self._ids[-1]:
            self.end_step()

    def end_step(self) -> None:
        """Collect the messages of all agents, deliver them, and go on until nobody answers."""
        messages: dict[str, StepMessage] = {}
        for agent_id, agent in self.agents.items():
            before = agent.n_switches
            message = agent.end_step()
            self.n_switches += agent.n_switches - before
            if message is not None:
                messages[agent_id] = message
        self._exchange(messages, always=True)

    def _exchange(self, messages: Mapping[str, StepMessage], *, always: bool = False) -> None:
        while messages or always:
            always = False
            for message in messages.values():
                self.n_up += 1
                self._count(message)
            messages = self._deliver(self.server.end_step(messages))

    def _deliver(self, replies: Iterable[StepMessage]) -> dict[str, StepMessage]:
        """Hand each reply to its agent; their answers."""
        answers: dict[str, StepMessage] = {}
        for reply in replies:
            if self._counts_replies:
                self.n_down += 1
                self._count(reply)
            agent = self.agents[reply.agent_id]
            before = agent.n_switches
            answer = agent.adopt(reply)
            self.n_switches += agent.n_switches - before
            if answer is not None:
                answers[reply.agent_id] = answer
        return answers

    def _count(self, message: StepMessage) -> None:
        self.n_scalars += message.n_scalars
        self.n_bytes += message.n_bytes


def in_turn(t: int, n: int, n_agents: int) -> Index:
    """The active agents of rounds t+1 … t+n when all act in turn from the first round on."""
    return (t + np.arange(n)) % n_agents


def not_in_steps(t: int, agent_id: object, rule: object) -> InvalidParameter:
    """The error of a round in which another agent is active than a step needs."""
    name = type(rule).__name__
    return InvalidParameter(
        f"{name} acts in steps, in which every agent acts once in order of index; agent {agent_id} was active in "
        f"round {t}: leave participation out, or pass fb.participation.steps()"
    )
