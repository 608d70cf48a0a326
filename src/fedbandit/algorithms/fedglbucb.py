"""FedGLB-UCB (Li and Wang 2022): generalised linear rewards, local Newton steps, and joint fits by gradients only."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import numpy as np

from fedbandit.algorithms.rules import one_of
from fedbandit.algorithms.synchronous import StepMessage, SynchronousAgent
from fedbandit.core.arrays import Matrix, Vector, at_least, finite_at_least, frozen, whole_at_least
from fedbandit.core.decision_sets import first_best
from fedbandit.core.statistics import packed_length
from fedbandit.errors import InvalidInput, InvalidParameter
from fedbandit.registry import Algorithm, RunSizes, option
from fedbandit.wire.identifiers import check_agent_id

MAX_ITERATIONS = 10_000  # of one joint fit; a fit that ends there says how far it came, and the radius allows for it


@dataclass(frozen=True, kw_only=True)
class FedGLBUCB:
    """Rewards with mean μ(⟨θ*, x⟩), μ the sigmoid (`link="logistic"`) or the identity; agents act in steps.

    `threshold` is D: all agents fit θ together when n log(det V/det V_last) ≥ D for one of them, n its observations
    since the last fit. `mode="shared"` sends every observation to the server, `mode="alone"` sends nothing: the two
    ends to compare with. `scale` multiplies the confidence radius; published experiments use 0.1, the proof needs 1.
    """

    synchronous: ClassVar[bool] = True

    dim: int
    n_agents: int = field(
        metadata=option("M, the agents of the fleet", default=lambda sizes: sizes.n_agents, default_help="agents")
    )
    threshold: float = field(
        default=math.inf,
        metadata=option(
            "D: growth times observations since the last fit at which all agents fit together",
            default=lambda sizes: _threshold_of(sizes),
            default_help="T_m/(M d log T) with T_m = T/M",
            letter="D",
        ),
    )
    link: str = "logistic"
    mode: str = "federated"
    lam: float = 2.0
    scale: float = field(
        default=1.0,
        metadata=option("factor of the confidence radius", default=0.1, default_help="0.1, as published"),
    )
    noise_scale: float = 0.5
    theta_bound: float = 1.0
    action_bound: float = 1.0
    delta: float = 0.01

    def __post_init__(self) -> None:
        one_of(self.link, ("logistic", "identity"), "link")
        one_of(self.mode, ("federated", "shared", "alone"), "mode")
        set_field = object.__setattr__
        set_field(self, "dim", whole_at_least(self.dim, 1, "dim"))
        set_field(self, "n_agents", whole_at_least(self.n_agents, 1, "n_agents"))
        set_field(self, "threshold", at_least(self.threshold, 0.0, "threshold"))
        for name in ("lam", "theta_bound", "action_bound"):
            set_field(self, name, finite_at_least(getattr(self, name), 0.0, name, strictly=True))
        for name in ("scale", "noise_scale"):
            set_field(self, name, finite_at_least(getattr(self, name), 0.0, name))
        if not 0 < finite_at_least(self.delta, 0.0, "delta") < 1:
            raise InvalidParameter(f"expected delta between 0 and 1, got {self.delta}")

    @property
    def c_mu(self) -> float:
        """The least slope of μ on [−SL, SL]."""
        if self.link == "identity":
            return 1.0
        p = float(sigmoid(np.array(self.theta_bound * self.action_bound)))
        return p * (1 - p)

    @property
    def k_mu(self) -> float:
        """The largest slope of μ."""
        return 1.0 if self.link == "identity" else 0.25

    @property
    def ridge(self) -> float:
        """λ/c_μ, with which V = A + (λ/c_μ)I begins."""
        return self.lam / self.c_mu

    def mean(self, z: Vector) -> Vector:
        """μ(z)."""
        return z if self.link == "identity" else sigmoid(z)

    def fit_error(self, growth: float, residual: float) -> float:
        """Bound of ‖θ_fit − θ*‖ in the norm of V: (R√(2 log(2/δ) + ρ) + √(λ c_μ) S + ‖∇‖√(c_μ/λ))/c_μ.

        `growth` is ρ = log det V − d log(λ/c_μ), `residual` the norm of the gradient of the summed loss at θ_fit.
        """
        noise = self.noise_scale * math.sqrt(2 * math.log(2 / self.delta) + growth)
        bias = math.sqrt(self.lam * self.c_mu) * self.theta_bound
        return (noise + bias + residual * math.sqrt(self.c_mu / self.lam)) / self.c_mu

    def online_error(self, loss: float, n_fits: int) -> float:
        """Bound of Σ⟨x, θ_s − θ*⟩² over the observations since the last fit, from the online loss bound B.

        1 + 4B/c_μ + (8R²/c_μ²) log((2/δ')√(1 + 2B/c_μ + 4R⁴/(c_μ⁴δ'²))), as in Jun et al. (2017, Theorem 1). The
        k-th stretch of each agent has δ' = δ/(2Mk(k+1)), so that all of them together fail with probability δ/2.
        """
        c, k = self.c_mu, n_fits + 1
        delta = self.delta / (2 * self.n_agents * k * (k + 1))
        R2 = self.noise_scale**2 / c**2
        inside = 1 + 2 * loss / c + 4 * R2**2 / delta**2
        return 1 + 4 * loss / c + 8 * R2 * (math.log(2 / delta) + 0.5 * math.log(inside))

    def tolerance(self, n_obs: int) -> float:
        """√(2λ/n): a joint fit ends when the gradient of the summed loss is no longer."""
        return math.sqrt(2 * self.lam / n_obs)

    def agent(self, agent_id: str, *, incarnation: str | None = None) -> FedGLBAgent:
        """A new agent without data."""
        return FedGLBAgent(self, check_agent_id(agent_id), incarnation)

    def server(self) -> FedGLBServer:
        """A new server; `enroll` the whole fleet before the first step."""
        return FedGLBServer(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain values with the algorithm's name."""
        return {"algorithm": type(self).__name__, **{f.name: getattr(self, f.name) for f in fields(self)}}


