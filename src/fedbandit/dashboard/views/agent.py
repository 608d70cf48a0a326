"""One agent: when it was last seen, its totals, and its influence on the model."""

from __future__ import annotations

import asyncio

from fedbandit.core import personal as personals
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
    time_ranges,
    url,
    when,
    word_link,
)
from fedbandit.dashboard.data_sources import ACTIVE_S, ViewContext
from fedbandit.dashboard.markup import Child, Html, join, tag
from fedbandit.dashboard.views import model_panels
from fedbandit.service.formatting import NOTHING, count, number, percent, plural, size
from fedbandit.service.insight import Influence, ModelInsight
from fedbandit.service.model import Model, alpha_of, raw_bytes
from fedbandit.service.rhythm import Rhythm
from fedbandit.service.stores.base import AgentRecord

MAX_FEATURES = 12


async def agent(context: ViewContext) -> RenderedView:
    """Everything about one agent."""
    name, who, sources = context.path["model"], context.path["agent"], context.sources
    here, insight, events, samples = await asyncio.gather(
        sources.agent(name, who), sources.insight(name), sources.events(name), sources.samples(name)
    )
    total = await sources.contribution(name, here)
    rhythm, kappas = await asyncio.gather(sources.rhythm(insight.model, who), sources.kappas(insight, [here]))
    now = sources.container.clock()
    influence = None if total is None else await asyncio.to_thread(insight.influence, total)
    line = recent_means(sources.agent_history(insight.model, who))
    series = {
        "agent": ChartSeries(line.x, line.y, append=False),
        "fleet": series_of(samples, insight.model)["recent"],
    }
    parts = LiveParts()
    body = join(
        _head(name, here),
        parts.add("tiles", _tiles(insight, here, insight.share(total)), _next_upload(insight.model, here, rhythm, now)),
        time_ranges() if line.x else None,
        parts.add("marks", model_panels.marks([event for event in events if event.agent == who]), hidden=True),
        tag(
            "div",
            _reward(here, bool(line.x)),
            tag(
                "div",
                parts.add("identity", _identity(insight.model, here, kappas.get(who))),
                parts.add("events", model_panels.events(name, [event for event in events if event.agent == who][:12])),
                class_="stack",
            ),
            parts.add("influence", _influence(insight, here, influence), class_="cell"),
            class_="grid",
        ),
    )
    return RenderedView(
        f"{who} in {name}", body, parts.found, series, shape="with-history" if line.x else "without-history"
    )


def _head(name: str, here: AgentRecord) -> Html:
    agents = url("models", name, "agents")
    path = breadcrumbs(("Models", "/"), (name, url("models", name)), ("agents", agents), here=here.name)
    return tag("div", path, tag("h1", here.name), class_="view-head")


def _tiles(insight: ModelInsight, here: AgentRecord, share: float) -> Html:
    model = insight.model
    behind = model.version - here.model_version
    stale = f"{plural(behind, 'change')} behind at its last upload" if here.n_uploads else "no upload yet"
    ended = "revoked" if here.retired is None else "retired"
    state = f"{ended}, its contribution stays" if here.revoked else stale
    if here.quarantined:
        state = "in quarantine, its contribution is not in the model"
    discarded = [f"{count(here.n_discarded)} discarded"] if here.n_discarded else []
    return tiles(
        tile(
            "Last seen",
            when(here.last_seen),
            state,
            state="warn" if here.revoked or here.quarantined else "",
            word="seen",
        ),
        tile("Share of information", percent(share), _fair(share, model.n_agents), word="share"),
        tile("Mean reward", number(mean_reward(here)), f"the fleet's is {number(mean_reward(model))}"),
        tile("Observations", count(here.n_obs), f"{count(here.unsent)} more unsent, as reported", *discarded),
        tile("Uploads", count(here.n_uploads), f"{size(here.n_bytes)}; raw rows: {_raw(model, here)}", word="bytes"),
    )


