"""The paper's statements as functions of plain numbers; docs/theory.md has the proofs and the errata.

Letters: M agents, d dimensions, T rounds in total, λ ridge, α trigger, R noise scale, S ≥ ‖θ*‖, L ≥ ‖x‖, δ failure
probability, ρ = log det Σ_m − d log λ the information behind a model.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from fedbandit.core.arrays import at_least, is_among, whole_at_least
from fedbandit.errors import InvalidParameter

LOG2 = math.log(2.0)
Inputs = ParamSpec("Inputs")
Output = TypeVar("Output")
COUNTS = {
    "n_actions": 1,
    "n_layers": 1,
    "dim": 1,
    "n_agents": 1,
    "n_rounds": 1,
    "min_upload": 1,
    "n_obs": 0,
    "n_uploads": 0,
}
POSITIVE = ("lam",)


def _checked(function: Callable[Inputs, Output]) -> Callable[Inputs, Output]:
    """The function with its arguments validated; None passes where it is the default."""
    defaults = {name: p.default for name, p in inspect.signature(function).parameters.items()}

    @functools.wraps(function)
    def call(*args: Inputs.args, **kwargs: Inputs.kwargs) -> Output:
        for name, value in (*zip(defaults, args, strict=False), *kwargs.items()):
            if not (value is None and defaults.get(name, 0) is None):
                _check_number(name, value)
        return function(*args, **kwargs)

    return call


def _check_number(name: str, value: Any) -> None:
    if name in COUNTS:
        whole_at_least(value, COUNTS[name], name)
    elif name == "trigger":
        if not is_among(value, ("determinant", "spectral")):
            raise InvalidParameter(f"expected trigger 'determinant' or 'spectral', got {value!r}")
    elif isinstance(value, (str, bytes)) or at_least(value, 0.0, name, strictly=name in POSITIVE) != value:
        raise InvalidParameter(f"expected {name} as a number, got {value!r}")
    elif name == "delta" and not 0 < value < 1:
        raise InvalidParameter(f"expected delta between 0 and 1, got {value}")
    elif name != "alpha" and math.isinf(value):
        raise InvalidParameter(f"expected a finite {name}, got {value}")


@_checked
def paper_radius(
    *,
    dim: int,
    n_agents: int,
    n_rounds: int,
    lam: float,
    alpha: float,
    noise_scale: float,
    theta_bound: float,
    action_bound: float,
    delta: float,
) -> float:
    """β of Theorem 1 as printed. For comparison: its logarithm misses a union bound (erratum 2)."""
    if alpha == 0:
        raise InvalidParameter("the printed radius needs alpha > 0, got 0; it grows without bound as alpha vanishes")
    root = math.sqrt(lam) * theta_bound
    information = dim * math.log((1 + n_rounds * action_bound**2 / (min(alpha, 1.0) * lam)) / delta)
    spread = math.sqrt(1 + n_agents * alpha) + n_agents * math.sqrt(2 * alpha)
    return root + spread * (noise_scale * math.sqrt(information) + root)


@_checked
def exogenous_radius(*, rho: float, lam: float, noise_scale: float, theta_bound: float, delta: float) -> float:
    """β = √λ S + R √(2 log(1/δ) + ρ): OFUL's own radius, free of M, α and T.

    Holds when participation, decision sets, delays, the times of uploads and their success depend only on the outside
    world, past actions and rewards already merged, and noise is independent of the outside world: a lazy policy makes
    the data, ordered by upload, an ordinary martingale. docs/theory.md has the whole condition.
    """
    return math.sqrt(lam) * theta_bound + noise_scale * math.sqrt(2 * math.log(1 / delta) + rho)


@_checked
def adaptive_radius(
    *,
    rho: float,
    dim: int,
    n_agents: int,
    lam: float,
    alpha: float,
    noise_scale: float,
    theta_bound: float,
    delta: float,
    n_rounds: int | None = None,
    n_uploads: int | None = None,
    trigger: str = "determinant",
    own_buffer: bool = False,
) -> float:
    """β that holds for anything the paper allows: decision sets and participation may react to every past reward.

    With μ = M − 1 and the determinant trigger
    β = √λ S + R√(1+μα) √(2 log(2/δ) + ρ + d log(1+μα/d)) + Rμ√α (1 + √(2 log(2T/δ))).
    M counts every incarnation that ever held data, those whose buffers were lost included. μ is the number of buffers
    whose data the model lacks: `own_buffer` says that the agent itself held one when it adopted the model (μ = M).
    When T is unknown pass `n_uploads`, the uploads merged so far: 2T/δ becomes 2M(N+1)(N+2)/δ.
    """
    mu = buffers_missing(n_agents, own_buffer=own_buffer)
    if mu == 0:
        alpha = 0.0  # no other agent has a buffer, whatever the trigger
    buffers = n_rounds if n_rounds is not None else _unknown_horizon(n_agents, n_uploads)
    log_buffers = 2 * math.log(2 * buffers / delta)
    per_dim = mu * alpha / dim if trigger == "determinant" else mu * alpha
    everything = 2 * math.log(2 / delta) + rho + dim * math.log1p(per_dim)
    if trigger == "determinant":
        buffered = mu * math.sqrt(alpha) * (1 + math.sqrt(log_buffers))
    elif trigger == "spectral":
        buffered = mu * math.sqrt(2 * alpha) * math.sqrt(log_buffers + dim * LOG2)
    else:
        raise InvalidParameter(f"expected trigger 'determinant' or 'spectral', got {trigger!r}")
    return math.sqrt(lam) * theta_bound + noise_scale * (math.sqrt((1 + mu * alpha) * everything) + buffered)


@_checked
def buffers_missing(n_agents: int, *, own_buffer: bool = False) -> int:
    """μ: how many buffers a downloaded model may lack. M − 1, or M if the agent's own was not empty either.

    A single agent uploads in the order of time, so that the server's data are the first ones of all: μ = 0.

    >>> buffers_missing(5), buffers_missing(5, own_buffer=True), buffers_missing(1, own_buffer=True)
    (4, 5, 0)
    """
    return n_agents if own_buffer and n_agents > 1 else n_agents - 1


def _unknown_horizon(n_agents: int, n_uploads: int | None) -> float:
    if n_uploads is None:
        raise InvalidParameter("the adaptive radius needs n_rounds, or n_uploads when the horizon is unknown")
    return n_agents * (n_uploads + 1.0) * (n_uploads + 2.0)


@_checked
def counted_radius(*, n_obs: int, dim: int, lam: float, noise_scale: float, theta_bound: float, delta: float) -> float:
    """β = R √(d log(1 + n/(dλ)) + 2 log(1/δ)) + √λ S with n observations of unit norm: Li and Wang's choice."""
    information = dim * math.log1p(n_obs / (dim * lam)) + 2 * math.log(1 / delta)
    return noise_scale * math.sqrt(information) + math.sqrt(lam) * theta_bound


