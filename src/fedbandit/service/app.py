"""The ASGI application: the exchange in front, the dashboard and the JSON API behind a router, one shape of errors."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Router
from starlette.types import ASGIApp

from fedbandit.errors import FedbanditError, StoreUnavailable
from fedbandit.service.container import Container
from fedbandit.service.exchange.endpoint import ExchangeEndpoint
from fedbandit.service.exchange.handler import ExchangeHandler
from fedbandit.service.http import enrolment_routes, error_responses, health, operator_routes, reward_routes
from fedbandit.service.http import routes as api
from fedbandit.service.http.cors import CorsMiddleware
from fedbandit.service.http.middleware import RequestMiddleware
from fedbandit.service.http.openapi import with_exchange

HTTP_CODES = {400: "invalid_input", 404: "not_found", 405: "method_not_allowed"}


def make_app(
    container: Container, *, routes: Sequence[BaseRoute] = (), handler: ExchangeHandler | None = None
) -> ASGIApp:
    """The server; its lifespan opens the store, and drains at the end. `routes` precede those of the JSON API."""

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        await container.start()
        try:
            yield
        finally:
            await container.stop()

    json_app = RequestMiddleware(make_json_app(container), container)
    # A mount matches no path with a line break; the default gives such requests the same shape of errors.
    router = Router([*routes, Mount("/", json_app)], lifespan=lifespan, default=json_app)
    app = ExchangeEndpoint(container, router, handler)
    allowed = container.settings.allow_origin
    return CorsMiddleware(app, allowed) if allowed else app


def make_json_app(container: Container) -> FastAPI:
    """The JSON API with its OpenAPI description."""
    app = FastAPI(
        title="fedbandit",
        version=version("fedbandit"),
        description="A fleet of agents learns one linear bandit together.",
        docs_url=None,  # FastAPI's documentation loads scripts from another host; the dashboard has its own
        redoc_url=None,
    )
    app.state.container = container
    app.include_router(api.router)
    app.include_router(enrolment_routes.router)
    app.include_router(reward_routes.router)
    app.include_router(operator_routes.router)
    app.include_router(health.router)
    app.add_exception_handler(FedbanditError, _known_error)
    app.add_exception_handler(RequestValidationError, _bad_request)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _unexpected)
    app.openapi = with_exchange(app.openapi)  # type: ignore[method-assign]
    return app


async def _known_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, FedbanditError)
    if isinstance(error, StoreUnavailable):  # counted here as for exchanges
        request.app.state.container.metrics.refusals.labels(error.code).inc()
    status = error_responses.status_of(error)
    return _response(status, error.code, str(error), error_responses.extra_headers(status, error))


async def _bad_request(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return _response(400, "invalid_input", "; ".join(_describe(problem) for problem in error.errors()))


def _describe(problem: Any) -> str:
    """The field and the reason, without the value: it may be a secret in the wrong place."""
    where = ".".join(str(part) for part in problem["loc"] if part != "body")
    return f"{where}: {problem['msg']}" if where else str(problem["msg"])


async def _http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = HTTP_CODES.get(error.status_code, "http_error")
    return _response(error.status_code, code, str(error.detail), dict(error.headers or {}))


async def _unexpected(_: Request, error: Exception) -> Response:
    return _response(500, *error_responses.INTERNAL)  # `RequestMiddleware` logs the error


def _response(status: int, code: str, message: str, headers: dict[str, str] | None = None) -> Response:
    return Response(error_responses.body_of(code, message), status, headers, "application/json")
