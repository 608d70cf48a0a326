"""The agents of a model: paged, sorted and searched on the server, so that the view stays fast with many agents."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass

from fedbandit.core.group_sums import RewardSums
from fedbandit.dashboard.chart_series import mean_reward
from fedbandit.dashboard.components import (
    LiveParts,
    RenderedView,
    bar,
    breadcrumbs,
    empty_state,
    exports,
    number_cell,
    number_head,
    pages,
    search_form,
    sorted_head,
    table,
    url,
    when,
    word_link,
)
from fedbandit.dashboard.data_sources import DataSources, ViewContext
from fedbandit.dashboard.markup import Child, Html, join, tag
from fedbandit.errors import InvalidParameter
from fedbandit.service.formatting import NOTHING, count, duration, number, percent, plural, size
from fedbandit.service.insight import MAX_COMPARED, ModelInsight
from fedbandit.service.model import Model, alpha_of
from fedbandit.service.rhythm import Rhythm
from fedbandit.service.stores.base import AgentPage, AgentRecord, PageQuery

PER_PAGE = 25
# Column -> its heading, the order after a first click, and whether narrow screens show it.
SORTED: Mapping[str, tuple[str, str, bool]] = {
    "name": ("Agent", "name", True),
    "share": ("Share", "-share", True),
    "last_seen": ("Last seen", "-last_seen", True),
    "n_obs": ("Observations", "-n_obs", False),
    "mean_reward": ("Mean reward", "-mean_reward", False),
    "n_uploads": ("Uploads", "-n_uploads", False),
    "unsent": ("Unsent", "-unsent", False),
    "growth": ("Growth as α", "-growth", False),
}
BY_SHARE = ("share", "-share")


@dataclass(frozen=True, slots=True)
class AgentList:
    """A page of agents with what is computed for each."""

    model: Model
    query: PageQuery
    sort: str
    found: AgentPage
    shares: Mapping[str, float]
    rhythms: Mapping[str, Rhythm]
    kappas: Mapping[str, float | None]
    now: float
    n_compared: int | None = None  # where not all agents could be compared by share

    def address(self, *, page: int = 1, sort: str | None = None) -> str:
        """The address of another page, or of the first one in another order."""
        options: dict[str, str | int] = {"sort": sort or self.sort}
        if self.query.search:
            options["search"] = self.query.search
        if page != 1:
            options["page"] = page
        return url("models", self.model.settings.name, "agents", **options)


async def agents(context: ViewContext) -> RenderedView:
    """A page of agents."""
    name, sources = context.path["model"], context.sources
    sort = context.query.get("sort", "-last_seen")
    query = page_query({**context.query, "sort": "-n_obs" if sort in BY_SHARE else sort})
    insight = await sources.insight(name)
    n_compared = None
    if sort in BY_SHARE:
        found, n_compared = await _by_share(sources, insight, query, descending=sort.startswith("-"))
    else:
        found = await sources.agents(name, query)
    shares, kappas = await asyncio.gather(sources.shares(insight, found.agents), sources.kappas(insight, found.agents))
    rhythms = {agent.name: await sources.rhythm(insight.model, agent.name) for agent in found.agents}
    now = sources.container.clock()
    listed = AgentList(insight.model, query, sort, found, shares, rhythms, kappas, now, n_compared)
    parts = LiveParts()
    form = search_form(url("models", name, "agents"), "agents", query.search, sort)
    body = join(_head(name), form, parts.add("agents", _listing(listed)))
    return RenderedView(f"Agents of {name}", body, parts.found)


def page_query(options: Mapping[str, str]) -> PageQuery:
    """Page, order and search from an address; the store's own limits apply."""
    try:
        page = int(options.get("page", "1"))
    except ValueError:
        raise InvalidParameter(f"expected page as a number, got {options['page'][:20]!r}") from None
    sort = options.get("sort", "-last_seen")
    return PageQuery(page=page, per_page=PER_PAGE, sort=sort, search=options.get("search", "").strip())


async def _by_share(
    sources: DataSources, insight: ModelInsight, query: PageQuery, *, descending: bool
) -> tuple[AgentPage, int | None]:
    """A page of agents in the order of their shares, among those with most observations where there are very many."""
    model = insight.model
    largest = await sources.largest_shares(insight, MAX_COMPARED)
    names = [name for name, _ in largest.largest if query.search.lower() in name.lower()]
    if not descending:
        names.reverse()
    shown = names[query.offset : query.offset + query.per_page]
    records = await asyncio.gather(*(sources.agent(model.settings.name, name) for name in shown))
    is_whole = largest.n_compared >= model.n_agents
    return AgentPage(list(records), len(names)), None if is_whole else largest.n_compared


