"""FedUCB (Dubey and Pentland 2020) with noise in what agents send, and the schedule of Zhou and Chowdhury (2024).

Both are for simulation. fedbandit claims no privacy for either: the published trigger depends on data that no noise
covers, its noise is too small for its claim, and with the corrected schedule agents add exact own data to releases.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import numpy as np

from fedbandit.algorithms.rules import one_of
from fedbandit.algorithms.synchronous import StepMessage, SynchronousAgent
from fedbandit.core import radius as radii
from fedbandit.core.arrays import Matrix, Vector, at_least, finite_at_least, frozen, whole_at_least
from fedbandit.core.decision_sets import first_best
from fedbandit.core.eager import EagerEstimate
from fedbandit.core.statistics import SufficientStats, packed_length
from fedbandit.errors import InvalidInput, InvalidParameter
from fedbandit.registry import Algorithm, option
from fedbandit.wire.identifiers import check_agent_id


@dataclass(frozen=True, kw_only=True)
class FedUCB:
    """Linear bandits in steps, with Gaussian noise in every sum that an agent sends.

    `schedule="as_published"`: all agents send when one agent's determinant has grown, as in DisLinUCB (`threshold` is
    D). `schedule="corrected"`: all agents send after every `batch` steps, whatever the data. `epsilon` and `delta` set
    the size of the noise (no noise at `epsilon=inf`); **no privacy is claimed**. `failure` is the failure probability
    of the confidence radius, `beta` a number to use instead of it, `lam` the least ridge, `seed` that of the noise.
    """

    synchronous: ClassVar[bool] = True

    dim: int
    n_agents: int = field(
        metadata=option("M, the agents of the fleet", default=lambda sizes: sizes.n_agents, default_help="agents")
    )
    n_steps: int = field(
        metadata=option(
            "steps of each agent, T_m",
            default=lambda sizes: max(sizes.n_rounds // sizes.n_agents, 1),
            default_help="rounds / agents",
        )
    )
    schedule: str = field(default="corrected", metadata=option("'corrected' or 'as_published'"))
    epsilon: float = field(default=1.0, metadata=option("sets the size of the noise; inf: none", letter="e"))
    delta: float = 0.1
    threshold: float = 1.0
    batch: int = field(default=25, metadata=option("steps between releases of the corrected schedule"))
    beta: float | radii.Fixed | None = None
    lam: float = 1.0
    noise_scale: float = 0.5
    theta_bound: float = 1.0
    action_bound: float = 1.0
    reward_bound: float = 1.0
    failure: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        one_of(self.schedule, ("as_published", "corrected"), "schedule")
        set_field = object.__setattr__
        for name in ("dim", "n_agents", "n_steps", "batch"):
            set_field(self, name, whole_at_least(getattr(self, name), 1, name))
        set_field(self, "seed", whole_at_least(self.seed, 0, "seed"))
        set_field(self, "threshold", at_least(self.threshold, 0.0, "threshold"))
        set_field(self, "epsilon", at_least(self.epsilon, 0.0, "epsilon", strictly=True))
        set_field(self, "lam", finite_at_least(self.lam, 0.0, "lam", strictly=True))
        for name in ("noise_scale", "theta_bound", "action_bound", "reward_bound"):
            set_field(self, name, finite_at_least(getattr(self, name), 0.0, name))
        if self.beta is not None:
            given = radii.as_radius(self.beta)
            if not isinstance(given, radii.Fixed):
                raise InvalidParameter("expected beta as a number, or None for the radius that the noise needs")
            set_field(self, "beta", given.beta)
        for name in ("delta", "failure"):
            if not 0 < finite_at_least(getattr(self, name), 0.0, name) < 1:
                raise InvalidParameter(f"expected {name} between 0 and 1, got {getattr(self, name)}")

    # -- the size of the noise

    @property
    def n_levels(self) -> int:
        """Levels of the binary tree over releases: 1 + ⌈log₂ n⌉ as published, ⌊log₂(n/B)⌋ + 1 corrected."""
        if self.schedule == "as_published":
            return 1 + math.ceil(math.log2(self.n_steps))
        return math.floor(math.log2(max(self.n_steps / self.batch, 1.0))) + 1

    @property
    def node_noise(self) -> float:
        """Standard deviation of the noise in each node of the tree.

        As published σ = 4√m (L² + c²) log(10/δ)/ε; corrected s = L√(κ(log(1/δ) + ε))/ε.
        """
        if math.isinf(self.epsilon):
            return 0.0
        m = self.n_levels
        if self.schedule == "as_published":
            size = self.action_bound**2 + self.reward_bound**2
            return 4 * math.sqrt(m) * size * math.log(10 / self.delta) / self.epsilon
        return self.action_bound * math.sqrt(m * (math.log(1 / self.delta) + self.epsilon)) / self.epsilon

    @property
    def shift(self) -> float:
        """Y = σ√(2m)(4√d + 2 log(2n/α)), at least λ; as published each agent's noise is shifted by 2Y to [Y, 3Y]."""
        spread = 4 * math.sqrt(self.dim) + 2 * math.log(2 * self.n_steps / self.failure)
        return max(self.node_noise * math.sqrt(2 * self.n_levels) * spread, self.lam)

    @property
    def ridge(self) -> float:
        """Corrected: √(Mκ) s (√(κ + log(1/α)) + √d), at least λ."""
        kappa = self.n_levels
        spread = math.sqrt(kappa + math.log(1 / self.failure)) + math.sqrt(self.dim)
        return max(math.sqrt(self.n_agents * kappa) * self.node_noise * spread, self.lam)

    @property
    def start(self) -> Matrix:
        """Σ before any data: M·Y·I as published, the ridge corrected."""
        level = self.n_agents * self.shift if self.schedule == "as_published" else self.ridge
        return level * np.eye(self.dim)

    def radius(self, rho: float, n_obs: int) -> float:
        """The confidence radius; `rho` is log det Σ less that of the start, `n_obs` counts observations of all agents.

        As published R√(2 log(2/α) + d log(ρ_max/ρ_min + nL²/(dρ_min))) + MS√ρ_max + Mκ, ρ_min = Y, ρ_max = 3Y and
        κ = σ√(m/Y)(√d + √(2 log(2n/α))). Corrected, of the same form with one ridge ν for the fleet:
        R√(2 log(2/α) + ρ) + S√(2ν) + √(Mκs²/ν)(√d + √(2 log(2/α))).
        """
        if isinstance(self.beta, float):
            return self.beta
        d, m, log_fail = self.dim, self.n_levels, 2 * math.log(2 / self.failure)
        if self.schedule == "as_published":
            low, high = self.shift, 3 * self.shift
            inside = high / low + n_obs * self.action_bound**2 / (d * low)
            moment = math.sqrt(d) + math.sqrt(2 * math.log(2 * self.n_steps / self.failure))
            kappa = self.node_noise * math.sqrt(m / low) * moment
            learning = self.noise_scale * math.sqrt(log_fail + d * math.log(inside))
            return learning + self.n_agents * (self.theta_bound * math.sqrt(high) + kappa)
        moment = math.sqrt(self.n_agents * m / self.ridge) * self.node_noise * (math.sqrt(d) + math.sqrt(log_fail))
        learning = self.noise_scale * math.sqrt(log_fail + max(rho, 0.0))
        return learning + self.theta_bound * math.sqrt(2 * self.ridge) + moment

    # -- making things

    def agent(self, agent_id: str, *, incarnation: str | None = None) -> FedUCBAgent:
        """A new agent without data."""
        kind = PublishedAgent if self.schedule == "as_published" else BatchAgent
        return kind(self, check_agent_id(agent_id), incarnation)

    def server(self) -> FedUCBServer:
        """A new server; `enroll` the whole fleet before the first step."""
        return FedUCBServer(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain values with the algorithm's name."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        if values["beta"] is None:
            del values["beta"]
        else:
            values["beta"] = radii.to_dict(radii.as_radius(values["beta"]))
        return {"algorithm": type(self).__name__, **values}


@dataclass(frozen=True)
class NoisySums(StepMessage):
    """Σ x xᵀ and Σ r x with noise. Of an agent: one node of its tree (corrected) or all its data (as published)."""

    gram: Matrix
    moment: Vector
    level: int = 0


@dataclass(frozen=True)
class SumsPoll(StepMessage):
    """The server asks for `NoisySums`; it carries no number."""


@dataclass(frozen=True)
class Release(StepMessage):
    """What the server holds of all agents, noise included."""

    gram: Matrix
    moment: Vector
    n_obs: int


def symmetric_noise(rng: np.random.Generator, dim: int, scale: float) -> Matrix:
    """A symmetric matrix whose entries on and above the diagonal are independent N(0, scale²)."""
    upper = np.triu(scale * rng.standard_normal((dim, dim)))
    return np.asarray(upper + np.triu(upper, 1).T)


def lowest_set_bit(k: int) -> int:
    """The position of the lowest 1 in the binary digits of k ≥ 1.

    >>> [lowest_set_bit(k) for k in (1, 2, 3, 4, 12)]
    [0, 1, 0, 2, 2]
    """
    return (k & -k).bit_length() - 1


class FedUCBAgent(SynchronousAgent):
    """Decides eagerly on what was released and its own exact data since then."""

    def __init__(self, rule: FedUCB, agent_id: str, incarnation: str | None) -> None:
        super().__init__(rule.dim, agent_id, incarnation)
        self.rule = rule
        # A generator per agent, of the rule's seed and the agent's name: the order of agents changes nothing.
        self._rng = np.random.default_rng([rule.seed, zlib.crc32(self.agent_id.encode())])
        self._start_log_det = self.dim * math.log(float(rule.start[0, 0]))
        self.estimate = EagerEstimate(SufficientStats(rule.start, np.zeros(rule.dim)))
        self.synchronised: Matrix = rule.start
        self.own = SufficientStats.zeros(rule.dim)  # since the last release
        self.n_known = 0
        self.n_sent = 0
        self.n_lifted = 0  # releases whose noise left no positive definite matrix

    def _choose(self, X: Matrix) -> int:
        beta = self.rule.radius(self.estimate.log_det - self._start_log_det, self.n_known + self.own.n_obs)
        return first_best(self.estimate.upper(X, beta))

    def _learn(self, index: int, x: Vector, reward: float) -> None:
        self.estimate.observe(x, reward)
        self.own = self.own + SufficientStats.of([x], [reward])
        self.n_switches += 1

    def _begin_again(self, release: Release, ridge: float) -> None:
        gram, lifted = positive_definite(release.gram + ridge * np.eye(self.dim), 0.1 * float(self.rule.start[0, 0]))
        self.n_lifted += lifted
        self.synchronised = gram
        self.estimate = EagerEstimate(SufficientStats(frozen(gram), release.moment))
        self.own = SufficientStats.zeros(self.dim)
        self.n_known = release.n_obs
        self.model_version += 1
        self.n_switches += 1


def positive_definite(gram: Matrix, least: float) -> tuple[Matrix, bool]:
    """The matrix with eigenvalues of at least `least`, and whether that changed it."""
    values, vectors = np.linalg.eigh(gram)
    if values[0] >= least:
        return gram, False
    return (vectors * np.maximum(values, least)) @ vectors.T, True


class PublishedAgent(FedUCBAgent):
    """Sends all its data anew at each synchronisation, with the noise of the tree's nodes that cover them."""

    def __init__(self, rule: FedUCB, agent_id: str, incarnation: str | None) -> None:
        super().__init__(rule, agent_id, incarnation)
        self.moments: Matrix = np.zeros((rule.dim + 1, rule.dim + 1))  # Σ (x, r)(x, r)ᵀ over all own data
        self._nodes: dict[int, Matrix] = {}  # noise of the current node of each level

    def _learn(self, index: int, x: Vector, reward: float) -> None:
        super()._learn(index, x, reward)
        row = np.append(x, reward)
        self.moments = self.moments + np.outer(row, row)

    def end_step(self) -> StepMessage | None:
        """The message that starts a synchronisation, if the determinant has grown enough."""
        rule = self.rule
        slack = rule.n_agents * 2 * rule.shift * np.eye(self.dim)  # M(ρ_max − ρ_min)I
        grown = float(np.linalg.slogdet(self.synchronised + self.own.Sigma + slack)[1])
        growth = grown - float(np.linalg.slogdet(self.synchronised)[1])
        return self._send() if growth * (self.own.n_obs + 1) >= rule.threshold else None

    def _send(self) -> NoisySums:
        self.n_sent += 1
        top = lowest_set_bit(self.n_sent)
        for level in range(top):
            self._nodes.pop(level, None)
        self._nodes[top] = symmetric_noise(self._rng, self.dim + 1, self.rule.node_noise)
        total = self.moments + np.sum(list(self._nodes.values()), axis=0)
        total = total + 2 * self.rule.shift * np.eye(self.dim + 1)
        d = self.dim
        return NoisySums(self.agent_id, packed_length(d + 1), frozen(total[:d, :d].copy()), frozen(total[:d, d].copy()))

    def adopt(self, reply: StepMessage) -> StepMessage | None:
        """Answer a poll, or begin again from a release."""
        if isinstance(reply, SumsPoll):
            return self._send()
        if not isinstance(reply, Release):
            raise InvalidInput(f"expected a poll or a release, got {type(reply).__name__}")
        self._begin_again(reply, 0.0)
        return None


class BatchAgent(FedUCBAgent):
    """Sends one node of its tree after every batch: the sum of the batches that the node covers, with fresh noise."""

    def __init__(self, rule: FedUCB, agent_id: str, incarnation: str | None) -> None:
        super().__init__(rule, agent_id, incarnation)
        self._nodes: dict[int, SufficientStats] = {}

    def end_step(self) -> StepMessage | None:
        """The node of this batch, every `batch` steps."""
        if self.n_rounds % self.rule.batch:
            return None
        self.n_sent += 1
        top = lowest_set_bit(self.n_sent)
        node = self.own
        for level in range(top):
            node = node + self._nodes.pop(level)
        self._nodes[top] = node
        noise, d = self.rule.node_noise, self.dim
        gram = node.Sigma + symmetric_noise(self._rng, d, noise)
        moment = node.b + noise * self._rng.standard_normal(d)
        return NoisySums(self.agent_id, packed_length(d) + d, frozen(gram), frozen(moment), top)

    def adopt(self, reply: StepMessage) -> StepMessage | None:
        """Begin again from a release."""
        if not isinstance(reply, Release):
            raise InvalidInput(f"expected a release, got {type(reply).__name__}")
        self._begin_again(reply, self.rule.ridge)
        return None


class FedUCBServer:
    """Adds what agents send, and releases the sum to all of them."""

    def __init__(self, rule: FedUCB) -> None:
        self.rule = rule
        self.fleet: dict[str, None] = {}
        self.received: dict[str, NoisySums] = {}
        self.n_releases = 0
        self.n_steps = 0
        self._levels: dict[int, tuple[Matrix, Vector]] = {}

    def enroll(self, agent_ids: Iterable[str]) -> None:
        """All agents of the fleet."""
        self.fleet.update(dict.fromkeys(agent_ids))

    def begin(self) -> Sequence[StepMessage]:
        """Nothing travels before the first step."""
        return ()

    def end_step(self, messages: Mapping[str, StepMessage]) -> Sequence[StepMessage]:
        """Poll who has not sent; release when all have."""
        if not self.received:
            self.n_steps += 1
        if not messages:
            return ()
        for agent_id, message in messages.items():
            if not isinstance(message, NoisySums):
                raise InvalidInput(f"expected sums from agent {agent_id!r}, got {type(message).__name__}")
            self.received[agent_id] = message
        missing = [agent_id for agent_id in self.fleet if agent_id not in self.received]
        if missing:
            return [SumsPoll(agent_id, 0) for agent_id in missing]
        gram, moment = self._total()
        self.received = {}
        self.n_releases += 1
        d = self.rule.dim
        n_obs = self.n_steps * len(self.fleet)
        return [Release(agent_id, packed_length(d) + d, gram, moment, n_obs) for agent_id in self.fleet]

    def _total(self) -> tuple[Matrix, Vector]:
        """As published the sum of what came; corrected the sum of the nodes that cover all batches so far."""
        gram = np.sum([sums.gram for sums in self.received.values()], axis=0)
        moment = np.sum([sums.moment for sums in self.received.values()], axis=0)
        if self.rule.schedule == "corrected":
            (level,) = {sums.level for sums in self.received.values()}
            self._levels = {at: node for at, node in self._levels.items() if at > level}
            self._levels[level] = (gram, moment)
            gram = np.sum([node[0] for node in self._levels.values()], axis=0)
            moment = np.sum([node[1] for node in self._levels.values()], axis=0)
        return frozen(gram), frozen(moment)


FEDUCB = Algorithm(
    name="feducb",
    rule=FedUCB,
    example={"n_agents": 2, "n_steps": 100},
    variants={"as-published": {"schedule": "as_published"}},
    traits=frozenset({"steps", "any-rows"}),
)
