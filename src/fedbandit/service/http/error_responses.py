"""Errors as HTTP responses, all of one shape: {"error": "sequence_gap", "message": "…"} with a fitting status."""

from __future__ import annotations

import json
import math
from typing import NamedTuple

from fedbandit.errors import (
    DecisionError,
    DimensionMismatch,
    FeatureMismatch,
    FedbanditError,
    FormatError,
    ImplausibleUpload,
    InvalidInput,
    ModelChanged,
    NotFinite,
    Overloaded,
    ProtocolError,
    RateExceeded,
    ServiceError,
    StoreUnavailable,
)

# The first class that matches decides, so subclasses come first.
STATUSES: tuple[tuple[type[FedbanditError], int], ...] = (
    (DimensionMismatch, 422),
    (FeatureMismatch, 422),
    (NotFinite, 422),
    (ImplausibleUpload, 422),
    (InvalidInput, 400),
    (FormatError, 400),
    (DecisionError, 404),
    (ProtocolError, 409),
)
JSON = "application/json"
INTERNAL = ("internal_error", "the server failed; its log has the reason under the request id")


class ErrorResponse(NamedTuple):
    """A complete response, but for its length and request id."""

    status: int
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...]


def response_to(error: FedbanditError) -> ErrorResponse:
    """The response to an error."""
    status = status_of(error)
    return _response(status, body_of(error.code, str(error)), extra_headers(status, error))


def internal() -> ErrorResponse:
    """The response to an unexpected exception, whose text belongs into the log only."""
    return _response(500, body_of(*INTERNAL), {})


def _response(status: int, body: bytes, headers: dict[str, str]) -> ErrorResponse:
    pairs = ((name.lower().encode(), value.encode()) for name, value in {"Content-Type": JSON, **headers}.items())
    return ErrorResponse(status, body, tuple(pairs))


def status_of(error: FedbanditError) -> int:
    """The HTTP status of an error."""
    if isinstance(error, ServiceError):
        return error.status
    return next((status for kind, status in STATUSES if isinstance(error, kind)), 500)


def body_of(code: str, message: str) -> bytes:
    """The JSON of an error."""
    return json.dumps({"error": code, "message": message}, ensure_ascii=False).encode()


def extra_headers(status: int, error: FedbanditError | None = None) -> dict[str, str]:
    """The headers that belong to a status or an error."""
    if status == 401:
        return {"WWW-Authenticate": "Bearer"}
    if status in (408, 413):
        return {"Connection": "close"}  # the rest of the body is not read
    if isinstance(error, RateExceeded):
        return {"Retry-After": str(math.ceil(min(max(error.retry_after_s, 1.0), 3600.0)))}
    if isinstance(error, (ModelChanged, Overloaded, StoreUnavailable)):
        return {"Retry-After": "1"}
    return {}