def sigmoid(z: Vector) -> Vector:
    """1/(1 + e^(−z)), without overflow."""
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * z)))


def published_threshold(*, dim: int, n_agents: int, n_steps: int) -> float:
    """D = T_m/(M d log(M T_m)) with T_m steps: the setting of the published experiments."""
    return n_steps / (n_agents * dim * math.log(n_agents * n_steps))


def _threshold_of(sizes: RunSizes) -> float:
    n_steps = max(sizes.n_rounds // sizes.n_agents, 2)
    return published_threshold(dim=sizes.dim, n_agents=sizes.n_agents, n_steps=n_steps)


@dataclass(frozen=True)
class GramUpload(StepMessage):
    """What an agent gathered since the last fit: Σ x xᵀ and the number of observations; rows and rewards stay."""

    gram: Matrix
    n_obs: int


@dataclass(frozen=True)
class RowUpload(StepMessage):
    """One observation, in mode "shared"."""

    x: Vector
    reward: float


@dataclass(frozen=True)
class GramPoll(StepMessage):
    """The server asks for a `GramUpload`; it carries no number."""


@dataclass(frozen=True)
class Iterate(StepMessage):
    """θ at which the server wants the gradient of the agent's summed loss."""

    theta: Vector


@dataclass(frozen=True)
class Gradient(StepMessage):
    """Σ (μ(⟨x, θ⟩) − y) x over all observations of the agent."""

    gradient: Vector


@dataclass(frozen=True)
class JointFit(StepMessage):
    """A = Σ x xᵀ of the whole fleet, the θ fitted to its data, and the norm of the gradient that was left."""

    gram: Matrix
    theta: Vector
    residual: float


class FedGLBAgent(SynchronousAgent):
    """Decides on V⁻¹b, where b = Σ z x sums what the estimates of the time said, and learns by online Newton steps."""

    def __init__(self, rule: FedGLBUCB, agent_id: str, incarnation: str | None) -> None:
        super().__init__(rule.dim, agent_id, incarnation)
        self.rule = rule
        self.rows: list[Vector] = []
        self.rewards: list[float] = []
        self._stacked: tuple[Matrix, Vector] = np.zeros((0, rule.dim)), np.zeros(0)  # rows and rewards as arrays
        self.n_fits = 0
        self._start(np.zeros((rule.dim, rule.dim)), np.zeros(rule.dim), error=None)

    def _start(self, gram: Matrix, theta: Vector, *, error: float | None) -> None:
        """Begin a stretch of local learning at a fit of error `error` (None: no data, θ = 0)."""
        rule = self.rule
        self.V = gram + rule.ridge * np.eye(self.dim)
        self.inverse = np.linalg.inv(self.V)
        self.b = gram @ theta
        self.z_squares = float(theta @ self.b)  # Σz² of all data, were z = ⟨x, θ⟩ for each of them
        self.centre = self.inverse @ self.b
        self.theta_online = project(theta, self.V, rule.theta_bound)
        start = math.sqrt(rule.ridge) * rule.theta_bound if error is None else error
        self.fit_square = 0.0 if error is None else error**2
        self.loss = 0.5 * rule.c_mu * start**2
        self.gathered, self.n_since, self.growth = np.zeros((self.dim, self.dim)), 0, 0.0
        if rule.mode == "shared":
            self.centre = theta

    @property
    def radius(self) -> float:
        """The confidence radius around the centre, `scale` included."""
        rule = self.rule
        if rule.mode == "shared":
            return rule.scale * math.sqrt(max(self.fit_square, rule.ridge * rule.theta_bound**2))
        local = rule.online_error(self.loss, self.n_fits)
        square = rule.ridge * rule.theta_bound**2 + local + self.fit_square - self.z_squares
        return rule.scale * math.sqrt(max(square + float(self.centre @ self.b), 0.0))

    def _choose(self, X: Matrix) -> int:
        widths = np.sqrt(np.einsum("ki,ij,kj->k", X, self.inverse, X))
        return first_best(X @ self.centre + self.radius * widths)

    def _learn(self, index: int, x: Vector, reward: float) -> None:
        self.rows.append(x)
        self.rewards.append(reward)
        outer = np.outer(x, x)
        self.V = self.V + outer
        self.gathered = self.gathered + outer
        self.n_since += 1
        u = self.inverse @ x
        g = 1.0 + float(x @ u)
        self.growth += math.log(g)
        self.inverse = self.inverse - np.outer(u, u) / g
        if self.rule.mode != "shared":
            self._newton_step(x, reward)
            self.n_switches += 1

    def _newton_step(self, x: Vector, reward: float) -> None:
        rule = self.rule
        z = float(x @ self.theta_online)
        self.b = self.b + z * x
        self.z_squares += z * z
        slope = float(rule.mean(np.array(z))) - reward
        u = self.inverse @ x
        self.theta_online = project(self.theta_online - (slope / rule.c_mu) * u, self.V, rule.theta_bound)
        self.loss += slope**2 * float(x @ u) / (2 * rule.c_mu)
        self.centre = self.inverse @ self.b

    def end_step(self) -> StepMessage | None:
        """The upload that starts a joint fit, if it is due; in mode "shared" the observation of the step."""
        if self.rule.mode == "shared":
            return RowUpload(self.agent_id, self.dim + 1, self.rows[-1], self.rewards[-1])
        if self.rule.mode == "alone" or self.n_since * self.growth < self.rule.threshold:
            return None
        return self._upload()

    def _upload(self) -> GramUpload:
        return GramUpload(self.agent_id, packed_length(self.dim) + 1, frozen(self.gathered.copy()), self.n_since)

    def adopt(self, reply: StepMessage) -> StepMessage | None:
        """Answer a poll or an iterate, or begin again at a joint fit."""
        if isinstance(reply, GramPoll):
            return self._upload()
        if isinstance(reply, Iterate):
            return Gradient(self.agent_id, self.dim, frozen(self._gradient(reply.theta)))
        if not isinstance(reply, JointFit):
            raise InvalidInput(f"expected a poll, an iterate or a joint fit, got {type(reply).__name__}")
        V = reply.gram + self.rule.ridge * np.eye(self.dim)
        rho = float(np.linalg.slogdet(V)[1]) - self.dim * math.log(self.rule.ridge)
        self.n_fits += 1
        self._start(reply.gram, reply.theta, error=self.rule.fit_error(max(rho, 0.0), reply.residual))
        self.model_version += 1
        self.n_switches += 1
        return None

    def _gradient(self, theta: Vector) -> Vector:
        if not self.rows:
            return np.zeros(self.dim)
        if len(self._stacked[1]) < len(self.rows):  # a fit asks many times for the gradient at the same data
            self._stacked = np.array(self.rows), np.array(self.rewards)
        X, y = self._stacked
        return np.asarray(X.T @ (self.rule.mean(X @ theta) - y))


class FedGLBServer:
    """Collects Gram matrices, then minimises the summed loss by accelerated gradient steps, one message each way."""

    def __init__(self, rule: FedGLBUCB) -> None:
        self.rule = rule
        self.fleet: dict[str, None] = {}
        self.gram: Matrix = np.zeros((rule.dim, rule.dim))
        self.n_obs = 0
        self.theta: Vector = np.zeros(rule.dim)
        self.n_fits = 0
        self.n_iterations = 0  # over all fits
        self.uploads: dict[str, GramUpload] = {}
        self._descent: Descent | None = None
        self._rows: list[Vector] = []
        self._rewards: list[float] = []

    def enroll(self, agent_ids: Iterable[str]) -> None:
        """All agents of the fleet."""
        self.fleet.update(dict.fromkeys(agent_ids))

    def begin(self) -> Sequence[StepMessage]:
        """Nothing travels before the first step."""
        return ()

    def end_step(self, messages: Mapping[str, StepMessage]) -> Sequence[StepMessage]:
        """Poll who has not uploaded, ask for gradients, or announce the fit."""
        if not messages:
            return ()
        if self.rule.mode == "shared":
            return self._fit_rows(messages)
        if self._descent is not None:
            return self._continue(messages)
        for agent_id, message in messages.items():
            if not isinstance(message, GramUpload):
                raise InvalidInput(f"expected a Gram matrix from agent {agent_id!r}, got {type(message).__name__}")
            self.uploads[agent_id] = message
        missing = [agent_id for agent_id in self.fleet if agent_id not in self.uploads]
        if missing:
            return [GramPoll(agent_id, 0) for agent_id in missing]
        return self._start_fit()

    def _start_fit(self) -> Sequence[StepMessage]:
        for upload in self.uploads.values():
            self.gram = self.gram + upload.gram
            self.n_obs += upload.n_obs
        self.uploads = {}
        self._descent = Descent(self.rule, self.gram, self.theta)
        return self._ask(self._descent.point)

    def _ask(self, theta: Vector) -> Sequence[StepMessage]:
        return [Iterate(agent_id, self.rule.dim, theta) for agent_id in self.fleet]

    def _continue(self, messages: Mapping[str, StepMessage]) -> Sequence[StepMessage]:
        descent = self._descent
        if descent is None or set(messages) != set(self.fleet):
            raise InvalidInput(f"expected a gradient from all {len(self.fleet)} agents, got {len(messages)} messages")
        gradient = self.rule.lam * descent.point
        for agent_id, message in messages.items():
            if not isinstance(message, Gradient):
                raise InvalidInput(f"expected a gradient from agent {agent_id!r}, got {type(message).__name__}")
            gradient = gradient + message.gradient
        self.n_iterations += 1
        residual = float(np.linalg.norm(gradient))
        if residual > self.rule.tolerance(self.n_obs) and descent.n_steps < MAX_ITERATIONS:
            return self._ask(descent.step(gradient))
        self._descent = None
        return self._announce(descent.point, residual)

    def _announce(self, theta: Vector, residual: float) -> Sequence[StepMessage]:
        self.theta, self.n_fits = theta, self.n_fits + 1
        n_scalars = packed_length(self.rule.dim) + self.rule.dim + 1
        return [JointFit(agent_id, n_scalars, self.gram, theta, residual) for agent_id in self.fleet]

    def _fit_rows(self, messages: Mapping[str, StepMessage]) -> Sequence[StepMessage]:
        for agent_id, message in messages.items():
            if not isinstance(message, RowUpload):
                raise InvalidInput(f"expected a row from agent {agent_id!r}, got {type(message).__name__}")
            self._rows.append(message.x)
            self._rewards.append(message.reward)
            self.gram = self.gram + np.outer(message.x, message.x)
            self.n_obs += 1
        theta, residual = newton_fit(self.rule, np.array(self._rows), np.array(self._rewards), self.theta)
        return self._announce(theta, residual)


class Descent:
    """Nesterov's method for a loss with curvature from c_μ λ_min(A) + λ to k_μ λ_max(A) + λ."""

    def __init__(self, rule: FedGLBUCB, gram: Matrix, start: Vector) -> None:
        eigenvalues = np.linalg.eigvalsh(gram)
        steep = rule.k_mu * float(eigenvalues[-1]) + rule.lam
        flat = rule.c_mu * max(float(eigenvalues[0]), 0.0) + rule.lam
        self._rate = 1.0 / steep
        self._momentum = (math.sqrt(steep) - math.sqrt(flat)) / (math.sqrt(steep) + math.sqrt(flat))
        self._last: Vector = start
        self.point: Vector = start
        self.n_steps = 0

    def step(self, gradient: Vector) -> Vector:
        """The next point, from the gradient at the current one."""
        lower = self.point - self._rate * gradient
        self.point = lower + self._momentum * (lower - self._last)
        self._last = lower
        self.n_steps += 1
        return self.point


def newton_fit(rule: FedGLBUCB, X: Matrix, y: Vector, start: Vector) -> tuple[Vector, float]:
    """θ that minimises the regularised summed loss, by damped Newton steps, and the norm of the gradient there."""
    theta, tolerance = start, rule.tolerance(len(X))
    for _ in range(100):
        p = rule.mean(X @ theta)
        gradient = X.T @ (p - y) + rule.lam * theta
        if float(np.linalg.norm(gradient)) <= tolerance:
            break
        slopes = np.ones(len(X)) if rule.link == "identity" else np.maximum(p * (1 - p), 1e-6)
        theta = theta - np.linalg.solve((X.T * slopes) @ X + rule.lam * np.eye(rule.dim), gradient)
    residual = X.T @ (rule.mean(X @ theta) - y) + rule.lam * theta
    return frozen(theta), float(np.linalg.norm(residual))


def project(theta: Vector, V: Matrix, radius: float) -> Vector:
    """The point of the ball ‖θ‖ ≤ radius that is nearest in the norm of V: (V + νI)⁻¹Vθ with the ν ≥ 0 that fits.

    >>> project(np.array([3.0, 0.0]), np.eye(2), 1.5).tolist()
    [1.5, 0.0]
    """
    if float(theta @ theta) <= radius**2:
        return theta
    values, vectors = np.linalg.eigh(V)
    weighted = values * (vectors.T @ theta)
    nu = 0.0
    # Newton's method for 1/‖θ(ν)‖ = 1/radius: the left side is concave and grows, so that ν never passes the root.
    for _ in range(50):
        inside = weighted / (values + nu)
        square = float(inside @ inside)
        step = (math.sqrt(square) / radius - 1.0) * square / float(inside @ (inside / (values + nu)))
        if nu + step <= nu:
            break
        nu += step
    found = vectors @ (weighted / (values + nu))
    return np.asarray(found * min(1.0, radius / math.sqrt(float(found @ found))))  # rounding may leave it outside


FEDGLBUCB = Algorithm(
    name="fedglbucb",
    rule=FedGLBUCB,
    example={"n_agents": 2, "threshold": 1.0},
    variants={"shared": {"mode": "shared"}, "alone": {"mode": "alone"}, "identity": {"link": "identity"}},
    traits=frozenset({"steps", "any-rows"}),
)
