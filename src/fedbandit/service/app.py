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

from fedbandit.errors import FedbanditError
from fedbandit.service import api, problems, watch
from fedbandit.service.desk import Desk
from fedbandit.service.guard import Guard
from fedbandit.service.openapi import with_exchange
from fedbandit.service.origins import Origins
from fedbandit.service.parts import Parts
from fedbandit.service.sync import SyncEndpoint

HTTP_CODES = {400: "invalid_input", 404: "not_found", 405: "method_not_allowed"}


def make_app(parts: Parts, *, routes: Sequence[BaseRoute] = (), desk: Desk | None = None) -> ASGIApp:
    """The whole server; its lifespan opens the store and drains at the end. `routes` come before the JSON surface."""

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        await parts.start()
        try:
            yield
        finally:
            await parts.stop()

    json_app = Guard(make_json_app(parts), parts)
    everything = [Route("/v1/models/{model}/sync", SyncEndpoint(parts, desk)), *routes, Mount("/", json_app)]
    # A bare router: an application's middleware would cost every exchange, and the guard does its work.
    # A mount matches no path with a line break in it; whatever matches nothing is told so in our shape, too.
    router = Router(everything, lifespan=lifespan, default=json_app)
    allowed = parts.settings.allow_origin
    return Origins(router, allowed) if allowed else router


def make_json_app(parts: Parts) -> FastAPI:
    """The JSON surface with its OpenAPI description."""
    app = FastAPI(
        title="fedbandit",
        version=version("fedbandit"),
        description="A fleet of agents learns one linear bandit together.",
        docs_url=None,  # FastAPI's own pages load their scripts from elsewhere; ours is part of the page
        redoc_url=None,
    )
    app.state.parts = parts
    app.include_router(api.router)
    app.include_router(watch.router)
    app.add_exception_handler(FedbanditError, _known_problem)
    app.add_exception_handler(RequestValidationError, _bad_request)
    app.add_exception_handler(HTTPException, _http_problem)
    app.add_exception_handler(Exception, _unforeseen)
    app.openapi = with_exchange(app.openapi)  # type: ignore[method-assign]
    return app


async def _known_problem(_: Request, error: Exception) -> Response:
    assert isinstance(error, FedbanditError)
    status = problems.status_of(error)
    return _answer(status, error.code, str(error), problems.extra_headers(status, error))


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
    return _answer(500, *problems.INTERNAL)  # the guard has the error and logs it


def _answer(status: int, code: str, message: str, headers: dict[str, str] | None = None) -> Response:
    return Response(problems.body_of(code, message), status, headers, "application/json")
