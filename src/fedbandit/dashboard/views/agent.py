"""One agent: when it was heard of, and what its data do to the model."""

from __future__ import annotations

import asyncio

from fedbandit.dashboard.figures import Picture, Pull, Series, lately, pull_of, series_of
from fedbandit.dashboard.frame import Frame, Pieces, chart, crumbs, empty, panel, tile, tiles, url
from fedbandit.dashboard.look import Look
from fedbandit.dashboard.markup import Child, Html, join, tag
from fedbandit.dashboard.views import model_panels
from fedbandit.dashboard.words import NOTHING, count, number, percent, plural, size, when
from fedbandit.service.model import Model, alpha_of
from fedbandit.service.stores.base import Agent

MAX_FEATURES = 12


async def agent(look: Look) -> Frame:
    """The page of one agent."""
    name, who, sources = look.path["model"], look.path["agent"], look.sources
    here, picture, events, samples = await asyncio.gather(
        sources.agent(name, who), sources.picture(name), sources.events(name), sources.samples(name)
    )
    total = await sources.contribution(name, who) if here.n_uploads else None
    pull = None if total is None else await asyncio.to_thread(pull_of, picture, total, MAX_FEATURES)
    line = lately(sources.trail(picture.model, who))
    series = {
        "agent": Series(line.x, line.y, append=False),
        "fleet": series_of(samples, picture.model)["lately"],
    }
    pieces = Pieces()
    body = join(
        _head(name, here),
        pieces.add("tiles", _tiles(picture, here, picture.share(total))),
        tag(
            "div",
            _reward(here, bool(line.x)),
            tag(
                "div",
                pieces.add("identity", _identity(picture.model, here)),
                pieces.add("events", model_panels.events(name, [event for event in events if event.agent == who][:12])),
                class_="stack",
            ),
            pieces.add("pull", _pull(picture, here, pull), class_="cell"),
            class_="grid",
        ),
    )
    return Frame(f"{who} in {name}", body, pieces.found, series, shape="with-trail" if line.x else "without-trail")


def _head(name: str, here: Agent) -> Html:
    everybody = url("models", name, "agents")
    path = crumbs(("Models", "/"), (name, url("models", name)), ("agents", everybody), here=here.name)
    return tag("div", path, tag("h1", here.name), class_="page-head")


def _tiles(picture: Picture, here: Agent, share: float) -> Html:
    model = picture.model
    mean = here.reward_sum / here.n_obs if here.n_obs else None
    fleet = model.reward_sum / model.n_obs if model.n_obs else None
    behind = model.version - here.model_version
    stale = f"{plural(behind, 'change')} behind at its last upload" if here.n_uploads else "no upload yet"
    state = "revoked, its contribution stays" if here.revoked else stale
    return tiles(
        tile("Last seen", when(here.last_seen), state, state="warn" if here.revoked else ""),
        tile("Share of information", percent(share), _fair(share, model.n_agents)),
        tile("Mean reward", number(mean), f"the fleet's is {number(fleet)}"),
        tile("Observations", count(here.n_obs), f"{count(here.waiting)} more waiting, as reported"),
        tile("Uploads", count(here.n_uploads), size(here.n_bytes)),
    )


def _fair(share: float, n_agents: int) -> str:
    if n_agents < 2 or share <= 0:
        return f"of {plural(n_agents, 'agent')}"
    return f"{number(share * n_agents, 2)} times an even share"


def _reward(here: Agent, has_trail: bool) -> Html:
    if not has_trail:
        told: Child = "Its uploads are recorded from the server's last start on, and there was none since."
        return panel("Mean reward", empty("No recent uploads", tag("p", told)), wide=True)
    lines = [
        {"series": "agent", "name": here.name},
        {"series": "fleet", "name": "the fleet", "style": "thin"},
    ]
    drawn = chart("reward", f"Mean reward of {here.name} over time", lines, unit="reward per observation")
    note = "Over the last 5 % of its observations, since the server's last start."
    return panel("Mean reward", drawn, wide=True, note=note)


def _identity(model: Model, here: Agent) -> Html:
    facts: list[tuple[str, Child]] = [
        ("enrolled", when(here.created)),
        ("last seen", when(here.last_seen)),
        ("incarnation", tag("code", here.incarnation) if here.incarnation else NOTHING),
        ("sequence", count(here.sequence)),
        ("decides on model version", f"{count(here.model_version)} of {count(model.version)}"),
        ("growth at its last upload, as α", number(alpha_of(here.growth)) if here.n_uploads else NOTHING),
        ("largest growth ever, as α", number(alpha_of(here.growth_most)) if here.n_uploads else NOTHING),
    ]
    rows = [tag("div", tag("dt", name), tag("dd", value)) for name, value in facts]
    return panel("Identity and sequence", tag("dl", rows, class_="pairs"))


def _pull(picture: Picture, here: Agent, pull: Pull | None) -> Html:
    title = "Its pull on the estimate"
    if pull is None:
        return panel(title, empty("It has contributed nothing yet"))
    beta = picture.guarantee.beta
    compared = f", {percent(pull.distance / beta)} of the radius β = {number(beta)}" if beta else ""
    told = [
        f"Without its data θ̂ would move by {number(pull.distance)} in the model's own metric ‖·‖",
        tag("sub", "Σ"),
        f"{compared}. By feature, largest first, beside the model's own interval:",
    ]
    drawn = model_panels.whiskers("Change of each weight by this agent", pull.changes, unit="change")
    return panel(title, tag("p", told, class_="told"), drawn)
