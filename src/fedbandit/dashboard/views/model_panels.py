"""The tables of a model: confidence radius, estimates, shares of information, events."""

from __future__ import annotations

from collections.abc import Sequence

from fedbandit.core import radius as radii
from fedbandit.dashboard.components import (
    bar,
    empty_state,
    exports,
    number_cell,
    number_head,
    panel,
    table,
    url,
    when,
    whisker,
    word_link,
)
from fedbandit.dashboard.markup import Child, Html, as_json, tag
from fedbandit.service.formatting import count, number, percent, plural, setting
from fedbandit.service.insight import CoefficientInterval, LargestShares, ModelInsight
from fedbandit.service.stores.base import Event, FleetSummary

MAX_FEATURES = 15
KINDS = {
    "created": "model created",
    "widened": "arms added",
    "started_again": "process started again",
    "new_incarnation": "new incarnation",
    "noted": "note",
    "configured": "settings changed",
    "enrolled": "enrolled",
    "renewed": "token renewed",
    "revoked": "revoked",
    "quarantined": "in quarantine",
    "released": "released",
    "refused": "refused",
    "forgotten": "forgotten",
    "restored": "restored from a backup",
    "retired": "retired",
    "rewards_expired": "rewards expired",
    "unretired": "at work again",
    "pruned": "silent agents retired",
    "folded": "retired agents folded",
    "enrolment_created": "enrolment created",
    "enrolment_revoked": "enrolment revoked",
    "restarted": "model restarted",
}


def guarantee(insight: ModelInsight, fleet: FleetSummary) -> Html:
    """The radius in use, and the radius needed."""
    found, here = insight.guarantee, insight.model
    is_fixed = isinstance(here.settings.radius, radii.Fixed)
    facts = [
        ("β that agents use now", number(found.beta)),
        ("β estimated from the data" if is_fixed else "β for the buffers seen so far", number(found.beta_needed)),
        ("α of the model", setting(here.settings.alpha)),
        ("effective α, recent", number(here.effective_alpha)),
        ("effective α, largest ever", number(here.worst_alpha)),
    ]
    if found.noise is not None:
        facts.append(("noise, estimated", number(found.noise)))
    rows = [tag("div", tag("dt", name), tag("dd", value)) for name, value in facts]
    return panel(
        "Confidence radius",
        tag("p", found.explanation, class_="text"),
        _unseen(fleet),
        tag("dl", rows, class_="pairs"),
        word="beta",
    )


def _unseen(fleet: FleetSummary) -> Html | None:
    """How many agents sent nothing recently: their buffers may have grown, which the server cannot observe."""
    n_quiet = fleet.n_agents - fleet.n_active - fleet.n_revoked
    if n_quiet <= 0:
        return None
    text = f"{count(n_quiet)} of {plural(fleet.n_agents, 'agent')} sent no upload in the last 10 min. "
    return tag("p", text, "Their current buffers are not known to the server.", class_="text")


def theta(insight: ModelInsight) -> Html:
    """θ̂ by feature, with intervals."""
    dim = insight.model.settings.dim
    found = insight.intervals(insight.ridge.theta_hat, limit=MAX_FEATURES)
    note = "θ̂ with its interval at the β in use"
    if dim > MAX_FEATURES:
        note = f"the {MAX_FEATURES} largest of {count(dim)}, with intervals at the β in use"
    drawn = whiskers("Estimated weight of each feature", found)
    files = exports(insight.model.settings.name, "estimates")
    return panel("Estimates", drawn, note=note, word="estimate", files=files)


def whiskers(caption: str, found: Sequence[CoefficientInterval], *, unit: str = "θ̂") -> Html:
    """A table of values with intervals on a common scale."""
    low = min([0.0, *(item.value - item.half_width for item in found)])
    high = max([0.0, *(item.value + item.half_width for item in found)])
    rows = [
        [
            tag("th", item.feature, scope="row", class_="name"),
            tag("td", whisker(item.value, item.half_width, low, high, _spoken(item)), class_="drawn"),
            number_cell(number(item.value)),
            number_cell(tag("span", f"± {number(item.half_width, 2)}", class_="quiet"), wide_only=True),
        ]
        for item in found
    ]
    heads = [
        "Feature",
        tag("th", "from ", number(low, 2), " to ", number(high, 2), scope="col", class_="quiet"),
        number_head(unit),
        number_head("±", wide_only=True),
    ]
    return table(caption, heads, rows, class_="whiskers")


