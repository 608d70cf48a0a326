"""The routes of the dashboard, each from a request to a view."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Scope

from fedbandit.dashboard.access import VISITOR, Access, login_problem, require_same_site, safe_target
from fedbandit.dashboard.components import RenderedView, url
from fedbandit.dashboard.data_sources import DataSources, TtlCache, ViewContext
from fedbandit.dashboard.layout import (
    HEADERS,
    document,
    error_document,
    favicon,
    login_document,
    sign_in_document,
    static,
)
from fedbandit.dashboard.markup import Html
from fedbandit.dashboard.stream import EventStreams
from fedbandit.dashboard.tables import table_file
from fedbandit.dashboard.views.agent import agent
from fedbandit.dashboard.views.agents import agents
from fedbandit.dashboard.views.api_docs import api_docs
from fedbandit.dashboard.views.arms import arms
from fedbandit.dashboard.views.events import events
from fedbandit.dashboard.views.model import model
from fedbandit.dashboard.views.overview import overview
from fedbandit.dashboard.views.words import words
from fedbandit.errors import FedbanditError, Forbidden, Unauthenticated
from fedbandit.service.admin import sign_in_links
from fedbandit.service.admin.auth import ends_at
from fedbandit.service.app import make_json_app
from fedbandit.service.container import Container
from fedbandit.service.http import error_responses, health
from fedbandit.service.http.request_body import ClientDisconnected, read_body

View = Callable[[ViewContext], Awaitable[RenderedView]]
VIEWS: dict[str, tuple[str, View]] = {
    "/": ("Models", overview),
    "/models/{model}": ("Models", model),
    "/models/{model}/events": ("Models", events),
    "/models/{model}/arms": ("Models", arms),
    "/models/{model}/agents": ("Models", agents),
    "/models/{model}/agents/{agent}": ("Models", agent),
}
MAX_FORM = 8_192
# First parts of the addresses for which the JSON API answers, with errors in JSON.
API_PLACES = {"v1", "openapi.json", *(getattr(route, "path", "/").split("/")[1] for route in health.router.routes)}
Handler = Callable[[Request], Awaitable[Response]]


class BrowserRoute(Route):
    """Any address that a browser opens and neither the dashboard nor the API has; other clients get the API's error."""

    def __init__(self, endpoint: Handler) -> None:
        super().__init__("/{rest:path}", endpoint, methods=["GET"])

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """No match but for a browser's request."""
        if scope["type"] != "http" or scope["method"] != "GET" or scope["path"].split("/")[1] in API_PLACES:
            return Match.NONE, {}
        accepted = next((value for name, value in scope["headers"] if name == b"accept"), b"")
        return super().matches(scope) if b"text/html" in accepted else (Match.NONE, {})


def dashboard_routes(container: Container) -> list[BaseRoute]:
    """The routes of the dashboard, to stand before those of the API."""
    return Dashboard(container).routes()


