"""What a model's sums say: radius needed, estimates, shares of information, one agent's influence.

The API, the dashboard and the command line read the same numbers from here. Nothing here confirms a guarantee: an
assumption that no test checks is called assumed.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from fedbandit.algorithms.messages import n_packed, stats_from_bytes
from fedbandit.core import personal as personals
from fedbandit.core import radius as radii
from fedbandit.core.arrays import Vector
from fedbandit.core.consistency import LEVEL, distance_to_ball, least_noise_scale
from fedbandit.core.kappa import FIRST_CHOICE, choose_kappa, first_kappa
from fedbandit.core.personal_prior import others_of
from fedbandit.core.ridge import RidgeModel
from fedbandit.core.structure import ridge_model
from fedbandit.core.theory import exogenous_radius
from fedbandit.errors import InvalidParameter
from fedbandit.service.assumptions import AssumptionCheck
from fedbandit.service.formatting import count, number
from fedbandit.service.model import Model, totals_of
from fedbandit.service.stores.base import MAX_PER_PAGE, ModelState, PageQuery, Store

ProvenRadius = radii.Paper | radii.Adaptive | radii.Exogenous | radii.Counted
DELTA = 0.01  # failure probability of the radius that is estimated beside a fixed one
ENOUGH = 1.001  # a radius that is short by less than this factor is not worth a warning
MAX_COMPARED_BYTES = 64 << 20  # of agents' sums that are read to find the largest shares
MAX_COMPARED = 2_000
MAX_KAPPA_DIM = 100  # features up to which κ is computed for a list of agents
BUFFERS = "uploads within α"
UNSEEN = "buffers that were not uploaded yet, or were lost, are not visible"
LATE = (
    "sort the agents by growth: those at the top are cut off, slow, or decide much faster than an exchange takes, as a "
    "loop without pauses does (harmless in a trial)"
)


@dataclass(frozen=True, slots=True)
class Guarantee:
    """`beta` is the radius in use, `beta_needed` what covers θ* at the effective alpha and with all enrolled agents.

    `checks` are those that the model's own sums decide; `service/assumptions.py` adds those of its agents and of time.
    """

    explanation: str
    beta: float
    beta_needed: float | None
    normal_alpha: float  # what an upload may show without any latency
    noise: float | None = None  # estimated from the data
    checks: tuple[AssumptionCheck, ...] = ()


@dataclass(frozen=True, slots=True)
class CoefficientInterval:
    """A value for one feature with its half-width β·√(Σ⁻¹)ᵢᵢ."""

    feature: str
    value: float
    half_width: float


@dataclass(frozen=True, slots=True)
class Influence:
    """What one agent's data do to a model: their share of the information, and how far they move the estimate."""

    share: float  # tr(Σ⁻¹Σ_a)/d; all agents' and the prior's, tr(Σ⁻¹λI)/d, add to 1
    shift: float  # ‖θ̂ − θ̂₋ₐ‖_Σ, how far θ̂ would move without the agent
    beta: float  # the radius to compare the shift with
    change: Vector  # θ̂ − θ̂₋ₐ, by feature

    def to_dict(self) -> dict[str, Any]:
        """Plain values for the API."""
        numbers = {"share": self.share, "shift": _finite(self.shift), "beta": _finite(self.beta)}
        return {**numbers, "change": self.change.tolist()}


