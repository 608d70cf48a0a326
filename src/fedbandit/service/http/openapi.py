"""The OpenAPI description of the exchange, which is not a FastAPI route."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedbandit.service.exchange.endpoint import ROUTE
from fedbandit.wire.codec import CONTENT_TYPE

BINARY = {"schema": {"type": "string", "format": "binary"}}
PROBLEM = {
    "type": "object",
    "required": ["error", "message"],
    "properties": {"error": {"type": "string"}, "message": {"type": "string"}},
}
STATUSES = {
    "400": "The request cannot be read",
    "401": "No token, or one that is not known or was revoked",
    "403": "The token may not do this",
    "404": "There is no such model or agent",
    "405": "There is no such method here",
    "408": "The body did not arrive in time",
    "409": "A conflict: a gap in sequences, other content, a stale incarnation, a name that is taken",
    "413": "The body is too long",
    "422": "Numbers of another dimension, or numbers that no data can give",
    "503": "Overloaded, or the store cannot be reached; `Retry-After` says when to try again",
}


def with_exchange(describe: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    """FastAPI's description plus the exchange, the security scheme and the shape of errors."""

    def described() -> dict[str, Any]:
        document = describe()
        if "Problem" in document.get("components", {}).get("schemas", {}):
            return document
        components = document.setdefault("components", {})
        components.setdefault("schemas", {})["Problem"] = PROBLEM
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        document["paths"][ROUTE] = {"post": _exchange()}
        for path, methods in document["paths"].items():
            for operation in methods.values():
                operation["responses"].pop("422", None)  # FastAPI's shape; ours replaces it
                operation["responses"].update(_problems())
                if path not in ("/healthz", "/readyz"):
                    operation["security"] = [{"token": []}]
        return document

    return described


def _exchange() -> dict[str, Any]:
    return {
        "summary": "Exchange",
        "description": "An upload in, a download out: merged once and durable before the response.",
        "operationId": "sync",
        "parameters": [{"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}],
        "requestBody": {"required": True, "content": {CONTENT_TYPE: BINARY}},
        "responses": {"200": {"description": "The state after the merge", "content": {CONTENT_TYPE: BINARY}}},
    }


def _problems() -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {status: {"description": text, "content": content} for status, text in STATUSES.items()}
