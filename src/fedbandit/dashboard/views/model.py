"""One model: mean reward, exchanges, information, guarantee, estimates, shares and events."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from typing import Any

from fedbandit.algorithms.messages import n_bytes
from fedbandit.core import drift as drifts
from fedbandit.core import personal as personals
from fedbandit.core import radius as radii
from fedbandit.dashboard.chart_series import ChartSeries, recent_means, series_of
from fedbandit.dashboard.components import (
    LiveParts,
    RenderedView,
    breadcrumbs,
    chart,
    empty_state,
    exports,
    panel,
    time_ranges,
    url,
    when,
    word_link,
)
from fedbandit.dashboard.data_sources import ViewContext
from fedbandit.dashboard.markup import Html, join, tag
from fedbandit.dashboard.views import model_panels
from fedbandit.dashboard.views.assumption_panel import assumptions
from fedbandit.dashboard.views.gain_panel import gain_over_control
from fedbandit.dashboard.views.model_tiles import model_tiles
from fedbandit.dashboard.views.problem_panel import problems_now
from fedbandit.errors import UnknownAgent
from fedbandit.service.formatting import count, number, percent, plural, setting, size
from fedbandit.service.gain import measured
from fedbandit.service.insight import ModelInsight
from fedbandit.service.model import Model
from fedbandit.service.problems import ProblemReport
from fedbandit.service.stores.base import AgentRecord, Event, FleetSummary, PageQuery

TOP_AGENTS = 10


async def model(context: ViewContext) -> RenderedView:
    """Everything about one model."""
    name, sources = context.path["model"], context.sources
    report, problems, samples, events, fleet, top = await asyncio.gather(
        sources.report(name),
        sources.problems(name),
        sources.samples(name),
        sources.events(name),
        sources.fleet(name),
        sources.agents(name, PageQuery(per_page=TOP_AGENTS, sort="-n_obs")),
    )
    insight = report.insight
    here = insight.model
    if not here.n_obs:
        return _without_data(insight, fleet, events, problems)
    largest = await sources.largest_shares(insight, TOP_AGENTS)
    compared = await _compared(context, here)
    series = {**series_of(samples, here), **compared}
    parts = LiveParts()
    body = join(
        _head(here),
        parts.add("problems", problems_now(name, problems)),
        parts.add("tiles", model_tiles(report, fleet, series["recent"])),
        time_ranges(),
        parts.add("marks", model_panels.marks(events), hidden=True),
        tag(
            "div",
            _reward(here, list(compared), context.query.get("with", ""), top.agents),
            _gain(parts, here),
            parts.add("assumptions", assumptions(report), class_="cell wide"),
            _exchanges(parts, here),
            _information(parts, insight),
            tag("div", _alpha(insight), parts.add("shares", model_panels.shares(insight, largest)), class_="stack"),
            tag(
                "div",
                parts.add("guarantee", model_panels.guarantee(insight, fleet)),
                parts.add("theta", model_panels.theta(insight)),
                class_="stack",
            ),
            parts.add("events", model_panels.events(name, events[:12]), class_="cell wide"),
            class_="grid",
        ),
    )
    return RenderedView(name, body, parts.found, series, shape="full")


def _without_data(
    insight: ModelInsight, fleet: FleetSummary, events: list[Event], problems: ProblemReport
) -> RenderedView:
    """A model before its first upload: the next step instead of charts."""
    name = insight.model.settings.name
    parts = LiveParts()
    if insight.model.epoch:
        text = f"The model was restarted and is at its prior: epoch {insight.model.epoch} has no upload yet."
        steps = [tag("p", text), tag("p", f"{count(insight.model.clock)} observations were merged before.")]
    elif fleet.n_agents:
        text = f"{plural(fleet.n_agents, 'agent')} enrolled, no upload yet. The charts appear after the first one."
        steps = [tag("p", text)]
    else:
        steps = [
            tag("p", "Create a token for an agent, and connect it:"),
            tag("pre", tag("code", f"fedbandit agents add {name} shop-1"), tabindex=0),
            tag("p", "The charts appear after its first upload."),
        ]
    first = panel("No uploads yet", parts.add("first", empty_state("Nothing learnt yet", steps)), wide=True)
    history = parts.add("events", model_panels.events(name, events[:12]), class_="cell wide")
    now = parts.add("problems", problems_now(name, problems) if problems.problems or problems.missing else None)
    body = join(_head(insight.model), now, tag("div", first, history, class_="grid"))
    return RenderedView(name, body, parts.found, shape="empty")


async def _compared(context: ViewContext, here: Model) -> dict[str, ChartSeries]:
    """The line of the agent that the query names; nothing if there is no such agent."""
    agent = context.query.get("with", "")
    if not agent:
        return {}
    try:
        await context.sources.agent(here.settings.name, agent)
    except UnknownAgent:
        return {}
    line = recent_means(context.sources.agent_history(here, agent))
    return {"agent": ChartSeries(line.x, line.y, append=False)}


def _head(here: Model) -> Html:
    settings = here.settings
    name = settings.name
    about = [
        plural(settings.dim, "feature"),
        *([plural(settings.blocks, "arm")] if settings.blocks > 1 else []),
        f"α = {setting(settings.alpha)}",
        f"λ = {setting(settings.lam)}",
        radius_words(settings.radius),
        *([] if settings.personal is None else [personal_words(settings.personal)]),
        *time_words(here),
    ]
    path = breadcrumbs(("Models", "/"), here=name)
    facts = [tag("li", word) for word in about]
    made = tag("li", "created ", when(here.created))
    places = ["agents", "events", *(["arms"] if settings.blocks > 1 else [])]
    links = [tag("a", f"All {place}", href=url("models", name, place), class_="button") for place in places]
    buttons = tag("div", links, class_="buttons")
    return tag("div", path, tag("h1", name), buttons, tag("ul", facts, made, class_="facts"), class_="view-head")


def personal_words(personal: personals.Personal) -> str:
    """How much agents may differ."""
    return f"personal, κ = {setting(personal.kappa)}" if isinstance(personal, personals.Fixed) else "personal, κ chosen"


def time_words(here: Model) -> list[str]:
    """What a model does about a world that changes, and its epoch after a restart."""
    settings, words = here.settings, []
    if isinstance(settings.drift, drifts.Restart):
        words.append("restarts after a change")
    if isinstance(settings.drift, drifts.Discount):
        words.append(f"discounted, horizon {setting(settings.drift.horizon)}")
    if settings.max_silence_rounds is not None:
        words.append(f"silent for at most {plural(settings.max_silence_rounds, 'round')}")
    if settings.max_silence_s is not None:
        words.append(f"silent for at most {setting(settings.max_silence_s)} s")
    if here.epoch:
        words.append(f"epoch {here.epoch}")
    return words


def radius_words(radius: radii.AnyRadius) -> str:
    """The kind of a model's confidence radius."""
    if isinstance(radius, radii.Fixed):
        return f"fixed radius β = {setting(radius.beta)}"
    return f"{radius.kind} radius"


