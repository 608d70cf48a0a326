"""The glossary: what each word on the dashboard means, readable without a network."""

from __future__ import annotations

from fedbandit.dashboard.components import marked
from fedbandit.dashboard.glossary import WORDS
from fedbandit.dashboard.markup import Html, join, tag


def words() -> Html:
    """All words, by title."""
    entries = sorted(WORDS.items(), key=lambda item: item[1].title.lower())
    items = [
        tag("div", tag("dt", entry.title), tag("dd", marked(entry.text)), id=key, class_="entry")
        for key, entry in entries
    ]
    lead = "What the words on this dashboard mean, in the order of the alphabet."
    head = tag("div", tag("h1", "Words"), tag("p", lead, class_="lead"), class_="view-head")
    return join(head, tag("dl", items, class_="glossary panel"))
