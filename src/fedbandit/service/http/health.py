"""Status, metrics and health checks: `/status`, `/metrics`, `/healthz` and `/readyz`."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from fedbandit.errors import FedbanditError
from fedbandit.service.admin.auth import require
from fedbandit.service.http.routes import PEOPLE, Served

router = APIRouter()


@router.get("/status", dependencies=PEOPLE)
async def status(container: Served) -> dict[str, Any]:
    """The server and all its models."""
    models = await container.store.models()
    return {
        "version": version("fedbandit"),
        "now": container.clock(),
        "n_models": len(models),
        "n_agents": sum(model.n_agents for model in models),
        "models": [model.to_dict() for model in models],
    }


@router.get("/metrics", response_class=Response)
async def metrics(request: Request, container: Served) -> Response:
    """Metrics in Prometheus' text format; during an outage of the store for tokens that have read them before."""
    principal, is_available = await container.authenticator.scraper(request.headers.get("authorization"))
    require(principal, "admin", "viewer")
    container.metrics.store_up.set(is_available)
    if is_available:
        await container.metrics.fleet.update(container.store, container.clock())
    text, content_type = container.metrics.render()
    return Response(text, media_type=content_type)


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """The process is running."""
    return {"status": "ok"}


@router.get("/readyz")
async def readyz(container: Served) -> Response:
    """The store is available; 503 while it is not."""
    try:
        await container.store.ping()
    except FedbanditError as error:
        body = {"error": error.code, "message": str(error)}
        return JSONResponse(body, status_code=503, headers={"Retry-After": "1"})
    return JSONResponse({"status": "ready"})
