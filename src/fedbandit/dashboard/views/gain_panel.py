"""The panel of a model's control group: what its decisions earn beyond the application's own."""

from __future__ import annotations

from fedbandit.core.gain import Gain
from fedbandit.dashboard.components import number_cell, number_head, panel, table, whisker
from fedbandit.dashboard.markup import Child, Html, tag
from fedbandit.service.formatting import count, number, percent
from fedbandit.service.gain import words_of

WORDS = {"better": "better than control", "worse": "worse than control", "undecided": "undecided"}
STATES = {"better": "good", "worse": "bad", "undecided": ""}


def gain_over_control(found: Gain, share: float) -> Html:
    """The gain with its interval, and both groups."""
    badge = tag("p", WORDS[found.state], class_=f"badge {STATES[found.state]}".strip())
    note = f"{percent(share)} of decisions are made by the application's default"
    what = tag(
        "details",
        tag("summary", "When may I look?"),
        tag(
            "p",
            "At any time, as often as you like, and you may stop when it is decided: the interval is a confidence "
            "sequence. It compares the mean rewards of both groups so far, for decisions whose reward has arrived.",
        ),
    )
    return panel(
        "Gain over control",
        badge,
        tag("p", words_of(found), class_="text"),
        _groups(found),
        what,
        note=note,
        word="control",
    )


def _groups(found: Gain) -> Html:
    rows: list[list[Child]] = [
        _row("treatment", found.n_treatment, found.mean_treatment),
        _row("control", found.n_control, found.mean_control),
    ]
    if found.gain is not None:
        rows.append(_gain_row(found))
    heads: list[Child] = ["Group", tag("th", tag("span", "interval", class_="hidden"), scope="col")]
    heads += [number_head("Rewards"), number_head("Mean")]
    return table("Rewards by group", heads, rows, class_="whiskers")


def _row(name: str, n: int, mean: float | None) -> list[Child]:
    return [tag("th", name, scope="row", class_="name"), "", number_cell(count(n)), number_cell(number(mean))]


def _gain_row(found: Gain) -> list[Child]:
    drawn: Child = ""
    if found.gain is not None and found.low is not None and found.high is not None:
        label = f"gain {number(found.gain)}, between {number(found.low)} and {number(found.high)}"
        low, high = min(found.low, 0.0), max(found.high, 0.0)
        drawn = tag("td", whisker(found.gain, found.high - found.gain, low, high, label), class_="drawn")
    name = tag("th", "gain", scope="row", class_="name")
    relative = tag("span", percent(found.relative), class_="quiet") if found.relative is not None else ""
    return [name, drawn, number_cell(relative), number_cell(number(found.gain))]
