"""DCB (Korda, Szörényi and Li 2016): peers average delayed buffers with a random partner in each step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from fedbandit.algorithms.messages import n_scalars
from fedbandit.algorithms.rules import LinearRule, one_of
from fedbandit.algorithms.scoring import DecisionBasis
from fedbandit.algorithms.synchronous import StepMessage, SynchronousAgent
from fedbandit.core import radius as radii
from fedbandit.core.arrays import Matrix, Vector, frozen, whole_at_least
from fedbandit.core.ridge import RidgeModel
from fedbandit.core.statistics import SufficientStats, pack_symmetric, packed_length, unpack_symmetric
from fedbandit.errors import InvalidInput, InvalidParameter, ProtocolError
from fedbandit.registry import Algorithm, option
from fedbandit.wire.identifiers import check_agent_id


@dataclass(frozen=True, kw_only=True)
class DCB(LinearRule):
    """Peer to peer, in steps: each agent halves its buffer with that of one random peer, element by element.

    A pair waits in the ordered buffer for at least 4 log₂(M^1.5 t) steps before it counts in decisions, so that
    averaging has spread it over the fleet by then. `mass`: the weight s of a new pair, "paper" for 1 as printed,
    "fleet" for M, which the analysis needs. `beta` is a number or `fb.radius.exogenous`. `seed` draws the permutations.
    """

    synchronous: ClassVar[bool] = True
    peer_to_peer: ClassVar[bool] = True

    mass: str = field(
        default="paper",
        metadata=option("weight of a new pair: 'paper' (1, as printed) or 'fleet' (M, which the analysis needs)"),
    )
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self.mass, ("paper", "fleet"), "mass")
        object.__setattr__(self, "seed", whole_at_least(self.seed, 0, "seed"))
        if not isinstance(self.radius, radii.Fixed | radii.Exogenous):
            kind = self.radius.kind
            raise InvalidParameter(
                f"expected beta as a number or fb.radius.exogenous(...) for {type(self).__name__}, got radius {kind!r}"
            )

    def agent(self, agent_id: str, *, incarnation: str | None = None) -> DCBAgent:
        """A new agent at the prior."""
        return DCBAgent(self, check_agent_id(agent_id), incarnation)

    def server(self) -> DCBMeetings:
        """What draws the permutations; it keeps no data."""
        return DCBMeetings(self)

    def weight(self, n_agents: int) -> float:
        """s, the weight of a new pair."""
        return float(n_agents) if self.mass == "fleet" else 1.0

    def weighted_radius(self, n_agents: int) -> radii.AnyRadius:
        """The radius for weighted pairs: noise R√W, W = s bounding the weight of a pair in any agent's sums.

        Weights depend on permutations and not on rewards, so with features √w x and noise √w ε the self-normalised
        bound holds as for OFUL.
        """
        radius = self.radius
        if isinstance(radius, radii.Exogenous):
            return replace(radius, noise_scale=radius.noise_scale * math.sqrt(self.weight(n_agents)))
        return radius


def buffer_limit(step: int, n_agents: int) -> int:
    """⌊4 log₂(M^1.5 t)⌋: pairs that stay in the buffer at step t = 0, 1, … besides the new one; step 0 counts as 1."""
    return int(4.0 * math.log2(n_agents**1.5 * max(step, 1)))


@dataclass(frozen=True, eq=False)
class FleetMembers(StepMessage):
    """Told to every agent before the first step; the delay and the weight of a pair depend on M."""

    agent_ids: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class BufferMessage(StepMessage):
    """A whole buffer, oldest pair first: (L, d(d+1)/2 + d), the upper triangle of s x xᵀ and then s r x."""

    pairs: Matrix


class DCBAgent(SynchronousAgent):
    """Decides on its active sums; new pairs become active after the delay."""

    def __init__(self, rule: DCB, agent_id: str, incarnation: str | None = None) -> None:
        super().__init__(rule.dim, agent_id, incarnation)
        self.rule = rule
        self.n_agents = 0
        self.step = 0
        self.model = rule.prior_model
        self.active: Vector = packed_prior(rule)
        self.buffer: Matrix = frozen(np.empty((0, n_scalars(rule.dim))))
        self._new: Vector | None = None

    @property
    def beta(self) -> float:
        """The radius of the active sums."""
        if isinstance(self.rule.radius, radii.Fixed):
            return self.rule.radius.beta
        rho = max(self.model.log_det - self.rule.prior_model.log_det, 0.0)
        radius = self.rule.weighted_radius(self.n_agents)
        return radius(radii.Evidence(self.dim, self.rule.lam, 0.0, rho, 0, 0))

    def _choose(self, X: Matrix) -> int:
        return DecisionBasis(self.model, self.beta, self.model_version).best(X)

    def _learn(self, index: int, x: Vector, reward: float) -> None:
        self._new = packed_pair(x, reward)

    def end_step(self) -> StepMessage | None:
        """The buffer as it was when the step began."""
        if self.n_agents == 0:
            raise ProtocolError(f"agent {self.agent_id!r} was not told its fleet: deliver server.begin() first")
        return BufferMessage(self.agent_id, self.buffer.size, self.buffer)

    def adopt(self, reply: StepMessage) -> StepMessage | None:
        """Average with a peer's buffer, append the new pair, and activate what has waited long enough."""
        if isinstance(reply, FleetMembers):
            self.n_agents = len(reply.agent_ids)
            return None
        if not isinstance(reply, BufferMessage):
            raise InvalidInput(f"expected the buffer of a peer, got {type(reply).__name__}")
        if reply.pairs.shape != self.buffer.shape:
            raise ProtocolError(
                f"expected a peer's buffer of shape {self.buffer.shape}, got {reply.pairs.shape}; "
                f"all agents must have played the same number of steps"
            )
        self._end_step(0.5 * (self.buffer + reply.pairs))
        return None

    def _end_step(self, buffer: Matrix) -> None:
        # The test comes before the new pair is appended: a pair has then been averaged at least so many times.
        n_due = max(len(buffer) - buffer_limit(self.step, self.n_agents), 0)
        self.buffer = frozen(np.concatenate((buffer[n_due:], self._weighted_pair()[None, :])))
        self.step += 1
        if n_due > 0:
            self._activate(buffer[:n_due])

    def _weighted_pair(self) -> Vector:
        """The pair of this step, weighted."""
        if self._new is None:
            raise ProtocolError(f"agent {self.agent_id!r} has not acted in this step")
        new, self._new = self._new, None
        return self._weight() * new

    def _weight(self) -> float:
        """s, the weight of a new pair."""
        return self.rule.weight(self.n_agents)

    def _activate(self, pairs: Matrix) -> None:
        for pair in pairs:
            self.active = self.active + pair
        self._refit()

    def _refit(self) -> None:
        self.model = RidgeModel(unpacked(self.active, self.dim))
        self.model_version += 1
        self.n_switches += 1

    def to_bytes(self) -> bytes:
        """Everything this agent knows, exactly; `fb.load` brings it back."""
        from fedbandit.algorithms.snapshot import dump_peer

        return dump_peer(self, self.rule)


