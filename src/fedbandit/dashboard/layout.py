"""The frame around every page, its headers, and the pages for when something is wrong."""

from __future__ import annotations

from starlette.responses import HTMLResponse

from fedbandit.dashboard.markup import Child, Html, join, tag
from fedbandit.dashboard.static import static_url

# Nothing inline, nothing from elsewhere, and nobody may frame us.
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
SECTIONS = (("Models", "/"), ("Simulation", "/simulation"), ("API", "/docs"))


def page(
    title: str,
    body: Html,
    *,
    section: str = "",
    live: str = "",
    shape: str = "",
    signed_in: bool = False,
    status: int = 200,
    headers: dict[str, str] | None = None,
) -> HTMLResponse:
    """A whole page. `live` is where its events come from, `section` the entry of the menu that it belongs to."""
    document = tag(
        "html",
        _head(title),
        tag(
            "body",
            tag("a", "Skip to the content", href="#main", class_="skip"),
            _banner(section, bool(live), signed_in),
            tag("main", body, id="main", tabindex=-1),
            tag("p", id="said", role="status", class_="hidden") if live else None,
            data_live=live or None,
            data_shape=shape or None,
        ),
        lang="en",
    )
    all_headers = {**HEADERS, "Cache-Control": "no-store", **(headers or {})}
    return HTMLResponse("<!doctype html>" + document, status, all_headers)


def _head(title: str) -> Html:
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("title", f"{title} · fedbandit"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("link", rel="icon", href=static_url("icon.svg"), type="image/svg+xml"),
        tag("link", rel="stylesheet", href=static_url("page.css")),
        tag("script", src=static_url("theme.js")),
        tag("script", type="module", src=static_url("page.js")),
    )


def _banner(section: str, is_live: bool, signed_in: bool) -> Html:
    entries = [
        tag("li", tag("a", name, href=target, aria_current="page" if name == section else None))
        for name, target in SECTIONS
    ]
    status = tag("p", tag("span", "connecting", id="link-word"), id="link", data_state="waiting", role="status")
    theme = tag("button", "Theme", type="button", id="theme", class_="quiet-button", hidden=True)
    leave = tag(
        "form", tag("button", "Sign out", type="submit", class_="quiet-button"), method="post", action="/logout"
    )
    return tag(
        "header",
        tag("a", "fedbandit", href="/", class_="brand"),
        tag("nav", tag("ul", entries), aria_label="Sections"),
        tag("div", status if is_live else None, theme, leave if signed_in else None, class_="tools"),
        class_="banner",
    )


def problem_page(status: int, title: str, message: str, *links: Child) -> HTMLResponse:
    """Something is wrong: what, and where to go from here."""
    back = tag("p", links or tag("a", "All models", href="/"))
    body = tag("div", tag("h1", title), tag("p", message, class_="lead"), back, class_="notice")
    return page(title, body, status=status)


def login_page(target: str, problem: str = "", *, status: int = 200) -> HTMLResponse:
    """The form that takes a token."""
    told = tag("p", problem, class_="problem", role="alert", id="problem") if problem else None
    form = tag(
        "form",
        tag("label", "Token of a viewer or an administrator", for_="token"),
        tag(
            "input",
            type="password",
            name="token",
            id="token",
            required=True,
            autofocus=True,
            autocomplete="current-password",
            spellcheck="false",
            aria_describedby="problem" if problem else None,
            aria_invalid="true" if problem else None,
        ),
        tag("input", type="hidden", name="next", value=target),
        told,
        tag("button", "Sign in", type="submit", class_="primary"),
        method="post",
        action="/login",
        class_="login",
    )
    where = tag(
        "details",
        tag("summary", "Where do I get one?"),
        tag(
            "p",
            "The server prints an administrator's token at its first start. With it, anybody who shall only look gets "
            "a token of their own by ",
            tag("code", "fedbandit tokens add NAME"),
            ".",
        ),
    )
    body = tag("div", tag("h1", "Sign in"), form, where, class_="notice")
    return page("Sign in", join(body), status=status)
