"""The routes of the page: each is glue between a request and a view."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from urllib.parse import parse_qsl

from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from fedbandit.dashboard import access as doors
from fedbandit.dashboard.frame import Frame, url
from fedbandit.dashboard.fresh import Fresh
from fedbandit.dashboard.layout import HEADERS, login_page, page, problem_page
from fedbandit.dashboard.live import Streams
from fedbandit.dashboard.look import Look, View
from fedbandit.dashboard.markup import Html, tag
from fedbandit.dashboard.runs import Runs
from fedbandit.dashboard.sources import Sources
from fedbandit.dashboard.spec import spec_from
from fedbandit.dashboard.static import static
from fedbandit.dashboard.views.agent import agent
from fedbandit.dashboard.views.agents import agents
from fedbandit.dashboard.views.api_docs import api_docs
from fedbandit.dashboard.views.model import model
from fedbandit.dashboard.views.overview import overview
from fedbandit.dashboard.views.simulation import simulation
from fedbandit.errors import BodyTooLarge, FedbanditError, Forbidden, InvalidInput, Overloaded, Unauthenticated
from fedbandit.service import problems
from fedbandit.service.app import make_json_app
from fedbandit.service.parts import Parts

VIEWS: dict[str, tuple[str, View]] = {
    "/": ("Models", overview),
    "/models/{model}": ("Models", model),
    "/models/{model}/agents": ("Models", agents),
    "/models/{model}/agents/{agent}": ("Models", agent),
    "/simulation": ("Simulation", simulation),
}
MAX_FORM = 8_192
Handler = Callable[[Request], Awaitable[Response]]


def page_routes(parts: Parts) -> list[BaseRoute]:
    """Everything that people look at, to stand before the JSON surface."""
    return Page(parts).routes()


class Page:
    """The window on one server."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._access = doors.Access(parts)
        self._sources = Sources(parts)
        self._runs = Runs(parts.log)
        self._frames = Fresh(ttl_s=0.5)
        self._streams = Streams(parts.stopping, parts.clock, parts.log)
        self._api_docs: Html | None = None

    def routes(self) -> list[BaseRoute]:
        """Views and their live streams, the login, the simulation, the API's description, static files."""
        found: list[BaseRoute] = []
        for path, (section, view) in VIEWS.items():
            found.append(Route(path, self._guarded(self._shown(section, view)), methods=["GET"]))
            found.append(Route("/live" + path, self._guarded(self._followed(view)), methods=["GET"]))
        found += [
            Route("/simulation", self._guarded(self._start), methods=["POST"]),
            Route("/login", self._guarded(self._login_form), methods=["GET"]),
            Route("/login", self._guarded(self._login), methods=["POST"]),
            Route("/logout", self._guarded(self._logout), methods=["POST"]),
            Route("/docs", self._guarded(self._docs), methods=["GET"]),
            Route("/static/{edition}/{name}", static, methods=["GET"]),
        ]
        return found

    # -- views

    def _look(self, request: Request) -> Look:
        return Look(self._sources, self._runs, request.path_params, dict(request.query_params))

    def _shown(self, section: str, view: View) -> Handler:
        async def show(request: Request) -> Response:
            visitor = await self._access.visitor(request)
            frame = await view(self._look(request))
            query = f"?{request.url.query}" if request.url.query else ""
            is_still = frame.is_final and not frame.series
            return page(
                frame.title,
                frame.body,
                section=section,
                live="" if is_still else f"/live{request.url.path}{query}",
                shape=frame.shape,
                signed_in=visitor != doors.VISITOR,
            )

        return show

    def _followed(self, view: View) -> Handler:
        async def follow(request: Request) -> Response:
            await self._access.visitor(request)
            self._streams.require_room()
            look = self._look(request)

            # A frame holds nothing of the visitor's own, so all who look at the same view share it.
            async def frame() -> Frame:
                return await self._frames.get((request.url.path, request.url.query), lambda: view(look))

            events = self._streams.events(frame, lambda: self._access.visitor(request))
            headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no", **HEADERS}
            return StreamingResponse(events, 200, headers, "text/event-stream")

        return follow

    # -- the simulation

    async def _start(self, request: Request) -> Response:
        doors.require_same_site(request)
        await self._access.visitor(request)
        fields = await _form(request)
        try:
            run = self._runs.start(spec_from(fields))
        except (InvalidInput, Overloaded) as error:
            return RedirectResponse(url("simulation", problem=str(error)), 303)
        return RedirectResponse(url("simulation", run=run.spec.id), 303)

    # -- coming and going

    async def _login_form(self, request: Request) -> Response:
        return login_page(doors.safe_target(request.query_params.get("next", "/")))

    async def _login(self, request: Request) -> Response:
        doors.require_same_site(request)
        fields = await _form(request)
        token, target = fields.get("token", "").strip(), doors.safe_target(fields.get("next", "/"))
        try:
            person = await self._access.person(f"Bearer {token}")
        except (Unauthenticated, Forbidden) as error:
            return login_page(target, doors.told(error), status=error.status)
        self._parts.log.info("signed_in", name=person.name, role=person.role)
        response = RedirectResponse(target, 303)
        self._access.remember(response, token)
        return response

    async def _logout(self, request: Request) -> Response:
        doors.require_same_site(request)
        response = RedirectResponse("/login", 303)
        self._access.forget(response)
        return response

    # -- the API's description

    async def _docs(self, request: Request) -> Response:
        if self._api_docs is None:
            document = await asyncio.to_thread(make_json_app(self._parts).openapi)
            self._api_docs = api_docs(document)
        return page("HTTP API", self._api_docs, section="API")

    # -- around all of them

    def _guarded(self, handler: Handler) -> Handler:
        """The handler with errors as pages (as JSON for a stream), security headers and a log line."""

        async def guarded(request: Request) -> Response:
            began = time.perf_counter()
            try:
                response = await handler(request)
            except FedbanditError as error:
                response = _problem(request, error)
            except ClientDisconnect:
                response = Response(status_code=400)
            except Exception as error:
                self._parts.log.error("page_failed", path=request.url.path, exc_info=error)
                told = "The server failed to make this page; its log has the reason."
                response = problem_page(500, "Something went wrong", told)
            for name, value in HEADERS.items():
                response.headers.setdefault(name, value)
            spent = round(1e3 * (time.perf_counter() - began), 2)
            path = request.url.path  # never the query: it is the visitor's own
            self._parts.log.debug("page", path=path, status=response.status_code, ms=spent)
            return response

        return guarded


async def _form(request: Request) -> dict[str, str]:
    """The fields of a posted form, if it is short."""
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_FORM:
            raise BodyTooLarge(f"expected a form of at most {MAX_FORM} bytes")
    return dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=20))


def _problem(request: Request, error: FedbanditError) -> Response:
    status = problems.status_of(error)
    if request.url.path.startswith("/live"):
        return JSONResponse({"error": error.code, "message": str(error)}, status)
    if isinstance(error, Unauthenticated) and request.method == "GET":
        if "authorization" in request.headers:
            return _told(status, error)
        query = f"?{request.url.query}" if request.url.query else ""
        return RedirectResponse(url("login", next=request.url.path + query), 303)
    return _told(status, error)


def _told(status: int, error: FedbanditError) -> HTMLResponse:
    titles = {404: "Not found", 503: "Please try again in a moment"}
    title = titles.get(status, HTTPStatus(status).phrase)
    message = str(error)
    return problem_page(status, title, message[:1].upper() + message[1:] + ".", tag("a", "All models", href="/"))
