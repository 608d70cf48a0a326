"""The HTML document around every view, the login form, error documents, security headers and static files."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response

from fedbandit.dashboard.markup import Html, tag

FOLDER = Path(__file__).parent / "static"
TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
FOR_EVER = "public, max-age=31536000, immutable"

# Nothing inline, nothing from other hosts, and no other site may frame the dashboard.
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
SECTIONS = (("Models", "/"), ("Words", "/words"), ("API", "/docs"))


def document(
    title: str,
    body: Html,
    *,
    section: str = "",
    live: str = "",
    shape: str = "",
    signed_in: bool = False,
    status: int = 200,
    headers: dict[str, str] | None = None,
    scripts: Sequence[str] = (),
) -> HTMLResponse:
    """A complete HTML document. `live` is the address of its event stream, `section` its entry in the menu."""
    html = tag(
        "html",
        _head(title, scripts),
        tag(
            "body",
            tag("a", "Skip to the content", href="#main", class_="skip"),
            _banner(section, bool(live), signed_in),
            tag("main", body, id="main", tabindex=-1),
            data_live=live or None,
            data_shape=shape or None,
        ),
        lang="en",
    )
    all_headers = {**HEADERS, "Cache-Control": "no-store", **(headers or {})}
    return HTMLResponse("<!doctype html>" + html, status, all_headers)


def _head(title: str, scripts: Sequence[str]) -> Html:
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("title", f"{title} · fedbandit"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("link", rel="icon", href=static_url("icon.svg"), type="image/svg+xml"),
        tag("link", rel="stylesheet", href=static_url("dashboard.css")),
        tag("script", src=static_url("theme.js")),
        [tag("script", type="module", src=static_url(name)) for name in ("dashboard.js", *scripts)],
    )


def _banner(section: str, is_live: bool, signed_in: bool) -> Html:
    entries = [
        tag("li", tag("a", name, href=target, aria_current="page" if name == section else None))
        for name, target in SECTIONS
    ]
    state = tag("span", "connecting", id="connection-text")
    status = tag("p", state, id="connection", data_state="connecting", role="status")
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


def error_document(status: int, title: str, message: str) -> HTMLResponse:
    """An error with links to what there is."""
    back = tag("p", tag("a", "All models", href="/"), " · ", tag("a", "What the words mean", href="/words"))
    number = tag("p", f"Error {status}", class_="note")
    body = tag("div", number, tag("h1", title), tag("p", message, class_="lead"), back, class_="notice")
    return document(title, body, status=status)


def sign_in_document(target: str, problem: str = "", *, status: int = 200) -> HTMLResponse:
    """The page behind a one-time link: its script posts the code behind the `#`; without scripts one pastes it."""
    form = tag(
        "form",
        tag("label", "Code of the link, what stands behind the #", for_="code"),
        tag("input", name="code", id="code", required=True, autocomplete="off", spellcheck="false"),
        tag("input", type="hidden", name="next", value=target),
        tag("p", problem, class_="problem", role="alert") if problem else None,
        tag("button", "Sign in", type="submit", class_="primary"),
        method="post",
        action="/sign-in",
        class_="login",
        id="sign-in",
    )
    other = tag("p", tag("a", "Sign in with a token", href="/login"))
    body = tag("div", tag("h1", "Sign in"), form, other, class_="notice")
    return document("Sign in", body, status=status, scripts=() if problem else ("sign-in.js",))


def login_document(target: str, problem: str = "", *, status: int = 200) -> HTMLResponse:
    """The form that asks for a token."""
    alert = tag("p", problem, class_="problem", role="alert", id="problem") if problem else None
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
        alert,
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
            "The server prints an administrator's token at its first start. An administrator creates tokens for "
            "viewers with ",
            tag("code", "fedbandit tokens add NAME"),
            ".",
        ),
    )
    body = tag("div", tag("h1", "Sign in"), form, where, class_="notice")
    return document("Sign in", body, status=status)


@cache
def files() -> dict[str, bytes]:
    """All static files by name."""
    return {path.name: path.read_bytes() for path in sorted(FOLDER.iterdir()) if path.suffix in TYPES}


@cache
def edition() -> str:
    """A digest of all files, part of their URLs; scripts import each other from the same edition."""
    digest = hashlib.sha256()
    for name, content in files().items():
        digest.update(name.encode() + b"\0" + content)
    return digest.hexdigest()[:12]


def static_url(name: str) -> str:
    """The URL of a static file."""
    return f"/static/{edition()}/{name}"


async def static(request: Request) -> Response:
    """A static file. Only the current edition may be cached; an old address gets the current file, uncached."""
    name = request.path_params["name"]
    content = files().get(name)
    if content is None:
        return PlainTextResponse("there is no such file", 404)
    is_current = request.path_params["edition"] == edition()
    headers = {"Cache-Control": FOR_EVER if is_current else "no-store", "X-Content-Type-Options": "nosniff"}
    return Response(content, 200, headers, TYPES[Path(name).suffix])


async def favicon(_: Request) -> Response:
    """The icon for browsers that ask for one by themselves."""
    headers = {"Cache-Control": "public, max-age=86400", "X-Content-Type-Options": "nosniff"}
    return Response(files()["icon.svg"], 200, headers, TYPES[".svg"])