@dataclass(frozen=True, slots=True)
class LargestShares:
    """The agents with the largest shares of information, largest first, among the `n_compared` with most data."""

    largest: list[tuple[str, float]]
    n_compared: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values for the API."""
        shares = [{"agent": agent, "share": share} for agent, share in self.largest]
        return {"largest_shares": shares, "n_compared": self.n_compared}


class ModelInsight:
    """A model's sums, factorised once; O(d³)."""

    def __init__(self, state: ModelState) -> None:
        self.model = state.model
        self.ridge = ridge_model(stats_from_bytes(state.packed, state.model.settings.dim, state.model.settings.blocks))
        self.guarantee = assess(self.model, self.ridge)
        self._share_weights = self.ridge.share_weights()

    @property
    def information(self) -> float:
        """ρ = log det Σ − d log λ, the information in all the data."""
        return _information(self.model, self.ridge)

    @property
    def prior_share(self) -> float:
        """tr(Σ⁻¹ λI)/d: the share of information that is still the prior's."""
        return self.model.settings.lam * float(self.ridge.inverse_diagonal.sum()) / self.model.settings.dim

    def share(self, contribution: bytes | None) -> float:
        """tr(Σ⁻¹ Σ_a)/d of an agent's sum. With the prior's share, all agents' shares add to exactly 1."""
        if contribution is None:
            return 0.0
        packed = np.frombuffer(contribution, dtype="<f8", count=len(self._share_weights))
        return float(self._share_weights @ packed)

    def influence(self, contribution: bytes | None) -> Influence:
        """The influence of everything that was merged from one agent, by a fit without it; O(d³)."""
        settings, beta = self.model.settings, self.guarantee.beta
        if contribution is None:
            return Influence(0.0, 0.0, beta, np.zeros(settings.dim))
        rest = self.ridge.stats - stats_from_bytes(contribution, settings.dim, settings.blocks)
        # Rounding must not leave a diagonal below λ where nearly all the data are taken out.
        Sigma = rest.Sigma.copy()
        diagonal = np.einsum("...ii->...i", Sigma)  # a view, also of blocks
        np.maximum(diagonal, settings.lam, out=diagonal)
        theta = ridge_model(replace(rest, Sigma=Sigma)).theta_hat
        return Influence(self.share(contribution), self.ridge.distance(theta), beta, self.ridge.theta_hat - theta)

    def kappa(self, contribution: bytes | None) -> float | None:
        """κ of an agent in a model with `personal`: the stated one, or what its merged sums give; O(d³).

        Agents choose κ themselves and do not send it; with what is merged they would choose this one. None where the
        model has no κ, the agent no data, or the model too many features.
        """
        settings = self.model.settings
        if isinstance(settings.personal, personals.Fixed):
            return settings.personal.kappa
        if settings.personal is None or contribution is None or settings.dim > MAX_KAPPA_DIM:
            return None
        own = stats_from_bytes(contribution, settings.dim, settings.blocks)
        others = others_of(self.ridge.stats, own, settings.lam)
        if others is None or own.n_obs < 1:
            return None
        return first_kappa(settings.dim) if own.n_obs < FIRST_CHOICE else choose_kappa(others, own)

    def intervals(self, values: Vector, *, limit: int, sort: bool = False) -> list[CoefficientInterval]:
        """Values by feature beside the half-widths of the model, the largest first with `sort` or beyond `limit`."""
        order = np.arange(len(values))
        if sort or len(values) > limit:
            order = np.argsort(-np.abs(values), kind="stable")[:limit]
        names = self.model.settings.features or [f"feature {i + 1}" for i in range(len(values))]
        widths = self.guarantee.beta * np.sqrt(self.ridge.inverse_diagonal)
        return [CoefficientInterval(names[i], float(values[i]), float(widths[i])) for i in order]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for the API; null for a radius that has no value."""
        found, theta = self.guarantee, self.ridge.theta_hat
        intervals = self.intervals(theta, limit=len(theta))
        return {
            "model": self.model.settings.name,
            "version": self.model.version,
            "explanation": found.explanation,
            "beta": _finite(found.beta),
            "beta_needed": _finite(found.beta_needed),
            "effective_alpha": self.model.effective_alpha,
            "normal_alpha": _finite(found.normal_alpha),
            "noise": found.noise,
            "information": self.information,
            "prior_share": self.prior_share,
            "estimates": [{**asdict(item), "half_width": _finite(item.half_width)} for item in intervals],
        }


async def largest_shares(store: Store, insight: ModelInsight, limit: int) -> LargestShares:
    """The largest shares of all agents; of those with most observations where there are too many to compare."""
    name, settings = insight.model.settings.name, insight.model.settings
    n_most = max(min(MAX_COMPARED, MAX_COMPARED_BYTES // (8 * n_packed(settings.dim, settings.blocks))), limit)
    found: list[tuple[str, float]] = []
    n_contributors = insight.model.n_agents + insight.model.n_retired  # and at most one row for those folded
    n_pages = -(-min(n_most, n_contributors) // MAX_PER_PAGE)
    for page in range(1, n_pages + 1):
        query = PageQuery(page=page, per_page=min(MAX_PER_PAGE, n_most), sort="-n_obs", retired=None)
        for agent in (await store.agents(name, query)).agents:
            # One at a time: the sums of all agents together may not fit into memory.
            total = await store.contribution(name, agent.name) if agent.counts else None
            found.append((agent.name, insight.share(total)))
    found.sort(key=lambda item: (-item[1], item[0]))
    return LargestShares(found[:limit], len(found))


def with_contribution(state: ModelState, contribution: bytes) -> ModelState:
    """The state as it would be with the sum of an agent that is in quarantine."""
    packed = (np.frombuffer(state.packed, dtype="<f8") + np.frombuffer(contribution, dtype="<f8")).tobytes()
    n_obs, reward_sum, reward_sq_sum = totals_of(packed)
    model = replace(state.model, n_obs=n_obs, reward_sum=reward_sum, reward_sq_sum=reward_sq_sum)
    return ModelState(model, packed)


def normal_alpha(model: Model, ridge: RidgeModel) -> float:
    """The largest growth, as an α, that an upload shows when nothing is late: (1+α)(1+L²/λ) − 1.

    The determinant test fires on the observation that crosses the threshold, and that one travels too; it multiplies
    the determinant by 1 + xᵀΣ⁻¹x ≤ 1 + L²/λ. Where the model sets no L, twice the mean ‖x‖² so far stands for L².
    """
    settings, stats = model.settings, ridge.stats
    if settings.action_bound is not None:
        square = settings.action_bound**2
    else:
        trace = float(stats.diagonal.sum()) - settings.dim * settings.lam
        square = 2.0 * trace / stats.n_obs if stats.n_obs else 0.0
    return (1.0 + settings.alpha) * (1.0 + square / settings.lam) - 1.0


def assess(model: Model, ridge: RidgeModel) -> Guarantee:
    """What can be said of a model's guarantee now."""
    settings, rho = model.settings, _information(model, ridge)
    evidence = radii.Evidence(settings.dim, settings.lam, settings.alpha, rho, model.n_obs, model.version)
    radius = settings.radius
    beta, normal = _value(radius, evidence), normal_alpha(model, ridge)
    if isinstance(radius, radii.Fixed):
        return _fixed(model, ridge, rho, beta, normal)
    needed, checks = beta, [_noise(model, ridge, radius), _norm(ridge, radius, beta)]
    if isinstance(radius, radii.Counted | radii.Paper):
        checks.append(_length(model, ridge, 1.0 if isinstance(radius, radii.Counted) else radius.action_bound))
    if isinstance(radius, radii.Paper | radii.Adaptive):
        needed, buffers = _buffers(model, radius, evidence, beta, normal)
        checks.append(buffers)
    else:
        checks += [_growth(model, normal), _reactions()]
    broken = [check.evidence for check in checks if check.state == "contradicted" and check.name != "buffers"]
    broken += [check.evidence for check in checks if check.name == "buffers" and needed > beta * ENOUGH]
    if broken:
        explanation = f"The data contradict what the radius was given: {'; '.join(broken)}."
    else:
        explanation = (
            "The radius covers the true parameter if its assumptions hold. The data do not contradict the numbers it "
            "was given; what is called assumed was not tested."
        )
    noise = residual_noise(ridge, settings.lam)
    return Guarantee(explanation, beta, needed, normal, noise, tuple(checks))


