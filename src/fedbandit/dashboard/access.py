"""Access control of the dashboard: viewers and administrators, by header or login cookie; or open on this machine."""

from __future__ import annotations

import base64
import binascii
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from fedbandit.errors import Forbidden, Unauthenticated
from fedbandit.service.admin.auth import require
from fedbandit.service.container import Container
from fedbandit.service.settings import is_loopback
from fedbandit.service.stores.base import Principal

COOKIE = "fedbandit"
COOKIE_AGE_S = 12 * 3600
VISITOR = Principal("viewer", "visitor")
FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip")


class Access:
    """Authenticates the visitors of the dashboard."""

    def __init__(self, container: Container) -> None:
        self._container = container

    async def visitor(self, request: Request) -> Principal:
        """The principal of a request; `Unauthenticated` or `Forbidden` without access to the dashboard."""
        authorization = request.headers.get("authorization") or _from_cookie(request)
        if authorization is None and self.is_open(request):
            return VISITOR
        return await self.person(authorization)

    async def person(self, authorization: str | None) -> Principal:
        """The principal of a viewer's or an administrator's token."""
        principal = await self._container.authenticator.principal(authorization)
        if principal.role == "agent":
            raise Forbidden("this token belongs to an agent; the dashboard needs one of a viewer or an administrator")
        require(principal, "viewer", "admin")
        return principal

    def is_open(self, request: Request) -> bool:
        """Whether no token is needed: the setting is on and the request was made on this machine for this machine.

        The host name must be a loopback name too, because of DNS rebinding: another site may resolve its name to
        127.0.0.1 and read what its visitors can reach. Requests that a proxy forwards are not local.
        """
        if not self._container.settings.open_dashboard or any(name in request.headers for name in FORWARDED):
            return False
        client = request.client.host if request.client else ""
        host = urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
        return is_loopback(client) and is_loopback(host)

    def set_cookie(self, response: Response, token: str) -> None:
        """Put the token into a cookie that scripts cannot read and other sites cannot use."""
        response.set_cookie(
            COOKIE,
            base64.urlsafe_b64encode(token.encode()).decode(),
            max_age=COOKIE_AGE_S,
            httponly=True,
            samesite="strict",
            secure=self._is_tls,
        )

    def clear_cookie(self, response: Response) -> None:
        """Delete the cookie."""
        response.delete_cookie(COOKIE, httponly=True, samesite="strict", secure=self._is_tls)

    @property
    def _is_tls(self) -> bool:
        return self._container.settings.scheme == "https"


def _from_cookie(request: Request) -> str | None:
    text = request.cookies.get(COOKIE)
    if not text:
        return None
    try:
        return "Bearer " + base64.urlsafe_b64decode(text).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None


def require_same_site(request: Request) -> None:
    """`Forbidden` for requests from another site, by the header that browsers send."""
    if request.headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
        raise Forbidden("this request was sent by another site")


def safe_target(target: str) -> str:
    """The redirect after the login: a path on this server, or the overview.

    >>> safe_target("/models/news?page=2"), safe_target("//elsewhere"), safe_target("https://elsewhere")
    ('/models/news?page=2', '/', '/')
    """
    is_path = target.startswith("/") and not target.startswith("//") and "\\" not in target
    return target if is_path and target.isprintable() else "/"


def login_problem(error: Unauthenticated | Forbidden) -> str:
    """Why a login failed, as text for the form."""
    if isinstance(error, Forbidden):
        return "This is an agent's token. The dashboard needs the token of a viewer or an administrator."
    return "This token is unknown. Was it replaced, or truncated while copying?"
