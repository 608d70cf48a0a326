"""The confidence radius β as coefficients, so that a kernel evaluates it without Python."""

from __future__ import annotations

import math
from typing import NamedTuple

from fedbandit.algorithms.rules import LinearRule
from fedbandit.core import radius as radii
from fedbandit.core.theory import LOG2
from fedbandit.simulation.compiled.jit import inner


class RadiusTerms(NamedTuple):
    """β = base + R(√(spread·(fixed + ρ·[informed] + d log(1 + n/(dλ))·[counted])) + buffered(N))."""

    base: float
    noise: float
    fixed: float
    spread: float
    informed: bool
    counted: bool
    dim: float
    ridge: float  # dλ
    buffers: float  # buffered(N) = weight · (lift + √(tail + 2 log(2 · buffers · (N+1)(N+2)/δ)))
    weight: float
    lift: float
    tail: float
    open_horizon: bool
    prior_log_det: float


@inner
def beta_of(terms: RadiusTerms, log_det: float, n_obs: int, n_uploads: int) -> float:
    """β of a model with this log-determinant, these observations and this many uploads behind it."""
    if terms.noise == 0.0:
        return terms.base
    information = terms.fixed
    if terms.informed:
        information += max(log_det - terms.prior_log_det, 0.0)
    if terms.counted:
        information += terms.dim * math.log1p(n_obs / terms.ridge)
    beta = terms.base + terms.noise * math.sqrt(terms.spread * information)
    if terms.weight > 0.0:
        buffers = terms.buffers
        if terms.open_horizon:
            buffers *= (n_uploads + 1.0) * (n_uploads + 2.0)
        beta += terms.noise * terms.weight * (terms.lift + math.sqrt(terms.tail + 2.0 * math.log(buffers)))
    return beta


def terms_of(rule: LinearRule, radius: radii.AnyRadius | None = None) -> RadiusTerms:
    """The coefficients of a rule's radius, or of another one in its place."""
    radius = rule.radius if radius is None else radius
    at_first = rule.beta_for(rule.prior_model, n_obs=0, version=0)  # a named error if it is infinite
    if isinstance(radius, (radii.Fixed, radii.Paper)):
        return _terms(rule, base=at_first)
    base = math.sqrt(rule.lam) * radius.theta_bound
    if isinstance(radius, radii.Adaptive):
        return _adaptive_terms(rule, radius, base)
    fixed = 2.0 * math.log(1.0 / radius.delta)
    counted = isinstance(radius, radii.Counted)
    return _terms(rule, base=base, noise=radius.noise_scale, fixed=fixed, informed=not counted, counted=counted)


def _terms(
    rule: LinearRule,
    *,
    base: float,
    noise: float = 0.0,
    fixed: float = 0.0,
    spread: float = 1.0,
    informed: bool = False,
    counted: bool = False,
    buffers: float = 1.0,
    weight: float = 0.0,
    lift: float = 0.0,
    tail: float = 0.0,
    open_horizon: bool = False,
) -> RadiusTerms:
    prior_log_det = rule.prior_model.log_det
    return RadiusTerms(
        float(base),
        float(noise),
        float(fixed),
        float(spread),
        informed,
        counted,
        float(rule.dim),
        rule.dim * rule.lam,
        float(buffers),
        float(weight),
        lift,
        tail,
        open_horizon,
        prior_log_det,
    )


def _adaptive_terms(rule: LinearRule, radius: radii.Adaptive, base: float) -> RadiusTerms:
    """The adaptive radius of core/theory.py, split into what changes with a model and what does not."""
    mu, alpha, dim = radius.n_agents - 1, rule.trigger_level, rule.dim
    by_determinant = rule.trigger_kind == "determinant"
    per_dim = mu * alpha / dim if by_determinant else mu * alpha
    return _terms(
        rule,
        base=base,
        noise=radius.noise_scale,
        fixed=2.0 * math.log(2.0 / radius.delta) + dim * math.log1p(per_dim),
        spread=1.0 + mu * alpha,
        informed=True,
        buffers=2.0 * (radius.n_rounds if radius.n_rounds is not None else radius.n_agents) / radius.delta,
        weight=mu * math.sqrt(alpha if by_determinant else 2.0 * alpha),
        lift=1.0 if by_determinant else 0.0,
        tail=0.0 if by_determinant else dim * LOG2,
        open_horizon=radius.n_rounds is None,
    )