@_checked
def max_epochs(*, dim: int, n_rounds: int, lam: float, action_bound: float) -> float:
    """1 + d log₂(1 + TL²/(λd)): how often det Σ_ser can double, plus the epoch it starts in."""
    return 1 + dim * math.log1p(n_rounds * action_bound**2 / (lam * dim)) / LOG2


@_checked
def epoch_of(rho: float) -> int:
    """The epoch i with 2^i ≤ det Σ_ser / λ^d < 2^(i+1), from ρ = log det Σ_ser − d log λ."""
    return math.floor(rho / LOG2 + 1e-12)


@_checked
def messages_per_epoch(*, n_agents: int, alpha: float) -> float:
    """2(M + 1/α): the most messages while det Σ_ser does not double."""
    return math.inf if alpha == 0 else 2 * (n_agents + 1 / alpha)


@_checked
def message_bound(*, dim: int, n_agents: int, n_rounds: int, lam: float, alpha: float, action_bound: float) -> float:
    """2(M + 1/α)(1 + d log₂(1 + TL²/(λd))): uploads plus downloads of FedLinUCB, corrected (erratum 1)."""
    epochs = max_epochs(dim=dim, n_rounds=n_rounds, lam=lam, action_bound=action_bound)
    return messages_per_epoch(n_agents=n_agents, alpha=alpha) * epochs


