"""The ASGI application: the exchange as a plain route, everything else by FastAPI, one error shape for all."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route, Router
from starlette.types import ASGIApp

from fedbandit.errors import FedbanditError, StoreUnavailable
from fedbandit.service.container import Container
from fedbandit.service.exchange.endpoint import ExchangeEndpoint
from fedbandit.service.exchange.handler import ExchangeHandler
from fedbandit.service.http import error_responses, health
from fedbandit.service.http import routes as api
from fedbandit.service.http.cors import CorsMiddleware
from fedbandit.service.http.middleware import RequestMiddleware
from fedbandit.service.http.openapi import with_exchange

HTTP_CODES = {400: "invalid_input", 404: "not_found", 405: "method_not_allowed"}


def make_app(container: Container, *, routes: Sequence[BaseRoute] = (), desk: ExchangeHandler | None = None) -> ASGIApp:
    """The whole server; its lifespan opens the store and drains at the end. `routes` come before the JSON surface."""

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        await container.start()
        try:
            yield
        finally:
            await container.stop()

    json_app = RequestMiddleware(make_json_app(container), container)
    everything = [Route("/v1/models/{model}/sync", ExchangeEndpoint(container, desk)), *routes, Mount("/", json_app)]
    # A bare router: an application's middleware would cost every exchange, and the guard does its work.
    # A mount matches no path with a line break in it; whatever matches nothing is told so in our shape, too.
    router = Router(everything, lifespan=lifespan, default=json_app)
    allowed = container.settings.allow_origin
    return CorsMiddleware(router, allowed) if allowed else router


def make_json_app(container: Container) -> FastAPI:
    """The JSON surface with its OpenAPI description."""
    app = FastAPI(
        title="fedbandit",
        version=version("fedbandit"),
        description="A fleet of agents learns one linear bandit together.",
        docs_url=None,  # FastAPI's own documentation loads scripts from another host; ours is part of the dashboard
        redoc_url=None,
    )
    app.state.container = container
    app.include_router(api.router)
    app.include_router(health.router)
    app.add_exception_handler(FedbanditError, _known_problem)
    app.add_exception_handler(RequestValidationError, _bad_request)
    app.add_exception_handler(HTTPException, _http_problem)
    app.add_exception_handler(Exception, _unforeseen)
    app.openapi = with_exchange(app.openapi)  # type: ignore[method-assign]
    return app


async def _known_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, FedbanditError)
    if isinstance(error, StoreUnavailable):  # agents that ask for a model meet an outage, too
        request.app.state.container.metrics.refusals.labels(error.code).inc()
    status = error_responses.status_of(error)
    return _answer(status, error.code, str(error), error_responses.extra_headers(status, error))


async def _bad_request(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return _answer(400, "invalid_input", "; ".join(_told(problem) for problem in error.errors()))


def _told(problem: Any) -> str:
    """Where and what, without the value: it may be a secret that was put into the wrong place."""
    where = ".".join(str(part) for part in problem["loc"] if part != "body")
    return f"{where}: {problem['msg']}" if where else str(problem["msg"])


async def _http_problem(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = HTTP_CODES.get(error.status_code, "http_error")
    return _answer(error.status_code, code, str(error.detail), dict(error.headers or {}))


async def _unforeseen(_: Request, error: Exception) -> Response:
    return _answer(500, *error_responses.INTERNAL)  # the guard has the error and logs it


def _answer(status: int, code: str, message: str, headers: dict[str, str] | None = None) -> Response:
    return Response(error_responses.body_of(code, message), status, headers, "application/json")
