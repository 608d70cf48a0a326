"""The routes of the dashboard, each from a request to a view."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from fedbandit.dashboard.access import VISITOR, Access, login_problem, require_same_site, safe_target
from fedbandit.dashboard.components import RenderedView, url
from fedbandit.dashboard.data_sources import DataSources, TtlCache, ViewContext
from fedbandit.dashboard.layout import HEADERS, document, error_document, login_document, static
from fedbandit.dashboard.markup import Html
from fedbandit.dashboard.stream import EventStreams
from fedbandit.dashboard.views.agent import agent
from fedbandit.dashboard.views.agents import agents
from fedbandit.dashboard.views.api_docs import api_docs
from fedbandit.dashboard.views.model import model
from fedbandit.dashboard.views.overview import overview
from fedbandit.errors import FedbanditError, Forbidden, Unauthenticated
from fedbandit.service.app import make_json_app
from fedbandit.service.container import Container
from fedbandit.service.http import error_responses
from fedbandit.service.http.request_body import ClientDisconnected, read_body

View = Callable[[ViewContext], Awaitable[RenderedView]]
VIEWS: dict[str, tuple[str, View]] = {
    "/": ("Models", overview),
    "/models/{model}": ("Models", model),
    "/models/{model}/agents": ("Models", agents),
    "/models/{model}/agents/{agent}": ("Models", agent),
}
MAX_FORM = 8_192
Handler = Callable[[Request], Awaitable[Response]]


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
            Route("/docs", self._guarded(self._docs), methods=["GET"]),
            Route("/static/{edition}/{name}", static, methods=["GET"]),
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

    async def _logout(self, request: Request) -> Response:
        require_same_site(request)
        response = RedirectResponse("/login", 303)
        self._access.clear_cookie(response)
        return response

    # -- the API's description

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
