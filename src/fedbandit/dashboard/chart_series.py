"""The lines of the charts: mean rewards, exchanges, information and effective alpha over time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedbandit.service.model import Model, alpha_of
from fedbandit.service.stores.base import AgentRecord, Sample


@dataclass(frozen=True, slots=True)
class ChartSeries:
    """A line of a chart; with `append` later versions only add points at the end."""

    x: list[float]
    y: list[float | None]
    append: bool = True


FEWEST = 20  # observations in a mean; it is drawn from half as many on
Totals = Sequence[tuple[float, float, float]]  # when, observations and reward sum so far


def mean_reward(totals: Model | AgentRecord) -> float | None:
    """Mean reward over all observations; None without any."""
    return totals.reward_sum / totals.n_obs if totals.n_obs else None


def recent_means(totals: Totals, *, fraction: float = 0.05, at_least: int = FEWEST) -> ChartSeries:
    """Mean reward of the last 5 % of observations at each moment: each point uses only earlier observations.

    Where the count falls (an agent was forgotten) the line restarts.

    >>> recent_means([(1.0, 10, 5.0), (2.0, 40, 35.0)], at_least=20).y
    [0.5, 1.0]
    """
    x: list[float] = []
    y: list[float | None] = []
    history: list[tuple[float, float]] = [(0.0, 0.0)]
    first = 0  # the newest entry at or before the limit
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
    return ChartSeries(x, y)


def series_of(samples: Sequence[Sample], model: Model) -> dict[str, ChartSeries]:
    """The lines of a model's charts."""
    prior = model.settings.dim * math.log(model.settings.lam)
    at = [sample.at for sample in samples]
    seen = [sample for sample in samples if sample.n_obs >= FEWEST / 2]
    return {
        "recent": recent_means([(sample.at, sample.n_obs, sample.reward_sum) for sample in samples]),
        "overall": ChartSeries([sample.at for sample in seen], [sample.reward_sum / sample.n_obs for sample in seen]),
        "exchanges": ChartSeries(at, [float(sample.n_uploads) for sample in samples]),
        "information": ChartSeries(at, [max(sample.log_det - prior, 0.0) for sample in samples]),
        "alpha": ChartSeries(at, [alpha_of(sample.growth) for sample in samples]),
    }
