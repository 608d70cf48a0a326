"""All events of a model that are kept, newest first."""

from __future__ import annotations

from fedbandit.dashboard.components import LiveParts, RenderedView, breadcrumbs, url
from fedbandit.dashboard.data_sources import ViewContext
from fedbandit.dashboard.markup import Child, Html, join, tag
from fedbandit.dashboard.views import model_panels

MAX_SHOWN = 300


async def events(context: ViewContext) -> RenderedView:
    """The events of one model, of one kind if the query names it."""
    name, kind = context.path["model"], context.query.get("kind", "")
    await context.sources.insight(name)  # a model that does not exist has no events
    found = await context.sources.events(name)
    shown = [event for event in found if kind in ("", event.kind)][:MAX_SHOWN]
    parts = LiveParts()
    path = breadcrumbs(("Models", "/"), (name, url("models", name)), here="events")
    head = tag("div", path, tag("h1", "Events"), class_="view-head")
    kinds = parts.add("kinds", _kinds(name, kind, {event.kind for event in found}))
    listed = parts.add("events", model_panels.events(name, shown, all_of_them=True))
    return RenderedView(f"Events of {name}", join(head, kinds, listed), parts.found)


def _kinds(name: str, current: str, found: set[str]) -> Html:
    """Links to the events of one kind each."""
    items: list[Child] = [_kind(name, "", "all", current)]
    items += [_kind(name, kind, model_panels.KINDS.get(kind, kind), current) for kind in sorted(found)]
    return tag("nav", tag("ul", items, class_="choices"), aria_label="Kinds of events")


def _kind(name: str, kind: str, title: str, current: str) -> Html:
    options = {"kind": kind} if kind else {}
    link = tag(
        "a", title, href=url("models", name, "events", **options), aria_current="page" if kind == current else None
    )
    return tag("li", link)
