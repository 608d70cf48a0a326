"""Who may look: a viewer or an administrator, by header or by the cookie of the login form; on an open page anybody."""

from __future__ import annotations

import base64
import binascii
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from fedbandit.errors import Forbidden, Unauthenticated
from fedbandit.service.auth import require
from fedbandit.service.parts import Parts
from fedbandit.service.settings import is_loopback
from fedbandit.service.stores.base import Principal

COOKIE = "fedbandit"
COOKIE_AGE_S = 12 * 3600
VISITOR = Principal("viewer", "visitor")
FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip")


class Access:
    """Looks at requests."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def visitor(self, request: Request) -> Principal:
        """Who looks; `Unauthenticated` or `Forbidden` if nobody may."""
        authorization = request.headers.get("authorization") or _from_cookie(request)
        if authorization is None and self.is_open(request):
            return VISITOR
        return await self.person(authorization)

    async def person(self, authorization: str | None) -> Principal:
        """Whose token it is, if it is a person's."""
        principal = await self._parts.gate.principal(authorization)
        if principal.role == "agent":
            raise Forbidden("this token belongs to an agent; the page needs one of a viewer or an administrator")
        require(principal, "viewer", "admin")
        return principal

    def is_open(self, request: Request) -> bool:
        """Whether anybody may look: the setting is on and the request was made on this machine for this machine.

        The name in the address must be this machine's own too: a foreign page may point its own name at 127.0.0.1 and
        read what its visitors can reach. And what a proxy passes on comes from elsewhere.
        """
        if not self._parts.settings.open_page or any(name in request.headers for name in FORWARDED):
            return False
        client = request.client.host if request.client else ""
        host = urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
        return is_loopback(client) and is_loopback(host)

    def remember(self, response: Response, token: str) -> None:
        """Put the token into a cookie that scripts cannot read and other sites cannot use."""
        response.set_cookie(
            COOKIE,
            base64.urlsafe_b64encode(token.encode()).decode(),
            max_age=COOKIE_AGE_S,
            httponly=True,
            samesite="strict",
            secure=self._is_tls,
        )

    def forget(self, response: Response) -> None:
        """Take the cookie away."""
        response.delete_cookie(COOKIE, httponly=True, samesite="strict", secure=self._is_tls)

    @property
    def _is_tls(self) -> bool:
        return self._parts.settings.scheme == "https"


def _from_cookie(request: Request) -> str | None:
    text = request.cookies.get(COOKIE)
    if not text:
        return None
    try:
        return "Bearer " + base64.urlsafe_b64decode(text).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None


def require_same_site(request: Request) -> None:
    """`Forbidden` for what another site sends; browsers say where a request comes from."""
    if request.headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
        raise Forbidden("this was sent by another site")


def safe_target(target: str) -> str:
    """Where to go after the login: a path on this server, or the front page.

    >>> safe_target("/models/news?page=2"), safe_target("//elsewhere"), safe_target("https://elsewhere")
    ('/models/news?page=2', '/', '/')
    """
    is_path = target.startswith("/") and not target.startswith("//") and "\\" not in target
    return target if is_path and target.isprintable() else "/"


def told(error: Unauthenticated | Forbidden) -> str:
    """Why a login failed, for people."""
    if isinstance(error, Forbidden):
        return "This is an agent's token. The page needs the token of a viewer or an administrator."
    return "This token is not known here. Was it replaced, or cut off while copying?"
