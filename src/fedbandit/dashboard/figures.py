"""What the page shows of a model's sums: estimates with intervals, shares of information, an agent's pull."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedbandit.algorithms.messages import stats_from_bytes
from fedbandit.core.arrays import Vector
from fedbandit.core.ridge import RidgeModel
from fedbandit.core.statistics import pack_symmetric, packed_length
from fedbandit.dashboard.guarantee import Guarantee, assess
from fedbandit.service.model import Model
from fedbandit.service.stores.base import Sample, State
from fedbandit.service.weight import without


@dataclass(frozen=True, slots=True)
class Estimate:
    """One coordinate of θ̂ with its half-width β·√(Σ⁻¹)ᵢᵢ."""

    feature: str
    value: float
    half_width: float


@dataclass(frozen=True, slots=True)
class Picture:
    """A model's sums, factorised once and looked at from all sides."""

    model: Model
    ridge: RidgeModel
    guarantee: Guarantee
    weights: Vector  # packed Σ⁻¹ with everything off the diagonal doubled: ⟨weights, packed A⟩ = tr(Σ⁻¹A)

    @property
    def information(self) -> float:
        """ρ = log det Σ − d log λ, what all the data together have taught."""
        settings = self.model.settings
        return max(self.ridge.log_det - settings.dim * math.log(settings.lam), 0.0)

    @property
    def prior_share(self) -> float:
        """tr(Σ⁻¹ λI)/d: the part of the shares that is still the prior's."""
        return self.model.settings.lam * float(np.trace(self.ridge.inverse)) / self.model.settings.dim

    def share(self, contribution: bytes | None) -> float:
        """tr(Σ⁻¹ Σ_a)/d of an agent's sum. With the prior's share, all agents' shares add to exactly 1."""
        if contribution is None:
            return 0.0
        dim = self.model.settings.dim
        packed = np.frombuffer(contribution, dtype="<f8", count=packed_length(dim))
        return float(self.weights @ packed) / dim

    def estimates(self, limit: int) -> list[Estimate]:
        """Coordinates of θ̂, those of largest magnitude first when there are more than `limit`, else in order."""
        theta, order = self.ridge.theta_hat, np.arange(self.model.settings.dim)
        if len(order) > limit:
            order = np.argsort(-np.abs(theta), kind="stable")[:limit]
        widths = np.sqrt(np.diagonal(self.ridge.inverse))
        beta = self.guarantee.beta
        return [Estimate(feature_name(self.model, int(i)), float(theta[i]), beta * float(widths[i])) for i in order]


@dataclass(frozen=True, slots=True)
class Pull:
    """How the estimate would differ without one agent: θ̂ − θ̂₋ₐ."""

    distance: float  # ‖θ̂ − θ̂₋ₐ‖_Σ, to be compared with β
    changes: list[Estimate]  # largest first; the half-width is that of the whole model


def feature_name(model: Model, i: int) -> str:
    """The name of a feature; a number where the model has no names."""
    features = model.settings.features
    return features[i] if features is not None else f"feature {i + 1}"


def picture_of(state: State) -> Picture:
    """Factorise a model's sums."""
    model = state.model
    ridge = RidgeModel(stats_from_bytes(state.packed, model.settings.dim))
    doubled = 2.0 * ridge.inverse
    np.fill_diagonal(doubled, np.diagonal(ridge.inverse))
    return Picture(model, ridge, assess(model, ridge), pack_symmetric(doubled))


def pull_of(picture: Picture, contribution: bytes, limit: int) -> Pull:
    """What one agent's data do to θ̂, by taking them out and fitting again."""
    stats = stats_from_bytes(contribution, picture.model.settings.dim)
    rest = without(picture.ridge.stats, stats, picture.model.settings.lam)
    change = picture.ridge.theta_hat - rest.theta_hat
    widths = picture.guarantee.beta * np.sqrt(np.diagonal(picture.ridge.inverse))
    order = np.argsort(-np.abs(change), kind="stable")[:limit]
    named = [Estimate(feature_name(picture.model, int(i)), float(change[i]), float(widths[i])) for i in order]
    return Pull(picture.ridge.distance(rest.theta_hat), named)


@dataclass(frozen=True, slots=True)
class Series:
    """A line of a chart; `append` says that a later look at it only adds points at the end."""

    x: list[float]
    y: list[float | None]
    append: bool = True


FEWEST = 20  # observations in a mean; of half as many it is drawn, of fewer it is noise
Totals = Sequence[tuple[float, float, float]]  # when, observations and reward sum so far


def lately(totals: Totals, *, fraction: float = 0.05, at_least: int = FEWEST) -> Series:
    """Mean reward of the last 5 % of observations at each moment: each point looks only at what came before it.

    Where the count falls (an agent was forgotten) the line begins anew.

    >>> lately([(1.0, 10, 5.0), (2.0, 40, 35.0)], at_least=20).y
    [0.5, 1.0]
    """
    x: list[float] = []
    y: list[float | None] = []
    history: list[tuple[float, float]] = [(0.0, 0.0)]
    first = 0  # the newest entry that is old enough
    for at, n, reward in totals:
        if n < history[-1][0]:
            history, first = [(n, reward)], 0
            x.append(at)
            y.append(None)
            continue
        limit = n - max(at_least, fraction * n)
        while first + 1 < len(history) and history[first + 1][0] <= limit:
            first += 1
        before_n, before_reward = history[first]
        history.append((n, reward))
        if n - before_n >= at_least / 2:
            x.append(at)
            y.append((reward - before_reward) / (n - before_n))
    return Series(x, y)


def series_of(samples: Sequence[Sample], model: Model) -> dict[str, Series]:
    """The lines of a model's charts."""
    prior = model.settings.dim * math.log(model.settings.lam)
    at = [sample.at for sample in samples]
    seen = [sample for sample in samples if sample.n_obs >= FEWEST / 2]
    return {
        "lately": lately([(sample.at, sample.n_obs, sample.reward_sum) for sample in samples]),
        "overall": Series([sample.at for sample in seen], [sample.reward_sum / sample.n_obs for sample in seen]),
        "exchanges": Series(at, [float(sample.n_uploads) for sample in samples]),
        "information": Series(at, [max(sample.log_det - prior, 0.0) for sample in samples]),
        "alpha": Series(at, [math.expm1(min(sample.growth, 700.0)) for sample in samples]),
    }