def _reactions() -> AssumptionCheck:
    return AssumptionCheck(
        "reactions",
        "nothing reacts to rewards in buffers",
        "assumed",
        "not visible to a server",
        "if agents leave, or decision sets change, after a reward that is not merged yet: use the `adaptive` radius",
    )


def _noise(model: Model, ridge: RidgeModel, radius: ProvenRadius) -> AssumptionCheck:
    least = least_noise_scale(ridge, lam=model.settings.lam, theta_bound=radius.theta_bound)
    declared = f"noise_scale = {number(radius.noise_scale)}"
    if least > radius.noise_scale:
        evidence = f"the noise is at least {number(least)}, {declared} was declared"
        advice = f"create the model with a noise_scale above {number(least)}; if agents or times differ, fix that first"
        return AssumptionCheck("noise_scale", declared, "contradicted", evidence, advice, level=LEVEL)
    if residual_noise(ridge, model.settings.lam) is None:
        return AssumptionCheck("noise_scale", declared, "assumed", "too few observations to test it")
    return AssumptionCheck("noise_scale", declared, "held", f"the data need at least {number(least)}", level=LEVEL)


def _norm(ridge: RidgeModel, radius: ProvenRadius, beta: float) -> AssumptionCheck:
    declared = f"‖θ‖ ≤ {number(radius.theta_bound)}"
    norm = float(np.linalg.norm(ridge.theta_hat))
    if distance_to_ball(ridge, radius.theta_bound) > beta:
        evidence = f"‖θ̂‖ is {number(norm)}, farther than β from {declared}"
        advice = f"create the model with a theta_bound of {number(norm, 2)} or more"
        return AssumptionCheck("theta_bound", declared, "contradicted", evidence, advice, level=radius.delta)
    evidence = f"‖θ̂‖ is {number(norm)}, within β of it"
    return AssumptionCheck("theta_bound", declared, "held", evidence, level=radius.delta)


