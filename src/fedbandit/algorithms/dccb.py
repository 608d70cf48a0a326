"""DCCB (Korda, Szörényi and Li 2016): DCB among agents that may differ; peers whose own estimates disagree part."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedbandit.algorithms.dcb import (
    DCB,
    BufferMessage,
    DCBAgent,
    DCBMeetings,
    FleetMembers,
    packed_pair,
    packed_prior,
    unpacked,
)
from fedbandit.algorithms.synchronous import StepMessage
from fedbandit.core.arrays import Matrix, Vector, finite_at_least, frozen
from fedbandit.core.ridge import RidgeModel
from fedbandit.errors import InvalidInput, InvalidParameter
from fedbandit.registry import Algorithm, option
from fedbandit.wire.identifiers import check_agent_id


@dataclass(frozen=True, kw_only=True)
class DCCB(DCB):
    """DCB that finds clusters: agents drop each other when their own estimates are further apart than c(t).

    An agent shares only with those that have the same set of neighbours. c(t) is the printed one, with `noise_scale`
    R, `delta` and `kappa`, the smallest eigenvalue of the contexts' covariance; or, since that needs very many steps
    before it separates anybody, `threshold`·√((1 + log(1+t))/(1+t)) where a threshold is given. With mass "fleet" a
    new pair weighs as much as the agent has neighbours, itself included.
    """

    noise_scale: float = field(
        default=1.0,
        metadata=option("R of the printed c(t)", default=lambda run: run.noise, default_help="the world's noise"),
    )
    kappa: float = field(
        default=0.1, metadata=option("smallest eigenvalue of the contexts' covariance, for the printed c(t)")
    )
    delta: float = 0.01
    threshold: float | None = field(
        default=None,
        metadata=option("use c(t) = threshold·√((1 + log(1+t))/(1+t)) in place of the printed one", letter="c"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("noise_scale", "kappa"):
            object.__setattr__(self, name, finite_at_least(getattr(self, name), 0.0, name, strictly=name == "kappa"))
        if not 0 < finite_at_least(self.delta, 0.0, "delta") < 1:
            raise InvalidParameter(f"expected delta between 0 and 1, got {self.delta}")
        if self.threshold is not None:
            object.__setattr__(self, "threshold", finite_at_least(self.threshold, 0.0, "threshold", strictly=True))

    def agent(self, agent_id: str, *, incarnation: str | None = None) -> DCCBAgent:
        """A new agent at the prior."""
        return DCCBAgent(self, check_agent_id(agent_id), incarnation)

    def server(self) -> DCCBMeetings:
        """What draws the permutations; it keeps no data."""
        return DCCBMeetings(self)

    def separation(self, step: int) -> float:
        """c(t): agents whose own estimates are at least this far apart after step t drop each other."""
        t = max(step, 1)
        if self.threshold is not None:
            return self.threshold * math.sqrt((1.0 + math.log1p(t)) / (1.0 + t))
        spread = self.noise_scale * math.sqrt(2.0 * self.dim * math.log(t) + 2.0 * math.log(2.0 / self.delta)) + 1.0
        tail = math.log((t + 3.0) * 4.0 * self.dim / self.delta)
        information = self.kappa * t / 4.0 - 8.0 * tail - 2.0 * math.sqrt(t * tail)
        return spread / math.sqrt(1.0 + max(information, 0.0))


@dataclass(frozen=True, eq=False)
class MeetingMessage(BufferMessage):
    """A buffer with its sender, the sender's own estimate (d numbers) and neighbours (one number each)."""

    sender: str
    theta_hat: Vector
    neighbours: frozenset[str]


@dataclass(frozen=True, eq=False)
class Parting(StepMessage):
    """The agent has dropped this peer, or is told that the peer has dropped it: one number."""

    peer: str


