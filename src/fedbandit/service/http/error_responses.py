"""Errors as HTTP answers, all of one shape: {"error": "sequence_gap", "message": "…"} with a fitting status."""

from __future__ import annotations

import json
import math

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

# The first class that fits decides, so the more special ones come first.
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


def status_of(error: FedbanditError) -> int:
    """The HTTP status of an error."""
    if isinstance(error, ServiceError):
        return error.status
    return next((status for kind, status in STATUSES if isinstance(error, kind)), 500)


def body_of(code: str, message: str) -> bytes:
    """The one shape."""
    return json.dumps({"error": code, "message": message}, ensure_ascii=False).encode()


def extra_headers(status: int, error: FedbanditError | None = None, *, retry_after_s: int = 1) -> dict[str, str]:
    """What a status asks to be said in a header."""
    if status == 401:
        return {"WWW-Authenticate": "Bearer"}
    if status in (408, 413):
        return {"Connection": "close"}  # the rest of the body is not worth reading
    if isinstance(error, RateExceeded):
        return {"Retry-After": str(math.ceil(min(max(error.retry_after_s, 1.0), 3600.0)))}
    if isinstance(error, (ModelChanged, Overloaded, StoreUnavailable)):
        return {"Retry-After": str(retry_after_s)}
    return {}