def _spoken(item: CoefficientInterval) -> str:
    return f"{number(item.value)}, plus or minus {number(item.half_width, 2)}"


def shares(insight: ModelInsight, found: LargestShares) -> Html:
    """The agents that contribute most to the model."""
    name = insight.model.settings.name
    ordered = [(agent, share) for agent, share in found.largest if share > 0]
    rest = 1.0 - insight.prior_share - sum(share for _, share in ordered)
    others = insight.model.n_agents - len(ordered)
    has_rest = others > 0 and rest > 1e-9
    most = max([insight.prior_share, rest if has_rest else 0.0, *(share for _, share in ordered)])
    rows: list[list[Child]] = [
        _share_row(tag("a", agent, href=url("models", name, "agents", agent)), share, most) for agent, share in ordered
    ]
    if has_rest:
        rows.append(_share_row(f"{count(others)} others together", rest, most))
    rows.append(_share_row(tag("span", "the prior λI", class_="quiet"), insight.prior_share, most))
    heads: list[Child] = ["Agent", tag("th", tag("span", "bar", class_="hidden"), scope="col"), number_head("Share")]
    note = None
    if found.n_compared < insight.model.n_agents:
        note = f"the largest among the {count(found.n_compared)} agents with most observations"
    listed = table("Share of information by agent", heads, rows, class_="shares")
    all_of_them = tag("a", "More agents, by share", href=url("models", name, "agents", sort="-share"))
    return panel(
        "Share of information",
        listed,
        tag("p", all_of_them, class_="text"),
        note=note,
        word="share",
        files=exports(name, "shares"),
    )


def _share_row(who: Child, share: float, most: float) -> list[Child]:
    head = tag("th", who, scope="row", class_="name")
    return [head, tag("td", bar(share, most, percent(share)), class_="drawn"), number_cell(percent(share))]


def events(model: str, found: Sequence[Event], *, all_of_them: bool = False) -> Html:
    """Events, newest first."""
    if not found:
        return panel("Events", empty_state("No events yet"), word="events")
    more = None if all_of_them else tag("p", tag("a", "All events", href=url("models", model, "events")), class_="text")
    listed = tag("ol", [_event(model, event) for event in found], class_="events")
    return panel("Events", listed, more, word="events", files=exports(model, "events", over_time=True))


WARNINGS = frozenset({"refused", "revoked", "quarantined", "restarted", "new_incarnation", "started_again", "restored"})
LINKED = {"new_incarnation": "incarnation", "started_again": "incarnation", "quarantined": "quarantine"}
LINKED |= {"restarted": "restart", "restored": "restore", "refused": "refused"}
MARKED = frozenset({"restarted", "restored", "started_again", "new_incarnation", "configured", "noted", "widened"})
MAX_MARKS = 100


def _event(model: str, event: Event) -> Html:
    who = tag("a", event.agent, href=url("models", model, "agents", event.agent)) if event.agent else None
    kind = tag("span", KINDS.get(event.kind, event.kind), class_="kind warn" if event.kind in WARNINGS else "kind")
    word = word_link(LINKED[event.kind]) if event.kind in LINKED else None
    detail = tag("span", event.detail, class_="detail") if event.detail else None
    return tag("li", tag("span", when(event.at), class_="at"), tag("span", who, " ", kind, " ", word), detail)


def marks(found: Sequence[Event]) -> Html:
    """The events that charts mark on their time axis."""
    marked = [
        [round(event.at, 2), f"{event.agent} {KINDS[event.kind]}".strip()] for event in found if event.kind in MARKED
    ]
    return tag("span", data_marks=as_json(marked[:MAX_MARKS]))