@_checked
def printed_message_bound(
    *, dim: int, n_agents: int, n_rounds: int, lam: float, alpha: float, action_bound: float
) -> float:
    """2 log 2 · d (M + 1/α) log(1 + TL²/(λd)) as Theorem 1 prints it, which can fail (erratum 1)."""
    information = dim * math.log1p(n_rounds * action_bound**2 / (lam * dim))
    return LOG2 * messages_per_epoch(n_agents=n_agents, alpha=alpha) * information


@_checked
def regret_bound(
    *,
    dim: int,
    n_agents: int,
    n_rounds: int,
    lam: float,
    alpha: float,
    beta: float,
    theta_bound: float,
    action_bound: float,
) -> float:
    """2SLM(1 + d log₂(1+TL²/(λd))) + 2√(2(1+Mα)) β √(2dT log(1+TL²/λ)): Theorem 1 with its additive term corrected.

    `beta` is the largest radius used in the run.
    """
    epochs = max_epochs(dim=dim, n_rounds=n_rounds, lam=lam, action_bound=action_bound)
    blind = 2 * theta_bound * action_bound * n_agents * epochs
    return blind + _learning_regret(dim, n_agents, n_rounds, lam, alpha, beta, action_bound)


@_checked
def printed_regret_bound(
    *,
    dim: int,
    n_agents: int,
    n_rounds: int,
    lam: float,
    alpha: float,
    beta: float,
    theta_bound: float,
    action_bound: float,
) -> float:
    """2dSLM log(1+TL²/λ) + 2√(2(1+Mα)) β √(2dT log(1+TL²/λ)), as Theorem 1 prints it."""
    growth = math.log1p(n_rounds * action_bound**2 / lam)
    blind = 2 * dim * theta_bound * action_bound * n_agents * growth
    return blind + _learning_regret(dim, n_agents, n_rounds, lam, alpha, beta, action_bound)


def _learning_regret(
    dim: int, n_agents: int, n_rounds: int, lam: float, alpha: float, beta: float, action_bound: float
) -> float:
    potential = 2 * dim * n_rounds * math.log1p(n_rounds * action_bound**2 / lam)
    return 2 * math.sqrt(2 * (1 + n_agents * alpha)) * beta * math.sqrt(potential)


@_checked
def held_back_alpha(*, alpha: float, min_upload: int, lam: float, action_bound: float) -> float:
    """The α' that stands for α in every bound on buffers when uploads wait for `min_upload` observations.

    A buffer either satisfies the trigger's bound tr(Σ_m⁻¹Σ_loc) ≤ α, or has at most min_upload − 1 observations, and
    then tr(Σ_m⁻¹Σ_loc) ≤ (min_upload − 1)·L²/λ. The message bound keeps its α: an upload still grows det Σ by it.

    >>> held_back_alpha(alpha=1.0, min_upload=5, lam=2.0, action_bound=1.0)
    2.0
    """
    return max(alpha, (min_upload - 1) * action_bound**2 / lam)


@_checked
def lower_bound_messages(*, n_agents: int, n_rounds: int) -> float:
    """M / log(T/M): the order of messages below which no algorithm beats M independent learners (Theorem 2)."""
    if n_rounds <= n_agents:
        raise InvalidParameter(f"expected more rounds than agents, got {n_rounds} ≤ {n_agents}")
    return n_agents / math.log(n_rounds / n_agents)


@_checked
def min_lower_bound_messages(*, dim: int, n_agents: int) -> int:
    """dM: the order of messages of Min et al. (2023, Remark 5.7), which has a factor d and no logarithm.

    >>> min_lower_bound_messages(dim=5, n_agents=20)
    100
    """
    return dim * n_agents


