"""CORS: the origins whose pages may use the routes of agents.

Agents send their token in a header, never in a cookie, so credentialed requests are not allowed.
"""

from __future__ import annotations

import re

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fedbandit.errors import InvalidParameter

ANY = "*"
ORIGIN = re.compile(r"https?://(?:[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?")
AGENT_ROUTES = re.compile(r"/v1/models/[^/]+(?:/sync|/state|/rewards|/rewards/collect|/enrol|/start)?")
MAX_AGE_S = 7200  # a withdrawn origin loses access after two hours at most

PREFLIGHT = [
    (b"access-control-allow-methods", b"GET, POST"),
    (b"access-control-allow-headers", b"Authorization, Content-Type, If-None-Match"),
    (b"access-control-max-age", str(MAX_AGE_S).encode()),
    (b"content-length", b"0"),
]
EXPOSED = (b"access-control-expose-headers", b"ETag, Retry-After, X-Request-Id, Fedbandit-Rewards")
VARY = (b"vary", b"Origin")


def check_origins(origins: tuple[str, ...]) -> None:
    """Raise `InvalidParameter` unless each is an origin as browsers send it, or `*` is the only one."""
    for origin in origins:
        if not ORIGIN.fullmatch(origin) and origin != ANY:
            raise InvalidParameter(
                f"expected allow_origin as https://host or https://host:port in lower case, without a path, "
                f"got {origin!r}"
            )
    if ANY in origins and len(origins) > 1:
        raise InvalidParameter("expected allow_origin as a list of origins or as '*' alone")


class CorsMiddleware:
    """Plain ASGI middleware: answers preflight requests, and adds headers to all responses, errors included."""

    def __init__(self, app: ASGIApp, allowed: tuple[str, ...]) -> None:
        self._app = app
        self._allowed = frozenset(allowed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not AGENT_ROUTES.fullmatch(scope["path"]):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        cors_headers = self._cors_headers(headers.get("origin", ""))
        if scope["method"] == "OPTIONS" and len(cors_headers) > 1 and "access-control-request-method" in headers:
            await send({"type": "http.response.start", "status": 204, "headers": [*cors_headers, *PREFLIGHT]})
            await send({"type": "http.response.body", "body": b""})
            return

        async def send_with_cors(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *cors_headers]
            await send(message)

        await self._app(scope, receive, send_with_cors)

    def _cors_headers(self, origin: str) -> list[tuple[bytes, bytes]]:
        """The CORS headers of a response; `Vary` tells caches that they depend on the origin."""
        if ANY in self._allowed:
            return [(b"access-control-allow-origin", b"*"), EXPOSED]
        if origin in self._allowed:
            return [(b"access-control-allow-origin", origin.encode()), EXPOSED, VARY]
        return [VARY]
