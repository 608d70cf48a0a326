"""A rendered view, and the HTML elements that all views are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlencode

from fedbandit.dashboard.chart_series import ChartSeries
from fedbandit.dashboard.glossary import WORDS
from fedbandit.dashboard.markup import Child, Html, as_json, join, tag


@dataclass(frozen=True, slots=True)
class RenderedView:
    """`parts` are the elements of `body` that change, by id; `series` the lines of its charts, by name."""

    title: str
    body: Html
    parts: Mapping[str, Html] = field(default_factory=dict)
    series: Mapping[str, ChartSeries] = field(default_factory=dict)
    shape: str = ""  # a browser that shows another shape reloads the view


class LiveParts:
    """Collects the live parts of a view while its body is written."""

    def __init__(self) -> None:
        self.found: dict[str, Html] = {}

    def add(self, name: str, *children: Child, element: str = "div", **attributes: Any) -> Html:
        """An element whose content is kept current."""
        content = join(*children)
        self.found[name] = content
        return tag(element, content, id=name, data_part=True, **attributes)


def url(*path: str, **query: Any) -> str:
    """An address on this server, with everything quoted.

    >>> url("models", "a b", page=2)
    '/models/a%20b?page=2'
    """
    place = "/" + "/".join(quote(part, safe="@:+=~") for part in path)
    return f"{place}?{urlencode(query)}" if query else place


def when(at: float | None, never: str = "never") -> Html | str:
    """A time; the script of the dashboard shows it as "3 s ago" and keeps it current."""
    if at is None:
        return never
    moment = datetime.fromtimestamp(at, UTC)
    text = f"{moment:%Y-%m-%d %H:%M:%S} UTC"
    return tag("time", text, datetime=moment.isoformat(timespec="seconds"), data_at=round(at, 3), title=text)


def breadcrumbs(*steps: tuple[str, str], here: str) -> Html:
    """The path to this view: links with their addresses, then its own name."""
    slash = tag("span", "/", aria_hidden="true")
    links = [join(tag("a", name, href=address), slash) for name, address in steps]
    return tag("nav", links, tag("span", here, aria_current="page"), aria_label="Path", class_="breadcrumbs")


def word_link(word: str) -> Html:
    """A link to what a word means; the style sheet shows it as a question mark."""
    return tag("a", href=f"/words#{word}", class_="word", aria_label=f"What it means: {WORDS[word].title}")


def marked(text: str) -> list[Child]:
    """Text with what stands between backticks as code."""
    return [tag("code", part) if place % 2 else part for place, part in enumerate(text.split("`"))]


def exports(model: str, table: str, *, over_time: bool = False) -> Html:
    """Links to what a chart or a table shows, as files; of a chart only the time range that it shows."""
    links = [
        tag(
            "a",
            kind.upper(),
            href=url("models", model, "tables", f"{table}.{kind}"),
            aria_label=f"{table} as {kind.upper()}",
            download=f"{model}-{table}.{kind}",
            data_ranged=over_time,
        )
        for kind in ("csv", "json")
    ]
    return tag("p", links, class_="exports")


RANGES = (("1 h", "1h"), ("24 h", "24h"), ("7 days", "7d"), ("all", "all"))


def time_ranges() -> Html:
    """Buttons for the time range of all charts of a view; without scripts there are no charts, and no buttons."""
    buttons = [
        tag("button", name, type="button", data_range=key, aria_pressed="true" if key == "all" else "false")
        for name, key in RANGES
    ]
    text = "Drag over a chart, or press + and −, to zoom."
    return tag(
        "div",
        tag("div", buttons, role="group", aria_label="Time range of all charts", class_="choices"),
        tag("button", "Reset zoom", type="button", id="reset-zoom", hidden=True),
        tag("span", text, class_="note wide-only"),
        class_="ranges",
        hidden=True,
    )


def tile(
    label: str, value: Child, *notes: Child, state: str = "", href: str | None = None, word: str | None = None
) -> Html:
    """A number with its name above and notes below; `state` is warn, bad or nothing."""
    name = tag("a", label, href=href) if href else label
    return tag(
        "div",
        tag("dt", name, word_link(word) if word else None),
        tag("dd", tag("span", value, class_="value"), [tag("span", note, class_="note") for note in notes]),
        class_=f"tile {state}".strip(),
    )


def tiles(*items: Html) -> Html:
    """Tiles in a row."""
    return tag("dl", items, class_="tiles")


def panel(
    title: str,
    *children: Child,
    wide: bool = False,
    note: Child = None,
    word: str | None = None,
    files: Html | None = None,
    **attributes: Any,
) -> Html:
    """A titled box; `word` is its entry in the glossary, `files` are links to its content."""
    heading = tag("h2", title)
    head = tag(
        "header", heading, word_link(word) if word else None, tag("p", note, class_="note") if note else None, files
    )
    return tag("section", head, children, class_="panel wide" if wide else "panel", **attributes)


def chart(name: str, label: str, lines: Iterable[Mapping[str, Any]], **options: Any) -> Html:
    """A chart that the script of the dashboard draws; `label` describes it for screen readers."""
    spec = {"name": name, "label": label, "lines": list(lines), **options}
    loading = tag("p", "Loading …", class_="loading")
    return tag("div", loading, class_="chart", id=f"chart-{name}", data_chart=as_json(spec))


def empty_state(title: str, *children: Child) -> Html:
    """A message for a view or panel without data, with the next step."""
    return tag("div", tag("h3", title), children, class_="empty-state")


def bar(share: float, most: float, label: str) -> Html:
    """A horizontal bar in a table cell."""
    width = 0.0 if most <= 0 else max(0.0, min(share / most, 1.0)) * 100
    return tag(
        "svg",
        tag("rect", class_="track", width=100, height=10),
        tag("rect", class_="fill", width=round(width, 2), height=10),
        class_="bar",
        viewBox="0 0 100 10",
        preserveAspectRatio="none",
        role="img",
        aria_label=label,
    )


def whisker(value: float, half_width: float, low: float, high: float, label: str) -> Html:
    """A value with its interval on a common scale from low to high, with a line at zero."""
    span = (high - low) or 1.0

    def place(number: float) -> float:
        return round(100 * min(max((number - low) / span, 0.0), 1.0), 2)

    def line(kind: str, start: float, end: float, top: int = 8, bottom: int = 8) -> Html:
        return tag("line", class_=kind, x1=place(start), x2=place(end), y1=top, y2=bottom)

    return tag(
        "svg",
        line("zero", 0.0, 0.0, 0, 16),
        line("interval", value - half_width, value + half_width),
        line("dot", value, value),
        class_="whisker",
        viewBox="0 0 100 16",
        preserveAspectRatio="none",
        role="img",
        aria_label=label,
    )


def table(caption: str, heads: Iterable[Child], rows: Iterable[Iterable[Child]], *, class_: str = "") -> Html:
    """A table; a cell that is a `td` or `th` already is used as it is."""
    body = [tag("tr", [_cell(cell, "td") for cell in row]) for row in rows]
    return tag(
        "div",
        tag(
            "table",
            tag("caption", caption, class_="hidden"),
            tag("thead", tag("tr", [_cell(head, "th", scope="col") for head in heads])),
            tag("tbody", body),
            class_=class_ or None,
        ),
        class_="scroll",
    )


def _cell(cell: Child, name: str, **attributes: Any) -> Child:
    if isinstance(cell, Html) and cell.startswith(("<td", "<th")):
        return cell
    return tag(name, cell, **attributes)


def number_cell(*children: Child, wide_only: bool = False) -> Html:
    """A cell with a number: right-aligned, digits of one width."""
    return tag("td", children, class_="number wide-only" if wide_only else "number")


def number_head(*children: Child, wide_only: bool = False, **attributes: Any) -> Html:
    """The head of a column of numbers."""
    return tag("th", children, scope="col", class_="number wide-only" if wide_only else "number", **attributes)


def pages(here: int, n_pages: int, address: Callable[[int], str]) -> Html:
    """Links to the pages of a list; nothing for a single one."""
    if n_pages <= 1:
        return join()
    wanted = {1, n_pages, *range(here - 2, here + 3)}
    items: list[Child] = []
    before = 0
    for page in sorted(page for page in wanted if 1 <= page <= n_pages):
        if page > before + 1:
            items.append(tag("li", "…", class_="gap"))
        before = page
        current = "page" if page == here else None
        items.append(tag("li", tag("a", f"{page:,}", href=address(page), aria_current=current)))

    def step(word: str, page: int, possible: bool) -> Html:
        if not possible:
            return tag("span", word, class_="step off")
        return tag("a", word, href=address(page), class_="step", id=f"page-{word.lower()}")

    return tag(
        "nav",
        step("Previous", here - 1, here > 1),
        tag("ol", items),
        step("Next", here + 1, here < n_pages),
        aria_label="Pages",
        class_="pages",
    )


def search_form(action: str, part: str, search: str, sort: str) -> Html:
    """A search by name that exchanges the part with this id."""
    return tag(
        "form",
        tag("label", "Search by name", for_="search"),
        tag("input", type="search", name="search", id="search", value=search, maxlength=200, autocomplete="off"),
        tag("input", type="hidden", name="sort", value=sort),
        tag("button", "Search", type="submit"),
        method="get",
        action=action,
        class_="inline",
        data_swap=part,
        role="search",
    )


def sorted_head(
    title: str, key: str, sort: str, address: Callable[[str], str], *, class_: str = "", first: str | None = None
) -> Html:
    """The head of a column by which a list can be sorted; `first` is the order after a first click."""
    target, order, arrow = first or f"-{key}", None, ""
    if sort.removeprefix("-") == key:
        is_descending = sort.startswith("-")
        order, arrow = ("descending", " ↓") if is_descending else ("ascending", " ↑")
        target = key if is_descending else f"-{key}"
    link = tag("a", title, tag("span", arrow, aria_hidden="true"), href=address(target))
    return tag("th", link, scope="col", class_=class_ or None, aria_sort=order)
