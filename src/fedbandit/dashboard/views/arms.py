"""The arms of a model with one block per arm: sorted, paged and searched on the server, also with a thousand arms."""

from __future__ import annotations

import math
from collections.abc import Mapping

from fedbandit.dashboard.components import (
    LiveParts,
    RenderedView,
    bar,
    breadcrumbs,
    empty_state,
    exports,
    number_cell,
    pages,
    search_form,
    sorted_head,
    table,
    url,
    word_link,
)
from fedbandit.dashboard.data_sources import ViewContext
from fedbandit.dashboard.markup import Child, Html, join, tag
from fedbandit.errors import InvalidParameter
from fedbandit.service.arms import Arm, ArmTable
from fedbandit.service.formatting import count, number, percent, plural

PER_PAGE = 50
COLUMNS: Mapping[str, tuple[str, bool]] = {
    "n_obs": ("Observations", True),
    "mean_reward": ("Mean reward", True),
    "norm": ("‖θ̂‖", False),
}


async def arms(context: ViewContext) -> RenderedView:
    """A page of arms."""
    name = context.path["model"]
    found = await context.sources.arms(name)
    sort, search, page = _query(context.query)
    parts = LiveParts()
    path = breadcrumbs(("Models", "/"), (name, url("models", name)), here="arms")
    head = tag("div", path, tag("h1", "Arms"), exports(name, "arms"), class_="view-head")
    listing = parts.add("arms", _listing(name, found, sort, search, page))
    form = search_form(url("models", name, "arms"), "arms", search, sort)
    return RenderedView(f"Arms of {name}", join(head, form, listing), parts.found)


def _query(options: Mapping[str, str]) -> tuple[str, str, int]:
    sort, search = options.get("sort", "-share"), options.get("search", "").strip()[:200]
    try:
        page = int(options.get("page", "1"))
    except ValueError:
        raise InvalidParameter(f"expected page as a number, got {options['page'][:20]!r}") from None
    if not 1 <= page <= 1_000_000:
        raise InvalidParameter(f"expected page from 1 to 1000000, got {page}")
    return sort, search, page


def _listing(name: str, found: ArmTable, sort: str, search: str, page: int) -> Html:
    matching = [arm for arm in found.sorted(sort) if search.lower() in arm.name.lower()]
    shown = matching[(page - 1) * PER_PAGE : page * PER_PAGE]
    if not shown:
        clear = tag("a", "Show all arms", href=url("models", name, "arms"))
        return empty_state("No arm is on this page, or has a name that contains this", tag("p", clear))

    def address(*, to: int = 1, by: str = sort) -> str:
        options: dict[str, str | int] = {"sort": by}
        options |= {"search": search} if search else {}
        options |= {"page": to} if to != 1 else {}
        return url("models", name, "arms", **options)

    heads = [sorted_head("Arm", "name", sort, lambda by: address(by=by), first="name")]
    heads.append(sorted_head("Share", "share", sort, lambda by: address(by=by), class_="share"))
    for key, (title, on_phone) in COLUMNS.items():
        kind = "number" if on_phone else "number wide-only"
        heads.append(sorted_head(title, key, sort, lambda by: address(by=by), class_=kind))
    most = max(arm.share for arm in found.arms)
    first = (page - 1) * PER_PAGE + 1
    text = f"{count(first)} to {count(first + len(shown) - 1)} of {plural(len(matching), 'arm')}. "
    notes = [f"The prior has {percent(found.prior_share)} of the information. "]
    if found.constant is None:
        notes.append("No feature is constant, so that the sums tell neither observations nor mean rewards of an arm. ")
    return join(
        tag("p", text, tag("span", notes), word_link("arm"), class_="text", role="status"),
        table("Arms", heads, [_row(arm, most) for arm in shown], class_="agents"),
        pages(page, math.ceil(len(matching) / PER_PAGE), lambda to: address(to=to)),
    )


def _row(arm: Arm, most: float) -> list[Child]:
    return [
        tag("th", arm.name, scope="row", class_="name"),
        tag("td", bar(arm.share, most, percent(arm.share)), tag("span", percent(arm.share)), class_="share"),
        number_cell("–" if arm.n_obs is None else count(arm.n_obs)),
        number_cell(number(arm.mean_reward)),
        number_cell(number(arm.norm), wide_only=True),
    ]