def _reward(here: Model, compared: list[str], asked: str, top: list[AgentRecord]) -> Html:
    lines: list[Mapping[str, str]] = [
        {"series": "recent", "name": "recent"},
        {"series": "overall", "name": "overall", "style": "thin"},
    ]
    if compared:
        lines.append({"series": "agent", "name": asked, "style": "other"})
    note = "Recent: over the last 5 % of all observations, at least 20."
    drawn = chart("reward", "Mean reward over time", lines, unit="reward per observation")
    compare, files = _compare(here, asked, bool(compared), top), exports(here.settings.name, "reward", over_time=True)
    return panel("Mean reward", drawn, compare, wide=True, note=note, word="reward", files=files)


def _compare(here: Model, asked: str, found: bool, top: list[AgentRecord]) -> Html:
    name = here.settings.name
    options = tag("datalist", [tag("option", value=agent.name) for agent in top], id="agent-names")
    text = None
    if asked and not found:
        text = tag("p", f"There is no agent named {asked}.", class_="problem", role="alert")
    elif asked:
        text = tag("a", f"Hide {asked}", href=url("models", name))
    field = tag("input", name="with", id="with", list="agent-names", value=asked, autocomplete="off", maxlength=200)
    label = tag("label", "Compare with an agent", for_="with")
    button = tag("button", "Show", type="submit")
    return tag("form", label, field, options, button, text, method="get", action=url("models", name), class_="inline")


def _gain(parts: LiveParts, here: Model) -> Html | None:
    if not here.settings.control:
        return None
    return parts.add("gain", gain_over_control(measured(here), here.settings.control), class_="cell wide")


def _exchanges(parts: LiveParts, here: Model) -> Html:
    settings = here.settings
    back = size(here.n_uploads * n_bytes(settings.dim, settings.blocks))
    text = (
        f"{size(here.n_bytes)} received in {plural(here.n_uploads, 'upload')}, at most {back} sent back. The raw rows "
        f"of {plural(here.n_seen, 'observation')}, sent once, would be {size(here.raw_bytes)}."
    )
    note = parts.add("bytes", text, word_link("bytes"), element="p", class_="text")
    files = exports(settings.name, "exchanges", over_time=True)
    label, unit = "Exchanges over time", "exchanges so far"
    return _step_panel("Exchanges", note, "exchanges", label, "exchanges", "exchange", files, unit=unit)


def _information(parts: LiveParts, insight: ModelInsight) -> Html:
    rho, dim = insight.information, insight.model.settings.dim
    narrower = percent(1 - math.exp(-rho / (2 * dim)))
    text = f"{number(rho)} nats: on average intervals are {narrower} narrower than at the start."
    note = parts.add("information", text, element="p", class_="text")
    label, unit = "Growth of the log-determinant over time", "log det Σ − d log λ"
    files = exports(insight.model.settings.name, "information", over_time=True)
    return _step_panel("Information gained", note, "information", label, "log det", "information", files, unit=unit)


def _alpha(insight: ModelInsight) -> Html:
    text = (
        "The largest determinant growth among the last 512 to 1,024 uploads. An upload includes the observation that "
        f"triggered it, which can raise the growth to {number(insight.guarantee.normal_alpha, 2)}; latency and "
        "outages raise it further."
    )
    rules = [{"y": insight.model.settings.alpha, "name": "the model's α"}]
    note, label = tag("p", text, class_="text"), "Effective alpha over time"
    files = exports(insight.model.settings.name, "alpha", over_time=True)
    return _step_panel("Effective alpha", note, "alpha", label, "largest growth", "alpha", files, unit="α", rules=rules)


def _step_panel(
    title: str, note: Html, series: str, label: str, line: str, word: str, files: Html, **options: Any
) -> Html:
    """A panel with a chart of one step line from zero."""
    lines = [{"series": series, "name": line, "style": "step"}]
    return panel(title, note, chart(series, label, lines, zero=True, **options), word=word, files=files)