class Dashboard:
    """The dashboard of one server."""

    def __init__(self, container: Container) -> None:
        self._container = container
        self._access = Access(container)
        self._sources = DataSources(container)
        self._rendered = TtlCache(ttl_s=0.5)
        self._streams = EventStreams(container.stopping, container.clock, container.log)
        self._api_docs: Html | None = None

    def routes(self) -> list[BaseRoute]:
        """Views and their live streams, the login, the API's description, static files."""
        found: list[BaseRoute] = []
        for path, (section, view) in VIEWS.items():
            found.append(Route(path, self._guarded(self._html(section, view)), methods=["GET"]))
            found.append(Route("/live" + path, self._guarded(self._stream(view)), methods=["GET"]))
        found += [
            Route("/login", self._guarded(self._login_form), methods=["GET"]),
            Route("/login", self._guarded(self._login), methods=["POST"]),
            Route("/logout", self._guarded(self._logout), methods=["POST"]),
            Route(sign_in_links.PATH, self._guarded(self._link_form), methods=["GET"]),
            Route(sign_in_links.PATH, self._guarded(self._redeem), methods=["POST"]),
            Route("/models/{model}/tables/{file}", self._guarded(self._table), methods=["GET"]),
            Route("/docs", self._guarded(self._docs), methods=["GET"]),
            Route("/words", self._guarded(self._words), methods=["GET"]),
            Route("/static/{edition}/{name}", static, methods=["GET"]),
            Route("/favicon.ico", favicon, methods=["GET"]),
            BrowserRoute(self._guarded(self._not_found)),
        ]
        return found

    # -- views

    def _context(self, request: Request) -> ViewContext:
        return ViewContext(self._sources, request.path_params, dict(request.query_params))

    def _html(self, section: str, view: View) -> Handler:
        async def show(request: Request) -> Response:
            visitor = await self._access.visitor(request)
            rendered = await view(self._context(request))
            query = f"?{request.url.query}" if request.url.query else ""
            return document(
                rendered.title,
                rendered.body,
                section=section,
                live=f"/live{request.url.path}{query}",
                shape=rendered.shape,
                signed_in=visitor != VISITOR,
            )

        return show

    def _stream(self, view: View) -> Handler:
        async def follow(request: Request) -> Response:
            await self._access.visitor(request)
            self._streams.require_room()
            context = self._context(request)

            # A rendered view has nothing that depends on the visitor, so all visitors of the same address share it.
            async def render() -> RenderedView:
                return await self._rendered.get((request.url.path, request.url.query), lambda: view(context))

            events = self._streams.events(render, lambda: self._access.visitor(request))
            headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no", **HEADERS}
            return StreamingResponse(events, 200, headers, "text/event-stream")

        return follow

    # -- signing in and out

    async def _login_form(self, request: Request) -> Response:
        return login_document(safe_target(request.query_params.get("next", "/")))

    async def _login(self, request: Request) -> Response:
        require_same_site(request)
        fields = await _form(request, self._container)
        token, target = fields.get("token", "").strip(), safe_target(fields.get("next", "/"))
        try:
            person = await self._access.person(f"Bearer {token}")
        except (Unauthenticated, Forbidden) as error:
            return login_document(target, login_problem(error), status=error.status)
        self._container.log.info("signed_in", name=person.name, role=person.role)
        response = RedirectResponse(target, 303)
        self._access.set_cookie(response, token)
        return response

    async def _link_form(self, request: Request) -> Response:
        return sign_in_document(safe_target(request.query_params.get("next", "/")))

    async def _redeem(self, request: Request) -> Response:
        """Open a session for the code of a one-time link, and redirect to an address without it."""
        require_same_site(request)
        fields = await _form(request, self._container)
        target = safe_target(fields.get("next", "/"))
        try:
            token = await sign_in_links.redeem(self._container, fields.get("code", "").strip())
        except Unauthenticated as error:
            message = f"{error}. An administrator makes another: fedbandit dashboard-link."
            return sign_in_document(target, message[:1].upper() + message[1:], status=error.status)
        response = RedirectResponse(target, 303)
        self._access.set_cookie(response, token)
        return response

    async def _logout(self, request: Request) -> Response:
        require_same_site(request)
        with suppress(Unauthenticated, Forbidden):
            visitor = await self._access.visitor(request)
            if ends_at(visitor.name) is not None:  # the session of a link ends; other tokens stay valid
                await self._container.store.drop_token(visitor.name)
        response = RedirectResponse("/login", 303)
        self._access.clear_cookie(response)
        return response

    # -- files

    async def _table(self, request: Request) -> Response:
        await self._access.visitor(request)
        model, file = request.path_params["model"], request.path_params["file"]
        content, kind = await table_file(self._sources, model, file, request.query_params)
        name = f'attachment; filename="{model}-{file}"'  # both were checked: the model exists, and so does the file
        return Response(content, 200, {"Content-Disposition": name, "Cache-Control": "no-store"}, kind)

    # -- the API's description, the glossary, and what does not exist

    async def _words(self, request: Request) -> Response:
        return document("Words", words(), section="Words")

    async def _not_found(self, request: Request) -> Response:
        return error_document(
            404, "Not found", "There is nothing at this address. Was it cut off, or was a model deleted?"
        )

    async def _docs(self, request: Request) -> Response:
        if self._api_docs is None:
            openapi = await asyncio.to_thread(make_json_app(self._container).openapi)
            self._api_docs = api_docs(openapi)
        return document("HTTP API", self._api_docs, section="API")

    # -- error handling and headers

    def _guarded(self, handler: Handler) -> Handler:
        """The handler with errors as HTML (as JSON for a stream), security headers and a log line."""

        async def guarded(request: Request) -> Response:
            began = time.perf_counter()
            try:
                response = await handler(request)
            except FedbanditError as error:
                response = _error_response(request, error)
            except ClientDisconnected:
                response = Response(status_code=400)
            except Exception as error:
                self._container.log.error("view_failed", path=request.url.path, exc_info=error)
                text = "The server could not render this view; its log has the reason."
                response = error_document(500, "Something went wrong", text)
            for name, value in HEADERS.items():
                response.headers.setdefault(name, value)
            spent = round(1e3 * (time.perf_counter() - began), 2)
            path = request.url.path  # without the query, which may be private
            self._container.log.debug("view", path=path, status=response.status_code, ms=spent)
            return response

        return guarded


async def _form(request: Request, container: Container) -> dict[str, str]:
    """The fields of a posted form, if it is short."""
    limits: Any = {"limit": MAX_FORM, "timeout_s": container.settings.body_timeout_s}
    async with read_body(request.scope, request.receive, container.memory, **limits) as body:
        return dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=20))


def _error_response(request: Request, error: FedbanditError) -> Response:
    status = error_responses.status_of(error)
    if request.url.path.startswith("/live"):
        return JSONResponse(
            {"error": error.code, "message": str(error)}, status, error_responses.extra_headers(status, error)
        )
    if isinstance(error, Unauthenticated) and request.method == "GET" and "authorization" not in request.headers:
        query = f"?{request.url.query}" if request.url.query else ""
        return RedirectResponse(url("login", next=request.url.path + query), 303)
    titles = {404: "Not found", 503: "Please try again in a moment"}
    title = titles.get(status, HTTPStatus(status).phrase)
    message = str(error)
    response = error_document(status, title, message[:1].upper() + message[1:] + ".")
    response.headers.update(error_responses.extra_headers(status, error))
    return response
