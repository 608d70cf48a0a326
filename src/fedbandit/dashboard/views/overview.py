"""All models at a glance."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from fedbandit.dashboard.figures import Series, lately
from fedbandit.dashboard.frame import Frame, Pieces, empty, figure_cell, figure_head, table, tile, tiles, url
from fedbandit.dashboard.look import Look
from fedbandit.dashboard.markup import Html, join, tag
from fedbandit.dashboard.words import count, number, plural, setting, size, when
from fedbandit.service.model import Model
from fedbandit.service.stores.base import Sample

MAX_SPARKS = 40  # beyond these many models the little lines are left out
SPARK_POINTS = 60


async def overview(look: Look) -> Frame:
    """The front page."""
    models = await look.sources.models()
    pieces = Pieces()
    if not models:
        body = pieces.add("models", _no_models())
    else:
        names = [model.settings.name for model in models[:MAX_SPARKS]]
        samples = await asyncio.gather(*(look.sources.samples(name) for name in names))
        body = pieces.add("models", _totals(models), _table(models, dict(zip(names, samples, strict=True))))
    head = tag(
        "div",
        tag("h1", "Models"),
        tag("p", "Each model is one linear bandit that a fleet of agents learns together.", class_="lead"),
        class_="page-head",
    )
    return Frame("Models", join(head, body), pieces.found)


def _no_models() -> Html:
    command = "fedbandit models create news --dim 5 --beta 0.5"
    return empty(
        "There is no model yet",
        tag("p", "Create one, give an agent a token for it, and it shows up here by itself."),
        tag("pre", tag("code", command), tabindex=0),
        tag("p", "Or try the ", tag("a", "simulation", href="/simulation"), ": it needs no agents."),
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
        ),
    )


def _table(models: Sequence[Model], samples: dict[str, list[Sample]]) -> Html:
    heads = [
        "Model",
        figure_head("Mean reward"),
        tag("th", "lately, over time", scope="col", class_="wide-only"),
        figure_head("Observations", wide_only=True),
        figure_head("Exchanges", wide_only=True),
        figure_head("Agents", wide_only=True),
        tag("th", "Last change", scope="col"),
    ]
    rows = [_row(model, samples.get(model.settings.name, [])) for model in models]
    return table("Models and where they stand", heads, rows, class_="models")


def _row(model: Model, samples: list[Sample]) -> list[Html | str]:
    name = model.settings.name
    line = lately([(sample.at, sample.n_obs, sample.reward_sum) for sample in samples])
    about = f"{plural(model.settings.dim, 'feature')}, α = {setting(model.settings.alpha)}"
    return [
        tag("th", tag("a", name, href=url("models", name)), tag("span", about, class_="note"), scope="row"),
        figure_cell(number(model.reward_sum / model.n_obs if model.n_obs else None)),
        tag("td", _spark(line), class_="wide-only"),
        figure_cell(count(model.n_obs), wide_only=True),
        figure_cell(count(model.n_uploads), wide_only=True),
        figure_cell(count(model.n_agents), wide_only=True),
        tag("td", when(samples[-1].at if samples else None, "no data yet")),
    ]


def _spark(line: Series) -> Html | str:
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
