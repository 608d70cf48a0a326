"""The agents of a model: paged, sorted and searched on the server, so that the view stays fast with many agents."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping

from fedbandit.dashboard.chart_series import mean_reward
from fedbandit.dashboard.components import (
    LiveParts,
    RenderedView,
    bar,
    breadcrumbs,
    empty_state,
    number_cell,
    table,
    url,
    when,
)
from fedbandit.dashboard.data_sources import ViewContext
from fedbandit.dashboard.markup import Child, Html, join, tag
from fedbandit.errors import InvalidParameter
from fedbandit.service.formatting import count, number, percent, plural
from fedbandit.service.model import Model, alpha_of
from fedbandit.service.stores.base import AgentPage, AgentRecord, PageQuery

PER_PAGE = 25
# Column -> its heading, the order after a first click, and whether narrow screens show it.
SORTED: Mapping[str, tuple[str, str, bool]] = {
    "name": ("Agent", "name", True),
    "last_seen": ("Last seen", "-last_seen", True),
    "n_obs": ("Observations", "-n_obs", False),
    "mean_reward": ("Mean reward", "-mean_reward", False),
    "n_uploads": ("Uploads", "-n_uploads", False),
    "unsent": ("Unsent", "-unsent", False),
    "growth": ("Growth as α", "-growth", False),
}


async def agents(context: ViewContext) -> RenderedView:
    """A page of agents."""
    name = context.path["model"]
    query = page_query(context.query)
    insight, found = await asyncio.gather(context.sources.insight(name), context.sources.agents(name, query))
    shares = await context.sources.shares(insight, found.agents)
    parts = LiveParts()
    listing = parts.add("agents", _listing(insight.model, query, found, shares))
    body = join(_head(name), _search(name, query), listing)
    return RenderedView(f"Agents of {name}", body, parts.found)


def page_query(options: Mapping[str, str]) -> PageQuery:
    """Page, order and search from an address; the store's own limits apply."""
    try:
        page = int(options.get("page", "1"))
    except ValueError:
        raise InvalidParameter(f"expected page as a number, got {options['page'][:20]!r}") from None
    sort = options.get("sort", "-last_seen")
    return PageQuery(page=page, per_page=PER_PAGE, sort=sort, search=options.get("search", "").strip())


def _head(name: str) -> Html:
    path = breadcrumbs(("Models", "/"), (name, url("models", name)), here="agents")
    return tag("div", path, tag("h1", "Agents"), class_="view-head")


def _search(name: str, query: PageQuery) -> Html:
    return tag(
        "form",
        tag("label", "Search by name", for_="search"),
        tag("input", type="search", name="search", id="search", value=query.search, maxlength=200, autocomplete="off"),
        tag("input", type="hidden", name="sort", value=query.sort),
        tag("button", "Search", type="submit"),
        method="get",
        action=url("models", name, "agents"),
        class_="inline",
        data_swap="agents",
        role="search",
    )


def _listing(model: Model, query: PageQuery, found: AgentPage, shares: dict[str, float]) -> Html:
    name = model.settings.name
    if not found.agents:
        return _no_agents(name, query, found.total)
    most = max(shares.values(), default=0.0)
    heads = [_head_cell(name, query, key) for key in SORTED]
    heads.insert(1, tag("th", "Share", scope="col", class_="share", title="Share of information: tr(Σ⁻¹Σₐ)/d"))
    rows = [_row(model, agent, shares[agent.name], most) for agent in found.agents]
    return join(
        tag("p", _range_words(query, found), class_="text", role="status"),
        table("Agents", heads, rows, class_="agents"),
        _pages(name, query, found.total),
    )


def _range_words(query: PageQuery, found: AgentPage) -> str:
    first, last = query.offset + 1, query.offset + len(found.agents)
    matching = f" whose name contains “{query.search}”" if query.search else ""
    return f"{count(first)} to {count(last)} of {plural(found.total, 'agent')}{matching}"


def _no_agents(name: str, query: PageQuery, total: int) -> Html:
    if total:
        back = tag("a", "Back to the first page", href=_address(name, query, page=1))
        return empty_state("This page is empty", tag("p", back))
    if query.search:
        clear = tag("a", "Show all agents", href=url("models", name, "agents"))
        return empty_state("No agent has a name that contains this", tag("p", clear))
    return empty_state(
        "No agent is enrolled yet",
        tag("p", "Create a token for an agent, and connect with it:"),
        tag("pre", tag("code", f"fedbandit agents add {name} shop-1"), tabindex=0),
    )


def _head_cell(name: str, query: PageQuery, key: str) -> Html:
    title, first, on_phone = SORTED[key]
    kind = "" if key in ("name", "last_seen") else "number"
    class_ = " ".join(word for word in (kind, "" if on_phone else "wide-only") if word)
    target, order, arrow = first, None, ""
    if query.key == key:
        order, arrow = ("descending", " ↓") if query.descending else ("ascending", " ↑")
        target = key if query.descending else f"-{key}"
    link = tag("a", title, tag("span", arrow, aria_hidden="true"), href=_address(name, query, page=1, sort=target))
    return tag("th", link, scope="col", class_=class_ or None, aria_sort=order)


def _row(model: Model, agent: AgentRecord, share: float, most: float) -> list[Child]:
    name = model.settings.name
    revoked = tag("span", "revoked", class_="kind warn") if agent.revoked else None
    quarantined = tag("span", "in quarantine", class_="kind warn") if agent.quarantined else None
    link = tag("a", agent.name, href=url("models", name, "agents", agent.name))
    return [
        tag("th", link, " ", revoked, quarantined, scope="row", class_="name"),
        tag("td", bar(share, most, percent(share)), tag("span", percent(share)), class_="share"),
        tag("td", when(agent.last_seen)),
        number_cell(count(agent.n_obs), wide_only=True),
        number_cell(number(mean_reward(agent)), wide_only=True),
        number_cell(count(agent.n_uploads), wide_only=True),
        number_cell(count(agent.unsent), wide_only=True),
        number_cell(number(alpha_of(agent.growth)) if agent.n_uploads else "–", wide_only=True),
    ]


def _pages(name: str, query: PageQuery, total: int) -> Html:
    last = max(math.ceil(total / query.per_page), 1)
    if last == 1:
        return join()
    here = query.page
    wanted = {1, last, *range(here - 2, here + 3)}
    shown = sorted(page for page in wanted if 1 <= page <= last)
    items: list[Child] = []
    before = 0
    for page in shown:
        if page > before + 1:
            items.append(tag("li", "…", class_="gap"))
        before = page
        current = "page" if page == here else None
        link = tag("a", count(page), href=_address(name, query, page=page), aria_current=current)
        items.append(tag("li", link))
    return tag(
        "nav",
        _step("Previous", name, query, here - 1, here > 1),
        tag("ol", items),
        _step("Next", name, query, here + 1, here < last),
        aria_label="Pages",
        class_="pages",
    )


def _step(word: str, name: str, query: PageQuery, page: int, possible: bool) -> Html:
    if not possible:
        return tag("span", word, class_="step off")
    return tag("a", word, href=_address(name, query, page=page), class_="step", id=f"page-{word.lower()}")


def _address(name: str, query: PageQuery, *, page: int, sort: str | None = None) -> str:
    options: dict[str, str | int] = {"sort": sort or query.sort}
    if query.search:
        options["search"] = query.search
    if page != 1:
        options["page"] = page
    return url("models", name, "agents", **options)
