"""HTML that is safe by construction: text is escaped unless it is `Html` already, and only this module makes `Html`."""

from __future__ import annotations

import html
from collections.abc import Iterable

import msgspec


class Html(str):
    """Text that is HTML; everything else that goes into an element is escaped."""

    __slots__ = ()


Child = str | int | float | None | Iterable["Child"]
Attribute = str | int | float | bool | None

VOID = frozenset({"br", "hr", "img", "input", "link", "meta"})


def tag(element: str, /, *children: Child, **attributes: Attribute) -> Html:
    """An element. `class_` is class, `data_part` is data-part; None and False leave an attribute out.

    >>> tag("p", "1 < 2 ", tag("b", "really"), class_="note")
    '<p class="note">1 &lt; 2 <b>really</b></p>'
    """
    words = "".join(_attribute(key, value) for key, value in attributes.items())
    if element in VOID:
        return Html(f"<{element}{words}>")
    return Html(f"<{element}{words}>{join(*children)}</{element}>")


def join(*children: Child) -> Html:
    """Children one after the other; None is nothing.

    >>> join("a & b", None, [tag("br"), 3])
    'a &amp; b<br>3'
    """
    return Html("".join(_text(child) for child in children))


def _text(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, Html):
        return child
    if isinstance(child, str):
        return html.escape(child, quote=False)
    if isinstance(child, int | float):
        return str(child)
    return join(*child)


def _attribute(name: str, value: Attribute) -> str:
    name = name.rstrip("_").replace("_", "-")
    if value is None or value is False:
        return ""
    if value is True:
        return f" {name}"
    return f' {name}="{html.escape(str(value))}"'


def as_json(value: object) -> str:
    """A value for a data attribute or an event, `Html` as text; `tag` escapes it."""
    return msgspec.json.encode(value, enc_hook=str).decode()
