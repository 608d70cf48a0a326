"""One model: does the fleet learn, who is missing, does the guarantee hold."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping

from fedbandit.core import radius as radii
from fedbandit.dashboard.figures import Picture, Series, lately, series_of
from fedbandit.dashboard.frame import Frame, Pieces, chart, crumbs, empty, panel, tile, tiles, url
from fedbandit.dashboard.look import Look
from fedbandit.dashboard.markup import Html, join, tag
from fedbandit.dashboard.views import model_panels
from fedbandit.dashboard.words import count, number, percent, plural, setting, size, when
from fedbandit.errors import UnknownAgent
from fedbandit.service.model import Model
from fedbandit.service.stores.base import Agent, Event, Fleet, PageQuery

TOP_AGENTS = 10
VERDICTS = {"holds": "good", "stretched": "warn", "none": ""}


async def model(look: Look) -> Frame:
    """The page of one model."""
    name, sources = look.path["model"], look.sources
    picture, samples, events, fleet, top = await asyncio.gather(
        sources.picture(name),
        sources.samples(name),
        sources.events(name),
        sources.fleet(name),
        sources.agents(name, PageQuery(per_page=TOP_AGENTS, sort="-n_obs")),
    )
    here = picture.model
    if not here.n_obs:
        return _waiting(picture, fleet, events)
    shares = await sources.shares(picture, top.agents)
    compared = await _compared(look, here)
    series = {**series_of(samples, here), **compared}
    pieces = Pieces()
    body = join(
        _head(here),
        pieces.add("tiles", _tiles(picture, fleet, series["lately"])),
        tag(
            "div",
            _reward(here, list(compared), look.query.get("with", ""), top.agents),
            _exchanges(pieces, here),
            _information(pieces, picture),
            _alpha(picture),
            pieces.add("guarantee", model_panels.guarantee(picture), class_="cell"),
            pieces.add("theta", model_panels.theta(picture), class_="cell"),
            pieces.add("shares", model_panels.shares(picture, shares), class_="cell"),
            pieces.add("events", model_panels.events(name, events[:12]), class_="cell wide"),
            class_="grid",
        ),
    )
    return Frame(name, body, pieces.found, series, shape="full")


def _waiting(picture: Picture, fleet: Fleet, events: list[Event]) -> Frame:
    """Before the first upload there is nothing to draw; what to do next stands here instead."""
    name = picture.model.settings.name
    pieces = Pieces()
    if fleet.n_agents:
        told = f"{plural(fleet.n_agents, 'agent')} may upload, and none has done so yet. The page changes by itself."
        steps = [tag("p", told)]
    else:
        steps = [
            tag("p", "Give an agent a token for this model, and connect it:"),
            tag("pre", tag("code", f"fedbandit agents add {name} shop-1"), tabindex=0),
            tag("p", "Its first upload makes the charts appear here."),
        ]
    first = panel("Waiting for the first upload", pieces.add("first", empty("Nothing learnt yet", steps)), wide=True)
    happened = pieces.add("events", model_panels.events(name, events[:12]), class_="cell wide")
    body = join(_head(picture.model), tag("div", first, happened, class_="grid"))
    return Frame(name, body, pieces.found, shape="empty")


async def _compared(look: Look, here: Model) -> dict[str, Series]:
    """The line of an agent that was asked for by name; a name that does not exist gives an empty one."""
    agent = look.query.get("with", "")
    if not agent:
        return {}
    try:
        await look.sources.agent(here.settings.name, agent)
    except UnknownAgent:
        return {}
    line = lately(look.sources.trail(here, agent))
    return {"agent": Series(line.x, line.y, append=False)}


def _head(here: Model) -> Html:
    settings = here.settings
    name = settings.name
    about = [
        plural(settings.dim, "feature"),
        f"α = {setting(settings.alpha)}",
        f"λ = {setting(settings.lam)}",
        radius_words(settings.radius),
    ]
    path = crumbs(("Models", "/"), here=name)
    facts = [tag("li", word) for word in about]
    made = tag("li", "created ", when(here.created))
    agents = tag("a", "All agents", href=url("models", name, "agents"), class_="button")
    return tag("div", path, tag("h1", name), agents, tag("ul", facts, made, class_="facts"), class_="page-head")


def radius_words(radius: radii.AnyRadius) -> str:
    """What kind of confidence radius a model has."""
    if isinstance(radius, radii.Fixed):
        return f"fixed radius β = {setting(radius.beta)}"
    return f"{radius.kind} radius"


def _tiles(picture: Picture, fleet: Fleet, recent: Series) -> Html:
    here, guarantee = picture.model, picture.guarantee
    name = here.settings.name
    mean = here.reward_sum / here.n_obs if here.n_obs else None
    last = next((y for y in reversed(recent.y) if y is not None), None)
    waiting = f"{count(fleet.waiting)} more waiting at {plural(fleet.n_waiting, 'agent')}"
    rate = f"1 per {number(here.n_obs / here.n_uploads, 2)} observations" if here.n_uploads else "none yet"
    active = f"{count(fleet.n_active)} heard of in the last 10 min"
    odd = [f"{count(fleet.n_silent)} never heard of"] if fleet.n_silent else []
    odd += [f"{count(fleet.n_revoked)} revoked"] if fleet.n_revoked else []
    stretched = guarantee.verdict == "stretched"
    alpha = f"the model's is {setting(here.settings.alpha)}; up to {number(guarantee.normal_alpha, 2)} is normal"
    return tiles(
        tile("Mean reward lately", number(last), f"{number(mean)} since the beginning"),
        tile("Observations", count(here.n_obs), waiting if fleet.waiting else "none reported waiting"),
        tile("Exchanges", count(here.n_uploads), rate),
        tile("Agents", count(fleet.n_agents), active, *odd, href=url("models", name, "agents", sort="last_seen")),
        tile("Effective alpha", _alpha_number(here.effective_alpha), alpha),
        tile(
            "Guarantee",
            guarantee.headline,
            f"β = {number(guarantee.beta)}" + (f", needs {number(guarantee.needed)}" if stretched else ""),
            state=VERDICTS[guarantee.verdict],
        ),
    )


def _alpha_number(alpha: float) -> str:
    return "beyond 1,000,000" if alpha > 1e6 else number(alpha)


def _reward(here: Model, compared: list[str], asked: str, top: list[Agent]) -> Html:
    lines: list[Mapping[str, str]] = [
        {"series": "lately", "name": "lately"},
        {"series": "overall", "name": "since the beginning", "style": "thin"},
    ]
    if compared:
        lines.append({"series": "agent", "name": asked, "style": "other"})
    note = "Lately means over the last 5 % of all observations, 20 at least."
    drawn = chart("reward", "Mean reward over time", lines, unit="reward per observation")
    return panel("Mean reward", drawn, _compare(here, asked, bool(compared), top), wide=True, note=note)


def _compare(here: Model, asked: str, found: bool, top: list[Agent]) -> Html:
    name = here.settings.name
    options = tag("datalist", [tag("option", value=agent.name) for agent in top], id="agent-names")
    told = None
    if asked and not found:
        told = tag("p", f"There is no agent named {asked}.", class_="problem", role="alert")
    elif asked:
        told = tag("a", f"Leave {asked} out", href=url("models", name))
    field = tag("input", name="with", id="with", list="agent-names", value=asked, autocomplete="off", maxlength=200)
    label = tag("label", "Compare with an agent", for_="with")
    button = tag("button", "Show", type="submit")
    return tag("form", label, field, options, button, told, method="get", action=url("models", name), class_="inline")


def _exchanges(pieces: Pieces, here: Model) -> Html:
    drawn = chart(
        "exchanges",
        "Exchanges over time",
        [{"series": "exchanges", "name": "exchanges", "style": "step"}],
        unit="exchanges so far",
        zero=True,
    )
    told = f"{size(here.n_bytes)} received in {plural(here.n_uploads, 'upload')}, about as much sent back."
    return panel("Exchanges", pieces.add("bytes", told, element="p", class_="told"), drawn)


def _information(pieces: Pieces, picture: Picture) -> Html:
    drawn = chart(
        "information",
        "Growth of the log-determinant over time",
        [{"series": "information", "name": "log det", "style": "step"}],
        unit="log det Σ − d log λ",
        zero=True,
    )
    rho, dim = picture.information, picture.model.settings.dim
    narrower = percent(1 - math.exp(-rho / (2 * dim)))
    told = f"{number(rho)} nats: on average intervals are {narrower} narrower than at the beginning."
    return panel("What the data have taught", pieces.add("learnt", told, element="p", class_="told"), drawn)


def _alpha(picture: Picture) -> Html:
    here = picture.model
    drawn = chart(
        "alpha",
        "Effective alpha over time",
        [{"series": "alpha", "name": "largest growth", "style": "step"}],
        unit="α",
        zero=True,
        rules=[{"y": here.settings.alpha, "name": "the model's α"}],
    )
    told = (
        "The largest determinant growth among the last 512 to 1,024 uploads. An upload holds the observation that "
        f"set it off, which can lift it to {number(picture.guarantee.normal_alpha, 2)}; latency and outages push it "
        "further."
    )
    return panel("Effective alpha", tag("p", told, class_="told"), drawn)