@_checked
def global_error_bound(
    *,
    dim: int,
    n_rounds: int,
    lam: float,
    noise_scale: float,
    theta_bound: float,
    action_bound: float,
    delta: float,
) -> float:
    """R √(2 log(1/δ) + d log(1+TL²/(dλ))) + √λ S: the most ‖θ̂_all − θ*‖ in the norm of Σ_all, for all rounds."""
    information = 2 * math.log(1 / delta) + dim * math.log1p(n_rounds * action_bound**2 / (dim * lam))
    return noise_scale * math.sqrt(information) + math.sqrt(lam) * theta_bound


@_checked
def printed_global_error_bound(
    *,
    dim: int,
    n_rounds: int,
    lam: float,
    noise_scale: float,
    theta_bound: float,
    action_bound: float,
    delta: float,
) -> float:
    """R √(d log((1+TL²/λ)/δ)) + √λ S, as the paper prints it; too small at d = 1 (erratum 2)."""
    information = dim * math.log((1 + n_rounds * action_bound**2 / lam) / delta)
    return noise_scale * math.sqrt(information) + math.sqrt(lam) * theta_bound


@_checked
def buffer_noise_bound(
    *, dim: int, n_rounds: int, lam: float, alpha: float, noise_scale: float, action_bound: float, delta: float
) -> float:
    """R √(2 log(T/δ) + d log(1+TL²/(dαλ))): the most ‖u_loc‖ in the norm of (αλI + Σ_loc)⁻¹, for all buffers.

    A buffer is named by its first round, so that there are at most T of them: the union that the paper's lemma lacks.
    """
    ridge = _positive_alpha(alpha) * lam
    information = 2 * math.log(n_rounds / delta) + dim * math.log1p(n_rounds * action_bound**2 / (dim * ridge))
    return noise_scale * math.sqrt(information)


@_checked
def printed_buffer_noise_bound(
    *,
    dim: int,
    n_rounds: int,
    lam: float,
    alpha: float,
    noise_scale: float,
    theta_bound: float,
    action_bound: float,
    delta: float,
) -> float:
    """R √(d log((1+TL²/(αλ))/δ)) + √λ S, as the paper's lemma on local concentration prints it (erratum 2)."""
    ridge = _positive_alpha(alpha) * lam
    information = dim * math.log((1 + n_rounds * action_bound**2 / ridge) / delta)
    return noise_scale * math.sqrt(information) + math.sqrt(lam) * theta_bound


@_checked
def set_aside_bound(*, dim: int, n_agents: int, n_rounds: int, lam: float, action_bound: float) -> float:
    """M (1 + d log₂(1+TL²/(λd))): the most rounds that the proof of Theorem 1 bounds by 2SL instead of a bonus."""
    return n_agents * max_epochs(dim=dim, n_rounds=n_rounds, lam=lam, action_bound=action_bound)


@_checked
def printed_set_aside_bound(*, dim: int, n_agents: int, n_rounds: int, lam: float, action_bound: float) -> float:
    """M d log(1+TL²/λ), as the proof prints it: a natural logarithm where doublings need a binary one (erratum 1)."""
    return n_agents * dim * math.log1p(n_rounds * action_bound**2 / lam)


@_checked
def layer_radius(
    *,
    n_actions: int,
    n_rounds: int,
    n_layers: int,
    lam: float,
    noise_scale: float,
    theta_bound: float,
    delta: float,
) -> float:
    """β = √λ S + R √(2 log(2KTS/δ)): error of one prediction in units of ‖x‖, where the design ignores its rewards.

    Holds for every action of every round in each of S layers together, with probability 1 − δ; no factor √d.
    """
    events = 2 * n_actions * n_rounds * n_layers / delta
    return math.sqrt(lam) * theta_bound + noise_scale * math.sqrt(2 * math.log(events))


def _positive_alpha(alpha: float) -> float:
    if alpha == 0:
        raise InvalidParameter("this bound needs alpha > 0, got 0; without a trigger level no buffer is held")
    return alpha