def _raw(model: Model, here: AgentRecord) -> str:
    return size(raw_bytes(model.settings, here.n_obs + here.n_discarded))


def _next_upload(model: Model, here: AgentRecord, rhythm: Rhythm, now: float) -> Html | None:
    """When the next upload is expected, and why it may take long."""
    if here.revoked or not here.n_uploads:
        return None
    is_active = here.last_seen is not None and now - here.last_seen <= ACTIVE_S
    words = rhythm.words(now)
    if rhythm.is_overdue(now) and is_active:
        words = "later than usual, and the agent is in contact: it has fewer decisions, or its rewards are late"
    why = " Uploads become rarer as the model grows." if rhythm.share is not None else ""
    text = [tag("strong", f"Next upload: {words}. "), rhythm.reason(model.n_obs), why, " ", word_link("next-upload")]
    return tag("p", text, class_="text")


def _fair(share: float, n_agents: int) -> str:
    if n_agents < 2 or share <= 0:
        return f"of {plural(n_agents, 'agent')}"
    return f"{number(share * n_agents, 2)} times an even share"


def _reward(here: AgentRecord, has_history: bool) -> Html:
    if not has_history:
        text: Child = "Uploads are recorded from the server's last start on; there were none since."
        return panel("Mean reward", empty_state("No recent uploads", tag("p", text)), wide=True)
    lines = [
        {"series": "agent", "name": here.name},
        {"series": "fleet", "name": "the fleet", "style": "thin"},
    ]
    drawn = chart("reward", f"Mean reward of {here.name} over time", lines, unit="reward per observation")
    note = "Over the last 5 % of its observations, since the server's last start."
    return panel("Mean reward", drawn, wide=True, note=note, word="reward")


def _identity(model: Model, here: AgentRecord, kappa: float | None) -> Html:
    facts: list[tuple[str, Child]] = [
        ("enrolled", when(here.created)),
        ("last seen", when(here.last_seen)),
        ("incarnation", tag("code", here.incarnation) if here.incarnation else NOTHING),
        ("sequence", count(here.sequence)),
        ("decides on model version", f"{count(here.model_version)} of {count(model.version)}"),
        ("growth at its last upload, as α", number(alpha_of(here.growth)) if here.n_uploads else NOTHING),
        ("largest growth ever, as α", number(alpha_of(here.growth_most)) if here.n_uploads else NOTHING),
    ]
    if model.settings.control:
        for name, sums in (("control", here.groups.control), ("treatment", here.groups.treatment)):
            facts.append((f"rewards in {name}", f"{count(sums.n_obs)}, mean {number(sums.mean)}"))
    if model.settings.personal is not None:
        is_chosen = isinstance(model.settings.personal, personals.Auto)
        name = "κ that its merged data give (the agent decides)" if is_chosen else "κ of the model"
        facts.append((name, number(kappa, 2) if kappa is not None else "decided by the agent"))
    rows = [tag("div", tag("dt", name), tag("dd", value)) for name, value in facts]
    return panel("Identity and sequence", tag("dl", rows, class_="pairs"), word="incarnation")


def _influence(insight: ModelInsight, here: AgentRecord, influence: Influence | None) -> Html:
    title = "Influence on the estimate"
    if influence is None:
        none = "Its contribution is not in the model" if here.quarantined else "No contribution yet"
        return panel(title, empty_state(none))
    beta = influence.beta
    compared = f", {percent(influence.shift / beta)} of the radius β = {number(beta)}" if beta else ""
    text = [
        f"Without its data θ̂ would move by {number(influence.shift)} in the model's own metric ‖·‖",
        tag("sub", "Σ"),
        f"{compared}. By feature, largest first, beside the model's own interval:",
    ]
    changes = insight.intervals(influence.change, limit=MAX_FEATURES, sort=True)
    drawn = model_panels.whiskers("Change of each weight by this agent", changes, unit="change")
    return panel(title, tag("p", text, class_="text"), drawn, word="influence")
