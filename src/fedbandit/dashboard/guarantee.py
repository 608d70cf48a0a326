"""Does the confidence radius that agents use still cover what is going on? The numbers and a sentence for it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from fedbandit.core import radius as radii
from fedbandit.core.ridge import RidgeModel
from fedbandit.core.theory import exogenous_radius
from fedbandit.dashboard.words import count, number
from fedbandit.errors import InvalidParameter
from fedbandit.service.model import Model

Verdict = Literal["holds", "stretched", "none"]
DELTA = 0.01  # failure probability of the estimate beside a fixed radius
ENOUGH = 1.001  # a radius that is short by less than this factor is not worth a warning


@dataclass(frozen=True, slots=True)
class Guarantee:
    """`beta` is what agents use now, `needed` what covers θ* at the effective alpha and with all enrolled agents."""

    verdict: Verdict
    headline: str
    sentence: str
    beta: float
    needed: float | None
    normal_alpha: float  # what an upload may show without any latency
    noise: float | None = None  # estimated from the data
    theta_norm: float | None = None


def normal_alpha(model: Model, ridge: RidgeModel) -> float:
    """The largest growth, as an α, that an upload shows when nothing is late: (1+α)(1+L²/λ) − 1.

    The determinant test fires on the observation that crosses the threshold, and that one travels too; it multiplies
    the determinant by 1 + xᵀΣ⁻¹x ≤ 1 + L²/λ. Where the model sets no L, twice the mean ‖x‖² so far stands for L².
    """
    settings, stats = model.settings, ridge.stats
    if settings.action_bound is not None:
        square = settings.action_bound**2
    else:
        trace = float(stats.Sigma.trace()) - settings.dim * settings.lam
        square = 2.0 * trace / stats.n_obs if stats.n_obs else 0.0
    return (1.0 + settings.alpha) * (1.0 + square / settings.lam) - 1.0


def assess(model: Model, ridge: RidgeModel) -> Guarantee:
    """The guarantee of a model now."""
    settings = model.settings
    rho = max(ridge.log_det - settings.dim * math.log(settings.lam), 0.0)
    evidence = radii.Evidence(settings.dim, settings.lam, settings.alpha, rho, model.n_obs, model.version)
    radius = settings.radius
    beta, normal = _value(radius, evidence), normal_alpha(model, ridge)
    if isinstance(radius, radii.Fixed):
        return _fixed(model, ridge, rho, beta, normal)
    if isinstance(radius, radii.Paper | radii.Adaptive):
        return _depends_on_alpha(model, radius, evidence, beta, normal)
    sentence = (
        "This radius does not depend on alpha or on the number of agents. It covers the true parameter as long as "
        "nothing outside reacts to rewards that still wait in a buffer."
    )
    if isinstance(radius, radii.Counted):
        sentence = "This radius counts observations and assumes actions of unit length; it does not depend on alpha."
    return Guarantee("holds", "holds", sentence, beta, beta, normal)


def _fixed(model: Model, ridge: RidgeModel, rho: float, beta: float, normal: float) -> Guarantee:
    told = "A fixed β promises nothing; it is what most published experiments use."
    noise = residual_noise(ridge, model.settings.lam)
    if noise is None:
        return Guarantee("none", "none given", told, beta, None, normal)
    norm = float(math.sqrt(ridge.theta_hat @ ridge.theta_hat))
    needed = exogenous_radius(rho=rho, lam=model.settings.lam, noise_scale=noise, theta_bound=norm, delta=DELTA)
    told += (
        f" Judging by the data (noise about {number(noise, 2)}, ‖θ̂‖ about {number(norm, 2)}), covering θ with "
        f"{100 * (1 - DELTA):.0f} % would take about {number(needed, 2)}."
    )
    return Guarantee("none", "none given", told, beta, needed, normal, noise, norm)


def _depends_on_alpha(
    model: Model, radius: radii.Paper | radii.Adaptive, evidence: radii.Evidence, beta: float, normal: float
) -> Guarantee:
    reasons = []
    n_agents = max(radius.n_agents, model.n_agents)
    alpha = model.effective_alpha if model.effective_alpha > normal else model.settings.alpha
    needed = _value(replace(radius, n_agents=n_agents), replace(evidence, alpha=alpha))
    if alpha > model.settings.alpha:
        reasons.append(f"buffers grew to an effective alpha of {number(model.effective_alpha)}")
    if model.n_agents > radius.n_agents:
        reasons.append(f"{count(model.n_agents)} agents are enrolled and the radius was set for {radius.n_agents}")
    horizon = radius.n_rounds
    if horizon is not None and model.n_obs > horizon:
        reasons.append(f"{count(model.n_obs)} observations are in and the radius was set for {count(horizon)}")
    if not reasons or needed <= beta * ENOUGH:
        return Guarantee("holds", "holds", "Buffers stay within what the radius allows for.", beta, needed, normal)
    sentence = f"It would hold with β = {number(needed)} instead of {number(beta)}: {'; '.join(reasons)}."
    return Guarantee("stretched", "stretched", sentence, beta, needed, normal)


def _value(radius: radii.AnyRadius, evidence: radii.Evidence) -> float:
    try:
        return radius(evidence)
    except InvalidParameter:  # the printed radius has no value at alpha = 0
        return math.inf


def residual_noise(ridge: RidgeModel, lam: float) -> float | None:
    """√(RSS / (n − d)) of the ridge fit, the size of what the model cannot explain; None while data are few."""
    stats, theta = ridge.stats, ridge.theta_hat
    free = stats.n_obs - stats.dim
    if free < max(stats.dim, 10):
        return None
    fitted = float(theta @ stats.Sigma @ theta) - lam * float(theta @ theta)
    return math.sqrt(max(stats.reward_sq_sum - 2 * float(theta @ stats.b) + fitted, 0.0) / free)