def _length(model: Model, ridge: RidgeModel, bound: float) -> AssumptionCheck:
    declared = f"‖x‖ ≤ {number(bound)}"
    stats, settings = ridge.stats, model.settings
    trace = float(stats.diagonal.sum()) - settings.dim * settings.lam
    typical = math.sqrt(max(trace, 0.0) / stats.n_obs) if stats.n_obs else 0.0
    if typical > bound * ENOUGH:
        evidence = f"actions have a root-mean-square length of {number(typical)}, not {declared}"
        advice = "scale the features, or declare a larger action_bound"
        return AssumptionCheck("action_bound", declared, "contradicted", evidence, advice)
    evidence = f"root-mean-square length {number(typical)}; single actions are not visible"
    return AssumptionCheck("action_bound", declared, "assumed", evidence)


def _fixed(model: Model, ridge: RidgeModel, rho: float, beta: float, normal: float) -> Guarantee:
    text = "A fixed β has no guarantee; it is what most published experiments use."
    noise = residual_noise(ridge, model.settings.lam)
    checks = (_growth(model, normal),)
    if noise is None:
        return Guarantee(text, beta, None, normal, None, checks)
    norm = float(math.sqrt(ridge.theta_hat @ ridge.theta_hat))
    needed = exogenous_radius(rho=rho, lam=model.settings.lam, noise_scale=noise, theta_bound=norm, delta=DELTA)
    text += (
        f" With noise of {number(noise, 2)} and ‖θ‖ of {number(norm, 2)}, as estimated from the data, the `exogenous` "
        f"radius at {100 * (1 - DELTA):.0f} % would be {number(needed, 2)}."
    )
    return Guarantee(text, beta, needed, normal, noise, checks)


def _growth(model: Model, normal: float) -> AssumptionCheck:
    """Whether uploads came when they were due; later ones cost regret, and no radius but those that depend on α."""
    shown = f"effective α {number(model.effective_alpha)}, up to {number(normal)} is normal"
    if not model.n_uploads:
        return AssumptionCheck("buffers", BUFFERS, "assumed", "no upload yet")
    if model.effective_alpha > normal * ENOUGH:
        return AssumptionCheck("buffers", BUFFERS, "contradicted", f"buffers outgrew α: {shown}", LATE)
    return AssumptionCheck("buffers", BUFFERS, "held", f"{shown}; {UNSEEN}")


def _buffers(
    model: Model, radius: radii.Paper | radii.Adaptive, evidence: radii.Evidence, beta: float, normal: float
) -> tuple[float, AssumptionCheck]:
    """The radius needed for the buffers that uploads have shown, for all enrolled agents and all observations."""
    reasons, advice = [], []
    n_agents = max(radius.n_agents, model.n_agents)
    alpha = model.effective_alpha if model.effective_alpha > normal else model.settings.alpha
    needed = _value(replace(radius, n_agents=n_agents), replace(evidence, alpha=alpha))
    if alpha > model.settings.alpha:
        reasons.append(f"buffers grew to an effective alpha of {number(model.effective_alpha)}")
        advice.append(LATE)
    if model.n_agents > radius.n_agents:
        reasons.append(f"{count(model.n_agents)} agents are enrolled and the radius was set for {radius.n_agents}")
        advice.append("create the model with a larger n_agents")
    horizon = radius.n_rounds
    if horizon is not None and model.n_obs > horizon:
        reasons.append(f"{count(model.n_obs)} observations are in and the radius was set for {count(horizon)}")
        advice.append("create the model with a larger n_rounds")
    if not reasons or needed <= beta * ENOUGH:
        return needed, _growth(model, normal)
    text = f"covering θ would take β = {number(needed)} instead of {number(beta)}: {'; '.join(reasons)}"
    return needed, AssumptionCheck("buffers", BUFFERS, "contradicted", text, "; ".join(advice))


def _information(model: Model, ridge: RidgeModel) -> float:
    return max(ridge.log_det - model.settings.dim * math.log(model.settings.lam), 0.0)


def _finite(value: float | None) -> float | None:
    return value if value is None or math.isfinite(value) else None


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
    fitted = stats.form(theta) - lam * float(theta @ theta)
    return math.sqrt(max(stats.reward_sq_sum - 2 * float(theta @ stats.b) + fitted, 0.0) / free)
