"""How the server is doing: `/status` for people and pages, `/metrics` for Prometheus, `/healthz` and `/readyz`."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse

from fedbandit.errors import FedbanditError
from fedbandit.service.api import PEOPLE, Served

router = APIRouter()


@router.get("/status", dependencies=PEOPLE)
async def status(parts: Served) -> dict[str, Any]:
    """The server and all its models."""
    models = await parts.store.models()
    return {
        "version": version("fedbandit"),
        "now": parts.clock(),
        "n_models": len(models),
        "n_agents": sum(model.n_agents for model in models),
        "models": [model.to_dict() for model in models],
    }


@router.get("/metrics", dependencies=PEOPLE, response_class=Response)
async def metrics(parts: Served) -> Response:
    """Counters and gauges in Prometheus' text format."""
    text, content_type = parts.metrics.render()
    return Response(text, media_type=content_type)


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """The process runs."""
    return {"status": "ok"}


@router.get("/readyz")
async def readyz(parts: Served) -> Response:
    """The store answers; 503 while it does not."""
    try:
        await parts.store.ping()
    except FedbanditError as error:
        body = {"error": error.code, "message": str(error)}
        return JSONResponse(body, status_code=503, headers={"Retry-After": "1"})
    return JSONResponse({"status": "ready"})
