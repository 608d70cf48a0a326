"""Every route of the application, and who may use it. A route that is not in this table fails a test."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from starlette.routing import Mount, Route, Router

from fedbandit.dashboard.routes import dashboard_routes
from fedbandit.service.app import make_app, make_json_app
from fedbandit.service.container import make_container
from fedbandit.service.exchange.endpoint import ROUTE, ExchangeEndpoint
from fedbandit.service.settings import ServerSettings
from fedbandit.service.telemetry import make_logger

# Callers: "own" is agent a of model news, which the paths name; "peer" is agent b of the same model; "foreign" is an
# agent of another model; the others have no right to anything.
PEOPLE = ("admin", "viewer")
REPORTER = ("reporter",)
AGENTS = ("own", "peer", "foreign", "enrolling")  # "enrolling": an enrolment of model news, which is no agent
NOBODY = ("revoked", "missing", "malformed", "unknown", "replaced")
EVERYBODY = (*PEOPLE, *REPORTER, *AGENTS, *NOBODY)

ADMIN, LOOK, READ, SELF, OWN = ("admin",), PEOPLE, (*PEOPLE, "own", "peer"), (*PEOPLE, "own"), ("own",)
ALLOWED: dict[str, tuple[str, ...]] = {
    "POST /v1/models/{model}/sync": OWN,
    "GET /v1/models/{model}/state": READ,
    "GET /v1/models/{model}": READ,
    "GET /v1/models": LOOK,
    "POST /v1/models": ADMIN,
    "DELETE /v1/models/{model}": ADMIN,
    "PATCH /v1/models/{model}": ADMIN,
    "POST /v1/models/{model}/arms": ADMIN,
    "POST /v1/models/{model}/restart": ADMIN,
    "GET /v1/models/{model}/export": LOOK,
    "GET /v1/models/{model}/events": LOOK,
    "GET /v1/models/{model}/samples": LOOK,
    "GET /v1/models/{model}/agents": LOOK,
    "POST /v1/models/{model}/agents": ADMIN,
    "GET /v1/models/{model}/agents/{agent}": SELF,
    "GET /v1/models/{model}/agents/{agent}/influence": LOOK,
    "GET /v1/models/{model}/insight": LOOK,
    "GET /v1/models/{model}/gain": LOOK,
    "POST /v1/models/{model}/agents/{agent}/revoke": ADMIN,
    "POST /v1/models/{model}/agents/{agent}/forget": ADMIN,
    "POST /v1/models/{model}/agents/{agent}/quarantine": ADMIN,
    "POST /v1/models/{model}/agents/{agent}/release": ADMIN,
    "POST /v1/models/{model}/agents/{agent}/retire": (*ADMIN, "own"),
    "POST /v1/models/{model}/agents/{agent}/unretire": ADMIN,
    "POST /v1/models/{model}/prune": ADMIN,
    "GET /v1/models/{model}/enrolments": ADMIN,
    "POST /v1/models/{model}/enrolments": ADMIN,
    "POST /v1/models/{model}/enrolments/{name}/revoke": ADMIN,
    "POST /v1/models/{model}/enrol": ("enrolling",),
    "POST /v1/models/{model}/start": ("own", "peer"),
    "POST /v1/models/{model}/rewards": (*ADMIN, "reporter", "own", "peer"),
    "POST /v1/models/{model}/rewards/collect": OWN,
    "GET /v1/models/{model}/arms": LOOK,
    "GET /v1/models/{model}/problems": LOOK,
    "POST /v1/models/{model}/events": ADMIN,
    "POST /v1/models/{model}/features": ADMIN,
    "POST /v1/sign-in-links": ADMIN,
    "GET /v1/tokens": ADMIN,
    "POST /v1/tokens": ADMIN,
    "DELETE /v1/tokens/{name}": ADMIN,
    "GET /status": LOOK,
    "GET /metrics": LOOK,
    "GET /healthz": EVERYBODY,
    "GET /readyz": EVERYBODY,
    "GET /openapi.json": EVERYBODY,  # describes routes, has no data
    "GET /": LOOK,
    "GET /models/{model}": LOOK,
    "GET /models/{model}/agents": LOOK,
    "GET /models/{model}/agents/{agent}": LOOK,
    "GET /models/{model}/arms": LOOK,
    "GET /models/{model}/events": LOOK,
    "GET /models/{model}/tables/{file}": LOOK,
    "GET /words": EVERYBODY,
    "GET /favicon.ico": EVERYBODY,
    "GET /sign-in": EVERYBODY,  # a form that sends what stands behind the # of its address
    "POST /sign-in": (),  # checks the link in the form, not the header
    "GET /{rest:path}": (),  # no such address
    "GET /live/": LOOK,
    "GET /live/models/{model}/arms": LOOK,
    "GET /live/models/{model}/events": LOOK,
    "GET /live/models/{model}": LOOK,
    "GET /live/models/{model}/agents": LOOK,
    "GET /live/models/{model}/agents/{agent}": LOOK,
    "GET /login": EVERYBODY,
    "POST /login": (),  # checks the token in the form, not the header; without one it is 401
    "POST /logout": EVERYBODY,
    "GET /docs": EVERYBODY,  # the same description, for people
    "GET /static/{edition}/{name}": EVERYBODY,
}


def routes() -> set[str]:
    """The application's own routes, found by walking it, as 'GET /path'."""
    container = make_container(ServerSettings(database="memory:"), make_logger("error"))
    app = make_app(container, routes=dashboard_routes(container))
    assert isinstance(app, ExchangeEndpoint) and isinstance(app.app, Router)
    found = {f"POST {ROUTE}", *_walk(app.app.routes)}
    return found | set(_walk(make_json_app(container).routes))


def _walk(routes: Iterable[Any]) -> Iterator[str]:
    for route in routes:
        inner = getattr(route, "original_router", None)  # how FastAPI keeps a router that was included
        if inner is not None:
            yield from _walk(inner.routes)
        elif isinstance(route, Mount):
            assert route.path == "", "a mount of another application: walk it too"
        else:
            assert isinstance(route, Route) or hasattr(route, "methods"), f"what is {route!r}?"
            yield from (f"{method} {route.path}" for method in route.methods or () if method != "HEAD")


def status_for(route: str, who: str) -> int:
    """The expected status of a rejection."""
    is_page = not route.split()[1].startswith(("/v1", "/status", "/metrics", "/live"))
    if route in ("POST /login", "POST /sign-in"):
        return 401
    if route == "GET /{rest:path}":
        return 404
    if who == "missing" and is_page and route.startswith("GET "):
        return 303  # to the login
    return 401 if who in NOBODY else 403