class DCBMeetings:
    """Draws who meets whom; peers' buffers pass through without being read."""

    def __init__(self, rule: DCB) -> None:
        self.rule = rule
        self.rng = np.random.default_rng(rule.seed)
        self.ids: list[str] = []

    def enroll(self, agent_ids: Iterable[str]) -> None:
        """All agents of the fleet."""
        self.ids = list(agent_ids)

    def begin(self) -> Sequence[StepMessage]:
        """Tell everybody who is in the fleet: settings, which count as no numbers."""
        return [FleetMembers(agent_id, 0, tuple(self.ids)) for agent_id in self.ids]

    def end_step(self, messages: Mapping[str, StepMessage]) -> Sequence[StepMessage]:
        """Agent i gets the buffer of agent σ(i), σ a new permutation."""
        if list(messages) != self.ids:
            raise ProtocolError(f"expected the buffers of {len(self.ids)} agents in a step, got {len(messages)}")
        partners = self.draw()
        return [self._passed_on(i, messages[self.ids[j]]) for i, j in enumerate(partners)]

    def to_bytes(self) -> bytes:
        """The fleet and the state of the generator; `fb.load` brings it back."""
        from fedbandit.algorithms.snapshot import dump_peer

        return dump_peer(self, self.rule)

    def draw(self) -> list[int]:
        """The partner σ(i) of each agent i in the next step."""
        return [int(j) for j in self.rng.permutation(len(self.ids))]

    def _passed_on(self, i: int, message: StepMessage) -> StepMessage:
        if not isinstance(message, BufferMessage):
            raise InvalidInput(f"expected the buffer of an agent, got {type(message).__name__}")
        return BufferMessage(self.ids[i], message.n_scalars, message.pairs)


def packed_prior(rule: LinearRule) -> Vector:
    """λI and no rewards, packed as a pair is."""
    return np.concatenate((pack_symmetric(rule.prior.Sigma), rule.prior.b))


def packed_pair(x: Vector, reward: float) -> Vector:
    """x xᵀ and r x, packed: d(d+1)/2 + d numbers."""
    return np.concatenate((pack_symmetric(np.outer(x, x)), reward * x))


def unpacked(packed: Vector, dim: int) -> SufficientStats:
    """The statistics of packed sums; they count no observations, for weights are not whole."""
    n = packed_length(dim)
    return SufficientStats(frozen(unpack_symmetric(packed[:n], dim)), frozen(packed[n:].copy()))


DCB_ENTRY = Algorithm(
    name="dcb", rule=DCB, variants={"fleet": {"mass": "fleet"}}, traits=frozenset({"steps", "any-rows"})
)