def _head(name: str) -> Html:
    path = breadcrumbs(("Models", "/"), (name, url("models", name)), here="agents")
    return tag("div", path, tag("h1", "Agents"), exports(name, "agents"), class_="view-head")


def _listing(listed: AgentList) -> Html:
    model, query, found = listed.model, listed.query, listed.found
    if not found.agents:
        return _no_agents(listed)
    most = max(listed.shares.values(), default=0.0)
    heads = [_head_cell(listed, key) for key in SORTED]
    heads.insert(3, tag("th", "Next upload", word_link("next-upload"), scope="col", class_="wide-only"))
    if model.settings.control:
        heads += [number_head("Control", wide_only=True), number_head("Treatment", wide_only=True)]
    if listed.kappas:
        heads.append(number_head("κ", word_link("kappa"), wide_only=True))
    n_pages = math.ceil(found.total / query.per_page)
    return join(
        tag("p", _range_words(listed), class_="text", role="status"),
        table("Agents", heads, [_row(listed, agent, most) for agent in found.agents], class_="agents"),
        pages(query.page, n_pages, lambda page: listed.address(page=page)),
    )


def _range_words(listed: AgentList) -> str:
    query, found = listed.query, listed.found
    first, last = query.offset + 1, query.offset + len(found.agents)
    matching = f" whose name contains “{query.search}”" if query.search else ""
    among = f", the {count(listed.n_compared)} with most observations" if listed.n_compared is not None else ""
    return f"{count(first)} to {count(last)} of {plural(found.total, 'agent')}{matching}{among}"


def _no_agents(listed: AgentList) -> Html:
    name = listed.model.settings.name
    if listed.found.total:
        return empty_state("This page is empty", tag("p", tag("a", "Back to the first page", href=listed.address())))
    if listed.query.search:
        clear = tag("a", "Show all agents", href=url("models", name, "agents"))
        return empty_state("No agent has a name that contains this", tag("p", clear))
    return empty_state(
        "No agent is enrolled yet",
        tag("p", "Create a token for an agent, and connect with it:"),
        tag("pre", tag("code", f"fedbandit agents add {name} shop-1"), tabindex=0),
    )


def _head_cell(listed: AgentList, key: str) -> Html:
    title, first, on_phone = SORTED[key]
    kind = "share" if key == "share" else "" if key in ("name", "last_seen") else "number"
    class_ = " ".join(word for word in (kind, "" if on_phone else "wide-only") if word)
    return sorted_head(title, key, listed.sort, lambda sort: listed.address(sort=sort), class_=class_, first=first)


def _row(listed: AgentList, agent: AgentRecord, most: float) -> list[Child]:
    name, share = listed.model.settings.name, listed.shares[agent.name]
    ended = "retired" if agent.retired is not None else "revoked" if agent.revoked else None
    marks = [word for word in (ended, "in quarantine" if agent.quarantined else None) if word]
    link = tag("a", agent.name, href=url("models", name, "agents", agent.name))
    cells: list[Child] = [
        tag("th", link, [(" ", tag("span", mark, class_="kind warn")) for mark in marks], scope="row", class_="name"),
        tag("td", bar(share, most, percent(share)), tag("span", percent(share)), class_="share"),
        tag("td", when(agent.last_seen)),
        tag("td", _next(listed.rhythms[agent.name], agent, listed.now), class_="wide-only"),
        number_cell(count(agent.n_obs), wide_only=True),
        number_cell(number(mean_reward(agent)), wide_only=True),
        number_cell(count(agent.n_uploads), tag("span", f" · {size(agent.n_bytes)}", class_="quiet"), wide_only=True),
        number_cell(count(agent.unsent), wide_only=True),
        number_cell(number(alpha_of(agent.growth)) if agent.n_uploads else NOTHING, wide_only=True),
    ]
    if listed.model.settings.control:
        groups = agent.groups
        cells += [number_cell(_group(sums), wide_only=True) for sums in (groups.control, groups.treatment)]
    if listed.kappas:
        cells.append(number_cell(number(listed.kappas[agent.name], 2), wide_only=True))
    return cells


def _group(sums: RewardSums) -> Child:
    """Rewards in a group, and their mean."""
    return [count(sums.n_obs), tag("span", f" · {number(sums.mean)}", class_="quiet")]


def _next(rhythm: Rhythm, agent: AgentRecord, now: float) -> Child:
    if agent.revoked or rhythm.expected_by is None:
        return tag("span", NOTHING if agent.revoked else "not known", class_="quiet")
    if rhythm.is_overdue(now):
        return tag("span", "later than usual", class_="kind warn")
    return f"within {duration(rhythm.expected_by - now)}"
