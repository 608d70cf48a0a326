"""All models in one table."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from fedbandit.dashboard.chart_series import ChartSeries, mean_reward, recent_means
from fedbandit.dashboard.components import (
    LiveParts,
    RenderedView,
    empty_state,
    number_cell,
    number_head,
    table,
    tile,
    tiles,
    url,
    when,
)
from fedbandit.dashboard.data_sources import ViewContext
from fedbandit.dashboard.markup import Html, join, tag
from fedbandit.service.formatting import count, number, plural, setting, size
from fedbandit.service.model import Model
from fedbandit.service.problems import ProblemReport
from fedbandit.service.stores.base import Sample

MAX_SPARKS = 40  # only this many models have a line
SPARK_POINTS = 60
MAX_PROBLEMS = 20  # of so many models the overview says whether something is wrong


async def overview(context: ViewContext) -> RenderedView:
    """The entry view."""
    models = await context.sources.models()
    parts = LiveParts()
    if not models:
        body = parts.add("models", _no_models())
    else:
        names = [model.settings.name for model in models[:MAX_SPARKS]]
        samples = await asyncio.gather(*(context.sources.samples(name) for name in names))
        reports = await asyncio.gather(*(context.sources.problems(name) for name in names[:MAX_PROBLEMS]))
        found = dict(zip(names, reports, strict=False))
        body = parts.add("models", _totals(models), _table(models, dict(zip(names, samples, strict=True)), found))
    head = tag(
        "div",
        tag("h1", "Models"),
        tag("p", "Each model is one linear bandit that a fleet of agents learns together.", class_="lead"),
        class_="view-head",
    )
    return RenderedView("Models", join(head, body), parts.found)


def _no_models() -> Html:
    command = "fedbandit models create news --dim 5 --beta 0.5"
    return empty_state(
        "There is no model yet",
        tag("p", "Create one and enrol an agent; it appears here when it is created."),
        tag("pre", tag("code", command), tabindex=0),
    )


def _totals(models: Sequence[Model]) -> Html:
    return tiles(
        tile("Models", count(len(models))),
        tile("Agents", count(sum(model.n_agents for model in models))),
        tile("Observations", count(sum(model.n_obs for model in models))),
        tile(
            "Exchanges",
            count(sum(model.n_uploads for model in models)),
            f"{size(sum(model.n_bytes for model in models))} received",
            f"raw rows: {size(sum(model.raw_bytes for model in models))}",
            word="bytes",
        ),
    )


def _table(models: Sequence[Model], samples: dict[str, list[Sample]], found: dict[str, ProblemReport]) -> Html:
    heads = [
        "Model",
        number_head("Mean reward"),
        tag("th", "recent, over time", scope="col", class_="wide-only"),
        number_head("Observations", wide_only=True),
        number_head("Exchanges", wide_only=True),
        number_head("Agents", wide_only=True),
        tag("th", "Now", scope="col"),
        tag("th", "Last change", scope="col"),
    ]
    rows = [_row(model, samples.get(model.settings.name, []), found.get(model.settings.name)) for model in models]
    return table("Models", heads, rows, class_="models")


def _row(model: Model, samples: list[Sample], problems: ProblemReport | None) -> list[Html | str]:
    name = model.settings.name
    line = recent_means([(sample.at, sample.n_obs, sample.reward_sum) for sample in samples])
    about = f"{plural(model.settings.dim, 'feature')}, α = {setting(model.settings.alpha)}"
    return [
        tag("th", tag("a", name, href=url("models", name)), tag("span", about, class_="note"), scope="row"),
        number_cell(number(mean_reward(model))),
        tag("td", _spark(line), class_="wide-only"),
        number_cell(count(model.n_obs), wide_only=True),
        number_cell(
            count(model.n_uploads), tag("span", f"{size(model.n_bytes)} received", class_="note"), wide_only=True
        ),
        number_cell(count(model.n_agents), wide_only=True),
        tag("td", _state(problems)),
        tag("td", when(samples[-1].at if samples else None, "no data yet")),
    ]


def _state(problems: ProblemReport | None) -> Html | str:
    """What is wrong with a model, in a few words."""
    if problems is None:
        return ""
    n_wrong = sum(problem.severity == "bad" for problem in problems.problems)
    n_warned = sum(problem.severity == "warn" for problem in problems.problems)
    found = [("bad", n_wrong, plural(n_wrong, "problem")), ("warn", n_warned, f"{count(n_warned)} to look at")]
    found.append(("warn", len(problems.missing), f"{count(len(problems.missing))} missing"))
    shown = [tag("span", words, class_=f"badge {state}") for state, n, words in found if n]
    return join(*shown) if shown else tag("span", "nothing wrong", class_="badge good")


def _spark(line: ChartSeries) -> Html | str:
    values = [y for y in line.y if y is not None]
    if len(values) < 2:
        return ""
    step = max(len(values) // SPARK_POINTS, 1)
    values = values[::-step][::-1]
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    points = " ".join(
        f"{100 * i / (len(values) - 1):.1f},{22 - 20 * (y - low) / span:.1f}" for i, y in enumerate(values)
    )
    label = f"mean reward from {number(values[0])} to {number(values[-1])}"
    shape = tag("polyline", points=points)
    return tag(
        "svg", shape, class_="spark", viewBox="0 0 100 24", preserveAspectRatio="none", role="img", aria_label=label
    )
