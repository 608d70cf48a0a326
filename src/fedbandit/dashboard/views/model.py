"""One model: mean reward, exchanges, information, guarantee, estimates, shares and events."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from typing import Any

from fedbandit.core import radius as radii
from fedbandit.dashboard.chart_series import ChartSeries, mean_reward, recent_means, series_of
from fedbandit.dashboard.components import (
    LiveParts,
    RenderedView,
    breadcrumbs,
    chart,
    empty_state,
    panel,
    tile,
    tiles,
    url,
    when,
)
from fedbandit.dashboard.data_sources import ViewContext
from fedbandit.dashboard.markup import Html, join, tag
from fedbandit.dashboard.views import model_panels
from fedbandit.errors import UnknownAgent
from fedbandit.service.formatting import count, number, percent, plural, setting, size
from fedbandit.service.insight import ModelInsight
from fedbandit.service.model import Model
from fedbandit.service.stores.base import AgentRecord, Event, FleetSummary, PageQuery

TOP_AGENTS = 10


async def model(context: ViewContext) -> RenderedView:
    """Everything about one model."""
    name, sources = context.path["model"], context.sources
    insight, samples, events, fleet, top = await asyncio.gather(
        sources.insight(name),
        sources.samples(name),
        sources.events(name),
        sources.fleet(name),
        sources.agents(name, PageQuery(per_page=TOP_AGENTS, sort="-n_obs")),
    )
    here = insight.model
    if not here.n_obs:
        return _without_data(insight, fleet, events)
    largest = await sources.largest_shares(insight, TOP_AGENTS)
    compared = await _compared(context, here)
    series = {**series_of(samples, here), **compared}
    parts = LiveParts()
    body = join(
        _head(here),
        parts.add("tiles", _tiles(insight, fleet, series["recent"])),
        tag(
            "div",
            _reward(here, list(compared), context.query.get("with", ""), top.agents),
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


def _without_data(insight: ModelInsight, fleet: FleetSummary, events: list[Event]) -> RenderedView:
    """A model before its first upload: the next step instead of charts."""
    name = insight.model.settings.name
    parts = LiveParts()
    if fleet.n_agents:
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
    body = join(_head(insight.model), tag("div", first, history, class_="grid"))
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
        f"α = {setting(settings.alpha)}",
        f"λ = {setting(settings.lam)}",
        radius_words(settings.radius),
    ]
    path = breadcrumbs(("Models", "/"), here=name)
    facts = [tag("li", word) for word in about]
    made = tag("li", "created ", when(here.created))
    agents = tag("a", "All agents", href=url("models", name, "agents"), class_="button")
    return tag("div", path, tag("h1", name), agents, tag("ul", facts, made, class_="facts"), class_="view-head")


def radius_words(radius: radii.AnyRadius) -> str:
    """The kind of a model's confidence radius."""
    if isinstance(radius, radii.Fixed):
        return f"fixed radius β = {setting(radius.beta)}"
    return f"{radius.kind} radius"


def _tiles(insight: ModelInsight, fleet: FleetSummary, recent: ChartSeries) -> Html:
    here, guarantee = insight.model, insight.guarantee
    name = here.settings.name
    last = next((y for y in reversed(recent.y) if y is not None), None)
    unsent = f"{count(fleet.unsent)} more unsent at {plural(fleet.n_with_unsent, 'agent')}"
    rate = f"1 per {number(here.n_obs / here.n_uploads, 2)} observations" if here.n_uploads else "none yet"
    active = f"{count(fleet.n_active)} active in the last 10 min"
    odd = [f"{count(fleet.n_silent)} never active"] if fleet.n_silent else []
    odd += [f"{count(fleet.n_revoked)} revoked"] if fleet.n_revoked else []
    odd += [f"{count(fleet.n_quarantined)} in quarantine"] if fleet.n_quarantined else []
    needed = guarantee.beta_needed if guarantee.verdict == "contradicted" else None
    is_short = needed is not None and needed > guarantee.beta
    alpha = f"the model's α is {setting(here.settings.alpha)}; up to {number(guarantee.normal_alpha, 2)} is normal"
    return tiles(
        tile("Recent mean reward", number(last), f"{number(mean_reward(here))} overall"),
        tile("Observations", count(here.n_obs), unsent if fleet.unsent else "none reported unsent"),
        tile("Exchanges", count(here.n_uploads), rate),
        tile("Agents", count(fleet.n_agents), active, *odd, href=url("models", name, "agents", sort="last_seen")),
        tile("Effective alpha", _alpha_number(here.effective_alpha), alpha),
        tile(
            "Guarantee",
            "none given" if guarantee.verdict == "none" else guarantee.verdict,
            f"β = {number(guarantee.beta)}" + (f", needs {number(needed)}" if is_short else ""),
            state="warn" if guarantee.verdict == "contradicted" else "",
        ),
    )


def _alpha_number(alpha: float) -> str:
    return "beyond 1,000,000" if alpha > 1e6 else number(alpha)


def _reward(here: Model, compared: list[str], asked: str, top: list[AgentRecord]) -> Html:
    lines: list[Mapping[str, str]] = [
        {"series": "recent", "name": "recent"},
        {"series": "overall", "name": "overall", "style": "thin"},
    ]
    if compared:
        lines.append({"series": "agent", "name": asked, "style": "other"})
    note = "Recent: over the last 5 % of all observations, at least 20."
    drawn = chart("reward", "Mean reward over time", lines, unit="reward per observation")
    return panel("Mean reward", drawn, _compare(here, asked, bool(compared), top), wide=True, note=note)


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


def _exchanges(parts: LiveParts, here: Model) -> Html:
    text = f"{size(here.n_bytes)} received in {plural(here.n_uploads, 'upload')}, about as much sent back."
    note = parts.add("bytes", text, element="p", class_="text")
    return _step_panel("Exchanges", note, "exchanges", "Exchanges over time", "exchanges", unit="exchanges so far")


def _information(parts: LiveParts, insight: ModelInsight) -> Html:
    rho, dim = insight.information, insight.model.settings.dim
    narrower = percent(1 - math.exp(-rho / (2 * dim)))
    text = f"{number(rho)} nats: on average intervals are {narrower} narrower than at the start."
    note = parts.add("information", text, element="p", class_="text")
    label, unit = "Growth of the log-determinant over time", "log det Σ − d log λ"
    return _step_panel("Information gained", note, "information", label, "log det", unit=unit)


def _alpha(insight: ModelInsight) -> Html:
    text = (
        "The largest determinant growth among the last 512 to 1,024 uploads. An upload includes the observation that "
        f"triggered it, which can raise the growth to {number(insight.guarantee.normal_alpha, 2)}; latency and "
        "outages raise it further."
    )
    rules = [{"y": insight.model.settings.alpha, "name": "the model's α"}]
    note, label = tag("p", text, class_="text"), "Effective alpha over time"
    return _step_panel("Effective alpha", note, "alpha", label, "largest growth", unit="α", rules=rules)


def _step_panel(title: str, note: Html, series: str, label: str, line: str, **options: Any) -> Html:
    """A panel with a chart of one step line from zero."""
    lines = [{"series": series, "name": line, "style": "step"}]
    return panel(title, note, chart(series, label, lines, zero=True, **options))