class DCCBAgent(DCBAgent):
    """Keeps its own sums apart from the averaged ones, and falls back on them when it drops a neighbour."""

    rule: DCCB

    def __init__(self, rule: DCCB, agent_id: str, incarnation: str | None = None) -> None:
        super().__init__(rule, agent_id, incarnation)
        self.neighbours: frozenset[str] = frozenset()
        self.local: Vector = packed_prior(rule)  # all own pairs
        self.own_active: Vector = np.zeros_like(self.local)  # own pairs that are no longer in the buffer
        self.own_buffer: Matrix = self.buffer  # own pairs of the steps that the buffer holds
        self._theta_hat: Vector = np.zeros(rule.dim)
        self._own_new: Vector = self.local

    def _learn(self, index: int, x: Vector, reward: float) -> None:
        super()._learn(index, x, reward)
        self._own_new = packed_pair(x, reward)
        self.local = self.local + self._own_new
        self._theta_hat = RidgeModel(unpacked(self.local, self.dim)).theta_hat

    def end_step(self) -> StepMessage | None:
        """The buffer as it was when the step began, with the own estimate and the neighbours."""
        message = super().end_step()
        if not isinstance(message, BufferMessage):
            return message
        n_scalars = message.n_scalars + self.dim + len(self.neighbours)
        return MeetingMessage(self.agent_id, n_scalars, message.pairs, self.agent_id, self._theta_hat, self.neighbours)

    def adopt(self, reply: StepMessage) -> StepMessage | None:
        """Meet a peer: drop it, share with it, or only append; or learn that a peer has dropped this agent."""
        if isinstance(reply, Parting):
            if reply.peer in self.neighbours:
                self._part(reply.peer)
            return None
        if isinstance(reply, FleetMembers):
            self.neighbours = frozenset(reply.agent_ids)  # everybody at first
        if not isinstance(reply, MeetingMessage):
            return super().adopt(reply)
        if self._differs_from(reply):
            self._end_step(self.buffer)
            self._part(reply.sender)
            return Parting(self.agent_id, 1, reply.sender)
        if reply.neighbours == self.neighbours:
            return super().adopt(reply)
        self._end_step(self.buffer)
        return None

    def _differs_from(self, peer: MeetingMessage) -> bool:
        """Whether a neighbour's own estimate is too far from this agent's."""
        if peer.sender not in self.neighbours or peer.sender == self.agent_id:
            return False
        gap = float(np.linalg.norm(self._theta_hat - peer.theta_hat))
        return gap >= self.rule.separation(self.step)

    def _weight(self) -> float:
        """s, the weight of a new pair: with mass "fleet" the size of this agent's cluster."""
        return self.rule.weight(len(self.neighbours))

    def _end_step(self, buffer: Matrix) -> None:
        n_before = len(self.buffer)
        super()._end_step(buffer)
        n_due = n_before + 1 - len(self.buffer)
        own = np.concatenate((self.own_buffer, self._own_new[None, :]))
        self.own_active = self.own_active + own[:n_due].sum(axis=0)
        self.own_buffer = frozen(own[n_due:])

    def _part(self, peer: str) -> None:
        """Drop a neighbour; buffer and active sums start again from what this agent has seen itself."""
        self.neighbours -= {peer}
        weight = self._weight()
        self.buffer = frozen(weight * self.own_buffer)
        self.active = packed_prior(self.rule) + weight * self.own_active
        self._refit()


class DCCBMeetings(DCBMeetings):
    """Draws who meets whom, and passes on who has dropped whom."""

    def end_step(self, messages: Mapping[str, StepMessage]) -> Sequence[StepMessage]:
        """The partners' messages, or the news of a parting."""
        partings = [message for message in messages.values() if isinstance(message, Parting)]
        if partings:
            return list(self._news(partings))
        return super().end_step(messages)

    def _news(self, partings: Sequence[Parting]) -> Iterator[StepMessage]:
        for parting in partings:
            yield Parting(parting.peer, 0, parting.agent_id)

    def _passed_on(self, i: int, message: StepMessage) -> StepMessage:
        if not isinstance(message, MeetingMessage):
            raise InvalidInput(f"expected the buffer of an agent with its estimate, got {type(message).__name__}")
        return MeetingMessage(
            self.ids[i], message.n_scalars, message.pairs, message.sender, message.theta_hat, message.neighbours
        )


DCCB_ENTRY = Algorithm(
    name="dccb", rule=DCCB, variants={"threshold": {"threshold": 2.0}}, traits=frozenset({"steps", "any-rows"})
)
