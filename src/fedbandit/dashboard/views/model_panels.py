"""The tables of a model's page: guarantee, estimates, shares of information, events."""

from __future__ import annotations

from collections.abc import Sequence

from fedbandit.dashboard.figures import Estimate, Picture
from fedbandit.dashboard.frame import bar, empty, figure_cell, figure_head, panel, table, url, whisker
from fedbandit.dashboard.markup import Child, Html, tag
from fedbandit.dashboard.words import count, number, percent, setting, when
from fedbandit.service.stores.base import Event

MAX_FEATURES = 15
WORDS = {"holds": "It holds", "stretched": "It is stretched", "none": "No promise"}
KINDS = {
    "created": "model created",
    "joined": "joined",
    "revoked": "revoked",
    "refused": "refused",
    "forgotten": "forgotten",
}


def guarantee(picture: Picture) -> Html:
    """What the radius is, what it would have to be, and why."""
    found, here = picture.guarantee, picture.model
    facts = [
        ("β that agents use now", number(found.beta)),
        ("β that would cover θ now", number(found.needed)),
        ("α of the model", setting(here.settings.alpha)),
        ("effective α, lately", number(here.effective_alpha)),
        ("effective α, worst ever", number(here.worst_alpha)),
    ]
    if found.noise is not None:
        facts.append(("noise, estimated", number(found.noise)))
    rows = [tag("div", tag("dt", name), tag("dd", value)) for name, value in facts]
    state = {"holds": "good", "stretched": "warn", "none": ""}[found.verdict]
    badge = tag("p", WORDS[found.verdict], class_=f"badge {state}".strip())
    return panel("Guarantee", badge, tag("p", found.sentence, class_="told"), tag("dl", rows, class_="pairs"))


def theta(picture: Picture) -> Html:
    """θ̂ by feature, with intervals."""
    dim = picture.model.settings.dim
    if not picture.model.n_obs:
        return panel("Estimates", empty("Nothing learnt yet", tag("p", "The first upload brings the first estimates.")))
    found = picture.estimates(MAX_FEATURES)
    note = "θ̂ with its interval at the β in use"
    if dim > MAX_FEATURES:
        note = f"the {MAX_FEATURES} largest of {count(dim)}, with intervals at the β in use"
    return panel("Estimates", whiskers("Estimated weight of each feature", found), note=note)


def whiskers(caption: str, found: Sequence[Estimate], *, unit: str = "θ̂") -> Html:
    """A table of values with intervals on a common scale."""
    low = min([0.0, *(item.value - item.half_width for item in found)])
    high = max([0.0, *(item.value + item.half_width for item in found)])
    rows = [
        [
            tag("th", item.feature, scope="row", class_="name"),
            tag("td", whisker(item.value, item.half_width, low, high, _spoken(item)), class_="drawn"),
            figure_cell(number(item.value)),
            figure_cell(tag("span", f"± {number(item.half_width, 2)}", class_="quiet"), wide_only=True),
        ]
        for item in found
    ]
    heads = [
        "Feature",
        tag("th", "from ", number(low, 2), " to ", number(high, 2), scope="col", class_="quiet"),
        figure_head(unit),
        figure_head("±", wide_only=True),
    ]
    return table(caption, heads, rows, class_="whiskers")


def _spoken(item: Estimate) -> str:
    return f"{number(item.value)}, plus or minus {number(item.half_width, 2)}"


def shares(picture: Picture, found: dict[str, float]) -> Html:
    """Whose data the model rests on."""
    name = picture.model.settings.name
    if not picture.model.n_obs:
        return panel("Share of information", empty("No contributions yet"))
    ordered = sorted(found.items(), key=lambda item: (-item[1], item[0]))
    ordered = [(agent, share) for agent, share in ordered if share > 0]
    most = max((share for _, share in ordered), default=0.0)
    rows: list[list[Child]] = [
        _share_row(tag("a", agent, href=url("models", name, "agents", agent)), share, most) for agent, share in ordered
    ]
    rest = 1.0 - picture.prior_share - sum(share for _, share in ordered)
    others = picture.model.n_agents - len(ordered)
    if others > 0 and rest > 1e-9:
        rows.append(_share_row(f"{count(others)} others together", rest, most))
    rows.append(_share_row(tag("span", "the prior λI", class_="quiet"), picture.prior_share, most))
    heads: list[Child] = ["Agent", tag("th", tag("span", "bar", class_="hidden"), scope="col"), figure_head("Share")]
    why = tag(
        "details",
        tag("summary", "What is a share?"),
        tag(
            "p",
            "tr(Σ⁻¹Σₐ)/d, the part of the model's precision that an agent's data Σₐ bring, averaged over directions. "
            "The shares of all agents and of the prior add up to exactly 100 %.",
        ),
    )
    return panel("Share of information", table("Share of information by agent", heads, rows, class_="shares"), why)


def _share_row(who: Child, share: float, most: float) -> list[Child]:
    head = tag("th", who, scope="row", class_="name")
    return [head, tag("td", bar(share, most, percent(share)), class_="drawn"), figure_cell(percent(share))]


def events(model: str, found: Sequence[Event]) -> Html:
    """What happened lately."""
    if not found:
        return panel("Events", empty("Nothing happened yet"))
    return panel("Events", tag("ol", [_event(model, event) for event in found], class_="events"))


def _event(model: str, event: Event) -> Html:
    who = tag("a", event.agent, href=url("models", model, "agents", event.agent)) if event.agent else None
    state = {"refused": "warn", "revoked": "warn"}.get(event.kind, "")
    kind = tag("span", KINDS.get(event.kind, event.kind), class_=f"kind {state}".strip())
    detail = tag("span", event.detail, class_="detail") if event.detail else None
    return tag("li", tag("span", when(event.at), class_="at"), tag("span", who, " ", kind), detail)
