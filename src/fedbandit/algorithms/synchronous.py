"""Systems that act in steps: every agent acts once per step, and messages travel between steps.

A step: every agent chooses and observes, in order of index, on the state that it had when the step began. Then each
agent's `end_step` gives its message, if any; the server's `end_step` receives all of them and gives replies; answers
to replies go to the server in the same way, until no agent answers.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from numpy.typing import ArrayLike

from fedbandit.algorithms.decision import Decision
from fedbandit.core.arrays import Matrix, Vector, as_matrix, as_reward, as_vector, finite, frozen
from fedbandit.core.decision_sets import has_best
from fedbandit.errors import AlreadyObserved, InvalidInput, UnknownDecision

SCALAR_BYTES = 8  # each number travels as a float64, counts included


@dataclass(frozen=True)
class StepMessage:
    """A message between two steps; subclasses add what it carries.

    `agent_id` is the sender of a message to the server, and the addressee of a reply. `n_scalars` counts the numbers
    that it carries exactly.
    """

    agent_id: str
    n_scalars: int

    @property
    def n_bytes(self) -> int:
        """Bytes of its numbers."""
        return SCALAR_BYTES * self.n_scalars


class SynchronousAgent:
    """An agent that acts once per step. Subclasses say how it chooses, learns, and what it sends.

    Between `begin` and the end of a step only `_learn` may change its state; decisions rest on what it knew before.
    """

    def __init__(self, dim: int, agent_id: str, incarnation: str | None = None) -> None:
        self.dim = dim
        self.agent_id = str(agent_id)
        self.incarnation = incarnation if incarnation is not None else uuid.uuid4().hex
        self.n_switches = 0
        self.n_rounds = 0
        self.model_version = 0
        self._n_decisions = 0
        self._pending: Decision | None = None

    # -- what a system defines ---------------------------------------------------------------------------------

    def _choose(self, X: Matrix) -> int:
        """The index of the row to play, X being (K, dim) and finite."""
        raise NotImplementedError

    def _learn(self, index: int, x: Vector, reward: float) -> None:
        """Keep the reward of the row that was played."""
        raise NotImplementedError

    def end_step(self) -> StepMessage | None:
        """The message of this agent at the end of a step; None if it sends nothing."""
        raise NotImplementedError

    def adopt(self, reply: StepMessage) -> StepMessage | None:
        """Use a reply; the answer to it, if one is due."""
        raise NotImplementedError

    # -- what all share ----------------------------------------------------------------------------------------

    def choose(self, actions: ArrayLike) -> Decision:
        """The action of this step, from (K, dim) rows; a second call in the same step replaces the first decision."""
        if has_best(actions):
            raise InvalidInput(f"{type(self).__name__} needs a finite array of actions, got a decision set with best()")
        X = finite(as_matrix(actions, self.dim), "actions")
        index = self._choose(X)
        identity = f"{self.incarnation[:12]}-{self._n_decisions}"
        self._n_decisions += 1
        decision = Decision(identity, index, frozen(X[index].copy()), self.agent_id, self.model_version)
        self._pending = decision
        return decision

    def observe(self, decision: Decision, reward: float) -> None:
        """Learn the reward of this step's decision, at most once."""
        value = as_reward(reward)
        if not isinstance(decision, Decision):
            raise InvalidInput(f"expected the decision of this step, got {type(decision).__name__}")
        if decision.agent_id != self.agent_id or not decision.id.startswith(f"{self.incarnation[:12]}-"):
            raise UnknownDecision(f"agent {self.agent_id!r} never made decision {decision.id!r}")
        if self._pending is None or decision.id != self._pending.id or decision.index is None:
            raise AlreadyObserved(f"decision {decision.id!r} has its reward already, or a later decision replaced it")
        x = as_vector(decision.x, self.dim, "the decision's row")
        self._pending = None
        self.n_rounds += 1
        self._learn(decision.index, x, value)


class SynchronousServer(Protocol):
    """The other side of the steps: a server, or in a peer-to-peer system what brings peers together."""

    def enroll(self, agent_ids: Iterable[str]) -> None:
        """All agents of the fleet, in order of index, before the first step."""
        ...

    def begin(self) -> Sequence[StepMessage]:
        """Messages to agents before the first step."""
        ...

    def end_step(self, messages: Mapping[str, StepMessage]) -> Sequence[StepMessage]:
        """Receive the messages of a step, or answers to replies, by agent; the replies, at most one per agent."""
        ...


class SynchronousRule(Protocol):
    """A synchronous system with its numbers fixed.

    A rule with `peer_to_peer` = True says that replies are the peers' own messages, which count once, up.
    """

    synchronous: ClassVar[bool]

    @property
    def dim(self) -> int: ...
    def agent(self, agent_id: str, *, incarnation: str | None = None) -> SynchronousAgent: ...
    def server(self) -> SynchronousServer: ...
    def to_dict(self) -> dict[str, Any]: ...


def is_synchronous(rule: object) -> bool:
    """Whether a rule acts in steps."""
    return bool(getattr(rule, "synchronous", False))
