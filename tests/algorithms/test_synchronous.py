"""Steps: every agent acts once, then messages travel; a toy system that sends means shows order and counts."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

import fedbandit as fb
from fedbandit.algorithms.synchronous import StepMessage, SynchronousAgent
from fedbandit.errors import AlreadyObserved, DimensionMismatch, InvalidInput, InvalidParameter, UnknownDecision
from fedbandit.simulation.runner import new_fleet, play_rounds, rounds_of


@dataclass(frozen=True)
class Mean(StepMessage):
    value: float


class MeanAgent(SynchronousAgent):
    """Plays row 0 until it is told the fleet's mean, then the last row; answers the first reply of each step."""

    def __init__(self, agent_id):
        super().__init__(2, agent_id, "simulation")
        self.seen, self.told, self.answered = [], [], False

    def _choose(self, X):
        return len(X) - 1 if len(self.told) > 1 else 0

    def _learn(self, index, x, reward):
        self.seen.append(reward)

    def end_step(self):
        self.answered = False
        return Mean(self.agent_id, 2, float(np.mean(self.seen)))

    def adopt(self, reply):
        self.told.append(reply.value)
        self.n_switches += 1
        if self.answered or not self.seen:
            return None
        self.answered = True
        return Mean(self.agent_id, 1, reply.value)


class MeanServer:
    def enroll(self, agent_ids):
        self.ids, self.received = list(agent_ids), []

    def begin(self):
        return [Mean(agent_id, 0, 0.0) for agent_id in self.ids]

    def end_step(self, messages):
        assert list(messages) == self.ids
        self.received.append([message.value for message in messages.values()])
        mean = float(np.mean(self.received[-1]))
        return [Mean(agent_id, 3, mean) for agent_id in self.ids]


@dataclass(frozen=True)
class Means:
    synchronous: ClassVar[bool] = True
    dim: int = 2
    peer_to_peer: bool = False

    def agent(self, agent_id, *, incarnation=None):
        return MeanAgent(agent_id)

    def server(self):
        return MeanServer()

    def to_dict(self):
        return {"algorithm": "Means", "dim": self.dim}


def simulate(rule=None, **changes):
    run = {"n_agents": 3, "n_rounds": 7, "record": "all", **changes}
    return fb.simulate(Means() if rule is None else rule, fb.worlds.uniform(dim=2, n_actions=4), **run)


def test_every_agent_acts_once_per_step_and_decides_on_what_it_knew_before():
    trace = simulate()
    assert trace.agents.tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert trace.choices.tolist() == [0, 0, 0, 3, 3, 3, 3]


def test_messages_travel_at_the_end_of_a_step_and_are_counted_exactly():
    trace = simulate()
    # Before the first step: 3 replies without numbers. Per step: 3 up with 2 numbers, 3 down with 3, 3 answers with 1,
    # 3 more down with 3.
    assert trace.messages_up.tolist() == [0, 0, 6, 6, 6, 12, 12]
    assert trace.messages_down.tolist() == [3, 3, 9, 9, 9, 15, 15]
    assert trace.scalars.tolist() == [0, 0, 27, 27, 27, 54, 54]
    assert trace.bytes.tolist() == [8 * n for n in trace.scalars]
    assert trace.switches.tolist() == [3, 3, 9, 9, 9, 15, 15]


def test_messages_between_peers_count_once():
    trace = simulate(Means(peer_to_peer=True))
    assert trace.messages_down[-1] == 0 and trace.messages_up[-1] == 12
    assert trace.n_scalars == 2 * (6 + 3)


def test_steps_are_the_default_and_all_that_a_synchronous_rule_accepts():
    assert simulate().about["participation"]["name"] == "steps"
    assert np.array_equal(simulate(participation="steps").regret, simulate().regret)
    with pytest.raises(InvalidParameter, match=r"Means acts in steps.*fb\.participation\.steps"):
        simulate(participation="uniform", n_rounds=50)
    with pytest.raises(InvalidParameter, match="compiled engine cannot play Means"):
        simulate(engine="compiled")


def test_asynchronous_rules_may_be_played_in_steps():
    rule = fb.FedLinUCB(dim=2, alpha=1.0, beta=0.5)
    trace = simulate(rule, participation=fb.participation.steps())
    assert np.array_equal(trace.regret, simulate(rule, participation="round-robin").regret)


def test_the_one_loop_plays_the_fleet_of_a_synchronous_rule():
    fleet = new_fleet(Means(), 2)
    rounds = rounds_of(fb.worlds.uniform(dim=2), fb.participation.steps(), n_agents=2, n_rounds=4, seed=0)
    play_rounds(fleet, *rounds, n_rounds=4, record="all")
    assert all(agent.n_rounds == 2 for agent in fleet.agents.values())
    assert len(fleet.server.received) == 4


def test_bad_input_is_a_named_error():
    agent, other = MeanAgent("a"), MeanAgent("b")
    with pytest.raises(DimensionMismatch):
        agent.choose(np.ones((2, 3)))
    with pytest.raises(InvalidInput, match="finite array"):
        agent.choose(fb.Ball(2))
    first, second = agent.choose(np.eye(2)), agent.choose(np.eye(2))
    with pytest.raises(AlreadyObserved, match="later decision replaced it"):
        agent.observe(first, 1.0)
    with pytest.raises(UnknownDecision):
        other.observe(second, 1.0)
    with pytest.raises(InvalidInput):
        agent.observe(np.ones(2), 1.0)
    agent.observe(second, 1.0)
    with pytest.raises(AlreadyObserved):
        agent.observe(second, 1.0)
    assert agent.n_rounds == 1
